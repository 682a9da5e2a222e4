//! The step loop, checkpoints, resume, validation.

pub mod batch_metrics;
pub mod catalogue;
pub mod checksum;
pub mod durable;
pub mod interrupt;
pub mod journal;
pub mod learning_rate;
pub mod metrics;
