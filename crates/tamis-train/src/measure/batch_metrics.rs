//! The step's metrics that come from its groups: scores, rewards, lengths, of the trained batch and of
//! everything generated.
//!
//! Pure functions of [`Group`]s; the [catalogue](tamis_run::metrics::catalogue) defines each name.
//! Statistics of scores and rewards exclude unscored trajectories (NaN), statistics of lengths include
//! them. A statistic over nothing is not set.

use std::collections::BTreeMap;

use tamis_core::advantage::Advantages;
use tamis_core::filter::{GroupStatistics, Pool};
use tamis_core::group::{Group, Score, Trajectory};
use tamis_core::ragged::Ragged;

use crate::learner::left_out::LeftOut;
use tamis_run::metrics::Metrics;
use tamis_run::metrics::summary::{NumberSummary, has_one_value};

/// Numbers of a batch, which count once for every token that is in the loss.
#[derive(Debug, Clone, Copy)]
pub enum BatchNumbers<'a> {
    /// One number per trajectory, in order \[B\]; NaN if there is none.
    PerTrajectory(&'a [f64]),
    /// One number per token `[B][T]`.
    PerToken(&'a Ragged<f64>),
}

impl<'a> From<&'a Advantages> for BatchNumbers<'a> {
    fn from(advantages: &'a Advantages) -> Self {
        match advantages {
            Advantages::PerTrajectory(advantages) => Self::PerTrajectory(advantages.values()),
            Advantages::PerToken(advantages) => Self::PerToken(advantages),
        }
    }
}

impl BatchNumbers<'_> {
    fn summary(self, members: &[&Trajectory], loss_tokens: &[usize]) -> Option<NumberSummary> {
        match self {
            Self::PerTrajectory(values) => summarise_weighted(values, loss_tokens),
            Self::PerToken(rows) => {
                let trained =
                    rows.rows().zip(members).zip(loss_tokens).filter(|(_, num_tokens)| **num_tokens > 0);
                NumberSummary::of(trained.flat_map(|((row, member), _)| {
                    row.iter().zip(&member.loss_mask).filter(|(_, on)| **on).map(|(value, _)| *value)
                }))
            }
        }
    }
}

/// Columns of the trained batch, beside the groups themselves.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainedColumns<'a> {
    /// Advantages of the batch.
    pub advantages: Option<BatchNumbers<'a>>,
    /// Returns, if the estimator distinguishes them from advantages.
    pub returns: Option<BatchNumbers<'a>>,
    /// Reward of each trajectory after the KL term \[B\], if the KL is part of the reward.
    pub final_rewards: Option<&'a [f64]>,
    /// Why a trajectory has no loss \[B\]; empty: all do.
    pub left_out: &'a [Option<LeftOut>],
    /// The configuration's limit of prompt tokens, for `prompt_length/clip_ratio`.
    pub max_prompt_length: Option<usize>,
}

/// Figures about the trained batch for the console.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TrainedFacts {
    /// Rewards before a KL penalty.
    pub rewards: Option<NumberSummary>,
    /// Mean completion length in tokens.
    pub mean_length: Option<f64>,
    /// Share of trajectories that reached the limit of their length.
    pub truncated: Option<f64>,
    /// Prompt and completion tokens of the trajectories in the loss.
    pub num_tokens: usize,
}

/// Groups, each with the members that a statistic is over.
struct Members<'a>(Vec<(&'a Group, Vec<&'a Trajectory>)>);

