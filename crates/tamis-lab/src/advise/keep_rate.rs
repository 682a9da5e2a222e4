//! Keep rates for other group sizes than the sampled one.
//!
//! For every m ≤ n, a group of n members gives without a model the probability that m of its members differ:
//! 1 minus the share of m-subsets that are all alike, 1 - Σ C(c, m) / C(n, m) over the values and their
//! counts c. The mean over groups is an unbiased estimate of the keep rate at m. Beyond n the pass rates of
//! prompts are assumed to follow a Beta distribution, fitted by moments. The change from n to m under that
//! fit is added to the rate counted at n.

use serde::Serialize;
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::Tally;
use tamis_core::schedule::yields::PassRateSpread;

/// Resamples of an interval. With very many prompts there are fewer, but at least `FEWEST`, so that all
/// together take about `DRAWS` draws.
const RESAMPLES: u64 = 400;
const FEWEST: u64 = 100;
const DRAWS: u64 = 8_000_000;
/// Probability outside an interval, half on each side.
const OUTSIDE: f64 = 0.1;
/// Groups of at least m members from which the keep rate at m is counted.
const COUNTED: usize = 20;

/// A number and its 90 % interval, if one is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KeepEstimate {
    /// The number.
    pub value: f64,
    /// The lower end.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
}

impl KeepEstimate {
    /// A number without an interval.
    pub fn exact(value: f64) -> Self {
        Self { value, low: None, high: None }
    }

    /// Applies a monotonic function to the number and its interval. Returns `None` if the function has no
    /// value at the number.
    pub(super) fn map(self, of: impl Fn(f64) -> Option<f64>) -> Option<Self> {
        let ends = [self.low.and_then(&of), self.high.and_then(&of)];
        let (low, high) = match ends {
            [Some(one), Some(other)] => (Some(one.min(other)), Some(one.max(other))),
            _ => (None, None),
        };
        Some(Self { value: of(self.value)?, low, high })
    }
}

/// Origin of a keep rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepRateSource {
    /// Counted over the groups or their subsets.
    Counted,
    /// From the fitted Beta distribution.
    Fitted,
    /// A lower bound: the rate at the groups' own size, because larger groups are kept at least as often.
    AtLeast,
}

/// The share of groups with n members that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KeepRate {
    /// Members of a group.
    pub n: usize,
    /// Share whose members differ.
    pub rate: KeepEstimate,
    /// Its origin.
    pub source: KeepRateSource,
}

/// Number of members of a group by value. Only equality of values matters.
#[derive(Debug, Clone, PartialEq)]
pub struct OutcomeCounts {
    /// Number of the prompt.
    pub prompt: usize,
    /// Number of groups that this one counts for: 1 / (probability with which its prompt was chosen).
    pub weight: f64,
    /// Number of members with each value, in ascending order of values.
    pub by_value: Vec<usize>,
    /// Number of correct members; `None` if the values do not decide that.
    pub correct: Option<usize>,
}

impl OutcomeCounts {
    /// Counts the finite values of one group. Returns `None` if there is none. Members with `top` or more are
    /// correct.
    pub fn of(prompt: usize, values: &[f64], top: Option<f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let mut by_value: Vec<usize> = Vec::new();
        let mut last = f64::NAN;
        for value in &sorted {
            match by_value.last_mut().filter(|_| last >= *value) {
                Some(count) => *count += 1,
                None => by_value.push(1),
            }
            last = *value;
        }
        let correct = top.map(|top| sorted.iter().filter(|value| **value >= top).count());
        (!sorted.is_empty()).then_some(Self { prompt, weight: 1.0, by_value, correct })
    }

    /// Number of members with a value.
    pub fn n(&self) -> usize {
        self.by_value.iter().sum()
    }

    /// Probability that m members, drawn at random without replacement, are not all alike. 0 if m is below 2,
    /// `None` if m is above the group's size.
    pub fn mixed(&self, m: usize) -> Option<f64> {
        let n = self.n();
        if m > n {
            return None;
        }
        if m < 2 {
            return Some(0.0);
        }
        let alike = |count: usize| -> f64 {
            (0..m).map(|i| count.saturating_sub(i) as f64 / (n - i) as f64).product()
        };
        Some((1.0 - self.by_value.iter().map(|count| alike(*count)).sum::<f64>()).max(0.0))
    }
}

