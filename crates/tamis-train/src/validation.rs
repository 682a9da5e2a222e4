//! Validation: completions of held-out prompts, scored, and what they say of the policy.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tamis_config::{Config, GoldCheck, ValidateConfig};
use tamis_core::group::FinishReason;
use tamis_core::random::{Key, Purpose};
use tamis_data::samples::SampleRow;
use tamis_env::reward::{RewardInput, TrainerState};
use tamis_rollout::{Generator, GroupRequest, Outcome, PreparedPrompt, Sampling, Scorer, ShellError};

use crate::assemble::AssembleError;
use crate::metrics::Metrics;
use crate::validation_metrics::{PromptSamples, SourceResult, results_by_source};

/// How validation samples.
#[derive(Debug, Clone)]
pub struct ValidationSettings {
    /// Run seed.
    pub seed: u64,
    /// Samples per prompt.
    pub n: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Samples kept as text.
    pub num_samples_shown: usize,
    /// Whether all samples are kept, to be written to a file.
    pub keeps_samples: bool,
}

/// One completion of a held-out prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// The prompt's text.
    pub prompt: String,
    /// What the policy answered.
    pub completion: String,
    /// What it should have answered.
    pub ground_truth: String,
    /// Whether it was right; `None` where no verifier said so.
    pub is_correct: Option<bool>,
}

/// What a validation found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ValidationReport {
    /// Prompts.
    pub num_prompts: usize,
    /// Prompts that could not be generated from.
    #[serde(default)]
    pub num_failed: usize,
    /// Mean outcome over prompts and samples; the figure that runs are compared by.
    pub accuracy: f64,
    /// Mean length of the completions in tokens.
    pub mean_length: f64,
    /// Some completions.
    pub shown: Vec<Shown>,
}

/// A validation with everything that it sampled.
#[derive(Debug, Clone, Default)]
pub struct Validation {
    /// What figures are made of, prompt by prompt.
    pub prompts: Vec<PromptSamples>,
    /// What was found.
    pub report: ValidationReport,
    /// Every completion; empty unless [`ValidationSettings::keeps_samples`].
    pub samples: Vec<SampleRow>,
}

/// Completes and scores the prompts. `journal` is a prefix of the trajectories' journal keys, different for every validation of a run;
/// `progress` hears how many prompts are done.
pub fn sample(
    generator: &mut dyn Generator,
    scorer: &mut Scorer,
    prompts: &[PreparedPrompt],
    settings: &ValidationSettings,
    journal: &str,
    step: u64,
    progress: &mut dyn FnMut(usize),
) -> Result<Validation, ShellError> {
    for (row, prompt) in prompts.iter().enumerate() {
        let key = Key::new(settings.seed, Purpose::Validation).with(prompt.prompt.id.0);
        generator.submit(
            GroupRequest {
                ticket: row as u64,
                prompt_token_ids: prompt.token_ids.clone(),
                keys: (0..settings.n as u64).map(|sample| key.with(sample)).collect(),
            },
            &settings.sampling,
        )?;
    }
    let mut samples = vec![Vec::new(); prompts.len()];
    let (mut num_done, mut num_failed) = (0, 0);
    while num_done < prompts.len() {
        let outcomes = generator.poll()?;
        if outcomes.is_empty() {
            break;
        }
        for outcome in outcomes {
            num_done += 1;
            match outcome {
                Outcome::Finished { ticket, samples: finished } => {
                    if let Some(place) = samples.get_mut(ticket as usize) {
                        *place = finished;
                    }
                }
                Outcome::Failed { .. } => num_failed += 1,
            }
        }
        progress(num_done);
    }
    generator.take_num_generated_tokens();
    let texts: Vec<Vec<String>> = prompts
        .iter()
        .zip(&samples)
        .map(|(prompt, samples)| {
            samples.iter().map(|sample| format!("{}{}", prompt.continued, sample.text)).collect()
        })
        .collect();
    let mut inputs = Vec::new();
    let mut keys = Vec::new();
    for ((prompt, samples), texts) in prompts.iter().zip(&samples).zip(&texts) {
        for (i, (sample, completion)) in samples.iter().zip(texts).enumerate() {
            inputs.push(RewardInput {
                prompt: &prompt.prompt,
                completion,
                messages: None,
                completion_ids: &sample.token_ids,
                step,
                epoch: 0,
                trainer_state: TrainerState::default(),
            });
            keys.push(format!("{journal}/{}/{i}", prompt.prompt.id.0));
        }
    }
    let mut scored = scorer.score(&inputs, &keys)?.into_iter();
    let mut rows = Vec::with_capacity(prompts.len());
    let mut kept = Vec::new();
    let mut report =
        ValidationReport { num_prompts: prompts.len(), num_failed, ..ValidationReport::default() };
    let (mut sum, mut count, mut length) = (0.0, 0_usize, 0_usize);
    for ((prompt, samples), texts) in prompts.iter().zip(&samples).zip(&texts) {
        let mut row = PromptSamples {
            source: source_of(&prompt.prompt.data_source).to_owned(),
            num_samples: samples.len(),
            answers: Some(Vec::with_capacity(samples.len())),
            ..PromptSamples::default()
        };
        for (i, ((sample, text), scored)) in samples.iter().zip(texts).zip(scored.by_ref()).enumerate() {
            let value = |name: &str| scored.scores.get(name).map(|score| score.value);
            let outcome = value("acc").or_else(|| value("score")).unwrap_or(f64::NAN);
            if !outcome.is_nan() {
                sum += outcome;
                count += 1;
            }
            length += sample.token_ids.len();
            if report.shown.len() < settings.num_samples_shown {
                report.shown.push(Shown {
                    prompt: prompt.text.to_string(),
                    completion: text.clone(),
                    ground_truth: prompt.prompt.ground_truth.clone().unwrap_or_default(),
                    is_correct: value("acc").filter(|acc| !acc.is_nan()).map(|acc| acc >= 1.0),
                });
            }
            if settings.keeps_samples {
                kept.push(SampleRow {
                    step,
                    prompt_id: prompt.prompt.id.0,
                    sample_index: i as u32,
                    data_source: prompt.prompt.data_source.to_string(),
                    prompt: prompt.text.to_string(),
                    completion: text.clone(),
                    ground_truth: prompt.prompt.ground_truth.clone(),
                    scores: scored.scores.iter().map(|(name, score)| (name.clone(), score.value)).collect(),
                    reward: scored.reward.value,
                    num_tokens: sample.token_ids.len(),
                    finish_reason: sample.finish_reason,
                });
            }
            for (name, score) in &scored.scores {
                row.scores.entry(name.clone()).or_insert_with(|| vec![f64::NAN; samples.len()])[i] =
                    score.value;
            }
            row.scores.entry("reward".to_owned()).or_insert_with(|| vec![f64::NAN; samples.len()])[i] =
                scored.reward.value;
            row.lengths.push(sample.token_ids.len());
            row.num_truncated += usize::from(sample.finish_reason == FinishReason::Length);
            row.answers.get_or_insert_default().push(text.trim().to_owned());
        }
        rows.push(row);
    }
    report.accuracy = if count == 0 { 0.0 } else { sum / count as f64 };
    let num_samples: usize = samples.iter().map(Vec::len).sum();
    report.mean_length = if num_samples == 0 { 0.0 } else { length as f64 / num_samples as f64 };
    Ok(Validation { prompts: rows, report, samples: kept })
}

