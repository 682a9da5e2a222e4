//! Cases small enough to check by hand in which modes differ.

use proptest::prelude::*;
use proptest::sample::select;
use tamis_core::advantage::{
    Advantage, AdvantageBatch, AdvantageEstimator, AdvantageState, BiLevelGae, Bnpo, BnpoRunning, Column,
    Cpo, CpoWrap, DrGrpo, Gae, Generated, GeneratedStatistics, Gpg, Grpo, MaskedRewards, NormalizeThenSum,
    OptimalTokenBaseline, Scale, SingletonAdvantage, StatisticsUnit, Tail, TirOptimalTokenBaseline,
};
use tamis_core::ragged::Ragged;

use super::batches::{Owned, generated, groups};

#[track_caller]
fn close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    assert!(actual.iter().zip(expected).all(|(a, e)| (a - e).abs() < tolerance), "{actual:?} {expected:?}");
}

/// With a mask and log-probabilities.
fn sampled<'a>(rewards: &'a Ragged<f64>, mask: &'a Ragged<bool>, old: &'a Ragged<f64>) -> AdvantageBatch<'a> {
    AdvantageBatch { mask: Some(mask), old_logprobs: Some(old), ..AdvantageBatch::of_rewards(rewards) }
}

/// With log-probabilities without a gold answer and with it, and entropies.
fn with_gold<'a>(
    rewards: &'a Ragged<f64>,
    mask: &'a Ragged<bool>,
    [old, gold, entropy]: [&'a Ragged<f64>; 3],
) -> AdvantageBatch<'a> {
    AdvantageBatch { gold_logprobs: Some(gold), entropy: Some(entropy), ..sampled(rewards, mask, old) }
}

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
        close(&one.concat(), &two.concat(), 1e-12);
    }

    /// Rewards of -1 and 3 for failure and success give the same as 0 and 1.
    #[test]
    fn bnpo_reads_rewards_within_their_range(rows in proptest::collection::vec(proptest::collection::vec(select(vec![0.0, 0.25, 0.5, 1.0]), 1..6), 1..5), ddof in 0_u8..2) {
        let rewards = Ragged::from_rows(&rows);
        let moved = Ragged::from_rows(rows.iter().map(|row| row.iter().map(|reward| 4.0 * reward - 1.0).collect::<Vec<_>>()));
        let of = |estimator: Advantage, rewards: &Ragged<f64>| {
            // One more prompt was generated and dropped: all right.
            let mut reward = GeneratedStatistics::of(rewards.rows());
            reward.add(&[if rewards.values().as_ptr() == moved.values().as_ptr() { 3.0 } else { 1.0 }]);
            let generated = Generated { reward, components: &[] };
            let batch = AdvantageBatch { generated: Some(generated), ..AdvantageBatch::of_rewards(rewards) };
            run(&*estimator, &batch)
        };
        let fitted = |low, high| Advantage::Bnpo(Bnpo { ddof, low, high, ..Bnpo::default() });
        let running = |low, high| Advantage::BnpoRunning(BnpoRunning { low, high, ..BnpoRunning::default() });
        for (unit, wide) in [(fitted(0.0, 1.0), fitted(-1.0, 3.0)), (running(0.0, 1.0), running(-1.0, 3.0))] {
            for (a, b) in of(unit, &rewards).iter().zip(of(wide, &moved)) {
                prop_assert!((a - b).abs() < 1e-9 * (1.0 + a.abs()), "{} {}", a, b);
            }
        }
    }
}

#[test]
fn the_running_variance_has_delta_added() {
    // Beta(1, 1 + 2): mu 1/4, variance 3/16 + 1/16.
    let rewards = Ragged::from_rows([[0.0, 0.0]]);
    let generated = Generated { reward: GeneratedStatistics::of(rewards.rows()), components: &[] };
    let batch = AdvantageBatch { generated: Some(generated), ..AdvantageBatch::of_rewards(&rewards) };
    assert_eq!(run(&BnpoRunning { delta: 1.0 / 16.0, ..BnpoRunning::default() }, &batch), [-0.5, -0.5]);
}

