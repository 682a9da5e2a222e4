use tamis_core::fault;

use super::*;

const FAULTS: [DiskFault; 6] = [
    DiskFault::DiskFull,
    DiskFault::ShortWrite,
    DiskFault::ReadOnly,
    DiskFault::Killed,
    DiskFault::PowerLoss,
    DiskFault::PowerLossAfterRename,
];

/// Runs `act` with each fault at each operation, up to the first number it does not reach.
fn at_every_operation(mut act: impl FnMut(DiskFault, &Disk) -> bool) {
    for fault in FAULTS {
        for at in 0.. {
            let disk = Disk::with_fault(at, fault);
            let failed = act(fault, &disk);
            if disk.num_operations() <= at {
                assert!(!failed, "{fault:?} at {at} was not reached, yet something failed");
                assert!(at > 0, "no operation was counted");
                break;
            }
            assert!(at < 1000, "endless");
        }
    }
}

/// Two that write one page never take each other's unfinished file.
#[test]
fn a_file_that_others_write_too_goes_by_a_file_of_ones_own() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("page.html");
    // Another's that is being written: it cannot be opened here.
    let others = folder.path().join(".page.html.tmp");
    std::fs::create_dir(&others).expect("a folder");
    assert!(Disk::new().write_file(&path, b"one").is_err());
    Disk::new().write_shared_file(&path, b"two").expect("written");
    assert_eq!(std::fs::read(&path).expect("a page"), b"two");
    let left: Vec<_> =
        std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(left.iter().filter(|left| **left != path && **left != others).count(), 0, "{left:?}");
}

#[test]
fn the_previous_file_is_whole_after_a_failure_at_any_operation() {
    let (old, new) = (vec![1_u8; 3000], vec![2_u8; 5000]);
    at_every_operation(|fault, disk| {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state.json");
        Disk::without_flush().write_file(&path, &old).expect("the first version");
        let outcome = disk.write_file(&path, &new);
        let content = std::fs::read(&path).expect("there is always a file");
        assert!(content == old || content == new, "{fault:?}: torn, {} bytes", content.len());
        match &outcome {
            Ok(()) => assert_eq!(content, new, "{fault:?}"),
            // The file by its final name, or its folder; never the temporary file.
            Err(error) => assert!(error.path == path || error.path == folder.path(), "{fault:?}: {error}"),
        }
        outcome.is_err()
    });
}

#[test]
fn a_file_written_without_error_is_there_after_a_loss_of_power() {
    for fault in [DiskFault::PowerLoss, DiskFault::PowerLossAfterRename] {
        let folder = tempfile::tempdir().expect("folder");
        let deep = folder.path().join("a").join("b");
        let probe = Disk::with_fault(usize::MAX, fault);
        let write = |disk: &Disk, root: &Path| -> Result<(), DiskError> {
            disk.create_folder(&root.join("a").join("b"))?;
            disk.write_file(&root.join("a").join("b").join("x"), b"content")
        };
        write(&probe, tempfile::tempdir().expect("folder").path()).expect("no fault");
        // The power fails right after the last operation.
        let disk = Disk::with_fault(probe.num_operations(), fault);
        write(&disk, folder.path()).expect("no fault yet");
        disk.sync_folder(folder.path()).expect_err("the power is off");
        assert_eq!(std::fs::read(deep.join("x")).expect("there"), b"content");
    }
}

#[test]
fn an_append_that_fails_leaves_no_half_line() {
    at_every_operation(|fault, disk| {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("log");
        std::fs::write(&path, "first\n").expect("write");
        let outcome = disk.append_to(&path).and_then(|mut log| {
            log.append(b"second\n")?;
            log.sync()?;
            log.append(b"third\n")?;
            log.sync()
        });
        let content = std::fs::read_to_string(&path).expect("read");
        let whole = "first\nsecond\nthird\n";
        assert!(whole.starts_with(&content), "{fault:?}: {content:?}");
        assert!(content.ends_with('\n'), "{fault:?}: {content:?}");
        outcome.is_err()
    });
}

