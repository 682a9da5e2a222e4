//! Reads and writes the engine's files: weights, and a learner's part of a checkpoint.

use std::path::Path;

use tamis_model::{AdamW, CheckpointError, Model, SaveDtype, TransformerConfig};

use super::{Learning, NativeEngine};
use crate::checkpoint::{self, CRITIC, MASTER, OPTIMIZER, SaveError, SummedFolder};
use crate::learner::{LearnerError, LoadContent, Overflow, SaveContent, Saved};
use tamis_run::durable::{Disk, DiskError};

/// Writes a model into a subfolder of a folder that is being written. Without a name, into the folder itself.
pub(crate) fn write_model(
    out: &mut SummedFolder<'_>,
    folder: &str,
    model: &Model,
    dtype: SaveDtype,
) -> Result<(), DiskError> {
    model.save_through(dtype, u64::MAX, |name, fill| {
        let name = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        out.file(&name, |file| fill(file))
    })
}

/// Writes a model's weights in f32 into a new folder, completely or not at all.
pub(crate) fn write_folder(disk: &Disk, folder: &Path, model: &Model) -> Result<(), DiskError> {
    checkpoint::write_folder(disk, folder, None, |unfinished| {
        let mut out = SummedFolder::new(disk, unfinished);
        write_model(&mut out, "", model, SaveDtype::F32)?;
        Ok(out.into_files())
    })
}

/// Reads the weights of a checkpoint for a resume: in full precision.
pub fn read_model(folder: &Path) -> Result<Model, SaveError> {
    let master = folder.join(MASTER);
    Ok(Model::load(if master.is_dir() { &master } else { folder })?)
}

pub(crate) fn critic_shape(folder: &Path) -> Result<TransformerConfig, SaveError> {
    let folder = folder.join(CRITIC);
    Ok(TransformerConfig::load_any(&folder).map_err(|source| CheckpointError::Config { folder, source })?)
}

/// The format for writing a model. If the weights overflow the requested one, this is f32, and the first
/// tensor that overflows is returned.
fn fitting(model: &Model, dtype: SaveDtype) -> (SaveDtype, Option<Overflow>) {
    match model.overflow(dtype) {
        None => (dtype, None),
        Some((tensor, largest)) => (SaveDtype::F32, Some(Overflow { tensor: tensor.to_owned(), largest })),
    }
}

impl NativeEngine {
    pub(super) fn save_files(&self, folder: &Path, content: SaveContent) -> Result<Saved, LearnerError> {
        match content {
            SaveContent::Weights { untied, dtype } => Ok(self.save_weights(folder, untied, dtype)?),
            SaveContent::Adapter => Err(LearnerError::NoAdapter),
            SaveContent::Handles { .. } | SaveContent::Transfer { .. } => Err(LearnerError::NoGpu),
            SaveContent::Checkpoint { dtype } => Ok(self.save_checkpoint(folder, dtype)?),
        }
    }

    fn save_weights(&self, folder: &Path, untied: bool, dtype: SaveDtype) -> Result<Saved, SaveError> {
        let mut out = SummedFolder::new(&self.disk, folder);
        let model = &self.policy.model;
        let (dtype, overflow) = fitting(model, dtype);
        let untied = untied.then(|| model.to_untied());
        write_model(&mut out, "", untied.as_ref().unwrap_or(model), dtype)?;
        Ok(Saved { files: out.into_files(), overflow })
    }

    fn save_checkpoint(&self, folder: &Path, dtype: SaveDtype) -> Result<Saved, SaveError> {
        let mut out = SummedFolder::new(&self.disk, folder);
        let model = &self.policy.model;
        let (dtype, overflow) = fitting(model, dtype);
        write_model(&mut out, "", model, dtype)?;
        if dtype != SaveDtype::F32 {
            out.folder(MASTER)?;
            write_model(&mut out, MASTER, model, SaveDtype::F32)?;
        }
        out.file(OPTIMIZER, |file| self.policy.optimizer.write(file))?;
        if let Some(critic) = &self.critic {
            out.folder(CRITIC)?;
            write_model(&mut out, CRITIC, &critic.model, SaveDtype::F32)?;
            out.file(&format!("{CRITIC}/{OPTIMIZER}"), |file| critic.optimizer.write(file))?;
        }
        Ok(Saved { files: out.into_files(), overflow })
    }

    pub(super) fn load_files(&mut self, folder: &Path, content: LoadContent) -> Result<(), SaveError> {
        match content {
            LoadContent::Reference => self.reference = Some(read_model(folder)?),
            LoadContent::Checkpoint => {
                // If a file is missing, nothing is changed.
                let mut policy = self.learning(read_model(folder)?);
                policy.optimizer.load(&folder.join(OPTIMIZER))?;
                let critic = self.read_critic(folder)?;
                self.begin_policy(policy);
                if critic.is_some() {
                    self.critic = critic;
                }
                self.note_sizes();
            }
        }
        Ok(())
    }

    /// Loads the optimizer of a checkpoint whose weights are already loaded, and the critic if the run has
    /// one. If a file is missing, nothing is changed.
    pub(super) fn load_moments(&mut self, folder: &Path) -> Result<(), SaveError> {
        let mut optimizer = AdamW::new(&self.policy.model, self.settings.optimizer);
        optimizer.load(&folder.join(OPTIMIZER))?;
        let critic = self.read_critic(folder)?;
        self.policy.optimizer = optimizer;
        if critic.is_some() {
            self.critic = critic;
        }
        self.note_sizes();
        Ok(())
    }

    fn read_critic(&self, folder: &Path) -> Result<Option<Learning>, SaveError> {
        if self.settings.critic.is_none() {
            return Ok(None);
        }
        let folder = folder.join(CRITIC);
        let mut critic = self.begin_critic(Model::load_critic(&folder)?);
        if let Some(critic) = &mut critic {
            critic.optimizer.load(&folder.join(OPTIMIZER))?;
        }
        Ok(critic)
    }
}
