//! The run directory: one folder that holds everything about a run, held by one process at a time.
//!
//! ```text
//! <dir>/<name>/
//!   config.yaml              the resolved configuration, with each value's origin
//!   run.log                  every message, each line with its time
//!   run.superseded.log       lines of run.log after the checkpoint from which the run was resumed
//!   metrics.jsonl            one object per step
//!   tensorboard/             event files
//!   loggers/                 of loggers in a process of their own: its output, and the run's name there
//!   wandb/                   of Weights & Biases, if figures are not sent at once
//!   rollouts/step_<n>.parquet
//!   validation/step_<n>.jsonl  samples of the validation after step n, with `validate.save_samples`
//!   evaluations/step_<n>.json  result of `tamis eval` for that checkpoint; `step_<n>-2.json` the second time, and so on
//!   report.html              the page that `tamis report` makes
//!   checkpoints/step_<n>/    complete ones; `step_<n>.tmp` is being written or removed
//!     checksums.json         of its files, written last
//!   sft/step_<n>/            checkpoint of supervised fine-tuning before reinforcement learning, while that lasts
//!   checkpointed             there has been a checkpoint: without one the run cannot be begun again over its logs
//!   journal.bin              answers from outside, replayed on resume
//!   samples.bin              samples of servers, replayed on resume
//!   episodes.bin             trajectories that were played in environments elsewhere, replayed on resume
//!   teachers.bin             log-probabilities of teachers at servers, replayed on resume
//!   order.bin                the order of events, if it decides what is trained on (streaming), followed on resume
//!   published/version_N/     weights that servers read, the last two
//!   run.lock                 held while a process works here
//! ```
//!
//! A new run never enters an existing folder: it takes the next free of `name`, `name-2`, `name-3`, ...
//! A resumed run opens its folder, is cut back to a checkpoint ([`RunDirectory::cut_back`]) and
//! continues from there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::durable::{Disk, DiskError, DiskOperation, UNFINISHED};

mod checkpoints;
mod error;
mod find;
mod step_files;

pub use checkpoints::{CheckpointFolder, Keep, PendingCheckpoint};
pub use error::RunDirectoryError;
use error::{gone, held, holder};
pub use find::{in_runs, newest, newest_with, suggest};
pub use step_files::{FolderError, step_files};

/// Bytes of a run's name at most: file systems hold no longer ones.
const MAX_NAME: usize = 255;

/// Whether a text is a name that a run can have: at most 255 bytes without control characters, one part of a
/// path.
pub fn is_name(name: &str) -> bool {
    if name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return false;
    }
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(part)), None) if part == name)
}

/// The name of a run's folder: its own, or with a number if that is taken.
fn number_name(name: &str, number: u64) -> String {
    if number == 1 { name.to_owned() } else { format!("{name}-{number}") }
}

/// The name of the folder that a new run takes in `parent`: the first free one of `name`, `name-2`,
/// `name-3`, ...
///
/// # Errors
/// [`RunDirectoryError::Name`] if it is not a valid name, [`RunDirectoryError::NameTaken`] if the first
/// free one is too long.
pub fn free_name(parent: &Path, name: &str) -> Result<String, RunDirectoryError> {
    name_from(parent, name, 1).map(|(name, _)| name)
}

/// Like [`free_name`] from a number on; also returns the number.
fn name_from(parent: &Path, name: &str, first: u64) -> Result<(String, u64), RunDirectoryError> {
    if !is_name(name) {
        return Err(RunDirectoryError::Name { name: name.to_owned() });
    }
    for number in first.. {
        let folder = number_name(name, number);
        if folder.len() > MAX_NAME {
            return Err(RunDirectoryError::NameTaken {
                name: name.to_owned(),
                number,
                parent: parent.to_owned(),
            });
        }
        // A dangling link counts as existing.
        if parent.join(&folder).symlink_metadata().is_err() {
            return Ok((folder, number));
        }
    }
    Err(RunDirectoryError::Name { name: name.to_owned() })
}

