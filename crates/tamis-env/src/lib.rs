//! Kernel: tasks, rewards and verifiers, environments of many turns, and tools.
//! A [`task`] makes prompts with a ground truth; a [`reward`] turns completions of them into named scores.
//! Data flows one way: prompts out of a task (or a dataset) → completions out of a generator →
//! [`reward::Rewards`] → scores and the reward that is trained on. An [`environment`] answers each completion
//! with an observation, turn by turn. A [`sandbox`] runs Python code that a policy wrote, and a [`tool`] is
//! what a model may call in its answers. Nothing here knows a model or a tokenizer.

pub mod environment;
pub mod rational;
pub mod reward;
pub mod sandbox;
pub mod task;
pub mod tool;
