//! Rules about the world of `tamis simulate`.

use super::Checker;

impl Checker<'_> {
    /// Without servers there is no clock, and nothing that takes time has an effect.
    pub(super) fn simulate(&mut self) {
        if self.config.simulate.as_ref().is_some_and(|simulate| simulate.servers.is_none()) {
            self.warn_ignored(
                &[
                    "simulate.reward_latency",
                    "simulate.train_time.step",
                    "simulate.train_time.token",
                    "simulate.publication.time",
                    "simulate.publication.in_flight",
                ],
                "`simulate.servers` is null, so groups are counted without a clock",
            );
        }
    }
}
