//! Checkpoints in Hugging Face layout: `model.safetensors`, or shards with `model.safetensors.index.json`.
//!
//! Reading accepts f32, bf16 and f16 and computes in f32. Writing goes through a temporary file, fsync,
//! rename and fsync of the folder, so that a crash leaves the old file or the new one, never half of one.

mod map;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use thiserror::Error;

use crate::config::ConfigError;
use crate::layout::{Tensor, WeightLayout};
pub(crate) use write::write_tensors;
pub use write::{Fill, SaveDtype, write_file};

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
    /// A file is not what safetensors should be: truncated or corrupt.
    #[error("{} is not a valid safetensors file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// The index is not a JSON object with a `weight_map` from tensor names to file names of the same folder.
    #[error("{} has no `weight_map` from tensor names to files of its folder", path.display())]
    Index {
        /// The index.
        path: PathBuf,
    },
    /// A tensor of the architecture is not there.
    #[error("tensor `{name}` is missing from {}", path.display())]
    Missing {
        /// Name of the tensor.
        name: String,
        /// Path of the file where it was looked for.
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
    /// A tensor of another shape.
    #[error("tensor `{name}` in {} has shape {found:?}, and the configuration of the model makes it {expected:?}", path.display())]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A number that is none, or infinite.
    #[error("tensor `{name}` in {} holds numbers that are not finite: the file is damaged, or its training had diverged", path.display())]
    NotFinite {
        /// Name of the tensor.
        name: String,
        /// Path of the file.
        path: PathBuf,
    },
    /// A whole number of the file's metadata is not there.
    #[error("{} has no number `{key}` in its metadata", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A tensor of a type that is not read.
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

/// Reads the weights of a folder into a buffer of the layout; without one, only checks names, shapes and
/// types (so that nothing is allocated by the word of a configuration alone).
pub(crate) fn read_weights(
    folder: &Path,
    layout: &WeightLayout,
    mut buffer: Option<&mut [f32]>,
) -> Result<(), CheckpointError> {
    let single = folder.join("model.safetensors");
    let index = folder.join("model.safetensors.index.json");
    if single.exists() {
        let names = layout.tensors.iter().collect::<Vec<_>>();
        return read_file(&single, layout, &names, "", buffer);
    }
    if !index.exists() {
        return Err(CheckpointError::NoWeights { folder: folder.to_owned() });
    }
    let text = tamis_file::read_text(&index, tamis_file::MAX_MODEL_CONFIG)
        .map_err(|source| CheckpointError::Read { path: index.clone(), source })?;
    let files = weight_map(&text).ok_or_else(|| CheckpointError::Index { path: index.clone() })?;
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

/// Tensor name to file name, every file in the folder itself.
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

/// Whether a name may stand in a checkpoint: a tensor of the layout, a head beside a tied embedding, or
/// stored frequencies.
fn is_known(layout: &WeightLayout, name: &str) -> bool {
    layout.tensors.iter().any(|tensor| tensor.name == name)
        || (layout.head == layout.embedding && name == "lm_head.weight")
        || name.ends_with("rotary_emb.inv_freq")
}

/// Reads the given tensors, all of them and no others, from one file; `prefix` stands before every name.
/// Without a buffer, checks.
pub(crate) fn read_file(
    path: &Path,
    layout: &WeightLayout,
    tensors: &[&Tensor],
    prefix: &str,
    mut buffer: Option<&mut [f32]>,
) -> Result<(), CheckpointError> {
    let bytes = map::file(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|source| CheckpointError::Format { path: path.to_owned(), source })?;
    let wanted: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut names = file.names();
    names.sort_unstable();
    for name in names {
        let Some(name) = name.strip_prefix(prefix) else { continue };
        if !wanted.contains(name) && !is_known(layout, name) {
            return Err(CheckpointError::Unexpected { name: name.to_owned(), path: path.to_owned() });
        }
    }
    for tensor in tensors {
        let name = format!("{prefix}{}", tensor.name);
        let view = file
            .tensor(&name)
            .map_err(|_| CheckpointError::Missing { name: name.clone(), path: path.to_owned() })?;
        if view.shape() != tensor.shape {
            let (expected, found) = (tensor.shape.clone(), view.shape().to_vec());
            return Err(CheckpointError::Shape { name, path: path.to_owned(), expected, found });
        }
        let data = view.data();
        let mut is_finite = true;
        let mut see = |value: &f32| is_finite &= value.is_finite();
        let halves = |decode: fn([u8; 2]) -> f32| data.chunks_exact(2).map(move |b| decode([b[0], b[1]]));
        match (view.dtype(), buffer.as_deref_mut()) {
            (Dtype::F32 | Dtype::BF16 | Dtype::F16, None) => {}
            (Dtype::F32, Some(buffer)) => {
                let values = data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                tensor.set_rows(buffer, values.inspect(&mut see));
            }
            (Dtype::BF16, Some(buffer)) => {
                tensor.set_rows(buffer, halves(|b| half::bf16::from_le_bytes(b).to_f32()).inspect(&mut see));
            }
            (Dtype::F16, Some(buffer)) => {
                tensor.set_rows(buffer, halves(|b| half::f16::from_le_bytes(b).to_f32()).inspect(&mut see));
            }
            (other, _) => {
                let dtype = format!("{other:?}");
                return Err(CheckpointError::Dtype { name, path: path.to_owned(), dtype });
            }
        }
        if !is_finite {
            return Err(CheckpointError::NotFinite { name, path: path.to_owned() });
        }
    }
    Ok(())
}

/// A whole number of a file's metadata.
pub(crate) fn read_metadata(path: &Path, key: &'static str) -> Result<u64, CheckpointError> {
    let bytes = map::file(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
    let (_, header) = SafeTensors::read_metadata(&bytes)
        .map_err(|source| CheckpointError::Format { path: path.to_owned(), source })?;
    let value = header.metadata().as_ref().and_then(|notes| notes.get(key)?.parse().ok());
    value.ok_or_else(|| CheckpointError::Metadata { path: path.to_owned(), key })
}
