//! Memory of parameters: their number, times the bytes kept for each, divided by the ranks that share them.
//!
//! | kept for each parameter | bytes |
//! |---|---|
//! | weights that learn | 4; 2 more for the rounded copy if one rank computes in bf16 |
//! | weights that do not learn (below an adapter, the reference, teachers) | 2 in bf16, 4 in f32 |
//! | linear layers below an adapter with `learner.lora.base: nf4` | 0.516: 4 bits, one byte for each 64 of them, and 4 bytes for each 256 of these |
//! | gradients | 4 |
//! | AdamW's two moments | 8; with `learner.moments: 8bit` 2.031: twice 8 bits, and 4 bytes for each 256 of them |
//!
//! Logits, gathered layers, CUDA and a server's cache come on top. They are not counted. [`Working`] bounds
//! the activations and the cache of a learner that samples.

use serde::Serialize;
use tamis_config::{BackendKind, Config, LoraBase, MomentFormat};

use super::model_sizes::ModelSizes;

/// Part of a GPU's memory that vLLM takes without `--gpu-memory-utilization`; SGLang chooses about the same
/// (`--mem-fraction-static`).
const SHARE: f64 = 0.9;

/// What a learner keeps of its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Ranks that share all parameters.
    pub ranks: u64,
    /// Whether it computes in bf16 instead of f32.
    pub rounds: bool,
    /// Parameters of an adapter that is trained instead of the weights.
    pub adapter: Option<u64>,
    /// How the weights below the adapter are held.
    pub base: LoraBase,
    /// How moments are held.
    pub moments: MomentFormat,
    /// Number of parameters of the teachers that the learner loads.
    pub teachers: u64,
    /// What is in main memory instead of on the GPU.
    pub offloads: Offloads,
    /// The first rank sends weights over NCCL. It keeps a copy of them in main memory.
    pub sends_weights: bool,
}

/// What waits in main memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// The reference and the teachers.
    pub reference: bool,
    /// AdamW's moments.
    pub moments: bool,
}

impl Kept {
    /// Bytes of the moments of so many weights.
    fn of_moments(&self, learned: u64) -> u64 {
        match self.moments {
            MomentFormat::F32 => 8 * learned,
            MomentFormat::EightBits => 2 * (learned + learned.div_ceil(256) * 4),
        }
    }

    /// Bytes of a policy's weights below an adapter, `number` for each that is not in 4 bits.
    fn of_base(&self, policy: &ModelSizes, number: u64) -> u64 {
        let quantised = if self.base == LoraBase::Nf4 { policy.in_linears() } else { 0 };
        let scales = quantised.div_ceil(64);
        quantised.div_ceil(2)
            + scales
            + scales.div_ceil(256) * 4
            + number * (policy.num_parameters - quantised)
    }
}

/// A policy's parameters and the bytes of all its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PolicyBytes {
    /// All of them.
    pub parameters: u64,
    /// Those that learn.
    pub learned: u64,
    /// Bytes in the type of passes.
    pub in_passes: u64,
    /// Bytes of one weight in the type of passes.
    pub of_each: u64,
    /// Bytes with the linear layers in 4 bits.
    pub in_four_bits: u64,
}

impl PolicyBytes {
    /// Of a policy that is kept like this.
    pub fn new(policy: &ModelSizes, kept: Kept) -> Self {
        let number = if kept.rounds { 2 } else { 4 };
        Self {
            parameters: policy.num_parameters,
            learned: kept.adapter.unwrap_or(policy.num_parameters),
            in_passes: number * policy.num_parameters,
            of_each: number,
            in_four_bits: Kept { base: LoraBase::Nf4, ..kept }.of_base(policy, number),
        }
    }
}

/// A part of the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPart {
    /// Its name.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// What one rank keeps of parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// By part, without empty ones.
    pub parts: Vec<MemoryPart>,
    /// Main memory of all machines together, beside the GPUs.
    pub host: u64,
}

impl RankMemory {
    /// Memory of a policy, and of a critic and a separate reference if there are any.
    pub fn new(
        policy: &ModelSizes,
        reference: Option<&ModelSizes>,
        critic: Option<&ModelSizes>,
        kept: Kept,
    ) -> Self {
        let number = if kept.rounds { 2 } else { 4 };
        let copies = if kept.ranks == 1 && kept.rounds { number } else { 0 };
        let each = |bytes: u64| bytes.div_ceil(kept.ranks);
        let learned = kept.adapter.unwrap_or(policy.num_parameters);
        let frozen = if kept.adapter.is_some() { kept.of_base(policy, number) } else { 0 };
        let of_critic = critic.map_or(0, |critic| critic.num_parameters);
        let (moments, critic_moments) = (kept.of_moments(learned), kept.of_moments(of_critic));
        let stays = |bytes: u64| if kept.offloads.moments { 0 } else { bytes };
        let of_reference = reference.map_or(0, |reference| number * reference.num_parameters);
        let of_teachers = number * kept.teachers;
        let frozen_parts = [of_reference, of_teachers];
        let on_gpu = if kept.offloads.reference { [0; 2] } else { frozen_parts };
        let off_gpu = if kept.offloads.reference { of_reference + of_teachers } else { 0 };
        let part = |name, bytes| MemoryPart { name, bytes: each(bytes) };
        let mut parts = vec![
            part("weights", (4 + copies) * learned + frozen),
            part("gradients", 4 * learned),
            part("moments", stays(moments)),
            part("reference", on_gpu[0]),
            part("teachers", on_gpu[1]),
            part("critic", (8 + copies) * of_critic + stays(critic_moments)),
        ];
        parts.retain(|part| part.bytes > 0);
        let sent = if kept.sends_weights { number * policy.num_parameters } else { 0 };
        let moments = moments + critic_moments - stays(moments + critic_moments);
        Self { parts, host: sent + off_gpu + moments }
    }

