//! `tamis eval`: a checkpoint's policy on the validation prompts, without a run directory.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use tamis_config::Config;
use tamis_data::prompt::Prompt;
use tamis_data::samples::SampleRow;
use tamis_env::reward::{Listener, RewardError};
use tamis_rollout::{Scorer, ShellError};
use thiserror::Error;

use crate::assemble::{AssembleError, data, policy, rewards};
use crate::durable::Disk;
use crate::interrupt::Interrupt;
use crate::listener::RunListener;
use crate::metrics::Metrics;
use crate::native::NativeEngine;
use crate::progress::Progress;
use crate::session::{engine_settings, validation_settings};
use crate::validation::{self, Shown, Validation, ValidationSettings};
use crate::validation_metrics::SourceResult;

/// An evaluation cannot be made.
#[derive(Debug, Error)]
pub enum EvaluateError {
    /// A part of it cannot be built.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Generation or scoring broke down.
    #[error(transparent)]
    Shell(#[from] ShellError),
    /// A place for the shipped reward runner cannot be made.
    #[error("failed to make a temporary folder")]
    Folder(#[source] std::io::Error),
    /// There are no prompts to evaluate on.
    #[error(
        "there are no validation prompts; set data.val (or data.arithmetic.val_size for the task `arithmetic`)"
    )]
    NoPrompts,
}

/// What an evaluation found.
#[derive(Debug, Clone, Serialize)]
pub struct Evaluation {
    /// Prompts.
    pub num_prompts: usize,
    /// Samples of each.
    pub num_samples: usize,
    /// Prompts that could not be generated from.
    pub num_failed: usize,
    /// Figures by the names that they have in `metrics.jsonl`, in JSON one object.
    #[serde(serialize_with = "as_object")]
    pub metrics: Vec<(String, f64)>,
    /// The same by data source.
    pub sources: Vec<SourceResult>,
    /// Some completions.
    pub samples: Vec<Shown>,
    /// Every completion, where they were asked for.
    #[serde(skip)]
    pub all_samples: Vec<SampleRow>,
}

fn as_object<S: Serializer>(metrics: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|(name, value)| (name, value)))
}

impl From<RewardError> for EvaluateError {
    fn from(error: RewardError) -> Self {
        Self::Assemble(AssembleError::Reward(error))
    }
}

/// Evaluates `model.path` on the validation prompts as `validate` says, and says through `progress` what takes long; `keeps_samples`: every
/// completion is returned.
pub fn evaluate(
    config: &Config,
    progress: &Progress,
    keeps_samples: bool,
) -> Result<Evaluation, EvaluateError> {
    let prompts = data::validation_prompts(config)?;
    // A checkpoint brings its own tokenizer.
    let codec = policy::codec(config, String::new)?;
    let prompts = prompts.formatted(config, &codec)?;
    for warning in &prompts.warnings {
        progress.warn(warning);
    }
    let prompts = prompts.validation;
    let model = policy::model(config, &codec)?;
    let folder = std::env::temp_dir().join(format!("tamis-eval-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(EvaluateError::Folder)?;
    let result = evaluate_in(config, progress, &folder, prompts, (codec, model), keeps_samples);
    // Only the shipped reward runner was in it.
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn evaluate_in(
    config: &Config,
    progress: &Progress,
    folder: &std::path::Path,
    prompts: Vec<Prompt>,
    (codec, model): (crate::codec::Codec, tamis_model::Model),
    keeps_samples: bool,
) -> Result<Evaluation, EvaluateError> {
    let listener: Arc<dyn Listener> = RunListener::new(progress, &Interrupt::new());
    let mut scorer = Scorer::new(rewards::rewards(config, &Disk::new(), folder, &listener, &[&prompts])?);
    let overlong = data::overlong(config.data.overlong_prompts);
    let prepared = codec
        .prepare(prompts, "validation", overlong, config.data.max_prompt_length)
        .map_err(AssembleError::from)?;
    if prepared.prompts.is_empty() {
        return Err(EvaluateError::NoPrompts);
    }
    if let Some(first) = prepared.prompts.first() {
        progress.say(&codec.introduction(first).map_err(AssembleError::from)?);
    }
    let mut engine = NativeEngine::new(model, codec, engine_settings(config));
    let settings = ValidationSettings { keeps_samples, ..validation_settings(config) };
    let plural = if settings.n == 1 { "" } else { "s" };
    progress.say(&format!(
        "evaluating {} prompts, {} sample{plural} of each",
        prepared.prompts.len(),
        settings.n
    ));
    let Validation { prompts: rows, report, samples } =
        validation::sample(&mut engine, &mut scorer, &prepared.prompts, &settings, "eval", 0, &mut |_| {})?;
    for warning in scorer.take_warnings() {
        progress.warn(&warning);
    }
    let sources = validation::results(&rows, &config.validate);
    let mut metrics = Metrics::new();
    sources.iter().for_each(|source| source.put(&mut metrics));
    Ok(Evaluation {
        num_prompts: report.num_prompts,
        num_samples: settings.n,
        num_failed: report.num_failed,
        metrics: metrics.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        sources,
        samples: report.shown,
        all_samples: samples,
    })
}
