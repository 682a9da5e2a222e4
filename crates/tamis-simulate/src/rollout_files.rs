//! The files of a run's rollouts.

use std::io;
use std::path::{Path, PathBuf};

use tamis_run::directory::{ROLLOUTS, step_of};

/// Files `step_N.parquet` and `step_N.jsonl` of a run, or of a folder of such files, by step.
pub(crate) fn step_files(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let inside = path.join(ROLLOUTS);
    let folder = if inside.is_dir() { inside } else { path.to_owned() };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let file = entry?.path();
        let is_table = file.extension().is_some_and(|ending| ending == "parquet" || ending == "jsonl");
        if is_table && let Some(step) = file.file_stem().and_then(|name| step_of(name.to_str()?)) {
            files.push((step, file));
        }
    }
    files.sort();
    Ok(files)
}
