//! The backward pass of whole models: central differences, thread counts, micro-batches, recomputation; and
//! the laws of the optimizer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and compares what must be exact")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis_core::random::{Key, Purpose};
use tamis_model::{
    AdamW, AdamWConfig, Architecture, Coefficients, Gradients, MemoryEstimate, MemoryPlan, Model,
    PassOptions, Sequence, SequenceError, SimdLevel, Threads, TokenScores, TransformerConfig, Workspace,
    forward_backward, score,
};

mod support;

use support::{assert_near, check_slopes, sequences};

const VOCAB: usize = 37;

fn models() -> Vec<Model> {
    [
        (Architecture::Qwen2, (4, 2), 6, true),
        (Architecture::Qwen3, (2, 1), 18, false),
        (Architecture::Llama, (2, 2), 16, true),
    ]
    .into_iter()
    .map(|(architecture, heads, head_dim, tied)| {
        let mut config = TransformerConfig::new(architecture, VOCAB, 22, 40, 2, heads.0, 64);
        (config.num_kv_heads, config.head_dim, config.tie_word_embeddings) = (heads.1, head_dim, tied);
        config.output_bias = architecture == Architecture::Llama;
        config.qkv_bias = architecture != Architecture::Qwen3;
        config.initializer_range = 0.25;
        Model::init(config, Key::new(9, Purpose::Init)).unwrap()
    })
    .collect()
}

/// Single sequences, then groups with one prompt: members with nothing scored, with a single token, and equal
/// ones; a prompt of one token.
fn rows() -> Vec<(Vec<u32>, usize)> {
    let key = Key::new(4, Purpose::Task);
    let draw = |salt: u64, len: usize| -> Vec<u32> {
        (0..len as u64).map(|t| key.with(salt).below(t, VOCAB as u64) as u32).collect()
    };
    let alone = [(30usize, 3usize), (1, 1), (7, 7), (26, 1), (2, 1)];
    let alone = alone.iter().enumerate().map(|(i, &(len, start))| (draw(i as u64, len), start));
    let groups = [
        (10u64, 18usize, &[(0u64, 1usize), (1, 0), (2, 33), (3, 6), (2, 33)][..]),
        (11, 1, &[(4, 4), (5, 7)]),
    ];
    let groups = groups.iter().flat_map(|&(prompt, len, members)| {
        members.iter().map(move |&(salt, more)| ([draw(prompt, len), draw(20 + salt, more)].concat(), len))
    });
    alone.chain(groups).collect()
}

fn coefficients(first: u64, scores: &TokenScores) -> Coefficients {
    let key = Key::new(8, Purpose::Bootstrap);
    let count = scores.logprobs.num_values() as u64;
    let draw = |salt: u64| (first..first + count).map(|i| key.with(salt).normal(i) as f32).collect();
    Coefficients { logprob: draw(0), entropy: Some(draw(1)) }
}

fn gradients(threads: &Threads, model: &Model, options: PassOptions, cuts: &[usize]) -> Gradients {
    gradients_of(threads, model, &sequences(&rows()), options, cuts)
}

fn gradients_of(
    threads: &Threads,
    model: &Model,
    sequences: &[Sequence],
    options: PassOptions,
    cuts: &[usize],
) -> Gradients {
    let (mut gradients, mut workspace) = (Gradients::new(model), Workspace::default());
    let (mut begin, mut first) = (0, 0);
    for &end in cuts.iter().chain([&sequences.len()]) {
        let part = &sequences[begin..end];
        let answer = |scores: &TokenScores| coefficients(first, scores);
        let result = forward_backward(threads, model, &mut workspace, part, options, &mut gradients, answer);
        first += result.unwrap().logprobs.num_values() as u64;
        begin = end;
    }
    gradients
}

/// Sixty sequences in groups of four, enough for several chunks and shards.
fn many_rows(completion: impl Fn(u64) -> u64) -> Vec<(Vec<u32>, usize)> {
    let key = Key::new(5, Purpose::Task);
    let draw = |salt: u64, len: u64| (0..len).map(move |t| key.with(salt).below(t, VOCAB as u64) as u32);
    (0..60).map(|i| (draw(i / 4, 12).chain(draw(100 + i, completion(i))).collect(), 12)).collect()
}

