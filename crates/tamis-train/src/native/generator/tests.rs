use std::collections::BTreeMap;

use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::Spent;
use tamis_model::{AdamWConfig, Architecture, SaveDtype, TransformerConfig};
use tamis_rollout::{FailureKind, Sampling};
use tamis_text::regex_mask::WholeRegex;

use super::*;
use crate::learner::{
    Learner, LearnerSequence, Network, RunLearner, SaveContent, TokenColumns, Trained, Wave,
};
use crate::native::{EngineSettings, NativeModels};
use crate::prompts::codec::Codec;
use tamis_run::durable::Disk;

fn codec() -> Codec {
    let tokenizer = Tokenizer::characters("0123").expect("characters");
    Codec::new(tokenizer, None, serde_json::Map::new(), None).expect("a codec")
}

fn learner(interrupt: &Interrupt) -> NativeEngine {
    let codec = codec();
    let num_rows = codec.tokenizer().num_rows();
    let mut config = TransformerConfig::new(Architecture::Llama, num_rows, 16, 32, 1, 1, 64);
    config.num_kv_heads = 1;
    let model = Model::init(config, Key::new(1, Purpose::Init)).expect("a model");
    let settings = EngineSettings {
        threads: 1,
        temperature: 1.0,
        max_grad_norm: None,
        recompute_activations: false,
        max_num_seqs: 8,
        max_open_samples: None,
        optimizer: AdamWConfig::default(),
        critic: None,
    };
    let models = NativeModels { policy: model, reference: None, critic: None, teachers: Vec::new() };
    NativeEngine::new(models, Some(codec), settings, &Disk::new(), interrupt)
}

fn request(group: u64, member: u32, sampling: &Arc<Sampling>) -> SampleRequest {
    SampleRequest {
        prompt: None,
        id: SampleId { purpose: SamplePurpose::Rollout, group, member, turn: 0, attempt: 0 },
        prompt_token_ids: Arc::from([1, 2, 3]),
        images: Arc::default(),
        key: Key::new(1, Purpose::Rollout).with(group).with(u64::from(member)),
        sampling: sampling.clone(),
    }
}

fn sampling(max_response_length: usize) -> Arc<Sampling> {
    Arc::new(Sampling::plain(max_response_length))
}

fn all(generator: &mut NativeGenerator) -> Vec<GeneratorEvent> {
    let mut all = Vec::new();
    loop {
        let events = generator.next(Wait::Forever).expect("generates");
        if events.is_empty() {
            return all;
        }
        all.extend(events);
    }
}

fn samples(events: Vec<GeneratorEvent>) -> BTreeMap<SampleId, Sample> {
    let sampled = |event| match event {
        GeneratorEvent::Sampled { id, sample } => Some((id, sample)),
        _ => None,
    };
    events.into_iter().filter_map(sampled).collect()
}

fn train(learner: &mut NativeEngine) {
    let wave = Wave::of(&[LearnerSequence::of_text(&[1, 2], &[3, 2, 1])]);
    let columns = learner.forward_hold(Trained::Policy, &wave).expect("a pass");
    let logprobs = vec![-1.0; columns.logprobs.len()];
    learner.backward(TokenColumns { logprobs, ..TokenColumns::default() }).expect("a pass");
    learner.optim_step(Trained::Policy, 0.05).expect("a step");
}

#[expect(clippy::float_cmp, reason = "whole numbers")]
#[test]
fn operations_of_updates_are_counted_beside_a_measured_peak() {
    let mut learner = learner(&Interrupt::new());
    assert_eq!(learner.take_work().expect("known").operations, 0.0);
    train(&mut learner);
    // A layer has 16 x (2 x 16 + 2 x 16 + 3 x 32) weights, the head 16 for each token of the vocabulary.
    // There are 5 tokens, 3 of them of the completion, and they see 15 pairs.
    let head = 6 * 16 * codec().tokenizer().num_rows() * 3;
    let done = learner.take_work().expect("known");
    assert_eq!(done.operations, (6 * 2560 * 5 + head + 12 * 16 * 15) as f64);
    assert!(done.peak > 1e7, "{done:?}");
    assert_eq!(learner.training_work().expect("known").peak, done.peak);
    assert_eq!(learner.take_work().expect("known").operations, 0.0);
}

