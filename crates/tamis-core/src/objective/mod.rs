//! The objective: policy loss, divergence and entropy as one value and one derivative per token.
//!
//! An [`Objective`] is a pure function of named [`Columns`]. Any learner runs its forward pass, requests the
//! derivatives and back-propagates `Σ_t dlogprob_t·logprob_t + dentropy_t·entropy_t`, and the same of
//! candidates beside the sampled token. No loss is written twice.
//!
//! ```text
//! columns ─┬─ loss         policy loss per token ─┐
//!          ├─ kl           divergence per token  ─┼─ aggregation: one weight per trajectory ─ derivatives, sums per trajectory
//!          ├─ distillation divergence per token  ─┤                                                        │
//!          └─ entropy      entropy per token     ─┘                                                        │
//! whole optimizer batch: Normalisers (input)         Accumulator: sums in batch order ─ loss, metrics, next state
//! ```
//!
//! A critic is a separate model with its own loss ([`value`]).
//! Losses that choose tokens in comparison with all others make that choice first, over the whole optimizer
//! batch ([`Objective::select`]).
//!
//! Micro-batches: call [`Objective::evaluate`] once for each, with the normalisers of the *whole* optimizer
//! batch. [`Accumulator`] collects the trajectories' sums by their index in the batch. Derivatives, loss and
//! metrics have the same bits however the batch is cut.
//!
//! Nothing to train on (empty, or fully masked): loss 0, derivatives 0, means NaN, state unchanged. verl's
//! loss is NaN in this case.

pub mod accumulator;
pub mod aggregation;
pub mod columns;
mod covariance;
pub mod distillation;
pub mod entropy;
mod error;
mod evaluate;
mod exponential;
mod importance;
pub mod kl;
pub mod loss;
mod masks;
mod selection;
mod sequence_sums;
pub mod value;

use serde::{Deserialize, Serialize};

pub use accumulator::{Accumulator, DistillationMetrics, ObjectiveMetrics, Outcome};
pub use aggregation::{Aggregation, GroupCounts, LengthDivisors, Normalisers, ZeroGroups};
pub use columns::{AdvantageColumn, Columns, GivenLoss, Real, Selection, ValueColumns};
pub use distillation::{CandidateColumns, Distillation, DistillationRest, TokenDivergence};
pub use entropy::{AdaptiveEntropy, EntropyBonus, EntropyState};
pub use error::ObjectiveError;
pub use evaluate::Evaluation;
pub use importance::Importance;
pub use kl::{KlController, KlEstimator, KlKind, KlState, KlTerm, KlToken};
pub use loss::{
    Cispo, CispoBound, Clip, ClipCov, Decoupled, DppoKl, DppoTv, Dro, GeoMean, Gspo, GspoForm, Ipo, KlCov,
    Luspo, PolicyLoss, PythonLoss, Reinforce, Sapo, TokenLoss, Vespo,
};
pub use masks::LossMasks;
pub use sequence_sums::SequenceSums;
pub use value::{CriticColumns, ValueMetrics, ValueSums, ValueTerm, ValueToken, explained_variance};

use crate::entry::Entry;

/// The catalogue's entries of this module.
pub const ENTRIES: [&[Entry]; 7] = [
    loss::ENTRIES,
    &aggregation::ENTRIES,
    &kl::ENTRIES,
    &entropy::ENTRIES,
    &distillation::ENTRIES,
    &value::ENTRIES,
    &masks::ENTRIES,
];

/// A loss over a batch of trajectories: `policy + coef·KL + coef·distillation − coef·entropy`, each
/// aggregated to one number. A critic's loss is a [`ValueTerm`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Policy loss per token.
    pub policy: PolicyLoss,
    /// The two policies of the importance ratio, for losses that do not fix them.
    #[serde(default)]
    pub importance: Importance,
    /// Aggregation of tokens.
    pub aggregation: Aggregation,
    /// Divisors that two aggregations use for the tokens of a trajectory, also in the entropy bonus.
    #[serde(default)]
    pub divisors: LengthDivisors,
    /// Divergence from the reference in the loss.
    #[serde(default)]
    pub kl: Option<KlTerm>,
    /// Entropy bonus.
    #[serde(default)]
    pub entropy: Option<EntropyBonus>,
    /// Divergence from a teacher in the loss.
    #[serde(default)]
    pub distillation: Option<Distillation>,
    /// Tokens that the policy loss leaves out in addition to the mask.
    #[serde(default)]
    pub masks: LossMasks,
}

/// State that an objective carries from one optimizer batch to the next; saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ObjectiveState {
    /// Coefficient of the divergence, if the objective has one.
    pub kl: Option<KlState>,
    /// Coefficient of the entropy bonus, if the objective has one.
    #[serde(default)]
    pub entropy: Option<EntropyState>,
}

/// One derivative per differentiable column and token \[N\], in the columns' order and precision; 0 at masked
/// tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Derivatives<T = f64> {
    /// With respect to the log-probability.
    pub logprob: Vec<T>,
    /// With respect to the entropy; empty if the objective has no entropy bonus.
    pub entropy: Vec<T>,
    /// With respect to the candidates' log-probabilities \[N k\]; empty if the objective has no distillation.
    pub candidates: Vec<T>,
}

impl Objective {
    /// A policy loss under an aggregation, without divergence, entropy, value or masks.
    pub fn of(policy: PolicyLoss, aggregation: Aggregation) -> Self {
        Self {
            policy,
            importance: Importance::Token,
            aggregation,
            divisors: LengthDivisors::default(),
            kl: None,
            entropy: None,
            distillation: None,
            masks: LossMasks::default(),
        }
    }

    /// State at the start of a run.
    pub fn initial_state(&self) -> ObjectiveState {
        ObjectiveState {
            kl: self.kl.map(|term| term.controller.initial()),
            entropy: self.entropy.map(|bonus| bonus.initial()),
        }
    }

    /// State of the divergence's coefficient: the given one, otherwise the initial one; `None` without a KL
    /// term.
    pub(crate) fn kl_state(&self, state: &ObjectiveState) -> Option<KlState> {
        self.kl.map(|term| state.kl.unwrap_or_else(|| term.controller.initial()))
    }

    /// State of the entropy bonus's coefficient: the given one, otherwise the initial one; `None` without a
    /// bonus.
    pub(crate) fn entropy_state(&self, state: &ObjectiveState) -> Option<EntropyState> {
        self.entropy.map(|bonus| state.entropy.unwrap_or_else(|| bonus.initial()))
    }

    /// The coefficient of the entropy bonus that the next optimizer batch uses; `None` without a bonus.
    pub(crate) fn entropy_coef(&self, state: &ObjectiveState) -> Option<f64> {
        self.entropy.zip(self.entropy_state(state)).map(|(bonus, state)| bonus.coefficient(state))
    }

    /// Whether every setting is in range.
    ///
    /// # Errors
    /// [`ObjectiveError::Setting`] with the first setting that is out of range;
    /// [`ObjectiveError::Importance`] or [`ObjectiveError::Aggregation`] if these do not fit the loss.
    pub fn check(&self) -> Result<(), ObjectiveError> {
        self.policy.check(self.importance, self.aggregation)?;
        self.divisors.check()?;
        self.masks.check()?;
        if let Some(term) = &self.kl {
            term.controller.check()?;
        }
        if let Some(bonus) = &self.entropy {
            bonus.check()?;
        }
        if let Some(distillation) = &self.distillation {
            distillation.check()?;
        }
        Ok(())
    }
}
