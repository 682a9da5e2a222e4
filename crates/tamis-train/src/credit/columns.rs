//! The columns that an estimator reads of a step's groups.

use tamis_core::advantage::{AdvantageBatch, Column, Component, Generated, GeneratedStatistics};
use tamis_core::group::{Score, Trajectory};
use tamis_core::objective::KlState;
use tamis_core::ragged::Ragged;
use tamis_env::reward::NamedReward;
use tamis_rollout::Record;

use super::batch::TrainedGroups;
use super::passes::Passes;
use super::reference::penalty;
use crate::assemble::objective::Divergence;
use crate::assemble::recipe::Recipe;
use crate::error::RunError;
use crate::learner::LearnerError;
use tamis_run::metrics::summary::NumberSummary;

/// Everything that advantages are made of. Rows are trajectories of the trained groups in order \[B\], or
/// groups \[P\].
pub(crate) struct CreditColumns {
    pub(crate) passes: Passes,
    /// Rewards that are compared `[P][G]`, after the KL penalty if it is in the reward; NaN for a member that
    /// is not compared.
    pub(crate) rewards: Ragged<f64>,
    /// The divergence in the reward, if it is there.
    pub(crate) reward_kl: Option<RewardKl>,
    token_rewards: Option<Ragged<f64>>,
    mask: Ragged<bool>,
    /// The turn of each token `[B][T]`, if there are episodes.
    turns: Option<Ragged<u32>>,
    lengths: Vec<usize>,
    /// Log-probabilities under the policy before the step, if the estimator reads them `[B][T]`.
    old_logprobs: Option<Ragged<f64>>,
    components: Vec<ComponentColumn>,
    generated: GeneratedStatistics,
    generated_components: Vec<GeneratedStatistics>,
}

/// Scores of a reward function `[P][G]`.
struct ComponentColumn {
    name: String,
    weight: f64,
    scores: Ragged<f64>,
}

/// Rewards less the divergence from the reference.
pub(crate) struct RewardKl {
    /// Each reward \[B\] after that.
    pub(crate) final_rewards: Vec<f64>,
    pub(crate) next: KlState,
    /// The divergence for the metrics.
    pub(crate) facts: RewardKlFacts,
    /// Penalty of each token \[N\].
    of_tokens: Vec<f64>,
}

/// The divergence from the reference in the reward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RewardKlFacts {
    /// Mean per token.
    pub(crate) mean: f64,
    /// Coefficient that the divergence was multiplied by.
    pub(crate) coefficient: f64,
}

