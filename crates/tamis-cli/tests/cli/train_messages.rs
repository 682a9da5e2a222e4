//! Messages of `tamis train` when something is wrong, and its exit code: arguments, resuming, filters and
//! limits.

use crate::tamis::{Ended, Folder, Replaced as _, TINY, edited, failures, unfiltered};

/// `tiny.yaml` after replacements.
pub(crate) fn tiny(replacements: &[(&str, &str)]) -> String {
    edited(TINY, replacements)
}

pub(crate) fn train(folder: &Folder, config: &str) -> Ended {
    folder.write("config.yaml", config);
    folder.tamis(&["train", "config.yaml"])
}

pub(crate) fn leaves_no_run(folder: &Folder) {
    let left = std::fs::read_dir(folder.join("runs")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "a run directory was left behind");
}

#[test]
fn arguments_and_configuration() {
    let folder = Folder::tiny();
    insta::assert_snapshot!(failures([
        folder.tamis(&["train"]),
        folder.tamis(&["train", "tiny.yaml", "rollout.temprature=2"]),
        folder.tamis(&["trian"]),
    ]), @r"
    exit code 2
    error: no configuration was given
      hint: `tamis train configs/quickstart.yaml`, or `tamis train --resume RUN_DIR`
    error: unknown key `rollout.temprature`
      at command line: «rollout.temprature»=2
      hint: did you mean `rollout.temperature`?
    error: unrecognized subcommand 'trian'
      tip: a similar subcommand exists: 'train'
    Usage: tamis <COMMAND>
    For more information, try '--help'.
    ");
    folder.write("occupied", "");
    insta::assert_snapshot!(folder.tamis(&["train", "tiny.yaml", "run.dir=occupied"]).short(), @r#"
exit code 2
error: `run.dir`: failed to make a run directory in occupied: occupied is a file, not a folder
  at command line: run.dir=«occupied»
  hint: name a folder that can be made and written to, such as `run.dir=runs`
"#);
    leaves_no_run(&folder);
}

#[test]
fn resume() {
    let folder = Folder::tiny();
    std::fs::create_dir(folder.join("empty")).expect("folder");
    insta::assert_snapshot!(failures([
        folder.tamis(&["train", "--resume", "empty"]),
        folder.tamis(&["train", "--resume", "tiny.yaml"]),
    ]), @r"
    exit code 2
    error: failed to open the run `empty`: there is no `config.yaml` in it
      hint: name the folder that a run printed at its start; it holds `config.yaml`
    error: failed to open the run `tiny.yaml`: this is a file, not a folder
      hint: name the folder that a run printed at its start; it holds `config.yaml`
    ");

    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let refused =
        folder.tamis(&["train", "--resume", "runs/tiny", "rollout.n=8", "run.seed=4", "run.threads=2"]);
    insta::assert_snapshot!(refused.shown(), @r#"
    exit code 4
    ----- stderr
    error: the run in runs/tiny cannot be resumed with this configuration:
    run.seed: 3 in the run, 4 now
    rollout.n: 4 in the run, 8 now
      hint: leave these keys as they were, or begin a new run; `tamis config explain KEY` shows which may change
    "#);

    // A second start never enters the first one's folder.
    let again = folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let next = "run directory runs/tiny-2\nnext: tamis report runs/tiny-2\n      tamis eval runs/tiny-2\n";
    assert!(again.stdout.ends_with(next), "{}", again.stdout);

    // Held by another process.
    let lock = std::fs::File::options().write(true).open(folder.join("runs/tiny/run.lock")).expect("lock");
    lock.lock().expect("locked");
    let held = folder.tamis(&["train", "--resume", "runs/tiny"]);
    insta::assert_snapshot!(without_process(&held.shown()), @r#"
    exit code 1
    ----- stderr
    error: failed to open the run `runs/tiny`: process N holds it
      hint: wait for it or stop it (Ctrl-C saves first), then resume
    "#);
    drop(lock);

    // Without its checksums.
    std::fs::remove_file(folder.join("runs/tiny/checkpoints/step_2/checksums.json")).expect("removed");
    let damaged = |file: &str, content: &[u8]| {
        let path = folder.join("runs/tiny/checkpoints/step_2").join(file);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, content).expect("write");
        let message = folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).failure();
        std::fs::write(&path, whole).expect("write");
        message
    };
    insta::assert_snapshot!(failures([
        damaged("state.json", b"{\"format\": 99}"),
        damaged("model.safetensors", b"not tensors"),
        // Tensors of no model, without any notes.
        damaged("optimizer.safetensors", b"\x02\0\0\0\0\0\0\0{}"),
    ]), @r"
    exit code 4
    error: runs/tiny/checkpoints/step_2/state.json has layout version 99, this build of tamis reads 7
      hint: continue the run with the version of tamis that started it
    error: runs/tiny/checkpoints/step_2/model.safetensors is not a valid safetensors file
      caused by: header too large
      hint: the file was changed or damaged: restore a copy, or move runs/tiny/checkpoints/step_2 elsewhere to continue from the checkpoint before it, runs/tiny/checkpoints/step_0
    error: runs/tiny/checkpoints/step_2/optimizer.safetensors has no number `step` in its metadata
      hint: the file was changed or damaged: restore a copy, or move runs/tiny/checkpoints/step_2 elsewhere to continue from the checkpoint before it, runs/tiny/checkpoints/step_0
    ");
    // None of that was held against the run.
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).succeeds();
}

fn without_process(text: &str) -> String {
    let Some((before, rest)) = text.split_once("process ") else { return text.to_owned() };
    format!("{before}process N{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn limits() {
    let folder = Folder::new();
    let memory = tiny(&[("model:\n", "model:\n  memory_limit: 100KB\n")]);
    let refused = train(&folder, &memory).exits(2);
    refused.fails_with("error: the run needs about ").fails_with(" of memory, 97.7 KiB is available:");
    refused.fails_with("or raise model.memory_limit");
    // Keys that are set already are not advised.
    refused.fails_with("model.recompute_activations=true");
    let saving =
        memory.replaced("  memory_limit: 100KB\n", "  memory_limit: 100KB\n  recompute_activations: true\n");
    let printed = train(&folder, &saving).failure();
    assert!(!printed.contains("recompute_activations"), "{printed}");
    // A validation that is larger than a round counts.
    let enough =
        tiny(&[("model:\n", "model:\n  memory_limit: 48MB\n"), ("total_steps: 6", "total_steps: 1")]);
    train(&folder, &enough).succeeds();
    let large = train(&folder, &enough.replaced("validate: {", "validate: {n: 20000, ")).exits(2);
    large.fails_with("validate.n or validate.max_prompts");

    let logged = folder.with("tiny.yaml", TINY);
    let swanlab = ["train", "tiny.yaml", "trainer.logger=[console,swanlab]", "train.total_steps=1"];
    let ended = logged.tamis(&swanlab).succeeds();
    ended.says("run.loggers: [console, jsonl] (swanlab is not there yet; metrics.jsonl");
    let otlp = logged.tamis(&["train", "tiny.yaml", "run.loggers=[jsonl, otlp]"]).exits(2);
    otlp.fails_with("build tamis with `--features otlp`");
}

#[test]
fn a_limit_that_is_reached_explains_itself_and_keeps_the_last_checkpoint() {
    let folder = Folder::new();
    // So few updates do not teach sums. Hardly any group has signal, and there is only one round.
    let config = tiny(&[("max_num_gen_batches: 50", "max_num_gen_batches: 1")]);
    let ended = train(&folder, &config);
    insta::assert_snapshot!(ended.failure(), @r#"
    exit code 1
    error: the run stopped for lack of training signal
    stopped in step 1: 2 of 4 groups kept after 1 round (max_num_gen_batches = 1)
      by `acc`, of 8 groups (32 trajectories) generated:
              2   25.0%  kept
              0    0.0%  all correct
              6   75.0%  all wrong
              0    0.0%  other uniform
              0    0.0%  unscored
              0    0.0%  identical in text
      2 of 32 trajectories correct (6.2%)
      what to change, the most likely remedy first:
      - rollout.n: 4 -> 16 (keeps about 64.4% of groups instead of 25.0%)
      - schedule.max_num_gen_batches: 1 -> 15 (at 25.0% kept a batch of 4 takes about 2 rounds)
      - data.train_batch_size: 4 -> 2 (2 groups were ready when the rounds were used up)
      - schedule.on_limit: error -> use_partial (trains on what was kept instead of stopping)
      hint: change the settings above in a new run; what was trained is in runs/tiny/checkpoints
    "#);
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    assert_eq!(again.failure(), ended.failure(), "the same again, as nothing was changed");
    folder.tamis(&["eval", "runs/tiny"]).succeeds();
}

/// Prompts, answers of rewards and names of files may hold control sequences of terminals.
#[test]
fn nothing_from_outside_moves_the_cursor_or_forges_a_line() {
    let is_plain = |text: &str| !text.contains(|letter: char| letter != '\n' && letter.is_control());
    let folder = Folder::new();
    folder.write(
        "rows.jsonl",
        "{\"question\": \"\\u001b[31m1+1\\t\\r=\", \"answer\": \"2\"}\n{\"question\": \"1+2\\n\\u009b2J=\", \"answer\": \"3\"}\n",
    );
    folder.write(
        "judge.py",
        "import json, sys\nfor line in sys.stdin:\n    request = json.loads(line)\n    \
         answer = {'error': '\\x1b[2Jgone\\x07'} if request['id'] % 2 else {'score': 0.5}\n    \
         print(json.dumps({'id': request['id'], **answer}), flush=True)\n",
    );
    let mut config = TINY.replaced(
        "  task: arithmetic\n  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}\n",
        "  train: rows.jsonl\n  val: rows.jsonl\n",
    );
    config = config.replaced(
        "reward: [{kind: number}]",
        "reward: [{kind: number}, {kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}]",
    );
    folder.write("config.yaml", &unfiltered(&config).replaced("total_steps: 6", "total_steps: 1"));
    let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
    ended.says("the function failed: \\u{1b}[2Jgone\\u{7}");
    ended.prints("  \\u{1b}[31m1+1\\t\\r=\n");
    assert!(is_plain(&ended.stdout) && is_plain(&ended.stderr), "{}", ended.shown());
    let absent = folder.tamis(&["filter", "--metric", "acc", "a\u{1b}[31m\rb.jsonl"]);
    assert!(absent.code != Some(0) && absent.stderr.contains("a\\u{1b}[31m\\rb.jsonl"), "{}", absent.shown());
    assert!(is_plain(&absent.stderr), "{}", absent.stderr);
    let warned = TINY.replaced("train:\n", "train:\n  gradient_analysis: {edges: [0, 1], buckets: 3}\n");
    folder.write("odd\u{1b}.yaml", &warned);
    let checked = folder.tamis(&["config", "check", "odd\u{1b}.yaml"]).succeeds();
    assert!(checked.stdout.contains("odd\\u{1b}.yaml") && is_plain(&checked.stdout), "{}", checked.stdout);
}
