//! Rules about where the policy learns.

use super::Checker;
use crate::schema::LearnerBackend;

impl Checker<'_> {
    pub(super) fn learner(&mut self) {
        let learner = &self.config.learner;
        let (is_torch, has_url, has_adapter) =
            (learner.backend == LearnerBackend::Torch, learner.url.is_some(), learner.lora.is_some());
        if !is_torch {
            if has_adapter {
                self.error(
                    &["learner.lora"],
                    "`learner.lora` needs `learner.backend: torch`: the native engine trains whole policies",
                    "set `learner.backend: torch`, or take `learner.lora` out",
                );
            }
            let keys = [
                "learner.device",
                "learner.dtype",
                "learner.attention",
                "learner.logprob_chunk",
                "learner.offload_reference",
                "learner.freeze_vision",
            ];
            self.warn_ignored(&keys, "`learner.backend` is `native`");
        }
        if has_adapter && self.config.warm_start.steps > 0 {
            self.error(
                &["warm_start.steps", "learner.lora"],
                "a warm start of an adapter would leave the policy under it with its random weights",
                "set `warm_start.steps: 0` and begin with a checkpoint (`model.path`), or take `learner.lora` out",
            );
        }
        if has_adapter && self.config.model.init.is_some() {
            self.error(
                &["model.init", "learner.lora"],
                "an adapter of a model of random weights: its weights, which do not learn, are kept nowhere",
                "name a checkpoint (`model.path`), or take `learner.lora` out",
            );
        }
        if has_adapter && self.config.has_critic() && self.config.critic.model.path.is_none() {
            self.error(
                &["critic.model.path", "learner.lora"],
                "a critic cannot begin with the layers of a policy with an adapter",
                "name a critic's checkpoint (`critic.model.path`), or take `learner.lora` out",
            );
        }
        if !has_url {
            self.warn_ignored(&["learner.api_key_file", "learner.api_key_env"], "`learner.url` is not set");
            if !is_torch {
                let keys = ["learner.timeout", "learner.lost_timeout"];
                self.warn_ignored(&keys, "the policy learns in this process");
            }
        }
        if has_url || !is_torch {
            let why =
                if has_url { "the learner at `learner.url` runs already" } else { "no learner is started" };
            self.warn_ignored(&["learner.python", "learner.startup_timeout"], why);
        }
    }
}
