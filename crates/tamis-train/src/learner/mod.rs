//! The learner contract: what any trainable backend must be able to do.
//!
//! A learner knows nothing of advantages or clipping. It runs forward, gets one derivative per token,
//! back-propagates and, on request, takes an optimizer step. [`update`], [`critic`] and [`sft`]
//! drive it, all three through `updates`.

pub mod critic;
pub mod generate;
pub mod gradient_analysis;
pub mod learning_rate;
pub mod left_out;
pub mod micro_batch;
mod not_finite;
pub mod old_logprobs;
pub(crate) mod optimizer_batch;
pub mod progress;
pub mod rank_balance;
pub(crate) mod sample_queue;
pub mod sft;
pub mod taught;
pub(crate) mod texts;
pub mod torch;
pub mod update;
pub(crate) mod updates;
pub mod wire;
pub mod work;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tamis_config::LearnerBackend;
use tamis_core::correction::CorrectionError;
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::group::{Part, PolicyVersion, Turn, parts};
use tamis_core::objective::ObjectiveError;
use tamis_model::{LOGITS_NOT_FINITE, SaveDtype};
use tamis_rollout::Generator;
use tamis_rollout::launch::LaunchError;

use rank_balance::RankBalance;
use thiserror::Error;
use work::{TrainingWork, WorkDone};

use crate::checkpoint::{SaveError, SavedFile};
use crate::interrupt::Halt;
use crate::own_function::FunctionError;
use generate::{Generate, GrownSamples};
pub(crate) use not_finite::logits_hint;
use progress::UpdateProgress;

/// One sequence to learn from or to score.
#[derive(Debug, Clone, Copy)]
pub struct LearnerSequence<'a> {
    /// Prompt tokens, at least one.
    pub prompt: &'a [u32],
    /// Paths of the images that go with the prompt, in the order of their places in it.
    pub images: &'a [String],
    /// Completion tokens \[T\], at least one; the values requested are those of these tokens.
    pub completion: &'a [u32],
    /// Turns of its episode, with the part of the text that the policy saw before each; empty: it saw
    /// everything before.
    pub turns: &'a [Turn],
    /// Other tokens than the completion's whose log-probabilities are requested at its places, k for each
    /// \[T k\]; empty: none. The sequences of a wave have the same k.
    pub candidates: &'a [u32],
}

impl<'a> LearnerSequence<'a> {
    /// A sequence of only text.
    pub fn of_text(prompt: &'a [u32], completion: &'a [u32]) -> Self {
        Self { prompt, images: &[], completion, turns: &[], candidates: &[] }
    }

    /// The texts among its tokens, if there are several; see
    /// [`Episode::parts`](tamis_core::group::Episode::parts).
    pub fn parts(&self) -> Vec<Part> {
        parts(self.turns, self.completion.len())
    }

    /// Whether another has the same prompt, which may then be computed once.
    pub fn shares_prompt(&self, other: &Self) -> bool {
        self.prompt == other.prompt && self.images == other.images
    }
}

/// The sequences that pass through a learner at once: one micro-batch for each of its data-parallel
/// ranks. N completion tokens in S sequences.
#[derive(Debug, Clone, Default)]
pub struct Wave<'a> {
    /// The sequences \[S\]; those of one prompt are neighbours.
    pub sequences: Vec<LearnerSequence<'a>>,
    /// Rank that computes each, from 0 \[S\]; it does not fall.
    pub ranks: Vec<u32>,
}

impl<'a> Wave<'a> {
    /// For the first rank.
    pub fn of(sequences: &[LearnerSequence<'a>]) -> Self {
        Self { ranks: vec![0; sequences.len()], sequences: sequences.to_vec() }
    }

    /// Number of completion tokens, N.
    pub fn num_tokens(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.completion.len()).sum()
    }

    /// Candidates of each completion token, k.
    pub fn num_candidates(&self) -> usize {
        let all: usize = self.sequences.iter().map(|sequence| sequence.candidates.len()).sum();
        all / self.num_tokens().max(1)
    }
}

/// A network of a learner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Network {
    /// The present policy.
    Policy,
    /// The policy as it was last [kept](RunLearner::keep); without that the present one.
    Before,
    /// The reference policy.
    Reference,
    /// The policy without its adapter.
    Base,
    /// The critic.
    Critic,
    /// A teacher, by its number from 0 among those that the learner has loaded.
    Teacher(usize),
}

