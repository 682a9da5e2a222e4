//! Credit: from the groups of a step to the columns that the estimator reads, and from these to advantages.
//!
//! ```text
//! members ─▶ passes (networks) ─▶ columns (pure) ─▶ assign (pure but for an estimator in Python)
//! ```

pub(crate) mod batch;
pub(crate) mod columns;
pub(crate) mod members;
pub(crate) mod passes;
pub(crate) mod reference;

use tamis_core::advantage::shaping::{RoundCounts, Shaped, ShapingBatch, shape};
use tamis_core::advantage::{AdvantageBatch, AdvantageState, Estimate};
use tamis_core::group::GroupId;
use tamis_core::objective::Normalisers;
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};
use tamis_rollout::{Fate, Record};

use crate::assemble::recipe::Recipe;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::optimizer_batch::mask_of;
use crate::own_function::error::in_step;
use batch::{StepBatch, TrainedGroups};
use columns::CreditColumns;
use members::TrainedMembers;

/// A batch with its credit: what the updates of a step learn from.
pub(crate) struct CreditedBatch<'a> {
    pub(crate) batch: &'a StepBatch,
    pub(crate) trained: TrainedGroups<'a>,
    /// Their members, with the reasons why some have no loss.
    pub(crate) members: TrainedMembers<'a>,
    pub(crate) columns: CreditColumns,
    pub(crate) credit: Credit,
}

/// Advantages of a step's members, with everything computed on the way.
pub(crate) struct Credit {
    /// Advantages after the shapings.
    pub(crate) shaped: Shaped,
    /// Returns per token `[B][T]`, if the estimator forms them.
    pub(crate) returns: Option<Ragged<f64>>,
    /// State that the estimator carries to the next step.
    pub(crate) state: AdvantageState,
}

/// Advantages of a batch; `before` is the estimator's state before the step.
pub(crate) fn assign(
    recipe: &Recipe,
    before: &AdvantageState,
    batch: &StepBatch,
    columns: &CreditColumns,
) -> Result<Credit, Halt<RunError>> {
    let components = columns.components();
    let of_estimator = columns.batch(&components);
    let own = recipe.functions.advantage.as_ref();
    let name = |place: usize| {
        let mut members = batch
            .trained
            .iter()
            .flat_map(|record| record.group.trajectories.iter().map(|member| record.group.name(member)));
        members.nth(place).unwrap_or_else(|| format!("trajectory {place}"))
    };
    let given = own.map(|own| own.advantages(&of_estimator, &name)).transpose();
    let given = given.map_err(|halt| in_step(halt, batch.report.step))?;
    let of_estimator = AdvantageBatch { given: given.as_ref(), ..of_estimator };
    let Estimate { advantages, returns, state } = recipe.advantage.estimate(&of_estimator, before)?;
    let ids: Vec<GroupId> = batch.trained.iter().map(|record| record.group.id).collect();
    let tally = &batch.report.all;
    let shaped = shape(
        &recipe.shapings,
        advantages,
        &ShapingBatch {
            batch: of_estimator,
            groups: RoundCounts { kept: tally.kept, generated: tally.groups },
            key: Key::new(recipe.config.run.seed, Purpose::Objective).with(batch.report.step),
            group_ids: Some(&ids),
        },
    )?;
    Ok(Credit { shaped, returns, state })
}

/// Groups, trajectories and tokens that the filter dropped in the step, if they stay in the
/// denominators of the loss.
pub(crate) fn count_dropped(recipe: &Recipe, others: &[Record]) -> Result<Option<Normalisers>, RunError> {
    if !recipe.counts_dropped() {
        return Ok(None);
    }
    let mut mask = Ragged::default();
    let mut sizes = Vec::new();
    let dropped: Vec<&Record> =
        others.iter().filter(|record| matches!(record.fate, Fate::Dropped(_))).collect();
    for record in &dropped {
        sizes.push(record.group.trajectories.len());
        for mask_t in mask_of(&record.group, recipe.update.mask_truncated) {
            mask.push_row(mask_t);
        }
    }
    let weights = recipe.selection_weights(dropped);
    Ok(Some(Normalisers::weighted(&mask, &sizes, weights.as_deref())?.0))
}
