//! Completions of a prompt: how long they are, and whether they are right.

use tamis_config::{Config, SimulatedLengthConfig};
use tamis_core::random::{Key, Purpose};

/// Where nobody says it, the longest completion is so many times the median.
const LONGEST: f64 = 20.0;

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Tokens.
    pub length: u32,
    /// Whether it is right.
    pub is_correct: bool,
}

/// The law that completions follow: ln L = μ + σ (√ρ z + √(1 - ρ) ε), with z of the prompt and ε of the completion,
/// and longer by a factor where it is wrong.
#[derive(Debug, Clone)]
pub struct Completions {
    key: Key,
    group_size: usize,
    median: f64,
    wrong_median: f64,
    common: f64,
    own: f64,
    longest: u32,
    /// Tokens of a prompt.
    pub(crate) prompt: f64,
}

impl Completions {
    /// Of a configuration.
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

    /// n.
    pub fn group_size(&self) -> usize {
        self.group_size
    }

    /// The group of a prompt at a visit, where its pass rate is that.
    pub fn group(&self, prompt: usize, visit: u32, rate: f64) -> Vec<Completion> {
        let prompt = self.key.with(prompt as u64);
        let common = if self.common > 0.0 { (self.common * prompt.normal(0)).exp() } else { 1.0 };
        let key = prompt.with(u64::from(visit));
        let of = |member: u64| {
            let is_correct = key.uniform(2 * member) < rate;
            let median = if is_correct { self.median } else { self.wrong_median };
            let own = if self.own > 0.0 { (self.own * key.normal(2 * member + 1)).exp() } else { 1.0 };
            let length = (median * common * own).round().max(1.0);
            let is_cut = length > f64::from(self.longest);
            // Saturates where it is beyond all bounds.
            Completion { length: (length as u32).min(self.longest), is_correct: is_correct && !is_cut }
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
        let mut length = SimulatedLengthConfig {
            median: Some(200.0),
            sigma: 1.0,
            prompt_share: 0.5,
            wrong_factor: 1.0,
            prompt: 0,
        };
        change(&mut length);
        Completions::new(&config, &length)
    }

    /// Mean and deviation of ln L, and the correlation of two members of a group.
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
        // A little less than 1 and a half: the longest are cut.
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
        // The same visit is the same group, another one is another.
        let of = completions(|_| {});
        assert_eq!(of.group(5, 1, 0.5), of.group(5, 1, 0.5));
        assert_ne!(of.group(5, 1, 0.5), of.group(5, 2, 0.5));
    }
}
