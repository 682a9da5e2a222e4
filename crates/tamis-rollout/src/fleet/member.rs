//! A server of a fleet, and a request on its way through it.

use std::time::Instant;

use tamis_core::group::PolicyVersion;
use tamis_core::schedule::Spent;

use super::limit::Limit;
use crate::generator::{SampleId, SampleRequest};
use crate::server::Server;
use crate::wire::Fault;

/// A server's standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Gets samples, if it holds the current weights.
    Usable,
    /// Gets nothing until a check after `until` has succeeded.
    Out { until: Instant },
}

pub(super) struct FleetMember {
    pub(super) server: Box<dyn Server>,
    pub(super) state: State,
    pub(super) limit: Limit,
    pub(super) in_flight: usize,
    /// Faults of the server since its last success.
    pub(super) faults: u32,
    /// Answers that were no samples since its last success.
    pub(super) bad_answers: u32,
    /// How many times the server was taken out since its last success; the pause grows with it.
    pub(super) times_out: u32,
    /// Whether its log-probabilities are of a distribution that is of no use, since its last sample.
    pub(super) says_other: bool,
    pub(super) is_checking: bool,
    pub(super) was_checked: bool,
    pub(super) next_check: Instant,
    pub(super) is_publishing: bool,
    /// Was asked to sleep, and this has not been answered by all of the fleet yet.
    pub(super) is_asleep: bool,
    /// The version that it has shown to hold; `None` before any was published to it.
    pub(super) holds: Option<PolicyVersion>,
    pub(super) refused: Option<PolicyVersion>,
    /// End of the pause of a server that had no room: nothing is sent to it before.
    pub(super) quiet_until: Option<Instant>,
    /// When that was last reported.
    pub(super) said_busy: Option<Instant>,
    pub(super) is_draining: bool,
    pub(super) last_fault: Option<Fault>,
}

impl FleetMember {
    /// A member about which nothing is known yet.
    pub(super) fn new(server: Box<dyn Server>, max_in_flight: Option<usize>, now: Instant) -> Self {
        Self {
            server,
            state: State::Out { until: now },
            limit: Limit::new(max_in_flight),
            in_flight: 0,
            faults: 0,
            bad_answers: 0,
            times_out: 0,
            says_other: false,
            is_checking: false,
            was_checked: false,
            next_check: now,
            is_publishing: false,
            is_asleep: false,
            holds: None,
            refused: None,
            quiet_until: None,
            said_busy: None,
            is_draining: false,
            last_fault: None,
        }
    }

    pub(super) fn takes(&self, current: Option<PolicyVersion>) -> bool {
        self.state == State::Usable && !self.is_publishing && !self.is_draining && self.holds == current
    }

    pub(super) fn room(&self) -> usize {
        if self.quiet_until.is_some() { 0 } else { self.limit.get().saturating_sub(self.in_flight) }
    }
}

/// A request that has not ended.
pub(super) struct SampleJob {
    pub(super) request: SampleRequest,
    pub(super) id: SampleId,
    pub(super) attempts: u32,
    /// Since when servers have no room for it.
    pub(super) turned_away: Option<Instant>,
    /// The server that has the sample; `None` while the sample waits.
    pub(super) member: Option<usize>,
    /// The server at which the sample failed last.
    pub(super) avoid: Option<usize>,
    /// Tokens of attempts that failed.
    pub(super) spent: Spent,
    pub(super) is_given_up: bool,
}
