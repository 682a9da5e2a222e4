//! Rewards: functions that turn completions into named scores, and their weighted sum.
//!
//! A [`RewardFunction`] answers each completion of a batch with a [`RewardOutcome`]: named scores, no answer,
//! or a failure. [`Rewards`] holds the functions of a run under names and weights and combines their outcomes
//! into one [`Scored`] per completion; [`gold`] asks every function, before anything is generated, whether it
//! accepts the dataset's own answers.
//!
//! Verifiers answer `score` (what is trained on) and `acc` (1 correct, 0 wrong), so that a filter can look at
//! correctness while the trained reward is shaped. Functions that say nothing about correctness (length,
//! format, repetition, ...) are marked by [`RewardFunction::is_shaping`].
//!
//! A file of this folder is a whole reward: its keys ([`tamis_core::settings`]), what they mean and how the
//! function is built from them ([`RewardSettings`]), and the function. One line of [`kind`] registers it.

pub mod after_think;
pub mod as_written;
pub mod boxed;
pub mod by_source;
pub mod code;
pub mod combine;
pub mod command;
pub mod cosine;
pub mod environment;
mod error;
pub mod exact;
pub mod failure;
pub mod format;
mod function;
pub mod gold;
pub mod gsm8k;
pub mod judge;
mod judge_settings;
pub mod kind;
pub mod length;
pub mod listener;
pub mod math;
pub mod math_dapo;
pub mod math_verify;
pub mod model;
mod model_settings;
pub mod number;
pub mod repetition;
pub mod settings;
pub mod soft_overlong;
pub mod think_format;

pub use combine::{NamedReward, Rewards, Scored, Scoring};
pub use error::RewardError;
pub use failure::RewardFailure;
pub use function::{Logged, RewardFunction, RewardInput, RewardOutcome, Scores, TrainerState};
pub use kind::RewardKind;
pub use listener::{Listener, Nobody};
pub use settings::{BuildError, RewardContext, RewardHost, RewardSettings};

#[cfg(test)]
mod tests;

/// A prompt of nothing but a ground truth.
#[cfg(test)]
fn test_prompt(truth: &str) -> tamis_data::prompt::Prompt {
    tamis_data::prompt::Prompt {
        id: tamis_core::group::PromptId(0),
        content: tamis_data::prompt::PromptContent::Text(format!("{truth}?")),
        ground_truth: Some(truth.to_owned()),
        data_source: "test".to_owned(),
        columns: serde_json::Map::new(),
        images: Vec::new(),
    }
}
