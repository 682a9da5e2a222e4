//! The objective: policy loss, divergence and entropy as one value and one derivative per token.
//!
//! An [`Objective`] is a pure function of named [`Columns`]. A learner of any kind runs its forward pass, asks for the derivatives
//! and back-propagates `Σ_t dlogprob_t·logprob_t + dentropy_t·entropy_t + dvalue_t·value_t`; no loss is written twice.
//!
//! ```text
//! columns ─┬─ clip         policy loss per token ─┐
//!          ├─ kl           divergence per token  ─┼─ aggregation: one weight per trajectory ─ derivatives, sums per trajectory
//!          ├─ entropy      entropy per token     ─┤                                                        │
//!          └─ value        critic's error        ─┘                                                        │
//! whole optimizer batch: Normalisers (input)         Accumulator: sums in batch order ─ loss, metrics, next state
//! ```
//!
//! Micro-batches: [`Objective::evaluate`] is called once for each with the normalisers of the *whole* optimizer batch, and
//! [`Accumulator`] collects the trajectories' sums by their place in it. Derivatives, loss and metrics have the same bits however
//! the batch is cut.
//!
//! Nothing to train on (empty, or fully masked): loss 0, derivatives 0, means NaN, state unchanged. verl's loss is NaN there.

pub mod accumulator;
pub mod aggregation;
pub mod clip;
pub mod columns;
pub mod entropy;
pub mod kl;
pub mod preset;
pub mod value;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use accumulator::{Accumulator, Metrics, Outcome, SequenceSums};
pub use aggregation::{Aggregation, Normalisers};
pub use clip::Clip;
pub use columns::{AdvantageColumn, Columns, Real, ValueColumns};
pub use entropy::EntropyBonus;
pub use kl::{KlController, KlEstimator, KlKind, KlState, KlTerm};
pub use preset::Preset;
pub use value::ValueTerm;

use crate::entry::Entry;
use columns::Row;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[clip::ENTRY];

/// The policy loss of a token, before aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PolicyLoss {
    /// Clipped ratio (PPO, GRPO, DAPO).
    Clip(Clip),
}

/// A loss over a batch of trajectories: `policy + coef·KL − coef·entropy + coef·value`, each aggregated to one number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Policy loss per token.
    pub policy: PolicyLoss,
    /// How tokens are aggregated.
    pub aggregation: Aggregation,
    /// Divergence from the reference in the loss.
    #[serde(default)]
    pub kl: Option<KlTerm>,
    /// Entropy bonus.
    #[serde(default)]
    pub entropy: Option<EntropyBonus>,
    /// Value loss of a critic.
    #[serde(default)]
    pub value: Option<ValueTerm>,
}

/// What an objective carries from one optimizer batch to the next; saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ObjectiveState {
    /// Coefficient of the divergence, where the objective has one.
    pub kl: Option<KlState>,
}

/// One derivative per differentiable column and token \[N\], in the columns' order; 0 at masked tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Derivatives {
    /// With respect to the log-probability.
    pub logprob: Vec<f64>,
    /// With respect to the entropy; empty where the objective has no entropy bonus.
    pub entropy: Vec<f64>,
    /// With respect to the value; empty where the objective has no value loss.
    pub value: Vec<f64>,
}

/// What one call returns; reuse it to keep its memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Evaluation {
    /// Derivatives of the optimizer batch's loss.
    pub derivatives: Derivatives,
    /// Sums of each trajectory \[B\], for the [`Accumulator`].
    pub sequences: Vec<SequenceSums>,
}

/// An objective cannot be evaluated on these columns, or has a setting out of range.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ObjectiveError {
    /// A column of the wrong length.
    #[error("column `{column}` has {actual} values, expected {expected}")]
    Length {
        /// Its name.
        column: &'static str,
        /// Values that the other columns imply.
        expected: usize,
        /// Values that it has.
        actual: usize,
    },
    /// Offsets go backwards.
    #[error("offsets of trajectory {row} go backwards")]
    Offsets {
        /// The trajectory.
        row: usize,
    },
    /// A column that the objective needs was not given.
    #[error("column `{column}` is missing; {needed_by} needs it")]
    Missing {
        /// Its name.
        column: &'static str,
        /// Who needs it.
        needed_by: &'static str,
    },
    /// A setting outside its range.
    #[error("objective setting `{setting}` is {value}; expected {expected}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// What it was.
        value: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// A trajectory was recorded outside the batch or twice.
    #[error(
        "trajectory {index} of an optimizer batch of {num_sequences} {}",
        if *.recorded { "was recorded twice" } else { "does not exist" }
    )]
    SequenceIndex {
        /// Place in the optimizer batch.
        index: usize,
        /// Trajectories in it.
        num_sequences: usize,
        /// Whether the place exists and was taken.
        recorded: bool,
    },
}

impl Objective {
    /// State at the start of a run.
    pub fn initial_state(&self) -> ObjectiveState {
        ObjectiveState { kl: self.kl.map(|term| term.controller.initial()) }
    }

    /// State of the divergence's coefficient: the given one, else the initial one; `None` without a KL term.
    pub(crate) fn kl_state(&self, state: &ObjectiveState) -> Option<KlState> {
        self.kl.map(|term| state.kl.unwrap_or_else(|| term.controller.initial()))
    }

