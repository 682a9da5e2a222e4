//! Whole advice: degenerate evidence, valid lines, and costs that agree with a simulation.

use std::path::Path;
use std::sync::Arc;

use tamis_config::source::{Source, SourceKind};
use tamis_config::{
    BetaRates, Config, SimulateConfig, SimulatedPassRates, SimulatedPolicy, load_sources_to_show,
};
use tamis_import::import;

use super::*;
use crate::simulate::{SimulatedWorld, simulate_in};

mod of_verl;
mod over_plan;

fn advice(groups: &Groups, plan: &AdvicePlan) -> Advice {
    advise("x.jsonl", &Evidence::Groups(groups.clone()), plan)
}

/// 400 prompts with groups of 8. Each of the nine counts of correct members is equally frequent.
fn spread_out() -> Groups {
    Groups::of_counts(&(0..400).map(|prompt| (prompt % 9, 8)).collect::<Vec<_>>())
}

fn lines<'a>(advice: &'a Advice, system: &str) -> &'a [String] {
    &advice.lines.iter().find(|lines| lines.system == system).unwrap().lines
}

#[test]
fn what_is_said_of_plain_groups() {
    let plan = AdvicePlan {
        train_batch_size: 128,
        gen_batch_size: 128,
        is_batch_known: true,
        ..AdvicePlan::default()
    };
    let advice = advice(&spread_out(), &plan);
    insta::assert_snapshot!(advice.to_string());
    assert_eq!(advice.start_lines().len(), 1);
}

/// The lines for tamis are read as a configuration and those for the others by the importer. Both give the
/// same settings.
#[test]
fn lines_are_accepted_by_the_systems_they_are_for() {
    let plain = AdvicePlan {
        train_batch_size: 96,
        gen_batch_size: 96,
        is_batch_known: true,
        ..AdvicePlan::default()
    };
    let solved = Groups::of_counts(&(0..400).map(|prompt| (8 - prompt % 3, 8)).collect::<Vec<_>>());
    let at_servers = AdvicePlan { samples_at_servers: true, ..plain.clone() };
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
            assert!(has("train_batch_size: 96"), "{system}\n{}", imported.yaml);
            // TRL has no key for the limit.
            let says_limit = filters && system != "trl";
            assert_eq!(has("max_num_gen_batches"), says_limit, "{system}\n{}", imported.yaml);
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
    let plan = AdvicePlan { temperature: Some(0.7), max_response_length: Some(100), ..AdvicePlan::default() };
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
    let plan = AdvicePlan::default();
    let empty = advice(&Groups::of_counts(&[]), &plan);
    assert_eq!((empty.filter.filter, empty.keep_rates.len(), empty.lines.len()), (None, 0, 0));
    let one = advice(&Groups::of_counts(&[(3, 8)]), &plan);
    assert_eq!(one.keep_rate, Some(KeepEstimate::exact(1.0)));
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
    let critic = AdvicePlan { has_critic: true, ..AdvicePlan::default() };
    let found = advice(&spread_out(), &critic);
    assert_eq!(found.filter.filter, Some(false));
    // Both reasons come from measurements.
    let [tokens, steps, ..] = found.filter.reasons.as_slice() else { panic!("{:?}", found.filter) };
    assert!(tokens.starts_with("if generated tokens are the limit: with a critic"), "{tokens}");
    assert!(steps.starts_with("yes, if steps are the limit") && steps.contains("43.9 to 54.9"), "{steps}");
    // One prompt in twenty is solved now and then.
    let hard =
        Groups::of_counts(&(0..2000).map(|prompt| (usize::from(prompt % 10 == 0), 4)).collect::<Vec<_>>());
    let found = advice(&hard, &AdvicePlan::default());
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
    let plan = AdvicePlan { n: 8, ..AdvicePlan::default() };
    let found = advise("run.log", &Evidence::Counts(counts.clone()), &plan);
    let keep = found.keep_rate.unwrap();
    // All steps are alike: at least the interval of 1280 groups.
    assert!((keep.value - 0.5).abs() < 1e-12 && keep.low < Some(0.48) && keep.high > Some(0.52), "{keep:?}");
    assert_eq!((found.plan.train_batch_size, found.plan.gen_batch_size), (32, 64));
    let at = |n| found.keep_rates.iter().find(|rate| rate.n == n).unwrap().rate.value;
    assert!(at(4) < 0.5 && at(16) > 0.5 && (at(8) - 0.5).abs() < 1e-12);
    assert!(found.to_string().contains("counts have no single groups"), "{found}");
    let without = advise("run.log", &Evidence::Counts(counts), &AdvicePlan::default());
    assert!(without.keep_rates.is_empty() && without.lines.is_empty());
    assert!(without.to_string().contains("does not show how large groups are"), "{without}");
}

