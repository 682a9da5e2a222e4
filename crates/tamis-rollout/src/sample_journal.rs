//! Samples with a memory: generator results that are not a function of our keys are journalled before
//! they are used.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use tamis_core::group::PolicyVersion;
use tamis_core::random::Key;
use tamis_core::schedule::Spent;

use crate::generator::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, Sample,
    SampleId, SamplePurpose, SampleRequest, Wait,
};

/// Identity of a sample across restarts. A resumed run asks for the same prompt, epoch and member under the
/// same key, maybe as another group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SampleIdentity {
    /// Id of the sample in this process.
    pub id: SampleId,
    /// Key of its random numbers: prompt, epoch and member.
    pub key: Key,
    /// The version of the weights that were published then.
    pub version: PolicyVersion,
    /// Whether its group was in flight when the checkpoint was written that this process began with.
    #[serde(skip)]
    pub was_in_flight: bool,
}

impl SampleIdentity {
    /// Whether an answer to the `earlier` identity, of an earlier process, is an answer to this one. It
    /// is if it is the same sample by the same weights. It also is if it is the same member of the same
    /// group, in flight when the checkpoint was written and so requested before later weights were
    /// published.
    ///
    /// Nothing else may reuse answers of older weights. Groups that are dispatched after the checkpoint
    /// may get other numbers than in the earlier process, and every process numbers validations and
    /// greedy completions anew.
    pub fn is_answered_by(&self, earlier: &Self) -> bool {
        let place = |id: &SampleId| (id.purpose, id.group, id.member);
        let is_older =
            self.was_in_flight && place(&self.id) == place(&earlier.id) && earlier.version < self.version;
        self.key == earlier.key
            && self.id.purpose == earlier.id.purpose
            && self.id.turn == earlier.id.turn
            && (self.version == earlier.version || is_older)
    }
}

/// Result of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleOutcome {
    /// The completion.
    Sampled(Sample),
    /// The sample could not be completed.
    Failed {
        /// Whether it was of use to ask again.
        kind: FailureKind,
        /// The reason.
        reason: String,
        /// Its generation cost.
        #[serde(flatten)]
        spent: Spent,
    },
}

/// Keeps the samples of generators whose answers may differ if requested again.
pub trait SampleJournal: Send {
    /// Returns the recorded result, each only once, so that nothing is requested twice. `step` is the
    /// one of the request: a measurement belongs to its step, even if two steps have the same weights.
    fn take(&mut self, step: u64, asked: &SampleIdentity) -> Option<SampleOutcome>;

    /// Records the results of a step durably, before any of them is used.
    fn put(&mut self, step: u64, outcomes: &[(SampleIdentity, SampleOutcome)]) -> Result<(), GeneratorError>;

    /// Drops the results of steps before `next`. From the returned position (in bytes) on the journal
    /// holds all others, which a checkpoint needs.
    fn settle(&mut self, next: u64) -> u64;

    /// Removes everything before a position, which no checkpoint needs any more, if that is worth the
    /// effort.
    fn shorten(&mut self, position: u64) -> Result<(), GeneratorError>;
}

/// The point at which a process takes up a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    /// The version of the weights.
    pub version: PolicyVersion,
    /// The step that comes.
    pub step: u64,
    /// The number of the first group that it dispatches; those before were in flight or are done.
    pub next_group: u64,
}

/// A process's memory of samples that cannot be repeated: the results of earlier processes, and the
/// requests whose results are still to be recorded.
pub struct SampleMemory {
    journal: Box<dyn SampleJournal>,
    step: u64,
    version: PolicyVersion,
    next_group: u64,
    asked: HashMap<SampleId, SampleIdentity>,
}

impl SampleMemory {
    /// A memory that begins at the position from which the process resumes its run.
    pub fn new(journal: Box<dyn SampleJournal>, at: Beginning) -> Self {
        let Beginning { version, step, next_group } = at;
        Self { journal, step, version, next_group, asked: HashMap::new() }
    }

    /// From now on what comes belongs to this step.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// From now on requests are sampled by this version.
    pub fn set_version(&mut self, version: PolicyVersion) {
        self.version = version;
    }

