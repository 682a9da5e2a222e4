//! Generated batches, and any subset of their trajectories as columns.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::objective::{
    AdvantageColumn, Aggregation, Clip, Columns, EntropyBonus, KlController, KlEstimator, KlKind, KlTerm,
    Normalisers, Objective, PolicyLoss, ValueColumns, ValueTerm,
};
use tamis_core::ragged::Ragged;

/// One trajectory: per token the mask and the numbers of every column.
#[derive(Debug, Clone)]
pub(crate) struct Trajectory {
    pub(crate) mask: Vec<bool>,
    /// Log-probability, old, behaviour, reference, entropy, weight, value, old value, return.
    pub(crate) columns: [Vec<f64>; 9],
    pub(crate) advantage: f64,
    pub(crate) group_tokens: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) trajectories: Vec<Trajectory>,
    pub(crate) group_sizes: Vec<usize>,
    pub(crate) normalisers: Normalisers,
}

/// Owned columns of some trajectories.
pub(crate) struct Gathered {
    pub(crate) offsets: Vec<usize>,
    pub(crate) mask: Vec<bool>,
    pub(crate) columns: [Vec<f64>; 9],
    pub(crate) advantage: Vec<f64>,
    pub(crate) group_tokens: Vec<f64>,
}

impl Batch {
    pub(crate) fn gather(&self, indices: &[usize]) -> Gathered {
        let mut gathered = Gathered {
            offsets: vec![0],
            mask: Vec::new(),
            columns: std::array::from_fn(|_| Vec::new()),
            advantage: Vec::new(),
            group_tokens: Vec::new(),
        };
        for &index in indices {
            let trajectory = &self.trajectories[index];
            gathered.mask.extend(&trajectory.mask);
            gathered.offsets.push(gathered.mask.len());
            for (all, own) in gathered.columns.iter_mut().zip(&trajectory.columns) {
                all.extend(own);
            }
            gathered.advantage.push(trajectory.advantage);
            gathered.group_tokens.push(trajectory.group_tokens);
        }
        gathered
    }

    pub(crate) fn whole(&self) -> Gathered {
        self.gather(&(0..self.trajectories.len()).collect::<Vec<_>>())
    }
}

impl Gathered {
    pub(crate) fn columns(&self) -> Columns<'_, f64> {
        let [logprob, old, behaviour, reference, entropy, weight, value, old_value, returns] = &self.columns;
        Columns {
            offsets: &self.offsets,
            mask: &self.mask,
            logprob,
            old: Some(old),
            behaviour: Some(behaviour),
            reference: Some(reference),
            entropy: Some(entropy),
            weight: Some(weight),
            values: Some(ValueColumns { value, old: old_value, returns }),
            advantage: AdvantageColumn::PerTrajectory(&self.advantage),
            group_tokens: Some(&self.group_tokens),
        }
    }
}

fn trajectory() -> impl Strategy<Value = Trajectory> {
    let token = (
        prop::bool::weighted(0.8),
        -4.0..0.0_f64,
        -1.5..1.5_f64,
        -0.2..0.2_f64,
        -1.0..1.0_f64,
        (0.0..3.0_f64, 0.1..2.0_f64),
        (-2.0..2.0_f64, -2.0..2.0_f64, -2.0..2.0_f64),
    );
    (vec(token, 0..7), prop_oneof![1 => Just(0.0), 5 => -2.5..2.5_f64]).prop_map(|(tokens, advantage)| {
        let mut columns: [Vec<f64>; 9] = std::array::from_fn(|_| Vec::new());
        let mut mask = Vec::new();
        for (on, logprob, old, behaviour, reference, (entropy, weight), (value, old_value, returns)) in tokens
        {
            mask.push(on);
            let row = [
                logprob,
                logprob - old,
                logprob - old + behaviour,
                logprob - reference,
                entropy,
                weight,
                value,
                old_value,
                returns,
            ];
            for (column, number) in columns.iter_mut().zip(row) {
                column.push(number);
            }
        }
        Trajectory { mask, columns, advantage, group_tokens: 0.0 }
    })
}

/// Groups of 1 to 4 trajectories of 0 to 6 tokens; a fifth of the tokens masked.
pub(crate) fn batch() -> impl Strategy<Value = Batch> {
    vec(vec(trajectory(), 1..5), 1..4).prop_map(|groups| {
        let group_sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        let mut trajectories: Vec<Trajectory> = groups.into_iter().flatten().collect();
        let mask = Ragged::from_rows(trajectories.iter().map(|trajectory| trajectory.mask.clone()));
        let (normalisers, group_tokens) = Normalisers::of(&mask, &group_sizes).unwrap();
        for (trajectory, tokens) in trajectories.iter_mut().zip(group_tokens) {
            trajectory.group_tokens = tokens;
        }
        Batch { trajectories, group_sizes, normalisers }
    })
}

pub(crate) fn aggregation() -> impl Strategy<Value = Aggregation> {
    prop_oneof![
        Just(Aggregation::TokenMean),
        Just(Aggregation::SeqMeanTokenSum),
        prop_oneof![Just(0.0), Just(1e-8)]
            .prop_map(|length_epsilon| Aggregation::SeqMeanTokenMean { length_epsilon }),
        Just(Aggregation::SeqMeanTokenSumNorm { scale: 6.0 }),
        Just(Aggregation::GroupMeanTokenMean),
        Just(Aggregation::TokenSum),
    ]
}

/// Any combination of settings.
pub(crate) fn objective() -> impl Strategy<Value = Objective> {
    let clip = (
        0.05..0.5_f64,
        0.05..0.5_f64,
        prop::option::of(1.5..4.0_f64),
        prop::option::of(1.1..3.0_f64),
        prop_oneof![Just(None), Just(Some(20.0)), Just(Some(0.8))],
    )
        .prop_map(|(low, high, dual, cap, log_ratio_limit)| Clip {
            low,
            high,
            dual,
            cap,
            log_ratio_limit,
        });
    let kind = prop_oneof![Just(KlKind::K1), Just(KlKind::Abs), Just(KlKind::K2), Just(KlKind::K3)];
    let kl =
        (kind, any::<bool>(), -0.5..0.5_f64, any::<bool>()).prop_map(|(kind, clamped, coef, adaptive)| {
            KlTerm {
                // The straight-through gradient is by design not that of the value.
                estimator: KlEstimator { kind, straight_through: false, clamped },
                controller: if adaptive {
                    KlController::Adaptive { initial: coef, target: 0.1, horizon: 100.0 }
                } else {
                    KlController::Fixed { coef }
                },
            }
        });
    let entropy = (-0.5..0.5_f64, prop::option::of(aggregation()))
        .prop_map(|(coef, aggregation)| EntropyBonus { coef, aggregation });
    let value = (0.1..2.0_f64, prop::option::of(0.2..1.0_f64), prop::option::of(aggregation()))
        .prop_map(|(coef, clip, aggregation)| ValueTerm { coef, clip, aggregation });
    (clip, aggregation(), prop::option::of(kl), prop::option::of(entropy), prop::option::of(value)).prop_map(
        |(clip, aggregation, kl, entropy, value)| Objective {
            policy: PolicyLoss::Clip(clip),
            aggregation,
            kl,
            entropy,
            value,
        },
    )
}
