//! Filter and scheduling machine.
//!
//! The filter is checked against the names of the scores that the rewards give. The machine gets its settings
//! from the configuration, and from the filter whether it compares the groups of a round.

use tamis_config::{Config, ScheduleMode};
use tamis_core::figure::counted;
use tamis_core::filter::{AvailableMetrics, FilterError, GroupFilter, Metric, MetricError, Pool, PoolScore};
use tamis_core::schedule::{RoundLimit, ScheduleSettings, Scheduler, StepUpdates, StreamingSettings};

use tamis_core::whole_step::WholeStep;
use tamis_rollout::Record;

use super::advantage::{advantage, shapings};
use crate::error::AssembleError;

/// The sieve with its metric, checked against the scores that the run will have.
#[derive(Debug, Clone)]
pub struct Sieve {
    /// The filter; `None`: every group is trained on.
    pub filter: Option<GroupFilter>,
    /// Metric that the filter judges by, and that reports show.
    pub metric: Metric,
    /// Line about the filter that the run prints at the start.
    pub announcement: String,
    /// Warning about the filter's settings.
    pub warning: Option<String>,
}

impl Sieve {
    /// A sieve that is only a filter, for the settings of the machine: no line describes it, and it judges
    /// nothing.
    pub(super) fn of_filter(filter: Option<GroupFilter>) -> Self {
        Self { filter, metric: Metric::SeqReward, announcement: String::new(), warning: None }
    }

    /// Whether the filter looks at rewards after the KL penalty.
    pub fn looks_at_final_reward(&self) -> bool {
        matches!(self.metric, Metric::SeqFinalReward | Metric::TokenLevelRewards)
    }

    /// The members of a kept group that train; `None`: all.
    pub fn choose_members(&self, record: &Record) -> Option<Vec<bool>> {
        let filter = self.filter.as_ref()?;
        filter.members(&record.values)
    }

    /// Advice on dropping groups whose members all have the same reward, as the end of a sentence; empty if
    /// the filter has no setting for it.
    pub fn remedy(&self) -> String {
        match &self.filter {
            Some(filter) if filter.admits_uniform() => remedy(filter).to_owned(),
            // A filter that keeps a group because its members differ.
            Some(filter) if filter.is_certain(0.0, f64::MAX) && self.metric != Metric::SeqReward => format!(
                "; the filter looks at `{}`, which differs within them, and not at the reward: \
                 `filter.metric=seq_reward` drops them too",
                self.metric
            ),
            _ => String::new(),
        }
    }
}

/// Builds the filter. `scores` are the names of the scores that the rewards give, `is_complete` means that
/// there can be no others, and `place` is the place at which the user set the metric. For `how_to_give_acc`
/// see [`tamis_env::reward::Rewards::how_to_give_acc`].
pub fn sieve(
    config: &Config,
    scores: impl IntoIterator<Item = String>,
    is_complete: bool,
    place: Option<&str>,
    how_to_give_acc: Option<&str>,
) -> Result<Sieve, AssembleError> {
    let available = AvailableMetrics { scores: scores.into_iter().collect(), entropy: true };
    let Some(filter) = &config.filter else {
        let metric = Metric::default_of(&available).unwrap_or(Metric::SeqReward);
        return Ok(Sieve {
            filter: None,
            metric,
            announcement: "filter off: one round a step, every trajectory is trained on".to_owned(),
            warning: None,
        });
    };
    let (metric, chosen) = match &filter.metric {
        Some(name) => (Metric::from(name.as_str()), ""),
        None => (Metric::default_of(&available)?, " (no metric was set: the raw outcome)"),
    };
    match metric.check(&available) {
        // Its scores will show whether the metric exists.
        Err(MetricError::Unknown { .. }) if !is_complete => {}
        Err(MetricError::Unknown { .. }) => {
            return Err(no_such_metric(&metric.to_string(), &available.names(), place, how_to_give_acc));
        }
        checked => checked?,
    }
    let built = filter.kind;
    built.check()?;
    let announcement = format!(
        "filter on: {} keeps {} of `{metric}`{chosen}; {}",
        built.name(),
        built.rule(),
        describe_filling(config)
    );
    // A group without contrast teaches nothing only if advantages compare within the group.
    let is_group_relative = config.signal_beyond_group().is_none();
    let warning = if is_group_relative { admission(&built, &metric) } else { None };
    Ok(Sieve { filter: Some(built), metric, announcement, warning })
}

