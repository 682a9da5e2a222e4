//! The settings of the run that advice is for.
//!
//! A value counts as known only if the user set it. The others are defaults, and advice may recommend
//! something else for them.

use serde::Serialize;
use tamis_config::{Config, Loaded, SaveRollouts, ScheduleMode, SurplusKind};
use tamis_core::filter::{GroupFilter, Scope};
use tamis_core::schedule::RoundLimit;
use tamis_core::schedule::selector::Selector;

/// Example batch size, used if the user set none.
const BATCH: usize = 64;
/// Name of the mode in which groups with alike first members end with these.
pub(super) const SCREENED: &str = "screened";

/// Settings of the run, as far as they are known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdvicePlan {
    /// Members of a group.
    pub n: usize,
    /// Groups of a training batch.
    pub train_batch_size: usize,
    /// Prompts of a generation round.
    pub gen_batch_size: usize,
    /// Whether the user set the batch size. Otherwise it is an example.
    pub is_batch_known: bool,
    /// Whether the user set the round size.
    #[serde(skip)]
    pub is_round_known: bool,
    /// The metric of the filter, if the run has one.
    pub metric: Option<String>,
    /// Whether there is a filter; `None` if unknown.
    pub has_filter: Option<bool>,
    /// The run's mode as named in [`Costs::modes`](super::Costs::modes); `None` if unknown.
    pub mode: Option<&'static str>,
    /// The schedule's mode, if the user set it.
    #[serde(skip)]
    pub schedule: Option<ScheduleMode>,
    /// Greatest age of a carried group, if the user set it.
    #[serde(skip)]
    pub max_lag: Option<usize>,
    /// Number of first members: a group ends with these if they are alike.
    pub screen_first: Option<usize>,
    /// Limit on rounds.
    pub max_num_gen_batches: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Limit of a completion in tokens.
    pub max_response_length: Option<usize>,
    /// Whether there is a critic.
    pub has_critic: bool,
    /// What advantages compare with, if it is not the group.
    pub baseline: Option<&'static str>,
    /// Whether servers sample.
    pub samples_at_servers: bool,
    /// Margin of a round with `schedule.mode: deficit`.
    #[serde(skip)]
    pub margin: f64,
    /// Its round size is a multiple of this; `None`: 1.
    #[serde(skip)]
    pub granularity: Option<usize>,
    /// Whether the next rounds start before earlier ones are judged.
    #[serde(skip)]
    pub overlaps_rounds: bool,
    /// Whether prompts are chosen by their earlier results.
    #[serde(skip)]
    pub chooses_prompts: bool,
    /// Name of a filter with another rule than whether members differ.
    #[serde(skip)]
    pub other_filter: Option<String>,
    /// Whether only trained trajectories are written.
    #[serde(skip)]
    pub saves_kept_alone: bool,
}

impl Default for AdvicePlan {
    fn default() -> Self {
        Self {
            n: 0,
            train_batch_size: BATCH,
            gen_batch_size: BATCH,
            is_batch_known: false,
            is_round_known: false,
            metric: None,
            has_filter: None,
            mode: None,
            schedule: None,
            max_lag: None,
            screen_first: None,
            max_num_gen_batches: None,
            temperature: None,
            max_response_length: None,
            has_critic: false,
            baseline: None,
            samples_at_servers: false,
            margin: 1.0,
            granularity: None,
            overlaps_rounds: false,
            chooses_prompts: false,
            other_filter: None,
            saves_kept_alone: false,
        }
    }
}

fn mode(config: &Config) -> &'static str {
    let schedule = &config.schedule;
    match schedule.mode {
        _ if config.filter.is_none() => "no_filter",
        ScheduleMode::Rounds if !schedule.refill => "no_filter",
        ScheduleMode::Streaming if schedule.screen_first.is_some() => SCREENED,
        _ if schedule.surplus == SurplusKind::Carry => "carried",
        ScheduleMode::Rounds => "rounds",
        ScheduleMode::Deficit => "deficit",
        ScheduleMode::Streaming => "carried",
    }
}

impl AdvicePlan {
    /// The plan of a configuration. `is_given` returns whether the user set a key.
    pub fn of(config: &Config, is_given: impl Fn(&str) -> bool) -> Self {
        let filter = config.filter.as_ref();
        let batch = config.data.train_batch_size;
        let is_plain = |kind: &GroupFilter| kind.scope() != Scope::Pool && kind.as_str() == "variance";
        let given = |key: &str, value: f64| is_given(key).then_some(value);
        Self {
            n: if is_given("rollout.n") { config.rollout.n } else { 0 },
            train_batch_size: batch,
            gen_batch_size: config.data.gen_batch_size.unwrap_or(batch),
            is_batch_known: is_given("data.train_batch_size"),
            is_round_known: is_given("data.gen_batch_size"),
            metric: filter.and_then(|filter| filter.metric.clone()),
            has_filter: is_given("filter").then_some(filter.is_some()),
            mode: is_given("schedule.mode").then(|| mode(config)),
            schedule: is_given("schedule.mode").then_some(config.schedule.mode),
            max_lag: config.schedule.max_lag,
            screen_first: config.schedule.screen_first,
            max_num_gen_batches: match config.schedule.max_num_gen_batches.0 {
                RoundLimit::Rounds(rounds) if is_given("schedule.max_num_gen_batches") => Some(rounds),
                _ => None,
            },
            temperature: given("rollout.temperature", config.rollout.temperature),
            max_response_length: is_given("rollout.max_response_length")
                .then_some(config.rollout.max_response_length),
            has_critic: config.has_critic(),
            baseline: config.signal_beyond_group().map(|(_, source)| source),
            samples_at_servers: config.samples_at_servers(),
            margin: config.schedule.margin,
            granularity: config.schedule.granularity.filter(|_| is_given("schedule.granularity")),
            overlaps_rounds: config.schedule.rounds_in_flight.is_some_and(|rounds| rounds > 1),
            chooses_prompts: !matches!(config.schedule.selector, Selector::Shuffle(_)),
            other_filter: filter
                .filter(|filter| !is_plain(&filter.kind))
                .map(|filter| filter.kind.to_string()),
            saves_kept_alone: config.rollout.save == SaveRollouts::Kept,
        }
    }

    /// Whether groups with alike first members end with these, as far as is known.
    pub(super) fn screens(&self) -> bool {
        self.screen_first.is_some() && self.mode.is_none_or(|mode| mode == SCREENED)
    }

    /// The plan of a configuration that the user wrote. Keys that are not set are unknown.
    pub fn of_layers(loaded: &Loaded) -> Self {
        Self::of(&loaded.config, |key| loaded.place(key).is_some())
    }

    /// The plan of a finished configuration, all of whose values are known.
    pub fn of_run(config: &Config) -> Self {
        Self::of(config, |_| true)
    }
}
