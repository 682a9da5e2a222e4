//! Why a reward function gave no usable answer.

use std::time::Duration;
use tamis_core::figure::counted;

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_process::{Silence, ending};
use thiserror::Error;

/// Largest magnitude of a score, of its parts, and of their weighted sum: squares, and sums of squares over
/// any batch, stay within f64.
pub const LARGEST_SCORE: f64 = 1e100;

/// A failure of one function on one completion. The completion has no score of that function, as without an
/// answer, and the reason is reported. Failures with [`RewardFailure::is_fatal`] end the run.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RewardFailure {
    /// The program cannot be started.
    #[error("cannot start `{program}`: {reason}")]
    Start {
        /// First word of the command.
        program: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The process ended, or closed its output, before it had answered.
    #[error("the process ended ({status}) before it answered{}", ending("standard error", stderr))]
    Ended {
        /// Exit status in words.
        status: String,
        /// Last lines of its standard error.
        stderr: String,
    },
    /// No answer within the time-out; the process was killed.
    #[error("no answer within {} s; the process was killed{}", timeout.as_secs_f64(), ending("standard error", stderr))]
    TimedOut {
        /// The time-out.
        timeout: Duration,
        /// Last lines of its standard error.
        stderr: String,
    },
    /// An answer that cannot be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The function itself reported an error.
    #[error("the function failed: {message}")]
    Function {
        /// Message of the exception, with the traceback if there is one.
        message: String,
    },
    /// The processes of a command were restarted too often.
    #[error(
        "its processes were restarted {} in a row, which is the limit; the last failure: {last}",
        counted(limit, "time")
    )]
    RestartLimit {
        /// The limit.
        limit: u32,
        /// The last failure.
        last: Box<RewardFailure>,
    },
    /// The processes of a command were restarted and not one of them ever answered.
    #[error("none of its processes ever answered, in {restarts} restarts; the last failure: {last}")]
    NeverAnswered {
        /// Restarts.
        restarts: u32,
        /// The last failure.
        last: Box<RewardFailure>,
    },
    /// The caller no longer wants the answer.
    #[error("interrupted")]
    Interrupted,
}

impl From<Silence> for RewardFailure {
    fn from(silence: Silence) -> Self {
        match silence {
            Silence::Interrupted => Self::Interrupted,
            Silence::TimedOut { allowed, stderr } => Self::TimedOut { timeout: allowed, stderr },
            Silence::Ended { status, stderr } => Self::Ended { status, stderr },
        }
    }
}

impl RewardFailure {
    /// A line that is no answer; the process was killed.
    pub(super) fn garbage(line: &str, reason: &str) -> Self {
        fault!(
            "expected one JSON object with `id` and `score` a line, got `{line}`: {reason}; the process was killed"
        )
        .into()
    }

    /// A score is infinite.
    pub(super) fn not_finite(name: &str, value: &str) -> Self {
        fault!("score `{name}` must be finite, got {value}").into()
    }

    /// Whether no later call can succeed.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::Start { .. } | Self::RestartLimit { .. } | Self::NeverAnswered { .. } | Self::Interrupted
        )
    }
}
