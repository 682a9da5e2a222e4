//! `tamis eval A B`: two checkpoints on the same prompts.

use crate::tamis::{Folder, Replaced as _, TINY, failures};

/// The same prompts and draws: the difference is taken prompt by prompt, whichever of the two is of a run.
#[test]
fn eval_of_two_checkpoints() {
    let folder = Folder::tiny();
    let longer =
        ["train", "tiny.yaml", "train.total_steps=2", "data.arithmetic.val_size=32", "sft.steps=150"];
    folder.tamis(&longer).succeeds();
    let other = ["sft.steps=40", "run.seed=4", "run.name=other"];
    folder.tamis(&[&longer[..], &other].concat()).succeeds();
    let words = ["eval", "runs/tiny", "runs/other", "validate.temperature=1", "validate.n=4"];
    let ended = folder.tamis(&words).succeeds();
    let printed = &ended.stdout;
    let (_, compared) = printed
        .split_once("\nA  runs/tiny/checkpoints/step_2\nB  runs/other/checkpoints/step_2\n")
        .expect(printed);
    assert_eq!(printed.matches("11 prompts, 4 samples each").count(), 2, "{printed}");
    let json = folder.tamis(&[&words[..], &["--json"]].concat()).succeeds().json();
    let difference = &json["difference"];
    assert_eq!(difference["num_prompts"], 11, "{json}");
    let value = |place: usize| {
        json["evaluations"][place]["metrics"]["val-core/arithmetic/acc/mean@4"].as_f64().expect("a mean")
    };
    let mean = difference["mean"].as_f64().expect("a mean");
    assert!((value(1) - value(0) - mean).abs() < 1e-9 && mean != 0.0, "{json}");
    assert!(difference["standard_error"].as_f64().expect("an error") > 0.0, "{json}");
    assert!(compared.contains("difference") && compared.contains("accuracy (11 prompts)"), "{compared}");
    let (_, verdict) = compared
        .split_once("\n± is one standard error; the difference is B less A, prompt by prompt\n")
        .expect(compared);
    // The same rule as at the end of a run.
    let error = difference["standard_error"].as_f64().expect("an error");
    let expected = match mean {
        mean if mean > 2.0 * error => "B is better\n",
        mean if mean < -2.0 * error => "B is worse\n",
        _ => "no clear difference: it is within the noise (",
    };
    assert!(verdict.starts_with(expected), "{verdict}");
    // A model outside a run is measured as the run of the other one says.
    std::fs::rename(folder.join("runs/other/checkpoints/step_2"), folder.join("alone")).expect("moved");
    let swapped =
        folder.tamis(&["eval", "alone", "runs/tiny", words[3], words[4], "--json"]).succeeds().json();
    assert!((swapped["difference"]["mean"].as_f64().expect("a mean") + mean).abs() < 1e-9, "{swapped}");
    let ended = folder.tamis(&[&words[..], &["--samples", "samples.jsonl"]].concat()).exits(2);
    ended.fails_with("--samples names one file, and there are two checkpoints");
}

