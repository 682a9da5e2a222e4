//! Rules about the launcher of learner and servers, and about ranks.

use std::time::Duration;

use tamis_core::setting::TimeSpan;

use super::Checker;
use crate::schema::{BackendKind, LaunchConfig, LauncherKind, LearnerBackend, PublishMode};

/// Shortest silence after which a rank may count as lost, because a busy rank is silent for a moment.
const LEAST_HEARTBEAT: Duration = Duration::from_secs(1);

impl Checker<'_> {
    pub(super) fn cluster(&mut self) {
        let (learner, launcher) = (&self.config.learner, self.config.cluster.launcher);
        let starts_learner = learner.backend == LearnerBackend::Torch && learner.url.is_none();
        let starts_servers = self.config.launches_servers();
        if launcher != LauncherKind::Ray {
            let why = format!("`cluster.launcher` is `{launcher}`");
            self.warn_ignored(&["cluster.address"], &why);
        }
        if launcher == LauncherKind::None {
            let why = "`cluster.launcher` is `none`: learner and servers are started side by side";
            self.warn_ignored(&["cluster.colocate"], why);
        } else if !starts_learner && !starts_servers {
            let message = format!(
                "`cluster.launcher: {launcher}` has nothing to start: no learner in PyTorch, and no servers"
            );
            let hint = if learner.url.is_some() {
                "remove `cluster.launcher`: `learner.url` and `rollout.servers` already name running processes"
            } else {
                "set `learner.backend: torch`, or `rollout.launch`, or remove `cluster.launcher`"
            };
            self.error(&["cluster.launcher"], message, hint);
        } else {
            self.launched(starts_learner, starts_servers);
        }
        self.ranks(starts_learner);
    }

    fn launched(&mut self, starts_learner: bool, starts_servers: bool) {
        let (learner, cluster) = (&self.config.learner, &self.config.cluster);
        let launcher = cluster.launcher;
        if starts_learner && learner.device.starts_with("cuda:") {
            let message = format!(
                "`learner.device: {}` names one GPU, but `cluster.launcher: {launcher}` gives each rank its own",
                learner.device
            );
            let hint = "set `learner.device: cuda`; `CUDA_VISIBLE_DEVICES` chooses the GPUs";
            self.error(&["learner.device", "cluster.launcher"], message, hint);
        }
        if launcher == LauncherKind::Ray {
            if cluster.address.starts_with("ray://") {
                self.error(
                    &["cluster.address"],
                    "`cluster.address` is a Ray Client address, but a run must start on a node of the cluster",
                    "submit the run as a job (`ray job submit -- tamis train ...`), with `cluster.address: auto`",
                );
            }
            let command = self.config.rollout.launch.as_ref().map_or(&[][..], |launch| &launch.command);
            if starts_servers && !command.is_empty() && !command.iter().any(|word| word.contains("{host}")) {
                self.error(
                    &["rollout.launch.command", "cluster.launcher"],
                    "`rollout.launch.command` does not contain `{host}`: a server on another node could not be reached",
                    "add `{host}`, as in `[tamis, serve, '{model}', --host, '{host}', --port, '{port}', \
                     --api-key-file, '{key_file}']`",
                );
            }
        }
        let launch = self.config.rollout.launch.as_ref();
        let is_sglang = starts_servers && self.config.rollout.backend == BackendKind::Sglang;
        let has_own = |launch: &LaunchConfig| {
            launch.command.is_empty() && launch.args.iter().any(|word| word.starts_with("--config"))
        };
        if is_sglang && launch.is_some_and(has_own) {
            let message = "`rollout.launch.args` has `--config`, but SGLang takes only one, and the launcher uses it to pass the \
                servers' key";
            let hint = "write the settings of that file as flags";
            self.error(&["rollout.launch.args", "cluster.launcher"], message, hint);
        }
        if !(starts_learner && starts_servers) {
            let why = if starts_learner { "no server is started" } else { "no learner is started" };
            self.warn_ignored(&["cluster.colocate"], why);
            return;
        }
        let needed = self.config.num_server_gpus();
        if !cluster.colocate {
            if self.config.publish_mode() == PublishMode::Ipc {
                let message = format!(
                    "`publish.mode: ipc` shares GPU memory, but with `cluster.launcher: {launcher}` learner and servers have separate GPUs"
                );
                let hint = "set `cluster.colocate: true`, or `publish.mode: folder`";
                self.error(&["publish.mode", "cluster.launcher"], message, hint);
            }
            return;
        }
        let (num_servers, of_server) =
            launch.map_or((0, 1), |launch| (launch.replicas, launch.tensor_parallel.max(1)));
        let has_room = |each: usize| learner.nodes * (each / of_server) >= num_servers;
        if let Some(each) = learner.gpus_per_node.filter(|&each| !has_room(each)) {
            let message = format!(
                "`cluster.colocate` puts the servers onto the learner's GPUs: they need {needed} (`rollout.launch`; a server cannot span \
                machines), but the learner has {each} on each of {}",
                learner.nodes
            );
            let hint = "lower `rollout.launch.replicas`, or raise `learner.gpus_per_node`";
            self.error(&["cluster.colocate", "rollout.launch"], message, hint);
        }
        if self.config.rollout.sleep_level == 0 && learner.device != "cpu" {
            self.warn(
                &["cluster.colocate"],
                "servers on the learner's GPUs keep their memory while the policy learns: `rollout.sleep_level` is 0",
                "set `rollout.sleep_level: 1` (vLLM), or make sure that both fit",
            );
        }
    }

    fn ranks(&mut self, starts_learner: bool) {
        let (learner, launcher) = (&self.config.learner, self.config.cluster.launcher);
        let keys = ["learner.gpus_per_node", "learner.nodes", "learner.heartbeat"];
        if learner.backend != LearnerBackend::Torch {
            if learner.nodes > 1 || learner.gpus_per_node.is_some_and(|each| each > 1) {
                self.error(
                    &keys[..2],
                    "a learner of several ranks needs `learner.backend: torch`: the native engine learns in one process",
                    "set `learner.backend: torch` and `cluster.launcher: local` (or `ray`), or remove the key",
                );
            } else {
                self.warn_ignored(&keys, "`learner.backend` is `native`");
            }
            return;
        }
        if !starts_learner {
            self.warn_ignored(&keys, "the learner at `learner.url` has the ranks that it was started with");
            return;
        }
        if learner.nodes > 1 && launcher != LauncherKind::Ray {
            let message = format!(
                "`learner.nodes` is {}, and `cluster.launcher: {launcher}` starts processes only on this machine",
                learner.nodes
            );
            let hint = "set `cluster.launcher: ray`; or start the learner on the machines (torchrun, Slurm) and set `learner.url`";
            self.error(&["learner.nodes", "cluster.launcher"], message, hint);
        } else if let Some(each) = learner.gpus_per_node.filter(|each| *each > 1)
            && launcher == LauncherKind::None
        {
            self.error(
                &["learner.gpus_per_node", "cluster.launcher"],
                format!(
                    "`learner.gpus_per_node` is {each}, and without a launcher the learner is one process"
                ),
                "set `cluster.launcher: local`, or `ray` on a Ray cluster",
            );
        } else if launcher == LauncherKind::None {
            self.warn_ignored(&["learner.heartbeat"], "without a launcher the learner is one process");
        } else {
            self.several_ranks(learner.nodes * learner.gpus_per_node.unwrap_or(1));
        }
    }

    /// Checks settings that a learner with this number of ranks cannot have.
    fn several_ranks(&mut self, num_ranks: usize) {
        let learner = &self.config.learner;
        if learner.heartbeat.0 < LEAST_HEARTBEAT {
            let message = format!(
                "`learner.heartbeat` is {}, but live ranks can be silent for longer than that: it must be at least {}",
                learner.heartbeat,
                TimeSpan(LEAST_HEARTBEAT)
            );
            self.error(&["learner.heartbeat"], message, "set `learner.heartbeat: 5s`, or remove it");
        }
        if num_ranks < 2 {
            return;
        }
        let one = if learner.nodes > 1 {
            "`learner.nodes: 1` and `learner.gpus_per_node: 1`"
        } else {
            "`learner.gpus_per_node: 1`"
        };
        let ranks = ["learner.gpus_per_node", "learner.nodes"];
        if self.config.samples_through_learner() {
            let message = format!(
                "`rollout.backend: learner` samples in the learner, which has {num_ranks} ranks: each token would gather every layer \
                from all of them"
            );
            let hint = format!("sample at servers (`rollout.backend: vllm`), or set {one}");
            self.error(&[&["rollout.backend"], &ranks[..]].concat(), message, hint);
        }
        if self.config.samples_at_servers() && self.config.publish_mode() == PublishMode::Ipc {
            let message = format!(
                "`publish.mode: ipc` shares the memory of one GPU, but the learner has {num_ranks} ranks, each with a part of the weights"
            );
            let hint = format!("set `publish.mode: folder`, or {one}");
            self.error(&[&["publish.mode"], &ranks[..]].concat(), message, hint);
        }
        let data = &self.config.data;
        if data.task.is_none() && data.images && data.columns.images.is_some() {
            let message = format!(
                "`data.columns.images` needs a model that sees images, which only one rank can train, but the learner has {num_ranks} ranks"
            );
            self.error(&[&ranks[..], &["data.columns.images"]].concat(), message, format!("set {one}"));
        }
    }
}
