//! What of a plan cannot be, or may not be: too few GPUs, or too little memory on them.

use tamis_config::{Config, LauncherKind};
use tamis_core::figure::{self, agreed, counted};

use super::machines::{Machine, Machines};
use super::memory::{MemoryPart, Options};
use super::{Device, Misfit, Plan};

/// PyTorch may not use a smaller GPU at all: it may drive a display, and PyTorch may be a build for CPUs.
const LEAST_TO_TRAIN_ON: u64 = 16 << 30;

/// Less memory in use by other processes than this is not reported.
const UNNOTICED: u64 = 1 << 29;

impl Plan {
    /// Checks that there are enough GPUs, and enough together on single machines for the launcher. A lack is
    /// an error on machines that the user named. Otherwise it is a doubt: the cluster may grow, and whatever
    /// starts the processes then refuses or waits.
    pub(super) fn check_counts(&mut self, config: &Config) {
        if matches!(self.machines, Machines::Unknown(_)) {
            return;
        }
        let machines = self.machines.known();
        let is_certain =
            matches!(self.machines, Machines::Named(_)) && config.cluster.launcher != LauncherKind::None;
        let total: usize = machines.iter().map(Machine::num_gpus).sum();
        let is_own = config.rollout.launch.as_ref().is_some_and(|launch| !launch.command.is_empty());
        // A command that the user wrote may need no GPU. Neither do servers on machines without any.
        let servers = self.servers.as_ref().filter(|_| !is_own);
        let (num_servers, of_server) =
            servers.map_or((0, 1), |plan| (plan.replicas, plan.tensor_parallel.max(1)));
        let of_servers = num_servers * of_server;
        let apart = if of_server > 1 {
            format!(" ({of_server} for each, which are on one machine)")
        } else {
            String::new()
        };
        let found = if let Some(learner) = &self.learner {
            let (ranks, at_least) = match (learner.device, learner.ranks_per_machine) {
                (Device::Cpu, _) => (0, ""),
                (Device::Gpu, Some(each)) => (each, ""),
                (Device::Gpu, None) => (1, "at least "),
            };
            let shares = servers.is_some_and(|plan| plan.shares);
            let fit = match config.cluster.launcher {
                // Both begin with the first GPU.
                LauncherKind::None => (total >= ranks && !machines.is_empty()).then_some(total / of_server),
                _ => num_servers_that_fit(machines, (learner.machines, ranks), of_server, shares),
            };
            if learner.device == Device::Cpu && total == 0 || fit.is_some_and(|fit| fit >= num_servers) {
                return;
            }
            let on_each = if learner.machines > 1 {
                format!(" ({ranks} on each of {} machines)", learner.machines)
            } else {
                String::new()
            };
            let more = if shares { "of them" } else { "more" };
            let of_servers = if of_servers > 0 {
                format!(", and the servers {of_servers} {more}{apart}")
            } else {
                String::new()
            };
            let there: Vec<String> = machines
                .iter()
                .map(|machine| format!("{} of {}", machine.num_gpus(), machine.name))
                .collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            let room =
                fit.map_or_else(String::new, |fit| format!(", with room for {fit} of {num_servers} servers"));
            Misfit {
                keys: vec!["learner.gpus_per_node".to_owned(), "rollout.launch".to_owned()],
                message: format!(
                    "the learner needs {at_least}{}{on_each}{of_servers}; there are {there}{room}",
                    figure::counted(ranks * learner.machines, "GPU")
                ),
                hint: format!(
                    "lower `learner.gpus_per_node`, `learner.nodes`, `rollout.launch.replicas` or \
                     `rollout.launch.tensor_parallel`; have learner and servers share GPUs (`cluster.colocate: \
                     true`); {}",
                    if config.cluster.launcher == LauncherKind::Ray && !is_certain {
                        "or add nodes: the launcher waits for them (`learner.startup_timeout`)"
                    } else {
                        "check `CUDA_VISIBLE_DEVICES`"
                    }
                ),
            }
        } else {
            let fit: usize = machines.iter().map(|machine| machine.num_gpus() / of_server).sum();
            if total == 0 || fit >= num_servers {
                return;
            }
            Misfit {
                keys: vec!["rollout.launch".to_owned()],
                message: format!(
                    "the servers need {}{apart}; there {} {total}",
                    counted(of_servers, "GPU"),
                    agreed(total, "is", "are")
                ),
                hint: "lower `rollout.launch.replicas` or `rollout.launch.tensor_parallel`".to_owned(),
            }
        };
        if is_certain { self.misfits.push(found) } else { self.doubts.push(found) }
    }