/// The forecast from groups agrees with the scheduler in a simulation with the same pass rates.
#[test]
fn costs_are_those_of_the_simulation() {
    let (train, n) = (64, 8);
    let mut config = Config::default();
    (config.data.train_batch_size, config.rollout.n, config.run.seed) = (train, n, 5);
    let rates = SimulatedPassRates::Beta(BetaRates { a: 0.4, b: 0.6, prompts: 20_000 });
    config.simulate = Some(SimulateConfig { pass_rate: rates, servers: None, ..SimulateConfig::default() });
    let keys = config.simulate.clone().unwrap();
    let mut world = SimulatedWorld::new(&config, &keys).unwrap();
    (world.steps, world.warm_up) = (400, 50);
    let policies = [SimulatedPolicy::Verl, SimulatedPolicy::StreamingCarry, SimulatedPolicy::Deficit];
    let simulated = simulate_in(&world, &config, &policies).unwrap();

    // Groups sampled with the same pass rates.
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
    let plan = AdvicePlan { train_batch_size: train, gen_batch_size: train, ..AdvicePlan::default() };
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

/// Writes files into a folder, and reads the folder or the file `name`.
fn read_of(files: &[(&str, String)], name: &str, plan: &AdvicePlan) -> Advice {
    let folder = tempfile::tempdir().unwrap();
    for (file, content) in files {
        std::fs::write(folder.path().join(file), content).unwrap();
    }
    advise(name, &read(&folder.path().join(name), None, None, plan).unwrap(), plan)
}

/// The counts of a run without rollouts are those at its own n, whatever n is planned.
#[test]
fn counts_stay_those_of_the_n_that_was_sampled() {
    let counts = LoggedCounts {
        steps: vec![(128, 64); 10],
        pass_rate: Some(0.3),
        sampled: Sampled { n: Some(4), ..Sampled::default() },
        ..LoggedCounts::default()
    };
    let of = |counts: &LoggedCounts, n| {
        advise("run", &Evidence::Counts(counts.clone()), &AdvicePlan { n, ..AdvicePlan::default() })
    };
    let at = |advice: &Advice, n| advice.keep_rates.iter().find(|rate| rate.n == n).copied();
    let planned = of(&counts, 16);
    let four = at(&planned, 4).unwrap();
    assert!((four.rate.value - 0.5).abs() < 1e-12 && four.source == KeepRateSource::Counted);
    let keep = planned.keep_rate.unwrap();
    assert!(keep.value > 0.55 && keep.low < Some(keep.value) && keep.high > Some(keep.value), "{keep:?}");
    assert_eq!(Some(keep), at(&planned, 16).map(|rate| rate.rate));
    assert!((of(&counts, 0).keep_rate.unwrap().value - 0.5).abs() < 1e-12);
    // Without a pass rate larger groups are kept at least as often, and nothing is known of smaller ones.
    let without = LoggedCounts { pass_rate: None, ..counts };
    assert_eq!(at(&of(&without, 16), 16).unwrap().source, KeepRateSource::AtLeast);
    assert_eq!(of(&without, 2).keep_rate, None);
}

#[test]
fn logs_that_begin_with_a_bracket() {
    let filter_groups = "[2024-01-01 10:00:15] INFO: Generated batch 1, 1024 prompts\n\
        [2024-01-01 10:00:18] INFO: Filtered (std=0): 620 (60.5%)\n\
        [2024-01-01 10:00:18] INFO: Kept (std>0): 404 (39.5%)\n\
        [2024-01-01 10:00:18] INFO: Accumulated prompts: 404 / 1024\n";
    let dynamic = "[Dynamic Sampling] Step 42, Gen batch 1: Kept 45/128 prompts (filtered 1328 trajectories), Accumulated: 45/128\n\
        [Dynamic Sampling] Step 42, Gen batch 2: Kept 62/128 prompts (filtered 1056 trajectories), Accumulated: 107/128\n";
    for (text, groups, keep) in [(filter_groups, 1024, 404.0 / 1024.0), (dynamic, 256, 107.0 / 256.0)] {
        let found = read_of(&[("train.log", text.to_owned())], "train.log", &AdvicePlan::default());
        assert_eq!((found.sample.kind, found.sample.groups), (EvidenceSource::Log, groups), "{found}");
        let rate = found.keep_rate.unwrap();
        assert!(
            (rate.value - keep).abs() < 1e-12 && rate.low < Some(keep) && rate.high > Some(keep),
            "{rate:?}"
        );
        // The group size is unknown.
        assert!(found.costs.as_ref().unwrap().modes.iter().all(|mode| mode.trajectories.is_none()));
        assert!(!found.to_string().contains("groups of 0"), "{found}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    std::fs::write(&path, "[{\"acc\": 1}]").unwrap();
    let refused = read(&path, None, None, &AdvicePlan::default()).unwrap_err().to_string();
    assert!(refused.contains("holds one JSON array"), "{refused}");
}

/// Rows of groups of two as verl dumps them. `groups` has the number of correct members of each.
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
    let plan = AdvicePlan { is_batch_known: true, ..AdvicePlan::default() };
    for names in [["9.jsonl", "10.jsonl"], ["completions_00009.jsonl", "completions_00010.jsonl"]] {
        let files = [(names[0], dump(&[1; 10])), (names[1], dump(&[0, 1, 2, 1]))];
        let found = read_of(&files, "", &plan);
        assert_eq!((found.sample.groups, found.sample.steps), (14, Some((9, 10))), "{found}");
        assert_eq!(found.filter.filter, Some(true), "{found}");
        // verl's name for that sum, which the recipe with the filter knows.
        assert!(
            lines(&found, "verl").contains(&"algorithm.filter_groups.metric=seq_reward".to_owned()),
            "{found}"
        );
        assert!(lines(&found, "easyr1").contains(&"algorithm.filter_key=overall".to_owned()), "{found}");
        assert!(found.to_string().contains("main_dapo"));
    }
    // The recipe dumps only groups that its filter kept.
    let kept = read_of(&[("1.jsonl", dump(&[1; 15])), ("2.jsonl", dump(&[1; 15]))], "", &plan);
    assert_eq!((kept.filter.filter, kept.keep_rate, kept.lines.len()), (None, None, 0), "{kept}");
    assert!(kept.to_string().contains("may have only kept groups"), "{kept}");
    let unfiltered = AdvicePlan { has_filter: Some(false), ..plan };
    let all = read_of(&[("1.jsonl", dump(&[1; 30]))], "1.jsonl", &unfiltered);
    assert!((all.keep_rate.unwrap().value - 1.0).abs() < 1e-12);
}

/// Equal group numbers in different steps do not mean the same prompt.
#[test]
fn numbers_that_repeat_name_no_prompt() {
    let row =
        |step, acc| format!("{{\"step\": {step}, \"group\": 0, \"acc\": {acc}, \"completion\": \"7\"}}\n");
    let two = read_of(&[("a.jsonl", row(1, 0) + &row(2, 1))], "a.jsonl", &AdvicePlan::default());
    assert!(!two.to_string().contains("judged in two ways") && two.sample.prompts == Some(2), "{two}");
    let one = read_of(&[("a.jsonl", row(1, 0) + &row(1, 1))], "a.jsonl", &AdvicePlan::default());
    assert!(one.to_string().contains("judged in two ways"), "{one}");
}

#[test]
fn values_that_are_worth_less_than_a_right_answer() {
    let with = |low: f64, top: f64| {
        let mut groups = spread_out();
        for member in groups.groups.iter_mut().flat_map(|group| &mut group.members) {
            member.scores[0] = if member.scores[0] > 0.5 { top } else { low };
        }
        advice(&groups, &AdvicePlan { is_batch_known: true, ..AdvicePlan::default() })
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
    let large = AdvicePlan { n: 128, ..AdvicePlan::default() };
    let large = advice(&spread_out(), &large);
    assert!(window(&large).is_empty() && large.to_string().contains("outside of its window"), "{large}");
}

#[test]
fn lines_say_only_what_is_known() {
    let found = advice(&spread_out(), &AdvicePlan::default());
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
    let found = advice(&named, &AdvicePlan::default());
    let text = lines(&found, "tamis").join("\n") + "\n";
    let source = Source::new(SourceKind::File("advice.yaml".into()), text.clone());
    let loaded = load_sources_to_show(&[source], &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    assert_eq!(loaded.config.filter.unwrap().metric.as_deref(), Some("it's right?: yes, no"));
    assert!(
        found.to_string().contains(r"'algorithm.filter_groups.metric='\''it\'\''s right?: yes, no'\'''"),
        "{found}"
    );
    // verl's own trainer refuses the key of a disabled filter.
    let solved = Groups::of_counts(&(0..400).map(|prompt| (8 - prompt % 3, 8)).collect::<Vec<_>>());
    assert!(
        lines(&advice(&solved, &AdvicePlan::default()), "verl")
            .iter()
            .all(|line| !line.contains("filter_groups"))
    );
}

#[test]
fn groups_that_are_not_worth_it() {
    // A baseline over the batch needs only one completion per prompt.
    let batch = advice(
        &spread_out(),
        &AdvicePlan { n: 1, baseline: Some("the whole batch"), ..AdvicePlan::default() },
    );
    assert_eq!(batch.filter.filter, Some(false));
    assert!(batch.filter.reasons[0].contains("compare with the whole batch"), "{:?}", batch.filter.reasons);
    let single = advice(&spread_out(), &AdvicePlan { n: 1, ..AdvicePlan::default() });
    assert!(single.filter.reasons[0].contains("never differs") && single.filter.filter == Some(false));
    // If filtering is not advised, no other group size is advised either.
    let solved =
        Groups::of_counts(&(0..1000).map(|prompt| (4 - usize::from(prompt % 8 == 0), 4)).collect::<Vec<_>>());
    let found = advice(&solved, &AdvicePlan::default());
    assert_eq!((found.filter.filter, found.group_size.clone()), (Some(false), None), "{found}");
    // A few prompts with pass rate 1/2: larger groups keep hardly more, and each costs twice as much.
    let split =
        Groups::of_counts(&(0..1000).map(|prompt| (2 * usize::from(prompt % 8 == 0), 4)).collect::<Vec<_>>());
    assert_eq!(advice(&split, &AdvicePlan::default()).group_size, None);
}

/// Groups of 8 of 4000 prompts with spread out pass rates, most of them hard. The second value has the same
/// groups from a run that ends groups with alike `first` members.
fn ended_early(first: usize) -> (Groups, Groups) {
    let key = tamis_core::random::Key::new(3, tamis_core::random::Purpose::Task);
    let of = |prompt: u64| {
        let rate = key.uniform(prompt).powi(4);
        let member = |member: u64| Member {
            place: Some(member),
            scores: vec![f64::from(u8::from(key.with(prompt).uniform(member) < rate))],
            ..Member::default()
        };
        EvidenceGroup {
            prompt: prompt as usize,
            members: (0..8).map(member).collect(),
            ..EvidenceGroup::default()
        }
    };
    let groups = (0..4000).map(of).collect();
    let whole = Groups { scores: vec!["acc".to_owned()], groups, ..Groups::default() };
    let mut screened = Groups { first_members: Some(first), ..whole.clone() };
    for group in &mut screened.groups {
        let begun = &group.members[..first];
        group.is_screened = begun.iter().all(|member| member.scores == begun[0].scores);
        if group.is_screened {
            group.members.truncate(first);
        }
    }
    (whole, screened)
}

/// Both kinds of groups give the same figures. Only those beyond the first members come from the fit.
#[test]
fn groups_that_ended_early_bias_nothing() {
    let (whole, screened) = ended_early(3);
    let plan = AdvicePlan { screen_first: Some(3), ..AdvicePlan::default() };
    let (whole, found) = (advice(&whole, &plan), advice(&screened, &plan));
    assert_eq!((found.plan.n, found.sample.screened.unwrap().first), (8, Some(3)));
    let at = |advice: &Advice, n| *advice.keep_rates.iter().find(|rate| rate.n == n).unwrap();
    for (n, source) in [
        (2, KeepRateSource::Counted),
        (3, KeepRateSource::Counted),
        (4, KeepRateSource::Fitted),
        (8, KeepRateSource::Fitted),
    ] {
        let (one, other) = (at(&whole, n).rate, at(&found, n).rate);
        assert!((one.value - other.value).abs() < 0.03, "{n}: {one:?} and {other:?}");
        assert_eq!(at(&found, n).source, source);
        assert!(
            other.low < Some(one.value) && other.high > Some(one.value),
            "{n}: {one:?} outside of {other:?}"
        );
    }
    assert_eq!(found.keep_rate, Some(at(&found, 8).rate));
    let rates = [&whole, &found].map(|advice| advice.pass_rate.unwrap().value);
    assert!((rates[0] - rates[1]).abs() < 0.015, "{rates:?}");
    assert!((found.metrics[0].keep_rate - at(&found, 3).rate.value).abs() < 1e-12);
    // (8 - 3 + 3 / k(3)) / 8 groups for each.
    let first = at(&found, 3).rate.value;
    let cost = found.costs.as_ref().unwrap().mode("screened").unwrap().generated_per_kept.value;
    assert!((cost - (5.0 + 3.0 / first) / 8.0).abs() < 1e-12, "{cost}");
    let text = found.to_string();
    assert!(
        text.contains(
            "groups ended with their first 3 members, all alike: everything here is about the first 3 members"
        ) && text.contains("% of groups of 3\n")
            && !text.contains("groups of different sizes have different prompts")
            && !text.contains("several sizes"),
        "{text}"
    );
    let line = Advice { plan: AdvicePlan { mode: Some("screened"), ..found.plan.clone() }, ..found }
        .start_lines()
        .remove(0);
    let begins = format!(
        "advice: in {} of 4000 groups the first 3 members differed, so the others were sampled",
        percent(first)
    );
    let ends = format!(
        ": about {} groups generated for each that is trained on",
        tamis_core::figure::fixed(cost, 2)
    );
    assert!(line.starts_with(&begins) && line.ends_with(&ends), "{line}");
}

fn log_of(lines: &str, plan: &AdvicePlan) -> Advice {
    read_of(&[("run.log", lines.to_owned())], "run.log", plan)
}

/// Batches of 17 groups. Two of them are kept, with 8 members, and the others end with 3.
#[test]
fn a_log_of_groups_that_ended_early_has_their_keep_rate() {
    let batch = |number: u64, groups: u64, trajectories: u64| {
        format!(
            "Generated batch {number}, {groups} prompts, {trajectories} trajectories\nFiltered (std=0): {} (80%)\nKept (std>0): 2 prompts\n",
            groups - 2
        )
    };
    let lines = batch(1, 17, 61) + &batch(2, 20, 70) + "step:1 - all/pass_rate:0.05\n";
    let found = log_of(&lines, &AdvicePlan { n: 8, ..AdvicePlan::default() });
    assert_eq!(found.sample.screened, Some(Screened { first: Some(3), groups: None }));
    let told: Vec<(usize, KeepRateSource)> =
        found.keep_rates.iter().map(|rate| (rate.n, rate.source)).collect();
    assert_eq!(told, [(3, KeepRateSource::Counted), (8, KeepRateSource::AtLeast)], "{found}");
    assert_eq!((found.pass_rate, found.spread.clone()), (None, None));
    assert!((found.keep_rates[0].rate.value - 4.0 / 37.0).abs() < 1e-12);
    // For whole groups there is only a bound, which gives no costs. Only screened groups have a cost, (5 + 3
    // / k) / 8.
    assert_eq!((found.keep_rate, found.filter.filter), (None, None));
    let costs = found.costs.as_ref().unwrap();
    assert_eq!(costs.modes.iter().map(|mode| mode.name).collect::<Vec<_>>(), ["screened"]);
    assert!((costs.modes[0].generated_per_kept.value - (5.0 + 3.0 * 37.0 / 4.0) / 8.0).abs() < 1e-12);
    assert_eq!((costs.round, costs.limit), (None, None));
    assert!(found.to_string().contains("streaming with screen_first: 3       -    4.09"), "{found}");
    assert!(found.to_string().contains("the counted keep rate is that of 3"), "{found}");
    assert!(
        found.start_lines()[0].contains("in 10.8% of 37 groups of step 1 the first 3 members differed"),
        "{:?}",
        found.start_lines()
    );
    // Metrics have the reasons but not the size.
    let row = "{\"step\": 1, \"train/num_gen_batches\": 1, \"train/num_dropped/screened\": 15, \"groups/dropped\": 15, \"train/num_kept_prompts\": 2, \"all/pass_rate\": 0.05}\n";
    let plan = AdvicePlan { n: 8, ..AdvicePlan::default() };
    let found = read_of(&[("metrics.jsonl", row.to_owned())], "metrics.jsonl", &plan);
    assert_eq!(found.sample.screened, Some(Screened { first: None, groups: Some(15) }));
    assert_eq!(
        found.keep_rates.iter().map(|rate| (rate.n, rate.source)).collect::<Vec<_>>(),
        [(8, KeepRateSource::AtLeast)]
    );
    assert!(found.to_string().contains("that of whole groups is at least as high"), "{found}");
    // If all groups have the same number of members, the log shows it, whatever the plan.
    let lines = batch(1, 17, 17 * 4) + &batch(2, 20, 20 * 4) + "step:1 - all/pass_rate:0.05\n";
    let found = log_of(&lines, &AdvicePlan { n: 16, ..AdvicePlan::default() });
    assert_eq!(found.sample.screened, None);
    let four = found.keep_rates.iter().find(|rate| rate.n == 4).unwrap();
    assert_eq!(four.source, KeepRateSource::Counted, "{found}");
    assert!(found.keep_rate.unwrap().value > four.rate.value && found.pass_rate.is_some());
}

#[test]
fn steps_of_rows_that_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let of = |rows: &str| {
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, rows).unwrap();
        read(&path, Some("10..50".parse().unwrap()), None, &AdvicePlan::default())
    };
    let row = |step: &str| format!("{{\"uid\": 1, \"acc\": 1{step}}}\n{{\"uid\": 1, \"acc\": 0{step}}}\n");
    let refused = of(&row("")).unwrap_err();
    assert!(
        refused.kind() == crate::FaultKind::Usage && refused.to_string().ends_with("no row has a step"),
        "{refused}"
    );
    // Rows without a step are left out.
    let evidence = of(&(row("") + &row(", \"step\": 12"))).unwrap();
    let found = advise("x", &evidence, &AdvicePlan::default());
    assert_eq!((found.sample.groups, found.sample.steps), (1, Some((12, 12))));
    assert!(found.to_string().contains("2 rows left out: without a step"), "{found}");
}

#[test]
fn what_is_said_of_limits_and_of_other_sizes() {
    let all = Groups::of_counts(&(0..400).map(|prompt| (1 + prompt % 3, 4)).collect::<Vec<_>>());
    let found = advice(&all, &AdvicePlan { max_num_gen_batches: Some(1), ..AdvicePlan::default() });
    let text = found.to_string();
    assert!(
        text.contains("the run's own, of 1 round of 64 is never reached") && !text.contains("reached never"),
        "{text}"
    );
    // Counts are those of the sampled groups, whatever size is planned.
    let text = advice(&spread_out(), &AdvicePlan { n: 4096, ..AdvicePlan::default() }).to_string();
    assert!(text.contains("filter on `acc`, which keeps 77.8% of groups of 8"), "{text}");
}

/// Screening pays by how different prompts are, not by how many groups are kept. If all prompts are alike,
/// whole groups cost less.
#[test]
fn first_members_are_advised_where_they_pay() {
    let key = tamis_core::random::Key::new(8, tamis_core::random::Purpose::Task);
    let sampled = |rate: &dyn Fn(f64) -> f64| {
        let of = |prompt: u64| {
            let rate = rate(key.uniform(prompt));
            ((0..8).filter(|member| key.with(prompt).uniform(*member) < rate).count(), 8)
        };
        Groups::of_counts(&(0..2000).map(of).collect::<Vec<_>>())
    };
    // Both keep a third of their groups.
    let (alike, unlike) = (sampled(&|_| 0.05), sampled(&|u| if u < 0.3 { 0.4 } else { 0.0 }));
    let found = advice(&alike, &AdvicePlan::default());
    assert!((found.keep_rate.unwrap().value - 0.34).abs() < 0.05 && found.screening.is_none(), "{found}");
    let found = advice(&unlike, &AdvicePlan::default());
    assert!((found.keep_rate.unwrap().value - 0.3).abs() < 0.05);
    let best = found.screening.unwrap().best.unwrap();
    assert!((3..=4).contains(&best.first) && best.pays(), "{best:?}");
    let text = found.to_string();
    assert!(
        text.contains(&format!("first ones  `schedule.screen_first: {}` generates ", best.first)),
        "{text}"
    );
    // Planned although it does not pay.
    let found = advice(&alike, &AdvicePlan { screen_first: Some(2), ..AdvicePlan::default() });
    let planned = found.screening.unwrap().planned.unwrap();
    assert!(planned.cost > planned.whole && found.to_string().contains(": leave it out\n"), "{found}");
    // Without a pass rate the keep rate is unknown for fewer members than the filter compares.
    let counts = LoggedCounts { steps: vec![(100, 30)], ..LoggedCounts::default() };
    let of_log = advise("x", &Evidence::Counts(counts), &AdvicePlan { n: 8, ..AdvicePlan::default() });
    assert_eq!(of_log.screening, None);
}

/// A run that drops nothing, or by another rule, shows only the share of groups with equal rewards. Keep
/// rates rise with the size.
#[test]
fn what_another_filter_keeps_is_no_keep_rate() {
    let rows = |dropped: u64, alike: &str| {
        let kept = 200 - dropped;
        let row = |step: u32| {
            format!(
                "{{\"step\":{step},\"groups/generated\":200,\"groups/dropped\":{dropped},\"train/num_kept_prompts\":{kept},\"all/pass_rate\":0.1{alike}}}\n"
            )
        };
        row(1) + &row(2) + &row(3) + &row(4)
    };
    let alike = ",\"all/frac_reward_zero_std\":0.75";
    let bare = AdvicePlan { n: 8, ..AdvicePlan::default() };
    let plans = [
        (0, AdvicePlan { has_filter: Some(false), ..bare.clone() }),
        (0, bare.clone()),
        (150, AdvicePlan { has_filter: Some(true), other_filter: Some("top_p".to_owned()), ..bare.clone() }),
    ];
    let with_batches = format!("{alike},\"train/num_gen_batches\":1");
    for ((dropped, plan), more) in
        plans.iter().flat_map(|plan| [(plan, alike), (plan, with_batches.as_str())])
    {
        let found = read_of(&[("metrics.jsonl", rows(*dropped, more))], "metrics.jsonl", plan);
        assert!((found.keep_rate.unwrap().value - 0.25).abs() < 0.01, "{found}");
        assert!(
            found.keep_rates.is_sorted_by(|one, next| one.rate.value <= next.rate.value + 1e-9),
            "{found}"
        );
        let text = found.to_string();
        assert!(
            text.contains("groups whose rewards differ count as kept") && !text.contains("`top_p`"),
            "{text}"
        );
    }
    // For a filter by differing rewards, the counts of kept groups are used.
    let own = read_of(&[("metrics.jsonl", rows(120, alike))], "metrics.jsonl", &bare);
    assert!((own.keep_rate.unwrap().value - 0.4).abs() < 0.01, "{own}");
    // If rewards differ in all groups, there is nothing else to report. If the log has dropped groups, its
    // counts are used, whatever the plan.
    let plan = AdvicePlan { has_filter: Some(false), ..bare };
    let differing = rows(0, ",\"all/frac_reward_zero_std\":0.0");
    let found = read_of(&[("metrics.jsonl", differing)], "metrics.jsonl", &plan);
    assert!(found.keep_rate.unwrap().value > 0.99, "{found}");
    let found = read_of(&[("metrics.jsonl", rows(120, ""))], "metrics.jsonl", &plan);
    assert!((found.keep_rate.unwrap().value - 0.4).abs() < 0.01, "{found}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, rows(0, "")).unwrap();
    let error = read(&path, None, None, &plan).unwrap_err();
    assert!(error.to_string().contains("of the run's filter `null`") && error.hint().is_some(), "{error}");
}

#[test]
fn a_window_holds_for_any_two_values() {
    let with = |low: f64, top: f64| {
        let mut groups = spread_out();
        for member in groups.groups.iter_mut().flat_map(|group| &mut group.members) {
            member.scores[0] = if member.scores[0] > 0.5 { top } else { low };
        }
        let found = advice(&groups, &AdvicePlan { is_batch_known: true, ..AdvicePlan::default() });
        lines(&found, "easyr1")
            .iter()
            .filter(|line| line.starts_with("algorithm.filter_"))
            .cloned()
            .collect::<Vec<_>>()
    };
    for (low, top) in [(0.0, 1e308), (-1e308, 1e308), (-1.0, 1.0)] {
        let window = with(low, top);
        assert!(window.iter().any(|line| line.contains("filter_low=")), "{window:?}");
        assert!(!window.iter().any(|line| line.contains("inf")), "{window:?}");
    }
}

/// verl's dumps have the prompt's text and no group id.
#[test]
fn a_prompt_that_comes_twice_in_a_dump_makes_two_groups() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.jsonl");
    let row = |(input, score): (&str, u8)| format!("{{\"input\": \"{input}\", \"score\": {score}}}\n");
    let rows = [("a", 1), ("a", 1), ("a", 0), ("a", 0), ("b", 0), ("b", 1), ("c", 1), ("c", 1)].map(row);
    std::fs::write(&path, rows.concat()).unwrap();
    let groups = read_groups(&path).unwrap();
    let sizes: Vec<usize> = groups.groups.iter().map(|group| group.members.len()).collect();
    assert_eq!((sizes, groups.num_prompts(), groups.num_repeated), (vec![2; 4], 3, 1));
    let mixed = groups.counts(groups.outcome, None).iter().filter(|counts| counts.by_value.len() > 1).count();
    assert_eq!(mixed, 1, "that of `b`");
    let text = advice(&groups, &AdvicePlan::default()).to_string();
    assert!(text.contains("1 prompt occurred more than once in a file"), "{text}");
}

/// A list longer than a row may be costs nothing in a column that is not needed.
#[test]
fn of_parquet_the_columns_that_are_needed_are_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tamis-data/tests/files/long_list.parquet");
    let groups = read_groups(&path).unwrap();
    assert_eq!((groups.groups.len(), groups.scores.as_slice()), (1, &["acc".to_owned()][..]));
}
