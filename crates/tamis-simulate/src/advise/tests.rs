//! Whole advice: degenerate evidence, lines that are accepted, costs that a simulation has.

use std::path::Path;
use std::sync::Arc;

use tamis_config::source::{Source, SourceKind};
use tamis_config::{
    BetaRates, Config, PassRates, SimulateConfig, SimulatedPolicy, import, load_sources_to_show,
};

use super::*;
use crate::{World, simulate_in};

fn advice(groups: &Groups, plan: &Plan) -> Advice {
    advise("x.jsonl", &Evidence::Groups(groups.clone()), plan)
}

/// 400 prompts, groups of 8, every ninth as often as another.
fn spread_out() -> Groups {
    Groups::of_counts(&(0..400).map(|prompt| (prompt % 9, 8)).collect::<Vec<_>>())
}

fn lines<'a>(advice: &'a Advice, system: &str) -> &'a [String] {
    &advice.lines.iter().find(|lines| lines.system == system).unwrap().lines
}

#[test]
fn what_is_said_of_plain_groups() {
    let plan = Plan { train_batch_size: 128, gen_batch_size: 128, is_batch_known: true, ..Plan::default() };
    let advice = advice(&spread_out(), &plan);
    insta::assert_snapshot!(advice.to_string());
    assert_eq!(advice.start_lines().len(), 1);
}

