//! A lower bound on the cost of policies that draw all prompts equally often.

use std::fmt;

use serde::Serialize;
use tamis_core::figure::fixed;
use tamis_core::filter::{GroupFilter, Scope};

use crate::cost::kept::KeptGroups;
use crate::simulate::pass_rates::rate_of;
use crate::simulate::world::SimulatedWorld;

/// Approximate number of terms that are summed in all.
const BUDGET: usize = 20_000_000;
/// Cost of a prompt's length distribution, in terms.
const LENGTHS: usize = 40;
/// Prompts that are evaluated at least, if there are so many.
const FEWEST: usize = 1000;
/// Steps at which drifting pass rates are evaluated.
const MOMENTS: u64 = 16;
/// Range of prompts' own random walks that is evaluated, in standard deviations on both sides.
const FARTHEST: f64 = 7.0;
/// Greatest distance between two points in the logit, within the limits on their number. The keep rate
/// changes over several logits, so a sum with this spacing is as exact as the integral.
const APART: f64 = 0.5;
const FEWEST_WAYS: usize = 32;
const MOST_WAYS: usize = 128;
/// Standard errors that `chance` covers.
const DEVIATIONS: f64 = 3.0;

/// A lower bound over the measured steps, on average over runs. It holds for every policy that neither
/// chooses prompts nor ends groups early. The bound on time also needs a policy that does not abort groups
/// while they generate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LowerBound {
    /// 1 / k. k is the mean probability that the run's filter keeps a group, with truncated completions
    /// counted as wrong.
    pub generated_per_kept: f64,
    /// The same without truncation. Infinite if the filter then keeps no group.
    pub before_cuts: f64,
    /// Seconds of a step whose batch is full of kept groups; `None` without servers. This is the longer of
    /// two times: that of decoding 1 / k times the tokens of a batch with every slot full, and that of
    /// training the kept groups. A step with fewer kept groups
    /// ([`PolicyResult::kept_share`](crate::simulate::PolicyResult::kept_share)) needs the same share of it.
    pub step_time: Option<f64>,
    /// Relative amount by which a single run may lie below the bound by chance, at three standard errors.
    pub chance: f64,
}

/// Why there is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoBound {
    /// The filter compares the groups of a round.
    Pool,
    /// The filter can keep no group.
    NothingKept,
}

impl fmt::Display for NoBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pool => "the filter compares the groups of a round, and what it keeps has no closed form",
            Self::NothingKept => "the filter keeps no group of these pass rates and lengths",
        })
    }
}

/// Means over prompts at a step.
#[derive(Debug, Clone, Copy, Default)]
struct Means {
    keep: f64,
    /// Without truncation.
    keep_before_cuts: f64,
    /// Tokens of a group and of a kept group.
    tokens: f64,
    kept_tokens: f64,
    /// Variance of a group's tokens divided by their squared mean.
    spread: f64,
}

impl Means {
    fn at(world: &SimulatedWorld, kept: &KeptGroups, step: u64, budget: usize) -> Self {
        let n = kept.group_size() as f64;
        let ways = normal_points(world.drift.noise * (step as f64).sqrt());
        let most = (budget / (ways.len() * (LENGTHS + kept.num_terms()))).max(FEWEST);
        let stride = world.population.len().div_ceil(most).max(1);
        let mut sums = Self::default();
        let (mut weight, mut squares, mut within) = (0.0, 0.0, 0.0);
        for (prompt, logit) in world.population.logits().enumerate().skip(stride / 2).step_by(stride) {
            for &(own, share) in &ways {
                let rate = rate_of(logit + world.drift.logit * step as f64 + own);
                let member = world.completions.mean_member(prompt, rate);
                let (keep, right) = kept.at(member.rate);
                let before_cuts = if member.rate < rate { kept.at(rate).0 } else { keep };
                let tokens = n * member.tokens;
                weight += share;
                sums.keep += share * keep;
                sums.keep_before_cuts += share * before_cuts;
                sums.tokens += share * tokens;
                sums.kept_tokens += share * (right * member.right + (n * keep - right) * member.wrong);
                squares += share * tokens * tokens;
                within += share * n * (member.square - member.tokens * member.tokens);
            }
        }
        let mean = |sum: f64| sum / weight;
        let tokens = mean(sums.tokens);
        Self {
            keep: mean(sums.keep),
            keep_before_cuts: mean(sums.keep_before_cuts),
            tokens,
            kept_tokens: if sums.keep > 0.0 { sums.kept_tokens / sums.keep } else { 0.0 },
            spread: (mean(squares) - tokens * tokens + mean(within)).max(0.0) / (tokens * tokens),
        }
    }
}

/// Equally spaced points of a normal distribution, with their weights: the trapezoidal rule. For smooth
/// functions it is exact except for the tails. Quantiles would omit the tails, which hold all kept groups of
/// prompts that are nearly always solved.
fn normal_points(deviation: f64) -> Vec<(f64, f64)> {
    if deviation <= 0.0 {
        return vec![(0.0, 1.0)];
    }
    let steps = ((2.0 * FARTHEST * deviation / APART).ceil() as usize).clamp(FEWEST_WAYS, MOST_WAYS);
    let at = |place: usize| FARTHEST * (2.0 * place as f64 / steps as f64 - 1.0);
    let points = (0..=steps).map(|place| (deviation * at(place), (-0.5 * at(place).powi(2)).exp()));
    let all: f64 = points.clone().map(|(_, share)| share).sum();
    points.map(|(point, share)| (point, share / all)).collect()
}

