//! Inference servers as child processes: started, waited for until they answer, restarted if they end,
//! and ended when the value is dropped.
//!
//! Each has its own process group, which is killed with it, because an engine has workers. Its output
//! goes to a file; messages show the last lines. If this process is killed, a guard kills the group.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tamis_core::fault;
use tamis_core::fault::{Fault, chain};
use tamis_process::ending;
use thiserror::Error;

use self::running::{Running, answers};

mod running;

/// Interval at which processes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longest time for a server's answer to a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until the first message that servers are still missing; after that, each time this doubles.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest time for processes to end once they are asked to.
const GRACE: Duration = Duration::from_secs(5);
/// Pause before a server is started again; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before a server is started again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A process that ran at least this long before it ended gets all restarts back, and the first pause.
pub const HEALTHY: Duration = Duration::from_secs(3600);
/// Length of the end of an output file that a message shows, in bytes.
const LAST_BYTES: u64 = 4096;
const LAST_LINES: usize = 20;

/// The address of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerPlace {
    /// A port of 127.0.0.1, on which it answers `GET /health`.
    Port(u16),
    /// A socket in the file system, which takes connections.
    Socket(PathBuf),
}

/// In the form that clients use.
impl std::fmt::Display for ServerPlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port(port) => write!(formatter, "http://127.0.0.1:{port}"),
            Self::Socket(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// A server to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerProcess {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Variables of the environment, beside those of this process.
    pub environment: Vec<(String, String)>,
    /// The command in readable form.
    pub shown: String,
    /// Its kind, for messages: `server`.
    pub what: &'static str,
    /// Its address.
    pub place: ServerPlace,
    /// The file that its output is appended to; its folder exists.
    pub log: PathBuf,
}

/// Servers could not be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The program cannot be run.
    #[error("cannot start `{command}`")]
    Start {
        /// The command.
        command: String,
        /// The underlying error.
        source: io::Error,
    },
    /// The file for its output cannot be written, or no port is free.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The process ended before it answered.
    #[error("`{command}` ended ({status}) before it answered{}", ending("output", output))]
    Ended {
        /// The command.
        command: String,
        /// Exit status in words.
        status: String,
        /// Whether a signal ended it, and not itself.
        by_signal: bool,
        /// The last lines of its output.
        output: String,
    },
    /// A launcher refuses to start it.
    #[error("{message}")]
    Refused {
        /// The reason.
        message: String,
        /// The fix, if it is known.
        hint: Option<String>,
    },
    /// The process did not answer in time.
    #[error("`{command}` did not answer within {} s{}", timeout.as_secs(), ending("output", output))]
    Late {
        /// The command.
        command: String,
        /// The time.
        timeout: Duration,
        /// The last lines of its output.
        output: String,
    },
}

impl LaunchError {
    /// A command cannot start for lack of something: the file for its output, a port.
    pub fn lacks(command: &str, what: impl fmt::Display, source: io::Error) -> Self {
        fault!("cannot start `{command}`: {what}").with_source(source).into()
    }
}

/// Returns `count` different ports of 127.0.0.1 on which nothing listens now.
///
/// # Errors
/// There are none.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // Each is held until all are drawn: one that is given back may be drawn again.
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Pause before the next restart after so many: 1 s, doubling up to a minute.
pub fn pause_after(restarts: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << restarts.min(16)).min(LONGEST_PAUSE)
}

/// Receives messages about servers for the user.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// How long servers may take, and how often they are started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchLimits {
    /// Longest time until all answer for the first time.
    pub startup: Duration,
    /// Longest time for which one that has answered may leave health checks unanswered; `None`: any.
    pub silence: Option<Duration>,
    /// Most restarts of all processes together.
    pub restarts: u32,
    /// How long one ran that has all restarts again, and the first pause.
    pub healthy: Duration,
}

impl LaunchLimits {
    /// For servers that are restarted if they end.
    pub fn of_servers(startup: Duration, silence: Option<Duration>) -> Self {
        Self { startup, silence, restarts: 8, healthy: HEALTHY }
    }

