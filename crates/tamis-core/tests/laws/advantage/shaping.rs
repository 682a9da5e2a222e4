//! Laws of shaping.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::advantage::shaping::{
    ClipAdvantage, FilterLossScaling, KeepNegRatio, KeepPosRatio, LengthWeight, LossScaling, RoundCounts,
    Shaped, Shaping, ShapingBatch, SoftReweight, shape,
};
use tamis_core::advantage::{AdvantageBatch, Advantages};
use tamis_core::catalogue::{Family, find};
use tamis_core::group::GroupId;
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};

const GROUPS: RoundCounts = RoundCounts { kept: 1, generated: 4 };

fn on<'a>(rewards: &'a Ragged<f64>, lengths: Option<&'a [usize]>) -> ShapingBatch<'a> {
    ShapingBatch {
        batch: AdvantageBatch { lengths, ..AdvantageBatch::of_rewards(rewards) },
        groups: GROUPS,
        key: Key::new(5, Purpose::Task),
        group_ids: None,
    }
}

/// Advantages that are also used as rewards.
fn advantages() -> impl Strategy<Value = Vec<Vec<f64>>> {
    let advantage = prop_oneof![(-3..=3_i32).prop_map(f64::from), -2.0..2.0_f64];
    vec(vec(advantage, 0..9), 1..5)
}

fn run(shapings: &[Shaping], rows: &[Vec<f64>], ids: Option<&[GroupId]>) -> Shaped {
    let rewards = Ragged::from_rows(rows);
    let batch = ShapingBatch { group_ids: ids, ..on(&rewards, None) };
    shape(shapings, Advantages::PerTrajectory(rewards.clone()), &batch).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn ratios_keep_the_most_extreme_and_exactly_so_many(rows in advantages(), ratio in 0.0..=1.0_f64, positive: bool) {
        let shaping = if positive {
            Shaping::KeepPosRatio(KeepPosRatio { ratio })
        } else {
            Shaping::KeepNegRatio(KeepNegRatio { ratio })
        };
        let sign = if positive { 1.0 } else { -1.0 };
        let shaped = run(&[shaping], &rows, None);
        let kept = shaped.kept.unwrap();
        let mut after = shaped.advantages.values().iter();
        for (row, kept_g) in rows.iter().zip(kept.rows()) {
            let extreme = |value: &f64| sign * value > 0.0;
            let n = row.iter().filter(|value| extreme(value)).count();
            let num_kept = row.iter().zip(kept_g).filter(|(value, kept)| extreme(value) && **kept).count();
            let expected = if ratio == 0.0 || n == 0 { 0 } else { ((ratio * n as f64 + 1e-9) as usize).max(1) };
            prop_assert_eq!(num_kept, expected);
            for (i, (value, kept)) in row.iter().zip(kept_g).enumerate() {
                let shaped = *after.next().unwrap();
                prop_assert_eq!(shaped, if *kept { *value } else { 0.0 });
                prop_assert!(*kept || extreme(value));
                // None is left out in favour of a milder one.
                let milder_kept = row.iter().zip(kept_g).enumerate().any(|(j, (other, kept))| {
                    j != i && *kept && extreme(other) && sign * other < sign * value
                });
                prop_assert!(*kept || !milder_kept);
            }
        }
    }

    #[test]
    fn ratios_grow_monotonically_and_do_not_depend_on_other_groups(rows in advantages(), low in 0.0..=1.0_f64, more in 0.0..=1.0_f64) {
        let ids: Vec<GroupId> = (0..rows.len() as u64).map(|id| GroupId(id + 100)).collect();
        let kept = |ratio: f64, rows: &[Vec<f64>], ids: &[GroupId]| {
            run(&[Shaping::KeepNegRatio(KeepNegRatio { ratio })], rows, Some(ids)).kept.unwrap()
        };
        let (few, many) = (kept(low, &rows, &ids), kept((low + more).min(1.0), &rows, &ids));
        prop_assert!(few.values().iter().zip(many.values()).all(|(few, many)| *many || !few));
        for (group, row) in rows.iter().enumerate() {
            let alone = kept(low, std::slice::from_ref(row), &ids[group..=group]);
            prop_assert_eq!(alone.row(0), few.row(group));
        }
    }

    #[test]
    fn clipping_is_idempotent_and_keeps_signs(rows in advantages(), low in -2.0..=0.0_f64, high in 0.0..=2.0_f64) {
        let clip = Shaping::ClipAdvantage(ClipAdvantage { low: Some(low), high: Some(high) });
        let once = run(&[clip], &rows, None);
        prop_assert_eq!(&once, &run(&[clip, clip], &rows, None));
        for (before, after) in rows.iter().flatten().zip(once.advantages.values()) {
            prop_assert!((low..=high).contains(after) && before * after >= 0.0);
        }
    }

    #[test]
    fn soft_weights_are_at_most_one_and_shared_by_a_group(rows in advantages()) {
        let shaped = run(&[Shaping::SoftReweight(SoftReweight { epsilon: 0.0, ddof: 1 })], &rows, None);
        let mut after = shaped.advantages.values().iter();
        for row in &rows {
            let weights: Vec<f64> =
                row.iter().map(|before| (before, after.next().unwrap())).filter(|(before, _)| **before != 0.0).map(|(before, after)| after / before).collect();
            prop_assert!(weights.iter().all(|weight| (0.0..=1.0 + 1e-12).contains(weight)));
            prop_assert!(weights.windows(2).all(|pair| (pair[0] - pair[1]).abs() < 1e-12));
        }
    }
}

