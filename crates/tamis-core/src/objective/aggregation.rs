//! Aggregation: turns per-token losses into one number, and defines the divisor.
//!
//! Every aggregation here is `loss = Σ_i w_i Σ_t m_it l_it`. The weight `w_i` of a trajectory depends only on
//! its own length, its group's size and the [`Normalisers`] of the whole optimizer batch. The derivative of a
//! token therefore has the same bits however the batch is cut into micro-batches.

use serde::{Deserialize, Serialize};

use super::error::{ObjectiveError, in_range};
use crate::choice;
use crate::entry::{Entry, Family};
use crate::fault;
use crate::ragged::{Ragged, check_length};

pub(super) const ENTRIES: [Entry; 7] = {
    const fn entry(
        name: &'static str,
        formula: &'static str,
        source: &'static str,
        known_as: &'static [(&'static str, &'static str)],
        differences: &'static [&'static str],
    ) -> Entry {
        Entry {
            name,
            family: Family::Aggregation,
            formula,
            source,
            degenerate: &["nothing to train on: every weight is 0 (verl's loss is NaN)"],
            known_as,
            differences,
            ..Entry::REGISTERED
        }
    }
    [
        entry(
            "token-mean",
            "sum_it m l / sum_it m",
            "Yu et al., DAPO, arXiv 2503.14476, as released",
            &[
                ("verl", "loss_agg_mode=token-mean"),
                ("TRL", "loss_type=dapo|cispo|vespo (all ranks), bnpo (one micro-batch)"),
            ],
            &[
                "TRL's dapo divides by the tokens of the whole generation batch, without truncated completions",
            ],
        ),
        entry(
            "seq-mean-token-sum",
            "(1/B) sum_i sum_t m l",
            "verl; LUSPO, arXiv 2602.05261",
            &[("verl", "loss_agg_mode=seq-mean-token-sum"), ("TRL", "loss_type=luspo")],
            &["verl and TRL count fully masked trajectories in B; here B is an input"],
        ),
        entry(
            "seq-mean-token-mean",
            "(1/B) sum_i (1/|o_i|) sum_t m l",
            "Shao et al., DeepSeekMath, arXiv 2402.03300, eq. 3",
            &[("verl", "loss_agg_mode=seq-mean-token-mean"), ("TRL", "loss_type=grpo|sapo")],
            &["verl adds 1e-8 to the lengths"],
        ),
        entry(
            "seq-mean-token-sum-norm",
            "(1/B) sum_i (1/L) sum_t m l",
            "Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783, section 3.2",
            &[
                ("verl", "loss_agg_mode=seq-mean-token-sum-norm with loss_scale_factor"),
                ("TRL", "loss_type=dr_grpo"),
            ],
            &[
                "verl uses the padded width of the micro-batch if no scale is given; here the scale is the response limit",
            ],
        ),
        entry(
            "group-token-mean",
            "(1/P) sum_g (sum_{i in g} sum_t m l) / (sum_{i in g} |o_i|)",
            "Yu et al., DAPO, arXiv 2503.14476, eq. 8",
            &[],
            &["DAPO as in its paper; its code uses `token-mean`"],
        ),
        entry(
            "group-seq-mean",
            "(1/P) sum_g (1/|g|) sum_{i in g} (1/|o_i|) sum_t m l",
            "the expectation over prompts outside the mean over a group's outputs, Shao et al., arXiv 2402.03300, eq. 3",
            &[],
            &["equal to seq-mean-token-mean if all groups have the same number of trained trajectories"],
        ),
        entry("token-sum", "sum_it m l", "verl", &[("verl", "loss_agg_mode=token-sum")], &[]),
    ]
};

choice! {
    /// How the losses of tokens become one number. B: number of trajectories, |o_i|: trained tokens of
    /// trajectory i, P: number of groups, all in the whole optimizer batch.
    pub enum Aggregation {
        /// Mean over all tokens of the mini-batch; all tokens have the same weight (DAPO as released).
        TokenMean = "token-mean",
        /// Sum over the tokens of a sequence, mean over sequences: the weight of a sequence grows with its
        /// length.
        SeqMeanTokenSum = "seq-mean-token-sum",
        /// Mean over the tokens of a sequence, mean over sequences; all sequences have the same weight (GRPO
        /// as published).
        SeqMeanTokenMean = "seq-mean-token-mean",
        /// Sum over the tokens of a sequence, divided by `loss_scale_factor`, mean over sequences (Dr. GRPO).
        SeqMeanTokenSumNorm = "seq-mean-token-sum-norm",
        /// Mean over the tokens of a group, mean over groups (DAPO as written in its paper).
        GroupTokenMean = "group-token-mean",
        /// Mean over the tokens of a sequence, over the sequences of a group, and over groups: every prompt
        /// has the same weight.
        GroupSeqMean = "group-seq-mean",
        /// Sum over all tokens of the mini-batch, without a divisor.
        TokenSum = "token-sum",
    }
}

