//! The commands, one file for each, and what several of them need.
//!
//! Shared are: output that survives a closed pipe, the newest run if none is named, and the way from
//! arguments to a checked configuration whose names on a hub have become files.

pub(crate) mod advise;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod docs;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod eval_two;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod filter;
pub(crate) mod learner;
pub(crate) mod monitor;
pub(crate) mod paired;
pub(crate) mod report;
pub(crate) mod rollouts;
pub(crate) mod script;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod sweep;
pub(crate) mod train;

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tamis_core::figure::{agreed, counted};

use tamis_cluster::Cluster;
use tamis_cluster::plan::machines::Machines;
use tamis_config::locate::{Extent, Locate, LocateFailure};
use tamis_config::source::{Origin, SourceKind};
use tamis_config::{
    ConfigErrors, Diagnostic, LauncherKind, LearnerBackend, Loaded, ModelSource, Note, NoteOutcome, Preset,
    Problem, Severity,
};
use tamis_core::fault::causes;
use tamis_core::printable::lines;
use tamis_import::{has_program, load, load_to_check, load_to_show, without_program};
use tamis_run::log::progress::{Console, fit_to_stderr};
use tamis_train::assemble::check::{self, CheckPurpose, Placeholders};
use tamis_train::assemble::hub::{FollowError, Names};
use tamis_train::interrupt::{Halt, Interrupt};
use tamis_train::outside::Outside;
use tamis_train::run::{ConfigText, Rehearsal, rehearse};

use crate::arguments::{Language, LayerArguments};
use crate::failure::{FAILED, Failure, INTERRUPTED, UNREACHABLE, USAGE};

/// What a run takes from the satellites.
pub(crate) const OUTSIDE: Outside =
    Outside { make_launcher: Cluster::make, loggers: &tamis_loggers::AllLoggers };

/// Writes a result to stdout, at once. If nothing reads it any more (`| head`), the command ends quietly with
/// [`Failure::reader_gone`].
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::new(FAILED, format!("error: failed to write to stdout: {error}")),
    })
}

/// As [`show`], for output beside the command's main purpose: the command continues if nothing reads it.
pub(crate) fn announce(text: &str) -> Result<(), Failure> {
    show(text).or_else(|failure| if failure.is_of_reader() { Ok(()) } else { Err(failure) })
}

/// Writes text that may hold what was sampled or read from files, without control characters that a terminal
/// obeys.
pub(crate) fn show(text: &str) -> Result<(), Failure> {
    print(&lines(text))
}

/// An existing page is replaced; nothing else is overwritten.
pub(crate) fn refuse_others(out: &Path, hint: &str) -> Result<(), Failure> {
    let mut start = String::new();
    let Ok(file) = tamis_file::open(out) else { return Ok(()) };
    // A file that cannot be read as text is no page.
    let _ = file.take(15).read_to_string(&mut start);
    if start.is_empty() || start.eq_ignore_ascii_case("<!doctype html>") {
        return Ok(());
    }
    Err(Failure::new(USAGE, format!("error: {} exists, but is not a page\n  hint: {hint}", out.display())))
}

/// What a command needs of a run that the user did not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    Nothing,
    Checkpoint,
    Rollouts,
    /// Rollouts, or the counts of a step.
    Steps,
}

impl Needed {
    fn is_in(self, run: &Path) -> bool {
        match self {
            Self::Nothing => true,
            Self::Checkpoint => tamis_run::directory::last_checkpoint(run).is_ok_and(|last| last.is_some()),
            Self::Rollouts => tamis_run::directory::step_files(run).is_ok_and(|files| !files.is_empty()),
            Self::Steps => {
                let metrics = run.join(tamis_run::directory::METRICS).metadata();
                Self::Rollouts.is_in(run) || metrics.is_ok_and(|metrics| metrics.len() > 0)
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "a checkpoint",
            Self::Rollouts => "rollouts",
            Self::Nothing | Self::Steps => "steps",
        }
    }
}

/// The path in the command line. If there is none, the newest run that has what is needed, with a line on
/// stderr. If no run has it, the newest run: the command then reports what is missing.
pub(crate) fn named_or_newest(named: Option<&PathBuf>, needed: Needed) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let Some(newest) = tamis_run::directory::newest() else {
        let text = "error: no run is named, and there is none in `runs`\n  hint: name the folder that a run printed at its start";
        return Err(Failure::new(USAGE, text));
    };
    let found = tamis_run::directory::newest_with(|run| needed.is_in(run)).unwrap_or_else(|| newest.clone());
    let line = if found == newest {
        format!("the newest run: {}", newest.display())
    } else {
        let what = needed.name();
        format!("the newest run with {what}: {} ({} has none)", found.display(), newest.display())
    };
    let _ = writeln!(std::io::stderr().lock(), "{}", lines(&line));
    Ok(found)
}

