//! Writes a run's files: checkpoints, logs, and every trajectory that was generated.

use std::path::Path;

use tamis_config::{CheckpointConfig, Config, SaveRollouts};
use tamis_core::fault;
use tamis_data::rollouts::{RolloutRow, write_rollouts_to};
use tamis_model::SaveDtype;
use tamis_rollout::{Fate, Record, ScoreError};

use super::divergence::{POLICY_RATE, check_finite};
use super::state::RunState;
use super::step::TrainedGroup;
use crate::assemble::schedule::Sieve;
use crate::checkpoint;
use crate::error::RunError;
use crate::learner::left_out::LeftOut;
use crate::learner::{Overflow, SaveContent, Saved};
use crate::workers::Workers;
use tamis_run::directory::{Keep, RUN_LOG, RunDirectory};
use tamis_run::log::Loggers;
use tamis_run::log::progress::Console;

/// The type of saved weights has no room for them; `checkpoint` has them in 32 bits instead.
pub(super) fn overflow_error(
    overflow: &Overflow,
    dtype: SaveDtype,
    checkpoint: &Path,
    run: &Path,
) -> RunError {
    let Overflow { tensor, largest } = overflow;
    let fault = fault!(
        "tensor `{tensor}` has weights of magnitude {largest:e}, which would be infinite in the {} of model.save_dtype; nothing was \
         written",
        dtype.name()
    );
    RunError::Fault(fault.with_hint(format!(
        "{} holds the weights in 32 bits, so nothing is lost: continue with `tamis train --resume {} model.save_dtype=bf16` (or f32), \
         and look at why they grow so large",
        checkpoint.display(),
        run.display()
    )))
}

/// Writes a run's files and its console lines.
pub(crate) struct Recorder {
    pub(crate) directory: RunDirectory,
    pub(crate) loggers: Loggers,
    pub(crate) progress: Console,
    pub(crate) saved: Option<u64>,
    /// The step of the oldest checkpoint that is kept, and the positions from which on it needs the journals
    /// of answers, samples, episodes, teachers and order.
    oldest: Option<(u64, [Option<u64>; 5])>,
    checkpoints: CheckpointConfig,
    dtype: SaveDtype,
    rollouts: SaveRollouts,
    /// The filter's metric, as rollout files name it; empty without a filter.
    metric: String,
}

impl Recorder {
    /// Opens the files in a run directory, from the checkpoint of a step on.
    pub(crate) fn new(
        config: &Config,
        sieve: &Sieve,
        directory: RunDirectory,
        loggers: Loggers,
        progress: Console,
        saved: Option<u64>,
    ) -> Self {
        Self {
            directory,
            loggers,
            progress,
            saved,
            oldest: None,
            checkpoints: config.checkpoint.clone(),
            dtype: config.model.save_dtype,
            rollouts: config.rollout.save,
            metric: if sieve.filter.is_some() { sieve.metric.to_string() } else { String::new() },
        }
    }

    /// Writes a checkpoint: a state, completed with the places in its logs and its journal.
    pub(crate) fn save(&mut self, state: &RunState, workers: &mut Workers) -> Result<RunState, RunError> {
        let Workers { learner, codec, scorer, sampler, plays, order, dispatcher, teachers, .. } = workers;
        self.directory.check_present()?;
        check_finite(&mut **learner, &self.directory, state.step, POLICY_RATE)?;
        // A validation that is still to be made belongs to this step. Events that have not been handled may
        // have come in it.
        let is_open = state.validation.is_missing || dispatcher.has_untaken() || !plays.is_idle();
        let next = if is_open { state.step } else { state.step + 1 };
        let journal = scorer.settle_journal(next);
        let samples = sampler.memory().map(|memory| memory.settle(next));
        let episodes = plays.memory().map(|memory| memory.settle(next));
        let teachers = teachers.settle(next);
        // Events that were handled until this step was trained are in the state, whatever is measured after
        // it.
        let order = order.as_mut().map(|order| order.settle(state.step + 1)).transpose();
        let order = order?;
        // A logger that is switched off keeps what it wrote before.
        let mut logs = state.logs.clone();
        self.loggers.sync(&mut logs)?;
        logs.record(RUN_LOG, self.progress.sync()?);
        let state = RunState { logs, journal, samples, episodes, teachers, order, ..state.clone() };
        let pending = self.directory.begin_checkpoint(state.step)?;
        let Saved { files, overflow } =
            learner.save(pending.path(), SaveContent::Checkpoint { dtype: self.dtype })?;
        checkpoint::write(self.directory.disk(), pending.path(), files, codec.tokenizer(), &state)?;
        let folder = pending.commit()?;
        self.directory.note_checkpoint()?;
        if self.directory.sft().exists() {
            self.directory.prune_sft(false)?;
        }
        self.saved = Some(state.step);
        self.progress.detail(&format!("checkpoint {}", folder.path.display()));
        self.prune(&state)?;
        self.shorten_journals(&state, workers)?;
        match overflow {
            Some(overflow) => Err(overflow_error(&overflow, self.dtype, &folder.path, self.directory.path())),
            None => Ok(state),
        }
    }