    /// The recorded end of a request; if it has none, its end will be recorded.
    pub fn recall(&mut self, request: &SampleRequest) -> Option<GeneratorEvent> {
        let id = request.id;
        let was_in_flight = id.purpose == SamplePurpose::Rollout && id.group < self.next_group;
        let asked = SampleIdentity { id, key: request.key, version: self.version, was_in_flight };
        let Some(outcome) = self.journal.take(self.step, &asked) else {
            self.asked.insert(id, asked);
            return None;
        };
        Some(match outcome {
            SampleOutcome::Sampled(sample) => GeneratorEvent::Sampled { id, sample },
            SampleOutcome::Failed { kind, reason, spent } => {
                GeneratorEvent::Failed { id, kind, reason, spent }
            }
        })
    }

    /// Records the ends of requests among some events, before they are returned.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn record(&mut self, events: &[GeneratorEvent]) -> Result<(), GeneratorError> {
        let mut outcomes = Vec::new();
        for event in events {
            let (id, outcome) = match event {
                GeneratorEvent::Sampled { id, sample } => (id, SampleOutcome::Sampled(sample.clone())),
                GeneratorEvent::Failed { id, kind, reason, spent } => {
                    let (kind, reason, spent) = (*kind, reason.clone(), *spent);
                    (id, SampleOutcome::Failed { kind, reason, spent })
                }
                GeneratorEvent::Aborted { id, .. } => {
                    self.asked.remove(id);
                    continue;
                }
                GeneratorEvent::Published { .. } => continue,
            };
            // A second answer to a request, or one without a request, is not used.
            if let Some(asked) = self.asked.remove(id) {
                outcomes.push((asked, outcome));
            }
        }
        if outcomes.is_empty() { Ok(()) } else { self.journal.put(self.step, &outcomes) }
    }

    /// See [`SampleJournal::settle`].
    pub fn settle(&mut self, next: u64) -> u64 {
        self.journal.settle(next)
    }

    /// See [`SampleJournal::shorten`].
    pub fn shorten(&mut self, position: u64) -> Result<(), GeneratorError> {
        self.journal.shorten(position)
    }
}

/// A generator whose answers are journalled before they are returned: a run that is killed at any
/// instant and resumed has the samples it had, and requests the rest.
pub struct Journalled<G> {
    generator: G,
    memory: SampleMemory,
    /// Read back, and not yet returned.
    recorded: VecDeque<GeneratorEvent>,
}

impl<G: Generator> Journalled<G> {
    /// Around a generator that samples by the version of the beginning.
    pub fn new(generator: G, journal: Box<dyn SampleJournal>, at: Beginning) -> Self {
        Self { generator, memory: SampleMemory::new(journal, at), recorded: VecDeque::new() }
    }

    /// The generator that is journalled.
    pub fn generator(&self) -> &G {
        &self.generator
    }

    /// The generator behind it, for calls other than sampling.
    pub fn generator_mut(&mut self) -> &mut G {
        &mut self.generator
    }

    /// Its memory.
    pub fn memory_mut(&mut self) -> &mut SampleMemory {
        &mut self.memory
    }
}

impl<G: Generator> Generator for Journalled<G> {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        match self.memory.recall(&request) {
            Some(recorded) => self.recorded.push_back(recorded),
            None => self.generator.submit(request)?,
        }
        Ok(())
    }

    fn abort(&mut self, what: AbortScope) {
        self.generator.abort(what);
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        self.generator.publish(weights, in_flight)?;
        // These weights sample all later requests.
        self.memory.set_version(weights.version);
        Ok(())
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        // If the generator is lost, nothing that was read back is lost with it.
        let new = self.generator.next(if self.recorded.is_empty() { wait } else { Wait::No })?;
        self.memory.record(&new)?;
        Ok(self.recorded.drain(..).chain(new).collect())
    }

    fn load(&self) -> Load {
        let load = self.generator.load();
        Load { in_flight: load.in_flight + self.recorded.len(), ..load }
    }
}

#[cfg(test)]
pub(crate) mod tests;
