//! Advice from counts of logs and metrics, without single groups.

use super::*;

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
    let found = advise("run.log", &Evidence::Counts(counts.clone()), &of_n(8));
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

/// The counts of a run without rollouts are those at its own n, whatever n is planned.
#[test]
fn counts_stay_those_of_the_n_that_was_sampled() {
    let counts = LoggedCounts {
        steps: vec![(128, 64); 10],
        pass_rate: Some(0.3),
        sampled: Sampled { n: Some(4), ..Sampled::default() },
        ..LoggedCounts::default()
    };
    let of = |counts: &LoggedCounts, n| advise("run", &Evidence::Counts(counts.clone()), &of_n(n));
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
    let found = log_of(&lines, &of_n(8));
    assert_eq!(found.sample.screened, Some(Screened { first: Some(3), groups: None }));
    let sources =
        |found: &Advice| found.keep_rates.iter().map(|rate| (rate.n, rate.source)).collect::<Vec<_>>();
    assert_eq!(sources(&found), [(3, KeepRateSource::Counted), (8, KeepRateSource::AtLeast)], "{found}");
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
    let line = &found.start_lines()[0];
    assert!(line.contains("in 10.8% of 37 groups of step 1 the first 3 members differed"), "{line}");
    // Metrics have the reasons but not the size.
    let row = "{\"step\": 1, \"train/num_gen_batches\": 1, \"train/num_dropped/screened\": 15, \"groups/dropped\": 15, \"train/num_kept_prompts\": 2, \"all/pass_rate\": 0.05}\n";
    let found = read_of(&[("metrics.jsonl", row.to_owned())], "metrics.jsonl", &of_n(8));
    assert_eq!(found.sample.screened, Some(Screened { first: None, groups: Some(15) }));
    assert_eq!(sources(&found), [(8, KeepRateSource::AtLeast)]);
    assert!(found.to_string().contains("that of whole groups is at least as high"), "{found}");
    // If all groups have the same number of members, the log shows it, whatever the plan.
    let lines = batch(1, 17, 17 * 4) + &batch(2, 20, 20 * 4) + "step:1 - all/pass_rate:0.05\n";
    let found = log_of(&lines, &of_n(16));
    assert_eq!(found.sample.screened, None);
    let four = found.keep_rates.iter().find(|rate| rate.n == 4).unwrap();
    assert_eq!(four.source, KeepRateSource::Counted, "{found}");
    assert!(found.keep_rate.unwrap().value > four.rate.value && found.pass_rate.is_some());
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
    let bare = of_n(8);
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
        let rates: Vec<f64> = found.keep_rates.iter().map(|rate| rate.rate.value).collect();
        assert!(rates.is_sorted_by(|one, next| *one <= next + 1e-9), "{rates:?}");
        let text = found.to_string();
        assert!(text.contains("groups whose rewards differ count as kept"), "{text}");
        assert!(!text.contains("`top_p`"), "{text}");
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
