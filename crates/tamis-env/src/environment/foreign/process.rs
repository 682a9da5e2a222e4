//! Worker processes that run environments: a few processes, each with many episodes at once.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ChildStdout;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tamis_process::{
    ChildHandle, ChildSettings, Errors, LONGEST_LINE, Line, LineChild, Lines, Reach, Restarts, RestartsSpent,
    Silence,
};

use super::{
    Body, EnvironmentFault, EnvironmentLine, Introduction, PROTOCOL, body, broke, read_answer,
    read_introduction,
};
use crate::reward::Listener;
use crate::reward::listener::PrintedLines;

const STDERR_LINES: usize = 6;
/// Most lines in a row that are no answers; after that a worker counts as not speaking the protocol.
const MOST_STRAY: usize = 100;
/// Characters of such a line that are shown.
const STRAY_SHOWN: usize = 200;
/// Time for a process to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(500);

/// How workers are started.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerCommand {
    /// Its name in metrics; `None`: from its own name.
    pub name: Option<String>,
    /// Program and arguments; the program is looked up on `PATH`, no shell is involved.
    pub argv: Vec<String>,
    /// Its working folder; `None`: that of this process.
    pub working_dir: Option<PathBuf>,
    /// Environment variables besides those of this process.
    pub variables: Vec<(String, String)>,
    /// The settings in `hello`.
    pub settings: Value,
    /// Processes, at least one.
    pub num_processes: usize,
    /// Longest time from the start to the answer to `hello`.
    pub startup_timeout: Duration,
    /// Most restarts without a finished episode in between.
    pub max_restarts: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Waiting = Arc<Mutex<HashMap<u64, SyncSender<Body>>>>;

/// A worker. When it is dropped, it gets a moment to end, and is then killed with all its children.
struct Worker {
    child: LineChild,
    waiting: Waiting,
    is_over: Arc<AtomicBool>,
    /// Answers that timed out since the last answer.
    num_silent: Arc<AtomicU64>,
}

impl Worker {
    fn start(command: &WorkerCommand, strays: &Arc<Strays>) -> Result<Self, String> {
        let mut process = tamis_process::command(&command.argv);
        if let Some(folder) = &command.working_dir {
            process.current_dir(folder);
        }
        process.envs(command.variables.iter().map(|(name, value)| (name, value)));
        let (waiting, is_over) = (Waiting::default(), Arc::new(AtomicBool::new(false)));
        let num_silent = Arc::new(AtomicU64::new(0));
        let settings = ChildSettings {
            name: "worker",
            grace: GRACE,
            reach: Reach::Group,
            errors: strays.errors(command),
        };
        let read = {
            let (waiting, is_over, num_silent) = (waiting.clone(), is_over.clone(), num_silent.clone());
            let strays = Arc::clone(strays);
            move |stdout: ChildStdout, child: &ChildHandle| {
                hear(stdout, &waiting, child, &strays, &num_silent);
                is_over.store(true, Ordering::SeqCst);
                // Waiting callers then get an error.
                lock(&waiting).clear();
            }
        };
        let child = LineChild::start(process, settings, read).map_err(|error| {
            let program = command.argv.first().map_or("", String::as_str);
            format!("its worker `{program}` cannot be started: {error}")
        })?;
        Ok(Self { child, waiting, is_over, num_silent })
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn send(&self, id: u64, op: &str, mut asked: Body) {
        asked.insert("id".to_owned(), id.into());
        asked.insert("op".to_owned(), op.into());
        self.child.send(format!("{}\n", Value::Object(asked)).into_bytes());
    }

    /// How it ended, with its last output.
    fn end(&self) -> String {
        let status = self.child.handle.status_within(GRACE);
        let last = self.child.last_words(STDERR_LINES);
        let said = if last.is_empty() { String::new() } else { format!(": {last}") };
        format!("the worker of its environment is gone ({status}){said}")
    }
}

/// Lines of workers that are no answers, such as those of a stray `print`. The first causes a warning.
struct Strays {
    listener: Arc<dyn Listener>,
    /// The environment's name in metrics, once it is known.
    environment: OnceLock<String>,
    is_said: AtomicBool,
}

impl Strays {
    /// What a worker prints to its standard error, passed on under the name of its environment and its file.
    fn errors(&self, command: &WorkerCommand) -> Errors {
        let words = ["path", "id"].iter().filter_map(|key| command.settings.get(key)?.as_str());
        let what = { words }.next().or(command.argv.first().map(String::as_str)).unwrap_or_default();
        let what = what.rsplit('/').next().unwrap_or(what);
        let name = command.name.as_deref().map_or_else(String::new, |name| format!(" `{name}`"));
        let mut lines = PrintedLines::new(&format!("environment{name} ({what})"), &self.listener);
        Errors::Copied(Box::new(move |bytes| lines.write(bytes)))
    }

