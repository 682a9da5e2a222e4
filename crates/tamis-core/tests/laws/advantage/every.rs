//! Laws of every estimator: with its defaults, and in the modes that match other systems.

use proptest::prelude::*;
use tamis_core::advantage::{
    Advantage, AdvantageBatch, AdvantageEstimator, AdvantageState, BnpoRunning, Column, Cpo, CpoWrap, Gae,
    Generated, GeneratedStatistics, Gpg, GpgAlpha, Grpo, MaskedRewards, OnPolicyDistillation,
    OptimalTokenBaseline, Rloo, Scale, SingletonAdvantage, Tail, TeacherGain,
};
use tamis_core::catalogue::{Family, find};
use tamis_core::ragged::Ragged;
use tamis_core::whole_step::WholeStep;

use super::batches::{Group, Owned, by_member, generated, groups};

/// The defaults of all estimators, and settings that take other paths.
fn estimators() -> Vec<Advantage> {
    let mut estimators = Advantage::all();
    estimators.extend([
        Advantage::Rloo(Rloo { singleton: SingletonAdvantage::Raw }),
        Advantage::Gpg(Gpg { gpg_alpha: GpgAlpha::NonzeroRewards, ..Gpg::default() }),
        Advantage::Gae(Gae { gamma: 0.9, lambda: 0.8, masked_rewards: MaskedRewards::Lost, whiten: false }),
        Advantage::OptimalTokenBaseline(OptimalTokenBaseline {
            tail: Tail::ZeroedByCount,
            epsilon: 1e-8,
            singleton: SingletonAdvantage::Raw,
            masked_rewards: MaskedRewards::Lost,
        }),
        Advantage::OptimalTokenBaseline(OptimalTokenBaseline { tail: Tail::Kept, ..Default::default() }),
    ]);
    for (scale, ddof) in [(Scale::Group, 0), (Scale::Batch, 1), (Scale::None, 1)] {
        for (singleton, epsilon) in [(SingletonAdvantage::Raw, 0.0), (SingletonAdvantage::Zero, 1e-6)] {
            let grpo = Grpo { scale, ddof, singleton, epsilon, ..Grpo::default() };
            estimators.push(Advantage::Grpo(grpo));
        }
    }
    let gain = TeacherGain { coefficient: 0.5, discount: 0.5, clip: Some(0.75), ..TeacherGain::default() };
    estimators.push(Advantage::OnPolicyDistillation(OnPolicyDistillation { gain }));
    for wrap in [CpoWrap::SeqKl, CpoWrap::TokKl] {
        estimators.push(Advantage::Cpo(Cpo { wrap, pos_alpha: 0.3, ..Cpo::default() }));
    }
    estimators
}

/// Whether a group's advantages depend on nothing outside it (statistics before filtering and values are
/// separate inputs). The estimator declares it, and these laws check it.
fn is_local(estimator: &Advantage) -> bool {
    match estimator.whole_step() {
        None | Some(WholeStep::SuccessRates | WholeStep::RunningSuccesses) => true,
        Some(WholeStep::CriticValues) => matches!(estimator, Advantage::Gae(gae) if !gae.whiten),
        Some(_) => false,
    }
}

/// Whether only differences of rewards within a group count.
fn is_group_relative(estimator: &Advantage) -> bool {
    matches!(
        estimator,
        Advantage::Grpo(_)
            | Advantage::DrGrpo(_)
            | Advantage::GrpoPassk(_)
            | Advantage::Rloo(_)
            | Advantage::Opo(_)
            | Advantage::Gdpo(_)
            | Advantage::NormalizeThenSum(_)
            | Advantage::ReinforcePlusPlusBaseline(_)
            | Advantage::OptimalTokenBaseline(OptimalTokenBaseline { epsilon: 0.0, .. })
            | Advantage::TirOptimalTokenBaseline(_)
            | Advantage::Gpg(Gpg { gpg_alpha: GpgAlpha::MixedGroups, .. })
    )
}

fn close(a: &[Vec<f64>], b: &[Vec<f64>], tolerance: f64) -> Result<(), TestCaseError> {
    prop_assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        prop_assert!((a - b).abs() <= tolerance * (1.0 + a.abs().max(b.abs())), "{} {}", a, b);
    }
    Ok(())
}

