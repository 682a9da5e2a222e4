//! New weights for one server, step by step: nothing in flight, or paused; loaded, cache emptied,
//! labelled; resumed, and proven to be held. A sleeping server wakes for it. An adapter is a model of
//! its own beside the others: nothing has to stop for it.
//!
//! Weights that come over a communicator ([`super::sending`]) need the learner's part beside the
//! server's. If either fails, the communicator is abandoned. A server that answers gets the same
//! weights by a folder. The workers of one that does not answer wait in NCCL for ever, so it is
//! restarted if that is possible.
//!
//! A server in which an update broke off must end that update before anything else: otherwise vLLM
//! continues with partly loaded layers, and what is loaded then is wrong.

use std::path::Path;
use std::time::Instant;

use super::publication::{Awaited, Loaded, Publishing, Sent, Stage, label_of, look};
use super::sending::{START_AGAIN, Sender, Snapshot, WRITTEN};
use super::{
    ASK_AGAIN, Control, ControlReply, Errand, HttpServer, Probe, Protocol, Server as _, ServerEvent,
};
use crate::generator::{AbortScope, InFlight, Publication, SamplePurpose};
use crate::http::Exchange;
use crate::wire::{Fault, FaultClass};

/// Number of vain resets of a prefix cache after which the server counts as broken.
const MOST_RESETS: u32 = 40;

/// Number of times that a folder is refused before the refusal is believed, asked again after a pause that
/// doubles, half a minute all together: a network file system may show it late.
const MOST_RELOADS: u32 = 6;

/// Number of adapters that a server keeps: the one that samples, and the previous one for samples in
/// flight.
const MOST_ADAPTERS: usize = 2;

/// Allowed additional deviation of later weights from the expected log-probabilities, over that of the first
/// weights, as a part of the probe's spread.
const ROUNDING_VARIES: f64 = 8.0;

/// Mean difference of log-probabilities, in nats, that is never held against a server: eight times that of
/// vLLM at 32 bits (studies/vllm.md).
const LEAST_TOLERANCE: f64 = 1e-4;

/// Whether the server has no such route, by the message of the web framework of vLLM and SGLang. A
/// route that exists reports a missing thing differently.
fn is_no_route(fault: &Fault) -> bool {
    fault.detail == "HTTP 404: Not Found"
}

/// Whether a fault is an answer, and not that none came.
fn is_said(fault: &Fault) -> bool {
    matches!(fault.class, FaultClass::Refused | FaultClass::ServerError)
}

