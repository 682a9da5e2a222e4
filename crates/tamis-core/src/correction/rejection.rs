//! Rejection: tokens and trajectories too far from the policy that sampled them are left out of the loss.

use serde::{Deserialize, Serialize};

use super::spread::Spread;
use super::{CorrectionError, SampledToken, SamplerColumns, SamplerRow};
use crate::entry::{Entry, Family};
use crate::fault;
use crate::objective::Real;

pub(super) const ENTRY: Entry = Entry {
    name: "rejection",
    family: Family::Correction,
    meaning: "Leaves tokens or whole trajectories out of the loss if their divergence from the sampler is out of bounds.",
    formula: "kept if min <= s <= max; s of a token: k1 = -d, k2 = d²/2, k3 = exp(d) - 1 - d, \
        tv = |p - q|, binary_kl = q·ln(q/p) + (1 - q)·ln((1 - q)/(1 - p)) with p = exp(old), q = \
        exp(behaviour); of a trajectory: their sum, mean or maximum",
    source: "verl rollout_corr_helper; estimators: Schulman, Approximating KL divergence, 2020; tv and \
        binary_kl: Qi et al., DPPO, arXiv 2602.04879, as gates in OpenRLHF 0.11 (FlashREINFORCE)",
    defaults: &["objective.correction.rejections"],
    degenerate: &[
        "an unknown behaviour log-probability counts as d = 0",
        "a trajectory without unmasked tokens is neither judged nor counted",
        "everything may be rejected; loss and gradient are then 0",
    ],
    known_as: &[
        ("verl", "algorithm.rollout_correction.rollout_rs, rollout_rs_threshold"),
        ("OpenRLHF", "algo.advantage.is_correction_gating=binary_kl|tv with is_correction_mode=mask"),
    ],
    differences: &[
        "bounds are in the statistic's unit, nats or for tv a difference of probabilities; verl's `lo_hi` for k1 bounds exp(k1), which is behaviour over \
            policy, the inverse of the importance ratio",
        "verl's loss is NaN if everything is rejected",
        "verl has no tv and no binary_kl",
        "1e-8 is added to both complements of binary_kl inside the logarithm, so that certain tokens are defined",
    ],
};

/// Estimator of the divergence of the sampler from the policy at one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// `-d = behaviour - old`: two-sided.
    K1,
    /// `d²/2`: never negative.
    K2,
    /// `exp(d) - 1 - d`: never negative.
    K3,
    /// `|exp(old) - exp(behaviour)|`, the total variation of the token against all others: from 0 to 1.
    Tv,
    /// Kullback-Leibler divergence of the policy from the sampler for the token against all others: never
    /// negative (except by rounding).
    BinaryKl,
}

impl Statistic {
    const ALL: [(Self, &'static str); 5] = [
        (Self::K1, "k1"),
        (Self::K2, "k2"),
        (Self::K3, "k3"),
        (Self::Tv, "tv"),
        (Self::BinaryKl, "binary_kl"),
    ];

    /// Its value for a token whose log-ratio `old - behaviour` is clamped to plus and minus `limit`.
    #[inline]
    fn of(self, token: &SampledToken, limit: f64) -> f64 {
        let log_ratio = token.log_ratio().clamp(-limit, limit);
        match self {
            Self::K1 => -log_ratio,
            Self::K2 => 0.5 * log_ratio * log_ratio,
            Self::K3 => log_ratio.exp_m1() - log_ratio,
            Self::Tv | Self::BinaryKl if !token.known => 0.0,
            Self::Tv => (token.old.exp() - token.behaviour.exp()).abs(),
            Self::BinaryKl => {
                let (policy, sampler) = (token.old.exp(), token.behaviour.exp());
                let others = ((1.0 - sampler + 1e-8) / (1.0 - policy + 1e-8)).ln();
                (1.0 - sampler) * others - sampler * log_ratio
            }
        }
    }
}

/// Unit that a rejection judges and leaves out: a token, or a trajectory by a summary of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectionScope {
    /// Each token by itself.
    Token,
    /// The trajectory by the sum over its tokens.
    SeqSum,
    /// The trajectory by the mean over its tokens.
    SeqMean,
    /// The trajectory by the largest of its tokens.
    SeqMax,
}

