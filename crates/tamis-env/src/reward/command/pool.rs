//! The processes of a program or of a file of Python functions, and the functions that share them.
//!
//! Each reward that a pool answers for is a [`Caller`]. The functions of one Python file share a pool, so the
//! file is imported once a process, and what it keeps in globals is there for all of them. One call has a
//! process for itself: answers and printed lines belong to one caller at a time.
//!
//! A process that is lost is started again by the next call, whoever makes it. The restart is counted for
//! the caller that lost it: a function that always ends its process breaks down alone.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

use tamis_process::{AnswerWait, PATIENCE, Restarts, RestartsSpent};

use super::config::CommandConfig;
use super::printed::Printed;
use super::process::{Process, RowRequest, lock};
use super::protocol::{Introduced, KnownRows, Reply};
use crate::reward::error::RewardError;
use crate::reward::failure::RewardFailure;
use crate::reward::listener::Listener;

#[derive(Default)]
pub(super) struct Slot {
    process: Option<Process>,
    was_started: bool,
    /// The caller that lost its last process.
    lost_by: Option<Arc<Caller>>,
}

/// Restarts since the last answer, and the failure that ended the function.
pub(super) struct Health {
    pub(super) restarts: Restarts<RewardFailure>,
    has_answered: bool,
    /// The failure that was reported in full: the same one is not reported twice.
    reported: Option<RewardFailure>,
    broken: Option<RewardFailure>,
}

/// A function of a Python file, as the file's processes know it.
#[derive(Debug, Clone)]
pub(super) struct NamedFunction {
    /// Its number in the pool.
    pub(super) id: usize,
    /// The line that names it to a process.
    pub(super) line: Vec<u8>,
}

/// A reward whose completions the processes of a pool score.
pub(super) struct Caller {
    pub(super) name: String,
    pub(super) listener: Arc<dyn Listener>,
    /// The function in the pool's file; `None` for a program.
    pub(super) function: Option<NamedFunction>,
    pub(super) health: Mutex<Health>,
}

impl Caller {
    /// A caller of a pool with this configuration.
    pub(super) fn new(
        config: &CommandConfig,
        name: impl Into<String>,
        listener: Arc<dyn Listener>,
        function: Option<NamedFunction>,
    ) -> Self {
        let restarts = Restarts::new(config.max_restarts);
        let health = Health { restarts, has_answered: false, reported: None, broken: None };
        Self { name: name.into(), listener, function, health: Mutex::new(health) }
    }

    /// Counts a restart and reports it, or returns why there is none.
    fn restart(&self, num_processes: usize) -> Result<(), RewardFailure> {
        let mut health = lock(&self.health);
        let health = &mut *health;
        let unknown = || RewardFailure::Ended { status: "unknown".to_owned(), stderr: String::new() };
        let last = health.restarts.last().cloned();
        let hopeless = u32::try_from(2 * num_processes).unwrap_or(u32::MAX);
        let num_before = health.restarts.in_a_row();
        let counted = health.restarts.allow();
        let boxed = || Box::new(last.clone().unwrap_or_else(unknown));
        let failure = match counted {
            Err(RestartsSpent { limit }) => RewardFailure::RestartLimit { limit, last: boxed() },
            Ok(()) if !health.has_answered && num_before >= hopeless => {
                RewardFailure::NeverAnswered { restarts: num_before, last: boxed() }
            }
            Ok(()) => {
                let why = match &last {
                    Some(failure) if health.reported.as_ref() == Some(failure) => {
                        ": the same failure".to_owned()
                    }
                    Some(failure) => format!(": {failure}"),
                    None => String::new(),
                };
                health.reported = last;
                self.listener.warn(&format!(
                    "reward `{}`: its process is restarted, {} in a row{why}",
                    self.name, health.restarts
                ));
                return Ok(());
            }
        };
        health.broken = Some(failure.clone());
        Err(failure)
    }
}

/// Processes with the same command line. They are killed, with their process groups, when the last of their
/// callers is dropped.
pub(in crate::reward) struct Pool {
    pub(super) config: CommandConfig,
    pub(super) slots: Vec<Mutex<Slot>>,
    next_id: AtomicU64,
    /// Places for what is printed, by the numbers of the functions.
    printed: Arc<Mutex<Vec<Arc<Printed>>>>,
    /// Names of the rewards whose functions were named, by their numbers.
    named: Mutex<Vec<String>>,
    /// When a wait was last reported: the processes of a pool wait for the same.
    reported: Mutex<Option<Instant>>,
    /// The reward whose introduction showed that the file cannot be imported.
    unusable: Mutex<Option<String>>,
}

