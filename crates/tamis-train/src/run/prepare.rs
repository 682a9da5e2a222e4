//! The parts of a run, made one after the other before its first step, or restored from its last checkpoint.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_config::{Config, ModelSource};
use tamis_core::figure::counted;
use tamis_core::group::PolicyVersion;
use tamis_env::environment::kind::World;
use tamis_env::reward::command::SharedPools;
use tamis_env::reward::{Listener, Rewards};
use tamis_model::TransformerConfig;
use tamis_rollout::{PreparedPrompt, Scorer};
use tamis_run::directory::{LogPositions, RunDirectory};
use tamis_run::journal::JournalError;
use tamis_run::log::progress::Console;
use tamis_run::log::run_log::RunLog;

use super::ending::how_to_train_further;
use super::look::{KEEP_KEYS, Resources, STARTED, opening_line, prepare_prompts, score_names};
use super::refusals::Refusals;
use super::state::RunState;
use crate::assemble::data::CurriculumOrder;
use crate::assemble::headline::headline;
use crate::assemble::places::Places;
use crate::assemble::rewards::{RewardBuilder, RewardFolder};
use crate::assemble::schedule::Sieve;
use crate::assemble::settings::trainer_state;
use crate::assemble::startup::Startup;
use crate::assemble::validation::{best_figure, no_pass};
use crate::assemble::{batch_size, data, rewards, schedule, sft};
use crate::checkpoint::sum_of_model;
use crate::error::{AssembleError, RunError};
use crate::interrupt::{Halt, Interrupt};
use crate::launcher::{Launcher, PlanInput};
use crate::learner::sft::{Example, SftExamples};
use crate::measure::validation_metrics::FigureName;
use crate::own_function::{FunctionFolder, OwnFunctions};
use crate::prompts::codec::Codec;
use crate::prompts::overlap;
use crate::prompts::worlds::RunWorlds;
use crate::workers::answers::RecordedAnswers;
use crate::workers::listener::RunListener;

/// Inputs that every part is made from.
pub(super) struct Preparation<'a> {
    pub(super) config: &'a Config,
    pub(super) directory: &'a RunDirectory,
    /// State and folder of the last checkpoint; `None` in a new run.
    pub(super) saved: Option<&'a (RunState, PathBuf)>,
    pub(super) ui: &'a Console,
    pub(super) interrupt: &'a Interrupt,
    pub(super) launcher: &'a dyn Launcher,
}

/// The rewards, and the filter that looks at their scores.
pub(super) struct Scoring {
    pub(super) scorer: Scorer,
    pub(super) score_names: BTreeSet<String>,
    /// Whether these are all names. Those of a program are known when it answers.
    pub(super) is_complete: bool,
    pub(super) sieve: Sieve,
}

/// The prompts as the model sees them.
pub(super) struct Played {
    pub(super) codec: Codec,
    pub(super) worlds: Option<Arc<RunWorlds>>,
    pub(super) train: Vec<PreparedPrompt>,
    pub(super) validation: Vec<PreparedPrompt>,
    /// Validation prompts that are in the training data too.
    pub(super) num_in_training: usize,
    /// What supervised fine-tuning learns from (nothing without it), if the run begins.
    pub(super) examples: Option<SftExamples>,
    pub(super) curriculum: Option<CurriculumOrder>,
}

/// Everything that a run has before its learner.
pub(super) struct Ready {
    pub(super) scoring: Scoring,
    pub(super) played: Played,
    /// The figure of a validation by which the best checkpoint is kept.
    pub(super) best_figure: Option<FigureName>,
    /// The loss and the advantage of the user's own, if they are.
    pub(super) functions: OwnFunctions,
}

