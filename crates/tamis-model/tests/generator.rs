//! The generator's behaviour: stopping, aborting, limits, messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and compares what must be exact")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, BatchGenerator, Completion, CompletionEnd, GenerationRequest, GeneratorSettings, Model,
    RequestId, SamplingParams, Sequence, StopCheck, Threads, TokenMask, TransformerConfig, Workspace, score,
};

fn model() -> Model {
    let mut config = TransformerConfig::new(Architecture::Qwen3, 31, 16, 24, 2, 2, 48);
    config.initializer_range = 0.4;
    Model::init(config, Key::new(5, Purpose::Init)).unwrap()
}

fn request(prompt: &[u32], samples: u64, max_new_tokens: usize) -> GenerationRequest {
    let key = prompt.iter().fold(Key::new(2, Purpose::Rollout), |key, &token| key.with(u64::from(token)));
    GenerationRequest {
        prompt: prompt.to_vec(),
        keys: (0..samples).map(|sample| key.with(sample)).collect(),
        params: SamplingParams { max_new_tokens, ..SamplingParams::default() },
        stop: None,
        mask: None,
    }
}

fn sorted(mut completions: Vec<Completion>) -> Vec<Completion> {
    completions.sort_by_key(|completion| (completion.request, completion.sample));
    completions
}

/// Runs these requests.
fn generated(
    (threads, model): (&Threads, &Model),
    settings: GeneratorSettings,
    requests: impl IntoIterator<Item = GenerationRequest>,
) -> Vec<Completion> {
    let mut generator = BatchGenerator::new(model.config(), settings);
    for request in requests {
        generator.submit(request).unwrap();
    }
    sorted(generator.run(threads, model))
}

/// Ends a completion when the sum of its tokens reaches a limit: a stand-in for text that needs decoding.
struct SumReaches(u32);

impl StopCheck for SumReaches {
    fn should_stop(&self, generated: &[u32]) -> bool {
        generated.iter().sum::<u32>() >= self.0
    }
}

/// Even and odd tokens in turn, three in all.
struct InTurn;

impl TokenMask for InTurn {
    fn start(&self) -> u32 {
        0
    }

    fn after(&self, state: u32, _: u32) -> u32 {
        state + 1
    }

    fn allowed_tokens(&self, state: u32) -> Arc<[u64]> {
        let even = 0x5555_5555_5555_5555;
        vec![if state >= 3 { 0 } else { even << (state % 2) }].into()
    }
}

/// Only allowed tokens; an end if there are none; log-probabilities of the whole distribution. Neighbours
/// change nothing.
#[test]
fn a_mask_binds_a_completion_to_a_form() {
    let (threads, model) = (Threads::new(2), model());
    let masked =
        |prompt: &[u32]| GenerationRequest { mask: Some(Arc::new(InTurn)), ..request(prompt, 5, 30) };
    let alone =
        |request: GenerationRequest| generated((&threads, &model), GeneratorSettings::default(), [request]);
    let few = GeneratorSettings { max_sequences: 4, ..GeneratorSettings::default() };
    let requests = [masked(&[1, 2, 3]), request(&[1, 2, 3], 5, 30), masked(&[4])];
    let together = generated((&threads, &model), few, requests.clone());
    let apart = requests.map(alone).concat();
    for (together, apart) in together.iter().zip(&apart) {
        assert_eq!((&together.tokens, &together.logprobs), (&apart.tokens, &apart.logprobs));
    }
    for (place, completion) in together.iter().enumerate() {
        let tokens = &completion.tokens;
        if (5..10).contains(&place) {
            assert_eq!(tokens.len(), 30);
            continue;
        }
        assert_eq!((tokens.len(), completion.finish), (3, CompletionEnd::Stop));
        assert!(tokens.iter().enumerate().all(|(i, token)| token % 2 == i as u32 % 2), "{tokens:?}");
        let prompt: &[u32] = if place < 5 { &[1, 2, 3] } else { &[4] };
        let tokens = [prompt, tokens].concat();
        let sequence = Sequence { tokens: &tokens, start: prompt.len() };
        let scores = score(&threads, &model, &mut Workspace::default(), &[sequence], 1.0).unwrap();
        assert_eq!(scores.logprobs.values(), completion.logprobs);
    }
    let cut = GenerationRequest {
        params: SamplingParams { max_new_tokens: 2, ..SamplingParams::default() },
        ..masked(&[1])
    };
    assert!(alone(cut).iter().all(|completion| completion.finish == CompletionEnd::Length));
}