impl<'a> Members<'a> {
    fn all(groups: &[&'a Group]) -> Self {
        Self(groups.iter().map(|&group| (group, group.trajectories.iter().collect())).collect())
    }

    fn of_chosen(groups: &[&'a Group], left_out: &[Option<LeftOut>]) -> Self {
        let mut places = left_out.iter();
        let mut is_chosen = |_: &&Trajectory| places.next() != Some(&Some(LeftOut::Unchosen));
        let of_group =
            |&group: &&'a Group| (group, group.trajectories.iter().filter(&mut is_chosen).collect());
        Self(groups.iter().map(of_group).collect())
    }

    fn iter(&self) -> impl Iterator<Item = &'a Trajectory> {
        self.0.iter().flat_map(|(_, members)| members.iter().copied())
    }
}

/// Metrics of the trained batch: `critic/*`, `rewards/*`, `reward_std`, `frac_reward_zero_std`,
/// lengths, counts.
///
/// Members that the filter did not choose are not part of that batch. Other members without loss are
/// counted as such, and stay in the statistics of scores and lengths. Without them, for instance, the
/// share of truncated trajectories could always be 0.
///
/// `critic/advantages/*` and `critic/returns/*` are over tokens with loss, as in verl (whose columns
/// are per token): a trajectory's number weighs as many times as its loss mask has ones.
pub fn trained_metrics(
    groups: &[&Group],
    columns: &TrainedColumns<'_>,
    metrics: &mut Metrics,
) -> TrainedFacts {
    let batch: Vec<&Trajectory> = Members::all(groups).iter().collect();
    let left_out = |place: usize| columns.left_out.get(place).copied().flatten();
    let chosen = Members::of_chosen(groups, columns.left_out);
    let members: Vec<&Trajectory> = chosen.iter().collect();
    let raw = NumberSummary::of(members.iter().map(|member| member.reward));
    set_extremes(metrics, "critic/score", raw);
    let rewards: Vec<f64> = batch.iter().map(|member| member.reward).collect();
    let finals = columns.final_rewards.unwrap_or(&rewards).iter().enumerate();
    let finals = finals.filter(|(place, _)| left_out(*place) != Some(LeftOut::Unchosen));
    set_extremes(metrics, "critic/rewards", NumberSummary::of(finals.map(|(_, reward)| *reward)));
    let loss_tokens: Vec<usize> = batch
        .iter()
        .enumerate()
        .map(|(place, member)| match left_out(place) {
            Some(_) => 0,
            None => member.loss_mask.iter().filter(|&&on| on).count(),
        })
        .collect();
    if let Some(advantages) = columns.advantages {
        set_extremes(metrics, "critic/advantages", advantages.summary(&batch, &loss_tokens));
        let returns = columns.returns.unwrap_or(advantages);
        set_extremes(metrics, "critic/returns", returns.summary(&batch, &loss_tokens));
    }
    scores(&chosen, "", metrics);
    lengths(&chosen, "", metrics);
    if let Some(limit) = columns.max_prompt_length {
        let at_limit = groups.iter().filter(|group| group.prompt_token_ids.len() >= limit);
        set_share(metrics, "prompt_length/clip_ratio", at_limit.count(), groups.len());
    }
    metrics.set_some("train/pass_rate", pass_rate(&members));
    metrics.set("train/num_unscored", count_unscored(&members));
    metrics.set("train/num_loss_tokens", loss_tokens.iter().sum::<usize>() as f64);
    for reason in LeftOut::ALL {
        let number = columns.left_out.iter().filter(|left_out| **left_out == Some(reason)).count();
        metrics.set(format!("train/num_left_out/{}", reason.name()), number as f64);
    }
    let prompts = groups
        .iter()
        .flat_map(|group| std::iter::repeat_n(group.prompt_token_ids.len(), group.trajectories.len()));
    let trained = prompts.zip(&batch).enumerate().filter(|(place, _)| left_out(*place).is_none());
    let num_tokens: usize = trained.map(|(_, (prompt, member))| prompt + member.token_ids.len()).sum();
    metrics.set("perf/total_num_tokens", num_tokens as f64);
    let num_truncated = members.iter().filter(|member| member.is_truncated()).count();
    TrainedFacts {
        rewards: raw,
        mean_length: NumberSummary::of(members.iter().map(|member| member.num_written() as f64))
            .map(|summary| summary.mean),
        truncated: (!members.is_empty()).then(|| num_truncated as f64 / members.len() as f64),
        num_tokens,
    }
}

/// Figures about all generated groups for the console.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GeneratedFacts {
    /// Rewards before a KL penalty.
    pub rewards: Option<NumberSummary>,
    /// Share of correct trajectories, by `acc`.
    pub accuracy: Option<f64>,
    /// Mean `acc`, if it has other values than 0 and 1.
    pub graded: Option<f64>,
}

/// Metrics of all groups generated for the step, dropped ones too, under `all/...`.
pub fn generated_metrics(groups: &[&Group], metrics: &mut Metrics) -> GeneratedFacts {
    let all = Members::all(groups);
    let members: Vec<&Trajectory> = all.iter().collect();
    let rewards = NumberSummary::of(members.iter().map(|member| member.reward));
    set_extremes(metrics, "all/critic/score", rewards);
    scores(&all, "all/", metrics);
    lengths(&all, "all/", metrics);
    let accuracy = pass_rate(&members);
    metrics.set_some("all/pass_rate", accuracy);
    metrics.set_some("rollout/in_group_reward_std", in_group_reward_std(groups));
    metrics.set("all/num_unscored", count_unscored(&members));
    let identical = groups.iter().filter(|group| group.is_identical_in_text()).count();
    metrics.set("train/num_identical_in_text", identical as f64);
    let acc = members.iter().filter_map(|member| member.scores.get("acc")).map(|score| score.value);
    let is_graded = acc.clone().any(|acc| !acc.is_nan() && ![0.0, 1.0].contains(&acc));
    let graded = NumberSummary::of(acc).filter(|_| is_graded).map(|summary| summary.mean);
    GeneratedFacts { rewards, accuracy, graded }
}

/// Mean over groups of the sample deviation (ddof 1) of the reward within the group, 0 for a group of
/// one. Groups with too few scored members are left out; `None` if all are. RAGEN's
/// `rollout/in_group_reward_std`.
pub fn in_group_reward_std(groups: &[&Group]) -> Option<f64> {
    let pool = Pool { ddof: 1, ..Pool::default() };
    let deviation = |group: &&Group| {
        let rewards: Vec<f64> = group.trajectories.iter().map(|member| member.reward).collect();
        pool.score_of(&GroupStatistics::of(&rewards, None))
    };
    NumberSummary::of(groups.iter().filter_map(deviation)).map(|summary| summary.mean)
}

