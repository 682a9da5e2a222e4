//! Speed of the native engine: one JSON line per measurement, `{"what", "model", "tokens_per_s", ...}`.
//!
//! `cargo run --release -p tamis-bench --example engine_speed -- [threads] [seconds per measurement]
//! [filter] [avx2]`
//!
//! With `avx2`, the kernels for processors without AVX-512 are measured, also on one that has it.
//!
//! A filter selects measurements by parts of their name and model (`train`, `generate_grouped small`). Two
//! are only measured if they are named. `products`: matrix products of a layer's shapes, and a thread's
//! reading rate from each cache. `long`: training passes over one sequence of 4,096 and of 16,384 tokens, and
//! 16 samples after such a prompt; there attention is most of the work. `activations_mib` is the memory of a
//! training pass for its rows and buffers. In `long`, most of the generation time is the prompt's, so its
//! share of the peak means more than its tokens per second.
//!
//! `train` counts every token of the sequences and includes the AdamW step; `generate` counts generated
//! tokens. `peak_share` is the share of the peak, which is the speed of the same kernel on operands in cache.
//! It is the number of operations of a repetition (2 per weight, 6 in training, and those of attention),
//! divided by those that the peak would have done. The peak is measured before and after each repetition,
//! because the clock of a shared machine varies. The result is the median of the repetitions;
//! `best_tokens_per_s` is the fastest, which other programs disturb least. The first line has the highest
//! peak, to which the shares of `products` refer.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its measurements")]
#![allow(missing_docs, reason = "a program")]

use std::time::Instant;

use tamis_core::random::{Key, Purpose};
use tamis_model::{
    AdamW, AdamWConfig, Architecture, BatchGenerator, Coefficients, GenerationRequest, GeneratorSettings,
    Gradients, Model, PassOptions, ProductShape, SamplingParams, Sequence, SimdLevel, Threads,
    TransformerConfig, Workspace, forward_backward, measure_peak, measure_product,
};

/// Measurements for one model; the same as in `bench/peers/torch_engine.py`, which `bench/run.py` gives these
/// numbers.
struct Case {
    name: &'static str,
    config: TransformerConfig,
    /// Training sequences, evenly spread from the shortest to the longest.
    sequences: usize,
    lengths: (usize, usize),
    /// Prompts of `generate_separate` (one sample each) and of `generate_grouped` (16 samples each).
    prompts: (usize, usize),
}

const PROMPT: usize = 32;
const NEW: usize = 32;

/// Rows, columns, chain lengths and number of matrices of products: of the small model, of the mid one and of
/// a layer of 576 x 1536, each with the rows of a training pass and of a generation step. The last ones are
/// steps with several matrices in turn: as many as the small model has (3 MiB), and more than fit into the
/// caches.
const PRODUCTS: [(usize, usize, usize, usize); 13] = [
    (512, 128, 128, 1),
    (512, 384, 128, 1),
    (512, 128, 384, 1),
    (24, 384, 128, 1),
    (1536, 512, 512, 1),
    (1536, 512, 1408, 1),
    (64, 1408, 512, 1),
    (1536, 1536, 576, 1),
    (1536, 576, 1536, 1),
    (64, 1536, 576, 1),
    (24, 384, 128, 16),
    (64, 1408, 512, 40),
    (64, 1536, 576, 40),
];

fn llama(vocab: usize, hidden: usize, intermediate: usize, layers: usize, heads: usize) -> TransformerConfig {
    TransformerConfig::new(Architecture::Llama, vocab, hidden, intermediate, layers, heads, 256)
}

fn cases() -> [Case; 2] {
    [
        Case {
            name: "small",
            config: llama(64, 128, 384, 4, 4),
            sequences: 256,
            lengths: (32, 64),
            prompts: (256, 16),
        },
        Case {
            name: "mid",
            config: llama(8192, 512, 1408, 8, 8),
            sequences: 32,
            lengths: (64, 128),
            prompts: (64, 4),
        },
    ]
}

/// Units of work per second.
struct Rates {
    median: f64,
    best: f64,
    /// Relative to the peak at that time, by operations; the median.
    per_operation: f64,
}

