//! Completions of a prompt: their lengths, and whether they are correct.

use tamis_config::{Config, SimulatedLengthConfig};
use tamis_core::random::{Key, Purpose};

use crate::simulate::lognormal::Lognormal;

/// Ratio of the longest completion to the median if the user gives no median.
const LONGEST: f64 = 20.0;

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedCompletion {
    /// Length in tokens.
    pub length: u32,
    /// Whether it is right.
    pub is_correct: bool,
}

/// The distribution of completions: ln L = μ + σ (√ρ z + √(1 - ρ) ε), with z per prompt and ε per completion.
/// Wrong completions are longer by a factor.
#[derive(Debug, Clone)]
pub struct Completions {
    key: Key,
    group_size: usize,
    median: f64,
    wrong_median: f64,
    common: f64,
    own: f64,
    /// Tokens after which a completion is truncated.
    pub(crate) longest: u32,
    pub(crate) prompt: f64,
}

/// Means over the members of a prompt's group at a pass rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MeanMember {
    /// Probability that it scores as correct: correct and not truncated.
    pub(crate) rate: f64,
    /// Mean tokens of members that score as correct (`right`) and of the others (`wrong`).
    pub(crate) right: f64,
    pub(crate) wrong: f64,
    /// Mean and mean square of the tokens of all members.
    pub(crate) tokens: f64,
    pub(crate) square: f64,
}

impl Completions {
    /// Reads the distribution from a configuration.
    pub fn new(config: &Config, length: &SimulatedLengthConfig) -> Self {
        let longest = config.rollout.max_response_length as f64;
        let median = length.median.unwrap_or((longest / LONGEST).max(1.0));
        Self {
            key: Key::new(config.run.seed, Purpose::Rollout),
            group_size: config.rollout.n,
            median,
            wrong_median: median * length.wrong_factor,
            common: length.sigma * length.prompt_share.sqrt(),
            own: length.sigma * (1.0 - length.prompt_share).sqrt(),
            longest: longest.min(f64::from(u32::MAX)) as u32,
            prompt: length.prompt as f64,
        }
    }

    /// Members of a group.
    pub fn group_size(&self) -> usize {
        self.group_size
    }

    fn common_factor(&self, prompt: Key) -> f64 {
        if self.common > 0.0 { (self.common * prompt.normal(0)).exp() } else { 1.0 }
    }

    /// The distribution of a prompt's lengths, given the median over prompts.
    fn law(&self, prompt: usize, median: f64) -> Lognormal {
        let common = self.common_factor(self.key.with(prompt as u64));
        Lognormal { median: median * common, sigma: self.own }
    }

    /// Length before rounding from which a completion is truncated.
    fn cut_from(&self) -> f64 {
        f64::from(self.longest) + 0.5
    }

    /// The pass rate that a prompt's groups show if its completions are correct at `rate` and truncated ones
    /// count as wrong.
    pub fn rate_with_cuts(&self, prompt: usize, rate: f64) -> f64 {
        rate * self.law(prompt, self.median).below(self.cut_from())
    }

    /// Means over what [`Self::group`] returns, without the rounding of lengths.
    pub(crate) fn mean_member(&self, prompt: usize, rate: f64) -> MeanMember {
        let (cut, longest) = (self.cut_from(), f64::from(self.longest));
        let [right, wrong] = [self.median, self.wrong_median].map(|median| {
            let law = self.law(prompt, median);
            (law.below(cut), law.part_from_one(cut, 1), law.part_from_one(cut, 2))
        });
        let whole = |(uncut, tokens, _): (f64, f64, f64)| tokens + (1.0 - uncut) * longest;
        let square = |(uncut, _, square): (f64, f64, f64)| square + (1.0 - uncut) * longest * longest;
        let shown = rate * right.0;
        let of_wrong = rate * (1.0 - right.0) * longest + (1.0 - rate) * whole(wrong);
        MeanMember {
            rate: shown,
            right: if right.0 > 0.0 { right.1 / right.0 } else { 0.0 },
            wrong: if shown < 1.0 { of_wrong / (1.0 - shown) } else { 0.0 },
            tokens: rate * whole(right) + (1.0 - rate) * whole(wrong),
            square: rate * square(right) + (1.0 - rate) * square(wrong),
        }
    }

