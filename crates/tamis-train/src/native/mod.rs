//! The native engine as a learner and, beside it, as a generator. Both share one set of weights, so a run is
//! exactly on-policy.

mod files;
mod generate;
mod generator;
mod learner;

pub use files::read_model;
pub(crate) use files::{critic_shape, write_folder, write_model};

use std::path::Path;
use std::sync::Arc;

use tamis_core::figure::counted;
use tamis_core::group::PolicyVersion;
use tamis_model::{
    AdamW, AdamWConfig, CheckpointError, Gradients, HeldPass, Model, Threads, TransformerConfig, Workspace,
    measure_peak,
};
use tamis_rollout::Generator;

use generate::OpenSamples;
use generator::{NativeGenerator, SharedWeights};

use crate::checkpoint::SaveError;
use crate::interrupt::Interrupt;
use crate::learner::progress::UpdateProgress;
use crate::learner::texts::TextPlaces;
use crate::learner::wire::{OpenRequest, WireCritic};
use crate::learner::work::{TrainingWork, WorkTally};
use crate::learner::{LearnerError, LearnerInfo, NetworkSizes, RunLearner, Trained};
use crate::prompts::codec::Codec;
use tamis_run::durable::Disk;

/// Settings of the native engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSettings {
    /// Worker threads. Results do not depend on their number.
    pub threads: usize,
    /// Temperature of log-probabilities, which is that of rollouts.
    pub temperature: f64,
    /// Largest norm of the gradient.
    pub max_grad_norm: Option<f64>,
    /// Recompute activations in the backward pass.
    pub recompute_activations: bool,
    /// Sequences that are generated at the same time.
    pub max_num_seqs: usize,
    /// The same limit for a controller in another process; `None`: it generates nothing here.
    pub max_open_samples: Option<usize>,
    /// Constants of the policy's optimizer.
    pub optimizer: AdamWConfig,
    /// Optimizer constants and largest gradient norm of the critic; `None` if the run has no critic.
    pub critic: Option<(AdamWConfig, Option<f64>)>,
}

/// Initial models of a native learner.
pub struct NativeModels {
    /// The policy.
    pub policy: Model,
    /// The reference policy, if it is not the initial policy.
    pub reference: Option<Model>,
    /// The critic, if it does not start from the policy's layers.
    pub critic: Option<Model>,
    /// Models that the policy is distilled from.
    pub teachers: Vec<Model>,
}

struct Learning {
    model: Arc<Model>,
    optimizer: AdamW,
    gradients: Gradients,
    max_grad_norm: Option<f64>,
}

impl Learning {
    fn new(model: Model, optimizer: AdamWConfig, max_grad_norm: Option<f64>) -> Self {
        Self {
            optimizer: AdamW::new(&model, optimizer),
            gradients: Gradients::new(&model),
            max_grad_norm,
            model: Arc::new(model),
        }
    }

    fn sizes(&self) -> NetworkSizes {
        sizes(&self.model)
    }
}

/// Operations of the passes of a model all of whose weights learn: 6 for each weight and token, and
/// 12 x width for each pair of tokens and layer.
fn work_of(config: &TransformerConfig, peak: f64) -> TrainingWork {
    let (heads, kept) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
    let of_layer = config.hidden_size * (2 * heads + 2 * kept + 3 * config.intermediate_size);
    TrainingWork {
        peak,
        token: (6 * config.num_layers * of_layer) as f64,
        completion: (6 * config.hidden_size * config.vocab_size) as f64,
        pair: (12 * config.num_layers * heads) as f64,
    }
}

fn sizes(model: &Model) -> NetworkSizes {
    NetworkSizes {
        num_parameters: model.num_parameters(),
        num_trained: model.num_parameters(),
        vocab_size: model.config().vocab_size,
        max_positions: Some(model.config().max_position_embeddings),
    }
}

/// Weights and optimizers of a policy and its critic on this machine. Generators sample from the same
/// weights.
struct NativeEngine {
    threads: Arc<Threads>,
    settings: EngineSettings,
    /// Without it there is no generator.
    codec: Option<Codec>,
    disk: Disk,
    info: LearnerInfo,
    policy: Learning,
    critic: Option<Learning>,
    reference: Option<Model>,
    teachers: Vec<Model>,
    shared: SharedWeights,
    workspace: Workspace,
    held: Option<(Trained, HeldPass)>,
    /// Places of the held pass's values, if its sequences consist of several texts.
    held_texts: Option<TextPlaces>,
    interrupt: Interrupt,
    progress: UpdateProgress,
    /// Operations of the policy's updates, as parts of a peak of 1.
    work: WorkTally,
    /// Operations a second of all threads; measured when they are first asked for.
    peak: Option<f64>,
    kept: Option<Kept>,
    /// Samples that a controller in another process has started.
    samples: Option<OpenSamples>,
}

/// Models and optimizers before a step. Parts of such a step are trained while the rest is still generated.
struct Kept {
    policy: (Arc<Model>, AdamW),
    critic: Option<(Arc<Model>, AdamW)>,
}

