//! Supervised fine-tuning as a whole run (`train.total_steps: 0`): no prompts, rewards or samples.
//!
//! Its steps are its updates: `metrics.jsonl` has a row for each, and `checkpoints/step_N` is the state after
//! update N. A resume goes on after the last checkpoint, and makes the same updates as if the run had never
//! stopped, because the rows of an update follow from its number.

use std::path::PathBuf;

use tamis_config::{BackendKind, Config, CriticConfig, ObjectiveConfig};
use tamis_core::schedule::RunEnd;
use tamis_run::directory::{Keep, RUN_LOG, RunDirectory};
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;
use tamis_run::log::run_log::{LineKind, RunLog};
use tamis_run::log::{Loggers, RunEnding};

use super::divergence::check_finite;
use super::ending::unsaved;
use super::look::{STARTED, new_directory, opening_line, settle_differences};
use super::recorder::overflow_error;
use super::recovery::Standing;
use super::sft_figures::{last_line, line, metrics};
use super::sft_phase::RATE;
use super::sft_state::SftState;
use super::start::{ConfigText, RunStart};
use super::{Ending, RunSummary, TrainEnd, not_begun, not_resumed};
use crate::assemble::memory::{Held, estimate_sft, fit};
use crate::assemble::objective::Divergence;
use crate::assemble::sft::{self, OwnExamples, sft_settings};
use crate::assemble::startup::Startup;
use crate::assemble::{learner, loggers, policy};
use crate::checkpoint::{self, Coverage, SaveError, read_state};
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::sft::{SftExamples, SftHooks, SftUpdate};
use crate::learner::{RunLearner, SaveContent, Saved};
use crate::prompts::codec::Codec;

/// The run's configuration for a learner from which nothing is sampled, at temperature 1.
fn of_learner(config: &Config) -> Config {
    let mut own = config.clone();
    own.rollout.temperature = 1.0;
    own.rollout.backend = if config.learns_elsewhere() { BackendKind::Vllm } else { BackendKind::Native };
    // Lengths of prompts and completions, of which there are none.
    (own.data.max_prompt_length, own.rollout.max_response_length) = (1, 1);
    (own.environment, own.more_environments) = (None, Vec::new());
    (own.objective, own.critic) = (ObjectiveConfig::default(), CriticConfig::default());
    own.model.reference = None;
    own
}

/// All that is read before there is a folder.
struct Prepared {
    saved: Option<(SftState, PathBuf)>,
    codec: Codec,
    made: OwnExamples,
    /// The line about the memory that the native engine needs.
    memory: Option<String>,
}

/// Trains until the end or an interruption.
pub(super) fn train(
    disk: &Disk,
    begin: RunStart,
    progress: impl FnOnce(Option<u64>, u64) -> Console,
    interrupt: &Interrupt,
    standing: &mut Standing,
) -> Result<TrainEnd, RunError> {
    let (given, existing) = settle_differences(begin)?;
    let is_new = existing.is_none();
    let unbegun = || if is_new { not_begun() } else { not_resumed() };
    let prepared = match prepare(&given.config, existing.as_ref(), interrupt) {
        Ok(prepared) => prepared,
        Err(Halt::Interrupted) => return Ok(TrainEnd::Interrupted(unbegun())),
        Err(Halt::Failed(error)) => return Err(error),
    };
    let directory = match existing {
        Some(directory) => directory,
        None => new_directory(disk, &given)?,
    };
    let path = directory.path().to_owned();
    standing.run = Some(path.clone());
    let num_updates = given.config.sft.num_updates(prepared.made.examples.train.len()) as u64;
    let at = prepared.saved.as_ref().map_or(0, |(state, _)| state.step);
    let ui = progress(Some(num_updates), at);
    let opened = SftRun::open(&given, prepared, directory, is_new, &ui, interrupt, standing);
    let mut run = match opened {
        Ok(run) => run,
        Err(halt) => {
            if is_new {
                standing.end_started();
                if disk.remove_folder(&path).is_ok() {
                    let folder = path.display();
                    ui.say(&format!("nothing was trained: the run directory {folder} is removed again"));
                }
            }
            return match halt {
                Halt::Interrupted => Ok(TrainEnd::Interrupted(unbegun())),
                Halt::Failed(error) => Err(error),
            };
        }
    };
    if !is_new {
        for path in [run.directory.config(), run.directory.config_in_force()] {
            disk.write_file(&path, given.text.as_bytes())?;
        }
    }
    let ended = run.run(interrupt);
    let how = match &ended {
        Ok(Some(Ending::Finished(_) | Ending::StoppedEarly(_))) => RunEnding::Finished,
        Ok(Some(Ending::Interrupted) | None) => RunEnding::Interrupted,
        Err(_) => RunEnding::Failed,
    };
    run.loggers.close(how);
    ui.finish();
    match ended {
        Ok(Some(ending)) => {
            ui.note(LineKind::Info, how.last_line());
            Ok(TrainEnd::Ended(Box::new(run.summary(ending))))
        }
        Ok(None) => Ok(TrainEnd::Interrupted(unsaved(&given.config, &path))),
        Err(error) => {
            let causes = tamis_core::fault::causes(&error).join("\n  caused by: ");
            ui.note(LineKind::Error, &format!("the run ends with an error: {causes}"));
            Err(error)
        }
    }
}

