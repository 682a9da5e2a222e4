//! Runs and logs that are followed: every format, and files in every state.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "figures are read as they were written")]

mod files;
mod formats;

use tamis_lab::monitor::{Watch, WatchedRun};

/// A folder with files in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn append(&self, name: &str, content: impl AsRef<[u8]>) {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().append(true).open(self.path(name)).unwrap();
        file.write_all(content.as_ref()).unwrap();
    }
}

fn of_log(text: impl AsRef<[u8]>) -> WatchedRun {
    let folder = Folder::new();
    folder.write("train.log", text);
    let mut watch = Watch::open(&folder.path("train.log")).unwrap();
    watch.check_understood().unwrap();
    watch.summary()
}

/// Batches, mean filter rate in per cent, groups kept, groups kept per batch.
fn batches_of(summary: &WatchedRun) -> (u64, Option<String>, Option<u64>, Option<String>) {
    let figures = &summary.batch_figures;
    let rate = figures.average_filter_rate.map(|rate| format!("{:.2}", 100.0 * rate));
    (figures.total_batches, rate, figures.total_kept, figures.average_kept.map(|kept| format!("{kept:.1}")))
}

fn told(
    batches: u64,
    rate: &str,
    kept: u64,
    average: &str,
) -> (u64, Option<String>, Option<u64>, Option<String>) {
    (batches, Some(rate.to_owned()), Some(kept), Some(average.to_owned()))
}
