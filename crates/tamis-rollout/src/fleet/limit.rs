//! The limit of samples in flight at one server.

use crate::wire::vllm::Figures;

/// Samples in flight at a server with unknown load: the number that vLLM runs side by side by default.
pub const FIRST: usize = 256;

const MOST: usize = 8192;

/// Limit for a server that does not report how many samples wait there.
const MOST_UNTOLD: usize = 1024;

/// The number of samples that a server is sent at once, adapted to the load that the server reports.
///
/// If samples wait at the server for room, the number falls to what runs plus an eighth, so that there
/// is always a next one. If none wait and the number is used up, it doubles. If a server reports no
/// load, it doubles once as many samples have succeeded while others waited here. If a server turns
/// samples away, it halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    now: usize,
    most: Option<usize>,
    is_told: bool,
    /// Samples that succeeded since it last changed.
    succeeded: usize,
}

impl Limit {
    pub(super) fn new(most: Option<usize>) -> Self {
        Self { now: most.unwrap_or(FIRST).max(1), most, is_told: false, succeeded: 0 }
    }

    pub(super) fn get(self) -> usize {
        self.now
    }

    fn set(&mut self, to: usize) {
        let most = self.most.unwrap_or(if self.is_told { MOST } else { MOST_UNTOLD });
        self.now = to.clamp(1, most.max(1));
        self.succeeded = 0;
    }

    /// Takes in a server's figures, with the number of our samples in flight there.
    pub(super) fn learn(&mut self, figures: &Figures, in_flight: usize) {
        self.is_told = figures.running.is_some() && figures.waiting.is_some();
        let (Some(running), Some(waiting)) = (figures.running, figures.waiting) else { return };
        let spare = (running / 8.0).max(8.0);
        if waiting > spare {
            self.set((running + spare) as usize);
        } else if waiting < 1.0 && in_flight >= self.now {
            self.set(self.now * 2);
        }
    }

    /// A sample succeeded while others waited here for room.
    pub(super) fn succeed(&mut self) {
        self.succeeded += 1;
        if !self.is_told && self.succeeded >= self.now {
            self.set(self.now * 2);
        }
    }

    /// A sample was turned away.
    pub(super) fn halve(&mut self) {
        self.set(self.now / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(running: f64, waiting: f64) -> Figures {
        Figures { running: Some(running), waiting: Some(waiting) }
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
        (0..100).for_each(|_| limit.succeed());
        assert_eq!(limit.get(), 8, "one that says how it is knows better");
        limit.learn(&Figures::default(), 512);
        assert_eq!(limit.get(), 8, "nothing said, nothing changed");
    }

    #[test]
    fn where_nothing_is_said_it_follows_what_succeeds() {
        let mut limit = Limit::new(None);
        (1..FIRST).for_each(|_| limit.succeed());
        assert_eq!(limit.get(), FIRST);
        limit.succeed();
        assert_eq!(limit.get(), 512);
        (0..100 * FIRST).for_each(|_| limit.succeed());
        assert_eq!(limit.get(), MOST_UNTOLD);
        limit.halve();
        assert_eq!(limit.get(), 512);
        (0..20).for_each(|_| limit.halve());
        assert_eq!(limit.get(), 1);
    }

    #[test]
    fn what_was_set_is_never_exceeded() {
        let mut limit = Limit::new(Some(3000));
        assert_eq!(limit.get(), 3000);
        limit.learn(&figures(3000.0, 0.0), 3000);
        assert_eq!(limit.get(), 3000);
        limit.learn(&figures(1600.0, 1400.0), 3000);
        assert_eq!(limit.get(), 1800);
        limit.learn(&figures(1800.0, 0.0), 1800);
        assert_eq!(limit.get(), 3000);
    }
}
