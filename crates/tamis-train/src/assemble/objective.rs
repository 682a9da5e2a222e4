//! The objective and its correction.

use tamis_config::{
    Aggregation as ConfigAggregation, BackendKind, CispoBound as ConfigBound, Config, CorrectionLevel,
    CorrectionPreset, GspoForm as ConfigForm, ImportanceLevel, KlEstimator as ConfigKl, KlPlace,
    LogRatioLimit, LossConfig, LossKind, OutsideBounds, ScheduleMode, Surplus as ConfigSurplus,
};
use tamis_core::correction::{Correction, Importance as CorrectionWeights, Level, Mode, Outside, Rejection};
use tamis_core::objective::{
    AdaptiveEntropy, Aggregation, Cispo, CispoBound, Clip, ClipCov, Decoupled, DppoKl, DppoTv, Dro,
    EntropyBonus, GeoMean, Gspo, GspoForm, Importance, KlController, KlCov, KlEstimator, KlKind, KlTerm,
    LossMasks, Luspo, Objective, PolicyLoss, Reinforce, Sapo, Vespo,
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
    let kl = &config.objective.kl;
    let kind = match kl.estimator {
        ConfigKl::K1 => KlKind::K1,
        ConfigKl::K2 => KlKind::K2,
        ConfigKl::K3 => KlKind::K3,
        ConfigKl::Abs => KlKind::Abs,
    };
    // verl's clamps: they only bind where the policy has left the reference altogether, and keep one token
    // from drowning the rest.
    KlEstimator { kind, clamped: true, straight_through: kl.straight_through && kl.place == KlPlace::Loss }
}

/// verl's bound on log-ratios inside an exponential: it binds only where a token's probability has moved by a
/// factor of 4.8e8.
const LOG_RATIO_LIMIT: f64 = 20.0;

/// verl's bound on the mean log-ratio of a trajectory in `gspo`.
const SEQUENCE_LOG_RATIO_LIMIT: f64 = 10.0;

/// The policy loss with the settings that it reads; the others are warned of when the configuration is
/// checked.
fn policy_loss(settings: &LossConfig) -> PolicyLoss {
    let bounds = |low: f64, high: f64| (settings.clip_low.unwrap_or(low), settings.clip_high.unwrap_or(high));
    let limit = |own: f64| match settings.log_ratio_limit {
        None => Some(own),
        Some(LogRatioLimit::Off) => None,
        Some(LogRatioLimit::At(limit)) => Some(limit),
    };
    let log_ratio_limit = limit(LOG_RATIO_LIMIT);
    let (dual_clip, delta) = (settings.dual_clip, settings.delta);
    match settings.kind {
        LossKind::Clip => {
            let (clip_low, clip_high) = bounds(0.2, 0.2);
            PolicyLoss::Clip(Clip { clip_low, clip_high, dual_clip, delta, log_ratio_limit })
        }
        LossKind::Luspo => {
            let (clip_low, clip_high) = bounds(2e-3, 2.5e-3);
            PolicyLoss::Luspo(Luspo { clip_low, clip_high, log_ratio_limit })
        }
        LossKind::Decoupled => {
            let (clip_low, clip_high) = bounds(0.2, 0.2);
            let weight_cap = settings.weight_cap;
            PolicyLoss::Decoupled(Decoupled { clip_low, clip_high, dual_clip, weight_cap, log_ratio_limit })
        }
        LossKind::Gspo => {
            let (clip_low, clip_high) = bounds(3e-4, 4e-4);
            let form = match settings.form {
                ConfigForm::Sequence => GspoForm::Sequence,
                ConfigForm::Token => GspoForm::Token,
            };
            let log_ratio_limit = limit(SEQUENCE_LOG_RATIO_LIMIT);
            PolicyLoss::Gspo(Gspo { clip_low, clip_high, form, log_ratio_limit })
        }
        LossKind::Reinforce => PolicyLoss::Reinforce(Reinforce {}),
        LossKind::Gpg => PolicyLoss::Gpg(Reinforce {}),
        LossKind::ClipCov => {
            let (clip_low, clip_high) = bounds(0.2, 0.2);
            let LossConfig { share, cov_low, cov_high, .. } = *settings;
            PolicyLoss::ClipCov(ClipCov { clip_low, clip_high, share, cov_low, cov_high })
        }
        LossKind::KlCov => {
            let LossConfig { share, cov_coefficient, .. } = *settings;
            PolicyLoss::KlCov(KlCov { share, cov_coefficient })
        }
        LossKind::GeoMean => {
            let (clip_low, clip_high) = bounds(0.4, 0.4);
            PolicyLoss::GeoMean(GeoMean { clip_low, clip_high, length_epsilon: 0.0, weight_epsilon: 0.0 })
        }
        LossKind::Cispo => {
            let (clip_low, clip_high) = bounds(0.2, 0.2);
            let bound = match settings.bound {
                ConfigBound::Relative => CispoBound::Relative,
                ConfigBound::Absolute => CispoBound::Absolute,
            };
            let max_ratio = settings.max_ratio.unwrap_or(5.0);
            PolicyLoss::Cispo(Cispo { bound, clip_low, clip_high, max_ratio, log_ratio_limit })
        }
        LossKind::Sapo => {
            let LossConfig { tau_positive, tau_negative, .. } = *settings;
            PolicyLoss::Sapo(Sapo { tau_positive, tau_negative, log_ratio_limit })
        }
        LossKind::DppoTv => {
            let (clip_low, clip_high) = bounds(0.2, 0.2);
            let max_ratio = settings.max_ratio.unwrap_or(20.0);
            PolicyLoss::DppoTv(DppoTv { clip_low, clip_high, max_ratio, log_ratio_limit })
        }
        LossKind::DppoKl => {
            let (clip_low, clip_high) = bounds(0.2, 0.2);
            let max_ratio = settings.max_ratio.unwrap_or(20.0);
            PolicyLoss::DppoKl(DppoKl { clip_low, clip_high, max_ratio, log_ratio_limit })
        }
        // The configuration's check refuses a `dro` without it.
        LossKind::Dro => PolicyLoss::Dro(Dro { beta: settings.beta.unwrap_or(0.0) }),
        LossKind::Vespo => {
            let LossConfig { k_positive, lambda_positive, k_negative, lambda_negative, .. } = *settings;
            PolicyLoss::Vespo(Vespo { k_positive, lambda_positive, k_negative, lambda_negative })
        }
    }
}

