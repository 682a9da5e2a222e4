//! TRL's losses: every `loss_type`, every case and every parameter; GMPO, and the entropy mask by itself.

use serde_json::Value;
use tamis_core::objective::{
    AdaptiveEntropy, AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, Columns, EntropyBonus,
    EntropyState, Evaluation, GeoMean, Importance, KlController, KlEstimator, KlKind, KlTerm, LengthDivisors,
    LossMasks, Luspo, Normalisers, Objective, ObjectiveState, Outcome, PolicyLoss, Reinforce, Sapo,
    Selection, Vespo,
};
use tamis_core::random::{Key, Purpose};
use tamis_golden::numbers;

use crate::{cases, close, column, lengths, mask, name, number, offsets, only_known, skip, tolerance};

const PARAMS: &[&str] = &[
    "loss_type",
    "importance_sampling_level",
    "beta",
    "epsilon_low",
    "epsilon_high",
    "delta",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "max_completion_length",
    "entropy_coef",
    "use_bias_correction_kl",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_processes",
    "mode",
    // Its effect is in the column `importance_sampling_ratio`.
    "use_vllm_is",
    "use_adaptive_entropy",
    "entropy_coef_min",
    "entropy_coef_max",
    "entropy_coef_delta",
    "entropy_target",
    "last_world_entropy",
    "sapo_temperature_neg",
    "sapo_temperature_pos",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
];
const INPUTS: &[&str] = &[
    "lengths",
    "mask",
    "padded_len",
    "logp",
    "old_logp",
    "ref_logp",
    "sampling_logp",
    "advantage",
    "entropy",
    "importance_sampling_ratio",
    "num_items_in_batch",
];
const OUTPUTS: &[&str] = &[
    "loss",
    "dloss_dlogp",
    "dloss_dentropy",
    "metrics",
    "entropy_mask",
    "off_policy_keep",
    "phi_seq",
    "entropy_coef_after",
];

struct Case {
    offsets: Vec<usize>,
    mask: Vec<bool>,
    logprob: Vec<f64>,
    old: Option<Vec<f64>>,
    reference: Option<Vec<f64>>,
    behaviour: Option<Vec<f64>>,
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
            behaviour: column(case, "sampling_logp"),
            entropy: column(case, "entropy").unwrap(),
            weight,
            advantage: column(case, "advantage").unwrap(),
        }
    }

    fn columns(&self) -> Columns<'_, f64> {
        Columns {
            old: self.old.as_deref(),
            behaviour: self.behaviour.as_deref(),
            reference: self.reference.as_deref(),
            entropy: Some(&self.entropy),
            weight: self.weight.as_deref(),
            ..Columns::new(
                &self.offsets,
                &self.mask,
                &self.logprob,
                AdvantageColumn::PerTrajectory(&self.advantage),
            )
        }
    }

    /// Trajectories without an unmasked (and, with flags, kept) token.
    fn empty_rows(&self, flags: Option<&[u8]>) -> Vec<usize> {
        let is_kept =
            |t: usize| self.mask[t] && flags.is_none_or(|flags| flags[t] & Selection::LEFT_OUT == 0);
        let rows = 0..self.advantage.len();
        rows.filter(|&i| !(self.offsets[i]..self.offsets[i + 1]).any(is_kept)).collect()
    }
}

fn policy(params: &Value) -> PolicyLoss {
    let of = |field: &str| number(&params[field]);
    let clip = Clip {
        clip_low: of("epsilon_low"),
        clip_high: of("epsilon_high"),
        dual_clip: None,
        delta: params["delta"].as_f64(),
        log_ratio_limit: None,
    };
    match params["loss_type"].as_str().unwrap() {
        "grpo" | "bnpo" | "dr_grpo" | "dapo" => PolicyLoss::Clip(clip),
        // A `delta` belongs to the clip: under this aggregation the two give the same number.
        "luspo" if clip.delta.is_some() => PolicyLoss::Clip(clip),
        "luspo" => PolicyLoss::Luspo(Luspo {
            clip_low: clip.clip_low,
            clip_high: clip.clip_high,
            log_ratio_limit: None,
        }),
        "cispo" => PolicyLoss::Cispo(Cispo {
            bound: CispoBound::Absolute,
            clip_low: 0.2,
            clip_high: 0.2,
            max_ratio: of("epsilon_high"),
            log_ratio_limit: None,
        }),
        "sapo" => PolicyLoss::Sapo(Sapo {
            tau_positive: params["sapo_temperature_pos"].as_f64().unwrap_or(1.0),
            tau_negative: params["sapo_temperature_neg"].as_f64().unwrap_or(1.05),
            log_ratio_limit: None,
        }),
        "vespo" => PolicyLoss::Vespo(Vespo {
            k_positive: of("vespo_k_pos"),
            lambda_positive: of("vespo_lambda_pos"),
            k_negative: of("vespo_k_neg"),
            lambda_negative: of("vespo_lambda_neg"),
        }),
        "gmpo" => PolicyLoss::GeoMean(GeoMean {
            clip_low: of("epsilon_low"),
            clip_high: of("epsilon_high"),
            length_epsilon: 0.0,
            weight_epsilon: 0.0,
        }),
        other => panic!("loss_type {other}"),
    }
}

