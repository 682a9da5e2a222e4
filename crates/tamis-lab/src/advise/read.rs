//! Reads evidence from a command line's path: rollouts, a run or a log.

use std::path::{Path, PathBuf};

use crate::monitor::summary::{PastStep, WatchedRun};
use crate::monitor::{LogFormat, Watch};
use crate::report::StepRange;
use serde::Serialize;
use tamis_config::load_of_run;
use tamis_data::columns::ColumnFile;
use tamis_data::records::{FileFormat, RecordError, Records};
use tamis_run::directory::{CONFIG, FolderError, METRICS, ROLLOUTS, RUN_LOG, step_files};

use super::evidence::{Evidence, FilledSteps, Groups, LoggedCounts, Sampled};
use super::filled::{self, FilledStep};
use super::plan::AdvicePlan;
use super::rows::{Outcome, Reader, not_of_steps};
use crate::Fault;
use crate::other_runs::OtherRun;

/// Enough groups to judge a policy. Of a run, the last steps that hold this many are read.
const ENOUGH: usize = 1024;
/// Above any real batch size of verl: a larger number is damaged.
const MOST_PROMPTS: usize = 1 << 20;

/// Kind of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceSource {
    /// Files of rollouts.
    Rollouts,
    /// Counts from a run or a log.
    Log,
}

/// Reads a path: the rollouts of a run or a file, or the counts of a run without rollouts or of a log.
/// Without a range, only the last steps of a run with enough groups are read.
///
/// # Errors
/// The path does not exist, a file cannot be read, or the files hold nothing about groups.
pub fn read(
    path: &Path,
    steps: Option<StepRange>,
    metric: Option<&str>,
    plan: &AdvicePlan,
) -> Result<Evidence, Fault> {
    read_with_notes(path, steps, metric, plan).map(|(evidence, _)| evidence)
}

/// As [`read`], and returns notes about a run of another trainer.
///
/// # Errors
/// As [`read`].
pub fn read_with_notes(
    path: &Path,
    steps: Option<StepRange>,
    metric: Option<&str>,
    plan: &AdvicePlan,
) -> Result<(Evidence, Vec<String>), Fault> {
    if !path.exists() {
        let hint = "name a run directory, a file of rollouts (JSONL or Parquet), or a log";
        return Err(Fault::nothing_there(path, hint));
    }
    let other = OtherRun::find_rows(path)?;
    let of_log = || {
        let notes = other.as_ref().map_or_else(Vec::new, OtherRun::notes);
        Ok((log(path, steps, plan)?, notes))
    };
    let files = if let Some(other) = &other {
        let files = if other.is_sieved() { Vec::new() } else { own_files(other, steps)? };
        if files.is_empty() {
            return of_log();
        }
        files
    } else if path.is_dir() {
        let files = tables(path)?;
        let is_partial = plan.saves_kept_alone && path.join(METRICS).is_file();
        if files.is_empty() || is_partial {
            return of_log();
        }
        files
    } else if is_rollouts(path)? {
        vec![(None, path.to_owned())]
    } else {
        return of_log();
    };
    let most = if steps.is_none() { ENOUGH } else { usize::MAX };
    let hint = "an outcome is read from `acc`, `accuracy`, `success`, `score` or `reward`; name another with --metric";
    let outcome = metric.map_or(Outcome::Best { hint }, Outcome::Named);
    let groups = rollouts(path, &files, steps, most, outcome)?;
    Ok((Evidence::Groups(groups), other.as_ref().map_or_else(Vec::new, OtherRun::notes)))
}

const OUTCOMES_HINT: &str = "an outcome is read from `acc`, `accuracy`, `success`, `score` or `reward`";
const RATES_HINT: &str =
    "`simulate.pass_rate.path` names a run directory, or a file of rollouts (Parquet or JSONL)";

