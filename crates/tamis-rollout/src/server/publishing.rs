//! New weights for one server, step by step: nothing in flight, or paused; loaded, cache emptied, labelled;
//! resumed, and shown to be held. One that sleeps wakes for it. An adapter is a model of its own beside those that are there: nothing has to
//! stop for it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use tamis_core::group::PolicyVersion;

use super::{
    ASK_AGAIN, Control, ControlReply, Errand, HttpServer, Probe, Protocol, Server as _, ServerEvent,
};
use crate::generator::{AbortScope, InFlight, Publication, SamplePurpose, Weights};
use crate::http::Exchange;
use crate::wire::{Fault, FaultClass};

/// Number of vain resets of a prefix cache after which the server counts as broken.
const MOST_RESETS: u32 = 40;

/// Number of times that a folder is refused before the refusal is believed, asked again after a pause that
/// doubles, half a minute all together: a network file system may show it late.
const MOST_RELOADS: u32 = 6;

/// Number of adapters that a server keeps: the one that samples, and the one before for what is in flight.
const MOST_ADAPTERS: usize = 2;

/// Allowed additional deviation of later weights from the expected log-probabilities, over that of the first
/// weights, as a part of the probe's spread.
const ROUNDING_VARIES: f64 = 8.0;

/// Mean difference of log-probabilities, in nats, that is never held against a server: eight times that of
/// vLLM at 32 bits (docs/real-vllm.md).
const LEAST_TOLERANCE: f64 = 1e-4;

/// Steps of a publication, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Until nothing is in flight.
    Emptying,
    /// A server that sleeps takes memory for weights first, so that there is room to load them.
    WakeWeights,
    Pause,
    BeginTransfer,
    BeginUpdate,
    /// Whole weights, or an adapter.
    Load,
    EndUpdate,
    WakeCache,
    ResetCache,
    SetLabel,
    Resume,
    /// Of which distribution its log-probabilities are, where no check could ask: it held nothing.
    Mode,
    Probe,
}

impl Stage {
    const ALL: [Self; 13] = [
        Self::Emptying,
        Self::WakeWeights,
        Self::Pause,
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

    /// The next one.
    fn next(self) -> Option<Self> {
        let place = Self::ALL.iter().position(|&stage| stage == self)?;
        Self::ALL.get(place + 1).copied()
    }
}

/// Name of the file that says where in the memory of a GPU published weights are: the object that vLLM calls
/// `update_info`.
pub const HANDLES: &str = "handles.json";

/// What is loaded.
#[derive(Debug, Clone)]
pub(super) enum Loaded {
    /// The whole weights of the folder.
    Whole,
    /// The folder's adapter, under a name as a model: that of no other, also where a version is loaded twice.
    Adapter(String),
    /// Weights in the memory of the GPU, by the text of [`HANDLES`].
    Handles(String),
}

pub(super) struct Publishing {
    pub(super) version: PolicyVersion,
    pub(super) folder: String,
    pub(super) loaded: Loaded,
    /// What the server calls the weights.
    pub(super) label: String,
    /// Whether the server slept.
    pub(super) was_asleep: bool,
    /// Whether its log-probabilities' distribution is not known yet.
    pub(super) asks_mode: bool,
    pub(super) in_flight: InFlight,
    pub(super) probe: Option<Probe>,
    pub(super) stage: Stage,
    /// Answers in vain at this stage.
    pub(super) tries: u32,
    pub(super) ask_again_at: Option<Instant>,
}

impl Publishing {
    pub(super) fn may_be_paused(&self) -> bool {
        self.stops() && !matches!(self.stage, Stage::Emptying | Stage::Mode | Stage::Probe)
    }

    /// Whether the server stops sampling for it. It does not for an adapter: what it computes and has cached
    /// stays true.
    fn stops(&self) -> bool {
        !matches!(self.loaded, Loaded::Adapter(_)) || self.was_asleep
    }

    fn adapter(&self) -> Option<&str> {
        match &self.loaded {
            Loaded::Adapter(name) => Some(name),
            Loaded::Whole | Loaded::Handles(_) => None,
        }
    }

