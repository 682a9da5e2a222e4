//! Aggregation: how per-token losses become one number, and what they are divided by.
//!
//! Every aggregation here is `loss = Σ_i w_i Σ_t m_it l_it` with one weight `w_i` per trajectory that depends
//! on nothing but its own length, its group's size and the [`Normalisers`] of the whole optimizer batch. So
//! the derivative of a token is the same bits however the batch is cut into micro-batches.

use serde::{Deserialize, Serialize};

use super::ObjectiveError;
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;

/// The catalogue's entries.
pub(super) const ENTRIES: [Entry; 7] = {
    const fn entry(
        name: &'static str,
        meaning: &'static str,
        formula: &'static str,
        source: &'static str,
        known_as: &'static [(&'static str, &'static str)],
        differences: &'static [&'static str],
    ) -> Entry {
        Entry {
            name,
            family: Family::Aggregation,
            meaning,
            formula,
            source,
            defaults: &[],
            degenerate: &["nothing to train on: every weight is 0, where verl's loss is NaN"],
            known_as,
            differences,
        }
    }
    [
        entry(
            "token-mean",
            "every token of the optimizer batch weighs the same",
            "sum_it m l / sum_it m",
            "Yu et al., DAPO, arXiv 2503.14476, as released",
            &[
                ("verl", "loss_agg_mode=token-mean"),
                ("TRL", "loss_type=dapo|cispo|vespo (all ranks), bnpo (one micro-batch)"),
            ],
            &[
                "TRL's dapo divides by the tokens of the whole generation batch, truncated completions left out",
            ],
        ),
        entry(
            "seq-mean-token-sum",
            "a trajectory weighs as many times as it has tokens",
            "(1/B) sum_i sum_t m l",
            "verl; LUSPO, arXiv 2602.05261",
            &[("verl", "loss_agg_mode=seq-mean-token-sum"), ("TRL", "loss_type=luspo")],
            &["verl and TRL count fully masked trajectories in B; here B is an input"],
        ),
        entry(
            "seq-mean-token-mean",
            "every trajectory weighs the same, its tokens share",
            "(1/B) sum_i (1/|o_i|) sum_t m l",
            "Shao et al., DeepSeekMath, arXiv 2402.03300, eq. 3",
            &[("verl", "loss_agg_mode=seq-mean-token-mean"), ("TRL", "loss_type=grpo|sapo")],
            &["verl adds 1e-8 to the lengths (`length_epsilon: 1e-8`)"],
        ),
        entry(
            "seq-mean-token-sum-norm",
            "token sums over a constant, the response limit",
            "(1/B) sum_i (1/L) sum_t m l",
            "Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783, section 3.2",
            &[
                ("verl", "loss_agg_mode=seq-mean-token-sum-norm with loss_scale_factor"),
                ("TRL", "loss_type=dr_grpo"),
            ],
            &[
                "verl takes the padded width of the micro-batch where no scale is given; here the scale is the response limit",
            ],
        ),
        entry(
            "group-token-mean",
            "token mean within each group, then the mean over groups",
            "(1/P) sum_g (sum_{i in g} sum_t m l) / (sum_{i in g} |o_i|)",
            "Yu et al., DAPO, arXiv 2503.14476, eq. 8",
            &[],
            &["DAPO as its paper writes it; its code takes `token-mean`"],
        ),
        entry(
            "group-seq-mean",
            "trajectory mean within each group, then the mean over groups: every prompt weighs the same",
            "(1/P) sum_g (1/|g|) sum_{i in g} (1/|o_i|) sum_t m l",
            "the expectation over prompts outside the mean over a group's outputs, Shao et al., arXiv 2402.03300, eq. 3",
            &[],
            &["equal to seq-mean-token-mean where all groups have as many trained trajectories"],
        ),
        entry("token-sum", "undivided", "sum_it m l", "verl", &[("verl", "loss_agg_mode=token-sum")], &[]),
    ]
};