/// Length in bytes of every log at a checkpoint, by path in the run directory (`/` between parts).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogPositions {
    /// Path and length.
    pub files: BTreeMap<String, u64>,
    /// The last row of `metrics.jsonl`, with its end of line, which comes after the recorded length: a
    /// validation at the end of a run adds to it, so it is not final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_row: Option<String>,
}

impl LogPositions {
    /// Records the length of a log.
    pub fn record(&mut self, name: impl Into<String>, length: u64) {
        self.files.insert(name.into(), length);
    }
}

/// Name of the log of metrics in the run directory.
pub const METRICS: &str = "metrics.jsonl";
/// Name of the log of all messages.
pub const RUN_LOG: &str = "run.log";
/// Name of the log of what a resume cut from [`RUN_LOG`].
pub const SUPERSEDED: &str = "run.superseded.log";
/// Name of the folder of TensorBoard's event files.
pub const TENSORBOARD: &str = "tensorboard";
/// Name of the folder of rollout files, `step_<n>.parquet`.
pub const ROLLOUTS: &str = "rollouts";
/// Name of the page that `tamis report` makes of a run.
pub const REPORT: &str = "report.html";
const VALIDATION: &str = "validation";
const EVALUATIONS: &str = "evaluations";
const CHECKPOINTS: &str = "checkpoints";
const SFT: &str = "sft";
/// Name of the resolved configuration in the run directory.
pub const CONFIG: &str = "config.yaml";
/// The same configuration as it was last in force.
const IN_FORCE: &str = ".config.yaml";
const CHECKPOINTED: &str = "checkpointed";
const LOCK: &str = "run.lock";
// A process that ends, or that has just forked a child which has not started its program yet, holds the lock
// a moment longer.
const LOCK_ATTEMPTS: u32 = 25;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// A run directory that this process holds.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    disk: Disk,
    // Dropped with the directory, which frees the lock; the system frees it when the process dies.
    lock: File,
    // Files that were missing when the run was opened, and are made anew.
    missing: Vec<&'static str>,
}

/// Result of [`RunDirectory::cut_back`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CutBack {
    /// Positions of the logs now: the recorded ones, without lines that are gone.
    pub positions: LogPositions,
    /// Differences from the checkpoint's record, repaired and reported to the user.
    pub warnings: Vec<String>,
}

impl RunDirectory {
    /// Makes a new run directory in `parent` (which is made too if missing): `name`, or the first free
    /// one of `name-2`, `name-3`, ... An existing folder is never entered, not even an empty one.
    pub fn create(disk: &Disk, parent: &Path, name: &str) -> Result<Self, RunDirectoryError> {
        let no_room = |cause| RunDirectoryError::NoRoom { parent: parent.to_owned(), cause };
        if !is_name(name) {
            return Err(RunDirectoryError::Name { name: name.to_owned() });
        }
        disk.create_folder(parent).map_err(no_room)?;
        let mut first = 1;
        let path = loop {
            let (folder, number) = name_from(parent, name, first)?;
            let path = parent.join(folder);
            // Creating is the test, so that two starts at once never share a folder.
            match disk.create_new_folder(&path) {
                Ok(()) => break path,
                Err(error)
                    if error.operation == DiskOperation::CreateFolder
                        && error.cause.kind() == std::io::ErrorKind::AlreadyExists =>
                {
                    first = number + 1;
                }
                Err(error) => return Err(no_room(error)),
            }
        };
        let lock = take_lock(&path)?;
        let run = Self { path, disk: disk.clone(), lock, missing: Vec::new() };
        for folder in [CHECKPOINTS, ROLLOUTS] {
            run.disk.create_new_folder(&run.path.join(folder))?;
        }
        Ok(run)
    }