/// Reads all groups of a run or of a rollout file, for `simulate.pass_rate.path`.
///
/// # Errors
/// The path does not exist, a file cannot be read, or the files hold nothing about groups.
pub(crate) fn read_groups(path: &Path) -> Result<Groups, Fault> {
    if !path.exists() {
        return Err(Fault::nothing_there(path, RATES_HINT));
    }
    let other = OtherRun::find_rows(path)?;
    let files = if let Some(other) = &other {
        own_files(other, None)?
    } else if path.is_dir() {
        tables(path)?
    } else {
        is_rollouts(path)?.then(|| (None, path.to_owned())).into_iter().collect()
    };
    if files.is_empty() {
        return Err(Fault::usage(format!("no rollouts are in {}", path.display())).with_hint(RATES_HINT));
    }
    rollouts(path, &files, None, usize::MAX, Outcome::Best { hint: OUTCOMES_HINT })
}

/// The files of another trainer's run in the form of ours: those of the requested steps, or the last ones
/// with enough groups.
fn own_files(other: &OtherRun, steps: Option<StepRange>) -> Result<Vec<(Option<u64>, PathBuf)>, Fault> {
    let mut files = Vec::new();
    let mut num_rows = 0;
    for step in other.steps().rev() {
        if (other.is_table() || steps.is_none_or(|range| range.contains(step)))
            && let Some(file) = other.rollouts(step)?
        {
            num_rows += ColumnFile::open(&file)?.num_rows();
            files.push((Some(step).filter(|_| !other.is_table()), file));
        }
        // A group has at least two members, or teaches nothing.
        if steps.is_none() && num_rows >= 64 * ENOUGH {
            break;
        }
    }
    files.reverse();
    Ok(files)
}

/// The rollout files of a run, or the tables of any other folder, by step. The step is the last number in the
/// name.
fn tables(path: &Path) -> Result<Vec<(Option<u64>, PathBuf)>, FolderError> {
    let own = step_files(path)?;
    if !own.is_empty() || [METRICS, CONFIG].iter().any(|name| path.join(name).is_file()) {
        return Ok(own.into_iter().map(|(step, file)| (Some(step), file)).collect());
    }
    let inside = path.join(ROLLOUTS);
    let mut files = Vec::new();
    let failed = |source| FolderError { path: path.to_owned(), source };
    for entry in std::fs::read_dir(if inside.is_dir() { &inside } else { path }).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let is_table = file
            .extension()
            .is_some_and(|ending| ["parquet", "jsonl", "ndjson"].iter().any(|of| ending == *of));
        if is_table && file.is_file() {
            let name = file.file_stem().and_then(|name| name.to_str());
            let last =
                name.and_then(|name| name.split(|of: char| !of.is_ascii_digit()).rfind(|of| !of.is_empty()));
            files.push((last.and_then(|digits| digits.parse().ok()), file));
        }
    }
    files.sort();
    Ok(files)
}

/// How the groups were sampled, by the configuration of the run that the path is or belongs to. The plan may
/// differ.
fn sampled(path: &Path) -> Sampled {
    let folder = path.parent();
    let run = match path.file_name().and_then(|name| name.to_str()) {
        _ if path.is_dir() => Some(path),
        Some(METRICS | RUN_LOG) => folder,
        _ => folder.filter(|folder| folder.ends_with(ROLLOUTS)).and_then(Path::parent),
    };
    let own = run.map(|run| run.join(CONFIG)).filter(|own| own.is_file());
    let loaded = own.and_then(|own| load_of_run(&own, &[], &[]).ok());
    loaded.map_or_else(Sampled::default, |loaded| Sampled {
        n: Some(loaded.config.rollout.n),
        max_response_length: Some(loaded.config.rollout.max_response_length),
        temperature: Some(loaded.config.rollout.temperature),
        screen_first: loaded.config.schedule.screen_first,
    })
}

fn rollouts(
    path: &Path,
    files: &[(Option<u64>, PathBuf)],
    steps: Option<StepRange>,
    most: usize,
    outcome: Outcome<'_>,
) -> Result<Groups, Fault> {
    let mut reader = Reader::new(outcome);
    for (number, (step, file)) in files.iter().enumerate().rev() {
        if let Some(step) = step.filter(|step| steps.is_some_and(|range| !range.contains(*step))) {
            reader.leave_out(step);
            continue;
        }
        reader.read(file, number, *step, steps)?;
        if reader.num_groups() >= most {
            break;
        }
    }
    if reader.num_groups() == 0 {
        return Err(reader.nothing(path));
    }
    let mut groups = Groups { sampled: sampled(path), ..reader.end()? };
    let found = [groups.first_members, groups.sampled.screen_first];
    groups.first_members = found.into_iter().flatten().min();
    Ok(groups)
}

