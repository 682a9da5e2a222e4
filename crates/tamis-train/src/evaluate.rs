//! `tamis eval`: a checkpoint's policy on the validation prompts, without a run directory.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, Serializer};
use tamis_config::{BackendKind, Config, LearnerBackend, ModelSource, PublishMode};
use tamis_core::figure::counted;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::command::SharedPools;
use tamis_env::reward::{Listener, RewardError};
use tamis_env::task::TaskKind;
use tamis_model::TransformerConfig;
use tamis_rollout::{CompletionWorkers, DispatchError, GeneratorError, Inbox, Record, Scorer};
use thiserror::Error;

use crate::assemble::places::Places;
use crate::assemble::rewards::{RewardBuilder, RewardFolder};
use crate::assemble::settings::validation_settings;
use crate::assemble::startup::Startup;
use crate::assemble::validation::no_pass;
use crate::assemble::{data, learner, policy};
use crate::error::{AssembleError, RunError};
use crate::interrupt::{Halt, Interrupt};
use crate::launcher::Launcher;
use crate::learner::{LearnerError, logits_hint};
use crate::measure::validation::{self, Shown, Validation, ValidationReport, ValidationSettings};
use crate::measure::validation_metrics::{SourceResult, results_by_source};
use crate::prompts::worlds::{self, RunWorlds};
use crate::workers::evaluation_sampler::EvaluationSampler;
use crate::workers::listener::RunListener;
use crate::workers::logs_of_processes;
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::group::PromptId;
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;
use tamis_run::metrics::Metrics;

/// An evaluation cannot be made.
#[derive(Debug, Error)]
pub enum EvaluateError {
    /// A part of it cannot be built.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Generation or scoring broke down.
    #[error(transparent)]
    Dispatch(DispatchError),
    /// A place for the shipped reward runner cannot be made.
    #[error(transparent)]
    Fault(Fault),
    /// Servers or a learner cannot be reached, started, or given the checkpoint.
    #[error("{error}")]
    Servers {
        /// What happened.
        #[source]
        error: Box<RunError>,
        /// Folder with the output of the processes that were started for the evaluation, if there is any.
        logs: Option<PathBuf>,
    },
    /// There are no prompts to evaluate on.
    #[error(
        "there are no validation prompts; set data.val (or data.arithmetic.val_size for the task `arithmetic`)"
    )]
    NoPrompts,
}

/// Results of an evaluation.
#[derive(Debug, Clone, Serialize)]
pub struct EvaluationReport {
    /// Prompts.
    pub num_prompts: usize,
    /// Samples of each.
    pub num_samples: usize,
    /// Number of prompts from which generation failed.
    pub num_failed: usize,
    /// Why the first of them failed.
    #[serde(skip)]
    pub first_failure: Option<String>,
    /// Figures by the names that they have in `metrics.jsonl`; in JSON one object.
    #[serde(serialize_with = "as_object")]
    pub metrics: Vec<(String, f64)>,
    /// The same by data source.
    pub sources: Vec<SourceResult>,
    /// Some completions.
    pub samples: Vec<Shown>,
    /// The mean outcome, and that of each prompt.
    #[serde(skip)]
    pub validation: ValidationReport,
    /// The prompts, in the order of their outcomes.
    #[serde(skip)]
    pub prompts: Vec<PromptId>,
    /// The groups of all completions, if they were requested.
    #[serde(skip)]
    pub all_samples: Vec<Record>,
}

impl EvaluateError {
    fn servers(error: RunError) -> Self {
        Self::Servers { error: Box::new(error), logs: None }
    }

    /// The fix, if one is known, and where to read on.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Assemble(error) => error.hint(),
            Self::Servers { error, logs: None } => error.hint(),
            Self::Servers { error, logs: Some(logs) } => {
                let kept = format!("the output of what was started for this is kept in {}", logs.display());
                // A run's output is in its folder.
                let is_own = matches!(**error, RunError::Learner(LearnerError::Lost { is_own: true, .. }));
                Some(match error.hint().filter(|_| !is_own) {
                    Some(hint) => format!("{hint}; {kept}"),
                    None => kept,
                })
            }
            Self::Dispatch(DispatchError::Generator(GeneratorError::NotFinite { .. })) => {
                Some(logits_hint(None, None))
            }
            _ => None,
        }
    }
}

fn as_object<S: Serializer>(metrics: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|(name, value)| (name, value)))
}

impl<S> From<S> for Halt<EvaluateError>
where
    EvaluateError: From<S>,
{
    fn from(source: S) -> Self {
        Self::Failed(source.into())
    }
}

