//! Records a step: rollouts, metrics, validation, log lines, checkpoint.

use std::time::Instant;

use tamis_config::LoggerKind;
use tamis_core::fault;
use tamis_rollout::GeneratorError;

use super::Run;
use super::facts::StepFacts;
use super::state::RunState;
use super::step::Step;
use super::step_details::details;
use super::step_metrics::StepMetrics;
use super::untrained::MOST_SKIPPED_UPDATES;
use crate::error::RunError;
use crate::interrupt::Halt;
use tamis_run::log::console;
use tamis_run::log::details::StepDetails;
use tamis_run::metrics::timings::{STEP, Timings};

/// The figures of a step, until its line is logged.
pub(super) struct StepRecord {
    found: StepMetrics,
    details: StepDetails,
    timings: Timings,
    is_last: bool,
}

impl Run {
    pub(super) fn write_down(&mut self, step: &Step, is_last: bool) -> Result<StepRecord, RunError> {
        // Events from now on, while the policy is measured too, are not in the state that a checkpoint of
        // this step holds.
        self.workers.begin_step(step.facts.step + 1);
        let (recorder, facts) = (&self.recorder, &step.facts);
        if let Some(warning) = facts.uniform_groups.as_ref().filter(|_| !self.has_warned_of_uniform_groups) {
            recorder.progress.warn(warning);
            self.has_warned_of_uniform_groups = true;
        }
        facts.warnings.iter().for_each(|warning| recorder.progress.warn(warning));
        let mut found = StepMetrics::of(&self.recipe, step);
        let details = details(step, &recorder.loggers);
        recorder.write_rollouts(facts.step, &step.trained, &step.others)?;
        recorder.progress.detail(&facts.report.to_string());
        let mut timings = std::mem::take(&mut self.attempts.timings);
        timings.append(&facts.timings);
        for (name, time) in self.workers.scorer.take_times() {
            timings.add_sum("reward", time);
            found.metrics.set(format!("timing_s/reward/{name}"), time.as_secs_f64());
        }
        // Before validation, so that its figures come last even if they are added later.
        found.metrics.add_aliases();
        self.gives_numbers = facts.gives_numbers;
        Ok(StepRecord { found, details, timings, is_last })
    }

    /// Measures the policy after a step if that is due, and adopts the state after it. Returns why the
    /// generator is lost, if it is. After a loss or an interruption, the validation is still to be made.
    pub(super) fn measure(
        &mut self,
        facts: &StepFacts,
        mut after: RunState,
        lost: Option<GeneratorError>,
        record: &mut StepRecord,
    ) -> Result<Option<RunError>, Halt<RunError>> {
        let mut lost = lost.map(RunError::from);
        after.early_stop = self.measurement.early_stop.state().clone();
        if facts.diverged.is_none() && self.measures_after(facts.step, record.is_last) {
            let clock = Instant::now();
            let measured = match lost.take() {
                Some(error) => Err(Halt::Failed(error)),
                None => self.validate(&mut after, &mut record.found.metrics),
            };
            match measured {
                Err(Halt::Interrupted) => after.validation.is_missing = true,
                Err(Halt::Failed(error)) if error.is_lost_fleet() => {
                    after.validation.is_missing = true;
                    lost = Some(error);
                }
                Err(Halt::Failed(error)) if error.not_finite_sample().is_some() => {
                    let place = error.not_finite_sample().unwrap_or_default();
                    return Err(self.logits_error(&place, facts.step).into());
                }
                measured => {
                    measured?;
                    self.measurement.observe(&mut after);
                }
            }
            record.timings.add("testing", clock.elapsed());
        }
        self.state = after;
        Ok(lost)
    }

