//! One external process: a child that speaks lines, asked one call at a time.
//!
//! Its answers wait in a short queue: a flood fills it and then the pipe, never our memory.

use std::collections::BTreeSet;
use std::process::ChildStdout;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tamis_core::fault;
use tamis_process::{AnswerWait, ChildSettings, Errors, Line, LineChild, Lines, Reach};

use super::config::CommandConfig;
use super::pool::NamedFunction;
use super::printed::{Printed, PrintedWriter, without_marks};
use super::protocol::{self, Introduced, KnownRows, Reply};
use crate::reward::failure::RewardFailure;
use crate::reward::function::RewardInput;

/// Answer lines that may wait to be taken.
const QUEUE_LINES: usize = 64;
/// Time for a process to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(300);

/// Gets a wait for an answer, and whether the process has not answered yet; returns whether to wait longer.
pub(super) type GoesOn<'a> = dyn Fn(&AnswerWait, bool) -> bool + 'a;

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
    /// Functions whose names it was given.
    named: BTreeSet<usize>,
    /// Functions that have answered; 0 for a program.
    answered: BTreeSet<usize>,
}

impl Process {
    /// Starts the command in a process group of its own; `printed` gets what it prints to standard error.
    pub(super) fn start(
        config: &CommandConfig,
        printed: &Arc<Mutex<Vec<Arc<Printed>>>>,
    ) -> Result<Self, RewardFailure> {
        let mut command = tamis_process::command(&config.argv);
        if let Some(folder) = &config.working_dir {
            command.current_dir(folder);
        }
        let errors = if lock(printed).is_empty() {
            Errors::Kept
        } else {
            let mut writer = PrintedWriter::to(printed);
            Errors::Copied(Box::new(move |bytes| writer.write(bytes)))
        };
        let settings = ChildSettings { name: "reward", grace: GRACE, reach: Reach::Group, errors };
        let (sender, lines) = sync_channel(QUEUE_LINES);
        let limit = config.max_line_bytes;
        let child = LineChild::start(command, settings, move |stdout, _| read_lines(stdout, limit, &sender));
        let child = child.map_err(|error| RewardFailure::Start {
            program: config.argv.first().cloned().unwrap_or_default(),
            reason: error.to_string(),
        })?;
        Ok(Self { child, lines, named: BTreeSet::new(), answered: BTreeSet::new() })
    }

    /// Names a function to the process, once; its number.
    fn name(&mut self, function: Option<&NamedFunction>) -> usize {
        let Some(NamedFunction { id, line }) = function else { return 0 };
        if self.named.insert(*id) {
            self.child.send(line.clone());
        }
        *id
    }

    /// Sends requests and passes on each answer. `goes_on` gets the wait several times a second and may end
    /// it. On a failure the process must be dropped.
    pub(super) fn ask(
        &mut self,
        requests: &[RowRequest<'_>],
        function: Option<&NamedFunction>,
        config: &CommandConfig,
        answered: &mut dyn FnMut(usize, Reply),
        goes_on: &GoesOn<'_>,
    ) -> Result<(), RewardFailure> {
        let id_of_function = self.name(function);
        let function = function.map(|function| function.id);
        for request in requests {
            self.child.send(protocol::request(request.id, request.remaining, function, request.input));
        }
        let mut owed: std::collections::HashMap<u64, usize> =
            requests.iter().map(|request| (request.id, request.row)).collect();
        while !owed.is_empty() {
            let line = self.next_line(id_of_function, config, goes_on)?;
            let (id, reply) = protocol::answer(&line)?;
            let Some(row) = owed.remove(&id) else {
                let reason = format!("no completion with id {id} is waiting for an answer");
                let line: String = line.chars().take(120).collect();
                return Err(RewardFailure::garbage(&line, &reason));
            };
            answered(row, reply);
            self.answered.insert(id_of_function);
        }
        Ok(())
    }

    /// Requests a Python function's introduction. On a failure the process must be dropped.
    pub(super) fn introduce(
        &mut self,
        rows: &KnownRows<'_>,
        function: Option<&NamedFunction>,
        config: &CommandConfig,
        goes_on: &GoesOn<'_>,
    ) -> Result<Introduced, RewardFailure> {
        let id = self.name(function);
        self.child.send(protocol::introduce(rows, function.map(|function| function.id)));
        protocol::introduction(&self.next_line(id, config, goes_on)?)
    }

    fn next_line(
        &mut self,
        function: usize,
        config: &CommandConfig,
        goes_on: &GoesOn<'_>,
    ) -> Result<String, RewardFailure> {
        // The first call of each function may load what it needs.
        let is_fresh = !self.answered.contains(&function);
        let allowed =
            if is_fresh { config.timeout.saturating_add(config.startup_timeout) } else { config.timeout };
        match self.child.await_answer(&self.lines, allowed, &|wait| goes_on(wait, is_fresh)) {
            Ok(Output::Line(line)) => Ok(line),
            Ok(Output::TooLong) => {
                let limit = config.max_line_bytes;
                Err(fault!("an answer is longer than {limit} bytes; the process was killed").into())
            }
            Err(silence) => Err(match RewardFailure::from(silence) {
                RewardFailure::TimedOut { timeout, stderr } => {
                    RewardFailure::TimedOut { timeout, stderr: without_marks(&stderr) }
                }
                RewardFailure::Ended { status, stderr } => {
                    RewardFailure::Ended { status, stderr: without_marks(&stderr) }
                }
                failure => failure,
            }),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // End of input is the sign to finish. A process that has not ended shortly after is killed.
        self.child.close_input();
        if !self.answered.is_empty() {
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
                let line = String::from_utf8_lossy(line);
                if line.trim().is_empty() {
                    continue;
                }
                Output::Line(line.trim_end_matches(['\n', '\r']).to_owned())
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
