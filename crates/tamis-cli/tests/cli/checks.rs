//! `tamis config check` finds what a run would refuse before it samples, lists all of it at once, and reports
//! what it leaves to the run.

use crate::agreement::folder;
use crate::tamis::Folder;

/// What a run refuses only after it has read its data and called its rewards, with words of the message.
const REFUSED_LATE: &[(&[&str], &str)] = &[
    // Rewards.
    (&["reward=[{kind: python, path: reward.py, function: none}]"], "reward.py has no function `none`"),
    (
        &["reward=[{kind: python, path: reward.py, function: nothing}]"],
        "its parameters fit none of the styles",
    ),
    (&["reward=[{kind: python, path: reward.py, function: lacks}]"], "missing a required argument: 'label'"),
    (
        &["reward=[{kind: python, path: broken.py}]"],
        "-m pip install no_such_module`), or name an interpreter",
    ),
    (&["reward=[{kind: python, path: reward.py, function: imports}]"], "-m pip install no_such`), or name"),
    (&["reward=[{kind: by_source}]"], "reward `by_source` has no verifier for some of the rows"),
    // Gold answers.
    (&["data.train=words.jsonl"], "no gold answer is accepted:"),
    (&["data.train=fails.jsonl", "reward=[{kind: python, path: reward.py}]"], "invalid literal for int()"),
    (&["data.train=truthless.jsonl"], "reward `number` compares with a ground truth, and no training prompt"),
    (&["data.train=some.jsonl", "data.check_gold=error"], "gold answers are rejected by their own verifier"),
    // Data.
    (&["data.train=late.jsonl"], "late.jsonl, line 150: not valid JSON"),
    (&["data.train=one.jsonl", "data.val_fraction=0.5"], "1 training prompts cannot be split"),
    (&["data.train=equal.jsonl", "data.val_fraction=0.5"], "3 training prompts cannot be split"),
    (&["data.max_prompt_length=2"], "has 4 tokens"),
    (&["data.curriculum={column: level}"], "data.curriculum: "),
    // Requirements on scores and steps.
    (
        &["filter.metric=nonsense", "reward=[{kind: python, path: reward.py}]"],
        "no reward function gives a number of that name",
    ),
    (
        &["checkpoint.keep_best={metric: nonsense}", "data.val=rows.jsonl", "validate.test_freq=1"],
        "there is no metric `nonsense`",
    ),
    (
        &[
            "objective.advantage.kind=gae",
            "filter=null",
            "critic.warmup_steps=9",
            "train.total_steps=null",
            "train.total_epochs=1",
        ],
        "the policy would never be trained",
    ),
    (&["model.memory_limit=1MiB"], "of memory, 1.0 MiB is available"),
    (&["rollout.regex='[é]+'"], "rollout.regex"),
];

/// The base of [`REFUSED_LATE`].
fn late() -> Folder {
    let row = |question: &str, answer: &str| {
        format!("{{\"question\": \"{question}\", \"answer\": \"{answer}\"}}\n")
    };
    let rows = row("1+1=", "2") + &row("1+2=", "3");
    let late = row("1+1=", "2").repeat(149) + "{\n";
    let reward = "\
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == str(int(ground_truth)))
def nothing():
    return 1.0
def lacks(completion, label):
    return 1.0
def imports(completion, answer):
    import no_such.part
";
    folder()
        .with("rows.jsonl", &rows)
        .with("words.jsonl", &row("1+1=", "two").replace("two\"", "1 or 2\""))
        .with("fails.jsonl", &row("1+1=", "two"))
        .with("truthless.jsonl", "{\"question\": \"1+1=\"}\n")
        .with("some.jsonl", &(rows.clone() + &row("1+3=", "four")))
        .with("late.jsonl", &late)
        .with("one.jsonl", &row("1+1=", "2"))
        .with("equal.jsonl", &row("1+1=", "2").repeat(3))
        .with("reward.py", reward)
        .with("broken.py", "import no_such_module\n")
}

const OF_ROWS: [&str; 8] = [
    "tiny.yaml",
    "data.task=null",
    "~data.arithmetic",
    "data.train=rows.jsonl",
    "validate.test_freq=0",
    "validate.before_train=false",
    "sft.steps=0",
    "data.train_batch_size=2",
];

