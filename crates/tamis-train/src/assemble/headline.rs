//! The line at the start of a run about what it trains with. It is read from the assembled objects, so it
//! cannot differ from them.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use tamis_config::{Config, KlPlace};
use tamis_core::advantage::{Advantage, Scale};
use tamis_core::figure::shortest;
use tamis_core::objective::{Aggregation, Importance, KlController, KlEstimator, PolicyLoss};

use super::objective::Divergence;
use super::{advantage, objective};
use crate::error::AssembleError;

/// The objective in one line: preset, loss and its bounds, aggregation, divergence, advantage, and what else
/// is on.
pub fn headline(config: &Config) -> Result<String, AssembleError> {
    let (objective, divergence) = objective::objective(config)?;
    let advantage = advantage::advantage(config)?;
    let mut parts =
        vec![config.preset.map_or_else(|| "no preset".to_owned(), |preset| format!("preset {preset}"))];
    parts.push(loss_text(&objective.policy));
    if objective.importance != Importance::Token {
        parts.push(format!("importance {}", objective.importance.name()));
    }
    parts.push(match objective.aggregation {
        Aggregation::TokenMean => "token-mean over the mini-batch".to_owned(),
        norm @ Aggregation::SeqMeanTokenSumNorm => {
            format!("{norm} divided by {}", shortest(objective.divisors.loss_scale_factor))
        }
        other => other.to_string(),
    });
    parts.push(match (divergence, objective.kl) {
        (Divergence::InLoss, Some(term)) => kl_text(term.estimator, term.controller, KlPlace::Loss),
        (Divergence::InReward { estimator, controller }, _) => {
            kl_text(estimator, controller, KlPlace::Reward)
        }
        _ => "no KL".to_owned(),
    });
    parts.push(advantage_text(&advantage));
    if let Some(bonus) = objective.entropy {
        parts.push(format!("entropy bonus {}", shortest(bonus.coef)));
    }
    if let Some(distillation) = objective.distillation {
        let alone = if distillation.advantages { "" } else { " alone" };
        parts.push(format!(
            "distillation{alone} over {} likeliest tokens, beta {}",
            distillation.top_k,
            shortest(distillation.beta)
        ));
    }
    for shaping in advantage::shapings(config)? {
        parts.push(format!("shaping {shaping}"));
    }
    if objective::correction(config)?.is_some() {
        let preset = config.correction_preset();
        parts.push(
            preset
                .map_or_else(|| "correction of the sampler".to_owned(), |name| format!("correction {name}")),
        );
    }
    Ok(format!("objective: {}", parts.join("; ")))
}

/// The loss's name, its clip as `low/high`, and its other settings under their keys.
fn loss_text(policy: &PolicyLoss) -> String {
    if let PolicyLoss::Python(python) = policy {
        return format!("loss in Python ({})", python.function.path.display());
    }
    let settings = json(policy);
    let (idle, _) = policy.idle_keys();
    let is_shown = |key: &str| key != "kind" && key != "log_ratio_limit" && !idle.contains(&key);
    let mut shown: Vec<_> =
        settings.as_object().into_iter().flatten().filter(|(key, _)| is_shown(key)).collect();
    let mut text = policy.name().to_owned();
    let number = |value: &Value| value.as_f64().map_or_else(|| value.to_string(), shortest);
    let at = |shown: &[(&String, &Value)], name: &str| {
        shown.iter().find(|(key, _)| *key == name).map(|(_, value)| number(value))
    };
    if let (Some(low), Some(high)) = (at(&shown, "clip_low"), at(&shown, "clip_high")) {
        let _ = write!(text, " {low}/{high}");
        shown.retain(|(key, _)| !key.starts_with("clip_"));
    }
    for (key, value) in shown.into_iter().filter(|(_, value)| !value.is_null()) {
        let _ = write!(text, ", {key} {}", value.as_str().map_or_else(|| number(value), str::to_owned));
    }
    text
}

fn kl_text(estimator: KlEstimator, controller: KlController, place: KlPlace) -> String {
    let name = estimator.kind;
    let coefficient = shortest(controller.initial().coef);
    let adapted = match controller {
        KlController::Fixed { .. } => String::new(),
        KlController::Adaptive { target, .. } => format!(", adaptive, target {}", shortest(target)),
    };
    format!("KL {name} times {coefficient} in the {place}{adapted}")
}