/// The filter's metric is not among the known names.
pub(crate) fn no_such_metric(
    metric: &str,
    names: &[String],
    place: Option<&str>,
    how_to_give_acc: Option<&str>,
) -> AssembleError {
    let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
    let listed: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let instead = names.iter().find(|name| *name == "score").or(names.first());
    let write = instead.map(|name| format!("write `filter.metric: {name}`")).unwrap_or_default();
    let more = how_to_give_acc.filter(|_| metric == "acc").map_or_else(String::new, |how| {
        format!(", or {how}, which is 1 if the answer is right and 0 if it is not")
    });
    AssembleError::setting(
        format!(
            "`filter.metric` is `{metric}`{place}, and no reward function gives a number of that name: this run has {}",
            listed.join(", ")
        ),
        format!("{write}{more}"),
    )
}

pub(super) fn filter(config: &Config) -> Result<Option<GroupFilter>, FilterError> {
    let filter = config.filter.as_ref().map(|filter| filter.kind);
    filter.as_ref().map_or(Ok(()), |filter| filter.check())?;
    Ok(filter)
}

fn remedy(filter: &GroupFilter) -> &'static str {
    match filter.pool() {
        Some(Pool { score: PoolScore::Mean | PoolScore::Sum, .. }) => {
            "; filter.score=deviation with filter.include_zero=false keeps them out"
        }
        _ => "; filter.include_zero=false keeps them out",
    }
}

/// The warning about a filter that may keep groups without contrast.
fn admission(filter: &GroupFilter, metric: &Metric) -> Option<String> {
    filter.admits_uniform().then(|| {
        format!(
            "filter {} lets groups whose members all have the same `{metric}` into the batch, where a \
             group-relative advantage learns nothing \
             from them{}",
            filter.name(),
            remedy(filter)
        )
    })
}

/// Describes in words how a batch is filled.
fn describe_filling(config: &Config) -> String {
    let size = config.data.train_batch_size;
    let groups = counted(size, "group");
    if !config.refills() {
        let generated = config.gen_batch_size();
        let round = format!("one round of {} a step", counted(generated, "group"));
        return match config.filter {
            None => round,
            Some(_) if generated > size => {
                format!("{round}, trained on at most {size} of those that the filter keeps")
            }
            Some(_) => {
                format!("{round}, trained on those that the filter keeps")
            }
        };
    }
    if config.schedule.mode == ScheduleMode::Streaming {
        let most = match config.schedule.max_num_gen_batches.0 {
            RoundLimit::Rounds(limit) => {
                let most = limit.saturating_mul(config.gen_batch_size() as u64);
                format!("at most {} a step", counted(most, "prompt"))
            }
            RoundLimit::Auto => "as many prompts a step as the keep rate requires".to_owned(),
            RoundLimit::None => "no limit on prompts".to_owned(),
        };
        return format!("each dropped group is replaced at once, {most}, {groups} a step");
    }
    match config.schedule.max_num_gen_batches.0 {
        RoundLimit::Auto => {
            format!("as many rounds a step as the keep rate requires, {groups} a step")
        }
        RoundLimit::Rounds(limit) if config.schedule.mode == ScheduleMode::Deficit => {
            let most = counted(limit.saturating_mul(config.gen_batch_size() as u64), "prompt");
            format!("rounds sized to what the batch still lacks, at most {most} a step, {groups} a step")
        }
        RoundLimit::None if config.schedule.mode == ScheduleMode::Deficit => {
            format!("rounds sized to what the batch still lacks, no limit on them, {groups} a step")
        }
        RoundLimit::Rounds(limit) => {
            format!("at most {} a step, {groups} a step", counted(limit, "round"))
        }
        RoundLimit::None => format!("no limit on rounds, {groups} a step"),
    }
}

