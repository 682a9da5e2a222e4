//! Laws of the correction for the sampler, the off-policy mask and truncation.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::correction::{
    Correction, CorrectionLevel, ImportanceWeights, Mode, OutsideBounds, Rejection, RejectionScope,
    SamplerColumns, Statistic,
};

/// One trajectory: mask, old, behaviour (sometimes unknown).
type Trajectory = (Vec<bool>, Vec<f64>, Vec<f64>);

fn trajectory() -> impl Strategy<Value = Trajectory> {
    (0_usize..7).prop_flat_map(|length| {
        let behaviour = prop_oneof![8 => -4.0..0.0_f64, 1 => Just(f64::NAN), 1 => Just(-40.0)];
        (vec(any::<bool>(), length), vec(-4.0..0.0_f64, length), vec(behaviour, length))
    })
}

fn batch() -> impl Strategy<Value = Vec<Trajectory>> {
    vec(trajectory(), 0..8)
}

fn importance() -> impl Strategy<Value = ImportanceWeights> {
    (any::<bool>(), any::<bool>(), proptest::option::of(0.0..0.9_f64), proptest::option::of(1.0..4.0_f64))
        .prop_map(|(token, mask, min, max)| ImportanceWeights {
            level: if token { CorrectionLevel::Token } else { CorrectionLevel::Sequence },
            outside: if mask { OutsideBounds::Mask } else { OutsideBounds::Truncate },
            min,
            max,
            batch_normalize: false,
        })
}

fn rejection() -> impl Strategy<Value = Rejection> {
    let statistic = prop_oneof![
        Just(Statistic::K1),
        Just(Statistic::K2),
        Just(Statistic::K3),
        Just(Statistic::Tv),
        Just(Statistic::BinaryKl)
    ];
    let scope = prop_oneof![
        Just(RejectionScope::Token),
        Just(RejectionScope::SeqSum),
        Just(RejectionScope::SeqMean),
        Just(RejectionScope::SeqMax)
    ];
    (statistic, scope, proptest::option::of(-1.0..-0.01_f64), 0.0..1.0_f64)
        .prop_map(|(statistic, scope, min, max)| Rejection { statistic, scope, min, max: Some(max) })
}

fn correction() -> impl Strategy<Value = Correction> {
    (proptest::option::of(importance()), vec(rejection(), 0..3), any::<bool>()).prop_map(
        |(importance, rejections, limited)| Correction {
            mode: Mode::Decoupled,
            importance,
            rejections,
            log_ratio_limit: limited.then_some(20.0),
            ..Correction::default()
        },
    )
}

struct Flat {
    offsets: Vec<usize>,
    mask: Vec<bool>,
    old: Vec<f64>,
    behaviour: Vec<f64>,
}

impl Flat {
    fn of(batch: &[Trajectory]) -> Self {
        let mut flat = Self { offsets: vec![0], mask: Vec::new(), old: Vec::new(), behaviour: Vec::new() };
        for (mask, old, behaviour) in batch {
            flat.mask.extend(mask);
            flat.old.extend(old);
            flat.behaviour.extend(behaviour);
            flat.offsets.push(flat.mask.len());
        }
        flat
    }

    fn columns(&self) -> SamplerColumns<'_, f64> {
        let Self { offsets, mask, old, behaviour } = self;
        SamplerColumns { offsets, mask, old, behaviour }
    }
}

fn bits(weights: Option<Vec<f64>>) -> Vec<u64> {
    weights.unwrap_or_default().iter().map(|weight| weight.to_bits()).collect()
}

