//! verl's divergence estimators, their controllers, and the penalty in the reward.

use serde_json::Value;
use tamis_core::objective::kl::in_reward;
use tamis_core::objective::{KlController, KlEstimator, KlState};
use tamis_core::ragged::Ragged;
use tamis_golden::numbers;

use crate::{cases, close, lengths, mask, number, only_known, skip, tolerance};

fn estimator(case: &Value) -> Option<KlEstimator> {
    let estimator = case["params"]["kl_penalty"].as_str().unwrap().parse();
    if let Err(error) = &estimator {
        assert!(case["outputs"]["error"].is_string(), "the reference knows it: {error}");
        skip(case, &format!("the reference raises too ({error})"));
    }
    estimator.ok()
}

#[test]
fn verl_kl_penalty() {
    for case in cases("verl_kl_penalty") {
        only_known(&case, "params", &["kl_penalty"]);
        let Some(estimator) = estimator(&case) else { continue };
        let (logprob, reference) = (numbers(&case["inputs"]["logp"]), numbers(&case["inputs"]["ref_logp"]));
        let tokens = logprob.iter().zip(&reference).map(|(&a, &b)| estimator.token(a, b));
        let (kl, slope): (Vec<f64>, Vec<f64>) = tokens.map(|token| (token.value, token.slope)).unzip();
        close(&case, "kl", &kl, &numbers(&case["outputs"]["kl"]), tolerance(&case));
        close(&case, "dkl_dlogp", &slope, &numbers(&case["outputs"]["dkl_dlogp"]), tolerance(&case));
    }
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
    }
}

#[test]
fn verl_kl_in_reward() {
    for case in cases("verl_kl_in_reward") {
        only_known(&case, "params", &["kl_penalty", "controller", "coef", "target_kl", "horizon"]);
        let (params, inputs, outputs) = (&case["params"], &case["inputs"], &case["outputs"]);
        let Some(estimator) = estimator(&case) else { continue };
        let controller = controller(params, params["controller"].as_str().unwrap(), number(&params["coef"]));
        let state = controller.initial();
        let scores = Ragged::from_lengths(numbers(&inputs["token_score"]), &lengths(&case)).unwrap();
        let (old, reference) = (numbers(&inputs["old_logp"]), numbers(&inputs["ref_logp"]));
        let found = in_reward(estimator, state.coef, &scores, &mask(&case), &old, &reference).unwrap();
        let expected = numbers(&outputs["token_reward"]);
        close(&case, "token_reward", &found.token_rewards, &expected, tolerance(&case));
        let metric = |name: &str| number(&outputs["metrics"][name]);
        // The reference divides each trajectory's sum by its length + 1e-8.
        let with_epsilon = (3e-8, 1e-11);
        let expected = metric("actor/reward_kl_penalty");
        close(&case, "reward_kl_penalty", &[found.mean_kl], &[expected], with_epsilon);
        let expected = metric("actor/reward_kl_penalty_coeff");
        close(&case, "coefficient", &[state.coef], &[expected], tolerance(&case));
        let KlState { coef } = controller.update(state, found.mean_kl, scores.num_rows() as f64);
        close(&case, "coef_after", &[coef], &[number(&outputs["coef_after"])], with_epsilon);
    }
}