#[test]
fn turns_are_given_or_found() {
    let rewards = Ragged::from_rows([[1.0]]);
    let mask = Ragged::from_rows([[true, true, true]]);
    let values = Ragged::from_rows([[0.0, 0.5, 0.5]]);
    let turns = Ragged::from_rows([[4, 4, 7]]);
    let turn_rewards = Ragged::from_rows([[0.0, 1.0]]);
    let batch = AdvantageBatch {
        mask: Some(&mask),
        values: Some(&values),
        turns: Some(&turns),
        turn_rewards: Some(&turn_rewards),
        ..AdvantageBatch::of_rewards(&rewards)
    };
    let gae = BiLevelGae { turn_gamma: 0.5, lambda: 0.5, whiten: false, ..BiLevelGae::default() };
    // As in the estimator's own example, with turns separated by a tool.
    let estimate = gae.estimate(&batch, &AdvantageState::default()).unwrap();
    assert_eq!(estimate.advantages.values(), [0.4375, -0.125, 0.5]);
    assert_eq!(estimate.returns.unwrap().values(), [0.4375, 0.375, 1.0]);
    // Token rewards are summed over each turn: 1 and 1 here, without a discount.
    let zeros = Ragged::from_rows([[0.0; 3]]);
    let token_rewards = Ragged::from_rows([[0.0, 1.0, 1.0]]);
    let sparse = AdvantageBatch {
        values: Some(&zeros),
        turn_rewards: None,
        token_rewards: Some(&token_rewards),
        ..batch
    };
    let plain = BiLevelGae { turn_gamma: 1.0, whiten: false, ..BiLevelGae::default() };
    assert_eq!(run(&plain, &sparse), [2.0, 2.0, 1.0]);
    // It would be one turn without the given turns.
    let one = AdvantageBatch { turns: None, ..sparse };
    let by_turn = BiLevelGae { turn_gamma: 0.5, whiten: false, ..BiLevelGae::default() };
    assert_eq!((run(&by_turn, &one), run(&by_turn, &sparse)), (vec![2.0; 3], vec![1.5, 1.5, 1.0]));
}

#[test]
fn singletons_by_setting() {
    let rewards = Ragged::from_rows([[0.7]]);
    let batch = AdvantageBatch::of_rewards(&rewards);
    assert_eq!(run(&DrGrpo { singleton: SingletonAdvantage::Raw }, &batch), [0.7]);
    assert_eq!(run(&DrGrpo { singleton: SingletonAdvantage::Zero }, &batch), [0.0]);
    let column = Ragged::from_rows([[-1.0]]);
    let mask = Ragged::from_rows([[true]]);
    let batch = AdvantageBatch { gold_logprobs: Some(&column), ..sampled(&rewards, &mask, &column) };
    assert_eq!(run(&Cpo { grpo: Grpo::verl(), ..Cpo::default() }, &batch), [0.7 / (1.0 + 1e-6)]);
    // Sums of 1 and 3: mean 2, sample deviation √2.
    let pair = Ragged::from_rows([[1.0], [3.0]]);
    let raw = NormalizeThenSum { epsilon: 0.0, singleton: SingletonAdvantage::Raw };
    close(&run(&raw, &AdvantageBatch::of_rewards(&pair)), &[-0.5_f64.sqrt(), 0.5_f64.sqrt()], 1e-12);
}

