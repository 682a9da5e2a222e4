//! The run as the listener of its reward functions: external ones print through its progress, and stop
//! at Ctrl-C.

use std::sync::Arc;

use tamis_env::reward::Listener;

use crate::interrupt::Interrupt;
use tamis_run::log::progress::Console;

/// Prints its messages through the run's progress, and passes Ctrl-C on.
#[derive(Debug, Clone)]
pub struct RunListener {
    progress: Console,
    interrupt: Interrupt,
}

impl RunListener {
    /// Between a run's voice and its interrupt.
    pub fn new(progress: &Console, interrupt: &Interrupt) -> Arc<Self> {
        Arc::new(Self { progress: progress.clone(), interrupt: interrupt.clone() })
    }
}

impl Listener for RunListener {
    fn say(&self, message: &str) {
        self.progress.say(message);
    }

    fn announce(&self, message: &str) {
        self.progress.announce(message);
    }

    fn progress(&self, message: &str) {
        self.progress.progress(message);
    }

    fn warn(&self, message: &str) {
        self.progress.warn(message);
    }

    fn printed(&self, source: &str, line: &str) {
        self.progress.printed(source, line);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_requested()
    }
}
