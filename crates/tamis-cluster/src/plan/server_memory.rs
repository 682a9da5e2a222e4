//! Memory of an inference server on each of its GPUs.

use serde::Serialize;
use tamis_config::{BackendKind, Config};

use super::model_sizes::ModelSizes;

/// Part of a GPU's memory that vLLM takes where `--gpu-memory-utilization` is not given, and about what SGLang
/// chooses (`--mem-fraction-static`).
const SHARE: f64 = 0.9;
/// What a server takes beside weights and cache: a pass over a batch, CUDA graphs, the context. An assumption,
/// for none has been met.
const BESIDE: u64 = 2 << 30;
/// What a server that sleeps leaves on its GPU, likewise.
pub(super) const ASLEEP: u64 = 3 << 29;

/// Memory of a server on each of its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerMemory {
    /// The part of the GPU that it takes.
    pub share: f64,
    /// Its part of the weights, bytes.
    pub weights: u64,
    /// What it takes beside weights and cache.
    pub beside: u64,
    /// Tokens of a sequence at its longest.
    pub longest: u64,
    /// Bytes of the cache of such a sequence; `None` where the model does not say enough of itself.
    pub cache_per_sequence: Option<u64>,
    /// Tokens of the sequence that it must have room for. vLLM starts with room for the longest that it takes
    /// alone: of `--max-model-len`, or else of `max_position_embeddings`, whose scaling is not counted.
    pub must_hold: u64,
    /// Bytes of the cache of that one.
    pub least_cache: u64,
    /// Most tokens of a sequence that it takes, where `rollout.launch.args` says so.
    pub max_length: Option<u64>,
    /// Most sequences at once, where `rollout.launch.args` says so.
    pub max_num_seqs: Option<u64>,
    /// Options in `rollout.launch.args` that change its memory in ways that are not counted here.
    pub uncounted: Vec<String>,
}

/// The options of an engine that say how much memory it takes.
pub(super) struct Options {
    /// Its part of a GPU.
    pub(super) share: &'static str,
    /// Most tokens of a sequence.
    pub(super) length: &'static str,
    /// Most sequences at once.
    pub(super) sequences: &'static str,
    /// What changes its memory and is not read.
    uncounted: &'static [&'static str],
}

const VLLM: Options = Options {
    share: "--gpu-memory-utilization",
    length: "--max-model-len",
    sequences: "--max-num-seqs",
    uncounted: &[
        "--config",
        "--cpu-offload-gb",
        "--data-parallel-size",
        "--disable-sliding-window",
        "--hf-overrides",
        "--kv-cache-memory-bytes",
        "--num-gpu-blocks-override",
        "--pipeline-parallel-size",
        "--speculative-config",
        "--tensor-parallel-size",
        "-dp",
        "-pp",
        "-q",
        "-tp",
    ],
};

const SGLANG: Options = Options {
    share: "--mem-fraction-static",
    length: "--context-length",
    sequences: "--max-running-requests",
    uncounted: &[
        "--config",
        "--cpu-offload-gb",
        "--data-parallel-size",
        "--dp",
        "--dp-size",
        "--enable-dp-attention",
        "--json-model-override-args",
        "--max-total-tokens",
        "--pipeline-parallel-size",
        "--pp-size",
        "--speculative-algorithm",
        "--tensor-parallel-size",
        "--tp",
        "--tp-size",
    ],
};

impl Options {
    /// Of the servers that a configuration starts.
    pub(super) fn of(config: &Config) -> &'static Self {
        if config.rollout.backend == BackendKind::Sglang { &SGLANG } else { &VLLM }
    }
}