/// Publishes the current weights under a version.
fn publish(learner: &mut NativeEngine, version: u64) -> Publication {
    learner.publish(PolicyVersion(version)).expect("published");
    Publication { version: PolicyVersion(version), weights: Weights::InProcess }
}

#[test]
fn an_id_in_flight_is_refused_and_another_purpose_is_another_id() {
    let learner = learner(&Interrupt::new());
    let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
    let sampling = sampling(4);
    let rollout = request(3, 0, &sampling);
    let validation = SampleRequest {
        prompt: None,
        id: SampleId { purpose: SamplePurpose::Validation, ..rollout.id },
        ..rollout.clone()
    };
    generator.submit(rollout.clone()).expect("taken");
    generator.submit(validation).expect("another one");
    let refused = generator.submit(rollout.clone()).expect_err("in flight");
    assert_eq!(refused.to_string(), "group 3, member 0 is in flight already");
    assert_eq!(generator.load().in_flight, 2);
    assert_eq!(samples(all(&mut generator)).len(), 2);
    assert_eq!(generator.load().in_flight, 0);
    generator.submit(rollout).expect("free again");
}

/// Complete texts match the expression, and truncated ones start a match. Tokens are a function of the key,
/// and log-probabilities are those of the learner.
#[test]
fn completions_match_the_expression_whatever_else_is_sampled() {
    let mut learner = learner(&Interrupt::new());
    let form = |regex: &str, max_response_length| {
        Arc::new(Sampling { regex: Some(regex.to_owned()), ..(*sampling(max_response_length)).clone() })
    };
    let free = sampling(12);
    let kinds = [("3[0-2]*3", 12), ("(01|2){1,4}", 12), ("[12]{4,9}0", 5), ("(012|013)", 12)];
    let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
    let mut requests = Vec::new();
    for (kind, (regex, longest)) in kinds.iter().enumerate() {
        let bound = form(regex, *longest);
        for member in 0..6 {
            requests.push((Some(*regex), request(kind as u64, member, &bound)));
        }
        requests.push((None, request(100 + kind as u64, 0, &free)));
    }
    for (_, request) in &requests {
        generator.submit(request.clone()).expect("taken");
    }
    let together = samples(all(&mut generator));
    let mut cut = 0;
    for (regex, request) in requests {
        let mut alone = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
        alone.submit(request.clone()).expect("taken");
        let found = &samples(all(&mut alone))[&request.id];
        assert_eq!(found, &together[&request.id]);
        let sequence = LearnerSequence::of_text(&request.prompt_token_ids, &found.token_ids);
        assert_eq!(
            learner.forward(Network::Policy, &Wave::of(&[sequence]), 1.0).expect("a pass").logprobs,
            found.logprobs
        );
        let Some(regex) = regex.map(|regex| (regex, WholeRegex::new(regex).expect("an expression"))) else {
            continue;
        };
        match found.finish_reason {
            FinishReason::Stop => assert!(regex.1.matches(&found.text), "{:?} of {}", found.text, regex.0),
            FinishReason::Length => {
                assert!(regex.1.may_begin(&found.text), "{:?} of {}", found.text, regex.0);
                cut += 1;
            }
        }
    }
    assert!(cut >= 6, "four digits of five at least, and no end");
}

#[test]
fn an_expression_without_a_match_is_told() {
    let learner = learner(&Interrupt::new());
    let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
    let bound = Arc::new(Sampling { regex: Some("0x".to_owned()), ..(*sampling(4)).clone() });
    generator.submit(request(0, 0, &bound)).expect("taken");
    let error = generator.next(Wait::Forever).expect_err("nothing matches");
    assert!(error.to_string().contains("tokens matches the expression"), "{error}");
}