/// How per-token losses `l_it` under a mask `m_it` become one number. B: trajectories, |o_i| = Σ_t m_it, P:
/// groups.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Aggregation {
    /// `Σ_it m l / Σ_it m`: every token of the optimizer batch weighs the same. DAPO as released (verl
    /// `token-mean`; TRL `dapo` over all ranks, TRL `bnpo` over one micro-batch).
    TokenMean,
    /// `(1/B) Σ_i Σ_t m l`: a trajectory weighs as many times as it has tokens (verl `seq-mean-token-sum`).
    SeqMeanTokenSum,
    /// `(1/B) Σ_i (1/|o_i|) Σ_t m l`: every trajectory weighs the same, its tokens share. GRPO, arXiv
    /// 2402.03300 eq. 3 (verl `seq-mean-token-mean`, TRL `grpo`).
    SeqMeanTokenMean {
        /// Added to |o_i|; 0 is the formula, verl adds 1e-8.
        #[serde(default)]
        length_epsilon: f64,
    },
    /// `(1/B) Σ_i (1/L) Σ_t m l` with a constant L, the response limit. Dr. GRPO, arXiv 2503.20783 (verl
    /// `seq-mean-token-sum-norm`, TRL `dr_grpo`).
    SeqMeanTokenSumNorm {
        /// L, in tokens; above 0.
        scale: f64,
    },
    /// `(1/P) Σ_g (Σ_{i in g} Σ_t m l) / (Σ_{i in g} |o_i|)`: token mean within each group, then the mean
    /// over groups. DAPO as its paper writes it, arXiv 2503.14476 eq. 8.
    #[serde(rename = "group-token-mean")]
    GroupMeanTokenMean,
    /// `(1/P) Σ_g (1/|g|) Σ_{i in g} (1/|o_i|) Σ_t m l`: trajectory mean within each group, then the mean
    /// over groups, so that every prompt weighs the same however many of its trajectories are trained on.
    #[serde(rename = "group-seq-mean")]
    GroupMeanSeqMean,
    /// `Σ_it m l`, undivided (verl `token-sum`).
    TokenSum,
}

