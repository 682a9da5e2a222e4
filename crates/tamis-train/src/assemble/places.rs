//! Places in which a user wrote some keys.

use tamis_config::Loaded;

/// Places, like `config.yaml:12`, of the keys that can be checked only with data and model; `None` for a
/// default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// `filter.metric`.
    pub filter_metric: Option<String>,
    /// `validate.metrics`.
    pub validate_metrics: Option<String>,
    /// `rollout.regex`.
    pub rollout_regex: Option<String>,
}

impl Places {
    /// The places in a loaded configuration.
    pub fn of(loaded: &Loaded) -> Self {
        Self {
            filter_metric: loaded.place("filter.metric"),
            validate_metrics: loaded.place("validate.metrics"),
            rollout_regex: loaded.place("rollout.regex"),
        }
    }
}
