//! `tamis report` writes everything about one run, or about several side by side, into one HTML file.
//!
//! ```text
//! run directory -> Run (run.rs)   metrics.jsonl -> Series     charts.rs by figures.rs, time.rs, accounting.rs, every.rs
//!                                 config.yaml   -> Settings   settings.rs
//!                 checkpoints/, rollouts/ -> the advice that a run's end printed (../advise/ended.rs)
//!                                 rollouts/     -> Groups     sieve.rs: what became of groups, heat map
//!                                               -> samples    samples.rs: completions side by side
//! all of it -> Data -> html/page.html
//! ```
//! The page contains its style and its script and loads nothing from elsewhere. All of it can be read without
//! the script. The same files give the same bytes. If there is too much for one page, it is thinned evenly,
//! with a note.

mod accounting;
mod before_after;
mod charts;
mod every;
mod figures;
mod groups;
mod overview;
mod places;
mod run;
mod samples;
pub(crate) mod settings;
mod sieve;
mod steps;
mod time;
pub(crate) mod verdict;

use std::collections::BTreeSet;
use std::path::PathBuf;

use accounting::Account;
use before_after::{BeforeAfter, Pair};
use charts::Charts;
use every::Metric;
use figures::Part;
use overview::Fact;
use places::Places;
use run::Run;
use samples::SampledStep;
use serde::Serialize;
use settings::{Setting, Settings, UnlikeValidations, differences, unlike_rewards, unlike_validations};

pub use steps::StepRange;

use tamis_core::fault::chain;

use crate::advise::EndAdvice;
use crate::html::{Kind, document};
use crate::monitor::summary::WatchedState;
use crate::{Fault, names};

/// What a page is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOptions {
    /// Run directories, or files of metrics.
    pub runs: Vec<PathBuf>,
    /// The steps that the page is about.
    pub steps: StepRange,
    /// Number of groups of each run that are shown with their completions; `None`: 48, or fewer if there are
    /// few steps.
    pub num_samples: Option<usize>,
    /// Title; `None`: the names of the runs.
    pub title: Option<String>,
}

/// A finished page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The whole file.
    pub html: String,
    /// Steps of all runs.
    pub num_steps: usize,
    /// Trajectories in the rollout files.
    pub num_trajectories: u64,
    /// Notes about the files, each with its run.
    pub notes: Vec<(PathBuf, String)>,
}

/// Reads the runs and makes the page.
///
/// # Errors
/// A path that is no run, or a step that no run has. What a run lacks is no error: the page has a note.
pub fn page(options: &PageOptions) -> Result<Page, Fault> {
    let mut runs: Vec<Run> = Vec::new();
    for path in &options.runs {
        let same = |run: &Run| std::fs::canonicalize(&run.path).ok() == std::fs::canonicalize(path).ok();
        if path.exists() && runs.iter().any(same) {
            return Err(
                Fault::usage(format!("{} is given twice", path.display())).with_hint("name each run once")
            );
        }
        runs.push(Run::read(path, options.steps)?);
    }
    if runs.is_empty() {
        return Err(Fault::usage("no run is given").with_hint("`tamis report runs/quickstart`"));
    }
    let places: Vec<PathBuf> = runs.iter().map(Run::place).collect();
    for (run, name) in runs.iter_mut().zip(names::apart(&places)) {
        run.name = name;
    }
    let steps = || runs.iter().flat_map(Run::steps);
    // A validation before the first step is drawn at 0.
    let (first, last) = (steps().min(), steps().max());
    if options.steps != StepRange::ALL && first.is_none() {
        let message =
            format!("no run has one of the {} that `--steps` asks for; {}", options.steps, there(&runs));
        return Err(Fault::usage(message).with_hint("leave `--steps` out for all of them"));
    }
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
    let mut samples: Vec<Vec<SampledStep>> = Vec::new();
    let mut pairs_of_runs: Vec<BeforeAfter> = Vec::new();
    let shared = samples::shared_steps(&runs);
    for run in &mut runs {
        let (found, failed) = samples::read(&run.groups, &shared, options.num_samples);
        run.notes.extend(failed.into_iter().map(|reason| format!("completions are left out: {reason}")));
        samples.push(found);
        let pairs = match options.num_samples {
            Some(0) => Ok(BeforeAfter::default()),
            _ => BeforeAfter::read(run, options.steps),
        };
        pairs_of_runs.push(pairs.unwrap_or_else(|error| {
            run.notes.push(format!("completions before and after are left out: {}", chain(&error)));
            BeforeAfter::default()
        }));
    }
    let html = render(options, &runs, &samples, &pairs_of_runs, (first, last))?;
    Ok(Page {
        html,
        num_steps: runs.iter().flat_map(|run| &run.series.rows).filter(|row| row.step > 0).count(),
        num_trajectories: runs.iter().map(|run| run.groups.num_trajectories()).sum(),
        notes: runs
            .iter()
            .flat_map(|run| run.notes.iter().map(|note| (run.path.clone(), note.clone())))
            .collect(),
    })
}

