//! IPO: the policy gradient towards the sampler's own probabilities, without tokens that have moved too far.

use super::super::columns::Real;
use super::super::exponential::{LARGEST, LOWEST, clamp, exp};
use super::formula::Loss;
use super::trajectory::{Token, TokenLoss, TrajectoryLoss};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "ipo",
    family: Family::PolicyLoss,
    formula: "d = logprob - behaviour, l = kl_coefficient·d² - A·exp(d), the second term only if \
        |exp(logprob) - exp(behaviour)| <= threshold",
    source: "prime-rl 0.9, `ipo_loss_fn` (INTELLECT Policy Optimization)",
    degenerate: &[
        "a token at the probability that it was sampled with is always trained on",
        "a token whose sampler reported no log-probability counts as sampled at `old`",
        "with threshold 0 only tokens at their sampled probability are trained on",
    ],
    known_as: &[("prime-rl", "trainer.loss.type=ipo with ipo_threshold, kl_tau")],
    differences: &[
        "0.3 is the threshold of prime-rl 0.9's documentation; its source of August 2026 has 0.1",
        "prime-rl's `adv_tau` multiplies the advantages; scale the rewards for that",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// INTELLECT Policy Optimization: the ratio is to the policy that sampled, and a token is left out if its
    /// probability has moved by more than a threshold, up or down, whatever the sign of its advantage.
    ///
    /// Derivative by the log-probability: `2·kl_coefficient·d - A·exp(d)`, the second term only for tokens
    /// within the threshold. A correction's weights would count the same ratio twice.
    #[derive(Copy)]
    pub struct Ipo {
        /// Largest change of a token's probability since it was sampled, as an absolute difference.
        threshold: f64 = 0.3, Between(0.0, 1.0);
        /// Weight of the squared log-ratio to the sampler, which pulls every token back.
        kl_coefficient: f64 = 0.001, NonNegative;
    }
}

impl Ipo {
    fn of(&self, token: &Token) -> TokenLoss {
        let behaviour = if token.behaviour.is_nan() { token.old } else { token.behaviour };
        // Finite, whatever the sampler reported, so that an advantage of 0 stays 0.
        let distance = clamp(token.logprob - behaviour, (LOWEST, LARGEST));
        // A NaN is not above the threshold: it reaches the loss, in which it is detected.
        let is_held = (exp(token.logprob) - exp(behaviour)).abs() > self.threshold;
        let gain = if is_held { 0.0 } else { token.advantage * exp(distance) };
        TokenLoss {
            loss: self.kl_coefficient * distance * distance - gain,
            dloss: 2.0 * self.kl_coefficient * distance - gain,
            is_clipped: is_held,
            ..TokenLoss::default()
        }
    }
}

impl Loss for Ipo {
    fn weighs_behaviour(&self) -> bool {
        true
    }

    fn pulls_without_advantage(&self) -> bool {
        self.kl_coefficient > 0.0
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_logprob(super::UNLIMITED, |token| self.of(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(probability: f64, sampled: f64, advantage: f64) -> Token {
        let (logprob, behaviour) = (probability.ln(), sampled.ln());
        Token { logprob, old: logprob, behaviour, log_ratio: 0.0, ratio: 1.0, advantage, is_selected: false }
    }

    #[test]
    fn tokens_by_hand() {
        let (near, far) = (2_f64.ln(), 4_f64.ln());
        for (now, sampled, advantage, loss, slope, is_clipped) in [
            // Ratio 2, d = ln 2, moved by 0.25.
            (0.5, 0.25, 3.0, 0.5 * near * near - 6.0, near - 6.0, false),
            // Moved by 0.6, so only the pull is left, whatever the advantage; the same distance downwards.
            (0.8, 0.2, 3.0, 0.5 * far * far, far, true),
            (0.8, 0.2, -3.0, 0.5 * far * far, far, true),
            (0.2, 0.8, 1.0, 0.5 * far * far, -far, true),
        ] {
            let ipo = Ipo { threshold: 0.3, kl_coefficient: 0.5 };
            let found = ipo.of(&token(now, sampled, advantage));
            assert!((found.loss - loss).abs() < 1e-12 && (found.dloss - slope).abs() < 1e-12, "{found:?}");
            assert_eq!(found.is_clipped, is_clipped);
        }
    }

    #[test]
    fn a_token_of_unknown_behaviour_is_at_its_old_probability() {
        let loss = Ipo { threshold: 0.3, kl_coefficient: 0.5 };
        let unknown = Token { behaviour: f64::NAN, ..token(0.5, 0.5, 2.0) };
        let found = loss.of(&unknown);
        assert_eq!((found.loss, found.dloss, found.is_clipped), (-2.0, -2.0, false));
    }
}
