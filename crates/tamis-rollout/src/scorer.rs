//! Scoring as a source of events: completions in, scores out, with a memory. Answers that are not a
//! function of the run's keys are journalled before they are used.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tamis_core::fault::Fault;
use tamis_core::faults;
use tamis_core::group::{Episode, GroupId, Score, Trajectory};
use tamis_data::prompt::{Message, Prompt};
use tamis_env::reward::{Logged, RewardError, RewardInput, Rewards, Scored, Scoring, TrainerState};
use thiserror::Error;

use crate::episodes::messages_of;
use crate::generator::Wait;

/// A journalled answer: the whole result of scoring one completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournaledAnswer {
    /// Scores by name.
    pub scores: std::collections::BTreeMap<String, Score>,
    /// The weighted sum.
    pub reward: Score,
    /// Message of each function that failed, by the function's name.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub failures: std::collections::BTreeMap<String, String>,
    /// Extra values that the functions logged beside their scores.
    #[serde(default, skip_serializing_if = "Logged::is_empty")]
    pub logged: Logged,
}

impl From<&Scored> for JournaledAnswer {
    fn from(scored: &Scored) -> Self {
        let Scored { scores, reward, failures, logged, .. } = scored.clone();
        Self { scores, reward, failures, logged }
    }
}

impl From<JournaledAnswer> for Scored {
    fn from(answer: JournaledAnswer) -> Self {
        let JournaledAnswer { scores, reward, failures, logged } = answer;
        Self { scores, reward, failures, logged, is_beyond: false }
    }
}

/// Keeps answers of external rewards by trajectory key.
pub trait AnswerJournal {
    /// Returns the recorded answer, each only once, so that nothing is requested twice.
    fn take(&mut self, key: &str) -> Option<JournaledAnswer>;

    /// Records the answers of a step durably, before any of them is used.
    fn put(&mut self, step: u64, answers: &[(String, JournaledAnswer)]) -> Result<(), AnswerJournalError>;

    /// Drops the answers of steps before `next`. From the returned position (in bytes) on the journal
    /// holds all others, which a checkpoint needs.
    fn settle(&mut self, next: u64) -> u64;

    /// Removes everything before a position, which no checkpoint needs any more, if that is worth the
    /// effort.
    fn shorten(&mut self, position: u64) -> Result<(), AnswerJournalError>;
}

/// The journal cannot be written.
#[derive(Debug, Error)]
#[error("failed to journal the answers of external rewards")]
pub struct AnswerJournalError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Scoring cannot continue.
#[derive(Debug, Error)]
pub enum ScoreError {
    /// A reward function failed permanently.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// The journal cannot be written, or the threads that ask reward functions have ended: a fault of tamis.
    #[error(transparent)]
    Fault(#[from] Fault),
}

faults!(ScoreError: AnswerJournalError);

fn panicked() -> ScoreError {
    Fault::new("the threads that wait for reward functions have ended").into()
}

/// One member of a group: its n trajectories are scored one by one.
pub type MemberId = (GroupId, u32);

/// A completion to be scored.
#[derive(Debug, Clone)]
pub struct ScoreRequest {
    /// The member that it belongs to.
    pub member: MemberId,
    /// The trajectory's key in the journal.
    pub key: String,
    /// The prompt.
    pub prompt: Arc<Prompt>,
    /// Completion text, without the part that the prompt began.
    pub completion: String,
    /// Completion tokens \[T\].
    pub completion_ids: Vec<u32>,
    /// Its episode and messages, if an environment played it.
    pub episode: Option<(Episode, Vec<Message>)>,
    /// Training step, from 1.
    pub step: u64,
    /// Pass over the data, from 0.
    pub epoch: u64,
}

impl ScoreRequest {
    /// A request for a member of a group, under its key in the journal.
    pub fn new(
        group: GroupId,
        key: String,
        prompt: Arc<Prompt>,
        trajectory: &Trajectory,
        step: u64,
        epoch: u64,
    ) -> Self {
        let episode = trajectory.episode.as_ref();
        Self {
            member: (group, trajectory.sample_index),
            key,
            prompt,
            completion: trajectory.text.clone(),
            completion_ids: trajectory.token_ids.clone(),
            episode: episode.map(|episode| (episode.clone(), messages_of(episode))),
            step,
            epoch,
        }
    }

    /// The input of reward functions.
    pub fn input(&self) -> RewardInput<'_> {
        RewardInput {
            prompt: &self.prompt,
            completion: &self.completion,
            messages: self.episode.as_ref().map(|(_, messages)| messages.as_slice()),
            episode: self.episode.as_ref().map(|(episode, _)| episode),
            completion_ids: &self.completion_ids,
            step: self.step,
            epoch: self.epoch,
            trainer_state: TrainerState::default(),
        }
    }
}

/// A completion was scored.
#[derive(Debug)]
pub struct ScoreEvent {
    /// The request that was scored.
    pub request: ScoreRequest,
    /// Its scores, or the failures.
    pub scored: Scored,
    /// Whether the reward functions were called now; otherwise the answer was in the journal.
    pub is_new: bool,
}

