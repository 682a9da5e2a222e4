//! Sequences of several turns: keeping a turn's cache changes nothing except the work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and compares what must be exact")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, BatchGenerator, Completion, CompletionEnd, GenerationRequest, GeneratorSettings, Model,
    RequestId, SamplingParams, Sequence, SequenceName, SimdLevel, Threads, TransformerConfig, TurnPlace,
    Workspace, score,
};

const VOCAB: u64 = 53;
const LONGEST: usize = 230;

fn model(architecture: Architecture, heads: (usize, usize), head_dim: usize, seed: u64) -> Model {
    let mut config = TransformerConfig::new(architecture, VOCAB as usize, 32, 67, 2, heads.0, LONGEST);
    (config.num_kv_heads, config.head_dim) = (heads.1, head_dim);
    config.initializer_range = 0.3;
    Model::init(config, Key::new(seed, Purpose::Init)).unwrap()
}

fn name(group: u64, member: usize) -> SequenceName {
    SequenceName { kind: 0, group, member: member as u32 }
}

fn request(prompt: &[u32], keys: Vec<Key>, max_new_tokens: usize) -> GenerationRequest {
    let params = SamplingParams { max_new_tokens, stop_token_ids: vec![7], ..SamplingParams::default() };
    GenerationRequest { prompt: prompt.to_vec(), keys, params, stop: None, mask: None }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The prompt of the next turn.
#[derive(Debug, Clone, Copy)]
enum Between {
    /// Every member continues its own sequence.
    Own,
    /// All members continue the first one's sequence.
    First,
    /// Every member continues this many thirds of its own sequence.
    Cut(usize),
    /// Every member gets the same prompt again.
    Again,
}

/// Episodes to play.
#[derive(Debug, Clone)]
struct Play {
    seed: u64,
    /// Tokens of the prompt and members.
    groups: Vec<(usize, usize)>,
    /// For each further turn: the next prompt, and how many tokens are appended to it.
    turns: Vec<(Between, usize)>,
    max_new_tokens: usize,
    settings: GeneratorSettings,
}

/// A sampled turn: the step in which it ended, its prompt, tokens, and bits of log-probabilities and
/// entropies.
type Sampled = (usize, Vec<u32>, Vec<u32>, Vec<u32>, Vec<u32>);

/// Plays with at most `kept` sequences kept. Returns the turns by group, member and turn, and the number of
/// prompt tokens that were not computed.
fn play(
    play: &Play,
    threads: &Threads,
    model: &Model,
    max_kept: usize,
) -> (BTreeMap<(u64, usize, usize), Sampled>, u64) {
    let random = Key::new(play.seed, Purpose::Task);
    let key = |group: u64, member: usize, turn: usize| {
        Key::new(play.seed, Purpose::Rollout).with(group).with(member as u64).with(turn as u64)
    };
    let tokens =
        |key: Key, len: usize| (0..len as u64).map(|i| key.below(i, VOCAB) as u32).collect::<Vec<_>>();
    let mut generator = BatchGenerator::new(model.config(), play.settings);
    generator.keep_at_most(max_kept);
    let mut asked: BTreeMap<RequestId, (u64, Vec<usize>, usize, Vec<u32>)> = BTreeMap::new();
    let submit = |generator: &mut BatchGenerator,
                  asked: &mut BTreeMap<_, _>,
                  (group, members, turn, prompt): (u64, Vec<usize>, usize, Vec<u32>)| {
        let keys = members.iter().map(|&member| key(group, member, turn)).collect();
        let sequences = members.iter().map(|&member| name(group, member)).collect();
        let turn_of = TurnPlace { sequences, continues: turn > 0 };
        let id = generator.submit_turn(request(&prompt, keys, play.max_new_tokens), turn_of).unwrap();
        asked.insert(id, (group, members, turn, prompt));
    };
    for (group, &(len, members)) in play.groups.iter().enumerate() {
        let group = group as u64;
        let prompt = tokens(random.with(group), len);
        submit(&mut generator, &mut asked, (group, (0..members).collect(), 0, prompt));
    }
    let mut sampled: BTreeMap<(u64, usize, usize), Sampled> = BTreeMap::new();
    let mut step = 0;
    while !generator.is_idle() {
        step += 1;
        let done: Vec<Completion> = generator.step(threads, model);
        assert!(generator.num_kept() <= max_kept);
        for done in done {
            let (group, members, turn, prompt) = asked[&done.request].clone();
            let member = members[done.sample];
            let whole = [&prompt[..], &done.tokens].concat();
            let bits = (bits(&done.logprobs), bits(&done.entropies));
            sampled.insert((group, member, turn), (step, prompt.clone(), done.tokens, bits.0, bits.1));
            let Some(&(between, len)) = play.turns.get(turn) else { continue };
            let shown = |member: usize| tokens(random.with(group).with(member as u64).with(turn as u64), len);
            let num_members = play.groups[group as usize].1;
            let next = match between {
                Between::Own => (vec![member], [whole, shown(member)].concat()),
                Between::Cut(thirds) => {
                    (vec![member], [&whole[..(whole.len() * thirds / 3).max(1)], &shown(member)].concat())
                }
                Between::Again => (vec![member], prompt),
                Between::First => {
                    let turns = (0..num_members).map(|member| sampled.get(&(group, member, turn)));
                    let Some(ended) = turns.collect::<Option<Vec<_>>>() else { continue };
                    let whole = [&ended[0].1[..], &ended[0].2].concat();
                    ((0..num_members).collect(), [whole, shown(0)].concat())
                }
            };
            if next.1.len() + 1 < LONGEST {
                submit(&mut generator, &mut asked, (group, next.0, turn + 1, next.1));
            }
        }
    }
    (sampled, generator.num_reused_tokens())
}

fn between() -> impl Strategy<Value = Between> {
    prop_oneof![
        4 => Just(Between::Own),
        2 => Just(Between::First),
        2 => (0usize..3).prop_map(Between::Cut),
        1 => Just(Between::Again),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// The same tokens, log-probabilities and entropies at the same steps with all, some or no sequences
    /// kept, on one thread and on two. They are also those of the training pass over the whole.
    #[test]
    fn what_is_kept_changes_nothing(
        seed in 0u64..1000,
        architecture in prop_oneof![Just(Architecture::Qwen2), Just(Architecture::Qwen3), Just(Architecture::Llama)],
        heads in prop_oneof![Just((4usize, 2usize)), Just((2, 2)), Just((6, 1))],
        head_dim in prop_oneof![Just(6usize), Just(16), Just(20)],
        groups in proptest::collection::vec((1usize..90, 1usize..6), 1..5),
        turns in proptest::collection::vec((between(), 0usize..70), 1..5),
        max_new_tokens in 1usize..20,
        max_sequences in 1usize..20,
        shares_prompts in any::<bool>(),
        max_cached_tokens in prop_oneof![Just(usize::MAX), Just(300usize)],
        some in 1usize..4,
        level in 0usize..3,
    ) {
        let level = SimdLevel::available().nth(level).unwrap_or_else(SimdLevel::detect);
        let model = model(architecture, heads, head_dim, seed);
        let settings = GeneratorSettings { max_sequences, max_cached_tokens, shares_prompts };
        let turns_of = Play { seed, groups, turns, max_new_tokens, settings };
        let one = Threads::with_level(1, level);
        let (nothing, num_reused) = play(&turns_of, &one, &model, 0);
        prop_assert_eq!(num_reused, 0);
        for (threads, max_kept) in [(1, usize::MAX), (1, some), (2, usize::MAX)] {
            let threads = Threads::with_level(threads, level);
            // How many run at once depends on the number of threads.
            let apart = (threads.num_threads() > 1).then(|| play(&turns_of, &threads, &model, 0).0);
            let (kept, _) = play(&turns_of, &threads, &model, max_kept);
            prop_assert_eq!(apart.as_ref().unwrap_or(&nothing), &kept);
        }
        for (_, prompt, completion, logprobs, entropies) in nothing.values() {
            let tokens = [&prompt[..], completion].concat();
            let sequence = Sequence { tokens: &tokens, start: prompt.len() };
            let scores = score(&one, &model, &mut Workspace::default(), &[sequence], 1.0).unwrap();
            prop_assert_eq!(&bits(scores.logprobs.values()), logprobs);
            prop_assert_eq!(&bits(scores.entropies.values()), entropies);
        }
    }
}

fn small() -> Model {
    model(Architecture::Llama, (2, 1), 16, 3)
}

/// One turn of one sequence.
fn answer(
    generator: &mut BatchGenerator,
    threads: &Threads,
    model: &Model,
    name: SequenceName,
    prompt: &[u32],
) -> Completion {
    let keys = vec![Key::new(4, Purpose::Rollout).with(prompt.len() as u64)];
    let mut request = request(prompt, keys, 5);
    request.params.stop_token_ids.clear();
    let turn = TurnPlace { sequences: vec![name], continues: prompt.len() > 70 };
    generator.submit_turn(request, turn).unwrap();
    generator.run(threads, model).pop().unwrap()
}

/// Reuses all of the last turn except its last token, and never the last token of the prompt, whose logits
/// are needed.
#[test]
fn only_what_is_new_is_computed() {
    let (threads, model) = (Threads::new(1), small());
    let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
    let mut tokens: Vec<u32> = (0..70).map(|i| i % 50).collect();
    let mut computed_before = Vec::new();
    for _ in 0..4 {
        let before = generator.num_reused_tokens();
        let done = answer(&mut generator, &threads, &model, name(0, 0), &tokens);
        computed_before.push(generator.num_reused_tokens() - before);
        tokens.extend(done.tokens);
        tokens.extend([1, 2, 3]);
    }
    assert_eq!(computed_before, [0, 70 + 4, 70 + 8 + 4, 70 + 16 + 4]);
    let again = [tokens[..70].to_vec(), vec![51; 20]].concat();
    let before = generator.num_reused_tokens();
    answer(&mut generator, &threads, &model, name(0, 0), &again);
    assert_eq!(generator.num_reused_tokens() - before, 70, "what is in common");
    let before = generator.num_reused_tokens();
    answer(&mut generator, &threads, &model, name(0, 0), &again);
    assert_eq!(generator.num_reused_tokens() - before, 89, "all but the last");
    let before = generator.num_reused_tokens();
    answer(&mut generator, &threads, &model, name(0, 1), &again);
    answer(&mut generator, &threads, &model, name(1, 0), &again);
    assert_eq!(generator.num_reused_tokens(), before, "of other sequences");
}

#[test]
fn a_longer_beginning_takes_the_place_of_what_is_kept() {
    let (threads, model) = (Threads::new(1), small());
    let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
    let with_system = |question: u32| [vec![1; 40], vec![question; 5]].concat();
    let shared = |generator: &BatchGenerator| generator.num_shared_tokens();
    let ask = |generator: &mut BatchGenerator, episode: u64, prompt: &[u32]| {
        answer(generator, &threads, &model, name(episode, 0), prompt)
    };
    // As many are kept as have run at once: three.
    for number in 0..3 {
        generator
            .submit(request(&[9 + number; 5], vec![Key::new(number.into(), Purpose::Rollout)], 2))
            .unwrap();
    }
    generator.run(&threads, &model);
    // Two prompts whose prefix is then kept, and one that shares a single token with them.
    ask(&mut generator, 0, &[&[1], &[2; 30][..]].concat());
    ask(&mut generator, 1, &with_system(3));
    ask(&mut generator, 2, &with_system(4));
    assert_eq!(generator.num_kept(), 3);
    let before = (shared(&generator), generator.num_reused_tokens());
    let done = ask(&mut generator, 0, &with_system(5));
    assert_eq!((shared(&generator), generator.num_reused_tokens()), (before.0 + 40, before.1));
    let mut alone = BatchGenerator::new(model.config(), GeneratorSettings::default());
    let expected = ask(&mut alone, 0, &with_system(5));
    assert_eq!((done.tokens, done.logprobs), (expected.tokens, expected.logprobs));
    // Now more is kept of it than the prefix.
    ask(&mut generator, 0, &[with_system(5), vec![6; 10]].concat());
    assert_eq!((shared(&generator), generator.num_reused_tokens()), (before.0 + 40, before.1 + 45));
}

/// Running and kept sequences are never more than the most that have run at once. The oldest is evicted
/// first, and sequences can be evicted explicitly.
#[test]
fn what_is_kept_takes_the_place_of_what_runs() {
    let (threads, model) = (Threads::new(1), small());
    let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
    let prompt: Vec<u32> = (0..40).collect();
    let group = |generator: &mut BatchGenerator, group: u64, members: usize| {
        let keys = (0..members as u64).map(|member| Key::new(4, Purpose::Rollout).with(member)).collect();
        let sequences = (0..members).map(|member| name(group, member)).collect();
        generator.submit_turn(request(&prompt, keys, 6), TurnPlace { sequences, continues: false }).unwrap()
    };
    group(&mut generator, 0, 3);
    generator.run(&threads, &model);
    assert_eq!(generator.num_kept(), 3);
    group(&mut generator, 1, 1);
    generator.run(&threads, &model);
    assert_eq!(generator.num_kept(), 3, "one of the first group made room");
    generator.forget(|name| name.group == 0);
    assert_eq!(generator.num_kept(), 1);
    // Aborted sequences are not kept.
    let id = group(&mut generator, 2, 2);
    generator.step(&threads, &model);
    assert!(generator.abort(id).iter().all(|done| done.finish == CompletionEnd::Aborted));
    assert_eq!(generator.num_kept(), 1);
    generator.keep_at_most(0);
    assert_eq!(generator.num_kept(), 0);
    group(&mut generator, 3, 3);
    generator.run(&threads, &model);
    assert_eq!(generator.num_kept(), 0);
    // Other weights: recomputed caches are not kept.
    generator.keep_at_most(9);
    group(&mut generator, 4, 2);
    generator.run(&threads, &model);
    generator.recompute(&threads, &model);
    assert_eq!(generator.num_kept(), 0);
    // A step that was stopped leaves nothing usable.
    let stop = Arc::new(AtomicBool::new(true));
    generator.stop_on(Arc::clone(&stop));
    group(&mut generator, 5, 2);
    generator.run(&threads, &model);
    assert_eq!(generator.num_kept(), 0);
    assert!(stop.load(Ordering::Relaxed));
}

#[test]
fn a_next_turn_goes_before_a_first_one() {
    let (threads, model) = (Threads::new(1), small());
    let settings = GeneratorSettings { max_sequences: 1, ..GeneratorSettings::default() };
    let mut generator = BatchGenerator::new(model.config(), settings);
    let mut submit = |group: u64, continues: bool| {
        let turn = TurnPlace { sequences: vec![name(group, 0)], continues };
        let keys = vec![Key::new(4, Purpose::Rollout).with(group)];
        generator.submit_turn(request(&[1, 2, 3], keys, 3), turn).unwrap()
    };
    let ids = [submit(0, false), submit(1, true), submit(2, false), submit(3, true)];
    let order: Vec<_> = generator.run(&threads, &model).iter().map(|done| done.request).collect();
    assert_eq!(order, [ids[1], ids[3], ids[0], ids[2]]);
}

#[test]
fn a_turn_goes_on_by_other_weights() {
    let (threads, old) = (Threads::new(1), small());
    let mut new = old.clone();
    new.nudge("model.layers.0.self_attn.k_proj.weight", |i| if i % 3 == 0 { 0.2 } else { -0.1 });
    let mut generator = BatchGenerator::new(old.config(), GeneratorSettings::default());
    let prompt: Vec<u32> = (0..30).collect();
    let keys: Vec<Key> = (0..3).map(|member| Key::new(4, Purpose::Rollout).with(member)).collect();
    let sequences: Vec<_> = (0..3).map(|member| name(0, member)).collect();
    let first = TurnPlace { sequences: sequences.clone(), continues: false };
    let mut first_request = request(&prompt, keys.clone(), 8);
    first_request.params.stop_token_ids.clear();
    generator.submit_turn(first_request, first).unwrap();
    let done = generator.run(&threads, &old);
    let mut prompts = BTreeMap::new();
    let mut next = |prompt: Vec<u32>, keys: Vec<Key>, sequences: Vec<SequenceName>| {
        let mut request = request(&prompt, keys, 12);
        request.params.stop_token_ids.clear();
        let id = generator.submit_turn(request, TurnPlace { sequences, continues: true }).unwrap();
        prompts.insert(id, prompt);
    };
    let after = |member: usize| {
        let done = done.iter().find(|done| done.sample == member).unwrap();
        [&prompt[..], &done.tokens, &[9, 8]].concat()
    };
    next(after(0), vec![keys[0]], vec![sequences[0]]);
    next(after(1), keys[1..].to_vec(), sequences[1..].to_vec());
    for _ in 0..4 {
        assert!(generator.step(&threads, &old).is_empty());
    }
    assert_eq!(generator.num_reused_tokens(), 2 * (30 + 7));
    let num_before = generator.running().next().unwrap().tokens.len();
    generator.recompute(&threads, &new);
    for done in generator.run(&threads, &new) {
        let prompt = &prompts[&done.request];
        let tokens = [&prompt[..], &done.tokens].concat();
        let sequence = Sequence { tokens: &tokens, start: prompt.len() };
        let scored = score(&threads, &new, &mut Workspace::default(), &[sequence], 1.0).unwrap().logprobs;
        assert_eq!(done.logprobs[num_before..], scored.row(0)[num_before..]);
        assert_ne!(done.logprobs[..num_before], scored.row(0)[..num_before]);
    }
}
