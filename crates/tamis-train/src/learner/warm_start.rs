//! Supervised warm start: cross-entropy on gold answers, for models that begin with random weights.

use tamis_config::LrScheduleKind;
use tamis_core::fault::Fault;
use tamis_core::printable::cut_middle;
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::Message;
use tamis_env::task::environment::{EnvironmentLevels, environment_of};
use tamis_rollout::{PreparedPrompt, Worlds as _, conversation_of};
use thiserror::Error;

use crate::interrupt::{Halt, Interrupt};
use crate::learner::learning_rate::LearningRate;
use crate::learner::updates::{UpdateTally, forward_backward};
use crate::learner::{LearnerError, LearnerSequence, RunLearner, TokenColumns, Trained, Wave};
use crate::prompts::codec::Codec;
use crate::prompts::worlds::RunWorlds;

/// Settings of the warm start.
#[derive(Debug, Clone, Copy)]
pub struct WarmStartSettings {
    /// Updates at most.
    pub steps: usize,
    /// Examples per update.
    pub batch_size: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Updates over which it rises.
    pub warmup_steps: usize,
    /// Accuracy at which it ends early.
    pub target_accuracy: Option<f64>,
    /// Updates between two measurements of the accuracy.
    pub test_freq: usize,
    /// Run seed.
    pub seed: u64,
}

/// The phase cannot run.
#[derive(Debug, Error)]
pub enum WarmStartError {
    /// A pair cannot be tokenized.
    #[error("the warm start's example `{prompt}` with the answer `{completion}` cannot be tokenized")]
    Example {
        /// The prompt.
        prompt: String,
        /// The target completion.
        completion: String,
        /// The underlying error.
        #[source]
        source: Box<Fault>,
    },
    /// There is nothing to imitate.
    #[error(
        "`warm_start.steps` is above 0 and there are no examples: none of the training prompts has a ground truth, or is a level of a game that a script can play"
    )]
    NoExamples,
    /// An environment's observation cannot be rendered for the model.
    #[error("the warm start's episodes cannot be rendered: {reason}")]
    Between {
        /// Why not.
        reason: String,
    },
    /// The learner broke down.
    #[error(transparent)]
    Learner(#[from] LearnerError),
}

impl WarmStartError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Example { .. } => Some(
                "name a tokenizer that has its characters (`model.init.tokenizer`), or leave the warm start out (`warm_start.steps: 0`)",
            ),
            Self::NoExamples => Some(
                "set `warm_start.steps: 0`, or name the columns of prompt and answer (`data.columns.prompt`, `data.columns.ground_truth`); an environment of your own gives each level a `ground_truth`",
            ),
            Self::Between { .. } | Self::Learner(_) => None,
        }
    }
}

/// A pair of prompt and answer in tokens, the end token with the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    prompt: Vec<u32>,
    images: Vec<String>,
    completion: Vec<u32>,
    /// Whether each token of the completion is imitated: what an environment wrote in it is not.
    mask: Vec<bool>,
}

impl Example {
    /// The examples to imitate, from at most `limit` prompts, in an order of their own: the gold
    /// answer, or for a level of a built-in game an episode that a script plays.
    ///
    /// # Errors
    /// [`WarmStartError::Example`] for the first that the tokenizer refuses,
    /// [`WarmStartError::NoExamples`] if there is none.
    pub fn all(
        codec: &Codec,
        games: Option<(&RunWorlds, &[EnvironmentLevels])>,
        prompts: &[PreparedPrompt],
        seed: u64,
        limit: Option<usize>,
    ) -> Result<Vec<Self>, WarmStartError> {
        let key = Key::new(seed, Purpose::WarmStart);
        let mut examples = Vec::new();
        let mut num_taken = 0;
        for prompt in key.permutation(prompts.len()).into_iter().map(|row| &prompts[row]) {
            if limit.is_some_and(|limit| num_taken >= limit) {
                break;
            }
            let before = examples.len();
            match games.filter(|(worlds, _)| worlds.is_game(&prompt.prompt)) {
                Some((worlds, levels)) => Self::play(codec, worlds, levels, prompt, key, &mut examples)?,
                None => examples.extend(Self::of_answer(codec, prompt)?),
            }
            num_taken += usize::from(examples.len() > before);
        }
        if examples.is_empty() { Err(WarmStartError::NoExamples) } else { Ok(examples) }
    }

