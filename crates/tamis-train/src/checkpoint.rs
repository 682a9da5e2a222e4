//! Checkpoints: everything that a run needs to go on as if it had never stopped.
//!
//! A checkpoint is a folder `checkpoints/step_N` in Hugging Face layout (`config.json`, `model.safetensors`, tokenizer files) with
//! `optimizer.safetensors` and `state.json` beside, and a folder `critic` of the same kind where there is one. [`crate::run_directory`] makes it
//! appear whole or not at all, and checksums tell whether it still is what was written.

mod checksums;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tamis_core::advantage::AdvantageState;
use tamis_core::early_stop::EarlyStopState;
use tamis_core::group::{Group, PolicyVersion};
use tamis_core::objective::{KlState, ObjectiveState};
use tamis_core::schedule::Scheduler;
use tamis_data::sampler::Position;
use tamis_env::reward::Logged;
use tamis_model::{CheckpointError, Model, ModelConfig, SaveDtype};
use tamis_rollout::{Record, RewardHealth};
use tamis_text::tokenizer::Tokenizer;
use thiserror::Error;

use checksums::SummedFolder;
pub use checksums::{CHECKSUMS, ChecksumError, Extent, verify};

use crate::durable::{Disk, DiskError, UNFINISHED};
use crate::native::{NativeCritic, NativeEngine};
use crate::run_directory::{LogPositions, checkpoint_before, step_of_checkpoint};
use crate::session::{UniformGroups, Untrained};
use crate::validation::ValidationReport;

/// Version of the layout of `state.json`.
const FORMAT: u32 = 3;

/// A group kept for the next step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CarriedGroup {
    /// The group, with the log-probabilities it was sampled with.
    pub group: Group,
    /// Step in which it was generated.
    pub step: u64,
    /// Round of that step.
    pub round: u64,
    /// Rewards after the KL penalty \[G\], where the filter looked at them; `None` for a member without.
    #[serde(default)]
    final_rewards: Option<Vec<Option<f64>>>,
    /// What the reward functions logged of each member \[G\]; empty where they logged nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logged: Vec<Logged>,
}

impl CarriedGroup {
    /// What has to be kept of a group that is held between two steps.
    pub fn of(record: &Record) -> Self {
        // JSON has no NaN.
        let of_member = |reward: &f64| (!reward.is_nan()).then_some(*reward);
        Self {
            group: record.group.clone(),
            step: record.step,
            round: record.round,
            final_rewards: record
                .final_rewards
                .as_ref()
                .map(|rewards| rewards.iter().map(of_member).collect()),
            logged: record.logged.clone(),
        }
    }

    /// Rewards after the KL penalty \[G\], where the filter looked at them; NaN for a member without.
    pub fn final_rewards(&self) -> Option<Vec<f64>> {
        let rewards = self.final_rewards.as_ref()?;
        Some(rewards.iter().map(|reward| reward.unwrap_or(f64::NAN)).collect())
    }
}

/// What is to be known of a critic beside its weights and moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CriticState {
    /// Steps that it has been trained in.
    pub version: u64,
}

/// The state of a run between two steps, weights and moments aside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunState {
    /// Layout version.
    pub format: u32,
    /// Steps trained.
    pub step: u64,
    /// Version of the weights.
    pub version: PolicyVersion,
    /// Place in the data.
    pub position: Position,
    /// The scheduling machine.
    pub machine: Scheduler,
    /// Id of the next dispatched group.
    pub next_group: u64,
    /// Groups kept for the next step.
    pub carried: Vec<CarriedGroup>,
    /// State of the objective.
    pub objective: ObjectiveState,
    /// What the advantage estimator carries from step to step.
    #[serde(default)]
    pub advantage: AdvantageState,
    /// Coefficient of the divergence in the reward.
    pub reward_kl: Option<KlState>,
    /// CRC-32 of the training prompts as the model sees them: a resume on other data would not be exact.
    pub data_crc32: u32,
    /// Length of every log when the checkpoint was written.
    pub logs: LogPositions,
    /// From where on the journal of answers holds what the steps after this one were answered, in bytes: a resume reads it from there.
    #[serde(default)]
    pub journal: Option<u64>,
    /// Whether the validation after this step is still to be made: the run was interrupted in it.
    #[serde(default)]
    pub is_unmeasured: bool,
    /// Prompt and completion tokens of all trajectories generated so far.
    pub num_tokens: u64,
    /// Validation figures by step, for keeping the best checkpoints.
    pub scores: BTreeMap<u64, f64>,
    /// The validation before reinforcement learning, for the closing table.
    pub before: Option<ValidationReport>,
    /// The last validation and the step it came after: it is not made again on resume.
    #[serde(default)]
    pub latest: Option<(u64, ValidationReport)>,
    /// What the early stops have seen.
    #[serde(default)]
    pub early_stop: EarlyStopState,
    /// Groups without signal that were trained on, for the warnings of them; none in a checkpoint of an earlier build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uniform_groups: Option<UniformGroups>,
    /// Updates left out one after the other, up to the last, because their gradients were not finite.
    #[serde(default)]
    pub skipped_updates: u32,
    /// The same of the critic's updates.
    #[serde(default)]
    pub skipped_critic_updates: u32,
    /// How the rewards of the rounds arrived.
    #[serde(default)]
    pub reward_health: RewardHealth,
    /// The latest steps that made no update of the policy.
    #[serde(default)]
    pub untrained: Untrained,
    /// The critic, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticState>,
}

