//! The loop over steps: collect, train, until the run ends, is interrupted or stops.

use tamis_rollout::{Collected, End, Next};

use super::attempts::Attempts;
use super::step::{Step, step};
use super::{Ending, Run, RunSummary};
use crate::error::RunError;
use crate::interrupt::Halt;

impl Run {
    /// Trains until the run ends.
    pub fn run(&mut self) -> Result<RunSummary, RunError> {
        let ending = self.run_steps();
        let ending = self.save_if_stopped(ending);
        self.close(ending)
    }

    fn run_steps(&mut self) -> Result<Ending, Halt<RunError>> {
        self.begin()?;
        loop {
            if let Some(reason) = self.measurement.early_stop.stop_reason() {
                return self.stop_early(reason);
            }
            let collected = self.collect_step()?;
            match &collected.end {
                // Nothing is changed yet: a resume collects the same batch.
                End::Ready if self.interrupt.is_requested() => return Err(Halt::Interrupted),
                End::Ready => self.train(collected)?,
                End::Skipped(why) => self.skip(*why, collected)?,
                End::Finished(why) => return self.end_as_planned(*why, &collected),
                End::Stopped(diagnosis) => {
                    return Err(self.stop_without_signal(diagnosis.clone(), &collected)?.into());
                }
            }
        }
    }

    /// Collects the groups of a step, and trains on the parts that are complete before the step is.
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

    /// Trains on a complete batch and records the results: metrics, rollouts, validation, checkpoint. An
    /// interrupted step changes nothing; weights have moved then only if the state before it is saved.
    fn train(&mut self, collected: Collected) -> Result<(), Halt<RunError>> {
        self.recorder.progress.stage("training");
        let is_last = collected.report.is_last;
        let (batch, early) = self.attempts.batch(collected, &self.workers.dispatcher);
        let step = step(&self.recipe, &mut self.workers, &self.state, batch, early)?;
        let mut record = self.write_down(&step, is_last)?;
        let Step { facts, after, lost, .. } = step;
        let lost = self.measure(&facts, after, lost, &mut record)?;
        self.log(&facts, record)?;
        self.keep(facts, is_last)?;
        if let Some(lost) = lost {
            return Err(lost.into());
        }
        self.attempts = Attempts::new();
        self.check_rewards(self.state.step)
    }
}
