//! Keep probabilities, and the number of rounds that follows from them.
//!
//! A prompt that the policy solves with probability p gives n samples that are neither all correct nor all
//! wrong with probability 1 − pⁿ − (1 − p)ⁿ. Prompts differ in p, and the mean of the keep probability is not
//! the keep probability of the mean: if every prompt is either trivial or hopeless, nothing is kept although
//! the pass rate is one half. The spread of p is therefore estimated as well, as a Beta distribution over
//! prompts, and the keep probability is the mean over it.
//!
//! The spread also shows whether it pays to begin groups with only some of their members ([`Screening`]).

use serde::{Deserialize, Serialize};

use super::Tally;

/// 1 − pⁿ − (1 − p)ⁿ: the probability that n samples of a prompt with pass rate p have contrast.
///
/// 0 for n ≤ 1 and for p of 0 or 1; `p` outside \[0, 1\] is clamped.
///
/// ```
/// use tamis_core::schedule::yields::keep_probability;
/// assert_eq!(keep_probability(0.5, 8), 1.0 - 2.0 / 256.0);
/// assert_eq!(keep_probability(0.3, 1), 0.0);
/// ```
pub fn keep_probability(p: f64, n: usize) -> f64 {
    if n <= 1 {
        return 0.0;
    }
    let p = p.clamp(0.0, 1.0);
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    1.0 - p.powi(n) - (1.0 - p).powi(n)
}

/// The limit on rounds that is usual with verl's filter groups, by pass rate. `None` above 80 %: filtering is
/// not advised there.
///
/// | pass rate | limit |
/// |---|---|
/// | below 20 % | 15 to 25 |
/// | 20 to 40 % | 10 to 15 |
/// | 40 to 60 % | 5 to 10 |
/// | 60 to 80 % | 3 to 5 |
pub fn limit_for_pass_rate(pass_rate: f64) -> Option<(u64, u64)> {
    match pass_rate {
        p if p < 0.2 => Some((15, 25)),
        p if p < 0.4 => Some((10, 15)),
        p if p < 0.6 => Some((5, 10)),
        p if p <= 0.8 => Some((3, 5)),
        _ => None,
    }
}

/// Distribution of pass rates over prompts: a Beta distribution, or one of its limits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassRateSpread {
    /// Every prompt has this pass rate.
    Equal(f64),
    /// Beta(a, b).
    Beta {
        /// Pseudo-count of correct samples.
        a: f64,
        /// Pseudo-count of wrong samples.
        b: f64,
    },
    /// This share of the prompts is always solved, and the others never: no n gives contrast.
    Split(f64),
}

impl PassRateSpread {
    /// Fits the groups of a tally by moments: the mean of c/k and of c(c − 1)/(k(k − 1)), which are unbiased
    /// for E\[p\] and E\[p²\] at any group size. `None` if no group has two members with an outcome.
    pub fn fit(tally: &Tally) -> Option<Self> {
        if tally.paired_groups == 0 {
            return None;
        }
        let groups = tally.paired_groups as f64;
        let mean = tally.pass_rates / groups;
        let spread = mean * (1.0 - mean);
        let variance = tally.pairs_correct / groups - mean * mean;
        if spread <= 0.0 || variance <= spread * 1e-9 {
            return Some(Self::Equal(mean));
        }
        // Var = mean (1 − mean) / (a + b + 1).
        let total = spread / variance - 1.0;
        if total <= 1e-9 {
            return Some(Self::Split(mean));
        }
        Some(Self::Beta { a: mean * total, b: (1.0 - mean) * total })
    }

    /// The mean over prompts of [`keep_probability`]: for Beta(a, b), with (x)ₙ the rising factorial, 1 −
    /// ((a)ₙ + (b)ₙ)/(a + b)ₙ.
    pub fn keep_probability(&self, n: usize) -> f64 {
        match *self {
            Self::Equal(p) => keep_probability(p, n),
            Self::Split(_) => 0.0,
            Self::Beta { .. } if n <= 1 => 0.0,
            Self::Beta { a, b } => {
                let (mut all_correct, mut all_wrong) = (1.0, 1.0);
                for i in 0..n {
                    let i = i as f64;
                    all_correct *= (a + i) / (a + b + i);
                    all_wrong *= (b + i) / (a + b + i);
                }
                1.0 - all_correct - all_wrong
            }
        }
    }

