//! Decides the next command: another round, the step, or an end.

use super::Rounds;
use crate::schedule::barren::Fruitless;
use crate::schedule::round_size::DrawnSoFar;
use crate::schedule::run::{Phase, ScheduleRun};
use crate::schedule::{Command, OnEmptyRound, OnExhausted, OnLimit, Result, RunEnd, SkipReason, StopCause};

impl Rounds {
    pub(in crate::schedule) fn begin_step(
        &mut self,
        run: &mut ScheduleRun,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        self.forget_given_up(run);
        self.empty_rounds = 0;
        if run.has_all_steps() {
            return self.finish(run, RunEnd::TotalSteps, commands);
        }
        if run.ledger.num_ready() >= run.settings.train_batch_size {
            return self.ready(run, commands);
        }
        if self.data_are_over(run) && !run.may_begin_epoch(true) {
            if run.settings.on_exhausted == OnExhausted::UsePartial && run.ledger.num_ready() > 0 {
                return self.ready(run, commands);
            }
            return self.finish_exhausted(run, commands);
        }
        let num_prompts = next_round_size(run);
        self.begin_round(run, num_prompts, commands)
    }

    fn forget_given_up(&mut self, run: &ScheduleRun) {
        let ledger = &run.ledger;
        self.ahead.retain(|group| ledger.is_in_flight(*group) || ledger.finished(*group).is_some());
    }

    /// Whether the epoch has no prompt left, including those drawn ahead.
    fn data_are_over(&self, run: &ScheduleRun) -> bool {
        run.epoch_over && self.ahead.is_empty()
    }

    /// Begins a round of `num_prompts` prompts: first those that were drawn ahead, then others.
    fn begin_round(
        &mut self,
        run: &mut ScheduleRun,
        num_prompts: usize,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        run.step.rounds += 1;
        self.round = self.ahead.drain(..num_prompts.min(self.ahead.len())).collect();
        self.unsettled = self.round.iter().filter(|group| run.ledger.is_in_flight(**group)).count();
        let missing = num_prompts - self.round.len();
        if missing == 0 || (run.epoch_over && !self.round.is_empty()) {
            return self.after_dispatch(run, missing, commands);
        }
        if run.epoch_over {
            run.begin_epoch(commands);
        }
        self.draw(run, missing, commands);
        Ok(())
    }

    fn draw(&mut self, run: &mut ScheduleRun, num_prompts: usize, commands: &mut Vec<Command>) {
        let ahead = if self.draws_ahead { 1 + self.ahead.len() / run.settings.gen_batch_size } else { 0 };
        run.draw(run.progress.steps + 1, run.step.rounds + ahead as u64, num_prompts, commands);
    }

    /// The prompts of a round have come, `missing` fewer than requested if the epoch ended.
    pub(super) fn after_dispatch(
        &mut self,
        run: &mut ScheduleRun,
        missing: usize,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        if self.round.is_empty() {
            // The epoch had already ended with the round before: known only now.
            if let Some(fruitless) = self.close_epochs(run) {
                return self.stop_fruitless(run, fruitless, commands);
            }
        }
        let num_ready = run.ledger.num_ready();
        if missing > 0 {
            let is_untouched = self.round.is_empty() && run.step.rounds == 1 && num_ready == 0;
            if run.may_begin_epoch(is_untouched) {
                run.begin_epoch(commands);
                self.draw(run, missing, commands);
                return Ok(());
            }
        }
        if self.data_are_over(run) && !run.may_begin_epoch(false) {
            if self.round.is_empty() {
                // This round did not take place.
                run.step.rounds -= 1;
                return self.decide(run, None, None, commands);
            }
            let settings = &run.settings;
            let most = num_ready + self.round.len();
            // An epoch that has kept nothing so far is judged whole: the run may have to stop rather than
            // finish.
            let has_kept = run.epochs.get(&run.progress.epoch).is_some_and(|epoch| epoch.tally.kept > 0);
            let needs_all = settings.on_exhausted != OnExhausted::UsePartial;
            if has_kept && needs_all && !settings.is_one_round() && most < settings.train_batch_size {
                // The batch could not be filled even if all were kept.
                return self.finish_exhausted(run, commands);
            }
        }
        self.go_on(run, commands)
    }

