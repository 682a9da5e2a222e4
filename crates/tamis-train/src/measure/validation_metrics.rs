//! Validation: what n samples of a prompt show about the policy.
//!
//! For k of the n samples: `mean`, `pass` (at least one correct), `best`, `worst`, `maj` (the most
//! common answer). Each is the exact expectation over all subsets of k samples
//! ([`Draw::WithoutReplacement`]), which is unbiased for a policy sampled k times.
//!
//! # Differs from
//! verl estimates best, worst and majority by 1000 resamples *with* replacement. The same sample drawn
//! twice is no second chance, so its best@k is biased low, even at k = n. [`Draw::WithReplacement`] is
//! the expectation of verl's estimate, exact too.
//!
//! Unscored samples (NaN) never count as zeros: they are left out. A prompt with fewer than k scored
//! samples is not part of the mean over prompts for that k.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use tamis_config::ValidationMetric;
use tamis_core::group::{Episode, Group, Trajectory};

use tamis_run::metrics::Metrics;
use tamis_run::metrics::summary::NumberSummary;

use super::episode_metrics::figures_of_episodes;

mod majority;

pub use majority::majority;

/// The ways to draw k samples from n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// Each subset of k with the same chance.
    WithoutReplacement,
    /// k independent draws, as verl's bootstrap.
    WithReplacement,
}

/// Unbiased chance that at least one of k samples is correct, c of n being correct: 1 − C(n−c, k) /
/// C(n, k), computed as a product without large numbers (Chen et al. 2021, arXiv 2107.03374, equation
/// 1). `None` if k is 0 or more than n, or c more than n.
///
/// ```
/// use tamis_train::measure::validation_metrics::pass_at;
/// assert_eq!(pass_at(4, 1, 2), Some(0.5)); // 1 - (3/4)(2/3)
/// assert_eq!(pass_at(4, 3, 2), Some(1.0));
/// assert_eq!(pass_at(4, 0, 4), Some(0.0));
/// assert_eq!(pass_at(4, 1, 5), None);
/// ```
pub fn pass_at(num_samples: usize, num_correct: usize, k: usize) -> Option<f64> {
    if k == 0 || k > num_samples {
        return None;
    }
    let wrong = num_samples.checked_sub(num_correct)?;
    let all_wrong: f64 = (0..k).map(|i| wrong.saturating_sub(i) as f64 / (num_samples - i) as f64).product();
    Some(1.0 - all_wrong)
}

/// Mean and deviation (ddof 0) of the best of k of the values, over all draws. `None` if k is 0, or
/// more than the values without replacement, or there is no value.
///
/// With v₁ ≤ … ≤ vₙ the best is vᵢ with the chance C(i−1, k−1) / C(n, k) without, (i/n)ᵏ − ((i−1)/n)ᵏ
/// with replacement.
///
/// ```
/// use tamis_train::measure::validation_metrics::{Draw, best_at};
/// let (mean, _) = best_at(&[0.0, 3.0, 6.0], 2, Draw::WithoutReplacement).expect("k <= 3");
/// assert!((mean - 5.0).abs() < 1e-12); // 3, 6, 6
/// let (mean, _) = best_at(&[0.0, 3.0, 6.0], 2, Draw::WithReplacement).expect("three values");
/// assert!((mean - (0.0 + 3.0 * 3.0 + 5.0 * 6.0) / 9.0).abs() < 1e-12);
/// ```
pub fn best_at(values: &[f64], k: usize, draw: Draw) -> Option<(f64, f64)> {
    let n = values.len();
    if n == 0 || k == 0 || (draw == Draw::WithoutReplacement && k > n) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut chances = vec![0.0; n];
    match draw {
        Draw::WithoutReplacement => {
            // From the largest down: C(i-2, k-1) / C(i-1, k-1) = (i-k) / (i-1).
            let mut chance = k as f64 / n as f64;
            for i in (k..=n).rev() {
                chances[i - 1] = chance;
                if i > k {
                    chance *= (i - k) as f64 / (i - 1) as f64;
                }
            }
        }
        Draw::WithReplacement => {
            let below = |i: usize| (i as f64 / n as f64).powf(k as f64);
            for (i, chance) in chances.iter_mut().enumerate() {
                *chance = below(i + 1) - below(i);
            }
        }
    }
    Some(moments(sorted.iter().copied().zip(chances)))
}

/// Like [`best_at`], for the worst of k.
pub fn worst_at(values: &[f64], k: usize, draw: Draw) -> Option<(f64, f64)> {
    let negated: Vec<f64> = values.iter().map(|value| -value).collect();
    best_at(&negated, k, draw).map(|(mean, std)| (-mean, std))
}

