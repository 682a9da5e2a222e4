//! Writes the metrics of each step to `metrics.jsonl`, TensorBoard's event files and the console.
//! `tamis-loggers` passes them on to other programs.
//!
//! [`Loggers`] passes each step to every logger. Loggers of files record their position at a checkpoint
//! ([`Loggers::sync`]), so that a resumed run cuts them back there and appends. Loggers that send
//! figures elsewhere never stop or slow a run: they warn once, and count what they lose.

use self::details::StepDetails;
use crate::directory::LogPositions;
use crate::durable::DiskError;
use crate::metrics::Metrics;

#[cfg(test)]
mod captured;
pub mod console;
pub mod details;
pub mod jsonl;
pub mod progress;
pub mod run_log;
pub mod tensorboard;
pub mod transfer;

/// A logger could not write.
#[derive(Debug, thiserror::Error)]
#[error("log the metrics of step {step} ({logger})")]
pub struct LoggerError {
    /// Name of the logger, as in `run.loggers`.
    pub logger: &'static str,
    /// The step.
    pub step: u64,
    /// The failure, with the file.
    #[source]
    pub cause: DiskError,
}

impl LoggerError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        self.cause.hint()
    }
}

/// The end of a run, for loggers and `run.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnding {
    /// All that was planned is done.
    Finished,
    /// An early stop ended it.
    StoppedEarly,
    /// It was interrupted, to be resumed.
    Interrupted,
    /// An error ended it.
    Failed,
}

impl RunEnding {
    /// Its name for loggers: `finished`, `interrupted`, `failed`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Finished | Self::StoppedEarly => "finished",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }

    /// The last line of the run's log; of a run that failed that is the error.
    pub const fn last_line(self) -> &'static str {
        match self {
            Self::Finished => "the run ends: all of its steps are done",
            Self::StoppedEarly => "the run ends: stopped early",
            Self::Interrupted => "the run ends: interrupted",
            Self::Failed => "",
        }
    }
}

/// A place for metrics.
pub trait Logger: Send {
    /// Name of the logger, as in `run.loggers`.
    fn name(&self) -> &'static str;

    /// Writes the metrics of a step; steps come in increasing order.
    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), DiskError>;

    /// Adds metrics to a step that was logged already: its closing validation.
    fn amend(&mut self, step: u64, added: &Metrics) -> Result<(), DiskError>;

    /// Whether it shows distributions.
    fn shows_distributions(&self) -> bool {
        false
    }

    /// Completions of each step that it shows.
    fn num_samples(&self) -> usize {
        0
    }

    /// Writes a step's other parts, after its metrics.
    fn log_details(&mut self, _step: u64, _details: &StepDetails) -> Result<(), DiskError> {
        Ok(())
    }

    /// Announces the end of the run, without waiting; nothing is logged after it.
    fn begin_close(&mut self, _ending: RunEnding) {}

    /// Waits for outstanding deliveries, within its time limit.
    fn finish_close(&mut self) {}

    /// Flushes written bytes to the device and records the lengths of the logger's files.
    fn sync(&mut self, positions: &mut LogPositions) -> Result<(), DiskError>;
}

/// All loggers of a run.
#[derive(Default)]
pub struct Loggers {
    loggers: Vec<Box<dyn Logger>>,
    last_step: u64,
}

impl Loggers {
    /// No logger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a logger; they write in the order in which they were added.
    pub fn add(&mut self, logger: impl Logger + 'static) {
        self.loggers.push(Box::new(logger));
    }

