//! Selection by the probability that a prompt's next group is mixed, under a Beta posterior of its pass rate.

use serde::{Deserialize, Serialize};

use super::{InclusionWeights, PromptHistory, PromptSelection};
use crate::group::PolicyVersion;
use crate::random::Key;
use crate::settings;

settings! {
    /// Takes a prompt with a probability proportional to that of a mixed next group.
    /// A prompt's pass rate is Beta(a, b): the prior over all prompts, plus the results of its own groups,
    /// which fade with their age. Its next group of n is mixed with probability
    /// `K(a, b) = 1 - B(a + n, b) / B(a, b) - B(a, b + n) / B(a, b)`, and it is taken with probability
    /// `q = clip(K / (reference K*), floor, 1)`. `K* = 1 - 2^(1 - n)` is the greatest possible K, that of a
    /// prompt that is solved half of the time. A prompt without history has the K of the prior. Weighted by
    /// 1/q, kept groups are distributed as without selection. If a group begins with some of its members, n
    /// is their number: they are the ones that must differ.
    /// Source: the Beta-binomial distribution; the floor and the weights are those of Horvitz and Thompson,
    /// "A generalization of sampling without replacement from a finite universe", 1952.
    #[derive(Copy)]
    pub struct Posterior {
        /// Probability of a mixed group from which on a prompt is always taken, as a share of the greatest
        /// possible: 1 - 2^(1 - n), for a prompt that is solved half of the time.
        reference: f64 = 0.7, Between(0.001, 1.0);
        /// Least probability with which a prompt is taken. No prompt is forgotten, and no weight exceeds its
        /// inverse.
        floor: f64 = 0.05, Between(0.001, 1.0);
        /// Factor by which earlier results fade with each policy version.
        memory: f64 = 0.995, Between(0.0, 1.0);
        /// How the loss uses the probability with which a prompt was taken.
        correction: InclusionWeights = InclusionWeights::Corrected;
    }
}

/// B(a + n, b) / B(a, b): the probability that n of n members are correct.
fn all_correct(a: f64, b: f64, n: u32) -> f64 {
    (0..n).map(|j| (a + f64::from(j)) / (a + b + f64::from(j))).product()
}

/// The greatest probability that a group of n is mixed, reached at a pass rate of one half.
fn greatest_mixed(n: u32) -> f64 {
    if n < 2 { 0.0 } else { 1.0 - 0.5_f64.powf(f64::from(n - 1)) }
}

impl Posterior {
    /// Probability that a group of n is mixed if the pass rate is Beta(a, b). Zero for n below 2.
    ///
    /// ```
    /// use tamis_core::schedule::selector::Posterior;
    /// // Uniform pass rates: 1 - 2/(n + 1).
    /// assert!((Posterior::mixed(1.0, 1.0, 8) - 7.0 / 9.0).abs() < 1e-15);
    /// ```
    pub fn mixed(a: f64, b: f64, n: u32) -> f64 {
        if n < 2 { 0.0 } else { (1.0 - all_correct(a, b, n) - all_correct(b, a, n)).max(0.0) }
    }

    /// Probability that the next group of n of a prompt is mixed.
    pub fn keep_probability(
        &self,
        prior: &PassRatePrior,
        history: Option<&PromptHistory>,
        version: PolicyVersion,
        n: u32,
    ) -> f64 {
        let Beta { a, b } = prior.after(history, version, self.memory);
        Self::mixed(a, b, n)
    }

    /// Whether a prompt is taken; `key` is the key of the draw. For n below 2 no group is mixed: the prompt
    /// is then taken with the least probability.
    pub fn select(
        &self,
        prior: &PassRatePrior,
        history: Option<&PromptHistory>,
        version: PolicyVersion,
        n: u32,
        key: Key,
    ) -> PromptSelection {
        let keep = self.keep_probability(prior, history, version, n);
        let most = greatest_mixed(n);
        let inclusion = if most > 0.0 { keep / (self.reference * most) } else { 0.0 };
        let inclusion = inclusion.clamp(self.floor, 1.0);
        PromptSelection::with_probability(inclusion, key.uniform(0))
    }
}

/// Parameters of a Beta distribution of pass rates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beta {
    /// Pseudo-count of correct members.
    pub a: f64,
    /// Pseudo-count of wrong members.
    pub b: f64,
}

impl Beta {
    /// The mean pass rate.
    pub fn mean(self) -> f64 {
        self.a / (self.a + self.b)
    }
}

/// The Beta distribution of pass rates over prompts, fitted by its first two moments to the groups seen. Each
/// group is weighted by the inverse of the probability with which its prompt was taken. With c correct of n,
/// c/n is an unbiased estimate of the mean and c(c - 1)/(n(n - 1)) of the mean square, as long as the n
/// members were begun whatever the results of the others.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassRatePrior {
    weight: f64,
    mean: f64,
    square: f64,
}

/// Factor of the fit's weight with each further group: some thousand groups count.
pub(super) const PRIOR_MEMORY: f64 = 0.9998;

/// Weight with which the fit begins, in groups with uniformly distributed pass rates.
const UNIFORM_GROUPS: f64 = 16.0;

impl PassRatePrior {
    /// Adds a group by the members with which it was begun and the probability with which its prompt was
    /// taken. Earlier groups then count `memory` times as much as before.
    pub fn observe(&mut self, num_correct: u32, num_scored: u32, inclusion: f64, memory: f64) {
        if num_scored < 2 {
            return;
        }
        let (c, n, weight) = (f64::from(num_correct), f64::from(num_scored), 1.0 / inclusion);
        self.weight = memory * self.weight + weight;
        self.mean = memory * self.mean + weight * c / n;
        self.square = memory * self.square + weight * c * (c - 1.0) / (n * (n - 1.0));
    }

    /// The distribution of one prompt's pass rate, given the results of its own groups.
    pub fn after(&self, history: Option<&PromptHistory>, version: PolicyVersion, memory: f64) -> Beta {
        let Beta { a, b } = self.parameters();
        let seen = history.map(|history| history.faded(version, memory)).unwrap_or_default();
        Beta { a: a + seen.correct, b: b + seen.wrong }
    }

    /// a and b, each at least 0.02 and at most 100 in sum.
    pub fn parameters(&self) -> Beta {
        let total = self.weight + UNIFORM_GROUPS;
        let mean = ((self.mean + UNIFORM_GROUPS / 2.0) / total).clamp(1e-3, 1.0 - 1e-3);
        let square = (self.square + UNIFORM_GROUPS / 3.0) / total;
        let variance = (square - mean * mean).clamp(1e-6, mean * (1.0 - mean) * (1.0 - 1e-3));
        let strength = (mean * (1.0 - mean) / variance - 1.0).clamp(0.04, 100.0);
        Beta { a: (mean * strength).max(0.02), b: ((1.0 - mean) * strength).max(0.02) }
    }
}
