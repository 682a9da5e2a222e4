//! A file that appears complete or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file with a temporary name beside its target. [`Self::commit`] renames it; if it is dropped before, it
/// is removed.
///
/// After `commit` the bytes and the name are on disk (fsync of the file, rename, fsync of the folder). A
/// crash before that leaves the old file, or none. The temporary name is fixed, so the next attempt
/// overwrites what a killed process left. Two writers of one target at a time are not supported.
#[derive(Debug)]
pub struct WholeFile {
    writer: Option<BufWriter<File>>,
    temporary: PathBuf,
    target: PathBuf,
}

impl WholeFile {
    /// Creates a file that will become `target`. Its folder must exist.
    pub fn create(target: &Path) -> std::io::Result<Self> {
        let name = target.file_name().ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "it names a folder, not a file")
        })?;
        let mut temporary_name = std::ffi::OsString::from(".");
        temporary_name.push(name);
        temporary_name.push(".tmp");
        let temporary = target.with_file_name(temporary_name);
        let writer = Some(BufWriter::new(File::create(&temporary)?));
        Ok(Self { writer, temporary, target: target.to_owned() })
    }

    /// Renames the file to its final name.
    pub fn commit(mut self) -> std::io::Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let done = finish(writer, &self.temporary, &self.target);
        if done.is_err() {
            let _ = std::fs::remove_file(&self.temporary);
        }
        done
    }
}

fn finish(writer: BufWriter<File>, temporary: &Path, target: &Path) -> std::io::Result<()> {
    let file = writer.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.sync_all()?;
    drop(file);
    std::fs::rename(temporary, target)?;
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.writer {
            Some(writer) => writer.write(bytes),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_appears_before_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x.json");
        std::fs::write(&target, "old").unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let mut file = WholeFile::create(&target).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!((std::fs::read(&target).unwrap(), names()), (b"old".to_vec(), 1));
        let mut file = WholeFile::create(&target).unwrap();
        file.write_all(b"whole").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        file.commit().unwrap();
        assert_eq!((std::fs::read(&target).unwrap(), names()), (b"whole".to_vec(), 1));
    }
}
