//! Early stopping: what a run tells the stops, and how it ends when one fires.

use std::collections::{BTreeMap, BTreeSet};

use tamis_config::{CollapseForm as ConfigForm, EarlyStopConfig};
use tamis_core::early_stop::{
    Attempt, CollapseForm, EarlyStop, EarlyStopError, EarlyStopSettings, EmptySteps, LowSuccess,
    RewardCollapse, StopReason,
};
use tamis_core::group::{Group, GroupId};
use tamis_rollout::{Collected, Record};

use super::{Ending, Run, RunError};
use crate::batch_metrics::in_group_reward_std;
use crate::interrupt::Halt;
use tamis_run::metrics::Metrics;

/// The stops that the configuration asks for.
pub(crate) fn early_stop(config: &EarlyStopConfig) -> Result<EarlyStop, EarlyStopError> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    EarlyStop::new(EarlyStopSettings {
        reward_collapse: config.reward_collapse.as_ref().map(|stop| RewardCollapse {
            form: match stop.form {
                ConfigForm::Attempts => CollapseForm::Attempts,
                ConfigForm::Steps => CollapseForm::Steps,
            },
            baseline_steps: count(stop.baseline_steps),
            window: stop.window,
            share: stop.share,
        }),
        low_success: config
            .low_success
            .as_ref()
            .map(|stop| LowSuccess { floor: stop.floor, patience: count(stop.patience) }),
        empty_steps: config.empty_steps.as_ref().map(|stop| EmptySteps { patience: count(stop.patience) }),
    })
}

impl Run {
    /// Tells the stops of the rounds of an attempt at a step, in order. The groups `kept` before it were told of then.
    pub(super) fn observe_rounds(
        &mut self,
        collected: &Collected,
        kept: &BTreeSet<GroupId>,
        is_trained: bool,
    ) {
        let mut rounds: BTreeMap<(u64, u64), Vec<&Group>> = BTreeMap::new();
        let held: Vec<&Record> =
            self.workers.dispatcher.held().filter(|record| !record.values.is_empty()).collect();
        for record in collected.trained.iter().chain(&collected.others).chain(held) {
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

    /// Ends a run that a stop has fired for: says so, logs it, validates and saves.
    pub(super) fn stopped_early(&mut self, reason: StopReason) -> Result<Ending, Halt<RunError>> {
        self.recorder.progress.say(&format!("early stop ({}): {reason}", reason.name()));
        let mut metrics = Metrics::new();
        metrics.set("train/early_stopped", 1.0);
        self.recorder.loggers.amend(self.state.step, &metrics)?;
        self.finish()?;
        self.check_learned()?;
        Ok(Ending::StoppedEarly(reason))
    }
}
