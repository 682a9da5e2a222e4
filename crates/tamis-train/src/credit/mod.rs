//! Credit: from the groups of a step to the columns that the estimator reads, and from these to advantages.

pub(crate) mod batch;
pub(crate) mod members;
pub(crate) mod passes;
pub(crate) mod reference;

use std::time::Instant;

use tamis_core::advantage::shaping::{RoundCounts, Shaped, ShapingBatch, shape};
use tamis_core::advantage::{
    AdvantageBatch, AdvantageState, Column, Component, Estimate, Generated, GeneratedStatistics,
};
use tamis_core::fault::Fault;
use tamis_core::group::{Group, GroupId, Score, Trajectory};
use tamis_core::objective::{KlState, Normalisers};
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};
use tamis_rollout::{Fate, PreparedPrompt, Record};

use crate::assemble::objective::Divergence;
use crate::assemble::recipe::Recipe;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::LearnerError;
use crate::learner::critic::values;
use crate::learner::micro_batch::sequences;
use crate::learner::optimizer_batch::mask_of;
use crate::measure::validation::{Validation, sample};
use crate::workers::Workers;
use batch::StepBatch;
use members::TrainedMembers;
use passes::Passes;
use reference::{penalty, recomputed_logprobs, reference_column, reference_logprobs};
use tamis_run::metrics::summary::NumberSummary;
use tamis_run::metrics::timings::{OLD_LOGPROBS, Timings};

/// Everything that advantages are made of. Rows are trajectories of the trained groups in order \[B\], or
/// groups \[P\].
pub(crate) struct CreditColumns {
    /// Rewards that are compared `[P][G]`, after the KL penalty where it is in the reward; NaN for a member
    /// that is not compared.
    pub(crate) rewards: Ragged<f64>,
    /// The same \[B\], where the KL is in the reward.
    pub(crate) final_rewards: Option<Vec<f64>>,
    /// Coefficient of the divergence in the reward from now on, where there is such a divergence.
    pub(crate) reward_kl: Option<KlState>,
    /// Log-probabilities under the reference `[B][T]`, where there is one.
    pub(crate) reference: Option<Ragged<f32>>,
    /// Values of the critic `[B][T]`, where there is one.
    pub(crate) values: Option<Ragged<f64>>,
    token_rewards: Option<Ragged<f64>>,
    mask: Ragged<bool>,
    /// The turn of each token `[B][T]`, where there are episodes.
    turns: Option<Ragged<u32>>,
    lengths: Vec<usize>,
    /// Log-probabilities under the policy before the step `[B][T]`, where a sampler did not say them.
    pub(crate) recomputed: Option<Ragged<f32>>,
    /// As generation gave them otherwise recomputed, where the estimator reads them.
    sampled_logprobs: Option<Ragged<f64>>,
    passes: Passes,
    /// Reward of the greedy completion of each prompt \[P\], NaN where it is unscored.
    greedy: Option<Vec<f64>>,
    /// The same completions for the metrics.
    pub(crate) greedy_facts: Option<GreedyFacts>,
    /// The divergence in the reward for the metrics, where it is there.
    pub(crate) kl_facts: Option<RewardKlFacts>,
    /// Scores by reward function, with its name and weight.
    components: Vec<(String, f64, Ragged<f64>)>,
    generated: GeneratedStatistics,
    generated_components: Vec<GeneratedStatistics>,
}

/// Rewards of the greedy completions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GreedyFacts {
    pub(crate) mean_reward: Option<f64>,
    pub(crate) num_completions: usize,
    pub(crate) mean_length: Option<f64>,
}

/// The divergence from the reference in the reward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RewardKlFacts {
    /// Mean per token.
    pub(crate) mean: f64,
    /// Coefficient that the divergence was multiplied by.
    pub(crate) coefficient: f64,
}

