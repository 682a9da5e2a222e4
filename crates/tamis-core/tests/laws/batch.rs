//! Generated batches, and any subset of their trajectories as columns.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tamis_core::objective::{
    AdaptiveEntropy, AdvantageColumn, Aggregation, Columns, Derivatives, EntropyBonus, Importance,
    KlController, KlEstimator, KlKind, KlTerm, LengthDivisors, LossMasks, Normalisers, Objective, Outcome,
};
use tamis_core::ragged::Ragged;

use crate::registry::policy;

/// The result of an objective for some columns, from its initial state.
pub(crate) fn run(
    objective: &Objective,
    columns: &Columns<'_, f64>,
    normalisers: &Normalisers,
) -> (Outcome, Derivatives) {
    objective.value_and_gradient(columns, normalisers, &objective.initial_state()).unwrap()
}

/// One trajectory: per token the mask and the numbers of every column.
#[derive(Debug, Clone)]
pub(crate) struct Trajectory {
    pub(crate) mask: Vec<bool>,
    /// Log-probability, old, behaviour, reference, entropy, weight.
    pub(crate) columns: [Vec<f64>; 6],
    pub(crate) advantage: f64,
    pub(crate) group_tokens: f64,
    pub(crate) group_sequences: f64,
    /// As a selection over the batch would set them.
    pub(crate) selection: Vec<u8>,
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
    pub(crate) columns: [Vec<f64>; 6],
    pub(crate) advantage: Vec<f64>,
    pub(crate) group_tokens: Vec<f64>,
    pub(crate) group_sequences: Vec<f64>,
    pub(crate) selection: Vec<u8>,
}

impl Batch {
    pub(crate) fn gather(&self, indices: &[usize]) -> Gathered {
        let mut gathered = Gathered {
            offsets: vec![0],
            mask: Vec::new(),
            columns: std::array::from_fn(|_| Vec::new()),
            advantage: Vec::new(),
            group_tokens: Vec::new(),
            group_sequences: Vec::new(),
            selection: Vec::new(),
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
            gathered.group_sequences.push(trajectory.group_sequences);
            gathered.selection.extend(&trajectory.selection);
        }
        gathered
    }

    pub(crate) fn whole(&self) -> Gathered {
        self.gather(&(0..self.trajectories.len()).collect::<Vec<_>>())
    }
}

impl Gathered {
    pub(crate) fn columns(&self) -> Columns<'_, f64> {
        let [logprob, old, behaviour, reference, entropy, weight] = &self.columns;
        Columns {
            offsets: &self.offsets,
            mask: &self.mask,
            logprob,
            old: Some(old),
            behaviour: Some(behaviour),
            reference: Some(reference),
            entropy: Some(entropy),
            weight: Some(weight),
            advantage: AdvantageColumn::PerTrajectory(&self.advantage),
            group_tokens: Some(&self.group_tokens),
            group_sequences: Some(&self.group_sequences),
            selection: Some(&self.selection),
            given: None,
            candidates: None,
            sequence_weight: None,
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
    );
    // Mostly a few tokens; now and then some hundreds, with huge ratios among them.
    let length = prop_oneof![12 => 0..7_usize, 1 => 250..600_usize];
    let tokens = length.prop_flat_map(move |length| (vec(token.clone(), length), vec(0..4_u8, length)));
    (tokens, prop_oneof![1 => Just(0.0), 5 => -2.5..2.5_f64]).prop_map(|((tokens, flags), advantage)| {
        let mut columns: [Vec<f64>; 6] = std::array::from_fn(|_| Vec::new());
        let mut mask = Vec::new();
        for (on, logprob, old, behaviour, reference, (entropy, weight)) in tokens {
            mask.push(on);
            let row =
                [logprob, logprob - old, logprob - old + behaviour, logprob - reference, entropy, weight];
            for (column, number) in columns.iter_mut().zip(row) {
                column.push(number);
            }
        }
        let selection = flags[..mask.len()].to_vec();
        Trajectory { mask, columns, advantage, group_tokens: 0.0, group_sequences: 0.0, selection }
    })
}

/// Groups of 1 to 4 trajectories of 0 to 6 tokens; a fifth of the tokens masked.
pub(crate) fn batch() -> impl Strategy<Value = Batch> {
    vec(vec(trajectory(), 1..5), 1..4).prop_map(|groups| {
        let group_sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        let mut trajectories: Vec<Trajectory> = groups.into_iter().flatten().collect();
        let mask = Ragged::from_rows(trajectories.iter().map(|trajectory| trajectory.mask.clone()));
        let (normalisers, group_tokens) = Normalisers::of(&mask, &group_sizes).unwrap();
        let group_sequences = Normalisers::group_sequences(&mask, &group_sizes).unwrap();
        for ((trajectory, tokens), sequences) in
            trajectories.iter_mut().zip(group_tokens).zip(group_sequences)
        {
            trajectory.group_tokens = tokens;
            trajectory.group_sequences = sequences;
        }
        Batch { trajectories, group_sizes, normalisers }
    })
}

pub(crate) fn aggregation() -> impl Strategy<Value = Aggregation> {
    select(Aggregation::ALL)
}

/// Any combination of settings that fit together.
pub(crate) fn objective() -> impl Strategy<Value = Objective> {
    let kl = (select(KlKind::ALL), any::<bool>(), any::<bool>(), -0.5..0.5_f64, any::<bool>(), any::<bool>())
        .prop_map(|(kind, straight_through, clamped, coef, adaptive, bias_corrected)| KlTerm {
            estimator: KlEstimator { kind, straight_through, clamped },
            controller: if adaptive {
                KlController::Adaptive { initial: coef, target: 0.1, horizon: 100.0 }
            } else {
                KlController::Fixed { coef }
            },
            bias_corrected,
        });
    let entropy = (-0.5..0.5_f64, prop::option::of(aggregation()), any::<bool>()).prop_map(
        |(coef, aggregation, adaptive)| EntropyBonus {
            coef,
            aggregation,
            adaptive: adaptive.then_some(AdaptiveEntropy { min: -1.0, max: 1.0, delta: 0.01, target: 1.0 }),
        },
    );
    let importance = prop_oneof![3 => Just(Importance::Token), 1 => Just(Importance::Sequence), 1 => Just(Importance::SequenceToken)];
    let masks = (prop::option::of(0.0..1.0_f64), prop::option::of(-0.2..0.5_f64))
        .prop_map(|(top_entropy, off_policy)| LossMasks { top_entropy, off_policy });
    let divisors = prop_oneof![Just(0.0), Just(1e-8)]
        .prop_map(|length_epsilon| LengthDivisors { loss_scale_factor: 6.0, length_epsilon });
    let terms = (prop::option::of(kl), prop::option::of(entropy));
    (policy(), importance, (aggregation(), divisors), terms, prop_oneof![Just(LossMasks::default()), masks])
        .prop_map(|(policy, importance, (aggregation, divisors), (kl, entropy), masks)| {
            let importance = if policy.has_importance_levels() { importance } else { Importance::Token };
            let aggregation = policy.needed_aggregation().unwrap_or(aggregation);
            Objective { policy, importance, aggregation, divisors, kl, entropy, distillation: None, masks }
        })
}
