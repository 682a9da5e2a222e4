//! Files that survive a crash.
//!
//! A run writes all its files through a [`Disk`]. A whole file is written beside its final name,
//! flushed to the device and renamed over it, and the folder is flushed ([`Disk::write_file`]). So
//! after a crash at any instant a reader finds either the old file or the new one. Logs grow through an
//! [`AppendFile`], which removes a half-written tail. A `Disk` is a handle that is cheap to clone. Tests
//! watch one that fails at its k-th operation ([`DiskWatch`]).

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::figure;

#[cfg(any(test, feature = "faults"))]
mod faults;

#[cfg(any(test, feature = "faults"))]
pub use faults::DiskFault;

/// Operations on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskOperation {
    /// Create a file, empty.
    CreateFile,
    /// Write bytes.
    Write,
    /// Flush a file to the device.
    SyncFile,
    /// Rename a file or folder.
    Rename,
    /// Flush a folder's entries to the device.
    SyncFolder,
    /// Create a folder.
    CreateFolder,
    /// Cut a file to a length.
    Cut,
    /// Remove a file or folder.
    Remove,
    /// Open an existing file.
    Open,
    /// Read a file or list a folder.
    Read,
    /// Take the lock on a file.
    Lock,
}

impl std::fmt::Display for DiskOperation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::CreateFile => "create",
            Self::Write => "write",
            Self::SyncFile => "flush to the device",
            Self::Rename => "rename",
            Self::SyncFolder => "flush to the device the folder",
            Self::CreateFolder => "create the folder",
            Self::Cut => "cut",
            Self::Remove => "remove",
            Self::Open => "open",
            Self::Read => "read",
            Self::Lock => "lock",
        })
    }
}

/// The fix for a full disk.
const NO_SPACE: &str = "no space is left there: free some and continue with `--resume`, keep fewer checkpoints (`checkpoint.keep_last`), \
     or name a folder on another disk (`run.dir`); files written before are whole";

/// The fix, if a full disk is the cause of an error, however far down its chain.
pub fn space_hint(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let is_full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    causes
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|cause| is_full(cause.kind())))
        .then_some(NO_SPACE)
}

/// An operation on the disk that failed. The operating system's reason is the source.
#[derive(Debug, thiserror::Error)]
#[error("{operation} `{}`{}", path.display(), num_bytes.map_or_else(String::new, |num| format!(" ({})", figure::bytes(num))))]
pub struct DiskError {
    /// The operation.
    pub operation: DiskOperation,
    /// On which file or folder.
    pub path: PathBuf,
    /// How much was to be written, if the disk was full and that is known.
    pub num_bytes: Option<u64>,
    /// Why it failed.
    #[source]
    pub cause: io::Error,
}

impl DiskError {
    /// An operation that failed.
    pub fn new(operation: DiskOperation, path: &Path, cause: io::Error) -> Self {
        Self { operation, path: path.to_owned(), num_bytes: None, cause }
    }

    /// With the number of bytes that a full disk lacks.
    fn of_bytes(self, bytes: &[u8]) -> Self {
        let is_known = self.is_full() && self.operation == DiskOperation::Write;
        Self { num_bytes: is_known.then_some(bytes.len() as u64), ..self }
    }

    /// Whether the disk was full.
    pub fn is_full(&self) -> bool {
        matches!(self.cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// The fix, if the cause suggests one.
    pub fn hint(&self) -> Option<&'static str> {
        match self.cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(NO_SPACE),
            io::ErrorKind::ReadOnlyFilesystem => Some(
                "the file system is read-only: mount it writable and continue with `--resume`, or name another folder \
                 (`run.dir`); files written before are whole",
            ),
            io::ErrorKind::PermissionDenied => Some(
                "this user may not write there: change the permissions or name another folder (`run.dir`)",
            ),
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                Some("a part of this path is a file, not a folder: name another folder (`run.dir`)")
            }
            _ => None,
        }
    }
}

/// `failed to write ...`, with the fix.
impl From<DiskError> for Fault {
    fn from(error: DiskError) -> Self {
        let hint = error.hint();
        fault!("failed to {error}").with_known_hint(hint).with_source(error)
    }
}

/// What becomes of an operation.
#[derive(Debug)]
pub enum Decision {
    /// It is done.
    Go,
    /// A write is done by half.
    Short,
    /// It fails.
    Fail(io::Error),
}

/// Sees the operations of a [`Disk`], and may make them fail. Only tests have one (`Disk::with_fault`). A
/// disk with one flushes nothing to the device.
pub trait DiskWatch: std::fmt::Debug + Send + Sync {
    /// Decides on an operation before it is done.
    fn before(&self, operation: DiskOperation, path: &Path) -> Decision;

    /// An operation was done.
    fn after(&self, operation: DiskOperation, path: &Path);

    /// A file of this length was opened for appending; its content counts as flushed.
    fn note_opened(&self, path: &Path, length: u64);

    /// A rename is about to be done.
    fn note_rename(&self, from: &Path, to: &Path);