    /// Opens the directory of a run to resume it, and removes what a crash left unfinished.
    ///
    /// # Errors
    /// [`RunDirectoryError::NotARun`] if there is no `config.yaml`; a [`Fault`](tamis_core::fault::Fault) if
    /// another process works in it.
    pub fn open(disk: &Disk, path: &Path) -> Result<Self, RunDirectoryError> {
        let no_run = |reason| Err(RunDirectoryError::NotARun { path: path.to_owned(), reason });
        if !path.exists() {
            return no_run("there is no such folder");
        }
        if !path.is_dir() {
            return no_run("this is a file, not a folder");
        }
        if !path.join(CONFIG).is_file() && !path.join(IN_FORCE).is_file() {
            return no_run("there is no `config.yaml` in it");
        }
        let lock = take_lock(path)?;
        let mut run = Self { path: path.to_owned(), disk: disk.clone(), lock, missing: Vec::new() };
        if !run.config().is_file() {
            let in_force = run.disk.read_file(&run.config_in_force())?;
            run.disk.write_file(&run.config(), &in_force)?;
            run.missing.push(CONFIG);
        }
        for folder in [CHECKPOINTS, ROLLOUTS] {
            if !run.path.join(folder).is_dir() {
                run.disk.create_folder(&run.path.join(folder))?;
                run.missing.push(folder);
            }
        }
        run.clear_unfinished()?;
        Ok(run)
    }