/// Mean and deviation of values under their chances.
fn moments(weighted: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let mean: f64 = weighted.clone().map(|(value, chance)| value * chance).sum();
    let variance: f64 = weighted.map(|(value, chance)| chance * (value - mean).powi(2)).sum();
    (mean, variance.max(0.0).sqrt())
}

/// The numbers of samples for which metrics are given: 2, 4, 8, ... below n, and n itself (as verl); none for
/// n of 1 or less.
///
/// ```
/// use tamis_train::measure::validation_metrics::subset_sizes;
/// assert_eq!(subset_sizes(5), [2, 4, 5]);
/// assert_eq!(subset_sizes(8), [2, 4, 8]);
/// assert!(subset_sizes(1).is_empty());
/// ```
pub fn subset_sizes(num_samples: usize) -> Vec<usize> {
    if num_samples < 2 {
        return Vec::new();
    }
    let mut sizes: Vec<usize> = std::iter::successors(Some(2_usize), |size| size.checked_mul(2))
        .take_while(|&size| size < num_samples)
        .collect();
    sizes.push(num_samples);
    sizes
}

/// The samples of one prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptSamples {
    /// Data source of the prompt; metrics are given for each.
    pub source: String,
    /// Number of samples n.
    pub num_samples: usize,
    /// Whether it could not be generated from: it has no samples.
    pub is_failed: bool,
    /// Scores by name \[n\] each, NaN if there is none; `reward` among them.
    pub scores: BTreeMap<String, Vec<f64>>,
    /// The answer of each sample \[n\], for the majority. An unreadable answer is empty, and counts
    /// like any other (verl's `[INVALID]`). `None` if the reward does not read answers.
    pub answers: Option<Vec<String>>,
    /// Numbers that reward functions logged of the samples (TRL's `log_metric`), by name.
    pub logged: BTreeMap<String, Vec<f64>>,
    /// Completion tokens of each sample \[n\].
    pub lengths: Vec<usize>,
    /// Number of truncated samples.
    pub num_truncated: usize,
    /// Episodes of those that were played in an environment.
    pub episodes: Vec<Episode>,
}

impl PromptSamples {
    /// The members of a group as samples.
    pub fn of_group(source: &str, group: &Group, answers: Option<Vec<String>>) -> Self {
        let members = &group.trajectories;
        let mut scores: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for name in members.iter().flat_map(|member| member.scores.keys()) {
            if !scores.contains_key(name) {
                let column = members
                    .iter()
                    .map(|member| member.scores.get(name).map_or(f64::NAN, |score| score.value));
                scores.insert(name.clone(), column.collect());
            }
        }
        if !members.is_empty() {
            scores.insert(REWARD.to_owned(), members.iter().map(|member| member.reward).collect());
        }
        Self {
            source: source.to_owned(),
            num_samples: members.len(),
            is_failed: false,
            scores,
            answers,
            logged: BTreeMap::new(),
            lengths: members.iter().map(Trajectory::num_written).collect(),
            num_truncated: members.iter().filter(|member| member.is_truncated()).count(),
            episodes: members.iter().filter_map(|member| member.episode.clone()).collect(),
        }
    }
}

const ACCURACY: &str = "acc";
/// The score under which the reward itself is measured.
pub const REWARD: &str = "reward";

/// Statistic of one score over the samples of a prompt: over all n, or over k of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidationStatistic {
    /// Mean of n.
    Mean(usize),
    /// Their deviation.
    Deviation(usize),
    /// Chance that one of k is right.
    Pass(usize),
    /// Best of k.
    Best(usize),
    /// Worst of k.
    Worst(usize),
    /// Score of the most frequent answer among k samples.
    Majority(usize),
}

impl fmt::Display for ValidationStatistic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean(n) => write!(formatter, "mean@{n}"),
            Self::Deviation(n) => write!(formatter, "std@{n}"),
            Self::Pass(k) => write!(formatter, "pass@{k}"),
            Self::Best(k) => write!(formatter, "best@{k}/mean"),
            Self::Worst(k) => write!(formatter, "worst@{k}/mean"),
            Self::Majority(k) => write!(formatter, "maj@{k}/mean"),
        }
    }
}

impl ValidationStatistic {
    /// The statistics of a score with this many samples of a prompt, in logged order.
    fn all(score: &str, num_samples: usize) -> Vec<Self> {
        let mut all = vec![Self::Mean(num_samples)];
        if num_samples > 1 {
            all.push(Self::Deviation(num_samples));
        }
        let sizes = subset_sizes(num_samples);
        if score == ACCURACY {
            all.extend(std::iter::once(1).chain(sizes.iter().copied()).map(Self::Pass));
        }
        all.extend(sizes.into_iter().flat_map(|k| [Self::Best(k), Self::Worst(k), Self::Majority(k)]));
        all
    }

