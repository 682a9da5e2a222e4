//! Writes safetensors files, completely or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, json};
use tamis_core::weights::SaveDtype;

use super::CheckpointError;
use crate::layout::Tensor;

/// Whether a number stays finite in a format.
pub(crate) fn holds(dtype: SaveDtype, value: f32) -> bool {
    match dtype {
        SaveDtype::F32 => value.is_finite(),
        SaveDtype::Bf16 => half::bf16::from_f32(value).is_finite(),
        SaveDtype::F16 => half::f16::from_f32(value).is_finite(),
    }
}

/// Values in a format, rounded to nearest even. Values beyond its largest number become infinite.
fn bytes_of(dtype: SaveDtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        SaveDtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        SaveDtype::Bf16 => values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        SaveDtype::F16 => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
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

/// Writes the content of a file that the caller creates and makes durable.
pub type Fill<'a> = dyn FnMut(&mut dyn Write) -> std::io::Result<()> + 'a;

/// Writes tensors, each named `prefix + name` and taken from a separate buffer, as one safetensors file.
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
        let tag = dtype.as_str().to_uppercase();
        let entry = json!({"dtype": tag, "shape": tensor.shape, "data_offsets": [begin, end]});
        header.insert(format!("{prefix}{}", tensor.name), entry);
        begin = end;
    }
    let mut header = serde_json::Value::from(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (_, tensor, buffer) in tensors {
        for piece in tensor.pieces_of_rows(buffer) {
            out.write_all(&bytes_of(dtype, &piece))?;
        }
    }
    Ok(())
}
