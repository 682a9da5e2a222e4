//! Waits for what a child answers.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::LineChild;

/// Interval at which a wait checks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A wait is long after this time, and again whenever it has doubled.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Last lines of standard error in a message.
const STDERR_LINES: usize = 12;

/// The present state of a wait for an answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerWait {
    /// Time so far.
    pub waited: Duration,
    /// At most.
    pub allowed: Duration,
    /// Whether the user should be informed now.
    pub is_long: bool,
}

/// Why no answer came. Unless the wait was interrupted, the child was ended; `stderr` are its last lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// The caller no longer waits.
    Interrupted,
    /// There was none in time.
    TimedOut {
        /// The time.
        allowed: Duration,
        /// Last lines of its standard error.
        stderr: String,
    },
    /// It ended, or closed its output.
    Ended {
        /// Exit status in words.
        status: String,
        /// Last lines of its standard error.
        stderr: String,
    },
}

impl LineChild {
    /// Waits for the next answer from its reader. `goes_on` gets the wait several times a second and may end
    /// it.
    ///
    /// # Errors
    /// None comes.
    pub fn await_answer<T>(
        &self,
        answers: &Receiver<T>,
        allowed: Duration,
        goes_on: &dyn Fn(&AnswerWait) -> bool,
    ) -> Result<T, Silence> {
        let began = Instant::now();
        let mut long = PATIENCE;
        loop {
            let waited = began.elapsed();
            let left = allowed.saturating_sub(waited);
            if left.is_zero() {
                // It may have come in the meantime.
                if let Ok(answer) = answers.try_recv() {
                    return Ok(answer);
                }
                self.end();
                return Err(Silence::TimedOut { allowed, stderr: self.last_words(STDERR_LINES) });
            }
            let is_long = waited >= long;
            if is_long {
                long *= 2;
            }
            if !goes_on(&AnswerWait { waited, allowed, is_long }) {
                return Err(Silence::Interrupted);
            }
            match answers.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.handle.status_within(self.grace());
                    self.end();
                    return Err(Silence::Ended { status, stderr: self.last_words(STDERR_LINES) });
                }
            }
        }
    }
}
