//! What `tamis train` says when something is wrong, and the exit code it says it with.

mod tamis;

use tamis::{Ended, Folder, TINY};

/// Trains with `tiny.yaml` after replacements.
fn tiny(replacements: &[(&str, &str)]) -> String {
    let mut text = TINY.to_owned();
    for (from, to) in replacements {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

fn train(folder: &Folder, config: &str) -> Ended {
    folder.write("config.yaml", config);
    folder.tamis(&["train", "config.yaml"])
}

/// No run directory was made.
fn leaves_no_run(folder: &Folder) {
    assert!(!folder.join("runs").exists(), "a run directory was left behind");
}

#[test]
fn arguments_and_configuration() {
    let folder = Folder::tiny();
    insta::assert_snapshot!(folder.tamis(&["train"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["train", "missing.yaml"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["train", "tiny.yaml", "rollout.temprature=2"]).shown(), @"");
    insta::assert_snapshot!(train(&folder, "rollout:\n  n: none\n  top_p: 1.5\ntrain: {total_stepps: 3}\n").shown(), @"");
    insta::assert_snapshot!(train(&folder, "run: [1\n").shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["trian"]).shown(), @"");
    insta::assert_snapshot!(train(&folder, &tiny(&[("train_batch_size: 4", "train_batch_size: 3")])).shown(), @"");
    leaves_no_run(&folder);
}

#[test]
fn resume() {
    let folder = Folder::tiny();
    insta::assert_snapshot!(folder.tamis(&["train", "--resume", "runs/none"]).shown(), @"");
    std::fs::create_dir(folder.join("empty")).expect("folder");
    insta::assert_snapshot!(folder.tamis(&["train", "--resume", "empty"]).shown(), @"");
    insta::assert_snapshot!(folder.tamis(&["train", "--resume", "tiny.yaml"]).shown(), @"");

    folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    let refused = folder.tamis(&["train", "--resume", "runs/tiny", "rollout.n=8", "run.seed=4", "run.threads=2"]);
    insta::assert_snapshot!(refused.shown(), @"");

    // A second start never enters the first one's folder.
    let again = folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    assert!(again.stdout.ends_with("run directory runs/tiny-2\nnext: tamis eval runs/tiny-2\n"), "{}", again.stdout);

    // Held by another process.
    let lock = std::fs::File::options().write(true).open(folder.join("runs/tiny/run.lock")).expect("lock");
    lock.lock().expect("locked");
    let held = folder.tamis(&["train", "--resume", "runs/tiny"]);
    insta::assert_snapshot!(without_process(&held.shown()), @"");
    drop(lock);

    let damaged = |file: &str, content: &[u8]| {
        let path = folder.join("runs/tiny/checkpoints/step_2").join(file);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, content).expect("write");
        let said = folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).failure();
        std::fs::write(&path, whole).expect("write");
        said
    };
    insta::assert_snapshot!(damaged("state.json", b"{"), @"");
    insta::assert_snapshot!(damaged("state.json", b"{\"format\": 99}"), @"");
    insta::assert_snapshot!(damaged("model.safetensors", b"not tensors"), @"");
    insta::assert_snapshot!(damaged("optimizer.safetensors", &[0; 64]), @"");
    // Nothing of that was held against the run.
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).succeeds();
}