/// Reads the last checkpoint, the tokenizer and the rows.
fn prepare(
    config: &Config,
    existing: Option<&RunDirectory>,
    interrupt: &Interrupt,
) -> Result<Prepared, Halt<RunError>> {
    let last = match existing {
        Some(directory) => directory.list_checkpoints().map_err(RunError::from)?.pop(),
        None => None,
    };
    if let (Some(directory), None) = (existing, &last)
        && directory.had_checkpoint()
    {
        let (run, last_step) = (directory.path().to_owned(), directory.last_logged_step());
        return Err(RunError::CheckpointsGone { run, last_step }.into());
    }
    let saved = match last {
        Some(folder) => {
            let path = folder.path.clone();
            interrupt
                .or_abandon(move || checkpoint::verify(&path, Coverage::Whole))?
                .map_err(|error| RunError::from(SaveError::from(error)))?;
            let state: SftState = read_state(&folder.path, SftState::FORMAT).map_err(RunError::from)?;
            Some((state, folder.path))
        }
        None => None,
    };
    let started = existing.and_then(|directory| {
        tamis_file::read_text(&directory.path().join(STARTED), 64).ok()?.trim().parse::<i64>().ok()
    });
    let (own, folder) = (config.clone(), saved.as_ref().map(|(_, folder)| folder.clone()));
    let (codec, mut made) = interrupt.or_abandon(move || -> Result<_, RunError> {
        let rows = sft::read(&own)?;
        let codec = match &folder {
            Some(folder) => policy::codec_of(&own, folder)?,
            None => policy::codec(&own, || rows.alphabet())?,
        };
        // Templates that show the date show that of the first start.
        let codec = codec.with_now(started.unwrap_or(0));
        let mut made = sft::examples(&own, &codec, rows)?;
        made.warnings.extend(codec.peer_warning());
        Ok((codec, made))
    })??;
    if let (Some((state, _)), Some(directory)) = (&saved, existing) {
        state.check_examples(&made.examples, directory.path())?;
    }
    let from = saved.as_ref().map(|(_, folder)| folder.as_path());
    let memory =
        if config.learns_elsewhere() { None } else { Some(check_memory(config, &codec, &mut made, from)?) };
    Ok(Prepared { saved, codec, made, memory })
}

/// Refuses what cannot fit into the memory. Returns the line about it; a warning goes to the others.
fn check_memory(
    config: &Config,
    codec: &Codec,
    made: &mut OwnExamples,
    from: Option<&std::path::Path>,
) -> Result<String, RunError> {
    let own = of_learner(config);
    let shape = policy::shape(&own, codec, from)?;
    let (estimate, bytes) = estimate_sft(&own, &shape, &made.examples);
    let held = Held {
        what: "the rows",
        bytes,
        too_long: "an update has its longest rows",
        keys: "sft.max_length, sft.batch_size".to_owned(),
    };
    let (line, warning) = fit(&own, estimate, &held, tamis_model::available_memory())?;
    made.warnings.extend(warning);
    Ok(line)
}

