//! Numbers and facts that follow from several keys of a configuration.

use tamis_core::advantage::Column;

use crate::schema::{Config, RAW_OUTCOME, ScheduleMode, TaskKind};

/// Metrics of a trajectory that every run has, beside its scores.
const COMPUTED_METRICS: [&str; 6] =
    ["score", "seq_reward", "seq_final_reward", "token_level_rewards", "length", "entropy"];

impl TaskKind {
    /// The kind of the reward that a task brings where the user names no verifier.
    pub(crate) const fn verifier(self) -> &'static str {
        match self {
            Self::Arithmetic | Self::Gsm8kCalculator => "number",
        }
    }
}

impl Config {
    /// Prompts of one generation round: the batch where there is no filter, whatever `data.gen_batch_size`
    /// says.
    pub fn gen_batch_size(&self) -> usize {
        let own = self.data.gen_batch_size.filter(|_| self.filter.is_some());
        own.unwrap_or(self.data.train_batch_size)
    }

    /// Prompts of one optimizer update.
    pub fn mini_batch_size(&self) -> usize {
        self.train.ppo_mini_batch_size.unwrap_or(self.data.train_batch_size)
    }

    /// Whether there are validation prompts.
    pub fn has_validation_data(&self) -> bool {
        !self.data.val.is_empty()
            || (self.data.task == Some(TaskKind::Arithmetic) && self.data.arithmetic.val_size > 0)
    }

    /// Divisor of the aggregation `seq-mean-token-sum-norm`.
    pub fn loss_scale_factor(&self) -> f64 {
        self.objective.loss_scale_factor.unwrap_or(self.rollout.max_response_length as f64)
    }

    /// Whether a step may take more than one generation round.
    pub fn refills(&self) -> bool {
        self.schedule.mode == ScheduleMode::Streaming || (self.filter.is_some() && self.schedule.refill)
    }

    /// Whether there is a critic: only some advantage estimators need one.
    pub fn has_critic(&self) -> bool {
        self.objective.advantage.needs().contains(&Column::Values)
    }

    /// Prompts of one update of the critic.
    pub fn critic_mini_batch_size(&self) -> usize {
        self.critic.ppo_mini_batch_size.unwrap_or_else(|| self.mini_batch_size())
    }

    /// The critic's passes over a batch.
    pub fn critic_epochs(&self) -> usize {
        self.critic.ppo_epochs.unwrap_or(self.train.ppo_epochs)
    }

    /// The metrics that a filter can look at, as far as they are known before anything is scored. The further
    /// numbers that external rewards give beside their score are not known.
    pub fn known_metrics(&self) -> Vec<String> {
        let mut metrics: Vec<String> = Vec::new();
        if self.reward.iter().any(|reward| reward.kind.is_verifier()) {
            metrics.push(RAW_OUTCOME.to_owned());
        }
        metrics.extend(COMPUTED_METRICS.map(str::to_owned));
        let names = self.reward.iter().map(|reward| reward.name.as_str());
        metrics.extend(names.filter(|name| !COMPUTED_METRICS.contains(name)).map(str::to_owned));
        metrics
    }
}
