//! The process of a function: started when it is first called, started again if it ends, asked one call at a
//! time.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tamis_core::fault;
use tamis_core::own_function::OwnFunction;
use tamis_env::reward::command::Printed;
use tamis_env::reward::{Listener, RewardFailure};
use tamis_process::{AnswerWait, ChildSettings, Errors, LineChild, Reach, Restarts, interpreter};

use super::error::{FunctionError, of_failure};
use super::request::Request;
use crate::interrupt::Halt;

/// Restarts of a process that ends during one call.
const MAX_RESTARTS: u32 = 2;
/// Longest line before the numbers of an answer, in bytes.
const LONGEST_HEADER: u64 = 1 << 20;
/// Largest answer, in bytes of numbers.
const LARGEST_ANSWER: usize = 1 << 31;
/// Time for a process to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(300);

/// What a function is, as its process describes it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Introduction {
    /// First line of the function in its file.
    line: Option<u64>,
    /// Name and parameters.
    pub(super) signature: String,
    /// How it is called.
    pub(super) called: String,
    /// Why it cannot be called so.
    pub(super) problem: Option<String>,
}

/// The line before the numbers of an answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    arrays: Vec<usize>,
    style: String,
    error: Option<String>,
    introduction: Option<Introduction>,
}

enum Output {
    Answer(Header, Vec<f64>),
    Garbage(String),
}

/// Numbers that a function returned.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) arrays: Vec<Vec<f64>>,
    /// Whether PyTorch has differentiated it.
    pub(super) is_differentiated: bool,
}

struct Running {
    child: LineChild,
    answers: Receiver<Output>,
    has_answered: bool,
}

/// A user's function in a process of its own. Dropping it ends the process.
pub(crate) struct FunctionProcess {
    /// Key of the section: `objective.loss`.
    pub(super) key: &'static str,
    /// The function's name and file, for messages.
    name: String,
    file: PathBuf,
    line: OnceLock<u64>,
    argv: Vec<String>,
    timeout: Duration,
    startup_timeout: Duration,
    printed: Arc<Printed>,
    listener: Arc<dyn Listener>,
    running: Mutex<Option<Running>>,
    /// Whether any of its processes has answered: a file that cannot be imported is not tried again.
    has_answered: AtomicBool,
}

impl std::fmt::Debug for FunctionProcess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FunctionProcess").field("argv", &self.argv).finish_non_exhaustive()
    }
}

impl FunctionProcess {
    /// The function of a section (`loss`, `advantage`). `folder` has the program and gets what is printed.
    pub(super) fn new(
        section: &'static str,
        function: &OwnFunction,
        folder: &Path,
        listener: &Arc<dyn Listener>,
    ) -> Self {
        let (file, name) = (function.file(), function.name(section));
        let key = if section == "loss" { "objective.loss" } else { "objective.advantage" };
        let mut argv = vec![
            interpreter(&function.python.to_string_lossy()),
            folder.join("tamis_function.py").display().to_string(),
            "--path".to_owned(),
            file.display().to_string(),
            "--name".to_owned(),
            name.clone(),
            "--section".to_owned(),
            section.to_owned(),
        ];
        if !function.kwargs.is_empty() {
            argv.extend([
                "--kwargs".to_owned(),
                serde_json::Value::from(function.kwargs.clone()).to_string(),
            ]);
        }
        let short = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = folder.join(format!("{section}.log"));
        let printed = Printed::to(Some(log), &format!("{key} ({short})"), listener);
        Self {
            key,
            name,
            file,
            line: OnceLock::new(),
            argv,
            timeout: function.timeout.0,
            startup_timeout: function.startup_timeout.0,
            printed: Arc::new(printed),
            listener: Arc::clone(listener),
            running: Mutex::default(),
            has_answered: AtomicBool::new(false),
        }
    }

    /// The function with its file and line, for messages.
    pub(super) fn place(&self) -> String {
        let line = self.line.get().map_or_else(String::new, |line| format!(":{line}"));
        format!("`{}` ({}{line})", self.name, self.file.display())
    }

    pub(super) fn error(&self, what: impl Into<String>, hint: impl Into<String>) -> FunctionError {
        let (place, what) = (self.place(), what.into());
        FunctionError { key: self.key, step: None, place, what, hint: Some(hint.into()) }
    }

    /// An error about a loss whose tokens depend on each other, in a run that weighs or selects single
    /// tokens.
    pub(super) fn coupled(&self, is_weighed: bool) -> FunctionError {
        let key = if is_weighed { "objective.correction" } else { "objective.masks.top_entropy" };
        self.error(
            format!(
                "returns losses that depend on other tokens of their trajectory, and {key} weighs each token by itself: the derivative \
                 would not be that of the weighted loss"
            ),
            if is_weighed {
                "use a correction by trajectories (objective.correction.weights.level=sequence), or none"
            } else {
                "set objective.masks.top_entropy=null"
            },
        )
    }

