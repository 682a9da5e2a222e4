//! `tamis sweep`: a grid of runs, and their comparison.
//!
//! `tamis_lab` plans the runs, starts a `tamis train` for each and compares what they left. This module finds
//! GPUs and the date, prints progress, and writes the comparison's files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use tamis_config::Loaded;
use tamis_core::printable::lines;
use tamis_lab::compare::{ComparedVariant, Comparison, compare, variants_of};
use tamis_lab::sweep::plan::{PlanOptions, SweepPlan};
use tamis_lab::sweep::state::StateFolder;
use tamis_lab::sweep::{FailedRun, RunOptions, SweepError, SweepFile, SweepOutcome};
use tamis_run::durable::Disk;
use tamis_train::assemble::check::{self, CheckPurpose, Placeholders};
use tamis_train::interrupt::Interrupt;

use super::train::listen;
use super::{announce, show, warn};
use crate::arguments::SweepArguments;
use crate::failure::{FAILED, Failure, INTERRUPTED, USAGE};

/// Names of the GPUs of this machine; none if the driver does not answer.
fn find_gpus() -> Vec<String> {
    tamis_cluster::plan::machines::find_gpus().unwrap_or_default().into_iter().map(|gpu| gpu.id).collect()
}

pub(crate) fn run(arguments: &SweepArguments) -> Result<u8, Failure> {
    let is_override = |text: &&String| text.contains('=') || text.starts_with(['~', '+']);
    let (overrides, files): (Vec<&String>, Vec<&String>) = arguments.arguments.iter().partition(is_override);
    let paths: Vec<PathBuf> = files.into_iter().map(PathBuf::from).collect();
    let is_sweep =
        |path: &PathBuf| path.extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml");
    if arguments.compare && !paths.iter().any(is_sweep) {
        if paths.is_empty() {
            let hint = "name a sweep, run directories, or files of metrics";
            return Err(Failure::new(USAGE, format!("error: there is nothing to compare\n  hint: {hint}")));
        }
        return compare_others(arguments, &paths);
    }
    let [path] = paths.as_slice() else {
        let message = match paths.len() {
            0 => "no sweep was given".to_owned(),
            several => format!("a sweep is one file, and {several} were given"),
        };
        let hint = "`tamis sweep configs/sweeps/ragen_filtering.yaml --dry-run`";
        return Err(Failure::new(USAGE, format!("error: {message}\n  hint: {hint}")));
    };
    let sweep = SweepFile::read(path).map_err(|errors| Failure::new(USAGE, errors.to_string()))?;
    let identity =
        path.file_stem().map_or_else(|| "sweep".to_owned(), |name| name.to_string_lossy().into_owned());
    let kept = StateFolder::of(&sweep.results).date(&identity);
    if let (None, Some(kept)) = (&arguments.date, kept.as_ref().filter(|kept| **kept != month_and_day())) {
        say(&format!("the sweep of {kept} continues (`--date {}` starts another)", month_and_day()));
    }
    let date = arguments.date.clone().or(kept).unwrap_or_else(month_and_day);
    // Sweeps that share a folder, and parts of one, have separate comparisons.
    let part = arguments.only.as_deref().filter(|part| *part != "all");
    let name = part.map_or_else(|| identity.clone(), |part| format!("{identity}_{part}"));
    let options = PlanOptions {
        date: date.clone(),
        base: arguments.base.clone(),
        overrides: overrides.into_iter().cloned().collect(),
        only: arguments.only.clone(),
    };
    // Only runs that will begin need the files that they name.
    let is_begun = !arguments.dry_run && !arguments.compare;
    let faults = |loaded: &Loaded| {
        if !is_begun {
            return Vec::new();
        }
        check::all(loaded, CheckPurpose::Begin, Placeholders::Refused)
    };
    let plan = SweepPlan::of(&sweep, &options, tamis_import::load, &faults).map_err(|error| fail(&error))?;
    if arguments.dry_run {
        let text: String = plan.runs.iter().map(|run| run.line() + "\n").collect();
        show(&text)?;
        return Ok(0);
    }
    if arguments.compare {
        compare_plan(arguments, &plan, &name)?;
        return Ok(0);
    }
    let interrupt = Interrupt::new();
    listen(&interrupt, "its runs save their last finished steps; Ctrl-C again ends at once, without saving")?;
    let options = RunOptions {
        find_gpus,
        parallel: arguments.parallel.map(usize::from),
        identity: Some((identity, date)),
    };
    let outcome = tamis_lab::sweep::run(&plan, &options, &interrupt.flag(), &mut |line| say(line))
        .map_err(|fault| Failure::of_fault(&fault))?;
    if outcome.is_interrupted() {
        say("interrupted: the same command continues");
        return Ok(INTERRUPTED);
    }
    compare_plan(arguments, &plan, &name)?;
    let (of_early, of_failed) = (tell_ended_early(&outcome), tell_failed(&outcome));
    Ok(if of_failed == 0 { of_early } else { of_failed })
}

