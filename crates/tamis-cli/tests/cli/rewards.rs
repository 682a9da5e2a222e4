//! Reward functions of users, from the configuration to what a run prints and writes.

use crate::tamis::{Folder, Left, Replaced as _, TINY, failures};

/// The tiny run with another reward; the warm start does not affect the messages about it.
fn with_reward(reward: &str) -> String {
    TINY.replaced("reward: [{kind: number}]", reward).replaced("total_steps: 6", "total_steps: 2")
}

fn train(functions: &str, reward: &str) -> (Folder, crate::tamis::Ended) {
    let folder = Folder::new().with("mine.py", functions).with("config.yaml", &with_reward(reward));
    let ended = folder.tamis(&["train", "config.yaml"]);
    (folder, ended)
}

const FUNCTIONS: &str = r#"
def reward_len(completions, **kwargs):
    return [float(len(completion)) for completion in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "size": len(solution_str)}

def solved(completions, solution, **kwargs):
    return [1.0 for _ in completions]

def logs(completions, answer, trainer_state, log_extra, log_metric, **kwargs):
    state = trainer_state
    log_extra("first", [completion[:1] for completion in completions])
    log_metric("state", state.global_step + 10 * state.max_steps + 1000 * state.num_train_epochs)
    log_metric("tokens", state.num_input_tokens_seen)
    print("looked at", len(completions))
    return [float(completion == truth) for completion, truth in zip(completions, answer)]
"#;

