//! The estimators by name, as a configuration chooses them: one line registers one.

use super::{
    AdvantageEstimator, BiLevelGae, Bnpo, BnpoRunning, Cpo, DrGrpo, Gae, Gdpo, Gpg, Grpo, GrpoPassk,
    NormalizeThenSum, Opo, OptimalTokenBaseline, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Remax, Rloo,
    TirOptimalTokenBaseline,
};
use crate::tagged;

tagged! {
    /// How advantages are computed from rewards.
    pub enum Advantage: AdvantageEstimator, default Grpo {
        /// The reward against the mean of its group, over its deviation (DeepSeekMath, arXiv 2402.03300).
        Grpo(Grpo) = "grpo",
        /// The reward against the mean of its group (arXiv 2503.20783).
        DrGrpo(DrGrpo) = "dr_grpo",
        /// The lead of the best of a group over the second (arXiv 2503.19595).
        GrpoPassk(GrpoPassk) = "grpo_passk",
        /// The reward against the mean of the others of its group (arXiv 2402.14740).
        Rloo(Rloo) = "rloo",
        /// Discounted rewards to go, whitened over the batch (arXiv 2501.03262).
        ReinforcePlusPlus(ReinforcePlusPlus) = "reinforce_plus_plus",
        /// The reward against the mean of its group, whitened over the batch (arXiv 2501.03262).
        ReinforcePlusPlusBaseline(ReinforcePlusPlusBaseline) = "reinforce_plus_plus_baseline",
        /// The reward against that of a greedy completion of the same prompt (arXiv 2310.10505).
        Remax(Remax) = "remax",
        /// The reward against the length-weighted mean of its group (arXiv 2505.23585).
        Opo(Opo) = "opo",
        /// The reward against the mean of its group, scaled by the share of groups with signal (arXiv
        /// 2504.02546).
        Gpg(Gpg) = "gpg",
        /// Each reward normalised in its group, summed, whitened over the batch (arXiv 2601.05242).
        Gdpo(Gdpo) = "gdpo",
        /// Each reward normalised in its group, then the sum by the batch: `gdpo` as TRL has it
        /// (`multi_objective_aggregation: normalize_then_sum`).
        NormalizeThenSum(NormalizeThenSum) = "normalize_then_sum",
        /// Rewards to go against the baseline of least variance at each token (arXiv 2602.07078).
        OptimalTokenBaseline(OptimalTokenBaseline) = "optimal_token_baseline",
        /// `optimal_token_baseline` for several turns: tool output does not count as a position.
        TirOptimalTokenBaseline(TirOptimalTokenBaseline) = "tir_optimal_token_baseline",
        /// Generalised advantage estimation with a critic (arXiv 1506.02438).
        Gae(Gae) = "gae",
        /// `gae` over turns, then over the tokens of each turn.
        BiLevelGae(BiLevelGae) = "bi_level_gae",
        /// Beta normalisation with parameters fitted to all prompts of the step (arXiv 2506.02864).
        Bnpo(Bnpo) = "bnpo",
        /// The reward against the success rate of recent steps, over its deviation.
        BnpoRunning(BnpoRunning) = "bnpo_running",
        /// `grpo` moved by the contrast with the policy that has seen the gold answer.
        Cpo(Cpo) = "cpo",
    }
}

impl Advantage {
    /// Every estimator with its defaults, in the order of the catalogue.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name)).collect()
    }

    /// The estimator of a name, with its defaults.
    ///
    /// ```
    /// use tamis_core::advantage::{Advantage, Column};
    /// let remax = Advantage::named("remax").ok_or("no such estimator")?;
    /// assert_eq!(remax.needs(), [Column::GreedyRewards]);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::json!({ "kind": name })).ok()
    }
}
