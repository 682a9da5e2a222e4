//! Decides the next command: another group, a mini-batch, the end of the step or of the run.

use super::{Admission, Streaming, rounds};
use crate::schedule::barren::Fruitless;
use crate::schedule::run::{Phase, ScheduleRun};
use crate::schedule::{Command, OnExhausted, OnLimit, Result, RunEnd, SkipReason, StopCause, Tally};

impl Streaming {
    pub(in crate::schedule) fn begin_step(
        &mut self,
        run: &mut ScheduleRun,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        self.window = Some(run.progress.steps);
        self.handed = 0;
        if let Some((cause, tally, rounds)) = self.stop_next.take() {
            return self.stop_with(run, cause, tally, rounds, commands);
        }
        if run.has_all_steps() {
            return run.finish(RunEnd::TotalSteps, commands);
        }
        self.go_on(run, commands)
    }

    /// Hands out ready mini-batches, closes the step if it is full, draws if there is room, and ends what
    /// cannot continue.
    pub(super) fn go_on(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        if run.phase == Phase::Ended {
            return Ok(());
        }
        if run.phase == Phase::Open
            && let Some(Fruitless { cause, tally, .. }) = self.close_epochs(run)
        {
            return self.stop_with(run, cause, tally, rounds(run, tally.groups), commands);
        }
        let batch = run.settings.train_batch_size;
        while run.phase == Phase::Open {
            let part = self.mini_batch_size.min(batch - self.handed);
            if run.ledger.num_ready() < part {
                break;
            }
            self.hand_out(run, part, commands);
            if self.handed == batch {
                self.close_trained(run, commands)?;
            }
        }
        if run.asked.is_some() {
            return Ok(());
        }
        let num_prompts = self.admitted(run);
        if num_prompts > 0 && (!run.epoch_over || run.may_begin_epoch(self.is_untouched(run))) {
            if run.epoch_over {
                run.begin_epoch(commands);
            }
            run.draw(self.window.unwrap_or(run.progress.steps) + 1, 1, num_prompts, commands);
            return Ok(());
        }
        if run.phase == Phase::Open {
            return self.wait_or_end(run, num_prompts > 0, commands);
        }
        Ok(())
    }

    /// Whether the present step has dispatched and kept nothing.
    fn is_untouched(&self, run: &ScheduleRun) -> bool {
        self.handed == 0 && run.ledger.num_kept() == 0 && run.ledger.num_in_flight() == 0
    }

    fn admitted(&self, run: &ScheduleRun) -> usize {
        let (settings, ledger) = (&run.settings, &run.ledger);
        let Some(window) = self.window else { return 0 };
        let steps = settings.total_steps.map_or(u64::MAX, |total| total.saturating_sub(window));
        let horizon = steps.min(run.max_lag().saturating_add(1));
        let wanted = (settings.train_batch_size as u64).saturating_mul(horizon);
        let lacking = wanted.saturating_sub((self.handed + ledger.num_secured()) as u64);
        let undecided = ledger.num_undecided() as u64;
        let room = match self.admission {
            Admission::KeepRate if lacking == 0 => 0,
            Admission::KeepRate => {
                let keep = run.keep_rate.upper_estimate();
                let lacking = lacking as f64;
                let deviation = if run.max_lag() > 0 { (lacking * (1.0 - keep)).sqrt() } else { 0.0 };
                // Never negative: either the deviation is smaller than `lacking`, or `lacking` is 0 or 1 and
                // the maximum below applies.
                (((lacking - deviation) / keep) as u64).max(1).saturating_sub(undecided)
            }
            Admission::Replace { chunk } if undecided < lacking => {
                // The first chunks of a step make up the whole of it.
                (lacking - undecided).checked_next_multiple_of(chunk.max(1) as u64).unwrap_or(u64::MAX)
            }
            Admission::Replace { .. } => 0,
            Admission::Saturate => u64::MAX,
        };
        let free = self.max_in_flight.saturating_sub(ledger.num_in_flight()) as u64;
        let left = match run.round_limit() {
            Some(limit) => {
                limit.saturating_mul(settings.gen_batch_size as u64).saturating_sub(ledger.num_dispatched())
            }
            None => u64::MAX,
        };
        usize::try_from(room.min(free).min(left)).unwrap_or(usize::MAX)
    }

