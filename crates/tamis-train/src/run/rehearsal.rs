//! The beginning of a run without the run, for `tamis config check`. It finds everything that a run refuses
//! before it has a learner, by the functions that the run itself calls. It leaves nothing behind.

use std::path::PathBuf;

use tamis_config::{
    Config, DataSource, Diagnostic, Loaded, ModelSource, Severity, TokenizerSource, is_placeholder,
};
use tamis_env::task::TaskKind;
use tamis_run::directory::RunDirectory;
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;

use super::look::Start;
use super::prepare::Preparation;
use super::recovery::Standing;
use super::refusals::Refusals;
use super::start::ConfigText;
use crate::assemble::{data, policy};
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::outside::Outside;

/// What is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rehearsal {
    /// Whether the training data is there to be read.
    pub reads_train: bool,
    /// Whether the validation data is there to be read.
    pub reads_validation: bool,
    /// Whether tokenizer and model are there to be read.
    pub reads_model: bool,
    /// Whether the rows of supervised fine-tuning are there to be read.
    pub reads_sft: bool,
    /// Whether the prompts can be prepared as the model sees them.
    pub prepares_prompts: bool,
    /// Whether the list of rewards could be read.
    pub knows_rewards: bool,
    /// Rewards, by index, that are left to the run.
    pub left: Vec<usize>,
    /// Whether the settings beside the rewards are sound: what is made of them is looked at.
    pub is_sound: bool,
    /// What is not looked at because of errors.
    pub hidden: Vec<String>,
}

/// Keys of data that say nothing about what its rows are.
const NOT_OF_ROWS: [&str; 7] = [
    "data.train_batch_size",
    "data.gen_batch_size",
    "data.max_prompt_length",
    "data.overlong_prompts",
    "data.curriculum",
    "data.check_gold",
    "data.shuffle",
];

