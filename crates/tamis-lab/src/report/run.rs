//! One run, read from its directory: metrics, settings, rollouts and log. What is missing or damaged becomes
//! a note, not an error.

use std::path::{Path, PathBuf};
use tamis_core::figure::{agreed, counted};

use tamis_run::directory::{CONFIG, METRICS, ROLLOUTS, RUN_LOG, SUPERSEDED, held_by};
use tamis_run::log::RunEnding;

use super::groups::Groups;
use super::settings::Settings;
use super::steps::StepRange;
use crate::compare::paired::ValidationFacts;
use crate::compare::series::Series;
use crate::monitor::summary::WatchedState;
use crate::other_runs::OtherRun;
use crate::{Fault, names};

/// Largest number of bytes that are read of a run's log.
const MOST_LOG: u64 = 256 << 20;

/// How the first line of a resumed process begins.
const RESUMING: &str = "resuming ";

/// The data of one run for a page.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its name, which distinguishes it from the others.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Its metrics, for the requested steps.
    pub(crate) series: Series,
    /// Its last step, requested or not.
    pub(crate) last_step: Option<u64>,
    /// Its settings; empty if they cannot be read.
    pub(crate) settings: Settings,
    pub(crate) groups: Groups,
    pub(crate) log: Option<LogFacts>,
    pub(crate) state: WatchedState,
    /// Notes about its files.
    pub(crate) notes: Vec<String>,
    /// What its validations measure.
    pub(crate) validations: ValidationFacts,
    /// The run of another trainer, which holds its rollout files.
    pub(crate) other: Option<OtherRun>,
}

/// The progress of a run, in the words of the page.
pub(crate) fn state_name(state: WatchedState) -> &'static str {
    match state {
        WatchedState::Unfinished => "unfinished",
        WatchedState::Unknown => "",
        other => other.name(),
    }
}

impl Run {
    /// Reads a run directory, one of another trainer, or a file of metrics.
    pub(crate) fn read(path: &Path, range: StepRange) -> Result<Self, Fault> {
        if !path.exists() {
            let hint = "name the folder that a run printed at its start, or a `metrics.jsonl`";
            return Err(Fault::nothing_there(path, hint));
        }
        let mut other = OtherRun::find(path)?;
        if let Some(other) = &mut other {
            other.make_metrics()?;
            other.make_rollouts(|step| range.contains(step))?;
        }
        let own = path;
        let path = other.as_ref().map_or(own, OtherRun::folder);
        let is_folder = path.is_dir();
        if is_folder && ![CONFIG, METRICS, ROLLOUTS].iter().any(|name| path.join(name).exists()) {
            let message = format!(
                "{} is not a run directory: there is neither `config.yaml` nor `metrics.jsonl` nor a `rollouts` folder in it",
                path.display()
            );
            let is_run = |run: &Path| run.join(METRICS).is_file();
            return Err(Fault::usage(message).with_hint(match names::run_inside(path, is_run) {
                Some(run) => format!("there are runs in it: did you mean `{}`?", run.display()),
                None => "name the folder that a run printed at its start".to_owned(),
            }));
        }
        let mut notes = other.as_ref().map_or_else(Vec::new, OtherRun::notes);
        let mut series = match Series::read(path) {
            Ok(series) => series,
            Err(error) if is_folder && error.is_not_found() => {
                notes.push(format!("there is no `{METRICS}` yet: the run has not finished its first step"));
                Series::default()
            }
            Err(error) => return Err(error),
        };
        if series.is_torn {
            notes.push(format!(
                "the last line of `{METRICS}` is not whole and is left out: a process was writing it, or was killed while it did"
            ));
        }
        notes.extend(series.left_out(&format!("`{METRICS}`")));
        let last_step = series.rows.last().map(|row| row.step);
        let settings = match &other {
            Some(other) => Settings::of_another(other.system(), other.total_steps()),
            None if is_folder => read_settings(path, &mut notes),
            None => Settings::default(),
        };
        let log = if is_folder { LogFacts::read(&path.join(RUN_LOG)) } else { None };
        let state = state(path, is_folder, &settings, &series, log.as_ref());
        series.rows.retain(|row| range.contains(row.step));
        let groups = if is_folder { Groups::read(path, range) } else { Groups::default() };
        if other.is_none() {
            note_rollouts(path, is_folder, &settings, &series, &groups, range, &mut notes);
        }
        let is_own = is_folder && other.is_none();
        let validations = if is_own { ValidationFacts::read(path) } else { ValidationFacts::default() };
        if let since @ 1.. = validations.since {
            notes.push(format!(
                "validations before step {since} are not comparable with later ones: on a resume, the validation prompts, their sampling or \
                 a function's file had changed"
            ));
        }
        if path.join(SUPERSEDED).is_file() {
            notes.push(format!(
                "the run was resumed; log lines from after the checkpoint are in `{SUPERSEDED}`"
            ));
        }
        Ok(Self {
            name: String::new(),
            path: own.to_owned(),
            series,
            last_step,
            settings,
            groups,
            log,
            state,
            notes,
            validations,
            other,
        })
    }

