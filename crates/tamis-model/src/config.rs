//! `TransformerConfig`: the shape of a model, read from and written to a Hugging Face `config.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::weights::Architecture;
use thiserror::Error;

/// The head on the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OutputHead {
    /// Logits over the vocabulary: a language model (`...ForCausalLM`).
    #[default]
    Vocabulary,
    /// One number for each token, `score.weight·x + score.bias`: a critic (`...ForTokenClassification` with
    /// one label).
    Value,
}

impl std::fmt::Display for OutputHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Vocabulary => "a language model",
            Self::Value => "a critic",
        })
    }
}

/// The frequency scaling of Llama 3.1. Wavelengths beyond `original_max_position_embeddings /
/// low_freq_factor` are stretched by `factor`, those below `.. / high_freq_factor` are kept, and those
/// between are interpolated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3Scaling {
    /// Stretch of long wavelengths.
    pub factor: f64,
    /// Wavelength ratio at and above which stretching is complete.
    pub low_freq_factor: f64,
    /// Wavelength ratio at which stretching begins.
    pub high_freq_factor: f64,
    /// Context length that the frequencies were trained at.
    pub original_max_position_embeddings: usize,
}

/// Shape and constants of a decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Model family.
    pub architecture: Architecture,
    /// Head on the last layer.
    pub head: OutputHead,
    /// Vocabulary size V.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Epsilon inside the root of RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Llama 3 scaling of the rotary frequencies.
    pub rope_scaling: Option<Llama3Scaling>,
    /// Longest sequence, prompt and completion together.
    pub max_position_embeddings: usize,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether attention's output has a bias.
    pub output_bias: bool,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
    /// Tokens that end a completion: those of `generation_config.json`, otherwise of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// `config.json` as it was read. It is written back with the keys above updated.
    source: Map<String, Value>,
}

/// A `config.json` cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A family that the engine does not support.
    #[error(
        "architecture `{name}` is not supported (supported: Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM)"
    )]
    Architecture {
        /// Name of the tensor.
        name: String,
    },
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Reads typed values out of a JSON object.
struct Reader<'a>(&'a Map<String, Value>);

impl<'a> Reader<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn read_typed<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            let mut found = value.to_string();
            if found.len() > 80 {
                found = found.chars().take(80).chain("...".chars()).collect();
            }
            fault!("`{key}` must be {expected}, got {found}").into()
        })
    }

    fn size(&self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        // The bound keeps every product of sizes far from overflow.
        self.read_typed(key, "a whole number from 1 to 16777216", |value| {
            value.as_u64().filter(|&n| (1..=1 << 24).contains(&n)).map(|n| n as usize)
        })
    }

    fn read_required(&self, key: &'static str) -> Result<usize, ConfigError> {
        self.size(key)?.ok_or_else(|| fault!("`{key}` is missing").into())
    }

    fn positive(&self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        self.read_typed(key, "a positive number", |value| {
            value.as_f64().filter(|&x| x > 0.0 && x.is_finite())
        })
    }

    fn flag(&self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        self.read_typed(key, "true or false", Value::as_bool)
    }

    fn text(&self, key: &'static str) -> Result<Option<&'a str>, ConfigError> {
        self.read_typed(key, "a text", Value::as_str)
    }

    fn object(&self, key: &'static str) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
        self.read_typed(key, "an object", Value::as_object)
    }

    fn ids(&self, key: &'static str) -> Result<Option<Vec<u32>>, ConfigError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        self.read_typed(key, "a token id or a list of token ids", |value| match value {
            Value::Array(items) => items.iter().map(id).collect(),
            _ => id(value).map(|id| vec![id]),
        })
    }

    /// Refuses special tokens that the model has no row for: an end token could never be sampled, and others
    /// have no embedding.
    fn check_tokens(&self, file: &'static str, vocab_size: usize) -> Result<(), ConfigError> {
        for key in ["eos_token_id", "pad_token_id", "bos_token_id"] {
            let ids = match self.get(key) {
                // Older files write -1 for none.
                Some(value) if key != "eos_token_id" && value.as_i64().is_some_and(|id| id < 0) => None,
                _ => self.ids(key)?,
            };
            if let Some(id) = ids.into_iter().flatten().find(|&id| id as usize >= vocab_size) {
                return Err(fault!(
                    "`{key}` in {file} is {id}, but the model has {vocab_size} tokens (0 to {})",
                    vocab_size.saturating_sub(1)
                )
                .into());
            }
        }
        Ok(())
    }
}

