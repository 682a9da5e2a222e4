//! Beginning a run, and resuming one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_config::{BackendKind, Config, LoggerKind};
use tamis_core::early_stop::EarlyStop;
use tamis_data::sampler::{DataPosition, PromptOrder};
use tamis_env::reward::Listener;
use tamis_rollout::{
    Beginning, DispatchError, Dispatcher, DispatcherSettings, OrderLog as _, PreparedPrompt, Record, Scorer,
    metric_values,
};

use super::Run;
use super::attempts::Attempts;
use super::ending::{Unbegun, how_to_train_further};
use super::look::{
    STARTED, Start, new_directory, opening_line, prepare_prompts, score_names, settle_differences,
};
use super::measurement::Measurement;
use super::recorder::Recorder;
use super::start::{ConfigText, RunStart};
use super::state::{RunState, ScheduleState};
use crate::assemble::headline::headline;
use crate::assemble::hints::hints;
use crate::assemble::objective::Divergence;
use crate::assemble::recipe::Recipe;
use crate::assemble::settings::{dispatcher_settings, engine_settings, trainer_state, validation_settings};
use crate::assemble::validation::{best_figure, no_pass};
use crate::assemble::{AssembleError, advantage, objective, policy, rewards, schedule};
use crate::checkpoint;
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::warm_start::Example;
use crate::native::{NativeEngine, NativeGenerator};
use crate::prompts::pool::PromptPool;
use crate::workers::Workers;
use crate::workers::answers::RecordedAnswers;
use crate::workers::listener::RunListener;
use crate::workers::order::RecordedOrder;
use crate::workers::samples::RecordedSamples;
use crate::workers::servers::{self, PublishedFolders, RunSampler};
use tamis_run::directory::{LogPositions, RunDirectory};
use tamis_run::durable::Disk;
use tamis_run::journal::JournalError;
use tamis_run::log::Loggers;
use tamis_run::log::jsonl::JsonlLogger;
use tamis_run::log::progress::Console;
use tamis_run::log::run_log::RunLog;
use tamis_run::log::tensorboard::TensorBoardLogger;

/// Result of opening a run.
pub enum Opened {
    /// A run before its next step.
    Ready(Box<Run>),
    /// Ctrl-C came before.
    Interrupted(Unbegun),
}

impl Run {
    /// Prepares a run up to its first step: data, model, rewards, sieve, warm start; or the state of its last
    /// checkpoint.
    ///
    /// `progress` makes the display, given the run's steps and those already trained.
    pub fn open(
        begin: RunStart,
        progress: impl FnOnce(Option<u64>, u64) -> Console,
        interrupt: Interrupt,
    ) -> Result<Opened, RunError> {
        Self::open_on(&Disk::new(), begin, progress, interrupt)
    }

    /// As [`Run::open`], a new run's directory made on this disk; a resumed one stays on the disk that it was
    /// opened on.
    pub fn open_on(
        disk: &Disk,
        begin: RunStart,
        progress: impl FnOnce(Option<u64>, u64) -> Console,
        interrupt: Interrupt,
    ) -> Result<Opened, RunError> {
        let (given, existing) = settle_differences(begin)?;
        let is_new = existing.is_none();
        let interrupted = if is_new { Unbegun::NotBegun } else { Unbegun::NotResumed };
        let start = match Start::look(&given, existing.as_ref(), &interrupt) {
            Ok(start) => start,
            Err(Halt::Interrupted) => return Ok(Opened::Interrupted(interrupted)),
            Err(Halt::Failed(error)) => return Err(error),
        };
        let directory = match existing {
            Some(directory) => directory,
            None => new_directory(disk, &given)?,
        };
        let path = directory.path().to_owned();
        let at = start.state.as_ref().map_or(0, |(state, _)| state.step);
        let ui = progress(given.config.train.total_steps.map(|steps| steps as u64), at);
        let text = given.text.clone();
        let (mut run, first) = match Self::prepare(given, start, directory, is_new, ui.clone(), interrupt) {
            Ok(prepared) => prepared,
            Err(halt) => {
                if is_new && disk.remove_folder(&path).is_ok() {
                    ui.say(&format!(
                        "nothing was trained: the run directory {} is removed again",
                        path.display()
                    ));
                }
                return match halt {
                    Halt::Interrupted => Ok(Opened::Interrupted(interrupted)),
                    Halt::Failed(error) => Err(error),
                };
            }
        };
        match run.first_state(first.as_deref()) {
            Ok(()) => {}
            Err(Halt::Interrupted) => {
                let is_saved = run.recorder.saved.is_some();
                let unbegun = if is_saved { Unbegun::NotResumed } else { Unbegun::Unsaved { run: path } };
                run.note_failure(&unbegun);
                return Ok(Opened::Interrupted(unbegun));
            }
            Err(Halt::Failed(error)) => {
                run.note_failure(&error);
                return Err(error);
            }
        }
        if !is_new {
            // What was changed holds from now on: a later resume without the override goes on with it.
            for path in [run.recorder.directory.config(), run.recorder.directory.config_in_force()] {
                run.recorder.directory.disk().write_file(&path, text.as_bytes())?;
            }
        }
        Ok(Opened::Ready(Box::new(run)))
    }

