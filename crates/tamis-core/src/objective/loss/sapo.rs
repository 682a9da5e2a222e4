//! SAPO: a soft gate instead of the clip.

use super::super::columns::Real;
use super::super::exponential::exp;
use super::formula::{Loss, limits};
use super::trajectory::{Token, TokenLoss, TrajectoryLoss};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "sapo",
    family: Family::PolicyLoss,
    formula: "l = -(4/tau)·sigmoid(tau·(r - 1))·A, tau = tau_positive if A > 0, otherwise tau_negative",
    source: "Gao et al., Soft adaptive policy optimization, arXiv 2511.20347",
    degenerate: &["at r = 1 the derivative is -A, whatever the temperature"],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=sapo with tau_pos, tau_neg"),
        ("TRL", "loss_type=sapo with sapo_temperature_pos, sapo_temperature_neg"),
    ],
    differences: &[
        "verl and TRL always aggregate by seq-mean-token-mean",
        "TRL has no limit on the log-ratio",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Soft adaptive policy optimisation. Derivative: `-4·σ·(1 - σ)·r·A`, 0 beyond the limit.
    #[derive(Copy)]
    pub struct Sapo {
        /// Temperature of the gate if the advantage is positive.
        tau_positive: f64 = 1.0, Positive;
        /// Temperature of the gate if the advantage is 0 or negative.
        tau_negative: f64 = 1.05, Positive;
        /// Bound on `logp - old` inside the exponential, in nats, with derivative 0 beyond it (verl 20).
        /// Null: no bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(20.0), Positive;
    }
}

impl Loss for Sapo {
    fn has_importance_levels(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        limits(self.log_ratio_limit)
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        let limits = self.log_ratio_limits();
        trajectory.through_ratio(limits, |&Token { log_ratio, ratio, advantage, .. }| {
            let tau = if advantage > 0.0 { self.tau_positive } else { self.tau_negative };
            let odds = exp(-tau * (ratio - 1.0));
            let gate = 1.0 / (1.0 + odds);
            // 1 - gate without cancellation; if the odds overflow, the gate is 0 and so is the slope.
            let rest = if gate > 0.0 { odds * gate } else { 1.0 };
            // At infinite ratios the gate is closed: rest is 0 and must not be multiplied by infinity.
            let slope = if rest > 0.0 { gate * rest * ratio } else { rest };
            TokenLoss {
                loss: -(4.0 / tau) * gate * advantage,
                dloss: if log_ratio.abs() > limits.1 { 0.0 } else { -4.0 * slope * advantage },
                ..TokenLoss::default()
            }
        });
    }
}
