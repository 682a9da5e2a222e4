//! Correction for a sampler that is not the policy, and the masks that leave tokens or trajectories out of
//! the loss.
//!
//! The engine that sampled and the engine that trains disagree on the log-probability of the same token:
//! other kernels, other precision, older weights. A [`Correction`] turns that gap into a weight per token
//! ([`ImportanceWeights`]) and into a smaller mask ([`Rejection`]), and measures it ([`Mismatch`]).
//!
//! ```text
//! old, behaviour, mask ─┬─ mismatch    what separates the two             ─ metrics
//!                       ├─ importance  weight per token or per trajectory ─ Columns.weight
//!                       └─ rejection   tokens and trajectories left out   ─ Columns.mask
//! finish reasons ─ truncated ─ Columns.mask
//! ```
//!
//! Everything here is a pure function of a whole optimizer batch. Weights and masks of a trajectory depend
//! only on that trajectory, so they have the same bits however the batch is cut. `batch_normalize` is the
//! exception: it depends on all trajectories of the batch and must get them all.
//!
//! Masks that the loss itself draws over an optimizer batch (top entropy, off-policy trajectories) are
//! [`LossMasks`](crate::objective::LossMasks).
//!
//! Notation: `d = old - behaviour` of a token, `r = exp(d)` its importance ratio.
//!
//! A behaviour log-probability that is not finite (the sampler reported nothing) is *unknown*: its ratio is
//! 1, it is left out of the mismatch metrics, and it is counted (`rollout_corr/unknown_fraction`).

pub mod agreement;
pub mod importance;
pub mod metrics;
pub mod mismatch;
pub mod preset;
pub mod rejection;
mod spread;
pub mod truncated;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use agreement::Agreement;
pub use importance::{CorrectionLevel, ImportanceMetrics, ImportanceWeights, OutsideBounds};
pub use metrics::CorrectionMetrics;
pub use mismatch::Mismatch;
pub use preset::CorrectionPreset;
pub use rejection::{Rejection, RejectionMetrics, RejectionScope, Statistic};

use crate::entry::Entry;
use crate::fault::Fault;
use crate::objective::Real;
use crate::ragged::{check_length, num_tokens};

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[
    truncated::ENTRY,
    importance::TOKEN,
    importance::SEQUENCE,
    importance::ICEPOP,
    importance::BATCH_NORMALIZE,
    rejection::ENTRY,
    preset::ENTRY,
    preset::BYPASS,
];

/// The columns that the correction reads: B trajectories, per-token columns flat \[N\], in nats.
///
/// If the mask is `false`, the other columns are not read.
#[derive(Debug, Clone, Copy)]
pub struct SamplerColumns<'a, T> {
    /// Offsets of the trajectories \[B + 1\]; need not begin at 0.
    pub offsets: &'a [usize],
    /// Mask of the tokens that are trained on \[N\].
    pub mask: &'a [bool],
    /// Log-probability under the policy: at the start of the step, or in bypass mode the one being trained
    /// \[N\].
    pub old: &'a [T],
    /// Log-probability as the sampler reported it \[N\]; not finite: unknown.
    pub behaviour: &'a [T],
}

/// Policy in the denominator of the loss's ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The policy at the start of the step is evaluated again; the correction applies between it and the
    /// sampler (three policies).
    #[default]
    Decoupled,
    /// `old` is what the sampler reported (two policies). The ratio of the clipped loss already contains the
    /// correction, so importance weights are not applied. Rejection is applied, and judged with the policy
    /// being trained.
    BypassClip,
    /// No ratio in the loss: REINFORCE weighted by the importance ratio of the policy being trained to the
    /// sampler.
    BypassReinforce,
}

impl Mode {
    /// Whether the trainer uses the sampler's log-probabilities as `old`, which saves a forward pass.
    pub fn is_bypass(self) -> bool {
        self != Self::Decoupled
    }

    /// Whether importance weights reach the loss.
    fn applies_weights(self) -> bool {
        self != Self::BypassClip
    }
}

