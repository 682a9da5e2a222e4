use proptest::prelude::*;

use super::*;

const SCALE: Option<OutcomeScale> = Some(OutcomeScale { wrong: 0.0, correct: 1.0 });

/// Groups of two whose population deviation is the given number.
fn spread(deviations: &[f64]) -> Vec<GroupStatistics> {
    deviations.iter().map(|std| GroupStatistics::of(&[-std, *std], None)).collect()
}

fn kept_of(verdicts: &[Verdict]) -> Vec<usize> {
    (0..verdicts.len()).filter(|i| verdicts[*i].is_kept()).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "filters are made where they are judged")]
fn kept(filter: impl Filter, deviations: &[f64]) -> Vec<usize> {
    kept_of(&filter.judge(&spread(deviations), None))
}

fn nucleus(p: f64) -> TopP {
    TopP { p, ..TopP::of(0.9) }
}

fn mass(p: f64, mass: Mass, slack: f64) -> TopP {
    TopP { p, mass, slack, ..TopP::of(0.9) }
}

fn without_zero(filter: TopP) -> TopP {
    TopP { pool: Pool { include_zero: false, ..filter.pool }, ..filter }
}

#[test]
fn the_originals_worked_cases() {
    assert_eq!(kept(nucleus(0.6), &[1.0, 1.0, 1.0]), [0, 1]);
    assert_eq!(kept(without_zero(nucleus(0.9)), &[10.0, 1.0, 0.0, 0.0]), [0]);
    assert_eq!(kept(without_zero(nucleus(0.9)), &[4.0, 2.0, 0.0, 0.0]), [0, 1]);
    assert_eq!(kept(without_zero(nucleus(0.6)), &[1.0, 1.0, 1.0, 0.0]), [0, 1]);
    let linear = |p| mass(p, Mass::Linear, 0.01);
    assert_eq!(kept(linear(0.6), &[4.0, 3.0, 2.0, 1.0]), [0, 1]);
    assert_eq!(kept(linear(0.9), &[0.0; 3]), [0; 0]);
    assert_eq!(kept(without_zero(linear(0.9)), &[10.0, 1.0, 0.0, 0.0]), [0]);
    assert_eq!(kept(without_zero(linear(0.9)), &[4.0, 2.0, 0.0, 0.0]), [0, 1]);
    assert_eq!(kept(without_zero(linear(0.9)), &[3.0, 1.0, 1.0, 0.0]), [0, 1, 2]);
    for mass_form in [Mass::Softmax, Mass::Linear, Mass::Variance] {
        assert_eq!(kept(mass(1.0, mass_form, 0.01), &[0.5, 0.0, 2.0]), [0, 1, 2]);
    }
    // By the mean of the reward, half of two groups: (10, 11) before (0, 5).
    let half =
        TopK { k: None, fraction: Some(0.5), pool: Pool { score: PoolScore::Mean, ..Pool::default() } };
    let groups = [GroupStatistics::of(&[10.0, 11.0], None), GroupStatistics::of(&[0.0, 5.0], None)];
    assert_eq!(kept_of(&half.judge(&groups, None)), [0]);
}

/// The number of groups out of eight that three forms keep at six shares, computed by hand for returns of a
/// game and for 0/1 outcomes.
#[test]
fn the_softmax_is_not_scale_invariant() {
    let game = [5.6, 4.4, 4.2, 1.5, 0.2, 0.1, 0.1, 0.0];
    let outcomes = [0.516, 0.507, 0.48, 0.40, 0.34, 0.25, 0.0, 0.0];
    let count = |form: Mass, slack: f64, deviations: &[f64]| {
        [0.5, 0.7, 0.85, 0.9, 0.95, 0.98].map(|p| kept(mass(p, form, slack), deviations).len())
    };
    assert_eq!(count(Mass::Softmax, 0.0, &game), [1, 2, 3, 3, 3, 4]);
    assert_eq!(count(Mass::Linear, 0.01, &game), [2, 3, 3, 4, 4, 5]);
    assert_eq!(count(Mass::Variance, 0.0, &game), [2, 2, 3, 3, 3, 4]);
    assert_eq!(count(Mass::Softmax, 0.0, &outcomes), [4, 5, 7, 7, 8, 8]);
    assert_eq!(count(Mass::Linear, 0.01, &outcomes), [3, 4, 5, 5, 6, 6]);
    // With a temperature of the size of a deviation the nucleus distinguishes outcomes.
    let cold = TopP { temperature: 0.1, ..nucleus(0.9) };
    assert_eq!(kept(cold, &outcomes).len(), 4);
    assert_eq!(kept(nucleus(0.9), &[1.0; 8]).len(), 8);
    // Nine of ten equal groups have nine tenths, whatever the rounding.
    assert_eq!(kept(nucleus(0.9), &[1.0; 10]).len(), 9);
    assert_eq!(kept(mass(0.9, Mass::Linear, 0.0), &[0.1; 10]).len(), 9);
}

