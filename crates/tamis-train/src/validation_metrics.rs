//! Validation: what n samples of a prompt say about the policy.
//!
//! Of k of the n samples: `mean`, `pass` (at least one correct), `best`, `worst`, `maj` (the answer most of them give). Each is the
//! exact expectation over all subsets of k samples ([`Draw::WithoutReplacement`]), which is unbiased for a policy sampled k times.
//!
//! # Differs from
//! verl estimates best, worst and majority by 1000 resamples *with* replacement. The same sample drawn twice is no second chance,
//! so its best@k is biased low, even at k = n. [`Draw::WithReplacement`] is the expectation of verl's estimate, exact too.
//!
//! Unscored samples (NaN) never count as zeros: they are left out, and a prompt that has fewer than k scored samples is outside
//! the mean over prompts of that k.

use std::collections::BTreeMap;

use serde::Serialize;
use tamis_config::ValidationMetric;
use tamis_core::group::Group;

use crate::batch_metrics::Summary;
use crate::metrics::Metrics;

mod majority;

pub use majority::majority;

/// How k samples are drawn from n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// Each subset of k alike.
    WithoutReplacement,
    /// k independent draws, as verl's bootstrap.
    WithReplacement,
}

/// Unbiased chance that at least one of k samples is correct, c of n being correct: 1 − C(n−c, k) / C(n, k), computed as a product
/// without large numbers (Chen et al. 2021, arXiv 2107.03374, equation 1). `None` where k is 0 or more than n, or c more than n.
///
/// ```
/// use tamis_train::validation_metrics::pass_at;
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

/// Mean and deviation (ddof 0) of the best of k of the values, over all draws. `None` where k is 0, or more than the values
/// without replacement, or there is no value.
///
/// With v₁ ≤ … ≤ vₙ the best is vᵢ with the chance C(i−1, k−1) / C(n, k) without, (i/n)ᵏ − ((i−1)/n)ᵏ with replacement.
///
/// ```
/// use tamis_train::validation_metrics::{Draw, best_at};
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

/// As [`best_at`] for the worst of k.
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

/// The numbers of samples for which metrics are given: 2, 4, 8, ... below n, and n itself (as verl); none for n of 1 or less.
///
/// ```
/// use tamis_train::validation_metrics::subset_sizes;
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
    /// Scores by name \[n\] each, NaN where there is none; `reward` among them.
    pub scores: BTreeMap<String, Vec<f64>>,
    /// The answer each sample gives \[n\], for the majority; empty where none could be read, which is an answer like any other
    /// (verl's `[INVALID]`). `None` where the reward does not read answers.
    pub answers: Option<Vec<String>>,
    /// Completion tokens of each sample \[n\].
    pub lengths: Vec<usize>,
    /// Number of truncated samples.
    pub num_truncated: usize,
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
        scores.insert(REWARD.to_owned(), members.iter().map(|member| member.reward).collect());
        Self {
            source: source.to_owned(),
            num_samples: members.len(),
            scores,
            answers,
            lengths: members.iter().map(|member| member.token_ids.len()).collect(),
            num_truncated: members.iter().filter(|member| member.is_truncated()).count(),
        }
    }
}

const ACCURACY: &str = "acc";
const REWARD: &str = "reward";

/// What k samples of a prompt say about one score, on average over the prompts of a data source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The score: `acc`, `reward`, ...
    pub score: String,
    /// Which entry of `validate.metrics` asks for it.
    #[serde(skip)]
    pub metric: ValidationMetric,
    /// Its name: `mean@8`, `best@4/mean`.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Whether it is of all n samples on the main score.
    pub is_core: bool,
}

/// What validation found on the prompts of one data source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceResult {
    /// The data source.
    pub source: String,
    /// Prompts.
    pub num_prompts: usize,
    /// Completions of all prompts.
    pub num_completions: usize,
    /// Completions without an answer on the main score.
    pub num_unscored: usize,
    /// Mean length of a completion in tokens; `None` without completions.
    pub mean_length: Option<f64>,
    /// Share of completions that were cut at the response limit; `None` without completions.
    pub truncated_share: Option<f64>,
    /// Figures of every score, score by score.
    pub figures: Vec<Figure>,
}

impl SourceResult {
    /// Sets its metrics: `val-core/{source}/{score}/{figure}` and `val-aux/...`.
    pub fn put(&self, metrics: &mut Metrics) {
        let source = &self.source;
        for figure in &self.figures {
            let kind = if figure.is_core { "core" } else { "aux" };
            metrics.set(format!("val-{kind}/{source}/{}/{}", figure.score, figure.name), figure.value);
        }
        metrics.set(format!("val-aux/{source}/num_prompts"), self.num_prompts as f64);
        metrics.set(format!("val-aux/{source}/num_unscored"), self.num_unscored as f64);
        metrics.set_some(format!("val-aux/{source}/response_length/mean"), self.mean_length);
        metrics.set_some(format!("val-aux/{source}/response_length/clip_ratio"), self.truncated_share);
    }
}

