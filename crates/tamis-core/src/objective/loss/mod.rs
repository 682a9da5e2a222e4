//! Policy losses. Each is a formula for one token in a file of its own: the loss and its derivative.
//!
//! A new loss is a file with its settings (named as the configuration's keys), its `Loss` and its catalogue
//! entry, and one line in the list below.

mod cispo;
mod clip;
mod clip_cov;
mod decoupled;
mod dppo;
mod dro;
mod geo_mean;
mod gspo;
mod kl_cov;
mod luspo;
mod reinforce;
mod sapo;
pub(crate) mod trajectory;
mod vespo;

use serde::{Deserialize, Serialize};

pub use cispo::{Cispo, CispoBound};
pub use clip::Clip;
pub use clip_cov::ClipCov;
pub use decoupled::Decoupled;
pub use dppo::{DppoKl, DppoTv};
pub use dro::Dro;
pub use geo_mean::GeoMean;
pub use gspo::{Gspo, GspoForm};
pub use kl_cov::KlCov;
pub use luspo::Luspo;
pub use reinforce::Reinforce;
pub use sapo::Sapo;
pub use trajectory::TokenLoss;
pub use vespo::Vespo;

use super::columns::Real;
use super::{Aggregation, ObjectiveError, in_range};
use crate::entry::Entry;
use trajectory::{Trajectory, UNLIMITED};

/// What a policy loss is: its settings' ranges, its formula, and in what it differs from most.
pub(super) trait Loss {
    /// Whether the settings are in range.
    fn check(&self) -> Result<(), ObjectiveError>;

