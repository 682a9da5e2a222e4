//! Advantages: how much better than expected a trajectory, a turn or a token did.
//!
//! Rewards `[P][G]` come in as one row per group (NaN = unscored), with further columns if an estimator needs
//! them ([`AdvantageBatch`]). An [`AdvantageEstimator`], selected by [`Advantage`], turns them into
//! [`Advantages`], with returns for a critic and the state for the next step ([`Estimate`]). [`shaping`] then
//! changes finished advantages, and the [objective](crate::objective) takes them as a column. One file per
//! estimator, named by the field's term.

pub mod shaping;

mod batch;
mod batch_mean;
mod beta;
mod bi_level_gae;
mod bnpo;
mod bnpo_running;
mod column;
mod cpo;
mod credit;
mod dr_grpo;
mod error;
mod estimator;
mod gae;
mod gdpo;
mod generated;
mod gpg;
mod grpo;
mod grpo_passk;
mod kind;
mod normalize_then_sum;
mod on_policy_distillation;
mod opo;
mod optimal_token_baseline;
mod per_group;
mod python;
mod reinforce_plus_plus;
mod reinforce_plus_plus_baseline;
mod remax;
mod rloo;
mod scale;
mod singleton;
pub(crate) mod statistics;
mod statistics_unit;
mod teacher_gain;
mod tir_optimal_token_baseline;
mod whitening;

use crate::entry::Entry;

pub use batch::{AdvantageBatch, Component};
pub use batch_mean::BatchMean;
pub use bi_level_gae::BiLevelGae;
pub use bnpo::Bnpo;
pub use bnpo_running::BnpoRunning;
pub use column::Column;
pub use cpo::{Cpo, CpoWrap};
pub use credit::MaskedRewards;
pub use dr_grpo::DrGrpo;
pub use error::{AdvantageError, Result};
pub use estimator::{AdvantageEstimator, AdvantageState, Advantages, Estimate, RecentStep};
pub use gae::Gae;
pub use gdpo::Gdpo;
pub use generated::{Generated, GeneratedStatistics};
pub use gpg::{Gpg, GpgAlpha};
pub use grpo::Grpo;
pub use grpo_passk::GrpoPassk;
pub use kind::Advantage;
pub use normalize_then_sum::NormalizeThenSum;
pub use on_policy_distillation::OnPolicyDistillation;
pub use opo::Opo;
pub use optimal_token_baseline::{OptimalTokenBaseline, Tail};
pub use python::PythonAdvantage;
pub use reinforce_plus_plus::ReinforcePlusPlus;
pub use reinforce_plus_plus_baseline::ReinforcePlusPlusBaseline;
pub use remax::Remax;
pub use rloo::Rloo;
pub use scale::Scale;
pub use singleton::SingletonAdvantage;
pub use statistics_unit::StatisticsUnit;
pub use teacher_gain::TeacherGain;
pub use tir_optimal_token_baseline::TirOptimalTokenBaseline;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[
    grpo::ENTRY,
    dr_grpo::ENTRY,
    grpo_passk::ENTRY,
    rloo::ENTRY,
    reinforce_plus_plus::ENTRY,
    reinforce_plus_plus_baseline::ENTRY,
    batch_mean::ENTRY,
    remax::ENTRY,
    opo::ENTRY,
    gpg::ENTRY,
    gdpo::ENTRY,
    normalize_then_sum::ENTRY,
    optimal_token_baseline::ENTRY,
    tir_optimal_token_baseline::ENTRY,
    gae::ENTRY,
    bi_level_gae::ENTRY,
    bnpo::ENTRY,
    bnpo_running::ENTRY,
    cpo::ENTRY,
    on_policy_distillation::ENTRY,
    python::ENTRY,
    shaping::clip_advantage::ENTRY,
    shaping::keep_ratio::NEG_ENTRY,
    shaping::keep_ratio::POS_ENTRY,
    shaping::filter_loss_scaling::ENTRY,
    shaping::soft_reweight::ENTRY,
    shaping::length_weight::ENTRY,
    shaping::add_distillation::ENTRY,
];
