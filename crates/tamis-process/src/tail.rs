//! The end of what a child writes to its standard error, for messages.

use std::io::Read;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that are kept.
const MOST_BYTES: usize = 4096;

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    is_over: bool,
}

/// The last bytes of a pipe.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    kept: Mutex<Kept>,
    ended: Condvar,
}

impl Tail {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends to what is kept.
    pub(crate) fn note(&self, bytes: &[u8]) {
        let kept = &mut self.kept().bytes;
        kept.extend_from_slice(bytes);
        kept.drain(..kept.len().saturating_sub(MOST_BYTES));
    }

    /// Keeps the end of a pipe; `copy` gets all of it.
    pub(crate) fn follow(&self, mut pipe: impl Read, copy: Option<Box<dyn FnMut(&[u8]) + Send>>) {
        let mut copy = copy;
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = pipe.read(&mut buffer) {
            if let Some(copy) = &mut copy {
                copy(&buffer[..read]);
            }
            self.note(&buffer[..read]);
        }
        drop(copy);
        self.close();
    }

    /// Nothing follows any more.
    pub(crate) fn close(&self) {
        self.kept().is_over = true;
        self.ended.notify_all();
    }

    /// The last lines, once the pipe has ended or the time is over.
    pub(crate) fn last_lines(&self, most: usize, patience: Duration) -> String {
        let waited = self.ended.wait_timeout_while(self.kept(), patience, |kept| !kept.is_over);
        let (kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept.bytes);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(most)..].join("\n")
    }
}
