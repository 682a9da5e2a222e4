//! The checkpoints of `tests/golden/hf` against `transformers` and PyTorch: logits, log-probabilities,
//! entropies, gradients, AdamW.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and compares what must be exact")]

use serde_json::{Map, Value};
use tamis_core::random::{Key, Purpose};
use tamis_golden::{folder, load, numbers};
use tamis_model::{
    AdamW, AdamWConfig, BatchGenerator, Coefficients, GenerationRequest, GeneratorSettings, Gradients, Model,
    PassOptions, SamplingParams, Sequence, Threads, Workspace, forward_backward, gradient_norm, logits,
    score,
};

/// Every checkpoint of the folder: its name, model and expected values.
fn checkpoints() -> Vec<(String, Model, Value)> {
    let folder = folder().join("hf");
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| folder.join(name).join("expected.json.gz").exists() && name != "tokenizer")
        .collect();
    names.sort();
    assert!(!names.is_empty());
    let read =
        |name: &String| Model::load(&folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    names.iter().map(|name| (name.clone(), read(name), load(&format!("hf/{name}/expected")))).collect()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

/// Largest difference relative to the largest expected value.
#[track_caller]
fn assert_near(what: &str, actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let difference = (f64::from(a) - e).abs();
        assert!(
            difference <= tolerance * largest,
            "{what}[{i}]: got {a}, expected {e}, off by {:e} of {largest}",
            difference / largest
        );
    }
}

#[test]
fn logits_logprobs_and_entropies() {
    let threads = Threads::new(2);
    for (name, model, expected) in checkpoints() {
        let mut workspace = Workspace::default();
        let size = model.config().vocab_size;
        for (i, sequence) in expected["sequences"].as_array().unwrap().iter().enumerate() {
            let what = |field: &str| format!("{name} sequence {i} {field}");
            let tokens = tokens(&sequence["tokens"]);
            let all = logits(&threads, &model, &mut workspace, &tokens).unwrap();
            assert_near(&what("logits_first"), &all[..size], &numbers(&sequence["logits_first"]), 1e-5);
            let last = &all[all.len() - size..];
            assert_near(&what("logits_last"), last, &numbers(&sequence["logits_last"]), 1e-5);
            if tokens.len() < 2 {
                continue;
            }
            let rows = [Sequence { tokens: &tokens, start: 1 }];
            let scores = score(&threads, &model, &mut workspace, &rows, 1.0).unwrap();
            let logprobs = numbers(&sequence["next_token_logprobs"]);
            assert_near(&what("logprobs"), scores.logprobs.values(), &logprobs, 1e-5);
            let entropies = &numbers(&sequence["entropy"])[..tokens.len() - 1];
            assert_near(&what("entropy"), scores.entropies.values(), entropies, 1e-5);
        }
    }
}

