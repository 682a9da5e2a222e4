//! Runs whose learner is lost, and learners whose run is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::launch::{SERVED, first, pids, vllm};
use crate::listening::Listening;
use crate::tamis::{Ended, Folder, Left, TINY, soon};

const SOCKET: [&str; 2] = ["--listen", "unix:l.sock"];
const URL: &str = "learner.url=unix:l.sock";

pub(crate) fn train_with_followers(
    folder: &Folder,
    learner: &mut Listening,
    followers: &[&str],
    arguments: &[&str],
) -> Ended {
    let is_over = AtomicBool::new(false);
    let waits = |learner: &mut Listening| {
        while learner.child.try_wait().unwrap().is_none() && !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            waits(learner);
            while !is_over.load(Ordering::SeqCst) {
                waits(&mut Listening::learner(folder, &[&SOCKET, followers].concat()));
            }
        });
        let ended = folder.tamis(&[&["train", "config.yaml"], arguments].concat());
        is_over.store(true, Ordering::SeqCst);
        ended
    })
}

fn is_logged(folder: &Folder, run: &str, step: u64) -> bool {
    let rows = std::fs::read_to_string(folder.join(&format!("runs/{run}/metrics.jsonl")));
    rows.is_ok_and(|rows| rows.contains(&format!("{{\"step\":{step},")))
}

/// Also before the run exists: an attempt leaves nothing behind, and the next begins anew.
#[test]
fn a_learner_that_is_lost_time_after_time_ends_the_run_with_a_diagnosis() {
    let folder = Folder::new().with("config.yaml", TINY);
    // The first call opens it; later ones come in the middle of the run.
    for (at, is_begun) in [("1", false), ("40", true)] {
        let fault = ["--test-fault", "killed-before", "--test-fault-at", at];
        let mut learner = Listening::learner(&folder, &[&SOCKET[..], &fault].concat());
        let restarts = ["run.name=lost", URL, "learner.lost_timeout=20ms", "learner.max_restarts=2"];
        let ended = train_with_followers(&folder, &mut learner, &fault, &restarts).exits(3);
        let said = &ended.stderr;
        assert!(said.contains("error: the learner was lost 3 times in a row after step 0, so the run ends:\n  1. the learner at unix:l.sock "), "{said}");
        assert!(
            said.contains("restart 1 of at most 2 in a row")
                && said.contains("restart 2 of at most 2 in a row"),
            "{said}"
        );
        assert!(!said.contains("restart 3"), "{said}");
        assert_eq!(folder.join("runs/lost").exists(), is_begun, "{said}");
        let _ = std::fs::remove_dir_all(folder.join("runs"));
    }
}

#[test]
fn a_learner_whose_run_is_killed_waits_for_the_resume() {
    let folder = Folder::new().with("config.yaml", TINY);
    folder.tamis(&["train", "config.yaml", "run.name=whole"]).succeeds();
    let mut learner = Listening::learner(&folder, &SOCKET);
    let mut run =
        folder.start(&["train", "config.yaml", "run.name=killed", URL, "learner.orphan_timeout=60s"]);
    soon("step 3", || is_logged(&folder, "killed", 3));
    run.kill().unwrap();
    run.wait().unwrap();
    folder.tamis(&["train", "--resume", "runs/killed"]).succeeds().says("resuming runs/killed after step ");
    Left::by(&folder.join("runs/killed")).assert_same(&Left::by(&folder.join("runs/whole")));
    assert!(learner.child.try_wait().unwrap().is_none(), "it is the learner that it was");
}

/// It does not take the learner back, because the two would take it from each other for ever.
#[test]
fn a_run_whose_learner_another_run_takes_ends() {
    let folder = Folder::new().with("config.yaml", TINY);
    let _learner = Listening::learner(&folder, &SOCKET);
    let run = folder.start(&["train", "config.yaml", "run.name=first", "train.total_steps=100000", URL]);
    soon("step 2", || is_logged(&folder, "first", 2));
    folder.tamis(&["train", "config.yaml", "run.name=second", "train.total_steps=2", URL]).succeeds();
    let ended = folder.wait(run);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 3
    error: the learner at unix:l.sock was taken by another run, and no longer holds this one
      hint: one learner serves one run: end the other run, or name another learner in learner.url; then continue this run with --resume
    ");
}

/// They would take minutes to start. Requests that are not in the journal are made again.
#[test]
fn servers_that_the_run_started_outlive_its_learner() {
    let folder = Folder::tiny().with("config.yaml", TINY);
    first(&folder);
    let path = vllm(&folder);
    let served = ["train", "config.yaml", "train.total_steps=4", "rollout.backend=vllm", "rollout.launch={}"];
    let whole = [&served[..], &["run.name=whole"], &SERVED].concat();
    folder.wait(folder.start_with(&whole, std::slice::from_ref(&path))).succeeds();
    assert_eq!(pids(&folder).len(), 1);
    let fault = ["--test-fault", "killed-after", "--test-fault-at", "30"];
    let mut learner = Listening::learner(&folder, &[&SOCKET[..], &fault].concat());
    let run = [&served[..], &["run.name=lost", URL, "learner.lost_timeout=20ms"], &SERVED].concat();
    let run = folder.start_with(&run, std::slice::from_ref(&path));
    learner.child.wait().unwrap();
    let _follower = Listening::learner(&folder, &SOCKET);
    let ended = folder.wait(run).succeeds();
    ended.says("restart 1 of at most 3 in a row");
    assert_eq!(pids(&folder).len(), 2, "{}", ended.shown());
    let weights = |run: &str| folder.weights(run, 4);
    assert!(weights("lost") == weights("whole"));
}
