//! Masks of the policy loss: tokens that it leaves out beyond the mask of the batch.

use serde::{Deserialize, Serialize};

use super::error::{ObjectiveError, in_range};
use crate::entry::{Entry, Family};

pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "top_entropy",
        family: Family::Mask,
        meaning: "Only the tokens of highest entropy have a policy loss.",
        formula: "keep t if H_t >= the (1 - share) quantile of H over the unmasked tokens of the optimizer batch, linearly interpolated",
        source: "Wang et al., Beyond the 80/20 rule, arXiv 2506.01939, eq. 5",
        defaults: &["objective.masks.top_entropy"],
        degenerate: &[
            "a share of 0 keeps the tokens of the largest entropy",
            "ties at the threshold are all kept",
        ],
        known_as: &[("TRL", "top_entropy_quantile")],
        differences: &[
            "TRL uses the quantile of each micro-batch over all ranks; here it is that of the whole optimizer batch",
            "denominators, KL and the entropy bonus keep all tokens; TRL's entropy bonus is a mean over the kept ones",
        ],
    },
    Entry {
        name: "off_policy",
        family: Family::Mask,
        meaning: "Tokens with negative advantage have no policy loss in trajectories from which the policy has moved too far.",
        formula: "policy loss 0 if A < 0 and mean_t(behaviour - logprob) > threshold; `old` replaces a missing `behaviour`",
        source: "DeepSeek-AI, DeepSeek-V3.2, arXiv 2512.02556, eq. 9",
        defaults: &["objective.masks.off_policy"],
        degenerate: &["without `behaviour` and `old` nothing is off-policy"],
        known_as: &[("TRL", "off_policy_mask_threshold")],
        differences: &["denominators and KL keep all tokens, as in TRL"],
    },
];

/// Masks that leave tokens out of the policy loss, in addition to the batch's own mask.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossMasks {
    /// Share of tokens, those of highest entropy, that have a policy loss, in `[0, 1]`. `None`: all.
    #[serde(default)]
    pub top_entropy: Option<f64>,
    /// Divergence per token, in nats, above which tokens with negative advantage have no loss. `None`: no
    /// bound.
    #[serde(default)]
    pub off_policy: Option<f64>,
}

impl LossMasks {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        if let Some(share) = self.top_entropy {
            in_range("masks.top_entropy", share, (0.0..=1.0).contains(&share), "a share from 0 to 1")?;
        }
        self.off_policy.map_or(Ok(()), |threshold| {
            in_range("masks.off_policy", threshold, !threshold.is_nan(), "a number of nats")
        })
    }
}