    /// Bytes of all parts.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Whether there is a part of this name.
    pub fn has(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name == name)
    }
}

/// What a rank needs while it computes, beside its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Working {
    /// Least bytes of the activations of its largest micro-batch: the inputs of layers and the outputs of
    /// linear layers, of which only one layer's are there if activations are recomputed.
    pub activations: u64,
    /// Most bytes of keys and values while it samples; 0 if it does not.
    pub cache: u64,
}

impl Working {
    /// Of a policy of which the learner computes so many tokens at once. `None` if its layers are not known,
    /// or not every token passes all of them.
    pub fn new(config: &Config, policy: &ModelSizes, tokens: u64, number: u64) -> Option<Self> {
        let (inputs, outputs, layers) = policy.per_token()?;
        let recomputes = config.model.recompute_activations;
        let per_token = inputs + if recomputes { outputs.div_ceil(layers) } else { outputs };
        let cache = if config.samples_through_learner() {
            // A row for each sample, and one for each prompt that has some; exact rows hold theirs, too.
            let rows = config.rollout.max_num_seqs as u64;
            let prompts =
                rows.div_ceil(config.rollout.n.max(1) as u64) + if config.learner.exact { rows } else { 0 };
            let (prompt, response) =
                (config.data.max_prompt_length as u64, config.max_completion_length() as u64);
            number * policy.cached_per_token() * (rows * response + prompts * prompt)
        } else {
            0
        };
        Some(Self { activations: number * per_token * tokens, cache })
    }
}

/// What a server keeps of parameters on each of its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerMemory {
    /// The part of the GPU that it takes, including the cache.
    pub share: f64,
    /// Its part of the weights, bytes; `None` if they are quantized in an unknown way.
    pub weights: Option<u64>,
    /// Most tokens of a sequence that it accepts, if `rollout.launch.args` sets it.
    pub max_length: Option<u64>,
}

pub(super) struct Options {
    /// Its part of a GPU.
    pub(super) share: &'static str,
    /// Most tokens of a sequence.
    pub(super) length: &'static str,
}

impl Options {
    pub(super) fn of(config: &Config) -> Self {
        match config.rollout.backend {
            BackendKind::Sglang => Self { share: "--mem-fraction-static", length: "--context-length" },
            _ => Self { share: "--gpu-memory-utilization", length: "--max-model-len" },
        }
    }
}

impl ServerMemory {
    /// Memory of the servers that a configuration starts. `published`: bytes of a weight as the learner
    /// publishes it, if known.
    pub fn new(config: &Config, sizes: &ModelSizes, published: Option<u64>) -> Self {
        let launch = config.rollout.launch.as_ref();
        let words = launch.map_or(&[][..], |launch| &launch.args);
        let parallel = launch.map_or(1, |launch| launch.tensor_parallel) as u64;
        let options = Options::of(config);
        let number = match option(words, "--dtype") {
            Some("bfloat16" | "bf16" | "float16" | "half") => 2,
            Some("float32" | "float") => 4,
            _ => published.unwrap_or(sizes.served_bytes),
        };
        let number = match option(words, "--quantization") {
            None => Some(number),
            Some("fp8") => Some(1),
            Some(_) => None,
        };
        Self {
            share: option(words, options.share).and_then(|text| text.parse().ok()).unwrap_or(SHARE),
            weights: number.map(|number| (number * sizes.num_parameters).div_ceil(parallel)),
            max_length: option(words, options.length).and_then(read_count),
        }
    }

    /// Bytes that it takes of a GPU with this much memory.
    pub fn taken(&self, memory: u64) -> u64 {
        (memory as f64 * self.share) as u64
    }
}

/// The value of an option, either the next word or after `=`. The last occurrence counts, as for the engines.
/// Empty if the option has no value. vLLM accepts `_` for `-`.
fn option<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    words.iter().enumerate().rev().find_map(|(place, word)| {
        let (option, value) = word.split_once('=').map_or((word.as_str(), None), |(o, v)| (o, Some(v)));
        let next = words.get(place + 1).map(String::as_str).filter(|next| !next.starts_with("--"));
        (option.replace('_', "-") == name).then(|| value.or(next).unwrap_or(""))
    })
}