/// Tries of each peak measurement between repetitions: a twentieth of a second.
const PEAK_TRIES: usize = 5;

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn best(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

/// Runs once to warm up, then at least 5 times and until the time is over.
fn measure(threads: &Threads, seconds: f64, units: f64, mut run: impl FnMut()) -> Rates {
    run();
    let peak = || median(measure_peak(threads, PEAK_TRIES).into_iter());
    let (begin, mut rates, mut peaks) = (Instant::now(), Vec::new(), vec![peak()]);
    while rates.len() < 5 || begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        run();
        rates.push(units / start.elapsed().as_secs_f64());
        peaks.push(peak());
    }
    Rates {
        median: median(rates.iter().copied()),
        best: best(&rates),
        per_operation: median(
            rates.iter().zip(peaks.windows(2)).map(|(rate, around)| 2.0 * rate / (around[0] + around[1])),
        ),
    }
}

/// Bytes per second of one thread that reads `mib` MiB repeatedly, line by line; best of twenty.
fn read_rate(mib: usize) -> f64 {
    let values = vec![1.0f32; mib << 18];
    let mut best = 0.0f64;
    for _ in 0..20 {
        let start = Instant::now();
        let sum: f32 = values.iter().step_by(16).sum();
        std::hint::black_box(sum);
        best = best.max((mib << 20) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

/// Operations of one token's forward pass with `context` positions before it.
fn operations(config: &TransformerConfig, parameters: usize, context: f64) -> f64 {
    let embedding = if config.tie_word_embeddings { 0 } else { config.vocab_size * config.hidden_size };
    let attention = 4.0 * (config.num_layers * config.num_heads * config.head_dim) as f64 * context;
    2.0 * (parameters - embedding) as f64 + attention
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let num_threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let filter = arguments.next().unwrap_or_default();
    let level = match arguments.next().as_deref() {
        Some("avx2") => SimdLevel::Avx2,
        None => SimdLevel::detect(),
        Some(other) => {
            eprintln!("engine_speed: the fourth argument is avx2 or nothing, not `{other}`");
            std::process::exit(2)
        }
    };
    let threads = Threads::with_level(num_threads, level);
    let peak = best(&measure_peak(&threads, 10));
    println!(
        r#"{{"what":"peak","threads":{num_threads},"level":"{:?}","gflops":{:.1}}}"#,
        threads.level(),
        peak / 1e9
    );
    if filter == "products" {
        for (m, n, k, matrices) in PRODUCTS {
            let rate = best(&measure_product(&threads, ProductShape { m, n, k }, matrices, 10));
            println!(
                r#"{{"what":"product","m":{m},"n":{n},"k":{k},"matrices":{matrices},"gflops":{:.1},"peak_share":{:.3}}}"#,
                rate / 1e9,
                rate / peak
            );
        }
        for mib in [1, 8, 32] {
            println!(r#"{{"what":"read","mib":{mib},"gbytes_per_s":{:.1}}}"#, read_rate(mib) / 1e9);
        }
        return;
    }
    if filter == "long" {
        for tokens in [4096, 16_384] {
            let mut config = llama(64, 128, 384, 4, 4);
            config.max_position_embeddings = tokens + NEW;
            let case =
                Case { name: "small", config, sequences: 1, lengths: (tokens, tokens), prompts: (0, 0) };
            train(&case, &threads, seconds, "train_long", 1);
            generate(&case, &threads, seconds, "generate_long", (1, 16), tokens);
        }
        return;
    }
    for case in cases() {
        let is_asked = |what: &str| format!("{what} {}", case.name).contains(&filter);
        for (what, samples) in [("train", 1), ("train_grouped", 8)] {
            if is_asked(what) {
                train(&case, &threads, seconds, what, samples);
            }
        }
        for (what, prompts, samples) in
            [("generate_separate", case.prompts.0, 1), ("generate_grouped", case.prompts.1, 16)]
        {
            if is_asked(what) {
                generate(&case, &threads, seconds, what, (prompts, samples), PROMPT);
            }
        }
    }
}

/// `samples` consecutive sequences share their first half, which is not scored.
fn train(case: &Case, threads: &Threads, seconds: f64, what: &str, samples: usize) {
    let Some((mut model, token)) = start(case) else { return };
    let (shortest, longest) = case.lengths;
    let lengths =
        (0..case.sequences).map(|i| shortest + i * (longest - shortest) / (case.sequences - 1).max(1));
    let prompt = if samples > 1 { shortest / 2 } else { 1 };
    let rows: Vec<Vec<u32>> = lengths
        .enumerate()
        .map(|(i, len)| {
            (0..len).map(|t| if t < prompt { token(i / samples * samples, t) } else { token(i, t) }).collect()
        })
        .collect();
    let sequences: Vec<_> = rows.iter().map(|tokens| Sequence { tokens, start: prompt }).collect();
    let tokens: usize = rows.iter().map(Vec::len).sum();
    // The mean number of positions that a token attends to, itself counted half.
    let context = rows.iter().map(|row| (row.len() * row.len()) as f64 / 2.0).sum::<f64>() / tokens as f64;
    let mut workspace = Workspace::default();
    let mut gradients = Gradients::new(&model);
    let mut optimizer = AdamW::new(&model, AdamWConfig::default());
    let rates = measure(threads, seconds, tokens as f64, || {
        gradients.clear();
        let result = forward_backward(
            threads,
            &model,
            &mut workspace,
            &sequences,
            PassOptions::default(),
            &mut gradients,
            |scores| Coefficients { logprob: vec![-1e-3; scores.logprobs.num_values()], entropy: None },
        );
        assert!(result.is_ok());
        optimizer.step(threads, &mut model, &gradients, 1e-4, Some(1.0));
    });
    let more = format!(
        r#","tokens":{tokens},"sequences":{},"shortest":{shortest},"longest":{longest},"activations_mib":{:.1}"#,
        case.sequences,
        workspace.bytes() as f64 / f64::from(1 << 20)
    );
    report(case, what, &rates, 3.0 * operations(&case.config, model.num_parameters(), context), &more);
}

fn generate(
    case: &Case,
    threads: &Threads,
    seconds: f64,
    what: &str,
    (prompts, samples): (usize, usize),
    prompt_length: usize,
) {
    let Some((model, token)) = start(case) else { return };
    let settings = GeneratorSettings { max_sequences: 256, ..GeneratorSettings::default() };
    let mut generator = BatchGenerator::new(&case.config, settings);
    let generated = prompts * samples * NEW;
    let mut numbers = 0..;
    let rates = measure(threads, seconds, generated as f64, || {
        // Different prompts each time: a prefix shared with the last prompts is not computed again.
        for i in numbers.by_ref().take(prompts) {
            let key = Key::new(1, Purpose::Init).with(i as u64);
            let request = GenerationRequest {
                prompt: (0..prompt_length).map(|t| token(i, t)).collect(),
                keys: (0..samples as u64).map(|sample| key.with(sample)).collect(),
                params: SamplingParams { max_new_tokens: NEW, ..SamplingParams::default() },
                stop: None,
                mask: None,
            };
            assert!(generator.submit(request).is_ok());
        }
        assert_eq!(generator.run(threads, &model).len(), prompts * samples);
        assert_eq!(generator.num_shared_tokens(), 0);
    });
    let more = format!(
        r#","tokens":{generated},"prompts":{prompts},"samples":{samples},"prompt_length":{prompt_length},"new_tokens":{NEW}"#
    );
    // Prompt tokens are work too: each prompt is computed once.
    let of_context = |context: f64| operations(&case.config, model.num_parameters(), context);
    let per_prompt = of_context(prompt_length as f64 / 2.0) * prompt_length as f64;
    let per_token = of_context((prompt_length + NEW / 2) as f64);
    let operations = per_token + per_prompt / (samples * NEW) as f64;
    report(case, what, &rates, operations, &more);
}

/// A model from random weights, and the token at position `t` of sequence `i`.
fn start(case: &Case) -> Option<(Model, impl Fn(usize, usize) -> u32)> {
    let key = Key::new(1, Purpose::Init);
    let vocab = case.config.vocab_size as u64;
    let model = Model::init(case.config.clone(), key).ok()?;
    Some((model, move |i, t| key.with(i as u64).below(t as u64, vocab) as u32))
}

/// Prints one measurement, given its operations per token.
fn report(case: &Case, what: &str, rates: &Rates, operations: f64, more: &str) {
    let Rates { median, best, per_operation } = rates;
    let TransformerConfig {
        hidden_size,
        num_layers,
        num_heads,
        num_kv_heads,
        intermediate_size,
        vocab_size,
        ..
    } = case.config;
    println!(
        r#"{{"what":"{what}","model":"{}","tokens_per_s":{median:.0},"peak_share":{:.3},"best_tokens_per_s":{best:.0},"hidden":{hidden_size},"layers":{num_layers},"heads":{num_heads},"kv_heads":{num_kv_heads},"intermediate":{intermediate_size},"vocab":{vocab_size}{more}}}"#,
        case.name,
        per_operation * operations
    );
}
