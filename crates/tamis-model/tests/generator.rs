//! The generator's behaviour: stopping, aborting, bounds, messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and compares what must be exact")]

use std::sync::Arc;

use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, Completion, FinishReason, Generator, GeneratorSettings, Model, ModelConfig, Request,
    RequestId, SamplingParams, StopCheck, Threads,
};

fn model() -> Model {
    let mut config = ModelConfig::new(Architecture::Qwen3, 31, 16, 24, 2, 2, 48);
    config.initializer_range = 0.4;
    Model::init(config, Key::new(5, Purpose::Init)).unwrap()
}

fn request(prompt: &[u32], samples: u64, max_new_tokens: usize) -> Request {
    let key = prompt.iter().fold(Key::new(2, Purpose::Rollout), |key, &token| key.with(u64::from(token)));
    Request {
        prompt: prompt.to_vec(),
        keys: (0..samples).map(|sample| key.with(sample)).collect(),
        params: SamplingParams { max_new_tokens, ..SamplingParams::default() },
        stop: None,
    }
}

fn sorted(mut completions: Vec<Completion>) -> Vec<Completion> {
    completions.sort_by_key(|completion| (completion.request, completion.sample));
    completions
}

/// Ends a completion after a sum of tokens: a stand-in for text that needs decoding.
struct SumReaches(u32);

impl StopCheck for SumReaches {
    fn should_stop(&self, generated: &[u32]) -> bool {
        generated.iter().sum::<u32>() >= self.0
    }
}

#[test]
fn a_stop_check_ends_a_completion_with_its_last_token() {
    let (threads, model) = (Threads::new(1), model());
    let mut generator = Generator::new(model.config(), GeneratorSettings::default());
    let checked = Request { stop: Some(Arc::new(SumReaches(60))), ..request(&[1, 2, 3], 6, 30) };
    generator.submit(request(&[1, 2, 3], 6, 30)).unwrap();
    generator.submit(checked).unwrap();
    let completions = sorted(generator.run(&threads, &model));
    let (free, stopped) = completions.split_at(6);
    for (free, stopped) in free.iter().zip(stopped) {
        // The same draws, cut where the sum is reached.
        assert_eq!(free.tokens[..stopped.tokens.len()], stopped.tokens);
        assert_eq!(free.logprobs[..stopped.tokens.len()], stopped.logprobs);
        let before: u32 = stopped.tokens[..stopped.tokens.len() - 1].iter().sum();
        assert!(before < 60);
        assert_eq!(stopped.finish == FinishReason::Stop, stopped.tokens.iter().sum::<u32>() >= 60);
    }
    assert!(stopped.iter().any(|completion| completion.finish == FinishReason::Stop));
}

#[test]
fn the_last_position_of_the_model_ends_a_completion() {
    let (threads, model) = (Threads::new(2), model());
    let mut generator = Generator::new(model.config(), GeneratorSettings::default());
    generator.submit(request(&[4; 40], 2, 100)).unwrap();
    generator.submit(request(&[4; 47], 2, 100)).unwrap();
    let lengths: Vec<_> = sorted(generator.run(&threads, &model))
        .iter()
        .map(|completion| (completion.tokens.len(), completion.finish))
        .collect();
    assert_eq!(
        lengths,
        [
            (8, FinishReason::Length),
            (8, FinishReason::Length),
            (1, FinishReason::Length),
            (1, FinishReason::Length)
        ]
    );
}

#[test]
fn aborting_returns_what_there_is_and_leaves_the_others_alone() {
    let (threads, model) = (Threads::new(2), model());
    let settings = GeneratorSettings { max_sequences: 5, ..GeneratorSettings::default() };
    let alone = {
        let mut generator = Generator::new(model.config(), settings);
        generator.submit(request(&[9, 9], 2, 20)).unwrap();
        generator.run(&threads, &model)
    };
    let mut generator = Generator::new(model.config(), settings);
    let doomed = generator.submit(request(&[1, 2, 3], 8, 20)).unwrap();
    let kept = generator.submit(request(&[9, 9], 2, 20)).unwrap();
    for _ in 0..4 {
        assert!(generator.step(&threads, &model).is_empty());
    }
    assert_eq!(generator.num_running(), 5);
    let aborted = sorted(generator.abort(doomed));
    assert_eq!(aborted.len(), 8);
    for (i, completion) in aborted.iter().enumerate() {
        assert_eq!((completion.sample, completion.finish), (i, FinishReason::Aborted));
        assert_eq!(completion.tokens.len(), if i < 5 { 5 } else { 0 });
    }
    assert!(generator.abort(doomed).is_empty() && generator.abort(RequestId(77)).is_empty());
    let rest = generator.run(&threads, &model);
    assert!(generator.is_idle());
    for (a, b) in sorted(rest).iter().zip(sorted(alone)) {
        assert_eq!((a.request, &a.tokens, &a.logprobs), (kept, &b.tokens, &b.logprobs));
    }
}

#[test]
fn bounds_hold_and_every_sample_is_returned_once() {
    let (threads, model) = (Threads::new(2), model());
    for (max_sequences, max_cached_tokens) in [(1, usize::MAX), (3, 60), (64, 1), (0, 0)] {
        let mut generator =
            Generator::new(model.config(), GeneratorSettings { max_sequences, max_cached_tokens });
        for i in 0..4 {
            generator.submit(request(&[i, 1 + i, 2], 3, 9)).unwrap();
        }
        let mut seen = Vec::new();
        while !generator.is_idle() {
            seen.extend(
                generator.step(&threads, &model).into_iter().map(|done| (done.request.0, done.sample)),
            );
            assert!(generator.num_running() <= max_sequences.max(1));
            assert!(max_cached_tokens > 50 || generator.num_running() <= 1);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..4).flat_map(|i| (0..3).map(move |sample| (i, sample))).collect::<Vec<_>>());
        assert_eq!(generator.num_generated_tokens(), 4 * 3 * 9);
    }
}

#[test]
fn many_long_prompts_are_computed_over_several_steps() {
    let mut config = ModelConfig::new(Architecture::Llama, 31, 16, 24, 1, 2, 1500);
    config.initializer_range = 0.4;
    let model = Model::init(config, Key::new(5, Purpose::Init)).unwrap();
    let threads = Threads::new(2);
    let prompt = |i: u32| (0..1000).map(|t| (t * 7 + i) % 31).collect::<Vec<_>>();
    let mut generator = Generator::new(model.config(), GeneratorSettings::default());
    for i in 0..5 {
        generator.submit(request(&prompt(i), 1, 3)).unwrap();
    }
    generator.step(&threads, &model);
    assert_eq!(generator.num_running(), 2);
    assert_eq!(generator.run(&threads, &model).len(), 5);
}

#[test]
fn messages() {
    let model = model();
    let mut generator = Generator::new(model.config(), GeneratorSettings::default());
    let mut error = |request: Request| generator.submit(request).unwrap_err().to_string();
    insta::assert_snapshot!(error(request(&[], 1, 1)), @"the prompt is empty");
    insta::assert_snapshot!(error(request(&[1], 0, 1)), @"the request asks for no samples");
    insta::assert_snapshot!(error(request(&[1; 48], 1, 1)), @"the prompt has 48 tokens, which leaves no room within max_position_embeddings (48)");
    insta::assert_snapshot!(error(request(&[1, 31], 1, 1)), @"the prompt holds token 31, but the vocabulary has 31");
    insta::assert_snapshot!(error(request(&[1], 1, 0)), @"max_new_tokens must be at least 1, got 0");
    assert!(generator.is_idle());
}
