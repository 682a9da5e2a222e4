//! What a run writes between two steps: checkpoints, and every trajectory that was generated.

use tamis_data::rollouts::{RolloutRow, write_rollouts_to};
use tamis_rollout::{Collected, GroupGenerator, Record};

use super::{RunError, Session};
use crate::checkpoint::{self, CriticState, RunState};
use crate::left_out::LeftOut;
use crate::native::NativeEngine;
use crate::run_directory::{RUN_LOG, RunDirectory};

/// Keys of the learning rates that a diagnosis names.
pub(super) const POLICY_RATE: &str = "train.optimizer.learning_rate";
const CRITIC_RATE: &str = "critic.optimizer.learning_rate";

/// What is known of the trajectories that a step trained its groups with \[B\]; empty where nothing was trained.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrainedRows<'a> {
    /// Their advantages; NaN without.
    pub(super) advantages: &'a [f64],
    /// Why they bore no loss; `None`: they were trained on.
    pub(super) left_out: &'a [Option<LeftOut>],
}

impl TrainedRows<'_> {
    /// Nothing was trained.
    pub(super) const NONE: Self = Self { advantages: &[], left_out: &[] };
}

/// As [`Session::check_finite`], where the session is not at hand.
pub(super) fn check_finite(
    policy: &NativeEngine,
    directory: &RunDirectory,
    step: u64,
    learning_rate: &'static str,
) -> Result<(), RunError> {
    let critic = policy.critic();
    let places = [
        ("the policy's weights", policy.model().non_finite(), learning_rate),
        ("the moments of the policy's optimizer", policy.optimizer().non_finite(), learning_rate),
        ("the critic's weights", critic.and_then(|critic| critic.model().non_finite()), CRITIC_RATE),
        (
            "the moments of the critic's optimizer",
            critic.and_then(|critic| critic.optimizer().non_finite()),
            CRITIC_RATE,
        ),
    ];
    for (what, tensor, learning_rate) in places {
        if let Some(tensor) = tensor {
            return Err(RunError::Diverged {
                what,
                tensor: tensor.to_owned(),
                step,
                kept: directory.list_checkpoints()?.pop().map(|last| last.path),
                learning_rate,
                run: directory.path().to_owned(),
            });
        }
    }
    Ok(())
}

impl Session {
    /// Refuses weights and moments that are no numbers any more: nothing is generated with them, and nothing is saved over those before.
    pub(super) fn check_finite(&self, step: u64, learning_rate: &'static str) -> Result<(), RunError> {
        check_finite(&self.engine, &self.directory, step, learning_rate)
    }