proptest! {
    #[test]
    fn weights_are_within_bounds_and_masks_only_shrink((batch, correction) in (batch(), correction())) {
        let flat = Flat::of(&batch);
        let corrected = correction.correct(&flat.columns()).unwrap();
        for (&after, &before) in corrected.mask.iter().zip(&flat.mask) {
            prop_assert!(before || !after);
        }
        if correction.rejections.is_empty() {
            prop_assert_eq!(&corrected.mask, &flat.mask);
        }
        if let (Some(weights), Some(importance)) = (&corrected.weights, correction.importance) {
            for (&weight, &on) in weights.iter().zip(&flat.mask) {
                let within = weight >= importance.min.unwrap_or(0.0) && weight <= importance.max.unwrap_or(f64::INFINITY);
                let allowed = if on { within || (weight == 0.0 && importance.outside == OutsideBounds::Mask) } else { weight == 0.0 };
                prop_assert!(allowed, "{} {}", weight, on);
            }
            let share = corrected.metrics.importance.unwrap().bounded.effective_share;
            prop_assert!(share.is_nan() || (share > 0.0 && share <= 1.0 + 1e-12), "{}", share);
        }
        let divergence = corrected.metrics.mismatch.k3_kl;
        prop_assert!(divergence.is_nan() || divergence > -1e-12, "{}", divergence);
    }

    #[test]
    fn a_trajectory_does_not_depend_on_the_others((batch, correction, cut) in (batch(), correction(), 0_usize..8)) {
        let cut = cut.min(batch.len());
        let whole = correction.correct(&Flat::of(&batch).columns()).unwrap();
        let parts = [&batch[..cut], &batch[cut..]].map(|part| correction.correct(&Flat::of(part).columns()).unwrap());
        let [first, second] = parts;
        prop_assert_eq!(bits(whole.weights), [bits(first.weights), bits(second.weights)].concat());
        prop_assert_eq!(whole.mask, [first.mask, second.mask].concat());
    }

    #[test]
    fn a_view_into_a_larger_batch_is_the_same((batch, correction, shift) in (batch(), correction(), 0_usize..9)) {
        let mut flat = Flat::of(&batch);
        let here = correction.correct(&flat.columns()).unwrap();
        flat.offsets.iter_mut().for_each(|offset| *offset += shift);
        let there = correction.correct(&flat.columns()).unwrap();
        prop_assert_eq!((bits(here.weights), here.mask), (bits(there.weights), there.mask));
    }

    #[test]
    fn masked_tokens_are_not_read((batch, correction) in (batch(), correction())) {
        let mut flat = Flat::of(&batch);
        let before = correction.correct(&flat.columns()).unwrap();
        for t in 0..flat.mask.len() {
            if !flat.mask[t] {
                (flat.old[t], flat.behaviour[t]) = (f64::NAN, f64::INFINITY);
            }
        }
        let after = correction.correct(&flat.columns()).unwrap();
        let named = |corrected: &tamis_core::correction::Corrected| -> Vec<u64> {
            corrected.metrics.to_pairs().iter().map(|(_, value)| value.to_bits()).collect()
        };
        prop_assert_eq!(named(&before), named(&after));
        prop_assert_eq!((bits(before.weights), before.mask), (bits(after.weights), after.mask));
    }

    #[test]
    fn on_policy_nothing_happens((batch, correction) in (batch(), correction())) {
        let mut flat = Flat::of(&batch);
        flat.behaviour.clone_from(&flat.old);
        let corrected = correction.correct(&flat.columns()).unwrap();
        prop_assert_eq!(&corrected.mask, &flat.mask);
        for (&weight, &on) in corrected.weights.iter().flatten().zip(&flat.mask) {
            prop_assert_eq!(weight, f64::from(u8::from(on)));
        }
    }

    #[test]
    fn normalised_weights_have_mean_one((batch, importance) in (batch(), importance())) {
        let flat = Flat::of(&batch);
        let correction =
            Correction { importance: Some(ImportanceWeights { batch_normalize: true, ..importance }), ..Correction::default() };
        let corrected = correction.correct(&flat.columns()).unwrap();
        if corrected.metrics.importance.unwrap().normalisation.is_some() {
            let weights = corrected.weights.unwrap();
            // If weights belong to trajectories, the weight of each trajectory's first token.
            let counted: Vec<f64> = match importance.level {
                CorrectionLevel::Token => (0..weights.len()).filter(|&t| flat.mask[t]).map(|t| weights[t]).collect(),
                CorrectionLevel::Sequence => flat
                    .offsets
                    .windows(2)
                    .filter_map(|pair| (pair[0]..pair[1]).find(|&t| flat.mask[t]))
                    .map(|t| weights[t])
                    .collect(),
            };
            let mean = counted.iter().sum::<f64>() / counted.len() as f64;
            prop_assert!((mean - 1.0).abs() < 1e-9, "{}", mean);
        }
    }
}

