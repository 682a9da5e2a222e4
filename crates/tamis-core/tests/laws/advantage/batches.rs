//! Whole batches with every column, as trajectories that can be rearranged.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::advantage::shaping::{AddDistillation, RoundCounts, Shaping, ShapingBatch, shape};
use tamis_core::advantage::{
    Advantage, AdvantageBatch, AdvantageEstimator, AdvantageState, Advantages, Component, Generated,
    GeneratedStatistics, OnPolicyDistillation, TeacherGain,
};
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};

/// One trajectory's part of every column.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) reward: f64,
    /// A second reward.
    pub(super) format: f64,
    pub(super) mask: Vec<bool>,
    pub(super) token_rewards: Vec<f64>,
    /// Values, entropy, old and gold log-probabilities, Σπ², rollout weights, log-probabilities of a teacher.
    pub(super) numbers: [Vec<f64>; 7],
}

#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) members: Vec<Member>,
    pub(super) greedy: f64,
}

impl Member {
    /// Everything but reward and mask, drawn from a key; log-probabilities and Σπ² are those of a
    /// distribution.
    fn drawn(reward: f64, mask: Vec<bool>, key: Key) -> Self {
        let column = |purpose: u64, number: &dyn Fn(f64) -> f64| -> Vec<f64> {
            (0..mask.len() as u64).map(|t| number(key.with(purpose).uniform(t))).collect()
        };
        let sixty_fourths = |u: f64| (u * 64.0).round() / 64.0;
        let old = column(3, &|u| (0.05 + 0.9 * u).ln());
        let sum_pi_squared = old.iter().map(|logprob| logprob.exp().powi(2) + 0.01).collect();
        Self {
            reward,
            format: if key.uniform(0) < 0.2 { f64::NAN } else { sixty_fourths(key.uniform(1)) },
            token_rewards: column(1, &|u| sixty_fourths(u - 0.5)),
            numbers: [
                column(2, &|u| 2.0 * u - 1.0),
                column(4, &|u| 3.0 * u),
                old,
                column(5, &|u| (0.05 + 0.9 * u).ln()),
                sum_pi_squared,
                column(6, &|u| 0.5 + u),
                column(7, &|u| (0.05 + 0.9 * u).ln()),
            ],
            mask,
        }
    }
}

/// Typical rewards in `[0, 1]`: right or wrong, in tenths, anything; some unscored.
pub(super) fn reward() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => prop_oneof![Just(0.0), Just(1.0)],
        2 => (0..=10_i32).prop_map(|tenths| f64::from(tenths) / 10.0),
        2 => 0.0..1.0_f64,
        1 => Just(f64::NAN),
    ]
}

/// Groups of at least `smallest` members with masks of 0 to 7 tokens.
pub(super) fn groups(smallest: usize) -> impl Strategy<Value = Vec<Group>> {
    let member = (reward(), vec(prop_oneof![3 => Just(true), 1 => Just(false)], 0..8), any::<u64>());
    let member =
        member.prop_map(|(reward, mask, seed)| Member::drawn(reward, mask, Key::new(seed, Purpose::Task)));
    let group = (vec(member, smallest..6), prop_oneof![Just(0.0), Just(1.0), Just(f64::NAN)]);
    vec(group.prop_map(|(members, greedy)| Group { members, greedy }), 1..5)
}

/// Every column in the form that the library takes.
pub(super) struct Owned {
    pub(super) rewards: Ragged<f64>,
    pub(super) format: Ragged<f64>,
    pub(super) mask: Ragged<bool>,
    token_rewards: Ragged<f64>,
    numbers: [Ragged<f64>; 7],
    greedy: Vec<f64>,
}

