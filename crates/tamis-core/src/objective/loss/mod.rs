//! Policy losses. Each loss is a formula for one token, in a file of its own: the value and its derivative.
//!
//! A new loss is a file with its settings (named like the configuration's keys), its [`Loss`] and its
//! catalogue entry, plus one line in the list below.

mod cispo;
mod clip;
mod clip_cov;
mod decoupled;
mod dppo;
mod dro;
mod formula;
mod geo_mean;
mod gspo;
mod ipo;
mod kl_cov;
mod luspo;
mod python;
mod reinforce;
mod sapo;
pub(crate) mod trajectory;
mod vespo;

pub use cispo::{Cispo, CispoBound};
pub use clip::Clip;
pub use clip_cov::ClipCov;
pub use decoupled::Decoupled;
pub use dppo::{DppoKl, DppoTv};
pub use dro::Dro;
pub use formula::{Loss, OwnMetric};
pub use geo_mean::GeoMean;
pub use gspo::{Gspo, GspoForm};
pub use ipo::Ipo;
pub use kl_cov::KlCov;
pub use luspo::Luspo;
pub use python::PythonLoss;
pub use reinforce::Reinforce;
pub use sapo::Sapo;
pub use trajectory::{Token, TokenLoss, TrajectoryLoss, UNLIMITED};
pub use vespo::Vespo;

use super::columns::{Columns, Real};
use super::{Aggregation, Importance, ObjectiveError};
use crate::entry::Entry;
use crate::random::Key;
use crate::tagged;

