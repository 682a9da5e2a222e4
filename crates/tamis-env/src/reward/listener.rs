//! A listener for a wait for scores: it gets messages about the wait, and can interrupt it.

use std::sync::Arc;

/// Gets messages during a wait for scores. Called from any thread.
pub trait Listener: Send + Sync {
    /// Information for the user.
    fn say(&self, message: &str);

    /// Information about work that begins: user's programs that are started or called, and how often.
    fn announce(&self, message: &str) {
        self.say(message);
    }

    /// How far long work is.
    fn progress(&self, message: &str) {
        self.say(message);
    }

    /// A warning for the user.
    fn warn(&self, message: &str);

    /// A line that a user's function printed, with its source: ``reward `mine` (reward.py)``.
    fn printed(&self, source: &str, line: &str) {
        self.say(&format!("{source}: {line}"));
    }

    /// Whether the scores are no longer wanted. Scoring then ends soon, with
    /// [`RewardFailure::Interrupted`](super::RewardFailure::Interrupted).
    fn is_interrupted(&self) -> bool;
}

/// Ignores messages and never interrupts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

impl Listener for Nobody {
    fn say(&self, _message: &str) {}

    fn warn(&self, _message: &str) {}

    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Longest part of a line that is passed on by itself.
const LINE_BYTES: usize = 4096;

/// Passes on line by line what a process prints.
pub(crate) struct PrintedLines {
    source: String,
    listener: Arc<dyn Listener>,
    /// The line that has not ended yet.
    line: Vec<u8>,
}

impl PrintedLines {
    pub(crate) fn new(source: &str, listener: &Arc<dyn Listener>) -> Self {
        Self { source: source.to_owned(), listener: Arc::clone(listener), line: Vec::new() }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.line.extend_from_slice(bytes);
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            self.pass_on(&line);
        }
        if self.line.len() >= LINE_BYTES {
            self.end();
        }
    }

    /// Passes on what no line break ended.
    fn end(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.pass_on(&line);
        }
    }

    fn pass_on(&self, line: &[u8]) {
        self.listener.printed(&self.source, String::from_utf8_lossy(line).trim_end());
    }
}

impl Drop for PrintedLines {
    fn drop(&mut self) {
        self.end();
    }
}

/// Records a listener's messages, for tests.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) lines: std::sync::Mutex<Vec<String>>,
    pub(crate) interrupted: std::sync::atomic::AtomicBool,
}

#[cfg(test)]
impl Heard {
    pub(crate) fn text(&self) -> String {
        self.lines.lock().expect("lock").join("\n")
    }
}

#[cfg(test)]
impl Listener for Heard {
    fn say(&self, message: &str) {
        self.lines.lock().expect("lock").push(message.to_owned());
    }

    fn warn(&self, message: &str) {
        self.say(&format!("warning: {message}"));
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(std::sync::atomic::Ordering::SeqCst)
    }
}
