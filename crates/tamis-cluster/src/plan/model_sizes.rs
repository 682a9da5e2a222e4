//! Sizes of a model from its files (`config.json` and the headers of its tensors), without reading the
//! weights.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;
use tamis_model::{Architecture, TransformerConfig};

/// Longest header of a file of tensors that is read.
const LONGEST_HEADER: u64 = 256 << 20;

/// The sizes that determine a decoder's memory, for any architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSizes {
    /// All parameters. An output head that is the embedding counts once.
    pub num_parameters: u64,
    /// Bytes of a weight as servers hold it by default.
    pub served_bytes: u64,
    /// Parameters in no layer: embedding, last norm, output head.
    pub outside: u64,
    /// Width of the residual stream; 0 if it is not known.
    pub hidden: u64,
    /// Number of tokens that have a logit; 0 if it is not known.
    pub vocab: u64,
    /// Linear layers: the weights that an adapter can be attached to.
    pub linears: Vec<Linear>,
}

/// Weights of one name, in all layers together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Last part of its name: `q_proj`.
    pub name: String,
    /// Length of the output.
    pub rows: u64,
    /// Length of the input.
    pub columns: u64,
    /// Number of them.
    pub count: u64,
    /// Whether `learner.lora.base: nf4` leaves them as they are: experts, which PyTorch holds fused, their
    /// router, and a vision tower. A token does not pass all of these.
    pub stays_whole: bool,
}

/// A decoder of the Llama family, dense or with experts.
struct Decoder {
    num_layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    vocab: u64,
    /// Experts of each layer and their width; a dense layer has one.
    experts: (u64, u64),
    is_mixture: bool,
    is_tied: bool,
    has_biases: bool,
    normalises_heads: bool,
    has_four_norms: bool,
    served_bytes: u64,
}

impl Decoder {
    fn sizes(&self) -> ModelSizes {
        let (d, layers, (count, width)) = (self.hidden, self.num_layers, self.experts);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let linear = |name: &str, rows, columns, count| Linear {
            name: name.to_owned(),
            rows,
            columns,
            count: layers * count,
            stays_whole: self.is_mixture && (count > 1 || name == "gate"),
        };
        let mut linears = vec![
            linear("q_proj", q, d, 1),
            linear("k_proj", kv, d, 1),
            linear("v_proj", kv, d, 1),
            linear("o_proj", d, q, 1),
            linear("gate_proj", width, d, count),
            linear("up_proj", width, d, count),
            linear("down_proj", d, width, count),
        ];
        if self.is_mixture {
            linears.push(linear("gate", count, d, 1));
        }
        let of_linears: u64 = linears.iter().map(|one| one.rows * one.columns * one.count).sum();
        let norms = if self.has_four_norms { 4 * d } else { 2 * d };
        let of_heads = if self.normalises_heads { 2 * self.head_dim } else { 0 };
        let biases = if self.has_biases { q + 2 * kv } else { 0 };
        let outside = self.vocab * d * if self.is_tied { 1 } else { 2 } + d;
        ModelSizes {
            num_parameters: of_linears + layers * (norms + of_heads + biases) + outside,
            served_bytes: self.served_bytes,
            outside,
            hidden: d,
            vocab: self.vocab,
            linears,
        }
    }
}

impl ModelSizes {
    /// Reads a folder in Hugging Face layout: parameters from the headers of its tensors, or computed from
    /// its configuration if there are none. `None` if neither is enough.
    pub fn read(folder: &Path) -> Option<Self> {
        let text = tamis_file::read_text(&folder.join("config.json"), tamis_file::MAX_MODEL_CONFIG).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        match read_headers(folder) {
            Some(tensors) => Some(Self::of_tensors(&tensors, &config)),
            None => Self::of_config(&config),
        }
    }

