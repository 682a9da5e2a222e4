//! Sizes of a model from its files, without its weights: `config.json` and the headers of its tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;
use tamis_model::{Architecture, TransformerConfig};

use super::cache::CacheShape;

/// Longest header of a file of tensors that is read.
const LONGEST_HEADER: u64 = 256 << 20;

/// Sizes of a decoder that its memory follows from, of whatever architecture it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSizes {
    /// All parameters, an output head that is the embedding counted once.
    pub num_parameters: u64,
    /// Parameters of the largest layer.
    pub layer: u64,
    /// Parameters in no layer: embedding, last norm, output head.
    pub outside: u64,
    /// Products of a weight and a vector: what an adapter may go onto.
    pub linears: Vec<Linear>,
    /// What activations and caches follow from; `None` where `config.json` does not say it in the usual words.
    pub shape: Option<DecoderShape>,
}

/// Weights of one name, rows and columns, in all layers together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Last part of its name: `q_proj`.
    pub name: String,
    /// Length of what comes out.
    pub rows: u64,
    /// Length of what goes in.
    pub columns: u64,
    /// Number of them.
    pub count: u64,
}

/// Widths of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderShape {
    /// Number of layers.
    pub num_layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width inside the feed-forward part that a token passes through: of a mixture, of all its experts together.
    pub feed_forward: u64,
    /// Number of query heads.
    pub heads: u64,
    /// Number of key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Number of tokens that have a logit.
    pub vocab: u64,
    /// Experts that a token passes through; 0 where there are none.
    pub active_experts: u64,
    /// Queries and keys are normalised.
    pub normalises_heads: bool,
    /// Norms stand before and behind attention and feed-forward part.
    pub has_four_norms: bool,
    /// Bytes of a weight as servers hold it where nobody says so.
    pub served_bytes: u64,
    /// What servers keep of tokens.
    pub cache: CacheShape,
    /// Tokens of the longest sequence that it is made for (`max_position_embeddings`); `None` where it does
    /// not say so.
    pub context: Option<u64>,
}

impl DecoderShape {
    /// From `config.json`; a model that sees images has a part for its text.
    fn of_config(config: &Value) -> Option<Self> {
        let text = config.get("text_config").filter(|part| part.is_object()).unwrap_or(config);
        let number = |key: &str| text.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
        let (hidden, heads) = (number("hidden_size")?, number("num_attention_heads")?);
        let kind = text.get("model_type").and_then(Value::as_str).unwrap_or("");
        let experts =
            ["num_experts", "num_local_experts", "n_routed_experts"].iter().find_map(|key| number(key));
        let active = number("num_experts_per_tok").filter(|_| experts.is_some_and(|n| n > 1)).unwrap_or(0);
        let dense = number("intermediate_size");
        let feed_forward = if active == 0 {
            dense?
        } else {
            let shared = match (number("shared_expert_intermediate_size"), number("n_shared_experts")) {
                (Some(width), _) => width,
                (None, Some(count)) => count * number("moe_intermediate_size")?,
                (None, None) => 0,
            };
            active * number("moe_intermediate_size").or(dense)? + shared
        };
        let dtype = [text, config]
            .iter()
            .find_map(|part| part.get("dtype").or_else(|| part.get("torch_dtype")).and_then(Value::as_str));
        let num_layers = number("num_hidden_layers")?;
        let kv_heads = number("num_key_value_heads").unwrap_or(heads);
        let head_dim = number("head_dim").unwrap_or(hidden / heads);
        Some(Self {
            num_layers,
            hidden,
            feed_forward,
            heads,
            kv_heads,
            head_dim,
            vocab: number("vocab_size")?,
            active_experts: active,
            normalises_heads: kind.starts_with("qwen3") || kind.starts_with("gemma3"),
            has_four_norms: kind.starts_with("gemma2") || kind.starts_with("gemma3"),
            served_bytes: if dtype == Some("float32") { 4 } else { 2 },
            cache: CacheShape::of_heads(num_layers, kv_heads, head_dim).with_config(text),
            context: number("max_position_embeddings"),
        })
    }
}