#[test]
fn gradient_is_the_central_difference() {
    let threads = Threads::new(1);
    let options = PassOptions { temperature: 0.9, ..PassOptions::default() };
    let rows = rows();
    let sequences = sequences(&rows);
    for model in models() {
        let analytic = gradients(&threads, &model, options, &[]);
        let objective = |model: &Model| {
            let scores = score(&threads, model, &mut Workspace::default(), &sequences, 0.9).unwrap();
            let coefs = coefficients(0, &scores);
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
            };
            dot(scores.logprobs.values(), &coefs.logprob)
                + dot(scores.entropies.values(), coefs.entropy.as_deref().unwrap_or(&[]))
        };
        check_slopes(&model, &analytic, objective);
    }
}

/// Stopped before the pass, between forward and backward, or never: a stopped pass has no result, and its
/// buffers serve the next one.
#[test]
fn a_pass_that_is_not_wanted_is_given_up() {
    let rows = rows();
    let sequences = sequences(&rows);
    for (model, recompute) in models().iter().zip([false, true, true]) {
        let threads = Threads::new(2);
        let options = PassOptions { recompute, ..PassOptions::default() };
        let reference = gradients(&threads, model, options, &[]);
        let mut workspace = Workspace::default();
        let mut gradients = Gradients::new(model);
        let stop = Arc::new(AtomicBool::new(false));
        workspace.stop_on(Some(stop.clone()));
        let mut pass = |workspace: &mut Workspace, stops: bool, is_stopped: bool| {
            stop.store(is_stopped, Ordering::Relaxed);
            forward_backward(&threads, model, workspace, &sequences, options, &mut gradients, |scores| {
                assert!(!is_stopped, "the objective is not asked of a pass that was given up");
                stop.store(stops, Ordering::Relaxed);
                coefficients(0, scores)
            })
            .map(|_| ())
        };
        assert_eq!(pass(&mut workspace, false, true), Err(SequenceError::GivenUp));
        assert_eq!(pass(&mut workspace, true, false), Err(SequenceError::GivenUp));
        assert_eq!(score(&threads, model, &mut workspace, &sequences, 1.0), Err(SequenceError::GivenUp));
        gradients.clear();
        workspace.stop_on(None);
        let answer = |scores: &TokenScores| coefficients(0, scores);
        let whole =
            forward_backward(&threads, model, &mut workspace, &sequences, options, &mut gradients, answer);
        assert!(whole.is_ok() && gradients.same_bits(&reference));
    }
}

#[test]
fn gradients_do_not_depend_on_threads_micro_batches_or_recomputation() {
    for model in models() {
        for level in SimdLevel::available() {
            let plain = PassOptions::default();
            let reference = gradients(&Threads::with_level(1, level), &model, plain, &[]);
            for num_threads in [2, 3] {
                let threads = Threads::with_level(num_threads, level);
                assert!(gradients(&threads, &model, plain, &[]).same_bits(&reference));
                let again = PassOptions { recompute: true, keep_logits_bytes: 0, ..plain };
                assert!(gradients(&threads, &model, again, &[]).same_bits(&reference));
            }
            // In parts, and every sequence by itself, so that no prompt is shared.
            let each: Vec<usize> = (1..rows().len()).collect();
            for cuts in [&[1, 3][..], &[6, 8, 11], &each] {
                let cut = gradients(&Threads::with_level(1, level), &model, plain, cuts);
                assert_near(&reference, &cut, 1e-5);
            }
        }
    }
}

#[test]
fn shards_do_not_depend_on_threads_and_sum_to_the_whole() {
    let rows = many_rows(|i| 10 + i % 30);
    let sequences = sequences(&rows);
    let each: Vec<usize> = (1..60).collect();
    for model in models() {
        let run = |num_threads: usize, keep_logits_bytes: usize, cuts: &[usize]| {
            let options = PassOptions { keep_logits_bytes, ..PassOptions::default() };
            gradients_of(&Threads::new(num_threads), &model, &sequences, options, cuts)
        };
        let whole = run(1, usize::MAX, &[]);
        // Keep the logits of no row, and of about half of the 1,470 rows.
        for rows in [0, 700] {
            let bytes = 4 * rows * VOCAB.next_multiple_of(16);
            assert!(run(2, bytes, &[]).same_bits(&whole), "logits of {rows} rows kept");
        }
        assert!([2, 3].iter().all(|&threads| run(threads, usize::MAX, &[]).same_bits(&whole)));
        assert_near(&whole, &run(1, usize::MAX, &each), 1e-5);
    }
}

