//! The account of a run: every group, trajectory and token that was generated, by the place where it ended.

use std::fmt::Write as _;

use tamis_core::figure::percent;

use super::groups::StepGroups;
use super::run::Run;
use super::sieve::words;
use crate::chart::number::figure as number;
use crate::html::{escape, head, row};

/// What came in, and where it went. What a step hands to the next is counted in both: of the run, what its
/// first step was handed came in, and what its last one hands on went out.
const SOURCES: [&str; 3] = ["generated", "carried_in", "in_flight_in"];
const PLACES: [&str; 10] = [
    "trained",
    "kept_when_insufficient",
    "left_out",
    "dropped",
    "surplus",
    "stale",
    "failed",
    "aborted",
    "carried_out",
    "in_flight_out",
];

/// What is counted in a place over the run; `None` where nothing is.
fn sum(run: &Run, what: &str, place: &str) -> Option<f64> {
    let name = format!("{what}/{place}");
    let at = |step: Option<u64>| run.values(&name).find(|(of, _)| Some(*of) == step).map(|(_, count)| count);
    let generated = format!("{what}/generated");
    let mut steps = run.values(&generated).map(|(step, _)| step);
    match place {
        "carried_in" | "in_flight_in" => at(steps.next()),
        "carried_out" | "in_flight_out" => at(steps.last()),
        _ => run.sum(&name),
    }
}

/// Both sides of the account of a run in groups or trajectories; `None` where the run does not say.
fn balance(run: &Run, what: &str) -> Option<(f64, f64)> {
    sum(run, what, "generated")?;
    let total = |places: &[&str]| places.iter().filter_map(|place| sum(run, what, place)).sum::<f64>();
    Some((total(&SOURCES), total(&PLACES)))
}

pub(crate) fn of_runs(runs: &[Run]) -> String {
    runs.iter().enumerate().map(|(place, run)| of_run(run, place, runs.len() == 1)).collect()
}

fn of_run(run: &Run, place: usize, is_one: bool) -> String {
    let title = if is_one { "Where everything ended".to_owned() } else { escape(&run.name) };
    let mut html = format!("<section class=\"account r{place}\"><h3>{title}</h3>");
    let balances = ["groups", "trajectories"].map(|what| (what, balance(run, what)));
    if balances.iter().all(|(_, balance)| balance.is_none()) {
        html.push_str("<p>The metrics of this run do not count where groups and trajectories ended.</p>");
        return html + &files(run) + "</section>\n";
    }
    let generated = Some(sum(run, "trajectories", "generated").unwrap_or(f64::NAN));
    let cells = ["place", "groups", "trajectories", "of the generated", "turns", "tokens"].map(str::to_owned);
    let _ = write!(
        html,
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Account\"><table>{}",
        head(&cells)
    );
    let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    let mut line =
        |name: String, [groups, trajectories, turns, tokens]: [Option<f64>; 4], of: Option<f64>| {
            let share = trajectories.zip(of).map_or_else(String::new, |(count, of)| percent(count / of));
            let cells = [name, shown(groups), shown(trajectories), share, shown(turns), shown(tokens)];
            html.push_str(&row(&cells));
        };
    let of = |place: &str| ["groups", "trajectories", "turns", "tokens"].map(|what| sum(run, what, place));
    // Copies were not generated: they are no part of the balance, and no share of it.
    for place in SOURCES.iter().chain(&PLACES).chain(&["duplicated"]) {
        let counts = of(place);
        let is_handed_on = ["carried_in", "in_flight_in", "carried_out", "in_flight_out"].contains(place);
        let is_nothing = counts.iter().flatten().all(|count| *count == 0.0);
        if is_nothing && (is_handed_on || counts == [None; 4] || !["trained", "dropped"].contains(place)) {
            continue;
        }
        line(words(place), counts, generated.filter(|_| *place != "duplicated"));
        let within = match *place {
            "dropped" => "train/num_dropped/",
            "left_out" => "train/num_left_out/",
            _ => continue,
        };
        let names: Vec<String> = run
            .series
            .names()
            .into_iter()
            .filter(|name| name.starts_with(within))
            .map(str::to_owned)
            .collect();
        for name in names {
            let count = run.sum(&name).filter(|count| *count > 0.0);
            // The filter's reasons also count the dropped groups that are in the batch all the same.
            let has_more = *place == "dropped" && sum(run, "groups", "kept_when_insufficient") > Some(0.0);
            let of = if has_more { "of these and those in the batch" } else { "of these" };
            let reason =
                format!("<span class=\"within\">{of} {}</span>", escape(&words(&name[within.len()..])));
            match (count, *place) {
                (None, _) => {}
                (count, "dropped") => line(reason, [count, None, None, None], generated),
                (count, _) => line(reason, [None, count, None, None], generated),
            }
        }
    }
    html.push_str("</table></div>");
    for (what, balance) in balances {
        let Some((came, went)) = balance else { continue };
        if (came - went).abs() < 0.5 {
            let _ = write!(
                html,
                "<p class=\"good\">✓ {what} add up: {} came in, and each is in exactly one place.</p>",
                number(came)
            );
        } else {
            let _ = write!(
                html,
                "<p class=\"bad\">✗ {what} do not add up: {} came in, and {} are accounted for.</p>",
                number(came),
                number(went)
            );
        }
    }
    html += &files(run);
    html + "</section>\n"
}

/// What the rollout files count, beside what the metrics do.
fn files(run: &Run) -> String {
    let verdicts = run.groups.verdicts();
    if verdicts.is_empty() {
        return String::new();
    }
    let listed: Vec<String> = verdicts
        .iter()
        .map(|(name, count)| format!("{} {}", number(*count as f64), escape(&words(name))))
        .collect();
    let mut html = format!(
        "<p class=\"about\">The rollout files hold {} trajectories: {}.",
        number(run.groups.num_trajectories() as f64),
        listed.join(", ")
    );
    // Members of failed groups are in no file, and of a run that is under way files and metrics need not
    // agree.
    let trained = |step: &StepGroups| {
        step.verdicts.iter().find(|(name, _)| name == "trained").map_or(0, |(_, count)| *count)
    };
    let both = run
        .values("trajectories/trained")
        .filter_map(|(step, count)| Some((count, trained(run.groups.of_step(step)?))));
    let (in_metrics, in_files) = both
        .fold((0.0, 0), |(metrics, files), (of_metrics, of_files)| (metrics + of_metrics, files + of_files));
    if (in_metrics - in_files as f64).abs() > 0.5 {
        let _ = write!(
            html,
            " <strong>Of the steps that have both, the metrics count {} trained ones and the files {}.</strong>",
            number(in_metrics),
            number(in_files as f64)
        );
    }
    html + "</p>"
}
