//! verl's policy losses: the losses of a file, every case and every parameter of it.
//!
//! `bypass_mode` sets the correction for the sampler before a loss that is here already (`clip`,
//! `reinforce`): its cases belong to the correction's tests.

use serde_json::Value;
use tamis_core::objective::{
    AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, ClipCov, Columns, DppoKl, DppoTv, Dro, GeoMean,
    Gspo, GspoForm, KlCov, LengthDivisors, Normalisers, Objective, ObjectiveMetrics, PolicyLoss, Reinforce,
    Sapo, Selection,
};
use tamis_core::random::{Key, Purpose};
use tamis_golden::{cases, numbers};

use crate::verl_loss::{aggregation, divisors, normalisers};
use crate::{Tally, close, column, lengths, mask, name, number, offsets, only_known, tolerance};

/// Arguments of every loss of verl; those that a loss adds come on top.
const SHARED: &[&str] = &[
    "loss_mode",
    "loss_agg_mode",
    "clip_ratio",
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_c",
    "tau_pos",
    "tau_neg",
    "global_batch_info",
];

fn run(mode: &'static str, file: &'static str, own: &[&str], build: impl Fn(&Value) -> PolicyLoss) {
    let mut tally = Tally::new(file);
    for case in cases(file) {
        let (params, outputs) = (&case["params"], &case["outputs"]);
        only_known(&case, "params", &[SHARED, own].concat());
        only_known(
            &case,
            "inputs",
            &["lengths", "mask", "padded_len", "logp", "old_logp", "advantage", "rollout_is_weight"],
        );
        only_known(&case, "outputs", &["loss", "dloss_dlogp", "metrics", "candidate", "zeroed"]);
        assert_eq!(params["loss_mode"], mode, "{}", name(&case));
        let global = &params["global_batch_info"];
        let (lengths, mask) = (lengths(&case), mask(&case));
        let agg_mode = params["loss_agg_mode"].as_str().unwrap();
        let (aggregation, normalisers) = match mode {
            // Whatever the configuration says.
            "sapo" => (Aggregation::SeqMeanTokenMean, normalisers(global, &lengths, &mask)),
            // A mean over all trajectories, fully masked ones too.
            "geo_mean" => (
                Aggregation::SeqMeanTokenMean,
                Normalisers {
                    tokens: f64::NAN,
                    sequences: lengths.len() as f64,
                    groups: f64::NAN,
                    dp_size: 1.0,
                },
            ),
            _ => (aggregation(agg_mode), normalisers(global, &lengths, &mask)),
        };
        let divisors = if mode == "geo_mean" { LengthDivisors::default() } else { divisors(&case, global) };
        let objective = Objective { divisors, ..Objective::of(build(params), aggregation) };
        let offsets = offsets(&lengths);
        let (logprob, old) = (column(&case, "logp").unwrap(), column(&case, "old_logp").unwrap());
        let (advantage, weight) = (column(&case, "advantage").unwrap(), column(&case, "rollout_is_weight"));
        let mut columns = Columns {
            old: Some(&old),
            weight: weight.as_deref(),
            ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerToken(&advantage))
        };
        let selection = objective.needs_selection().then(|| match &objective.policy {
            // With `randperm` replaced by the identity the first candidates are taken.
            PolicyLoss::ClipCov(loss) => {
                let candidates = loss.candidates(&columns);
                let flag = |tokens: &[usize]| {
                    let mut flags = vec![0.0; mask.len()];
                    for &t in tokens {
                        flags[t] = 1.0;
                    }
                    flags
                };
                close(&case, "candidate", &flag(&candidates), &numbers(&outputs["candidate"]), (0.0, 0.0));
                let count = loss.count(&columns).min(candidates.len());
                let zeroed = flag(&candidates[..count]);
                close(&case, "zeroed", &zeroed, &numbers(&outputs["zeroed"]), (0.0, 0.0));
                zeroed.iter().map(|&on| if on > 0.0 { Selection::BY_COVARIANCE } else { 0 }).collect()
            }
            _ => objective.select(&columns, Key::new(0, Purpose::MiniBatch)).unwrap().flags,
        });
        columns.selection = selection.as_deref();
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
        if !mask.contains(&true) {
            assert!(
                outcome.loss == 0.0,
                "{}: nothing to train on is 0 here, NaN in the reference",
                name(&case)
            );
            assert!(derivatives.logprob.iter().all(|derivative| *derivative == 0.0));
            tally.ran += 1;
            continue;
        }
        close(&case, "loss", &[outcome.loss], &[number(&outputs["loss"])], tolerance(&case));
        close(
            &case,
            "dloss_dlogp",
            &derivatives.logprob,
            &numbers(&outputs["dloss_dlogp"]),
            tolerance(&case),
        );
        for (metric, expected) in outputs["metrics"].as_object().unwrap() {
            let tokens = outcome.metrics.tokens;
            // The reference divides by the number of tokens + 1e-8.
            let expected = number(expected) * (tokens + 1e-8) / tokens;
            let actual = metric_of(mode, metric, &outcome.metrics);
            close(&case, metric, &[actual], &[expected], tolerance(&case));
        }
        tally.ran += 1;
    }
    tally.finish();
}