fn advantage_text(advantage: &Advantage) -> String {
    if let Advantage::Python(python) = advantage {
        return format!("advantage in Python ({})", python.function.path.display());
    }
    let divided = match advantage.divisor() {
        Some(Scale::Group) => " (divided by the deviation)",
        Some(Scale::Batch) => " (divided by the deviation of the batch)",
        Some(Scale::None) => " (not divided by a deviation)",
        None => "",
    };
    format!("advantage {}{divided}", advantage.name())
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tamis_config::Preset;

    use super::*;
    use crate::support::loaded;

    fn config(rest: &str) -> Config {
        let model = if rest.starts_with("model:") { "" } else { "model: {path: m}\n" };
        let yaml = format!(
            "{model}data: {{task: arithmetic}}\nreward: [{{kind: number}}]\ntrain: {{total_steps: 1}}\n{rest}\n"
        );
        loaded(&yaml, &[]).config
    }

    #[test]
    fn the_objective_in_one_line() {
        let line = |rest: &str| headline(&config(rest)).unwrap_or_else(|error| panic!("{rest}: {error}"));
        let presets: Vec<String> =
            Preset::ALL.iter().map(|preset| line(&format!("preset: {preset}"))).collect();
        insta::assert_snapshot!(presets.join("\n"), @"
objective: preset grpo; clip 0.2/0.2; seq-mean-token-mean; KL k3 times 0.04 in the loss; advantage grpo (divided by the deviation)
objective: preset dapo; clip 0.2/0.28, dual_clip 10; token-mean over the mini-batch; no KL; advantage grpo (divided by the deviation)
objective: preset dapo_paper; clip 0.2/0.28; group-token-mean; no KL; advantage grpo (divided by the deviation)
objective: preset dr_grpo; clip 0.2/0.2; seq-mean-token-sum-norm divided by 512; no KL; advantage grpo (not divided by a deviation)
objective: preset rloo; reinforce; seq-mean-token-sum; KL k1 times 0.05 in the reward; advantage rloo
objective: preset reinforce_plus_plus; clip 0.2/0.2; token-mean over the mini-batch; KL k1 times 0.01 in the reward; advantage reinforce_plus_plus
objective: preset reinforce_plus_plus_baseline; clip 0.2/0.2; token-mean over the mini-batch; KL k2 times 0.01 in the loss; advantage reinforce_plus_plus_baseline
objective: preset flash_reinforce; reinforce; seq-mean-token-mean; no KL; advantage batch_mean; correction of the sampler
objective: preset remax; reinforce; seq-mean-token-sum; KL k1 times 0.001 in the reward; advantage remax
objective: preset opo; reinforce; seq-mean-token-sum; no KL; advantage opo
objective: preset gpg; gpg; token-mean over the mini-batch; no KL; advantage gpg
objective: preset bnpo; clip 0.2/0.2; token-mean over the mini-batch; no KL; advantage bnpo
objective: preset gspo; gspo 0.0003/0.0004, form sequence; seq-mean-token-mean; no KL; advantage grpo (divided by the deviation)
objective: preset gmpo; geo_mean 0.4/0.4, length_epsilon 0, weight_epsilon 0; seq-mean-token-mean; no KL; advantage grpo (divided by the deviation)
objective: preset cispo; cispo, bound absolute, max_ratio 5; token-mean over the mini-batch; no KL; advantage grpo (divided by the deviation)
objective: preset sapo; sapo, tau_positive 1, tau_negative 1.05; seq-mean-token-mean; no KL; advantage grpo (divided by the deviation)
objective: preset ppo; clip 0.2/0.2; token-mean over the mini-batch; KL k1 times 0.02 in the reward; advantage gae
");
        insta::assert_snapshot!(line("objective: {kl: {in: reward, estimator: k1, coefficient: 0.1, adaptive: {target: 0.02, horizon: 5000}}, entropy: {coefficient: 0.01}}"), @"objective: no preset; clip 0.2/0.2, dual_clip 3; token-mean over the mini-batch; KL k1 times 0.1 in the reward, adaptive, target 0.02; advantage grpo (divided by the deviation); entropy bonus 0.01");
        insta::assert_snapshot!(line("objective: {advantage: {scale: batch}, shaping: [{kind: keep_pos_ratio, ratio: 0.5}], correction: {preset: decoupled_token_is}}"), @"objective: no preset; clip 0.2/0.2, dual_clip 3; token-mean over the mini-batch; no KL; advantage grpo (divided by the deviation of the batch); shaping keep_pos_ratio; correction decoupled_token_is");
        insta::assert_snapshot!(line("objective: {advantage: {scale: none}, loss: {kind: clip}, importance: sequence}"), @"objective: no preset; clip 0.2/0.2, dual_clip 3; importance sequence; token-mean over the mini-batch; no KL; advantage grpo (not divided by a deviation)");
    }
}
