//! Several rewards, each normalised within its group before they are summed, then whitened over tokens.

use super::error::in_range;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, Grpo, Result, Scale,
    SingletonAdvantage, whitening,
};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "gdpo",
    family: Family::Advantage,
    formula: "S_i = sum_k w_k·(R_ki - mean(R_k))/(std(R_k) + epsilon) within the group, A_i = (S_i - \
        mean(S)) / sqrt(var(S) + 1e-8) over the batch, each S as often as its tokens",
    source: "Liu et al., GDPO: group reward-decoupled normalization policy optimization, arXiv 2601.05242",
    degenerate: &[
        "without components the reward itself is the only one",
        "a component without an answer for a member adds 0 to it, and so does one that is uniform in the \
            group; unscored members are left out and get 0",
        "if all sums of the batch are equal, or there are fewer than two tokens, every advantage is 0",
        "a group of one has sum 0, or with `singleton: raw` that of its raw rewards over 1 + epsilon",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=gdpo"),
        ("TRL", "multi_objective_aggregation=normalize_then_sum"),
    ],
    differences: &[
        "TRL whitens over trajectories instead of tokens, with deviation + 1e-4: see `normalize_then_sum`",
        "verl keeps the raw reward of a singleton (`singleton: raw`), adds 1e-8 to the number of tokens, and works in single precision",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Group-decoupled normalisation: `S_i = Σ_k w_k·z_ki`, with `z_k` the GRPO advantage of component k by
    /// itself, whitened over tokens.
    ///
    /// Source: Liu et al., arXiv 2601.05242: summing rewards before normalising them lets different
    /// combinations collapse into one advantage.
    ///
    /// Shapes: components K × `[P][G]` and lengths \[B\] to advantages `[P][G]`; linear in K·B. Degenerate
    /// cases: see the catalogue's entry.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Component, Gdpo};
    /// use tamis_core::ragged::Ragged;
    /// let (acc, format) = (Ragged::from_rows([[1.0, 0.0]]), Ragged::from_rows([[0.0, 1.0]]));
    /// let components = [
    ///     Component { name: "acc", weight: 3.0, rewards: &acc },
    ///     Component { name: "format", weight: 1.0, rewards: &format },
    /// ];
    /// let sum = Ragged::from_rows([[3.0, 1.0]]);
    /// let batch = AdvantageBatch {
    ///     lengths: Some(&[5, 5]),
    ///     components: Some(&components),
    ///     ..AdvantageBatch::of_rewards(&sum)
    /// };
    /// let gdpo = Gdpo { epsilon: 0.0, whiten: false, ..Gdpo::default() };
    /// // Each component by itself is ±1/√2; 3 - 1 = 2 of them.
    /// assert!((gdpo.advantages(&batch)?.values()[0] - 2.0_f64.sqrt()).abs() < 1e-15);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Gdpo {
        /// Number added to the deviation that divides each reward.
        epsilon: f64 = 1e-6, NonNegative;
        /// Whiten the sums over the tokens of the batch: mean 0, deviation 1.
        whiten: bool = true;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

/// Weighted sum over components of their advantages within the group; NaN for unscored members.
pub(super) fn normalised_sum(
    batch: &AdvantageBatch<'_>,
    epsilon: f64,
    singleton: SingletonAdvantage,
) -> Result<Ragged<f64>> {
    let grpo = Grpo { scale: Scale::Group, ddof: 1, epsilon, singleton, ..Grpo::default() };
    let mut sums = match batch.components {
        None => grpo.of(batch.rewards, None),
        Some(components) => {
            let mut total = vec![0.0; batch.num_trajectories()];
            for component in components {
                let fine = component.weight.is_finite();
                in_range("component weight", component.weight, fine, "a finite number")?;
                for (total, advantage) in
                    total.iter_mut().zip(grpo.of(&batch.component(component), None).values())
                {
                    *total += component.weight * advantage;
                }
            }
            batch.rewards.cut_alike(total)
        }
    };
    for group in 0..sums.num_rows() {
        for (sum, reward) in sums.row_mut(group).iter_mut().zip(batch.rewards.row(group)) {
            if reward.is_nan() {
                *sum = f64::NAN;
            }
        }
    }
    Ok(sums)
}

impl AdvantageEstimator for Gdpo {
    fn whole_step(&self) -> Option<WholeStep> {
        self.whiten.then_some(WholeStep::Whitening)
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::Lengths]
    }

    fn uses(&self) -> &'static [Column] {
        &[Column::Components]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mut advantages = normalised_sum(batch, self.epsilon, self.singleton)?;
        if self.whiten {
            whitening::by_length(&mut advantages, |i| batch.length(i));
        }
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
