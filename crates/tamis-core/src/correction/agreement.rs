//! Agreement of a sampler with the policy, token by token: whether a server and the learner run the same
//! model.

use super::spread::Spread;

/// Measures over the tokens of a batch, from the sampler's and the policy's log-probability of each token.
///
/// Source: verl `calculate_debug_metrics` (`training/rollout_probs_diff_*`, over probabilities), TRL
/// `sampling/sampling_logp_difference/*` (over log-probabilities).
///
/// ```
/// use tamis_core::correction::Agreement;
/// let half = 0.5_f64.ln();
/// let found = Agreement::of(&[(half, half), (0.25_f64.ln(), half)]).unwrap();
/// assert_eq!((found.prob_difference_max, found.prob_difference_mean), (0.25, 0.125));
/// assert!((found.logprob_difference_max - 2_f64.ln()).abs() < 1e-15);
/// assert_eq!(Agreement::of(&[]), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreement {
    /// Largest `|p - q|` of the probabilities of a sampled token.
    pub prob_difference_max: f64,
    /// Its mean.
    pub prob_difference_mean: f64,
    /// Standard deviation of the difference of probabilities (ddof 1); NaN for one token.
    pub prob_difference_std: f64,
    /// Pearson's correlation of the two probabilities; NaN if one of them is the same everywhere.
    pub prob_correlation: f64,
    /// Largest `|log p - log q|`, in nats.
    pub logprob_difference_max: f64,
    /// Its mean.
    pub logprob_difference_mean: f64,
}

impl Agreement {
    /// From tokens (sampler, policy), in nats; `None` without tokens. A log-probability that is not a number
    /// makes every measure NaN.
    pub fn of(tokens: &[(f64, f64)]) -> Option<Self> {
        let (mut probs, mut logprobs) = (Spread::around(0.0), Spread::around(0.0));
        let [mut sampler_mean, mut policy_mean] = [0.0; 2];
        for (sampler, policy) in tokens {
            logprobs.add((sampler - policy).abs());
            probs.add((sampler.exp() - policy.exp()).abs());
            sampler_mean += sampler.exp();
            policy_mean += policy.exp();
        }
        let count = probs.count();
        if count < 1.0 {
            return None;
        }
        (sampler_mean, policy_mean) = (sampler_mean / count, policy_mean / count);
        let [mut both, mut of_sampler, mut of_policy] = [0.0; 3];
        for (sampler, policy) in tokens {
            let (sampler, policy) = (sampler.exp() - sampler_mean, policy.exp() - policy_mean);
            both += sampler * policy;
            of_sampler += sampler * sampler;
            of_policy += policy * policy;
        }
        Some(Self {
            prob_difference_max: probs.extremes().1,
            prob_difference_mean: probs.mean(),
            prob_difference_std: probs.deviation(1.0),
            prob_correlation: both / (of_sampler * of_policy).sqrt(),
            logprob_difference_max: logprobs.extremes().1,
            logprob_difference_mean: logprobs.mean(),
        })
    }

    /// Names as logged: verl's, together with TRL's.
    pub fn to_pairs(&self) -> [(&'static str, f64); 7] {
        [
            ("training/rollout_probs_diff_valid", 1.0),
            ("training/rollout_probs_diff_max", self.prob_difference_max),
            ("training/rollout_probs_diff_mean", self.prob_difference_mean),
            ("training/rollout_probs_diff_std", self.prob_difference_std),
            ("training/rollout_actor_probs_pearson_corr", self.prob_correlation),
            ("sampling/sampling_logp_difference/max", self.logprob_difference_max),
            ("sampling/sampling_logp_difference/mean", self.logprob_difference_mean),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_by_hand() {
        // Probabilities (0.5, 0.5), (0.25, 0.5), (0.5, 0.25): differences 0, 1/4, 1/4.
        let tokens = [(0.5_f64, 0.5_f64), (0.25, 0.5), (0.5, 0.25)].map(|(p, q)| (p.ln(), q.ln()));
        let found = Agreement::of(&tokens).expect("tokens");
        assert!((found.prob_difference_mean - 1.0 / 6.0).abs() < 1e-15);
        // Squares of the deviations: 1/36, 1/144, 1/144; in sum 1/24, over 2.
        assert!((found.prob_difference_std - (1.0_f64 / 48.0).sqrt()).abs() < 1e-15);
        // Deviations from 5/12 are 1/12, -2/12, 1/12 and 1/12, 1/12, -2/12: -3/144 over 6/144.
        assert!((found.prob_correlation + 0.5).abs() < 1e-12);
        assert!((found.logprob_difference_mean - 2.0 / 3.0 * 2_f64.ln()).abs() < 1e-15);
        assert!(found.to_pairs().iter().all(|(_, value)| value.is_finite()));
    }

    #[test]
    fn one_token_and_one_that_is_no_number() {
        let found = Agreement::of(&[(-1.0, -1.0)]).expect("a token");
        assert_eq!((found.prob_difference_max, found.logprob_difference_max), (0.0, 0.0));
        assert!(found.prob_difference_std.is_nan() && found.prob_correlation.is_nan());
        let found = Agreement::of(&[(f64::NAN, -1.0), (-1.0, -1.0)]).expect("tokens");
        assert!(found.to_pairs()[1..].iter().all(|(_, value)| value.is_nan()), "{found:?}");
    }
}
