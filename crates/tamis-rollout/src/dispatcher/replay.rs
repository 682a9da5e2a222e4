//! The order in which a dispatcher takes events in. It is noted if it decides what is trained on, and a
//! resumed run follows it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde::{Deserialize, Serialize};
use tamis_core::group::{GroupId, PolicyVersion};
use tamis_core::schedule::Spent;

use super::flight::Course;
use super::{Dependencies, DispatchError, Dispatcher};
use crate::generator::{FailureKind, GeneratorError, GeneratorEvent, SampleId};
use crate::scorer::ScoreEvent;

/// One thing that a dispatcher took in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    /// The last word of a generator on a sample.
    Sample {
        /// The sample.
        id: SampleId,
        /// The kind of end.
        end: SampleEnd,
    },
    /// The score of a member of a group.
    Score {
        /// The group.
        group: u64,
        /// The member.
        member: u32,
    },
    /// Weights that are sampled by from now on.
    Published {
        /// Their version.
        version: PolicyVersion,
    },
    /// The last event of an aborted group did not arrive in time.
    Unheard {
        /// The group.
        group: u64,
    },
    /// A step ended: all events before it are in the state after that step.
    StepEnd,
}

impl fmt::Display for Taken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sample { id, .. } => write!(formatter, "the end of {id}"),
            Self::Score { group, member } => write!(formatter, "the score of group {group}, member {member}"),
            Self::Published { version } => write!(formatter, "version {} of the weights", version.0),
            Self::Unheard { group } => write!(formatter, "the end of group {group}, which was aborted"),
            Self::StepEnd => write!(formatter, "the end of a step"),
        }
    }
}

/// The kinds of end of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleEnd {
    /// The sample is complete.
    Sampled,
    /// The sample could not be completed.
    Failed {
        /// The component to blame.
        kind: FailureKind,
        /// The reason.
        reason: String,
        /// Its generation cost.
        #[serde(flatten)]
        spent: Spent,
    },
    /// The sample was aborted.
    Aborted {
        /// Its generation cost.
        #[serde(flatten)]
        spent: Spent,
    },
}

/// Keeps the order in which events were taken in, on disk before the process ends. A run that continues
/// from a checkpoint follows what was noted after it ([`Dispatcher::follow`]).
pub trait OrderLog {
    /// Notes the next event that was taken in.
    ///
    /// # Errors
    /// If it cannot be written.
    fn note(&mut self, taken: &Taken) -> Result<(), GeneratorError>;

    /// Removes the notes that are not followed: the next note replaces the first of the last
    /// `num_left`.
    ///
    /// # Errors
    /// If it cannot be written.
    fn forget(&mut self, num_left: usize) -> Result<(), GeneratorError>;
}

/// The next event to take in.
pub(super) enum Arrival {
    Event(GeneratorEvent),
    Score(ScoreEvent),
    Unheard(GroupId),
}

/// The rest of a noted order.
#[derive(Debug, Default)]
pub(super) struct Replay {
    taken: VecDeque<Taken>,
    /// Samples that ended without a completion: they are not requested.
    unsampled: BTreeSet<SampleId>,
    /// Those of them that would have been requested.
    unasked: Vec<SampleId>,
}

impl Replay {
    pub(super) fn of(taken: impl IntoIterator<Item = Taken>) -> Self {
        let mut taken: VecDeque<Taken> = taken.into_iter().collect();
        // Each attempt had one end. Attempts that a checkpoint had in flight are requested as if for
        // the first time.
        let mut attempts: BTreeMap<SampleId, u32> = BTreeMap::new();
        for taken in &mut taken {
            if let Taken::Sample { id, .. } = taken {
                let attempt = attempts.entry(SampleId { attempt: 0, ..*id }).or_default();
                id.attempt = *attempt;
                *attempt += 1;
            }
        }
        let unsampled = taken.iter().filter_map(|taken| match taken {
            Taken::Sample { id, end } if *end != SampleEnd::Sampled => Some(*id),
            _ => None,
        });
        Self { unsampled: unsampled.collect(), taken, unasked: Vec::new() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.taken.is_empty()
    }

    /// Whether a sample is not requested, because it is known to have ended without a completion.
    pub(super) fn keeps(&mut self, id: SampleId) -> bool {
        let keeps = self.unsampled.contains(&id);
        if keeps {
            self.unasked.push(id);
        }
        keeps
    }

    /// Whether the end of a step is what comes next in it, which is over with that.
    pub(super) fn pass_step_end(&mut self) -> bool {
        let is_end = self.taken.front() == Some(&Taken::StepEnd);
        if is_end {
            self.taken.pop_front();
        }
        is_end
    }

    /// The next event of the noted order, if it is known without waiting.
    fn next_known(&self) -> Option<Arrival> {
        match self.taken.front()? {
            Taken::Sample { id, end: SampleEnd::Failed { kind, reason, spent } } => {
                let (kind, reason, spent) = (*kind, reason.clone(), *spent);
                let event = GeneratorEvent::Failed { id: *id, kind, reason, spent };
                Some(Arrival::Event(event))
            }
            Taken::Sample { id, end: SampleEnd::Aborted { spent } } => {
                Some(Arrival::Event(GeneratorEvent::Aborted { id: *id, spent: *spent }))
            }
            Taken::Unheard { group } => Some(Arrival::Unheard(GroupId(*group))),
            Taken::Sample { .. } | Taken::Score { .. } | Taken::Published { .. } | Taken::StepEnd => None,
        }
    }

    /// Position of the next event of the noted order among the events that have arrived.
    fn find(&self, events: &VecDeque<GeneratorEvent>) -> Option<usize> {
        let front = self.taken.front()?;
        events.iter().position(|event| match (front, event) {
            (Taken::Sample { id, .. }, GeneratorEvent::Sampled { id: arrived, .. }) => id == arrived,
            (Taken::Published { version }, GeneratorEvent::Published { version: arrived }) => {
                version == arrived
            }
            _ => false,
        })
    }

    fn find_score(&self, scores: &VecDeque<ScoreEvent>) -> Option<usize> {
        let Taken::Score { group, member } = self.taken.front()? else { return None };
        scores.iter().position(|event| event.request.member == (GroupId(*group), *member))
    }
}

impl Dispatcher {
    /// Follows the order of events that an earlier process had taken in after the state of this
    /// dispatcher. Later events are taken in as they arrive.
    pub fn follow(&mut self, order: Vec<Taken>) {
        self.replay = Replay::of(order);
    }

