//! Every policy loss by hand on one token, its extremes, and its refusals.

use tamis_core::objective::{
    AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, ClipCov, Columns, Decoupled, Derivatives, DppoKl,
    DppoTv, Dro, EntropyBonus, GeoMean, GroupCounts, Gspo, GspoForm, Importance, KlCov, LengthDivisors,
    LossMasks, Luspo, Normalisers, Objective, Outcome, PolicyLoss, Reinforce, Sapo, Selection, Vespo,
    ZeroGroups,
};
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};

use crate::batch::run;
use crate::registry::all;

const ONE: Normalisers = Normalisers { tokens: 1.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
const CLIP: Clip =
    Clip { clip_low: 0.2, clip_high: 0.2, dual_clip: None, delta: None, log_ratio_limit: None };
const LUSPO: Luspo = Luspo { clip_low: 0.2, clip_high: 0.2, log_ratio_limit: None };
const DECOUPLED: Decoupled = Decoupled {
    clip_low: 0.2,
    clip_high: 0.2,
    dual_clip: None,
    weight_cap: Some(2.5),
    log_ratio_limit: None,
};
const DPPO_KL: DppoKl = DppoKl { clip_low: 0.2, clip_high: 0.2, max_ratio: 1.5, log_ratio_limit: None };
const DPPO: DppoTv = DppoTv { clip_low: 0.2, clip_high: 0.2, max_ratio: 1.5, log_ratio_limit: None };

/// One token, chosen by the selection, aggregated as a sum.
fn one(policy: PolicyLoss, logprob: f64, old: f64, behaviour: f64, advantage: f64) -> (Outcome, Derivatives) {
    one_of(policy, [logprob, old, behaviour], advantage, &[Selection::BY_COVARIANCE])
}

/// One token with this selection, of a log-probability, the old one and the sampler's; aggregated as a sum.
fn one_of(
    policy: PolicyLoss,
    [logprob, old, behaviour]: [f64; 3],
    advantage: f64,
    selection: &[u8],
) -> (Outcome, Derivatives) {
    let aggregation = policy.needed_aggregation().unwrap_or(Aggregation::TokenSum);
    let objective = Objective::of(policy, aggregation);
    let (logprob, advantage, others) = ([logprob], [advantage], [old, behaviour]);
    let columns = Columns {
        old: Some(&others[..1]),
        behaviour: Some(&others[1..]),
        selection: Some(selection),
        ..Columns::new(&[0, 1], &[true], &logprob, AdvantageColumn::PerTrajectory(&advantage))
    };
    run(&objective, &columns, &ONE)
}

#[test]
fn a_token_that_has_doubled_by_hand() {
    // From 1/4 to 1/2; the sampler gave it a third of the old policy's probability.
    let two = 2_f64.ln();
    let (logprob, old) = (-two, -2.0 * two);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (positive, negative) = (4.0 * (-3_f64).exp(), 8.0 * (-2_f64).exp());
    let clip_cov = ClipCov { clip_low: 0.2, clip_high: 0.2, share: 0.5, cov_low: 0.0, cov_high: 1.0 };
    let gspo = Gspo { clip_low: 0.2, clip_high: 0.2, form: GspoForm::Sequence, log_ratio_limit: None };
    let geo_mean = GeoMean { clip_low: 0.4, clip_high: 0.4, length_epsilon: 0.0, weight_epsilon: 0.0 };
    let cispo = Cispo {
        bound: CispoBound::Relative,
        clip_low: 0.2,
        clip_high: 0.28,
        max_ratio: 5.0,
        log_ratio_limit: None,
    };
    let vespo = Vespo { k_positive: 2.0, lambda_positive: 3.0, k_negative: 3.0, lambda_negative: 2.0 };
    // Loss and derivative for advantage 1, and for -1. A new loss has its token in its own file.
    for (policy, good, bad) in [
        (PolicyLoss::Clip(CLIP), (-1.2, 0.0), (2.0, 2.0)),
        (PolicyLoss::Gspo(gspo), (-1.2, 0.0), (2.0, 2.0)),
        (PolicyLoss::Luspo(LUSPO), (-1.2, 0.0), (2.0, 2.0)),
        (PolicyLoss::Decoupled(DECOUPLED), (-1.2 * 2.5, 0.0), (5.0, 5.0)),
        (PolicyLoss::Reinforce(Reinforce {}), (two, -1.0), (-two, 1.0)),
        (PolicyLoss::Gpg(Reinforce {}), (two, -1.0), (-two, 1.0)),
        (PolicyLoss::ClipCov(clip_cov), (0.0, 0.0), (0.0, 0.0)),
        (
            PolicyLoss::KlCov(KlCov { share: 0.5, cov_coefficient: 0.5 }),
            (-2.0 + 0.5 * two, -1.5),
            (2.0 + 0.5 * two, 2.5),
        ),
        (PolicyLoss::GeoMean(geo_mean), (-(0.4_f64.exp()), 0.0), (2.0, 2.0)),
        (PolicyLoss::Cispo(cispo), (1.28 * two, -1.28), (-1.28 * two, 1.28)),
        (
            PolicyLoss::Sapo(Sapo { tau_positive: 1.0, tau_negative: 2.0, log_ratio_limit: None }),
            (-4.0 * sigmoid(1.0), -8.0 * sigmoid(1.0) * sigmoid(-1.0)),
            (2.0 * sigmoid(2.0), 8.0 * sigmoid(2.0) * sigmoid(-2.0)),
        ),
        // 1/4 more is too much; a bad token may rise.
        (PolicyLoss::DppoTv(DPPO), (0.0, 0.0), (-1.5 * two, 1.5)),
        // ln(1/2)/4 + 3/4·ln(3/2) = 0.131 is not.
        (PolicyLoss::DppoKl(DPPO_KL), (1.5 * two, -1.5), (-1.5 * two, 1.5)),
        (
            PolicyLoss::Dro(Dro { beta: 0.5 }),
            (two + 0.25 * two * two, -1.0 + 0.5 * two),
            (-two + 0.25 * two * two, 1.0 + 0.5 * two),
        ),
        (PolicyLoss::Vespo(vespo), (positive * two, -positive), (-negative * two, negative)),
    ] {
        let name = policy.name();
        for (advantage, (loss, slope)) in [(1.0, good), (-1.0, bad)] {
            let (outcome, derivatives) = one(policy.clone(), logprob, old, old - 3_f64.ln(), advantage);
            assert!(
                (outcome.loss - loss).abs() < 1e-14,
                "{name} {advantage}: {} against {loss}",
                outcome.loss
            );
            let found = derivatives.logprob[0];
            assert!((found - slope).abs() < 1e-14, "{name} {advantage}: slope {found} against {slope}");
            assert!((outcome.metrics.ratio_mean - 2.0).abs() < 0.6, "{name}: {}", outcome.metrics.ratio_mean);
            assert!((outcome.metrics.old_kl + two).abs() < 1e-15, "{name}");
        }
    }
}

#[test]
fn huge_ratios_give_no_nan() {
    for policy in all() {
        let name = policy.name();
        for (logprob, old) in [(-0.01, -60.0), (-60.0, -0.01), (-0.01, -700.0), (-700.0, -0.01), (0.0, 0.0)] {
            for advantage in [1.0, -1.0, 0.0] {
                let (outcome, derivatives) = one(policy.clone(), logprob, old, old, advantage);
                assert!(outcome.loss.is_finite(), "{name} {logprob} {old} {advantage}: {}", outcome.loss);
                assert!(derivatives.logprob[0].is_finite(), "{name} {logprob} {old} {advantage}");
                // Without an advantage only a pull is left, and it is there if the policy has moved.
                let is_pulled = policy.pulls_without_advantage() && logprob != old;
                assert!(advantage != 0.0 || is_pulled == (derivatives.logprob[0] != 0.0), "{name}");
            }
        }
    }
}

/// Only keys that bound a ratio of 1 make a loss another one, and no default does.
#[test]
fn by_default_every_loss_is_a_policy_gradient_on_policy() {
    assert_eq!(all().filter(|policy| !policy.is_gradient_on_policy()).count(), 0);
    let bounded = r#"{"kind": "cispo", "bound": "absolute", "max_ratio": 0.2}"#;
    assert!(!serde_json::from_str::<PolicyLoss>(bounded).unwrap().is_gradient_on_policy());
}

#[test]
fn a_nan_reaches_every_loss() {
    for policy in all() {
        // A token that is not chosen: `clip_cov` leaves the chosen ones out.
        let (outcome, _) = one_of(policy.clone(), [f64::NAN, -1.0, -1.0], 1.0, &[0]);
        assert!(outcome.loss.is_nan() && outcome.metrics.old_kl.is_nan(), "{}", policy.name());
    }
}

#[test]
fn a_trajectorys_ratio_is_the_geometric_mean() {
    // Ratios 4 and 1: together 2.
    let (logprob, old) = ([-1.0, -1.0], [-1.0 - 4_f64.ln(), -1.0]);
    let normalisers = Normalisers { tokens: 2.0, ..ONE };
    for (importance, weight, slopes) in [
        (Importance::Sequence, None, [2.0, 2.0]),
        (Importance::SequenceToken, None, [2.0, 2.0]),
        // Weights distinguish the two: the trajectory's ratio moves with both tokens.
        (Importance::Sequence, Some([1.0, 0.0]), [1.0, 1.0]),
        (Importance::SequenceToken, Some([1.0, 0.0]), [2.0, 0.0]),
    ] {
        let objective =
            Objective { importance, ..Objective::of(PolicyLoss::Clip(CLIP), Aggregation::TokenSum) };
        let columns = Columns {
            old: Some(&old),
            weight: weight.as_ref().map(|weight| &weight[..]),
            ..Columns::new(&[0, 2], &[true, true], &logprob, AdvantageColumn::PerTrajectory(&[-1.0]))
        };
        let (outcome, derivatives) = run(&objective, &columns, &normalisers);
        assert!((outcome.metrics.ratio_mean - 2.0).abs() < 1e-15);
        for (found, slope) in derivatives.logprob.iter().zip(slopes) {
            assert!((found - slope).abs() < 1e-14, "{importance:?}: {found} against {slope}");
        }
    }
}

/// A drift of exactly the threshold is allowed.
#[test]
fn far_trajectories_do_not_push_down() {
    let masks = LossMasks { top_entropy: None, off_policy: Some(0.5) };
    let objective =
        Objective { masks, ..Objective::of(PolicyLoss::Reinforce(Reinforce {}), Aggregation::TokenSum) };
    for (advantage, behaviour, slope) in
        [(-1.0, 0.0, 0.0), (-1.0, -0.499, 0.0), (-1.0, -0.5, 1.0), (1.0, 0.0, -1.0), (-1.0, f64::NAN, 1.0)]
    {
        let (advantages, behaviours) = ([advantage], [behaviour]);
        let columns = Columns {
            behaviour: Some(&behaviours),
            ..Columns::new(&[0, 1], &[true], &[-1.0], AdvantageColumn::PerTrajectory(&advantages))
        };
        let (_, derivatives) = run(&objective, &columns, &ONE);
        assert_eq!(derivatives.logprob, [slope], "{advantage} {behaviour}");
    }
}

#[test]
fn every_prompt_weighs_the_same() {
    // Groups of two and of one trained trajectory; a third trajectory of the first group is fully masked.
    let mask = Ragged::from_rows([vec![true, true], vec![true], vec![false], vec![true, false]]);
    let sequences = Normalisers::group_sequences(&mask, &[3, 1]).unwrap();
    assert_eq!(sequences, [2.0, 2.0, 2.0, 1.0]);
    let (normalisers, tokens) = Normalisers::of(&mask, &[3, 1]).unwrap();
    let weight = |i: usize, length: usize| {
        let group = GroupCounts { tokens: Some(tokens[i]), sequences: Some(sequences[i]) };
        let divisors = LengthDivisors::default();
        Aggregation::GroupSeqMean.weight(length, group, &normalisers, &divisors).unwrap()
    };
    assert_eq!([weight(0, 2), weight(1, 1), weight(2, 0), weight(3, 1)], [0.125, 0.25, 0.0, 0.5]);
}

#[test]
fn dropped_groups_stay_in_the_denominators_where_asked() {
    let kept = Normalisers { tokens: 6.0, sequences: 3.0, groups: 1.0, dp_size: 1.0 };
    let dropped = Normalisers { tokens: 10.0, sequences: 4.0, groups: 1.0, dp_size: 1.0 };
    assert_eq!(kept.with_dropped(dropped, ZeroGroups::Drop), kept);
    let both = Normalisers { tokens: 16.0, sequences: 7.0, groups: 2.0, dp_size: 1.0 };
    assert_eq!(kept.with_dropped(dropped, ZeroGroups::Mask), both);
}

#[test]
fn the_entropy_coefficient_is_held_at_its_target() {
    let adaptive = tamis_core::objective::AdaptiveEntropy { min: 0.0, max: 0.012, delta: 0.005, target: 0.2 };
    let bonus = EntropyBonus { coef: 0.01, aggregation: None, adaptive: Some(adaptive) };
    let start = bonus.initial();
    assert_eq!(bonus.coefficient(start), 0.01);
    let low = bonus.update(start, 0.1);
    assert_eq!((low.coef, bonus.coefficient(low)), (0.012, 0.012));
    // Above the target there is no bonus, and the coefficient falls.
    let high = bonus.update(low, 0.3);
    assert_eq!((high.coef, bonus.coefficient(high)), (0.012 - 0.005, 0.0));
    assert_eq!(bonus.update(high, f64::NAN), high);
}

#[test]
fn errors_name_what_does_not_go_together() {
    let columns = Columns::new(&[0, 1], &[true], &[-1.0], AdvantageColumn::PerTrajectory(&[1.0]));
    let message = |objective: Objective, columns: Columns<'_, f64>| {
        objective.value_and_gradient(&columns, &ONE, &objective.initial_state()).unwrap_err().to_string()
    };
    let of = |policy| Objective::of(policy, Aggregation::TokenMean);
    let sequence = |policy| Objective { importance: Importance::Sequence, ..of(policy) };
    insta::assert_snapshot!(message(sequence(PolicyLoss::Gpg(Reinforce {})), columns), @"policy loss `gpg` has no importance `sequence`; leave it at `token`");
    insta::assert_snapshot!(message(of(PolicyLoss::Luspo(LUSPO)), columns), @"policy loss `luspo` with aggregation `token-mean`; expected `seq-mean-token-sum`");
    let decoupled = PolicyLoss::Decoupled(Decoupled { weight_cap: None, ..DECOUPLED });
    insta::assert_snapshot!(message(of(decoupled), columns), @"column `behaviour` is missing; decoupled needs it");
    insta::assert_snapshot!(message(of(PolicyLoss::KlCov(KlCov { share: 0.1, cov_coefficient: 1.0 })), columns), @"column `selection` is missing; a choice over the whole batch needs it");
    let top = |share| Objective {
        masks: LossMasks { top_entropy: Some(share), off_policy: None },
        ..of(PolicyLoss::Gpg(Reinforce {}))
    };
    let key = Key::new(0, Purpose::MiniBatch);
    insta::assert_snapshot!(top(0.2).select(&columns, key).unwrap_err(), @"column `entropy` is missing; the mask `top_entropy` needs it");
    insta::assert_snapshot!(message(of(PolicyLoss::Clip(CLIP)), Columns { selection: Some(&[]), ..columns }), @"column `selection` has 0 values, expected 1");
    let groups = Objective::of(PolicyLoss::Gpg(Reinforce {}), Aggregation::GroupSeqMean);
    insta::assert_snapshot!(message(groups, columns), @"column `group_sequences` is missing; aggregation `group-seq-mean` needs it");

    insta::assert_snapshot!(message(top(1.5), columns), @"objective setting `masks.top_entropy` is 1.5; expected a share from 0 to 1");
    let cov = ClipCov { clip_low: 0.2, clip_high: 0.2, share: 0.1, cov_low: 2.0, cov_high: 1.0 };
    insta::assert_snapshot!(message(of(PolicyLoss::ClipCov(cov)), columns), @"objective setting `loss.cov_low` is 2; expected a number below `cov_high`");
}

#[test]
fn settings_survive_a_checkpoint() {
    for policy in all() {
        let text = serde_json::to_string(&policy).unwrap();
        assert!(text.contains(&format!("\"kind\":\"{}\"", policy.name())), "{text}");
        assert_eq!(serde_json::from_str::<PolicyLoss>(&text).unwrap(), policy);
        let entries = tamis_core::catalogue::find(policy.name());
        assert!(!entries.is_empty(), "{} has no entry in the catalogue", policy.name());
    }
}