    /// A prompt with its gold answer; `None` if it has none.
    fn of_answer(codec: &Codec, prompt: &PreparedPrompt) -> Result<Option<Self>, WarmStartError> {
        let Some(gold) = prompt.prompt.ground_truth.as_deref() else { return Ok(None) };
        let mut completion = encode(codec, prompt, gold)?;
        completion.extend(codec.end_token_ids().first());
        let mask = vec![true; completion.len()];
        let (token_ids, images) = (prompt.token_ids.to_vec(), prompt.images.to_vec());
        Ok(Some(Self { prompt: token_ids, images, completion, mask }))
    }

    /// The episode that a script plays from a prompt: sometimes it acts like a perfect player,
    /// otherwise at random. `None` if the game lists no actions, or no answer has room.
    fn play(
        codec: &Codec,
        worlds: &RunWorlds,
        levels: &[EnvironmentLevels],
        prompt: &PreparedPrompt,
        key: Key,
        examples: &mut Vec<Self>,
    ) -> Result<(), WarmStartError> {
        let key = key.with(2).with(prompt.prompt.id.0);
        let own = levels.get(environment_of(&prompt.prompt));
        let turns = own.map_or_else(Vec::new, |levels| levels.demonstrate(&prompt.prompt, key));
        let most_tokens = worlds.limits(&prompt.prompt).map_or(0, |limits| limits.whole);
        let end = codec.end_token_ids().first().copied();
        let mut example = Self {
            prompt: prompt.token_ids.to_vec(),
            images: Vec::new(),
            completion: Vec::new(),
            mask: Vec::new(),
        };
        let mut conversation = conversation_of(&prompt.prompt);
        for (answer, shown) in &turns {
            let mut sampled = encode(codec, prompt, answer)?;
            sampled.extend(end);
            if example.completion.len() + sampled.len() > most_tokens {
                break;
            }
            example.completion.extend(&sampled);
            example.mask.resize(example.completion.len(), true);
            conversation.push(Message::new("assistant", answer.clone()));
            let Some(shown) = shown else { break };
            let shown = Message::new("user", shown.clone());
            let failed = |reason| WarmStartError::Between { reason };
            let context = worlds.context();
            if context.is_growing() {
                let shown = std::slice::from_ref(&shown);
                let between =
                    worlds.between(&prompt.prompt, &conversation, &sampled, shown).map_err(failed)?;
                example.completion.extend(&between.token_ids);
                example.mask.resize(example.completion.len(), false);
                conversation.extend_from_slice(shown);
            } else {
                // Each answer is an example, with the conversation as seen before it.
                conversation.push(shown);
                let prompt =
                    worlds.render(&prompt.prompt, &context.view(&conversation)).map_err(failed)?.token_ids;
                let next = Self { prompt, images: Vec::new(), completion: Vec::new(), mask: Vec::new() };
                examples.push(std::mem::replace(&mut example, next));
            }
        }
        if !example.completion.is_empty() {
            examples.push(example);
        }
        Ok(())
    }
}

fn encode(codec: &Codec, prompt: &PreparedPrompt, answer: &str) -> Result<Vec<u32>, WarmStartError> {
    codec.tokenizer().encode(answer, false).map_err(|source| WarmStartError::Example {
        prompt: cut_middle(prompt.prompt.content.question(), 100),
        completion: cut_middle(answer, 100),
        source: Box::new(source),
    })
}

/// Results of the warm start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmStartReport {
    /// Updates made.
    pub num_updates: usize,
    /// Mean cross-entropy of the last update, in nats per token.
    pub loss: f64,
    /// Accuracy of the last measurement; `None` if none was made or nothing was scored.
    pub accuracy: Option<f64>,
}

