//! Supervised fine-tuning: cross-entropy on examples.
//!
//! The loss of an update is the mean over the tokens with a loss of all its rows, as that of TRL's
//! `SFTTrainer` with `num_items_in_batch`:
//!
//! ```text
//! L = -1/M · Σ_rows Σ_t m_t · log p(x_t | x_<t),   M = Σ_rows Σ_t m_t
//! ```
//!
//! with mask `m_t` in {0, 1}. Its derivative by a token's log-probability is `-m_t / M`, so that it does not
//! depend on how the rows are cut into micro-batches. Rows are ragged sequences of their own: none sees
//! another, and there is no padding. [`example`] makes examples of gold answers and of scripts, [`rows`] of
//! rows.
//!
//! For example, two rows with token log-probabilities (-1, -2 | masked -5) and (-3) have M = 3 and L = 2. An
//! update without any token with a loss has L = 0 and changes nothing but AdamW's step count.

pub mod example;
pub mod rows;

use serde::{Deserialize, Deserializer, Serialize};
use tamis_core::fault::Fault;
use tamis_core::random::{Key, Purpose};
use tamis_data::records::RowPlace;
use thiserror::Error;

use crate::interrupt::{Halt, Interrupt};
use crate::learner::learning_rate::LearningRate;
use crate::learner::micro_batch::{Cut, MicroBatch, forward_all, waves};
use crate::learner::updates::forward_backward;
use crate::learner::{
    Learner, LearnerError, LearnerSequence, Network, Pass, RunLearner, TokenColumns, Trained, Wave,
};
use crate::prompts::codec::CodecError;

pub use example::Example;

/// Settings of supervised fine-tuning.
#[derive(Debug, Clone, Copy)]
pub struct SftSettings {
    /// Updates.
    pub num_updates: usize,
    /// Updates that are made already.
    pub num_done: usize,
    /// The last of them, if an interruption came before it was measured and passed to [`SftHooks::after`].
    pub unmeasured: Option<SftUpdate>,
    /// Examples of an update.
    pub batch_size: usize,
    /// Fill the last update of an epoch with the first examples of the next. Otherwise it has those that are
    /// left, as in TRL.
    pub fills_batches: bool,
    /// Learning rate over the updates.
    pub learning_rate: LearningRate,
    /// How an update is cut into micro-batches; `None`: it passes through the learner whole, on one rank.
    pub micro_batch: Option<MicroBatch>,
    /// Accuracy at which it ends early.
    pub target_accuracy: Option<f64>,
    /// Updates between two measurements.
    pub test_freq: usize,
    /// Run seed.
    pub seed: u64,
}

impl SftSettings {
    /// Whether an accuracy ends it early.
    pub(crate) fn reaches_target(&self, accuracy: Option<f64>) -> bool {
        self.target_accuracy.zip(accuracy).is_some_and(|(target, accuracy)| accuracy >= target)
    }
}

/// Supervised fine-tuning cannot be done.
#[derive(Debug, Error)]
pub enum SftError {
    /// A pair of prompt and gold answer cannot be tokenized.
    #[error("{name}: `{prompt}` with the answer `{completion}` cannot be tokenized")]
    Example {
        /// The name of the prompt in messages.
        name: String,
        /// Its text.
        prompt: String,
        /// The target completion.
        completion: String,
        /// The underlying error.
        #[source]
        source: Box<Fault>,
    },
    /// A row cannot become an example.
    #[error("sft: {place} cannot be prepared")]
    Row {
        /// Location of the row.
        place: RowPlace,
        /// The underlying error.
        #[source]
        source: Box<CodecError>,
    },
    /// There are no gold answers.
    #[error(
        "`sft.steps` is above 0 and there are no examples: none of the training prompts has a ground truth, or is a level of a game that a script can play"
    )]
    NoExamples,
    /// The rows have nothing to learn.
    #[error("{key}: no row has a token with a loss within its first {max_length} tokens")]
    NothingLearned {
        /// The key of the rows.
        key: &'static str,
        /// Longest row.
        max_length: usize,
    },
    /// An environment's observation cannot be rendered for the model.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The learner broke down.
    #[error(transparent)]
    Learner(#[from] LearnerError),
}

impl SftError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Example { .. } => Some(
                "name a tokenizer that has its characters (`model.init.tokenizer`), or leave SFT out (`sft.steps: 0`)",
            ),
            Self::Row { source, .. } => source.is_answers_lost().then_some(
                "give the model's template `{% generation %}` blocks (`model.chat_template`), write each turn as a row of its own \
                 (`prompt`, `completion`), or learn every token (`sft.loss_on: all`)",
            ),
            Self::NoExamples => Some(
                "set `sft.steps: 0`, name rows in `sft.data`, or name the columns of prompt and answer (`data.columns.prompt`, `data.columns.ground_truth`); an environment of your own gives each level a `ground_truth`",
            ),
            Self::NothingLearned { .. } => Some("raise `sft.max_length`, or shorten the prompts"),
            Self::Fault(_) | Self::Learner(_) => None,
        }
    }
}

