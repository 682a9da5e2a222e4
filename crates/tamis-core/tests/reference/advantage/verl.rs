//! verl 0.9.1.

use serde_json::Value;
use tamis_core::advantage::{
    AdvantageBatch, Component, Gae, Gdpo, Gpg, GpgAlpha, Grpo, GrpoPassk, MaskedRewards, Opo,
    OptimalTokenBaseline, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Remax, Rloo, Scale,
    SingletonAdvantage, Tail, TirOptimalTokenBaseline,
};
use tamis_core::ragged::Ragged;
use tamis_golden::numbers;

use super::{deviation, estimate, knows, noise, uniform_groups_are_zero};
use crate::{cases, close, name, number, tolerance};

/// A case in group order.
struct Batch {
    /// Row of the case for each trajectory.
    order: Vec<usize>,
    /// `[P][G]`: the plain sum of token rewards, including masked ones, as verl scores outcomes.
    rewards: Ragged<f64>,
    /// `[B][T]`.
    mask: Ragged<bool>,
    /// `[B][T]`.
    token_rewards: Ragged<f64>,
}

/// Groups by ids, each with its rows.
fn members(ids: &[f64]) -> Vec<Vec<usize>> {
    let mut distinct = ids.to_vec();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    distinct.iter().map(|id| (0..ids.len()).filter(|&i| ids[i] == *id).collect()).collect()
}

impl Batch {
    fn of(case: &Value, groups: &[Vec<usize>]) -> Self {
        let order: Vec<usize> = groups.iter().flatten().copied().collect();
        let token_rewards = tokens(case, &case["inputs"]["token_reward"], &order);
        let mask = tokens(case, &case["inputs"]["mask"], &order);
        let mask =
            Ragged::from_rows(mask.rows().map(|row| row.iter().map(|&on| on == 1.0).collect::<Vec<_>>()));
        let sums: Vec<f64> = token_rewards.rows().map(|row| row.iter().sum()).collect();
        let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        let rewards = Ragged::from_lengths(sums, &sizes).unwrap();
        Self { order, rewards, mask, token_rewards }
    }

    /// By the case's group ids.
    fn grouped(case: &Value) -> Self {
        Self::of(case, &members(&numbers(&case["inputs"]["group"])))
    }

    fn columns(&self) -> AdvantageBatch<'_> {
        AdvantageBatch { mask: Some(&self.mask), ..AdvantageBatch::of_rewards(&self.rewards) }
    }

    fn with_token_rewards(&self) -> AdvantageBatch<'_> {
        AdvantageBatch { token_rewards: Some(&self.token_rewards), ..self.columns() }
    }

    /// Compares per-token numbers at unmasked tokens. Each group has its own noise in addition to the case's
    /// tolerance.
    fn compare(&self, case: &Value, field: &str, actual: &Ragged<f64>, noise: impl Fn(usize) -> f64) {
        let expected = tokens(case, &case["outputs"][field], &self.order);
        let (rtol, atol) = tolerance(case);
        let mut i = 0;
        for (group, rewards_g) in self.rewards.rows().enumerate() {
            let noise = noise(group);
            if noise > 0.1 {
                println!("{}: group {group} is rounding noise in the reference", name(case));
            }
            for _ in rewards_g {
                let unmasked = |row: &[f64]| -> Vec<f64> {
                    row.iter().zip(self.mask.row(i)).filter(|(_, on)| **on).map(|(value, _)| *value).collect()
                };
                let (actual_t, expected_t) = (unmasked(actual.row(i)), unmasked(expected.row(i)));
                close(case, field, &actual_t, &expected_t, (rtol + noise, atol + noise));
                let masked = actual.row(i).iter().zip(self.mask.row(i)).filter(|(_, on)| !**on);
                assert!(masked.into_iter().all(|(value, _)| *value == 0.0), "{}", name(case));
                i += 1;
            }
        }
    }

    /// Rounding of a group's rewards over a divisor that may depend on them.
    fn noise(&self, case: &Value, group: usize, divisor: impl Fn(&[f64]) -> f64) -> f64 {
        let rewards_g = self.rewards.row(group);
        noise(case, rewards_g, divisor(rewards_g))
    }
}

