//! Adds a teacher's rating of every token to advantages that come from rewards.

use super::{ShapeAdvantages, Shaped, ShapingBatch};
use crate::advantage::teacher_gain::{DIFFERENCES, FORMULA, NEEDS, SIGNAL, SOURCE};
use crate::advantage::{Advantages, Column, TeacherGain};
use crate::entry::{Entry, Family};
use crate::setting::Named as _;
use crate::settings;

pub(in crate::advantage) const ENTRY: Entry = Entry {
    name: "add_distillation",
    family: Family::Shaping,
    formula: FORMULA,
    source: SOURCE,
    degenerate: &[
        "unscored trajectories and masked tokens get nothing",
        "a uniform group keeps only the gain by the teacher",
    ],
    known_as: &[
        ("tinker-cookbook", "kl_penalty_coef, kl_discount_factor beside rewards"),
        (
            "verl",
            "distillation.distillation_loss.loss_mode=k1 with use_policy_gradient=True, use_task_rewards=True, \
                distillation_loss_coef",
        ),
    ],
    differences: DIFFERENCES,
    ..Entry::REGISTERED
};

settings! {
    /// `A_t = A_t + G_t`: the gain of each token by the teacher ([`TeacherGain`]) on top of its advantage.
    ///
    /// Source: tinker-cookbook `incorporate_kl_penalty`, which adds it to centred rewards; verl
    /// `use_task_rewards`. Linear. verl clips the ratios of the two terms separately, here those of the sum.
    #[derive(Copy)]
    pub struct AddDistillation {
        ..gain: TeacherGain;
    }
}

impl ShapeAdvantages for AddDistillation {
    fn needs(&self) -> &'static [Column] {
        NEEDS
    }

    fn baseline_beyond_group(&self) -> Option<&'static str> {
        Some(SIGNAL)
    }

    fn change(&self, shaped: &mut Shaped, batch: &ShapingBatch<'_>) {
        // The columns were checked before.
        let (Ok(mut gains), Some(mask)) = (self.gain.of_batch(&batch.batch, self.name()), batch.batch.mask)
        else {
            return;
        };
        let before = shaped.advantages.per_token(mask);
        for i in 0..gains.num_rows() {
            for (gain, before) in gains.row_mut(i).iter_mut().zip(before.row(i)) {
                *gain += before;
            }
        }
        shaped.advantages = Advantages::PerToken(gains);
    }
}