/// The columns that the estimator reads. `reward_kl` is the coefficient of the divergence in the reward
/// before the step, `functions` are the reward functions.
pub(crate) fn columns(
    recipe: &Recipe,
    reward_kl: Option<KlState>,
    functions: &[NamedReward],
    generated: &[&Record],
    trained: &TrainedGroups<'_>,
    passes: Passes,
) -> Result<CreditColumns, RunError> {
    let reward_kl = RewardKl::take_off(recipe, reward_kl, trained, &passes)?;
    let rectangular = |values: Vec<f64>| {
        Ragged::from_lengths(values, &trained.sizes()).map_err(|error| not_rectangular(&error))
    };
    let rewards = match &reward_kl {
        Some(left) => rectangular(left.final_rewards.clone())?,
        None => trained.rewards.clone(),
    };
    let trajectories = trained.trajectories();
    let weighted: Vec<&NamedReward> = functions.iter().filter(|named| named.weight != 0.0).collect();
    let has_parts = |score: &Score| score.per_token.is_some() || score.per_turn.is_some();
    let has_tokens = reward_kl.is_some() || trajectories.iter().any(|one| one.scores.values().any(has_parts));
    let token_rewards = (recipe.reads(Column::TokenRewards) && has_tokens).then(|| {
        let weights: Vec<(&str, f64)> =
            weighted.iter().map(|named| (named.name.as_str(), named.weight)).collect();
        let penalties = reward_kl.as_ref().map(|penalty| penalty.of_tokens.as_slice());
        token_rewards(&trajectories, trained.rewards.values(), &weights, penalties)
    });
    let statistics = |of: &dyn Fn(&Trajectory) -> f64| {
        let mut statistics = GeneratedStatistics::default();
        for record in generated {
            let row: Vec<f64> = record.group.trajectories.iter().map(of).collect();
            statistics.add(&row);
        }
        statistics
    };
    let (mut components, mut generated_components) = (Vec::new(), Vec::new());
    for named in weighted.iter().filter(|_| recipe.reads(Column::Components)) {
        let score = |one: &Trajectory| one.scores.get(&named.name).map_or(f64::NAN, |score| score.value);
        components.push(ComponentColumn {
            name: named.name.clone(),
            weight: named.weight,
            scores: rectangular(trajectories.iter().map(|one| score(one)).collect())?,
        });
        generated_components.push(statistics(&score));
    }
    let known = || {
        let row = |logprobs: &[f32]| -> Vec<f64> { logprobs.iter().map(|&one| f64::from(one)).collect() };
        Ragged::from_rows(passes.old.rows(&trained.groups).map(row))
    };
    let old_logprobs = match &passes.of_estimator.old_logprobs {
        Some(passed) => Some(passed.clone()),
        None => recipe.reads(Column::OldLogprobs).then(known),
    };
    let mask = Ragged::from_rows(trajectories.iter().map(|trajectory| &trajectory.loss_mask));
    let has_episodes = trajectories.iter().any(|one| one.episode.is_some());
    Ok(CreditColumns {
        rewards,
        reward_kl,
        token_rewards,
        lengths: mask.rows().map(|mask_t| mask_t.iter().filter(|&&on| on).count()).collect(),
        mask,
        turns: has_episodes.then(|| Ragged::from_rows(trajectories.iter().map(|one| turns_of_tokens(one)))),
        old_logprobs,
        components,
        generated: statistics(&|one| one.reward),
        generated_components,
        passes,
    })
}

impl RewardKl {
    /// Takes the divergence off the rewards, if the recipe has it there.
    fn take_off(
        recipe: &Recipe,
        before: Option<KlState>,
        trained: &TrainedGroups<'_>,
        passes: &Passes,
    ) -> Result<Option<Self>, RunError> {
        let (Divergence::InReward { estimator, controller }, Some(reference)) =
            (recipe.divergence, &passes.reference)
        else {
            return Ok(None);
        };
        let state = before.unwrap_or_else(|| controller.initial());
        let penalty = penalty(estimator, state.coef, &trained.groups, &passes.old, reference)?;
        let final_rewards = penalty.off(trained.rewards.values().iter().copied());
        Ok(Some(Self {
            next: controller.update(state, penalty.mean_kl, final_rewards.len() as f64),
            facts: RewardKlFacts { mean: penalty.mean_kl, coefficient: state.coef },
            of_tokens: penalty.of_tokens,
            final_rewards,
        }))
    }
}