/// The names on the wire: `policy`, and `teacher/0`.
impl From<Network> for String {
    fn from(network: Network) -> Self {
        match network {
            Network::Policy => "policy".to_owned(),
            Network::Before => "before".to_owned(),
            Network::Reference => "reference".to_owned(),
            Network::Base => "base".to_owned(),
            Network::Critic => "critic".to_owned(),
            Network::Teacher(number) => format!("teacher/{number}"),
        }
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let teacher = || name.strip_prefix("teacher/")?.parse().ok().map(Self::Teacher);
        Ok(match name.as_str() {
            "policy" => Self::Policy,
            "before" => Self::Before,
            "reference" => Self::Reference,
            "base" => Self::Base,
            "critic" => Self::Critic,
            _ => teacher().ok_or_else(|| format!("there is no network {name:?}"))?,
        })
    }
}

/// A network that learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trained {
    /// The policy.
    Policy,
    /// The critic.
    Critic,
}

impl From<Trained> for Network {
    fn from(trained: Trained) -> Self {
        match trained {
            Trained::Policy => Self::Policy,
            Trained::Critic => Self::Critic,
        }
    }
}

/// Numbers of a pass for each completion token, flat over a wave's sequences \[N\], or the loss's derivatives
/// by them. A column that does not belong to the network is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenColumns {
    /// Log-probabilities of a policy, in nats.
    pub logprobs: Vec<f32>,
    /// Entropies of a policy, in nats; empty among derivatives: all 0, and of a pass: the learner gives none.
    pub entropies: Vec<f32>,
    /// Values of a critic: of the state in which the token is chosen, which is the text before it,
    /// without the token itself.
    pub values: Vec<f32>,
    /// Log-probabilities of the sequences' candidates under a policy \[N k\], in nats; of a pass that is
    /// held.
    pub candidates: Vec<f32>,
}

/// A network's log-probabilities of the completion tokens \[N\], and its k likeliest tokens at their places
/// \[N k\], the likeliest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopColumns {
    /// Log-probabilities of the completion tokens, in nats.
    pub logprobs: Vec<f32>,
    /// The likeliest tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, in nats.
    pub top_logprobs: Vec<f32>,
}

/// Result of an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerReport {
    /// Norm of the whole gradient before clipping.
    pub grad_norm: f64,
    /// Whether the step was left out because the gradient was not finite.
    pub skipped: bool,
}

/// Sizes of a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSizes {
    /// Weights.
    pub num_parameters: usize,
    /// Number of those that learn.
    pub num_trained: usize,
    /// Size of the vocabulary, V.
    pub vocab_size: usize,
    /// Longest sequence; `None`: no limit.
    pub max_positions: Option<usize>,
}

/// Facts about a learner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LearnerInfo {
    /// The device that it computes on, for messages: `2 threads`.
    pub device: String,
    /// Number of data-parallel ranks: micro-batches of one wave.
    pub num_ranks: usize,
    /// Whether a prompt that neighbours of a wave share is computed once, by every network.
    pub shares_prompts: bool,
    /// Whether a micro-batch costs no backward pass if all its derivatives are 0.
    pub passes_over_zeros: bool,
    /// Its preferred number of tokens per micro-batch, used if the configuration sets none.
    pub micro_batch_tokens: Option<usize>,
    /// Number format that passes compute in: `f32`, `bf16`.
    pub dtype: String,
    /// The policy.
    pub policy: NetworkSizes,
    /// The critic; `None` without one.
    pub critic: Option<NetworkSizes>,
    /// Number of steps of the policy's optimizer.
    pub num_steps: u64,
    /// Whether its saved files hold the location of its weights instead of the weights.
    pub weights_elsewhere: bool,
}

impl LearnerInfo {
    /// Whether passes compute in 16 bits: log-probabilities are then rounded by some 0.01 nats.
    pub fn is_rounded(&self) -> bool {
        self.dtype != "f32"
    }

    /// Format of published weights: the one of the passes, so that servers hold the numbers that the
    /// learner computes with.
    pub fn published_dtype(&self) -> SaveDtype {
        if self.dtype == "bf16" { SaveDtype::Bf16 } else { SaveDtype::F32 }
    }
}

