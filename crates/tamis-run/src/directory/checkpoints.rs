//! Checkpoint folders: written under another name, renamed when complete, listed, pruned.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{RunDirectory, RunDirectoryError, names, step_of};
use crate::durable::{Disk, UNFINISHED};

/// Ending of a complete checkpoint that a new one of the same step is about to replace.
const REPLACED: &str = ".replaced";

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFolder {
    /// Training steps done when it was written.
    pub step: u64,
    /// Folder of the checkpoint.
    pub path: PathBuf,
}

/// A checkpoint being written. Dropped without [`PendingCheckpoint::commit`], it stays unfinished and is
/// cleared away when the run is opened again.
#[derive(Debug)]
#[must_use = "a checkpoint counts only when it is committed"]
pub struct PendingCheckpoint {
    disk: Disk,
    pending: PathBuf,
    complete: PathBuf,
    step: u64,
}

impl PendingCheckpoint {
    /// The folder to write into, every file through the run's disk.
    pub fn path(&self) -> &Path {
        &self.pending
    }

    /// Makes it complete, at once and durably. A complete checkpoint of the same step is replaced; at no
    /// instant is there none.
    pub fn commit(self) -> Result<CheckpointFolder, RunDirectoryError> {
        self.disk.sync_folder(&self.pending)?;
        let replaced = with_ending(&self.complete, REPLACED);
        let replaces = self.complete.exists();
        if replaces {
            self.disk.remove_folder(&replaced)?;
            self.disk.rename(&self.complete, &replaced)?;
        }
        self.disk.rename(&self.pending, &self.complete)?;
        if replaces {
            self.disk.remove_folder(&replaced)?;
        }
        Ok(CheckpointFolder { step: self.step, path: self.complete })
    }
}

/// Number of checkpoints to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Number of newest checkpoints to keep, at least one.
    pub last: usize,
    /// Those with the highest score, beside the newest.
    pub best: usize,
}

impl Keep {
    /// Steps whose checkpoints are removed. `scores` may lack steps and contain steps without
    /// checkpoint; NaN counts as no score. Among equal scores the earlier step is better.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use tamis_run::directory::Keep;
    /// let scores = BTreeMap::from([(10, 0.5), (20, 0.9), (30, 0.9), (40, 0.1)]);
    /// assert_eq!(Keep { last: 1, best: 1 }.select_removed(&[10, 20, 30, 40], &scores), [10, 30]);
    /// ```
    pub fn select_removed(self, steps: &[u64], scores: &BTreeMap<u64, f64>) -> Vec<u64> {
        let mut newest: Vec<u64> = steps.to_vec();
        newest.sort_unstable();
        let mut ranked: Vec<(f64, u64)> = newest
            .iter()
            .filter_map(|step| scores.get(step).filter(|score| !score.is_nan()).map(|&score| (score, *step)))
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut kept: BTreeSet<u64> = newest.iter().rev().take(self.last.max(1)).copied().collect();
        kept.extend(ranked.iter().take(self.best).map(|&(_, step)| step));
        newest.retain(|step| !kept.contains(step));
        newest
    }
}

impl RunDirectory {
    /// The folder of the checkpoint of a step, there or not.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("step_{step}"))
    }

    /// Begins a checkpoint: an empty folder that counts for nothing until it is committed.
    pub fn begin_checkpoint(&self, step: u64) -> Result<PendingCheckpoint, RunDirectoryError> {
        self.begin_in(&self.checkpoints(), step)
    }

    /// As [`RunDirectory::begin_checkpoint`], of an update of supervised fine-tuning.
    pub fn begin_sft_checkpoint(&self, update: u64) -> Result<PendingCheckpoint, RunDirectoryError> {
        self.disk().create_folder(&self.sft())?;
        self.begin_in(&self.sft(), update)
    }

    fn begin_in(&self, folder: &Path, step: u64) -> Result<PendingCheckpoint, RunDirectoryError> {
        let complete = folder.join(format!("step_{step}"));
        let pending = with_ending(&complete, UNFINISHED);
        self.disk().remove_folder(&pending)?;
        self.disk().create_new_folder(&pending)?;
        Ok(PendingCheckpoint { disk: self.disk().clone(), pending, complete, step })
    }

    /// Complete checkpoints, oldest first.
    pub fn list_checkpoints(&self) -> Result<Vec<CheckpointFolder>, RunDirectoryError> {
        list(&self.checkpoints())
    }

    /// The newest complete checkpoint of supervised fine-tuning before reinforcement learning.
    pub fn last_sft_checkpoint(&self) -> Result<Option<CheckpointFolder>, RunDirectoryError> {
        Ok(list(&self.sft())?.pop())
    }

    /// Removes the checkpoints of supervised fine-tuning, except the newest if `keeps_newest`.
    pub fn prune_sft(&self, keeps_newest: bool) -> Result<(), RunDirectoryError> {
        let all = list(&self.sft())?;
        let removed = all.len().saturating_sub(usize::from(keeps_newest));
        all[..removed].iter().try_for_each(|checkpoint| self.remove_checkpoint(&checkpoint.path))?;
        if !keeps_newest {
            self.disk().remove_folder(&self.sft())?;
        }
        Ok(())
    }

    /// Removes the checkpoints that `keep` does not keep; returns their steps.
    pub fn prune(&self, keep: Keep, scores: &BTreeMap<u64, f64>) -> Result<Vec<u64>, RunDirectoryError> {
        let steps: Vec<u64> = self.list_checkpoints()?.iter().map(|checkpoint| checkpoint.step).collect();
        let removed = keep.select_removed(&steps, scores);
        removed.iter().try_for_each(|&step| self.remove_checkpoint(&self.checkpoint(step)))?;
        Ok(removed)
    }

    /// Removing a folder takes many operations. Under another name, a half-removed folder cannot look
    /// complete.
    fn remove_checkpoint(&self, folder: &Path) -> Result<(), RunDirectoryError> {
        let leaving = with_ending(folder, UNFINISHED);
        self.disk().remove_folder(&leaving)?;
        self.disk().rename(folder, &leaving)?;
        Ok(self.disk().remove_folder(&leaving)?)
    }
}

/// Complete checkpoints in a folder, oldest first.
fn list(folder: &Path) -> Result<Vec<CheckpointFolder>, RunDirectoryError> {
    let mut found: Vec<CheckpointFolder> = names(folder)?
        .iter()
        .filter_map(|name| Some(CheckpointFolder { step: step_of(name)?, path: folder.join(name) }))
        .filter(|checkpoint| checkpoint.path.is_dir())
        .collect();
    found.sort_by_key(|checkpoint| checkpoint.step);
    Ok(found)
}

/// Repairs a crash inside a replacement: if the new checkpoint is missing the old one is restored,
/// otherwise the old one is removed.
pub(super) fn finish_exchanges(disk: &Disk, folder: &Path) -> Result<(), RunDirectoryError> {
    for name in names(folder)? {
        let Some(original) = name.strip_suffix(REPLACED) else { continue };
        let (replaced, complete) = (folder.join(&name), folder.join(original));
        if complete.exists() {
            disk.remove_folder(&replaced)?;
        } else {
            disk.rename(&replaced, &complete)?;
        }
    }
    Ok(())
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}
