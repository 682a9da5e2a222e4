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

mod of_counts;
mod of_verl;
mod over_plan;

fn advice(groups: &Groups, plan: &AdvicePlan) -> Advice {
    advise("x.jsonl", &Evidence::Groups(groups.clone()), plan)
}

/// Groups of `num` prompts: how many members are correct, of how many.
fn counted(num: usize, of: impl Fn(usize) -> (usize, usize)) -> Groups {
    Groups::of_counts(&(0..num).map(of).collect::<Vec<_>>())
}

/// 400 prompts with groups of 8. Each of the nine counts of correct members is equally frequent.
fn spread_out() -> Groups {
    counted(400, |prompt| (prompt % 9, 8))
}

/// 400 prompts with groups of 8, most of which are all correct or nearly so.
fn solved() -> Groups {
    counted(400, |prompt| (8 - prompt % 3, 8))
}

/// Steps and rounds of `size` groups.
fn of_batches(size: usize) -> AdvicePlan {
    AdvicePlan { train_batch_size: size, gen_batch_size: size, is_batch_known: true, ..AdvicePlan::default() }
}

fn of_n(n: usize) -> AdvicePlan {
    AdvicePlan { n, ..AdvicePlan::default() }
}

/// The lines for tamis as a configuration.
fn config_of(advice: &Advice) -> Config {
    let text = lines(advice, "tamis").join("\n") + "\n";
    let source = Source::new(SourceKind::File("advice.yaml".into()), text.clone());
    load_sources_to_show(&[source], &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}")).config
}

fn lines<'a>(advice: &'a Advice, system: &str) -> &'a [String] {
    &advice.lines.iter().find(|lines| lines.system == system).unwrap().lines
}

#[test]
fn what_is_said_of_plain_groups() {
    let advice = advice(&spread_out(), &of_batches(128));
    insta::assert_snapshot!(advice.to_string());
    assert_eq!(advice.start_lines().len(), 1);
}

