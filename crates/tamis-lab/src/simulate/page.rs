//! A simulation as one HTML page with its charts in it.

use std::fmt::Write as _;

use serde::Serialize;

use crate::Fault;
use crate::chart::dots::{self, Dot};
use crate::chart::{Figure, Heading};
use crate::html::{Kind, document};
use tamis_core::figure::{fixed, percent};

use crate::simulate::measure::PolicyResult;
use crate::simulate::simulation::Simulation;
use crate::simulate::table::{COLUMNS, causes, shown};

/// A chart of two numbers of each policy: its id, title, what to read in it, and both axes.
type Pair = (&'static str, &'static str, &'static str, (&'static str, Value), (&'static str, Value));
type Value = fn(&PolicyResult) -> Option<f64>;

const PAIRS: [Pair; 4] = [
    (
        "bias",
        "Cost against the hard prompts' share",
        "To the left is cheap. A policy below the others trains less on hard prompts than the data have them: it is \
         cheap by a bias. Chosen prompts that are weighted (posterior) stay level with those that were not chosen.",
        ("generated a trained group", |policy| policy.generated_per_kept),
        ("share of hard prompts", |policy| policy.hard_share),
    ),
    (
        "length",
        "Step time against the bias in length",
        "To the left is quick. Higher up, the completions that are trained on are not those that were started: policies \
         that take groups in order of completion prefer short ones.",
        ("seconds of a step", |policy| policy.step_time),
        ("length KS", |policy| policy.length_ks),
    ),
    (
        "lag",
        "Step time against lag",
        "Servers that never wait sample with older weights.",
        ("seconds of a step", |policy| policy.step_time),
        ("mean lag, versions", |policy| policy.lag_mean),
    ),
    (
        "weights",
        "Cost against the effective share of the weights",
        "Cheap and unbiased costs variance: the lower, the fewer groups a weighted batch is worth.",
        ("generated a trained group", |policy| policy.generated_per_kept),
        ("effective share", |policy| policy.weight_ess),
    ),
];

/// The data of the page, which the template lays out.
#[derive(Serialize)]
struct Data<'a> {
    warnings: Vec<String>,
    least: String,
    defaults: Option<String>,
    /// Columns of the table after the name.
    columns: Vec<&'static str>,
    policies: Vec<Policy<'a>>,
    world: &'a [(&'static str, String)],
    charts: Vec<Figure>,
    /// Causes for which something was generated for nothing.
    causes: Vec<&'static str>,
}

#[derive(Serialize)]
struct Policy<'a> {
    name: &'a str,
    /// Steps after which it ended, if it did not reach the last.
    ended: Option<u64>,
    cells: Vec<String>,
    wasted: String,
    /// What was wasted for each cause: per cent of the most that any policy wasted, and the number.
    parts: Vec<(f64, String)>,
}

impl Simulation {
    /// The page.
    ///
    /// # Errors
    /// A fault of this program.
    pub fn html(&self, title: &str) -> Result<String, Fault> {
        let mut names: Vec<&str> = Vec::new();
        for (cause, _) in self.policies.iter().flat_map(causes) {
            if !names.contains(&cause) {
                names.push(cause);
            }
        }
        let most = self.policies.iter().map(|policy| policy.wasted.values().sum::<f64>()).fold(0.0, f64::max);
        let policy = |policy: &'_ PolicyResult| {
            let part = |cause: &&str| policy.wasted.get(cause).copied().unwrap_or(0.0);
            Policy {
                name: policy.name.as_str(),
                ended: policy.ended.as_ref().map(|_| policy.steps),
                cells: COLUMNS.iter().map(|column| shown(policy, column)).collect(),
                wasted: fixed(names.iter().map(part).sum(), 2),
                parts: names.iter().map(part).map(|part| (100.0 * part / most, fixed(part, 2))).collect(),
            }
        };
        let data = Data {
            warnings: self.warnings(),
            least: self.least(),
            defaults: self.of_defaults(),
            columns: COLUMNS.iter().map(|(heading, ..)| *heading).collect(),
            policies: self.policies.iter().map(policy).collect(),
            world: &self.world,
            charts: PAIRS.iter().filter_map(|pair| self.scatter(pair)).collect(),
            causes: names.clone(),
        };
        document(Kind::Simulation, title, &data)
    }

    /// The text about the lower bound.
    fn least(&self) -> String {
        let bound = match &self.bound {
            Ok(bound) => bound,
            Err(reason) => return format!("There is no lower bound: {reason}."),
        };
        let mut text = format!(
            "On average{} a policy that neither chooses prompts nor ends groups early generates at least {} a trained group",
            self.steps_of_bound(),
            fixed(bound.generated_per_kept, 2)
        );
        if let Some(of_cuts) = bound.of_cuts() {
            let _ = write!(text, " ({of_cuts})");
        }
        if let Some(seconds) = bound.step_time {
            let _ = write!(
                text,
                ", and one that gives none up while it generates takes at least {} s for a batch of kept groups, and for \
                 a part of one (kept) as much of that",
                fixed(seconds, 1)
            );
        }
        let _ = write!(text, "; in so few groups chance can take {} off.", percent(bound.chance));
        text
    }

    fn scatter(&self, (id, caption, reading, x, y): &Pair) -> Option<Figure> {
        let dot = |policy: &PolicyResult| {
            Some(Dot { name: policy.name.as_str().to_owned(), x: (x.1)(policy)?, y: (y.1)(policy)? })
        };
        let dots: Vec<Dot> = self.policies.iter().filter_map(dot).collect();
        let heading = Heading {
            id: (*id).to_owned(),
            title: (*caption).to_owned(),
            description: format!(
                "Each policy by {} to the right and {} up; the numbers are in the table.",
                x.0, y.0
            ),
            unit: x.0.to_owned(),
            about: format!("{reading} Up: {}.", y.0),
            ..Heading::default()
        };
        (!dots.is_empty()).then(|| dots::chart(heading, &dots, y.0))
    }
}
