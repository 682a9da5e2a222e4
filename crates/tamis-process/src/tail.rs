//! The output of a child: all of it, or its end for messages.

use std::io::Read;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The last lines of an output, at most `most` of those for which `is_shown` is true.
pub fn last_lines(output: &str, most: usize, is_shown: impl Fn(&str) -> bool) -> String {
    let lines: Vec<&str> = output.trim_end().lines().filter(|line| is_shown(line)).collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}

/// The last lines of an output as the end of a message; nothing if there are none.
pub fn ending(output: &str, lines: &str) -> String {
    if lines.is_empty() { String::new() } else { format!("; its {output} ends:\n{lines}") }
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    is_over: bool,
}

/// The last bytes of a pipe.
#[derive(Debug)]
pub(crate) struct Tail {
    most_bytes: usize,
    kept: Mutex<Kept>,
    ended: Condvar,
}

impl Tail {
    /// Keeps at most this many bytes.
    pub(crate) fn new(most_bytes: usize) -> Self {
        Self { most_bytes, kept: Mutex::default(), ended: Condvar::new() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends to the kept bytes.
    pub(crate) fn note(&self, bytes: &[u8]) {
        let kept = &mut self.kept().bytes;
        kept.extend_from_slice(bytes);
        kept.drain(..kept.len().saturating_sub(self.most_bytes));
    }

    /// Reads a pipe to its end; `copy` gets all of it.
    pub(crate) fn follow(&self, mut pipe: impl Read, mut copy: impl FnMut(&[u8])) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = pipe.read(&mut buffer) {
            copy(&buffer[..read]);
            self.note(&buffer[..read]);
        }
        drop(copy);
        self.close();
    }

    /// Marks the end of the output.
    pub(crate) fn close(&self) {
        self.kept().is_over = true;
        self.ended.notify_all();
    }

    /// The kept text, once the pipe has ended or the time is over: a grandchild may hold the pipe.
    pub(crate) fn text(&self, patience: Duration) -> String {
        let waited = self.ended.wait_timeout_while(self.kept(), patience, |kept| !kept.is_over);
        let (kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept.bytes).into_owned()
    }
}