#[test]
fn the_softmax_keeps_one_and_the_mass_forms_may_keep_none() {
    assert_eq!(kept(nucleus(1e-9), &[0.3, 0.2]), [0]);
    assert_eq!(kept(nucleus(0.9), &[0.0; 8]).len(), 8);
    for form in [Mass::Linear, Mass::Variance] {
        assert_eq!(kept(mass(0.9, form, 0.0), &[0.0; 8]), [0; 0]);
        // All of the mass, less the slack, is 0.
        assert_eq!(kept(mass(0.9, form, 0.02), &[0.01, 0.01]), [0; 0]);
        assert_eq!(kept(mass(1e-9, form, 0.0), &[0.3, 0.2]), [0]);
    }
    for form in [Mass::Softmax, Mass::Linear, Mass::Variance] {
        assert_eq!(kept(without_zero(mass(0.9, form, 0.0)), &[0.0; 8]), [0; 0]);
        assert_eq!(kept(mass(0.9, form, 0.0), &[]), [0; 0]);
    }
}

#[test]
fn the_smallest_are_preferred_where_asked() {
    let smallest = Pool { prefer: Prefer::Smallest, ..Pool::default() };
    let judge = |filter: GroupFilter| kept_of(&filter.judge(&spread(&[3.0, 0.0, 1.0, 2.0]), None));
    assert_eq!(judge(GroupFilter::TopK(TopK { k: Some(2), fraction: None, pool: smallest })), [1, 2]);
    // Weights 1, e^-1, e^-2, e^-3 of 1.553: 0.644, 0.881, 0.968.
    assert_eq!(judge(GroupFilter::TopP(TopP { p: 0.8, pool: smallest, ..TopP::of(0.9) })), [1, 2]);
    // The group without mass is passed over: 1 + 2 of 6.
    let linear = TopP { p: 0.5, mass: Mass::Linear, pool: smallest, ..TopP::of(0.9) };
    assert_eq!(judge(GroupFilter::TopP(linear)), [2, 3]);
    let above_zero = Pool { include_zero: false, ..smallest };
    assert_eq!(judge(GroupFilter::MinP(MinP { p: 0.5, pool: above_zero })), [2, 3]);
    assert_eq!(judge(GroupFilter::MinP(MinP { p: 0.5, pool: smallest })), [1]);
    let quarter = Percentile { low: 0.25, high: 0.5, pool: smallest };
    assert_eq!(judge(GroupFilter::Percentile(quarter)), [2]);
}

#[test]
fn counts_fractions_shares_and_bands() {
    let k = |k, fraction| TopK { k, fraction, pool: Pool::default() };
    let eight = [0.1, 0.8, 0.3, 0.5, 0.5, 0.2, 0.0, 0.7];
    assert_eq!(kept(k(Some(4), None), &eight), [1, 3, 4, 7]);
    assert_eq!(kept(k(Some(99), None), &eight).len(), 8);
    assert_eq!(kept(k(None, Some(0.5)), &eight), [1, 3, 4, 7]);
    assert_eq!(kept(k(None, Some(0.01)), &eight), [1]);
    // 0.29 of 100 is 28.999999999999996 in floating point.
    assert_eq!(kept(k(None, Some(0.29)), &[1.0; 100]).len(), 29);
    // A fraction is of all groups of the round, though only some compete.
    let nonzero = Pool { include_zero: false, ..Pool::default() };
    let half = TopK { k: None, fraction: Some(0.5), pool: nonzero };
    assert_eq!(kept(half, &[1.0, 0.0, 2.0, 0.0, 0.5, 0.0]), [0, 2, 4]);
    let min_p = |p| MinP { p, pool: Pool::default() };
    assert_eq!(kept(min_p(0.5), &eight), [1, 3, 4, 7]);
    assert_eq!(kept(min_p(0.8), &[0.5, 0.4, 0.39]), [0, 1]);
    assert_eq!(kept(min_p(0.0), &eight).len(), 8);
    assert_eq!(kept(min_p(1.0), &eight), [1]);
    assert_eq!(kept(min_p(0.5), &[0.0; 4]).len(), 4);
    let band = |low, high| Percentile { low, high, pool: Pool::default() };
    assert_eq!(kept(band(0.0, 0.25), &eight), [1, 7]);
    assert_eq!(kept(band(0.25, 0.5), &eight), [3, 4]);
    assert_eq!(kept(band(0.5, 0.75), &eight), [2, 5]);
    assert_eq!(kept(band(0.75, 1.0), &eight), [0, 6]);
    // Narrower than a group: the group at its start.
    assert_eq!(kept(band(0.3, 0.31), &eight), [3]);
    assert_eq!(kept(band(0.99, 1.0), &eight), [6]);
    assert_eq!(kept(band(0.3, 0.31), &[1.0]), [0]);
    assert_eq!(kept(band(0.0, 1.0), &[]), [0; 0]);
}