/// Reads everything that such a run reads before it has a learner, for `tamis config check`.
pub(super) fn rehearse(config: &Config, ui: &Console, interrupt: &Interrupt) -> Result<(), Halt<RunError>> {
    let Prepared { made, memory, .. } = prepare(config, None, interrupt)?;
    made.notes.iter().chain(&memory).for_each(|note| ui.say(note));
    made.warnings.iter().for_each(|warning| ui.warn(warning));
    Ok(())
}

struct SftRun {
    config: Config,
    directory: RunDirectory,
    learner: Box<dyn RunLearner>,
    codec: Codec,
    examples: SftExamples,
    loggers: Loggers,
    ui: Console,
    state: SftState,
    /// The last update of which there is a checkpoint.
    saved: Option<u64>,
}

impl SftRun {
    fn open(
        given: &ConfigText,
        prepared: Prepared,
        directory: RunDirectory,
        is_new: bool,
        ui: &Console,
        interrupt: &Interrupt,
        standing: &Standing,
    ) -> Result<Self, Halt<RunError>> {
        let Prepared { saved, codec, made, memory } = prepared;
        let config = &given.config;
        let mut state =
            saved.as_ref().map_or_else(|| SftState::new(&made.examples), |(state, _)| state.clone());
        let logged = directory.last_logged_step();
        let mut warnings = Vec::new();
        if !is_new {
            let cut = directory.cut_back(&state.logs, state.step).map_err(RunError::from)?;
            (state.logs, warnings) = (cut.positions, cut.warnings);
        }
        ui.copy_to(RunLog::open(directory.disk(), &directory.run_log()).map_err(RunError::from)?);
        if let Some(headline) = &given.headline {
            ui.say(headline);
        }
        let step = saved.as_ref().map(|(state, _)| state.step);
        ui.say(&opening_line(directory.path(), step, is_new, logged));
        given.details.iter().for_each(|detail| ui.detail(detail));
        given.notes.iter().chain(&made.notes).chain(&memory).for_each(|note| ui.say(note));
        warnings.iter().chain(&made.warnings).for_each(|warning| ui.warn(warning));
        let own = of_learner(config);
        let startup = Startup {
            config: &own,
            codec: &codec,
            launcher: &*standing.launcher,
            disk: directory.disk(),
            folder: directory.path(),
            interrupt,
            ui,
        };
        let folder = saved.as_ref().map(|(_, folder)| folder.as_path());
        let learner = learner::learner(startup, folder, Divergence::None)?;
        let info = learner.info();
        ui.say(&format!("model: {} parameters, {}", info.policy.num_parameters, info.device));
        let last_row = state.logs.last_row.clone();
        let next = state.step + u64::from(state.unmeasured.is_none());
        let others = standing.outside.loggers;
        let loggers = loggers::open(config, &directory, next, last_row.as_deref(), ui, others)
            .map_err(RunError::from)?;
        Ok(Self {
            config: config.clone(),
            directory,
            learner,
            codec,
            examples: made.examples,
            loggers,
            ui: ui.clone(),
            state,
            saved: step,
        })
    }