/// As [`named_or_newest`] before layers of a configuration: if the first word is an override, it is no path.
pub(crate) fn source_and_layers(
    source: Option<&PathBuf>,
    layers: &LayerArguments,
    needed: Needed,
) -> Result<(PathBuf, LayerArguments), Failure> {
    let mut layers = layers.clone();
    let word = source.and_then(|source| source.to_str().filter(|_| !source.exists()));
    let is_override = word.is_some_and(|word| word.contains('=') || word.starts_with(['~', '+']));
    if is_override && let Some(word) = word {
        layers.arguments.insert(0, word.to_owned());
    }
    Ok((named_or_newest(source.filter(|_| !is_override), needed)?, layers))
}

/// Writes a warning to stderr.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", fit_to_stderr(&lines(&format!("warning: {text}"))));
}

/// A configuration for which the preparations of a run were made.
pub(crate) struct Rehearsed {
    pub(crate) loaded: Loaded,
    /// Lines about names on a hub.
    pub(crate) lines: Vec<String>,
    /// The rewards that were not tried.
    pub(crate) left: Vec<usize>,
}

impl LayerArguments {
    /// Whether neither a file nor an override was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.arguments.is_empty()
    }

    /// Files and overrides. A word with `=`, or one that begins with `~` or `+`, is an override, and so is
    /// the name of a preset that is no file. For a command of another system, its arguments.
    pub(crate) fn split(&self) -> (Vec<PathBuf>, Vec<String>) {
        let mut files = Vec::new();
        let mut overrides = Vec::new();
        let arguments = without_program(&self.arguments);
        for argument in arguments.as_ref().unwrap_or(&self.arguments) {
            if argument.contains('=') || argument.starts_with('~') || argument.starts_with('+') {
                overrides.push(argument.clone());
            } else if Preset::ALL.iter().any(|preset| preset.as_str() == argument)
                && !Path::new(argument).is_file()
            {
                overrides.push(format!("preset={argument}"));
            } else {
                files.push(PathBuf::from(argument));
            }
        }
        overrides.extend(self.of_machine.iter().cloned());
        (files, overrides)
    }

    /// The same for this machine, and a first line about it. If a configuration or another system's command
    /// has GPUs learn, there is no GPU here and no cluster is named, the CPU learns.
    pub(crate) fn here(&self) -> (Self, Option<String>) {
        let unchanged = || (self.clone(), None);
        // Several ranks need a launcher, and the CPU has one.
        let mut launched = self.clone();
        launched.of_machine.push("cluster.launcher=local".to_owned());
        let (loaded, lacks_launcher) = match self.load() {
            Ok(loaded) => (loaded, false),
            Err(_) => match launched.load() {
                Ok(loaded) => (loaded, true),
                Err(_) => return unchanged(),
            },
        };
        let (learner, cluster) = (&loaded.config.learner, &loaded.config.cluster);
        let is_translated = |key: &str| {
            loaded.origin(key).is_some_and(|origin| {
                matches!(origin.source.kind, SourceKind::Translated(_) | SourceKind::TranslatedFile(_))
            })
        };
        let ranks = learner.gpus_per_node.unwrap_or(1) * learner.nodes;
        let is_for_gpus = learner.backend == LearnerBackend::Torch
            && learner.lora.is_none()
            && learner.url.is_none()
            && learner.device == "auto"
            && (learner.gpus_per_node.is_some() || learner.nodes > 1);
        let is_cluster_named = loaded.origin("cluster.address").is_some_and(Origin::is_from_user)
            || std::env::var_os("RAY_ADDRESS").is_some()
            || cluster.launcher == LauncherKind::Ray && !is_translated("cluster.launcher");
        let is_on_cpu = || matches!(Machines::here("auto"), Machines::Known(machines) if machines.iter().all(|machine| machine.gpus.is_empty()));
        if !is_for_gpus || is_cluster_named || !is_on_cpu() {
            return unchanged();
        }
        let mut here = self.clone();
        here.of_machine.push("learner.backend=native".to_owned());
        // A command of another system is translated again; a configuration contains the result.
        let only_for_gpus = [
            "learner.gpus_per_node",
            "learner.nodes",
            "cluster.launcher",
            "cluster.colocate",
            "rollout.sleep_level",
            "publish.mode",
        ];
        let is_written =
            |key: &&str| loaded.origin(key).is_some_and(Origin::is_from_user) && !is_translated(key);
        let is_lacking = |key: &str| lacks_launcher && key == "cluster.launcher";
        here.of_machine.extend(
            only_for_gpus
                .iter()
                .filter(|key| is_written(key) && !is_lacking(key))
                .map(|key| format!("~{key}")),
        );
        let lacking =
            if lacks_launcher { "; there it also needs cluster.launcher=local (or ray)" } else { "" };
        let line = format!(
            "no GPU here: learning on the CPU; on the cluster this is learner.backend=torch, {}{lacking}",
            counted(ranks, "rank")
        );
        (here, Some(line))
    }

    /// Loads the configuration, or reports everything that is wrong with it.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let (files, overrides) = self.split();
        load(&files, &overrides).map_err(|errors| self.refuse(&errors))
    }

    /// As [`Self::load`], to look at the configuration: a required key that is missing is no failure.
    pub(crate) fn load_to_show(&self) -> Result<Loaded, Failure> {
        let (files, overrides) = self.split();
        load_to_show(&files, &overrides).map_err(|errors| self.refuse(&errors))
    }

    /// What is wrong. For a command of another system, also the processes of its launcher.
    fn refuse(&self, errors: &ConfigErrors) -> Failure {
        let mut text = errors.to_string();
        if has_program(&self.arguments) {
            text +=
                "\nnote: `tamis config import -- COMMAND > my.yaml` takes a whole command of another system";
            let is_python = |word: &&String| Language::of(word) == Some(Language::Python);
            if let Some(script) = self.arguments.iter().find(is_python) {
                let _ = write!(
                    text,
                    "\nnote: `tamis train {script}` trains what the GRPOTrainer of a script would train"
                );
            }
        }
        Failure::new(USAGE, text)
    }

    /// As [`Self::load`], after all checks for which a run could be refused before it begins. Also returns
    /// lines about the names on a hub, followed so far.
    pub(crate) fn load_checked(
        &self,
        placeholders: Placeholders,
        extent: Extent,
    ) -> Result<(Loaded, Vec<String>), Failure> {
        let refused = |errors: ConfigErrors| Failure::new(USAGE, errors.to_string());
        follow_checked(self.load()?, CheckPurpose::Begin, placeholders, extent, refused)
    }

    /// As [`Self::load_checked`], but only looks names on a hub up and also makes the preparations of a run:
    /// one list of everything for which the run would be refused before it samples. The disks of this machine
    /// say nothing about a run that is planned elsewhere.
    pub(crate) fn load_rehearsed(
        &self,
        is_elsewhere: bool,
        interrupt: &Interrupt,
    ) -> Result<Rehearsed, Failure> {
        let (ui, stages) = Console::checking();
        ui.stage("reading the configuration and what it names");
        let (files, overrides) = self.split();
        let mut loaded = load_to_check(&files, &overrides).map_err(|errors| self.refuse(&errors))?;
        let (mut found, lines) = find_despite_errors(&mut loaded)?;
        let rehearsal = Rehearsal::after(&loaded, &found);
        let (left, hidden) = (rehearsal.left.clone(), rehearsal.hidden.clone());
        let given = ConfigText::of(loaded.clone(), Vec::new());
        let launcher = if is_elsewhere { Outside::NOTHING.make_launcher } else { OUTSIDE.make_launcher };
        let outside = Outside { make_launcher: launcher, ..OUTSIDE };
        let refusals = rehearse(&given, rehearsal, outside, &ui, interrupt);
        drop(stages);
        let refusals = refusals.map_err(|halt| match halt {
            Halt::Interrupted => Failure::new(INTERRUPTED, "interrupted"),
            Halt::Failed(error) => Failure::of(FAILED, &error, error.hint()),
        })?;
        for error in refusals {
            let (message, hint) = (causes(&error).join("\n  caused by: "), error.hint());
            found.push(Diagnostic::error(Problem::Unready { message, hint }, None));
        }
        for message in ui.kept_warnings() {
            found.push(Diagnostic::warning(Problem::Unready { message, hint: None }, None));
        }
        let is_known =
            |found: &Diagnostic| loaded.warnings.iter().any(|known| known.problem == found.problem);
        found.retain(|found| !is_known(found));
        let has_mistakes = loaded.warnings.iter().any(|known| known.severity == Severity::Error);
        if has_mistakes {
            found.splice(0..0, std::mem::take(&mut loaded.warnings));
        }
        let checked = with_findings(loaded, found).map_err(|errors| {
            let failure =
                if has_mistakes { self.refuse(&errors) } else { Failure::new(USAGE, errors.to_string()) };
            if hidden.is_empty() {
                return failure;
            }
            failure.with_line(&format!("not checked because of errors: {}", hidden.join("; ")))
        })?;
        Ok(Rehearsed { loaded: checked, lines, left })
    }
}

