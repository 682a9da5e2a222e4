//! `warm_start`: a supervised phase before reinforcement learning.

use tamis_core::settings;

settings! {
    /// A supervised phase before reinforcement learning, for models with random weights: cross-entropy on the
    /// gold answers, or on episodes that a script plays in built-in games. For external environments, tools
    /// and programs it uses only gold answers, if their prompts have any.
    pub struct WarmStartConfig {
        /// Most optimizer updates of the warm start. 0: no warm start.
        steps: usize = 0;
        /// Examples per update of the warm start.
        batch_size: usize = 64, Between(1.0, 1_048_576.0);
        /// Learning rate after the warm-up.
        learning_rate: f64 = 1e-3, Positive;
        /// Updates over which the learning rate rises from zero.
        warmup_steps: usize = 10;
        /// Number of different training prompts that the warm start uses. Null: all.
        examples: Option<usize> = None, AtLeast(1.0);
        /// Greedy validation accuracy at which the warm start ends early, measured every `test_freq` updates.
        /// Null: all `steps` are run.
        target_accuracy: Option<f64> = None, Between(0.0, 1.0);
        /// Updates between two measurements of the accuracy for `target_accuracy`.
        test_freq: usize = 25, AtLeast(1.0);
    }
}