impl Aggregation {
    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TokenMean => "token-mean",
            Self::SeqMeanTokenSum => "seq-mean-token-sum",
            Self::SeqMeanTokenMean { .. } => "seq-mean-token-mean",
            Self::SeqMeanTokenSumNorm { .. } => "seq-mean-token-sum-norm",
            Self::GroupMeanTokenMean => "group-token-mean",
            Self::GroupMeanSeqMean => "group-seq-mean",
            Self::TokenSum => "token-sum",
        }
    }

    /// Whether the settings are in range.
    pub(crate) fn check(&self) -> Result<(), ObjectiveError> {
        match *self {
            Self::SeqMeanTokenMean { length_epsilon }
                if !(length_epsilon >= 0.0 && length_epsilon.is_finite()) =>
            {
                Err(ObjectiveError::Setting {
                    setting: "length_epsilon",
                    value: length_epsilon,
                    expected: "a finite number of at least 0",
                })
            }
            Self::SeqMeanTokenSumNorm { scale } if !(scale > 0.0 && scale.is_finite()) => {
                Err(ObjectiveError::Setting {
                    setting: "scale",
                    value: scale,
                    expected: "the response limit in tokens, above 0",
                })
            }
            _ => Ok(()),
        }
    }

    /// `w_i`, times the number of data-parallel ranks: what each unmasked token's loss is multiplied by.
    ///
    /// 0 where the denominator is 0 (nothing is trained on), where verl gives NaN.
    ///
    /// # Errors
    /// [`ObjectiveError::Missing`] where the group's counts are needed and not given.
    pub fn weight(
        &self,
        length: usize,
        group: GroupCounts,
        normalisers: &Normalisers,
    ) -> Result<f64, ObjectiveError> {
        let Normalisers { tokens, sequences, groups, dp_size } = *normalisers;
        let over = |denominator: f64| if denominator > 0.0 { dp_size / denominator } else { 0.0 };
        Ok(match *self {
            Self::TokenMean => over(tokens),
            Self::SeqMeanTokenSum => over(sequences),
            Self::SeqMeanTokenMean { length_epsilon } => {
                if length == 0 {
                    0.0
                } else {
                    over(sequences) / (length as f64 + length_epsilon)
                }
            }
            Self::SeqMeanTokenSumNorm { scale } => over(sequences) / scale,
            Self::GroupMeanTokenMean => {
                let group_tokens = group.tokens.ok_or(ObjectiveError::Missing {
                    column: "group_tokens",
                    needed_by: "aggregation `group-token-mean`",
                })?;
                if group_tokens > 0.0 { over(groups) / group_tokens } else { 0.0 }
            }
            Self::GroupMeanSeqMean => {
                let group_sequences = group.sequences.ok_or(ObjectiveError::Missing {
                    column: "group_sequences",
                    needed_by: "aggregation `group-seq-mean`",
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

/// Whether groups that a filter dropped stay in the denominators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroGroups {
    /// Means are over what is trained on: dropping leaves the size of the gradient as it is (verl's filtered
    /// batch).
    #[default]
    Drop,
    /// Means are over what is trained on and what was dropped, as if the dropped had been trained on with
    /// advantage 0: dropping saves the work and changes no gradient (TRL, which drops nothing).
    Mask,
}

/// Counts over the whole optimizer batch, all micro-batches and all ranks: what means divide by.
///
/// Inputs of the objective, never computed from a micro-batch, so that every cut of the batch gives the same
/// coefficients. They are real numbers because peers divide by estimates (TRL's tokens of the generation
/// batch times the share of the update).
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
    /// Counts a whole optimizer batch on one machine: its mask `[B][T]` and how many trajectories each group
    /// has, in order \[P\]. Also returns the unmasked tokens of each trajectory's group \[B\], the column of
    /// `group-token-mean`.
    ///
    /// Fully masked trajectories and groups are not counted; an empty batch counts 0 everywhere.
    ///
    /// # Differs from
    /// verl's `global_batch_size` and TRL's batch size count fully masked trajectories too; whoever wants
    /// their numbers sets the fields.
    pub fn of(mask: &Ragged<bool>, group_sizes: &[usize]) -> Result<(Self, Vec<f64>), ObjectiveError> {
        let expected: usize = group_sizes.iter().sum();
        if expected != mask.num_rows() {
            return Err(ObjectiveError::Length { column: "mask", expected, actual: mask.num_rows() });
        }
        let mut normalisers = Self { tokens: 0.0, sequences: 0.0, groups: 0.0, dp_size: 1.0 };
        let mut group_tokens = Vec::with_capacity(expected);
        let mut rows = mask.rows();
        for &size in group_sizes {
            let mut tokens_g = 0;
            for mask_t in rows.by_ref().take(size) {
                let tokens = mask_t.iter().filter(|&&on| on).count();
                normalisers.sequences += f64::from(u8::from(tokens > 0));
                tokens_g += tokens;
            }
            normalisers.groups += f64::from(u8::from(tokens_g > 0));
            normalisers.tokens += tokens_g as f64;
            group_tokens.resize(group_tokens.len() + size, tokens_g as f64);
        }
        Ok((normalisers, group_tokens))
    }

    /// The denominators where groups were dropped: `dropped` counts those that belong to this optimizer
    /// batch, with the masks that they would have had.
    #[must_use]
    pub fn with_dropped(self, dropped: Self, zero_groups: ZeroGroups) -> Self {
        match zero_groups {
            ZeroGroups::Drop => self,
            ZeroGroups::Mask => Self { dp_size: self.dp_size, ..self.merged(dropped) },
        }
    }

    /// Trajectories with an unmasked token in each trajectory's group \[B\], the column of `group-seq-mean`.
    ///
    /// # Errors
    /// [`ObjectiveError::Length`] where the groups do not hold as many trajectories as the mask.
    pub fn group_sequences(mask: &Ragged<bool>, group_sizes: &[usize]) -> Result<Vec<f64>, ObjectiveError> {
        let expected: usize = group_sizes.iter().sum();
        if expected != mask.num_rows() {
            return Err(ObjectiveError::Length { column: "mask", expected, actual: mask.num_rows() });
        }
        let mut rows = mask.rows();
        let mut counts = Vec::with_capacity(expected);
        for &size in group_sizes {
            let trained = rows.by_ref().take(size).filter(|mask_t| mask_t.contains(&true)).count();
            counts.resize(counts.len() + size, trained as f64);
        }
        Ok(counts)
    }

    /// Counts of two ranks together; `dp_size` adds up.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            sequences: self.sequences + other.sequences,
            groups: self.groups + other.groups,
            dp_size: self.dp_size + other.dp_size,
        }
    }
}