/// One sample of a group is aborted before it starts and one after. The others are unchanged, and tokens
/// spent are counted.
#[test]
fn single_samples_are_given_up_with_their_tokens() {
    let learner = learner(&Interrupt::new());
    let sampling = sampling(20);
    let submitted = || {
        let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
        for member in 0..8 {
            generator.submit(request(0, member, &sampling)).expect("taken");
        }
        generator
    };
    let whole = samples(all(&mut submitted()));
    let long = whole.iter().find(|(id, sample)| id.member > 0 && sample.token_ids.len() > 4);
    let long = *long.expect("one that takes more than a step").0;

    let mut generator = submitted();
    generator.abort(AbortScope::Sample(request(0, 0, &sampling).id));
    let mut events = generator.next(Wait::No).expect("nothing is waited for");
    events.extend(generator.next(Wait::Until(Instant::now())).expect("a step"));
    generator.abort(AbortScope::Sample(long));
    // A second abort does nothing.
    generator.abort(AbortScope::Sample(long));
    events.extend(all(&mut generator));
    assert_eq!(generator.load().in_flight, 0);
    let aborted: Vec<(u32, bool)> = events
        .iter()
        .filter_map(|event| match event {
            GeneratorEvent::Aborted { id, spent } => Some((id.member, spent.tokens > 0)),
            _ => None,
        })
        .collect();
    assert_eq!(aborted, [(0, false), (long.member, true)], "the first had not begun");
    let left = samples(events);
    assert_eq!(left.len(), 6);
    assert!(left.iter().all(|(id, sample)| whole[id] == *sample));
}

/// The learner changes its weights in place while nothing is in flight. Samples in flight keep the weights
/// that they started with, and a publication waits for them.
#[test]
fn samples_in_flight_keep_their_weights_until_a_publication() {
    let mut learner = learner(&Interrupt::new());
    let sampling = sampling(30);
    let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
    generator.submit(request(0, 0, &sampling)).expect("taken");
    let before = samples(all(&mut generator));
    assert!(generator.weights.is_none(), "idle, it holds no weights");

    generator.submit(request(0, 0, &sampling)).expect("taken");
    assert!(generator.next(Wait::Until(Instant::now())).expect("a step").is_empty());
    train(&mut learner);
    let publication = publish(&mut learner, 1);
    generator.publish(&publication, InFlight::Wait).expect("taken");
    generator.submit(request(0, 1, &sampling)).expect("taken");
    let mut events = Vec::new();
    while !events.iter().any(|event| matches!(event, GeneratorEvent::Published { .. })) {
        events.extend(generator.next(Wait::Forever).expect("generates"));
    }
    assert_eq!(samples(events), before, "by the old weights, under the old version");
    let after = samples(all(&mut generator));
    let sample = after.values().next().expect("the one that waited");
    assert_eq!(sample.version_range(), (publication.version, publication.version));

    // The same sample with the new weights.
    let mut fresh = NativeGenerator::of(&learner, &codec(), PolicyVersion(1));
    fresh.submit(request(0, 1, &sampling)).expect("taken");
    assert_eq!(samples(all(&mut fresh)).values().next(), Some(sample));

    // After the abort nothing from the old weights arrives.
    generator.submit(request(0, 0, &sampling)).expect("taken");
    let third = publish(&mut learner, 2);
    generator.publish(&third, InFlight::Abort).expect("taken");
    let events = all(&mut generator);
    assert!(matches!(events[..], [GeneratorEvent::Aborted { .. }, GeneratorEvent::Published { .. }]));
}

#[test]
fn weights_in_a_folder_sample_as_those_in_memory() {
    let mut learner = learner(&Interrupt::new());
    let sampling = sampling(30);
    let settings = learner.settings;
    let mut apart = NativeGenerator::apart(&codec(), settings, PolicyVersion(0), &Interrupt::new());
    for version in 1..3 {
        train(&mut learner);
        let folder = tempfile::tempdir().expect("a folder");
        learner
            .save(folder.path(), SaveContent::Weights { untied: false, dtype: SaveDtype::F32 })
            .expect("saved");
        let weights = Weights::Folder(folder.path().to_owned());
        apart
            .publish(&Publication { version: PolicyVersion(version), weights }, InFlight::Wait)
            .expect("read");
        let mut beside = NativeGenerator::of(&learner, &codec(), PolicyVersion(version));
        for generator in [&mut apart, &mut beside] {
            generator.submit(request(version, 0, &sampling)).expect("taken");
        }
        assert_eq!(samples(all(&mut apart)), samples(all(&mut beside)));
    }
    let gone = Weights::Folder("/nowhere".into());
    let error = apart.publish(&Publication { version: PolicyVersion(3), weights: gone }, InFlight::Wait);
    let error = error.expect_err("no folder").to_string();
    assert!(error.contains("/nowhere"), "{error}");
}

