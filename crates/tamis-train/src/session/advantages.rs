//! From the groups of a step to advantages: the columns that the estimator reads, greedy completions included, then the shapings.

use tamis_core::advantage::shaping::{GroupCounts, Shaped, ShapingBatch, shape};
use tamis_core::advantage::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Component, Estimate, Generated,
    GeneratedStatistics,
};
use tamis_core::group::{Group, GroupId, Score, Trajectory};
use tamis_core::objective::Normalisers;
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};
use tamis_rollout::{Collected, Fate, PreparedPrompt, Sampling, TicketPurpose};

use super::passes::Passes;
use super::{RunError, Session};
use crate::batch_metrics::Summary;
use crate::learner::LearnerError;
use crate::metrics::Metrics;
use crate::optimizer_batch::mask_of;
use crate::validation::{Validation, ValidationSettings, sample};

/// What a step's advantages became.
pub(super) struct Credited {
    /// Advantages after the shapings.
    pub(super) shaped: Shaped,
    /// Returns per token, where the estimator forms them `[B][T]`.
    pub(super) returns: Option<Ragged<f64>>,
    /// What the estimator carries on.
    pub(super) state: AdvantageState,
}

/// Rewards of a step after what was added to them.
pub(super) struct StepRewards {
    /// Of each trajectory `[P][G]`.
    pub(super) rewards: Ragged<f64>,
    /// The divergence that each token was charged with \[N\], where it is in the reward.
    pub(super) token_penalties: Option<Vec<f64>>,
    /// Mean divergence from the reference per token, where it is in the reward.
    pub(super) mean_kl: Option<f64>,
}

fn not_rectangular(error: &tamis_core::ragged::RaggedError) -> RunError {
    RunError::Learner(LearnerError::Engine { reason: error.to_string() })
}

/// The last token of every turn: of each run of tokens that the policy produced.
fn turn_ends(mask_t: &[bool]) -> Vec<usize> {
    (0..mask_t.len()).filter(|&t| mask_t[t] && mask_t.get(t + 1) != Some(&true)).collect()
}

