//! The files that a run folder needs, and runs whose folder another process changed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::tamis::{
    Ended, Folder, Left, Replaced as _, TINY, edited, signal, soon, without_checksums, words,
};

/// Scores by length, so that answers are journalled and yet the same each time.
const JUDGE: &str = "\
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({'id': request['id'], 'score': len(request['completion']) % 3 / 10}), flush=True)
";

fn config() -> String {
    let judge =
        "reward: [{kind: number}, {kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}]";
    edited(
        TINY,
        &[
            ("total_steps: 6", "total_steps: 4"),
            ("reward: [{kind: number}]", judge),
            ("checkpoint: {save_freq: 2}", "checkpoint: {save_freq: 4, keep_last: 1}"),
        ],
    ) + "objective: {kl: {in: loss, estimator: k3, coefficient: 0.05}}\n"
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}

fn everything(folder: &Path, of: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(of).expect("a folder") {
        let path = entry.expect("entry").path();
        found.push(path.strip_prefix(folder).expect("inside").to_owned());
        if path.is_dir() {
            everything(folder, &path, found);
        }
    }
}

fn rows_from(metrics: &str, step: usize) -> Vec<&str> {
    metrics.lines().filter(|row| (step..=6).any(|of| row.starts_with(&format!("{{\"step\":{of},")))).collect()
}

/// Each file and folder of a run is removed in turn. If the run computes from it, it is reported as missing,
/// by name and with exit code 4. Otherwise it is made anew, the resume reports that, and the run continues.
#[test]
fn only_what_is_computed_from_is_missed() {
    let new = || Folder::new().with("config.yaml", &config()).with("judge.py", JUDGE);
    let first = new();
    first.tamis(&["train", "config.yaml"]).succeeds();
    let run = first.join("runs/tiny");
    let mut all = Vec::new();
    everything(&run, &run, &mut all);
    all.sort();
    let longer = ["train", "--resume", "runs/tiny", "train.total_steps=6"];
    let whole = new();
    copy_folder(&run, &whole.join("runs/tiny"));
    whole.tamis(&longer).succeeds();
    let expected = Left::by(&whole.join("runs/tiny"));
    assert_eq!(rows_from(&expected.metrics, 4).len(), 3);

    let (mut missed, mut anew) = (Vec::new(), Vec::new());
    for lost in &all {
        let name = lost.display().to_string();
        let folder = new();
        copy_folder(&run, &folder.join("runs/tiny"));
        let path = folder.join("runs/tiny").join(lost);
        if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }
            .expect("removed");
        let resumed = folder.tamis(&longer);
        if resumed.code != Some(0) {
            assert_eq!(resumed.code, Some(4), "{name}: {}", resumed.shown());
            let failure = resumed.failure();
            let shown = if name == "checkpoints/step_4" {
                "checkpoints"
            } else {
                name.rsplit('/').next().expect("a name")
            };
            assert!(failure.contains(shown), "{name}: {failure}");
            assert!(failure.contains("hint: ") && !failure.contains("earlier"), "{name}: {failure}");
            missed.push(name);
            continue;
        }
        let found = Left::by(&folder.join("runs/tiny"));
        assert_eq!(rows_from(&found.metrics, 4), rows_from(&expected.metrics, 4), "{name}");
        for (file, bytes) in &expected.files {
            if file.starts_with("checkpoints/step_6/") || file.ends_with("step_5.parquet") {
                assert!(found.files[file] == *bytes, "{name}: {file}");
            }
        }
        assert!(folder.join("runs/tiny/tensorboard").is_dir() && folder.join("runs/tiny/run.log").is_file());
        let printed =
            |line: &&str| line.contains("warning") && line.contains("missing from the run directory");
        if let Some(line) = resumed.stderr.lines().find(printed).filter(|_| !name.contains("tfevents")) {
            anew.push(format!("{name}: {}", line.trim()).replace(&format!("`{name}`"), "`IT`"));
        }
    }
    let is_computed_from = |name: &String| {
        let is_of = |part: &str| name == part || name.starts_with(&format!("{part}/"));
        !name.ends_with("checksums.json")
            && name != "reference/generation_config.json"
            && (is_of("checkpoints") || is_of("reference") || is_of("journal.bin"))
    };
    let expected: Vec<String> =
        all.iter().map(|lost| lost.display().to_string()).filter(is_computed_from).collect();
    assert_eq!(missed, expected);
    insta::assert_snapshot!(anew.join("\n"), @r"
    config.yaml: warning: `IT` is missing from the run directory: it is written again from `.config.yaml`, the last configuration of the run
    metrics.jsonl: warning: `IT` is missing from the run directory: it is created again, without the rows before step 4
    rollouts: warning: `IT` is missing from the run directory: it is created again, without the trajectories up to step 4
    run.log: warning: `IT` is missing from the run directory: it is created again, without the entries before step 4
    tensorboard: warning: `IT` is missing from the run directory: it is created again, without the metrics up to step 4
    ");
}

