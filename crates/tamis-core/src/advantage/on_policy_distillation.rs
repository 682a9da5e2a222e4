//! On-policy distillation: the policy samples, and a teacher rates every token.

use super::teacher_gain::{DIFFERENCES, FORMULA, NEEDS, SIGNAL, SOURCE};
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Advantages, Column, Estimate, Result, TeacherGain,
};
use crate::entry::{Entry, Family};
use crate::setting::Named as _;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "on_policy_distillation",
    family: Family::Advantage,
    formula: FORMULA,
    source: SOURCE,
    degenerate: &[
        "rewards are not read, but unscored trajectories get 0",
        "a uniform group and a group of one have a signal: filters by reward only lose tokens",
        "0 wherever the teacher is the policy",
    ],
    known_as: &[
        ("tinker-cookbook", "distillation.train_on_policy (kl_penalty_coef, kl_discount_factor)"),
        ("prime-rl", "opd"),
        (
            "verl",
            "distillation.distillation_loss.loss_mode=k1 with use_policy_gradient=True, use_task_rewards=False",
        ),
        ("TRL", "DistillationTrainer (beta=1.0)"),
    ],
    differences: DIFFERENCES,
    ..Entry::REGISTERED
};

settings! {
    /// The gain of each token by the teacher ([`TeacherGain`]); no reward enters it.
    ///
    /// Source: Thinking Machines, On-Policy Distillation (2025); prime-rl `opd`.
    ///
    /// Shapes: mask, log-probabilities of the policy and of the teacher `[B][T]` to advantages `[B][T]`, in
    /// nats. Linear in N. Degenerate cases: masked tokens and unscored trajectories get 0.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, OnPolicyDistillation, TeacherGain};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[0.0]]);
    /// let mask = Ragged::from_rows([[true, false, true]]);
    /// let policy = Ragged::from_rows([[-1.0, -9.0, -2.0]]);
    /// let teacher = Ragged::from_rows([[-0.5, -9.0, -4.0]]);
    /// let batch = AdvantageBatch {
    ///     mask: Some(&mask),
    ///     old_logprobs: Some(&policy),
    ///     teacher_logprobs: Some(&teacher),
    ///     ..AdvantageBatch::of_rewards(&rewards)
    /// };
    /// let alone = OnPolicyDistillation::default();
    /// assert_eq!(alone.advantages(&batch)?.values(), [0.5, 0.0, -2.0]);
    /// // The first token led to the last, and shares half of its loss.
    /// let shared = OnPolicyDistillation { gain: TeacherGain { discount: 0.5, ..TeacherGain::default() } };
    /// assert_eq!(shared.advantages(&batch)?.values(), [-0.5, 0.0, -2.0]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct OnPolicyDistillation {
        ..gain: TeacherGain;
    }
}

impl AdvantageEstimator for OnPolicyDistillation {
    fn baseline_beyond_group(&self) -> Option<&'static str> {
        Some(SIGNAL)
    }

    fn needs(&self) -> &'static [Column] {
        NEEDS
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let advantages = Advantages::PerToken(self.gain.of_batch(batch, self.name())?);
        Ok(Estimate { advantages, returns: None, state: state.clone() })
    }
}
