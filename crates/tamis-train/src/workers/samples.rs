//! The journal of samples that are not a function of our keys: those of servers, and whole trajectories
//! that are played in environments elsewhere, each in a file of its own. Like the journal of external
//! rewards ([`crate::workers::answers`]), it is read back if an earlier process received entries after
//! the checkpoint.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_core::random::Key;
use tamis_rollout::{GeneratorError, SampleIdentity, SampleJournal, SampleOutcome, SamplePurpose};

use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, JournalError, SyncPolicy};

#[derive(Serialize, Deserialize)]
struct Entry {
    asked: SampleIdentity,
    step: u64,
    outcome: SampleOutcome,
}

/// The samples of a run on disk, and in memory those that an earlier process received.
pub struct RecordedSamples {
    journal: Journal,
    /// Read back and not requested yet, by key, in their original order.
    known: HashMap<Key, VecDeque<Entry>>,
    /// Offset of each step's first sample that no checkpoint has settled.
    starts: BTreeMap<u64, u64>,
}

impl RecordedSamples {
    /// Opens the journal and reads its entries from `from` on, the position that the checkpoint recorded (0
    /// without one). A torn tail is cut: its samples were not used, and are requested again.
    ///
    /// # Errors
    /// A journal that ends before `from`, a file that is not a journal, the disk.
    pub fn open(disk: &Disk, path: &Path, from: u64) -> Result<Self, JournalError> {
        let (journal, entries) = Journal::open_json::<Entry>(disk, path, SyncPolicy::OnDemand, from)?;
        let mut all = Self { journal, known: HashMap::new(), starts: BTreeMap::new() };
        for (start, entry) in entries {
            all.starts.entry(entry.step).or_insert(start);
            all.known.entry(entry.asked.key).or_default().push_back(entry);
        }
        Ok(all)
    }

    /// Samples in memory.
    pub fn num_samples(&self) -> usize {
        self.known.values().map(VecDeque::len).sum()
    }
}

impl SampleJournal for RecordedSamples {
    fn take(&mut self, step: u64, asked: &SampleIdentity) -> Option<SampleOutcome> {
        let known = self.known.get_mut(&asked.key)?;
        let is_rollout = asked.id.purpose == SamplePurpose::Rollout;
        let is_answer =
            |entry: &Entry| (is_rollout || entry.step == step) && asked.is_answered_by(&entry.asked);
        // A prompt may be drawn twice by the same weights: each group gets its own answer if it is
        // there.
        let is_its = |entry: &Entry| is_rollout && entry.asked.id.group == asked.id.group;
        let place = known.iter().position(|entry| is_answer(entry) && is_its(entry));
        let place = place.or_else(|| known.iter().position(is_answer))?;
        known.remove(place).map(|entry| entry.outcome)
    }

    fn put(&mut self, step: u64, outcomes: &[(SampleIdentity, SampleOutcome)]) -> Result<(), GeneratorError> {
        self.starts.entry(step).or_insert(self.journal.position());
        for (asked, outcome) in outcomes {
            let entry = Entry { asked: *asked, step, outcome: outcome.clone() };
            self.journal
                .append(&serde_json::to_vec(&entry).map_err(GeneratorError::journal)?)
                .map_err(GeneratorError::journal)?;
        }
        self.journal.sync().map_err(GeneratorError::journal)
    }

    fn settle(&mut self, next: u64) -> u64 {
        for known in self.known.values_mut() {
            known.retain(|entry| entry.step >= next);
        }
        self.known.retain(|_, known| !known.is_empty());
        self.starts.retain(|step, _| *step >= next);
        self.starts.values().copied().min().unwrap_or(self.journal.position())
    }