#[test]
fn what_has_no_coefficient_adds_nothing() {
    let rows = many_rows(|_| 20);
    let sequences = sequences(&rows);
    for model in models() {
        let run = |sequences: &[Sequence], counts: &dyn Fn(usize) -> bool| {
            let (threads, mut workspace) = (Threads::new(2), Workspace::default());
            let (options, mut gradients) = (PassOptions::default(), Gradients::new(&model));
            let answer = |scores: &TokenScores| {
                let mut all = coefficients(0, scores);
                for column in std::iter::once(&mut all.logprob).chain(&mut all.entropy) {
                    // Four members of 20 tokens.
                    let groups = column.chunks_mut(80).enumerate();
                    groups.filter(|(group, _)| !counts(*group)).for_each(|(_, own)| own.fill(0.0));
                }
                all
            };
            let sink = &mut gradients;
            forward_backward(&threads, &model, &mut workspace, sequences, options, sink, answer).unwrap();
            gradients
        };
        assert!(run(&sequences, &|_| false).same_bits(&Gradients::new(&model)));
        // Only the first groups, and then with the following ones, of which whole chunks are skipped.
        let (few, all) = (run(&sequences[..12], &|_| true), run(&sequences, &|group| group < 3));
        assert_near(&few, &all, 1e-5);
    }
}

#[test]
fn levels_agree() {
    let Some(model) = models().pop() else { panic!("no model") };
    let plain = gradients(&Threads::with_level(1, SimdLevel::Portable), &model, PassOptions::default(), &[]);
    for level in SimdLevel::available() {
        let other = gradients(&Threads::with_level(1, level), &model, PassOptions::default(), &[]);
        assert_near(&plain, &other, 1e-4);
    }
    let none = score(&Threads::new(2), &model, &mut Workspace::default(), &[], 1.0).unwrap();
    assert_eq!(none.logprobs.num_rows(), 0);
}

#[test]
fn an_update_without_gradient_only_decays_and_a_broken_one_is_skipped() {
    let threads = Threads::new(2);
    let Some(original) = models().pop() else { panic!("no model") };
    let config = AdamWConfig { weight_decay: 0.5, decay_norms_and_biases: false, ..AdamWConfig::default() };
    let mut model = original.clone();
    let mut optimizer = AdamW::new(&model, config);
    let mut gradients = Gradients::new(&model);
    let report = optimizer.step(&threads, &mut model, &gradients, 0.1, Some(1.0));
    assert_eq!(
        (report.grad_norm, report.clip_scale, report.skipped, optimizer.num_steps()),
        (0.0, 1.0, false, 1)
    );
    for ((name, shape, before), (_, _, after)) in original.tensors().zip(model.tensors()) {
        let factor = if shape.len() == 2 { 0.95 } else { 1.0 };
        assert!(before.iter().zip(&after).all(|(b, a)| (b * factor - a).abs() < 1e-6), "{name}");
    }
    let kept = model.clone();
    let rows = rows();
    let sequences = sequences(&rows);
    let mut workspace = Workspace::default();
    let (options, answer) = (PassOptions::default(), |scores: &TokenScores| {
        let mut logprob = vec![1.0; scores.logprobs.num_values()];
        logprob[3] = f32::INFINITY;
        Coefficients { logprob, entropy: None }
    });
    forward_backward(&threads, &model, &mut workspace, &sequences, options, &mut gradients, answer).unwrap();
    let report = optimizer.step(&threads, &mut model, &gradients, 0.1, None);
    assert!(report.skipped && !report.grad_norm.is_finite() && model.same_weights(&kept));
    assert_eq!(optimizer.num_steps(), 1);
}

