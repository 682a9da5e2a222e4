//! A publication to one server: what it loads, the stages, and the requests to server and learner in
//! each of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tamis_core::group::PolicyVersion;

use super::sending::{Ask, Snapshot};
use super::{Control, Probe, Protocol};
use crate::generator::{InFlight, Weights};
use crate::wire::{Fault, vllm};

/// Steps of a publication, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Until nothing is in flight.
    Emptying,
    /// A sleeping server takes memory for weights first, so that there is room to load them.
    WakeWeights,
    Pause,
    /// The learner writes a folder, for a server that could not be sent the weights.
    Write,
    /// An update that broke off is begun once more and ended, so that vLLM drops the parts that it got.
    BeginUndo,
    EndUndo,
    CountWorkers,
    /// The learner begins to make a communicator.
    Join,
    BeginTransfer,
    BeginUpdate,
    /// Whole weights, or an adapter.
    Load,
    EndUpdate,
    WakeCache,
    ResetCache,
    SetLabel,
    Resume,
    /// The distribution of its log-probabilities, if no check could ask because it held no weights.
    Mode,
    Probe,
}

impl Stage {
    const ALL: [Self; 18] = [
        Self::Emptying,
        Self::WakeWeights,
        Self::Pause,
        Self::Write,
        Self::BeginUndo,
        Self::EndUndo,
        Self::CountWorkers,
        Self::Join,
        Self::BeginTransfer,
        Self::BeginUpdate,
        Self::Load,
        Self::EndUpdate,
        Self::WakeCache,
        Self::ResetCache,
        Self::SetLabel,
        Self::Resume,
        Self::Mode,
        Self::Probe,
    ];

    pub(super) fn next(self) -> Option<Self> {
        let place = Self::ALL.iter().position(|&stage| stage == self)?;
        Self::ALL.get(place + 1).copied()
    }
}

/// Name of the file with the locations of published weights in the memory of a GPU: the object that
/// vLLM calls `update_info`.
pub const HANDLES: &str = "handles.json";

#[derive(Debug, Clone)]
pub(super) enum Loaded {
    /// The whole weights of the folder.
    Whole,
    /// The folder's adapter, under a unique model name, even if a version is loaded twice.
    Adapter(String),
    /// Weights in the memory of the GPU, by the text of [`HANDLES`].
    Handles(String),
    /// Weights that the learner sends over a communicator.
    Sent(Sent),
    /// The same, once they could not be sent: whole, in a folder that the learner writes first.
    Written(Snapshot, PathBuf),
}

#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) snapshot: Snapshot,
    /// The folder that describes it.
    pub(super) folder: PathBuf,
    /// The text that the server gets.
    pub(super) update_info: String,
    /// Number of its workers, and the text that they get: for a communicator that is made anew.
    pub(super) workers: Option<u64>,
    pub(super) init_info: Option<String>,
    pub(super) has_communicator: bool,
}

/// The answers that a stage waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Awaited {
    /// The number of the exchange with the server.
    pub(super) server: Option<u64>,
    pub(super) learner: bool,
}

pub(super) struct Publishing {
    pub(super) version: PolicyVersion,
    pub(super) folder: String,
    pub(super) loaded: Loaded,
    /// The server's name for the weights.
    pub(super) label: String,
    pub(super) was_asleep: bool,
    /// Whether an update before broke off.
    pub(super) undoes: bool,
    /// Whether the distribution of its log-probabilities is still unknown.
    pub(super) asks_mode: bool,
    pub(super) in_flight: InFlight,
    pub(super) probe: Option<Probe>,
    pub(super) stage: Stage,
    /// Answers in vain at this stage.
    pub(super) tries: u32,
    pub(super) ask_again_at: Option<Instant>,
    pub(super) awaited: Awaited,
    /// Why the communicator was abandoned while the server had not answered yet, and its time limit for
    /// that.
    pub(super) failed: Option<Fault>,
    pub(super) stuck_at: Option<Instant>,
}

impl Publishing {
    pub(super) fn may_be_paused(&self) -> bool {
        self.stops() && !matches!(self.stage, Stage::Emptying | Stage::Mode | Stage::Probe)
    }

    /// Whether the server stops sampling for it. It does not for an adapter, whose load changes neither
    /// its computation nor its cache.
    pub(super) fn stops(&self) -> bool {
        !matches!(self.loaded, Loaded::Adapter(_)) || self.was_asleep
    }

    pub(super) fn adapter(&self) -> Option<&str> {
        match &self.loaded {
            Loaded::Adapter(name) => Some(name),
            Loaded::Whole | Loaded::Handles(_) | Loaded::Sent(_) | Loaded::Written(..) => None,
        }
    }

    /// Whether it is between the first word of a transfer and the last.
    pub(super) fn is_transferring(&self) -> bool {
        matches!(self.loaded, Loaded::Sent(_))
            && matches!(
                self.stage,
                Stage::CountWorkers
                    | Stage::Join
                    | Stage::BeginTransfer
                    | Stage::BeginUpdate
                    | Stage::Load
                    | Stage::EndUpdate
            )
    }

    /// Whether the server's workers wait in NCCL until the learner has done its part.
    pub(super) fn waits_for_learner(&self) -> bool {
        self.is_transferring() && matches!(self.stage, Stage::BeginTransfer | Stage::Load)
    }

