//! The rollout group and its members.
//!
//! A [`Group`] is the n trajectories of one prompt sampled under one dispatch. It is the unit of filtering
//! and is never split.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Stable number of a prompt in its dataset; the same prompt has the same id in every epoch and after a
/// resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PromptId(pub u64);

/// Number of a dispatch, unique in a run and increasing in dispatch order. A prompt that is drawn again forms
/// another group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// Count of weight publications. Lag of a group = version that trains it − version that dispatched it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct PolicyVersion(pub u64);

/// NaN as `null`, because JSON has no NaN.
mod nan_as_null {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        (!value.is_nan()).then_some(*value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

/// NaNs of a list as `null`.
mod nans_as_null {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| (!value.is_nan()).then_some(*value)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
        let values: Vec<Option<f32>> = Vec::deserialize(deserializer)?;
        Ok(values.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect())
    }
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token or a stop string was produced; the end token belongs to the completion and to the loss
    /// mask.
    Stop,
    /// The response limit was reached first: the trajectory is *truncated*.
    Length,
}

/// A named number about a trajectory, with the finer numbers of which it is the sum if the reward provides
/// them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Score {
    /// The trajectory's number; NaN if the reward gave no answer.
    #[serde(with = "nan_as_null")]
    pub value: f64,
    /// One number per completion token (process rewards), summing to `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_token: Option<Vec<f64>>,
    /// One number per turn, summing to `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_turn: Option<Vec<f64>>,
}

/// Names that no reward function may have: they belong to numbers that tamis computes itself.
pub const RESERVED_SCORES: [&str; 6] =
    ["score", "acc", "reward", "seq_reward", "seq_final_reward", "token_level_rewards"];

impl Score {
    /// A score that is one number.
    pub fn of(value: f64) -> Self {
        Self { value, per_token: None, per_turn: None }
    }

    /// No answer: NaN, which all statistics leave out.
    pub fn unanswered() -> Self {
        Self::of(f64::NAN)
    }
}

/// One answer of the policy in a trajectory of several, with the environment's reaction.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Turn {
    /// Index of its first token in the trajectory.
    pub start: u32,
    /// One past its last token. The environment wrote the tokens between two turns.
    pub end: u32,
    /// The first token that the policy saw before this turn, if it saw neither the prompt nor earlier tokens;
    /// `None`: the turn continues the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_start: Option<u32>,
    /// The answer as text.
    pub text: String,
    /// The environment's output after it; empty after the last turn.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observation: String,
    /// Role of that message; empty: the user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Reward of the turn.
    pub reward: f64,
    /// Numbers about it by name (`action_is_valid`, ...).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub info: BTreeMap<String, f64>,
}

/// One text among a trajectory's tokens, by its indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its first token. If that is also the first token of the answer (in the first part), it follows the
    /// prompt.
    pub start: usize,
    /// The first token after the part that the policy was shown.
    pub answer: usize,
    /// One past its last token.
    pub end: usize,
}

/// The texts of which an episode's tokens consist, unless they are one text that continues the prompt.
///
/// ```
/// use tamis_core::group::{Part, Turn, parts};
/// let turn = |start, end, context_start| Turn { start, end, context_start, ..Turn::default() };
/// assert!(parts(&[turn(0, 3, None), turn(5, 9, None)], 9).is_empty());
/// let anew = [turn(0, 3, None), turn(5, 9, Some(3))];
/// assert_eq!(parts(&anew, 9), [Part { start: 0, answer: 0, end: 3 }, Part { start: 3, answer: 5, end: 9 }]);
/// ```
pub fn parts(turns: &[Turn], num_tokens: usize) -> Vec<Part> {
    if turns.iter().all(|turn| turn.context_start.is_none()) {
        return Vec::new();
    }
    let begin = |(place, turn): (usize, &Turn)| match turn.context_start {
        Some(start) => Some((start as usize, turn.start as usize)),
        // The first answer continues the prompt.
        None => (place == 0).then_some((0, 0)),
    };
    let begun: Vec<(usize, usize)> = turns.iter().enumerate().filter_map(begin).collect();
    let ends = begun.iter().skip(1).map(|&(start, _)| start).chain([num_tokens]);
    begun.iter().zip(ends).map(|(&(start, answer), end)| Part { start, answer, end }).collect()
}

/// An environment's results for a trajectory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Episode {
    /// The answers in order; at least one.
    pub turns: Vec<Turn>,
    /// Whether the task was solved; `None` if the environment does not report it.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// Whether a limit (of turns, actions, tokens) ended it rather than the environment.
    pub is_cut: bool,
    /// Whether the environment gave no reward, so that a reward function must.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unscored: bool,
}

impl Episode {
    /// Mask of the tokens that the policy wrote \[T\].
    pub fn loss_mask(&self, num_tokens: usize) -> Vec<bool> {
        let mut mask = vec![false; num_tokens];
        for turn in &self.turns {
            let (start, end) = ((turn.start as usize).min(num_tokens), (turn.end as usize).min(num_tokens));
            mask[start.min(end)..end].fill(true);
        }
        mask
    }