    /// For a process that is supervised by another.
    pub fn once(startup: Duration) -> Self {
        Self { startup, silence: None, restarts: 0, healthy: HEALTHY }
    }
}

/// Processes that were started for a run, by this process or a launcher. Dropped, they are ended.
pub trait Launched: Send + Sync {
    /// Their current addresses. A restart may change one.
    fn addresses(&self) -> Vec<String>;

    /// Ends and restarts the process at this place of [`Self::addresses`], as if it had ended by
    /// itself.
    fn restart(&self, place: usize);

    /// How a process ended that is not restarted, with the end of its output.
    fn ended(&self) -> Option<String>;

    /// The end of a lost process, if its launcher reports that apart from [`Self::ended`]. The report
    /// may come a moment after the loss is noticed.
    fn find_end(&self) -> Option<String> {
        None
    }

    /// The key that they ask for, if the run drew one.
    fn key(&self) -> Option<&str> {
        None
    }

    /// Whether they are down with their launcher, and another one is to start them.
    fn is_returning(&self) -> bool {
        false
    }
}

/// How a process ended that is not restarted.
type Ended = Arc<Mutex<Option<String>>>;

/// Servers of this process, all of which have answered once. Dropping it ends them.
pub struct LaunchedServers {
    addresses: Vec<String>,
    is_over: Arc<AtomicBool>,
    ended: Ended,
    /// Set of the servers that are to be started again, in the order of their addresses.
    to_restart: Vec<Arc<AtomicBool>>,
    watch: Option<JoinHandle<()>>,
}

impl LaunchedServers {
    /// Starts servers and waits until each answers `GET /health`; `None` if the wait was abandoned.
    /// Servers that end later, or that a signal ends before, are restarted.
    ///
    /// # Errors
    /// If one cannot be started, ends by itself, or does not answer in time. All of them are then
    /// ended.
    pub fn start(
        processes: Vec<ServerProcess>,
        limits: LaunchLimits,
        interrupted: &AtomicBool,
        say: Say,
    ) -> Result<Option<Self>, LaunchError> {
        let addresses = processes.iter().map(|process| process.place.to_string()).collect();
        let mut servers = Servers(Vec::with_capacity(processes.len()));
        for process in processes {
            say(&format!("starting a {}: {}", process.what, process.shown));
            servers.0.push(Running::start(process)?);
        }
        let Some(restarts) = servers.wait_until_they_answer(limits, interrupted, &say)? else {
            return Ok(None);
        };
        let (is_over, ended) = (Arc::new(AtomicBool::new(false)), Ended::default());
        let to_restart = servers.0.iter().map(|server| Arc::clone(&server.is_to_restart)).collect();
        let watch = {
            let (is_over, ended) = (is_over.clone(), ended.clone());
            let watch = move || servers.watch(limits, restarts, &is_over, &ended, &say);
            std::thread::Builder::new().name("launched".to_owned()).spawn(watch)
        };
        let watch =
            watch.map_err(|source| LaunchError::lacks("servers", "they could not be supervised", source))?;
        Ok(Some(Self { addresses, is_over, ended, to_restart, watch: Some(watch) }))
    }
}

impl Launched for LaunchedServers {
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    fn restart(&self, place: usize) {
        if let Some(server) = self.to_restart.get(place) {
            server.store(true, Ordering::SeqCst);
        }
    }

