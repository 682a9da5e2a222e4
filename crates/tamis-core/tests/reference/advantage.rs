//! `grpo` as verl and as TRL compute it.

use serde_json::Value;
use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Advantages, Grpo, RewardStatistics, Scale};
use tamis_core::ragged::Ragged;
use tamis_golden::{cases, numbers};

use crate::{Tally, close, lengths, name, number, tolerance};

fn per_trajectory(estimator: &Grpo, rewards: &Ragged<f64>) -> Ragged<f64> {
    match estimator.advantages(&AdvantageBatch::of_rewards(rewards)).unwrap() {
        Advantages::PerTrajectory(advantages) => advantages,
        Advantages::PerToken(_) => panic!("grpo gives one advantage per trajectory"),
    }
}

/// Unit in the last place of 1 in the precision that the reference computed in.
fn unit(case: &Value) -> f64 {
    if case["dtype"].as_str().is_some_and(|dtype| dtype.starts_with("float32")) {
        f64::from(f32::EPSILON)
    } else {
        f64::EPSILON
    }
}

fn deviation(rewards: &[f64]) -> f64 {
    let scored: Vec<f64> = rewards.iter().copied().filter(|reward| !reward.is_nan()).collect();
    let mean = scored.iter().sum::<f64>() / scored.len() as f64;
    let squares: f64 = scored.iter().map(|reward| (reward - mean).powi(2)).sum();
    (squares / (scored.len() as f64 - 1.0).max(1.0)).sqrt()
}

/// What rounding of rewards, mean and deviation can do to an advantage of the group: some units of the largest reward over the
/// divisor. Negligible but where all members are nearly equal.
fn noise(case: &Value, rewards_g: &[f64], divisor: f64) -> f64 {
    let largest = rewards_g.iter().fold(0.0_f64, |largest, reward| largest.max(reward.abs()));
    16.0 * unit(case) * largest / divisor
}

/// Compares advantages group by group, each to the tolerance of the case and the noise of the group.
fn close_by_group(
    case: &Value,
    rewards: &Ragged<f64>,
    actual: &Ragged<f64>,
    expected: &[f64],
    estimator: &Grpo,
) {
    let (rtol, atol) = tolerance(case);
    for (group, (rewards_g, actual_g)) in rewards.rows().zip(actual.rows()).enumerate() {
        let divisor = match estimator.scale {
            Scale::Group => deviation(rewards_g) + estimator.epsilon,
            Scale::Batch => deviation(rewards.values()) + estimator.epsilon,
            Scale::None => 1.0,
        };
        let noise = noise(case, rewards_g, divisor);
        let expected_g = &expected[rewards.offsets()[group]..rewards.offsets()[group + 1]];
        close(case, "advantage", actual_g, expected_g, (rtol + noise, atol + noise));
    }
}

/// Uniform groups are exactly 0 here, whatever the reference made of them.
fn uniform_groups_are_zero(case: &Value, rewards: &Ragged<f64>, advantages: &Ragged<f64>) {
    for (rewards_g, advantages_g) in rewards.rows().zip(advantages.rows()) {
        if rewards_g.len() > 1 && rewards_g.iter().all(|reward| *reward == rewards_g[0]) {
            assert!(advantages_g.iter().all(|advantage| *advantage == 0.0), "{}", name(case));
        }
    }
}

