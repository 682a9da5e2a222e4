//! Clip-Cov: some of the tokens whose update would cost the most entropy are left out of the gradient.

use super::super::columns::{Columns, Real};
use super::super::covariance::{covariances, share_of};
use super::super::error::{ObjectiveError, in_range};
use super::super::exponential::exp;
use super::clip::clipped;
use super::formula::Loss;
use super::trajectory::{TokenLoss, TrajectoryLoss, UNLIMITED};
use crate::entry::{Entry, Family};
use crate::random::Key;
use crate::setting::Ranged as _;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "clip_cov",
    family: Family::PolicyLoss,
    formula: "cov_t = (A_t - mean A)·(logprob_t - mean logprob); of the unclipped tokens with cov_low < cov \
        < cov_high, max(1, floor(share·N)) drawn by key have loss 0",
    source: "Cui et al., The entropy mechanism of reinforcement learning, arXiv 2505.22617, eq. 11 and 12",
    degenerate: &[
        "without a candidate no token is left out",
        "a batch of equal advantages has no candidate for cov_low >= 0",
    ],
    known_as: &[(
        "verl",
        "actor.policy_loss.loss_mode=clip_cov with clip_cov_ratio, clip_cov_lb, clip_cov_ub",
    )],
    differences: &[
        "means, candidates and draw are those of the whole optimizer batch; verl handles every micro-batch by \
            itself, so that its selection depends on the cut",
        "the draw is keyed; verl's is torch.randperm without a seed",
        "no dual clip, as in verl",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// The clipped ratio without the tokens that [`Objective::select`](super::super::Objective::select) drew.
    #[derive(Copy)]
    pub struct ClipCov {
        /// How far the ratio may fall below 1 if the advantage is negative.
        clip_low: f64 = 0.2, Between(0.0, 1.0);
        /// How far the ratio may rise above 1 if the advantage is positive.
        clip_high: f64 = 0.2, NonNegative;
        /// Share of the tokens of an optimizer batch that is left out; at least one token if there is a
        /// candidate.
        share: f64 = 2e-4, Probability;
        /// Smallest covariance (of advantage and log-probability) of the tokens that may be left out.
        cov_low: f64 = 1.0;
        /// Largest covariance (of advantage and log-probability) of the tokens that may be left out.
        cov_high: f64 = 5.0;
    }
}

impl ClipCov {
    /// Whether the clip itself already bounds a token.
    fn is_clipped(&self, log_ratio: f64, advantage: f64) -> bool {
        clipped(exp(log_ratio), advantage, self.clip_low, self.clip_high).is_clipped
    }

    /// Tokens of the batch that may be left out, in batch order: unmasked, not bounded by the clip,
    /// covariance between the bounds.
    pub fn candidates<T: Real>(&self, columns: &Columns<'_, T>) -> Vec<usize> {
        let old = columns.old.unwrap_or(columns.logprob);
        covariances(columns)
            .filter(|&(_, _, covariance)| covariance > self.cov_low && covariance < self.cov_high)
            .filter(|&(t, advantage, _)| {
                !self.is_clipped(columns.logprob[t].into() - old[t].into(), advantage)
            })
            .map(|(t, ..)| t)
            .collect()
    }

    /// Largest number of tokens to leave out.
    pub fn count<T: Real>(&self, columns: &Columns<'_, T>) -> usize {
        share_of(self.share, columns)
    }
}

impl Loss for ClipCov {
    fn check(&self) -> Result<(), ObjectiveError> {
        self.check_ranges()?;
        let fine = self.cov_low < self.cov_high;
        in_range("loss.cov_low", self.cov_low, fine, "a number below `cov_high`")
    }

    fn needs_selection(&self) -> bool {
        true
    }

    fn select<T: Real>(&self, columns: &Columns<'_, T>, key: Key) -> Vec<usize> {
        let mut candidates = self.candidates(columns);
        let count = self.count(columns).min(candidates.len());
        // The first `count` of a Fisher-Yates shuffle.
        for i in 0..count {
            let rest = (candidates.len() - i) as u64;
            candidates.swap(i, i + key.below(i as u64, rest) as usize);
        }
        candidates.truncate(count);
        candidates
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_ratio(UNLIMITED, |token| {
            let found = clipped(token.ratio, token.advantage, self.clip_low, self.clip_high);
            if token.is_selected {
                TokenLoss { loss: 0.0, dloss: 0.0, is_clipped: true, ..found }
            } else {
                TokenLoss { is_clipped: false, ..found }
            }
        });
    }
}
