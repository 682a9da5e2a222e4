//! What comes next: another group, a mini-batch, the end of the step or of the run.

use super::{OpenStep, Phase, Streaming};
use crate::group::{GroupId, PolicyVersion};
use crate::schedule::{
    Command, Diagnosis, FinishReason, OnExhausted, OnLimit, ScheduleError, SkipReason, StepClose, StepReport,
    StopCause, Surplus, Tally,
};

impl Streaming {
    pub(super) fn begin_step(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        self.phase = Phase::Open;
        self.window = Some(self.progress.steps);
        self.handed = 0;
        let oldest = self.version.0.saturating_sub(self.max_lag());
        let (stale, late) = self.ledger.discard_stale(PolicyVersion(oldest));
        self.step.stale.extend(stale);
        self.count_aborted(&late, commands);
        if let Some((cause, tally, rounds)) = self.stop_next.take() {
            return self.stop_with(cause, tally, rounds, commands);
        }
        if self.settings.run.total_steps.is_some_and(|total| self.progress.steps >= total) {
            return self.finish(FinishReason::TotalSteps, commands);
        }
        self.go_on(commands)
    }

    fn count_aborted(&mut self, aborted: &[(GroupId, u64)], commands: &mut Vec<Command>) {
        if aborted.is_empty() {
            return;
        }
        for (_, epoch) in aborted {
            let mut alone = Tally::default();
            alone.add_aborted(self.settings.run.group_size);
            self.step.tally.append(&alone);
            self.since_trained.append(&alone);
            let epoch = self.epochs.entry(*epoch).or_default();
            epoch.settled += 1;
            epoch.tally.append(&alone);
        }
        let groups: Vec<GroupId> = aborted.iter().map(|(group, _)| *group).collect();
        self.step.aborted.extend(&groups);
        commands.push(Command::Abort { groups });
    }

    /// Hands out what is ready, closes the step where it is full, draws where there is room, and ends what cannot go on.
    pub(super) fn go_on(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        if self.phase == Phase::Ended {
            return Ok(());
        }
        if self.phase == Phase::Open
            && let Some((epoch, tally)) = self.close_epochs()
        {
            let rounds = self.rounds(tally.groups);
            return self.stop_with(StopCause::EpochWithoutKept { epoch }, tally, rounds, commands);
        }
        let batch = self.settings.run.train_batch_size;
        while self.phase == Phase::Open {
            let part = self.settings.mini_batch_size.min(batch - self.handed);
            if self.ledger.num_ready() < part {
                break;
            }
            self.hand_out(part, commands);
            if self.handed == batch {
                self.close_trained(commands)?;
            }
        }
        if self.asked.is_some() {
            return Ok(());
        }
        let num_prompts = self.admitted();
        if num_prompts > 0 && (!self.epoch_over || self.may_begin_epoch(self.is_untouched())) {
            if self.epoch_over {
                self.begin_epoch(commands);
            }
            self.asked = Some(num_prompts);
            let step = self.window.unwrap_or(self.progress.steps) + 1;
            commands.push(Command::Draw { step, round: 1, num_prompts });
            return Ok(());
        }
        if self.phase == Phase::Open {
            return self.wait_or_end(num_prompts > 0, commands);
        }
        Ok(())
    }

    /// Whether the present step has neither dispatched nor kept anything.
    fn is_untouched(&self) -> bool {
        self.handed == 0 && self.ledger.num_kept() == 0 && self.ledger.num_in_flight() == 0
    }

    /// Prompts to draw now.
    fn admitted(&self) -> usize {
        let run = &self.settings.run;
        let Some(window) = self.window else { return 0 };
        let steps = run.total_steps.map_or(u64::MAX, |total| total.saturating_sub(window));
        let horizon = steps.min(self.max_lag().saturating_add(1));
        let wanted = (run.train_batch_size as u64).saturating_mul(horizon);
        let lacking = wanted.saturating_sub((self.handed + self.ledger.num_secured()) as u64);
        if lacking == 0 {
            return 0;
        }
        let keep = self.keep_rate.upper_estimate();
        let lacking = lacking as f64;
        let deviation = if self.max_lag() > 0 { (lacking * (1.0 - keep)).sqrt() } else { 0.0 };
        // Never negative: the deviation is below what is lacking, or that is 0 or 1 and the maximum below holds.
        let room = ((lacking - deviation) / keep) as u64;
        let free = (self.settings.max_in_flight
            - self.ledger.num_in_flight().min(self.settings.max_in_flight)) as u64;
        let left = match run.round_limit() {
            Some(limit) => {
                limit.saturating_mul(run.gen_batch_size as u64).saturating_sub(self.ledger.num_dispatched())
            }
            None => u64::MAX,
        };
        let undecided = self.ledger.num_undecided() as u64;
        usize::try_from(room.max(1).saturating_sub(undecided).min(free).min(left)).unwrap_or(usize::MAX)
    }

