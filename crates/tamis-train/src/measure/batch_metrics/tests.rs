use tamis_core::group::{FinishReason, Score};
use tamis_golden::{assert_close, cases, numbers};

use super::*;
use crate::support;

pub(crate) fn trajectory(
    reward: f64,
    scores: &[(&str, f64)],
    length: usize,
    finish_reason: FinishReason,
) -> Trajectory {
    Trajectory {
        text: format!("{reward} {length}"),
        finish_reason,
        scores: scores.iter().map(|&(name, value)| (name.to_owned(), Score::of(value))).collect(),
        ..support::trajectory((0..length).map(|token| token != 0).collect(), reward)
    }
}

pub(crate) fn group(prompt_length: usize, trajectories: Vec<Trajectory>) -> Group {
    Group { prompt_token_ids: vec![1; prompt_length], ..support::group(0, trajectories) }
}

use FinishReason::{Length, Stop};

/// Two groups: rewards 1, 0 | 0.5, 0.5, unscored.
fn by_hand() -> [Group; 2] {
    [
        group(
            3,
            vec![trajectory(1.0, &[("acc", 1.0)], 2, Stop), trajectory(0.0, &[("acc", 0.0)], 5, Length)],
        ),
        group(
            5,
            vec![
                trajectory(0.5, &[("acc", 0.0), ("format", 1.0)], 3, Stop),
                trajectory(0.5, &[("acc", f64::NAN), ("format", 1.0)], 3, Stop),
                trajectory(f64::NAN, &[], 8, Length),
            ],
        ),
    ]
}

#[test]
fn trained_by_hand() {
    let [first, second] = by_hand();
    let mut metrics = Metrics::new();
    let columns = TrainedColumns {
        advantages: Some(BatchNumbers::PerTrajectory(&[1.0, -1.0, 0.0, 0.0, f64::NAN])),
        max_prompt_length: Some(5),
        ..TrainedColumns::default()
    };
    trained_metrics(&[&first, &second], &columns, &mut metrics);
    metrics.add_aliases();
    let listed: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value}")).collect();
    insta::assert_snapshot!(listed.join("\n"), @"
    critic/score/mean 0.5
    critic/score/max 1
    critic/score/min 0
    critic/rewards/mean 0.5
    critic/rewards/max 1
    critic/rewards/min 0
    critic/advantages/mean -0.3333333333333333
    critic/advantages/max 1
    critic/advantages/min -1
    critic/returns/mean -0.3333333333333333
    critic/returns/max 1
    critic/returns/min -1
    rewards/acc/mean 0.3333333333333333
    rewards/acc/std 0.5773502691896258
    rewards/format/mean 1
    rewards/format/std 0
    reward_std 0.408248290463863
    frac_reward_zero_std 0.5
    response_length/mean 4.2
    response_length/max 8
    response_length/min 2
    response_length/clip_ratio 0.4
    completions/mean_terminated_length 2.6666666666666665
    completions/min_terminated_length 2
    completions/max_terminated_length 3
    prompt_length/mean 4.2
    prompt_length/max 5
    prompt_length/min 3
    prompt_length/clip_ratio 0.5
    train/pass_rate 0.3333333333333333
    train/num_unscored 1
    train/num_loss_tokens 16
    train/num_left_out/unscored 0
    train/num_left_out/unchosen 0
    train/num_left_out/truncated 0
    train/num_left_out/shaped 0
    train/num_left_out/masked 0
    train/num_left_out/rejected 0
    perf/total_num_tokens 42
    reward 0.5
    completions/mean_length 4.2
    completions/min_length 2
    completions/max_length 8
    completions/clipped_ratio 0.4
    ");
    // By hand: advantages over loss tokens 1, 4, 2, 2 -> (1 - 4) / 9; deviation of 1, 0, .5, .5 -> sqrt(.5 /
    // 3).
    assert!((metrics.get("critic/advantages/mean").expect("set") + 3.0 / 9.0).abs() < 1e-15);
    assert!((metrics.get("reward_std").expect("set") - (0.5_f64 / 3.0).sqrt()).abs() < 1e-15);
}

