//! The gain by a teacher, alone and added: cases by hand, and laws.

use proptest::prelude::*;
use tamis_core::advantage::shaping::{
    AddDistillation, ClipAdvantage, RoundCounts, Shaping, ShapingBatch, shape,
};
use tamis_core::advantage::{
    AdvantageBatch, AdvantageEstimator, Advantages, Grpo, OnPolicyDistillation, TeacherGain,
};
use tamis_core::objective::KlKind;
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};

use super::batches::{Owned, groups};

/// Two groups of one: the second is unscored.
struct Case {
    rewards: Ragged<f64>,
    mask: Ragged<bool>,
    policy: Ragged<f64>,
    teacher: Ragged<f64>,
}

impl Case {
    fn new() -> Self {
        Self {
            rewards: Ragged::from_rows([[1.0], [f64::NAN]]),
            mask: Ragged::from_rows([vec![true, false, true, true], vec![true]]),
            policy: Ragged::from_rows([vec![-1.0, f64::NAN, -2.0, -0.5], vec![-1.0]]),
            teacher: Ragged::from_rows([vec![-0.5, f64::NAN, -5.0, -1.0], vec![-0.25]]),
        }
    }

    fn batch(&self) -> AdvantageBatch<'_> {
        AdvantageBatch {
            mask: Some(&self.mask),
            old_logprobs: Some(&self.policy),
            teacher_logprobs: Some(&self.teacher),
            ..AdvantageBatch::of_rewards(&self.rewards)
        }
    }

    fn run(&self, gain: TeacherGain) -> Vec<f64> {
        OnPolicyDistillation { gain }.advantages(&self.batch()).unwrap().values().to_vec()
    }

    fn add(&self, shapings: &[Shaping], advantages: Advantages) -> Advantages {
        let batch = ShapingBatch {
            batch: self.batch(),
            groups: RoundCounts { kept: 1, generated: 1 },
            key: Key::new(1, Purpose::Task),
            group_ids: None,
        };
        shape(shapings, advantages, &batch).unwrap().advantages
    }
}

#[test]
fn a_token_gains_what_the_teacher_finds_likelier() {
    let case = Case::new();
    let plain = TeacherGain::default();
    assert_eq!(case.run(plain), [0.5, 0.0, -3.0, -0.5, 0.0]);
    assert_eq!(case.run(TeacherGain { coefficient: 2.0, ..plain }), [1.0, 0.0, -6.0, -1.0, 0.0]);
    // The clip is of nats, before the coefficient.
    let clipped = TeacherGain { coefficient: 2.0, clip: Some(1.0), ..plain };
    assert_eq!(case.run(clipped), [1.0, 0.0, -2.0, -1.0, 0.0]);
    // From the end: -0.5, then -3 - 0.25, then 0.5 - 1.625; the masked token is no step.
    assert_eq!(case.run(TeacherGain { discount: 0.5, ..plain }), [-1.125, 0.0, -3.25, -0.5, 0.0]);
    // Tinker's factor 1 sums all later tokens.
    assert_eq!(case.run(TeacherGain { discount: 1.0, ..plain }), [-3.0, 0.0, -3.5, -0.5, 0.0]);
}

#[test]
fn other_estimators_are_those_of_the_divergence() {
    let case = Case::new();
    let of = |estimator| case.run(TeacherGain { estimator, ..TeacherGain::default() });
    assert_eq!(of(KlKind::K2), [-0.125, 0.0, -4.5, -0.125, 0.0]);
    assert_eq!(of(KlKind::Abs), [-0.5, 0.0, -3.0, -0.5, 0.0]);
    let k3 = |d: f64| -((-d).exp() - 1.0 + d);
    for (found, d) in of(KlKind::K3).iter().zip([-0.5, f64::NAN, 3.0, 0.5]) {
        assert!(d.is_nan() && *found == 0.0 || (found - k3(d)).abs() < 1e-12, "{found}");
    }
}

