//! What works for a run: prompts, generation, scores, learning.

use tamis_core::group::Group;
use tamis_rollout::{GroupGenerator, Scorer, Shell};

use super::state::ScheduleState;
use crate::native::NativeEngine;
use crate::pool::PromptPool;

/// What a step drives. Weights, and where generation stands, are theirs; every number of the run is in its state.
pub(super) struct Workers {
    /// Learner and generator.
    pub(super) engine: NativeEngine,
    /// The training prompts.
    pub(super) pool: PromptPool,
    /// The reward functions.
    pub(super) scorer: Scorer,
    /// What brings a step's groups in.
    pub(super) shell: Shell,
}

impl Workers {
    /// Where scheduling stands now.
    pub(super) fn schedule(&self) -> ScheduleState {
        ScheduleState::of(&self.shell, &self.pool)
    }

    /// Whether an earlier policy sampled some of one of the groups.
    pub(super) fn any_is_stale(&self, groups: &[&Group]) -> bool {
        let version = self.engine.version();
        groups
            .iter()
            .flat_map(|group| &group.trajectories)
            .any(|trajectory| trajectory.versions != (version, version))
    }
}
