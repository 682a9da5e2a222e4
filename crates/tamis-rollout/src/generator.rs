//! The generator contract: one sample request in, events out, in whatever order they happen.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::group::{Episode, FinishReason, GroupId, PolicyVersion, Trajectory};
use tamis_core::random::Key;
pub use tamis_core::schedule::InFlight;
use tamis_core::schedule::Spent;
use tamis_data::prompt::Prompt;
use tamis_model::LOGITS_NOT_FINITE;
use thiserror::Error;

/// Sampling parameters. The reported log-probability is always that of `softmax(logits / temperature)`,
/// before the repetition penalty and the truncations.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy (and then log-probabilities are those at temperature 1).
    pub temperature: f64,
    /// Keep the k most likely tokens.
    pub top_k: Option<u32>,
    /// Keep the smallest set of tokens whose probability reaches p; 1 keeps all.
    pub top_p: f64,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f64,
    /// Divides positive (multiplies negative) logits of tokens already seen; 1 is off.
    pub repetition_penalty: f64,
    /// Most completion tokens; the sequence is *truncated* when it ends here.
    pub max_response_length: usize,
    /// Strings that end a sequence once they occur in its text.
    pub stop: Vec<String>,
    /// Pattern that the text of a whole sequence must match
    /// ([`WholeRegex`](tamis_text::regex_mask::WholeRegex)). Only tokens that lead to a match are
    /// drawn, and an end token only after a match. A sequence that ends by length, or with a stop
    /// string, is the beginning of a match.
    pub regex: Option<String>,
}

impl Sampling {
    /// The model's own distribution: temperature 1, without penalty, truncation or pattern.
    pub fn plain(max_response_length: usize) -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_response_length,
            stop: Vec::new(),
            regex: None,
        }
    }
}

/// The purpose of a sample. Each purpose numbers its groups for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplePurpose {
    /// A member of a group that may be trained on; `group` is its group id.
    Rollout,
    /// A validation or an evaluation; `group` counts the prompts of all of them in this process.
    Validation,
    /// The greedy completion that a trained group is compared with; `group` counts those of the process.
    Greedy,
}

/// Id of a sample: no two requests in flight have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SampleId {
    /// The purpose of the sample.
    pub purpose: SamplePurpose,
    /// The group among those of this purpose.
    pub group: u64,
    /// The member of the group, from 0.
    pub member: u32,
    /// The turn of the member's episode, from 0.
    pub turn: u32,
    /// Index of the attempt, from 0: a retry is another request.
    pub attempt: u32,
}

impl SampleId {
    /// The first turn of a member of a rollout group, requested for the first time.
    pub fn of_member(group: GroupId, member: u32) -> Self {
        Self { purpose: SamplePurpose::Rollout, group: group.0, member, turn: 0, attempt: 0 }
    }

    /// The same sample in another attempt.
    #[must_use]
    pub fn again(self) -> Self {
        Self { attempt: self.attempt + 1, ..self }
    }
}

/// `group 7, member 0`, with turn and attempt if they are not the first, for messages.
impl fmt::Display for SampleId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let purpose = match self.purpose {
            SamplePurpose::Rollout => "group",
            SamplePurpose::Validation => "validation prompt",
            SamplePurpose::Greedy => "greedy completion",
        };
        write!(formatter, "{purpose} {}, member {}", self.group, self.member)?;
        if self.turn > 0 {
            write!(formatter, ", turn {}", self.turn)?;
        }
        if self.attempt > 0 {
            write!(formatter, ", attempt {}", self.attempt + 1)?;
        }
        Ok(())
    }
}

/// One prompt to be completed once.
#[derive(Debug, Clone)]
pub struct SampleRequest {
    /// Id of the sample.
    pub id: SampleId,
    /// Prompt tokens (at least one). Members of a group share the allocation, by which a generator may
    /// recognise a shared prompt.
    pub prompt_token_ids: Arc<[u32]>,
    /// Paths of the images that go with the prompt, in the order of their places; each place is as many
    /// tokens long as the model makes of the image.
    pub images: Arc<[String]>,
    /// Key of the sample's random numbers: the native engine's tokens are a function of it, the prompt and
    /// the weights; others take a seed from it.
    pub key: Key,
    /// Sampling parameters; of an episode those of each answer.
    pub sampling: Arc<Sampling>,
    /// The prompt as data, from which an environment is made; `None` if there is no environment.
    pub prompt: Option<Arc<Prompt>>,
}

impl SampleRequest {
    /// Whether another sample is of the same group and turn, with the same prompt and sampling
    /// parameters, so that they may share the prompt's computation.
    pub fn shares_prompt(&self, other: &Self) -> bool {
        (self.id.purpose, self.id.group, self.id.turn) == (other.id.purpose, other.id.group, other.id.turn)
            && (Arc::ptr_eq(&self.prompt_token_ids, &other.prompt_token_ids)
                || self.prompt_token_ids == other.prompt_token_ids)
            && (Arc::ptr_eq(&self.sampling, &other.sampling) || self.sampling == other.sampling)
    }
}

