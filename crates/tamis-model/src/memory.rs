//! How much memory training or generation takes, before it is taken.

use std::fmt;

use crate::attention::Head;
use crate::config::{ModelConfig, OutputHead};
use crate::layout::Layout;
use crate::simd::PANEL;
use crate::training::Cut;

/// What is to be held at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Gradients and the two moments of AdamW.
    pub trains: bool,
    /// Further copies of the weights (a reference).
    pub num_copies: usize,
    /// Tokens of the largest micro-batch, a prompt that several sequences share counted once.
    pub micro_batch_tokens: usize,
    /// Threads, each of which holds buffers of its own where the weights are few.
    pub num_threads: usize,
    /// Activations are computed again in the backward pass.
    pub recompute: bool,
    /// Logits kept for the backward pass, bytes (see [`crate::PassOptions`]).
    pub keep_logits_bytes: usize,
    /// Positions cached at once by the generator: prompts once, every running sample's longest completion.
    pub cached_tokens: usize,
}

/// Bytes by purpose; an estimate that leaves out buffers that do not grow with model or batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryEstimate {
    /// The weights.
    pub weights: u64,
    /// Their gradients; several sums side by side where the weights are few.
    pub gradients: u64,
    /// Both moments of AdamW.
    pub moments: u64,
    /// Reference copies.
    pub copies: u64,
    /// Activations and work buffers of a micro-batch, its logits included.
    pub activations: u64,
    /// Keys and values of the generator.
    pub kv_cache: u64,
    /// A critic's weights, gradients and moments.
    pub critic: u64,
}

impl MemoryEstimate {
    /// For a configuration and a plan.
    pub fn new(config: &ModelConfig, plan: &MemoryPlan) -> Self {
        let weights = 4 * Layout::new(config).len as u64;
        let tokens = plan.micro_batch_tokens as u64;
        let head = Head::new(config.head_dim);
        let (d, f, layers) =
            (config.hidden_size as u64, config.intermediate_size as u64, config.num_layers as u64);
        let width = |stride: usize| {
            let (heads, kv) = (config.num_heads as u64, config.num_kv_heads as u64);
            (heads * stride as u64, kv * stride as u64)
        };
        let ((q, kv), (raw_q, raw_kv)) = (width(head.stride), width(head.dim));
        // As `training::layer::Saved` and `Scratch` hold them, per token.
        let saved = 2 * raw_q + raw_kv + q + 2 * kv + config.num_heads as u64 + d + 2 * f;
        let scratch = 3 * d + raw_kv + 2 * f + 3 * q + 2 * kv + raw_q + d.max(f);
        let vocab = config.vocab_size.next_multiple_of(PANEL) as u64;
        let num_parameters = Layout::new(config).num_parameters();
        let cut = Cut::of(num_parameters, tokens as usize);
        // What is computed and not kept is held for the rows that go through the layers together.
        let chunk = tokens.div_ceil(cut.chunks.max(1) as u64);
        let at_once = plan.num_threads.clamp(1, cut.shards) as u64;
        let all = 4 * tokens * vocab;
        let logits = if config.head == OutputHead::Value {
            0
        } else if plan.trains && all <= plan.keep_logits_bytes as u64 {
            all
        } else {
            4 * at_once * vocab * chunk.min(((4 << 20) / vocab).max(48))
        };
        let kept = tokens
            * if !plan.trains {
                0
            } else if plan.recompute {
                (layers + 3) * d
            } else {
                (layers + 3) * d + layers * saved
            };
        let held = at_once
            * chunk
            * if !plan.trains {
                4 * d + saved + scratch
            } else if plan.recompute {
                2 * d + saved + scratch
            } else {
                2 * d + scratch
            };
        Self {
            weights,
            gradients: if plan.trains { weights * cut.shards as u64 } else { 0 },
            moments: if plan.trains { 2 * weights } else { 0 },
            copies: plan.num_copies as u64 * weights,
            activations: if tokens == 0 { 0 } else { 4 * (kept + held) + logits },
            kv_cache: 4
                * plan.cached_tokens as u64
                * layers
                * config.num_kv_heads as u64
                * (head.dim + head.stride) as u64,
            critic: 0,
        }
    }

