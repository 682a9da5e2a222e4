//! Importance sampling: weights correct for tokens or trajectories that the sampler draws too often or too
//! seldom.

use serde::{Deserialize, Serialize};

use super::spread::Spread;
use super::{CorrectionError, SamplerColumns};
use crate::choice;
use crate::entry::{Entry, Family};
use crate::fault;
use crate::objective::Real;

/// Settings that all entries have in common.
const KNOWN: &[(&str, &str)] = &[
    ("verl", "algorithm.rollout_correction.rollout_is=token|sequence"),
    ("TRL", "vllm_importance_sampling_mode=token_truncate|token_mask|sequence_truncate|sequence_mask"),
];

pub(super) const TOKEN: Entry = Entry {
    name: "token_is",
    family: Family::Correction,
    meaning: "Weights each token by the ratio of its probability under the policy to that under the sampler, up to a bound.",
    formula: "w_t = clamp(exp(d_t), min, max), d = old - behaviour",
    source: "truncated importance sampling: Ionides, JCGS 2008; Yao et al., Your efficient RL framework \
        secretly brings you off-policy RL training, 2025",
    defaults: &[
        "objective.correction.weights.level",
        "objective.correction.weights.outside",
        "objective.correction.weights.min",
        "objective.correction.weights.max",
        "objective.correction.weights.batch_normalize",
    ],
    degenerate: &[
        "an unknown behaviour log-probability has ratio 1 and is counted",
        "masked tokens have weight 0",
    ],
    known_as: KNOWN,
    differences: &[
        "verl first clamps the log-ratio to ±20 (`log_ratio_limit: 20`), TRL does not (`log_ratio_limit: null`)",
        "TRL reports metrics of the clipped weight only; tamis also reports those of the raw weight (`rollout_corr/rollout_is_raw_*`)",
    ],
};

pub(super) const SEQUENCE: Entry = Entry {
    name: "sequence_is",
    family: Family::Correction,
    meaning: "Weights each trajectory by the ratio of its probability under the policy to that under the sampler, up to a bound.",
    formula: "w_i = clamp(exp(Σ_t d_t), min, max), the same for each of its tokens",
    source: "as token_is; unbiased for the trajectory if no bound applies",
    defaults: &[
        "objective.correction.weights.level",
        "objective.correction.weights.outside",
        "objective.correction.weights.min",
        "objective.correction.weights.max",
        "objective.correction.weights.batch_normalize",
    ],
    degenerate: &[
        "the variance of the weight grows with the length of the trajectory; watch `rollout_corr/rollout_is_eff_sample_size`",
    ],
    known_as: KNOWN,
    differences: &["TRL's default is this with `outside: mask` and `max: 3.0` (sequence_mask)"],
};

pub(super) const ICEPOP: Entry = Entry {
    name: "icepop",
    family: Family::Correction,
    meaning: "Weights outside two bounds become 0 instead of the bound.",
    formula: "w = exp(d) if min <= exp(d) <= max, otherwise 0",
    source: "IcePop, Ling team, Small leak can sink a great ship, 2025; TRL *_mask",
    defaults: &[
        "objective.correction.weights.outside",
        "objective.correction.weights.min",
        "objective.correction.weights.max",
    ],
    degenerate: &[
        "a token of weight 0 still counts in the loss's denominator; to leave it out, reject it instead",
    ],
    known_as: &[
        ("verl", "rollout_is_threshold=\"0.5_5.0\""),
        ("TRL", "vllm_importance_sampling_mode=token_mask|sequence_mask"),
    ],
    differences: &[],
};

pub(super) const BATCH_NORMALIZE: Entry = Entry {
    name: "batch_normalize",
    family: Family::Correction,
    meaning: "Weights are divided by their mean over the optimizer batch, so that the loss keeps its scale.",
    formula: "w / mean(w), the mean over unmasked tokens, or over trajectories if they have the weights; after bounds",
    source: "self-normalised importance sampling; verl rollout_is_batch_normalize",
    defaults: &["objective.correction.weights.batch_normalize"],
    degenerate: &["if the mean is 0 or not finite, weights are not divided"],
    known_as: &[("verl", "algorithm.rollout_correction.rollout_is_batch_normalize")],
    differences: &["the mean is of the whole optimizer batch over all micro-batches"],
};

