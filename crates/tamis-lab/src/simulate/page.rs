//! A simulation as one HTML page with its charts in it.

use std::fmt::Write as _;

use crate::chart::dots::{self, Dot};
use crate::chart::{Heading, NUM_COLOURS};
use crate::html::{document, escape, head, row};
use tamis_core::figure::{fixed, percent};

use crate::simulate::measure::PolicyResult;
use crate::simulate::simulation::Simulation;
use crate::simulate::table::{COLUMNS, causes, shown};

/// What each column of the table is.
const MEANINGS: &str = "<p class=\"lead\">All numbers are of the second half of the steps. <b>generated</b>, <b>tokens</b>: \
trajectories and completion tokens generated for each that was trained on. <b>step s</b>: seconds of a step. \
<b>slots</b>: share of the servers' slots that decoded. <b>lag</b>: versions between the weights that sampled a group \
and those that it trained, mean and most. <b>ESS</b>: effective share of the weights. <b>hard</b>, <b>easy</b>: weighted \
share of trained groups of prompts with a pass rate below 0.1 and above 0.9, what is cut being wrong. <b>length KS</b>: distance of the trained \
lengths from those of all mixed groups that were started. <b>passes</b>: over the data, in all steps. <b>wasted</b>: \
generated for nothing, in groups a trained one. <b>kept</b>: groups of a batch that the filter kept, copies counted once, as \
a share of the batch.</p>";

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

impl Simulation {
    /// The page.
    pub fn html(&self, title: &str) -> String {
        let mut page = format!("<main>\n<section>\n<h1>{}</h1>\n{MEANINGS}\n", escape(title));
        for warning in self.warnings() {
            let _ = writeln!(page, "<p class=\"notes\">{}</p>", escape(&warning));
        }
        let _ = writeln!(page, "<p class=\"lead\">{}</p>", escape(&self.least()));
        if let Some(text) = self.of_defaults() {
            let _ = writeln!(page, "<p class=\"notes\">{}</p>", escape(&text));
        }
        page.push_str(&self.table());
        page.push_str("</section>\n<section>\n<h2>The world</h2>\n<dl class=\"facts\">\n");
        for (name, value) in &self.world {
            let _ = writeln!(page, "<div><dt>{}<dd>{}</div>", escape(name), escape(value));
        }
        page.push_str("</dl>\n");
        page.push_str(
            "</section>\n<section>\n<h2>What each policy buys with what</h2>\n<div class=\"charts\">\n",
        );
        for (id, caption, reading, x, y) in &PAIRS {
            page.push_str(&self.scatter(id, caption, reading, *x, *y));
        }
        page.push_str("</div>\n</section>\n<section>\n<h2>Where the groups went</h2>\n");
        page.push_str(&self.waste());
        page.push_str("</section>\n");
        page.push_str("</main>\n");
        document(title, &page)
    }

    /// What the lower bound says.
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

    fn table(&self) -> String {
        let mut headings = vec!["policy".to_owned()];
        headings.extend(COLUMNS.iter().map(|(heading, ..)| (*heading).to_owned()));
        let rows: Vec<String> = self
            .policies
            .iter()
            .map(|policy| {
                let ended = policy.ended.as_ref().map_or_else(String::new, |_| {
                    format!(" <small>ended after {} steps</small>", policy.steps)
                });
                let mut cells = vec![format!("<code>{}</code>{ended}", policy.name.as_str())];
                cells.extend(COLUMNS.iter().map(|column| shown(policy, column)));
                row(&cells)
            })
            .collect();
        format!(
            "<div class=\"scroll\"><table class=\"policies\">{}{}</table></div>\n",
            head(&headings),
            rows.concat()
        )
    }

    fn scatter(&self, id: &str, caption: &str, reading: &str, x: (&str, Value), y: (&str, Value)) -> String {
        let dots: Vec<Dot> = self
            .policies
            .iter()
            .filter_map(|policy| {
                Some(Dot { name: policy.name.as_str().to_owned(), x: (x.1)(policy)?, y: (y.1)(policy)? })
            })
            .collect();
        if dots.is_empty() {
            return String::new();
        }
        let heading = Heading {
            id,
            class: "",
            title: caption,
            description: &format!(
                "Each policy by {} to the right and {} up; the numbers are in the table.",
                x.0, y.0
            ),
            unit: x.0,
            about: &format!("{} Up: {}.", escape(reading), escape(y.0)),
        };
        dots::chart(heading, &dots, y.0)
    }

    fn waste(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for policy in &self.policies {
            for (cause, _) in causes(policy) {
                if !names.contains(&cause) {
                    names.push(cause);
                }
            }
        }
        let most = self.policies.iter().map(|policy| policy.wasted.values().sum::<f64>()).fold(0.0, f64::max);
        let colour = |place: usize| format!("c{}", place % NUM_COLOURS);
        let mut headings = vec!["policy".to_owned(), String::new(), "in all".to_owned()];
        headings.extend(names.iter().enumerate().map(|(place, cause)| {
            format!("<span class=\"swatch {}\"></span>{}", colour(place), escape(cause))
        }));
        let rows = self.policies.iter().map(|policy| {
            let parts: Vec<f64> =
                names.iter().map(|cause| policy.wasted.get(cause).copied().unwrap_or(0.0)).collect();
            let mut cells = vec![format!("<code>{}</code>", policy.name.as_str())];
            let bar = parts.iter().enumerate().filter(|(_, part)| **part > 0.0).map(|(place, part)| {
                format!(
                    "<span class=\"{}\" style=\"width:{:.1}%\"></span>",
                    colour(place),
                    100.0 * part / most
                )
            });
            cells.push(format!("<span class=\"parts\">{}</span>", bar.collect::<String>()));
            cells.push(fixed(parts.iter().sum(), 2));
            cells.extend(parts.iter().map(|part| fixed(*part, 2)));
            row(&cells)
        });
        format!(
            "<figure class=\"wide\"><figcaption><h3>Generated for nothing, in groups a trained one</h3></figcaption>\
             <div class=\"scroll\" tabindex=\"0\"><table class=\"waste\">{}{}</table></div></figure>\n",
            head(&headings),
            rows.collect::<String>()
        )
    }
}
