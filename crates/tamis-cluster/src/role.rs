//! The learner or servers that a launcher started, as a handle with their addresses. If the launcher of
//! servers is lost, another one starts them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tamis_config::{Config, LauncherKind};
use tamis_process::interpreter;
use tamis_rollout::launch::{HEALTHY, LaunchError, Launched, Say, pause_after};
use tamis_train::launcher::COMMAND;

use crate::cluster::{Cluster, LOOK_EVERY, MOST_RESTARTS, absolute};
use crate::launcher::{Fate, LauncherProcess};

/// Longest wait for the report of an end.
const NEWS: Duration = Duration::from_millis(500);

pub(crate) struct StartLauncher {
    pub(crate) python: String,
    pub(crate) kind: LauncherKind,
    pub(crate) address: String,
    pub(crate) log: PathBuf,
    /// Longest absence of a cluster that was there before.
    pub(crate) wait: Duration,
}

impl StartLauncher {
    /// Settings of a configuration's launcher, which writes its log into this folder.
    pub(crate) fn new(config: &Config, logs: &Path) -> Self {
        let cluster = &config.cluster;
        Self {
            python: interpreter(&config.learner.python),
            kind: cluster.launcher,
            address: cluster.address.clone(),
            log: absolute(logs).join("cluster.log"),
            wait: config.learner.startup_timeout.0,
        }
    }
}

pub(crate) struct Asked {
    pub(crate) name: &'static str,
    pub(crate) count: usize,
    pub(crate) command: Value,
    pub(crate) startup_timeout: Duration,
    pub(crate) say: Say,
}

impl Asked {
    /// Sends the request to a launcher. Returns its number, which tells its events from those of earlier
    /// requests.
    pub(crate) fn send_to(&self, launcher: &LauncherProcess) -> u64 {
        let generation = launcher.expect(self.name, self.count, &self.say);
        let mut command = self.command.clone();
        command["generation"] = generation.into();
        launcher.send(&command);
        generation
    }

    /// The addresses once all are up, or the error; `None` while that is open. A launcher that exceeds
    /// `startup_timeout` by more than `patience` is killed.
    pub(crate) fn outcome(
        &self,
        launcher: &LauncherProcess,
        since: Instant,
        patience: Duration,
    ) -> Option<Result<Vec<String>, LaunchError>> {
        match launcher.fate(self.name) {
            Fate::Up(addresses) => Some(Ok(addresses)),
            Fate::Failed(failure) => Some(Err(failure.into_error(self.startup_timeout))),
            Fate::Open => is_late(launcher, since, self.startup_timeout, patience).map(Err),
        }
    }
}

/// Kills a launcher that has not answered in time. Returns the error; `None` if there is still time.
pub(crate) fn is_late(
    launcher: &LauncherProcess,
    since: Instant,
    timeout: Duration,
    patience: Duration,
) -> Option<LaunchError> {
    // The time to reach the cluster is not part of the start-up time.
    let (began, timeout) = match launcher.connected_at() {
        Some(at) => (at.max(since), timeout),
        None => (since, timeout.max(launcher.wait)),
    };
    if began.elapsed() < timeout + patience {
        return None;
    }
    let (command, output) = (COMMAND.to_owned(), launcher.last_lines());
    launcher.kill(&format!("it did not answer within {} s", began.elapsed().as_secs()));
    Some(LaunchError::Late { command, timeout: began.elapsed(), output })
}

pub(crate) struct Standing {
    pub(crate) launcher: Arc<LauncherProcess>,
    /// Number of their request.
    pub(crate) generation: u64,
    /// Their latest addresses.
    pub(crate) addresses: Vec<String>,
    pub(crate) state: State,
    /// Launchers started as replacements since they were last up for long.
    pub(crate) restarts: u32,
}

pub(crate) enum State {
    Up {
        since: Instant,
    },
    /// Another launcher is started at this time.
    Again {
        at: Instant,
    },
    /// Another launcher has been asked for them.
    Asked {
        since: Instant,
    },
    /// No further launcher is started.
    Over {
        reason: String,
    },
}

/// A gang, or servers of one kind, that a launcher started. They end when this is dropped.
pub(crate) struct Role {
    pub(crate) cluster: Cluster,
    pub(crate) start: StartLauncher,
    pub(crate) asked: Asked,
    pub(crate) key: Option<String>,
    /// Whether a lost launcher is replaced and asked for them again.
    pub(crate) returns: bool,
    pub(crate) standing: Mutex<Standing>,
}

