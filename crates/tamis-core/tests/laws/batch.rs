//! Generated batches, and any subset of their trajectories as columns.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::objective::{
    AdaptiveEntropy, AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, ClipCov, Columns, Decoupled,
    DppoKl, DppoTv, Dro, EntropyBonus, GeoMean, Gspo, GspoForm, Importance, KlController, KlCov, KlEstimator,
    KlKind, KlTerm, LengthDivisors, LossMasks, Luspo, Normalisers, Objective, PolicyLoss, Reinforce, Sapo,
    Vespo,
};
use tamis_core::ragged::Ragged;

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
    prop_oneof![
        Just(Aggregation::TokenMean),
        Just(Aggregation::SeqMeanTokenSum),
        Just(Aggregation::SeqMeanTokenMean),
        Just(Aggregation::SeqMeanTokenSumNorm),
        Just(Aggregation::GroupTokenMean),
        Just(Aggregation::GroupSeqMean),
        Just(Aggregation::TokenSum),
    ]
}

fn clip() -> impl Strategy<Value = Clip> {
    (
        0.05..0.5_f64,
        0.05..0.5_f64,
        prop::option::of(1.5..4.0_f64),
        prop::option::of(1.1..3.0_f64),
        prop_oneof![Just(None), Just(Some(20.0)), Just(Some(0.8))],
    )
        .prop_map(|(low, high, dual, cap, log_ratio_limit)| Clip {
            clip_low: low,
            clip_high: high,
            dual_clip: dual,
            delta: cap,
            log_ratio_limit,
        })
}

/// Any policy loss.
pub(crate) fn policy() -> impl Strategy<Value = PolicyLoss> {
    let limit = || prop_oneof![Just(None), Just(Some(20.0)), Just(Some(0.8))];
    let dppo = (0.01..0.3_f64, 0.01..0.3_f64, 1.0..4.0_f64, limit());
    let gspo = (0.05..0.5_f64, 0.05..0.5_f64, any::<bool>(), prop::option::of(0.3..2.0_f64));
    let bound = prop_oneof![Just(CispoBound::Relative), Just(CispoBound::Absolute)];
    let cispo = (bound, 0.05..1.0_f64, 0.05..0.5_f64, 0.2..5.0_f64, limit()).prop_map(
        |(bound, clip_low, clip_high, max_ratio, log_ratio_limit)| {
            PolicyLoss::Cispo(Cispo { bound, clip_low, clip_high, max_ratio, log_ratio_limit })
        },
    );
    prop_oneof![
        4 => clip().prop_map(PolicyLoss::Clip),
        1 => clip().prop_map(|Clip { clip_low, clip_high, log_ratio_limit, .. }| {
            PolicyLoss::Luspo(Luspo { clip_low, clip_high, log_ratio_limit })
        }),
        2 => gspo.prop_map(|(low, high, token, log_ratio_limit)| {
            let form = if token { GspoForm::Token } else { GspoForm::Sequence };
            PolicyLoss::Gspo(Gspo { clip_low: low, clip_high: high, form, log_ratio_limit })
        }),
        1 => (clip(), prop::option::of(0.5..2.0_f64))
            .prop_map(|(Clip { clip_low, clip_high, dual_clip, log_ratio_limit, .. }, weight_cap)| {
                PolicyLoss::Decoupled(Decoupled { clip_low, clip_high, dual_clip, weight_cap, log_ratio_limit })
            }),
        1 => prop_oneof![Just(PolicyLoss::Reinforce(Reinforce {})), Just(PolicyLoss::Gpg(Reinforce {}))],
        1 => (0.05..0.5_f64, 0.05..0.5_f64, 0.01..1.0_f64).prop_map(|(low, high, share)| {
            PolicyLoss::ClipCov(ClipCov { clip_low: low, clip_high: high, share, cov_low: -0.3, cov_high: 2.0 })
        }),
        1 => (0.01..1.0_f64, 0.0..2.0_f64).prop_map(|(share, coef)| PolicyLoss::KlCov(KlCov { share, cov_coefficient: coef })),
        2 => (0.0..0.6_f64, 0.0..0.6_f64, prop_oneof![Just(0.0), Just(1e-8)]).prop_map(|(low, high, epsilon)| {
            PolicyLoss::GeoMean(GeoMean { clip_low: low, clip_high: high, length_epsilon: epsilon, weight_epsilon: epsilon })
        }),
        1 => cispo,
        2 => (0.3..3.0_f64, 0.3..3.0_f64, limit()).prop_map(|(tau_positive, tau_negative, log_ratio_limit)| {
            PolicyLoss::Sapo(Sapo { tau_positive, tau_negative, log_ratio_limit })
        }),
        1 => dppo.clone().prop_map(|(clip_low, clip_high, max_ratio, log_ratio_limit)| {
            PolicyLoss::DppoTv(DppoTv { clip_low, clip_high, max_ratio, log_ratio_limit })
        }),
        1 => dppo.prop_map(|(clip_low, clip_high, max_ratio, log_ratio_limit)| {
            PolicyLoss::DppoKl(DppoKl { clip_low, clip_high, max_ratio, log_ratio_limit })
        }),
        1 => (0.0..2.0_f64).prop_map(|beta| PolicyLoss::Dro(Dro { beta })),
        1 => (0.0..4.0_f64, 0.0..4.0_f64, 0.0..4.0_f64, 0.0..4.0_f64).prop_map(
            |(k_positive, lambda_positive, k_negative, lambda_negative)| {
                PolicyLoss::Vespo(Vespo { k_positive, lambda_positive, k_negative, lambda_negative })
            }
        ),
    ]
}

/// Any combination of settings that go together.
pub(crate) fn objective() -> impl Strategy<Value = Objective> {
    let kind = prop_oneof![Just(KlKind::K1), Just(KlKind::Abs), Just(KlKind::K2), Just(KlKind::K3)];
    let kl = (kind, any::<bool>(), any::<bool>(), -0.5..0.5_f64, any::<bool>(), any::<bool>()).prop_map(
        |(kind, straight_through, clamped, coef, adaptive, bias_corrected)| KlTerm {
            estimator: KlEstimator { kind, straight_through, clamped },
            controller: if adaptive {
                KlController::Adaptive { initial: coef, target: 0.1, horizon: 100.0 }
            } else {
                KlController::Fixed { coef }
            },
            bias_corrected,
        },
    );
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
            let aggregation = if matches!(policy, PolicyLoss::Luspo(_)) {
                Aggregation::SeqMeanTokenSum
            } else {
                aggregation
            };
            Objective { policy, importance, aggregation, divisors, kl, entropy, masks }
        })
}
