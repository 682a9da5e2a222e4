//! verl's on-policy distillation (`distillation.*`).
//!
//! | `use_policy_gradient` | `use_task_rewards` | here |
//! |---|---|---|
//! | true | false | `objective.advantage.kind: on_policy_distillation` |
//! | true | true | `add_distillation` in `objective.shaping` |
//! | false | true | the divergence from the teacher in the loss, with the teacher as `model.reference` |
//!
//! `loss_mode: forward_kl_topk` without `use_policy_gradient` is `objective.distillation`.

use serde_json::{Map, Value, json};

use crate::translator::Translator;

const SWITCH: &str = "distillation.enabled";
const TEACHERS: &str = "distillation.teacher_models.";
const TEACHER_KEY: &str = "distillation.teacher_key";
const MODE: &str = "distillation.distillation_loss.loss_mode";
const GRADIENT: &str = "distillation.distillation_loss.use_policy_gradient";
const REWARDS: &str = "distillation.distillation_loss.use_task_rewards";
const COEFFICIENT: &str = "distillation.distillation_loss.distillation_loss_coef";
const CLAMP: &str = "distillation.distillation_loss.loss_max_clamp";
const CLIPS: [&str; 4] = ["policy_loss_mode", "clip_ratio", "clip_ratio_low", "clip_ratio_high"];
/// Read with `forward_kl_topk` only.
const TOP_K: [&str; 4] = ["topk", "log_prob_min_clamp", "use_chunked_topk", "chunked_topk_chunk_size"];
const NUMBER: &str = "distillation.distillation_loss.topk";
const LEAST: &str = "distillation.distillation_loss.log_prob_min_clamp";
/// verl's number of likeliest tokens if none is set.
const DEFAULT_NUMBER: f64 = 32.0;

/// The teachers, and the advantage or the divergence that is computed from them.
pub(crate) fn distillation(t: &mut Translator) {
    if !t.flag(SWITCH, false) {
        t.rest_without_effect("distillation", "distillation.enabled is not on");
        return;
    }
    if t.text(TEACHER_KEY).is_some_and(|key| key != "data_source") {
        t.refuse(
            TEACHER_KEY,
            "a teacher is chosen by the data source of a prompt: name its column in data.reward_fn_key",
        );
        return;
    }
    let Some((from, teachers)) = teachers(t) else { return };
    let mode = t.text(MODE).unwrap_or_else(|| "k3".to_owned());
    let estimator = match mode.as_str() {
        "kl" | "k1" => "k1",
        "abs" => "abs",
        "mse" | "k2" => "k2",
        "low_var_kl" | "k3" => "k3",
        "forward_kl_topk" => {
            likeliest(&from, &teachers, t);
            return;
        }
        _ => {
            t.refuse(MODE, "the estimators are k1, k2, k3 and abs, and the other mode is forward_kl_topk");
            return;
        }
    };
    let (by_gradient, with_rewards) = (t.flag(GRADIENT, false), t.flag(REWARDS, true));
    let coefficient = t.number(COEFFICIENT).filter(|_| with_rewards).unwrap_or(1.0);
    let clip = t.number(CLAMP);
    if by_gradient {
        let mut settings = Map::new();
        let kind = if with_rewards { "add_distillation" } else { "on_policy_distillation" };
        settings.insert("kind".to_owned(), json!(kind));
        settings.insert("coefficient".to_owned(), json!(coefficient));
        settings.insert("estimator".to_owned(), json!(estimator));
        settings.extend(clip.map(|clip| ("clip".to_owned(), json!(clip))));
        let settings = Value::Object(settings).to_string();
        if with_rewards {
            t.append(&[SWITCH], "objective.shaping", &settings);
        } else {
            t.set(&[SWITCH], "objective.advantage", &settings);
            // The default estimator of verl would be put on top.
            t.set(&[SWITCH], "objective.advantage.kind", kind);
        }
        t.set(&[&from], "teacher", &Value::Array(teachers).to_string());
    } else if estimator == "k1" {
        let message = "verl refuses k1 without use_policy_gradient, because its gradient does not depend on the teacher";
        t.refuse(MODE, message);
        return;
    } else if !with_rewards {
        let message = "without use_policy_gradient the divergence is part of the loss, beside the rewards: set \
            use_policy_gradient=True and loss_mode=k1, or use_task_rewards=True";
        if t.find(REWARDS).is_some() {
            t.refuse(REWARDS, message);
        } else {
            t.refuse(SWITCH, message);
        }
        return;
    } else if !in_loss(&from, &teachers, estimator, coefficient, clip, t) {
        return;
    }
    for key in [MODE, GRADIENT, REWARDS, COEFFICIENT, CLAMP] {
        t.part_of(key, SWITCH);
    }
    for name in CLIPS {
        let key = format!("distillation.distillation_loss.{name}");
        t.no_effect(&key, "the policy loss (`objective.loss`) is that of the sum of both advantages");
    }
    for name in TOP_K {
        t.no_effect(&format!("distillation.distillation_loss.{name}"), "loss_mode is not forward_kl_topk");
    }
    t.part_of(TEACHER_KEY, SWITCH);
    t.rest_without_effect("distillation", "the learner loads the teacher itself, on its own devices");
}

