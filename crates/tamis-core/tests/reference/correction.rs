//! verl's rollout correction and its bypass modes, TRL's importance sampling for vLLM, truncation and
//! off-policy masks.

use std::collections::HashMap;

use serde_json::Value;
use tamis_core::correction::truncated::{ends_with, mask_truncated};
use tamis_core::correction::{
    Correction, CorrectionError, CorrectionLevel, CorrectionPreset, ImportanceWeights, Mode, Rejection,
    SamplerColumns,
};
use tamis_core::objective::{
    AdvantageColumn, Clip, Columns, GroupCounts, LengthDivisors, Normalisers, Objective, PolicyLoss,
};
use tamis_core::ragged::Ragged;
use tamis_golden::numbers;

use crate::verl_loss::{aggregation, compare_loss};
use crate::{F64, cases, close, column, lengths, mask, name, number, offsets, tolerance};

/// verl's means divide by their count + 1e-8, its shares of trajectories are float32, and its deviations are
/// differences of squares: a deviation of 0 may come out as 1e-8 of the largest square.
const MEANS: (f64, f64) = (1e-7, 1e-7);

/// Perplexities are exponentials of float32 means. Near a mean of 23 a rounding step is 1.9e-6; half of it is
/// the relative error of the exponential, and the sum behind the mean has rounding errors of its own.
const PERPLEXITIES: (f64, f64) = (2e-6, 1e-7);

/// A threshold that verl takes as a number or as text.
fn text(threshold: &Value) -> Option<String> {
    threshold.as_str().map(str::to_owned).or_else(|| threshold.as_f64().map(|number| number.to_string()))
}

/// verl's settings of the correction.
fn verl(params: &Value) -> Result<Correction, CorrectionError> {
    let level = match params["rollout_is"].as_str() {
        None => None,
        Some("token") => Some(CorrectionLevel::Token),
        Some("sequence") => Some(CorrectionLevel::Sequence),
        Some(other) => panic!("rollout_is {other}"),
    };
    let importance = match level {
        None => None,
        Some(level) => Some(ImportanceWeights {
            batch_normalize: params["rollout_is_batch_normalize"].as_bool().unwrap(),
            ..ImportanceWeights::verl(level, &text(&params["rollout_is_threshold"]).unwrap())?
        }),
    };
    let rejections = match (params["rollout_rs"].as_str(), text(&params["rollout_rs_threshold"])) {
        (None, _) => Vec::new(),
        (Some(names), Some(thresholds)) => Rejection::verl(names, &thresholds)?,
        // Without a threshold there is no bound.
        (Some(names), None) => Rejection::verl(names, "2.0")?
            .into_iter()
            .map(|bounded| Rejection { min: None, max: None, ..bounded })
            .collect(),
    };
    let mode = match params["loss_type"].as_str() {
        None => Mode::Decoupled,
        Some("ppo_clip") => Mode::BypassClip,
        Some("reinforce") => Mode::BypassReinforce,
        Some(other) => panic!("loss_type {other}"),
    };
    Ok(Correction { mode, importance, rejections, count_masked_trajectories: true, ..Correction::default() })
}

/// Compares every `rollout_corr/*` that the case has.
fn compare_metrics(case: &Value, named: &[(String, f64)]) {
    let ours: HashMap<&str, f64> = named.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(ours.len(), named.len(), "a name twice");
    for (metric, expected) in case["outputs"]["metrics"].as_object().unwrap() {
        if !metric.starts_with("rollout_corr/") {
            continue;
        }
        let actual = *ours.get(metric.as_str()).unwrap_or_else(|| panic!("no metric {metric}"));
        let expected = number(expected);
        if metric.ends_with("_std") && !metric.ends_with("seq_std") {
            // The mean square is not part of the metrics; the largest value bounds it.
            let largest =
                ours.get(metric.replace("_std", "_max").as_str()).copied().unwrap_or(1.0).abs().max(1.0);
            close(
                case,
                metric,
                &[actual * actual],
                &[expected * expected],
                (MEANS.0, MEANS.1 * largest * largest),
            );
        } else {
            let tolerance = if metric.ends_with("_ppl") { PERPLEXITIES } else { MEANS };
            close(case, metric, &[actual], &[expected], tolerance);
        }
    }
}