/// The existing steps, in words.
fn there(runs: &[Run]) -> String {
    let of = |run: &Run| {
        let last =
            run.last_step.map_or_else(|| "no step yet".to_owned(), |last| format!("steps up to {last}"));
        format!("`{}` has {last}", run.path.display())
    };
    runs.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// The data of a page, which the template lays out.
#[derive(Serialize)]
struct Data<'a> {
    /// What steps it is about, if not all.
    range: String,
    num_steps: u64,
    /// Number of steps in a point of a chart.
    width: u64,
    runs: Vec<RunData<'a>>,
    facts: Vec<(&'static str, Vec<Option<Fact>>)>,
    /// What `acc` means, of the runs that have it.
    about_acc: BTreeSet<&'static str>,
    /// Keys of rewards in which the runs differ.
    unlike: Vec<&'a str>,
    unlike_validations: UnlikeValidations<'a>,
    /// Steps whose groups are shown, and how much is shown of each.
    steps: BTreeSet<u64>,
    num_shown: usize,
    num_groups: usize,
    longest: usize,
    most_members: usize,
    most_scores: usize,
    colours: (f64, f64),
    learning: Charts,
    sieve: Charts,
    update: Charts,
    length: Charts,
    freshness: Charts,
    time: Charts,
    differences: Vec<(&'a str, Vec<Option<&'a Setting>>)>,
    metrics: Vec<Metric<'a>>,
}

/// The parts of a page that are about one run.
#[derive(Serialize)]
struct RunData<'a> {
    place: usize,
    name: &'a str,
    path: String,
    verdict: Option<String>,
    notes: &'a [String],
    /// How it ended.
    error: Option<&'a str>,
    /// What to change, if it has ended without learning.
    advice: Option<EndAdvice>,
    pairs: &'a [Pair],
    about_pairs: &'a str,
    samples: &'a [SampledStep],
    score_name: &'a str,
    account: Account<'a>,
    num_settings: usize,
    chosen: Vec<(&'a String, &'a Setting)>,
}

fn render(
    options: &PageOptions,
    runs: &[Run],
    samples: &[Vec<SampledStep>],
    pairs: &[BeforeAfter],
    (first, last): (u64, u64),
) -> Result<String, Fault> {
    let places = Places::of_runs(runs);
    let charts = |part: Part| Charts::default().of_part(part, runs, places);
    let mut sieve = Charts::default();
    sieve::kept_and_dropped(runs, &mut sieve);
    sieve::pass_rates(runs, &mut sieve);
    sieve::heat_maps(runs, &mut sieve);
    let mut time = Charts::default();
    time::of_runs(runs, &mut time);
    let settings: Vec<&Settings> = runs.iter().map(|run| &run.settings).collect();
    let data = Data {
        range: if options.steps == StepRange::ALL { String::new() } else { format!(", {}", options.steps) },
        num_steps: last - first + 1,
        width: places.width,
        runs: runs
            .iter()
            .zip(samples)
            .zip(pairs)
            .enumerate()
            .map(|(place, ((run, samples), pairs))| RunData {
                place,
                name: &run.name,
                path: run.path.display().to_string(),
                verdict: verdict::of_run(run),
                notes: &run.notes,
                error: error_of(run),
                advice: if options.steps == StepRange::ALL { verdict::end_advice(run) } else { None },
                pairs: &pairs.pairs,
                about_pairs: &pairs.about,
                samples,
                score_name: run.groups.score_name(),
                account: accounting::of_run(run),
                num_settings: run.settings.0.len(),
                chosen: run.settings.0.iter().filter(|(_, setting)| setting.is_chosen()).collect(),
            })
            .collect(),
        facts: overview::of_runs(runs),
        about_acc: runs.iter().filter_map(|run| verdict::about_acc(&run.series)).collect(),
        unlike: unlike_rewards(settings.iter().copied()),
        unlike_validations: unlike_validations(
            runs.iter().map(|run| (&run.settings, run.validations.prompts)),
        ),
        steps: samples.iter().flatten().map(|step| step.step).collect(),
        num_shown: samples.iter().flatten().map(|step| step.groups.len()).sum(),
        num_groups: runs.iter().flat_map(|run| &run.groups.steps).map(|step| step.groups.len()).sum(),
        longest: samples::longest(samples),
        most_members: samples::MOST_MEMBERS,
        most_scores: samples::MOST_SCORES,
        colours: sieve::range(runs),
        learning: charts(Part::Learning),
        sieve: sieve.of_part(Part::Sieve, runs, places),
        update: charts(Part::Update),
        length: charts(Part::Length),
        freshness: charts(Part::Freshness),
        time: time.of_part(Part::Time, runs, places),
        differences: differences(&settings),
        metrics: every::of_runs(runs, (first, last)),
    };
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    document(Kind::Report, &options.title.clone().unwrap_or_else(|| names.join(", ")), &data)
}

/// The error of a failed run.
fn error_of(run: &Run) -> Option<&str> {
    run.log.as_ref().filter(|_| run.state == WatchedState::Failed)?.error.as_deref()
}