    /// Computes the sizes from a `config.json`, for decoders of the Llama family and mixtures of experts.
    /// `None` if it lacks something that these need.
    pub fn of_config(config: &Value) -> Option<Self> {
        let text = text_of(config);
        let number = |key: &str| text.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
        let flag = |key: &str| text.get(key).and_then(Value::as_bool);
        let kind = text.get("model_type").and_then(Value::as_str).unwrap_or("");
        let (hidden, heads) = (number("hidden_size")?, number("num_attention_heads")?);
        let experts =
            ["num_experts", "num_local_experts", "n_routed_experts"].iter().find_map(|key| number(key));
        let experts = experts.filter(|&count| count > 1 && number("num_experts_per_tok").is_some());
        let width = number("moe_intermediate_size").filter(|_| experts.is_some());
        let outer = config.get("tie_word_embeddings").and_then(Value::as_bool);
        let decoder = Decoder {
            num_layers: number("num_hidden_layers")?,
            hidden,
            heads,
            kv_heads: number("num_key_value_heads").unwrap_or(heads),
            head_dim: number("head_dim").unwrap_or(hidden / heads),
            vocab: number("vocab_size")?,
            experts: (experts.unwrap_or(1), width.or(number("intermediate_size"))?),
            is_mixture: experts.is_some(),
            is_tied: flag("tie_word_embeddings").or(outer).unwrap_or(kind.starts_with("gemma")),
            has_biases: flag("attention_bias").unwrap_or(kind.starts_with("qwen2")),
            normalises_heads: kind.starts_with("qwen3") || kind.starts_with("gemma3"),
            has_four_norms: kind.starts_with("gemma2") || kind.starts_with("gemma3"),
            served_bytes: served_bytes(config),
        };
        Some(decoder.sizes())
    }

    /// Sizes of a model with random weights, or of any other model of the native engine.
    pub fn of_native(model: &TransformerConfig) -> Self {
        let decoder = Decoder {
            num_layers: model.num_layers as u64,
            hidden: model.hidden_size as u64,
            heads: model.num_heads as u64,
            kv_heads: model.num_kv_heads as u64,
            head_dim: model.head_dim as u64,
            vocab: model.vocab_size as u64,
            experts: (1, model.intermediate_size as u64),
            is_mixture: false,
            is_tied: model.tie_word_embeddings,
            has_biases: model.qkv_bias,
            normalises_heads: model.architecture == Architecture::Qwen3,
            has_four_norms: false,
            // The native engine publishes in f32.
            served_bytes: 4,
        };
        decoder.sizes()
    }

    fn of_tensors(tensors: &BTreeMap<String, Vec<u64>>, config: &Value) -> Self {
        let number = |key: &str| text_of(config).get(key).and_then(Value::as_u64).unwrap_or(0);
        let (mut num_parameters, mut outside) = (0, 0);
        let mut linears: BTreeMap<(String, u64, u64, bool), u64> = BTreeMap::new();
        for (name, shape) in tensors {
            let numbers: u64 = shape.iter().product();
            num_parameters += numbers;
            if !is_of_layer(name) {
                outside += numbers;
            } else if let ([rows, columns], Some(whole)) = (shape.as_slice(), name.strip_suffix(".weight")) {
                let last = whole.rsplit('.').next().unwrap_or(whole).to_owned();
                let part = |one: &str| whole.split('.').any(|part| part == one);
                let stays_whole = part("experts") || part("visual") || last == "gate" || last == "router";
                *linears.entry((last, *rows, *columns, stays_whole)).or_default() += 1;
            }
        }
        let linears = linears.into_iter();
        Self {
            num_parameters,
            served_bytes: served_bytes(config),
            outside,
            hidden: number("hidden_size"),
            vocab: number("vocab_size"),
            linears: linears
                .map(|((name, rows, columns, stays_whole), count)| Linear {
                    name,
                    rows,
                    columns,
                    count,
                    stays_whole,
                })
                .collect(),
        }
    }

    /// Parameters of an adapter of this rank, on the weights whose names end in `targets`; on all of them for
    /// `None`.
    pub fn adapter(&self, rank: u64, targets: Option<&[String]>) -> u64 {
        let has_one = |linear: &&Linear| {
            targets.is_none_or(|targets| targets.iter().any(|target| linear.name.ends_with(target.as_str())))
        };
        let of = |linear: &Linear| rank * (linear.rows + linear.columns) * linear.count;
        self.linears.iter().filter(has_one).map(of).sum()
    }

