//! The optimal token baseline for trajectories with tool output: positions count the policy's own tokens.

use super::optimal_token_baseline::{OptimalTokenBaseline, Position, Tail};
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, MaskedRewards, Result,
    SingletonAdvantage,
};
use crate::entry::{Entry, Family};
use crate::setting::Named as _;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "tir_optimal_token_baseline",
    family: Family::Advantage,
    formula: "as optimal_token_baseline, t counting unmasked tokens only",
    source: "verl 0.9.1 core_algos.compute_multi_turn_optimal_token_baseline_advantage",
    degenerate: &[
        "as `optimal_token_baseline`; if no token is masked it is the same",
        "the tail is the same under both readings, since positions are counts",
    ],
    known_as: &[("verl", "algorithm.adv_estimator=tir_optimal_token_baseline")],
    differences: &[
        "verl adds 1e-8 to the weights (`epsilon: 1e-8`), keeps the raw reward of a singleton, and loses \
            rewards on masked tokens (`masked_rewards: lost`)",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// [`OptimalTokenBaseline`] with positions that count only unmasked tokens, so that the length of tool
    /// output shifts nothing.
    ///
    /// Source: verl 0.9.1 `tir_optimal_token_baseline`. Settings, shapes, cost and degenerate cases as
    /// [`OptimalTokenBaseline`].
    #[derive(Copy)]
    pub struct TirOptimalTokenBaseline {
        /// Baseline of the longest trajectory of a group beyond the second longest.
        tail: Tail = Tail::Zeroed;
        /// Number added to the sum of weights that divides the baseline (1e-8 in verl).
        epsilon: f64 = 0.0, NonNegative;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
        /// Token to which a reward on a masked token (tool or environment output) is assigned.
        masked_rewards: MaskedRewards = MaskedRewards::Credited;
    }
}

impl AdvantageEstimator for TirOptimalTokenBaseline {
    fn needs(&self) -> &'static [Column] {
        OptimalTokenBaseline::NEEDS
    }

    fn uses(&self) -> &'static [Column] {
        OptimalTokenBaseline::USES
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let Self { tail, epsilon, singleton, masked_rewards } = *self;
        let baseline = OptimalTokenBaseline { tail, epsilon, singleton, masked_rewards };
        baseline.by_position(Position::Unmasked, self.name(), batch, state)
    }
}