    /// Writes the metrics of a step to every logger. All are tried; the first error is returned.
    pub fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), LoggerError> {
        self.last_step = step;
        self.each(|logger| logger.log(step, metrics))
    }

    /// Adds metrics to a step that was logged already. All loggers are tried; the first error is returned.
    pub fn amend(&mut self, step: u64, added: &Metrics) -> Result<(), LoggerError> {
        self.last_step = step;
        self.each(|logger| logger.amend(step, added))
    }

    /// Whether some logger shows distributions.
    pub fn shows_distributions(&self) -> bool {
        self.loggers.iter().any(|logger| logger.shows_distributions())
    }

    /// Completions of each step that some logger shows.
    pub fn num_samples(&self) -> usize {
        self.loggers.iter().map(|logger| logger.num_samples()).max().unwrap_or(0)
    }

    /// Hands the details of a step that was logged to every logger. All are tried; the first error is
    /// returned.
    pub fn log_details(&mut self, step: u64, details: &StepDetails) -> Result<(), LoggerError> {
        self.each(|logger| logger.log_details(step, details))
    }

    /// Ends every logger. Waits for all outstanding deliveries together, at most for the longest of the
    /// loggers' time limits.
    pub fn close(&mut self, ending: RunEnding) {
        self.loggers.iter_mut().for_each(|logger| logger.begin_close(ending));
        self.loggers.iter_mut().for_each(|logger| logger.finish_close());
    }

    /// Flushes every logger and records how far each of its files goes.
    pub fn sync(&mut self, positions: &mut LogPositions) -> Result<(), LoggerError> {
        self.each(|logger| logger.sync(positions))
    }

    fn each(
        &mut self,
        mut act: impl FnMut(&mut dyn Logger) -> Result<(), DiskError>,
    ) -> Result<(), LoggerError> {
        let step = self.last_step;
        let mut outcome = Ok(());
        for logger in &mut self.loggers {
            if let Err(cause) = act(logger.as_mut()) {
                let failed = LoggerError { logger: logger.name(), step, cause };
                outcome = outcome.and(Err(failed));
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::durable::{Disk, DiskFault};
    use crate::log::jsonl::JsonlLogger;
    use crate::log::tensorboard::TensorBoardLogger;

    fn one(value: f64) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.set("actor/lr", value);
        metrics
    }

    #[test]
    fn a_failing_logger_names_its_file_and_the_others_still_write() {
        let folder = tempfile::tempdir().expect("folder");
        let (bad, good) = (folder.path().join("bad.jsonl"), folder.path().join("good.jsonl"));
        let mut loggers = Loggers::new();
        // Creation and flush of the folder are operations 0 and 1; the first line is written at 2.
        loggers.add(JsonlLogger::open(&Disk::with_fault(2, DiskFault::DiskFull), &bad).expect("open"));
        loggers.add(JsonlLogger::open(&Disk::without_flush(), &good).expect("open"));
        let error = loggers.log(7, &one(0.5)).expect_err("full");
        let shown = format!(
            "failed to {error}: {}: {}\nhint: {}",
            error.cause,
            error.cause.source().expect("a cause"),
            error.hint().expect("a hint")
        );
        insta::assert_snapshot!(shown.replace(&folder.path().display().to_string(), "DIR"), @"
        failed to log the metrics of step 7 (jsonl): write `DIR/bad.jsonl` (26 B): No space left on device (os error 28)
        hint: no space is left there: free some and continue with `--resume`, keep fewer checkpoints (`checkpoint.keep_last`), or name a folder on another disk (`run.dir`); files written before are whole
        ");
        assert_eq!(std::fs::read_to_string(&bad).expect("read"), "", "no half line");
        assert_eq!(std::fs::read_to_string(&good).expect("read"), "{\"step\":7,\"actor/lr\":0.5}\n");
    }

    /// Six steps without interruption against: three steps, a checkpoint, two steps more, a crash, resumed
    /// from the checkpoint.
    #[test]
    fn logs_cut_back_and_continued_equal_those_of_an_uninterrupted_run() {
        use crate::directory::RunDirectory;
        let folder = tempfile::tempdir().expect("folder");
        let disk = Disk::without_flush();
        let start = |name: &str| {
            let run = RunDirectory::create(&disk, folder.path(), name).expect("create");
            disk.write_file(&run.config(), b"").expect("config");
            run
        };
        let loggers = |run: &RunDirectory, from: u64| {
            let mut loggers = Loggers::new();
            loggers.add(JsonlLogger::open(&disk, &run.metrics()).expect("open"));
            loggers.add(TensorBoardLogger::open(&disk, &run.tensorboard(), from).expect("open"));
            loggers
        };
        let log = |loggers: &mut Loggers, steps: std::ops::RangeInclusive<u64>| {
            for step in steps {
                loggers.log(step, &one(1.0 / step as f64)).expect("log");
            }
        };
        let whole = start("whole");
        log(&mut loggers(&whole, 1), 1..=6);

        let broken = start("broken");
        let mut positions = LogPositions::default();
        let mut first = loggers(&broken, 1);
        log(&mut first, 1..=3);
        first.sync(&mut positions).expect("sync");
        log(&mut first, 4..=5);
        drop(first);
        broken.cut_back(&positions, 3).expect("cut");
        log(&mut loggers(&broken, 4), 4..=6);

        let lines = |run: &RunDirectory| std::fs::read_to_string(run.metrics()).expect("read");
        assert_eq!(lines(&broken), lines(&whole));
        let scalars = |run: &RunDirectory| {
            let mut found = Vec::new();
            for file in tensorboard::event_files(&run.tensorboard()).expect("list") {
                let bytes = std::fs::read(file).expect("read");
                found.extend(tensorboard::tests::scalars(&bytes));
            }
            found
        };
        assert_eq!(scalars(&broken), scalars(&whole));
        assert_eq!(scalars(&whole).len(), 6);
    }
}