/// A bad prompt or stop text fails only its own request.
#[test]
fn what_cannot_be_generated_fails_alone() {
    let learner = learner(&Interrupt::new());
    let sampling = sampling(4);
    let odd = Arc::new(Sampling { stop: vec![String::new()], ..(*sampling).clone() });
    let empty = SampleRequest { prompt_token_ids: Arc::from([]), ..request(0, 0, &sampling) };
    for (wrong, why) in [
        (empty, "the prompt is empty"),
        (request(0, 0, &odd), "stop string 0 is empty; every text contains it"),
    ] {
        let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
        generator.submit(wrong).expect("taken");
        generator.submit(request(1, 0, &sampling)).expect("taken");
        let events = all(&mut generator);
        let GeneratorEvent::Failed { id, kind, reason, spent } = &events[0] else { panic!("{events:?}") };
        assert_eq!((id.group, *kind, reason.as_str()), (0, FailureKind::Permanent, why));
        assert_eq!(*spent, Spent { tokens: 0, turns: 0 });
        assert_eq!(samples(events).len(), 1);
    }
}

/// If interrupted, it returns at once with nothing, and the caller checks the interrupt.
#[test]
fn an_interrupt_ends_the_wait() {
    let interrupt = Interrupt::new();
    let learner = learner(&interrupt);
    let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
    generator.submit(request(0, 0, &sampling(30))).expect("taken");
    interrupt.signal();
    assert_eq!(generator.next(Wait::Forever).expect("no failure"), []);
    assert_eq!(generator.load().in_flight, 1);
}

/// The request of the next turn, after an answer and the text that follows it.
fn next_turn(before: &SampleRequest, answer: &Sample, shown: &[u32]) -> SampleRequest {
    let turn = before.id.turn + 1;
    SampleRequest {
        id: SampleId { turn, ..before.id },
        prompt_token_ids: [&before.prompt_token_ids[..], &answer.token_ids, shown].concat().into(),
        key: before.key.with(u64::from(turn)),
        ..before.clone()
    }
}

/// Plays two more turns of every request, in the order in which turns end. Returns the requests with their
/// samples.
fn play(generator: &mut NativeGenerator, asked: Vec<SampleRequest>) -> Vec<(SampleRequest, Sample)> {
    let last = asked[0].id.turn + 2;
    let mut open: BTreeMap<SampleId, SampleRequest> = BTreeMap::new();
    for request in asked {
        open.insert(request.id, request.clone());
        generator.submit(request).expect("taken");
    }
    let mut played = Vec::new();
    while !open.is_empty() {
        let events = generator.next(Wait::Forever).expect("generates");
        assert!(!events.is_empty(), "{} are open", open.len());
        for event in events {
            let GeneratorEvent::Sampled { id, sample } = event else { continue };
            let request = open.remove(&id).expect("asked for");
            if id.turn < last {
                let next = next_turn(&request, &sample, &[1, 2, 3, id.member % 4]);
                open.insert(next.id, next.clone());
                generator.submit(next).expect("taken");
            }
            played.push((request, sample));
        }
    }
    played
}

