//! The thread that starts, supervises and ends programs: one process for each episode, with a time limit, a
//! bounded output, and a group that is killed at the end.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tamis_process::ending;

use super::ledger::{Calls, Ledger};
use super::outcome::{self, ProgramFailure, ProgramOutcome};
use super::process::{Process, ProcessEnd};
use super::{EpisodeNumber, ProgramSettings};

/// Interval at which processes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Longest time for killed processes to be gone when the host ends.
const GRACE: Duration = Duration::from_secs(5);

pub(super) enum Order {
    /// Start the program of an episode, once there is room.
    Begin { episode: EpisodeNumber, token: String, task: String },
    /// Kill the program of an episode.
    End(EpisodeNumber),
    /// Kill all programs.
    Stop,
}

struct WaitingEpisode {
    episode: EpisodeNumber,
    token: String,
    task: String,
}

pub(super) struct Supervisor {
    settings: Arc<ProgramSettings>,
    ledger: Arc<Ledger>,
    address: SocketAddr,
    waiting: VecDeque<WaitingEpisode>,
    running: BTreeMap<EpisodeNumber, Process>,
    /// Killed, and not reaped yet.
    killed: Vec<Process>,
}

impl Supervisor {
    pub(super) fn new(settings: Arc<ProgramSettings>, ledger: Arc<Ledger>, address: SocketAddr) -> Self {
        let (waiting, running, killed) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        Self { settings, ledger, address, waiting, running, killed }
    }

    /// Runs until it is asked to stop, or no sender is left.
    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let is_idle = self.running.is_empty() && self.killed.is_empty();
            let order = if is_idle {
                orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                orders.recv_timeout(LOOK_EVERY)
            };
            match order {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(order) => self.follow(order),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look();
        }
        self.stop();
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Begin { episode, token, task } => {
                self.waiting.push_back(WaitingEpisode { episode, token, task });
            }
            Order::End(episode) => {
                self.waiting.retain(|waiting| waiting.episode != episode);
                if let Some(mut process) = self.running.remove(&episode) {
                    process.kill();
                    self.killed.push(process);
                }
            }
            Order::Stop => {}
        }
    }

    fn look(&mut self) {
        let settings = Arc::clone(&self.settings);
        let ended: Vec<(EpisodeNumber, ProcessEnd)> = self
            .running
            .iter_mut()
            .filter_map(|(episode, process)| Some((*episode, process.poll_end(&settings)?)))
            .collect();
        for (episode, end) in ended {
            if let Some(process) = self.running.remove(&episode) {
                // If the episode is no longer open, the exit is ignored.
                if let Some(calls) = self.ledger.calls(episode) {
                    let outcome = read_end(&self.ledger, &process, end, &calls);
                    self.ledger.close(episode, outcome);
                }
                self.killed.push(process);
            }
        }
        self.killed.retain_mut(|process| !process.is_reaped());
        while self.running.len() < settings.max_concurrent
            && let Some(WaitingEpisode { episode, token, task }) = self.waiting.pop_front()
        {
            let folder = format!("episode-{}", self.ledger.random_word("folder", episode.0));
            match Process::start(&settings, &folder, &task, self.address, &token) {
                Ok(process) => {
                    self.running.insert(episode, process);
                }
                Err(reason) => self.ledger.close(episode, Err(reason.into())),
            }
        }
    }

    fn stop(mut self) {
        self.killed.extend(std::mem::take(&mut self.running).into_values());
        for process in &mut self.killed {
            process.kill();
        }
        let began = Instant::now();
        while began.elapsed() < GRACE && !self.killed.iter_mut().all(Process::is_reaped) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Reads the outcome of a program that has ended after these calls.
fn read_end(
    ledger: &Ledger,
    process: &Process,
    end: ProcessEnd,
    calls: &Calls,
) -> Result<ProgramOutcome, ProgramFailure> {
    let settings = &ledger.settings;
    let reason = match end {
        ProcessEnd::Exited(status) if !status.success() => format!("the program failed ({status})"),
        ProcessEnd::Late => format!(
            "the program did not end within {} s, the limit of an episode, and was killed",
            settings.timeout.as_secs_f64()
        ),
        ProcessEnd::Loud => format!(
            "the program printed more than {} bytes, the limit, and was killed",
            settings.max_output_bytes
        ),
        ProcessEnd::Exited(_) if calls.num_calls == 0 => match &calls.last_refusal {
            None => "the program ended without a call: it must call the URL in OPENAI_BASE_URL".to_owned(),
            Some(last) => format!(
                "the program ended without an accepted call: {} were refused, the last one with: {last}",
                calls.num_refused
            ),
        },
        ProcessEnd::Exited(_) => {
            let outcome = process
                .output()
                .and_then(|output| outcome::read(&output, &mut |name| ledger.note_unnamed(name)));
            match outcome {
                Ok(outcome) => return Ok(outcome),
                Err(reason) => reason,
            }
        }
    };
    let last_words = process.last_words();
    let reason = if last_words.is_empty() {
        format!("{reason}; it wrote nothing to its standard error")
    } else {
        reason + &ending("standard error", &last_words)
    };
    Err(ProgramFailure { reason, is_late: matches!(end, ProcessEnd::Late) })
}
