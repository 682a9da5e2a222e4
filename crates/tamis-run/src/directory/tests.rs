use tamis_core::fault;

use super::*;
use crate::durable::DiskFault;

fn new_run(disk: &Disk, parent: &Path) -> RunDirectory {
    let run = RunDirectory::create(disk, parent, "run").expect("a new run");
    run.disk().write_file(&run.config(), b"seed: 1\n").expect("config");
    run
}

fn shown(error: &RunDirectoryError, folder: &Path) -> String {
    let mut text = format!("failed to {}", fault::chain(error));
    if let Some(hint) = error.hint() {
        text = format!("{text}\nhint: {hint}");
    }
    text.replace(&folder.display().to_string(), "DIR")
        .replace(&format!("process {}", std::process::id()), "process PID")
}

fn steps(run: &RunDirectory) -> Vec<u64> {
    run.list_checkpoints().expect("list").iter().map(|checkpoint| checkpoint.step).collect()
}

fn save(run: &RunDirectory, step: u64, content: &[u8]) -> Result<(), RunDirectoryError> {
    let pending = run.begin_checkpoint(step)?;
    run.disk().write_file(&pending.path().join("model"), content)?;
    run.disk().write_file(&pending.path().join("state"), content)?;
    pending.commit().map(drop)
}

#[test]
fn a_second_start_makes_a_numbered_directory() {
    let folder = tempfile::tempdir().expect("folder");
    let parent = folder.path().join("deep").join("runs");
    let names: Vec<String> = (0..3)
        .map(|_| {
            let run = RunDirectory::create(&Disk::without_flush(), &parent, "gsm8k").expect("create");
            run.path().file_name().expect("name").to_string_lossy().into_owned()
        })
        .collect();
    assert_eq!(names, ["gsm8k", "gsm8k-2", "gsm8k-3"]);
}

