//! Runs that cannot learn: rewards that do not arrive, batches that bear no loss. They end with a diagnosis, and go on once that is mended.

mod tamis;

use tamis::{Ended, Folder, Left, Replaced as _, TINY};

/// A reward program whose answer to `request` is this Python expression.
fn judge(answer: &str) -> String {
    format!(
        "import json, sys\nfor line in sys.stdin:\n    request = json.loads(line)\n    \
         print(json.dumps({{'id': request['id'], **({answer})}}), flush=True)\n"
    )
}

const FAILS: &str = "{'error': 'TypeError: reward() got an unexpected keyword'}";
const SCORES: &str = "{'score': len(request['completion']) % 3}";

/// [`TINY`] with a judge as its only reward, and these changes.
fn config(changes: &[(&str, &str)]) -> String {
    let judge = (
        "reward: [{kind: number}]",
        "reward: [{kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}]",
    );
    let mut config = TINY.to_owned();
    for (from, to) in std::iter::once(&judge).chain(changes) {
        config = config.replaced(from, to);
    }
    config
}

const NO_FILTER: [(&str, &str); 3] = [
    ("filter: {kind: variance}\n", ""),
    ("schedule: {max_num_gen_batches: 50}\n", ""),
    ("  gen_batch_size: 8\n", ""),
];

fn train(folder: &Folder, answer: &str, changes: &[(&str, &str)]) -> Ended {
    folder.write("judge.py", &judge(answer));
    folder.write("config.yaml", &config(changes));
    folder.tamis(&["train", "config.yaml"])
}

/// The failure without the completion that it shows.
fn failure(ended: &Ended) -> String {
    let cut = |line: &str| line.split_once(": `").map_or(line.to_owned(), |(name, _)| format!("{name}: ..."));
    ended.failure().lines().map(cut).collect::<Vec<_>>().join("\n")
}