impl Pool {
    /// Starts the processes. Fails if the program cannot be started or the configuration is out of range.
    pub(super) fn start(
        config: CommandConfig,
        printed: impl IntoIterator<Item = Arc<Printed>>,
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
        let printed = Arc::new(Mutex::new(printed.into_iter().collect()));
        let mut slots = Vec::with_capacity(config.num_processes);
        for _ in 0..config.num_processes {
            let process = Process::start(&config, &printed);
            let process = process.map_err(|failure| RewardError::Start { failure })?;
            slots.push(Mutex::new(Slot { process: Some(process), was_started: true, lost_by: None }));
        }
        Ok(Self {
            config,
            slots,
            next_id: AtomicU64::new(0),
            printed,
            named: Mutex::default(),
            reported: Mutex::default(),
            unusable: Mutex::default(),
        })
    }

    /// The number of the function of a reward, with a place for what it prints.
    pub(super) fn register(&self, reward: &str, printed: impl FnOnce() -> Arc<Printed>) -> usize {
        let mut named = lock(&self.named);
        if let Some(id) = named.iter().position(|name| name == reward) {
            return id;
        }
        named.push(reward.to_owned());
        let mut places = lock(&self.printed);
        if places.len() < named.len() {
            places.push(printed());
        }
        named.len() - 1
    }

    /// The reward whose introduction failed for the whole file, if it was another one.
    pub(super) fn unusable_since(&self, reward: &str) -> Option<String> {
        lock(&self.unusable).clone().filter(|first| first != reward)
    }

    /// Passes a wait on to the listener. Returns whether to continue to wait.
    fn waits(&self, caller: &Caller, wait: &AnswerWait, is_fresh: bool) -> bool {
        if caller.listener.is_interrupted() {
            return false;
        }
        if wait.is_long {
            let mut reported = lock(&self.reported);
            if reported.is_none_or(|reported| reported.elapsed() >= PATIENCE) {
                *reported = Some(Instant::now());
                let more =
                    if is_fresh { " (a fresh process; `startup_timeout` is part of that)" } else { "" };
                caller.listener.say(&format!(
                    "reward `{}`: no answer yet from `{}` for {:.0} s; it times out after {} s{more}",
                    caller.name,
                    self.config.argv.join(" "),
                    wait.waited.as_secs_f64(),
                    wait.allowed.as_secs_f64(),
                ));
            }
        }
        true
    }

    /// Asks a Python function what it is, before it is asked anything else.
    pub(super) fn introduce(
        &self,
        caller: &Arc<Caller>,
        rows: &KnownRows<'_>,
    ) -> Result<Introduced, RewardFailure> {
        let Some(slot) = self.slots.first() else { return Err(RewardFailure::Interrupted) };
        let mut slot = lock(slot);
        let process = match &mut slot.process {
            Some(process) => process,
            None => slot.process.insert(Process::start(&self.config, &self.printed)?),
        };
        let goes_on = |wait: &AnswerWait, is_fresh| self.waits(caller, wait, is_fresh);
        let introduced = process.introduce(rows, caller.function.as_ref(), &self.config, &goes_on);
        if let Err(failure) = &introduced {
            slot.process = None;
            if *failure != RewardFailure::Interrupted {
                lock(&self.unusable).get_or_insert_with(|| caller.name.clone());
            }
        }
        introduced
    }