#[test]
fn optimizer_state_survives_a_file() {
    let threads = Threads::new(1);
    let Some(mut model) = models().pop() else { panic!("no model") };
    let mut optimizer = AdamW::new(&model, AdamWConfig::default());
    let gradients = gradients(&threads, &model, PassOptions::default(), &[]);
    for _ in 0..3 {
        optimizer.step(&threads, &mut model, &gradients, 1e-2, Some(1.0));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("optimizer.safetensors");
    optimizer.save(&path).unwrap();
    let mut loaded = AdamW::new(&model, AdamWConfig::default());
    loaded.load(&path).unwrap();
    assert_eq!(loaded.num_steps(), 3);
    let mut copy = model.clone();
    optimizer.step(&threads, &mut model, &gradients, 1e-2, Some(1.0));
    loaded.step(&threads, &mut copy, &gradients, 1e-2, Some(1.0));
    assert!(model.same_weights(&copy));
    let error = AdamW::new(&models()[0], AdamWConfig::default()).load(&path).unwrap_err().to_string();
    assert!(error.starts_with("tensor `") || error.contains("is missing"), "{error}");
}

/// The estimate matches the workspace's memory within a fifth.
#[test]
fn activations_are_estimated() {
    let threads = Threads::new(1);
    for (architecture, recompute, keep_logits_bytes) in [
        (Architecture::Qwen3, false, usize::MAX),
        (Architecture::Qwen2, true, 0),
        (Architecture::Llama, false, 0),
    ] {
        let mut config = TransformerConfig::new(architecture, 3000, 64, 160, 3, 4, 512);
        config.num_kv_heads = 2;
        let model = Model::init(config, Key::new(1, Purpose::Init)).unwrap();
        let rows: Vec<Vec<u32>> =
            (0..20u32).map(|i| (0..100).map(|t| (i * 100 + t) % 3000).collect()).collect();
        let sequences: Vec<_> = rows.iter().map(|tokens| Sequence { tokens, start: 1 }).collect();
        let options = PassOptions { recompute, keep_logits_bytes, ..PassOptions::default() };
        let mut workspace = Workspace::default();
        let mut gradients = Gradients::new(&model);
        forward_backward(&threads, &model, &mut workspace, &sequences, options, &mut gradients, |scores| {
            Coefficients { logprob: vec![1.0; scores.logprobs.num_values()], entropy: None }
        })
        .unwrap();
        let plan = MemoryPlan {
            trains: true,
            micro_batch_tokens: 2000,
            scored_tokens: 2000,
            num_threads: 1,
            recompute,
            keep_logits_bytes,
            ..MemoryPlan::default()
        };
        let ratio = workspace.bytes() as f64 / MemoryEstimate::new(model.config(), &plan).activations as f64;
        assert!((0.8..1.1).contains(&ratio), "{architecture:?}: held / estimated = {ratio}");
    }
}

#[test]
fn messages() {
    let threads = Threads::new(1);
    let model = &models()[0];
    let message = |sequences: &[Sequence], temperature: f32, count: usize| -> String {
        let options = PassOptions { temperature, ..PassOptions::default() };
        let mut gradients = Gradients::new(model);
        let mut workspace = Workspace::default();
        let result: Result<_, SequenceError> =
            forward_backward(&threads, model, &mut workspace, sequences, options, &mut gradients, |_| {
                Coefficients { logprob: vec![0.0; count], entropy: Some(vec![]) }
            });
        result.unwrap_err().to_string()
    };
    let good = Sequence { tokens: &[1, 2], start: 1 };
    insta::assert_snapshot!(message(&[good, Sequence { tokens: &[1, 99], start: 1 }], 1.0, 2), @"sequence 1 holds token 99 at position 1, but the vocabulary has 37");
    insta::assert_snapshot!(message(&[Sequence { tokens: &[1; 65], start: 1 }], 1.0, 1), @"sequence 0 has 65 tokens, more than max_position_embeddings (64)");
    insta::assert_snapshot!(message(&[Sequence { tokens: &[1, 2], start: 0 }], 1.0, 1), @"sequence 0 is scored from 0, which is not within 1 to 2");
    insta::assert_snapshot!(message(&[Sequence { tokens: &[], start: 1 }], 1.0, 1), @"sequence 0 is scored from 1, which is not within 1 to 0");
    insta::assert_snapshot!(message(&[good], 0.0, 1), @"temperature must be positive and finite, got 0");
    insta::assert_snapshot!(message(&[good], 1.0, 3), @"expected 1 log-probability coefficients, one per scored token, got 3");
    insta::assert_snapshot!(message(&[good], 1.0, 1), @"expected 1 entropy coefficients, one per scored token, got 0");
}
