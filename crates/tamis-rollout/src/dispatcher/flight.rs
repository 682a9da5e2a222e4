//! A group that is being generated or scored, member by member.

use crate::generator::SampleId;
use crate::record::Generation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberState {
    /// The member is not begun: the first ones of its group are to show whether it is worth it.
    Unbegun,
    /// The generator has it, under this number.
    Sampling(SampleId),
    /// The generator finished the member; its score is missing.
    Sampled,
    /// The member has its score.
    Scored,
    /// The member failed or was aborted.
    Lost,
}

/// Whether a group in flight continues or is being aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Course {
    /// The group continues.
    On,
    /// A member failed for good; the others are being aborted.
    Failed,
    /// The group is being aborted.
    Aborted,
}

#[derive(Debug, Clone)]
pub(super) struct GroupFlight {
    pub(super) members: Vec<MemberState>,
    pub(super) course: Course,
    /// Cost of the group so far, and when it ended. It is kept here too because an aborted group leaves
    /// with its step, before its last event.
    pub(super) generation: Generation,
    /// The round that it is examined with.
    pub(super) round: u64,
    /// Index of the group in that round.
    pub(super) place: usize,
    /// Whether the group has ended. The machine gets its event with the round's.
    pub(super) is_settled: bool,
}

impl GroupFlight {
    pub(super) fn of(round: u64, place: usize) -> Self {
        Self {
            members: Vec::new(),
            course: Course::On,
            generation: Generation::default(),
            round,
            place,
            is_settled: false,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.course == Course::On
    }

    /// Whether the generator has none of its members any more.
    pub(super) fn has_landed(&self) -> bool {
        !self.members.iter().any(|member| matches!(member, MemberState::Sampling(_)))
    }

    /// Whether all requested members are scored, and others are not requested yet.
    pub(super) fn is_screened(&self) -> bool {
        let is_begun = |member: &&MemberState| **member != MemberState::Unbegun;
        let num_begun = self.members.iter().filter(is_begun).count();
        self.is_on()
            && num_begun < self.members.len()
            && self.members.iter().filter(is_begun).all(|member| *member == MemberState::Scored)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_on() && self.members.iter().all(|member| *member == MemberState::Scored)
    }
}
