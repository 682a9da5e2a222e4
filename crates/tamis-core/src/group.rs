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

/// Number of a dispatch, unique in a run and increasing in dispatch order. The same prompt met again is
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

/// A named number about a trajectory, with the finer numbers it was summed from where the reward gave them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Score {
    /// The trajectory's number; NaN when the reward gave no answer.
    #[serde(with = "nan_as_null")]
    pub value: f64,
    /// One number per completion token (process rewards), summing to `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_token: Option<Vec<f64>>,
    /// One number per turn, summing to `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_turn: Option<Vec<f64>>,
}

/// Names that no reward function can have: those of numbers that tamis computes itself.
pub const RESERVED_SCORES: [&str; 6] =
    ["score", "acc", "reward", "seq_reward", "seq_final_reward", "token_level_rewards"];

impl Score {
    /// A score that is one number.
    pub fn of(value: f64) -> Self {
        Self { value, per_token: None, per_turn: None }
    }

    /// No answer: NaN, outside every statistic.
    pub fn unanswered() -> Self {
        Self::of(f64::NAN)
    }
}

/// One answer of the policy in a trajectory of several, with what an environment made of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Turn {
    /// Its first token among those of the trajectory.
    pub start: u32,
    /// One past its last token. What stands between two turns, the environment wrote.
    pub end: u32,
    /// First of the tokens that the policy saw before it, where it saw neither the prompt nor what stands
    /// before that one; `None`: it goes on from the turn before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_start: Option<u32>,
    /// The answer as text.
    pub text: String,
    /// What the environment showed after it; empty after the last turn.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observation: String,
    /// Whose message that is; empty: the user's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Reward of the turn.
    pub reward: f64,
    /// Numbers about it by name (`action_is_valid`, ...).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub info: BTreeMap<String, f64>,
}

/// A text among the tokens of a trajectory, with its places among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its first token. That of the first part, where it is also the first of its answer, follows the prompt.
    pub start: usize,
    /// The first token after what was shown to the policy.
    pub answer: usize,
    /// One past its last token.
    pub end: usize,
}

/// The texts that the tokens of an episode consist of, where they are not one that goes on from the prompt.
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
        // What goes on from the prompt.
        None => (place == 0).then_some((0, 0)),
    };
    let begun: Vec<(usize, usize)> = turns.iter().enumerate().filter_map(begin).collect();
    let ends = begun.iter().skip(1).map(|&(start, _)| start).chain([num_tokens]);
    begun.iter().zip(ends).map(|(&(start, answer), end)| Part { start, answer, end }).collect()
}

/// What an environment made of a trajectory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Episode {
    /// The answers in their order; at least one.
    pub turns: Vec<Turn>,
    /// Whether its task was solved; `None` where its environment does not say.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// Whether a limit (of turns, actions, tokens) ended it, and not the environment.
    pub is_cut: bool,
    /// Whether its environment gave no reward: a reward function has to.
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

    /// The texts that its tokens consist of; see [`parts`].
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
    /// Behaviour policy's `log_softmax(logits / temperature)` of each token \[T\], in nats; NaN where the
    /// sampler did not say, 0 at tokens that the policy did not write.
    #[serde(with = "nans_as_null")]
    pub logprobs: Vec<f32>,
    /// Mean entropy of the policy over the tokens that it produced, at the temperature of `logprobs`, in
    /// nats; `None` where the sampler does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
    /// Mask of the tokens that the policy produced \[T\]; `false` for tool and environment output.
    pub loss_mask: Vec<bool>,
    /// Its turns, where it was played in an environment; `None`: the whole of it is one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episode: Option<Episode>,
    /// Why it ended: its last answer, where it has several.
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

    /// Whether the sampler said the log-probability of every token.
    pub fn has_logprobs(&self) -> bool {
        self.logprobs.iter().all(|logprob| !logprob.is_nan())
    }

    /// Answers of the policy in it: one, where it was not played in an environment.
    pub fn num_turns(&self) -> usize {
        self.episode.as_ref().map_or(1, |episode| episode.turns.len())
    }

    /// Place of the last token of each turn; of one without tokens that of the token before it. Empty where
    /// there is no token at all.
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

    /// Number of tokens that the policy wrote: all of them, but for those of an environment.
    pub fn num_written(&self) -> usize {
        self.episode.as_ref().map_or(self.token_ids.len(), Episode::num_written)
    }

    /// Whether the response limit cut it off.
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
    /// Paths of the images that the model saw with them, in the order of their places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// Members in sample order \[G\].
    pub trajectories: Vec<Trajectory>,
}

impl Group {
    /// Completion tokens of all members.
    pub fn num_tokens(&self) -> usize {
        self.trajectories.iter().map(|trajectory| trajectory.token_ids.len()).sum()
    }

    /// Whether every member's text is the same (and there are at least two).
    pub fn is_identical_in_text(&self) -> bool {
        self.trajectories.len() > 1 && self.trajectories.windows(2).all(|pair| pair[0].text == pair[1].text)
    }
}
