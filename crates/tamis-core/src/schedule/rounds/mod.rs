//! The policy of whole generation rounds, repeated until the batch is full.
//!
//! ```text
//!            BeginStep                Dispatched             all settled
//!   idle ───────────────▶ drawing ───────────────▶ generating ──────────┐
//!    ▲  ▲                    ▲  ▲       │ epoch ended short: NextEpoch,   │ RoundComplete, then
//!    │  │                    │  └───────┘ Draw the remainder              │
//!    │  │                    └────────────────────────────────────────────┤ batch not full: Draw
//!    │  └───────────────────────── SkipStep ◀─────────────────────────────┤ limit, empty round
//!    │            Trained                                                  │
//!    └─────────── training ◀───── StepReady ◀─────────────────────────────┤ full, or partial by choice
//!                                 Finish, Stop ◀──────────────────────────┘
//! ```
//!
//! With several rounds in flight the prompts of the next rounds are drawn *ahead*, while the present one
//! generates. A round takes its prompts first from those and then from the source. Rounds, limits and ends
//! are therefore the same as with one round in flight; only time and waste differ. Prompts are drawn ahead
//! only from the present epoch, and at most as many as the limit on rounds leaves.

mod decide;
#[cfg(test)]
mod laws;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::barren::{Barren, Fruitless};
use super::run::{Drawn, ScheduleRun};
use super::{Command, Result, RoundReport, RunEnd, StopCause, Tally};
use crate::group::GroupId;

/// The current round and the groups drawn ahead of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rounds {
    /// Groups of the current round, in dispatch order.
    round: Vec<GroupId>,
    unsettled: usize,
    /// Groups of the rounds after it, in dispatch order.
    ahead: VecDeque<GroupId>,
    /// Whether the awaited prompts are for later rounds.
    draws_ahead: bool,
    empty_rounds: u32,
    /// The last epochs, if they kept nothing.
    barren: Barren,
}

impl Rounds {
    pub(super) fn note_dispatched(
        &mut self,
        run: &mut ScheduleRun,
        groups: &[GroupId],
        drawn: &Drawn,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        if std::mem::take(&mut self.draws_ahead) {
            self.ahead.extend(groups);
            return self.go_on(run, commands);
        }
        self.round.extend(groups);
        self.unsettled += groups.len();
        if drawn.is_empty_epoch {
            let cause = StopCause::NoPrompts { epoch: run.progress.epoch };
            return self.stop(run, cause, commands);
        }
        self.after_dispatch(run, drawn.missing, commands)
    }

    pub(super) fn note_finished(
        &mut self,
        run: &mut ScheduleRun,
        group: GroupId,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        // Ids increase: groups drawn ahead have greater ids than all groups of the round.
        if self.round.last().is_some_and(|last| group <= *last) {
            self.unsettled -= 1;
            return self.go_on(run, commands);
        }
        Ok(())
    }

    /// The round has settled: counts it, in dispatch order, and decides.
    fn complete_round(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        let tally = self.settle_round(run, commands)?;
        run.observe(|keep_rate| keep_rate.observe(&tally));
        self.empty_rounds = if tally.kept == 0 { self.empty_rounds + 1 } else { 0 };
        commands.push(Command::RoundComplete(Box::new(RoundReport {
            step: run.progress.steps + 1,
            round: run.step.rounds,
            tally,
            num_accumulated: run.ledger.num_ready(),
            target: run.settings.train_batch_size,
            is_filtered: run.settings.filter.is_some(),
        })));
        let fruitless = self.close_epochs(run);
        self.decide(run, Some(tally.kept), fruitless, commands)
    }

    /// Judges the round's groups together, because a filter may compare them, and moves each to its place.
    fn settle_round(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<Tally> {
        let round = std::mem::take(&mut self.round);
        let verdicts = run.judge(&round)?;
        let mut tally = Tally::default();
        for (group, verdict) in round.into_iter().zip(verdicts) {
            tally.append(&run.settle(group, verdict, commands));
        }
        self.unsettled = 0;
        run.progress.rounds += 1;
        run.rounds_since_trained += 1;
        run.count(&tally);
        Ok(tally)
    }

    /// Aborts groups in flight or drawn ahead. Scored groups of the current round are judged and counted.
    fn abort(&mut self, run: &mut ScheduleRun, commands: &mut Vec<Command>) -> Result<()> {
        let first_ahead = self.ahead.front().copied();
        let is_ahead = |group| first_ahead.is_some_and(|first| group >= first);
        run.give_up(|group, _, outcome| outcome.is_none() || is_ahead(group), commands);
        self.ahead.clear();
        if !self.round.is_empty() {
            self.settle_round(run, commands)?;
        }
        Ok(())
    }

    pub(super) fn finish(
        &mut self,
        run: &mut ScheduleRun,
        why: RunEnd,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        self.abort(run, commands)?;
        run.finish(why, commands)
    }

    /// Removes finished epochs. Epochs that kept nothing end the run if as many groups were judged in whole
    /// epochs as the data have prompts.
    fn close_epochs(&mut self, run: &mut ScheduleRun) -> Option<Fruitless> {
        let least = run.settings.num_prompts.unwrap_or(1);
        self.barren.close_epochs(run, least)
    }

    /// Ends a run whose data have ended: finished, unless it never kept a group.
    pub(super) fn finish_exhausted(
        &mut self,
        run: &mut ScheduleRun,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        if let Some(fruitless) = self.barren.of_whole_run(run) {
            return self.stop_fruitless(run, fruitless, commands);
        }
        let why = run.why_exhausted();
        self.finish(run, why, commands)
    }

    /// Ends the run for lack of signal, with epochs that kept nothing as evidence.
    fn stop_fruitless(
        &mut self,
        run: &mut ScheduleRun,
        Fruitless { cause, tally, began }: Fruitless,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let rounds = run.progress.rounds - began;
        self.stop_with(run, cause, tally, rounds, commands)
    }

    /// Ends the run for lack of signal, with this step as evidence.
    fn stop(&mut self, run: &mut ScheduleRun, cause: StopCause, commands: &mut Vec<Command>) -> Result<()> {
        let (tally, rounds) = (run.step.tally, run.step.rounds);
        self.stop_with(run, cause, tally, rounds, commands)
    }

    /// Ends the run for lack of signal, with a tally of so many rounds as evidence.
    fn stop_with(
        &mut self,
        run: &mut ScheduleRun,
        cause: StopCause,
        tally: Tally,
        rounds: u64,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        self.abort(run, commands)?;
        run.stop(cause, tally, rounds, commands)
    }
}
