//! An order to give up a training pass, and whether it was followed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a pass is still wanted: asked between two layers and between two blocks of logits.
#[derive(Debug, Default)]
pub(super) struct PassWatch {
    stop: Option<Arc<AtomicBool>>,
    given_up: AtomicBool,
}

impl PassWatch {
    /// Gives up soon after the flag is set; `None`: never.
    pub(super) fn of(stop: Option<Arc<AtomicBool>>) -> Self {
        Self { stop, given_up: AtomicBool::new(false) }
    }

    /// Whether what is under way is to be left as it is. Once it is, the pass has no result.
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