/// The learner cannot continue.
#[derive(Debug, Error)]
pub enum LearnerError {
    /// The objective or the correction refused its columns, or the user's loss failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The engine refused a sequence.
    #[error("the engine could not learn from the batch: {reason}")]
    Engine {
        /// The message.
        reason: String,
    },
    /// A critic is requested, and the learner has none.
    #[error("the learner has no critic")]
    NoCritic,
    /// The reference is requested, and there is none.
    #[error("the learner has no reference")]
    NoReference,
    /// A teacher is asked for that was not loaded.
    #[error("the learner has no teacher {number}")]
    NoTeacher {
        /// Its number, from 0.
        number: usize,
    },
    /// The request breaks the rules of the call.
    #[error("{reason}")]
    Misused {
        /// The message.
        reason: String,
    },
    /// The policy has no finite logits to draw from.
    #[error("{LOGITS_NOT_FINITE}")]
    LogitsNotFinite,
    /// Samples are requested from a learner that was not opened to generate.
    #[error("the learner was not opened to generate")]
    NoGeneration,
    /// The policy without its adapter is requested, and it has none.
    #[error("the policy has no adapter")]
    NoAdapter,
    /// Weights in the memory of a GPU are requested, and it computes on a CPU.
    #[error("the learner has no GPU")]
    NoGpu,
    /// A backward pass is requested, and no forward pass is held.
    #[error("there is no forward pass to run back")]
    NothingHeld,
    /// Files of weights or moments cannot be written or read.
    #[error(transparent)]
    Files(#[from] SaveError),
    /// A learner elsewhere refuses a call, or broke off.
    #[error("the learner at {url} {what}: {message}")]
    Remote {
        /// Its address.
        url: String,
        /// Whether it refused or failed, in words.
        what: &'static str,
        /// Its message.
        message: String,
        /// Its hint.
        hint: Option<String>,
    },
    /// The process of a learner cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A learner elsewhere stopped answering, or is not the one that was opened.
    #[error("the learner at {url} {reason}")]
    Lost {
        /// Its address.
        url: String,
        /// The reason.
        reason: String,
        /// Whether the run started it.
        is_own: bool,
        /// Whether it has ever answered.
        has_answered: bool,
        /// The kind of learner that the configuration names.
        backend: LearnerBackend,
    },
    /// A learner elsewhere was opened by another run, and no longer holds this one.
    #[error("the learner at {url} was taken by another run, and no longer holds this one")]
    Taken {
        /// Its address.
        url: String,
    },
}

/// The command that starts a learner of this kind.
pub(crate) fn command_of(backend: LearnerBackend) -> &'static str {
    match backend {
        LearnerBackend::Native => "tamis learner",
        LearnerBackend::Torch => "python -m tamis.learner",
    }
}

impl LearnerError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Remote { hint, .. } | Self::Launch(LaunchError::Refused { hint, .. }) => hint.clone(),
            Self::Lost { is_own: true, .. } => Some(
                "its output is in learner.log in the run folder; if the run had begun, continue it with --resume, which starts another"
                    .to_owned(),
            ),
            Self::Lost { backend, .. } => {
                let otherwise = match backend {
                    LearnerBackend::Native => "learn in this process",
                    LearnerBackend::Torch => "let the run start one itself",
                };
                Some(format!(
                    "start one (`{}`) and name its address in learner.url, or {otherwise} (`learner.url=null`); if the run had begun, \
                     continue it with --resume",
                    command_of(*backend)
                ))
            }
            Self::Taken { .. } => Some(
                "one learner serves one run: end the other run, or name another learner in learner.url; then continue this run with \
                --resume"
                    .to_owned(),
            ),
            Self::LogitsNotFinite => Some(logits_hint(None, None)),
            Self::Files(error) => error.hint(),
            Self::Launch(_) => Some(
                "learner.python names the interpreter: one that has PyTorch, transformers and safetensors, and Ray if that starts it"
                    .to_owned(),
            ),
            Self::Fault(fault) => fault.hint().map(str::to_owned),
            Self::Engine { .. }
            | Self::NoCritic
            | Self::NoReference
            | Self::NoTeacher { .. }
            | Self::Misused { .. }
            | Self::NoAdapter
            | Self::NoGpu
            | Self::NoGeneration
            | Self::NothingHeld => None,
        }
    }
}

impl From<ObjectiveError> for LearnerError {
    fn from(error: ObjectiveError) -> Self {
        fault!("the objective could not be evaluated: {error}").with_source(error).into()
    }
}

impl From<CorrectionError> for LearnerError {
    fn from(error: CorrectionError) -> Self {
        fault!("the correction could not be made: {error}").with_source(error).into()
    }
}

