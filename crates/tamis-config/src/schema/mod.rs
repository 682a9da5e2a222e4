//! The typed configuration: one plain struct per section, one enum per choice. Every key is defined once,
//! here, with its type, default, allowed values, whether it may change on resume, and its documentation; the
//! embedded `defaults.yaml`, the JSON Schema, the reference page and `tamis config explain` are generated
//! from these definitions.

mod checkpoint;
mod cluster;
mod correction;
mod critic;
mod data;
mod environment;
mod filter;
mod learner;
mod loggers;
mod model;
mod objective;
mod publish;
mod reward;
mod rollout;
mod run;
mod schedule;
mod sft;
mod simulate;
mod teacher;
mod train;
mod validate;

pub use checkpoint::{CheckpointConfig, KeepBestConfig};
pub use cluster::{ClusterConfig, LauncherKind};
pub use correction::{CorrectionConfig, CorrectionWeightsConfig, RejectionConfig};
pub use critic::{CriticConfig, CriticModelConfig, CriticOptimizerConfig};
pub use data::{ColumnsConfig, CurriculumConfig, DataConfig, GoldCheck};
pub use environment::{EnvironmentConfig, two_of_one_name};
pub use filter::FilterConfig;
pub use learner::{LearnerBackend, LearnerConfig, LearnerDtype, LoraBase, LoraConfig, MomentFormat};
pub use loggers::{
    ConsoleSettings, JsonlSettings, LoggerKind, MlflowSettings, OtlpSettings, PrometheusSettings,
    TensorboardSettings, TrackioSettings, WandbMode, WandbSettings,
};
pub use model::{InitConfig, ModelConfig};
pub use objective::{AdaptiveKlConfig, EntropyConfig, KlConfig, KlPlace, MasksConfig, ObjectiveConfig};
pub use publish::{PublishConfig, PublishMode, PublishVerify};
pub(crate) use reward::RAW_OUTCOME;
pub use reward::{RewardCommon, RewardConfig};
pub use rollout::{BackendKind, LaunchConfig, RolloutConfig, SaveRollouts};
pub use run::RunConfig;
pub use schedule::{ScheduleConfig, ScheduleMode, SurplusKind};
pub(crate) use sft::ENTRY as SFT_ENTRY;
pub use sft::{LossOn, SftColumnsConfig, SftConfig};
pub use simulate::{
    BetaRates, HistogramRates, RolloutRates, SimulateConfig, SimulatedDriftConfig, SimulatedLengthConfig,
    SimulatedPassRates, SimulatedPolicy, SimulatedPublicationConfig, SimulatedServersConfig,
    SimulatedTrainTimeConfig,
};
pub use teacher::TeacherConfig;
pub use train::{LrScheduleConfig, LrScheduleKind, OptimizerConfig, OptimizerConstants, TrainConfig};
pub use validate::{ValidateConfig, ValidationMetric};

use tamis_core::setting::PathKind;
use tamis_core::settings;
pub use tamis_env::environment::context::ContextMode;

use crate::hub_name::{DataSource, ModelSource, not_at};
use crate::path::PathText as _;
pub use crate::preset::Preset;
use crate::reader::Reader;
use crate::tree::Node;

