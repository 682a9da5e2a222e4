//! The loop over steps: collect, train, until the run ends, is interrupted or stops.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tamis_core::schedule::Accounting;
use tamis_rollout::{Collected, Dependencies, End, Shell, ShellError};

use super::attempts::Attempts;
use super::reference::WithReference;
use super::save::TrainedRows;
use super::watch::Watch;
use super::{Between, Ending, RunError, Session, Summary, UniformGroups};
use crate::assemble::objective::Divergence;
use crate::assemble::schedule::no_such_metric;
use crate::checkpoint::CarriedGroup;
use crate::micro_batch::MicroBatch;
use crate::pool::PromptPool;
use crate::run_directory::RunDirectoryError;
use crate::run_log::Level;
use crate::timings::GENERATION;

impl Session {
    /// Trains until the run ends.
    pub fn run(mut self) -> Result<Summary, RunError> {
        let result = self.steps();
        self.progress.finish();
        match result {
            Ok(ending) => {
                let checkpoint = self.saved.map(|step| self.directory.checkpoint(step));
                Ok(Summary {
                    ending,
                    steps: self.shell.machine().progress().steps,
                    run: self.directory.path().to_owned(),
                    checkpoint,
                    before: self.before,
                    after: self.latest.map(|(_, report)| report),
                })
            }
            Err(error) => {
                let error = self.check_present_after(&error).map_or_else(RunError::from, |()| error);
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    /// Whether the run directory is there after an error, of which its removal may be the reason. A folder that is being removed loses its
    /// files one by one, so where one was not found this waits up to two seconds for the rest to go.
    fn check_present_after(&self, error: &RunError) -> Result<(), RunDirectoryError> {
        let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
        let is_missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        let num_looks = if causes.any(|cause| cause.downcast_ref().is_some_and(is_missing)) { 40 } else { 0 };
        for _ in 0..num_looks {
            self.directory.check_present()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        self.directory.check_present()
    }

    /// Writes an error into the run log; the command line prints it.
    pub(super) fn note_failure(&self, error: &RunError) {
        let mut text = format!("the run ends with an error: {error}");
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let _ = write!(text, "\n  caused by: {cause}");
            source = cause.source();
        }
        self.progress.note(Level::Error, &text);
    }

    fn steps(&mut self) -> Result<Ending, RunError> {
        // A kill may have come between a checkpoint and the removal of older ones.
        self.prune()?;
        match self.go_on() {
            Err(error) if error.is_interruption() => self.interrupted(),
            ended => ended,
        }
    }

    fn go_on(&mut self) -> Result<Ending, RunError> {
        if self.is_unmeasured {
            self.make_up_measurement()?;
        }
        self.attempts = Attempts::new();
        self.progress.steps_begin();
        loop {
            if let Some(reason) = self.early_stop.stopped() {
                return self.stopped_early(reason);
            }
            let step = self.shell.machine().progress().steps + 1;
            if self.interrupt.is_requested() {
                return self.interrupted();
            }
            self.directory.check_present()?;
            self.progress.groups(0, self.config.data.train_batch_size as u64);
            let first = self.shell.next_group();
            let collected = match self.collect() {
                Err(RunError::Shell(ShellError::MissingRewards(missing))) => {
                    self.write_unfinished(step)?;
                    return Err(self.without_rewards(step, *missing));
                }
                collected => collected?,
            };
            collected.report.accounting.check()?;
            if matches!(collected.end, End::Ready | End::Skipped(_)) {
                self.observe_rounds(&collected, first, matches!(collected.end, End::Ready));
            }
            match &collected.end {
                // Nothing is changed yet: a resume collects the same batch.
                End::Ready if self.interrupt.is_requested() => return self.interrupted(),
                End::Ready => {
                    self.train(step, &collected)?;
                    self.attempts = Attempts::new();
                    self.check_rewards(step)?;
                }
                End::Skipped(why) => {
                    self.progress
                        .warn(&format!("step {step} is skipped ({}) and tried again", skip_reason(*why)));
                    self.write_rollouts(step, &collected, TrainedRows::NONE)?;
                    self.attempts.give_up(collected);
                    self.check_rewards(step)?;
                }
                End::Finished(why) => {
                    let why = *why;
                    if !collected.others.is_empty() {
                        self.progress.say(&format!("{}", collected.report));
                    }
                    self.write_rollouts(step, &collected, TrainedRows::NONE)?;
                    self.finish()?;
                    self.check_learned()?;
                    return Ok(Ending::Finished(why));
                }
                End::Stopped(diagnosis) => {
                    self.write_rollouts(step, &collected, TrainedRows::NONE)?;
                    self.finish()?;
                    // There is no signal because there are no rewards: that is the news.
                    let rounds = u32::try_from(collected.report.rounds.max(1)).unwrap_or(u32::MAX);
                    let missing = self.shell.reward_health().missing_for(rounds, self.scorer.rewards());
                    if let Some(missing) = missing {
                        return Err(self.without_rewards(step, missing));
                    }
                    return Err(RunError::Stopped {
                        diagnosis: diagnosis.clone(),
                        run: self.directory.path().to_owned(),
                    });
                }
            }
        }
    }

    fn check_rewards(&mut self, step: u64) -> Result<(), RunError> {
        match self.shell.reward_health().missing(self.scorer.rewards()) {
            Some(missing) => Err(self.without_rewards(step, missing)),
            None => Ok(()),
        }
    }

    /// Saves the state after the last trained step, where it is not saved yet. What was begun after it is done again by a resume.
    fn interrupted(&mut self) -> Result<Ending, RunError> {
        let steps = self.shell.machine().progress().steps;
        if self.saved != Some(steps) {
            self.save(steps)?;
        }
        Ok(Ending::Interrupted)
    }

    /// The last validation and checkpoint, where they have not been made.
    pub(super) fn finish(&mut self) -> Result<(), RunError> {
        let totals = self.shell.machine().totals();
        totals.check()?;
        self.progress.say(&told(totals));
        self.last_measurement()?;
        let steps = self.shell.machine().progress().steps;
        self.tell_untrained_policy(steps);
        if self.saved != Some(steps) {
            self.save(steps)?;
        }
        Ok(())
    }

    /// Where scheduling stands now, between two steps.
    pub(super) fn place(shell: &Shell, pool: &PromptPool, uniform_groups: UniformGroups) -> Between {
        Between {
            uniform_groups,
            machine: shell.machine().clone(),
            position: pool.position(),
            next_group: shell.next_group(),
            reward_health: shell.reward_health().clone(),
            carried: shell.held().map(CarriedGroup::of).collect(),
        }
    }

    fn micro_batch(&self) -> MicroBatch {
        self.update.micro_batch
    }

    fn collect(&mut self) -> Result<Collected, RunError> {
        let began = Instant::now();
        let micro_batch = self.micro_batch();
        // Before the filter only where the filter looks at rewards after KL: groups that are dropped cost no forward pass else.
        let penalty = match (self.divergence, &self.sieve.filter) {
            (Divergence::InReward { estimator, controller }, Some(_))
                if self.sieve.looks_at_final_reward() =>
            {
                Some((estimator, self.reward_kl.unwrap_or_else(|| controller.initial()).coef, micro_batch))
            }
            _ => None,
        };
        self.scorer.set_trainer_state(self.trainer_state());
        let mut backend = WithReference { engine: &mut self.engine, penalty, time: Duration::ZERO };
        let mut watch = Watch { progress: &self.progress, target: self.config.data.train_batch_size as u64 };
        let collected = self.shell.collect(Dependencies {
            source: &mut self.pool,
            backend: &mut backend,
            scorer: &mut self.scorer,
            observer: &mut watch,
        });
        let collected = match collected {
            Err(ShellError::NoMetric { metric, names }) => {
                let step = self.shell.machine().progress().steps + 1;
                self.write_unfinished(step)?;
                // The function may give it once it is mended.
                self.save_without_answers()?;
                let place = self.places.filter_metric.as_deref();
                let how = self.scorer.rewards().how_to_give_acc();
                return Err(no_such_metric(&metric, &names, place, how).into());
            }
            collected => collected?,
        };
        let reference = backend.time;
        if reference > Duration::ZERO {
            self.attempts.timings.add("ref", reference);
        }
        self.attempts.timings.add(GENERATION, began.elapsed().saturating_sub(reference));
        Ok(collected)
    }
}

/// Where the groups of the whole run went, in one line.
fn told(totals: &Accounting) -> String {
    let [(_, generated), (_, carried_in), places @ ..] = totals.places();
    let went: Vec<String> = places
        .into_iter()
        .filter(|(_, count)| count.groups > 0)
        .map(|(place, count)| format!("{} {}", count.groups, place.replace('_', " ")))
        .collect();
    let went = if went.is_empty() { "0".to_owned() } else { went.join(" + ") };
    // Nothing is carried into a run.
    let mut told = format!("groups of the run: {} generated = {went}", generated.groups + carried_in.groups);
    if totals.left_out.trajectories > 0 {
        let _ = write!(
            told,
            "; {} trajectories of trained groups left out of the loss",
            totals.left_out.trajectories
        );
    }
    told
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
    use tamis_core::schedule::Count;

    use super::*;

    #[test]
    fn the_groups_of_a_run_in_one_line() {
        assert_eq!(told(&Accounting::default()), "groups of the run: 0 generated = 0");
        let mut totals = Accounting {
            generated: Count::of(10, 4),
            trained: Count::of(4, 4),
            dropped: Count::of(5, 4),
            surplus: Count::of(1, 4),
            ..Accounting::default()
        };
        assert_eq!(told(&totals), "groups of the run: 10 generated = 4 trained + 5 dropped + 1 surplus");
        totals.leave_out(7);
        assert_eq!(
            told(&totals),
            "groups of the run: 10 generated = 4 trained + 5 dropped + 1 surplus; 7 trajectories of trained groups left out of the loss"
        );
    }
}