    fn shorten(&mut self, position: u64) -> Result<(), GeneratorError> {
        self.journal.shorten(position).map_err(GeneratorError::journal)
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::{FinishReason, GroupId, PolicyVersion};
    use tamis_core::random::Purpose;
    use tamis_core::schedule::Spent;
    use tamis_rollout::{FailureKind, Sample, SampleId};

    use super::*;

    fn asked(group: u64, prompt: u64, version: u64) -> SampleIdentity {
        SampleIdentity {
            id: SampleId::of_member(GroupId(group), 0),
            key: Key::new(1, Purpose::Rollout).with(prompt),
            version: PolicyVersion(version),
            was_in_flight: false,
        }
    }

    fn sampled(text: &str) -> SampleOutcome {
        SampleOutcome::Sampled(Sample {
            episode: None,
            lost: Spent::default(),
            token_ids: vec![3, 1],
            logprobs: vec![-0.1, -1.0 / 3.0],
            entropy: None,
            text: text.to_owned(),
            finish_reason: FinishReason::Stop,
            versions: Vec::new(),
        })
    }

    fn open(path: &Path, from: u64) -> RecordedSamples {
        RecordedSamples::open(&Disk::without_flush(), path, from).expect("opens")
    }

    #[test]
    fn what_came_after_a_checkpoint_is_read_back_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("samples.bin");
        let mut samples = open(&path, 0);
        samples.put(1, &[(asked(0, 7, 0), sampled("before"))]).expect("put");
        let checkpoint = samples.settle(2);
        let failure = SampleOutcome::Failed {
            kind: FailureKind::Permanent,
            reason: "refused".to_owned(),
            spent: Spent::on_answer(4),
        };
        let later = [(asked(1, 8, 1), sampled("later")), (asked(2, 9, 1), failure.clone())];
        samples.put(2, &later).expect("put");
        drop(samples);
        let mut samples = open(&path, checkpoint);
        assert_eq!(samples.num_samples(), 2);
        // The same prompt as another group; not by other weights, and not an entry before the
        // checkpoint.
        assert_eq!(samples.take(2, &asked(5, 8, 2)), None);
        assert_eq!(samples.take(2, &asked(0, 7, 0)), None);
        assert_eq!(samples.take(2, &asked(5, 8, 1)), Some(sampled("later")));
        assert_eq!(samples.take(2, &asked(5, 8, 1)), None, "asked for once");
        // A group that was in flight is requested with newer weights; another that has got its number and its
        // prompt needs its own answer.
        assert_eq!(samples.take(2, &asked(2, 9, 2)), None);
        assert_eq!(samples.take(2, &SampleIdentity { was_in_flight: true, ..asked(2, 9, 2) }), Some(failure));
        // In every new process, a validation has the number of an earlier one: answers of older weights do
        // not belong to it.
        let validation = |version: u64| {
            let mut asked = asked(0, 11, version);
            asked.id.purpose = SamplePurpose::Validation;
            asked
        };
        samples.put(2, &[(validation(1), sampled("validated"))]).expect("put");
        drop(samples);
        let mut samples = open(&path, checkpoint);
        assert_eq!(samples.take(2, &validation(2)), None);
        assert_eq!(samples.take(2, &validation(1)), Some(sampled("validated")));
        // A sample of another step belongs to another measurement, even with the same weights.
        samples.put(3, &[(validation(1), sampled("later"))]).expect("put");
        drop(samples);
        let mut samples = open(&path, checkpoint);
        assert_eq!(samples.take(3, &validation(1)), Some(sampled("later")));
        assert_eq!(samples.take(3, &validation(1)), None);
        assert_eq!(samples.take(2, &validation(1)), Some(sampled("validated")));
        // A prompt that is drawn twice by the same weights: each group has its own.
        samples
            .put(2, &[(asked(6, 12, 1), sampled("first")), (asked(7, 12, 1), sampled("second"))])
            .expect("put");
        drop(samples);
        let mut samples = open(&path, checkpoint);
        assert_eq!(samples.take(2, &asked(7, 12, 1)), Some(sampled("second")));
        assert_eq!(samples.take(2, &asked(7, 12, 1)), Some(sampled("first")));
        // A checkpoint in the middle of step 2 keeps the entries of that step.
        samples.put(2, &[(asked(3, 10, 1), sampled("more"))]).expect("put");
        assert_eq!(samples.settle(2), checkpoint);
        assert_eq!(samples.settle(4), std::fs::metadata(&path).expect("a file").len());
        assert_eq!(open(&path, checkpoint).num_samples(), 7);
    }
}
