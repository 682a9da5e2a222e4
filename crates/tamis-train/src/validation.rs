//! Validation: completions of held-out prompts, scored, and what they say of the policy.

use serde::{Deserialize, Serialize};
use tamis_config::{ValidateConfig, ValidationMetric};
use tamis_core::group::FinishReason;
use tamis_core::random::{Key, Purpose};
use tamis_env::reward::RewardInput;
use tamis_rollout::{Generator, GroupRequest, Outcome, PreparedPrompt, Sampling, Scorer, ShellError};

use crate::metrics::Metrics;
use crate::validation_metrics::{PromptSamples, validation_metrics};

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

/// Completes and scores the prompts. `journal` is a prefix of the trajectories' journal keys, different for every validation of a run.
pub fn sample(
    generator: &mut dyn Generator,
    scorer: &mut Scorer,
    prompts: &[PreparedPrompt],
    settings: &ValidationSettings,
    journal: &str,
    step: u64,
) -> Result<(Vec<PromptSamples>, ValidationReport), ShellError> {
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
            });
            keys.push(format!("{journal}/{}/{i}", prompt.prompt.id.0));
        }
    }
    let mut scored = scorer.score(&inputs, &keys)?.into_iter();
    let mut rows = Vec::with_capacity(prompts.len());
    let mut report = ValidationReport { num_prompts: prompts.len(), num_failed, ..ValidationReport::default() };
    let (mut sum, mut count, mut length) = (0.0, 0_usize, 0_usize);
    for ((prompt, samples), texts) in prompts.iter().zip(&samples).zip(&texts) {
        let mut row = PromptSamples {
            source: match prompt.prompt.data_source.as_str() {
                // As verl names it where the data do not.
                "" => "unknown".to_owned(),
                source => source.to_owned(),
            },
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
    Ok((rows, report))
}

/// Sets the validation's metrics: those of `validate.metrics`, and lengths and counts.
pub fn metrics(rows: &[PromptSamples], config: &ValidateConfig, metrics: &mut Metrics) {
    let mut all = Metrics::new();
    validation_metrics(rows, &mut all);
    let is_wanted = |name: &str| {
        let figure = name.split('/').find_map(|part| {
            [
                ("mean@", ValidationMetric::MeanAtK),
                ("std@", ValidationMetric::MeanAtK),
                ("pass@", ValidationMetric::PassAtK),
                ("best@", ValidationMetric::BestAtK),
                ("worst@", ValidationMetric::BestAtK),
                ("maj@", ValidationMetric::MajAtK),
            ]
            .into_iter()
            .find(|(prefix, _)| part.starts_with(prefix))
        });
        figure.is_none_or(|(_, figure)| config.metrics.contains(&figure))
    };
    metrics.extend(all.iter().filter(|(name, _)| is_wanted(name)));
}