    /// The request to the learner at this stage, if there is one.
    pub(super) fn ask(&self) -> Option<Ask<'_>> {
        match (&self.loaded, self.stage) {
            (Loaded::Sent(sent), Stage::Join) => sent.workers.map(Ask::Join),
            (Loaded::Sent(sent), Stage::Load) => Some(Ask::Send(&sent.snapshot)),
            (Loaded::Written(snapshot, folder), Stage::Write) => Some(Ask::Write(snapshot, folder)),
            _ => None,
        }
    }

    /// The request to the server at this stage, if there is one.
    pub(super) fn control(&self) -> Option<Control<'_>> {
        Some(match self.stage {
            Stage::Emptying | Stage::Write | Stage::Join => return None,
            Stage::BeginUndo | Stage::EndUndo if !self.undoes => return None,
            Stage::WakeWeights | Stage::WakeCache if !self.was_asleep => return None,
            Stage::WakeWeights => Control::Wake(Some("weights")),
            Stage::WakeCache => Control::Wake(Some("kv_cache")),
            // One that slept is paused.
            Stage::Pause if self.was_asleep => return None,
            Stage::Pause | Stage::ResetCache | Stage::Resume if !self.stops() => return None,
            Stage::Pause => Control::Pause(self.in_flight),
            Stage::BeginUpdate | Stage::EndUpdate
                if !matches!(self.loaded, Loaded::Handles(_) | Loaded::Sent(_)) =>
            {
                return None;
            }
            Stage::CountWorkers => match &self.loaded {
                Loaded::Sent(sent) if !sent.has_communicator => Control::CountWorkers,
                _ => return None,
            },
            Stage::BeginTransfer => match &self.loaded {
                Loaded::Handles(_) => Control::BeginTransfer(vllm::OF_HANDLES),
                Loaded::Sent(sent) => Control::BeginTransfer(sent.init_info.as_ref()?),
                _ => return None,
            },
            Stage::BeginUndo | Stage::BeginUpdate => Control::BeginUpdate,
            Stage::EndUndo | Stage::EndUpdate => Control::EndUpdate,
            Stage::Load => match &self.loaded {
                Loaded::Whole | Loaded::Written(..) => Control::Reload(&self.folder, &self.label),
                Loaded::Adapter(name) => Control::LoadAdapter(&self.folder, name),
                Loaded::Handles(handles) => Control::TakeWeights(handles),
                Loaded::Sent(sent) => Control::TakeWeights(&sent.update_info),
            },
            Stage::ResetCache => Control::ResetCache,
            Stage::SetLabel => Control::SetLabel(&self.label),
            Stage::Resume => Control::Resume,
            Stage::Mode if !self.asks_mode => return None,
            Stage::Mode => Control::LogprobsMode,
            Stage::Probe => Control::Score(&self.probe.as_ref()?.token_ids),
        })
    }
}

/// Label of a version's weights at servers.
pub(super) fn label_of(nonce: &str, version: PolicyVersion) -> String {
    format!("{nonce}-v{}", version.0)
}

pub(super) fn version_of(nonce: &str, label: &str) -> Option<PolicyVersion> {
    label.strip_prefix(nonce)?.strip_prefix("-v")?.parse().ok().map(PolicyVersion)
}

/// Checks that a folder has what a server loads: a bad one kills vLLM at its next sample. `config` is
/// the name of the file that describes its content.
fn check_folder(folder: &Path, config: &str) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names: BTreeSet<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if !names.contains(config) {
        return Err(format!("{}: no {config}", folder.display()));
    }
    let is_tensors = |name: &String| Path::new(name).extension().is_some_and(|kind| kind == "safetensors");
    if !names.iter().any(is_tensors) {
        return Err(format!("{}: no .safetensors file", folder.display()));
    }
    Ok(())
}

/// The part of the published weights that a server of this kind loads, after a check, and its folder.
pub(super) fn look<P: Protocol>(weights: &Weights, name: String) -> Result<(&Path, Loaded), String> {
    let takes = |hint: Option<&str>, what: &str| match hint {
        Some(_) => Ok(()),
        None => Err(format!("servers of `rollout.backend: {}` take no {what}", P::KIND)),
    };
    match weights {
        Weights::InProcess => Err("weights in this process cannot be sent to a server".to_owned()),
        Weights::Folder(folder) => {
            check_folder(folder, "config.json")?;
            Ok((folder, Loaded::Whole))
        }
        Weights::Adapter(folder) => {
            takes(P::NO_ADAPTERS, "adapters")?;
            check_folder(folder, "adapter_config.json")?;
            Ok((folder, Loaded::Adapter(name)))
        }
        Weights::Handles(folder) => {
            takes(P::NO_HANDLES, "weights in the memory of their GPU")?;
            let path = folder.join(HANDLES);
            let handles = tamis_file::read_text(&path, u64::MAX);
            let handles = handles.map_err(|error| format!("{}: {error}", path.display()))?;
            Ok((folder, Loaded::Handles(handles)))
        }
        Weights::Transfer(folder) => {
            takes(P::NO_TRANSFER, "weights over a communicator")?;
            let snapshot = Snapshot::read(folder)?;
            let update_info = snapshot.update_info();
            let sent = Sent {
                snapshot,
                folder: folder.clone(),
                update_info,
                workers: None,
                init_info: None,
                has_communicator: false,
            };
            Ok((folder, Loaded::Sent(sent)))
        }
    }
}
