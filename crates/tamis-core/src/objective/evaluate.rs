//! Evaluating an objective, trajectory by trajectory.
//!
//! Each trajectory is evaluated by itself, with the denominators of the whole optimizer batch. So the order
//! of the batch fixes the order of every sum, and cutting a batch into micro-batches changes no bit.

use super::accumulator::Outcome;
use super::columns::{Columns, Real, Row, RowAdvantage, Slopes};
use super::exponential::exp_m1;
use super::kl::{self, KlPass};
use super::loss::trajectory::{Scratch, TrajectoryLoss, count, sum};
use super::{Derivatives, Importance, Normalisers, Objective, ObjectiveError, ObjectiveState, SequenceSums};
use crate::fault;

/// Result of one call; reuse it to reuse its memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Evaluation<T = f64> {
    /// Derivatives of the optimizer batch's loss.
    pub derivatives: Derivatives<T>,
    /// Sums of each trajectory \[B\], for [`Outcome::of`] or an [`Accumulator`](super::Accumulator).
    pub sequences: Vec<SequenceSums>,
}

impl Objective {
    /// Derivatives and sums of some trajectories of an optimizer batch: one micro-batch, or all of it.
    ///
    /// `normalisers` count the *whole* optimizer batch. Linear in N. The memory of `into` is reused, and its
    /// contents are overwritten. The settings are not checked for each micro-batch: [`Self::check`] does so
    /// once.
    ///
    /// # Errors
    /// Columns are missing or their lengths do not fit together. NaN in an unmasked value is not an error:
    /// loss and derivatives are then NaN, and the learner's check of the gradient detects it.
    pub fn evaluate<T: Real>(
        &self,
        columns: &Columns<'_, T>,
        normalisers: &Normalisers,
        state: &ObjectiveState,
        into: &mut Evaluation<T>,
    ) -> Result<(), ObjectiveError> {
        columns.check()?;
        self.check_columns(columns)?;
        let Evaluation { derivatives, sequences } = into;
        derivatives.logprob.clear();
        derivatives.logprob.resize(columns.num_tokens(), T::ZERO);
        derivatives.entropy.clear();
        derivatives.entropy.resize(if self.entropy.is_some() { columns.num_tokens() } else { 0 }, T::ZERO);
        let per_token =
            self.distillation.and(columns.candidates).map_or(0, |candidates| candidates.per_token);
        derivatives.candidates.clear();
        derivatives.candidates.resize(columns.num_tokens() * per_token, T::ZERO);
        sequences.clear();
        let mut scratch = Scratch::default();
        for i in 0..columns.num_sequences() {
            let mut row = columns.row(i);
            if self.distillation.is_some_and(|distillation| !distillation.advantages) {
                row.advantage = RowAdvantage::Same(0.0);
            }
            let tokens = row.tokens.clone();
            let own = Slopes {
                logprob_t: &mut derivatives.logprob[tokens.clone()],
                entropy_t: derivatives.entropy.get_mut(tokens.clone()).unwrap_or_default(),
                candidates: &mut derivatives.candidates[tokens.start * per_token..tokens.end * per_token],
            };
            sequences.push(self.sequence(&row, normalisers, state, own, &mut scratch)?);
        }
        Ok(())
    }

    /// The whole optimizer batch in one call: value, metrics, next state and derivatives. It has the errors
    /// of [`Self::check`] and [`Self::evaluate`].
    pub fn value_and_gradient<T: Real>(
        &self,
        columns: &Columns<'_, T>,
        normalisers: &Normalisers,
        state: &ObjectiveState,
    ) -> Result<(Outcome, Derivatives<T>), ObjectiveError> {
        self.check()?;
        let mut evaluation = Evaluation::default();
        self.evaluate(columns, normalisers, state, &mut evaluation)?;
        Ok((Outcome::of(&evaluation.sequences, self, state), evaluation.derivatives))
    }

