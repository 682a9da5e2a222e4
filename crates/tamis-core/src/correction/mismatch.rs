//! Divergence of the sampler from the policy: divergence, perplexities, chi-squared.

use super::SamplerColumns;
use super::spread::Spread;
use crate::objective::Real;

/// Measures over the unmasked tokens whose behaviour log-probability is known; NaN if there are none.
///
/// Source: verl `compute_offpolicy_metrics` (`rollout_corr/*`); TRL `sampling/sampling_logp_difference/*`.
/// Perplexities are means over trajectories of `exp(-mean log-probability)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mismatch {
    /// Unmasked tokens.
    pub tokens: usize,
    /// Number of those whose behaviour log-probability is unknown.
    pub unknown: usize,
    /// Mean of `behaviour - old`: the k1 estimate of the divergence of the sampler from the policy.
    pub kl: f64,
    /// Mean of `exp(d) - 1 - d`: its k3 estimate.
    pub k3_kl: f64,
    /// Perplexity of the policy.
    pub policy_ppl: f64,
    /// Mean negative log-probability under the policy, trajectory by trajectory.
    pub policy_log_ppl: f64,
    /// Perplexity of the sampler.
    pub behaviour_ppl: f64,
    /// Mean negative log-probability under the sampler.
    pub behaviour_log_ppl: f64,
    /// Mean over trajectories of the difference of log-perplexities, policy minus sampler.
    pub log_ppl_diff: f64,
    /// Mean of its absolute value.
    pub log_ppl_abs_diff: f64,
    /// Largest.
    pub log_ppl_diff_max: f64,
    /// Smallest.
    pub log_ppl_diff_min: f64,
    /// Mean over trajectories of policy over sampler perplexity.
    pub ppl_ratio: f64,
    /// Chi-squared divergence by tokens, `E[r²] - 1`.
    pub chi2_token: f64,
    /// The same by trajectories, of the product of their ratios.
    pub chi2_seq: f64,
    /// Mean of `|d|`.
    pub difference_mean: f64,
    /// Largest `|d|`.
    pub difference_max: f64,
}

impl Mismatch {
    /// From columns that have been checked; ratios are limited to `exp(±limit)`.
    pub(super) fn of<T: Real>(columns: &SamplerColumns<'_, T>, limit: f64, count_masked: bool) -> Self {
        let (mut tokens, mut unknown) = (0_usize, 0_usize);
        let [mut gap, mut k3, mut squares, mut sizes] = [0.0; 4];
        let mut difference_max = f64::NAN;
        let [mut policy_ppl, mut policy_log_ppl, mut behaviour_ppl, mut behaviour_log_ppl] = [0.0; 4];
        let [mut abs_diff, mut ratio, mut sequence_squares] = [0.0; 3];
        let mut diff = Spread::around(0.0);
        for row in columns.rows() {
            let (mut known, mut on) = (0_usize, 0_usize);
            let (mut policy, mut behaviour, mut total) = (0.0, 0.0, 0.0);
            for token in row.tokens() {
                on += 1;
                if !token.known {
                    continue;
                }
                known += 1;
                let log_ratio = token.log_ratio();
                policy += token.old;
                behaviour += token.behaviour;
                total += log_ratio;
                gap -= log_ratio;
                k3 += log_ratio.exp_m1() - log_ratio;
                squares += (2.0 * log_ratio.clamp(-limit, limit)).exp();
                sizes += log_ratio.abs();
                difference_max = log_ratio.abs().max(difference_max);
            }
            tokens += on;
            unknown += on - known;
            if known == 0 && !(on == 0 && count_masked) {
                continue;
            }
            let length = known.max(1) as f64;
            let (policy, behaviour) = (policy / length, behaviour / length);
            policy_ppl += (-policy).exp();
            policy_log_ppl -= policy;
            behaviour_ppl += (-behaviour).exp();
            behaviour_log_ppl -= behaviour;
            let difference = behaviour - policy;
            diff.add(difference);
            abs_diff += difference.abs();
            ratio += difference.exp();
            sequence_squares += (2.0 * total.clamp(-limit, limit)).exp();
        }
        let known = (tokens - unknown) as f64;
        let sequences = diff.count();
        let (log_ppl_diff_min, log_ppl_diff_max) = diff.extremes();
        Self {
            tokens,
            unknown,
            kl: gap / known,
            k3_kl: k3 / known,
            policy_ppl: policy_ppl / sequences,
            policy_log_ppl: policy_log_ppl / sequences,
            behaviour_ppl: behaviour_ppl / sequences,
            behaviour_log_ppl: behaviour_log_ppl / sequences,
            log_ppl_diff: diff.mean(),
            log_ppl_abs_diff: abs_diff / sequences,
            log_ppl_diff_max,
            log_ppl_diff_min,
            ppl_ratio: ratio / sequences,
            chi2_token: squares / known - 1.0,
            chi2_seq: sequence_squares / sequences - 1.0,
            difference_mean: sizes / known,
            difference_max,
        }
    }