/// The examples of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SftExamples {
    /// Those that it learns from.
    pub train: Vec<Example>,
    /// Those that the validation loss is computed on.
    pub validation: Vec<Example>,
}

/// One update.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SftUpdate {
    /// Its number, from 1.
    pub number: usize,
    /// Mean cross-entropy, in nats per token. JSON has null for a NaN.
    #[serde(deserialize_with = "or_nan")]
    pub loss: f64,
    /// Tokens with a loss.
    pub num_tokens: usize,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Norm of the gradient before clipping; `None` if the update was left out because it was not finite.
    pub grad_norm: Option<f64>,
    /// Accuracy, if it was measured after this update and something was scored.
    pub accuracy: Option<f64>,
    /// Loss on the validation examples, if it was computed after this update.
    pub validation_loss: Option<f64>,
}

fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Results of supervised fine-tuning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SftReport {
    /// Updates made, earlier ones included.
    pub num_updates: usize,
    /// Loss of the last update, in nats per token.
    pub loss: f64,
    /// Accuracy of the last measurement; `None` if none was made or nothing was scored.
    pub accuracy: Option<f64>,
    /// Validation loss before the first update.
    pub first_validation_loss: Option<f64>,
    /// The last validation loss.
    pub validation_loss: Option<f64>,
}

/// Measures the accuracy of a learner's weights.
type Measure<'h, E> = dyn FnMut(&mut dyn RunLearner) -> Result<Option<f64>, Halt<E>> + 'h;

/// Receives a learner after an update.
type After<'h, E> = dyn FnMut(&mut dyn RunLearner, &SftUpdate) -> Result<(), Halt<E>> + 'h;

/// What happens around the updates.
pub struct SftHooks<'h, E> {
    /// Tests the weights; its error ends the phase. It is called after an update whose loss is not finite,
    /// and before every measurement of the accuracy.
    pub check: &'h dyn Fn(&mut dyn RunLearner) -> Result<(), E>,
    /// Called before the first update, unless updates are made already, with the validation loss.
    pub begun: &'h mut dyn FnMut(Option<f64>),
    /// Called when an update has been made, before what is measured after it.
    pub made: &'h mut dyn FnMut(&SftUpdate),
    /// Returns the accuracy, `None` if nothing was scored. It is called only if a target is set.
    pub measure: &'h mut Measure<'h, E>,
    /// Called after every update, when it has been measured.
    pub after: &'h mut After<'h, E>,
}

/// Mean cross-entropy of the tokens with a loss, in nats per token, without training; NaN if there are none.
pub fn loss_of(learner: &mut dyn Learner, examples: &[Example], micro_batch: MicroBatch) -> Pass<f64> {
    let sequences: Vec<LearnerSequence<'_>> = examples.iter().map(Example::sequence).collect();
    let columns = forward_all(learner, Network::Policy, &sequences, micro_batch, 1.0)?;
    let mask = examples.iter().flat_map(|example| &example.mask);
    let (mut sum, mut num_tokens) = (0.0, 0_usize);
    for (&logprob, _) in columns.logprobs.iter().zip(mask).filter(|(_, is_learned)| **is_learned) {
        sum -= f64::from(logprob);
        num_tokens += 1;
    }
    Ok(sum / num_tokens as f64)
}

/// Gathers the gradient of the loss of a batch; returns the loss and the number of tokens that have one.
pub fn gather_gradient(
    learner: &mut dyn Learner,
    batch: &[&Example],
    micro_batch: Option<MicroBatch>,
) -> Pass<(f64, usize)> {
    let sequences: Vec<LearnerSequence<'_>> = batch.iter().map(|example| example.sequence()).collect();
    let num_learned: usize = batch.iter().map(|example| example.num_learned()).sum();
    let num_tokens = num_learned.max(1);
    let all: Vec<(Vec<usize>, Wave<'_>)> = match micro_batch {
        None => vec![((0..batch.len()).collect(), Wave::of(&sequences))],
        Some(micro_batch) => waves(&sequences, Cut::of(learner.info(), micro_batch)),
    };
    let mut sum = 0.0;
    for (places, wave) in all {
        let mask: Vec<bool> = places.iter().flat_map(|&place| &batch[place].mask).copied().collect();
        forward_backward(learner, Trained::Policy, &wave, |columns| {
            let imitated = columns.logprobs.iter().zip(&mask).filter(|(_, is_imitated)| **is_imitated);
            sum += imitated.map(|(&logprob, _)| f64::from(logprob)).sum::<f64>();
            let each = -1.0 / num_tokens as f32;
            let logprobs = mask.iter().map(|&is_imitated| if is_imitated { each } else { 0.0 }).collect();
            Ok(TokenColumns { logprobs, ..TokenColumns::default() })
        })?;
    }
    Ok((-sum / num_tokens as f64, num_learned))
}