    fn ended(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LaunchedServers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// Processes that end with the value.
struct Servers(Vec<Running>);

impl Servers {
    /// The number of restarts until all answered; `None` if the wait was abandoned.
    fn wait_until_they_answer(
        &mut self,
        limits: LaunchLimits,
        interrupted: &AtomicBool,
        say: &Say,
    ) -> Result<Option<u32>, LaunchError> {
        let (began, timeout) = (Instant::now(), limits.startup);
        let (mut patience, mut restarts) = (PATIENCE, 0);
        loop {
            for server in self.0.iter_mut().filter(|server| !server.has_answered) {
                let command = server.process.shown.clone();
                if interrupted.load(Ordering::SeqCst) {
                    return Ok(None);
                }
                if let Some(status) = server.poll_end() {
                    // The user or the system ended it; one that ends by itself would do so again.
                    let by_signal = status.code().is_none();
                    if by_signal && restarts < limits.restarts {
                        restarts += 1;
                        let what = server.process.what;
                        say(&format!(
                            "the {what} `{command}` ended ({status}) before it answered, and is restarted"
                        ));
                        *server = Running::start(server.process.clone())?;
                        continue;
                    }
                    let output = last_lines(&server.process.log);
                    return Err(LaunchError::Ended {
                        command,
                        status: status.to_string(),
                        by_signal,
                        output,
                    });
                }
                server.has_answered = answers(&server.process.place, HEALTH_TIMEOUT);
                server.heard_at = Instant::now();
                if !server.has_answered && began.elapsed() >= timeout {
                    let output = last_lines(&server.process.log);
                    return Err(LaunchError::Late { command, timeout, output });
                }
            }
            let Some(open) = self.0.iter().find(|server| !server.has_answered) else {
                return Ok(Some(restarts));
            };
            if began.elapsed() >= patience {
                patience *= 2;
                say(&format!(
                    "servers have not answered for {} s; the output of one is in {}",
                    began.elapsed().as_secs(),
                    open.process.log.display()
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Restarts processes that end or hang, each after a growing pause, until the value is dropped.
    /// `restarts` is the number before.
    fn watch(
        mut self,
        limits: LaunchLimits,
        mut restarts: u32,
        is_over: &AtomicBool,
        ended: &Ended,
        say: &Say,
    ) {
        let most_restarts = limits.restarts;
        while !is_over.load(Ordering::SeqCst) {
            for server in &mut self.0 {
                let hangs = limits.silence.filter(|&longest| server.is_silent(longest));
                if let Some(longest) = hangs {
                    let ServerProcess { what, shown, .. } = &server.process;
                    say(&format!(
                        "the {what} `{shown}` has not answered a health check for {} s, and is stopped",
                        longest.as_secs()
                    ));
                    // The group keeps its number until this process has asked for its end.
                    server.end_group();
                }
                if server.is_to_restart.swap(false, Ordering::SeqCst) && !server.is_over {
                    let ServerProcess { what, shown, .. } = &server.process;
                    say(&format!("the {what} `{shown}` is no longer usable, and is stopped"));
                    server.end_group();
                }
                if let Some(status) = server.poll_end() {
                    let output = ending("output", &last_lines(&server.process.log));
                    let ServerProcess { what, shown, .. } = &server.process;
                    let what = format!("the {what} `{shown}` ended ({status}){output}");
                    if server.started_at.elapsed() >= limits.healthy {
                        (restarts, server.restarts) = (0, 0);
                    }
                    if restarts == most_restarts {
                        *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.clone());
                        say(&format!("{what}\nthe server is not restarted after {restarts} restarts"));
                        continue;
                    }
                    restarts += 1;
                    let pause = pause_after(server.restarts);
                    say(&format!(
                        "{what}\nthe server restarts in {} s, restart {restarts} of at most {most_restarts}",
                        pause.as_secs()
                    ));
                    server.again_at = Some(Instant::now() + pause);
                }
                if server.again_at.take_if(|at| *at <= Instant::now()).is_some()
                    && let Err(error) = server.start_again()
                {
                    let pause = pause_after(server.restarts);
                    server.again_at = Some(Instant::now() + pause);
                    say(&format!(
                        "the server cannot be restarted: {}; next attempt in {} s",
                        chain(&error),
                        pause.as_secs()
                    ));
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &self.0 {
            server.ask_to_end();
        }
        let began = Instant::now();
        while began.elapsed() < GRACE
            && self.0.iter_mut().any(|server| !server.is_over && server.poll_end().is_none())
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        for server in &mut self.0 {
            server.kill();
        }
    }
}

/// The end of a file of output; empty if there is no file.
pub fn last_lines(log: &Path) -> String {
    let (bytes, _) = tamis_file::read_end(log, LAST_BYTES).unwrap_or_default();
    tamis_process::last_lines(&String::from_utf8_lossy(&bytes), LAST_LINES, |line| !line.starts_with("$ "))
}

#[cfg(all(test, unix))]
mod tests;
