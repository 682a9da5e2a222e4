//! Statistics of everything that a step generated, gathered before the filter.

use serde::{Deserialize, Serialize};

use super::statistics::Moments;

/// Success rates of a step's prompts and the rewards of its trajectories, before any group is dropped.
///
/// They are gathered group by group ([`Self::add`]) as rounds arrive, so that no reward needs to be kept;
/// parts may be merged. Unscored members (NaN) are left out, and a group without a scored member does not
/// count as a prompt.
///
/// ```
/// use tamis_core::advantage::GeneratedStatistics;
/// let mut generated = GeneratedStatistics::default();
/// generated.add(&[1.0, 1.0, 1.0, 1.0]);
/// generated.add(&[1.0, 0.0, f64::NAN, 1.0, 0.0]);
/// // Success rates 1 and 1/2.
/// assert_eq!((generated.num_prompts(), generated.mean()), (2, 0.75));
/// assert_eq!((generated.variance(0), generated.variance(1)), (0.0625, 0.125));
/// assert_eq!((generated.num_trajectories(), generated.reward_sum()), (8, 6.0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GeneratedStatistics {
    num_prompts: u64,
    /// Mean over prompts of the group mean.
    mean: f64,
    /// Sum over prompts of squared differences from `mean`.
    squares: f64,
    num_trajectories: u64,
    reward_sum: f64,
}

/// Everything that a step generated, before any group is dropped: statistics of the reward, and of each
/// component if there are several.
#[derive(Debug, Clone, Copy, Default)]
pub struct Generated<'a> {
    /// Statistics of the reward.
    pub reward: GeneratedStatistics,
    /// Statistics of each component, in the order of
    /// [`AdvantageBatch::components`](super::AdvantageBatch::components); empty without components.
    pub components: &'a [GeneratedStatistics],
}

impl GeneratedStatistics {
    /// From all rows of a batch, for a step without a filter.
    pub fn of<'a>(groups: impl IntoIterator<Item = &'a [f64]>) -> Self {
        let mut statistics = Self::default();
        for rewards_g in groups {
            statistics.add(rewards_g);
        }
        statistics
    }

    /// Adds a group.
    pub fn add(&mut self, rewards_g: &[f64]) {
        let moments = Moments::of(rewards_g);
        if moments.count == 0 {
            return;
        }
        self.merge(&Self {
            num_prompts: 1,
            mean: moments.mean,
            squares: 0.0,
            num_trajectories: moments.count as u64,
            reward_sum: moments.sum(),
        });
    }

    /// Adds the statistics of another part of the step (Chan et al., "Updating formulae", 1979).
    pub fn merge(&mut self, other: &Self) {
        let num_prompts = self.num_prompts + other.num_prompts;
        if num_prompts == 0 {
            return;
        }
        let (here, there) = (self.num_prompts as f64, other.num_prompts as f64);
        let difference = other.mean - self.mean;
        self.mean += difference * there / num_prompts as f64;
        self.squares += other.squares + difference * difference * here * there / num_prompts as f64;
        self.num_prompts = num_prompts;
        self.num_trajectories += other.num_trajectories;
        self.reward_sum += other.reward_sum;
    }

    /// Groups with a scored member.
    pub fn num_prompts(&self) -> u64 {
        self.num_prompts
    }

    /// Mean over prompts of the group's mean reward; 0 without prompts.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Variance over prompts of the group's mean reward; NaN with fewer than `ddof + 1` prompts.
    pub fn variance(&self, ddof: u8) -> f64 {
        let freedom = self.num_prompts as f64 - f64::from(ddof);
        if freedom > 0.0 { self.squares / freedom } else { f64::NAN }
    }

    /// Scored trajectories.
    pub fn num_trajectories(&self) -> u64 {
        self.num_trajectories
    }

    /// Sum of their rewards.
    pub fn reward_sum(&self) -> f64 {
        self.reward_sum
    }
}