fn metric_of(mode: &str, metric: &str, metrics: &ObjectiveMetrics) -> f64 {
    // verl calls the mean of |d| by the name of that of -d there.
    let ours = match (mode, metric) {
        ("kl_cov", "actor/ppo_kl") => "actor/ppo_kl_abs",
        _ => metric,
    };
    let named = metrics.to_pairs();
    named.iter().find(|(name, _)| *name == ours).unwrap_or_else(|| panic!("no metric {metric}")).1
}

fn of(params: &Value, field: &str) -> f64 {
    number(&params[field])
}

#[test]
fn verl_loss_gspo() {
    run("gspo", "verl_loss_gspo", &[], |params| {
        PolicyLoss::Gspo(Gspo {
            clip_low: of(params, "clip_ratio_low"),
            clip_high: of(params, "clip_ratio_high"),
            form: GspoForm::Token,
            log_ratio_limit: Some(10.0),
        })
    });
}

#[test]
fn verl_loss_sapo() {
    run("sapo", "verl_loss_sapo", &[], |params| {
        PolicyLoss::Sapo(Sapo {
            tau_positive: of(params, "tau_pos"),
            tau_negative: of(params, "tau_neg"),
            log_ratio_limit: Some(20.0),
        })
    });
}

#[test]
fn verl_loss_gpg() {
    run("gpg", "verl_loss_gpg", &[], |_| PolicyLoss::Gpg(Reinforce {}));
}

#[test]
fn verl_loss_clip_cov() {
    run("clip_cov", "verl_loss_clip_cov", &["clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"], |params| {
        PolicyLoss::ClipCov(ClipCov {
            clip_low: of(params, "clip_ratio_low"),
            clip_high: of(params, "clip_ratio_high"),
            share: of(params, "clip_cov_ratio"),
            cov_low: of(params, "clip_cov_lb"),
            cov_high: of(params, "clip_cov_ub"),
        })
    });
}

#[test]
fn verl_loss_kl_cov() {
    run("kl_cov", "verl_loss_kl_cov", &["kl_cov_ratio", "ppo_kl_coef"], |params| {
        PolicyLoss::KlCov(KlCov {
            share: of(params, "kl_cov_ratio"),
            cov_coefficient: of(params, "ppo_kl_coef"),
        })
    });
}

#[test]
fn verl_loss_geo_mean() {
    run("geo_mean", "verl_loss_geo_mean", &[], |params| {
        PolicyLoss::GeoMean(GeoMean {
            clip_low: of(params, "clip_ratio_low"),
            clip_high: of(params, "clip_ratio_high"),
            length_epsilon: 1e-8,
            weight_epsilon: 1e-10,
        })
    });
}

#[test]
fn verl_loss_cispo() {
    run("cispo", "verl_loss_cispo", &[], |params| {
        PolicyLoss::Cispo(Cispo {
            bound: CispoBound::Relative,
            clip_low: of(params, "clip_ratio_low"),
            clip_high: of(params, "clip_ratio_high"),
            max_ratio: 5.0,
            log_ratio_limit: Some(20.0),
        })
    });
}

#[test]
fn verl_loss_dppo_tv() {
    run("dppo_tv", "verl_loss_dppo_tv", &[], |params| {
        PolicyLoss::DppoTv(DppoTv {
            clip_low: of(params, "clip_ratio_low"),
            clip_high: of(params, "clip_ratio_high"),
            max_ratio: of(params, "clip_ratio_c"),
            log_ratio_limit: Some(20.0),
        })
    });
}

#[test]
fn verl_loss_dppo_kl() {
    run("dppo_kl", "verl_loss_dppo_kl", &[], |params| {
        PolicyLoss::DppoKl(DppoKl {
            clip_low: of(params, "clip_ratio_low"),
            clip_high: of(params, "clip_ratio_high"),
            max_ratio: of(params, "clip_ratio_c"),
            log_ratio_limit: Some(20.0),
        })
    });
}

#[test]
fn verl_loss_dro() {
    run("dro", "verl_loss_dro", &["dro_beta"], |params| {
        PolicyLoss::Dro(Dro { beta: of(params, "dro_beta") })
    });
}

#[test]
fn verl_loss_vanilla() {
    run("vanilla", "verl_loss_vanilla", &[], |params| {
        PolicyLoss::Clip(Clip::verl(
            of(params, "clip_ratio_low"),
            of(params, "clip_ratio_high"),
            of(params, "clip_ratio_c"),
        ))
    });
}
