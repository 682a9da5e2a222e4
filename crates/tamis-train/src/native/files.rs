//! Files of the engine: weights, and what a checkpoint holds of a learner.

use std::path::Path;

use tamis_model::{AdamW, CheckpointError, Model, SaveDtype, TransformerConfig};

use super::{Learning, NativeEngine};
use crate::checkpoint::{self, CRITIC, MASTER, OPTIMIZER, SaveError, SummedFolder};
use crate::learner::{LearnerError, LoadContent, Overflow, SaveContent, Saved};
use tamis_run::durable::{Disk, DiskError};

/// Writes a model into a folder of one that is being written; without a name, into that itself.
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

/// Writes a model's weights in f32 into a folder that is not there yet, whole or not at all.
pub(crate) fn write_folder(disk: &Disk, folder: &Path, model: &Model) -> Result<(), DiskError> {
    checkpoint::write_folder(disk, folder, None, |unfinished| {
        let mut out = SummedFolder::new(disk, unfinished);
        write_model(&mut out, "", model, SaveDtype::F32)?;
        Ok(out.into_files())
    })
}

/// Reads the weights of a checkpoint as a resume needs them: in full precision.
pub fn read_model(folder: &Path) -> Result<Model, SaveError> {
    let master = folder.join(MASTER);
    Ok(Model::load(if master.is_dir() { &master } else { folder })?)
}

pub(crate) fn critic_shape(folder: &Path) -> Result<TransformerConfig, SaveError> {
    let folder = folder.join(CRITIC);
    Ok(TransformerConfig::load_any(&folder).map_err(|source| CheckpointError::Config { folder, source })?)
}

/// The format that a model is written in: f32 where the one that is asked for has no room for its weights,
/// with the first tensor of these.
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
                // Nothing is changed where something is missing.
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

    /// The moments of a checkpoint whose weights are there already, and its critic where the run has one.
    /// Nothing is changed where something is missing.
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
