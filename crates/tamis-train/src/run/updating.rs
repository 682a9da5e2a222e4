//! The input of the policy's updates, of a whole step or of an early part of one.

use std::time::Instant;

use tamis_core::objective::Normalisers;
use tamis_core::ragged::Ragged;

use crate::assemble::recipe::Recipe;
use crate::credit::{CreditedBatch, count_dropped};
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::Network;
use crate::learner::micro_batch::logprobs;
use crate::learner::old_logprobs::OldLogprobs;
use crate::learner::update::{TrainingBatch, UpdatePlan, UpdateSettings};
use crate::workers::Workers;
use tamis_run::metrics::timings::{OLD_LOGPROBS, Timings};

/// Inputs of the updates beside the groups themselves.
pub(super) struct Updating {
    pub(super) old: OldLogprobs,
    in_loss: Ragged<bool>,
    weights: Option<Vec<f64>>,
    dropped: Option<Normalisers>,
    settings: UpdateSettings,
    step: u64,
    pub(super) learning_rate: f64,
}

impl Updating {
    /// Collects the inputs from a batch and its log-probabilities at the start of the step.
    pub(super) fn new(
        recipe: &Recipe,
        credited: &CreditedBatch<'_>,
        old: OldLogprobs,
    ) -> Result<Self, RunError> {
        let step = credited.batch.report.step;
        let mut settings = recipe.update.clone();
        settings.shuffle = settings.shuffle.map(|key| key.with(step));
        settings.key = settings.key.with(step);
        Ok(Self {
            old,
            in_loss: credited.members.in_loss(),
            weights: recipe.selection_weights(&credited.batch.trained),
            dropped: count_dropped(recipe, &credited.batch.others)?,
            settings,
            step,
            learning_rate: recipe.learning_rate.rate(step - 1, recipe.planned_steps()),
        })
    }

    pub(super) fn batch<'a>(&'a self, recipe: &Recipe, credited: &'a CreditedBatch<'_>) -> TrainingBatch<'a> {
        let shaped = &credited.credit.shaped;
        TrainingBatch {
            groups: &credited.trained.groups,
            advantages: &shaped.advantages,
            kept: Some(&self.in_loss),
            weights: self.weights.as_deref(),
            policy_factor: shaped.policy_factor,
            old: &self.old,
            dropped: self.dropped,
            taught: credited.columns.passes.taught.as_ref(),
            reference: credited.columns.passes.reference.as_ref().filter(|_| recipe.reference_is_in_loss()),
        }
    }

    pub(super) fn plan<'a>(&'a self, recipe: &'a Recipe) -> UpdatePlan<'a> {
        UpdatePlan {
            objective: &recipe.objective,
            settings: &self.settings,
            own_loss: recipe.functions.loss.as_ref(),
            learning_rate: self.learning_rate,
            step: self.step,
        }
    }
}

/// Log-probabilities under the policy at the start of the step. They are computed if they are wanted and
/// differ from those of generation. The native engine samples from the policy that it trains, so only groups
/// of an earlier version differ. A server's numbers agree with the learner's at best up to rounding, so they
/// are used for the old policy only if the correction names them. `before` are those of the first members,
/// which are known.
pub(super) fn old_logprobs(
    recipe: &Recipe,
    workers: &mut Workers,
    credited: &CreditedBatch<'_>,
    before: &Ragged<f32>,
    timings: &mut Timings,
) -> Result<OldLogprobs, Halt<RunError>> {
    let clock = Instant::now();
    let trained = &credited.trained;
    let is_needed = || {
        if workers.samples_elsewise() {
            !recipe.bypasses_old()
        } else {
            recipe.is_decoupled() && workers.any_is_stale(&trained.groups)
        }
    };
    let old = match &credited.columns.passes.old {
        OldLogprobs::AsSampled if !is_needed() => return Ok(OldLogprobs::AsSampled),
        OldLogprobs::AsSampled => {
            let rest = &trained.sequences[before.num_rows()..];
            let rows = logprobs(&mut *workers.learner, Network::Before, rest, recipe.update.micro_batch)?;
            Ragged::from_rows(before.rows().chain(rows.rows()))
        }
        OldLogprobs::Recomputed(rows) => rows.clone(),
    };
    timings.add(OLD_LOGPROBS, clock.elapsed());
    Ok(OldLogprobs::Recomputed(old))
}