impl From<Halt<DispatchError>> for Halt<EvaluateError> {
    fn from(halt: Halt<DispatchError>) -> Self {
        match halt {
            Halt::Interrupted => Self::Interrupted,
            Halt::Failed(error) => error.into(),
        }
    }
}

impl From<DispatchError> for Halt<EvaluateError> {
    fn from(error: DispatchError) -> Self {
        match error {
            DispatchError::Generator(
                lost @ (GeneratorError::Unreachable { .. } | GeneratorError::Learner(_)),
            ) => Self::Failed(EvaluateError::servers(lost.into())),
            error => Self::Failed(EvaluateError::Dispatch(error)),
        }
    }
}

impl From<Fault> for EvaluateError {
    fn from(fault: Fault) -> Self {
        Self::Assemble(fault.into())
    }
}

impl From<RewardError> for EvaluateError {
    fn from(error: RewardError) -> Self {
        Self::Assemble(AssembleError::Reward(error))
    }
}

/// Sets `data.max_prompt_length` and `rollout.max_response_length` to half of the positions of `model.path`
/// each, if the user set neither and together they exceed the positions. Returns a line about what was set.
/// An unreadable model changes nothing: evaluating it reports the fault.
pub fn fit_lengths(config: &mut Config) -> Option<String> {
    let positions =
        TransformerConfig::load_any(&config.model.path.as_ref()?.folder()).ok()?.max_position_embeddings;
    let longest = config.data.max_prompt_length.saturating_add(config.max_completion_length());
    if longest <= positions || positions < 2 {
        return None;
    }
    config.data.max_prompt_length = positions / 2;
    let rest = positions - positions / 2;
    if let Some(environment) = &mut config.environment {
        environment.max_length = Some(environment.max_length.map_or(rest, |length| length.min(rest)));
        return Some(format!(
            "the model reads {positions} tokens: data.max_prompt_length is {}, and environment.max_length {rest}",
            config.data.max_prompt_length
        ));
    }
    config.rollout.max_response_length = rest;
    Some(format!(
        "the model reads {positions} tokens: data.max_prompt_length is {} and rollout.max_response_length {}, as neither is set",
        config.data.max_prompt_length, config.rollout.max_response_length
    ))
}

/// Evaluates `model.path` on the validation prompts as `validate` says, and reports through `progress` what
/// takes long. `places` are the places at which the user set keys. With `keeps_samples`, every completion is
/// returned. Ends soon with [`Halt::Interrupted`] once `interrupt` is requested.
pub fn evaluate(
    config: &Config,
    places: &Places,
    progress: &Console,
    launcher: &dyn Launcher,
    interrupt: &Interrupt,
    keeps_samples: bool,
) -> Result<EvaluationReport, Halt<EvaluateError>> {
    check_published(config)?;
    let folder = private_folder().map_err(|error| {
        let parent = std::env::temp_dir();
        let fault = fault!("failed to make a folder for temporary files in {}", parent.display());
        EvaluateError::Fault(fault.with_source(error))
    })?;
    let evaluated = evaluate_in(folder.path(), config, places, progress, launcher, interrupt, keeps_samples);
    evaluated.map_err(|halt| {
        halt.map(|error| match error {
            // Everything that was started has ended.
            EvaluateError::Servers { error, .. } => {
                EvaluateError::Servers { error, logs: keep_logs(folder.path()) }
            }
            error => error,
        })
    })
}