/// Rewards per token `[B][T]`: what scores said of single tokens, what they said of turns at the last token of each, what is left of the
/// reward at the last token, less the divergence.
fn token_rewards(
    trajectories: &[&Trajectory],
    weights: &[(String, f64)],
    penalties: Option<&[f64]>,
) -> Ragged<f64> {
    let mut rows = Ragged::default();
    let mut start = 0;
    for trajectory in trajectories {
        let len = trajectory.token_ids.len();
        let mut row = vec![0.0; len];
        let mut rest = trajectory.reward;
        let mut add = |place: usize, reward: f64| {
            row[place] += reward;
            rest -= reward;
        };
        let ends = turn_ends(&trajectory.loss_mask);
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

impl Session {
    /// Rewards of one greedy completion of each trained prompt \[P\], NaN where it is unscored; they are not trained on.
    pub(super) fn greedy_rewards(
        &mut self,
        step: u64,
        collected: &Collected,
        metrics: &mut Metrics,
    ) -> Result<Option<Vec<f64>>, RunError> {
        if !self.advantage.needs().contains(&Column::GreedyRewards) {
            return Ok(None);
        }
        let prompts: Vec<PreparedPrompt> =
            collected.trained.iter().map(|record| record.prompt.clone()).collect();
        let settings = ValidationSettings {
            seed: self.config.run.seed,
            purpose: TicketPurpose::Greedy,
            n: 1,
            sampling: Sampling {
                temperature: 0.0,
                top_k: None,
                top_p: 1.0,
                min_p: 0.0,
                ..self.validation.sampling.clone()
            },
            num_samples_shown: 0,
            keeps_samples: false,
        };
        let journal = format!("greedy/{step}");
        let Validation { prompts: rows, report, .. } =
            sample(&mut self.engine, &mut self.scorer, &prompts, &settings, &journal, step, &mut |_| {})?;
        let rewards: Vec<f64> = rows
            .iter()
            .map(|row| {
                row.scores.get("reward").and_then(|values| values.first()).copied().unwrap_or(f64::NAN)
            })
            .collect();
        metrics
            .set_some("greedy/reward/mean", Summary::of(rewards.iter().copied()).map(|summary| summary.mean));
        metrics.set("greedy/num_completions", (report.num_prompts - report.num_failed) as f64);
        metrics.set_some("greedy/response_length/mean", report.mean_length);
        Ok(Some(rewards))
    }

    /// Advantages of the trained groups, shaped. `generated` is everything that the step generated.
    pub(super) fn credited(
        &self,
        step: u64,
        groups: &[&Group],
        generated: &[&Group],
        given: &StepRewards,
        (greedy, passes): (Option<&[f64]>, &Passes),
        counts: GroupCounts,
    ) -> Result<Credited, RunError> {
        let reads = |column: Column| {
            self.advantage.needs().contains(&column) || self.advantage.uses().contains(&column)
        };
        let trajectories: Vec<&Trajectory> = groups.iter().flat_map(|group| &group.trajectories).collect();
        let sizes: Vec<usize> = groups.iter().map(|group| group.trajectories.len()).collect();
        let weights: Vec<(String, f64)> = self
            .scorer
            .rewards()
            .functions()
            .iter()
            .filter(|named| named.weight != 0.0)
            .map(|named| (named.name.clone(), named.weight))
            .collect();
        let mask = Ragged::from_rows(trajectories.iter().map(|trajectory| &trajectory.loss_mask));
        let lengths: Vec<usize> = mask.rows().map(|mask_t| mask_t.iter().filter(|&&on| on).count()).collect();
        let has_parts = |score: &Score| score.per_token.is_some() || score.per_turn.is_some();
        let has_tokens = given.token_penalties.is_some()
            || trajectories.iter().any(|one| one.scores.values().any(has_parts));
        let token_rewards = (reads(Column::TokenRewards) && has_tokens)
            .then(|| token_rewards(&trajectories, &weights, given.token_penalties.as_deref()));
        let old = reads(Column::OldLogprobs).then(|| {
            Ragged::from_rows(
                trajectories
                    .iter()
                    .map(|one| one.logprobs.iter().map(|&logprob| f64::from(logprob)).collect::<Vec<_>>()),
            )
        });
        let value_of =
            |one: &Trajectory, name: &str| one.scores.get(name).map_or(f64::NAN, |score| score.value);
        let mut columns = Vec::new();
        let mut statistics = Vec::new();
        if reads(Column::Components) {
            for (name, _) in &weights {
                let values = trajectories.iter().map(|one| value_of(one, name)).collect();
                columns.push(Ragged::from_lengths(values, &sizes).map_err(|error| not_rectangular(&error))?);
                let mut of_generated = GeneratedStatistics::default();
                for group in generated {
                    let row: Vec<f64> = group.trajectories.iter().map(|one| value_of(one, name)).collect();
                    of_generated.add(&row);
                }
                statistics.push(of_generated);
            }
        }
        let components: Vec<Component<'_>> = weights
            .iter()
            .zip(&columns)
            .map(|((name, weight), rewards)| Component { name, weight: *weight, rewards })
            .collect();
        let rewards_of =
            |group: &&Group| -> Vec<f64> { group.trajectories.iter().map(|one| one.reward).collect() };
        let mut of_generated = GeneratedStatistics::default();
        for group in generated {
            of_generated.add(&rewards_of(group));
        }
        let batch = AdvantageBatch {
            lengths: Some(&lengths),
            mask: Some(&mask),
            token_rewards: token_rewards.as_ref(),
            old_logprobs: passes.old_logprobs.as_ref().or(old.as_ref()),
            components: (!components.is_empty()).then_some(components.as_slice()),
            values: passes.values.as_ref(),
            greedy_rewards: greedy,
            entropy: passes.entropy.as_ref(),
            sum_pi_squared: passes.sum_pi_squared.as_ref(),
            gold_logprobs: passes.gold_logprobs.as_ref(),
            generated: Some(Generated { reward: of_generated, components: &statistics }),
            ..AdvantageBatch::of_rewards(&given.rewards)
        };
        let Estimate { advantages, returns, state } =
            self.advantage.estimate(&batch, &self.advantage_state)?;
        let ids: Vec<GroupId> = groups.iter().map(|group| group.id).collect();
        let shaped = shape(
            &self.shapings,
            advantages,
            &ShapingBatch {
                batch,
                groups: counts,
                key: Key::new(self.config.run.seed, Purpose::Objective).with(step),
                group_ids: Some(&ids),
            },
        )?;
        Ok(Credited { shaped, returns, state })
    }

    /// What the filter dropped in the step, where it stays in the denominators of the loss.
    pub(super) fn dropped(&self, collected: &Collected) -> Result<Option<Normalisers>, RunError> {
        if self.config.objective.zero_groups == tamis_config::ZeroGroups::Drop {
            return Ok(None);
        }
        let mut mask = Ragged::default();
        let mut sizes = Vec::new();
        for record in collected.others.iter().chain(&self.attempts.given_up) {
            if !matches!(record.fate, Fate::Dropped(_)) {
                continue;
            }
            sizes.push(record.group.trajectories.len());
            for mask_t in mask_of(&record.group, self.update.mask_truncated) {
                mask.push_row(mask_t);
            }
        }
        Ok(Some(Normalisers::of(&mask, &sizes)?.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tamis_core::group::{FinishReason, PolicyVersion};

    /// Two turns of the policy around two tokens of an environment, then one more of it.
    fn trajectory(scores: &[(&str, Score)], reward: f64) -> Trajectory {
        Trajectory {
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
        let rows = token_rewards(&[&one], &weights, None);
        assert_eq!(rows.row(0), [1.0, 0.5, 0.0, 0.5, -1.0, 1.0]);
        assert!((rows.row(0).iter().sum::<f64>() - one.reward).abs() < 1e-12);
        let charged = token_rewards(&[&one], &weights, Some(&[0.125; 6]));
        assert_eq!(charged.row(0), [0.875, 0.375, -0.125, 0.375, -1.125, 0.875]);
    }

    #[test]
    fn an_unscored_trajectory_has_no_reward_anywhere() {
        let one = trajectory(&[("turns", Score::unanswered())], f64::NAN);
        assert_eq!(token_rewards(&[&one], &[("turns".to_owned(), 1.0)], None).row(0), [0.0; 6]);
        assert_eq!(turn_ends(&one.loss_mask), [1, 4]);
        assert_eq!(turn_ends(&[]), [0; 0]);
    }
}