    /// Everything up to the first weights: whatever is wrong with the configuration shows here. With the
    /// examples that a warm start imitates (none without one), where the run begins.
    fn prepare(
        given: ConfigText,
        start: Start,
        directory: RunDirectory,
        is_new: bool,
        ui: Console,
        interrupt: Interrupt,
    ) -> Result<(Self, Option<Vec<Example>>), Halt<RunError>> {
        let ConfigText { config, notes, places, .. } = given;
        let Start { state, prompts, codec, memory } = start;
        let (_, divergence) = objective::objective(&config)?;
        // Templates that show the date show that of the first start, or a resumed run would see other
        // prompts.
        let started: Option<i64> = std::fs::read_to_string(directory.path().join(STARTED))
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let codec = codec.with_now(started.unwrap_or(0));
        let (mut positions, at) = state
            .as_ref()
            .map_or((LogPositions::default(), 0), |(state, _)| (state.logs.clone(), state.step));
        // What a checkpoint counts on is looked at before anything is cut.
        let from = state.as_ref().and_then(|(state, _)| state.journal).unwrap_or(0);
        let answers = if config.reward.iter().any(|reward| reward.kind.is_external()) {
            let next =
                state.as_ref().map_or(1, |(state, _)| state.step + u64::from(!state.validation.is_missing));
            let opened = RecordedAnswers::open(directory.disk(), &directory.journal(), from, next);
            Some(opened.map_err(|error| journal_error(error, &directory, |state| state.journal))?)
        } else {
            None
        };
        let mut warnings = Vec::new();
        let logged = directory.last_logged_step();
        if !is_new {
            (positions, warnings) = {
                let cut = directory.cut_back(&positions, at)?;
                (cut.positions, cut.warnings)
            };
            warnings.extend(explain_no_step_left(&config, directory.path(), at));
        }
        ui.copy_to(RunLog::open(directory.disk(), &directory.run_log())?);
        let step = state.as_ref().map(|(state, _)| state.step);
        ui.say(&opening_line(directory.path(), step, is_new, logged));
        for note in notes.iter().chain(&prompts.notes) {
            ui.say(note);
        }
        for warning in &prompts.warnings {
            ui.warn(warning);
        }
        ui.say(&memory.0);
        if let Some(warning) = &memory.1 {
            ui.warn(warning);
        }
        for warning in &warnings {
            ui.warn(warning);
        }

        let listener: Arc<dyn Listener> = RunListener::new(&ui, &interrupt);
        let rows = [prompts.train.as_slice(), prompts.validation.as_slice()];
        let mut rewards = rewards::rewards(&config, directory.disk(), directory.path(), &listener, &rows)
            .map_err(|error| error.halt().map(RunError::from))?;
        let num_tokens = state.as_ref().map_or(0, |(state, _)| state.num_tokens);
        rewards.set_trainer_state(trainer_state(&config, prompts.train.len(), at, num_tokens));
        let (score_names, is_complete) = match score_names(&config, &prompts, &rewards, &ui, &*listener) {
            Ok(names) => names,
            Err(halt) => {
                if matches!(halt, Halt::Interrupted) {
                    // Giving a million prompts back one by one takes longer than the process has left to
                    // live.
                    std::mem::forget(prompts);
                }
                return Err(halt);
            }
        };
        let mut early_stop = EarlyStop::new(config.train.early_stop);
        if let Some((state, _)) = &state {
            early_stop = early_stop.resume(state.early_stop.clone());
        }
        let place = places.filter_metric.as_deref();
        let sieve = schedule::sieve(
            &config,
            score_names.iter().cloned(),
            is_complete,
            place,
            rewards.how_to_give_acc(),
        )?;
        ui.say(&headline(&config)?);
        ui.say(&sieve.announcement);
        if let Some(warning) = &sieve.warning {
            ui.warn(warning);
        }
        let mut scorer = Scorer::new(rewards);
        if let Some(answers) = answers {
            scorer = scorer.with_journal(Box::new(answers));
        }

        let train = prepare_prompts(&codec, &config, prompts.train, "training", &ui, &interrupt)?;
        if let Some(first) = train.first() {
            ui.say(&codec.introduction(first).map_err(AssembleError::from)?);
        }
        super::critic::check_warm_up(&config, train.len())?;
        let examples = match (&state, config.warm_start.steps) {
            (Some(_), _) => None,
            (None, 0) => Some(Vec::new()),
            (None, _) => {
                let (codec, seed, most) = (codec.clone(), config.run.seed, config.warm_start.examples);
                let prompts = train.clone();
                Some(interrupt.or_abandon(move || Example::all(&codec, &prompts, seed, most))??)
            }
        };
        let validation_prompts =
            prepare_prompts(&codec, &config, prompts.validation, "validation", &ui, &interrupt)?;

        let best_figure = best_figure(&config, &validation_prompts, &score_names)?;
        if is_complete
            && let Some(warning) =
                no_pass(&config, &places, scorer.rewards(), score_names.iter().map(String::as_str))
            && !validation_prompts.is_empty()
        {
            ui.warn(&warning);
        }

        let data_crc32 = fingerprint(&train);
        if let Some((state, _)) = &state
            && state.data_crc32 != data_crc32
        {
            return Err(RunError::Mismatch {
                run: directory.path().to_owned(),
                differences: format!(
                    "the training prompts are not those that the run was begun with: {}a file of data.train has changed",
                    if started.is_some() {
                        String::new()
                    } else {
                        format!(
                            "`{STARTED}`, the date that chat templates show, is gone from the run directory, or "
                        )
                    }
                ),
            }
            .into());
        }
        let loaded = if let Some((_, folder)) = &state {
            let folder = folder.clone();
            interrupt.or_abandon(move || checkpoint::read_model(&folder))??
        } else {
            let (config, codec) = (config.clone(), codec.clone());
            interrupt.or_abandon(move || policy::model(&config, &codec))??
        };
        let mut engine =
            NativeEngine::new(loaded, codec, engine_settings(&config)).with_interrupt(&interrupt);
        let order = if config.data.shuffle {
            PromptOrder::Shuffled { seed: config.run.seed }
        } else {
            PromptOrder::Sequential
        };
        let advantage = advantage::advantage(&config)?;
        let hints = hints(&config, &advantage, &engine, &train, &ui, &interrupt)
            .map_err(|halt| halt.map(RunError::from))?;
        let position = state.as_ref().map_or(DataPosition::default(), |(state, _)| state.schedule.position);
        let given_back = state.iter().flat_map(|(state, _)| state.schedule.given_back.iter().copied());
        let pool = PromptPool::new(train, order, position)?.with_given_back(given_back);
        ui.say(&format!(
            "model: {} parameters, {} training prompts, {} validation prompts, {} thread{}",
            engine.model().num_parameters(),
            pool.num_prompts(),
            validation_prompts.len(),
            engine.num_threads(),
            if engine.num_threads() == 1 { "" } else { "s" },
        ));

        // What is wrong with their files is printed before a warm start.
        if divergence != Divergence::None
            && let Some(reference) = {
                let (config, shape) = (config.clone(), engine.model().config().clone());
                interrupt.or_abandon(move || policy::reference(&config, &shape))??
            }
        {
            engine.set_reference(reference);
        }
        if let Some(critic) = super::critic::load_critic(&config, state.as_ref())? {
            engine.set_critic(critic);
        }
        let dispatcher_settings = DispatcherSettings {
            // A later step of a resumed run may by chance have none of a score that was there before; before
            // the first there was none.
            is_metric_unproven: sieve.filter.is_some() && !is_complete && at == 0,
            recomputes_logprobs: servers::recomputes_logprobs(&config)?,
            hands_out_parts: schedule::trains_early(&config, &sieve)?,
            ..dispatcher_settings(&config)
        };
        let mut is_longer = false;
        let mut dispatcher = match &state {
            Some((state, folder)) => {
                checkpoint::read_optimizer(folder, &mut engine)?;
                engine.set_version(state.version);
                let schedule = &state.schedule;
                let mut machine = schedule.machine.clone();
                let (fresh, was) = (schedule::settings(&config, &sieve), machine.settings());
                // How much is drawn ahead depends on how much is to come.
                is_longer = (was.total_steps, was.total_epochs) != (fresh.total_steps, fresh.total_epochs);
                machine.set_length(fresh.total_steps, fresh.total_epochs);
                let (carried, health) = (restore_carried(schedule, &pool)?, schedule.reward_health.clone());
                let (next, version) = (schedule.next_group, state.version);
                Dispatcher::resume(dispatcher_settings, machine, next, version, carried, health)
            }
            None => Dispatcher::new(dispatcher_settings, schedule::scheduler(&config, &sieve)?),
        };
        // The native engine goes its way once more; servers and rewards from outside do not.
        let is_timed = config.rollout.backend != BackendKind::Native || scorer.rewards().concurrency() > 0;
        let order = if is_timed && dispatcher.machine().depends_on_timing() {
            let from = state.as_ref().and_then(|(state, _)| state.order).unwrap_or(0);
            let (mut order, taken) = RecordedOrder::open(directory.disk(), &directory.order(), from, at + 1)
                .map_err(|error| journal_error(error, &directory, |state| state.order))?;
            if is_longer {
                order.forget(taken.len()).map_err(RunError::from)?;
            } else {
                dispatcher.follow(taken);
            }
            Some(order)
        } else {
            None
        };
        let (servers, published) = if config.rollout.backend == BackendKind::Native {
            (None, None)
        } else {
            let folders = PublishedFolders::of(directory.disk(), directory.path(), &config.publish);
            let launched = servers::launch(&config, &folders, &engine, directory.path(), &interrupt, &ui)?;
            let from = state.as_ref().and_then(|(state, _)| state.samples).unwrap_or(0);
            let samples = RecordedSamples::open(directory.disk(), &directory.samples_journal(), from)
                .map_err(|error| journal_error(error, &directory, |state| state.samples))?;
            let begin =
                Beginning { version: engine.version(), step: at + 1, next_group: dispatcher.next_group() };
            let samples = (samples, begin);
            let servers = servers::connect(&config, launched, &engine, &folders, samples, &interrupt, &ui);
            if interrupt.is_requested() {
                return Err(Halt::Interrupted);
            }
            (Some(servers?), Some(folders))
        };
        scorer.begin_step(at + 1);
        let workers = Workers {
            sampler: RunSampler::Native(Box::new(NativeGenerator::of(&engine))),
            servers,
            published,
            engine,
            pool,
            scorer,
            dispatcher,
            order,
            interrupt: interrupt.clone(),
        };
        let recipe = Recipe::new(&config, sieve, hints, workers.pool.num_prompts())?;
        let saved = state.as_ref().map(|(state, _)| state.step);
        let schedule = ScheduleState::of(&workers.dispatcher, &workers.pool);
        let state = if let Some((state, _)) = state {
            // Nothing of it has changed but the length that the run is to have, and the logs that were cut.
            RunState { schedule, logs: positions, ..state }
        } else {
            let objective = recipe.objective.initial_state();
            RunState::first(schedule, objective, data_crc32, recipe.critic.is_some())
        };
        let loggers = loggers(&config, &directory, at + 1, state.logs.last_row.as_deref())?;
        let run = Run {
            recorder: Recorder::new(&config, &recipe.sieve, directory, loggers, ui, saved),
            measurement: Measurement {
                prompts: validation_prompts,
                settings: validation_settings(&config),
                best_figure,
                is_pass_unproven: !is_complete,
                places,
                early_stop,
            },
            first_group: workers.dispatcher.next_group(),
            attempts: Attempts::new(),
            has_warned_of_uniform_groups: false,
            recipe,
            workers,
            state,
            interrupt,
        };
        Ok((run, examples))
    }
}

