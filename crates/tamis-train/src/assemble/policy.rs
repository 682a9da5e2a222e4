//! The policy: model, tokenizer and template.
//!
//! Tokenizer and shape are read before weights, so that a prompt, a limit or an architecture that does not
//! fit is refused early. A model of the native engine is loaded here; other learners load it themselves.

use std::path::Path;

use tamis_config::{BackendKind, Config, InitConfig, LearnerBackend, ModelSource, TokenizerSource};
use tamis_core::random::{Key, Purpose};
pub use tamis_model::head_warning;
use tamis_model::{Model, TransformerConfig, weights_elsewhere};
use tamis_text::image_tokens::MODEL_TYPES;
use tamis_text::regex_mask::{RegexMask, RegexMaskError, WholeRegex};
use tamis_text::tokenizer::Tokenizer;

use super::RELATIVE;
use crate::checkpoint::{Coverage, WEIGHTS_ELSEWHERE, verify};
use crate::error::AssembleError;
use crate::prompts::codec::Codec;

/// The tokenizer, template and end tokens. `alphabet` is for the character tokenizer.
pub fn codec(config: &Config, alphabet: impl FnOnce() -> String) -> Result<Codec, AssembleError> {
    if let Some(path) = config.model.path.as_ref().map(ModelSource::folder).filter(|path| path.is_dir()) {
        verify(&path, Coverage::ForUse)?;
    }
    unverified_codec(config, alphabet)
}

/// [`codec`], without a check whether a checkpoint is as it was saved.
pub(super) fn unverified_codec(
    config: &Config,
    alphabet: impl FnOnce() -> String,
) -> Result<Codec, AssembleError> {
    let template = config.model.chat_template.as_deref();
    let arguments = config.data.chat_template_kwargs.0.clone();
    match (config.model.path.as_ref().map(ModelSource::folder), &config.model.init) {
        (Some(path), _) if !path.is_dir() => Err(AssembleError::setting(
            format!("model.path: there is no folder {}", path.display()),
            format!("name a folder with config.json, model.safetensors and tokenizer.json; {RELATIVE}"),
        )),
        (Some(path), _) => {
            if let Some(place) = weights_elsewhere(&path) {
                let problem = format!("model.path: {} holds no weights: they are {place}", path.display());
                return Err(AssembleError::setting(problem, WEIGHTS_ELSEWHERE));
            }
            let tokenizer = load_tokenizer(&path)?;
            Ok(Codec::new(tokenizer, template, arguments, Some(&path))?.with_images_of(&path)?)
        }
        (None, Some(init)) => {
            let tokenizer = match &init.tokenizer {
                TokenizerSource::Character => {
                    Tokenizer::characters(&alphabet()).map_err(crate::prompts::codec::CodecError::from)?
                }
                TokenizerSource::File(path) => load_tokenizer(path)?,
            };
            Ok(Codec::new(tokenizer, template, arguments, None)?)
        }
        (None, None) => Err(no_model()),
    }
}

/// Refuses a `rollout.regex`, set at that place, that no completion of the tokenizer could match. Servers
/// apply it by their own means, so if they sample, it only has to be a valid expression.
pub(crate) fn check_regex(config: &Config, place: Option<&str>, codec: &Codec) -> Result<(), AssembleError> {
    let Some(pattern) = &config.rollout.regex else { return Ok(()) };
    let checked = match config.rollout.backend {
        BackendKind::Native | BackendKind::Learner => {
            RegexMask::new(pattern, codec.tokenizer(), codec.end_token_ids()).map(|_| ())
        }
        BackendKind::Vllm | BackendKind::Sglang | BackendKind::OpenAi => WholeRegex::new(pattern).map(|_| ()),
    };
    checked.map_err(|error| {
        let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
        let hint = match &error {
            RegexMaskError::Pattern { .. } => {
                "write it in the syntax of Rust's `regex`, without look-around and back-references"
            }
            RegexMaskError::Tokenizer(_) => "reward the form instead (`kind: format`)",
            RegexMaskError::NoMatch | RegexMaskError::Empty => {
                "let it match a completion that the model can write, or set it to null"
            }
        };
        AssembleError::setting(format!("rollout.regex{place}: {error}"), hint)
    })
}