/// Rewards and token rewards in 64ths, so that sums and shifts are exact and equal ones stay equal.
fn on_a_grid(groups: &[Group], factor: f64, shift: f64) -> Vec<Group> {
    let mut groups = groups.to_vec();
    for member in groups.iter_mut().flat_map(|group| &mut group.members) {
        member.reward = (member.reward * 64.0).round() / 64.0 * factor + shift;
    }
    groups
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn advantages_are_finite_and_zero_where_nothing_is_trained_on(groups in groups(0), dense: bool) {
        let owned = Owned::of(&groups);
        for estimator in estimators() {
            let advantages = owned.run(&estimator, dense, &generated(&groups));
            prop_assert_eq!(advantages.len(), owned.rewards.num_values());
            for (i, (row, reward)) in advantages.iter().zip(owned.rewards.values()).enumerate() {
                prop_assert!(row.iter().all(|advantage| advantage.is_finite()), "{:?}", estimator);
                if reward.is_nan() {
                    prop_assert!(row.iter().all(|advantage| *advantage == 0.0), "{:?}", estimator);
                }
                if row.len() == owned.mask.row(i).len() && row.len() > 1 {
                    for (advantage, &on) in row.iter().zip(owned.mask.row(i)) {
                        prop_assert!(on || *advantage == 0.0, "{:?}", estimator);
                    }
                }
            }
        }
    }

    #[test]
    fn members_and_groups_may_be_permuted(groups in groups(0), dense: bool) {
        let statistics = generated(&groups);
        let mut reversed = groups.clone();
        reversed.reverse();
        for group in &mut reversed {
            group.members.reverse();
        }
        for estimator in estimators() {
            // Which of equally good ones is best makes no difference: the lead is 0.
            let expected = Owned::of(&groups).run(&estimator, dense, &statistics);
            let mut actual = Owned::of(&reversed).run(&estimator, dense, &statistics);
            actual.reverse();
            close(&expected, &actual, 1e-7)?;
        }
    }

    #[test]
    fn what_is_masked_or_unscored_is_not_read(groups in groups(0), dense: bool, garbage in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(1e300)]) {
        let statistics = generated(&groups);
        let mut spoilt = groups.clone();
        for member in spoilt.iter_mut().flat_map(|group| &mut group.members) {
            let unscored = member.reward.is_nan();
            for column in &mut member.numbers {
                for (number, &on) in column.iter_mut().zip(&member.mask) {
                    if unscored || !on {
                        *number = garbage;
                    }
                }
            }
            if unscored {
                member.token_rewards.fill(garbage);
            }
        }
        for estimator in estimators() {
            let expected = Owned::of(&groups).run(&estimator, dense, &statistics);
            prop_assert_eq!(expected, Owned::of(&spoilt).run(&estimator, dense, &statistics), "{:?}", estimator);
        }
    }

    #[test]
    fn groups_do_not_see_each_other(groups in groups(0), dense: bool) {
        let statistics = generated(&groups);
        for estimator in estimators().iter().filter(|estimator| is_local(estimator)) {
            let together = Owned::of(&groups).run(estimator, dense, &statistics);
            let alone: Vec<Vec<f64>> = groups
                .iter()
                .flat_map(|group| Owned::of(std::slice::from_ref(group)).run(estimator, dense, &statistics))
                .collect();
            prop_assert_eq!(together, alone, "{:?}", estimator);
        }
    }

    #[test]
    fn an_unscored_member_might_as_well_not_be_there(groups in groups(0), dense: bool) {
        let statistics = generated(&groups);
        let mut scored = groups.clone();
        for group in &mut scored {
            group.members.retain(|member| !member.reward.is_nan());
        }
        // With one scored member of several there is nothing to compare with, whatever a true singleton gets.
        let usual = |estimator: &&Advantage| {
            !matches!(
                estimator,
                Advantage::Grpo(Grpo { singleton: SingletonAdvantage::Raw, .. })
                    | Advantage::Rloo(Rloo { singleton: SingletonAdvantage::Raw })
                    | Advantage::OptimalTokenBaseline(OptimalTokenBaseline { singleton: SingletonAdvantage::Raw, .. })
            )
        };
        for estimator in estimators().iter().filter(usual) {
            let with = Owned::of(&groups).run(estimator, dense, &statistics);
            let members = groups.iter().flat_map(|group| &group.members);
            let with: Vec<Vec<f64>> =
                with.into_iter().zip(members).filter(|(_, member)| !member.reward.is_nan()).map(|(row, _)| row).collect();
            prop_assert_eq!(with, Owned::of(&scored).run(estimator, dense, &statistics), "{:?}", estimator);
        }
    }

    #[test]
    fn group_relative_advantages_ignore_a_shift_and_are_zero_in_uniform_groups(groups in groups(2), shift in -3..4_i32) {
        let statistics = generated(&groups);
        let mut uniform = on_a_grid(&groups, 1.0, 0.0);
        for group in &mut uniform {
            let reward = group.members[0].reward;
            for member in &mut group.members {
                member.reward = reward;
            }
        }
        for estimator in estimators().iter().filter(|estimator| is_group_relative(estimator)) {
            let before = Owned::of(&on_a_grid(&groups, 1.0, 0.0)).run(estimator, false, &statistics);
            // The longest trajectory of a group is compared with 0 in its tail.
            if !matches!(estimator, Advantage::OptimalTokenBaseline(OptimalTokenBaseline { tail: Tail::Zeroed, .. }) | Advantage::TirOptimalTokenBaseline(_)) {
                let after = Owned::of(&on_a_grid(&groups, 1.0, f64::from(shift))).run(estimator, false, &statistics);
                close(&before, &after, 1e-7)?;
                let zeros = Owned::of(&uniform).run(estimator, false, &statistics);
                prop_assert!(zeros.iter().flatten().all(|advantage| *advantage == 0.0), "{:?}", estimator);
            }
        }
    }

    #[test]
    fn undivided_advantages_scale_with_the_rewards(groups in groups(2), power in -3..6_i32, flip: bool) {
        let statistics = generated(&groups);
        let factor = 2_f64.powi(power) * if flip { -1.0 } else { 1.0 };
        let linear = |estimator: &&Advantage| {
            matches!(estimator, Advantage::DrGrpo(_) | Advantage::Rloo(_) | Advantage::Opo(_) | Advantage::Gpg(_)
                | Advantage::OptimalTokenBaseline(_) | Advantage::TirOptimalTokenBaseline(_))
        };
        for estimator in estimators().iter().filter(linear) {
            let mut expected = Owned::of(&on_a_grid(&groups, 1.0, 0.0)).run(estimator, false, &statistics);
            for advantage in expected.iter_mut().flatten() {
                *advantage *= factor;
            }
            let actual = Owned::of(&on_a_grid(&groups, factor, 0.0)).run(estimator, false, &statistics);
            close(&expected, &actual, 1e-12)?;
        }
    }

    #[test]
    fn advantages_of_a_group_sum_to_zero(groups in groups(2), dense: bool) {
        let owned = Owned::of(&groups);
        let sums = |estimator: &&Advantage| {
            matches!(estimator, Advantage::Grpo(_) | Advantage::DrGrpo(_) | Advantage::Rloo(_) | Advantage::Gpg(_)
                | Advantage::Opo(_) | Advantage::Bnpo(_))
        };
        for estimator in estimators().iter().filter(sums) {
            // The components of `bnpo` may be unanswered even if the reward is not.
            let dense = dense && !matches!(estimator, Advantage::Bnpo(_));
            let advantages = owned.run(estimator, dense, &generated(&groups));
            let tokens: Vec<f64> = owned.mask.rows().map(|row| row.iter().filter(|&&on| on).count() as f64).collect();
            for pair in owned.rewards.offsets().windows(2) {
                let has_tokens = (pair[0]..pair[1]).any(|i| tokens[i] > 0.0 && !owned.rewards.values()[i].is_nan());
                // `opo` weights by length.
                let weight = |i: usize| if matches!(estimator, Advantage::Opo(_)) && has_tokens { tokens[i] } else { 1.0 };
                let size: f64 = (pair[0]..pair[1]).map(|i| weight(i) * advantages[i][0].abs()).sum();
                let sum: f64 = (pair[0]..pair[1]).map(|i| weight(i) * advantages[i][0]).sum();
                prop_assert!(sum.abs() <= 1e-9 * (1.0 + size), "{:?} {}", estimator, sum);
            }
        }
    }

    #[test]
    fn statistics_before_filtering_do_not_depend_on_how_rounds_were_cut(groups in groups(0), cut in 0..5_usize) {
        let rows: Vec<Vec<f64>> =
            groups.iter().map(|group| group.members.iter().map(|member| member.reward).collect()).collect();
        let cut = cut.min(rows.len());
        let all = GeneratedStatistics::of(rows.iter().map(Vec::as_slice));
        let mut parts = GeneratedStatistics::of(rows[..cut].iter().map(Vec::as_slice));
        parts.merge(&GeneratedStatistics::of(rows[cut..].iter().map(Vec::as_slice)));
        prop_assert_eq!((all.num_prompts(), all.num_trajectories()), (parts.num_prompts(), parts.num_trajectories()));
        prop_assert!((all.mean() - parts.mean()).abs() < 1e-12);
        prop_assert!((all.reward_sum() - parts.reward_sum()).abs() < 1e-12);
        if all.num_prompts() > 1 {
            prop_assert!((all.variance(1) - parts.variance(1)).abs() < 1e-12);
        }
    }
}