pub(super) fn aggregation(config: &Config, name: ConfigAggregation) -> Aggregation {
    match name {
        ConfigAggregation::TokenMean => Aggregation::TokenMean,
        ConfigAggregation::SeqMeanTokenSum => Aggregation::SeqMeanTokenSum,
        ConfigAggregation::SeqMeanTokenMean => Aggregation::SeqMeanTokenMean { length_epsilon: 0.0 },
        ConfigAggregation::SeqMeanTokenSumNorm => {
            Aggregation::SeqMeanTokenSumNorm { scale: config.loss_scale_factor() }
        }
        ConfigAggregation::GroupTokenMean => Aggregation::GroupMeanTokenMean,
        ConfigAggregation::GroupSeqMean => Aggregation::GroupMeanSeqMean,
        ConfigAggregation::TokenSum => Aggregation::TokenSum,
    }
}

/// The entropy bonus; `None` where it would pay nothing.
fn entropy(config: &Config) -> Option<EntropyBonus> {
    let settings = &config.objective.entropy;
    let adaptive = settings.adaptive.as_ref().map(|adaptive| AdaptiveEntropy {
        min: adaptive.min,
        max: adaptive.max,
        delta: adaptive.delta,
        target: adaptive.target,
    });
    (settings.coefficient != 0.0 || adaptive.is_some()).then(|| EntropyBonus {
        coef: settings.coefficient,
        aggregation: settings.aggregation.map(|name| aggregation(config, name)),
        adaptive,
    })
}

/// The name of the correction: the one that is set; else, where groups of older weights are trained on as a
/// rule (a stream that carries them), or nothing else would tell of their age (carried groups of servers),
/// token weights up to 2. A loss that weighs them itself has none beside it.
pub fn correction_preset(config: &Config) -> Option<CorrectionPreset> {
    let settings = &config.objective.correction;
    let is_unset = settings.weights.is_none() && settings.rejections.is_empty();
    // Old log-probabilities of the native engine's carried groups are those that they were sampled with, so
    // that the loss's ratio tells of their age; servers' are computed at the start of the step.
    let lags = config.schedule.surplus == ConfigSurplus::Carry
        && (config.schedule.mode == ScheduleMode::Streaming || config.rollout.backend != BackendKind::Native);
    let is_wanted = is_unset && lags && config.objective.loss.kind != LossKind::Decoupled;
    settings.preset.or(is_wanted.then_some(CorrectionPreset::DecoupledTokenIs))
}

