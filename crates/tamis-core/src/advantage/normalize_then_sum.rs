//! Several rewards, normalised as in TRL: each within its group, then their sum over the batch.

use super::gdpo::normalised_sum;
use super::statistics::Moments;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, Result, SingletonAdvantage,
};
use crate::entry::{Entry, Family};
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "normalize_then_sum",
    family: Family::Advantage,
    formula: "S_i = sum_k w_k·(R_ki - mean(R_k))/(std(R_k) + epsilon) within the group, A_i = (S_i - \
        mean(S)) / (std(S) + epsilon) over the batch",
    source: "Liu et al., GDPO, arXiv 2601.05242, as TRL 1.16 computes it",
    degenerate: &[
        "without components the reward itself is the only one",
        "a component without an answer for a member adds 0 to it, and so does one that is uniform, or \
            answered for one member, in the group",
        "unscored members are left out and get 0; if all sums of the batch are equal every advantage is 0",
        "a group of one has sum 0, or with `singleton: raw` that of its raw rewards over 1 + epsilon",
    ],
    known_as: &[("TRL", "multi_objective_aggregation=normalize_then_sum")],
    differences: &[
        "TRL computes deviations of uniform groups in floating point, so that rounding noise over epsilon \
            can become an advantage; here it is zero",
        "verl's form of the same paper whitens over tokens: see `gdpo`",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// `S_i = Σ_k w_k·z_ki` with `z_k` the GRPO advantage of component k by itself, then
    /// `A_i = (S_i - mean(S))/(std(S) + epsilon)` over the batch.
    ///
    /// Source: Liu et al., arXiv 2601.05242, as TRL computes it; sample deviations throughout.
    ///
    /// Shapes: components K × `[P][G]` to advantages `[P][G]`, linear in K·B. Degenerate cases: see the
    /// catalogue's entry.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, NormalizeThenSum};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[3.0, 1.0], [0.5, 0.5]]);
    /// let advantages = NormalizeThenSum { epsilon: 0.0, ..NormalizeThenSum::default() }
    ///     .advantages(&AdvantageBatch::of_rewards(&rewards))?;
    /// // Within groups ±1/√2, 0, 0: sample deviation 1/√3 over the batch.
    /// assert!((advantages.values()[0] - 1.5_f64.sqrt()).abs() < 1e-15);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct NormalizeThenSum {
        /// Number added to the deviation of each reward and to that of the sums.
        epsilon: f64 = 1e-4, NonNegative;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

impl AdvantageEstimator for NormalizeThenSum {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::Whitening)
    }

    fn uses(&self) -> &'static [Column] {
        &[Column::Components]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mut advantages = normalised_sum(batch, self.epsilon, self.singleton)?;
        let moments = Moments::of(advantages.values());
        let divisor = moments.deviation(1) + self.epsilon;
        for group in 0..advantages.num_rows() {
            for sum in advantages.row_mut(group) {
                *sum = if moments.is_uniform() { 0.0 } else { (*sum - moments.mean) / divisor };
            }
        }
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
