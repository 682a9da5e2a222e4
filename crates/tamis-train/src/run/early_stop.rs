//! Early stopping: what the rules for stopping see of a run, and how the run ends when one fires.

use std::collections::{BTreeMap, BTreeSet};

use tamis_core::early_stop::{Attempt, StopReason};
use tamis_core::group::{Group, GroupId};
use tamis_rollout::{Collected, Record};

use super::{Ending, Run};
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::measure::batch_metrics::in_group_reward_std;
use tamis_run::metrics::Metrics;

impl Run {
    /// Passes the rounds of an attempt at a step to the rules, in order. They have already seen the groups
    /// `kept` before it.
    pub(super) fn observe_rounds(
        &mut self,
        collected: &Collected,
        kept: &BTreeSet<GroupId>,
        is_trained: bool,
    ) {
        let mut rounds: BTreeMap<(u64, u64), Vec<&Group>> = BTreeMap::new();
        let held: Vec<&Record> =
            self.workers.dispatcher.held().filter(|record| !record.values.is_empty()).collect();
        for record in collected.groups().chain(held) {
            if !kept.contains(&record.group.id) && !record.group.trajectories.is_empty() {
                rounds.entry((record.step, record.round)).or_default().push(&record.group);
            }
        }
        let last = rounds.keys().next_back().copied();
        let attempts: Vec<Attempt> = rounds
            .iter()
            .map(|(round, groups)| Attempt {
                in_group_reward_std: in_group_reward_std(groups).unwrap_or(f64::NAN),
                is_successful: is_trained && Some(*round) == last,
            })
            .collect();
        for attempt in attempts {
            self.measurement.early_stop.attempt(attempt);
        }
        self.measurement.early_stop.step(is_trained);
    }

    pub(super) fn stop_early(&mut self, reason: StopReason) -> Result<Ending, Halt<RunError>> {
        self.recorder.progress.say(&format!("early stop ({}): {reason}", reason.name()));
        let mut metrics = Metrics::new();
        metrics.set("train/early_stopped", 1.0);
        self.recorder.loggers.amend(self.state.step, &metrics)?;
        self.finish()?;
        self.check_learned()?;
        Ok(Ending::StoppedEarly(reason))
    }
}
