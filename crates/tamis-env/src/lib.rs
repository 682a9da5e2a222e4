//! Tasks, rewards and verifiers.
//!
//! A [`task`] makes prompts with a ground truth; a [`reward`] turns completions of them into named scores.
//! Data flows one way: prompts out of a task (or a dataset) → completions out of a generator →
//! [`reward::Rewards`] → scores and the reward that is trained on. Nothing here knows a model or a tokenizer.

pub mod rational;
pub mod reward;
pub mod task;
