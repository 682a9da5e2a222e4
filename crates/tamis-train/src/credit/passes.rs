//! Work of the networks on a step's groups at the start of the step: completions to compare with, and
//! forward passes.

use std::time::Instant;

use tamis_core::advantage::Column;
use tamis_core::group::Group;
use tamis_core::ragged::Ragged;
use tamis_rollout::{PreparedPrompt, Record};

use super::batch::TrainedGroups;
use super::reference::{known_logprobs, reference_column};
use crate::assemble::objective::Divergence;
use crate::assemble::recipe::Recipe;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::critic::values;
use crate::learner::micro_batch::logprobs;
use crate::learner::micro_batch::{MicroBatch, forward_all, rows, sequences};
use crate::learner::old_logprobs::OldLogprobs;
use crate::learner::taught::Taught;
use crate::learner::{Learner, LearnerSequence, Network, Pass};
use crate::measure::validation::Validation;
use crate::workers::Workers;
use crate::workers::teachers::RatingSizes;
use tamis_run::metrics::summary::NumberSummary;
use tamis_run::metrics::timings::{OLD_LOGPROBS, TEACHER, Timings};

/// Outputs of the networks for the trained groups.
pub(crate) struct Passes {
    /// The greedy completion of each prompt, if the estimator compares with it.
    pub(crate) greedy: Option<Greedy>,
    /// Log-probabilities under the policy before the step, as far as passes need them.
    pub(crate) old: OldLogprobs,
    /// Log-probabilities under the reference `[B][T]`, if there is one.
    pub(crate) reference: Option<Ragged<f32>>,
    /// Log-probabilities under the teachers `[B][T]`, if there are some.
    pub(crate) teacher: Option<Ragged<f64>>,
    /// The teachers' likeliest tokens, if the loss compares with them.
    pub(crate) taught: Option<Taught>,
    /// Values of the critic `[B][T]`, if there is one.
    pub(crate) values: Option<Ragged<f64>>,
    /// Columns that only some estimators need.
    pub(crate) of_estimator: EstimatorPasses,
}

/// The greedy completions of a step's prompts; they are not trained on.
pub(crate) struct Greedy {
    /// Reward of each \[P\], NaN if it is unscored.
    pub(crate) rewards: Vec<f64>,
    /// The same for the metrics.
    pub(crate) facts: GreedyFacts,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GreedyFacts {
    pub(crate) mean_reward: Option<f64>,
    pub(crate) num_completions: usize,
    pub(crate) mean_length: Option<f64>,
}

/// Columns of the estimator that take a pass of their own `[B][T]`.
#[derive(Default)]
pub(crate) struct EstimatorPasses {
    /// Log-probabilities under the policy as the step begins, if an earlier one sampled.
    pub(crate) old_logprobs: Option<Ragged<f64>>,
    /// Entropies in nats.
    pub(crate) entropy: Option<Ragged<f64>>,
    /// Sums of squared probabilities.
    pub(crate) sum_pi_squared: Option<Ragged<f64>>,
    /// Log-probabilities with the gold answer in the prompt.
    pub(crate) gold_logprobs: Option<Ragged<f64>>,
}

/// Runs every pass that the recipe takes over the trained groups of a step.
pub(crate) fn passes(
    recipe: &Recipe,
    workers: &mut Workers,
    step: u64,
    trained: &TrainedGroups<'_>,
    timings: &mut Timings,
) -> Result<Passes, Halt<RunError>> {
    let micro_batch = recipe.update.micro_batch;
    let clock = Instant::now();
    let greedy = if recipe.needs(Column::GreedyRewards) {
        let greedy = Greedy::sample(recipe, workers, step, trained.records)?;
        timings.add("gen_max", clock.elapsed());
        Some(greedy)
    } else {
        None
    };
    // Nothing more is sampled until weights are published, and a learner on the servers' GPU may need their
    // memory: it computes nothing before.
    workers.sampler.put_to_sleep().map_err(RunError::from)?;
    let clock = Instant::now();
    let old = known_logprobs(&mut *workers.learner, &trained.groups, &trained.sequences, micro_batch)?;
    if old != OldLogprobs::AsSampled {
        timings.add(OLD_LOGPROBS, clock.elapsed());
    }
    let clock = Instant::now();
    let reference = if recipe.divergence == Divergence::None {
        None
    } else {
        let pass = |groups: &[&Group]| {
            logprobs(&mut *workers.learner, recipe.reference(), &sequences(groups), micro_batch)
        };
        let column = reference_column(trained.records, pass)?;
        timings.add("ref", clock.elapsed());
        Some(column)
    };
    let clock = Instant::now();
    let of_estimator = EstimatorPasses::run(recipe, workers, trained)?;
    if !of_estimator.is_empty() {
        timings.add("advantage_passes", clock.elapsed());
    }
    let clock = Instant::now();
    let (teacher, taught) = if recipe.is_taught() {
        let Workers { teachers, learner, .. } = workers;
        let TrainedGroups { records, sequences, .. } = trained;
        let num_top = recipe.objective.distillation.map(|distillation| distillation.top_k);
        let sizes = RatingSizes { micro_batch, num_top };
        let rated = teachers.rate(&mut **learner, step, records, sequences, sizes)?;
        timings.add(TEACHER, clock.elapsed());
        (Some(Ragged::from_rows(rated.logprobs.rows().map(widened))), num_top.map(|_| rated))
    } else {
        (None, None)
    };
    let clock = Instant::now();
    let values = if recipe.critic.is_some() {
        let values = values(&mut *workers.learner, &trained.sequences, micro_batch)?;
        timings.add("values", clock.elapsed());
        Some(values)
    } else {
        None
    };
    Ok(Passes { greedy, old, reference, teacher, taught, values, of_estimator })
}

impl Greedy {
    /// Samples and scores one greedy completion of each trained prompt.
    fn sample(
        recipe: &Recipe,
        workers: &mut Workers,
        step: u64,
        trained: &[Record],
    ) -> Result<Self, Halt<RunError>> {
        // Copies come after all that they are copies of, and need no completion of their own.
        let own: Vec<&Record> = trained.iter().filter(|record| !record.is_copy()).collect();
        let prompts: Vec<PreparedPrompt> = own.iter().map(|record| record.prompt.clone()).collect();
        let journal = format!("greedy/{step}");
        let Validation { prompts: rows, report, .. } =
            workers.sample(&prompts, &recipe.greedy(), journal, step, &mut |_| {})?;
        let mut rewards: Vec<f64> = rows
            .iter()
            .map(|row| {
                row.scores.get("reward").and_then(|values| values.first()).copied().unwrap_or(f64::NAN)
            })
            .collect();
        let facts = GreedyFacts {
            mean_reward: NumberSummary::of(rewards.iter().copied()).map(|summary| summary.mean),
            num_completions: report.num_prompts - report.num_failed,
            mean_length: report.mean_length,
        };
        for copy in &trained[own.len()..] {
            let place = own.iter().position(|record| record.group.id == copy.group.id);
            rewards.push(place.map_or(f64::NAN, |place| rewards[place]));
        }
        Ok(Self { rewards, facts })
    }
}

fn widened(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&one| f64::from(one)).collect()
}

