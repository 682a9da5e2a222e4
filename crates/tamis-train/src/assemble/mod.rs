//! From a validated configuration to the objects that a run works with.
//!
//! Nothing here trains: each file turns one part of the configuration into one ready object, or reports what
//! is wrong with it.

pub mod advantage;
pub(crate) mod batch_size;
pub mod check;
mod check_purpose;
pub mod critic;
pub mod data;
pub mod headline;
pub(crate) mod hints;
mod hold_out;
pub mod hub;
pub(crate) mod learner;
pub(crate) mod loggers;
pub mod memory;
pub mod objective;
pub mod places;
pub mod policy;
pub(crate) mod recipe;
pub mod rewards;
pub mod schedule;
pub(crate) mod settings;
pub(crate) mod sft;
pub(crate) mod startup;
pub(crate) mod teacher;
pub(crate) mod validation;

use tamis_config::LrScheduleConfig;

use crate::learner::learning_rate::LearningRate;

pub(crate) fn learning_rate(peak: f64, schedule: &LrScheduleConfig) -> LearningRate {
    LearningRate {
        peak,
        warm_up: schedule.warmup_steps as u64,
        decay: schedule.kind,
        min_ratio: schedule.min_ratio,
    }
}

pub(crate) use tamis_env::reward::settings::RELATIVE;
