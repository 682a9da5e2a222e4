//! Everything known about a run, as it is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use super::format::LogFormat;
use super::reading::Reading;
use super::step::Step;

/// Number of steps from which the pace is computed.
const RECENT: usize = 20;
/// Number of steps that are shown one by one.
const HISTORY: usize = 200;

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchedState {
    /// A process works in it.
    Running,
    /// All of its steps are done.
    Finished,
    /// An early stop ended it.
    StoppedEarly,
    /// The last line is an error.
    Failed,
    /// No process works in it, and steps are left.
    Unfinished,
    /// A log does not show it.
    Unknown,
}

impl WatchedState {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::StoppedEarly => "stopped early",
            Self::Failed => "ended with an error",
            Self::Unfinished => "not running",
            Self::Unknown => "a log",
        }
    }
}

/// Four figures about the generated batches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BatchFigures {
    /// Batches generated.
    pub total_batches: u64,
    /// Mean over batches of the share of dropped groups.
    pub average_filter_rate: Option<f64>,
    /// Groups kept.
    pub total_kept: Option<u64>,
    /// Whether there were more: some logs do not contain what the last batch of a step kept.
    pub is_kept_least: bool,
    /// Groups kept per batch, over the batches for which it is known.
    pub average_kept: Option<f64>,
}

/// Groups by where they went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct WatchedGroups {
    /// Generated.
    pub generated: Option<u64>,
    /// Dropped by the filter.
    pub dropped: Option<u64>,
    /// Kept by the filter, if it is known for all batches.
    pub kept: Option<u64>,
    /// Generated for the step in progress, with no verdict yet.
    pub unjudged: Option<u64>,
    /// Trained on.
    pub trained: Option<u64>,
    /// Dropped by the filter, but in a batch all the same.
    pub kept_when_insufficient: Option<u64>,
    /// Copies of trained groups that were trained on.
    pub duplicated: Option<u64>,
    /// Kept and not needed, so discarded.
    pub surplus: Option<u64>,
    /// Too old.
    pub stale: Option<u64>,
    /// Their generation failed.
    pub failed: Option<u64>,
    /// Given up.
    pub aborted: Option<u64>,
}

/// A metric over the steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Course {
    /// Its name.
    pub metric: String,
    /// What it is a mean over, in words.
    pub over: &'static str,
    /// Its first value.
    pub first: f64,
    /// Its last value.
    pub last: f64,
    /// The greatest.
    pub most: f64,
    /// All values, in order.
    #[serde(skip)]
    pub values: Vec<f64>,
}

/// Last and greatest value, and the mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LastMaxMean {
    /// Value of the last step.
    pub last: f64,
    /// Mean over the steps.
    pub mean: f64,
    /// The greatest.
    pub most: f64,
}

/// Times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StepTimes {
    /// Seconds of the last step.
    pub last: Option<f64>,
    /// Mean of the last steps.
    pub per_step: Option<f64>,
    /// Time to the last step at that pace.
    pub left: Option<f64>,
}

/// The step in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Now {
    /// Its number, if it is known.
    pub step: Option<u64>,
    /// Batches so far.
    pub batches: u64,
    /// Groups dropped so far.
    pub dropped: Option<u64>,
    /// Groups ready.
    pub ready: Option<u64>,
    /// Groups wanted.
    pub target: Option<u64>,
    /// Whether it is trained on now.
    pub is_training: bool,
}

