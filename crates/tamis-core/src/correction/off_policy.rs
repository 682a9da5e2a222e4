//! Off-policy trajectories: bad ones that the policy has moved away from are not pushed down further.

use serde::{Deserialize, Serialize};

use super::{CorrectionError, SamplerColumns, num_tokens};
use crate::entry::{Entry, Family};
use crate::objective::Real;

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "off_policy",
    family: Family::Mask,
    meaning: "trajectories with a negative advantage that are far from the policy that sampled them do not enter the policy loss",
    formula: "weight 0 where A < 0 and mean_t(behaviour - logprob) > threshold, else 1",
    source: "DeepSeek-V3.2, arXiv 2512.02556, eq. 9",
    defaults: &[("threshold", "null")],
    degenerate: &[
        "a trajectory without a known behaviour log-probability is kept",
        "an advantage of 0 or NaN keeps",
    ],
    known_as: &[("TRL", "off_policy_mask_threshold")],
    differences: &[
        "it is a weight, not a mask, as in TRL: denominators, the divergence from the reference and the entropy bonus do not change",
    ],
};

/// The off-policy mask of trajectories.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffPolicy {
    /// Largest mean of `behaviour - logprob`, in nats, with which a trajectory of negative advantage stays; at least 0.
    pub threshold: f64,
}

impl OffPolicy {
    /// Whether the threshold is in range.
    ///
    /// # Errors
    /// [`CorrectionError::Setting`].
    pub fn check(&self) -> Result<(), CorrectionError> {
        if self.threshold >= 0.0 && self.threshold.is_finite() {
            return Ok(());
        }
        Err(CorrectionError::Setting {
            setting: "off_policy.threshold",
            value: self.threshold,
            expected: "a number of at least 0",
        })
    }

    /// Which trajectories stay in the policy loss \[B\]: `advantages` \[B\], and in `columns.old` the policy being *trained*.
    ///
    /// Multiply the weights of the others' tokens by 0 ([`weigh_out`]). A trajectory depends on itself alone.
    ///
    /// # Errors
    /// Columns that do not fit together, a threshold out of range.
    ///
    /// ```
    /// use tamis_core::correction::{OffPolicy, SamplerColumns};
    /// let columns = SamplerColumns { offsets: &[0, 1, 2], mask: &[true; 2], old: &[-3.0, -3.0], behaviour: &[-1.0, -1.0] };
    /// // Both moved by 2 nats; the good one stays.
    /// assert_eq!(OffPolicy { threshold: 1.0 }.keep(&columns, &[1.0, -1.0])?, [true, false]);
    /// # Ok::<(), tamis_core::correction::CorrectionError>(())
    /// ```
    pub fn keep<T: Real>(
        &self,
        columns: &SamplerColumns<'_, T>,
        advantages: &[f64],
    ) -> Result<Vec<bool>, CorrectionError> {
        self.check()?;
        columns.check()?;
        if advantages.len() != columns.num_sequences() {
            return Err(CorrectionError::Length {
                column: "advantage",
                expected: columns.num_sequences(),
                actual: advantages.len(),
            });
        }
        let stays = |(row, &advantage): (super::SamplerRow<'_, T>, &f64)| {
            let (mut tokens, mut gap) = (0_usize, 0.0);
            for token in row.tokens() {
                tokens += 1;
                gap -= token.log_ratio();
            }
            let far = gap / tokens.max(1) as f64 > self.threshold;
            !(advantage < 0.0 && far)
        };
        Ok(columns.rows().zip(advantages).map(stays).collect())
    }
}

/// Sets the weights of all tokens of trajectories that do not stay to 0: offsets \[B + 1\], keep \[B\], weights \[N\].
///
/// # Errors
/// Lengths that do not fit together; weights are unchanged then.
pub fn weigh_out(offsets: &[usize], keep: &[bool], weights: &mut [f64]) -> Result<(), CorrectionError> {
    let sequences = offsets.len().saturating_sub(1);
    for (column, expected, actual) in
        [("weight", num_tokens(offsets)?, weights.len()), ("keep", sequences, keep.len())]
    {
        if actual != expected {
            return Err(CorrectionError::Length { column, expected, actual });
        }
    }
    let base = offsets.first().copied().unwrap_or(0);
    for (pair, _) in offsets.windows(2).zip(keep).filter(|(_, keep)| !**keep) {
        weights[pair[0] - base..pair[1] - base].fill(0.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bad_and_far_trajectories_go() {
        let offsets = [0, 2, 3, 4, 4];
        let (old, behaviour) = ([-3.0, -1.0, -1.5, -9.0], [-1.0, -1.0, -1.0, f64::NAN]);
        let columns =
            SamplerColumns { offsets: &offsets, mask: &[true; 4], old: &old, behaviour: &behaviour };
        // Mean gaps 1, 0.5, unknown, none.
        let keep = OffPolicy { threshold: 0.75 }.keep(&columns, &[-1.0; 4]).expect("fits");
        assert_eq!(keep, [false, true, true, true]);
        assert_eq!(OffPolicy { threshold: 0.75 }.keep(&columns, &[0.0; 4]), Ok(vec![true; 4]));
        let mut weights = [1.0, 2.0, 3.0, 4.0];
        weigh_out(&offsets, &keep, &mut weights).expect("fits");
        assert_eq!(weights.map(f64::to_bits), [0.0, 0.0, 3.0, 4.0].map(f64::to_bits));
        assert!(weigh_out(&offsets, &keep, &mut weights[1..]).is_err());
        assert!(weigh_out(&offsets, &keep[1..], &mut weights).is_err());
    }

    #[test]
    fn a_threshold_out_of_range_is_refused() {
        insta::assert_snapshot!(
            OffPolicy { threshold: -0.5 }.check().unwrap_err(),
            @"correction setting `off_policy.threshold` is -0.5; expected a number of at least 0"
        );
    }
}
