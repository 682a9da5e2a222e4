//! Training on parts of a step before the step is complete, while the rest is generated.
//!
//! The result is that of a step that trains on the whole batch: the same mini-batches in the same order, with
//! the same advantages and the same objective. A setting that would break this is refused at the start of a
//! run ([`tamis_core::whole_step::WholeStep`]).

use std::collections::BTreeMap;
use std::time::Instant;

use tamis_core::group::GroupId;
use tamis_core::objective::ObjectiveState;
use tamis_core::ragged::Ragged;
use tamis_rollout::Record;

use super::state::RunState;
use super::step::credit;
use super::updating::{Updating, old_logprobs};
use crate::assemble::recipe::Recipe;
use crate::credit::batch::StepBatch;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::update::Updates;
use crate::workers::Workers;
use tamis_run::metrics::timings::{Timings, UPDATE};

/// The first groups of a step, in batch order, that were trained on before the step was complete; empty at
/// the beginning of a step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Early {
    pub(super) num_groups: usize,
    pub(super) updates: Updates,
    /// The objective's state after these groups; `None` before the first.
    pub(super) objective: Option<ObjectiveState>,
    /// Log-probabilities of their members under the policy at the start of the step `[B][T]`.
    pub(super) old: Ragged<f32>,
    pub(super) timings: Timings,
    /// Log-probabilities under the reference `[G][T]`, if there is one. They are not computed again.
    references: BTreeMap<GroupId, Ragged<f32>>,
}

impl Early {
    /// Passes on what was computed for these groups to the groups of the complete batch.
    pub(super) fn give(&mut self, trained: &mut [Record]) {
        for record in trained {
            if let Some(reference) = self.references.remove(&record.group.id) {
                record.reference = Some(reference);
            }
        }
    }

    /// Trains on the next groups of a step, in whole mini-batches.
    ///
    /// If it is interrupted, weights may have moved: [`crate::learner::RunLearner::restore`] takes that back.
    pub(super) fn train(
        &mut self,
        recipe: &Recipe,
        workers: &mut Workers,
        before: &RunState,
        groups: Vec<Record>,
    ) -> Result<(), Halt<RunError>> {
        workers.learner.keep()?;
        let part = StepBatch::part(before.step + 1, groups);
        let mut timings = Timings::new();
        let learning = &before.learning;
        let credited = credit(recipe, workers, learning, &part, &mut timings)?;
        let old = old_logprobs(recipe, workers, &credited, &Ragged::default(), &mut timings)?;
        let updating = Updating::new(recipe, &credited, old)?;
        let clock = Instant::now();
        let training = updating.batch(recipe, &credited);
        let plan = updating.plan(recipe);
        let mut objective = self.objective.unwrap_or(learning.objective);
        self.updates.train_part(&mut *workers.learner, plan, &mut objective, training, self.num_groups)?;
        self.objective = Some(objective);
        timings.add(UPDATE, clock.elapsed());
        let groups = &credited.trained.groups;
        self.num_groups += groups.len();
        for row in updating.old.rows(groups) {
            self.old.push_row(row.iter().copied());
        }
        self.timings.append(&timings);
        if let Some(reference) = &credited.columns.passes.reference {
            let mut row = 0;
            for group in groups {
                let rows = row..row + group.trajectories.len();
                row = rows.end;
                self.references.insert(group.id, Ragged::from_rows(rows.map(|row| reference.row(row))));
            }
        }
        Ok(())
    }
}