/// Tokens `start..end` of a completion were sampled by one version of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSpan {
    /// The version.
    pub version: PolicyVersion,
    /// First token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

/// One completion as generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Completion tokens \[T\], the end token included.
    pub token_ids: Vec<u32>,
    /// `log_softmax(logits / temperature)` of each \[T\]. Empty if the generator does not return them;
    /// the sample is then trained on only after the learner has computed them (text-only servers:
    /// never).
    pub logprobs: Vec<f32>,
    /// Mean entropy of the policy over them, in nats; `None` if the generator does not report it.
    pub entropy: Option<f64>,
    /// Decoded text, special tokens and stop strings left out.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Policy versions that sampled the tokens, as spans without gap from 0 to T. There is one span
    /// even without tokens.
    pub versions: Vec<VersionSpan>,
    /// Its turns, if it was played in an environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episode: Option<Episode>,
    /// Tokens that were generated for it and are not part of it: answers that its program did not wait
    /// for.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub lost: Spent,
}

fn is_nothing(spent: &Spent) -> bool {
    *spent == Spent::default()
}

impl Sample {
    /// Mask of the tokens that the policy wrote \[T\].
    pub fn loss_mask(&self) -> Vec<bool> {
        let len = self.token_ids.len();
        self.episode.as_ref().map_or_else(|| vec![true; len], |episode| episode.loss_mask(len))
    }

    /// Its turns and tokens, and those that were lost on the way to it.
    pub fn spent(&self) -> Spent {
        let turns = self.episode.as_ref().map_or(1, |episode| episode.turns.len() as u64);
        self.lost + Spent { tokens: self.token_ids.len() as u64, turns }
    }

    /// Number of tokens that the policy wrote: all of them, but for those of an environment.
    pub fn num_written(&self) -> usize {
        self.episode.as_ref().map_or(self.token_ids.len(), Episode::num_written)
    }

    /// The sample as a member of a group, not scored yet; `continued` is the beginning of the answer
    /// that the prompt contains.
    pub fn into_trajectory(self, sample_index: u32, continued: &str) -> Trajectory {
        Trajectory {
            versions: self.version_range(),
            sample_index,
            loss_mask: self.loss_mask(),
            episode: self.episode,
            text: format!("{continued}{}", self.text),
            token_ids: self.token_ids,
            logprobs: self.logprobs,
            entropy: self.entropy,
            finish_reason: self.finish_reason,
            scores: BTreeMap::new(),
            reward: f64::NAN,
        }
    }

    /// The oldest and the newest version that sampled a token of it.
    pub fn version_range(&self) -> (PolicyVersion, PolicyVersion) {
        let versions = || self.versions.iter().map(|span| span.version);
        (versions().min().unwrap_or(PolicyVersion(0)), versions().max().unwrap_or(PolicyVersion(0)))
    }
}

/// Whether a retry may help, and who is to blame if it is not the generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// May succeed another time or elsewhere: the connection broke, the server was busy or gave nonsense.
    Transient,
    /// Will fail again: the request itself is refused.
    Permanent,
    /// The environment that it was played in gave no answer in time.
    EnvironmentTimedOut,
    /// The environment that it was played in broke down, or the program that played it.
    EnvironmentBroke,
}

/// An event of a request, or of the generator. Every request comes to exactly one of the first three.
#[derive(Debug, Clone, PartialEq)]
pub enum GeneratorEvent {
    /// The sample is complete.
    Sampled {
        /// Id of the sample.
        id: SampleId,
        /// The completion.
        sample: Sample,
    },
    /// The sample cannot be completed.
    Failed {
        /// Id of the sample.
        id: SampleId,
        /// Whether to ask again.
        kind: FailureKind,
        /// The reason, for messages; it names the failing server.
        reason: String,
        /// Its generation cost, as far as known.
        spent: Spent,
    },
    /// The sample was aborted, by [`Generator::abort`] or a publication that does not wait.
    Aborted {
        /// Id of the sample.
        id: SampleId,
        /// Its generation cost, as far as known.
        spent: Spent,
    },
    /// Answer to [`Generator::publish`]: whatever is submitted from now on is sampled by this version.
    Published {
        /// The version that is sampled from.
        version: PolicyVersion,
    },
}

impl GeneratorEvent {
    pub(crate) fn id(&self) -> Option<SampleId> {
        match self {
            Self::Sampled { id, .. } | Self::Failed { id, .. } | Self::Aborted { id, .. } => Some(*id),
            Self::Published { .. } => None,
        }
    }
}

