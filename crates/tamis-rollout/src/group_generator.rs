//! The contract that the shell still drives: whole groups in, finished groups out. [`crate::Generator`] takes its place, sample by sample.

use std::fmt;
use std::sync::Arc;

use tamis_core::group::{GroupId, PolicyVersion};
use tamis_core::random::Key;
use thiserror::Error;

use crate::generator::{Sample, Sampling};

/// What completions are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TicketPurpose {
    /// A group that may be trained on; numbered by its group id.
    Rollout,
    /// A validation, or an evaluation; numbered by the row of the prompt.
    Validation,
    /// The greedy completion that a trained group is compared with; numbered by the group's place in the batch.
    Greedy,
}

/// The caller's number of a request, which comes back with its outcome. Each purpose counts for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// What for.
    pub purpose: TicketPurpose,
    /// The number among those of this purpose.
    pub index: u64,
}

impl Ticket {
    /// The ticket of a group.
    pub fn of_group(group: GroupId) -> Self {
        Self { purpose: TicketPurpose::Rollout, index: group.0 }
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let purpose = match self.purpose {
            TicketPurpose::Rollout => "group",
            TicketPurpose::Validation => "validation prompt",
            TicketPurpose::Greedy => "greedy completion",
        };
        write!(formatter, "{purpose} {}", self.index)
    }
}

/// One prompt to be completed n times.
#[derive(Debug, Clone)]
pub struct GroupRequest {
    /// The caller's number of this request; no other one in flight has it.
    pub ticket: Ticket,
    /// Prompt tokens (at least one).
    pub prompt_token_ids: Arc<[u32]>,
    /// One key per sample \[n\]: the sample's tokens are a function of it, the prompt and the weights.
    pub keys: Vec<Key>,
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// All n samples, in key order.
    Finished {
        /// The request.
        ticket: Ticket,
        /// The completions.
        samples: Vec<Sample>,
    },
    /// It cannot be completed; the group counts as failed.
    Failed {
        /// The request.
        ticket: Ticket,
        /// Why.
        reason: String,
    },
}

impl Outcome {
    /// The request.
    pub fn ticket(&self) -> Ticket {
        match self {
            Self::Finished { ticket, .. } | Self::Failed { ticket, .. } => *ticket,
        }
    }
}

/// The generator as a whole cannot go on.
#[derive(Debug, Error)]
pub enum GroupGeneratorError {
    /// The backend broke down.
    #[error("the generator stopped: {reason}")]
    Broken {
        /// What it said.
        reason: String,
    },
    /// An outcome came in that nobody waits for: of another purpose, or a second one of the same request. A fault of the generator.
    #[error("the generator gave an outcome for {ticket}, which nobody waits for")]
    UnknownTicket {
        /// The outcome's ticket.
        ticket: Ticket,
    },
    /// A request has the ticket of one that is in flight: a fault of the caller.
    #[error("{ticket} is in flight already")]
    TicketInUse {
        /// The request's ticket.
        ticket: Ticket,
    },
    /// What was in flight is not wanted any more.
    #[error("interrupted")]
    Interrupted,
}

/// Samples completions of prompts.
///
/// Requests run concurrently and finish in any order; what a request yields does not depend on what else is running.
pub trait GroupGenerator {
    /// Takes a request in; its outcome comes out of a later [`GroupGenerator::poll`].
    ///
    /// # Errors
    /// [`GroupGeneratorError::TicketInUse`] where a request in flight has the same ticket.
    fn submit(&mut self, request: GroupRequest, sampling: &Sampling) -> Result<(), GroupGeneratorError>;

    /// Works until at least one request has an outcome and returns those that have; empty only where none is in flight.
    fn poll(&mut self) -> Result<Vec<Outcome>, GroupGeneratorError>;

    /// Drops a request; no outcome follows. Unknown tickets are ignored.
    fn abort(&mut self, ticket: Ticket);

    /// Version of the weights that new tokens are sampled from.
    fn version(&self) -> PolicyVersion;

    /// Tokens generated since the last call, for the progress display.
    fn take_num_generated_tokens(&mut self) -> u64;
}
