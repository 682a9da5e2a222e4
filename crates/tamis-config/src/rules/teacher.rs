//! Rules about teachers.

use tamis_core::objective::DistillationRest;

use super::Checker;
use crate::hub_name::ModelSource;
use crate::schema::BackendKind;

impl Checker<'_> {
    pub(super) fn teachers(&mut self) {
        let config = self.config;
        let Some((key, needs)) = config.distillation() else {
            let reason = "nothing is computed from a teacher; `objective.advantage.kind: on_policy_distillation`, \
                `add_distillation` in `objective.shaping` and `objective.distillation` are";
            self.warn_ignored(&["teacher"], reason);
            return;
        };
        self.distillation_in_loss();
        if config.teacher.is_empty() {
            self.error(
                &[key],
                format!("`{needs}` needs a teacher, and `teacher` names none"),
                "name one, such as `teacher: [{path: FOLDER}]`, or `teacher: [{servers: [http://HOST:8000]}]`",
            );
        }
        for index in 0..config.teacher.len() {
            self.teacher(index);
        }
    }

    /// Rules of a divergence from the teacher in the loss.
    fn distillation_in_loss(&mut self) {
        let Some(distillation) = self.config.objective.distillation else { return };
        let keys = ["objective.distillation.top_k", "objective.distillation"];
        let num_candidates = distillation.top_k + usize::from(distillation.sampled);
        if num_candidates == 0 {
            self.error(
                &keys,
                "`objective.distillation.top_k` is 0 and `sampled` is false: no token is compared",
                "set `top_k` above 0, or `sampled: true`",
            );
        } else if num_candidates == 1 && distillation.rest != DistillationRest::Bucket {
            let rest = distillation.rest.as_str();
            let what = match distillation.rest {
                DistillationRest::Renormalized => "has probability 1 for both: the divergence is always 0",
                _ => "is no distribution: its divergence is mostly below 0, and then counts as 0",
            };
            self.error(
                &["objective.distillation.rest", "objective.distillation"],
                format!("one candidate with `objective.distillation.rest: {rest}` {what}"),
                "set `rest: bucket`, or `top_k` to 2 or more",
            );
        }
        if distillation.rest != DistillationRest::Ignored {
            let reason = "with this `rest` every probability counts as it is";
            self.warn_ignored(&["objective.distillation.min_logprob"], reason);
        }
        if !distillation.advantages {
            if self.config.objective.loss.is_given() {
                self.error(
                    &["objective.distillation.advantages", "objective.loss.kind"],
                    "a loss in Python computes what it likes, and `objective.distillation.advantages: false` leaves out \
                     the policy loss",
                    "remove `objective.loss`, or set `advantages: true`",
                );
            }
            let reason = "`objective.distillation.advantages: false` leaves them out of the loss";
            self.warn_ignored(&["objective.advantage.kind", "objective.shaping"], reason);
        }
    }

    fn teacher(&mut self, index: usize) {
        let config = self.config;
        let teacher = &config.teacher[index];
        let of = |key: &str| format!("teacher[{index}].{key}");
        let whole = format!("teacher[{index}]");
        if config.teacher[..index].iter().any(|other| other.data_source == teacher.data_source) {
            let message = match &teacher.data_source {
                Some(source) => format!("two teachers are for `data_source: {source}`"),
                None => "two teachers have no `data_source`: one is for all prompts that no other is for"
                    .to_owned(),
            };
            let hint = "give each teacher its own `data_source`";
            self.error(&[&of("data_source"), &whole, "teacher"], message, hint);
        }
        // A learner at an address may hold only an adapter, whatever is written here.
        if teacher.is_base() && config.learner.lora.is_none() && config.learner.url.is_none() {
            self.error(
                &[&whole, "teacher"],
                format!(
                    "`{whole}` has neither `path` nor `servers`, so it is the policy without its adapter, and \
                     there is no adapter"
                ),
                "set its `path` or its `servers`, or train an adapter (`learner.lora`)",
            );
        }
        let keys = [
            "model",
            "concurrency",
            "startup_timeout",
            "api_key_file",
            "api_key_env",
            "timeout",
            "max_attempts",
        ];
        if teacher.servers.is_empty() {
            for key in keys {
                self.warn_ignored(&[&of(key)], "the teacher is at no server (`servers`)");
            }
            return;
        }
        if let Some(ModelSource::Hub { name, .. }) = &teacher.path {
            self.error(
                &[&of("path")],
                format!("`{}` is `{name}`, a name on a hub, and only the tokenizer is read from it", of("path")),
                "name a folder with the teacher's tokenizer, or leave it out: tokenizers are then not compared",
            );
        }
        let temperature = config.rollout.temperature;
        if (temperature - 1.0).abs() > f64::EPSILON {
            self.error(
                &["rollout.temperature", &of("servers")],
                format!(
                    "`rollout.temperature` is {temperature}, and a server gives a teacher's log-probabilities at \
                     temperature 1: the two could not be compared"
                ),
                "set `rollout.temperature: 1`, or have the learner load the teacher (`path` without `servers`)",
            );
        }
        let own: &[String] = &config.rollout.servers;
        if config.rollout.backend != BackendKind::Native
            && let Some(address) = teacher.servers.iter().find(|address| own.contains(address))
        {
            self.error(
                &[&of("servers"), "rollout.servers"],
                format!("{address} samples from the policy, whose weights are changed there, and is to be a teacher"),
                "name servers that hold only the teacher",
            );
        }
    }
}