/// A batch on its way to the reward functions.
struct ScoreJob {
    requests: Vec<ScoreRequest>,
    trainer_state: TrainerState,
}

impl ScoreJob {
    fn run(self, rewards: &Rewards) -> Done {
        let inputs: Vec<RewardInput<'_>> = self.requests.iter().map(ScoreRequest::input).collect();
        let scoring = rewards.answers(&inputs, self.trainer_state).map_err(ScoreError::from);
        Done { scoring, requests: self.requests }
    }
}

struct Done {
    requests: Vec<ScoreRequest>,
    scoring: Result<Scoring, ScoreError>,
}

/// Threads that wait for reward functions outside.
struct Workers {
    tasks: Option<Sender<ScoreJob>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    /// Batches that they have and have not given back.
    num_out: usize,
}

impl Workers {
    /// Starts a thread for each batch that may run at once; `None` if no thread can be started.
    fn start(rewards: &Arc<Rewards>, concurrency: usize) -> Option<Self> {
        let (tasks, queue) = channel::<ScoreJob>();
        let (results, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let work = |_| {
            let (queue, results, rewards) = (queue.clone(), results.clone(), rewards.clone());
            let work = move || {
                loop {
                    let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    // There are no more tasks, or no receiver.
                    let Ok(task) = task else { return };
                    let done = catch_unwind(AssertUnwindSafe(|| task.run(&rewards)));
                    let lost = |_| Done { requests: Vec::new(), scoring: Err(panicked()) };
                    if results.send(done.unwrap_or_else(lost)).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name("tamis-score".to_owned()).spawn(work).ok()
        };
        let threads: Vec<JoinHandle<()>> = (0..concurrency).filter_map(work).collect();
        (!threads.is_empty()).then_some(Self { tasks: Some(tasks), done, threads, num_out: 0 })
    }
}

impl Workers {
    /// Hands a batch over; returns it if no thread takes it.
    fn give(&mut self, task: ScoreJob) -> Option<ScoreJob> {
        let left = match &self.tasks {
            Some(tasks) => tasks.send(task).err().map(|unsent| unsent.0),
            None => Some(task),
        };
        self.num_out += usize::from(left.is_none());
        left
    }

    /// Finished batches; waits for the first as `wait` allows, if one is in progress.
    fn take(&mut self, wait: Wait) -> Result<Vec<Done>, ScoreError> {
        let first = match wait {
            _ if self.num_out == 0 => Err(RecvTimeoutError::Timeout),
            Wait::No => Err(RecvTimeoutError::Timeout),
            Wait::Forever => self.done.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Wait::Until(time) => self.done.recv_timeout(time.saturating_duration_since(Instant::now())),
        };
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return Err(panicked());
        }
        let mut done: Vec<Done> = first.into_iter().collect();
        done.extend(self.done.try_iter());
        self.num_out -= done.len();
        Ok(done)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.tasks = None;
        // Idle threads end at once, with the external programs of their functions. A thread that waits
        // for an unwanted answer ends with its wait, or with the process.
        for thread in self.threads.drain(..).filter(|_| self.num_out == 0) {
            let _ = thread.join();
        }
    }
}

/// The reward functions of a run with their journal.
///
/// Functions that compute are called on the spot. Those that wait for something outside are called on
/// their own threads, so that completions are scored while others generate.
pub struct Scorer {
    rewards: Arc<Rewards>,
    journal: Option<Box<dyn AnswerJournal>>,
    /// The step that answers belong to which come now.
    step: u64,
    warnings: Vec<String>,
    times: BTreeMap<String, Duration>,
    trainer_state: TrainerState,
    workers: Option<Workers>,
    answered: VecDeque<ScoreEvent>,
    failure: Option<ScoreError>,
}

impl Scorer {
    /// Without a journal, for rewards that are pure functions of the completion.
    pub fn new(rewards: Rewards) -> Self {
        Self::of(Arc::new(rewards))
    }

    fn of(rewards: Arc<Rewards>) -> Self {
        Self {
            trainer_state: rewards.trainer_state(),
            rewards,
            journal: None,
            step: 0,
            warnings: Vec::new(),
            times: BTreeMap::new(),
            workers: None,
            answered: VecDeque::new(),
            failure: None,
        }
    }

    /// Adds a journal, for rewards whose answers may differ if requested again.
    #[must_use]
    pub fn with_journal(mut self, journal: Box<dyn AnswerJournal>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// The functions.
    pub fn rewards(&self) -> &Rewards {
        &self.rewards
    }

    /// Sets the progress of training, for functions that use it.
    pub fn set_trainer_state(&mut self, state: TrainerState) {
        self.trainer_state = state;
    }

    /// From now on arriving answers belong to this step, even if their completions were submitted in
    /// another.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Drops journalled answers of steps before `next`. Returns the position from which the journal
    /// holds those of later steps; `None` without a journal.
    pub fn settle_journal(&mut self, next: u64) -> Option<u64> {
        self.journal.as_mut().map(|journal| journal.settle(next))
    }

    /// See [`AnswerJournal::shorten`].
    pub fn shorten_journal(&mut self, position: u64) -> Result<(), AnswerJournalError> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.shorten(position))
    }

    /// Scores a list of completions by the same functions with the same journal, under this step. Its
    /// results contain none of the completions that are being scored meanwhile.
    pub(crate) fn beside<T>(&mut self, step: u64, score: impl FnOnce(&mut Self) -> T) -> T {
        let (journal, times) = (self.journal.take(), std::mem::take(&mut self.times));
        let rewards = self.rewards.clone();
        let mut other = Self { journal, step, times, trainer_state: self.trainer_state, ..Self::of(rewards) };
        let done = score(&mut other);
        // A running function sees the interrupt and ends its programs, which must not outlive the run.
        // Answers that it still returns are journalled.
        while other.workers.as_ref().is_some_and(|workers| workers.num_out > 0) {
            if other.next(Wait::Forever).is_err() {
                break;
            }
        }
        (self.journal, self.times) = (other.journal.take(), std::mem::take(&mut other.times));
        done
    }

    pub(crate) fn add_warnings(&mut self, warnings: Vec<String>) {
        self.warnings.extend(warnings);
    }

    /// Warnings since the last call, each with the content of its first row, about lists of completions
    /// ([`crate::complete`]).
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Returns the time that each reward function took since the last call, by its name.
    pub fn take_times(&mut self) -> BTreeMap<String, Duration> {
        std::mem::take(&mut self.times)
    }

    /// Takes in completions that are to be scored together, and returns at once if functions wait for
    /// something outside. Answers in the journal are not requested again.
    pub fn submit(&mut self, requests: Vec<ScoreRequest>) {
        let mut missing = Vec::with_capacity(requests.len());
        for request in requests {
            match self.journal.as_mut().and_then(|journal| journal.take(&request.key)) {
                Some(answer) => {
                    let scored = Scored::from(answer);
                    self.answered.push_back(ScoreEvent { request, scored, is_new: false });
                }
                None => missing.push(request),
            }
        }
        if missing.is_empty() {
            return;
        }
        let task = ScoreJob { requests: missing, trainer_state: self.trainer_state };
        let concurrency = self.rewards.concurrency();
        if concurrency > 0 && self.workers.is_none() {
            self.workers = Workers::start(&self.rewards, concurrency);
        }
        let task = match &mut self.workers {
            Some(workers) => match workers.give(task) {
                Some(task) => task,
                None => return,
            },
            None => task,
        };
        let done = task.run(&self.rewards);
        self.take_in(vec![done]);
    }

    /// Completions that are being scored, or were and are not taken yet.
    pub fn is_busy(&self) -> bool {
        let is_out = self.workers.as_ref().is_some_and(|workers| workers.num_out > 0);
        is_out || !self.answered.is_empty() || self.failure.is_some()
    }

    /// Returns the scores that arrived since the last call, each answer journalled. Waits as long as
    /// `wait` allows, and not at all if nothing is being scored.
    pub fn next(&mut self, wait: Wait) -> Result<Vec<ScoreEvent>, ScoreError> {
        let wait = if self.answered.is_empty() && self.failure.is_none() { wait } else { Wait::No };
        let done = match &mut self.workers {
            Some(workers) => workers.take(wait)?,
            None => Vec::new(),
        };
        self.take_in(done);
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        Ok(self.answered.drain(..).collect())
    }

    /// Journals new answers, in one write.
    fn record(&mut self, events: &[ScoreEvent]) -> Result<(), AnswerJournalError> {
        let Some(journal) = self.journal.as_mut().filter(|_| !events.is_empty()) else { return Ok(()) };
        let answers: Vec<(String, JournaledAnswer)> = events
            .iter()
            .map(|event| (event.request.key.clone(), JournaledAnswer::from(&event.scored)))
            .collect();
        journal.put(self.step, &answers)
    }

    /// Journals answers and keeps them for the caller.
    fn take_in(&mut self, done: Vec<Done>) {
        let mut events = Vec::new();
        for Done { requests, scoring } in done {
            match scoring {
                Ok(Scoring { rows, times }) => {
                    for (name, time) in times {
                        *self.times.entry(name).or_default() += time;
                    }
                    let scored = requests.into_iter().zip(rows);
                    events.extend(scored.map(|(request, scored)| ScoreEvent {
                        request,
                        scored,
                        is_new: true,
                    }));
                }
                // The run is to stop, so the scores are abandoned.
                Err(ScoreError::Reward(RewardError::Interrupted)) => {}
                Err(error) => {
                    self.failure.get_or_insert(error);
                }
            }
        }
        match self.record(&events) {
            Ok(()) => self.answered.extend(events),
            Err(error) => {
                self.failure.get_or_insert(error.into());
            }
        }
    }
}