impl From<FunctionError> for LearnerError {
    fn from(error: FunctionError) -> Self {
        Fault::from(error).into()
    }
}

impl From<Halt<FunctionError>> for Halt<LearnerError> {
    fn from(halt: Halt<FunctionError>) -> Self {
        halt.map(LearnerError::from)
    }
}

impl<S> From<S> for Halt<LearnerError>
where
    LearnerError: From<S>,
{
    fn from(source: S) -> Self {
        Self::Failed(source.into())
    }
}

/// Result of a pass, which may fail or be interrupted.
pub type Pass<T> = Result<T, Halt<LearnerError>>;

/// A trainable policy, and a critic if it has one.
pub trait Learner {
    /// Facts about it.
    fn info(&self) -> &LearnerInfo;

    /// Columns of the completions under a network, its logits multiplied by `sharpness` (above 0); with 1 the
    /// same bits as of [`Self::forward_hold`].
    fn forward(&mut self, network: Network, wave: &Wave<'_>, sharpness: f64) -> Pass<TokenColumns>;

    /// Log-probabilities of the completions under a network that gives probabilities, and its `number`
    /// likeliest tokens at every place, at most as many as its vocabulary has.
    fn forward_top(&mut self, network: Network, wave: &Wave<'_>, number: usize) -> Pass<TopColumns> {
        let _ = (network, wave, number);
        let reason = "this learner does not give the likeliest tokens of a network".to_owned();
        Err(Halt::Failed(LearnerError::Misused { reason }))
    }

    /// Columns of the completions, and holds the pass for [`Self::backward`], in place of one that was held
    /// before.
    fn forward_hold(&mut self, network: Trained, wave: &Wave<'_>) -> Pass<TokenColumns>;

    /// Adds the gradient of `Σ_t column_t · derivative_t` over the held pass's tokens and columns to its
    /// network's gradient, and frees the pass.
    fn backward(&mut self, derivatives: TokenColumns) -> Pass<()>;

    /// Frees the held pass, if there is one.
    fn discard(&mut self) -> Result<(), LearnerError>;

    /// Takes a step with the gathered gradient and clears it. A gradient that is not finite changes nothing
    /// but is reported.
    fn optim_step(&mut self, network: Trained, learning_rate: f64) -> Result<OptimizerReport, LearnerError>;

    /// Norm of the gathered gradient, which is cleared; no weight changes. Infinite or NaN if the
    /// gradient is.
    fn grad_norm(&mut self, network: Trained) -> Result<f64, LearnerError>;
}

/// Numbers of a learner that its training changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Changing {
    /// The policy's weights.
    Policy,
    /// The moments of the policy's optimizer.
    PolicyMoments,
    /// The critic's weights.
    Critic,
    /// The moments of the critic's optimizer.
    CriticMoments,
}

/// A number that is not finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFinite {
    /// What the number belongs to.
    pub what: Changing,
    /// Name of the tensor.
    pub tensor: String,
}

/// The network that gets a copy of the policy's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyTo {
    /// The reference, from the present policy.
    Reference,
    /// The critic: the policy's layers, a value head of zeros and a new optimizer.
    Critic,
}

/// Content that a learner writes into a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveContent {
    /// The policy's weights with their configuration, as other programs load them; `untied`: an output head
    /// that is the embedding is written as a tensor of its own, which servers reload.
    Weights {
        /// Write a separate head.
        untied: bool,
        /// Their number format.
        dtype: SaveDtype,
    },
    /// Only the adapter (LoRA) in f32, as peft saves it, for servers that put it onto their own model.
    /// Refused if the whole policy learns.
    Adapter,
    /// The locations of the policy's weights in the memory of a GPU, for servers there that map it
    /// (CUDA IPC). The weights do not change until the next request of this kind. Refused without a
    /// GPU.
    Handles {
        /// Include a separate head.
        untied: bool,
    },
    /// The policy's weights that the learner holds for servers, to be sent over communicators (NCCL).
    /// They are held until the next request of this kind. Refused if it cannot send.
    Transfer {
        /// Include a separate head.
        untied: bool,
        /// Their number format.
        dtype: SaveDtype,
    },
    /// The full state of a learner: weights and moments of policy and critic.
    Checkpoint {
        /// Format of the policy's weights; if it is not f32, those in f32 are saved beside them.
        dtype: SaveDtype,
    },
}

