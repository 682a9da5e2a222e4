use std::collections::BTreeMap;

use proptest::prelude::*;
use tamis_golden::{cases, numbers};

use super::*;
use crate::group::{FinishReason, Group, GroupId, PolicyVersion, PromptId, Score, Trajectory};

const SCALE: Option<OutcomeScale> = Some(OutcomeScale { wrong: 0.0, correct: 1.0 });

fn judge(filter: &dyn Filter, values: &[f64]) -> &'static str {
    filter.judge(&[GroupStatistics::of(values, SCALE)], SCALE)[0].name()
}

fn variance(values: &[f64]) -> Verdict {
    Variance::default().judge_one(&GroupStatistics::of(values, SCALE), SCALE)
}

#[test]
fn verdicts_of_the_variance_filter() {
    let nan = f64::NAN;
    for (values, verdict) in [
        (&[1.0; 8][..], "all_correct"),
        (&[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0], "kept"),
        (&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0], "kept"),
        (&[0.0; 8], "all_wrong"),
        (&[-1.0, -1.0], "all_wrong"),
        (&[0.5, 0.5], "uniform"),
        (&[2.0, 2.0], "all_correct"),
        (&[0.0, -0.0], "all_wrong"),
        (&[0.0], "kept"),
        (&[nan, 1.0, 0.0], "kept"),
        // Not a zero: two ones and an unscored member count as all correct.
        (&[nan, 1.0, 1.0], "all_correct"),
        (&[nan, 1.0], "unscored"),
        (&[nan, nan], "unscored"),
        (&[nan], "unscored"),
        (&[], "unscored"),
        (&[f64::INFINITY, 1.0, 0.0], "kept"),
        (&[f64::INFINITY, 0.0], "unscored"),
    ] {
        assert_eq!(judge(&Variance::default(), values), verdict, "{values:?}");
    }
    // Five of eight, and seven of eight.
    for (values, variance) in [
        ([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0], 15.0_f64),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0], 7.0),
    ] {
        assert!((GroupStatistics::of(&values, SCALE).std - variance.sqrt() / 8.0).abs() < 1e-15);
    }
    let length = GroupStatistics::of(&[7.0, 7.0], SCALE);
    let uniform = Variance::default().judge_one(&length, Metric::Length.outcome_scale());
    assert_eq!(uniform, Verdict::Dropped(DropReason::Uniform));
    let drop = Variance { tolerance: 0.0, singleton: Singleton::Drop };
    assert_eq!(judge(&drop, &[1.0]), "singleton");
    let tolerant = Variance { tolerance: 0.25, singleton: Singleton::Keep };
    assert_eq!((judge(&tolerant, &[0.5, 0.75]), judge(&tolerant, &[0.5, 0.7501])), ("uniform", "kept"));
}

#[test]
fn mean_ranges() {
    for (low, high, bounds, values, verdict) in [
        // EasyR1's window is open on both sides.
        (0.25, 0.75, Bounds::Open, &[1.0, 0.0, 0.0, 0.0][..], "below_range"),
        (0.25, 0.75, Bounds::Closed, &[1.0, 0.0, 0.0, 0.0], "kept"),
        (0.25, 0.75, Bounds::Open, &[1.0, 1.0, 1.0, 0.0], "above_range"),
        (0.25, 0.75, Bounds::Closed, &[1.0, 1.0, 1.0, 0.0], "kept"),
        (0.01, 0.99, Bounds::Open, &[1.0; 4], "all_correct"),
        (0.01, 0.99, Bounds::Open, &[0.0; 4], "all_wrong"),
        // All wrong but formatted: the mean window does not detect that the group is uniform.
        (0.01, 0.99, Bounds::Open, &[0.1; 4], "kept"),
        (0.2, 0.8, Bounds::Closed, &[0.5], "kept"),
        (0.0, 1.0, Bounds::Open, &[f64::NAN, 0.5], "unscored"),
    ] {
        assert_eq!(
            judge(&MeanRange { low, high, bounds }, values),
            verdict,
            "{low} {high} {bounds:?} {values:?}"
        );
    }
}