/// [`evaluate`], with a temporary folder.
fn evaluate_in(
    folder: &Path,
    config: &Config,
    places: &Places,
    progress: &Console,
    launcher: &dyn Launcher,
    interrupt: &Interrupt,
    keeps_samples: bool,
) -> Result<EvaluationReport, Halt<EvaluateError>> {
    let (of_run, regex_place) = (config.clone(), places.rollout_regex.clone());
    let (prompts, codec, model) = interrupt.or_abandon(move || -> Result<_, AssembleError> {
        let prompts = data::validation_prompts(&of_run)?;
        // A checkpoint brings its own tokenizer.
        let codec = policy::codec(&of_run, String::new)?;
        policy::check_regex(&of_run, regex_place.as_deref(), &codec)?;
        let mut prompts = prompts.format_prompts(&of_run, &codec)?;
        prompts.warnings.extend(codec.peer_warning());
        // Servers with that interface have a model of their own.
        let has_own = of_run.rollout.backend == BackendKind::OpenAi;
        let model =
            if has_own || holds_in_torch(&of_run) { None } else { Some(policy::model(&of_run, &codec)?) };
        Ok((prompts, codec, model))
    })??;
    let folder_of_model = config.model.path.as_ref().map(ModelSource::folder);
    let head = folder_of_model.as_deref().and_then(tamis_model::head_warning);
    for warning in prompts.warnings.iter().chain(&head) {
        progress.warn(warning);
    }
    let prompts = prompts.validation;
    if let Some(warning) =
        repeated_rows(prompts.iter().map(|prompt| (prompt.data_source.as_str(), &prompt.content)))
    {
        progress.warn(&warning);
    }
    let disk = Disk::new();
    let listener: Arc<dyn Listener> = RunListener::new(progress, interrupt);
    let rewards = RewardBuilder {
        config,
        folder: RewardFolder { path: folder, disk: &disk, is_run: false },
        listener: &listener,
        interrupt,
        rows: &[&prompts],
        pools: &SharedPools::default(),
    };
    let rewards = rewards.build_all().map_err(|error| error.halt().map(EvaluateError::from))?;
    let mut scorer = Scorer::new(rewards);
    let worlds = RunWorlds::of(config, &codec, &listener)?.map(Arc::new);
    let codec = worlds.as_ref().map_or(codec, |worlds| worlds.codec().clone());
    for note in worlds.iter().flat_map(|worlds| worlds.notes()) {
        progress.say(&note);
    }
    let overlong = config.data.overlong_prompts;
    let (to_tokens, limit) = (codec.clone(), config.data.max_prompt_length);
    let prepared = interrupt
        .or_abandon(move || to_tokens.prepare(prompts, "validation", overlong, limit))?
        .map_err(AssembleError::from)?;
    for warning in &prepared.warnings {
        progress.warn(warning);
    }
    if prepared.prompts.is_empty() {
        return Err(EvaluateError::NoPrompts.into());
    }
    if let Some(first) = prepared.prompts.first() {
        progress.say(&codec.introduction(first).map_err(AssembleError::from)?);
    }
    let servers = |halt: Halt<RunError>| halt.map(EvaluateError::servers);
    let startup = Startup { config, codec: &codec, launcher, disk: &disk, folder, interrupt, ui: progress };
    let learner = if holds_in_torch(config) {
        Some(learner::holder_in_torch(startup).map_err(servers)?)
    } else {
        model.map(|model| learner::holder(startup, model))
    };
    let mut sampler = EvaluationSampler::new(startup, learner).map_err(servers)?;
    let settings = ValidationSettings { keeps_samples, ..validation_settings(config) };
    progress.say(&format!(
        "evaluating {}, {} of each",
        counted(prepared.prompts.len(), "prompt"),
        counted(settings.groups.group_size, "sample")
    ));
    let mut plays = worlds::plays(config, worlds);
    let with = CompletionWorkers {
        generator: &mut plays.over(sampler.generator()),
        inbox: &mut Inbox::default(),
        scorer: &mut scorer,
        is_interrupted: &|| interrupt.is_requested(),
    };
    let Validation { prompts: rows, report, samples } =
        validation::sample(with, &prepared.prompts, &settings, "eval".to_owned(), 0, &mut |_| {})?;
    for warning in scorer.take_warnings().iter().chain(&plays.take_warnings()) {
        progress.warn(warning);
    }
    let names = validation::score_names(&rows);
    // If nothing was scored, that is reported.
    if report.num_scored > 0
        && let Some(warning) = no_pass(config, places, scorer.rewards(), names)
    {
        progress.warn(&warning);
    }
    let mut sources = results_by_source(&rows);
    validation::retain_configured(&mut sources, &config.validate);
    let mut metrics = Metrics::new();
    for source in &sources {
        source.put(&mut metrics);
    }
    Ok(EvaluationReport {
        num_prompts: report.num_prompts,
        num_samples: settings.groups.group_size,
        num_failed: report.num_failed,
        first_failure: report.first_failure.clone(),
        metrics: metrics.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        sources,
        samples: report.shown.clone(),
        prompts: prepared.prompts.iter().map(|prompt| prompt.prompt.id).collect(),
        validation: report,
        all_samples: samples,
    })
}

/// How many of the prompts of a measurement are in the training data of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InTraining {
    /// Prompts that are measured.
    pub num_prompts: usize,
    /// Those of them that are among the training prompts of the run.
    pub num_in_training: usize,
}

/// Counts the prompts of `measured` that are in the training data of a run with the configuration `run`, by
/// their content. Levels of an environment count as 0: which are held out does not depend on the
/// configuration.
///
/// # Errors
/// Data of one of them that cannot be read.
pub fn in_training(measured: &Config, run: &Config) -> Result<InTraining, AssembleError> {
    if [measured, run].iter().any(|config| config.data.task == Some(TaskKind::Environment)) {
        return Ok(InTraining { num_prompts: 0, num_in_training: 0 });
    }
    let prompts = data::validation_prompts(measured)?.validation;
    let ask = |prompt: &Prompt| {
        let images: Vec<String> = prompt.images.iter().map(|image| image.name().to_owned()).collect();
        (text_of(&prompt.content), images)
    };
    let asked: HashSet<_> = prompts.iter().map(ask).collect();
    let trained: HashSet<_> =
        data::prompts(run)?.train.iter().map(ask).filter(|prompt| asked.contains(prompt)).collect();
    let num_in_training = prompts.iter().filter(|prompt| trained.contains(&ask(prompt))).count();
    Ok(InTraining { num_prompts: prompts.len(), num_in_training })
}