/// Content that a learner reads from a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadContent {
    /// Everything that [`SaveContent::Checkpoint`] writes.
    Checkpoint,
    /// Weights of a reference policy.
    Reference,
}

/// A tensor with weights that a number format has no room for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overflow {
    /// Its name.
    pub tensor: String,
    /// Largest magnitude in it.
    pub largest: f32,
}

/// Result of a save.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// All that was written.
    pub files: Vec<SavedFile>,
    /// Weights that did not fit into the format that was requested: everything is in f32 then.
    pub overflow: Option<Overflow>,
}

/// A learner in another process, as others than its run ask it for something.
#[derive(Clone)]
pub struct LearnerEndpoint {
    /// Its address.
    pub url: String,
    /// The token that its callers must send.
    pub token: Option<String>,
    /// The state in its memory.
    pub incarnation: String,
}

/// A learner that a run drives: it also keeps, saves and publishes what it learned.
pub trait RunLearner: Learner {
    /// Time since the last call of this that a learner in another process took beyond its computation:
    /// writing, sending and reading messages. `None` for a learner in this process.
    fn take_wire_time(&mut self) -> Option<Duration> {
        None
    }

    /// The address at which servers' clients ask it to send weights; `None` for a learner in this
    /// process.
    fn endpoint(&self) -> Option<LearnerEndpoint> {
        None
    }

    /// How evenly its ranks were loaded since this was last asked; `None` of a learner with one.
    fn take_rank_balance(&mut self) -> Option<RankBalance> {
        None
    }

    /// The operations of the policy's updates since this was last asked, and the devices' peak; `None` if
    /// they are not known.
    fn take_work(&mut self) -> Option<WorkDone> {
        None
    }

    /// Operations of a pass and the peak of the device, for a controller in another process.
    fn training_work(&mut self) -> Option<TrainingWork> {
        None
    }

    /// How far the updates of the step are.
    fn progress(&mut self) -> &mut UpdateProgress;

    /// Keeps a copy of the present weights and moments, once, until the next publication: a step begins
    /// while the rest of it is still generated. Until then generators continue with these weights.
    fn keep(&mut self) -> Result<(), LearnerError>;

    /// Undoes all updates since [`Self::keep`], if it was called.
    fn restore(&mut self) -> Result<(), LearnerError>;

    /// Makes the reference or the critic from the present policy.
    fn copy_policy(&mut self, to: CopyTo) -> Result<(), LearnerError>;

    /// Resets a network's optimizer: moments zero, step count zero.
    fn reset_optimizer(&mut self, network: Trained) -> Result<(), LearnerError>;

    /// The first weights or moments that hold a number that is not finite.
    fn find_not_finite(&mut self) -> Result<Option<NotFinite>, LearnerError>;

    /// Makes the present weights this version. Generators in the same process sample with them from
    /// then on, and the kept copy is freed.
    fn publish(&mut self, version: PolicyVersion) -> Result<(), LearnerError>;

    /// Writes into a folder that is there, every file flushed.
    fn save(&mut self, folder: &Path, content: SaveContent) -> Result<Saved, LearnerError>;

    /// Reads from a folder.
    fn load(&mut self, folder: &Path, content: LoadContent) -> Result<(), LearnerError>;

    /// Begins samples, aborts some, and continues sampling until one ends, or for as long as the call
    /// allows. [`Network::Before`] is the policy that samples.
    fn generate(&mut self, asked: Generate) -> Pass<GrownSamples>;

    /// A generator of this version that samples with the learner's weights; `None` if it was made
    /// without one.
    fn generator(&self, version: PolicyVersion) -> Option<Box<dyn Generator>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_for_a_lost_learner_starts_one_of_its_kind() {
        let hint = |backend, is_own| {
            let (url, reason) = ("unix:/l".to_owned(), "is lost".to_owned());
            LearnerError::Lost { url, reason, is_own, has_answered: true, backend }.hint().unwrap_or_default()
        };
        let (native, torch) = (hint(LearnerBackend::Native, false), hint(LearnerBackend::Torch, false));
        assert!(native.starts_with("start one (`tamis learner`) and"), "{native}");
        assert!(native.contains("or learn in this process (`learner.url=null`)"), "{native}");
        assert!(torch.starts_with("start one (`python -m tamis.learner`) and"), "{torch}");
        assert!(torch.contains("or let the run start one itself (`learner.url=null`)"), "{torch}");
        assert!(hint(LearnerBackend::Torch, true).contains("learner.log"));
    }
}
