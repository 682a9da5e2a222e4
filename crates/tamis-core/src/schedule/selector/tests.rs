use proptest::prelude::*;

use super::*;
use crate::filter::OutcomeScale;
use crate::group::{Group, GroupId, PolicyVersion, PromptId};
use crate::random::{Key, Purpose};

fn group(prompt: u64, version: u64) -> Group {
    Group {
        id: GroupId(prompt),
        prompt: PromptId(prompt),
        epoch: 0,
        dispatched: PolicyVersion(version),
        prompt_token_ids: Vec::new(),
        images: Vec::new(),
        trajectories: Vec::new(),
    }
}

fn history(groups: &[(u32, u32, u64)], memory: f64) -> PromptHistory {
    let mut history = PromptHistory::default();
    for &(correct, scored, version) in groups {
        history.observe(correct, scored, PolicyVersion(version), memory);
    }
    history
}

#[test]
fn what_was_seen_fades_with_the_version_and_nothing_is_learnt_from_no_score() {
    let seen = history(&[(8, 8, 0), (0, 0, 1), (2, 8, 2)], 0.5);
    assert_eq!((seen.num_groups, seen.version), (2, PolicyVersion(2)));
    assert_eq!((seen.correct, seen.wrong), (4.0, 6.0));
    assert_eq!(seen.faded(PolicyVersion(3), 0.5), FadedCounts { correct: 2.0, wrong: 3.0 });
    // The same whichever of two groups is recorded first.
    let other = history(&[(2, 8, 2), (8, 8, 0)], 0.5).faded(PolicyVersion(2), 0.5);
    assert_eq!(other, FadedCounts { correct: 4.0, wrong: 6.0 });
    let mut all = PromptHistories::default();
    all.observe(PromptId(3), 0, 0, PolicyVersion(0), 1.0);
    assert!(all.is_empty());
    all.observe(PromptId(3), 1, 2, PolicyVersion(0), 1.0);
    assert_eq!((all.len(), all.get(PromptId(3)).map(|one| one.correct)), (1, Some(1.0)));
}

#[test]
fn uniform_groups_count_in_a_row_on_their_side() {
    let row = |groups: &[(u32, u32, u64)]| history(groups, 1.0).uniform;
    assert_eq!(row(&[]), None);
    assert_eq!(row(&[(0, 8, 0), (0, 4, 1)]), Some((Side::Hard, 2)));
    assert_eq!(row(&[(0, 8, 0), (8, 8, 1)]), Some((Side::Easy, 1)));
    assert_eq!(row(&[(8, 8, 0), (3, 8, 1)]), None);
}

#[test]
fn pools_go_by_the_latest_group() {
    let key = Key::new(1, Purpose::Selection);
    let of = |pools: DifficultyPools, groups: &[(u32, u32, u64)]| {
        let seen = (!groups.is_empty()).then(|| history(groups, 1.0));
        pools.select(seen.as_ref(), key).inclusion
    };
    let pools = DifficultyPools { hard_rate: 0.1, easy_rate: 0.3, ..DifficultyPools::default() };
    assert_eq!(of(pools, &[]), 1.0);
    assert_eq!(of(pools, &[(3, 8, 0), (0, 8, 1)]), 0.1);
    assert_eq!(of(pools, &[(0, 8, 0), (1, 8, 1)]), 1.0);
    assert_eq!(of(pools, &[(8, 8, 0)]), 0.3);
    let wide = DifficultyPools { hard_up_to: 0.25, easy_from: 0.75, ..pools };
    assert_eq!((of(wide, &[(2, 8, 0)]), of(wide, &[(3, 8, 0)]), of(wide, &[(6, 8, 0)])), (0.1, 1.0, 0.3));
}

#[test]
fn a_judged_group_is_mixed_where_its_members_differ() {
    let group = group(3, 5);
    let of = |values: &[f64]| {
        let judged = JudgedGroup::of(&group, values, values.len(), Some(OutcomeScale::default()), 0.5);
        assert_eq!((judged.prompt, judged.version, judged.inclusion), (PromptId(3), PolicyVersion(5), 0.5));
        (judged.num_correct, judged.num_scored)
    };
    assert_eq!(of(&[1.0, 0.0, 0.0]), (1, 3));
    assert_eq!(of(&[1.0, 1.0, f64::NAN]), (2, 2));
    assert_eq!(of(&[0.2, 0.7, 0.9]), (1, 3));
    assert_eq!(of(&[2.0, 3.0, 4.0]), (2, 3));
    assert_eq!(of(&[0.5, 0.5]), (0, 2));
    assert_eq!(of(&[f64::NAN, f64::NAN]), (0, 0));
}