settings! {
    /// A whole configuration.
    pub struct Config {
        /// A named algorithm. It sets objective, filter, schedule and reward shaping. Every key that it sets
        /// can be overridden; a run prints the overridden keys at the start.
        preset: Option<Preset> = None;
        /// The run itself: its name, folder, seed, threads and loggers.
        run: RunConfig = RunConfig::default();
        /// The policy that is trained and the reference for its KL divergence.
        model: ModelConfig = ModelConfig::default();
        /// Source of the prompts, and how many are drawn.
        data: DataConfig = DataConfig::default();
        /// The game of `data.task: environment`, which is played turn by turn. Null: a completion is one
        /// answer.
        environment: Option<EnvironmentConfig> = None;
        /// More environments in the same run, besides `environment`. Each has its own levels. An environment
        /// with `train_size: 0` is used only for validation.
        more_environments: Vec<EnvironmentConfig> = Vec::new();
        /// Supervised fine-tuning before reinforcement learning, or alone: on rows of your own, on gold
        /// answers, or on episodes that a script plays.
        sft: SftConfig = SftConfig::default();
        /// How completions are sampled.
        rollout: RolloutConfig = RolloutConfig::default();
        /// The engine or process in which the policy learns.
        learner: LearnerConfig = LearnerConfig::default();
        /// The launcher of the learner and of the servers: the run itself, one on this machine, or Ray.
        cluster: ClusterConfig = ClusterConfig::default(), Any, Free;
        /// How new weights reach the servers that sample completions.
        publish: PublishConfig = PublishConfig::default();
        /// The functions that score completions. The reward that is trained on is the weighted sum of their
        /// scores. If none of them is a verifier, that of `data.task` is added. A reward that the preset adds
        /// comes last, unless the list already has one of that kind.
        reward: Vec<RewardConfig> = Vec::new();
        /// Which groups are trained on, judged by one number of each trajectory. Null: all groups.
        filter: Option<FilterConfig> = None;
        /// When prompts are dispatched and how a training batch is filled.
        schedule: ScheduleConfig = ScheduleConfig::default();
        /// The objective: advantage, loss, aggregation, KL and entropy.
        objective: ObjectiveConfig = ObjectiveConfig::default();
        /// The models that the policy is distilled from, one or several by `data_source`. They are used by
        /// `objective.advantage.kind: on_policy_distillation` and by `add_distillation` in
        /// `objective.shaping`.
        teacher: Vec<TeacherConfig> = Vec::new();
        /// Mini-batches, optimizer, learning rate and length of the run.
        train: TrainConfig = TrainConfig::default();
        /// The critic of `gae` and `bi_level_gae`; without one of these there is none.
        critic: CriticConfig = CriticConfig::default();
        /// Measuring the policy on held-out prompts.
        validate: ValidateConfig = ValidateConfig::default(), Any, Free;
        /// How often checkpoints are saved, and which are kept.
        checkpoint: CheckpointConfig = CheckpointConfig::default(), Any, Free;
        /// The simulated data, servers and learner of `tamis simulate`. Null: the defaults of its keys. A run
        /// does not read it.
        simulate: Option<SimulateConfig> = None, Any, Free;
    }
}

impl Config {
    pub(crate) fn read(tree: &Node, reader: &mut Reader) -> Option<Self> {
        let mut config = reader.read(tree, "")?;
        note_paths(&mut config, tree);
        Some(config)
    }
}

/// Records, for every hub name, the path that the same text would be. The message for a model or data set
/// that is not found shows it.
fn note_paths(config: &mut Config, tree: &Node) {
    // The text as a path, unless it is marked as a name.
    let path_of = |node: &Node| {
        let text = node.as_text()?;
        not_at(text, PathKind::Path.resolve(text, &node.origin))
    };
    for (key, model) in [
        ("model.path", &mut config.model.path),
        ("model.reference", &mut config.model.reference),
        ("critic.model.path", &mut config.critic.model.path),
    ] {
        if let Some(ModelSource::Hub { not_at, .. }) = model {
            *not_at = tree.at(key).and_then(path_of);
        }
    }
    for (index, teacher) in config.teacher.iter_mut().enumerate() {
        if let Some(ModelSource::Hub { not_at, .. }) = &mut teacher.path {
            *not_at = tree.at(&format!("teacher.{index}.path")).and_then(path_of);
        }
    }
    for (key, sources) in [
        ("data.train", &mut config.data.train),
        ("data.val", &mut config.data.val),
        ("sft.data", &mut config.sft.data),
        ("sft.val", &mut config.sft.val),
    ] {
        for (index, source) in sources.0.iter_mut().enumerate() {
            if let DataSource::Hub { not_at, .. } = source {
                let item = tree.at(&format!("{key}.{index}")).or_else(|| tree.at(key));
                *not_at = item.and_then(path_of);
            }
        }
    }
}