#[test]
fn a_range_of_means_holds_something() {
    let range = |low, high, ends| MeanRange { low, high, bounds: ends }.check().unwrap_err().to_string();
    insta::assert_snapshot!(range(0.5, 0.5, Bounds::Open), @"no group mean lies within the bounds of the mean_range filter, (0.5, 0.5)");
    insta::assert_snapshot!(range(0.8, 0.2, Bounds::Closed), @"no group mean lies within the bounds of the mean_range filter, [0.8, 0.2]");
    assert!(MeanRange { low: 0.5, high: 0.5, bounds: Bounds::Closed }.check().is_ok());
    assert!(MeanRange { low: -1e300, high: 0.9, bounds: Bounds::Open }.check().is_ok());
    let read: GroupFilter =
        serde_json::from_str(r#"{"kind": "mean_range", "low": 0.2, "high": 0.8}"#).unwrap();
    assert_eq!(
        (read, read.check()),
        (GroupFilter::MeanRange(MeanRange { low: 0.2, high: 0.8, bounds: Bounds::Open }), Ok(()))
    );
}

#[test]
fn some_bounds_keep_no_group_of_zeros_and_ones() {
    let range = |low, high, bounds| GroupFilter::MeanRange(MeanRange { low, high, bounds });
    for (filter, sizes) in [
        // Between 0 and 1 there is no mean of one member.
        (range(0.0, 1.0, Bounds::Open), vec![2, 3, 4, 5, 6, 7, 8]),
        (range(0.0, 1.0, Bounds::Closed), (1..=8).collect()),
        // 1/2 of two scored members of three.
        (range(0.4, 0.6, Bounds::Open), (2..=8).collect()),
        (range(0.9, 0.99, Bounds::Open), vec![]),
        (range(0.8, 0.9, Bounds::Open), vec![6, 7, 8]),
        (range(1.5, 2.0, Bounds::Closed), vec![]),
        (GroupFilter::Variance(Variance::default()), (1..=8).collect()),
        (GroupFilter::Variance(Variance { tolerance: 1.0, singleton: Singleton::Drop }), vec![]),
    ] {
        let kept: Vec<usize> = (1..=8).filter(|&size| filter.may_keep_binary(size)).collect();
        assert_eq!(kept, sizes, "{filter:?}");
        assert!(filter.may_keep_binary(GroupFilter::LARGEST_TRIED + 1));
    }
}

#[test]
fn offsets_are_checked() {
    let judge = |offsets: &[usize]| {
        judge_columns(&Variance::default(), SCALE, &[1.0, 0.0, 1.0], offsets).unwrap_err().to_string()
    };
    insta::assert_snapshot!(judge(&[0, 2]), @"group offsets must begin at 0 and end at the 3 values there are, got Some(0) to Some(2)");
    insta::assert_snapshot!(judge(&[]), @"group offsets must begin at 0 and end at the 3 values there are, got None to None");
    insta::assert_snapshot!(judge(&[0, 5, 3]), @"group 0 ends at 5, but it must lie between 0 and the 3 values there are");
    insta::assert_snapshot!(judge(&[0, 2, 1, 3]), @"group 1 ends at 1, but it must lie between 2 and the 3 values there are");
    assert_eq!(judge_columns(&Variance::default(), SCALE, &[], &[0]).unwrap(), (vec![], vec![]));
}

#[test]
fn sums_beyond_the_range_of_f64_still_have_a_mean() {
    let group = GroupStatistics::of(&[f64::MAX, f64::MAX / 2.0], SCALE);
    assert_eq!(group.mean, f64::MAX / 2.0 + f64::MAX / 4.0);
    assert_eq!((group.min, group.max, group.num_correct), (f64::MAX / 2.0, f64::MAX, Some(2)));
    assert!(Variance::default().judge_one(&group, SCALE).is_kept());
    // Their squares are beyond f64 too.
    assert_eq!(GroupStatistics::of(&[-1e300, 1e300], SCALE).std, 1e300);
    let uniform = GroupStatistics::of(&[f64::MAX, f64::NAN, f64::MAX, f64::MAX], SCALE);
    assert_eq!((uniform.mean, uniform.std, uniform.num_scored, uniform.size), (f64::MAX, 0.0, 3, 4));
    assert_eq!(Variance::default().judge_one(&uniform, SCALE), Verdict::Dropped(DropReason::AllCorrect));
}

/// numpy's rule and ours on every case of the reference file: they differ exactly if numpy considers equal
/// members different.
#[test]
fn reference_groups() {
    let mut differing = Vec::new();
    let mut compared = 0;
    for case in cases("verl_filter_groups") {
        let name = case["name"].as_str().unwrap_or("?").to_owned();
        let (inputs, outputs) = (&case["inputs"], &case["outputs"]);
        let groups: Vec<Vec<f64>> = if inputs["values"].is_array() {
            vec![numbers(&inputs["values"])]
        } else {
            let value = inputs["value"].as_f64().unwrap();
            inputs["sizes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| vec![value; n.as_u64().unwrap() as usize])
                .collect()
        };
        let list = |key: &str| match &outputs[key] {
            serde_json::Value::Array(items) => items.clone(),
            single => vec![single.clone()],
        };
        let answers = list("np_std").into_iter().zip(list("recipe_keep")).zip(list("v1_evict"));
        for (values, ((np_std, keep), evict)) in groups.iter().zip(answers) {
            compared += 1;
            // Its two rules differ only if a member is not a number: the recipe drops the group, the replay
            // buffer keeps it.
            let is_unscored = values.iter().any(|value| value.is_nan());
            assert_eq!(keep.as_bool() == evict.as_bool(), is_unscored, "{name}: the replay buffer's rule");
            // If a case has uniform groups, the reference does not state it.
            if let Some(equal) = outputs["max_eq_min"].as_bool() {
                assert_eq!(
                    equal,
                    values.iter().all(|value| *value == values[0]),
                    "{name}: members are equal"
                );
            }
            let group = GroupStatistics::of(values, SCALE);
            let np_std = np_std.as_f64().unwrap_or(f64::NAN);
            let keep = keep.as_bool().unwrap();
            let kept = Variance::default().judge_one(&group, SCALE).is_kept();
            if kept == keep {
                assert!(
                    (group.std - np_std).abs() <= 1e-12 * np_std.abs() + 1e-15,
                    "{name}: {group:?} {np_std}"
                );
                continue;
            }
            let uniform = values.windows(2).all(|pair| pair[0] == pair[1]);
            let scored = values.iter().filter(|value| value.is_finite()).count();
            if scored == values.len() {
                assert!(keep && uniform && np_std > 0.0 && np_std < 1e-12, "{name}: {values:?}");
                differing.push((name.clone(), values.len()));
            } else {
                println!(
                    "{name}: a group with unscored members is judged by the scored ones, the recipe drops it"
                );
            }
        }
    }
    assert!(compared > 0);
    println!("of {compared} groups, numpy's rule keeps these uniform ones: {differing:?}");
}

fn trajectory(reward: f64, scores: &[(&str, f64)], loss_mask: &[bool]) -> Trajectory {
    Trajectory {
        episode: None,
        sample_index: 0,
        text: String::new(),
        token_ids: vec![0; loss_mask.len()],
        logprobs: vec![0.0; loss_mask.len()],
        entropy: None,
        loss_mask: loss_mask.to_vec(),
        finish_reason: FinishReason::Stop,
        versions: (PolicyVersion(0), PolicyVersion(0)),
        scores: scores
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Score::of(*value)))
            .collect::<BTreeMap<_, _>>(),
        reward,
    }
}

