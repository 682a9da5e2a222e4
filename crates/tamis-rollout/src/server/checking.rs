//! Whether one server lives, and what it says of itself, question by question.

use std::collections::VecDeque;

use super::{Control, Errand, HttpServer, Protocol, Report, ServerEvent, Told};
use crate::http::Exchange;
use crate::wire::{Fault, FaultClass, vllm};

/// Steps of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Health,
    Program,
    Models,
    /// A process that ended in the middle of a publication has left it paused.
    Resume,
    Mode,
    Label,
    Figures,
}

pub(super) struct Checking {
    left: VecDeque<Look>,
    report: Report,
}

fn control_of(look: Look) -> Control<'static> {
    match look {
        Look::Health => Control::Health,
        Look::Program => Control::Program,
        Look::Models => Control::Models,
        Look::Resume => Control::Resume,
        Look::Mode => Control::LogprobsMode,
        Look::Label => Control::Label,
        Look::Figures => Control::Figures,
    }
}

impl<P: Protocol> HttpServer<P> {
    /// See [`Server::check`](super::Server::check).
    pub(super) fn begin_check(&mut self) {
        let looks =
            [Look::Health, Look::Program, Look::Models, Look::Resume, Look::Mode, Look::Label, Look::Figures];
        let is_needed = |look: &Look| match look {
            Look::Program | Look::Resume => !self.is_known,
            Look::Mode => self.mode.is_none() && !P::IS_TEXT_ONLY,
            _ => true,
        };
        let report = Report::default();
        self.checking = Some(Checking { left: looks.into_iter().filter(is_needed).collect(), report });
        self.look();
    }

    fn look(&mut self) {
        while let Some(checking) = &mut self.checking {
            let Some(&look) = checking.left.front() else {
                let report = checking.report;
                self.checking = None;
                self.is_known = true;
                self.ready.push(ServerEvent::Checked(Ok(report)));
                return;
            };
            let timeout =
                if self.is_known { self.settings.check_timeout } else { self.settings.publish_timeout };
            if self.ask(&control_of(look), Errand::Checking, timeout) {
                return;
            }
            if let Some(checking) = &mut self.checking {
                checking.left.pop_front();
            }
        }
    }

    pub(super) fn looked(&mut self, exchange: Exchange) {
        let Some(checking) = &mut self.checking else { return };
        let Some(look) = checking.left.pop_front() else { return };
        let told = exchange
            .map_err(|broken| broken.fault)
            .and_then(|answer| self.protocol.read_control(&control_of(look), &answer));
        let fault = match told {
            Ok(Told::NotYet) => {
                checking.left.push_front(look);
                None
            }
            Ok(Told::Models(models)) => {
                let wanted =
                    |model: &&vllm::Model| self.settings.model.as_ref().is_none_or(|name| model.id == *name);
                if let Some(model) = models.iter().find(wanted) {
                    self.max_model_len = model.max_model_len;
                    self.model = Some(model.id.clone());
                    None
                } else {
                    let served: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
                    let wanted = self.settings.model.as_deref().unwrap_or("at all");
                    let detail = format!("it serves no model {wanted:?}, but {}", served.join(", "));
                    Some(Fault::new(FaultClass::Refused, detail))
                }
            }
            Ok(Told::Mode(mode)) => {
                self.mode = Some(mode);
                None
            }
            Ok(Told::Label(label)) => {
                checking.report.holds_current = self.label.as_ref().map(|ours| *ours == label);
                None
            }
            Ok(Told::Figures(figures)) => {
                checking.report.figures = figures;
                None
            }
            Ok(Told::Done | Told::Scores(_)) => None,
            // Routes that a server may lack: it says neither what its weights are called nor how busy it is, and is never paused.
            Err(fault)
                if matches!(look, Look::Program | Look::Resume | Look::Label | Look::Figures)
                    && fault.class == FaultClass::Refused =>
            {
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
