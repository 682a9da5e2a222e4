//! Rules about the loss, the advantages and the KL.

use tamis_core::advantage::{Advantage, Column, Cpo, Scale};
use tamis_core::correction::Correction;
use tamis_core::objective::{Aggregation, Importance};

use super::Checker;
use crate::schema::KlPlace;

impl Checker<'_> {
    pub(super) fn objective(&mut self) {
        let config = self.config;
        let objective = &config.objective;
        self.loss();
        if let Advantage::Cpo(cpo) = &objective.advantage {
            self.contrast(cpo);
        }
        if objective.advantage.divisor() == Some(Scale::None) {
            let keys = ["objective.advantage.ddof", "objective.advantage.epsilon"];
            self.warn_ignored(&keys, "advantages are not divided by a deviation");
        }
        if config.played().is_none() {
            self.warn_ignored(
                &["objective.advantage.statistics"],
                "without an environment an episode has one turn",
            );
        }
        if config.filter.is_none() && !self.reader.is_unsound("filter") {
            self.warn_ignored(&["objective.zero_groups"], "there is no filter that drops groups");
        }
        if objective.entropy.coefficient == 0.0 && objective.entropy.adaptive.is_none() {
            self.warn_ignored(&["objective.entropy.aggregation"], "there is no entropy bonus");
        }
        if objective.aggregation != Aggregation::SeqMeanTokenSumNorm {
            let reason = "only the aggregation `seq-mean-token-sum-norm` has a divisor";
            self.warn_ignored(&["objective.loss_scale_factor"], reason);
        }
        self.distillation();
        self.plain_gradient();
        self.kl();
    }

    /// Warns of a teacher's rating that counts twice, and refuses rewards that it does not read.
    fn distillation(&mut self) {
        let config = self.config;
        let objective = &config.objective;
        let Advantage::OnPolicyDistillation(rating) = &objective.advantage else { return };
        if objective.kl.place == KlPlace::Reward {
            self.error(
                &["objective.kl.in", "objective.advantage.kind"],
                "`objective.advantage.kind: on_policy_distillation` reads no rewards, so a KL in them has no effect",
                "set `objective.kl.in: loss` or `none`",
            );
        }
        if rating.gain.coefficient == 0.0 {
            self.warn(
                &["objective.advantage.coefficient"],
                "`objective.advantage.coefficient` is 0: every advantage is 0 and nothing is learned",
                "set it to 1",
            );
        }
        if objective.shaping.iter().any(|shaping| shaping.needs().contains(&Column::TeacherLogprobs)) {
            self.warn(
                &["objective.shaping", "objective.advantage.kind"],
                "the teacher's rating of a token counts twice: as its advantage, and added to it by `add_distillation`",
                "take one of the two",
            );
        }
    }

    /// A loss without a ratio of the policy to the one before the step; a baseline of a batch of one.
    fn plain_gradient(&mut self) {
        let config = self.config;
        let objective = &config.objective;
        let (batch, n) = (config.data.train_batch_size, config.rollout.n);
        if matches!(objective.advantage, Advantage::BatchMean(_)) && batch.saturating_mul(n) < 2 {
            self.error(
                &["data.train_batch_size", "objective.advantage.kind"],
                "the mean reward of a batch of one trajectory is that reward: every advantage is 0 and nothing is learned",
                "raise `data.train_batch_size`",
            );
        }
        let updates = config.train.ppo_epochs.saturating_mul(batch.div_ceil(config.mini_batch_size().max(1)));
        // In bypass mode the weights are of the policy that is being trained.
        let is_fixed =
            |correction: Correction| correction.importance.is_some() && !correction.mode.is_bypass();
        let is_weighted = config.policy_correction().ok().flatten().is_some_and(is_fixed);
        if objective.loss.is_plain_gradient() && is_weighted && updates > 1 {
            self.warn(
                &["train.ppo_epochs", "train.ppo_mini_batch_size", "objective.loss.kind"],
                format!(
                    "a step has {updates} updates, and `objective.loss.kind: reinforce` has no ratio to the policy before the step: \
                     the weights of `objective.correction` are right only for the first"
                ),
                "set `train.ppo_epochs: 1` and leave `train.ppo_mini_batch_size` out, or take `objective.loss.kind: clip`",
            );
        }
    }

    fn loss(&mut self) {
        let objective = &self.config.objective;
        let (loss, importance) = (&objective.loss, objective.importance);
        let (idle, reason) = loss.idle_keys();
        for key in idle {
            self.warn_ignored(&[&format!("objective.loss.{key}")], reason);
        }
        if let Some(needed) = loss.needed_aggregation().filter(|&needed| needed != objective.aggregation) {
            self.error(
                &["objective.aggregation", "objective.loss.kind"],
                format!(
                    "`objective.loss.kind: {loss}` with `objective.aggregation: {}`: the loss is defined only with `{needed}`",
                    objective.aggregation,
                ),
                format!("set `objective.aggregation: {needed}`"),
            );
        }
        if importance != Importance::Token && !loss.has_importance_levels() {
            self.error(
                &["objective.importance", "objective.loss.kind"],
                format!(
                    "`objective.importance: {importance}` has no effect with `objective.loss.kind: {loss}`: \
                     this loss fixes the level itself"
                ),
                "set `objective.importance: token`",
            );
        }
        if loss.has_importance_levels()
            && loss.importance(importance) != importance
            && !(objective.kl.place == KlPlace::Loss && objective.kl.bias_corrected)
        {
            let reason = format!(
                "`{loss}` weights whole trajectories; the level affects only a bias-corrected KL in the loss"
            );
            self.warn_ignored(&["objective.importance"], &reason);
        }
    }

    /// Rules of the estimator `cpo`, which contrasts completions with the gold answer.
    fn contrast(&mut self, cpo: &Cpo) {
        for name in ["{prompt}", "{gold}"] {
            if !cpo.gold_hint.contains(name) {
                self.error(
                    &["objective.advantage.gold_hint"],
                    format!("`objective.advantage.gold_hint` does not contain `{name}`"),
                    format!("add `{name}` to it"),
                );
            }
        }
        if self.config.filter.is_some() {
            self.warn(
                &["filter", "objective.advantage.kind"],
                "the filter drops groups without a right completion, but `objective.advantage.kind: cpo` learns from them by contrast \
                with the gold answer",
                "set `filter: null`",
            );
        }
        self.right_completions(cpo.right);
    }

    /// Warns if `cpo` cannot recognise a right completion by its reward.
    fn right_completions(&mut self, right: f64) {
        let config = self.config;
        let message = |trouble: &str| {
            format!(
                "`objective.advantage.kind: cpo` counts a completion as right if its reward is at least {right} \
                (`objective.advantage.right`), but {trouble}"
            )
        };
        let hint = "set `objective.advantage.right` between the rewards of wrong and of right completions";
        if config.objective.kl.place == KlPlace::Reward {
            let trouble = "the KL in the reward changes the rewards of right completions";
            self.warn(&["objective.kl.in", "objective.advantage.right"], message(trouble), hint);
        } else if config.reward.iter().any(|reward| !reward.kind.is_verifier() && reward.weight != 0.0) {
            let trouble = "a reward that is not a verifier changes the rewards of right completions";
            self.warn(&["reward", "objective.advantage.right"], message(trouble), hint);
        } else if let [reward] = config.reward.as_slice()
            && reward.weight < right
        {
            let trouble = format!("the weight of the only reward is {}", reward.weight);
            let keys = ["objective.advantage.right", "reward[0].weight", "reward"];
            self.warn(&keys, message(&trouble), hint);
        }
    }

    fn kl(&mut self) {
        let config = self.config;
        let kl = &config.objective.kl;
        let place = kl.place;
        if place == KlPlace::None {
            let keys = [
                "objective.kl.estimator",
                "objective.kl.straight_through",
                "objective.kl.bias_corrected",
                "objective.kl.coefficient",
                "objective.kl.adaptive",
                "model.reference",
            ];
            self.warn_ignored(&keys, "`objective.kl.in` is `none`");
            return;
        }
        if kl.coefficient == 0.0 {
            self.warn(
                &["objective.kl.coefficient"],
                format!(
                    "`objective.kl.in: {place}` with `objective.kl.coefficient: 0`: the reference is loaded and run only for its metric"
                ),
                "set `objective.kl.in: none`",
            );
        }
        if place == KlPlace::Reward {
            let keys = ["objective.kl.straight_through", "objective.kl.bias_corrected"];
            self.warn_ignored(&keys, "the KL is in the reward, through which no gradient flows");
        }
        let Some(adaptive) = &kl.adaptive else { return };
        if place != KlPlace::Reward {
            self.error(
                &["objective.kl.adaptive"],
                format!(
                    "`objective.kl.adaptive` adapts the coefficient of a KL in the reward, but `objective.kl.in` is `{place}`"
                ),
                "set `objective.kl.in: reward`",
            );
        }
        let trajectories = config.data.train_batch_size.saturating_mul(config.rollout.n);
        let horizon = adaptive.horizon;
        if trajectories as f64 >= 5.0 * horizon {
            self.warn(
                &["objective.kl.adaptive.horizon", "objective.kl.adaptive"],
                format!(
                    "`objective.kl.adaptive.horizon` is {horizon} with {trajectories} trajectories a step: one step can change the \
                    coefficient by a fifth of their ratio, which takes it to 0 or below"
                ),
                format!("set `objective.kl.adaptive.horizon` above {}", trajectories as f64 / 5.0),
            );
        }
    }
}
