//! Reading and writing Hugging Face folders: dtypes, shards, round trips, and the errors for invalid files.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    clippy::format_push_string,
    reason = "a test fails by panicking, and compares what must be exact"
)]

use std::error::Error;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tamis_core::fault;
use tamis_core::random::{Key, Purpose};
use tamis_model::{Architecture, ConfigError, Llama3Scaling, Model, SaveDtype, TransformerConfig};

fn tiny(architecture: Architecture) -> Model {
    let mut config = TransformerConfig::new(architecture, 11, 8, 12, 2, 2, 32);
    config.num_kv_heads = 1;
    config.eos_token_ids = vec![3, 5];
    config.tie_word_embeddings = architecture == Architecture::Qwen2;
    if architecture == Architecture::Llama {
        config.rope_theta = 5e5;
        config.rope_scaling = Some(Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 16,
        });
    }
    Model::init(config, Key::new(1, Purpose::Init)).unwrap()
}

/// The chain of an error's messages, without the temporary folder's name.
fn message(error: &dyn Error, folder: &Path) -> String {
    fault::chain(error).replace(&folder.display().to_string(), "DIR")
}

fn load_error(folder: &Path) -> String {
    message(&Model::load(folder).unwrap_err(), folder)
}

#[test]
fn saved_models_load_again() {
    for architecture in [Architecture::Qwen2, Architecture::Qwen3, Architecture::Llama] {
        let model = tiny(architecture);
        let folder = tempfile::tempdir().unwrap();
        for max_bytes in [u64::MAX, 600] {
            let folder = folder.path().join(max_bytes.to_string());
            model.save_sharded(&folder, SaveDtype::F32, max_bytes).unwrap();
            assert_eq!(folder.join("model.safetensors.index.json").exists(), max_bytes == 600);
            let loaded = Model::load(&folder).unwrap();
            assert!(loaded.same_weights(&model));
            assert_eq!(loaded.config().eos_token_ids, [3, 5]);
            assert_eq!(loaded.config().rope_scaling, model.config().rope_scaling);
            assert_eq!(loaded.num_parameters(), model.num_parameters());
            // Once loaded, everything is written back.
            loaded.save(&folder.join("again"), SaveDtype::F32).unwrap();
            let again = Model::load(&folder.join("again")).unwrap();
            assert!(again.same_weights(&model));
            assert_eq!(again.config().to_json("float32"), loaded.config().to_json("float32"));
            let leftovers = std::fs::read_dir(&folder)
                .unwrap()
                .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".tmp"));
            assert_eq!(leftovers.count(), 0);
        }
    }
}

#[test]
fn half_precision_rounds_to_nearest() {
    let model = tiny(Architecture::Qwen3);
    let folder = tempfile::tempdir().unwrap();
    for (dtype, bits, name) in [(SaveDtype::Bf16, 8, "bfloat16"), (SaveDtype::F16, 11, "float16")] {
        model.save(folder.path(), dtype).unwrap();
        let config: Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("config.json")).unwrap()).unwrap();
        assert_eq!(config["dtype"], name);
        let loaded = Model::load(folder.path()).unwrap();
        for ((name, _, exact), (_, _, rounded)) in model.tensors().zip(loaded.tensors()) {
            for (x, y) in exact.iter().zip(&rounded) {
                // Half a unit in the last place; half precision is absolute below 2^-14.
                let bound = (x.abs() * 0.5f32.powi(bits)).max(0.5f32.powi(25));
                assert!((x - y).abs() <= bound, "{name}: {x} {y}");
            }
        }
        // Representable values come back exactly.
        loaded.save(folder.path(), dtype).unwrap();
        assert!(Model::load(folder.path()).unwrap().same_weights(&loaded));
    }
}

