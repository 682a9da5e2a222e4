//! The first state of a run: its weights, the reference they are compared with, the first measurement.

use super::Run;
use crate::assemble::objective::Divergence;
use crate::checkpoint;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::sft::SftExamples;
use crate::learner::{CopyTo, LoadContent, Network, SaveContent};
use crate::workers::Workers;
use tamis_model::SaveDtype;

impl Run {
    /// Weights, reference and first measurement. `examples` is set if the run begins.
    pub(super) fn first_state(&mut self, examples: Option<&SftExamples>) -> Result<(), Halt<RunError>> {
        if let Some(examples) = examples {
            self.first_weights(examples)?;
        }
        self.keep_reference(examples.is_some())?;
        self.keep_critic()?;
        self.workers.hand_over()?;
        if examples.is_some() {
            self.first_measurement()?;
        }
        Ok(())
    }

    fn keep_reference(&mut self, is_beginning: bool) -> Result<(), RunError> {
        // A reference with a path was loaded before supervised fine-tuning.
        if self.recipe.divergence == Divergence::None || self.recipe.config.model.reference.is_some() {
            return Ok(());
        }
        // The policy without its adapter does not change.
        if self.recipe.reference() == Network::Base {
            return Ok(());
        }
        let kept = self.recorder.directory.path().join("reference");
        let Workers { learner, .. } = &mut self.workers;
        if is_beginning {
            // One from a start that was not saved may be of other rows.
            self.recorder.directory.disk().remove_folder(&kept)?;
            checkpoint::write_folder::<RunError>(self.recorder.directory.disk(), &kept, None, |folder| {
                Ok(learner.save(folder, SaveContent::Weights { untied: false, dtype: SaveDtype::F32 })?.files)
            })?;
            learner.copy_policy(CopyTo::Reference)?;
        } else if kept.is_dir() {
            // It is a part of the run, like the checkpoints.
            checkpoint::verify(&kept, checkpoint::Coverage::ForUse).map_err(checkpoint::SaveError::from)?;
            learner.load(&kept, LoadContent::Reference)?;
        } else {
            // The policy has moved since the reference was taken.
            return Err(RunError::ReferenceGone { path: kept });
        }
        Ok(())
    }
}
