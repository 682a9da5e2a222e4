//! New weights for one server, step by step: nothing in flight, or paused; loaded, cache emptied, labelled;
//! resumed, and shown to be held.

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
    Pause,
    Reload,
    ResetCache,
    SetLabel,
    Resume,
    Probe,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Emptying,
        Self::Pause,
        Self::Reload,
        Self::ResetCache,
        Self::SetLabel,
        Self::Resume,
        Self::Probe,
    ];

    fn next(self) -> Option<Self> {
        let place = Self::ALL.iter().position(|&stage| stage == self)?;
        Self::ALL.get(place + 1).copied()
    }
}

pub(super) struct Publishing {
    pub(super) version: PolicyVersion,
    pub(super) folder: String,
    pub(super) label: String,
    pub(super) in_flight: InFlight,
    pub(super) probe: Option<Probe>,
    pub(super) stage: Stage,
    /// Answers in vain at this stage.
    pub(super) tries: u32,
    pub(super) ask_again_at: Option<Instant>,
}

impl Publishing {
    pub(super) fn may_be_paused(&self) -> bool {
        !matches!(self.stage, Stage::Emptying | Stage::Probe)
    }
}

/// Label of a version's weights at servers.
fn label_of(nonce: &str, version: PolicyVersion) -> String {
    format!("{nonce}-v{}", version.0)
}

pub(super) fn version_of(nonce: &str, label: &str) -> Option<PolicyVersion> {
    label.strip_prefix(nonce)?.strip_prefix("-v")?.parse().ok().map(PolicyVersion)
}

/// A folder that a server can load, looked at first because a bad one kills vLLM at its next sample.
fn check_folder(folder: &Path) -> Result<(), Fault> {
    let refused = |what: String| Fault::new(FaultClass::Refused, format!("{}: {what}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(|error| refused(error.to_string()))?;
    let names: BTreeSet<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if !names.contains("config.json") {
        return Err(refused("no config.json".to_owned()));
    }
    if !names
        .iter()
        .any(|name| Path::new(name).extension().is_some_and(|extension| extension == "safetensors"))
    {
        return Err(refused("no .safetensors file".to_owned()));
    }
    Ok(())
}

impl<P: Protocol> HttpServer<P> {
    /// See [`Server::publish`](super::Server::publish).
    pub(super) fn begin_publication(&mut self, publication: &Publication, in_flight: InFlight, now: Instant) {
        let Publication { version, weights } = publication;
        let refused = |detail: String| ServerEvent::NotPublished {
            version: *version,
            fault: Fault::new(FaultClass::Refused, detail),
        };
        let Weights::Folder(folder) = weights else {
            self.ready.push(refused("weights in this process cannot be sent to a server".to_owned()));
            return;
        };
        let probe = check_folder(folder)
            .map_err(|fault| fault.detail)
            .and_then(|()| Probe::read(folder).map_err(|error| error.to_string()));
        let probe = match probe {
            Ok(probe) => probe,
            Err(detail) => {
                self.ready.push(refused(detail));
                return;
            }
        };
        let in_flight = match in_flight {
            InFlight::Keep if !self.protocol.reports_spans() => InFlight::Wait,
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
            label: label_of(&self.settings.nonce, *version),
            in_flight,
            probe,
            stage: if in_flight == InFlight::Keep { Stage::Pause } else { Stage::Emptying },
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
            let (folder, label) = (publishing.folder.clone(), publishing.label.clone());
            let tokens = publishing.probe.as_ref().map(|probe| probe.token_ids.clone());
            let control = match publishing.stage {
                Stage::Emptying => None,
                Stage::Pause => Some(Control::Pause(publishing.in_flight)),
                Stage::Reload => Some(Control::Reload(&folder, &label)),
                Stage::ResetCache => Some(Control::ResetCache),
                Stage::SetLabel => Some(Control::SetLabel(&label)),
                Stage::Resume => Some(Control::Resume),
                Stage::Probe => tokens.as_deref().map(Control::Score),
            };
            let timeout = self.settings.publish_timeout;
            if control.is_some_and(|control| self.ask(&control, Errand::Publishing, timeout)) {
                return;
            }
            self.next_stage();
        }
    }

    fn next_stage(&mut self) {
        let Some(publishing) = &mut self.publishing else { return };
        publishing.tries = 0;
        if let Some(stage) = publishing.stage.next() {
            publishing.stage = stage;
            return;
        }
        if let Some(done) = self.publishing.take() {
            self.version = done.version;
            self.label = Some(done.label);
            self.ready.append(&mut self.held);
            self.ready.push(ServerEvent::Published { version: done.version });
        }
    }

    pub(super) fn finish_stage(&mut self, exchange: Exchange, now: Instant) {
        let Some(publishing) = &mut self.publishing else { return };
        let control = match publishing.stage {
            Stage::Emptying => return,
            Stage::Pause => Control::Pause(publishing.in_flight),
            Stage::Reload => Control::Reload(&publishing.folder, &publishing.label),
            Stage::ResetCache => Control::ResetCache,
            Stage::SetLabel => Control::SetLabel(&publishing.label),
            Stage::Resume => Control::Resume,
            Stage::Probe => {
                Control::Score(publishing.probe.as_ref().map_or(&[][..], |probe| &probe.token_ids))
            }
        };
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
                let tolerance = [known, self.protocol.rounding()]
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
                    rounding.map_or_else(String::new, |rounding| format!("; rounding alone made  with its first weights{rounding:.6}")),
                );
                Some(Fault::new(FaultClass::Probe, detail))
            }),
            Ok(_) => None,
            Err(fault)
                if fault.class == FaultClass::Refused
                    && publishing.stage == Stage::Reload
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
        let hint = if fault.class == FaultClass::Refused { P::NO_CONTROL } else { "" };
        let detail = format!("version {} was not loaded: {}{hint}", publishing.version.0, fault.detail);
        let fault = Fault { detail, ..fault.clone() };
        self.ready.push(ServerEvent::NotPublished { version: publishing.version, fault });
    }
}