#[test]
fn verl_adv_grpo() {
    let mut tally = Tally::new("verl_adv_grpo");
    for case in cases("verl_adv_grpo") {
        if case["outputs"]["error"].is_string() {
            tally.skip(&case, "the reference raises");
            continue;
        }
        let inputs = &case["inputs"];
        let lengths = lengths(&case);
        // verl scores a trajectory by the plain sum of its token rewards, masked ones included.
        let token_rewards = Ragged::from_lengths(numbers(&inputs["token_reward"]), &lengths).unwrap();
        let scores: Vec<f64> = token_rewards.rows().map(|row| row.iter().sum()).collect();
        let ids = numbers(&inputs["group"]);
        let mut distinct = ids.clone();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        let members: Vec<Vec<usize>> =
            distinct.iter().map(|id| (0..ids.len()).filter(|&i| ids[i] == *id).collect()).collect();
        let rewards =
            Ragged::from_rows(members.iter().map(|rows| rows.iter().map(|&i| scores[i]).collect::<Vec<_>>()));
        let divide = case["params"]["norm_adv_by_std_in_grpo"].as_bool().unwrap();
        let estimator = Grpo {
            scale: if divide { Scale::Group } else { Scale::None },
            epsilon: number(&case["params"]["epsilon"]),
            ..Grpo::verl()
        };
        let advantages = per_trajectory(&estimator, &rewards);
        uniform_groups_are_zero(&case, &rewards, &advantages);
        // The reference gives every token its trajectory's advantage, and masked ones 0.
        let mask = crate::mask(&case);
        for field in ["advantage", "return"] {
            let per_token = Ragged::from_lengths(numbers(&case["outputs"][field]), &lengths).unwrap();
            let mut by_trajectory = Vec::new();
            let mut compared = advantages.clone();
            for (place, &i) in members.iter().flatten().enumerate() {
                let mask_t = &mask[per_token.offsets()[i]..per_token.offsets()[i + 1]];
                let trained: Vec<f64> =
                    per_token.row(i).iter().zip(mask_t).filter(|(_, on)| **on).map(|(&a, _)| a).collect();
                assert!(trained.windows(2).all(|pair| pair[0] == pair[1]), "{}", name(&case));
                if trained.is_empty() {
                    // Nothing to compare with where every token is masked.
                    let group = advantages.offsets().partition_point(|&end| end <= place) - 1;
                    let member = place - advantages.offsets()[group];
                    compared.row_mut(group)[member] = 0.0;
                }
                by_trajectory.push(trained.first().copied().unwrap_or(0.0));
            }
            close_by_group(&case, &rewards, &compared, &by_trajectory, &estimator);
        }
        tally.ran += 1;
    }
    tally.finish();
}

#[test]
fn trl_advantages() {
    let mut tally = Tally::new("trl_advantages");
    for case in cases("trl_advantages") {
        let params = &case["params"];
        if params["multi_objective_aggregation"] != "sum_then_normalize" {
            tally.skip(&case, "normalize_then_sum (GDPO) is another estimator");
            continue;
        }
        let weights = numbers(&params["reward_weights"]);
        // A function without an answer leaves the sum; a row without any is unscored.
        let scores: Vec<f64> = case["inputs"]["rewards"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| {
                let answers = numbers(row);
                if answers.iter().all(|answer| answer.is_nan()) {
                    return f64::NAN;
                }
                let answered = answers.iter().zip(&weights).filter(|(answer, _)| !answer.is_nan());
                answered.map(|(answer, weight)| answer * weight).sum()
            })
            .collect();
        let size = number(&params["num_generations"]) as usize;
        let rewards = Ragged::from_rows(scores.chunks(size));
        let scale = match params["scale_rewards"].as_str() {
            Some("group") => Scale::Group,
            Some("batch") => Scale::Batch,
            Some("none") => Scale::None,
            other => panic!("{}: scale_rewards {other:?}", name(&case)),
        };
        let estimator = Grpo { scale, ..Grpo::trl() };
        let advantages = per_trajectory(&estimator, &rewards);
        uniform_groups_are_zero(&case, &rewards, &advantages);
        let expected = numbers(&case["outputs"]["advantage"]);
        close_by_group(&case, &rewards, &advantages, &expected, &estimator);

        let statistics = RewardStatistics::of(&rewards, 1);
        let metrics = &case["outputs"]["metrics"];
        let (rtol, atol) = tolerance(&case);
        let tolerance = (rtol, atol + noise(&case, &scores, 1.0));
        close(&case, "reward", &[statistics.mean], &[number(&metrics["reward"])], tolerance);
        close(
            &case,
            "reward_std",
            &[statistics.batch_deviation],
            &[number(&metrics["reward_std"])],
            tolerance,
        );
        // TRL counts groups of one as uniform, counts groups without two scored members in the denominator, tests the batch's
        // deviation under another scale, and takes a deviation for zero by an absolute 1e-8, which float32 noise exceeds.
        let near_zero = |rewards_g: &[f64]| {
            let deviation = deviation(rewards_g);
            (deviation > 0.0 && deviation < 1e-6) || (case["dtype"] == "float32" && deviation == 0.0)
        };
        let comparable = scale == Scale::Group
            && size > 1
            && scores.iter().all(|score| !score.is_nan())
            && !rewards.rows().any(near_zero);
        if comparable {
            let expected = number(&metrics["frac_reward_zero_std"]);
            // A single-precision mean of flags.
            close(&case, "frac_reward_zero_std", &[statistics.uniform_share], &[expected], crate::F32);
        }
        tally.ran += 1;
    }
    tally.finish();
}
