//! Supervised fine-tuning before reinforcement learning, with checkpoints of its own.
//!
//! `sft/step_N` in the run directory holds the state after update N. It is written at a multiple of
//! `checkpoint.save_freq` updates, but not more often than [`Pace`] allows, and on Ctrl-C. A resume without a
//! checkpoint of reinforcement learning continues after it and makes the same updates as if the run had never
//! stopped. The first checkpoint of reinforcement learning takes its place.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use tamis_config::Config;
use tamis_rollout::CompletionWorkers;
use tamis_run::directory::RunDirectory;
use tamis_run::log::progress::Console;

use super::Run;
use super::divergence::check_finite;
use super::recorder::overflow_error;
use super::sft_figures::{SftFigures, last_line, line};
use super::sft_state::SftState;
use crate::assemble::sft::sft_settings;
use crate::checkpoint::{self, Coverage, SaveError, read_state};
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::sft::{SftExamples, SftHooks, SftUpdate, sft};
use crate::learner::{CopyTo, LoadContent, RunLearner, SaveContent, Saved, Trained};
use crate::measure::validation::{self, OutcomeKind, ValidationSettings};
use crate::prompts::codec::Codec;
use crate::workers::Workers;
use crate::workers::servers::{RunSampler, publish_to};

/// Key of the learning rate to lower if supervised fine-tuning diverges.
pub(super) const RATE: &str = "sft.learning_rate";

/// When another checkpoint may be written. Updates are much faster than steps of reinforcement learning, for
/// which `checkpoint.save_freq` is chosen.
struct Pace {
    since: Instant,
    pause: Duration,
}

impl Pace {
    /// Shortest time between two checkpoints.
    const SHORTEST: Duration = Duration::from_secs(60);
    /// A pause is at least so many times as long as writing the last checkpoint took.
    const TIMES: u32 = 10;

    fn new() -> Self {
        Self { since: Instant::now(), pause: Self::SHORTEST }
    }

    fn is_due(&self) -> bool {
        self.since.elapsed() >= self.pause
    }

    /// Begins the pause after a checkpoint.
    fn note(&mut self, took: Duration) {
        *self = Self { since: Instant::now(), pause: Self::SHORTEST.max(took.saturating_mul(Self::TIMES)) };
    }
}

/// Writes the checkpoints.
struct Saver<'r> {
    config: &'r Config,
    directory: &'r RunDirectory,
    codec: &'r Codec,
    progress: &'r Console,
    state: SftState,
    /// Whether the last checkpoint holds this state.
    is_saved: bool,
    pace: Pace,
}

impl Saver<'_> {
    /// Writes a checkpoint, which takes the place of the one before.
    fn save(&mut self, learner: &mut dyn RunLearner) -> Result<(), RunError> {
        let (directory, dtype, began) = (self.directory, self.config.model.save_dtype, Instant::now());
        directory.check_present()?;
        check_finite(learner, directory, 0, RATE)?;
        let pending = directory.begin_sft_checkpoint(self.state.step)?;
        let Saved { files, overflow } = learner.save(pending.path(), SaveContent::Checkpoint { dtype })?;
        checkpoint::write(directory.disk(), pending.path(), files, self.codec.tokenizer(), &self.state)?;
        let folder = pending.commit()?;
        directory.prune_sft(true)?;
        self.progress.detail(&format!("checkpoint {}", folder.path.display()));
        self.is_saved = true;
        self.pace.note(began.elapsed());
        match overflow {
            None => Ok(()),
            Some(overflow) => Err(overflow_error(&overflow, dtype, &folder.path, directory.path())),
        }
    }

    /// Continues after the last checkpoint, if there is one.
    fn restore(
        &mut self,
        learner: &mut dyn RunLearner,
        examples: &SftExamples,
        interrupt: &Interrupt,
    ) -> Result<(), Halt<RunError>> {
        let last = self.directory.last_sft_checkpoint().map_err(RunError::from)?;
        let Some(folder) = last.map(|last| last.path) else { return Ok(()) };
        let path = folder.clone();
        interrupt
            .or_abandon(move || checkpoint::verify(&path, Coverage::Whole))?
            .map_err(|error| RunError::from(SaveError::from(error)))?;
        let state: SftState = read_state(&folder, SftState::FORMAT).map_err(RunError::from)?;
        state.check_examples(examples, self.directory.path())?;
        learner.load(&folder, LoadContent::Checkpoint).map_err(RunError::from)?;
        (self.state, self.is_saved) = (state, true);
        Ok(())
    }
}