/// The aggregation, and the counts by which it divides. `local` are those of the micro-batch.
fn denominators(case: &Value, local: Normalisers) -> (Aggregation, Normalisers) {
    let params = &case["params"];
    match params["loss_type"].as_str().unwrap() {
        "grpo" | "sapo" | "gmpo" => (Aggregation::SeqMeanTokenMean, local),
        "bnpo" => (Aggregation::TokenMean, local),
        "dr_grpo" => (Aggregation::SeqMeanTokenSumNorm, local),
        "luspo" => (Aggregation::SeqMeanTokenSum, local),
        "dapo" | "cispo" | "vespo" => {
            // Tokens of the generation batch over all ranks, times the share of it that the update uses.
            let train = params["mode"] == "train";
            let steps =
                number(&params["gradient_accumulation_steps"]) / number(&params["steps_per_generation"]);
            let share = if train { steps } else { 1.0 };
            let items = number(&case["inputs"]["num_items_in_batch"]).max(1.0);
            let dp_size = number(&params["num_processes"]);
            (Aggregation::TokenMean, Normalisers { tokens: items * share, dp_size, ..local })
        }
        other => panic!("loss_type {other}"),
    }
}

fn compare(file: &'static str) {
    for case in cases(file) {
        only_known(&case, "params", PARAMS);
        only_known(&case, "inputs", INPUTS);
        only_known(&case, "outputs", OUTPUTS);
        let (params, outputs) = (&case["params"], &case["outputs"]);
        let tensors = Case::read(&case);
        let train = params["mode"] == "train";
        let accumulation = if train { number(&params["gradient_accumulation_steps"]) } else { 1.0 };
        let num_sequences = tensors.advantage.len() as f64;
        let count = |mask: &[bool]| mask.iter().filter(|&&on| on).count().max(1) as f64;
        // Every loss except the relatives of dapo divides by this micro-batch's counts and by the number of
        // micro-batches of the update.
        let local = Normalisers {
            tokens: count(&tensors.mask) * accumulation,
            sequences: num_sequences * accumulation,
            groups: f64::NAN,
            dp_size: 1.0,
        };
        let (aggregation, normalisers) = denominators(&case, local);
        let beta = number(&params["beta"]);
        let quantile = number(&params["top_entropy_quantile"]);
        let loss_scale_factor = params["max_completion_length"].as_f64().unwrap_or(1.0);
        let objective = Objective {
            divisors: LengthDivisors { loss_scale_factor, length_epsilon: 0.0 },
            importance: match params["importance_sampling_level"].as_str() {
                Some("token") => Importance::Token,
                Some("sequence") => Importance::Sequence,
                other => panic!("{file}: importance_sampling_level {other:?}"),
            },
            kl: (beta != 0.0).then(|| KlTerm {
                estimator: KlEstimator::plain(KlKind::K3),
                controller: KlController::Fixed { coef: beta },
                bias_corrected: params["use_bias_correction_kl"] == true,
            }),
            masks: LossMasks {
                top_entropy: (quantile < 1.0).then_some(quantile),
                off_policy: params["off_policy_mask_threshold"].as_f64(),
            },
            ..Objective::of(policy(params), aggregation)
        };
        let flags = objective
            .needs_selection()
            .then(|| objective.select(&tensors.columns(), Key::new(0, Purpose::MiniBatch)).unwrap().flags);
        let flags = flags.map(|flags| entropy_mask(&case, &tensors, flags));
        let columns = Columns { selection: flags.as_deref(), ..tensors.columns() };
        let state = objective.initial_state();
        let (outcome, derivatives) = objective.value_and_gradient(&columns, &normalisers, &state).unwrap();
        let mut loss = outcome.loss;
        if params["loss_type"] == "gmpo" {
            // A trajectory with nothing to train on adds its advantage as a constant in TRL.
            let empty = tensors.empty_rows(flags.as_deref());
            loss += empty.iter().map(|&i| -tensors.advantage[i] / normalisers.sequences).sum::<f64>();
        }
        let bonus = bonus(&case, &tensors, &objective, flags.as_deref(), accumulation);
        loss += bonus.as_ref().map_or(0.0, |bonus| bonus.loss);
        close(&case, "loss", &[loss], &[number(&outputs["loss"])], tolerance(&case));
        let expected = numbers(&outputs["dloss_dlogp"]);
        close(&case, "dloss_dlogp", &derivatives.logprob, &expected, tolerance(&case));
        let mut evaluation = Evaluation::default();
        objective.evaluate(&columns, &normalisers, &state, &mut evaluation).unwrap();
        for (i, expected) in numbers(&outputs["phi_seq"]).into_iter().enumerate() {
            let sums = &evaluation.sequences[i];
            let phi = if sums.tokens > 0 { sums.own } else { 1.0 };
            close(&case, "phi_seq", &[phi], &[expected], tolerance(&case));
        }
        if let Some(keep) = outputs["off_policy_keep"].as_array() {
            // A left-out trajectory has no derivative of its policy loss.
            let policy = Objective { kl: None, ..objective.clone() };
            let (_, alone) = policy.value_and_gradient(&columns, &normalisers, &state).unwrap();
            for (i, keep) in keep.iter().enumerate().filter(|(_, keep)| number(keep) == 0.0) {
                let tokens = tensors.offsets[i]..tensors.offsets[i + 1];
                assert!(alone.logprob[tokens].iter().all(|derivative| *derivative == 0.0), "{keep}");
            }
        }
        if outcome.metrics.tokens == 0.0 {
            skip(&case, "metrics: a mean over no tokens is NaN here, 0 in the reference");
        } else {
            metrics(&case, &outcome, bonus.as_ref(), normalisers.sequences / accumulation, accumulation);
        }
    }
}