/// The same groups; of the first the filter chose one member, of the second a member has no reward and
/// another is truncated.
#[test]
fn members_left_out_are_not_counted_as_trained() {
    let [first, second] = by_hand();
    let left_out = [None, Some(LeftOut::Unchosen), None, Some(LeftOut::Truncated), Some(LeftOut::Unscored)];
    let mut metrics = Metrics::new();
    let columns = TrainedColumns {
        advantages: Some(BatchNumbers::PerTrajectory(&[1.0, f64::NAN, 3.0, f64::NAN, f64::NAN])),
        final_rewards: Some(&[1.0, -9.0, 0.25, 0.5, f64::NAN]),
        left_out: &left_out,
        ..TrainedColumns::default()
    };
    trained_metrics(&[&first, &second], &columns, &mut metrics);
    let of = |name: &str| metrics.get(name).expect(name);
    // One token of the first trajectory is in the loss and two of the third: 1 and 2 of 9. The prompts have 3
    // and 5 tokens.
    assert_eq!((of("train/num_loss_tokens"), of("perf/total_num_tokens")), (3.0, 13.0));
    assert!((of("critic/advantages/mean") - 7.0 / 3.0).abs() < 1e-15);
    // The unchosen member is not part of the batch; the other two are, without loss.
    assert_eq!(
        (of("critic/score/min"), of("critic/rewards/min"), of("response_length/max")),
        (0.5, 0.25, 8.0)
    );
    assert_eq!((of("response_length/clip_ratio"), of("prompt_length/mean")), (0.25, 4.5));
    assert_eq!(metrics.get("frac_reward_zero_std"), Some(0.5));
    assert_eq!(metrics.get("train/num_unscored"), Some(1.0));
    let counts = LeftOut::ALL.map(|reason| of(&format!("train/num_left_out/{}", reason.name())) as u64);
    assert_eq!(counts, [1, 1, 1, 0, 0, 0]);
    // The same per token: an estimator's numbers for members without loss are not reported.
    let rows =
        Ragged::from_rows([vec![7.0, 1.0], vec![9.0; 5], vec![7.0, 3.0, 3.0], vec![9.0; 3], vec![9.0; 8]]);
    let mut metrics = Metrics::new();
    let columns = TrainedColumns { advantages: Some(BatchNumbers::PerToken(&rows)), ..columns };
    trained_metrics(&[&first, &second], &columns, &mut metrics);
    assert_eq!(metrics.get("critic/advantages/max"), Some(3.0));
}

#[test]
fn generated_by_hand() {
    let [first, second] = by_hand();
    let mut metrics = Metrics::new();
    generated_metrics(&[&first, &second], &mut metrics);
    let listed: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value}")).collect();
    insta::assert_snapshot!(listed.join("\n"), @"
    all/critic/score/mean 0.5
    all/critic/score/max 1
    all/critic/score/min 0
    all/rewards/acc/mean 0.3333333333333333
    all/rewards/acc/std 0.5773502691896258
    all/rewards/format/mean 1
    all/rewards/format/std 0
    all/reward_std 0.408248290463863
    all/frac_reward_zero_std 0.5
    all/response_length/mean 4.2
    all/response_length/max 8
    all/response_length/min 2
    all/response_length/clip_ratio 0.4
    all/completions/mean_terminated_length 2.6666666666666665
    all/completions/min_terminated_length 2
    all/completions/max_terminated_length 3
    all/prompt_length/mean 4.2
    all/prompt_length/max 5
    all/prompt_length/min 3
    all/pass_rate 0.3333333333333333
    rollout/in_group_reward_std 0.35355339059333346
    all/num_unscored 1
    train/num_identical_in_text 0
    ");
}

#[test]
fn nothing_at_all_sets_counts_only() {
    let mut metrics = Metrics::new();
    trained_metrics(&[], &TrainedColumns::default(), &mut metrics);
    generated_metrics(&[], &mut metrics);
    assert!(metrics.iter().all(|(_, value)| value == 0.0), "no mean over nothing: {metrics:?}");
    assert_eq!(metrics.get("train/num_loss_tokens"), Some(0.0));
}

#[test]
fn no_completion_ended_by_itself() {
    let cut = group(1, vec![trajectory(0.0, &[], 4, Length)]);
    let mut metrics = Metrics::new();
    trained_metrics(&[&cut], &TrainedColumns::default(), &mut metrics);
    assert_eq!(metrics.get("completions/mean_terminated_length"), Some(0.0));
    assert_eq!(metrics.get("frac_reward_zero_std"), Some(0.0), "one member has no deviation");
}

