//! Every advantage of the reference vectors, as computed by verl, TRL and BNPO's paper.
//!
//! Rows of the vectors may be interleaved; here they are first put into groups. Code that only imitates a
//! library is here: verl's whitening, which adds 1e-8 to the number of tokens. Masked tokens have advantage 0
//! here, whatever the reference leaves there.

mod bnpo;
mod trl;
mod verl;

use serde_json::Value;
use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, AdvantageState, Estimate};
use tamis_core::ragged::Ragged;

/// Files of advantages, each compared by one test of these modules.
const FILES: [&str; 17] = [
    "bnpo_paper",
    "trl_advantages",
    "trl_nanstd",
    "verl_adv_gae",
    "verl_adv_gdpo",
    "verl_adv_gpg",
    "verl_adv_grpo",
    "verl_adv_grpo_passk",
    "verl_adv_grpo_vectorized",
    "verl_adv_opo",
    "verl_adv_optimal_token_baseline",
    "verl_adv_reinforce_plus_plus",
    "verl_adv_reinforce_plus_plus_baseline",
    "verl_adv_remax",
    "verl_adv_rloo",
    "verl_adv_rloo_vectorized",
    "verl_adv_tir_optimal_token_baseline",
];

#[test]
fn no_file_of_advantages_is_left_out() {
    for entry in std::fs::read_dir(tamis_golden::folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let name = file.split('.').next().unwrap();
        let is_ours =
            name.starts_with("verl_adv_") || name.contains("advantage") || name.contains("bnpo_paper");
        assert!(!is_ours || FILES.contains(&name), "{file}: no test compares it");
    }
}

/// Fails for a parameter or input that the test does not handle.
fn knows(case: &Value, params: &[&str], inputs: &[&str]) {
    for (part, known) in [("params", params), ("inputs", inputs)] {
        for key in case[part].as_object().unwrap().keys() {
            assert!(known.contains(&key.as_str()), "{}: unknown {part} `{key}`", crate::name(case));
        }
    }
}

fn estimate(estimator: &dyn AdvantageEstimator, batch: &AdvantageBatch<'_>) -> Estimate {
    estimator.estimate(batch, &AdvantageState::default()).unwrap()
}

/// Unit in the last place of 1, in the precision of the reference's computation.
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

/// Effect of the rounding of rewards, mean and deviation on a difference of rewards over a divisor: some
/// units of the largest reward. 0 if every sum is exact, and in a group of one, whose baseline is 0 and whose
/// deviation is 1.
fn noise(case: &Value, rewards: &[f64], divisor: f64) -> f64 {
    if rewards.len() == 1
        || rewards
            .iter()
            .all(|reward| reward.is_nan() || (reward * 4.0).fract() == 0.0 && reward.abs() < 64.0)
    {
        return 0.0;
    }
    let largest = rewards.iter().fold(0.0_f64, |largest, reward| largest.max(reward.abs()));
    16.0 * unit(case) * largest / divisor
}

/// Uniform groups are exactly 0 here, whatever their value in the reference.
fn uniform_groups_are_zero(case: &Value, rewards: &Ragged<f64>, advantages: &Ragged<f64>) {
    for (rewards_g, advantages_g) in rewards.rows().zip(advantages.rows()) {
        if rewards_g.len() > 1 && rewards_g.iter().all(|reward| *reward == rewards_g[0]) {
            assert!(advantages_g.iter().all(|advantage| *advantage == 0.0), "{}", crate::name(case));
        }
    }
}