/// Results of all prompts, by data source in alphabetic order. The mean, pass, best and majority of all n samples on the main score (`acc`
/// where the source has it, else `reward`) are its core figures. n is the largest number of samples of a prompt of the source. A correct
/// sample has `acc` of 1 or more.
pub fn results_by_source(prompts: &[PromptSamples]) -> Vec<SourceResult> {
    let mut sources: BTreeMap<&str, Vec<&PromptSamples>> = BTreeMap::new();
    for prompt in prompts {
        sources.entry(&prompt.source).or_default().push(prompt);
    }
    sources.into_iter().map(|(source, prompts)| source_result(source, &prompts)).collect()
}

/// Sets the metrics of all prompts, by data source.
pub fn validation_metrics(prompts: &[PromptSamples], metrics: &mut Metrics) {
    for result in results_by_source(prompts) {
        result.put(metrics);
    }
}

fn source_result(source: &str, prompts: &[&PromptSamples]) -> SourceResult {
    use ValidationMetric::{BestAtK, MajAtK, MeanAtK, PassAtK};
    let mut figures = Vec::new();
    let num_samples = prompts.iter().map(|prompt| prompt.num_samples).max().unwrap_or(0);
    let mut names: Vec<&str> =
        prompts.iter().flat_map(|prompt| prompt.scores.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    let main = if names.contains(&ACCURACY) { ACCURACY } else { REWARD };
    let sizes = subset_sizes(num_samples);
    for name in names {
        let scored: Vec<Scored> = prompts.iter().filter_map(|prompt| Scored::of(prompt, name)).collect();
        let mean = |of: &dyn Fn(&Scored) -> Option<f64>| {
            Summary::of(scored.iter().filter_map(of)).map(|summary| summary.mean)
        };
        let mut put = |is_core: bool, metric: ValidationMetric, figure: String, value: Option<f64>| {
            figures.extend(value.map(|value| Figure {
                score: name.to_owned(),
                metric,
                name: figure,
                value,
                is_core: is_core && name == main,
            }));
        };
        put(
            true,
            MeanAtK,
            format!("mean@{num_samples}"),
            mean(&|prompt| Summary::of(prompt.values.iter().copied()).map(|all| all.mean)),
        );
        if num_samples > 1 {
            let deviation = |prompt: &Scored| deviation_of(&prompt.values);
            put(false, MeanAtK, format!("std@{num_samples}"), mean(&deviation));
        }
        if name == ACCURACY {
            for k in std::iter::once(1).chain(sizes.iter().copied()) {
                let pass = |prompt: &Scored| {
                    let correct = prompt.values.iter().filter(|&&value| value >= 1.0).count();
                    pass_at(prompt.values.len(), correct, k)
                };
                put(k == num_samples, PassAtK, format!("pass@{k}"), mean(&pass));
            }
        }
        for &k in &sizes {
            let core = k == num_samples;
            let draw = Draw::WithoutReplacement;
            put(
                core,
                BestAtK,
                format!("best@{k}/mean"),
                mean(&|prompt| Some(best_at(&prompt.values, k, draw)?.0)),
            );
            put(
                false,
                BestAtK,
                format!("worst@{k}/mean"),
                mean(&|prompt| Some(worst_at(&prompt.values, k, draw)?.0)),
            );
            let vote =
                |prompt: &Scored| Some(majority(&prompt.values, prompt.answers.as_deref()?, k, draw)?.0);
            put(core, MajAtK, format!("maj@{k}/mean"), mean(&vote));
        }
    }
    let unscored: usize = prompts
        .iter()
        .filter_map(|prompt| prompt.scores.get(main))
        .flatten()
        .filter(|value| value.is_nan())
        .count();
    let lengths = prompts.iter().flat_map(|prompt| prompt.lengths.iter().map(|&length| length as f64));
    let samples: usize = prompts.iter().map(|prompt| prompt.num_samples).sum();
    let truncated: usize = prompts.iter().map(|prompt| prompt.num_truncated).sum();
    SourceResult {
        source: source.to_owned(),
        num_prompts: prompts.len(),
        num_completions: samples,
        num_unscored: unscored,
        mean_length: Summary::of(lengths).map(|summary| summary.mean),
        truncated_share: (samples > 0).then(|| truncated as f64 / samples as f64),
        figures,
    }
}

/// Deviation (ddof 0) of the values.
fn deviation_of(values: &[f64]) -> Option<f64> {
    let summary = Summary::of(values.iter().copied())?;
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