/// Whether the figure that `checkpoint.keep_best` goes by will be there, as far as that can be known: scores of external functions are known
/// only where the gold answers were checked.
pub fn check_best(
    config: &Config,
    prompts: &[PreparedPrompt],
    score_names: &BTreeSet<String>,
) -> Result<(), AssembleError> {
    let Some(name) = config.checkpoint.keep_best.as_ref().and_then(|keep| keep.metric.as_deref()) else {
        return Ok(());
    };
    let is_guess = config.data.check_gold == GoldCheck::Off
        && config.reward.iter().any(|reward| reward.kind.is_external());
    if is_guess || prompts.is_empty() {
        return Ok(());
    }
    let n = config.validate.n;
    let sources: BTreeSet<&str> =
        prompts.iter().map(|prompt| source_of(&prompt.prompt.data_source)).collect();
    let names = score_names.iter().map(String::as_str).chain(["reward"]);
    let scores: BTreeMap<String, Vec<f64>> = names.map(|name| (name.to_owned(), vec![0.0; n])).collect();
    let rows: Vec<PromptSamples> = sources
        .into_iter()
        .map(|source| PromptSamples {
            source: source.to_owned(),
            num_samples: n,
            scores: scores.clone(),
            lengths: vec![1; n],
            answers: Some(vec![String::new(); n]),
            ..PromptSamples::default()
        })
        .collect();
    let mut expected = Metrics::new();
    metrics(&rows, &config.validate, &mut expected);
    if expected.get(name).is_some() { Ok(()) } else { Err(no_figure(name, &expected)) }
}

/// There is no figure of this name among these.
pub fn no_figure(name: &str, metrics: &Metrics) -> AssembleError {
    let names: Vec<&str> =
        metrics.iter().map(|(name, _)| name).filter(|name| name.starts_with("val-")).collect();
    AssembleError::setting(
        format!("checkpoint.keep_best.metric: there is no figure `{name}` in this run's validation"),
        format!("choose one of {}", names.join(", ")),
    )
}

/// As verl names it where the data do not.
fn source_of(data_source: &str) -> &str {
    if data_source.is_empty() { "unknown" } else { data_source }
}

/// What validation found by data source, with the figures of `validate.metrics` alone.
pub fn results(rows: &[PromptSamples], config: &ValidateConfig) -> Vec<SourceResult> {
    let mut results = results_by_source(rows);
    for result in &mut results {
        result.figures.retain(|figure| config.metrics.contains(&figure.metric));
    }
    results
}

/// Sets the validation's metrics: those of `validate.metrics`, and lengths and counts.
pub fn metrics(rows: &[PromptSamples], config: &ValidateConfig, metrics: &mut Metrics) {
    for result in results(rows, config) {
        result.put(metrics);
    }
}
