//! `train`: mini-batches, optimizer, learning rate and length of the run.

use tamis_core::early_stop::EarlyStopSettings;
use tamis_core::{choice, settings};

choice! {
    /// Shape of the learning rate after the warm-up.
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
    /// AdamW's keys besides its learning rate.
    #[derive(Copy)]
    pub struct OptimizerConstants {
        /// Decay of AdamW's first and second moment.
        betas: [f64; 2] = [0.9, 0.999], FromBelow(0.0, 1.0);
        /// Number added to the square root of AdamW's second moment, which divides each step.
        epsilon: f64 = 1e-8, Positive;
        /// Weight decay: each step subtracts this times the learning rate times the weight.
        weight_decay: f64 = 0.01, NonNegative;
        /// Apply weight decay to norms and biases too, as PyTorch's AdamW does by default.
        decay_norms_and_biases: bool = true;
        /// Largest norm of the gradient. A longer gradient is scaled down to it. Null: no limit.
        max_grad_norm: Option<f64> = Some(1.0), Positive;
    }
}

settings! {
    /// AdamW with decoupled weight decay.
    pub struct OptimizerConfig {
        /// Learning rate after the warm-up.
        learning_rate: f64 = 1e-6, Positive;
        ..constants: OptimizerConstants;
    }
}

settings! {
    /// Schedule of the learning rate over training steps. Generation rounds do not count.
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
    /// Gradient norms of groups by the deviation of their rewards: `grad_norm/*` in the metrics. In a
    /// measured step, every part of the loss (policy, KL, entropy) costs two more passes over the batch. No
    /// weight changes.
    pub struct GradientAnalysisConfig {
        /// Steps from one measurement to the next; the first is at step 1. A step in which only the critic
        /// learns is not measured.
        every: usize = 50, AtLeast(1.0), Free;
        /// Number of buckets with equally many groups, from the smallest deviation to the greatest. Without
        /// effect if `edges` is set.
        buckets: usize = 6, Between(1.0, 1000.0), Free;
        /// Lower ends of the buckets, ascending. Each bucket reaches to the next; the last has no upper end.
        /// Null: `buckets` with equally many groups.
        edges: Option<Vec<f64>> = None, NotEmpty, Free;
    }
}

settings! {
    /// Mini-batches, optimizer, learning rate and length of the run.
    pub struct TrainConfig {
        /// Prompts (groups) of one optimizer update. It counts prompts over all devices: not trajectories,
        /// and not one GPU's share. If a batch is no multiple of it (a partial batch, for example), the last
        /// mini-batch is smaller and its means are over its own groups. Null: `data.train_batch_size`, one
        /// update per step.
        ppo_mini_batch_size: Option<usize> = None, Between(1.0, 1e6);
        /// Passes of the policy over each batch.
        ppo_epochs: usize = 1, AtLeast(1.0);
        /// Most tokens of one forward and backward pass on each rank. A longer trajectory has a pass of its
        /// own. If the learner computes the prompt of a group once, it counts once. In PyTorch, some models
        /// compute it again for each member (vision-language models, and models whose attention tamis does
        /// not replace): it then counts for each, and the learner's log states why. Without effect if
        /// `micro_batch_size` is set. Null: 8192. For a model of more than 4 million weights in the native
        /// engine: as many as fit into 1 GiB of activations, from 1536 to 8192.
        micro_batch_tokens: Option<usize> = None, Between(1.0, 1e9), Free;
        /// Distribute the groups of a mini-batch over its micro-batches so that these hold nearly equal
        /// numbers of tokens (Karmarkar and Karp's method), instead of cutting them in order. The groups of
        /// an update do not change; only the order of the gradient's sum does. Null: on if the learner has
        /// several ranks, because they wait for the slowest.
        balance_micro_batches: Option<bool> = None, Any, Free;
        /// Trajectories of one forward and backward pass, a divisor of `ppo_mini_batch_size * rollout.n`.
        /// Null: cut by tokens.
        micro_batch_size: Option<usize> = None, AtLeast(1.0), Free;
        /// Shuffle the groups by `run.seed` before they are cut into mini-batches.
        shuffle_mini_batches: bool = false;
        /// AdamW with decoupled weight decay.
        optimizer: OptimizerConfig = OptimizerConfig::default();
        /// Schedule of the learning rate over training steps.
        lr_schedule: LrScheduleConfig = LrScheduleConfig::default();
        /// Number of training steps. Null: as many as `total_epochs` needs. 0: none, for supervised
        /// fine-tuning alone (`sft`).
        total_steps: Option<usize> = None, Between(0.0, 1e9), Free;
        /// Number of passes over the training data. Null: as many as `total_steps` needs. If both are set,
        /// the run ends at whichever is reached first.
        total_epochs: Option<usize> = None, AtLeast(1.0), Free;
        /// Reasons to end the run early.
        early_stop: EarlyStopSettings = EarlyStopSettings::default(), Any, Free;
        /// Measure gradient norms by the deviation of rewards within the group. Null: never.
        gradient_analysis: Option<GradientAnalysisConfig> = None, Any, Free;
    }
}
