//! GMPO: one ratio per trajectory, the geometric mean of its tokens' clipped ratios.

use super::super::columns::Real;
use super::super::columns::Selection;
use super::super::exponential::{exp, exp_m1};
use super::formula::Loss;
use super::trajectory::TrajectoryLoss;
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "geo_mean",
    family: Family::PolicyLoss,
    formula: "q_t = min(d, clip_high) if A > 0, max(d, -clip_low) if A < 0; l = -mean_t(A)·exp(mean_t q_t)·exp(mean_t ln(weight_t))",
    source: "Zhao et al., Geometric-mean policy optimization, arXiv 2507.20673, eq. 4",
    degenerate: &[
        "a trajectory without a token to train on contributes nothing; TRL adds -A to the value of the loss",
        "a token with advantage 0 counts as ratio 1",
    ],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=geo_mean"),
        ("TRL", "GMPOTrainer with epsilon, epsilon_high"),
    ],
    differences: &[
        "bounds are in log space: 0.4 allows ratios from 0.67 to 1.49",
        "verl adds 1e-8 to lengths and 1e-10 to weights (`length_epsilon: 1e-8`, `weight_epsilon: 1e-10`) \
            and uses the mean over all trajectories whatever the aggregation; here that is \
            seq-mean-token-mean",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Geometric-mean policy optimisation.
    ///
    /// One loss per trajectory, `-Ā·g·w`, with `g = exp(mean_t q_t)`. Its share of the batch's loss is that
    /// times its length times the aggregation's weight, so that `seq-mean-token-mean` is the paper's mean
    /// over trajectories. Derivative of a token: an equal share if its `d` is within the bound, otherwise 0.
    ///
    /// Tokens that a mask over the optimizer batch leaves out are left out of all means.
    #[derive(Copy)]
    pub struct GeoMean {
        /// Lower bound of a token's log-ratio if the advantage is negative, in nats below 0.
        clip_low: f64 = 0.4, NonNegative;
        /// Upper bound of a token's log-ratio if the advantage is positive, in nats above 0.
        clip_high: f64 = 0.4, NonNegative;
        /// Number added to the length by which a trajectory's means are divided (verl 1e-8).
        length_epsilon: f64 = 0.0, NonNegative;
        /// Number added to correction weights before their logarithm (verl 1e-10).
        weight_epsilon: f64 = 0.0, NonNegative;
    }
}

impl GeoMean {
    /// `q`, and whether it moves with `d`.
    fn held(&self, log_ratio: f64, advantage: f64) -> (f64, bool) {
        if advantage > 0.0 && log_ratio > self.clip_high {
            (self.clip_high, false)
        } else if advantage < 0.0 && log_ratio < -self.clip_low {
            (-self.clip_low, false)
        } else if advantage == 0.0 {
            (0.0, false)
        } else {
            (log_ratio, true)
        }
    }
}

impl Loss for GeoMean {
    fn is_gradient_on_policy(&self) -> bool {
        self.length_epsilon == 0.0 && self.weight_epsilon == 0.0
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        let TrajectoryLoss { row, derivatives, sums, .. } = trajectory;
        let old = row.old.unwrap_or(row.logprob);
        let is_left_out = |t: usize| row.selection.is_some_and(|flags| flags[t] & Selection::LEFT_OUT != 0);
        let (mut logs, mut advantages, mut weights, mut kept) = (0.0, 0.0, 0.0, 0_usize);
        for (t, derivative) in derivatives.iter_mut().enumerate() {
            if !row.mask[t] {
                continue;
            }
            let log_ratio = row.logprob[t].into() - old[t].into();
            let advantage = row.advantage.at(t);
            sums.old_kl -= log_ratio;
            let is_out = log_ratio > self.clip_high || log_ratio < -self.clip_low;
            sums.clipped += u32::from(is_out && advantage > 0.0);
            sums.dual += u32::from(is_out && advantage < 0.0);
            sums.low += u32::from(log_ratio < -self.clip_low && advantage < 0.0);
            sums.high += u32::from(log_ratio > self.clip_high && advantage > 0.0);
            if is_left_out(t) {
                continue;
            }
            kept += 1;
            advantages += advantage;
            if let Some(weight) = row.weight {
                weights += (weight[t].into() + self.weight_epsilon).ln();
            }
            let (value, is_free) = self.held(log_ratio, advantage);
            logs += value;
            *derivative = T::of(f64::from(is_free));
        }
        let length = kept as f64 + self.length_epsilon;
        let (ratio, advantage, weight) = if kept == 0 {
            (1.0, 0.0, 1.0)
        } else {
            let weight = if row.weight.is_some() { exp(weights / length) } else { 1.0 };
            (exp(logs / length), advantages / length, weight)
        };
        let tokens = trajectory.tokens as f64;
        let is_off_policy = trajectory.is_off_policy && advantage < 0.0;
        let loss = if is_off_policy { 0.0 } else { -advantage * ratio * weight };
        let share = T::of(trajectory.scale * (tokens * loss) / length);
        for derivative in trajectory.derivatives.iter_mut() {
            *derivative = if *derivative > T::ZERO { share } else { T::ZERO };
        }
        let sums = &mut *trajectory.sums;
        sums.policy_loss = trajectory.scale * (tokens * loss);
        sums.ratio = ratio * tokens;
        (sums.ratio_min, sums.ratio_max) = (ratio, ratio);
        // From all tokens as they are: the loss's own ratio is bounded, and would make the estimate negative.
        sums.old_kl_k3 = tokens * exp_m1(-sums.old_kl / tokens) + sums.old_kl;
    }
}
