//! The engine as learner.

use std::sync::Arc;

use tamis_model::{Model, PassOptions, Sequence, SequenceError, forward_backward, score};

use super::NativeEngine;
use crate::interrupt::Halt;
use crate::learner::{
    AskObjective, Learner, LearnerError, LearnerSequence, LossDerivatives, OptimizerReport, Pass,
    PolicyScores,
};

/// Logits kept from the forward pass for the backward pass, at most; beyond it they are computed again.
pub(crate) const KEEP_LOGITS_BYTES: usize = 256 << 20;

pub(super) fn join_tokens(sequences: &[LearnerSequence<'_>]) -> Vec<Vec<u32>> {
    sequences.iter().map(|sequence| [sequence.prompt, sequence.completion].concat()).collect()
}

pub(super) fn as_engine<'a>(tokens: &'a [Vec<u32>], sequences: &[LearnerSequence<'_>]) -> Vec<Sequence<'a>> {
    tokens
        .iter()
        .zip(sequences)
        .map(|(tokens, sequence)| Sequence { tokens, start: sequence.prompt.len() })
        .collect()
}

pub(super) fn sequence_error(error: &SequenceError) -> Halt<LearnerError> {
    match error {
        SequenceError::GivenUp => Halt::Interrupted,
        error => Halt::Failed(LearnerError::Engine { reason: error.to_string() }),
    }
}

impl NativeEngine {
    fn scores_under(
        &mut self,
        model: &Model,
        sequences: &[LearnerSequence<'_>],
        sharpness: f64,
    ) -> Pass<PolicyScores> {
        if self.gives_up() {
            return Err(Halt::Interrupted);
        }
        let tokens = join_tokens(sequences);
        let batch = as_engine(&tokens, sequences);
        let temperature = (self.settings.temperature / sharpness) as f32;
        let scores = score(&self.threads, model, &mut self.workspace, &batch, temperature)
            .map_err(|error| sequence_error(&error))?;
        Ok(PolicyScores {
            logprobs: scores.logprobs.values().to_vec(),
            entropies: scores.entropies.values().to_vec(),
        })
    }
}

impl Learner for NativeEngine {
    fn forward_backward(
        &mut self,
        sequences: &[LearnerSequence<'_>],
        ask: &mut AskObjective<'_>,
    ) -> Pass<()> {
        if self.gives_up() {
            self.gradients.clear();
            return Err(Halt::Interrupted);
        }
        let tokens = join_tokens(sequences);
        let batch = as_engine(&tokens, sequences);
        let options = PassOptions {
            temperature: self.settings.temperature as f32,
            recompute: self.settings.recompute_activations,
            keep_logits_bytes: KEEP_LOGITS_BYTES,
        };
        let mut answered = Ok(());
        let mut coefficients = LossDerivatives::default();
        let passed = forward_backward(
            &self.threads,
            &self.model,
            &mut self.workspace,
            &batch,
            options,
            &mut self.gradients,
            |scores| {
                let num_tokens = scores.logprobs.num_values();
                answered = ask(scores.logprobs.values(), scores.entropies.values(), &mut coefficients);
                if answered.is_err() {
                    coefficients.logprob.clear();
                    coefficients.entropy.clear();
                }
                coefficients.logprob.resize(num_tokens, 0.0);
                let entropy = std::mem::take(&mut coefficients.entropy);
                tamis_model::Coefficients {
                    logprob: std::mem::take(&mut coefficients.logprob),
                    entropy: (!entropy.is_empty()).then_some(entropy),
                }
            },
        );
        if matches!(passed, Err(SequenceError::GivenUp)) {
            self.gradients.clear();
        }
        passed.map_err(|error| sequence_error(&error))?;
        Ok(answered?)
    }

    fn optimizer_step(&mut self, learning_rate: f64) -> Result<OptimizerReport, LearnerError> {
        // A copy only where samples are in flight, which go on with the weights they began with.
        let report = self.optimizer.step(
            &self.threads,
            Arc::make_mut(&mut self.model),
            &self.gradients,
            learning_rate,
            self.settings.max_grad_norm,
        );
        if self.before.is_none() {
            self.shared.set(&self.model);
        }
        self.gradients.clear();
        self.updates.has_moved |= !report.skipped;
        Ok(OptimizerReport { grad_norm: report.grad_norm, skipped: report.skipped })
    }

    fn take_gradient_norm(&mut self) -> Result<f64, LearnerError> {
        let norm = tamis_model::gradient_norm(&self.threads, &self.gradients);
        self.gradients.clear();
        Ok(norm)
    }

    fn policy_scores(&mut self, sequences: &[LearnerSequence<'_>], sharpness: f64) -> Pass<PolicyScores> {
        self.scores_under(&Arc::clone(&self.model), sequences, sharpness)
    }

    fn scores_before(&mut self, sequences: &[LearnerSequence<'_>], sharpness: f64) -> Pass<PolicyScores> {
        self.scores_under(&Arc::clone(self.model_before()), sequences, sharpness)
    }

    fn reference_logprobs(&mut self, sequences: &[LearnerSequence<'_>]) -> Pass<Vec<f32>> {
        if self.gives_up() {
            return Err(Halt::Interrupted);
        }
        let tokens = join_tokens(sequences);
        let batch = as_engine(&tokens, sequences);
        let reference = self.reference.as_ref().unwrap_or(self.model.as_ref());
        let scores =
            score(&self.threads, reference, &mut self.workspace, &batch, self.settings.temperature as f32)
                .map_err(|error| sequence_error(&error))?;
        Ok(scores.logprobs.values().to_vec())
    }
}