    fn note(&self, line: &str) {
        if !self.is_said.swap(true, Ordering::SeqCst) {
            let name = self.environment.get().map_or_else(String::new, |name| format!(" `{name}`"));
            self.listener.warn(&format!(
                "a worker of the environment{name} wrote a line to its standard output that is not an answer; it is ignored, and later \
                ones too, without another warning (print to standard error instead): {line}"
            ));
        }
    }
}

/// Passes each answer to its caller, until the output ends or has too many lines that are no answers.
fn hear(stdout: ChildStdout, waiting: &Waiting, child: &ChildHandle, strays: &Strays, silent: &AtomicU64) {
    let mut lines = Lines::new(stdout, LONGEST_LINE);
    let mut num_stray = 0;
    while let Some(Line::Ended(line)) = lines.next_line() {
        let answer = match serde_json::from_slice::<Body>(line) {
            Ok(mut answer) => match answer.remove("id").and_then(|id| id.as_u64()) {
                Some(id) => Ok((id, answer)),
                None => Err("it has no `id`".to_owned()),
            },
            Err(_) if line.trim_ascii().is_empty() => continue,
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok((id, answer)) => {
                num_stray = 0;
                silent.store(0, Ordering::SeqCst);
                // No caller waits for late answers, or for answers to requests without a wait.
                let asker = lock(waiting).remove(&id);
                _ = asker.map(|asker| asker.try_send(answer));
            }
            Err(reason) => {
                let shown = String::from_utf8_lossy(line);
                let shown = tamis_core::printable::cut_middle(shown.trim_end(), STRAY_SHOWN);
                if let Some(asker) = id_of(line).and_then(|id| lock(waiting).remove(&id)) {
                    let message = format!("its answer is not JSON ({reason}): {shown}");
                    _ = asker.try_send(Body::from_iter([("error".to_owned(), message.into())]));
                    silent.store(0, Ordering::SeqCst);
                    continue;
                }
                num_stray += 1;
                strays.note(&shown);
                child.note(
                    format!("\nit wrote a line that is not an answer ({reason}): {shown}\n").as_bytes(),
                );
                if num_stray > MOST_STRAY {
                    return;
                }
            }
        }
    }
}

/// The id in an answer that cannot be read, such as one with `NaN`, which Python's `json` writes but JSON
/// does not have.
fn id_of(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?.trim_ascii();
    let (_, rest) = text.strip_prefix('{')?.split_once("\"id\":")?;
    let rest = rest.trim_start();
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

/// Most answers in a row that may time out before a worker counts as lost.
const MOST_SILENT: u64 = 4;

#[derive(Default)]
struct Slot {
    worker: Option<Worker>,
    /// Whether a worker was started here, or a start was tried.
    was_started: bool,
    /// The last start that failed.
    failed: Option<(Instant, EnvironmentFault)>,
}

/// Workers, which are started when they are first needed, and again if one is lost.
pub struct EnvironmentWorkers {
    command: WorkerCommand,
    slots: Vec<Mutex<Slot>>,
    /// Requests without a wait that arrived while a worker was starting.
    untold: Mutex<Vec<(u64, &'static str, Body)>>,
    /// Restarts since the last finished episode, and how the last lost worker ended or why it did not start.
    restarts: Mutex<Restarts<String>>,
    strays: Arc<Strays>,
    next: AtomicU64,
}

impl EnvironmentWorkers {
    /// Starts the first worker and reads its introduction; `listener` gets warnings.
    ///
    /// # Errors
    /// It does not start, or its answer is no introduction.
    pub fn start(
        command: WorkerCommand,
        listener: Arc<dyn Listener>,
    ) -> Result<(Self, Introduction), EnvironmentFault> {
        let slots = (0..command.num_processes.max(1)).map(|_| Mutex::default()).collect();
        let workers = Self {
            restarts: Mutex::new(Restarts::new(command.max_restarts)),
            command,
            slots,
            untold: Mutex::default(),
            strays: Arc::new(Strays {
                listener,
                environment: OnceLock::new(),
                is_said: AtomicBool::new(false),
            }),
            next: AtomicU64::new(1),
        };
        let (worker, introduction) = workers.start_one()?;
        let name = introduction.metric_name(workers.command.name.as_deref());
        _ = workers.strays.environment.set(name);
        *lock(&workers.slots[0]) = Slot { worker: Some(worker), was_started: true, failed: None };
        Ok((workers, introduction))
    }

    /// Starts a worker in a place. It is a restart unless it is the first there.
    fn start_in(&self, slot: &mut Slot) -> Result<Worker, EnvironmentFault> {
        let is_restart = std::mem::replace(&mut slot.was_started, true);
        // The lock is let go before the last loss is read.
        let allowed = if is_restart { lock(&self.restarts).allow() } else { Ok(()) };
        if let Err(RestartsSpent { limit: most }) = allowed {
            let times =
                if most == 0 { "once".to_owned() } else { format!("{} times in a row", u64::from(most) + 1) };
            return Err(EnvironmentFault::Lost(format!(
                "its workers were lost {times} without a finished episode in between, and `environment.max_restarts` ({most}) allows no \
                more; the last time: {}",
                self.last_loss()
            )));
        }
        self.start_one().map(|(worker, _)| worker).inspect_err(|fault| self.note_loss(fault.to_string()))
    }

    fn note_loss(&self, words: String) {
        lock(&self.restarts).note(words);
    }

    fn last_loss(&self) -> String {
        lock(&self.restarts).last().cloned().unwrap_or_default()
    }

    fn start_one(&self) -> Result<(Worker, Introduction), EnvironmentFault> {
        let worker = Worker::start(&self.command, &self.strays).map_err(broke)?;
        let hello = body(json!({"protocol": PROTOCOL, "settings": self.command.settings}));
        let limit = self.command.startup_timeout;
        match self.call(&worker, "hello", hello, limit) {
            Ok(answer) => Ok((worker, read_introduction(answer)?)),
            Err(EnvironmentFault::TimedOut { .. }) => Err(EnvironmentFault::NotStarted { limit }),
            Err(fault) => Err(fault),
        }
    }

    /// Calls a worker that is not shared yet.
    fn call(
        &self,
        worker: &Worker,
        op: &str,
        asked: Body,
        limit: Duration,
    ) -> Result<Body, EnvironmentFault> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let (asker, answer) = sync_channel(1);
        lock(&worker.waiting).insert(id, asker);
        worker.send(id, op, asked);
        if worker.is_over() {
            // It may have ended before the request was registered.
            lock(&worker.waiting).remove(&id);
        }
        match worker.child.await_answer(&answer, limit, &|_| true) {
            Ok(answer) => read_answer(answer),
            Err(Silence::TimedOut { .. }) => Err(EnvironmentFault::TimedOut { limit }),
            Err(Silence::Ended { .. } | Silence::Interrupted) => Err(broke(worker.end())),
        }
    }

    fn slot(&self, place: u64) -> &Mutex<Slot> {
        &self.slots[(place % self.slots.len() as u64) as usize]
    }

    /// A worker's place, once no start is in progress there. A start has its own time limit, separate from
    /// that of an answer.
    fn await_slot(&self, place: u64) -> Result<MutexGuard<'_, Slot>, EnvironmentFault> {
        let (began, limit) = (Instant::now(), self.command.startup_timeout);
        loop {
            match self.slot(place).try_lock() {
                Ok(slot) => return Ok(slot),
                Err(TryLockError::Poisoned(slot)) => return Ok(slot.into_inner()),
                // Workers that were lost one after the other are also restarted one after the other.
                Err(TryLockError::WouldBlock) if began.elapsed() >= limit => {
                    return Err(EnvironmentFault::NotStarted { limit });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl EnvironmentWorkers {
    /// Sends the requests that waited for the start.
    fn tell_rest(&self, slot: &Slot, place: u64) {
        let number = |place: u64| place % self.slots.len() as u64;
        let mut untold = lock(&self.untold);
        for (_, op, asked) in untold.extract_if(.., |(of, ..)| number(*of) == number(place)) {
            if let Some(worker) = &slot.worker {
                worker.send(self.next.fetch_add(1, Ordering::SeqCst), op, asked);
            }
        }
    }
}

impl EnvironmentLine for EnvironmentWorkers {
    fn ask(
        &self,
        place: u64,
        op: &'static str,
        asked: Body,
        limit: Duration,
    ) -> Result<Body, EnvironmentFault> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let (asker, answer) = sync_channel(1);
        let came = Instant::now();
        let (waiting, num_silent) = {
            let mut slot = self.await_slot(place)?;
            if slot.worker.as_ref().is_none_or(Worker::is_over) {
                if let Some(gone) = slot.worker.take() {
                    let words = gone.end();
                    self.note_loss(words.clone());
                    // An episode ends with the worker that it was in.
                    if op == "step" {
                        return Err(broke(words));
                    }
                }
                // If a start failed while this call waited for it, another would fail too.
                if let Some((_, fault)) = slot.failed.as_ref().filter(|(at, _)| *at > came) {
                    return Err(fault.clone());
                }
                match self.start_in(&mut slot) {
                    Ok(worker) => slot.worker = Some(worker),
                    Err(fault) => {
                        slot.failed = Some((Instant::now(), fault.clone()));
                        return Err(fault);
                    }
                }
            }
            self.tell_rest(&slot, place);
            let Some(worker) = slot.worker.as_ref() else { return Err(broke("it has no worker")) };
            lock(&worker.waiting).insert(id, asker);
            worker.send(id, op, asked);
            if worker.is_over() {
                lock(&worker.waiting).remove(&id);
            }
            (Arc::clone(&worker.waiting), Arc::clone(&worker.num_silent))
        };
        // Other episodes share the worker: unlike `await_answer`, this wait does not end it.
        match answer.recv_timeout(limit) {
            Ok(answer) => read_answer(answer),
            Err(RecvTimeoutError::Timeout) => {
                lock(&waiting).remove(&id);
                if num_silent.fetch_add(1, Ordering::SeqCst) + 1 >= MOST_SILENT {
                    // It no longer answers, so another one replaces it.
                    let mut slot = lock(self.slot(place));
                    let is_same = |worker: &mut Worker| Arc::ptr_eq(&worker.num_silent, &num_silent);
                    let silent = slot.worker.take_if(is_same);
                    drop(slot);
                    if silent.is_some() {
                        self.note_loss(format!(
                            "a worker did not answer within {} s, {MOST_SILENT} times in a row",
                            limit.as_secs_f64()
                        ));
                    }
                    drop(silent);
                }
                Err(EnvironmentFault::TimedOut { limit })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let slot = lock(self.slot(place));
                Err(broke(
                    slot.worker
                        .as_ref()
                        .filter(|worker| worker.is_over())
                        // Another one in its place: what became of it was noted.
                        .map_or_else(|| self.last_loss(), Worker::end),
                ))
            }
        }
    }

    /// Workers that are lost from here on are lost anew.
    fn note_ended(&self) {
        lock(&self.restarts).reset();
    }

    fn tell(&self, place: u64, op: &'static str, asked: Body) {
        let slot = match self.slot(place).try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
            // For example, nothing waits for a worker that is being started.
            Err(TryLockError::WouldBlock) => {
                lock(&self.untold).push((place, op, asked));
                return;
            }
        };
        if let Some(worker) = &slot.worker {
            worker.send(self.next.fetch_add(1, Ordering::SeqCst), op, asked);
        }
    }
}