    /// Names as logged: verl's if it has one, together with TRL's.
    pub fn to_pairs(&self) -> [(&'static str, f64); 16] {
        [
            ("rollout_corr/unknown_fraction", self.unknown as f64 / self.tokens as f64),
            ("rollout_corr/kl", self.kl),
            ("rollout_corr/k3_kl", self.k3_kl),
            ("rollout_corr/training_ppl", self.policy_ppl),
            ("rollout_corr/training_log_ppl", self.policy_log_ppl),
            ("rollout_corr/rollout_ppl", self.behaviour_ppl),
            ("rollout_corr/rollout_log_ppl", self.behaviour_log_ppl),
            ("rollout_corr/log_ppl_diff", self.log_ppl_diff),
            ("rollout_corr/log_ppl_abs_diff", self.log_ppl_abs_diff),
            ("rollout_corr/log_ppl_diff_max", self.log_ppl_diff_max),
            ("rollout_corr/log_ppl_diff_min", self.log_ppl_diff_min),
            ("rollout_corr/ppl_ratio", self.ppl_ratio),
            ("rollout_corr/chi2_token", self.chi2_token),
            ("rollout_corr/chi2_seq", self.chi2_seq),
            ("sampling/sampling_logp_difference/mean", self.difference_mean),
            ("sampling/sampling_logp_difference/max", self.difference_max),
        ]
    }
}

#[cfg(test)]
mod tests {
    use tamis_golden::assert_close;

    use super::*;

    #[test]
    fn measures_by_hand() {
        // d: ln 2 and unknown; then -ln 2.
        let (old, behaviour) = ([0.5_f64.ln(), -3.0, 0.25_f64.ln()], [0.25_f64.ln(), f64::NAN, 0.5_f64.ln()]);
        let columns =
            SamplerColumns { offsets: &[0, 2, 3], mask: &[true; 3], old: &old, behaviour: &behaviour };
        let found = Mismatch::of(&columns, 20.0, false);
        assert_eq!((found.tokens, found.unknown), (3, 1));
        // k3: 2 - 1 - ln 2 and 1/2 - 1 + ln 2, so 1/2 in sum.
        assert_close("KL", &[found.kl, found.k3_kl], &[0.0, 0.25], 0.0, 1e-15);
        // Perplexities 2 and 4 of the policy, 4 and 2 of the sampler.
        let ppl = [found.policy_ppl, found.behaviour_ppl, found.ppl_ratio, found.chi2_token];
        assert_close("perplexities", &ppl, &[3.0, 3.0, 1.25, 1.125], 0.0, 1e-15);
        assert_close("ln 2", &[found.log_ppl_diff_max, found.difference_mean], &[2_f64.ln(); 2], 0.0, 1e-15);
    }

    /// One trajectory has known tokens, the sampler reported nothing for another, and one is fully masked.
    #[test]
    fn trajectories_that_say_nothing() {
        let half = 0.5_f64.ln();
        let columns = SamplerColumns {
            offsets: &[0, 1, 2, 3],
            mask: &[true, true, false],
            old: &[half, half, half],
            behaviour: &[2.0 * half, f64::NAN, half],
        };
        let found = Mismatch::of(&columns, 20.0, false);
        assert!((found.policy_ppl - 2.0).abs() < 1e-15 && (found.behaviour_ppl - 4.0).abs() < 1e-14);
        assert_eq!(found.to_pairs()[0], ("rollout_corr/unknown_fraction", 0.5));
        // If requested, the masked one counts as log-probability 0; the unknown one never does.
        let counted = Mismatch::of(&columns, 20.0, true);
        assert!((counted.policy_ppl - 1.5).abs() < 1e-15 && (counted.behaviour_ppl - 2.5).abs() < 1e-14);
    }

    #[test]
    fn of_nothing_there_is_no_mean() {
        let columns = SamplerColumns::<f64> { offsets: &[0], mask: &[], old: &[], behaviour: &[] };
        let found = Mismatch::of(&columns, 20.0, false);
        assert!(found.to_pairs().iter().all(|(_, value)| value.is_nan()), "{found:?}");
    }
}