/// Trains on the examples.
///
/// # Errors
/// Those of the hooks, and of a learner that cannot continue; [`Halt::Interrupted`] between two updates,
/// within one, which is then not made, or before an update that was made is measured.
pub fn sft<E: From<SftError>>(
    learner: &mut dyn RunLearner,
    examples: &SftExamples,
    settings: &SftSettings,
    interrupt: &Interrupt,
    hooks: SftHooks<'_, E>,
) -> Result<SftReport, Halt<E>> {
    let SftExamples { train, validation } = examples;
    if train.is_empty() {
        return Err(Halt::Failed(SftError::NoExamples.into()));
    }
    let failed = |error: LearnerError| E::from(SftError::from(error));
    let measured = settings.micro_batch.unwrap_or(MicroBatch::Tokens(8192));
    let validate = |learner: &mut dyn RunLearner| {
        let loss = (!validation.is_empty()).then(|| loss_of(learner, validation, measured)).transpose();
        loss.map_err(|halt| halt.map(failed))
    };
    let SftHooks { check, begun, made, measure, after } = hooks;
    let key = Key::new(settings.seed, Purpose::Sft).with(1);
    let is_new = settings.num_done == 0;
    let first_validation_loss = if is_new { validate(learner)? } else { None };
    if is_new {
        begun(first_validation_loss);
    }
    let mut report = SftReport {
        num_updates: settings.num_done,
        loss: f64::NAN,
        accuracy: None,
        first_validation_loss,
        validation_loss: first_validation_loss,
    };
    // Measures an update that was made. Returns whether the target is reached.
    let mut finish = |learner: &mut dyn RunLearner, mut update: SftUpdate, report: &mut SftReport| {
        (report.num_updates, report.loss) = (update.number, update.loss);
        let is_due = update.number.is_multiple_of(settings.test_freq.max(1));
        let target = settings.target_accuracy.filter(|_| is_due);
        if target.is_some() || !update.loss.is_finite() {
            check(learner).map_err(Halt::Failed)?;
        }
        if is_due || update.number == settings.num_updates {
            update.validation_loss = validate(learner)?;
            report.validation_loss = update.validation_loss.or(report.validation_loss);
        }
        if target.is_some() {
            report.accuracy = measure(learner)?;
            update.accuracy = report.accuracy;
        }
        after(learner, &update)?;
        Ok::<bool, Halt<E>>(settings.reaches_target(update.accuracy))
    };
    if let Some(update) = settings.unmeasured
        && finish(learner, update, &mut report)?
    {
        return Ok(report);
    }
    let mut order: Vec<usize> = Vec::new();
    let batch_size = settings.batch_size.max(1);
    let per_epoch = train.len().div_ceil(batch_size);
    for update in settings.num_done..settings.num_updates {
        if interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        let first = if settings.fills_batches {
            update * batch_size
        } else {
            update / per_epoch * train.len() + update % per_epoch * batch_size
        };
        let left = if settings.fills_batches { batch_size } else { train.len() - first % train.len() };
        let batch: Vec<&Example> = (first..first + batch_size.min(left))
            .map(|draw| {
                let (epoch, place) = (draw / train.len(), draw % train.len());
                if place == 0 || order.is_empty() {
                    order = key.with(epoch as u64).permutation(train.len());
                }
                &train[order[place]]
            })
            .collect();
        let passed = gather_gradient(learner, &batch, settings.micro_batch);
        let (loss, num_tokens) = passed.map_err(|halt| halt.map(failed))?;
        let learning_rate = settings.learning_rate.rate(update as u64 + 1, settings.num_updates as u64 + 1);
        let step = learner
            .optim_step(Trained::Policy, learning_rate)
            .map_err(|error| Halt::Failed(failed(error)))?;
        let update = SftUpdate {
            number: update + 1,
            loss,
            num_tokens,
            learning_rate,
            grad_norm: (!step.skipped).then_some(step.grad_norm),
            accuracy: None,
            validation_loss: None,
        };
        made(&update);
        if finish(learner, update, &mut report)? {
            break;
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