#[test]
fn a_divisor_divides() {
    let rewards = Ragged::from_rows([[1.0, 0.0]]);
    let batch = AdvantageBatch::of_rewards(&rewards);
    assert_eq!(run(&Gpg { divisor: 2.0, ..Gpg::default() }, &batch), [0.25, -0.25]);
    // One of three trajectories has a signal, a group of its own.
    let rewards = Ragged::from_rows([vec![1.0], vec![0.0, 0.0]]);
    let raw = Gpg { singleton: SingletonAdvantage::Raw, ..Gpg::default() };
    assert_eq!(run(&raw, &AdvantageBatch::of_rewards(&rewards)), [3.0, 0.0, 0.0]);
}

#[test]
fn trajectories_without_tokens() {
    let rewards = Ragged::from_rows([[1.0, 0.0, 0.0, 0.0]]);
    let named = |name: &str| Advantage::of_name(name).unwrap();
    // No member has a token for weighting, so the mean is the plain one.
    let none = AdvantageBatch { lengths: Some(&[0; 4]), ..AdvantageBatch::of_rewards(&rewards) };
    assert_eq!(run(&*named("opo"), &none), [0.75, -0.25, -0.25, -0.25]);
    // All trained tokens are equal; a member without tokens does not make a difference.
    let lengths = AdvantageBatch { lengths: Some(&[0, 3, 2, 1]), ..AdvantageBatch::of_rewards(&rewards) };
    assert_eq!(run(&*named("reinforce_plus_plus_baseline"), &lengths), [0.0; 4]);
    // The one with a token has nothing to compare with, so its baseline is 0.
    let mask = Ragged::from_rows([[true], [false]]);
    let column = Ragged::from_rows([[-1.0], [-1.0]]);
    for rewards in [[1.0, 0.0], [0.5, 2.0]] {
        let rewards = Ragged::from_rows([rewards]);
        let batch = AdvantageBatch { sum_pi_squared: Some(&column), ..sampled(&rewards, &mask, &column) };
        assert_eq!(run(&OptimalTokenBaseline::default(), &batch), [rewards.values()[0], 0.0]);
    }
    // Without a token there is no contrast: the wrong one keeps GRPO's advantage.
    let rewards = Ragged::from_rows([[1.0, 0.0]]);
    let batch = AdvantageBatch { gold_logprobs: Some(&column), ..sampled(&rewards, &mask, &column) };
    let cpo = Cpo { grpo: Grpo { scale: Scale::None, ..Grpo::default() }, ..Cpo::default() };
    assert_eq!(run(&cpo, &batch), [0.5, -0.5]);
}

#[test]
fn a_large_mean_does_not_cancel_the_spread() {
    let large = 2.0_f64.powi(52);
    let rewards = Ragged::from_rows([[large, large + 2.0]]);
    let mask = Ragged::from_rows([[true], [true]]);
    let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
    let expected = 1.0 / (2.0_f64 + 1e-8).sqrt();
    close(&run(&*Advantage::of_name("reinforce_plus_plus").unwrap(), &batch), &[-expected, expected], 1e-12);
}

#[test]
fn without_energy_the_baseline_is_the_plain_mean() {
    let rewards = Ragged::from_rows([[3.0, 1.0, 0.0, 1.0]]);
    let mask = Ragged::from_rows([[true]; 4]);
    // Certain of every token: π = 1, so that 1 - 2π + Σπ² = 0.
    let (logprobs, squares) = (Ragged::from_rows([[0.0]; 4]), Ragged::from_rows([[1.0]; 4]));
    let batch = AdvantageBatch { sum_pi_squared: Some(&squares), ..sampled(&rewards, &mask, &logprobs) };
    let baseline = OptimalTokenBaseline { tail: Tail::Kept, ..OptimalTokenBaseline::default() };
    assert_eq!(run(&baseline, &batch), [1.75, -0.25, -1.25, -0.25]);
}