#[test]
fn negative_scores() {
    let by_mean = Pool { score: PoolScore::Mean, ..Pool::default() };
    let groups: Vec<GroupStatistics> = [-2.0, -3.0, -9.0, -1.0]
        .iter()
        .map(|mean| GroupStatistics::of(&[mean - 1.0, mean + 1.0], None))
        .collect();
    let judge = |filter: &dyn Filter| kept_of(&filter.judge(&groups, None));
    assert_eq!(judge(&TopK { k: Some(2), fraction: None, pool: by_mean }), [0, 3]);
    assert_eq!(judge(&MinP { p: 0.5, pool: by_mean }), [0, 3]);
    assert_eq!(judge(&TopP { p: 0.99, mass: Mass::Linear, pool: by_mean, ..TopP::of(0.9) }), [0; 0]);
    // e^0, e^-1, e^-2 of 1.504: 0.665, 0.909.
    assert_eq!(judge(&TopP { p: 0.9, pool: by_mean, ..TopP::of(0.9) }), [0, 3]);
    let smallest = Pool { prefer: Prefer::Smallest, ..by_mean };
    assert_eq!(judge(&MinP { p: 0.3, pool: smallest }), [1, 2]);
    let groups = [GroupStatistics::of(&[1.0, 1.0], None), GroupStatistics::of(&[-1.0, -1.0], None)];
    assert_eq!(kept_of(&MinP { p: 0.0, pool: by_mean }.judge(&groups, None)), [0, 1]);
}

#[test]
fn reasons_of_the_dropped() {
    let nan = f64::NAN;
    let column = [
        1.0, 1.0, 1.0, // all correct
        0.0, 0.0, 0.0, // all wrong
        0.5, 0.5, 0.5, // uniform
        1.0, nan, nan, // unscored
        1.0, 0.0, 0.0, // competes
        1.0, 0.0, 1.0, // competes
        1.0,
    ];
    let offsets = [0, 3, 6, 9, 12, 15, 18, 19];
    let names = |pool: Pool| -> Vec<&'static str> {
        let filter = TopK { k: Some(1), fraction: None, pool };
        let (verdicts, _) = judge_columns(&filter, SCALE, &column, &offsets).unwrap();
        verdicts.iter().map(|verdict| verdict.name()).collect()
    };
    let out = "outside_pool";
    let strict = Pool { include_zero: false, ..Pool::default() };
    assert_eq!(names(strict), ["all_correct", "all_wrong", "uniform", "unscored", "kept", out, "singleton"]);
    // They compete, and are left out because they are uniform.
    assert_eq!(names(Pool::default()), names(strict));
    let smallest = Pool { prefer: Prefer::Smallest, ..Pool::default() };
    assert_eq!(names(smallest), ["kept", "all_wrong", "uniform", "unscored", out, out, "singleton"]);
    let by_mean = Pool { score: PoolScore::Mean, ..strict };
    assert_eq!(names(by_mean), ["kept", "all_wrong", out, "unscored", out, out, out]);
    // A group with a mean of 0 and members that differ is not uniform.
    let groups = [GroupStatistics::of(&[-1.0, 1.0], SCALE)];
    let verdicts = TopK { k: Some(1), fraction: None, pool: by_mean }.judge(&groups, SCALE);
    assert_eq!(verdicts, [Verdict::Dropped(DropReason::ZeroScore)]);
}

