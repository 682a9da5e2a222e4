//! `checkpoint`: what is saved and what is kept.

use crate::define::section;
use crate::value::Frequency;

section! {
    /// Keeping the best checkpoints beside the last ones.
    pub struct KeepBestConfig {
        /// The validation figure that is compared, larger is better. Null: the mean of the raw outcome over all prompts.
        metric: Option<String> = "null", NotEmpty, Free;
        /// Checkpoints kept.
        k: usize = "1", AtLeast(1.0), Free;
    }
}

section! {
    /// What is saved and what is kept.
    pub struct CheckpointConfig {
        /// Training steps between two checkpoints. There is one after the last step too, and one before the first where a warm start or a
        /// validation comes before it. 0 or negative: only that after the last step, and a run that is killed before it begins again; one that
        /// diverges keeps nothing.
        save_freq: Frequency = "0", Any, Free;
        /// Last checkpoints kept. Null: all.
        keep_last: Option<usize> = "2", AtLeast(1.0), Free;
        /// Best checkpoints kept beside them. Null: none.
        keep_best: Option<KeepBestConfig> = "null", Any, Free;
    }
}