fn group(id: u64, trajectories: Vec<Trajectory>) -> Group {
    Group {
        id: GroupId(id),
        prompt: PromptId(id),
        epoch: 0,
        dispatched: PolicyVersion(0),
        prompt_token_ids: vec![],
        images: Vec::new(),
        trajectories,
    }
}

/// Verdicts of the variance filter on groups of two.
fn verdicts(
    metric: &Metric,
    groups: &[Group],
    extra: &ExtraColumns<'_>,
) -> Result<Vec<&'static str>, MetricError> {
    let values = metric.values(groups, extra)?;
    let (verdicts, _) =
        judge_columns(&Variance::default(), metric.outcome_scale(), &values, &[0, 2, 4, 6]).unwrap();
    Ok(verdicts.iter().map(|verdict| verdict.name()).collect())
}

#[test]
fn groups_are_judged_by_the_metric_of_their_members() {
    let groups = [
        group(
            0,
            vec![trajectory(0.9, &[("acc", 1.0)], &[true, false]), trajectory(0.8, &[("acc", 1.0)], &[true])],
        ),
        group(1, vec![trajectory(0.9, &[("acc", 1.0)], &[true]), trajectory(0.9, &[("acc", 0.0)], &[true])]),
        group(2, vec![trajectory(0.9, &[], &[true]), trajectory(0.9, &[("acc", 0.0)], &[true])]),
    ];
    let judge = |metric: &str, extra: &ExtraColumns<'_>| -> Result<Vec<&'static str>, MetricError> {
        verdicts(&Metric::from(metric), &groups, extra)
    };
    assert_eq!(judge("acc", &ExtraColumns::NONE).unwrap(), ["all_correct", "kept", "unscored"]);
    // The shaped reward keeps a group whose members are all correct, and drops one whose outcomes have
    // contrast.
    assert_eq!(judge("seq_reward", &ExtraColumns::NONE).unwrap(), ["kept", "uniform", "uniform"]);
    assert_eq!(judge("seq_final_reward", &ExtraColumns::NONE).unwrap(), ["kept", "uniform", "uniform"]);
    assert_eq!(judge("length", &ExtraColumns::NONE).unwrap(), ["uniform", "uniform", "uniform"]);
    let final_reward = [0.5, 0.5, 0.1, 0.2, 0.3, 0.4];
    let extra =
        ExtraColumns { final_reward: FinalReward::Column(&final_reward), entropy: Some(&final_reward[..5]) };
    assert_eq!(judge("token_level_rewards", &extra).unwrap(), ["uniform", "kept", "kept"]);
    insta::assert_snapshot!(judge("entropy", &extra).unwrap_err(), @"column `entropy` has 5 numbers for 6 trajectories");
    let mut printed = groups.clone();
    for (i, trajectory) in printed.iter_mut().flat_map(|group| &mut group.trajectories).enumerate() {
        trajectory.entropy = Some([0.5, 0.5, 0.1, 0.2, 0.3, 0.4][i]);
    }
    let judged = verdicts(&Metric::Entropy, &printed, &ExtraColumns::NONE).unwrap();
    assert_eq!(judged, ["uniform", "kept", "kept"]);
    insta::assert_snapshot!(judge("entropy", &ExtraColumns::NONE).unwrap_err(), @"metric `entropy` needs token entropies, which this run does not compute; it has `seq_reward`, `seq_final_reward`, `token_level_rewards`, `length`");
    // Nothing was generated, so nothing is missing.
    assert_eq!(Metric::Entropy.values(&[], &ExtraColumns::NONE), Ok(vec![]));
}

