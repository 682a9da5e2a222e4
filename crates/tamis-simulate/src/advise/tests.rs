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
    assert_eq!((single.filter.filter, single.lines.len()), (Some(false), 0));
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

/// Writes files into a folder, and reads it, or the file of that name.
fn read_of(files: &[(&str, String)], name: &str, plan: &Plan) -> Advice {
    let folder = tempfile::tempdir().unwrap();
    for (file, content) in files {
        std::fs::write(folder.path().join(file), content).unwrap();
    }
    advise(name, &read(&folder.path().join(name), None, None, plan).unwrap(), plan)
}

/// A run without rollouts was counted at its own n, whatever n is planned.
#[test]
fn counts_stay_those_of_the_n_that_was_sampled() {
    let counts = LoggedCounts {
        steps: vec![(128, 64); 10],
        pass_rate: Some(0.3),
        sampled: Sampled { n: Some(4), ..Sampled::default() },
        ..LoggedCounts::default()
    };
    let of = |counts: &LoggedCounts, n| {
        advise("run", &Evidence::Counts(counts.clone()), &Plan { n, ..Plan::default() })
    };
    let at = |advice: &Advice, n| advice.keep_rates.iter().find(|rate| rate.n == n).copied();
    let planned = of(&counts, 16);
    let four = at(&planned, 4).unwrap();
    assert!((four.rate.value - 0.5).abs() < 1e-12 && four.source == KeepRateSource::Counted);
    let keep = planned.keep_rate.unwrap();
    assert!(keep.value > 0.55 && keep.low < Some(keep.value) && keep.high > Some(keep.value), "{keep:?}");
    assert_eq!(Some(keep), at(&planned, 16).map(|rate| rate.rate));
    assert!((of(&counts, 0).keep_rate.unwrap().value - 0.5).abs() < 1e-12);
    // Without a pass rate larger groups are kept as often at least, and of smaller ones nothing is known.
    let without = LoggedCounts { pass_rate: None, ..counts };
    assert_eq!(at(&of(&without, 16), 16).unwrap().source, KeepRateSource::AtLeast);
    assert_eq!(of(&without, 2).keep_rate, None);
}

