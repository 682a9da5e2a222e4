//! Plans a run before anything is loaded: the machines, what runs on each, and the bytes of parameters that
//! each GPU keeps (or each machine, if PyTorch is on a CPU).
//!
//! ```text
//! configuration ─┐
//! model_sizes ───┼─> Plan ─> `lines` for a person, problems that refuse a run, doubts that warn of it
//! machines ──────┘    memory
//! ```
//! For one rank it also estimates, at least, the activations of a micro-batch and, at most, the cache of a
//! learner that samples. Logits, CUDA, NCCL and the cache of a server come on top and are not estimated.
//! `assemble::memory` of the kernel covers the native engine.

pub mod disks;
mod lines;
pub mod machines;
pub mod memory;
pub mod model_sizes;
pub mod table;

use std::path::{Path, PathBuf};

use serde::Serialize;
use tamis_config::{
    BackendKind, Config, KlPlace, LauncherKind, LearnerBackend, LearnerDtype, LoraBase, ModelSource,
    MomentFormat, PublishMode,
};

use tamis_core::figure::{self, agreed, counted};
use tamis_model::TransformerConfig;
use tamis_train::launcher::RunPlan;

use machines::{Gpu, Machine, Machines};
use memory::{Kept, MemoryPart, Offloads, Options, PolicyBytes, RankMemory, ServerMemory, Working};
use model_sizes::ModelSizes;

/// PyTorch may not use a smaller GPU at all: it may drive a display, and PyTorch may be a build for CPUs.
const LEAST_TO_TRAIN_ON: u64 = 16 << 30;

/// Less memory in use by other processes than this is not reported.
const UNNOTICED: u64 = 1 << 29;

/// Sizes of a run's models, if their files are here.
#[derive(Debug, Clone, Default)]
pub struct RunModels {
    /// The policy.
    pub policy: Option<ModelSizes>,
    /// The reference, if it is another model than the initial policy.
    pub reference: Option<ModelSizes>,
    /// The critic, if it has other layers than the policy.
    pub critic: Option<ModelSizes>,
    /// The teachers that the learner loads.
    pub teachers: Vec<ModelSizes>,
}

/// Something impossible, and its fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Misfit {
    /// The keys that it is about, the likeliest cause first.
    pub keys: Vec<String>,
    /// A sentence with the numbers.
    pub message: String,
    /// The settings to change.
    pub hint: String,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// GPUs.
    Gpu,
    /// Processor cores.
    Cpu,
}

/// The ranks of a learner in PyTorch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LearnerPlan {
    /// Machines.
    pub machines: usize,
    /// Ranks on each; `None` if that depends on GPUs that are not known.
    pub ranks_per_machine: Option<usize>,
    /// What they compute on.
    pub device: Device,
    /// Its GPUs on each machine, if their ids are known.
    pub gpus: Option<Vec<String>>,
    /// Tokens of a rank's largest micro-batch. A wave has one micro-batch for each rank.
    pub tokens: u64,
    /// The policy's parameters, if one rank has all of them.
    pub sizes: Option<PolicyBytes>,
    /// Memory of parameters on each rank; `None` if the model's sizes or the number of ranks are not known.
    pub memory: Option<RankMemory>,
    /// What one rank needs beside them while it computes, if that is known.
    pub working: Option<Working>,
    /// Settings with which one rank would keep less, and the bytes that it would keep, from the one that
    /// changes least.
    pub smaller: Vec<(String, u64)>,
    /// Memory of each of its GPUs, or of each machine without GPUs; `None` if unknown.
    pub capacity: Option<u64>,
}

/// The servers that a run starts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServersPlan {
    /// Their engine, or the key that holds their command.
    pub engine: &'static str,
    /// Number of them.
    pub replicas: usize,
    /// GPUs of each.
    pub tensor_parallel: usize,
    /// All of their GPUs, if their ids are known.
    pub gpus: Option<Vec<String>>,
    /// Whether they are on the learner's GPUs.
    pub shares: bool,
    /// Memory on each GPU; `None` if the model's sizes are not known, or the user wrote the command.
    pub memory: Option<ServerMemory>,
    /// Whether none of the machines has a GPU.
    pub on_cpu: bool,
    /// Memory of each of their GPUs; `None` if unknown.
    pub capacity: Option<u64>,
}