    pub(super) fn log(&mut self, facts: &StepFacts, record: StepRecord) -> Result<(), RunError> {
        let StepRecord { mut found, mut details, mut timings, is_last } = record;
        self.workers.learner.progress().end();
        if let Some(time) = self.workers.learner.take_wire_time() {
            timings.add_sum("wire", time);
        }
        if let Some(balance) = self.workers.learner.take_rank_balance() {
            found.put_balance(&balance);
            if let Some(time) = balance.idle_time() {
                timings.add_sum("rank_idle", time);
            }
        }
        timings.add(STEP, self.attempts.began.elapsed());
        // The native engine measures its peak when it is first asked.
        if let Some(work) = self.workers.learner.take_work() {
            found.put_work(&work, &timings);
        }
        found.put_times(&timings);
        found.metrics.add_aliases();
        self.recorder.loggers.log(facts.step, &found.metrics)?;
        details.spans = timings.spans();
        self.recorder.loggers.log_details(facts.step, &details)?;
        let (progress, view) = (&self.recorder.progress, found.view(&self.recipe, facts, &timings));
        progress.step(facts.step);
        if self.recipe.config.run.loggers.iter().any(|logger| matches!(logger, LoggerKind::Console(_))) {
            let (total, left) = (progress.total_steps(), progress.time_left());
            let left = left.filter(|_| !is_last);
            progress.say_step(
                &console::line(facts.step, total, &view, left),
                &console::short_line(facts.step, total, &view, left),
            );
        }
        Ok(())
    }

    /// Writes a checkpoint after a step if one is due, and ends a run that has diverged or learns nothing.
    pub(super) fn keep(&mut self, facts: StepFacts, is_last: bool) -> Result<(), RunError> {
        // The step's figures are logged, but its weights are not used.
        if let Some(diverged) = facts.diverged {
            return Err(diverged.error(&self.recorder.directory, facts.step));
        }
        self.note_recovery();
        let is_due = self.recipe.config.checkpoint.save_freq.is_due(facts.step);
        if is_due || is_last || self.state.validation.is_missing {
            self.save()?;
        }
        self.check_learns(facts.step, facts.most_skipped, facts.most_skipped_critic)?;
        // The learner's time for a checkpoint belongs to no step.
        self.workers.learner.take_wire_time();
        Ok(())
    }

    /// Prints what the loss of a learner cost, once the run has caught up.
    pub(super) fn note_recovery(&mut self) {
        let step = self.state.step;
        if let Some(said) = self.recovery.as_mut().and_then(|recovery| recovery.note(step)) {
            self.recorder.progress.say(&said);
            self.recovery = None;
        }
    }

    /// Saves the last state and ends a run whose updates cannot be made, or whose steps make none.
    fn check_learns(&mut self, step: u64, skipped: u32, skipped_critic: u32) -> Result<(), RunError> {
        let untrained = self.state.learning.untrained;
        if skipped.max(skipped_critic) < MOST_SKIPPED_UPDATES && !untrained.are_too_many() {
            return Ok(());
        }
        if self.recorder.saved != Some(step) {
            self.save()?;
        }
        let kept = self.recorder.directory.path().join("checkpoints");
        let kept = kept.display();
        // A critic without finite gradients may cause the policy's trouble, not the other way round.
        Err(if skipped_critic >= MOST_SKIPPED_UPDATES {
            let fault = fault!(
                "the gradients of {skipped_critic} updates of the critic in a row were not finite, up to step {step}: the critic does not \
                 learn, and the policy would follow its values"
            );
            RunError::Fault(fault.with_hint(format!(
                "the critic's weights are those of its last update that could be made, in {kept}; look for a reward or a value without \
                 bound (critic/score/max, critic/returns/max, critic/values/max in metrics.jsonl), and lower \
                 critic.optimizer.learning_rate if there is none"
            )))
        } else if skipped >= MOST_SKIPPED_UPDATES {
            let fault = fault!(
                "the gradients of {skipped} updates in a row were not finite, up to step {step}: the run does not learn"
            );
            RunError::Fault(fault.with_hint(format!(
                "the weights are those of the last update that could be made, in {kept}; look for a reward or an advantage without bound \
                 (critic/score/max, critic/advantages/max, actor/ratio_max in metrics.jsonl), and lower train.optimizer.learning_rate if \
                 there is none"
            )))
        } else {
            self.nothing_trained_error(u64::from(untrained.steps))
        })
    }
}
