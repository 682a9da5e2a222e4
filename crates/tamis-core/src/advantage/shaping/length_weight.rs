//! Long trajectories get smaller weights.

use super::{ShapeAdvantages, Shaped, ShapingBatch};
use crate::advantage::Column;
use crate::entry::{Entry, Family};
use crate::settings;
use crate::whole_step::WholeStep;

pub(in crate::advantage) const ENTRY: Entry = Entry {
    name: "length_weight",
    family: Family::Shaping,
    formula: "A = A·mean(L)/L, L the tokens trained on",
    source: "RAGEN grpo_advantage_length_weight",
    degenerate: &[
        "trajectories without a token to train on, and unscored ones, are left out of the mean and keep their advantage",
    ],
    known_as: &[("RAGEN", "grpo_advantage_length_weight=True")],
    differences: &[
        "RAGEN adds 1e-6 to each length, counts unscored trajectories in the mean, and applies the weights only with the estimator grpo",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Divides each trajectory's advantages by its length over the mean length of the batch, so that every
    /// trajectory moves a sum over tokens by the same amount.
    ///
    /// Source: RAGEN `grpo_advantage_length_weight`. Linear. Lengths are tokens trained on.
    #[derive(Copy)]
    pub struct LengthWeight {}
}

impl ShapeAdvantages for LengthWeight {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::MeanLength)
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::Lengths]
    }

    /// Scales advantages by the mean length over the trajectory's own.
    fn change(&self, shaped: &mut Shaped, batch: &ShapingBatch<'_>) {
        let batch = &batch.batch;
        let rewards = batch.rewards.values();
        let lengths: Vec<f64> = rewards
            .iter()
            .enumerate()
            .map(|(i, reward)| if reward.is_nan() { 0.0 } else { batch.length(i) as f64 })
            .collect();
        let count = lengths.iter().filter(|&&length| length > 0.0).count();
        let mean = lengths.iter().sum::<f64>() / count as f64;
        shaped.scale(|i| if lengths[i] > 0.0 { mean / lengths[i] } else { 1.0 });
    }
}