/// One criterion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejection {
    /// The estimator.
    pub statistic: Statistic,
    /// Unit that is judged.
    pub scope: RejectionScope,
    /// Smallest value that is kept: in nats, for `tv` a difference of probabilities.
    #[serde(default)]
    pub min: Option<f64>,
    /// Largest value that is kept, in the same unit.
    #[serde(default)]
    pub max: Option<f64>,
}

/// Values of the statistic, and the shares that were rejected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RejectionMetrics {
    /// The criterion.
    pub rejection: Rejection,
    /// Mean over tokens; a trajectory's value counts once for each of its tokens.
    pub mean: f64,
    /// Population deviation over tokens of the value clamped to the bounds.
    pub bounded_deviation: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Share of tokens, or of trajectories, above the upper bound.
    pub share_above: f64,
    /// Share below the lower.
    pub share_below: f64,
    /// Mean over trajectories of their value; for tokens, of the mean of the trajectory's tokens.
    pub sequence_mean: f64,
    /// Sample deviation of the same; NaN with fewer than two trajectories.
    pub sequence_deviation: f64,
    /// Smallest of the same.
    pub sequence_min: f64,
    /// Largest of the same.
    pub sequence_max: f64,
    /// Share of trajectories for which it is above the upper bound.
    pub sequence_share_above: f64,
    /// Share of trajectories for which it is below the lower bound.
    pub sequence_share_below: f64,
    /// Share of tokens that this criterion leaves out.
    pub rejected_share: f64,
    /// Share of trajectories in which it leaves something out.
    pub sequence_rejected_share: f64,
}

/// Parses verl's threshold: one number above 0, or `lo_hi`.
pub(super) fn threshold(text: &str) -> Result<(Option<f64>, f64), CorrectionError> {
    let problem = |problem| CorrectionError::Threshold { text: text.to_owned(), problem };
    let number = |part: &str| match part.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        Ok(_) => Err(problem("out of range")),
        Err(_) => Err(problem("no number")),
    };
    match text.split_once('_') {
        None => Ok((None, number(text)?)),
        Some((low, high)) => {
            let (low, high) = (number(low)?, number(high)?);
            if low < high { Ok((Some(low), high)) } else { Err(problem("not in order")) }
        }
    }
}

impl Rejection {
    /// verl's name of the criterion: `seq_mean_k1`.
    pub fn name(&self) -> String {
        let scope = match self.scope {
            RejectionScope::Token => "token",
            RejectionScope::SeqSum => "seq_sum",
            RejectionScope::SeqMean => "seq_mean",
            RejectionScope::SeqMax => "seq_max",
        };
        let statistic = Statistic::ALL.iter().find(|(statistic, _)| *statistic == self.statistic);
        format!("{scope}_{}", statistic.map_or("", |(_, name)| name))
    }

    /// verl's `rollout_rs` (and the names `tv` and `binary_kl`) with its `rollout_rs_threshold`, each a
    /// comma-separated list; one threshold serves several criteria.
    ///
    /// For `k1` a threshold `x` means the bounds `[-ln x, ln x]`, and `lo_hi` means `[ln lo, ln hi]`; `k2`,
    /// `k3`, `tv` and `binary_kl` have only an upper bound.
    ///
    /// # Errors
    /// Unknown names; thresholds that do not parse; too many or too few of them.
    ///
    /// ```
    /// use tamis_core::correction::Rejection;
    /// let rejections = Rejection::verl("token_k1,seq_mean_k3", "0.5_2.0,0.05")?;
    /// assert_eq!(rejections[0].max, Some(2_f64.ln()));
    /// assert_eq!((rejections[1].min, rejections[1].max), (None, Some(0.05)));
    /// # Ok::<(), tamis_core::correction::CorrectionError>(())
    /// ```
    pub fn verl(names: &str, thresholds: &str) -> Result<Vec<Self>, CorrectionError> {
        let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let thresholds: Vec<&str> = thresholds.split(',').map(str::trim).collect();
        if thresholds.len() != 1 && thresholds.len() != names.len() {
            return Err(fault!("{statistics} rejection statistics have {thresholds} thresholds; give one for each, or one for all", statistics = names.len(), thresholds = thresholds.len()).into());
        }
        let one = |(i, name): (usize, &&str)| {
            let text = thresholds.get(i).or(thresholds.first()).copied().unwrap_or_default();
            Self::verl_one(name, text)
        };
        names.iter().enumerate().map(one).collect()
    }

