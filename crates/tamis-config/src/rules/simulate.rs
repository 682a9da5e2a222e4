//! Rules about the section of `tamis simulate`.

use super::Checker;

impl Checker<'_> {
    /// Checks that no policy is named twice. Without servers there is no clock, so keys about time have no
    /// effect.
    pub(super) fn simulate(&mut self) {
        let policies = self.config.simulate.as_ref().map_or(&[][..], |simulate| &simulate.policies);
        if let Some(twice) = (0..policies.len())
            .find(|&place| policies.iter().take(place).any(|earlier| *earlier == policies[place]))
        {
            let message = format!("`simulate.policies` names `{}` twice", policies[twice].as_str());
            self.error(
                &[&format!("simulate.policies[{twice}]"), "simulate.policies"],
                message,
                "remove one of them",
            );
        }
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
