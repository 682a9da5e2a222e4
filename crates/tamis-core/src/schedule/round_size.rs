//! Size of a generation round, in prompts.
//!
//! Fixed rounds draw `gen_batch_size` prompts. Deficit rounds draw as many as the batch probably lacks, by
//! the share of groups that the last rounds kept.

use serde::{Deserialize, Serialize};

use super::yields::prompts_for;
use super::{ScheduleSettings, Tally};

/// The ways to choose the size of a round.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundSize {
    /// Every round draws `gen_batch_size` prompts, as verl and EasyR1 do.
    #[default]
    Fixed,
    /// A round draws what the batch lacks, divided by the keep rate so far: w = (d + z √(d (1 − k))) / k
    /// prompts for d groups at keep rate k, rounded up to a multiple of the granularity. (d / k prompts keep
    /// d groups on average; √(d (1 − k)) / k is the deviation of that number.) The first round of a run, for
    /// which no keep rate is known, draws `gen_batch_size`.
    ///
    /// The limit on rounds limits prompts here: a step draws at most `max_num_gen_batches` ×
    /// `gen_batch_size`, in as many rounds as that takes. Without a limit one round draws at most
    /// [`MOST_BATCHES`] × `gen_batch_size`.
    Deficit {
        /// A round draws a multiple of this number of prompts.
        granularity: usize,
        /// z, in deviations: with 0 one round fills the batch half of the time, with 1 about five times in
        /// six.
        margin: f64,
    },
}

/// Greatest size of one round of [`RoundSize::Deficit`], in units of `gen_batch_size`, if the rounds of a
/// step are not limited.
pub const MOST_BATCHES: u64 = 10;

/// Factor by which the knowledge of the keep rate fades with each round: it changes with the policy.
const MEMORY: f64 = 0.75;

/// Share of groups that the filter keeps, from the last rounds: each counts three quarters of the one after
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct KeepRate {
    kept: f64,
    groups: f64,
}

impl KeepRate {
    /// Records a round. Failed groups count as not kept; aborted ones do not count.
    pub(super) fn observe(&mut self, round: &Tally) {
        self.kept = MEMORY * self.kept + round.kept as f64;
        self.groups = MEMORY * self.groups + round.judged() as f64;
    }

    /// Records one group, with a memory of 32 batches of this size.
    pub(super) fn observe_one(&mut self, is_kept: bool, batch_size: usize) {
        let memory = 1.0 - 1.0 / (32 * batch_size) as f64;
        self.kept = memory * self.kept + f64::from(u8::from(is_kept));
        self.groups = memory * self.groups + 1.0;
    }

    /// Mean of the keep rate with one additional kept group: 1 before the first group, never 0.
    pub(super) fn upper_estimate(self) -> f64 {
        (self.kept + 1.0) / (self.groups + 1.0)
    }

    /// Kept / generated; `None` if nothing was kept.
    pub(super) fn ratio(self) -> Option<f64> {
        (self.kept > 0.0).then(|| self.kept / self.groups)
    }

    /// Mean of the keep rate under a uniform prior (Laplace's rule), so neither 0 nor 1; `None` before the
    /// first group.
    pub(super) fn estimate(self) -> Option<f64> {
        (self.groups > 0.0).then(|| (self.kept + 1.0) / (self.groups + 2.0))
    }
}

/// What a step has drawn so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrawnSoFar {
    pub(super) rounds: u64,
    pub(super) prompts: u64,
}

impl ScheduleSettings {
    /// Whether a driver may make a round smaller than requested: only one round at a time, sized by what the
    /// batch lacks.
    pub(super) fn takes_smaller_rounds(&self) -> bool {
        matches!(self.size, RoundSize::Deficit { .. }) && self.rounds_in_flight == 1
    }