#[test]
fn a_stop_check_ends_a_completion_with_its_last_token() {
    let (threads, model) = (Threads::new(1), model());
    let checked = GenerationRequest { stop: Some(Arc::new(SumReaches(60))), ..request(&[1, 2, 3], 6, 30) };
    let requests = [request(&[1, 2, 3], 6, 30), checked];
    let completions = generated((&threads, &model), GeneratorSettings::default(), requests);
    let (free, stopped) = completions.split_at(6);
    for (free, stopped) in free.iter().zip(stopped) {
        // The same draws, cut when the sum is reached.
        assert_eq!(free.tokens[..stopped.tokens.len()], stopped.tokens);
        assert_eq!(free.logprobs[..stopped.tokens.len()], stopped.logprobs);
        let before: u32 = stopped.tokens[..stopped.tokens.len() - 1].iter().sum();
        assert!(before < 60);
        assert_eq!(stopped.finish == CompletionEnd::Stop, stopped.tokens.iter().sum::<u32>() >= 60);
    }
    assert!(stopped.iter().any(|completion| completion.finish == CompletionEnd::Stop));
}

#[test]
fn the_last_position_of_the_model_ends_a_completion() {
    let (threads, model) = (Threads::new(2), model());
    let requests = [request(&[4; 40], 2, 100), request(&[4; 47], 2, 100)];
    let completions = generated((&threads, &model), GeneratorSettings::default(), requests);
    let ends: Vec<_> = completions.iter().map(|done| (done.tokens.len(), done.finish)).collect();
    assert_eq!(ends, [8, 8, 1, 1].map(|length| (length, CompletionEnd::Length)));
}

#[test]
fn aborting_returns_what_there_is_and_leaves_the_others_alone() {
    let (threads, model) = (Threads::new(2), model());
    let settings = GeneratorSettings { max_sequences: 5, ..GeneratorSettings::default() };
    let alone = generated((&threads, &model), settings, [request(&[9, 9], 2, 20)]);
    let mut generator = BatchGenerator::new(model.config(), settings);
    let doomed = generator.submit(request(&[1, 2, 3], 8, 20)).unwrap();
    let kept = generator.submit(request(&[9, 9], 2, 20)).unwrap();
    for _ in 0..4 {
        assert!(generator.step(&threads, &model).is_empty());
    }
    assert_eq!(generator.num_running(), 5);
    let aborted = sorted(generator.abort(doomed));
    assert_eq!(aborted.len(), 8);
    for (i, completion) in aborted.iter().enumerate() {
        assert_eq!((completion.sample, completion.finish), (i, CompletionEnd::Aborted));
        assert_eq!(completion.tokens.len(), if i < 5 { 5 } else { 0 });
    }
    assert!(generator.abort(doomed).is_empty() && generator.abort(RequestId(77)).is_empty());
    let rest = generator.run(&threads, &model);
    assert!(generator.is_idle());
    for (a, b) in sorted(rest).iter().zip(alone) {
        assert_eq!((a.request, &a.tokens, &a.logprobs), (kept, &b.tokens, &b.logprobs));
    }
}