#[test]
fn metrics_are_checked_before_anything_is_generated() {
    let of = |scores: &[&str], entropy| AvailableMetrics {
        scores: scores.iter().map(|&score| score.to_owned()).collect(),
        entropy,
    };
    let available = of(&["acc", "format", "length"], false);
    for available in [&available, &of(&["acc", "length"], true)] {
        for name in available.names() {
            assert_eq!(Metric::from(name.as_str()).check(available), Ok(()), "{name}");
            assert_eq!(Metric::from(name.as_str()).to_string(), name);
        }
    }
    let check = |name: &str| Metric::from(name).check(&available);
    assert_eq!(Metric::from("scores.length"), Metric::Score("length".to_owned()));
    insta::assert_snapshot!(check("formta").unwrap_err(), @"there is no metric `formta`; this run has `acc`, `format`, `scores.length`, `seq_reward`, `seq_final_reward`, `token_level_rewards`, `length` (did you mean `format`?)");
    insta::assert_snapshot!(check("q").unwrap_err(), @"there is no metric `q`; this run has `acc`, `format`, `scores.length`, `seq_reward`, `seq_final_reward`, `token_level_rewards`, `length`");
    insta::assert_snapshot!(check("entropy").unwrap_err(), @"metric `entropy` needs token entropies, which this run does not compute; it has `acc`, `format`, `scores.length`, `seq_reward`, `seq_final_reward`, `token_level_rewards`, `length`");
    assert_eq!(Metric::default_of(&available), Ok(Metric::Score("acc".to_owned())));
    assert_eq!(Metric::default_of(&of(&["score"], true)), Ok(Metric::Score("score".to_owned())));
    let none = of(&["format"], true);
    insta::assert_snapshot!(Metric::default_of(&none).unwrap_err(), @"the filter names no metric, and the rewards provide neither `acc` nor `score`; set `filter.metric` to one of `format`, `seq_reward`, `seq_final_reward`, `token_level_rewards`, `length`, `entropy`");
}