/// Whether a file holds rollouts: Parquet, or JSON objects of which the first is no row of metrics.
fn is_rollouts(path: &Path) -> Result<bool, Fault> {
    if FileFormat::of(path)? == FileFormat::Parquet {
        return Ok(true);
    }
    let is_named = path.extension().is_some_and(|ending| ending == "jsonl" || ending == "ndjson");
    let is_metrics = path.file_name().is_some_and(|name| name == METRICS);
    let is_json = is_named || path.extension().is_some_and(|ending| ending == "json");
    let mut records = match Records::open(path) {
        // Lines of a log may start with a bracket.
        Err(RecordError::JsonArray { .. }) if !is_json => return Ok(false),
        opened => opened?,
    };
    match records.next() {
        None | Some(Err(RecordError::Row { .. })) => Ok(is_named && !is_metrics),
        Some(Ok(row)) => {
            let is_step = ["train/num_gen_batches", "training/global_step", "timing_s/step"];
            // verl's file logger has the figures of a step under `data`.
            let figures = row.values.get("data").and_then(|data| data.as_object()).unwrap_or(&row.values);
            Ok(!is_step.iter().any(|name| figures.contains_key(*name)) && !is_metrics)
        }
        Some(Err(error @ (RecordError::Open { .. } | RecordError::Read { .. }))) => Err(error.into()),
        Some(Err(_)) => Ok(false),
    }
}

fn log(path: &Path, steps: Option<StepRange>, plan: &AdvicePlan) -> Result<Evidence, Fault> {
    let mut watch = Watch::open(path)?;
    watch.check_understood()?;
    let summary = watch.summary();
    let mut counts = LoggedCounts {
        sampled: sampled(path),
        ..counts(&summary, steps.unwrap_or(StepRange::ALL), steps.is_none(), plan)
    };
    counts.find_members(plan);
    if counts.is_of_another_rule {
        let filter = plan.other_filter.clone().unwrap_or_else(|| "null".to_owned());
        let message = format!(
            "{}: its counts are those of the run's filter `{filter}`, and there is no `all/frac_reward_zero_std`, the share of groups \
            with equal rewards",
            path.display()
        );
        return Err(Fault::failed(message).with_hint("name the run's rollouts"));
    }
    if counts.steps.is_empty() && counts.keep_rate.is_none() {
        let mut gap = None;
        if summary.history.iter().any(|point| point.kept_beyond_batch.is_some()) {
            gap = Some("give the number of groups of a step (`data.train_batch_size=N` after it), which verl prints with its \
                configuration".to_owned());
        } else if summary.formats.contains(&LogFormat::Verl) {
            match count_filled(&summary, steps, plan, &mut counts) {
                Ok(()) => {}
                Err(VerlGap::OtherSteps(steps)) => return Err(not_of_steps(path, steps)),
                Err(VerlGap::Lacking(what)) => gap = Some(what),
            }
        }
        if counts.steps.is_empty() {
            let message = format!("{}: no step has the number of kept groups", path.display());
            return Err(Fault::failed(message).with_hint(gap.map_or_else(
                || "name the run's rollouts, or a log with the lines in docs/reading-a-run.md".to_owned(),
                |what| format!("{what}; or give the rollouts that it dumps (`trainer.rollout_data_dir`)"),
            )));
        }
    }
    Ok(Evidence::Counts(counts))
}

/// Why verl's output does not give the keep rate.
enum VerlGap {
    /// None of the requested steps is there; the first and the last one that is.
    OtherSteps((u64, u64)),
    /// Description of what the log lacks.
    Lacking(String),
}

impl VerlGap {
    fn no_refill() -> Self {
        Self::Lacking("verl prints nothing about a batch that fills its step, and no step took a second one: most prompts are kept, or \
            there was no filter".to_owned())
    }

    fn no_lines() -> Self {
        Self::Lacking("steps took several batches, and their lines (`num_prompt_in_batch=424 < prompt_bsz=1024`) are not there: give all that verl printed".to_owned())
    }
}

