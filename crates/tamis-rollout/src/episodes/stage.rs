//! Threads on which slow environments work while others are generated for.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// Jobs and their results. Each job runs on one of a few threads that start with the first one.
pub(super) struct Stage<T> {
    num_threads: usize,
    jobs: Option<Sender<Job<T>>>,
    done: (Sender<T>, Receiver<T>),
    queue: Arc<Mutex<Receiver<Job<T>>>>,
    num_started: usize,
    num_working: usize,
}

impl<T: Send + 'static> Stage<T> {
    pub(super) fn new(num_threads: usize) -> Self {
        let (jobs, queue) = channel();
        Self {
            num_threads: num_threads.max(1),
            jobs: Some(jobs),
            done: channel(),
            queue: Arc::new(Mutex::new(queue)),
            num_started: 0,
            num_working: 0,
        }
    }

    /// Jobs that have not ended, or whose end was not taken.
    pub(super) fn num_working(&self) -> usize {
        self.num_working
    }

    pub(super) fn is_busy(&self) -> bool {
        self.num_working > 0
    }

    /// Runs a job, which must not panic.
    pub(super) fn work(&mut self, job: impl FnOnce() -> T + Send + 'static) {
        self.num_working += 1;
        if self.num_started < self.num_threads.min(self.num_working) {
            let (queue, done) = (Arc::clone(&self.queue), self.done.0.clone());
            let body = move || {
                loop {
                    // A waiting thread holds the lock, a working one does not.
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    if done.send(job()).is_err() {
                        return;
                    }
                }
            };
            let started = std::thread::Builder::new().name("environment".to_owned()).spawn(body);
            self.num_started += usize::from(started.is_ok());
            if started.is_err() && self.num_started == 0 {
                // A machine that gives no thread: it is done here.
                _ = self.done.0.send(job());
                return;
            }
        }
        if let Some(jobs) = &self.jobs {
            _ = jobs.send(Box::new(job));
        }
    }

    /// Results of finished jobs. If there are none, waits this long for the first.
    pub(super) fn take(&mut self, wait: Option<Duration>) -> Vec<T> {
        let mut done: Vec<T> = self.done.1.try_iter().collect();
        if let Some(wait) = wait.filter(|_| done.is_empty() && self.is_busy()) {
            done.extend(self.done.1.recv_timeout(wait));
            done.extend(self.done.1.try_iter());
        }
        self.num_working -= done.len();
        done
    }
}

impl<T> Drop for Stage<T> {
    fn drop(&mut self) {
        // Threads end with their job; they are not joined.
        self.jobs = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_done_beside_each_other_and_all_are_heard() {
        let mut stage = Stage::new(3);
        assert!(!stage.is_busy() && stage.take(Some(Duration::ZERO)).is_empty());
        let (open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        stage.work(move || {
            _ = gate.lock().expect("one thread").recv();
            0
        });
        for number in 1..20 {
            stage.work(move || number);
        }
        let mut heard = Vec::new();
        while heard.len() < 19 {
            heard.extend(stage.take(Some(Duration::from_secs(60))));
        }
        heard.sort_unstable();
        assert_eq!(heard, (1..20).collect::<Vec<_>>());
        assert_eq!(stage.num_working(), 1);
        open.send(()).expect("it waits");
        assert_eq!(stage.take(Some(Duration::from_secs(60))), [0]);
        assert!(!stage.is_busy());
    }
}
