//! Checkpoints: everything that a run needs to continue as if it had never stopped.
//!
//! A checkpoint is a folder `checkpoints/step_N` in Hugging Face layout (`config.json`,
//! `model.safetensors`, tokenizer files) with `optimizer.safetensors` and `state.json` beside them, and
//! a similar folder `critic` if the run has a critic. [`tamis_run::directory`] makes it appear whole or
//! not at all, and checksums show whether it has changed since it was written.

mod checksums;
mod layout;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tamis_model::{CheckpointError, ConfigError};
use tamis_text::tokenizer::Tokenizer;
use thiserror::Error;

pub(crate) use checksums::SummedFolder;
pub use checksums::{
    CHECKSUMS, ChecksumError, Coverage, Hexadecimal, SavedFile, covers, sum_of_model, verify,
};
use layout::STATE;
pub(crate) use layout::{CRITIC, MASTER, OPTIMIZER};

use tamis_run::directory::{checkpoint_before, step_of_checkpoint};
use tamis_run::durable::{Disk, DiskError, UNFINISHED};

/// A checkpoint cannot be written or read.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The disk refused.
    #[error("failed to {0}")]
    Disk(#[from] DiskError),
    /// The file is not the one that was written.
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    /// Weights or moments cannot be read.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// `state.json` cannot be understood.
    #[error("failed to read {path}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        source: serde_json::Error,
    },
    /// `state.json` has a key that this build does not know.
    #[error("{path} has an unknown key `{key}`")]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key, with those around it.
        key: String,
    },
    /// The state is that of another step than the folder is named after.
    #[error("{path} is the state after step {found}, but its folder is that of step {named}")]
    OtherStep {
        /// The file.
        path: PathBuf,
        /// The step in the state.
        found: u64,
        /// The step in the folder's name.
        named: u64,
    },
    /// The state was written by another layout.
    #[error("{path} has layout version {found}, this build of tamis reads {format}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The version that this build reads.
        format: u32,
    },
    /// The weights have another shape than the checkpoint's.
    #[error("the weights in {path} have another shape than the model of this run")]
    Shape {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A learner in another process cannot use what a folder holds.
    #[error("the learner at {url} cannot use the files: {message}")]
    Elsewhere {
        /// Its address.
        url: String,
        /// Its message.
        message: String,
        /// File or folder, if the fault has one.
        path: Option<PathBuf>,
        /// Its hint.
        hint: Option<String>,
    },
}

/// The fix for a model of an architecture that the native engine does not support.
pub(crate) const OTHER_ARCHITECTURE: &str = "others learn in PyTorch (`learner.backend=torch`), and are sampled from there \
     (`rollout.backend=learner`) or at servers (`rollout.backend=vllm`)";

/// The fix for a checkpoint whose weights its learner keeps elsewhere.
pub(crate) const WEIGHTS_ELSEWHERE: &str = "continue the run with the learner that saved it (`--resume`, `learner.url`); \
    docs/learners.md shows how to fetch the weights";

impl SaveError {
    /// Whether the native engine does not support the model's architecture.
    pub fn is_other_architecture(&self) -> bool {
        matches!(self, Self::Weights(error) if is_other_architecture(error))
    }