/// Divisors that two aggregations use for the tokens of a trajectory; the others do not read them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthDivisors {
    /// For [`Aggregation::SeqMeanTokenSumNorm`]: L, the response limit in tokens; above 0.
    pub loss_scale_factor: f64,
    /// For [`Aggregation::SeqMeanTokenMean`]: added to |o_i|; 0 is the formula, verl adds 1e-8.
    #[serde(default)]
    pub length_epsilon: f64,
}

impl Default for LengthDivisors {
    fn default() -> Self {
        Self { loss_scale_factor: 1.0, length_epsilon: 0.0 }
    }
}

impl LengthDivisors {
    /// Whether both are in range.
    pub(crate) fn check(&self) -> Result<(), ObjectiveError> {
        let Self { loss_scale_factor: scale, length_epsilon: epsilon } = *self;
        let is_fine = scale > 0.0 && scale.is_finite();
        in_range("loss_scale_factor", scale, is_fine, "the response limit in tokens, above 0")?;
        let is_fine = epsilon >= 0.0 && epsilon.is_finite();
        in_range("length_epsilon", epsilon, is_fine, "a finite number of at least 0")
    }
}

impl Aggregation {
    /// `w_i`, times the number of data-parallel ranks: the factor of each unmasked token's loss.
    ///
    /// 0 if the denominator is 0 (nothing is trained on), for which verl gives NaN.
    ///
    /// # Errors
    /// The group's counts are needed and not given.
    pub fn weight(
        self,
        length: usize,
        group: GroupCounts,
        normalisers: &Normalisers,
        divisors: &LengthDivisors,
    ) -> Result<f64, ObjectiveError> {
        let Normalisers { tokens, sequences, groups, dp_size } = *normalisers;
        let over = |denominator: f64| if denominator > 0.0 { dp_size / denominator } else { 0.0 };
        Ok(match self {
            Self::TokenMean => over(tokens),
            Self::SeqMeanTokenSum => over(sequences),
            Self::SeqMeanTokenMean => {
                if length == 0 {
                    0.0
                } else {
                    over(sequences) / (length as f64 + divisors.length_epsilon)
                }
            }
            Self::SeqMeanTokenSumNorm => over(sequences) / divisors.loss_scale_factor,
            Self::GroupTokenMean => {
                let group_tokens = group.tokens.ok_or_else(|| {
                    fault!(
                        "column `group_tokens` is missing; {needed_by} needs it",
                        needed_by = "aggregation `group-token-mean`"
                    )
                })?;
                if group_tokens > 0.0 { over(groups) / group_tokens } else { 0.0 }
            }
            Self::GroupSeqMean => {
                let group_sequences = group.sequences.ok_or_else(|| {
                    fault!(
                        "column `group_sequences` is missing; {needed_by} needs it",
                        needed_by = "aggregation `group-seq-mean`"
                    )
                })?;
                if length > 0 && group_sequences > 0.0 {
                    over(groups) / (group_sequences * length as f64)
                } else {
                    0.0
                }
            }
            Self::TokenSum => dp_size,
        })
    }
}

/// Counts of one trajectory's whole group in the optimizer batch; `None`: not counted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GroupCounts {
    /// Unmasked tokens.
    pub tokens: Option<f64>,
    /// Trajectories with at least one unmasked token.
    pub sequences: Option<f64>,
}

choice! {
    /// How groups that the filter dropped count in the denominators of the loss.
    pub enum ZeroGroups {
        /// Left out: means are over the trained groups only (verl).
        Drop = "drop",
        /// Counted: means are over trained and dropped groups, as if dropped groups were trained on with
        /// advantage 0 (TRL).
        Mask = "mask",
    }
}

/// Counts over the whole optimizer batch, all micro-batches and all ranks: the divisors of means.
///
/// They are inputs of the objective and never computed from a micro-batch, so every cut of the batch gives
/// the same coefficients. They are real numbers because other packages divide by estimates (TRL: tokens of
/// the generation batch times the share of the update).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Normalisers {
    /// Unmasked tokens.
    pub tokens: f64,
    /// Trajectories with at least one unmasked token.
    pub sequences: f64,
    /// Groups with at least one unmasked token.
    pub groups: f64,
    /// Data-parallel ranks whose gradients are averaged afterwards; loss and derivatives are multiplied by
    /// it. 1: one machine.
    pub dp_size: f64,
}

