//! What a launcher started, wherever it answers: servers whose launcher is lost are asked of another one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tamis_config::{Config, LauncherKind};
use tamis_rollout::launch::{HEALTHY, LaunchError, Say, pause_after};

use super::launcher::{self, Fate, Launcher};
use super::{Cluster, LOOK_EVERY, MOST_RESTARTS, absolute};
use crate::python_program::interpreter;

/// How a launcher is started.
pub(super) struct StartLauncher {
    pub(super) python: String,
    pub(super) kind: LauncherKind,
    pub(super) address: String,
    pub(super) log: PathBuf,
    /// Time for which a cluster that was there may be away.
    pub(super) wait: Duration,
}

impl StartLauncher {
    /// Of a configuration; its log is in a folder.
    pub(super) fn new(config: &Config, logs: &Path) -> Self {
        let program = std::env::current_exe().ok();
        let cluster = &config.cluster;
        Self {
            python: interpreter(&config.learner.python, program.as_deref()),
            kind: cluster.launcher,
            address: cluster.address.clone(),
            log: absolute(logs).join("cluster.log"),
            wait: config.learner.startup_timeout.0,
        }
    }
}

/// What was asked of a launcher.
pub(super) struct Asked {
    pub(super) name: &'static str,
    pub(super) count: usize,
    pub(super) command: Value,
    pub(super) startup_timeout: Duration,
    pub(super) say: Say,
}

impl Asked {
    /// Asks a launcher for it; the number by which news of it are told from news of its predecessors.
    pub(super) fn send_to(&self, launcher: &Launcher) -> u64 {
        let generation = launcher.expect(self.name, self.count, &self.say);
        let mut command = self.command.clone();
        command["generation"] = generation.into();
        launcher.send(&command);
        generation
    }

    /// The addresses where all have come up, or why they have not; `None` while that is open. A launcher that says
    /// nothing for so much longer than it all may take is ended.
    pub(super) fn outcome(
        &self,
        launcher: &Launcher,
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

/// The error of a launcher that has not answered in time, which is ended.
pub(super) fn is_late(
    launcher: &Launcher,
    since: Instant,
    timeout: Duration,
    patience: Duration,
) -> Option<LaunchError> {
    // What it takes to reach the cluster is no part of what the rest takes.
    let (began, timeout) = match launcher.connected_at() {
        Some(at) => (at.max(since), timeout),
        None => (since, timeout.max(launcher.wait)),
    };
    if began.elapsed() < timeout + patience {
        return None;
    }
    let (command, output) = (launcher::COMMAND.to_owned(), launcher.last_lines());
    launcher.kill(&format!("it did not answer within {} s", began.elapsed().as_secs()));
    Some(LaunchError::Late { command, timeout: began.elapsed(), output })
}

/// What is known of a role.
pub(super) struct Standing {
    pub(super) launcher: Arc<Launcher>,
    /// Which request of it they are.
    pub(super) generation: u64,
    /// Where they answered last.
    pub(super) addresses: Vec<String>,
    pub(super) state: State,
    /// How many launchers were started in place of one that was lost, since they were last up for long.
    pub(super) restarts: u32,
}

/// Where a role stands.
pub(super) enum State {
    Up {
        since: Instant,
    },
    /// Another launcher is started then.
    Again {
        at: Instant,
    },
    /// It has been asked of another launcher.
    Asked {
        since: Instant,
    },
    /// No further launcher is started.
    Over {
        reason: String,
    },
}

/// A gang, or servers of one kind, that a launcher started. Dropped, they are ended.
pub struct Role {
    pub(super) cluster: Cluster,
    pub(super) start: StartLauncher,
    pub(super) asked: Asked,
    pub(super) key: Option<String>,
    /// Whether another launcher is started for them where theirs is lost.
    pub(super) returns: bool,
    pub(super) standing: Mutex<Standing>,
}

impl Role {
    pub(super) fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where they answer now. This is what notices that their launcher is gone, and has another one start them.
    pub fn addresses(&self) -> Vec<String> {
        self.look().addresses.clone()
    }

    /// Has the one at this place of [`Self::addresses`] ended and started again.
    pub fn restart(&self, place: usize) {
        let command = json!({"command": "restart", "role": self.asked.name, "index": place});
        self.standing().launcher.send(&command);
    }

    /// What became of one that ended and is not started again, with the end of its output, or of the launcher.
    pub fn ended(&self) -> Option<String> {
        let standing = self.look();
        match &standing.state {
            State::Over { reason } => Some(reason.clone()),
            State::Up { .. } if self.returns => standing.launcher.given_up(self.asked.name),
            State::Again { .. } | State::Asked { .. } => None,
            State::Up { .. } => standing.launcher.ended(self.asked.name),
        }
    }

    /// Whether they are down with their launcher, and another one is to start them.
    pub(super) fn is_returning(&self) -> bool {
        matches!(self.look().state, State::Again { .. } | State::Asked { .. })
    }

    /// Whether they are up again, or why they are given up; `None` while that is open.
    pub(super) fn fate(&self) -> Option<Result<(), String>> {
        match &self.look().state {
            State::Up { .. } => Some(Ok(())),
            State::Over { reason } => Some(Err(reason.clone())),
            State::Again { .. } | State::Asked { .. } => None,
        }
    }

    /// What is known by now. Does what is due, without waiting for it.
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
            // What is left of the last try is news of that one alone while it lasts.
            State::Again { at } if at <= Instant::now() => {
                // One that does not end them is of no use for the next try.
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
                        // What came up of them is in the way of the next try.
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

    /// Has another launcher started after a pause, or gives up.
    pub(super) fn lose(&self, standing: &mut Standing, reason: String) {
        if matches!(standing.state, State::Up { since } if since.elapsed() >= HEALTHY) {
            standing.restarts = 0;
        }
        if standing.restarts == MOST_RESTARTS {
            (self.asked.say)(&format!(
                "{reason}; it is not started again after {MOST_RESTARTS} restarts, and its servers stay away"
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

impl Drop for Role {
    fn drop(&mut self) {
        let standing = self.standing();
        let (launcher, generation) = (Arc::clone(&standing.launcher), standing.generation);
        drop(standing);
        launcher.take_down(self.asked.name, generation);
        let began = Instant::now();
        while !launcher.is_down(self.asked.name, generation) {
            // One that still waits for its cluster has started nothing.
            if launcher.connected_at().is_none() || began.elapsed() >= self.cluster.times.end {
                self.cluster.give_up(&launcher, self.asked.name);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