impl CreditColumns {
    /// The estimator's input; `components` are those of [`Self::components`].
    pub(super) fn batch<'a>(&'a self, components: &'a [Component<'a>]) -> AdvantageBatch<'a> {
        let passes = &self.passes;
        AdvantageBatch {
            lengths: Some(&self.lengths),
            mask: Some(&self.mask),
            turns: self.turns.as_ref(),
            token_rewards: self.token_rewards.as_ref(),
            old_logprobs: self.old_logprobs.as_ref(),
            components: (!components.is_empty()).then_some(components),
            values: passes.values.as_ref(),
            greedy_rewards: passes.greedy.as_ref().map(|greedy| greedy.rewards.as_slice()),
            entropy: passes.of_estimator.entropy.as_ref(),
            sum_pi_squared: passes.of_estimator.sum_pi_squared.as_ref(),
            gold_logprobs: passes.of_estimator.gold_logprobs.as_ref(),
            teacher_logprobs: passes.teacher.as_ref(),
            generated: Some(Generated { reward: self.generated, components: &self.generated_components }),
            ..AdvantageBatch::of_rewards(&self.rewards)
        }
    }

    /// Mean over the policy's tokens of `log p - log p_teacher`, an estimate of the divergence from the
    /// teacher in nats; `None` without a teacher or without a token.
    pub(crate) fn teacher_kl(&self) -> Option<f64> {
        let (old, teacher) = (self.old_logprobs.as_ref()?, self.passes.teacher.as_ref()?);
        let tokens = old.values().iter().zip(teacher.values()).zip(self.mask.values());
        let trained = tokens.filter(|(_, on)| **on).map(|((old, teacher), _)| old - teacher);
        NumberSummary::of(trained).map(|summary| summary.mean)
    }

    pub(super) fn components(&self) -> Vec<Component<'_>> {
        let of = self.components.iter();
        of.map(|one| Component { name: &one.name, weight: one.weight, rewards: &one.scores }).collect()
    }
}

fn not_rectangular(error: &tamis_core::fault::Fault) -> RunError {
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

/// Rewards per token `[B][T]`: scores of single tokens there, scores of turns at the last token of
/// each, the rest of the reward \[B\] at the last token, less the divergence.
fn token_rewards(
    trajectories: &[&Trajectory],
    rewards: &[f64],
    weights: &[(&str, f64)],
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
            // Lengths were checked when the scores came in.
            let Some(score) = trajectory.scores.get(*name) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::trajectory;
    use tamis_core::group::{Episode, Turn};

    /// Two turns of the policy around two tokens of an environment, then one more of it.
    fn played(scores: &[(&str, Score)], reward: f64) -> Trajectory {
        let turn = |start, end| Turn { start, end, ..Turn::default() };
        let turns = vec![turn(0, 2), turn(4, 5)];
        Trajectory {
            episode: Some(Episode { turns, ..Episode::default() }),
            scores: scores.iter().map(|(name, score)| ((*name).to_owned(), score.clone())).collect(),
            ..trajectory(vec![true, true, false, false, true, false], reward)
        }
    }

    #[test]
    fn rewards_of_tokens_and_turns_stand_where_they_were_given() {
        let process = Score { per_token: Some(vec![0.5, 0.0, 0.0, 0.25, 0.0, 0.0]), ..Score::of(0.75) };
        let turns = Score { per_turn: Some(vec![1.0, -2.0]), ..Score::of(-1.0) };
        let outcome = Score::of(1.0);
        let weights = [("process", 2.0), ("turns", 0.5), ("outcome", 1.0)];
        // 2·0.75 - 0.5 + 1; the last 1 came for the whole.
        let one = played(&[("process", process), ("turns", turns), ("outcome", outcome)], 2.0);
        let rows = token_rewards(&[&one], &[one.reward], &weights, None);
        assert_eq!(rows.row(0), [1.0, 0.5, 0.0, 0.5, -1.0, 1.0]);
        assert!((rows.row(0).iter().sum::<f64>() - one.reward).abs() < 1e-12);
        let charged = token_rewards(&[&one], &[one.reward], &weights, Some(&[0.125; 6]));
        assert_eq!(charged.row(0), [0.875, 0.375, -0.125, 0.375, -1.125, 0.875]);
    }

    #[test]
    fn an_unscored_trajectory_has_no_reward_anywhere() {
        let one = played(&[("turns", Score::unanswered())], f64::NAN);
        assert_eq!(token_rewards(&[&one], &[f64::NAN], &[("turns", 1.0)], None).row(0), [0.0; 6]);
        assert_eq!(one.turn_ends(), [1, 4]);
        assert_eq!(turns_of_tokens(&one), [0, 0, 0, 0, 1, 1]);
        let whole = Trajectory { episode: None, ..one };
        assert_eq!((whole.turn_ends(), turns_of_tokens(&whole)), (vec![5], vec![0; 6]));
    }
}
