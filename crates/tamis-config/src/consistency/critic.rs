//! The rules between the critic's settings and those of the rest.

use super::Checker;
use crate::conflict::Conflict;
use crate::schema::{Config, Estimator, FilterKind, LrScheduleKind};
use crate::shape::Shape;
use crate::table;

impl Config {
    /// Whether there is a critic: where the advantages need one.
    pub fn has_critic(&self) -> bool {
        matches!(self.objective.advantage.estimator, Estimator::Gae | Estimator::BiLevelGae)
    }

    /// Prompts of one update of the critic.
    pub fn critic_mini_batch_size(&self) -> usize {
        self.critic.ppo_mini_batch_size.unwrap_or_else(|| self.mini_batch_size())
    }

    /// The critic's passes over a batch.
    pub fn critic_epochs(&self) -> usize {
        self.critic.ppo_epochs.unwrap_or(self.train.ppo_epochs)
    }
}

impl Checker<'_> {
    pub(super) fn critic(&mut self) {
        let config = self.config;
        if !config.has_critic() {
            let leaves = table::keys()
                .iter()
                .filter(|key| key.path.starts_with("critic.") && !matches!(key.shape, Shape::Section { .. }));
            let leaves: Vec<&str> = leaves.map(|key| key.path.as_str()).collect();
            self.ignored(&leaves, "the estimator of the advantages has no critic");
            return;
        }
        let critic = &config.critic;
        let (mini, batch, n) =
            (config.critic_mini_batch_size(), config.data.train_batch_size, config.rollout.n);
        // What is the policy's has been told of the policy.
        if critic.ppo_mini_batch_size.is_some() {
            let keys = ["critic.ppo_mini_batch_size", "data.train_batch_size"];
            if mini > batch {
                self.error(&keys, Conflict::CriticMiniBatchTooLarge { mini, train: batch });
            } else if !batch.is_multiple_of(mini) {
                self.warn(&keys, Conflict::CriticRaggedMiniBatch { mini, train: batch });
            }
            if let Some(micro) = config.train.micro_batch_size
                && !mini.saturating_mul(n).is_multiple_of(micro)
            {
                let keys = ["critic.ppo_mini_batch_size", "train.micro_batch_size", "rollout.n"];
                self.error(&keys, Conflict::CriticMicroBatch { mini, n, micro });
            }
        }
        let schedule = &critic.lr_schedule;
        let total = config.train.total_steps;
        if schedule.kind == LrScheduleKind::Constant {
            self.ignored(&["critic.lr_schedule.min_ratio"], "the critic's learning rate is constant");
        } else if total.is_none() && (config.train.total_epochs.is_none() || config.refills()) {
            let keys = ["critic.lr_schedule.kind", "train.total_steps"];
            self.error(&keys, Conflict::CriticNoHorizon { kind: schedule.kind });
        }
        if let Some(total) = total
            && critic.warmup_steps >= total
        {
            let keys = ["critic.warmup_steps", "train.total_steps"];
            self.error(&keys, Conflict::CriticWarmupTooLong { warmup: critic.warmup_steps, total });
        }
    }

    /// Warns of a filter that leaves out groups of one mind where advantages are not made within the group.
    pub(super) fn lost_signal(&mut self) {
        let estimator = self.config.objective.advantage.estimator;
        let against = match estimator {
            Estimator::Gae | Estimator::BiLevelGae => "a critic",
            Estimator::Remax => "the greedy answer",
            Estimator::ReinforcePlusPlus => "the whole batch",
            _ => return,
        };
        let dropped = match self.config.filter.as_ref().map(|filter| filter.kind) {
            Some(FilterKind::Variance) => "whose members score the same",
            Some(FilterKind::MeanRange) => "whose mean is outside its bounds",
            _ => return,
        };
        let conflict = Conflict::FilterDropsSignal { estimator, dropped, against };
        self.warn(&["filter.kind", "filter"], conflict);
    }
}
