//! Cases small enough to check by hand, where modes part ways.

use proptest::prelude::*;
use tamis_core::advantage::{
    Advantage, AdvantageBatch, AdvantageEstimator, BiLevelGae, Cpo, CpoDifficulty, CpoWrap, Gae, Grpo,
    MaskedRewards, OptimalTokenBaseline, Scale, Tail, TirOptimalTokenBaseline,
};
use tamis_core::ragged::Ragged;

use super::batches::{Owned, generated, groups};

fn run(estimator: &dyn AdvantageEstimator, batch: &AdvantageBatch<'_>) -> Vec<f64> {
    estimator.advantages(batch).unwrap().values().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn with_one_turn_both_levels_are_one(mut groups in groups(0)) {
        for member in groups.iter_mut().flat_map(|group| &mut group.members) {
            member.mask.fill(true);
        }
        let gae = Gae { gamma: 0.9, lambda: 0.8, whiten: false, ..Gae::default() };
        let levels = BiLevelGae { gamma: 0.9, lambda: 0.8, turn_gamma: 0.5, whiten: false, ..BiLevelGae::default() };
        let run = |estimator| Owned::of(&groups).run(&estimator, false, &generated(&groups));
        let (one, two) = (run(Advantage::Gae(gae)), run(Advantage::BiLevelGae(levels)));
        for (a, b) in one.iter().flatten().zip(two.iter().flatten()) {
            prop_assert!((a - b).abs() < 1e-12, "{} {}", a, b);
        }
    }
}

/// Two trajectories, the first with a tool call: positions 0, 2, 3 against 0, 1, 2.
struct Tool {
    rewards: Ragged<f64>,
    mask: Ragged<bool>,
    logprobs: Ragged<f64>,
    sum_pi_squared: Ragged<f64>,
}

impl Tool {
    fn new() -> Self {
        let mask = Ragged::from_rows([vec![true, false, true, true], vec![true, true, true]]);
        // Every token has energy 1 - 2·1/2 + 1 = 1.
        let half = |value: f64| Ragged::from_rows(mask.rows().map(|row| vec![value; row.len()]));
        Self {
            rewards: Ragged::from_rows([[1.0, 0.0]]),
            logprobs: half(0.5_f64.ln()),
            sum_pi_squared: half(1.0),
            mask: mask.clone(),
        }
    }

    fn batch(&self) -> AdvantageBatch<'_> {
        AdvantageBatch {
            mask: Some(&self.mask),
            old_logprobs: Some(&self.logprobs),
            sum_pi_squared: Some(&self.sum_pi_squared),
            ..AdvantageBatch::of_rewards(&self.rewards)
        }
    }
}

fn assert_near(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    assert!(actual.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12), "{actual:?} {expected:?}");
}

#[test]
fn positions_count_all_tokens_or_the_policys_own() {
    let tool = Tool::new();
    // Weights so far by position: 1 and 1; - and 2; 2 and 3; 3 and -. The tail is position 3.
    let tail = |tail| OptimalTokenBaseline { tail, ..OptimalTokenBaseline::default() };
    let shared = [0.5, 0.0, 0.6];
    let second = [-0.5, 0.0, -0.4];
    for (tail_mode, at_3) in [(Tail::Zeroed, 1.0), (Tail::Kept, 0.0), (Tail::ZeroedByCount, 0.0)] {
        let actual = run(&tail(tail_mode), &tool.batch());
        assert_near(&actual, &[shared[0], 0.0, shared[2], at_3, second[0], second[1], second[2]]);
    }
    // The policy's own tokens: 1, 2, 3 against 1, 2, 3.
    let own = run(&TirOptimalTokenBaseline::default(), &tool.batch());
    assert_near(&own, &[0.5, 0.0, 0.5, 0.5, -0.5, -0.5, -0.5]);
}

#[test]
fn a_reward_on_tool_output_belongs_to_the_call() {
    let rewards = Ragged::from_rows([[1.0]]);
    let mask = Ragged::from_rows([[true, true, false]]);
    let values = Ragged::from_rows([[0.0, 0.5, 0.0]]);
    let token_rewards = Ragged::from_rows([[0.0, 0.0, 1.0]]);
    let batch = AdvantageBatch {
        mask: Some(&mask),
        values: Some(&values),
        token_rewards: Some(&token_rewards),
        ..AdvantageBatch::of_rewards(&rewards)
    };
    let gae = |masked_rewards| Gae { whiten: false, masked_rewards, ..Gae::default() };
    assert_eq!(run(&gae(MaskedRewards::Credited), &batch), [1.0, 0.5, 0.0]);
    assert_eq!(run(&gae(MaskedRewards::Lost), &batch), [0.0, -0.5, 0.0]);
}

#[test]
fn the_contrast_is_bounded_in_mixed_groups_only() {
    // One mixed group (A = ±1), one of rights, one of wrongs.
    let rewards = Ragged::from_rows([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]);
    let column = |values: [f64; 6]| Ragged::from_rows(values.map(|value| [value]));
    let mask = Ragged::from_rows([[true]; 6]);
    let old = column([-2.0; 6]);
    // k of 1, 3, 1, 0, 1, -1.
    let gold = column([-1.0, 1.0, -1.0, -2.0, -1.0, -3.0]);
    let entropy = column([4.0, 1.0, 1.0, 2.0, 1.0, 1.0]);
    let batch = AdvantageBatch {
        mask: Some(&mask),
        old_logprobs: Some(&old),
        gold_logprobs: Some(&gold),
        entropy: Some(&entropy),
        ..AdvantageBatch::of_rewards(&rewards)
    };
    let cpo =
        Cpo { pos_alpha: -0.25, grpo: Grpo { scale: Scale::None, ..Grpo::default() }, ..Cpo::default() };
    // Right in the mixed group: -1 bounded to -1/2. Wrong: 3 bounded to 1/2.
    assert_eq!(run(&cpo, &batch), [0.5, -0.5, -0.25, -0.5, 1.0, -1.0]);
    // Never found uniform: bounds of 0 let through what raises rights and lowers wrongs.
    let fork = Cpo { difficulty: CpoDifficulty::Fork, ..cpo };
    assert_eq!(run(&fork, &batch), [0.5, -0.5, 0.0, 0.0, 0.0, -1.0]);
    let negonly = Cpo { wrap: CpoWrap::NegonlySeqKl, pos_alpha: 0.5, ..cpo };
    assert_eq!(run(&negonly, &batch), [1.5, -1.0, 0.5, 0.0, 1.0, -1.0]);
    let negonly_fork = Cpo { difficulty: CpoDifficulty::Fork, ..negonly };
    assert_eq!(run(&negonly_fork, &batch), [1.5, -1.0, 0.5, 0.0, 0.0, 0.0]);
    // One token a completion: the entropy has no range, so rights are moved by nothing.
    let tokens = Cpo { wrap: CpoWrap::TokKl, ..cpo };
    assert_eq!(run(&tokens, &batch), [1.0, -0.5, 0.0, 0.0, 1.0, -1.0]);
}