/// A per-token field as rows in the given order.
fn tokens(case: &Value, field: &Value, order: &[usize]) -> Ragged<f64> {
    let rows = Ragged::from_lengths(numbers(field), &crate::lengths(case)).unwrap();
    Ragged::from_rows(order.iter().map(|&i| rows.row(i)))
}

/// verl's `masked_whiten`: 1e-8 is added to the number of tokens and to the variance. Also returns the factor
/// of the noise.
fn whiten(values: &Ragged<f64>, mask: &Ragged<bool>) -> (Ragged<f64>, f64) {
    let unmasked: Vec<f64> =
        values.values().iter().zip(mask.values()).filter(|(_, on)| **on).map(|(value, _)| *value).collect();
    let count = unmasked.len() as f64;
    let mean = unmasked.iter().sum::<f64>() / (count + 1e-8);
    let variance = unmasked.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count + 1e-8);
    let factor = 1.0 / (variance * count / (count - 1.0) + 1e-8).sqrt();
    let whitened = values.rows().zip(mask.rows()).map(|(values_t, mask_t)| {
        let whitened = values_t.iter().zip(mask_t);
        whitened.map(|(value, &on)| if on { (value - mean) * factor } else { 0.0 }).collect::<Vec<_>>()
    });
    (Ragged::from_rows(whitened), factor)
}

/// tamis' whitening of these values equals verl's except for the 1e-8 in the count.
fn whitens_alike(
    case: &Value,
    values: &Ragged<f64>,
    ours: &Ragged<f64>,
    (imitation, factor): (&Ragged<f64>, f64),
) {
    let largest = values.values().iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let tolerance = (1e-7, 1e-8 + factor * 1e-8 * largest);
    close(case, "whitened", ours.values(), imitation.values(), tolerance);
}

const OUTCOME: [&str; 6] = ["group", "lengths", "mask", "padded_len", "reward", "token_reward"];

/// Estimators that read only outcomes and return one number per trajectory.
fn outcome(
    file: &'static str,
    params: &[&str],
    run: impl Fn(&Value) -> Box<dyn tamis_core::advantage::AdvantageEstimator>,
    noise: impl Fn(&Value, &Batch, usize) -> f64,
) {
    for case in cases(file) {
        knows(&case, params, &OUTCOME);
        let batch = Batch::grouped(&case);
        let estimator = run(&case);
        let result = estimate(estimator.as_ref(), &batch.columns()).advantages;
        let per_token = result.per_token(&batch.mask);
        let sizes: Vec<usize> = batch.rewards.rows().map(<[f64]>::len).collect();
        let by_group = Ragged::from_lengths(result.values().to_vec(), &sizes).unwrap();
        if let Some(error) = case["outputs"]["error"].as_str() {
            // A group of one: defined here as 0.
            assert!(error.contains("at least 2 samples"), "{}: {error}", name(&case));
            let mut singletons = by_group.rows().filter(|row| row.len() == 1).peekable();
            assert!(singletons.peek().is_some() && singletons.all(|row| row == [0.0]), "{}", name(&case));
            continue;
        }
        uniform_groups_are_zero(&case, &batch.rewards, &by_group);
        for field in ["advantage", "return"] {
            batch.compare(&case, field, &per_token, |group| noise(&case, &batch, group));
        }
    }
}

fn divides(case: &Value) -> bool {
    case["params"]["norm_adv_by_std_in_grpo"].as_bool().unwrap()
}

fn grpo(case: &Value) -> Grpo {
    let scale = if divides(case) { Scale::Group } else { Scale::None };
    Grpo { scale, epsilon: number(&case["params"]["epsilon"]), ..Grpo::verl() }
}

