//! Finds the run that a user names: without a path, by only its name, or misspelt.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{CHECKPOINTS, CONFIG, RUN_LOG};

/// The folder of runs without `run.dir`.
const RUNS: &str = "runs";

fn is_run(folder: &Path) -> bool {
    folder.join(CONFIG).is_file() && (folder.join(CHECKPOINTS).is_dir() || folder.join(RUN_LOG).is_file())
}

/// The newest run: this folder if it is a run, otherwise the one in `runs` whose `run.log` was written
/// last, otherwise such a one in this folder.
pub fn newest() -> Option<PathBuf> {
    newest_with(|_| true)
}

/// As [`newest`], of the runs that have what `has` looks for.
pub fn newest_with(has: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let is_run = |run: &Path| is_run(run) && has(run);
    let here = Path::new(".");
    if is_run(here) {
        return Some(here.to_owned());
    }
    let written = |run: &Path| -> Option<SystemTime> { run.join(RUN_LOG).metadata().ok()?.modified().ok() };
    let newest_in = |folder: &str| {
        let runs = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let dated = runs.filter(|run| is_run(run)).filter_map(|run| Some((written(&run)?, run)));
        // If two have the same time, the last by name, so that the answer is always the same.
        dated.max().map(|(_, run)| run)
    };
    newest_in(RUNS).or_else(|| newest_in("."))
}

/// The run that a wrong path probably means: a misspelt name, a path that leads into a run, or only a
/// name.
pub(super) fn meant(path: &Path) -> Option<PathBuf> {
    let misspelt_run = |path: &Path| tamis_file::nearest_of(path, is_run).filter(|_| !path.exists());
    let misspelt = || {
        misspelt_run(path).or_else(|| tamis_file::nearest(path).filter(|near| !path.exists() && is_run(near)))
    };
    let is_named = |folder: &&Path| !folder.as_os_str().is_empty() && is_run(folder);
    let around = || path.ancestors().skip(1).take(3).find(is_named).map(Path::to_owned);
    let in_runs = || Some(Path::new(RUNS).join(path)).filter(|run| is_run(run));
    let near_in_runs = || {
        let alone = path.components().count() == 1 && !path.exists();
        alone.then(|| misspelt_run(&Path::new(RUNS).join(path)))?
    };
    misspelt().or_else(around).or_else(in_runs).or_else(near_in_runs)
}

/// The runs in `runs`, by name.
pub fn in_runs() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(RUNS).into_iter().flatten().flatten();
    let mut runs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|run| is_run(run)).collect();
    runs.sort();
    runs
}

/// "did you mean" for a path without a run: a run, or a similar name.
pub fn suggest(path: &Path) -> Option<String> {
    let run = meant(path).map(|run| format!("did you mean `{}`?", run.display()));
    run.or_else(|| tamis_file::suggest(path))
}
