//! How many samples a server is sent at once.

use crate::wire::vllm::Figures;

/// Samples in flight at a server of which nothing is known yet: what vLLM runs side by side unless it is told otherwise.
pub const FIRST: usize = 256;

/// Never more.
const MOST: usize = 8192;

/// The number of samples that a server is sent at once: a fixed one, or one that follows what the server says of itself.
///
/// Where samples wait at the server for room the limit comes down to what runs and an eighth more, so that there is always a next one;
/// where none wait and the limit is used up, it doubles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    now: usize,
    is_fixed: bool,
}

impl Limit {
    pub(super) fn new(fixed: Option<usize>) -> Self {
        Self { now: fixed.unwrap_or(FIRST).max(1), is_fixed: fixed.is_some() }
    }

    pub(super) fn get(self) -> usize {
        self.now
    }

    /// Takes in a server's figures while so many samples of ours are in flight there.
    pub(super) fn learn(&mut self, figures: &Figures, in_flight: usize) {
        let (Some(running), Some(waiting)) = (figures.running, figures.waiting) else { return };
        if self.is_fixed {
            return;
        }
        let spare = (running / 8.0).max(8.0);
        if waiting > spare {
            self.now = ((running + spare) as usize).clamp(1, MOST);
        } else if waiting < 1.0 && in_flight >= self.now {
            self.now = (self.now * 2).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(running: f64, waiting: f64) -> Figures {
        Figures { running: Some(running), waiting: Some(waiting), ..Figures::default() }
    }

    #[test]
    fn it_follows_what_the_server_says() {
        let mut limit = Limit::new(None);
        assert_eq!(limit.get(), FIRST);
        limit.learn(&figures(250.0, 0.0), 200);
        assert_eq!(limit.get(), FIRST, "not used up");
        limit.learn(&figures(256.0, 0.0), 256);
        assert_eq!(limit.get(), 512);
        limit.learn(&figures(256.0, 20.0), 512);
        assert_eq!(limit.get(), 512, "a few may wait");
        limit.learn(&figures(256.0, 256.0), 512);
        assert_eq!(limit.get(), 288);
        limit.learn(&figures(0.0, 500.0), 512);
        assert_eq!(limit.get(), 8, "a server whose cache is full still gets some");
        limit.learn(&Figures::default(), 512);
        assert_eq!(limit.get(), 8, "nothing said, nothing changed");
        let mut fixed = Limit::new(Some(3));
        fixed.learn(&figures(256.0, 256.0), 512);
        assert_eq!(fixed.get(), 3);
    }
}