/// The lines of tamis are read as a configuration, those of the others by the importer, and both say the
/// same.
#[test]
fn lines_are_accepted_by_the_systems_they_are_for() {
    let plain = Plan { train_batch_size: 96, gen_batch_size: 96, is_batch_known: true, ..Plan::default() };
    let solved = Groups::of_counts(&(0..400).map(|prompt| (8 - prompt % 3, 8)).collect::<Vec<_>>());
    let at_servers = Plan { samples_at_servers: true, ..plain.clone() };
    for (groups, plan, filters) in
        [(spread_out(), &plain, true), (spread_out(), &at_servers, true), (solved, &plain, false)]
    {
        let advice = advice(&groups, plan);
        assert_eq!(advice.filter.filter, Some(filters), "{advice}");
        let text = lines(&advice, "tamis").join("\n") + "\n";
        let source = Source::new(SourceKind::File("advice.yaml".into()), text.clone());
        let sources: &[Arc<Source>] = &[source];
        let loaded = load_sources_to_show(sources, &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let config = loaded.config;
        assert_eq!((config.data.train_batch_size, config.rollout.n), (96, 8));
        assert_eq!(config.filter.is_some(), filters);
        for system in ["verl", "easyr1", "easyr1_dynamic_sampling", "trl"] {
            let arguments = lines(&advice, system);
            let imported = import(arguments, Path::new(""))
                .unwrap_or_else(|errors| panic!("{system}: {arguments:?}\n{errors}"));
            let refused: Vec<String> = imported
                .notes
                .iter()
                .map(ToString::to_string)
                .filter(|note| note.contains("refused"))
                .collect();
            assert_eq!(refused, Vec::<String>::new(), "{system}");
            let has = |line: &str| imported.yaml.contains(line);
            assert!(has("n: 8"), "{system}\n{}", imported.yaml);
            if system == "trl" {
                let prompts = if filters { 124 } else { 96 };
                assert!(has(&format!("train_batch_size: {prompts}")), "{}", imported.yaml);
                continue;
            }
            assert!(has("train_batch_size: 96"), "{system}\n{}", imported.yaml);
            assert_eq!(has("max_num_gen_batches"), filters, "{system}\n{}", imported.yaml);
        }
        if filters {
            let yaml = import(lines(&advice, "verl"), Path::new("")).unwrap().yaml;
            assert!(yaml.contains("kind: variance") && yaml.contains("metric: acc"), "{yaml}");
            let round =
                format!("gen_batch_size: {}", advice.costs.as_ref().unwrap().round.unwrap().gen_batch_size);
            assert!(yaml.contains(&round) && text.contains(&round), "{yaml}");
        }
    }
}

#[test]
fn settings_that_findings_change_are_in_the_lines() {
    let mut groups = spread_out();
    for (number, member) in groups.groups.iter_mut().flat_map(|group| &mut group.members).enumerate() {
        *member = Member {
            text: Some(7),
            tokens: Some(100),
            is_truncated: Some(number % 4 == 0),
            ..member.clone()
        };
    }
    let plan = Plan { temperature: Some(0.7), max_response_length: Some(100), ..Plan::default() };
    let advice = advice(&groups, &plan);
    assert!(
        lines(&advice, "tamis")
            .contains(&"rollout: {n: 8, temperature: 1.0, max_response_length: 200}".to_owned())
    );
    assert!(lines(&advice, "verl").contains(&"data.max_response_length=200".to_owned()));
    assert!(lines(&advice, "easyr1").contains(&"worker.rollout.temperature=1.0".to_owned()));
    assert!(lines(&advice, "trl").contains(&"max_completion_length=200".to_owned()));
    let tokens = advice.costs.unwrap().mode("carried").unwrap().tokens.unwrap().value;
    // 64 groups of 8 of 100 tokens, over the keep rate.
    assert!((tokens - 51_200.0 * 400.0 / 311.0).abs() < 1.0, "{tokens}");
}

#[test]
fn degenerate_evidence_is_answered() {
    let plan = Plan::default();
    let empty = advice(&Groups::of_counts(&[]), &plan);
    assert_eq!((empty.filter.filter, empty.keep_rates.len(), empty.lines.len()), (None, 0, 0));
    let one = advice(&Groups::of_counts(&[(3, 8)]), &plan);
    assert_eq!(one.keep_rate, Some(Estimate::exact(1.0)));
    assert!(one.to_string().contains("one prompt"), "{one}");
    let single = advice(&Groups::of_counts(&[(1, 1), (0, 1)]), &plan);
    assert_eq!((single.filter.filter, single.lines.len()), (None, 0));
    assert!(single.to_string().contains("every group has one member"), "{single}");
    let hopeless = advice(&Groups::of_counts(&[(0, 8); 50]), &plan);
    assert_eq!((hopeless.filter.filter, hopeless.lines.len()), (None, 0));
    assert!(hopeless.to_string().contains("look first: no group has members that differ"), "{hopeless}");
    let mixed = advice(&Groups::of_counts(&[(4, 8); 50]), &plan);
    assert_eq!(mixed.filter.filter, Some(true));
    assert!(mixed.filter.reasons[0].contains("costs little and changes little"), "{:?}", mixed.filter);
    for text in [&empty, &one, &single, &hopeless, &mixed].map(ToString::to_string) {
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}

#[test]
fn when_not_to_filter_and_when_groups_are_too_small() {
    let critic = Plan { has_critic: true, ..Plan::default() };
    let found = advice(&spread_out(), &critic);
    assert_eq!(found.filter.filter, Some(false));
    assert!(found.filter.reasons[0].contains("critic"));
    // One in twenty prompts is solved now and then.
    let hard =
        Groups::of_counts(&(0..2000).map(|prompt| (usize::from(prompt % 10 == 0), 4)).collect::<Vec<_>>());
    let found = advice(&hard, &Plan::default());
    let (n, why) = found.group_size.clone().unwrap();
    assert!(n > 4 && why.contains("instead of 10.0%"), "{n}: {why}");
    assert!(lines(&found, "tamis").iter().any(|line| line.contains(&format!("n: {n}"))), "{found}");
}

#[test]
fn a_log_says_less_and_says_so() {
    let counts = LoggedCounts {
        steps: vec![(128, 64); 10],
        range: Some((1, 10)),
        pass_rate: Some(0.5),
        train_batch_size: Some(32),
        gen_batch_size: Some(64),
        ..LoggedCounts::default()
    };
    let plan = Plan { n: 8, ..Plan::default() };
    let found = advise("run.log", &Evidence::Counts(counts.clone()), &plan);
    let keep = found.keep_rate.unwrap();
    // Every step alike: at least the interval of 1280 groups.
    assert!((keep.value - 0.5).abs() < 1e-12 && keep.low < Some(0.48) && keep.high > Some(0.52), "{keep:?}");
    assert_eq!((found.plan.train_batch_size, found.plan.gen_batch_size), (32, 64));
    let at = |n| found.keep_rates.iter().find(|rate| rate.n == n).unwrap().rate.value;
    assert!(at(4) < 0.5 && at(16) > 0.5 && (at(8) - 0.5).abs() < 1e-12);
    assert!(found.to_string().contains("counts say nothing of single groups"), "{found}");
    let without = advise("run.log", &Evidence::Counts(counts), &Plan::default());
    assert!(without.keep_rates.is_empty() && without.lines.is_empty());
    assert!(without.to_string().contains("does not say how large groups are"), "{without}");
}

/// What is predicted from groups is what the scheduling machine comes to in a world with those pass rates.
#[test]
fn costs_are_those_of_the_simulation() {
    let (train, n) = (64, 8);
    let mut config = Config::default();
    (config.data.train_batch_size, config.rollout.n, config.run.seed) = (train, n, 5);
    let rates = PassRates::Beta(BetaRates { a: 0.4, b: 0.6, prompts: 20_000 });
    config.simulate = Some(SimulateConfig { pass_rate: rates, servers: None, ..SimulateConfig::default() });
    let keys = config.simulate.clone().unwrap();
    let mut world = World::new(&config, &keys).unwrap();
    (world.steps, world.warm_up) = (400, 50);
    let policies = [SimulatedPolicy::Verl, SimulatedPolicy::StreamingCarry, SimulatedPolicy::Deficit];
    let simulated = simulate_in(&world, &config, &policies).unwrap();

    // Groups that are sampled from the same pass rates.
    let key = tamis_core::random::Key::new(9, tamis_core::random::Purpose::Task);
    let groups: Vec<(usize, usize)> = world
        .population
        .rates()
        .enumerate()
        .step_by(5)
        .map(|(prompt, rate)| {
            let key = key.with(prompt as u64);
            ((0..n as u64).filter(|member| key.uniform(*member) < rate).count(), n)
        })
        .collect();
    let plan = Plan { train_batch_size: train, gen_batch_size: train, ..Plan::default() };
    let advice = advice(&Groups::of_counts(&groups), &plan);
    let costs = advice.costs.unwrap();
    for (policy, mode) in policies.iter().zip(["rounds", "carried", "deficit"]) {
        let found = simulated.policies.iter().find(|result| result.name == *policy).unwrap();
        let found = found.generated_per_kept.unwrap();
        let predicted = costs.mode(mode).unwrap().generated_per_kept;
        let error = predicted.value / found - 1.0;
        assert!(error.abs() < 0.04, "{mode}: {predicted:?} instead of {found}");
    }
}
