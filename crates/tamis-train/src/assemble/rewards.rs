//! The reward functions of a run.

use std::path::Path;

use tamis_config::{Config, Gsm8kMethod, OverlongForm, PythonStyle, RewardConfig, RewardKind, TaskKind};
use tamis_env::reward::command::python::{Kind, PythonFunction};
use tamis_env::reward::command::{Command, CommandConfig};
use tamis_env::reward::cosine::{Cosine, CosineSchedule};
use tamis_env::reward::exact::Exact;
use tamis_env::reward::format::Format;
use tamis_env::reward::gsm8k::{Gsm8k, Method};
use tamis_env::reward::length::Length;
use tamis_env::reward::math::Math;
use tamis_env::reward::math_dapo::MathDapo;
use tamis_env::reward::number::Number;
use tamis_env::reward::repetition::Repetition;
use tamis_env::reward::soft_overlong::{Form, SoftOverlong};
use tamis_env::reward::think_format::ThinkFormat;
use tamis_env::reward::{NamedReward, RewardFunction, Rewards};

use super::AssembleError;

/// The reward functions, and whether any of them asks a process outside, whose answers must be journalled.
pub struct Assembled {
    /// The functions.
    pub rewards: Rewards,
    /// Whether an answer may differ when asked again.
    pub is_external: bool,
}

/// Builds the reward functions; `folder` is where programs that tamis ships are written for the run.
pub fn rewards(config: &Config, folder: &Path) -> Result<Assembled, AssembleError> {
    let own: Vec<RewardConfig>;
    let list = if config.reward.iter().any(|reward| reward.kind.is_verifier()) || config.data.task.is_none() {
        &config.reward
    } else {
        // The task's own verifier, beside whatever shaping there is.
        let kind = match config.data.task {
            Some(TaskKind::Arithmetic | TaskKind::Gsm8kCalculator) | None => RewardKind::Number {},
        };
        own = std::iter::once(RewardConfig { name: kind.as_str().to_owned(), weight: 1.0, kind })
            .chain(config.reward.iter().cloned())
            .collect();
        &own
    };
    if list.is_empty() {
        return Err(AssembleError::setting(
            "no reward function is set",
            "add one to `reward`, such as `reward: [{kind: gsm8k}]`; `tamis config explain reward` lists the kinds",
        ));
    }
    let limit = config.rollout.max_response_length;
    let mut functions = Vec::with_capacity(list.len());
    for reward in list {
        let function: Box<dyn RewardFunction> = match &reward.kind {
            RewardKind::Cosine {
                min_value_wrong,
                max_value_wrong,
                min_value_correct,
                max_value_correct,
                max_length,
            } => {
                let verifier =
                    list.iter().find(|other| other.kind.is_verifier()).ok_or_else(|| {
                        AssembleError::setting(
                            format!("reward `{}` scores by correctness and length, and no verifier says what is correct", reward.name),
                            "add a verifier before it, such as `{kind: gsm8k, weight: 0}`",
                        )
                    })?;
                Box::new(Cosine::new(
                    plain(verifier, folder, limit)?,
                    CosineSchedule {
                        max_length: max_length.unwrap_or(limit) as u64,
                        min_value_wrong: *min_value_wrong,
                        max_value_wrong: *max_value_wrong,
                        min_value_correct: *min_value_correct,
                        max_value_correct: *max_value_correct,
                    },
                )?)
            }
            _ => plain(reward, folder, limit)?,
        };
        functions.push(NamedReward { name: reward.name.clone(), weight: reward.weight, function });
    }
    let is_external = list
        .iter()
        .any(|reward| matches!(reward.kind, RewardKind::Command { .. } | RewardKind::Python { .. }));
    Ok(Assembled { rewards: Rewards::new(functions)?, is_external })
}

/// A function that stands alone.
fn plain(
    reward: &RewardConfig,
    folder: &Path,
    limit: usize,
) -> Result<Box<dyn RewardFunction>, AssembleError> {
    Ok(match &reward.kind {
        RewardKind::Exact {} => Box::new(Exact),
        RewardKind::Number {} => Box::new(Number),
        RewardKind::Gsm8k { method, format_score } => Box::new(Gsm8k {
            method: match method {
                Gsm8kMethod::Strict => Method::Strict,
                Gsm8kMethod::Flexible => Method::Flexible,
            },
            format_score: *format_score,
        }),
        RewardKind::Math {} => Box::new(Math),
        RewardKind::MathDapo {} => Box::new(MathDapo { strict_box: false }),
        RewardKind::Format { pattern } => Box::new(Format::new(pattern)?),
        RewardKind::ThinkFormat {} => Box::new(ThinkFormat),
        RewardKind::Length { min_length, max_length, scale } => {
            Box::new(Length::new(*min_length as u64, max_length.unwrap_or(limit) as u64, *scale as u64)?)
        }
        RewardKind::Cosine { .. } => {
            return Err(AssembleError::setting(
                format!("reward `{}` cannot verify another reward", reward.name),
                "put a verifier into the list",
            ));
        }
        RewardKind::Repetition { ngram_size, max_penalty } => {
            Box::new(Repetition::new(*ngram_size, *max_penalty)?)
        }
        RewardKind::SoftOverlong { form, buffer, max_length, penalty_factor } => {
            let max_length = max_length.unwrap_or(limit) as u64;
            Box::new(SoftOverlong::new(
                max_length,
                buffer.map_or((max_length / 5).max(1), |buffer| buffer as u64),
                *penalty_factor,
                match form {
                    OverlongForm::Bounded => Form::Paper,
                    OverlongForm::Verl => Form::Verl,
                },
            )?)
        }
        RewardKind::Command { argv, num_processes, timeout, max_restarts } => Box::new(Command::new(
            CommandConfig {
                argv: argv.clone(),
                num_processes: *num_processes,
                timeout: *timeout,
                max_restarts: u32::try_from(*max_restarts).unwrap_or(u32::MAX),
                ..CommandConfig::default()
            },
            false,
        )?),
        RewardKind::Python {
            path,
            function,
            style,
            kwargs,
            python,
            num_processes,
            timeout,
            max_restarts,
        } => {
            if !path.is_file() {
                return Err(AssembleError::setting(
                    format!(
                        "reward `{}` is a Python file that is not there: {}",
                        reward.name,
                        path.display()
                    ),
                    "set its `path`, which is taken from the folder in which tamis is started",
                ));
            }
            let function = PythonFunction {
                interpreter: python.display().to_string(),
                path: path.clone(),
                name: function.clone(),
                kind: match style {
                    PythonStyle::Verl => Kind::Verl,
                    PythonStyle::Trl => Kind::Trl,
                    PythonStyle::EasyR1 => Kind::EasyR1,
                    PythonStyle::EasyR1Sequential => Kind::EasyR1Sequential,
                },
                kwargs: kwargs.0.clone(),
            };
            let argv = function
                .argv(folder)
                .map_err(|source| AssembleError::RewardRunner { folder: folder.to_owned(), source })?;
            Box::new(Command::new(
                CommandConfig {
                    argv,
                    num_processes: *num_processes,
                    timeout: *timeout,
                    max_restarts: u32::try_from(*max_restarts).unwrap_or(u32::MAX),
                    ..CommandConfig::default()
                },
                false,
            )?)
        }
    })
}