    fn verl_one(name: &str, text: &str) -> Result<Self, CorrectionError> {
        let unknown = || CorrectionError::UnknownStatistic { name: name.to_owned() };
        let split = |&(statistic, text): &(Statistic, &str)| {
            Some((name.strip_suffix(text)?.strip_suffix('_')?, statistic))
        };
        let (scope, statistic) = Statistic::ALL.iter().find_map(split).ok_or_else(unknown)?;
        let scope = match scope {
            "token" => RejectionScope::Token,
            "seq_sum" => RejectionScope::SeqSum,
            "seq_mean" => RejectionScope::SeqMean,
            "seq_max" if statistic != Statistic::K1 => RejectionScope::SeqMax,
            _ => return Err(unknown()),
        };
        let (min, max) = match (statistic, threshold(text)?) {
            (Statistic::K1, (low, high)) => {
                let low = low.unwrap_or(1.0 / high);
                (Some(low.ln()), high.ln())
            }
            (_, (None, high)) => (None, high),
            (_, (Some(_), _)) => {
                return Err(CorrectionError::Threshold {
                    text: text.to_owned(),
                    problem: "two-sided, but this statistic is never negative",
                });
            }
        };
        let rejection = Self { statistic, scope, min, max: Some(max) };
        rejection.check().map(|()| rejection)
    }

    pub(super) fn check(&self) -> Result<(), CorrectionError> {
        for (setting, bound) in [("rejections.min", self.min), ("rejections.max", self.max)] {
            if let Some(value) = bound
                && !value.is_finite()
            {
                return Err(CorrectionError::Setting { setting, value, expected: "a finite number" });
            }
        }
        match (self.min, self.max) {
            (None, None) => Err(fault!(
                "rejection by `{statistic}` has no bound; set `min`, `max` or both",
                statistic = self.name()
            )
            .into()),
            (Some(min), Some(max)) if min >= max => {
                Err(CorrectionError::Bounds { setting: "rejections", min, max })
            }
            _ => Ok(()),
        }
    }

    /// Whether a value is kept. NaN is: it must reach the loss, in which it is detected.
    fn keeps(&self, value: f64) -> bool {
        !(self.min.is_some_and(|min| value < min) || self.max.is_some_and(|max| value > max))
    }

    /// Removes rejected tokens from `mask`. Columns have been checked, and `mask` has their length.
    pub(super) fn reject<T: Real>(
        &self,
        columns: &SamplerColumns<'_, T>,
        limit: f64,
        mask: &mut [bool],
    ) -> RejectionMetrics {
        let (low, high) = (self.min.unwrap_or(f64::NEG_INFINITY), self.max.unwrap_or(f64::INFINITY));
        let mut all = Spread::around(0.0);
        let mut bounded = Spread::around(0.0);
        let mut sequences = Spread::around(0.0);
        let (mut tokens, mut judged) = (0_usize, 0_usize);
        let [mut above, mut below, mut sequences_above, mut sequences_below] = [0_usize; 4];
        let (mut rejected, mut sequences_rejected) = (0_usize, 0_usize);
        for row in columns.rows() {
            let (length, summary) = self.summary(row, limit);
            if length == 0 {
                continue;
            }
            tokens += length;
            judged += 1;
            let gone = if self.scope == RejectionScope::Token {
                let mut gone = 0;
                for token in row.tokens() {
                    let value = self.statistic.of(&token, limit);
                    all.add(value);
                    bounded.add(value.clamp(low, high));
                    above += usize::from(value > high);
                    below += usize::from(value < low);
                    if !self.keeps(value) {
                        mask[token.place] = false;
                        gone += 1;
                    }
                }
                gone
            } else {
                all.add_times(summary, length as f64);
                bounded.add_times(summary.clamp(low, high), length as f64);
                above += usize::from(summary > high);
                below += usize::from(summary < low);
                if self.keeps(summary) {
                    0
                } else {
                    for token in row.tokens() {
                        mask[token.place] = false;
                    }
                    length
                }
            };
            rejected += gone;
            sequences_rejected += usize::from(gone > 0);
            sequences.add(summary);
            sequences_above += usize::from(summary > high);
            sequences_below += usize::from(summary < low);
        }
        let share = |part: usize, whole: usize| part as f64 / whole as f64;
        let units = if self.scope == RejectionScope::Token { tokens } else { judged };
        let (min, max) = all.extremes();
        let (sequence_min, sequence_max) = sequences.extremes();
        RejectionMetrics {
            rejection: *self,
            mean: all.mean(),
            bounded_deviation: bounded.deviation(0.0),
            min,
            max,
            share_above: share(above, units),
            share_below: share(below, units),
            sequence_mean: sequences.mean(),
            sequence_deviation: sequences.deviation(1.0),
            sequence_min,
            sequence_max,
            sequence_share_above: share(sequences_above, judged),
            sequence_share_below: share(sequences_below, judged),
            rejected_share: share(rejected, tokens),
            sequence_rejected_share: share(sequences_rejected, judged),
        }
    }

