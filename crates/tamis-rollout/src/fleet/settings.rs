//! Settings of a fleet, and its messages to the user.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::wire::{Fault, FaultClass};

/// Settings of a fleet of servers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetSettings {
    /// Most attempts for a sample before it counts as failed.
    pub max_attempts: u32,
    /// Pause before the second attempt. It doubles with each attempt, and the actual pause is random
    /// between half of it and all of it.
    pub first_pause: Duration,
    /// Longest pause before an attempt, and between looks at a server that does not answer.
    pub longest_pause: Duration,
    /// Interval between checks of a server.
    pub check_every: Duration,
    /// Faults of a server one after the other after which it gets nothing more until a check has succeeded.
    pub most_faults: u32,
    /// Number of invalid answers of a server in a row after which it gets no more requests until a
    /// check.
    pub most_bad_answers: u32,
    /// Most samples in flight at one server, used from the start; `None` adapts the number to the
    /// server, from a first guess on.
    pub max_in_flight: Option<usize>,
    /// Longest time for which a sample is offered again to full servers before that counts as an
    /// attempt. A server's requested pause is respected up to this time.
    pub busy_timeout: Duration,
    /// Longest time until servers answer at the start.
    pub start_timeout: Duration,
    /// Longest wait while no server is left; `None` waits without end.
    pub give_up_after: Option<Duration>,
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            check_every: Duration::from_secs(5),
            most_faults: 3,
            most_bad_answers: 8,
            max_in_flight: None,
            busy_timeout: Duration::from_secs(600),
            start_timeout: Duration::from_secs(60),
            give_up_after: None,
        }
    }
}

/// A message about its servers for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetMessage {
    /// A server is not used for now.
    Lost {
        /// Name of the server.
        server: String,
        /// The reason.
        fault: Fault,
    },
    /// A server is used, again or for the first time.
    Back {
        /// Name of the server.
        server: String,
    },
    /// Weights could not be sent to a server over a communicator: it is given them by a folder. The reason.
    ByFolder {
        /// Name of the server.
        server: String,
        /// The reason.
        fault: Fault,
    },
    /// A server was restarted at another address, which is used from now on.
    Moved {
        /// Its name until now.
        from: String,
        /// Its name from now on.
        to: String,
    },
    /// A server had no room for a sample: it is sent fewer at once. Reported once a minute at most.
    TurnedAway {
        /// Name of the server.
        server: String,
        /// The server's answer.
        fault: Fault,
        /// Most samples in flight there now.
        limit: usize,
    },
    /// A server that was to be taken out has nothing in flight any more.
    Drained {
        /// Name of the server.
        server: String,
    },
    /// The list of servers to take out has an entry without effect. Reported once.
    NotDrained {
        /// The address of no server, or the file.
        what: String,
        /// The reason.
        why: String,
    },
    /// No server is left: what was tried. Reported at once and then every minute.
    Waiting {
        /// Since when.
        for_so_long: Duration,
        /// Each server with its outcome.
        tried: Vec<String>,
    },
}

/// One line for the user.
impl std::fmt::Display for FleetMessage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost { server, fault } => write!(formatter, "{server} is not used for now: {fault}"),
            Self::ByFolder { server, fault } => {
                write!(formatter, "{server} gets the weights through a folder: {}", fault.detail)
            }
            Self::Back { server } => write!(formatter, "{server} is used"),
            Self::Moved { from, to } => {
                write!(formatter, "the server at {from} was restarted and now answers at {to}")
            }
            Self::TurnedAway { server, fault, limit } => {
                write!(
                    formatter,
                    "{server} is full ({fault}): for now it gets at most {limit} samples at once"
                )
            }
            Self::Drained { server } => write!(formatter, "{server} has nothing in flight any more"),
            Self::NotDrained { what, why } => write!(formatter, "drain: {what}: {why}"),
            Self::Waiting { for_so_long, tried } => write!(
                formatter,
                "no server has been usable for {} s ({}); the run can be stopped and resumed",
                for_so_long.as_secs(),
                tried.join("; ")
            ),
        }
    }
}

/// Number of faults since the fleet began, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Attempts at samples.
    pub samples: BTreeMap<FaultClass, u64>,
    /// Checks and publications.
    pub servers: BTreeMap<FaultClass, u64>,
    /// Events of no sample in flight, which were ignored.
    pub num_unknown: u64,
}
