//! Rules about servers that generate, and about publishing weights to them.

use tamis_core::schedule::InFlight;

use crate::hub_name::ModelSource;

use super::Checker;
use crate::schema::{BackendKind, SurplusKind};
use crate::server_command::ServerCommand;
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
                "rollout.api_key_file",
                "rollout.api_key_env",
                "publish.dir",
                "publish.server_dir",
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
                "`rollout.backend: openai` gives text alone, of weights that the run does not have: without the \
                 sampled tokens and their log-probabilities, and without a way to publish weights, nothing can be \
                 trained",
                "evaluate with it (`tamis eval`), let it score completions (a reward with `kind: judge`), or train \
                 with `rollout.backend: vllm`",
            );
            return;
        }
        self.has_servers();
        if self.config.schedule.surplus == SurplusKind::Discard {
            let reason = "nothing is in flight at a publication with `schedule.surplus: discard`";
            self.warn_ignored(&["publish.pause"], reason);
        }
    }

    /// Checks what a learner in another process cannot do while it samples.
    fn samples_through_learner(&mut self) {
        if self.config.rollout.regex.is_some() {
            self.error(
                &["rollout.regex", "rollout.backend"],
                "`rollout.regex` needs the tokenizer where tokens are drawn, and a learner in another process has \
                 none",
                "take `rollout.regex` out, or sample on the built-in engine (`rollout.backend: native`) or at \
                 servers",
            );
        }
        if self.config.schedule.surplus == SurplusKind::Discard {
            let reason = "nothing is in flight at a publication with `schedule.surplus: discard`";
            self.warn_ignored(&["publish.pause"], reason);
        } else if self.config.publish.pause == Some(InFlight::Wait) {
            self.error(
                &["publish.pause", "rollout.backend"],
                "`publish.pause: wait` cannot be had from a learner that samples: when a version is published its \
                 weights have changed already",
                "set `publish.pause: keep` (samples in flight go on by the new weights, each token counts for the \
                 version that drew it) or `abort`",
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
            // A server that a key of another system started is not what this user asked for.
            let node = self.tree.at("rollout.launch");
            if node.is_some_and(|node| !matches!(node.origin.source.kind, SourceKind::Foreign(_))) {
                self.warn_ignored(
                    &["rollout.launch"],
                    "`rollout.servers` names servers that are running already",
                );
            }
            return;
        }
        // Servers with a model of their own are started by whoever has them.
        let Some(launch) = rollout.launch.as_ref().filter(|_| rollout.backend != BackendKind::OpenAi) else {
            let model =
                self.config.model.path.as_ref().map_or_else(|| "MODEL".into(), ModelSource::for_server);
            let command = ServerCommand::new(rollout, &model, "8000");
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
                    format!("`rollout.launch.command` has no `{word}` in it: {purpose}"),
                    format!(
                        "write `{word}` where it belongs, such as `[tamis, serve, '{{model}}', --port, '{{port}}']`"
                    ),
                );
            }
        }
        self.warn_ignored(&["rollout.launch.args"], "`rollout.launch.command` is the whole command");
    }
}