impl TransformerConfig {
    /// A model from nothing: rotary base 10000, epsilon 1e-6, tied head, full attention
    /// (`num_kv_heads = num_heads`), `head_dim = hidden_size / num_heads`. Change the public fields for
    /// anything else.
    pub fn new(
        architecture: Architecture,
        vocab_size: usize,
        hidden_size: usize,
        intermediate_size: usize,
        num_layers: usize,
        num_heads: usize,
        max_position_embeddings: usize,
    ) -> Self {
        Self {
            architecture,
            head: OutputHead::Vocabulary,
            vocab_size,
            hidden_size,
            intermediate_size,
            num_layers,
            num_heads,
            num_kv_heads: num_heads,
            head_dim: hidden_size / num_heads.max(1),
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_scaling: None,
            max_position_embeddings,
            tie_word_embeddings: true,
            qkv_bias: architecture == Architecture::Qwen2,
            output_bias: false,
            initializer_range: 0.02,
            eos_token_ids: Vec::new(),
            source: Map::new(),
        }
    }

    /// Reads `config.json` of a language model's folder, and the end tokens of `generation_config.json` if it
    /// has any.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let config = Self::load_any(folder)?;
        match config.head {
            OutputHead::Vocabulary => Ok(config),
            found @ OutputHead::Value => {
                let name = config.architecture.critic_class_name();
                Err(fault!("`{name}` is {found}, not {wanted}", wanted = OutputHead::Vocabulary).into())
            }
        }
    }

    /// As [`Self::load`], with any head.
    pub fn load_any(folder: &Path) -> Result<Self, ConfigError> {
        let read = |name: &str| -> Result<(PathBuf, String), Fault> {
            let path = folder.join(name);
            match tamis_file::read_text(&path, tamis_file::MAX_MODEL_CONFIG) {
                Ok(text) => Ok((path, text)),
                Err(source) => Err(fault!("failed to read {}", path.display()).with_source(source)),
            }
        };
        let parse = |(path, text): (PathBuf, String)| {
            serde_json::from_str::<Value>(&text)
                .map_err(|source| fault!("{} is not valid JSON", path.display()).with_source(source))
        };
        let mut config = Self::from_json(&parse(read("config.json")?)?)?;
        if folder.join("generation_config.json").exists() {
            let generation = parse(read("generation_config.json")?)?;
            let object = generation.as_object().ok_or_else(|| fault!("expected a JSON object"))?;
            Reader(object).check_tokens("generation_config.json", config.vocab_size)?;
            if let Some(ids) = Reader(object).ids("eos_token_id")? {
                config.eos_token_ids = ids;
            }
        }
        Ok(config)
    }

    /// Reads the content of a `config.json`.
    pub fn from_json(value: &Value) -> Result<Self, ConfigError> {
        let source = value.as_object().ok_or_else(|| fault!("expected a JSON object"))?;
        let reader = Reader(source);
        let class = reader.read_typed("architectures", "a list of class names", |value| {
            value.as_array()?.first()?.as_str()
        })?;
        let name =
            class.or(reader.text("model_type")?).ok_or_else(|| fault!("`architectures` is missing"))?;
        let (architecture, head) = Architecture::ALL
            .iter()
            .find_map(|&architecture| {
                if [architecture.class_name(), architecture.as_str()].contains(&name) {
                    Some((architecture, OutputHead::Vocabulary))
                } else {
                    (architecture.critic_class_name() == name).then_some((architecture, OutputHead::Value))
                }
            })
            .ok_or_else(|| ConfigError::Architecture { name: name.to_owned() })?;
        let unsupported = |feature, value: &str, supported| {
            Err(fault!("{feature} `{value}` is not supported (supported: {supported})").into())
        };
        let activation = reader.text("hidden_act")?.unwrap_or("silu");
        if activation != "silu" && activation != "swish" {
            return unsupported("activation", activation, "silu");
        }
        if reader.flag("mlp_bias")?.unwrap_or(false) {
            return unsupported("mlp_bias", "true", "false");
        }
        // Without names of labels, `transformers` assumes two.
        let num_labels = reader.object("id2label")?.map_or(2, Map::len);
        if head == OutputHead::Value && num_labels != 1 {
            return unsupported("number of labels", &num_labels.to_string(), "1, the value");
        }
        let num_layers = reader.read_required("num_hidden_layers")?;
        check_attention(&reader, num_layers)?;
        let (rope_theta, rope_scaling) = rope(&reader)?;
        let num_heads = reader.read_required("num_attention_heads")?;
        let hidden_size = reader.read_required("hidden_size")?;
        let default_head = if architecture == Architecture::Qwen3 { 128 } else { hidden_size / num_heads };
        let attention_bias = reader.flag("attention_bias")?.unwrap_or(false);
        let config = Self {
            architecture,
            head,
            vocab_size: reader.read_required("vocab_size")?,
            hidden_size,
            intermediate_size: reader.read_required("intermediate_size")?,
            num_layers,
            num_heads,
            num_kv_heads: reader.size("num_key_value_heads")?.unwrap_or(num_heads),
            head_dim: reader.size("head_dim")?.unwrap_or(default_head),
            rms_norm_eps: reader.positive("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            max_position_embeddings: reader.read_required("max_position_embeddings")?,
            tie_word_embeddings: reader.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            output_bias: architecture != Architecture::Qwen2 && attention_bias,
            initializer_range: reader.positive("initializer_range")?.unwrap_or(0.02),
            eos_token_ids: reader.ids("eos_token_id")?.unwrap_or_default(),
            source: source.clone(),
        };
        config.validate()?;
        reader.check_tokens("config.json", config.vocab_size)?;
        Ok(config)
    }

    /// Checks that the sizes fit together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |what, left, right| Err(fault!("{what}: {left} and {right}").into());
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.intermediate_size,
            self.num_layers,
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.max_position_embeddings,
        ];
        if let Some(&size) = sizes.iter().find(|&&size| size == 0 || size > 1 << 24) {
            return wrong(
                "every size must be within these bounds, and one is not (lower bound, size)",
                1,
                size,
            );
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return wrong(
                "num_attention_heads must be a multiple of num_key_value_heads",
                self.num_heads,
                self.num_kv_heads,
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return wrong("head_dim must be a multiple of 2", self.head_dim, 2);
        }
        if self.num_layers > 4096 {
            return wrong("num_hidden_layers must not exceed the limit", self.num_layers, 4096);
        }
        // Far beyond any machine, and small enough that no product of sizes overflows.
        let heads = (self.num_heads + self.num_kv_heads) * self.head_dim;
        let layer = self.hidden_size as u128 * (2 * heads + 3 * self.intermediate_size) as u128;
        let parameters = self.num_layers as u128 * layer + 2 * (self.vocab_size * self.hidden_size) as u128;
        if parameters > 1 << 42 {
            let parameters = usize::try_from(parameters).unwrap_or(usize::MAX);
            return wrong("the number of weights must not exceed the limit", parameters, 1 << 42);
        }
        Ok(())
    }

    /// The content of a `config.json` that `transformers` loads. `dtype` is the type of the weights beside
    /// it.
    pub fn to_json(&self, dtype: &str) -> Value {
        let mut json = self.source.clone();
        for old in ["rope_scaling", "torch_dtype"] {
            json.remove(old);
        }
        let mut rope = json!({"rope_theta": self.rope_theta, "rope_type": "default"});
        if let Some(scaling) = self.rope_scaling {
            rope = json!({
                "rope_theta": self.rope_theta,
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position_embeddings,
            });
        }
        // Older versions of transformers read `rope_theta` and `rope_scaling`, newer ones `rope_parameters`.
        if self.rope_scaling.is_some() {
            json.insert("rope_scaling".to_owned(), rope.clone());
        }
        let eos = match self.eos_token_ids[..] {
            [] => Value::Null,
            [id] => json!(id),
            _ => json!(self.eos_token_ids),
        };
        let mut set = |key: &str, value: Value| json.insert(key.to_owned(), value);
        match self.head {
            OutputHead::Vocabulary => set("architectures", json!([self.architecture.class_name()])),
            OutputHead::Value => set("architectures", json!([self.architecture.critic_class_name()])),
        };
        set("model_type", json!(self.architecture.as_str()));
        set("vocab_size", json!(self.vocab_size));
        set("hidden_size", json!(self.hidden_size));
        set("intermediate_size", json!(self.intermediate_size));
        set("num_hidden_layers", json!(self.num_layers));
        set("num_attention_heads", json!(self.num_heads));
        set("num_key_value_heads", json!(self.num_kv_heads));
        set("head_dim", json!(self.head_dim));
        set("hidden_act", json!("silu"));
        set("rms_norm_eps", json!(self.rms_norm_eps));
        set("rope_theta", json!(self.rope_theta));
        set("rope_parameters", rope);
        set("max_position_embeddings", json!(self.max_position_embeddings));
        set("tie_word_embeddings", json!(self.tie_word_embeddings));
        if self.architecture != Architecture::Qwen2 {
            set("attention_bias", json!(self.qkv_bias));
        }
        set("initializer_range", json!(self.initializer_range));
        set("eos_token_id", eos);
        set("dtype", json!(dtype));
        if self.head == OutputHead::Value {
            set("id2label", json!({"0": "LABEL_0"}));
            set("label2id", json!({"LABEL_0": 0}));
            // By default `transformers` applies dropout here in training.
            set("classifier_dropout", json!(0.0));
        }
        Value::Object(json)
    }

    /// The content of a `generation_config.json`; `None` without end tokens.
    pub fn generation_json(&self) -> Option<Value> {
        (!self.eos_token_ids.is_empty()).then(|| json!({"eos_token_id": self.eos_token_ids}))
    }

    /// The same layers with a value head.
    #[must_use]
    pub fn critic(&self) -> Self {
        Self { head: OutputHead::Value, ..self.clone() }
    }

    /// The same layers with an untied output head.
    pub(crate) fn to_untied(&self) -> Self {
        Self { tie_word_embeddings: false, ..self.clone() }
    }

    pub(crate) fn is_tied(&self) -> bool {
        self.head == OutputHead::Vocabulary && self.tie_word_embeddings
    }

    /// Query heads per key and value head.
    pub(crate) fn heads_per_kv(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Whether q and k are normalised per head.
    pub(crate) fn qk_norm(&self) -> bool {
        self.architecture == Architecture::Qwen3
    }
}