#[test]
fn the_gain_is_added_to_any_advantage() {
    let case = Case::new();
    let add = Shaping::AddDistillation(AddDistillation {
        gain: TeacherGain { coefficient: 0.5, ..TeacherGain::default() },
    });
    let per_trajectory = Advantages::PerTrajectory(Ragged::from_rows([[2.0], [0.0]]));
    assert_eq!(case.add(&[add], per_trajectory.clone()).values(), [2.25, 0.0, 0.5, 1.75, 0.0]);
    let per_token = Advantages::PerToken(Ragged::from_rows([vec![1.0, 0.0, 2.0, 3.0], vec![0.0]]));
    assert_eq!(case.add(&[add], per_token).values(), [1.25, 0.0, 0.5, 2.75, 0.0]);
    // In the order of the list.
    let clip = Shaping::ClipAdvantage(ClipAdvantage { low: Some(-1.0), high: Some(1.0) });
    assert_eq!(case.add(&[clip, add], per_trajectory.clone()).values(), [1.25, 0.0, -0.5, 0.75, 0.0]);
    assert_eq!(case.add(&[add, clip], per_trajectory).values(), [1.0, 0.0, 0.5, 1.0, 0.0]);
}

#[test]
fn a_missing_or_broken_column_is_named() {
    let case = Case::new();
    let message = |batch: AdvantageBatch<'_>| {
        OnPolicyDistillation::default().advantages(&batch).unwrap_err().to_string()
    };
    insta::assert_snapshot!(message(AdvantageBatch { teacher_logprobs: None, ..case.batch() }), @"column `teacher_logprobs` is missing; `on_policy_distillation` needs it: log-probabilities of the same tokens under the teacher");
    let broken = Ragged::from_rows([vec![-0.5, 0.0, f64::NEG_INFINITY, -1.0], vec![-0.25]]);
    insta::assert_snapshot!(message(AdvantageBatch { teacher_logprobs: Some(&broken), ..case.batch() }), @"column `teacher_logprobs` is -inf at token 2 of trajectory 0; expected a finite number");
    for (gain, key) in [
        (TeacherGain { coefficient: -1.0, ..TeacherGain::default() }, "coefficient"),
        (TeacherGain { discount: 1.5, ..TeacherGain::default() }, "discount"),
        (TeacherGain { clip: Some(0.0), ..TeacherGain::default() }, "clip"),
    ] {
        let error = OnPolicyDistillation { gain }.advantages(&case.batch()).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A teacher that is the policy teaches nothing; one that is likelier by the same amount everywhere gives
    /// every token that amount; teacher and policy exchanged give the opposite.
    #[test]
    fn gains_are_differences(groups in groups(0), shift in -2.0..2.0_f64) {
        let mut same = groups.clone();
        for member in same.iter_mut().flat_map(|group| &mut group.members) {
            member.numbers[6] = member.numbers[2].iter().map(|old| old + shift).collect();
        }
        let mut exchanged = groups.clone();
        for member in exchanged.iter_mut().flat_map(|group| &mut group.members) {
            member.numbers.swap(2, 6);
        }
        let alone = tamis_core::advantage::Advantage::OnPolicyDistillation(OnPolicyDistillation::default());
        let run = |groups: &[super::batches::Group]| {
            Owned::of(groups).run(&alone, false, &super::batches::generated(groups))
        };
        for (row, member) in run(&same).iter().zip(same.iter().flat_map(|group| &group.members)) {
            for (gain, &on) in row.iter().zip(&member.mask) {
                let expected = if on && !member.reward.is_nan() { shift } else { 0.0 };
                prop_assert!((gain - expected).abs() < 1e-12);
            }
        }
        for (one, other) in run(&groups).iter().flatten().zip(run(&exchanged).iter().flatten()) {
            prop_assert!((one + other).abs() < 1e-12);
        }
    }

    /// Added to an advantage without a reward's signal, the gain is that of the estimator alone.
    #[test]
    fn added_to_nothing_it_is_the_gain_alone(groups in groups(1), discount in 0.0..=1.0_f64) {
        let mut uniform = groups.clone();
        for member in uniform.iter_mut().flat_map(|group| &mut group.members) {
            if !member.reward.is_nan() {
                member.reward = 1.0;
            }
        }
        let owned = Owned::of(&uniform);
        let gain = TeacherGain { discount, ..TeacherGain::default() };
        let (added, alone) = owned.add_and_alone(gain, &Grpo::default());
        prop_assert_eq!(added, alone);
    }
}
