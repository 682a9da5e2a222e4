//! Limit of the generation rounds of a step.

use serde::{Deserialize, Serialize};

use super::ScheduleSettings;
use super::round_size::KeepRate;

/// The limit on the rounds of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundLimit {
    /// None: only an epoch without a kept group ends a run.
    #[default]
    None,
    /// A number of rounds, or of their prompts if rounds have no fixed size.
    Rounds(u64),
    /// From the keep rate k of the last rounds, a batch of T groups and rounds of G prompts: ⌊T / (G k) + 2⌋.
    /// For T = G this is the usual ⌊1 / (1 − filter rate) + 2⌋. A batch takes b = ⌈T / G⌉ rounds if
    /// everything is kept: the limit is [`UNKNOWN_BATCHES`] b while no group of the run was kept, and never
    /// above [`MOST_AUTO_BATCHES`] b. Within a step it never falls. In a streaming run the estimate of k
    /// depends on which groups finish first, and so does the number of prompts that a step may draw.
    Auto,
}

/// For [`RoundLimit::Auto`]: multiple of an unfiltered batch's rounds that is granted while the keep rate is
/// only known to be low.
pub const UNKNOWN_BATCHES: u64 = 10;
/// For [`RoundLimit::Auto`]: the greatest multiple that is granted.
pub const MOST_AUTO_BATCHES: u64 = 50;

impl RoundLimit {
    /// As in verl and EasyR1: no limit if the number is 0 or less.
    pub fn of(rounds: i64) -> Self {
        match u64::try_from(rounds) {
            Ok(rounds @ 1..) => Self::Rounds(rounds),
            _ => Self::None,
        }
    }

    /// A limit that holds whatever the keep rate is; `None` if there is none.
    pub fn most(self, settings: &ScheduleSettings) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Rounds(rounds) => Some(rounds),
            Self::Auto => Some(MOST_AUTO_BATCHES.saturating_mul(unfiltered(settings))),
        }
    }
}

/// Number of rounds of a batch if everything is kept.
fn unfiltered(settings: &ScheduleSettings) -> u64 {
    settings.train_batch_size.div_ceil(settings.gen_batch_size.max(1)) as u64
}

/// Value of [`RoundLimit::Auto`] at this keep rate.
pub(super) fn adaptive(settings: &ScheduleSettings, keep_rate: KeepRate) -> u64 {
    let unfiltered = unfiltered(settings);
    let Some(keep) = keep_rate.ratio() else { return UNKNOWN_BATCHES.saturating_mul(unfiltered) };
    let rounds = settings.train_batch_size as f64 / (settings.gen_batch_size as f64 * keep) + 2.0;
    // The small addition makes 2 / (1/3) come out as 6. Saturates if the keep rate is almost 0.
    ((rounds + 1e-9) as u64).min(MOST_AUTO_BATCHES.saturating_mul(unfiltered))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Tally;

    fn seen(kept: u64, groups: u64) -> KeepRate {
        let mut rate = KeepRate::default();
        rate.observe(&Tally { groups, kept, ..Tally::default() });
        rate
    }

    #[test]
    fn by_hand() {
        let bound = |train, generated, kept, groups| {
            adaptive(&ScheduleSettings::verl(train, generated, 8, 0), seen(kept, groups))
        };
        // int(1 / (1 - rate) + 2) at filter rates of 0, 1/2, 2/3 and 0.9.
        assert_eq!([bound(64, 64, 64, 64), bound(64, 64, 32, 64), bound(64, 64, 33, 99)], [3, 4, 5]);
        assert_eq!(bound(64, 64, 10, 100), 12);
        // Rounds of a quarter of the batch, and of three batches.
        assert_eq!([bound(64, 16, 32, 64), bound(512, 1536, 512, 1536)], [10, 3]);
        // Nothing was kept, or nothing is known: ten times the rounds of an unfiltered batch. Almost nothing
        // was kept: at most fifty times.
        assert_eq!([bound(64, 64, 0, 64), bound(64, 16, 0, 64), bound(64, 64, 0, 0)], [10, 40, 10]);
        assert_eq!(bound(64, 64, 1, 1_000_000), 50);
    }
}