/// With members in another order a deviation differs in its last digits. The groups still tie, and dispatch
/// order decides.
#[test]
fn rounding_does_not_decide_ties() {
    let members = [0.1, 0.7, 0.3, 0.7, 0.2, 0.9, 0.4];
    let mut groups = Vec::new();
    let mut distinct = std::collections::BTreeSet::new();
    for turn in 0..members.len() {
        let mut turned = members;
        turned.rotate_left(turn);
        let group = GroupStatistics::of(&turned, None);
        distinct.insert(group.std.to_bits());
        groups.push(group);
    }
    assert!(distinct.len() > 1, "the case shows nothing where all orders add up alike");
    for prefer in [Prefer::Largest, Prefer::Smallest] {
        let filter = TopK { k: Some(3), fraction: None, pool: Pool { prefer, ..Pool::default() } };
        assert_eq!(kept_of(&filter.judge(&groups, None)), [0, 1, 2]);
    }
}

#[test]
fn enormous_scores_are_still_ranked() {
    let groups: Vec<GroupStatistics> =
        [1e308, f64::MAX, 1e-300].iter().map(|std| GroupStatistics::of(&[-std, *std], None)).collect();
    for form in [Mass::Softmax, Mass::Linear, Mass::Variance] {
        assert_eq!(kept_of(&mass(0.5, form, 0.0).judge(&groups, None)), [1], "{form:?}");
    }
    let by_variance = TopP { mass: Mass::Linear, ..nucleus(0.5) };
    let pool = Pool { score: PoolScore::Variance, ..Pool::default() };
    assert_eq!(kept_of(&TopP { pool, ..by_variance }.judge(&groups, None)), [0]);
    let sums = [GroupStatistics::of(&[f64::MAX; 3], None), GroupStatistics::of(&[1.0; 3], None)];
    let pool = Pool { score: PoolScore::Sum, ..Pool::default() };
    assert_eq!(kept_of(&TopK { k: Some(1), fraction: None, pool }.judge(&sums, None)), [0]);
}

#[test]
fn members_of_the_largest_variance() {
    let choose = |k, fraction, values: &[f64]| {
        WithinGroup { k, fraction, include_zero: true }.members(values).unwrap()
    };
    assert_eq!(choose(Some(2), None, &[0.0, 0.0, 1.0, 1.0]), [true, false, false, true]);
    assert_eq!(choose(Some(2), None, &[1.0; 3]), [true, true, false]);
    assert_eq!(choose(None, Some(0.5), &[3.0, 0.0, 9.0, 1.0]), [false, true, true, false]);
    assert_eq!(choose(None, Some(0.1), &[3.0, 0.0, 9.0]), [false, true, true]);
    let nan = f64::NAN;
    assert_eq!(choose(Some(2), None, &[nan, 2.0, nan, 5.0]), [false, true, false, true]);
    assert_eq!(choose(Some(4), None, &[nan, 2.0]), [false, true]);
    assert_eq!(choose(Some(2), None, &[]), [false; 0]);
    assert_eq!(choose(Some(2), None, &[1e308, -1e308, f64::MAX, 0.0]), [false, true, true, false]);
    // The same whatever the origin and the unit.
    for (unit, origin) in [(1.0, 0.0), (2.0, -1.0), (4.0, -2.0), (-2.0, 2.0), (0.5, 16.0)] {
        let values = [0.75, 0.0, 1.0, 0.875].map(|value| origin + unit * value);
        assert_eq!(choose(Some(2), None, &values), [false, true, true, false], "{values:?}");
        assert_eq!(choose(None, Some(0.75), &values).iter().filter(|chosen| **chosen).count(), 3);
    }
    let groups = [GroupStatistics::of(&[1.0, 1.0], SCALE), GroupStatistics::of(&[1.0, nan], SCALE)];
    let names = |include_zero| {
        let filter = WithinGroup { k: Some(2), fraction: None, include_zero };
        let verdicts = filter.judge(&groups, SCALE);
        verdicts.iter().map(|verdict| verdict.name()).collect::<Vec<_>>()
    };
    assert_eq!(names(true), ["kept", "unscored"]);
    assert_eq!(names(false), ["all_correct", "unscored"]);
    assert_eq!(Variance::default().members(&[1.0, 0.0]), None);
}

