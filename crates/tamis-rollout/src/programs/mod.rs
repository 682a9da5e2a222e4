//! Agents as programs: any program that speaks OpenAI's API plays an episode, and the policy answers
//! its calls.
//!
//! ```text
//! owner ── begin(task) ──> ProgramHost ── starts ──> program
//!       <── Asked ────────              <── POST {OPENAI_BASE_URL}/chat/completions ──
//!       ── answer ───────>              ── the completion ──>
//!       <── Ended ────────              <── last line of its output, exit status ──
//! ```
//!
//! The host is an HTTP server on 127.0.0.1 and a supervisor of processes, each in its own thread. It
//! knows neither tokens nor templates nor the source of the answers. The owner takes its events
//! ([`ProgramHost::take_events`]) and answers calls ([`ProgramHost::answer`]), at any time and in any
//! order.
//!
//! # What a program gets
//!
//! A process and a process group of its own, for one episode, in a clean environment with these
//! variables:
//!
//! | variable | what it is |
//! |---|---|
//! | `OPENAI_BASE_URL`, `OPENAI_API_BASE` | `http://127.0.0.1:PORT/e/TOKEN/v1`, only for this episode |
//! | `OPENAI_API_KEY` | the same token: the key of the episode's calls, as clients send it (`Authorization: Bearer`) |
//! | `TAMIS_MODEL` | the name of the policy; calls may name any model |
//! | `TAMIS_TASK` | the path of a file with the task, one line of JSON |
//!
//! The same line is on its standard input, which then ends. Variables of tamis's own environment are
//! passed on unless they look like secrets (`*_API_KEY`, `*_TOKEN`, `*_SECRET`, `*_PASSWORD`, `AWS_*`,
//! `OPENAI_*` and the like). Variables that the settings name are always set. Calls to 127.0.0.1 bypass
//! proxies.
//!
//! `POST chat/completions` is answered in the form that OpenAI's clients read, with tools and
//! log-probabilities, in one piece or as a stream. `POST responses` is the same for texts and tools in
//! the form of their newer interface. `GET models` names the policy. Several calls may be under way at
//! once. A body is read as JSON regardless of its content type.
//!
//! # What it answers
//!
//! It exits with 0, and the end of its standard output holds the outcome:
//! `{"reward": 1.0, "success": true, "info": {"steps": 3}}`, all of it optional, on a line of its own
//! (the last such line counts); or a number as the very last line. Without either, a reward function
//! has to score the episode.
//!
//! These are failures, reported with the last lines of its standard error: another exit code, a signal,
//! more than the time of an episode, a flood of output, and an end without a single call. When the
//! program has ended, the rest of its process group is killed. On Linux processes that have left the
//! group (`setsid`) are killed too; they are recognised by `TAMIS_TASK` in their environment.
//!
//! # What is refused
//!
//! Refusals have OpenAI's form `{"error": {message, type, param, code}}`, are counted by their reason
//! ([`RefusedCalls`]) and ask clients not to retry (`x-should-retry`), except if the reason passes:
//!
//! | status | call |
//! |---|---|
//! | 400, 404, 405 | cannot be read or asks for what is not supported: several samples, images, other routes |
//! | 401 | of an unknown URL, or without the key of the URL's episode |
//! | 403 | more than an episode may make |
//! | 410 | after the end of its episode |
//! | 413 | longer than a call may be |
//! | 429 | too many calls of the episode are under way: passes |
//! | 503 | other long calls take all the room that there is for them: passes |
//!
//! If tamis itself is killed, process groups end a second later, and the folder of all episodes is
//! removed: each has a guard that starts before it. Two kinds of process are not found: at the end of
//! its episode, one that left its group and has a clean environment; and after tamis is killed, any
//! that left its group. Their calls are refused. A client that stops waiting for an answer is reported
//! ([`ProgramEvent::Abandoned`]): OpenAI's does so after ten minutes, and then makes the call again.

mod call;
mod endpoint;
mod ledger;
mod outcome;
mod process;
mod refused;
mod reply;
mod responses;
mod supervisor;
mod surroundings;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tamis_process::GuardedFolder;

pub use self::call::{ChatCall, for_template};
pub use self::outcome::{ProgramFailure, ProgramOutcome};
pub use self::refused::RefusedCalls;
pub use self::reply::{ChatAnswer, ChatError, ChatFinish, ChatLogprob, ChatToolCall, tool_call_id};