    /// Whether every setting is in range.
    ///
    /// # Errors
    /// [`ObjectiveError::Setting`] with the first that is not.
    pub fn check(&self) -> Result<(), ObjectiveError> {
        let PolicyLoss::Clip(clip) = &self.policy;
        clip.check()?;
        self.aggregation.check()?;
        if let Some(term) = &self.kl {
            term.controller.check()?;
        }
        if let Some(bonus) = &self.entropy {
            bonus.check()?;
        }
        self.value.as_ref().map_or(Ok(()), ValueTerm::check)
    }

    /// Derivatives and sums of some trajectories of an optimizer batch: one micro-batch, or all of it.
    ///
    /// `normalisers` count the *whole* optimizer batch. Linear in N; reuses the memory of `into`, whose contents are overwritten.
    ///
    /// # Errors
    /// Columns that do not fit together or are missing, settings out of range. NaN in an unmasked value is not an error: it ends up
    /// in loss and derivatives, where the learner's check of the gradient finds it.
    pub fn evaluate<T: Real>(
        &self,
        columns: &Columns<'_, T>,
        normalisers: &Normalisers,
        state: &ObjectiveState,
        into: &mut Evaluation,
    ) -> Result<(), ObjectiveError> {
        self.check()?;
        columns.check()?;
        let missing = [
            (self.kl.is_some() && columns.reference.is_none(), "reference", "the KL term"),
            (self.entropy.is_some() && columns.entropy.is_none(), "entropy", "the entropy bonus"),
            (self.value.is_some() && columns.values.is_none(), "values", "the value loss"),
        ];
        if let Some(&(_, column, needed_by)) = missing.iter().find(|(missing, ..)| *missing) {
            return Err(ObjectiveError::Missing { column, needed_by });
        }
        let kl_coef = self.kl_state(state).map_or(0.0, |kl| kl.coef);
        let num_tokens = columns.num_tokens();
        let Evaluation { derivatives, sequences } = into;
        derivatives.logprob.clear();
        derivatives.logprob.resize(num_tokens, 0.0);
        derivatives.entropy.clear();
        derivatives.entropy.resize(if self.entropy.is_some() { num_tokens } else { 0 }, 0.0);
        derivatives.value.clear();
        derivatives.value.resize(if self.value.is_some() { num_tokens } else { 0 }, 0.0);
        sequences.clear();
        sequences.reserve(columns.num_sequences());
        for i in 0..columns.num_sequences() {
            let row = columns.row(i);
            let tokens = row.mask.iter().filter(|&&on| on).count();
            let mut sums = SequenceSums { tokens: tokens as u32, ..SequenceSums::EMPTY };
            if tokens > 0 {
                self.sequence(&row, tokens, normalisers, kl_coef, derivatives, &mut sums)?;
            }
            sequences.push(sums);
        }
        Ok(())
    }

    /// The whole optimizer batch in one call: value, metrics, next state and derivatives.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub fn value_and_gradient<T: Real>(
        &self,
        columns: &Columns<'_, T>,
        normalisers: &Normalisers,
        state: &ObjectiveState,
    ) -> Result<(Outcome, Derivatives), ObjectiveError> {
        let mut evaluation = Evaluation::default();
        self.evaluate(columns, normalisers, state, &mut evaluation)?;
        let mut accumulator = Accumulator::new(evaluation.sequences.len());
        for (index, sums) in evaluation.sequences.iter().enumerate() {
            accumulator.record(index, *sums)?;
        }
        Ok((accumulator.finish(self, state), evaluation.derivatives))
    }

    fn sequence<T: Real>(
        &self,
        row: &Row<'_, T>,
        tokens: usize,
        normalisers: &Normalisers,
        kl_coef: f64,
        derivatives: &mut Derivatives,
        sums: &mut SequenceSums,
    ) -> Result<(), ObjectiveError> {
        let scale = self.aggregation.weight(tokens, row.group_tokens, normalisers)?;
        let dlogprob_t = &mut derivatives.logprob[row.tokens.clone()];
        match &self.policy {
            PolicyLoss::Clip(clip) => clip.sequence(row, scale, dlogprob_t, sums),
        }
        if let (Some(term), Some(reference)) = (self.kl, row.reference) {
            term.sequence(row, reference, scale, kl_coef, dlogprob_t, sums);
        }
        if let Some(entropy) = row.entropy {
            let aggregation = self.entropy.and_then(|bonus| bonus.aggregation).unwrap_or(self.aggregation);
            let scale = aggregation.weight(tokens, row.group_tokens, normalisers)?;
            let dentropy_t = derivatives.entropy.get_mut(row.tokens.clone());
            entropy::sequence(row, entropy, scale, self.entropy.map(|bonus| bonus.coef), dentropy_t, sums);
        } else {
            (sums.entropy, sums.entropy_loss) = (f64::NAN, f64::NAN);
        }
        if let (Some(term), Some(values)) = (self.value, row.values) {
            let aggregation = term.aggregation.unwrap_or(self.aggregation);
            let scale = aggregation.weight(tokens, row.group_tokens, normalisers)?;
            term.sequence(row, &values, scale, &mut derivatives.value[row.tokens.clone()], sums);
        }
        if let Some(behaviour) = row.behaviour {
            // Without old log-probabilities the policy is its own old one.
            let old = row.old.unwrap_or(row.logprob);
            for ((_, &behaviour), &old) in row.mask.iter().zip(behaviour).zip(old).filter(|((on, _), _)| **on)
            {
                let gap: f64 = behaviour.into() - old.into();
                sums.behaviour_kl += gap;
                sums.behaviour_kl_k3 += (-gap).exp_m1() + gap;
            }
        } else {
            (sums.behaviour_kl, sums.behaviour_kl_k3) = (f64::NAN, f64::NAN);
        }
        Ok(())
    }
}
