//! verl's policy losses: every loss of a file, with every case and parameter.
//!
//! `bypass_mode` sets the correction for the sampler before another loss (`clip`, `reinforce`): its cases
//! belong to the correction's tests.

use serde_json::Value;
use tamis_core::objective::{
    AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, ClipCov, Columns, DppoKl, DppoTv, Dro, GeoMean,
    Gspo, GspoForm, KlCov, LengthDivisors, Normalisers, Objective, ObjectiveMetrics, PolicyLoss, Reinforce,
    Sapo, Selection,
};
use tamis_core::random::{Key, Purpose};
use tamis_golden::numbers;

use crate::verl_loss::{aggregation, divisors, normalisers};
use crate::{cases, close, column, lengths, mask, name, number, offsets, only_known, tolerance};

/// Arguments of every verl loss; a loss may add its own.
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

fn compare(file: &'static str) {
    let mode = &file["verl_loss_".len()..];
    for case in cases(file) {
        let (params, outputs) = (&case["params"], &case["outputs"]);
        let (policy, own) = policy(mode, params);
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
            // Whatever the configuration is.
            "sapo" => (Aggregation::SeqMeanTokenMean, normalisers(global, &lengths, &mask)),
            // A mean over all trajectories, including fully masked ones.
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
        let objective = Objective { divisors, ..Objective::of(policy, aggregation) };
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
            continue;
        }
        close(&case, "loss", &[outcome.loss], &[number(&outputs["loss"])], tolerance(&case));
        let expected = numbers(&outputs["dloss_dlogp"]);
        close(&case, "dloss_dlogp", &derivatives.logprob, &expected, tolerance(&case));
        for (metric, expected) in outputs["metrics"].as_object().unwrap() {
            let tokens = outcome.metrics.tokens;
            // The reference divides by the number of tokens + 1e-8.
            let expected = number(expected) * (tokens + 1e-8) / tokens;
            let actual = metric_of(mode, metric, &outcome.metrics);
            close(&case, metric, &[actual], &[expected], tolerance(&case));
        }
    }
}

fn metric_of(mode: &str, metric: &str, metrics: &ObjectiveMetrics) -> f64 {
    // In this case verl uses the name of the mean of -d for the mean of |d|.
    let ours = match (mode, metric) {
        ("kl_cov", "actor/ppo_kl") => "actor/ppo_kl_abs",
        _ => metric,
    };
    let named = metrics.to_pairs();
    named.iter().find(|(name, _)| *name == ours).unwrap_or_else(|| panic!("no metric {metric}")).1
}

/// A loss with the settings of a case, and the parameters that it has in addition to those of every loss.
fn policy(mode: &str, params: &Value) -> (PolicyLoss, &'static [&'static str]) {
    let of = |field: &str| number(&params[field]);
    let (clip_low, clip_high) = (of("clip_ratio_low"), of("clip_ratio_high"));
    let (max_ratio, log_ratio_limit) = (of("clip_ratio_c"), Some(20.0));
    let policy = match mode {
        "vanilla" => PolicyLoss::Clip(Clip::verl(clip_low, clip_high, max_ratio)),
        "gspo" => {
            let (form, log_ratio_limit) = (GspoForm::Token, Some(10.0));
            PolicyLoss::Gspo(Gspo { clip_low, clip_high, form, log_ratio_limit })
        }
        "sapo" => {
            let (tau_positive, tau_negative) = (of("tau_pos"), of("tau_neg"));
            PolicyLoss::Sapo(Sapo { tau_positive, tau_negative, log_ratio_limit })
        }
        "gpg" => PolicyLoss::Gpg(Reinforce {}),
        "clip_cov" => {
            let (share, cov_low, cov_high) = (of("clip_cov_ratio"), of("clip_cov_lb"), of("clip_cov_ub"));
            let loss = PolicyLoss::ClipCov(ClipCov { clip_low, clip_high, share, cov_low, cov_high });
            return (loss, &["clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"]);
        }
        "kl_cov" => {
            let loss = KlCov { share: of("kl_cov_ratio"), cov_coefficient: of("ppo_kl_coef") };
            return (PolicyLoss::KlCov(loss), &["kl_cov_ratio", "ppo_kl_coef"]);
        }
        "geo_mean" => {
            let (length_epsilon, weight_epsilon) = (1e-8, 1e-10);
            PolicyLoss::GeoMean(GeoMean { clip_low, clip_high, length_epsilon, weight_epsilon })
        }
        "cispo" => {
            let (bound, max_ratio) = (CispoBound::Relative, 5.0);
            PolicyLoss::Cispo(Cispo { bound, clip_low, clip_high, max_ratio, log_ratio_limit })
        }
        "dppo_tv" => PolicyLoss::DppoTv(DppoTv { clip_low, clip_high, max_ratio, log_ratio_limit }),
        "dppo_kl" => PolicyLoss::DppoKl(DppoKl { clip_low, clip_high, max_ratio, log_ratio_limit }),
        "dro" => return (PolicyLoss::Dro(Dro { beta: of("dro_beta") }), &["dro_beta"]),
        other => panic!("loss_mode {other}"),
    };
    (policy, &[])
}

#[test]
fn verl_losses() {
    for file in [
        "verl_loss_vanilla",
        "verl_loss_gspo",
        "verl_loss_sapo",
        "verl_loss_gpg",
        "verl_loss_clip_cov",
        "verl_loss_kl_cov",
        "verl_loss_geo_mean",
        "verl_loss_cispo",
        "verl_loss_dppo_tv",
        "verl_loss_dppo_kl",
        "verl_loss_dro",
    ] {
        compare(file);
    }
}
