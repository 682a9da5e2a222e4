//! `tamis report` writes everything about one run, or about several side by side, into one HTML file.
//!
//! ```text
//! run directory -> Run (run.rs)   metrics.jsonl -> Series     charts.rs by figures.rs, time.rs, accounting.rs, every.rs
//!                                 config.yaml   -> Settings   settings_table.rs
//!                                 rollouts/     -> Groups     sieve.rs: what became of groups, heat map
//!                                               -> samples    cards.rs: completions side by side
//! ```
//! The page contains its style and its script and loads nothing from elsewhere. All of it can be read without
//! the script. The same files give the same bytes. If there is too much for one page, it is thinned evenly,
//! and the page says so.

mod accounting;
mod answer;
mod before_after;
mod cards;
mod charts;
mod every;
mod figures;
mod groups;
mod overview;
mod places;
mod run;
mod samples;
pub(crate) mod settings;
mod settings_table;
mod sieve;
mod steps;
mod time;
mod verdict;

use std::fmt::Write as _;
use std::path::PathBuf;

use before_after::BeforeAfter;
use cards::Look;
use charts::Charts;
use figures::Part;
use places::Places;
use run::Run;
use samples::SampledStep;

pub use steps::StepRange;

use tamis_core::fault::chain;

use crate::html::{document, escape, text};
use crate::{Fault, names};

/// What a page is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOptions {
    /// Run directories, or files of metrics.
    pub runs: Vec<PathBuf>,
    /// The steps to tell about.
    pub steps: StepRange,
    /// Groups of each run that are shown with their completions; `None`: 48, of few steps fewer.
    pub num_samples: Option<usize>,
    /// Title; `None`: the names of the runs.
    pub title: Option<String>,
}

/// A page that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The whole file.
    pub html: String,
    /// Steps of all runs.
    pub num_steps: usize,
    /// Trajectories in the rollout files.
    pub num_trajectories: u64,
    /// What the reader should know about the files, with the run that it is about.
    pub notes: Vec<(PathBuf, String)>,
}

/// Reads the runs and makes the page.
///
/// # Errors
/// A path that is no run, or a step that no run has. What is missing in a run that is one is no error, but
/// noted in the page.
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
    // A validation before the first step stands at 0.
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
    let html = render(options, &runs, &samples, &pairs_of_runs, (first, last));
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

