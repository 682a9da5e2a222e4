//! Decoupled PPO: the policy that sampled and the policy that the step stays near to are two.

use serde::{Deserialize, Serialize};

use super::super::{ObjectiveError, in_range};
use super::clip::Clip;
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "decoupled",
    family: Family::PolicyLoss,
    meaning: "decoupled PPO: clips against the proximal policy (`old`), weighs by what separates it from the policy that sampled (`behaviour`)",
    formula: "l = min(exp(old - behaviour), weight_cap)·clip(logprob - old)",
    source: "Hilton et al., Batch size-invariance for policy optimization, arXiv 2110.00641, eq. 3; asynchronous training: AReaL, arXiv 2505.24298, eq. 5",
    defaults: &[
        ("objective.loss.clip_low", "0.2"),
        ("objective.loss.clip_high", "0.2"),
        ("objective.loss.dual_clip", "3"),
        ("objective.loss.weight_cap", "null"),
        ("objective.loss.log_ratio_limit", "20"),
    ],
    degenerate: &["where sampler and proximal policy agree it is `clip`"],
    known_as: &[
        ("AReaL", "use_decoupled_loss"),
        ("verl", "rollout_correction preset decoupled_token_is (weight_cap 2)"),
    ],
    differences: &[
        "the weight is per token, with `weight_cap` its upper bound; `objective.correction` gives the other forms",
    ],
};

/// The clipped ratio to the proximal policy, weighted by the ratio of that to the behaviour policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoupled {
    /// The clipped ratio to `old`.
    pub clip: Clip,
    /// Upper bound of `exp(old - behaviour)`; above 0. `None`: none.
    #[serde(default)]
    pub weight_cap: Option<f64>,
}

impl Decoupled {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        self.clip.check()?;
        self.weight_cap.map_or(Ok(()), |cap| {
            in_range("decoupled.weight_cap", cap, cap > 0.0 && cap.is_finite(), "a number above 0")
        })
    }
}
