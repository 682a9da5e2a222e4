//! The optimal baseline per token position: rewards to go of a group, weighted by each trajectory's effect on
//! the gradient so far.

use std::ops::Range;

use super::credit::returns;
use super::singleton::finite_or_zero;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, MaskedRewards, Result,
    SingletonAdvantage,
};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;
use crate::setting::Named as _;
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "optimal_token_baseline",
    family: Family::Advantage,
    formula: "w_t = (1 - 2·pi_t + sum(pi²))·rho_t², W_t = sum(w_s, s <= t), B_t = sum_i(G_it·W_it) / \
        (sum_i(W_it) + epsilon), A_t = G_t - B_t",
    source: "verl 0.9.1 core_algos.compute_optimal_token_baseline_advantage; Li et al., The optimal token \
        baseline: variance reduction for long-horizon LLM-RL, arXiv 2602.07078",
    degenerate: &[
        "if all rewards to go at a position are equal every advantage is exactly 0 (with `epsilon: 0`), \
            if all weights are 0 the plain mean is taken",
        "beyond the second longest trajectory of a group the longest has nothing to compare with: \
            the baseline is 0 there, or with `tail: kept` its own reward to go, so that the advantage is 0",
        "unscored trajectories are left out and get 0; with fewer than two scored members of several all get 0",
        "a group of one gets 0, or its rewards to go with `singleton: raw`",
    ],
    known_as: &[("verl", "algorithm.adv_estimator=optimal_token_baseline")],
    differences: &[
        "verl adds 1e-8 to the weights (`epsilon: 1e-8`), keeps the raw reward of a singleton, and loses \
            rewards on masked tokens (`masked_rewards: lost`)",
        "verl finds the tail by comparing counts of unmasked tokens but cuts it by position (`tail: \
            zeroed_by_count`), which differ if tokens are masked",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// Value of a token baseline at positions that only the longest trajectory of a group reaches.
    pub enum Tail {
        /// 0, so that the whole reward to go counts (verl `handle_zero_tail=True` if no token is masked).
        Zeroed = "zeroed",
        /// As `zeroed`, from the position that equals the second largest number of unmasked tokens (verl).
        ZeroedByCount = "zeroed_by_count",
        /// Its own reward to go, so that the advantage is 0 (verl `handle_zero_tail=False`).
        Kept = "kept",
    }
}

/// Definition of the position that tokens of two trajectories share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// Counted over all tokens.
    All,
    /// Counted over unmasked tokens, so that tool output shifts nothing.
    Unmasked,
}

impl Position {
    /// Position and flat index of the unmasked tokens of a row.
    fn unmasked(self, mask: &[bool], tokens: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        let unmasked = tokens.enumerate().filter(|(_, token)| mask[*token]).enumerate();
        unmasked.map(move |(num_unmasked, (t, token))| match self {
            Self::All => (t, token),
            Self::Unmasked => (num_unmasked, token),
        })
    }
}

/// One number per position of a group, over its members that have an unmasked token there.
#[derive(Clone, Copy)]
struct Baseline {
    weighted: f64,
    weights: f64,
    sum: f64,
    count: usize,
    min: f64,
    max: f64,
}

impl Baseline {
    const EMPTY: Self =
        Self { weighted: 0.0, weights: 0.0, sum: 0.0, count: 0, min: f64::INFINITY, max: f64::NEG_INFINITY };

    fn add(&mut self, to_go: f64, weight: f64) {
        self.weighted += to_go * weight;
        self.weights += weight;
        self.sum += to_go;
        self.count += 1;
        self.min = self.min.min(to_go);
        self.max = self.max.max(to_go);
    }

    fn advantage(&self, to_go: f64, epsilon: f64) -> f64 {
        let weights = self.weights + epsilon;
        if epsilon == 0.0 && self.min >= self.max {
            0.0
        } else if weights > 0.0 {
            finite_or_zero(to_go - self.weighted / weights)
        } else {
            finite_or_zero(to_go - self.sum / self.count as f64)
        }
    }
}

/// One trajectory's tokens while its group is processed.
struct Member {
    /// Range of the trajectory in the group's list of positions.
    places: Range<usize>,
    /// One past its last unmasked position.
    end: usize,
}

settings! {
    /// Optimal baseline per token position.
    ///
    /// `w_t = (1 - 2π_t + Σπ²)·ρ_t²` is the squared norm of the gradient of the token's log-probability with
    /// respect to the logits (times the squared rollout weight, if there is one), `W_t` its sum up to t, and
    /// `G_t` the reward to go. `B_t = Σ_i G_it·W_it / (Σ_i W_it + epsilon)` over the members of the group
    /// with an unmasked token at position t, `A_t = G_t - B_t`; the returns are `G`.
    ///
    /// Source: verl 0.9.1 `optimal_token_baseline` (Li et al., "The optimal token baseline", 2025).
    ///
    /// Shapes: mask, old log-probabilities, Σπ², and token rewards and rollout weights if given, all
    /// `[B][T]`, to advantages and returns `[B][T]`, 0 at masked tokens. Linear in N. Degenerate cases: see
    /// the catalogue's entry. Positions count every token; for trajectories with tool output see
    /// [`TirOptimalTokenBaseline`](super::TirOptimalTokenBaseline).
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, OptimalTokenBaseline};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0]]);
    /// let mask = Ragged::from_rows([vec![true], vec![true]]);
    /// let logprobs = Ragged::from_rows([vec![0.5_f64.ln()], vec![0.25_f64.ln()]]);
    /// let sum_pi_squared = Ragged::from_rows([vec![0.5], vec![0.5]]);
    /// let batch = AdvantageBatch {
    ///     mask: Some(&mask),
    ///     old_logprobs: Some(&logprobs),
    ///     sum_pi_squared: Some(&sum_pi_squared),
    ///     ..AdvantageBatch::of_rewards(&rewards)
    /// };
    /// // Weights 1/2 and 1: baseline 1/3.
    /// let advantages = OptimalTokenBaseline::default().advantages(&batch)?;
    /// assert!((advantages.values()[0] - 2.0 / 3.0).abs() < 1e-15 && (advantages.values()[1] + 1.0 / 3.0).abs() < 1e-15);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct OptimalTokenBaseline {
        /// Baseline of the longest trajectory of a group beyond the second longest.
        tail: Tail = Tail::Zeroed;
        /// Number added to the sum of weights that divides the baseline (1e-8 in verl).
        epsilon: f64 = 0.0, NonNegative;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
        /// Token to which a reward on a masked token (tool or environment output) is assigned.
        masked_rewards: MaskedRewards = MaskedRewards::Credited;
    }
}