/// The lines for tamis are read as a configuration and those for the others by the importer. Both give the
/// same settings.
#[test]
fn lines_are_accepted_by_the_systems_they_are_for() {
    let plain = of_batches(96);
    let at_servers = AdvicePlan { samples_at_servers: true, ..plain.clone() };
    for (groups, plan, filters) in
        [(spread_out(), &plain, true), (spread_out(), &at_servers, true), (solved(), &plain, false)]
    {
        let advice = advice(&groups, plan);
        assert_eq!(advice.filter.filter, Some(filters), "{advice}");
        let config = config_of(&advice);
        assert_eq!((config.data.train_batch_size, config.rollout.n), (96, 8));
        assert_eq!(config.filter.is_some(), filters);
        for system in ["verl", "easyr1", "easyr1_dynamic_sampling", "trl"] {
            let arguments = lines(&advice, system);
            let imported = import(arguments, Path::new(""))
                .unwrap_or_else(|errors| panic!("{system}: {arguments:?}\n{errors}"));
            let notes: Vec<String> = imported.notes.iter().map(ToString::to_string).collect();
            assert!(notes.iter().all(|note| !note.contains("refused")), "{system}: {notes:?}");
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
            let round = advice.costs.as_ref().unwrap().round.unwrap().gen_batch_size;
            assert!(yaml.contains(&format!("gen_batch_size: {round}")), "{yaml}");
            assert_eq!(config.data.gen_batch_size, Some(round));
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
    for (system, line) in [
        ("tamis", "rollout: {n: 8, temperature: 1.0, max_response_length: 200}"),
        ("verl", "data.max_response_length=200"),
        ("easyr1", "worker.rollout.temperature=1.0"),
        ("trl", "max_completion_length=200"),
    ] {
        assert!(lines(&advice, system).contains(&line.to_owned()), "{system}: {advice}");
    }
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
    let hard = counted(2000, |prompt| (usize::from(prompt % 10 == 0), 4));
    let found = advice(&hard, &AdvicePlan::default());
    let (n, why) = found.group_size.clone().unwrap();
    assert!(n > 4 && why.contains("instead of 10.0%"), "{n}: {why}");
    assert!(lines(&found, "tamis").iter().any(|line| line.contains(&format!("n: {n}"))), "{found}");
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
        let keys = ["algorithm.filter_low", "algorithm.filter_high"];
        let is_of_it = |line: &&String| keys.iter().any(|key| line.starts_with(key));
        lines(advice, "easyr1").iter().filter(is_of_it).cloned().collect::<Vec<_>>()
    };
    let signs = with(-1.0, 1.0);
    assert!(signs.pass_rate.is_some());
    assert_eq!(window(&signs), ["algorithm.filter_low=-0.98", "algorithm.filter_high=0.98"]);
    assert_eq!(window(&with(0.1, 1.1)), ["algorithm.filter_low=0.11", "algorithm.filter_high=1.09"]);
    for (low, top) in [(0.0, 1e308), (-1e308, 1e308)] {
        let window = window(&with(low, top));
        assert!(window.iter().any(|line| line.contains("filter_low=")), "{window:?}");
        assert!(!window.iter().any(|line| line.contains("inf")), "{window:?}");
    }
    let large = advice(&spread_out(), &of_n(128));
    assert!(window(&large).is_empty() && large.to_string().contains("outside of its window"), "{large}");
}

#[test]
fn lines_say_only_what_is_known() {
    let found = advice(&spread_out(), &AdvicePlan::default());
    for block in &found.lines {
        let text = block.lines.join("\n");
        let unknown = ["batch_size=64", "train_batch_size: ", "gradient_acc"];
        assert!(unknown.iter().all(|key| !text.contains(key)), "{text}");
    }
    let mut named = spread_out();
    named.scores = vec!["it's right?: yes, no".to_owned()];
    let found = advice(&named, &AdvicePlan::default());
    assert_eq!(config_of(&found).filter.unwrap().metric.as_deref(), Some("it's right?: yes, no"));
    let quoted = r"'algorithm.filter_groups.metric='\''it\'\''s right?: yes, no'\'''";
    assert!(found.to_string().contains(quoted), "{found}");
    // verl's own trainer refuses the key of a disabled filter.
    let found = advice(&solved(), &AdvicePlan::default());
    assert!(lines(&found, "verl").iter().all(|line| !line.contains("filter_groups")), "{found}");
}

#[test]
fn groups_that_are_not_worth_it() {
    // A baseline over the batch needs only one completion per prompt.
    let batch = advice(&spread_out(), &AdvicePlan { baseline: Some("the whole batch"), ..of_n(1) });
    assert_eq!(batch.filter.filter, Some(false));
    assert!(batch.filter.reasons[0].contains("compare with the whole batch"), "{:?}", batch.filter.reasons);
    let single = advice(&spread_out(), &of_n(1));
    assert!(single.filter.reasons[0].contains("never differs") && single.filter.filter == Some(false));
    // If filtering is not advised, no other group size is advised either.
    let found =
        advice(&counted(1000, |prompt| (4 - usize::from(prompt % 8 == 0), 4)), &AdvicePlan::default());
    assert_eq!((found.filter.filter, found.group_size.clone()), (Some(false), None), "{found}");
    // A few prompts with pass rate 1/2: larger groups keep hardly more, and each costs twice as much.
    let split = counted(1000, |prompt| (2 * usize::from(prompt % 8 == 0), 4));
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
    for n in [2, 3, 4, 8] {
        let (one, other) = (at(&whole, n).rate, at(&found, n).rate);
        let is_within = other.low < Some(one.value) && other.high > Some(one.value);
        assert!(is_within && (one.value - other.value).abs() < 0.03, "{n}: {one:?} and {other:?}");
        let source = if n > 3 { KeepRateSource::Fitted } else { KeepRateSource::Counted };
        assert_eq!(at(&found, n).source, source);
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
    let early =
        "groups ended with their first 3 members, all alike: everything here is about the first 3 members";
    assert!(text.contains(early) && text.contains("% of groups of 3\n"), "{text}");
    let of_sizes = ["groups of different sizes have different prompts", "several sizes"];
    assert!(of_sizes.iter().all(|said| !text.contains(said)), "{text}");
    let plan = AdvicePlan { mode: Some("screened"), ..found.plan.clone() };
    let line = Advice { plan, ..found }.start_lines().remove(0);
    let differed = format!("advice: in {} of 4000 groups the first 3 members differed", percent(first));
    assert!(line.starts_with(&(differed + ", so the others were sampled")), "{line}");
    let cost = tamis_core::figure::fixed(cost, 2);
    assert!(
        line.ends_with(&format!(": about {cost} groups generated for each that is trained on")),
        "{line}"
    );
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
    assert_eq!(refused.kind(), crate::FaultKind::Usage);
    assert!(refused.to_string().ends_with("no row has a step"), "{refused}");
    // Rows without a step are left out.
    let evidence = of(&(row("") + &row(", \"step\": 12"))).unwrap();
    let found = advise("x", &evidence, &AdvicePlan::default());
    assert_eq!((found.sample.groups, found.sample.steps), (1, Some((12, 12))));
    assert!(found.to_string().contains("2 rows left out: without a step"), "{found}");
}

#[test]
fn what_is_said_of_limits_and_of_other_sizes() {
    let all = counted(400, |prompt| (1 + prompt % 3, 4));
    let plan = AdvicePlan { max_num_gen_batches: Some(1), ..AdvicePlan::default() };
    let text = advice(&all, &plan).to_string();
    assert!(text.contains("the run's own, of 1 round of 64 is never reached"), "{text}");
    assert!(!text.contains("reached never"), "{text}");
    // Counts are those of the sampled groups, whatever size is planned.
    let text = advice(&spread_out(), &of_n(4096)).to_string();
    assert!(text.contains("filter on `acc`, which keeps 77.8% of groups of 8"), "{text}");
}

/// Groups of 8 of prompts with these pass rates.
fn sampled(rate: &dyn Fn(f64) -> f64) -> Groups {
    let key = tamis_core::random::Key::new(8, tamis_core::random::Purpose::Task);
    let of = |prompt: u64| {
        let rate = rate(key.uniform(prompt));
        ((0..8).filter(|member| key.with(prompt).uniform(*member) < rate).count(), 8)
    };
    Groups::of_counts(&(0..2000).map(of).collect::<Vec<_>>())
}

fn unlike() -> Groups {
    sampled(&|u| if u < 0.3 { 0.4 } else { 0.0 })
}

/// Screening pays by how different prompts are, not by how many groups are kept. If all prompts are alike,
/// whole groups cost less.
#[test]
fn first_members_are_advised_where_they_pay() {
    // Both keep a third of their groups.
    let (alike, unlike) = (sampled(&|_| 0.05), unlike());
    let found = advice(&alike, &AdvicePlan::default());
    assert!((found.keep_rate.unwrap().value - 0.34).abs() < 0.05 && found.screening.is_none(), "{found}");
    let found = advice(&unlike, &AdvicePlan::default());
    assert!((found.keep_rate.unwrap().value - 0.3).abs() < 0.05);
    let best = found.screening.unwrap().best.unwrap();
    assert!((3..=4).contains(&best.first) && best.pays(), "{best:?}");
    let text = found.to_string();
    let advised = format!("first ones  `schedule.screen_first: {}` generates ", best.first);
    assert!(text.contains(&advised), "{text}");
    // Planned although it does not pay.
    let found = advice(&alike, &AdvicePlan { screen_first: Some(2), ..AdvicePlan::default() });
    let planned = found.screening.unwrap().planned.unwrap();
    assert!(planned.cost > planned.whole && found.to_string().contains(": leave it out\n"), "{found}");
    // Without a pass rate the keep rate is unknown for fewer members than the filter compares.
    let counts = LoggedCounts { steps: vec![(100, 30)], ..LoggedCounts::default() };
    assert_eq!(advise("x", &Evidence::Counts(counts), &of_n(8)).screening, None);
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
