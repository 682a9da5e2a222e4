//! One external process: three threads for its pipes, so that no full pipe can stop a call.
//!
//! The writer owns standard input and takes requests from a queue; the reader turns standard output into
//! lines through a short queue (a flood fills it and then the pipe, never our memory); a third keeps the end
//! of standard error. The threads end with the pipes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::config::CommandConfig;
use super::printed::{Printed, PrintedWriter};
use super::protocol::{self, FunctionIntroduction, Reply};
use crate::process_group::ProcessGroup;
use crate::reward::failure::RewardFailure;
use crate::reward::function::RewardInput;

/// Answer lines that may wait to be taken.
const QUEUE_LINES: usize = 64;
/// Bytes of standard error that are kept.
const STDERR_BYTES: usize = 4096;
/// Lines of standard error that an error shows.
const STDERR_LINES: usize = 12;
/// Time for a process to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(300);

/// Interval at which a wait checks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A wait is long after so much time, and again whenever it has doubled.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A wait for the next answer, as it stands.
pub(super) struct AnswerWait {
    /// Time waited so far.
    pub(super) waited: Duration,
    /// At most.
    pub(super) allowed: Duration,
    /// Whether a person should hear of it now.
    pub(super) is_long: bool,
    /// Whether the process has not answered anything yet.
    pub(super) is_fresh: bool,
}

/// One completion on its way to a process.
#[derive(Clone)]
pub(super) struct RowRequest<'a> {
    /// Index of the completion in the batch.
    pub(super) row: usize,
    /// Id of the request on the wire.
    pub(super) id: u64,
    /// Requests of the same call after it.
    pub(super) remaining: usize,
    /// The completion to score.
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
    group: ProcessGroup,
    requests: Option<Sender<Vec<u8>>>,
    lines: Receiver<Output>,
    stderr: Arc<Mutex<Vec<u8>>>,
    stderr_end: Receiver<()>,
    has_answered: bool,
}

impl Process {
    /// Starts the command in a process group of its own; `printed` gets what it prints to standard error.
    pub(super) fn start(
        config: &CommandConfig,
        printed: Option<&Arc<Printed>>,
    ) -> Result<Self, RewardFailure> {
        let (program, arguments) =
            config.argv.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut command = Program::new(program);
        if let Some(folder) = &config.working_dir {
            command.current_dir(folder);
        }
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failure = |reason: String| RewardFailure::Start { program: program.to_owned(), reason };
        let mut group = ProcessGroup::start(&mut command).map_err(|error| failure(error.to_string()))?;
        let child = group.child();
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr_pipe)) = pipes else {
            return Err(failure("its pipes are missing".to_owned()));
        };
        let (requests, queue) = channel();
        let (sender, lines) = sync_channel(QUEUE_LINES);
        let (end, stderr_end) = channel();
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&stderr);
        let printed = printed.map(Printed::writer);
        let limit = config.max_line_bytes;
        let start_thread = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(body)
                .map_err(|error| failure(error.to_string()))
        };
        let process =
            Self { group, requests: Some(requests), lines, stderr, stderr_end, has_answered: false };
        start_thread("reward-stdin", Box::new(move || write_requests(stdin, &queue)))?;
        start_thread("reward-stdout", Box::new(move || read_lines(stdout, limit, &sender)))?;
        start_thread(
            "reward-stderr",
            Box::new(move || {
                keep_end(stderr_pipe, &kept, printed);
                let _ = end.send(());
            }),
        )?;
        Ok(process)
    }

    /// Sends requests and hands on each answer. `goes_on` hears of the wait several times a second and may
    /// end it. On a failure the process must be dropped.
    pub(super) fn ask(
        &mut self,
        requests: &[RowRequest<'_>],
        config: &CommandConfig,
        answered: &mut dyn FnMut(usize, Reply),
        goes_on: &dyn Fn(&AnswerWait) -> bool,
    ) -> Result<(), RewardFailure> {
        for request in requests {
            let line = protocol::request(request.id, request.remaining, request.input);
            // A closed queue means that the process is gone, which the reader reports.
            let _ = self.requests.as_ref().map(|queue| queue.send(line));
        }
        let mut owed: std::collections::HashMap<u64, usize> =
            requests.iter().map(|request| (request.id, request.row)).collect();
        while !owed.is_empty() {
            let line = self.next_line(config, goes_on)?;
            let (id, reply) = protocol::answer(&line)?;
            let Some(row) = owed.remove(&id) else {
                let reason = format!("no completion with id {id} is waiting for an answer");
                let line = line.chars().take(120).collect();
                return Err(RewardFailure::Garbage { line, reason });
            };
            answered(row, reply);
            self.has_answered = true;
        }
        Ok(())
    }

    /// Asks a Python function what it is. On a failure the process must be dropped.
    pub(super) fn introduce(
        &mut self,
        columns: Option<&BTreeSet<&str>>,
        config: &CommandConfig,
        goes_on: &dyn Fn(&AnswerWait) -> bool,
    ) -> Result<FunctionIntroduction, RewardFailure> {
        let _ = self.requests.as_ref().map(|queue| queue.send(protocol::introduce(columns)));
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
                    return Err(RewardFailure::LineTooLong { limit: config.max_line_bytes });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.wait_shortly();
                    let stderr = self.kill();
                    return Err(RewardFailure::Ended { status, stderr });
                }
            }
        }
    }

    /// The exit status in words, of a process whose output has ended.
    fn wait_shortly(&mut self) -> String {
        let start = Instant::now();
        while start.elapsed() < GRACE {
            match self.group.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(_) => break,
            }
        }
        "it closed its output".to_owned()
    }

    /// Kills the process group, reaps the process and returns the end of its standard error.
    fn kill(&mut self) -> String {
        self.requests = None;
        self.group.end();
        // A grandchild in another group may hold the pipe open: its words are not waited for.
        let _ = self.stderr_end.recv_timeout(GRACE);
        let kept = lock(&self.stderr);
        let text = String::from_utf8_lossy(&kept);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(STDERR_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // End of input is the sign to finish; whoever has not gone shortly after is killed.
        self.requests = None;
        if self.has_answered {
            let start = Instant::now();
            while start.elapsed() < GRACE {
                match self.lines.recv_timeout(GRACE.saturating_sub(start.elapsed())) {
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
        self.kill();
    }
}

fn write_requests(mut stdin: ChildStdin, queue: &Receiver<Vec<u8>>) {
    while let Ok(line) = queue.recv() {
        if stdin.write_all(&line).is_err() {
            return;
        }
    }
}

fn read_lines(stdout: ChildStdout, limit: usize, lines: &SyncSender<Output>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(limit as u64 + 1).read_until(b'\n', &mut line);
        let is_complete = line.last() == Some(&b'\n');
        let output = match read {
            Ok(0) | Err(_) => return,
            Ok(_) if !is_complete && line.len() > limit => Output::TooLong,
            Ok(_) => Output::Line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned()),
        };
        let is_last = matches!(output, Output::TooLong);
        if lines.send(output).is_err() || is_last {
            return;
        }
    }
}

fn keep_end(mut stderr: impl Read, kept: &Mutex<Vec<u8>>, mut printed: Option<PrintedWriter>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer) {
        if let Some(printed) = &mut printed {
            printed.write(&buffer[..read]);
        }
        let mut kept = lock(kept);
        kept.extend_from_slice(&buffer[..read]);
        let surplus = kept.len().saturating_sub(STDERR_BYTES);
        kept.drain(..surplus);
    }
    if let Some(printed) = &mut printed {
        printed.end();
    }
}

/// A panic in another thread leaves the pool usable: every state it can be left in is a valid one.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