/// Prompt tokens (once per trajectory) and completion tokens of some groups.
pub fn num_tokens(groups: &[&Group]) -> usize {
    groups
        .iter()
        .map(|group| group.prompt_token_ids.len() * group.trajectories.len() + group.num_tokens())
        .sum()
}

/// `rewards/{name}/*`, `reward_std`, `frac_reward_zero_std` under a prefix.
fn scores(members: &Members<'_>, prefix: &str, metrics: &mut Metrics) {
    let mut names: Vec<&str> =
        members.iter().flat_map(|member| member.scores.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let values = members.iter().filter_map(|member| member.scores.get(name)).map(|score| score.value);
        if let Some(summary) = NumberSummary::of(values) {
            metrics.set(format!("{prefix}rewards/{name}/mean"), summary.mean);
            metrics.set_some(format!("{prefix}rewards/{name}/std"), summary.std);
        }
    }
    let rewards = NumberSummary::of(members.iter().map(|member| member.reward));
    metrics.set_some(format!("{prefix}reward_std"), rewards.and_then(|summary| summary.std));
    let is_uniform = |group: &[&Trajectory]| has_one_value(group.iter().map(|member| member.reward));
    let uniform = members.0.iter().filter(|(_, group)| is_uniform(group)).count();
    set_share(metrics, &format!("{prefix}frac_reward_zero_std"), uniform, members.0.len());
}

/// `response_length/*`, `completions/*_terminated_length`, `prompt_length/*` under a prefix.
fn lengths(members: &Members<'_>, prefix: &str, metrics: &mut Metrics) {
    let length = |member: &Trajectory| member.num_written() as f64;
    set_extremes(metrics, &format!("{prefix}response_length"), NumberSummary::of(members.iter().map(length)));
    let truncated = members.iter().filter(|member| member.is_truncated()).count();
    set_share(metrics, &format!("{prefix}response_length/clip_ratio"), truncated, members.iter().count());
    if members.iter().next().is_some() {
        // TRL: 0 if no completion ended by itself.
        let ended = NumberSummary::of(members.iter().filter(|member| !member.is_truncated()).map(length));
        let of = |pick: fn(NumberSummary) -> f64| ended.map_or(0.0, pick);
        metrics.set(format!("{prefix}completions/mean_terminated_length"), of(|summary| summary.mean));
        metrics.set(format!("{prefix}completions/min_terminated_length"), of(|summary| summary.min));
        metrics.set(format!("{prefix}completions/max_terminated_length"), of(|summary| summary.max));
    }
    let prompts = members
        .0
        .iter()
        .flat_map(|(group, own)| std::iter::repeat_n(group.prompt_token_ids.len() as f64, own.len()));
    set_extremes(metrics, &format!("{prefix}prompt_length"), NumberSummary::of(prompts));
}

/// Share of the completions with a score `acc` that have 1 or more there; `None` if none has one.
pub fn accuracy<'s>(completions: impl IntoIterator<Item = &'s BTreeMap<String, Score>>) -> Option<f64> {
    let values = completions.into_iter().filter_map(|scores| scores.get("acc")).map(|score| score.value);
    NumberSummary::of(values.map(|acc| if acc.is_nan() { acc } else { f64::from(acc >= 1.0) }))
        .map(|summary| summary.mean)
}

fn pass_rate(members: &[&Trajectory]) -> Option<f64> {
    accuracy(members.iter().map(|member| &member.scores))
}

fn count_unscored(members: &[&Trajectory]) -> f64 {
    members.iter().filter(|member| !member.is_scored()).count() as f64
}

fn summarise_weighted(values: &[f64], weights: &[usize]) -> Option<NumberSummary> {
    let pairs: Vec<(f64, f64)> = values
        .iter()
        .zip(weights)
        .filter(|&(value, &weight)| !value.is_nan() && weight > 0)
        .map(|(&value, &weight)| (value, weight as f64))
        .collect();
    let mut summary = NumberSummary::of(pairs.iter().map(|&(value, _)| value))?;
    let total: f64 = pairs.iter().map(|&(_, weight)| weight).sum();
    summary.mean = pairs.iter().map(|&(value, weight)| value * weight).sum::<f64>() / total;
    Some(summary)
}

fn set_extremes(metrics: &mut Metrics, name: &str, summary: Option<NumberSummary>) {
    if let Some(summary) = summary {
        metrics.set(format!("{name}/mean"), summary.mean);
        metrics.set(format!("{name}/max"), summary.max);
        metrics.set(format!("{name}/min"), summary.min);
    }
}

fn set_share(metrics: &mut Metrics, name: &str, part: usize, whole: usize) {
    if whole > 0 {
        metrics.set(name, part as f64 / whole as f64);
    }
}

#[cfg(test)]
pub(crate) mod tests;
