//! The masks that a run asks for, together.

use serde::{Deserialize, Serialize};

use super::{CorrectionError, OffPolicy};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const TOP_ENTROPY: Entry = Entry {
    name: "top_entropy",
    family: Family::Mask,
    meaning: "only the share of tokens at which the policy is least certain enters the policy loss",
    formula: "weight 1 where H_t >= quantile(H, 1 - share) over the unmasked tokens of the optimizer batch, else 0",
    source: "Wang et al., Beyond the 80/20 rule, arXiv 2506.01939, section 5",
    defaults: &[("share", "1.0")],
    degenerate: &[
        "share 1 keeps every token, share 0 those that tie with the largest entropy",
        "ties with the quantile are kept, so that equal entropies are all kept",
    ],
    known_as: &[("TRL", "top_entropy_quantile")],
    differences: &[
        "TRL takes the quantile of a micro-batch, here it is of the whole optimizer batch",
        "as in TRL it is a weight: denominators, the divergence from the reference and the entropy bonus do not change",
    ],
};

/// Keeps the tokens of highest entropy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopEntropy {
    /// Share of tokens to keep, in `[0, 1]` (TRL `top_entropy_quantile`; the paper's 0.2).
    pub share: f64,
}

impl TopEntropy {
    /// Whether the share is in range.
    ///
    /// # Errors
    /// [`CorrectionError::Setting`].
    pub fn check(&self) -> Result<(), CorrectionError> {
        if (0.0..=1.0).contains(&self.share) {
            return Ok(());
        }
        Err(CorrectionError::Setting {
            setting: "top_entropy.share",
            value: self.share,
            expected: "a number from 0 to 1",
        })
    }
}

/// Which tokens and trajectories are left out of the loss (`objective.masks`). The default leaves out none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Masks {
    /// Truncated completions ([`truncated`](super::truncated)).
    pub truncated: bool,
    /// Off-policy trajectories of negative advantage.
    pub off_policy: Option<OffPolicy>,
    /// Tokens at which the policy is certain.
    pub top_entropy: Option<TopEntropy>,
}

impl Masks {
    /// Whether every setting is in range.
    ///
    /// # Errors
    /// [`CorrectionError::Setting`] with the first that is not.
    pub fn check(&self) -> Result<(), CorrectionError> {
        self.off_policy.as_ref().map_or(Ok(()), OffPolicy::check)?;
        self.top_entropy.as_ref().map_or(Ok(()), TopEntropy::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_checked() {
        let masks: Masks =
            serde_json::from_str(r#"{"truncated": true, "top_entropy": {"share": 0.2}}"#).expect("is data");
        assert_eq!(
            masks,
            Masks { truncated: true, off_policy: None, top_entropy: Some(TopEntropy { share: 0.2 }) }
        );
        assert_eq!(masks.check(), Ok(()));
        insta::assert_snapshot!(
            Masks { top_entropy: Some(TopEntropy { share: 1.5 }), ..masks }.check().unwrap_err(),
            @"correction setting `top_entropy.share` is 1.5; expected a number from 0 to 1"
        );
        insta::assert_snapshot!(
            serde_json::from_str::<Masks>(r#"{"truncate": true}"#).unwrap_err(),
            @"unknown field `truncate`, expected one of `truncated`, `off_policy`, `top_entropy` at line 1 column 11"
        );
    }
}
