//! The gain of a token by a teacher: on-policy distillation as an advantage per token, which
//! [`OnPolicyDistillation`](super::OnPolicyDistillation) takes alone and
//! [`AddDistillation`](super::shaping::AddDistillation) adds to another advantage.

use super::{AdvantageBatch, Column, Result};
use crate::objective::{KlEstimator, KlKind};
use crate::ragged::Ragged;
use crate::settings;

/// The columns that a gain is computed from.
pub(super) const NEEDS: &[Column] = &[Column::Mask, Column::OldLogprobs, Column::TeacherLogprobs];

/// The signal of a group beyond the comparison of its members.
pub(super) const SIGNAL: &str = "a teacher";

/// The formula of the catalogue's entries.
pub(super) const FORMULA: &str = "d_t = log p(y_t) - log p_teacher(y_t), g_t = -coefficient·clamp(kl(d_t), -clip, clip), \
    G_t = g_t + discount·G_(t+1) over the unmasked tokens; kl(d) = d for the estimator k1";

/// The source of the catalogue's entries.
pub(super) const SOURCE: &str = "Thinking Machines, On-Policy Distillation (2025), tinker-cookbook \
    `incorporate_kl_penalty`; Agarwal et al., GKD, arXiv 2306.13649; Gu et al., MiniLLM, arXiv 2306.08543";

/// Differences from other systems that the catalogue's entries share.
pub(super) const DIFFERENCES: &[&str] = &[
    "the log-probability of the policy is that of the start of the step, as in Tinker; verl and prime-rl take the \
        current one in every update",
    "Tinker's discount counts masked tokens, too",
    "verl's default `loss_mode: k3` without `use_policy_gradient` is a divergence in the loss: `objective.kl.in: \
        loss` with the teacher as `model.reference`",
    "TRL and verl's `forward_kl_topk` compare whole distributions or the teacher's likeliest tokens; here the \
        sampled token is compared, which has the gradient of TRL's `beta: 1.0` in expectation",
];

settings! {
    /// The gain of each token by the teacher: how much likelier it is under the teacher than under the
    /// policy.
    ///
    /// `d_t = log p(y_t) - log p_teacher(y_t)` is an estimate of the reverse KL divergence. The gain is
    /// `g_t = -coefficient·clamp(kl(d_t), -clip, clip)`, and with a discount above 0 the sum
    /// `G_t = g_t + discount·G_(t+1)` over the tokens of the policy.
    ///
    /// Source: Thinking Machines, On-Policy Distillation (2025) and tinker-cookbook `incorporate_kl_penalty`
    /// (coefficient and discount); verl `loss_mode` (the estimator) and `loss_max_clamp` (the clip).
    #[derive(Copy)]
    pub struct TeacherGain {
        /// Factor of the gain.
        coefficient: f64 = 1.0, NonNegative;
        /// Discount per token of the policy, by which a token shares in the gains of later ones. 0: each
        /// token has its own gain only.
        discount: f64 = 0.0, Between(0.0, 1.0);
        /// Largest gain or loss of a token in nats, before the coefficient and the discount. Null: no limit.
        clip: Option<f64> = None, Positive;
        /// Estimator of the divergence from the teacher, whose negative is the gain. `k1` is the difference
        /// of the log-probabilities; the others are verl's.
        estimator: KlKind = KlKind::K1;
    }
}

impl TeacherGain {
    /// Gain of a token in nats, from its log-probabilities under the policy and the teacher, before the
    /// discount.
    ///
    /// ```
    /// use tamis_core::advantage::TeacherGain;
    /// let gain = TeacherGain { coefficient: 0.5, clip: Some(1.0), ..TeacherGain::default() };
    /// assert_eq!(gain.of_token(-2.0, -1.5), 0.25);
    /// assert_eq!(gain.of_token(-0.5, -4.0), -0.5);
    /// ```
    pub fn of_token(&self, policy: f64, teacher: f64) -> f64 {
        let estimator = KlEstimator { clamped: true, ..KlEstimator::plain(self.estimator) };
        let divergence = estimator.token(policy, teacher).value;
        let limit = self.clip.unwrap_or(f64::INFINITY);
        // No gain is 0, not -0.
        0.0 - self.coefficient * divergence.clamp(-limit, limit)
    }

    /// Gains of every token `[B][T]`, 0 at masked tokens and in unscored trajectories; linear in N.
    ///
    /// # Errors
    /// A column is missing; `of` is the name that the message has.
    pub(super) fn of_batch(&self, batch: &AdvantageBatch<'_>, of: &'static str) -> Result<Ragged<f64>> {
        let mask = batch.mask(of)?;
        let policy = batch.tokens(Column::OldLogprobs, of)?;
        let teacher = batch.tokens(Column::TeacherLogprobs, of)?;
        let mut gains = Ragged::default();
        for (i, (reward, mask_t)) in batch.rewards.values().iter().zip(mask.rows()).enumerate() {
            let (policy_t, teacher_t) = (policy.row(i), teacher.row(i));
            let mut row = vec![0.0; mask_t.len()];
            let mut to_go = 0.0;
            for t in (0..mask_t.len()).rev().filter(|&t| mask_t[t] && !reward.is_nan()) {
                // Without a discount nothing of later tokens is added, not even the sign of a zero.
                let own = self.of_token(policy_t[t], teacher_t[t]);
                to_go = if self.discount == 0.0 { own } else { own + self.discount * to_go };
                row[t] = to_go;
            }
            gains.push_row(row);
        }
        Ok(gains)
    }
}