    /// The smallest of `n · 2, n · 4, ...` up to `most` that keeps at least `keep` of the groups.
    pub fn group_size_for(&self, keep: f64, n: usize, most: usize) -> Option<usize> {
        std::iter::successors(n.checked_mul(2), |size| size.checked_mul(2))
            .take_while(|size| *size <= most)
            .find(|size| self.keep_probability(*size) >= keep)
    }
}

/// Groups generated per kept group, in members over n, if groups of n begin with `first` members and continue
/// only when these differ: (n − n₀ + n₀ / k(n₀)) / n. `keep` = k(n₀) is the share of prompts whose first n₀
/// members differ. With n₀ = n the groups are begun whole, which gives 1 / k(n).
///
/// `None` if nothing is kept, or if n₀ is 0 or above n.
///
/// ```
/// use tamis_core::schedule::yields::generated_per_kept;
/// // Uniform pass rates: k(4) = 3/5.
/// assert_eq!(generated_per_kept(8, 4, 0.6), Some((4.0 + 4.0 / 0.6) / 8.0));
/// assert_eq!(generated_per_kept(8, 8, 0.75), Some(4.0 / 3.0));
/// ```
pub fn generated_per_kept(n: usize, first: usize, keep: f64) -> Option<f64> {
    let (all, begun) = (n as f64, first as f64);
    (keep > 0.0 && (1..=n).contains(&first)).then(|| ((all - begun) + begun / keep) / all)
}

/// Cost of groups that begin with some of their members, compared with whole groups.
/// A group whose first members are alike costs n₀ members instead of n. But fewer groups are kept: a group is
/// lost if its first members are alike and later ones would have differed. Which effect is larger depends on
/// how much pass rates vary between prompts, not on how many groups are kept. If most prompts are always or
/// never solved, few groups are lost. If all prompts have the same pass rate, every n₀ costs more, however
/// few groups are kept: at a rate of 0.05 a third of the groups of 8 is kept, which takes 2.97 generated
/// groups per kept one, and 3.20 with 4 first members.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Screening {
    /// n₀, the members with which a group begins.
    pub first: usize,
    /// Groups generated per kept group with screening, in members over n.
    pub cost: f64,
    /// The same for whole groups.
    pub whole: f64,
}

impl Screening {
    /// Share of the cost that screening must save to pay: a group then takes two waves of generation instead
    /// of one, and hard and easy prompts are trained on less often.
    pub const LEAST_SAVED: f64 = 0.05;

    /// Cost with `first` first members, from 2 to n - 1. `keep` gives the share of prompts of which so many
    /// members differ. `None` if that is not known or nothing is kept.
    pub fn with(n: usize, first: usize, keep: impl Fn(usize) -> Option<f64>) -> Option<Self> {
        if first < 2 || first >= n {
            return None;
        }
        let cost = generated_per_kept(n, first, keep(first)?)?;
        Some(Self { first, cost, whole: generated_per_kept(n, n, keep(n)?)? })
    }

    /// Cost with the cheapest number of first members whose keep rate is known; the smallest of equally cheap
    /// ones.
    ///
    /// ```
    /// use tamis_core::schedule::yields::{PassRateSpread, Screening};
    /// let unlike = PassRateSpread::Beta { a: 0.1, b: 0.1 };
    /// let best = Screening::best(8, |m| Some(unlike.keep_probability(m))).unwrap();
    /// assert_eq!((best.first, best.pays()), (3, true));
    /// let alike = PassRateSpread::Equal(0.05);
    /// assert!(!Screening::best(8, |m| Some(alike.keep_probability(m))).unwrap().pays());
    /// ```
    pub fn best(n: usize, keep: impl Fn(usize) -> Option<f64>) -> Option<Self> {
        let all = (2..n).filter_map(|first| Self::with(n, first, &keep));
        all.reduce(|best, other| if other.cost < best.cost { other } else { best })
    }

    /// Whether it saves enough ([`Screening::LEAST_SAVED`]).
    pub fn pays(&self) -> bool {
        self.cost <= self.whole * (1.0 - Self::LEAST_SAVED)
    }
}

/// Number of prompts that give `deficit` kept groups with a margin of `margin` standard deviations: (d + z
/// √(d (1 - k))) / k.
///
/// ```
/// use tamis_core::schedule::yields::prompts_for;
/// assert_eq!((prompts_for(8, 0.5, 0.0), prompts_for(8, 0.5, 1.0)), (16.0, 20.0));
/// ```
pub fn prompts_for(deficit: usize, keep: f64, margin: f64) -> f64 {
    let deficit = deficit as f64;
    (deficit + margin * (deficit * (1.0 - keep)).sqrt()) / keep
}

