//! A reward function: its input for a completion, and its outcome.

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
    /// Completion text. If the prompt ends in an assistant message that is continued, that message comes
    /// first.
    pub completion: &'a str,
    /// The completion's messages if it has several turns; `None`: the text is one assistant message.
    pub messages: Option<&'a [Message]>,
    /// The episode in an environment, if there was one.
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

/// Progress of a training run, with the names of TRL's `trainer_state`. All 0: there is no training.
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

/// Extra values that a function logs for one completion besides its scores (TRL's `log_extra` and
/// `log_metric`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Logged {
    /// Text by column, for the files of rollouts and of validation samples.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// Numbers by metric. The metric of a step, or of a data source in a validation, is the mean over all
    /// completions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Vec<f64>>,
}

impl Logged {
    /// Whether nothing was logged.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.metrics.is_empty()
    }

    /// Adds the values that another function logged for the same completion. A column whose name is taken
    /// gets the function's name as a prefix.
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
    /// Number of tokens that the policy wrote: all except those of an environment.
    pub fn num_written(&self) -> usize {
        self.episode.map_or(self.completion_ids.len(), Episode::num_written)
    }

    /// A completion with only text, outside any training step.
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

    /// Turns of the assistant in the completion; 1 if it is text.
    pub(crate) fn num_turns(&self) -> usize {
        if let Some(episode) = self.episode {
            return episode.turns.len();
        }
        let is_turn = |message: &&Message| message.role == "assistant";
        self.messages.map_or(1, |messages| messages.iter().filter(is_turn).count())
    }
}

/// Scores of one completion by name; `score` is weighted and trained on.
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
    /// Only `score`.
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

    /// A judge's or model's score, which is right from `pass_score` on, if there is one.
    pub fn judged(score: f64, pass_score: Option<f64>) -> Self {
        pass_score.map_or_else(|| Self::score(score), |pass| Self::verified(score, score >= pass))
    }

    /// The number of a name, if there is one.
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

    /// As [`RewardFunction::score`], with the logged values of each input; the list is empty if this function
    /// never logs.
    fn score_logged(&self, batch: &[RewardInput<'_>]) -> (Vec<RewardOutcome>, Vec<Logged>) {
        (self.score(batch), Vec::new())
    }

    /// Number of completions of a batch that the function compares; 1 if its answer to one never depends on
    /// the others. `usize::MAX`: all of them.
    fn batch_size(&self) -> usize {
        1
    }

    /// Number of batches that the function can work on at the same time.
    fn concurrency(&self) -> usize {
        1
    }

    /// The fix if the function fails on every completion; `None` if the function does not know one.
    fn failure_hint(&self) -> Option<String> {
        None
    }

    /// How the function's author can report correctness (`acc`) besides the score, as an imperative; `None`
    /// if there is no way.
    fn how_to_give_acc(&self) -> Option<&'static str> {
        None
    }

    /// The name of the inner function that scores the rows of a prompt, if this function delegates to
    /// several. Each of them can fail separately.
    fn part_of(&self, _prompt: &Prompt) -> Option<&str> {
        None
    }

    /// The inner function of a name that [`RewardFunction::part_of`] returned.
    fn part(&self, _name: &str) -> Option<&dyn RewardFunction> {
        None
    }

    /// The answers that this function reads in completions of one prompt, as votes: two are the same text if
    /// the function judges the answers equal, and empty if it finds none. `None` if it reads no answers.
    fn votes(&self, _batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        None
    }

    /// Whether its score depends on the ground truth, if that is known; `None` for a program of the user.
    fn reads_gold(&self) -> Option<bool> {
        Some(true)
    }

    /// Whether it uses the ground truth that it takes, if that is known: a function of verl's form takes it
    /// whether it needs it or not.
    fn uses_gold(&self) -> Option<bool> {
        self.reads_gold()
    }

    /// Completions with the ground truth in the forms that this function may expect, the likeliest first;
    /// empty if it has no right answers.
    fn gold_completions(&self, _prompt: &Prompt) -> Vec<String> {
        Vec::new()
    }
}
