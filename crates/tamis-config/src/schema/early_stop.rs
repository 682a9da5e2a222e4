//! `train.early_stop`: reasons to end a run that goes on for nothing.

use crate::define::{choice, section};

choice! {
    /// Which generation rounds are compared with the baseline.
    pub enum CollapseForm {
        /// Every round from the first, as in RAGEN's filtering document.
        Attempts = "attempts",
        /// The last round of each trained step, once the baseline stands: RAGEN's later form.
        Steps = "steps",
    }
}

section! {
    /// Stop when the reward's deviation within groups has stayed far below what it was in the first steps.
    pub struct RewardCollapseConfig {
        /// Which generation rounds are compared with the baseline.
        form: CollapseForm = "attempts", Any, Free;
        /// Number of first trained steps whose mean deviation is the baseline.
        baseline_steps: usize = "10", AtLeast(1.0), Free;
        /// Rounds in a row below the threshold after which the run stops.
        window: usize = "10", AtLeast(1.0), Free;
        /// Threshold of the deviation, as a share of the baseline.
        share: f64 = "0.1", Probability, Free;
    }
}

section! {
    /// Stop when the pass rate of any data source has stayed below a floor in validation.
    pub struct LowSuccessConfig {
        /// Success below this is low. The success of a data source is the mean `acc` (`score`, where there is
        /// none) of its validation samples; the lowest of all sources counts, whatever `validate.metrics`
        /// logs.
        floor: f64 = "0.01", Probability, Free;
        /// Validations in a row after which the run stops.
        patience: usize = "5", AtLeast(1.0), Free;
    }
}

section! {
    /// Stop after steps in a row that had no group to train on.
    pub struct EmptyStepsConfig {
        /// Steps in a row after which the run stops.
        patience: usize = "5", AtLeast(1.0), Free;
    }
}

section! {
    /// Reasons to end a run early, each off where it is null. A run that is stopped saves a checkpoint and
    /// ends well.
    pub struct EarlyStopConfig {
        /// Stop when the reward no longer varies within groups.
        reward_collapse: Option<RewardCollapseConfig> = "null", Any, Free;
        /// Stop when validation fails. Needs validation prompts.
        low_success: Option<LowSuccessConfig> = "null", Any, Free;
        /// Stop when no group is kept any more. Only where an empty step is given up
        /// (`schedule.on_empty_round: skip`, or a limit on rounds with `on_limit: use_partial` or `skip`).
        empty_steps: Option<EmptyStepsConfig> = "null", Any, Free;
    }
}
