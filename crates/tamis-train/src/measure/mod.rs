//! Measurements of a policy: validations, and the metrics of a step's groups.

pub mod batch_metrics;
pub mod diagnostics;
pub mod episode_metrics;
pub(crate) mod uniform_groups;
pub mod validation;
pub mod validation_metrics;
