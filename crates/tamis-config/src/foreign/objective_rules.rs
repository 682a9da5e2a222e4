//! Estimators, losses, shapings and corrections of verl, EasyR1 and TRL.

use super::translate::Translator;

/// verl's and EasyR1's estimators by our names.
pub(super) fn estimator(name: &str) -> Option<&'static str> {
    Some(match name {
        "grpo" | "grpo_vectorized" => "grpo",
        "grpo_passk" => "grpo_passk",
        "rloo" | "rloo_vectorized" => "rloo",
        "reinforce_plus_plus" => "reinforce_plus_plus",
        "reinforce_plus_plus_baseline" => "reinforce_plus_plus_baseline",
        "remax" => "remax",
        "opo" => "opo",
        "gpg" => "gpg",
        "gdpo" => "gdpo",
        "optimal_token_baseline" => "optimal_token_baseline",
        "tir_optimal_token_baseline" => "tir_optimal_token_baseline",
        "gae" => "gae",
        "bi_level_gae" => "bi_level_gae",
        "cpo" => "cpo",
        _ => return None,
    })
}

/// What their systems do otherwise than we, by its name here.
pub(super) fn as_there(t: &mut Translator, key: &str, ours: &str) {
    match ours {
        "cpo" => t.remark(
            key,
            "groups of rights and of wrongs are found here by their rewards; the fork compares a list with a number, finds none, and so \
             only lowers wrong completions in groups of wrongs. The gold answer stands in `objective.advantage.gold_hint`, in other words \
             than there",
        ),
        "optimal_token_baseline" | "tir_optimal_token_baseline" => {
            t.set(&[key], "objective.advantage.epsilon", "1e-8");
            t.set(&[key], "objective.advantage.masked_rewards", "lost");
            t.set(&[key], "objective.advantage.tail", "zeroed_by_count");
        }
        _ => {}
    }
}

/// Where the contrast of verl's CPO fork is taken: the two forms that its scripts use.
pub(super) fn cpo_wrap(t: &mut Translator) {
    const WRAP: &str = "actor_rollout_ref.actor.wrap_method";
    match t.text(WRAP).as_deref() {
        Some(form @ ("seq_kl" | "tok_kl")) => t.set(&[WRAP], "objective.advantage.wrap", form),
        _ => t.refuse(
            WRAP,
            "of the fork's forms `seq_kl` and `tok_kl` are here; the others, which none of its scripts names, are not: `tamis explain cpo`",
        ),
    }
}

/// Of those, the ones that keep the raw reward of a group of one, as verl does.
pub(super) fn has_singletons(ours: &str) -> bool {
    !matches!(ours, "reinforce_plus_plus" | "remax" | "gae" | "bi_level_gae")
}

/// Why the estimator and the loss `flow_grpo` are refused.
pub(super) const IMAGES: &str = "it trains models that make images, and language models are trained here";

const MODE: &str = "actor_rollout_ref.actor.policy_loss.loss_mode";
const CLIP: &str = "actor_rollout_ref.actor.clip_ratio";
const LOW: &str = "actor_rollout_ref.actor.clip_ratio_low";
const HIGH: &str = "actor_rollout_ref.actor.clip_ratio_high";
const DUAL: &str = "actor_rollout_ref.actor.clip_ratio_c";
const AGGREGATION: &str = "actor_rollout_ref.actor.loss_agg_mode";
const TOKEN_LEVEL: &str = "actor_rollout_ref.actor.use_token_level_loss";