fn loggers(
    config: &Config,
    directory: &RunDirectory,
    first_step: u64,
    last_row: Option<&str>,
) -> Result<Loggers, RunError> {
    let mut loggers = Loggers::new();
    for kind in &config.run.loggers {
        match kind {
            // It says what the step found, not what is logged.
            LoggerKind::Console => {}
            LoggerKind::Jsonl => {
                let logger = JsonlLogger::open(directory.disk(), &directory.metrics())?;
                loggers.add(logger.continue_after(last_row));
            }
            LoggerKind::Tensorboard => {
                loggers.add(TensorBoardLogger::open(directory.disk(), &directory.tensorboard(), first_step)?);
            }
        }
    }
    Ok(loggers)
}

fn restore_carried(schedule: &ScheduleState, pool: &PromptPool) -> Result<Vec<Record>, DispatchError> {
    let metric = &schedule.machine.settings().metric;
    let group_size = schedule.machine.settings().group_size;
    schedule
        .carried
        .iter()
        .filter_map(|carried| {
            let prompt: PreparedPrompt = pool.get(carried.group.prompt)?.clone();
            let final_rewards = carried.final_rewards();
            let values = if carried.is_in_flight(group_size) {
                Ok(Vec::new())
            } else {
                metric_values(metric, &carried.group, final_rewards.as_deref())
            };
            Some(values.map_err(DispatchError::from).map(|values| Record {
                group: carried.group.clone(),
                prompt,
                step: carried.step,
                round: carried.round,
                values,
                final_rewards,
                logged: carried.logged.clone(),
                reference: None,
                fate: carried.fate.clone(),
                kept_in: carried.kept_in,
                generation: carried.generation,
            }))
        })
        .collect()
}