    /// Writes the loss of a trajectory, its derivatives and its metrics, by a formula for one token
    /// ([`Trajectory::through_ratio`], [`Trajectory::through_logprob`]).
    fn sequence<T: Real>(&self, trajectory: &mut Trajectory<'_, T>)
    where
        Self: Sized;

    /// Whether its ratio may be the trajectory's by a setting.
    fn has_importance_levels(&self) -> bool {
        false
    }

    /// The level that it works on.
    fn importance(&self, setting: Importance) -> Importance {
        setting
    }

    /// Bounds on the log-ratio inside its exponential.
    fn log_ratio_limits(&self) -> (f64, f64) {
        UNLIMITED
    }

    /// The aggregation without which it is another loss.
    fn aggregation(&self) -> Option<Aggregation> {
        None
    }

    /// Whether tokens are chosen over the whole optimizer batch first.
    fn needs_selection(&self) -> bool {
        false
    }

    /// Whether the weights of a trajectory's tokens are multiplied into one weight.
    fn multiplies_weights(&self) -> bool {
        false
    }

    /// What it measures beside the metrics of all.
    fn own_metric(&self) -> Option<OwnMetric> {
        None
    }
}

macro_rules! policy_losses {
    ($($(#[$doc:meta])* $variant:ident($loss:ty) = $entry:expr,)*) => {
        /// The policy loss of a token, before aggregation.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        pub enum PolicyLoss {
            $($(#[$doc])* $variant($loss),)*
        }

        /// The catalogue's entries.
        pub(super) const ENTRIES: &[Entry] = &[$($entry,)*];

        impl PolicyLoss {
            /// The name in the configuration.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $entry.name,)*
                }
            }

            fn loss(&self) -> &dyn Loss {
                match self {
                    $(Self::$variant(loss) => loss,)*
                }
            }

            /// Writes the loss of a trajectory, its derivatives and its metrics.
            pub(super) fn sequence<T: Real>(&self, trajectory: &mut Trajectory<'_, T>) {
                match self {
                    $(Self::$variant(loss) => loss.sequence(trajectory),)*
                }
            }
        }
    };
}

policy_losses! {
    /// Clipped ratio (PPO, GRPO, DAPO).
    Clip(Clip) = clip::ENTRY,
    /// Clipped ratio of the whole trajectory.
    Gspo(Gspo) = gspo::ENTRY,
    /// Clipped ratio of the whole trajectory times its length.
    Luspo(Luspo) = luspo::ENTRY,
    /// Clipped ratio to the proximal policy, weighted by its ratio to the behaviour policy.
    Decoupled(Decoupled) = decoupled::ENTRY,
    /// Plain policy gradient.
    Reinforce(Reinforce) = reinforce::ENTRIES[0],
    /// Plain policy gradient under the name that GPG gives it.
    Gpg(Reinforce) = reinforce::ENTRIES[1],
    /// Clipped ratio without some tokens of high covariance.
    ClipCov(ClipCov) = clip_cov::ENTRY,
    /// Plain ratio with a penalty on tokens of high covariance.
    KlCov(KlCov) = kl_cov::ENTRY,
    /// Geometric mean of clipped ratios (GMPO).
    GeoMean(GeoMean) = geo_mean::ENTRY,
    /// Policy gradient weighted by the clipped ratio.
    Cispo(Cispo) = cispo::ENTRY,
    /// Soft gate in place of the clip.
    Sapo(Sapo) = sapo::ENTRY,
    /// Policy gradient within a bound on the total variation of the token.
    DppoTv(DppoTv) = dppo::ENTRIES[0],
    /// Policy gradient within a bound on the divergence of the token.
    DppoKl(DppoKl) = dppo::ENTRIES[1],
    /// Policy gradient with a quadratic pull towards the old policy.
    Dro(Dro) = dro::ENTRY,
    /// Policy gradient with a smooth weight of the trajectory's ratio.
    Vespo(Vespo) = vespo::ENTRY,
}

/// What the importance ratio is a ratio of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Importance {
    /// Each token's probability: `r_t = exp(d_t)`.
    #[default]
    Token,
    /// The trajectory's, per token: `r = exp(mean_t d_t)` for all of its tokens, and every token moves it.
    /// GSPO, arXiv 2507.18071 eq. 5 (TRL `importance_sampling_level=sequence`).
    Sequence,
    /// The same value as `sequence`, but each token answers for its own loss alone: GSPO-token, eq. 13 (TRL
    /// `sequence_token`; verl's `gspo`).
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
    /// Whether its ratio may be the trajectory's by a setting. The others have no ratio, or one whose level
    /// is part of what they are.
    pub fn has_importance_levels(&self) -> bool {
        self.loss().has_importance_levels()
    }

    /// Whether the weights of a trajectory's tokens are multiplied into one weight, so that a factor of them
    /// all is no factor of the loss.
    pub fn multiplies_weights(&self) -> bool {
        self.loss().multiplies_weights()
    }

    /// The level that it works on.
    pub(super) fn importance(&self, setting: Importance) -> Importance {
        self.loss().importance(setting)
    }

    /// Bounds on the log-ratio inside its exponential.
    pub(super) fn log_ratio_limits(&self) -> (f64, f64) {
        self.loss().log_ratio_limits()
    }

    pub(super) fn needs_selection(&self) -> bool {
        self.loss().needs_selection()
    }

    /// What it measures beside the metrics of all.
    pub(super) fn own_metric(&self) -> Option<OwnMetric> {
        self.loss().own_metric()
    }

    /// Whether the settings are in range and go together.
    pub(super) fn check(
        &self,
        importance: Importance,
        aggregation: &Aggregation,
    ) -> Result<(), ObjectiveError> {
        let loss = self.name();
        if importance != Importance::Token && !self.has_importance_levels() {
            return Err(ObjectiveError::Importance { loss, importance: importance.name() });
        }
        if let Some(expected) = self.loss().aggregation().filter(|expected| expected != aggregation) {
            let (aggregation, expected) = (aggregation.name(), expected.name());
            return Err(ObjectiveError::Aggregation { loss, aggregation, expected });
        }
        self.loss().check()
    }
}

/// Whether the bounds of a clip are: in `[0, 1]` below, at least 0 above.
fn bounds(low: f64, high: f64) -> Result<(), ObjectiveError> {
    in_range("loss.clip_low", low, (0.0..=1.0).contains(&low), "a number from 0 to 1")?;
    not_negative("loss.clip_high", high)
}

fn not_negative(setting: &'static str, value: f64) -> Result<(), ObjectiveError> {
    in_range(setting, value, value >= 0.0 && value.is_finite(), "a number of at least 0")
}

fn share(value: f64) -> Result<(), ObjectiveError> {
    in_range("loss.share", value, value > 0.0 && value <= 1.0, "a share above 0, at most 1")
}

/// Whether a setting is above 0, where it is set.
fn positive(setting: &'static str, value: Option<f64>) -> Result<(), ObjectiveError> {
    let fine = value.is_none_or(|value| value > 0.0 && value.is_finite());
    in_range(setting, value.unwrap_or_default(), fine, "a number above 0")
}

/// Plus and minus a limit, where there is one.
fn limits(log_ratio_limit: Option<f64>) -> (f64, f64) {
    log_ratio_limit.map_or(UNLIMITED, |limit| (-limit, limit))
}
