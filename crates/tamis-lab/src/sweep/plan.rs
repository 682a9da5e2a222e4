//! The plan of a sweep: every run with its name, folder, arguments and configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tamis_config::{ConfigErrors, Diagnostic, LoadFunction, Loaded, Problem, Severity};
use tamis_run::directory::is_name;

use super::cost::Cost;
use super::error::SweepError;
use super::file::{Argument, SweepFile};
use super::point::points;
use crate::Fault;

/// Options from the command line.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// Month and day in the names (`0120`).
    pub date: String,
    /// Files and overrides that replace the sweep's base.
    pub base: Vec<String>,
    /// Overrides of every run, over the base and under the axes.
    pub overrides: Vec<String>,
    /// The named part of the sweep to run; `None` or `all`: every run.
    pub only: Option<String>,
}

/// One run of a sweep.
#[derive(Debug, Clone)]
pub struct PlannedRun {
    /// Its name, which is also its folder's name in the results.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The name that runs with other seeds share.
    pub variant: String,
    /// The variant that it is compared with. A baseline names itself.
    pub baseline: String,
    /// The arguments of `tamis train`.
    pub arguments: Vec<String>,
    /// Its configuration.
    pub loaded: Loaded,
}

impl PlannedRun {
    /// Its cost.
    pub fn cost(&self) -> Cost {
        Cost::of(&self.loaded.config)
    }

    /// Its line in a dry run: folder and cost.
    pub fn line(&self) -> String {
        format!("{}/  {}", self.folder.display(), self.cost())
    }
}

/// All runs of a sweep, in order.
#[derive(Debug, Clone)]
pub struct SweepPlan {
    /// Folder of the runs' folders.
    pub results: PathBuf,
    /// The runs.
    pub runs: Vec<PlannedRun>,
    /// Number of runs at the same time.
    pub parallel: usize,
}

impl SweepPlan {
    /// Plans a sweep, and loads the configuration of every run with `load`. `check` finds what the trainer
    /// refuses before a run starts, such as missing files. It is not called for a run whose folder already
    /// exists.
    ///
    /// # Errors
    /// [`SweepError::Fault`] for names that the sweep does not have, [`SweepError::Configuration`] with all
    /// errors in the configurations of runs.
    pub fn of(
        sweep: &SweepFile,
        options: &PlanOptions,
        load: LoadFunction,
        check: &dyn Fn(&Loaded) -> Vec<Diagnostic>,
    ) -> Result<Self, SweepError> {
        let is_date = options.date.len() == 4 && options.date.bytes().all(|byte| byte.is_ascii_digit());
        if !is_date {
            let message = format!("the date `{}` is not a month and a day", options.date);
            return Err(Fault::usage(message)
                .with_hint("write it as MMDD: `--date 0120` is 20 January")
                .into());
        }
        let wanted = options.only.as_deref().filter(|only| *only != "all");
        let group = wanted.map(|only| find_group(sweep, only)).transpose()?;
        let base = if options.base.is_empty() {
            sweep.base.clone()
        } else {
            options.base.iter().map(|text| Argument { text: text.clone(), origin: None }).collect()
        };
        let points = points(sweep);
        refuse_axes(options, &points)?;

        let mut found = Vec::new();
        let mut runs: Vec<PlannedRun> = Vec::new();
        let mut places: BTreeMap<String, String> = BTreeMap::new();
        let seeds: Vec<Option<u64>> =
            if sweep.seeds.is_empty() { vec![None] } else { sweep.seeds.iter().copied().map(Some).collect() };
        let names_seed = sweep.name.names().any(|name| name == "seed");
        let name_of = |point: &super::point::SweepPoint, seed: Option<&str>| {
            let value = |name: &str| match name {
                "date" => Some(options.date.clone()),
                "seed" => Some(seed.unwrap_or("base").to_owned()),
                axis => Some(point.label(axis).unwrap_or("none").to_owned()),
            };
            let name = sweep.name.fill(value).unwrap_or_default();
            match seed {
                Some(seed) if !names_seed && sweep.seeds.len() > 1 => format!("{name}_seed{seed}"),
                _ => name,
            }
        };
        for point in &points {
            if group.is_some_and(|values| !point.fulfils(values)) {
                continue;
            }
            for &seed in &seeds {
                let seed_text = seed.map(|seed| seed.to_string());
                let name = name_of(point, seed_text.as_deref());
                let shown: Vec<String> =
                    point.labels.iter().map(|(axis, label)| format!("{axis} {label}")).collect();
                let shown = shown.join(", ");
                if !is_name(&name) {
                    let message = format!("`{name}` (of {shown}) is not a folder name");
                    let hint = "a name has no `/` and at most 255 bytes; put values that make no valid name under `sets`, which have names";
                    found.push(refused(sweep, message, hint));
                    continue;
                }
                if let Some(other) = places.insert(name.clone(), shown.clone()) {
                    let message = format!("`{name}` is the name of two runs: {other}, and {shown}");
                    found.push(refused(
                        sweep,
                        message,
                        "let the template name every axis that distinguishes them",
                    ));
                    continue;
                }
                let own = |text: String| Argument { text, origin: None };
                let seed = seed.map(|seed| own(format!("run.seed={seed}")));
                let typed = options.overrides.iter().cloned().map(own);
                let folder =
                    [own(format!("run.dir={}", sweep.results.display())), own(format!("run.name={name}"))];
                let arguments: Vec<Argument> = base
                    .iter()
                    .cloned()
                    .chain(typed)
                    .chain(point.set.iter().cloned())
                    .chain(seed)
                    .chain(folder)
                    .collect();
                let (overrides, files): (Vec<&Argument>, Vec<&Argument>) =
                    arguments.iter().partition(|argument| argument.is_override());
                let files: Vec<PathBuf> =
                    files.iter().map(|argument| PathBuf::from(&argument.text)).collect();
                let overrides: Vec<String> = overrides.iter().map(|argument| argument.text.clone()).collect();
                match load(&files, &overrides) {
                    Ok(loaded) => {
                        let folder = sweep.results.join(&name);
                        // A run that has started was checked then, and is compared with its own
                        // configuration.
                        if !folder.exists() {
                            let errors =
                                check(&loaded).into_iter().filter(|fault| fault.severity == Severity::Error);
                            found.extend(errors.map(|error| place(error, &arguments)));
                        }
                        runs.push(PlannedRun {
                            folder,
                            name,
                            variant: name_of(point, None),
                            baseline: name_of(&points[point.baseline], None),
                            arguments: arguments.into_iter().map(|argument| argument.text).collect(),
                            loaded,
                        });
                    }
                    Err(errors) => {
                        found.extend(errors.diagnostics.into_iter().map(|error| place(error, &arguments)));
                    }
                }
            }
        }
        // A mistake in the base is the same in every run.
        let mut told: Vec<String> = Vec::new();
        found.retain(|error: &Diagnostic| {
            let text = error.to_string();
            let is_new = !told.contains(&text);
            told.push(text);
            is_new
        });
        if found.iter().any(|found| found.severity == Severity::Error) {
            return Err(SweepError::Configuration(ConfigErrors { diagnostics: found }));
        }
        Ok(Self { results: sweep.results.clone(), runs, parallel: sweep.parallel })
    }
}

