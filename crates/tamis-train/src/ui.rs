//! What a run tells the person who watches it.

use std::path::Path;

use crate::durable::{Disk, DiskError};
use crate::metrics::Metrics;
use crate::run_directory::LogPositions;

/// Where a run's words go: the console, the log file, a test.
pub trait Ui {
    /// Opens the run's log file, to which every line goes from now on.
    fn open_log(&mut self, disk: &Disk, path: &Path) -> Result<(), DiskError>;

    /// Flushes the log file and records its length.
    fn sync_log(&mut self, positions: &mut LogPositions) -> Result<(), DiskError>;

    /// A line of the log.
    fn say(&mut self, line: &str);

    /// Something that wants attention.
    fn warn(&mut self, line: &str);

    /// A step begins, of `total` where that is known, with a batch of `target` groups.
    fn step_begins(&mut self, step: u64, total: Option<u64>, target: usize);

    /// A generation round of so many groups begins.
    fn round_begins(&mut self, step: u64, round: u64, num_groups: usize);

    /// Groups of the round finished so far, and tokens generated since the last call.
    fn groups_finished(&mut self, finished: usize, num_tokens: u64);

    /// Groups accumulated of the step's target.
    fn groups_kept(&mut self, kept: usize);

    /// A step was trained.
    fn step_done(&mut self, step: u64, metrics: &Metrics);

    /// Updates of the warm start so far.
    fn warm_start(&mut self, update: usize, total: usize, loss: f64, accuracy: Option<f64>);

    /// The run is over; nothing is drawn any more.
    fn finish(&mut self);
}
