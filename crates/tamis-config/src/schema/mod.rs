//! The typed configuration: one plain struct per section, one enum per choice. Every key is defined once, here, with its
//! type, default, allowed values, whether it may change on resume, and its documentation; the embedded `defaults.yaml`, the JSON Schema, the
//! reference page and `tamis config explain` are generated from these definitions.

mod advantage;
mod checkpoint;
mod correction;
mod critic;
mod data;
mod early_stop;
mod filter;
mod model;
mod objective;
mod publish;
mod reward;
mod rollout;
mod run;
mod schedule;
mod train;
mod validate;
mod warm_start;

pub use advantage::{
    AdvantageConfig, AdvantageScale, BaselineTail, CpoWrap, Estimator, GpgAlpha, LossScaling, MaskedRewards,
    ShapingConfig, SingletonAdvantage,
};
pub use checkpoint::{CheckpointConfig, KeepBestConfig};
pub use correction::{
    CorrectionConfig, CorrectionLevel, CorrectionPreset, CorrectionWeightsConfig, OutsideBounds,
    RejectionConfig,
};
pub use critic::{CriticConfig, CriticModelConfig, CriticOptimizerConfig};
pub use data::{
    ArithmeticConfig, ArithmeticLevel, BadRows, BinaryColumns, ColumnsConfig, DataConfig, GoldCheck,
    Operator, OverlongPrompts, PromptFormat, TaskKind,
};
pub use early_stop::{
    CollapseForm, EarlyStopConfig, EmptyStepsConfig, LowSuccessConfig, RewardCollapseConfig,
};
pub use filter::FilterConfig;
pub use model::{Architecture, InitConfig, ModelConfig, SaveDtype};
pub use objective::{
    AdaptiveEntropyConfig, AdaptiveKlConfig, Aggregation, CispoBound, EntropyConfig, GspoForm,
    ImportanceLevel, KlConfig, KlEstimator, KlPlace, LossConfig, LossKind, MasksConfig, ObjectiveConfig,
    ZeroGroups,
};
pub use publish::{PublishConfig, PublishPause, PublishVerify};
pub(crate) use reward::RAW_OUTCOME;
pub use reward::{Gsm8kMethod, OverlongForm, PythonStyle, RewardCommon, RewardConfig, RewardKind};
pub use rollout::{BackendKind, LaunchConfig, RolloutConfig, SaveRollouts};
pub use run::{LoggerKind, RunConfig};
pub use schedule::{FillOrder, OnExhausted, OnLimit, ScheduleConfig, ScheduleMode, SelectorKind, Surplus};
pub use train::{LrScheduleConfig, LrScheduleKind, OptimizerConfig, TrainConfig};
pub use validate::{ValidateConfig, ValidationMetric};
pub use warm_start::WarmStartConfig;

use crate::define::{choice, section};

choice! {
    /// A named algorithm: what it sets is under the user's own settings and over the defaults.
    pub enum Preset {
        /// GRPO as published (DeepSeekMath, 2402.03300): mean over sequences, KL in the loss, symmetric clipping.
        Grpo = "grpo",
        /// DAPO as released (verl's recipe for 2503.14476): clip 0.2/0.28, token mean over the mini-batch, soft overlong
        /// punishment, dynamic sampling, no KL.
        Dapo = "dapo",
        /// DAPO as its paper writes it: the token mean is taken per group.
        DapoPaper = "dapo_paper",
        /// Dr. GRPO (2503.20783): no division by deviation or length.
        DrGrpo = "dr_grpo",
        /// RLOO (2402.14740): the others of the group as baseline, plain policy gradient, KL in the reward.
        Rloo = "rloo",
        /// REINFORCE++ (2501.03262): rewards to go with the KL per token, whitened over the batch.
        ReinforcePlusPlus = "reinforce_plus_plus",
        /// REINFORCE++ with the mean of the group as baseline (2501.03262).
        ReinforcePlusPlusBaseline = "reinforce_plus_plus_baseline",
        /// ReMax (2310.10505): a greedy completion as baseline.
        Remax = "remax",
        /// OPO (2505.23585): the length-weighted mean of the group as baseline, exactly on-policy.
        Opo = "opo",
        /// GPG (2504.02546): the plain policy gradient, scaled by the share of groups with signal.
        Gpg = "gpg",
        /// BNPO (2506.02864): rewards normalised by a Beta distribution over the prompts of the step.
        Bnpo = "bnpo",
        /// GSPO (2507.18071): the clipped ratio of the whole trajectory.
        Gspo = "gspo",
        /// GMPO (2507.20673): the geometric mean of clipped ratios.
        Gmpo = "gmpo",
        /// CISPO (MiniMax-M1, 2506.13585): the policy gradient weighted by the bounded ratio, dynamic sampling.
        Cispo = "cispo",
        /// SAPO (2511.20347): a soft gate in place of the clip.
        Sapo = "sapo",
        /// PPO (1707.06347) as language models are trained with it (2203.02155): a critic, GAE, KL per token in the reward.
        Ppo = "ppo",
    }
}

section! {
    /// A whole configuration.
    pub struct Config {
        /// A named algorithm: it sets objective, filter, schedule and reward shaping. Everything it sets can be overridden; what is
        /// overridden is printed at the start.
        preset: Option<Preset> = "null", Any, Fixed;
        /// The run itself: its name, folder, seed, threads and loggers.
        run: RunConfig = "{}", Any, Fixed;
        /// The policy that is trained and the reference it is held to.
        model: ModelConfig = "{}", Any, Fixed;
        /// Where prompts come from and how many are drawn.
        data: DataConfig = "{}", Any, Fixed;
        /// A supervised phase before reinforcement learning.
        warm_start: WarmStartConfig = "{}", Any, Fixed;
        /// How completions are sampled.
        rollout: RolloutConfig = "{}", Any, Fixed;
        /// How new weights reach the servers that sample.
        publish: PublishConfig = "{}", Any, Fixed;
        /// The functions that score completions. The reward that is trained on is the weighted sum of their scores. Where none of
        /// them is a verifier, the one of `data.task` is added, and what a preset adds follows, unless the list has its
        /// kind.
        reward: Vec<RewardConfig> = "[]", Any, Fixed;
        /// The sieve of groups. Null: every group is trained on.
        filter: Option<FilterConfig> = "null", Any, Fixed;
        /// When prompts are dispatched and how a batch is filled.
        schedule: ScheduleConfig = "{}", Any, Fixed;
        /// What is optimised.
        objective: ObjectiveConfig = "{}", Any, Fixed;
        /// Mini-batches, optimizer, learning rate and length of the run.
        train: TrainConfig = "{}", Any, Fixed;
        /// The critic of `gae` and `bi_level_gae`; without one of these there is none.
        critic: CriticConfig = "{}", Any, Fixed;
        /// Measuring the policy on held-out prompts.
        validate: ValidateConfig = "{}", Any, Free;
        /// What is saved and what is kept.
        checkpoint: CheckpointConfig = "{}", Any, Free;
    }
}