/// Number of kept turns, and number of prompt tokens that were reused from them.
fn kept(generator: &NativeGenerator) -> (usize, u64) {
    let engines = [&generator.rollouts, &generator.others].map(|lane| lane.engine.as_ref());
    let each = engines.into_iter().flatten().map(|engine| (engine.num_kept(), engine.num_reused_tokens()));
    each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn next_turns(played: &[(SampleRequest, Sample)]) -> Vec<SampleRequest> {
    let third = played.iter().filter(|(request, _)| request.id.turn == 2);
    third.map(|(request, sample)| next_turn(request, sample, &[3])).collect()
}

/// Tokens, log-probabilities and order are the same whether all, some or no earlier turns are kept. The
/// log-probabilities are those of the learner.
#[test]
fn turns_are_the_same_whatever_is_kept_of_those_before() {
    let mut learner = learner(&Interrupt::new());
    let sampling = sampling(5);
    let asked = || {
        let members = (0..3).flat_map(|group| (0..4).map(move |member| (group, member)));
        members.map(|(group, member)| request(group, member, &sampling)).collect::<Vec<_>>()
    };
    let with = |max_kept: usize| {
        let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
        generator.max_kept = max_kept;
        let mut played = play(&mut generator, asked());
        played.extend(play(&mut generator, next_turns(&played)));
        (played, kept(&generator))
    };
    let (nothing, counts) = with(0);
    assert_eq!(counts, (0, 0));
    assert_eq!(nothing.len(), 12 * 6);
    let (some, (_, reused_of_some)) = with(3);
    let (all, (num_kept, reused_of_all)) = with(usize::MAX);
    assert!(num_kept <= 8, "as many as run at once");
    assert!(0 < reused_of_some && reused_of_some < reused_of_all, "{reused_of_some} of {reused_of_all}");
    let same = |others: Vec<(SampleRequest, Sample)>| {
        for (found, expected) in others.iter().zip(&nothing) {
            assert_eq!((found.0.id, &found.1), (expected.0.id, &expected.1));
        }
        assert_eq!(others.len(), nothing.len());
    };
    same(some);
    same(all);
    for (request, sample) in &nothing {
        let sequence = LearnerSequence::of_text(&request.prompt_token_ids, &sample.token_ids);
        let scored = learner.forward(Network::Policy, &Wave::of(&[sequence]), 1.0).expect("a pass");
        assert_eq!(scored.logprobs, sample.logprobs, "{:?}", request.id);
    }
}

#[test]
fn nothing_of_other_weights_is_used() {
    let mut learner = learner(&Interrupt::new());
    let sampling = sampling(5);
    let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
    let first = play(&mut generator, (0..4).map(|member| request(0, member, &sampling)).collect());
    assert!(kept(&generator).0 > 0);
    let without = |learner: &NativeEngine| {
        let mut fresh = NativeGenerator::of(learner, &codec(), PolicyVersion(0));
        fresh.max_kept = 0;
        let next = next_turns(&first);
        play(&mut fresh, next).into_iter().map(|(_, sample)| (sample.token_ids, sample.logprobs)).collect()
    };
    let by_old: Vec<_> = without(&learner);
    for is_published in [false, true] {
        // Keeps turns computed with the current weights.
        play(&mut generator, next_turns(&first));
        let (num_kept, num_before) = kept(&generator);
        assert!(num_kept > 0);
        train(&mut learner);
        if is_published {
            let publication = publish(&mut learner, 1);
            generator.publish(&publication, InFlight::Wait).expect("taken");
            assert_eq!(kept(&generator).0, 0, "forgotten");
            assert!(matches!(all(&mut generator)[..], [GeneratorEvent::Published { .. }]));
        }
        let next = next_turns(&first);
        for request in &next {
            generator.submit(request.clone()).expect("taken");
        }
        generator.next(Wait::Until(Instant::now())).expect("a step");
        assert_eq!(kept(&generator).1, num_before, "computed anew");
        all(&mut generator);
        let by_new: Vec<_> = without(&learner);
        assert_ne!(by_new, by_old);
        let found = play(&mut generator, next);
        let found: Vec<_> =
            found.into_iter().map(|(_, sample)| (sample.token_ids, sample.logprobs)).collect();
        assert_eq!(found, by_new);
    }
}

/// Aborted groups are forgotten, in flight or not. Nothing is kept before an episode has had a second turn.
#[test]
fn what_does_not_come_back_is_forgotten() {
    let learner = learner(&Interrupt::new());
    let sampling = sampling(5);
    let mut generator = NativeGenerator::of(&learner, &codec(), PolicyVersion(0));
    for group in 0..2 {
        generator.submit(request(group, 0, &sampling)).expect("taken");
    }
    all(&mut generator);
    assert_eq!(kept(&generator), (0, 0));
    play(&mut generator, (0..6).map(|group| request(group / 3, (group % 3) as u32, &sampling)).collect());
    assert_eq!(kept(&generator).0, 6);
    generator.abort(AbortScope::Sample(request(0, 1, &sampling).id));
    assert_eq!(kept(&generator).0, 5);
    generator.abort(AbortScope::Group { purpose: SamplePurpose::Validation, group: 1 });
    assert_eq!(kept(&generator).0, 5);
    generator.abort(AbortScope::Group { purpose: SamplePurpose::Rollout, group: 1 });
    assert_eq!(kept(&generator).0, 2);
    generator.abort(AbortScope::Purpose(SamplePurpose::Rollout));
    assert_eq!(kept(&generator).0, 0);
}
