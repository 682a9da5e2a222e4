//! The lines and metrics of a round and a step.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Accounting, Members, OnLimit, Tally};
use crate::figure::{fixed, percent};

/// One generation round. `Display` is its line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoundReport {
    /// The step it generates for, from 1.
    pub step: u64,
    /// Index of the round in the step, from 1.
    pub round: u64,
    /// Verdicts on the round's groups.
    pub tally: Tally,
    /// Kept groups ready after the round, carried ones included.
    pub num_accumulated: usize,
    /// Number of groups that the step needs.
    pub target: usize,
    /// Whether a filter judged.
    pub is_filtered: bool,
}

/// One attempt at a step. `Display` is its line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepReport {
    /// The step, from 1: steps trained before it, plus one.
    pub step: u64,
    /// The epoch of its last prompts, from 0.
    pub epoch: u64,
    /// Number of generation rounds.
    pub rounds: u64,
    /// Number of groups that it needs.
    pub target: usize,
    /// Groups that were ready, before truncation to the target; carried ones included.
    pub num_accumulated: usize,
    /// All groups generated for it.
    pub all: Tally,
    /// The groups it trains on: kept ones, dropped ones that fill the batch, and each copy.
    pub batch: Tally,
    /// Accounting of all groups.
    pub accounting: Accounting,
    /// The greatest lag of a trained group.
    pub max_lag: u64,
    /// Whether a filter judged.
    pub is_filtered: bool,
    /// The run's setting for the limit on rounds: which groups besides kept ones may be in the batch.
    #[serde(default)]
    pub on_limit: OnLimit,
    /// Whether the run ends with it, if the number of steps is set. If only epochs are set, that is known
    /// only when the run finishes.
    pub is_last: bool,
    /// Whether groups may stay in flight across the end of a step under the run's settings.
    pub may_stay_in_flight: bool,
}

impl StepReport {
    /// Whether it trains on fewer groups than it needs.
    pub fn is_partial(&self) -> bool {
        self.batch.groups > 0 && self.batch.groups < self.target as u64
    }

    /// Counts members of the batch without loss, with their turns and tokens, as left out instead of trained.
    /// Only the trainer knows them: members that the filter did not choose, that have no score, or that a
    /// mask removes.
    pub fn leave_out(&mut self, members: Members) {
        self.accounting.leave_out(members);
        self.batch.trajectories = self.batch.trajectories.saturating_sub(members.trajectories);
        self.batch.tokens = self.batch.tokens.saturating_sub(members.spent.tokens);
    }

