//! The engine's critic: a model of its own beside the policy, trained in the same work buffers.

use tamis_model::{
    AdamW, AdamWConfig, Gradients, Model, PassOptions, SequenceError, values, values_forward_backward,
};

use super::NativeEngine;
use super::learner::{as_engine, join_tokens, sequence_error};
use crate::interrupt::Halt;
use crate::learner::{AskValueLoss, CriticLearner, LearnerError, LearnerSequence, OptimizerReport, Pass};

/// Weights and optimizer of a critic.
pub struct NativeCritic {
    model: Model,
    optimizer: AdamW,
    gradients: Gradients,
    max_grad_norm: Option<f64>,
}

impl NativeCritic {
    /// Around a model with a value head; its optimizer starts afresh.
    pub fn new(model: Model, optimizer: AdamWConfig, max_grad_norm: Option<f64>) -> Self {
        Self {
            optimizer: AdamW::new(&model, optimizer),
            gradients: Gradients::new(&model),
            max_grad_norm,
            model,
        }
    }

    /// The weights.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The optimizer, to load its state.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }
}

impl NativeEngine {
    /// Takes a critic.
    pub fn set_critic(&mut self, critic: NativeCritic) {
        self.critic = Some(critic);
    }

    /// The critic.
    pub fn critic(&self) -> Option<&NativeCritic> {
        self.critic.as_ref()
    }
}

impl CriticLearner for NativeEngine {
    fn values(&mut self, sequences: &[LearnerSequence<'_>]) -> Pass<Vec<f32>> {
        if self.gives_up() {
            return Err(Halt::Interrupted);
        }
        let critic = self.critic.as_ref().ok_or(LearnerError::NoCritic)?;
        let tokens = join_tokens(sequences);
        let batch = as_engine(&tokens, sequences);
        let predicted = values(&self.threads, &critic.model, &mut self.workspace, &batch)
            .map_err(|error| sequence_error(&error))?;
        Ok(predicted.values().to_vec())
    }

    fn critic_forward_backward(
        &mut self,
        sequences: &[LearnerSequence<'_>],
        ask: &mut AskValueLoss<'_>,
    ) -> Pass<()> {
        let gives_up = self.gives_up();
        let critic = self.critic.as_mut().ok_or(LearnerError::NoCritic)?;
        if gives_up {
            critic.gradients.clear();
            return Err(Halt::Interrupted);
        }
        let tokens = join_tokens(sequences);
        let batch = as_engine(&tokens, sequences);
        let options =
            PassOptions { recompute: self.settings.recompute_activations, ..PassOptions::default() };
        let mut answered = Ok(());
        let passed = values_forward_backward(
            &self.threads,
            &critic.model,
            &mut self.workspace,
            &batch,
            options,
            &mut critic.gradients,
            |predicted| {
                let mut derivatives = Vec::with_capacity(predicted.num_values());
                answered = ask(predicted.values(), &mut derivatives);
                if answered.is_err() {
                    derivatives.clear();
                }
                derivatives.resize(predicted.num_values(), 0.0);
                derivatives
            },
        );
        if matches!(passed, Err(SequenceError::GivenUp)) {
            critic.gradients.clear();
        }
        passed.map_err(|error| sequence_error(&error))?;
        Ok(answered?)
    }

    fn critic_step(&mut self, learning_rate: f64) -> Result<OptimizerReport, LearnerError> {
        let NativeCritic { model, optimizer, gradients, max_grad_norm, .. } =
            self.critic.as_mut().ok_or(LearnerError::NoCritic)?;
        let report = optimizer.step(&self.threads, model, gradients, learning_rate, *max_grad_norm);
        gradients.clear();
        self.updates.has_moved |= !report.skipped;
        Ok(OptimizerReport { grad_norm: report.grad_norm, skipped: report.skipped })
    }
}