/// The findings of a check of a configuration that may have errors, without those that only follow from
/// them, and the lines about names on a hub.
fn find_despite_errors(loaded: &mut Loaded) -> Result<(Vec<Diagnostic>, Vec<String>), Failure> {
    let (begin, placeholders) = (CheckPurpose::Begin, Placeholders::Warned);
    let errors: Vec<Diagnostic> =
        loaded.warnings.iter().filter(|found| found.severity == Severity::Error).cloned().collect();
    let own = |loaded: &Loaded| {
        let mut found = check::settings(loaded, begin);
        // The section is known to have an error: what is made of it would report that in other words.
        let section = |key: &str| key.split(['.', ']']).next().unwrap_or_default().to_owned();
        let sections: Vec<String> = errors.iter().flat_map(Diagnostic::keys).map(section).collect();
        found.retain(|finding| !finding.keys().iter().any(|key| sections.contains(&section(key))));
        found.extend(check::files(loaded, begin, placeholders));
        found.retain(|finding| !finding.keys().iter().any(|key| loaded.is_unsound(key)));
        found
    };
    let mut found = own(loaded);
    if found.iter().any(|finding| finding.severity == Severity::Error) {
        return Ok((found, Vec::new()));
    }
    let before = loaded.config.clone();
    let followed = Names::new(hub(), Extent::Look).follow(&mut loaded.config, begin);
    match followed {
        Ok(lines) => {
            if loaded.config != before {
                found = own(loaded);
            }
            Ok((found, lines))
        }
        // A name is a setting like another: it is shown where it was written.
        Err(error) if error.reason.failure == LocateFailure::Refused => {
            let hint = error.hint();
            found.push(loaded.refuse(std::slice::from_ref(&error.key), &error.message(), hint.as_deref()));
            Ok((found, Vec::new()))
        }
        Err(error) => Err(Failure::of(code_of(&error), &error, error.hint())),
    }
}

