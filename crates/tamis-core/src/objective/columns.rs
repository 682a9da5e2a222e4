//! Inputs of the objective: named columns, ragged and never padded.

use std::ops::Range;

use super::aggregation::GroupCounts;
use super::distillation::CandidateColumns;
use crate::fault::Fault;
use crate::ragged::{check_length, num_tokens};

/// A number type for columns: `f32` from an engine, `f64` from a test. Losses are computed in `f64`;
/// derivatives have the columns' precision.
pub trait Real: Copy + Default + PartialOrd + std::fmt::Debug + Into<f64> + Send + Sync {
    /// 0.
    const ZERO: Self;

    /// The nearest number of this precision.
    fn of(value: f64) -> Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;

    fn of(value: f64) -> Self {
        value as f32
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;

    fn of(value: f64) -> Self {
        value
    }
}

/// Source of a token's advantage.
#[derive(Debug, Clone, Copy)]
pub enum AdvantageColumn<'a> {
    /// One number per trajectory \[B\], the same for each of its tokens.
    PerTrajectory(&'a [f64]),
    /// One number per token \[N\].
    PerToken(&'a [f64]),
}

/// A policy loss that was computed elsewhere, per token \[N\]. Values at masked tokens may be anything.
#[derive(Debug, Clone, Copy)]
pub struct GivenLoss<'a> {
    /// The loss of each token, before weights and aggregation.
    pub value: &'a [f64],
    /// Its derivative with respect to the token's log-probability.
    pub derivative: &'a [f64],
}

impl GivenLoss<'_> {
    fn cut(self, tokens: &Range<usize>) -> Self {
        Self { value: &self.value[tokens.clone()], derivative: &self.derivative[tokens.clone()] }
    }
}

/// A critic's columns, per token \[N\].
#[derive(Debug, Clone, Copy)]
pub struct ValueColumns<'a, T> {
    /// Value under the critic being trained; differentiable.
    pub value: &'a [T],
    /// Value at the start of the step.
    pub old: &'a [T],
    /// Return: the target of the value.
    pub returns: &'a [T],
}

/// B trajectories as columns. Per-token columns are flat \[N\], one trajectory after the other.
/// Log-probabilities are in nats.
///
/// If the mask is `false`, no other column is read: masked values may be anything, including NaN.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a, T> {
    /// Offsets of the trajectories \[B + 1\]; need not begin at 0, so that a view of some trajectories is
    /// free.
    pub offsets: &'a [usize],
    /// Mask of the tokens that are trained on \[N\]: `false` for tool output, unscored or dropped
    /// trajectories.
    pub mask: &'a [bool],
    /// Log-probability under the policy being trained \[N\]; differentiable.
    pub logprob: &'a [T],
    /// Log-probability under the policy at the start of the step \[N\]. `None`: the policy itself, so that
    /// every ratio is 1.
    pub old: Option<&'a [T]>,
    /// Log-probability under the policy that sampled, as the sampler reported it \[N\]. Metrics, decoupled
    /// PPO and the mask `off_policy` read it; the last two treat NaN (the sampler reported nothing) as
    /// agreement.
    pub behaviour: Option<&'a [T]>,
    /// Log-probability under the reference policy \[N\].
    pub reference: Option<&'a [T]>,
    /// Entropy of the policy at the token \[N\]; differentiable.
    pub entropy: Option<&'a [T]>,
    /// Weight of each token's policy loss \[N\] (importance correction, selection correction); a constant. KL
    /// and entropy are not multiplied by it.
    pub weight: Option<&'a [T]>,
    /// Flags of the tokens chosen over the whole optimizer batch, one set per token \[N\] ([`Selection`]).
    pub selection: Option<&'a [u8]>,
    /// The loss of each token as computed elsewhere, for a loss that is
    /// [given](super::PolicyLoss::is_given).
    pub given: Option<GivenLoss<'a>>,
    /// The teacher's likeliest tokens beside each token, for a distillation in the loss.
    pub candidates: Option<CandidateColumns<'a, T>>,
    /// Advantages; constants.
    pub advantage: AdvantageColumn<'a>,
    /// Unmasked tokens of the trajectory's whole group in the optimizer batch \[B\], for `group-token-mean`
    /// ([`Normalisers::of`](super::Normalisers::of) counts them).
    pub group_tokens: Option<&'a [f64]>,
    /// Trajectories with an unmasked token in the trajectory's whole group \[B\], for `group-seq-mean`
    /// ([`Normalisers::group_sequences`](super::Normalisers::group_sequences) counts them).
    pub group_sequences: Option<&'a [f64]>,
    /// Weight of each trajectory's whole loss \[B\], including divergence and entropy (one over the
    /// probability with which its prompt was selected); a constant. The normalisers count with the same
    /// weights ([`Normalisers::weighted`](super::Normalisers::weighted)). `None`: 1.
    pub sequence_weight: Option<&'a [f64]>,
}