/// Whether a fault means that the server itself is gone.
fn is_gone(fault: &Fault) -> bool {
    matches!(fault.class, FaultClass::Connect | FaultClass::Reset | FaultClass::HalfBody)
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
        let (there, loaded) = match loaded {
            Loaded::Sent(sent) => self.choose_way(folder, sent),
            other => (self.settings.folder_there(folder), other),
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
            folder: there,
            loaded,
            label,
            was_asleep: self.is_asleep,
            undoes: self.past.is_updating(),
            asks_mode: self.mode.is_none() && !P::IS_TEXT_ONLY,
            in_flight,
            probe,
            stage: if in_flight == InFlight::Keep { Stage::WakeWeights } else { Stage::Emptying },
            tries: 0,
            ask_again_at: None,
            awaited: Awaited::default(),
            failed: None,
            stuck_at: None,
        });
        self.publish_stage();
    }

    /// Whether weights are sent to this server, or a folder is written for it.
    fn choose_way(&mut self, folder: &Path, mut sent: Sent) -> (String, Loaded) {
        let there = self.settings.folder_there(folder);
        let refusal = self.protocol.nccl().err();
        if let Some(sender) = &mut self.sender
            && sender.tries()
            && refusal.is_none()
        {
            sent.has_communicator = sender.has_communicator();
            return (there, Loaded::Sent(sent));
        }
        if let Some(detail) = self.sender.as_ref().and_then(Sender::take_reason) {
            let fault = Fault::new(FaultClass::Transfer, detail);
            self.ready.push(ServerEvent::ByFolder { fault });
        }
        if let (Some(detail), Some(sender)) = (refusal, &mut self.sender)
            && sender.says()
        {
            let fault = Fault::new(FaultClass::Transfer, detail);
            self.ready.push(ServerEvent::ByFolder { fault });
        }
        self.by_folder(folder, sent.snapshot)
    }

    fn by_folder(&self, folder: &Path, snapshot: Snapshot) -> (String, Loaded) {
        let written = folder.join(WRITTEN);
        (self.settings.folder_there(&written), Loaded::Written(snapshot, written))
    }

    /// Sends the request of the publication's current stage; skips the stage if the server does not
    /// have it.
    pub(super) fn publish_stage(&mut self) {
        while let Some(publishing) = &self.publishing {
            if publishing.stage == Stage::Emptying && !self.by_id.is_empty() {
                return;
            }
            let timeout = match &self.sender {
                Some(sender) if publishing.waits_for_learner() => sender.limit(),
                _ => self.settings.publish_timeout,
            };
            let model = publishing.adapter().or(self.model.as_deref());
            let call = publishing.control().and_then(|control| self.call_of(&control, model));
            let learner = match (publishing.ask(), &mut self.sender) {
                (Some(ask), Some(sender)) => {
                    sender.ask(ask, self.settings.publish_timeout);
                    true
                }
                (Some(_), None) => {
                    let detail = "the learner that should send the weights is not known";
                    self.fail_publication(&Fault::new(FaultClass::Transfer, detail));
                    return;
                }
                (None, _) => false,
            };
            let is_update = matches!(publishing.loaded, Loaded::Handles(_) | Loaded::Sent(_));
            if is_update && publishing.stage == Stage::Load {
                self.past.note_update(true);
            }
            let server = call.map(|call| self.send(call, Errand::Publishing, timeout));
            let awaited = Awaited { server, learner };
            if awaited != Awaited::default() {
                if let Some(publishing) = &mut self.publishing {
                    publishing.awaited = awaited;
                }
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
            if let (Loaded::Sent(_), Some(sender)) = (&done.loaded, &mut self.sender) {
                sender.note_success();
            }
            self.version = done.version;
            self.label = Some(done.label);
            self.adapter = match done.loaded {
                Loaded::Adapter(name) => Some(name),
                Loaded::Whole | Loaded::Handles(_) | Loaded::Sent(_) | Loaded::Written(..) => None,
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
        publishing.awaited.server = None;
        if let Some(failed) = publishing.failed.take() {
            // Whatever it answers, it is free again.
            publishing.stuck_at = None;
            match exchange {
                Err(fault) if is_gone(&fault) => self.fail_publication(&fault),
                Err(fault) if fault.class == FaultClass::TimedOut => self.fail_stuck(&failed),
                _ => self.go_by_folder(&failed),
            }
            return;
        }
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
                    // If all are equal nothing is learned, and the next weights count as the first.
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
            Ok(ControlReply::Workers(workers)) => {
                if let Loaded::Sent(sent) = &mut publishing.loaded {
                    sent.workers = Some(workers.max(1));
                }
                None
            }
            Ok(_) => {
                if matches!(publishing.stage, Stage::EndUpdate | Stage::EndUndo) {
                    self.past.note_update(false);
                }
                None
            }
            // Some of its workers may be in the update still; that all can end it is what counts.
            Err(fault) if publishing.stage == Stage::BeginUndo && is_said(&fault) => None,
            Err(fault) if publishing.stage == Stage::EndUndo && is_said(&fault) => {
                let what = self.sender.as_ref().map_or(START_AGAIN, |sender| {
                    sender.note_hang(false, &fault.detail);
                    sender.restart_server()
                });
                let detail =
                    format!("{}; an update broke off in it, which it cannot complete: {what}", fault.detail);
                Some(Fault { detail, ..fault })
            }
            Err(fault) if publishing.is_transferring() && !is_gone(&fault) => {
                let is_stuck = fault.class == FaultClass::TimedOut && publishing.waits_for_learner();
                if is_stuck { self.fail_stuck(&fault) } else { self.go_by_folder(&fault) }
                return;
            }
            Err(fault)
                if fault.class == FaultClass::Refused
                    && publishing.stage == Stage::Load
                    && !is_no_route(&fault)
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
            self.go_on();
        }
    }

    /// The next stage, once everything that this one waits for has come.
    fn go_on(&mut self) {
        if self.publishing.as_ref().is_some_and(|publishing| publishing.awaited == Awaited::default()) {
            self.next_stage();
            self.publish_stage();
        }
    }

    /// Takes in the learner's answer to its part of a stage.
    pub(super) fn hear_learner(&mut self, exchange: Exchange, now: Instant) {
        let (Some(publishing), Some(sender)) = (&mut self.publishing, &mut self.sender) else { return };
        publishing.awaited.learner = false;
        let outcome = match (publishing.stage, exchange) {
            (_, Err(fault)) => Err(fault),
            (Stage::Join, Ok(answer)) => sender.read_joined(&answer).map(|init_info| {
                if let Loaded::Sent(sent) = &mut publishing.loaded {
                    sent.init_info = Some(init_info);
                }
            }),
            (_, Ok(answer)) => Sender::read_done(&answer),
        };
        match outcome {
            Ok(()) => self.go_on(),
            Err(fault) if !publishing.is_transferring() => self.fail_publication(&fault),
            Err(fault) if publishing.awaited.server.is_some() => {
                // Its workers may still be in NCCL: whether they come back is seen by its answer.
                sender.give_up();
                (publishing.failed, publishing.stuck_at) = (Some(fault), Some(now + sender.grace()));
            }
            Err(fault) => self.go_by_folder(&fault),
        }
    }

    pub(super) fn look_whether_stuck(&mut self, now: Instant) {
        let Some(publishing) = &mut self.publishing else { return };
        if publishing.stuck_at.take_if(|at| *at <= now).is_some()
            && let Some(fault) = publishing.failed.take()
        {
            self.fail_stuck(&fault);
        }
    }

    /// Gives the weights by a folder that could not be sent.
    fn go_by_folder(&mut self, fault: &Fault) {
        let Some(publishing) = &mut self.publishing else { return };
        let Loaded::Sent(sent) = &publishing.loaded else { return };
        let snapshot = sent.snapshot.clone();
        let told = self.protocol.nccl().ok().flatten();
        // vLLM also answers 500 to calls that it was not started for.
        let is_refused = is_said(fault);
        let hint = match publishing.stage {
            Stage::CountWorkers | Stage::BeginTransfer if is_refused => {
                Sender::explain(&snapshot, told) + P::NO_TRANSFER.unwrap_or_default()
            }
            _ => String::new(),
        };
        let mut detail = format!("{}{hint}", fault.detail);
        if let Some(sender) = &mut self.sender {
            sender.give_up();
            sender.note_failure();
            if !sender.tries() {
                detail += "; this holds until it is restarted";
            }
        }
        let folder = sent.folder.clone();
        let (there, loaded) = self.by_folder(&folder, snapshot);
        if let Some(publishing) = &mut self.publishing {
            (publishing.folder, publishing.loaded, publishing.stage) = (there, loaded, Stage::Write);
            (publishing.tries, publishing.awaited) = (0, Awaited::default());
            publishing.undoes = self.past.is_updating();
        }
        self.ready.push(ServerEvent::ByFolder { fault: Fault::new(FaultClass::Transfer, detail) });
        self.publish_stage();
    }

    /// A server whose workers hang in NCCL takes no more weights.
    fn fail_stuck(&mut self, fault: &Fault) {
        let Some(sender) = &mut self.sender else { return };
        sender.give_up();
        let is_meeting =
            self.publishing.as_ref().is_some_and(|publishing| publishing.stage == Stage::BeginTransfer);
        sender.note_hang(is_meeting, &fault.detail);
        let what = sender.restart_server();
        let detail = format!(
            "{}; its communicator was abandoned, but its workers still wait in NCCL: {what}",
            fault.detail
        );
        if let Some(number) = self.publishing.as_mut().and_then(|publishing| publishing.awaited.server.take())
        {
            self.transport.cancel(number);
            self.errands.remove(&number);
        }
        self.fail_publication(&Fault::new(FaultClass::Transfer, detail));
    }

    fn fail_publication(&mut self, fault: &Fault) {
        if let Some(sender) = &mut self.sender {
            sender.give_up();
        }
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
        // vLLM also answers 500 to calls that it was not started for.
        let hint = match &publishing.loaded {
            Loaded::Handles(_) if is_said(fault) => P::NO_HANDLES.unwrap_or_default(),
            _ if fault.class != FaultClass::Refused => "",
            Loaded::Adapter(_) => P::NO_ADAPTERS.unwrap_or_default(),
            Loaded::Whole | Loaded::Handles(_) | Loaded::Sent(_) | Loaded::Written(..) => P::NO_CONTROL,
        };
        let detail = format!("version {} was not loaded: {}{hint}", publishing.version.0, fault.detail);
        let fault = Fault { detail, ..fault.clone() };
        self.ready.push(ServerEvent::NotPublished { version: publishing.version, fault });
    }
}