#[test]
fn verl_rollout_correction() {
    for case in cases("verl_rollout_correction") {
        let correction = verl(&case["params"]).unwrap();
        if let Some(error) = case["outputs"]["error"].as_str() {
            assert!(error.contains("rollout_rs_threshold must be"), "{error}");
            let refused = correction.check().unwrap_err().to_string();
            assert!(refused.ends_with("has no bound; set `min`, `max` or both"), "{}", name(&case));
            continue;
        }
        let (lengths, mask) = (lengths(&case), mask(&case));
        let (old, behaviour) = (column(&case, "old_logp").unwrap(), column(&case, "rollout_logp").unwrap());
        let offsets = offsets(&lengths);
        let columns = SamplerColumns { offsets: &offsets, mask: &mask, old: &old, behaviour: &behaviour };
        let corrected = correction.correct(&columns).unwrap();
        let expected = &case["outputs"]["rollout_is_weight"];
        assert_eq!(corrected.weights.is_some(), expected.is_array(), "{}", name(&case));
        if let Some(weights) = &corrected.weights {
            // The normalisation divides by a mean.
            let (rtol, atol) = tolerance(&case);
            let rtol = if correction.importance.unwrap().batch_normalize { MEANS.0 } else { rtol };
            close(&case, "rollout_is_weight", weights, &numbers(expected), (rtol, atol));
        }
        let new_mask: Vec<bool> = numbers(&case["outputs"]["new_mask"]).iter().map(|&on| on == 1.0).collect();
        assert_eq!(corrected.mask, new_mask, "{}", name(&case));
        compare_metrics(&case, &corrected.metrics.to_pairs());
    }
}

/// The settings of the vectors' presets equal those of the presets by name.
#[test]
fn verl_presets_by_name() {
    let mut met = 0;
    for file in ["verl_rollout_correction", "verl_loss_bypass_mode"] {
        for case in cases(file) {
            let preset = name(&case).split('/').nth(1).unwrap();
            let Some(entry) = CorrectionPreset::ALL.iter().find(|entry| entry.as_str() == preset) else {
                assert!(
                    !preset.starts_with("decoupled_") && !preset.starts_with("bypass_"),
                    "no preset {preset}"
                );
                continue;
            };
            let (params, built) = (&case["params"], entry.correction());
            let params = if file == "verl_loss_bypass_mode" { &params["rollout_correction"] } else { params };
            let mut given = Correction { count_masked_trajectories: false, ..verl(params).unwrap() };
            // The vectors of the bypass modes were made with wider bounds than the presets have.
            if file == "verl_loss_bypass_mode" {
                let kinds = |correction: &Correction| -> Vec<String> {
                    correction.rejections.iter().map(Rejection::name).collect()
                };
                assert_eq!(kinds(&given), kinds(&built), "{preset}");
                given.rejections.clone_from(&built.rejections);
            }
            assert_eq!(given, built, "{preset}");
            met += 1;
        }
    }
    assert!(met > 0);
}

/// The clipped loss is in the objective. REINFORCE is `-w·A·logprob`, aggregated here, so that weights and
/// mask are compared.
#[test]
fn verl_loss_bypass_mode() {
    for case in cases("verl_loss_bypass_mode") {
        let params = &case["params"];
        assert_eq!(params["loss_mode"], "bypass_mode");
        let aggregation = aggregation(params["loss_agg_mode"].as_str().unwrap());
        let correction = verl(&params["rollout_correction"]).unwrap();
        let lengths = lengths(&case);
        let (logprob, behaviour) = (column(&case, "logp").unwrap(), column(&case, "old_logp").unwrap());
        let advantage = column(&case, "advantage").unwrap();
        let (offsets, mask) = (offsets(&lengths), mask(&case));
        let corrected = correction
            .correct(&SamplerColumns { offsets: &offsets, mask: &mask, old: &logprob, behaviour: &behaviour })
            .unwrap();
        compare_metrics(&case, &corrected.metrics.to_pairs());
        let mask = corrected.mask;
        let ragged = Ragged::from_lengths(mask.clone(), &lengths).unwrap();
        let (normalisers, _) = Normalisers::of(&ragged, &vec![1; lengths.len()]).unwrap();
        let (loss, derivative) = match correction.mode {
            Mode::BypassClip => {
                let clip = Clip::verl(
                    number(&params["clip_ratio_low"]),
                    number(&params["clip_ratio_high"]),
                    number(&params["clip_ratio_c"]),
                );
                let objective = Objective::of(PolicyLoss::Clip(clip), aggregation);
                let columns = Columns {
                    old: Some(&behaviour),
                    ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerToken(&advantage))
                };
                let (outcome, derivatives) =
                    objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
                if outcome.metrics.tokens > 0.0 {
                    for (metric, actual) in outcome.metrics.to_pairs() {
                        if let Some(expected) = case["outputs"]["metrics"][metric].as_f64()
                            && metric.starts_with("actor/")
                        {
                            close(&case, metric, &[actual], &[expected], MEANS);
                        }
                    }
                }
                (outcome.loss, derivatives.logprob)
            }
            Mode::BypassReinforce => {
                let weights = corrected.weights.unwrap_or_else(|| vec![1.0; mask.len()]);
                let (mut loss, mut derivative) = (0.0, vec![0.0; mask.len()]);
                for pair in offsets.windows(2) {
                    let tokens = pair[0]..pair[1];
                    let count = mask[tokens.clone()].iter().filter(|&&on| on).count();
                    let scale = if count > 0 {
                        aggregation
                            .weight(count, GroupCounts::default(), &normalisers, &LengthDivisors::default())
                            .unwrap()
                    } else {
                        0.0
                    };
                    for t in tokens.filter(|&t| mask[t]) {
                        loss -= scale * weights[t] * advantage[t] * logprob[t];
                        derivative[t] = -scale * weights[t] * advantage[t];
                    }
                }
                (loss, derivative)
            }
            Mode::Decoupled => panic!("not a bypass mode"),
        };
        compare_loss(&case, loss, &mask);
        close(&case, "dloss_dlogp", &derivative, &numbers(&case["outputs"]["dloss_dlogp"]), tolerance(&case));
    }
}