impl Owned {
    pub(super) fn of(groups: &[Group]) -> Self {
        let by_group = |number: &dyn Fn(&Member) -> f64| {
            Ragged::from_rows(groups.iter().map(|group| group.members.iter().map(number).collect::<Vec<_>>()))
        };
        let members = || groups.iter().flat_map(|group| &group.members);
        Self {
            rewards: by_group(&|member| member.reward),
            format: by_group(&|member| member.format),
            mask: Ragged::from_rows(members().map(|member| &member.mask)),
            token_rewards: Ragged::from_rows(members().map(|member| &member.token_rewards)),
            numbers: std::array::from_fn(|k| Ragged::from_rows(members().map(|member| &member.numbers[k]))),
            greedy: groups.iter().map(|group| group.greedy).collect(),
        }
    }

    /// Runs an estimator with all columns, and with token rewards and components if requested.
    pub(super) fn run(
        &self,
        estimator: &Advantage,
        dense: bool,
        generated: &[GeneratedStatistics; 3],
    ) -> Vec<Vec<f64>> {
        let components = [
            Component { name: "acc", weight: 0.75, rewards: &self.rewards },
            Component { name: "format", weight: 0.5, rewards: &self.format },
        ];
        let batch = AdvantageBatch {
            mask: Some(&self.mask),
            token_rewards: dense.then_some(&self.token_rewards),
            values: Some(&self.numbers[0]),
            entropy: Some(&self.numbers[1]),
            old_logprobs: Some(&self.numbers[2]),
            gold_logprobs: Some(&self.numbers[3]),
            teacher_logprobs: Some(&self.numbers[6]),
            sum_pi_squared: Some(&self.numbers[4]),
            rollout_weights: dense.then_some(&self.numbers[5]),
            components: dense.then_some(&components),
            greedy_rewards: Some(&self.greedy),
            generated: Some(Generated {
                reward: generated[0],
                components: if dense { &generated[1..] } else { &[] },
            }),
            ..AdvantageBatch::of_rewards(&self.rewards)
        };
        let estimate = estimator.estimate(&batch, &AdvantageState::default()).unwrap();
        if let Some(returns) = &estimate.returns {
            assert_eq!(returns.offsets(), self.mask.offsets());
            for (value, &on) in returns.values().iter().zip(self.mask.values()) {
                assert!(value.is_finite() && (on || *value == 0.0));
            }
        }
        by_member(&estimate.advantages)
    }
}

impl Owned {
    /// The gain by a teacher added to the advantages of an estimator, and alone.
    pub(super) fn add_and_alone(
        &self,
        gain: TeacherGain,
        estimator: &dyn AdvantageEstimator,
    ) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let batch = AdvantageBatch {
            mask: Some(&self.mask),
            old_logprobs: Some(&self.numbers[2]),
            teacher_logprobs: Some(&self.numbers[6]),
            ..AdvantageBatch::of_rewards(&self.rewards)
        };
        let shaping = ShapingBatch {
            batch,
            groups: RoundCounts { kept: 1, generated: 1 },
            key: Key::new(1, Purpose::Task),
            group_ids: None,
        };
        let before = estimator.advantages(&batch).unwrap();
        let added = shape(&[Shaping::AddDistillation(AddDistillation { gain })], before, &shaping).unwrap();
        let alone = OnPolicyDistillation { gain }.advantages(&batch).unwrap();
        (by_member(&added.advantages), by_member(&alone))
    }
}

/// One row per trajectory: its only advantage, or one per token.
pub(super) fn by_member(advantages: &Advantages) -> Vec<Vec<f64>> {
    match advantages {
        Advantages::PerTrajectory(advantages) => advantages.values().iter().map(|&a| vec![a]).collect(),
        Advantages::PerToken(advantages) => advantages.rows().map(<[f64]>::to_vec).collect(),
    }
}

/// Statistics of the groups and of one more that the filter dropped; rewards, then both components.
pub(super) fn generated(groups: &[Group]) -> [GeneratedStatistics; 3] {
    let of = |number: &dyn Fn(&Member) -> f64| {
        let mut statistics = GeneratedStatistics::of([&[1.0, 1.0][..]]);
        for group in groups {
            statistics.add(&group.members.iter().map(number).collect::<Vec<_>>());
        }
        statistics
    };
    [of(&|member| member.reward), of(&|member| member.reward), of(&|member| member.format)]
}
