//! `tamis export`: a policy's weights and tokenizer as a folder that other programs load.

use std::path::{Path, PathBuf};

use tamis_core::fault::Fault;
use tamis_model::SaveDtype;
use tamis_text::tokenizer::Tokenizer;
use thiserror::Error;

use crate::checkpoint::{self, ChecksumError, Coverage, SaveError, SummedFolder};
use crate::native;
use tamis_run::durable::{Disk, DiskError};

/// A policy cannot be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] SaveError),
    /// The folder is there already: nothing is overwritten.
    #[error("{} exists already", folder.display())]
    Exists {
        /// The folder.
        folder: PathBuf,
    },
    /// The type has no room for the weights.
    #[error("tensor `{tensor}` has weights of magnitude {largest:e}, which would be infinite in {}", dtype.name())]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Largest magnitude in the tensor.
        largest: f32,
        /// The type.
        dtype: SaveDtype,
    },
    /// The source is not what was saved, the tokenizer cannot be read, or the disk failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<ChecksumError> for ExportError {
    fn from(error: ChecksumError) -> Self {
        let hint = error.hint().map(str::to_owned);
        Fault::of(error).with_known_hint(hint).into()
    }
}

impl From<DiskError> for ExportError {
    fn from(error: DiskError) -> Self {
        Fault::from(error).into()
    }
}

impl ExportError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Weights(error) if error.is_other_architecture() => Some(
                "the files are fine, but the native engine, which would rewrite them, supports only these architectures; other programs \
                load the folder as it is"
                    .to_owned(),
            ),
            Self::Weights(error) => error.hint(),
            Self::Exists { .. } => Some("name a folder that is not there yet".to_owned()),
            Self::Overflow { .. } => Some("`--dtype bf16` or `--dtype f32` holds them".to_owned()),
            Self::Fault(fault) => fault.hint().map(str::to_owned),
        }
    }
}

/// Summary of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// Weights, those of a head of its own included.
    pub num_parameters: usize,
    /// Whether the output head is the embedding.
    pub is_tied: bool,
    /// The type of the weights.
    pub dtype: SaveDtype,
}

/// Writes the policy in `source` (a checkpoint, or any Hugging Face folder of a supported architecture) into
/// `target`, which is not there yet: `config.json`, `model.safetensors`, the tokenizer and `checksums.json`,
/// whole or not at all. Weights are read in full precision if the checkpoint has them. `untie` writes a tied
/// output head as a tensor of its own, for servers that keep the old head of a tied model when its weights
/// are reloaded.
pub fn export(source: &Path, target: &Path, untie: bool, dtype: SaveDtype) -> Result<Exported, ExportError> {
    if target.exists() {
        return Err(ExportError::Exists { folder: target.to_owned() });
    }
    checkpoint::verify(source, Coverage::ForUse)?;
    let tokenizer = Tokenizer::load(source)?;
    let mut model = native::read_model(source)?;
    if untie {
        model = model.to_untied();
    }
    if let Some((tensor, largest)) = model.overflow(dtype) {
        return Err(ExportError::Overflow { tensor: tensor.to_owned(), largest, dtype });
    }
    let disk = Disk::new();
    if let Some(parent) = target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.create_folder(parent)?;
    }
    checkpoint::write_folder(&disk, target, Some(&tokenizer), |folder| {
        let mut out = SummedFolder::new(&disk, folder);
        native::write_model(&mut out, "", &model, dtype)?;
        Ok::<_, DiskError>(out.into_files())
    })?;
    let (num_parameters, is_tied) = (model.num_parameters(), model.config().tie_word_embeddings);
    Ok(Exported { num_parameters, is_tied, dtype })
}
