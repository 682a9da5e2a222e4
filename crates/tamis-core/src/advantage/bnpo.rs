//! BNPO: rewards centred on the group's success rate and divided by a Beta density fitted to the success
//! rates of the batch.

use super::beta::density;
use super::error::in_range;
use super::error::missing;
use super::per_group::per_group;
use super::singleton::finite_or_zero;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, GeneratedStatistics, Result,
};
use crate::entry::{Entry, Family};
use crate::fault;
use crate::figure::shortest;
use crate::ragged::Ragged;
use crate::setting::Named as _;
use crate::setting::Ranged as _;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "bnpo",
    family: Family::Advantage,
    formula: "A_i = (R_i - p) / f(p; alpha, beta), alpha = 1 + a/3, beta = 1 + b/3, a = c·E[p], b = c·(1 - \
        E[p]), c = E[p](1 - E[p])/Var[p] - 1, over all prompts before filtering",
    source: "Xiao et al., BNPO, arXiv 2506.02864, eq. 7, theorem 1 and section 4.3",
    degenerate: &[
        "with fewer than two prompts, or success rates that do not differ, nothing can be fitted: alpha = beta = 1, so A_i = R_i - p",
        "a uniform group gets exactly 0, and so do singletons, unscored members and groups with fewer than two scored members",
        "if the density is so low that 1/f exceeds `max_weight`, the weight is `max_weight`",
        "several rewards: the mean of their advantages, each with its own alpha and beta; a component without an answer adds 0",
        "rewards outside `low` to `high` are refused",
    ],
    known_as: &[("BNPO's code", "recipe/bnpo (changyi7231/BNPO)")],
    differences: &[
        "the paper leaves the estimator of Var[p] open: `ddof: 0` keeps alpha and beta at 1 or above; BNPO's \
            code uses `ddof: 1` and clamps (`at_least_one`)",
        "BNPO's code uses p = 0 for a prompt with one sample, and NaN if success rates do not differ",
        "TRL's `loss_type=bnpo` is something else: a token mean over the local micro-batch",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// `A_i = (R_i - p) / f(p; alpha, beta)` with p the mean reward of the group and f the density of a Beta
    /// distribution, fitted by moments to the success rates of all prompts that the step generated.
    ///
    /// Source: Xiao et al., arXiv 2506.02864: eq. 7, theorem 1 (`alpha = 1 + a/3`, `beta = 1 + b/3` minimise
    /// the variance of the gradient), section 4.3 (several rewards). `alpha = beta = 1` is REINFORCE with a
    /// baseline, `3/2` is GRPO with population deviation times π/8. A filter that drops uniform groups would
    /// change the moments, so they are taken before it ([`AdvantageBatch::generated`]).
    ///
    /// Shapes: rewards `[P][G]` in `low..=high`, mapped to `[0, 1]`, to advantages `[P][G]`; linear. With
    /// components: the mean over them, each with its own statistics. Degenerate cases: see the catalogue's
    /// entry.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Bnpo, Generated, GeneratedStatistics};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0, 0.0, 0.0]]);
    /// let generated = Generated { reward: GeneratedStatistics::of(rewards.rows()), components: &[] };
    /// let batch = AdvantageBatch { generated: Some(generated), ..AdvantageBatch::of_rewards(&rewards) };
    /// // f(1/4; 2, 2) = 6·1/4·3/4 = 9/8.
    /// let fixed = Bnpo { alpha: Some(2.0), beta: Some(2.0), ..Bnpo::default() };
    /// assert!((fixed.advantages(&batch)?.values()[0] - 2.0 / 3.0).abs() < 1e-14);
    /// // One prompt gives no estimate of the spread.
    /// assert_eq!(Bnpo::default().advantages(&batch)?.values(), [0.75, -0.25, -0.25, -0.25]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Bnpo {
        /// Parameter alpha of the Beta distribution. Null: fitted.
        alpha: Option<f64> = None, Positive;
        /// Parameter beta of the Beta distribution. Null: fitted.
        beta: Option<f64> = None, Positive;
        /// Delta degrees of freedom of the variance over prompts: 0 divides by n, 1 by n - 1.
        ddof: u8 = 0, Between(0.0, 1.0);
        /// Replace fitted parameters below 1 by 1 (they occur only with `ddof: 1`).
        at_least_one: bool = true;
        /// Largest weight of a prompt.
        max_weight: f64 = 1e6, Positive;
        /// Reward of a failure: all rewards lie between it and `high`.
        low: f64 = 0.0;
        /// Reward of a success.
        high: f64 = 1.0;
    }
}