/// The correction for a sampler that is not the policy; `None`: the loss's ratio is to the policy that
/// sampled, and nothing else.
pub fn correction(config: &Config) -> Result<Option<Correction>, AssembleError> {
    let settings = &config.objective.correction;
    let preset = correction_preset(config);
    if preset.is_none() && settings.weights.is_none() && settings.rejections.is_empty() {
        return Ok(None);
    }
    let mut correction = preset.and_then(|preset| Correction::named(preset.as_str())).unwrap_or_default();
    if let Some(weights) = &settings.weights {
        correction.importance = Some(CorrectionWeights {
            level: match weights.level {
                CorrectionLevel::Token => Level::Token,
                CorrectionLevel::Sequence => Level::Sequence,
            },
            outside: match weights.outside {
                OutsideBounds::Truncate => Outside::Truncate,
                OutsideBounds::Mask => Outside::Mask,
            },
            min: weights.min,
            max: Some(weights.max),
            batch_normalize: weights.batch_normalize,
        });
    }
    if !settings.rejections.is_empty() {
        correction.rejections.clear();
        for rejection in &settings.rejections {
            correction.rejections.extend(Rejection::verl(&rejection.statistic, &rejection.threshold)?);
        }
    }
    correction.check()?;
    if correction.mode == Mode::Decoupled
        && correction.importance.is_some()
        && config.objective.loss.kind == LossKind::Decoupled
    {
        return Err(AssembleError::setting(
            "objective.correction: its weights are those that objective.loss.kind `decoupled` has already: every token would be weighted twice",
            "set objective.loss.kind=clip, or take the weights out of objective.correction",
        ));
    }
    if correction.mode == Mode::BypassReinforce
        && !matches!(config.objective.loss.kind, LossKind::Reinforce | LossKind::Gpg)
    {
        let preset = settings.preset.map_or("bypass_pg", |preset| preset.as_str());
        return Err(AssembleError::setting(
            format!(
                "objective.correction.preset: `{preset}` weights the plain policy gradient, and objective.loss.kind is `{}`",
                config.objective.loss.kind
            ),
            "set objective.loss.kind=reinforce",
        ));
    }
    Ok(Some(correction))
}

/// The objective and where the divergence enters.
pub fn objective(config: &Config) -> Result<(Objective, Divergence), AssembleError> {
    let settings = &config.objective;
    let (kl, divergence) = match settings.kl.place {
        KlPlace::None => (None, Divergence::None),
        KlPlace::Loss => (
            Some(KlTerm {
                estimator: estimator(config),
                controller: controller(config),
                bias_corrected: settings.kl.bias_corrected,
            }),
            Divergence::InLoss,
        ),
        KlPlace::Reward => {
            (None, Divergence::InReward { estimator: estimator(config), controller: controller(config) })
        }
    };
    let objective = Objective {
        importance: match settings.importance {
            ImportanceLevel::Token => Importance::Token,
            ImportanceLevel::Sequence => Importance::Sequence,
            ImportanceLevel::SequenceToken => Importance::SequenceToken,
        },
        kl,
        entropy: entropy(config),
        masks: LossMasks { top_entropy: settings.masks.top_entropy, off_policy: settings.masks.off_policy },
        ..Objective::of(policy_loss(&settings.loss), aggregation(config, settings.aggregation))
    };
    objective.check()?;
    Ok((objective, divergence))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tamis_config::load_sources;
    use tamis_config::source::{Source, SourceKind};

    use super::*;

    #[test]
    fn one_weight_for_what_separates_sampler_and_policy() {
        let said = |rest: &str| {
            let yaml = format!(
                "model: {{path: m}}\ndata: {{task: arithmetic}}\ntrain: {{total_steps: 1}}\nobjective: {{loss: {{kind: decoupled}}, correction: {{{rest}}}}}"
            );
            let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
            let loaded = load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}"));
            correction(&loaded.config).map(|_| ()).map_err(|error| error.to_string())
        };
        for twice in ["preset: decoupled_token_is", "preset: decoupled_geo_rs_seq_tis", "weights: {max: 2.0}"]
        {
            let error = said(twice).expect_err(twice);
            assert!(error.contains("weighted twice"), "{error}");
        }
        assert_eq!(said("preset: decoupled_geo_rs"), Ok(()));
        assert_eq!(said("preset: bypass_ppo_clip"), Ok(()));
    }

    /// The bound that the loss of a configuration has; a loss that reads the key has it in its serialised
    /// form.
    fn limit_of(kind: LossKind, setting: &str) -> Option<f64> {
        let aggregation = if kind == LossKind::Luspo { "seq-mean-token-sum" } else { "token-mean" };
        let yaml = format!(
            "model: {{path: m}}\ndata: {{task: arithmetic}}\ntrain: {{total_steps: 1}}\n\
             objective: {{aggregation: {aggregation}, loss: {{kind: {kind}, log_ratio_limit: {setting}}}}}"
        );
        let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
        let loaded = load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}"));
        let (objective, _) = objective(&loaded.config).expect("sound");
        let loss = serde_json::to_value(objective.policy).expect("json");
        loss.get("log_ratio_limit").and_then(Value::as_f64)
    }

    #[test]
    fn the_bound_on_log_ratios_reaches_every_loss_that_reads_it() {
        for kind in [
            LossKind::Clip,
            LossKind::Luspo,
            LossKind::Decoupled,
            LossKind::Gspo,
            LossKind::Cispo,
            LossKind::Sapo,
            LossKind::DppoTv,
            LossKind::DppoKl,
        ] {
            let own = if kind == LossKind::Gspo { 10.0 } else { 20.0 };
            assert_eq!(limit_of(kind, "null"), Some(own), "{kind}");
            assert_eq!(limit_of(kind, "1.5"), Some(1.5), "{kind}");
            assert_eq!(limit_of(kind, "off"), None, "{kind}");
        }
    }
}
