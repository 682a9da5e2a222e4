//! What the processes of a reward print: kept in a file, or passed on line by line.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::process::lock;
use crate::reward::listener::Listener;

/// Bytes of a file, after which it becomes the one before and a new one is begun.
const FILE_BYTES: u64 = 64 << 20;
/// Longest part of a line that is passed on by itself.
const LINE_BYTES: usize = 4096;

/// The file of what is printed.
#[derive(Default)]
enum Kept {
    /// Nothing was printed yet.
    #[default]
    Nothing,
    Open(File),
    /// It cannot be written, which was told.
    Failed,
}

/// Takes what the processes of one reward print to their standard error, which for a Python function is all
/// that it prints. The processes of a pool share it.
pub(in crate::reward) struct Printed {
    name: String,
    listener: Arc<dyn Listener>,
    path: Option<PathBuf>,
    kept: Mutex<Kept>,
}

impl Printed {
    /// Into a file, or without one to the listener.
    pub(in crate::reward) fn to(path: Option<PathBuf>, name: &str, listener: &Arc<dyn Listener>) -> Self {
        Self { name: name.to_owned(), listener: Arc::clone(listener), path, kept: Mutex::default() }
    }

    /// A process's own part of it.
    pub(super) fn writer(self: &Arc<Self>) -> PrintedWriter {
        PrintedWriter { to: Arc::clone(self), line: Vec::new() }
    }

    fn keep(&self, path: &Path, bytes: &[u8]) {
        let mut kept = lock(&self.kept);
        if matches!(*kept, Kept::Nothing) {
            *kept = self.open(path);
            if matches!(*kept, Kept::Open(_)) {
                self.listener.say(&format!("reward `{}` prints: see {}", self.name, path.display()));
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
            "reward `{}`: what it prints cannot be kept in {}: {error}",
            self.name,
            path.display()
        ));
    }
}

pub(super) struct PrintedWriter {
    to: Arc<Printed>,
    /// The line that has not ended yet.
    line: Vec<u8>,
}

impl PrintedWriter {
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let Some(path) = &self.to.path else {
            self.line.extend_from_slice(bytes);
            while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                self.pass_on(&line);
            }
            if self.line.len() >= LINE_BYTES {
                self.end();
            }
            return;
        };
        self.to.keep(path, bytes);
    }

    /// Passes on what no line break ended.
    fn end(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.pass_on(&line);
        }
    }

    fn pass_on(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        self.to.listener.say(&format!("reward `{}`: {}", self.to.name, text.trim_end()));
    }
}

impl Drop for PrintedWriter {
    fn drop(&mut self) {
        self.end();
    }
}
