//! The loop over a trajectory's tokens that the policy losses share; each loss is a formula for one token.
//!
//! Everything is computed in `f64`, in token order, whatever the precision of the columns. Masked tokens are
//! skipped. The loss and metrics of a trajectory therefore have the same bits in any micro-batch.

use super::super::columns::Selection;
use super::super::columns::{Real, Row};
use super::super::exponential::{LARGEST, LOWEST, clamp, exp, exp_m1};
use super::super::importance::Importance;
use super::super::sequence_sums::SequenceSums;

/// Bounds on the log-ratio that never apply.
pub const UNLIMITED: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

/// Inputs of a policy loss for one token.
#[derive(Debug, Clone, Copy)]
pub struct Token {
    /// Log-probability under the policy that is trained.
    pub logprob: f64,
    /// Log-probability at the start of the step; `logprob` if it was not given.
    pub old: f64,
    /// Log-probability under the policy that sampled; NaN if it was not given.
    pub behaviour: f64,
    /// `logprob - old`, or its mean over the trajectory if the ratio is the trajectory's; before the limits.
    pub log_ratio: f64,
    /// `exp(log_ratio)` with the log-ratio within the limits; finite.
    pub ratio: f64,
    /// The token's advantage, or its trajectory's.
    pub advantage: f64,
    /// Chosen by covariance over the optimizer batch ([`Selection::BY_COVARIANCE`]).
    pub is_selected: bool,
}

/// Output of a policy loss for one token.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TokenLoss {
    /// The loss.
    pub loss: f64,
    /// Derivative of the loss with respect to the log-probability.
    pub dloss: f64,
    /// Bounded by the loss's bound. For the clipped ratio: the clipped branch is strictly the larger (verl
    /// `pg_clipfrac`).
    pub is_clipped: bool,
    /// Bounded by the second bound. For the clipped ratio: the dual clip is strictly the smaller (verl
    /// `pg_clipfrac_lower`).
    pub is_dual: bool,
    /// Below the low bound with negative advantage (TRL `clip_ratio/low`).
    pub is_low: bool,
    /// Above the high bound with positive advantage (TRL `clip_ratio/high`).
    pub is_high: bool,
    /// A measure of the loss's own, summed over tokens ([`SequenceSums::own`]).
    pub own: f64,
}

/// One trajectory with at least one unmasked token, and the destination of its loss and derivatives.
pub struct TrajectoryLoss<'a, T> {
    pub(crate) row: &'a Row<'a, T>,
    pub(crate) importance: Importance,
    pub(crate) scale: f64,
    /// Unmasked tokens, at least 1.
    pub(crate) tokens: usize,
    /// The policy has moved too far from this trajectory: its tokens with negative advantage have the weight
    /// 0.
    pub(crate) is_off_policy: bool,
    /// One derivative per token, initially 0.
    pub(crate) derivatives: &'a mut [T],
    pub(crate) sums: &'a mut SequenceSums,
    pub(crate) scratch: &'a mut Scratch,
}

/// Memory that is reused from trajectory to trajectory, one number per token.
#[derive(Default)]
pub(crate) struct Scratch {
    log_ratios: Vec<f64>,
    ratios: Vec<f64>,
}

/// Unmasked tokens.
pub(crate) fn count(mask: &[bool]) -> usize {
    mask.iter().filter(|&&on| on).count()
}

/// `Σ_t value(t)` over the unmasked tokens.
pub(crate) fn sum(mask: &[bool], value: impl Fn(usize) -> f64) -> f64 {
    let mut sum = 0.0;
    for (t, &on) in mask.iter().enumerate() {
        if on {
            sum += value(t);
        }
    }
    sum
}

