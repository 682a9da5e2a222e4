//! Clip-Cov: some of the tokens whose update would cost the most entropy are taken out of the gradient.

use serde::{Deserialize, Serialize};

use super::super::{ObjectiveError, in_range};
use super::clip::ClipKernel;
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "clip_cov",
    family: Family::PolicyLoss,
    meaning: "the clipped ratio, with a few tokens of high covariance between advantage and log-probability taken out at random",
    formula: "cov_t = (A_t - mean A)·(logprob_t - mean logprob); of the unclipped tokens with cov_low < cov < cov_high, max(1, floor(share·N)) drawn by key have loss 0",
    source: "Cui et al., The entropy mechanism of reinforcement learning, arXiv 2505.22617, eq. 11 and 12",
    defaults: &[
        ("objective.loss.clip_low", "0.2"),
        ("objective.loss.clip_high", "0.2"),
        ("objective.loss.share", "2e-4"),
        ("objective.loss.cov_low", "1"),
        ("objective.loss.cov_high", "5"),
    ],
    degenerate: &[
        "without a candidate no token is taken out",
        "a batch of equal advantages has no candidate for cov_low >= 0",
    ],
    known_as: &[(
        "verl",
        "actor.policy_loss.loss_mode=clip_cov with clip_cov_ratio, clip_cov_lb, clip_cov_ub",
    )],
    differences: &[
        "means, candidates and draw are those of the whole optimizer batch; verl takes every micro-batch by itself, so that its selection depends on the cut",
        "the draw is keyed; verl's is torch.randperm without a seed",
        "no dual clip, as in verl",
    ],
};

/// The clipped ratio without the tokens that [`Objective::select`](super::super::Objective::select) drew.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipCov {
    /// As [`Clip::low`](super::Clip::low).
    pub low: f64,
    /// As [`Clip::high`](super::Clip::high).
    pub high: f64,
    /// How many are taken out, as a share of the batch's tokens; at least one where there is a candidate. In `(0, 1]`.
    pub share: f64,
    /// A candidate's covariance is above this.
    pub cov_low: f64,
    /// And below this.
    pub cov_high: f64,
}

impl ClipCov {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        in_range("clip_cov.low", self.low, (0.0..=1.0).contains(&self.low), "a number from 0 to 1")?;
        in_range(
            "clip_cov.high",
            self.high,
            self.high >= 0.0 && self.high.is_finite(),
            "a number of at least 0",
        )?;
        in_range(
            "clip_cov.share",
            self.share,
            self.share > 0.0 && self.share <= 1.0,
            "a share above 0, at most 1",
        )?;
        in_range(
            "clip_cov.cov_low",
            self.cov_low,
            self.cov_low < self.cov_high,
            "a number below clip_cov.cov_high",
        )
    }

    pub(super) fn kernel(&self) -> ClipCovKernel {
        ClipCovKernel(ClipKernel::bounds(self.low, self.high))
    }

    /// Whether the clip itself already holds a token.
    pub(in super::super) fn is_clipped(&self, log_ratio: f64, advantage: f64) -> bool {
        let ratio = super::super::exponential::exp(log_ratio);
        self.kernel().0.token(At::new(log_ratio, ratio, false, advantage)).is_clipped
    }
}

#[derive(Clone, Copy)]
pub(super) struct ClipCovKernel(ClipKernel<f64>);

impl Kernel for ClipCovKernel {
    type Number = f64;

    const SELECTS: bool = true;

    #[inline(always)]
    fn token(&self, at: At<f64>) -> Token<f64> {
        let token = self.0.token(at);
        Token {
            loss: if at.selected { 0.0 } else { token.loss },
            dloss: if at.selected { 0.0 } else { token.dloss },
            is_clipped: at.selected,
            ..token
        }
    }
}