impl ModelSizes {
    /// Of a folder in Hugging Face layout: parameters from the headers of its tensors, or by its configuration
    /// where there are none. `None` where neither says how many.
    pub fn read(folder: &Path) -> Option<Self> {
        let text = tamis_file::read_text(&folder.join("config.json"), tamis_file::MAX_MODEL_CONFIG).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        let by_config = Self::of_config(&config);
        let shape = DecoderShape::of_config(&config);
        match read_headers(folder) {
            Some(tensors) => Some(Self::of_tensors(&tensors, shape)),
            None => by_config,
        }
    }

    /// Of a model by its `config.json` alone, as decoders of the Llama family and mixtures of it are built. `None`
    /// where it does not say all that these need.
    pub fn of_config(config: &Value) -> Option<Self> {
        let shape = DecoderShape::of_config(config)?;
        let text = config.get("text_config").filter(|part| part.is_object()).unwrap_or(config);
        let number = |key: &str| text.get(key).and_then(Value::as_u64);
        let flag = |key: &str| text.get(key).and_then(Value::as_bool);
        let outer = config.get("tie_word_embeddings").and_then(Value::as_bool);
        let kind = text.get("model_type").and_then(Value::as_str).unwrap_or("");
        let is_tied = flag("tie_word_embeddings").or(outer).unwrap_or(kind.starts_with("gemma"));
        let has_biases = flag("attention_bias").unwrap_or(kind.starts_with("qwen2"));
        let experts =
            ["num_experts", "num_local_experts", "n_routed_experts"].iter().find_map(|key| number(key));
        let experts = if shape.active_experts == 0 { None } else { experts };
        let width = match experts {
            Some(_) => number("moe_intermediate_size").or(number("intermediate_size"))?,
            None => shape.feed_forward,
        };
        Some(Self::of_shape(shape, is_tied, has_biases, experts.map(|count| (count, width))))
    }

    /// Of a model that begins with random weights, or any other of the native engine's.
    pub fn of_native(model: &TransformerConfig) -> Self {
        let (num_layers, kv_heads) = (model.num_layers as u64, model.num_kv_heads as u64);
        let shape = DecoderShape {
            num_layers,
            hidden: model.hidden_size as u64,
            feed_forward: model.intermediate_size as u64,
            heads: model.num_heads as u64,
            kv_heads,
            head_dim: model.head_dim as u64,
            vocab: model.vocab_size as u64,
            active_experts: 0,
            normalises_heads: model.architecture == Architecture::Qwen3,
            has_four_norms: false,
            // It is published in f32.
            served_bytes: 4,
            cache: CacheShape::of_heads(num_layers, kv_heads, model.head_dim as u64),
            context: Some(model.max_position_embeddings as u64),
        };
        Self::of_shape(shape, model.tie_word_embeddings, model.qkv_bias, None)
    }

