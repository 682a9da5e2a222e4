//! What a run trains with, in the words of the configuration: read from the assembled objects, so that it
//! cannot be something else.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value};
use tamis_config::{Config, KlPlace, ScheduleMode};
use tamis_core::advantage::{Advantage, Scale};
use tamis_core::figure::shortest;
use tamis_core::filter::{AvailableMetrics, Metric};
use tamis_core::objective::{Aggregation, Importance, KlController, KlEstimator, PolicyLoss};

use super::AssembleError;
use super::objective::Divergence;
use super::policy::shape_of_sizes;
use super::{advantage, critic, objective};
use crate::learner::micro_batch::MicroBatch;

/// Keys that are null by design, each with the value that the run takes; of an entry of `reward` (`reward.0`)
/// an object of them. A key that its loss, estimator or filter does not read is not among them, and none is
/// where the configuration cannot be assembled.
pub fn in_force(config: &Config) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut put = |key: &str, is_null: bool, value: Option<Value>| {
        found.extend(value.filter(|value| is_null && !value.is_null()).map(|value| (key.to_owned(), value)));
    };
    if let Some(init) = &config.model.init {
        let shape = shape_of_sizes(init);
        put("model.init.num_kv_heads", init.num_kv_heads.is_none(), Some(shape.num_kv_heads.into()));
        put("model.init.head_dim", init.head_dim.is_none(), Some(shape.head_dim.into()));
    }
    for (index, reward) in config.reward.iter().enumerate() {
        let values: Map<String, Value> =
            (reward.kind.in_force(config.rollout.max_response_length).into_iter())
                .map(|(key, value)| (key.to_owned(), value))
                .collect();
        put(&format!("reward.{index}"), !values.is_empty(), Some(Value::Object(values)));
    }
    let (data, train, settings) = (&config.data, &config.train, &config.objective);
    put("data.gen_batch_size", data.gen_batch_size.is_none(), Some(config.gen_batch_size().into()));
    put(
        "train.ppo_mini_batch_size",
        train.ppo_mini_batch_size.is_none(),
        Some(config.mini_batch_size().into()),
    );
    if config.schedule.mode == ScheduleMode::Deficit && config.refills() {
        let is_null = config.schedule.granularity.is_none();
        put("schedule.granularity", is_null, Some(config.mini_batch_size().into()));
    }
    if let Some(filter) = &config.filter {
        // What external rewards will give is not known before they are asked.
        let scores = config.known_metrics().into_iter().filter(|name| name == "acc").collect();
        let metric = Metric::default_of(&AvailableMetrics { scores, entropy: false }).ok();
        put("filter.metric", filter.metric.is_none(), metric.map(|metric| metric.to_string().into()));
    }
    if let Ok((objective, _)) = objective::objective(config) {
        let is_null = settings.loss_scale_factor.is_none();
        put("objective.loss_scale_factor", is_null, field(&json(&objective.aggregation), "scale"));
        if let Some(bonus) = objective.entropy {
            let aggregation = bonus.aggregation.unwrap_or(objective.aggregation);
            let is_null = settings.entropy.aggregation.is_none();
            put("objective.entropy.aggregation", is_null, Some(aggregation.name().into()));
        }
    }
    if let Some(plan) = critic::plan(config, MicroBatch::Sequences(1)) {
        let (critic, plan) = (&config.critic, plan.settings);
        put(
            "critic.ppo_mini_batch_size",
            critic.ppo_mini_batch_size.is_none(),
            Some(plan.mini_batch_size.get().into()),
        );
        put("critic.ppo_epochs", critic.ppo_epochs.is_none(), Some(plan.epochs.into()));
        let aggregation = plan.loss.aggregation.map(|aggregation| aggregation.name().into());
        put("critic.aggregation", critic.aggregation.is_none(), aggregation);
    }
    found
}

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
        Aggregation::SeqMeanTokenSumNorm { scale } => {
            format!("{} divided by {}", objective.aggregation.name(), shortest(scale))
        }
        other => other.name().to_owned(),
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
    for shaping in advantage::shapings(config)? {
        parts.push(format!("shaping {shaping}"));
    }
    if objective::correction(config)?.is_some() {
        let preset = objective::correction_preset(config);
        parts.push(
            preset
                .map_or_else(|| "correction of the sampler".to_owned(), |name| format!("correction {name}")),
        );
    }
    Ok(format!("objective: {}", parts.join("; ")))
}

/// The loss's name, its clip as `low/high`, and its other settings in force under their keys.
fn loss_text(policy: &PolicyLoss) -> String {
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
    let name = json(&estimator.kind);
    let name = name.as_str().unwrap_or_default();
    let coefficient = shortest(controller.initial().coef);
    let adapted = match controller {
        KlController::Fixed { .. } => String::new(),
        KlController::Adaptive { target, .. } => format!(", adaptive, target {}", shortest(target)),
    };
    format!("KL {name} times {coefficient} in the {place}{adapted}")
}

