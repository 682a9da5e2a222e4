//! `checkpoint`: how often checkpoints are saved, and which are kept.

use crate::value::Frequency;
use tamis_core::settings;

settings! {
    /// Which best checkpoints are kept besides the last ones.
    pub struct KeepBestConfig {
        /// Validation metric that ranks checkpoints; larger is better. Null: the mean of `acc` over all
        /// prompts.
        metric: Option<String> = None, NotEmpty, Free;
        /// Number of best checkpoints that are kept.
        k: usize = 1, AtLeast(1.0), Free;
    }
}

settings! {
    /// How often checkpoints are saved, and which are kept.
    pub struct CheckpointConfig {
        /// Training steps between two checkpoints. There is always one after the last step. With a number
        /// above 0 there is also one before the first step, if a warm start or a validation precedes it. 0 or
        /// negative: only the one after the last step, so a killed run starts again from the beginning, and a
        /// run that diverges keeps nothing.
        save_freq: Frequency = Frequency::NEVER, Any, Free;
        /// Number of last checkpoints that are kept. Null: all.
        keep_last: Option<usize> = Some(2), AtLeast(1.0), Free;
        /// Best checkpoints that are kept besides the last ones. Null: none.
        keep_best: Option<KeepBestConfig> = None, Any, Free;
    }
}