    /// The entry of `validate.metrics` that asks for the statistic.
    pub fn metric(self) -> ValidationMetric {
        match self {
            Self::Mean(_) | Self::Deviation(_) => ValidationMetric::MeanAtK,
            Self::Pass(_) => ValidationMetric::PassAtK,
            Self::Best(_) | Self::Worst(_) => ValidationMetric::BestAtK,
            Self::Majority(_) => ValidationMetric::MajAtK,
        }
    }

    /// Whether it is among the most important figures, on the main score.
    fn is_core(self, num_samples: usize) -> bool {
        match self {
            Self::Mean(k) | Self::Pass(k) | Self::Best(k) | Self::Majority(k) => k == num_samples,
            Self::Deviation(_) | Self::Worst(_) => false,
        }
    }

    fn of(self, prompt: &Scored<'_>) -> Option<f64> {
        let (values, draw) = (&prompt.values, Draw::WithoutReplacement);
        match self {
            Self::Mean(_) => NumberSummary::of(values.iter().copied()).map(|all| all.mean),
            Self::Deviation(_) => deviation_of(values),
            Self::Pass(k) => {
                let correct = values.iter().filter(|&&value| value >= 1.0).count();
                pass_at(values.len(), correct, k)
            }
            Self::Best(k) => Some(best_at(values, k, draw)?.0),
            Self::Worst(k) => Some(worst_at(values, k, draw)?.0),
            Self::Majority(k) => Some(majority(values, prompt.answers.as_deref()?, k, draw)?.0),
        }
    }
}

/// The quantities that validation measures for a data source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Quantity {
    /// A statistic of a score, on average over the prompts.
    Of {
        /// The score: `acc`, `reward`, ...
        score: String,
        /// The statistic.
        statistic: ValidationStatistic,
    },
    /// Prompts that could be generated from.
    NumPrompts,
    /// Prompts that could not.
    NumFailed,
    /// Completions without an answer on the main score.
    NumUnscored,
    /// Mean length of a completion in tokens.
    MeanLength,
    /// Share of completions that were cut at the response limit.
    TruncatedShare,
}

impl Quantity {
    const COUNTS: [Self; 5] =
        [Self::NumPrompts, Self::NumFailed, Self::NumUnscored, Self::MeanLength, Self::TruncatedShare];
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of { score, statistic } => write!(formatter, "{score}/{statistic}"),
            Self::NumPrompts => formatter.write_str("num_prompts"),
            Self::NumFailed => formatter.write_str("num_failed"),
            Self::NumUnscored => formatter.write_str("num_unscored"),
            Self::MeanLength => formatter.write_str("response_length/mean"),
            Self::TruncatedShare => formatter.write_str("response_length/clip_ratio"),
        }
    }
}

/// A quantity of a data source, by its metric's name: `val-core/{source}/{score}/{statistic}` or
/// `val-aux/...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FigureName {
    /// Whether it is one of the core figures.
    pub is_core: bool,
    /// The data source.
    pub source: String,
    /// The quantity.
    pub quantity: Quantity,
}

impl fmt::Display for FigureName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_core { "core" } else { "aux" };
        write!(formatter, "val-{kind}/{}/{}", self.source, self.quantity)
    }
}

impl FigureName {
    /// Those that a validation of these sources, scores and samples of a prompt can have, `reward` among the
    /// scores.
    pub fn all(sources: &BTreeSet<&str>, num_samples: usize, scores: &BTreeSet<String>) -> Vec<Self> {
        let scores: BTreeSet<&str> = scores.iter().map(String::as_str).chain([REWARD]).collect();
        let main = main_score(&scores);
        let mut all = Vec::new();
        for source in sources {
            let mut put = |is_core, quantity| {
                all.push(Self { is_core, source: (*source).to_owned(), quantity });
            };
            for score in &scores {
                for statistic in ValidationStatistic::all(score, num_samples) {
                    let is_core = *score == main && statistic.is_core(num_samples);
                    put(is_core, Quantity::Of { score: (*score).to_owned(), statistic });
                }
            }
            for quantity in Quantity::COUNTS {
                put(false, quantity);
            }
        }
        all
    }