    fn shorten_journals(&mut self, state: &RunState, workers: &mut Workers) -> Result<(), RunError> {
        let needed =
            |state: &RunState| [state.journal, state.samples, state.episodes, state.teachers, state.order];
        if needed(state) == [None; 5] {
            return Ok(());
        }
        let Some(oldest) = self.directory.list_checkpoints()?.into_iter().next() else { return Ok(()) };
        if self.oldest.is_none_or(|(step, _)| step != oldest.step) {
            // A checkpoint that cannot be read is not one to resume from, but the user may still repair it.
            let Ok(state) = RunState::read(&oldest.path) else { return Ok(()) };
            self.oldest = Some((oldest.step, needed(&state)));
        }
        let Some((_, [answers, samples, episodes, rated, taken])) = self.oldest else { return Ok(()) };
        let Workers { scorer, sampler, plays, order, teachers, .. } = workers;
        if let Some(position) = answers {
            let shortened = scorer.shorten_journal(position);
            shortened.map_err(|error| RunError::Dispatch(ScoreError::from(error).into()))?;
        }
        for (position, memory) in [(samples, sampler.memory()), (episodes, plays.memory())] {
            if let (Some(position), Some(memory)) = (position, memory) {
                memory.shorten(position).map_err(|error| RunError::Dispatch(error.into()))?;
            }
        }
        if let Some(position) = rated {
            teachers.shorten(position)?;
        }
        if let (Some(position), Some(order)) = (taken, order) {
            order.shorten(position)?;
        }
        Ok(())
    }

    /// Removes the checkpoints that need not be kept. While updates are left out because gradients are not
    /// finite, none is removed: the last one kept may be from before the trouble.
    pub(crate) fn prune(&self, state: &RunState) -> Result<(), RunError> {
        if state.learning.skipped_updates > 0 || state.learning.skipped_critic_updates > 0 {
            return Ok(());
        }
        let keep = Keep {
            last: self.checkpoints.keep_last.unwrap_or(usize::MAX),
            best: self.checkpoints.keep_best.as_ref().map_or(0, |best| best.k),
        };
        self.directory.prune(keep, &state.validation.scores)?;
        Ok(())
    }

    /// Writes the groups of a step, as far as the configuration wants it: those that it trained on, and all
    /// others that were generated.
    pub(crate) fn write_rollouts<'a>(
        &self,
        step: u64,
        trained: &'a [TrainedGroup],
        others: impl IntoIterator<Item = &'a Record>,
    ) -> Result<(), RunError> {
        let takes_others = match self.rollouts {
            SaveRollouts::All => true,
            SaveRollouts::Kept => false,
            SaveRollouts::Off => return Ok(()),
        };
        let mut rows = Vec::new();
        // What was generated is written once, however often it is trained on.
        let trained = trained.iter().filter(|trained| !trained.record.is_copy());
        let trained = trained.map(|trained| (&trained.record, trained.members.as_slice()));
        let others = others.into_iter().filter(|_| takes_others).map(|record| (record, &[][..]));
        for (record, members) in trained.chain(others) {
            // Groups that only fill the batch are counted whole.
            let is_whole = matches!(record.fate, Fate::KeptWhenInsufficient(_));
            for (i, row) in record.rows().take(record.values.len()).enumerate() {
                let member = members.get(i);
                let left_out = member.and_then(|member| member.left_out).filter(|_| !is_whole);
                rows.push(RolloutRow {
                    advantage: member.and_then(|member| member.advantage),
                    metric: &self.metric,
                    verdict: left_out.map_or(record.fate.name(), LeftOut::name),
                    ..row
                });
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let path = self.directory.rollout(step);
        Ok(self.directory.disk().write_file_with(&path, |out| write_rollouts_to(out, &rows))?)
    }
}
