//! Estimates the memory of training or generation, before it is allocated.

use std::fmt;
use tamis_core::figure;

use crate::attention::Head;
use crate::config::{OutputHead, TransformerConfig};
use crate::generation::{PREFILL_TOKENS, in_blocks, max_beginning_positions, width};
use crate::layout::WeightLayout;
use crate::simd::{PANEL, SimdLevel};
use crate::training::{CHUNK_SLACK, Cut, FAR_ROWS, block_rows, stay_near};

/// The model and the work whose memory is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Gradients and the two moments of AdamW.
    pub trains: bool,
    /// Further copies of the weights (a reference).
    pub num_copies: usize,
    /// Tokens of the largest micro-batch. A prompt that several sequences share counts once.
    pub micro_batch_tokens: usize,
    /// Those of them with logits: the completions' tokens.
    pub scored_tokens: usize,
    /// Tokens of the largest group of sequences with the same prompt, which go through the layers together. 0
    /// if no sequences share a prompt, and then all passes are cut in the same places.
    pub group_tokens: usize,
    /// Tokens of the largest pass without gradient beside training's, for a reference or a critic's values; 0
    /// if there is none.
    pub score_tokens: usize,
    /// Threads. If the weights are few, each has buffers of its own.
    pub num_threads: usize,
    /// Whether activations are recomputed in the backward pass.
    pub recompute: bool,
    /// Logits kept for the backward pass, bytes (see [`crate::PassOptions`]).
    pub keep_logits_bytes: usize,
    /// The generator's work.
    pub generation: GenerationPlan,
}

/// Number and length of the sequences generated at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GenerationPlan {
    /// Most sequences that run at once. If the weights are few, the generator runs fewer.
    pub num_sequences: usize,
    /// Sequences with the same prompt, which is cached once for all of them; at least 1.
    pub group_size: usize,
    /// Tokens of the longest prompt.
    pub prompt_tokens: usize,
    /// Tokens of the longest completion.
    pub response_tokens: usize,
}

impl GenerationPlan {
    /// Bytes of the cache, of the work buffers of a step and of the logits.
    fn bytes(&self, config: &TransformerConfig, num_parameters: usize, num_threads: usize) -> u64 {
        let at_best = width(SimdLevel::detect(), num_threads.max(1), num_parameters);
        let sequences = self.num_sequences.min(at_best);
        if sequences == 0 {
            return 0;
        }
        let size = self.group_size.max(1);
        // The newest group and the one before it may be incomplete.
        let groups =
            if sequences < self.num_sequences { sequences / size + 2 } else { sequences.div_ceil(size) };
        let groups = groups.min(self.num_sequences.div_ceil(size));
        let cached = if size == 1 {
            sequences * in_blocks(self.prompt_tokens + self.response_tokens)
        } else {
            sequences * in_blocks(self.response_tokens) + groups * in_blocks(self.prompt_tokens)
        };
        let cached = cached + max_beginning_positions(self.prompt_tokens);
        let head = Head::new(config.head_dim);
        let position = config.num_layers * config.num_kv_heads * (head.dim + head.stride);
        let prefill = (groups * self.prompt_tokens).min(PREFILL_TOKENS.max(self.prompt_tokens));
        let row = 2 * config.hidden_size
            + 2 * config.num_kv_heads * head.dim
            + 2 * config.num_heads * (head.dim + head.stride)
            + 3 * config.intermediate_size;
        let vocab = config.vocab_size.next_multiple_of(PANEL);
        4 * (cached as u64 * position as u64
            + prefill.max(sequences) as u64 * row as u64
            + (sequences + groups) as u64 * vocab as u64)
    }
}

/// Bytes by purpose if every completion has its full length. The estimate leaves out buffers that do not grow
/// with model or batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryEstimate {
    /// The weights.
    pub weights: u64,
    /// Their gradients; several sums side by side if the weights are few.
    pub gradients: u64,
    /// Both moments of AdamW.
    pub moments: u64,
    /// Reference copies.
    pub copies: u64,
    /// Weights in the order of the backward product: all of them if they are few, otherwise the largest at a
    /// time.
    pub flipped: u64,
    /// Activations and work buffers of a micro-batch, its logits included.
    pub activations: u64,
    /// The generator's keys and values, work buffers and logits.
    pub generation: u64,
    /// A critic's weights, gradients and moments.
    pub critic: u64,
}