#[test]
fn equally_bad_ones_are_drawn_by_key_alone() {
    let rows = vec![vec![-1.0; 8]];
    let kept = |seed: u64| {
        let rewards = Ragged::from_rows(&rows);
        let batch = ShapingBatch { key: Key::new(seed, Purpose::Task), ..on(&rewards, None) };
        let shaping = Shaping::KeepNegRatio(KeepNegRatio { ratio: 0.5 });
        let shaped = shaping.apply(Shaped::of(Advantages::PerTrajectory(rewards.clone())), &batch).unwrap();
        shaped.kept.unwrap().values().to_vec()
    };
    assert_eq!(kept(1), kept(1));
    let chosen: Vec<Vec<bool>> = (0..20).map(kept).collect();
    assert!(chosen.iter().all(|kept| kept.iter().filter(|&&kept| kept).count() == 4));
    assert!(
        (0..8).all(|place| chosen.iter().any(|kept| kept[place]) && chosen.iter().any(|kept| !kept[place]))
    );
}

#[test]
fn by_hand() {
    // Sample deviations √2 and √2/2: weights 1 and 1/2.
    let rows = vec![vec![1.0, -1.0], vec![0.5, -0.5], vec![3.0]];
    let soft = run(&[Shaping::SoftReweight(SoftReweight { ddof: 1, epsilon: 0.0 })], &rows, None);
    assert_eq!(soft.advantages.values(), [1.0, -1.0, 0.25, -0.25, 0.0]);
    let expected = [
        ("train/soft_reweight_min", 0.0),
        ("train/soft_reweight_max", 1.0),
        ("train/soft_reweight_mean", 0.5),
    ];
    assert_eq!(soft.metrics, expected);
    // Mean length 4 over those that count; 2 over both.
    let four = (vec![1.0, 1.0, f64::NAN, 1.0], vec![2.0, 4.0 / 6.0, 0.0, 1.0]);
    let two = (vec![1.0, 1.0], vec![2.0, 2.0 / 3.0]);
    for (lengths, (row, expected)) in [(&[2, 6, 9, 0][..], &four), (&[2, 6, 9, 4], &four), (&[1, 3], &two)] {
        let ones = row.iter().map(|reward| if reward.is_nan() { 0.0 } else { 1.0 }).collect::<Vec<_>>();
        let shaped = Shaped::of(Advantages::PerTrajectory(Ragged::from_rows([ones])));
        let rewards = Ragged::from_rows([row]);
        let weighted = Shaping::LengthWeight(LengthWeight {}).apply(shaped, &on(&rewards, Some(lengths)));
        assert_eq!(weighted.unwrap().advantages.values(), expected);
    }
    let soft = |epsilon, rows: &[Vec<f64>]| {
        run(&[Shaping::SoftReweight(SoftReweight { ddof: 0, epsilon })], rows, None)
    };
    // Population deviations 1 and 1/2, over 1 + 1.
    let pairs = soft(1.0, &[vec![1.0, -1.0], vec![0.5, -0.5]]);
    assert_eq!(pairs.advantages.values(), [0.5, -0.5, 0.125, -0.125]);
    assert_eq!(pairs.metrics[1], ("train/soft_reweight_max", 0.5));
    let small = soft(0.0, &[vec![0.5, -0.5], vec![0.25, -0.25]]);
    assert_eq!(small.advantages.values(), [0.5, -0.5, 0.125, -0.125]);
    // Nothing deviates, and there is no division by 0.
    assert_eq!(soft(0.0, &[vec![1.0, 1.0]]).advantages.values(), [0.0, 0.0]);
    // The factor applies to the policy term; advantages stay unchanged.
    for (by, factor) in [(LossScaling::None, 1.0), (LossScaling::Linear, 0.25), (LossScaling::Sqrt, 0.5)] {
        let scaled = run(&[Shaping::FilterLossScaling(FilterLossScaling { by })], &rows, None);
        assert_eq!((scaled.policy_factor, scaled.advantages.values()[0]), (factor, 1.0));
    }
    let nothing = FilterLossScaling { by: LossScaling::Linear }.factor(RoundCounts { kept: 0, generated: 0 });
    assert_eq!(nothing, 1.0);
    // With advantages per token the sum over the trajectory decides, and its whole row is left out.
    let rewards = Ragged::from_rows([[0.0, 0.0]]);
    let shaping = Shaping::KeepNegRatio(KeepNegRatio { ratio: 0.5 });
    for (tokens, expected, kept) in [
        ([[-3.0, 1.0], [0.5, -0.75]], [-3.0, 1.0, 0.0, 0.0], [true, false]),
        ([[0.5, -0.75], [-3.0, 1.0]], [0.0, 0.0, -3.0, 1.0], [false, true]),
    ] {
        let per_token = Shaped::of(Advantages::PerToken(Ragged::from_rows(tokens)));
        let shaped = shaping.apply(per_token, &on(&rewards, None)).unwrap();
        assert_eq!((shaped.advantages.values(), shaped.kept.unwrap().values()), (&expected[..], &kept[..]));
    }
}