impl Run {
    /// Supervised fine-tuning before reinforcement learning, if there is any.
    pub(super) fn first_weights(&mut self, examples: &SftExamples) -> Result<(), Halt<RunError>> {
        let config = &self.recipe.config;
        if !config.sft.is_on() {
            return Ok(());
        }
        let settings = sft_settings(config, self.workers.learner.info(), examples.train.len())?;
        // A checkpoint needs the critic that the learner was opened for. It is made again after the updates.
        let makes_critic = self.recipe.critic.is_some() && config.critic.model.path.is_none();
        if makes_critic && self.workers.learner.info().critic.is_none() {
            self.workers.learner.copy_policy(CopyTo::Critic).map_err(RunError::from)?;
        }
        // Only its accuracy is used here.
        let validation = ValidationSettings { keeps_samples: false, ..self.measurement.settings.clone() };
        let (progress, prompts) = (&self.recorder.progress, &self.measurement.prompts);
        let Workers { learner, codec, version, published, sampler, plays, dispatcher, scorer, .. } =
            &mut self.workers;
        let codec = &*codec;
        let (interrupt, directory) = (self.interrupt.clone(), &self.recorder.directory);
        let mut saver = Saver {
            config,
            directory,
            codec,
            progress,
            state: SftState::new(examples),
            is_saved: false,
            pace: Pace::new(),
        };
        saver.restore(&mut **learner, examples, &interrupt)?;
        let settings = saver.state.continued(settings);
        // Updates whose accuracy has been measured come before this one.
        let logged = settings.num_done - usize::from(settings.unmeasured.is_some());
        let num_measured = logged / settings.test_freq;
        let (mut figures, is_done) = (SftFigures::open(directory, logged)?, saver.state.is_done);
        let saver = RefCell::new(saver);
        let mut measured = num_measured;
        let outcome = Cell::new(OutcomeKind::default());
        let describe = |accuracy: Option<f64>| {
            accuracy
                .map_or_else(String::new, |_| format!(", {}", outcome.get().describe_mean(accuracy, None)))
        };
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
        let mut after = |learner: &mut dyn RunLearner, update: &SftUpdate| -> Result<(), Halt<RunError>> {
            progress.stage(&format!("sft {}/{num_updates}", update.number));
            figures.write(update)?;
            let is_said = update.validation_loss.is_some() || update.number.is_multiple_of(50);
            if is_said && update.number < num_updates {
                progress.say(&line(update, num_updates, &describe(update.accuracy)));
            }
            let mut saver = saver.borrow_mut();
            saver.state.measure(update);
            saver.is_saved = false;
            let is_reached = settings.reaches_target(update.accuracy);
            saver.state.is_done = is_reached || update.number == num_updates;
            let save_freq = config.checkpoint.save_freq;
            let is_wanted = save_freq.is_due(update.number as u64)
                || saver.state.is_done && save_freq != tamis_config::Frequency::NEVER;
            if is_wanted && saver.pace.is_due() {
                saver.save(learner)?;
            }
            Ok(())
        };
        let hooks = SftHooks {
            check: &|learner| check_finite(learner, directory, 0, RATE),
            begun: &mut |loss| {
                saver.borrow_mut().state.begin(loss);
                if let Some(loss) = loss {
                    progress.say(&format!("sft: validation loss {loss:.3} before the first update"));
                }
            },
            made: &mut |update| {
                let mut saver = saver.borrow_mut();
                saver.state.make(update);
                saver.is_saved = false;
            },
            measure: &mut measure,
            after: &mut after,
        };
        let ended = if is_done {
            Ok(())
        } else {
            sft(&mut **learner, examples, &settings, &interrupt, hooks).map(|_| ())
        };
        let mut saver = saver.into_inner();
        if let Err(Halt::Interrupted) = ended
            && saver.state.step > 0
            && !saver.is_saved
        {
            saver.save(&mut **learner)?;
        }
        ended?;
        let report = saver.state.report();
        let is_new = measured > num_measured;
        progress.say(&last_line(&report, &settings, &describe(report.accuracy.filter(|_| is_new))));
        if is_new && report.accuracy.is_none() {
            progress.warn(
                "sft: no reward function answered any completion of its last measurement, so there is no accuracy \
                 to compare with sft.target_accuracy",
            );
        }
        check_finite(&mut *self.workers.learner, &self.recorder.directory, 0, RATE)?;
        // Reinforcement learning begins with its own moments.
        self.workers.learner.reset_optimizer(Trained::Policy)?;
        if makes_critic {
            self.workers.learner.copy_policy(CopyTo::Critic).map_err(RunError::from)?;
        }
        // These passes belong to no step.
        self.workers.learner.take_work();
        self.workers.learner.take_rank_balance();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_takes_at_most_a_tenth_of_the_time() {
        let mut pace = Pace::new();
        assert!(!pace.is_due());
        pace.note(Duration::from_secs(1));
        assert_eq!(pace.pause, Duration::from_secs(60));
        pace.note(Duration::from_secs(90));
        assert_eq!(pace.pause, Duration::from_secs(900));
        pace.pause = Duration::ZERO;
        assert!(pace.is_due());
    }
}
