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
mod misfits;
pub mod model_sizes;
pub mod table;

use std::path::{Path, PathBuf};

use serde::Serialize;
use tamis_config::{
    BackendKind, Config, KlPlace, LauncherKind, LearnerBackend, LearnerDtype, LoraBase, ModelSource,
    MomentFormat, PublishMode,
};

use tamis_model::TransformerConfig;
use tamis_train::launcher::RunPlan;

use machines::{Gpu, Machine, Machines};
use memory::{Kept, Offloads, PolicyBytes, RankMemory, ServerMemory, Working};
use model_sizes::ModelSizes;

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
