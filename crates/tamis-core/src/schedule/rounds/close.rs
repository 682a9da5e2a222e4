//! The ends of a step: trained, skipped, finished, stopped. Every group of it goes to exactly one place.

use super::{Kept, OpenStep, Phase, Rounds, Slot, SlotState};
use crate::group::GroupId;
use crate::schedule::{
    Command, Count, Diagnosis, FinishReason, ScheduleError, SkipReason, StepClose, StepReport, StopCause,
    Surplus, Tally,
};

fn ids(kept: &[Kept]) -> Vec<GroupId> {
    kept.iter().map(|kept| kept.id).collect()
}

impl Rounds {
    /// The first `train_batch_size` ready groups are the batch.
    pub(super) fn ready(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        let size = self.ready.len().min(self.settings.train_batch_size);
        let trained: Vec<Kept> = self.ready.drain(..size).collect();
        let close = self.close(&trained, true, Vec::new())?;
        self.phase = Phase::Training { trajectories: close.report.accounting.trained.trajectories };
        commands.push(Command::StepReady(Box::new(close)));
        Ok(())
    }

    pub(super) fn skip(&mut self, why: SkipReason, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        self.skipped_in_a_row += 1;
        if self.skipped_in_a_row > self.settings.max_skipped_steps {
            let cause = StopCause::SkippedSteps { steps: self.skipped_in_a_row, why };
            return self.stop_with(cause, self.since_trained, self.num_rounds_untrained, commands);
        }
        self.progress.skipped_steps += 1;
        let close = self.close(&[], true, Vec::new())?;
        self.phase = Phase::Idle;
        commands.push(Command::SkipStep { why, close: Box::new(close) });
        Ok(())
    }

    /// Ends the run well. Groups still in flight are aborted, kept ones are surplus.
    pub(super) fn finish(
        &mut self,
        why: FinishReason,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        let aborted = self.abort(commands);
        let close = self.close(&[], false, aborted)?;
        self.phase = Phase::Ended;
        commands.push(Command::Finish { why, close: Box::new(close) });
        Ok(())
    }

    /// Ends the run for want of signal, judged by this step.
    pub(super) fn stop(
        &mut self,
        cause: StopCause,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        self.stop_with(cause, self.step.tally, self.step.rounds, commands)
    }

    /// Ends the run for want of signal, judged by a tally of so many rounds.
    pub(super) fn stop_with(
        &mut self,
        cause: StopCause,
        tally: Tally,
        rounds: u64,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        let step = self.progress.steps + 1;
        let diagnosis = Diagnosis::new(cause, step, self.ready.len(), rounds, tally, &self.settings);
        let aborted = self.abort(commands);
        let close = self.close(&[], false, aborted)?;
        self.phase = Phase::Ended;
        commands.push(Command::Stop { diagnosis: Box::new(diagnosis), close: Box::new(close) });
        Ok(())
    }

    /// Ends the round in the making, if there is one: what is in flight is aborted, what is scored is judged and counts.
    fn abort(&mut self, commands: &mut Vec<Command>) -> Vec<GroupId> {
        let is_in_flight = |slot: &&Slot| slot.state == SlotState::InFlight;
        let aborted = self.slots.iter().filter(is_in_flight).map(|slot| slot.id).collect();
        if !self.slots.is_empty() {
            self.settle_round(commands);
        }
        aborted
    }

    /// Counts where everything went. What is ready and not trained is carried or surplus.
    fn close(
        &mut self,
        trained: &[Kept],
        may_carry: bool,
        aborted: Vec<GroupId>,
    ) -> Result<StepClose, ScheduleError> {
        let group_size = self.settings.group_size;
        let carries = may_carry && matches!(self.settings.surplus, Surplus::Carry { .. });
        let left = self.ready.len();
        let (carried, surplus) = if carries {
            (ids(&self.ready), Vec::new())
        } else {
            (Vec::new(), ids(&std::mem::take(&mut self.ready)))
        };
        let OpenStep { rounds, tally, mut accounting, stale, .. } = std::mem::take(&mut self.step);
        accounting.trained = Count::of(trained.len(), group_size);
        accounting.surplus = Count::of(surplus.len(), group_size);
        accounting.stale = Count::of(stale.len(), group_size);
        accounting.carried_out = Count::of(carried.len(), group_size);
        accounting.check()?;
        self.totals.append(&accounting);
        let mut batch = Tally::default();
        for kept in trained {
            batch.add_judged(crate::filter::Verdict::Kept, &kept.summary);
        }
        let step = self.progress.steps + 1;
        let report = StepReport {
            step,
            epoch: self.progress.epoch,
            rounds,
            target: self.settings.train_batch_size,
            num_accumulated: trained.len() + left,
            all: tally,
            batch,
            accounting,
            max_lag: trained.iter().map(|kept| self.version.0 - kept.version.0).max().unwrap_or(0),
            is_filtered: self.settings.filter.is_some(),
            is_last: !trained.is_empty() && self.settings.total_steps == Some(step),
        };
        Ok(StepClose {
            trained: ids(trained),
            surplus,
            stale,
            carried,
            aborted,
            returned: Vec::new(),
            report,
        })
    }
}