    /// The figure of this name, if the names of the scores are not known; `None` if there can be none.
    pub fn read(name: &str, sources: &BTreeSet<&str>, num_samples: usize) -> Option<Self> {
        let (is_core, rest) = match name.strip_prefix("val-core/") {
            Some(rest) => (true, rest),
            None => (false, name.strip_prefix("val-aux/")?),
        };
        // The longer of `a` and `a/b`: a score seldom has a `/` in its name.
        let mut sources: Vec<&str> = sources.iter().copied().collect();
        sources.sort_by_key(|source| std::cmp::Reverse(source.len()));
        sources.into_iter().find_map(|source| {
            let rest = rest.strip_prefix(source)?.strip_prefix('/')?;
            // `acc` has every statistic.
            let quantity =
                ValidationStatistic::all(ACCURACY, num_samples).into_iter().find_map(|statistic| {
                    let score = rest.strip_suffix(&statistic.to_string())?.strip_suffix('/')?;
                    let is_there = !score.is_empty()
                        && ValidationStatistic::all(score, num_samples).contains(&statistic);
                    is_there.then(|| Quantity::Of { score: score.to_owned(), statistic })
                })?;
            Some(Self { is_core, source: source.to_owned(), quantity })
        })
    }
}

/// The score of the core figures: `acc` if there is one.
fn main_score<'a>(names: &BTreeSet<&'a str>) -> &'a str {
    if names.contains(ACCURACY) { ACCURACY } else { REWARD }
}

/// Statistic of one score, averaged over the prompts of a data source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamedFigure {
    /// The score: `acc`, `reward`, ...
    pub score: String,
    /// The statistic over the samples.
    #[serde(skip)]
    pub statistic: ValidationStatistic,
    /// Name of the figure: `mean@8`, `best@4/mean`.
    pub name: String,
    /// Value of the figure.
    pub value: f64,
    /// Its standard error, over the prompts; `None` below two of them, and if all are equal.
    pub standard_error: Option<f64>,
    /// Whether it is of all n samples on the main score.
    pub is_core: bool,
}

/// Results of validation on the prompts of one data source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceResult {
    /// The data source.
    pub source: String,
    /// Prompts that the figures are made of: those that could be generated from.
    pub num_prompts: usize,
    /// Prompts that could not be generated from.
    pub num_failed: usize,
    /// Completions of all prompts.
    pub num_completions: usize,
    /// Completions without an answer on the main score.
    pub num_unscored: usize,
    /// Mean length of a completion in tokens; `None` without completions.
    pub mean_length: Option<f64>,
    /// Share of completions that were cut at the response limit; `None` without completions.
    pub truncated_share: Option<f64>,
    /// Figures of every score, score by score.
    pub figures: Vec<NamedFigure>,
    /// Means of the values that reward functions logged, by name.
    pub logged: BTreeMap<String, f64>,
    /// Metrics of its episodes by name (`success`, `num_actions`, ...); none if nothing was played.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub episodes: BTreeMap<String, f64>,
}

impl SourceResult {
    /// A quantity of it; `None` if its data is missing.
    pub fn value(&self, quantity: &Quantity) -> Option<f64> {
        match quantity {
            Quantity::Of { score, statistic } => {
                let is_it = |figure: &&NamedFigure| figure.score == *score && figure.statistic == *statistic;
                self.figures.iter().find(is_it).map(|figure| figure.value)
            }
            Quantity::NumPrompts => Some(self.num_prompts as f64),
            Quantity::NumFailed => Some(self.num_failed as f64),
            Quantity::NumUnscored => Some(self.num_unscored as f64),
            Quantity::MeanLength => self.mean_length,
            Quantity::TruncatedShare => self.truncated_share,
        }
    }

    /// Its names, in logged order.
    pub fn names(&self) -> impl Iterator<Item = FigureName> {
        let name = |is_core, quantity| FigureName { is_core, source: self.source.clone(), quantity };
        let figures = self.figures.iter().map(move |figure| {
            let quantity = Quantity::Of { score: figure.score.clone(), statistic: figure.statistic };
            name(figure.is_core, quantity)
        });
        figures.chain(Quantity::COUNTS.into_iter().map(move |quantity| name(false, quantity)))
    }

    /// Sets its metrics: `val-core/{source}/{score}/{figure}` and `val-aux/...` (which include the
    /// standard error of the main mean and the logged values), and `val-env/{source}/...` for episodes.
    pub fn put(&self, metrics: &mut Metrics) {
        for name in self.names() {
            metrics.set_some(name.to_string(), self.value(&name.quantity));
        }
        let is_mean = |figure: &&NamedFigure| matches!(figure.statistic, ValidationStatistic::Mean(_));
        for figure in self.figures.iter().filter(|figure| figure.is_core).filter(is_mean) {
            let name = format!("val-aux/{}/{}/{}/standard_error", self.source, figure.score, figure.name);
            metrics.set_some(name, figure.standard_error);
        }
        for (name, value) in &self.logged {
            metrics.set(format!("val-aux/{}/reward_log/{name}", self.source), *value);
        }
        for (name, value) in &self.episodes {
            metrics.set(format!("val-env/{}/{name}", self.source), *value);
        }
    }
}

