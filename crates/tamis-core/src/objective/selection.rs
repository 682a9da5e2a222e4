//! Choices that are made over a whole optimizer batch before any of it is differentiated.
//!
//! `clip_cov` and `kl_cov` rank tokens by their covariance, and the top-entropy mask by their entropy,
//! against all others. Where the originals do that within each micro-batch, their result depends on how the
//! batch was cut; here it is done once, on the columns of the whole optimizer batch, and every micro-batch
//! gets its part of the [`Selection`].
//!
//! It costs a forward pass of its own where the log-probabilities are not yet known (the first update of a
//! step that is on-policy has them from generation).

use serde::{Deserialize, Serialize};

use super::columns::{Columns, Real};
use super::{Objective, ObjectiveError, in_range};
use crate::entry::{Entry, Family};
use crate::random::Key;

/// The catalogue's entries.
pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "top_entropy",
        family: Family::Mask,
        meaning: "only the tokens of highest entropy carry the policy loss",
        formula: "keep t where H_t >= the (1 - share) quantile of H over the unmasked tokens of the optimizer batch, linearly interpolated",
        source: "Wang et al., Beyond the 80/20 rule, arXiv 2506.01939, eq. 5",
        defaults: &["objective.masks.top_entropy"],
        degenerate: &[
            "a share of 0 keeps the tokens of the largest entropy",
            "ties at the threshold are all kept",
        ],
        known_as: &[("TRL", "top_entropy_quantile")],
        differences: &[
            "TRL takes the quantile of each micro-batch over all ranks; here it is that of the whole optimizer batch",
            "denominators, KL and the entropy bonus keep all tokens; TRL's entropy bonus is a mean over the kept ones",
        ],
    },
    Entry {
        name: "off_policy",
        family: Family::Mask,
        meaning: "trajectories that the policy has left behind do not push down",
        formula: "policy loss 0 where A < 0 and mean_t(behaviour - logprob) > threshold; `old` stands in for `behaviour`",
        source: "DeepSeek-AI, DeepSeek-V3.2, arXiv 2512.02556, eq. 9",
        defaults: &["objective.masks.off_policy"],
        degenerate: &["without `behaviour` and `old` nothing is off-policy"],
        known_as: &[("TRL", "off_policy_mask_threshold")],
        differences: &["denominators and KL keep all tokens, as in TRL"],
    },
];

/// Which tokens the policy loss leaves out, beyond the mask.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossMasks {
    /// Share of tokens of highest entropy that carry the policy loss, in `[0, 1]`. `None`: all.
    #[serde(default)]
    pub top_entropy: Option<f64>,
    /// Divergence per token in nats above which tokens with negative advantage carry none. `None`: no bound.
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

/// One set of flags per token of the optimizer batch \[N\], for [`Columns::selection`]; cut it as the other
/// columns are cut.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// [`Self::LEFT_OUT`] and [`Self::BY_COVARIANCE`] in any combination.
    pub flags: Vec<u8>,
}

impl Selection {
    /// The policy loss leaves the token out (top-entropy mask).
    pub const LEFT_OUT: u8 = 1;
    /// `clip_cov` or `kl_cov` chose the token.
    pub const BY_COVARIANCE: u8 = 2;
}

impl Objective {
    /// Whether [`Self::select`] must be asked before [`Self::evaluate`].
    pub fn needs_selection(&self) -> bool {
        self.masks.top_entropy.is_some_and(|share| share < 1.0) || self.policy.needs_selection()
    }

    /// Chooses tokens over a whole optimizer batch. `key` belongs to that batch; the same key and columns
    /// give the same choice.
    ///
    /// Reads `mask`, and as the settings need `logprob`, `old`, `advantage` and `entropy`. O(N) and one
    /// number per candidate.
    ///
    /// # Errors
    /// Columns that do not fit together or are missing, settings out of range.
    ///
    /// # Differs from
    /// verl and TRL choose within each micro-batch; verl draws without a seed.
    pub fn select<T: Real>(&self, columns: &Columns<'_, T>, key: Key) -> Result<Selection, ObjectiveError> {
        self.check()?;
        columns.check()?;
        let mut flags = vec![0; columns.num_tokens()];
        for t in self.policy.select(columns, key) {
            flags[t] |= Selection::BY_COVARIANCE;
        }
        if let Some(share) = self.masks.top_entropy {
            let entropy = columns
                .entropy
                .ok_or(ObjectiveError::Missing { column: "entropy", needed_by: "the mask `top_entropy`" })?;
            let unmasked = entropy.iter().zip(columns.mask).filter(|(_, on)| **on);
            let threshold = quantile(unmasked.map(|(&value, _)| value.into()).collect(), 1.0 - share);
            for ((flags, &value), &on) in flags.iter_mut().zip(entropy).zip(columns.mask) {
                if on && value.into() < threshold {
                    *flags |= Selection::LEFT_OUT;
                }
            }
        }
        Ok(Selection { flags })
    }
}

/// The q-quantile, linear between neighbours; NaN of nothing.
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let place = q * (values.len() - 1) as f64;
    let below = (place.floor() as usize).min(values.len() - 1);
    let (_, &mut low, above) = values.select_nth_unstable_by(below, f64::total_cmp);
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    low + (high - low) * (place - below as f64)
}

/// The unmasked tokens of a batch, each with its advantage.
fn unmasked<T: Real>(columns: &Columns<'_, T>) -> impl Iterator<Item = (usize, f64)> + Clone {
    let rows = 0..columns.num_sequences();
    rows.flat_map(move |i| {
        let row = columns.row(i);
        let tokens = row.tokens.clone();
        tokens
            .enumerate()
            .filter(move |(t, _)| row.mask[*t])
            .map(move |(t, token)| (token, row.advantage.at(t)))
    })
}

/// `(A_t - mean A)·(logprob_t - mean logprob)` of every unmasked token, in batch order: its place, its
/// advantage, and that.
pub(super) fn covariances<T: Real>(columns: &Columns<'_, T>) -> impl Iterator<Item = (usize, f64, f64)> {
    let (mut advantages, mut logprobs, mut count) = (0.0, 0.0, 0_usize);
    for (t, advantage) in unmasked(columns) {
        advantages += advantage;
        logprobs += columns.logprob[t].into();
        count += 1;
    }
    let (advantages, logprobs) = (advantages / count as f64, logprobs / count as f64);
    unmasked(columns).map(move |(t, advantage)| {
        (t, advantage, (advantage - advantages) * (columns.logprob[t].into() - logprobs))
    })
}

/// `max(1, floor(share·N))` of the N unmasked tokens.
pub(super) fn share_of<T: Real>(share: f64, columns: &Columns<'_, T>) -> usize {
    let tokens = columns.mask.iter().filter(|&&on| on).count();
    ((share * tokens as f64) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_hand() {
        let values = vec![3.0, 1.0, 2.0, 5.0];
        for (q, expected) in [(0.0, 1.0), (1.0, 5.0), (0.5, 2.5), (0.9, 3.0 + 0.7 * 2.0)] {
            assert!((quantile(values.clone(), q) - expected).abs() < 1e-15, "{q}");
        }
        assert!(quantile(vec![], 0.5).is_nan());
    }
}