/// Which process runs on which machine, and its memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The machines.
    pub machines: Machines,
    /// The learner in PyTorch that the run starts.
    pub learner: Option<LearnerPlan>,
    /// Address of a learner that runs already (`learner.url`).
    pub learner_url: Option<String>,
    /// The servers that the run starts.
    pub servers: Option<ServersPlan>,
    /// What is impossible.
    pub misfits: Vec<Misfit>,
    /// What may be impossible, in sentences with their hints.
    pub doubts: Vec<Misfit>,
}

impl RunModels {
    /// Reads the sizes of the models that a configuration names, from the files that are here. If the run
    /// resumes, the policy is the one of the checkpoint. `native` is a policy of random weights. `folder_of`
    /// gives the folder of a named model.
    pub fn read(
        config: &Config,
        checkpoint: Option<&Path>,
        native: Option<&TransformerConfig>,
        folder_of: impl Fn(&ModelSource) -> Option<PathBuf>,
    ) -> Self {
        let read = |model: &Option<ModelSource>| ModelSizes::read(&folder_of(model.as_ref()?)?);
        let policy = read(&config.model.path).or_else(|| ModelSizes::read(checkpoint?));
        Self {
            policy: policy.or_else(|| native.map(ModelSizes::of_native)),
            reference: read(&config.model.reference),
            critic: read(&config.critic.model.path),
            teachers: config.loaded_teachers().filter_map(|teacher| read(&teacher.path)).collect(),
        }
    }
}

impl Plan {
    /// Whether there is anything to plan. A run on the native engine without servers is one process.
    pub fn is_needed(config: &Config) -> bool {
        config.learns_elsewhere() || config.launches_servers()
    }

    /// The plan of a configuration on these machines.
    pub fn new(config: &Config, models: &RunModels, machines: Machines) -> Self {
        let starts = config.learner.backend == LearnerBackend::Torch && config.learner.url.is_none();
        let num_machines = machines.known().len();
        let is_one_of_many = num_machines > 1 && !Self::is_on_ray(config);
        let mut plan = Self {
            machines: if is_one_of_many { machines.first_alone() } else { machines },
            learner: None,
            learner_url: config.learner.url.clone(),
            servers: None,
            misfits: Vec::new(),
            doubts: Vec::new(),
        };
        plan.learner = starts.then(|| plan.learner(config, models));
        plan.servers = config.launches_servers().then(|| plan.servers(config, models));
        if is_one_of_many {
            plan.doubts.push(Misfit {
                keys: vec!["cluster.launcher".to_owned()],
                message: format!(
                    "`cluster.launcher: {}` starts everything on one machine: the plan uses the first of the {num_machines}, and the \
                    others stay idle",
                    config.cluster.launcher
                ),
                hint: "set `cluster.launcher: ray`, or name one machine (--machines 8x80GiB)".to_owned(),
            });
        }
        plan.check_counts(config);
        plan.check_learner(config);
        plan.check_servers(config);
        plan
    }

    /// The plan in the form that a run prints.
    pub fn for_run(&self) -> RunPlan {
        let joined = |part: fn(&Misfit) -> &str| self.misfits.iter().map(part).collect::<Vec<_>>().join("\n");
        let refusal = (!self.misfits.is_empty())
            .then(|| (joined(|misfit| &misfit.message), joined(|misfit| &misfit.hint)));
        let warn = |doubt: &Misfit| format!("{}\n  hint: {}", doubt.message, doubt.hint);
        RunPlan { lines: self.lines(), warnings: self.doubts.iter().map(warn).collect(), refusal }
    }

    fn is_on_ray(config: &Config) -> bool {
        config.cluster.launcher == LauncherKind::Ray
    }

