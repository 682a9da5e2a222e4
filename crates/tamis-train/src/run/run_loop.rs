//! The loop over steps: collect, train, until the run ends, is interrupted or stops.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tamis_config::LoggerKind;
use tamis_core::group::GroupId;
use tamis_core::schedule::{Accounting, PassedOver};
use tamis_rollout::{Collected, Dependencies, DispatchError, End, Next, OrderLog, Record, Reference};

use super::attempts::Attempts;
use super::blame::blame_environment;
use super::generated::lines_of_step;
use super::step::step;
use super::step_details::details;
use super::step_metrics::StepMetrics;
use super::untrained::MOST_SKIPPED_UPDATES;
use super::watch::StepWatch;
use super::{Ending, Run, RunSummary};
use crate::assemble::schedule::no_such_metric;
use crate::credit::reference::BeforeFilter;
use crate::error::RunError;
use crate::interrupt::Halt;
use tamis_run::directory::RunDirectoryError;
use tamis_run::log::RunEnding;
use tamis_run::log::console;
use tamis_run::log::run_log::{LineKind, end as log_end};
use tamis_run::metrics::timings::{GENERATION, STEP};

impl Run {
    /// Trains until the run ends.
    pub fn run(&mut self) -> Result<RunSummary, RunError> {
        let result = self.steps();
        let ending = match &result {
            Ok(Ending::Interrupted) => RunEnding::Interrupted,
            Ok(Ending::Finished(_) | Ending::StoppedEarly(_)) => RunEnding::Finished,
            Err(_) => RunEnding::Failed,
        };
        self.recorder.loggers.close(ending);
        self.recorder.progress.finish();
        match result {
            Ok(ending) => {
                let how = match &ending {
                    Ending::Finished(_) => log_end::FINISHED,
                    Ending::StoppedEarly(_) => log_end::STOPPED_EARLY,
                    Ending::Interrupted => log_end::INTERRUPTED,
                };
                self.recorder.progress.note(LineKind::Info, how);
                let checkpoint = self.recorder.saved.map(|step| self.recorder.directory.checkpoint(step));
                Ok(RunSummary {
                    ending,
                    steps: self.state.step,
                    run: self.recorder.directory.path().to_owned(),
                    checkpoint,
                    before: self.state.validation.before.take(),
                    after: self.state.validation.latest.take().map(|(_, report)| report),
                })
            }
            Err(error) => {
                let error = self.check_present_after(&error).map_or_else(RunError::from, |()| error);
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    /// Whether the run directory is there after an error, of which its removal may be the reason. A folder
    /// that is being removed loses its files one by one, so where one was not found this waits up to two
    /// seconds for the rest to go.
    fn check_present_after(&self, error: &RunError) -> Result<(), RunDirectoryError> {
        let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
        let is_missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        let num_looks = if causes.any(|cause| cause.downcast_ref().is_some_and(is_missing)) { 40 } else { 0 };
        for _ in 0..num_looks {
            self.recorder.directory.check_present()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        self.recorder.directory.check_present()
    }

    /// Writes an error into the run log; the command line prints it.
    pub(super) fn note_failure(&self, error: &dyn std::error::Error) {
        let mut text = format!("the run ends with an error: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            let _ = write!(text, "\n  caused by: {cause}");
            source = cause.source();
        }
        self.recorder.progress.note(LineKind::Error, &text);
    }

    fn steps(&mut self) -> Result<Ending, RunError> {
        // A kill may have come between a checkpoint and the removal of older ones.
        self.recorder.prune(&self.state)?;
        let ending = self.run_steps();
        for warning in std::mem::take(&mut self.workers.unsaid) {
            self.recorder.progress.warn(&warning);
        }
        match ending {
            Err(Halt::Interrupted) => self.save_interrupted(),
            // They may come back: what was trained is kept, and a resume goes on.
            Err(Halt::Failed(error)) if error.is_lost_fleet() => {
                self.save_interrupted()?;
                Err(error)
            }
            Err(Halt::Failed(error)) => Err(match error.not_finite_sample() {
                Some(place) => self.logits_error(place, self.state.step),
                None => error,
            }),
            Ok(ending) => Ok(ending),
        }
    }

    fn run_steps(&mut self) -> Result<Ending, Halt<RunError>> {
        if self.state.validation.is_missing {
            self.make_up_measurement()?;
        }
        self.attempts = Attempts::new();
        self.recorder.progress.steps_begin();
        self.note_recovery();
        self.workers.learner.take_wire_time();
        loop {
            if let Some(reason) = self.measurement.early_stop.stop_reason() {
                return self.stop_early(reason);
            }
            let step = self.state.step + 1;
            if self.interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            self.recorder.directory.check_present()?;
            self.workers.learner.progress().begin(self.recorder.saved == Some(self.state.step));
            let is_kept = |record: &&Record| record.kept_in.is_some();
            let kept = self.workers.dispatcher.held().filter(is_kept).map(|record| record.group.id).collect();
            let collected = match self.collect() {
                Err(Halt::Failed(RunError::Dispatch(DispatchError::MissingRewards(missing)))) => {
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
            match &collected.end {
                // Nothing is changed yet: a resume collects the same batch.
                End::Ready if self.interrupt.is_requested() => return Err(Halt::Interrupted),
                End::Ready => {
                    self.train(collected)?;
                    self.attempts = Attempts::new();
                    // That of a checkpoint is of no step.
                    self.workers.learner.take_wire_time();
                    self.check_rewards(step)?;
                }
                End::Skipped(why) => {
                    self.recorder
                        .progress
                        .warn(&format!("step {step} is skipped ({}) and tried again", skip_reason(*why)));
                    self.write_untrained(step, &collected)?;
                    self.attempts.give_up(collected);
                    self.check_rewards(step)?;
                }
                End::Finished(why) => {
                    let why = *why;
                    if !collected.others.is_empty() {
                        self.recorder.progress.say(&format!("{}", collected.report));
                    }
                    self.write_untrained(step, &collected)?;
                    self.finish()?;
                    self.check_learned()?;
                    return Ok(Ending::Finished(why));
                }
                End::Stopped(diagnosis) => {
                    self.write_untrained(step, &collected)?;
                    self.finish()?;
                    // There is no signal because there are no rewards: that is the news.
                    let rounds = u32::try_from(collected.report.rounds.max(1)).unwrap_or(u32::MAX);
                    let missing = self
                        .workers
                        .dispatcher
                        .reward_health()
                        .missing_for(rounds, self.workers.scorer.rewards());
                    if let Some(missing) = missing {
                        return Err(self.fail_without_rewards(step, missing).into());
                    }
                    let run = self.recorder.directory.path().to_owned();
                    let mut diagnosis = diagnosis.clone();
                    let faults = self.workers.dispatcher.inbox().take_faults();
                    blame_environment(&mut diagnosis, faults, &self.recipe.config);
                    if let Some(selector) = self.workers.pool.selector() {
                        diagnosis.note_passed_over(PassedOver {
                            selector: selector.settings().to_string(),
                            considered: selector.state().num_considered,
                            skipped: selector.state().num_skipped,
                        });
                    }
                    return Err(RunError::Stopped { diagnosis, run }.into());
                }
            }
        }
    }

    /// Writes what a streaming step generated into the run log; by rounds each round says it. `kept` are the
    /// groups that were kept before it.
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

    fn check_rewards(&mut self, step: u64) -> Result<(), RunError> {
        match self.workers.dispatcher.missing_rewards(self.workers.scorer.rewards()) {
            Some(missing) => Err(self.fail_without_rewards(step, missing)),
            None => Ok(()),
        }
    }

    /// Saves the state after the last trained step, where it is not saved yet. What was begun after it is
    /// done again by a resume.
    fn save_interrupted(&mut self) -> Result<Ending, RunError> {
        self.workers.learner.restore()?;
        // Weights of a step that came to no end are those of no state.
        if self.recorder.saved != Some(self.state.step) && !self.workers.learner.progress().has_moved() {
            self.save()?;
        }
        Ok(Ending::Interrupted)
    }

    /// The last validation and checkpoint, where they have not been made.
    pub(super) fn finish(&mut self) -> Result<(), Halt<RunError>> {
        let totals = self.workers.dispatcher.machine().totals();
        totals.check()?;
        self.recorder.progress.say(&format_accounting(totals));
        self.last_measurement()?;
        let steps = self.state.step;
        self.tell_untrained_policy(steps);
        self.tell_skipped_updates();
        if self.recorder.saved != Some(steps) {
            self.save()?;
        }
        Ok(())
    }

    /// Writes a checkpoint of the state.
    pub(super) fn save(&mut self) -> Result<(), RunError> {
        // Of a step that is not complete nothing is saved.
        self.workers.learner.restore()?;
        self.check_logits()?;
        self.state = self.recorder.save(&self.state, &mut self.workers)?;
        Ok(())
    }

    /// Trains on a complete batch, and writes down what came of it: metrics, rollouts, validation,
    /// checkpoint. An interrupted step changes nothing, and weights have moved then only if the state before
    /// it is saved.
    fn train(&mut self, collected: Collected) -> Result<(), Halt<RunError>> {
        self.recorder.progress.stage("training");
        let is_last = collected.report.is_last;
        let (batch, early) = self.attempts.batch(collected, &self.workers.dispatcher);
        let step = step(&self.recipe, &mut self.workers, &self.state, batch, early)?;
        // What ends from now on, while the policy is measured too, is not in the state any more that a
        // checkpoint of this step holds.
        self.workers.begin_step(step.facts.step + 1);
        let (recorder, facts) = (&self.recorder, &step.facts);
        if let Some(warning) = facts.uniform_groups.as_ref().filter(|_| !self.has_warned_of_uniform_groups) {
            recorder.progress.warn(warning);
            self.has_warned_of_uniform_groups = true;
        }
        facts.warnings.iter().for_each(|warning| recorder.progress.warn(warning));
        let mut found = StepMetrics::of(&self.recipe, &step);
        let mut details = details(&step, &recorder.loggers);
        recorder.write_rollouts(facts.step, &step.trained, &step.others)?;
        recorder.progress.say(&facts.report.to_string());
        let mut timings = std::mem::take(&mut self.attempts.timings);
        timings.append(&facts.timings);
        for (name, time) in self.workers.scorer.take_times() {
            timings.add_sum("reward", time);
            found.metrics.set(format!("timing_s/reward/{name}"), time.as_secs_f64());
        }
        // Before validation, so that its figures come last even where they are added later.
        found.metrics.add_aliases();

        self.gives_numbers = step.facts.gives_numbers;
        let (facts, mut after, mut lost) = (step.facts, step.after, step.lost.map(RunError::from));
        after.early_stop = self.measurement.early_stop.state().clone();
        if facts.diverged.is_none() && self.measures_after(facts.step, is_last) {
            let clock = Instant::now();
            let measured = match lost.take() {
                Some(error) => Err(Halt::Failed(error)),
                None => self.validate(&mut after, &mut found.metrics),
            };
            match measured {
                Err(Halt::Interrupted) => after.validation.is_missing = true,
                Err(Halt::Failed(error)) if error.is_lost_fleet() => {
                    after.validation.is_missing = true;
                    lost = Some(error);
                }
                Err(Halt::Failed(error)) if error.not_finite_sample().is_some() => {
                    let place = error.not_finite_sample().unwrap_or_default();
                    return Err(self.logits_error(place, facts.step).into());
                }
                measured => {
                    measured?;
                    self.measurement.observe(&mut after);
                }
            }
            timings.add("testing", clock.elapsed());
        }
        self.state = after;
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
        found.put_times(&timings);
        found.metrics.add_aliases();
        self.recorder.loggers.log(facts.step, &found.metrics)?;
        details.spans = timings.spans();
        self.recorder.loggers.log_details(facts.step, &details)?;
        let (progress, view) = (&self.recorder.progress, found.view(&self.recipe, &facts, &timings));
        progress.step(facts.step);
        if self.recipe.config.run.loggers.iter().any(|logger| matches!(logger, LoggerKind::Console(_))) {
            let (total, left) = (progress.total_steps(), progress.time_left());
            progress.say(&console::line(facts.step, total, &view, left.filter(|_| !is_last)));
        }
        // The step's figures are logged; its weights go nowhere.
        if let Some(diverged) = facts.diverged {
            return Err(diverged.error(&self.recorder.directory, facts.step).into());
        }
        self.note_recovery();
        let is_due = self.recipe.config.checkpoint.save_freq.is_due(facts.step);
        if is_due || is_last || self.state.validation.is_missing {
            self.save()?;
        }
        self.check_learns(facts.step, facts.most_skipped, facts.most_skipped_critic)?;
        lost.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Says what the loss of a learner cost, once the run has caught up with it.
    fn note_recovery(&mut self) {
        let step = self.state.step;
        if let Some(said) = self.recovery.as_mut().and_then(|recovery| recovery.note(step)) {
            self.recorder.progress.say(&said);
            self.recovery = None;
        }
    }

    /// Ends a run whose updates cannot be made, or whose steps make none, with its last state saved.
    fn check_learns(&mut self, step: u64, skipped: u32, skipped_critic: u32) -> Result<(), RunError> {
        let untrained = self.state.learning.untrained;
        if skipped.max(skipped_critic) < MOST_SKIPPED_UPDATES && !untrained.are_too_many() {
            return Ok(());
        }
        if self.recorder.saved != Some(step) {
            self.save()?;
        }
        let run = self.recorder.directory.path().to_owned();
        // A critic without finite gradients has values that may be the policy's trouble, not the other way
        // round.
        Err(if skipped_critic >= MOST_SKIPPED_UPDATES {
            RunError::CriticNotFinite { updates: skipped_critic, step, run }
        } else if skipped >= MOST_SKIPPED_UPDATES {
            RunError::NotFinite { updates: skipped, step, run }
        } else {
            self.nothing_trained_error(u64::from(untrained.steps))
        })
    }

    /// Writes what an attempt at a step generated that ended without training, with all attempts before it.
    fn write_untrained(&self, step: u64, collected: &Collected) -> Result<(), RunError> {
        let all = collected.groups().chain(&self.attempts.given_up);
        self.recorder.write_rollouts(step, &[], all)
    }

    /// The same of an attempt that an error ended, so that a person can look at what led to it. A resume
    /// writes the file anew.
    fn write_unfinished(&self, step: u64) -> Result<(), RunError> {
        let unfinished = self.workers.dispatcher.unfinished(step);
        self.recorder.write_rollouts(step, &[], unfinished.iter().chain(&self.attempts.given_up))
    }

    /// Collects the groups of a step, and trains on the parts of it that are handed out before it is
    /// complete.
    pub(super) fn collect(&mut self) -> Result<Collected, Halt<RunError>> {
        loop {
            match self.gather()? {
                Next::Step(collected) => return Ok(*collected),
                Next::Interrupted => return Err(Halt::Interrupted),
                Next::Part(groups) => {
                    self.recorder.progress.stage("training");
                    let early = &mut self.attempts.early;
                    early.train(&self.recipe, &mut self.workers, &self.state, groups)?;
                }
            }
        }
    }

    /// Goes on collecting until the step is complete, or a part of it.
    fn gather(&mut self) -> Result<Next, Halt<RunError>> {
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
        let mut watch =
            StepWatch { progress: &self.recorder.progress, group_size, target, ready, round: (0, 0) };
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
                // The function may give it once it is mended.
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

/// The accounting of the whole run's groups, in one line.
fn format_accounting(totals: &Accounting) -> String {
    let [(_, generated), (_, carried_in), (_, in_flight_in), places @ .., (_, duplicated)] = totals.places();
    let went: Vec<String> = places
        .into_iter()
        .filter(|(_, count)| count.groups > 0)
        .map(|(place, count)| format!("{} {}", count.groups, place.replace('_', " ")))
        .collect();
    let went = if went.is_empty() { "0".to_owned() } else { went.join(" + ") };
    // Nothing is carried into a run.
    let come = generated.groups + carried_in.groups + in_flight_in.groups;
    let mut account = format!("groups of the run: {come} generated = {went}");
    if totals.left_out.trajectories > 0 {
        let _ = write!(
            account,
            "; {} trajectories of trained groups left out of the loss",
            totals.left_out.trajectories
        );
    }
    if duplicated.groups > 0 {
        let _ = write!(account, "; {} times a copy of a trained group was trained on", duplicated.groups);
    }
    account
}

fn skip_reason(why: tamis_core::schedule::SkipReason) -> &'static str {
    match why {
        tamis_core::schedule::SkipReason::LimitReached => "the limit on rounds was reached",
        tamis_core::schedule::SkipReason::EmptyRound => "a round kept no group",
        tamis_core::schedule::SkipReason::DataExhausted => "the data ended and nothing was kept",
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::schedule::{Count, Members, Spent};

    use super::*;

    #[test]
    fn the_groups_of_a_run_in_one_line() {
        assert_eq!(format_accounting(&Accounting::default()), "groups of the run: 0 generated = 0");
        let mut totals = Accounting {
            generated: Count::of(10, 4, Spent::on_answer(100)),
            trained: Count::of(4, 4, Spent::on_answer(40)),
            dropped: Count::of(5, 4, Spent::on_answer(50)),
            surplus: Count::of(1, 4, Spent::on_answer(10)),
            ..Accounting::default()
        };
        assert_eq!(
            format_accounting(&totals),
            "groups of the run: 10 generated = 4 trained + 5 dropped + 1 surplus"
        );
        totals.leave_out(Members { trajectories: 7, spent: Spent { tokens: 20, turns: 7 } });
        assert_eq!(
            format_accounting(&totals),
            "groups of the run: 10 generated = 4 trained + 5 dropped + 1 surplus; 7 trajectories of trained groups left out of the loss"
        );
    }
}