impl Preparation<'_> {
    pub(super) fn state(&self) -> Option<&RunState> {
        self.saved.map(|(state, _)| state)
    }

    pub(super) fn step(&self) -> u64 {
        self.state().map_or(0, |state| state.step)
    }

    pub(super) fn version(&self) -> PolicyVersion {
        self.state().map_or(PolicyVersion(0), |state| state.version)
    }

    /// The journal of external rewards; `None` if there are none.
    pub(super) fn open_answers(&self) -> Result<Option<RecordedAnswers>, RunError> {
        if !self.config.reward.iter().any(|reward| reward.kind.is_external()) {
            return Ok(None);
        }
        let directory = self.directory;
        let from = self.state().and_then(|state| state.journal).unwrap_or(0);
        RecordedAnswers::open(directory.disk(), &directory.journal(), from)
            .map(Some)
            .map_err(|error| journal_error(error, directory, |state| state.journal))
    }

    /// Cuts the logs back to the last checkpoint and prints the first lines: the run, notes and warnings from
    /// before there was a log, and what the run uses of the machines. Returns the position at which the logs
    /// continue.
    pub(super) fn begin_logs<'n>(
        &self,
        is_new: bool,
        headline: Option<&str>,
        details: &[String],
        notes: impl Iterator<Item = &'n String>,
        warnings: &[String],
        resources: &Resources,
    ) -> Result<LogPositions, RunError> {
        let (directory, ui) = (self.directory, self.ui);
        let mut positions = self.state().map_or_else(LogPositions::default, |state| state.logs.clone());
        let mut of_logs = Vec::new();
        let logged = directory.last_logged_step();
        if !is_new {
            let cut = directory.cut_back(&positions, self.step())?;
            (positions, of_logs) = (cut.positions, cut.warnings);
            of_logs.extend(explain_no_step_left(self.config, directory.path(), self.step()));
        }
        ui.copy_to(RunLog::open(directory.disk(), &directory.run_log())?);
        let step = self.state().map(|state| state.step);
        if let Some(headline) = headline {
            ui.say(headline);
        }
        let phase = if step.is_none() && !is_new { directory.last_sft_checkpoint()? } else { None };
        ui.say(&match phase {
            Some(last) => {
                let (run, last) = (directory.path().display(), counted(last.step, "update"));
                format!("resuming {run} in supervised fine-tuning, after {last}")
            }
            None => opening_line(directory.path(), step, is_new, logged),
        });
        for line in details {
            ui.detail(line);
        }
        for note in notes {
            ui.say(note);
        }
        for warning in warnings {
            ui.warn(warning);
        }
        for line in &resources.lines {
            ui.detail(line);
        }
        for warning in resources.warnings.iter().chain(&of_logs) {
            ui.warn(warning);
        }
        Ok(positions)
    }

    /// Asks the cluster for its machines, prints what will run on them, and refuses what cannot.
    pub(super) fn plan_on_cluster(&self, native: Option<&TransformerConfig>) -> Result<(), Halt<RunError>> {
        let checkpoint = self.saved.map(|(_, folder)| folder.as_path());
        let input = PlanInput { checkpoint, native, logs: Some(self.directory.path()) };
        let mut resources = Resources::default();
        resources.add_plan(self.launcher, self.config, input, self.interrupt)?;
        for line in &resources.lines {
            self.ui.say(line);
        }
        for warning in &resources.warnings {
            self.ui.warn(warning);
        }
        Ok(())
    }

    /// Everything that a run has before its learner. Whatever cannot work is refused. `config check` calls it
    /// too, and gets `None` if something was refused or left to the run.
    pub(super) fn make_ready(
        &self,
        prompts: data::Prompts,
        codec: Codec,
        places: &Places,
        answers: Option<RecordedAnswers>,
        refusals: &mut Refusals,
    ) -> Result<Option<Ready>, Halt<RunError>> {
        let functions = self.start_functions(refusals)?;
        let scoring = self.begin_scoring(&prompts, places.filter_metric.as_deref(), answers, refusals);
        let scoring = match scoring {
            Err(Halt::Interrupted) => {
                // Freeing a million prompts one by one takes longer than the process has left to live.
                std::mem::forget(prompts);
                return Err(Halt::Interrupted);
            }
            scoring => refusals.take(scoring)?.flatten(),
        };
        let played = self.prepare_prompts(prompts, codec, refusals);
        let (Some(played), Some(scoring), Some(functions)) =
            (refusals.take(played)?.flatten(), scoring, functions)
        else {
            return Ok(None);
        };
        let best_figure = best_figure(self.config, &played.validation, &scoring.score_names)?;
        let names = scoring.score_names.iter().map(String::as_str);
        if scoring.is_complete
            && let Some(warning) = no_pass(self.config, places, scoring.scorer.rewards(), names)
            && !played.validation.is_empty()
        {
            self.ui.warn(&warning);
        }
        Ok(Some(Ready { scoring, played, best_figure, functions }))
    }

    /// Starts and checks a loss and an advantage in Python; `None` if a check refused one, or if what names
    /// them is not sound.
    pub(super) fn start_functions(
        &self,
        refusals: &mut Refusals,
    ) -> Result<Option<OwnFunctions>, Halt<RunError>> {
        if !refusals.is_sound() {
            return Ok(None);
        }
        let listener: Arc<dyn Listener> = RunListener::new(self.ui, self.interrupt);
        let folder = FunctionFolder { path: self.directory.path(), disk: self.directory.disk() };
        let started = OwnFunctions::start(self.config, folder, &listener);
        refusals.take(started.map_err(|halt| halt.map(|error| RunError::from(AssembleError::from(error)))))
    }

    /// Makes the rewards, asks them for the names of their scores, and makes the filter. Returns `None` if a
    /// check refused a reward or leaves it to the run.
    pub(super) fn begin_scoring(
        &self,
        prompts: &data::Prompts,
        filter_metric: Option<&str>,
        answers: Option<RecordedAnswers>,
        refusals: &mut Refusals,
    ) -> Result<Option<Scoring>, Halt<RunError>> {
        let Self { config, directory, ui, interrupt, .. } = *self;
        let listener: Arc<dyn Listener> = RunListener::new(ui, interrupt);
        let rows = [prompts.train.as_slice(), prompts.validation.as_slice()];
        let folder = RewardFolder { path: directory.path(), disk: directory.disk(), is_run: true };
        rewards::check_any(config)?;
        let (listener, pools) = (&listener, &SharedPools::default());
        let builder = RewardBuilder { config, folder, listener, interrupt, rows: &rows, pools };
        ui.stage("starting rewards");
        builder.begin(|index| !refusals.leaves(index));
        let mut functions = Vec::with_capacity(config.reward.len());
        for index in 0..config.reward.len() {
            if !refusals.leaves(index) {
                let built = builder.build(index);
                functions.extend(refusals.take(built.map_err(|error| error.halt().map(RunError::from)))?);
            }
        }
        if functions.is_empty() {
            return Ok(None);
        }
        let is_whole = functions.len() == config.reward.len();
        let mut rewards = Rewards::new(functions).map_err(AssembleError::from)?;
        let num_tokens = self.state().map_or(0, |state| state.num_tokens);
        rewards.set_trainer_state(trainer_state(config, prompts.train.len(), self.step(), num_tokens));
        let (score_names, is_complete) = score_names(config, prompts, &rewards, ui, &**listener)?;
        if !is_whole || !refusals.is_sound() {
            return Ok(None);
        }
        let names = score_names.iter().cloned();
        let sieve = schedule::sieve(config, names, is_complete, filter_metric, rewards.how_to_give_acc())?;
        ui.say(&headline(config)?);
        ui.say(&sieve.announcement);
        if let Some(warning) = &sieve.warning {
            ui.warn(warning);
        }
        let mut scorer = Scorer::new(rewards);
        if let Some(answers) = answers {
            scorer = scorer.with_journal(Box::new(answers));
        }
        Ok(Some(Scoring { scorer, score_names, is_complete, sieve }))
    }

    /// The prompts as the model sees them, in their environments.
    pub(super) fn prepare_prompts(
        &self,
        prompts: data::Prompts,
        codec: Codec,
        refusals: &mut Refusals,
    ) -> Result<Option<Played>, Halt<RunError>> {
        let Self { config, ui, interrupt, .. } = *self;
        let codec = self.date_templates(codec);
        let listener: Arc<dyn Listener> = RunListener::new(ui, interrupt);
        let worlds = RunWorlds::of(config, &codec, &listener)?.map(Arc::new);
        // Prompts show the tools of their environment.
        let codec = worlds.as_ref().map_or(codec, |worlds| worlds.codec().clone());
        for note in worlds.iter().flat_map(|worlds| worlds.notes()) {
            ui.say(&note);
        }
        ui.stage("preparing prompts");
        let train = prepare_prompts(&codec, config, prompts.train, "training", ui, interrupt)?;
        if let Some(first) = train.first() {
            ui.say(&codec.introduction(first).map_err(AssembleError::from)?);
        }
        refusals.take(super::critic::check_warm_up(config, train.len()))?;
        for difference in worlds.iter().flat_map(|worlds| worlds.differences()) {
            ui.warn(&format!("the chat template renders earlier answers differently from how they were sampled; training uses them as \
                sampled: {difference}"));
        }
        let examples = refusals.take(self.make_examples(&codec, &train, worlds.as_ref()))?;
        let validation = prepare_prompts(&codec, config, prompts.validation, "validation", ui, interrupt)?;
        if let Some(warning) = batch_size::warning(config, train.len()) {
            ui.warn(&warning);
        }
        let num_in_training = overlap::num_in_training(config, &train, &validation);
        if let Some(warning) = overlap::warning(config, num_in_training, validation.len()) {
            ui.warn(&warning);
        }
        let curriculum = refusals.take(data::curriculum(config, &train))?;
        let (Some(curriculum), Some(examples)) = (curriculum, examples) else { return Ok(None) };
        Ok(Some(Played { codec, worlds, train, validation, num_in_training, examples, curriculum }))
    }

    /// When the run was first started, in seconds of the Unix epoch; `None` if its file is missing.
    fn read_start_time(&self) -> Option<i64> {
        let started = tamis_file::read_text(&self.directory.path().join(STARTED), 64).ok()?;
        started.trim().parse().ok()
    }

    /// Templates that show the date show that of the first start. Otherwise a resumed run would see other
    /// prompts.
    pub(super) fn date_templates(&self, codec: Codec) -> Codec {
        codec.with_now(self.read_start_time().unwrap_or(0))
    }

    /// The examples of supervised fine-tuning; none without it, `None` in a run that has begun.
    pub(super) fn make_examples(
        &self,
        codec: &Codec,
        train: &[PreparedPrompt],
        worlds: Option<&Arc<RunWorlds>>,
    ) -> Result<Option<SftExamples>, Halt<RunError>> {
        let sft = &self.config.sft;
        match (self.saved, sft.is_on()) {
            (Some(_), _) => Ok(None),
            (None, false) => Ok(Some(SftExamples::default())),
            (None, true) if !sft.data.is_empty() => Ok(Some(self.make_own_examples(codec)?)),
            (None, true) => {
                let (codec, seed, most) = (codec.clone(), self.config.run.seed, sft.examples);
                let prompts = train.to_vec();
                let (levels, worlds) = (self.config.levels(), worlds.cloned());
                let games = worlds.map(|worlds| (worlds, levels));
                let train = self.interrupt.or_abandon(move || {
                    let games = games.as_ref().map(|(worlds, levels)| (&**worlds, &levels[..]));
                    Example::all(&codec, games, &prompts, seed, most)
                })??;
                Ok(Some(SftExamples { train, validation: Vec::new() }))
            }
        }
    }

    /// The examples that the rows of `sft.data` and `sft.val` are.
    pub(super) fn make_own_examples(&self, codec: &Codec) -> Result<SftExamples, Halt<RunError>> {
        let (config, codec) = (self.config.clone(), codec.clone());
        let made =
            self.interrupt.or_abandon(move || sft::examples(&config, &codec, sft::read(&config)?))??;
        for note in &made.notes {
            self.ui.say(note);
        }
        for warning in &made.warnings {
            self.ui.warn(warning);
        }
        Ok(made.examples)
    }

    /// CRC-32 of the training prompts, which must be the same as at the run's beginning.
    pub(super) fn check_prompts(&self, train: &[PreparedPrompt]) -> Result<u32, RunError> {
        let data_crc32 = fingerprint(train);
        if self.state().is_none_or(|state| state.data_crc32 == data_crc32) {
            return Ok(data_crc32);
        }
        let date = if self.read_start_time().is_some() {
            String::new()
        } else {
            format!("`{STARTED}`, the date that chat templates show, is missing from the run directory, or ")
        };
        Err(RunError::Mismatch {
            run: self.directory.path().to_owned(),
            differences: format!(
                "the training prompts are not those that the run was started with: {date}{}",
                what_changed(self.config)
            ),
            hint: KEEP_KEYS.to_owned(),
        })
    }

    /// CRC-32 of the model below an adapter, which must be the same as at the run's beginning, because a
    /// checkpoint has only the adapter. `None` if there is no adapter, or the model has random weights.
    pub(super) fn check_base(&self) -> Result<Option<u32>, Halt<RunError>> {
        let named = self.config.model.path.as_ref().filter(|_| self.config.learner.lora.is_some());
        let Some(folder) = named.map(ModelSource::folder) else { return Ok(None) };
        self.ui.stage("reading the model under the adapter");
        let read = {
            let folder = folder.clone();
            self.interrupt.or_abandon(move || sum_of_model(&folder))?
        };
        let begun = self.state().and_then(|state| state.base_crc32);
        let trouble = match (begun, read) {
            (None, read) => return Ok(Some(read.map_err(RunError::from)?)),
            (Some(begun), Ok(found)) if begun == found => return Ok(Some(found)),
            (Some(_), Ok(_)) => {
                "is not the one that the run was started with: its files have changed".to_owned()
            }
            (Some(_), Err(error)) => format!("is gone: failed to {error}"),
        };
        Err(Halt::Failed(RunError::Mismatch {
            run: self.directory.path().to_owned(),
            differences: format!(
                "the model that the adapter goes onto, {} (model.path), {trouble}; restore it",
                folder.display()
            ),
            hint: KEEP_KEYS.to_owned(),
        }))
    }

    pub(super) fn startup<'a>(&'a self, codec: &'a Codec) -> Startup<'a> {
        Startup {
            config: self.config,
            codec,
            launcher: self.launcher,
            disk: self.directory.disk(),
            folder: self.directory.path(),
            interrupt: self.interrupt,
            ui: self.ui,
        }
    }
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
        // Only the file's name: data may be moved.
        bytes.extend(prompt.prompt.images.iter().flat_map(|image| image.name().bytes()));
        sum.update(&bytes);
    }
    sum.finalize()
}