    /// Whether servers use the learner's GPUs: they do if the configuration asks for it, or without a
    /// launcher, because then both begin with the first GPU.
    fn shares_gpus(config: &Config) -> bool {
        config.cluster.colocate || config.cluster.launcher == LauncherKind::None
    }

    fn learner(&self, config: &Config, models: &RunModels) -> LearnerPlan {
        let learner = &config.learner;
        let known = self.machines.known();
        let has_gpus = known.iter().any(|machine| !machine.gpus.is_empty());
        let is_unknown = matches!(self.machines, Machines::Unknown(_));
        let device = match learner.device.as_str() {
            "cpu" => Device::Cpu,
            "auto" if !has_gpus && !is_unknown => Device::Cpu,
            _ => Device::Gpu,
        };
        let servers = if Self::shares_gpus(config) { 0 } else { config.num_server_gpus() };
        let ranks_per_machine = match (config.cluster.launcher, learner.gpus_per_node, device) {
            (LauncherKind::Local | LauncherKind::Ray, Some(each), _) => Some(each),
            (LauncherKind::None, _, _) | (_, None, Device::Cpu) => Some(1),
            (_, None, Device::Gpu) => share_out(known, learner.nodes, servers),
        };
        let gpus = match (config.cluster.launcher, known) {
            (LauncherKind::Local, [here]) if device == Device::Gpu => {
                ranks_per_machine.map(|count| ids(here.gpus.iter().take(count)))
            }
            (LauncherKind::None, [here]) if device == Device::Gpu => {
                let number = learner.device.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                Some(ids(here.gpus.iter().skip(number.unwrap_or(0)).take(1)))
            }
            _ => None,
        };
        let ranks = ranks_per_machine.map(|each| (each * learner.nodes) as u64);
        let tokens = micro_batch_tokens(config, ranks.unwrap_or(1));
        let capacity = match device {
            Device::Gpu => fewest_of_best(known, ranks.unwrap_or(1) as usize),
            Device::Cpu => known.iter().filter_map(|machine| machine.memory).max(),
        };
        let rounds = computes_in_bf16(config, device);
        let (mut smaller, mut sizes) = (Vec::new(), None);
        let memory = models.policy.as_ref().zip(ranks).map(|(policy, ranks)| {
            // Supervised fine-tuning alone has neither a reference nor a critic nor teachers.
            let is_compared = !config.is_sft_alone();
            let critic = (is_compared && config.has_critic()).then(|| match &models.critic {
                // A language model gets a value head instead of its output head.
                Some(critic) => critic.as_critic(),
                None => policy.as_critic(),
            });
            let adapter = learner.lora.as_ref();
            let kept = Kept {
                ranks,
                rounds,
                adapter: adapter.map(|lora| policy.adapter(lora.rank as u64, lora.targets.as_deref())),
                base: adapter.map_or(LoraBase::Dtype, |lora| lora.base),
                moments: learner.moments,
                teachers: (models.teachers.iter().filter(|_| is_compared))
                    .map(|teacher| teacher.num_parameters)
                    .sum(),
                offloads: Offloads {
                    reference: learner.offload_reference && device == Device::Gpu,
                    moments: learner.offload_moments && device == Device::Gpu,
                },
                sends_weights: is_compared
                    && config.samples_at_servers()
                    && config.publish_mode() == PublishMode::Nccl,
            };
            let of = |kept: Kept| {
                // With an adapter the reference is the policy without it, unless another model is named.
                let has_reference = is_compared
                    && config.objective.kl.place != KlPlace::None
                    && (kept.adapter.is_none() || config.model.reference.is_some());
                let reference = models.reference.as_ref().or(Some(policy)).filter(|_| has_reference);
                RankMemory::new(policy, reference, critic.as_ref(), kept)
            };
            // A critic cannot start from the layers of a policy that has an adapter.
            let may_adapt =
                config.model.init.is_none() && (critic.is_none() || config.critic.model.path.is_some());
            smaller = ways_to_keep_less(kept, policy, may_adapt, device, &of);
            sizes = (ranks == 1).then(|| PolicyBytes::new(policy, kept));
            of(kept)
        });
        let working = models.policy.as_ref().and_then(|policy| {
            let working = Working::new(config, policy, tokens, if rounds { 2 } else { 4 })?;
            (ranks == Some(1)).then_some(working)
        });
        LearnerPlan {
            machines: learner.nodes,
            ranks_per_machine,
            device,
            gpus,
            tokens,
            sizes,
            memory,
            working,
            smaller,
            capacity,
        }
    }

