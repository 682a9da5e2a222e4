//! The child process of a launcher, and the state that its events describe.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tamis_process::{
    ChildHandle, ChildSettings, Errors, GuardedFolder, LONGEST_LINE, Line, LineChild, Lines, Reach, ending,
};
use tamis_rollout::launch::{LaunchError, Say, last_lines};
use tamis_train::launcher::COMMAND;
use tamis_train::python_program::{module_environment, write_program};

use crate::plan::machines::Machine;

/// Longest time for everything it started to end when it ends.
const LONGEST_END: Duration = Duration::from_secs(40);
/// Longest time for the process to exit after its last event, and after it is killed.
const LONGEST_FAREWELL: Duration = Duration::from_secs(5);
/// Most characters of an invalid line that a message shows.
const MOST_SHOWN: usize = 200;

#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Connected,
    Ready {
        role: String,
        index: usize,
        generation: u64,
        url: String,
    },
    Died(Death),
    Again {
        role: String,
        index: usize,
        generation: u64,
        pause: f64,
        number: u32,
        most: u32,
    },
    Down {
        role: String,
        index: usize,
        generation: u64,
    },
    /// About a request. Without a role it is about the launcher itself.
    Log {
        role: Option<String>,
        index: Option<usize>,
        generation: Option<u64>,
        message: String,
    },
    Machines {
        machines: Vec<Machine>,
    },
    /// As [`Self::Log`].
    Error {
        role: Option<String>,
        index: Option<usize>,
        generation: Option<u64>,
        message: String,
        hint: Option<String>,
        is_last: Option<bool>,
    },
}

/// A process that ended.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Death {
    role: String,
    index: usize,
    generation: u64,
    exit: String,
    /// Whether it is not started again.
    is_last: bool,
    rank: Option<usize>,
    node: String,
    pid: Option<u32>,
    log_tail: String,
}

impl Death {
    /// Names the process.
    fn who(&self) -> String {
        let rank = match self.rank {
            Some(rank) => format!("rank {rank} of the {}", self.role),
            None => format!("{} {}", self.role, self.index + 1),
        };
        let pid = self.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
        format!("{rank} on {}{pid}", self.node)
    }

    fn describe(&self) -> String {
        format!("{} ended ({}){}", self.who(), self.exit, ending("output", &self.log_tail))
    }
}

/// Why a learner or a server did not start.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Died(Box<Death>),
    Refused { message: String, hint: Option<String> },
    Over { status: String, by_signal: bool, output: String },
}

impl Failure {
    /// Describes the end of something that was up.
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

