//! TRL's `grpo`, `bnpo`, `dr_grpo` and `dapo` losses: one clipped ratio, four denominators.

use serde_json::Value;
use tamis_core::objective::{
    AdvantageColumn, Aggregation, Clip, Columns, Derivatives, EntropyBonus, KlController, KlEstimator,
    KlKind, KlTerm, Normalisers, Objective, Outcome, PolicyLoss,
};
use tamis_golden::{cases, numbers};

use crate::{Tally, close, column, lengths, mask, number, offsets, tolerance};

/// Why a case is outside the scope, if it is.
fn out_of_scope(params: &Value) -> Option<&'static str> {
    if params["importance_sampling_level"] != "token" {
        Some("ratio per sequence (GSPO)")
    } else if params["top_entropy_quantile"] != 1.0 {
        Some("mask by entropy quantile")
    } else if params["off_policy_mask_threshold"].is_number() {
        Some("off-policy sequence mask")
    } else if params["use_bias_correction_kl"] == true {
        Some("KL times the ratio")
    } else if params["use_adaptive_entropy"] == true {
        Some("adaptive entropy coefficient")
    } else {
        None
    }
}

struct Case {
    offsets: Vec<usize>,
    mask: Vec<bool>,
    logprob: Vec<f64>,
    old: Option<Vec<f64>>,
    reference: Option<Vec<f64>>,
    entropy: Vec<f64>,
    weight: Option<Vec<f64>>,
    advantage: Vec<f64>,
}

impl Case {
    fn read(case: &Value) -> Self {
        let lengths = lengths(case);
        // The correction is given per token, or per trajectory for all of its tokens.
        let weight = column(case, "importance_sampling_ratio").map(|ratio| {
            if ratio.len() == lengths.len() {
                let per_token = ratio.iter().zip(&lengths);
                per_token.flat_map(|(&ratio, &length)| std::iter::repeat_n(ratio, length)).collect()
            } else {
                ratio
            }
        });
        Self {
            offsets: offsets(&lengths),
            mask: mask(case),
            logprob: column(case, "logp").unwrap(),
            old: column(case, "old_logp"),
            reference: column(case, "ref_logp"),
            entropy: column(case, "entropy").unwrap(),
            weight,
            advantage: column(case, "advantage").unwrap(),
        }
    }

    fn evaluate(&self, objective: &Objective, normalisers: &Normalisers) -> (Outcome, Derivatives) {
        let advantage = AdvantageColumn::PerTrajectory(&self.advantage);
        let columns = Columns {
            old: self.old.as_deref(),
            reference: self.reference.as_deref(),
            entropy: Some(&self.entropy),
            weight: self.weight.as_deref(),
            ..Columns::new(&self.offsets, &self.mask, &self.logprob, advantage)
        };
        objective.value_and_gradient(&columns, normalisers, &objective.initial_state()).unwrap()
    }
}