    /// With a critic that is trained beside the policy, in the same work buffers.
    #[must_use]
    pub fn with_critic(self, config: &ModelConfig, plan: &MemoryPlan) -> Self {
        let plan = MemoryPlan { trains: true, num_copies: 0, cached_tokens: 0, ..*plan };
        let Self { weights, gradients, moments, activations, .. } = Self::new(config, &plan);
        Self { critic: weights + gradients + moments, activations: self.activations.max(activations), ..self }
    }

    /// Sum of all.
    pub fn total(&self) -> u64 {
        let Self { weights, gradients, moments, copies, activations, kv_cache, critic } = *self;
        weights + gradients + moments + copies + activations + kv_cache + critic
    }
}

impl fmt::Display for MemoryEstimate {
    /// `1.2 GiB (weights 0.3, gradients 0.3, ...)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        let (unit, name) =
            if total >= 1 << 30 { (f64::from(1 << 30), "GiB") } else { (f64::from(1 << 20), "MiB") };
        write!(formatter, "{:.1} {name} (", total as f64 / unit)?;
        let parts = [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer moments", self.moments),
            ("reference", self.copies),
            ("activations", self.activations),
            ("KV cache", self.kv_cache),
            ("critic", self.critic),
        ];
        for (i, (part, bytes)) in parts.into_iter().filter(|part| part.1 > 0).enumerate() {
            write!(formatter, "{}{part} {:.1}", if i > 0 { ", " } else { "" }, bytes as f64 / unit)?;
        }
        write!(formatter, ")")
    }
}

/// Memory that is free for new use on this machine, bytes; `None` where it cannot be told. Within a control group (a container),
/// what its limit leaves.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()? * 1024;
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let group =
        read("memory.max").zip(read("memory.current")).map(|(max, current)| max.saturating_sub(current));
    Some(group.map_or(machine, |group| group.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Architecture;

    #[test]
    fn by_hand() {
        let mut config = ModelConfig::new(Architecture::Llama, 32, 16, 32, 1, 1, 64);
        config.num_kv_heads = 1;
        let plan = MemoryPlan { trains: true, num_copies: 1, cached_tokens: 10, ..MemoryPlan::default() };
        let estimate = MemoryEstimate::new(&config, &plan);
        // Embedding 512, attention 4 * 256, feed-forward 3 * 512, three norms of 16.
        assert_eq!(estimate.weights, 4 * (512 + 1024 + 1536 + 48));
        assert_eq!(estimate.moments, 2 * estimate.weights);
        assert_eq!(estimate.kv_cache, 4 * 10 * 32);
        assert_eq!(estimate.total(), 5 * estimate.weights + 4 * 10 * 32);
        insta::assert_snapshot!(estimate, @"0.1 MiB (weights 0.0, gradients 0.0, optimizer moments 0.0, reference 0.0, KV cache 0.0)");
    }

    #[test]
    fn recomputation_and_blocks_of_logits_take_less() {
        let config = ModelConfig::new(Architecture::Qwen2, 150_000, 896, 4864, 24, 14, 4096);
        let plan = MemoryPlan {
            trains: true,
            micro_batch_tokens: 8192,
            keep_logits_bytes: usize::MAX,
            ..MemoryPlan::default()
        };
        let full = MemoryEstimate::new(&config, &plan);
        let less =
            MemoryEstimate::new(&config, &MemoryPlan { recompute: true, keep_logits_bytes: 0, ..plan });
        assert!(less.activations * 4 < full.activations);
        insta::assert_snapshot!(full, @"25.0 GiB (weights 2.0, gradients 2.0, optimizer moments 3.9, activations 17.2)");
    }

    #[test]
    fn this_machine_has_memory() {
        if std::path::Path::new("/proc/meminfo").exists() {
            assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
