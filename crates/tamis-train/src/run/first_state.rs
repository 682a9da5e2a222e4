//! The first state of a run: its weights, the reference they are compared with, the first measurement.

use super::Run;
use super::divergence::check_finite;
use crate::assemble::objective::Divergence;
use crate::checkpoint;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::warm_start::{Example, WarmStartSettings, warm_start};
use crate::learner::{CopyTo, LoadContent, Network, SaveContent, Trained};
use crate::measure::validation::{self, OutcomeKind, ValidationSettings};
use crate::workers::Workers;
use crate::workers::servers::{RunSampler, publish_to};
use tamis_core::figure::counted;
use tamis_model::SaveDtype;
use tamis_rollout::CompletionWorkers;

/// Key of the learning rate to lower if a warm start diverges.
const RATE: &str = "warm_start.learning_rate";

impl Run {
    /// Weights, reference and first measurement. `examples` is set if the run begins.
    pub(super) fn first_state(&mut self, examples: Option<&[Example]>) -> Result<(), Halt<RunError>> {
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

    fn first_weights(&mut self, examples: &[Example]) -> Result<(), Halt<RunError>> {
        let config = &self.recipe.config.warm_start;
        if config.steps == 0 {
            return Ok(());
        }
        let settings = WarmStartSettings {
            steps: config.steps,
            batch_size: config.batch_size,
            learning_rate: config.learning_rate,
            warmup_steps: config.warmup_steps,
            target_accuracy: config.target_accuracy,
            test_freq: config.test_freq,
            seed: self.recipe.config.run.seed,
        };
        // Only its accuracy is used here.
        let validation = ValidationSettings { keeps_samples: false, ..self.measurement.settings.clone() };
        let (progress, prompts) = (&self.recorder.progress, &self.measurement.prompts);
        let Workers { learner, codec, version, published, sampler, plays, dispatcher, scorer, .. } =
            &mut self.workers;
        let mut measured = 0;
        let outcome = std::cell::Cell::new(OutcomeKind::default());
        let describe = |accuracy: Option<f64>| {
            accuracy
                .map_or_else(String::new, |_| format!(", {}", outcome.get().describe_mean(accuracy, None)))
        };
        let (interrupt, directory) = (self.interrupt.clone(), &self.recorder.directory);
        let report = warm_start(
            &mut **learner,
            examples,
            &settings,
            &interrupt,
            |learner| check_finite(learner, directory, 0, RATE),
            |learner| {
                measured += 1;
                if let (RunSampler::Native(generator), Some(folders)) = (&mut *sampler, &*published) {
                    let publication = folders.write(learner, codec, *version)?;
                    publish_to(&mut **generator, &publication, &interrupt)?;
                }
                let journal = format!("warm_start/{measured}");
                let with = CompletionWorkers {
                    generator: &mut plays.over(sampler.generator()),
                    inbox: dispatcher.inbox(),
                    scorer,
                    is_interrupted: &|| interrupt.is_requested(),
                };
                let found = validation::sample(with, prompts, &validation, journal, 0, &mut |_| {})?;
                outcome.set(found.report.outcome);
                Ok(found.report.accuracy)
            },
            |update, loss, accuracy| {
                progress.stage(&format!("warm start {update}/{}", settings.steps));
                if update % 50 == 0 && update < settings.steps {
                    progress.say(&format!(
                        "warm start: update {update} of {}, cross-entropy {loss:.3}{}",
                        settings.steps,
                        describe(accuracy)
                    ));
                }
            },
        );
        let report = report?;
        self.recorder.progress.say(&format!(
            "warm start: {} of {}, cross-entropy {:.3}{}",
            counted(report.num_updates, "update"),
            counted(settings.batch_size, "example"),
            report.loss,
            describe(report.accuracy)
        ));
        if measured > 0 && report.accuracy.is_none() {
            self.recorder.progress.warn(
                "warm start: no reward function answered any completion of its last measurement, so there is no accuracy to compare with \
                warm_start.target_accuracy",
            );
        }
        check_finite(&mut *self.workers.learner, &self.recorder.directory, 0, RATE)?;
        // Reinforcement learning begins with its own moments.
        self.workers.learner.reset_optimizer(Trained::Policy)?;
        Ok(())
    }

    fn keep_reference(&mut self, is_beginning: bool) -> Result<(), RunError> {
        // A reference with a path was loaded before the warm start.
        if self.recipe.divergence == Divergence::None || self.recipe.config.model.reference.is_some() {
            return Ok(());
        }
        // The policy without its adapter does not change.
        if self.recipe.reference() == Network::Base {
            return Ok(());
        }
        let kept = self.recorder.directory.path().join("reference");
        let Workers { learner, .. } = &mut self.workers;
        if kept.is_dir() {
            // It is a part of the run, like the checkpoints.
            checkpoint::verify(&kept, checkpoint::Coverage::ForUse).map_err(checkpoint::SaveError::from)?;
            learner.load(&kept, LoadContent::Reference)?;
        } else if is_beginning {
            checkpoint::write_folder::<RunError>(self.recorder.directory.disk(), &kept, None, |folder| {
                Ok(learner.save(folder, SaveContent::Weights { untied: false, dtype: SaveDtype::F32 })?.files)
            })?;
            learner.copy_policy(CopyTo::Reference)?;
        } else {
            // The policy has moved since the reference was taken.
            return Err(RunError::ReferenceGone { path: kept });
        }
        Ok(())
    }
}
