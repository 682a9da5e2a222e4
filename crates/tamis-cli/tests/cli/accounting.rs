//! Every generated trajectory is in exactly one rollout file, whatever its group's final place.

use std::collections::BTreeMap;

use crate::tamis::{Folder, Replaced as _, TINY};

/// A run of the tiny configuration with changes, and what its accounting must show.
#[derive(Clone, Copy)]
struct Case<'a> {
    /// Name of the case in messages.
    name: &'a str,
    changes: &'a [(&'a str, &'a str)],
    /// Exit code.
    code: i32,
    /// Whether attempts at a step are abandoned.
    gives_up: Option<bool>,
}

impl Case<'_> {
    const DEFAULT: Case<'static> = Case { name: "", changes: &[], code: 0, gives_up: Some(false) };
}

fn check(case: Case<'_>) {
    let Case { name, changes, code, gives_up } = case;
    let config = changes.iter().fold(TINY.to_owned(), |config, (from, to)| config.replaced(from, to));
    let folder = Folder::new().with("config.yaml", &config);
    let ended = folder.tamis(&["train", "config.yaml"]);
    assert_eq!(ended.code, Some(code), "{name}: {}", ended.shown());

    let summary = folder.filter_rollouts("tiny", &["--metric", "acc", "--json"]).succeeds().json();

    let generated = num_generated(&ended.stderr);
    ended.says(&format!("groups of the run: {generated} generated = "));
    assert!(generated > 0, "{name}: {}", ended.stderr);
    assert_eq!(summary["num_prompts"], generated, "{name}: {summary}");
    assert_eq!(summary["num_rows"], 4 * generated, "{name}: {summary}");
    assert_eq!(summary["min_group_size"], 4, "{name}");

    // The identity holds in every step, and from step to step. What all steps generated is everything that
    // was generated up to the last trained step. A step has one row.
    let (mut carried, mut counted, mut given_up, mut num_tokens, mut last) = (0, 0, 0, 0, None);
    for line in folder.read("runs/tiny/metrics.jsonl").lines() {
        let step: BTreeMap<String, serde_json::Value> = serde_json::from_str(line).expect("JSON");
        let of = |name: &str| step[name].as_f64().expect("a number") as u64;
        assert!(last.is_none_or(|last| last < of("step")), "{name}: a second row of step {}", of("step"));
        last = Some(of("step"));
        if !step.contains_key("groups/generated") {
            continue;
        }
        counted += of("groups/generated");
        given_up += of("dynamic_sampling/num_given_up_attempts");
        num_tokens = of("num_tokens");
        for what in ["groups", "trajectories"] {
            let count = |name: &str| of(&format!("{what}/{name}"));
            let left_out = if what == "groups" { 0 } else { count("left_out") };
            let fill = format!("{what}/kept_when_insufficient");
            let fill = if step.contains_key(&fill) { of(&fill) } else { 0 };
            let out: u64 = ["trained", "dropped", "surplus", "stale", "failed", "aborted", "carried_out"]
                .into_iter()
                .map(count)
                .sum::<u64>()
                + left_out
                + fill;
            assert_eq!(count("generated") + count("carried_in"), out, "{name}: {line}");
        }
        assert_eq!(of("groups/carried_in"), carried, "{name}: {line}");
        carried = of("groups/carried_out");
    }
    assert!(gives_up.is_none_or(|gives_up| gives_up == (given_up > 0)), "{name}: {given_up} were given up");
    let upto = last.unwrap_or(0);
    let (groups, tokens) = written(&folder.join("runs/tiny/rollouts"), upto);
    assert_eq!(counted, groups, "{name}: groups generated for the steps that trained");
    assert_eq!(num_tokens, tokens, "{name}: tokens of the steps that trained");
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let end = metrics.lines().last().unwrap_or_default();
    assert!(code != 0 || end.contains("\"val-core/"), "{name}: the last step was measured: {end}");
}

/// Groups, and prompt and completion tokens of their trajectories, in the rollout files of the steps up to
/// one.
fn written(rollouts: &std::path::Path, upto: u64) -> (u64, u64) {
    let mut groups = std::collections::BTreeSet::new();
    let mut tokens = 0;
    for entry in std::fs::read_dir(rollouts).expect("rollouts") {
        for row in tamis_data::records::Records::open(&entry.expect("entry").path()).expect("rows") {
            let row = row.expect("a row").values;
            if row["step"].as_u64().is_some_and(|step| step <= upto) {
                groups.insert(row["group_id"].as_u64().expect("an id"));
                tokens += ["prompt_ids", "token_ids"]
                    .map(|name| row[name].as_array().map_or(0, Vec::len) as u64)
                    .iter()
                    .sum::<u64>();
            }
        }
    }
    (groups.len() as u64, tokens)
}

