//! Keys of other systems over and below the layers of ours.
#![expect(clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../tamis-config/tests/support/brief.rs"]
mod brief;

use brief::brief;
use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{ConfigErrors, Frequency, Loaded};
use tamis_core::advantage::Advantage;
use tamis_core::objective::{CispoBound, PolicyLoss};
use tamis_core::schedule::RoundLimit;
use tamis_import::load_sources;

const BASE: &str = "model: {path: m}\ndata: {task: arithmetic}\ntrain: {total_steps: 10}\n";

fn load(files: &[&str], arguments: &[&str]) -> Result<Loaded, ConfigErrors> {
    let names = ["base.yaml", "more.yaml", "last.yaml"];
    let sources: Vec<_> = files
        .iter()
        .zip(names)
        .map(|(text, name)| Source::new(SourceKind::File(name.into()), *text))
        .collect();
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    load_sources(&sources, &arguments)
}

fn sound(files: &[&str], arguments: &[&str]) -> Loaded {
    load(files, arguments).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn keys_of_other_systems_follow_the_kind_that_a_file_chooses() {
    let of = |file: &str, arguments: &[&str]| {
        let loaded = sound(&[BASE, file], arguments);
        let notes: Vec<String> = loaded.notes.iter().map(ToString::to_string).collect();
        (loaded.config.objective, notes.join("\n"))
    };
    let (objective, notes) = of(
        "objective: {advantage: {kind: grpo_passk}}",
        &["algorithm.norm_adv_by_std_in_grpo=False", "algorithm.gamma=0.5"],
    );
    let Advantage::GrpoPassk(passk) = objective.advantage else { panic!("passk") };
    assert!(!passk.divide);
    assert_snapshot!(notes, @"
    algorithm.norm_adv_by_std_in_grpo=False -> objective.advantage.divide: false
    algorithm.gamma=0.5 has no effect: `objective.advantage.kind: grpo_passk` does not read it
    ");
    let (objective, _) = of("objective: {advantage: {kind: grpo_passk}}", &["scale_rewards=none"]);
    let Advantage::GrpoPassk(passk) = objective.advantage else { panic!("passk") };
    assert!(!passk.divide);
    let (_, notes) = of("", &["algorithm.adv_estimator=rloo", "algorithm.gamma=0.5", "scale_rewards=batch"]);
    assert_snapshot!(notes, @"
    algorithm.adv_estimator=rloo -> objective.advantage.kind: rloo, objective.advantage.singleton: raw
    algorithm.gamma=0.5 has no effect: `objective.advantage.kind: rloo` does not read it
    scale_rewards=batch has no effect: `objective.advantage.kind: rloo` does not read it
    ");

    let (objective, notes) = of(
        "objective: {loss: {kind: kl_cov}}",
        &[
            "actor_rollout_ref.actor.policy_loss.ppo_kl_coef=0.5",
            "actor_rollout_ref.actor.clip_ratio_low=0.1",
        ],
    );
    let PolicyLoss::KlCov(loss) = objective.loss else { panic!("kl_cov") };
    assert_eq!(loss.cov_coefficient.to_bits(), 0.5_f64.to_bits());
    assert_snapshot!(notes, @"
    actor_rollout_ref.actor.policy_loss.ppo_kl_coef=0.5 -> objective.loss.cov_coefficient: 0.5
    actor_rollout_ref.actor.clip_ratio_low=0.1 has no effect: `objective.loss.kind: kl_cov` does not read it
    ");
    let (objective, notes) = of("objective: {loss: {kind: cispo}}", &["epsilon=0.3", "epsilon_high=4"]);
    let PolicyLoss::Cispo(loss) = objective.loss else { panic!("cispo") };
    assert_eq!((loss.bound, loss.max_ratio), (CispoBound::Absolute, 4.0));
    assert_snapshot!(notes, @"
    epsilon=0.3 is translated together with epsilon_high
    epsilon_high=4 -> objective.loss.bound: absolute, objective.loss.max_ratio: 4
    ");
    let (objective, notes) = of("objective: {loss: {kind: sapo}}", &["worker.actor.tau_positive=2"]);
    let PolicyLoss::Sapo(loss) = objective.loss else { panic!("sapo") };
    assert_eq!(loss.tau_positive.to_bits(), 2.0_f64.to_bits());
    assert_snapshot!(notes, @"worker.actor.tau_positive=2 -> objective.loss.tau_positive: 2");
}

#[test]
fn keys_of_other_systems_that_the_kind_does_not_read_are_checked_all_the_same() {
    let wrong = |argument: &str| brief(&load(&[BASE], &[argument]).expect_err(argument).diagnostics);
    assert_snapshot!(wrong("algorithm.high_level_gamma=grpo"), @r#"
error: `objective.advantage.turn_gamma` must be a number, not the text "grpo"
  at command line, RAGEN key: algorithm.high_level_gamma=«grpo» [explain it]
"#);
    assert_snapshot!(wrong("algorithm.gamma=2"), @"
error: `objective.advantage.gamma` must be from 0 to 1, got 2
  at command line, verl key: algorithm.gamma=«2» [explain it]
");
}

#[test]
fn native_keys_go_over_foreign_ones() {
    let loaded = sound(&[BASE], &["rollout.n=4", "actor_rollout_ref.rollout.n=16"]);
    assert_eq!(loaded.config.rollout.n, 4);
}

#[test]
fn foreign_keys_on_the_command_line() {
    let loaded = sound(
        &[BASE],
        &["algorithm.filter_groups.enable=True", "actor_rollout_ref.rollout.n=16", "trainer.test_freq=-1"],
    );
    let filter = loaded.config.filter.clone().unwrap();
    assert_eq!(filter.metric.as_deref(), Some("seq_reward"));
    assert_eq!(loaded.config.schedule.max_num_gen_batches.0, RoundLimit::None, "verl's default is no limit");
    assert_eq!(loaded.config.validate.test_freq, Frequency::NEVER);
    let notes: Vec<String> = loaded.notes.iter().map(ToString::to_string).collect();
    assert_snapshot!(notes.join("\n"), @"
algorithm.filter_groups.enable=True -> filter.kind: variance, filter.singleton: keep, filter.tolerance: 0.0, schedule.refill: true, schedule.on_limit: error, schedule.on_empty_round: retry, schedule.on_exhausted: next_epoch, schedule.surplus: discard, schedule.order: dispatch, filter.metric: seq_reward, schedule.max_num_gen_batches: null (no metric is given: verl takes the reward before the KL; `acc` is only the raw outcome)
actor_rollout_ref.rollout.n=16 -> rollout.n: 16
trainer.test_freq=-1 -> validate.test_freq: -1
");
}

#[test]
fn a_key_of_another_system_that_the_kind_does_not_read_is_noted() {
    let notes = |arguments: &[&str]| -> String {
        let loaded = load(&[BASE], arguments).unwrap();
        loaded.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(notes(&["algorithm.gamma=0.99"]), @"algorithm.gamma=0.99 has no effect: `objective.advantage.kind: grpo` does not read it");
    assert_snapshot!(notes(&["algorithm.gamma=0.99", "objective.advantage.kind=gae"]), @"algorithm.gamma=0.99 -> objective.advantage.gamma: 0.99");
}

#[test]
fn a_value_is_shown_with_the_key_that_it_is_from() {
    let shown = sound(&[BASE], &["actor_rollout_ref.rollout.n=16"]).show();
    let line = shown.lines().find(|line| line.contains("  n: ")).unwrap();
    assert_snapshot!(line.trim(), @"n: 16  # verl: actor_rollout_ref.rollout.n=16");
}
