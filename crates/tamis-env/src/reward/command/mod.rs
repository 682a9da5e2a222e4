//! `command`: an external program scores completions, over JSON lines.
//! A pool of processes is started once and kept. Each call of [`RewardFunction::score`] is cut into chunks of
//! `batch_size` completions in order; idle processes take the next chunk. To a process a chunk is that many
//! lines on its standard input; it answers each with one line on its standard output, in any order. What the
//! lines hold: [`protocol`]. Standard error is free: it is kept in a file of the run or passed on, and its
//! end is shown if the process fails.
//! **When a process misbehaves** (it ends, does not answer in time, answers a line that is too long or that
//! does not say whose answer it is) it is killed with its process group and started again, and the
//! completions of the chunk that it still owed are sent one at a time: the one that fails alone is reported
//! as [`RewardFailure`] and stays without this score, the others are scored. After `max_restarts` restarts
//! without an answer between them the function has broken down ([`RewardFailure::RestartLimit`]); before that
//! if it has never answered and two restarts for each process changed nothing
//! ([`RewardFailure::NeverAnswered`]): a program that cannot work is not started over and over, and a few
//! completions that hang do not end a run.
//!
//! **Every wait is visible.** The listener of [`CommandReward::heard_by`] gets a message about every restart,
//! and about an answer that takes longer than a few seconds. It can end the wait.
//!
//! **Numbers.** NaN (also as the bare word that Python writes) is no answer; an infinite score is a failure.

mod config;
mod printed;
mod process;
pub mod protocol;
pub mod python;
mod settings;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

use tamis_data::prompt::Prompt;

pub use self::config::CommandConfig;
pub use self::printed::Printed;
use self::process::{AnswerWait, Process, RowRequest, lock};
use self::protocol::{FunctionIntroduction, KnownRows, Reply};
pub use self::settings::{CommandSettings, ProcessPool};
use super::error::RewardError;
use super::failure::RewardFailure;
use super::function::{Logged, RewardFunction, RewardInput, RewardOutcome};
use super::listener::{Listener, Nobody};

#[derive(Default)]
struct Slot {
    process: Option<Process>,
    was_started: bool,
}

/// Restarts since the last answer, and the failure that ended the function.
#[derive(Default)]
struct Health {
    restarts: u32,
    has_answered: bool,
    // The failure that was reported in full, so that it is reported only once.
    reported: Option<RewardFailure>,
    last: Option<RewardFailure>,
    broken: Option<RewardFailure>,
}

/// An external reward function. Its processes are killed, with their process groups, when it is dropped.
pub struct CommandReward {
    config: CommandConfig,
    slots: Vec<Mutex<Slot>>,
    health: Mutex<Health>,
    next_id: AtomicU64,
    name: String,
    listener: Arc<dyn Listener>,
    printed: Option<Arc<Printed>>,
    // When a wait was last reported, so that the processes of the pool do not each report it.
    reported: Mutex<Option<Instant>>,
    // What a Python function reported about itself.
    introduced: Mutex<Option<FunctionIntroduction>>,
}

impl CommandReward {
    /// Starts the processes. Fails if the program cannot be started or the configuration is out of range.
    pub fn new(config: CommandConfig) -> Result<Self, RewardError> {
        Self::printing_to(None, config)
    }

    /// The same, with a place for the output of the processes.
    pub(super) fn printing_to(
        printed: Option<Arc<Printed>>,
        config: CommandConfig,
    ) -> Result<Self, RewardError> {
        let fail = |expected, actual| Err(RewardError::parameter("command", expected, actual));
        if config.argv.first().is_none_or(String::is_empty) {
            return fail("a program in argv", "none");
        }
        if config.num_processes == 0 || config.batch_size == 0 {
            return fail("num_processes and batch_size of at least 1", "0");
        }
        if config.timeout.is_zero() {
            return fail("a timeout above 0 s", "0 s");
        }
        let mut slots = Vec::with_capacity(config.num_processes);
        for _ in 0..config.num_processes {
            let process = Process::start(&config, printed.as_ref())
                .map_err(|failure| RewardError::Start { failure })?;
            slots.push(Mutex::new(Slot { process: Some(process), was_started: true }));
        }
        let health = Mutex::default();
        Ok(Self {
            name: config.argv.first().cloned().unwrap_or_default(),
            config,
            slots,
            health,
            next_id: AtomicU64::new(0),
            listener: Arc::new(Nobody),
            printed,
            reported: Mutex::default(),
            introduced: Mutex::default(),
        })
    }

    /// Reports restarts and long waits to a listener, under the function's name.
    #[must_use]
    pub fn heard_by(mut self, name: &str, listener: Arc<dyn Listener>) -> Self {
        name.clone_into(&mut self.name);
        self.listener = listener;
        self
    }