/// The divergence over the teachers' likeliest tokens, in the loss.
fn likeliest(from: &str, teachers: &[Value], t: &mut Translator) {
    if t.flag(GRADIENT, false) {
        let message = "the divergence over the teacher's likeliest tokens is differentiated here: leave \
            use_policy_gradient out, or set loss_mode=k1 with it";
        t.refuse(GRADIENT, message);
        return;
    }
    let with_rewards = t.flag(REWARDS, true);
    let coefficient = t.number(COEFFICIENT).filter(|_| with_rewards).unwrap_or(1.0);
    let mut settings = Map::new();
    settings.insert("top_k".to_owned(), json!(t.number(NUMBER).unwrap_or(DEFAULT_NUMBER) as u64));
    settings.insert("beta".to_owned(), json!(0.0));
    settings.insert("rest".to_owned(), json!("ignored"));
    settings.insert("coefficient".to_owned(), json!(coefficient));
    settings.insert("advantages".to_owned(), json!(with_rewards));
    settings.extend(t.number(LEAST).map(|least| ("min_logprob".to_owned(), json!(least))));
    settings.extend(t.number(CLAMP).map(|clip| ("clip".to_owned(), json!(clip))));
    t.set(&[SWITCH], "objective.distillation", &Value::Object(settings).to_string());
    t.set(&[from], "teacher", &Value::Array(teachers.to_vec()).to_string());
    for key in [MODE, GRADIENT, REWARDS, COEFFICIENT, CLAMP, NUMBER, LEAST, TEACHER_KEY] {
        t.part_of(key, SWITCH);
    }
    for name in CLIPS {
        let key = format!("distillation.distillation_loss.{name}");
        t.no_effect(&key, "the divergence is differentiated, not a reward of the policy loss");
    }
    for name in &TOP_K[2..] {
        let key = format!("distillation.distillation_loss.{name}");
        t.no_effect(&key, "the learner computes logits in chunks (`learner.logprob_chunk`)");
    }
    t.rest_without_effect("distillation", "the learner loads the teacher itself, on its own devices");
}

/// The divergence from the only teacher, in the loss. Returns whether it could be set.
fn in_loss(
    from: &str,
    teachers: &[Value],
    estimator: &str,
    coefficient: f64,
    clip: Option<f64>,
    t: &mut Translator,
) -> bool {
    let [teacher] = teachers else {
        t.refuse(
            SWITCH,
            "several teachers have no divergence in the loss: set use_policy_gradient=True and loss_mode=k1",
        );
        return false;
    };
    if clip.is_some() {
        t.refuse(
            CLAMP,
            "the divergence in the loss is bounded only by its estimator (k3 at 10): leave it out",
        );
        return false;
    }
    let switches = ["actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward"];
    if let Some(switch) = switches.into_iter().find(|switch| t.flag(switch, false)) {
        t.refuse(switch, "the divergence from the teacher is in the loss, and there is one reference: set use_policy_gradient=True and loss_mode=k1");
        return false;
    }
    t.set(&[SWITCH], "objective.kl.in", "loss");
    t.set(&[SWITCH], "objective.kl.estimator", estimator);
    t.set(&[SWITCH], "objective.kl.coefficient", &coefficient.to_string());
    t.set(&[from], "model.reference", &teacher["path"].to_string());
    true
}

/// The key that the teachers follow from, and their list; `None` if one is not complete.
fn teachers(t: &mut Translator) -> Option<(String, Vec<Value>)> {
    let given = t.given.iter().filter_map(|given| given.key.strip_prefix(TEACHERS));
    let mut names: Vec<String> = given.filter_map(|rest| Some(rest.split_once('.')?.0.to_owned())).collect();
    names.dedup();
    names.sort();
    names.dedup();
    // verl drops its default entry if there are others.
    if names.len() > 1 {
        names.retain(|name| name != "teacher_model");
    }
    let is_only = names.len() == 1 && names.iter().all(|name| name == "teacher_model");
    let (mut list, mut from) = (Vec::new(), None);
    for name in &names {
        let (path, key) = (format!("{TEACHERS}{name}.model_path"), format!("{TEACHERS}{name}.key"));
        let Some(model) = t.text(&path) else {
            t.refuse(SWITCH, format!("the teacher {name} has no model_path"));
            return None;
        };
        let mut teacher = json!({"path": model});
        if !is_only {
            let Some(source) = t.text(&key) else {
                t.refuse(&path, format!("the teacher {name} has no key, the data source that it is for"));
                return None;
            };
            teacher["data_source"] = json!(source);
        }
        t.part_of(&key, &path);
        from.get_or_insert(path);
        list.push(teacher);
    }
    let Some(from) = from else {
        t.refuse(SWITCH, "no teacher is named: set distillation.teacher_models.teacher_model.model_path");
        return None;
    };
    for name in names.iter().skip(1) {
        t.part_of(&format!("{TEACHERS}{name}.model_path"), &from);
    }
    Some((from, list))
}
