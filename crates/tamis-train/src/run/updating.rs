//! The input of the policy's updates, of a whole step or of an early part of one.

use std::time::Instant;

use tamis_core::group::Group;
use tamis_core::objective::Normalisers;
use tamis_core::ragged::Ragged;

use crate::assemble::recipe::Recipe;
use crate::credit::batch::StepBatch;
use crate::credit::members::in_loss;
use crate::credit::reference::policy_logprobs;
use crate::credit::{Credit, CreditColumns, count_dropped};
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::left_out::LeftOut;
use crate::learner::micro_batch::sequences;
use crate::learner::update::{TrainingBatch, UpdatePlan, UpdateSettings};
use crate::workers::Workers;
use tamis_run::metrics::timings::{OLD_LOGPROBS, Timings};

/// Inputs of the updates beside the groups themselves.
pub(super) struct Updating {
    pub(super) old: Option<Ragged<f32>>,
    in_loss: Ragged<bool>,
    weights: Option<Vec<f64>>,
    dropped: Option<Normalisers>,
    pub(super) settings: UpdateSettings,
    pub(super) learning_rate: f64,
}

impl Updating {
    /// Log-probabilities at the start of the step of every member \[B\], as the updates take them.
    pub(super) fn old_logprobs<'a>(&'a self, groups: &'a [&'a Group]) -> impl Iterator<Item = &'a [f32]> {
        let members = groups.iter().flat_map(|group| &group.trajectories).enumerate();
        members.map(|(row, member)| self.old.as_ref().map_or(member.logprobs.as_slice(), |old| old.row(row)))
    }

    /// Of groups of a step, of which the first were trained on already: `old_before` are their members'
    /// log-probabilities at its start.
    pub(super) fn of(
        recipe: &Recipe,
        workers: &mut Workers,
        batch: &StepBatch,
        left_out: &[Option<LeftOut>],
        (columns, old_before): (&CreditColumns, &Ragged<f32>),
        timings: &mut Timings,
    ) -> Result<Self, Halt<RunError>> {
        let (groups, step) = (batch.groups(), batch.report.step);
        let clock = Instant::now();
        let old = match &columns.recomputed {
            Some(recomputed) => Some(recomputed.clone()),
            None => old_logprobs(recipe, workers, &groups, old_before)?,
        };
        if old.is_some() {
            timings.add(OLD_LOGPROBS, clock.elapsed());
        }
        let mut settings = recipe.update.clone();
        settings.shuffle = settings.shuffle.map(|key| key.with(step));
        settings.key = settings.key.with(step);
        Ok(Self {
            old,
            in_loss: in_loss(&groups, left_out),
            weights: recipe.selection_weights(&batch.trained),
            dropped: count_dropped(recipe, &batch.others)?,
            settings,
            learning_rate: recipe.learning_rate.rate(step - 1, recipe.planned_steps()),
        })
    }

    /// The groups as the updates take them.
    pub(super) fn batch<'a>(
        &'a self,
        recipe: &Recipe,
        groups: &'a [&'a Group],
        columns: &'a CreditColumns,
        credit: &'a Credit,
    ) -> TrainingBatch<'a> {
        TrainingBatch {
            groups,
            advantages: &credit.shaped.advantages,
            kept: Some(&self.in_loss),
            weights: self.weights.as_deref(),
            policy_factor: credit.shaped.policy_factor,
            old: self.old.as_ref(),
            dropped: self.dropped,
            reference: columns.reference.as_ref().filter(|_| recipe.reference_is_in_loss()),
        }
    }

    /// Settings of the updates.
    pub(super) fn plan<'a>(&'a self, recipe: &'a Recipe) -> UpdatePlan<'a> {
        UpdatePlan {
            objective: &recipe.objective,
            settings: &self.settings,
            learning_rate: self.learning_rate,
        }
    }
}

/// Log-probabilities under the policy at the start of the step, where they are asked for and are not those of
/// generation: this engine samples from the policy that it trains, so that only groups of an earlier version
/// differ. What servers say agrees with the learner up to rounding at best, so that it stands for the old
/// policy only where the correction says so by name. `before` are those of the first members, which are
/// known.
fn old_logprobs(
    recipe: &Recipe,
    workers: &mut Workers,
    groups: &[&Group],
    before: &Ragged<f32>,
) -> Result<Option<Ragged<f32>>, Halt<RunError>> {
    let is_needed = if workers.samples_elsewise() {
        !recipe.bypasses_old()
    } else {
        recipe.is_decoupled() && workers.any_is_stale(groups)
    };
    if !is_needed {
        return Ok(None);
    }
    let sequences = sequences(groups);
    let rest = &sequences[before.num_rows()..];
    let rows = policy_logprobs(&mut *workers.learner, rest, recipe.update.micro_batch)?;
    Ok(Some(Ragged::from_rows(before.rows().chain(rows.rows()))))
}
