//! The step loop, the native engine as learner and as generator, checkpoints and resume, validation.
//!
//! [`run`] is a run from its configuration to its ending, step by step; [`credit`] makes advantages of a step's groups. [`assemble`] turns a
//! validated configuration into ready objects; [`update`] trains a [`learner::Learner`] on a step's batch;
//! [`checkpoint`] saves what a resume needs; [`batch_metrics`], [`metrics`] and [`logger`] say what happened.

pub mod answers;
pub mod assemble;
pub mod batch_metrics;
pub mod catalogue;
pub mod checkpoint;
pub mod checksum;
pub mod codec;
pub mod credit;
pub mod critic;
pub mod diagnostics;
pub mod durable;
pub mod evaluate;
pub mod export;
pub mod gradient_analysis;
pub mod interrupt;
pub mod journal;
pub mod learner;
pub mod learning_rate;
pub mod listener;
pub mod logger;
pub mod memory;
pub mod metrics;
pub mod micro_batch;
pub mod native;
mod optimizer_batch;
pub mod order;
pub mod pool;
pub mod progress;
pub mod run;
pub mod run_directory;
pub mod run_log;
pub mod samples;
mod servers;
pub mod timings;
pub mod update;
pub mod validation;
pub mod validation_metrics;
pub mod warm_start;
