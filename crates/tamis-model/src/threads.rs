//! `Threads`: a pool that lends a closure to a fixed number of threads, with little cost per call.
//!
//! A decoding step of a small model has dozens of parallel regions of a few microseconds, so workers spin
//! briefly before they sleep. No result depends on which thread runs which task: every task writes its own
//! part of the output.
#![expect(unsafe_code, reason = "a borrowed closure is lent to the workers for the duration of one call")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::simd::SimdLevel;

type Task = dyn Fn(usize) + Sync;

/// Polls before a worker sleeps, or the caller yields: about 20 microseconds.
const SPINS: usize = 4000;

/// A pool of threads and the SIMD level they compute with.
pub struct Threads {
    level: SimdLevel,
    pool: Option<Pool>,
}

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose tasks are running.
    busy: Mutex<()>,
}

/// The closure of the running call. A worker follows the pointer only between reading a new `round` and
/// incrementing `done`, and the call returns only after every worker has incremented `done`.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task,
    num_tasks: usize,
}

// SAFETY: the closure behind the pointer is `Sync`, and lives as long as anyone follows it (see `Job`).
unsafe impl Send for Job {}

struct Shared {
    job: Mutex<Option<Job>>,
    wake: Condvar,
    /// Number of calls so far; each worker runs each call once.
    round: AtomicUsize,
    next: AtomicUsize,
    done: AtomicUsize,
    sleeping: AtomicUsize,
    panicked: AtomicBool,
    closing: AtomicBool,
}

impl Threads {
    /// A pool of `num_threads` (at least one; the caller is one of them) at the best SIMD level of this
    /// machine.
    pub fn new(num_threads: usize) -> Self {
        Self::with_level(num_threads, SimdLevel::detect())
    }

    /// One thread: the caller.
    pub fn serial() -> Self {
        Self::new(1)
    }

    /// A pool at a given SIMD level (lowered to what this machine has).
    pub fn with_level(num_threads: usize, level: SimdLevel) -> Self {
        let level = level.min(SimdLevel::detect());
        if num_threads <= 1 {
            return Self { level, pool: None };
        }
        let shared = Arc::new(Shared {
            job: Mutex::new(None),
            wake: Condvar::new(),
            round: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
        let workers = (1..num_threads)
            .filter_map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("tamis-{i}")).spawn(move || work(&shared)).ok()
            })
            .collect();
        Self { level, pool: Some(Pool { shared, workers, busy: Mutex::new(()) }) }
    }

    /// Number of threads, the caller included.
    pub fn num_threads(&self) -> usize {
        self.pool.as_ref().map_or(1, |pool| pool.workers.len() + 1)
    }

    /// The SIMD level of the kernels.
    pub fn level(&self) -> SimdLevel {
        self.level
    }

    /// Calls `task(0)` to `task(num_tasks - 1)`, in any order, on any of the threads; returns when all are
    /// done.
    ///
    /// Called from inside a task it runs serially. A panic in a task is raised again here.
    pub(crate) fn run(&self, num_tasks: usize, task: impl Fn(usize) + Sync) {
        let serially = || (0..num_tasks).for_each(&task);
        let Some(pool) = self.pool.as_ref().filter(|_| num_tasks > 1) else { return serially() };
        let Ok(_busy) = pool.busy.try_lock() else { return serially() };
        let shared = &*pool.shared;
        let lent = &task;
        let short: *const (dyn Fn(usize) + Sync + '_) = lent;
        #[expect(
            clippy::transmute_ptr_to_ptr,
            reason = "a cast may not lengthen the lifetime of a trait object"
        )]
        // SAFETY: only the lifetime changes; `Job` says why the closure outlives every use.
        let task = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Task>(short) };
        let job = Job { task, num_tasks };
        shared.next.store(0, Ordering::Relaxed);
        shared.done.store(0, Ordering::Relaxed);
        *shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        shared.round.fetch_add(1, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            // The lock orders this notification after the sleeper's last check of `round`.
            drop(shared.job.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| drain(shared, num_tasks, lent)));
        let mut spins = 0usize;
        while shared.done.load(Ordering::Acquire) < pool.workers.len() {
            spins += 1;
            if spins > SPINS {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
        assert!(!panicked, "a task of the thread pool panicked");
    }
}

