//! Room on the disks that a run writes to.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tamis_config::{CheckpointConfig, Config, KlPlace, LearnerBackend};
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
    /// Whether there is room for the first of it, without which the run fails.
    pub is_enough_to_begin: bool,
}

/// Disks that are too small.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shortages {
    /// Warnings, each with the fix.
    pub warnings: Vec<String>,
    /// What has no room at all: the run would fail when it writes it.
    pub refusal: Option<(String, String)>,
}

/// Disks that are too small for a run, or for the rest of one that resumes from a checkpoint.
pub fn shortages(config: &Config, sizes: &ModelSizes, checkpoint: Option<&Path>) -> Shortages {
    let mut found = Shortages::default();
    for need in needs(config, sizes, checkpoint) {
        if !need.is_enough_to_begin {
            found.refusal.get_or_insert((need.text, HINT.to_owned()));
        } else if !need.is_enough {
            found.warnings.push(format!("{}\n  hint: {HINT}", need.text));
        }
    }
    found
}

/// What of a run is on the disk already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct There {
    /// The step that it continues after.
    step: u64,
    /// Number of checkpoints.
    checkpoints: u64,
    /// Whether the reference is saved.
    has_reference: bool,
}

impl There {
    /// What is beside a checkpoint; `None` for a run that has none.
    fn beside(checkpoint: Option<&Path>) -> Option<(Self, &Path)> {
        let step = |folder: &Path| folder.file_name()?.to_str()?.strip_prefix("step_")?.parse::<u64>().ok();
        let checkpoint = checkpoint?;
        let (folder, step_here) = (checkpoint.parent()?, step(checkpoint)?);
        let run = folder.parent()?;
        let others = std::fs::read_dir(folder).ok()?.flatten();
        let checkpoints = others.filter(|entry| step(&entry.path()).is_some()).count() as u64;
        let has_reference = run.join("reference").is_dir();
        Some((Self { step: step_here, checkpoints, has_reference }, run))
    }
}

/// Most further checkpoints that a run has at once, and whether it is known how many it writes. If not, it is
/// the number that it keeps, at least two.
fn further_checkpoints(config: &Config, there: There) -> (u64, bool) {
    let CheckpointConfig { save_freq, keep_last, keep_best, .. } = &config.checkpoint;
    // A new checkpoint is written before an old one is deleted.
    let best = keep_best.as_ref().map_or(0, |best| best.k as u64);
    let kept = keep_last.map(|last| last as u64 + best + 1);
    let total = config.train.total_steps.filter(|_| !config.is_sft_alone()).map(|steps| steps as u64);
    let Some(total) = total else {
        return match kept {
            Some(kept) => (kept.saturating_sub(there.checkpoints).max(1), true),
            None => (2, false),
        };
    };
    let every = save_freq.0.map(std::num::NonZeroU64::get);
    let in_steps = |steps: u64| every.map_or(0, |every| steps / every);
    let is_last_apart = total > there.step && every.is_none_or(|every| !total.is_multiple_of(every));
    // One before the first step, after a warm start.
    let is_first = there.step == 0 && there.checkpoints == 0 && every.is_some() && config.sft.is_on();
    let to_come =
        in_steps(total).saturating_sub(in_steps(there.step)) + u64::from(is_last_apart) + u64::from(is_first);
    let room = kept.map_or(to_come, |kept| kept.saturating_sub(there.checkpoints).max(1));
    (to_come.min(room), true)
}

