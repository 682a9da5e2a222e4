//! The learner of a run, with everything that it begins with.

use std::path::Path;
use std::sync::Arc;

use tamis_config::{
    BackendKind, Config, LauncherKind, LearnerBackend, LearnerConfig, ModelSource, PublishMode,
};
use tamis_core::advantage::Column;
use tamis_core::group::PolicyVersion;
use tamis_rollout::Generator;
use tamis_rollout::launch::Say;

use super::objective::Divergence;
use super::settings::engine_settings;
use super::startup::Startup;
use super::{critic, policy, teacher};
use crate::api_key::{api_key, random_key};
use crate::checkpoint::{CRITIC, Coverage, SaveError, verify};
use crate::error::AssembleError;
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::torch::{self, TorchProcess};
use crate::learner::wire::calls::WireSettings;
use crate::learner::wire::client::WireLearner;
use crate::learner::wire::{OpenRequest, WireCritic, WireGeneration, WireOptimizer};
use crate::learner::{LearnerError, LoadContent, RunLearner};
use crate::native::{self, NativeModels};
use crate::prompts::codec::Codec;

/// File of a run directory: the latest incarnation of its learner at `learner.url`.
const INCARNATION: &str = ".learner";

/// The learner that continues from a checkpoint, or begins as the configuration says: with its policy, the
/// named reference if there is a divergence, and the named critic. A learner elsewhere finds a model of
/// random weights in the folder of the run.
pub(crate) fn learner(
    startup: Startup<'_>,
    checkpoint: Option<&Path>,
    divergence: Divergence,
) -> Result<Box<dyn RunLearner>, Halt<RunError>> {
    let Startup { config, codec, disk, interrupt, .. } = startup;
    let has_reference = divergence != Divergence::None;
    if config.learns_elsewhere() {
        return learner_elsewhere(startup, checkpoint, has_reference);
    }
    let models = {
        let (config, codec) = (config.clone(), codec.clone());
        let checkpoint = checkpoint.map(Path::to_owned);
        interrupt.or_abandon(move || -> Result<NativeModels, RunError> {
            let model = match &checkpoint {
                Some(folder) => native::read_model(folder)?,
                None => policy::model(&config, &codec)?,
            };
            let reference = if has_reference { policy::reference(&config, model.config())? } else { None };
            let critic = if checkpoint.is_none() { critic::load_named(&config)? } else { None };
            let teachers = teacher::load(&config, &codec)?;
            Ok(NativeModels { policy: model, reference, critic, teachers })
        })??
    };
    let settings = engine_settings(config);
    let codec = Some(codec.clone());
    Ok(match checkpoint {
        Some(folder) => native::resume(folder, models, codec, settings, disk, interrupt)?,
        None => native::learner(models, codec, settings, disk, interrupt),
    })
}