/// One step of the past.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PastStep {
    /// Its number.
    pub step: u64,
    /// Batches generated.
    pub batches: u64,
    /// Groups kept.
    pub kept: Option<u64>,
    /// Groups dropped.
    pub dropped: Option<u64>,
    /// Groups kept in all batches but the last, if nothing is known about the last one except that it filled
    /// the step.
    #[serde(skip)]
    pub kept_before_last: Option<u64>,
    /// Groups that it needs, if lines have the number.
    #[serde(skip)]
    pub target: Option<u64>,
    /// Groups of a batch, if the log has the configuration of verl.
    #[serde(skip)]
    pub gen_batch_size: Option<u64>,
    /// Groups that verl's default trainer kept in addition to its batch, whose size may be unknown.
    #[serde(skip)]
    pub kept_beyond_batch: Option<u64>,
    /// Groups generated.
    #[serde(skip)]
    pub generated: Option<u64>,
    /// Trajectories generated.
    #[serde(skip)]
    pub trajectories: Option<u64>,
    /// Share of the generated groups whose members all have the same reward.
    #[serde(skip)]
    pub alike: Option<f64>,
    /// Mean of the metric that [`WatchedRun::reward`] names.
    pub reward: Option<f64>,
    /// Mean of the metric that [`WatchedRun::pass_rate`] names.
    pub pass_rate: Option<f64>,
    /// Seconds that it took.
    pub seconds: Option<f64>,
}

/// Everything known about a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WatchedRun {
    /// The run directory or the log.
    pub path: String,
    /// The program that wrote the lines.
    pub formats: Vec<LogFormat>,
    /// How far the run is.
    pub state: WatchedState,
    /// Its last step that is done.
    pub step: Option<u64>,
    /// Number of steps that were read.
    pub num_steps: u64,
    /// Number of steps that it will have.
    pub total_steps: Option<u64>,
    /// Figures about the generated batches.
    #[serde(rename = "guide")]
    pub batch_figures: BatchFigures,
    /// Groups by where they went.
    pub groups: WatchedGroups,
    /// Dropped groups by the filter's reason.
    pub dropped_by: BTreeMap<String, u64>,
    /// Mean reward.
    pub reward: Option<Course>,
    /// Share of correct trajectories.
    pub pass_rate: Option<Course>,
    /// The main figure of the validation.
    pub validation: Option<Course>,
    /// Batches generated per step.
    pub batches: Option<LastMaxMean>,
    /// Largest lag of the groups of a step.
    pub lag: Option<LastMaxMean>,
    /// Times.
    pub seconds: StepTimes,
    /// The step in progress.
    pub now: Option<Now>,
    /// Figures of the last step.
    pub figures: BTreeMap<String, f64>,
    /// Seconds since the last line was written.
    pub written_ago: Option<f64>,
    /// Notes about the files.
    pub notes: Vec<String>,
    /// The last warnings.
    pub warnings: Vec<String>,
    /// The error, if it was the last line.
    pub error: Option<String>,
    /// The last steps, one by one.
    pub history: Vec<PastStep>,
}

/// State of the files themselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) is_run: bool,
    pub(super) is_held: bool,
    pub(super) total_steps: Option<u64>,
    /// Whether the last line is incomplete.
    pub(super) is_torn: bool,
    /// Whether the run directory or the file is missing.
    pub(super) is_absent: bool,
    /// How often other content replaced the file's.
    pub(super) num_replaced: u64,
    /// Seconds since it was written.
    pub(super) age: Option<f64>,
}

const REWARDS: [(&str, &str); 4] = [
    ("all/critic/score/mean", "all generated"),
    ("critic/score/mean", "trained batch"),
    ("critic/rewards/mean", "trained batch"),
    ("reward/overall", "reward function"),
];
const PASS_RATES: [(&str, &str); 2] =
    [("all/pass_rate", "all generated"), ("reward/accuracy", "reward function")];