fn compare(file: &'static str) {
    let mut tally = Tally::new(file);
    for case in cases(file) {
        let params = &case["params"];
        if let Some(reason) = out_of_scope(params) {
            tally.skip(&case, reason);
            continue;
        }
        let tensors = Case::read(&case);
        let train = params["mode"] == "train";
        let accumulation = if train { number(&params["gradient_accumulation_steps"]) } else { 1.0 };
        let num_sequences = tensors.advantage.len() as f64;
        let tokens = tensors.mask.iter().filter(|&&on| on).count().max(1) as f64;
        // Every loss but dapo divides by this micro-batch's counts and by the number of micro-batches of the update.
        let local = Normalisers {
            tokens: tokens * accumulation,
            sequences: num_sequences * accumulation,
            groups: f64::NAN,
            dp_size: 1.0,
        };
        let (aggregation, normalisers) = match params["loss_type"].as_str() {
            Some("grpo") => (Aggregation::SeqMeanTokenMean { length_epsilon: 0.0 }, local),
            Some("bnpo") => (Aggregation::TokenMean, local),
            Some("dr_grpo") => {
                let scale = number(&params["max_completion_length"]);
                (Aggregation::SeqMeanTokenSumNorm { scale }, local)
            }
            Some("dapo") => {
                // Tokens of the generation batch over all ranks, times the share of it that the update takes.
                let share = if train { accumulation / number(&params["steps_per_generation"]) } else { 1.0 };
                let items = number(&case["inputs"]["num_items_in_batch"]).max(1.0);
                let dp_size = number(&params["num_processes"]);
                (Aggregation::TokenMean, Normalisers { tokens: items * share, dp_size, ..local })
            }
            other => panic!("{file}: loss_type {other:?}"),
        };
        let beta = number(&params["beta"]);
        let policy = Objective {
            policy: PolicyLoss::Clip(Clip {
                low: number(&params["epsilon_low"]),
                high: number(&params["epsilon_high"]),
                dual: None,
                cap: params["delta"].as_f64(),
                log_ratio_limit: None,
            }),
            aggregation,
            kl: (beta != 0.0).then(|| KlTerm {
                estimator: KlEstimator::plain(KlKind::K3),
                controller: KlController::Fixed { coef: beta },
            }),
            entropy: None,
            value: None,
        };
        let (outcome, derivatives) = tensors.evaluate(&policy, &normalisers);
        let mut loss = outcome.loss;
        let outputs = &case["outputs"];
        let entropy_coef = number(&params["entropy_coef"]);
        if entropy_coef != 0.0 {
            // The bonus is a plain token mean of the micro-batch, also where the policy loss divides by other counts; losses add.
            let bonus = EntropyBonus { coef: entropy_coef, aggregation: Some(Aggregation::TokenMean) };
            let objective = Objective { entropy: Some(bonus), kl: None, ..policy };
            let alone = Case { advantage: vec![0.0; tensors.advantage.len()], ..Case::read(&case) };
            let (bonus, dbonus) = alone.evaluate(&objective, &local);
            loss += bonus.loss;
            assert!(dbonus.logprob.iter().all(|derivative| *derivative == 0.0));
            close(
                &case,
                "dloss_dentropy",
                &dbonus.entropy,
                &numbers(&outputs["dloss_dentropy"]),
                tolerance(&case),
            );
        }
        close(&case, "loss", &[loss], &[number(&outputs["loss"])], tolerance(&case));
        close(
            &case,
            "dloss_dlogp",
            &derivatives.logprob,
            &numbers(&outputs["dloss_dlogp"]),
            tolerance(&case),
        );
        let metrics = &outcome.metrics;
        if metrics.tokens == 0.0 {
            tally.skip(&case, "metrics: a mean over no tokens is NaN here, 0 in the reference");
            tally.ran += 1;
            continue;
        }
        for (field, expected) in outputs["metrics"].as_object().unwrap() {
            let expected = number(expected);
            // Fractions are single-precision sums of flags in the reference.
            let (actual, tolerance) = match field.as_str() {
                "policy_loss" if params["loss_type"] == "dapo" => (metrics.policy_loss, tolerance(&case)),
                "policy_loss" => (metrics.policy_loss * accumulation, tolerance(&case)),
                "entropy_coef" => (entropy_coef, tolerance(&case)),
                "entropy" => (metrics.entropy, tolerance(&case)),
                "kl" => (metrics.kl.unwrap(), tolerance(&case)),
                name if name.starts_with("clip_ratio/") => {
                    let named = metrics.named();
                    let ours = named.iter().find(|(ours, _)| *ours == name);
                    (ours.unwrap_or_else(|| panic!("no metric {name}")).1, crate::F32)
                }
                name => panic!("{file}: metric {name}"),
            };
            close(&case, field, &[actual], &[expected], tolerance);
        }
        tally.ran += 1;
    }
    tally.finish();
}

#[test]
fn trl_loss_grpo() {
    compare("trl_loss_grpo");
}

#[test]
fn trl_loss_bnpo() {
    compare("trl_loss_bnpo");
}

#[test]
fn trl_loss_dr_grpo() {
    compare("trl_loss_dr_grpo");
}

#[test]
fn trl_loss_dapo() {
    compare("trl_loss_dapo");
}
