//! The time that a server's completions take: a slot each, and an iteration for every token of all that run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

/// Duration of iterations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Samples that run at once; others wait in their order.
    pub(crate) slots: usize,
    /// Time of an iteration, under any load.
    pub(crate) iteration: Duration,
    /// Additional share of an iteration's time with all slots busy (ρ): with b samples an iteration takes
    /// `1 + ρ b / slots` times as long.
    pub(crate) load: f64,
}

/// Decodes samples side by side, one token of each an iteration.
#[derive(Clone)]
pub(crate) struct Decoder {
    pace: Pace,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

/// A sample that runs: the iteration that ends it, and its number.
type Running = Reverse<(u64, u64)>;

struct State {
    /// Iterations so far, with fractions.
    iterations: f64,
    at: Instant,
    running: BinaryHeap<Running>,
    waiting: VecDeque<(u64, usize)>,
    /// Receiver of each sample's end; one that is gone was aborted.
    answered: std::collections::HashMap<u64, oneshot::Sender<()>>,
    next: u64,
    is_driven: bool,
    /// Slot-seconds that decoded.
    busy: f64,
}

impl Decoder {
    pub(crate) fn new(pace: Pace) -> Self {
        let state = State {
            iterations: 0.0,
            at: Instant::now(),
            running: BinaryHeap::new(),
            waiting: VecDeque::new(),
            answered: std::collections::HashMap::new(),
            next: 0,
            is_driven: false,
            busy: 0.0,
        };
        Self { pace, state: Arc::new(Mutex::new(state)), changed: Arc::new(Notify::new()) }
    }

    /// Samples without a slot.
    pub(crate) fn num_waiting(&self) -> usize {
        self.state.lock().unwrap().waiting.len()
    }

    /// Slot-seconds that decoded so far.
    pub(crate) fn busy(&self) -> f64 {
        self.state.lock().unwrap().busy
    }

    /// Ends once that many tokens are decoded. Dropping it frees its slot.
    pub(crate) async fn decode(&self, num_tokens: usize) {
        let (tell, answered) = oneshot::channel();
        let number = {
            let mut state = self.state.lock().unwrap();
            let number = state.next;
            state.next += 1;
            state.answered.insert(number, tell);
            state.waiting.push_back((number, num_tokens));
            if !std::mem::replace(&mut state.is_driven, true) {
                let decoder = self.clone();
                tokio::spawn(async move { decoder.drive().await });
            }
            number
        };
        let _slot = Slot { decoder: self, number };
        self.changed.notify_one();
        let _ = answered.await;
    }

    /// Runs for as long as the server lives.
    async fn drive(&self) {
        loop {
            let next = self.state.lock().unwrap().advance(&self.pace, Instant::now());
            match next {
                Some(next) => {
                    tokio::select! {
                        () = tokio::time::sleep(next) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }
}

/// A sample's place, until it is dropped.
struct Slot<'a> {
    decoder: &'a Decoder,
    number: u64,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut state = self.decoder.state.lock().unwrap();
        if state.answered.remove(&self.number).is_some() {
            state.running.retain(|Reverse((_, number))| *number != self.number);
            state.waiting.retain(|(number, _)| *number != self.number);
            self.decoder.changed.notify_one();
        }
    }
}

impl State {
    /// Gives free slots to those that wait; whether there was any.
    fn fill(&mut self, slots: usize) -> bool {
        let before = self.running.len();
        while self.running.len() < slots
            && let Some((number, num_tokens)) = self.waiting.pop_front()
        {
            let end = (self.iterations + num_tokens as f64).ceil() as u64;
            self.running.push(Reverse((end, number)));
        }
        self.running.len() > before
    }

    /// Decodes up to now. Returns the time until the next sample ends; `None` if nothing runs.
    fn advance(&mut self, pace: &Pace, now: Instant) -> Option<Duration> {
        loop {
            let next = self.running.peek().map(|Reverse(next)| *next);
            let mut wait = None;
            if let Some((end, number)) = next {
                let num = self.running.len() as f64;
                let seconds = pace.iteration.as_secs_f64() * (1.0 + pace.load * num / pace.slots as f64);
                let left = (end as f64 - self.iterations) * seconds;
                let passed = now.saturating_duration_since(self.at).as_secs_f64();
                self.busy += num * left.min(passed);
                if left <= passed {
                    self.iterations = end as f64;
                    self.at += Duration::from_secs_f64(left);
                    self.running.pop();
                    if let Some(tell) = self.answered.remove(&number) {
                        let _ = tell.send(());
                    }
                    self.fill(pace.slots);
                    continue;
                }
                self.iterations += passed / seconds;
                wait = Some(Duration::from_secs_f64(left - passed));
            }
            self.at = now;
            // With newcomers an iteration takes longer.
            if !self.fill(pace.slots) {
                return wait;
            }
        }
    }
}