choice! {
    /// Unit that has one importance weight.
    pub enum CorrectionLevel {
        /// Each token.
        Token = "token",
        /// Each trajectory: the product of its tokens' ratios.
        Sequence = "sequence",
    }
}

choice! {
    /// Weight of a token or trajectory whose ratio is outside `min` and `max`.
    pub enum OutsideBounds {
        /// The nearer bound.
        Truncate = "truncate",
        /// 0: it has no loss.
        Mask = "mask",
    }
}

/// Importance weights of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportanceWeights {
    /// Unit that has one weight.
    pub level: CorrectionLevel,
    /// What happens to a ratio outside the bounds.
    pub outside: OutsideBounds,
    /// Lower bound of the ratio, at least 0.
    #[serde(default)]
    pub min: Option<f64>,
    /// Upper bound of the ratio, above 0. Without bounds this is plain importance sampling, whose variance is
    /// not bounded either.
    #[serde(default)]
    pub max: Option<f64>,
    /// Whether to divide by the mean weight of the batch.
    #[serde(default)]
    pub batch_normalize: bool,
}

/// Weights before or after the bounds. Means are over tokens; `sequence_*` are over trajectories, from their
/// token means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightStatistics {
    /// Mean over tokens.
    pub mean: f64,
    /// Population deviation over tokens.
    pub deviation: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// `(Σw)² / (n·Σw²)` over tokens: the effective share of the batch, 1 if all weights are equal.
    pub effective_share: f64,
    /// Mean over trajectories.
    pub sequence_mean: f64,
    /// Sample deviation over trajectories; NaN with fewer than two.
    pub sequence_deviation: f64,
    /// Smallest of a trajectory.
    pub sequence_min: f64,
    /// Largest of a trajectory.
    pub sequence_max: f64,
}

/// Metrics of importance sampling on a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImportanceMetrics {
    /// Unit that has one weight.
    pub level: CorrectionLevel,
    /// What happens to ratios outside the bounds.
    pub outside: OutsideBounds,
    /// Before bounds.
    pub raw: WeightStatistics,
    /// After bounds, before the normalisation.
    pub bounded: WeightStatistics,
    /// Share of ratios above the upper bound, of tokens or of trajectories according to the level.
    pub share_above: f64,
    /// Share of ratios below the lower bound; if only `max` is set, below `1/max` (as verl reports).
    pub share_below: f64,
    /// Share of trajectories whose mean raw weight is above the upper bound.
    pub sequence_share_above: f64,
    /// Share of trajectories whose mean raw weight is below the lower bound.
    pub sequence_share_below: f64,
    /// Share of tokens whose weight became 0, with [`OutsideBounds::Mask`].
    pub masked_share: Option<f64>,
    /// Divisor of the weights, if they were normalised.
    pub normalisation: Option<f64>,
}

/// Collects [`WeightStatistics`].
struct WeightSums {
    tokens: Spread,
    sequences: Spread,
}

impl WeightSums {
    fn new() -> Self {
        Self { tokens: Spread::around(1.0), sequences: Spread::around(1.0) }
    }

    fn finish(&self) -> WeightStatistics {
        let (min, max) = self.tokens.extremes();
        let (sequence_min, sequence_max) = self.sequences.extremes();
        WeightStatistics {
            mean: self.tokens.mean(),
            deviation: self.tokens.deviation(0.0),
            min,
            max,
            effective_share: self.tokens.effective_share(),
            sequence_mean: self.sequences.mean(),
            sequence_deviation: self.sequences.deviation(1.0),
            sequence_min,
            sequence_max,
        }
    }
}

impl ImportanceWeights {
    /// Token weights of at most `max` (verl `decoupled_token_is`).
    pub fn truncated_tokens(max: f64) -> Self {
        Self {
            level: CorrectionLevel::Token,
            outside: OutsideBounds::Truncate,
            min: None,
            max: Some(max),
            batch_normalize: false,
        }
    }

