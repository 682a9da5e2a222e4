//! Aggregation: how per-token losses become one number, and what they are divided by.
//!
//! Every aggregation here is `loss = Σ_i w_i Σ_t m_it l_it` with one weight `w_i` per trajectory that depends on nothing but its own
//! length, its group's size and the [`Normalisers`] of the whole optimizer batch. So the derivative of a token is the same
//! bits however the batch is cut into micro-batches.

use serde::{Deserialize, Serialize};

use super::ObjectiveError;
use crate::ragged::Ragged;

/// How per-token losses `l_it` under a mask `m_it` become one number. B: trajectories, |o_i| = Σ_t m_it, P: groups.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Aggregation {
    /// `Σ_it m l / Σ_it m`: every token of the optimizer batch weighs the same. DAPO as released (verl `token-mean`; TRL `dapo` over
    /// all ranks, TRL `bnpo` over one micro-batch).
    TokenMean,
    /// `(1/B) Σ_i Σ_t m l`: a trajectory weighs as many times as it has tokens (verl `seq-mean-token-sum`).
    SeqMeanTokenSum,
    /// `(1/B) Σ_i (1/|o_i|) Σ_t m l`: every trajectory weighs the same, its tokens share. GRPO, arXiv 2402.03300 eq. 3 (verl
    /// `seq-mean-token-mean`, TRL `grpo`).
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
    /// `(1/P) Σ_g (Σ_{i in g} Σ_t m l) / (Σ_{i in g} |o_i|)`: token mean within each group, then the mean over groups. DAPO as its
    /// paper writes it, arXiv 2503.14476 eq. 8.
    #[serde(rename = "group-token-mean")]
    GroupMeanTokenMean,
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
    /// [`ObjectiveError::Missing`] where the group's tokens are needed and not given.
    pub fn weight(
        &self,
        length: usize,
        group_tokens: Option<f64>,
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
                let group_tokens = group_tokens.ok_or(ObjectiveError::Missing {
                    column: "group_tokens",
                    needed_by: "aggregation `group-token-mean`",
                })?;
                if group_tokens > 0.0 { over(groups) / group_tokens } else { 0.0 }
            }
            Self::TokenSum => dp_size,
        })
    }
}

/// Counts over the whole optimizer batch, all micro-batches and all ranks: what means divide by.
///
/// Inputs of the objective, never computed from a micro-batch, so that every cut of the batch gives the same coefficients. They
/// are real numbers because peers divide by estimates (TRL's tokens of the generation batch times the share of the update).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Normalisers {
    /// Unmasked tokens.
    pub tokens: f64,
    /// Trajectories with at least one unmasked token.
    pub sequences: f64,
    /// Groups with at least one unmasked token.
    pub groups: f64,
    /// Data-parallel ranks whose gradients are averaged afterwards; loss and derivatives are multiplied by it. 1: one machine.
    pub dp_size: f64,
}

impl Normalisers {
    /// Counts a whole optimizer batch on one machine: its mask `[B][T]` and how many trajectories each group has, in order \[P\]. Also
    /// returns the unmasked tokens of each trajectory's group \[B\], the column of `group-token-mean`.
    ///
    /// Fully masked trajectories and groups are not counted; an empty batch counts 0 everywhere.
    ///
    /// # Differs from
    /// verl's `global_batch_size` and TRL's batch size count fully masked trajectories too; whoever wants their numbers sets the
    /// fields.
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
