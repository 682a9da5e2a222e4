//! TRL's `DistillationConfig`, `ServerDistillationConfig` and `AsyncDistillationConfig`: a teacher rates what
//! the policy samples.
//!
//! | beta | here |
//! |---|---|
//! | 1, with a local teacher | `objective.advantage.kind: on_policy_distillation` |
//! | below 1, or a teacher at a server | `objective.distillation` over its likeliest tokens |

use serde_json::json;
use tamis_config::render::scalar;

use crate::translator::Translator;

/// The fields that tell it from a `GRPOConfig`: a teacher that is loaded, and one at a server.
pub(crate) const TEACHERS: [&str; 2] = [TEACHER, SERVER];
const TEACHER: &str = "teacher_model_name_or_path";
const SERVER: &str = "teacher_model_server_url";
const REVISION: &str = "teacher_model_revision";
const OPTIONS: &str = "teacher_model_init_kwargs";
const BETA: &str = "beta";
/// Of a teacher at a server.
const NUMBER: &str = "loss_top_k";
const TAIL: &str = "loss_add_tail";
const SELECTION: &str = "reverse_kl_top_1_mode";
/// Likeliest tokens that stand for TRL's whole vocabulary.
const MANY: u64 = 128;

/// The teacher, and the advantage or the divergence that is computed from it. `beta` selects the divergence
/// there.
pub(crate) fn distillation(t: &mut Translator) {
    let beta = t.number(BETA).unwrap_or(1.0);
    if let Some(server) = t.text(SERVER) {
        at_server(&server, beta, t);
        return;
    }
    for key in [NUMBER, TAIL, SELECTION] {
        t.no_effect(key, "it belongs to a teacher at a server (`teacher_model_server_url`)");
    }
    let Some(teacher) = t.text(TEACHER) else {
        for key in [TEACHER, REVISION, OPTIONS] {
            t.no_effect(key, "no teacher is named");
        }
        return;
    };
    let named = match t.text(REVISION) {
        Some(revision) => format!("{teacher}@{revision}"),
        None => teacher,
    };
    t.set(&[TEACHER], "teacher", &format!("[{{path: {}}}]", scalar(&named)));
    if (beta - 1.0).abs() > f64::EPSILON {
        let settings = json!({"top_k": MANY, "beta": beta, "rest": "bucket", "advantages": false});
        t.set(&[TEACHER], "objective.distillation", &settings.to_string());
        t.remark(
            TEACHER,
            &format!(
                "TRL compares the whole vocabulary; here the teacher's {MANY} likeliest tokens are compared, and all \
                 others together as one"
            ),
        );
    } else {
        t.set(&[TEACHER], "objective.advantage", "{kind: on_policy_distillation}");
        // The default estimator of a whole configuration would be put on top.
        t.set(&[TEACHER], "objective.advantage.kind", "on_policy_distillation");
        t.remark(
            TEACHER,
            "TRL compares whole distributions; here the sampled token is compared, which has the same gradient in \
             expectation for beta=1.0",
        );
    }
    one_completion(TEACHER, t);
    t.part_of(REVISION, TEACHER);
    t.no_effect(OPTIONS, "the learner loads the teacher as it loads a reference");
    t.part_of(BETA, TEACHER);
}

/// A distillation compares no completions of a prompt.
fn one_completion(from: &str, t: &mut Translator) {
    if t.text("num_generations").is_none() {
        t.set(&[from], "rollout.n", "1");
    }
}

/// The divergence over what a server gives: the likeliest tokens, and for `beta` above 0 the likeliest and
/// the sampled one.
fn at_server(server: &str, beta: f64, t: &mut Translator) {
    let number = t.number(NUMBER).unwrap_or(1.0);
    let is_bad = if beta > 0.0 { (number - 1.0).abs() > f64::EPSILON } else { number < 1.0 };
    if is_bad {
        t.refuse(NUMBER, "TRL takes 1 with beta above 0, and 1 or more with beta=0");
        return;
    }
    if t.text(SELECTION).is_some_and(|mode| mode != "sampled") {
        t.refuse(SELECTION, "TRL takes only sampled with a teacher at a server");
        return;
    }
    let top_k = if (beta - 1.0).abs() < f64::EPSILON { 0 } else { number as u64 };
    let rest = if t.flag(TAIL, true) { "bucket" } else { "renormalized" };
    let settings =
        json!({"top_k": top_k, "sampled": beta > 0.0, "beta": beta, "rest": rest, "advantages": false});
    t.set(&[SERVER], "objective.distillation", &settings.to_string());
    t.set(&[SERVER], "teacher", &json!([{"servers": [server]}]).to_string());
    one_completion(SERVER, t);
    for key in [BETA, NUMBER, TAIL, SELECTION] {
        t.part_of(key, SERVER);
    }
    for key in [TEACHER, REVISION, OPTIONS] {
        t.no_effect(key, "the teacher is at a server (`teacher_model_server_url`)");
    }
}