#[test]
fn trl_vllm_is() {
    for case in cases("trl_vllm_is") {
        let params = &case["params"];
        let importance = ImportanceWeights::trl(
            params["mode"].as_str().unwrap(),
            params["clip_min"].as_f64(),
            params["clip_max"].as_f64(),
        );
        let correction = Correction {
            importance: Some(importance.unwrap()),
            log_ratio_limit: None,
            count_masked_trajectories: true,
            ..Correction::default()
        };
        let (lengths, mask) = (lengths(&case), mask(&case));
        let (old, behaviour) = (column(&case, "old_logp").unwrap(), column(&case, "sampling_logp").unwrap());
        let offsets = offsets(&lengths);
        let columns = SamplerColumns { offsets: &offsets, mask: &mask, old: &old, behaviour: &behaviour };
        let corrected = correction.correct(&columns).unwrap();
        assert_eq!(corrected.mask, mask);
        let ratio = numbers(&case["outputs"]["ratio"]);
        let expected: Vec<f64> = match case["outputs"]["per"].as_str().unwrap() {
            "token" => ratio,
            "sequence" => {
                ratio.iter().zip(&lengths).flat_map(|(&ratio, &length)| vec![ratio; length]).collect()
            }
            other => panic!("per {other}"),
        };
        // TRL's ratio of a masked token is 1; nothing reads it, nor our 0.
        let unmasked = |weights: &[f64]| -> Vec<f64> {
            weights.iter().zip(&mask).filter(|(_, on)| **on).map(|(&weight, _)| weight).collect()
        };
        close(&case, "ratio", &unmasked(&corrected.weights.unwrap()), &unmasked(&expected), F64);
        let named = corrected.metrics.to_pairs();
        for (metric, expected) in case["outputs"]["metrics"].as_object().unwrap() {
            let (_, actual) =
                named.iter().find(|(ours, _)| ours == metric).unwrap_or_else(|| panic!("no metric {metric}"));
            close(&case, metric, &[*actual], &[number(expected)], F64);
        }
    }
}

#[test]
fn trl_truncation_mask() {
    for case in cases("trl_truncation_mask") {
        let params = &case["params"];
        let mut ends: Vec<u32> = numbers(&params["eos_token_ids"]).iter().map(|&id| id as u32).collect();
        ends.push(number(&params["pad_token_id"]) as u32);
        let rows =
            |value: &Value| -> Vec<Vec<f64>> { value.as_array().unwrap().iter().map(numbers).collect() };
        let ids: Vec<Vec<u32>> = rows(&case["inputs"]["completion_ids"])
            .into_iter()
            .map(|row| row.into_iter().map(|id| id as u32).collect())
            .collect();
        let mut found = Ragged::from_rows(ids.iter().map(|row| vec![true; row.len()]));
        if params["mask_truncated_completions"].as_bool().unwrap() {
            let truncated: Vec<bool> = ids.iter().map(|row| !ends_with(row, &ends)).collect();
            mask_truncated(&mut found, &truncated).unwrap();
        }
        let expected = rows(&case["outputs"]["completion_mask"]);
        let expected =
            Ragged::from_rows(expected.iter().map(|row| row.iter().map(|&on| on == 1.0).collect::<Vec<_>>()));
        assert_eq!(found, expected, "{}", name(&case));
        let items = found.values().iter().filter(|&&on| on).count();
        assert_eq!(items as f64, number(&case["outputs"]["num_items_in_batch"]), "{}", name(&case));
    }
}