    /// Metrics of the step, by name. Undefined ones (a mean over no group) are left out.
    ///
    /// | name | what |
    /// |---|---|
    /// | `train/num_gen_batches`, `dynamic_sampling/num_gen_batches` | generation rounds of the step |
    /// | `train/filter_rate` | dropped / generated groups, without aborted ones |
    /// | `train/mean_metric_std` | mean over all generated groups of the metric's deviation in the group, ddof 0 |
    /// | `train/num_kept_prompts` | groups kept of those generated, before truncation |
    /// | `dynamic_sampling/num_accumulated_prompts` | groups ready before truncation, carried ones included |
    /// | `dynamic_sampling/target_prompt_num` | groups that the step needs |
    /// | `dynamic_sampling/num_prompts_used`, `/num_trajectories_used` | trained |
    /// | `dynamic_sampling/skipped` | 1 if nothing was trained |
    /// | `all/filter_metric/mean`, `train/filter_metric/mean` | the filter's metric over all generated and over the trained trajectories |
    /// | `all/pass_rate` | correct / scored of all generated trajectories |
    /// | `groups/{place}`, `trajectories/{place}` | the accounting identity: `generated`, `carried_in`, `trained`, `dropped`, `surplus`, `stale`, `failed`, `aborted`, `carried_out`; `left_out` of trajectories only; `in_flight_in` and `in_flight_out` if groups may stay in flight across the end of a step, `kept_when_insufficient` with `on_limit: keep_dropped`, and, outside the identity, `duplicated` with `on_limit: duplicate` |
    /// | `tokens/generated`, `tokens/trained` | completion tokens |
    /// | `tokens/failed`, `tokens/aborted` | completion tokens of groups that failed or were aborted, if there are any |
    /// | `turns/generated`, `turns/trained`, `turns/failed`, `turns/aborted` | the same for the policy's turns |
    /// | `schedule/max_lag` | greatest lag of a trained group |
    pub fn metrics(&self) -> Vec<(String, f64)> {
        let (all, batch) = (&self.all, &self.batch);
        let mut metrics: Vec<(String, f64)> = Vec::new();
        let mut put = |name: &str, value: Option<f64>| {
            metrics.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("train/num_gen_batches", Some(self.rounds as f64));
        put("train/filter_rate", all.filter_rate());
        put("train/mean_metric_std", all.mean_std());
        put("train/num_kept_prompts", Some(all.kept as f64));
        put("dynamic_sampling/num_gen_batches", Some(self.rounds as f64));
        put("dynamic_sampling/num_accumulated_prompts", Some(self.num_accumulated as f64));
        put("dynamic_sampling/target_prompt_num", Some(self.target as f64));
        put("dynamic_sampling/num_prompts_used", Some(batch.groups as f64));
        put("dynamic_sampling/num_trajectories_used", Some(batch.trajectories as f64));
        put("dynamic_sampling/skipped", Some(f64::from(u8::from(batch.groups == 0))));
        put("all/filter_metric/mean", all.mean_metric());
        put("train/filter_metric/mean", batch.mean_metric());
        put("all/pass_rate", all.pass_rate());
        for (place, count) in self.accounting.places() {
            let may_be = match place {
                "in_flight_in" | "in_flight_out" => self.may_stay_in_flight,
                "kept_when_insufficient" => self.on_limit == OnLimit::KeepDropped,
                "duplicated" => self.on_limit == OnLimit::Duplicate,
                _ => true,
            };
            if !may_be {
                continue;
            }
            // A group is never split: only members of it are left out.
            if place != "left_out" {
                put(&format!("groups/{place}"), Some(count.groups as f64));
            }
            put(&format!("trajectories/{place}"), Some(count.trajectories as f64));
        }
        let places = &self.accounting;
        put("tokens/generated", Some(places.generated.tokens as f64));
        put("tokens/trained", Some(places.trained.tokens as f64));
        for (name, count) in [("tokens/failed", places.failed), ("tokens/aborted", places.aborted)] {
            put(name, Some(count.tokens as f64).filter(|tokens| *tokens > 0.0));
        }
        put("turns/generated", Some(places.generated.turns as f64));
        put("turns/trained", Some(places.trained.turns as f64));
        for (name, count) in [("turns/failed", places.failed), ("turns/aborted", places.aborted)] {
            put(name, Some(count.turns as f64).filter(|turns| *turns > 0.0));
        }
        put("schedule/max_lag", Some(self.max_lag as f64));
        metrics
    }
}

fn reasons(tally: &Tally) -> String {
    tally
        .dropped_by()
        .iter()
        .filter(|(_, number)| *number > 0)
        .map(|(reason, number)| format!("{number} {}", reason.in_words()))
        .collect::<Vec<_>>()
        .join(", ")
}

impl fmt::Display for RoundReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        write!(
            formatter,
            "step {} round {}: {} prompts, {} trajectories; ",
            self.step, self.round, tally.groups, tally.trajectories
        )?;
        if self.is_filtered {
            if tally.dropped() > 0 {
                let share = percent(tally.dropped() as f64 / tally.groups as f64);
                write!(formatter, "dropped {} ({share}): {}; ", tally.dropped(), reasons(tally))?;
            }
            write!(formatter, "kept {} ({})", tally.kept, percent(tally.kept as f64 / tally.groups as f64))?;
        } else {
            write!(formatter, "filter off")?;
        }
        for (what, number) in [("failed", tally.failed), ("aborted", tally.aborted)] {
            if number > 0 {
                write!(formatter, "; {what} {number}")?;
            }
        }
        if let Some(std) = tally.mean_std() {
            write!(formatter, "; mean std {}", fixed(std, 3))?;
        }
        write!(formatter, "; accumulated {}/{}", self.num_accumulated, self.target)
    }
}

impl fmt::Display for StepReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, batch) = (&self.all, &self.batch);
        let outcome = match (batch.groups, self.is_partial()) {
            (0, _) => "not trained",
            (_, true) => "partial batch",
            (_, false) => "batch complete",
        };
        write!(
            formatter,
            "step {} {outcome}: {} round{}, {} prompts generated",
            self.step,
            self.rounds,
            if self.rounds == 1 { "" } else { "s" },
            all.groups
        )?;
        if self.is_filtered {
            write!(formatter, ", {} kept ({})", all.kept, percent(all.kept as f64 / all.judged() as f64))?;
        }
        if self.accounting.carried_in.groups > 0 {
            write!(formatter, ", {} carried in", self.accounting.carried_in.groups)?;
        }
        if batch.groups > 0 {
            write!(formatter, "; training on {}", batch.groups)?;
            if self.is_partial() {
                write!(formatter, " of {}", self.target)?;
            }
            write!(formatter, " groups, {} trajectories, {} tokens", batch.trajectories, batch.tokens)?;
            let left_out = self.accounting.left_out.trajectories;
            if left_out > 0 {
                write!(formatter, " ({left_out} trajectories left out of the loss)")?;
            }
        }
        let always_shown = ["generated", "carried_in", "in_flight_in", "trained", "left_out", "dropped"];
        for (what, count) in self.accounting.places() {
            if count.groups > 0 && !always_shown.contains(&what) {
                write!(formatter, "; {} {}", count.groups, what.replace('_', " "))?;
            }
        }
        Ok(())
    }
}