impl RunState {
    /// The layout version that this build writes.
    pub const FORMAT: u32 = FORMAT;
}

/// A checkpoint cannot be written or read.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The disk refused.
    #[error("failed to {0}")]
    Disk(#[from] DiskError),
    /// It is not what was written.
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    /// Weights or moments cannot be read.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// `state.json` cannot be understood.
    #[error("failed to read {path}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The state was written by another layout.
    #[error("{path} has layout version {found}, this build of tamis reads {FORMAT}")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The weights have another shape than the checkpoint's.
    #[error("the weights in {path} have another shape than the model of this run")]
    Shape {
        /// The checkpoint.
        path: PathBuf,
    },
}

impl SaveError {
    /// What to do about it, where more is known than the message says.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Disk(error) => error.hint().map(str::to_owned),
            Self::Checksum(error) => error.hint(),
            Self::Format { .. } => {
                Some("continue the run with the version of tamis that began it".to_owned())
            }
            // Its checksum agrees, or it would not be read: what was saved was this.
            Self::Weights(CheckpointError::NotFinite { path, .. }) => {
                let before = path.ancestors().find_map(checkpoint_before);
                Some(match before {
                    Some(before) => format!(
                        "training had diverged when this was saved: move its folder elsewhere and resume from the checkpoint before it, {0}, or begin a \
                         new run from that one (`model.path={0}`) with a lower train.optimizer.learning_rate",
                        before.display()
                    ),
                    None => "training had diverged when this was saved: begin a new run with a lower train.optimizer.learning_rate".to_owned(),
                })
            }
            Self::State { path, .. } => Some(damaged(path)),
            Self::Weights(
                CheckpointError::Config { folder: place, .. }
                | CheckpointError::NoWeights { folder: place }
                | CheckpointError::Format { path: place, .. }
                | CheckpointError::Index { path: place }
                | CheckpointError::Missing { path: place, .. }
                | CheckpointError::Metadata { path: place, .. }
                | CheckpointError::Dtype { path: place, .. }
                | CheckpointError::Shape { path: place, .. }
                | CheckpointError::Unexpected { path: place, .. },
            ) => Some(damaged(place)),
            Self::Shape { .. } | Self::Weights(_) => None,
        }
    }
}

/// What to do about a file of a checkpoint that cannot be read.
fn damaged(file: &Path) -> String {
    let folder = file.ancestors().find(|folder| step_of_checkpoint(folder).is_some());
    match folder.and_then(|folder| Some((folder, checkpoint_before(folder)?))) {
        Some((folder, before)) => format!(
            "the file was changed or damaged: put back a copy, or move {} elsewhere to go on from the checkpoint before it, {}",
            folder.display(),
            before.display()
        ),
        None => "the file was changed or damaged: put back a copy".to_owned(),
    }
}

/// Folder of the weights that a resume reads, where the ones for use are saved in fewer bits.
const MASTER: &str = "master";
/// Folder of the critic: its weights in full precision, for nothing else reads them, and its moments.
const CRITIC: &str = "critic";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";