    /// Refuses a learner whose parameters do not fit. This is only a doubt if the learner may run on another
    /// device than the one inspected.
    pub(super) fn check_learner(&mut self, config: &Config) {
        let Some(plan) = &self.learner else { return };
        let (Some(memory), Some(capacity)) = (&plan.memory, plan.capacity) else { return };
        let (each, whose) = match plan.device {
            Device::Gpu => (1, "GPU"),
            Device::Cpu => (plan.ranks_per_machine.unwrap_or(1) as u64, "machine"),
        };
        let least = each * memory.total();
        if least > capacity {
            let mut ways = Vec::new();
            if memory.has("reference") && plan.device == Device::Gpu {
                ways.push("`learner.offload_reference: true`");
            }
            // Those that suffice; if none does, the one with the least.
            let fits = |way: &&(String, u64)| each * way.1 <= capacity;
            let mut enough: Vec<&(String, u64)> = plan.smaller.iter().filter(fits).collect();
            if enough.is_empty() {
                enough.extend(plan.smaller.iter().min_by_key(|way| way.1));
            }
            let enough: Vec<String> =
                enough.iter().map(|(way, bytes)| format!("{way}: {}", figure::bytes(*bytes))).collect();
            ways.extend(enough.iter().map(String::as_str));
            if plan.device == Device::Gpu {
                ways.push("more GPUs (`learner.gpus_per_node`, `learner.nodes`)");
            }
            ways.push("a smaller model");
            if memory.has("critic") {
                ways.push("a smaller critic (`critic.model.path`)");
            }
            let is_certain = match plan.device {
                Device::Gpu => config.learner.device != "auto" || capacity >= LEAST_TO_TRAIN_ON,
                Device::Cpu => config.learner.device == "cpu" && !Self::is_on_ray(config),
            };
            let found = Misfit {
                keys: vec!["learner.gpus_per_node".to_owned(), "model.path".to_owned()],
                message: format!(
                    "the learner needs {} on each {whose} before a token is computed, but has {}: {}",
                    figure::bytes(least),
                    figure::bytes(capacity),
                    parts(&memory.parts)
                ),
                hint: format!("to need less: {}", ways.join(", ")),
            };
            if is_certain { self.misfits.push(found) } else { self.doubts.push(found) }
        } else if let Some(working) = &plan.working
            && least + each * working.activations > capacity
        {
            let mut ways = vec![format!("lower `train.micro_batch_tokens` (now {})", plan.tokens)];
            if !config.model.recompute_activations {
                ways.insert(0, "`model.recompute_activations: true`".to_owned());
            }
            ways.extend(plan.smaller.iter().map(|(way, bytes)| format!("{way}: {}", figure::bytes(*bytes))));
            self.doubts.push(Misfit {
                keys: vec!["train.micro_batch_tokens".to_owned(), "model.recompute_activations".to_owned()],
                message: format!(
                    "the learner needs {} on each {whose}, and at least {} of activations in a micro-batch, but has {}",
                    figure::bytes(least),
                    figure::bytes(each * working.activations),
                    figure::bytes(capacity)
                ),
                hint: format!("to need less: {}", ways.join(", ")),
            });
        }
        let others: Vec<String> = (self.machines.known().iter())
            .flat_map(|machine| machine.gpus.iter().map(move |gpu| (machine, gpu)))
            .filter(|(_, gpu)| gpu.used > UNNOTICED)
            .map(|(machine, gpu)| {
                format!("GPU {} of {} has {} in use", gpu.id, machine.name, figure::bytes(gpu.used))
            })
            .collect();
        if !others.is_empty() {
            self.doubts.push(Misfit {
                keys: vec!["learner.device".to_owned()],
                message: format!("{} by other processes", others.join(", ")),
                hint: "stop them (`nvidia-smi` lists them), or choose other GPUs with `CUDA_VISIBLE_DEVICES`"
                    .to_owned(),
            });
        }
    }