#[test]
fn gradients_and_three_steps_of_adamw() {
    let threads = Threads::new(2);
    let config =
        AdamWConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, decay_norms_and_biases: true };
    for (name, mut model, expected) in checkpoints() {
        let training = &expected["training"];
        let what = training["what"].as_str().unwrap();
        assert!(
            what.ends_with(
                "clip_grad_norm 1.0 over all parameters; AdamW lr 1e-3 betas .9 .999 eps 1e-8 \
             weight_decay 0.01 on every parameter"
            ),
            "{what}"
        );
        let rows: Vec<Vec<u32>> = training["sequences"].as_array().unwrap().iter().map(tokens).collect();
        let sequences: Vec<_> = rows.iter().map(|tokens| Sequence { tokens, start: 1 }).collect();
        let coefs: Vec<f32> =
            training["coefs"].as_array().unwrap().iter().flat_map(numbers).map(|x| x as f32).collect();
        let mut workspace = Workspace::default();
        let mut optimizer = AdamW::new(&model, config);
        let mut compared = 0;
        for (step, expected) in training["steps"].as_array().unwrap().iter().enumerate() {
            let mut gradients = Gradients::new(&model);
            let mut objective = 0.0;
            forward_backward(
                &threads,
                &model,
                &mut workspace,
                &sequences,
                PassOptions::default(),
                &mut gradients,
                |scores| {
                    let products = scores.logprobs.values().iter().zip(&coefs);
                    objective = products.map(|(&l, &c)| f64::from(l) * f64::from(c)).sum();
                    Coefficients { logprob: coefs.clone(), entropy: None }
                },
            )
            .unwrap();
            let wanted = expected["objective"].as_f64().unwrap();
            assert!(
                (objective - wanted).abs() <= 1e-4 * wanted.abs(),
                "{name} step {step}: {objective} {wanted}"
            );
            let norm = gradient_norm(&threads, &gradients);
            if let Some(clipped) = expected["clipped_grad"].as_object() {
                gradients.scale((1.0 / (norm + 1e-6)).min(1.0) as f32);
                check_tensors(&format!("{name} step {step} gradient"), gradients.tensors(), clipped);
                gradients.scale((norm + 1e-6).max(1.0) as f32);
            }
            let report = optimizer.step(&threads, &mut model, &gradients, 1e-3, Some(1.0));
            let wanted = expected["grad_norm"].as_f64().unwrap();
            assert!((norm - wanted).abs() <= 1e-4 * wanted, "{name} step {step}: {norm} {wanted}");
            assert!(!report.skipped);
            if let Some(after) = expected["param_after"].as_object() {
                check_tensors(&format!("{name} after step {step}"), model.tensors(), after);
                compared += 1;
            }
        }
        assert!(compared > 0, "{name}: no weights to compare with");
    }
}

fn check_tensors<'a>(
    what: &str,
    tensors: impl Iterator<Item = (&'a str, &'a [usize], Vec<f32>)>,
    expected: &Map<String, Value>,
) {
    let tensors: Vec<_> = tensors.collect();
    assert_eq!(tensors.len(), expected.len(), "{what}");
    for (name, shape, values) in tensors {
        check_tensor(&format!("{what} of {name}"), shape, &values, &expected[name]);
    }
}

/// Norm and first values of a tensor, to 1e-4 of its largest value.
fn check_tensor(what: &str, shape: &[usize], values: &[f32], expected: &Value) {
    if let Some(expected) = expected["shape"].as_array() {
        let expected: Vec<usize> = expected.iter().map(|n| n.as_u64().unwrap() as usize).collect();
        assert_eq!(shape, expected, "{what}");
    }
    let norm = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let wanted = expected["norm"].as_f64().unwrap();
    assert!((norm - wanted).abs() <= 1e-4 * wanted, "{what}: norm {norm}, expected {wanted}");
    let largest = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    for (i, (&value, wanted)) in values.iter().zip(numbers(&expected["first8"])).enumerate() {
        let difference = (f64::from(value) - wanted).abs();
        assert!(difference <= 1e-4 * f64::from(largest), "{what}[{i}]: {value} {wanted} (largest {largest})");
    }
}

#[test]
fn greedy_continuations() {
    let threads = Threads::new(2);
    for (name, model, expected) in checkpoints() {
        let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
        let sequences = expected["sequences"].as_array().unwrap();
        for sequence in sequences {
            let continuation = tokens(&sequence["greedy_continuation"]);
            let params = SamplingParams {
                greedy: true,
                max_new_tokens: continuation.len(),
                ..SamplingParams::default()
            };
            let (prompt, keys) = (tokens(&sequence["tokens"]), vec![Key::new(1, Purpose::Rollout)]);
            generator.submit(GenerationRequest { prompt, keys, params, stop: None, mask: None }).unwrap();
        }
        let mut completions = generator.run(&threads, &model);
        completions.sort_by_key(|completion| completion.request);
        for (completion, sequence) in completions.iter().zip(sequences) {
            let expected = tokens(&sequence["greedy_continuation"]);
            assert_eq!(completion.tokens, expected, "{name} {:?}", completion.request);
        }
        assert_eq!(completions.len(), sequences.len());
    }
}
