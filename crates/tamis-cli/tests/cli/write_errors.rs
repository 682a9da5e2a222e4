//! A disk that fails in the middle of a run: the last checkpoint stays whole, and the run continues from it
//! as if nothing had happened once there is room again.
//!
//! `TAMIS_FAULTS=all` tests every kind of operation on every kind of file (all writes and a quarter of the
//! others otherwise).

use std::collections::BTreeMap;
use std::path::Path;

use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY};
use tamis_config::load;
use tamis_run::directory::RunDirectory;
use tamis_run::durable::{Disk, DiskFault, DiskOperation};
use tamis_run::log::progress::Console;
use tamis_train::error::RunError;
use tamis_train::interrupt::Interrupt;
use tamis_train::run::{ConfigText, Opened, Run, RunStart, RunSummary};

/// Noise on top of the verifier, so that there is a journal; the same each time, so that runs can be
/// compared.
const JUDGE: &str = "\
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({'id': request['id'], 'score': len(request['completion']) % 3 / 10}), flush=True)
";

fn config(argv: &str) -> String {
    let reward =
        format!("reward: [{{kind: number}}, {{kind: command, name: judge, argv: {argv}, num_processes: 1}}]");
    TINY.replaced("total_steps: 6", "total_steps: 4")
        .replaced("reward: [{kind: number}]", &reward)
        .replaced("gen_batch_size: 8", "gen_batch_size: 16")
}

fn finish(begun: Result<Opened, RunError>) -> Result<RunSummary, RunError> {
    match begun? {
        Opened::Ready(mut run) => run.run(),
        Opened::Interrupted(interrupted) => panic!("{interrupted}"),
    }
}

fn resumed_equals(folder: &Folder, expected: &Left) {
    let run = folder.join("runs/tiny");
    assert!(run.join("config.yaml").is_file());
    folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    expected.assert_same(&Left::by(&run));
}

