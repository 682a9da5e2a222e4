//! A safetensors file, read tensor by tensor in pieces.
//!
//! Files are not memory-mapped. If another process truncates or rewrites one meanwhile, the result is an
//! error; with a map, this process would be killed.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::CheckpointError;

/// Bytes read at once, but at least a row of a matrix.
const PIECE: usize = 1 << 20;
const LENGTH: usize = 8;
const MAX_HEADER: u64 = 100_000_000;

/// An open file whose header has been read and agrees with its length.
pub(super) struct WeightFile {
    path: PathBuf,
    file: RefCell<File>,
    header: Metadata,
    /// Offset of the first tensor.
    begin: u64,
    stamp: Stamp,
}

/// File metadata that changes when the file is written.
#[derive(PartialEq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { length: found.len(), modified: found.modified().ok() })
    }
}

impl WeightFile {
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let read = || -> io::Result<(File, Stamp, Vec<u8>)> {
            let mut file = tamis_file::open(path)?;
            let stamp = Stamp::of(&file)?;
            let mut bytes = Vec::new();
            file.by_ref().take(LENGTH as u64).read_to_end(&mut bytes)?;
            if let Ok(length) = <[u8; LENGTH]>::try_from(&bytes[..]) {
                let length = u64::from_le_bytes(length).min(MAX_HEADER);
                file.by_ref().take(length).read_to_end(&mut bytes)?;
            }
            Ok((file, stamp, bytes))
        };
        let (file, stamp, bytes) =
            read().map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
        let invalid = |source| CheckpointError::Format { path: path.to_owned(), source };
        let header = parse(&bytes).map_err(invalid)?;
        let begin = bytes.len() as u64;
        if stamp.length.checked_sub(begin) != Some(header.data_len() as u64) {
            return Err(invalid(SafeTensorError::MetadataIncompleteBuffer));
        }
        Ok(Self { path: path.to_owned(), file: RefCell::new(file), header, begin, stamp })
    }

    /// Names of its tensors, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_unstable();
        names
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.header.metadata().as_ref()?.get(key)?.parse().ok()
    }

    pub(super) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// Reads a tensor in order, some whole rows at a time, until `each` returns false. `each` gets the index
    /// of the first row and the values.
    ///
    /// # Errors
    /// [`CheckpointError::Dtype`] for numbers of another type. Also if the file cannot be read, or is shorter
    /// than it was.
    pub(super) fn read(
        &self,
        name: &str,
        info: &TensorInfo,
        mut each: impl FnMut(usize, &[f32]) -> Result<bool, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let num_rows = info.shape.first().copied().unwrap_or(1);
        let (begin, end) = info.data_offsets;
        let at_once = (PIECE / ((end - begin) / num_rows.max(1)).max(1)).max(1);
        let mut values = Vec::new();
        for first in (0..num_rows).step_by(at_once) {
            self.read_rows(name, info, first..num_rows.min(first + at_once), &mut values)?;
            if !each(first, &values)? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn read_rows(
        &self,
        name: &str,
        info: &TensorInfo,
        rows: Range<usize>,
        values: &mut Vec<f32>,
    ) -> Result<(), CheckpointError> {
        let (begin, end) = info.data_offsets;
        let width = (end - begin) / info.shape.first().copied().unwrap_or(1).max(1);
        let mut bytes = vec![0; rows.len() * width];
        let mut read = || -> io::Result<()> {
            let mut file = self.file.borrow_mut();
            file.seek(SeekFrom::Start(self.begin + (begin + rows.start * width) as u64))?;
            file.read_exact(&mut bytes)
        };
        read().map_err(|error| self.unreadable(error))?;
        values.clear();
        match info.dtype {
            Dtype::F32 => values.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            Dtype::BF16 => {
                values.extend(bytes.as_chunks().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f32()));
            }
            Dtype::F16 => {
                values.extend(bytes.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f32()));
            }
            other => {
                let dtype = format!("{other:?}");
                return Err(CheckpointError::Dtype { name: name.to_owned(), path: self.path.clone(), dtype });
            }
        }
        Ok(())
    }

    /// Refuses the result if the file was written since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<(), CheckpointError> {
        match Stamp::of(&self.file.borrow()) {
            Ok(now) if now == self.stamp => Ok(()),
            Ok(_) => Err(self.unreadable(ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn unreadable(&self, error: io::Error) -> CheckpointError {
        let source = if error.kind() == ErrorKind::UnexpectedEof {
            io::Error::other("it was written to while it was read: load it again once it is complete")
        } else {
            error
        };
        CheckpointError::Read { path: self.path.clone(), source }
    }
}

/// Parses the header at the beginning of a file.
fn parse(bytes: &[u8]) -> Result<Metadata, SafeTensorError> {
    match SafeTensors::read_metadata(bytes) {
        Ok((_, header)) => Ok(header),
        // The header itself is consistent; only the tensors are missing.
        Err(SafeTensorError::MetadataIncompleteBuffer) => {
            let header = serde_json::from_slice(bytes.get(LENGTH..).unwrap_or_default());
            header.map_err(SafeTensorError::InvalidHeaderDeserialization)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;

    use super::*;

    /// A file with one matrix of several pieces, in bf16.
    fn written(folder: &Path) -> (PathBuf, Vec<f32>) {
        let values: Vec<f32> = (0..1500 * 1000).map(|i| (i % 251) as f32 - 100.0).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(Dtype::BF16, vec![1500, 1000], &bytes).unwrap();
        let path = folder.join("model.safetensors");
        std::fs::write(&path, safetensors::serialize([("matrix", view)], None).unwrap()).unwrap();
        (path, values)
    }

    #[test]
    fn a_tensor_comes_in_pieces_of_whole_rows() {
        let folder = tempfile::tempdir().unwrap();
        let (path, values) = written(folder.path());
        let file = WeightFile::open(&path).unwrap();
        let info = file.info("matrix").unwrap();
        let mut found = Vec::new();
        let mut pieces = 0;
        file.read("matrix", info, |first, piece| {
            assert_eq!((first * 1000, piece.len() % 1000), (found.len(), 0));
            assert!(2 * piece.len() <= PIECE);
            found.extend_from_slice(piece);
            pieces += 1;
            Ok(true)
        })
        .unwrap();
        file.check_unchanged().unwrap();
        assert!(found == values && pieces == 3, "{pieces}");
    }

    /// Another process changes a file that is being read. Each change is an error, and none kills this
    /// process.
    #[test]
    fn a_file_that_is_cut_or_rewritten_while_it_is_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let change = |how: &dyn Fn(&mut File)| {
            let (path, _) = written(folder.path());
            let file = WeightFile::open(&path).unwrap();
            let info = file.info("matrix").unwrap();
            let mut is_first = true;
            let read = file.read("matrix", info, |_, _| {
                if std::mem::take(&mut is_first) {
                    // File times have a resolution of a few milliseconds.
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    how(&mut OpenOptions::new().write(true).open(&path).unwrap());
                }
                Ok(true)
            });
            let error = read.and_then(|()| file.check_unchanged()).unwrap_err();
            let CheckpointError::Read { source, .. } = error else { panic!("{error}") };
            assert!(source.to_string().starts_with("it was written to while it was read"), "{source}");
        };
        change(&|file| file.set_len(1000).unwrap());
        change(&|file| file.write_all(&[0; 100]).unwrap());
        change(&|file| file.set_len(0).and_then(|()| file.write_all(&vec![7; 4_000_000])).unwrap());
    }
}
