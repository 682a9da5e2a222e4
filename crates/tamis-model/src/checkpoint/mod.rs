//! Checkpoints in Hugging Face layout: `model.safetensors`, or shards with `model.safetensors.index.json`.
//!
//! Reading accepts f32, bf16 and f16 and computes in f32. If a configuration ties the output head to the
//! embedding but the files hold another head ([`find_head`]), the files win. Writing goes through a temporary
//! file, fsync, rename and fsync of the folder. So a crash leaves the old file or the new one, never half of
//! one.

mod weight_file;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::ConfigError;
use crate::layout::{Tensor, WeightLayout};
use weight_file::WeightFile;
pub use write::{Fill, write_file};
pub(crate) use write::{holds, write_tensors};

/// A checkpoint cannot be read or written.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// `config.json` or `generation_config.json` cannot be used.
    #[error("failed to use the configuration in {}", folder.display())]
    Config {
        /// The checkpoint's folder.
        folder: PathBuf,
        /// The underlying error.
        #[source]
        source: ConfigError,
    },
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// Neither `model.safetensors` nor its index is there.
    #[error("{} holds neither model.safetensors nor model.safetensors.index.json", folder.display())]
    NoWeights {
        /// The checkpoint's folder.
        folder: PathBuf,
    },
    /// The weights are in another place, which the folder names.
    #[error("{} holds no weights: they are {place}", folder.display())]
    Elsewhere {
        /// The checkpoint's folder.
        folder: PathBuf,
        /// That place, in words.
        place: String,
    },
    /// A file is not valid safetensors: truncated or corrupt.
    #[error("{} is not a valid safetensors file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// The index is not a JSON object with a `weight_map` from tensor names to names of files in the same
    /// folder.
    #[error("{} has no `weight_map` from tensor names to files of its folder", path.display())]
    Index {
        /// The index.
        path: PathBuf,
    },
    /// A tensor of the architecture is missing.
    #[error("tensor `{name}` is missing from {}", path.display())]
    Missing {
        /// Name of the tensor.
        name: String,
        /// Path of the file that should have it.
        path: PathBuf,
    },
    /// A tensor that the architecture does not have.
    #[error("tensor `{name}` in {} does not belong to this architecture", path.display())]
    Unexpected {
        /// Name of the tensor.
        name: String,
        /// Path of the file.
        path: PathBuf,
    },
    /// A tensor has the wrong shape.
    #[error("tensor `{name}` in {} has shape {found:?}, and the configuration of the model makes it {expected:?}", path.display())]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// Shape from the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A value is NaN or infinite.
    #[error("tensor `{name}` in {} holds numbers that are not finite: the file is damaged, or its training had diverged", path.display())]
    NotFinite {
        /// Name of the tensor.
        name: String,
        /// Path of the file.
        path: PathBuf,
    },
    /// A whole number in the file's metadata is missing.
    #[error("{} has no number `{key}` in its metadata", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A tensor has a type that is not supported.
    #[error("tensor `{name}` in {} is of type {dtype}, expected F32, BF16 or F16", path.display())]
    Dtype {
        /// Name of the tensor.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// Type of the tensor.
        dtype: String,
    },
}

/// Name of the output head in a language model's files.
pub(crate) const HEAD: &str = "lm_head.weight";

/// The place of a folder's weights, in words, if a learner keeps them elsewhere (`elsewhere.json`). `None`
/// for any other folder.
pub fn weights_elsewhere(folder: &Path) -> Option<String> {
    let path = folder.join("elsewhere.json");
    if !path.is_file() {
        return None;
    }
    let text = tamis_file::read_text(&path, tamis_file::MAX_MODEL_CONFIG).unwrap_or_default();
    let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let place = told["where"].as_str().map(tamis_core::printable::one_line);
    Some(place.unwrap_or_else(|| format!("elsewhere, and {} does not say where", path.display())))
}

/// The files of a folder's weights.
enum Files {
    Single(PathBuf),
    /// File names by tensor, from the index.
    Sharded {
        index: PathBuf,
        by_tensor: BTreeMap<String, String>,
    },
}