    /// Trajectory weights of at most `max` (verl `decoupled_seq_is`).
    pub fn truncated_sequences(max: f64) -> Self {
        Self { level: CorrectionLevel::Sequence, ..Self::truncated_tokens(max) }
    }

    /// verl's `rollout_is` with a `rollout_is_threshold` as verl writes it: a number truncates, `lo_hi` masks
    /// outside (IcePop).
    ///
    /// # Errors
    /// [`CorrectionError::Threshold`] if it is neither.
    pub fn verl(level: CorrectionLevel, threshold: &str) -> Result<Self, CorrectionError> {
        Ok(match super::rejection::threshold(threshold)? {
            (None, max) => Self { level, ..Self::truncated_tokens(max) },
            (min, max) => {
                Self { level, outside: OutsideBounds::Mask, min, max: Some(max), batch_normalize: false }
            }
        })
    }

    /// TRL's `vllm_importance_sampling_mode` with its two bounds. Its log-ratios have no limit: also set
    /// [`Correction::log_ratio_limit`](super::Correction::log_ratio_limit) to `None`.
    ///
    /// # Errors
    /// An unknown mode.
    pub fn trl(mode: &str, min: Option<f64>, max: Option<f64>) -> Result<Self, CorrectionError> {
        let (level, outside) = match mode {
            "token_truncate" => (CorrectionLevel::Token, OutsideBounds::Truncate),
            "token_mask" => (CorrectionLevel::Token, OutsideBounds::Mask),
            "sequence_truncate" => (CorrectionLevel::Sequence, OutsideBounds::Truncate),
            "sequence_mask" => (CorrectionLevel::Sequence, OutsideBounds::Mask),
            _ => return Err(fault!("unknown importance sampling mode `{mode}`; known are token_truncate, token_mask, sequence_truncate, sequence_mask").into()),
        };
        Ok(Self { level, outside, min, max, batch_normalize: false })
    }

    pub(super) fn check(&self) -> Result<(), CorrectionError> {
        let setting = |setting, value: f64, expected| CorrectionError::Setting { setting, value, expected };
        if let Some(min) = self.min
            && !(min >= 0.0 && min.is_finite())
        {
            return Err(setting("importance.min", min, "a number of at least 0"));
        }
        if let Some(max) = self.max
            && !(max > 0.0 && max.is_finite())
        {
            return Err(setting("importance.max", max, "a number above 0"));
        }
        match (self.min, self.max) {
            (Some(min), Some(max)) if min >= max => {
                Err(CorrectionError::Bounds { setting: "importance", min, max })
            }
            _ => Ok(()),
        }
    }

    /// The weight of a ratio, before any normalisation. NaN stays.
    #[inline]
    pub fn bound(&self, ratio: f64) -> f64 {
        let (min, max) = (self.min.unwrap_or(0.0), self.max.unwrap_or(f64::INFINITY));
        let replaced = |bound| match self.outside {
            OutsideBounds::Truncate => bound,
            OutsideBounds::Mask => 0.0,
        };
        if ratio < min {
            replaced(min)
        } else if ratio > max {
            replaced(max)
        } else {
            ratio
        }
    }

