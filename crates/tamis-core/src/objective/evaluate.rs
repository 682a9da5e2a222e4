//! Evaluating an objective: trajectory by trajectory, on one thread or several, with the same bits.

use std::ops::Range;

use super::accumulator::{Outcome, SequenceSums};
use super::columns::{Columns, Real, Row};
use super::exponential::exp_m1;
use super::kl::{self, KlPass};
use super::loss::kernel::{Lanes, Pass, Scratch, blocks, count, differences};
use super::{Derivatives, Importance, Normalisers, Objective, ObjectiveError, ObjectiveState, entropy};
use crate::ragged::even_parts;

/// What one call returns; reuse it to keep its memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Evaluation<T = f64> {
    /// Derivatives of the optimizer batch's loss.
    pub derivatives: Derivatives<T>,
    /// Sums of each trajectory \[B\], for [`Outcome::of`] or an [`Accumulator`](super::Accumulator).
    pub sequences: Vec<SequenceSums>,
}

/// Where some consecutive trajectories are written to.
pub(super) struct Destination<'a, T> {
    logprob: &'a mut [T],
    entropy: &'a mut [T],
    value: &'a mut [T],
    sequences: &'a mut [SequenceSums],
}

impl<'a, T> Destination<'a, T> {
    /// The first `sequences` trajectories of `tokens` tokens, and the rest.
    fn split(self, sequences: usize, tokens: usize) -> (Self, Self) {
        let cut = |column: &'a mut [T]| {
            let end = tokens.min(column.len());
            column.split_at_mut(end)
        };
        let (logprob, entropy, value) = (cut(self.logprob), cut(self.entropy), cut(self.value));
        let sums = self.sequences.split_at_mut(sequences);
        (
            Self { logprob: logprob.0, entropy: entropy.0, value: value.0, sequences: sums.0 },
            Self { logprob: logprob.1, entropy: entropy.1, value: value.1, sequences: sums.1 },
        )
    }
}

/// What is the same for every trajectory of a call.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    objective: &'a Objective,
    normalisers: &'a Normalisers,
    importance: Importance,
    limits: (f64, f64),
    kl_coef: f64,
    entropy_coef: Option<f64>,
}

impl Objective {
    /// Derivatives and sums of some trajectories of an optimizer batch: one micro-batch, or all of it.
    ///
    /// `normalisers` count the *whole* optimizer batch. Linear in N; reuses the memory of `into`, whose contents are overwritten, and
    /// needs no other beyond a few blocks of tokens.
    ///
    /// # Errors
    /// Columns that do not fit together or are missing, settings out of range. NaN in an unmasked value is not an error: it ends up
    /// in loss and derivatives, where the learner's check of the gradient finds it.
    pub fn evaluate<T: Real>(
        &self,
        columns: &Columns<'_, T>,
        normalisers: &Normalisers,
        state: &ObjectiveState,
        into: &mut Evaluation<T>,
    ) -> Result<(), ObjectiveError> {
        self.evaluate_on(1, columns, normalisers, state, into)
    }