/// Trains on the examples. `check` tests the weights, and its error ends the phase: it is called after
/// an update whose cross-entropy is not finite and before every measurement. `measure` returns the
/// accuracy, `None` if nothing was scored, and is called only if a target is set. `progress` is called
/// with every update.
pub fn warm_start<E: From<WarmStartError>>(
    learner: &mut dyn RunLearner,
    examples: &[Example],
    settings: &WarmStartSettings,
    interrupt: &Interrupt,
    check: impl Fn(&mut dyn RunLearner) -> Result<(), E>,
    mut measure: impl FnMut(&mut dyn RunLearner) -> Result<Option<f64>, Halt<E>>,
    mut progress: impl FnMut(usize, f64, Option<f64>),
) -> Result<WarmStartReport, Halt<E>> {
    if examples.is_empty() {
        return Err(Halt::Failed(WarmStartError::NoExamples.into()));
    }
    let failed = |error: LearnerError| E::from(WarmStartError::from(error));
    let schedule = LearningRate {
        peak: settings.learning_rate,
        warm_up: settings.warmup_steps as u64,
        decay: LrScheduleKind::Linear,
        min_ratio: 0.1,
    };
    let key = Key::new(settings.seed, Purpose::WarmStart).with(1);
    let mut report = WarmStartReport { num_updates: 0, loss: f64::NAN, accuracy: None };
    let mut order: Vec<usize> = Vec::new();
    let mut tally = UpdateTally::<String>::default();
    for update in 0..settings.steps {
        if interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        let batch: Vec<&Example> = (0..settings.batch_size)
            .map(|i| {
                let draw = update * settings.batch_size + i;
                let (epoch, place) = (draw / examples.len(), draw % examples.len());
                if place == 0 || order.is_empty() {
                    order = key.with(epoch as u64).permutation(examples.len());
                }
                &examples[order[place]]
            })
            .collect();
        let sequences: Vec<LearnerSequence<'_>> = batch
            .iter()
            .map(|example| LearnerSequence {
                images: &example.images,
                ..LearnerSequence::of_text(&example.prompt, &example.completion)
            })
            .collect();
        let mask: Vec<bool> = batch.iter().flat_map(|example| &example.mask).copied().collect();
        let num_tokens = mask.iter().filter(|&&is_imitated| is_imitated).count().max(1);
        let mut loss = 0.0;
        let wave = Wave::of(&sequences);
        let passed = forward_backward(learner, Trained::Policy, &wave, |columns| {
            let logprobs = &columns.logprobs;
            let imitated = logprobs.iter().zip(&mask).filter(|(_, is_imitated)| **is_imitated);
            loss = -imitated.map(|(&logprob, _)| f64::from(logprob)).sum::<f64>() / num_tokens as f64;
            let each = -1.0 / num_tokens as f32;
            let logprobs = mask.iter().map(|&is_imitated| if is_imitated { each } else { 0.0 }).collect();
            Ok(TokenColumns { logprobs, ..TokenColumns::default() })
        });
        passed.map_err(|halt| halt.map(failed))?;
        let rate = schedule.rate(update as u64 + 1, settings.steps as u64 + 1);
        tally.step(learner, Trained::Policy, rate).map_err(|error| Halt::Failed(failed(error)))?;
        report.num_updates = update + 1;
        report.loss = loss;
        let target = settings.target_accuracy.filter(|_| (update + 1) % settings.test_freq.max(1) == 0);
        if target.is_some() || !loss.is_finite() {
            check(learner).map_err(Halt::Failed)?;
        }
        if let Some(target) = target {
            report.accuracy = measure(learner)?;
            progress(update + 1, loss, report.accuracy);
            if report.accuracy.is_some_and(|accuracy| accuracy >= target) {
                break;
            }
        } else {
            progress(update + 1, loss, None);
        }
    }
    Ok(report)
}
