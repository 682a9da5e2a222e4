//! Speed of the native engine: one JSON line per measurement, `{"what", "model", "tokens_per_s", ...}`.
//!
//! `cargo run --release -p tamis-model --example engine_speed -- [threads] [seconds per measurement] [filter]`
//!
//! `train` counts every token of the sequences and includes the AdamW step; `generate` counts generated tokens.
//! `peak_share` is the share of the peak that the same kernel reaches on operands in cache, counting 2 operations per weight
//! (6 in training) and those of attention.
#![allow(clippy::print_stdout, reason = "a program that prints its measurements")]
#![allow(missing_docs, reason = "a program")]

use std::time::Instant;

use tamis_core::random::{Key, Purpose};
use tamis_model::{
    AdamW, AdamWConfig, Architecture, Coefficients, Generator, GeneratorSettings, Gradients, Model,
    ModelConfig, PassOptions, Request, SamplingParams, Sequence, Threads, Workspace, forward_backward,
    measure_peak,
};

fn small() -> ModelConfig {
    ModelConfig::new(Architecture::Qwen2, 48, 128, 512, 4, 4, 512)
}

fn mid() -> ModelConfig {
    ModelConfig::new(Architecture::Qwen2, 8192, 512, 1536, 8, 8, 1024)
}

/// Runs until the time is over, after one run to warm up; units of work per second, best run.
fn best_rate(seconds: f64, units: f64, mut run: impl FnMut()) -> f64 {
    run();
    let (begin, mut best) = (Instant::now(), 0.0f64);
    while begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        run();
        best = best.max(units / start.elapsed().as_secs_f64());
    }
    best
}

/// Operations of one token's forward pass with `context` positions before it.
fn operations(config: &ModelConfig, parameters: usize, context: f64) -> f64 {
    let embedding = if config.tie_word_embeddings { 0 } else { config.vocab_size * config.hidden_size };
    let attention = 4.0 * (config.num_layers * config.num_heads * config.head_dim) as f64 * context;
    2.0 * (parameters - embedding) as f64 + attention
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let num_threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let filter = arguments.next().unwrap_or_default();
    let threads = Threads::new(num_threads);
    let peak = measure_peak(&threads);
    println!(
        r#"{{"what":"peak","threads":{num_threads},"level":"{:?}","gflops":{:.1}}}"#,
        threads.level(),
        peak / 1e9
    );
    for (name, config, batch, len) in [("small", small(), 32, 64), ("mid", mid(), 16, 64)] {
        let key = Key::new(1, Purpose::Init);
        let Ok(mut model) = Model::init(config.clone(), key) else { return };
        let parameters = model.num_parameters();
        let report = |what: &str, rate: f64, operations: f64, more: &str| {
            let share = rate * operations / peak;
            println!(
                r#"{{"what":"{what}","model":"{name}","tokens_per_s":{rate:.0},"peak_share":{share:.3},"parameters":{parameters}{more}}}"#
            );
        };
        let token = |i: u64, t: u64| key.with(i).below(t, config.vocab_size as u64) as u32;
        if "train".contains(&filter) {
            let rows: Vec<Vec<u32>> = (0..batch).map(|i| (0..len).map(|t| token(i, t)).collect()).collect();
            let sequences: Vec<_> = rows.iter().map(|tokens| Sequence { tokens, start: 1 }).collect();
            let mut workspace = Workspace::default();
            let mut gradients = Gradients::new(&model);
            let mut optimizer = AdamW::new(&model, AdamWConfig::default());
            let rate = best_rate(seconds, (batch * len) as f64, || {
                gradients.clear();
                let result = forward_backward(
                    &threads,
                    &model,
                    &mut workspace,
                    &sequences,
                    PassOptions::default(),
                    &mut gradients,
                    |scores| Coefficients {
                        logprob: vec![-1e-3; scores.logprobs.num_values()],
                        entropy: None,
                    },
                );
                assert!(result.is_ok());
                optimizer.step(&threads, &mut model, &gradients, 1e-4, Some(1.0));
            });
            let more = format!(r#","sequences":{batch},"length":{len}"#);
            report("train", rate, 3.0 * operations(&config, parameters, len as f64 / 2.0), &more);
        }
        for (what, prompts, samples, prompt_len, new) in
            [("generate_separate", 64, 1, 32, 64), ("generate_groups", 16, 16, 32, 64)]
        {
            if !what.contains(&filter) {
                continue;
            }
            let settings = GeneratorSettings { max_sequences: 256, ..GeneratorSettings::default() };
            let mut generator = Generator::new(&config, settings);
            let rate = best_rate(seconds, f64::from(prompts * samples * new), || {
                for i in 0..prompts as u64 {
                    let request = Request {
                        prompt: (0..prompt_len).map(|t| token(i, t)).collect(),
                        keys: (0..samples as u64).map(|sample| key.with(i).with(sample)).collect(),
                        params: SamplingParams { max_new_tokens: new as usize, ..SamplingParams::default() },
                        stop: None,
                    };
                    assert!(generator.submit(request).is_ok());
                }
                assert_eq!(generator.run(&threads, &model).len() as i32, prompts * samples);
            });
            let more = format!(
                r#","prompts":{prompts},"samples":{samples},"prompt_length":{prompt_len},"new_tokens":{new}"#
            );
            report(
                what,
                rate,
                operations(&config, parameters, prompt_len as f64 + f64::from(new) / 2.0),
                &more,
            );
        }
    }
}