fn grpo_noise(case: &Value, batch: &Batch, group: usize) -> f64 {
    let epsilon = number(&case["params"]["epsilon"]);
    batch.noise(case, group, |rewards_g| if divides(case) { deviation(rewards_g) + epsilon } else { 1.0 })
}

const GRPO: [&str; 3] = ["estimator", "epsilon", "norm_adv_by_std_in_grpo"];

#[test]
fn verl_adv_grpo() {
    outcome("verl_adv_grpo", &GRPO, |case| Box::new(grpo(case)), grpo_noise);
}

#[test]
fn verl_adv_grpo_vectorized() {
    outcome(
        "verl_adv_grpo_vectorized",
        &GRPO,
        |case| Box::new(grpo(case)),
        |case, batch, group| {
            // The variance is a difference of squares in single precision: 1e-3 for a large mean, as in the
            // vectors' README, and nothing to compare if that exceeds the spread.
            let noise = grpo_noise(case, batch, group);
            if !divides(case) || batch.rewards.row(group).len() == 1 {
                noise
            } else if name(case).contains("tiny_variance") {
                1.0
            } else if name(case).contains("large_mean") {
                noise + 5e-3
            } else {
                noise
            }
        },
    );
}

#[test]
fn verl_adv_grpo_passk() {
    let run = |case: &Value| -> Box<dyn tamis_core::advantage::AdvantageEstimator> {
        let epsilon = number(&case["params"]["epsilon"]);
        Box::new(GrpoPassk { divide: divides(case), epsilon, ..GrpoPassk::default() })
    };
    outcome("verl_adv_grpo_passk", &GRPO, run, grpo_noise);
}

const PLAIN: [&str; 2] = ["estimator", "epsilon"];

fn plain_noise(case: &Value, batch: &Batch, group: usize) -> f64 {
    batch.noise(case, group, |_| 1.0)
}

#[test]
fn verl_adv_rloo() {
    let raw = Rloo { singleton: SingletonAdvantage::Raw };
    outcome("verl_adv_rloo", &PLAIN, |_| Box::new(raw), plain_noise);
    outcome("verl_adv_rloo_vectorized", &PLAIN, |_| Box::new(Rloo::default()), plain_noise);
}

#[test]
fn verl_adv_opo() {
    outcome("verl_adv_opo", &PLAIN, |_| Box::new(Opo { singleton: SingletonAdvantage::Raw }), plain_noise);
}

#[test]
fn verl_adv_gpg() {
    let gpg =
        Gpg { gpg_alpha: GpgAlpha::NonzeroRewards, singleton: SingletonAdvantage::Raw, ..Gpg::default() };
    outcome("verl_adv_gpg", &PLAIN, |_| Box::new(gpg), plain_noise);
}

#[test]
fn verl_adv_reinforce_plus_plus_baseline() {
    for case in cases("verl_adv_reinforce_plus_plus_baseline") {
        knows(&case, &PLAIN, &OUTCOME);
        let batch = Batch::grouped(&case);
        let centred = ReinforcePlusPlusBaseline { whiten: false, singleton: SingletonAdvantage::Raw };
        let per_token = estimate(&centred, &batch.columns()).advantages.per_token(&batch.mask);
        let (whitened, factor) = whiten(&per_token, &batch.mask);
        for field in ["advantage", "return"] {
            batch.compare(&case, field, &whitened, |_| factor * noise(&case, batch.rewards.values(), 1.0));
        }
        let ours = ReinforcePlusPlusBaseline { whiten: true, ..centred };
        let ours = estimate(&ours, &batch.columns()).advantages.per_token(&batch.mask);
        whitens_alike(&case, &per_token, &ours, (&whitened, factor));
    }
}

