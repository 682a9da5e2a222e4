//! The beginning of a run without the run, for `tamis config check`. It finds everything that a run refuses
//! before it has a learner, by the functions that the run itself calls. It leaves nothing behind.

use std::path::PathBuf;

use tamis_config::{
    DataSource, Diagnostic, Loaded, ModelSource, Problem, Severity, TokenizerSource, is_placeholder,
};
use tamis_run::directory::RunDirectory;
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;

use super::look::Start;
use super::prepare::Preparation;
use super::recovery::Standing;
use super::refusals::Refusals;
use super::start::ConfigText;
use crate::assemble::{data, loggers};
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::launcher::MakeLauncher;

/// What is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rehearsal {
    /// Whether data and model can be read. Without them the rewards are tried without rows.
    pub has_data: bool,
    /// Rewards, by index, that are left to the run.
    pub left: Vec<usize>,
    /// Whether the settings are sound. If so, what is made from them is checked.
    pub is_sound: bool,
}

impl Rehearsal {
    /// What remains to be checked after these findings ([`crate::assemble::check::all`]): data and model if
    /// they are on this machine and nothing is wrong with them, and the rewards that can be started.
    pub fn after(loaded: &Loaded, found: &[Diagnostic]) -> Self {
        let config = &loaded.config;
        let is_at = |finding: &Diagnostic, start: &str| match &*finding.problem {
            Problem::Refused { key, .. } => key.starts_with(start),
            Problem::Rule { message, .. } => message.starts_with(&format!("`{start}")),
            _ => false,
        };
        let mut errors = found.iter().filter(|finding| finding.severity == Severity::Error);
        let is_sound = errors.all(|finding| is_at(finding, "reward["));
        let model = &config.model;
        let models = [&model.path, &model.reference, &config.critic.model.path].into_iter().flatten();
        let sources = [&config.data.train, &config.data.val, &config.sft.data, &config.sft.val];
        let sources = sources.into_iter().flat_map(|sources| &sources.0);
        let is_here = models.clone().all(ModelSource::is_local) && sources.clone().all(DataSource::is_local);
        let mut paths: Vec<PathBuf> = models.map(ModelSource::folder).collect();
        paths.extend(sources.flat_map(DataSource::files));
        paths.extend([&model.chat_template, &config.data.prompt_template].into_iter().flatten().cloned());
        if let Some(TokenizerSource::File(path)) = model.init.as_ref().map(|init| &init.tokenizer) {
            paths.push(path.clone());
        }
        let left = config.reward.iter().enumerate().filter(|(index, reward)| {
            let section = format!("reward[{index}]");
            !reward.kind.is_tried() || found.iter().any(|finding| is_at(finding, &section))
        });
        Self {
            has_data: is_sound && is_here && !paths.iter().any(|path| is_placeholder(path)),
            left: left.map(|(index, _)| index).collect(),
            is_sound,
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
    make_launcher: MakeLauncher,
    ui: &Console,
    interrupt: &Interrupt,
) -> Result<Vec<RunError>, Halt<RunError>> {
    let runs = &given.config.run.dir;
    let was_there = runs.exists();
    let found = look(given, rehearsal, make_launcher, ui, interrupt);
    if !was_there && std::fs::remove_dir_all(data::image_folder(&given.config)).is_ok() {
        let _ = std::fs::remove_dir(runs);
    }
    found
}

fn look(
    given: &ConfigText,
    rehearsal: Rehearsal,
    make_launcher: MakeLauncher,
    ui: &Console,
    interrupt: &Interrupt,
) -> Result<Vec<RunError>, Halt<RunError>> {
    let folder = tempfile::tempdir().map_err(|source| {
        let fault = tamis_core::fault!("no temporary folder can be made").with_source(source);
        Halt::Failed(RunError::from(fault.with_hint("set TMPDIR to one that can be written to")))
    })?;
    let disk = Disk::new();
    let directory = RunDirectory::create(&disk, folder.path(), "check").map_err(RunError::from)?;
    let has_data = rehearsal.has_data;
    let mut refusals = Refusals::of_check(rehearsal.left, rehearsal.is_sound);
    let standing = Standing::new(make_launcher);
    let of = Preparation {
        config: &given.config,
        directory: &directory,
        saved: None,
        ui,
        interrupt,
        launcher: &*standing.launcher,
    };
    for lack in loggers::lacks(&given.config) {
        ui.warn(&lack);
    }
    if given.config.is_sft_alone() {
        if has_data {
            refusals.take(super::sft_alone::rehearse(&given.config, ui, interrupt))?;
        }
        return Ok(refusals.into_found());
    }
    let start = if has_data { refusals.take(Start::look(given, None, &standing, interrupt))? } else { None };
    if let Some(Start { prompts, codec, resources, .. }) = start {
        for warning in prompts.warnings.iter().chain(&resources.warnings) {
            ui.warn(warning);
        }
        let ready = of.make_ready(prompts, codec, &given.places, None, &mut refusals);
        drop(refusals.take(ready)?);
    } else {
        of.start_functions(&mut refusals)?;
        let scoring = of.begin_scoring(&data::Prompts::default(), None, None, &mut refusals);
        drop(refusals.take(scoring)?);
    }
    Ok(refusals.into_found())
}
