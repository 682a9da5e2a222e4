//! The journal of external rewards' answers, by trajectory key.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_rollout::{Answer, AnswerJournal, JournalError as AnswerError};

use crate::durable::Disk;
use crate::journal::{Journal, JournalError, SyncPolicy};

#[derive(Serialize, Deserialize)]
struct Entry {
    key: String,
    answer: Answer,
}

/// Answers recorded in this run, in memory and on disk.
pub struct RecordedAnswers {
    journal: Journal,
    known: HashMap<String, Answer>,
}

impl RecordedAnswers {
    /// Opens the journal and reads what it holds. A torn tail is cut where it comes after the first `promised` bytes, which a checkpoint
    /// counts on (0 without one): the steps after it are done again, and so is the asking.
    ///
    /// # Errors
    /// Damage before `promised`: what was answered then was trained on, and another answer now would not be the same run.
    pub fn open(disk: &Disk, path: &Path, promised: u64) -> Result<Self, JournalError> {
        // One flush for each batch of answers, after it was appended.
        let (journal, recovered) = Journal::open(disk, path, SyncPolicy::OnDemand, promised)?;
        let known = recovered
            .records
            .iter()
            .filter_map(|(_, payload)| serde_json::from_slice::<Entry>(payload).ok())
            .map(|entry| (entry.key, entry.answer))
            .collect();
        Ok(Self { journal, known })
    }

    /// Answers held.
    pub fn num_answers(&self) -> usize {
        self.known.len()
    }
}

impl AnswerJournal for RecordedAnswers {
    fn get(&self, key: &str) -> Option<Answer> {
        self.known.get(key).cloned()
    }

    fn put(&mut self, answers: &[(String, Answer)]) -> Result<(), AnswerError> {
        for (key, answer) in answers {
            let entry = Entry { key: key.clone(), answer: answer.clone() };
            let payload = serde_json::to_vec(&entry).map_err(|error| AnswerError(Box::new(error)))?;
            self.journal.append(&payload).map_err(|error| AnswerError(Box::new(error)))?;
        }
        self.journal.sync().map_err(|error| AnswerError(Box::new(error)))?;
        self.known.extend(answers.iter().cloned());
        Ok(())
    }

    fn position(&self) -> u64 {
        self.journal.position()
    }
}