fn check_attention(reader: &Reader, num_layers: usize) -> Result<(), ConfigError> {
    let kinds = reader.read_typed("layer_types", "a list of texts", |value| {
        value.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()
    })?;
    if let Some(kind) = kinds.iter().flatten().find(|&&kind| kind != "full_attention") {
        return Err(fault!("layer type `{kind}` is not supported (supported: full_attention)").into());
    }
    let window = reader.size("sliding_window")?;
    let first = reader
        .read_typed("max_window_layers", "a whole number", Value::as_u64)?
        .map_or(usize::MAX, |first| first as usize);
    if let Some(window) = window
        && kinds.is_none()
        && reader.flag("use_sliding_window")?.unwrap_or(false)
        && first < num_layers
    {
        return Err(fault!(
            "sliding_window `{window}` is not supported (supported: {supported})",
            supported = "null, or use_sliding_window false"
        )
        .into());
    }
    Ok(())
}

/// Rotary base and scaling from `rope_parameters`, or from `rope_theta` and `rope_scaling` of older files.
fn rope(reader: &Reader) -> Result<(f64, Option<Llama3Scaling>), ConfigError> {
    let unsupported = |feature, value: String, supported| {
        Err(fault!("{feature} `{value}` is not supported (supported: {supported})").into())
    };
    let parameters = match reader.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => reader.object("rope_scaling")?,
    };
    let empty = Map::new();
    let inner = Reader(parameters.unwrap_or(&empty));
    let theta = match inner.positive("rope_theta")? {
        Some(theta) => theta,
        None => reader.positive("rope_theta")?.unwrap_or(10_000.0),
    };
    for place in [reader, &inner] {
        if let Some(factor) = place.positive("partial_rotary_factor")?
            && (factor - 1.0).abs() > 0.0
        {
            return unsupported("partial_rotary_factor", factor.to_string(), "1");
        }
    }
    let kind = inner.text("rope_type")?.or(inner.text("type")?).unwrap_or("default");
    match kind {
        "default" => Ok((theta, None)),
        "llama3" => {
            let number =
                |key| inner.positive(key)?.ok_or_else(|| ConfigError::from(fault!("`{key}` is missing")));
            let scaling = Llama3Scaling {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: inner.read_required("original_max_position_embeddings")?,
            };
            Ok((theta, Some(scaling)))
        }
        _ => unsupported("rope type", kind.to_owned(), "default, llama3"),
    }
}
