//! The objective and its correction.

use tamis_config::{Config, KlPlace};
use tamis_core::correction::{Correction, Mode};
use tamis_core::objective::{KlController, KlEstimator, Objective};

use crate::error::AssembleError;

/// Where the divergence from the reference enters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Divergence {
    /// Nowhere: no reference is kept.
    None,
    /// In the loss, as part of the objective.
    InLoss,
    /// As a penalty on the reward.
    InReward {
        /// Estimator of the divergence.
        estimator: KlEstimator,
        /// Coefficient of the divergence.
        controller: KlController,
    },
}

/// The correction for a sampler that is not the policy, if it fits the loss; `None`: there is none.
pub fn correction(config: &Config) -> Result<Option<Correction>, AssembleError> {
    let Some(correction) = config.policy_correction()? else { return Ok(None) };
    if correction.mode == Mode::Decoupled
        && correction.importance.is_some()
        && config.objective.loss.weighs_behaviour()
    {
        let loss = &config.objective.loss;
        return Err(AssembleError::at(
            "objective.correction",
            format!(
                "objective.loss.kind `{loss}` already applies its weights: every token would be weighted twice"
            ),
            "set objective.loss.kind=clip, or remove the weights from objective.correction",
        ));
    }
    if correction.mode == Mode::BypassReinforce && !config.objective.loss.is_plain_gradient() {
        let preset = config.objective.correction.preset.map_or("bypass_pg", |preset| preset.as_str());
        return Err(AssembleError::at(
            "objective.correction.preset",
            format!(
                "`{preset}` weights the plain policy gradient, but objective.loss.kind is `{}`",
                config.objective.loss
            ),
            "set objective.loss.kind=reinforce",
        ));
    }
    Ok(Some(correction))
}

/// The objective, and where the divergence enters.
pub fn objective(config: &Config) -> Result<(Objective, Divergence), AssembleError> {
    let divergence = match config.objective.kl.place {
        KlPlace::None => Divergence::None,
        KlPlace::Loss => Divergence::InLoss,
        KlPlace::Reward => {
            Divergence::InReward { estimator: config.kl_estimator(), controller: config.kl_controller() }
        }
    };
    Ok((config.policy_objective()?, divergence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::loaded;

    #[test]
    fn one_weight_for_what_separates_sampler_and_policy() {
        let describe = |rest: &str| {
            let yaml = format!(
                "model: {{path: m}}\ndata: {{task: arithmetic}}\ntrain: {{total_steps: 1}}\nobjective: \
                    {{loss: {{kind: decoupled}}, correction: {{{rest}}}}}"
            );
            correction(&loaded(&yaml, &[]).config).map(|_| ()).map_err(|error| error.to_string())
        };
        for twice in ["preset: decoupled_token_is", "preset: decoupled_geo_rs_seq_tis", "weights: {max: 2.0}"]
        {
            let error = describe(twice).expect_err(twice);
            assert!(error.contains("weighted twice"), "{error}");
        }
        assert_eq!(describe("preset: decoupled_geo_rs"), Ok(()));
        assert_eq!(describe("preset: bypass_ppo_clip"), Ok(()));
    }
}