    fn servers(&self, config: &Config, models: &RunModels) -> ServersPlan {
        let launch = config.rollout.launch.as_ref();
        let (replicas, tensor_parallel) =
            launch.map_or((0, 1), |launch| (launch.replicas, launch.tensor_parallel));
        let shares = Self::shares_gpus(config)
            && self.learner.as_ref().is_some_and(|learner| learner.device == Device::Gpu);
        let known = self.machines.known();
        let here = match known {
            [here] if !Self::is_on_ray(config) => Some(here),
            _ => None,
        };
        // Without a launcher, servers take the first GPUs even if the learner is on them.
        let before = match &self.learner {
            Some(learner) if !Self::shares_gpus(config) && learner.device == Device::Gpu => {
                learner.ranks_per_machine
            }
            _ => Some(0),
        };
        let gpus = here
            .zip(before)
            .map(|(here, before)| ids(here.gpus.iter().skip(before).take(config.num_server_gpus())));
        let capacity = fewest_of_best(known, config.num_server_gpus());
        let of_learner = self.learner.as_ref().and_then(|learner| learner.gpus.as_ref());
        let shares = match (&gpus, of_learner) {
            (Some(ours), Some(theirs)) => shares && ours.iter().any(|id| theirs.contains(id)),
            _ => shares,
        };
        // Nothing is known about a command that the user wrote.
        let is_own = launch.is_some_and(|launch| !launch.command.is_empty());
        let sizes = models.policy.as_ref().filter(|_| !is_own);
        let memory = sizes.map(|sizes| ServerMemory::new(config, sizes, self.published_bytes(config)));
        ServersPlan {
            engine: match config.rollout.backend {
                _ if is_own => "`rollout.launch.command`",
                BackendKind::Sglang => "SGLang",
                _ => "vLLM",
            },
            replicas,
            tensor_parallel,
            gpus: gpus.filter(|ids| !ids.is_empty()),
            shares,
            memory,
            on_cpu: !known.is_empty() && known.iter().all(|machine| machine.gpus.is_empty()),
            capacity,
        }
    }

    /// Bytes of a weight as PyTorch publishes it, in the number format of its computation; `None` if servers
    /// use the format of the model's files.
    fn published_bytes(&self, config: &Config) -> Option<u64> {
        let learner = self.learner.as_ref()?;
        Some(if computes_in_bf16(config, learner.device) { 2 } else { 4 })
    }