/// Takes tasks until there are none left.
fn drain(shared: &Shared, num_tasks: usize, task: &(impl Fn(usize) + ?Sized)) {
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if index >= num_tasks {
            return;
        }
        task(index);
    }
}

fn work(shared: &Shared) {
    let mut seen = 0;
    loop {
        let mut spins = 0usize;
        while shared.round.load(Ordering::SeqCst) == seen {
            if shared.closing.load(Ordering::Relaxed) {
                return;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let mut guard = shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            shared.sleeping.fetch_add(1, Ordering::SeqCst);
            while shared.round.load(Ordering::SeqCst) == seen && !shared.closing.load(Ordering::Relaxed) {
                guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            shared.sleeping.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        }
        seen = shared.round.load(Ordering::SeqCst);
        let job = *shared.job.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = job {
            let result = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: the caller waits for `done`, which this worker has not incremented yet for this
                // round.
                let task = unsafe { &*job.task };
                drain(shared, job.num_tasks, task);
            }));
            if result.is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.done.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        {
            let _guard = pool.shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            pool.shared.closing.store(true, Ordering::SeqCst);
        }
        pool.shared.wake.notify_all();
        for worker in pool.workers.drain(..) {
            // A worker catches the panics of its tasks; joining cannot fail in a way that matters here.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Threads({}, {:?})", self.num_threads(), self.level)
    }
}

/// A slice cut into parts. Each is lent once, to the first task that takes it.
pub(crate) struct Parts<'a, T> {
    parts: Vec<Mutex<Option<&'a mut [T]>>>,
}

impl<'a, T> Parts<'a, T> {
    /// Cuts into parts of the given lengths. The rest belongs to no part.
    pub(crate) fn new(mut slice: &'a mut [T], lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut parts = Vec::new();
        for length in lengths {
            let (part, rest) = slice.split_at_mut(length);
            parts.push(Mutex::new(Some(part)));
            slice = rest;
        }
        Self { parts }
    }

    /// Cuts into equal parts; the last may be shorter.
    pub(crate) fn chunks(slice: &'a mut [T], length: usize) -> Self {
        Self { parts: slice.chunks_mut(length).map(|part| Mutex::new(Some(part))).collect() }
    }

    /// Part `index`; empty if it was taken before.
    pub(crate) fn take(&self, index: usize) -> &'a mut [T] {
        self.parts[index].lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_number_of_threads() {
        for num_threads in 1..=3 {
            let threads = Threads::new(num_threads);
            assert_eq!(threads.num_threads(), num_threads);
            for num_tasks in [0, 1, 2, 7, 100] {
                let mut hits = vec![0u32; num_tasks];
                {
                    let parts = Parts::chunks(&mut hits, 1);
                    threads.run(num_tasks, |i| parts.take(i)[0] += 1);
                }
                assert!(hits.iter().all(|&hit| hit == 1), "{hits:?}");
            }
        }
    }

    #[test]
    fn workers_wake_from_sleep() {
        let threads = Threads::new(2);
        for _ in 0..20 {
            let sum = AtomicUsize::new(0);
            threads.run(10, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_survives() {
        let threads = Threads::new(2);
        for bad in 0..8 {
            let result = catch_unwind(AssertUnwindSafe(|| threads.run(8, |i| assert_ne!(i, bad))));
            assert!(result.is_err());
        }
        let count = AtomicUsize::new(0);
        threads.run(8, |_| {
            threads.run(3, |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 24);
    }

    #[test]
    fn a_part_is_lent_once() {
        let mut data = [1, 2, 3, 4, 5];
        let parts = Parts::new(&mut data, [2, 3]);
        assert_eq!(parts.take(1), [3, 4, 5]);
        assert!(parts.take(1).is_empty());
    }
}