/// Correction of a batch from a sampler that is not the policy. The default only measures.
///
/// Source: verl `algorithm.rollout_correction`; TRL `vllm_importance_sampling_*`. See [`preset`] for the
/// named settings of both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Correction {
    /// Policy in the denominator of the loss's ratio.
    pub mode: Mode,
    /// Weights; `None`: every weight is 1.
    pub importance: Option<ImportanceWeights>,
    /// Rejections; a token stays if all of them keep it.
    pub rejections: Vec<Rejection>,
    /// `d`, and its sum over a trajectory, are clamped to plus and minus this before the exponential (verl
    /// 20); `None`: no limit (TRL).
    pub log_ratio_limit: Option<f64>,
    /// Metrics over trajectories also count fully masked ones, as if their ratio were 0 and their perplexity
    /// 1 (verl). Weights and masks do not depend on it.
    pub count_masked_trajectories: bool,
    /// Rejected tokens stay in the mask with weight 0, so that means over tokens and trajectories have the
    /// same denominators as without a rejection (FlashREINFORCE). False: they leave the mask (verl).
    pub count_rejected: bool,
}

impl Default for Correction {
    fn default() -> Self {
        Self {
            mode: Mode::Decoupled,
            importance: None,
            rejections: Vec::new(),
            log_ratio_limit: Some(20.0),
            count_masked_trajectories: false,
            count_rejected: false,
        }
    }
}

/// Result of [`Correction::correct`].
#[derive(Debug, Clone, PartialEq)]
pub struct Corrected {
    /// Weight of each token's policy loss \[N\], 0 if the mask was `false`; `None` if there is no importance
    /// sampling or the mode does not apply it. A constant: it is not differentiated.
    pub weights: Option<Vec<f64>>,
    /// Mask of the tokens that are still trained on \[N\]: never more than before.
    pub mask: Vec<bool>,
    /// Metrics of the correction.
    pub metrics: CorrectionMetrics,
}

/// A setting of the correction is out of range, or its columns do not fit together.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CorrectionError {
    /// Columns that do not fit together, or verl settings that cannot be read.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A setting outside its range.
    #[error("correction setting `{setting}` is {}; expected {expected}", crate::figure::shortest(*.value))]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: f64,
        /// The value expected.
        expected: &'static str,
    },
    /// Both bounds are set and the lower is not below the upper.
    #[error("correction setting `{setting}` has bounds {} and {}; the lower must be below the upper", crate::figure::shortest(*.min), crate::figure::shortest(*.max))]
    Bounds {
        /// Name of the setting.
        setting: &'static str,
        /// The lower.
        min: f64,
        /// The upper.
        max: f64,
    },
    /// A threshold that does not parse.
    #[error(
        "threshold `{text}` is {problem}; expected a number above 0, or two as `0.5_2.0` where the statistic has two sides"
    )]
    Threshold {
        /// The given text.
        text: String,
        /// The fault.
        problem: &'static str,
    },
    /// A statistic that does not exist.
    #[error(
        "unknown rejection statistic `{name}`; known are token_k1, token_k2, token_k3, seq_sum_k1, \
            seq_sum_k2, seq_sum_k3, seq_mean_k1, seq_mean_k2, seq_mean_k3, seq_max_k2, seq_max_k3, and tv and binary_kl like k3"
    )]
    UnknownStatistic {
        /// The given name.
        name: String,
    },
}

#[derive(Clone, Copy)]
pub(crate) struct SamplerRow<'a, T> {
    pub(crate) start: usize,
    mask: &'a [bool],
    old: &'a [T],
    behaviour: &'a [T],
}

/// An unmasked token of a trajectory.
#[derive(Clone, Copy)]
pub(crate) struct SampledToken {
    /// Index in the flat columns.
    pub(crate) place: usize,
    pub(crate) old: f64,
    /// The sampler's log-probability; the policy's own if unknown.
    pub(crate) behaviour: f64,
    pub(crate) known: bool,
}

impl SampledToken {
    /// `d`, 0 if unknown.
    pub(crate) fn log_ratio(&self) -> f64 {
        if self.known { self.old - self.behaviour } else { 0.0 }
    }
}

