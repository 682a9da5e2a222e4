//! `critic`: the model that says at each token what is still to come, for `gae` and `bi_level_gae`.

use tamis_core::objective::Aggregation;
use tamis_core::settings;

use super::{LrScheduleConfig, OptimizerConstants};
use crate::hub_name::ModelSource;

settings! {
    /// Where the critic's weights begin.
    pub struct CriticModelConfig {
        /// Folder of a checkpoint in the Hugging Face layout, or a name on a hub as in `model.path`: a critic
        /// (`...ForTokenClassification` with one label, `score.weight` and `score.bias`), or a language
        /// model, whose layers it takes under a value head of zeros. Its tokens must be those of the policy.
        /// Null: the layers of the policy as reinforcement learning begins (after the warm start, where there
        /// is one), under such a head.
        path: Option<ModelSource> = None, NotEmpty;
    }
}

settings! {
    /// The critic's own AdamW with decoupled weight decay.
    pub struct CriticOptimizerConfig {
        /// Learning rate, after its warm-up; ten times the policy's, as in verl.
        learning_rate: f64 = 1e-5, Positive;
        ..constants: OptimizerConstants;
    }
}

settings! {
    /// The critic: a transformer of its own with a value head, made where the estimator needs one (`gae`,
    /// `bi_level_gae`). It gives a value for every token of the batch, from which advantages and returns are
    /// computed, and it is trained on the returns before the policy is updated.
    pub struct CriticConfig {
        /// Weights that the critic starts from.
        model: CriticModelConfig = CriticModelConfig::default();
        /// The critic's own AdamW.
        optimizer: CriticOptimizerConfig = CriticOptimizerConfig::default();
        /// The critic's learning rate over training steps.
        lr_schedule: LrScheduleConfig = LrScheduleConfig::default();
        /// Prompts (groups) of one update of the critic. Null: as many as for the policy.
        ppo_mini_batch_size: Option<usize> = None, Between(1.0, 1e6);
        /// Passes of the critic over each batch. Null: as many as for the policy.
        ppo_epochs: Option<usize> = None, AtLeast(1.0);
        /// Largest change of a value before the value loss clips it. Null: no clipping.
        cliprange_value: Option<f64> = Some(0.5), Positive;
        /// How the value losses of tokens become one number. Null: as for the policy loss.
        aggregation: Option<Aggregation> = None;
        /// First steps in which the critic learns alone and the policy is left as it is. verl's
        /// `trainer.critic_warmup` of N is N - 1 of them.
        warmup_steps: usize = 0;
    }
}
