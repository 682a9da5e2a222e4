//! Ctrl-C: the first asks the run to finish its step and save, the second ends the process.
//!
//! The command line installs the handler; the step loop looks at [`Interrupt::is_requested`] between steps (and between
//! generation rounds where it may stop).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Exit code of an interrupted run.
pub const EXIT_CODE: u8 = 130;

/// What the handler has to do about a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// The first signal: say that the step is being finished and saved, and go on.
    FinishStep,
    /// A further one: end the process at once with [`EXIT_CODE`]. Checkpoints are whole at every instant, so nothing but the
    /// running step is lost.
    ExitNow,
}

/// A flag shared between the signal handler and the step loop; clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    signals: Arc<AtomicU32>,
}

impl Interrupt {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a signal. Safe to call from a handler thread at any time.
    pub fn signal(&self) -> Reaction {
        match self.signals.fetch_add(1, Ordering::SeqCst) {
            0 => Reaction::FinishStep,
            _ => Reaction::ExitNow,
        }
    }

    /// Whether the run was asked to finish its step, save and end.
    pub fn is_requested(&self) -> bool {
        self.signals.load(Ordering::SeqCst) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_finishes_the_step_second_exits() {
        let interrupt = Interrupt::new();
        let seen_by_the_loop = interrupt.clone();
        assert!(!seen_by_the_loop.is_requested());
        assert_eq!(interrupt.signal(), Reaction::FinishStep);
        assert!(seen_by_the_loop.is_requested());
        assert_eq!(interrupt.signal(), Reaction::ExitNow);
        assert_eq!(interrupt.signal(), Reaction::ExitNow);
    }
}