impl<'a, T: Real> SamplerRow<'a, T> {
    /// Unmasked tokens in order.
    pub(crate) fn tokens(self) -> impl Iterator<Item = SampledToken> + 'a {
        let Self { start, mask, old, behaviour } = self;
        mask.iter().zip(old.iter().zip(behaviour)).enumerate().filter(|(_, (on, _))| **on).map(
            move |(t, (_, (&old, &behaviour)))| {
                let (old, behaviour): (f64, f64) = (old.into(), behaviour.into());
                SampledToken { place: start + t, old, behaviour, known: behaviour.is_finite() }
            },
        )
    }
}

impl<'a, T: Real> SamplerColumns<'a, T> {
    /// B.
    pub fn num_sequences(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether all lengths fit together.
    pub fn check(&self) -> Result<(), Fault> {
        let expected = num_tokens(self.offsets)?;
        check_length("mask", expected, self.mask.len())?;
        check_length("old", expected, self.old.len())?;
        check_length("behaviour", expected, self.behaviour.len())
    }

    /// Trajectories in order; lengths have been checked.
    pub(crate) fn rows(&self) -> impl Iterator<Item = SamplerRow<'a, T>> {
        let Self { offsets, mask, old, behaviour } = *self;
        let base = offsets.first().copied().unwrap_or(0);
        offsets.windows(2).map(move |pair| {
            let tokens = pair[0] - base..pair[1] - base;
            SamplerRow {
                start: tokens.start,
                mask: &mask[tokens.clone()],
                old: &old[tokens.clone()],
                behaviour: &behaviour[tokens],
            }
        })
    }
}

impl Correction {
    /// Whether every setting is in range.
    pub fn check(&self) -> Result<(), CorrectionError> {
        if let Some(limit) = self.log_ratio_limit
            && !(limit > 0.0 && limit.is_finite())
        {
            return Err(CorrectionError::Setting {
                setting: "log_ratio_limit",
                value: limit,
                expected: "a number above 0",
            });
        }
        self.importance.as_ref().map_or(Ok(()), ImportanceWeights::check)?;
        self.rejections.iter().try_for_each(Rejection::check)
    }