/// Weighted sums over groups, for one group size.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct MixedSum {
    weight: f64,
    mixed: f64,
}

/// Weighted sums over members.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct MemberSum {
    all: f64,
    correct: f64,
}

/// Weighted sums of c/n and of c(c - 1)/(n(n - 1)) over groups with at least two members.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct PairSum {
    weight: f64,
    rates: f64,
    squares: f64,
}

/// Sums over groups, from which all estimates follow.
#[derive(Debug, Clone, PartialEq)]
struct Sums {
    /// For each size up to the common one: total weight of groups with at least the common size, and weighted
    /// sum of their probabilities to be mixed. For each larger size: total weight of groups with at least
    /// that size, and weighted sum of their gains over the size before.
    mixed: Vec<MixedSum>,
    /// Members of groups whose outcome is known.
    members: MemberSum,
    /// Number of such groups with at least two members.
    num_pairs: u64,
    pairs: PairSum,
}

impl Sums {
    fn new(sizes: &[usize]) -> Self {
        Self {
            mixed: vec![MixedSum::default(); sizes.len()],
            members: MemberSum::default(),
            num_pairs: 0,
            pairs: PairSum::default(),
        }
    }

    fn add_group(&mut self, sizes: &[usize], common: usize, group: &OutcomeCounts) {
        let (mut before, weight) = (0.0, group.weight);
        for (sum, size) in self.mixed.iter_mut().zip(sizes) {
            let Some(mixed) = group.mixed(*size).filter(|_| group.n() >= common) else { break };
            sum.weight += weight;
            sum.mixed += weight * if *size > common { mixed - before } else { mixed };
            before = mixed;
        }
        if let Some(correct) = group.correct {
            let (n, c) = (group.n() as f64, correct as f64);
            self.members.all += weight * n;
            self.members.correct += weight * c;
            if n > 1.0 {
                let square = c * (c - 1.0) / (n * (n - 1.0));
                self.num_pairs += 1;
                self.pairs.weight += weight;
                self.pairs.rates += weight * c / n;
                self.pairs.squares += weight * square;
            }
        }
    }

    fn add(&mut self, other: &Self) {
        for (sum, of) in self.mixed.iter_mut().zip(&other.mixed) {
            sum.weight += of.weight;
            sum.mixed += of.mixed;
        }
        self.members.all += other.members.all;
        self.members.correct += other.members.correct;
        self.num_pairs += other.num_pairs;
        self.pairs.weight += other.pairs.weight;
        self.pairs.rates += other.pairs.rates;
        self.pairs.squares += other.pairs.squares;
    }

    fn fit(&self) -> Option<PassRateSpread> {
        let PairSum { weight, rates, squares } = self.pairs;
        // Scales weighted means to as many groups of weight 1.
        let each = self.num_pairs as f64 / weight;
        PassRateSpread::fit(&Tally {
            paired_groups: self.num_pairs,
            pass_rates: rates * each,
            pairs_correct: squares * each,
            ..Tally::default()
        })
    }

    fn pass_rate(&self) -> Option<f64> {
        let MemberSum { all, correct } = self.members;
        (all > 0.0).then(|| correct / all)
    }

    /// All sizes up to the common one are counted over the same groups. Beyond it, groups that are large
    /// enough show the gain over the size before. So a different mix of prompts among large groups does not
    /// change a keep rate.
    fn counted(&self, sizes: &[usize], common: usize, place: usize) -> Option<f64> {
        let of = |place: usize| {
            self.mixed.get(place).filter(|sum| sum.weight > 0.0).map(|sum| sum.mixed / sum.weight)
        };
        let first = sizes.iter().position(|size| *size >= common)?.min(place);
        (first + 1..=place).try_fold(of(first)?, |sum, place| Some((sum + of(place)?).min(1.0)))
    }

