//! Failures on order: what a [`Disk`](super::Disk) made for a test does at its k-th operation.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Decision, Disk, DiskOperation, DiskWatch, parent};

/// Behaviour of the disk at the chosen operation and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// The operation fails for lack of space, and so does every later creation, write and flush; renaming and
    /// removing still work.
    DiskFull,
    /// A write is done by half, then the disk is full; any other operation as [`DiskFault::DiskFull`].
    ShortWrite,
    /// The operation fails, and so does every later one: the file system went read-only.
    ReadOnly,
    /// The process is killed before it: it and later ones do not happen; earlier ones stay.
    Killed,
    /// The power fails before it: bytes not flushed are gone, and so are creations and renames whose folder
    /// was not flushed.
    PowerLoss,
    /// Like [`DiskFault::PowerLoss`], except that creations and renames reached the device: a file
    /// renamed before its content was flushed exists and is empty.
    PowerLossAfterRename,
}

impl Disk {
    /// The file system with `fault` at operation number `at`, counted from 0 over all clones of this handle.
    /// Every create, write, flush, rename, cut and remove is one operation; reads are not counted.
    pub fn with_fault(at: usize, fault: DiskFault) -> Self {
        Self { watch: Some(Arc::new(Faults::new(at, fault))) }
    }

    /// A file system that fails nowhere, and flushes nothing to the device, which is fast.
    pub fn without_flush() -> Self {
        Self::with_fault(usize::MAX, DiskFault::Killed)
    }

    /// Number of operations that this handle has counted; 0 for a real one.
    pub fn num_operations(&self) -> usize {
        self.operations().len()
    }

    /// These operations in order, each with its path; none for a real handle.
    pub fn operations(&self) -> Vec<(DiskOperation, PathBuf)> {
        self.watch.as_ref().map_or_else(Vec::new, |watch| watch.operations())
    }
}

#[derive(Debug)]
struct Faults {
    at: usize,
    fault: DiskFault,
    count: AtomicUsize,
    met: Mutex<Vec<(DiskOperation, PathBuf)>>,
    volatile: Mutex<Volatile>,
}

/// Data that a loss of power would take.
#[derive(Debug, Default)]
struct Volatile {
    /// Flushed length of the files that were written.
    flushed: BTreeMap<PathBuf, u64>,
    /// Entries of folders that were not flushed since, oldest first.
    entries: Vec<Entry>,
    /// A rename about to be done, with the content it would replace.
    renaming: Option<Entry>,
}

#[derive(Debug)]
enum Entry {
    Created(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, replaced: Option<Vec<u8>> },
}

impl Faults {
    fn new(at: usize, fault: DiskFault) -> Self {
        Self { at, fault, count: AtomicUsize::new(0), met: Mutex::default(), volatile: Mutex::default() }
    }

    fn volatile(&self) -> std::sync::MutexGuard<'_, Volatile> {
        self.volatile.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn lose_power(&self, entries_survive: bool) {
        let mut volatile = self.volatile();
        for (path, &length) in &volatile.flushed {
            if let Ok(file) = std::fs::OpenOptions::new().write(true).open(path)
                && file.metadata().is_ok_and(|metadata| metadata.len() > length)
            {
                let _ = file.set_len(length);
            }
        }
        if entries_survive {
            return;
        }
        for entry in volatile.entries.drain(..).rev() {
            match entry {
                Entry::Created(path) => {
                    let _ = std::fs::remove_file(&path);
                    let _ = std::fs::remove_dir_all(&path);
                }
                Entry::Renamed { from, to, replaced } => {
                    let _ = std::fs::rename(&to, &from);
                    if let Some(content) = replaced {
                        let _ = std::fs::write(&to, content);
                    }
                }
            }
        }
    }
}

impl DiskWatch for Faults {
    fn before(&self, operation: DiskOperation, path: &Path) -> Decision {
        let mut met = self.met.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        met.push((operation, path.to_owned()));
        drop(met);
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        if number < self.at {
            return Decision::Go;
        }
        let first = number == self.at;
        let full = || Decision::Fail(io::Error::from_raw_os_error(28));
        match self.fault {
            DiskFault::ShortWrite if first && operation == DiskOperation::Write => Decision::Short,
            DiskFault::DiskFull | DiskFault::ShortWrite => match operation {
                DiskOperation::Rename | DiskOperation::Remove | DiskOperation::Cut if !first => Decision::Go,
                _ => full(),
            },
            DiskFault::ReadOnly => Decision::Fail(io::Error::from_raw_os_error(30)),
            // Not `Interrupted`: writers would try again.
            DiskFault::Killed => Decision::Fail(io::Error::other(Gone)),
            DiskFault::PowerLoss | DiskFault::PowerLossAfterRename => {
                if first {
                    self.lose_power(self.fault == DiskFault::PowerLossAfterRename);
                }
                Decision::Fail(io::Error::other(Gone))
            }
        }
    }

    fn after(&self, operation: DiskOperation, path: &Path) {
        let mut volatile = self.volatile();
        match operation {
            DiskOperation::CreateFile => {
                volatile.flushed.insert(path.to_owned(), 0);
                volatile.entries.push(Entry::Created(path.to_owned()));
            }
            DiskOperation::CreateFolder => volatile.entries.push(Entry::Created(path.to_owned())),
            DiskOperation::SyncFile => {
                if let Ok(metadata) = std::fs::metadata(path) {
                    volatile.flushed.insert(path.to_owned(), metadata.len());
                }
            }
            DiskOperation::Rename => {
                if let Some(Entry::Renamed { from, to, replaced }) = volatile.renaming.take() {
                    let moved: Vec<_> = volatile
                        .flushed
                        .iter()
                        .filter_map(|(path, &length)| {
                            let rest = path.strip_prefix(&from).ok()?;
                            let target = if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) };
                            Some((path.clone(), target, length))
                        })
                        .collect();
                    for (old, new, length) in moved {
                        volatile.flushed.remove(&old);
                        volatile.flushed.insert(new, length);
                    }
                    volatile.entries.push(Entry::Renamed { from, to, replaced });
                }
            }
            DiskOperation::SyncFolder => volatile.entries.retain(|entry| match entry {
                Entry::Created(created) => parent(created) != path,
                Entry::Renamed { to, .. } => parent(to) != path,
            }),
            DiskOperation::Remove => {
                volatile.flushed.retain(|known, _| !known.starts_with(path));
                volatile.entries.retain(|entry| match entry {
                    Entry::Created(created) => !created.starts_with(path),
                    Entry::Renamed { to, .. } => !to.starts_with(path),
                });
            }
            DiskOperation::Write
            | DiskOperation::Cut
            | DiskOperation::Open
            | DiskOperation::Read
            | DiskOperation::Lock => {}
        }
    }

    fn note_opened(&self, path: &Path, length: u64) {
        self.volatile().flushed.entry(path.to_owned()).or_insert(length);
    }

    fn note_rename(&self, from: &Path, to: &Path) {
        let replaced = std::fs::read(to).ok();
        self.volatile().renaming =
            Some(Entry::Renamed { from: from.to_owned(), to: to.to_owned(), replaced });
    }

    fn operations(&self) -> Vec<(DiskOperation, PathBuf)> {
        self.met.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the process is gone (a fault of the test)")]
struct Gone;