#[test]
fn settings_of_pools_go_together() {
    let error = |filter: &dyn Filter| filter.check().unwrap_err().to_string();
    let pool = Pool { score: PoolScore::Mean, ..Pool::default() };
    insta::assert_snapshot!(error(&TopP { mass: Mass::Variance, pool, ..TopP::of(0.9) }), @"the top_p filter's mass `variance` is the square of the deviation: it needs the score `deviation`, not `mean`");
    insta::assert_snapshot!(error(&Percentile { low: 0.5, high: 0.5, pool }), @"the percentile filter's band must satisfy 0 <= low < high <= 1, got 0.5 to 0.5");
    insta::assert_snapshot!(error(&TopK::default()), @"the top_k filter needs one of `k` and `fraction`, but has neither");
    insta::assert_snapshot!(error(&Percentile { low: 0.5, high: 1.5, pool }), @"the percentile filter's band must satisfy 0 <= low < high <= 1, got 0.5 to 1.5");
}

/// 1, 2 and 3: variance 2/3 of the population, 1 of a sample.
#[test]
fn deviations_of_populations_and_samples() {
    let group = GroupStatistics::of(&[1.0, 2.0, 3.0], None);
    let score = |score, ddof| Pool { score, ddof, ..Pool::default() }.score_of(&group).unwrap();
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-11, "{a} {b}");
    close(score(PoolScore::Deviation, 0), (2.0_f64 / 3.0).sqrt());
    close(score(PoolScore::Deviation, 1), 1.0);
    close(score(PoolScore::Variance, 0), 2.0 / 3.0);
    close(score(PoolScore::Variance, 1), 1.0);
    assert_eq!((score(PoolScore::Mean, 1), score(PoolScore::Sum, 1)), (2.0, 6.0));
}

/// Scores that differ by a rounding error tie, on both sides of a power of two and of zero; those that differ
/// by a trillionth do not.
#[test]
fn scores_equal_to_twelve_digits() {
    let first_of = |means: [f64; 2]| {
        let groups = means.map(|mean| GroupStatistics::of(&[mean, mean], None));
        let pool = Pool { score: PoolScore::Mean, ..Pool::default() };
        kept_of(&TopK { k: Some(1), fraction: None, pool }.judge(&groups, None))
    };
    for (less, more) in [(1.0 - f64::EPSILON / 2.0, 1.0), (1.0, 1.0 + f64::EPSILON), (-0.0, 0.0)] {
        assert_eq!((first_of([less, more]), first_of([more, less])), (vec![0], vec![0]));
    }
    assert_eq!(first_of([1.0, 1.0 + 2.0_f64.powi(-40)]), [1]);
}

#[test]
fn masses_at_the_edges_of_their_definitions() {
    // Relative to the best, an exponential of scores in the thousands is finite: 1, 1 and 0.905 of 2.905.
    assert_eq!(kept(nucleus(0.9), &[1000.0, 1000.0, 999.9]), [0, 1, 2]);
    assert_eq!(kept(nucleus(0.6), &[1000.0, 1000.0, 999.9]), [0, 1]);
    // The softmax has no slack.
    assert_eq!(kept(TopP { slack: 1.0, ..nucleus(0.6) }, &[1.0, 1.0, 1.0]), [0, 1]);
    // All the mass in one group.
    assert_eq!(kept(mass(0.9, Mass::Linear, 0.0), &[0.0, 0.3, 0.0]), [1]);
    // All of the wanted mass is within the slack: exactly nothing.
    assert_eq!(kept(mass(0.5, Mass::Linear, 1.0), &[1.0, 1.0]), [0; 0]);
    assert_eq!(kept(mass(0.5, Mass::Linear, 0.999), &[1.0, 1.0]), [0]);
    // Within a billionth of the whole, and no more.
    for form in [Mass::Softmax, Mass::Linear, Mass::Variance] {
        assert_eq!(kept(mass(0.9 + 5e-10, form, 0.0), &[1.0; 1000]).len(), 900);
        assert_eq!(kept(mass(0.9 + 2e-9, form, 0.0), &[1.0; 1000]).len(), 901);
    }
}

/// Few values, so that groups tie often.
fn round() -> impl Strategy<Value = Vec<GroupStatistics>> {
    let value =
        prop_oneof![4 => Just(0.0), 4 => Just(1.0), 1 => Just(0.1), 2 => -3.0..3.0, 1 => Just(f64::NAN)];
    let group = prop::collection::vec(value, 0..6);
    prop::collection::vec(group, 0..12)
        .prop_map(|groups| groups.iter().map(|values| GroupStatistics::of(values, SCALE)).collect())
}

