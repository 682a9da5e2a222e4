//! The output of a reward's processes: passed on line by line, and all of it kept in a file of a run.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::process::lock;
use crate::reward::listener::{Listener, PrintedLines};

/// Size of a file in bytes after which it is renamed and a new one is begun.
const FILE_BYTES: u64 = 64 << 20;

/// The file of the output.
#[derive(Default)]
enum Kept {
    /// Nothing was printed yet.
    #[default]
    Nothing,
    Open(File),
    /// It cannot be written, which was reported.
    Failed,
}

/// Collects what the processes of one reward, or of another function of the user's, print to their standard
/// error. For a Python function that is everything it prints. The processes of a pool share it.
pub struct Printed {
    /// Its reward or section, and the name of its file.
    source: String,
    listener: Arc<dyn Listener>,
    path: Option<PathBuf>,
    kept: Mutex<Kept>,
}

impl Printed {
    /// Passes output to the listener, and into a file if there is one. `source`:
    /// ``reward `mine` (reward.py)``.
    pub fn to(path: Option<PathBuf>, source: &str, listener: &Arc<dyn Listener>) -> Self {
        Self { source: source.to_owned(), listener: Arc::clone(listener), path, kept: Mutex::default() }
    }

    /// Receives the standard error of one process.
    pub fn copy(self: &Arc<Self>) -> tamis_process::Copy {
        let mut writer = self.writer();
        Box::new(move |bytes| writer.write(bytes))
    }

    /// The part of one process.
    pub(super) fn writer(self: &Arc<Self>) -> PrintedWriter {
        PrintedWriter { to: Arc::clone(self), lines: PrintedLines::new(&self.source, &self.listener) }
    }

    fn keep(&self, path: &Path, bytes: &[u8]) {
        let mut kept = lock(&self.kept);
        if matches!(*kept, Kept::Nothing) {
            *kept = self.open(path);
            if matches!(*kept, Kept::Open(_)) {
                self.listener.say(&format!("{} prints: see {}", self.source, path.display()));
            }
        }
        let is_full = |file: &File| file.metadata().is_ok_and(|found| found.len() >= FILE_BYTES);
        if matches!(&*kept, Kept::Open(file) if is_full(file)) {
            let _ = std::fs::rename(path, path.with_extension("log.1"));
            *kept = self.open(path);
        }
        if let Kept::Open(file) = &mut *kept
            && let Err(error) = file.write_all(bytes)
        {
            self.give_up(path, &error);
            *kept = Kept::Failed;
        }
    }

    fn open(&self, path: &Path) -> Kept {
        match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Kept::Open(file),
            Err(error) => {
                self.give_up(path, &error);
                Kept::Failed
            }
        }
    }

    fn give_up(&self, path: &Path, error: &std::io::Error) {
        self.listener.warn(&format!(
            "{}: what it prints cannot be saved in {}: {error}",
            self.source,
            path.display()
        ));
    }
}

/// The part of one process.
pub(super) struct PrintedWriter {
    to: Arc<Printed>,
    lines: PrintedLines,
}

impl PrintedWriter {
    pub(super) fn write(&mut self, bytes: &[u8]) {
        if let Some(path) = &self.to.path {
            self.to.keep(path, bytes);
        }
        self.lines.write(bytes);
    }
}