#[test]
fn verl_adv_gdpo() {
    for case in cases("verl_adv_gdpo") {
        knows(
            &case,
            &["estimator", "epsilon", "reward_keys", "reward_weights"],
            &["component_reward", "group", "lengths", "mask", "padded_len", "reward", "token_reward"],
        );
        let batch = Batch::grouped(&case);
        let sizes: Vec<usize> = batch.rewards.rows().map(<[f64]>::len).collect();
        let keys: Vec<&str> = case["params"]["reward_keys"]
            .as_array()
            .map(|keys| keys.iter().map(|key| key.as_str().unwrap()).collect())
            .unwrap_or_default();
        let weights = numbers(&case["params"]["reward_weights"]);
        let rewards: Vec<Ragged<f64>> = keys
            .iter()
            .map(|key| {
                let rewards = numbers(&case["inputs"]["component_reward"][*key]);
                Ragged::from_lengths(batch.order.iter().map(|&i| rewards[i]).collect(), &sizes).unwrap()
            })
            .collect();
        let components: Vec<Component<'_>> = keys
            .iter()
            .zip(&weights)
            .zip(&rewards)
            .map(|((&name, &weight), rewards)| Component { name, weight, rewards })
            .collect();
        let components = (!components.is_empty()).then_some(components.as_slice());
        let columns = AdvantageBatch { components, ..batch.columns() };
        let epsilon = number(&case["params"]["epsilon"]);
        let sums = Gdpo { epsilon, whiten: false, singleton: SingletonAdvantage::Raw };
        let per_token = estimate(&sums, &columns).advantages.per_token(&batch.mask);
        let (whitened, factor) = whiten(&per_token, &batch.mask);
        // Every trajectory's whitened advantage has the noise of every group.
        let mut total: f64 = 0.0;
        for rewards in if rewards.is_empty() { std::slice::from_ref(&batch.rewards) } else { &rewards } {
            let groups =
                rewards.rows().map(|rewards_g| noise(&case, rewards_g, deviation(rewards_g) + epsilon));
            total += groups.fold(0.0, f64::max);
        }
        for field in ["advantage", "return"] {
            batch.compare(&case, field, &whitened, |_| factor * total);
        }
        let ours = Gdpo { whiten: true, ..sums };
        let ours = estimate(&ours, &columns).advantages.per_token(&batch.mask);
        whitens_alike(&case, &per_token, &ours, (&whitened, factor));
    }
}

#[test]
fn verl_adv_reinforce_plus_plus() {
    for case in cases("verl_adv_reinforce_plus_plus") {
        knows(&case, &["estimator", "gamma"], &["group", "lengths", "mask", "padded_len", "token_reward"]);
        let batch = Batch::grouped(&case);
        let ours = ReinforcePlusPlus {
            gamma: number(&case["params"]["gamma"]),
            whiten: true,
            masked_rewards: MaskedRewards::Lost,
        };
        let result = estimate(&ours, &batch.with_token_rewards());
        let returns = result.returns.unwrap();
        batch.compare(&case, "return", &returns, |_| 0.0);
        let (whitened, factor) = whiten(&returns, &batch.mask);
        batch.compare(&case, "advantage", &whitened, |_| factor * noise(&case, batch.rewards.values(), 1.0));
        whitens_alike(&case, &returns, &result.advantages.per_token(&batch.mask), (&whitened, factor));
    }
}

#[test]
fn verl_adv_remax() {
    for case in cases("verl_adv_remax") {
        knows(
            &case,
            &["estimator"],
            &["group", "lengths", "mask", "padded_len", "reward_baseline", "token_reward"],
        );
        // The vectors have one greedy reward per trajectory, so each trajectory is its own prompt.
        let greedy = numbers(&case["inputs"]["reward_baseline"]);
        let alone: Vec<Vec<usize>> = (0..greedy.len()).map(|i| vec![i]).collect();
        let batch = Batch::of(&case, &alone);
        let columns = AdvantageBatch { greedy_rewards: Some(&greedy), ..batch.with_token_rewards() };
        let result = estimate(&Remax { masked_rewards: MaskedRewards::Lost }, &columns);
        batch.compare(&case, "advantage", &result.advantages.per_token(&batch.mask), |_| 0.0);
        batch.compare(&case, "return", &result.returns.unwrap(), |_| 0.0);
    }
}