    /// Unmasked tokens of a trajectory, and its value: the mean if tokens are judged.
    fn summary<T: Real>(&self, row: SamplerRow<'_, T>, limit: f64) -> (usize, f64) {
        let (mut length, mut sum, mut largest) = (0_usize, 0.0, f64::NEG_INFINITY);
        for token in row.tokens() {
            let value = self.statistic.of(&token, limit);
            length += 1;
            sum += value;
            largest = if value > largest || value.is_nan() { value } else { largest };
        }
        let summary = match self.scope {
            RejectionScope::SeqSum => sum,
            RejectionScope::SeqMax => largest,
            RejectionScope::Token | RejectionScope::SeqMean => sum / length as f64,
        };
        (length, summary)
    }
}

#[cfg(test)]
mod tests {
    use tamis_golden::assert_close;

    use super::*;

    /// Log-ratios ln 2, 0 and -ln 4 of a trajectory of two tokens and one of one.
    fn reject(rejection: Rejection) -> (Vec<bool>, RejectionMetrics) {
        let (offsets, old) = ([0, 2, 3], [2_f64.ln(), 0.0, 0.25_f64.ln()]);
        let columns = SamplerColumns { offsets: &offsets, mask: &[true; 3], old: &old, behaviour: &[0.0; 3] };
        let mut mask = vec![true; 3];
        let metrics = rejection.reject(&columns, 20.0, &mut mask);
        (mask, metrics)
    }

    #[test]
    fn tokens_by_hand() {
        let (statistic, scope) = (Statistic::K1, RejectionScope::Token);
        let (mask, metrics) = reject(Rejection { statistic, scope, min: Some(-0.5), max: Some(1.0) });
        // k1: -ln 2, 0, ln 4.
        assert_eq!(mask, [false, true, false]);
        let found = [metrics.mean, metrics.share_above, metrics.share_below];
        assert_close("metrics", &found, &[2_f64.ln() / 3.0, 1.0 / 3.0, 1.0 / 3.0], 0.0, 1e-15);
        assert_eq!((metrics.sequence_rejected_share, metrics.sequence_share_above), (1.0, 0.5));
    }

    #[test]
    fn trajectories_by_hand() {
        for (scope, expected) in [
            (RejectionScope::SeqSum, 2_f64.ln().powi(2) / 2.0),
            (RejectionScope::SeqMean, 2_f64.ln().powi(2) / 4.0),
            (RejectionScope::SeqMax, 2_f64.ln().powi(2) / 2.0),
        ] {
            let max = Some(expected + 1e-12);
            let (mask, metrics) = reject(Rejection { statistic: Statistic::K2, scope, min: None, max });
            assert_eq!(mask, [true, true, false], "{scope:?}");
            let found = [metrics.sequence_min, metrics.rejected_share];
            assert_close(&format!("{scope:?}"), &found, &[expected, 1.0 / 3.0], 0.0, 1e-15);
        }
    }

