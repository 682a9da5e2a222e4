//! Events of a generator for which another caller than the present one waits, and those for which no caller
//! waits.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::generator::{FailureKind, GeneratorEvent, SamplePurpose};

/// Why an event is not expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unexpected {
    /// The request was answered before.
    Duplicate,
    /// The group of the event is over: it was aborted, failed, or left the run long ago.
    Late,
    /// The event was never requested: another purpose, an unknown group, member, turn or attempt.
    Foreign,
}

/// Number of unexpected events, by class. They are counted and otherwise ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ignored {
    /// A request's second answer.
    pub duplicate: u64,
    /// Answers to requests that are over: aborted, failed, trained.
    pub late: u64,
    /// Answers without a request.
    pub foreign: u64,
}

impl Ignored {
    /// One more.
    pub fn count(&mut self, why: Unexpected) {
        *match why {
            Unexpected::Duplicate => &mut self.duplicate,
            Unexpected::Late => &mut self.late,
            Unexpected::Foreign => &mut self.foreign,
        } += 1;
    }

    /// Those of another time as well.
    pub fn add(&mut self, other: Self) {
        self.duplicate += other.duplicate;
        self.late += other.late;
        self.foreign += other.foreign;
    }

    /// Name and number of the classes that there were any of.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [("duplicate", self.duplicate), ("late", self.late), ("foreign", self.foreign)];
        all.into_iter().filter(|(_, number)| *number > 0)
    }
}

/// Number of a step's trajectories that environments failed, among those for which a caller waited. It
/// includes failures that a resumed run has read from a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultyEpisodes {
    /// Number whose environment was too slow.
    pub num_timed_out: u64,
    /// Number whose environment failed in another way.
    pub num_broken: u64,
}

impl FaultyEpisodes {
    /// Counts one more, if an environment is to blame.
    pub fn count(&mut self, kind: FailureKind) {
        match kind {
            FailureKind::EnvironmentTimedOut => self.num_timed_out += 1,
            FailureKind::EnvironmentBroke => self.num_broken += 1,
            FailureKind::Transient | FailureKind::Permanent => {}
        }
    }

    /// Those that there were, by metric.
    pub fn by_metric(self) -> Vec<(String, u64)> {
        let classes = [("timed_out", self.num_timed_out), ("broken", self.num_broken)];
        let named = classes.map(|(class, count)| (format!("rollout/environment_faults/{class}"), count));
        named.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Events of a run's generator that were not used at once. A caller that samples a list of prompts
/// ([`crate::complete`]) leaves here the events of groups that generate at the same time.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Events of groups and publications, in order.
    pub(crate) of_groups: VecDeque<GeneratorEvent>,
    /// Events for the dispatcher that this one is beside, in order.
    pub(crate) of_others: VecDeque<GeneratorEvent>,
    /// Unexpected events since [`Inbox::take_ignored`].
    pub(crate) ignored: Ignored,
    /// Trajectories that environments have failed since [`Inbox::take_faults`].
    pub(crate) faults: FaultyEpisodes,
    /// Prompts of each purpose so far.
    pub(crate) num_prompts: BTreeMap<SamplePurpose, u64>,
}

impl Inbox {
    /// Takes over the events that arrived beside the samples of a purpose during a wait for those.
    pub(crate) fn take_over(&mut self, other: &mut Self, purpose: SamplePurpose) {
        self.of_groups.append(&mut other.of_others);
        self.of_groups.append(&mut other.of_groups);
        self.ignored.add(other.take_ignored());
        let faults = other.take_faults();
        // A validation is between two steps, and is not counted in either of them.
        if purpose != SamplePurpose::Validation {
            self.faults.num_timed_out += faults.num_timed_out;
            self.faults.num_broken += faults.num_broken;
        }
    }

    /// Returns the number of unexpected events since the last call.
    pub fn take_ignored(&mut self) -> Ignored {
        std::mem::take(&mut self.ignored)
    }

    /// Returns the trajectories since the last call that environments have failed.
    pub fn take_faults(&mut self) -> FaultyEpisodes {
        std::mem::take(&mut self.faults)
    }
}