/// One set of flags per token of the optimizer batch \[N\], for [`Columns::selection`]; cut it like the other
/// columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// [`Self::LEFT_OUT`] and [`Self::BY_COVARIANCE`] in any combination.
    pub flags: Vec<u8>,
}

impl Selection {
    /// The policy loss leaves the token out (top-entropy mask).
    pub const LEFT_OUT: u8 = 1;
    /// `clip_cov` or `kl_cov` chose the token.
    pub const BY_COVARIANCE: u8 = 2;
}

impl<T> ValueColumns<'_, T> {
    pub(crate) fn cut(&self, tokens: &Range<usize>) -> Self {
        Self {
            value: &self.value[tokens.clone()],
            old: &self.old[tokens.clone()],
            returns: &self.returns[tokens.clone()],
        }
    }
}

impl<'a, T: Real> Columns<'a, T> {
    /// The columns that every objective needs.
    pub fn new(
        offsets: &'a [usize],
        mask: &'a [bool],
        logprob: &'a [T],
        advantage: AdvantageColumn<'a>,
    ) -> Self {
        Self {
            offsets,
            mask,
            logprob,
            old: None,
            behaviour: None,
            reference: None,
            entropy: None,
            weight: None,
            selection: None,
            given: None,
            candidates: None,
            advantage,
            group_tokens: None,
            group_sequences: None,
            sequence_weight: None,
        }
    }