impl Files {
    fn of(folder: &Path) -> Result<Self, CheckpointError> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        if single.exists() {
            return Ok(Self::Single(single));
        }
        if !index.exists() {
            let folder = folder.to_owned();
            return Err(match weights_elsewhere(&folder) {
                Some(place) => CheckpointError::Elsewhere { folder, place },
                None => CheckpointError::NoWeights { folder },
            });
        }
        let text = tamis_file::read_text(&index, tamis_file::MAX_MODEL_CONFIG)
            .map_err(|source| CheckpointError::Read { path: index.clone(), source })?;
        match weight_map(&text) {
            Some(by_tensor) => Ok(Self::Sharded { index, by_tensor }),
            None => Err(CheckpointError::Index { path: index }),
        }
    }

    /// The file that should hold a tensor; `None` if there is none.
    fn open(&self, folder: &Path, tensor: &str) -> Result<Option<WeightFile>, CheckpointError> {
        let file = match self {
            Self::Single(path) => WeightFile::open(path)?,
            Self::Sharded { by_tensor, .. } => match by_tensor.get(tensor) {
                Some(file) => WeightFile::open(&folder.join(file))?,
                None => return Ok(None),
            },
        };
        Ok(file.info(tensor).is_some().then_some(file))
    }
}

/// The output head in the files of a language model whose configuration ties it to the embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TiedHead {
    /// The embedding: the files hold no head, or the same numbers twice.
    Embedding,
    /// The files hold the matrix once, under the head's name.
    UnderItsName,
    /// Not the embedding's numbers. The model is then not tied, as in transformers 5.0 and later.
    Other,
}

/// Finds the output head in the files of a model that ties it to the embedding of this name.
pub(crate) fn find_head(folder: &Path, name: &str) -> Result<TiedHead, CheckpointError> {
    let files = Files::of(folder)?;
    let Some(with_head) = files.open(folder, HEAD)? else { return Ok(TiedHead::Embedding) };
    let Some(with_embedding) = files.open(folder, name)? else { return Ok(TiedHead::UnderItsName) };
    let (Some(head), Some(embedding)) = (with_head.info(HEAD), with_embedding.info(name)) else {
        return Ok(TiedHead::Embedding);
    };
    if head.shape != embedding.shape {
        return Ok(TiedHead::Other);
    }
    let (mut is_same, mut rows) = (true, Vec::new());
    with_head.read(HEAD, head, |first, values| {
        let num_rows = values.len() / head.shape.iter().skip(1).product::<usize>().max(1);
        with_embedding.read_rows(name, embedding, first..first + num_rows, &mut rows)?;
        is_same = values.iter().zip(&rows).all(|(a, b)| a.to_bits() == b.to_bits());
        Ok(is_same)
    })?;
    with_head.check_unchanged()?;
    with_embedding.check_unchanged()?;
    Ok(if is_same { TiedHead::Embedding } else { TiedHead::Other })
}

/// A warning if a folder's `config.json` ties the output head to the embedding while its files hold another
/// head. `None` for any other folder, and for an unreadable one. The architecture need not be one that the
/// engine supports.
pub fn head_warning(folder: &Path) -> Option<String> {
    let config = folder.join("config.json");
    let text = tamis_file::read_text(&config, tamis_file::MAX_MODEL_CONFIG).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    let is_tied = json.get("tie_word_embeddings")?.as_bool()?;
    let is_other = is_tied && find_head(folder, crate::layout::EMBEDDING).ok()? == TiedHead::Other;
    is_other.then(|| {
        format!(
            "{} has `tie_word_embeddings: true`, but the `lm_head.weight` of its weights is not the embedding: this head \
             is used and trained, untied, as transformers 5 does; vLLM and older versions of transformers use the embedding",
            config.display()
        )
    })
}

