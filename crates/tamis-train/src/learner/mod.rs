//! The learner contract: what any trainable backend must be able to do.
//!
//! A learner knows nothing of advantages or clipping: it runs forward, asks for one derivative per token,
//! back-propagates and, when told so, takes an optimizer step. [`update`] drives it, and [`critic`] one that
//! has a critic.

pub mod critic;
pub mod gradient_analysis;
pub mod learning_rate;
pub mod left_out;
pub mod micro_batch;
pub(crate) mod optimizer_batch;
pub mod update;
pub mod warm_start;

use thiserror::Error;

use crate::interrupt::Halt;

/// One sequence to learn from or to score.
#[derive(Debug, Clone, Copy)]
pub struct LearnerSequence<'a> {
    /// Prompt tokens, at least one.
    pub prompt: &'a [u32],
    /// Completion tokens \[T\], at least one; the values asked for are those of these tokens.
    pub completion: &'a [u32],
}

/// Derivatives of the loss with respect to what the forward pass gave, flat over the sequences \[N\].
#[derive(Debug, Default)]
pub struct LossDerivatives {
    /// With respect to the log-probabilities \[N\].
    pub logprob: Vec<f32>,
    /// With respect to the entropies \[N\], or empty.
    pub entropy: Vec<f32>,
}

/// Result of an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerReport {
    /// Norm of the whole gradient before clipping.
    pub grad_norm: f64,
    /// Whether the step was left out because the gradient was not finite.
    pub skipped: bool,
}

/// The learner cannot go on.
#[derive(Debug, Error)]
pub enum LearnerError {
    /// The objective refused its columns.
    #[error("the objective could not be evaluated: {0}")]
    Objective(#[from] tamis_core::objective::ObjectiveError),
    /// The correction refused its columns.
    #[error("the correction could not be made: {0}")]
    Correction(#[from] tamis_core::correction::CorrectionError),
    /// The engine refused a sequence.
    #[error("the engine could not learn from the batch: {reason}")]
    Engine {
        /// The message.
        reason: String,
    },
    /// A critic is asked for, and the learner has none.
    #[error("the learner has no critic")]
    NoCritic,
}

impl<S> From<S> for Halt<LearnerError>
where
    LearnerError: From<S>,
{
    fn from(source: S) -> Self {
        Self::Failed(source.into())
    }
}

/// Result of a pass, which may fail or be interrupted.
pub type Pass<T> = Result<T, Halt<LearnerError>>;

/// Asked between forward and backward: log-probabilities and entropies in (flat \[N\]), derivatives out.
pub type AskObjective<'a> = dyn FnMut(&[f32], &[f32], &mut LossDerivatives) -> Result<(), LearnerError> + 'a;

/// Log-probabilities and entropies of completions, flat over the sequences \[N\].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyScores {
    /// Log-probabilities in nats.
    pub logprobs: Vec<f32>,
    /// Entropies in nats.
    pub entropies: Vec<f32>,
}

/// A trainable policy.
pub trait Learner {
    /// Forward over the sequences, then backward of `Σ_t logprob_t·coef_t + entropy_t·ent_coef_t` into the
    /// gradient buffer.
    fn forward_backward(&mut self, sequences: &[LearnerSequence<'_>], ask: &mut AskObjective<'_>)
    -> Pass<()>;

    /// Takes a step with the gathered gradient and clears it. A gradient that is not finite changes nothing
    /// but is reported.
    fn optimizer_step(&mut self, learning_rate: f64) -> Result<OptimizerReport, LearnerError>;

    /// Norm of the gathered gradient, which is cleared; no weight changes. Infinite or NaN where the gradient
    /// is.
    fn take_gradient_norm(&mut self) -> Result<f64, LearnerError>;

    /// Log-probabilities and entropies of the completions under the policy as it is, its logits multiplied by
    /// `sharpness` (above 0), flat \[N\] each; with 1 the same bits as in [`Self::forward_backward`].
    fn policy_scores(&mut self, sequences: &[LearnerSequence<'_>], sharpness: f64) -> Pass<PolicyScores>;

    /// The same under the policy as the present step began: that of the last publication, also where a part
    /// of the step has been trained on.
    fn scores_before(&mut self, sequences: &[LearnerSequence<'_>], sharpness: f64) -> Pass<PolicyScores>;

    /// Log-probabilities of the completions under the reference policy, flat \[N\].
    fn reference_logprobs(&mut self, sequences: &[LearnerSequence<'_>]) -> Pass<Vec<f32>>;
}

/// Asked between forward and backward of a critic: values in (flat \[N\]), the loss's derivatives by them out
/// (empty on entry).
pub type AskValueLoss<'a> = dyn FnMut(&[f32], &mut Vec<f32>) -> Result<(), LearnerError> + 'a;

/// A learner with a trainable critic.
///
/// The value at a completion token is that of the state in which it is chosen: of what stands before it,
/// without the token itself.
pub trait CriticLearner {
    /// Values at the completions' tokens, flat \[N\].
    fn values(&mut self, sequences: &[LearnerSequence<'_>]) -> Pass<Vec<f32>>;

    /// Forward over the sequences, then backward of `Σ_t value_t·coef_t` into the critic's gradient buffer.
    fn critic_forward_backward(
        &mut self,
        sequences: &[LearnerSequence<'_>],
        ask: &mut AskValueLoss<'_>,
    ) -> Pass<()>;

    /// As [`Learner::optimizer_step`], of the critic.
    fn critic_step(&mut self, learning_rate: f64) -> Result<OptimizerReport, LearnerError>;
}