    /// The keep rate at a size. It is counted if enough groups are large enough. Otherwise it starts from the
    /// largest counted size and adds the change under the fit.
    fn rate(
        &self,
        sizes: &[usize],
        common: usize,
        place: usize,
        anchor: Option<usize>,
    ) -> Option<(f64, KeepRateSource)> {
        let anchor = anchor?;
        if place <= anchor {
            return Some((self.counted(sizes, common, place)?, KeepRateSource::Counted));
        }
        let at = self.counted(sizes, common, anchor)?;
        let Some(fit) = self.fit() else { return Some((at, KeepRateSource::AtLeast)) };
        let more = fit.keep_probability(sizes[place]) - fit.keep_probability(sizes[anchor]);
        // Keep rates are concave in the size, so the last increment bounds all further ones.
        let most = match anchor.checked_sub(1).and_then(|before| self.counted(sizes, common, before)) {
            Some(before) => {
                let a_member = (at - before) / (sizes[anchor] - sizes[anchor - 1]) as f64;
                a_member.max(0.0) * (sizes[place] - sizes[anchor]) as f64
            }
            None => 1.0,
        };
        Some(((at + more.clamp(0.0, most)).min(1.0), KeepRateSource::Fitted))
    }
}

/// Keep rates at several sizes, and the fitted distribution of pass rates.
#[derive(Debug, Clone, PartialEq)]
pub struct KeepRates {
    /// Keep rates by ascending size.
    pub rates: Vec<KeepRate>,
    /// Mean share of correct members.
    pub pass_rate: Option<KeepEstimate>,
    /// The distribution fitted to pass rates.
    pub spread: Option<PassRateSpread>,
}

impl KeepRates {
    /// Estimates keep rates at the sizes in `wanted`. Intervals come from resampling prompts, each with all
    /// of its groups.
    pub fn of(groups: &[OutcomeCounts], wanted: &[usize]) -> Self {
        let mut sizes: Vec<usize> = wanted.iter().copied().filter(|size| *size > 1).collect();
        let enough = COUNTED.min(groups.len());
        // The largest size of enough groups, and the size before it, which bounds the gain beyond.
        let mut own: Vec<usize> = groups.iter().map(OutcomeCounts::n).collect();
        own.sort_unstable();
        let largest = own.iter().rev().nth(enough.saturating_sub(1)).copied().unwrap_or(0);
        // At least half of the groups have this size or more.
        let common = own.get(own.len().saturating_sub(1) / 2).copied().unwrap_or(0).min(largest);
        sizes.extend([largest, largest.saturating_sub(1), common].into_iter().filter(|size| *size > 1));
        sizes.sort_unstable();
        sizes.dedup();
        let anchor = sizes.iter().position(|size| *size == largest);

        let mut prompts: std::collections::BTreeMap<usize, Sums> = std::collections::BTreeMap::new();
        for group in groups {
            prompts.entry(group.prompt).or_insert_with(|| Sums::new(&sizes)).add_group(&sizes, common, group);
        }
        let prompts: Vec<Sums> = prompts.into_values().collect();
        let mut all = Sums::new(&sizes);
        for sums in &prompts {
            all.add(sums);
        }
        let resamples: Vec<Sums> = if prompts.len() < 2 {
            Vec::new()
        } else {
            let key = Key::new(0, Purpose::Bootstrap);
            let resample = |number| {
                let key = key.with(number);
                let mut sums = Sums::new(&sizes);
                for draw in 0..prompts.len() as u64 {
                    sums.add(&prompts[key.below(draw, prompts.len() as u64) as usize]);
                }
                sums
            };
            let number = (DRAWS / prompts.len() as u64).clamp(FEWEST, RESAMPLES);
            (0..number).map(resample).collect()
        };
        let interval = |value: f64, of: &dyn Fn(&Sums) -> Option<f64>| {
            let mut found: Vec<f64> = resamples.iter().filter_map(of).collect();
            found.sort_by(f64::total_cmp);
            let at = |share: f64| {
                found.get((share * found.len().saturating_sub(1) as f64).round() as usize).copied()
            };
            widen(
                KeepEstimate { value, low: at(OUTSIDE / 2.0), high: at(1.0 - OUTSIDE / 2.0) },
                prompts.len(),
            )
        };
        let rates = wanted
            .iter()
            .filter_map(|size| {
                let place = sizes.binary_search(size).ok()?;
                let (value, source) = all.rate(&sizes, common, place, anchor)?;
                let of = |sums: &Sums| sums.rate(&sizes, common, place, anchor).map(|(rate, _)| rate);
                Some(KeepRate { n: *size, rate: interval(value, &of), source })
            })
            .collect();
        let pass_rate = all.pass_rate().map(|rate| interval(rate, &Sums::pass_rate));
        Self { rates, pass_rate, spread: all.fit() }
    }