use self::ledger::Ledger;
use self::supervisor::{Order, Supervisor};
use crate::connections::{AnyListener, ConnectionLimits, accept, set_or};

/// Longest time that a client may take to send a call, to read part of an answer, or to stay idle
/// between two calls.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

const MOST_CONNECTIONS: usize = 8192;

/// The program of episodes, and what each may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramSettings {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Folder that it runs in; `None`: tamis's own.
    pub working_dir: Option<PathBuf>,
    /// Variables of its environment beside those that it gets anyway, whatever they are called.
    pub environment: Vec<(String, String)>,
    /// Name of the policy.
    pub model: String,
    /// Wall-clock time of an episode, from the start of its process.
    pub timeout: Duration,
    /// Calls of an episode, at most; further ones are refused.
    pub max_calls: usize,
    /// Calls of an episode that are under way at once, at most.
    pub max_calls_at_once: usize,
    /// Processes at once, at most; other episodes wait.
    pub max_concurrent: usize,
    /// Bytes of a call, at most.
    pub max_body_bytes: usize,
    /// Bytes that a program may print, at most.
    pub max_output_bytes: u64,
    /// Folder in which the host has one of its own, with a folder for the task and the output of each episode
    /// until it ends.
    pub scratch_dir: PathBuf,
}

impl ProgramSettings {
    /// Settings of a program and its arguments, with ten minutes and 64 calls an episode, 16 processes.
    pub fn new(argv: Vec<String>) -> Self {
        Self {
            argv,
            working_dir: None,
            environment: Vec::new(),
            model: "policy".to_owned(),
            timeout: Duration::from_secs(600),
            max_calls: 64,
            max_calls_at_once: 16,
            max_concurrent: 16,
            max_body_bytes: 16 << 20,
            max_output_bytes: 64 << 20,
            scratch_dir: std::env::temp_dir(),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.argv.first().is_none_or(String::is_empty) {
            return Err("there is no program: name it and its arguments in `argv`".to_owned());
        }
        let counts = [
            ("timeout", !self.timeout.is_zero()),
            ("max_calls", self.max_calls > 0),
            ("max_calls_at_once", self.max_calls_at_once > 0),
            ("max_concurrent", self.max_concurrent > 0),
            ("max_body_bytes", self.max_body_bytes > 0),
            ("max_output_bytes", self.max_output_bytes > 0),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, is_positive)| !is_positive) {
            return Err(format!("`{name}` of programs must be above 0"));
        }
        let folders = self.working_dir.iter().map(|folder| ("working_dir", folder));
        for (name, folder) in folders.chain([("scratch_dir", &self.scratch_dir)]) {
            if !folder.is_dir() {
                return Err(format!("`{name}` of programs is not a folder: {}", folder.display()));
            }
        }
        let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
        match self.environment.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
            Some((name, _)) => Err(format!("{name:?} cannot be an environment variable of a program")),
            None => Ok(()),
        }
    }
}

/// Number of an episode; none is given twice by a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpisodeNumber(pub u64);

/// Number of a call; none is given twice by a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNumber(pub u64);

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub enum ProgramEvent {
    /// A program waits for an answer.
    Asked {
        /// Its episode.
        episode: EpisodeNumber,
        /// The call to answer.
        call: CallNumber,
        /// Its content.
        chat: ChatCall,
    },
    /// A call was closed before it was answered: the program does not wait any more.
    Abandoned {
        /// The episode.
        episode: EpisodeNumber,
        /// The call; it cannot be answered.
        call: CallNumber,
    },
    /// A program ended; its episode has no more events.
    Ended {
        /// The episode.
        episode: EpisodeNumber,
        /// Its outcome, or why that is not known.
        outcome: Result<ProgramOutcome, ProgramFailure>,
        /// Its calls that were refused.
        refused: RefusedCalls,
    },
}

impl ProgramEvent {
    /// The episode that it is about.
    pub fn episode(&self) -> EpisodeNumber {
        match self {
            Self::Asked { episode, .. } | Self::Abandoned { episode, .. } | Self::Ended { episode, .. } => {
                *episode
            }
        }
    }
}

/// Host of the programs of a run. Dropping it kills them and ends all answers.
pub struct ProgramHost {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    orders: Sender<Order>,
    supervisor: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    _folder: GuardedFolder,
}

