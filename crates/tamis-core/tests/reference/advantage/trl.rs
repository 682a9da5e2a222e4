//! TRL 1.16.0.

use serde_json::Value;
use tamis_core::advantage::{AdvantageBatch, Component, Grpo, NormalizeThenSum, Scale, SingletonAdvantage};
use tamis_core::ragged::Ragged;
use tamis_golden::numbers;

use super::{deviation, estimate, knows, noise, uniform_groups_are_zero, unit};
use crate::{cases, close, name, number, skip, tolerance};

/// A case: answers `[B][K]`, weights \[K\], and rewards as the sum of the existing answers.
struct Case {
    answers: Vec<Vec<f64>>,
    weights: Vec<f64>,
    scores: Vec<f64>,
    size: usize,
}

impl Case {
    fn of(case: &Value) -> Self {
        let params = &case["params"];
        let weights = numbers(&params["reward_weights"]);
        let answers: Vec<Vec<f64>> =
            case["inputs"]["rewards"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(number(&params["num_reward_functions"]) as usize, weights.len(), "{}", name(case));
        // A function without an answer is left out of the sum; a row without any is unscored.
        let scores = answers.iter().map(|answers| {
            if answers.iter().all(|answer| answer.is_nan()) {
                return f64::NAN;
            }
            let answered = answers.iter().zip(&weights).filter(|(answer, _)| !answer.is_nan());
            answered.map(|(answer, weight)| answer * weight).sum()
        });
        Self { scores: scores.collect(), size: number(&params["num_generations"]) as usize, answers, weights }
    }

    fn rewards(&self) -> Ragged<f64> {
        Ragged::from_rows(self.scores.chunks(self.size))
    }

    /// Rewards of each function `[K][P][G]`.
    fn components(&self) -> Vec<Ragged<f64>> {
        (0..self.weights.len())
            .map(|k| {
                let rewards: Vec<f64> = self.answers.iter().map(|answers| answers[k]).collect();
                Ragged::from_rows(rewards.chunks(self.size))
            })
            .collect()
    }
}

/// Effect of rounding on the sum of normalised rewards, whatever the group.
fn sum_noise(case: &Value, components: &[Ragged<f64>], weights: &[f64]) -> f64 {
    let of_component = |(rewards, weight): (&Ragged<f64>, &f64)| {
        let groups = rewards.rows().map(|rewards_g| noise(case, rewards_g, deviation(rewards_g) + 1e-4));
        weight.abs() * groups.fold(0.0, f64::max)
    };
    components.iter().zip(weights).map(of_component).sum()
}

#[test]
fn trl_advantages() {
    for case in cases("trl_advantages") {
        knows(
            &case,
            &[
                "num_generations",
                "scale_rewards",
                "multi_objective_aggregation",
                "reward_weights",
                "num_reward_functions",
            ],
            &["rewards"],
        );
        let params = &case["params"];
        let inputs = Case::of(&case);
        let rewards = inputs.rewards();
        let expected = numbers(&case["outputs"]["advantage"]);
        let (rtol, atol) = tolerance(&case);
        let scale = match params["scale_rewards"].as_str() {
            Some("group") => Scale::Group,
            Some("batch") => Scale::Batch,
            Some("none") => Scale::None,
            other => panic!("{}: scale_rewards {other:?}", name(&case)),
        };
        match params["multi_objective_aggregation"].as_str() {
            Some("sum_then_normalize") => {
                let estimator = Grpo { scale, ..Grpo::trl() };
                let result = estimate(&estimator, &AdvantageBatch::of_rewards(&rewards)).advantages;
                let actual = Ragged::from_rows(result.values().chunks(inputs.size));
                uniform_groups_are_zero(&case, &rewards, &actual);
                for (group, (rewards_g, actual_g)) in rewards.rows().zip(actual.rows()).enumerate() {
                    let divisor = match scale {
                        Scale::Group => deviation(rewards_g) + estimator.epsilon,
                        Scale::Batch => deviation(rewards.values()) + estimator.epsilon,
                        Scale::None => 1.0,
                    };
                    let noise = noise(&case, rewards_g, divisor) + 16.0 * unit(&case) / divisor.min(1.0);
                    let expected_g = &expected[rewards.offsets()[group]..rewards.offsets()[group + 1]];
                    close(&case, "advantage", actual_g, expected_g, (rtol + noise, atol + noise));
                }
            }
            Some("normalize_then_sum") => {
                let components = inputs.components();
                let named: Vec<Component<'_>> = components
                    .iter()
                    .zip(&inputs.weights)
                    .map(|(rewards, &weight)| Component { name: "reward", weight, rewards })
                    .collect();
                let batch =
                    AdvantageBatch { components: Some(&named), ..AdvantageBatch::of_rewards(&rewards) };
                let estimator = NormalizeThenSum::default();
                assert_eq!((estimator.epsilon, estimator.singleton), (1e-4, SingletonAdvantage::Zero));
                let result = estimate(&estimator, &batch).advantages;
                // The sums are divided by their deviation, and so is their noise.
                let sums = estimate(&NormalizeThenSum { epsilon: 1e-4, ..estimator }, &batch);
                assert_eq!(sums.advantages, result);
                let spread = spread_of_sums(&components, &inputs.weights);
                let noise = sum_noise(&case, &components, &inputs.weights) / (spread + 1e-4);
                if noise > 0.1 {
                    skip(&case, "rounding noise over 1e-4 in the reference; 0 here");
                    assert!(result.values().iter().all(|advantage| advantage.abs() < 10.0));
                    continue;
                }
                close(&case, "advantage", result.values(), &expected, (rtol + noise, atol + noise));
            }
            other => panic!("{}: multi_objective_aggregation {other:?}", name(&case)),
        }
    }
}

/// Deviation over the batch of the sums of normalised rewards.
fn spread_of_sums(components: &[Ragged<f64>], weights: &[f64]) -> f64 {
    let mut sums = vec![0.0; components.first().map_or(0, Ragged::num_values)];
    for (rewards, weight) in components.iter().zip(weights) {
        let normalised = estimate(&Grpo::trl(), &AdvantageBatch::of_rewards(rewards)).advantages;
        for (sum, advantage) in sums.iter_mut().zip(normalised.values()) {
            *sum += weight * advantage;
        }
    }
    deviation(&sums)
}