    #[test]
    fn divergences_of_one_token_by_hand() {
        // Sampled at 1/2, now 3/4; and an unknown one.
        let (half, now) = (0.5_f64.ln(), 0.75_f64.ln());
        for (statistic, expected) in [
            (Statistic::Tv, 0.25),
            (Statistic::BinaryKl, 0.5 * (0.5_f64 / 0.75).ln() + 0.5 * (0.5_f64 / 0.25).ln()),
        ] {
            let token = SampledToken { place: 0, old: now, behaviour: half, known: true };
            assert!((statistic.of(&token, 20.0) - expected).abs() < 1e-7, "{statistic:?}");
            let same = SampledToken { old: half, ..token };
            assert!(statistic.of(&same, 20.0).abs() < 1e-15, "{statistic:?}");
            let unknown = SampledToken { behaviour: half, known: false, ..token };
            assert!(statistic.of(&unknown, 20.0).abs() < 1e-15, "{statistic:?}");
        }
        // The mean of the trajectory is judged: 0.25 and 0 give 0.125.
        let (old, behaviour) = ([now, half], [half; 2]);
        let columns = SamplerColumns { offsets: &[0, 2], mask: &[true; 2], old: &old, behaviour: &behaviour };
        for (threshold, stays) in [("0.13", true), ("0.12", false)] {
            let gate = Rejection::verl("seq_mean_tv", threshold).unwrap().remove(0);
            assert_eq!(gate.name(), "seq_mean_tv");
            let mut mask = vec![true; 2];
            gate.reject(&columns, 20.0, &mut mask);
            assert_eq!(mask, [stays; 2], "{threshold}");
        }
        let gate = Rejection::verl("seq_mean_binary_kl", "0.05").unwrap().remove(0);
        assert_eq!((gate.name().as_str(), gate.max), ("seq_mean_binary_kl", Some(0.05)));
    }

    /// One threshold bounds both sides of `k1`, and serves several statistics.
    #[test]
    fn a_single_threshold() {
        let two = 2_f64.ln();
        let (statistic, scope) = (Statistic::K1, RejectionScope::Token);
        let k1 = Rejection { statistic, scope, min: Some(-two), max: Some(two) };
        let (statistic, scope) = (Statistic::K3, RejectionScope::SeqMean);
        let k3 = Rejection { statistic, scope, min: None, max: Some(2.0) };
        assert_eq!(Rejection::verl("token_k1, seq_mean_k3", "2.0").unwrap(), [k1, k3]);
    }

    #[test]
    fn names_and_thresholds_that_do_not_parse_are_refused() {
        let refused = |names, thresholds| Rejection::verl(names, thresholds).unwrap_err().to_string();
        let names = [("seq_max_k1", "2.0"), ("token_k1,token_k2,token_k3", "1.5,2.0")];
        let thresholds = [("token_k1", "two"), ("token_k1", "2.0_0.5"), ("token_k3", "0.5_2.0")];
        let printed = names.iter().chain(&thresholds).map(|(names, thresholds)| refused(names, thresholds));
        insta::assert_snapshot!(printed.collect::<Vec<_>>().join("\n"), @"
        unknown rejection statistic `seq_max_k1`; known are token_k1, token_k2, token_k3, seq_sum_k1, seq_sum_k2, seq_sum_k3, seq_mean_k1, seq_mean_k2, seq_mean_k3, seq_max_k2, seq_max_k3, and tv and binary_kl like k3
        3 rejection statistics have 2 thresholds; give one for each, or one for all
        threshold `two` is no number; expected a number above 0, or two as `0.5_2.0` where the statistic has two sides
        threshold `2.0_0.5` is not in order; expected a number above 0, or two as `0.5_2.0` where the statistic has two sides
        threshold `0.5_2.0` is two-sided, but this statistic is never negative; expected a number above 0, or two as `0.5_2.0` where the statistic has two sides
        ");
        for text in ["0", "-1.0", "inf", "0_2.0", "0.5_inf"] {
            let printed = refused("token_k1", text);
            assert!(
                printed.starts_with(&format!("threshold `{text}` is out of range; expected")),
                "{printed}"
            );
        }
        assert!(refused("token_k1", "2.0_2.0").starts_with("threshold `2.0_2.0` is not in order"));
        let unbounded =
            Rejection { statistic: Statistic::K1, scope: RejectionScope::Token, min: None, max: None };
        let crossed = Rejection { min: Some(1.0), max: Some(0.0), ..unbounded };
        let printed = [unbounded, crossed].map(|rejection| rejection.check().unwrap_err().to_string());
        insta::assert_snapshot!(printed.join("\n"), @"
        rejection by `token_k1` has no bound; set `min`, `max` or both
        correction setting `rejections` has bounds 1 and 0; the lower must be below the upper
        ");
    }
}