#[test]
fn every_shaping_has_its_entry_and_reads_its_configuration() {
    for shaping in Shaping::all() {
        let name = shaping.name();
        assert!(find(name).iter().any(|entry| entry.family == Family::Shaping && entry.name == name));
        let default: Shaping = serde_json::from_value(serde_json::json!({ "kind": name })).unwrap();
        assert_eq!((&default, shaping.as_str()), (&shaping, name));
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let rewards = Ragged::from_rows([[1.0, 0.0]]);
    let message = |shaping: Shaping, advantages: &Ragged<f64>| {
        let shaped = Shaped::of(Advantages::PerTrajectory(advantages.clone()));
        shaping.apply(shaped, &on(&rewards, None)).unwrap_err().to_string()
    };
    insta::assert_snapshot!(message(Shaping::LengthWeight(LengthWeight {}), &rewards), @"column `lengths` is missing; `length_weight` needs it: number of tokens trained on of each trajectory");
    insta::assert_snapshot!(message(Shaping::ClipAdvantage(ClipAdvantage { low: Some(1.0), high: None }), &rewards), @"advantage setting `low` is 1; expected a number of at most 0");
    insta::assert_snapshot!(message(Shaping::SoftReweight(SoftReweight::default()), &Ragged::from_rows([[1.0]])), @"advantages of 1 trajectories; expected 2");
}
