//! Advice for a plan that already has settings: valid lines, first members, chosen prompts.

use std::fmt::Write as _;

use super::*;

fn file(name: &str, text: &str) -> Arc<Source> {
    Source::new(SourceKind::File(name.into()), text.to_owned())
}

/// The configuration `run` with tamis's lines on top.
fn over(run: &str, groups: &Groups, at_servers: bool) -> Config {
    let run = file("run.yaml", run);
    let own =
        load_sources_to_show(std::slice::from_ref(&run), &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let advice =
        advice(groups, &AdvicePlan { samples_at_servers: at_servers, ..AdvicePlan::of_layers(&own) });
    let text = lines(&advice, "tamis").join("\n") + "\n";
    let lines = file("advice.yaml", &text);
    load_sources_to_show(&[run, lines], &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}")).config
}

#[test]
fn lines_go_with_what_is_planned() {
    use tamis_config::ScheduleMode::Streaming;
    let screened = |first: usize| {
        format!(
            "data: {{train_batch_size: 64}}\nfilter: {{kind: variance}}\nrollout: {{n: 8}}\nschedule: {{mode: streaming, screen_first: {first}, rounds_in_flight: 4}}\n"
        )
    };
    // A plan that the lines' own mode would contradict.
    let rounds = file("rounds.yaml", "schedule: {mode: deficit}\n");
    let errors = load_sources_to_show(&[file("run.yaml", &screened(3)), rounds], &[]).unwrap_err();
    let errors = errors.to_string();
    assert!(errors.contains("starts whole groups") && errors.contains("rounds_in_flight"), "{errors}");
    for at_servers in [false, true] {
        // The planned number of first members, or the cheapest one, or none.
        let best = advice(&unlike(), &AdvicePlan::default()).screening.unwrap().best.unwrap();
        let alike = sampled(&|_| 0.05);
        for (planned, groups, advised) in
            [(3, unlike(), Some(3)), (7, unlike(), Some(best.first)), (2, alike, None)]
        {
            let schedule = over(&screened(planned), &groups, at_servers).schedule;
            assert_eq!((schedule.mode, schedule.screen_first), (Streaming, advised), "{planned}");
        }
        // Filtering is not advised.
        let config = over(&screened(3), &sampled(&|u| 0.8 + 0.2 * u), at_servers);
        assert_eq!((config.filter.is_none(), config.schedule.screen_first), (true, None));
        // A filter of another kind with its own keys.
        let pool = "filter: {kind: top_p, p: 0.9}\nschedule: {max_num_gen_batches: 3}\n";
        assert_eq!(over(pool, &unlike(), at_servers).filter.unwrap().kind.to_string(), "variance");
    }
}

/// Round and limit count prompts. The share of prompts that yield a group is that of differing first members.
#[test]
fn round_and_limit_of_lines_go_by_first_members() {
    let plan = AdvicePlan {
        n: 8,
        screen_first: Some(3),
        mode: Some("screened"),
        is_batch_known: true,
        gen_batch_size: 64,
        max_num_gen_batches: Some(5),
        ..AdvicePlan::default()
    };
    let found = advice(&unlike(), &plan);
    let at = |n| found.keep_rates.iter().find(|rate| rate.n == n).unwrap().rate.value;
    let costs = found.costs.as_ref().unwrap();
    let round = costs.round.unwrap().gen_batch_size as f64;
    // 64 of them plus a margin of at least one standard deviation.
    assert!((1.05..1.4).contains(&(round * at(3) / 64.0)), "{round}");
    assert!(lines(&found, "tamis")[0].contains(&format!("gen_batch_size: {round}")), "{found}");
    // 320 prompts hold enough groups that differ, but not enough whose first three members do. A run prints
    // this at its start.
    assert!((70.0..110.0).contains(&(320.0 * at(8))) && 320.0 * at(3) < 72.0, "{} {}", at(8), at(3));
    let whole = AdvicePlan { screen_first: None, mode: Some("carried"), ..plan };
    let warns = |advice: &Advice| advice.start_lines().iter().any(|line| line.contains("will be too few"));
    assert!(warns(&found) && !warns(&advice(&unlike(), &whole)), "{:?}", found.start_lines());
}

#[test]
fn what_saves_little_is_not_left_out() {
    let found = advice(&unlike(), &AdvicePlan { screen_first: Some(3), ..AdvicePlan::default() });
    let said = |planned: Screening, best| {
        let screening = Some(ScreeningAdvice { planned: Some(planned), best });
        let text = Advice { screening, ..found.clone() }.to_string();
        text.lines().find(|line| line.starts_with("first ones")).unwrap().to_owned()
    };
    let with = |first, cost| Screening { first, cost, whole: 1.77 };
    assert!(said(with(4, 1.72), None).contains("1.77: it saves little"), "{}", said(with(4, 1.72), None));
    assert!(said(with(4, 1.78), None).ends_with("1.77: leave it out"));
    // A saving of 5 % is worth another number of first members, or whole groups.
    assert!(said(with(4, 1.60), Some(with(3, 1.55))).ends_with("whole groups 1.77"));
    assert!(said(with(4, 1.60), Some(with(3, 1.50))).contains("with 3 first members it is 1.50"));
}

/// Scores with many values have no fit: beyond the first members there is a bound and no rate.
#[test]
fn first_members_of_many_values_say_nothing_of_whole_groups() {
    let (_, mut screened) = ended_early(3);
    for (number, member) in screened.groups.iter_mut().flat_map(|group| &mut group.members).enumerate() {
        member.scores[0] *= 1.0 + (number % 2) as f64;
    }
    let plan = AdvicePlan { screen_first: Some(3), max_num_gen_batches: Some(4), ..AdvicePlan::default() };
    let found = advice(&screened, &plan);
    let eight = found.keep_rates.iter().find(|rate| rate.n == 8).unwrap();
    assert_eq!((eight.source, found.plan.n), (KeepRateSource::AtLeast, 8));
    assert_eq!((found.keep_rate, found.filter.filter, found.lines.len()), (None, None, 0), "{found}");
    let costs = found.costs.as_ref().unwrap();
    assert_eq!(costs.modes.iter().map(|mode| mode.name).collect::<Vec<_>>(), ["screened"]);
    assert!(costs.round.is_none() && costs.planned_limit.is_some(), "{costs:?}");
    let text = found.to_string();
    let bound = "these are kept at least as often: beyond the first members there is no fit";
    assert!(text.contains(bound) && text.contains("`acc` keeps "), "{text}");
}

/// Rows of 400 prompts. Half are solved half of the time and always chosen. The others are never solved and
/// chosen one time in four.
fn chosen() -> String {
    let mut rows = String::new();
    for prompt in 0..400 {
        let q = if prompt % 2 == 0 { 1.0 } else { 0.25 };
        for member in (0..4).filter(|_| prompt % 2 == 0 || prompt % 8 == 1) {
            let acc = u8::from(prompt % 2 == 0 && member % 2 == 0);
            let _ = writeln!(
                rows,
                "{{\"prompt_id\": {prompt}, \"group_id\": {prompt}, \"acc\": {acc}, \"inclusion\": {q}}}"
            );
        }
    }
    rows
}

#[test]
fn chosen_prompts_count_for_those_that_were_passed_over() {
    let of = |plan: &AdvicePlan| read_of(&[("rows.jsonl", chosen())], "rows.jsonl", plan);
    let found = of(&AdvicePlan::default());
    // Half of the data is kept, and 200 of 250 groups.
    assert_eq!(found.sample.groups, 250);
    assert!((found.keep_rate.unwrap().value - 0.5).abs() < 1e-12, "{found}");
    assert!((found.pass_rate.unwrap().value - 0.25).abs() < 1e-12, "{found}");
    let bin = |range: &str| found.histogram.iter().find(|bin| bin.range == range).unwrap();
    assert_eq!((bin("none").groups, bin("none").share, bin("up to 1/2").share), (50, 0.5, 0.5));
    assert!((found.metrics[0].keep_rate - 0.5).abs() < 1e-12);
    // The inclusion probability is no score.
    assert_eq!(found.metrics.iter().map(|metric| metric.name.as_str()).collect::<Vec<_>>(), ["acc"]);
    assert!(found.to_string().contains("a group counts 1/q times, so rates are those of the data\n"));
    // A run that continues to choose prompts costs what its chosen prompts cost.
    let choosing = of(&AdvicePlan { chooses_prompts: true, mode: Some("carried"), ..AdvicePlan::default() });
    let four = choosing.keep_rates.iter().find(|rate| rate.n == 4).unwrap();
    assert!((four.rate.value - 0.5).abs() < 1e-12 && (choosing.keep_rate.unwrap().value - 0.8).abs() < 1e-12);
    let cost = choosing.costs.as_ref().unwrap().mode("carried").unwrap().generated_per_kept.value;
    assert!((cost - 1.25).abs() < 1e-12, "{cost}");
    assert!(choosing.to_string().contains("80.0% of the chosen ones are kept"), "{choosing}");
    // What is already planned is not recommended.
    let dear = |chooses_prompts| {
        let groups = sampled(&|u| if u < 0.1 { 0.5 } else { 0.0 });
        advice(&groups, &AdvicePlan { chooses_prompts, ..AdvicePlan::default() }).filter.reasons.concat()
    };
    assert!(dear(false).contains("selector: {kind: posterior}` first"), "{}", dear(false));
    assert!(dear(true).contains("larger groups or easier prompts first"), "{}", dear(true));
    assert!(choosing.start_lines()[0].contains("80.0% of 250 groups"), "{:?}", choosing.start_lines());
}

/// Groups that only their prompt's text identifies are named by place and first words.
#[test]
fn right_looking_answers_are_told_where_they_are() {
    let row = |question: &str, output: &str, acc: u8| {
        format!(
            "{{\"input\": \"system\\nYou are helpful.\\nuser\\n{question}\\nassistant\\n\", \"output\": \"{output}\", \"gts\": \"42\", \"score\": {acc}}}\n"
        )
    };
    let mut rows = String::new();
    for question in ["What is six times seven, if you please, my friend?", "40 + 2 = ?"] {
        rows += &(row(question, "#### 41", 0) + &row(question, "#### 42", 0));
    }
    rows += &(row("Other?", "#### 42", 1) + &row("Other?", "#### 41", 0));
    let found = read_of(&[("7.jsonl", rows)], "7.jsonl", &AdvicePlan::default());
    let text = &found.findings.iter().find(|finding| finding.topic == "verifier").unwrap().text;
    let places = "(7.jsonl:1 \"What is six times seven, if you please, ...\", 7.jsonl:3 \"40 + 2 = ?\")";
    assert!(text.ends_with(places), "{text}");
}

/// Steps may reuse group numbers.
#[test]
fn groups_are_told_with_their_step() {
    let row = |step: u64, group: u64, output: &str| {
        format!(
            "{{\"step\": {step}, \"group_id\": {group}, \"output\": \"{output}\", \"gts\": \"42\", \"score\": 0}}\n"
        )
    };
    let rows: String = [(3, 0), (3, 1), (4, 1)]
        .map(|(step, group)| row(step, group, "#### 41") + &row(step, group, "#### 42"))
        .concat();
    let right = (row(4, 2, "#### 42") + &row(4, 2, "#### 41")).replacen("\"score\": 0", "\"score\": 1", 1);
    let rows = rows + &right;
    let found = read_of(&[("rows.jsonl", rows)], "rows.jsonl", &AdvicePlan::default());
    let text = &found.findings.iter().find(|finding| finding.topic == "verifier").unwrap().text;
    assert!(text.ends_with("(step 3 group 0, step 3 group 1, step 4 group 1)"), "{text}");
}

/// If requested steps are missing, the error names that.
#[test]
fn steps_that_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let of = |rows: &str, metric: Option<&str>| {
        std::fs::write(&path, rows).unwrap();
        read(&path, Some("10..50".parse().unwrap()), metric, &AdvicePlan::default()).unwrap_err()
    };
    let row = |step: &str| format!("{{\"uid\": 1, \"acc\": 1{step}}}\n{{\"uid\": 1, \"acc\": 0{step}}}\n");
    let other = row(", \"step\": 5") + &row(", \"step\": 7");
    let torn = "{\"uid\": \"b\", \"ac";
    for rows in [other.clone(), other.clone() + &row(""), other.clone() + torn] {
        for metric in [None, Some("acc")] {
            let refused = of(&rows, metric);
            assert!(refused.to_string().ends_with("it has no group of the steps in --steps"));
            assert_eq!(refused.kind(), crate::FaultKind::Usage);
            assert!(refused.hint().unwrap().starts_with("steps 5 to 7 are there"));
        }
    }
    assert!(of(&row(", \"step\": 9"), None).hint().unwrap().starts_with("step 9 is there"));
    assert!(of(&row(""), Some("acc")).to_string().ends_with("no row has a step"));
    assert!(of(torn, None).to_string().ends_with("none of its 1 rows has a group"));
    assert!(of("", Some("acc")).to_string().ends_with("it has no group"));
    // Files belong to steps, too.
    std::fs::write(&path, "").unwrap();
    for step in [3, 4] {
        std::fs::write(folder.path().join(format!("{step}.jsonl")), row("")).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    let steps = Some("10..50".parse().unwrap());
    let refused = read(folder.path(), steps, None, &AdvicePlan::default()).unwrap_err();
    assert!(refused.hint().unwrap().starts_with("steps 3 to 4 are there"), "{refused}");
}

/// Advice sets only what the user did not choose.
#[test]
fn a_planned_schedule_stays() {
    use tamis_config::ScheduleMode::{Deficit, Streaming};
    use tamis_config::SurplusKind;
    let run = |schedule: &str| {
        format!("data: {{train_batch_size: 64}}\nfilter: {{kind: variance}}\nrollout: {{n: 8}}\n{schedule}")
    };
    let streaming = run("schedule: {mode: streaming, surplus: carry, max_lag: 2}\n");
    let groups = sampled(&|u| u);
    for at_servers in [false, true] {
        let schedule = over(&streaming, &groups, at_servers).schedule;
        assert_eq!((schedule.mode, schedule.max_lag), (Streaming, Some(2)));
        // An on-policy schedule stays on-policy, and rounds are refilled with what is missing.
        for chosen in ["mode: rounds", "mode: deficit", "mode: rounds, refill: false"] {
            let schedule = over(&run(&format!("schedule: {{{chosen}}}\n")), &groups, at_servers).schedule;
            assert_eq!((schedule.mode, schedule.max_lag, schedule.refill), (Deficit, None, true), "{chosen}");
        }
        let discards = run("schedule: {mode: streaming, surplus: discard}\n");
        assert_eq!(over(&discards, &groups, at_servers).schedule.surplus, SurplusKind::Discard);
    }
    let schedule = over(&run(""), &groups, false).schedule;
    assert_eq!((schedule.mode, schedule.max_lag), (Deficit, None));
    let schedule = over(&run(""), &groups, true).schedule;
    assert_eq!((schedule.mode, schedule.max_lag), (Streaming, Some(1)));
}
