//! Copies of chosen rows, in their own format.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::data_record::Copied;
use crate::file_format::FileFormat;
use crate::jsonl::JsonLines;
use crate::parquet_file;
use crate::record_error::{RecordError, unwritten};
use crate::whole_file::WholeFile;

/// Writes the rows for which `keep(file, row)` is true into `target`. `file` is the index of the source and
/// `row` that of the row in it, both from 0, without blank lines, as [`crate::records::Records`] yields them.
///
/// JSON lines are copied byte for byte (a missing last line break is added). Parquet rows keep their schema,
/// metadata and exact values. The target appears whole or not at all. All sources must have one format, and
/// Parquet files one schema.
pub fn copy_rows(
    sources: &[PathBuf],
    mut keep: impl FnMut(usize, u64) -> bool,
    target: &Path,
) -> Result<Copied, RecordError> {
    let mut format = None;
    for source in sources {
        let own = FileFormat::of(source)?;
        match format {
            None => format = Some((own, source)),
            Some((first, path)) if first != own => {
                return Err(RecordError::Mixed {
                    first: path.clone(),
                    second: source.clone(),
                    what: "format",
                });
            }
            Some(_) => {}
        }
    }
    let write = |source| unwritten(target, source);
    let mut file = WholeFile::create(target).map_err(write)?;
    let copied = match format {
        Some((FileFormat::Parquet, _)) => parquet_file::copy_rows(sources, &mut keep, &mut file, target)?,
        Some((FileFormat::Jsonl, _)) | None => {
            let mut copied = Copied::default();
            for (index, source) in sources.iter().enumerate() {
                let mut lines = JsonLines::open(source)?;
                let mut row = 0;
                while let Some((_, mut bytes)) = lines.next_line()? {
                    if keep(index, row) {
                        if bytes.last() != Some(&b'\n') {
                            bytes.push(b'\n');
                        }
                        file.write_all(&bytes).map_err(write)?;
                        copied.num_kept += 1;
                    } else {
                        copied.num_dropped += 1;
                    }
                    row += 1;
                }
            }
            copied
        }
    };
    file.commit().map_err(write)?;
    Ok(copied)
}