    /// Removes epochs whose groups are all settled. Epochs that kept nothing end the run if as many groups
    /// were judged in them as the data have prompts; if that number is not known, a round's worth.
    fn close_epochs(&mut self, run: &mut ScheduleRun) -> Option<Fruitless> {
        let a_round = run.settings.gen_batch_size as u64;
        let least = run.settings.num_prompts.unwrap_or(a_round);
        self.barren.close_epochs(run, least)
    }

    /// Nothing more is drawn now: waits for groups in flight, or ends the step.
    fn wait_or_end(
        &mut self,
        run: &mut ScheduleRun,
        has_room: bool,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        if run.ledger.num_in_flight() > 0 {
            return Ok(());
        }
        let has_any = self.handed + run.ledger.num_ready() > 0;
        if has_room {
            // The data have ended.
            let use_partial = run.settings.on_exhausted == OnExhausted::UsePartial;
            if use_partial && has_any {
                return self.close_partial(run, commands);
            }
            if use_partial && run.may_begin_epoch(true) {
                return self.skip(run, SkipReason::DataExhausted, commands);
            }
            if self.handed > 0 {
                // The next step finds nothing, and finishes the run.
                return self.close_trained(run, commands);
            }
            if let Some(Fruitless { cause, tally, .. }) = self.barren.of_whole_run(run) {
                return self.stop_with(run, cause, tally, rounds(run, tally.groups), commands);
            }
            return run.finish(run.why_exhausted(), commands);
        }
        // The step has dispatched as many groups as it may.
        match run.settings.on_limit {
            OnLimit::Error => self.stop(run, StopCause::LimitReached, commands),
            // The others are refused at the start.
            OnLimit::UsePartial | OnLimit::KeepDropped | OnLimit::Duplicate if has_any => {
                self.close_partial(run, commands)
            }
            _ => self.give_up(run, SkipReason::LimitReached, commands),
        }
    }

    /// Abandons the step. If a part of it was handed out, that part is trained.
    pub(super) fn give_up(
        &mut self,
        run: &mut ScheduleRun,
        why: SkipReason,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        if self.handed > 0 { self.close_trained(run, commands) } else { self.skip(run, why, commands) }
    }

    fn close_partial(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        while run.ledger.num_ready() > 0 {
            self.hand_out(run, self.mini_batch_size.min(run.ledger.num_ready()), commands);
        }
        self.close_trained(run, commands)
    }

    fn close_trained(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        let close = run.close_trained(commands)?;
        // The rest of the batch belongs to the next step.
        self.handed = run.settings.train_batch_size;
        commands.push(Command::StepClosed(Box::new(close)));
        Ok(())
    }

    fn skip(&mut self, run: &mut ScheduleRun, why: SkipReason, commands: &mut Vec<Command>) -> Result<()> {
        run.rounds_since_trained = rounds(run, run.since_trained.groups);
        run.skip(why, commands)?;
        self.window = None;
        Ok(())
    }

    /// Ends the run for lack of signal, with this step as evidence.
    pub(super) fn stop(
        &mut self,
        run: &mut ScheduleRun,
        cause: StopCause,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let tally = run.step.tally;
        self.stop_with(run, cause, tally, rounds(run, tally.groups), commands)
    }

    fn stop_with(
        &mut self,
        run: &mut ScheduleRun,
        cause: StopCause,
        tally: Tally,
        rounds: u64,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        if run.phase == Phase::Open && self.handed > 0 {
            // Mini-batches that were handed out are trained first.
            self.stop_next = Some((cause, tally, rounds));
            return self.close_trained(run, commands);
        }
        run.stop(cause, tally, rounds, commands)
    }
}
