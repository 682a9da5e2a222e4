//! Scoring with a memory: answers that are not a function of the run's keys are journalled before they are used.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tamis_core::group::Score;
use tamis_env::reward::{Logged, RewardError, RewardInput, Rewards, Scored, TrainerState};
use thiserror::Error;

/// A journalled answer: everything that scoring said of one completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Scores by name.
    pub scores: std::collections::BTreeMap<String, Score>,
    /// The weighted sum.
    pub reward: Score,
    /// Message of each function that failed, by the function's name.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub failures: std::collections::BTreeMap<String, String>,
    /// What the functions logged beside their scores.
    #[serde(default, skip_serializing_if = "Logged::is_empty")]
    pub logged: Logged,
}

impl From<&Scored> for Answer {
    fn from(scored: &Scored) -> Self {
        let Scored { scores, reward, failures, logged } = scored.clone();
        Self { scores, reward, failures, logged }
    }
}

impl From<Answer> for Scored {
    fn from(answer: Answer) -> Self {
        let Answer { scores, reward, failures, logged } = answer;
        Self { scores, reward, failures, logged }
    }
}

/// Where answers of external rewards are kept, by trajectory key.
pub trait AnswerJournal {
    /// What was recorded under the key and not taken yet: nothing is asked for twice.
    fn take(&mut self, key: &str) -> Option<Answer>;

    /// Records what was answered in a step durably, before any of it is used.
    fn put(&mut self, step: u64, answers: &[(String, Answer)]) -> Result<(), JournalError>;

    /// Forgets what was answered in steps before `next`. From the position that is returned, in bytes, the journal holds all other answers:
    /// what a checkpoint counts on.
    fn settle(&mut self, next: u64) -> u64;
}

/// The journal cannot be written.
#[derive(Debug, Error)]
#[error("failed to journal the answers of external rewards")]
pub struct JournalError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Scoring cannot go on.
#[derive(Debug, Error)]
pub enum ScoreError {
    /// A reward function broke down for good.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// The reward functions of a run with their journal.
pub struct Scorer {
    rewards: Rewards,
    journal: Option<Box<dyn AnswerJournal>>,
    warnings: Vec<String>,
    times: BTreeMap<String, Duration>,
}

impl Scorer {
    /// Without a journal, for rewards that are pure functions of the completion.
    pub fn new(rewards: Rewards) -> Self {
        Self { rewards, journal: None, warnings: Vec::new(), times: BTreeMap::new() }
    }

    /// With a journal, for rewards whose answers may differ when asked again.
    #[must_use]
    pub fn with_journal(mut self, journal: Box<dyn AnswerJournal>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// The functions.
    pub fn rewards(&self) -> &Rewards {
        &self.rewards
    }

    /// Says how far the training is, to functions that ask.
    pub fn set_trainer_state(&mut self, state: TrainerState) {
        self.rewards.set_trainer_state(state);
    }

    /// Forgets journalled answers of steps before `next`; from where on the journal holds those of the others, `None` without one.
    pub fn settle_journal(&mut self, next: u64) -> Option<u64> {
        self.journal.as_mut().map(|journal| journal.settle(next))
    }

    /// Warnings since the last call, each with the content of its first row.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// How long each reward function took since the last call, by its name.
    pub fn take_times(&mut self) -> BTreeMap<String, Duration> {
        std::mem::take(&mut self.times)
    }

    /// Scores completions of one step, each under its trajectory key: recorded answers are taken from the journal, new ones go into it before
    /// they are returned.
    pub fn score(&mut self, inputs: &[RewardInput<'_>], keys: &[String]) -> Result<Vec<Scored>, ScoreError> {
        let mut rows: Vec<Option<Scored>> = match &mut self.journal {
            Some(journal) => keys.iter().map(|key| journal.take(key).map(Scored::from)).collect(),
            None => vec![None; inputs.len()],
        };
        rows.resize(inputs.len(), None);
        let missing: Vec<usize> = (0..inputs.len()).filter(|&i| rows[i].is_none()).collect();
        if !missing.is_empty() {
            let asked: Vec<RewardInput<'_>> = missing.iter().map(|&i| inputs[i]).collect();
            let scoring = self.rewards.score(&asked)?;
            self.warnings.extend(scoring.warnings);
            for (name, time) in scoring.times {
                *self.times.entry(name).or_default() += time;
            }
            if let Some(journal) = &mut self.journal {
                let answers: Vec<(String, Answer)> = missing
                    .iter()
                    .zip(&scoring.rows)
                    .filter_map(|(&i, scored)| Some((keys.get(i)?.clone(), Answer::from(scored))))
                    .collect();
                journal.put(asked[0].step, &answers)?;
            }
            for (&i, scored) in missing.iter().zip(scoring.rows) {
                rows[i] = Some(scored);
            }
        }
        // Every row was either recorded or asked for.
        Ok(rows.into_iter().flatten().collect())
    }
}
