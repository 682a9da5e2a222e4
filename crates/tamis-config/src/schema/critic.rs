//! `critic`: the model that predicts, at each token, the reward still to come; for `gae` and `bi_level_gae`.

use tamis_core::objective::Aggregation;
use tamis_core::settings;

use super::{LrScheduleConfig, OptimizerConstants};
use crate::hub_name::ModelSource;

settings! {
    /// Initial weights of the critic.
    pub struct CriticModelConfig {
        /// Folder of a checkpoint in the Hugging Face layout, or a name on a hub as in `model.path`: a critic
        /// (`...ForTokenClassification` with one label, `score.weight` and `score.bias`), or a language
        /// model, whose layers get a value head of zeros. It must have the policy's tokens. Null: the layers
        /// of the policy at the start of reinforcement learning (after the warm start, if there is one), with
        /// such a head.
        path: Option<ModelSource> = None, NotEmpty;
    }
}

settings! {
    /// The critic's own AdamW with decoupled weight decay.
    pub struct CriticOptimizerConfig {
        /// Learning rate after the warm-up. Its default is ten times the policy's, as in verl.
        learning_rate: f64 = 1e-5, Positive;
        ..constants: OptimizerConstants;
    }
}

settings! {
    /// The critic: a separate transformer with a value head, which is created if the estimator needs one
    /// (`gae`, `bi_level_gae`). It computes a value for every token of the batch; advantages and returns are
    /// computed from these values. It is trained on the returns before the policy is updated.
    pub struct CriticConfig {
        /// Initial weights of the critic.
        model: CriticModelConfig = CriticModelConfig::default();
        /// The critic's own AdamW.
        optimizer: CriticOptimizerConfig = CriticOptimizerConfig::default();
        /// Schedule of the critic's learning rate over training steps.
        lr_schedule: LrScheduleConfig = LrScheduleConfig::default();
        /// Prompts (groups) of one update of the critic. Null: as for the policy.
        ppo_mini_batch_size: Option<usize> = None, Between(1.0, 1e6);
        /// Passes of the critic over each batch. Null: as for the policy.
        ppo_epochs: Option<usize> = None, AtLeast(1.0);
        /// Largest change of a value before the value loss clips it. Null: no clipping.
        cliprange_value: Option<f64> = Some(0.5), Positive;
        /// How the value losses of tokens become one number. Null: as for the policy loss.
        aggregation: Option<Aggregation> = None;
        /// Number of first steps in which only the critic learns and the policy does not change. verl's
        /// `trainer.critic_warmup: N` is N - 1 of them.
        warmup_steps: usize = 0;
    }
}
