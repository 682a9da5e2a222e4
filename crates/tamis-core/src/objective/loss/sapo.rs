//! SAPO: a soft gate in place of the clip.

use serde::{Deserialize, Serialize};

use super::super::exponential::exp;
use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "sapo",
    family: Family::PolicyLoss,
    meaning: "a sigmoid of the ratio in place of the clip: updates fade as the policy leaves the old one, faster where the advantage is negative",
    formula: "l = -(4/tau)·sigmoid(tau·(r - 1))·A, tau = tau_positive where A > 0, else tau_negative",
    source: "Gao et al., Soft adaptive policy optimization, arXiv 2511.20347",
    defaults: &[
        ("objective.loss.tau_positive", "1"),
        ("objective.loss.tau_negative", "1.05"),
        ("objective.loss.log_ratio_limit", "20"),
    ],
    degenerate: &["at r = 1 the derivative is -A, whatever the temperature"],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=sapo with tau_pos, tau_neg"),
        ("TRL", "loss_type=sapo with sapo_temperature_pos, sapo_temperature_neg"),
    ],
    differences: &[
        "verl and TRL always aggregate by seq-mean-token-mean",
        "TRL has no limit on the log-ratio",
    ],
};

/// Soft adaptive policy optimisation. Derivative: `-4·σ·(1 - σ)·r·A`, 0 beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sapo {
    /// Temperature where the advantage is positive; above 0.
    pub tau_positive: f64,
    /// Temperature elsewhere; above 0.
    pub tau_negative: f64,
    /// `d` is clamped to plus and minus this, with derivative 0 outside; verl 20.
    #[serde(default)]
    pub log_ratio_limit: Option<f64>,
}

impl Sapo {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        for (setting, value) in [
            ("sapo.tau_positive", Some(self.tau_positive)),
            ("sapo.tau_negative", Some(self.tau_negative)),
            ("sapo.log_ratio_limit", self.log_ratio_limit),
        ] {
            if let Some(value) = value {
                in_range(setting, value, value > 0.0 && value.is_finite(), "a number above 0")?;
            }
        }
        Ok(())
    }
}

impl Kernel for Sapo {
    type Number = f64;

    fn limits(&self) -> (f64, f64) {
        let limit = self.log_ratio_limit.unwrap_or(f64::INFINITY);
        (-limit, limit)
    }

    #[inline(always)]
    fn token(&self, at: At<f64>) -> Token<f64> {
        let is_positive = at.advantage > 0.0;
        let tau = if is_positive { self.tau_positive } else { self.tau_negative };
        let odds = exp(-tau * (at.ratio - 1.0));
        let gate = 1.0 / (1.0 + odds);
        // 1 - gate without cancellation; where the odds overflow the gate is 0 and so is the slope.
        let rest = if gate > 0.0 { odds * gate } else { 1.0 };
        let is_limited = at.log_ratio.abs() > self.limits().1;
        // At infinite ratios the gate is shut: rest is 0 and must not meet infinity.
        let slope = if rest > 0.0 { gate * rest * at.ratio } else { rest };
        let dloss = -4.0 * slope * at.advantage;
        Token::new(-(4.0 / tau) * gate * at.advantage, if is_limited { 0.0 } else { dloss })
    }
}
