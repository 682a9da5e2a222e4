//! Collects the groups of a step, and logs what was generated.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tamis_config::LearnerBackend;
use tamis_core::group::GroupId;
use tamis_core::schedule::SkipReason;
use tamis_rollout::{Collected, Dependencies, DispatchError, End, Next, OrderLog, Record, Reference};

use super::Run;
use super::attempts::Attempts;
use super::generated::lines_of_step;
use super::watch::StepWatch;
use crate::assemble::schedule::no_such_metric;
use crate::credit::reference::BeforeFilter;
use crate::error::RunError;
use crate::interrupt::Halt;
use tamis_run::log::run_log::LineKind;
use tamis_run::metrics::timings::GENERATION;

impl Run {
    /// Prepares the first step of this process.
    pub(super) fn begin(&mut self) -> Result<(), Halt<RunError>> {
        // A kill may have come between a checkpoint and the removal of older ones.
        self.recorder.prune(&self.state)?;
        if self.state.validation.is_missing {
            self.make_up_measurement()?;
        }
        self.attempts = Attempts::new();
        self.recorder.progress.steps_begin();
        self.note_recovery();
        self.workers.learner.take_wire_time();
        Ok(())
    }

    /// Collects the groups of the next step, or of another attempt at it, and logs them.
    pub(super) fn collect_step(&mut self) -> Result<Collected, Halt<RunError>> {
        if self.interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        self.recorder.directory.check_present()?;
        self.workers.learner.progress().begin(self.recorder.saved == Some(self.state.step));
        let is_kept = |record: &&Record| record.kept_in.is_some();
        let kept = self.workers.dispatcher.held().filter(is_kept).map(|record| record.group.id).collect();
        let collected = match self.collect() {
            Err(Halt::Failed(RunError::Dispatch(DispatchError::MissingRewards(missing)))) => {
                let step = self.state.step + 1;
                self.write_unfinished(step)?;
                return Err(self.fail_without_rewards(step, *missing).into());
            }
            collected => collected?,
        };
        collected.report.accounting.check()?;
        self.note_generated(&collected, &kept);
        if matches!(collected.end, End::Ready | End::Skipped(_)) {
            self.observe_rounds(&collected, &kept, matches!(collected.end, End::Ready));
        }
        Ok(collected)
    }

    /// Abandons an attempt at a step. The step is tried again.
    pub(super) fn skip(&mut self, why: SkipReason, collected: Collected) -> Result<(), Halt<RunError>> {
        let step = self.state.step + 1;
        let reason = skip_reason(why);
        self.recorder.progress.warn(&format!("step {step} is skipped ({reason}) and tried again"));
        self.write_untrained(step, &collected)?;
        self.attempts.give_up(collected);
        self.check_rewards(step)
    }

    /// Writes what a streaming step generated into the run log; in rounds, each round is logged by itself.
    /// `kept` are the groups that were kept before the step.
    fn note_generated(&self, collected: &Collected, kept: &BTreeSet<GroupId>) {
        let machine = self.workers.dispatcher.machine();
        if machine.goes_by_rounds() {
            return;
        }
        let held = self.workers.dispatcher.held().filter(|record| !record.values.is_empty());
        let settled = collected.groups().chain(held);
        let settled = settled.filter(|record| !kept.contains(&record.group.id)).collect();
        let lines = lines_of_step(&collected.report, settled, machine.settings().group_size);
        self.recorder.progress.note(LineKind::Info, &lines);
    }

    pub(super) fn check_rewards(&mut self, step: u64) -> Result<(), Halt<RunError>> {
        match self.workers.dispatcher.missing_rewards(self.workers.scorer.rewards()) {
            Some(missing) => Err(self.fail_without_rewards(step, missing).into()),
            None => Ok(()),
        }
    }

    /// Writes what an attempt without training generated, together with all attempts before it.
    pub(super) fn write_untrained(&self, step: u64, collected: &Collected) -> Result<(), RunError> {
        let all = collected.groups().chain(&self.attempts.given_up);
        self.recorder.write_rollouts(step, &[], all)
    }

    /// The same for an attempt that ended with an error, so that a person can see what led to it. A resume
    /// writes the file anew.
    pub(super) fn write_unfinished(&self, step: u64) -> Result<(), RunError> {
        let unfinished = self.workers.dispatcher.unfinished(step);
        self.recorder.write_rollouts(step, &[], unfinished.iter().chain(&self.attempts.given_up))
    }

    /// Continues to collect until the step, or a part of it, is complete.
    pub(super) fn gather(&mut self) -> Result<Next, Halt<RunError>> {
        let began = Instant::now();
        let (steps, num_tokens) = (self.state.step, self.state.num_tokens);
        self.workers.scorer.set_trainer_state(self.recipe.trainer_state(steps, num_tokens));
        let workers = &mut self.workers;
        let mut reference = Duration::ZERO;
        let mut before_filter = BeforeFilter::of(
            &self.recipe,
            self.state.learning.reward_kl,
            &mut *workers.learner,
            &mut reference,
        );
        let target = self.recipe.config.data.train_batch_size as u64;
        let ready = self.attempts.early.num_groups as u64;
        let group_size = self.recipe.config.rollout.n;
        let progress = &self.recorder.progress;
        let mut watch = StepWatch {
            progress,
            group_size,
            target,
            ready,
            round: (0, 0),
            began,
            is_to_estimate: progress.is_first_step(),
            native_epochs: (self.recipe.config.learner.backend == LearnerBackend::Native)
                .then_some(self.recipe.config.train.ppo_epochs),
        };
        let interrupt = &workers.interrupt;
        let next = workers.dispatcher.next(Dependencies {
            source: &mut workers.pool,
            generator: &mut workers.plays.over(workers.sampler.generator()),
            scorer: &mut workers.scorer,
            reference: before_filter.as_mut().map(|pass| pass as &mut dyn Reference),
            observer: &mut watch,
            order: workers.order.as_mut().map(|order| order as &mut dyn OrderLog),
            is_interrupted: &|| interrupt.is_requested(),
        });
        let next = match next {
            Err(DispatchError::NoMetric { metric, names }) => {
                let step = self.state.step + 1;
                self.write_unfinished(step)?;
                // The function may return it once it is fixed.
                self.save_without_answers()?;
                let place = self.measurement.places.filter_metric.as_deref();
                let how = self.workers.scorer.rewards().how_to_give_acc();
                return Err(no_such_metric(&metric, &names, place, how).into());
            }
            next => next?,
        };
        if reference > Duration::ZERO {
            self.attempts.timings.add_sum("ref", reference);
        }
        self.attempts.timings.add(GENERATION, began.elapsed().saturating_sub(reference));
        Ok(next)
    }
}

fn skip_reason(why: SkipReason) -> &'static str {
    match why {
        SkipReason::LimitReached => "the limit on rounds was reached",
        SkipReason::EmptyRound => "a round kept no group",
        SkipReason::DataExhausted => "the data ended and nothing was kept",
    }
}