    /// Writes a checkpoint of the state between two steps.
    pub(super) fn save(&mut self, step: u64) -> Result<(), RunError> {
        self.directory.check_present()?;
        self.check_finite(step, POLICY_RATE)?;
        // A validation that is still to be made belongs to this step.
        let next = if self.is_unmeasured { step } else { step + 1 };
        let journal = self.scorer.settle_journal(next);
        // A logger that is switched off keeps what it wrote before.
        let mut logs = self.base_logs.clone();
        self.loggers.sync(&mut logs)?;
        logs.record(RUN_LOG, self.progress.sync()?);
        let state = RunState {
            format: RunState::FORMAT,
            step,
            version: self.engine.version(),
            position: self.between.position,
            machine: self.between.machine.clone(),
            next_group: self.between.next_group,
            carried: self.between.carried.clone(),
            data_crc32: self.data_crc32,
            objective: self.objective_state,
            advantage: self.advantage_state.clone(),
            reward_kl: self.reward_kl,
            logs,
            journal,
            is_unmeasured: self.is_unmeasured,
            num_tokens: self.num_tokens,
            scores: self.scores.clone(),
            before: self.before.clone(),
            latest: self.latest.clone(),
            early_stop: self.early_stop_between.clone(),
            uniform_groups: Some(self.between.uniform_groups),
            skipped_updates: self.skipped_updates,
            skipped_critic_updates: self.skipped_critic_updates,
            reward_health: self.between.reward_health.clone(),
            untrained: self.untrained,
            critic: self.engine.critic().map(|critic| CriticState { version: critic.version() }),
        };
        let pending = self.directory.begin_checkpoint(step)?;
        let dtype = match self.config.model.save_dtype {
            tamis_config::SaveDtype::F32 => tamis_model::SaveDtype::F32,
            tamis_config::SaveDtype::Bf16 => tamis_model::SaveDtype::Bf16,
            tamis_config::SaveDtype::F16 => tamis_model::SaveDtype::F16,
        };
        // What the type has no room for is written as it is.
        let overflow =
            self.engine.model().overflow(dtype).map(|(tensor, largest)| (tensor.to_owned(), largest));
        let written = if overflow.is_some() { tamis_model::SaveDtype::F32 } else { dtype };
        checkpoint::write(self.directory.disk(), pending.path(), &self.engine, &state, written)?;
        let folder = pending.commit()?;
        self.directory.note_checkpoint()?;
        self.saved = Some(step);
        self.progress.say(&format!("checkpoint {}", folder.path.display()));
        self.prune()?;
        match overflow {
            Some((tensor, largest)) => Err(RunError::Overflow {
                tensor,
                largest,
                dtype,
                checkpoint: folder.path,
                run: self.directory.path().to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Removes the checkpoints that need not be kept; none while updates are left out for gradients that are not finite, or those from
    /// before the trouble would go.
    pub(super) fn prune(&self) -> Result<(), RunError> {
        if self.skipped_updates > 0 || self.skipped_critic_updates > 0 {
            return Ok(());
        }
        let keep = &self.config.checkpoint;
        self.directory.prune(
            crate::run_directory::Keep {
                last: keep.keep_last.unwrap_or(usize::MAX),
                best: keep.keep_best.as_ref().map_or(0, |best| best.k),
            },
            &self.scores,
        )?;
        Ok(())
    }

    /// Writes what was generated in the step, as far as the configuration wants it.
    pub(super) fn write_rollouts(
        &mut self,
        step: u64,
        collected: &Collected,
        trained: TrainedRows<'_>,
    ) -> Result<(), RunError> {
        self.write_records(step, (&collected.trained, &collected.others), trained)
    }

    /// The same of an attempt at a step that an error ended, so that a person can look at what led to it. A resume writes the file anew.
    pub(super) fn write_unfinished(&mut self, step: u64) -> Result<(), RunError> {
        let unfinished = self.shell.unfinished(step);
        self.write_records(step, (&[], &unfinished), TrainedRows::NONE)
    }

    /// Writes groups that were trained, and others.
    fn write_records(
        &mut self,
        step: u64,
        (trained_on, others): (&[Record], &[Record]),
        trained: TrainedRows<'_>,
    ) -> Result<(), RunError> {
        use tamis_config::SaveRollouts;
        let metric = if self.sieve.filter.is_some() { self.sieve.metric.to_string() } else { String::new() };
        let mut rows = Vec::new();
        let mut of_trained = trained.advantages.iter().zip(trained.left_out);
        // Attempts at this step that were given up before are in the same file, which is written anew.
        let (others, given_up): (&[Record], &[Record]) = match self.config.rollout.save {
            SaveRollouts::All => (others, &self.attempts.given_up),
            SaveRollouts::Kept => (&[], &[]),
            SaveRollouts::Off => return Ok(()),
        };
        for (place, record) in trained_on.iter().chain(others).chain(given_up).enumerate() {
            for (member, (trajectory, value)) in
                record.group.trajectories.iter().zip(&record.values).enumerate()
            {
                let own = if place < trained_on.len() { of_trained.next() } else { None };
                let left_out = own.and_then(|(_, left_out)| *left_out);
                rows.push(RolloutRow {
                    step: record.step,
                    round: record.round,
                    group: &record.group,
                    trajectory,
                    data_source: &record.prompt.prompt.data_source,
                    prompt: &record.prompt.text,
                    ground_truth: record.prompt.prompt.ground_truth.as_deref(),
                    advantage: own.map(|(advantage, _)| *advantage),
                    metric: &metric,
                    metric_value: Some(*value).filter(|value| !value.is_nan()),
                    verdict: left_out.map_or(record.fate.name(), LeftOut::name),
                    logged: record.logged.get(member).map(|logged| &logged.columns),
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