#[test]
fn bounds_hold_and_every_sample_is_returned_once() {
    let (threads, model) = (Threads::new(2), model());
    for (max_sequences, max_cached_tokens) in [(1, usize::MAX), (3, 60), (64, 1), (0, 0)] {
        let mut generator = BatchGenerator::new(
            model.config(),
            GeneratorSettings { max_sequences, max_cached_tokens, ..GeneratorSettings::default() },
        );
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
    let mut config = TransformerConfig::new(Architecture::Llama, 31, 16, 24, 1, 2, 1500);
    config.initializer_range = 0.4;
    let model = Model::init(config, Key::new(5, Purpose::Init)).unwrap();
    let threads = Threads::new(2);
    let prompt = |i: u32| (0..1000).map(|t| (t * 7 + i) % 31).collect::<Vec<_>>();
    let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
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
    let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
    let mut error = |request: GenerationRequest| generator.submit(request).unwrap_err().to_string();
    insta::assert_snapshot!(error(request(&[], 1, 1)), @"the prompt is empty");
    insta::assert_snapshot!(error(request(&[1], 0, 1)), @"the request asks for no samples");
    insta::assert_snapshot!(error(request(&[1; 48], 1, 1)), @"the prompt has 48 tokens, which leaves no room \
         within max_position_embeddings (48)");
    insta::assert_snapshot!(error(request(&[1, 31], 1, 1)), @"the prompt holds token 31, but the vocabulary has 31");
    insta::assert_snapshot!(error(request(&[1], 1, 0)), @"max_new_tokens must be at least 1, got 0");
    assert!(generator.is_idle());
}

#[test]
fn samples_are_added_to_and_taken_out_of_a_request() {
    let (threads, model) = (Threads::new(2), model());
    let settings = GeneratorSettings { max_sequences: 4, ..GeneratorSettings::default() };
    let together = request(&[5, 6, 7], 8, 20);
    let whole = generated((&threads, &model), settings, [together.clone()]);
    let mut generator = BatchGenerator::new(model.config(), settings);
    let keys = &together.keys;
    let id = generator.submit(GenerationRequest { keys: keys[..1].to_vec(), ..together.clone() }).unwrap();
    assert_eq!(generator.add_sample(id, keys[1]), Some(1));
    generator.step(&threads, &model);
    for (sample, &key) in keys.iter().enumerate().skip(2) {
        assert_eq!(generator.add_sample(id, key), Some(sample));
    }
    for _ in 0..3 {
        assert!(generator.step(&threads, &model).is_empty());
    }
    assert_eq!(generator.running().count(), 4, "samples 0 to 3");
    assert!(generator.running().all(|running| running.request == id
        && whole[running.sample].tokens.starts_with(running.tokens)
        && whole[running.sample].logprobs.starts_with(running.logprobs)));
    let had = generator.running().find(|running| running.sample == 2).unwrap().tokens.to_vec();
    let running = generator.abort_sample(id, 2).unwrap();
    assert_eq!((&running.tokens, running.finish), (&had, CompletionEnd::Aborted));
    assert!(!had.is_empty() && had.len() == running.logprobs.len());
    let waiting = generator.abort_sample(id, 6).unwrap();
    assert_eq!((waiting.sample, waiting.tokens.len(), waiting.finish), (6, 0, CompletionEnd::Aborted));
    assert!(generator.abort_sample(id, 2).is_none() && generator.abort_sample(id, 99).is_none());
    assert!(generator.abort_sample(RequestId(9), 0).is_none());
    let rest = sorted(generator.run(&threads, &model));
    let expected: Vec<_> = whole.iter().filter(|done| ![2, 6].contains(&done.sample)).cloned().collect();
    assert_eq!(rest, expected);
    assert!(generator.is_idle());
    assert_eq!(generator.add_sample(id, keys[0]), None, "the request has ended");

    // A single sample takes over the prompt, unless the settings forbid it. If all samples of a request were
    // aborted before they started, nothing is left.
    let id = generator.submit(request(&[5, 6, 7], 1, 20)).unwrap();
    generator.step(&threads, &model);
    assert_eq!(generator.add_sample(id, keys[1]), None);
    let mut sharing =
        BatchGenerator::new(model.config(), GeneratorSettings { shares_prompts: true, ..settings });
    let shared = sharing.submit(GenerationRequest { keys: keys[..1].to_vec(), ..together.clone() }).unwrap();
    sharing.step(&threads, &model);
    assert_eq!(sharing.add_sample(shared, keys[1]), Some(1));
    let both: Vec<_> = sorted(sharing.run(&threads, &model)).into_iter().map(|done| done.tokens).collect();
    assert_eq!(both, [&whole[0].tokens[..], &whole[1].tokens]);
    let other = generator.submit(request(&[8], 2, 20)).unwrap();
    assert!(generator.abort_sample(other, 0).is_some() && generator.abort_sample(other, 1).is_some());
    assert_eq!(generator.add_sample(other, keys[1]), None);
    assert_eq!(generator.run(&threads, &model).len(), 1);
    assert!(generator.is_idle());
}

/// After a change of weights, the caches of the old weights can be recomputed. Later tokens then have the
/// log-probabilities that the new weights give them after everything before.
#[test]
fn what_is_cached_is_computed_once_more_by_other_weights() {
    let (threads, old) = (Threads::new(2), model());
    let mut new = old.clone();
    new.nudge("model.layers.0.self_attn.k_proj.weight", |i| if i % 3 == 0 { 0.2 } else { -0.1 });
    let settings = GeneratorSettings { max_sequences: 5, ..GeneratorSettings::default() };
    let fill = || {
        let mut generator = BatchGenerator::new(old.config(), settings);
        let requests = [request(&[1, 2, 3, 4], 4, 12), request(&[9; 20], 1, 12), request(&[6, 7], 3, 12)];
        for request in &requests {
            generator.submit(request.clone()).unwrap();
        }
        for _ in 0..5 {
            assert!(generator.step(&threads, &old).is_empty());
        }
        (generator, requests)
    };
    let (mut generator, _) = fill();
    let untouched = sorted(generator.run(&threads, &old));
    let (mut generator, _) = fill();
    generator.recompute(&threads, &old);
    assert_eq!(sorted(generator.run(&threads, &old)), untouched, "unchanged weights change nothing");
    let (mut generator, requests) = fill();
    let began: Vec<_> =
        generator.running().map(|running| (running.request, running.sample, running.tokens.len())).collect();
    generator.recompute(&threads, &new);
    let mut num_after = 0;
    for done in generator.run(&threads, &new) {
        let prompt = &requests[done.request.0 as usize].prompt;
        let tokens = [&prompt[..], &done.tokens].concat();
        let sequence = Sequence { tokens: &tokens, start: prompt.len() };
        let scored = score(&threads, &new, &mut Workspace::default(), &[sequence], 1.0).unwrap().logprobs;
        let scored = scored.row(0);
        let from = began
            .iter()
            .find(|began| (began.0, began.1) == (done.request, done.sample))
            .map_or(0, |began| began.2);
        num_after += done.tokens.len() - from;
        assert_eq!(done.logprobs[from..], scored[from..], "{:?}", (done.request, done.sample));
        assert!(from == 0 || done.logprobs[..from] != scored[..from], "those before are of the old weights");
    }
    assert!(num_after > 40);
}

/// Prompts with a common prefix share it and give the same samples as separately: in one step or in several,
/// in groups or not, on any number of threads, and after a change of weights.
#[test]
fn what_prompts_have_in_common_is_computed_once() {
    let config = |architecture, kv_heads| {
        let mut config = TransformerConfig::new(architecture, 31, 16, 24, 2, 2, 200);
        (config.num_kv_heads, config.initializer_range) = (kv_heads, 0.4);
        config
    };
    let random = Key::new(3, Purpose::Task);
    let tokens = |key: u64, len: usize| -> Vec<u32> {
        (0..len as u64).map(|i| random.with(key).below(i, 31) as u32).collect()
    };
    let after = |system: &[u32], question: u64, len| [system, &tokens(question, len)].concat();
    // Prefixes within one block and over several. The second extends the first.
    let short = tokens(1, 40);
    let long = [&short[..], &tokens(2, 70)].concat();
    let alone = tokens(4, 50);
    for (architecture, kv_heads) in [(Architecture::Llama, 2), (Architecture::Qwen3, 1)] {
        let mut model = Model::init(config(architecture, kv_heads), Key::new(5, Purpose::Init)).unwrap();
        for (num_threads, max_sequences) in [(1, 256), (2, 256), (2, 3)] {
            let threads = Threads::new(num_threads);
            let settings = GeneratorSettings { max_sequences, ..GeneratorSettings::default() };
            let mut generator = BatchGenerator::new(model.config(), settings);
            for round in 0..3_u64 {
                if round == 2 {
                    model.nudge("model.layers.0.self_attn.k_proj.weight", |i| (i % 3) as f32 * 0.1);
                }
                let prompts: Vec<Vec<u32>> = (0..4)
                    .flat_map(|i| [(&short, 10 + i), (&long, 20 + i)])
                    .map(|(system, question)| after(system, 100 * (round + 1) + question, 5))
                    .chain([alone.clone(), long.clone()])
                    .collect();
                let requests: Vec<_> = prompts
                    .iter()
                    .enumerate()
                    .map(|(i, prompt)| request(prompt, [1, 3][i / 2 % 2], 20))
                    .collect();
                let before = generator.num_shared_tokens();
                let mut ids = Vec::new();
                for request in &requests {
                    ids.push(generator.submit(request.clone()).unwrap());
                }
                let together = sorted(generator.run(&threads, &model));
                let shared = generator.num_shared_tokens() - before;
                // Prefixes of 40 and of 110 tokens, for four prompts each. In the second round both are kept
                // already.
                assert!(shared > if round == 1 { 590 } else { 400 }, "round {round}: {shared}");
                for (id, request) in ids.into_iter().zip(requests) {
                    let mut own = BatchGenerator::new(model.config(), settings);
                    own.submit(request).unwrap();
                    let apart = sorted(own.run(&threads, &model));
                    let together: Vec<_> = together.iter().filter(|done| done.request == id).collect();
                    assert_eq!(together.len(), apart.len());
                    for (together, apart) in together.into_iter().zip(&apart) {
                        assert_eq!(together.tokens, apart.tokens);
                        assert_eq!((&together.logprobs, together.finish), (&apart.logprobs, apart.finish));
                    }
                    assert_eq!(own.num_shared_tokens(), 0);
                }
            }
        }
    }
}

#[test]
fn a_stopped_step_leaves_no_beginning() {
    let (threads, model) = (Threads::new(1), model());
    let prompts = [9, 10].map(|last| [&[3; 20][..], &[last]].concat());
    let play = |generator: &mut BatchGenerator| {
        let ids = prompts.each_ref().map(|prompt| generator.submit(request(prompt, 1, 9)).unwrap());
        let done = sorted(generator.run(&threads, &model));
        (ids, done.into_iter().map(|done| (done.tokens, done.logprobs)).collect::<Vec<_>>())
    };
    let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
    let stop = Arc::new(AtomicBool::new(true));
    generator.stop_on(Arc::clone(&stop));
    let ids = prompts.each_ref().map(|prompt| generator.submit(request(prompt, 1, 9)).unwrap());
    generator.step(&threads, &model);
    for id in ids {
        generator.abort(id);
    }
    stop.store(false, Ordering::Relaxed);
    let (_, after) = play(&mut generator);
    let (_, expected) = play(&mut BatchGenerator::new(model.config(), GeneratorSettings::default()));
    assert_eq!(after, expected);
    assert!(generator.num_shared_tokens() > 0);
}

#[test]
fn alternatives_are_told_where_asked_for() {
    let (threads, model) = (Threads::new(1), model());
    let requests = [None, Some(31), Some(2)].map(|num_alternatives| {
        let asked = request(&[1, 2, 3], 3, 9);
        GenerationRequest { params: SamplingParams { num_alternatives, ..asked.params }, ..asked }
    });
    let completions = generated((&threads, &model), GeneratorSettings::default(), requests);
    let (plain, printed) = completions.split_at(3);
    let (all, two) = printed.split_at(3);
    for ((plain, all), two) in plain.iter().zip(all).zip(two) {
        assert!(plain.alternatives.is_empty());
        assert_eq!((&plain.tokens, &plain.logprobs), (&all.tokens, &all.logprobs));
        assert_eq!(all.alternatives.len(), all.tokens.len());
        for (t, alternatives) in all.alternatives.iter().enumerate() {
            let total: f64 =
                alternatives.likeliest.iter().map(|&(_, logprob)| f64::from(logprob).exp()).sum();
            assert!((total - 1.0).abs() < 1e-5, "{total}");
            assert!(alternatives.likeliest.is_sorted_by(|a, b| a.1 >= b.1));
            assert_eq!(alternatives.likeliest[alternatives.rank - 1], (all.tokens[t], all.logprobs[t]));
            assert_eq!(two.alternatives[t].likeliest, alternatives.likeliest[..2]);
            assert_eq!(two.alternatives[t].rank, alternatives.rank);
        }
    }
}

/// With weights that are too large or not finite, no token is drawn, greedily or not. Other samples are not
/// affected.
#[test]
fn logits_that_are_not_finite_end_a_sample_without_a_token() {
    for amount in [f32::NAN, 3e38] {
        let mut model = model();
        assert!(model.nudge("model.norm.weight", |_| amount));
        let threads = Threads::new(1);
        for greedy in [false, true] {
            let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
            let params = SamplingParams { max_new_tokens: 5, greedy, ..SamplingParams::default() };
            generator.submit(GenerationRequest { params, ..request(&[1, 2, 3], 3, 5) }).unwrap();
            let ended = generator.run(&threads, &model);
            assert_eq!(ended.len(), 3);
            for completion in ended {
                assert_eq!((completion.finish, completion.tokens.len()), (CompletionEnd::NotFinite, 0));
                assert_eq!((completion.logprobs.len(), completion.entropies.len()), (0, 0));
            }
            assert!(generator.is_idle() && generator.num_cached_tokens() == 0 && generator.num_kept() == 0);
        }
    }
    // The weights become invalid in the middle: tokens drawn before are kept.
    let (good, threads) = (model(), Threads::new(1));
    let mut bad = model();
    assert!(bad.nudge("model.norm.weight", |_| f32::NAN));
    let mut generator = BatchGenerator::new(good.config(), GeneratorSettings::default());
    generator.submit(request(&[1, 2, 3], 2, 9)).unwrap();
    assert!(generator.step(&threads, &good).is_empty());
    let ended = generator.step(&threads, &bad);
    assert_eq!(ended.len(), 2);
    for completion in ended {
        assert_eq!((completion.finish, completion.tokens.len()), (CompletionEnd::NotFinite, 2));
        assert!(completion.logprobs.iter().all(|logprob| logprob.is_finite()));
    }
}
