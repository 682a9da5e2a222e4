//! Whether one server is alive, and what it reports about itself, request by request.

use std::collections::VecDeque;
use std::time::Instant;

use super::publication::version_of;
use super::{ASK_AGAIN, Control, ControlReply, Errand, HttpServer, Protocol, ServerEvent, ServerReport};
use crate::http::Exchange;
use crate::wire::{Fault, FaultClass, vllm};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Health,
    Program,
    Models,
    /// An unfinished publication has left it paused, or one is in progress.
    IsPaused,
    /// A run that ended while its policy learned has left it asleep. vLLM also reports a paused server
    /// as asleep.
    IsSleeping,
    Wake,
    Resume,
    Mode,
    Label,
    Figures,
}

pub(super) struct Checking {
    left: VecDeque<Look>,
    report: ServerReport,
    /// When it was found paused first.
    paused_since: Option<Instant>,
    /// When the next request is sent, if not at once.
    pub(super) again_at: Option<Instant>,
}

fn control_of(look: Look) -> Control<'static> {
    match look {
        Look::Health => Control::Health,
        Look::Program => Control::Program,
        Look::Models => Control::Models,
        Look::IsSleeping => Control::IsSleeping,
        Look::Wake => Control::Wake(None),
        Look::IsPaused => Control::IsPaused,
        Look::Resume => Control::Resume,
        Look::Mode => Control::LogprobsMode,
        Look::Label => Control::Label,
        Look::Figures => Control::Figures,
    }
}

impl<P: Protocol> HttpServer<P> {
    /// See [`Server::check`](super::Server::check).
    pub(super) fn begin_check(&mut self) {
        let looks = [
            Look::Health,
            Look::Program,
            Look::Models,
            Look::IsPaused,
            Look::IsSleeping,
            Look::Wake,
            Look::Resume,
            Look::Mode,
            Look::Label,
            Look::Figures,
        ];
        let is_needed = |look: &Look| match look {
            Look::Program | Look::IsSleeping | Look::Wake | Look::IsPaused | Look::Resume => !self.is_known,
            Look::Mode => self.mode.is_none() && !P::IS_TEXT_ONLY,
            _ => true,
        };
        let left = looks.into_iter().filter(is_needed).collect();
        let report = ServerReport::default();
        self.checking = Some(Checking { left, report, paused_since: None, again_at: None });
        self.look();
    }

    pub(super) fn look(&mut self) {
        while let Some(checking) = &mut self.checking {
            let Some(&look) = checking.left.front() else {
                let report = checking.report;
                self.checking = None;
                (self.is_known, self.left_paused) = (true, false);
                self.ready.push(ServerEvent::Checked(Ok(report)));
                return;
            };
            let computes = matches!(look, Look::Mode | Look::Resume | Look::Wake);
            let timeout = if computes { self.settings.publish_timeout } else { self.settings.check_timeout };
            if self.ask(&control_of(look), Errand::Checking, timeout) {
                return;
            }
            if let Some(checking) = &mut self.checking {
                checking.left.pop_front();
            }
        }
    }

    pub(super) fn read_check(&mut self, exchange: Exchange, now: Instant) {
        let Some(checking) = &mut self.checking else { return };
        let Some(look) = checking.left.pop_front() else { return };
        // It is alive, and limits the rate of requests.
        let is_limited = self.is_known && exchange.as_ref().is_ok_and(|answer| answer.status == 429);
        let outcome = exchange.and_then(|answer| self.protocol.read_control(&control_of(look), &answer));
        let fault = match outcome {
            Ok(ControlReply::NotYet) => {
                checking.left.push_front(look);
                None
            }
            Ok(ControlReply::Models(models)) => {
                let wanted = |model: &&vllm::ServedModel| {
                    self.settings.model.as_ref().is_none_or(|name| model.id == *name)
                };
                if let Some(model) = models.iter().find(wanted) {
                    self.max_model_len = model.max_model_len;
                    self.model = Some(model.id.clone());
                    None
                } else {
                    let served: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
                    let wanted = self.settings.model.as_deref().unwrap_or("at all");
                    let detail = format!("it does not serve the model {wanted:?}, but {}", served.join(", "));
                    Some(Fault::new(FaultClass::Refused, detail))
                }
            }
            Ok(ControlReply::IsSleeping(true)) => {
                // Its weights after waking are unknown, and may be unusable.
                (self.label, self.adapter, self.is_asleep) = (None, None, false);
                checking.left.retain(|&look| look != Look::Mode);
                None
            }
            Ok(ControlReply::IsSleeping(false)) => {
                self.is_asleep = false;
                checking.left.retain(|&look| look != Look::Wake);
                None
            }
            Ok(ControlReply::IsPaused(true)) => {
                let since = *checking.paused_since.get_or_insert(now);
                if !self.left_paused && now.saturating_duration_since(since) < self.settings.pause_grace {
                    checking.left.push_front(look);
                    checking.again_at = Some(now + ASK_AGAIN.min(self.settings.pause_grace));
                    return;
                }
                None
            }
            Ok(ControlReply::IsPaused(false)) => {
                self.is_asleep = false;
                checking.left.retain(|look| !matches!(look, Look::IsSleeping | Look::Wake | Look::Resume));
                None
            }
            Ok(ControlReply::Mode(mode)) => {
                self.mode = Some(mode);
                None
            }
            Ok(ControlReply::Label(label)) => {
                if version_of(&self.settings.nonce, &label).is_none() {
                    // It may be another process, which rounds differently.
                    self.rounding = None;
                }
                let holds_current = self.label.as_ref().map(|ours| *ours == label);
                checking.report.holds_current = holds_current;
                let is_other = holds_current == Some(false) && self.is_known;
                is_other.then(|| {
                    let detail =
                        "its weights have another name: it was restarted, or another program changed them";
                    Fault::new(FaultClass::StaleWeights, detail)
                })
            }
            Ok(ControlReply::Figures(figures)) => {
                checking.report.figures = figures;
                None
            }
            Ok(ControlReply::Done | ControlReply::Scores(_) | ControlReply::Workers(_)) => None,
            Err(_) if is_limited => None,
            // A server may lack these routes: it then reports neither the label of its weights nor its
            // load, and is never paused.
            Err(fault)
                if matches!(
                    look,
                    Look::Program
                        | Look::IsSleeping
                        | Look::IsPaused
                        | Look::Resume
                        | Look::Label
                        | Look::Figures
                ) && fault.class == FaultClass::Refused =>
            {
                if look == Look::IsSleeping {
                    checking.left.retain(|&look| look != Look::Wake);
                }
                None
            }
            Err(fault) => Some(fault),
        };
        match fault {
            Some(fault) => {
                self.checking = None;
                self.ready.push(ServerEvent::Checked(Err(fault)));
            }
            None => self.look(),
        }
    }
}