/// Disk space for checkpoints, a copy of the reference and published weights.
pub fn needs(config: &Config, sizes: &ModelSizes, checkpoint: Option<&Path>) -> Vec<DiskNeed> {
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
    let (there, run) = There::beside(checkpoint).unwrap_or((There::default(), config.run.dir.as_path()));
    let (more, is_known) = further_checkpoints(config, there);
    // The initial policy in 32 bits, if the divergence is from it and no adapter can be taken off.
    let copies_reference = config.objective.kl.place != KlPlace::None
        && config.model.reference.is_none()
        && config.learner.lora.is_none()
        && !config.is_sft_alone();
    let reference = if copies_reference && !there.has_reference && checkpoint.is_none() { 4 * n } else { 0 };
    let mut room = |what: String, folder: &Path, needed: u64, first: u64| {
        let Some(free) = free_disk(folder) else { return };
        let text = format!(
            "{what}: {} in {}, which has {} free",
            figure::bytes(needed),
            folder.display(),
            figure::bytes(free)
        );
        found.push(DiskNeed { text, is_enough: free >= needed, is_enough_to_begin: free >= first });
    };
    if more > 0 {
        let least = if is_known { "" } else { "at least " };
        let beside = if reference > 0 {
            format!(" and the reference of {}", figure::bytes(reference))
        } else {
            String::new()
        };
        room(
            format!("{least}{} of {}{beside}", figure::counted(more, "checkpoint"), figure::bytes(each)),
            run,
            each * more + reference,
            each + reference,
        );
    }
    // A finished run publishes nothing.
    if config.samples_at_servers() && more > 0 {
        let number = if config.learner.backend == LearnerBackend::Torch && config.learner.device != "cpu" {
            2
        } else {
            4
        };
        let versions = config.publish.keep as u64 + 1;
        let folder = config.publish.dir.as_deref().unwrap_or(&config.run.dir);
        let first = if checkpoint.is_none() { number * n } else { 0 };
        room(
            format!("{versions} versions of published weights of {}", figure::bytes(number * n)),
            folder,
            number * n * versions,
            first,
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
    use tamis_config::load_sources;
    use tamis_config::source::{Source, SourceKind};

    fn config(text: &str) -> Config {
        let yaml = format!(
            "model: {{path: m}}\ndata: {{train: x.jsonl, val: v.jsonl, train_batch_size: 8}}\nreward: [{{kind: number}}]\n{text}\n"
        );
        let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
        load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}")).config
    }

    #[test]
    fn checkpoints_are_counted_that_a_run_has_at_once() {
        let more = |text: &str, step: u64, checkpoints: u64| {
            further_checkpoints(&config(text), There { step, checkpoints, has_reference: true })
        };
        let every = "train: {total_steps: 10}\ncheckpoint: {save_freq: 4, keep_last: null}";
        // After steps 4 and 8, and the last.
        assert_eq!(more(every, 0, 0), (3, true));
        assert_eq!(more(every, 8, 2), (1, true));
        assert_eq!(more(every, 10, 3), (0, true));
        let few = "train: {total_steps: 100}\ncheckpoint: {save_freq: 1, keep_last: 2}";
        assert_eq!(more(few, 0, 0), (3, true));
        assert_eq!(more(few, 50, 2), (1, true));
        let best = "validate: {test_freq: 1}\ntrain: {total_steps: 100}\ncheckpoint: {save_freq: 1, keep_best: {k: 3}}";
        assert_eq!(more(best, 0, 0), (6, true));
        // Only the last.
        assert_eq!(more("train: {total_steps: 100}\ncheckpoint: {save_freq: 0}", 0, 0), (1, true));
        // The number of steps follows from the rows.
        assert_eq!(
            more("train: {total_epochs: 1}\ncheckpoint: {save_freq: 1, keep_last: null}", 0, 0),
            (2, false)
        );
        assert_eq!(more("train: {total_epochs: 1}\ncheckpoint: {save_freq: 1}", 0, 0), (3, true));
    }

    #[test]
    fn what_a_disk_lacks_is_a_warning_or_a_refusal() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoint = folder.path().join("run/checkpoints/step_10");
        std::fs::create_dir_all(&checkpoint).expect("made");
        let free = free_disk(folder.path()).expect("known");
        let of = |text: &str, parameters: u64, checkpoint: Option<&Path>| {
            let mut config = config(text);
            config.run.dir = folder.path().to_owned();
            shortages(&config, &ModelSizes { num_parameters: parameters, ..tiny() }, checkpoint)
        };
        let kept = "train: {total_steps: 10}\ncheckpoint: {save_freq: 1, keep_last: null}";
        assert_eq!(of(kept, 1, None), Shortages::default());
        // 14 bytes a weight: ten checkpoints of a sixth of the disk.
        let sixth = free / 6 / 14;
        let short = of(kept, sixth, None);
        assert!(short.refusal.is_none() && short.warnings[0].starts_with("10 checkpoints of "), "{short:?}");
        assert_eq!(of(kept, sixth, Some(&checkpoint)), Shortages::default());
        let none = of(kept, free, None);
        assert!(none.refusal.expect("refused").0.starts_with("10 checkpoints of "));
        // The reference beside them has 4 bytes a weight.
        let with = of(&format!("{kept}\nobjective: {{kl: {{in: loss}}}}"), sixth, None);
        assert!(with.warnings[0].contains(" and the reference of "), "{with:?}");
    }

    fn tiny() -> ModelSizes {
        ModelSizes {
            num_parameters: 1,
            served_bytes: 2,
            outside: 0,
            hidden: 1,
            vocab: 1,
            linears: Vec::new(),
        }
    }

    #[test]
    fn free_room_is_read_where_the_folder_is_not_there_yet() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 100 40 60 40% /\n";
        assert_eq!(read_free(df), Some(60 << 10));
        assert_eq!(read_free("df: nothing\n"), None);
        let folder = tempfile::tempdir().expect("a folder");
        assert!(free_disk(&folder.path().join("not/there/yet")).expect("known") > 0);
    }
}