    /// The fix, if more is known than the message contains.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Disk(error) => error.hint().map(str::to_owned),
            Self::Checksum(error) => error.hint().map(str::to_owned),
            Self::Format { .. } => {
                Some("continue the run with the version of tamis that started it".to_owned())
            }
            Self::Weights(CheckpointError::Elsewhere { .. }) => Some(WEIGHTS_ELSEWHERE.to_owned()),
            // It would not be read unless its checksum agreed, so this is what was saved.
            Self::Weights(CheckpointError::NotFinite { path, .. }) => {
                let before = path.ancestors().find_map(checkpoint_before);
                Some(match before {
                    Some(before) => format!(
                        "training had diverged when this was saved: move its folder elsewhere and resume \
                         from the checkpoint before it, {0}, or begin a \
                         new run from that one (`model.path={0}`) with a lower train.optimizer.learning_rate",
                        before.display()
                    ),
                    None => "training had diverged when this was saved: begin a new run with a lower \
                         train.optimizer.learning_rate"
                        .to_owned(),
                })
            }
            Self::State { path, .. } | Self::UnknownKey { path, .. } => Some(repair_hint(path)),
            Self::OtherStep { path, found, .. } => {
                let folder = path.parent().unwrap_or(path);
                let own = folder.with_file_name(format!("step_{found}"));
                let is_free = folder.exists() && !own.exists();
                Some(if is_free {
                    format!(
                        "if the folder was renamed, give it back its name: `mv {} {}`; otherwise put back the \
                         files that were saved in it",
                        folder.display(),
                        own.display()
                    )
                } else {
                    repair_hint(path)
                })
            }
            Self::Elsewhere { hint, path, .. } => hint.clone().or_else(|| path.as_deref().map(repair_hint)),
            error if error.is_other_architecture() => Some(OTHER_ARCHITECTURE.to_owned()),
            Self::Weights(
                CheckpointError::Config { folder: place, .. }
                | CheckpointError::NoWeights { folder: place }
                | CheckpointError::Format { path: place, .. }
                | CheckpointError::Index { path: place }
                | CheckpointError::Missing { path: place, .. }
                | CheckpointError::Metadata { path: place, .. }
                | CheckpointError::Dtype { path: place, .. }
                | CheckpointError::Shape { path: place, .. }
                | CheckpointError::Unexpected { path: place, .. },
            ) => Some(repair_hint(place)),
            Self::Shape { .. } | Self::Weights(_) => None,
        }
    }
}

/// Whether the native engine does not know the architecture of a folder.
pub(crate) fn is_other_architecture(error: &CheckpointError) -> bool {
    matches!(error, CheckpointError::Config { source: ConfigError::Architecture { .. }, .. })
}

/// The fix for a file of a checkpoint that cannot be read.
fn repair_hint(file: &Path) -> String {
    let folder = file.ancestors().find(|folder| step_of_checkpoint(folder).is_some());
    match folder.and_then(|folder| Some((folder, checkpoint_before(folder)?))) {
        Some((folder, before)) => format!(
            "the file was changed or damaged: restore a copy, or move {} elsewhere to continue from the checkpoint before it, {}",
            folder.display(),
            before.display()
        ),
        None => "the file was changed or damaged: restore a copy".to_owned(),
    }
}

/// Completes a checkpoint whose model files the learner wrote: adds tokenizer, state and checksums,
/// each flushed; the caller commits it.
pub fn write(
    disk: &Disk,
    folder: &Path,
    files: Vec<SavedFile>,
    tokenizer: &Tokenizer,
    state: &impl Serialize,
) -> Result<(), SaveError> {
    let mut out = SummedFolder::with(disk, folder, files);
    write_tokenizer(&mut out, tokenizer)?;
    let json = serde_json::to_vec_pretty(state)
        .map_err(|source| SaveError::State { path: folder.join(STATE), source })?;
    out.file(STATE, |file| file.write_all(&json))?;
    Ok(out.finish()?)
}

fn write_tokenizer(out: &mut SummedFolder<'_>, tokenizer: &Tokenizer) -> Result<(), DiskError> {
    for (name, bytes) in tokenizer.files() {
        if let Some((folder, _)) = name.rsplit_once('/') {
            out.folder(folder)?;
        }
        out.file(name, |file| file.write_all(bytes))?;
    }
    Ok(())
}