    /// Doubts servers whose weights or cache may not fit. An engine's memory is known only approximately.
    pub(super) fn check_servers(&mut self, config: &Config) {
        let Some(plan) = &self.servers else { return };
        let Some(memory) = &plan.memory else { return };
        let keys = || vec!["rollout.launch".to_owned()];
        let Options { share: option, length, .. } = Options::of(config);
        let trajectory = (config.data.max_prompt_length + config.max_completion_length()) as u64;
        if let Some(most) = memory.max_length.filter(|&most| most < trajectory) {
            self.doubts.push(Misfit {
                keys: keys(),
                message: format!(
                    "servers take sequences of at most {most} tokens ({length}), but a prompt with its answer may have {trajectory}"
                ),
                hint: format!("raise `{length}` (`rollout.launch.args`), or lower `rollout.max_response_length`"),
            });
        }
        let (Some(capacity), Some(weights)) = (plan.capacity, memory.weights) else { return };
        let taken = memory.taken(capacity);
        if weights > taken {
            self.doubts.push(Misfit {
                keys: keys(),
                message: format!(
                    "a server needs {} on each of its GPUs for its weights, but has {} ({option} {})",
                    figure::bytes(weights),
                    figure::bytes(taken),
                    memory.share
                ),
                hint: "raise `rollout.launch.tensor_parallel`, or take a smaller model".to_owned(),
            });
            return;
        }
        let learner = self.learner.as_ref().filter(|_| plan.shares);
        let Some(resident) = learner.and_then(|learner| learner.memory.as_ref()) else { return };
        // What the learner holds while servers sample: weights and moments, also those of a critic.
        let held = |part: &MemoryPart| match part.name {
            "gradients" => 0,
            "critic" => part.bytes / 4 * 3,
            _ => part.bytes,
        };
        let held: u64 = resident.parts.iter().map(held).sum();
        let room = capacity.saturating_sub(held);
        if taken > room {
            let share = (room as f64 / capacity as f64 * 100.0).floor() / 100.0;
            self.doubts.push(Misfit {
                keys: keys(),
                message: format!(
                    "servers share the learner's GPUs: each takes {} ({option} {}), the learner holds {} all the time, but a GPU has \
                    only {}",
                    figure::bytes(taken),
                    memory.share,
                    figure::bytes(held),
                    figure::bytes(capacity)
                ),
                hint: format!(
                    "give them `{option} {share}` (`rollout.launch.args`){}, or GPUs of their own",
                    if weights > room { " (their model would not fit: more GPUs, or an adapter)" } else { "" }
                ),
            });
            return;
        }
        if config.rollout.sleep_level == 0 && resident.total() + taken > capacity {
            self.doubts.push(Misfit {
                keys: vec!["rollout.sleep_level".to_owned(), "cluster.colocate".to_owned()],
                message: format!(
                    "the learner needs {} beside the {} of a server that stays awake, but a GPU has only {}",
                    figure::bytes(resident.total()),
                    figure::bytes(taken),
                    figure::bytes(capacity)
                ),
                hint: "set `rollout.sleep_level: 1` (vLLM), or give them GPUs of their own".to_owned(),
            });
        }
    }
}

/// `weights 1.0 GiB, gradients 512.0 MiB`.
pub(super) fn parts(parts: &[MemoryPart]) -> String {
    parts
        .iter()
        .map(|part| format!("{} {}", part.name, figure::bytes(part.bytes)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Number of servers that fit, each with its GPUs on one machine. The learner has `ranks` GPUs on each of
/// `num_machines` machines; servers are on the same GPUs if they share, otherwise on the remaining ones.
/// `None` if the learner itself does not fit.
fn num_servers_that_fit(
    machines: &[Machine],
    (num_machines, ranks): (usize, usize),
    of_server: usize,
    shares: bool,
) -> Option<usize> {
    let counts = machines.iter().map(Machine::num_gpus);
    // For each machine that is large enough for the ranks: how many servers these displace.
    let mut lost: Vec<usize> = (counts.clone().filter(|&count| count >= ranks))
        .map(|count| count / of_server - (count - ranks) / of_server)
        .collect();
    lost.sort_unstable();
    let lost: usize = lost.get(..num_machines)?.iter().sum();
    let all: usize = counts.map(|count| count / of_server).sum();
    Some(if shares { num_machines * (ranks / of_server) } else { all - lost })
}
