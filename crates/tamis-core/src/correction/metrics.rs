//! Everything that a correction measures, under the names that are logged.

use super::importance::{CorrectionLevel, WeightStatistics};
use super::{ImportanceMetrics, Mismatch, RejectionMetrics, SamplerColumns};
use crate::objective::Real;

/// Metrics of a corrected batch. Means and shares without values are NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct CorrectionMetrics {
    /// Divergence of the sampler from the policy, before any correction.
    pub mismatch: Mismatch,
    /// Weights before and after bounds, if there is importance sampling.
    pub importance: Option<ImportanceMetrics>,
    /// One for each criterion, in the order of the settings.
    pub rejections: Vec<RejectionMetrics>,
    /// Share of tokens that all criteria together leave out.
    pub rejected_share: f64,
    /// Share of trajectories in which they leave something out.
    pub sequence_rejected_share: f64,
}

impl CorrectionMetrics {
    pub(super) fn of<T: Real>(
        columns: &SamplerColumns<'_, T>,
        mask: &[bool],
        mismatch: Mismatch,
        importance: Option<ImportanceMetrics>,
        rejections: Vec<RejectionMetrics>,
        count_masked: bool,
    ) -> Self {
        let (mut rejected, mut touched, mut sequences) = (0_usize, 0_usize, 0_usize);
        for row in columns.rows() {
            let (mut on, mut gone) = (0_usize, 0_usize);
            for token in row.tokens() {
                on += 1;
                gone += usize::from(!mask[token.place]);
            }
            rejected += gone;
            touched += usize::from(gone > 0);
            sequences += usize::from(on > 0 || count_masked);
        }
        Self {
            rejected_share: rejected as f64 / mismatch.tokens as f64,
            sequence_rejected_share: touched as f64 / sequences as f64,
            mismatch,
            importance,
            rejections,
        }
    }

    /// Names as logged: verl's `rollout_corr/*`, TRL's `sampling/*`, and `rollout_corr/rollout_is_raw_*` for
    /// weights before bounds, which neither logs.
    pub fn to_pairs(&self) -> Vec<(String, f64)> {
        let mut named: Vec<(String, f64)> =
            self.mismatch.to_pairs().iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        if let Some(importance) = &self.importance {
            named_weights(importance, &mut named);
        }
        for rejection in &self.rejections {
            named_rejection(rejection, &mut named);
        }
        if !self.rejections.is_empty() {
            named.push(("rollout_corr/rollout_rs_masked_fraction".to_owned(), self.rejected_share));
            named.push((
                "rollout_corr/rollout_rs_seq_masked_fraction".to_owned(),
                self.sequence_rejected_share,
            ));
        }
        named
    }
}

fn named_weights(metrics: &ImportanceMetrics, named: &mut Vec<(String, f64)>) {
    let ImportanceMetrics { raw, bounded, .. } = metrics;
    // verl reports the extremes of trajectory weights before bounds, but of token weights after them.
    let (min, max) = match metrics.level {
        CorrectionLevel::Token => (bounded.min, bounded.max),
        CorrectionLevel::Sequence => (raw.min, raw.max),
    };
    let mut push = |name: &str, value| named.push((format!("rollout_corr/rollout_is_{name}"), value));
    for (name, value) in [
        ("mean", bounded.mean),
        ("std", bounded.deviation),
        ("min", min),
        ("max", max),
        ("eff_sample_size", bounded.effective_share),
        ("ratio_fraction_high", metrics.share_above),
        ("ratio_fraction_low", metrics.share_below),
        ("seq_mean", bounded.sequence_mean),
        ("seq_std", bounded.sequence_deviation),
        ("seq_min", bounded.sequence_min),
        ("seq_max", bounded.sequence_max),
        ("seq_max_deviation", (bounded.sequence_max - 1.0).abs().max((bounded.sequence_min - 1.0).abs())),
        ("seq_fraction_high", metrics.sequence_share_above),
        ("seq_fraction_low", metrics.sequence_share_below),
        ("raw_mean", raw.mean),
        ("raw_std", raw.deviation),
        ("raw_min", raw.min),
        ("raw_max", raw.max),
        ("raw_eff_sample_size", raw.effective_share),
    ] {
        push(name, value);
    }
    if let Some(share) = metrics.masked_share {
        push("oob_ratio", share);
    }
    if let Some(factor) = metrics.normalisation {
        push("batch_norm_factor", factor);
    }
    // TRL's are over tokens or over trajectories according to its mode.
    let WeightStatistics { mean, min, max, sequence_mean, sequence_min, sequence_max, .. } = *bounded;
    let [mean, min, max] = match metrics.level {
        CorrectionLevel::Token => [mean, min, max],
        CorrectionLevel::Sequence => [sequence_mean, sequence_min, sequence_max],
    };
    for (name, value) in [("mean", mean), ("min", min), ("max", max)] {
        named.push((format!("sampling/importance_sampling_ratio/{name}"), value));
    }
}

fn named_rejection(metrics: &RejectionMetrics, named: &mut Vec<(String, f64)>) {
    let prefix = metrics.rejection.name();
    for (name, value) in [
        ("mean", metrics.mean),
        ("std", metrics.bounded_deviation),
        ("min", metrics.min),
        ("max", metrics.max),
        ("fraction_high", metrics.share_above),
        ("fraction_low", metrics.share_below),
        ("seq_mean", metrics.sequence_mean),
        ("seq_std", metrics.sequence_deviation),
        ("seq_min", metrics.sequence_min),
        ("seq_max", metrics.sequence_max),
        ("seq_max_deviation", metrics.sequence_max.abs().max(metrics.sequence_min.abs())),
        ("seq_fraction_high", metrics.sequence_share_above),
        ("seq_fraction_low", metrics.sequence_share_below),
        ("masked_fraction", metrics.rejected_share),
        ("seq_masked_fraction", metrics.sequence_rejected_share),
    ] {
        named.push((format!("rollout_corr/rollout_rs_{prefix}_{name}"), value));
    }
}
