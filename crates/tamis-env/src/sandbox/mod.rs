//! A sandbox for untrusted Python code, which a policy wrote.
//!
//! [`Sandbox::run`] executes [`Code`] in a fresh process. The process has limits (time, memory, processes,
//! output), no network, a read-only file system except for an empty working folder, and few system calls.
//! [`Sandbox::protection`] lists the protection in force, and what this machine's kernel does not offer; it
//! is tested when the sandbox is made. `required` refuses less protection.
//!
//! Data flows one way: [`Code`] → a server process of the harness, which is reused and holds no secrets → a
//! process with its own namespaces → output and exit, as an [`Execution`]. The harness is a Python program,
//! because safe Rust cannot make the required system calls; its source documents the protection.

mod protection;
mod server;
mod settings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value as Json;
use tamis_core::fault;
use tamis_core::fault::Fault;
use thiserror::Error;

pub use protection::{Layer, Protection};
pub use settings::{Required, SandboxSettings};

use server::{Place, Server, Warnings};

/// A sandbox cannot be made, or failed. Wrong code is never an error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SandboxError {
    /// The interpreter cannot be started.
    #[error("the sandbox cannot use `{python}`: {reason}")]
    Start {
        /// The interpreter.
        python: String,
        /// The reason.
        reason: String,
    },
    /// This machine lacks protection that the settings require.
    #[error("`required: {required}` asks for more protection than this machine has: {protection}")]
    Unprotected {
        /// The setting.
        required: Required,
        /// What is in force and what is not.
        protection: String,
    },
    /// A file is outside the working folder, or the harness failed, not the code.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl SandboxError {
    /// The harness failed, not the code.
    pub(crate) fn broken(reason: impl std::fmt::Display) -> Self {
        fault!("the sandbox failed: {reason}").into()
    }
}

/// A program with its input and files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Code {
    /// Its text, run as `__main__`.
    pub source: String,
    /// Its standard input.
    pub stdin: String,
    /// Files of its working folder, by relative path.
    pub files: BTreeMap<String, String>,
}

impl Code {
    /// A program without input and files.
    pub fn new(source: impl Into<String>) -> Self {
        Self { source: source.into(), ..Self::default() }
    }
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with an exit code; 1 after an exception.
    Exited(u8),
    /// At the time limit.
    TimedOut,
    /// By a signal, for example in a crash.
    Killed(i32),
    /// At the memory limit of all its processes together. A single process gets a `MemoryError`.
    OutOfMemory,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::TimedOut => write!(f, "time limit reached"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::OutOfMemory => write!(f, "memory limit reached"),
        }
    }
}

/// Result of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Standard output, up to `max_output` bytes.
    pub stdout: String,
    /// Standard error, up to `max_output` bytes; a traceback at its end.
    pub stderr: String,
    /// Its end.
    pub exit: Exit,
    /// Bytes of output that were cut.
    pub truncated: u64,
    /// Whether nothing of standard output was cut.
    pub is_stdout_whole: bool,
    /// The harness's report on tests. The code can forge it as far as it knows its content.
    pub(crate) report: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    Script,
    /// Runs it as a module, then the test of the late part.
    Test,
    /// Runs it as a module with the usual names imported, then calls one of its functions.
    Call,
    /// Runs nothing: parses the tests of rows, which are the late part.
    Split,
}

#[derive(Debug, Clone)]
pub(crate) struct Job<'a> {
    pub(crate) mode: Mode,
    pub(crate) timeout: Duration,
    pub(crate) setup: &'a str,
    pub(crate) source: &'a str,
    pub(crate) stdin: &'a str,
    pub(crate) files: Option<&'a BTreeMap<String, String>>,
    /// Data that the worker reads only after the code has run.
    pub(crate) late: Option<Json>,
    /// Bytes that are kept of its report.
    pub(crate) max_report: usize,
}

