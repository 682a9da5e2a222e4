//! Policy losses: one file each, all run block by block over a trajectory (`kernel.rs`).

#![expect(
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    reason = "loops over tokens vectorise only where their bodies are inlined and do not branch"
)]

mod cispo;
mod clip;
mod clip_cov;
mod decoupled;
mod dppo;
mod dro;
mod found;
mod geo_mean;
mod gspo;
pub(crate) mod kernel;
mod kl_cov;
mod luspo;
mod ratios;
mod reinforce;
mod sapo;
mod vespo;

use serde::{Deserialize, Serialize};

pub use cispo::{Cispo, CispoBound};
pub use clip::{Clip, ClippedToken};
pub use clip_cov::ClipCov;
pub use decoupled::Decoupled;
pub use dppo::Dppo;
pub use dro::Dro;
pub use geo_mean::GeoMean;
pub use gspo::{Gspo, GspoForm};
pub use kl_cov::KlCov;
pub use sapo::Sapo;
pub use vespo::Vespo;

use super::accumulator::SequenceSums;
use super::columns::{Real, Row, RowAdvantage};
use super::{Aggregation, ObjectiveError};
use crate::entry::Entry;
use kernel::{Kernel as _, Lanes, Pass, Scratch, blocks, differences, run};

/// The catalogue's entries.
pub(super) const ENTRIES: &[Entry] = &[
    clip::ENTRY,
    gspo::ENTRY,
    luspo::ENTRY,
    decoupled::ENTRY,
    reinforce::ENTRIES[0],
    reinforce::ENTRIES[1],
    clip_cov::ENTRY,
    kl_cov::ENTRY,
    geo_mean::ENTRY,
    cispo::ENTRY,
    sapo::ENTRY,
    dppo::ENTRIES[0],
    dppo::ENTRIES[1],
    dro::ENTRY,
    vespo::ENTRY,
];

/// What the importance ratio is a ratio of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Importance {
    /// Each token's probability: `r_t = exp(d_t)`.
    #[default]
    Token,
    /// The trajectory's, per token: `r = exp(mean_t d_t)` for all of its tokens, and every token moves it. GSPO, arXiv 2507.18071 eq. 5
    /// (TRL `importance_sampling_level=sequence`).
    Sequence,
    /// The same value as `sequence`, but each token answers for its own loss alone: GSPO-token, eq. 13 (TRL `sequence_token`; verl's
    /// `gspo`).
    SequenceToken,
}

impl Importance {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Sequence => "sequence",
            Self::SequenceToken => "sequence_token",
        }
    }
}

/// The policy loss of a token, before aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PolicyLoss {
    /// Clipped ratio (PPO, GRPO, DAPO).
    Clip(Clip),
    /// Clipped ratio of the whole trajectory.
    Gspo(Gspo),
    /// Clipped ratio of the whole trajectory times its length.
    Luspo(Clip),
    /// Clipped ratio to the proximal policy, weighted by its ratio to the behaviour policy.
    Decoupled(Decoupled),
    /// Plain policy gradient.
    Reinforce,
    /// Plain policy gradient under the name that GPG gives it.
    Gpg,
    /// Clipped ratio without some tokens of high covariance.
    ClipCov(ClipCov),
    /// Plain ratio with a penalty on tokens of high covariance.
    KlCov(KlCov),
    /// Geometric mean of clipped ratios (GMPO).
    GeoMean(GeoMean),
    /// Policy gradient weighted by the clipped ratio.
    Cispo(Cispo),
    /// Soft gate in place of the clip.
    Sapo(Sapo),
    /// Policy gradient within a bound on the total variation of the token.
    DppoTv(Dppo),
    /// Policy gradient within a bound on the divergence of the token.
    DppoKl(Dppo),
    /// Policy gradient with a quadratic pull towards the old policy.
    Dro(Dro),
    /// Policy gradient with a smooth weight of the trajectory's ratio.
    Vespo(Vespo),
}

