//! A reward function: what it is given of a completion, and what it answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tamis_core::group::{Episode, Score};
use tamis_data::prompt::{Message, Prompt};

use super::failure::RewardFailure;

/// One completion to be scored.
#[derive(Debug, Clone, Copy)]
pub struct RewardInput<'a> {
    /// The prompt, untruncated, with ground truth and every dataset column.
    pub prompt: &'a Prompt,
    /// Completion text; where the prompt ends in an assistant message that is continued, that message stands
    /// before it.
    pub completion: &'a str,
    /// The completion's messages, where it has several turns; `None`: the text is one assistant message.
    pub messages: Option<&'a [Message]>,
    /// What an environment made of it, where one answered.
    pub episode: Option<&'a Episode>,
    /// Completion tokens \[T\], end token included.
    pub completion_ids: &'a [u32],
    /// Training step, from 1; 0 before training.
    pub step: u64,
    /// Pass over the data, from 0.
    pub epoch: u64,
    /// Progress of the training; set by the caller.
    pub trainer_state: TrainerState,
}

/// Progress of a training, in the terms of TRL's `trainer_state`. All 0: there is no training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TrainerState {
    /// Steps trained so far.
    pub global_step: u64,
    /// Steps of the whole run.
    pub max_steps: u64,
    /// Passes over the training data of the whole run.
    pub num_train_epochs: u64,
    /// Tokens of prompts and completions trained on so far.
    pub num_input_tokens_seen: u64,
    /// Completions of a step.
    pub train_batch_size: u64,
}

/// Extra values that a function logs for one completion beside its scores (TRL's `log_extra` and
/// `log_metric`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Logged {
    /// Text by column, for the files of rollouts and of validation samples.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// Numbers by metric; the metric of a step (of a data source of a validation) is the mean over all
    /// completions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Vec<f64>>,
}

impl Logged {
    /// Whether nothing was logged.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.metrics.is_empty()
    }

    /// Takes in what another function logged of the same completion. Its columns keep their names where they
    /// are free, and get that of the function in front where not.
    pub(super) fn extend(&mut self, function: &str, other: Self) {
        for (column, text) in other.columns {
            let place =
                if self.columns.contains_key(&column) { format!("{function}.{column}") } else { column };
            self.columns.insert(place, text);
        }
        for (name, values) in other.metrics {
            self.metrics.entry(name).or_default().extend(values);
        }
    }
}

impl<'a> RewardInput<'a> {
    /// Number of tokens that the policy wrote: all of them, but for those of an environment.
    pub fn num_written(&self) -> usize {
        self.episode.map_or(self.completion_ids.len(), Episode::num_written)
    }

    /// A completion of text alone, outside any training step.
    pub fn text(prompt: &'a Prompt, completion: &'a str) -> Self {
        let trainer_state = TrainerState::default();
        Self {
            prompt,
            completion,
            messages: None,
            episode: None,
            completion_ids: &[],
            step: 0,
            epoch: 0,
            trainer_state,
        }
    }

    /// Turns of the assistant in the completion; 1 where it is text.
    pub(crate) fn num_turns(&self) -> usize {
        if let Some(episode) = self.episode {
            return episode.turns.len();
        }
        let is_turn = |message: &&Message| message.role == "assistant";
        self.messages.map_or(1, |messages| messages.iter().filter(is_turn).count())
    }
}

/// Scores of one completion by name; `score` is the one that is weighted and trained on.
pub type Scores = BTreeMap<String, Score>;

/// One function's result for one completion.
#[derive(Debug, Clone, PartialEq)]
pub enum RewardOutcome {
    /// Named scores with at least `score`; none of them NaN or infinite.
    Scored(Scores),
    /// The function does not apply: its score is left out of the weighted sum.
    NoAnswer,
    /// The function could not do its work.
    Failed(RewardFailure),
}

impl RewardOutcome {
    /// `score` alone.
    pub fn score(value: f64) -> Self {
        Self::Scored(BTreeMap::from([("score".to_owned(), Score::of(value))]))
    }

    /// `score` and `acc`.
    pub fn verified(score: f64, is_correct: bool) -> Self {
        Self::Scored(BTreeMap::from([
            ("score".to_owned(), Score::of(score)),
            ("acc".to_owned(), Score::of(f64::from(u8::from(is_correct)))),
        ]))
    }

    /// The number of a name, where there is one.
    pub fn get(&self, name: &str) -> Option<f64> {
        match self {
            Self::Scored(scores) => scores.get(name).map(|score| score.value),
            Self::NoAnswer | Self::Failed(_) => None,
        }
    }
}

/// A function from completions to scores.
pub trait RewardFunction: Send + Sync {
    /// One outcome for each input, in order.
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome>;

    /// As [`RewardFunction::score`], with what was logged of each input; an empty list where this function
    /// never logs.
    fn score_logged(&self, batch: &[RewardInput<'_>]) -> (Vec<RewardOutcome>, Vec<Logged>) {
        (self.score(batch), Vec::new())
    }

    /// Number of completions of a batch that the function compares; 1 where its answer to one never depends
    /// on the others. `usize::MAX`: all of them.
    fn batch_size(&self) -> usize {
        1
    }

    /// Number of batches that the function can work on at the same time.
    fn concurrency(&self) -> usize {
        1
    }

    /// The fix where the function fails on everything, as far as the function itself can tell; `None` where
    /// it cannot.
    fn failure_hint(&self) -> Option<String> {
        None
    }

    /// The way for the function's author to report correctness (`acc`) beside the score, as an imperative;
    /// `None` where there is none.
    fn how_to_give_acc(&self) -> Option<&'static str> {
        None
    }

    /// The name of the function inside this one that scores the rows of a prompt, where it hands them to
    /// several: each can fail alone.
    fn part_of(&self, _prompt: &Prompt) -> Option<&str> {
        None
    }

    /// The function inside this one of a name that [`RewardFunction::part_of`] gave.
    fn part(&self, _name: &str) -> Option<&dyn RewardFunction> {
        None
    }

    /// The answers that this function reads in completions of one prompt, as votes: two are the same text if
    /// the function judges the answers equal, and empty if it finds none. `None` if it reads no answers.
    fn votes(&self, _batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        None
    }

    /// Completions that say the ground truth in the forms this function may expect, the likeliest first;
    /// empty where it has no notion of a right answer.
    fn gold_completions(&self, _prompt: &Prompt) -> Vec<String> {
        Vec::new()
    }
}