fn pool() -> impl Strategy<Value = Pool> {
    let choices = (prop::sample::select(PoolScore::ALL), prop::sample::select(Prefer::ALL));
    (choices, 0_u8..2, any::<bool>()).prop_map(|((score, prefer), ddof, include_zero)| Pool {
        score,
        ddof,
        prefer,
        include_zero,
    })
}

/// Every pool filter with a parameter in (0, 1]; a larger one keeps more.
fn at(which: usize, share: f64, pool: Pool) -> GroupFilter {
    let top_p = |mass| {
        let pool = if mass == Mass::Variance { Pool { score: PoolScore::Deviation, ..pool } } else { pool };
        GroupFilter::TopP(TopP { p: share, mass, pool, ..TopP::of(0.9) })
    };
    match which {
        0 => top_p(Mass::Softmax),
        1 => top_p(Mass::Linear),
        2 => top_p(Mass::Variance),
        3 => GroupFilter::TopK(TopK { k: Some(1 + (share * 10.0) as usize), fraction: None, pool }),
        4 => GroupFilter::TopK(TopK { k: None, fraction: Some(share), pool }),
        5 => GroupFilter::MinP(MinP { p: 1.0 - share, pool }),
        _ => GroupFilter::Percentile(Percentile { low: 0.0, high: share, pool }),
    }
}