/// A measure that one loss has and others have not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnMetric {
    /// Token mean of the sums.
    PerToken(&'static str),
    /// Mean over trajectories.
    PerSequence(&'static str),
    /// The share above the bound with positive advantage, under another name.
    HighShare(&'static str),
}

impl PolicyLoss {
    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Clip(_) => "clip",
            Self::Gspo(_) => "gspo",
            Self::Luspo(_) => "luspo",
            Self::Decoupled(_) => "decoupled",
            Self::Reinforce => "reinforce",
            Self::Gpg => "gpg",
            Self::ClipCov(_) => "clip_cov",
            Self::KlCov(_) => "kl_cov",
            Self::GeoMean(_) => "geo_mean",
            Self::Cispo(_) => "cispo",
            Self::Sapo(_) => "sapo",
            Self::DppoTv(_) => "dppo_tv",
            Self::DppoKl(_) => "dppo_kl",
            Self::Dro(_) => "dro",
            Self::Vespo(_) => "vespo",
        }
    }

    /// Whether its ratio may be the trajectory's by a setting. The others have no ratio, or one whose level is part of what they are.
    pub fn has_importance_levels(&self) -> bool {
        matches!(
            self,
            Self::Clip(_)
                | Self::Luspo(_)
                | Self::Decoupled(_)
                | Self::Cispo(_)
                | Self::Sapo(_)
                | Self::Vespo(_)
        )
    }

    /// The level that it works on.
    pub(super) fn importance(&self, setting: Importance) -> Importance {
        match self {
            Self::Gspo(gspo) => gspo.importance(),
            // The weight of the trajectory is its own matter; the setting reaches the bias-corrected KL alone.
            Self::Vespo(_) => Importance::Token,
            _ => setting,
        }
    }

    /// Whether the settings are in range and go together.
    pub(super) fn check(
        &self,
        importance: Importance,
        aggregation: &Aggregation,
    ) -> Result<(), ObjectiveError> {
        if importance != Importance::Token && !self.has_importance_levels() {
            return Err(ObjectiveError::Importance { loss: self.name(), importance: importance.name() });
        }
        match self {
            Self::Clip(clip) => clip.check(),
            Self::Luspo(clip) => {
                if !matches!(aggregation, Aggregation::SeqMeanTokenSum) {
                    return Err(ObjectiveError::Aggregation {
                        loss: self.name(),
                        aggregation: aggregation.name(),
                        expected: "seq-mean-token-sum",
                    });
                }
                clip.check()
            }
            Self::Gspo(gspo) => gspo.check(),
            Self::Decoupled(decoupled) => decoupled.check(),
            Self::Reinforce | Self::Gpg => Ok(()),
            Self::ClipCov(loss) => loss.check(),
            Self::KlCov(loss) => loss.check(),
            Self::GeoMean(loss) => loss.check(),
            Self::Cispo(loss) => loss.check(),
            Self::Sapo(loss) => loss.check(),
            Self::DppoTv(loss) | Self::DppoKl(loss) => loss.check(),
            Self::Dro(loss) => loss.check(),
            Self::Vespo(loss) => loss.check(),
        }
    }

    /// Bounds on the log-ratio inside its exponential.
    pub(super) fn limits(&self) -> (f64, f64) {
        match self {
            Self::Clip(clip) | Self::Luspo(clip) | Self::Decoupled(Decoupled { clip, .. }) => clip.limits(),
            Self::Gspo(gspo) => gspo.kernel().limits(),
            Self::Cispo(loss) => loss.limits(),
            Self::Sapo(loss) => loss.limits(),
            Self::DppoTv(loss) | Self::DppoKl(loss) => dppo::DppoTv(*loss).limits(),
            _ => (f64::NEG_INFINITY, f64::INFINITY),
        }
    }

    /// What it measures beside the metrics of all.
    pub(super) fn own_metric(&self) -> Option<OwnMetric> {
        match self {
            Self::KlCov(_) => Some(OwnMetric::PerToken("actor/ppo_kl_abs")),
            Self::Vespo(_) => Some(OwnMetric::PerSequence("vespo/phi_seq_mean")),
            Self::Cispo(_) => Some(OwnMetric::HighShare("cispo_clip_ratio")),
            _ => None,
        }
    }

    /// Weighted policy loss of a trajectory with at least one unmasked token; its derivatives are written, not added.
    pub(super) fn sequence<T: Real>(
        &self,
        row: &Row<'_, T>,
        pass: &Pass,
        dlogprob_t: &mut [T],
        sums: &mut SequenceSums,
        scratch: &mut Scratch,
    ) {
        // A trajectory's ratio is computed once, and its bounds may be narrow: in double precision.
        let per_token = pass.importance == Importance::Token;
        match self {
            Self::Clip(clip) | Self::Luspo(clip) if per_token => {
                run(clip.kernel::<T>(), row, pass, dlogprob_t, sums, scratch);
            }
            Self::Clip(clip) | Self::Luspo(clip) => {
                run(clip.kernel::<f64>(), row, pass, dlogprob_t, sums, scratch);
            }
            Self::Gspo(gspo) => run(gspo.kernel(), row, pass, dlogprob_t, sums, scratch),
            Self::Decoupled(loss) => {
                let pass = Pass { proximal_cap: Some(loss.weight_cap.unwrap_or(f64::INFINITY)), ..*pass };
                if per_token {
                    run(loss.clip.kernel::<T>(), row, &pass, dlogprob_t, sums, scratch);
                } else {
                    run(loss.clip.kernel::<f64>(), row, &pass, dlogprob_t, sums, scratch);
                }
            }
            Self::Reinforce | Self::Gpg => {
                run(reinforce::ReinforceKernel::<T>::default(), row, pass, dlogprob_t, sums, scratch);
            }
            Self::ClipCov(loss) => run(loss.kernel(), row, pass, dlogprob_t, sums, scratch),
            Self::KlCov(loss) => {
                run(*loss, row, pass, dlogprob_t, sums, scratch);
                sums.own = distance(row, pass.tokens, scratch);
            }
            Self::GeoMean(loss) => loss.run(row, pass, dlogprob_t, sums),
            Self::Cispo(loss) if per_token => {
                run(loss.kernel::<T>(), row, pass, dlogprob_t, sums, scratch);
            }
            Self::Cispo(loss) => run(loss.kernel::<f64>(), row, pass, dlogprob_t, sums, scratch),
            Self::Sapo(loss) => run(*loss, row, pass, dlogprob_t, sums, scratch),
            Self::DppoTv(loss) => run(dppo::DppoTv(*loss), row, pass, dlogprob_t, sums, scratch),
            Self::DppoKl(loss) => run(dppo::DppoKl(*loss), row, pass, dlogprob_t, sums, scratch),
            Self::Dro(loss) => run(*loss, row, pass, dlogprob_t, sums, scratch),
            Self::Vespo(loss) => {
                let kernel = loss.kernel(row);
                run(kernel, row, pass, dlogprob_t, sums, scratch);
                sums.own = match row.advantage {
                    RowAdvantage::Same(advantage) => kernel.phi(advantage),
                    RowAdvantage::PerToken(column) => {
                        let unmasked = column.iter().zip(row.mask).filter(|(_, on)| **on);
                        let negative = unmasked.filter(|(advantage, _)| **advantage < 0.0).count();
                        let share = negative as f64 / pass.tokens as f64;
                        if negative == pass.tokens {
                            kernel.negative
                        } else {
                            (1.0 - share) * kernel.positive + share * kernel.negative
                        }
                    }
                };
            }
        }
    }
}

/// `Σ_t |d_t|`.
fn distance<T: Real>(row: &Row<'_, T>, tokens: usize, scratch: &mut Scratch) -> f64 {
    let old = row.old.unwrap_or(row.logprob);
    let mut sum = Lanes::ZERO;
    for block in blocks(row.mask.len()) {
        let mask = (tokens < row.mask.len()).then(|| &row.mask[block.clone()]);
        let log_ratio = &mut scratch.double.log_ratio[..block.len()];
        differences(mask, &row.logprob[block.clone()], &old[block], log_ratio);
        for value in &mut *log_ratio {
            *value = value.abs();
        }
        sum.add(log_ratio);
    }
    sum.total()
}
