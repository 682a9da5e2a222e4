//! Assigns rewards to tokens, and sums the rewards from each token on.

use super::AdvantageBatch;
use crate::choice;
use crate::ragged::Ragged;

choice! {
    /// Token to which a reward on a masked token (tool or environment output) is assigned.
    pub enum MaskedRewards {
        /// The last token of the policy before it, which caused it. Before the first such token the reward is
        /// lost.
        Credited = "credited",
        /// None: such rewards are lost, as in verl's `gae`, `reinforce_plus_plus`, `remax` and token
        /// baselines.
        Lost = "lost",
    }
}

/// Writes the rewards of trajectory i to the unmasked tokens to which they belong, in the caller's vector
/// \[T\]; 0 at masked tokens.
///
/// Without rewards per token the trajectory's reward goes to its last unmasked token.
pub(crate) fn credit(
    batch: &AdvantageBatch<'_>,
    i: usize,
    mask_t: &[bool],
    masked: MaskedRewards,
    credit_t: &mut Vec<f64>,
) {
    credit_t.clear();
    credit_t.resize(mask_t.len(), 0.0);
    let Some(rewards) = batch.token_rewards else {
        if let Some(last) = mask_t.iter().rposition(|&on| on) {
            credit_t[last] = batch.rewards.values()[i];
        }
        return;
    };
    let mut owner = None;
    for (t, (&reward, &on)) in rewards.row(i).iter().zip(mask_t).enumerate() {
        if on {
            owner = Some(t);
        } else if masked == MaskedRewards::Lost {
            continue;
        }
        if let Some(owner) = owner {
            credit_t[owner] += reward;
        }
    }
}

/// Turns credits into discounted rewards to go, in place: `G_t = c_t + gamma·G_next`, with next the next
/// unmasked token; 0 at masked tokens.
fn rewards_to_go(credit_t: &mut [f64], mask_t: &[bool], gamma: f64) {
    let mut to_go = 0.0;
    for (credit, &on) in credit_t.iter_mut().zip(mask_t).rev() {
        if on {
            to_go = *credit + gamma * to_go;
            *credit = to_go;
        }
    }
}

/// Rewards to go of every trajectory of a batch `[B][T]`: the sum of the rewards from each unmasked token on,
/// as assigned by [`credit`]. 0 at masked tokens, and everywhere in unscored trajectories.
pub(crate) fn returns(
    batch: &AdvantageBatch<'_>,
    mask: &Ragged<bool>,
    masked: MaskedRewards,
    gamma: f64,
) -> Ragged<f64> {
    let (mut returns, mut credit_t) = (Ragged::default(), Vec::new());
    for (i, (reward, mask_t)) in batch.rewards.values().iter().zip(mask.rows()).enumerate() {
        credit(batch, i, mask_t, masked, &mut credit_t);
        if reward.is_nan() {
            credit_t.fill(0.0);
        }
        rewards_to_go(&mut credit_t, mask_t, gamma);
        returns.push_row(credit_t.iter().copied());
    }
    returns
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "sums of small integers are exact")]
mod tests {
    use super::*;

    const MASK: [bool; 6] = [false, true, true, false, true, false];

    fn credits(token_rewards: Option<[f64; 6]>, masked: MaskedRewards) -> Vec<f64> {
        let rewards = Ragged::from_rows([[7.0]]);
        let token_rewards = token_rewards.map(|row| Ragged::from_rows([row]));
        let batch =
            AdvantageBatch { token_rewards: token_rewards.as_ref(), ..AdvantageBatch::of_rewards(&rewards) };
        let mut credit_t = Vec::new();
        credit(&batch, 0, &MASK, masked, &mut credit_t);
        credit_t
    }

    #[test]
    fn rewards_on_masked_tokens_belong_to_the_token_before() {
        let rewards = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
        assert_eq!(credits(Some(rewards), MaskedRewards::Credited), [0.0, 2.0, 12.0, 0.0, 48.0, 0.0]);
        assert_eq!(credits(Some(rewards), MaskedRewards::Lost), [0.0, 2.0, 4.0, 0.0, 16.0, 0.0]);
        // An outcome is at the last token of the policy, whatever follows it.
        assert_eq!(credits(None, MaskedRewards::Lost), [0.0, 0.0, 0.0, 0.0, 7.0, 0.0]);
    }

    #[test]
    fn unscored_trajectories_return_nothing() {
        let rewards = Ragged::from_rows([[7.0, f64::NAN]]);
        let mask = Ragged::from_rows([MASK, MASK]);
        let returns = returns(&AdvantageBatch::of_rewards(&rewards), &mask, MaskedRewards::Credited, 0.5);
        assert_eq!(returns.row(0), [0.0, 1.75, 3.5, 0.0, 7.0, 0.0]);
        assert_eq!(returns.row(1), [0.0; 6]);
    }

    #[test]
    fn the_discount_does_not_count_masked_tokens() {
        let mut to_go = [0.0, 2.0, 12.0, 0.0, 48.0, 0.0];
        rewards_to_go(&mut to_go, &MASK, 0.5);
        assert_eq!(to_go, [0.0, 20.0, 36.0, 0.0, 48.0, 0.0]);
    }
}