proptest! {
    #[test]
    fn every_pool_filter_obeys_its_laws(
        groups in round(),
        pool in pool(),
        which in 0_usize..7,
        share in 0.01_f64..1.0,
        more in 0.0_f64..1.0,
        turn in 0_usize..12,
    ) {
        let filter = at(which, share, pool);
        let pool = match filter { GroupFilter::TopP(top_p) => top_p.pool, _ => pool };
        let verdicts = filter.judge(&groups, SCALE);
        // The accounting adds up: one verdict per group, and the right reason for each.
        prop_assert_eq!(verdicts.len(), groups.len());
        for (verdict, group) in verdicts.iter().zip(&groups) {
            let unscored = *verdict == Verdict::Dropped(DropReason::Unscored);
            prop_assert_eq!(unscored, group.is_unscored());
            prop_assert_eq!(pool.score_of(group).is_none(), group.is_unscored());
        }
        // Pure.
        prop_assert_eq!(&verdicts, &filter.judge(&groups, SCALE));
        // A better group is never dropped for a worse one, nor one dispatched earlier for its equal.
        let scored: Vec<(f64, usize, bool)> = (0..groups.len())
            .filter_map(|i| Some((pool.score_of(&groups[i])?, i, verdicts[i].is_kept())))
            .filter(|(score, ..)| pool.include_zero || score.abs() > 1e-10)
            .collect();
        // A dropped group gets the most specific name: if groups are ranked by spread, uniform ones are
        // called uniform, and the others were left out by their rank.
        let by_spread = matches!(pool.score, PoolScore::Deviation | PoolScore::Variance);
        for (verdict, group) in verdicts.iter().zip(&groups).filter(|(verdict, group)| !verdict.is_kept() && !group.is_unscored()) {
            let by_rank = *verdict == Verdict::Dropped(DropReason::OutsidePool);
            let by_score = *verdict == Verdict::Dropped(DropReason::ZeroScore);
            let competes = pool.include_zero || pool.score_of(group).unwrap().abs() > 1e-10;
            if by_spread {
                // Members that hardly differ also have a spread of 0.
                prop_assert_eq!(by_rank, competes && group.min < group.max);
            } else {
                prop_assert_eq!(by_rank, competes);
                prop_assert!(!by_score || group.min < group.max);
            }
        }
        prop_assert!(filter.admits_uniform() || verdicts.iter().zip(&groups).all(|(verdict, group)| !verdict.is_kept() || group.min < group.max));
        let has_mass = |score: f64| !matches!(which, 1 | 2) || score > 0.0 || share >= 1.0;
        for a in scored.iter().filter(|a| has_mass(a.0)) {
            for b in scored.iter().filter(|b| b.2) {
                let better = if pool.prefer == Prefer::Largest { a.0 > b.0 } else { a.0 < b.0 };
                if better || (a.0 == b.0 && a.1 < b.1) {
                    prop_assert!(a.2, "{:?} before {:?}", a, b);
                }
            }
        }
        // Monotone: a larger share keeps all that a smaller one keeps.
        let larger = at(which, share + more * (1.0 - share), pool).judge(&groups, SCALE);
        for (less, more) in verdicts.iter().zip(&larger) {
            prop_assert!(!less.is_kept() || more.is_kept());
        }
        // Another order of the groups keeps the same scores, and the same groups if no two tie.
        let mut turned = groups.clone();
        let places: Vec<usize> = (0..groups.len()).collect();
        let mut places = places;
        if !groups.is_empty() {
            turned.rotate_left(turn % groups.len());
            places.rotate_left(turn % groups.len());
        }
        let again = filter.judge(&turned, SCALE);
        let scores = |groups: &[GroupStatistics], verdicts: &[Verdict]| {
            let mut scores: Vec<f64> =
                kept_of(verdicts).into_iter().map(|i| pool.score_of(&groups[i]).unwrap()).collect();
            scores.sort_by(f64::total_cmp);
            scores
        };
        prop_assert_eq!(scores(&groups, &verdicts), scores(&turned, &again));
        let mut all: Vec<f64> = scored.iter().map(|place| place.0).collect();
        all.sort_by(f64::total_cmp);
        if all.windows(2).all(|pair| pair[0] < pair[1]) {
            for (i, verdict) in places.iter().zip(&again) {
                prop_assert_eq!(verdict.is_kept(), verdicts[*i].is_kept());
            }
        }
        // Those that are idempotent: judged by themselves, kept groups are kept again.
        if matches!(which, 3 | 5) {
            let alone: Vec<GroupStatistics> = kept_of(&verdicts).into_iter().map(|i| groups[i]).collect();
            prop_assert!(filter.judge(&alone, SCALE).iter().all(|verdict| verdict.is_kept()));
        }
    }

    /// The effect of scale is as in the catalogue: all but the softmax judge a positive multiple of the
    /// metric alike, and rankings also a shift.
    #[test]
    fn scale_is_as_stated(groups in prop::collection::vec(prop::collection::vec(-4_i32..5, 2..5), 1..8), pool in pool(), which in 1_usize..7, share in 0.01_f64..1.0, exponent in -3_i32..4, shift in -3_i32..4) {
        let statistics = |factor: f64, shift: f64| -> Vec<GroupStatistics> {
            groups.iter().map(|values| {
                let values: Vec<f64> = values.iter().map(|value| f64::from(*value) * factor + shift).collect();
                GroupStatistics::of(&values, None)
            }).collect()
        };
        let filter = at(which, share, pool);
        let kept = |groups: &[GroupStatistics]| kept_of(&filter.judge(groups, None));
        let as_is = kept(&statistics(1.0, 0.0));
        prop_assert_eq!(&as_is, &kept(&statistics(2.0_f64.powi(exponent), 0.0)));
        let by_spread = matches!(pool.score, PoolScore::Deviation | PoolScore::Variance) || which == 2;
        let by_rank = matches!(which, 3 | 4 | 6) && pool.include_zero && pool.score == PoolScore::Mean;
        if by_spread || by_rank {
            prop_assert_eq!(&as_is, &kept(&statistics(1.0, f64::from(shift))));
        }
    }

    /// Compared with every subset of k: no other choice of members has a larger variance.
    #[test]
    fn no_other_members_spread_more(values in prop::collection::vec(prop_oneof![Just(0.0), Just(1.0), -5.0..5.0_f64], 1..8), k in 2_usize..6) {
        let variance = |chosen: &dyn Fn(usize) -> bool| {
            let picked: Vec<f64> = (0..values.len()).filter(|i| chosen(*i)).map(|i| values[i]).collect();
            GroupStatistics::of(&picked, None).std
        };
        let members = WithinGroup { k: Some(k), fraction: None, include_zero: true }.members(&values).unwrap();
        let count = k.min(values.len());
        prop_assert_eq!(members.iter().filter(|chosen| **chosen).count(), count);
        let best = variance(&|i| members[i]);
        for subset in (0_u32..1 << values.len()).filter(|subset| subset.count_ones() as usize == count) {
            prop_assert!(variance(&|i| subset >> i & 1 == 1) <= best + 1e-9);
        }
    }
}