impl LowerBound {
    /// The bound in a world, for groups of lag `max_lag` or less.
    ///
    /// # Errors
    /// There is no bound.
    pub(crate) fn new(world: &SimulatedWorld, filter: GroupFilter, max_lag: u64) -> Result<Self, NoBound> {
        if filter.scope() == Scope::Pool {
            return Err(NoBound::Pool);
        }
        let kept = KeptGroups::new(filter, world.completions.group_size());
        let drift = &world.drift;
        let moves = drift.logit != 0.0 || drift.noise > 0.0;
        let measured = (world.steps - world.warm_up).max(1);
        let moments = if moves { measured.min(MOMENTS) } else { 1 };
        let budget = BUDGET / (2 * moments as usize);
        let mut bound = Self {
            generated_per_kept: 0.0,
            before_cuts: 0.0,
            step_time: world.servers.map(|_| 0.0),
            chance: 0.0,
        };
        let (mut keep, mut spread) = (0.0, 0.0);
        for moment in 0..moments {
            let step = world.warm_up + (2 * moment + 1) * measured / (2 * moments);
            let mut means = Means::at(world, &kept, step, budget);
            if moves && max_lag > 0 {
                // Trained groups may be older, and from a time with a better keep rate.
                let before = Means::at(world, &kept, step.saturating_sub(max_lag), budget);
                means.keep = means.keep.max(before.keep);
                means.keep_before_cuts = means.keep_before_cuts.max(before.keep_before_cuts);
                means.tokens = means.tokens.min(before.tokens);
                means.kept_tokens = means.kept_tokens.min(before.kept_tokens);
            }
            // A rounding error instead of 0.
            if means.keep < 1e-12 {
                return Err(NoBound::NothingKept);
            }
            let share = 1.0 / moments as f64;
            bound.generated_per_kept += share / means.keep;
            // A rounding error, too: such groups are kept only because some members are truncated.
            let before_cuts = means.keep_before_cuts;
            bound.before_cuts += if before_cuts < 1e-12 { f64::INFINITY } else { share / before_cuts };
            if let (Some(time), Some(fleet)) = (&mut bound.step_time, world.servers) {
                let batch = world.train_batch_size as f64;
                let a_second = fleet.num_slots() as f64 / fleet.iteration_time(fleet.slots, 0.0);
                let training = world.train_time.step + world.train_time.token * batch * means.kept_tokens;
                *time += share * (batch * means.tokens / means.keep / a_second).max(training);
            }
            keep += share * means.keep;
            spread += share * means.spread;
        }
        let trained = (measured * world.train_batch_size as u64) as f64;
        // Variance from the number of generated groups per trained group, and from the batch that is carried
        // in or out, which may be full or empty.
        let mut variance = (1.0 - keep) / trained + 1.0 / (6.0 * (measured * measured) as f64);
        if bound.step_time.is_some() {
            variance += spread * keep / trained;
        }
        if drift.noise > 0.0 {
            // Variance from the prompts' own random walks.
            variance += (1.0 - keep) / keep / world.population.len() as f64;
        }
        bound.chance = (DEVIATIONS * variance.sqrt()).min(1.0);
        Ok(bound)
    }
}

impl LowerBound {
    /// The bound without truncation, as text; `None` if it differs by less than 0.1 %.
    pub(crate) fn of_cuts(&self) -> Option<String> {
        let share = self.generated_per_kept / self.before_cuts - 1.0;
        (share.abs() >= 1e-3).then(|| {
            let before = if self.before_cuts.is_finite() {
                format!("{} generated", fixed(self.before_cuts, 3))
            } else {
                "no group kept".to_owned()
            };
            format!("{before} if nothing were cut at rollout.max_response_length")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mean that only the tail makes: E[e^{sz}] = e^{s²/2} for a normal z.
    #[test]
    fn points_of_a_normal_number_reach_into_its_tails() {
        for deviation in [0.1, 1.0, 3.0, 4.0] {
            let points = normal_points(deviation);
            let mean = |of: &dyn Fn(f64) -> f64| points.iter().map(|(x, share)| share * of(*x)).sum::<f64>();
            let expected = (deviation * deviation / 2.0).exp();
            assert!((mean(&f64::exp) / expected - 1.0).abs() < 3e-3, "{deviation}: {}", mean(&f64::exp));
            assert!((mean(&|x| x * x) / (deviation * deviation) - 1.0).abs() < 1e-9);
        }
        assert_eq!(normal_points(0.0), [(0.0, 1.0)]);
        // The mean of very low rates agrees with that over a fine grid.
        let rate =
            |points: &[(f64, f64)]| points.iter().map(|(x, share)| share * rate_of(-8.0 + x)).sum::<f64>();
        let many = normal_points(2.0);
        let fine: f64 = (0..200_000)
            .map(|place| {
                let z = (f64::from(place) + 0.5) / 200_000.0 * 16.0 - 8.0;
                (-0.5 * z * z).exp() * rate_of(-8.0 + 2.0 * z) * 16.0 / 200_000.0
            })
            .sum::<f64>()
            / (2.0 * std::f64::consts::PI).sqrt();
        assert!((rate(&many) / fine - 1.0).abs() < 1e-6, "{} {fine}", rate(&many));
    }
}
