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
mod simulate;
mod train;
mod validate;
mod warm_start;

pub use checkpoint::{CheckpointConfig, KeepBestConfig};
pub use cluster::{ClusterConfig, LauncherKind};
pub use correction::{CorrectionConfig, CorrectionWeightsConfig, RejectionConfig};
pub use critic::{CriticConfig, CriticModelConfig, CriticOptimizerConfig};
pub use data::{ColumnsConfig, CurriculumConfig, DataConfig, GoldCheck};
pub use environment::{EnvironmentConfig, two_of_one_name};
pub use filter::FilterConfig;
pub use learner::{LearnerBackend, LearnerConfig, LearnerDtype, LoraConfig};
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
pub use simulate::{
    BetaRates, HistogramRates, PassRates, RolloutRates, SimulateConfig, SimulatedDriftConfig,
    SimulatedLengthConfig, SimulatedPolicy, SimulatedPublicationConfig, SimulatedServersConfig,
    SimulatedTrainTimeConfig,
};
pub use train::{LrScheduleConfig, LrScheduleKind, OptimizerConfig, OptimizerConstants, TrainConfig};
pub use validate::{ValidateConfig, ValidationMetric};
pub use warm_start::WarmStartConfig;

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
        /// A named algorithm: it sets objective, filter, schedule and reward shaping. Everything it sets can
        /// be overridden; what is overridden is printed at the start.
        preset: Option<Preset> = None;
        /// The run itself: its name, folder, seed, threads and loggers.
        run: RunConfig = RunConfig::default();
        /// The policy that is trained and the reference it is held to.
        model: ModelConfig = ModelConfig::default();
        /// Where prompts come from and how many are drawn.
        data: DataConfig = DataConfig::default();
        /// The game of `data.task: environment`, played turn by turn. Null: a completion is one answer.
        environment: Option<EnvironmentConfig> = None;
        /// Further environments beside `environment`, in the same run, each with levels of its own; one with
        /// `train_size: 0` is validated in alone.
        more_environments: Vec<EnvironmentConfig> = Vec::new();
        /// A supervised phase before reinforcement learning, on gold answers or what a script plays in games.
        warm_start: WarmStartConfig = WarmStartConfig::default();
        /// How completions are sampled.
        rollout: RolloutConfig = RolloutConfig::default();
        /// Where the policy learns.
        learner: LearnerConfig = LearnerConfig::default();
        /// The launcher of the learner and of the servers: the run itself, one on this machine, or Ray.
        cluster: ClusterConfig = ClusterConfig::default(), Any, Free;
        /// How new weights reach the servers that sample.
        publish: PublishConfig = PublishConfig::default();
        /// The functions that score completions. The reward that is trained on is the weighted sum of their
        /// scores. Where none of them is a verifier, that of `data.task` is added. A reward that the preset
        /// adds comes last, unless the list has one of its kind.
        reward: Vec<RewardConfig> = Vec::new();
        /// Which groups are trained on, by one number of each trajectory. Null: all of them.
        filter: Option<FilterConfig> = None;
        /// When prompts are dispatched and how a training batch is filled.
        schedule: ScheduleConfig = ScheduleConfig::default();
        /// The objective: advantage, loss, aggregation, KL and entropy.
        objective: ObjectiveConfig = ObjectiveConfig::default();
        /// Mini-batches, optimizer, learning rate and length of the run.
        train: TrainConfig = TrainConfig::default();
        /// The critic of `gae` and `bi_level_gae`; without one of these there is none.
        critic: CriticConfig = CriticConfig::default();
        /// Measuring the policy on held-out prompts.
        validate: ValidateConfig = ValidateConfig::default(), Any, Free;
        /// How often checkpoints are saved, and which are kept.
        checkpoint: CheckpointConfig = CheckpointConfig::default(), Any, Free;
        /// The world in which `tamis simulate` tries schedules out. Null: that of the defaults of its keys. A
        /// run does not read it.
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

/// Notes for every name where the same text would be as a path, for the message if nothing is found.
fn note_paths(config: &mut Config, tree: &Node) {
    // The path that a text is, if it is not marked as a name.
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
    for (key, sources) in [("data.train", &mut config.data.train), ("data.val", &mut config.data.val)] {
        for (index, source) in sources.0.iter_mut().enumerate() {
            if let DataSource::Hub { not_at, .. } = source {
                let item = tree.at(&format!("{key}.{index}")).or_else(|| tree.at(key));
                *not_at = item.and_then(path_of);
            }
        }
    }
}
