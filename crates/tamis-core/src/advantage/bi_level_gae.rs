//! GAE on two levels: over the turns of an episode, then over the tokens within each turn.

use super::batch::turn_ends;
use super::credit::credit;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, MaskedRewards, Result, whitening,
};
use crate::entry::{Entry, Family};
use crate::fault;
use crate::ragged::Ragged;
use crate::setting::Named as _;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "bi_level_gae",
    family: Family::Advantage,
    formula: "turns: D_k = R_k + turn_gamma·V(end_(k+1)) - V(end_k), A_k = D_k + turn_gamma·lambda·A_(k+1); \
        tokens of turn k: gae with gamma, lambda and the reward A_k + V(end_k) at its end",
    source: "Wang et al., VAGEN, 2025, section 3.3; RAGEN core_algos.compute_bi_level_gae_advantage_return",
    degenerate: &[
        "with one turn it is `gae` with the whole reward at the last token",
        "without turn or token rewards the trajectory's reward belongs to its last turn",
        "unscored trajectories are left out of the statistics; they get 0, and so do their returns",
    ],
    known_as: &[("RAGEN", "algorithm.bi_level_gae=True with algorithm.high_level_gamma")],
    differences: &[
        "RAGEN finds turns by nonzero rewards, so that a turn with reward 0 is merged into the next; \
            here turns are runs of unmasked tokens, or given",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// GAE over turns, then over tokens within turns.
    ///
    /// With `V(end_k)` the value at the last token of turn k and `R_k` its reward:
    /// `D_k = R_k + turn_gamma·V(end_(k+1)) - V(end_k)`, `A_k = D_k + turn_gamma·lambda·A_(k+1)`. The turn's
    /// return `A_k + V(end_k)` is then the only reward of its tokens, whose GAE with `gamma` and `lambda`
    /// starts again in every turn. Advantages are whitened over the batch; returns are `A_t + V_t` before
    /// whitening.
    ///
    /// Source: RAGEN `compute_bi_level_gae_advantage_return` (VAGEN, section 3.3).
    ///
    /// Shapes: values and mask `[B][T]`; turn rewards `[B][turns]`, otherwise token rewards `[B][T]` summed
    /// over each turn, otherwise the trajectory's reward in its last turn; turns `[B][T]`, otherwise each run
    /// of unmasked tokens is a turn. Advantages and returns `[B][T]`, 0 at masked tokens. Linear in N.
    ///
    /// # Errors
    /// A trajectory does not have as many turn rewards as turns.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, BiLevelGae};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0]]);
    /// let mask = Ragged::from_rows([vec![true, true, false, true]]);
    /// let values = Ragged::from_rows([vec![0.0, 0.5, 0.0, 0.5]]);
    /// let turn_rewards = Ragged::from_rows([vec![0.0, 1.0]]);
    /// let batch = AdvantageBatch {
    ///     mask: Some(&mask),
    ///     values: Some(&values),
    ///     turn_rewards: Some(&turn_rewards),
    ///     ..AdvantageBatch::of_rewards(&rewards)
    /// };
    /// let gae = BiLevelGae { turn_gamma: 0.5, lambda: 0.5, whiten: false, ..BiLevelGae::default() };
    /// // Turn 2: 1 - 1/2. Turn 1: (0 + 1/2·1/2 - 1/2) + 1/4·1/2 = -1/8, so its return is 3/8.
    /// // Its first token: (1/2 - 0) + 1/2·(3/8 - 1/2).
    /// assert_eq!(gae.advantages(&batch)?.values(), [0.4375, -0.125, 0.0, 0.5]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct BiLevelGae {
        /// Discount per token within a turn.
        gamma: f64 = 1.0, Between(0.0, 1.0);
        /// Decay of the critic's errors on both levels.
        lambda: f64 = 1.0, Between(0.0, 1.0);
        /// Discount per turn.
        turn_gamma: f64 = 0.95, Between(0.0, 1.0);
        /// Whiten advantages over the tokens of the batch: mean 0, deviation 1.
        whiten: bool = true;
        /// Token to which a reward on a masked token (tool or environment output) is assigned.
        masked_rewards: MaskedRewards = MaskedRewards::Credited;
    }
}

impl BiLevelGae {
    /// Turns the credits of a trajectory into advantages, in place, and fills its returns. Scratch: `ends`,
    /// `turn_rewards`.
    fn trajectory(
        &self,
        mask_t: &[bool],
        value_t: &[f64],
        ends: &[usize],
        turn_rewards: &mut [f64],
        advantage_t: &mut [f64],
        return_t: &mut [f64],
    ) {
        let (mut next_value, mut next_advantage) = (0.0, 0.0);
        for (&end, reward) in ends.iter().zip(turn_rewards.iter_mut()).rev() {
            let error = *reward + self.turn_gamma * next_value - value_t[end];
            next_advantage = error + self.turn_gamma * self.lambda * next_advantage;
            next_value = value_t[end];
            *reward = next_advantage + value_t[end];
        }
        let mut turn = ends.len();
        let (mut next_value, mut next_advantage) = (0.0, 0.0);
        for t in (0..mask_t.len()).rev().filter(|&t| mask_t[t]) {
            let value = value_t[t];
            let error = if turn > 0 && ends[turn - 1] == t {
                turn -= 1;
                next_advantage = 0.0;
                turn_rewards[turn] - value
            } else {
                self.gamma * next_value - value
            };
            next_advantage = error + self.gamma * self.lambda * next_advantage;
            next_value = value;
            advantage_t[t] = next_advantage;
            return_t[t] = next_advantage + value;
        }
    }
}

impl AdvantageEstimator for BiLevelGae {
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
        &[Column::Turns, Column::TurnRewards, Column::TokenRewards]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mask = batch.mask(self.name())?;
        let values = batch.tokens(Column::Values, self.name())?;
        let (mut advantages, mut returns) = (Ragged::default(), Ragged::default());
        let (mut advantage_t, mut return_t): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        let (mut ends, mut turn_rewards): (Vec<usize>, Vec<f64>) = (Vec::new(), Vec::new());
        for (i, (reward, mask_t)) in batch.rewards.values().iter().zip(mask.rows()).enumerate() {
            return_t.clear();
            return_t.resize(mask_t.len(), 0.0);
            if reward.is_nan() {
                advantages.push_row(return_t.iter().copied());
                returns.push_row(return_t.iter().copied());
                continue;
            }
            turn_ends(mask_t, batch.turns.map(|turns| turns.row(i)), &mut ends);
            credit(batch, i, mask_t, self.masked_rewards, &mut advantage_t);
            turn_rewards.clear();
            if let Some(rewards) = batch.turn_rewards {
                let (expected, actual) = (ends.len(), rewards.row(i).len());
                if expected != actual {
                    let column = Column::TurnRewards;
                    return Err(fault!(
                        "row {i} of column `{}` has {actual} values; expected {expected}",
                        column.name()
                    )
                    .into());
                }
                turn_rewards.extend_from_slice(rewards.row(i));
            } else {
                let mut start = 0;
                for &end in &ends {
                    turn_rewards.push(advantage_t[start..=end].iter().sum());
                    start = end + 1;
                }
            }
            advantage_t.fill(0.0);
            let value_t = values.row(i);
            self.trajectory(mask_t, value_t, &ends, &mut turn_rewards, &mut advantage_t, &mut return_t);
            advantages.push_row(advantage_t.iter().copied());
            returns.push_row(return_t.iter().copied());
        }
        if self.whiten {
            whitening::by_token(&mut advantages, mask, batch.rewards.values());
        }
        Ok(Estimate::per_token(advantages, returns, state))
    }
}