fn no_model() -> AssembleError {
    AssembleError::setting(
        "no model is set",
        "set model.path to a checkpoint folder, or model.init to start from random weights",
    )
}

fn load_tokenizer(path: &Path) -> Result<Tokenizer, AssembleError> {
    let folder =
        if path.is_file() { path.parent().map(Path::to_owned).unwrap_or_default() } else { path.to_owned() };
    Ok(Tokenizer::load(&folder).map_err(crate::prompts::codec::CodecError::from)?)
}

/// The codec of a checkpoint: its own tokenizer, so that ids mean what they meant when its weights were
/// trained.
pub fn codec_of(config: &Config, checkpoint: &Path) -> Result<Codec, AssembleError> {
    let template = config.model.chat_template.as_deref();
    let arguments = config.data.chat_template_kwargs.0.clone();
    let tokenizer = load_tokenizer(checkpoint)?;
    Ok(Codec::new(tokenizer, template, arguments, Some(checkpoint))?.with_images_of(checkpoint)?)
}

/// The model's shape, before anything is allocated for it: that of a checkpoint, of `model.path`, or of
/// `model.init`.
pub fn shape(
    config: &Config,
    codec: &Codec,
    checkpoint: Option<&Path>,
) -> Result<TransformerConfig, AssembleError> {
    let named = config.model.path.as_ref().map(ModelSource::folder);
    let shape = match (checkpoint.or(named.as_deref()), &config.model.init) {
        (Some(path), _) => TransformerConfig::load(path)?,
        (None, Some(init)) => {
            let shape = shape_of(init, codec);
            shape.validate().map_err(|error| {
                AssembleError::setting(format!("model.init: {error}"), "make the model smaller")
            })?;
            shape
        }
        (None, None) => return Err(no_model()),
    };
    Limits::of(&shape).check(config, codec)?;
    Ok(shape)
}

/// Sizes of a model, which everything that a run does with it must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    vocab_size: usize,
    /// Longest sequence; `None`: no limit.
    pub(super) max_positions: Option<usize>,
}

impl Limits {
    fn of(shape: &TransformerConfig) -> Self {
        Self { vocab_size: shape.vocab_size, max_positions: Some(shape.max_position_embeddings) }
    }

    /// The sizes of a folder in Hugging Face layout, of any architecture: what its configuration says about
    /// text.
    pub(super) fn read(folder: &Path) -> Result<Self, AssembleError> {
        let path = folder.join("config.json");
        let unreadable = |problem: String| {
            AssembleError::setting(
                format!("{} cannot be used: {problem}", path.display()),
                "name a folder with config.json, *.safetensors and tokenizer.json",
            )
        };
        let text = tamis_file::read_text(&path, 16 << 20).map_err(|error| unreadable(error.to_string()))?;
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        let number = |key: &str| {
            let found = json.pointer(&format!("/text_config/{key}")).or_else(|| json.get(key));
            found.and_then(serde_json::Value::as_u64).map(|number| number as usize)
        };
        let vocab_size =
            number("vocab_size").ok_or_else(|| unreadable("it has no `vocab_size`".to_owned()))?;
        Ok(Self { vocab_size, max_positions: number("max_position_embeddings") })
    }

    fn check(self, config: &Config, codec: &Codec) -> Result<(), AssembleError> {
        self.check_vocabulary(codec, "the model")?;
        self.check_length(config, "the model")?;
        if codec.end_token_ids().is_empty() {
            return Err(AssembleError::setting(
                "neither the tokenizer nor generation_config.json (or config.json) names an end token, so no completion could end",
                "set eos_token in tokenizer_config.json or eos_token_id in generation_config.json",
            ));
        }
        Ok(())
    }