fn without_process(text: &str) -> String {
    let Some((before, rest)) = text.split_once("process ") else { return text.to_owned() };
    format!("{before}process N{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
}

const ROWS: &str = "\
{\"question\": \"1+1=\", \"answer\": \"2\"}
{\"question\": \"1+2=\", \"answer\": \"3\"}
{\"question\": \"2+2=\", \"answer\": \"4\"}
{\"question\": \"2+3=\", \"answer\": \"5\"}
";

fn of_file() -> String {
    let start = TINY.find("  task: arithmetic").expect("task");
    let end = TINY.find("  max_prompt_length").expect("limit");
    let mut text = TINY.to_owned();
    text.replace_range(start..end, "  train: train.jsonl\n  val: [train.jsonl]\n");
    text.replace("gen_batch_size: 8", "gen_batch_size: 4")
}

#[test]
fn data() {
    let folder = Folder::new();
    insta::assert_snapshot!(train(&folder, &of_file()).failure(), @"");
    folder.write("train.jsonl", "");
    insta::assert_snapshot!(train(&folder, &of_file()).failure(), @"");
    folder.write("train.jsonl", &format!("{ROWS}{{\"question\": \"1+1=\"\n"));
    insta::assert_snapshot!(train(&folder, &of_file()).failure(), @"");
    folder.write("train.jsonl", &format!("{ROWS}{{\"text\": \"1+1=\"}}\n"));
    insta::assert_snapshot!(train(&folder, &of_file()).failure(), @"");
    folder.write("train.jsonl", &format!("{ROWS}{{\"question\": \"1+1+1+1+1+1+1+1=\", \"answer\": \"8\"}}\n"));
    insta::assert_snapshot!(train(&folder, &of_file()).failure(), @"");
    let cut = of_file().replace("max_prompt_length: 12", "max_prompt_length: 12\n  overlong_prompts: drop");
    assert!(train(&folder, &cut).succeeds().stderr.contains("training: 1 prompts over 12 tokens left out, 0 cut"));
    let wrong = of_file().replace("train.jsonl", "train.parquet");
    folder.write("train.parquet", "PAR1 or so");
    insta::assert_snapshot!(train(&folder, &wrong).failure(), @"");
}

#[test]
fn gold() {
    let folder = Folder::new();
    folder.write("train.jsonl", &ROWS.replace("\"3\"", "\"three\""));
    let config = of_file().replace("  max_prompt_length", "  check_gold: error\n  max_prompt_length");
    insta::assert_snapshot!(train(&folder, &config).failure(), @"");
    let warned = train(&folder, &of_file()).stderr;
    assert!(warned.contains("rejects") && warned.contains("three"), "{warned}");
}

#[test]
fn model() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1", "run.name=first"]).succeeds();
    let from = folder.join("runs/first/checkpoints/step_1");
    let config = TINY
        .lines()
        .filter(|line| !line.starts_with("warm_start"))
        .map(|line| if line.starts_with("  init:") { "  path: model" } else { line })
        .collect::<Vec<_>>()
        .join("\n");
    insta::assert_snapshot!(train(&folder, &config).failure(), @"");
    std::fs::create_dir(folder.join("model")).expect("folder");
    insta::assert_snapshot!(train(&folder, &config).failure(), @"");
    for entry in std::fs::read_dir(&from).expect("checkpoint") {
        let entry = entry.expect("entry");
        std::fs::copy(entry.path(), folder.join("model").join(entry.file_name())).expect("copied");
    }
    train(&folder, &format!("{config}\n")).succeeds();
    let changed = |file: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let path = folder.join("model").join(file);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, change(whole.clone())).expect("write");
        let said = train(&folder, &config).failure();
        std::fs::write(&path, whole).expect("write");
        said
    };
    let replaced = |from: &'static str, to: &'static str| {
        move |bytes: Vec<u8>| String::from_utf8(bytes).expect("text").replace(from, to).into_bytes()
    };
    insta::assert_snapshot!(changed("config.json", &replaced("Qwen3ForCausalLM", "MambaForCausalLM")), @"");
    insta::assert_snapshot!(changed("config.json", &replaced("{", "")), @"");
    insta::assert_snapshot!(changed("config.json", &replaced("\"hidden_size\": 16", "\"hidden_size\": 32")), @"");
    insta::assert_snapshot!(changed("model.safetensors", &|bytes| bytes[..bytes.len() / 2].to_vec()), @"");
    insta::assert_snapshot!(changed("model.safetensors", &|bytes| {
        // The same length, another name.
        let at = bytes.windows(6).position(|window| window == b"q_proj").expect("a tensor");
        let mut bytes = bytes;
        bytes[at] = b'x';
        bytes
    }), @"");
    insta::assert_snapshot!(changed("tokenizer.json", &|_| b"{}".to_vec()), @"");
    std::fs::remove_file(folder.join("model/model.safetensors")).expect("removed");
    insta::assert_snapshot!(train(&folder, &config).failure(), @"");
}

/// A program that answers every request by an expression of Python; `request` is the request.
fn answering(expression: &str) -> String {
    format!("import json, os, sys, time\nfor line in sys.stdin:\n    request = json.loads(line)\n    {expression}\n    sys.stdout.flush()\n")
}

fn with_program(program: &str) -> Ended {
    let folder = Folder::new().with("program.py", program);
    let reward = "reward: [{kind: number}, {kind: command, name: judge, argv: [python3, program.py], num_processes: 1, timeout: 300ms, max_restarts: 1}]";
    let ended = train(&folder, &tiny(&[("reward: [{kind: number}]", reward), ("total_steps: 6", "total_steps: 2")]));
    if ended.code == Some(1) && folder.join("runs/tiny/config.yaml").is_file() {
        // Whatever happened, the run can be taken up again once the program is mended.
        folder.write("program.py", &answering("print(json.dumps({'id': request['id'], 'score': 0.5}))"));
        folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    }
    ended
}

#[test]
fn rewards_that_break_down() {
    let crash = "os._exit(3) if request['step'] == 1 else print(json.dumps({'id': request['id'], 'score': 1.0}))";
    insta::assert_snapshot!(with_program(&answering(crash)).failure(), @"");
    insta::assert_snapshot!(with_program("import sys\nprint('no such module', file=sys.stderr)\nsys.exit(1)\n").failure(), @"");
    insta::assert_snapshot!(with_program(&answering("print('score: 1')")).failure(), @"");
    insta::assert_snapshot!(with_program(&answering("print(json.dumps({'id': 7000000 + request['id'], 'score': 1}))")).failure(), @"");
}

#[test]
fn rewards_that_hang_or_flood() {
    insta::assert_snapshot!(with_program(&answering("time.sleep(1000) if request['step'] == 1 else print(json.dumps({'id': request['id'], 'score': 1.0}))")).failure(), @"");
    insta::assert_snapshot!(with_program(&answering("sys.stdout.write('x' * (200 << 20))")).failure(), @"");
}

#[test]
fn rewards_that_give_no_number_leave_the_row_out() {
    for answer in ["float('nan')", "None", "float('inf')"] {
        let program = answering(&format!("print(json.dumps({{'id': request['id'], 'score': {answer}}}))"));
        let ended = with_program(&program).succeeds();
        assert!(ended.stdout.contains("done: 2 steps"), "{}", ended.shown());
    }
    let only = "reward: [{kind: command, name: judge, argv: [python3, program.py], num_processes: 1}]";
    let folder = Folder::new()
        .with("program.py", &answering("print(json.dumps({'id': request['id'], 'score': None}))"));
    let config = tiny(&[("reward: [{kind: number}]", only), ("filter: {kind: variance}", "filter: {kind: variance, metric: judge}")]);
    let config = config.replace("  task: arithmetic", "  task: arithmetic\n  check_gold: off");
    let ended = train(&folder, &config);
    assert_eq!(ended.code, Some(1), "{}", ended.shown());
    insta::assert_snapshot!(ended.failure(), @"");
}

#[test]
fn a_program_that_is_not_there() {
    let reward = "reward: [{kind: command, argv: [no-such-program-of-ours]}]";
    let folder = Folder::new();
    insta::assert_snapshot!(train(&folder, &tiny(&[("reward: [{kind: number}]", reward)])).failure(), @"");
    let reward = "reward: [{kind: python, path: missing.py}]";
    insta::assert_snapshot!(train(&folder, &tiny(&[("reward: [{kind: number}]", reward)])).failure(), @"");
}

#[test]
fn filters_and_limits() {
    let folder = Folder::new();
    let metric = tiny(&[("filter: {kind: variance}", "filter: {kind: variance, metric: accuracy}")]);
    let ended = train(&folder, &metric);
    assert!(!ended.stderr.contains("warm start"), "the metric is checked before anything is generated");
    insta::assert_snapshot!(ended.failure(), @"");

    let single = tiny(&[("rollout: {n: 4", "rollout: {n: 1"), ("total_steps: 6", "total_steps: 1")]);
    let warned = train(&folder, &single).succeeds().stderr;
    insta::assert_snapshot!(warned.lines().filter(|line| line.contains("rollout.n")).collect::<Vec<_>>().join("\n"), @"");

    let memory = tiny(&[("model:\n", "model:\n  memory_limit: 100KB\n")]);
    insta::assert_snapshot!(train(&folder, &memory).failure(), @"");

    let wandb = folder.with("tiny.yaml", TINY);
    let ended = wandb.tamis(&["train", "tiny.yaml", "trainer.logger=[console,wandb]", "train.total_steps=1"]).succeeds();
    insta::assert_snapshot!(ended.stderr.lines().filter(|line| line.contains("wandb")).collect::<Vec<_>>().join("\n"), @"");
}

#[test]
fn a_limit_that_is_reached_explains_itself_and_keeps_the_last_checkpoint() {
    let folder = Folder::new();
    // Nobody learns sums in so few updates; hardly a group has signal, and one round is all there is.
    let config = tiny(&[("max_num_gen_batches: 50", "max_num_gen_batches: 1")]);
    let ended = train(&folder, &config);
    assert_eq!(ended.code, Some(1));
    insta::assert_snapshot!(ended.failure(), @"");
    let again = folder.tamis(&["train", "--resume", "runs/tiny"]);
    assert_eq!(again.failure(), ended.failure(), "the same again, as nothing was changed");
    folder.tamis(&["eval", "runs/tiny"]).succeeds();
}
