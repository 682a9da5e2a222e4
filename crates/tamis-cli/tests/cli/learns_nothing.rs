//! Runs that cannot learn: rewards that do not arrive, batches without a loss. They end with a diagnosis, and
//! continue once the cause is fixed.

use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY, edited, unfiltered};

fn judge(answer: &str) -> String {
    format!(
        "import json, sys\nfor line in sys.stdin:\n    request = json.loads(line)\n    \
         print(json.dumps({{'id': request['id'], **({answer})}}), flush=True)\n"
    )
}

const FAILS: &str = "{'error': 'TypeError: reward() got an unexpected keyword'}";
const SCORES: &str = "{'score': len(request['completion']) % 3}";

fn config(changes: &[(&str, &str)]) -> String {
    let judge = "reward: [{kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}]";
    edited(&TINY.replaced("reward: [{kind: number}]", judge), changes)
}

const NO_FILTER: [(&str, &str); 3] = [
    ("filter: {kind: variance}\n", ""),
    ("schedule: {max_num_gen_batches: 50}\n", ""),
    ("  gen_batch_size: 8\n", ""),
];

const NONE: &str = "{'score': None}";

fn train(folder: &Folder, answer: &str, changes: &[(&str, &str)]) -> Ended {
    folder.write("judge.py", &judge(answer));
    folder.write("config.yaml", &config(changes));
    // The check of gold answers refuses a reward that never scores anything.
    let unchecked = if [FAILS, NONE].contains(&answer) { &["data.check_gold=off"][..] } else { &[] };
    folder.tamis(&[&["train", "config.yaml"], unchecked].concat())
}

/// The failure without the completion that it shows.
fn failure(ended: &Ended) -> String {
    let cut = |line: &str| line.split_once(": `").map_or(line.to_owned(), |(name, _)| format!("{name}: ..."));
    ended.failure().lines().map(cut).collect::<Vec<_>>().join("\n")
}

fn num_steps(folder: &Folder) -> usize {
    folder.steps("tiny").len()
}

