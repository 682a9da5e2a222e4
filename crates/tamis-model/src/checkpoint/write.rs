//! Writing safetensors, whole or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, json};

use super::CheckpointError;
use crate::layout::Tensor;

/// The type that weights are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SaveDtype {
    /// 32-bit: what was computed, exactly.
    #[default]
    F32,
    /// Brain float, rounded to nearest even.
    Bf16,
    /// Half precision, rounded to nearest even; beyond 65504 infinite.
    F16,
}

impl SaveDtype {
    /// The name in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// Whether a number stays finite in it.
    pub fn holds(self, value: f32) -> bool {
        match self {
            Self::F32 => value.is_finite(),
            Self::Bf16 => half::bf16::from_f32(value).is_finite(),
            Self::F16 => half::f16::from_f32(value).is_finite(),
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
        }
    }

    fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    fn bytes(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
        }
    }
}

/// Writes a file whole: temporary file in the same folder, fsync, rename, fsync of the folder.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), CheckpointError> {
    let fail = |source| CheckpointError::Write { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let result = (|| {
        let mut out = BufWriter::new(File::create(&temporary)?);
        write(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        std::fs::rename(&temporary, path)?;
        if cfg!(unix)
            && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    })();
    if result.is_err() {
        // Best effort: the error that matters is the one being reported.
        let _ = std::fs::remove_file(&temporary);
    }
    result.map_err(fail)
}

/// Fills a file that someone else makes and keeps safe.
pub type Fill<'a> = dyn FnMut(&mut dyn Write) -> std::io::Result<()> + 'a;

/// Writes tensors, each named `prefix + name` and taken from its own buffer, as the bytes of one safetensors
/// file.
pub(crate) fn write_tensors(
    out: &mut dyn Write,
    tensors: &[(&str, &Tensor, &[f32])],
    metadata: &[(&str, String)],
    dtype: SaveDtype,
) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut notes = Map::new();
    notes.insert("format".to_owned(), json!("pt"));
    for (key, value) in metadata {
        notes.insert((*key).to_owned(), json!(value));
    }
    header.insert("__metadata__".to_owned(), notes.into());
    let mut begin = 0;
    for (prefix, tensor, _) in tensors {
        let end = begin + tensor.shape.iter().product::<usize>() * dtype.size();
        let entry = json!({"dtype": dtype.tag(), "shape": tensor.shape, "data_offsets": [begin, end]});
        header.insert(format!("{prefix}{}", tensor.name), entry);
        begin = end;
    }
    let mut header = serde_json::Value::from(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (_, tensor, buffer) in tensors {
        for piece in tensor.pieces_of_rows(buffer) {
            out.write_all(&dtype.bytes(&piece))?;
        }
    }
    Ok(())
}