#[test]
fn a_cut_never_lengthens() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("log");
    std::fs::write(&path, "0123456789").expect("write");
    Disk::without_flush().cut_file(&path, 20).expect("shorter already");
    assert_eq!(std::fs::read(&path).expect("read"), b"0123456789");
    Disk::without_flush().cut_file(&path, 4).expect("cut");
    assert_eq!(std::fs::read(&path).expect("read"), b"0123");
}

#[test]
fn a_folder_is_renamed_whole_or_not_at_all() {
    at_every_operation(|fault, disk| {
        let folder = tempfile::tempdir().expect("folder");
        let (pending, done) = (folder.path().join("step_1.tmp"), folder.path().join("step_1"));
        let outcome = (|| {
            disk.create_folder(&pending)?;
            disk.write_file(&pending.join("a"), b"aaaa")?;
            disk.write_file(&pending.join("b"), b"bbbb")?;
            disk.rename(&pending, &done)
        })();
        if done.exists() {
            assert_eq!(std::fs::read(done.join("a")).expect("a"), b"aaaa", "{fault:?}");
            assert_eq!(std::fs::read(done.join("b")).expect("b"), b"bbbb", "{fault:?}");
        } else {
            assert!(outcome.is_err(), "{fault:?}");
        }
        outcome.is_err()
    });
}

/// The message, its causes and its hint, as the user sees them, without the temporary folder.
fn shown(error: &DiskError, folder: &Path) -> String {
    let mut text = format!("failed to {}", fault::chain(error));
    if let Some(hint) = error.hint() {
        text = format!("{text}\nhint: {hint}");
    }
    text.replace(&folder.display().to_string(), "DIR")
}

#[test]
fn messages() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("metrics.jsonl");
    let message = |at, fault| {
        shown(&Disk::with_fault(at, fault).write_file(&path, b"x").expect_err("a fault"), folder.path())
    };
    insta::assert_snapshot!(message(0, DiskFault::ReadOnly), @"
    failed to create `DIR/metrics.jsonl`: Read-only file system (os error 30)
    hint: the file system is read-only: mount it writable and continue with `--resume`, or name another folder (`run.dir`); files written before are whole
    ");
    insta::assert_snapshot!(message(1, DiskFault::DiskFull), @"
    failed to write `DIR/metrics.jsonl` (1 B): No space left on device (os error 28)
    hint: no space is left there: free some and continue with `--resume`, keep fewer checkpoints (`checkpoint.keep_last`), or name a folder on another disk (`run.dir`); files written before are whole
    ");
    insta::assert_snapshot!(message(2, DiskFault::DiskFull), @"
    failed to flush to the device `DIR/metrics.jsonl`: No space left on device (os error 28)
    hint: no space is left there: free some and continue with `--resume`, keep fewer checkpoints (`checkpoint.keep_last`), or name a folder on another disk (`run.dir`); files written before are whole
    ");
    insta::assert_snapshot!(message(3, DiskFault::ReadOnly), @"
    failed to rename `DIR/metrics.jsonl`: Read-only file system (os error 30)
    hint: the file system is read-only: mount it writable and continue with `--resume`, or name another folder (`run.dir`); files written before are whole
    ");
    insta::assert_snapshot!(message(4, DiskFault::DiskFull), @"
    failed to flush to the device the folder `DIR`: No space left on device (os error 28)
    hint: no space is left there: free some and continue with `--resume`, keep fewer checkpoints (`checkpoint.keep_last`), or name a folder on another disk (`run.dir`); files written before are whole
    ");
    let inside_a_file = path.join("x");
    std::fs::write(&path, "").expect("write");
    let error = Disk::without_flush().create_folder(&inside_a_file).expect_err("a file is in the way");
    insta::assert_snapshot!(shown(&error, folder.path()), @"
    failed to create the folder `DIR/metrics.jsonl`: File exists (os error 17)
    hint: a part of this path is a file, not a folder: name another folder (`run.dir`)
    ");
    let error = Disk::without_flush().read_file(&folder.path().join("absent")).expect_err("absent");
    insta::assert_snapshot!(shown(&error, folder.path()), @"failed to read `DIR/absent`: No such file or directory (os error 2)");
    let error = Disk::without_flush().cut_file(&folder.path().join("absent"), 3).expect_err("absent");
    insta::assert_snapshot!(shown(&error, folder.path()), @"failed to open `DIR/absent`: No such file or directory (os error 2)");
}