    /// Its name: that of its folder, or of its file without the suffix.
    pub(crate) fn place(&self) -> PathBuf {
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        if path.is_dir() { path } else { path.with_extension("") }
    }

    /// Steps with metrics or rollouts.
    pub(crate) fn steps(&self) -> impl Iterator<Item = u64> {
        let rows = self.series.rows.iter().map(|row| row.step);
        rows.chain(self.groups.steps.iter().map(|step| step.step))
    }

    /// Values of a metric by step, infinite ones too.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (u64, f64)> + 'a {
        self.series.rows.iter().filter_map(move |row| {
            Some((row.step, *row.values.get(name).or_else(|| row.infinite.get(name))?))
        })
    }

    /// Whether a metric has a value anywhere.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// The sum of a metric over the steps; `None` if it has no value.
    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        self.values(name).map(|(_, value)| value).reduce(|sum, value| sum + value)
    }
}

fn read_settings(path: &Path, notes: &mut Vec<String>) -> Settings {
    let file = path.join(CONFIG);
    if !file.exists() {
        notes.push(format!("there is no `{CONFIG}`: settings are not shown"));
        return Settings::default();
    }
    Settings::read(&file).unwrap_or_else(|reason| {
        notes.push(format!("`{CONFIG}` cannot be read, and settings are not shown: {reason}"));
        Settings::default()
    })
}

/// Notes what the rollout files lack.
fn note_rollouts(
    path: &Path,
    is_folder: bool,
    settings: &Settings,
    series: &Series,
    groups: &Groups,
    range: StepRange,
    notes: &mut Vec<String>,
) {
    let saved = settings.get("rollout.save");
    if !is_folder {
        notes.push("this is a file of metrics: settings, groups and completions are not shown".to_owned());
    } else if saved == Some("off") || saved == Some("false") {
        notes.push(
            "the run saved no rollouts (`rollout.save: off`): groups and completions are not shown"
                .to_owned(),
        );
    } else if groups.is_empty {
        notes.push(format!(
            "there are no rollout files in `{}`: groups and completions are not shown",
            path.join(ROLLOUTS).display()
        ));
    } else if saved == Some("kept") {
        notes.push(
            "only trajectories of trained groups were saved (`rollout.save: kept`): what the filter dropped is missing from \
             groups and completions"
                .to_owned(),
        );
    }
    for (file, reason) in &groups.unreadable {
        notes.push(format!("`{}` cannot be read and is left out: {reason}", file.display()));
    }
    let missing = series.rows.iter().filter(|row| row.step > 0 && groups.of_step(row.step).is_none()).count();
    if missing > 0 && !groups.steps.is_empty() && range.contains(series.rows.last().map_or(0, |row| row.step))
    {
        let have = agreed(missing, "has", "have");
        notes.push(format!("{} {have} metrics but no rollout file", counted(missing, "step")));
    }
}

