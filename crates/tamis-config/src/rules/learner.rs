//! Rules about the learner.

use super::Checker;
use crate::schema::{BackendKind, KlPlace, LauncherKind, LearnerBackend, LoraBase, PublishMode};

impl Checker<'_> {
    pub(super) fn learner(&mut self) {
        let learner = &self.config.learner;
        let (is_torch, has_url, has_adapter) =
            (learner.backend == LearnerBackend::Torch, learner.url.is_some(), learner.lora.is_some());
        if is_torch {
            self.reference_in_torch();
            self.base_in_four_bits();
            if learner.device == "cpu" {
                self.warn_ignored(&["learner.offload_moments"], "`learner.device` is `cpu`");
            }
            if has_adapter {
                let reason = "an adapter trains only the language model, and everything else stays frozen";
                self.warn_ignored(&["learner.freeze_vision"], reason);
            }
        } else {
            if has_adapter {
                self.error(
                    &["learner.lora"],
                    "`learner.lora` needs `learner.backend: torch`: the native engine trains whole policies",
                    "set `learner.backend: torch`, or remove `learner.lora`",
                );
            }
            let keys = [
                "learner.device",
                "learner.dtype",
                "learner.attention",
                "learner.logprob_chunk",
                "learner.offload_reference",
                "learner.moments",
                "learner.offload_moments",
                "learner.continuous_batching",
                "learner.freeze_vision",
            ];
            self.warn_ignored(&keys, "`learner.backend` is `native`");
            let reason = "the native engine always samples and learns with the same bits";
            self.warn_ignored(&["learner.exact"], reason);
        }
        if self.config.learns_elsewhere() {
            self.warn_ignored(&["model.memory_limit"], "the policy learns in another process");
        }
        if is_torch && self.config.rollout.backend != BackendKind::Learner {
            let why =
                format!("`rollout.backend` is `{}`, so no learner samples", self.config.rollout.backend);
            self.warn_ignored(&["learner.continuous_batching"], &why);
        }
        if is_torch && learner.exact {
            self.exact();
        }
        self.learner_address();
        if has_adapter && self.config.model.init.is_some() {
            self.error(
                &["model.init", "learner.lora"],
                "`learner.lora` on a model with random weights: those weights do not learn and are saved nowhere",
                "name a checkpoint (`model.path`), or remove `learner.lora`",
            );
        }
        if has_adapter && self.config.has_critic() && self.config.critic.model.path.is_none() {
            self.error(
                &["critic.model.path", "learner.lora"],
                "a critic cannot start from the layers of a policy that has an adapter",
                "name a critic's checkpoint (`critic.model.path`), or remove `learner.lora`",
            );
        }
        if !has_url {
            let keys = ["learner.api_key_file", "learner.api_key_env", "learner.orphan_timeout"];
            self.warn_ignored(&keys, "`learner.url` is not set");
            if !is_torch {
                let keys = ["learner.timeout", "learner.lost_timeout"];
                self.warn_ignored(&keys, "the policy learns in this process");
            }
        }
        if has_url || !is_torch {
            let why = if has_url {
                "the learner at `learner.url` is already running"
            } else {
                "no learner is started"
            };
            self.warn_ignored(&["learner.startup_timeout"], why);
            // It also runs the launcher.
            if self.config.cluster.launcher == LauncherKind::None {
                self.warn_ignored(&["learner.python"], why);
            }
        }
    }

    /// Checks that the weights below an adapter can be in 4 bits.
    fn base_in_four_bits(&mut self) {
        let learner = &self.config.learner;
        if learner.lora.as_ref().is_none_or(|lora| lora.base != LoraBase::Nf4) {
            return;
        }
        let ranks = learner.nodes.max(1) * learner.gpus_per_node.unwrap_or(1);
        if self.config.cluster.launcher != LauncherKind::None && ranks > 1 {
            let message = format!(
                "`learner.lora.base: nf4` needs one rank: weights in 4 bits are not shared out, but the learner has {ranks}"
            );
            self.error(
                &["learner.lora.base", "learner.gpus_per_node", "learner.nodes"],
                message,
                "set `learner.gpus_per_node: 1` and `learner.nodes: 1`, or remove `learner.lora.base`",
            );
        }
        if self.config.publish.mode == Some(PublishMode::Adapter) {
            self.error(
                &["publish.mode", "learner.lora.base"],
                "`publish.mode: adapter` applies the adapter to the servers' weights, which are not the 4-bit ones below which it learns",
                "set `publish.mode: folder`, which publishes those with the adapter merged into them",
            );
        }
    }

    /// Checks what `learner.exact` needs: samples and passes of the same process, by its own kernels.
    fn exact(&mut self) {
        let (learner, rollout) = (&self.config.learner, self.config.rollout.backend);
        if learner.lora.as_ref().is_some_and(|lora| lora.base == LoraBase::Nf4) {
            self.error(
                &["learner.lora.base", "learner.exact"],
                "`learner.exact` is not tested over weights in 4 bits",
                "remove `learner.lora.base`, or `learner.exact`",
            );
        }
        if rollout != BackendKind::Learner {
            self.error(
                &["learner.exact", "rollout.backend"],
                format!("`learner.exact` needs the learner's own samples, and `rollout.backend` is `{rollout}`, which has other kernels"),
                "set `rollout.backend: learner`, or remove `learner.exact`",
            );
        }
        let others = [
            ("learner.attention", learner.attention != "auto"),
            ("learner.logprob_chunk", learner.logprob_chunk.is_some()),
            ("learner.continuous_batching", learner.continuous_batching),
        ];
        for (key, _) in others.into_iter().filter(|(_, is_set)| *is_set) {
            self.error(
                &[key, "learner.exact"],
                format!("`{key}` chooses how numbers are computed, and `learner.exact` has its own way"),
                format!("remove `{key}`, or `learner.exact`"),
            );
        }
    }

    /// Checks whether there is a reference that could be moved off the GPU.
    fn reference_in_torch(&mut self) {
        let reason = if self.config.loaded_teachers().next().is_some() && self.config.learner.device != "cpu"
        {
            return;
        } else if self.config.objective.kl.place == KlPlace::None {
            "no KL term is on, so there is no reference"
        } else if self.config.learner.lora.is_some() && self.config.model.reference.is_none() {
            "the reference is the policy without its adapter"
        } else if self.config.learner.device == "cpu" {
            "`learner.device` is `cpu`"
        } else {
            return;
        };
        self.warn_ignored(&["learner.offload_reference"], reason);
    }

    /// Checks the names of the learner and its device.
    fn learner_address(&mut self) {
        let learner = &self.config.learner;
        let is_address = |url: &str| {
            ["http://", "https://", "unix:"]
                .iter()
                .any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()))
        };
        if let Some(url) = learner.url.as_deref().filter(|url| !is_address(url)) {
            let message = format!("`learner.url` is not an address: `{url}`");
            self.error(&["learner.url"], message, "write `http://HOST:PORT` or `unix:PATH`");
        }
        let (kind, number) = learner.device.split_once(':').unwrap_or((&learner.device, "0"));
        let is_known = matches!(kind, "auto" | "cpu" | "cuda") && number.parse::<u16>().is_ok();
        if !is_known {
            let message = format!("`learner.device` is not a PyTorch device: `{}`", learner.device);
            self.error(&["learner.device"], message, "write `auto`, `cpu`, `cuda` or `cuda:1`");
        }
    }
}