/// verl's `policy_loss.loss_mode` with its parameters.
pub(super) fn policy_loss(t: &mut Translator) {
    let mode = t.text(MODE).unwrap_or_else(|| "vanilla".to_owned());
    let kind = match mode.as_str() {
        "vanilla" => "clip",
        "gspo" | "sapo" | "gpg" | "clip_cov" | "kl_cov" | "geo_mean" | "cispo" | "dppo_tv" | "dppo_kl"
        | "dro" => mode.as_str(),
        other => {
            let reason = match other {
                "flow_grpo" => IMAGES,
                "cppo" => {
                    "its bound on the drift of a whole prefix is not there: `dppo_tv` bounds the divergence of each token"
                }
                "bypass_mode" => {
                    "verl sets it by itself where algorithm.rollout_correction.bypass_mode is True: give that"
                }
                _ => {
                    "the losses are vanilla, gspo, sapo, gpg, clip_cov, kl_cov, geo_mean, cispo, dppo_tv, dppo_kl and dro"
                }
            };
            t.refuse(MODE, reason);
            return;
        }
    };
    clip_range(t);
    if t.find(MODE).is_some() {
        t.set(&[MODE], "objective.loss.kind", kind);
        if kind == "gspo" {
            t.set(&[MODE], "objective.loss.form", "token");
        }
        if matches!(kind, "gspo" | "sapo") {
            t.set(&[MODE], "objective.aggregation", "seq-mean-token-mean");
        }
        if kind == "sapo" {
            t.no_effect(AGGREGATION, "verl takes seq-mean-token-mean with `sapo`, whatever it says");
        }
        // verl's bounds are 0.2 whatever the loss.
        for (key, ours) in [(LOW, "objective.loss.clip_low"), (HIGH, "objective.loss.clip_high")] {
            let reads = matches!(kind, "gspo" | "clip_cov" | "geo_mean" | "cispo" | "dppo_tv" | "dppo_kl");
            if reads && t.find(key).is_none() {
                t.set(&[MODE], ours, "0.2");
            }
        }
        if matches!(kind, "dppo_tv" | "dppo_kl") {
            let bound = t.number(DUAL).unwrap_or(3.0);
            t.set(&[DUAL, MODE], "objective.loss.max_ratio", &bound.to_string());
        }
    }
    if let Some(by_token) = t.find(TOKEN_LEVEL).is_some().then(|| t.flag(TOKEN_LEVEL, true)) {
        if t.find(AGGREGATION).is_none() && !matches!(kind, "gspo" | "sapo") {
            let aggregation = if by_token { "token-mean" } else { "seq-mean-token-mean" };
            t.set(&[TOKEN_LEVEL], "objective.aggregation", aggregation);
        }
        t.no_effect(TOKEN_LEVEL, "loss_agg_mode, which replaced it, or the loss itself says it");
    }
    let of = |name: &str| format!("actor_rollout_ref.actor.policy_loss.{name}");
    for (key, readers, ours) in [
        (of("clip_cov_ratio"), "clip_cov", "objective.loss.share"),
        (of("clip_cov_lb"), "clip_cov", "objective.loss.cov_low"),
        (of("clip_cov_ub"), "clip_cov", "objective.loss.cov_high"),
        (of("kl_cov_ratio"), "kl_cov", "objective.loss.share"),
        (of("dro_beta"), "dro", "objective.loss.beta"),
        ("actor_rollout_ref.actor.tau_pos".to_owned(), "sapo", "objective.loss.tau_positive"),
        ("actor_rollout_ref.actor.tau_neg".to_owned(), "sapo", "objective.loss.tau_negative"),
    ] {
        if kind == readers {
            match t.number(&key) {
                Some(value) => t.set(&[&key], ours, &value.to_string()),
                None => t.no_effect(&key, "null leaves the default"),
            }
        }
        t.no_effect(&key, &format!("the loss `{mode}` does not read it"));
    }
    let cost = of("ppo_kl_coef");
    if kind == "kl_cov" {
        let value = t.number(&cost).unwrap_or(0.1);
        t.set(&[&cost, MODE], "objective.loss.cov_coefficient", &value.to_string());
    }
    t.no_effect(&cost, &format!("the loss `{mode}` does not read it"));
}

/// `clip_ratio` stands for those of its bounds that are null.
fn clip_range(t: &mut Translator) {
    let Some(ratio) = t.number(CLIP) else {
        t.no_effect(CLIP, "null leaves the default");
        return;
    };
    for (key, ours) in [(LOW, "objective.loss.clip_low"), (HIGH, "objective.loss.clip_high")] {
        if t.find(key).is_some_and(|given| given.node.is_null()) {
            t.set(&[key], ours, &ratio.to_string());
            t.part_of(CLIP, key);
        }
    }
    t.no_effect(
        CLIP,
        "verl reads clip_ratio_low and clip_ratio_high, which are 0.2 unless they are set to null",
    );
}