/// Results of all prompts, by data source in alphabetic order. The mean, pass, best and majority of all
/// n samples on the main score (`acc` if the source has it, otherwise `reward`) are its core figures. n
/// is the largest number of samples of a prompt of the source. A correct sample has `acc` of 1 or more.
pub fn results_by_source(prompts: &[PromptSamples]) -> Vec<SourceResult> {
    let mut sources: BTreeMap<&str, Vec<&PromptSamples>> = BTreeMap::new();
    for prompt in prompts {
        sources.entry(&prompt.source).or_default().push(prompt);
    }
    sources.into_iter().map(|(source, prompts)| source_result(source, &prompts)).collect()
}

fn source_result(source: &str, prompts: &[&PromptSamples]) -> SourceResult {
    let mut figures = Vec::new();
    let num_samples = prompts.iter().map(|prompt| prompt.num_samples).max().unwrap_or(0);
    let names: BTreeSet<&str> =
        prompts.iter().flat_map(|prompt| prompt.scores.keys().map(String::as_str)).collect();
    let main = main_score(&names);
    for name in names {
        let scored: Vec<Scored> = prompts.iter().filter_map(|prompt| Scored::of(prompt, name)).collect();
        for statistic in ValidationStatistic::all(name, num_samples) {
            let of_prompts = scored.iter().filter_map(|prompt| statistic.of(prompt));
            figures.extend(NumberSummary::of(of_prompts).map(|summary| NamedFigure {
                score: name.to_owned(),
                statistic,
                name: statistic.to_string(),
                value: summary.mean,
                standard_error: summary.standard_error(),
                is_core: statistic.is_core(num_samples) && name == main,
            }));
        }
    }
    let unscored: usize = prompts
        .iter()
        .filter_map(|prompt| prompt.scores.get(main))
        .flatten()
        .filter(|value| value.is_nan())
        .count();
    let mut values: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, logged) in prompts.iter().flat_map(|prompt| &prompt.logged) {
        values.entry(name).or_default().extend(logged);
    }
    let logged = values
        .into_iter()
        .filter_map(|(name, values)| Some((name.clone(), NumberSummary::of(values)?.mean)))
        .collect();
    let lengths = prompts.iter().flat_map(|prompt| prompt.lengths.iter().map(|&length| length as f64));
    let played: Vec<Vec<&Episode>> = prompts.iter().map(|prompt| prompt.episodes.iter().collect()).collect();
    let samples: usize = prompts.iter().map(|prompt| prompt.num_samples).sum();
    let num_failed = prompts.iter().filter(|prompt| prompt.is_failed).count();
    let truncated: usize = prompts.iter().map(|prompt| prompt.num_truncated).sum();
    SourceResult {
        source: source.to_owned(),
        num_prompts: prompts.len() - num_failed,
        num_failed,
        num_completions: samples,
        num_unscored: unscored,
        mean_length: NumberSummary::of(lengths).map(|summary| summary.mean),
        truncated_share: (samples > 0).then(|| truncated as f64 / samples as f64),
        figures,
        logged,
        episodes: figures_of_episodes(&played).collect(),
    }
}

fn deviation_of(values: &[f64]) -> Option<f64> {
    let summary = NumberSummary::of(values.iter().copied())?;
    let squares: f64 = values.iter().map(|value| (value - summary.mean).powi(2)).sum();
    Some((squares / values.len() as f64).sqrt())
}

/// The scored samples of a prompt on one score.
struct Scored<'a> {
    values: Vec<f64>,
    answers: Option<Vec<&'a str>>,
}

impl<'a> Scored<'a> {
    fn of(prompt: &'a PromptSamples, name: &str) -> Option<Self> {
        let column = prompt.scores.get(name)?;
        let is_scored = |place: &usize| !column[*place].is_nan();
        let places: Vec<usize> = (0..column.len()).filter(is_scored).collect();
        let answers = prompt.answers.as_ref().map(|answers| {
            places.iter().map(|&place| answers.get(place).map_or("", String::as_str)).collect()
        });
        Some(Self { values: places.iter().map(|&place| column[place]).collect(), answers })
    }
}

#[cfg(test)]
mod tests;
