//! `tamis sweep`: names, a whole small sweep, kills, failures, comparison.

use std::path::Path;

use crate::tamis::{Folder, Left, Replaced as _, failures, signal, soon, words};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/sweeps/ragen_filtering.yaml");

const SWEEP: &str = "\
base: tiny.yaml
set: [train.total_steps=2, validate.test_freq=2]
name: 'n{rollout.n}'
axes: {rollout.n: [2, 4]}
baseline: {at: {rollout.n: 4}}
seeds: [1, 2]
";

#[test]
fn the_grid_of_ragens_document_has_its_names() {
    let folder = Folder::new();
    let ended = folder.tamis(&["sweep", SHIPPED, "--dry-run", "--date", "0120"]).succeeds();
    let names: Vec<&str> = ended.stdout.lines().filter_map(|line| line.split(' ').next()).collect();
    let of = |algo: &str| {
        let rest = words(
            "none_1.0_incTRUE top_p_0.7_incFALSE top_p_0.85_incFALSE top_k_4_incFALSE \
             top_k_6_incFALSE min_p_0.5_incFALSE min_p_0.8_incFALSE",
        );
        rest.iter().map(|rest| format!("results/0120_soko_3b_{algo}_{rest}/")).collect::<Vec<_>>()
    };
    assert_eq!(names, [of("grpo"), of("ppo")].concat());
    let first = ended.stdout.lines().next().unwrap_or_default();
    assert_eq!(
        first,
        "results/0120_soko_3b_grpo_none_1.0_incTRUE/  200 steps x 8 prompts x 16: 25,600 trajectories of up to 3000 tokens, 76,800,000 tokens"
    );
    for algo in ["grpo", "ppo"] {
        let part =
            folder.tamis(&["sweep", SHIPPED, "--dry-run", "--date", "0120", "--only", algo]).succeeds();
        let names: Vec<&str> = part.stdout.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, of(algo));
    }
    assert!(!folder.join("results").exists(), "a dry run writes nothing");
}

/// Over the configurations of sums in place of Sokoban.
#[test]
fn the_grid_of_ragens_document_runs_over_another_base() {
    let folder = Folder::tiny();
    let quickstart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/quickstart.yaml");
    let ended =
        folder.tamis(&["sweep", SHIPPED, "--dry-run", "--date", "0120", "--base", quickstart]).succeeds();
    assert_eq!(ended.stdout.lines().count(), 14);
    let arguments = ["sweep", SHIPPED, "--date", "0120", "--base", "tiny.yaml", "--only", "grpo"];
    let small = ["sft.steps=5", "train.total_steps=1", "validate.test_freq=0", "data.train_batch_size=8"];
    let ended = folder.tamis(&[&arguments[..], &small].concat()).succeeds();
    assert!(
        folder.join("results/0120_soko_3b_grpo_min_p_0.8_incFALSE/metrics.jsonl").is_file(),
        "{}",
        ended.shown()
    );
    ended.prints("0120_soko_3b_grpo_none_1.0_incTRUE (baseline)");
}

#[test]
fn a_small_sweep_is_run_compared_and_not_run_twice() {
    let folder = Folder::tiny().with("small.yaml", SWEEP);
    let ended = folder.tamis(&["sweep", "small.yaml", "--parallel", "2"]).succeeds();
    for run in ["n4_seed1", "n4_seed2", "n2_seed1", "n2_seed2"] {
        assert!(folder.join(&format!("results/{run}/metrics.jsonl")).is_file(), "{run}\n{}", ended.shown());
        ended.says(&format!("{run}: finished, step 2/2  reward "));
    }
    ended.prints("\nn4 (baseline)  ").prints(" ±");
    let csv = folder.read("results/comparison_small.csv");
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 6, "{csv}");
    // The reward over steps, tokens and seconds. A single validation gives no curve.
    let page = folder.read("results/comparison_small.html");
    assert_eq!(page.matches("data-chart=").count(), 3);
    assert!(page.contains("Not drawn: no variant has more than one value."));
    assert!(folder.read("results/comparison_small.md").starts_with("# Comparison\n"));

    let before = folder.read("results/n2_seed1/metrics.jsonl");
    let again = folder.tamis(&["sweep", "small.yaml"]).succeeds();
    assert_eq!(again.stderr.matches("finished before").count(), 4, "{}", again.stderr);
    assert_eq!(folder.read("results/n2_seed1/metrics.jsonl"), before);
    let compared = folder.tamis(&["sweep", "--compare", "small.yaml"]).succeeds();
    assert_eq!(compared.stdout, again.stdout);
    // A misspelt metric leaves the existing comparison unchanged.
    folder
        .tamis(&["sweep", "--compare", "small.yaml", "--metric", "all/critic/score/men"])
        .exits(2)
        .says("did you mean `all/critic/score/mean`?");
    assert_eq!(folder.read("results/comparison_small.csv"), csv);
    // The length may grow: finished work is kept.
    folder.write("small.yaml", &SWEEP.replaced("total_steps=2", "total_steps=3"));
    let longer = folder.tamis(&["sweep", "small.yaml"]).succeeds();
    assert_eq!(longer.stderr.matches(": resumed").count(), 4, "{}", longer.stderr);
    assert_eq!(folder.read("results/n2_seed1/metrics.jsonl").lines().count(), 4, "and the row of step 0");
    // Settings that its steps depend on may not change.
    folder.write("small.yaml", &SWEEP.replaced("validate.test_freq=2", "rollout.temperature=0.5"));
    let other = folder.tamis(&["sweep", "small.yaml"]).exits(4);
    other.says("rollout.temperature: 1.0 in the run, 0.5 now");
}