    /// Makes the updates. `None` if it was interrupted before there was anything to save.
    fn run(&mut self, interrupt: &Interrupt) -> Result<Option<Ending>, RunError> {
        let settings = sft_settings(&self.config, self.learner.info(), self.examples.train.len())?;
        let settings = self.state.continued(settings);
        let Self { config, directory, learner, codec, examples, loggers, ui, state, saved, .. } = self;
        let mut recorder = Recorder { config, directory, codec, loggers, ui, state, saved };
        ui.steps_begin();
        let num_updates = settings.num_updates;
        let recording = std::cell::RefCell::new(&mut recorder);
        let mut begun = |loss: Option<f64>| {
            let mut recorder = recording.borrow_mut();
            recorder.state.begin(loss);
            if let Some(loss) = loss {
                recorder.ui.say(&format!("sft: validation loss {loss:.3} before the first update"));
            }
        };
        let mut after = |learner: &mut dyn RunLearner, update: &SftUpdate| -> Result<(), Halt<RunError>> {
            recording.borrow_mut().record(learner, update, num_updates).map_err(Halt::Failed)
        };
        let hooks = SftHooks::<RunError> {
            check: &|learner| check_finite(learner, directory, 0, RATE),
            begun: &mut begun,
            made: &mut |update| recording.borrow_mut().state.make(update),
            measure: &mut |_| Ok(None),
            after: &mut after,
        };
        let ended = crate::learner::sft::sft(&mut **learner, examples, &settings, interrupt, hooks);
        let ending = match ended {
            Ok(_) => {
                ui.say(&last_line(&recorder.state.report(), &settings, ""));
                Ending::Finished(RunEnd::TotalSteps)
            }
            Err(Halt::Interrupted) if recorder.state.step == 0 => return Ok(None),
            Err(Halt::Interrupted) => Ending::Interrupted,
            Err(Halt::Failed(error)) => return Err(error),
        };
        if *recorder.saved != Some(recorder.state.step) {
            recorder.save(&mut **learner)?;
        }
        Ok(Some(ending))
    }

    fn summary(&self, ending: Ending) -> RunSummary {
        RunSummary {
            ending,
            steps: self.state.step,
            run: self.directory.path().to_owned(),
            checkpoint: self.saved.map(|step| self.directory.checkpoint(step)),
            before: None,
            after: None,
            sft: Some(self.state.report()),
        }
    }
}

/// What is written of the updates.
struct Recorder<'r> {
    config: &'r Config,
    directory: &'r RunDirectory,
    codec: &'r Codec,
    loggers: &'r mut Loggers,
    ui: &'r Console,
    state: &'r mut SftState,
    saved: &'r mut Option<u64>,
}

impl Recorder<'_> {
    fn record(
        &mut self,
        learner: &mut dyn RunLearner,
        update: &SftUpdate,
        num_updates: usize,
    ) -> Result<(), RunError> {
        let step = update.number as u64;
        self.state.measure(update);
        // A checkpoint of this update was saved before it was measured.
        self.saved.take_if(|saved| *saved == step);
        self.loggers.log(step, &metrics(update))?;
        self.ui.step(step);
        let is_said = update.validation_loss.is_some() || step.is_multiple_of(50) || step == 1;
        if is_said && update.number < num_updates {
            self.ui.say(&line(update, num_updates, ""));
        }
        if self.config.checkpoint.save_freq.is_due(step) && update.number < num_updates {
            self.save(learner)?;
        }
        Ok(())
    }

    /// Writes a checkpoint, and removes those that need not be kept.
    fn save(&mut self, learner: &mut dyn RunLearner) -> Result<(), RunError> {
        let directory = self.directory;
        directory.check_present()?;
        let step = self.state.step;
        check_finite(learner, directory, step, RATE)?;
        let mut logs = self.state.logs.clone();
        self.loggers.sync(&mut logs)?;
        logs.record(RUN_LOG, self.ui.sync()?);
        self.state.logs = logs;
        let pending = directory.begin_checkpoint(step)?;
        let dtype = self.config.model.save_dtype;
        let Saved { files, overflow } = learner.save(pending.path(), SaveContent::Checkpoint { dtype })?;
        checkpoint::write(directory.disk(), pending.path(), files, self.codec.tokenizer(), &*self.state)?;
        let folder = pending.commit()?;
        directory.note_checkpoint()?;
        *self.saved = Some(step);
        self.ui.detail(&format!("checkpoint {}", folder.path.display()));
        let last = self.config.checkpoint.keep_last.unwrap_or(usize::MAX);
        directory.prune(Keep { last, best: 0 }, &std::collections::BTreeMap::new())?;
        match overflow {
            None => Ok(()),
            Some(overflow) => Err(overflow_error(&overflow, dtype, &folder.path, directory.path())),
        }
    }
}

#[cfg(test)]
mod tests;