#[test]
fn logs_that_begin_with_a_bracket() {
    let guide = "[2024-01-01 10:00:15] INFO: Generated batch 1, 1024 prompts\n\
        [2024-01-01 10:00:18] INFO: Filtered (std=0): 620 (60.5%)\n\
        [2024-01-01 10:00:18] INFO: Kept (std>0): 404 (39.5%)\n\
        [2024-01-01 10:00:18] INFO: Accumulated prompts: 404 / 1024\n";
    let dynamic = "[Dynamic Sampling] Step 42, Gen batch 1: Kept 45/128 prompts (filtered 1328 trajectories), Accumulated: 45/128\n\
        [Dynamic Sampling] Step 42, Gen batch 2: Kept 62/128 prompts (filtered 1056 trajectories), Accumulated: 107/128\n";
    for (text, groups, keep) in [(guide, 1024, 404.0 / 1024.0), (dynamic, 256, 107.0 / 256.0)] {
        let found = read_of(&[("train.log", text.to_owned())], "train.log", &Plan::default());
        assert_eq!((found.sample.kind, found.sample.groups), (EvidenceSource::Log, groups), "{found}");
        let rate = found.keep_rate.unwrap();
        assert!(
            (rate.value - keep).abs() < 1e-12 && rate.low < Some(keep) && rate.high > Some(keep),
            "{rate:?}"
        );
        // How large groups are is not said.
        assert!(found.costs.as_ref().unwrap().modes.iter().all(|mode| mode.trajectories.is_none()));
        assert!(!found.to_string().contains("groups of 0"), "{found}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    std::fs::write(&path, "[{\"acc\": 1}]").unwrap();
    let refused = read(&path, None, None, &Plan::default()).unwrap_err().to_string();
    assert!(refused.contains("holds one JSON array"), "{refused}");
}

/// Rows of groups of two, as verl dumps them: so many right of each.
fn dump(groups: &[usize]) -> String {
    let rows = groups.iter().enumerate().flat_map(|(group, right)| {
        (0..2).map(move |member| {
            format!("{{\"input\": \"q{group}\", \"score\": {}}}\n", u8::from(member < *right))
        })
    });
    rows.collect()
}

#[test]
fn folders_of_tables_that_other_programs_wrote() {
    let plan = Plan { is_batch_known: true, ..Plan::default() };
    for names in [["9.jsonl", "10.jsonl"], ["completions_00009.jsonl", "completions_00010.jsonl"]] {
        let files = [(names[0], dump(&[1; 10])), (names[1], dump(&[0, 1, 2, 1]))];
        let found = read_of(&files, "", &plan);
        assert_eq!((found.sample.groups, found.sample.steps), (14, Some((9, 10))), "{found}");
        assert_eq!(found.filter.filter, Some(true), "{found}");
        // verl's name of that sum, which the recipe that has the filter knows.
        assert!(
            lines(&found, "verl").contains(&"algorithm.filter_groups.metric=seq_reward".to_owned()),
            "{found}"
        );
        assert!(lines(&found, "easyr1").contains(&"algorithm.filter_key=overall".to_owned()), "{found}");
        assert!(found.to_string().contains("main_dapo"));
    }
    // What the recipe dumps is what its filter kept.
    let kept = read_of(&[("1.jsonl", dump(&[1; 15])), ("2.jsonl", dump(&[1; 15]))], "", &plan);
    assert_eq!((kept.filter.filter, kept.keep_rate, kept.lines.len()), (None, None, 0), "{kept}");
    assert!(kept.to_string().contains("may hold kept groups alone"), "{kept}");
    let unfiltered = Plan { has_filter: Some(false), ..plan };
    let all = read_of(&[("1.jsonl", dump(&[1; 30]))], "1.jsonl", &unfiltered);
    assert!((all.keep_rate.unwrap().value - 1.0).abs() < 1e-12);
}

/// Steps that number their groups anew say nothing of the same prompt.
#[test]
fn numbers_that_repeat_name_no_prompt() {
    let row =
        |step, acc| format!("{{\"step\": {step}, \"group\": 0, \"acc\": {acc}, \"completion\": \"7\"}}\n");
    let two = read_of(&[("a.jsonl", row(1, 0) + &row(2, 1))], "a.jsonl", &Plan::default());
    assert!(!two.to_string().contains("judged in two ways") && two.sample.prompts == Some(2), "{two}");
    let one = read_of(&[("a.jsonl", row(1, 0) + &row(1, 1))], "a.jsonl", &Plan::default());
    assert!(one.to_string().contains("judged in two ways"), "{one}");
}

#[test]
fn values_that_are_worth_less_than_a_right_answer() {
    let with = |low: f64, top: f64| {
        let mut groups = spread_out();
        for member in groups.groups.iter_mut().flat_map(|group| &mut group.members) {
            member.scores[0] = if member.scores[0] > 0.5 { top } else { low };
        }
        advice(&groups, &Plan { is_batch_known: true, ..Plan::default() })
    };
    for (low, top) in [(0.0, 0.1), (-0.5, 0.0)] {
        let found = with(low, top);
        assert_eq!((found.pass_rate, found.histogram.len()), (None, 0));
        assert!(found.to_string().contains("nothing reaches 1"), "{found}");
    }
    // EasyR1's window lies between the two values.
    let window = |advice: &Advice| {
        let window = |line: &&String| {
            line.starts_with("algorithm.filter_low") || line.starts_with("algorithm.filter_high")
        };
        lines(advice, "easyr1").iter().filter(window).cloned().collect::<Vec<_>>()
    };
    let signs = with(-1.0, 1.0);
    assert!(signs.pass_rate.is_some());
    assert_eq!(window(&signs), ["algorithm.filter_low=-0.98", "algorithm.filter_high=0.98"]);
    assert_eq!(window(&with(0.1, 1.1)), ["algorithm.filter_low=0.11", "algorithm.filter_high=1.09"]);
    let large = Plan { n: 128, ..Plan::default() };
    let large = advice(&spread_out(), &large);
    assert!(window(&large).is_empty() && large.to_string().contains("outside of its window"), "{large}");
}

#[test]
fn lines_say_only_what_is_known() {
    let found = advice(&spread_out(), &Plan::default());
    for block in &found.lines {
        let text = block.lines.join("\n");
        assert!(
            !text.contains("batch_size=64")
                && !text.contains("train_batch_size: ")
                && !text.contains("gradient_acc"),
            "{text}"
        );
    }
    let mut named = spread_out();
    named.scores = vec!["it's right?: yes, no".to_owned()];
    let found = advice(&named, &Plan::default());
    let text = lines(&found, "tamis").join("\n") + "\n";
    let source = Source::new(SourceKind::File("advice.yaml".into()), text.clone());
    let loaded = load_sources_to_show(&[source], &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    assert_eq!(loaded.config.filter.unwrap().metric.as_deref(), Some("it's right?: yes, no"));
    assert!(
        found.to_string().contains(r"'algorithm.filter_groups.metric='\''it\'\''s right?: yes, no'\'''"),
        "{found}"
    );
    // A filter that is off is a key that verl's own trainer refuses.
    let solved = Groups::of_counts(&(0..400).map(|prompt| (8 - prompt % 3, 8)).collect::<Vec<_>>());
    assert!(
        lines(&advice(&solved, &Plan::default()), "verl").iter().all(|line| !line.contains("filter_groups"))
    );
}

#[test]
fn groups_that_are_not_worth_it() {
    let single = advice(&spread_out(), &Plan { n: 1, ..Plan::default() });
    assert!(single.filter.reasons[0].contains("never differs") && single.filter.filter == Some(false));
    // Where filtering is advised against, no size of group is advised for its sake.
    let solved =
        Groups::of_counts(&(0..1000).map(|prompt| (4 - usize::from(prompt % 8 == 0), 4)).collect::<Vec<_>>());
    let found = advice(&solved, &Plan::default());
    assert_eq!((found.filter.filter, found.group_size.clone()), (Some(false), None), "{found}");
    // A few prompts of one half each: larger groups keep hardly more, and each costs twice as much.
    let split =
        Groups::of_counts(&(0..1000).map(|prompt| (2 * usize::from(prompt % 8 == 0), 4)).collect::<Vec<_>>());
    assert_eq!(advice(&split, &Plan::default()).group_size, None);
}
