//! A request to stop a training pass early, and whether the pass has stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a pass is still wanted. It is polled between layers and between blocks of logits.
#[derive(Debug, Default)]
pub(super) struct PassWatch {
    stop: Option<Arc<AtomicBool>>,
    given_up: AtomicBool,
}

impl PassWatch {
    /// Stops soon after the flag is set; never for `None`.
    pub(super) fn of(stop: Option<Arc<AtomicBool>>) -> Self {
        Self { stop, given_up: AtomicBool::new(false) }
    }

    /// Whether to stop. Once this returns true, the pass has no result.
    pub(super) fn gives_up(&self) -> bool {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            self.given_up.store(true, Ordering::Relaxed);
        }
        self.has_given_up()
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}