    /// The keep rate at a size in `wanted`.
    pub fn at(&self, n: usize) -> Option<KeepRate> {
        self.rates.iter().find(|rate| rate.n == n).copied()
    }
}

/// If no group or every group was kept, resampling shows no spread. The interval is then that of a share that
/// was observed 0 or `count` times in `count` draws.
fn widen(estimate: KeepEstimate, count: usize) -> KeepEstimate {
    if count < 2 {
        return KeepEstimate { low: None, high: None, ..estimate };
    }
    let seen = (OUTSIDE / 2.0).powf(1.0 / count as f64);
    match estimate.value {
        value if value <= 1e-12 => KeepEstimate { low: Some(0.0), high: Some(1.0 - seen), value },
        value if value >= 1.0 - 1e-12 => KeepEstimate { low: Some(seen), high: Some(1.0), value },
        // All resamples gave the same value.
        _ if estimate.low >= estimate.high => KeepEstimate { low: None, high: None, ..estimate },
        _ => estimate,
    }
}

/// The keep rate over steps of (judged, kept) groups. The interval comes from resampling steps, and is at
/// least as wide as that of as many independent groups.
pub(super) fn of_steps(steps: &[(u64, u64)]) -> KeepEstimate {
    let sums = |steps: &mut dyn Iterator<Item = (u64, u64)>| {
        steps.fold((0.0, 0.0), |sum, step| (sum.0 + step.0 as f64, sum.1 + step.1 as f64))
    };
    let (judged, kept) = sums(&mut steps.iter().copied());
    let value = kept / judged;
    let key = Key::new(1, Purpose::Bootstrap);
    let resample = |number| {
        let key = key.with(number);
        let draw = |draw| steps[key.below(draw, steps.len() as u64) as usize];
        let (judged, kept) = sums(&mut (0..steps.len() as u64).map(draw));
        kept / judged
    };
    let mut found: Vec<f64> = (0..RESAMPLES).map(resample).filter(|rate| rate.is_finite()).collect();
    found.sort_by(f64::total_cmp);
    let at = |share: f64| found.get((share * found.len().saturating_sub(1) as f64).round() as usize).copied();
    // A tenth lies outside 1.645 standard deviations on each side.
    let apart = 1.645 * (value * (1.0 - value) / judged).sqrt();
    let low = at(OUTSIDE / 2.0).map(|low| low.min(value - apart).max(0.0));
    let high = at(1.0 - OUTSIDE / 2.0).map(|high| high.max(value + apart).min(1.0));
    widen(KeepEstimate { value, low, high }, judged as usize)
}

/// The Beta distribution with this mean whose keep rate for groups of n is `keep`, or as near as possible.
pub fn spread_of(mean: f64, keep: f64, n: usize) -> Option<PassRateSpread> {
    if !(0.0..=1.0).contains(&mean) || n < 2 {
        return None;
    }
    let of = |total: f64| PassRateSpread::Beta { a: mean * total, b: (1.0 - mean) * total };
    // At a fixed mean, groups differ more often the more alike prompts are.
    let (mut low, mut high) = (1e-4_f64.ln(), 1e4_f64.ln());
    if keep >= of(high.exp()).keep_probability(n) {
        return Some(PassRateSpread::Equal(mean));
    }
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if of(middle.exp()).keep_probability(n) < keep { low = middle } else { high = middle }
    }
    Some(of(low.exp()))
}

#[cfg(test)]
mod tests {
    use tamis_core::schedule::yields::keep_probability;

    use super::*;

    fn counts(groups: &[(usize, usize)]) -> Vec<OutcomeCounts> {
        let of = |(prompt, &(correct, n)): (usize, &(usize, usize))| {
            let values: Vec<f64> = (0..n).map(|member| f64::from(u8::from(member < correct))).collect();
            OutcomeCounts::of(prompt, &values, Some(1.0)).unwrap()
        };
        groups.iter().enumerate().map(of).collect()
    }

    /// Groups of n members whose prompts' pass rates are `rate(u)` for uniform `u`.
    fn sampled(number: usize, n: usize, rate: impl Fn(f64) -> f64) -> Vec<OutcomeCounts> {
        let key = Key::new(11, Purpose::Task);
        let of = |group: u64| {
            let p = rate(key.with(1).uniform(group));
            ((0..n as u64).filter(|member| key.with(2).with(group).uniform(*member) < p).count(), n)
        };
        counts(&(0..number as u64).map(of).collect::<Vec<_>>())
    }

