//! The plan as the lines that a run prints: machines, ranks of the learner, servers, and what each GPU keeps.

use tamis_core::figure;
use tamis_core::figure::counted;

use super::machines::{Machine, Machines};
use super::misfits::parts;
use super::{Device, LearnerPlan, Plan, ServersPlan};

impl Plan {
    /// The plan as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("plan: {}", self.describe_machines())];
        if let Some(plan) = &self.learner {
            lines.extend(plan.lines());
        }
        if let Some(url) = &self.learner_url {
            lines.push(format!("  learner at {url}: not planned, it runs elsewhere"));
        } else if self.learner.is_none() {
            lines.push("  learner: the built-in engine, on the CPU of this machine".to_owned());
        }
        if let Some(plan) = &self.servers {
            lines.extend(plan.lines());
        }
        lines
    }

    fn describe_machines(&self) -> String {
        let machines = match &self.machines {
            Machines::Unknown(why) => return why.clone(),
            Machines::Known(machines) | Machines::Named(machines) => machines,
        };
        let describe = |machine: &Machine| {
            let memory = machine
                .memory
                .map_or_else(String::new, |bytes| format!(", {} of memory free", figure::bytes(bytes)));
            let Some(first) = machine.gpus.first() else { return format!("no GPU{memory}") };
            let least = machine.gpus.iter().map(|gpu| gpu.memory).min().unwrap_or(0);
            let name = if first.name == "GPU" { String::new() } else { format!(" ({})", first.name) };
            format!("{} with {}{name}{memory}", counted(machine.gpus.len(), "GPU"), figure::bytes(least))
        };
        let Some((first, others)) = machines.split_first() else { return "no machine is there".to_owned() };
        let same = others.iter().all(|other| describe(other) == describe(first));
        match (others.len(), same) {
            (0, _) => format!("{}, {}", first.name, describe(first)),
            (_, true) => format!("{} machines, each {}", machines.len(), describe(first)),
            (_, false) => {
                let all: Vec<String> = machines
                    .iter()
                    .map(|machine| format!("{}: {}", machine.name, describe(machine)))
                    .collect();
                format!("{} machines: {}", machines.len(), all.join("; "))
            }
        }
    }
}

impl LearnerPlan {
    fn lines(&self) -> Vec<String> {
        let what = match self.device {
            Device::Gpu => "GPU",
            Device::Cpu => "CPU",
        };
        let where_ = match (&self.gpus, self.device) {
            (Some(gpus), _) if !gpus.is_empty() => {
                let plural = if gpus.len() == 1 { "" } else { "s" };
                format!("GPU{plural} {}", spell_ids(gpus))
            }
            (_, Device::Cpu) => "the CPU".to_owned(),
            _ => format!("a {what} each"),
        };
        let ranks = match self.ranks_per_machine {
            Some(each) if self.machines > 1 => {
                format!("{} machines with {} each, on {where_}", self.machines, counted(each, "rank"))
            }
            Some(each) => format!("{} on {where_}", counted(each, "rank")),
            None => "as many ranks as there are GPUs".to_owned(),
        };
        let all = self.ranks_per_machine.map(|each| each * self.machines);
        let wave = match all {
            Some(all) if all > 1 => format!("a wave has at most {all} x {} tokens", self.tokens),
            _ => format!("a micro-batch has at most {} tokens", self.tokens),
        };
        let mut lines = vec![format!("  learner: {ranks}; {wave}")];
        match &self.memory {
            None if self.ranks_per_machine.is_none() => {}
            None => lines.push(
                "    memory: not known until the model's files are here (at least 16 bytes for each weight that learns)"
                    .to_owned(),
            ),
            Some(memory) => {
                let each = match self.device {
                    Device::Gpu => "each GPU",
                    Device::Cpu if all.unwrap_or(1) > 1 => "each rank",
                    Device::Cpu => "memory",
                };
                let of = self.capacity.map_or_else(String::new, |bytes| match (self.device, self.ranks_per_machine) {
                    (Device::Cpu, Some(ranks)) if ranks > 1 => {
                        format!(" ({ranks} of them have {})", figure::bytes(bytes))
                    }
                    _ => format!(" of {}", figure::bytes(bytes)),
                });
                lines.push(format!(
                    "    {each}: {}{of} before a token is computed: {}",
                    figure::bytes(memory.total()),
                    parts(&memory.parts)
                ));
                if let Some(sizes) = &self.sizes {
                    lines.push(format!(
                        "    policy: {:.2e} parameters, of which {:.2e} learn: {} in {}, {} with its linear layers in 4 bits",
                        sizes.parameters as f64,
                        sizes.learned as f64,
                        figure::bytes(sizes.in_passes),
                        if sizes.of_each == 2 { "bf16" } else { "f32" },
                        figure::bytes(sizes.in_four_bits)
                    ));
                }
                if let Some(working) = &self.working {
                    let cache = if working.cache > 0 {
                        format!(", and at most {} of keys and values while it samples", figure::bytes(working.cache))
                    } else {
                        String::new()
                    };
                    lines.push(format!(
                        "    beside it: at least {} of activations in a micro-batch{cache}",
                        figure::bytes(working.activations)
                    ));
                }
                if self.sizes.is_some() && !self.smaller.is_empty() {
                    let ways: Vec<String> =
                        self.smaller.iter().map(|(way, bytes)| format!("{} with {way}", figure::bytes(*bytes))).collect();
                    lines.push(format!("    it would keep {}", ways.join(", ")));
                }
                if memory.host > 0 {
                    lines.push(format!("    main memory of all machines: {}", figure::bytes(memory.host)));
                }
            }
        }
        lines
    }
}

impl ServersPlan {
    fn lines(&self) -> Vec<String> {
        let plural = if self.replicas == 1 { "server" } else { "servers" };
        let where_ = match &self.gpus {
            Some(gpus) => format!("on GPU{} {}", if gpus.len() == 1 { "" } else { "s" }, spell_ids(gpus)),
            None if self.on_cpu => "on the CPU".to_owned(),
            None => format!("{} each", counted(self.tensor_parallel, "GPU")),
        };
        let shares = if self.shares { ", which the learner has, too" } else { "" };
        let mut lines = vec![format!("  {plural}: {} of {}, {where_}{shares}", self.replicas, self.engine)];
        if let Some((memory, weights)) =
            self.memory.as_ref().and_then(|memory| Some((memory, memory.weights?)))
        {
            let each = if self.on_cpu { "each" } else { "each GPU" };
            let of = self.capacity.map_or_else(String::new, |capacity| {
                format!(" of the {} that it takes", figure::bytes(memory.taken(capacity)))
            });
            lines.push(format!("    {each}: weights {}{of}", figure::bytes(weights)));
        }
        lines
    }
}

/// `0 to 3`, `0, 2`.
fn spell_ids(ids: &[String]) -> String {
    let numbers: Option<Vec<usize>> = ids.iter().map(|id| id.parse().ok()).collect();
    match numbers.as_deref() {
        Some(all @ [first, .., last])
            if all.len() > 2 && all.is_sorted() && last - first + 1 == all.len() =>
        {
            format!("{first} to {last}")
        }
        _ => ids.join(", "),
    }
}