#[test]
fn a_tokens_entropy_counts_within_the_range_of_its_completion() {
    let rewards = Ragged::from_rows([[1.0, -1.0]]);
    let mask = Ragged::from_rows([[true, true, true, false], [true, true, true, false]]);
    let old = Ragged::from_rows([[-1.0; 4]; 2]);
    let gold = Ragged::from_rows([[-1.0; 4], [-1.25, -3.0, -30.0, 0.0]]);
    let entropy = Ragged::from_rows([[1.0, 2.0, 3.0, 9.0]; 2]);
    let batch = with_gold(&rewards, &mask, [&old, &gold, &entropy]);
    let grpo = Grpo { scale: Scale::None, ..Grpo::default() };
    let u = 1.0 / (2.0 + 1e-8);
    let cpo = Cpo { wrap: CpoWrap::TokKl, pos_alpha: 0.5, grpo, ..Cpo::default() };
    // The contrasts of the wrong one are -0.25, -2 and -29, which is limited to -10.
    close(&run(&cpo, &batch), &[1.0, 1.0 + 0.5 * u, 1.0 + u, 0.0, -1.25, -3.0, -11.0, 0.0], 1e-12);
}

/// Two trajectories, the first with a tool call: positions 0, 2, 3 against 0, 1, 2.
#[test]
fn positions_count_all_tokens_or_the_policys_own() {
    let rewards = Ragged::from_rows([[1.0, 0.0]]);
    let mask = Ragged::from_rows([vec![true, false, true, true], vec![true, true, true]]);
    // Every token has energy 1 - 2·1/2 + 1 = 1.
    let each = |value: f64| Ragged::from_rows(mask.rows().map(|row| vec![value; row.len()]));
    let (logprobs, squares) = (each(0.5_f64.ln()), each(1.0));
    let batch = AdvantageBatch { sum_pi_squared: Some(&squares), ..sampled(&rewards, &mask, &logprobs) };
    // Weights so far by position: 1 and 1; - and 2; 2 and 3; 3 and -. The tail is position 3.
    for (tail, at_3) in [(Tail::Zeroed, 1.0), (Tail::Kept, 0.0), (Tail::ZeroedByCount, 0.0)] {
        let actual = run(&OptimalTokenBaseline { tail, ..OptimalTokenBaseline::default() }, &batch);
        close(&actual, &[0.5, 0.0, 0.6, at_3, -0.5, 0.0, -0.4], 1e-12);
    }
    // The policy's own tokens: 1, 2, 3 against 1, 2, 3.
    let own = run(&TirOptimalTokenBaseline::default(), &batch);
    close(&own, &[0.5, 0.0, 0.5, 0.5, -0.5, -0.5, -0.5], 1e-12);
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
    // One mixed group (A = ±1), one of right and one of wrong answers.
    let rewards = Ragged::from_rows([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]);
    let column = |values: [f64; 6]| Ragged::from_rows(values.map(|value| [value]));
    let mask = Ragged::from_rows([[true]; 6]);
    let old = column([-2.0; 6]);
    // k of 1, 3, 1, 0, 1, -1.
    let gold = column([-1.0, 1.0, -1.0, -2.0, -1.0, -3.0]);
    let entropy = column([4.0, 1.0, 1.0, 2.0, 1.0, 1.0]);
    let batch = with_gold(&rewards, &mask, [&old, &gold, &entropy]);
    let cpo =
        Cpo { pos_alpha: -0.25, grpo: Grpo { scale: Scale::None, ..Grpo::default() }, ..Cpo::default() };
    // Right in the mixed group: -1 bounded to -1/2. Wrong: 3 bounded to 1/2.
    assert_eq!(run(&cpo, &batch), [0.5, -0.5, -0.25, -0.5, 1.0, -1.0]);
    // One token per completion: the entropy has no range, so right ones do not change.
    let tokens = Cpo { wrap: CpoWrap::TokKl, ..cpo };
    assert_eq!(run(&tokens, &batch), [1.0, -0.5, 0.0, 0.0, 1.0, -1.0]);
}