/// Table of the keep rate under a Beta prior, groups of 8 and 16, to three digits.
#[test]
fn the_probability_of_a_mixed_group_is_that_of_the_beta_binomial() {
    for (a, b, n, expected) in [
        (2.0, 2.0, 8, 0.891),
        (1.0, 1.0, 8, 0.778),
        (0.5, 0.5, 8, 0.607),
        (0.3, 0.3, 8, 0.466),
        (0.3, 0.3, 16, 0.566),
        (0.2, 0.8, 8, 0.398),
        (0.1, 0.1, 16, 0.267),
    ] {
        let keep = Posterior::mixed(a, b, n);
        assert!((keep - expected).abs() < 6e-4, "Beta({a}, {b}), n = {n}: {keep}");
    }
    assert_eq!((Posterior::mixed(1.0, 1.0, 1), Posterior::mixed(1.0, 1.0, 0)), (0.0, 0.0));
    assert!((Posterior::mixed(1.0, 1.0, 2) - 1.0 / 3.0).abs() < 1e-15);
}

#[test]
fn the_prior_is_found_from_groups_whatever_was_selected() {
    // Pass rates of 0.1 and 0.9, half each: mean 0.5, variance 0.16, so a + b = 0.25/0.16 - 1.
    let key = Key::new(1, Purpose::Rollout);
    let draw = |rate: f64, i: u64| (0..8).filter(|&j| key.with(i).uniform(j) < rate).count() as u32;
    let fit = |thinned: bool| {
        let mut prior = PassRatePrior::default();
        for i in 0..40_000 {
            let is_low = i % 2 == 0;
            let inclusion = if thinned && is_low { 0.25 } else { 1.0 };
            if key.with(1 << 40).uniform(i) < inclusion {
                prior.observe(draw(if is_low { 0.1 } else { 0.9 }, i), 8, inclusion, 1.0);
            }
        }
        prior.parameters()
    };
    for Beta { a, b } in [fit(false), fit(true)] {
        assert!((a - 0.28).abs() < 0.02 && (b - 0.28).abs() < 0.02, "{a} {b}");
    }
    let Beta { a, b } = PassRatePrior::default().parameters();
    assert!((a - 1.0).abs() < 1e-9 && (b - 1.0).abs() < 1e-9, "uniform before anything was seen");
}

/// Groups that begin with some of their members have the others only if these differ. From all members
/// together hard prompts would seem less hard; the first members show the true rate, and a prompt's posterior
/// may still use the others.
#[test]
fn the_prior_is_found_from_the_members_that_groups_begin_with() {
    const PROMPTS: u64 = 400;
    let key = Key::new(1, Purpose::Rollout);
    let scale = Some(OutcomeScale::default());
    // 40 % of the prompts are solved half of the time, the others never: mean 0.2, mean square 0.1.
    for first in [2, 4, 8] {
        let posterior = Selector::Posterior(Posterior::default());
        let mut selector = PromptSelector::new(posterior, 1, first, None).expect("a selector");
        for round in 0..40 {
            let judged: Vec<JudgedGroup> = (0..PROMPTS)
                .map(|prompt| {
                    let rate = if prompt % 5 < 2 { 0.5 } else { 0.0 };
                    let draw = |member| key.with(round).with(prompt).uniform(member) < rate;
                    let mut values: Vec<f64> =
                        (0..8).map(|member| f64::from(u8::from(draw(member)))).collect();
                    if values[..first].iter().all(|value| *value == values[0]) {
                        values.truncate(first);
                    }
                    JudgedGroup::of(&group(prompt, 0), &values, first, scale, 1.0)
                })
                .collect();
            selector.learn(&judged);
        }
        let Beta { a, b } = selector.state().prior.parameters();
        assert!((a / (a + b) - 0.2).abs() < 0.01, "{first}: Beta({a}, {b})");
        assert!((a * (a + 1.0) / ((a + b) * (a + b + 1.0)) - 0.1).abs() < 0.01, "{first}: Beta({a}, {b})");
        let report = selector.report(&[], PolicyVersion(1));
        let named: std::collections::BTreeMap<&str, f64> = report.to_pairs().iter().copied().collect();
        assert!((named["selector/pass_rate/mean"] - 0.2).abs() < 0.01, "{named:?}");
        // The history of a prompt has all of its members.
        let seen = selector.state().histories.get(PromptId(0)).expect("a history");
        assert!(first == 8 || seen.correct + seen.wrong > 40.0 * first as f64, "{seen:?}");
    }
}

