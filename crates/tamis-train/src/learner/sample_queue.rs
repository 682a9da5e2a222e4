//! Requested samples that have not begun: the queue in front of a generator with a learner's weights,
//! in this process or another.

use std::collections::HashSet;

use tamis_core::schedule::Spent;
use tamis_rollout::{
    AbortScope, FailureKind, GeneratorError, GeneratorEvent, SampleId, SamplePurpose, SampleRequest,
};

/// Samples on their way: those that wait, and the ids of all that have not ended.
#[derive(Debug, Default)]
pub(crate) struct SampleQueue {
    /// Submitted, not begun.
    waiting: Vec<SampleRequest>,
    /// Every request that has not ended.
    ids: HashSet<SampleId>,
}

/// Whether a sample belongs to no group that may be trained on.
pub(crate) fn is_other(id: &SampleId) -> bool {
    id.purpose != SamplePurpose::Rollout
}

impl SampleQueue {
    /// Queues a request.
    ///
    /// # Errors
    /// [`GeneratorError::id_in_use`] if one of this id has not ended.
    pub(crate) fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        if !self.ids.insert(request.id) {
            return Err(GeneratorError::id_in_use(request.id));
        }
        self.waiting.push(request);
        Ok(())
    }

    /// Takes the samples that may begin, neighbours of one prompt together. Groups wait while other
    /// samples run (`others_run`) or are queued: validations come first, and whole.
    pub(crate) fn take(&mut self, others_run: bool) -> Vec<Vec<SampleRequest>> {
        let mut taken = std::mem::take(&mut self.waiting);
        if others_run || taken.iter().any(|request| is_other(&request.id)) {
            (taken, self.waiting) = taken.into_iter().partition(|request| is_other(&request.id));
        }
        let mut groups: Vec<Vec<SampleRequest>> = Vec::new();
        for request in taken {
            match groups.last_mut() {
                Some(group) if group[0].shares_prompt(&request) => group.push(request),
                _ => groups.push(vec![request]),
            }
        }
        groups
    }

    /// Aborts the waiting samples in this scope, in the order in which they were submitted.
    pub(crate) fn abort(&mut self, what: &AbortScope) -> Vec<GeneratorEvent> {
        let waiting = std::mem::take(&mut self.waiting);
        let (given_up, kept) = waiting.into_iter().partition(|request| what.holds(&request.id));
        self.waiting = kept;
        let given_up: Vec<SampleRequest> = given_up;
        let aborted = |request: SampleRequest| {
            self.ids.remove(&request.id);
            GeneratorEvent::Aborted { id: request.id, spent: Spent::default() }
        };
        given_up.into_iter().map(aborted).collect()
    }

    /// Ends requests that cannot be sampled from; one of them fails its group, not the run.
    pub(crate) fn fail(&mut self, members: &[SampleRequest], reason: &str) -> Vec<GeneratorEvent> {
        let failed = |member: &SampleRequest| {
            self.ids.remove(&member.id);
            let (kind, reason) = (FailureKind::Permanent, reason.to_owned());
            GeneratorEvent::Failed { id: member.id, kind, reason, spent: Spent::default() }
        };
        members.iter().map(failed).collect()
    }

    pub(crate) fn end(&mut self, id: &SampleId) {
        self.ids.remove(id);
    }

    pub(crate) fn num_open(&self) -> usize {
        self.ids.len()
    }
}