fn advantage_text(advantage: &Advantage) -> String {
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

/// A field of an object, or of an object within it.
fn field(value: &Value, name: &str) -> Option<Value> {
    let object = value.as_object()?;
    object.get(name).cloned().or_else(|| object.values().find_map(|inner| field(inner, name)))
}

#[cfg(test)]
mod tests {
    use tamis_config::source::{Source, SourceKind};
    use tamis_config::{Loaded, Preset, load_sources};
    use tamis_env::reward::RewardKind;

    use super::*;

    fn loaded(rest: &str) -> Loaded {
        let model = if rest.starts_with("model:") { "" } else { "model: {path: m}\n" };
        let yaml = format!(
            "{model}data: {{task: arithmetic}}\nreward: [{{kind: number}}]\ntrain: {{total_steps: 1}}\n{rest}\n"
        );
        let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
        load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// The configuration with every value in force written out.
    fn written_out(rest: &str) -> (Loaded, Loaded) {
        let given = loaded(rest);
        let shown = given.show_with(&in_force(&given.config));
        let mut explicit = String::new();
        // Of a reward, `{buffer: 102, max_length: 512}` over or behind its keys.
        let mut of_reward: Vec<String> = Vec::new();
        for line in shown.lines() {
            if let Some((_, values)) = line.split_once("# in force: {") {
                let (values, _) = values.split_once('}').expect("an object");
                of_reward = values.split(", ").map(str::to_owned).collect();
            }
            let mut line = line.split("  # in force: {").next().unwrap_or_default().to_owned();
            if line.contains("{name: ") {
                for value in of_reward.drain(..) {
                    let (key, _) = value.split_once(": ").expect("a key");
                    assert!(line.contains(&format!("{key}: null")), "{key} is not null in {line}");
                    line = line.replace(&format!("{key}: null"), &value);
                }
            }
            match line.split_once("null  # in force: ") {
                Some((key, after)) => {
                    let value = after.split(" (").next().unwrap_or_default();
                    let _ = writeln!(explicit, "{key}{value}");
                }
                None => {
                    let _ = writeln!(explicit, "{line}");
                }
            }
        }
        assert_ne!(explicit.trim(), shown.trim(), "nothing was in force: {shown}");
        let source = Source::new(SourceKind::File("explicit.yaml".into()), explicit);
        (given, load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}")))
    }

    /// What is said to be in force is what is assembled: written out, it assembles to the same objects.
    #[test]
    fn values_in_force_are_those_of_the_assembled_objects() {
        let mut cases =
            vec!["objective: {aggregation: seq-mean-token-sum-norm}\nfilter: {kind: variance}".to_owned()];
        cases.extend(Preset::ALL.iter().map(|preset| format!("preset: {preset}")));
        for &kind in PolicyLoss::NAMES {
            let aggregation = if kind == "luspo" { "seq-mean-token-sum" } else { "token-mean" };
            let beta = if kind == "dro" { ", beta: 0.5" } else { "" };
            cases.push(format!("objective: {{aggregation: {aggregation}, loss: {{kind: {kind}{beta}}}}}"));
        }
        let sizes = "architecture: llama, hidden_size: 64, num_heads: 4, max_position_embeddings: 4096";
        cases.push(format!("model: {{init: {{{sizes}}}}}"));
        cases.push(
            "objective: {loss: {kind: cispo, bound: absolute}, entropy: {coefficient: 0.01}}".to_owned(),
        );
        cases.extend(
            Advantage::NAMES.iter().map(|kind| format!("objective: {{advantage: {{kind: {kind}}}}}")),
        );
        for case in &cases {
            let (given, explicit) = written_out(case);
            let of = |config: &Config| {
                let (mut objective, divergence) =
                    objective::objective(config).unwrap_or_else(|error| panic!("{case}: {error}"));
                // None and the policy loss's own are the same to it.
                let aggregation = objective.aggregation;
                if let Some(bonus) = &mut objective.entropy {
                    bonus.aggregation.get_or_insert(aggregation);
                }
                let rewards: Vec<String> = config
                    .reward
                    .iter()
                    .map(|reward| match &reward.kind {
                        RewardKind::SoftOverlong(settings) => format!("{:?}", settings.lengths(512)),
                        kind => format!("{kind:?}"),
                    })
                    .collect();
                (
                    (objective, divergence, config.model.init.as_ref().map(shape_of_sizes), rewards),
                    config.objective.advantage.clone(),
                    config.filter.is_some(),
                    (config.gen_batch_size(), config.mini_batch_size()),
                    critic::plan(config, MicroBatch::Sequences(1)).map(|plan| plan.settings.loss),
                )
            };
            assert_eq!(of(&given.config), of(&explicit.config), "{case}");
            for (key, value) in in_force(&given.config) {
                assert!(!value.is_null(), "{case}: {key}");
            }
            assert_eq!(in_force(&explicit.config), [], "{case}: what is written out is not null");
        }
    }

    #[test]
    fn null_keys_say_what_is_in_force() {
        let given = loaded("filter: {kind: variance}");
        let shown = given.show_with(&in_force(&given.config));
        let lines: Vec<&str> =
            shown.lines().filter(|line| line.contains("in force")).map(str::trim).collect();
        insta::assert_snapshot!(lines.join("\n"), @"
gen_batch_size: null  # in force: 64 (default)
metric: null  # in force: acc (default)
ppo_mini_batch_size: null  # in force: 64 (default)
");
        // A loss that does not read a key has nothing in force there.
        let given = loaded("objective: {loss: {kind: reinforce}}");
        assert!(in_force(&given.config).iter().all(|(key, _)| !key.contains("loss.")));
    }

    #[test]
    fn the_objective_in_one_line() {
        let line =
            |rest: &str| headline(&loaded(rest).config).unwrap_or_else(|error| panic!("{rest}: {error}"));
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