    #[test]
    fn subsets_by_hand() {
        // 1, 1, 0, 0: two of six pairs are alike, and no three.
        let group = counts(&[(2, 4)]).remove(0);
        assert_eq!(group.mixed(1), Some(0.0));
        assert!((group.mixed(2).unwrap() - 4.0 / 6.0).abs() < 1e-15);
        assert_eq!((group.mixed(3), group.mixed(4), group.mixed(5)), (Some(1.0), Some(1.0), None));
        // Any values count.
        let three = OutcomeCounts::of(0, &[0.5, -1.0, 0.5, 2.5, f64::NAN], None).unwrap();
        assert_eq!((three.by_value.clone(), three.correct), (vec![1, 2, 1], None));
        assert!((three.mixed(2).unwrap() - 5.0 / 6.0).abs() < 1e-15);
        assert_eq!(OutcomeCounts::of(0, &[f64::NAN], None), None);
        assert_eq!(OutcomeCounts::of(0, &[0.25; 5], None).unwrap().mixed(5), Some(0.0));
    }

    /// Uniform pass rates keep 1 - 2/(m + 1): counted up to 8, fitted above, and both within their intervals.
    #[test]
    fn uniform_pass_rates_have_the_keep_rates_of_the_closed_form() {
        let groups = sampled(4000, 8, |u| u);
        let found = KeepRates::of(&groups, &[2, 4, 8, 16, 32]);
        for rate in &found.rates {
            let expected = 1.0 - 2.0 / (rate.n as f64 + 1.0);
            assert!((rate.rate.value - expected).abs() < 0.02, "{rate:?} instead of {expected}");
            assert!(rate.rate.low < Some(expected) && rate.rate.high > Some(expected), "{rate:?}");
            let counted = if rate.n <= 8 { KeepRateSource::Counted } else { KeepRateSource::Fitted };
            assert_eq!(rate.source, counted);
        }
        let pass_rate = found.pass_rate.unwrap();
        assert!(pass_rate.low < Some(0.5) && pass_rate.high > Some(0.5) && pass_rate.high < Some(0.52));
    }

    /// Half of the prompts are never solved and half have pass rate 1/2. That is no Beta distribution, and
    /// the naive formula with the mean is far off.
    #[test]
    fn below_n_no_distribution_is_assumed() {
        let groups = sampled(4000, 8, |u| if u < 0.5 { 0.0 } else { 0.5 });
        let found = KeepRates::of(&groups, &[2, 4, 16]);
        for n in [2, 4, 16] {
            let expected = 0.5 * keep_probability(0.5, n);
            let rate = found.at(n).unwrap().rate.value;
            assert!((rate - expected).abs() < 0.03, "{n}: {rate} instead of {expected}");
        }
        // The counted rates bound the fit: from 7 to 8 members almost nothing is gained.
        assert!((found.at(16).unwrap().rate.value - keep_probability(0.25, 16)).abs() > 0.4);
    }

    #[test]
    fn few_groups_and_groups_that_are_all_alike() {
        assert_eq!(KeepRates::of(&[], &[2, 4]).rates, []);
        let one = KeepRates::of(&counts(&[(1, 4)]), &[4, 8]);
        assert_eq!(one.at(4).unwrap().rate, KeepEstimate::exact(1.0));
        let alike = KeepRates::of(&counts(&[(0, 4); 30]), &[2, 4, 8]);
        for rate in &alike.rates {
            // None of 30 prompts was kept: at most 1 - 0.05^(1/30).
            assert_eq!((rate.rate.value, rate.rate.low), (0.0, Some(0.0)));
            assert!((rate.rate.high.unwrap() - 0.0950).abs() < 1e-3, "{rate:?}");
        }
        // Groups of one show nothing about any size.
        let single = KeepRates::of(&counts(&[(1, 1), (0, 1), (1, 1)]), &[2, 4]);
        assert_eq!((single.rates.len(), single.spread), (0, None));
        assert!((single.pass_rate.unwrap().value - 2.0 / 3.0).abs() < 1e-15);
        // Not binary: beyond their size there is only a bound.
        let shaped: Vec<OutcomeCounts> =
            (0..30).filter_map(|i| OutcomeCounts::of(i, &[0.1 * i as f64, 3.0], None)).collect();
        let found = KeepRates::of(&shaped, &[2, 4]);
        assert_eq!(
            found.rates.iter().map(|rate| rate.source).collect::<Vec<_>>(),
            [KeepRateSource::Counted, KeepRateSource::AtLeast]
        );
    }