impl WatchedRun {
    /// State of what was read: the metrics of a run or a log, and besides metrics the log of the run.
    pub(super) fn of(source: &Source<'_>, main: &Reading, log: Option<&Reading>) -> Self {
        let is_counted = |step: &&Step| step.number != Some(0);
        let mut steps: Vec<&Step> = main.steps.iter().filter(is_counted).collect();
        let last_row = main.steps.last().and_then(|step| step.number);
        let mut open = main.open.as_ref();
        if let Some(log) = log {
            // Without metrics (`run.loggers`) only the log has the steps.
            if steps.is_empty() {
                steps = log.steps.iter().filter(is_counted).collect();
            }
            let is_new =
                |step: &&Step| step.number.is_none_or(|number| last_row.is_none_or(|last| number > last));
            open = log.open.as_ref().filter(is_new);
        }
        let said = log.unwrap_or(main);
        let all: Vec<&Step> = steps.iter().copied().chain(open).collect();
        // Rows count what was in flight when they were written; in the log it belongs to the next step.
        let counted = if log.is_some() && !main.steps.is_empty() { &steps } else { &all };
        // For the step in progress, only judged groups count as generated, dropped and kept. The others are
        // apart.
        let judged = open.map(Step::judged);
        let counted: Vec<&Step> = if counted.len() == steps.len() {
            steps.clone()
        } else {
            steps.iter().copied().chain(judged.as_ref().map(|(judged, _)| judged)).collect()
        };
        let kept = batch_figures(&counted);
        let is_first = |step: &&Step| step.number == Some(0);
        let first = [Some(main), log].into_iter().flatten().find_map(|read| read.steps.iter().find(is_first));
        // A validation before the first step is that of step 0, which has nothing else.
        let validated: Vec<&Step> = first.into_iter().chain(steps.iter().copied()).collect();
        let step = steps.iter().rev().find_map(|step| step.number);
        let total_steps = source.total_steps.or(main.total_steps).or(said.total_steps);
        let reward = REWARDS.iter().find_map(|(name, over)| course(&steps, name, over));
        let pass_rate = PASS_RATES.iter().find_map(|(name, over)| course(&steps, name, over));
        let error = (!said.error.is_empty()).then(|| said.error.join("\n"));
        let formats: BTreeSet<LogFormat> =
            main.formats.iter().chain(log.iter().flat_map(|log| &log.formats)).copied().collect();
        let sum = |of: &dyn Fn(&Step) -> Option<u64>| {
            counted.iter().filter_map(|step| of(step)).reduce(u64::saturating_add)
        };
        let mut dropped_by = BTreeMap::new();
        for (reason, count) in counted.iter().flat_map(|step| step.reasons()).filter(|(_, count)| *count > 0)
        {
            let all: &mut u64 = dropped_by.entry(reason).or_default();
            *all = all.saturating_add(count);
        }
        let state = state(source, &steps, step, total_steps, error.is_some());
        // A step that was begun after the last one is abandoned with the run.
        let is_over = matches!(state, WatchedState::Finished | WatchedState::StoppedEarly);
        Self {
            path: source.path.display().to_string(),
            formats: formats.into_iter().collect(),
            state,
            step,
            num_steps: steps.len() as u64,
            total_steps,
            batch_figures: batch_figures(&all),
            groups: WatchedGroups {
                generated: sum(&Step::generated),
                dropped: sum(&Step::dropped),
                kept: kept.total_kept.filter(|_| !kept.is_kept_least),
                unjudged: judged
                    .as_ref()
                    .filter(|_| counted.len() > steps.len())
                    .map(|(_, groups)| *groups)
                    .filter(|groups| *groups > 0),
                trained: sum(&|step| step.place("trained")),
                kept_when_insufficient: sum(&|step| step.place("kept_when_insufficient")),
                duplicated: sum(&|step| step.place("duplicated")),
                surplus: sum(&|step| step.place("surplus")),
                stale: sum(&|step| step.place("stale")),
                failed: sum(&|step| step.place("failed")),
                aborted: sum(&|step| step.place("aborted")),
            },
            dropped_by,
            validation: validation(&validated),
            batches: spread(steps.iter().map(|step| step.num_batches() as f64).filter(|count| *count > 0.0)),
            lag: spread(steps.iter().filter_map(|step| step.figure(&["schedule/max_lag"]))),
            seconds: pace(&steps, step, total_steps),
            now: open.filter(|open| !is_over && !open.is_blank()).map(|open| Now {
                step: open.number.or_else(|| step.map(|step| step.saturating_add(1))),
                batches: open.num_batches(),
                dropped: open.dropped(),
                ready: open.ready,
                target: open.target,
                is_training: open.is_generated,
            }),
            figures: steps.last().map(|step| step.values.clone()).unwrap_or_default(),
            written_ago: source.age,
            notes: notes(source, &steps, said),
            warnings: said.warnings.clone(),
            error,
            history: history(&steps, reward.as_ref(), pass_rate.as_ref()),
            reward,
            pass_rate,
        }
    }
}