    /// The group of a prompt at its visit number `visit`, at pass rate `rate`.
    pub fn group(&self, prompt: usize, visit: u32, rate: f64) -> Vec<SimulatedCompletion> {
        let prompt = self.key.with(prompt as u64);
        let common = self.common_factor(prompt);
        let key = prompt.with(u64::from(visit));
        let of = |member: u64| {
            let is_correct = key.uniform(2 * member) < rate;
            let median = if is_correct { self.median } else { self.wrong_median };
            let own = if self.own > 0.0 { (self.own * key.normal(2 * member + 1)).exp() } else { 1.0 };
            let length = (median * common * own).round().max(1.0);
            let is_cut = length > f64::from(self.longest);
            // The cast saturates for enormous lengths.
            SimulatedCompletion {
                length: (length as u32).min(self.longest),
                is_correct: is_correct && !is_cut,
            }
        };
        (0..self.group_size as u64).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completions(change: impl Fn(&mut SimulatedLengthConfig)) -> Completions {
        let mut config = Config::default();
        config.rollout.max_response_length = 4000;
        config.rollout.n = 16;
        let mut length = SimulatedLengthConfig {
            median: Some(200.0),
            prompt_share: 0.5,
            ..SimulatedLengthConfig::default()
        };
        change(&mut length);
        Completions::new(&config, &length)
    }

    /// Mean and standard deviation of ln L, and the correlation between two members of a group.
    fn moments(of: &Completions) -> (f64, f64, f64) {
        let pairs: Vec<(f64, f64)> = (0..20_000)
            .map(|prompt| {
                let group = of.group(prompt, 0, 0.5);
                (f64::from(group[0].length).ln(), f64::from(group[1].length).ln())
            })
            .collect();
        let n = pairs.len() as f64;
        let mean = pairs.iter().map(|pair| pair.0).sum::<f64>() / n;
        let variance = pairs.iter().map(|pair| (pair.0 - mean).powi(2)).sum::<f64>() / n;
        let covariance = pairs.iter().map(|pair| (pair.0 - mean) * (pair.1 - mean)).sum::<f64>() / n;
        (mean, variance.sqrt(), covariance / variance)
    }

    #[test]
    fn lengths_have_the_moments_that_were_asked_for() {
        let (mean, deviation, correlation) = moments(&completions(|_| {}));
        assert!((mean - 200.0_f64.ln()).abs() < 0.03, "{mean}");
        // Slightly less than 1.5, because the longest completions are truncated.
        assert!(
            (deviation - 1.0).abs() < 0.03 && (correlation - 0.5).abs() < 0.03,
            "{deviation} {correlation}"
        );
    }

    #[test]
    fn what_is_cut_is_wrong_and_what_is_wrong_may_be_longer() {
        let group = completions(|length| length.median = Some(1e6)).group(0, 0, 1.0);
        assert!(group.iter().all(|member| member.length == 4000 && !member.is_correct), "{group:?}");
        let of = completions(|length| (length.sigma, length.wrong_factor) = (0.0, 3.0));
        let lengths: Vec<u32> = [1.0, 0.0].map(|rate| of.group(0, 0, rate)[0].length).to_vec();
        assert_eq!(lengths, [200, 600]);
        // The same visit gives the same group, and another visit another group.
        let of = completions(|_| {});
        assert_eq!(of.group(5, 1, 0.5), of.group(5, 1, 0.5));
        assert_ne!(of.group(5, 1, 0.5), of.group(5, 2, 0.5));
    }

    #[test]
    fn a_mean_member_is_the_mean_of_many() {
        for (median, share, factor) in [(200.0, 0.0, 1.0), (1500.0, 0.5, 2.0), (2.0, 0.3, 1.0)] {
            let of = completions(|length| {
                (length.median, length.prompt_share, length.wrong_factor) = (Some(median), share, factor);
            });
            let mut found = [0.0; 5];
            let mut expected = [0.0; 5];
            for prompt in 0..40 {
                let member = of.mean_member(prompt, 0.7);
                assert_eq!(member.rate.to_bits(), of.rate_with_cuts(prompt, 0.7).to_bits());
                let group: Vec<SimulatedCompletion> =
                    (0..200).flat_map(|visit| of.group(prompt, visit, 0.7)).collect();
                for one in &group {
                    let tokens = f64::from(one.length);
                    let right = f64::from(u8::from(one.is_correct));
                    let parts = [right, right * tokens, (1.0 - right) * tokens, tokens, tokens * tokens];
                    for (sum, part) in found.iter_mut().zip(parts) {
                        *sum += part / group.len() as f64 / 40.0;
                    }
                }
                let MeanMember { rate, right, wrong, tokens, square } = member;
                let parts = [rate, rate * right, (1.0 - rate) * wrong, tokens, square];
                for (sum, part) in expected.iter_mut().zip(parts) {
                    *sum += part / 40.0;
                }
            }
            for (found, expected) in found.iter().zip(&expected) {
                // At two tokens rounding matters.
                let tolerance = if median > 10.0 { 0.04 } else { 0.06 };
                assert!((found / expected - 1.0).abs() < tolerance, "{median}: {found} and {expected}");
            }
        }
    }
}