/// verl's `rollout_correction`.
pub(super) fn correction(t: &mut Translator) {
    const PREFIX: &str = "algorithm.rollout_correction.";
    const CAP: &str = "actor_rollout_ref.actor.tis_imp_ratio_cap";
    let of = |name: &str| format!("{PREFIX}{name}");
    let (weights, limit, normalise) =
        (of("rollout_is"), of("rollout_is_threshold"), of("rollout_is_batch_normalize"));
    let (rejections, bounds) = (of("rollout_rs"), of("rollout_rs_threshold"));
    let (bypass, loss) = (of("bypass_mode"), of("loss_type"));
    let given =
        |t: &Translator, key: &str| t.text(key).filter(|text| !matches!(text.as_str(), "null" | "None" | ""));
    let bypasses = t.flag(&bypass, false);
    let level = given(t, &weights);
    let is_plain = given(t, &loss).as_deref() == Some("reinforce");
    if bypasses {
        if is_plain {
            if level.is_none() {
                t.refuse(
                    &loss,
                    "the plain gradient is weighted by `rollout_is`: set it to token or sequence",
                );
                return;
            }
            t.set(&[&bypass], "objective.correction.preset", "bypass_pg_is");
            t.set(&[&loss], "objective.loss.kind", "reinforce");
        } else {
            t.set(&[&bypass], "objective.correction.preset", "bypass_ppo_clip");
            t.no_effect(&loss, "ppo_clip is what the bypass does");
            let reason = "in bypass_mode with ppo_clip the ratio itself is to the policy that sampled, and verl applies no weights";
            for key in [&weights, &limit, &normalise] {
                t.no_effect(key, reason);
            }
        }
    } else if t.find(&bypass).is_some() {
        t.no_effect(
            &bypass,
            "the policy at the start of the step is computed anew where it is not the one that sampled",
        );
    }
    if let Some(level) = level.filter(|_| !bypasses || is_plain) {
        if !matches!(level.as_str(), "token" | "sequence") {
            t.bad_value(&weights, "token, sequence or null");
            return;
        }
        let limit_text = given(t, &limit).unwrap_or_else(|| "2.0".to_owned());
        let limits = match limit_text.split_once('_') {
            Some((min, max)) => format!("outside: mask, min: {min}, max: {max}"),
            None => format!("outside: truncate, max: {limit_text}"),
        };
        let normalised = t.flag(&normalise, false);
        let text = format!("{{level: {level}, {limits}, batch_normalize: {normalised}}}");
        t.set(&[&weights], "objective.correction.weights", &text);
        t.part_of(&limit, &weights);
        t.part_of(&normalise, &weights);
    }
    // The older key of the same weights, which caps each token's.
    let cap = t.number(CAP).filter(|cap| *cap > 0.0);
    if let Some(cap) = cap.filter(|_| !t.has_set("objective.correction.weights") && !bypasses) {
        let text = format!("{{level: token, outside: truncate, max: {cap}}}");
        t.set(&[CAP], "objective.correction.weights", &text);
    }
    t.no_effect(
        CAP,
        if cap.is_some() {
            "rollout_correction, which replaced it, is given"
        } else {
            "it caps where it is above 0"
        },
    );
    if let Some(names) = given(t, &rejections) {
        let Some(thresholds) = given(t, &bounds) else {
            t.refuse(&rejections, "it has no threshold: set rollout_rs_threshold");
            return;
        };
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        let thresholds: Vec<&str> = thresholds.split(',').map(str::trim).collect();
        if thresholds.len() != 1 && thresholds.len() != names.len() {
            t.refuse(&bounds, format!("{} thresholds for {} statistics", thresholds.len(), names.len()));
            return;
        }
        let items: Vec<String> = names
            .iter()
            .enumerate()
            .filter_map(|(i, name)| {
                let threshold = thresholds.get(i).or(thresholds.first())?;
                Some(format!("{{statistic: {name}, threshold: '{threshold}'}}"))
            })
            .collect();
        t.set(&[&rejections], "objective.correction.rejections", &format!("[{}]", items.join(", ")));
        t.part_of(&bounds, &rejections);
    }
    for (key, reason) in [
        (&weights, "null weighs nothing"),
        (&limit, "rollout_is is not set: nothing is weighed"),
        (&normalise, "rollout_is is not set: nothing is weighed"),
        (&rejections, "null rejects nothing"),
        (&bounds, "rollout_rs is not set: nothing is rejected"),
        (&loss, "verl reads it in bypass_mode alone"),
    ] {
        t.no_effect(key, reason);
    }
}