    /// What the server is asked for at this stage; `None` where that is nothing.
    fn control(&self) -> Option<Control<'_>> {
        Some(match self.stage {
            Stage::Emptying => return None,
            Stage::WakeWeights | Stage::WakeCache if !self.was_asleep => return None,
            Stage::WakeWeights => Control::Wake(Some("weights")),
            Stage::WakeCache => Control::Wake(Some("kv_cache")),
            // One that slept is paused.
            Stage::Pause if self.was_asleep => return None,
            Stage::Pause | Stage::ResetCache | Stage::Resume if !self.stops() => return None,
            Stage::Pause => Control::Pause(self.in_flight),
            Stage::BeginTransfer | Stage::BeginUpdate | Stage::EndUpdate
                if !matches!(self.loaded, Loaded::Handles(_)) =>
            {
                return None;
            }
            Stage::BeginTransfer => Control::BeginTransfer,
            Stage::BeginUpdate => Control::BeginUpdate,
            Stage::EndUpdate => Control::EndUpdate,
            Stage::Load => match &self.loaded {
                Loaded::Whole => Control::Reload(&self.folder, &self.label),
                Loaded::Adapter(name) => Control::LoadAdapter(&self.folder, name),
                Loaded::Handles(handles) => Control::TakeHandles(handles),
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
fn label_of(nonce: &str, version: PolicyVersion) -> String {
    format!("{nonce}-v{}", version.0)
}

pub(super) fn version_of(nonce: &str, label: &str) -> Option<PolicyVersion> {
    label.strip_prefix(nonce)?.strip_prefix("-v")?.parse().ok().map(PolicyVersion)
}

/// Looks whether a folder has what a server loads: a bad one kills vLLM at its next sample. `config`: name of
/// the file that says what it holds.
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

/// What a server of a kind is to load from where weights are published, looked at first, and the folder that
/// it is in.
fn look<P: Protocol>(weights: &Weights, name: String) -> Result<(&Path, Loaded), String> {
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
            let handles = std::fs::read_to_string(&path);
            let handles = handles.map_err(|error| format!("{}: {error}", path.display()))?;
            Ok((folder, Loaded::Handles(handles)))
        }
    }
}

impl<P: Protocol> HttpServer<P> {
    /// See [`Server::publish`](super::Server::publish).
    pub(super) fn begin_publication(&mut self, publication: &Publication, in_flight: InFlight, now: Instant) {
        let Publication { version, weights } = publication;
        let label = label_of(&self.settings.nonce, *version);
        let found =
            look::<P>(weights, format!("{label}-{}", self.next_number)).and_then(|(folder, loaded)| {
                Ok((folder, loaded, Probe::read(folder).map_err(|error| error.to_string())?))
            });
        let (folder, loaded, probe) = match found {
            Ok(found) => found,
            Err(detail) => {
                let fault = Fault::new(FaultClass::Refused, detail);
                self.ready.push(ServerEvent::NotPublished { version: *version, fault });
                return;
            }
        };
        let is_adapter = matches!(loaded, Loaded::Adapter(_));
        let in_flight = match in_flight {
            // Those of an adapter end with the one that they began with.
            InFlight::Keep if !is_adapter && !self.protocol.reports_spans() => InFlight::Wait,
            other => other,
        };
        if in_flight == InFlight::Abort {
            for purpose in [SamplePurpose::Rollout, SamplePurpose::Validation, SamplePurpose::Greedy] {
                self.abort(AbortScope::Purpose(purpose), now);
            }
        }
        self.publishing = Some(Publishing {
            version: *version,
            folder: self.settings.folder_there(folder),
            loaded,
            label,
            was_asleep: self.is_asleep,
            asks_mode: self.mode.is_none() && !P::IS_TEXT_ONLY,
            in_flight,
            probe,
            stage: if in_flight == InFlight::Keep { Stage::WakeWeights } else { Stage::Emptying },
            tries: 0,
            ask_again_at: None,
        });
        self.publish_stage();
    }

    /// Asks for the stage that the publication stands at, and for the next where the server has no such
    /// stage.
    pub(super) fn publish_stage(&mut self) {
        while let Some(publishing) = &self.publishing {
            if publishing.stage == Stage::Emptying && !self.by_id.is_empty() {
                return;
            }
            let timeout = self.settings.publish_timeout;
            let model = publishing.adapter().or(self.model.as_deref());
            let call = publishing.control().and_then(|control| self.call_of(&control, model));
            if let Some(call) = call {
                self.send(call, Errand::Publishing, timeout);
                return;
            }
            self.next_stage();
        }
    }

    fn next_stage(&mut self) {
        let Some(publishing) = &mut self.publishing else { return };
        publishing.tries = 0;
        self.is_asleep &= publishing.stage != Stage::WakeCache;
        if let Some(stage) = publishing.stage.next() {
            publishing.stage = stage;
            return;
        }
        if let Some(done) = self.publishing.take() {
            self.version = done.version;
            self.label = Some(done.label);
            self.adapter = match done.loaded {
                Loaded::Adapter(name) => Some(name),
                Loaded::Whole | Loaded::Handles(_) => None,
            };
            self.adapters.extend(self.adapter.clone());
            if self.adapters.len() > MOST_ADAPTERS
                && let Some(oldest) = self.adapters.pop_front()
                && let Some(call) = self.call_of(&Control::UnloadAdapter(&oldest), None)
            {
                self.send(call, Errand::Unheard, self.settings.check_timeout);
            }
            self.ready.append(&mut self.held);
            self.ready.push(ServerEvent::Published { version: done.version });
        }
    }

    pub(super) fn finish_stage(&mut self, exchange: Exchange, now: Instant) {
        let Some(publishing) = &mut self.publishing else { return };
        let Some(control) = publishing.control() else { return };
        let outcome = exchange.and_then(|answer| self.protocol.read_control(&control, &answer));
        let fault = match outcome {
            Ok(ControlReply::NotYet) if publishing.tries < MOST_RESETS => {
                publishing.tries += 1;
                publishing.ask_again_at = Some(now + ASK_AGAIN);
                return;
            }
            Ok(ControlReply::NotYet) => {
                let detail = format!("the prefix cache could not be reset in {MOST_RESETS} tries");
                Some(Fault::new(FaultClass::ServerError, detail))
            }
            Ok(ControlReply::Scores(scores)) => publishing.probe.as_ref().and_then(|probe| {
                let difference = probe.difference(&scores);
                let spread = probe.spread();
                let rounding = self.rounding.map(|part| part * spread);
                let known = rounding.map(|rounding| (ROUNDING_VARIES * rounding).max(LEAST_TOLERANCE));
                let own = self.protocol.rounding().filter(|_| !probe.is_rounded);
                let tolerance = [known, own]
                    .into_iter()
                    .flatten()
                    .fold(probe.tolerance, f64::min);
                if difference <= tolerance {
                    // Where all are the same nothing is learned, and the next weights count as the first.
                    self.rounding = self.rounding.or((spread > 0.0).then(|| difference / spread));
                    return None;
                }
                let detail = format!(
                    "after loading {} the server's log-probabilities of a known text are off by {difference:.6} nats on average \
                     ({tolerance:.6} allowed{}): it holds other weights (a model with tied embeddings needs an untied copy on some \
                     builds: `tamis export --untie`)",
                    publishing.folder,
                    rounding.map_or_else(String::new, |rounding| format!("; rounding alone made {rounding:.6} with its first weights")),
                );
                Some(Fault::new(FaultClass::Probe, detail))
            }),
            Ok(ControlReply::Mode(mode)) => {
                self.mode = Some(mode);
                None
            }
            Ok(_) => None,
            Err(fault)
                if fault.class == FaultClass::Refused
                    && publishing.stage == Stage::Load
                    && publishing.tries < MOST_RELOADS =>
            {
                publishing.ask_again_at = Some(now + ASK_AGAIN * (1 << publishing.tries));
                publishing.tries += 1;
                return;
            }
            Err(fault) => Some(fault),
        };
        if let Some(fault) = fault {
            self.fail_publication(&fault);
        } else {
            self.next_stage();
            self.publish_stage();
        }
    }

    fn fail_publication(&mut self, fault: &Fault) {
        let Some(publishing) = self.publishing.take() else { return };
        self.left_paused |= publishing.may_be_paused();
        for event in std::mem::take(&mut self.held) {
            self.ready.push(match event {
                ServerEvent::Sampled { id, sample } => ServerEvent::Failed {
                    id,
                    fault: fault.clone().with_tokens(sample.token_ids.len() as u64),
                },
                other => other,
            });
        }
        // vLLM answers what it was not started for with 500 too.
        let hint = match &publishing.loaded {
            Loaded::Handles(_) if matches!(fault.class, FaultClass::Refused | FaultClass::ServerError) => {
                P::NO_HANDLES.unwrap_or_default()
            }
            _ if fault.class != FaultClass::Refused => "",
            Loaded::Adapter(_) => P::NO_ADAPTERS.unwrap_or_default(),
            Loaded::Whole | Loaded::Handles(_) => P::NO_CONTROL,
        };
        let detail = format!("version {} was not loaded: {}{hint}", publishing.version.0, fault.detail);
        let fault = Fault { detail, ..fault.clone() };
        self.ready.push(ServerEvent::NotPublished { version: publishing.version, fault });
    }
}
