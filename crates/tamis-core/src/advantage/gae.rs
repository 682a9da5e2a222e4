//! Generalised advantage estimation from a critic's values.

use super::credit::credit;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, MaskedRewards, Result, whitening,
};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;
use crate::setting::Named as _;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "gae",
    family: Family::Advantage,
    formula: "d_t = r_t + gamma·V_(t+1) - V_t, A_t = d_t + gamma·lambda·A_(t+1), returns A_t + V_t, then A \
        whitened; t counts unmasked tokens",
    source: "Schulman et al., High-dimensional continuous control using generalized advantage estimation, arXiv 1506.02438, eq. 16",
    degenerate: &[
        "masked tokens are skipped: no value, no discount",
        "unscored trajectories are left out of the statistics; they get 0, and so do their returns",
        "if all advantages of the batch are equal, or there is one token, every advantage is 0",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=gae with algorithm.gamma and algorithm.lam"),
        ("EasyR1", "algorithm.adv_estimator=gae"),
    ],
    differences: &[
        "verl leaves whitened numbers at masked tokens, loses rewards on them (`masked_rewards: lost`), adds \
            1e-8 to the number of tokens and raises an error for a single one",
        "a filter that drops uniform groups drops signal here",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// `A_t = Σ_k (gamma·lambda)^k·d_(t+k)` with `d_t = r_t + gamma·V_(t+1) - V_t` over unmasked tokens,
    /// whitened over the batch; returns are `A_t + V_t` before whitening.
    ///
    /// Source: Schulman et al., arXiv 1506.02438, eq. 16; verl `gae`. The value after the last token is 0: a
    /// trajectory is a whole episode.
    ///
    /// Shapes: values and mask `[B][T]`, rewards `[P][G]` or token rewards `[B][T]` to advantages and returns
    /// `[B][T]`, both 0 at masked tokens and in unscored trajectories. Linear in N. Degenerate cases: see the
    /// catalogue's entry.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, AdvantageState, Gae};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0]]);
    /// let mask = Ragged::from_rows([vec![true, false, true]]);
    /// let values = Ragged::from_rows([vec![0.25, f64::NAN, 0.5]]);
    /// let batch =
    ///     AdvantageBatch { mask: Some(&mask), values: Some(&values), ..AdvantageBatch::of_rewards(&rewards) };
    /// let gae = Gae { lambda: 0.5, whiten: false, ..Gae::default() };
    /// let estimate = gae.estimate(&batch, &AdvantageState::default())?;
    /// // Errors 1/4 and 1/2.
    /// assert_eq!(estimate.advantages.values(), [0.5, 0.0, 0.5]);
    /// assert_eq!(estimate.returns.ok_or(tamis_core::advantage::AdvantageError::Setting {
    ///     setting: "", value: 0.0, expected: "" })?.values(), [0.75, 0.0, 1.0]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Gae {
        /// Discount per token of the policy.
        gamma: f64 = 1.0, Between(0.0, 1.0);
        /// Decay of the critic's errors: 0 trusts the critic, 1 the rewards.
        lambda: f64 = 1.0, Between(0.0, 1.0);
        /// Whiten advantages over the tokens of the batch: mean 0, deviation 1.
        whiten: bool = true;
        /// Token to which a reward on a masked token (tool or environment output) is assigned.
        masked_rewards: MaskedRewards = MaskedRewards::Credited;
    }
}

impl AdvantageEstimator for Gae {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::CriticValues)
    }

    fn baseline_beyond_group(&self) -> Option<&'static str> {
        Some("a critic")
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::Mask, Column::Values]
    }

    fn uses(&self) -> &'static [Column] {
        &[Column::TokenRewards]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mask = batch.mask(self.name())?;
        let values = batch.tokens(Column::Values, self.name())?;
        let (mut advantages, mut returns) = (Ragged::default(), Ragged::default());
        let (mut advantage_t, mut return_t): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        for (i, (reward, mask_t)) in batch.rewards.values().iter().zip(mask.rows()).enumerate() {
            return_t.clear();
            return_t.resize(mask_t.len(), 0.0);
            credit(batch, i, mask_t, self.masked_rewards, &mut advantage_t);
            if reward.is_nan() {
                advantage_t.fill(0.0);
            } else {
                let (mut next_value, mut next_advantage) = (0.0, 0.0);
                for (t, &value) in values.row(i).iter().enumerate().rev().filter(|(t, _)| mask_t[*t]) {
                    let error = advantage_t[t] + self.gamma * next_value - value;
                    next_advantage = error + self.gamma * self.lambda * next_advantage;
                    next_value = value;
                    advantage_t[t] = next_advantage;
                    return_t[t] = next_advantage + value;
                }
            }
            advantages.push_row(advantage_t.iter().copied());
            returns.push_row(return_t.iter().copied());
        }
        if self.whiten {
            whitening::by_token(&mut advantages, mask, batch.rewards.values());
        }
        Ok(Estimate::per_token(advantages, returns, state))
    }
}