/// `Σ π² = Σ e^2z / (Σ e^z)²` from the log-probabilities of one and the same token under the logits z and
/// under 2z.
fn sum_of_squares(logprob: f64, sharp: f64) -> f64 {
    let sum = (2.0 * logprob - sharp).exp();
    // NaN stays: it is broken logits.
    if sum > 1.0 { 1.0 } else { sum }
}

impl EstimatorPasses {
    /// Runs the forward passes over the trained groups that the estimator needs beyond the batch.
    pub(crate) fn run(recipe: &Recipe, workers: &mut Workers, trained: &TrainedGroups<'_>) -> Pass<Self> {
        let TrainedGroups { groups, sequences: plain, .. } = trained;
        let (entropy, squares, gold) = (
            recipe.needs(Column::Entropy),
            recipe.needs(Column::SumPiSquared),
            recipe.needs(Column::GoldLogprobs),
        );
        let mut passes = Self::default();
        // The columns below come from passes of now. So the log-probabilities that they are compared
        // with must, too, if an earlier policy or a server sampled a group.
        let is_stale = (squares || gold) && (workers.samples_elsewise() || workers.any_is_stale(groups));
        let mut scored = |sequences: &[LearnerSequence<'_>], sharpness: f64| {
            scored(&mut *workers.learner, recipe.update.micro_batch, sequences, sharpness)
        };
        if entropy || squares || is_stale {
            let (logprobs, entropies) = scored(plain, 1.0)?;
            if squares {
                let (sharp, _) = scored(plain, 2.0)?;
                let row = |(logprobs, sharp): (&[f64], &[f64])| -> Vec<f64> {
                    logprobs
                        .iter()
                        .zip(sharp)
                        .map(|(&logprob, &sharp)| sum_of_squares(logprob, sharp))
                        .collect()
                };
                passes.sum_pi_squared = Some(Ragged::from_rows(logprobs.rows().zip(sharp.rows()).map(row)));
            }
            passes.entropy = entropy.then_some(entropies);
            passes.old_logprobs = is_stale.then_some(logprobs);
        }
        if gold {
            // Without a gold answer there is nothing to contrast with: the same prompt again.
            let hints: Vec<_> = groups.iter().map(|group| recipe.hints.get(&group.prompt).cloned()).collect();
            let hinted: Vec<LearnerSequence<'_>> = groups
                .iter()
                .zip(&hints)
                .flat_map(|(group, hint)| std::iter::repeat_n(hint, group.trajectories.len()))
                .zip(plain)
                .map(|(hint, sequence)| LearnerSequence {
                    prompt: hint.as_deref().unwrap_or(sequence.prompt),
                    images: sequence.images,
                    completion: sequence.completion,
                    turns: sequence.turns,
                    candidates: &[],
                })
                .collect();
            passes.gold_logprobs = Some(scored(&hinted, 1.0)?.0);
        }
        Ok(passes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entropy.is_none() && self.sum_pi_squared.is_none() && self.gold_logprobs.is_none()
    }
}

/// Log-probabilities and entropies `[B][T]` with the logits multiplied by `sharpness`.
fn scored(
    learner: &mut dyn Learner,
    micro_batch: MicroBatch,
    sequences: &[LearnerSequence<'_>],
    sharpness: f64,
) -> Pass<(Ragged<f64>, Ragged<f64>)> {
    let columns = forward_all(learner, Network::Before, sequences, micro_batch, sharpness)?;
    Ok((rows(sequences, &columns.logprobs), rows(sequences, &columns.entropies)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_token_tells_the_sum_of_squares() {
        let logits = [0.3, -1.2, 2.5, 0.0];
        let logprob = |factor: f64, token: usize| {
            factor * logits[token] - logits.iter().map(|z| (factor * z).exp()).sum::<f64>().ln()
        };
        let expected: f64 = (0..4).map(|token| (2.0 * logprob(1.0, token)).exp()).sum();
        for token in 0..4 {
            let found = sum_of_squares(logprob(1.0, token), logprob(2.0, token));
            assert!((found - expected).abs() < 1e-14, "{found} {expected}");
        }
        // Rounding does not take it beyond certainty.
        assert_eq!(sum_of_squares(0.0, -1e-9).to_bits(), 1f64.to_bits());
    }
}