impl MemoryEstimate {
    /// For a configuration and a plan.
    pub fn new(config: &TransformerConfig, plan: &MemoryPlan) -> Self {
        let layout = WeightLayout::new(config);
        let weights = 4 * layout.len as u64;
        let num_parameters = layout.num_parameters();
        let near = stay_near(num_parameters);
        let head = Head::new(config.head_dim);
        let (d, f, layers) =
            (config.hidden_size as u64, config.intermediate_size as u64, config.num_layers as u64);
        let width = |stride: usize| {
            let (heads, kv) = (config.num_heads as u64, config.num_kv_heads as u64);
            (heads * stride as u64, kv * stride as u64)
        };
        let ((q, kv), (raw_q, raw_kv)) = (width(head.stride), width(head.dim));
        // Per token, as `training::layer::Saved` and `Scratch` hold them.
        let raw = raw_q + raw_kv;
        let (raw_saved, raw_scratch) = if config.qk_norm() { (raw, 0) } else { (0, raw) };
        let saved = raw_saved + raw_q + q + 2 * kv + config.num_heads as u64 + d + 2 * f;
        let forward = raw_scratch + d + raw_kv + f + q;
        let backward = 2 * d + 2 * q + 2 * kv + raw_q + d.max(f).max(raw_q);
        let vocab = match config.head {
            OutputHead::Value => 0,
            OutputHead::Vocabulary => config.vocab_size.next_multiple_of(PANEL) as u64,
        };
        let tokens = plan.micro_batch_tokens as u64;
        let scored = plan.scored_tokens.min(plan.micro_batch_tokens) as u64;
        let cut = Cut::of(num_parameters, plan.micro_batch_tokens);
        // What is computed but not kept is held for the rows that go through the layers together.
        let chunks = cut.chunks.max(1) as u64;
        let most_rows = |rows: usize| match plan.group_tokens {
            0 => rows.div_ceil(Cut::of(num_parameters, rows).chunks.max(1)) as u64,
            group => Cut::most_rows(num_parameters, rows, group) as u64,
        };
        let chunk = most_rows(plan.micro_batch_tokens);
        let scored_chunk = scored.min(chunk);
        // If the weights are few, each thread has its own chunks; otherwise all threads share one.
        let at_once = if near { plan.num_threads.clamp(1, chunks as usize) as u64 } else { 1 };
        let block =
            |rows: u64| if vocab == 0 { 0 } else { vocab * rows.min(block_rows(vocab as usize) as u64) };
        // Shorter completions may have all their logits kept when those of the longest are not.
        let all = vocab * scored;
        let kept_logits = if plan.trains { all.min(plan.keep_logits_bytes as u64 / 4) } else { 0 };
        let mut kept = 0;
        let mut held = 0;
        if plan.trains {
            kept = tokens * (layers + 1) * d + 2 * scored * d;
            held = chunk * (forward + backward)
                + scored_chunk * d
                + d * scored_chunk.min(block_rows(vocab.max(1) as usize) as u64);
            if plan.recompute {
                held += chunk * saved;
            } else {
                kept += tokens * layers * saved;
            }
            // Passes that are cut in other places leave some of the room unused.
            if plan.group_tokens > 0 {
                kept += kept / CHUNK_SLACK as u64;
            }
            kept += kept_logits;
            if all > kept_logits {
                held += block(scored_chunk);
            }
        }
        let without = if plan.trains { plan.score_tokens } else { plan.micro_batch_tokens };
        if without > 0 {
            let rows = most_rows(without);
            held += rows * 4 * d;
            held += if plan.trains { rows.saturating_sub(chunk) } else { rows } * forward;
            held += if plan.trains && plan.recompute { rows.saturating_sub(chunk) } else { rows } * saved;
            held += if plan.trains && all > kept_logits { 0 } else { block(rows) };
        }
        let flipped = match (plan.trains && tokens > 0, near) {
            (false, _) => 0,
            (true, true) => weights,
            // The bytes of one layer, and of the head.
            (true, false) => 4 * d * (f.max(raw_q) + vocab),
        };
        Self {
            weights,
            gradients: if plan.trains { weights * cut.shards as u64 } else { 0 },
            moments: if plan.trains { 2 * weights } else { 0 },
            copies: plan.num_copies as u64 * weights,
            flipped,
            activations: 4 * (kept + at_once * held),
            generation: plan.generation.bytes(config, num_parameters, plan.num_threads),
            critic: 0,
        }
    }