/// Whether a key is one of these, or within one.
fn is_at(key: &str, sections: &[&str]) -> bool {
    sections.iter().any(|section| {
        key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

impl Rehearsal {
    /// After these findings ([`crate::assemble::check::all`]) and those of loading: with data and model if
    /// they are on this machine and nothing is wrong with them, and with the rewards that can be started.
    pub fn after(loaded: &Loaded, found: &[Diagnostic]) -> Self {
        let config = &loaded.config;
        let all = loaded.warnings.iter().chain(found);
        let errors: Vec<&Diagnostic> = all.filter(|finding| finding.severity == Severity::Error).collect();
        let blames = |sections: &[&str]| {
            errors.iter().any(|finding| finding.keys().iter().any(|key| is_at(key, sections)))
        };
        let is_of_rewards = |finding: &&Diagnostic| finding.keys().iter().any(|key| is_at(key, &["reward"]));
        let is_sound = errors.iter().all(is_of_rewards);
        let knows_rewards = !config.reward.is_empty() || !loaded.is_unsound("reward");

        let of_rows = |key: &str, split: &str| {
            let other =
                if split == "data.train" { ["data.val", "data.val_fraction"] } else { ["data.train"; 2] };
            is_at(key, &["data", "environment", "more_environments"])
                && !is_at(key, &NOT_OF_ROWS)
                && !is_at(key, &other)
        };
        let faulty_rows =
            |split: &str| errors.iter().any(|finding| finding.keys().iter().any(|key| of_rows(key, split)));
        let faulty_model = blames(&["model", "critic.model"]);
        let is_there = |sources: &[DataSource]| {
            let is_placed = |source: &DataSource| !source.files().iter().any(|path| is_placeholder(path));
            sources.iter().all(|source| source.is_local() && is_placed(source))
        };
        let model = &config.model;
        let models = [&model.path, &model.reference, &config.critic.model.path].into_iter().flatten();
        let mut paths: Vec<PathBuf> = models.clone().map(ModelSource::folder).collect();
        paths.extend([&model.chat_template].into_iter().flatten().cloned());
        if let Some(TokenizerSource::File(path)) = model.init.as_ref().map(|init| &init.tokenizer) {
            paths.push(path.clone());
        }
        let has_model =
            models.clone().all(ModelSource::is_local) && !paths.iter().any(|path| is_placeholder(path));
        let template = config.data.prompt_template.as_ref();
        let has_template = template.is_none_or(|path| !is_placeholder(path));
        let (bad_train, bad_validation) = (faulty_rows("data.train"), faulty_rows("data.val"));
        let needs_both = config.data.task == Some(TaskKind::Gsm8kCalculator);
        let reads_train = !bad_train
            && has_template
            && is_there(&config.data.train.0)
            && (!needs_both || !bad_validation && is_there(&config.data.val.0));
        let reads_validation = !bad_validation && has_template && is_there(&config.data.val.0);
        let reads_model = !faulty_model && has_model;
        let prompt_sections =
            ["data", "environment", "more_environments", "rollout", "model", "critic", "sft", "run.python"];
        let bad_prompts = blames(&prompt_sections);

        // A warning too: a placeholder for a path has one.
        let is_faulty = |index: usize| {
            let section = format!("reward[{index}]");
            found.iter().any(|finding| finding.keys().iter().any(|key| is_at(key, &[&section])))
        };
        let takes_python = |index: usize| {
            let within = format!("reward.{index}.");
            blames(&["run.python"]) && loaded.interpreters_of_run().iter().any(|key| key.starts_with(&within))
        };
        let is_left = |index: &usize| {
            let is_tried = config.reward.get(*index).is_some_and(|reward| reward.kind.is_tried());
            !is_tried || is_faulty(*index) || takes_python(*index)
        };
        let left: Vec<usize> = (0..config.reward.len()).filter(is_left).collect();

        let mut hidden = Vec::new();
        if bad_train {
            hidden.push(
                "the rows of the training data, and whether rewards take their gold answers".to_owned(),
            );
        }
        if bad_validation && !bad_train {
            hidden.push("the rows of the validation data".to_owned());
        }
        if bad_prompts && !bad_train {
            hidden.push("the prompts as the model sees them".to_owned());
        }
        if !knows_rewards {
            hidden.push("rewards".to_owned());
        }
        let faulty: Vec<String> = config
            .reward
            .iter()
            .enumerate()
            .filter(|(index, _)| is_faulty(*index) || takes_python(*index))
            .map(|(_, reward)| format!("`{}`", reward.name))
            .collect();
        if !faulty.is_empty() {
            hidden.push(format!("what reward {} does", faulty.join(" and ")));
        }
        if !is_sound {
            hidden.push("the filter, the memory and the machines".to_owned());
        }
        Self {
            reads_train,
            reads_validation,
            reads_model,
            reads_sft: has_template && is_there(&config.sft.data.0) && is_there(&config.sft.val.0),
            prepares_prompts: reads_train && reads_model && !bad_prompts,
            knows_rewards,
            left,
            is_sound: is_sound && knows_rewards,
            hidden,
        }
    }
}

/// Prepares a run up to its learner in a temporary folder. Returns everything for which it would be refused.
/// Warnings go to `ui`. Reward functions are started and asked about gold answers; environments are started.
///
/// # Errors
/// [`Halt::Interrupted`], or no temporary folder can be made.
pub fn rehearse(
    given: &ConfigText,
    rehearsal: Rehearsal,
    outside: Outside,
    ui: &Console,
    interrupt: &Interrupt,
) -> Result<Vec<RunError>, Halt<RunError>> {
    let runs = &given.config.run.dir;
    let was_there = runs.exists();
    let found = look(given, rehearsal, outside, ui, interrupt);
    if !was_there && std::fs::remove_dir_all(data::image_folder(&given.config)).is_ok() {
        let _ = std::fs::remove_dir(runs);
    }
    found
}

fn look(
    given: &ConfigText,
    rehearsal: Rehearsal,
    outside: Outside,
    ui: &Console,
    interrupt: &Interrupt,
) -> Result<Vec<RunError>, Halt<RunError>> {
    let folder = tempfile::tempdir().map_err(|source| {
        let fault = tamis_core::fault!("no temporary folder can be made").with_source(source);
        Halt::Failed(RunError::from(fault.with_hint("set TMPDIR to one that can be written to")))
    })?;
    let disk = Disk::new();
    let directory = RunDirectory::create(&disk, folder.path(), "check").map_err(RunError::from)?;
    let mut refusals = Refusals::of_check(rehearsal.left, rehearsal.is_sound);
    let standing = Standing::new(outside);
    let of = Preparation {
        config: &given.config,
        directory: &directory,
        saved: None,
        ui,
        interrupt,
        launcher: &*standing.launcher,
    };
    for lack in outside.loggers.lacks(&given.config) {
        ui.warn(&lack);
    }
    let Rehearsal {
        reads_train,
        reads_validation,
        reads_model,
        prepares_prompts,
        knows_rewards,
        is_sound,
        ..
    } = rehearsal;
    let reads_model = reads_model && rehearsal.reads_sft;
    if given.config.is_sft_alone() {
        if reads_validation && reads_model && is_sound {
            refusals.take(super::sft_alone::rehearse(&given.config, ui, interrupt))?;
        }
        return Ok(refusals.into_found());
    }
    if reads_train && reads_validation && reads_model && is_sound {
        ui.stage("reading data and model");
        if let Some(start) = refusals.take(Start::look(given, None, &standing, interrupt))? {
            let Start { prompts, codec, resources, .. } = start;
            for warning in prompts.warnings.iter().chain(&resources.warnings) {
                ui.warn(warning);
            }
            let ready = of.make_ready(prompts, codec, &given.places, None, &mut refusals);
            drop(refusals.take(ready)?);
            return Ok(refusals.into_found());
        }
    }
    // What one of them lacks does not hide what the others are refused for.
    let is_whole = reads_validation && reads_model && is_sound;
    let mut prompts = None;
    if reads_train {
        let (read, error) = read_prompts(&given.config, reads_validation, interrupt)?;
        if let Some(error) = error.filter(|_| !is_whole) {
            refusals.take::<(), _>(Err(error))?;
        }
        prompts = read;
    }
    of.start_functions(&mut refusals)?;
    if knows_rewards {
        let rows = prompts.clone().unwrap_or_default();
        let scoring = of.begin_scoring(&rows, None, None, &mut refusals);
        drop(refusals.take(scoring)?);
    }
    if let Some(prompts) = prompts.filter(|_| prepares_prompts && !is_whole) {
        let codec = policy::codec(&given.config, || prompts.alphabet());
        if let Some(codec) = refusals.take(codec)?
            && let Some(prompts) = refusals.take(prompts.format_prompts(&given.config, &codec))?
        {
            let played = of.prepare_prompts(prompts, codec, &mut refusals);
            drop(refusals.take(played)?);
        }
    }
    Ok(refusals.into_found())
}

/// The prompts of a run, without those of a validation that cannot be read; and what is wrong with them.
fn read_prompts(
    config: &Config,
    reads_validation: bool,
    interrupt: &Interrupt,
) -> Result<(Option<data::Prompts>, Option<RunError>), Halt<RunError>> {
    let whole = config.clone();
    let mut alone = config.clone();
    alone.data.val.0.clear();
    alone.data.val_fraction = None;
    let read = interrupt.or_abandon(move || {
        let error = match data::prompts(if reads_validation { &whole } else { &alone }) {
            Ok(prompts) => return (Some(prompts), None),
            Err(error) => error,
        };
        let train = if reads_validation { data::prompts(&alone).ok() } else { None };
        (train, Some(error))
    })?;
    Ok((read.0, read.1.map(RunError::from)))
}