#[test]
fn every_estimator_has_its_entry_and_reads_its_configuration() {
    for estimator in Advantage::all() {
        let name = estimator.name();
        let entries = find(name);
        let entry = entries.iter().find(|entry| entry.family == Family::Advantage).unwrap();
        let default: Advantage = serde_json::from_value(serde_json::json!({ "kind": name })).unwrap();
        assert_eq!(default, estimator);
        assert_eq!((Advantage::of_name(name).as_ref(), entry.name), (Some(&estimator), estimator.as_str()));
        let unknown = serde_json::json!({ "kind": name, "nonsense": 1 });
        let error = serde_json::from_value::<Advantage>(unknown).unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`: there is no key `nonsense`")), "{error}");
        // The trainer can provide only columns for which it has a text.
        assert_eq!(
            estimator.needs().contains(&Column::GoldLogprobs),
            estimator.gold_hint().is_some(),
            "{name}"
        );
    }
    assert_eq!(Advantage::of_name("dapo"), None);
}

#[test]
fn a_missing_column_is_named_with_who_needs_it() {
    let rewards = Ragged::from_rows([[1.0, 0.0]]);
    let refusal = |estimator: &Advantage| {
        estimator.advantages(&AdvantageBatch::of_rewards(&rewards)).unwrap_err().to_string()
    };
    for estimator in Advantage::all().iter().filter(|estimator| !estimator.needs().is_empty()) {
        let (found, name) = (refusal(estimator), estimator.name());
        let is_named = |column: &&Column| {
            found.starts_with(&format!("column `{}` is missing; `{name}` needs it: ", column.name()))
        };
        assert_eq!(estimator.needs().iter().filter(is_named).count(), 1, "{found}");
    }
    let of_name = |name: &str| refusal(&Advantage::of_name(name).unwrap());
    insta::assert_snapshot!(of_name("gae"), @"column `mask` is missing; `gae` needs it: which tokens the policy produced");
    insta::assert_snapshot!(of_name("opo"), @"column `lengths` is missing; `opo` needs it: number of tokens trained on of each trajectory");
    insta::assert_snapshot!(of_name("remax"), @"column `greedy_rewards` is missing; `remax` needs it: the reward of one greedy completion of each prompt");
    insta::assert_snapshot!(of_name("bnpo"), @"column `generated` is missing; `bnpo` needs it: statistics of all groups of the step before filtering");
    for estimator in Advantage::all().iter().filter(|estimator| estimator.needs().is_empty()) {
        assert_eq!(estimator.advantages(&AdvantageBatch::of_rewards(&rewards)).unwrap().values().len(), 2);
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let rewards = Ragged::from_rows([vec![0.0], vec![1.0, 0.5]]);
    let mask = Ragged::from_rows([vec![true, false], vec![true], vec![]]);
    let message = |estimator: Advantage, batch: AdvantageBatch<'_>| {
        estimator.estimate(&batch, &AdvantageState::default()).unwrap_err().to_string()
    };
    let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
    let named = |name: &str| Advantage::of_name(name).unwrap();

    let short = Ragged::from_rows([vec![0.0, 0.0], vec![0.0]]);
    insta::assert_snapshot!(message(named("gae"), AdvantageBatch { values: Some(&short), ..batch }), @"column `values` has 2 rows; expected 3, one per trajectory");
    let ragged = Ragged::from_rows([vec![0.0], vec![0.0], vec![]]);
    insta::assert_snapshot!(message(named("gae"), AdvantageBatch { values: Some(&ragged), ..batch }), @"row 0 of column `values` has 1 values; expected 2");
    let nan = Ragged::from_rows([vec![0.0, f64::NAN], vec![f64::NAN], vec![]]);
    insta::assert_snapshot!(message(named("gae"), AdvantageBatch { values: Some(&nan), ..batch }), @"column `values` is NaN at token 0 of trajectory 1; expected a finite number");
    let infinite = [0.0, f64::NEG_INFINITY];
    insta::assert_snapshot!(message(named("remax"), AdvantageBatch { greedy_rewards: Some(&infinite), ..batch }), @"greedy reward of group 1 is -inf; rewards must be finite, or NaN for unscored");
    insta::assert_snapshot!(message(named("remax"), AdvantageBatch { greedy_rewards: Some(&[0.0]), ..batch }), @"column `greedy_rewards` has 1 rows; expected 2, one per group");
    insta::assert_snapshot!(message(named("opo"), AdvantageBatch { lengths: Some(&[1]), ..batch }), @"column `lengths` has 1 rows; expected 3, one per trajectory");
    let statistics = Generated { reward: GeneratedStatistics::of(rewards.rows()), components: &[] };
    let high = Ragged::from_rows([vec![0.0], vec![1.0, 1.5]]);
    let outside = AdvantageBatch { generated: Some(statistics), ..AdvantageBatch::of_rewards(&high) };
    insta::assert_snapshot!(message(named("bnpo"), outside), @"reward of trajectory 1 in group 1 is 1.5; `bnpo` is defined for rewards from 0 to 1");
    let values = Ragged::from_rows([vec![0.0, 0.0], vec![0.0], vec![]]);
    let turn_rewards = Ragged::from_rows([vec![0.0], vec![0.0, 1.0], vec![]]);
    let turns = AdvantageBatch { values: Some(&values), turn_rewards: Some(&turn_rewards), ..batch };
    insta::assert_snapshot!(message(named("bi_level_gae"), turns), @"row 1 of column `turn_rewards` has 2 values; expected 1");
}

#[test]
fn an_infinite_reward_is_refused_by_all() {
    let rewards = Ragged::from_rows([vec![0.0, f64::INFINITY]]);
    for estimator in Advantage::all().iter().filter(|estimator| estimator.needs().is_empty()) {
        let error = estimator.advantages(&AdvantageBatch::of_rewards(&rewards)).unwrap_err();
        assert!(error.to_string().starts_with("reward of trajectory 1 in group 0 is inf"), "{error}");
    }
    let mask = Ragged::from_rows([[true], [true]]);
    let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
    let error = Advantage::of_name("reinforce_plus_plus").unwrap().advantages(&batch).unwrap_err();
    insta::assert_snapshot!(error, @"reward of trajectory 1 in group 0 is inf; rewards must be finite, or NaN for unscored");
    // The first of several is named.
    let several = Ragged::from_rows([vec![1.0, 0.0], vec![f64::INFINITY, 0.0, f64::NEG_INFINITY]]);
    let grpo = Advantage::of_name("grpo").unwrap();
    let error = grpo.advantages(&AdvantageBatch::of_rewards(&several)).unwrap_err();
    assert!(error.to_string().starts_with("reward of trajectory 0 in group 1 is inf"), "{error}");
}

#[test]
fn the_running_rate_is_held_over_the_window_and_survives_a_checkpoint() {
    let running = BnpoRunning { window: 2, delta: 0.0, ..BnpoRunning::default() };
    let step = |rewards: &[f64], state: &AdvantageState| {
        let rewards = Ragged::from_rows([rewards]);
        let generated = Generated { reward: GeneratedStatistics::of(rewards.rows()), components: &[] };
        let batch = AdvantageBatch { generated: Some(generated), ..AdvantageBatch::of_rewards(&rewards) };
        let estimate = running.estimate(&batch, state).unwrap();
        (by_member(&estimate.advantages)[0][0], estimate.state)
    };
    // Beta(1 + 1, 1 + 0), then (1 + 1, 1 + 1), then the first step has left: (1 + 1, 1 + 1).
    let expected = |mu: f64, reward: f64| (reward - mu) / (mu * (1.0 - mu)).sqrt();
    let (first, state) = step(&[1.0], &AdvantageState::default());
    let saved = serde_json::to_string(&state).unwrap();
    let state: AdvantageState = serde_json::from_str(&saved).unwrap();
    let (second, state) = step(&[0.0], &state);
    let (third, state) = step(&[1.0], &state);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
    assert!(close(first, expected(2.0 / 3.0, 1.0)) && close(second, expected(0.5, 0.0)));
    assert!(close(third, expected(0.5, 1.0)) && state.recent.len() == 2);
}
