//! Epochs that kept nothing, and when there are enough of them to end the run.
//! A pass over the data that keeps no group is a reason to end a run. But a pass in which prompts are passed
//! over is short, and a few groups are weak evidence about the data. Epochs that kept nothing are therefore
//! added up until as many groups were judged in them as the data have prompts, or one is kept. If the data
//! end before that, a run that has kept no group at all also ends for lack of signal.

use serde::{Deserialize, Serialize};

use super::run::ScheduleRun;
use super::{Accounting, StopCause, Tally};

/// Epochs in a row that kept no group.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Barren {
    /// Their groups that were judged or failed. Aborted groups do not count: their prompts come again.
    #[serde(flatten)]
    tally: Tally,
    /// The first and the last of them.
    epochs: Option<(u64, u64)>,
    /// Rounds of the run completed when the first one began.
    began: u64,
}

/// The end of a run for lack of signal: its cause and the evidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fruitless {
    pub(super) cause: StopCause,
    pub(super) tally: Tally,
    /// Rounds of the run completed when the first of the epochs began.
    pub(super) began: u64,
}

impl Barren {
    /// Removes epochs whose groups are all settled, in order, and adds those that kept none. The run ends if
    /// these hold at least `least` groups and no later epoch has kept one so far.
    pub(super) fn close_epochs(&mut self, run: &mut ScheduleRun, least: u64) -> Option<Fruitless> {
        // Prompts of aborted groups return to the present epoch when the step closes.
        let returns = !run.step.given_up.is_empty() || !run.step.stale.is_empty();
        while let Some(entry) = run.epochs.first_entry() {
            let (number, epoch) = (*entry.key(), *entry.get());
            if !epoch.is_done() || (returns && number == run.progress.epoch) {
                break;
            }
            entry.remove();
            if epoch.tally.kept > 0 {
                *self = Self::default();
                continue;
            }
            if self.epochs.is_none() {
                self.began = epoch.began;
            }
            let first = self.epochs.map_or(number, |(first, _)| first);
            self.epochs = Some((first, number));
            self.tally.append(&epoch.tally);
        }
        let (first, last) = self.epochs?;
        let keeps = run.epochs.values().any(|epoch| epoch.tally.kept > 0);
        let is_enough = self.tally.judged() >= least.max(1);
        (is_enough && !keeps).then(|| Fruitless {
            cause: StopCause::EpochWithoutKept { epoch: last, epochs: last.saturating_sub(first) + 1 },
            tally: self.tally,
            began: self.began,
        })
    }

    /// The end of a run whose data have ended: for lack of signal if groups were judged and none was kept.
    pub(super) fn of_whole_run(&self, run: &ScheduleRun) -> Option<Fruitless> {
        let Accounting { trained, surplus, stale, .. } = run.ledger.totals();
        let was_kept = trained.groups + surplus.groups + stale.groups > 0;
        let is_kept = run.ledger.num_kept() > 0 || !run.step.trained.is_empty() || !run.step.stale.is_empty();
        let mut tally = self.tally;
        run.epochs.values().for_each(|epoch| tally.append(&epoch.tally));
        let epoch = run.progress.epoch;
        (!was_kept && !is_kept && tally.judged() > 0).then(|| Fruitless {
            cause: StopCause::EpochWithoutKept { epoch, epochs: epoch.saturating_add(1) },
            tally,
            began: 0,
        })
    }
}