    /// Parameters of the linear layers that can be held in 4 bits.
    pub fn in_linears(&self) -> u64 {
        let held = self.linears.iter().filter(|linear| !linear.stays_whole);
        held.map(|linear| linear.rows * linear.columns * linear.count).sum()
    }

    /// Numbers that all layers take in and that their linear layers give for one token, and the number of
    /// layers. `None` if they are not known, or there are experts.
    pub fn per_token(&self) -> Option<(u64, u64, u64)> {
        let layers: u64 = self.linears.iter().filter(|one| one.name == "k_proj").map(|one| one.count).sum();
        let is_dense = !self.linears.iter().any(|one| one.stays_whole);
        let outputs = self.linears.iter().map(|one| one.rows * one.count).sum();
        (layers > 0 && is_dense).then_some((layers * self.hidden, outputs, layers))
    }

    /// Numbers of keys and values that all layers cache for one token; 0 if they are not known.
    pub fn cached_per_token(&self) -> u64 {
        let cached = self.linears.iter().filter(|one| one.name == "k_proj" || one.name == "v_proj");
        cached.map(|one| one.rows * one.count).sum()
    }

    /// Sizes of a critic with this model's layers: a value head replaces the output head.
    #[must_use]
    pub fn as_critic(&self) -> Self {
        // The embedding stays. A separate output head goes.
        let outside = self.outside.min((self.vocab + 1) * self.hidden) + self.hidden;
        if self.hidden == 0 {
            return self.clone();
        }
        Self { num_parameters: self.num_parameters - self.outside + outside, outside, ..self.clone() }
    }
}

/// The part of `config.json` for text, if the model also sees images.
fn text_of(config: &Value) -> &Value {
    config.get("text_config").filter(|part| part.is_object()).unwrap_or(config)
}

fn served_bytes(config: &Value) -> u64 {
    let dtype = [text_of(config), config]
        .iter()
        .find_map(|part| part.get("dtype").or_else(|| part.get("torch_dtype")).and_then(Value::as_str));
    if dtype == Some("float32") { 4 } else { 2 }
}

