//! TRL's KL, clip range, loss, advantages, entropy bonus and masks.

use crate::foreign::key::Rule;
use crate::foreign::shared::advantage;
use crate::foreign::translator::Translator;

/// `beta`, the weight of the KL.
pub(super) const KL: Rule = Rule::new(2, "kl", kl);

fn kl(t: &mut Translator) {
    const BETA: &str = "beta";
    const CORRECTION: &str = "use_bias_correction_kl";
    let beta = t.number(BETA).unwrap_or(0.0);
    if beta == 0.0 && (t.find(BETA).is_some() || t.whole) {
        t.set(&[BETA], "objective.kl.in", "none");
        t.no_effect(CORRECTION, "beta is 0: there is no KL term");
        return;
    }
    if t.find(BETA).is_some() {
        t.set(&[BETA], "objective.kl.in", "loss");
        t.set(&[BETA], "objective.kl.estimator", "k3");
        t.set(&[BETA], "objective.kl.coefficient", &beta.to_string());
        t.set(&[BETA], "objective.kl.adaptive", "null");
    }
    let is_corrected = t.flag(CORRECTION, true);
    t.set(&[CORRECTION, BETA], "objective.kl.bias_corrected", if is_corrected { "true" } else { "false" });
    if t.find(CORRECTION).is_none() {
        t.remark(
            BETA,
            "TRL 1.16 weights the KL by the ratio unless use_bias_correction_kl=False; older versions do not",
        );
    }
}

/// The clip range.
pub(super) const CLIP: Rule = Rule::new(2, "clip", clip);

fn clip(t: &mut Translator) {
    const BOUNDS: [&str; 2] = ["epsilon", "epsilon_high"];
    let low = t.number("epsilon").unwrap_or(0.2);
    let high = t.number("epsilon_high").unwrap_or(low);
    // Without it a layer of ours may have chosen the loss.
    let loss =
        t.text("loss_type").or_else(|| t.kind_of("objective.loss")).unwrap_or_else(|| "dapo".to_owned());
    match loss.as_str() {
        // TRL's bound of CISPO is the ratio itself.
        "cispo" if t.first_given(&BOUNDS).is_some() => {
            if t.text("loss_type").is_none() {
                t.set(&["epsilon_high", "epsilon"], "objective.loss.bound", "absolute");
            }
            t.set(&["epsilon_high", "epsilon"], "objective.loss.max_ratio", &high.to_string());
            t.part_of("epsilon", "epsilon_high");
        }
        "cispo" => {}
        _ if t.first_given(&BOUNDS).is_some() => {
            t.set(&BOUNDS, "objective.loss.clip_low", &low.to_string());
            t.set(&["epsilon_high", "epsilon"], "objective.loss.clip_high", &high.to_string());
            t.set(&BOUNDS, "objective.loss.dual_clip", "null");
        }
        _ => {}
    }
    t.no_effect("epsilon_high", "null takes epsilon");
}

/// `loss_type`.
pub(super) const LOSS: Rule = Rule::new(2, "loss", loss);

fn loss(t: &mut Translator) {
    const KEY: &str = "loss_type";
    let Some(given) = t.text(KEY) else {
        t.no_effect(KEY, "null leaves the default");
        return;
    };
    match given.as_str() {
        "cispo" => {
            t.set(&[KEY], "objective.loss.kind", "cispo");
            t.set(&[KEY], "objective.loss.bound", "absolute");
            if t.first_given(&["epsilon", "epsilon_high"]).is_none() {
                t.set(&[KEY], "objective.loss.max_ratio", "0.2");
            }
        }
        // Under a token sum the clipped ratio is the same loss, and it alone has the bound.
        "luspo" if t.text("delta").is_some() => {
            t.set(&[KEY], "objective.loss.kind", "clip");
            t.set(&[KEY], "objective.loss.dual_clip", "null");
        }
        "sapo" | "vespo" | "luspo" => t.set(&[KEY], "objective.loss.kind", &given),
        "grpo" | "bnpo" | "dr_grpo" | "dapo" => t.set(&[KEY], "objective.loss.kind", "clip"),
        _ => {
            t.refuse(KEY, "the losses are grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo and vespo");
            return;
        }
    }
    let aggregation = match given.as_str() {
        "grpo" | "sapo" => "seq-mean-token-mean",
        "luspo" => "seq-mean-token-sum",
        "dr_grpo" => "seq-mean-token-sum-norm",
        _ => "token-mean",
    };
    t.set(&[KEY], "objective.aggregation", aggregation);
    let is_scaled = !matches!(t.text("scale_rewards").as_deref(), Some("none" | "False" | "false"));
    match given.as_str() {
        "bnpo" => t.remark(KEY, "TRL's bnpo takes the mean per device's micro-batch; here it is the mini-batch's"),
        "dr_grpo" if is_scaled => t.remark(
            KEY,
            "warning: as in TRL it changes what the loss is divided by and no more: advantages are still divided by the deviation of \
             their group. Dr. GRPO as published wants scale_rewards=none too",
        ),
        "cispo" if t.first_given(&["epsilon", "epsilon_high"]).is_none() => {
            t.remark(KEY, "TRL bounds the ratio by epsilon_high itself, 0.2 unless set; ScaleRL takes 5");
        }
        _ => {}
    }
}