/// Advantages of a step's members, with everything computed on the way.
pub(crate) struct Credit {
    /// Advantages after the shapings.
    pub(crate) shaped: Shaped,
    /// Returns per token, where the estimator forms them `[B][T]`.
    pub(crate) returns: Option<Ragged<f64>>,
    /// State that the estimator carries to the next step.
    pub(crate) state: AdvantageState,
}

fn not_rectangular(error: &Fault) -> RunError {
    RunError::Learner(LearnerError::Engine { reason: error.to_string() })
}

/// The turn of each token \[T\]; what an environment wrote counts for the turn before it.
fn turns_of_tokens(trajectory: &Trajectory) -> Vec<u32> {
    let mut turns = vec![0; trajectory.token_ids.len()];
    let episode = trajectory.episode.iter().flat_map(|episode| &episode.turns);
    for (number, turn) in episode.enumerate() {
        if let Some(from) = turns.get_mut(turn.start as usize..) {
            from.fill(number as u32);
        }
    }
    turns
}

/// Rewards per token `[B][T]`: what scores said of single tokens, what they said of turns at the last token
/// of each, what is left of the reward \[B\] at the last token, less the divergence.
fn token_rewards(
    trajectories: &[&Trajectory],
    rewards: &[f64],
    weights: &[(String, f64)],
    penalties: Option<&[f64]>,
) -> Ragged<f64> {
    let mut rows = Ragged::default();
    let mut start = 0;
    for (trajectory, reward) in trajectories.iter().zip(rewards) {
        let len = trajectory.token_ids.len();
        let mut row = vec![0.0; len];
        let mut rest = *reward;
        let mut add = |place: usize, reward: f64| {
            row[place] += reward;
            rest -= reward;
        };
        let ends = trajectory.turn_ends();
        for (name, weight) in weights {
            // Lengths were checked where the scores came in.
            let Some(score) = trajectory.scores.get(name) else { continue };
            if let Some(parts) = score.per_token.as_ref().filter(|parts| parts.len() == len) {
                parts.iter().enumerate().for_each(|(place, part)| add(place, weight * part));
            } else if let Some(parts) = score.per_turn.as_ref().filter(|parts| parts.len() == ends.len()) {
                ends.iter().zip(parts).for_each(|(&end, part)| add(end, weight * part));
            }
        }
        if let Some(last) = row.last_mut().filter(|_| !rest.is_nan()) {
            *last += rest;
        }
        if let Some(penalties) = penalties {
            for (sum, penalty) in row.iter_mut().zip(&penalties[start..start + len]) {
                *sum -= penalty;
            }
        }
        rows.push_row(row);
        start += len;
    }
    rows
}