#[test]
fn a_reward_that_fails_on_everything_ends_the_run_and_a_mended_one_goes_on() {
    let folder = Folder::new();
    let ended = train(&folder, FAILS, &NO_FILTER);
    insta::assert_snapshot!(failure(&ended), @r"
    exit code 1
    error: reward `judge` (reward[0]) failed on every completion of 3 rounds in a row, up to step 3: the run does not learn; the first: the function failed: TypeError: reward() got an unexpected keyword
      prompt 56: ...
      completion: ...
      ground truth: ...
      hint: fix the function; then `tamis train --resume runs/tiny` continues after the last trained step, and asks again
    ");
    assert_eq!(num_steps(&folder), 3);
    // Still broken: the next round reports it again.
    folder.tamis(&["train", "--resume", "runs/tiny"]).fails_with("of 4 rounds in a row, up to step 4");
    folder.write("judge.py", &judge(SCORES));
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    assert_eq!(num_steps(&folder), 6);
}

#[test]
fn a_filter_does_not_draw_rounds_without_end_for_a_reward_that_fails() {
    for limit in ["schedule: {max_num_gen_batches: 50}", "schedule: {max_num_gen_batches: null}"] {
        let folder = Folder::new();
        let limit = [("schedule: {max_num_gen_batches: 50}", limit)];
        let ended = train(&folder, FAILS, &limit);
        let printed =
            "reward `judge` (reward[0]) failed on every completion of 3 rounds in a row, up to step 1: ";
        ended.fails_with(printed);
        // Answers are not read back from the journal but requested anew.
        folder.tamis(&["train", "--resume", "runs/tiny"]).fails_with(printed);
        folder.write("judge.py", &judge(SCORES));
        folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        assert_eq!(num_steps(&folder), 6);
    }
}

#[test]
fn no_end_of_a_step_hides_that_rewards_are_missing() {
    for schedule in [
        "schedule: {max_num_gen_batches: 1}",
        "schedule: {max_num_gen_batches: 2, on_limit: error}",
        "schedule: {max_num_gen_batches: 1, on_limit: skip}",
        "schedule: {max_num_gen_batches: 1, on_limit: use_partial}",
        "schedule: {max_num_gen_batches: 50, on_empty_round: skip}",
        "schedule: {max_num_gen_batches: 50, on_empty_round: error}",
        "schedule: {max_num_gen_batches: 50, on_exhausted: stop}",
        "schedule: {max_num_gen_batches: 1, on_limit: skip, surplus: carry, max_lag: 1}",
    ] {
        let folder = Folder::new();
        let schedule = [("schedule: {max_num_gen_batches: 50}", schedule)];
        let ended = train(&folder, FAILS, &schedule);
        assert_eq!(ended.code, Some(1), "{schedule:?}: {}", ended.shown());
        ended.fails_with("error: reward `judge` (reward[0]) failed on every completion");
    }
    let folder = Folder::new();
    let early_stop = [
        ("schedule: {max_num_gen_batches: 50}", "schedule: {max_num_gen_batches: 1, on_limit: skip}"),
        ("  total_steps: 6", "  total_steps: 6\n  early_stop: {empty_steps: {patience: 1}}"),
    ];
    train(&folder, FAILS, &early_stop).fails_with("failed on every completion of the only round");
}

/// Every completion has the same reward, and no filter reports it.
#[test]
fn a_run_in_which_nothing_was_learned_ends_with_advice() {
    let folder = Folder::new();
    let ended = train(&folder, "{'score': 0}", &NO_FILTER).succeeds();
    let (_, advice) = ended.stdout.split_once("\n\nnothing was learned ").expect(&ended.stdout);
    let (advice, rest) = advice.split_once("\n\n").expect(advice);
    insta::assert_snapshot!(advice, @r"
    in 6 steps: no validation prompt changed (+0.000 on 8 validation prompts, prompt by prompt)
      verifier: every one of 96 trajectories has `score` 0; score the gold answers (`data.check_gold: error` does so at the start of a run), look at completions with `tamis rollouts`, and take easier prompts if both are fine
      verifier: 4 of 24 groups whose members are all wrong hold a completion whose last answer is the right one (step 6 group 21, step 5 group 17, step 2 group 6); look at their completions: the verifier may expect another form than the prompt asks for
    ");
    assert!(rest.starts_with("done: 6 steps, run directory runs/tiny\n"), "{rest}");
    assert!(folder.read("runs/tiny/run.log").contains("info nothing was learned in 6 steps: "));
    // The page of the run says the same.
    let page = || {
        folder.tamis(&["report", "runs/tiny"]).succeeds();
        let escapes = [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#x27;", "'"),
            ("&#x2f;", "/"),
            ("&amp;", "&"),
        ];
        let read = folder.read("runs/tiny/report.html");
        escapes.iter().fold(read, |page, (escape, letter)| page.replace(escape, letter))
    };
    let made = page();
    assert!(made.contains("<h3>What to change</h3><p>nothing was learned in 6 steps: "), "{made}");
    for line in advice.lines() {
        assert!(made.contains(line.trim()), "no `{line}` in {made}");
    }
    let log = folder.read("runs/tiny/run.log");
    folder.write("runs/tiny/run.log", &log.replaced("the run ends: all of its steps are done", "a step"));
    // A run that goes on has no such list yet.
    let config = folder.read("runs/tiny/config.yaml").replaced("total_steps: 6", "total_steps: 60");
    folder.write("runs/tiny/config.yaml", &config);
    assert!(!page().contains("What to change"));
}

#[test]
fn a_short_run_without_any_reward_is_not_done() {
    let folder = Folder::new();
    let short = [&NO_FILTER[..], &[("  total_steps: 6", "  total_steps: 2")]].concat();
    let ended = train(&folder, FAILS, &short);
    ended.fails_with("failed on every completion of 2 rounds in a row, up to step 2");
    ended.never_prints("done");
    let hint = "hint: fix the function; no step of this run is left: to train further: `tamis train \
         --resume runs/tiny train.total_steps=4`";
    ended.fails_with(hint);
    // A resume without a step to train reports nothing new.
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    let old = "error: no step was left to train, and as before: reward `judge` (reward[0]) failed on every completion of 2 rounds";
    again.fails_with(old).fails_with(hint);
    // Once there is a reward, the same run succeeds.
    folder.write("judge.py", &judge(SCORES));
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=4"]).succeeds();
}

#[test]
fn no_answer_from_anyone_ends_the_run_too() {
    let folder = Folder::new();
    let ended = train(&folder, NONE, &NO_FILTER);
    insta::assert_snapshot!(failure(&ended), @r"
    exit code 1
    error: no completion of 3 rounds in a row had a reward, up to step 3: the run does not learn; the first: prompt 56: ...
      completion: ...
      ground truth: ...
      hint: check the inputs and the results of the reward functions; then `tamis train --resume runs/tiny` continues after the last trained step, and asks again
    ");
    // Beside a reward that answers, a reward that has no answer for any of these rows does not count as
    // failing.
    let folder = Folder::new();
    let beside = [&NO_FILTER[..], &[("reward: [{kind", "reward: [{kind: number}, {kind")]].concat();
    train(&folder, NONE, &beside).succeeds();
    // A function that raises does, even then.
    let folder = Folder::new();
    train(&folder, FAILS, &beside)
        .fails_with("reward `judge` (reward[1]) failed on every completion of 3 rounds");
}

#[test]
fn a_penalty_for_length_does_not_hide_that_nothing_is_answered() {
    let folder = Folder::new();
    folder.write("judge.py", &judge(NONE));
    folder.write("config.yaml", &config(&NO_FILTER));
    let layers = ["train", "config.yaml", "preset=dapo", "filter=null"];
    folder.tamis(&layers).exits(2).says("reward `judge` scores no gold answer");
    let ended = folder.tamis(&[&layers[..], &["data.check_gold=off"]].concat());
    let printed = "no completion of 3 rounds in a row had a score from a reward function other than shaping, up to step 3";
    ended.fails_with(printed);
}

/// Shaping and another reward score the completions on which the judge fails, so the metric that only the
/// judge gives is not reported as missing.
#[test]
fn a_reward_that_fails_is_not_called_a_missing_metric() {
    let on_acc = ("filter: {kind: variance}", "filter: {kind: variance, metric: acc}");
    let unchecked = ("data:\n", "data:\n  check_gold: off\n");
    let beside = (
        "reward: [{kind",
        "reward: [{kind: command, name: other, argv: [python3, other.py], num_processes: 1}, {kind",
    );
    let failed = "failed on every completion of 3 rounds in a row";
    let none = "no completion of 3 rounds in a row had a score from a reward function other than shaping";
    for (changes, preset, answer, printed) in [
        (&[on_acc, unchecked][..], "preset=dapo", FAILS, failed),
        (&[on_acc, unchecked], "preset=dapo", NONE, none),
        (&[on_acc, unchecked, beside], "preset=null", FAILS, failed),
    ] {
        let folder = Folder::new().with("judge.py", &judge(answer)).with("other.py", &judge(SCORES));
        folder.write("config.yaml", &config(changes));
        let ended = folder.tamis(&["train", "config.yaml", preset]);
        let is_named = ended.code == Some(1) && ended.failure().contains(printed);
        assert!(is_named && !ended.stderr.contains("filter's metric"), "{changes:?}: {}", ended.shown());
        // Once fixed, it gives the metric.
        folder.write("judge.py", &judge("{'scores': {'score': len(request['completion']) % 2, 'acc': len(request['completion']) % 2}}"));
        let again = folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        assert!(!again.stderr.contains("filter's metric"), "{changes:?}: {}", again.shown());
        assert_eq!(num_steps(&folder), 6);
    }
}

/// A name that only answers can reveal: one round without it is chance, several in a row are a mistake, also
/// after a resume.
#[test]
fn a_metric_that_no_score_has_ends_the_run_after_several_rounds() {
    let changes = [
        ("data:\n", "data:\n  check_gold: off\n"),
        ("filter: {kind: variance}", "filter: {kind: variance, metric: strict}"),
    ];
    let printed = "warning: the filter's metric `strict` is not among the scores of this round: ";
    let folder = Folder::new();
    let first = train(&folder, "{'score': 1}", &changes);
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    for ended in [first, again] {
        assert_eq!((ended.code, ended.stderr.matches(printed).count()), (Some(2), 2), "{}", ended.shown());
        ended.fails_with("`filter.metric` is `strict`");
    }
    // Answers without it are requested anew.
    folder.write("judge.py", &judge("{'scores': {'score': 1, 'strict': len(request['completion']) % 2}}"));
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
}

#[test]
fn a_failure_that_passes_does_not_end_the_run() {
    let folder = Folder::new();
    let passing = format!("{FAILS} if request['step'] in (2, 3, 5, 6) else {SCORES}");
    train(&folder, &passing, &NO_FILTER).succeeds();
    assert_eq!(num_steps(&folder), 6);
}

#[test]
fn what_was_missing_is_counted_on_by_a_resume() {
    let folder = Folder::new();
    let from_two = format!("{FAILS} if request['step'] >= 2 else {SCORES}");
    let often =
        [&NO_FILTER[..], &[("checkpoint: {save_freq: 2}", "checkpoint: {save_freq: 1, keep_last: null}")]]
            .concat();
    let ended = train(&folder, &from_two, &often);
    ended.fails_with("of 3 rounds in a row, up to step 4");
    let run = folder.join("runs/tiny");
    let expected = Left::by(&run);
    for lost in [vec![4], vec![3, 4], vec![2, 3, 4]] {
        for step in lost {
            std::fs::remove_dir_all(run.join(format!("checkpoints/step_{step}"))).expect("removed");
        }
        assert_eq!(folder.tamis(&["train", "--resume", "runs/tiny"]).failure(), ended.failure());
        expected.assert_same(&Left::by(&run));
    }
}

#[test]
fn steps_that_bear_no_loss_end_the_run() {
    let folder = Folder::new();
    // No completion ends within one token, and those that do not end are left out.
    let truncated = [
        &NO_FILTER[..],
        &[
            ("max_response_length: 4", "max_response_length: 1, temperature: 0.05"),
            ("train:\n", "objective: {masks: {truncated: true}}\ntrain:\n"),
            ("  total_steps: 6", "  total_steps: 20"),
        ],
    ]
    .concat();
    let ended = train(&folder, SCORES, &truncated);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 1
    error: the 10 steps up to step 10 made no update of the policy (their trajectories bear no loss: truncated): the run does not learn
      hint: every completion ends at rollout.max_response_length: raise it, or set objective.masks.truncated=false; the run is in runs/tiny
    ");
    assert_eq!(num_steps(&folder), 10);
    // Each step reports it, and no weight moves.
    ended.says("none of its 16 trajectories bears any loss, so nothing is learned (truncated)");
    assert!(folder.weights("tiny", 8) == folder.weights("tiny", 10));
    for step in folder.numbers("tiny") {
        let figures = (step["actor/num_updates"], step["loss"], step["trajectories/left_out"]);
        assert_eq!(figures, (0.0, 0.0, 16.0), "{step:?}");
    }
    let folder = Folder::new();
    let short = [&truncated[..], &[("  total_steps: 20", "  total_steps: 3")]].concat();
    train(&folder, SCORES, &short).fails_with("the 3 steps up to step 3 made no update of the policy");
}

/// It answers from the first step on; at the validation before that, nothing is scored.
fn late() -> String {
    format!("{{'score': None}} if request['step'] == 0 else {SCORES}")
}

#[test]
fn a_validation_of_which_nothing_was_scored_has_no_figure() {
    for preset in [None, Some("preset=dapo")] {
        for metric in ["null", "val-core/arithmetic/reward/mean@1"] {
            let folder = Folder::new();
            folder.write("judge.py", &judge(&late()));
            folder.write("config.yaml", &config(&NO_FILTER));
            let keep = format!("checkpoint.keep_best={{k: 1, metric: {metric}}}");
            let mut arguments = vec!["train", "config.yaml", "filter=null", &keep, "data.check_gold=off"];
            arguments.extend(preset);
            let ended = folder.tamis(&arguments).succeeds();
            ended.says("\nvalidation after step 0: no score (8 prompts), mean length ");
            ended.says("\nvalidation after step 2: mean score ");
            let compared =
                "nothing was scored for `val-core/arithmetic/reward/mean@1` (checkpoint.keep_best.metric)";
            assert_eq!(ended.stderr.contains(compared), metric != "null", "{}", ended.shown());
            let closing = ended.stdout.lines().find(|line| line.starts_with("mean score (8 held-out)"));
            let before = closing.and_then(|line| line.split_whitespace().nth(4));
            assert_eq!(before, Some("none"), "{}", ended.shown());
            let rows = folder.rows("tiny");
            let means = |row: &serde_json::Value| {
                // The length penalty itself is measured under its own name.
                let is_mean = |name: &&String| name.contains("mean@1") && !name.contains("/overlong/");
                row.as_object().expect("a row").keys().filter(is_mean).cloned().collect::<Vec<_>>()
            };
            assert_eq!(means(&rows[0]), [""; 0], "{:?}", rows[0]);
            assert_eq!(rows[0]["val-aux/arithmetic/num_unscored"], 8.0);
            let later = means(&rows[2]);
            assert!(later.contains(&"val-core/arithmetic/reward/mean@1".to_owned()), "{later:?}");
            let state = folder.read("runs/tiny/checkpoints/step_6/state.json");
            let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
            let scores: Vec<&String> =
                state["validation"]["scores"].as_object().expect("scores").keys().collect();
            assert_eq!(scores, ["2", "4", "6"]);
        }
    }
}

#[test]
fn an_evaluation_of_which_nothing_was_scored_has_no_figure() {
    let folder = Folder::new();
    train(&folder, SCORES, &[&NO_FILTER[..], &[("  total_steps: 6", "  total_steps: 2")]].concat())
        .succeeds();
    folder.write("judge.py", &judge("{'score': None}"));
    let ended = folder.tamis(&["eval", "runs/tiny", "validate.num_samples_shown=0"]).exits(1);
    let said =
        "error: nothing was evaluated, and nothing is kept: no reward function answered any completion";
    ended.says(said);
    // Nothing that looks like a result remains.
    let kept = folder.join("runs/tiny/evaluations");
    assert!(!kept.exists() && !ended.stderr.contains("kept in"), "{}", ended.shown());
    let table: Vec<&str> =
        ended.stdout.lines().filter(|line| !line.contains("tokens") && !line.contains("cut at")).collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    checkpoint runs/tiny/checkpoints/step_2
    8 prompts, 1 sample each, greedy

    arithmetic (8 prompts, 8 completions)
      nothing was scored: no reward function answered any completion
      unscored                     8
    ");
    let json = folder.tamis(&["eval", "runs/tiny", "--json"]).exits(1).json();
    assert!(!json["metrics"].to_string().contains("mean@"), "{json}");
}

/// An impossible figure is refused before anything is generated, even if the names of the scores are not
/// known yet. A figure of a score that no answer has ends the run at the first validation.
#[test]
fn the_figure_that_checkpoints_are_compared_by_must_be_one_that_there_can_be() {
    let folder = Folder::new();
    folder.write("judge.py", &judge(SCORES));
    folder.write("config.yaml", &config(&NO_FILTER));
    let printed = |metric: &str, gold: &str| {
        let keep = format!("checkpoint.keep_best.metric={metric}");
        let gold = format!("data.check_gold={gold}");
        let ended = folder.tamis(&["train", "config.yaml", &keep, &gold]);
        ended.fails_with(&format!("there is no metric `{metric}` in this run's validation"));
        ended.fails_with("hint: choose one of val-");
        (ended.code, ended.stderr.contains("sft:"))
    };
    assert_eq!(printed("val-core/arithmetic/acc/mean@1", "warn"), (Some(2), false));
    assert_eq!(printed("val-core/arithmetic/score/mean@1", "warn"), (Some(2), false), "it is no core figure");
    assert_eq!(printed("val-core/arithmetic/strict/mean@8", "off"), (Some(2), false), "there is one sample");
    assert_eq!(printed("val-core/sums/strict/mean@1", "off"), (Some(2), false), "there is no such source");
    assert_eq!(printed("val-core/arithmetic/strict/mean@1", "off"), (Some(2), true));
}

#[test]
fn an_sft_without_any_score_does_not_reach_its_target() {
    let folder = Folder::new();
    folder.write("judge.py", &judge(&late()));
    folder.write("config.yaml", &config(&NO_FILTER));
    let target = ["sft.target_accuracy=0", "sft.test_freq=10", "data.check_gold=off"];
    let ended = folder.tamis(&[&["train", "config.yaml"], &target[..]].concat()).succeeds();
    let line = ended.stderr.lines().find(|line| line.starts_with("sft: 40 updates of 32 examples"));
    let has_none = line.is_some_and(|line| !line.contains("accuracy") && !line.contains("score"));
    assert!(has_none, "{}", ended.shown());
    ended.says("warning: sft: no reward function answered");
}

#[test]
fn the_rollouts_of_an_attempt_that_ends_for_want_of_rewards_are_written() {
    let folder = Folder::new();
    train(&folder, FAILS, &[]);
    let rows = |verdict: &str| {
        let arguments =
            ["rollouts", "runs/tiny", "--step", "1", "--verdict", verdict, "--limit", "1000", "--json"];
        let ended = folder.tamis(&arguments).succeeds();
        let json = ended.json();
        json["rows"].as_array().expect("rows").clone()
    };
    // Three rounds of eight prompts, four completions each, all unscored.
    let unscored = rows("unscored");
    assert_eq!(unscored.len(), 3 * 8 * 4, "{unscored:?}");
    assert!(unscored.iter().all(|row| row["reward"].is_null() && row["completion"].is_string()));
    // The same if the filter's metric is missing. The last round was not judged, and its scores are there.
    let changes = [
        ("data:\n", "data:\n  check_gold: off\n"),
        ("filter: {kind: variance}", "filter: {kind: variance, metric: strict}"),
        ("run: {name: tiny", "run: {name: strict"),
    ];
    train(&folder, "{'score': 1}", &changes);
    let arguments = ["rollouts", "runs/strict", "--verdict", "aborted", "--limit", "1000", "--json"];
    let aborted = folder.tamis(&arguments).succeeds().json();
    let aborted = aborted["rows"].as_array().expect("rows");
    assert_eq!(aborted.len(), 8 * 4);
    assert!(aborted.iter().all(|row| row["reward"] == 1.0), "{aborted:?}");
}

#[test]
fn a_source_whose_function_fails_on_everything_ends_the_run() {
    let folder = Folder::new().with("judge.py", &judge(FAILS));
    let rows: Vec<String> = (0..48)
        .map(|row| {
            let source = ["sums", "other", "sums"][row % 3];
            format!(
                "{{\"prompt\": \"{}+1=\", \"answer\": \"{}\", \"data_source\": \"{source}\"}}\n",
                row % 9,
                row % 9 + 1
            )
        })
        .collect();
    folder.write("rows.jsonl", &rows.concat());
    let by_source = "reward: [{kind: by_source, sources: {sums: number, '*': {kind: command, argv: [python3, \
         judge.py], num_processes: 1}}}]";
    let config = unfiltered(TINY)
        .replaced("reward: [{kind: number}]", by_source)
        .replaced("train_batch_size: 4", "train_batch_size: 8");
    folder.write("config.yaml", &config);
    let files =
        ["data.task=null", "~data.arithmetic", "data.train=rows.jsonl", "~validate", "data.check_gold=off"];
    let ended = folder.tamis(&[&["train", "config.yaml", "train.total_steps=20"][..], &files].concat());
    let printed =
        "reward `by_source` (reward[0]) failed on every completion that its `sources` entry `*` scores, of ";
    ended.fails_with("exit code 1\nerror: ").fails_with(printed);
    ended.fails_with("hint: fix the function; then `tamis train --resume");
    folder.write("judge.py", &judge(SCORES));
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
}