#[test]
fn a_check_finds_what_a_run_refuses_before_it_samples() {
    let folder = late();
    let mut wrong = Vec::new();
    for (overrides, expected) in REFUSED_LATE {
        let checked = folder.tamis(&[&["config", "check"], &OF_ROWS[..], overrides].concat());
        let is_left = folder.join("runs").exists();
        let trained = folder.tamis(&[&["train"], &OF_ROWS[..], overrides].concat());
        let failure = trained.failure();
        let failure = failure.split_once('\n').map_or("", |(_, failure)| failure);
        let failure = failure.split("\nnote: ").next().unwrap_or_default().trim_end();
        let failure = failure.replace(&folder.join("").display().to_string(), "");
        // What is known about the end of a process depends on the time of the check.
        let [failure, printed] = [&failure, &checked.stderr]
            .map(|text| text.replace("(it closed its output)", "(exit status: 1)"));
        let is_same = checked.code == Some(2) && trained.code == Some(2) && printed.contains(&failure);
        if !is_same || !failure.contains(expected) || is_left {
            wrong.push(format!(
                "{overrides:?}, expected {expected:?}\n{}{}",
                checked.shown(),
                trained.shown()
            ));
        }
        let _ = std::fs::remove_dir_all(folder.join("runs"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_check_lists_all_of_it_at_once() {
    let folder = late();
    let overrides = [
        "reward=[{kind: python, name: a, path: reward.py, function: nothing}, {kind: python, name: b, path: broken.py}]",
        "data.max_prompt_length=2",
        "run.loggers=[{kind: wandb, python: no-such-python}]",
        "objective.shaping=[{kind: clip_advantage, low: 3}]",
    ];
    let checked = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &overrides[..3]].concat()).exits(2);
    for words in
        ["nothing() cannot be called", "reward `b` cannot be used", "has 4 tokens", "3 errors in the"]
    {
        checked.says(words);
    }
    checked.says("warning: the logger `wandb` loses metrics: `no-such-python` cannot be started");
    // With an error of the settings what depends on them is not looked at; rewards and prompts are.
    let checked = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &overrides[..]].concat()).exits(2);
    checked.says("`low` is 3").says("nothing() cannot be called").says("reward `b` cannot be used");
    checked.says("has 4 tokens");
    checked.says("not checked because of errors: the filter, the memory and the machines");
    assert!(!folder.join("runs").exists());
}

/// An error of one part hides nothing that can be found without it.
#[test]
fn an_error_hides_no_other() {
    let folder = late();
    let check =
        |overrides: &[&str]| folder.tamis(&[&["config", "check"], &OF_ROWS[..], overrides].concat()).exits(2);
    let number = "reward=[{kind: number}]";
    let blind = "reward `number` compares with a ground truth, and no training prompt";
    // Keys, rules and values.
    let checked = check(&["data.train=truthless.jsonl", number, "train.total_stesp=3", "rollout.n=abc"]);
    checked.says("unknown key `train.total_stesp`").says("`rollout.n` must be").says(blind);
    checked.says("3 errors in the configuration");
    // The validation data, its file or a row of it.
    for (val, words) in
        [("none.jsonl", "there is no file none.jsonl"), ("late.jsonl", "line 150: not valid JSON")]
    {
        let checked = check(&["data.train=truthless.jsonl", number, &format!("data.val={val}")]);
        checked.says(words).says(blind).says("2 errors in the configuration");
    }
    // The model.
    let checked = check(&["data.train=truthless.jsonl", number, "model.init=null", "model.path=nowhere"]);
    checked.says("there is no folder nowhere").says(blind);
    // The training data hides what needs it, and a line says so.
    let checked = check(&["data.train=none.jsonl", "reward=[{kind: python, path: broken.py}]"]);
    checked.says("there is no file none.jsonl").says("reward `python` cannot be used");
    checked.says("not checked because of errors: the rows of the training data, and whether rewards take their gold answers");
    assert!(!folder.join("runs").exists());
}

/// It is reported where it was written, once, however many use it; and one that a section names is another.
#[test]
fn an_interpreter_is_reported_where_it_was_named() {
    let folder = late().with("python.yaml", "run:\n  python: no-such-python\n");
    let check = |rewards: &str| {
        let reward = format!("reward=[{rewards}]");
        folder.tamis(&[&["config", "check", "tiny.yaml", "python.yaml"], &OF_ROWS[1..], &[&*reward]].concat())
    };
    let of = |name: &str, more: &str| format!("{{kind: python, name: {name}, path: more.py{more}}}");
    folder.write("more.py", "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return float(solution_str == ground_truth)\n");
    let ended = check(&[of("a", ""), of("b", "")].join(", ")).exits(2);
    ended.says("`run.python`: there is no program no-such-python\n --> python.yaml:2:11");
    ended.says("1 error in the configuration");
    check(&of("a", ", python: python3")).succeeds();
    let ended = check(&of("a", ", python: none-such")).exits(2);
    ended.says("`reward[0].python`: there is no program none-such");
}

