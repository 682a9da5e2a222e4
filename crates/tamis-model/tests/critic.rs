//! A critic: values that only depend on their own sequence, its gradient, its files, and the errors for
//! invalid files.
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "a test fails by panicking")]

use std::error::Error;
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;
use tamis_core::fault;
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};
use tamis_model::{
    AdamW, AdamWConfig, Architecture, CheckpointError, Coefficients, Gradients, MemoryEstimate, MemoryPlan,
    Model, OutputHead, PassOptions, SaveDtype, Sequence, SimdLevel, Threads, TransformerConfig, Workspace,
    backward, forward_hold, logits, score, values, values_backward, values_forward_hold,
};

mod support;

use support::{assert_near, check_slopes, sequences};

const VOCAB: usize = 37;

fn policy(architecture: Architecture, tied: bool, seed: u64) -> Model {
    let mut config = TransformerConfig::new(architecture, VOCAB, 22, 40, 2, 4, 96);
    (config.num_kv_heads, config.head_dim, config.tie_word_embeddings) = (2, 6, tied);
    config.initializer_range = 0.25;
    Model::init(config, Key::new(seed, Purpose::Init)).unwrap()
}

/// A trained critic: its head is not zero.
fn critic(architecture: Architecture, tied: bool, seed: u64) -> Model {
    let mut critic = policy(architecture, tied, seed).critic();
    let key = Key::new(seed, Purpose::Init).with(1);
    assert!(critic.nudge("score.weight", |i| key.normal(i as u64) as f32));
    assert!(critic.nudge("score.bias", |_| 0.3));
    critic
}

fn critics() -> [Model; 3] {
    [
        critic(Architecture::Qwen2, true, 1),
        critic(Architecture::Qwen3, false, 2),
        critic(Architecture::Llama, true, 3),
    ]
}

/// Groups with one prompt, also with members that have nothing scored, and single sequences.
fn rows() -> Vec<(Vec<u32>, usize)> {
    let key = Key::new(4, Purpose::Task);
    let draw = |salt: u64, len: usize| -> Vec<u32> {
        (0..len as u64).map(|t| key.with(salt).below(t, VOCAB as u64) as u32).collect()
    };
    let groups = [(10u64, 18usize, &[1usize, 0, 33, 6][..]), (11, 1, &[4, 7]), (12, 5, &[9])];
    let member = |prompt: u64, len: usize, (i, &more): (usize, &usize)| {
        ([draw(prompt, len), draw(100 * prompt + i as u64, more)].concat(), len)
    };
    groups
        .iter()
        .flat_map(|&(prompt, len, members)| {
            members.iter().enumerate().map(move |one| member(prompt, len, one)).collect::<Vec<_>>()
        })
        .collect()
}

fn slopes(first: usize, values: &Ragged<f32>) -> Vec<f32> {
    let key = Key::new(8, Purpose::Bootstrap);
    (first..first + values.num_values()).map(|i| key.normal(i as u64) as f32).collect()
}

fn gradients(threads: &Threads, model: &Model, options: PassOptions, size: usize) -> Gradients {
    let rows = rows();
    let mut gradients = Gradients::new(model);
    let mut first = 0;
    for part in sequences(&rows).chunks(size) {
        let mut workspace = Workspace::default();
        let (values, held) = values_forward_hold(threads, model, &mut workspace, part, options).unwrap();
        let upstream = slopes(first, &values);
        values_backward(threads, model, &mut workspace, held, upstream, &mut gradients).unwrap();
        first += values.num_values();
    }
    gradients
}

#[test]
fn a_new_critic_has_the_policys_layers_and_says_zero() {
    for (architecture, tied) in [(Architecture::Qwen2, true), (Architecture::Llama, false)] {
        let policy = policy(architecture, tied, 5);
        let critic = policy.critic();
        assert_eq!(critic.config().head, OutputHead::Value);
        let of_policy: Vec<_> = policy.tensors().collect();
        for (name, shape, values) in critic.tensors() {
            if name.starts_with("score") {
                assert!(values.iter().all(|&value| value == 0.0), "{name}");
            } else {
                assert!(of_policy.contains(&(name, shape, values)), "{name}");
            }
        }
        let rows = rows();
        let predicted =
            values(&Threads::new(1), &critic, &mut Workspace::default(), &sequences(&rows)).unwrap();
        assert_eq!(predicted.num_rows(), rows.len());
        assert!(predicted.values().iter().all(|&value| value == 0.0));
    }
}

#[test]
fn gradient_is_the_central_difference() {
    let threads = Threads::new(1);
    let rows = rows();
    for model in critics() {
        let analytic = gradients(&threads, &model, PassOptions::default(), usize::MAX);
        let objective = |model: &Model| -> f64 {
            let predicted = values(&threads, model, &mut Workspace::default(), &sequences(&rows)).unwrap();
            predicted
                .values()
                .iter()
                .zip(slopes(0, &predicted))
                .map(|(&v, c)| f64::from(v) * f64::from(c))
                .sum()
        };
        check_slopes(&model, &analytic, objective);
    }
}