/// The learner in another process, which is started if no address is named. It reads the folders that the
/// configuration names, or the checkpoint.
fn learner_elsewhere(
    startup: Startup<'_>,
    checkpoint: Option<&Path>,
    has_reference: bool,
) -> Result<Box<dyn RunLearner>, Halt<RunError>> {
    let Startup { config, codec, disk, folder: run, interrupt, ui, .. } = startup;
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = |source: &Option<ModelSource>| source.as_ref().map(ModelSource::folder);
    let reference = folder(&config.model.reference).filter(|_| has_reference);
    let named_critic = folder(&config.critic.model.path).filter(|_| config.has_critic());
    if let Some(path) = &reference {
        verify(path, Coverage::ForUse).map_err(AssembleError::from)?;
        policy::check_reference(path, config, policy::limits(config, codec, checkpoint)?)?;
    }
    let teachers = teacher::folders(config);
    for path in &teachers {
        verify(path, Coverage::ForUse).map_err(AssembleError::from)?;
        teacher::check(path, config, codec)?;
    }
    let random = run.join("initial");
    let named = folder(&config.model.path);
    // A checkpoint's adapter goes onto the policy that it was begun with.
    let begun = if config.learner.lora.is_some() { None } else { checkpoint };
    let policy = if let Some(folder) = begun.or(named.as_deref()) {
        folder
    } else {
        let (config, codec) = (config.clone(), codec.clone());
        let model = interrupt.or_abandon(move || policy::model(&config, &codec))??;
        disk.remove_folder(&random)?;
        native::write_folder(disk, &random, &model)?;
        &random
    };
    if let (Some(path), None) = (&named_critic, checkpoint) {
        verify(path, Coverage::ForUse).map_err(AssembleError::from)?;
    }
    let engine = engine_settings(config);
    let critic = engine.critic.map(|(constants, max_grad_norm)| WireCritic {
        folder: checkpoint
            .map(|folder| folder.join(CRITIC))
            .or(named_critic.clone())
            .as_deref()
            .map(absolute),
        optimizer: WireOptimizer::new(constants, max_grad_norm),
    });
    let samples = config.rollout.backend == BackendKind::Learner;
    let generation = samples.then_some(WireGeneration { max_sequences: config.rollout.max_num_seqs });
    // The memory of a learner at an address outlives this process.
    let kept = config.learner.url.is_some().then(|| run.join(INCARNATION));
    let request = OpenRequest {
        policy: absolute(policy),
        temperature: engine.temperature,
        optimizer: WireOptimizer::new(engine.optimizer, engine.max_grad_norm),
        critic,
        reference: reference.as_deref().map(absolute),
        teachers: teachers.iter().map(|path| absolute(path)).collect(),
        recompute_activations: engine.recompute_activations,
        // A learner that the run started ends with it.
        orphan_timeout: (config.learner.orphan_timeout)
            .filter(|_| config.learner.url.is_some())
            .map(|time| time.0.as_secs_f64()),
        generation,
        // Without a checkpoint to continue from, what it holds is useless.
        adopt: (kept.as_deref().filter(|_| checkpoint.is_some()))
            .and_then(|path| tamis_file::read_text(path, tamis_file::MAX_CONFIGURATION).ok()),
        options: match config.learner.backend {
            LearnerBackend::Native => serde_json::Map::new(),
            LearnerBackend::Torch => torch::options(&config.learner, engine.threads, config.run.seed),
        },
    };
    let opened = open(startup, &request, config.learner.url.as_deref());
    let mut learner =
        if checkpoint.is_some() { opened? } else { opened.map_err(|halt| halt.map(of_named_files))? };
    if samples {
        learner = learner.with_generators(codec);
    }
    if learner.is_adopted() {
        ui.say("the learner has waited for this run, and keeps what it has loaded");
    }
    if let Some(folder) = checkpoint.filter(|folder| !learner.holds(folder)) {
        learner.load(folder, LoadContent::Checkpoint)?;
    }
    if let Some(kept) = kept {
        disk.write_file(&kept, learner.incarnation().as_bytes())?;
    }
    disk.remove_folder(&random)?;
    Ok(Box::new(learner))
}

/// Opens the learner at an address, or starts one in PyTorch whose output goes to the folder.
fn open(
    startup: Startup<'_>,
    request: &OpenRequest,
    url: Option<&str>,
) -> Result<WireLearner, Halt<RunError>> {
    let Startup { config, launcher, folder: logs, interrupt, ui, .. } = startup;
    let named = &config.learner;
    let mut token = api_key("learner.", named.api_key_file.as_deref(), named.api_key_env.as_deref())?;
    let process = if url.is_some() {
        None
    } else {
        let ui = ui.clone();
        let say: Say = Arc::new(move |message: &str| ui.say(message));
        Some(if config.cluster.launcher == LauncherKind::None {
            TorchProcess::start(named, logs, &say, interrupt)?
        } else {
            // On a network it needs a key, which only this run knows.
            token = (config.cluster.launcher == LauncherKind::Ray).then(random_key).transpose()?;
            let started = launcher.start_learner(config, token.as_deref(), logs, &say, interrupt);
            TorchProcess::through(started.map_err(|halt| halt.map(LearnerError::from))?)
        })
    };
    let started = || process.as_ref().map_or_else(String::new, TorchProcess::address);
    let settings = WireSettings {
        url: url.map_or_else(started, str::to_owned),
        token,
        timeout: config.learner.timeout.0,
        lost_timeout: config.learner.lost_timeout.0,
        backend: config.learner.backend,
        publish: if config.samples_at_servers() {
            Some(config.publish_mode())
        } else {
            // The native engine reads folders.
            (!config.samples_through_learner()).then_some(PublishMode::Folder)
        },
        entropy: entropy_key(config),
        distills: config.objective.distillation.is_some(),
    };
    Ok(WireLearner::open(settings, process, request, interrupt)?)
}