/// On-policy every ratio is exactly 1, and a ratio equal to its bound is within it.
#[test]
fn a_ratio_at_its_bound_is_within() {
    let (old, offsets) = ([-1.0, -2.0, -0.5], [0, 2, 3]);
    let columns = SamplerColumns { offsets: &offsets, mask: &[true; 3], old: &old, behaviour: &old };
    assert_eq!(columns.num_sequences(), 2);
    for level in [CorrectionLevel::Token, CorrectionLevel::Sequence] {
        for outside in [OutsideBounds::Mask, OutsideBounds::Truncate] {
            for (min, max) in
                [(None, Some(1.0)), (Some(1.0), None), (Some(1.0), Some(2.0)), (Some(0.5), Some(1.0))]
            {
                let importance = ImportanceWeights { level, outside, min, max, batch_normalize: false };
                let correction = Correction { importance: Some(importance), ..Correction::default() };
                let corrected = correction.correct(&columns).unwrap();
                assert_eq!(corrected.weights, Some(vec![1.0; 3]), "{importance:?}");
                let metrics = corrected.metrics.importance.unwrap();
                let shares = [
                    metrics.share_above,
                    metrics.share_below,
                    metrics.sequence_share_above,
                    metrics.sequence_share_below,
                    metrics.masked_share.unwrap_or(0.0),
                ];
                assert_eq!(shares, [0.0; 5], "{importance:?}");
            }
        }
    }
    // Every statistic is 0.
    for statistic in [Statistic::K1, Statistic::K2, Statistic::K3, Statistic::Tv, Statistic::BinaryKl] {
        for scope in
            [RejectionScope::Token, RejectionScope::SeqSum, RejectionScope::SeqMean, RejectionScope::SeqMax]
        {
            for (min, max) in
                [(Some(0.0), None), (None, Some(0.0)), (Some(0.0), Some(1.0)), (Some(-1.0), Some(0.0))]
            {
                let rejection = Rejection { statistic, scope, min, max };
                let correction = Correction { rejections: vec![rejection], ..Correction::default() };
                let corrected = correction.correct(&columns).unwrap();
                assert_eq!(corrected.mask, [true; 3], "{rejection:?}");
                let metrics = corrected.metrics.rejections[0];
                let shares = [
                    metrics.share_above,
                    metrics.share_below,
                    metrics.sequence_share_above,
                    metrics.sequence_share_below,
                    metrics.rejected_share,
                    metrics.sequence_rejected_share,
                ];
                assert_eq!(shares, [0.0; 6], "{rejection:?}");
            }
        }
    }
}

/// Three trajectories, the last fully masked; one token of the first is rejected.
#[test]
fn rejected_shares_are_of_trajectories_with_tokens_unless_asked() {
    let (old, offsets) = ([-1.0, -1.0, -1.0, -1.0], [0, 2, 3, 4]);
    let (mask, behaviour) = ([true, true, true, false], [-3.0, -1.0, -1.0, -1.0]);
    let columns = SamplerColumns { offsets: &offsets, mask: &mask, old: &old, behaviour: &behaviour };
    let rejection =
        Rejection { statistic: Statistic::K2, scope: RejectionScope::Token, min: None, max: Some(1.0) };
    for (count_masked_trajectories, share) in [(false, 0.5), (true, 1.0 / 3.0)] {
        let correction =
            Correction { rejections: vec![rejection], count_masked_trajectories, ..Correction::default() };
        let corrected = correction.correct(&columns).unwrap();
        assert_eq!(corrected.mask, [false, true, true, false]);
        assert_eq!(corrected.metrics.sequence_rejected_share, share);
        assert_eq!(corrected.metrics.rejected_share, 1.0 / 3.0);
    }
}

/// Log-ratios of ln(1/2) and 0, with only an upper bound: nothing is outside, and the mean weight is 3/4.
#[test]
fn without_a_lower_bound_nothing_is_too_small() {
    let (old, behaviour, offsets) = ([-2_f64.ln(), 0.0], [0.0; 2], [0, 1, 2]);
    let columns = SamplerColumns { offsets: &offsets, mask: &[true; 2], old: &old, behaviour: &behaviour };
    for level in [CorrectionLevel::Token, CorrectionLevel::Sequence] {
        let importance = ImportanceWeights {
            level,
            outside: OutsideBounds::Mask,
            min: None,
            max: Some(1.5),
            batch_normalize: true,
        };
        let correction =
            Correction { importance: Some(importance), log_ratio_limit: Some(0.9), ..Correction::default() };
        let corrected = correction.correct(&columns).unwrap();
        let weights = corrected.weights.unwrap();
        assert!((weights[0] - 2.0 / 3.0).abs() < 1e-15 && (weights[1] - 4.0 / 3.0).abs() < 1e-15);
        let metrics = corrected.metrics.importance.unwrap();
        assert!((metrics.normalisation.unwrap() - 0.75).abs() < 1e-15);
        assert_eq!(metrics.masked_share, Some(0.0));
    }
}