/// Whether all scored rewards are in the range for which an estimator is defined.
pub(super) fn check_range(
    estimator: &'static str,
    rewards: &Ragged<f64>,
    (low, high): (f64, f64),
) -> Result<()> {
    let outside = |reward: &f64| *reward < low || *reward > high;
    let Some(place) = rewards.values().iter().position(outside) else { return Ok(()) };
    let group = rewards.offsets().partition_point(|&offset| offset <= place) - 1;
    Err(fault!("reward of trajectory {trajectory} in group {group} is {}; `{estimator}` is defined for rewards from {} to {}", shortest(rewards.values()[place]), shortest(low), shortest(high), trajectory = place - rewards.offsets()[group]).into())
}

pub(super) fn check_bounds(low: f64, high: f64) -> Result<()> {
    in_range("low", low, low.is_finite(), "a finite number")?;
    in_range("high", high, high > low && high.is_finite(), "a finite number above `low`")
}

impl Bnpo {
    /// Alpha and beta from the statistics of a step whose rewards are in `low..=high`.
    pub fn parameters(&self, generated: &GeneratedStatistics) -> (f64, f64) {
        let width = self.high - self.low;
        let mean = (generated.mean() - self.low) / width;
        let variance = generated.variance(self.ddof) / (width * width);
        let c = mean * (1.0 - mean) / variance - 1.0;
        let fit = |share: f64| {
            let parameter = 1.0 + c * share / 3.0;
            if self.at_least_one { parameter.max(1.0) } else { parameter }
        };
        let (alpha, beta) = (fit(mean), fit(1.0 - mean));
        let is_fitted = variance > 0.0 && [alpha, beta].iter().all(|value| *value > 0.0 && value.is_finite());
        let (alpha, beta) = if is_fitted { (alpha, beta) } else { (1.0, 1.0) };
        (self.alpha.unwrap_or(alpha), self.beta.unwrap_or(beta))
    }

    /// Advantages of one reward, 0 for unscored members; `generated` are its statistics before filtering.
    fn of(&self, rewards: &Ragged<f64>, generated: &GeneratedStatistics, share: f64) -> Result<Ragged<f64>> {
        check_range(ENTRY.name, rewards, (self.low, self.high))?;
        let (alpha, beta) = self.parameters(generated);
        let width = self.high - self.low;
        let advantages = per_group(
            rewards,
            |_| 0.0,
            |group| {
                let mean = group.moments.mean;
                let p = (mean - self.low) / width;
                let weight = share * (1.0 / density(p, alpha, beta)).min(self.max_weight) / width;
                move |reward| finite_or_zero(weight * (reward - mean))
            },
        );
        Ok(advantages)
    }
}

impl AdvantageEstimator for Bnpo {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::SuccessRates)
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::Generated]
    }

    fn uses(&self) -> &'static [Column] {
        &[Column::Components]
    }

    fn reward_range(&self) -> Option<(f64, f64)> {
        Some((self.low, self.high))
    }

    fn check(&self) -> Result<()> {
        self.check_ranges()?;
        check_bounds(self.low, self.high)
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let generated = batch.generated.ok_or_else(|| missing(Column::Generated, self.name()))?;
        let Some(components) = batch.components else {
            let advantages = self.of(batch.rewards, &generated.reward, 1.0)?;
            return Ok(Estimate::per_trajectory(advantages, state));
        };
        let share = 1.0 / components.len() as f64;
        let mut total = vec![0.0; batch.num_trajectories()];
        for (component, generated) in components.iter().zip(generated.components) {
            let advantages = self.of(&batch.component(component), generated, share)?;
            for (total, advantage) in total.iter_mut().zip(advantages.values()) {
                *total += finite_or_zero(*advantage);
            }
        }
        for (total, reward) in total.iter_mut().zip(batch.rewards.values()) {
            if reward.is_nan() {
                *total = 0.0;
            }
        }
        Ok(Estimate::per_trajectory(batch.rewards.cut_alike(total), state))
    }
}