    /// The operations so far, in order.
    fn operations(&self) -> Vec<(DiskOperation, PathBuf)>;
}

/// Handle to the file system; every write of a run passes through one.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    watch: Option<Arc<dyn DiskWatch>>,
}

impl Disk {
    /// The real file system.
    pub fn new() -> Self {
        Self::default()
    }

    fn perform<T>(
        &self,
        operation: DiskOperation,
        path: &Path,
        act: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, DiskError> {
        if let Some(watch) = &self.watch
            && let Decision::Fail(cause) = watch.before(operation, path)
        {
            return Err(DiskError::new(operation, path, cause));
        }
        let result = act().map_err(|cause| DiskError::new(operation, path, cause))?;
        if let Some(watch) = &self.watch {
            watch.after(operation, path);
        }
        Ok(result)
    }

    /// Writes a whole file or nothing: to a temporary file in the same folder, flushed, renamed over `path`,
    /// the folder flushed. On failure the file that was there before is untouched.
    pub fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_file_with(path, |writer| writer.write_all(bytes)).map_err(|error| error.of_bytes(bytes))
    }

    /// Like [`Disk::write_file`], for a file that other processes of this machine may write at the same
    /// time: it ends up with the whole content of one of them.
    pub fn write_shared_file(&self, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
        let temporary = temporary_beside(path, &format!(".{}", std::process::id()));
        self.write_through(&temporary, path, |writer| writer.write_all(bytes))
    }

    /// Like [`Disk::write_file`], with the content streamed by `fill` (buffered, 1 MiB).
    pub fn write_file_with(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
    ) -> Result<(), DiskError> {
        self.write_through(&temporary_beside(path, ""), path, fill)
    }

    fn write_through(
        &self,
        temporary: &Path,
        path: &Path,
        fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
    ) -> Result<(), DiskError> {
        let outcome = self
            .fill_and_sync(temporary, fill)
            .and_then(|()| self.rename(temporary, path))
            .map_err(|error| {
                // The user knows the file by its final name.
                if error.path == temporary { DiskError { path: path.to_owned(), ..error } } else { error }
            });
        if outcome.is_err() {
            // Best effort: the cause that matters is the first one.
            let _ = self.remove_file(temporary);
        }
        outcome
    }

    fn fill_and_sync(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
    ) -> Result<(), DiskError> {
        let file = self.perform(DiskOperation::CreateFile, path, || {
            tamis_file::open_with(path, OpenOptions::new().write(true).create(true).truncate(true))
        })?;
        let mut writer = BufWriter::with_capacity(1 << 20, Gate { disk: self, path, file: &file });
        fill(&mut writer)
            .and_then(|()| writer.flush())
            .map_err(|cause| DiskError::new(DiskOperation::Write, path, cause))?;
        // The buffer is empty now; taking the writer apart keeps its drop from writing again.
        drop(writer.into_parts());
        self.sync_file(path, &file)
    }

    fn sync_file(&self, path: &Path, file: &File) -> Result<(), DiskError> {
        // A watch also simulates the loss of power; a real flush would only slow the tests.
        self.perform(DiskOperation::SyncFile, path, || if self.is_real() { file.sync_all() } else { Ok(()) })
    }

    fn is_real(&self) -> bool {
        self.watch.is_none()
    }

