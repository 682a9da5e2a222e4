//! REINFORCE++: discounted rewards to go per token, whitened over the batch, without a critic and without
//! groups.

use super::credit::returns;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, MaskedRewards, Result, whitening,
};
use crate::entry::{Entry, Family};
use crate::setting::Named as _;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "reinforce_plus_plus",
    family: Family::Advantage,
    formula: "G_t = r_t + gamma·G_(t+1), A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8) over the unmasked tokens of the batch",
    source: "Hu, REINFORCE++, arXiv 2501.03262, eq. 5 and 6",
    degenerate: &[
        "unscored trajectories are left out of the statistics and get 0",
        "if all returns of the batch are equal, or there is one token, every advantage is 0; a uniform \
            group is not 0 unless the batch is",
        "singletons are treated like any other",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=reinforce_plus_plus"),
        ("EasyR1", "algorithm.adv_estimator=reinforce_plus_plus"),
    ],
    differences: &[
        "verl loses rewards on masked tokens (`masked_rewards: lost`); its versions of early 2026 passed no \
            return back over one, so that a reward after a tool call never reached the turns before it",
        "verl adds 1e-8 to the number of tokens and raises an error for a single one",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// `G_t = r_t + gamma·G_(t+1)` over unmasked tokens, whitened over all unmasked tokens of the batch; the
    /// returns are `G` itself.
    ///
    /// Source: Hu, arXiv 2501.03262, eq. 5 and 6; verl `reinforce_plus_plus`. The discount counts tokens of
    /// the policy only.
    ///
    /// Shapes: rewards `[P][G]` or token rewards `[B][T]`, mask `[B][T]` to advantages and returns `[B][T]`,
    /// 0 at masked tokens. Linear in N. Degenerate cases: unscored trajectories are left out and get 0; equal
    /// returns throughout, or fewer than two tokens, give 0.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, AdvantageState, ReinforcePlusPlus};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0]]);
    /// let mask = Ragged::from_rows([vec![true, false, true], vec![true]]);
    /// let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
    /// let plain = ReinforcePlusPlus { gamma: 0.5, whiten: false, ..ReinforcePlusPlus::default() };
    /// let estimate = plain.estimate(&batch, &AdvantageState::default())?;
    /// assert_eq!(estimate.advantages.values(), [0.5, 0.0, 1.0, 0.0]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct ReinforcePlusPlus {
        /// Discount per token of the policy.
        gamma: f64 = 1.0, Between(0.0, 1.0);
        /// Whiten returns over the tokens of the batch: mean 0, deviation 1.
        whiten: bool = true;
        /// Token to which a reward on a masked token (tool or environment output) is assigned.
        masked_rewards: MaskedRewards = MaskedRewards::Credited;
    }
}

impl AdvantageEstimator for ReinforcePlusPlus {
    fn whole_step(&self) -> Option<WholeStep> {
        self.whiten.then_some(WholeStep::Whitening)
    }

    fn baseline_beyond_group(&self) -> Option<&'static str> {
        Some("the whole batch")
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::Mask]
    }

    fn uses(&self) -> &'static [Column] {
        &[Column::TokenRewards]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mask = batch.mask(self.name())?;
        let returns = returns(batch, mask, self.masked_rewards, self.gamma);
        let mut advantages = returns.clone();
        if self.whiten {
            whitening::by_token(&mut advantages, mask, batch.rewards.values());
        }
        Ok(Estimate::per_token(advantages, returns, state))
    }
}
