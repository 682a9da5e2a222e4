//! The early stops that a configuration asks for.

use tamis_config::{CollapseForm as ConfigForm, EarlyStopConfig};
use tamis_core::early_stop::{
    CollapseForm, EarlyStop, EarlyStopError, EarlyStopSettings, EmptySteps, LowSuccess, RewardCollapse,
};

/// The stops that the configuration asks for.
pub(crate) fn early_stop(config: &EarlyStopConfig) -> Result<EarlyStop, EarlyStopError> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    EarlyStop::new(EarlyStopSettings {
        reward_collapse: config.reward_collapse.as_ref().map(|stop| RewardCollapse {
            form: match stop.form {
                ConfigForm::Attempts => CollapseForm::Attempts,
                ConfigForm::Steps => CollapseForm::Steps,
            },
            baseline_steps: count(stop.baseline_steps),
            window: stop.window,
            share: stop.share,
        }),
        low_success: config
            .low_success
            .as_ref()
            .map(|stop| LowSuccess { floor: stop.floor, patience: count(stop.patience) }),
        empty_steps: config.empty_steps.as_ref().map(|stop| EmptySteps { patience: count(stop.patience) }),
    })
}
