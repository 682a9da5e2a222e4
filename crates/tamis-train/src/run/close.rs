//! The end of a run: what is saved, printed and returned.

use std::fmt::Write as _;
use std::time::Duration;
use tamis_core::figure::counted;

use tamis_core::fault;
use tamis_core::fault::causes;
use tamis_core::schedule::{Accounting, Diagnosis, PassedOver, RunEnd};
use tamis_rollout::Collected;

use super::blame::blame_environment;
use super::{Ending, Run, RunSummary};
use crate::error::RunError;
use crate::interrupt::Halt;
use tamis_run::directory::RunDirectoryError;
use tamis_run::log::RunEnding;
use tamis_run::log::run_log::LineKind;

impl Run {
    pub(super) fn save_if_stopped(
        &mut self,
        ending: Result<Ending, Halt<RunError>>,
    ) -> Result<Ending, RunError> {
        for warning in std::mem::take(&mut self.workers.unsaid) {
            self.recorder.progress.warn(&warning);
        }
        match ending {
            Err(Halt::Interrupted) => self.save_interrupted(),
            // The servers may come back. What was trained is kept, and a resume continues.
            Err(Halt::Failed(error)) if error.is_lost_fleet() => {
                self.save_interrupted()?;
                Err(error)
            }
            Err(Halt::Failed(error)) => Err(match error.not_finite_sample() {
                Some(place) => self.logits_error(&place, self.state.step),
                None => error,
            }),
            Ok(ending) => Ok(ending),
        }
    }

    pub(super) fn close(&mut self, ending: Result<Ending, RunError>) -> Result<RunSummary, RunError> {
        let how = match &ending {
            Ok(Ending::Finished(_)) => RunEnding::Finished,
            Ok(Ending::StoppedEarly(_)) => RunEnding::StoppedEarly,
            Ok(Ending::Interrupted) => RunEnding::Interrupted,
            Err(_) => RunEnding::Failed,
        };
        self.recorder.loggers.close(how);
        self.recorder.progress.finish();
        let ending = match ending {
            Ok(ending) => ending,
            Err(error) => {
                let error = self.check_present_after(&error).map_or_else(RunError::from, |()| error);
                self.note_failure(&error);
                return Err(error);
            }
        };
        self.recorder.progress.note(LineKind::Info, how.last_line());
        Ok(RunSummary {
            ending,
            steps: self.state.step,
            run: self.recorder.directory.path().to_owned(),
            checkpoint: self.recorder.saved.map(|step| self.recorder.directory.checkpoint(step)),
            before: self.state.validation.before.take(),
            after: self.state.validation.latest.take().map(|(_, report)| report),
            sft: None,
        })
    }

    /// Whether the run directory still exists after an error, which its removal may have caused. A folder
    /// that is being removed loses its files one by one, so if one was not found, this waits up to two
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
        let causes = causes(error).join("\n  caused by: ");
        self.recorder.progress.note(LineKind::Error, &format!("the run ends with an error: {causes}"));
    }

    /// Ends a run that has all of its steps, or whose data ended.
    pub(super) fn end_as_planned(
        &mut self,
        why: RunEnd,
        collected: &Collected,
    ) -> Result<Ending, Halt<RunError>> {
        if !collected.others.is_empty() {
            self.recorder.progress.say(&collected.report.to_string());
        }
        self.write_untrained(self.state.step + 1, collected)?;
        self.finish()?;
        self.check_learned()?;
        Ok(Ending::Finished(why))
    }

    pub(super) fn stop_without_signal(
        &mut self,
        mut diagnosis: Box<Diagnosis>,
        collected: &Collected,
    ) -> Result<RunError, Halt<RunError>> {
        let step = self.state.step + 1;
        self.write_untrained(step, collected)?;
        self.finish()?;
        // There is no signal because there are no rewards, so that is reported.
        let rounds = u32::try_from(collected.report.rounds.max(1)).unwrap_or(u32::MAX);
        let health = self.workers.dispatcher.reward_health();
        if let Some(missing) = health.missing_for(rounds, self.workers.scorer.rewards()) {
            return Ok(self.fail_without_rewards(step, missing));
        }
        let faults = self.workers.dispatcher.inbox().take_faults();
        blame_environment(&mut diagnosis, faults, &self.recipe.config);
        if let Some(selector) = self.workers.pool.selector() {
            diagnosis.note_passed_over(PassedOver {
                selector: selector.settings().to_string(),
                considered: selector.state().num_considered,
                skipped: selector.state().num_skipped,
            });
        }
        let trained = self.recorder.directory.path().join("checkpoints");
        Ok(RunError::Fault(fault!("the run stopped for lack of training signal\n{diagnosis}").with_hint(
            format!("change the settings above in a new run; what was trained is in {}", trained.display()),
        )))
    }

    /// Saves the state after the last trained step, if it is not saved yet. A resume repeats what was begun
    /// after it.
    fn save_interrupted(&mut self) -> Result<Ending, RunError> {
        self.workers.learner.restore()?;
        // The weights of an interrupted step belong to no state.
        if self.recorder.saved != Some(self.state.step) && !self.workers.learner.progress().has_moved() {
            self.save()?;
        }
        Ok(Ending::Interrupted)
    }

    /// The last validation and checkpoint, if they have not been made.
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

    pub(super) fn save(&mut self) -> Result<(), RunError> {
        // Nothing of an incomplete step is saved.
        self.workers.learner.restore()?;
        self.check_logits()?;
        self.state = self.recorder.save(&self.state, &mut self.workers)?;
        Ok(())
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
    // A run begins with nothing carried in.
    let come = generated.groups + carried_in.groups + in_flight_in.groups;
    let mut account = format!("groups of the run: {come} generated = {went}");
    if totals.left_out.trajectories > 0 {
        let _ = write!(
            account,
            "; {} of trained groups left out of the loss",
            counted(totals.left_out.trajectories, "trajectory")
        );
    }
    if duplicated.groups > 0 {
        let _ = write!(
            account,
            "; {} a copy of a trained group was trained on",
            counted(duplicated.groups, "time")
        );
    }
    account
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