impl ProgramHost {
    /// Takes a port of 127.0.0.1. `bell` is called after events were queued, from any thread; it must not
    /// wait.
    ///
    /// # Errors
    /// In words: settings that are of no use, no port, no thread.
    pub fn start(
        mut settings: ProgramSettings,
        bell: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, String> {
        settings.check()?;
        let folder = GuardedFolder::create_in(&settings.scratch_dir, "tamis-program-")
            .map_err(|error| format!("`scratch_dir` of programs cannot be used: {error}"))?;
        folder.path().clone_into(&mut settings.scratch_dir);
        let settings = Arc::new(settings);
        let ledger = Arc::new(Ledger::new(Arc::clone(&settings), Box::new(bell)));
        let failed = |error: std::io::Error| format!("the server for programs cannot be started: {error}");
        let stop = Arc::new(AtomicBool::new(false));
        let (address, server) = serve(Arc::clone(&ledger), Arc::clone(&stop)).map_err(failed)?;
        let (orders, received) = channel();
        let mut host =
            Self { address, ledger, orders, supervisor: None, stop, server: Some(server), _folder: folder };
        let supervisor = Supervisor::new(settings, Arc::clone(&host.ledger), address);
        let thread = std::thread::Builder::new().name("programs".to_owned());
        host.supervisor = Some(thread.spawn(move || supervisor.run(&received)).map_err(failed)?);
        Ok(host)
    }

    /// Address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the program of an episode with its task, or queues it if as many run as may at once. Any
    /// error ends the episode.
    pub fn begin(&self, task: &Value) -> EpisodeNumber {
        let (episode, token) = self.ledger.open();
        self.order(Order::Begin { episode, token, task: task.to_string() });
        episode
    }

    /// Returns the events since the last call. Never waits.
    pub fn take_events(&self) -> Vec<ProgramEvent> {
        self.ledger.take_events()
    }

    /// Answers a call; false if no program waits for it.
    pub fn answer(&self, call: CallNumber, answer: Result<ChatAnswer, ChatError>) -> bool {
        self.ledger.answer(call, answer)
    }

    /// Kills the program of an episode with its process group, and refuses its calls from now on. The
    /// episode has no more events, and waiting ones are dropped; its refused calls are returned. An
    /// episode that has ended is not changed.
    pub fn end(&self, episode: EpisodeNumber) -> RefusedCalls {
        let refused = self.ledger.forget(episode);
        self.order(Order::End(episode));
        refused
    }

    /// All calls that were refused since the last call of this, including those of no episode and of
    /// ended ones.
    pub fn take_refused(&self) -> RefusedCalls {
        self.ledger.take_refused()
    }

    /// Warnings for the user since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        self.ledger.take_warnings()
    }

    /// Why no program makes progress: every ended episode, of at least a minimum number, had its first
    /// calls refused.
    pub fn all_refused(&self) -> Option<String> {
        self.ledger.all_refused()
    }

    /// Episodes that have not ended.
    pub fn num_open(&self) -> usize {
        self.ledger.num_open()
    }

    fn order(&self, order: Order) {
        // The supervisor takes orders for as long as there is a host.
        let _ = self.orders.send(order);
    }
}

impl Drop for ProgramHost {
    fn drop(&mut self) {
        self.ledger.close_all();
        self.order(Order::Stop);
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
        self.stop.store(true, Ordering::SeqCst);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Answers calls in a thread until `stop` is set.
fn serve(ledger: Arc<Ledger>, stop: Arc<AtomicBool>) -> std::io::Result<(SocketAddr, JoinHandle<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let listener = {
        let _entered = runtime.enter();
        AnyListener::Tcp(tokio::net::TcpListener::from_std(listener)?)
    };
    let limits = ConnectionLimits { max_connections: MOST_CONNECTIONS, idle_timeout: IDLE_TIMEOUT };
    let thread = std::thread::Builder::new().name("program-calls".to_owned()).spawn(move || {
        let answer = move |request| endpoint::answer(Arc::clone(&ledger), IDLE_TIMEOUT, request);
        runtime.block_on(accept(listener, limits, answer, set_or(&stop, || false), || {}));
        runtime.shutdown_background();
    })?;
    Ok((address, thread))
}

#[cfg(all(test, unix))]
mod tests;