    fn of_shape(shape: DecoderShape, is_tied: bool, has_biases: bool, experts: Option<(u64, u64)>) -> Self {
        let (d, layers) = (shape.hidden, shape.num_layers);
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let (count, width) = experts.unwrap_or((1, shape.feed_forward));
        let linear = |name: &str, rows, columns, count| Linear {
            name: name.to_owned(),
            rows,
            columns,
            count: layers * count,
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
        if experts.is_some() {
            linears.push(linear("gate", count, d, 1));
        }
        let mut layer: u64 =
            linears.iter().map(|one| one.rows * one.columns * one.count / layers.max(1)).sum();
        layer += if shape.has_four_norms { 4 * d } else { 2 * d };
        layer += if shape.normalises_heads { 2 * shape.head_dim } else { 0 };
        layer += if has_biases { q + 2 * kv } else { 0 };
        let outside = shape.vocab * d * if is_tied { 1 } else { 2 } + d;
        Self { num_parameters: layers * layer + outside, layer, outside, linears, shape: Some(shape) }
    }

    fn of_tensors(tensors: &BTreeMap<String, Vec<u64>>, shape: Option<DecoderShape>) -> Self {
        let mut layers: BTreeMap<&str, u64> = BTreeMap::new();
        let mut outside = 0;
        let mut linears: BTreeMap<(String, u64, u64), u64> = BTreeMap::new();
        for (name, sizes) in tensors {
            let numbers: u64 = sizes.iter().product();
            let Some(layer) = layer_of(name) else {
                outside += numbers;
                continue;
            };
            *layers.entry(layer).or_default() += numbers;
            if let ([rows, columns], Some(whole)) = (sizes.as_slice(), name.strip_suffix(".weight")) {
                let last = whole.rsplit('.').next().unwrap_or(whole).to_owned();
                *linears.entry((last, *rows, *columns)).or_default() += 1;
            }
        }
        let of_layers: u64 = layers.values().sum();
        let linears = linears.into_iter();
        Self {
            num_parameters: of_layers + outside,
            layer: layers.values().copied().max().unwrap_or(0),
            outside,
            linears: linears
                .map(|((name, rows, columns), count)| Linear { name, rows, columns, count })
                .collect(),
            shape,
        }
    }

    /// Parameters of an adapter of this rank, on the weights whose names end so; on all of them for `None`.
    pub fn adapter(&self, rank: u64, targets: Option<&[String]>) -> u64 {
        let has_one = |linear: &&Linear| {
            targets.is_none_or(|targets| targets.iter().any(|target| linear.name.ends_with(target.as_str())))
        };
        let of = |linear: &Linear| rank * (linear.rows + linear.columns) * linear.count;
        self.linears.iter().filter(has_one).map(of).sum()
    }

    /// The sizes of a critic with the layers of this model: a value head in place of an output head.
    #[must_use]
    pub fn as_critic(&self) -> Self {
        let Some(shape) = &self.shape else { return self.clone() };
        let (head, embedding) = (shape.hidden, shape.vocab * shape.hidden);
        // The embedding stays, and an output head of its own does not.
        let outside = self.outside.min(embedding + shape.hidden) + head;
        Self { num_parameters: self.num_parameters - self.outside + outside, outside, ..self.clone() }
    }
}

/// The layer that a tensor is in: its name up to the first number.
fn layer_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(&name[..end]);
        }
        end += 1;
    }
    None
}

/// Names and sizes of all tensors of a folder; `None` where they cannot be read, or there are none.
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
        // Only the header: the library reads one together with all the weights behind it.
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
        // Counted by transformers.
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
        assert_eq!(layer_of("decoder.layers.11.mlp.experts.3.up_proj.weight"), Some("decoder.layers.11"));
        assert_eq!(layer_of("decoder.embed_tokens.weight"), None);
        assert_eq!(layer_of("transformer.h.0.ln_1.bias"), Some("transformer.h.0"));
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
    fn headers_and_configuration_agree_where_both_are_there() {
        let mut model = TransformerConfig::new(Architecture::Qwen3, 40, 16, 24, 3, 4, 64);
        model.num_kv_heads = 2;
        let folder = tempfile::tempdir().expect("a folder");
        let key = tamis_core::random::Key::new(1, tamis_core::random::Purpose::Init);
        let random = tamis_model::Model::init(model.clone(), key).expect("a model");
        random.save(folder.path(), tamis_model::SaveDtype::F32).expect("written");
        let read = ModelSizes::read(folder.path()).expect("sizes");
        let by_shape = ModelSizes::of_native(&model);
        assert_eq!(read.num_parameters, by_shape.num_parameters);
        assert_eq!((read.layer, read.outside), (by_shape.layer, by_shape.outside));
        assert_eq!(read.adapter(8, None), by_shape.adapter(8, None));
        std::fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
        assert_eq!(ModelSizes::read(folder.path()).expect("sizes").num_parameters, read.num_parameters);
    }
}
