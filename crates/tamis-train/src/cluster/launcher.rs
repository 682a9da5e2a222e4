//! The child process of a launcher, and what it has said.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tamis_rollout::launch::{LaunchError, Say, last_lines};
use tempfile::TempDir;

use crate::learner::torch::{module_environment, write_program};

/// What it is, for messages.
pub(super) const COMMAND: &str = "python -m tamis.cluster";
/// Longest time for all that it started to end when it does.
const LONGEST_END: Duration = Duration::from_secs(40);

/// What a launcher says, in part.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Ready { role: String, index: usize, url: String },
    Died(Death),
    Again { role: String, index: usize, pause: f64, number: u32, most: u32 },
    Down { role: String, index: usize },
    Log { message: String, role: String },
    Error { role: Option<String>, index: Option<usize>, message: String, hint: Option<String> },
}

/// A process that ended.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Death {
    role: String,
    index: usize,
    exit: String,
    /// Whether it is not started again.
    is_last: bool,
    rank: Option<usize>,
    node: String,
    pid: Option<u32>,
    log_tail: String,
}

impl Death {
    /// Which process it was.
    fn who(&self) -> String {
        let rank = match self.rank {
            Some(rank) => format!("rank {rank} of the {}", self.role),
            None => format!("{} {}", self.role, self.index + 1),
        };
        let pid = self.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
        format!("{rank} on {}{pid}", self.node)
    }

    fn describe(&self) -> String {
        let mut tail = self.log_tail.clone();
        if !tail.is_empty() {
            tail.insert_str(0, "; its output ends:\n");
        }
        format!("{} ended ({}){tail}", self.who(), self.exit)
    }
}

/// Why something did not come up.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Died(Box<Death>),
    Refused {
        message: String,
        hint: Option<String>,
    },
    /// The launcher itself ended.
    Over {
        status: String,
        by_signal: bool,
        output: String,
    },
}

impl Failure {
    /// The end of what had come up.
    fn describe(self) -> String {
        match self {
            Self::Died(death) => death.describe(),
            Self::Refused { message, .. } => message,
            Self::Over { status, output, .. } => {
                let tail =
                    if output.is_empty() { output } else { format!("; the end of cluster.log:\n{output}") };
                format!("the launcher (`{COMMAND}`) ended ({status}){tail}")
            }
        }
    }

    pub(super) fn into_error(self, timeout: Duration) -> LaunchError {
        match self {
            Self::Died(death) if death.exit.starts_with("no answer") => {
                LaunchError::Late { command: death.who(), timeout, output: death.log_tail }
            }
            Self::Died(death) => LaunchError::Ended {
                command: death.who(),
                by_signal: death.exit.starts_with("signal"),
                status: death.exit,
                output: death.log_tail,
            },
            Self::Refused { message, hint } => LaunchError::Refused { message, hint },
            Self::Over { status, by_signal, output } => {
                LaunchError::Ended { command: COMMAND.to_owned(), status, by_signal, output }
            }
        }
    }
}

/// What became of a role that was asked for.
pub(super) enum Fate {
    Open,
    /// All of it are up, at these addresses.
    Up(Vec<String>),
    Failed(Failure),
}

/// A gang, or one of several servers.
#[derive(Default)]
struct Group {
    url: Option<String>,
    failure: Option<Failure>,
    /// What became of a gang that was up.
    ended: Option<String>,
    is_down: bool,
}

struct RoleState {
    groups: Vec<Group>,
    say: Say,
}

#[derive(Default)]
struct State {
    roles: BTreeMap<String, RoleState>,
    /// Why the launcher can start nothing.
    refusal: Option<Failure>,
    is_over: bool,
}

impl State {
    fn group(&mut self, role: &str, index: usize) -> Option<(&mut Group, Say)> {
        let RoleState { groups, say } = self.roles.get_mut(role)?;
        Some((groups.get_mut(index)?, say.clone()))
    }

    /// Takes an event in. Returns what a person is told, and by whom.
    fn take(&mut self, event: Event) -> Option<(Say, String)> {
        match event {
            Event::Ready { role, index, url } => {
                let (group, say) = self.group(&role, index)?;
                let before = group.url.replace(url.clone()).filter(|before| *before != url);
                let message =
                    format!("{role} {} answers at {url} now, where this run does not ask it", index + 1);
                before.map(|_| (say, message))
            }
            Event::Died(death) => {
                let (group, say) = self.group(&death.role, death.index)?;
                if group.url.is_none() && death.is_last {
                    group.failure = Some(Failure::Died(Box::new(death)));
                    return None;
                }
                let message = death.describe();
                if death.rank.is_some() {
                    group.ended = Some(message);
                    return None;
                }
                Some((say, message))
            }
            Event::Again { role, index, pause, number, most } => {
                let (_, say) = self.group(&role, index)?;
                let message = format!(
                    "{role} {} is started again in {pause} s, restart {number} of at most {most}",
                    index + 1
                );
                Some((say, message))
            }
            Event::Down { role, index } => {
                self.group(&role, index)?.0.is_down = true;
                None
            }
            Event::Log { role, message } => Some((self.roles.get(&role)?.say.clone(), message)),
            Event::Error { role: Some(role), index, message, hint } => {
                let (group, say) = self.group(&role, index.unwrap_or(0))?;
                if group.url.is_none() {
                    group.failure = Some(Failure::Refused { message, hint });
                    return None;
                }
                Some((say, message))
            }
            Event::Error { role: None, message, hint, .. } => {
                self.refusal = Some(Failure::Refused { message, hint });
                None
            }
        }
    }
}