/// A check tells before it calls a user's functions, and how often.
#[test]
fn a_check_announces_calls_of_functions() {
    let row = |at| format!("{{\"question\": \"{at}+0=\", \"answer\": \"{at}\"}}\n");
    let rows = (0..120).map(row).collect::<Vec<_>>().concat();
    let source = "\
import os
open('imports', 'a').write('x')
def f(completion, answer):
    with open('calls', 'a') as calls: calls.write('x')
    return float(completion == answer)
def g(completion, answer):
    return 0.5 * float(completion == answer)
";
    let folder = late().with("many.jsonl", &rows).with("two.py", source);
    let reward = "reward=[{kind: python, name: f, path: two.py, function: f}, {kind: python, name: g, path: two.py, function: g}]";
    let more = ["data.train=many.jsonl", reward, "filter.metric=f"];
    let ended = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &more].concat()).succeeds();
    ended.says("starting 1 reward process: two.py (2 functions)\n");
    ended.says("checking 120 gold answers with reward `f`: it is called for about 2");
    let num = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default().len();
    assert_eq!(num("imports"), 1, "the file is imported once");
    assert!((120..280).contains(&num("calls")), "{} calls", num("calls"));
}

#[test]
fn a_check_says_what_it_leaves_to_a_run() {
    let folder = late();
    let judge = "reward=[{kind: number}, {kind: judge, name: mine, servers: ['http://127.0.0.1:9'], model: m, prompt: '{completion}'}]";
    let ended = folder.tamis(&[&["config", "check"], &OF_ROWS[..], &[judge]].concat()).succeeds();
    let expected = "not checked, because it needs a server or a model in memory: `mine` (reward[1]); `tamis train` checks it before it \
        generates anything\n";
    assert!(ended.stdout.contains(expected), "{}", ended.shown());
    let ended = folder.tamis(&[&["config", "check"], &OF_ROWS[..]].concat()).succeeds();
    ended.never_prints("not tried");
    assert!(!folder.join("runs").exists());
}

#[test]
fn a_function_that_takes_no_gold_answer_is_not_suspected() {
    let folder = late().with(
        "more.py",
        "def short(completion):\n    return float(len(completion) < 9)\n\
         def ignores(completion, answer):\n    return 1.0\n\
         def of_trl(completions, **kwargs):\n    return [0.0 for _ in completions]\n",
    );
    let rows = (0..20).map(|at| format!("{{\"question\": \"{at}+1=\", \"answer\": \"{}\"}}\n", at + 1));
    folder.write("many.jsonl", &rows.collect::<String>());
    let with = |function: &str, more: &[&str]| {
        let reward = format!("reward=[{{kind: python, path: more.py, function: {function}}}]");
        folder
            .tamis(&[&["config", "check"], &OF_ROWS[..], &["data.train=many.jsonl", &reward], more].concat())
    };
    let metric = ["filter.metric=score"];
    for function in ["short", "of_trl"] {
        let ended = with(function, &metric).succeeds();
        assert!(!ended.stdout.contains("no better than"), "{}", ended.shown());
    }
    with("ignores", &metric).succeeds().prints("no better than an empty completion");
    // Without a ground truth, a function that does not ask for one is valid, too.
    with("short", &["data.train=truthless.jsonl", "filter.metric=score"]).succeeds();
}

/// A configuration may be checked elsewhere than it is trained, so what this machine lacks is a warning.
#[test]
fn a_check_warns_of_packages_and_programs_that_are_not_here() {
    let folder = folder();
    let answer = r#"{"executable": "own", "version": "3.11.7", "packages": {}, "torch": null}"#;
    folder.write("venv/bin/python3", &format!("#!/bin/sh\necho '{answer}'\n"));
    let path = folder.join("venv/bin/python3");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("set");
    let check = |overrides: &[&str]| {
        folder.tamis(&[&["config", "check", "tiny.yaml"], overrides].concat()).succeeds()
    };
    let torch = ["learner.backend=torch", "learner.device=cpu", "learner.python=venv/bin/python3"];
    check(&torch)
        .prints("learner.python lacks torch, transformers, safetensors, so a run on this machine would end");
    let servers = ["rollout.backend=vllm", "rollout.launch={command: [no-such-server, '{port}', '{model}']}"];
    check(&servers).prints("there is no program `no-such-server`, so a run on this machine would end");
    check(&[]).never_prints("on this machine");
}
