//! A run directory or a log that is read repeatedly while it grows.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tamis_run::directory::{CONFIG, METRICS, RUN_LOG, held_by};

use super::reading::Reading;
use super::sample::{self, Sample};
use super::summary::{Source, WatchedRun};
use super::tail::{Change, Tail};
use crate::monitor::format::LogFormat;
use crate::other_runs::OtherRun;
use crate::report::settings::Settings;
use crate::{Fault, names};

/// Whether a folder looks like that of a run.
pub(super) fn is_run(folder: &Path) -> bool {
    [CONFIG, METRICS, RUN_LOG].iter().any(|name| folder.join(name).is_file())
}

/// One file, and what was read of it.
#[derive(Debug)]
struct Followed {
    tail: Tail,
    reading: Reading,
    is_absent: bool,
    num_replaced: u64,
    /// Whether it is a file of a run directory. Such files are not rotated.
    is_of_run: bool,
}

impl Followed {
    fn new(path: &Path, is_of_run: bool) -> Self {
        let (tail, reading) = (Tail::new(path), Reading::default());
        Self { tail, reading, is_absent: false, num_replaced: 0, is_of_run }
    }

    fn follow(&mut self) -> Result<(), Fault> {
        let is_of_run = self.is_of_run;
        let forget = |reading: &mut Reading, change: Change| {
            // Another file in the place of a log continues it.
            if is_of_run || change == Change::Rewritten {
                *reading = Reading::default();
            }
        };
        let change = self
            .tail
            .follow(&mut self.reading, forget, Reading::read)
            .map_err(|cause| unreadable(self.tail.path(), cause))?;
        self.is_absent = change == Change::Absent;
        self.num_replaced += u64::from(change == Change::Replaced);
        Ok(())
    }
}

fn unreadable(path: &Path, cause: std::io::Error) -> Fault {
    let fault = Fault::failed(format!("failed to read {}", path.display()));
    let is_denied = cause.kind() == std::io::ErrorKind::PermissionDenied;
    let fault =
        if is_denied { fault.with_hint("its owner can make it readable with `chmod a+r`") } else { fault };
    fault.with_source(cause)
}

/// A run or a log that is followed.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    /// The metrics of a run directory, or the file.
    main: Followed,
    /// The log of a run directory, for the step in progress and for messages.
    log: Option<Followed>,
    total_steps: Option<u64>,
    /// The run of another trainer, whose metrics are made from the files that it writes.
    other: Option<OtherRun>,
}

impl Watch {
    /// Begins to follow a run directory or a file, and reads what is in it.
    ///
    /// # Errors
    /// There is no such file or folder, the folder is no run, or the file cannot be followed.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        let found = match std::fs::metadata(path) {
            Ok(found) => found,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                let hint = "name the folder that a run printed at its start, a `metrics.jsonl`, or a log";
                return Err(Fault::nothing_there(path, hint));
            }
            Err(cause) => return Err(unreadable(path, cause)),
        };
        let other = OtherRun::find(path)?;
        let mut watch = if let Some(mut other) = other {
            let main = Followed::new(&other.make_metrics()?, true);
            let total_steps = other.total_steps();
            Self { path: path.to_owned(), main, log: None, total_steps, other: Some(other) }
        } else if found.is_dir() {
            if !is_run(path) {
                let message = format!(
                    "{} is not a run directory: there is neither `config.yaml` nor `metrics.jsonl` nor `run.log` in it",
                    path.display()
                );
                return Err(Fault::usage(message).with_hint(match names::run_inside(path, is_run) {
                    Some(run) => format!("there are runs in it: did you mean `{}`?", run.display()),
                    None => "name the folder that a run printed at its start, or a log".to_owned(),
                }));
            }
            let config = path.join(CONFIG);
            let settings = Settings::read(&config).unwrap_or_default();
            Self {
                path: path.to_owned(),
                main: Followed::new(&path.join(METRICS), true),
                log: Some(Followed::new(&path.join(RUN_LOG), true)),
                total_steps: settings.number("train.total_steps"),
                other: None,
            }
        } else if found.is_file() {
            let main = Followed::new(path, false);
            Self { path: path.to_owned(), main, log: None, total_steps: None, other: None }
        } else {
            let path = path.display();
            let message = format!("{path} is a device or a pipe, which cannot be read again from its start");
            let hint = "write the output to a file (`... | tee train.log`), and name that";
            return Err(Fault::usage(message).with_hint(hint));
        };
        watch.follow()?;
        Ok(watch)
    }

    /// Reads what was written since the last time.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub fn follow(&mut self) -> Result<(), Fault> {
        // What is half written now is whole the next time.
        if self.other.as_mut().is_some_and(|other| other.look_again().is_ok()) {
            self.total_steps = self.other.as_ref().and_then(OtherRun::total_steps);
        }
        self.main.follow()?;
        if let Some(log) = &mut self.log {
            log.follow()?;
        }
        Ok(())
    }

    /// Whether the file contains anything that is understood, if it is not empty.
    ///
    /// # Errors
    /// The file is no log, or none that is understood.
    pub fn check_understood(&self) -> Result<(), Fault> {
        let (reading, path) = (&self.main.reading, self.path.display());
        if self.log.is_some() || !reading.formats.is_empty() {
            return Ok(());
        }
        if self.main.tail.has_binary {
            let hint = "name the log as text: unpack it if it is compressed, or name the run's folder";
            let message = format!("{path} is not a log: it has bytes that are not text");
            return Err(Fault::usage(message).with_hint(hint));
        }
        match reading.num_lines {
            0 => Ok(()),
            lines => Err(Fault::usage(format!(
                "none of the {lines} lines of {path} has steps or generated batches"
            ))
            .with_hint(
                "logs of tamis, verl (its filter-group log lines too), EasyR1 and TRL are understood (docs/reading-a-run.md shows each); \
                name the file with the output of the trainer",
            )),
        }
    }

    /// A sampled completion. The next number gives the next one.
    pub(super) fn sample(&self, number: usize) -> Result<Sample, String> {
        match self.log {
            Some(_) => sample::read(&self.path, number),
            None => Err("only the folder of a run of tamis has completions to show".to_owned()),
        }
    }

    /// The present state.
    pub fn summary(&mut self) -> WatchedRun {
        let now = SystemTime::now();
        // A step that EasyR1 prints ends with the last line of its block, and nothing marks that line.
        self.main.reading.settle();
        let written = [Some(&self.main), self.log.as_ref()];
        let written = written.into_iter().flatten().filter_map(|followed| followed.tail.modified()).max();
        let age = written.map(|time| now.duration_since(time).unwrap_or_default().as_secs_f64());
        let torn = [Some(&self.main), self.log.as_ref()];
        let torn = torn.into_iter().flatten().any(|followed| followed.tail.torn().is_some());
        let source = Source {
            path: &self.path,
            is_run: self.log.is_some(),
            is_held: self.log.is_some() && held_by(&self.path).is_some(),
            total_steps: self.total_steps,
            is_torn: torn,
            is_absent: if self.log.is_some() { !self.path.exists() } else { self.main.is_absent },
            num_replaced: self.main.num_replaced,
            age,
        };
        let mut run = WatchedRun::of(&source, &self.main.reading, self.log.as_ref().map(|log| &log.reading));
        if let Some(other) = &self.other {
            run.formats = LogFormat::of_system(other.system()).into_iter().collect();
            run.notes.extend(other.notes());
        }
        run
    }
}
