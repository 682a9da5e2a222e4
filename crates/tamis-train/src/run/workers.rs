//! What works for a run: prompts, generation, scores, learning.

use tamis_core::group::Group;
use tamis_rollout::{Dispatcher, Generator, Scorer};

use super::state::ScheduleState;
use crate::interrupt::Interrupt;
use crate::native::NativeEngine;
use crate::pool::PromptPool;
use crate::validation;

/// What a step drives. Weights, and where generation stands, are theirs; every number of the run is in its state.
pub(crate) struct Workers {
    /// The learner.
    pub(crate) engine: NativeEngine,
    /// What samples; the native one shares the weights of the learner.
    pub(crate) generator: Box<dyn Generator>,
    /// The training prompts.
    pub(crate) pool: PromptPool,
    /// The reward functions.
    pub(crate) scorer: Scorer,
    /// What brings a step's groups in.
    pub(crate) dispatcher: Dispatcher,
    /// Whether the run is to stop soon.
    pub(crate) interrupt: Interrupt,
}

impl Workers {
    /// Where scheduling stands now.
    pub(crate) fn schedule(&self) -> ScheduleState {
        ScheduleState::of(&self.dispatcher, &self.pool)
    }

    /// What completes and scores a list of prompts.
    pub(crate) fn sampling(&mut self) -> validation::Dependencies<'_> {
        validation::Dependencies {
            generator: &mut *self.generator,
            inbox: self.dispatcher.inbox(),
            scorer: &mut self.scorer,
            interrupt: &self.interrupt,
        }
    }

    /// Whether an earlier policy sampled some of one of the groups.
    pub(crate) fn any_is_stale(&self, groups: &[&Group]) -> bool {
        let version = self.engine.version();
        groups
            .iter()
            .flat_map(|group| &group.trajectories)
            .any(|trajectory| trajectory.versions != (version, version))
    }
}