    /// Sends requests to the slot's process, starting it if there is none, and hands each answer on; returns
    /// why it stopped before all were answered.
    pub(super) fn ask(
        &self,
        caller: &Arc<Caller>,
        slot: &mut Slot,
        requests: &[RowRequest<'_>],
        answered: &mut dyn FnMut(usize, Reply),
    ) -> Result<(), RewardFailure> {
        if caller.listener.is_interrupted() {
            return Err(RewardFailure::Interrupted);
        }
        if let Some(broken) = &lock(&caller.health).broken {
            return Err(broken.clone());
        }
        let process = if let Some(process) = &mut slot.process {
            process
        } else {
            if slot.was_started {
                let loser = slot.lost_by.as_ref().unwrap_or(caller);
                let counted = loser.restart(self.slots.len());
                if Arc::ptr_eq(loser, caller) {
                    counted?;
                }
                slot.lost_by = None;
            }
            match Process::start(&self.config, &self.printed) {
                Ok(process) => {
                    slot.was_started = true;
                    slot.process.insert(process)
                }
                Err(failure) => {
                    lock(&caller.health).broken = Some(failure.clone());
                    return Err(failure);
                }
            }
        };
        let mut any = false;
        let mut answered = |row: usize, reply: Reply| {
            any = true;
            answered(row, reply);
        };
        let goes_on = |wait: &AnswerWait, is_fresh| self.waits(caller, wait, is_fresh);
        let function = caller.function.as_ref();
        let result = process.ask(requests, function, &self.config, &mut answered, &goes_on);
        let mut health = lock(&caller.health);
        if any {
            health.has_answered = true;
            health.restarts.reset();
        }
        if let Err(failure) = &result {
            slot.process = None;
            slot.lost_by = Some(Arc::clone(caller));
            health.restarts.note(failure.clone());
        }
        result
    }

    /// Cuts completions into chunks of `batch_size` in order, and does the work of each with a process of its
    /// own. Another call may hold some of the processes at the same time. `work` gets the slot, the rows, and
    /// the id of the first row of all.
    pub(super) fn each_chunk(&self, num_rows: usize, work: &(dyn Fn(&mut Slot, Range<usize>, u64) + Sync)) {
        let first_id = self.next_id.fetch_add(num_rows as u64, Ordering::Relaxed);
        let chunks: VecDeque<Range<usize>> = (0..num_rows)
            .step_by(self.config.batch_size)
            .map(|start| start..(start + self.config.batch_size).min(num_rows))
            .collect();
        let num_workers = self.slots.len().min(chunks.len());
        let chunks = Mutex::new(chunks);
        let worker = |first: usize| {
            let places = self.slots.iter().cycle().skip(first).take(self.slots.len());
            let free = places.filter_map(|slot| match slot.try_lock() {
                Ok(slot) => Some(slot),
                Err(TryLockError::Poisoned(slot)) => Some(slot.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            });
            let mut slot = { free }.next().unwrap_or_else(|| lock(&self.slots[first]));
            loop {
                let Some(rows) = lock(&chunks).pop_front() else { return };
                work(&mut slot, rows, first_id);
            }
        };
        std::thread::scope(|scope| {
            for first in 0..num_workers {
                scope.spawn(move || worker(first));
            }
        });
    }
}

/// What the processes of two functions must have in common to be the same.
#[derive(Debug, Clone, PartialEq)]
struct SharedKey {
    file: PathBuf,
    config: CommandConfig,
}

/// The pools of Python files while the rewards of a run are built.
#[derive(Default)]
pub struct SharedPools(Mutex<Vec<(SharedKey, Arc<Pool>)>>);

impl SharedPools {
    /// The pool of a file, started if it is the first with this configuration.
    pub(super) fn open(
        &self,
        file: &Path,
        config: CommandConfig,
        start: impl FnOnce(CommandConfig) -> Result<Pool, RewardError>,
    ) -> Result<Arc<Pool>, RewardError> {
        let key = SharedKey { file: settled(file), config };
        let mut pools = lock(&self.0);
        if let Some((_, pool)) = pools.iter().find(|(other, _)| *other == key) {
            return Ok(Arc::clone(pool));
        }
        let pool = Arc::new(start(key.config.clone())?);
        pools.push((key, Arc::clone(&pool)));
        Ok(pool)
    }

    /// A line about the processes that were started; `None` if there are none.
    pub fn announcement(&self) -> Option<String> {
        let pools = lock(&self.0);
        let num_processes: usize = pools.iter().map(|(_, pool)| pool.slots.len()).sum();
        let files = pools.iter().map(|(key, pool)| {
            let file = key.file.file_name().unwrap_or_default().to_string_lossy();
            match lock(&pool.named).len() {
                0 | 1 => file.into_owned(),
                num_functions => format!("{file} ({num_functions} functions)"),
            }
        });
        let files: Vec<String> = files.collect();
        let plural = if num_processes == 1 { "" } else { "es" };
        (num_processes > 0)
            .then(|| format!("starting {num_processes} reward process{plural}: {}", files.join(", ")))
    }
}

/// A path by which a file is compared: two links to one file stay two.
fn settled(file: &Path) -> PathBuf {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    folder.join(file.file_name().unwrap_or_default())
}