fn num_steps(folder: &Folder) -> usize {
    folder
        .read("runs/tiny/metrics.jsonl")
        .lines()
        .filter(|line| line.contains("\"groups/generated\""))
        .count()
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
      hint: mend the function; then `tamis train --resume runs/tiny` goes on after the last step that was trained, and asks anew
    ");
    assert_eq!(num_steps(&folder), 3);
    // Still broken: the next round says so again.
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    assert!(again.failure().contains("of 4 rounds in a row, up to step 4"), "{}", again.shown());
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
        insta::allow_duplicates!(insta::assert_snapshot!(failure(&ended), @r"
    exit code 1
    error: reward `judge` (reward[0]) failed on every completion of 3 rounds in a row, up to step 1: the run does not learn; the first: the function failed: TypeError: reward() got an unexpected keyword
      prompt 56: ...
      completion: ...
      ground truth: ...
      hint: mend the function; then `tamis train --resume runs/tiny` goes on after the last step that was trained, and asks anew
    "));
        // What was answered is not read back from the journal: it is asked for anew.
        let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
        assert!(again.failure().contains("of 3 rounds in a row, up to step 1"), "{}", again.shown());
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
        let told = ended.failure();
        assert!(
            told.contains("error: reward `judge` (reward[0]) failed on every completion"),
            "{schedule:?}: {told}"
        );
    }
    let folder = Folder::new();
    let early_stop = [
        ("schedule: {max_num_gen_batches: 50}", "schedule: {max_num_gen_batches: 1, on_limit: skip}"),
        ("  total_steps: 6", "  total_steps: 6\n  early_stop: {empty_steps: {patience: 1}}"),
    ];
    let ended = train(&folder, FAILS, &early_stop);
    assert!(ended.failure().contains("failed on every completion of the only round"), "{}", ended.shown());
}

#[test]
fn a_short_run_without_any_reward_is_not_done() {
    let folder = Folder::new();
    let short = [&NO_FILTER[..], &[("  total_steps: 6", "  total_steps: 2")]].concat();
    let ended = train(&folder, FAILS, &short);
    assert!(
        ended.failure().contains("failed on every completion of 2 rounds in a row, up to step 2"),
        "{}",
        ended.shown()
    );
    assert!(!ended.stdout.contains("done"), "{}", ended.stdout);
    let hint = "hint: mend the function; no step of this run is left: to train further: `tamis train --resume runs/tiny train.total_steps=4`";
    assert!(ended.failure().contains(hint), "{}", ended.shown());
    // A resume without a step to train has no news.
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    let old = "error: no step was left to train, and as before: reward `judge` (reward[0]) failed on every completion of 2 rounds";
    assert!(again.failure().contains(old) && again.failure().contains(hint), "{}", again.shown());
    // Once there is a reward, the same run is done.
    folder.write("judge.py", &judge(SCORES));
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=4"]).succeeds();
}

#[test]
fn no_answer_from_anyone_ends_the_run_too() {
    let folder = Folder::new();
    let ended = train(&folder, "{'score': None}", &NO_FILTER);
    insta::assert_snapshot!(failure(&ended), @r"
    exit code 1
    error: no completion of 3 rounds in a row had a reward, up to step 3: the run does not learn; the first: prompt 56: ...
      completion: ...
      ground truth: ...
      hint: look at what the reward functions are given and return; then `tamis train --resume runs/tiny` goes on after the last step that was trained, and asks anew
    ");
    // Beside a reward that answers, one that has no answer to anything in these rows is none that fails.
    let folder = Folder::new();
    let beside = [&NO_FILTER[..], &[("reward: [{kind", "reward: [{kind: number}, {kind")]].concat();
    train(&folder, "{'score': None}", &beside).succeeds();
    // One that fails is, even so.
    let folder = Folder::new();
    let ended = train(&folder, FAILS, &beside);
    assert!(
        ended.failure().contains("reward `judge` (reward[1]) failed on every completion of 3 rounds"),
        "{}",
        ended.shown()
    );
}

/// The preset's soft overlong punishment scores every completion, whatever the task's reward says.
#[test]
fn a_punishment_for_length_does_not_hide_that_nothing_is_answered() {
    let folder = Folder::new();
    folder.write("judge.py", &judge("{'score': None}"));
    folder.write("config.yaml", &config(&NO_FILTER));
    let ended = folder.tamis(&["train", "config.yaml", "preset=dapo", "filter=null"]);
    let told = "no completion of 3 rounds in a row had a score from a reward function other than shaping, up to step 3";
    assert!(ended.failure().contains(told), "{}", ended.shown());
}

/// A name that only an answer can give: one round without it is chance, several in a row are a mistake, also after a resume.
#[test]
fn a_metric_that_no_score_has_ends_the_run_after_several_rounds() {
    let changes = [
        ("data:\n", "data:\n  check_gold: off\n"),
        ("filter: {kind: variance}", "filter: {kind: variance, metric: strict}"),
    ];
    let told = "warning: the filter's metric `strict` is not among the scores of this round: ";
    let folder = Folder::new();
    let first = train(&folder, "{'score': 1}", &changes);
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    for ended in [first, again] {
        assert_eq!((ended.code, ended.stderr.matches(told).count()), (Some(2), 2), "{}", ended.shown());
        assert!(ended.failure().contains("`filter.metric` is `strict`"), "{}", ended.shown());
    }
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
    assert!(ended.failure().contains("of 3 rounds in a row, up to step 4"), "{}", ended.shown());
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
    // Nothing ends within one token, and what does not end is left out.
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
    let folder = Folder::new();
    let short = [&truncated[..], &[("  total_steps: 20", "  total_steps: 3")]].concat();
    let ended = train(&folder, SCORES, &short);
    assert!(
        ended.failure().contains("the 3 steps up to step 3 made no update of the policy"),
        "{}",
        ended.shown()
    );
}
