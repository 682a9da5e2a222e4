//! The rollout files of a run, by step.

use std::path::{Path, PathBuf};

use super::{ROLLOUTS, step_of};

/// A folder that cannot be listed.
#[derive(Debug, thiserror::Error)]
#[error("failed to read {}", path.display())]
pub struct FolderError {
    /// The folder.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

/// Lists the files `step_<n>.parquet` and `step_<n>.jsonl` of a run, or of a folder of such files, by step.
pub fn step_files(path: &Path) -> Result<Vec<(u64, PathBuf)>, FolderError> {
    let inside = path.join(ROLLOUTS);
    let folder = if inside.is_dir() { &inside } else { path };
    let failed = |source| FolderError { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let is_table = file.extension().is_some_and(|ending| ending == "parquet" || ending == "jsonl");
        if is_table && let Some(step) = file.file_stem().and_then(|name| step_of(name.to_str()?)) {
            files.push((step, file));
        }
    }
    files.sort();
    Ok(files)
}
