//! What comes next: another round, the step, or an end.

use super::{Epoch, Phase, Rounds};
use crate::schedule::{
    Command, FinishReason, OnEmptyRound, OnExhausted, OnLimit, ScheduleError, SkipReason, StopCause, Tally,
};

impl Rounds {
    pub(super) fn begin_step(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        self.open_step();
        if self.settings.total_steps.is_some_and(|total| self.progress.steps >= total) {
            return self.finish(FinishReason::TotalSteps, commands);
        }
        if self.ready.len() >= self.settings.train_batch_size {
            return self.ready(commands);
        }
        if self.epoch_over && !self.may_begin_epoch(true) {
            if self.settings.on_exhausted == OnExhausted::UsePartial && !self.ready.is_empty() {
                return self.ready(commands);
            }
            let why = self.why_exhausted();
            return self.finish(why, commands);
        }
        self.begin_round(self.next_round_size(), commands);
        Ok(())
    }

    /// Whether another epoch may begin: at the beginning of a step, or within one.
    fn may_begin_epoch(&self, at_step: bool) -> bool {
        let is_left = self.settings.total_epochs.is_none_or(|total| self.progress.epoch + 1 < total);
        is_left
            && match self.settings.on_exhausted {
                OnExhausted::NextEpoch => true,
                OnExhausted::UsePartial => at_step,
                OnExhausted::Stop => false,
            }
    }

    fn why_exhausted(&self) -> FinishReason {
        match self.settings.on_exhausted {
            OnExhausted::Stop => FinishReason::DataExhausted,
            OnExhausted::NextEpoch | OnExhausted::UsePartial => FinishReason::TotalEpochs,
        }
    }

    /// Prompts of the next round; 0 where the step has reached its limit.
    fn next_round_size(&self) -> usize {
        let deficit = self.settings.train_batch_size - self.ready.len();
        let drawn = self.step.accounting.generated.groups;
        self.settings.round_size(deficit, self.keep_rate, self.step.rounds, drawn)
    }

    fn begin_round(&mut self, num_prompts: usize, commands: &mut Vec<Command>) {
        self.step.rounds += 1;
        if self.epoch_over {
            self.begin_epoch(commands);
        }
        self.draw(num_prompts, commands);
    }

    fn begin_epoch(&mut self, commands: &mut Vec<Command>) {
        self.progress.epoch += 1;
        self.progress.prompts_in_epoch = 0;
        self.epoch_over = false;
        let epoch = self.progress.epoch;
        self.epochs.insert(epoch, Epoch { began: self.progress.rounds, ..Epoch::default() });
        commands.push(Command::NextEpoch { epoch });
    }

    fn draw(&mut self, num_prompts: usize, commands: &mut Vec<Command>) {
        self.phase = Phase::Drawing { asked: num_prompts };
        let (step, round) = (self.progress.steps + 1, self.step.rounds);
        commands.push(Command::Draw { step, round, num_prompts });
    }

    /// Prompts have come, `missing` fewer than asked for where the epoch ended.
    pub(super) fn after_dispatch(
        &mut self,
        missing: usize,
        is_empty_epoch: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        if is_empty_epoch {
            return self.stop(StopCause::NoPrompts { epoch: self.progress.epoch }, commands);
        }
        if self.slots.is_empty() {
            // The epoch had ended with the round before, and that is known only now.
            if let Some((epoch, tally, rounds)) = self.close_epochs(0) {
                let cause = StopCause::EpochWithoutKept { epoch };
                return self.stop_with(cause, tally, rounds, commands);
            }
        }
        if missing > 0 {
            let is_untouched = self.slots.is_empty() && self.step.rounds == 1 && self.ready.is_empty();
            if self.may_begin_epoch(is_untouched) {
                self.begin_epoch(commands);
                self.draw(missing, commands);
                return Ok(());
            }
        }
        self.phase = Phase::Generating;
        if self.epoch_over && !self.may_begin_epoch(false) {
            if self.slots.is_empty() {
                // This round never was.
                self.step.rounds -= 1;
                return self.decide(None, None, commands);
            }
            let most = self.ready.len() + self.slots.len();
            // An epoch that has kept nothing so far is judged whole: the run may have to stop rather than finish.
            let has_kept = self.epochs.get(&self.progress.epoch).is_some_and(|epoch| epoch.tally.kept > 0);
            let needs_all = self.settings.on_exhausted != OnExhausted::UsePartial;
            if has_kept && needs_all && !self.settings.is_one_round() && most < self.settings.train_batch_size
            {
                // Even if all were kept the batch could not be filled.
                let why = self.why_exhausted();
                return self.finish(why, commands);
            }
        }
        self.complete_if_settled(commands)
    }

    /// After a round that kept so many groups (`None`: there was no round, the data had ended).
    pub(super) fn decide(
        &mut self,
        kept: Option<u64>,
        dead: Option<(u64, Tally, u64)>,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        let settings = &self.settings;
        if self.ready.len() >= settings.train_batch_size {
            return self.ready(commands);
        }
        if let Some((epoch, tally, rounds)) = dead {
            return self.stop_with(StopCause::EpochWithoutKept { epoch }, tally, rounds, commands);
        }
        if settings.is_one_round() && !self.ready.is_empty() {
            return self.ready(commands);
        }
        if self.epoch_over && !self.may_begin_epoch(false) {
            let use_partial = settings.on_exhausted == OnExhausted::UsePartial;
            if use_partial && !self.ready.is_empty() {
                return self.ready(commands);
            }
            if use_partial && self.may_begin_epoch(true) {
                return self.skip(SkipReason::DataExhausted, commands);
            }
            let why = self.why_exhausted();
            return self.finish(why, commands);
        }
        if kept == Some(0) {
            match settings.on_empty_round {
                OnEmptyRound::Error => {
                    return self.stop(StopCause::EmptyRounds { rounds: self.step.empty_rounds }, commands);
                }
                OnEmptyRound::Skip => return self.skip(SkipReason::EmptyRound, commands),
                OnEmptyRound::Retry { times: Some(times) } if self.step.empty_rounds > times => {
                    return self.stop(StopCause::EmptyRounds { rounds: self.step.empty_rounds }, commands);
                }
                OnEmptyRound::Retry { .. } => {}
            }
        }
        let num_prompts = self.next_round_size();
        if num_prompts == 0 {
            return match settings.on_limit {
                OnLimit::Error => self.stop(StopCause::LimitReached, commands),
                OnLimit::UsePartial if !self.ready.is_empty() => self.ready(commands),
                OnLimit::UsePartial | OnLimit::Skip => self.skip(SkipReason::LimitReached, commands),
            };
        }
        self.begin_round(num_prompts, commands);
        Ok(())
    }
}
