//! Room on the disks that a run writes to.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tamis_config::{Config, LearnerBackend};
use tamis_core::figure;
use tamis_process::ask;

use super::model_sizes::ModelSizes;

/// Longest time for `df` to answer.
const LONGEST: Duration = Duration::from_secs(30);

/// What to do if a disk is too small.
pub const HINT: &str = "free some, name another disk, or keep fewer (checkpoint.keep_last, publish.keep)";

/// What a run writes to a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskNeed {
    /// How much of what, and how much is free there.
    pub text: String,
    /// Whether there is room for it.
    pub is_enough: bool,
}

/// Warnings of disks that are too small, each with the fix.
pub fn shortages(config: &Config, sizes: &ModelSizes) -> Vec<String> {
    let short = needs(config, sizes).into_iter().filter(|need| !need.is_enough);
    short.map(|need| format!("{}\n  hint: {HINT}", need.text)).collect()
}

/// Disk space for checkpoints and published weights.
pub fn needs(config: &Config, sizes: &ModelSizes) -> Vec<DiskNeed> {
    let mut found = Vec::new();
    let n = sizes.num_parameters;
    let learned = match &config.learner.lora {
        Some(lora) => sizes.adapter(lora.rank as u64, lora.targets.as_deref()),
        None => n,
    };
    // Weights as they are saved, f32 copies of the learned weights if the saved type is smaller, and two
    // moments.
    let weights = match config.model.save_dtype {
        tamis_model::SaveDtype::F32 => 4 * n,
        _ => 2 * n + 4 * learned,
    };
    let each = weights + 8 * learned;
    // A new checkpoint is written before an old one is deleted.
    let kept = config.checkpoint.keep_last.unwrap_or(1) as u64 + 1;
    let mut room = |what: String, folder: &Path, needed: u64| {
        let Some(free) = free_disk(folder) else { return };
        let text = format!(
            "{what}: {} in {}, which has {} free",
            figure::bytes(needed),
            folder.display(),
            figure::bytes(free)
        );
        found.push(DiskNeed { text, is_enough: free >= needed });
    };
    room(format!("{kept} checkpoints of {}", figure::bytes(each)), &config.run.dir, each * kept);
    if config.samples_at_servers() {
        let number = if config.learner.backend == LearnerBackend::Torch && config.learner.device != "cpu" {
            2
        } else {
            4
        };
        let versions = config.publish.keep as u64 + 1;
        let folder = config.publish.dir.as_deref().unwrap_or(&config.run.dir);
        room(
            format!("{versions} versions of published weights of {}", figure::bytes(number * n)),
            folder,
            number * n * versions,
        );
    }
    found
}

/// Bytes that are free on the disk of a folder, or of its nearest parent that exists.
pub fn free_disk(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let there = folder.ancestors().find(|folder| folder.is_dir())?;
    let text = ask(Command::new("df").arg("-Pk").arg(there), LONGEST).ok()?;
    read_free(&text)
}

/// Reads the fourth column of `df -P`, in KiB.
fn read_free(text: &str) -> Option<u64> {
    let free = text.lines().nth(1)?.split_whitespace().nth(3)?;
    free.parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_room_is_read_where_the_folder_is_not_there_yet() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 100 40 60 40% /\n";
        assert_eq!(read_free(df), Some(60 << 10));
        assert_eq!(read_free("df: nothing\n"), None);
        let folder = tempfile::tempdir().expect("a folder");
        assert!(free_disk(&folder.path().join("not/there/yet")).expect("known") > 0);
    }
}