fn num_generated(stderr: &str) -> u64 {
    stderr
        .lines()
        .filter(|line| line.starts_with("step ") && line.contains(" round "))
        .filter_map(|line| line.split(": ").nth(1)?.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[test]
fn surplus_is_written() {
    let large_rounds = ("gen_batch_size: 8", "gen_batch_size: 32");
    check(Case { name: "discarded", changes: &[large_rounds], ..Case::DEFAULT });
    let carry = ("schedule: {", "schedule: {surplus: carry, max_lag: 1, ");
    check(Case { name: "carried", changes: &[large_rounds, carry], ..Case::DEFAULT });
    let deficit = ("schedule: {", "schedule: {mode: deficit, granularity: 2, ");
    check(Case { name: "deficit", changes: &[deficit], ..Case::DEFAULT });
}

#[test]
fn skipped_attempts_are_written() {
    let short = ("total_steps: 6", "total_steps: 3");
    for (name, skip) in [
        ("at the limit", "max_num_gen_batches: 2, on_limit: skip"),
        ("at an empty round", "max_num_gen_batches: 50, on_empty_round: skip"),
    ] {
        let changes = &[("max_num_gen_batches: 50", skip), short];
        check(Case { name, changes, gives_up: Some(true), ..Case::DEFAULT });
    }
}

#[test]
fn batches_that_are_filled_are_written() {
    let large =
        [("train_batch_size: 4", "train_batch_size: 16"), ("gen_batch_size: 8", "gen_batch_size: 16")];
    for on_limit in ["keep_dropped", "duplicate"] {
        let limit = format!("max_num_gen_batches: 1, on_limit: {on_limit}");
        let limit = ("max_num_gen_batches: 50", limit.as_str());
        let changes = &[large[0], large[1], limit];
        check(Case { name: on_limit, changes, gives_up: None, ..Case::DEFAULT });
    }
}

#[test]
fn partial_batches_and_stops_are_written() {
    let rounds = |to| ("max_num_gen_batches: 50", to);
    let epochs = ("  total_steps: 6", "  total_epochs: 2");
    let partial = [
        rounds("max_num_gen_batches: 1, on_limit: use_partial"),
        ("total_steps: 6", "total_steps: 2"),
        ("gen_batch_size: 8", "gen_batch_size: 32"),
    ];
    check(Case { name: "partial", changes: &partial, ..Case::DEFAULT });
    check(Case { name: "stopped", changes: &[rounds("max_num_gen_batches: 1")], code: 1, ..Case::DEFAULT });
    for (name, exhausted) in [
        ("the data end", "max_num_gen_batches: 50, on_exhausted: stop"),
        ("the data end partly filled", "max_num_gen_batches: 50, on_exhausted: use_partial"),
    ] {
        check(Case { name, changes: &[epochs, rounds(exhausted)], ..Case::DEFAULT });
    }
    check(Case { name: "epochs", changes: &[epochs], ..Case::DEFAULT });
}

#[test]
fn a_run_that_stopped_says_so_again_when_it_is_resumed() {
    // No checkpoint between steps: the last one is written when the run stops.
    for frequency in ["save_freq: 0", "save_freq: 1"] {
        let config = TINY
            .replaced("save_freq: 2", frequency)
            .replaced("max_num_gen_batches: 50", "max_num_gen_batches: 3")
            .replaced("total_steps: 6", "total_steps: 100");
        let folder = Folder::new().with("config.yaml", &config);
        let ended = folder.tamis(&["train", "config.yaml"]).exits(1);
        ended.fails_with("stopped in step");
        let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
        assert_eq!(again.failure(), ended.failure(), "{frequency}");
    }
}

#[test]
fn a_run_that_ended_with_its_data_ends_again_when_it_is_resumed() {
    for exhausted in ["stop", "use_partial"] {
        let config = TINY
            .replaced("save_freq: 2", "save_freq: 0")
            .replaced(
                "max_num_gen_batches: 50",
                &format!("max_num_gen_batches: 50, on_exhausted: {exhausted}"),
            )
            .replaced("  total_steps: 6", "  total_epochs: 1");
        let folder = Folder::new().with("config.yaml", &config);
        let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
        let left = crate::tamis::Left::by(&folder.join("runs/tiny"));
        let again = folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        assert_eq!(again.stdout, ended.stdout);
        left.assert_same(&crate::tamis::Left::by(&folder.join("runs/tiny")));
    }
}
