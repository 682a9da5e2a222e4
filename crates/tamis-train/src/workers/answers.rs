//! The journal of external rewards' answers, by trajectory key.
//!
//! A process requests nothing twice, so its own answers are used at once and need not be remembered.
//! Only answers that an earlier process got after the checkpoint are read back, and each is dropped
//! when it has been requested again.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_rollout::{AnswerJournal, AnswerJournalError as AnswerError, JournaledAnswer};

use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, JournalError, SyncPolicy};

#[derive(Serialize, Deserialize)]
struct Entry {
    key: String,
    /// The training step that requested it.
    step: u64,
    answer: JournaledAnswer,
}

/// The answers of a run on disk, and those in memory that an earlier process was given.
pub struct RecordedAnswers {
    journal: Journal,
    /// Read back and not requested yet, with their steps.
    known: HashMap<String, (u64, JournaledAnswer)>,
    /// Offset of each step's first answer that no checkpoint has settled.
    starts: BTreeMap<u64, u64>,
}

impl RecordedAnswers {
    /// Opens the journal and reads its entries from `from` on, the position that the checkpoint
    /// recorded (0 without one). A torn tail is cut: its answers are requested again.
    ///
    /// # Errors
    /// A journal that ends before `from`, a file that is not a journal, the disk.
    pub fn open(disk: &Disk, path: &Path, from: u64) -> Result<Self, JournalError> {
        // One flush for each batch of answers, after it was appended.
        let (journal, entries) = Journal::open_json::<Entry>(disk, path, SyncPolicy::OnDemand, from)?;
        let mut all = Self { journal, known: HashMap::new(), starts: BTreeMap::new() };
        for (start, Entry { key, step, answer }) in entries {
            all.starts.entry(step).or_insert(start);
            all.known.insert(key, (step, answer));
        }
        Ok(all)
    }
}

impl AnswerJournal for RecordedAnswers {
    fn take(&mut self, key: &str) -> Option<JournaledAnswer> {
        self.known.remove(key).map(|(_, answer)| answer)
    }

    fn put(&mut self, step: u64, answers: &[(String, JournaledAnswer)]) -> Result<(), AnswerError> {
        self.starts.entry(step).or_insert(self.journal.position());
        for (key, answer) in answers {
            let entry = Entry { key: key.clone(), step, answer: answer.clone() };
            let payload = serde_json::to_vec(&entry).map_err(|error| AnswerError(Box::new(error)))?;
            self.journal.append(&payload).map_err(|error| AnswerError(Box::new(error)))?;
        }
        self.journal.sync().map_err(|error| AnswerError(Box::new(error)))
    }

    fn settle(&mut self, next: u64) -> u64 {
        self.known.retain(|_, (step, _)| *step >= next);
        self.starts.retain(|step, _| *step >= next);
        self.starts.values().copied().min().unwrap_or(self.journal.position())
    }

    fn shorten(&mut self, position: u64) -> Result<(), AnswerError> {
        self.journal.shorten(position).map_err(|error| AnswerError(Box::new(error)))
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::Score;

    use super::*;

    fn answer(value: f64) -> JournaledAnswer {
        JournaledAnswer {
            scores: BTreeMap::new(),
            reward: Score::of(value),
            failures: BTreeMap::new(),
            logged: tamis_env::reward::Logged::default(),
        }
    }

    fn open(path: &Path, from: u64) -> RecordedAnswers {
        RecordedAnswers::open(&Disk::without_flush(), path, from).expect("opens")
    }

    fn put(answers: &mut RecordedAnswers, step: u64, key: &str, value: f64) {
        answers.put(step, &[(key.to_owned(), answer(value))]).expect("put");
    }

    #[test]
    fn memory_and_what_a_resume_reads_do_not_grow_with_the_steps() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let mut answers = open(&path, 0);
        let mut checkpoint = 0;
        for step in 1..=50 {
            for group in 0..4 {
                put(&mut answers, step, &format!("rollout/{}/0", 4 * step + group), 0.5);
            }
            assert_eq!((answers.known.len(), answers.starts.len()), (0, 1), "step {step}");
            checkpoint = answers.settle(step + 1);
        }
        assert_eq!(checkpoint, std::fs::metadata(&path).expect("file").len());
        // Two steps after the checkpoint, one of them repeated.
        put(&mut answers, 51, "rollout/204/0", 1.0);
        put(&mut answers, 52, "rollout/208/0", 2.0);
        drop(answers);
        let mut answers = open(&path, checkpoint);
        assert_eq!(answers.known.len(), 2, "of 202 in the file");
        assert_eq!(answers.take("rollout/204/0"), Some(answer(1.0)));
        assert_eq!(answers.take("rollout/204/0"), None, "asked for once");
        // A checkpoint now does not count the second step as settled, though the file goes further.
        let between = answers.settle(52);
        assert!(checkpoint < between && between < std::fs::metadata(&path).expect("file").len());
        assert_eq!(open(&path, between).take("rollout/208/0"), Some(answer(2.0)));
        assert_eq!(open(&path, between).take("rollout/204/0"), None);
    }

    #[test]
    fn a_checkpoint_in_the_middle_of_a_step_keeps_what_the_step_was_answered() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let mut answers = open(&path, 0);
        put(&mut answers, 3, "rollout/1/0", 0.25);
        let settled = answers.settle(4);
        put(&mut answers, 4, "rollout/2/0", 0.5);
        // Ctrl-C after the first round of step 4: the saved state is the one after step 3.
        assert_eq!(answers.settle(4), settled);
        assert_eq!(open(&path, settled).take("rollout/2/0"), Some(answer(0.5)));
        // A run that ends because rewards are missing forgets them all.
        assert_eq!(answers.settle(u64::MAX), std::fs::metadata(&path).expect("file").len());
    }
}
