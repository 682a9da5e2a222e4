//! Ctrl-C: the first asks the run to stop soon and save, the second ends the process.
//!
//! The command line installs the handler. Whatever may take long checks [`Interrupt::is_requested`]:
//! generation and training between two layers of the model, rewards and gold checks while they wait, the step
//! loop between its stages. Work that cannot be finished at once is abandoned, and the state after the last
//! trained step is saved, so that a resume repeats the work exactly. One thing is finished: a step that has
//! moved weights already while the state before it is in no checkpoint (`learner::progress`), and with it the
//! samples that are in flight when its weights are published ([`Interrupt::hold_back`]). Preparations that
//! only read (data files, tokenizing, loading weights) are abandoned at any point, see
//! [`Interrupt::or_abandon`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the handler must do after a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// The first signal: print that the run stops soon and saves.
    StopSoon,
    /// A signal that came with the first: a terminal, a shell and a launcher may each pass on the same
    /// Ctrl-C.
    SameAsBefore,
    /// A further one: end the process at once with exit code 130. Checkpoints are whole at every instant, so
    /// only what came after the last one is lost.
    ExitNow,
}

/// Work was abandoned because of Ctrl-C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Why work did not come to its end. An interruption is no failure, but nothing of the work may be used after
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt<E> {
    /// A stop was requested.
    Interrupted,
    /// The work failed.
    Failed(E),
}

impl<E> Halt<E> {
    /// The same with another type of failure.
    pub fn map<F>(self, form: impl FnOnce(E) -> F) -> Halt<F> {
        match self {
            Self::Interrupted => Halt::Interrupted,
            Self::Failed(error) => Halt::Failed(form(error)),
        }
    }
}

impl<E: std::fmt::Display> std::fmt::Display for Halt<E> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interrupted => Interrupted.fmt(formatter),
            Self::Failed(error) => error.fmt(formatter),
        }
    }
}

impl<E> From<Interrupted> for Halt<E> {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

/// Interval at which [`Interrupt::or_abandon`] checks whether a stop was requested.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Stack of a thread that prepares, as large as that of a main thread on Linux: data and templates may nest
/// as deeply on it.
const STACK_BYTES: usize = 8 << 20;

/// Signals closer than this are one Ctrl-C.
const ONE_PRESS: Duration = Duration::from_millis(200);

/// Signals so far.
#[derive(Debug, Default)]
struct Signals {
    first: Option<Instant>,
    is_held_back: bool,
    /// A request that is hidden for now.
    waits: bool,
}

/// A flag shared between the signal handler and the step loop; clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    is_requested: Arc<AtomicBool>,
    signals: Arc<Mutex<Signals>>,
    #[cfg(test)]
    looks_left: Arc<Mutex<Option<usize>>>,
}

impl Interrupt {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a signal. Safe to call from a handler thread at any time.
    pub fn signal(&self) -> Reaction {
        self.signal_at(Instant::now())
    }

