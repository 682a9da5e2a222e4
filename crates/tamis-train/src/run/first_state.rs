//! The first state of a run: its weights, the reference they are compared with, the first measurement.

use super::Run;
use super::divergence::check_finite;
use super::sft_figures::{SftFigures, last_line, line};
use crate::assemble::objective::Divergence;
use crate::assemble::sft::sft_settings;
use crate::checkpoint;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::sft::{SftExamples, SftHooks, SftUpdate, sft};
use crate::learner::{CopyTo, LoadContent, Network, RunLearner, SaveContent, Trained};
use crate::measure::validation::{self, OutcomeKind, ValidationSettings};
use crate::workers::Workers;
use crate::workers::servers::{RunSampler, publish_to};
use tamis_model::SaveDtype;
use tamis_rollout::CompletionWorkers;

/// Key of the learning rate to lower if supervised fine-tuning diverges.
pub(super) const RATE: &str = "sft.learning_rate";

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

    fn first_weights(&mut self, examples: &SftExamples) -> Result<(), Halt<RunError>> {
        let config = &self.recipe.config;
        if !config.sft.is_on() {
            return Ok(());
        }
        let settings = sft_settings(config, self.workers.learner.info(), examples.train.len())?;
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
        let mut figures = SftFigures::open(directory)?;
        let mut measure = |learner: &mut dyn RunLearner| -> Result<Option<f64>, Halt<RunError>> {
            measured += 1;
            if let (RunSampler::Native(generator), Some(folders)) = (&mut *sampler, &*published) {
                let publication = folders.write(learner, codec, *version)?;
                publish_to(&mut **generator, &publication, &interrupt)?;
            }
            let journal = format!("sft/{measured}");
            let with = CompletionWorkers {
                generator: &mut plays.over(sampler.generator()),
                inbox: dispatcher.inbox(),
                scorer,
                is_interrupted: &|| interrupt.is_requested(),
            };
            let found = validation::sample(with, prompts, &validation, journal, 0, &mut |_| {})?;
            outcome.set(found.report.outcome);
            Ok(found.report.accuracy)
        };
        let num_updates = settings.num_updates;
        let mut after = |_: &mut dyn RunLearner, update: &SftUpdate| -> Result<(), Halt<RunError>> {
            progress.stage(&format!("sft {}/{num_updates}", update.number));
            figures.write(update)?;
            let is_said = update.validation_loss.is_some() || update.number.is_multiple_of(50);
            if is_said && update.number < num_updates {
                progress.say(&line(update, num_updates, &describe(update.accuracy)));
            }
            Ok(())
        };
        let hooks = SftHooks {
            check: &|learner| check_finite(learner, directory, 0, RATE),
            begun: &mut |loss| {
                if let Some(loss) = loss {
                    progress.say(&format!("sft: validation loss {loss:.3} before the first update"));
                }
            },
            measure: &mut measure,
            after: &mut after,
        };
        let report = sft(&mut **learner, examples, &settings, &interrupt, hooks)?;
        progress.say(&last_line(&report, &settings, &describe(report.accuracy)));
        if measured > 0 && report.accuracy.is_none() {
            progress.warn(
                "sft: no reward function answered any completion of its last measurement, so there is no accuracy \
                 to compare with sft.target_accuracy",
            );
        }
        check_finite(&mut *self.workers.learner, &self.recorder.directory, 0, RATE)?;
        // Reinforcement learning begins with its own moments.
        self.workers.learner.reset_optimizer(Trained::Policy)?;
        // These passes belong to no step.
        self.workers.learner.take_work();
        self.workers.learner.take_rank_balance();
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
