//! Steps in a row that made no update.

use serde::{Deserialize, Serialize};

use crate::learner::left_out::LeftOut;

/// Number of updates in a row with a gradient that is not finite, or of steps in a row without an update of
/// the policy, that ends the run. Nothing suggests that it would recover.
pub(super) const MOST_SKIPPED_UPDATES: u32 = 10;

/// The latest steps in a row that made no update of the policy. It is saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Untrained {
    pub(super) steps: u32,
    /// Why the first trajectory of the last such step has no loss.
    pub(super) reason: Option<LeftOut>,
}

impl Untrained {
    /// After a step of the policy with so many updates, left-out ones included. `reason` is why its first
    /// left-out trajectory has no loss.
    pub(super) fn after(self, num_updates: usize, reason: Option<LeftOut>) -> Self {
        match num_updates {
            0 => Self { steps: self.steps.saturating_add(1), reason },
            _ => Self::default(),
        }
    }

    pub(super) fn are_too_many(self) -> bool {
        self.steps >= MOST_SKIPPED_UPDATES
    }
}