    /// Passes a wait on to the listener. Returns whether to continue waiting.
    fn waits(&self, wait: &AnswerWait) -> bool {
        if self.listener.is_interrupted() {
            return false;
        }
        if wait.is_long {
            let mut reported = lock(&self.reported);
            if reported.is_none_or(|reported| reported.elapsed() >= process::PATIENCE) {
                *reported = Some(Instant::now());
                let more =
                    if wait.is_fresh { " (a fresh process; `startup_timeout` is part of that)" } else { "" };
                self.listener.say(&format!(
                    "reward `{}`: no answer yet from `{}` for {:.0} s; it times out after {} s{more}",
                    self.name,
                    self.config.argv.join(" "),
                    wait.waited.as_secs_f64(),
                    wait.allowed.as_secs_f64(),
                ));
            }
        }
        true
    }

    /// Requests the introduction of the Python function of [`python::PythonSettings`], before any other
    /// request.
    ///
    /// # Errors
    /// The process cannot be started or ended, for example because the file cannot be imported.
    pub fn introduce(&self, rows: &KnownRows<'_>) -> Result<FunctionIntroduction, RewardFailure> {
        let Some(slot) = self.slots.first() else { return Err(RewardFailure::Interrupted) };
        let mut slot = lock(slot);
        let process = match &mut slot.process {
            Some(process) => process,
            None => slot.process.insert(Process::start(&self.config, self.printed.as_ref())?),
        };
        let introduced = process.introduce(rows, &self.config, &|wait| self.waits(wait));
        match &introduced {
            Ok(introduction) => *lock(&self.introduced) = Some(introduction.clone()),
            Err(_) => slot.process = None,
        }
        introduced
    }

