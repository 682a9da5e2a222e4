//! The state of a sweep, in `<results>/.sweep/`.
//!
//! ```text
//! .sweep/lock          held while a sweep, or a run that one left behind, works here
//! .sweep/NAME.date     month and day in the run names of the sweep with this file name, from its first start
//! .sweep/RUN.json      {"state": "finished" | "failed", ...}: how a run ended; absent if it can continue
//! .sweep/RUN.log       output of the run's process
//! ```

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tamis_run::durable::{Disk, DiskError, DiskOperation};

use crate::Fault;

/// Longest wait for the runs of a killed sweep, which end within about a second.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Upper limit on the size of a file here, in bytes.
const MOST_OF_STATE: u64 = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How a run ended the last time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LastEnd {
    /// At its planned end, or by an early stop.
    Finished,
    /// With an error; `None`: killed.
    Failed {
        /// The exit code.
        code: Option<i32>,
    },
}

/// The folder with a sweep's state.
#[derive(Debug, Clone)]
pub struct StateFolder {
    path: PathBuf,
    disk: Disk,
}

impl StateFolder {
    /// The state folder of a results folder, which need not exist.
    pub fn of(results: &Path) -> Self {
        Self { path: results.join(".sweep"), disk: Disk::new() }
    }

    /// Makes it.
    pub fn create(&self) -> Result<(), DiskError> {
        self.disk.create_folder(&self.path)
    }

    /// The date of the sweep's first start; `None` before it.
    pub fn date(&self, sweep: &str) -> Option<String> {
        let text = tamis_file::read_text(&self.path.join(format!("{sweep}.date")), MOST_OF_STATE).ok()?;
        Some(text.trim().to_owned()).filter(|date| !date.is_empty())
    }

    /// Stores the date of a sweep.
    pub fn keep_date(&self, sweep: &str, date: &str) -> Result<(), DiskError> {
        self.disk.write_file(&self.path.join(format!("{sweep}.date")), format!("{date}\n").as_bytes())
    }

    /// How a run ended the last time.
    pub fn run(&self, name: &str) -> Option<LastEnd> {
        let path = self.path.join(format!("{name}.json"));
        serde_json::from_slice(&tamis_file::read(&path, MOST_OF_STATE).ok()?).ok()
    }

    /// Stores how a run ended.
    pub fn keep_run(&self, name: &str, state: &LastEnd) -> Result<(), DiskError> {
        let text = serde_json::to_string(state).unwrap_or_default() + "\n";
        self.disk.write_file(&self.path.join(format!("{name}.json")), text.as_bytes())
    }

    /// Removes how a run ended: it begins or continues now.
    pub fn forget_run(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove_file(&self.path.join(format!("{name}.json")))?;
        self.disk.sync_folder(&self.path)
    }

    /// The file with a run's output.
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.log"))
    }

    /// Takes the lock. Runs have it as their standard input, so it is held while any of them lives, even if
    /// their sweep is gone.
    pub fn lock(&self, results: &Path) -> Result<File, Fault> {
        let path = self.path.join("lock");
        let failed = |cause| Fault::from(DiskError::new(DiskOperation::Lock, &path, cause));
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let mut file = tamis_file::open_with(&path, &options).map_err(failed)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < LONGEST_WAIT => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    let process: Option<u32> =
                        file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                    let who = process.map_or_else(
                        || "another sweep, or a run that one left,".to_owned(),
                        |id| format!("process {id}"),
                    );
                    let message = format!("begin a sweep in `{}`: {who} is working there", results.display());
                    return Err(Fault::failed(message).with_hint(
                        "wait until it has ended, or stop it; or give this sweep its own folder (`results` in the sweep's file)",
                    ));
                }
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(file)
    }
}
