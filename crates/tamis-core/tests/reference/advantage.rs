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

/// In these cases the reference's numbers are rounding noise over epsilon.
fn is_noise(case: &Value) -> bool {
    ["all_equal", "tiny_variance", "large_mean"].iter().any(|what| name(case).contains(what))
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
        let mut by_trajectory = vec![0.0; ids.len()];
        for (&i, &advantage) in members.iter().flatten().zip(advantages.values()) {
            by_trajectory[i] = advantage;
        }
        let mask = crate::mask(&case);
        let tokens = (0..ids.len()).flat_map(|i| std::iter::repeat_n(by_trajectory[i], lengths[i]));
        let actual: Vec<f64> =
            tokens.zip(&mask).map(|(advantage, &on)| if on { advantage } else { 0.0 }).collect();
        let (rtol, atol) = tolerance(&case);
        let tolerance = if is_noise(&case) { (rtol, 1e-6) } else { (rtol, atol) };
        close(&case, "advantage", &actual, &numbers(&case["outputs"]["advantage"]), tolerance);
        close(&case, "return", &actual, &numbers(&case["outputs"]["return"]), tolerance);
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
        let float32 = case["dtype"] == "float32";
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
        let advantages = per_trajectory(&Grpo { scale, ..Grpo::trl() }, &rewards);
        uniform_groups_are_zero(&case, &rewards, &advantages);
        let expected = numbers(&case["outputs"]["advantage"]);
        let (rtol, atol) = tolerance(&case);
        if float32 && is_noise(&case) {
            // Single-precision noise over epsilon: only its size means anything.
            close(&case, "advantage", advantages.values(), &expected, (0.0, 1e-2));
            tally.skip(&case, "metrics: single-precision noise");
            tally.ran += 1;
            continue;
        }
        let tolerance = if is_noise(&case) { (rtol, 1e-6) } else { (rtol, atol) };
        close(&case, "advantage", advantages.values(), &expected, tolerance);

        let statistics = RewardStatistics::of(&rewards, 1);
        let metrics = &case["outputs"]["metrics"];
        close(&case, "reward", &[statistics.mean], &[number(&metrics["reward"])], (rtol, atol));
        close(
            &case,
            "reward_std",
            &[statistics.batch_deviation],
            &[number(&metrics["reward_std"])],
            tolerance,
        );
        // TRL counts groups of one as uniform, counts groups without two scored members in the denominator, and tests the batch's
        // deviation under another scale.
        if scale == Scale::Group && size > 1 && scores.iter().all(|score| !score.is_nan()) && !is_noise(&case)
        {
            close(
                &case,
                "frac_reward_zero_std",
                &[statistics.uniform_share],
                &[number(&metrics["frac_reward_zero_std"])],
                // A single-precision mean of flags.
                crate::F32,
            );
        }
        tally.ran += 1;
    }
    tally.finish();
}