macro_rules! policy_losses {
    ($($(#[doc = $doc:literal])* $variant:ident($loss:ident) = $text:literal, $entry:expr;)*) => {
        tagged! {
            /// The loss of a token, before all tokens are aggregated into one number.
            pub enum PolicyLoss, default Clip {
                $($(#[doc = $doc])* $variant($loss) = $text,)*
            }
        }

        pub(super) const ENTRIES: &[Entry] = &[$($entry,)*];

        impl PolicyLoss {
            /// The name in the configuration.
            pub fn name(&self) -> &'static str {
                self.as_str()
            }

            fn loss(&self) -> &dyn Loss {
                match self {
                    $(Self::$variant(loss) => loss,)*
                }
            }

            /// The tokens of a whole optimizer batch that it chooses.
            pub(super) fn select<T: Real>(&self, columns: &Columns<'_, T>, key: Key) -> Vec<usize> {
                match self {
                    $(Self::$variant(loss) => loss.select(columns, key),)*
                }
            }

            /// Writes the loss of a trajectory, its derivatives and its metrics.
            pub(super) fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
                match self {
                    $(Self::$variant(loss) => loss.sequence(trajectory),)*
                }
            }
        }
    };
}

policy_losses! {
    /// The clipped ratio of PPO, GRPO and DAPO, with separate bounds, dual clip and a cap on the unclipped
    /// branch: the larger of `-A r` and `-A clip(r, 1 - clip_low, 1 + clip_high)`.
    Clip(Clip) = "clip", clip::ENTRY;
    /// The clipped ratio of the whole trajectory, the geometric mean of its tokens' ratios (arXiv
    /// 2507.18071); with `form: token` each token contributes only to its own loss.
    Gspo(Gspo) = "gspo", gspo::ENTRY;
    /// The clipped ratio of the whole trajectory times its length, so that long answers are not discounted;
    /// meant for `aggregation: seq-mean-token-sum` (arXiv 2602.05261).
    Luspo(Luspo) = "luspo", luspo::ENTRY;
    /// The clipped ratio to the policy at the start of the step, weighted by that policy's ratio to the one
    /// that sampled (decoupled PPO).
    Decoupled(Decoupled) = "decoupled", decoupled::ENTRY;
    /// The plain policy gradient.
    Reinforce(Reinforce) = "reinforce", reinforce::ENTRIES[0];
    /// The plain policy gradient, as GPG uses it with its own advantages (arXiv 2504.02546).
    Gpg(Reinforce) = "gpg", reinforce::ENTRIES[1];
    /// The clipped ratio; a few random tokens of high covariance between advantage and log-probability are
    /// left out (arXiv 2505.22617).
    ClipCov(ClipCov) = "clip_cov", clip_cov::ENTRY;
    /// The plain ratio without a clip; the tokens of highest covariance between advantage and log-probability
    /// pay a penalty for their distance from the old policy (arXiv 2505.22617).
    KlCov(KlCov) = "kl_cov", kl_cov::ENTRY;
    /// The geometric mean of the token ratios, each clipped in log space, times the trajectory's advantage
    /// (GMPO, arXiv 2507.20673).
    GeoMean(GeoMean) = "geo_mean", geo_mean::ENTRY;
    /// The policy gradient weighted by the clipped ratio, a constant, so that no token loses its gradient
    /// (MiniMax-M1, arXiv 2506.13585).
    Cispo(Cispo) = "cispo", cispo::ENTRY;
    /// A sigmoid of the ratio instead of the clip: updates fade as the policy moves away from the old one,
    /// faster if the advantage is negative (arXiv 2511.20347).
    Sapo(Sapo) = "sapo", sapo::ENTRY;
    /// The policy gradient weighted by the truncated ratio, without tokens whose probability has moved
    /// further than a bound in the direction of their advantage (DPPO, arXiv 2602.04879).
    DppoTv(DppoTv) = "dppo_tv", dppo::ENTRIES[0];
    /// The form of `dppo_tv` that measures the binary Kullback-Leibler divergence (DPPO, arXiv 2602.04879).
    DppoKl(DppoKl) = "dppo_kl", dppo::ENTRIES[1];
    /// The policy gradient by the ratio to the policy that sampled, without tokens whose probability has
    /// moved further than a threshold in either direction (prime-rl's INTELLECT Policy Optimization).
    Ipo(Ipo) = "ipo", ipo::ENTRY;
    /// The policy gradient with a quadratic pull towards the old policy (direct reward optimisation).
    Dro(Dro) = "dro", dro::ENTRY;
    /// The policy gradient weighted by a smooth function of the product of all token ratios, correction
    /// included (arXiv 2602.10693).
    Vespo(Vespo) = "vespo", vespo::ENTRY;
    /// A loss of your own: a Python function gets columns of per-token numbers and returns each token's loss
    /// and its derivative.
    Python(PythonLoss) = "python", python::ENTRY;
}

impl PolicyLoss {
    /// Whether a setting may make its ratio that of the trajectory. The other losses have no ratio, or one
    /// whose level is part of their definition.
    pub fn has_importance_levels(&self) -> bool {
        self.loss().has_importance_levels()
    }

    /// Whether the weights of a trajectory's tokens are multiplied into one weight. A factor common to them
    /// is then not a factor of the loss.
    pub fn multiplies_weights(&self) -> bool {
        self.loss().multiplies_weights()
    }

    /// The aggregation that it needs: with another one it is a different loss.
    pub fn needed_aggregation(&self) -> Option<Aggregation> {
        self.loss().aggregation()
    }

    /// Keys of the loss that another of its keys disables (`max_ratio` of `cispo` with `bound: relative`),
    /// and the reason.
    pub fn idle_keys(&self) -> (&'static [&'static str], &'static str) {
        self.loss().idle_keys()
    }

    /// Whether it weights a token by its ratio to the policy that sampled it. It then reads the column
    /// `behaviour`, and a correction's weights would apply the same ratio twice.
    pub fn weighs_behaviour(&self) -> bool {
        self.loss().weighs_behaviour()
    }

    /// Whether its values are computed elsewhere. It then reads the column `given`.
    pub fn is_given(&self) -> bool {
        self.loss().is_given()
    }

    /// Whether it is the plain policy gradient `-A·logprob`.
    pub fn is_plain_gradient(&self) -> bool {
        self.loss().is_plain_gradient()
    }

    /// Whether a weight of its formula is held constant when it is differentiated, so that its derivative is
    /// not that of its value.
    pub fn is_constant_weight(&self) -> bool {
        self.loss().is_constant_weight()
    }

    /// Whether it pulls towards another policy, so that its derivative is not 0 if the advantage is.
    pub fn pulls_without_advantage(&self) -> bool {
        self.loss().pulls_without_advantage()
    }

    /// Whether its derivative is `-A` while the policy is the one that sampled: it is a policy gradient then.
    pub fn is_gradient_on_policy(&self) -> bool {
        self.loss().is_gradient_on_policy()
    }

    /// The level at which it works under a setting: that of the setting, or its own.
    pub fn importance(&self, setting: Importance) -> Importance {
        self.loss().importance(setting)
    }

    /// Bounds on the log-ratio inside its exponential.
    pub(super) fn log_ratio_limits(&self) -> (f64, f64) {
        self.loss().log_ratio_limits()
    }

    pub(super) fn needs_selection(&self) -> bool {
        self.loss().needs_selection()
    }

    /// Metric of the loss besides those that all losses have.
    pub(super) fn own_metric(&self) -> Option<OwnMetric> {
        self.loss().own_metric()
    }

    /// Whether the settings are in range and fit together.
    pub(super) fn check(
        &self,
        importance: Importance,
        aggregation: Aggregation,
    ) -> Result<(), ObjectiveError> {
        let loss = self.name();
        if importance != Importance::Token && !self.has_importance_levels() {
            return Err(ObjectiveError::Importance { loss, importance: importance.name() });
        }
        if let Some(expected) = self.needed_aggregation().filter(|&expected| expected != aggregation) {
            let (aggregation, expected) = (aggregation.as_str(), expected.as_str());
            return Err(ObjectiveError::Aggregation { loss, aggregation, expected });
        }
        self.loss().check()
    }
}