#[test]
fn gradients_do_not_depend_on_threads_recomputation_or_micro_batches() {
    for model in critics() {
        let plain = PassOptions::default();
        let whole = gradients(&Threads::new(1), &model, plain, usize::MAX);
        for num_threads in [2, 3] {
            let threads = Threads::new(num_threads);
            assert!(gradients(&threads, &model, plain, usize::MAX).same_bits(&whole));
            let again = PassOptions { recompute: true, ..plain };
            assert!(gradients(&threads, &model, again, usize::MAX).same_bits(&whole));
        }
        assert_near(&whole, &gradients(&Threads::new(1), &model, plain, 2), 1e-5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn a_value_depends_on_its_own_sequence_alone(
        seed in 0u64..1000,
        tied in any::<bool>(),
        lengths in proptest::collection::vec((1usize..40, proptest::collection::vec(0usize..30, 1..4)), 1..5),
        reversed in any::<bool>(),
        level in 0usize..3,
    ) {
        let level = SimdLevel::available().nth(level).unwrap_or_else(SimdLevel::detect);
        let model = critic(Architecture::Qwen3, tied, seed);
        let key = Key::new(seed, Purpose::Task);
        let draw = |salt: u64, len: usize| -> Vec<u32> {
            (0..len as u64).map(|t| key.with(salt).below(t, VOCAB as u64) as u32).collect()
        };
        let mut rows: Vec<(Vec<u32>, usize)> = lengths.iter().enumerate().flat_map(|(g, (prompt, members))| {
            let context = draw(g as u64, *prompt);
            let one = |(i, &more): (usize, &usize)| ([&context[..], &draw(100 + 10 * g as u64 + i as u64, more)].concat(), *prompt);
            members.iter().enumerate().map(one).collect::<Vec<_>>()
        }).collect();
        if reversed {
            rows.reverse();
        }
        let mut workspace = Workspace::default();
        let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let together = [1, 2].map(|num_threads| {
            values(&Threads::with_level(num_threads, level), &model, &mut workspace, &sequences(&rows)).unwrap()
        });
        let threads = Threads::with_level(1, level);
        for (i, sequence) in sequences(&rows).into_iter().enumerate() {
            let alone = values(&threads, &model, &mut workspace, &[sequence]).unwrap();
            prop_assert_eq!(alone.row(0).len(), sequence.tokens.len() - sequence.start);
            for other in &together {
                prop_assert_eq!(bits(alone.row(0)), bits(other.row(i)), "sequence {}", i);
            }
        }
    }
}

#[test]
fn it_learns_a_value_and_goes_on_from_its_files() {
    let threads = Threads::new(2);
    let rows = rows();
    let mut model = policy(Architecture::Qwen3, true, 6).critic();
    let mut optimizer = AdamW::new(&model, AdamWConfig::default());
    let folder = tempfile::tempdir().unwrap();
    let step = |model: &mut Model, optimizer: &mut AdamW| -> f64 {
        let mut gradients = Gradients::new(model);
        // Half the squared distance to a target for each sequence.
        let (mut workspace, options) = (Workspace::default(), PassOptions::default());
        let (predicted, held) =
            values_forward_hold(&threads, model, &mut workspace, &sequences(&rows), options).unwrap();
        let errors: Vec<f32> = predicted
            .rows()
            .enumerate()
            .flat_map(|(i, row)| row.iter().map(move |&value| value - i as f32 / 4.0))
            .collect();
        let loss = errors.iter().map(|&error| f64::from(error).powi(2)).sum();
        values_backward(&threads, model, &mut workspace, held, errors, &mut gradients).unwrap();
        assert!(!optimizer.step(&threads, model, &gradients, 1e-2, Some(1.0)).skipped);
        loss
    };
    let first = step(&mut model, &mut optimizer);
    for _ in 0..60 {
        step(&mut model, &mut optimizer);
    }
    model.save(folder.path(), SaveDtype::F32).unwrap();
    optimizer.save(&folder.path().join("optimizer.safetensors")).unwrap();
    let mut loaded = Model::load_critic(folder.path()).unwrap();
    assert!(loaded.same_weights(&model));
    let mut moments = AdamW::new(&loaded, AdamWConfig::default());
    moments.load(&folder.path().join("optimizer.safetensors")).unwrap();
    let last = step(&mut model, &mut optimizer);
    step(&mut loaded, &mut moments);
    assert!(loaded.same_weights(&model));
    assert!(last < 0.02 * first, "{first} {last}");
}

/// The chain of an error's messages, without the temporary folder's name.
fn message(error: &dyn Error, folder: &Path) -> String {
    fault::chain(error).replace(&folder.display().to_string(), "DIR")
}

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let policy = policy(Architecture::Qwen2, true, 7);
    let explain = |result: Result<Model, CheckpointError>| message(&result.unwrap_err(), path);
    // The layers of a language model under a new head.
    policy.save(path, SaveDtype::F32).unwrap();
    assert!(Model::load_critic(path).unwrap().same_weights(&policy.critic()));
    // A critic is not a language model.
    policy.critic().save(path, SaveDtype::F32).unwrap();
    insta::assert_snapshot!(explain(Model::load(path)), @"failed to use the configuration in DIR: \
         `Qwen2ForTokenClassification` is a critic, not a language model");
    let config: Value = serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
    let write = |edit: &dyn Fn(&mut Value)| {
        let mut config = config.clone();
        edit(&mut config);
        std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    };
    write(&|config| config["id2label"] = serde_json::json!({"0": "no", "1": "yes"}));
    insta::assert_snapshot!(explain(Model::load_critic(path)), @"failed to use the configuration in DIR: number \
         of labels `2` is not supported (supported: 1, the value)");
    write(&|config| drop(config.as_object_mut().unwrap().remove("id2label")));
    insta::assert_snapshot!(explain(Model::load_critic(path)), @"failed to use the configuration in DIR: number \
         of labels `2` is not supported (supported: 1, the value)");
    // Weights and configuration with different heads.
    write(&|config| config["architectures"] = serde_json::json!(["Qwen2ForCausalLM"]));
    insta::assert_snapshot!(explain(Model::load_critic(path)), @"tensor `score.bias` in DIR/model.safetensors \
         does not belong to this architecture");
    policy.save(path, SaveDtype::F32).unwrap();
    write(&|_| {});
    insta::assert_snapshot!(explain(Model::load_critic(path)), @"tensor `score.weight` is missing from DIR/model.safetensors");
}

#[test]
fn a_head_is_asked_for_what_it_has() {
    let threads = Threads::new(1);
    let mut workspace = Workspace::default();
    let policy = policy(Architecture::Qwen3, true, 8);
    let critic = policy.critic();
    let good = [Sequence { tokens: &[1, 2], start: 1 }];
    let error = values(&threads, &policy, &mut workspace, &good).unwrap_err();
    insta::assert_snapshot!(error, @"the model is a language model, and what is asked for comes from a critic");
    let error = score(&threads, &critic, &mut workspace, &good, 1.0).unwrap_err();
    insta::assert_snapshot!(error, @"the model is a critic, and what is asked for comes from a language model");
    assert_eq!(logits(&threads, &critic, &mut workspace, &[1]).unwrap_err(), error);
    let mut gradients = Gradients::new(&critic);
    let options = PassOptions::default();
    assert_eq!(forward_hold(&threads, &critic, &mut workspace, &good, options).unwrap_err(), error);
    let mut hold = || values_forward_hold(&threads, &critic, &mut workspace, &good, options).unwrap().1;
    let (first, second) = (hold(), hold());
    let wrong = backward(&threads, &critic, &mut workspace, first, Coefficients::default(), &mut gradients);
    insta::assert_snapshot!(wrong.unwrap_err(), @"the model is a critic, and what is asked for comes from a language model");
    let none = values_backward(&threads, &critic, &mut workspace, second, Vec::new(), &mut gradients);
    insta::assert_snapshot!(none.unwrap_err(), @"expected 1 value coefficients, one per scored token, got 0");
}

#[test]
fn memory_counts_the_critic() {
    // Sizes that need no padding.
    let config = TransformerConfig::new(Architecture::Qwen3, 48, 64, 96, 2, 4, 64);
    let policy = Model::init(config, Key::new(9, Purpose::Init)).unwrap();
    let critic = policy.critic();
    let plan = MemoryPlan {
        trains: true,
        num_copies: 1,
        micro_batch_tokens: 100,
        num_threads: 1,
        scored_tokens: 100,
        ..MemoryPlan::default()
    };
    let alone = MemoryEstimate::new(policy.config(), &plan);
    let both = alone.with_critic(critic.config(), &plan);
    // Weights, one sum of gradients for so few rows, and two moments. Both share the work buffers.
    let buffers = |estimate: &MemoryEstimate| estimate.activations + estimate.flipped;
    assert_eq!(both.total() - alone.total(), both.critic + buffers(&both) - buffers(&alone));
    let per_copy = both.critic / 4;
    let exact = 4 * critic.num_parameters() as u64;
    assert!(per_copy >= exact && per_copy < exact + exact / 8, "{per_copy} {exact}");
    assert!(both.to_string().contains(", critic "), "{both}");
}