#[test]
fn metrics_that_were_cut_are_gone_on_with() {
    let folder = Folder::new().with("config.yaml", &edited(TINY, &[("total_steps: 6", "total_steps: 4")]));
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let metrics = folder.join("runs/tiny/metrics.jsonl");
    let text = folder.read("runs/tiny/metrics.jsonl");
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 5, "the validation before, and four steps");
    std::fs::write(&metrics, format!("{}\n{}\n{}", rows[0], rows[1], &rows[2][..40])).expect("write");
    folder
        .tamis(&["train", "--resume", "runs/tiny", "train.total_steps=5"])
        .succeeds()
        .says("new rows are appended to what is left");
    folder
        .tamis(&["train", "--resume", "runs/tiny", "train.total_steps=6"])
        .succeeds()
        .never_says("it goes on behind");
    let steps: Vec<String> = folder
        .read("runs/tiny/metrics.jsonl")
        .lines()
        .map(|row| row.split([':', ',']).nth(1).expect("a step").to_owned())
        .collect();
    assert_eq!(steps, ["0", "1", "4", "5", "6"]);
}

#[test]
fn a_checkpoint_that_cannot_be_read_names_what_is_there_to_go_on_from() {
    let config =
        edited(TINY, &[("total_steps: 6", "total_steps: 4"), ("save_freq: 2", "save_freq: 2, keep_last: 2")]);
    let folder = Folder::new().with("config.yaml", &config);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let last = folder.join("runs/tiny/checkpoints/step_4");
    std::fs::remove_file(last.join("checksums.json")).expect("removed");
    folder.write("runs/tiny/checkpoints/step_4/state.json", "{");
    let printed = || without_checksums(&folder.tamis(&["train", "--resume", "runs/tiny"]).failure());
    insta::assert_snapshot!(printed(), @r"
    exit code 4
    error: failed to read runs/tiny/checkpoints/step_4/state.json: EOF while parsing an object at line 1 column 1
      hint: the file was changed or damaged: restore a copy, or move runs/tiny/checkpoints/step_4 elsewhere to continue from the checkpoint before it, runs/tiny/checkpoints/step_2
    ");
    std::fs::remove_dir_all(folder.join("runs/tiny/checkpoints/step_2")).expect("removed");
    insta::assert_snapshot!(printed(), @r"
    exit code 4
    error: failed to read runs/tiny/checkpoints/step_4/state.json: EOF while parsing an object at line 1 column 1
      hint: the file was changed or damaged: restore a copy
    ");
}

#[test]
fn a_run_that_is_to_have_fewer_steps_than_it_has_says_so() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=4"]).succeeds();
    let printed = |arguments: &[&str]| {
        let ended = folder.tamis(arguments).succeeds();
        let line = ended
            .stderr
            .lines()
            .find(|line| line.contains("no step is left"))
            .map(str::trim)
            .map(str::to_owned);
        line.unwrap_or_else(|| panic!("{}", ended.shown()))
    };
    insta::assert_snapshot!(printed(&["train", "--resume", "runs/tiny", "train.total_steps=2"]), @"warning: the run has 4 steps already and train.total_steps is 2: no step is left to train; to train further: `tamis train --resume runs/tiny train.total_steps=8`");
    insta::assert_snapshot!(printed(&["train", "--resume", "runs/tiny", "train.total_steps=4"]), @"warning: the run has 4 steps already and train.total_steps is 4: no step is left to train; to train further: `tamis train --resume runs/tiny train.total_steps=8`");
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=8"]).succeeds();
    folder
        .tamis(&words("train tiny.yaml train.total_steps=2 run.name=decays train.lr_schedule.kind=linear"))
        .succeeds();
    insta::assert_snapshot!(printed(&["train", "--resume", "runs/decays"]), @"warning: the run has 2 steps \
         already and train.total_steps is 2: no step is left to train; the learning rate follows \
         train.total_steps, so a longer run has to be a new one");
}

/// With `save_freq: 0` only the state after the last step is kept. With a frequency, so is the first one if a
/// new start would have to repeat a warm start or a measurement.
#[test]
fn no_checkpoint_is_left_that_was_not_asked_for() {
    let folder = Folder::tiny();
    let left = |name: &str, overrides: &[&str]| {
        let name_is = format!("run.name={name}");
        let mut arguments =
            vec!["train", "tiny.yaml", "train.total_steps=2", "checkpoint.keep_last=null", &name_is];
        arguments.extend(overrides);
        folder.tamis(&arguments).succeeds();
        let folder = folder.join(&format!("runs/{name}/checkpoints"));
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("checkpoints")
            .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(left("never", &["checkpoint.save_freq=0"]), ["step_2"]);
    assert_eq!(left("negative", &["checkpoint.save_freq=-1"]), ["step_2"]);
    assert_eq!(left("every", &["checkpoint.save_freq=1"]), ["step_0", "step_1", "step_2"]);
    let cold = ["checkpoint.save_freq=2", "sft.steps=0", "validate.before_train=false", "filter=null"];
    assert_eq!(left("cold", &cold), ["step_2"]);
}

/// A kill before the only checkpoint; and Ctrl-C, which saves.
#[test]
fn a_run_without_intermediate_checkpoints_is_resumed_from_its_beginning() {
    let config = edited(
        TINY,
        &[
            ("checkpoint: {save_freq: 2}", "checkpoint: {save_freq: 0}"),
            ("total_steps: 6", "total_steps: 40"),
        ],
    );
    let folder = Folder::new().with("config.yaml", &config);
    folder.tamis(&["train", "config.yaml", "run.name=whole"]).succeeds();
    let mut child = folder.start(&["train", "config.yaml"]);
    soon("no steps", || {
        std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl"))
            .is_ok_and(|text| text.lines().count() >= 3)
    });
    child.kill().expect("killed");
    folder.wait(child);
    folder
        .tamis(&["train", "--resume", "runs/tiny"])
        .succeeds()
        .says("resuming runs/tiny from its beginning: there is no checkpoint");
    Left::by(&folder.join("runs/whole")).assert_same(&Left::by(&folder.join("runs/tiny")));
}

#[test]
fn a_run_whose_folder_is_removed_ends_with_that_and_makes_none_again() {
    for (name, overrides) in [("saves", "checkpoint.save_freq=1"), ("trains", "checkpoint.save_freq=0")] {
        let folder = Folder::tiny();
        let child = folder.start(&["train", "tiny.yaml", "train.total_steps=100000", overrides]);
        let run = folder.join("runs/tiny");
        soon("steps", || folder.has_rows("runs/tiny", 3));
        // The run may be writing into it.
        while run.exists() {
            let _ = std::fs::remove_dir_all(&run);
        }
        let ended = folder.wait(child);
        assert!(!ended.stderr.contains("panicked"), "{name}: {}", ended.shown());
        let failure = ended.failure();
        assert_eq!(
            failure.trim_end(),
            "exit code 1\nerror: failed to write into the run directory `runs/tiny`: it was removed or moved while the run was using it\n  \
             hint: nothing more was written; to continue a moved run from its last checkpoint, use `tamis train --resume` with its new \
             path",
            "{name}"
        );
        assert!(!run.exists(), "{name}: half a folder was made again");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_is_heard_while_many_prompts_are_prepared() {
    use std::fmt::Write as _;
    let mut rows = String::new();
    for row in 0..300_000 {
        let _ = writeln!(
            rows,
            "{{\"question\": \"What is {row} + {}? Think step by step.\", \"answer\": \"{}\"}}",
            row % 7,
            row + row % 7
        );
    }
    let config = edited(
        TINY,
        &[
            ("  task: arithmetic\n", "  train: many.jsonl\n"),
            (
                "  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}\n",
                "",
            ),
            ("max_prompt_length: 12", "max_prompt_length: 60"),
            ("max_position_embeddings: 32", "max_position_embeddings: 64"),
            ("test_freq: 2, before_train: true", "test_freq: 0, before_train: false"),
        ],
    );
    let folder = Folder::new().with("config.yaml", &config).with("many.jsonl", &rows);
    let mut num_interrupted = 0;
    for after in [80, 160, 300, 600] {
        let mut child = folder.start(&["train", "config.yaml"]);
        std::thread::sleep(Duration::from_millis(after));
        if child.try_wait().expect("status").is_some() {
            folder.wait(child).succeeds();
            break;
        }
        let start = Instant::now();
        signal(&child, "-INT");
        let ended = folder.wait(child);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(3), "after {after} ms: {took:?}");
        assert_eq!(ended.code, Some(130), "after {after} ms: {}", ended.shown());
        if ended.stderr.contains("interrupted before the run began") {
            num_interrupted += 1;
            let left = std::fs::read_dir(folder.join("runs")).map_or(0, Iterator::count);
            assert_eq!(left, 0, "after {after} ms: {}", ended.shown());
        } else {
            let _ = std::fs::remove_dir_all(folder.join("runs"));
        }
    }
    assert!(num_interrupted >= 2, "the machine prepares them too fast for this test");
}

/// A verl function that prints the place of its runner and who may read that folder. It hangs if the file
/// `hang` exists.
const LOOKS: &str = "\
import os, stat, sys, time
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    folder = os.path.dirname(sys.argv[0])
    with open('seen', 'w') as out:
        out.write(f'{folder}\\n{stat.S_IMODE(os.stat(folder).st_mode):o}\\n')
    while os.path.exists('hang'):
        time.sleep(0.05)
    return 1.0
";

#[cfg(unix)]
#[test]
fn an_evaluation_runs_its_reward_from_a_private_folder_and_removes_it() {
    let folder = Folder::tiny().with("looks.py", LOOKS);
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    std::fs::create_dir(folder.join("shared")).expect("folder");
    let evaluate = || {
        let environment = [("TMPDIR", folder.join("shared"))];
        folder.start_with(&["eval", "runs/tiny", "reward=[{kind: python, path: looks.py}]"], &environment)
    };
    let left = || std::fs::read_dir(folder.join("shared")).expect("folder").count();
    folder.wait(evaluate()).exits(0);
    let seen = folder.read("seen");
    let (runner, mode) = seen.trim().split_once('\n').expect("two lines");
    assert!(Path::new(runner).starts_with(folder.join("shared")), "{runner}");
    assert_eq!((mode, left()), ("700", 0));

    std::fs::remove_file(folder.join("seen")).expect("removed");
    folder.write("hang", "");
    let child = evaluate();
    soon("a hang", || folder.join("seen").exists());
    assert_eq!(left(), 1);
    signal(&child, "-INT");
    let ended = folder.wait(child);
    assert_eq!((ended.code, left()), (Some(130), 0), "{}", ended.shown());
    assert!(ended.failure().ends_with("error: interrupted\n"), "{}", ended.shown());
}

/// A configuration with relative paths in its own folder, begun from the folder around it.
const PROJECT: &str = "\
run: {name: tiny, seed: 3, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 64}
  chat_template: chat.jinja
data: {train: rows.jsonl, val: rows.jsonl, max_prompt_length: 12, train_batch_size: 4, prompt_format: chat}
rollout: {n: 4, max_response_length: 4}
reward: [{kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}]
train: {ppo_mini_batch_size: 2, total_steps: 2, optimizer: {learning_rate: 1e-3}}
validate: {test_freq: 1, before_train: false, num_samples_shown: 1}
checkpoint: {save_freq: 1}
";

fn project() -> Folder {
    let rows: Vec<String> = (1..10)
        .map(|number| format!("{{\"question\": \"{number}+1=\", \"answer\": \"{}\"}}\n", number + 1))
        .collect();
    Folder::new()
        .with("project/run.yaml", PROJECT)
        .with("project/rows.jsonl", &rows.concat())
        .with("project/chat.jinja", "{{ messages[-1].content }}1")
        .with("project/judge.py", JUDGE)
        .with("elsewhere/note", "")
}

fn tamis_in(folder: &Folder, within: &str, arguments: &[&str]) -> Ended {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tamis"))
        .args(arguments)
        .current_dir(folder.join(within))
        .stdin(std::process::Stdio::null())
        .output()
        .expect("tamis runs");
    let text =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&folder.path().display().to_string(), "DIR");
    Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

#[test]
fn a_run_is_tied_to_no_folder() {
    let folder = project();
    folder.tamis(&["train", "project/run.yaml"]).succeeds();
    let whole =
        folder.tamis(&["train", "project/run.yaml", "run.name=whole", "train.total_steps=4"]).succeeds();
    whole.prints("done: 4 steps");
    let table = |within: &str, run: &str| {
        let ended = tamis_in(&folder, within, &["eval", run]).succeeds();
        ended.stdout.lines().skip(1).collect::<Vec<_>>().join("\n")
    };
    let here = table(".", "runs/tiny");
    assert!(here.contains("judge, reward, score"), "{here}");
    assert_eq!(table("elsewhere", "../runs/tiny"), here);
    tamis_in(&folder, "elsewhere", &["train", "--resume", "../runs/tiny", "train.total_steps=3"]).succeeds();
    std::fs::rename(folder.join("runs/tiny"), folder.join("elsewhere/moved")).expect("moved");
    assert_eq!(table("project", "../elsewhere/moved").lines().next(), here.lines().next());
    tamis_in(&folder, "project", &["train", "--resume", "../elsewhere/moved", "train.total_steps=4"])
        .succeeds();
    let (moved, whole) = (Left::by(&folder.join("elsewhere/moved")), Left::by(&folder.join("runs/whole")));
    assert_eq!(rows_from(&moved.metrics, 1), rows_from(&whole.metrics, 1));
    for (file, bytes) in &whole.files {
        if file.ends_with("step_4/model.safetensors") || file.starts_with("rollouts/") {
            assert!(moved.files[file] == *bytes, "{file}");
        }
    }
}

#[test]
fn programs_of_sources_are_found_from_anywhere() {
    let command = "{kind: command, name: judge, argv: [python3, judge.py], num_processes: 1}";
    for source in [
        "{kind: command, argv: [python3, judge.py], num_processes: 1}",
        "{kind: python, path: score.py, num_processes: 1}",
    ] {
        let folder = project();
        let by_source =
            PROJECT.replaced(command, &format!("{{kind: by_source, sources: {{'*': {source}}}}}"));
        folder.write("project/run.yaml", &by_source);
        folder.write(
            "project/score.py",
            "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str) / 4\n",
        );
        folder.tamis(&["train", "project/run.yaml"]).succeeds();
        tamis_in(&folder, "elsewhere", &["eval", "../runs/tiny"]).succeeds();
    }
}

/// A relative path that a user wrote into a run's configuration is relative to the folder in which tamis is
/// started. From another folder, the missing files are named before anything is changed.
#[test]
fn relative_paths_in_the_files_of_a_run_are_taken_from_the_present_folder() {
    let folder = project();
    folder.tamis(&["train", "project/run.yaml"]).succeeds();
    let prefix = format!("{}/", folder.path().canonicalize().expect("a folder").display());
    for file in ["config.yaml", ".config.yaml"] {
        let path = format!("runs/tiny/{file}");
        let text = folder.read(&path);
        assert!(text.contains(&prefix), "{text}");
        folder.write(&path, &text.replace(&prefix, ""));
    }
    let before = Left::by(&folder.join("runs/tiny"));
    for arguments in
        [&["train", "--resume", "../runs/tiny", "train.total_steps=3"][..], &["eval", "../runs/tiny"]]
    {
        tamis_in(&folder, "elsewhere", arguments).exits(2).says("there is no file project/rows.jsonl");
    }
    before.assert_same(&Left::by(&folder.join("runs/tiny")));
    folder.tamis(&["eval", "runs/tiny"]).succeeds();
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).succeeds();
}

/// The file `started` holds the date that templates show. Without it a resume has other prompts, and the
/// message names the file.
#[test]
fn the_date_of_a_run_that_is_gone_is_missed_by_name() {
    let folder = project();
    folder.write("project/chat.jinja", "{{ strftime_now('%Y') }}{{ messages[-1].content }}");
    folder.tamis(&["train", "project/run.yaml"]).succeeds();
    std::fs::remove_file(folder.join("runs/tiny/started")).expect("removed");
    let refused = folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]);
    insta::assert_snapshot!(refused.failure(), @r"
    exit code 4
    error: the run in runs/tiny cannot be resumed with this configuration:
    the training prompts are not those that the run was started with: `started`, the date that chat templates show, is missing from the run directory, or a file of data.train has changed
      hint: leave these keys as they were, or begin a new run; `tamis config explain KEY` shows which may change
    ");
}

fn ends(folder: &Folder, arguments: &[&str], what: &str) -> Ended {
    let mut child = folder.start(arguments);
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > until {
            child.kill().expect("killed");
            panic!("{what}: {arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    folder.wait(child)
}

#[cfg(unix)]
#[test]
fn a_pipe_in_a_run_folder_hangs_no_command() {
    pipes(4);
}

#[cfg(unix)]
#[test]
#[ignore = "long: .ci/all"]
fn a_pipe_in_place_of_any_file_of_a_run_hangs_no_command() {
    pipes(1);
}

/// A pipe in place of every `stride`-th file of a run.
#[cfg(unix)]
fn pipes(stride: usize) {
    let folder = Folder::new().with("config.yaml", &config()).with("judge.py", JUDGE);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let run = folder.join("runs/tiny");
    let mut files = Vec::new();
    everything(&run, &run, &mut files);
    // One step of each kind is enough.
    let is_other_step = |file: &Path| file.starts_with("rollouts") && !file.ends_with("step_4.parquet");
    files.retain(|file| run.join(file).is_file() && !is_other_step(file));
    assert!(files.len() > 12, "{files:?}");
    let commands: [&[&str]; 8] = [
        &["monitor", "runs/tiny", "--once"],
        &["report", "runs/tiny"],
        &["rollouts", "runs/tiny"],
        &["filter", "runs/tiny/rollouts/step_4.parquet"],
        &["compare", "runs/tiny", "other/tiny"],
        &["eval", "runs/tiny"],
        &["export", "runs/tiny", "exported"],
        &["train", "--resume", "runs/tiny", "train.total_steps=5"],
    ];
    let mut named = 0;
    for file in files.into_iter().step_by(stride) {
        let copy = Folder::new().with("judge.py", JUDGE);
        copy_folder(&folder.join("runs"), &copy.join("runs"));
        copy_folder(&folder.join("runs"), &copy.join("other"));
        let path = copy.join("runs/tiny").join(&file);
        std::fs::remove_file(&path).expect("removed");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        for arguments in commands {
            let ended = ends(&copy, arguments, &format!("{} is a pipe", file.display()));
            named += usize::from(ended.stderr.contains("it is a pipe, not a regular file"));
        }
    }
    assert!(named > 20 / stride, "{named} of them are named");
}

#[test]
fn a_command_without_a_run_takes_the_newest() {
    let folder = Folder::tiny();
    for command in ["monitor", "report", "rollouts", "advise", "eval", "serve"] {
        folder.tamis(&[command]).exits(2).fails_with("no run is named, and there is none in `runs`");
    }
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let newest = "the newest run: runs/tiny-2";
    folder.tamis(&["monitor", "--once"]).succeeds().says(newest).prints("runs/tiny-2");
    folder.tamis(&["report"]).succeeds().says(newest).prints("runs/tiny-2/report.html");
    folder.tamis(&["rollouts", "--limit", "1"]).succeeds().says(newest);
    folder.tamis(&["advise", "rollout.n=4"]).succeeds().says(newest);
    folder.tamis(&["eval", "validate.n=2"]).succeeds().says(newest).prints("runs/tiny-2/checkpoints/step_1");
    // The file that was written last is the newest, whatever its name.
    let log = std::fs::File::options().append(true).open(folder.join("runs/tiny/run.log")).expect("a log");
    log.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(60)).expect("a time");
    folder.tamis(&["monitor", "--once"]).succeeds().says("the newest run: runs/tiny\n");
}

/// The newest run has ended before it saved or generated anything.
#[test]
fn a_command_without_a_run_takes_the_newest_that_has_what_it_needs() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    folder.write("runs/young/config.yaml", &folder.read("runs/tiny/config.yaml"));
    folder.write("runs/young/run.log", "");
    let eval = folder.tamis(&["eval"]).succeeds();
    eval.prints("runs/tiny/checkpoints/step_1");
    eval.says("the newest run with a checkpoint: runs/tiny (runs/young has none)");
    folder.tamis(&["advise"]).succeeds().says("the newest run with steps: runs/tiny (runs/young has none)");
    let rollouts = folder.tamis(&["rollouts", "--limit", "1"]).succeeds();
    rollouts.says("the newest run with rollouts: runs/tiny (runs/young has none)");
    // If no run has one, the newest is named, and what it lacks.
    std::fs::remove_dir_all(folder.join("runs/tiny")).expect("removed");
    folder.tamis(&["eval"]).says("the newest run: runs/young");
}

#[test]
fn a_run_by_its_name_alone_or_misspelt_is_suggested() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    folder.write("models/tiny/config.json", "{}");
    for command in ["monitor", "report", "rollouts", "advise", "eval", "serve", "export"] {
        for typed in ["tiny", "tinny", "runs/tinny"] {
            let words = if command == "export" { vec![command, typed, "out"] } else { vec![command, typed] };
            folder.tamis(&words).exits(2).says("did you mean `runs/tiny`?");
        }
    }
    for typed in ["tiny", "tinny"] {
        folder.tamis(&["train", "--resume", typed]).exits(2).says("did you mean `runs/tiny`?");
    }
    // One wrong letter of a short name, and a folder that is no run is passed over.
    std::fs::rename(folder.join("runs/tiny"), folder.join("out")).expect("moved");
    folder.write("ouu/notes.txt", "");
    for typed in ["ouy", "otu", "outt", "ut"] {
        folder.tamis(&["train", "--resume", typed]).exits(2).says("did you mean `out`?");
    }
    for typed in ["xyz", "o", "models"] {
        folder.tamis(&["train", "--resume", typed]).exits(2).never_says("did you mean");
    }
    // The path of a model's folder is no name on a hub if a similar path exists here.
    let typed = folder.tamis(&["eval", "models/tinny", "data.val=x.jsonl"]).exits(2);
    typed.says("did you mean `models/tiny`?").says("on a hub is `hf://models/tinny`");
}