#[test]
fn names_that_are_none_lead_to_the_nearest() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1", "run.name=other"]).succeeds();
    let failure = |arguments: &[&str]| folder.tamis(&[&["eval"], arguments].concat()).failure();
    insta::assert_snapshot!(failures([
        failure(&["runs/tiny", "runs/oter"]),
        failure(&["runs/tinny", "runs/other"]),
        failure(&["runs/gone", "runs/other"]),
        failure(&["gone", "runs/other"]),
        failure(&["runs/tiny/checkpoints/step_3", "runs/other"]),
        failure(&["runs/tiny", "runs/other", "runs/tiny"]),
        failure(&["runs/tiny", "runs/other", "runs/tinny"]),
        failure(&["runs/tiny", "runs/other", "dapp"]),
        failure(&["runs/tiny", "./runs/tiny"]),
        failure(&["runs/other", "runs/other/checkpoints/step_1"]),
    ]), @r"
    exit code 2
    error: there is no folder runs/oter
      hint: did you mean `runs/other`? (a model of that name on a hub is `hf://runs/oter`)
    error: there is no folder runs/tinny
      hint: did you mean `runs/tiny`? (a model of that name on a hub is `hf://runs/tinny`)
    error: there is no folder runs/gone
      hint: the runs here are `runs/other`, `runs/tiny` (a model of that name on a hub is `hf://runs/gone`)
    error: there is no folder gone
      hint: the runs here are `runs/other`, `runs/tiny`
    error: there is no folder runs/tiny/checkpoints/step_3
      hint: did you mean `runs/tiny/checkpoints/step_2`?
    error: `runs/tiny` is a third checkpoint, and `tamis eval` compares two
      hint: evaluate them two by two: `tamis eval A B`, then `tamis eval A runs/tiny`
    error: there is no file or folder runs/tinny
      hint: did you mean `runs/tiny`?
    error: there is no file or folder dapp
      hint: after two checkpoints come files of a configuration (`my.yaml`), presets and overrides (`KEY=VALUE`)
    error: both names are of one checkpoint, runs/tiny/checkpoints/step_2
      hint: name two, say `tamis eval runs/tiny/checkpoints/step_0 runs/tiny/checkpoints/step_2`
    error: both names are of one checkpoint, runs/other/checkpoints/step_1
      hint: name two, say `tamis eval runs/other/checkpoints/step_0 runs/other/checkpoints/step_1`
    ");
    // The order of checkpoints and overrides does not matter.
    folder.tamis(&["eval", "runs/tiny", "validate.n=1", "runs/other"]).succeeds().prints("\nB  runs/other/");
}