    /// Removes temporary files and finishes or undoes exchanges of checkpoints that a crash interrupted.
    fn clear_unfinished(&self) -> Result<(), RunDirectoryError> {
        for folder in [self.checkpoints(), self.sft()] {
            checkpoints::finish_exchanges(&self.disk, &folder)?;
        }
        let folders = [
            self.path.clone(),
            self.checkpoints(),
            self.sft(),
            self.rollouts(),
            self.validation(),
            self.tensorboard(),
        ];
        for folder in folders {
            for name in names(&folder)? {
                if name.ends_with(UNFINISHED) {
                    let leftover = folder.join(&name);
                    if leftover.is_dir() {
                        self.disk.remove_folder(&leftover)?;
                    } else {
                        self.disk.remove_file(&leftover)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk that everything in it is written through.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// `config.yaml`.
    pub fn config(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// The configuration as the run had it last, which a resume compares with `config.yaml`: that one may
    /// have been edited.
    pub fn config_in_force(&self) -> PathBuf {
        self.path.join(IN_FORCE)
    }

    /// `run.log`.
    pub fn run_log(&self) -> PathBuf {
        self.path.join(RUN_LOG)
    }

    /// `metrics.jsonl`.
    pub fn metrics(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    /// `tensorboard/`, which may not be there yet.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join(TENSORBOARD)
    }

    /// `rollouts/`.
    pub fn rollouts(&self) -> PathBuf {
        self.path.join(ROLLOUTS)
    }

    /// `rollouts/step_<n>.parquet`.
    pub fn rollout(&self, step: u64) -> PathBuf {
        self.rollouts().join(format!("step_{step}.parquet"))
    }

    /// `validation/`, which may not be there yet.
    pub fn validation(&self) -> PathBuf {
        self.path.join(VALIDATION)
    }

    /// `validation/step_<n>.jsonl`.
    pub fn validation_samples(&self, step: u64) -> PathBuf {
        self.validation().join(format!("step_{step}.jsonl"))
    }

    /// `checkpoints/`.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// `sft/`, which is there only during supervised fine-tuning before reinforcement learning.
    pub fn sft(&self) -> PathBuf {
        self.path.join(SFT)
    }

    /// Notes that there has been a checkpoint, once it is whole. What a run logged after one cannot be made
    /// again without it.
    pub fn note_checkpoint(&self) -> Result<(), RunDirectoryError> {
        let path = self.path.join(CHECKPOINTED);
        if !path.exists() {
            self.disk.write_file(&path, b"")?;
        }
        Ok(())
    }

    /// Whether there has been a checkpoint, be it here still or not.
    pub fn had_checkpoint(&self) -> bool {
        had_checkpoint(&self.path)
    }

    /// The last step in `metrics.jsonl`, if one can be read.
    pub fn last_logged_step(&self) -> Option<u64> {
        let text = tamis_file::read_text(&self.metrics(), u64::MAX).ok()?;
        let step = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?.get("step")?.as_u64();
        text.lines().rev().find_map(step)
    }

    /// `order.bin`.
    pub fn order(&self) -> PathBuf {
        self.path.join("order.bin")
    }

    /// `samples.bin`.
    pub fn samples_journal(&self) -> PathBuf {
        self.path.join("samples.bin")
    }

    /// `episodes.bin`.
    pub fn episodes_journal(&self) -> PathBuf {
        self.path.join("episodes.bin")
    }

    /// `teachers.bin`.
    pub fn teachers_journal(&self) -> PathBuf {
        self.path.join("teachers.bin")
    }

    /// `journal.bin`.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal.bin")
    }

    /// Checks that the directory is still the one that this process opened. It is called before a step
    /// and before a checkpoint, so that a removed directory is reported as removed, and no part of it
    /// is made again.
    ///
    /// # Errors
    /// It was removed, moved, or replaced by another.
    pub fn check_present(&self) -> Result<(), RunDirectoryError> {
        let gone = || gone(&self.path);
        let found = std::fs::metadata(self.path.join(LOCK)).map_err(|_| gone())?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            let held = self.lock.metadata().map_err(|_| gone())?;
            if (held.dev(), held.ino()) != (found.dev(), found.ino()) {
                return Err(gone());
            }
        }
        #[cfg(not(unix))]
        let _ = (found, &self.lock);
        Ok(())
    }

    /// Cuts every log back to its state at the checkpoint of `step`, so that the resumed run continues
    /// it as if it had never been interrupted:
    ///
    /// - `metrics.jsonl`, `run.log` and the event files to their recorded lengths (one that is not
    ///   recorded is emptied, an event file removed); what is cut from `run.log` goes to
    ///   `run.superseded.log`;
    /// - the last row of `metrics.jsonl` as it was;
    /// - rollout files and validation samples of later steps are removed.
    ///
    /// No computation needs a log: one that is missing or shorter than recorded is continued as it is,
    /// and named in [`CutBack::warnings`]. A second cut changes nothing, so a crash in between does no
    /// harm.
    ///
    /// # Errors
    /// [`RunDirectoryError::ForeignLog`] if a recorded position names something else than a log of the
    /// run; nothing is changed then.
    pub fn cut_back(&self, positions: &LogPositions, step: u64) -> Result<CutBack, RunDirectoryError> {
        let tensorboard = format!("{TENSORBOARD}/");
        let is_event_file = |name: &str| {
            name.strip_prefix(&tensorboard).is_some_and(|file| !file.contains(['/', '\\']) && file != "..")
        };
        if let Some(name) =
            positions.files.keys().find(|name| *name != METRICS && *name != RUN_LOG && !is_event_file(name))
        {
            return Err(RunDirectoryError::ForeignLog { name: name.clone(), step });
        }
        let mut cut = CutBack { positions: positions.clone(), warnings: self.made_anew(positions, step) };
        let recorded = |name: &str| positions.files.get(name).copied().unwrap_or(0);

        self.keep_superseded(recorded(RUN_LOG))?;
        if self.run_log().exists() {
            self.disk.cut_file(&self.run_log(), recorded(RUN_LOG))?;
        }
        if self.metrics().exists() {
            let rows = self.disk.read_file(&self.metrics())?;
            let kept = rows_before(&rows, recorded(METRICS), positions.last_row.as_deref());
            self.disk.cut_file(&self.metrics(), kept)?;
        }
        if let Some(row) = &positions.last_row {
            self.disk.append_to(&self.metrics())?.append(row.as_bytes())?;
        }
        for name in names(&self.tensorboard())?.iter().filter(|name| name.contains("tfevents")) {
            let path = self.tensorboard().join(name);
            match positions.files.get(&format!("{tensorboard}{name}")) {
                Some(&length) => self.disk.cut_file(&path, length)?,
                None => self.disk.remove_file(&path)?,
            }
        }
        cut.positions.files.retain(|name, _| self.path.join(name).exists());
        for folder in [self.rollouts(), self.validation()] {
            for name in names(&folder)? {
                let later = name.split('.').next().and_then(step_of).is_some_and(|of| of > step);
                if later {
                    self.disk.remove_file(&folder.join(&name))?;
                }
            }
        }
        Ok(cut)
    }

    /// Differences from a checkpoint's record, for the user.
    fn made_anew(&self, positions: &LogPositions, step: u64) -> Vec<String> {
        let length = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.len()).ok();
        let mut warnings: Vec<String> = Vec::new();
        for (name, what) in [
            (CONFIG, "it is written again from `.config.yaml`, the last configuration of the run".to_owned()),
            (ROLLOUTS, format!("it is created again, without the trajectories up to step {step}")),
        ] {
            if self.missing.contains(&name) && (name != ROLLOUTS || step > 0) {
                warnings.push(format!("`{name}` is missing from the run directory: {what}"));
            }
        }
        let has_events = positions.files.keys().any(|name| name.starts_with(TENSORBOARD));
        if has_events && !self.tensorboard().is_dir() {
            warnings.push(format!(
                "`{TENSORBOARD}` is missing from the run directory: it is created again, without the metrics up to step {step}"
            ));
        }
        for (name, &recorded) in &positions.files {
            let is_metrics = name == METRICS;
            let of_earlier = if is_metrics { "rows" } else { "entries" };
            match length(&self.path.join(name)) {
                None if name.starts_with(TENSORBOARD) && !self.tensorboard().is_dir() => {}
                None => warnings.push(format!(
                    "`{name}` is missing from the run directory: it is created again, without the {of_earlier} before step {step}"
                )),
                Some(found) if found < recorded => warnings.push(format!(
                    "`{name}` has {found} bytes, but had {recorded} at the checkpoint of step {step}: new \
                         rows are appended to what is left"
                )),
                Some(_) => {}
            }
        }
        warnings
    }

    fn keep_superseded(&self, from: u64) -> Result<(), RunDirectoryError> {
        if !self.run_log().exists() {
            return Ok(());
        }
        let text = self.disk.read_file(&self.run_log())?;
        let tail = text.get(from as usize..).unwrap_or_default();
        if !tail.is_empty() {
            let mut superseded = self.disk.append_to(&self.path.join(SUPERSEDED))?;
            superseded.append(tail)?;
            superseded.sync()?;
        }
        Ok(())
    }
}

/// Bytes of `metrics.jsonl` before the last row of a checkpoint: as recorded, or if the file differs,
/// as many whole rows of earlier steps as there are.
fn rows_before(file: &[u8], recorded: u64, last_row: Option<&str>) -> u64 {
    #[derive(Deserialize)]
    struct Row {
        step: u64,
    }
    let step_of = |line: &[u8]| serde_json::from_slice::<Row>(line).ok().map(|row| row.step);
    let limit = last_row.and_then(|row| step_of(row.as_bytes()));
    let is_earlier = |line: &[u8]| {
        line.ends_with(b"\n") && limit.is_none_or(|limit| step_of(line).is_some_and(|step| step < limit))
    };
    let up_to = usize::try_from(recorded).ok().and_then(|recorded| file.get(..recorded));
    if let Some(whole) = up_to
        && whole.split_inclusive(|&byte| byte == b'\n').next_back().is_none_or(is_earlier)
    {
        return recorded;
    }
    let mut kept = 0;
    for line in file.split_inclusive(|&byte| byte == b'\n') {
        let end = kept + line.len();
        if !is_earlier(line) || (limit.is_none() && end as u64 > recorded) {
            break;
        }
        kept = end;
    }
    kept as u64
}

/// Whether a run directory has held a checkpoint, be it there still or not.
pub fn had_checkpoint(run: &Path) -> bool {
    run.join(CHECKPOINTED).exists()
}

/// The newest complete checkpoint below a run directory, which this process need not hold; `None` if
/// there is none yet.
pub fn last_checkpoint(run: &Path) -> Result<Option<PathBuf>, RunDirectoryError> {
    let folder = run.join(CHECKPOINTS);
    let steps = names(&folder)?.iter().filter_map(|name| step_of(name)).max();
    Ok(steps.map(|step| folder.join(format!("step_{step}"))))
}

/// Writes the result of an evaluation to the run of its checkpoint, as `evaluations/step_<n>.json` or,
/// if that exists, `step_<n>-2.json` and so on. Returns the file's path, or `None` if the checkpoint
/// belongs to no run.
pub fn keep_evaluation(disk: &Disk, checkpoint: &Path, bytes: &[u8]) -> Result<Option<PathBuf>, DiskError> {
    let run = checkpoint.parent().and_then(Path::parent).filter(|run| run.join(CONFIG).is_file());
    let (Some(run), Some(step)) = (run, step_of_checkpoint(checkpoint)) else { return Ok(None) };
    let folder = run.join(EVALUATIONS);
    disk.create_folder(&folder)?;
    for number in 1_u64.. {
        let path = folder.join(match number {
            1 => format!("step_{step}.json"),
            number => format!("step_{step}-{number}.json"),
        });
        // Creating is the test, so that two evaluations that end at once never share a name.
        match File::create_new(&path) {
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(DiskError::new(DiskOperation::CreateFile, &path, cause)),
            Ok(_) => {
                disk.write_file(&path, bytes).inspect_err(|_| {
                    // Nothing is in it; the error that matters is the first.
                    let _ = disk.remove_file(&path);
                })?;
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

/// The newest complete checkpoint of an earlier step beside the given one; `None` if there is none, or
/// this is not a checkpoint of a run.
pub fn checkpoint_before(checkpoint: &Path) -> Option<PathBuf> {
    let step = step_of_checkpoint(checkpoint)?;
    let folder = checkpoint.parent()?;
    let earlier =
        names(folder).ok()?.iter().filter_map(|name| step_of(name)).filter(|&other| other < step).max();
    earlier.map(|step| folder.join(format!("step_{step}")))
}

/// The step of a checkpoint of a run, by its folder's name.
pub fn step_of_checkpoint(folder: &Path) -> Option<u64> {
    step_of(folder.file_name()?.to_str()?)
}

/// The number in `step_<n>`, written as we write it: of a checkpoint's folder, of a rollout file without its
/// ending.
pub fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step_")?;
    let step = digits.parse().ok()?;
    (digits == format!("{step}")).then_some(step)
}

/// Names in a folder, sorted; none if it does not exist. Names that are not Unicode are not ours.
fn names(folder: &Path) -> Result<BTreeSet<String>, DiskError> {
    if !folder.exists() {
        return Ok(BTreeSet::new());
    }
    let failed = |cause| DiskError::new(DiskOperation::Read, folder, cause);
    std::fs::read_dir(folder)
        .map_err(failed)?
        .filter_map(|entry| match entry {
            Ok(entry) => entry.file_name().to_str().map(|name| Ok(name.to_owned())),
            Err(cause) => Some(Err(failed(cause))),
        })
        .collect()
}

/// Takes the directory's lock and writes our process number into it, for the message to another
/// process.
fn take_lock(folder: &Path) -> Result<File, RunDirectoryError> {
    let path = folder.join(LOCK);
    let failed = |cause| DiskError::new(DiskOperation::Lock, &path, cause);
    let options = File::options().read(true).write(true).create(true).truncate(false).clone();
    let mut file = tamis_file::open_with(&path, &options).map_err(failed)?;
    let mut attempts = 0;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if attempts < LOCK_ATTEMPTS => {
                attempts += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let process = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(held(folder, process));
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause).into()),
        }
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

/// The process that works in a run directory which this process does not hold, as a message names it; `None`
/// without one.
pub fn held_by(run: &Path) -> Option<String> {
    let mut file = tamis_file::open(&run.join(LOCK)).ok()?;
    // Shared, and for a moment: a run that begins now tries again.
    let Err(TryLockError::WouldBlock) = file.try_lock_shared() else { return None };
    let mut text = String::new();
    Some(holder(file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok())))
}

/// Path of a file below the run directory as positions name it.
pub fn position_name(folder: &str, file: &OsStr) -> String {
    format!("{folder}/{}", file.to_string_lossy())
}

#[cfg(test)]
mod tests;
