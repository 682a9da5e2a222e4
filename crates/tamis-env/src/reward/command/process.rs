//! One external process: a child that speaks lines, asked one call at a time.
//!
//! Its answers wait in a short queue: a flood fills it and then the pipe, never our memory.

use std::process::ChildStdout;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tamis_core::fault;
use tamis_process::{ChildSettings, Errors, Line, LineChild, Lines, Reach};

use super::config::CommandConfig;
use super::printed::Printed;
use super::protocol::{self, FunctionIntroduction, KnownRows, Reply};
use crate::reward::failure::RewardFailure;
use crate::reward::function::RewardInput;

/// Answer lines that may wait to be taken.
const QUEUE_LINES: usize = 64;
const STDERR_LINES: usize = 12;
/// Time for a process to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(300);

/// Interval at which a wait checks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A wait is long after so much time, and again whenever it has doubled.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The present state of a wait for the next answer.
pub(super) struct AnswerWait {
    pub(super) waited: Duration,
    /// At most.
    pub(super) allowed: Duration,
    /// Whether the user should be informed now.
    pub(super) is_long: bool,
    /// Whether the process has not answered anything yet.
    pub(super) is_fresh: bool,
}

#[derive(Clone)]
pub(super) struct RowRequest<'a> {
    /// Index of the completion in the batch.
    pub(super) row: usize,
    pub(super) id: u64,
    /// Requests of the same call after it.
    pub(super) remaining: usize,
    pub(super) input: &'a RewardInput<'a>,
}

impl RowRequest<'_> {
    /// The same request as a call of its own.
    pub(super) fn alone(&self) -> Self {
        Self { remaining: 0, ..self.clone() }
    }
}

enum Output {
    Line(String),
    TooLong,
}

/// A running process. Dropping it kills its process group and reaps it.
pub(super) struct Process {
    child: LineChild,
    lines: Receiver<Output>,
    has_answered: bool,
}

impl Process {
    /// Starts the command in a process group of its own; `printed` gets what it prints to standard error.
    pub(super) fn start(
        config: &CommandConfig,
        printed: Option<&Arc<Printed>>,
    ) -> Result<Self, RewardFailure> {
        let mut command = tamis_process::command(&config.argv);
        if let Some(folder) = &config.working_dir {
            command.current_dir(folder);
        }
        let errors = printed.map_or(Errors::Kept, |printed| Errors::Copied(printed.copy()));
        let settings = ChildSettings { name: "reward", grace: GRACE, reach: Reach::Group, errors };
        let (sender, lines) = sync_channel(QUEUE_LINES);
        let limit = config.max_line_bytes;
        let child = LineChild::start(command, settings, move |stdout, _| read_lines(stdout, limit, &sender));
        let child = child.map_err(|error| RewardFailure::Start {
            program: config.argv.first().cloned().unwrap_or_default(),
            reason: error.to_string(),
        })?;
        Ok(Self { child, lines, has_answered: false })
    }

    /// Sends requests and passes on each answer. `goes_on` gets the wait several times a second and may end
    /// it. On a failure the process must be dropped.
    pub(super) fn ask(
        &mut self,
        requests: &[RowRequest<'_>],
        config: &CommandConfig,
        answered: &mut dyn FnMut(usize, Reply),
        goes_on: &dyn Fn(&AnswerWait) -> bool,
    ) -> Result<(), RewardFailure> {
        for request in requests {
            self.child.send(protocol::request(request.id, request.remaining, request.input));
        }
        let mut owed: std::collections::HashMap<u64, usize> =
            requests.iter().map(|request| (request.id, request.row)).collect();
        while !owed.is_empty() {
            let line = self.next_line(config, goes_on)?;
            let (id, reply) = protocol::answer(&line)?;
            let Some(row) = owed.remove(&id) else {
                let reason = format!("no completion with id {id} is waiting for an answer");
                let line: String = line.chars().take(120).collect();
                return Err(RewardFailure::garbage(&line, &reason));
            };
            answered(row, reply);
            self.has_answered = true;
        }
        Ok(())
    }

    /// Requests a Python function's introduction. On a failure the process must be dropped.
    pub(super) fn introduce(
        &mut self,
        rows: &KnownRows<'_>,
        config: &CommandConfig,
        goes_on: &dyn Fn(&AnswerWait) -> bool,
    ) -> Result<FunctionIntroduction, RewardFailure> {
        self.child.send(protocol::introduce(rows));
        protocol::introduction(&self.next_line(config, goes_on)?)
    }

    /// Waits for the next line that is not empty.
    fn next_line(
        &mut self,
        config: &CommandConfig,
        goes_on: &dyn Fn(&AnswerWait) -> bool,
    ) -> Result<String, RewardFailure> {
        let began = Instant::now();
        let mut long = PATIENCE;
        loop {
            let allowed = if self.has_answered {
                config.timeout
            } else {
                config.timeout.saturating_add(config.startup_timeout)
            };
            let waited = began.elapsed();
            let left = allowed.saturating_sub(waited);
            if left.is_zero() {
                let stderr = self.kill();
                return Err(RewardFailure::TimedOut { timeout: allowed, stderr });
            }
            let is_long = waited >= long;
            if is_long {
                long *= 2;
            }
            if !goes_on(&AnswerWait { waited, allowed, is_long, is_fresh: !self.has_answered }) {
                return Err(RewardFailure::Interrupted);
            }
            match self.lines.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(Output::Line(line)) if line.trim().is_empty() => {}
                Ok(Output::Line(line)) => return Ok(line),
                Ok(Output::TooLong) => {
                    let limit = config.max_line_bytes;
                    return Err(
                        fault!("an answer is longer than {limit} bytes; the process was killed").into()
                    );
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.handle.status_within(GRACE);
                    let stderr = self.kill();
                    return Err(RewardFailure::Ended { status, stderr });
                }
            }
        }
    }

    /// Kills the process group, reaps the process and returns the end of its standard error.
    fn kill(&self) -> String {
        self.child.end();
        self.child.last_words(STDERR_LINES)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // End of input is the sign to finish. A process that has not ended shortly after is killed.
        self.child.close_input();
        if self.has_answered {
            let start = Instant::now();
            while self.lines.recv_timeout(GRACE.saturating_sub(start.elapsed())).is_ok()
                && start.elapsed() < GRACE
            {}
        }
        self.child.end();
    }
}

fn read_lines(stdout: ChildStdout, limit: usize, lines: &SyncSender<Output>) {
    let mut read = Lines::new(stdout, limit);
    while let Some(line) = read.next_line() {
        let output = match line {
            Line::TooLong(_) => Output::TooLong,
            Line::Ended(line) | Line::Unended(line) => {
                Output::Line(String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned())
            }
        };
        let is_last = matches!(output, Output::TooLong);
        if lines.send(output).is_err() || is_last {
            return;
        }
    }
}

/// A panic in another thread leaves the pool usable: every state it can be left in is a valid one.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