/// Checks a configuration and follows its names on a hub. Returns the lines about these. Faults on this
/// machine are reported before anything is downloaded. `refused` prints errors of the configuration.
pub(crate) fn follow_checked(
    mut loaded: Loaded,
    purpose: CheckPurpose<'_>,
    placeholders: Placeholders,
    extent: Extent,
    refused: impl Fn(ConfigErrors) -> Failure,
) -> Result<(Loaded, Vec<String>), Failure> {
    let (found, lines) = find_and_follow(&mut loaded, purpose, placeholders, extent, &refused)?;
    Ok((with_findings(loaded, found).map_err(refused)?, lines))
}

/// The findings of a check, and the lines about names on a hub.
fn find_and_follow(
    loaded: &mut Loaded,
    purpose: CheckPurpose<'_>,
    placeholders: Placeholders,
    extent: Extent,
    refused: &dyn Fn(ConfigErrors) -> Failure,
) -> Result<(Vec<Diagnostic>, Vec<String>), Failure> {
    let found = check::all(loaded, purpose, placeholders);
    let is_sound = found.iter().all(|finding| finding.severity != Severity::Error);
    let before = loaded.config.clone();
    let lines = if is_sound { follow(loaded, purpose, extent, refused)? } else { Vec::new() };
    let found = if loaded.config == before { found } else { check::all(loaded, purpose, placeholders) };
    Ok((found, lines))
}

/// Finds names of models and data sets.
pub(crate) fn hub() -> Arc<dyn Locate> {
    Arc::new(tamis_hub::NamesOnHub::of_environment())
}