#[test]
fn deviation_of_trl() {
    for case in cases("trl_nanstd") {
        let name = case["name"].as_str().expect("name");
        let expected = case["outputs"]["nanstd"].as_f64().unwrap_or(f64::NAN);
        let std = NumberSummary::of(numbers(&case["inputs"]["values"])).and_then(|summary| summary.std);
        let (rtol, atol) = tolerance(&case);
        assert_close(name, &[std.unwrap_or(f64::NAN)], &[expected], rtol, atol);
    }
}

fn rewards_of(group: &Group) -> impl Iterator<Item = f64> {
    group.trajectories.iter().map(|member| member.reward)
}

fn tolerance(case: &serde_json::Value) -> (f64, f64) {
    if case["dtype"] == "float64" { (1e-9, 1e-11) } else { (1e-5, 1e-6) }
}

#[test]
fn reward_metrics_of_trl() {
    let (mut compared, mut left_out) = (0, 0);
    for case in cases("trl_advantages") {
        let name = case["name"].as_str().expect("name");
        let params = &case["params"];
        if params["multi_objective_aggregation"] != "sum_then_normalize" {
            println!("{name}: out of scope, rewards are summed after normalising each function");
            left_out += 1;
            continue;
        }
        let weights = numbers(&params["reward_weights"]);
        let size = params["num_generations"].as_u64().expect("size") as usize;
        let rows = case["inputs"]["rewards"].as_array().expect("rows");
        let members: Vec<Trajectory> = rows
            .iter()
            .map(|row| {
                let row = numbers(row);
                let answered = row.iter().any(|value| !value.is_nan());
                let sum: f64 = row
                    .iter()
                    .zip(&weights)
                    .filter(|(value, _)| !value.is_nan())
                    .map(|(value, weight)| value * weight)
                    .sum();
                let named: Vec<(String, f64)> =
                    row.iter().enumerate().map(|(k, &value)| (format!("f{k}"), value)).collect();
                let named: Vec<(&str, f64)> = named.iter().map(|(k, value)| (k.as_str(), *value)).collect();
                trajectory(if answered { sum } else { f64::NAN }, &named, 1, Stop)
            })
            .collect();
        let groups: Vec<Group> = members.chunks(size).map(|chunk| group(1, chunk.to_vec())).collect();
        let mut metrics = Metrics::new();
        trained_metrics(&groups.iter().collect::<Vec<_>>(), &TrainedColumns::default(), &mut metrics);
        metrics.add_aliases();
        let (rtol, atol) = tolerance(&case);
        for (key, expected) in case["outputs"]["metrics"].as_object().expect("metrics") {
            if key == "frac_reward_zero_std" {
                if params["scale_rewards"] == "batch" {
                    println!("{name}: {key} is of the whole batch there");
                    continue;
                }
                let within = |group: &Group| {
                    (
                        has_one_value(rewards_of(group)),
                        NumberSummary::of(rewards_of(group)).and_then(|summary| summary.std),
                    )
                };
                if case["dtype"] != "float64" && groups.iter().any(|group| within(group).0) {
                    println!("{name}: {key} there is rounding of float32");
                    continue;
                }
                let tiny =
                    |(uniform, std): (bool, Option<f64>)| !uniform && std.is_some_and(|std| std < 1e-6);
                if groups.iter().any(|group| tiny(within(group))) {
                    println!("{name}: {key} there counts deviations of about 1e-8 as none");
                    continue;
                }
                if size == 1 {
                    println!("{name}: {key} of groups of one is 1 there; a deviation needs two members here");
                    continue;
                }
            }
            // The share itself is a float32 there.
            let rtol = if key == "frac_reward_zero_std" { 1e-6 } else { rtol };
            let what = format!("{name} {key}");
            let expected = expected.as_f64().unwrap_or(f64::NAN);
            assert_close(&what, &[metrics.get(key).unwrap_or(f64::NAN)], &[expected], rtol, atol);
            compared += 1;
        }
    }
    assert!(compared > left_out, "{compared} numbers compared");
}