    /// Whether an event can be taken in without waiting.
    pub(super) fn has_arrival(&mut self) -> bool {
        if self.replay.is_over() {
            return !self.inbox.of_groups.is_empty() || !self.scored.is_empty();
        }
        self.ignore_unexpected();
        let (events, replay) = (&self.inbox.of_groups, &self.replay);
        self.next_known().is_some()
            || replay.find(events).is_some()
            || replay.find_score(&self.scored).is_some()
    }

    /// Drops unexpected events that have arrived: a later sample may get the same number.
    fn ignore_unexpected(&mut self) {
        let mut events = std::mem::take(&mut self.inbox.of_groups);
        events.retain(|event| match event.id().map_or(Ok(()), |id| self.expect(id)) {
            Ok(()) => true,
            Err(why) => {
                self.inbox.ignored.count(why);
                false
            }
        });
        self.inbox.of_groups = events;
    }

    /// The next event of the followed order, if it has arrived and is expected.
    fn next_known(&self) -> Option<Arrival> {
        self.replay.next_known().filter(|arrival| match arrival {
            Arrival::Event(GeneratorEvent::Failed { id, .. } | GeneratorEvent::Aborted { id, .. }) => {
                self.expect(*id).is_ok()
            }
            Arrival::Unheard(group) => {
                self.flights.get(group).is_some_and(|flight| flight.course == Course::Aborted)
            }
            Arrival::Event(_) | Arrival::Score(_) => true,
        })
    }

    /// The event to take in now.
    pub(super) fn next_arrival(&mut self) -> Option<Arrival> {
        if !self.replay.is_over() {
            self.ignore_unexpected();
        }
        let known = self.next_known();
        let events = &mut self.inbox.of_groups;
        if self.replay.is_over() {
            let event = events.pop_front().map(Arrival::Event);
            return event.or_else(|| self.scored.pop_front().map(Arrival::Score));
        }
        let arrival = if known.is_some() {
            known
        } else if let Some(place) = self.replay.find(events) {
            events.remove(place).map(Arrival::Event)
        } else {
            let place = self.replay.find_score(&self.scored);
            place.and_then(|place| self.scored.remove(place)).map(Arrival::Score)
        };
        if arrival.is_some() {
            self.replay.taken.pop_front();
            self.is_replaying = true;
        }
        arrival
    }

    /// Notes an event that is taken in, unless an order is followed.
    pub(super) fn note(&mut self, with: &mut Dependencies<'_>, taken: &Taken) -> Result<(), DispatchError> {
        if std::mem::take(&mut self.is_replaying) {
            return Ok(());
        }
        if let Some(order) = &mut with.order {
            order.note(taken)?;
        }
        Ok(())
    }

    /// Stops following a noted order, and reports it: the next event of the order does not arrive.
    pub(super) fn stop_following(&mut self, with: &mut Dependencies<'_>) -> Result<(), DispatchError> {
        let left = std::mem::take(&mut self.replay);
        let Some(next) = left.taken.front() else { return Ok(()) };
        with.observer.warn(&format!(
            "the recorded order of this run (order.bin) cannot be followed any further: its next entry is {next}, which did not happen \
            again. {} of its entries are ignored, and from here on the run may train on different batches than before",
            left.taken.len()
        ));
        if let Some(order) = &mut with.order {
            order.forget(left.taken.len())?;
        }
        self.again.extend(left.unasked);
        Ok(())
    }
}