/// The flags as the reference sets them. It computes the quantile in single precision: if `1 - share` times
/// the count is a whole number, the result can be slightly above that number, and the threshold slightly
/// above a token's entropy. No other token may differ.
fn entropy_mask(case: &Value, tensors: &Case, mut flags: Vec<u8>) -> Vec<u8> {
    let expected = numbers(&case["outputs"]["entropy_mask"]);
    assert_eq!(flags.len(), expected.len(), "{}", name(case));
    let is_kept = |flags: u8, t: usize| tensors.mask[t] && flags & Selection::LEFT_OUT == 0;
    let kept = (0..flags.len()).filter(|&t| is_kept(flags[t], t)).map(|t| tensors.entropy[t]);
    let threshold = kept.fold(f64::INFINITY, f64::min);
    for (t, flags) in flags.iter_mut().enumerate() {
        let is_kept = is_kept(*flags, t);
        if is_kept != (expected[t] > 0.0) {
            assert!(is_kept && tensors.entropy[t] <= threshold, "{} entropy_mask[{t}]", name(case));
            *flags |= Selection::LEFT_OUT;
        }
    }
    flags
}

/// The entropy bonus: a plain token mean of the micro-batch over the tokens that the entropy mask keeps,
/// whatever the divisor of the policy loss; losses add.
fn bonus(
    case: &Value,
    tensors: &Case,
    objective: &Objective,
    flags: Option<&[u8]>,
    accumulation: f64,
) -> Option<Outcome> {
    let params = &case["params"];
    let coef = number(&params["entropy_coef"]);
    if coef == 0.0 {
        return None;
    }
    let is_kept = |t: usize| tensors.mask[t] && flags.is_none_or(|flags| flags[t] & Selection::LEFT_OUT == 0);
    let mask: Vec<bool> = (0..tensors.mask.len()).map(is_kept).collect();
    let adaptive = (params["use_adaptive_entropy"] == true).then(|| AdaptiveEntropy {
        min: number(&params["entropy_coef_min"]),
        max: number(&params["entropy_coef_max"]),
        delta: number(&params["entropy_coef_delta"]),
        target: number(&params["entropy_target"]),
    });
    let bonus = EntropyBonus { coef, aggregation: Some(Aggregation::TokenMean), adaptive };
    let alone =
        Objective { entropy: Some(bonus), kl: None, masks: LossMasks::default(), ..objective.clone() };
    let nothing = vec![0.0; tensors.advantage.len()];
    let columns =
        Columns { mask: &mask, advantage: AdvantageColumn::PerTrajectory(&nothing), ..tensors.columns() };
    let tokens = mask.iter().filter(|&&on| on).count().max(1) as f64 * accumulation;
    let normalisers = Normalisers { tokens, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
    let last = if adaptive.is_some() { number(&params["last_world_entropy"]) } else { 0.0 };
    let state = ObjectiveState { kl: None, entropy: Some(EntropyState { coef, last }) };
    let (outcome, derivatives) = alone.value_and_gradient(&columns, &normalisers, &state).unwrap();
    assert!(derivatives.logprob.iter().all(|derivative| *derivative == 0.0));
    let expected = numbers(&case["outputs"]["dloss_dentropy"]);
    close(case, "dloss_dentropy", &derivatives.entropy, &expected, tolerance(case));
    if adaptive.is_some() {
        let (after, expected) = (outcome.state.entropy.unwrap().coef, &case["outputs"]["entropy_coef_after"]);
        close(case, "entropy_coef_after", &[after], &[number(expected)], tolerance(case));
    }
    Some(outcome)
}

fn metrics(case: &Value, outcome: &Outcome, bonus: Option<&Outcome>, num_sequences: f64, accumulation: f64) {
    let (params, outputs) = (&case["params"], &case["outputs"]);
    let metrics = &outcome.metrics;
    let named = metrics.to_pairs();
    let is_global = matches!(params["loss_type"].as_str(), Some("dapo" | "cispo" | "vespo"));
    let is_sequence = params["importance_sampling_level"] == "sequence";
    let masked = num_sequences - metrics.sequences;
    // A mean over trajectories counts the fully masked ones in TRL, with the value that they have.
    let over_all =
        |value: f64, of_masked: f64| (value * metrics.sequences + of_masked * masked) / num_sequences;
    for (field, expected) in outputs["metrics"].as_object().unwrap() {
        // Fractions are single-precision sums of flags in the reference.
        let (actual, tolerance) = match field.as_str() {
            "policy_loss" if is_global => (metrics.policy_loss, tolerance(case)),
            "policy_loss" => (metrics.policy_loss * accumulation, tolerance(case)),
            // The coefficient after the update.
            "entropy_coef" => {
                let state = bonus.unwrap().state.entropy.unwrap();
                (state.coef, tolerance(case))
            }
            "entropy" => (metrics.entropy, tolerance(case)),
            "kl" => (metrics.kl.unwrap(), tolerance(case)),
            "vespo/phi_seq_mean" => (over_all(metrics.own.unwrap().1, 1.0), tolerance(case)),
            name if name.starts_with("clip_ratio/") || name == "cispo_clip_ratio" => {
                let ours = named.iter().find(|(ours, _)| *ours == name);
                let ours = ours.unwrap_or_else(|| panic!("no metric {name}")).1;
                let value = match name {
                    _ if !is_sequence => ours,
                    "clip_ratio/low_min" if masked > 0.0 => ours.min(0.0),
                    "clip_ratio/low_min" | "clip_ratio/high_max" => ours,
                    _ => over_all(ours, 0.0),
                };
                (value, crate::F32)
            }
            field => panic!("{}: metric {field}", name(case)),
        };
        close(case, field, &[actual], &[number(expected)], tolerance);
    }
}

#[test]
fn trl_losses() {
    for file in [
        "trl_loss_grpo",
        "trl_loss_bnpo",
        "trl_loss_dr_grpo",
        "trl_loss_dapo",
        "trl_loss_luspo",
        "trl_loss_cispo",
        "trl_loss_sapo",
        "trl_loss_vespo",
        "trl_loss_gmpo",
    ] {
        compare(file);
    }
}

#[test]
fn trl_entropy_mask() {
    for case in cases("trl_entropy_mask") {
        only_known(&case, "params", &["threshold_quantile"]);
        only_known(&case, "inputs", &["lengths", "mask", "padded_len", "entropy"]);
        only_known(&case, "outputs", &["mask", "entropy_threshold"]);
        let (mask, entropy) = (mask(&case), column(&case, "entropy").unwrap());
        let offsets = offsets(&lengths(&case));
        let (zeros, advantage) = (vec![0.0; mask.len()], vec![0.0; offsets.len() - 1]);
        let share = 1.0 - number(&case["params"]["threshold_quantile"]);
        let objective = Objective {
            masks: LossMasks { top_entropy: Some(share), off_policy: None },
            ..Objective::of(PolicyLoss::Reinforce(Reinforce {}), Aggregation::TokenMean)
        };
        let columns = Columns {
            entropy: Some(&entropy),
            ..Columns::new(&offsets, &mask, &zeros, AdvantageColumn::PerTrajectory(&advantage))
        };
        let flags = objective.select(&columns, Key::new(0, Purpose::MiniBatch)).unwrap().flags;
        let kept: Vec<f64> =
            flags.iter().zip(&mask).map(|(&flags, &on)| f64::from(u8::from(on && flags == 0))).collect();
        close(&case, "mask", &kept, &numbers(&case["outputs"]["mask"]), (0.0, 0.0));
    }
}