/// The steps that there are, in words.
fn there(runs: &[Run]) -> String {
    let of = |run: &Run| {
        let last =
            run.last_step.map_or_else(|| "no step yet".to_owned(), |last| format!("steps up to {last}"));
        format!("`{}` has {last}", run.path.display())
    };
    runs.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// A part of the page, where there is something in it.
fn section(id: &str, title: &str, about: &str, content: &str, parts: &mut Vec<(String, String)>) -> String {
    if content.is_empty() {
        return String::new();
    }
    parts.push((id.to_owned(), title.to_owned()));
    let about = if about.is_empty() { String::new() } else { format!("<p class=\"lead\">{about}</p>") };
    format!("<section id=\"{id}\"><h2>{title}</h2>{about}\n{content}</section>\n")
}

fn render(
    options: &PageOptions,
    runs: &[Run],
    samples: &[Vec<SampledStep>],
    pairs: &[BeforeAfter],
    (first, last): (u64, u64),
) -> String {
    let places = Places::of_runs(runs);
    let mut parts = Vec::new();
    let mut body = String::new();
    let add = |id: &str, title: &str, about: &str, content: &str, parts: &mut Vec<(String, String)>| {
        section(id, title, about, content, parts)
    };
    let of = |part: Part| Charts::default().of_part(part, runs, places).html();
    let thinned = if places.width > 1 {
        format!(
            " There are {} steps: each point of a chart is the mean of {} of them, and the band around it reaches from their least to their largest value.",
            last - first + 1,
            places.width
        )
    } else {
        String::new()
    };
    body += &add("overview", "Overview", "", &overview::of_runs(runs), &mut parts);
    body += &add("samples", "Completions", "", &completions(runs, samples, pairs), &mut parts);
    body += &add(
        "learning",
        "Is it learning?",
        &format!(
            "A line breaks where values are missing; ▲ and ▼ mark values that are not finite.{thinned} <span class=\"with-script\">Drag over a chart to zoom, double-click to see all of it; with the keyboard: arrows, + and −, 0.</span>"
        ),
        &of(Part::Learning),
        &mut parts,
    );
    let mut sieve = Charts::default();
    sieve::kept_and_dropped(runs, &mut sieve);
    sieve::pass_rates(runs, &mut sieve);
    sieve.drawn += &sieve::heat_maps(runs);
    body += &add("sieve", "The sieve", "", &sieve.of_part(Part::Sieve, runs, places).html(), &mut parts);
    body += &add("update", "Updates", "", &of(Part::Update), &mut parts);
    body += &add("length", "Lengths", "", &of(Part::Length), &mut parts);
    body += &add("freshness", "Lag and weights", "", &of(Part::Freshness), &mut parts);
    let mut time = Charts::default();
    time::of_runs(runs, &mut time);
    body +=
        &add("time", "Where the time went", "", &time.of_part(Part::Time, runs, places).html(), &mut parts);
    body += &add(
        "account",
        "Accounting",
        "Everything generated ends in exactly one place. What is carried over, or in flight, is handed from one step to the next.",
        &accounting::of_runs(runs),
        &mut parts,
    );
    body += &add("settings", "Settings", "", &settings_table::of_runs(runs), &mut parts);
    body += &add("metrics", "Every metric", "", &every::table(runs, (first, last)), &mut parts);

    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let title = options.title.clone().unwrap_or_else(|| names.join(", "));
    let range = if options.steps == StepRange::ALL { String::new() } else { format!(", {}", options.steps) };
    let paths: Vec<String> = runs.iter().map(|run| text(&run.path.display().to_string())).collect();
    let mut head = format!(
        "<a class=\"skip\" href=\"#main\">To the content</a>\n{}<header class=\"top\"><p class=\"kicker\">tamis report{range}</p><h1>{}</h1><p class=\"paths\">{}</p></header>\n<nav aria-label=\"Parts of the page\"><ul>",
        PATTERNS,
        text(&title),
        paths.join("<br>")
    );
    for (id, title) in &parts {
        let _ = write!(head, "<li><a href=\"#{id}\">{title}</a>");
    }
    head.push_str("</ul>");
    if runs.len() > 1 {
        head.push_str("<fieldset class=\"toggles\"><legend>Runs</legend>");
        for (place, name) in names.iter().enumerate() {
            let _ = write!(
                head,
                "<label><input type=\"checkbox\" id=\"show-r{place}\" checked><svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><g class=\"c{}\"><path class=\"line\" d=\"M1 4H25\"/></g></svg>{}</label>",
                place % crate::chart::NUM_COLOURS,
                escape(name)
            );
        }
        head.push_str("</fieldset>");
    }
    head.push_str("</nav>\n<main id=\"main\">\n");
    // A run that is switched off disappears without the script too.
    let mut hidden = String::new();
    if runs.len() > 1 {
        hidden.push_str("<style>");
        for place in 0..runs.len() {
            let _ = write!(hidden, "body:has(#show-r{place}:not(:checked)) .r{place}{{display:none}}");
        }
        hidden.push_str("</style>\n");
    }
    document(
        &title,
        &format!(
            "{hidden}{head}{body}</main>\n<footer><p>Made by tamis {} of the files of the run; it asks nobody for anything.</p></footer>\n",
            env!("CARGO_PKG_VERSION")
        ),
    )
}

fn completions(runs: &[Run], samples: &[Vec<SampledStep>], pairs: &[BeforeAfter]) -> String {
    let mut steps: Vec<u64> = samples.iter().flatten().map(|step| step.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let is_one = runs.len() == 1;
    let pairs = runs.iter().zip(pairs).enumerate();
    let pairs: String = pairs.map(|(place, (run, pairs))| pairs.html(run, place, is_one)).collect();
    if steps.is_empty() && pairs.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<div class=\"controls\" hidden><label>Find <input type=\"search\" id=\"find\" placeholder=\"text of a prompt or a completion\"></label><output id=\"found\" for=\"find\"></output></div>\n{pairs}"
    );
    if steps.is_empty() {
        return html;
    }
    let look = Look { range: sieve::colour_range(runs), longest: cards::longest(samples) };
    let shown: usize = samples.iter().flatten().map(|step| step.groups.len()).sum();
    let all: usize = runs.iter().flat_map(|run| &run.groups.steps).map(|step| step.groups.len()).sum();
    let _ = write!(
        html,
        "<h3>Step by step</h3><p class=\"lead\">{shown} of {all} groups (<code>--samples</code>), at {}, evenly; of every step each kind of verdict in turn. Texts of more than {} characters lose their middle. All of them: <code>tamis rollouts RUN --step N</code>.</p>\n\
         <div class=\"controls\" hidden><label for=\"step\">Step</label><button type=\"button\" id=\"back\" aria-label=\"Earlier step\">◀</button><input type=\"range\" id=\"step\" min=\"0\" max=\"{}\" value=\"{}\"><button type=\"button\" id=\"forth\" aria-label=\"Later step\">▶</button><output id=\"step-shown\" for=\"step\"></output><label>Show <select id=\"verdict\"><option value=\"\">all groups<option value=\"trained\">trained<option value=\"other\">not trained on</select></label></div>\n",
        if steps.len() == 1 { "one step".to_owned() } else { format!("{} steps", steps.len()) },
        look.longest,
        steps.len() - 1,
        steps.len() - 1
    );
    for step in steps {
        let _ = writeln!(
            html,
            "<section class=\"step\" data-step=\"{step}\"><h3>Step {step}</h3><div class=\"side-by-side\">"
        );
        for (place, (run, of_run)) in runs.iter().zip(samples).enumerate() {
            if let Some(found) = of_run.iter().find(|found| found.step == step) {
                html += &cards::of_step(run, place, found, look, is_one);
            }
        }
        html.push_str("</div></section>\n");
    }
    html
}

/// Patterns that fill layers, so that they are told apart without colour.
const PATTERNS: &str = include_str!("patterns.svg");