    /// The texts of which its tokens consist; see [`parts`].
    pub fn parts(&self, num_tokens: usize) -> Vec<Part> {
        parts(&self.turns, num_tokens)
    }

    /// Number of tokens that the policy wrote.
    pub fn num_written(&self) -> usize {
        self.turns.iter().map(|turn| turn.end.saturating_sub(turn.start) as usize).sum()
    }

    /// Reward of each turn.
    pub fn rewards(&self) -> Vec<f64> {
        self.turns.iter().map(|turn| turn.reward).collect()
    }
}

/// One sampled completion of a prompt, all turns of it. All per-token vectors have length T, the number of
/// tokens after the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Place in the group, `0..n`.
    pub sample_index: u32,
    /// Completion text as scored.
    pub text: String,
    /// Completion tokens \[T\], the end token included.
    pub token_ids: Vec<u32>,
    /// Behaviour policy's `log_softmax(logits / temperature)` of each token \[T\], in nats; NaN if the
    /// sampler did not report it, 0 at tokens that the policy did not write.
    #[serde(with = "nans_as_null")]
    pub logprobs: Vec<f32>,
    /// Mean entropy of the policy over the tokens that it produced, at the temperature of `logprobs`, in
    /// nats; `None` if the sampler does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
    /// Mask of the tokens that the policy produced \[T\]; `false` for tool and environment output.
    pub loss_mask: Vec<bool>,
    /// Its turns, if it was played in an environment; `None`: it is a single answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episode: Option<Episode>,
    /// Why it ended; with several answers, why the last one ended.
    pub finish_reason: FinishReason,
    /// Oldest and newest policy version that sampled its tokens.
    pub versions: (PolicyVersion, PolicyVersion),
    /// Scores by name (`acc`, `format`, `score`, ...).
    pub scores: BTreeMap<String, Score>,
    /// Reward to train on: the weighted sum of scores plus shaping. NaN: unscored.
    #[serde(with = "nan_as_null")]
    pub reward: f64,
}

impl Trajectory {
    /// Whether any reward function answered.
    pub fn is_scored(&self) -> bool {
        !self.reward.is_nan()
    }

    /// Whether the sampler reported the log-probability of every token.
    pub fn has_logprobs(&self) -> bool {
        self.logprobs.iter().all(|logprob| !logprob.is_nan())
    }

    /// Number of the policy's answers: one, unless it was played in an environment.
    pub fn num_turns(&self) -> usize {
        self.episode.as_ref().map_or(1, |episode| episode.turns.len())
    }

    /// Index of each turn's last token. An empty turn reuses the previous token's index. Empty if there is no
    /// token at all.
    pub fn turn_ends(&self) -> Vec<usize> {
        match &self.episode {
            None => self.token_ids.len().checked_sub(1).into_iter().collect(),
            Some(episode) => {
                let last = self.token_ids.len().checked_sub(1);
                let place = |turn: &Turn| last.map(|last| (turn.end.saturating_sub(1) as usize).min(last));
                episode.turns.iter().filter_map(place).collect()
            }
        }
    }

    /// Number of tokens that the policy wrote: all, except those of an environment.
    pub fn num_written(&self) -> usize {
        self.episode.as_ref().map_or(self.token_ids.len(), Episode::num_written)
    }

    /// Whether the response limit truncated it.
    pub fn is_truncated(&self) -> bool {
        self.finish_reason == FinishReason::Length
    }
}

/// The n trajectories of one prompt sampled under one dispatch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The dispatch.
    pub id: GroupId,
    /// The prompt.
    pub prompt: PromptId,
    /// Pass over the data in which the prompt was drawn, from 0.
    pub epoch: u64,
    /// Policy version at dispatch.
    pub dispatched: PolicyVersion,
    /// Prompt tokens as the model saw them.
    pub prompt_token_ids: Vec<u32>,
    /// Paths of the images that the model saw with them, in the order of their positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// Members in sample order \[G\].
    pub trajectories: Vec<Trajectory>,
}

impl Group {
    /// A member for messages: `sample 2 of prompt 17`, by the columns of rollout files (both from 0).
    pub fn name(&self, member: &Trajectory) -> String {
        format!("sample {} of prompt {}", member.sample_index, self.prompt.0)
    }

    /// Completion tokens of all members.
    pub fn num_tokens(&self) -> usize {
        self.trajectories.iter().map(|trajectory| trajectory.token_ids.len()).sum()
    }

    /// Whether every member's text is the same (and there are at least two).
    pub fn is_identical_in_text(&self) -> bool {
        self.trajectories.len() > 1 && self.trajectories.windows(2).all(|pair| pair[0].text == pair[1].text)
    }
}