/// Follows the names on a hub that are read for a purpose. Returns a line for each.
pub(crate) fn follow(
    loaded: &mut Loaded,
    purpose: CheckPurpose<'_>,
    extent: Extent,
    refused: &dyn Fn(ConfigErrors) -> Failure,
) -> Result<Vec<String>, Failure> {
    Names::new(hub(), extent).follow(&mut loaded.config, purpose).map_err(|error| {
        if error.reason.failure != LocateFailure::Refused {
            return Failure::of(code_of(&error), &error, error.hint());
        }
        // A name is a setting like others: messages show it at the place at which it was written.
        let hint = error.hint();
        let found = loaded.refuse(std::slice::from_ref(&error.key), &error.message(), hint.as_deref());
        let mut diagnostics = loaded.warnings.clone();
        diagnostics.push(found);
        refused(ConfigErrors { diagnostics })
    })
}

/// The folder of a model in a command line.
pub(crate) fn follow_model(mut model: ModelSource) -> Result<PathBuf, Failure> {
    match Names::new(hub(), Extent::Files).model("model", &mut model) {
        Ok(()) => Ok(model.folder()),
        Err(error) => {
            let hint = error.hint().map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
            Err(Failure::new(code_of(&error), format!("error: {}{hint}", error.message())))
        }
    }
}

/// The exit code for a name that could not be followed.
fn code_of(error: &FollowError) -> u8 {
    match error.reason.failure {
        LocateFailure::Refused => USAGE,
        LocateFailure::Unreachable => UNREACHABLE,
        LocateFailure::Failed => FAILED,
    }
}

/// A configuration with further findings, unless one of them is an error.
pub(crate) fn with_findings(mut loaded: Loaded, found: Vec<Diagnostic>) -> Result<Loaded, ConfigErrors> {
    let is_refused = found.iter().any(|finding| finding.severity == Severity::Error);
    loaded.warnings.extend(found);
    if is_refused { Err(ConfigErrors { diagnostics: loaded.warnings }) } else { Ok(loaded) }
}

/// Errors without warnings that were printed already: those about a run's own configuration, when the run
/// began, and those printed since.
pub(crate) fn new_errors(known: &[Diagnostic], mut errors: ConfigErrors) -> Failure {
    errors.diagnostics.retain(|found| {
        found.severity == Severity::Error || !known.iter().any(|known| known.problem == found.problem)
    });
    Failure::new(USAGE, errors.to_string())
}

/// Warnings about overrides on top of a run's own configuration. That configuration contains every default,
/// and its warnings were printed when the run began.
pub(crate) fn new_notes(own: &Loaded, now: &Loaded) -> Vec<String> {
    let is_new = |warning: &&Diagnostic| !own.warnings.iter().any(|known| known.problem == warning.problem);
    let mut notes: Vec<String> = now.warnings.iter().filter(is_new).map(ToString::to_string).collect();
    notes.extend(now.notes.iter().map(ToString::to_string));
    notes
}

/// Notes on its configuration that the run prints at the start.
pub(crate) fn notes(loaded: &Loaded) -> Vec<String> {
    notes_but(loaded, |_| true)
}

fn notes_but(loaded: &Loaded, is_shown: impl Fn(&Note) -> bool) -> Vec<String> {
    let mut notes: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    notes.extend(loaded.notes.iter().filter(|note| is_shown(note)).map(ToString::to_string));
    notes.extend(loaded.preset_differences.iter().map(ToString::to_string));
    notes
}

/// As [`notes`], but of the keys of other systems only those by which something changes or is lost, and the
/// number of the others. Also returns the notes on the others, for `run.log`.
pub(crate) fn notes_on_changes(loaded: &Loaded) -> (Vec<String>, Vec<String>) {
    let mut notes = notes_but(loaded, |note| note.is_change);
    let rest: Vec<&Note> = loaded.notes.iter().filter(|note| !note.is_change).collect();
    let num_idle = rest.iter().filter(|note| matches!(note.outcome, NoteOutcome::NoEffect(_))).count();
    if let [first, ..] = rest.as_slice() {
        let num_became = rest.len() - num_idle;
        notes.push(format!(
            "{} of {}: {num_became} {} the same here, {num_idle} {} no effect here; run.log lists them",
            counted(rest.len(), "more key"),
            first.owner,
            agreed(num_became, "means", "mean"),
            agreed(num_idle, "has", "have")
        ));
    }
    (notes, rest.iter().map(ToString::to_string).collect())
}
