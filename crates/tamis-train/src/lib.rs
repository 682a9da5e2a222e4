//! The step loop, checkpoints, resume, validation.

pub mod batch_metrics;
pub mod catalogue;
pub mod checksum;
pub mod durable;
pub mod interrupt;
pub mod journal;
pub mod learning_rate;
pub mod logger;
pub mod metrics;
pub mod progress;
pub mod run_directory;
pub mod run_log;
pub mod timings;
pub mod validation_metrics;
