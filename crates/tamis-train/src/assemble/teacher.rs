//! The teachers that the learner loads, and whether a teacher fits the policy.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tamis_config::{Config, ModelSource};
use tamis_data::prompt::Prompt;
use tamis_model::{Model, TransformerConfig};
use tamis_text::tokenizer::Tokenizer;

use super::policy::{self, Limits};
use crate::error::AssembleError;
use crate::prompts::codec::Codec;

/// Folders of the teachers that the learner loads, in their order.
pub(crate) fn folders(config: &Config) -> Vec<PathBuf> {
    config.loaded_teachers().filter_map(|teacher| teacher.path.as_ref().map(ModelSource::folder)).collect()
}

/// Sizes of the teachers that the learner loads, as far as they can be read.
pub(super) fn shapes(config: &Config) -> Vec<TransformerConfig> {
    folders(config).iter().filter_map(|folder| TransformerConfig::load_any(folder).ok()).collect()
}

/// Refuses a folder whose tokenizer is not the policy's: the same ids would be other tokens.
pub(crate) fn check_tokenizer(folder: &Path, codec: &Codec) -> Result<(), AssembleError> {
    let teacher = Tokenizer::load(folder).map_err(crate::prompts::codec::CodecError::from)?;
    let policy = codec.tokenizer();
    for id in 0..u32::try_from(policy.num_rows()).unwrap_or(u32::MAX) {
        let Some(own) = policy.token(id) else { continue };
        let found = teacher.token(id);
        if found.as_ref() != Some(&own) {
            let found = found.map_or_else(|| "no token".to_owned(), |found| format!("{found:?}"));
            return Err(AssembleError::at(
                "teacher",
                format!(
                    "the tokenizer in {} is not the policy's: token {id} is {found} there and {own:?} here",
                    folder.display()
                ),
                "take a teacher with the policy's tokenizer: its log-probabilities are of the tokens that the policy \
                 sampled",
            ));
        }
    }
    Ok(())
}

/// Refuses a teacher that the learner could not load for this policy, before its weights are read.
pub(super) fn check(folder: &Path, config: &Config, codec: &Codec) -> Result<(), AssembleError> {
    if !folder.is_dir() {
        return Err(AssembleError::at(
            "teacher",
            format!("there is no folder {}", folder.display()),
            "name a folder with config.json, model.safetensors and tokenizer.json, or a model on a hub",
        ));
    }
    check_tokenizer(folder, codec)?;
    let limits = Limits::read(folder)?;
    limits.check_vocabulary(codec, &format!("the teacher in {}", folder.display()))?;
    limits.check_length(config, &format!("the teacher in {}", folder.display()))
}

/// Refuses a teacher that does not fit the policy, and prompts without a teacher. Returns a warning of a
/// teacher without prompts.
pub(crate) fn check_all(
    config: &Config,
    codec: &Codec,
    train: &[Prompt],
) -> Result<Option<String>, AssembleError> {
    if config.distillation().is_none() {
        return Ok(None);
    }
    for teacher in &config.teacher {
        let Some(folder) = teacher.path.as_ref().map(ModelSource::folder) else { continue };
        if teacher.is_loaded() {
            check(&folder, config, codec)?;
        } else {
            check_tokenizer(&folder, codec)?;
        }
    }
    let sources: BTreeSet<&str> = train.iter().map(|prompt| prompt.data_source.as_str()).collect();
    let named: Vec<&str> =
        config.teacher.iter().filter_map(|teacher| teacher.data_source.as_deref()).collect();
    let is_for_all = config.teacher.iter().any(|teacher| teacher.data_source.is_none());
    if let Some(source) = sources.iter().find(|source| !is_for_all && !named.contains(*source)) {
        return Err(AssembleError::at(
            "teacher",
            format!("no teacher is for the prompts of `data_source` {source:?}"),
            "name one with this `data_source`, or one without `data_source`, which is for all others",
        ));
    }
    // An environment makes its prompts later.
    let unused = named.iter().find(|named| !train.is_empty() && !sources.contains(*named));
    let shown = || sources.iter().map(|source| format!("{source:?}")).collect::<Vec<_>>().join(", ");
    Ok(unused.map(|unused| {
        format!(
            "a teacher is for the `data_source` {unused:?}, which no prompt has: the prompts have {}",
            shown()
        )
    }))
}

/// The teachers that the native engine loads.
pub(super) fn load(config: &Config, codec: &Codec) -> Result<Vec<Model>, AssembleError> {
    let load = |folder: &PathBuf| {
        check(folder, config, codec)?;
        policy::load(folder)
    };
    folders(config).iter().map(load).collect()
}