/// Reads a folder's weights into a buffer of the layout. Without a buffer it only checks names, shapes and
/// types, so that a wrong configuration alone cannot cause a large allocation.
pub(crate) fn read_weights(
    folder: &Path,
    layout: &WeightLayout,
    mut buffer: Option<&mut [f32]>,
) -> Result<(), CheckpointError> {
    let (index, files) = match Files::of(folder)? {
        Files::Single(path) => {
            let names = layout.tensors.iter().collect::<Vec<_>>();
            return read_file(&path, layout, &names, "", buffer);
        }
        Files::Sharded { index, by_tensor } => (index, by_tensor),
    };
    let mut by_file: BTreeMap<&str, Vec<&Tensor>> = BTreeMap::new();
    for tensor in &layout.tensors {
        let file = files
            .get(&tensor.name)
            .ok_or_else(|| CheckpointError::Missing { name: tensor.name.clone(), path: index.clone() })?;
        by_file.entry(file).or_default().push(tensor);
    }
    for (name, file) in &files {
        if !is_known(layout, name) {
            return Err(CheckpointError::Unexpected { name: name.clone(), path: index });
        }
        by_file.entry(file).or_default();
    }
    for (file, tensors) in by_file {
        read_file(&folder.join(file), layout, &tensors, "", buffer.as_deref_mut())?;
    }
    Ok(())
}

/// Tensor name to file name. Every file is in the folder itself.
fn weight_map(text: &str) -> Option<BTreeMap<String, String>> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    json.get("weight_map")?
        .as_object()?
        .iter()
        .map(|(name, file)| {
            let file = file.as_str()?;
            let plain = Path::new(file).file_name().is_some_and(|name| name == file);
            plain.then(|| (name.clone(), file.to_owned()))
        })
        .collect()
}

/// Whether a name may occur in a checkpoint: a tensor of the layout, a head beside a tied embedding, or
/// stored frequencies.
fn is_known(layout: &WeightLayout, name: &str) -> bool {
    layout.tensors.iter().any(|tensor| tensor.name == name)
        || (layout.head == layout.embedding && name == "lm_head.weight")
        || name.ends_with("rotary_emb.inv_freq")
}

/// Reads the given tensors, all of them and no others, from one file. Their names have `prefix` in front.
/// Without a buffer it only checks.
pub(crate) fn read_file(
    path: &Path,
    layout: &WeightLayout,
    tensors: &[&Tensor],
    prefix: &str,
    mut buffer: Option<&mut [f32]>,
) -> Result<(), CheckpointError> {
    let file = WeightFile::open(path)?;
    let wanted: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    for name in file.names() {
        let Some(name) = name.strip_prefix(prefix) else { continue };
        if !wanted.contains(name) && !is_known(layout, name) {
            return Err(CheckpointError::Unexpected { name: name.to_owned(), path: path.to_owned() });
        }
    }
    for tensor in tensors {
        let name = format!("{prefix}{}", tensor.name);
        let Some(info) = file.info(&name) else {
            return Err(CheckpointError::Missing { name, path: path.to_owned() });
        };
        if info.shape != tensor.shape {
            let (expected, found) = (tensor.shape.clone(), info.shape.clone());
            return Err(CheckpointError::Shape { name, path: path.to_owned(), expected, found });
        }
        let Some(buffer) = buffer.as_deref_mut() else {
            // Only the type is checked, no values.
            file.read_rows(&name, info, 0..0, &mut Vec::new())?;
            continue;
        };
        let mut is_finite = true;
        file.read(&name, info, |first, values| {
            is_finite = values.iter().all(|value| value.is_finite());
            tensor.set_some_rows(buffer, first, values);
            Ok(is_finite)
        })?;
        if !is_finite {
            return Err(CheckpointError::NotFinite { name, path: path.to_owned() });
        }
    }
    file.check_unchanged()
}

/// A whole number of a file's metadata.
pub(crate) fn read_metadata(path: &Path, key: &'static str) -> Result<u64, CheckpointError> {
    let file = WeightFile::open(path)?;
    file.number(key).ok_or_else(|| CheckpointError::Metadata { path: path.to_owned(), key })
}