impl<T: Real> TrajectoryLoss<'_, T> {
    /// A loss that is differentiated through the ratio. If the ratio is the trajectory's, every token
    /// contributes to its derivative.
    pub fn through_ratio(&mut self, limits: (f64, f64), formula: impl Fn(&Token) -> TokenLoss) {
        self.run(limits, true, true, |_, token| formula(token));
    }

    /// A loss that is differentiated through the token's own log-probability; the ratio is a constant.
    pub fn through_logprob(&mut self, limits: (f64, f64), formula: impl Fn(&Token) -> TokenLoss) {
        self.run(limits, false, true, |_, token| formula(token));
    }

    /// As [`Self::through_logprob`], but the loss handles the weight column itself.
    pub fn unweighted(&mut self, formula: impl Fn(&Token) -> TokenLoss) {
        self.run(UNLIMITED, false, false, |_, token| formula(token));
    }

    /// The values and derivatives of the column `given`; 0 without it.
    pub(crate) fn as_given(&mut self) {
        let given = self.row.given;
        self.run(UNLIMITED, false, true, |t, _| {
            given.map_or_else(TokenLoss::default, |given| TokenLoss {
                loss: given.value[t],
                dloss: given.derivative[t],
                ..TokenLoss::default()
            })
        });
    }

    fn run(
        &mut self,
        limits: (f64, f64),
        is_through_ratio: bool,
        has_weights: bool,
        formula: impl Fn(usize, &Token) -> TokenLoss,
    ) {
        let row = self.row;
        let (mask, logprob, old) = (row.mask, row.logprob, row.old.unwrap_or(row.logprob));
        let num_tokens = self.tokens as f64;
        // Ratios stay finite, so that an advantage of 0 stays 0.
        let limits = (clamp(limits.0, (LOWEST, LARGEST)), clamp(limits.1, (LOWEST, LARGEST)));
        // One ratio for all tokens if the level is the trajectory's.
        let whole = (self.importance != Importance::Token).then(|| {
            let mean = sum(mask, |t| logprob[t].into() - old[t].into()) / num_tokens;
            (mean, exp(clamp(mean, limits)))
        });
        // The weight of a token's loss besides the loss's own: the correction, or 0 if a mask leaves the
        // token out.
        let (weights, selection) = (row.weight.filter(|_| has_weights), row.selection);
        let (behaviour, flags) = (row.behaviour.unwrap_or_default(), selection.unwrap_or_default());
        let (advantages, is_off_policy) = (row.advantage, self.is_off_policy);
        let is_weighted = weights.is_some() || selection.is_some() || is_off_policy;
        let weight_of = |t: usize, advantage: f64| {
            let is_left_out = selection.is_some_and(|flags| flags[t] & Selection::LEFT_OUT != 0);
            if is_left_out || (is_off_policy && advantage < 0.0) {
                return 0.0;
            }
            weights.map_or(1.0, |weights| weights[t].into())
        };
        // Separate loops, which the compiler vectorises.
        let Scratch { log_ratios, ratios } = &mut *self.scratch;
        log_ratios.clear();
        ratios.clear();
        if let Some((mean, ratio)) = whole {
            log_ratios.resize(mask.len(), mean);
            ratios.resize(mask.len(), ratio);
        } else {
            log_ratios.extend(logprob.iter().zip(old).map(|(&new, &old)| new.into() - old.into()));
            ratios.extend(log_ratios.iter().map(|&log_ratio| exp(clamp(log_ratio, limits))));
        }
        let (mut losses, mut slopes, mut own) = (0.0, 0.0, 0.0);
        let [mut clipped, mut dual, mut low, mut high] = [0; 4];
        let is_spread = is_through_ratio && self.importance == Importance::Sequence;
        let scale = if is_spread { 1.0 } else { self.scale };
        let columns = logprob.iter().zip(old).zip(&*log_ratios).zip(&*ratios).zip(mask);
        let columns = columns.zip(&mut *self.derivatives).enumerate();
        for (t, (((((&logprob, &old), &log_ratio), &ratio), &on), derivative)) in columns {
            if !on {
                continue;
            }
            let advantage = advantages.at(t);
            let found = formula(
                t,
                &Token {
                    logprob: logprob.into(),
                    old: old.into(),
                    behaviour: behaviour.get(t).map_or(f64::NAN, |&behaviour| behaviour.into()),
                    log_ratio,
                    ratio,
                    advantage,
                    is_selected: flags.get(t).is_some_and(|flags| flags & Selection::BY_COVARIANCE != 0),
                },
            );
            let weight = if is_weighted { weight_of(t, advantage) } else { 1.0 };
            let slope = found.dloss * weight * scale;
            *derivative = T::of(slope);
            slopes += slope;
            losses += found.loss * weight;
            own += found.own;
            // Bounds apply to few tokens.
            if found.is_clipped || found.is_dual || found.is_low || found.is_high {
                clipped += u32::from(found.is_clipped);
                dual += u32::from(found.is_dual);
                low += u32::from(found.is_low);
                high += u32::from(found.is_high);
            }
        }
        if is_spread {
            let slope = T::of(self.scale * (slopes / num_tokens));
            for (derivative, _) in self.derivatives.iter_mut().zip(mask).filter(|(_, on)| **on) {
                *derivative = slope;
            }
        }
        let sums = &mut *self.sums;
        (sums.policy_loss, sums.own) = (self.scale * losses, own);
        (sums.clipped, sums.dual, sums.low, sums.high) = (clipped, dual, low, high);
        if let Some((mean, ratio)) = whole {
            let held = clamp(mean, limits);
            (sums.old_kl, sums.old_kl_k3) = (-mean * num_tokens, num_tokens * (exp_m1(held) - held));
            (sums.ratio, sums.ratio_min, sums.ratio_max) = (ratio * num_tokens, ratio, ratio);
            return;
        }
        let (mut old_kl, mut old_kl_k3, mut sum) = (0.0, 0.0, 0.0);
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for ((&log_ratio, &ratio), &on) in log_ratios.iter().zip(&*ratios).zip(mask) {
            if !on {
                continue;
            }
            // The divergence uses the log-ratio within its limits: otherwise its k3 estimate could be
            // negative.
            let held = clamp(log_ratio, limits);
            old_kl -= held;
            old_kl_k3 += ratio - 1.0 - held;
            sum += ratio;
            least = if ratio < least { ratio } else { least };
            most = if ratio > most { ratio } else { most };
        }
        (sums.old_kl, sums.old_kl_k3) = (old_kl, old_kl_k3);
        (sums.ratio, sums.ratio_min, sums.ratio_max) = (sum, least, most);
    }
}