/// Whether a tensor is in a layer: its name has a number.
fn is_of_layer(name: &str) -> bool {
    name.split('.').any(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Names and sizes of all tensors of a folder; `None` if they cannot be read, or there are none.
fn read_headers(folder: &Path) -> Option<BTreeMap<String, Vec<u64>>> {
    let single = folder.join("model.safetensors");
    let files: BTreeSet<_> = if single.is_file() {
        BTreeSet::from([single])
    } else {
        let index = folder.join("model.safetensors.index.json");
        let index: Value = serde_json::from_str(&tamis_file::read_text(&index, LONGEST_HEADER).ok()?).ok()?;
        let map = index.get("weight_map")?.as_object()?;
        map.values().filter_map(Value::as_str).map(|file| folder.join(file)).collect()
    };
    let mut tensors = BTreeMap::new();
    for path in files {
        let mut file = tamis_file::open(&path).ok()?;
        let mut length = [0; 8];
        file.read_exact(&mut length).ok()?;
        let header = Some(u64::from_le_bytes(length)).filter(|&length| length <= LONGEST_HEADER)?;
        // Only the header: the library's own function reads the weights too.
        let header: BTreeMap<String, Value> = serde_json::from_reader(file.take(header)).ok()?;
        for (name, info) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let shape: Option<Vec<u64>> = info.get("shape")?.as_array()?.iter().map(Value::as_u64).collect();
            tensors.insert(name, shape?);
        }
    }
    (!tensors.is_empty()).then_some(tensors)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn published_models_have_the_parameters_that_their_authors_count() {
        let qwen = |hidden, feed_forward, layers, heads, kv, vocab, tied: bool| {
            json!({"model_type": "qwen2", "hidden_size": hidden, "intermediate_size": feed_forward,
                "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
                "vocab_size": vocab, "tie_word_embeddings": tied})
        };
        // Counted with transformers.
        for (config, expected) in [
            (qwen(896, 4864, 24, 14, 2, 151_936, true), 494_032_768),
            (qwen(3584, 18944, 28, 28, 4, 152_064, false), 7_615_616_512),
            (
                json!({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
                    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
                    "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": false}),
                30_532_122_624,
            ),
        ] {
            assert_eq!(ModelSizes::of_config(&config).expect("sizes").num_parameters, expected);
        }
        assert_eq!(ModelSizes::of_config(&json!({"hidden_size": 3})), None);
    }

    #[test]
    fn names_tell_layers() {
        let names = ["decoder.layers.11.mlp.experts.3.up_proj.weight", "transformer.h.0.ln_1.bias"];
        assert!(names.into_iter().all(is_of_layer) && !is_of_layer("decoder.embed_tokens.weight"));
    }

    #[test]
    fn an_adapter_by_hand() {
        let config = json!({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32});
        let sizes = ModelSizes::of_config(&config).expect("sizes");
        let targets = ["q_proj".to_owned(), "v_proj".to_owned()];
        assert_eq!(sizes.adapter(4, Some(&targets)), 2 * 4 * ((8 + 8) + (4 + 8)));
        // And k, o; gate, up, down.
        assert_eq!(sizes.adapter(4, None), 2 * 4 * (16 + 12 + 12 + 16 + 3 * 24));
    }

    #[test]
    fn a_token_passes_linear_layers_and_is_cached() {
        let config = json!({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32});
        let sizes = ModelSizes::of_config(&config).expect("sizes");
        // q, k, v, o of 8, 4, 4, 8; gate, up, down of 16, 16, 8.
        assert_eq!(sizes.per_token(), Some((2 * 8, 2 * 64, 2)));
        assert_eq!((sizes.cached_per_token(), sizes.in_linears()), (2 * 8, 2 * (8 * 24 + 3 * 128)));
        let mixture = json!({"model_type": "qwen3_moe", "hidden_size": 8, "moe_intermediate_size": 16,
            "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 32});
        let sizes = ModelSizes::of_config(&mixture).expect("sizes");
        // Experts and their router stay as they are.
        assert_eq!((sizes.per_token(), sizes.in_linears()), (None, 2 * 8 * 24));
    }

    fn saved(model: &TransformerConfig) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let key = tamis_core::random::Key::new(1, tamis_core::random::Purpose::Init);
        let random = tamis_model::Model::init(model.clone(), key).expect("a model");
        random.save(folder.path(), tamis_model::SaveDtype::F32).expect("written");
        folder
    }

    #[test]
    fn headers_and_configuration_agree_where_both_are_there() {
        let mut model = TransformerConfig::new(Architecture::Qwen3, 40, 16, 24, 3, 4, 64);
        model.num_kv_heads = 2;
        let folder = saved(&model);
        let read = ModelSizes::read(folder.path()).expect("sizes");
        let by_shape = ModelSizes::of_native(&model);
        assert_eq!(read.num_parameters, by_shape.num_parameters);
        assert_eq!(read.outside, by_shape.outside);
        assert_eq!(read.adapter(8, None), by_shape.adapter(8, None));
        std::fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
        assert_eq!(ModelSizes::read(folder.path()).expect("sizes").num_parameters, read.num_parameters);
    }

    /// transformers saves such a model with both matrices, although its `config.json` implies one.
    #[test]
    fn a_head_of_its_own_counts_whatever_the_configuration_says() {
        let mut model = TransformerConfig::new(Architecture::Llama, 40, 16, 24, 3, 4, 64);
        model.tie_word_embeddings = false;
        let folder = saved(&model);
        let path = folder.path().join("config.json");
        let text = std::fs::read_to_string(&path).expect("a configuration");
        let mut config: Value = serde_json::from_str(&text).expect("JSON");
        config["tie_word_embeddings"] = json!(true);
        std::fs::write(&path, config.to_string()).expect("written");
        let read = ModelSizes::read(folder.path()).expect("sizes");
        assert_eq!(
            read,
            ModelSizes {
                served_bytes: read.served_bytes,
                linears: read.linears.clone(),
                ..ModelSizes::of_native(&model)
            }
        );
        assert_eq!(
            ModelSizes::of_config(&config).expect("sizes").num_parameters,
            read.num_parameters - 40 * 16
        );
        // A critic has one value head and no output head.
        assert_eq!(read.as_critic().num_parameters, read.num_parameters - 40 * 16 + 16);
    }
}
