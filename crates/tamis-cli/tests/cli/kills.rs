//! Kills and stops of a run at instants that differ from test run to test run. What holds must hold for all
//! of them.
//!
//! `TAMIS_KILLS=40` kills that often for each test's configuration. The seed of the kills is printed;
//! `TAMIS_KILL_SEED=N` repeats them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::tamis::{Ended, Folder};

/// Number of kills, unless `TAMIS_KILLS` sets more.
pub(crate) fn num_kills(otherwise: usize) -> usize {
    std::env::var("TAMIS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Draws instants.
pub(crate) struct Dice(u64);

impl Dice {
    /// From `TAMIS_KILL_SEED`, otherwise from the clock. A test that fails shows what it printed.
    #[expect(clippy::print_stdout, reason = "a test that fails shows the seed of its kills")]
    pub(crate) fn new() -> Self {
        let given = std::env::var("TAMIS_KILL_SEED").ok();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let seed =
            given.map_or(now.as_nanos() as u64, |text| text.parse().expect("TAMIS_KILL_SEED: a number"));
        println!("seed of the kills: TAMIS_KILL_SEED={seed}");
        // Xorshift stays at 0 for ever.
        Self(seed.max(1))
    }

    /// A separate sequence of numbers.
    pub(crate) fn fork(&mut self) -> Self {
        self.roll();
        Self(self.0 ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Uniform in 0..bound.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.roll() * bound as f64) as usize
    }

    /// Uniform in [0, 1), by xorshift.
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How a run is ended before its end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stop {
    /// By `kill -9`.
    Kill,
    /// By SIGTERM, after which it saves its state.
    Term,
    /// By a second SIGTERM, which ends it while it saves.
    TermTwice,
}

impl Stop {
    /// One of the three.
    pub(crate) fn drawn(dice: &mut Dice) -> Self {
        [Self::Kill, Self::Term, Self::TermTwice][dice.below(3)]
    }

    fn end(self, child: &mut Child) {
        let terminate = |child: &Child| {
            // It may have ended by then.
            let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).output();
            sent.expect("kill");
        };
        match self {
            Self::Kill => child.kill().expect("killed"),
            Self::Term => terminate(child),
            Self::TermTwice => {
                terminate(child);
                // Signals that are closer than 200 ms are one.
                let until = Instant::now() + Duration::from_millis(220);
                while child.try_wait().expect("status").is_none() {
                    if Instant::now() >= until {
                        return terminate(child);
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }
}

pub(crate) fn begun(folder: &Folder) -> Option<PathBuf> {
    let runs = std::fs::read_dir(folder.join("runs")).ok()?;
    runs.filter_map(|entry| Some(entry.ok()?.path())).find(|run| run.join("config.yaml").is_file())
}

pub(crate) fn writes_a_checkpoint(run: &Path) -> bool {
    std::fs::read_dir(run.join("checkpoints")).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(".tmp"))
    })
}

pub(crate) fn start_run(folder: &Folder, arguments: &[&str]) -> Child {
    match begun(folder) {
        None => folder.start(&[&["train", "config.yaml"], arguments].concat()),
        Some(run) => {
            let run = run.strip_prefix(folder.path()).expect("in the folder");
            folder.start(&["train", "--resume", &run.display().to_string()])
        }
    }
}

/// Begins or resumes the run, and ends it as soon as `is_time` returns true, which is checked five thousand
/// times a second. Returns how it ended, if it ended by itself.
pub(crate) fn killed_when(
    folder: &Folder,
    arguments: &[&str],
    stop: Stop,
    mut is_time: impl FnMut() -> bool,
) -> Option<Ended> {
    let mut child = start_run(folder, arguments);
    loop {
        if child.try_wait().expect("status").is_some() {
            return Some(folder.wait(child));
        }
        if is_time() {
            stop.end(&mut child);
            let ended = folder.wait(child);
            match ended.code {
                Some(0) => return Some(ended),
                None | Some(130) => {}
                Some(_) => panic!("after {stop:?}: {}", ended.shown()),
            }
            if begun(folder).is_none() {
                // It was killed before the run existed: there is nothing to resume, and only we use the
                // half-made folder.
                let _ = std::fs::remove_dir_all(folder.join("runs"));
            }
            return None;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