#[test]
fn the_enumeration_hands_on_pool_and_members() {
    let pool = Pool { score: PoolScore::Mean, ddof: 1, ..Pool::default() };
    let pooled = [
        GroupFilter::TopP(TopP { pool, ..TopP::of(0.9) }),
        GroupFilter::TopK(TopK { k: Some(1), fraction: None, pool }),
        GroupFilter::MinP(MinP { p: 0.5, pool }),
        GroupFilter::Percentile(Percentile { pool, ..Percentile::default() }),
    ];
    for filter in pooled {
        assert_eq!((filter.pool(), filter.members(&[1.0, 0.0])), (Some(pool), None), "{filter:?}");
    }
    let within = GroupFilter::WithinGroup(WithinGroup { k: Some(2), fraction: None, include_zero: true });
    let range = GroupFilter::MeanRange(MeanRange { low: 0.0, high: 1.0, bounds: Bounds::Open });
    for filter in [GroupFilter::Variance(Variance::default()), range, within] {
        assert_eq!(filter.pool(), None, "{filter:?}");
    }
    assert_eq!(within.members(&[0.5, 0.0, 1.0]), Some(vec![false, true, true]));
}

#[test]
fn names_are_what_is_written() {
    assert_eq!(Verdict::Kept.to_string(), "kept");
    assert_eq!(Verdict::Dropped(DropReason::ZeroScore).to_string(), "zero_score");
    assert_eq!(DropReason::AllWrong.to_string(), "all_wrong");
    assert_eq!(PoolScore::Deviation.to_string(), "deviation");
    for name in ["acc", "seq_final_reward", "scores.length", "entropy"] {
        assert_eq!(serde_json::to_value(Metric::from(name)).unwrap(), name);
    }
}

#[test]
fn metrics_that_mix_other_things_into_the_outcome() {
    let shaped = |name: &str| Metric::from(name).is_shaped();
    assert!(shaped("seq_reward") && shaped("seq_final_reward") && shaped("token_level_rewards"));
    assert!(!shaped("acc") && !shaped("length") && !shaped("entropy") && !shaped("scores.seq_reward"));
}

#[test]
fn a_group_without_scored_members_has_no_numbers() {
    for values in [&[][..], &[f64::NAN, f64::INFINITY]] {
        let group = GroupStatistics::of(values, SCALE);
        assert_eq!((group.size, group.num_scored, group.num_correct), (values.len(), 0, Some(0)));
        assert!(
            [group.mean, group.std, group.min, group.max].iter().all(|number| number.is_nan()),
            "{group:?}"
        );
        assert_eq!(GroupStatistics::of(values, None).num_correct, None);
    }
}

/// Squares beyond f64, at either end of the range: 0, 0 and x have a deviation of sqrt(2)/3 of x.
#[test]
fn enormous_deviations() {
    for x in [1e200, -1e200, f64::MAX, f64::MIN] {
        let group = GroupStatistics::of(&[0.0, 0.0, x], None);
        let expected = 2.0_f64.sqrt() / 3.0 * x.abs();
        assert!((group.std / expected - 1.0).abs() < 1e-15, "{x}: {group:?}");
        let pair = GroupStatistics::of(&[x, 0.0], None);
        assert_eq!((pair.mean, pair.std), (x / 2.0, x.abs() / 2.0));
    }
}

#[test]
fn zeros_of_either_sign_are_equal() {
    let filter = WithinGroup { k: Some(2), fraction: None, include_zero: true };
    assert_eq!(filter.members(&[0.0, -0.0, 5.0]), Some(vec![false, true, true]));
    assert_eq!(filter.members(&[-0.0, 0.0, 5.0]), Some(vec![false, true, true]));
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(
        prop_oneof![4 => Just(0.0), 4 => Just(1.0), 1 => Just(0.1), 1 => -3.0..3.0, 1 => Just(f64::NAN)],
        0..10,
    )
}

/// Filters of every kind, and of every setting that makes a difference.
fn of_every_kind() -> Vec<GroupFilter> {
    let pool = Pool { include_zero: false, ..Pool::default() };
    let filters = vec![
        GroupFilter::Variance(Variance::default()),
        GroupFilter::Variance(Variance { tolerance: 0.5, singleton: Singleton::Drop }),
        GroupFilter::MeanRange(MeanRange { low: 0.1, high: 0.9, bounds: Bounds::Closed }),
        GroupFilter::TopP(TopP { pool, ..TopP::of(0.7) }),
        GroupFilter::TopK(TopK { k: Some(3), ..TopK::default() }),
        GroupFilter::TopK(TopK { fraction: Some(0.3), pool, ..TopK::default() }),
        GroupFilter::MinP(MinP { p: 0.8, pool: Pool { score: PoolScore::Mean, ..Pool::default() } }),
        GroupFilter::Percentile(Percentile { low: 0.2, high: 0.6, ..Percentile::default() }),
        GroupFilter::WithinGroup(WithinGroup { k: Some(2), ..WithinGroup::default() }),
        GroupFilter::WithinGroup(WithinGroup { k: Some(2), include_zero: false, ..WithinGroup::default() }),
    ];
    let kinds: std::collections::BTreeSet<&str> = filters.iter().map(GroupFilter::as_str).collect();
    assert_eq!(kinds.len(), GroupFilter::NAMES.len(), "a kind of filter is missing here");
    filters
}