    /// Whether another epoch may begin: for a step that has nothing yet, or within one.
    fn may_begin_epoch(&self, at_step: bool) -> bool {
        let run = &self.settings.run;
        run.total_epochs.is_none_or(|total| self.progress.epoch + 1 < total)
            && match run.on_exhausted {
                OnExhausted::NextEpoch => true,
                OnExhausted::UsePartial => at_step,
                OnExhausted::Stop => false,
            }
    }

    fn begin_epoch(&mut self, commands: &mut Vec<Command>) {
        self.progress.epoch += 1;
        self.progress.prompts_in_epoch = 0;
        self.epoch_over = false;
        let epoch = self.progress.epoch;
        self.epochs.insert(epoch, super::Epoch::default());
        commands.push(Command::NextEpoch { epoch });
    }

    /// Forgets epochs whose groups are all settled, in their order. The last of several in a row that kept nothing is returned with what was
    /// generated in them, where that is a round's worth of groups.
    fn close_epochs(&mut self) -> Option<(u64, Tally)> {
        while let Some(entry) = self.epochs.first_entry() {
            let (number, epoch) = (*entry.key(), *entry.get());
            if !epoch.is_over || epoch.settled < epoch.dispatched {
                return None;
            }
            entry.remove();
            if epoch.tally.kept > 0 {
                self.barren = Tally::default();
                continue;
            }
            self.barren.append(&epoch.tally);
            if self.barren.groups >= self.settings.run.gen_batch_size as u64 {
                return Some((number, self.barren));
            }
        }
        None
    }

    /// Groups as rounds of `gen_batch_size`, begun ones counted.
    fn rounds(&self, groups: u64) -> u64 {
        groups.div_ceil(self.settings.run.gen_batch_size.max(1) as u64)
    }

    /// Nothing more is drawn now: waits for what is in flight, or ends the step.
    fn wait_or_end(&mut self, has_room: bool, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        let run = &self.settings.run;
        if self.ledger.num_in_flight() > 0 {
            return Ok(());
        }
        if has_room {
            // The data are over.
            let use_partial = run.on_exhausted == OnExhausted::UsePartial;
            if use_partial && self.handed + self.ledger.num_ready() > 0 {
                return self.close_partial(commands);
            }
            if use_partial && self.may_begin_epoch(true) {
                return self.skip(SkipReason::DataExhausted, commands);
            }
            if self.handed > 0 {
                // The next step finds nothing, and finishes.
                return self.close_trained(commands);
            }
            let why = match run.on_exhausted {
                OnExhausted::Stop => FinishReason::DataExhausted,
                OnExhausted::NextEpoch | OnExhausted::UsePartial => FinishReason::TotalEpochs,
            };
            return self.finish(why, commands);
        }
        // The step has dispatched all that it may.
        match run.on_limit {
            OnLimit::Error => self.stop(StopCause::LimitReached, commands),
            OnLimit::UsePartial if self.handed + self.ledger.num_ready() > 0 => self.close_partial(commands),
            OnLimit::UsePartial | OnLimit::Skip => self.give_up(SkipReason::LimitReached, commands),
        }
    }

    /// Gives the step up; one of which a part was handed out is trained as far as it came.
    pub(super) fn give_up(
        &mut self,
        why: SkipReason,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        if self.handed > 0 { self.close_trained(commands) } else { self.skip(why, commands) }
    }

    /// Trains on what there is.
    fn close_partial(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        while self.ledger.num_ready() > 0 {
            let part = self.settings.mini_batch_size.min(self.ledger.num_ready());
            self.hand_out(part, commands);
        }
        self.close_trained(commands)
    }