    fn signals(&self) -> MutexGuard<'_, Signals> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, signals: &mut Signals) {
        if signals.is_held_back {
            signals.waits = true;
        } else {
            self.is_requested.store(true, Ordering::SeqCst);
        }
    }

    /// Hides a request, whether made before or while the returned value lives, from all checks. What must
    /// come to its end then continues as if there were no request. A second signal ends the process all the
    /// same.
    #[must_use]
    pub fn hold_back(&self) -> HeldBack<'_> {
        let mut signals = self.signals();
        signals.is_held_back = true;
        signals.waits |= self.is_requested.swap(false, Ordering::SeqCst);
        HeldBack(self)
    }

    /// Whether the run was asked to stop soon, even if the request is hidden.
    pub fn was_requested(&self) -> bool {
        self.is_requested() || self.signals().waits
    }

    fn signal_at(&self, now: Instant) -> Reaction {
        let mut signals = self.signals();
        match signals.first {
            None => {
                signals.first = Some(now);
                self.request(&mut signals);
                Reaction::StopSoon
            }
            Some(first) if now.saturating_duration_since(first) < ONE_PRESS => Reaction::SameAsBefore,
            Some(_) => Reaction::ExitNow,
        }
    }

    /// Does work that changes nothing outside itself on its own thread, and abandons it within milliseconds
    /// if a stop is requested. The thread then ends with the process. So code that reads a million rows need
    /// not check the flag at each one.
    ///
    /// # Errors
    /// [`Interrupted`] if a stop was requested before or during the work.
    ///
    /// # Panics
    /// As the work does.
    pub fn or_abandon<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Interrupted> {
        if self.is_requested() {
            return Err(Interrupted);
        }
        let (sender, receiver) = channel();
        // If no thread can be started, this one does the work, and cannot abandon it.
        let work = Arc::new(Mutex::new(Some(work)));
        let of_thread = Arc::clone(&work);
        let take = |slot: &Mutex<Option<_>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let prepare = move || {
            if let Some(work) = take(&of_thread) {
                // If it was abandoned, the channel is closed.
                let _ = sender.send(work());
            }
        };
        let Ok(thread) = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(prepare) else {
            return take(&work).map(|work| work()).ok_or(Interrupted);
        };
        loop {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Timeout) if self.is_requested() => return Err(Interrupted),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match thread.join() {
                    Err(panic) => std::panic::resume_unwind(panic),
                    Ok(()) => return Err(Interrupted),
                },
            }
        }
    }

    /// The flag itself, for code that knows nothing of runs.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_requested)
    }

    /// A flag that reports no request for so many checks, and a request from then on.
    #[cfg(test)]
    pub(crate) fn request_at_look(&self, looks: usize) {
        self.is_requested.store(false, Ordering::SeqCst);
        *self.looks_left.lock().unwrap_or_else(PoisonError::into_inner) = Some(looks);
    }

    #[cfg(test)]
    fn count_look(&self) {
        let mut left = self.looks_left.lock().unwrap_or_else(PoisonError::into_inner);
        match *left {
            Some(0) => {
                *left = None;
                self.request(&mut self.signals());
            }
            Some(looks) => *left = Some(looks - 1),
            None => {}
        }
    }

    /// Whether the run was asked to stop soon.
    pub fn is_requested(&self) -> bool {
        #[cfg(test)]
        self.count_look();
        self.is_requested.load(Ordering::SeqCst)
    }
}

/// While it lives, checks see no request to stop.
#[derive(Debug)]
pub struct HeldBack<'a>(&'a Interrupt);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        let mut signals = self.0.signals();
        signals.is_held_back = false;
        if std::mem::take(&mut signals.waits) {
            self.0.request(&mut signals);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_stops_soon_second_exits() {
        let interrupt = Interrupt::new();
        let seen_by_the_loop = interrupt.clone();
        assert!(!seen_by_the_loop.is_requested());
        assert_eq!(interrupt.signal(), Reaction::StopSoon);
        assert!(seen_by_the_loop.is_requested());
        let first = interrupt.signals().first.expect("a first");
        assert_eq!(interrupt.signal_at(first + ONE_PRESS / 2), Reaction::SameAsBefore);
        assert_eq!(interrupt.signal_at(first + ONE_PRESS), Reaction::ExitNow);
        assert_eq!(interrupt.signal_at(first + 5 * ONE_PRESS), Reaction::ExitNow);
    }

    /// What must come to its end sees no request; everything else does afterwards.
    #[test]
    fn a_request_that_is_held_back_is_seen_later() {
        for comes_before in [true, false] {
            let interrupt = Interrupt::new();
            if comes_before {
                interrupt.signal();
            }
            let held_back = interrupt.hold_back();
            assert_eq!(interrupt.was_requested(), comes_before);
            if !comes_before {
                interrupt.signal();
            }
            let flag = interrupt.flag();
            assert!(interrupt.was_requested() && !interrupt.is_requested() && !flag.load(Ordering::SeqCst));
            let first = interrupt.signals().first.expect("a first");
            assert_eq!(interrupt.signal_at(first + ONE_PRESS), Reaction::ExitNow);
            drop(held_back);
            assert!(interrupt.is_requested() && flag.load(Ordering::SeqCst));
        }
        let interrupt = Interrupt::new();
        drop(interrupt.hold_back());
        assert!(!interrupt.was_requested());
        interrupt.signal();
        assert!(interrupt.is_requested());
    }

    #[test]
    fn work_is_done_or_abandoned() {
        let interrupt = Interrupt::new();
        assert_eq!(interrupt.or_abandon(|| 3), Ok(3));
        let panics =
            std::panic::AssertUnwindSafe(|| interrupt.or_abandon(|| assert_eq!(1, 2, "a fault of the work")));
        assert!(std::panic::catch_unwind(panics).is_err());

        let (stop, start) = (interrupt.clone(), Instant::now());
        let presses = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            stop.signal()
        });
        assert_eq!(interrupt.or_abandon(|| std::thread::sleep(Duration::from_secs(600))), Err(Interrupted));
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        assert_eq!(presses.join().ok(), Some(Reaction::StopSoon));
        assert_eq!(interrupt.or_abandon(|| panic!("nothing is begun any more")), Err::<(), _>(Interrupted));
    }
}