    /// B.
    pub fn num_sequences(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// N.
    pub fn num_tokens(&self) -> usize {
        self.mask.len()
    }

    /// A view of the trajectories in `range`, without copying; empty if the range is not within `0..B`.
    ///
    /// The columns must have passed [`Self::check`]; otherwise lengths may not fit.
    #[must_use]
    pub fn sequences(&self, range: Range<usize>) -> Self {
        let range = if range.start <= range.end && range.end <= self.num_sequences() { range } else { 0..0 };
        let base = self.offsets.first().copied().unwrap_or(0);
        let offsets = self.offsets.get(range.start..=range.end).unwrap_or(&[]);
        let tokens = match (offsets.first(), offsets.last()) {
            (Some(first), Some(last)) => first - base..last - base,
            _ => 0..0,
        };
        let cut = |column: Option<&'a [T]>| column.map(|column| &column[tokens.clone()]);
        Self {
            offsets,
            mask: &self.mask[tokens.clone()],
            logprob: &self.logprob[tokens.clone()],
            old: cut(self.old),
            behaviour: cut(self.behaviour),
            reference: cut(self.reference),
            entropy: cut(self.entropy),
            weight: cut(self.weight),
            selection: self.selection.map(|column| &column[tokens.clone()]),
            given: self.given.map(|given| given.cut(&tokens)),
            candidates: self.candidates.map(|candidates| candidates.cut(&tokens)),
            advantage: match self.advantage {
                AdvantageColumn::PerTrajectory(column) => {
                    AdvantageColumn::PerTrajectory(&column[range.clone()])
                }
                AdvantageColumn::PerToken(column) => AdvantageColumn::PerToken(&column[tokens]),
            },
            group_tokens: self.group_tokens.map(|column| &column[range.clone()]),
            group_sequences: self.group_sequences.map(|column| &column[range.clone()]),
            sequence_weight: self.sequence_weight.map(|column| &column[range]),
        }
    }

    /// Whether all lengths fit together.
    pub fn check(&self) -> Result<(), Fault> {
        let expected = num_tokens(self.offsets)?;
        check_length("mask", expected, self.mask.len())?;
        check_length("logprob", expected, self.logprob.len())?;
        for (name, column) in [
            ("old", self.old),
            ("behaviour", self.behaviour),
            ("reference", self.reference),
            ("entropy", self.entropy),
            ("weight", self.weight),
        ] {
            if let Some(column) = column {
                check_length(name, expected, column.len())?;
            }
        }
        let (values, advantages) = match self.advantage {
            AdvantageColumn::PerTrajectory(column) => (self.num_sequences(), column.len()),
            AdvantageColumn::PerToken(column) => (expected, column.len()),
        };
        check_length("advantage", values, advantages)?;
        if let Some(column) = self.selection {
            check_length("selection", expected, column.len())?;
        }
        if let Some(given) = self.given {
            check_length("given.value", expected, given.value.len())?;
            check_length("given.derivative", expected, given.derivative.len())?;
        }
        if let Some(candidates) = self.candidates {
            candidates.check(expected)?;
        }
        for (name, column) in [
            ("group_tokens", self.group_tokens),
            ("group_sequences", self.group_sequences),
            ("sequence_weight", self.sequence_weight),
        ] {
            if let Some(column) = column {
                check_length(name, self.num_sequences(), column.len())?;
            }
        }
        Ok(())
    }

    /// Trajectory i; lengths have been checked.
    pub(crate) fn row(&self, i: usize) -> Row<'a, T> {
        let base = self.offsets[0];
        let tokens = self.offsets[i] - base..self.offsets[i + 1] - base;
        let cut = |column: Option<&'a [T]>| column.map(|column| &column[tokens.clone()]);
        Row {
            mask: &self.mask[tokens.clone()],
            logprob: &self.logprob[tokens.clone()],
            old: cut(self.old),
            behaviour: cut(self.behaviour),
            reference: cut(self.reference),
            entropy: cut(self.entropy),
            weight: cut(self.weight),
            selection: self.selection.map(|column| &column[tokens.clone()]),
            given: self.given.map(|given| given.cut(&tokens)),
            candidates: self.candidates.map(|candidates| candidates.cut(&tokens)),
            advantage: match self.advantage {
                AdvantageColumn::PerTrajectory(column) => RowAdvantage::Same(column[i]),
                AdvantageColumn::PerToken(column) => RowAdvantage::PerToken(&column[tokens.clone()]),
            },
            group: GroupCounts {
                tokens: self.group_tokens.map(|column| column[i]),
                sequences: self.group_sequences.map(|column| column[i]),
            },
            sequence_weight: self.sequence_weight.map_or(1.0, |column| column[i]),
            tokens,
        }
    }
}

/// One trajectory of the columns; every slice has its length T.
pub(crate) struct Row<'a, T> {
    pub(crate) tokens: Range<usize>,
    pub(crate) mask: &'a [bool],
    pub(crate) logprob: &'a [T],
    pub(crate) old: Option<&'a [T]>,
    pub(crate) behaviour: Option<&'a [T]>,
    pub(crate) reference: Option<&'a [T]>,
    pub(crate) entropy: Option<&'a [T]>,
    pub(crate) weight: Option<&'a [T]>,
    pub(crate) selection: Option<&'a [u8]>,
    pub(crate) given: Option<GivenLoss<'a>>,
    pub(crate) candidates: Option<CandidateColumns<'a, T>>,
    pub(crate) advantage: RowAdvantage<'a>,
    pub(crate) group: GroupCounts,
    pub(crate) sequence_weight: f64,
}

#[derive(Clone, Copy)]
pub(crate) enum RowAdvantage<'a> {
    Same(f64),
    PerToken(&'a [f64]),
}

impl RowAdvantage<'_> {
    #[inline]
    pub(crate) fn at(&self, t: usize) -> f64 {
        match self {
            Self::Same(advantage) => *advantage,
            Self::PerToken(column) => column[t],
        }
    }
}

/// Derivatives of one trajectory, by the columns that are differentiable.
pub(super) struct Slopes<'a, T> {
    pub(super) logprob_t: &'a mut [T],
    pub(super) entropy_t: &'a mut [T],
    /// \[T k\]
    pub(super) candidates: &'a mut [T],
}
