//! The running form of BNPO: one success rate for the whole batch, from a Beta over the rewards of recent
//! steps.

use super::bnpo::{check_bounds, check_range};
use super::error::missing;
use super::singleton::finite_or_zero;
use super::{AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, RecentStep, Result};
use crate::entry::{Entry, Family};
use crate::setting::Named as _;
use crate::setting::Ranged as _;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "bnpo_running",
    family: Family::Advantage,
    formula: "A_i = (R_i - mu) / sqrt(mu·(1 - mu) + delta), mu = alpha/(alpha + beta), alpha = prior + \
        successes, beta = prior + failures of all trajectories of the last `window` steps, this one \
        included, before filtering",
    source: "a Chinese summary of TRL's objectives (reference: GRPO formulas at a glance), which gives mu as \
        Beta(alpha, beta) estimated over the last N steps; no paper",
    degenerate: &[
        "unscored trajectories are left out of the counts and get 0; singletons are treated like any other",
        "a uniform group is not 0, because the baseline is not its own: a filter that drops it drops signal",
        "without any scored trajectory mu is 1/2; rewards outside `low` to `high` are refused",
    ],
    known_as: &[],
    differences: &[
        "the source leaves open how the parameters are estimated and whether mu is drawn: here they are the \
            conjugate counts, and mu is the mean",
        "BNPO's paper normalises by a fitted density of each prompt's own success rate: see `bnpo`",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// `A_i = (R_i - mu) / sqrt(mu·(1 - mu) + delta)`, mu the mean of a Beta whose parameters count the
    /// rewards of the last `window` steps.
    ///
    /// Source: none published; the catalogue's entry lists our interpretation. The counts of recent steps are
    /// the state.
    ///
    /// Shapes: rewards `[P][G]` in `low..=high`, mapped to `[0, 1]`, to advantages `[P][G]`; linear.
    /// Degenerate cases: see the catalogue's entry.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, AdvantageState, BnpoRunning, Generated, GeneratedStatistics};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0]]);
    /// // Six more failures were generated and dropped.
    /// let reward = GeneratedStatistics::of([&[1.0, 0.0][..], &[0.0; 6][..]]);
    /// let generated = Generated { reward, components: &[] };
    /// let batch = AdvantageBatch { generated: Some(generated), ..AdvantageBatch::of_rewards(&rewards) };
    /// let running = BnpoRunning { delta: 0.0, ..BnpoRunning::default() };
    /// let estimate = running.estimate(&batch, &AdvantageState::default())?;
    /// // Beta(2, 8): mu 1/5, deviation 2/5.
    /// assert!((estimate.advantages.values()[0] - 2.0).abs() < 1e-15);
    /// assert_eq!(estimate.state.recent.len(), 1);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct BnpoRunning {
        /// Number of latest steps whose rewards count, including this one.
        window: usize = 10, AtLeast(1.0);
        /// Number of successes, and of failures, that count initially.
        prior: f64 = 1.0, Positive;
        /// Number added to the variance of the success rate, whose root divides the advantage.
        delta: f64 = 1e-4, NonNegative;
        /// Reward of a failure: all rewards lie between it and `high`.
        low: f64 = 0.0;
        /// Reward of a success.
        high: f64 = 1.0;
    }
}

impl AdvantageEstimator for BnpoRunning {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::RunningSuccesses)
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::Generated]
    }

    fn reward_range(&self) -> Option<(f64, f64)> {
        Some((self.low, self.high))
    }

    fn check(&self) -> Result<()> {
        self.check_ranges()?;
        check_bounds(self.low, self.high)
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        check_range(self.name(), batch.rewards, (self.low, self.high))?;
        let width = self.high - self.low;
        let missing = || missing(Column::Generated, self.name());
        let generated = batch.generated.ok_or_else(missing)?.reward;
        let count = generated.num_trajectories() as f64;
        let successes = (generated.reward_sum() - self.low * count) / width;
        let mut state = state.clone();
        state.recent.push_back(RecentStep { successes, failures: count - successes });
        while state.recent.len() > self.window {
            state.recent.pop_front();
        }
        let (mut alpha, mut beta) = (self.prior, self.prior);
        for step in &state.recent {
            alpha += step.successes;
            beta += step.failures;
        }
        let mu = alpha / (alpha + beta);
        let divisor = (mu * (1.0 - mu) + self.delta).sqrt();
        let mut advantages = batch.rewards.clone();
        for group in 0..advantages.num_rows() {
            for reward in advantages.row_mut(group) {
                *reward = finite_or_zero(((*reward - self.low) / width - mu) / divisor);
            }
        }
        Ok(Estimate::per_trajectory(advantages, &state))
    }
}
