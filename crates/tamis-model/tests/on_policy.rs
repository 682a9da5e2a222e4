//! Generation against the training pass: the same bits, whatever else is in the batch.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and compares what must be exact")]

use proptest::prelude::*;
use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, BatchGenerator, Completion, CompletionEnd, GenerationRequest, GeneratorSettings, Model,
    SamplingParams, Sequence, SimdLevel, Threads, TransformerConfig, Workspace, score,
};

fn model(
    architecture: Architecture,
    hidden: usize,
    heads: (usize, usize),
    head_dim: usize,
    tied: bool,
    seed: u64,
) -> Model {
    let mut config = TransformerConfig::new(architecture, 53, hidden, hidden * 2 + 3, 2, heads.0, 200);
    (config.num_kv_heads, config.head_dim, config.tie_word_embeddings) = (heads.1, head_dim, tied);
    config.initializer_range = 0.3;
    Model::init(config, Key::new(seed, Purpose::Init)).unwrap()
}

fn key(seed: u64, prompt: u64, sample: u64) -> Key {
    Key::new(seed, Purpose::Rollout).with(prompt).with(sample)
}

fn prompt(seed: u64, index: u64, len: usize) -> Vec<u32> {
    let key = Key::new(seed, Purpose::Task).with(index);
    (0..len as u64).map(|i| key.below(i, 53) as u32).collect()
}

/// Bits of a completion's log-probabilities and entropies.
type Bits = (Vec<u32>, Vec<u32>);

/// The log-probabilities and entropies of the training pass for a single completion.
fn trained(
    threads: &Threads,
    model: &Model,
    prompt: &[u32],
    completion: &Completion,
    temperature: f32,
) -> Bits {
    let mut tokens = prompt.to_vec();
    tokens.extend(&completion.tokens);
    let sequence = Sequence { tokens: &tokens, start: prompt.len() };
    let scores = score(threads, model, &mut Workspace::default(), &[sequence], temperature).unwrap();
    (bits(scores.logprobs.values()), bits(scores.entropies.values()))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn generation_equals_training_bit_for_bit(
        seed in 0u64..1000,
        architecture in prop_oneof![Just(Architecture::Qwen2), Just(Architecture::Qwen3), Just(Architecture::Llama)],
        hidden in prop_oneof![Just(20usize), Just(32), Just(300)],
        heads in prop_oneof![Just((4usize, 2usize)), Just((2, 2)), Just((6, 1))],
        head_dim in prop_oneof![Just(6usize), Just(16), Just(20)],
        tied in any::<bool>(),
        lengths in proptest::collection::vec((1usize..90, 1usize..6), 1..5),
        max_sequences in 1usize..20,
        late in 0usize..12,
        temperature in prop_oneof![Just(1.0f32), Just(0.7)],
        level in 0usize..3,
    ) {
        let level = SimdLevel::available().nth(level).unwrap_or_else(SimdLevel::detect);
        let model = model(architecture, hidden, heads, head_dim, tied, seed);
        let params = SamplingParams { temperature, max_new_tokens: 40, stop_token_ids: vec![7], ..SamplingParams::default() };
        let request = |i: usize| GenerationRequest {
            prompt: prompt(seed, i as u64, lengths[i].0),
            keys: (0..lengths[i].1).map(|sample| key(seed, i as u64, sample as u64)).collect(),
            params: params.clone(),
            stop: None,
            mask: None,
        };
        let mut seen: Vec<Vec<(Vec<u32>, Bits)>> = Vec::new();
        for num_threads in [1, 2] {
            let threads = Threads::with_level(num_threads, level);
            let settings = GeneratorSettings { max_sequences, max_cached_tokens: 100 * num_threads, shares_prompts: num_threads == 2 };
            let mut generator = BatchGenerator::new(model.config(), settings);
            let mut ids = Vec::new();
            let mut done = Vec::new();
            // The second run has another order of arrival, and a late request.
            let mut order: Vec<usize> = (0..lengths.len()).collect();
            if num_threads == 2 {
                order.reverse();
            }
            for (place, &i) in order.iter().enumerate() {
                if place + 1 == order.len() {
                    for _ in 0..late {
                        done.extend(generator.step(&threads, &model));
                    }
                }
                ids.push((generator.submit(request(i)).unwrap(), i));
            }
            done.extend(generator.run(&threads, &model));
            prop_assert!(generator.is_idle() && generator.num_running() == 0);
            prop_assert_eq!(done.len(), lengths.iter().map(|l| l.1).sum::<usize>());
            let mut outcome: Vec<Vec<(Vec<u32>, Bits)>> = lengths.iter().map(|l| vec![Default::default(); l.1]).collect();
            for completion in done {
                let i = ids.iter().find(|id| id.0 == completion.request).unwrap().1;
                let expected = trained(&threads, &model, &request(i).prompt, &completion, temperature);
                prop_assert_eq!(&bits(&completion.logprobs), &expected.0, "request {} sample {}", i, completion.sample);
                let stopped = completion.tokens.last() == Some(&7);
                prop_assert_eq!(completion.finish, if stopped { CompletionEnd::Stop } else { CompletionEnd::Length });
                prop_assert!(stopped || completion.tokens.len() == 40);
                outcome[i][completion.sample] = (completion.tokens, expected);
            }
            // All in one pass, which computes a group's prompt once: the same bits again.
            let all: Vec<(Vec<u32>, usize)> = outcome.iter().enumerate().flat_map(|(i, group)| {
                let prompt = request(i).prompt;
                group.iter().map(move |(tokens, _)| ([&prompt[..], tokens].concat(), prompt.len()))
            }).collect();
            let sequences: Vec<_> = all.iter().map(|(tokens, start)| Sequence { tokens, start: *start }).collect();
            let scores = score(&threads, &model, &mut Workspace::default(), &sequences, temperature).unwrap();
            for (i, (_, expected)) in outcome.iter().flatten().enumerate() {
                prop_assert_eq!(&(bits(scores.logprobs.row(i)), bits(scores.entropies.row(i))), expected, "sequence {}", i);
            }
            seen = if seen.is_empty() { outcome } else {
                prop_assert_eq!(&seen, &outcome);
                outcome
            };
        }
    }
}