/// Fills every column that the estimator reads, with the passes and completions that some of them take.
pub(crate) fn columns(
    recipe: &Recipe,
    workers: &mut Workers,
    reward_kl: Option<KlState>,
    batch: &StepBatch,
    members: &TrainedMembers,
    timings: &mut Timings,
) -> Result<CreditColumns, Halt<RunError>> {
    let groups = batch.groups();
    let micro_batch = recipe.update.micro_batch;
    let clock = Instant::now();
    let (greedy, greedy_facts) = if recipe.needs(Column::GreedyRewards) {
        let (rewards, facts) = greedy_rewards(recipe, workers, batch.report.step, &batch.trained)?;
        timings.add("gen_max", clock.elapsed());
        (Some(rewards), Some(facts))
    } else {
        (None, None)
    };
    // Nothing more is sampled until weights are published, and a learner on the servers' GPU may need their
    // memory: it computes nothing before.
    workers.sampler.put_to_sleep().map_err(RunError::from)?;
    let clock = Instant::now();
    let recomputed = recomputed_logprobs(&mut *workers.learner, &groups, micro_batch)?;
    if recomputed.is_some() {
        timings.add(OLD_LOGPROBS, clock.elapsed());
    }
    let clock = Instant::now();
    let reference = match recipe.divergence {
        Divergence::None => None,
        Divergence::InLoss | Divergence::InReward { .. } => {
            let pass = |groups: &[&Group]| {
                reference_logprobs(&mut *workers.learner, recipe.reference(), groups, micro_batch)
            };
            let column = reference_column(&batch.trained, pass)?;
            timings.add("ref", clock.elapsed());
            Some(column)
        }
    };
    let clock = Instant::now();
    let passes = Passes::run(recipe, workers, &groups)?;
    if !passes.is_empty() {
        timings.add("advantage_passes", clock.elapsed());
    }
    let clock = Instant::now();
    let values = if recipe.critic.is_some() {
        let values = values(&mut *workers.learner, &sequences(&groups), micro_batch)?;
        timings.add("values", clock.elapsed());
        Some(values)
    } else {
        None
    };

    let clock = Instant::now();
    let mut rewards = members.rewards(&groups);
    let (mut final_rewards, mut penalties, mut kl_facts, mut reward_kl) = (None, None, None, reward_kl);
    if let (Divergence::InReward { estimator, controller }, Some(reference)) = (recipe.divergence, &reference)
    {
        let state = reward_kl.unwrap_or_else(|| controller.initial());
        let penalty = penalty(estimator, state.coef, &groups, recomputed.as_ref(), reference)?;
        let left = penalty.off(rewards.values().iter().copied());
        kl_facts = Some(RewardKlFacts { mean: penalty.mean_kl, coefficient: state.coef });
        reward_kl = Some(controller.update(state, penalty.mean_kl, left.len() as f64));
        rewards =
            Ragged::from_lengths(left.clone(), &batch.sizes()).map_err(|error| not_rectangular(&error))?;
        (final_rewards, penalties) = (Some(left), Some(penalty.of_tokens));
    }

    let trajectories: Vec<&Trajectory> = groups.iter().flat_map(|group| &group.trajectories).collect();
    let weights: Vec<(String, f64)> = workers
        .scorer
        .rewards()
        .functions()
        .iter()
        .filter(|named| named.weight != 0.0)
        .map(|named| (named.name.clone(), named.weight))
        .collect();
    let mask = Ragged::from_rows(trajectories.iter().map(|trajectory| &trajectory.loss_mask));
    let has_episodes = trajectories.iter().any(|one| one.episode.is_some());
    let turns = has_episodes.then(|| Ragged::from_rows(trajectories.iter().map(|one| turns_of_tokens(one))));
    let has_parts = |score: &Score| score.per_token.is_some() || score.per_turn.is_some();
    let has_tokens = penalties.is_some() || trajectories.iter().any(|one| one.scores.values().any(has_parts));
    let token_rewards = (recipe.reads(Column::TokenRewards) && has_tokens).then(|| {
        let whole = members.rewards(&groups);
        token_rewards(&trajectories, whole.values(), &weights, penalties.as_deref())
    });
    let generated = batch.generated_records();
    let mut of_generated = GeneratedStatistics::default();
    for record in &generated {
        let rewards: Vec<f64> = record.group.trajectories.iter().map(|one| one.reward).collect();
        of_generated.add(&rewards);
    }
    let value_of = |one: &Trajectory, name: &str| one.scores.get(name).map_or(f64::NAN, |score| score.value);
    let (mut components, mut generated_components) = (Vec::new(), Vec::new());
    for (name, weight) in weights.iter().filter(|_| recipe.reads(Column::Components)) {
        let values = trajectories.iter().map(|one| value_of(one, name)).collect();
        let values = Ragged::from_lengths(values, &batch.sizes()).map_err(|error| not_rectangular(&error))?;
        components.push((name.clone(), *weight, values));
        let mut of_component = GeneratedStatistics::default();
        for record in &generated {
            let row: Vec<f64> = record.group.trajectories.iter().map(|one| value_of(one, name)).collect();
            of_component.add(&row);
        }
        generated_components.push(of_component);
    }
    let sampled_logprobs = recipe.reads(Column::OldLogprobs).then(|| {
        let row = |logprobs: &[f32]| -> Vec<f64> { logprobs.iter().map(|&one| f64::from(one)).collect() };
        match &recomputed {
            Some(recomputed) => Ragged::from_rows(recomputed.rows().map(row)),
            None => Ragged::from_rows(trajectories.iter().map(|one| row(&one.logprobs))),
        }
    });
    timings.add("adv", clock.elapsed());
    Ok(CreditColumns {
        rewards,
        final_rewards,
        reward_kl,
        reference,
        values,
        token_rewards,
        lengths: mask.rows().map(|mask_t| mask_t.iter().filter(|&&on| on).count()).collect(),
        mask,
        turns,
        recomputed,
        sampled_logprobs,
        passes,
        greedy,
        greedy_facts,
        kl_facts,
        components,
        generated: of_generated,
        generated_components,
    })
}

