//! A listener for a wait for scores: it gets messages about the wait, and can interrupt it.

/// Gets messages during a wait for scores. Called from any thread.
pub trait Listener: Send + Sync {
    /// Information for the user.
    fn say(&self, message: &str);

    /// A warning for the user.
    fn warn(&self, message: &str);

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