    /// Adds a critic that is trained beside the policy, in the same work buffers.
    #[must_use]
    pub fn with_critic(self, config: &TransformerConfig, plan: &MemoryPlan) -> Self {
        let plan = MemoryPlan { trains: true, num_copies: 0, generation: GenerationPlan::default(), ..*plan };
        let Self { weights, gradients, moments, flipped, activations, .. } = Self::new(config, &plan);
        // If weights are few, policy and critic take turns with the extra gradient sums and the flipped
        // weights. These count twice, because the layouts differ.
        Self {
            critic: weights + gradients + moments,
            flipped: self.flipped.max(flipped),
            activations: self.activations.max(activations),
            ..self
        }
    }

    /// Sum of all.
    pub fn total(&self) -> u64 {
        self.certain() + self.flipped + self.activations + self.generation
    }

    /// Memory that is used in any case: weights, gradients, moments, copies and critic. The rest depends on
    /// the lengths of the completions, which may all end early.
    pub fn certain(&self) -> u64 {
        self.weights + self.gradients + self.moments + self.copies + self.critic
    }
}

impl fmt::Display for MemoryEstimate {
    /// `1.2 GiB (weights 0.3, gradients 0.3, ...)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        let unit = figure::byte_unit(total).0 as f64;
        write!(formatter, "{} (", figure::bytes(total))?;
        let parts = [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer moments", self.moments),
            ("reference", self.copies),
            ("transposed weights", self.flipped),
            ("activations", self.activations),
            ("generation", self.generation),
            ("critic", self.critic),
        ];
        for (i, (part, taken)) in parts.into_iter().filter(|part| part.1 > 0).enumerate() {
            write!(formatter, "{}{part} {:.1}", if i > 0 { ", " } else { "" }, taken as f64 / unit)?;
        }
        write!(formatter, ")")
    }
}

/// Default bytes of activations of a large model's micro-batch.
const NEAR_ACTIVATIONS: u64 = 1 << 30;

/// Default tokens of a micro-batch: 8192. If the weights stream from memory, as many as 1 GiB of activations
/// holds, but at least 1536; more rows than go through the layers together do not gain speed. A small model's
/// activations are small.
pub fn micro_batch_tokens(config: &TransformerConfig, recompute: bool) -> usize {
    const MOST: usize = 8192;
    if stay_near(WeightLayout::new(config).num_parameters()) {
        return MOST;
    }
    let activations = |tokens: usize| {
        let plan = MemoryPlan {
            trains: true,
            micro_batch_tokens: tokens,
            scored_tokens: tokens,
            recompute,
            ..MemoryPlan::default()
        };
        MemoryEstimate::new(config, &plan).activations
    };
    (FAR_ROWS..=MOST)
        .rev()
        .step_by(FAR_ROWS / 3)
        .find(|&tokens| activations(tokens) <= NEAR_ACTIVATIONS)
        .unwrap_or(FAR_ROWS)
}