    #[test]
    fn groups_of_mixed_sizes_count_where_they_are_large_enough() {
        let mut groups = sampled(500, 4, |u| u);
        groups.extend(
            sampled(500, 8, |u| u)
                .into_iter()
                .map(|group| OutcomeCounts { prompt: group.prompt + 500, ..group }),
        );
        let found = KeepRates::of(&groups, &[4, 8, 16]);
        assert!((found.at(4).unwrap().rate.value - 0.6).abs() < 0.04);
        assert_eq!(
            (found.at(8).unwrap().source, found.at(16).unwrap().source),
            (KeepRateSource::Counted, KeepRateSource::Fitted)
        );
        // A few large groups of hard prompts do not lower a keep rate.
        let mut few = sampled(200, 4, |u| 0.3 + 0.4 * u);
        few.extend((0..25).map(|group| OutcomeCounts {
            prompt: 200 + group,
            ..counts(&[(usize::from(group == 0), 8)]).remove(0)
        }));
        let found = KeepRates::of(&few, &[2, 4, 8]);
        let rates: Vec<f64> = found.rates.iter().map(|rate| rate.rate.value).collect();
        assert!(rates[1] > 0.7 && rates.is_sorted(), "{rates:?}");
    }

    /// Half of the prompts have pass rate 1/2 and are always chosen. The others have pass rate 1/16, and one
    /// in eight is chosen.
    #[test]
    fn groups_that_were_chosen_say_what_the_data_are_by_their_weights() {
        let all = sampled(8000, 8, |u| if u < 0.5 { 0.5 } else { 1.0 / 16.0 });
        let key = Key::new(11, Purpose::Task);
        let chosen: Vec<OutcomeCounts> = all
            .iter()
            .filter_map(|group| {
                let at = group.prompt as u64;
                let inclusion = if key.with(1).uniform(at) < 0.5 { 1.0 } else { 0.125 };
                let is_taken = key.with(3).uniform(at) < inclusion;
                is_taken.then(|| OutcomeCounts { weight: 1.0 / inclusion, ..group.clone() })
            })
            .collect();
        let blind: Vec<OutcomeCounts> =
            chosen.iter().map(|group| OutcomeCounts { weight: 1.0, ..group.clone() }).collect();
        let [all, chosen, blind] = [&all, &chosen, &blind].map(|groups| KeepRates::of(groups, &[4, 8, 16]));
        for n in [4, 8, 16] {
            let [all, chosen, blind] = [&all, &chosen, &blind].map(|found| found.at(n).unwrap().rate.value);
            assert!((all - chosen).abs() < 0.03 && blind > all + 0.1, "{n}: {all} {chosen} {blind}");
        }
        let [all, chosen, blind] = [all, chosen, blind].map(|found| found.pass_rate.unwrap().value);
        assert!((all - chosen).abs() < 0.02 && blind > all + 0.1, "{all} {chosen} {blind}");
    }

    #[test]
    fn where_resamples_are_all_alike_there_is_no_interval() {
        let same = KeepRates::of(&counts(&[(4, 8); 40]), &[2, 8]);
        assert_eq!((same.rates[0].rate.low, same.rates[0].rate.high), (None, None), "{same:?}");
        assert!(same.rates[1].rate.low.is_some());
    }

    #[test]
    fn a_mean_and_a_keep_rate_give_the_spread() {
        let of = PassRateSpread::Beta { a: 0.3, b: 0.9 };
        let found = spread_of(0.25, of.keep_probability(8), 8).unwrap();
        assert!((found.keep_probability(16) - of.keep_probability(16)).abs() < 1e-6);
        assert_eq!(spread_of(0.5, 1.0, 8), Some(PassRateSpread::Equal(0.5)));
        assert_eq!(spread_of(0.5, 0.9, 1), None);
    }
}