fn course(steps: &[&Step], metric: &str, over: &'static str) -> Option<Course> {
    let values: Vec<f64> = steps.iter().filter_map(|step| step.figure(&[metric])).collect();
    let (first, last) = (*values.first()?, *values.last()?);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Course { metric: metric.to_owned(), over, first, last, most, values })
}

/// The main figure of a validation: the mean of verl's main score, or the reward of EasyR1 and TRL.
fn validation(steps: &[&Step]) -> Option<Course> {
    let names: BTreeSet<&String> = steps.iter().flat_map(|step| step.values.keys()).collect();
    let name = names
        .iter()
        .find(|name| name.starts_with("val-core/") && name.contains("/mean@"))
        .or_else(|| names.iter().find(|name| name.as_str() == "val/accuracy_reward"))
        .or_else(|| names.iter().find(|name| name.as_str() == "val/reward_score"))
        .or_else(|| names.iter().find(|name| name.as_str() == "eval_reward"))?;
    course(steps, name, "validation prompts")
}

fn batch_figures(steps: &[&Step]) -> BatchFigures {
    let (mut rates, mut num_rates, mut kept, mut num_kept, mut is_whole) = (0.0, 0, 0, 0, true);
    let mut total_batches: u64 = 0;
    for step in steps {
        let of_step = step.filter_rates();
        rates += of_step.0;
        num_rates += of_step.1;
        let of_step = step.kept();
        kept = u64::saturating_add(kept, of_step.0);
        num_kept += of_step.1;
        is_whole &= of_step.2;
        total_batches = total_batches.saturating_add(step.num_batches());
    }
    BatchFigures {
        total_batches,
        average_filter_rate: (num_rates > 0).then(|| rates / num_rates as f64),
        total_kept: (num_kept > 0 || kept > 0).then_some(kept),
        is_kept_least: !is_whole,
        average_kept: (num_kept > 0 && is_whole).then(|| kept as f64 / num_kept as f64),
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Option<LastMaxMean> {
    let values: Vec<f64> = values.collect();
    let last = *values.last()?;
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    Some(LastMaxMean { last, mean, most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max) })
}

/// Seconds of each step: the figure, or the time between the ends of two steps.
fn seconds(steps: &[&Step], place: usize) -> Option<f64> {
    let step = steps.get(place)?;
    step.seconds().or_else(|| {
        let before = steps.get(place.checked_sub(1)?)?;
        Some(step.ended? - before.ended?).filter(|seconds| *seconds >= 0.0)
    })
}

fn pace(steps: &[&Step], step: Option<u64>, total: Option<u64>) -> StepTimes {
    let recent: Vec<f64> =
        (steps.len().saturating_sub(RECENT)..steps.len()).filter_map(|place| seconds(steps, place)).collect();
    let per_step = (!recent.is_empty()).then(|| recent.iter().sum::<f64>() / recent.len() as f64);
    let left = step.zip(total).map(|(step, total)| total.saturating_sub(step) as f64);
    let left = left.filter(|left| *left > 0.0).zip(per_step).map(|(left, per_step)| left * per_step);
    StepTimes { last: steps.len().checked_sub(1).and_then(|last| seconds(steps, last)), per_step, left }
}

fn state(
    source: &Source<'_>,
    steps: &[&Step],
    step: Option<u64>,
    total: Option<u64>,
    has_error: bool,
) -> WatchedState {
    let stopped = steps.last().and_then(|step| step.figure(&["train/early_stopped"]));
    if stopped.is_some_and(|stopped| stopped > 0.0) {
        return WatchedState::StoppedEarly;
    }
    if source.is_held {
        return WatchedState::Running;
    }
    let is_done = step.zip(total).is_some_and(|(step, total)| step >= total);
    match (is_done, has_error) {
        (true, _) => WatchedState::Finished,
        (false, true) => WatchedState::Failed,
        (false, false) if source.is_run => WatchedState::Unfinished,
        (false, false) => WatchedState::Unknown,
    }
}

fn notes(source: &Source<'_>, steps: &[&Step], said: &Reading) -> Vec<String> {
    let mut notes = Vec::new();
    if source.is_absent {
        notes.push("it no longer exists: this is what was read of it".to_owned());
    }
    if source.num_replaced > 0 {
        notes.push(format!(
            "the file was replaced {} (a rotated log): earlier lines are counted",
            if source.num_replaced == 1 {
                "once".to_owned()
            } else {
                format!("{} times", source.num_replaced)
            }
        ));
    }
    if source.is_torn {
        notes.push("the last line is not whole yet and is left out".to_owned());
    }
    let impossible = steps.iter().copied().chain(&said.open).flat_map(|step| &step.batches);
    let num_impossible = impossible.filter(|batch| batch.is_impossible).count();
    if num_impossible > 0 {
        notes.push(format!(
            "the counts of {num_impossible} batch{} are left out: more groups dropped and kept than generated, or more than any batch has",
            if num_impossible == 1 { "" } else { "es" }
        ));
    }
    notes.extend(not_finite(steps));
    if steps.is_empty() && said.open.is_none() {
        notes.push("no step yet".to_owned());
    }
    let has_verl_counts = steps.iter().any(|step| step.has_verl_counts);
    if has_verl_counts && steps.iter().all(|step| step.train_batch_size.is_none()) {
        notes.push(
            "verl's configuration, which has the number of groups of a step, is not there: what was kept is not known"
                .to_owned(),
        );
    } else if said.formats.contains(&LogFormat::Verl)
        && !said.formats.contains(&LogFormat::FilterGroups)
        && !has_verl_counts
    {
        notes.push(
            "verl prints no verdicts: what the batch that filled a step kept and dropped is not known"
                .to_owned(),
        );
    }
    notes
}

/// The metrics that were not finite, so that no figure shows them.
fn not_finite(steps: &[&Step]) -> Option<String> {
    let mut found: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (place, step) in steps.iter().enumerate() {
        for (name, _) in step.values.iter().filter(|(_, value)| !value.is_finite()) {
            found.entry(name).or_insert((place, 0)).1 += 1;
        }
    }
    // The first one to go is the most informative.
    let (name, (place, count)) = found.iter().min_by_key(|(_, (place, _))| *place)?;
    let step = steps.get(*place)?.number.unwrap_or(*place as u64 + 1);
    let more = found.len() - 1;
    Some(format!(
        "{name} is not a finite number {} (first in step {step}){}",
        if *count == 1 { "once".to_owned() } else { format!("{count} times") },
        match more {
            0 => String::new(),
            1 => ", nor is another metric".to_owned(),
            more => format!(", nor are {more} others"),
        }
    ))
}

fn history(steps: &[&Step], reward: Option<&Course>, pass_rate: Option<&Course>) -> Vec<PastStep> {
    let of = |step: &Step, course: Option<&Course>| step.figure(&[course?.metric.as_str()]);
    (steps.len().saturating_sub(HISTORY)..steps.len())
        .filter_map(|place| {
            let step = steps.get(place)?;
            let (kept, num_kept, is_whole) = step.kept();
            Some(PastStep {
                step: step.number.unwrap_or(place as u64 + 1),
                batches: step.num_batches(),
                kept: (is_whole && num_kept > 0).then_some(kept),
                dropped: step.dropped(),
                kept_before_last: step.kept_before_last(),
                target: step.target,
                gen_batch_size: step.gen_batch_size,
                kept_beyond_batch: step.kept_beyond_batch(),
                generated: step.generated(),
                trajectories: step.trajectories(),
                alike: step.figure(&["all/frac_reward_zero_std"]).filter(|share| (0.0..=1.0).contains(share)),
                reward: of(step, reward),
                pass_rate: of(step, pass_rate),
                seconds: seconds(steps, place),
            })
        })
        .collect()
}
