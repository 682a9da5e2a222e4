//! CISPO: the clipped ratio as a constant weight of the policy gradient.

use serde::{Deserialize, Serialize};

use super::super::precision::Precision;
use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "cispo",
    family: Family::PolicyLoss,
    meaning: "the policy gradient weighted by the clipped ratio, a constant: no token loses its gradient",
    formula: "l = -sg(clamp(r, bound))·A·logprob",
    source: "MiniMax, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5",
    defaults: &[
        ("objective.loss.bound", "relative"),
        ("objective.loss.clip_low", "0.2"),
        ("objective.loss.clip_high", "0.2"),
        ("objective.loss.max_ratio", "5 (with `bound: absolute`)"),
        ("objective.loss.log_ratio_limit", "20"),
    ],
    degenerate: &["the value of the loss means nothing, only its gradient does"],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=cispo with clip_ratio_low, clip_ratio_high (bound relative)"),
        ("TRL", "loss_type=cispo with epsilon_high (bound absolute)"),
    ],
    differences: &[
        "verl reads the bound relative to 1 on both sides, TRL as the largest ratio itself; TRL's default of 0.2 multiplies every token by at most 0.2",
    ],
};

/// How the bound on the ratio is read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum CispoBound {
    /// `clamp(r, 1 - low, 1 + high)`: the paper's notation, and verl's code.
    Relative {
        /// In `[0, 1]`; 1 is no lower bound, as the paper trains.
        low: f64,
        /// At least 0.
        high: f64,
    },
    /// `min(r, max)`: TRL's code.
    Absolute {
        /// Above 0; ScaleRL takes 5.
        max: f64,
    },
}

/// Clipped importance-sampling weights. Derivative with respect to the log-probability: `-sg(clamp(r))·A`, never 0 for a bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cispo {
    /// The bound on the ratio.
    pub bound: CispoBound,
    /// `d` is clamped to plus and minus this; verl 20.
    #[serde(default)]
    pub log_ratio_limit: Option<f64>,
}

impl Cispo {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        match self.bound {
            CispoBound::Relative { low, high } => {
                in_range("cispo.low", low, (0.0..=1.0).contains(&low), "a number from 0 to 1")?;
                in_range("cispo.high", high, high >= 0.0 && high.is_finite(), "a number of at least 0")?;
            }
            CispoBound::Absolute { max } => {
                in_range("cispo.max", max, max > 0.0 && max.is_finite(), "a number above 0")?;
            }
        }
        self.log_ratio_limit.map_or(Ok(()), |limit| {
            in_range("cispo.log_ratio_limit", limit, limit > 0.0 && limit.is_finite(), "a number above 0")
        })
    }

    /// Bounds on the log-ratio.
    pub(super) fn limits(&self) -> (f64, f64) {
        let limit = self.log_ratio_limit.unwrap_or(f64::INFINITY);
        (-limit, limit)
    }

    pub(super) fn kernel<F: Precision>(&self) -> CispoKernel<F> {
        let (low, high) = match self.bound {
            CispoBound::Relative { low, high } => (1.0 - low, 1.0 + high),
            CispoBound::Absolute { max } => (0.0, max),
        };
        CispoKernel { low: F::of(low), high: F::of(high), limits: self.limits() }
    }
}

#[derive(Clone, Copy)]
pub(super) struct CispoKernel<F> {
    low: F,
    high: F,
    limits: (f64, f64),
}

impl<F: Precision> Kernel for CispoKernel<F> {
    type Number = F;

    const QUICK: bool = true;
    const LOGPROB: bool = true;
    const THROUGH_RATIO: bool = false;

    fn limits(&self) -> (f64, f64) {
        self.limits
    }

    #[inline(always)]
    fn token(&self, at: At<F>) -> Token<F> {
        let (is_below, is_above) = (at.ratio < self.low, at.ratio > self.high);
        let held = if is_below { self.low } else { at.ratio };
        let held = if is_above { self.high } else { held };
        let slope = -held * at.advantage;
        Token {
            is_clipped: is_below | is_above,
            is_low: is_below & at.is_bad,
            is_high: is_above & at.is_good,
            ..Token::new(slope * at.logprob, slope)
        }
    }
}