/// Parts of the configuration that need a whole step, so that its mini-batches cannot be trained on before it
/// is complete; empty if there are none.
///
/// # Errors
/// Estimator or shapings cannot be built.
fn needs_whole_step(config: &Config, sieve: &Sieve) -> Result<Vec<WholeStep>, AssembleError> {
    let updates = StepUpdates {
        filter: sieve.filter.as_ref(),
        advantage: &advantage(config)?,
        shapings: &shapings(config)?,
        zero_groups: config.objective.zero_groups,
        is_shuffled: config.train.shuffle_mini_batches,
        num_passes: config.train.ppo_epochs,
        measures_gradients: config.train.gradient_analysis.is_some(),
    };
    Ok(updates.obstacles())
}

/// Whether mini-batches are trained on while servers generate the rest of their step. The native engine has
/// one set of threads for both, and a learner that samples does one after the other.
///
/// # Errors
/// That is requested, and something needs the whole step.
pub fn trains_early(config: &Config, sieve: &Sieve) -> Result<bool, AssembleError> {
    let schedule = &config.schedule;
    let is_cut = config.mini_batch_size() < config.data.train_batch_size;
    let may = schedule.mode == ScheduleMode::Streaming && schedule.early_updates && is_cut;
    if !may || !config.samples_at_servers() {
        return Ok(false);
    }
    let obstacles = needs_whole_step(config, sieve)?;
    if obstacles.is_empty() {
        return Ok(true);
    }
    let reasons: Vec<String> =
        obstacles.iter().map(|obstacle| format!("{obstacle} ({})", obstacle.key())).collect();
    Err(AssembleError::setting(
        format!(
            "schedule.early_updates: mini-batches cannot be trained on before their step is complete: {}",
            reasons.join("; ")
        ),
        "set schedule.early_updates=false: each batch is then trained on when it is complete",
    ))
}

/// The scheduling machine at the start of a run.
///
/// # Errors
/// The settings contradict each other, or the objective cannot be built.
pub fn scheduler(config: &Config, sieve: &Sieve) -> Result<Scheduler, AssembleError> {
    let run = settings(config, sieve);
    if config.schedule.mode != ScheduleMode::Streaming {
        return Ok(Scheduler::rounds(run)?);
    }
    // A step of which a part was trained on is trained as far as it got, whatever ends it: parts leave the
    // machine only for that.
    let is_early = trains_early(config, sieve)?;
    let mini_batch_size = if is_early { config.mini_batch_size() } else { run.train_batch_size };
    let max_in_flight = config.rounds_in_flight().saturating_mul(run.gen_batch_size);
    Ok(Scheduler::streaming(StreamingSettings { run, mini_batch_size, max_in_flight })?)
}

/// The machine's settings.
pub fn settings(config: &Config, sieve: &Sieve) -> ScheduleSettings {
    config.schedule_settings(sieve.filter, sieve.metric.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_reward_are_kept_out_by_looking_at_the_reward() {
        let of = |metric: &str| {
            let filter = Some(GroupFilter::default());
            Sieve { metric: Metric::from(metric), ..Sieve::of_filter(filter) }.remedy()
        };
        insta::assert_snapshot!(of("acc"), @"; the filter looks at `acc`, which differs within them, and not at the reward: `filter.metric=seq_reward` drops them too");
        assert_eq!(of("seq_reward"), "");
        assert_eq!(Sieve::of_filter(None).remedy(), "");
    }
}