    /// Weights, mask and metrics of a whole optimizer batch. Linear in N.
    ///
    /// All rejections are judged on the incoming mask. Degenerate: without an unmasked token there is nothing
    /// to weight or to reject, and means are NaN. A fully masked trajectory has weight 0 and stays fully
    /// masked.
    ///
    /// # Errors
    /// Columns do not fit together, or settings are out of range. NaN in `old` is not an error: it appears in
    /// the weight, and then in loss and gradient, in which the learner detects it.
    ///
    /// ```
    /// use tamis_core::correction::{Correction, ImportanceWeights, SamplerColumns};
    ///
    /// // The policy gives the first token twice the sampler's probability, and the second the same.
    /// let half = 0.5_f64.ln();
    /// let columns = SamplerColumns { offsets: &[0, 2], mask: &[true; 2], old: &[half, half], behaviour: &[2.0 * half, half] };
    /// let importance = Some(ImportanceWeights::truncated_tokens(1.5));
    /// let correction = Correction { importance, ..Correction::default() };
    /// let corrected = correction.correct(&columns)?;
    /// assert_eq!(corrected.weights, Some(vec![1.5, 1.0]));
    /// # Ok::<(), tamis_core::correction::CorrectionError>(())
    /// ```
    pub fn correct<T: Real>(&self, columns: &SamplerColumns<'_, T>) -> Result<Corrected, CorrectionError> {
        self.check()?;
        columns.check()?;
        let limit = self.log_ratio_limit.unwrap_or(f64::INFINITY);
        let counted = self.count_masked_trajectories;
        let mismatch = Mismatch::of(columns, limit, counted);
        let mut weights = None;
        let importance = self.importance.map(|importance| {
            let (weighed, metrics) = importance.weigh(columns, limit, counted);
            weights = self.mode.applies_weights().then_some(weighed);
            metrics
        });
        let mut mask = columns.mask.to_vec();
        let rejections =
            self.rejections.iter().map(|rejection| rejection.reject(columns, limit, &mut mask)).collect();
        let metrics = CorrectionMetrics::of(columns, &mask, mismatch, importance, rejections, counted);
        if self.count_rejected && mask != columns.mask {
            let weights = weights.get_or_insert_with(|| vec![1.0; mask.len()]);
            for (weight, _) in weights.iter_mut().zip(&mask).filter(|(_, is_kept)| !**is_kept) {
                *weight = 0.0;
            }
            mask = columns.mask.to_vec();
        }
        Ok(Corrected { weights, mask, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_settings_that_do_not_fit_are_refused() {
        let refused = |correction: &Correction, offsets: &[usize], behaviour: &[f64]| {
            let columns = SamplerColumns { offsets, mask: &[true; 2], old: &[-1.0; 2], behaviour };
            correction.correct(&columns).unwrap_err().to_string()
        };
        let plain = Correction::default();
        insta::assert_snapshot!(refused(&plain, &[0, 2], &[0.0]), @"column `behaviour` has 1 values, expected 2");
        insta::assert_snapshot!(refused(&plain, &[0, 3], &[0.0; 2]), @"column `mask` has 2 values, expected 3");
        insta::assert_snapshot!(refused(&plain, &[2, 0], &[0.0; 2]), @"offsets of trajectory 0 go backwards");
        let limited = Correction { log_ratio_limit: Some(0.0), ..Correction::default() };
        insta::assert_snapshot!(
            refused(&limited, &[0, 2], &[0.0; 2]),
            @"correction setting `log_ratio_limit` is 0; expected a number above 0"
        );
    }

    /// Of two trajectories the second is rejected: it counts with weight 0, or is gone. Metrics are the same.
    #[test]
    fn a_rejected_trajectory_counts_or_is_gone() {
        let old = [-1.0, -1.0, -1.0];
        let columns = SamplerColumns {
            offsets: &[0, 2, 3],
            mask: &[true; 3],
            old: &old,
            behaviour: &[-1.0, -1.0, -3.0],
        };
        let rejections = Rejection::verl("seq_mean_k2", "0.5").expect("names");
        let gone = Correction { rejections, ..Correction::default() };
        let counted = Correction { count_rejected: true, ..gone.clone() };
        let (gone, counted) =
            (gone.correct(&columns).expect("fits"), counted.correct(&columns).expect("fits"));
        assert_eq!((gone.weights, gone.mask), (None, vec![true, true, false]));
        assert_eq!((counted.weights, counted.mask), (Some(vec![1.0, 1.0, 0.0]), vec![true; 3]));
        assert_eq!(gone.metrics.to_pairs(), counted.metrics.to_pairs());
    }

    #[test]
    fn an_empty_batch_has_nothing_to_correct() {
        let columns = SamplerColumns::<f32> { offsets: &[], mask: &[], old: &[], behaviour: &[] };
        for preset in CorrectionPreset::ALL {
            let corrected = preset.correction().correct(&columns).expect("fits");
            assert!(corrected.mask.is_empty() && corrected.weights.unwrap_or_default().is_empty());
        }
    }

    #[test]
    fn weights_reach_the_loss_where_its_ratio_has_not_got_them() {
        let columns = SamplerColumns {
            offsets: &[0, 1],
            mask: &[true],
            old: &[0.5_f64.ln()],
            behaviour: &[0.25_f64.ln()],
        };
        let importance = Some(ImportanceWeights::truncated_tokens(3.0));
        for (mode, applied) in
            [(Mode::Decoupled, true), (Mode::BypassReinforce, true), (Mode::BypassClip, false)]
        {
            let correction = Correction { mode, importance, ..Correction::default() };
            let corrected = correction.correct(&columns).expect("fits");
            assert_eq!(corrected.weights.is_some(), applied, "{mode:?}");
            assert!(corrected.metrics.importance.is_some());
        }
    }
}
