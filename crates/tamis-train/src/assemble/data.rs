//! Prompts of both splits, and the pairs that a warm start imitates.

use std::collections::BTreeSet;

use tamis_config::{
    ArithmeticConfig, BadRows, Config, Operator, OverlongPrompts as ConfigOverlong, TaskKind,
};
use tamis_core::random::{Key, Purpose};
use tamis_data::dataset::{self, Columns, Dataset, ReadOptions};
use tamis_data::overlong::OverlongPrompts;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::task::arithmetic::{Arithmetic, Level, Operator as TaskOperator};
use tamis_env::task::gsm8k_calculator::CalculatorTask;
use tamis_env::task::{Split, Supervised};

use super::AssembleError;

/// The prompts of a run before they are tokenized.
#[derive(Debug, Clone, Default)]
pub struct Prompts {
    /// Training prompts, ids from 0.
    pub train: Vec<Prompt>,
    /// Validation prompts, ids from 0.
    pub validation: Vec<Prompt>,
    /// Lines for the log: what was read, skipped and left out.
    pub notes: Vec<String>,
    task: Option<TaskKind>,
}

/// Reads or makes the prompts that the configuration names.
pub fn prompts(config: &Config) -> Result<Prompts, AssembleError> {
    let data = &config.data;
    let mut prompts = match data.task {
        Some(TaskKind::Arithmetic) => arithmetic(&data.arithmetic, config.run.seed)?,
        Some(TaskKind::Gsm8kCalculator) => {
            let task = CalculatorTask::load(&data.train.0, &data.val.0)?;
            let mut notes = Vec::new();
            for (split, counts) in [("training", task.train_counts), ("held-out", task.held_out_counts)] {
                notes.push(format!(
                    "gsm8k_calculator, {split}: {} annotations in {} rows, {} unparsable, {} repeated, {} also in train, {} prompts",
                    counts.annotations,
                    counts.rows,
                    counts.unparsable,
                    counts.duplicates,
                    counts.occurs_in_train,
                    counts.kept
                ));
            }
            Prompts { train: task.train, validation: task.held_out, notes, task: data.task }
        }
        None => files(config)?,
    };
    if prompts.train.is_empty() {
        return Err(AssembleError::setting(
            "there are no training prompts",
            "set data.train to one or more JSONL or Parquet files, or data.task to a built-in task",
        ));
    }
    if let Some(limit) = config.validate.max_prompts {
        prompts.validation.truncate(limit);
    }
    Ok(prompts)
}

/// What becomes of overlong prompts, in the data crate's terms.
pub fn overlong(choice: ConfigOverlong) -> OverlongPrompts {
    match choice {
        ConfigOverlong::Error => OverlongPrompts::Error,
        ConfigOverlong::Drop => OverlongPrompts::Drop,
        ConfigOverlong::Left => OverlongPrompts::Left,
        ConfigOverlong::Right => OverlongPrompts::Right,
        ConfigOverlong::Middle => OverlongPrompts::Middle,
    }
}

fn arithmetic(config: &ArithmeticConfig, seed: u64) -> Result<Prompts, AssembleError> {
    let levels = config
        .levels
        .iter()
        .map(|level| Level {
            digits: level.digits as u32,
            operators: level
                .operators
                .iter()
                .map(|operator| match operator {
                    Operator::Add => TaskOperator::Add,
                    Operator::Subtract => TaskOperator::Subtract,
                    Operator::Multiply => TaskOperator::Multiply,
                })
                .collect(),
            operations: level.terms.saturating_sub(1) as u32,
        })
        .collect();
    let weights = config.levels.iter().map(|level| level.weight).collect();
    let task = Arithmetic::weighted(seed, levels, weights)?;
    let train = task.prompts(Split::Train, config.train_size)?;
    let validation = task.prompts(Split::HeldOut, config.val_size)?;
    let notes =
        vec![format!("arithmetic: {} training and {} held-out prompts", train.len(), validation.len())];
    Ok(Prompts { train, validation, notes, task: Some(TaskKind::Arithmetic) })
}

fn files(config: &Config) -> Result<Prompts, AssembleError> {
    let data = &config.data;
    let columns = Columns {
        prompt: data.columns.prompt.clone(),
        ground_truth: data.columns.ground_truth.clone(),
        data_source: data.columns.data_source.clone(),
    };
    let bad_rows = match data.bad_rows {
        BadRows::Error => dataset::BadRows::Error,
        BadRows::Skip => dataset::BadRows::Skip,
    };
    let options = ReadOptions { columns, bad_rows, ..ReadOptions::default() };
    let mut notes = Vec::new();
    let mut read = |split: &str, paths: &[std::path::PathBuf]| -> Result<Vec<Prompt>, AssembleError> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let dataset = Dataset::read(paths, &options)?;
        notes.push(format!("{split}: {} prompts from {} files", dataset.prompts().len(), paths.len()));
        if let Some(first) = dataset.skipped().first() {
            notes.push(format!(
                "{split}: {} rows do not parse and were skipped; the first: {first}",
                dataset.skipped().len(),
            ));
        }
        Ok(dataset.prompts().to_vec())
    };
    let train = read("training data", &data.train.0)?;
    let validation = read("validation data", &data.val.0)?;
    Ok(Prompts { train, validation, notes, task: None })
}

impl Prompts {
    /// Characters of all prompts and answers, for the character tokenizer: the task's own alphabet, or whatever the data holds.
    pub fn alphabet(&self) -> String {
        let mut alphabet: BTreeSet<char> = BTreeSet::new();
        if self.task.is_some() {
            alphabet.extend("0123456789+-*/=.".chars());
        }
        for prompt in self.train.iter().chain(&self.validation) {
            match &prompt.content {
                PromptContent::Text(text) => alphabet.extend(text.chars()),
                PromptContent::Messages(messages) => {
                    alphabet.extend(messages.iter().flat_map(|message| message.content.chars()));
                }
            }
            alphabet.extend(prompt.ground_truth.iter().flat_map(|truth| truth.chars()));
        }
        alphabet.into_iter().collect()
    }

    /// Prompts and gold answers that a warm start imitates, `limit` different ones at most, in an order of their own.
    pub fn supervised(&self, seed: u64, limit: Option<usize>) -> Vec<Supervised> {
        let order = Key::new(seed, Purpose::WarmStart).permutation(self.train.len());
        let pairs = order.into_iter().filter_map(|row| {
            let prompt = &self.train[row];
            match (&prompt.content, &prompt.ground_truth) {
                (PromptContent::Text(text), Some(truth)) => {
                    Some(Supervised { prompt: text.clone(), completion: truth.clone() })
                }
                _ => None,
            }
        });
        pairs.take(limit.unwrap_or(usize::MAX)).collect()
    }
}