#[test]
fn rates_of_skipping_follow_what_is_uniform() {
    let settings = ZeroVarianceSkip::default();
    let rates = SkipRates::default();
    let after = rates.after(&settings, 100, 50, 0);
    assert!((after.easy - 0.49).abs() < 1e-12 && (after.hard - 0.51).abs() < 1e-12);
    assert_eq!(rates.after(&settings, 0, 0, 0), rates);
    let far = (0..100).fold(rates, |rates, _| rates.after(&settings, 10, 10, 0));
    assert_eq!((far.easy, far.hard), (0.05, 0.95));
    let seen = history(&[(8, 8, 0), (8, 8, 1)], 1.0);
    let inclusion = |history| settings.select(&rates, history, Key::new(1, Purpose::Rollout)).inclusion;
    assert_eq!((inclusion(None), inclusion(Some(&seen))), (1.0, 0.25));
    let often = history(&[(8, 8, 0); 50], 1.0);
    assert_eq!(inclusion(Some(&often)), 0.01);
}

/// With two members at most half of the groups can be expected to differ. Nevertheless a prompt that is
/// solved half of the time is always taken, whatever the number of members.
#[test]
fn few_members_do_not_make_every_prompt_unlikely() {
    let posterior = Posterior::default();
    let key = Key::new(1, Purpose::Selection);
    let of = |history: Option<&PromptHistory>, n| {
        posterior.select(&PassRatePrior::default(), history, PolicyVersion(0), n, key).inclusion
    };
    let half = history(&[(400, 800, 0)], 1.0);
    for n in 2..=16 {
        assert_eq!(of(Some(&half), n), 1.0, "{n} members");
        // A prompt without history, with uniform pass rates.
        let unknown = of(None, n);
        assert!(unknown > 0.94, "{n} members: {unknown}");
    }
    // By hand: K = 1/3 of 1/2, over 0.7.
    assert!((of(None, 2) - 2.0 / 3.0 / 0.7).abs() < 1e-12);
    // Prompts that are nearly always solved are still passed over.
    let solved = history(&[(8, 8, 0); 10], 1.0);
    assert!(of(Some(&solved), 2) < 0.1 && of(Some(&solved), 8) < 0.2);
    assert_eq!(of(None, 1), posterior.floor);
}

proptest! {
    #[test]
    fn a_prompt_is_taken_as_often_as_is_said(
        groups in prop::collection::vec((0u32..=8, 0u64..50), 0..8),
        floor in 0.01..0.5f64,
        reference in 0.1..1.0f64,
    ) {
        let groups: Vec<(u32, u32, u64)> = groups.into_iter().map(|(correct, version)| (correct, 8, version)).collect();
        let seen = history(&groups, 0.99);
        let posterior = Posterior { reference, floor, memory: 0.99, ..Posterior::default() };
        let prior = PassRatePrior::default();
        let select = |i: u64| {
            let key = Key::new(2, Purpose::Rollout).with(i);
            posterior.select(&prior, Some(&seen), PolicyVersion(60), 8, key)
        };
        let inclusion = select(0).inclusion;
        prop_assert!((floor..=1.0).contains(&inclusion));
        let taken = (0..4000).filter(|&i| select(i).is_taken).count() as f64 / 4000.0;
        prop_assert!((taken - inclusion).abs() < 0.04, "{} {}", taken, inclusion);
        prop_assert_eq!(select(7), select(7));
    }
}
