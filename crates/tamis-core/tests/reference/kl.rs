//! verl's divergence estimators, their controllers, and the penalty in the reward.

use serde_json::Value;
use tamis_core::objective::kl::in_reward;
use tamis_core::objective::{KlController, KlEstimator, KlState};
use tamis_core::ragged::Ragged;
use tamis_golden::{cases, numbers};

use crate::{Tally, close, lengths, mask, number, only_known, tolerance};

#[test]
fn verl_kl_penalty() {
    let mut tally = Tally::new("verl_kl_penalty");
    for case in cases("verl_kl_penalty") {
        only_known(&case, "params", &["kl_penalty"]);
        let estimator = case["params"]["kl_penalty"].as_str().unwrap().parse::<KlEstimator>();
        let estimator = match estimator {
            Ok(estimator) => estimator,
            Err(error) => {
                assert!(case["outputs"]["error"].is_string(), "the reference knows it: {error}");
                tally.skip(&case, &format!("the reference raises too ({error})"));
                continue;
            }
        };
        let (logprob, reference) = (numbers(&case["inputs"]["logp"]), numbers(&case["inputs"]["ref_logp"]));
        let (kl, slope): (Vec<f64>, Vec<f64>) =
            logprob.iter().zip(&reference).map(|(&a, &b)| estimator.token(a, b)).unzip();
        close(&case, "kl", &kl, &numbers(&case["outputs"]["kl"]), tolerance(&case));
        close(&case, "dkl_dlogp", &slope, &numbers(&case["outputs"]["dkl_dlogp"]), tolerance(&case));
        tally.ran += 1;
    }
    tally.finish();
}

fn controller(params: &Value, kind: &str, coef: f64) -> KlController {
    match kind {
        "fixed" => KlController::Fixed { coef },
        "adaptive" => KlController::Adaptive {
            initial: coef,
            target: number(&params["target_kl"]),
            horizon: number(&params["horizon"]),
        },
        other => panic!("controller {other}"),
    }
}

#[test]
fn verl_kl_controller() {
    let mut tally = Tally::new("verl_kl_controller");
    for case in cases("verl_kl_controller") {
        only_known(&case, "params", &["type", "init_kl_coef", "target_kl", "horizon"]);
        let params = &case["params"];
        let controller =
            controller(params, params["type"].as_str().unwrap(), number(&params["init_kl_coef"]));
        let mut state = controller.initial();
        let steps =
            numbers(&case["inputs"]["current_kl"]).into_iter().zip(numbers(&case["inputs"]["n_steps"]));
        let coefs: Vec<f64> = steps
            .map(|(current, n)| {
                state = controller.update(state, current, n);
                state.coef
            })
            .collect();
        close(&case, "coef", &coefs, &numbers(&case["outputs"]["coef"]), tolerance(&case));
        tally.ran += 1;
    }
    tally.finish();
}

#[test]
fn verl_kl_in_reward() {
    let mut tally = Tally::new("verl_kl_in_reward");
    for case in cases("verl_kl_in_reward") {
        only_known(&case, "params", &["kl_penalty", "controller", "coef", "target_kl", "horizon"]);
        let (params, inputs, outputs) = (&case["params"], &case["inputs"], &case["outputs"]);
        let estimator: KlEstimator = match params["kl_penalty"].as_str().unwrap().parse() {
            Ok(estimator) => estimator,
            Err(error) => {
                assert!(outputs["error"].is_string(), "the reference knows it: {error}");
                tally.skip(&case, &format!("the reference raises too ({error})"));
                continue;
            }
        };
        let controller = controller(params, params["controller"].as_str().unwrap(), number(&params["coef"]));
        let state = controller.initial();
        let scores = Ragged::from_lengths(numbers(&inputs["token_score"]), &lengths(&case)).unwrap();
        let (old, reference) = (numbers(&inputs["old_logp"]), numbers(&inputs["ref_logp"]));
        let found = in_reward(estimator, state.coef, &scores, &mask(&case), &old, &reference).unwrap();
        close(
            &case,
            "token_reward",
            &found.token_rewards,
            &numbers(&outputs["token_reward"]),
            tolerance(&case),
        );
        let metrics = &outputs["metrics"];
        // The reference divides each trajectory's sum by its length + 1e-8.
        let with_epsilon = (3e-8, 1e-11);
        close(
            &case,
            "reward_kl_penalty",
            &[found.mean_kl],
            &[number(&metrics["actor/reward_kl_penalty"])],
            with_epsilon,
        );
        close(
            &case,
            "coefficient",
            &[state.coef],
            &[number(&metrics["actor/reward_kl_penalty_coeff"])],
            tolerance(&case),
        );
        let KlState { coef } = controller.update(state, found.mean_kl, scores.num_rows() as f64);
        close(&case, "coef_after", &[coef], &[number(&outputs["coef_after"])], with_epsilon);
        tally.ran += 1;
    }
    tally.finish();
}
