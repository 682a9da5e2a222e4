//! Memory of parameters: their number, times the bytes kept for each, divided by the ranks that share them.
//!
//! | kept for each parameter | bytes |
//! |---|---|
//! | weights that learn | 4; 2 more for the rounded copy if one rank computes in bf16 |
//! | weights that do not learn (below an adapter, the reference, teachers) | 2 in bf16, 4 in f32 |
//! | gradients | 4 |
//! | AdamW's two moments | 8 |
//!
//! Activations, logits, gathered layers, CUDA and a server's cache come on top. They are not counted.

use serde::Serialize;
use tamis_config::{BackendKind, Config};

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
    /// Number of parameters of the teachers that the learner loads.
    pub teachers: u64,
    /// Whether the reference and the teachers are offloaded to main memory.
    pub offloads_reference: bool,
    /// The first rank sends weights over NCCL. It keeps a copy of them in main memory.
    pub sends_weights: bool,
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
        let frozen = if kept.adapter.is_some() { policy.num_parameters } else { 0 };
        let of_reference = reference.map_or(0, |reference| number * reference.num_parameters);
        let of_teachers = number * kept.teachers;
        let frozen_parts = [of_reference, of_teachers];
        let on_gpu = if kept.offloads_reference { [0; 2] } else { frozen_parts };
        let off_gpu = if kept.offloads_reference { of_reference + of_teachers } else { 0 };
        let part = |name, bytes| MemoryPart { name, bytes: each(bytes) };
        let mut parts = vec![
            part("weights", (4 + copies) * learned + number * frozen),
            part("gradients", 4 * learned),
            part("moments", 8 * learned),
            part("reference", on_gpu[0]),
            part("teachers", on_gpu[1]),
            part("critic", critic.map_or(0, |critic| (16 + copies) * critic.num_parameters)),
        ];
        parts.retain(|part| part.bytes > 0);
        let sent = if kept.sends_weights { number * policy.num_parameters } else { 0 };
        Self { parts, host: sent + off_gpu }
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
    use super::*;

    fn sizes(num_parameters: u64) -> ModelSizes {
        ModelSizes { num_parameters, served_bytes: 2, outside: 0, hidden: 0, vocab: 0, linears: Vec::new() }
    }

    #[test]
    fn parts_are_bytes_times_parameters_over_ranks() {
        let kept = Kept {
            ranks: 1,
            rounds: true,
            adapter: None,
            teachers: 0,
            offloads_reference: false,
            sends_weights: false,
        };
        let of = |kept| RankMemory::new(&sizes(1000), Some(&sizes(10)), Some(&sizes(100)), kept);
        let bytes = |memory: &RankMemory| memory.parts.iter().map(|part| part.bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&of(kept)), [6000, 4000, 8000, 20, 1800]);
        assert_eq!(bytes(&of(Kept { ranks: 4, ..kept })), [1000, 1000, 2000, 5, 400]);
        assert_eq!(bytes(&of(Kept { rounds: false, ..kept })), [4000, 4000, 8000, 40, 1600]);
        let adapted = of(Kept { adapter: Some(50), ..kept });
        assert_eq!(bytes(&adapted), [6 * 50 + 2000, 200, 400, 20, 1800]);
        let elsewhere = of(Kept { offloads_reference: true, sends_weights: true, ..kept });
        assert_eq!((bytes(&elsewhere).len(), elsewhere.host), (4, 20 + 2000));
        assert_eq!(elsewhere.total(), 6000 + 4000 + 8000 + 1800);
        // Teachers are kept as the reference is.
        assert_eq!(bytes(&of(Kept { teachers: 7, ..kept })), [6000, 4000, 8000, 20, 14, 1800]);
        let taught = of(Kept { teachers: 7, offloads_reference: true, ..kept });
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
