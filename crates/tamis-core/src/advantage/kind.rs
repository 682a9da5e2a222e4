//! The estimators by name, as a configuration selects them; one line registers one.

use super::{
    AdvantageEstimator, BatchMean, BiLevelGae, Bnpo, BnpoRunning, Cpo, DrGrpo, Gae, Gdpo, Gpg, Grpo,
    GrpoPassk, NormalizeThenSum, OnPolicyDistillation, Opo, OptimalTokenBaseline, PythonAdvantage,
    ReinforcePlusPlus, ReinforcePlusPlusBaseline, Remax, Rloo, TirOptimalTokenBaseline,
};
use crate::tagged;

tagged! {
    /// How advantages are computed from rewards.
    pub enum Advantage: AdvantageEstimator, default Grpo {
        /// The reward less the mean of its group, over the group's deviation (DeepSeekMath, arXiv
        /// 2402.03300).
        Grpo(Grpo) = "grpo",
        /// The reward less the mean of its group, not divided by its deviation (arXiv 2503.20783).
        DrGrpo(DrGrpo) = "dr_grpo",
        /// The best of a group gets its lead over the second, all others 0 (arXiv 2503.19595).
        GrpoPassk(GrpoPassk) = "grpo_passk",
        /// The reward less the mean of the other members of its group (arXiv 2402.14740).
        Rloo(Rloo) = "rloo",
        /// Discounted rewards to go of every token, whitened over the tokens of the batch; groups are ignored
        /// (arXiv 2501.03262).
        ReinforcePlusPlus(ReinforcePlusPlus) = "reinforce_plus_plus",
        /// The reward less the mean of its group, whitened over the tokens of the batch (arXiv 2501.03262).
        ReinforcePlusPlusBaseline(ReinforcePlusPlusBaseline) = "reinforce_plus_plus_baseline",
        /// The reward less the mean of the batch; groups are ignored, so one completion per prompt is enough
        /// (FlashREINFORCE).
        BatchMean(BatchMean) = "batch_mean",
        /// The reward less that of a greedy completion of the same prompt (arXiv 2310.10505).
        Remax(Remax) = "remax",
        /// The reward less the length-weighted mean of its group, the baseline of least variance (arXiv
        /// 2505.23585).
        Opo(Opo) = "opo",
        /// The reward less the mean of its group, scaled up by the share of trajectories without signal
        /// (arXiv 2504.02546).
        Gpg(Gpg) = "gpg",
        /// Each of several rewards normalised within its group, their weighted sum whitened over the tokens
        /// of the batch (arXiv 2601.05242).
        Gdpo(Gdpo) = "gdpo",
        /// Each of several rewards normalised within its group, their weighted sum normalised over the
        /// trajectories of the batch: TRL's form of `gdpo`
        /// (`multi_objective_aggregation: normalize_then_sum`).
        NormalizeThenSum(NormalizeThenSum) = "normalize_then_sum",
        /// The reward to go less its group mean at the same position, weighted by the gradient energy of each
        /// trajectory so far (arXiv 2602.07078).
        OptimalTokenBaseline(OptimalTokenBaseline) = "optimal_token_baseline",
        /// `optimal_token_baseline` for several turns, with positions counted over the policy's own tokens.
        TirOptimalTokenBaseline(TirOptimalTokenBaseline) = "tir_optimal_token_baseline",
        /// Exponentially weighted sums of a critic's errors, whitened over the tokens of the batch
        /// (generalised advantage estimation, arXiv 1506.02438).
        Gae(Gae) = "gae",
        /// GAE over the turns of an episode, and within each turn over its tokens, with the turn's return as
        /// their reward.
        BiLevelGae(BiLevelGae) = "bi_level_gae",
        /// The reward less its group's success rate, over the density of a Beta distribution fitted to the
        /// success rates of all prompts of the step (arXiv 2506.02864).
        Bnpo(Bnpo) = "bnpo",
        /// The reward less a success rate estimated over recent steps, over the deviation of a Bernoulli of
        /// that rate.
        BnpoRunning(BnpoRunning) = "bnpo_running",
        /// GRPO's advantage, changed by how much the gold answer in the prompt raises or lowers the
        /// log-probability of the completion.
        Cpo(Cpo) = "cpo",
        /// The log-probability of each sampled token under a teacher, less that under the policy; rewards are
        /// only reported (on-policy distillation).
        OnPolicyDistillation(OnPolicyDistillation) = "on_policy_distillation",
        /// Advantages of your own: a Python function gets the rewards of a step's groups and returns one
        /// number for each trajectory or token.
        Python(PythonAdvantage) = "python",
    }
}

impl Advantage {
    /// Every estimator that works with its defaults, in the order of the catalogue: all but `python`.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().filter_map(|name| Self::of_name(name)).collect()
    }

    /// The estimator of a name, with its defaults; `None` if there is none, or if it needs a key.
    ///
    /// ```
    /// use tamis_core::advantage::{Advantage, Column};
    /// let remax = Advantage::of_name("remax").ok_or("no such estimator")?;
    /// assert_eq!(remax.needs(), [Column::GreedyRewards]);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn of_name(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::json!({ "kind": name })).ok()
    }
}