/// A text that two prompts share if they ask the same.
fn text_of(content: &PromptContent) -> String {
    match content {
        PromptContent::Text(text) => text.clone(),
        PromptContent::Messages(messages) => format!("{messages:?}"),
    }
}

/// A note about prompts that several rows contain. Files for AIME have each 32 times.
fn repeated_rows<'a>(prompts: impl Iterator<Item = (&'a str, &'a PromptContent)>) -> Option<String> {
    let mut rows: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for (source, content) in prompts {
        *rows.entry((source, text_of(content))).or_default() += 1;
    }
    // A few repetitions are normal, for example among sums that were drawn at random.
    let (fewest, most) = (*rows.values().min()?, *rows.values().max()?);
    (fewest > 1).then(|| {
        format!(
            "each of the {} prompts occurs in several rows (up to {most}): each row counts as a prompt, as in verl 0.9.1, so the mean is \
            over all rows, and best@k, maj@k and pass@k are within a row; for metrics over all samples of a prompt write each prompt \
            once and set validate.n={most}",
            rows.len()
        )
    })
}

/// Whether PyTorch holds the weights, to sample or to give them to servers: the native engine does not know
/// every model. If the native engine learns at another address, it samples here. The samples are the same.
fn holds_in_torch(config: &Config) -> bool {
    let is_asked = config.samples_through_learner()
        || (config.samples_at_servers() && config.rollout.backend != BackendKind::OpenAi);
    is_asked && config.learner.backend == LearnerBackend::Torch
}

/// Refuses a name at the servers for a folder of weights that they do not know: an evaluation publishes to a
/// temporary one.
fn check_published(config: &Config) -> Result<(), AssembleError> {
    let publishes = matches!(config.rollout.backend, BackendKind::Vllm | BackendKind::Sglang);
    if publishes && config.publish_mode() == PublishMode::Adapter && !config.rollout.servers.is_empty() {
        return Err(AssembleError::setting(
            "rollout.servers: an evaluation would replace the model under the run's adapters with its whole weights"
                .to_owned(),
            "evaluate without these servers: rollout.backend=native or learner, or rollout.servers=[] with \
             rollout.launch={}",
        ));
    }
    match &config.publish.server_dir {
        Some(there) if publishes && config.publish.dir.is_none() => Err(AssembleError::setting(
            format!(
                "publish.server_dir: an evaluation publishes its weights to a temporary folder, which servers do not find in `{there}`"
            ),
            format!(
                "set publish.dir to the folder that servers know as `{there}`, or remove publish.server_dir"
            ),
        )),
        _ => Ok(()),
    }
}

/// Moves the output of processes out of an evaluation's folder, which is removed; `None` if there is none.
fn keep_logs(folder: &Path) -> Option<PathBuf> {
    let logs = logs_of_processes(folder);
    if logs.is_empty() {
        return None;
    }
    let kept = private_folder().ok()?;
    for log in logs {
        std::fs::copy(&log, kept.path().join(log.file_name()?)).ok()?;
    }
    Some(kept.keep())
}

/// A folder for the shipped reward runner, which Python then runs. Its name cannot be guessed and others
/// cannot write to it (mode 0700). It is removed with the value.
fn private_folder() -> std::io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("tamis-eval-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.tempdir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_folder_of_the_reward_runner_is_private_and_goes_away() {
        use std::os::unix::fs::PermissionsExt as _;
        let (first, second) = (private_folder().expect("made"), private_folder().expect("made"));
        assert_ne!(first.path(), second.path());
        let path = first.path().to_owned();
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o700);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn rows_of_the_same_prompt_are_told() {
        let told = |texts: &[&str]| {
            let contents: Vec<_> = texts.iter().map(|text| PromptContent::Text((*text).to_owned())).collect();
            repeated_rows(contents.iter().map(|content| ("a", content)))
        };
        assert_eq!((told(&["a", "b"]), told(&["a", "b", "a"]), told(&[])), (None, None, None));
        let warning = told(&["a", "b", "a", "b", "b"]).expect("a warning");
        assert!(warning.starts_with("each of the 2 prompts occurs in several rows (up to 3): "), "{warning}");
        assert!(warning.ends_with("set validate.n=3"), "{warning}");
    }
}