/// Writes everything into an empty folder, each file flushed; the caller commits it.
pub fn write(
    disk: &Disk,
    folder: &Path,
    engine: &NativeEngine,
    state: &RunState,
    dtype: SaveDtype,
) -> Result<(), SaveError> {
    let mut out = SummedFolder::new(disk, folder);
    write_model(&mut out, "", engine.model(), dtype)?;
    if dtype != SaveDtype::F32 {
        out.folder(MASTER)?;
        write_model(&mut out, MASTER, engine.model(), SaveDtype::F32)?;
    }
    write_tokenizer(&mut out, engine.codec().tokenizer())?;
    out.file(OPTIMIZER, |file| engine.optimizer().write(file))?;
    if let Some(critic) = engine.critic() {
        out.folder(CRITIC)?;
        write_model(&mut out, CRITIC, critic.model(), SaveDtype::F32)?;
        out.file(&format!("{CRITIC}/{OPTIMIZER}"), |file| critic.optimizer().write(file))?;
    }
    let json = serde_json::to_vec_pretty(state)
        .map_err(|source| SaveError::State { path: folder.join(STATE), source })?;
    out.file(STATE, |file| file.write_all(&json))?;
    Ok(out.finish()?)
}

/// Writes a model into a folder of the checkpoint; without a name, into the checkpoint itself.
fn write_model(
    out: &mut SummedFolder<'_>,
    folder: &str,
    model: &Model,
    dtype: SaveDtype,
) -> Result<(), DiskError> {
    model.save_through(dtype, u64::MAX, |name, fill| {
        let name = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        out.file(&name, |file| fill(file))
    })
}

fn write_tokenizer(out: &mut SummedFolder<'_>, tokenizer: &Tokenizer) -> Result<(), DiskError> {
    for (name, bytes) in tokenizer.files() {
        if let Some((folder, _)) = name.rsplit_once('/') {
            out.folder(folder)?;
        }
        out.file(name, |file| file.write_all(bytes))?;
    }
    Ok(())
}

/// Writes a model in Hugging Face layout into a folder that is not there yet, whole or not at all; with a tokenizer, other programs can load
/// it and serve it.
pub fn write_folder(
    disk: &Disk,
    folder: &Path,
    model: &Model,
    tokenizer: Option<&Tokenizer>,
    dtype: SaveDtype,
) -> Result<(), DiskError> {
    let mut unfinished = folder.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    disk.remove_folder(&unfinished)?;
    disk.create_new_folder(&unfinished)?;
    let mut out = SummedFolder::new(disk, &unfinished);
    write_model(&mut out, "", model, dtype)?;
    if let Some(tokenizer) = tokenizer {
        write_tokenizer(&mut out, tokenizer)?;
    }
    out.finish()?;
    disk.sync_folder(&unfinished)?;
    disk.rename(&unfinished, folder)
}

/// Reads a checkpoint's state.
pub fn read_state(folder: &Path) -> Result<RunState, SaveError> {
    let path = folder.join(STATE);
    let bytes = Disk::new().read_file(&path)?;
    let version: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|source| SaveError::State { path: path.clone(), source })?;
    let found = version["format"].as_u64().unwrap_or(0) as u32;
    if found != FORMAT {
        return Err(SaveError::Format { path, found });
    }
    serde_json::from_slice(&bytes).map_err(|source| SaveError::State { path, source })
}

/// Reads the weights of a checkpoint as a resume needs them: in full precision.
pub fn read_model(folder: &Path) -> Result<Model, SaveError> {
    let master = folder.join(MASTER);
    Ok(Model::load(if master.is_dir() { &master } else { folder })?)
}

/// Reads the optimizer's moments into an engine whose weights have been loaded.
pub fn read_optimizer(folder: &Path, engine: &mut NativeEngine) -> Result<(), SaveError> {
    Ok(engine.optimizer_mut().load(&folder.join(OPTIMIZER))?)
}

/// The shape of a checkpoint's critic.
pub fn critic_shape(folder: &Path) -> Result<ModelConfig, SaveError> {
    let folder = folder.join(CRITIC);
    Ok(ModelConfig::load_any(&folder).map_err(|source| CheckpointError::Config { folder, source })?)
}

/// Reads a checkpoint's critic with its moments; `make` puts an optimizer around the weights.
pub fn read_critic(
    folder: &Path,
    state: &CriticState,
    make: impl FnOnce(Model) -> NativeCritic,
) -> Result<NativeCritic, SaveError> {
    let folder = folder.join(CRITIC);
    let mut critic = make(Model::load_critic(&folder)?);
    critic.optimizer_mut().load(&folder.join(OPTIMIZER))?;
    critic.set_version(state.version);
    Ok(critic)
}
