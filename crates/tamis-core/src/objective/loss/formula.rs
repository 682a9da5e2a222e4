//! The trait of a policy loss that each file of this folder implements.

use super::trajectory::{TrajectoryLoss, UNLIMITED};
use crate::objective::Aggregation;
use crate::objective::columns::{Columns, Real};
use crate::objective::error::ObjectiveError;
use crate::objective::importance::Importance;
use crate::random::Key;
use crate::setting::Ranged;

/// A policy loss: its formula, and its differences from most losses. The ranges of its settings are declared
/// with the settings.
pub trait Loss: Ranged {
    /// Whether the settings are in range and fit together.
    fn check(&self) -> Result<(), ObjectiveError> {
        Ok(self.check_ranges()?)
    }

    /// Writes the loss of a trajectory, its derivatives and its metrics, by a formula for one token
    /// ([`TrajectoryLoss::through_ratio`], [`TrajectoryLoss::through_logprob`]).
    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>)
    where
        Self: Sized;

    /// Whether a setting may make its ratio that of the trajectory.
    fn has_importance_levels(&self) -> bool {
        false
    }

    /// The level at which it works.
    fn importance(&self, setting: Importance) -> Importance {
        setting
    }

    /// Bounds on the log-ratio inside its exponential.
    fn log_ratio_limits(&self) -> (f64, f64) {
        UNLIMITED
    }

    /// The aggregation that it needs: with another one it is a different loss.
    fn aggregation(&self) -> Option<Aggregation> {
        None
    }

    /// Keys of the loss that another of its keys makes idle, and the reason.
    fn idle_keys(&self) -> (&'static [&'static str], &'static str) {
        (&[], "")
    }

    /// Whether tokens are chosen over the whole optimizer batch first.
    fn needs_selection(&self) -> bool {
        false
    }

    /// The tokens of a whole optimizer batch that are [chosen](super::Token::is_selected).
    fn select<T: Real>(&self, _columns: &Columns<'_, T>, _key: Key) -> Vec<usize>
    where
        Self: Sized,
    {
        Vec::new()
    }

    /// Whether it weighs a token by its ratio to the policy that sampled it, and so reads the column
    /// `behaviour`.
    fn weighs_behaviour(&self) -> bool {
        false
    }

    /// Whether its values are computed elsewhere and read from the column `given`.
    fn is_given(&self) -> bool {
        false
    }

    /// Whether it is just `-A·logprob`, so that only a correction weights it.
    fn is_plain_gradient(&self) -> bool {
        false
    }

    /// Whether a weight of its formula is held constant when it is differentiated, so that its derivative is
    /// not that of its value.
    fn is_constant_weight(&self) -> bool {
        false
    }

    /// Whether it pulls towards another policy, so that its derivative is not 0 if the advantage is.
    fn pulls_without_advantage(&self) -> bool {
        false
    }

    /// Whether its derivative is `-A` while the policy is the one that sampled. Keys that bound a ratio of 1
    /// or change a weight of 1 make it another one.
    fn is_gradient_on_policy(&self) -> bool {
        true
    }

    /// Whether the weights of a trajectory's tokens are multiplied into one weight.
    fn multiplies_weights(&self) -> bool {
        false
    }

    /// Metric of the loss besides those that all losses have.
    fn own_metric(&self) -> Option<OwnMetric> {
        None
    }
}

/// A measure that one loss has and others have not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnMetric {
    /// Token mean of the sums.
    PerToken(&'static str),
    /// Mean over trajectories.
    PerSequence(&'static str),
    /// The share above the bound with positive advantage, under another name.
    HighShare(&'static str),
}

/// Plus and minus a limit, if there is one.
pub(super) fn limits(log_ratio_limit: Option<f64>) -> (f64, f64) {
    log_ratio_limit.map_or(UNLIMITED, |limit| (-limit, limit))
}