/// The samples to abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortScope {
    /// One sample.
    Sample(SampleId),
    /// All samples in flight of a group, whatever member, turn and attempt.
    Group {
        /// Their purpose.
        purpose: SamplePurpose,
        /// The group.
        group: u64,
    },
    /// All samples in flight of a purpose.
    Purpose(SamplePurpose),
}

impl AbortScope {
    /// Whether a sample is meant.
    pub fn holds(&self, id: &SampleId) -> bool {
        match self {
            Self::Sample(sample) => sample == id,
            Self::Group { purpose, group } => id.purpose == *purpose && id.group == *group,
            Self::Purpose(purpose) => id.purpose == *purpose,
        }
    }
}

/// Weights to sample from, and their location for the generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Their version, above any published before.
    pub version: PolicyVersion,
    /// Location of the weights.
    pub weights: Weights,
}

/// Location of published weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weights {
    /// In this process, in what learner and generator share.
    InProcess,
    /// A folder in Hugging Face layout, complete and not changed any more, that every server can read.
    Folder(PathBuf),
    /// A folder with an adapter (LoRA) as peft saves it, to go onto the model that every server was started
    /// with.
    Adapter(PathBuf),
    /// A folder with the file [`HANDLES`](crate::server::HANDLES): the locations of the weights in the
    /// memory of a GPU, for servers on the same GPU (CUDA IPC).
    Handles(PathBuf),
    /// A folder with the file [`TRANSFER`](crate::server::TRANSFER): what the learner holds to be sent to
    /// servers over communicators (NCCL).
    Transfer(PathBuf),
}

/// Longest wait of [`Generator::next`] for something to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait: only past events.
    No,
    /// Until then.
    Until(Instant),
    /// Until something happens; returns at once if nothing is in flight.
    Forever,
}

/// Load of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Requests that have not ended.
    pub in_flight: usize,
    /// Number of samples that could begin at once; `usize::MAX` without a bound.
    pub room: usize,
}

/// The generator as a whole cannot continue.
#[derive(Debug, Error)]
pub enum GeneratorError {
    /// The policy has no finite logits to draw from.
    #[error("{LOGITS_NOT_FINITE} ({id}, token {token})")]
    NotFinite {
        /// The first sample with this fault.
        id: SampleId,
        /// The token that could not be drawn, from 0.
        token: usize,
    },
    /// The learner that samples failed.
    #[error("the learner could not sample")]
    Learner(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The environment that is played in is lost.
    #[error("the environment is lost: {reason}")]
    Environment {
        /// How.
        reason: String,
    },
    /// Every program that plays episodes makes calls that are refused.
    #[error("the first calls of all programs were refused; the last one with: {last}")]
    Refused {
        /// The refusal, which names the field and what to set.
        last: String,
    },
    /// No server answers.
    #[error("no server answers: {}", tried.join("; "))]
    Unreachable {
        /// The servers tried, each with the result.
        tried: Vec<String>,
    },
    /// Any other fault.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl GeneratorError {
    /// The backend broke down.
    pub fn stopped(reason: impl std::fmt::Display) -> Self {
        fault!("the generator stopped: {reason}").into()
    }

    /// A sample cannot be journalled, so it may not be used.
    pub fn journal(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Fault::new("failed to journal what was sampled").with_source(error).into()
    }

    /// A request has the id of one that is in flight: a fault of the caller.
    pub fn id_in_use(id: SampleId) -> Self {
        fault!("{id} is in flight already").into()
    }
}

/// Samples completions of prompts, one request at a time.
///
/// Requests run side by side and end in any order. The result of a request does not depend on the other
/// requests, unless the generator documents otherwise. A driver must expect events of requests that it
/// does not know (duplicates, answers after an abort), count and ignore them.
pub trait Generator: Send {
    /// Takes a request in and returns at once.
    ///
    /// # Errors
    /// [`GeneratorError::id_in_use`] if a request in flight has the same id.
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError>;

    /// Aborts requests. Each that was in flight ends in [`GeneratorEvent::Aborted`], or in its own
    /// event if it ended before the abort reached it. A scope without requests is not an error.
    fn abort(&mut self, what: AbortScope);

    /// Samples from these weights from now on; answered by [`GeneratorEvent::Published`].
    /// [`InFlight::Keep`] acts like [`InFlight::Wait`] at a generator that cannot change weights in the
    /// middle of a sample, or cannot report the position of the change.
    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError>;

    /// Returns the events since the last call, in the order in which they happened; waits as long as
    /// `wait` allows for the first. Empty if nothing happened, and early if the run was interrupted.
    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError>;

    /// Samples in flight and room for more.
    fn load(&self) -> Load;
}

impl<G: Generator + ?Sized> Generator for Box<G> {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        (**self).submit(request)
    }

    fn abort(&mut self, what: AbortScope) {
        (**self).abort(what);
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        (**self).publish(weights, in_flight)
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        (**self).next(wait)
    }

    fn load(&self) -> Load {
        (**self).load()
    }
}