/// A number in the engines' notation: `8192`; in vLLM, `8k` is 8000 and `8K` 8192.
fn read_count(text: &str) -> Option<u64> {
    let units = [("k", 1000), ("K", 1 << 10), ("m", 1_000_000), ("M", 1 << 20)];
    let with_unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = with_unit.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|&number| number > 0)
}

#[cfg(test)]
mod tests {
    use super::super::model_sizes::Linear;
    use super::*;

    fn sizes(num_parameters: u64) -> ModelSizes {
        ModelSizes { num_parameters, served_bytes: 2, outside: 0, hidden: 0, vocab: 0, linears: Vec::new() }
    }

    #[test]
    fn four_bits_and_eight_by_hand() {
        let linear =
            Linear { name: "q_proj".to_owned(), rows: 64, columns: 1024, count: 2, stays_whole: false };
        let experts = Linear { name: "up_proj".to_owned(), stays_whole: true, ..linear.clone() };
        let policy = ModelSizes { linears: vec![linear, experts], ..sizes(300_000) };
        let kept = Kept {
            ranks: 1,
            rounds: true,
            adapter: Some(51_200),
            base: LoraBase::Nf4,
            moments: MomentFormat::EightBits,
            teachers: 0,
            offloads: Offloads::default(),
            sends_weights: false,
        };
        // 131,072 weights in 4 bits have 2,048 scales of a byte, and these 8 of four.
        let base = 131_072 / 2 + 2048 + 32 + 2 * (300_000 - 131_072);
        let bytes = |memory: &RankMemory| memory.parts.iter().map(|part| part.bytes).collect::<Vec<_>>();
        let moments = 2 * (51_200 + 200 * 4);
        let memory = RankMemory::new(&policy, None, None, kept);
        assert_eq!(bytes(&memory), [6 * 51_200 + base, 4 * 51_200, moments]);
        let offloads = Offloads { moments: true, reference: false };
        let memory = RankMemory::new(&policy, None, Some(&sizes(256)), Kept { offloads, ..kept });
        assert_eq!(bytes(&memory), [6 * 51_200 + base, 4 * 51_200, 10 * 256]);
        assert_eq!(memory.host, moments + 2 * (256 + 4));
        let plain = Kept { base: LoraBase::Dtype, moments: MomentFormat::F32, ..kept };
        assert_eq!(
            bytes(&RankMemory::new(&policy, None, None, plain)),
            [6 * 51_200 + 600_000, 4 * 51_200, 8 * 51_200]
        );
    }

    #[test]
    fn parts_are_bytes_times_parameters_over_ranks() {
        let kept = Kept {
            ranks: 1,
            rounds: true,
            adapter: None,
            base: LoraBase::Dtype,
            moments: MomentFormat::F32,
            teachers: 0,
            offloads: Offloads::default(),
            sends_weights: false,
        };
        let reference = Offloads { reference: true, moments: false };
        let of = |kept| RankMemory::new(&sizes(1000), Some(&sizes(10)), Some(&sizes(100)), kept);
        let bytes = |memory: &RankMemory| memory.parts.iter().map(|part| part.bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&of(kept)), [6000, 4000, 8000, 20, 1800]);
        assert_eq!(bytes(&of(Kept { ranks: 4, ..kept })), [1000, 1000, 2000, 5, 400]);
        assert_eq!(bytes(&of(Kept { rounds: false, ..kept })), [4000, 4000, 8000, 40, 1600]);
        let adapted = of(Kept { adapter: Some(50), ..kept });
        assert_eq!(bytes(&adapted), [6 * 50 + 2000, 200, 400, 20, 1800]);
        let elsewhere = of(Kept { offloads: reference, sends_weights: true, ..kept });
        assert_eq!((bytes(&elsewhere).len(), elsewhere.host), (4, 20 + 2000));
        assert_eq!(elsewhere.total(), 6000 + 4000 + 8000 + 1800);
        // Teachers are kept as the reference is.
        assert_eq!(bytes(&of(Kept { teachers: 7, ..kept })), [6000, 4000, 8000, 20, 14, 1800]);
        let taught = of(Kept { teachers: 7, offloads: reference, ..kept });
        assert_eq!((taught.has("teachers"), taught.host), (false, 20 + 14));
    }

    #[test]
    fn an_option_is_found_in_both_forms() {
        let words: Vec<String> = ["--a", "1", "--b=2", "--ab", "3", "--c_d=4", "--b", "5", "--e", "--f=x"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!((option(&words, "--a"), option(&words, "--c-d")), (Some("1"), Some("4")));
        assert_eq!(option(&words, "--b"), Some("5"), "the last counts");
        assert_eq!((option(&words, "--e"), option(&words, "--g")), (Some(""), None));
        let read = ["8192", "8k", "8K", "1m", "0", "-1", "auto", "25.6k"].map(read_count);
        assert_eq!(read, [Some(8192), Some(8000), Some(8192), Some(1_000_000), None, None, None, None]);
    }
}