fn checkpoints_are_whole(run: &Path) {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().extension().is_some_and(|extension| extension == "tmp") {
            continue;
        }
        tamis_train::checkpoint::verify(&entry.path(), tamis_train::checkpoint::Coverage::Whole)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        tamis_train::run::RunState::read(&entry.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        tamis_train::native::read_model(&entry.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[cfg(unix)]
fn limited(folder: &Folder, kilobytes: usize) -> Ended {
    let script = format!("trap '' XFSZ; ulimit -f {kilobytes}; exec \"$0\" train config.yaml");
    let child = std::process::Command::new("bash")
        .args(["-c", &script, env!("CARGO_BIN_EXE_tamis")])
        .current_dir(folder.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("bash");
    folder.wait(child)
}

#[cfg(unix)]
#[test]
fn files_that_cannot_grow_end_the_run_and_lose_nothing() {
    let config = config("[python3, judge.py]");
    let new = || Folder::new().with("config.yaml", &config).with("judge.py", JUDGE);
    let folder = new();
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let expected = Left::by(&folder.join("runs/tiny"));
    let mut failed_on = std::collections::BTreeSet::new();
    // Which file is the first that cannot be written depends on the limit.
    for kilobytes in [1, 3, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64] {
        let folder = new();
        let ended = limited(&folder, kilobytes);
        assert!(!ended.stderr.contains("panicked"), "{kilobytes} KB: {}", ended.shown());
        checkpoints_are_whole(&folder.join("runs/tiny"));
        if ended.code != Some(0) {
            assert_eq!(ended.code, Some(1), "{kilobytes} KB: {}", ended.shown());
            let printed = ended.failure();
            assert!(printed.contains("File too large"), "{kilobytes} KB: {printed}");
            failed_on.insert(printed.split("runs/tiny/").nth(1).map(file_name).unwrap_or_default());
        }
        if folder.join("runs/tiny/config.yaml").is_file() {
            resumed_equals(&folder, &expected);
        }
    }
    println!("failed on {failed_on:?}");
    assert!(failed_on.len() >= 3, "{failed_on:?}");
}

fn file_name(rest: &str) -> String {
    rest.split(['`', ':', '\n', '\'']).next().unwrap_or_default().to_owned()
}

#[test]
fn a_failing_disk_ends_the_run_and_loses_nothing() {
    let folder = Folder::new();
    // Two starts for each fault: a program that starts at once.
    let judge = "[sed, -u, 's/,.*/, \"score\": 0.5}/']";
    let config = config(judge)
        .replaced("total_steps: 4", "total_steps: 2")
        .replaced("save_freq: 2", "save_freq: 1, keep_last: 1");
    folder.write(
        "config.yaml",
        &format!("{config}objective: {{kl: {{in: loss, estimator: k3, coefficient: 0.01}}}}\n")
            .replaced("run: {", "run: {loggers: [jsonl, tensorboard], "),
    );
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let expected = Left::by(&folder.join("runs/tiny"));

    let run = |disk: &Disk, target: &Folder| -> Result<(), String> {
        let directory = format!("run.dir={}", target.join("runs").display());
        let loaded = load(&[folder.join("config.yaml")], &[directory]).expect("a sound configuration");
        let config = ConfigText::of(loaded, Vec::new());
        let run = Run::open_on(disk, RunStart::New(config), quiet, Interrupt::new());
        finish(run).map(|_| ()).map_err(|error| error.to_string())
    };
    let counting = Disk::without_flush();
    let counted = Folder::new();
    run(&counting, &counted).expect("nothing fails");

    // Every kind of operation on every file of a run, each with one of the faults. The operations of the last
    // steps are tested, because most is lost there.
    let faults = [DiskFault::DiskFull, DiskFault::ShortWrite, DiskFault::ReadOnly, DiskFault::Killed];
    let kinds: BTreeMap<(DiskOperation, String), usize> = counting
        .operations()
        .into_iter()
        .enumerate()
        .map(|(at, (operation, path))| ((operation, kind_of(&path, &counted.join("runs"))), at))
        .collect();
    let written: Vec<&str> = kinds
        .keys()
        .filter(|(operation, _)| *operation == DiskOperation::Write)
        .map(|(_, kind)| kind.as_str())
        .collect();
    insta::assert_snapshot!(written.join("\n"), @r"
    tiny/..config.yaml.tmp
    tiny/.config.yaml.tmp
    tiny/.started.tmp
    tiny/checkpoints/step_.tmp/.checksums.json.tmp
    tiny/checkpoints/step_.tmp/.config.json.tmp
    tiny/checkpoints/step_.tmp/.generation_config.json.tmp
    tiny/checkpoints/step_.tmp/.model.safetensors.tmp
    tiny/checkpoints/step_.tmp/.optimizer.safetensors.tmp
    tiny/checkpoints/step_.tmp/.state.json.tmp
    tiny/checkpoints/step_.tmp/.tokenizer.json.tmp
    tiny/checkpoints/step_.tmp/.tokenizer_config.json.tmp
    tiny/journal.bin
    tiny/metrics.jsonl
    tiny/reference.tmp/.checksums.json.tmp
    tiny/reference.tmp/.config.json.tmp
    tiny/reference.tmp/.generation_config.json.tmp
    tiny/reference.tmp/.model.safetensors.tmp
    tiny/rollouts/.step_.parquet.tmp
    tiny/run.log
    tiny/sft.jsonl
    tiny/tensorboard/events
    ");
    for (turn, (kind, &at)) in kinds.iter().enumerate() {
        // Every write is tested in any case.
        if kind.0 != DiskOperation::Write && turn % 4 != 0 && std::env::var_os("TAMIS_FAULTS").is_none() {
            continue;
        }
        let turn = if kind.0 == DiskOperation::Write { turn } else { turn / 4 };
        let fault = faults[turn % faults.len()];
        let target = Folder::new();
        let disk = Disk::with_fault(at, fault);
        let outcome = run(&disk, &target);
        let printed = outcome.err().unwrap_or_default();
        checkpoints_are_whole(&target.join("runs/tiny"));
        assert!(printed.is_empty() || printed.starts_with("failed to "), "{fault:?} at {kind:?}: {printed}");
        if !target.join("runs/tiny/config.yaml").is_file() {
            continue;
        }
        resume(&target.join("runs/tiny"));
        expected.assert_same(&Left::by(&target.join("runs/tiny")));
    }
}

fn quiet(total: Option<u64>, done: u64) -> Console {
    Console::plain(Box::new(std::io::sink()), total, done)
}

fn resume(run: &Path) {
    let directory = RunDirectory::open(&Disk::without_flush(), run).expect("not held");
    let loaded = load(&[directory.config()], &[]).expect("a sound configuration");
    let was = Box::new(loaded.config.clone());
    let now = ConfigText::of(loaded, Vec::new());
    let run = Run::open(RunStart::Resume { directory, was, now }, quiet, Interrupt::new());
    finish(run).expect("goes on");
}

/// A path without the parts that differ from step to step and from run to run.
fn kind_of(path: &Path, runs: &Path) -> String {
    let shown =
        path.strip_prefix(runs).map_or_else(|_| "outside".to_owned(), |path| path.display().to_string());
    let mut kind = String::new();
    for part in shown.split('/') {
        let part = if part.contains("tfevents") { "events" } else { part };
        let plain: String = part.chars().filter(|character| !character.is_ascii_digit()).collect();
        kind += if kind.is_empty() { "" } else { "/" };
        kind += &plain;
    }
    kind
}