    /// Whether every column that the settings need is there.
    fn check_columns<T: Real>(&self, columns: &Columns<'_, T>) -> Result<(), ObjectiveError> {
        let missing = [
            (self.kl.is_some() && columns.reference.is_none(), "reference", "the KL term"),
            (self.entropy.is_some() && columns.entropy.is_none(), "entropy", "the entropy bonus"),
            (
                self.distillation.is_some() && columns.candidates.is_none(),
                "candidates",
                "the distillation in the loss",
            ),
            (
                self.distillation.is_some_and(|distillation| distillation.sampled)
                    && columns.candidates.is_some_and(|candidates| candidates.sampled.is_none()),
                "candidates.sampled",
                "a distillation that compares the sampled token",
            ),
            (
                self.policy.is_given() && columns.given.is_none(),
                "given",
                "a loss in Python, which `tamis train` calls,",
            ),
            (self.policy.weighs_behaviour() && columns.behaviour.is_none(), "behaviour", self.policy.name()),
            (
                self.needs_selection() && columns.selection.is_none(),
                "selection",
                "a choice over the whole batch",
            ),
        ];
        match missing.iter().find(|(missing, ..)| *missing) {
            Some(&(_, column, needed_by)) => {
                Err(fault!("column `{column}` is missing; {needed_by} needs it").into())
            }
            None => Ok(()),
        }
    }

    /// Evaluates one trajectory; its derivatives are initially 0.
    fn sequence<T: Real>(
        &self,
        row: &Row<'_, T>,
        normalisers: &Normalisers,
        state: &ObjectiveState,
        mut slopes: Slopes<'_, T>,
        scratch: &mut Scratch,
    ) -> Result<SequenceSums, ObjectiveError> {
        let tokens = count(row.mask);
        let mut sums = SequenceSums { tokens: tokens as u32, ..SequenceSums::EMPTY };
        if tokens == 0 {
            return Ok(sums);
        }
        let weight = row.sequence_weight;
        let scale = weight * self.aggregation.weight(tokens, row.group, normalisers, &self.divisors)?;
        let importance = self.policy.importance(self.importance);
        let is_off_policy = self.masks.off_policy.is_some_and(|threshold| drift(row, tokens) > threshold);
        self.policy.sequence(&mut TrajectoryLoss {
            row,
            importance,
            scale,
            tokens,
            is_off_policy,
            derivatives: slopes.logprob_t,
            sums: &mut sums,
            scratch,
        });
        if let (Some(term), Some(reference), Some(kl)) = (&self.kl, row.reference, self.kl_state(state)) {
            let importance = if importance == Importance::Token { self.importance } else { importance };
            let limits = self.policy.log_ratio_limits();
            let pass = KlPass { scale, coef: kl.coef, importance, limits };
            kl::sequence(term, row, reference, pass, slopes.logprob_t, &mut sums);
        }
        if let (Some(distillation), Some(candidates)) = (&self.distillation, &row.candidates) {
            distillation.sequence(row, candidates, scale, &mut slopes, &mut sums);
        }
        if let Some(entropy) = row.entropy {
            let aggregation = self.entropy.and_then(|bonus| bonus.aggregation).unwrap_or(self.aggregation);
            let scale = weight * aggregation.weight(tokens, row.group, normalisers, &self.divisors)?;
            sums.entropy = sum(row.mask, |t| entropy[t].into());
            sums.entropy_loss = scale * sums.entropy;
            let slope = T::of(-(self.entropy_coef(state).unwrap_or(0.0) * scale));
            for (derivative, _) in slopes.entropy_t.iter_mut().zip(row.mask).filter(|(_, on)| **on) {
                *derivative = slope;
            }
        } else {
            (sums.entropy, sums.entropy_loss) = (f64::NAN, f64::NAN);
        }
        (sums.behaviour_kl, sums.behaviour_kl_k3) = mismatch(row);
        Ok(sums)
    }
}

/// `mean_t(behaviour - logprob)`, with `old` if the sampler's own log-probabilities are not given, and 0 if
/// neither is. A token whose `behaviour` is NaN (the sampler reported nothing) counts 0.
fn drift<T: Real>(row: &Row<'_, T>, tokens: usize) -> f64 {
    let sampled = row.behaviour.or(row.old).unwrap_or(row.logprob);
    let gap = |t: usize| {
        let sampled: f64 = sampled[t].into();
        if sampled.is_nan() { 0.0 } else { sampled - row.logprob[t].into() }
    };
    sum(row.mask, gap) / tokens as f64
}

/// Divergence of the sampler from the trainer: k1 and k3 of `behaviour` against `old`, or against the policy
/// itself if `old` was not given; NaN if `behaviour` was not given.
fn mismatch<T: Real>(row: &Row<'_, T>) -> (f64, f64) {
    let Some(behaviour) = row.behaviour else { return (f64::NAN, f64::NAN) };
    let old = row.old.unwrap_or(row.logprob);
    let gap = |t: usize| behaviour[t].into() - old[t].into();
    (sum(row.mask, gap), sum(row.mask, |t| exp_m1(-gap(t)) + gap(t)))
}