    pub(crate) fn into_error(self, timeout: Duration) -> LaunchError {
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

/// State of a requested role.
pub(crate) enum Fate {
    Open,
    Up(Vec<String>),
    Failed(Failure),
}

/// A gang, or one of several servers.
#[derive(Default)]
struct Group {
    url: Option<String>,
    failure: Option<Failure>,
    /// Why it ended, if it was up and is not started again.
    ended: Option<String>,
    is_down: bool,
}

impl Group {
    /// Records that it is not started again. Returns whether a caller still waits for it to come up, and so
    /// gets the error.
    fn end(&mut self, failure: Failure) -> bool {
        if self.url.is_some() {
            self.ended.get_or_insert_with(|| failure.describe());
            return false;
        }
        self.failure.get_or_insert(failure);
        true
    }
}

/// The latest request for a role.
struct RoleState {
    generation: u64,
    groups: Vec<Group>,
    say: Say,
    /// Whether its end was requested.
    is_unwanted: bool,
}

#[derive(Default)]
struct State {
    roles: BTreeMap<String, RoleState>,
    /// Number of the last request.
    generation: u64,
    /// When it reached its cluster.
    connected_at: Option<Instant>,
    killed: Option<String>,
    /// The cluster's machines, once found.
    machines: Option<Vec<Machine>>,
    /// Why the launcher cannot start anything.
    refusal: Option<Failure>,
    is_over: bool,
}

impl State {
    /// The group that an event is about; `None` if the role has been requested again since.
    fn group(&mut self, role: &str, index: usize, generation: u64) -> Option<(&mut Group, Say)> {
        let role = self.roles.get_mut(role).filter(|role| role.generation == generation)?;
        Some((role.groups.get_mut(index)?, role.say.clone()))
    }

    /// Applies an event. Returns a message for the user, if there is one, and the function that prints it.
    fn take(&mut self, event: Event) -> Option<(Say, String)> {
        match event {
            Event::Connected => {
                self.connected_at = Some(Instant::now());
                None
            }
            Event::Ready { role, index, generation, url } => {
                self.group(&role, index, generation)?.0.url = Some(url);
                None
            }
            Event::Died(death) => {
                let (group, say) = self.group(&death.role, death.index, death.generation)?;
                let (message, is_rank) = (death.describe(), death.rank.is_some());
                if death.is_last && group.end(Failure::Died(Box::new(death))) {
                    return None;
                }
                // A lost rank ends the whole learner, which reports it.
                (!is_rank).then_some((say, message))
            }
            Event::Again { role, index, generation, pause, number, most } => {
                let (_, say) = self.group(&role, index, generation)?;
                let message =
                    format!("{role} {} restarts in {pause} s, restart {number} of at most {most}", index + 1);
                Some((say, message))
            }
            Event::Down { role, index, generation } => {
                let is_unwanted = self.roles.get(&role).is_some_and(|role| role.is_unwanted);
                let (group, _) = self.group(&role, index, generation)?;
                group.is_down = true;
                if !is_unwanted {
                    let message = format!("the launcher dropped {role} {} without a request", index + 1);
                    let hint = Some("see cluster.log in the run folder".to_owned());
                    group.end(Failure::Refused { message, hint });
                }
                None
            }
            Event::Log { role: Some(role), index, generation, message } => {
                let (_, say) = self.group(&role, index?, generation?)?;
                Some((say, message))
            }
            // The first caller prints it, because the sender of a request waits.
            Event::Log { role: None, message, .. } => {
                Some((self.roles.values().next()?.say.clone(), message))
            }
            Event::Machines { machines } => {
                self.machines = Some(machines);
                None
            }
            Event::Error { role: Some(role), index, generation, message, hint, is_last } => {
                let (group, say) = self.group(&role, index?, generation?)?;
                let failure = Failure::Refused { message: message.clone(), hint };
                if is_last.unwrap_or(true) && group.end(failure) {
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

/// The process. When this is dropped, it ends with everything it started.
pub(crate) struct LauncherProcess {
    child: LineChild,
    state: Arc<Mutex<State>>,
    log: PathBuf,
    /// Longest wait for its cluster at the start.
    pub(crate) wait: Duration,
    #[expect(dead_code, reason = "it is there to be dropped, after the process")]
    program: GuardedFolder,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills it, if it has not ended. Its agents end what it started.
fn kill(child: &ChildHandle, state: &Mutex<State>, why: String) {
    let mut state = lock(state);
    if !std::mem::replace(&mut state.is_over, true) {
        state.killed = Some(why);
    }
    drop(state);
    child.kill();
}

impl LauncherProcess {
    pub(crate) fn start(
        python: &str,
        arguments: &[&str],
        log: &Path,
        wait: Duration,
    ) -> Result<Self, LaunchError> {
        let surroundings = |what: &str, source| LaunchError::lacks(COMMAND, what, source);
        let program =
            write_program().map_err(|error| surroundings("its program cannot be written", error))?;
        let open = tamis_file::open_with(log, OpenOptions::new().create(true).append(true));
        let errors = open.map_err(|error| surroundings(&log.display().to_string(), error))?;
        let mut command = Command::new(python);
        command.args(["-m", "tamis.cluster"]).args(arguments);
        command.args(["--wait", &wait.as_secs_f64().to_string()]);
        command.envs(module_environment(program.path()));
        command.stderr(errors);
        let settings = ChildSettings {
            name: "cluster",
            grace: LONGEST_END,
            // Its agents end what it started. Ctrl-C is handled by this process.
            reach: Reach::Leader,
            errors: Errors::AsCommanded,
        };
        let state = Arc::default();
        let told = Arc::clone(&state);
        let child = LineChild::start(command, settings, move |output, child| listen(output, child, &told))
            .map_err(|source| LaunchError::Start { command: format!("{python} -m tamis.cluster"), source })?;
        Ok(Self { child, state, log: log.to_owned(), wait, program })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Kills it, because it does not do what it should. The next request starts another one.
    pub(crate) fn kill(&self, why: &str) {
        kill(&self.child.handle, &self.state, why.to_owned());
    }

    /// Sends it a command. If the process is gone, [`Self::is_over`] finds out.
    pub(crate) fn send(&self, command: &Value) {
        self.child.send(format!("{command}\n").into_bytes());
    }

    /// Prepares for the events of a new request. Returns its number, which the request has to carry.
    pub(crate) fn expect(&self, role: &str, count: usize, say: &Say) -> u64 {
        let groups = (0..count).map(|_| Group::default()).collect();
        let mut state = self.state();
        state.generation += 1;
        let generation = state.generation;
        let role_state = RoleState { generation, groups, say: say.clone(), is_unwanted: false };
        state.roles.insert(role.to_owned(), role_state);
        generation
    }

    /// Asks for the end of a role, unless it has been requested again since.
    pub(crate) fn take_down(&self, role: &str, generation: u64) {
        let mut state = self.state();
        if let Some(role) = state.roles.get_mut(role).filter(|role| role.generation == generation) {
            role.is_unwanted = true;
        }
        drop(state);
        self.send(&json!({"command": "down", "role": role, "generation": generation}));
    }

    /// When it reached its cluster; `None` before.
    pub(crate) fn connected_at(&self) -> Option<Instant> {
        self.state().connected_at
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> u32 {
        self.child.handle.id()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Whether it ended by a signal that this process did not send.
    pub(crate) fn is_lost(&self) -> bool {
        let state = self.state();
        let is_ours = state.killed.is_some() || !state.is_over;
        drop(state);
        !is_ours && matches!(self.end(), Failure::Over { by_signal: true, .. })
    }

    /// Whether nothing of a role is left, or it has been requested again since.
    pub(crate) fn is_down(&self, role: &str, generation: u64) -> bool {
        let state = self.state();
        let role = state.roles.get(role).filter(|role| role.generation == generation);
        state.is_over || role.is_none_or(|role| role.groups.iter().all(|group| group.is_down))
    }

    pub(crate) fn fate(&self, role: &str) -> Fate {
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

    /// The machines that it has found; `None` until it has.
    pub(crate) fn machines(&self) -> Option<Result<Vec<Machine>, Failure>> {
        let mut state = self.state();
        if let Some(machines) = state.machines.take() {
            return Some(Ok(machines));
        }
        let (refusal, is_over) = (state.refusal.clone(), state.is_over);
        drop(state);
        match refusal {
            Some(refusal) => Some(Err(refusal)),
            None => is_over.then(|| Err(self.end())),
        }
    }

    /// Why a group of a role that was up has ended for good, if one has.
    pub(crate) fn given_up(&self, role: &str) -> Option<String> {
        self.state().roles.get(role)?.groups.iter().find_map(|one| one.ended.clone())
    }

    /// As [`Self::given_up`], or why the launcher ended.
    pub(crate) fn ended(&self, role: &str) -> Option<String> {
        self.given_up(role).or_else(|| self.is_over().then(|| self.describe_end()))
    }

    /// Why the process ended. Only for one that is over.
    pub(crate) fn describe_end(&self) -> String {
        self.end().describe()
    }

    /// Its exit status. Waits a short while for it, then kills.
    fn status(&self) -> io::Result<Option<ExitStatus>> {
        let child = &self.child.handle;
        match child.wait_within(LONGEST_FAREWELL) {
            Ok(None) => {
                child.kill();
                child.wait_within(LONGEST_FAREWELL)
            }
            ended => ended,
        }
    }

    fn end(&self) -> Failure {
        let status = self.status();
        let by_signal =
            status.as_ref().is_ok_and(|status| status.is_none_or(|status| status.code().is_none()));
        let mut status = match status {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "it hangs, and cannot be killed".to_owned(),
            Err(error) => error.to_string(),
        };
        if let Some(why) = &self.state().killed {
            status = format!("{status}: {why}");
        }
        Failure::Over { status, by_signal, output: self.last_lines() }
    }

    pub(crate) fn last_lines(&self) -> String {
        last_lines(&self.log)
    }
}

fn listen(output: ChildStdout, child: &ChildHandle, state: &Mutex<State>) {
    let mut lines = Lines::new(output, LONGEST_LINE);
    while let Some(Line::Ended(line) | Line::Unended(line) | Line::TooLong(line)) = lines.next_line() {
        let Ok(event) = serde_json::from_slice(line) else {
            // It is another build, or broken. Without this, callers would wait for an event in vain.
            let said: String = String::from_utf8_lossy(line).chars().take(MOST_SHOWN).collect();
            kill(child, state, format!("it sent `{said}`, which is not an event of this build"));
            return;
        };
        let told = lock(state).take(event);
        if let Some((say, message)) = told {
            say(&message);
        }
    }
    lock(state).is_over = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A learner that was requested twice.
    fn state() -> State {
        let say: Say = Arc::new(|_: &str| {});
        let groups = vec![Group::default()];
        let role = RoleState { generation: 2, groups, say, is_unwanted: false };
        State { roles: BTreeMap::from([("learner".to_owned(), role)]), ..State::default() }
    }

    fn take(state: &mut State, event: &str, generation: u64, more: Value) {
        let Value::Object(mut values) = more else { panic!("an object") };
        let of = json!({"event": event, "role": "learner", "index": 0, "generation": generation});
        values.extend(of.as_object().expect("an object").clone());
        state.take(serde_json::from_value(values.into()).expect("an event"));
    }

    fn died() -> Value {
        json!({"rank": 0, "node": "here", "pid": 1, "exit": "exit status: 1", "is_last": true, "log_tail": ""})
    }

    #[test]
    fn late_news_of_a_predecessor_are_not_its_successor_s() {
        let mut state = state();
        let error = json!({"message": "no room", "hint": null, "is_last": true});
        take(&mut state, "ready", 1, json!({"url": "unix:old"}));
        take(&mut state, "died", 1, died());
        take(&mut state, "error", 1, error);
        take(&mut state, "down", 1, json!({}));
        let group = &state.roles["learner"].groups[0];
        assert!(group.url.is_none() && group.failure.is_none() && group.ended.is_none() && !group.is_down);
        take(&mut state, "ready", 2, json!({"url": "unix:new"}));
        take(&mut state, "died", 2, died());
        let group = &state.roles["learner"].groups[0];
        assert_eq!(group.url.as_deref(), Some("unix:new"));
        assert_eq!(
            group.ended.as_deref(),
            Some("rank 0 of the learner on here, process 1 ended (exit status: 1)")
        );
    }

    #[test]
    fn a_role_that_is_let_go_unasked_is_lost() {
        let expected = "the launcher dropped learner 1 without a request";
        for was_up in [false, true] {
            let mut state = state();
            if was_up {
                take(&mut state, "ready", 2, json!({"url": "unix:new"}));
            }
            take(&mut state, "down", 2, json!({}));
            let group = &state.roles["learner"].groups[0];
            let told =
                if was_up { group.ended.clone() } else { group.failure.clone().map(Failure::describe) };
            assert_eq!(told.as_deref(), Some(expected));
        }
        let mut unwanted = state();
        unwanted.roles.get_mut("learner").expect("one").is_unwanted = true;
        take(&mut unwanted, "down", 2, json!({}));
        let group = &unwanted.roles["learner"].groups[0];
        assert!(group.is_down && group.failure.is_none());
    }
}