#[test]
fn verl_adv_gae() {
    for case in cases("verl_adv_gae") {
        knows(
            &case,
            &["estimator", "gamma", "lam"],
            &["lengths", "mask", "padded_len", "token_reward", "value"],
        );
        let all: Vec<usize> = (0..crate::lengths(&case).len()).collect();
        let batch = Batch::of(&case, std::slice::from_ref(&all));
        let values = tokens(&case, &case["inputs"]["value"], &all);
        let columns = AdvantageBatch { values: Some(&values), ..batch.with_token_rewards() };
        let param = |name: &str| case["params"][name].as_f64();
        let defaults = Gae::default();
        let ours = Gae {
            gamma: param("gamma").unwrap_or(defaults.gamma),
            lambda: param("lam").unwrap_or(defaults.lambda),
            whiten: true,
            masked_rewards: MaskedRewards::Lost,
        };
        let result = estimate(&ours, &columns);
        if let Some(error) = case["outputs"]["error"].as_str() {
            // One token cannot be whitened: 0 here.
            assert!(error.contains("sum of the mask is one"), "{}: {error}", name(&case));
            assert!(result.advantages.values().iter().all(|advantage| *advantage == 0.0));
            continue;
        }
        batch.compare(&case, "return", &result.returns.unwrap(), |_| 0.0);
        let plain = estimate(&Gae { whiten: false, ..ours }, &columns).advantages.per_token(&batch.mask);
        let (whitened, factor) = whiten(&plain, &batch.mask);
        batch.compare(&case, "advantage", &whitened, |_| 0.0);
        whitens_alike(&case, &plain, &result.advantages.per_token(&batch.mask), (&whitened, factor));
    }
}

#[test]
fn verl_adv_optimal_token_baseline() {
    for file in ["verl_adv_optimal_token_baseline", "verl_adv_tir_optimal_token_baseline"] {
        for case in cases(file) {
            knows(
                &case,
                &["estimator", "handle_zero_tail", "epsilon"],
                &[
                    "group",
                    "lengths",
                    "mask",
                    "old_logp",
                    "padded_len",
                    "rollout_is_weight",
                    "sum_pi_squared",
                    "token_reward",
                ],
            );
            let batch = Batch::grouped(&case);
            let column = |field: &str| tokens(&case, &case["inputs"][field], &batch.order);
            let (old, sum_pi_squared) = (column("old_logp"), column("sum_pi_squared"));
            let weights = case["inputs"]["rollout_is_weight"].is_array().then(|| column("rollout_is_weight"));
            let columns = AdvantageBatch {
                old_logprobs: Some(&old),
                sum_pi_squared: Some(&sum_pi_squared),
                rollout_weights: weights.as_ref(),
                ..batch.with_token_rewards()
            };
            let zeroed = case["params"]["handle_zero_tail"].as_bool().unwrap();
            let tail = if zeroed { Tail::ZeroedByCount } else { Tail::Kept };
            let epsilon = number(&case["params"]["epsilon"]);
            let (singleton, masked_rewards) = (SingletonAdvantage::Raw, MaskedRewards::Lost);
            let result = if file.contains("tir") {
                let ours = TirOptimalTokenBaseline { tail, epsilon, singleton, masked_rewards };
                estimate(&ours, &columns)
            } else {
                estimate(&OptimalTokenBaseline { tail, epsilon, singleton, masked_rewards }, &columns)
            };
            batch.compare(&case, "advantage", &result.advantages.per_token(&batch.mask), |_| 0.0);
            batch.compare(&case, "return", &result.returns.unwrap(), |_| 0.0);
        }
    }
}
