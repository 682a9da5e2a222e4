//! VESPO: a smooth weight of the whole trajectory's ratio.

use serde::{Deserialize, Serialize};

use super::super::columns::{Real, Row};
use super::super::exponential::exp;
use super::super::precision::Precision;
use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "vespo",
    family: Family::PolicyLoss,
    meaning: "the policy gradient weighted by a smooth function of the product of all token ratios, correction included",
    formula: "W = exp(clamp(sum_t clamp(d, ±20) + sum_t clamp(ln weight_t, ln 1e-8, 20), ln 1e-8, 20)); phi = W^k·exp(lambda·(1 - W)); l = -sg(phi)·A·logprob",
    source: "Shen et al., VESPO, variational sequence-level soft policy optimization, arXiv 2602.10693; W and its clamps as TRL 1.16 computes them",
    defaults: &[
        ("objective.loss.k_positive", "2"),
        ("objective.loss.lambda_positive", "3"),
        ("objective.loss.k_negative", "3"),
        ("objective.loss.lambda_negative", "2"),
    ],
    degenerate: &["on-policy W and phi are 1 and it is `reinforce`", "a weight of 0 counts as 1e-8"],
    known_as: &[("TRL", "loss_type=vespo with vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg")],
    differences: &["masked tokens do not enter W; TRL adds their weights, which are 1 unless set otherwise"],
};

/// Variational sequence-level soft policy optimisation. The weight is a constant; derivative `-phi·A`. The weight column enters phi and
/// multiplies nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vespo {
    /// Power of W where the advantage is at least 0.
    pub k_positive: f64,
    /// Decay there.
    pub lambda_positive: f64,
    /// Power of W elsewhere.
    pub k_negative: f64,
    /// Decay there.
    pub lambda_negative: f64,
}

/// Bounds of a single log-ratio and of their sum.
const LOG_LIMIT: f64 = 20.0;
const LOG_FLOOR: f64 = -18.420_680_743_952_367;

impl Vespo {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        for (setting, value) in [
            ("vespo.k_positive", self.k_positive),
            ("vespo.lambda_positive", self.lambda_positive),
            ("vespo.k_negative", self.k_negative),
            ("vespo.lambda_negative", self.lambda_negative),
        ] {
            in_range(setting, value, value >= 0.0 && value.is_finite(), "a number of at least 0")?;
        }
        Ok(())
    }

    pub(super) fn kernel<T: Real>(&self, row: &Row<'_, T>) -> VespoKernel {
        let old = row.old.unwrap_or(row.logprob);
        let mut log_weight = 0.0;
        for (t, _) in row.mask.iter().enumerate().filter(|(_, on)| **on) {
            let log_ratio: f64 = row.logprob[t].into() - old[t].into();
            log_weight += log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT);
            if let Some(weight) = row.weight {
                let weight: f64 = weight[t].into();
                let weight = if weight < 1e-8 { 1e-8 } else { weight };
                log_weight += weight.ln().clamp(LOG_FLOOR, LOG_LIMIT);
            }
        }
        let log_weight = log_weight.clamp(LOG_FLOOR, LOG_LIMIT);
        let weight = exp(log_weight);
        // Finite, or a masked token, whose advantage of 0 is a good one, would make the trajectory's loss NaN.
        let phi = |k: f64, lambda: f64| {
            let log_phi = lambda + k * log_weight - lambda * weight;
            exp(if log_phi > f64::LARGEST { f64::LARGEST } else { log_phi })
        };
        VespoKernel {
            positive: phi(self.k_positive, self.lambda_positive),
            negative: phi(self.k_negative, self.lambda_negative),
        }
    }
}

/// The weight of one trajectory, by the sign of the advantage.
#[derive(Clone, Copy)]
pub(super) struct VespoKernel {
    pub(super) positive: f64,
    pub(super) negative: f64,
}

impl VespoKernel {
    #[inline(always)]
    pub(super) fn phi(&self, advantage: f64) -> f64 {
        if advantage >= 0.0 { self.positive } else { self.negative }
    }
}

impl Kernel for VespoKernel {
    type Number = f64;

    const LOGPROB: bool = true;
    const THROUGH_RATIO: bool = false;
    const WEIGHTED: bool = false;

    #[inline(always)]
    fn token(&self, at: At<f64>) -> Token<f64> {
        let slope = -self.phi(at.advantage) * at.advantage;
        Token::new(slope * at.logprob, slope)
    }
}
