//! LUSPO: the clipped ratio of the trajectory times its length.

use super::super::aggregation::Aggregation;
use super::super::columns::Real;
use super::clip::Clip;
use super::formula::Loss;
use super::trajectory::TrajectoryLoss;
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "luspo",
    family: Family::PolicyLoss,
    formula: "mean_i |o_i|·max(-A·s, -A·clamp(s, 1 - clip_low, 1 + clip_high)), s = exp(mean_t d)",
    source: "LUSPO, length-unbiased sequence policy optimization, arXiv 2602.05261; bounds of its section 5.1",
    degenerate: &["a trajectory without a token to train on contributes nothing"],
    known_as: &[("TRL", "loss_type=luspo with importance_sampling_level=sequence")],
    differences: &[
        "here it is `clip` with importance `sequence` under `seq-mean-token-sum`, which is the same number: \
            a token sum of a constant is length times it",
        "other aggregations are refused, because they would divide by the length again",
        "TRL before 1.16 averaged padding in with a KL term or ratios per token",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// The clipped ratio under a sum over the trajectory. With `importance` at the trajectory's level it is
    /// the ratio of the whole trajectory.
    #[derive(Copy)]
    pub struct Luspo {
        /// How far the trajectory's ratio may fall below 1 if the advantage is negative.
        clip_low: f64 = 0.002, Between(0.0, 1.0);
        /// How far the trajectory's ratio may rise above 1 if the advantage is positive.
        clip_high: f64 = 0.0025, NonNegative;
        /// Bound on the mean of `logp - old` over the trajectory, with derivative 0 beyond it. Null: no
        /// bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(20.0), Positive;
    }
}

impl Luspo {
    fn clip(&self) -> Clip {
        let Self { clip_low, clip_high, log_ratio_limit } = *self;
        Clip { clip_low, clip_high, dual_clip: None, delta: None, log_ratio_limit }
    }
}

impl Loss for Luspo {
    fn has_importance_levels(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        self.clip().log_ratio_limits()
    }

    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::SeqMeanTokenSum)
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        self.clip().sequence(trajectory);
    }
}