/// `scale_rewards`.
pub(super) const SCALE: Rule = Rule::new(2, "scale", scale);

fn scale(t: &mut Translator) {
    const KEY: &str = "scale_rewards";
    let scale = match t.text(KEY).as_deref() {
        None | Some("group" | "True" | "true") => "group",
        Some("batch") => "batch",
        Some("none" | "False" | "false") => "none",
        Some(_) => {
            t.bad_value(KEY, "group, batch, none, true or false");
            return;
        }
    };
    advantage::scale(t, KEY, scale);
    if scale != "none" {
        t.set(&[KEY], "objective.advantage.epsilon", "1e-4");
    }
}

/// The adaptive entropy bonus.
pub(super) const ADAPTIVE_ENTROPY: Rule = Rule::new(2, "adaptive entropy", adaptive_entropy);

/// TRL's adaptive entropy bonus.
fn adaptive_entropy(t: &mut Translator) {
    const SWITCH: &str = "use_adaptive_entropy";
    let settings = [
        ("entropy_coef_min", "min", 0.0),
        ("entropy_coef_max", "max", 1.0),
        ("entropy_coef_delta", "delta", 0.005),
        ("entropy_target", "target", 0.2),
    ];
    if t.flag(SWITCH, false) {
        let parts: Vec<String> = settings
            .iter()
            .map(|(key, ours, default)| format!("{ours}: {}", t.number(key).unwrap_or(*default)))
            .collect();
        t.set(&[SWITCH], "objective.entropy.adaptive", &format!("{{{}}}", parts.join(", ")));
        t.set(&[SWITCH], "objective.entropy.aggregation", "token-mean");
        for (key, ..) in settings {
            t.part_of(key, SWITCH);
        }
    }
    for key in [SWITCH, "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"] {
        t.no_effect(key, "use_adaptive_entropy is false");
    }
}

/// Normalisation of several rewards.
pub(super) const SEVERAL_REWARDS: Rule = Rule::new(2, "several rewards", several_rewards);

/// TRL's `multi_objective_aggregation`.
fn several_rewards(t: &mut Translator) {
    const KEY: &str = "multi_objective_aggregation";
    match t.text(KEY).as_deref() {
        None | Some("sum_then_normalize") => t.no_effect(KEY, "rewards are summed first"),
        Some("normalize_then_sum") => t.set(&[KEY], "objective.advantage.kind", "normalize_then_sum"),
        Some(_) => t.bad_value(KEY, "sum_then_normalize or normalize_then_sum"),
    }
}

/// Masks by entropy and divergence.
pub(super) const MASKS: Rule = Rule::new(2, "masks", masks);

/// A share or threshold of TRL where a value means "off".
fn masks(t: &mut Translator) {
    match t.number("top_entropy_quantile") {
        Some(share) if share < 1.0 => {
            t.set(&["top_entropy_quantile"], "objective.masks.top_entropy", &share.to_string());
        }
        _ => t.no_effect("top_entropy_quantile", "1 keeps all tokens"),
    }
    let threshold =
        t.text("off_policy_mask_threshold").filter(|text| !matches!(text.as_str(), "null" | "None"));
    match threshold {
        Some(threshold) => t.set(&["off_policy_mask_threshold"], "objective.masks.off_policy", &threshold),
        None => t.no_effect("off_policy_mask_threshold", "null is no bound"),
    }
}