/// Opens the learner that a request over the wire describes, with `threads` worker threads.
///
/// # Errors
/// A file cannot be read, or this engine lacks a requested option.
pub fn open(
    request: &OpenRequest,
    threads: usize,
    disk: &Disk,
    interrupt: &Interrupt,
) -> Result<Box<dyn RunLearner>, LearnerError> {
    if let Some(option) = request.options.keys().next() {
        return Err(LearnerError::Misused { reason: format!("the native engine has no option `{option}`") });
    }
    let settings = EngineSettings {
        threads,
        temperature: request.temperature,
        max_grad_norm: request.optimizer.max_grad_norm,
        recompute_activations: request.recompute_activations,
        max_num_seqs: 1,
        max_open_samples: request.generation.map(|generation| generation.max_sequences),
        optimizer: request.optimizer.constants(),
        critic: request.critic.as_ref().map(|critic| {
            let WireCritic { optimizer, .. } = critic;
            (optimizer.constants(), optimizer.max_grad_norm)
        }),
    };
    let weights = |error: CheckpointError| LearnerError::Files(SaveError::Weights(error));
    let critic = request.critic.as_ref().and_then(|critic| critic.folder.as_deref());
    let models = NativeModels {
        policy: read_model(&request.policy)?,
        reference: request.reference.as_deref().map(read_model).transpose()?,
        critic: critic.map(Model::load_critic).transpose().map_err(weights)?,
        teachers: request.teachers.iter().map(|folder| read_model(folder)).collect::<Result<_, _>>()?,
    };
    Ok(learner(models, None, settings, disk, interrupt))
}

/// A generator without a learner in this process. It starts at `version` and samples with the weights of the
/// last folder that is published to it.
pub fn generator(
    codec: &Codec,
    settings: EngineSettings,
    version: PolicyVersion,
    interrupt: &Interrupt,
) -> Box<dyn Generator> {
    Box::new(NativeGenerator::apart(codec, settings, version, interrupt))
}

/// As [`learner`], with weights, moments and critic of a checkpoint.
pub fn resume(
    folder: &Path,
    models: NativeModels,
    codec: Option<Codec>,
    settings: EngineSettings,
    disk: &Disk,
    interrupt: &Interrupt,
) -> Result<Box<dyn RunLearner>, SaveError> {
    let mut engine = NativeEngine::new(models, codec, settings, disk, interrupt);
    engine.load_moments(folder)?;
    Ok(Box::new(engine))
}

/// A learner on the native engine. If `interrupt` is requested, it stops passes and generation between two
/// layers, and updates as [`UpdateProgress`] describes. All files are written through `disk`.
pub fn learner(
    models: NativeModels,
    codec: Option<Codec>,
    settings: EngineSettings,
    disk: &Disk,
    interrupt: &Interrupt,
) -> Box<dyn RunLearner> {
    Box::new(NativeEngine::new(models, codec, settings, disk, interrupt))
}

impl NativeEngine {
    fn new(
        models: NativeModels,
        codec: Option<Codec>,
        settings: EngineSettings,
        disk: &Disk,
        interrupt: &Interrupt,
    ) -> Self {
        let threads = Arc::new(Threads::new(settings.threads));
        let device = counted(threads.num_threads(), "thread");
        let policy = Learning::new(models.policy, settings.optimizer, settings.max_grad_norm);
        let shared = SharedWeights::default();
        shared.set(&policy.model);
        let mut engine = Self {
            info: LearnerInfo {
                device,
                num_ranks: 1,
                shares_prompts: true,
                passes_over_zeros: true,
                micro_batch_tokens: Some(tamis_model::micro_batch_tokens(
                    policy.model.config(),
                    settings.recompute_activations,
                )),
                dtype: "f32".to_owned(),
                ..LearnerInfo::default()
            },
            critic: None,
            reference: models.reference,
            teachers: models.teachers,
            workspace: Workspace::default(),
            held: None,
            held_texts: None,
            interrupt: interrupt.clone(),
            progress: UpdateProgress::new(interrupt),
            work: WorkTally::new(Some(work_of(policy.model.config(), 1.0)), 1),
            peak: None,
            kept: None,
            samples: None,
            disk: disk.clone(),
            threads,
            settings,
            codec,
            policy,
            shared,
        };
        engine.critic = models.critic.and_then(|model| engine.begin_critic(model));
        engine.note_sizes();
        engine
    }

    /// Operations a second of all threads together: the best of a few tries, for others may be at work.
    fn peak(&mut self) -> f64 {
        let threads = &self.threads;
        *self.peak.get_or_insert_with(|| measure_peak(threads, 3).into_iter().fold(0.0, f64::max))
    }

    fn learning(&self, model: Model) -> Learning {
        Learning::new(model, self.settings.optimizer, self.settings.max_grad_norm)
    }

    fn begin_policy(&mut self, policy: Learning) {
        self.policy = policy;
        (self.kept, self.held) = (None, None);
        self.progress.note_kept(false);
        self.shared.set(&self.policy.model);
    }

    /// A new critic with these weights; `None` if the run has no critic.
    fn begin_critic(&self, model: Model) -> Option<Learning> {
        let (optimizer, max_grad_norm) = self.settings.critic?;
        Some(Learning::new(model, optimizer, max_grad_norm))
    }

    fn note_sizes(&mut self) {
        self.info.policy = self.policy.sizes();
        self.info.critic = self.critic.as_ref().map(Learning::sizes);
        self.info.num_steps = self.policy.optimizer.num_steps();
    }
}