/// CRC-32 of prompts as the model sees them, with their ground truths.
fn fingerprint(prompts: &[PreparedPrompt]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    let mut bytes = Vec::new();
    for prompt in prompts {
        bytes.clear();
        bytes.extend(prompt.prompt.id.0.to_le_bytes());
        bytes.extend(prompt.token_ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(prompt.prompt.ground_truth.iter().flat_map(|truth| truth.bytes()));
        sum.update(&bytes);
    }
    sum.finalize()
}

/// A run that is to have no more steps than it has: what it says, and how to go on.
fn explain_no_step_left(config: &Config, run: &Path, steps: u64) -> Option<String> {
    let total = config.train.total_steps.map(|total| total as u64).filter(|&total| total <= steps)?;
    let how = how_to_train_further(config, run, steps);
    Some(format!(
        "the run has {steps} steps already and train.total_steps is {total}: no step is left to train; {how}"
    ))
}

/// The error for a damaged journal, with the newest checkpoint that counts on no more of it than there is.
fn journal_error(
    error: JournalError,
    directory: &RunDirectory,
    promised: fn(&RunState) -> Option<u64>,
) -> RunError {
    let left = match &error {
        JournalError::TooShort { length, .. } => 0..=*length,
        JournalError::Removed { first, .. } => *first..=u64::MAX,
        JournalError::NotAJournal { .. } => 0..=0,
        JournalError::Disk(_) | JournalError::TooLong { .. } => return RunError::Journal(error),
    };
    let is_usable = |folder: &PathBuf| {
        RunState::read(folder).is_ok_and(|state| promised(&state).is_none_or(|place| left.contains(&place)))
    };
    let mut checkpoints = directory.list_checkpoints().unwrap_or_default();
    checkpoints.reverse();
    let usable = checkpoints.into_iter().map(|checkpoint| checkpoint.path).find(is_usable);
    RunError::JournalDamaged { source: error, usable }
}