/// Reads counts from verl's output: for each step the number of batches, and the groups kept in all but the
/// last one. Without a range, only the last steps with enough groups are read.
fn count_filled(
    summary: &WatchedRun,
    range: Option<StepRange>,
    plan: &AdvicePlan,
    counts: &mut LoggedCounts,
) -> Result<(), VerlGap> {
    let steps = summary.history.iter();
    let of_range: Vec<&PastStep> =
        steps.filter(|point| range.is_none_or(|range| range.contains(point.step))).collect();
    if let (true, Some((first, last))) =
        (of_range.is_empty(), summary.history.first().zip(summary.history.last()))
    {
        return Err(VerlGap::OtherSteps((first.step, last.step)));
    }
    let count = |count: Option<u64>| {
        count.and_then(|count| usize::try_from(count).ok()).filter(|count| (1..=MOST_PROMPTS).contains(count))
    };
    // If one batch filled a step, no line has the step's target. It is then that of the step before.
    let first = of_range.iter().find_map(|point| count(point.target));
    let mut target = first.ok_or_else(|| {
        if of_range.iter().any(|point| point.batches > 1) {
            VerlGap::no_lines()
        } else {
            VerlGap::no_refill()
        }
    })?;
    let planned = plan.is_round_known.then_some(plan.gen_batch_size as u64);
    let (mut filled, mut impossible, mut num_told) = (Vec::new(), None, 0);
    for point in &of_range {
        target = count(point.target).unwrap_or(target);
        let generated = count(point.gen_batch_size).or(count(planned)).ok_or_else(|| {
            VerlGap::Lacking("give the number of prompts of a batch (`data.gen_batch_size=N` after it), which verl prints with its \
                configuration".to_owned())
        })?;
        let batches = count(Some(point.batches));
        num_told += usize::from(batches.is_some());
        let kept = point.kept_before_last.and_then(|kept| usize::try_from(kept).ok());
        if let (Some(kept), Some(batches)) = (kept.filter(|kept| *kept < target), batches) {
            let step = FilledStep { step: point.step, batches, kept, target, generated };
            if step.is_possible() {
                filled.push(step);
            } else {
                impossible = impossible.or(Some(step));
            }
        }
    }
    if let Some(step) = impossible.filter(|_| 2 * filled.len() < num_told) {
        let FilledStep { step, generated, .. } = step;
        return Err(VerlGap::Lacking(format!(
            "what is printed for step {step} and others does not fit batches of {generated} prompts: check `data.gen_batch_size`"
        )));
    }
    if !filled.iter().any(|step| step.batches > 1) {
        let is_refilled = of_range.iter().any(|point| point.batches > 1);
        return Err(if is_refilled { VerlGap::no_lines() } else { VerlGap::no_refill() });
    }
    let mut judged = 0;
    let enough = filled.iter().rposition(|step| {
        judged += step.judged();
        judged >= ENOUGH
    });
    // Steps that one batch filled bound the rate only from below.
    let refilled = filled.iter().rposition(|step| step.batches > 1);
    let from = if range.is_none() { enough.unwrap_or(0).min(refilled.unwrap_or(0)) } else { 0 };
    let num_before =
        if from > 0 { of_range.iter().filter(|point| point.step < filled[from].step).count() } else { 0 };
    let last = filled.split_off(from);
    let keep = filled::keep_rate(&last);
    counts.steps =
        last.iter().map(|step| (step.judged() as u64, step.expected(keep.value).round() as u64)).collect();
    counts.range = last.first().zip(last.last()).map(|(first, last)| (first.step, last.step));
    let end = last.last();
    counts.train_batch_size = end.map(|step| step.target);
    counts.gen_batch_size = end.map(|step| step.generated);
    counts.of_filled = Some(FilledSteps {
        keep_rate: keep,
        num_left_out: of_range.len() - num_before - last.len(),
        planned_size: of_range
            .iter()
            .any(|point| count(point.gen_batch_size).is_none())
            .then_some(plan.gen_batch_size),
    });
    Ok(())
}