/// Facts about the run as a whole, from its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFacts {
    /// When its first and its last line were written.
    pub(crate) times: (String, String),
    pub(crate) error: Option<String>,
    /// Whether it ended with all steps done. If data or epochs ended it, no setting has their number.
    pub(crate) is_finished: bool,
}

impl LogFacts {
    fn read(log: &Path) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&tamis_file::read(log, MOST_LOG).ok()?))
    }

    /// Lines are `TIME KIND TEXT`. The last lines of the kind `error` are how a run ended.
    fn parse(log: &str) -> Option<Self> {
        let parts = |line: &str| {
            let (time, rest) = line.split_once(' ')?;
            let is_time = time.len() >= 19 && time.as_bytes().get(10) == Some(&b'T');
            let (kind, text) = rest.split_once(' ').unwrap_or((rest, ""));
            is_time.then(|| (time.to_owned(), kind.to_owned(), text.to_owned()))
        };
        let first = log.lines().find_map(parts)?;
        let mut error: Vec<String> = Vec::new();
        for (_, kind, text) in log.lines().rev().filter_map(parts) {
            if kind != "error" {
                break;
            }
            error.push(text);
        }
        let (last, ..) = log.lines().rev().find_map(parts)?;
        error.reverse();
        // What to change after a run without progress is written after its end.
        let mut of_process =
            log.lines().rev().filter_map(parts).take_while(|(_, _, text)| !text.starts_with(RESUMING));
        let has_ended = of_process.any(|(_, _, text)| text == RunEnding::Finished.last_line());
        let is_finished = error.is_empty() && has_ended;
        let error = (!error.is_empty()).then(|| error.join("\n"));
        Some(Self { times: (first.0, last), error, is_finished })
    }
}

fn state(
    path: &Path,
    is_folder: bool,
    settings: &Settings,
    series: &Series,
    log: Option<&LogFacts>,
) -> WatchedState {
    let last = series.rows.last();
    let stopped = last.and_then(|row| row.values.get("train/early_stopped"));
    if stopped.is_some_and(|stopped| *stopped > 0.0) {
        return WatchedState::StoppedEarly;
    }
    if is_folder && held_by(path).is_some() {
        return WatchedState::Running;
    }
    if log.is_some_and(|log| log.is_finished) {
        return WatchedState::Finished;
    }
    match settings.number("train.total_steps") {
        Some(total) if last.is_some_and(|last| last.step >= total) => WatchedState::Finished,
        _ if log.is_some_and(|log| log.error.is_some()) => WatchedState::Failed,
        Some(_) => WatchedState::Unfinished,
        None => WatchedState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_log_ends_with() {
        let line = |second: u32, rest: &str| format!("2026-11-26T12:47:{second:02}.174Z {rest}\n");
        let log = [line(1, "info begins"), line(2, "error an old one"), line(3, "info goes on")].concat();
        let facts = LogFacts::parse(&log).unwrap();
        assert_eq!(facts.times.0, "2026-11-26T12:47:01.174Z");
        assert_eq!((facts.times.1.as_str(), facts.error), ("2026-11-26T12:47:03.174Z", None));
        let log = log + &line(4, "error the run ends") + &line(4, "error   hint: x") + "2026-11-2";
        let facts = LogFacts::parse(&log).unwrap();
        assert_eq!(facts.error.as_deref(), Some("the run ends\n  hint: x"));
        assert!(!facts.is_finished);
        let facts = LogFacts::parse(
            &(line(1, "info begins") + &line(2, &format!("info {}", RunEnding::Finished.last_line()))),
        );
        assert!(facts.unwrap().is_finished);
        let ended = line(1, "info begins") + &line(2, &format!("info {}", RunEnding::Finished.last_line()));
        let advised = ended + &line(3, "info nothing was learned in 6 steps: no held-out prompt changed");
        assert!(LogFacts::parse(&advised).unwrap().is_finished);
        let resumed = advised + &line(4, "info resuming runs/a after step 6") + &line(5, "info step 7/9");
        assert!(!LogFacts::parse(&resumed).unwrap().is_finished);
        assert_eq!(LogFacts::parse("no log\n"), None);
    }
}
