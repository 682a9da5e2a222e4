//! Rules about the critic, and about filters with estimators that do not compare within the group.

use super::Checker;
use super::train::divisors_near;
use tamis_core::figure::counted;
use tamis_core::filter::Scope;

use crate::schema::LrScheduleKind;
use crate::table;
use tamis_core::setting::Shape;

impl Checker<'_> {
    pub(super) fn critic(&mut self) {
        let config = self.config;
        if !config.has_critic() {
            let leaves = table::keys()
                .iter()
                .filter(|key| key.path.starts_with("critic.") && !matches!(key.shape, Shape::Section { .. }));
            let leaves: Vec<&str> = leaves.map(|key| key.path.as_str()).collect();
            self.warn_ignored(&leaves, "the advantage estimator has no critic");
            return;
        }
        let critic = &config.critic;
        // If the critic uses the policy's size, the policy's own rules have checked it.
        if let Some(mini) = critic.ppo_mini_batch_size.filter(|&mini| mini != self.config.mini_batch_size()) {
            self.critic_mini_batches(mini);
        }
        let kind = critic.lr_schedule.kind;
        let total = config.train.total_steps;
        if kind == LrScheduleKind::Constant {
            self.warn_ignored(&["critic.lr_schedule.min_ratio"], "the critic's learning rate is constant");
        } else if total.is_none() && (config.train.total_epochs.is_none() || config.refills()) {
            self.error(
                &["critic.lr_schedule.kind", "train.total_steps"],
                format!(
                    "`critic.lr_schedule.kind: {kind}` falls towards the last step, but the number of steps is not known"
                ),
                "set `train.total_steps`, or `critic.lr_schedule.kind: constant`",
            );
        }
        let warmup = critic.warmup_steps;
        if let Some(total) = total
            && warmup >= total
        {
            self.error(
                &["critic.warmup_steps", "train.total_steps"],
                format!(
                    "`critic.warmup_steps` ({warmup}) is not below `train.total_steps` ({total}): the policy would \
                     never be trained"
                ),
                format!("use fewer than {total} steps, or train for longer"),
            );
        }
    }

    fn critic_mini_batches(&mut self, mini: usize) {
        let (batch, n) = (self.config.data.train_batch_size, self.config.rollout.n);
        let keys = ["critic.ppo_mini_batch_size", "data.train_batch_size"];
        if mini > batch {
            self.error(
                &keys,
                format!(
                    "`critic.ppo_mini_batch_size` ({mini}) is above `data.train_batch_size` ({batch}); both count \
                     prompts"
                ),
                format!("use {batch} or less, or null for the policy's size"),
            );
        } else if !batch.is_multiple_of(mini) {
            self.warn(
                &keys,
                format!(
                    "`data.train_batch_size` ({batch}) is not divisible by `critic.ppo_mini_batch_size` ({mini}): \
                     the last of {} updates of the critic in a step has {}",
                    batch.div_ceil(mini),
                    counted(batch % mini, "prompt")
                ),
                divisors_near(batch, mini),
            );
        }
        if let Some(micro) = self.config.train.micro_batch_size
            && !mini.saturating_mul(n).is_multiple_of(micro)
        {
            self.error(
                &["critic.ppo_mini_batch_size", "train.micro_batch_size", "rollout.n"],
                format!(
                    "`critic.ppo_mini_batch_size` ({mini}) times `rollout.n` ({n}) is not divisible by \
                     `train.micro_batch_size` ({micro})"
                ),
                "remove `train.micro_batch_size`: `train.micro_batch_tokens` needs no divisor",
            );
        }
    }

    /// Warns of a filter that drops groups by their scores if advantages are not computed within the group.
    pub(super) fn lost_signal(&mut self) {
        let Some((estimator, against)) = self.config.signal_beyond_group() else { return };
        let Some(filter) = self.config.filter.as_ref().map(|filter| filter.kind) else { return };
        if filter.scope() == Scope::Pool || filter.chooses_members() {
            return;
        }
        self.warn(
            &["filter.kind", "filter"],
            format!(
                "the filter keeps only {}, but the others have signal too: `{estimator}` compares with {against}, not within the group",
                filter.rule()
            ),
            "set `filter: null`",
        );
    }
}