/// Progress goes to stderr.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", lines(line));
}

fn fail(error: &SweepError) -> Failure {
    match error {
        SweepError::Configuration(errors) => Failure::new(USAGE, errors.to_string()),
        SweepError::Fault(fault) => Failure::of_fault(fault),
    }
}

/// Names the runs that ended early by themselves.
fn tell_ended_early(outcome: &SweepOutcome) -> u8 {
    let names: Vec<&str> = outcome.ended_early().collect();
    if names.is_empty() {
        return 0;
    }
    let (number, all) = (names.len(), outcome.runs.len());
    say(&format!("{number} of {all} runs ended early ({}): the same command continues", names.join(", ")));
    INTERRUPTED
}

/// Lists the runs that failed, each with the end of its output.
fn tell_failed(outcome: &SweepOutcome) -> u8 {
    let failed: Vec<_> = outcome.failed().collect();
    if failed.is_empty() {
        return 0;
    }
    say(&format!("{} of {} runs failed:", failed.len(), outcome.runs.len()));
    for FailedRun { name, code, lines } in failed {
        let code = code.map_or_else(String::new, |code| format!(" (exit code {code})"));
        say(&format!("  {name}{code}: {}", lines.first().map_or("", String::as_str)));
    }
    say("the same command tries them again, and skips what is finished");
    FAILED
}

/// Compares the runs of a sweep, or of a part of it. `name` is that of the files.
fn compare_plan(arguments: &SweepArguments, plan: &SweepPlan, name: &str) -> Result<(), Failure> {
    let mut variants: Vec<ComparedVariant> = Vec::new();
    for run in &plan.runs {
        match variants.iter_mut().find(|variant| variant.name == run.variant) {
            Some(variant) => variant.runs.push(run.folder.clone()),
            None => variants.push(ComparedVariant {
                name: run.variant.clone(),
                baseline: run.baseline.clone(),
                runs: vec![run.folder.clone()],
            }),
        }
    }
    let found = of_variants(arguments, &variants)?;
    announce(&found.text())?;
    if found.variants.is_empty() {
        return Ok(());
    }
    write(&found, arguments.out.as_deref().unwrap_or(&plan.results), &format!("comparison_{name}"))
}

fn compare_others(arguments: &SweepArguments, paths: &[PathBuf]) -> Result<u8, Failure> {
    if let Some(missing) = paths.iter().find(|path| !path.exists()) {
        let hint = tamis_run::directory::suggest(missing)
            .map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
        return Err(Failure::new(USAGE, format!("error: there is no `{}`{hint}", missing.display())));
    }
    let found = of_variants(arguments, &variants_of(paths))?;
    announce(&found.text())?;
    if let Some(folder) = &arguments.out {
        write(&found, folder, "comparison")?;
    }
    Ok(0)
}

fn of_variants(arguments: &SweepArguments, variants: &[ComparedVariant]) -> Result<Comparison, Failure> {
    let found = compare(variants, &arguments.metric).map_err(|error| Failure::of(FAILED, &error, None))?;
    if found.variants.is_empty() {
        warn("no run has a step yet: there is nothing to compare");
    } else if found.tables.is_empty() && !arguments.metric.is_empty() {
        let asked: Vec<String> = arguments.metric.iter().map(|name| format!("`{name}`")).collect();
        let near = arguments.metric.iter().find_map(|name| found.nearest_metric(name));
        let hint = near.map_or_else(
            || "their names are the keys of the runs' metrics.jsonl".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        let message = format!("error: no run has the metric {}\n  hint: {hint}", asked.join(" or "));
        return Err(Failure::new(USAGE, message));
    }
    Ok(found)
}

/// Today in UTC, as the names of runs begin: `0120`.
fn month_and_day() -> String {
    DateTime::<Utc>::from(SystemTime::now()).format("%m%d").to_string()
}

/// Writes the comparison's files.
fn write(found: &Comparison, folder: &Path, name: &str) -> Result<(), Failure> {
    let disk = Disk::new();
    let failed = |error| Failure::of(FAILED, &error, None);
    disk.create_folder(folder).map_err(failed)?;
    let file = |suffix: &str| folder.join(format!("{name}.{suffix}"));
    for (suffix, text) in [
        ("csv", found.csv()),
        ("md", found.markdown()),
        ("html", found.html().map_err(|fault| Failure::of_fault(&fault))?),
    ] {
        disk.write_file(&file(suffix), text.as_bytes()).map_err(failed)?;
    }
    say(&format!("comparison: {}", file("html").display()));
    Ok(())
}