/// Runs untrusted Python code, from any number of threads.
pub struct Sandbox {
    settings: SandboxSettings,
    place: Place,
    protection: Protection,
    idle: Mutex<Vec<Server>>,
    warnings: Warnings,
}

impl Sandbox {
    /// Finds the interpreter and tests the protection on this machine.
    ///
    /// # Errors
    /// No usable interpreter, or less protection than `required`.
    pub fn new(settings: &SandboxSettings) -> Result<Self, SandboxError> {
        Self::without(settings, &[])
    }

    /// The same, without some parts of the protection, as on a kernel that lacks them.
    pub(crate) fn without(settings: &SandboxSettings, without: &[&str]) -> Result<Self, SandboxError> {
        let executable = server::find_executable(&settings.python)?;
        let place = Place { executable, without: without.iter().map(|&part| part.to_owned()).collect() };
        let warnings = Warnings::default();
        let (server, protection) = Server::start(settings, &place, &warnings)?;
        if !protection.fulfils(settings.required) {
            let protection = protection.to_string();
            return Err(SandboxError::Unprotected { required: settings.required, protection });
        }
        Ok(Self { settings: settings.clone(), place, protection, idle: Mutex::new(vec![server]), warnings })
    }

    /// The protection in force.
    pub fn protection(&self) -> &Protection {
        &self.protection
    }

    /// Warnings since the last call, for example about folders that cannot be emptied.
    pub fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// Its settings.
    pub fn settings(&self) -> &SandboxSettings {
        &self.settings
    }

    /// Executes code and waits for its end, at most until the time limit.
    ///
    /// # Errors
    /// The sandbox itself failed, twice in a row; or a file's name leads outside the working folder.
    ///
    /// ```
    /// use tamis_env::sandbox::{Code, Exit, Sandbox, SandboxSettings};
    /// if let Ok(sandbox) = Sandbox::new(&SandboxSettings::default()) {
    ///     let execution = sandbox.run(&Code::new("print(6 * 7)")).expect("executed");
    ///     assert_eq!((execution.stdout.as_str(), execution.exit), ("42\n", Exit::Exited(0)));
    /// }
    /// ```
    pub fn run(&self, code: &Code) -> Result<Execution, SandboxError> {
        for name in code.files.keys() {
            let is_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
            if !is_inside || name.is_empty() || name.ends_with('/') || name.contains('\0') {
                return Err(fault!(
                    "the file `{name}` must be in the working folder: a relative path without `..`"
                )
                .into());
            }
        }
        self.execute(&Job {
            mode: Mode::Script,
            timeout: self.settings.timeout.0,
            setup: "",
            source: &code.source,
            stdin: &code.stdin,
            files: Some(&code.files),
            late: None,
            max_report: 0,
        })
    }

    /// Runs a job in an idle harness. If there is none or it fails, it tries a new one, at most twice.
    pub(crate) fn execute(&self, job: &Job<'_>) -> Result<Execution, SandboxError> {
        // An idle harness may have died because of an earlier job, which is not this job's fault.
        let idle = self.lock_idle().pop();
        if let Some(server) = idle
            && let Ok(execution) = self.execute_in(server, job)
        {
            return Ok(execution);
        }
        let execute_anew = || self.execute_in(self.start()?, job);
        execute_anew().or_else(|_| execute_anew())
    }

    fn start(&self) -> Result<Server, SandboxError> {
        let (server, protection) = Server::start(&self.settings, &self.place, &self.warnings)?;
        if protection.is_same(&self.protection) {
            return Ok(server);
        }
        let was = &self.protection;
        Err(SandboxError::broken(format_args!("the protection has changed from {was} to {protection}")))
    }

    fn execute_in(&self, mut server: Server, job: &Job<'_>) -> Result<Execution, SandboxError> {
        let execution = server.run(job, self.settings.max_output)?;
        self.lock_idle().push(server);
        Ok(execution)
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Server>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