#[test]
fn a_function_that_does_not_fit_its_style_is_refused() {
    let refused = |function: &str, style: &str| {
        let reward = format!("reward: [{{kind: python, path: mine.py, function: {function}{style}}}]");
        let (folder, ended) = train(FUNCTIONS, &reward);
        assert!(!folder.join("runs/tiny").exists(), "{}", ended.shown());
        ended.failure()
    };
    insta::assert_snapshot!(failures([
        refused("reward_len", ", style: verl"),
        refused("compute_score", ", style: trl"),
        refused("solved", ""),
    ]), @r"
    exit code 2
    error: reward `python`: reward_len(completions, **kwargs) cannot be called as `style: verl` calls it: missing a required argument: 'completions'
      hint: its parameters fit `style: trl`: write that
    error: reward `python`: compute_score(data_source, solution_str, ground_truth, extra_info=None) cannot be called as `style: trl` calls it: missing a required argument: 'data_source' (the columns of the rows: answer, digits, level, operations, prompt)
      hint: its parameters fit `style: verl`: write that
    error: reward `python`: solved(completions, solution, **kwargs) cannot be called as `style: trl`, which its parameters suggest, calls it: missing a required argument: 'solution' (the columns of the rows: answer, digits, level, operations, prompt)
      hint: give the rows that column, the parameter a default, or its value in `kwargs`
    ");
    let printed = refused("none_such", "");
    let expected = "exit code 2\nerror: reward `python`: mine.py has no function `none_such`; it has reward_len, compute_score";
    assert!(printed.starts_with(expected), "{printed}");
    assert!(printed.trim_end().ends_with("hint: name one of them by `function`"), "{printed}");
}

#[test]
fn the_only_style_that_fits_is_taken() {
    let (_folder, ended) = train(FUNCTIONS, "reward: [{kind: python, path: mine.py, function: reward_len}]");
    let ended = ended.succeeds();
    let printed = ended.stderr.lines().find(|line| line.contains("style"));
    insta::assert_snapshot!(printed.unwrap_or_default(), @"reward `python`: reward_len(completions, **kwargs) \
         is called as `style: trl`, the only style that its parameters fit");
}

#[test]
fn what_a_function_logs_is_kept() {
    let reward = "reward: [{kind: python, path: mine.py, function: logs, num_processes: 1}]";
    let (folder, ended) = train(FUNCTIONS, reward);
    let ended = ended.succeeds();
    // So is its output; the run names the file once.
    assert!(folder.read("runs/tiny/reward-python.log").contains("looked at "));
    assert_eq!(
        ended.stderr.matches("reward `python` (mine.py) prints: see ").count(),
        1,
        "{}",
        ended.shown()
    );
    // The log has it with its step, and the console shows none of it.
    ended.never_says("looked at ");
    let log = folder.read("runs/tiny/run.log");
    for step in ["before step 1", "step 1", "step 2"] {
        let line = format!(" info reward `python` (mine.py), {step}: looked at ");
        assert!(log.contains(&line), "no `{line}` in\n{log}");
    }
    let rows: Vec<_> =
        folder.rows("tiny").into_iter().filter(|row| row.get("reward_log/state").is_some()).collect();
    // One pass of 64 prompts at 8 a step holds the two steps.
    let states: Vec<f64> =
        rows.iter().map(|row| row["reward_log/state"].as_f64().expect("a number")).collect();
    assert_eq!(states, [1020.0, 1021.0]);
    assert_eq!(rows[0]["reward_log/tokens"], 0.0);
    assert_eq!(rows[1]["reward_log/tokens"], rows[0]["num_tokens"]);
    let has_first = |row: serde_json::Value| {
        let completion = row["completion"].as_str().expect("text");
        assert_eq!(row["first"], completion.chars().take(1).collect::<String>());
    };
    folder.rollouts("tiny", 2).into_iter().for_each(has_first);
    // For a validation, too: by data source in the metrics, and with the samples if these are saved.
    let ended = folder.tamis(&["eval", "runs/tiny", "--json", "--samples", "samples.jsonl"]).succeeds();
    ended.says("reward `python` (mine.py): looked at ");
    let found = ended.json();
    assert!(found["metrics"]["val-aux/arithmetic/reward_log/tokens"].is_number(), "{found}");
    let samples = folder.read("samples.jsonl");
    samples.lines().map(|line| serde_json::from_str(line).expect("a row")).for_each(has_first);
    // The steps are repeated, and every answer comes from the journal, whatever the function would return
    // now.
    let again = Folder::new()
        .with("mine.py", &FUNCTIONS.replaced("1000 *", "2000 *"))
        .with("config.yaml", &with_reward(reward));
    folder.copy("runs/tiny", &again, "runs/tiny", &["config.yaml", "started", "journal.bin"]);
    again.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    Left::by(&folder.join("runs/tiny")).assert_same(&Left::by(&again.join("runs/tiny")));
}

#[test]
fn rows_of_a_source_without_a_verifier_are_refused() {
    let (folder, ended) = train("", "reward: [{kind: by_source}]");
    insta::assert_snapshot!(ended.failure(), @r#"
    exit code 2
    error: reward `by_source` has no verifier for some of the rows:
      `arithmetic`, 72 rows: verl has no verifier for it, and `sources` names none
      hint: name one in its `sources`, such as `sources: {arithmetic: {kind: gsm8k, method: last_number}}`; `"*"` there covers all other sources and rows without one (the column is data.columns.data_source)
    "#);
    assert!(!folder.join("runs/tiny").exists());
    for sources in ["{arithmetic: number}", "{arithmetic: {kind: number}}", "{'*': number}"] {
        train("", &format!("reward: [{{kind: by_source, sources: {sources}}}]")).1.succeeds();
    }
    let wrong =
        "reward: [{kind: by_source, sources: {arithmetic: by_source, x: {kind: gsm8k, methd: strict}}}]";
    insta::assert_snapshot!(train("", wrong).1.short(), @r"
    exit code 2
    error: unknown key `reward[0].sources.x.methd`
      at config.yaml:12:78: reward: [{kind: by_source, sources: {arithmetic: by_source, x: {kind: gsm8k, «methd»: strict}}}]
      hint: did you mean `reward[0].sources.x.method`?
    ");
}

#[test]
fn a_metric_that_no_function_gives_is_told_with_those_there_are() {
    let dapo = |function: &str, data: &str| {
        let reward = format!("preset: dapo\nreward: [{{kind: python, path: mine.py, function: {function}}}]");
        let config = with_reward(&reward).replaced("data:\n", data);
        let folder = Folder::new().with("mine.py", FUNCTIONS).with("config.yaml", &config);
        let ended = folder.tamis(&["train", "config.yaml"]);
        assert!(ended.code != Some(0), "{}", ended.shown());
        ended.failure()
    };
    // The gold answers show the names.
    let printed = dapo("reward_len", "data:\n");
    insta::assert_snapshot!(printed, @r"
    exit code 2
    error: `filter.metric` is `acc` (config.yaml:12, preset dapo), and no reward function gives a number of that name: this run has `overlong`, `python`, `score`, `seq_reward`, `seq_final_reward`, `token_level_rewards`, `length`, `entropy`
      hint: write `filter.metric: score`
    ");
    // TRL's functions return only numbers; verl's may return more.
    let hint = "`filter.metric: score`, or let the function return a dictionary with `score` and `acc`, \
         which is 1 if the answer is right and 0 if it is not";
    let of_verl =
        printed.replaced("`score`, `seq", "`score`, `size`, `seq").replaced("`filter.metric: score`", hint);
    assert_eq!(dapo("compute_score", "data:\n"), of_verl);
    // Without them the first completions show the names, with the same words.
    let late = dapo("compute_score", "data:\n  check_gold: off\n");
    assert_eq!(late, dapo("compute_score", "data:\n").replaced("yaml:12", "yaml:13"));
}

#[test]
fn pass_at_k_without_a_binary_score_is_told() {
    let reward = "reward: [{kind: python, path: mine.py, function: compute_score}]";
    let config = with_reward(reward).replaced("validate: {", "validate: {n: 2, metrics: [mean@k, pass@k], ");
    let unchecked = config.replaced("  arithmetic: {", "  check_gold: off\n  arithmetic: {");
    for (config, gold) in [(config, true), (unchecked, false)] {
        let folder = Folder::new().with("mine.py", FUNCTIONS).with("config.yaml", &config);
        let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
        let printed: Vec<&str> =
            ended.stderr.lines().filter(|line| line.starts_with("warning: `validate.metrics`")).collect();
        assert_eq!(printed.len(), 1, "{gold}: {}", ended.shown());
        // An evaluation reports the same.
        let again = folder.tamis(&["eval", "runs/tiny"]).succeeds();
        let same = printed[0].replaced("config.yaml:", "runs/tiny/config.yaml:");
        let place = |line: &str| line.split_once(") asks").map(|(_, rest)| rest.to_owned());
        assert!(again.stderr.lines().any(|line| place(line) == place(&same)), "{gold}: {}", again.shown());
        folder.tamis(&["eval", "runs/tiny", "validate.metrics=[mean@k]"]).succeeds().never_says("pass@k");
        if gold {
            insta::assert_snapshot!(printed[0], @"warning: `validate.metrics` (config.yaml:19) asks for pass@k, \
                 which counts completions whose `acc` is 1, and no reward function gives `acc`: there are \
                 `python`, `score`, `size`; there will be no pass@k. Write `best@k` for the best of k \
                 scores, or let the function return a dictionary with `score` and `acc`");
        }
    }
}

#[test]
fn a_function_whose_gold_answers_score_no_more_than_anything_is_told() {
    let tenth =
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.1\n";
    let (_folder, ended) = train(tenth, "reward: [{kind: python, path: mine.py}]");
    let printed: Vec<&str> =
        ended.stderr.lines().skip_while(|line| !line.contains("gold answers score")).take(4).collect();
    insta::assert_snapshot!(printed.join("\n"), @r"
    warning: reward `python`: gold answers score 0.1 on average, 0.1 to 0.1 (64 prompts)
      no better than an empty completion: that scores 0.1, the gold answer 0.1 (means of 48 prompts)
      no better than the gold answer of another prompt: that scores 0.1, the gold answer 0.1 (means of 48 prompts)
      it judges something other than the answer, or expects the answer in a form that was not tried
    ");
}

const USELESS: &str = r"
def forgets(completion, ground_truth):
    float(completion == ground_truth)

def compares(completion, label):
    return completion == label

def raises(completion):
    return undefined(completion)

def brief(data_source, solution_str, ground_truth, extra_info=None):
    return -max(0, len(solution_str) - 1000) / 1000
";

/// Rows whose ground truth is a number.
const LABELLED: &str = r"
data: {task: null, train: rows.jsonl, columns: {ground_truth: label}, train_batch_size: 4}
validate: {test_freq: 0, before_train: false}
";

#[test]
fn a_reward_that_takes_no_gold_answer_is_refused_before_anything_is_generated() {
    let row = |number: usize| format!("{{\"prompt\": \"{number}+0=\", \"label\": {number}}}\n");
    let rows = (0..12).map(row).collect::<Vec<_>>().concat();
    let folder = Folder::new().with("mine.py", USELESS).with("rows.jsonl", &rows);
    folder.write("tiny.yaml", TINY);
    folder.write("labelled.yaml", LABELLED);
    let of = |command: &[&str], function: &str| {
        let reward = format!("reward=[{{kind: python, path: mine.py, function: {function}}}]");
        let layers = ["tiny.yaml", "labelled.yaml", "~data.arithmetic", "train.total_steps=1", &reward];
        folder.tamis(&[command, &layers].concat())
    };
    let none = "scores no gold answer (12 prompts: 12 without an answer)";
    let wrong = "gold answers score 0 on average, 0 to 0 (12 prompts: 12 with an `acc` of 0)";
    let failed = "scores no gold answer (12 prompts: 12 failed)";
    for (function, what, cause) in [
        ("forgets", none, "a function that ends without `return`"),
        ("compares", wrong, "write `str(label)`"),
        ("raises", failed, "look at what the function got"),
    ] {
        for command in [&["config", "check"][..], &["train"]] {
            let ended = of(command, function).exits(2);
            ended.says("no gold answer is accepted:").says(what).says(cause).never_prints("is sound");
            assert!(ended.stderr.matches("NameError").count() <= 1, "{}", ended.shown());
            assert!(!folder.join("runs/tiny").exists(), "{}", ended.shown());
        }
    }
    // A penalty takes the ground truth as verl passes it, and uses none of it.
    of(&["config", "check"], "brief").succeeds().prints("is sound");
}