    /// Refuses a model (`name`) without a row for each token.
    pub(super) fn check_vocabulary(self, codec: &Codec, name: &str) -> Result<(), AssembleError> {
        let rows = codec.tokenizer().num_rows();
        if rows <= self.vocab_size {
            return Ok(());
        }
        Err(AssembleError::setting(
            format!("the tokenizer has {rows} tokens, {name} only {}", self.vocab_size),
            "use the tokenizer that belongs to the model",
        ))
    }

    /// Refuses prompts and completions that are longer together than the positions of a model (`name`).
    pub(super) fn check_length(self, config: &Config, name: &str) -> Result<(), AssembleError> {
        let (prompt, response) = (config.data.max_prompt_length, config.max_text_length());
        let longest = prompt.saturating_add(response);
        match self.max_positions.filter(|&limit| longest > limit) {
            None => Ok(()),
            Some(limit) => Err(AssembleError::setting(
                format!(
                    "data.max_prompt_length {prompt} and {} {response} make {longest} tokens, {name} reads {limit}",
                    config.text_length_key()
                ),
                format!("lower one of them so that they sum to at most {limit}"),
            )),
        }
    }
}

/// Whether a model in a folder is one that sees images, whatever else is wrong with it.
pub(super) fn sees_images(folder: &Path) -> bool {
    let config = tamis_file::read_text(&folder.join("config.json"), tamis_file::MAX_MODEL_CONFIG);
    let config: Option<serde_json::Value> = config.ok().and_then(|text| serde_json::from_str(&text).ok());
    let kind = config.as_ref().and_then(|config| config["model_type"].as_str());
    kind.is_some_and(|kind| MODEL_TYPES.contains(&kind))
}

/// Refuses to sample in PyTorch from a policy that sees images, as the learner itself does.
pub(super) fn check_sampling_of_images(config: &Config, sees_images: bool) -> Result<(), AssembleError> {
    let is_asked = config.samples_through_learner() && config.learner.backend == LearnerBackend::Torch;
    if is_asked && sees_images {
        return Err(AssembleError::setting(
            "the learner does not sample from models that see images",
            "sample at vLLM servers (rollout.backend: vllm)",
        ));
    }
    Ok(())
}

/// Limits of the policy. It may have any architecture if the native engine neither trains it nor samples from
/// it.
pub(crate) fn limits(
    config: &Config,
    codec: &Codec,
    checkpoint: Option<&Path>,
) -> Result<Limits, AssembleError> {
    let named = config.model.path.as_ref().map(ModelSource::folder);
    match checkpoint.or(named.as_deref()) {
        Some(path) if config.rollout.backend != BackendKind::Native => {
            check_sampling_of_images(config, codec.image_token_id().is_some())?;
            let limits = Limits::read(path)?;
            limits.check(config, codec)?;
            Ok(limits)
        }
        _ => Ok(Limits::of(&shape(config, codec, checkpoint)?)),
    }
}

/// The model as the configuration describes it: loaded, or with random weights keyed by the run seed.
pub fn model(config: &Config, codec: &Codec) -> Result<Model, AssembleError> {
    let shape = shape(config, codec, None)?;
    match &config.model.path {
        // Verified with its tokenizer.
        Some(path) => Ok(Model::load(&path.folder())?),
        None => Ok(Model::init(shape, Key::new(config.run.seed, Purpose::Init))?),
    }
}

/// Loads a checkpoint folder. What tamis saved must be as it was saved.
pub fn load(path: &Path) -> Result<Model, AssembleError> {
    verify(path, Coverage::ForUse)?;
    Ok(Model::load(path)?)
}