impl Role {
    pub(crate) fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Ok` if they are up, an error if they are not started again, `None` while that is open.
    pub(crate) fn fate(&self) -> Option<Result<(), String>> {
        match &self.look().state {
            State::Up { .. } => Some(Ok(())),
            State::Over { reason } => Some(Err(reason.clone())),
            State::Again { .. } | State::Asked { .. } => None,
        }
    }

    /// Updates the state: does what is due, without waiting.
    fn look(&self) -> MutexGuard<'_, Standing> {
        let mut standing = self.standing();
        match standing.state {
            State::Up { .. } if self.returns && standing.launcher.is_over() => {
                let reason = standing.launcher.describe_end();
                self.lose(&mut standing, reason);
            }
            State::Up { .. } => {
                if let Fate::Up(addresses) = standing.launcher.fate(self.asked.name) {
                    standing.addresses = addresses;
                }
            }
            // Before the next try, the remains of the last one must be gone.
            State::Again { at } if at <= Instant::now() => {
                // A launcher that does not end them is of no use for the next try.
                if !standing.launcher.is_down(self.asked.name, standing.generation) {
                    if at.elapsed() >= self.cluster.times.end {
                        self.cluster.give_up(&standing.launcher, self.asked.name);
                    }
                    return standing;
                }
                match self.cluster.launcher(&self.start) {
                    Ok(launcher) => {
                        standing.generation = self.asked.send_to(&launcher);
                        standing.launcher = launcher;
                        standing.state = State::Asked { since: Instant::now() };
                    }
                    Err(error) => self.lose(&mut standing, error.to_string()),
                }
            }
            State::Asked { since } => {
                match self.asked.outcome(&standing.launcher, since, self.cluster.times.answer) {
                    Some(Ok(addresses)) => {
                        standing.addresses = addresses;
                        standing.state = State::Up { since: Instant::now() };
                    }
                    Some(Err(error)) => {
                        // Those that did come up would be in the way of the next try.
                        standing.launcher.take_down(self.asked.name, standing.generation);
                        self.lose(&mut standing, error.to_string());
                    }
                    None => {}
                }
            }
            State::Again { .. } | State::Over { .. } => {}
        }
        standing
    }

    /// Schedules another launcher after a pause, or gives up after [`MOST_RESTARTS`].
    pub(crate) fn lose(&self, standing: &mut Standing, reason: String) {
        if matches!(standing.state, State::Up { since } if since.elapsed() >= HEALTHY) {
            standing.restarts = 0;
        }
        if standing.restarts == MOST_RESTARTS {
            (self.asked.say)(&format!(
                "{reason}; it is not restarted after {MOST_RESTARTS} restarts, and its servers stay down"
            ));
            standing.state = State::Over { reason };
            return;
        }
        let pause = pause_after(standing.restarts);
        standing.restarts += 1;
        let (restarts, pause_in_s) = (standing.restarts, pause.as_secs());
        (self.asked.say)(&format!(
            "{reason}; another launcher starts its servers in {pause_in_s} s, restart {restarts} of at most \
             {MOST_RESTARTS}"
        ));
        standing.state = State::Again { at: Instant::now() + pause };
    }
}

impl Launched for Role {
    /// Their present addresses. This call is also what notices a lost launcher and has another one start
    /// them.
    fn addresses(&self) -> Vec<String> {
        self.look().addresses.clone()
    }

    fn restart(&self, place: usize) {
        let command = json!({"command": "restart", "role": self.asked.name, "index": place});
        self.standing().launcher.send(&command);
    }

    fn ended(&self) -> Option<String> {
        let standing = self.look();
        match &standing.state {
            State::Over { reason } => Some(reason.clone()),
            State::Up { .. } if self.returns => standing.launcher.given_up(self.asked.name),
            State::Again { .. } | State::Asked { .. } => None,
            State::Up { .. } => standing.launcher.ended(self.asked.name),
        }
    }

    fn find_end(&self) -> Option<String> {
        let began = Instant::now();
        loop {
            let ended = self.ended();
            if ended.is_some() || began.elapsed() >= NEWS {
                return ended;
            }
            std::thread::sleep(NEWS / 20);
        }
    }

    fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn is_returning(&self) -> bool {
        matches!(self.look().state, State::Again { .. } | State::Asked { .. })
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let standing = self.standing();
        let (launcher, generation) = (Arc::clone(&standing.launcher), standing.generation);
        drop(standing);
        launcher.take_down(self.asked.name, generation);
        let began = Instant::now();
        while !launcher.is_down(self.asked.name, generation) {
            // A launcher that still waits for its cluster has started nothing.
            if launcher.connected_at().is_none() || began.elapsed() >= self.cluster.times.end {
                self.cluster.give_up(&launcher, self.asked.name);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
