//! Advantage and objective.

use tamis_config::{
    AdvantageScale, Aggregation as ConfigAggregation, Config, Estimator, KlEstimator as ConfigKl, KlPlace,
    SingletonAdvantage,
};
use tamis_core::advantage::{Grpo, Scale, Singleton};
use tamis_core::objective::{
    Aggregation, Clip, EntropyBonus, KlController, KlEstimator, KlKind, KlTerm, Objective, PolicyLoss,
};

use super::AssembleError;

/// Where the divergence from the reference enters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Divergence {
    /// Nowhere: no reference is kept.
    None,
    /// In the loss, as part of the objective.
    InLoss,
    /// As a penalty on the reward.
    InReward {
        /// Its estimator.
        estimator: KlEstimator,
        /// Its coefficient.
        controller: KlController,
    },
}

/// The advantage estimator.
pub fn advantage(config: &Config) -> Grpo {
    let settings = &config.objective.advantage;
    let Estimator::Grpo = settings.estimator;
    Grpo {
        scale: match (settings.norm_by_std, settings.scale) {
            (false, _) | (_, AdvantageScale::None) => Scale::None,
            (true, AdvantageScale::Group) => Scale::Group,
            (true, AdvantageScale::Batch) => Scale::Batch,
        },
        ddof: settings.ddof as u8,
        epsilon: settings.epsilon,
        singleton: match settings.singleton {
            SingletonAdvantage::Raw => Singleton::RawReward,
            SingletonAdvantage::Zero => Singleton::Zero,
        },
    }
}

fn controller(config: &Config) -> KlController {
    let kl = &config.objective.kl;
    match &kl.adaptive {
        Some(adaptive) => KlController::Adaptive {
            initial: kl.coefficient,
            target: adaptive.target,
            horizon: adaptive.horizon,
        },
        None => KlController::Fixed { coef: kl.coefficient },
    }
}

fn estimator(config: &Config) -> KlEstimator {
    let kind = match config.objective.kl.estimator {
        ConfigKl::K1 => KlKind::K1,
        ConfigKl::K2 => KlKind::K2,
        ConfigKl::K3 => KlKind::K3,
        ConfigKl::Abs => KlKind::Abs,
    };
    // verl's clamps: they only bind where the policy has left the reference altogether, and keep one token from drowning the rest.
    KlEstimator { clamped: true, ..KlEstimator::plain(kind) }
}

/// The objective and where the divergence enters.
pub fn objective(config: &Config) -> Result<(Objective, Divergence), AssembleError> {
    let settings = &config.objective;
    let loss = &settings.loss;
    let aggregation = match settings.aggregation {
        ConfigAggregation::TokenMean => Aggregation::TokenMean,
        ConfigAggregation::SeqMeanTokenSum => Aggregation::SeqMeanTokenSum,
        ConfigAggregation::SeqMeanTokenMean => Aggregation::SeqMeanTokenMean { length_epsilon: 0.0 },
        ConfigAggregation::SeqMeanTokenSumNorm => Aggregation::SeqMeanTokenSumNorm {
            scale: settings.loss_scale_factor.unwrap_or(config.rollout.max_response_length as f64),
        },
        ConfigAggregation::GroupTokenMean => Aggregation::GroupMeanTokenMean,
    };
    let (kl, divergence) = match settings.kl.place {
        KlPlace::None => (None, Divergence::None),
        KlPlace::Loss => (
            Some(KlTerm {
                estimator: estimator(config),
                controller: controller(config),
                bias_corrected: false,
            }),
            Divergence::InLoss,
        ),
        KlPlace::Reward => {
            (None, Divergence::InReward { estimator: estimator(config), controller: controller(config) })
        }
    };
    let entropy =
        (settings.entropy_coefficient != 0.0).then_some(EntropyBonus::constant(settings.entropy_coefficient));
    let policy = PolicyLoss::Clip(Clip {
        low: loss.clip_low,
        high: loss.clip_high,
        dual: loss.dual_clip,
        cap: loss.delta,
        log_ratio_limit: Some(20.0),
    });
    let objective = Objective { kl, entropy, ..Objective::of(policy, aggregation) };
    objective.check()?;
    Ok((objective, divergence))
}
