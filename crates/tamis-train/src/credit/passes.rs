//! Passes over the trained groups that only some estimators ask for, under the policy as the step begins.

use tamis_core::advantage::Column;
use tamis_core::group::Group;
use tamis_core::ragged::Ragged;

use crate::assemble::recipe::Recipe;
use crate::learner::micro_batch::{MicroBatch, forward_all, rows, sequences};
use crate::learner::{Learner, LearnerSequence, Network, Pass};
use crate::workers::Workers;

/// Columns of the estimator that take a pass of their own `[B][T]`.
#[derive(Default)]
pub(crate) struct Passes {
    /// Log-probabilities under the policy as the step begins, where an earlier one sampled.
    pub(crate) old_logprobs: Option<Ragged<f64>>,
    /// Entropies in nats.
    pub(crate) entropy: Option<Ragged<f64>>,
    /// Sums of squared probabilities.
    pub(crate) sum_pi_squared: Option<Ragged<f64>>,
    /// Log-probabilities with the gold answer in the prompt.
    pub(crate) gold_logprobs: Option<Ragged<f64>>,
}

/// `Σ π² = Σ e^2z / (Σ e^z)²` from the log-probabilities of one and the same token under the logits z and
/// under 2z.
fn sum_of_squares(logprob: f64, sharp: f64) -> f64 {
    let sum = (2.0 * logprob - sharp).exp();
    // NaN stays: it is broken logits.
    if sum > 1.0 { 1.0 } else { sum }
}

impl Passes {
    /// Runs the forward passes over the trained groups that the estimator needs beyond the batch.
    pub(crate) fn run(recipe: &Recipe, workers: &mut Workers, groups: &[&Group]) -> Pass<Self> {
        let (entropy, squares, gold) = (
            recipe.needs(Column::Entropy),
            recipe.needs(Column::SumPiSquared),
            recipe.needs(Column::GoldLogprobs),
        );
        let mut passes = Self::default();
        let plain = sequences(groups);
        // What is compared with a pass of now is a pass of now, where an earlier policy sampled a group, or a
        // server did.
        let is_stale = (squares || gold) && (workers.samples_elsewise() || workers.any_is_stale(groups));
        let mut scored = |sequences: &[LearnerSequence<'_>], sharpness: f64| {
            scored(&mut *workers.learner, recipe.update.micro_batch, sequences, sharpness)
        };
        if entropy || squares || is_stale {
            let (logprobs, entropies) = scored(&plain, 1.0)?;
            if squares {
                let (sharp, _) = scored(&plain, 2.0)?;
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
                .zip(&plain)
                .map(|(hint, sequence)| LearnerSequence {
                    prompt: hint.as_deref().unwrap_or(sequence.prompt),
                    images: sequence.images,
                    completion: sequence.completion,
                    turns: sequence.turns,
                })
                .collect();
            passes.gold_logprobs = Some(scored(&hinted, 1.0)?.0);
        }
        Ok(passes)
    }

    /// Whether no pass of the policy was asked for.
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