    /// Renames a file or folder and flushes the folder(s) concerned. A file at `to` is replaced.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        if let Some(watch) = &self.watch {
            watch.note_rename(from, to);
        }
        self.perform(DiskOperation::Rename, to, || std::fs::rename(from, to))?;
        self.sync_folder(parent(to))?;
        if parent(from) != parent(to) {
            self.sync_folder(parent(from))?;
        }
        Ok(())
    }

    /// Flushes the entries of a folder to the device, so that creations, renames and removals in it survive a
    /// loss of power.
    pub fn sync_folder(&self, path: &Path) -> Result<(), DiskError> {
        // Elsewhere than on Unix a folder cannot be opened, and renames are flushed by the system.
        self.perform(DiskOperation::SyncFolder, path, || {
            if cfg!(unix) && self.is_real() { File::open(path)?.sync_all() } else { Ok(()) }
        })
    }

    /// Creates a folder and those above it that are missing, each flushed into its parent.
    pub fn create_folder(&self, path: &Path) -> Result<(), DiskError> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        self.create_folder(parent(path))?;
        match self.create_new_folder(path) {
            // Another process was faster; the folder exists, as requested.
            Err(error) if error.cause.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    /// Creates one folder that must not be there yet (`AlreadyExists` otherwise), and flushes its parent.
    pub fn create_new_folder(&self, path: &Path) -> Result<(), DiskError> {
        self.perform(DiskOperation::CreateFolder, path, || std::fs::create_dir(path))?;
        self.sync_folder(parent(path))
    }

    /// Removes a file; a missing one is not an error.
    pub fn remove_file(&self, path: &Path) -> Result<(), DiskError> {
        self.perform(DiskOperation::Remove, path, || absent_is_fine(std::fs::remove_file(path)))
    }

    /// Removes a folder with its content; a missing one is not an error.
    pub fn remove_folder(&self, path: &Path) -> Result<(), DiskError> {
        self.perform(DiskOperation::Remove, path, || absent_is_fine(std::fs::remove_dir_all(path)))
    }

    /// Cuts a file to `length` bytes and flushes it. A shorter file is not changed (and never
    /// lengthened).
    pub fn cut_file(&self, path: &Path, length: u64) -> Result<(), DiskError> {
        let file = tamis_file::open_with(path, OpenOptions::new().write(true))
            .map_err(|cause| DiskError::new(DiskOperation::Open, path, cause))?;
        let current =
            file.metadata().map_err(|cause| DiskError::new(DiskOperation::Read, path, cause))?.len();
        if current <= length {
            return Ok(());
        }
        self.perform(DiskOperation::Cut, path, || file.set_len(length))?;
        self.sync_file(path, &file)
    }

    /// Opens a file for appending. If it does not exist, creates it and flushes its folder.
    pub fn append_to(&self, path: &Path) -> Result<AppendFile, DiskError> {
        let open = || tamis_file::open_with(path, OpenOptions::new().append(true).create(true));
        let file = if path.exists() {
            open().map_err(|cause| DiskError::new(DiskOperation::Open, path, cause))?
        } else {
            let file = self.perform(DiskOperation::CreateFile, path, open)?;
            self.sync_folder(parent(path))?;
            file
        };
        let length = file.metadata().map_err(|cause| DiskError::new(DiskOperation::Read, path, cause))?.len();
        if let Some(watch) = &self.watch {
            watch.note_opened(path, length);
        }
        Ok(AppendFile { disk: self.clone(), path: path.to_owned(), file, length })
    }

    /// Length of a file in bytes.
    pub fn length(&self, path: &Path) -> Result<u64, DiskError> {
        let length = std::fs::metadata(path).map(|metadata| metadata.len());
        length.map_err(|cause| DiskError::new(DiskOperation::Read, path, cause))
    }

    /// Reads at most `most` bytes of a file from position `from` on; none if it ends before.
    pub fn read_part(&self, path: &Path, from: u64, most: u64) -> Result<Vec<u8>, DiskError> {
        let read = || {
            let mut file = tamis_file::open(path)?;
            file.seek(io::SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(most).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|cause| DiskError::new(DiskOperation::Read, path, cause))
    }

    /// Reads a whole regular file.
    pub fn read_file(&self, path: &Path) -> Result<Vec<u8>, DiskError> {
        tamis_file::read(path, u64::MAX).map_err(|cause| DiskError::new(DiskOperation::Read, path, cause))
    }
}

/// A file that only grows: a log, the journal.
#[derive(Debug)]
pub struct AppendFile {
    disk: Disk,
    path: PathBuf,
    file: File,
    length: u64,
}

impl AppendFile {
    /// Appends bytes in one write. If that fails half-way, the written part is removed as far as the
    /// disk permits, so that a log never holds half a line.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        let outcome = Gate { disk: &self.disk, path: &self.path, file: &self.file }.write_all(bytes);
        if let Err(cause) = outcome {
            let _ = self.disk.perform(DiskOperation::Cut, &self.path, || self.file.set_len(self.length));
            return Err(DiskError::new(DiskOperation::Write, &self.path, cause).of_bytes(bytes));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Cuts the file back to `length` bytes, so that its end can be rewritten.
    pub fn cut(&mut self, length: u64) -> Result<(), DiskError> {
        self.disk.perform(DiskOperation::Cut, &self.path, || self.file.set_len(length))?;
        self.length = self.length.min(length);
        Ok(())
    }

    /// Flushes the appended bytes to the device.
    pub fn sync(&mut self) -> Result<(), DiskError> {
        self.disk.sync_file(&self.path, &self.file)
    }

    /// Length of the file in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Lets each write through, or not, as the disk's watch decides.
struct Gate<'a> {
    disk: &'a Disk,
    path: &'a Path,
    file: &'a File,
}

impl Write for Gate<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(watch) = &self.disk.watch else { return self.file.write(bytes) };
        match watch.before(DiskOperation::Write, self.path) {
            Decision::Go => {
                let written = self.file.write(bytes)?;
                watch.after(DiskOperation::Write, self.path);
                Ok(written)
            }
            Decision::Short => {
                // As the system does when space runs out in the middle: this write is cut short, and
                // the next one fails.
                let half = bytes.len().div_ceil(2);
                self.file.write_all(&bytes[..half])?;
                watch.after(DiskOperation::Write, self.path);
                Ok(half)
            }
            Decision::Fail(cause) => Err(cause),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ending of unfinished files and folders: the process that holds the run may remove them.
pub const UNFINISHED: &str = ".tmp";

/// `.NAME.tmp`, or with a mark of who writes it `.NAME.MARK.tmp`.
fn temporary_beside(path: &Path, mark: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(mark);
    name.push(UNFINISHED);
    path.with_file_name(name)
}

pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
