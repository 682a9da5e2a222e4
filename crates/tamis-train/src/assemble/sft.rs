//! Supervised fine-tuning from its section: rows of files become examples, keys become settings.

use std::collections::BTreeSet;

use tamis_config::{Config, ModelSource, TokenizerSource};
use tamis_core::figure::{agreed, counted, percent};
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::{Message, PromptContent};
use tamis_data::prompt_format::Formatter;
use tamis_data::sft_rows::{SftColumns, SftRow, SftRows, SftTarget};

use super::hold_out::choose_held_out;
use super::policy::Limits;
use super::{data, settings};
use crate::error::{AssembleError, RunError};
use crate::learner::LearnerInfo;
use crate::learner::learning_rate::LearningRate;
use crate::learner::micro_batch::MicroBatch;
use crate::learner::sft::rows::{RowSettings, Tokenized, tokenize};
use crate::learner::sft::{Example, SftError, SftExamples, SftSettings};
use crate::prompts::codec::Codec;

/// Rows before they are tokenized.
#[derive(Debug, Default)]
pub(crate) struct OwnRows {
    pub(crate) train: Vec<SftRow>,
    pub(crate) validation: Vec<SftRow>,
    /// Lines for the log: what was read and skipped.
    pub(crate) notes: Vec<String>,
}

/// Examples made of rows, with lines for the log.
#[derive(Debug, Default)]
pub(crate) struct OwnExamples {
    pub(crate) examples: SftExamples,
    pub(crate) notes: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// Whether the tokenizer is made of the characters of the data, and there are rows among it.
pub(crate) fn needs_alphabet(config: &Config) -> bool {
    let init = config.model.init.as_ref().filter(|_| config.model.path.is_none());
    let is_made = init.is_some_and(|init| matches!(init.tokenizer, TokenizerSource::Character));
    is_made && config.sft.is_on() && !config.sft.data.is_empty()
}

/// Reads the rows of `sft.data` and `sft.val`.
pub(crate) fn read(config: &Config) -> Result<OwnRows, AssembleError> {
    let sft = &config.sft;
    let columns = SftColumns {
        prompt: sft.columns.prompt.clone(),
        completion: sft.columns.completion.clone(),
        messages: sft.columns.messages.clone(),
    };
    let mut notes = Vec::new();
    let mut of = |key: &str, files: &[std::path::PathBuf]| -> Result<Vec<SftRow>, AssembleError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let SftRows { mut rows, skipped } = SftRows::read(files, &columns, config.data.bad_rows)?;
        notes.push(format!("{key}: {} from {}", counted(rows.len(), "row"), counted(files.len(), "file")));
        if let Some(first) = skipped.first() {
            notes.push(format!(
                "{key}: skipped {} that could not be parsed; the first: {first}",
                counted(skipped.len(), "row")
            ));
        }
        data::fill_pairs(&mut rows, &config.data)?;
        Ok(rows)
    };
    let (train, validation) = (of("sft.data", &sft.data.files())?, of("sft.val", &sft.val.files())?);
    Ok(OwnRows { train, validation, notes })
}

impl OwnRows {
    /// Characters of all rows, for the character tokenizer.
    pub(crate) fn alphabet(&self) -> String {
        let mut letters = BTreeSet::new();
        let mut add = |content: &PromptContent| match content {
            PromptContent::Text(text) => letters.extend(text.chars()),
            PromptContent::Messages(messages) => {
                letters.extend(messages.iter().flat_map(|message: &Message| message.content.chars()));
            }
        };
        for row in self.train.iter().chain(&self.validation) {
            add(&row.prompt.content);
            if let SftTarget::Completion(completion) = &row.target {
                add(completion);
            }
        }
        letters.into_iter().collect()
    }
}

/// Longest sequence that the model reads.
fn max_positions(config: &Config) -> Result<Option<usize>, AssembleError> {
    match (config.model.path.as_ref().map(ModelSource::folder), &config.model.init) {
        (Some(folder), _) => Ok(Limits::read(&folder)?.max_positions),
        (None, init) => Ok(init.as_ref().map(|init| init.max_position_embeddings)),
    }
}