/// Advantages of the trained groups, shaped.
pub(crate) fn assign(
    recipe: &Recipe,
    before: &AdvantageState,
    batch: &StepBatch,
    columns: &CreditColumns,
    timings: &mut Timings,
) -> Result<Credit, RunError> {
    let clock = Instant::now();
    let components: Vec<Component<'_>> = columns
        .components
        .iter()
        .map(|(name, weight, rewards)| Component { name, weight: *weight, rewards })
        .collect();
    let of_estimator = AdvantageBatch {
        lengths: Some(&columns.lengths),
        mask: Some(&columns.mask),
        turns: columns.turns.as_ref(),
        token_rewards: columns.token_rewards.as_ref(),
        old_logprobs: columns.passes.old_logprobs.as_ref().or(columns.sampled_logprobs.as_ref()),
        components: (!components.is_empty()).then_some(components.as_slice()),
        values: columns.values.as_ref(),
        greedy_rewards: columns.greedy.as_deref(),
        entropy: columns.passes.entropy.as_ref(),
        sum_pi_squared: columns.passes.sum_pi_squared.as_ref(),
        gold_logprobs: columns.passes.gold_logprobs.as_ref(),
        generated: Some(Generated { reward: columns.generated, components: &columns.generated_components }),
        ..AdvantageBatch::of_rewards(&columns.rewards)
    };
    let Estimate { advantages, returns, state } = recipe.advantage.estimate(&of_estimator, before)?;
    let ids: Vec<GroupId> = batch.trained.iter().map(|record| record.group.id).collect();
    let tally = &batch.report.all;
    let shaped = shape(
        &recipe.shapings,
        advantages,
        &ShapingBatch {
            batch: of_estimator,
            groups: RoundCounts { kept: tally.kept, generated: tally.groups },
            key: Key::new(recipe.config.run.seed, Purpose::Objective).with(batch.report.step),
            group_ids: Some(&ids),
        },
    )?;
    timings.add("adv", clock.elapsed());
    Ok(Credit { shaped, returns, state })
}

/// Groups, trajectories and tokens that the filter dropped in the step, where they stay in the denominators
/// of the loss.
pub(crate) fn count_dropped(recipe: &Recipe, others: &[Record]) -> Result<Option<Normalisers>, RunError> {
    if !recipe.counts_dropped() {
        return Ok(None);
    }
    let mut mask = Ragged::default();
    let mut sizes = Vec::new();
    let dropped: Vec<&Record> =
        others.iter().filter(|record| matches!(record.fate, Fate::Dropped(_))).collect();
    for record in &dropped {
        sizes.push(record.group.trajectories.len());
        for mask_t in mask_of(&record.group, recipe.update.mask_truncated) {
            mask.push_row(mask_t);
        }
    }
    let weights = recipe.selection_weights(dropped);
    Ok(Some(Normalisers::weighted(&mask, &sizes, weights.as_deref())?.0))
}