#[test]
fn golden_checkpoints_survive_a_round_trip() {
    let golden = tamis_golden::folder().join("hf");
    for entry in std::fs::read_dir(golden).unwrap() {
        let source = entry.unwrap().path();
        if !source.join("model.safetensors").exists() {
            continue;
        }
        let model = Model::load(&source).unwrap();
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path(), SaveDtype::F32).unwrap();
        assert!(Model::load(folder.path()).unwrap().same_weights(&model));
        let read = |path: &Path| -> Value {
            serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap()
        };
        // Every key of the original is kept with its value.
        let (before, after) = (read(&source), read(folder.path()));
        for (key, value) in before.as_object().unwrap() {
            assert_eq!(&after[key], value, "{key}");
        }
    }
}

/// Rewrites the header of `model.safetensors`.
fn edit_header(folder: &Path, edit: impl Fn(&mut Value)) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    edit(&mut header);
    let mut header = header.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let out = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes[8 + len..]].concat();
    std::fs::write(path, out).unwrap();
}

fn rename(header: &mut Value, from: &str, to: &str) {
    let header = header.as_object_mut().unwrap();
    let entry = header.remove(from).unwrap();
    header.insert(to.to_owned(), entry);
}

/// Adds a tensor to `model.safetensors`, or removes one.
fn edit_tensors(folder: &Path, edit: impl Fn(&mut Vec<(String, Vec<usize>, Vec<f32>)>)) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let mut tensors: Vec<_> = file
        .iter()
        .map(|(name, view)| (name.to_owned(), view.shape().to_vec(), values(view.data())))
        .collect();
    edit(&mut tensors);
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let data: Vec<_> = tensors.iter().map(|(name, shape, values)| (name, shape, bytes(values))).collect();
    let views = data.iter().map(|(name, shape, data)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, (*shape).clone(), data);
        (name, view.unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// If a model is tied by its configuration, its files decide which head it has.
#[test]
fn the_head_in_the_files_of_a_tied_model_is_its_head() {
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let tied = tiny(Architecture::Qwen2);
    let embedding = tied.tensors().find(|(name, ..)| *name == EMBEDDING).unwrap().2;
    let (vocab, width) = (11, 8);
    let folder = tempfile::tempdir().unwrap();
    let with = |head: &[f32]| {
        tied.save(folder.path(), SaveDtype::F32).unwrap();
        edit_tensors(folder.path(), |tensors| {
            tensors.push(("lm_head.weight".to_owned(), vec![vocab, width], head.to_vec()));
        });
        (Model::load(folder.path()), tamis_model::head_warning(folder.path()))
    };
    // The same numbers twice: one matrix.
    let (loaded, warning) = with(&embedding);
    let loaded = loaded.unwrap();
    assert!(loaded.same_weights(&tied) && loaded.config().tie_word_embeddings);
    assert_eq!(warning, None);
    // Other numbers, even if only the last one differs.
    let mut head = embedding.clone();
    *head.last_mut().unwrap() += 1.0;
    let (loaded, warning) = with(&head);
    let loaded = loaded.unwrap();
    assert!(!loaded.config().tie_word_embeddings);
    let found = |model: &Model, name: &str| model.tensors().find(|tensor| tensor.0 == name).unwrap().2;
    assert_eq!(
        (found(&loaded, "lm_head.weight"), found(&loaded, EMBEDDING)),
        (head.clone(), embedding.clone())
    );
    let warning = warning.unwrap().replace(&folder.path().display().to_string(), "DIR");
    insta::assert_snapshot!(warning, @"DIR/config.json has `tie_word_embeddings: true`, but the `lm_head.weight` of its weights is not the embedding: this head is used and trained, untied, as transformers 5 does; vLLM and older versions of transformers use the embedding");
    // The saved configuration is untied, and loads unchanged, from one file and from several.
    for max_bytes in [u64::MAX, 600] {
        let again = folder.path().join(max_bytes.to_string());
        loaded.save_sharded(&again, SaveDtype::F32, max_bytes).unwrap();
        assert!(Model::load(&again).unwrap().same_weights(&loaded));
        assert_eq!(tamis_model::head_warning(&again), None);
        let config = again.join("config.json");
        let mut json: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
        assert_eq!(json["tie_word_embeddings"], false);
        json["tie_word_embeddings"] = true.into();
        std::fs::write(config, json.to_string()).unwrap();
        assert!(Model::load(&again).unwrap().same_weights(&loaded));
        assert!(tamis_model::head_warning(&again).is_some());
    }
    // A critic takes the layers, and has no use for either.
    assert!(Model::load_critic(folder.path()).unwrap().same_weights(&tied.critic()));
    // A head of another shape is an error, as for an untied model.
    let (loaded, _) = with(&head);
    loaded.unwrap();
    edit_tensors(folder.path(), |tensors| {
        let (_, shape, values) = tensors.iter_mut().find(|tensor| tensor.0 == "lm_head.weight").unwrap();
        shape[0] -= 1;
        values.truncate((vocab - 1) * width);
    });
    insta::assert_snapshot!(load_error(folder.path()), @"tensor `lm_head.weight` in DIR/model.safetensors has shape [10, 8], and the configuration of the model makes it [11, 8]");
}

/// Some tools write the matrix of a tied model once, under the head's name.
#[test]
fn a_tied_model_whose_files_name_only_the_head_loads() {
    let tied = tiny(Architecture::Qwen2);
    let folder = tempfile::tempdir().unwrap();
    tied.save(folder.path(), SaveDtype::F32).unwrap();
    edit_header(folder.path(), |header| rename(header, "model.embed_tokens.weight", "lm_head.weight"));
    let loaded = Model::load(folder.path()).unwrap();
    assert!(loaded.same_weights(&tied) && loaded.config().tie_word_embeddings);
    assert_eq!(tamis_model::head_warning(folder.path()), None);
    // Saved, it has the usual name.
    loaded.save(folder.path(), SaveDtype::F32).unwrap();
    assert!(
        Model::load(folder.path()).unwrap().tensors().any(|(name, ..)| name == "model.embed_tokens.weight")
    );
}

#[test]
fn messages_about_tensors() {
    let broken = |edit: &dyn Fn(&mut Value)| {
        let folder = tempfile::tempdir().unwrap();
        tiny(Architecture::Llama).save(folder.path(), SaveDtype::F32).unwrap();
        edit_header(folder.path(), edit);
        load_error(folder.path())
    };
    insta::assert_snapshot!(broken(&|header| rename(header, "model.norm.weight", "model.extra.weight")), @"tensor `model.extra.weight` in DIR/model.safetensors does not belong to this architecture");
    insta::assert_snapshot!(broken(&|header| {
        header.as_object_mut().unwrap().remove("__metadata__");
        let end = header["lm_head.weight"]["data_offsets"][1].as_u64().unwrap();
        header["model.norm.weight"]["data_offsets"][0].as_u64().unwrap();
        header["model.rotary_emb.inv_freq"] = json!({"dtype": "F32", "shape": [0], "data_offsets": [end, end]});
        header["model.layers.2.mlp.up_proj.weight"] = json!({"dtype": "F32", "shape": [0], "data_offsets": [end, end]});
    }), @"tensor `model.layers.2.mlp.up_proj.weight` in DIR/model.safetensors does not belong to this architecture");
    insta::assert_snapshot!(broken(&|header| header["model.norm.weight"]["shape"] = json!([4, 2])), @"tensor `model.norm.weight` in DIR/model.safetensors has shape [4, 2], and the configuration of the model makes it [8]");
    insta::assert_snapshot!(broken(&|header| header["model.norm.weight"]["dtype"] = json!("I32")), @"tensor `model.norm.weight` in DIR/model.safetensors is of type I32, expected F32, BF16 or F16");
    insta::assert_snapshot!(broken(&|header| header["model.norm.weight"]["data_offsets"] = json!([0, 99_999_999])), @"DIR/model.safetensors is not a valid safetensors file: invalid offset for tensor `model.norm.weight`");
    insta::assert_snapshot!(broken(&|header| {
        let name = "model.layers.1.self_attn.q_proj.weight";
        header.as_object_mut().unwrap().remove("lm_head.weight");
        rename(header, name, "lm_head.weight");
    }), @"DIR/model.safetensors is not a valid safetensors file: incomplete metadata, file not fully covered");
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    tiny(Architecture::Llama).save(folder.path(), SaveDtype::F32).unwrap();
    let file = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let error = load_error(folder.path());
    assert!(error.contains("holds numbers that are not finite"), "{error}");
}

#[test]
fn messages_about_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    insta::assert_snapshot!(load_error(path), @"failed to use the configuration in DIR: failed to read \
         DIR/config.json: No such file or directory (os error 2)");
    std::fs::write(path.join("config.json"), "{").unwrap();
    insta::assert_snapshot!(load_error(path), @"failed to use the configuration in DIR: DIR/config.json is \
         not valid JSON: EOF while parsing an object at line 1 column 1");
    tiny(Architecture::Qwen2).save(path, SaveDtype::F32).unwrap();
    std::fs::remove_file(path.join("model.safetensors")).unwrap();
    insta::assert_snapshot!(load_error(path), @"DIR holds neither model.safetensors nor model.safetensors.index.json");
    // Weights that a learner keeps elsewhere, for any architecture.
    let config = std::fs::read_to_string(path.join("config.json")).unwrap();
    std::fs::write(path.join("elsewhere.json"), r#"{"where": "at S\nas a", "more": 1}"#).unwrap();
    insta::assert_snapshot!(load_error(path), @r"DIR holds no weights: they are at S\nas a");
    std::fs::write(path.join("config.json"), config.replace("Qwen2", "Unknown")).unwrap();
    insta::assert_snapshot!(load_error(path), @r"DIR holds no weights: they are at S\nas a");
    std::fs::write(path.join("config.json"), config).unwrap();
    std::fs::write(path.join("elsewhere.json"), "[]").unwrap();
    insta::assert_snapshot!(load_error(path), @"DIR holds no weights: they are elsewhere, and DIR/elsewhere.json does not say where");
    std::fs::remove_file(path.join("elsewhere.json")).unwrap();
    let with_index = |text: &str| {
        std::fs::write(path.join("model.safetensors.index.json"), text).unwrap();
        load_error(path)
    };
    let without_map = with_index("[]");
    insta::assert_snapshot!(without_map, @"DIR/model.safetensors.index.json has no `weight_map` from tensor names to files of its folder");
    assert_eq!(with_index(r#"{"weight_map": {"model.norm.weight": "../../etc/passwd"}}"#), without_map);
    insta::assert_snapshot!(with_index(r#"{"weight_map": {"model.norm.weight": "a.safetensors"}}"#), @"tensor `model.embed_tokens.weight` is missing from DIR/model.safetensors.index.json");
    tiny(Architecture::Qwen2).save_sharded(path, SaveDtype::F32, 600).unwrap();
    let index: Value =
        serde_json::from_slice(&std::fs::read(path.join("model.safetensors.index.json")).unwrap()).unwrap();
    std::fs::remove_file(path.join(index["weight_map"]["model.norm.weight"].as_str().unwrap())).unwrap();
    insta::assert_snapshot!(load_error(path), @"failed to read DIR/model-00011-of-00011.safetensors: No such \
         file or directory (os error 2)");
    tiny(Architecture::Qwen2).save(path, SaveDtype::F32).unwrap();
    std::fs::write(path.join("model.safetensors"), "short").unwrap();
    insta::assert_snapshot!(load_error(path), @"DIR/model.safetensors is not a valid safetensors file: header too small");
    let target = path.join("config.json").join("below");
    let error = tiny(Architecture::Qwen2).save(&target, SaveDtype::F32).unwrap_err();
    insta::assert_snapshot!(message(&error, path), @"failed to write DIR/config.json/below: Not a directory (os error 20)");
}

/// A configuration with one key set (`null` removes it).
fn with(key: &str, value: Value) -> Result<TransformerConfig, ConfigError> {
    let mut json = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 11, "max_position_embeddings": 32,
    });
    json[key] = value;
    TransformerConfig::from_json(&json)
}

#[test]
fn messages_about_configurations() {
    let error = |key: &str, value: Value| with(key, value).unwrap_err().to_string();
    insta::assert_snapshot!(TransformerConfig::from_json(&json!([])).unwrap_err(), @"expected a JSON object");
    insta::assert_snapshot!(error("architectures", json!(["GPT2LMHeadModel"])), @"architecture \
         `GPT2LMHeadModel` is not supported (supported: Qwen2ForCausalLM, Qwen3ForCausalLM, \
         LlamaForCausalLM)");
    insta::assert_snapshot!(error("architectures", json!("Llama")), @r#"`architectures` must be a list of class names, got "Llama""#);
    insta::assert_snapshot!(error("architectures", json!(null)), @"`architectures` is missing");
    insta::assert_snapshot!(error("hidden_size", json!(null)), @"`hidden_size` is missing");
    insta::assert_snapshot!(error("hidden_size", json!(-3)), @"`hidden_size` must be a whole number from 1 to 16777216, got -3");
    insta::assert_snapshot!(error("vocab_size", json!("9".repeat(200))), @r#"`vocab_size` must be a whole number from 1 to 16777216, got "9999999999999999999999999999999999999999999999999999999999999999999999999999999..."#);
    insta::assert_snapshot!(error("hidden_act", json!("gelu")), @"activation `gelu` is not supported (supported: silu)");
    insta::assert_snapshot!(error("mlp_bias", json!(true)), @"mlp_bias `true` is not supported (supported: false)");
    insta::assert_snapshot!(error("num_key_value_heads", json!(3)), @"num_attention_heads must be a multiple \
         of num_key_value_heads: 2 and 3");
    insta::assert_snapshot!(error("head_dim", json!(5)), @"head_dim must be a multiple of 2: 5 and 2");
    insta::assert_snapshot!(error("num_hidden_layers", json!(5000)), @"num_hidden_layers must not exceed the limit: 5000 and 4096");
    insta::assert_snapshot!({
        let mut json = tiny(Architecture::Llama).config().to_json("float32");
        for key in ["hidden_size", "intermediate_size", "vocab_size"] {
            json[key] = json!(1 << 24);
        }
        TransformerConfig::from_json(&json).unwrap_err()
    }, @"the number of weights must not exceed the limit: 2251800618991616 and 4398046511104");
    insta::assert_snapshot!(error("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})), @"rope type `yarn` is not supported (supported: default, llama3)");
    insta::assert_snapshot!(error("rope_scaling", json!({"type": "llama3"})), @"`factor` is missing");
    insta::assert_snapshot!(error("rope_theta", json!(0)), @"`rope_theta` must be a positive number, got 0");
    insta::assert_snapshot!(error("partial_rotary_factor", json!(0.5)), @"partial_rotary_factor `0.5` is not supported (supported: 1)");
    insta::assert_snapshot!(error("layer_types", json!(["full_attention", "sliding_attention"])), @"layer type `sliding_attention` is not supported (supported: full_attention)");
    insta::assert_snapshot!(error("eos_token_id", json!([1, "2"])), @r#"`eos_token_id` must be a token id or a list of token ids, got [1,"2"]"#);
    insta::assert_snapshot!(error("eos_token_id", json!(11)), @"`eos_token_id` in config.json is 11, but the model has 11 tokens (0 to 10)");
    insta::assert_snapshot!(error("eos_token_id", json!([3, 4_294_967_295_u32])), @"`eos_token_id` in config.json is 4294967295, but the model has 11 tokens (0 to 10)");
    insta::assert_snapshot!(error("pad_token_id", json!(11)), @"`pad_token_id` in config.json is 11, but the model has 11 tokens (0 to 10)");
    insta::assert_snapshot!(error("bos_token_id", json!(12)), @"`bos_token_id` in config.json is 12, but the model has 11 tokens (0 to 10)");
    assert!(with("pad_token_id", json!(-1)).is_ok(), "there is none");
    assert!(with("eos_token_id", json!(10)).is_ok());
    let window = json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 11, "max_position_embeddings": 32,
        "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1,
    });
    insta::assert_snapshot!(TransformerConfig::from_json(&window).unwrap_err(), @"sliding_window `16` is not \
         supported (supported: null, or use_sliding_window false)");
    let mut config = TransformerConfig::new(Architecture::Llama, 11, 8, 12, 2, 2, 32);
    config.vocab_size = 0;
    insta::assert_snapshot!(Model::init(config, Key::new(1, Purpose::Init)).unwrap_err(), @"every size must be within these bounds, and one is not (lower bound, size): 1 and 0");
}

#[test]
fn an_end_token_of_generation_beyond_the_vocabulary_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    tiny(Architecture::Llama).save(folder.path(), SaveDtype::F32).unwrap();
    assert!(TransformerConfig::load(folder.path()).is_ok());
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [3, 999]}"#).unwrap();
    insta::assert_snapshot!(TransformerConfig::load(folder.path()).unwrap_err(), @"`eos_token_id` in generation_config.json is 999, but the model has 11 tokens (0 to 10)");
}

#[test]
fn older_and_newer_rope_keys_mean_the_same() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let old = with("rope_scaling", llama3.clone()).unwrap();
    let mut new = llama3;
    new["rope_theta"] = json!(10_000.0);
    assert_eq!(with("rope_parameters", new).unwrap().rope_scaling, old.rope_scaling);
    assert_eq!(with("rope_theta", json!(1e6)).unwrap().rope_theta, 1e6);
    assert_eq!(
        with("rope_parameters", json!({"rope_theta": 1e6, "rope_type": "default"})).unwrap().rope_theta,
        1e6
    );
    assert_eq!(with("eos_token_id", json!(4)).unwrap().eos_token_ids, [4]);
    assert_eq!(with("use_sliding_window", json!(false)).unwrap().num_kv_heads, 2);
}

#[test]
fn initial_weights_depend_on_key_and_name_alone() {
    let model = tiny(Architecture::Qwen3);
    assert!(model.same_weights(&tiny(Architecture::Qwen3)));
    let other = Model::init(model.config().clone(), Key::new(2, Purpose::Init)).unwrap();
    assert!(!model.same_weights(&other));
    for (name, shape, values) in model.tensors() {
        if shape.len() == 1 {
            assert!(values.iter().all(|&x| x == 1.0), "{name}");
        } else {
            let deviation = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
            assert!(
                (deviation - 0.02).abs() < 0.012 * 8.0 / (values.len() as f32).sqrt(),
                "{name}: {deviation}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn damaged_files_are_errors_not_panics(
        damage in proptest::collection::vec((0.0f64..1.0, any::<u8>()), 1..6),
        cut in prop_oneof![3 => Just(1.0f64), 1 => 0.0f64..1.0],
        whole in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        tiny(Architecture::Qwen2).save(folder.path(), SaveDtype::F16).unwrap();
        let path = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        // Damage to the header can be detected.
        let reach = if whole { bytes.len() } else { 8 + usize::from(bytes[0]) + 256 * usize::from(bytes[1]) };
        for (at, value) in damage {
            let at = (at * reach as f64) as usize;
            bytes[at] = value;
        }
        bytes.truncate((cut * bytes.len() as f64) as usize);
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = Model::load(folder.path()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn mutated_configurations_are_errors_not_panics(
        key in 0usize..40,
        value in prop_oneof![
            Just(json!(null)), Just(json!(0)), Just(json!(-1)), Just(json!(1.5)), Just(json!("x")), Just(json!([])),
            Just(json!({})), Just(json!(true)), Just(json!(u64::MAX)), Just(json!(1e300)), Just(json!({"rope_type": "llama3"})),
            (1u64..200).prop_map(|n| json!(n)),
        ],
        second in 0usize..40,
    ) {
        let mut json = tiny(Architecture::Llama).config().to_json("float32");
        let keys: Vec<String> = json.as_object().unwrap().keys().cloned().collect();
        json[&keys[key % keys.len()]] = value.clone();
        if let Some(rope) = json["rope_parameters"].as_object_mut() {
            rope.insert("factor".to_owned(), if second % 3 == 0 { value } else { json!(2.0) });
        }
        if let Ok(config) = TransformerConfig::from_json(&json) {
            prop_assert!(config.validate().is_ok());
            let written = config.to_json("float32");
            prop_assert_eq!(TransformerConfig::from_json(&written).unwrap().to_json("float32"), written);
        }
    }
}
