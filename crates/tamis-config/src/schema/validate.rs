//! `validate`: measuring the policy on held-out prompts.

use tamis_core::{choice, settings};

use crate::value::Frequency;

choice! {
    /// A validation metric.
    pub enum ValidationMetric {
        /// Mean over the samples of a prompt.
        MeanAtK = "mean@k",
        /// Probability that at least one of k samples is right, by the unbiased estimator (Chen et al.,
        /// 2107.03374).
        PassAtK = "pass@k",
        /// Best of k samples.
        BestAtK = "best@k",
        /// Majority answer of k samples.
        MajAtK = "maj@k",
    }
}

settings! {
    /// Measuring the policy on held-out prompts.
    pub struct ValidateConfig {
        /// Training steps between two validations. If a run validates at all, it also validates after its
        /// last step. 0 or negative: none in between.
        test_freq: Frequency = Frequency::NEVER, Any, Free;
        /// Validate before the first step. With `test_freq: 0` the policy is measured twice: before the first
        /// step and after the last.
        before_train: bool = true, Any, Free;
        /// Samples of each validation prompt.
        n: usize = 1, Between(1.0, 65536.0), Free;
        /// Temperature of the softmax that validation samples from. 0: greedy.
        temperature: f64 = 0.0, ZeroOrBetween(1e-6, 1e6), Free;
        /// Sample only from the smallest set of tokens whose probabilities sum to at least this. 1: all
        /// tokens.
        top_p: f64 = 1.0, Probability, Free;
        /// Use only this many validation prompts, from the first. Null: all.
        max_prompts: Option<usize> = None, AtLeast(1.0), Free;
        /// Metrics of a validation. All except `mean@k` need `n` above 1.
        metrics: Vec<ValidationMetric> = vec![ValidationMetric::MeanAtK], NotEmpty, Free;
        /// Number of validation samples that are printed.
        num_samples_shown: usize = 3, Any, Free;
        /// Write every sample of every validation, with its scores, to `validation/step_N.jsonl` in the run
        /// folder.
        save_samples: bool = false, Any, Free;
    }
}

impl ValidateConfig {
    /// Whether a run with validation prompts validates at all.
    pub fn is_made(&self) -> bool {
        self.before_train || self.test_freq != Frequency::NEVER
    }
}