#[test]
fn each_sweep_in_a_folder_has_its_own_comparison() {
    let part = SWEEP.replaced("seeds: [1, 2]", "seeds: [1]\nonly: {four: {rollout.n: 4}}");
    let folder = Folder::tiny().with("small.yaml", &part).with(
        "other.yaml",
        &part.replaced("[2, 4]", "[4, 3]").replaced("only: {four: {rollout.n: 4}}\n", ""),
    );
    folder.tamis(&["sweep", "small.yaml"]).succeeds();
    let small = folder.read("results/comparison_small.csv");
    folder.tamis(&["sweep", "other.yaml"]).succeeds().says("comparison: results/comparison_other.html");
    folder
        .tamis(&["sweep", "small.yaml", "--only", "four"])
        .succeeds()
        .says("comparison: results/comparison_small_four.html");
    assert_eq!(folder.read("results/comparison_small.csv"), small);
    let variants = |file: &str| {
        let text = folder.read(file);
        let mut found: Vec<String> =
            text.lines().skip(1).filter_map(|line| Some(line.split_once(',')?.0.to_owned())).collect();
        found.dedup();
        found.sort();
        found.dedup();
        found
    };
    assert_eq!(variants("results/comparison_small.csv"), ["n2", "n4"]);
    assert_eq!(variants("results/comparison_other.csv"), ["n3", "n4"]);
    assert_eq!(variants("results/comparison_small_four.csv"), ["n4"]);
}