/// Rewards of one greedy completion of each trained prompt \[P\], NaN where it is unscored; they are not
/// trained on.
fn greedy_rewards(
    recipe: &Recipe,
    workers: &mut Workers,
    step: u64,
    trained: &[Record],
) -> Result<(Vec<f64>, GreedyFacts), Halt<RunError>> {
    // Copies come after all that they are copies of, and need no completion of their own.
    let own: Vec<&Record> = trained.iter().filter(|record| !record.is_copy()).collect();
    let prompts: Vec<PreparedPrompt> = own.iter().map(|record| record.prompt.clone()).collect();
    let journal = format!("greedy/{step}");
    let settings = recipe.greedy();
    let Validation { prompts: rows, report, .. } =
        sample(workers.validation_workers(), &prompts, &settings, &journal, step, &mut |_| {})?;
    let mut rewards: Vec<f64> = rows
        .iter()
        .map(|row| row.scores.get("reward").and_then(|values| values.first()).copied().unwrap_or(f64::NAN))
        .collect();
    let found = GreedyFacts {
        mean_reward: NumberSummary::of(rewards.iter().copied()).map(|summary| summary.mean),
        num_completions: report.num_prompts - report.num_failed,
        mean_length: report.mean_length,
    };
    for copy in &trained[own.len()..] {
        let place = own.iter().position(|record| record.group.id == copy.group.id);
        rewards.push(place.map_or(f64::NAN, |place| rewards[place]));
    }
    Ok((rewards, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tamis_core::group::{Episode, FinishReason, PolicyVersion, Turn};

    /// Two turns of the policy around two tokens of an environment, then one more of it.
    fn trajectory(scores: &[(&str, Score)], reward: f64) -> Trajectory {
        let turn = |start, end| Turn { start, end, ..Turn::default() };
        let turns = vec![turn(0, 2), turn(4, 5)];
        Trajectory {
            episode: Some(Episode { turns, ..Episode::default() }),
            sample_index: 0,
            text: String::new(),
            token_ids: vec![0; 6],
            logprobs: vec![-1.0; 6],
            entropy: None,
            loss_mask: vec![true, true, false, false, true, false],
            finish_reason: FinishReason::Stop,
            versions: (PolicyVersion(0), PolicyVersion(0)),
            scores: scores.iter().map(|(name, score)| ((*name).to_owned(), score.clone())).collect(),
            reward,
        }
    }

    #[test]
    fn rewards_of_tokens_and_turns_stand_where_they_were_given() {
        let process = Score { per_token: Some(vec![0.5, 0.0, 0.0, 0.25, 0.0, 0.0]), ..Score::of(0.75) };
        let turns = Score { per_turn: Some(vec![1.0, -2.0]), ..Score::of(-1.0) };
        let outcome = Score::of(1.0);
        let weights = [("process", 2.0), ("turns", 0.5), ("outcome", 1.0)]
            .map(|(name, weight)| (name.to_owned(), weight));
        // 2·0.75 - 0.5 + 1, of which 1 came for the whole.
        let one = trajectory(&[("process", process), ("turns", turns), ("outcome", outcome)], 2.0);
        let rows = token_rewards(&[&one], &[one.reward], &weights, None);
        assert_eq!(rows.row(0), [1.0, 0.5, 0.0, 0.5, -1.0, 1.0]);
        assert!((rows.row(0).iter().sum::<f64>() - one.reward).abs() < 1e-12);
        let charged = token_rewards(&[&one], &[one.reward], &weights, Some(&[0.125; 6]));
        assert_eq!(charged.row(0), [0.875, 0.375, -0.125, 0.375, -1.125, 0.875]);
    }

    #[test]
    fn an_unscored_trajectory_has_no_reward_anywhere() {
        let one = trajectory(&[("turns", Score::unanswered())], f64::NAN);
        assert_eq!(token_rewards(&[&one], &[f64::NAN], &[("turns".to_owned(), 1.0)], None).row(0), [0.0; 6]);
        assert_eq!(one.turn_ends(), [1, 4]);
        assert_eq!(turns_of_tokens(&one), [0, 0, 0, 0, 1, 1]);
        let whole = Trajectory { episode: None, ..one };
        assert_eq!((whole.turn_ends(), turns_of_tokens(&whole)), (vec![5], vec![0; 6]));
    }
}
