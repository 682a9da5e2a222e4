//! Errors as the user reads them: the chain of causes, a hint, an exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;

use tamis_core::fault::causes;
use tamis_core::printable::lines;
use tamis_lab::{Fault, FaultKind};
use tamis_run::log::progress::fit_to_stderr;

use crate::pages::page_named_in;

/// The run failed.
pub(crate) const FAILED: u8 = 1;
/// The command line or the configuration is wrong.
pub(crate) const USAGE: u8 = 2;
/// A backend cannot be reached.
pub(crate) const UNREACHABLE: u8 = 3;
/// A resumed run does not match.
pub(crate) const MISMATCH: u8 = 4;
/// Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// A command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// A failure with the whole text that is printed.
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The same with a line after its text.
    pub(crate) fn with_line(mut self, line: &str) -> Self {
        let _ = write!(self.text, "\n{line}");
        self
    }

    /// Nobody reads the output any more: nothing is printed, and that is no error.
    pub(crate) fn reader_gone() -> Self {
        Self { code: 0, text: String::new() }
    }

    /// Whether it is [`Self::reader_gone`].
    pub(crate) fn is_of_reader(&self) -> bool {
        self.code == 0
    }

    /// An error with its causes and a hint.
    pub(crate) fn of(code: u8, error: &dyn Error, hint: Option<String>) -> Self {
        let mut text = format!("error: {}", causes(error).join("\n  caused by: "));
        if let Some(hint) = hint {
            let _ = write!(text, "\n  hint: {hint}");
        }
        Self { code, text }
    }

    /// Why a command of the lab failed.
    pub(crate) fn of_fault(fault: &Fault) -> Self {
        let code = match fault.kind() {
            FaultKind::Usage => USAGE,
            FaultKind::Mismatch => MISMATCH,
            FaultKind::Failed => FAILED,
        };
        Self::of(code, fault, fault.hint())
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn print(&self) {
        if self.is_of_reader() {
            return;
        }
        let _ = writeln!(std::io::stderr().lock(), "{}", fit_to_stderr(&lines(&self.text)));
        if let Some(page) = page_named_in(&self.text) {
            let _ = writeln!(std::io::stderr().lock(), "note: `tamis docs {page}` prints the page");
        }
    }
}
