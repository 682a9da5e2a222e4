//! verl's advantage estimator and policy loss.

use crate::key::Rule;
use crate::shared::advantage::{self, IMAGES};
use crate::translator::Translator;

/// The advantage estimator, which may be a whole algorithm: before every other rule.
pub(super) const ADVANTAGE: Rule = Rule::new(1, "advantage", advantage);

fn advantage(t: &mut Translator) {
    const BY_STD: &str = "algorithm.norm_adv_by_std_in_grpo";
    advantage::estimator(t);
    if t.find(BY_STD).is_some() {
        let is_scaled = t.flag(BY_STD, true);
        advantage::scale(t, BY_STD, if is_scaled { "group" } else { "none" });
    }
    components(t);
}

/// verl's `gdpo` takes several numbers of one function apart.
fn components(t: &mut Translator) {
    const KEYS: &str = "algorithm.gdpo_reward_keys";
    const WEIGHTS: &str = "algorithm.gdpo_reward_weights";
    // Over a configuration of ours the estimator may stand there.
    let is_read = t.text("algorithm.adv_estimator").map_or(!t.whole, |name| name == "gdpo");
    for (key, reason) in [
        (
            KEYS,
            "here a function gives one score, and the estimator `gdpo` normalises each entry of `reward` by itself: write a function for \
             each of them, and name it there with `kind: python`, `style: verl` and a `weight`",
        ),
        (WEIGHTS, "each entry of `reward` has a `weight` of its own: give it there"),
    ] {
        if t.text(key).is_none_or(|value| matches!(value.as_str(), "None" | "[]" | "{}")) {
            t.no_effect(key, "it names nothing");
        } else if is_read {
            t.refuse(key, reason);
        } else {
            t.no_effect(key, "the estimator `gdpo` alone reads it");
        }
    }
}

const MODE: &str = "actor_rollout_ref.actor.policy_loss.loss_mode";

const CLIP: &str = "actor_rollout_ref.actor.clip_ratio";

const LOW: &str = "actor_rollout_ref.actor.clip_ratio_low";

const HIGH: &str = "actor_rollout_ref.actor.clip_ratio_high";

const DUAL: &str = "actor_rollout_ref.actor.clip_ratio_c";

const AGGREGATION: &str = "actor_rollout_ref.actor.loss_agg_mode";

const TOKEN_LEVEL: &str = "actor_rollout_ref.actor.use_token_level_loss";

/// The policy loss with its parameters.
pub(super) const POLICY_LOSS: Rule = Rule::new(2, "policy loss", policy_loss);

/// verl's `policy_loss.loss_mode` with its parameters.
fn policy_loss(t: &mut Translator) {
    // Without it a layer of ours may have chosen the loss.
    let mode = t.text(MODE).or_else(|| t.kind_of("objective.loss")).unwrap_or_else(|| "vanilla".to_owned());
    let kind = match mode.as_str() {
        "vanilla" => "clip",
        ours if t.text(MODE).is_none() => ours,
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
        // verl's bounds are 0.2 whatever the loss, and so are those of `clip`.
        for (key, ours) in [(LOW, "objective.loss.clip_low"), (HIGH, "objective.loss.clip_high")] {
            if kind != "clip" && t.find(key).is_none() {
                t.set(&[MODE], ours, "0.2");
            }
        }
        if matches!(kind, "dppo_tv" | "dppo_kl") {
            let bound = t.number(DUAL).unwrap_or(3.0);
            t.set(&[DUAL, MODE], "objective.loss.max_ratio", &bound.to_string());
        }
    }
    if let Some(by_token) = t.find(TOKEN_LEVEL).is_some().then(|| t.flag(TOKEN_LEVEL, true)) {
        let is_fixed = t.text(MODE).is_some() && matches!(kind, "gspo" | "sapo");
        if t.find(AGGREGATION).is_none() && !is_fixed {
            let aggregation = if by_token { "token-mean" } else { "seq-mean-token-mean" };
            t.set(&[TOKEN_LEVEL], "objective.aggregation", aggregation);
        }
        t.no_effect(TOKEN_LEVEL, "loss_agg_mode, which replaced it, or the loss itself says it");
    }
    let of = |name: &str| format!("actor_rollout_ref.actor.policy_loss.{name}");
    // Each of the two has a share of its own.
    for reader in ["clip_cov", "kl_cov"] {
        let key = of(&format!("{reader}_ratio"));
        match t.number(&key) {
            Some(share) if kind == reader => t.set(&[&key], "objective.loss.share", &share.to_string()),
            Some(_) => t.no_effect(&key, &format!("the loss `{reader}` alone reads it")),
            None => t.no_effect(&key, "null leaves the default"),
        }
    }
    let cost = of("ppo_kl_coef");
    if kind == "kl_cov" || t.find(&cost).is_some() {
        let value = t.number(&cost).unwrap_or(0.1);
        t.set(&[&cost, MODE], "objective.loss.cov_coefficient", &value.to_string());
    }
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