impl Normalisers {
    /// Counts a whole optimizer batch on one machine, from its mask `[B][T]` and the number of trajectories
    /// in each group, in order \[P\]. Also returns the unmasked tokens of each trajectory's group \[B\], the
    /// column of `group-token-mean`.
    ///
    /// Fully masked trajectories and groups are not counted; an empty batch counts 0 everywhere.
    ///
    /// # Differs from
    /// verl's `global_batch_size` and TRL's batch size, which also count fully masked trajectories. Set the
    /// fields to get their numbers.
    pub fn of(mask: &Ragged<bool>, group_sizes: &[usize]) -> Result<(Self, Vec<f64>), ObjectiveError> {
        Self::weighted(mask, group_sizes, None)
    }

    /// The same, but each group counts with a weight \[P\], as its trajectories' losses do
    /// ([`Columns::sequence_weight`](super::Columns::sequence_weight)). A mean is then `Σ w·l / Σ w`. It does
    /// not change if all weights are multiplied by a number, and has the same bits as without weights if all
    /// are 1. The tokens of each trajectory's group are returned unweighted.
    ///
    /// ```
    /// use tamis_core::objective::Normalisers;
    /// use tamis_core::ragged::Ragged;
    /// let mask = Ragged::from_rows([vec![true], vec![true, true]]);
    /// let (counts, _) = Normalisers::weighted(&mask, &[1, 1], Some(&[4.0, 1.0]))?;
    /// assert_eq!((counts.tokens, counts.sequences, counts.groups), (6.0, 5.0, 5.0));
    /// # Ok::<(), tamis_core::objective::ObjectiveError>(())
    /// ```
    ///
    /// # Errors
    /// The groups do not hold as many trajectories as the mask, or there are not as many weights as groups.
    pub fn weighted(
        mask: &Ragged<bool>,
        group_sizes: &[usize],
        weights: Option<&[f64]>,
    ) -> Result<(Self, Vec<f64>), ObjectiveError> {
        let expected: usize = group_sizes.iter().sum();
        check_length("mask", expected, mask.num_rows())?;
        if let Some(weights) = weights {
            check_length("weights", group_sizes.len(), weights.len())?;
        }
        let mut normalisers = Self { tokens: 0.0, sequences: 0.0, groups: 0.0, dp_size: 1.0 };
        let mut group_tokens = Vec::with_capacity(expected);
        let mut rows = mask.rows();
        for (place, &size) in group_sizes.iter().enumerate() {
            let weight = weights.map_or(1.0, |weights| weights[place]);
            let (mut tokens_g, mut sequences_g) = (0, 0);
            for mask_t in rows.by_ref().take(size) {
                let tokens = mask_t.iter().filter(|&&on| on).count();
                sequences_g += usize::from(tokens > 0);
                tokens_g += tokens;
            }
            normalisers.sequences += weight * sequences_g as f64;
            normalisers.groups += weight * f64::from(u8::from(tokens_g > 0));
            normalisers.tokens += weight * tokens_g as f64;
            group_tokens.resize(group_tokens.len() + size, tokens_g as f64);
        }
        Ok((normalisers, group_tokens))
    }

    /// The denominators if groups were dropped: `dropped` counts those of this optimizer batch, with the
    /// masks that they would have had.
    #[must_use]
    pub fn with_dropped(self, dropped: Self, zero_groups: ZeroGroups) -> Self {
        match zero_groups {
            ZeroGroups::Drop => self,
            ZeroGroups::Mask => Self { dp_size: self.dp_size, ..self.merge(dropped) },
        }
    }

    /// Trajectories with an unmasked token in each trajectory's group \[B\], the column of `group-seq-mean`.
    ///
    /// # Errors
    /// The groups do not hold as many trajectories as the mask.
    pub fn group_sequences(mask: &Ragged<bool>, group_sizes: &[usize]) -> Result<Vec<f64>, ObjectiveError> {
        let expected: usize = group_sizes.iter().sum();
        check_length("mask", expected, mask.num_rows())?;
        let mut rows = mask.rows();
        let mut counts = Vec::with_capacity(expected);
        for &size in group_sizes {
            let trained = rows.by_ref().take(size).filter(|mask_t| mask_t.contains(&true)).count();
            counts.resize(counts.len() + size, trained as f64);
        }
        Ok(counts)
    }

    /// Sum of the counts of two ranks, including `dp_size`.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            sequences: self.sequences + other.sequences,
            groups: self.groups + other.groups,
            dp_size: self.dp_size + other.dp_size,
        }
    }
}
