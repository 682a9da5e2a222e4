//! `train`: mini-batches, optimizer, learning rate and length of the run.

use tamis_core::early_stop::EarlyStopSettings;
use tamis_core::{choice, settings};

choice! {
    /// How the learning rate moves after its warm-up.
    pub enum LrScheduleKind {
        /// Constant.
        Constant = "constant",
        /// Falls linearly to `min_ratio` at the last step.
        Linear = "linear",
        /// Falls along half a cosine to `min_ratio` at the last step.
        Cosine = "cosine",
    }
}

settings! {
    /// AdamW's keys beside its learning rate.
    #[derive(Copy)]
    pub struct OptimizerConstants {
        /// Decay of AdamW's first and second moment.
        betas: [f64; 2] = [0.9, 0.999], FromBelow(0.0, 1.0);
        /// Number added to the root of AdamW's second moment, which divides the step.
        epsilon: f64 = 1e-8, Positive;
        /// Share of each weight that a step takes away, times the learning rate.
        weight_decay: f64 = 0.01, NonNegative;
        /// Apply weight decay to norms and biases too, as PyTorch's AdamW does by default.
        decay_norms_and_biases: bool = true;
        /// Largest norm of the gradient; longer ones are scaled down to it. Null: no limit.
        max_grad_norm: Option<f64> = Some(1.0), Positive;
    }
}

settings! {
    /// AdamW with decoupled weight decay.
    pub struct OptimizerConfig {
        /// Learning rate, after its rise over the warm-up steps.
        learning_rate: f64 = 1e-6, Positive;
        ..constants: OptimizerConstants;
    }
}

settings! {
    /// The learning rate over training steps. Generation rounds do not count.
    pub struct LrScheduleConfig {
        /// Shape of the learning rate after the warm-up. `linear` and `cosine` need an end:
        /// `train.total_steps`, or epochs of a run that does not refill.
        kind: LrScheduleKind = LrScheduleKind::Constant;
        /// Steps over which the learning rate rises from zero.
        warmup_steps: usize = 0;
        /// Learning rate at the last step, as a fraction of the highest.
        min_ratio: f64 = 0.0, Between(0.0, 1.0);
    }
}

settings! {
    /// Gradient norms of groups by the deviation of their rewards: `grad_norm/*` in the metrics. Every part
    /// of the loss (policy, KL, entropy) costs two more passes over the batch in a step that is measured; no
    /// weight moves by it.
    pub struct GradientAnalysisConfig {
        /// Steps from one measurement to the next; the first is at step 1. A step in which the critic learns
        /// alone is not measured.
        every: usize = 50, AtLeast(1.0), Free;
        /// Number of buckets of equally many groups, from the smallest deviation to the greatest. Without
        /// effect where `edges` are given.
        buckets: usize = 6, Between(1.0, 1000.0), Free;
        /// Lower ends of the buckets, ascending; each reaches to the next, the last has no end. Null:
        /// `buckets` of equally many groups.
        edges: Option<Vec<f64>> = None, NotEmpty, Free;
    }
}

settings! {
    /// Mini-batches, optimizer, learning rate and length of the run.
    pub struct TrainConfig {
        /// Prompts (groups) of one optimizer update. verl's users often take it for trajectories or for one
        /// GPU's share: it counts prompts, over all devices. A batch that is no multiple of it (a partial
        /// one, say) ends with a smaller mini-batch, whose means are over what it holds. Null:
        /// `data.train_batch_size`, one update a step.
        ppo_mini_batch_size: Option<usize> = None, Between(1.0, 1e6);
        /// Passes of the policy over each batch.
        ppo_epochs: usize = 1, AtLeast(1.0);
        /// Tokens of one forward and backward pass, at most (a longer trajectory passes alone): of each rank
        /// where there are several. Where the learner computes the prompt of a group once, it counts once. In
        /// PyTorch some models must compute it with each member (those that see images, and those for which
        /// no attention of ours stands): it then counts with each, and the learner's log says why. Used
        /// unless `micro_batch_size` is set. Null: 8192; of a model of more than 4 million weights in the
        /// native engine as many as 1 GiB of activations holds, from 1536 to 8192.
        micro_batch_tokens: Option<usize> = None, Between(1.0, 1e9), Free;
        /// Share the groups of a mini-batch out over its micro-batches so that they hold nearly equal numbers
        /// of tokens (Karmarkar and Karp's method), instead of cutting them in order. Which groups share an
        /// update stays as it is; the gradient is summed in another order. Null: where the learner has
        /// several ranks, which wait for the slowest of them.
        balance_micro_batches: Option<bool> = None, Any, Free;
        /// Trajectories of one forward and backward pass, a divisor of `ppo_mini_batch_size * rollout.n`.
        /// Null: cut by tokens.
        micro_batch_size: Option<usize> = None, AtLeast(1.0), Free;
        /// Shuffle the groups before they are cut into mini-batches, by `run.seed`.
        shuffle_mini_batches: bool = false;
        /// AdamW with decoupled weight decay.
        optimizer: OptimizerConfig = OptimizerConfig::default();
        /// The learning rate over training steps.
        lr_schedule: LrScheduleConfig = LrScheduleConfig::default();
        /// Training steps of the run. Null: as many as `total_epochs` needs.
        total_steps: Option<usize> = None, Between(1.0, 1e9), Free;
        /// Passes over the training data. Null: as many as `total_steps` needs; with both, the first reached
        /// ends the run.
        total_epochs: Option<usize> = None, AtLeast(1.0), Free;
        /// Reasons to end the run early.
        early_stop: EarlyStopSettings = EarlyStopSettings::default(), Any, Free;
        /// Measure the gradient norm by reward deviation within the group. Null: never.
        gradient_analysis: Option<GradientAnalysisConfig> = None, Any, Free;
    }
}
