//! Ctrl-C: the first asks the run to stop soon and save, the second ends the process.
//!
//! The command line installs the handler. Whatever may take long looks at [`Interrupt::is_requested`]: generation between two tokens,
//! rewards and gold checks while they wait, the step loop between its stages. What was begun and cannot be finished at once is given up,
//! and the state after the last trained step is saved: a resume does it again, exactly. Only the update of a step is always finished.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Exit code of an interrupted run.
pub const EXIT_CODE: u8 = 130;

/// What the handler has to do about a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// The first signal: say that the run stops soon and saves.
    StopSoon,
    /// One that came with the first: a terminal, a shell and a launcher may each pass on the same Ctrl-C.
    SameAsBefore,
    /// A further one: end the process at once with [`EXIT_CODE`]. Checkpoints are whole at every instant, so nothing but what came
    /// after the last of them is lost.
    ExitNow,
}

/// Signals closer than this are one Ctrl-C.
const ONE_PRESS: Duration = Duration::from_millis(200);

/// A flag shared between the signal handler and the step loop; clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    is_requested: Arc<AtomicBool>,
    first: Arc<Mutex<Option<Instant>>>,
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

    fn signal_at(&self, now: Instant) -> Reaction {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        match *first {
            None => {
                *first = Some(now);
                self.is_requested.store(true, Ordering::SeqCst);
                Reaction::StopSoon
            }
            Some(first) if now.saturating_duration_since(first) < ONE_PRESS => Reaction::SameAsBefore,
            Some(_) => Reaction::ExitNow,
        }
    }

    /// Whether the run was asked to stop soon.
    pub fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::SeqCst)
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
        let first = interrupt.first.lock().expect("lock").expect("a first");
        assert_eq!(interrupt.signal_at(first + ONE_PRESS / 2), Reaction::SameAsBefore);
        assert_eq!(interrupt.signal_at(first + ONE_PRESS), Reaction::ExitNow);
        assert_eq!(interrupt.signal_at(first + 5 * ONE_PRESS), Reaction::ExitNow);
    }
}