    /// Weights \[N\] and metrics; columns have been checked.
    pub(super) fn weigh<T: Real>(
        &self,
        columns: &SamplerColumns<'_, T>,
        limit: f64,
        count_masked: bool,
    ) -> (Vec<f64>, ImportanceMetrics) {
        let mut weights = vec![0.0; columns.mask.len()];
        let (mut raw, mut bounded) = (WeightSums::new(), WeightSums::new());
        let high = self.max.unwrap_or(f64::INFINITY);
        let low = self.min.unwrap_or(1.0 / high);
        let (mut above, mut below, mut masked) = (0_usize, 0_usize, 0_usize);
        let (mut sequences_above, mut sequences_below, mut sequences) = (0_usize, 0_usize, 0_usize);
        for row in columns.rows() {
            let (mut tokens, mut total) = (0_usize, 0.0);
            let (mut raw_sum, mut bounded_sum) = (0.0, 0.0);
            for token in row.tokens() {
                tokens += 1;
                match self.level {
                    CorrectionLevel::Token => {
                        let ratio = token.log_ratio().clamp(-limit, limit).exp();
                        let weight = self.bound(ratio);
                        above += usize::from(ratio > high);
                        below += usize::from(ratio < low);
                        masked += usize::from(self.is_outside(ratio));
                        raw.tokens.add(ratio);
                        bounded.tokens.add(weight);
                        raw_sum += ratio;
                        bounded_sum += weight;
                        weights[token.place] = weight;
                    }
                    CorrectionLevel::Sequence => total += token.log_ratio(),
                }
            }
            if tokens == 0 && !count_masked {
                continue;
            }
            sequences += 1;
            let (raw_mean, bounded_mean) = match self.level {
                // A fully masked one counts as 0, as in verl.
                CorrectionLevel::Token => {
                    (raw_sum / tokens.max(1) as f64, bounded_sum / tokens.max(1) as f64)
                }
                CorrectionLevel::Sequence => {
                    let ratio = total.clamp(-limit, limit).exp();
                    let weight = self.bound(ratio);
                    above += usize::from(ratio > high);
                    below += usize::from(ratio < low);
                    if tokens > 0 {
                        masked += if self.is_outside(ratio) { tokens } else { 0 };
                        raw.tokens.add_times(ratio, tokens as f64);
                        bounded.tokens.add_times(weight, tokens as f64);
                        for token in row.tokens() {
                            weights[token.place] = weight;
                        }
                        (ratio, weight)
                    } else {
                        (0.0, 0.0)
                    }
                }
            };
            raw.sequences.add(raw_mean);
            bounded.sequences.add(bounded_mean);
            sequences_above += usize::from(raw_mean > high);
            sequences_below += usize::from(raw_mean < low);
        }
        let num_tokens = columns.mask.iter().filter(|&&on| on).count();
        let units = match self.level {
            CorrectionLevel::Token => num_tokens,
            CorrectionLevel::Sequence => sequences,
        };
        let share = |part: usize, whole: usize| part as f64 / whole as f64;
        let normalisation = if self.batch_normalize {
            self.normalise(columns, &mut weights, bounded.tokens.mean())
        } else {
            None
        };
        let metrics = ImportanceMetrics {
            level: self.level,
            outside: self.outside,
            raw: raw.finish(),
            bounded: bounded.finish(),
            share_above: share(above, units),
            share_below: share(below, units),
            sequence_share_above: share(sequences_above, sequences),
            sequence_share_below: share(sequences_below, sequences),
            masked_share: (self.outside == OutsideBounds::Mask).then(|| share(masked, num_tokens)),
            normalisation,
        };
        (weights, metrics)
    }

    fn is_outside(&self, ratio: f64) -> bool {
        ratio < self.min.unwrap_or(0.0) || ratio > self.max.unwrap_or(f64::INFINITY)
    }

    /// Divides weights by their mean and returns the mean; `None` if there is nothing to divide by.
    fn normalise<T: Real>(
        &self,
        columns: &SamplerColumns<'_, T>,
        weights: &mut [f64],
        token_mean: f64,
    ) -> Option<f64> {
        let mean = match self.level {
            CorrectionLevel::Token => token_mean,
            CorrectionLevel::Sequence => {
                let mut of_sequences = Spread::around(1.0);
                for row in columns.rows() {
                    if let Some(token) = row.tokens().next() {
                        of_sequences.add(weights[token.place]);
                    }
                }
                of_sequences.mean()
            }
        };
        if !(mean > 0.0 && mean.is_finite()) {
            return None;
        }
        for weight in weights {
            *weight /= mean;
        }
        Some(mean)
    }
}

#[cfg(test)]
mod tests {
    use tamis_golden::assert_close;

    use super::*;
    use crate::correction::Correction;