impl ServerMemory {
    /// Of the servers that a configuration starts. `published`: bytes of a weight as it is published, where that
    /// is not what the model's files say.
    ///
    /// `--quantization fp8` holds the weights of linear layers, and `--kv-cache-dtype fp8` the cache, in a
    /// byte each. vLLM alone forgets what a window has passed: SGLang keeps a part of it
    /// (`--swa-full-tokens-ratio`).
    pub fn new(config: &Config, sizes: &ModelSizes, published: Option<u64>) -> Self {
        let launch = config.rollout.launch.as_ref();
        let parallel = launch.map_or(1, |launch| launch.tensor_parallel) as u64;
        let (options, is_vllm) = (Options::of(config), config.rollout.backend != BackendKind::Sglang);
        let mut given = Given { words: launch.map_or(&[], |launch| &launch.args), uncounted: Vec::new() };
        let share = given.read(options.share, |text| text.parse().ok());
        let max_length = given.read(options.length, read_count);
        let max_num_seqs = given.read(options.sequences, read_count);
        let number = published.or(sizes.shape.as_ref().map(|shape| shape.served_bytes)).unwrap_or(2);
        let number = given.read("--dtype", |text| bytes_of(text, number)).unwrap_or(number);
        let of_cache = given.read("--kv-cache-dtype", |text| match text {
            _ if text.starts_with("fp8") && text != "fp8_ds_mla" => Some(1),
            _ => bytes_of(text, number),
        });
        let of_cache = of_cache.unwrap_or(number);
        let of_linear = given.read("--quantization", |text| (text == "fp8").then_some(1)).unwrap_or(number);
        let linear: u64 = sizes.linears.iter().map(|one| one.rows * one.columns * one.count).sum();
        let rest = sizes.num_parameters.saturating_sub(linear);
        let has_windows = is_vllm && given.find("--disable-hybrid-kv-cache-manager").is_none();
        for name in options.uncounted {
            given.uncounted.extend(given.find(name).map(|_| (*name).to_owned()));
        }
        let trajectory = (config.data.max_prompt_length + config.max_completion_length()) as u64;
        let longest = max_length.map_or(trajectory, |most| most.min(trajectory));
        let context = sizes.shape.as_ref().and_then(|shape| shape.context);
        let context = context.filter(|_| given.find(options.length).is_none());
        let must_hold = max_length.or(context).filter(|_| is_vllm).unwrap_or(longest);
        let cache = sizes.shape.as_ref().map(|shape| shape.cache);
        let of_tokens = |tokens: u64| {
            let cache = cache?;
            Some(
                (of_cache * cache.of_sequence(tokens, has_windows))
                    .div_ceil(parallel.min(cache.parts.max(1))),
            )
        };
        Self {
            share: share.unwrap_or(SHARE),
            weights: (of_linear * linear.min(sizes.num_parameters) + number * rest).div_ceil(parallel),
            beside: BESIDE,
            longest,
            cache_per_sequence: of_tokens(longest),
            must_hold,
            least_cache: of_tokens(must_hold).unwrap_or(0),
            max_length,
            max_num_seqs,
            uncounted: given.uncounted,
        }
    }

    /// Bytes of a GPU with so much memory that it takes.
    pub fn taken(&self, memory: u64) -> u64 {
        (memory as f64 * self.share) as u64
    }

    /// Bytes that are left for keys and values.
    pub fn cache(&self, memory: u64) -> u64 {
        self.taken(memory).saturating_sub(self.weights + self.beside)
    }

    /// Sequences at their longest whose keys and values find room at once.
    pub fn sequences(&self, memory: u64) -> Option<u64> {
        self.cache(memory).checked_div(self.cache_per_sequence?)
    }
}

/// The arguments that somebody gives an engine.
struct Given<'a> {
    words: &'a [String],
    /// What was not understood.
    uncounted: Vec<String>,
}

impl<'a> Given<'a> {
    /// The value of an option, as a word of its own or behind `=`, at the last place where it stands, which
    /// is what engines go by; empty where it has none. vLLM takes `_` for `-`.
    fn find(&self, name: &str) -> Option<&'a str> {
        self.words.iter().enumerate().rev().find_map(|(place, word)| {
            let (option, value) = word.split_once('=').map_or((word.as_str(), None), |(o, v)| (o, Some(v)));
            let next = self.words.get(place + 1).map(String::as_str).filter(|next| !next.starts_with("--"));
            (option.replace('_', "-") == name).then(|| value.or(next).unwrap_or(""))
        })
    }

    /// What an option says. One that is not understood is left to the engine, and noted.
    fn read<T>(&mut self, name: &str, understand: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.find(name)?;
        let understood = understand(text);
        if understood.is_none() {
            self.uncounted.push(format!("{name} {text}").trim_end().to_owned());
        }
        understood
    }
}

/// A number as engines take it: `8192`; vLLM's `8k` is 8000 and `8K` 8192.
fn read_count(text: &str) -> Option<u64> {
    let units = [("k", 1000), ("K", 1 << 10), ("m", 1_000_000), ("M", 1 << 20)];
    let with_unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = with_unit.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|&number| number > 0)
}

/// Bytes of a number in a format; `auto` is the one that there is.
fn bytes_of(format: &str, auto: u64) -> Option<u64> {
    match format {
        "auto" => Some(auto),
        "bfloat16" | "bf16" | "float16" | "half" => Some(2),
        "float32" | "float" => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_in_both_forms() {
        let words: Vec<String> = ["--a", "1", "--b=2", "--ab", "3", "--c_d=4", "--b", "5", "--e", "--f=x"]
            .map(str::to_owned)
            .to_vec();
        let mut given = Given { words: &words, uncounted: Vec::new() };
        assert_eq!((given.find("--a"), given.find("--c-d")), (Some("1"), Some("4")));
        assert_eq!(given.find("--b"), Some("5"), "the last counts");
        assert_eq!((given.find("--e"), given.find("--g")), (Some(""), None));
        assert_eq!((given.read("--f", read_count), given.read("--g", read_count)), (None, None));
        assert_eq!(given.read("--a", read_count), Some(1));
        assert_eq!(given.uncounted, ["--f x"]);
    }

    #[test]
    fn numbers_are_read_as_engines_read_them() {
        let read = ["8192", "8k", "8K", "1m", "0", "-1", "auto", "25.6k"].map(read_count);
        assert_eq!(read, [Some(8192), Some(8000), Some(8192), Some(1_000_000), None, None, None, None]);
    }
}