/// The reference or the critic: a model that must share the policy's vocabulary and context length.
pub(super) struct Companion {
    /// The key that names its folder.
    pub(super) key: &'static str,
    /// Name of the model's part in messages.
    pub(super) name: &'static str,
    /// Effect of leaving the key out.
    pub(super) without: &'static str,
}

impl Companion {
    /// Checks the model's shape: it must know every token of the policy and have as many positions as a
    /// trajectory may have tokens.
    pub(super) fn shape(
        &self,
        path: &Path,
        config: &Config,
        policy: &TransformerConfig,
    ) -> Result<TransformerConfig, AssembleError> {
        let shape = self.check_folder(path).and_then(|()| Ok(TransformerConfig::load_any(path)?))?;
        self.check(path, config, Limits::of(policy), Limits::of(&shape))?;
        Ok(shape)
    }

    fn check_folder(&self, path: &Path) -> Result<(), AssembleError> {
        let Self { key, without, .. } = self;
        if path.is_dir() {
            return Ok(());
        }
        Err(AssembleError::setting(
            format!("{key}: there is no folder {}", path.display()),
            format!("name a folder with config.json and model.safetensors, or leave it out: {without}"),
        ))
    }

    fn check(&self, path: &Path, config: &Config, policy: Limits, own: Limits) -> Result<(), AssembleError> {
        let Self { key, name, .. } = self;
        if own.vocab_size < policy.vocab_size {
            let problem = format!(
                "{key}: the {name} has {} tokens, but the policy has {}",
                own.vocab_size, policy.vocab_size
            );
            return Err(AssembleError::setting(
                problem,
                format!("take a {name} with the policy's tokenizer"),
            ));
        }
        own.check_length(config, &format!("the {name} in {}", path.display()))
    }
}

const REFERENCE: Companion = Companion {
    key: "model.reference",
    name: "reference",
    without: "the reference is then the policy as it begins",
};

/// The reference policy, if the configuration names one. `None` means the policy as it begins.
pub fn reference(config: &Config, policy: &TransformerConfig) -> Result<Option<Model>, AssembleError> {
    let Some(path) = config.model.reference.as_ref().map(ModelSource::folder) else { return Ok(None) };
    REFERENCE.shape(&path, config, policy)?;
    load(&path).map(Some)
}

/// Checks that a reference of any architecture fits the policy, before its weights are read.
pub(super) fn check_reference(path: &Path, config: &Config, policy: Limits) -> Result<(), AssembleError> {
    REFERENCE.check_folder(path)?;
    REFERENCE.check(path, config, policy, Limits::read(path)?)
}

/// The sizes of a model from random weights, with a vocabulary of one, because its tokenizer is not known
/// yet.
pub(super) fn shape_of_sizes(init: &InitConfig) -> TransformerConfig {
    shape_with(init, 1)
}

/// The sizes of a model from random weights before there is data: a tokenizer of characters has about as many
/// as ASCII. `None` if the policy is no such model, or its tokenizer cannot be read.
pub fn shape_before_data(config: &Config) -> Option<TransformerConfig> {
    let init = config.model.init.as_ref()?;
    let codec = unverified_codec(config, || (' '..='~').collect()).ok()?;
    Some(shape_of(init, &codec))
}

fn shape_of(init: &InitConfig, codec: &Codec) -> TransformerConfig {
    let mut config = shape_with(init, codec.tokenizer().num_rows());
    config.eos_token_ids = codec.end_token_ids().to_vec();
    config
}

fn shape_with(init: &InitConfig, vocab_size: usize) -> TransformerConfig {
    let mut config = TransformerConfig::new(
        init.architecture,
        vocab_size,
        init.hidden_size,
        init.intermediate_size,
        init.num_layers,
        init.num_heads,
        init.max_position_embeddings,
    );
    config.num_kv_heads = init.num_kv_heads();
    config.head_dim = init.head_dim();
    config.rope_theta = init.rope_theta;
    config.tie_word_embeddings = init.tie_word_embeddings;
    config
}