/// The counts of a summary. If the filter has another rule, or there is none, the number of kept groups is
/// not the number of groups whose members differ. The latter is then computed from the share of groups with
/// equal rewards.
fn counts(summary: &WatchedRun, range: StepRange, is_cut: bool, plan: &AdvicePlan) -> LoggedCounts {
    let mut counts = LoggedCounts {
        dropped_by: summary.dropped_by.clone(),
        truncated: summary
            .figures
            .get("response_length/clip_ratio")
            .copied()
            .filter(|share| share.is_finite()),
        entropy: summary.figures.get("actor/entropy").copied().filter(|entropy| entropy.is_finite()),
        rounds: summary.batches.map(|batches| batches.mean),
        ..LoggedCounts::default()
    };
    let (mut judged, mut rates, mut batches) = (0, Vec::new(), 0);
    let points: Vec<_> = summary.history.iter().rev().filter(|point| range.contains(point.step)).collect();
    let shares: Vec<f64> = points.iter().filter_map(|point| point.alike).collect();
    // A log with dropped groups had a filter, whatever the plan.
    let drops_none = summary.groups.dropped.unwrap_or(0) == 0;
    let is_of_another_rule = plan.other_filter.is_some() || drops_none && plan.has_filter == Some(false);
    let are_told =
        !shares.is_empty() && points.iter().all(|point| point.alike.is_some() || point.kept.is_none());
    counts.is_by_rewards =
        are_told && (is_of_another_rule || drops_none && shares.iter().any(|share| *share > 0.0));
    counts.is_of_another_rule = is_of_another_rule && !are_told;
    for point in points {
        rates.extend(point.pass_rate);
        // verl's default trainer logs only what it kept beyond a full batch.
        let beyond = point.kept_beyond_batch.filter(|_| plan.is_batch_known);
        let with_batch = || beyond.map(|groups| groups.saturating_add(plan.train_batch_size as u64));
        if let (Some(kept), Some(dropped)) = (point.kept.or_else(with_batch), point.dropped) {
            let of_step = kept.saturating_add(dropped);
            let kept = match point.alike.filter(|_| counts.is_by_rewards) {
                Some(alike) => ((1.0 - alike) * of_step as f64).round() as u64,
                None => kept,
            };
            let dropped = of_step - kept.min(of_step);
            counts.steps.push((of_step, kept));
            let (first, _) = counts.range.unwrap_or((point.step, point.step));
            counts.range = Some((point.step.min(first), counts.range.map_or(point.step, |(_, last)| last)));
            judged += of_step;
            batches += point.batches;
            if let (Some(groups), Some(trajectories)) = (point.generated, point.trajectories) {
                counts.members.push([groups, trajectories, dropped, kept]);
            }
        }
        if is_cut && judged >= ENOUGH as u64 {
            break;
        }
    }
    counts.steps.reverse();
    counts.pass_rate = (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
    if counts.steps.is_empty() && !shares.is_empty() && summary.formats.contains(&LogFormat::Trl) {
        // TRL logs the share of alike groups but not their number.
        counts.keep_rate = Some(1.0 - shares.iter().sum::<f64>() / shares.len() as f64);
    } else if counts.steps.is_empty() && is_cut {
        counts.keep_rate = summary
            .batch_figures
            .average_filter_rate
            .map(|rate| 1.0 - rate)
            .filter(|_| !counts.is_by_rewards);
        // The first step is not finished, but the log has counts of its groups so far.
        if let (Some(generated), Some(dropped)) = (summary.groups.generated, summary.groups.dropped)
            && let Some(kept) = generated.checked_sub(dropped).filter(|_| generated > 0)
        {
            let alike = shares.iter().sum::<f64>() / shares.len() as f64;
            let kept =
                if counts.is_by_rewards { ((1.0 - alike) * generated as f64).round() as u64 } else { kept };
            counts.steps.push((generated, kept));
            (judged, batches) = (generated, summary.batch_figures.total_batches);
        }
    }
    let of_steps = |groups: Option<u64>| {
        let groups = groups?.checked_div(summary.num_steps)?;
        usize::try_from(groups).ok().filter(|groups| *groups > 0)
    };
    let target = summary.now.and_then(|now| usize::try_from(now.target?).ok());
    counts.train_batch_size = of_steps(summary.groups.trained).or(target);
    counts.gen_batch_size =
        judged.checked_div(batches).and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
    counts
}