/// A run that is to have no more steps than it has already: what it prints, and how to continue.
fn explain_no_step_left(config: &Config, run: &Path, steps: u64) -> Option<String> {
    let total = config.train.total_steps.map(|total| total as u64).filter(|&total| total <= steps)?;
    let how = how_to_train_further(config, run, steps);
    Some(format!(
        "the run has {} already and train.total_steps is {total}: no step is left to train; {how}",
        counted(steps, "step")
    ))
}

/// The error for a damaged journal. It names the newest checkpoint that needs only the undamaged part.
pub(super) fn journal_error(
    error: JournalError,
    directory: &RunDirectory,
    promised: fn(&RunState) -> Option<u64>,
) -> RunError {
    let left = match &error {
        JournalError::TooShort { length, .. } => 0..=*length,
        JournalError::Removed { first, .. } => *first..=u64::MAX,
        JournalError::NotAJournal { .. } => 0..=0,
        // An older checkpoint needs that record too.
        JournalError::Damaged { .. } | JournalError::Unreadable { .. } => {
            return RunError::JournalDamaged { source: error, usable: None };
        }
        JournalError::Disk(_) | JournalError::TooLong { .. } => return error.into(),
    };
    let is_usable = |folder: &PathBuf| {
        RunState::read(folder).is_ok_and(|state| promised(&state).is_none_or(|place| left.contains(&place)))
    };
    let mut checkpoints = directory.list_checkpoints().unwrap_or_default();
    checkpoints.reverse();
    let usable = checkpoints.into_iter().map(|checkpoint| checkpoint.path).find(is_usable);
    RunError::JournalDamaged { source: error, usable }
}

/// How prompts differ from those before although the configuration is the same.
fn what_changed(config: &Config) -> String {
    let files = "a file of data.train";
    let Some(environment) = config.played() else { return format!("{files} has changed") };
    let kind = environment.kind.as_str();
    match environment.maker().kind.world() {
        World::Tools(_) => {
            format!("{files}, or the description of the tools of `environment`, has changed")
        }
        World::Program(_) => format!("{files} has changed"),
        World::Game(_) | World::Foreign(_) => {
            let key = match kind {
                "python" => "environment.path",
                "gymnasium" | "verifiers" => "environment.id",
                "command" => "environment.argv",
                "http" => "environment.url",
                _ => "environment",
            };
            let more =
                if config.more_environments.is_empty() { "" } else { ", or one of more_environments," };
            format!("the environment ({key}){more} has changed: its levels differ from those before")
        }
    }
}
