//! Rules about servers that generate, and about publishing weights to them.

use tamis_core::schedule::InFlight;

use crate::hub_name::ModelSource;

use super::Checker;
use crate::schema::{
    BackendKind, FilterConfig, KlPlace, LauncherKind, LearnerBackend, PublishMode, ScheduleMode, SurplusKind,
};
use crate::server_command::{LOOPBACK, MOST_ADAPTER_RANK, ServerCommand};
use crate::source::SourceKind;

impl Checker<'_> {
    pub(super) fn servers(&mut self) {
        let rollout = &self.config.rollout;
        if self.config.samples_through_learner() {
            self.samples_through_learner();
        }
        if !self.config.samples_at_servers() {
            let keys = [
                "rollout.servers",
                "rollout.launch",
                "rollout.server_model",
                "rollout.server_parameters",
                "rollout.server_timeout",
                "rollout.max_in_flight",
                "rollout.server_startup_timeout",
                "rollout.server_lost_timeout",
                "rollout.sleep_level",
                "rollout.api_key_file",
                "rollout.api_key_env",
                "publish.mode",
                "publish.dir",
                "publish.server_dir",
                "publish.timeout",
                "publish.keep",
                "publish.verify",
            ];
            let why = format!("`rollout.backend` is `{}`", rollout.backend);
            self.warn_ignored(&keys, &why);
            if !self.config.samples_through_learner() {
                self.warn_ignored(&["publish.pause"], &why);
            }
            return;
        }
        if rollout.backend == BackendKind::OpenAi {
            self.error(
                &["rollout.backend"],
                "`rollout.backend: openai` cannot be used for training: its servers return only text, without tokens and \
                log-probabilities, and take no weights",
                "evaluate with it (`tamis eval`), let it score completions (a reward with `kind: judge`), or train \
                 with `rollout.backend: vllm`",
            );
            return;
        }
        self.has_servers();
        self.adapters();
        self.shared_gpu();
        self.transfer();
        self.sleep();
        if self.config.schedule.surplus == SurplusKind::Discard {
            let reason = "nothing is in flight at a publication with `schedule.surplus: discard`";
            self.warn_ignored(&["publish.pause"], reason);
        }
    }

    /// Checks that there is GPU memory through which weights can be published.
    fn shared_gpu(&mut self) {
        if self.config.publish_mode() != PublishMode::Ipc {
            return;
        }
        let hint = "set `publish.mode: folder`";
        let (rollout, learner) = (&self.config.rollout, &self.config.learner);
        if rollout.backend != BackendKind::Vllm || learner.backend != LearnerBackend::Torch {
            let message = format!(
                "`publish.mode: ipc` shares the memory of a GPU between PyTorch and vLLM, but the policy learns with \
                 `{}` and samples with `{}`",
                learner.backend, rollout.backend
            );
            self.error(&["publish.mode", "learner.backend", "rollout.backend"], message, hint);
        } else if learner.device == "cpu" {
            let message = "`publish.mode: ipc` shares the memory of a GPU, but `learner.device` is `cpu`";
            self.error(&["publish.mode", "learner.device"], message, hint);
        } else if rollout.launch.as_ref().is_some_and(|launch| launch.replicas * launch.tensor_parallel > 1) {
            let message = "`publish.mode: ipc` needs one server on the learner's GPU, but `rollout.launch` uses several GPUs";
            self.error(&["rollout.launch", "publish.mode"], message, hint);
        }
    }

    fn transfer(&mut self) {
        if self.config.publish_mode() != PublishMode::Nccl {
            let mode = self.config.publish_mode();
            self.warn_ignored(&["publish.timeout"], &format!("`publish.mode` is `{mode}`"));
            return;
        }
        let (rollout, learner) = (&self.config.rollout, &self.config.learner);
        if rollout.backend != BackendKind::Vllm || learner.backend != LearnerBackend::Torch {
            let message = format!(
                "`publish.mode: nccl` sends weights from PyTorch to vLLM, but the policy learns with `{}` and samples \
                 with `{}`",
                learner.backend, rollout.backend
            );
            let hint = "set `publish.mode: folder`";
            self.error(&["publish.mode", "learner.backend", "rollout.backend"], message, hint);
        } else if learner.device == "cpu" {
            let message = "`publish.mode: nccl` sends weights from a GPU, but `learner.device` is `cpu`";
            self.error(&["publish.mode", "learner.device"], message, "set `publish.mode: folder`");
        } else if self.config.cluster.colocate && self.config.cluster.launcher != LauncherKind::None {
            let message = "`publish.mode: nccl` needs servers on other GPUs than the learner's first rank (NCCL refuses two ranks on \
                one), but `cluster.colocate` puts them onto the same GPUs";
            let hint = "set `publish.mode: folder`, or `cluster.colocate: false`";
            self.error(&["publish.mode", "cluster.colocate"], message, hint);
        }
    }

    /// Checks that an adapter which is published can be loaded.
    fn adapters(&mut self) {
        if self.config.publish_mode() != PublishMode::Adapter {
            return;
        }
        let (backend, lora) = (self.config.rollout.backend, &self.config.learner.lora);
        let hint = "set `publish.mode: folder`";
        if lora.is_none() {
            let message = "`publish.mode: adapter` needs an adapter, but the whole policy learns";
            self.error(&["publish.mode"], message, format!("{hint}, or set `learner.lora: {{}}`"));
        } else if backend != BackendKind::Vllm {
            let message = format!("`publish.mode: adapter` needs vLLM, but `rollout.backend` is `{backend}`");
            self.error(&["publish.mode", "rollout.backend"], message, hint);
        } else if let Some(lora) = lora.as_ref().filter(|lora| lora.rank > MOST_ADAPTER_RANK) {
            let message = format!(
                "vLLM takes adapters up to rank {MOST_ADAPTER_RANK}, but `learner.lora.rank` is {}",
                lora.rank
            );
            self.error(&["learner.lora.rank", "publish.mode"], message, hint);
        }
    }

    /// Checks that servers can sleep while the policy learns.
    fn sleep(&mut self) {
        let (level, backend) = (self.config.rollout.sleep_level, self.config.rollout.backend);
        if level == 0 {
            return;
        }
        if backend != BackendKind::Vllm {
            let message = format!("`rollout.sleep_level` needs vLLM, but `rollout.backend` is `{backend}`");
            self.error(&["rollout.sleep_level", "rollout.backend"], message, "set `rollout.sleep_level: 0`");
        }
        if self.config.schedule.mode == ScheduleMode::Streaming
            || self.config.schedule.surplus == SurplusKind::Carry
        {
            self.error(
                &["rollout.sleep_level", "schedule.mode", "schedule.surplus"],
                "`schedule.mode: streaming` and `schedule.surplus: carry` sample while the policy learns, but the servers sleep then",
                "set `rollout.sleep_level: 0`; or `schedule.mode: rounds` (or `deficit`) and `schedule.surplus: discard`",
            );
        }
        let looks_at_kl = |filter: &FilterConfig| {
            matches!(filter.metric.as_deref(), Some("seq_final_reward" | "token_level_rewards"))
        };
        if self.config.objective.kl.place == KlPlace::Reward
            && self.config.filter.as_ref().is_some_and(looks_at_kl)
        {
            self.error(
                &["rollout.sleep_level", "filter.metric", "objective.kl.in"],
                "the filter needs rewards after the KL, which the learner computes between rounds, but the servers sleep only after the \
                last round",
                "use `filter.metric: seq_reward`, the same before the KL, or set `rollout.sleep_level: 0`",
            );
        }
        if level == 2 && self.config.publish_mode() == PublishMode::Adapter {
            self.error(
                &["rollout.sleep_level", "publish.mode"],
                "at sleep level 2 servers lose the weights under the adapter",
                "set `rollout.sleep_level: 1`, or `publish.mode: folder`",
            );
        }
    }

    /// Checks what a learner in another process cannot do while it samples.
    fn samples_through_learner(&mut self) {
        if self.config.rollout.regex.is_some() {
            self.error(
                &["rollout.regex", "rollout.backend"],
                "`rollout.regex` needs a tokenizer in the sampler, but a learner in another process has none",
                "remove `rollout.regex`, or sample with the built-in engine (`rollout.backend: native`) or on servers",
            );
        }
        if self.config.schedule.surplus == SurplusKind::Discard {
            let reason = "nothing is in flight at a publication with `schedule.surplus: discard`";
            self.warn_ignored(&["publish.pause"], reason);
        } else if self.config.publish.pause == Some(InFlight::Wait) {
            self.error(
                &["publish.pause", "rollout.backend"],
                "`publish.pause: wait` does not work if the learner samples: its weights have already changed when a version is published",
                "set `publish.pause: keep` (samples in flight continue with the new weights, and each token records the version that \
                sampled it) or `abort`",
            );
        }
    }

    /// Checks that there are servers to sample from, or that some can be started.
    pub(super) fn has_servers(&mut self) {
        let rollout = &self.config.rollout;
        if !self.config.samples_at_servers() {
            return;
        }
        if !rollout.servers.is_empty() {
            // This user did not ask for a server that another system's key started.
            let node = self.tree.at("rollout.launch");
            if node.is_some_and(|node| !matches!(node.origin.source.kind, SourceKind::Translated(_))) {
                self.warn_ignored(
                    &["rollout.launch"],
                    "`rollout.servers` names servers that are already running",
                );
            }
            let reason =
                "`rollout.servers` names servers that are already running, each with a limit of its own";
            self.warn_ignored(&["rollout.max_num_seqs"], reason);
            return;
        }
        // The user starts servers that have their own model.
        let Some(launch) = rollout.launch.as_ref().filter(|_| rollout.backend != BackendKind::OpenAi) else {
            let model =
                self.config.model.path.as_ref().map_or_else(|| "MODEL".into(), ModelSource::for_server);
            let command = ServerCommand::new(rollout, self.config.intake(), &model, LOOPBACK, "8000");
            let hint = if command.words.is_empty() {
                "set `rollout.servers: [http://HOST:PORT]`".to_owned()
            } else {
                format!(
                    "let the run start one itself, `rollout.launch: {{}}`; or start it with `{command}` and set \
                     `rollout.servers: [http://127.0.0.1:8000]`"
                )
            };
            self.error(
                &["rollout.servers", "rollout.backend"],
                format!(
                    "`rollout.backend: {}` needs a server: `rollout.servers` is empty and `rollout.launch` is not \
                     set",
                    rollout.backend
                ),
                hint,
            );
            return;
        };
        if launch.command.is_empty() {
            return;
        }
        for (word, purpose) in [
            ("{port}", "the server would not know its port"),
            ("{model}", "the server would not know its model"),
        ] {
            if !launch.command.iter().any(|part| part.contains(word)) {
                self.error(
                    &["rollout.launch.command"],
                    format!("`rollout.launch.command` does not contain `{word}`: {purpose}"),
                    format!("add `{word}`, as in `[tamis, serve, '{{model}}', --port, '{{port}}']`"),
                );
            }
        }
        let asks = |word: &String| word.contains("{key_file}") || word.contains("{key_config}");
        if self.config.cluster.launcher == LauncherKind::None && launch.command.iter().any(asks) {
            self.error(
                &["rollout.launch.command", "cluster.launcher"],
                "`rollout.launch.command` uses the file of the servers' key, but `cluster.launcher: none` starts servers without a key",
                "set `cluster.launcher: local`, or name your own key file in the command and in `rollout.api_key_file`",
            );
        }
        let keys = ["rollout.launch.args", "rollout.max_num_seqs"];
        self.warn_ignored(&keys, "`rollout.launch.command` is the whole command");
        if launch.replicas == 1 && self.config.cluster.launcher == LauncherKind::None {
            let reason = "`rollout.launch.command` is the whole command, and a single server sees every GPU";
            self.warn_ignored(&["rollout.launch.tensor_parallel"], reason);
        }
    }
}