    /// What the function is, and whether it can be called.
    pub(super) fn introduce(&self) -> Result<Introduction, Halt<FunctionError>> {
        let (header, _) = self.ask(b"{}\n")?;
        let found = header.introduction.ok_or_else(|| self.error("was not introduced", "start again"))?;
        if let Some(line) = found.line {
            let _ = self.line.set(line);
        }
        Ok(found)
    }

    pub(super) fn call(&self, request: Request) -> Result<Answer, Halt<FunctionError>> {
        let (header, numbers) = self.ask(&request.into_bytes())?;
        let mut rest = numbers.as_slice();
        let mut arrays = Vec::with_capacity(header.arrays.len());
        for length in header.arrays {
            let (array, others) = rest.split_at(length.min(rest.len()));
            arrays.push(array.to_vec());
            rest = others;
        }
        Ok(Answer { arrays, is_differentiated: header.style == "torch" })
    }

    /// Sends a request and waits for its answer. A process that ends meanwhile is started again.
    fn ask(&self, request: &[u8]) -> Result<(Header, Vec<f64>), Halt<FunctionError>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut restarts = Restarts::<()>::new(MAX_RESTARTS);
        loop {
            let failure = match self.ask_once(&mut running, request) {
                Ok((Header { error: Some(message), .. }, _)) => RewardFailure::Function { message },
                Ok(answer) => return Ok(answer),
                Err(failure) => {
                    *running = None;
                    failure
                }
            };
            let has_ended = matches!(failure, RewardFailure::Ended { .. });
            let is_hopeless = !self.has_answered.load(Ordering::Relaxed);
            if !has_ended || is_hopeless || restarts.allow().is_err() {
                let python = self.argv.first().map_or("", String::as_str);
                return Err(of_failure(self.key, python, &self.place(), &failure));
            }
            self.listener.warn(&format!(
                "{}: the process of {} is started again, {restarts}: {failure}",
                self.key,
                self.place()
            ));
        }
    }

    fn ask_once(
        &self,
        running: &mut Option<Running>,
        request: &[u8],
    ) -> Result<(Header, Vec<f64>), RewardFailure> {
        let running = match running {
            Some(running) => running,
            None => running.insert(self.start()?),
        };
        running.child.send(request.to_vec());
        let allowed = if running.has_answered {
            self.timeout
        } else {
            self.timeout.saturating_add(self.startup_timeout)
        };
        let goes_on = |wait: &AnswerWait| {
            if wait.is_long {
                self.listener.say(&format!(
                    "{}: no answer yet from {} for {:.0} s; it is given up after {} s",
                    self.key,
                    self.place(),
                    wait.waited.as_secs_f64(),
                    allowed.as_secs_f64()
                ));
            }
            !self.listener.is_interrupted()
        };
        match running.child.await_answer(&running.answers, allowed, &goes_on)? {
            Output::Answer(header, numbers) => {
                running.has_answered = true;
                self.has_answered.store(true, Ordering::Relaxed);
                Ok((header, numbers))
            }
            Output::Garbage(reason) => Err(fault!("its answer cannot be read: {reason}").into()),
        }
    }

    fn start(&self) -> Result<Running, RewardFailure> {
        let mut command = tamis_process::command(&self.argv);
        // Threads that spin while this process samples would take its cores.
        if std::env::var_os("OMP_WAIT_POLICY").is_none() {
            command.env("OMP_WAIT_POLICY", "passive");
        }
        let errors = Errors::Copied(self.printed.copy());
        let settings = ChildSettings { name: "function", grace: GRACE, reach: Reach::Group, errors };
        let (sender, answers) = sync_channel(1);
        let child = LineChild::start(command, settings, move |stdout, _| read_answers(stdout, &sender));
        let child = child.map_err(|error| RewardFailure::Start {
            program: self.argv.first().cloned().unwrap_or_default(),
            reason: error.to_string(),
        })?;
        Ok(Running { child, answers, has_answered: false })
    }
}

fn read_answers(stdout: ChildStdout, answers: &SyncSender<Output>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LONGEST_HEADER).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return,
        }
        let header: Header = match serde_json::from_slice(&line) {
            Ok(header) => header,
            Err(error) => {
                let _ = answers.send(Output::Garbage(error.to_string()));
                return;
            }
        };
        let length = header.arrays.iter().try_fold(0_usize, |sum, &length| sum.checked_add(length));
        let Some(num_bytes) =
            length.and_then(|length| length.checked_mul(8)).filter(|&num| num <= LARGEST_ANSWER)
        else {
            let _ = answers.send(Output::Garbage(format!("it is longer than {LARGEST_ANSWER} bytes")));
            return;
        };
        let mut body = Vec::new();
        match reader.by_ref().take(num_bytes as u64).read_to_end(&mut body) {
            Ok(read) if read == num_bytes => {}
            _ => return,
        }
        let numbers = body.chunks_exact(8).map(|bytes| {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            f64::from_ne_bytes(eight)
        });
        if answers.send(Output::Answer(header, numbers.collect())).is_err() {
            return;
        }
    }
}