    /// Checks that there are enough GPUs, and enough together on single machines for the launcher. A lack is
    /// an error on machines that the user named. Otherwise it is a doubt: the cluster may grow, and whatever
    /// starts the processes then refuses or waits.
    fn check_counts(&mut self, config: &Config) {
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
    fn check_learner(&mut self, config: &Config) {
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
    fn check_servers(&mut self, config: &Config) {
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

/// Settings with which a rank keeps less than with `kept`, each with the bytes that it then keeps (`of`),
/// from the one that changes least. `may_adapt`: an adapter is possible.
fn ways_to_keep_less(
    kept: Kept,
    policy: &ModelSizes,
    may_adapt: bool,
    device: Device,
    of: &dyn Fn(Kept) -> RankMemory,
) -> Vec<(String, u64)> {
    let offloads = Offloads { moments: true, ..kept.offloads };
    let (eight, nf4) = (MomentFormat::EightBits, LoraBase::Nf4);
    let mut ways = vec![("`learner.moments: 8bit`", Kept { moments: eight, ..kept })];
    if device == Device::Gpu {
        ways.push(("`learner.offload_moments: true`", Kept { offloads, ..kept }));
    }
    if kept.adapter.is_some() && kept.ranks == 1 {
        ways.push(("4-bit weights below the adapter (`learner.lora.base: nf4`)", Kept { base: nf4, ..kept }));
    } else if kept.adapter.is_none() && may_adapt {
        let adapted = Kept { adapter: Some(policy.adapter(32, None)), ..kept };
        ways.push(("an adapter (`learner.lora: {rank: 32, alpha: 32}`)", adapted));
        if kept.ranks == 1 {
            let way = "an adapter over 4-bit weights (`learner.lora: {rank: 32, alpha: 32, base: nf4}`)";
            ways.push((way, Kept { base: nf4, ..adapted }));
        }
    }
    let now = of(kept).total();
    let found = ways.into_iter().map(|(way, other)| (way.to_owned(), of(other).total()));
    found.filter(|&(_, bytes)| bytes < now).collect()
}

fn computes_in_bf16(config: &Config, device: Device) -> bool {
    match config.learner.dtype {
        LearnerDtype::Auto => device == Device::Gpu,
        LearnerDtype::Bf16 => true,
        LearnerDtype::F32 => false,
    }
}

/// `weights 1.0 GiB, gradients 512.0 MiB`.
fn parts(parts: &[MemoryPart]) -> String {
    parts
        .iter()
        .map(|part| format!("{} {}", part.name, figure::bytes(part.bytes)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn ids<'a>(gpus: impl Iterator<Item = &'a Gpu>) -> Vec<String> {
    gpus.map(|gpu| gpu.id.clone()).collect()
}

/// Memory of the smallest GPU among the `count` largest. If there are fewer GPUs, the smallest of all.
fn fewest_of_best(machines: &[Machine], count: usize) -> Option<u64> {
    let mut all: Vec<u64> = machines.iter().flat_map(|machine| &machine.gpus).map(|gpu| gpu.memory).collect();
    all.sort_unstable_by(|left, right| right.cmp(left));
    all.get(count.clamp(1, all.len().max(1)) - 1).copied()
}

/// Ranks of each machine if the configuration leaves them open: all GPUs that no server needs, the same
/// number on each machine that has GPUs (`decide` in `python/tamis/cluster/on_ray.py`). `None` if fewer
/// machines are known: a launcher waits for the others.
fn share_out(machines: &[Machine], num_machines: usize, servers: usize) -> Option<usize> {
    let mut counts: Vec<usize> = machines.iter().map(Machine::num_gpus).filter(|&count| count > 0).collect();
    counts.sort_unstable_by(|left, right| right.cmp(left));
    let total: usize = counts.iter().sum();
    let fewest = *counts.get(..num_machines)?.last()?;
    Some(fewest.min(total.saturating_sub(servers) / num_machines).max(1))
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

/// Tokens of the largest micro-batch of a rank: the configured limit, or less if its part of a mini-batch has
/// fewer. A longer trajectory is a micro-batch by itself.
fn micro_batch_tokens(config: &Config, ranks: u64) -> u64 {
    if config.is_sft_alone() {
        let allowed = config.micro_batch_tokens(None) as u64;
        let Some(longest) = config.sft.max_length else { return allowed };
        let rows = (config.sft.batch_size as u64).div_ceil(ranks);
        return allowed.min(rows.saturating_mul(longest as u64)).max(longest as u64);
    }
    let (prompt, response) = (config.data.max_prompt_length as u64, config.max_completion_length() as u64);
    let group = prompt + config.rollout.n as u64 * response;
    let allowed = match config.train.micro_batch_size {
        Some(sequences) => sequences as u64 * (prompt + response),
        None => config.micro_batch_tokens(None) as u64,
    };
    let groups = config.mini_batch_size() as u64;
    allowed.min(groups.div_ceil(ranks).saturating_mul(group)).max(prompt + response)
}

#[cfg(test)]
mod tests;