    /// Prompts of the next round; 0 if the step may draw no more. `deficit` is the number of groups that the
    /// batch lacks; `limit` is the largest number of rounds.
    pub(super) fn round_size(
        &self,
        deficit: usize,
        keep_rate: KeepRate,
        limit: Option<u64>,
        drawn: DrawnSoFar,
    ) -> usize {
        let one = self.gen_batch_size as u64;
        let RoundSize::Deficit { granularity, margin } = self.size else {
            return if limit.is_some_and(|limit| drawn.rounds >= limit) { 0 } else { self.gen_batch_size };
        };
        let left = match limit {
            Some(limit) => limit.saturating_mul(one).saturating_sub(drawn.prompts),
            None => MOST_BATCHES.saturating_mul(one),
        };
        let wanted = match keep_rate.estimate() {
            Some(keep) => {
                // If nothing was dropped, a filter changes nothing. The rest saturates if almost nothing is
                // kept.
                let was_all_kept = keep_rate.ratio() == Some(1.0);
                let wanted = if was_all_kept {
                    deficit as u64
                } else {
                    prompts_for(deficit, keep, margin).ceil() as u64
                };
                wanted.max(1).checked_next_multiple_of(granularity as u64).unwrap_or(u64::MAX)
            }
            None => one,
        };
        usize::try_from(wanted.min(left)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Key, Purpose};

    fn deficit(granularity: usize, margin: f64, limit: i64) -> ScheduleSettings {
        ScheduleSettings {
            size: RoundSize::Deficit { granularity, margin },
            ..ScheduleSettings::verl(64, 96, 8, limit)
        }
    }

    /// Prompts of the next round, from the numbers of rounds and prompts of the step so far.
    fn size(settings: &ScheduleSettings, deficit: usize, rate: KeepRate, rounds: u64, drawn: u64) -> usize {
        let limit = settings.max_num_gen_batches.most(settings);
        settings.round_size(deficit, rate, limit, DrawnSoFar { rounds, prompts: drawn })
    }

    fn seen(kept: u64, groups: u64) -> KeepRate {
        let mut rate = KeepRate::default();
        rate.observe(&Tally { groups, kept, ..Tally::default() });
        rate
    }

    #[test]
    fn by_hand() {
        let settings = deficit(8, 0.0, 0);
        // Nothing is known: the first round has the configured size, whatever the granularity.
        assert_eq!(size(&settings, 64, KeepRate::default(), 0, 0), 96);
        // (49 + 1) / (98 + 2) = 1/2: twice the deficit, up to the next multiple of 8.
        assert_eq!(size(&settings, 15, seen(49, 98), 1, 98), 32);
        assert_eq!(size(&settings, 16, seen(49, 98), 1, 98), 32);
        assert_eq!(size(&settings, 17, seen(49, 98), 1, 98), 40);
        // One deviation more: (16 + sqrt(8)) / 0.5 = 37.7.
        assert_eq!(size(&deficit(1, 1.0, 0), 16, seen(49, 98), 1, 98), 38);
        // All were kept: the round draws what the batch lacks, so a filter that keeps everything changes
        // nothing.
        assert_eq!(size(&deficit(1, 1.0, 0), 64, seen(96, 96), 1, 96), 64);
        assert_eq!(size(&settings, 17, seen(96, 96), 1, 96), 24);
        // Nothing was kept so far: still bounded.
        assert_eq!(size(&settings, 64, seen(0, 96), 1, 96), 960);
        assert_eq!(size(&settings, 64, seen(0, u64::MAX >> 1), 1, 96), 960);
    }

    #[test]
    fn the_limit_on_rounds_is_one_on_prompts() {
        let settings = deficit(8, 1.0, 2);
        assert_eq!(size(&settings, 64, seen(0, 96), 1, 96), 96);
        assert_eq!(size(&settings, 64, seen(0, 96), 3, 188), 4);
        assert_eq!(size(&settings, 64, seen(0, 96), 3, 192), 0);
        // Fixed rounds are limited by their number.
        let fixed = ScheduleSettings::verl(64, 96, 8, 2);
        assert_eq!([0, 1, 2].map(|rounds| size(&fixed, 64, seen(0, 96), rounds, 0)), [96, 96, 0]);
    }

    #[test]
    fn old_rounds_are_forgotten() {
        let mut rate = seen(0, 100);
        assert_eq!(rate.estimate(), Some(1.0 / 102.0));
        for _ in 0..40 {
            rate.observe(&Tally { kept: 50, groups: 110, aborted: 10, ..Tally::default() });
        }
        let estimate = rate.estimate().unwrap();
        assert!((estimate - 0.5).abs() < 1e-3, "{estimate}");
        assert_eq!(KeepRate::default().estimate(), None);
    }

    #[test]
    fn the_margin_is_in_deviations() {
        let filled = |margin: f64| {
            let (deficit, keep) = (64, 0.4);
            let draws = prompts_for(deficit, keep, margin).ceil() as u64;
            let key = Key::new(7, Purpose::Bootstrap);
            let filled = (0..4000).filter(|&trial| {
                let kept = (0..draws).filter(|&draw| key.with(trial).uniform(draw) < keep).count();
                kept >= deficit
            });
            filled.count() as f64 / 4000.0
        };
        assert!((filled(0.0) - 0.5).abs() < 0.06, "{}", filled(0.0));
        assert!((filled(1.0) - 0.84).abs() < 0.04, "{}", filled(1.0));
        assert!(filled(3.0) > 0.99);
    }
}
