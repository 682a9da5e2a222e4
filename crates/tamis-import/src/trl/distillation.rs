//! TRL's `DistillationConfig`: a teacher rates what the policy samples.

use crate::translator::Translator;
use tamis_config::render::scalar;

/// The field that tells it from a `GRPOConfig`.
pub(crate) const TEACHER: &str = "teacher_model_name_or_path";

/// The teacher, and the advantage that is computed from it. `beta` selects the divergence there.
pub(crate) fn distillation(t: &mut Translator) {
    const REVISION: &str = "teacher_model_revision";
    const OPTIONS: &str = "teacher_model_init_kwargs";
    const BETA: &str = "beta";
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
    t.set(&[TEACHER], "objective.advantage", "{kind: on_policy_distillation}");
    // The default estimator of a whole configuration would be put on top.
    t.set(&[TEACHER], "objective.advantage.kind", "on_policy_distillation");
    if t.text("num_generations").is_none() {
        // A distillation compares no completions of a prompt.
        t.set(&[TEACHER], "rollout.n", "1");
    }
    t.part_of(REVISION, TEACHER);
    t.remark(
        TEACHER,
        "TRL compares whole distributions; here the sampled token is compared, which has the same gradient in \
         expectation for beta=1.0",
    );
    t.no_effect(OPTIONS, "the learner loads the teacher as it loads a reference");
    if t.number(BETA).is_some_and(|beta| (beta - 1.0).abs() > f64::EPSILON) {
        t.refuse(
            BETA,
            "it selects the divergence in a distillation, and only the reverse one (1.0) is estimated from the sampled \
             tokens",
        );
        return;
    }
    t.part_of(BETA, TEACHER);
}