    fn close_trained(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        let close = self.close(true, commands)?;
        self.phase = Phase::Training { trajectories: close.report.accounting.trained.trajectories };
        // What the step did not take is the next one's.
        self.handed = self.settings.run.train_batch_size;
        commands.push(Command::StepClosed(Box::new(close)));
        Ok(())
    }

    fn skip(&mut self, why: SkipReason, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        self.skipped_in_a_row += 1;
        if self.skipped_in_a_row > self.settings.run.max_skipped_steps {
            let cause = StopCause::SkippedSteps { steps: self.skipped_in_a_row, why };
            let rounds = self.rounds(self.dispatched_untrained);
            return self.stop_with(cause, self.since_trained, rounds, commands);
        }
        self.progress.skipped_steps += 1;
        let close = self.close(true, commands)?;
        self.phase = Phase::Idle;
        self.window = None;
        commands.push(Command::SkipStep { why, close: Box::new(close) });
        Ok(())
    }

    /// Ends the run well. Groups still in flight are aborted, kept ones are surplus.
    pub(super) fn finish(
        &mut self,
        why: FinishReason,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        let close = self.close(false, commands)?;
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
        let rounds = self.rounds(self.step.tally.groups);
        self.stop_with(cause, self.step.tally, rounds, commands)
    }

    fn stop_with(
        &mut self,
        cause: StopCause,
        tally: Tally,
        rounds: u64,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        if self.phase == Phase::Open && self.handed > 0 {
            // What was handed out is trained first.
            self.stop_next = Some((cause, tally, rounds));
            return self.close_trained(commands);
        }
        let step = self.progress.steps + 1;
        let num_kept = self.handed + self.ledger.num_kept();
        let diagnosis = Diagnosis::new(cause, step, num_kept, rounds, tally, &self.settings.run);
        let close = self.close(false, commands)?;
        self.phase = Phase::Ended;
        commands.push(Command::Stop { diagnosis: Box::new(diagnosis), close: Box::new(close) });
        Ok(())
    }

    /// Counts where everything went. What is kept and in flight stays for the next step where the run goes on and surplus is carried.
    fn close(&mut self, goes_on: bool, commands: &mut Vec<Command>) -> Result<StepClose, ScheduleError> {
        let carries = goes_on && matches!(self.settings.run.surplus, Surplus::Carry { .. });
        let num_accumulated = self.step.trained.len() + self.ledger.num_kept();
        let mut surplus = Vec::new();
        if !carries {
            surplus = self.ledger.discard_kept();
            let aborted = self.ledger.abort_all();
            self.count_aborted(&aborted, commands);
        }
        if !goes_on {
            self.asked = None;
        }
        let OpenStep { tally, batch, trained, stale, aborted, max_lag, .. } = std::mem::take(&mut self.step);
        let mut returned = Vec::new();
        if goes_on {
            returned = [&surplus[..], &stale, &aborted].concat();
            let is_full = trained.len() == self.settings.run.train_batch_size;
            if let Some(last) = trained.last().filter(|_| is_full && !carries) {
                // By chance these settled before the batch was full: others like them are in flight.
                returned.extend(self.ledger.gone_after(*last));
            }
            returned.sort_unstable();
        }
        let (accounting, carried) = self.ledger.close()?;
        self.take_back(returned.len() as u64);
        let step = self.progress.steps + 1;
        let report = StepReport {
            step,
            epoch: self.progress.epoch,
            rounds: self.rounds(accounting.generated.groups),
            target: self.settings.run.train_batch_size,
            num_accumulated,
            all: tally,
            batch,
            accounting,
            max_lag,
            is_filtered: self.settings.run.filter.is_some(),
            is_last: !trained.is_empty() && self.settings.run.total_steps == Some(step),
        };
        Ok(StepClose { trained, surplus, stale, carried, aborted, returned, report })
    }

    /// Prompts go back to the source: the present epoch has them before it.
    fn take_back(&mut self, prompts: u64) {
        if prompts == 0 {
            return;
        }
        self.epoch_over = false;
        self.progress.prompts = self.progress.prompts.saturating_sub(prompts);
        self.progress.prompts_in_epoch = self.progress.prompts_in_epoch.saturating_sub(prompts);
        self.epochs.entry(self.progress.epoch).or_default().is_over = false;
    }
}