/// EasyR1's shares of a group's trajectories.
pub(super) fn keep_ratios(t: &mut Translator) {
    for (key, kind) in
        [("algorithm.keep_neg_ratio", "keep_neg_ratio"), ("algorithm.keep_pos_ratio", "keep_pos_ratio")]
    {
        match t.number(key) {
            Some(ratio) if ratio < 1.0 => {
                t.append(&[key], "objective.shaping", &format!("{{kind: {kind}, ratio: {ratio}}}"));
            }
            _ => t.no_effect(key, "1 keeps all"),
        }
    }
}

/// EasyR1's `loss_type` with the bounds and temperatures of each.
pub(super) fn easyr1_loss(t: &mut Translator) {
    const KEY: &str = "worker.actor.loss_type";
    const DUAL: &str = "worker.actor.clip_ratio_dual";
    let loss = t.text(KEY).unwrap_or_else(|| "default".to_owned());
    let (kind, importance) = match loss.as_str() {
        "default" => ("clip", "token"),
        "gspo" => ("clip", "sequence"),
        "gspo_token" => ("clip", "sequence_token"),
        "cispo" => ("cispo", "token"),
        "sapo" => ("sapo", "token"),
        _ => {
            t.refuse(KEY, "the losses are default, gspo, gspo_token, cispo and sapo");
            return;
        }
    };
    if loss == "default" {
        t.no_effect(KEY, "the clipped ratio is the default");
    } else {
        t.set(&[KEY], "objective.loss.kind", kind);
        if importance != "token" {
            t.set(&[KEY], "objective.importance", importance);
        }
    }
    for (key, ours, is_read) in [
        ("worker.actor.clip_ratio_low", "objective.loss.clip_low", kind != "sapo"),
        ("worker.actor.clip_ratio_high", "objective.loss.clip_high", kind != "sapo"),
        (DUAL, "objective.loss.dual_clip", kind == "clip"),
        ("worker.actor.tau_positive", "objective.loss.tau_positive", kind == "sapo"),
        ("worker.actor.tau_negative", "objective.loss.tau_negative", kind == "sapo"),
    ] {
        let node = t.find(key).map(|given| given.node.clone());
        match node {
            Some(node) if is_read && (key == DUAL || !node.is_null()) => t.set_node(&[key], ours, node),
            Some(_) if is_read => t.no_effect(key, "null leaves the default"),
            _ => t.no_effect(key, &format!("the loss `{loss}` does not read it")),
        }
    }
}

/// TRL's adaptive entropy bonus.
pub(super) fn adaptive_entropy(t: &mut Translator) {
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

/// TRL's `multi_objective_aggregation`.
pub(super) fn several_rewards(t: &mut Translator) {
    const KEY: &str = "multi_objective_aggregation";
    match t.text(KEY).as_deref() {
        None | Some("sum_then_normalize") => t.no_effect(KEY, "rewards are summed first"),
        Some("normalize_then_sum") => t.set(&[KEY], "objective.advantage.estimator", "normalize_then_sum"),
        Some(_) => t.bad_value(KEY, "sum_then_normalize or normalize_then_sum"),
    }
}

/// A share or threshold of TRL where a value means "off".
pub(super) fn masks(t: &mut Translator) {
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