const SUMS: &str = "\
{\"prompt\": \"1+1=\", \"answer\": \"2\"}
{\"prompt\": \"2+3=\", \"answer\": \"5\"}
{\"prompt\": \"9+9=\", \"answer\": \"18\"}
{\"prompt\": \"4+3=\", \"answer\": \"7\"}
";

/// A run on files instead of a task.
fn on_files(train: &str, val: &str) -> String {
    let task = "  task: arithmetic\n  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}\n";
    TINY.replaced(task, &format!("  train: {train}\n  {val}\n"))
        .replaced(
            "  train_batch_size: 4\n  gen_batch_size: 8\n",
            "  train_batch_size: 2\n  gen_batch_size: 2\n",
        )
        .replaced("total_steps: 6", "total_steps: 1")
        .replaced("max_num_gen_batches: 50", "max_num_gen_batches: 1, on_limit: use_partial")
}

/// What is measured is what the first run says; the second run may have trained on it, or measure otherwise.
#[test]
fn the_second_run_is_looked_at_too() {
    let lines: Vec<&str> = SUMS.split_inclusive('\n').collect();
    let (half, rest) = (lines[..2].concat(), lines[2..].concat());
    let folder = Folder::new().with("half.jsonl", &half).with("rest.jsonl", &rest).with("all.jsonl", SUMS);
    let train = |name: &str, config: &str, more: &[&str]| {
        folder.write("config.yaml", config);
        let name = format!("run.name={name}");
        folder.tamis(&[&["train", "config.yaml", &name], more].concat()).succeeds();
    };
    train("a", &on_files("half.jsonl", "val: rest.jsonl"), &[]);
    // It has trained on all that the first one measures, and rewards otherwise.
    let other = on_files("all.jsonl", "val: half.jsonl")
        .replaced("reward: [{kind: number}]", "reward: [{kind: number, weight: 0.5}]");
    train("b", &other, &[]);
    let ended = folder.tamis(&["eval", "runs/a", "runs/b"]).succeeds();
    let settings = "runs/b has other settings (`data.val`, `reward[0].weight`): ";
    ended.says(settings);
    ended.says("both checkpoints are measured with those of runs/a");
    let trained =
        "runs/b has 2 of the 2 prompts in its training data: its figures are not those of held-out prompts";
    ended.says(trained);
    // Below the table that it is about, too.
    ended.prints(&format!("\nnote: {trained}\n"));
    let json = folder.tamis(&["eval", "runs/a", "runs/b", "--json"]).succeeds().json();
    assert!(json["notes"].to_string().contains(trained), "{json}");
    // Nothing to say of a run with the same settings, nor of what the command line sets for both.
    train("c", &on_files("half.jsonl", "val: rest.jsonl"), &["run.seed=9"]);
    let ended =
        folder.tamis(&["eval", "runs/a", "runs/c", "validate.n=2", "validate.temperature=1"]).succeeds();
    ended.never_says("other settings");
    ended.never_says("in its training data");
    // What the first run holds out of the data that the second one trains on says nothing.
    train("d", &on_files("all.jsonl", "val_fraction: 0.5"), &[]);
    let refused = folder.tamis(&["eval", "runs/d", "runs/b"]).exits(2);
    refused.fails_with("in its training data that runs/d holds out (data.val_fraction)");
    refused.fails_with("hint: name prompts that neither has in its training data: `data.val=FILE`");
}

/// Prompts that a run trains on are not held out, whoever asks: the check, the run, its evaluation, and a
/// comparison of two such runs.
#[test]
fn validation_prompts_in_the_training_data_are_counted() {
    let folder = Folder::new().with("all.jsonl", SUMS);
    let half: String = SUMS.split_inclusive('\n').take(2).collect();
    folder.write("half.jsonl", &half);
    folder.write("config.yaml", &on_files("all.jsonl", "val: half.jsonl"));
    let seen = "2 of the 2 validation prompts are in the training data";
    let checked = folder.tamis(&["config", "check", "config.yaml"]).succeeds();
    assert!(checked.shown().contains(seen), "{}", checked.shown());
    checked.never_prints("(0 warnings)");
    let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
    ended.says(seen);
    ended.prints("(2 prompts)");
    ended.prints(
        "\n2 of the 2 prompts are in the training data, so this does not measure what is new to the policy\n",
    );
    ended.never_prints("held-out");
    folder.tamis(&["report", "runs/tiny"]).succeeds();
    let page = folder.read("runs/tiny/report.html");
    assert!(page.contains("(2 in the training data)") && !page.contains("held-out prompts went"), "{page}");
    let note = |run: &str| format!("runs/{run} has 2 of the 2 prompts in its training data");
    folder.tamis(&["eval", "runs/tiny"]).succeeds().says(&note("tiny"));
    folder.tamis(&["train", "config.yaml", "run.name=other", "run.seed=5"]).succeeds();
    let ended = folder.tamis(&["eval", "runs/tiny", "runs/other"]).succeeds();
    ended.says(&note("tiny")).says(&note("other"));
    // Half of the data is new.
    folder.write("rest.jsonl", &SUMS.split_inclusive('\n').skip(1).take(2).collect::<String>());
    folder.write("config.yaml", &on_files("half.jsonl", "val: rest.jsonl"));
    let ended = folder.tamis(&["train", "config.yaml", "run.name=half"]).succeeds();
    ended.says("1 of the 2 validation prompts is in the training data");
}

/// A prompt that no reward scores is in no mean: the table says of how many the means are.
#[test]
fn unscored_prompts_are_counted() {
    let judge = "import json, sys\nfor line in sys.stdin:\n    request = json.loads(line)\n    \
         score = None if request['ground_truth'] == '18' else 1\n    \
         print(json.dumps({'id': request['id'], 'score': score}), flush=True)\n";
    let folder = Folder::new().with("sums.jsonl", SUMS).with("judge.py", judge);
    let reward = "reward: [{kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}]";
    let config = on_files("sums.jsonl", "val: sums.jsonl")
        .replaced("reward: [{kind: number}]", reward)
        .replaced("filter: {kind: variance}\n", "")
        .replaced("schedule: {max_num_gen_batches: 1, on_limit: use_partial}\n", "")
        .replaced("  gen_batch_size: 2\n", "");
    folder.write("config.yaml", &config);
    let ended = folder.tamis(&["train", "config.yaml", "data.check_gold=off"]).succeeds();
    let row = |text: &str| {
        let row = text.lines().find(|line| line.starts_with("prompts scored, of 4")).map(str::to_owned);
        row.unwrap_or_else(|| panic!("{text}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row(&ended.stdout), "prompts scored, of 4 3 3 3 in both");
    ended.says("(3 of 4 prompts)");
    std::fs::create_dir_all(folder.join("copy")).expect("a folder");
    let (from, to) = (folder.join("runs/tiny/checkpoints/step_1"), folder.join("copy/step_1"));
    assert!(std::process::Command::new("cp").arg("-r").args([from, to]).status().expect("cp").success());
    let ended = folder.tamis(&["eval", "runs/tiny", "copy/step_1"]).succeeds();
    assert_eq!(row(&ended.stdout), "prompts scored, of 4 3 3 3 in both");
    ended.prints("\nnone of 3 prompts changed\n");
}
