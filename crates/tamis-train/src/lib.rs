//! The step loop, the native engine as learner and as generator, checkpoints and resume, validation.
//!
//! [`run`] is a run from its configuration to its ending, step by step; [`credit`] makes advantages of a step's groups. [`assemble`] turns a
//! validated configuration into ready objects; [`update`] trains a [`learner::Learner`] on a step's batch;
//! [`checkpoint`] saves what a resume needs; [`batch_metrics`] and [`tamis_run`] say what happened.

pub mod answers;
pub mod assemble;
pub mod batch_metrics;
pub mod checkpoint;
pub mod codec;
pub mod credit;
pub mod critic;
pub mod diagnostics;
pub mod evaluate;
pub mod export;
pub mod gradient_analysis;
pub mod interrupt;
pub mod learner;
pub mod learning_rate;
pub mod listener;
pub mod memory;
pub mod micro_batch;
pub mod native;
mod optimizer_batch;
pub mod order;
pub mod pool;
pub mod run;
pub mod samples;
mod servers;
pub mod update;
pub mod validation;
pub mod validation_metrics;
pub mod warm_start;