#[test]
fn runs_of_others_are_compared() {
    let row = |step: u32, score: f64| {
        format!(
            "{{\"step\":{step},\"data\":{{\"critic/score/mean\":{score},\"perf/total_num_tokens\":100,\"perf/time_per_step\":2.0}}}}\n"
        )
    };
    let folder = Folder::new()
        .with("verl.jsonl", &(row(1, 0.25) + &row(2, 0.5)))
        .with("other.jsonl", &(row(1, 0.25) + &row(2, 0.75)));
    let ended =
        folder.tamis(&["sweep", "--compare", "verl.jsonl", "other.jsonl", "--out", "compared"]).succeeds();
    insta::assert_snapshot!(ended.shown(), @r"
exit code 0
----- stdout
reward (critic/score/mean)  runs              last              best              area        at 2 steps     at 200 tokens        at 4.000 s
verl (baseline)                1            0.5000            0.5000            0.3750            0.5000            0.5000            0.5000
other                          1  0.7500 (+0.2500)  0.7500 (+0.2500)  0.5000 (+0.1250)  0.7500 (+0.2500)  0.7500 (+0.2500)  0.7500 (+0.2500)

note: tokens are those trained on (`perf/total_num_tokens`): what was dropped is not counted
----- stderr
comparison: compared/comparison.html
");
    assert!(
        folder.read("compared/comparison.csv").contains("other,verl,critic/score/mean,last,,1,0.75,,0.25")
    );
    let wrong = folder.tamis(&["sweep", "--compare", "verl.jsnl"]);
    insta::assert_snapshot!(wrong.shown(), @r"
exit code 2
----- stderr
error: there is no `verl.jsnl`
  hint: did you mean `verl.jsonl`?
");
}

#[test]
fn a_run_that_fails_does_not_end_the_sweep() {
    let sweep = SWEEP.replaced("axes: {rollout.n: [2, 4]}\nbaseline: {at: {rollout.n: 4}}\nseeds: [1, 2]\n", "\
axes: {part: {sets: {good: [], bad: {reward: [{kind: number}, {kind: command, name: judge, argv: [python3, judge.py]}]}, last: [rollout.n=2]}}}
").replaced("n{rollout.n}", "{part}");
    let folder = Folder::tiny().with("part.yaml", &sweep).with("judge.py", "raise SystemExit('no judge')");
    let ended = folder.tamis(&["sweep", "part.yaml"]).exits(1);
    ended.says("1 of 3 runs failed:\n  bad (exit code ");
    ended.says("no judge");
    assert!(folder.join("results/last/metrics.jsonl").is_file());
    ended.prints("results/bad has no metrics yet");
    let judge = "import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'id': json.loads(line)['id'], 'score': 0.5}), flush=True)\n";
    folder.write("judge.py", judge);
    let again = folder.tamis(&["sweep", "part.yaml"]).succeeds();
    assert_eq!(again.stderr.matches("finished before").count(), 2, "{}", again.stderr);
}

fn wait_for_rows(folder: &Folder, run: &str, rows: usize) {
    soon(run, || folder.has_rows(&format!("results/{run}"), rows));
}

fn is_held(run: &Path) -> bool {
    tamis_run::directory::held_by(run).is_some()
}

fn long() -> String {
    SWEEP.replaced("train.total_steps=2", "train.total_steps=40").replaced("seeds: [1, 2]", "seeds: [7]")
}

#[test]
fn a_sweep_that_is_killed_takes_its_runs_with_it_and_goes_on() {
    let folder = Folder::tiny().with("long.yaml", &long());
    let mut child = folder.start(&["sweep", "long.yaml"]);
    wait_for_rows(&folder, "n4", 6);
    child.kill().expect("killed");
    folder.wait(child);
    // At once: the next one waits until the guard has ended the processes of the first.
    folder.tamis(&["sweep", "long.yaml"]).succeeds().says("[1/2] n4: resumed");
    let whole = Folder::tiny().with("long.yaml", &long());
    whole.tamis(&["sweep", "long.yaml"]).succeeds();
    for run in ["results/n4", "results/n2"] {
        Left::by(&folder.join(run)).assert_same(&Left::by(&whole.join(run)));
    }
    assert!(!folder.join("results/n4-2").exists());
}

#[test]
fn ctrl_c_ends_the_runs_which_save() {
    // Without a filter no epoch is one without signal.
    let endless = long().replaced("train.total_steps=40", "train.total_steps=100000, filter=null");
    let folder = Folder::tiny().with("long.yaml", &endless);
    let child = folder.start(&["sweep", "long.yaml", "--parallel", "2"]);
    wait_for_rows(&folder, "n4", 4);
    wait_for_rows(&folder, "n2", 4);
    folder.tamis(&["sweep", "long.yaml"]).says(&format!("process {} is working there", child.id()));
    signal(&child, "-INT");
    folder.wait(child).exits(130);
    for run in ["n4", "n2"] {
        assert!(!is_held(&folder.join(&format!("results/{run}"))), "{run}");
        let checkpoints =
            std::fs::read_dir(folder.join(&format!("results/{run}/checkpoints"))).expect("folder");
        assert!(checkpoints.count() > 0, "{run}");
    }
    let rows = ["n4", "n2"].map(|run| folder.read(&format!("results/{run}/metrics.jsonl")).lines().count());
    let steps = format!("train.total_steps={}", rows[0].max(rows[1]) + 1);
    folder.write("long.yaml", &endless.replaced("train.total_steps=100000", &steps));
    let done = folder.tamis(&["sweep", "long.yaml"]).succeeds();
    assert_eq!(done.stderr.matches(": resumed").count(), 2, "{}", done.stderr);
}

/// The number of steps of a run may grow before, and what a resume may change is passed on after.
#[test]
fn a_run_that_ends_early_by_itself_is_continued() {
    let short = SWEEP.replaced("test_freq=2", "test_freq=2, filter=null").replaced("[1, 2]", "[7]");
    let folder = Folder::tiny().with("sweep.yaml", &short);
    let arguments = ["sweep", "sweep.yaml", "--parallel", "2"];
    folder.tamis(&arguments).succeeds();
    let endless = short.replaced("total_steps=2", "total_steps=100000");
    folder.write("sweep.yaml", &endless);
    let child = folder.start(&arguments);
    for run in ["n4", "n2"] {
        wait_for_rows(&folder, run, 5);
        let process = folder.read(&format!("results/{run}/run.lock"));
        let sent = std::process::Command::new("kill").args(["-INT", process.trim()]).status();
        assert!(sent.expect("kill").success());
    }
    let ended = folder.wait(child).exits(130);
    ended
        .says("2 of 2 runs ended early (n4, n2): the same command continues")
        .says(": ended early (exit code 130), step ");
    assert!(!ended.stderr.contains("failed"), "{}", ended.shown());

    let rows = |run: &str| folder.read(&format!("results/{run}/metrics.jsonl")).lines().count();
    let before = rows("n4").max(rows("n2"));
    folder.write("sweep.yaml", &endless.replaced("filter=null", "filter=null, checkpoint.keep_last=7"));
    let child = folder.start(&arguments);
    wait_for_rows(&folder, "n4", before + 1);
    wait_for_rows(&folder, "n2", before + 1);
    signal(&child, "-INT");
    folder.wait(child).exits(130).says("interrupted: the same command continues");
    for run in ["n4", "n2"] {
        let config = folder.read(&format!("results/{run}/config.yaml"));
        assert!(config.contains("keep_last: 7"), "{config}");
    }
}

#[test]
fn messages() {
    let folder = Folder::tiny();
    let shown = |arguments: &[&str]| folder.tamis(&[&["sweep"], arguments].concat()).failure();
    insta::assert_snapshot!(failures([shown(&["missing.yaml"]), shown(&["rollout.n=4"])]), @r"
    exit code 2
    error: failed to read missing.yaml: No such file or directory (os error 2)
      hint: name the file of a sweep, such as configs/sweeps/ragen_filtering.yaml
    1 error in the configuration
    error: no sweep was given
      hint: `tamis sweep configs/sweeps/ragen_filtering.yaml --dry-run`
    ");
}