proptest! {
    #[test]
    fn a_group_is_kept_whatever_the_order_shift_and_scale(mut values in values(), shift in -4i32..4, scale in 1i32..4) {
        let verdict = variance(&values);
        values.reverse();
        prop_assert_eq!(variance(&values), verdict);
        let moved: Vec<f64> = values.iter().map(|value| value * f64::from(scale)).collect();
        prop_assert_eq!(variance(&moved).is_kept(), verdict.is_kept());
        let distinct = values.iter().filter(|value| value.is_finite()).any(|a| values.iter().any(|b| b.is_finite() && a != b));
        prop_assert_eq!(verdict.is_kept(), distinct || (values.len() == 1 && values[0].is_finite()));
        if values.iter().all(|value| value.fract() == 0.0) {
            let shifted: Vec<f64> = values.iter().map(|value| value + f64::from(shift)).collect();
            prop_assert_eq!(variance(&shifted).is_kept(), verdict.is_kept());
        }
    }

    #[test]
    fn point_filters_judge_each_group_alone(groups in prop::collection::vec(values(), 0..8)) {
        let flat: Vec<f64> = groups.concat();
        let mut offsets = vec![0];
        for group in &groups {
            offsets.push(offsets.last().unwrap() + group.len());
        }
        let range = GroupFilter::MeanRange(MeanRange { low: 0.1, high: 0.9, bounds: Bounds::Closed });
        for filter in [GroupFilter::Variance(Variance::default()), range] {
            let filter: &dyn Filter = &*filter;
            prop_assert_eq!(filter.scope(), Scope::Point);
            let (together, statistics) = judge_columns(filter, SCALE, &flat, &offsets).unwrap();
            prop_assert_eq!(together.len(), groups.len());
            for (i, group) in groups.iter().enumerate() {
                let (alone, _) = judge_columns(filter, SCALE, group, &[0, group.len()]).unwrap();
                prop_assert_eq!(alone[0], together[i]);
                prop_assert_eq!(statistics[i].size, group.len());
            }
            // Idempotent: kept groups are kept when judged again.
            let kept: Vec<&Vec<f64>> = groups.iter().zip(&together).filter(|(_, verdict)| verdict.is_kept()).map(|(group, _)| group).collect();
            for group in kept {
                prop_assert!(filter.judge(&[GroupStatistics::of(group, SCALE)], SCALE)[0].is_kept());
            }
        }
    }

    #[test]
    fn flags_alone_are_those_of_the_verdicts(groups in prop::collection::vec(values(), 0..40), repeats in 1_usize..60) {
        // More groups than the number judged at a time.
        let groups: Vec<Vec<f64>> = std::iter::repeat_n(groups, repeats).flatten().collect();
        let mut offsets = vec![0];
        offsets.extend(groups.iter().scan(0, |end, group| { *end += group.len(); Some(*end) }));
        for filter in of_every_kind() {
            let (verdicts, _) = judge_columns(&*filter, SCALE, &groups.concat(), &offsets).unwrap();
            let mut keeping = Keeping::new(&*filter, groups.len());
            for group in &groups {
                keeping.push(group);
            }
            let expected: Vec<bool> = verdicts.into_iter().map(Verdict::is_kept).collect();
            prop_assert_eq!(keeping.finish(), expected, "{:?}", filter);
        }
    }

    #[test]
    fn statistics_stay_in_their_bounds(values in values()) {
        let group = GroupStatistics::of(&values, SCALE);
        prop_assert!(group.num_scored <= group.size);
        if group.num_scored > 0 {
            prop_assert!(group.min <= group.max);
            prop_assert!(group.mean >= group.min - 1e-12 && group.mean <= group.max + 1e-12);
            prop_assert!(group.std >= 0.0 && group.std <= (group.max - group.min) / 2.0 + 1e-12);
            prop_assert_eq!(group.std == 0.0, group.min == group.max);
        }
    }
}