#[test]
fn a_directory_is_held_by_one_process_and_freed_with_it() {
    let folder = tempfile::tempdir().expect("folder");
    let run = new_run(&Disk::without_flush(), folder.path());
    let path = run.path().to_owned();
    let error = RunDirectory::open(&Disk::without_flush(), &path).expect_err("held");
    insta::assert_snapshot!(shown(&error, folder.path()), @"
    failed to open the run `DIR/run`: process PID holds it
    hint: wait for it or stop it (Ctrl-C saves first), then resume
    ");
    drop(run);
    RunDirectory::open(&Disk::without_flush(), &path).expect("free again");
}

#[test]
fn unfinished_checkpoints_do_not_count_and_are_cleared() {
    let folder = tempfile::tempdir().expect("folder");
    let run = new_run(&Disk::without_flush(), folder.path());
    save(&run, 20, b"b").expect("save");
    save(&run, 3, b"a").expect("save");
    let pending = run.begin_checkpoint(30).expect("begin");
    std::fs::write(pending.path().join("model"), "half").expect("write");
    std::fs::create_dir(run.checkpoints().join("step_007")).expect("a folder of someone else");
    std::fs::write(run.checkpoints().join("step_8"), "a file").expect("write");
    assert_eq!(steps(&run), [3, 20]);
    let (left, path) = (pending.path().to_owned(), run.path().to_owned());
    drop(run);
    let run = RunDirectory::open(&Disk::without_flush(), &path).expect("open");
    assert!(!left.exists());
    assert_eq!(steps(&run), [3, 20]);
}

#[test]
fn pruning_keeps_the_last_and_the_best() {
    let folder = tempfile::tempdir().expect("folder");
    let run = new_run(&Disk::without_flush(), folder.path());
    for step in [1, 2, 3, 4, 10] {
        save(&run, step, b"x").expect("save");
    }
    let scores = BTreeMap::from([(1, 0.3), (2, 0.9), (3, f64::NAN), (4, 0.9), (99, 1.0)]);
    assert_eq!(run.prune(Keep { last: 1, best: 1 }, &scores).expect("prune"), [1, 3, 4]);
    assert_eq!(steps(&run), [2, 10]);
    assert_eq!(run.prune(Keep { last: 0, best: 0 }, &scores).expect("prune"), [2]);
    assert_eq!(steps(&run), [10], "the newest always stays");
}

/// A run of three steps with checkpoints at 1 and 2, interrupted in step 4.
fn interrupted(run: &RunDirectory) -> [LogPositions; 2] {
    let disk = run.disk().clone();
    disk.create_folder(&run.tensorboard()).expect("folder");
    let mut logs = [run.metrics(), run.run_log(), run.tensorboard().join("events.out.tfevents.1.a")]
        .map(|path| disk.append_to(&path).expect("open"));
    let mut positions = Vec::new();
    for step in 1..=3 {
        for log in &mut logs {
            log.append(format!("step {step}\n").as_bytes()).expect("append");
        }
        std::fs::write(run.rollout(step), "rollouts").expect("write");
        if step < 3 {
            let mut now = LogPositions::default();
            now.record(METRICS, logs[0].length());
            now.record(RUN_LOG, logs[1].length());
            now.record("tensorboard/events.out.tfevents.1.a", logs[2].length());
            positions.push(now);
        }
    }
    std::fs::write(run.tensorboard().join("events.out.tfevents.2.b"), "later").expect("write");
    positions.try_into().expect("two")
}

#[test]
fn logs_are_cut_back_to_the_checkpoint() {
    let folder = tempfile::tempdir().expect("folder");
    let run = new_run(&Disk::without_flush(), folder.path());
    let [first, second] = interrupted(&run);
    for (positions, step) in [(second, 2), (first, 1)] {
        for _ in 0..2 {
            run.cut_back(&positions, step).expect("cut, and again");
        }
        let kept = (1..=step).fold(String::new(), |kept, step| format!("{kept}step {step}\n"));
        for log in [run.metrics(), run.run_log(), run.tensorboard().join("events.out.tfevents.1.a")] {
            assert_eq!(std::fs::read_to_string(log).expect("read"), kept);
        }
        assert!(!run.tensorboard().join("events.out.tfevents.2.b").exists());
        assert!(run.rollout(step).exists() && !run.rollout(step + 1).exists());
    }
    let superseded = std::fs::read_to_string(run.path().join(SUPERSEDED)).expect("read");
    assert_eq!(superseded, "step 3\nstep 2\n");
    run.cut_back(&LogPositions::default(), 0).expect("to before the first line");
    assert_eq!(std::fs::read(run.metrics()).expect("read"), b"");
    assert!(!run.rollout(1).exists());
}

#[test]
fn positions_survive_as_json() {
    let mut positions = LogPositions::default();
    positions.record(METRICS, 12);
    let text = serde_json::to_string(&positions).expect("json");
    assert_eq!(serde_json::from_str::<LogPositions>(&text).expect("read"), positions);
}

/// At every operation of saving a checkpoint over one of the same step, and of pruning, and for every fault:
/// a complete checkpoint is there when the run is opened again, and none that is not whole.
#[test]
fn a_failure_at_any_operation_leaves_a_whole_checkpoint() {
    for fault in [
        DiskFault::DiskFull,
        DiskFault::ShortWrite,
        DiskFault::ReadOnly,
        DiskFault::Killed,
        DiskFault::PowerLoss,
        DiskFault::PowerLossAfterRename,
    ] {
        for at in 0.. {
            let folder = tempfile::tempdir().expect("folder");
            let run = new_run(&Disk::without_flush(), folder.path());
            save(&run, 1, b"one").expect("save");
            save(&run, 2, b"old two").expect("save");
            let path = run.path().to_owned();
            drop(run);

            let disk = Disk::with_fault(at, fault);
            let outcome = RunDirectory::open(&disk, &path).and_then(|run| {
                save(&run, 2, b"new two")?;
                save(&run, 3, b"three")?;
                run.prune(Keep { last: 2, best: 0 }, &BTreeMap::new()).map(drop)
            });

            let run = RunDirectory::open(&Disk::without_flush(), &path).expect("open again");
            let found = run.list_checkpoints().expect("list");
            assert!(found.iter().any(|checkpoint| checkpoint.step == 2), "{fault:?} at {at}: step 2 is lost");
            for checkpoint in found {
                let read = |name| std::fs::read(checkpoint.path.join(name)).expect("whole");
                assert_eq!(read("model"), read("state"), "{fault:?} at {at}: of one time");
                let content = read("model");
                let allowed: &[&[u8]] = match checkpoint.step {
                    1 => &[b"one"],
                    2 => &[b"old two", b"new two"],
                    _ => &[b"three"],
                };
                assert!(allowed.contains(&content.as_slice()), "{fault:?} at {at}: {content:?}");
            }
            if disk.num_operations() <= at {
                outcome.expect("no fault was met");
                assert_eq!(steps(&run), [2, 3]);
                break;
            }
            outcome.expect_err("a fault was met");
        }
    }
}

#[test]
fn messages() {
    let folder = tempfile::tempdir().expect("folder");
    let of =
        |result: Result<RunDirectory, RunDirectoryError>| shown(&result.expect_err("refused"), folder.path());
    let create = |disk: &Disk, name: &str| of(RunDirectory::create(disk, folder.path(), name));
    for name in ["", ".", "..", "a/b", "/a"] {
        let error = RunDirectory::create(&Disk::without_flush(), folder.path(), name).expect_err("no name");
        assert!(matches!(error, RunDirectoryError::Name { .. }), "{name}");
    }
    insta::assert_snapshot!(create(&Disk::without_flush(), "runs/a"), @"failed to make a folder for the run \
         `runs/a`: a name is one part of a path, without `/`, of at most 255 bytes without control \
         characters, and not empty, `.` or `..` (`run.name`; the folder around it is `run.dir`)");
    insta::assert_snapshot!(create(&Disk::with_fault(0, DiskFault::ReadOnly), "a"), @"
    failed to make a run directory in `DIR` (`run.dir`): create the folder `DIR/a`: Read-only file system (os error 30)
    hint: the file system is read-only: mount it writable and continue with `--resume`, or name another folder (`run.dir`); files written before are whole
    ");
    insta::assert_snapshot!(of(RunDirectory::open(&Disk::without_flush(), &folder.path().join("absent"))), @"
    failed to open the run `DIR/absent`: there is no such folder
    hint: name the folder that a run printed at its start; it holds `config.yaml`
    ");
    insta::assert_snapshot!(of(RunDirectory::open(&Disk::without_flush(), folder.path())), @"
    failed to open the run `DIR`: there is no `config.yaml` in it
    hint: name the folder that a run printed at its start; it holds `config.yaml`
    ");
    let run = RunDirectory::create(&Disk::without_flush(), folder.path(), "tiny").expect("made");
    std::fs::write(run.path().join("config.yaml"), "").expect("write");
    insta::assert_snapshot!(of(RunDirectory::open(&Disk::without_flush(), &folder.path().join("tinny"))), @"
    failed to open the run `DIR/tinny`: there is no such folder
    hint: did you mean `DIR/tiny`?
    ");
    let inside = folder.path().join("tiny/checkpoints/step_8");
    insta::assert_snapshot!(of(RunDirectory::open(&Disk::without_flush(), &inside)), @"
    failed to open the run `DIR/tiny/checkpoints/step_8`: there is no such folder
    hint: did you mean `DIR/tiny`?
    ");
    std::fs::write(folder.path().join("file"), "").expect("write");
    insta::assert_snapshot!(of(RunDirectory::open(&Disk::without_flush(), &folder.path().join("file"))), @"
    failed to open the run `DIR/file`: this is a file, not a folder
    hint: name the folder that a run printed at its start; it holds `config.yaml`
    ");
    std::fs::create_dir(folder.path().join("file-2")).expect("folder");
    assert_eq!(
        RunDirectory::create(&Disk::without_flush(), folder.path(), "file").expect("numbered").path(),
        folder.path().join("file-3"),
        "neither a file nor an empty folder of the name is touched"
    );
    insta::assert_snapshot!(of(RunDirectory::create(&Disk::without_flush(), &folder.path().join("file"), "a")), @"
    failed to make a run directory in `DIR/file` (`run.dir`): create the folder `DIR/file`: File exists (os error 17)
    hint: a part of this path is a file, not a folder: name another folder (`run.dir`)
    ");

    let run = new_run(&Disk::without_flush(), folder.path());
    let cut = |name: &str, length| {
        let mut positions = LogPositions::default();
        positions.record(name, length);
        shown(&run.cut_back(&positions, 40).expect_err("refused"), folder.path())
    };
    std::fs::write(run.metrics(), "{}\n").expect("write");
    insta::assert_snapshot!(cut("../elsewhere", 0), @"
    failed to cut the logs back to the checkpoint of step 40: it names `../elsewhere`, which is not a log of the run
    hint: `state.json` of this checkpoint was changed: restore it, or move the checkpoint elsewhere to continue from the previous one, if there is one
    ");
    assert_eq!(std::fs::read(run.metrics()).expect("read"), b"{}\n", "nothing was touched");
    insta::assert_snapshot!(
        shown(&held("runs/a".as_ref(), None), folder.path()),
        @"
    failed to open the run `runs/a`: another process holds it
    hint: wait for it or stop it (Ctrl-C saves first), then resume
    "
    );
}