/// The key because of which a run needs the whole distribution from which a token is drawn.
fn entropy_key(config: &Config) -> Option<&'static str> {
    let objective = &config.objective;
    let needs = objective.advantage.needs();
    [
        (objective.entropy.coefficient != 0.0 || objective.entropy.adaptive.is_some(), "objective.entropy"),
        (objective.masks.top_entropy.is_some(), "objective.masks.top_entropy"),
        (
            [Column::Entropy, Column::SumPiSquared].iter().any(|column| needs.contains(column)),
            "objective.advantage.kind",
        ),
        (
            config.filter.as_ref().and_then(|filter| filter.metric.as_deref()) == Some("entropy"),
            "filter.metric",
        ),
    ]
    .into_iter()
    .find_map(|(is_needed, key)| is_needed.then_some(key))
}

/// A learner in PyTorch that holds only the policy of `model.path`, to sample from it. It is always started,
/// because a learner at `learner.url` may belong to a run.
pub(crate) fn holder_in_torch(startup: Startup<'_>) -> Result<Box<dyn RunLearner>, Halt<RunError>> {
    let Startup { config, codec, .. } = startup;
    policy::limits(config, codec, None)?;
    let named = config.model.path.as_ref().map(ModelSource::folder);
    let policy = named.as_deref().unwrap_or(Path::new(""));
    let engine = engine_settings(config);
    // The weights of a checkpoint have the adapter merged.
    let plain = LearnerConfig { lora: None, ..config.learner.clone() };
    let request = OpenRequest {
        policy: std::path::absolute(policy).unwrap_or_else(|_| policy.to_owned()),
        temperature: engine.temperature,
        optimizer: WireOptimizer::new(engine.optimizer, engine.max_grad_norm),
        critic: None,
        reference: None,
        teachers: Vec::new(),
        recompute_activations: false,
        orphan_timeout: None,
        adopt: None,
        generation: config
            .samples_through_learner()
            .then_some(WireGeneration { max_sequences: config.rollout.max_num_seqs }),
        options: torch::options(&plain, engine.threads, config.run.seed),
    };
    let learner = open(startup, &request, None).map_err(|halt| halt.map(of_named_files))?;
    Ok(Box::new(learner.with_generators(codec)))
}

/// Files that the learner cannot use are those that the configuration names, unless a checkpoint is resumed.
fn of_named_files(error: RunError) -> RunError {
    match error {
        RunError::Checkpoint(error @ SaveError::Elsewhere { .. }) => {
            let hint = error.hint().unwrap_or_else(|| {
                "name folders of whole models in model.path, model.reference and critic.model.path".to_owned()
            });
            AssembleError::setting(error.to_string(), hint).into()
        }
        error => error,
    }
}

/// A learner that holds only the configuration's policy, to sample from it.
pub(crate) fn holder(startup: Startup<'_>, model: tamis_model::Model) -> Box<dyn RunLearner> {
    let Startup { config, codec, disk, interrupt, .. } = startup;
    let models = NativeModels { policy: model, reference: None, critic: None, teachers: Vec::new() };
    native::learner(models, Some(codec.clone()), engine_settings(config), disk, interrupt)
}

/// The native engine as a generator that reads published folders.
pub(crate) fn native_generator(
    config: &Config,
    codec: &Codec,
    version: PolicyVersion,
    interrupt: &Interrupt,
) -> Box<dyn Generator> {
    native::generator(codec, engine_settings(config), version, interrupt)
}