/// Makes examples of rows. The order is that of their draws.
///
/// # Errors
/// A row that the template or the tokenizer refuses, or no token with a loss at all.
pub(crate) fn examples(config: &Config, codec: &Codec, rows: OwnRows) -> Result<OwnExamples, RunError> {
    let sft = &config.sft;
    let OwnRows { train, validation, mut notes } = rows;
    let reads = max_positions(config)?;
    let max_length = sft.max_length.or(reads).unwrap_or(usize::MAX);
    if let (Some(wanted), Some(reads)) = (sft.max_length, reads)
        && wanted > reads
    {
        let message = format!("sft.max_length is {wanted}, and the model reads {reads} tokens");
        return Err(AssembleError::setting(message, format!("set sft.max_length: {reads}, or null")).into());
    }
    let settings = RowSettings {
        loss_on: sft.loss_on,
        max_length,
        formatter: Formatter {
            format: config.data.prompt_format,
            system: config.data.system_prompt.clone(),
            has_template: codec.has_template(),
        },
    };
    let mut warnings = Vec::new();
    let mut make = |key: &'static str, rows: &[SftRow]| -> Result<Vec<Example>, SftError> {
        let Tokenized { examples, num_cut, num_without_loss } = tokenize(codec, rows, &settings)?;
        if num_cut > 0 {
            warnings.push(format!(
                "{key}: the end of {} of {} is cut off after {max_length} tokens (sft.max_length)",
                num_cut,
                counted(rows.len(), "row")
            ));
        }
        if num_without_loss > 0 {
            warnings.push(format!(
                "{key}: {} of {} left out, because no token of them has a loss",
                num_without_loss,
                counted(rows.len(), "row")
            ));
        }
        if examples.is_empty() && !rows.is_empty() {
            return Err(SftError::NothingLearned { key, max_length });
        }
        Ok(examples)
    };
    let key = Key::new(config.run.seed, Purpose::Sft);
    let ends = codec.end_token_ids();
    let (mut train, mut validation) = (make("sft.data", &train)?, make("sft.val", &validation)?);
    if !train.iter().any(|example| example.learns_any_of(ends)) {
        warnings.push(
            "sft.data: no row has a loss on an end token, so the policy does not learn to stop: the chat template \
             writes none after an answer, or sft.max_length cuts all off"
                .to_owned(),
        );
    }
    if let Some(fraction) = sft.val_fraction {
        let held_out = choose_held_out(train.iter().map(Example::bytes), fraction);
        let mut held_out = held_out.iter().copied();
        (validation, train) = train.into_iter().partition(|_| held_out.next().unwrap_or(false));
        if train.is_empty() || validation.is_empty() {
            let message = format!(
                "sft.val_fraction: {} cannot be shared out",
                counted(train.len() + validation.len(), "row")
            );
            let hint = "give at least two different rows, or set sft.val_fraction=null";
            return Err(AssembleError::setting(message, hint).into());
        }
    }
    let mut order = key.permutation(train.len());
    order.truncate(sft.examples.unwrap_or(usize::MAX));
    let train: Vec<Example> = order.into_iter().map(|place| train[place].clone()).collect();
    warnings.extend(length_warnings(config, train.len()));
    let of = |examples: &[Example]| {
        let (all, learned) = (
            examples.iter().map(Example::num_tokens).sum::<usize>(),
            examples.iter().map(Example::num_learned).sum::<usize>(),
        );
        format!("{} of {}, {learned} with a loss", counted(examples.len(), "row"), counted(all, "token"))
    };
    let held_out =
        if validation.is_empty() { String::new() } else { format!("; validation: {}", of(&validation)) };
    notes.push(format!("sft: {}{held_out}", of(&train)));
    Ok(OwnExamples { examples: SftExamples { train, validation }, notes, warnings })
}

/// Warnings of a batch or a warm-up that so few rows never fill.
fn length_warnings(config: &Config, num_examples: usize) -> Vec<String> {
    let sft = &config.sft;
    let num_updates = sft.num_updates(num_examples);
    let mut warnings = Vec::new();
    if sft.batch_size > num_examples {
        warnings.push(format!(
            "sft.batch_size is {}, and there {} {}: every update has all of them",
            sft.batch_size,
            agreed(num_examples, "is", "are"),
            counted(num_examples, "row"),
        ));
    }
    if sft.warmup_steps > 0 && sft.warmup_steps >= num_updates {
        let reached = percent(num_updates as f64 / sft.warmup_steps as f64);
        warnings.push(format!(
            "sft.warmup_steps is {}, and there {} only {}: the learning rate rises to the end, and reaches {reached} of \
             {}; set sft.warmup_steps to less",
            sft.warmup_steps,
            agreed(num_updates, "is", "are"),
            counted(num_updates, "update"),
            config.sft_learning_rate(),
        ));
    }
    warnings
}

/// Settings of the updates on so many examples.
pub(crate) fn sft_settings(
    config: &Config,
    learner: &LearnerInfo,
    num_examples: usize,
) -> Result<SftSettings, AssembleError> {
    let sft = &config.sft;
    let update = settings::update_settings(config, learner)?;
    // A number of trajectories says nothing of rows.
    let tokens = config.micro_batch_tokens(learner.micro_batch_tokens);
    let micro_batch = match update.micro_batch {
        MicroBatch::Sequences(_) => MicroBatch::ByRanks(tokens),
        by_tokens => by_tokens,
    };
    Ok(SftSettings {
        num_updates: sft.num_updates(num_examples),
        num_done: 0,
        unmeasured: None,
        batch_size: if config.imitates() { sft.batch_size } else { sft.batch_size.min(num_examples) },
        fills_batches: config.imitates(),
        learning_rate: LearningRate {
            peak: config.sft_learning_rate(),
            warm_up: sft.warmup_steps as u64,
            decay: sft.lr_schedule,
            min_ratio: sft.min_lr_ratio,
        },
        micro_batch: (!sft.data.is_empty()).then_some(micro_batch),
        target_accuracy: sft.target_accuracy,
        test_freq: sft.test_freq,
        seed: config.run.seed,
    })
}
