//! ReMax: the reward in comparison with that of the prompt's greedy completion.

use super::credit::returns;
use super::error::missing;
use super::singleton::finite_or_zero;
use super::{AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, MaskedRewards, Result};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;
use crate::setting::Named as _;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "remax",
    family: Family::Advantage,
    formula: "A_t = sum(r_s, s >= t) - b, b the reward of the prompt's greedy completion",
    source: "Li et al., ReMax, arXiv 2310.10505, eq. 6 and algorithm 1",
    degenerate: &[
        "unscored trajectories get 0, and so do all of a prompt whose greedy completion is unscored",
        "a uniform group is 0 only if its greedy completion scores the same; a singleton is treated like any other",
    ],
    known_as: &[("verl", "algorithm.adv_estimator=remax"), ("EasyR1", "algorithm.adv_estimator=remax")],
    differences: &[
        "verl leaves the reward to go at masked tokens, and loses rewards on them (`masked_rewards: lost`)",
        "filters that drop uniform groups drop signal here",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// `A_t = Σ_{s >= t} r_s - b` with `b` the reward of one greedy completion of the prompt; the returns are
    /// the rewards to go.
    ///
    /// Source: Li et al., arXiv 2310.10505, eq. 6; verl `remax`.
    ///
    /// Shapes: rewards `[P][G]` and greedy rewards \[P\] to advantages `[P][G]`; with token rewards and mask
    /// `[B][T]` to advantages and returns `[B][T]`, 0 at masked tokens. Linear. Degenerate cases: unscored
    /// trajectories, and all those of a prompt whose greedy completion is unscored, get 0.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Remax};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0], [1.0, 1.0]]);
    /// let batch = AdvantageBatch { greedy_rewards: Some(&[1.0, 0.0]), ..AdvantageBatch::of_rewards(&rewards) };
    /// assert_eq!(Remax::default().advantages(&batch)?.values(), [0.0, -1.0, 1.0, 1.0]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Remax {
        /// Token to which a reward on a masked token (tool or environment output) is assigned.
        masked_rewards: MaskedRewards = MaskedRewards::Credited;
    }
}

impl AdvantageEstimator for Remax {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::GreedyCompletions)
    }

    fn baseline_beyond_group(&self) -> Option<&'static str> {
        Some("the greedy answer")
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::GreedyRewards]
    }

    fn uses(&self) -> &'static [Column] {
        &[Column::TokenRewards]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let missing = || missing(Column::GreedyRewards, self.name());
        let greedy = batch.greedy_rewards.ok_or_else(missing)?;
        if batch.token_rewards.is_none() {
            let rewards = batch.rewards.rows().zip(greedy);
            let advantages = rewards
                .flat_map(|(rewards_g, baseline)| rewards_g.iter().map(move |reward| reward - baseline));
            return Ok(Estimate::per_trajectory(batch.rewards.cut_alike(advantages.collect()), state));
        }
        let mask = batch.mask(self.name())?;
        let returns = returns(batch, mask, self.masked_rewards, 1.0);
        let baselines = batch
            .rewards
            .rows()
            .zip(greedy)
            .flat_map(|(rewards_g, baseline)| rewards_g.iter().map(move |reward| (reward, baseline)));
        let mut per_token = Ragged::default();
        for ((to_go_t, mask_t), (reward, baseline)) in returns.rows().zip(mask.rows()).zip(baselines) {
            per_token.push_row(to_go_t.iter().zip(mask_t).map(|(to_go, &on)| {
                if on && !reward.is_nan() { finite_or_zero(to_go - baseline) } else { 0.0 }
            }));
        }
        Ok(Estimate::per_token(per_token, returns, state))
    }
}
