//! What a launcher started, wherever it answers: servers whose launcher is lost are asked of another one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tamis_config::{Config, LauncherKind};
use tamis_rollout::launch::{HEALTHY, LaunchError, Launched, Say, pause_after};
use tamis_train::launcher::COMMAND;
use tamis_train::python_program::interpreter;

use crate::cluster::{Cluster, LOOK_EVERY, MOST_RESTARTS, absolute};
use crate::launcher::{Fate, LauncherProcess};

/// Longest wait for the news of an end.
const NEWS: Duration = Duration::from_millis(500);

pub(crate) struct StartLauncher {
    pub(crate) python: String,
    pub(crate) kind: LauncherKind,
    pub(crate) address: String,
    pub(crate) log: PathBuf,
    /// Time for which a cluster that was there may be away.
    pub(crate) wait: Duration,
}

impl StartLauncher {
    /// Of a configuration; its log is in a folder.
    pub(crate) fn new(config: &Config, logs: &Path) -> Self {
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

pub(crate) struct Asked {
    pub(crate) name: &'static str,
    pub(crate) count: usize,
    pub(crate) command: Value,
    pub(crate) startup_timeout: Duration,
    pub(crate) say: Say,
}

impl Asked {
    /// Asks a launcher for it; the number by which news of it are told from news of its predecessors.
    pub(crate) fn send_to(&self, launcher: &LauncherProcess) -> u64 {
        let generation = launcher.expect(self.name, self.count, &self.say);
        let mut command = self.command.clone();
        command["generation"] = generation.into();
        launcher.send(&command);
        generation
    }

    /// The addresses where all have come up, or why they have not; `None` while that is open. A launcher that
    /// says nothing for so much longer than it all may take is ended.
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

/// The error of a launcher that has not answered in time, which is ended.
pub(crate) fn is_late(
    launcher: &LauncherProcess,
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
    let (command, output) = (COMMAND.to_owned(), launcher.last_lines());
    launcher.kill(&format!("it did not answer within {} s", began.elapsed().as_secs()));
    Some(LaunchError::Late { command, timeout: began.elapsed(), output })
}

pub(crate) struct Standing {
    pub(crate) launcher: Arc<LauncherProcess>,
    /// Which request of it they are.
    pub(crate) generation: u64,
    /// Where they answered last.
    pub(crate) addresses: Vec<String>,
    pub(crate) state: State,
    /// How many launchers were started in place of one that was lost, since they were last up for long.
    pub(crate) restarts: u32,
}

pub(crate) enum State {
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
pub(crate) struct Role {
    pub(crate) cluster: Cluster,
    pub(crate) start: StartLauncher,
    pub(crate) asked: Asked,
    pub(crate) key: Option<String>,
    /// Whether another launcher is started for them where theirs is lost.
    pub(crate) returns: bool,
    pub(crate) standing: Mutex<Standing>,
}

impl Role {
    pub(crate) fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether they are up again, or why they are given up; `None` while that is open.
    pub(crate) fn fate(&self) -> Option<Result<(), String>> {
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
    pub(crate) fn lose(&self, standing: &mut Standing, reason: String) {
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

impl Launched for Role {
    /// Where they answer now. This is what notices that their launcher is gone, and has another one start
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
            // One that still waits for its cluster has started nothing.
            if launcher.connected_at().is_none() || began.elapsed() >= self.cluster.times.end {
                self.cluster.give_up(&launcher, self.asked.name);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
