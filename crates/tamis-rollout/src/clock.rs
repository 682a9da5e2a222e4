//! Time and waking up, passed in so that tests run on a clock of their own.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wakes a thread that waits for events; clones ring the same bell. A ring without a waiter is kept for
/// the next one.
#[derive(Debug, Clone, Default)]
pub struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    /// Something happened.
    pub fn ring(&self) {
        let (rung, waiting) = &*self.0;
        *rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        waiting.notify_all();
    }

    /// Waits for a ring, at most so long; takes it.
    pub fn wait(&self, at_most: Duration) -> bool {
        let (rung, waiting) = &*self.0;
        let rung = rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rung, _) =
            waiting.wait_timeout_while(rung, at_most, |rung| !*rung).unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *rung)
    }
}

/// A source of time that can also wait; tests replace it.
pub trait Clock: Send {
    /// The time.
    fn now(&self) -> Instant;

    /// Waits until the bell rings, or until then.
    fn wait(&self, bell: &Bell, until: Instant);
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wait(&self, bell: &Bell, until: Instant) {
        bell.wait(until.saturating_duration_since(Instant::now()));
    }
}