/// Average number of rounds of `gen_batch_size` that fill a batch at this keep rate: ⌈train / (gen · keep)⌉.
/// `None` if nothing is kept.
///
/// ```
/// use tamis_core::schedule::yields::expected_rounds;
/// assert_eq!(expected_rounds(1024, 1024, 0.41), Some(3));
/// assert_eq!(expected_rounds(512, 1536, 1.0 / 3.0), Some(1));
/// ```
pub fn expected_rounds(train_batch_size: usize, gen_batch_size: usize, keep: f64) -> Option<u64> {
    let kept = gen_batch_size as f64 * keep;
    (kept > 0.0).then(|| (train_batch_size as f64 / kept - 1e-9).ceil().max(1.0) as u64)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;
    use crate::filter::{GroupStatistics, OutcomeScale, Variance};
    use crate::random::{Key, Purpose};
    use crate::schedule::{GroupFacts, GroupSummary};

    /// A tally of groups of n with pass rates drawn by `rate`.
    fn sampled(groups: u64, n: usize, rate: impl Fn(Key, u64) -> f64) -> Tally {
        let key = Key::new(5, Purpose::Bootstrap);
        let mut tally = Tally::default();
        for i in 0..groups {
            let p = rate(key, i);
            let values: Vec<f64> =
                (0..n as u64).map(|j| f64::from(u8::from(key.with(i).uniform(j) < p))).collect();
            let scale = Some(OutcomeScale::default());
            let statistics = GroupStatistics::of(&values, scale);
            let verdict = Variance::default().judge_one(&statistics, scale);
            tally.add_judged(verdict, &GroupSummary::of(&statistics, GroupFacts::default()));
        }
        tally
    }

    #[test]
    fn a_fit_at_one_group_size_predicts_another() {
        // p = u² has mean 1/3 and E[p²] = 1/5: a spread that the homogeneous formula gets wrong.
        let rate = |key: Key, i: u64| key.uniform(i).powi(2);
        let (small, large) = (sampled(20_000, 4, rate), sampled(20_000, 16, rate));
        let fit = PassRateSpread::fit(&small).unwrap();
        let predicted = fit.keep_probability(16);
        let seen = large.keep_rate().unwrap();
        assert!((predicted - seen).abs() < 0.02, "{predicted} {seen}");
        assert!((keep_probability(small.pass_rate().unwrap(), 16) - seen).abs() > 0.15);
        // At its own size the fit gives back the observed value.
        assert!((fit.keep_probability(4) - small.keep_rate().unwrap()).abs() < 0.02);
    }

    #[test]
    fn limits_of_the_fit() {
        let none = sampled(100, 8, |_, _| 0.0);
        assert_eq!(PassRateSpread::fit(&none), Some(PassRateSpread::Equal(0.0)));
        let split = sampled(1000, 8, |_, i| f64::from(u8::from(i % 4 == 0)));
        assert_eq!(PassRateSpread::fit(&split), Some(PassRateSpread::Split(0.25)));
        assert_eq!(PassRateSpread::Split(0.25).keep_probability(64), 0.0);
        assert_eq!(PassRateSpread::fit(&sampled(100, 1, |_, _| 0.5)), None);
        assert_eq!(PassRateSpread::fit(&Tally::default()), None);
    }

    #[test]
    fn beta_keep_probability_by_hand() {
        // Uniform pass rates: E[pⁿ] = 1/(n + 1).
        let uniform = PassRateSpread::Beta { a: 1.0, b: 1.0 };
        for n in 2..20 {
            let expected = 1.0 - 2.0 / (n as f64 + 1.0);
            assert!((uniform.keep_probability(n) - expected).abs() < 1e-12, "{n}");
        }
        assert_eq!(uniform.keep_probability(1), 0.0);
        assert_eq!(uniform.group_size_for(0.85, 4, 64), Some(16));
        assert_eq!(uniform.group_size_for(0.999, 4, 64), None);
    }

    /// Members begun for each kept group, over n, by enumerating all outcomes of n members.
    fn enumerated(n: usize, first: usize, probability: impl Fn(usize, usize) -> f64) -> f64 {
        let (mut begun, mut kept) = (0.0, 0.0);
        for outcomes in 0..1_u32 << n {
            let correct = outcomes.count_ones() as usize;
            let of_first = (outcomes & ((1 << first) - 1)).count_ones() as usize;
            let weight = probability(correct, n - correct);
            if of_first == 0 || of_first == first {
                begun += weight * first as f64;
            } else {
                begun += weight * n as f64;
                kept += weight;
            }
        }
        begun / (n as f64 * kept)
    }

    #[test]
    fn the_cost_of_first_members_is_that_of_all_outcomes_one_by_one() {
        // The probability of one order of so many right and so many wrong answers.
        let beta = |a: f64, b: f64| {
            move |right: usize, wrong: usize| {
                let rising = |x: f64, times: usize| (0..times).map(|i| x + i as f64).product::<f64>();
                rising(a, right) * rising(b, wrong) / rising(a + b, right + wrong)
            }
        };
        let equal =
            |p: f64| move |right: usize, wrong: usize| p.powi(right as i32) * (1.0 - p).powi(wrong as i32);
        for n in 3..=10 {
            for first in 2..=n {
                for (a, b) in [(1.0, 1.0), (0.3, 0.3), (0.1, 0.1), (0.2, 0.8), (5.0, 40.0)] {
                    let spread = PassRateSpread::Beta { a, b };
                    let cost = generated_per_kept(n, first, spread.keep_probability(first)).unwrap();
                    let expected = enumerated(n, first, beta(a, b));
                    assert!((cost / expected - 1.0).abs() < 1e-9, "Beta({a}, {b}), {first} of {n}: {cost}");
                }
                for p in [0.02, 0.3, 0.9] {
                    let cost = generated_per_kept(n, first, keep_probability(p, first)).unwrap();
                    let expected = enumerated(n, first, equal(p));
                    assert!((cost / expected - 1.0).abs() < 1e-9, "{p}, {first} of {n}: {cost}");
                }
            }
        }
        assert_eq!(generated_per_kept(8, 8, 0.0), None);
        assert_eq!((generated_per_kept(8, 0, 0.5), generated_per_kept(8, 9, 0.5)), (None, None));
    }

    #[test]
    fn first_members_pay_by_the_spread_of_pass_rates() {
        let best = |spread: PassRateSpread| Screening::best(8, |m| Some(spread.keep_probability(m))).unwrap();
        for p in [0.02, 0.05, 0.1, 0.15, 0.5] {
            let best = best(PassRateSpread::Equal(p));
            assert!(best.cost > best.whole && !best.pays(), "{p}: {best:?}");
        }
        for (a, first) in [(0.3, 3), (0.2, 3), (0.1, 3)] {
            let best = best(PassRateSpread::Beta { a, b: a });
            assert!(best.first == first && best.pays(), "{a}: {best:?}");
        }
        // The same keep rate, 0.34: like prompts, and unlike ones.
        let (like, unlike) = (PassRateSpread::Equal(0.05), PassRateSpread::Beta { a: 0.18, b: 0.18 });
        assert!((like.keep_probability(8) - unlike.keep_probability(8)).abs() < 0.01);
        assert!(!best(like).pays() && best(unlike).pays());
        // Less than a twentieth is saved.
        assert!(!best(PassRateSpread::Beta { a: 0.5, b: 0.5 }).pays());
        // Nothing to compare: two members are the group, or nothing is kept.
        assert_eq!(Screening::best(2, |_| Some(0.5)), None);
        assert_eq!(Screening::best(8, |_| Some(0.0)), None);
        assert_eq!(Screening::with(8, 8, |_| Some(0.5)), None);
        // Only what is known is compared.
        let known = |m: usize| (m == 4 || m == 8).then(|| unlike.keep_probability(m));
        assert_eq!(Screening::best(8, known).map(|best| best.first), Some(4));
    }

    #[test]
    fn limits_by_pass_rate() {
        assert_eq!(limit_for_pass_rate(0.05), Some((15, 25)));
        assert_eq!(limit_for_pass_rate(0.2), Some((10, 15)));
        assert_eq!(limit_for_pass_rate(0.5), Some((5, 10)));
        assert_eq!(limit_for_pass_rate(0.8), Some((3, 5)));
        assert_eq!(limit_for_pass_rate(0.81), None);
        assert_eq!(expected_rounds(64, 64, 0.0), None);
        // DAPO's 32B recipe: one pass if and only if a third is kept.
        assert_eq!(expected_rounds(512, 1536, 0.33), Some(2));
    }
}