/// Writes a model in Hugging Face layout into a folder that is not there yet, whole or not at all: `write`
/// writes its files. With a tokenizer, other programs can load it and serve it.
pub fn write_folder<E: From<DiskError>>(
    disk: &Disk,
    folder: &Path,
    tokenizer: Option<&Tokenizer>,
    write: impl FnOnce(&Path) -> Result<Vec<SavedFile>, E>,
) -> Result<(), E> {
    let mut unfinished = folder.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    disk.remove_folder(&unfinished)?;
    disk.create_new_folder(&unfinished)?;
    let files = write(&unfinished)?;
    let mut out = SummedFolder::with(disk, &unfinished, files);
    if let Some(tokenizer) = tokenizer {
        write_tokenizer(&mut out, tokenizer)?;
    }
    out.finish()?;
    disk.sync_folder(&unfinished)?;
    Ok(disk.rename(&unfinished, folder)?)
}

/// Reads the state that a checkpoint holds beside weights and moments, in layout version `format`. Every key
/// must be one that it has, and its `step` the one that the checkpoint's folder is named after.
pub fn read_state<S: DeserializeOwned>(folder: &Path, format: u32) -> Result<S, SaveError> {
    let path = folder.join(STATE);
    let bytes = Disk::new().read_file(&path)?;
    let failed = |source| SaveError::State { path: path.clone(), source };
    let state: serde_json::Value = serde_json::from_slice(&bytes).map_err(failed)?;
    let found = state["format"].as_u64().unwrap_or(0) as u32;
    if found != format {
        return Err(SaveError::Format { path, found, format });
    }
    if let (Some(found), Some(named)) = (state["step"].as_u64(), step_of_checkpoint(folder))
        && found != named
    {
        return Err(SaveError::OtherStep { path, found, named });
    }
    let mut unknown = None;
    let mut note = |key: serde_ignored::Path<'_>| {
        unknown.get_or_insert_with(|| key.to_string());
    };
    // From the text, in which numbers have all their digits.
    let mut text = serde_json::Deserializer::from_slice(&bytes);
    let read = serde_ignored::deserialize(&mut text, &mut note).map_err(failed)?;
    match unknown {
        Some(key) => Err(SaveError::UnknownKey { path, key }),
        None => Ok(read),
    }
}

#[cfg(test)]
mod states {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::{STATE, SaveError, read_state};

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[serde(default)]
        seen: BTreeMap<String, f64>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "read, and not looked at")]
    struct Small {
        format: u32,
        step: u64,
        inner: Vec<Inner>,
    }

    #[test]
    fn a_state_of_another_step_or_with_other_keys_is_refused() {
        let run = tempfile::tempdir().expect("a folder");
        let folder = run.path().join("checkpoints/step_4");
        std::fs::create_dir_all(&folder).expect("made");
        let read = |text: &str| -> Result<Small, SaveError> {
            std::fs::write(folder.join(STATE), text).expect("written");
            read_state(&folder, 6)
        };
        let shown = |text: &str| {
            let error = read(text).expect_err("refused");
            let text = format!("{error}\n{}", error.hint().expect("a hint"));
            text.replace(&run.path().display().to_string(), "RUN")
        };
        let state = read(r#"{"format": 6, "step": 4, "inner": [{}, {"seen": {"any": 0.1}}]}"#).expect("read");
        assert_eq!(state.inner[1].seen["any"].to_bits(), 0.1_f64.to_bits());
        insta::assert_snapshot!(shown(r#"{"format": 6, "step": 9, "inner": []}"#), @r"
        RUN/checkpoints/step_4/state.json is the state after step 9, but its folder is that of step 4
        if the folder was renamed, give it back its name: `mv RUN/checkpoints/step_4 RUN/checkpoints/step_9`; otherwise put back the files that were saved in it
        ");
        insta::assert_snapshot!(shown(r#"{"format": 6, "step": 4, "inner": [{}, {"sene": 1}]}"#), @r"
        RUN/checkpoints/step_4/state.json has an unknown key `inner.1.sene`
        the file was changed or damaged: restore a copy
        ");
        std::fs::create_dir(run.path().join("checkpoints/step_9")).expect("made");
        let error = shown(r#"{"format": 6, "step": 9, "inner": []}"#);
        assert!(error.ends_with("the file was changed or damaged: restore a copy"), "{error}");
    }
}
