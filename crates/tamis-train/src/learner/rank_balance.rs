//! How evenly the ranks of a learner are loaded: those of a wave wait for the slowest.

use std::time::Duration;

use super::{LearnerSequence, Wave};

/// Work of the ranks over some waves. Shares are 0 if all have the same, and near 1 if one has all of
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankBalance {
    /// Sums over the waves: the most and the mean of the ranks' tokens.
    tokens: Spread,
    /// Sums over the passes: the longest and the mean of the ranks' times, in seconds.
    seconds: Spread,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Spread {
    most: f64,
    mean: f64,
}

impl Spread {
    fn add(&mut self, of_ranks: &[f64]) {
        self.most += of_ranks.iter().copied().fold(0.0, f64::max);
        self.mean += of_ranks.iter().sum::<f64>() / of_ranks.len().max(1) as f64;
    }

    /// The unused share of the ranks' capacity; `None` without capacity.
    fn idle_share(self) -> Option<f64> {
        (self.most > 0.0).then(|| 1.0 - self.mean / self.most)
    }
}

impl RankBalance {
    /// Counts a wave of `num_ranks` ranks, by computed tokens: a shared prompt counts once.
    pub fn add_wave(&mut self, wave: &Wave<'_>, num_ranks: usize) {
        let mut tokens = vec![0.0; num_ranks];
        let mut previous: Option<(&LearnerSequence<'_>, u32)> = None;
        for (sequence, &rank) in wave.sequences.iter().zip(&wave.ranks) {
            let is_shared = previous.is_some_and(|(before, of)| of == rank && before.shares_prompt(sequence));
            let prompt = if is_shared { 0 } else { sequence.prompt.len() };
            if let Some(sum) = tokens.get_mut(rank as usize) {
                *sum += (prompt + sequence.completion.len()) as f64;
            }
            previous = Some((sequence, rank));
        }
        self.tokens.add(&tokens);
    }

    /// Counts a pass by the seconds that each rank computed.
    pub fn add_pass(&mut self, seconds: &[f64]) {
        self.seconds.add(seconds);
    }

    /// Share of the ranks' time in passes in which they waited for the slowest one.
    pub fn idle_share(&self) -> Option<f64> {
        self.seconds.idle_share()
    }

    /// The same for a learner whose ranks take time in proportion to their tokens.
    pub fn token_spread(&self) -> Option<f64> {
        self.tokens.idle_share()
    }

    /// The time that a rank waited on average.
    pub fn idle_time(&self) -> Option<Duration> {
        let idle = self.seconds.most - self.seconds.mean;
        (self.seconds.most > 0.0).then(|| Duration::try_from_secs_f64(idle).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_wait_for_the_slowest() {
        let mut balance = RankBalance::default();
        assert_eq!((balance.idle_share(), balance.token_spread(), balance.idle_time()), (None, None, None));
        balance.add_pass(&[1.0, 3.0]);
        balance.add_pass(&[2.0, 2.0]);
        // 5 s in all; each rank computes 4 on average.
        assert_eq!(balance.idle_share(), Some(1.0 - 4.0 / 5.0));
        assert_eq!(balance.idle_time(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_shared_prompt_counts_once_on_each_rank() {
        let (prompt, other) = ([1_u32, 2], [3_u32, 4]);
        let wave = Wave {
            sequences: vec![
                LearnerSequence::of_text(&prompt, &[5]),
                LearnerSequence::of_text(&prompt, &[6]),
                LearnerSequence::of_text(&other, &[5, 6]),
            ],
            ranks: vec![0, 0, 1],
        };
        let mut balance = RankBalance::default();
        // 4 tokens each, and a third rank with nothing.
        balance.add_wave(&wave, 2);
        assert_eq!(balance.token_spread(), Some(0.0));
        balance.add_wave(&wave, 4);
        assert_eq!(balance.token_spread(), Some(1.0 - (4.0 + 2.0) / 8.0));
    }
}