    /// [`Self::evaluate`] on `threads` threads, each with a run of trajectories of about as many tokens. The same bits for any number
    /// of them; 0 counts as 1.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub fn evaluate_on<T: Real>(
        &self,
        threads: usize,
        columns: &Columns<'_, T>,
        normalisers: &Normalisers,
        state: &ObjectiveState,
        into: &mut Evaluation<T>,
    ) -> Result<(), ObjectiveError> {
        self.check()?;
        columns.check()?;
        self.check_columns(columns)?;
        let settings = Settings {
            objective: self,
            normalisers,
            importance: self.policy.importance(self.importance),
            limits: self.policy.limits(),
            kl_coef: self.kl_state(state).map_or(0.0, |kl| kl.coef),
            entropy_coef: self.entropy_coef(state),
        };
        let num_tokens = columns.num_tokens();
        let Evaluation { derivatives, sequences } = into;
        // Every place is written below, so that what was there before does not matter.
        derivatives.logprob.resize(num_tokens, T::ZERO);
        derivatives.entropy.resize(if self.entropy.is_some() { num_tokens } else { 0 }, T::ZERO);
        derivatives.value.resize(if self.value.is_some() { num_tokens } else { 0 }, T::ZERO);
        sequences.resize(columns.num_sequences(), SequenceSums::EMPTY);
        let whole = Destination {
            logprob: &mut derivatives.logprob,
            entropy: &mut derivatives.entropy,
            value: &mut derivatives.value,
            sequences,
        };
        let parts = even_parts(columns.offsets, threads);
        if parts.len() <= 1 {
            return T::rows(&settings, columns, 0..columns.num_sequences(), whole);
        }
        std::thread::scope(|scope| {
            let mut rest = whole;
            let mut workers = Vec::with_capacity(parts.len());
            let mut parts = parts.into_iter();
            // The first part is this thread's own.
            let own = parts.next().unwrap_or(0..0);
            let (mine, others) = rest.split(own.len(), columns.offsets[own.end] - columns.offsets[own.start]);
            rest = others;
            for part in parts {
                let tokens = columns.offsets[part.end] - columns.offsets[part.start];
                let (its, others) = rest.split(part.len(), tokens);
                rest = others;
                workers.push(scope.spawn(move || T::rows(&settings, columns, part, its)));
            }
            let mut outcome = T::rows(&settings, columns, own, mine);
            for worker in workers {
                match worker.join() {
                    Ok(result) => outcome = outcome.and(result),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            outcome
        })
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
    ) -> Result<(Outcome, Derivatives<T>), ObjectiveError> {
        let mut evaluation = Evaluation::default();
        self.evaluate(columns, normalisers, state, &mut evaluation)?;
        Ok((Outcome::of(&evaluation.sequences, self, state), evaluation.derivatives))
    }

    /// Whether every column that the settings read is there.
    fn check_columns<T: Real>(&self, columns: &Columns<'_, T>) -> Result<(), ObjectiveError> {
        let decoupled = matches!(self.policy, super::PolicyLoss::Decoupled(_));
        let missing = [
            (self.kl.is_some() && columns.reference.is_none(), "reference", "the KL term"),
            (self.entropy.is_some() && columns.entropy.is_none(), "entropy", "the entropy bonus"),
            (self.value.is_some() && columns.values.is_none(), "values", "the value loss"),
            (decoupled && columns.behaviour.is_none(), "behaviour", "decoupled PPO"),
            (
                self.needs_selection() && columns.selection.is_none(),
                "selection",
                "a choice over the whole batch",
            ),
        ];
        match missing.iter().find(|(missing, ..)| *missing) {
            Some(&(_, column, needed_by)) => Err(ObjectiveError::Missing { column, needed_by }),
            None => Ok(()),
        }
    }
}

impl Settings<'_> {
    /// Evaluates the trajectories of `rows` into a destination that begins with the first of them.
    pub(super) fn rows<T: Real>(
        &self,
        columns: &Columns<'_, T>,
        rows: Range<usize>,
        into: Destination<'_, T>,
    ) -> Result<(), ObjectiveError> {
        let mut scratch = Scratch::new();
        let mut rest = into;
        for i in rows {
            let row = columns.row(i);
            let (mine, others) = rest.split(1, row.mask.len());
            rest = others;
            let tokens = count(row.mask);
            let mut sums = SequenceSums { tokens: tokens as u32, ..SequenceSums::EMPTY };
            if tokens > 0 {
                self.sequence(&row, tokens, mine.logprob, mine.entropy, mine.value, &mut sums, &mut scratch)?;
            } else {
                mine.logprob.fill(T::ZERO);
                mine.entropy.fill(T::ZERO);
                mine.value.fill(T::ZERO);
            }
            for place in mine.sequences {
                *place = sums;
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one destination per differentiable column")]
    fn sequence<T: Real>(
        &self,
        row: &Row<'_, T>,
        tokens: usize,
        dlogprob_t: &mut [T],
        dentropy_t: &mut [T],
        dvalue_t: &mut [T],
        sums: &mut SequenceSums,
        scratch: &mut Scratch,
    ) -> Result<(), ObjectiveError> {
        let Objective { policy, aggregation, kl, entropy: bonus, value, masks, .. } = self.objective;
        let scale = aggregation.weight(tokens, row.group, self.normalisers)?;
        let off_policy = masks.off_policy.is_some_and(|threshold| drift(row, tokens, scratch) > threshold);
        let pass = Pass { importance: self.importance, scale, tokens, off_policy, proximal_cap: None };
        policy.sequence(row, &pass, dlogprob_t, sums, scratch);
        if let (Some(term), Some(reference)) = (kl, row.reference) {
            let importance = match self.importance {
                Importance::Token => self.objective.importance,
                own => own,
            };
            let pass = KlPass { scale, coef: self.kl_coef, importance, limits: self.limits };
            kl::sequence(term, row, reference, pass, dlogprob_t, sums, scratch);
        }
        if let Some(column) = row.entropy {
            let aggregation = bonus.and_then(|bonus| bonus.aggregation).unwrap_or(*aggregation);
            let scale = aggregation.weight(tokens, row.group, self.normalisers)?;
            let dentropy_t = bonus.is_some().then_some(dentropy_t);
            entropy::sequence(row, column, scale, self.entropy_coef, dentropy_t, sums, scratch);
        } else {
            (sums.entropy, sums.entropy_loss) = (f64::NAN, f64::NAN);
        }
        if let (Some(term), Some(values)) = (value, row.values) {
            let aggregation = term.aggregation.unwrap_or(*aggregation);
            let scale = aggregation.weight(tokens, row.group, self.normalisers)?;
            let own = term.sequence(row.mask, &values, scale, dvalue_t);
            (sums.value_loss, sums.value_clipped) = (own.loss, own.clipped);
        }
        mismatch(row, tokens, sums, scratch);
        Ok(())
    }
}

/// `mean_t(behaviour - logprob)`, with `old` where the sampler's own log-probabilities are not given; 0 where neither is. A token
/// whose `behaviour` is NaN (the sampler did not say) counts 0.
fn drift<T: Real>(row: &Row<'_, T>, tokens: usize, scratch: &mut Scratch) -> f64 {
    let sampled = row.behaviour.or(row.old).unwrap_or(row.logprob);
    let mut sum = Lanes::ZERO;
    for block in blocks(row.mask.len()) {
        let mask = (tokens < row.mask.len()).then(|| &row.mask[block.clone()]);
        let gap = &mut scratch.double.log_ratio[..block.len()];
        differences(mask, &sampled[block.clone()], &row.logprob[block.clone()], gap);
        for (gap, &sampled) in gap.iter_mut().zip(&sampled[block]) {
            let sampled: f64 = sampled.into();
            *gap = if sampled.is_nan() { 0.0 } else { *gap };
        }
        sum.add(gap);
    }
    sum.total() / tokens as f64
}

/// What separates the sampler from the trainer: k1 and k3 of `behaviour` against `old`; NaN where the column was not given.
fn mismatch<T: Real>(row: &Row<'_, T>, tokens: usize, sums: &mut SequenceSums, scratch: &mut Scratch) {
    let Some(behaviour) = row.behaviour else {
        (sums.behaviour_kl, sums.behaviour_kl_k3) = (f64::NAN, f64::NAN);
        return;
    };
    // Without old log-probabilities the policy is its own old one.
    let old = row.old.unwrap_or(row.logprob);
    let (mut k1, mut k3) = (Lanes::ZERO, Lanes::ZERO);
    for block in blocks(row.mask.len()) {
        let mask = (tokens < row.mask.len()).then(|| &row.mask[block.clone()]);
        let gap = &mut scratch.double.log_ratio[..block.len()];
        differences(mask, &behaviour[block.clone()], &old[block], gap);
        k1.add(gap);
        for gap in &mut *gap {
            *gap += exp_m1(-*gap);
        }
        k3.add(gap);
    }
    (sums.behaviour_kl, sums.behaviour_kl_k3) = (k1.total(), k3.total());
}