    /// Sends requests to the slot's process, which is started if there is none, and passes each answer on.
    /// Returns the reason if it stopped before all were answered.
    fn ask(
        &self,
        slot: &mut Slot,
        requests: &[RowRequest<'_>],
        answered: &mut dyn FnMut(usize, Reply),
    ) -> Result<(), RewardFailure> {
        if self.listener.is_interrupted() {
            return Err(RewardFailure::Interrupted);
        }
        let process = if let Some(process) = &mut slot.process {
            process
        } else {
            let mut health = lock(&self.health);
            if let Some(broken) = &health.broken {
                return Err(broken.clone());
            }
            if slot.was_started {
                self.restart(&mut health)?;
            }
            match Process::start(&self.config, self.printed.as_ref()) {
                Ok(process) => {
                    slot.was_started = true;
                    slot.process.insert(process)
                }
                Err(failure) => {
                    health.broken = Some(failure.clone());
                    return Err(failure);
                }
            }
        };
        let mut any = false;
        let mut answered = |row: usize, reply: Reply| {
            any = true;
            answered(row, reply);
        };
        let result = process.ask(requests, &self.config, &mut answered, &|wait| self.waits(wait));
        if any {
            let mut health = lock(&self.health);
            health.has_answered = true;
            health.restarts = 0;
        }
        if let Err(failure) = &result {
            slot.process = None;
            lock(&self.health).last = Some(failure.clone());
        }
        result
    }

    /// Counts and reports a restart, or returns the reason why there is none.
    fn restart(&self, health: &mut Health) -> Result<(), RewardFailure> {
        let last = || {
            Box::new(
                health
                    .last
                    .clone()
                    .unwrap_or(RewardFailure::Ended { status: "unknown".to_owned(), stderr: String::new() }),
            )
        };
        let limit = self.config.max_restarts;
        let hopeless = u32::try_from(2 * self.slots.len()).unwrap_or(u32::MAX);
        let failure = if health.restarts >= limit {
            RewardFailure::RestartLimit { limit, last: last() }
        } else if !health.has_answered && health.restarts >= hopeless {
            RewardFailure::NeverAnswered { restarts: health.restarts, last: last() }
        } else {
            health.restarts += 1;
            let why = match &health.last {
                Some(failure) if health.reported.as_ref() == Some(failure) => ": the same failure".to_owned(),
                Some(failure) => format!(": {failure}"),
                None => String::new(),
            };
            health.reported.clone_from(&health.last);
            self.listener.warn(&format!(
                "reward `{}`: its process is restarted, restart {} of at most {limit} in a row{why}",
                self.name, health.restarts
            ));
            return Ok(());
        };
        health.broken = Some(failure.clone());
        Err(failure)
    }

    fn run_chunk(&self, slot: &mut Slot, requests: &[RowRequest<'_>], replies: &Mutex<Vec<Option<Reply>>>) {
        let failed = |failure| Reply { outcome: RewardOutcome::Failed(failure), logged: Logged::default() };
        let mut open: Vec<bool> = vec![true; requests.len()];
        let first_row = requests.first().map_or(0, |request| request.row);
        let mut set = |row: usize, reply: Reply| {
            if let Some(flag) = open.get_mut(row - first_row) {
                *flag = false;
            }
            if let Some(place) = lock(replies).get_mut(row) {
                *place = Some(reply);
            }
        };
        let Err(failure) = self.ask(slot, requests, &mut set) else { return };
        let owed: Vec<&RowRequest<'_>> =
            requests.iter().zip(&open).filter(|(_, is_open)| **is_open).map(|(request, _)| request).collect();
        if requests.len() == 1 || failure == RewardFailure::Interrupted {
            for request in owed {
                lock(replies)[request.row] = Some(failed(failure.clone()));
            }
            return;
        }
        for request in owed {
            let mut set = |row: usize, reply: Reply| {
                if let Some(place) = lock(replies).get_mut(row) {
                    *place = Some(reply);
                }
            };
            let alone = request.alone();
            if let Err(failure) = self.ask(slot, std::slice::from_ref(&alone), &mut set) {
                set(request.row, failed(failure));
            }
        }
    }
}

impl RewardFunction for CommandReward {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.score_logged(batch).0
    }

    fn score_logged(&self, batch: &[RewardInput<'_>]) -> (Vec<RewardOutcome>, Vec<Logged>) {
        let first_id = self.next_id.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let chunks: VecDeque<Range<usize>> = (0..batch.len())
            .step_by(self.config.batch_size)
            .map(|start| start..(start + self.config.batch_size).min(batch.len()))
            .collect();
        let num_workers = self.slots.len().min(chunks.len());
        let chunks = Mutex::new(chunks);
        let replies: Mutex<Vec<Option<Reply>>> = Mutex::new(vec![None; batch.len()]);
        // Another call may hold some of the processes at the same time.
        let work = |first: usize| {
            let places = self.slots.iter().cycle().skip(first).take(self.slots.len());
            let free = places.filter_map(|slot| match slot.try_lock() {
                Ok(slot) => Some(slot),
                Err(TryLockError::Poisoned(slot)) => Some(slot.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            });
            let mut slot = { free }.next().unwrap_or_else(|| lock(&self.slots[first]));
            loop {
                let Some(rows) = lock(&chunks).pop_front() else { return };
                let requests: Vec<RowRequest<'_>> = rows
                    .clone()
                    .map(|row| RowRequest {
                        row,
                        id: first_id + row as u64,
                        remaining: rows.end - 1 - row,
                        input: &batch[row],
                    })
                    .collect();
                self.run_chunk(&mut slot, &requests, &replies);
            }
        };
        std::thread::scope(|scope| {
            for first in 0..num_workers {
                scope.spawn(move || work(first));
            }
        });
        let replies = replies.into_inner().unwrap_or_else(PoisonError::into_inner);
        let none = || Reply { outcome: RewardOutcome::NoAnswer, logged: Logged::default() };
        replies
            .into_iter()
            .map(|reply| reply.unwrap_or_else(none))
            .map(|reply| (reply.outcome, reply.logged))
            .unzip()
    }

    fn batch_size(&self) -> usize {
        self.config.batch_size
    }

    fn concurrency(&self) -> usize {
        self.slots.len()
    }

    fn how_to_give_acc(&self) -> Option<&'static str> {
        let style = lock(&self.introduced).as_ref().map(|introduction| introduction.style.clone());
        match style.as_deref() {
            None => Some("let the program answer `scores` with `score` and `acc`"),
            Some("verl" | "simple") => Some("let the function return a dictionary with `score` and `acc`"),
            // TRL's return a number for each completion.
            Some("trl") => None,
            Some(_) => Some("let the function return dictionaries with `overall` and `accuracy`"),
        }
    }

    fn failure_hint(&self) -> Option<String> {
        let style = lock(&self.introduced);
        let FunctionIntroduction { style, signature, .. } = style.as_ref()?;
        Some(format!(
            "reward `{}` calls {signature} as `style: {style}` does (docs/rewards.md); its last message shows the error",
            self.name
        ))
    }

    fn reads_gold(&self) -> Option<bool> {
        lock(&self.introduced).as_ref()?.reads_gold
    }

    /// Gold completions in every common form, since the program's format is not known: the unchanged ground
    /// truth, after `#### `, in `\boxed{}`, after `Answer: `, in `<answer>` tags, and the dataset's own
    /// solution text (column `answer` or `solution`).
    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        let Some(truth) = &prompt.ground_truth else { return Vec::new() };
        let short = super::gsm8k::gold(truth);
        let short = super::as_written::as_written(&short);
        let mut forms = vec![
            truth.clone(),
            format!("#### {short}"),
            format!("\\boxed{{{short}}}"),
            format!("Answer: {short}"),
            format!("<think>\n</think>\n<answer>{short}</answer>"),
        ];
        for column in ["answer", "solution"] {
            if let Some(text) = prompt.columns.get(column).and_then(serde_json::Value::as_str) {
                forms.push(text.to_owned());
            }
        }
        forms
    }
}

#[cfg(test)]
mod tests;