/// Memory on this machine that is free for new use, bytes; `None` if unknown. Within a control group (a
/// container), what its limit leaves.
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
    use crate::Architecture;

    #[test]
    fn by_hand() {
        let mut config = TransformerConfig::new(Architecture::Llama, 32, 16, 32, 1, 1, 64);
        config.num_kv_heads = 1;
        let generation =
            GenerationPlan { num_sequences: 4, group_size: 2, prompt_tokens: 10, response_tokens: 65 };
        let plan = MemoryPlan { trains: true, num_copies: 1, generation, ..MemoryPlan::default() };
        let estimate = MemoryEstimate::new(&config, &plan);
        // Embedding 512, attention 4 * 256, feed-forward 3 * 512, three norms of 16.
        assert_eq!(estimate.weights, 4 * (512 + 1024 + 1536 + 48));
        assert_eq!(estimate.moments, 2 * estimate.weights);
        assert_eq!(estimate.certain(), 5 * estimate.weights);
        // Four completions of two blocks, two prompts of one; keys and values of 16 each. Twenty rows of two
        // prompts: stream and normed, key and value, query, mixed, both by heads, and three of the
        // feed-forward. Logits of four sequences and two prompts.
        assert_eq!(estimate.generation, 4 * ((4 * 128 + 2 * 64) * 32 + 20 * (32 + 32 + 64 + 96) + 6 * 32));
        assert_eq!(estimate.total(), estimate.certain() + estimate.generation);
        // Prompts that may share prefixes: eight prefixes of one block, and no more than 2048 positions.
        let cached = |prompt_tokens: usize| {
            let plan = MemoryPlan { generation: GenerationPlan { prompt_tokens, ..generation }, ..plan };
            let prompts = prompt_tokens.next_multiple_of(64);
            let rows = (2 * prompt_tokens).min(prompt_tokens.max(2048));
            let others = (4 * 128 + 2 * prompts) * 32 + rows * (32 + 32 + 64 + 96) + 6 * 32;
            (MemoryEstimate::new(&config, &plan).generation / 4 - others as u64) / 32
        };
        assert_eq!([16, 17, 65, 66, 5000].map(cached), [0, 512, 512, 1024, 2048]);
        insta::assert_snapshot!(estimate, @"159.2 KiB (weights 12.2, gradients 12.2, optimizer moments 24.4, reference 12.2, generation 98.2)");
    }

    #[test]
    fn activations_by_hand() {
        let mut config = TransformerConfig::new(Architecture::Llama, 32, 16, 32, 2, 1, 64);
        config.num_kv_heads = 1;
        let plan = MemoryPlan {
            trains: true,
            micro_batch_tokens: 100,
            scored_tokens: 60,
            num_threads: 1,
            keep_logits_bytes: usize::MAX,
            ..MemoryPlan::default()
        };
        let estimate = MemoryEstimate::new(&config, &plan);
        // Three layer inputs and outputs. For each layer: q, k, v, attention's output, its log-sum, the
        // middle and two of the feed-forward. The head's rows before and after the norm, and logits.
        let kept = 100 * (3 * 16) + 2 * 100 * (4 * 16 + 1 + 16 + 2 * 32) + 60 * (2 * 16 + 32);
        // Normed rows, raw queries, keys and values, heads and activation (32). Then stream, derivatives of
        // the normed rows, by heads, of q, k, v and rows, and packed rows (32). The head's derivative and
        // packed rows.
        let held = 100 * (5 * 16 + 32) + 100 * (7 * 16 + 32) + 60 * 2 * 16;
        assert_eq!(estimate.activations, 4 * (kept + held));
        // One chunk of rows is one sum of gradients; the flipped weights are all there.
        assert_eq!(estimate.gradients, estimate.weights);
        assert_eq!(estimate.flipped, estimate.weights);
    }

    #[test]
    fn a_micro_batch_of_a_large_model_fits_into_a_gibibyte_or_has_1536_tokens() {
        let small = TransformerConfig::new(Architecture::Llama, 64, 128, 384, 4, 4, 256);
        assert_eq!(micro_batch_tokens(&small, false), 8192);
        // SmolLM2-135M: 0.7 MB a token.
        let mut middle = TransformerConfig::new(Architecture::Llama, 49_152, 576, 1536, 30, 9, 8192);
        middle.num_kv_heads = 3;
        assert_eq!(micro_batch_tokens(&middle, false), 1536);
        // Only the inputs of layers are kept.
        assert_eq!(micro_batch_tokens(&middle, true), 8192);
        let mut few = middle.clone();
        few.num_layers = 6;
        let tokens = micro_batch_tokens(&few, false);
        let activations = |tokens| {
            let plan = MemoryPlan {
                trains: true,
                micro_batch_tokens: tokens,
                scored_tokens: tokens,
                ..MemoryPlan::default()
            };
            MemoryEstimate::new(&few, &plan).activations
        };
        assert!((1537..8192).contains(&tokens), "{tokens}");
        assert!(activations(tokens) <= 1 << 30 && activations(tokens + 512) > 1 << 30, "{tokens}");
    }

    #[test]
    fn recomputation_and_blocks_of_logits_take_less() {
        let config = TransformerConfig::new(Architecture::Qwen2, 150_000, 896, 4864, 24, 14, 4096);
        let plan = MemoryPlan {
            trains: true,
            micro_batch_tokens: 8192,
            scored_tokens: 8192,
            keep_logits_bytes: usize::MAX,
            ..MemoryPlan::default()
        };
        let full = MemoryEstimate::new(&config, &plan);
        let less =
            MemoryEstimate::new(&config, &MemoryPlan { recompute: true, keep_logits_bytes: 0, ..plan });
        assert!(less.activations * 4 < full.activations);
        insta::assert_snapshot!(full, @"24.2 GiB (weights 2.0, gradients 2.0, optimizer moments 3.9, \
             transposed weights 0.5, activations 15.8)");
    }

    #[test]
    fn this_machine_has_memory() {
        if std::path::Path::new("/proc/meminfo").exists() {
            assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