impl OptimalTokenBaseline {
    pub(super) const NEEDS: &'static [Column] = &[Column::Mask, Column::OldLogprobs, Column::SumPiSquared];
    pub(super) const USES: &'static [Column] = &[Column::TokenRewards, Column::RolloutWeights];

    pub(super) fn by_position(
        &self,
        position: Position,
        estimator: &'static str,
        batch: &AdvantageBatch<'_>,
        state: &AdvantageState,
    ) -> Result<Estimate> {
        let mask = batch.mask(estimator)?;
        let weights = cumulative_weights(batch, estimator)?;
        let returns = returns(batch, mask, self.masked_rewards, 1.0);
        let mut advantages: Vec<f64> = vec![0.0; returns.num_values()];
        let (mut members, mut baselines): (Vec<Member>, Vec<Baseline>) = (Vec::new(), Vec::new());
        // Position and flat index of every unmasked token of a group, member after member.
        let mut places: Vec<(usize, usize)> = Vec::new();
        let mut first = 0;
        for rewards_g in batch.rewards.rows() {
            let rows = first..first + rewards_g.len();
            first = rows.end;
            if let ([_], SingletonAdvantage::Raw) = (rewards_g, self.singleton) {
                let tokens = mask.offsets()[rows.start]..mask.offsets()[rows.end];
                advantages[tokens.clone()].copy_from_slice(&returns.values()[tokens]);
                continue;
            }
            members.clear();
            baselines.clear();
            places.clear();
            for row in rows.zip(rewards_g).filter(|(_, reward)| !reward.is_nan()).map(|(row, _)| row) {
                let first = places.len();
                places.extend(position.unmasked(mask.values(), mask.offsets()[row]..mask.offsets()[row + 1]));
                let end = places[first..].last().map_or(0, |(place, _)| place + 1);
                if end > baselines.len() {
                    baselines.resize(end, Baseline::EMPTY);
                }
                members.push(Member { places: first..places.len(), end });
            }
            if members.len() < 2 {
                continue;
            }
            for &(place, token) in &places {
                baselines[place].add(returns.values()[token], weights[token]);
            }
            let tail = self.tail_of(&members);
            for (m, member) in members.iter().enumerate() {
                for &(place, token) in &places[member.places.clone()] {
                    let to_go = returns.values()[token];
                    advantages[token] = match tail {
                        Some((longest, start)) if longest == m && place >= start => to_go,
                        _ => baselines[place].advantage(to_go, self.epsilon),
                    };
                }
            }
        }
        let mut rest = advantages.as_slice();
        let mut per_token = Ragged::default();
        for mask_t in mask.rows() {
            let (row, after) = rest.split_at(mask_t.len());
            per_token.push_row(row.iter().copied());
            rest = after;
        }
        Ok(Estimate::per_token(per_token, returns, state))
    }

    /// The member that is longer than all others, and the position from which it is the only one.
    fn tail_of(&self, members: &[Member]) -> Option<(usize, usize)> {
        let length = |member: &Member| match self.tail {
            Tail::Zeroed => member.end,
            Tail::ZeroedByCount => member.places.len(),
            Tail::Kept => 0,
        };
        let (mut longest, mut most, mut second) = (0, 0, 0);
        for (m, member) in members.iter().enumerate() {
            let length = length(member);
            if length > most {
                (longest, second, most) = (m, most, length);
            } else {
                second = second.max(length);
            }
        }
        (most > second).then_some((longest, second))
    }
}

/// `W_t` of every token, flat \[N\].
fn cumulative_weights(batch: &AdvantageBatch<'_>, estimator: &'static str) -> Result<Vec<f64>> {
    let mask = batch.mask(estimator)?;
    let logprobs = batch.tokens(Column::OldLogprobs, estimator)?.values();
    let sum_pi_squared = batch.tokens(Column::SumPiSquared, estimator)?.values();
    let mut weights = Vec::with_capacity(mask.num_values());
    for pair in mask.offsets().windows(2) {
        let mut total = 0.0;
        for token in pair[0]..pair[1] {
            if mask.values()[token] {
                let rho = batch.rollout_weights.map_or(1.0, |weights| weights.values()[token]);
                // (1 - π)² plus the squares of the others; below 0 only by rounding.
                let energy = (1.0 - 2.0 * logprobs[token].exp() + sum_pi_squared[token]).max(0.0);
                total += energy * rho * rho;
            }
            weights.push(total);
        }
    }
    Ok(weights)
}

impl AdvantageEstimator for OptimalTokenBaseline {
    fn needs(&self) -> &'static [Column] {
        Self::NEEDS
    }

    fn uses(&self) -> &'static [Column] {
        Self::USES
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        self.by_position(Position::All, self.name(), batch, state)
    }
}