fn find_group<'s>(sweep: &'s SweepFile, only: &str) -> Result<&'s super::file::Values, Fault> {
    let found = sweep.only.iter().find(|(name, _)| name.text == only);
    found.map(|(_, values)| values).ok_or_else(|| {
        let names: Vec<&str> = sweep.only.iter().map(|(name, _)| name.text.as_str()).collect();
        Fault::usage(format!("the sweep has no part `{only}`"))
            .with_hint(format!("`--only` takes {}", [vec!["all"], names].concat().join(", ")))
    })
}

/// An override of a key that an axis sets would have no effect.
fn refuse_axes(options: &PlanOptions, points: &[super::point::SweepPoint]) -> Result<(), Fault> {
    let set: Vec<&str> = points.iter().flat_map(|point| &point.set).map(Argument::key).collect();
    for text in &options.overrides {
        let argument = Argument { text: text.clone(), origin: None };
        let key = argument.key();
        if set.contains(&key) {
            let message = format!("`{text}` has no effect: the sweep sets `{key}` itself");
            return Err(Fault::usage(message).with_hint("change it in the sweep's file"));
        }
    }
    Ok(())
}

fn refused(sweep: &SweepFile, message: String, hint: &str) -> Diagnostic {
    let problem = Problem::Refused { key: "name".to_owned(), message, hint: Some(hint.to_owned()) };
    Diagnostic::error(problem, Some(sweep.name_origin.clone()))
}

/// Moves an error in an override to the override's place in the sweep's file.
fn place(mut found: Diagnostic, arguments: &[Argument]) -> Diagnostic {
    let of_line = |argument: &&Argument| {
        found.origin.as_ref().is_some_and(|origin| {
            origin.source.kind.file().is_none()
                && !origin.source.text.is_empty()
                && origin.source.text == argument.text
        })
    };
    if let Some(origin) = arguments.iter().find(of_line).and_then(|argument| argument.origin.clone()) {
        found.origin = Some(origin);
    }
    found
}

#[cfg(test)]
mod tests;