    fn weigh(importance: ImportanceWeights, old: &[f64], behaviour: &[f64]) -> (Vec<f64>, ImportanceMetrics) {
        let offsets = [0, 2, 3];
        let columns = SamplerColumns { offsets: &offsets, mask: &[true; 3], old, behaviour };
        importance.weigh(&columns, 20.0, false)
    }

    #[test]
    fn tokens_by_hand() {
        let importance = ImportanceWeights { min: Some(0.5), ..ImportanceWeights::truncated_tokens(2.0) };
        let (old, behaviour) = ([4_f64.ln(), 0.0, 0.25_f64.ln()], [0.0, f64::NAN, 0.0]);
        let (weights, ImportanceMetrics { raw, bounded, share_above, share_below, .. }) =
            weigh(importance, &old, &behaviour);
        assert_eq!(weights, [2.0, 1.0, 0.5]);
        let found = [raw.mean, bounded.mean, share_above, share_below, bounded.sequence_max];
        assert_close("metrics", &found, &[5.25 / 3.0, 3.5 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.5], 0.0, 1e-15);
        assert!((raw.effective_share - 5.25 * 5.25 / (3.0 * (17.0 + 0.0625))).abs() < 1e-14);
        let masking = ImportanceWeights { outside: OutsideBounds::Mask, ..importance };
        let (weights, metrics) = weigh(masking, &old, &behaviour);
        assert_eq!(weights, [0.0, 1.0, 0.0]);
        assert!((metrics.masked_share.expect("masks") - 2.0 / 3.0).abs() < 1e-15);
    }

    #[test]
    fn trajectories_by_hand() {
        // Log-ratios sum to ln 4 and to ln(1/2).
        let (old, behaviour) = ([2_f64.ln(), 2_f64.ln(), 0.5_f64.ln()], [0.0; 3]);
        let truncated = ImportanceWeights::truncated_sequences(3.0);
        let (weights, ImportanceMetrics { bounded, share_above, .. }) = weigh(truncated, &old, &behaviour);
        assert_eq!(weights, [3.0, 3.0, 0.5]);
        let found = [bounded.mean, bounded.sequence_mean, share_above];
        assert_close("metrics", &found, &[6.5 / 3.0, 1.75, 0.5], 0.0, 1e-15);
        let normalised = ImportanceWeights { batch_normalize: true, ..truncated };
        let (weights, metrics) = weigh(normalised, &old, &behaviour);
        assert_eq!(metrics.normalisation, Some(1.75));
        assert_close("weights", &weights, &[3.0 / 1.75, 3.0 / 1.75, 0.5 / 1.75], 0.0, 1e-15);
    }

    #[test]
    fn weights_of_nothing_are_divided_by_nothing() {
        let importance = ImportanceWeights {
            outside: OutsideBounds::Mask,
            min: Some(0.9),
            batch_normalize: true,
            ..ImportanceWeights::truncated_tokens(1.1)
        };
        let (weights, metrics) = weigh(importance, &[1.0; 3], &[0.0; 3]);
        assert_eq!((weights, metrics.normalisation), (vec![0.0; 3], None));
        assert!(metrics.bounded.effective_share.is_nan());
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let refused = |min, max| {
            let importance = ImportanceWeights { min, ..ImportanceWeights::truncated_tokens(max) };
            let correction = Correction { importance: Some(importance), ..Correction::default() };
            correction.check().unwrap_err().to_string()
        };
        let refused = [refused(Some(-1.0), 2.0), refused(None, 0.0), refused(Some(2.0), 2.0)];
        insta::assert_snapshot!(refused.join("\n"), @"
        correction setting `importance.min` is -1; expected a number of at least 0
        correction setting `importance.max` is 0; expected a number above 0
        correction setting `importance` has bounds 2 and 2; the lower must be below the upper
        ");
        insta::assert_snapshot!(
            ImportanceWeights::trl("token", None, None).unwrap_err(),
            @"unknown importance sampling mode `token`; known are token_truncate, token_mask, sequence_truncate, sequence_mask"
        );
    }
}