    /// Completes the round if all of it is settled; otherwise draws ahead, if there is room.
    pub(super) fn go_on(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        if run.phase != Phase::Open || run.asked.is_some() {
            return Ok(());
        }
        if self.unsettled == 0 {
            return self.complete_round(run, commands);
        }
        let settings = &run.settings;
        if run.epoch_over || settings.is_one_round() {
            return Ok(());
        }
        let one = settings.gen_batch_size;
        let rounds = (settings.rounds_in_flight - 1) as u64;
        let left = run.round_limit().map_or(rounds, |limit| limit.saturating_sub(run.step.rounds));
        let most = usize::try_from(rounds.min(left)).unwrap_or(usize::MAX).saturating_mul(one);
        let num_prompts = most.saturating_sub(self.ahead.len()).min(one);
        if num_prompts > 0 {
            self.draws_ahead = true;
            self.draw(run, num_prompts, commands);
        }
        Ok(())
    }

    /// Decides after a round that kept so many groups (`None`: there was no round, because the data had
    /// ended).
    pub(super) fn decide(
        &mut self,
        run: &mut ScheduleRun,
        kept: Option<u64>,
        fruitless: Option<Fruitless>,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let num_ready = run.ledger.num_ready();
        if num_ready >= run.settings.train_batch_size {
            return self.ready(run, commands);
        }
        if let Some(fruitless) = fruitless {
            return self.stop_fruitless(run, fruitless, commands);
        }
        if run.settings.is_one_round() && num_ready > 0 {
            return self.ready(run, commands);
        }
        if self.data_are_over(run) && !run.may_begin_epoch(false) {
            let use_partial = run.settings.on_exhausted == OnExhausted::UsePartial;
            if use_partial && num_ready > 0 {
                return self.ready(run, commands);
            }
            if use_partial && run.may_begin_epoch(true) {
                return self.skip(run, SkipReason::DataExhausted, commands);
            }
            return self.finish_exhausted(run, commands);
        }
        if kept == Some(0) {
            let cause = StopCause::EmptyRounds { rounds: self.empty_rounds };
            match run.settings.on_empty_round {
                OnEmptyRound::Error => return self.stop(run, cause, commands),
                OnEmptyRound::Skip => return self.skip(run, SkipReason::EmptyRound, commands),
                OnEmptyRound::Retry { times: Some(times) } if self.empty_rounds > times => {
                    return self.stop(run, cause, commands);
                }
                OnEmptyRound::Retry { .. } => {}
            }
        }
        let num_prompts = next_round_size(run);
        if num_prompts == 0 {
            return match run.settings.on_limit {
                OnLimit::Error => self.stop(run, StopCause::LimitReached, commands),
                // Without a kept group, dropped ones teach nothing and there is nothing to copy.
                _ if num_ready == 0 => self.skip(run, SkipReason::LimitReached, commands),
                OnLimit::Skip => self.skip(run, SkipReason::LimitReached, commands),
                OnLimit::UsePartial => self.ready(run, commands),
                OnLimit::KeepDropped => {
                    run.train_with_dropped();
                    self.hand_over(run, commands)
                }
                OnLimit::Duplicate => {
                    run.train_with_copies();
                    self.hand_over(run, commands)
                }
            };
        }
        self.begin_round(run, num_prompts, commands)
    }

    /// The first `train_batch_size` ready groups are the batch.
    fn ready(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        run.train(run.settings.train_batch_size);
        self.hand_over(run, commands)
    }

    /// Closes the step, whose batch is taken.
    fn hand_over(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        let close = run.close_trained(commands)?;
        self.forget_given_up(run);
        commands.push(Command::StepReady(Box::new(close)));
        Ok(())
    }

    fn skip(&mut self, run: &mut ScheduleRun, why: SkipReason, commands: &mut Vec<Command>) -> Result<()> {
        run.skip(why, commands)?;
        self.forget_given_up(run);
        Ok(())
    }
}

/// Prompts of the next round; 0 if the step has reached its limit.
fn next_round_size(run: &ScheduleRun) -> usize {
    let deficit = run.settings.train_batch_size - run.ledger.num_ready();
    let drawn = DrawnSoFar { rounds: run.step.rounds, prompts: run.ledger.num_dispatched() };
    run.settings.round_size(deficit, run.keep_rate, run.round_limit(), drawn)
}