/// The process. Dropped, it ends, with all that it started.
pub(super) struct Launcher {
    child: Mutex<Child>,
    input: Mutex<Option<ChildStdin>>,
    state: Arc<Mutex<State>>,
    log: PathBuf,
    #[expect(dead_code, reason = "it is there to be dropped, after the process")]
    program: TempDir,
}

impl Launcher {
    pub(super) fn start(python: &str, arguments: &[&str], log: &Path) -> Result<Self, LaunchError> {
        let surroundings = |what: &str, source| LaunchError::Surroundings {
            command: COMMAND.to_owned(),
            what: what.to_owned(),
            source,
        };
        let program =
            write_program().map_err(|error| surroundings("its program cannot be written", error))?;
        let open = OpenOptions::new().create(true).append(true).open(log);
        let errors = open.map_err(|error| surroundings(&log.display().to_string(), error))?;
        let mut command = Command::new(python);
        command.args(["-m", "tamis.cluster"]).args(arguments);
        command.envs(module_environment(program.path()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        // Ctrl-C is this process's to answer.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let start = |source| LaunchError::Start { command: format!("{python} -m tamis.cluster"), source };
        let mut child = command.spawn().map_err(start)?;
        let state = Arc::new(Mutex::new(State::default()));
        let input = Mutex::new(child.stdin.take());
        let output = child.stdout.take();
        let launcher =
            Self { child: Mutex::new(child), input, state: Arc::clone(&state), log: log.to_owned(), program };
        if let Some(output) = output {
            let listen = move || listen(output, &state);
            let thread = std::thread::Builder::new().name("cluster".to_owned()).spawn(listen);
            thread.map_err(|error| surroundings("nobody could listen to it", error))?;
        }
        Ok(launcher)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it a command. One that is gone is found by [`Self::is_over`].
    pub(super) fn send(&self, command: &Value) {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(input) = input.as_mut() {
            let _ = writeln!(input, "{command}").and_then(|()| input.flush());
        }
    }

    /// Makes room for what is said of a role that is asked for next.
    pub(super) fn expect(&self, role: &str, count: usize, say: &Say) {
        let groups = (0..count).map(|_| Group::default()).collect();
        self.state().roles.insert(role.to_owned(), RoleState { groups, say: say.clone() });
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().is_over
    }

    pub(super) fn is_down(&self, role: &str) -> bool {
        let state = self.state();
        state.is_over
            || state.roles.get(role).is_none_or(|role| role.groups.iter().all(|group| group.is_down))
    }

    pub(super) fn fate(&self, role: &str) -> Fate {
        let state = self.state();
        let Some(RoleState { groups, .. }) = state.roles.get(role) else { return Fate::Open };
        let failures = groups.iter().find_map(|group| group.failure.clone());
        if let Some(failure) = failures.or_else(|| state.refusal.clone()) {
            return Fate::Failed(failure);
        }
        if let Some(urls) = groups.iter().map(|group| group.url.clone()).collect() {
            return Fate::Up(urls);
        }
        let is_over = state.is_over;
        drop(state);
        if is_over { Fate::Failed(self.end()) } else { Fate::Open }
    }

    /// What became of a gang that was up, or of the launcher.
    pub(super) fn ended(&self, role: &str) -> Option<String> {
        let state = self.state();
        let ended =
            state.roles.get(role).and_then(|role| role.groups.iter().find_map(|one| one.ended.clone()));
        let is_over = state.is_over;
        drop(state);
        ended.or_else(|| is_over.then(|| self.end().describe()))
    }

    /// The end of the process itself.
    fn end(&self) -> Failure {
        let status = self.child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        let by_signal = status.as_ref().is_ok_and(|status| status.code().is_none());
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::Over { status, by_signal, output: self.last_lines() }
    }

    pub(super) fn last_lines(&self) -> String {
        last_lines(&self.log)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The end of its input asks it to end.
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        while began.elapsed() < LONGEST_END && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(super::LOOK_EVERY);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Takes in what a launcher says, to its end.
fn listen(output: ChildStdout, state: &Mutex<State>) {
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    for line in BufReader::new(output).lines() {
        let event = line.and_then(|line| serde_json::from_str(&line).map_err(io::Error::from));
        // What is no event is one of another build, and so is its end.
        let Ok(event) = event else { break };
        let told = lock().take(event);
        if let Some((say, message)) = told {
            say(&message);
        }
    }
    lock().is_over = true;
}
