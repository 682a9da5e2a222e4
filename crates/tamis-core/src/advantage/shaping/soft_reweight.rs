//! Weights groups by how much their rewards differ.

use super::{ShapeAdvantages, Shaped, ShapingBatch};
use crate::advantage::statistics::Moments;
use crate::entry::{Entry, Family};
use crate::settings;
use crate::whole_step::WholeStep;

pub(in crate::advantage) const ENTRY: Entry = Entry {
    name: "soft_reweight",
    family: Family::Shaping,
    formula: "A = A·std_g/(max_g(std_g) + epsilon)",
    source: "RAGEN algorithm.soft_advantage_reweight",
    degenerate: &[
        "groups with fewer than ddof + 1 scored members have weight 0, and so has every group if none has a deviation",
    ],
    known_as: &[("RAGEN", "algorithm.soft_advantage_reweight=True")],
    differences: &[
        "RAGEN gives a group of one the weight NaN, and applies the weights only with the estimator grpo",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Multiplies the advantages of each group by `std_g/(max std + epsilon)`, the soft form of dropping
    /// groups of low deviation.
    ///
    /// Source: RAGEN `soft_advantage_reweight`. Linear. Metrics `train/soft_reweight_min`, `_max` and `_mean`
    /// over groups. Together with `grpo`'s own division by the deviation the two cancel up to a constant.
    #[derive(Copy)]
    pub struct SoftReweight {
        /// Delta degrees of freedom of the deviation.
        ddof: u8 = 1, Between(0.0, 1.0);
        /// Number added to the largest deviation, which divides the others.
        epsilon: f64 = 1e-6, NonNegative;
    }
}

impl ShapeAdvantages for SoftReweight {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::LargestDeviation)
    }

    fn change(&self, shaped: &mut Shaped, batch: &ShapingBatch<'_>) {
        let rewards = batch.batch.rewards;
        // NaN, if there is no deviation, becomes 0.
        let deviation = |rewards_g| Moments::of(rewards_g).deviation(self.ddof).max(0.0);
        let mut weights: Vec<f64> = rewards.rows().map(deviation).collect();
        let largest = weights.iter().fold(0.0_f64, |largest, weight| largest.max(*weight));
        let divisor = largest + self.epsilon;
        for weight in &mut weights {
            *weight = if divisor > 0.0 { *weight / divisor } else { 0.0 };
        }
        if !weights.is_empty() {
            let min = weights.iter().fold(f64::INFINITY, |min, weight| min.min(*weight));
            let max = weights.iter().fold(0.0_f64, |max, weight| max.max(*weight));
            let mean = weights.iter().sum::<f64>() / weights.len() as f64;
            shaped.metrics.extend([
                ("train/soft_reweight_min", min),
                ("train/soft_reweight_max", max),
                ("train/soft_reweight_mean", mean),
            ]);
        }
        let mut of_trajectory = Vec::with_capacity(rewards.num_values());
        for (rewards_g, weight) in rewards.rows().zip(&weights) {
            of_trajectory.extend(std::iter::repeat_n(*weight, rewards_g.len()));
        }
        shaped.scale(|i| of_trajectory[i]);
    }
}