/// The answer raises one token eightfold, lowers one to a quarter and leaves one unchanged, in a mixed group
/// and in a group of wrong ones.
#[test]
fn a_contrast_of_tokens_by_hand() {
    let rewards = Ragged::from_rows([[1.0, -1.0], [-1.0, -1.0]]);
    let of_each = |row: [f64; 3]| Ragged::from_rows([row; 4]);
    let log = |probability: f64| probability.ln();
    let mask = Ragged::from_rows([[true; 3]; 4]);
    let old = of_each([log(1.0 / 16.0), log(0.5), log(0.25)]);
    let gold = of_each([log(0.5), log(0.125), log(0.25)]);
    let entropy = of_each([2.0, 1.0, 1.5]);
    let batch = with_gold(&rewards, &mask, [&old, &gold, &entropy]);
    let grpo = Grpo { scale: Scale::None, ..Grpo::default() };
    let cpo = Cpo { wrap: CpoWrap::TokKl, pos_alpha: 0.5, neg_alpha: 0.25, grpo, ..Cpo::default() };
    let (rise, fall) = (8.0_f64.ln() / 4.0, -(4.0_f64.ln()) / 4.0);
    // Entropies scale to 1, 0 and 1/2, with 1e-8 in the divisor; the rise of a wrong one is bounded by half
    // its advantage of -1.
    let right = [1.5, 1.0, 1.25];
    let wrong = [-0.5, -1.0 + fall, -1.0];
    let among_wrongs = [rise, fall, 0.0];
    close(&run(&cpo, &batch), &[right, wrong, among_wrongs, among_wrongs].concat(), 1e-7);
}

#[test]
fn cpo_reads_the_entropy_only_for_right_completions() {
    let reads = |pos_alpha| Cpo { pos_alpha, ..Cpo::default() }.needs().contains(&Column::Entropy);
    assert!(!reads(0.0) && reads(0.5));
}

#[test]
fn statistics_by_turns_count_a_member_once_for_each_of_its_turns() {
    let rewards = Ragged::from_rows([vec![1.0, 0.0, f64::NAN], vec![2.0, 2.0]]);
    // Three turns, one, one without a token that counts; then two that only the turns separate, and one.
    let mask = Ragged::from_rows([
        vec![true, false, true, false, true],
        vec![true, true],
        vec![false],
        vec![true, true],
        vec![true],
    ]);
    let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&rewards) };
    let by_turn = Grpo { scale: Scale::None, statistics: StatisticsUnit::Turn, ..Grpo::default() };
    // Mean of 1, 1, 1, 0.
    assert_eq!(run(&by_turn, &batch), [0.25, -0.75, 0.0, 0.0, 0.0]);
    let divided = Grpo { scale: Scale::Group, epsilon: 0.0, ..by_turn };
    // Three of four: the squares are 3/16 + 9/16 over three.
    assert_eq!(run(&divided, &batch)[..2], [0.5, -1.5]);
    let by_episode = Grpo { statistics: StatisticsUnit::Episode, ..by_turn };
    assert_eq!(run(&by_episode, &batch), [0.5, -0.5, 0.0, 0.0, 0.0]);
    // From the mask, adjacent tokens form one turn; the turns make them two.
    let uneven = Ragged::from_rows([vec![1.0, 0.0]]);
    let mask = Ragged::from_rows([vec![true, true], vec![true]]);
    let turns = Ragged::from_rows([vec![0_u32, 1], vec![0]]);
    let batch = AdvantageBatch { mask: Some(&mask), ..AdvantageBatch::of_rewards(&uneven) };
    assert_eq!(run(&by_turn, &batch), [0.5, -0.5]);
    close(&run(&by_turn, &AdvantageBatch { turns: Some(&turns), ..batch }), &[1.0 / 3.0, -2.0 / 3.0], 1e-15);
    assert!(by_turn.advantages(&AdvantageBatch::of_rewards(&uneven)).is_err(), "the mask is missing");
}
