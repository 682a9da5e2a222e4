//! VESPO: a smooth weight of the whole trajectory's ratio.

use super::super::columns::{Real, Row};
use super::super::exponential::{LARGEST, clamp, exp};
use super::super::importance::Importance;
use super::formula::{Loss, OwnMetric};
use super::trajectory::{TokenLoss, TrajectoryLoss, sum};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "vespo",
    family: Family::PolicyLoss,
    formula: "W = exp(clamp(sum_t clamp(d, ±20) + sum_t clamp(ln weight_t, ln 1e-8, 20), ln 1e-8, 20)); phi \
        = W^k·exp(lambda·(1 - W)); l = -sg(phi)·A·logprob",
    source: "Shen et al., VESPO, variational sequence-level soft policy optimization, arXiv 2602.10693; W \
        and its clamps as TRL 1.16 computes them",
    degenerate: &["on-policy W and phi are 1 and it is `reinforce`", "a weight of 0 counts as 1e-8"],
    known_as: &[("TRL", "loss_type=vespo with vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg")],
    differences: &["masked tokens do not enter W; TRL adds their weights, which are 1 unless set otherwise"],
    ..Entry::REGISTERED
};

settings! {
    /// Variational sequence-level soft policy optimisation. The weight phi is a constant; derivative
    /// `-phi·A`. The weight column enters phi and multiplies nothing else.
    #[derive(Copy)]
    pub struct Vespo {
        /// Power of the trajectory's weight if the advantage is 0 or more.
        k_positive: f64 = 2.0, NonNegative;
        /// Decay of the trajectory's weight if the advantage is 0 or more.
        lambda_positive: f64 = 3.0, NonNegative;
        /// Power of the trajectory's weight if the advantage is negative.
        k_negative: f64 = 3.0, NonNegative;
        /// Decay of the trajectory's weight if the advantage is negative.
        lambda_negative: f64 = 2.0, NonNegative;
    }
}

/// Upper bound of a single log-ratio and of their sum.
const LOG_LIMIT: f64 = 20.0;
/// Lower bound of their sum, and of the logarithm of a weight: ln 1e-8.
const LOG_FLOOR: f64 = -18.420_680_743_952_367;

/// `ln W` of a trajectory.
fn log_weight<T: Real>(row: &Row<'_, T>) -> f64 {
    let old = row.old.unwrap_or(row.logprob);
    let ratios = sum(row.mask, |t| clamp(row.logprob[t].into() - old[t].into(), (-LOG_LIMIT, LOG_LIMIT)));
    let weights = row.weight.map_or(0.0, |weight| {
        sum(row.mask, |t| {
            let weight: f64 = weight[t].into();
            clamp(if weight < 1e-8 { LOG_FLOOR } else { weight.ln() }, (LOG_FLOOR, LOG_LIMIT))
        })
    });
    clamp(ratios + weights, (LOG_FLOOR, LOG_LIMIT))
}

/// `phi = W^k·exp(lambda·(1 - W))`, finite.
fn phi(log_weight: f64, k: f64, lambda: f64) -> f64 {
    let log_phi = k * log_weight + lambda * (1.0 - exp(log_weight));
    exp(if log_phi > LARGEST { LARGEST } else { log_phi })
}

impl Loss for Vespo {
    fn has_importance_levels(&self) -> bool {
        true
    }

    /// The loss defines the trajectory's weight itself; the setting affects only a bias-corrected KL.
    fn importance(&self, _setting: Importance) -> Importance {
        Importance::Token
    }

    fn is_constant_weight(&self) -> bool {
        true
    }

    fn multiplies_weights(&self) -> bool {
        true
    }

    fn own_metric(&self) -> Option<OwnMetric> {
        Some(OwnMetric::PerSequence("vespo/phi_seq_mean"))
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        let log_weight = log_weight(trajectory.row);
        let positive = phi(log_weight, self.k_positive, self.lambda_positive);
        let negative = phi(log_weight, self.k_negative, self.lambda_negative);
        let tokens = trajectory.tokens as f64;
        trajectory.unweighted(|token| {
            let phi = if token.advantage >= 0.0 { positive } else { negative };
            let slope = -phi * token.advantage;
            let own = phi / tokens;
            TokenLoss { loss: slope * token.logprob, dloss: slope, own, ..TokenLoss::default() }
        });
    }
}
