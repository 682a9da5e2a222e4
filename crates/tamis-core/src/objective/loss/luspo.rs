//! LUSPO: the clipped ratio of the trajectory times its length.

use super::super::{Aggregation, Objective};
use super::{Clip, Importance, PolicyLoss};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "luspo",
    family: Family::PolicyLoss,
    meaning: "the clipped ratio of the whole trajectory times its length, so that long answers are not discounted",
    formula: "mean_i |o_i|·max(-A·s, -A·clamp(s, 1 - low, 1 + high)), s = exp(mean_t d)",
    source: "LUSPO, length-unbiased sequence policy optimization, arXiv 2602.05261; bounds of its section 5.1",
    defaults: &[
        ("objective.loss.clip_low", "2e-3"),
        ("objective.loss.clip_high", "2.5e-3"),
        ("objective.loss.log_ratio_limit", "20"),
    ],
    degenerate: &["a trajectory without a token to train on contributes nothing"],
    known_as: &[("TRL", "loss_type=luspo with importance_sampling_level=sequence")],
    differences: &[
        "here it is `clip` with importance `sequence` under `seq-mean-token-sum`, which is the same number: a token sum of a constant is length times it",
        "other aggregations are refused, because they divide the length out again",
        "TRL before 1.16 averaged padding in with a KL term or ratios per token",
    ],
};

impl Objective {
    /// LUSPO with these bounds on the trajectory's ratio, nothing else.
    pub fn luspo(low: f64, high: f64) -> Self {
        let clip = Clip { high, ..Clip::symmetric(low) };
        Self {
            importance: Importance::Sequence,
            ..Self::of(PolicyLoss::Luspo(clip), Aggregation::SeqMeanTokenSum)
        }
    }
}
