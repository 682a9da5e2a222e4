//! The account of a run: every group, trajectory and token that was generated, by its final place.

use serde::Serialize;

use super::groups::StepGroups;
use super::run::Run;

/// What came in, and where it went. What a step hands to the next is counted in both. For the run, what its
/// first step received came in, and what its last step hands on went out.
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

/// The count in a place over the run; `None` if there is none.
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

/// Both sides of the account of a run in groups or trajectories; `None` if the run does not record them.
fn balance(run: &Run, what: &str) -> Option<(f64, f64)> {
    sum(run, what, "generated")?;
    let total = |places: &[&str]| places.iter().filter_map(|place| sum(run, what, place)).sum::<f64>();
    Some((total(&SOURCES), total(&PLACES)))
}

/// The account of a run in the form that the template reads.
#[derive(Debug, Serialize)]
pub(crate) struct Account<'a> {
    lines: Vec<Line>,
    /// The unit that is counted, what came in, and what is accounted for.
    balances: Vec<(&'static str, f64, f64)>,
    num_in_files: u64,
    /// Trajectories in the rollout files by verdict.
    verdicts: Vec<(&'a str, u64)>,
    /// Trained trajectories in the metrics and in the files, if they differ.
    unlike: Option<(f64, u64)>,
}

/// A place with its groups, trajectories, turns and tokens.
#[derive(Debug, Serialize)]
struct Line {
    place: String,
    /// The place that it is a part of; empty for a place of its own.
    within: &'static str,
    counts: [Option<f64>; 4],
    share: Option<f64>,
}

pub(crate) fn of_run(run: &Run) -> Account<'_> {
    let balances: Vec<_> = ["groups", "trajectories"]
        .into_iter()
        .filter_map(|what| balance(run, what).map(|(came, went)| (what, came, went)))
        .collect();
    Account {
        lines: if balances.is_empty() { Vec::new() } else { lines(run) },
        balances,
        num_in_files: run.groups.num_trajectories(),
        verdicts: run.groups.verdicts(),
        unlike: unlike(run),
    }
}

fn lines(run: &Run) -> Vec<Line> {
    let generated = sum(run, "trajectories", "generated").unwrap_or(f64::NAN);
    let mut lines = Vec::new();
    let of = |place: &str| ["groups", "trajectories", "turns", "tokens"].map(|what| sum(run, what, place));
    // Copies were not generated, so they have no part in the balance.
    for place in SOURCES.iter().chain(&PLACES).chain(&["duplicated"]) {
        let counts = of(place);
        let is_handed_on = ["carried_in", "in_flight_in", "carried_out", "in_flight_out"].contains(place);
        let is_nothing = counts.iter().flatten().all(|count| *count == 0.0);
        if is_nothing && (is_handed_on || counts == [None; 4] || !["trained", "dropped"].contains(place)) {
            continue;
        }
        let share = counts[1].filter(|_| *place != "duplicated").map(|count| count / generated);
        lines.push(Line { place: (*place).to_owned(), within: "", counts, share });
        let prefix = match *place {
            "dropped" => "train/num_dropped/",
            "left_out" => "train/num_left_out/",
            _ => continue,
        };
        let is_group = *place == "dropped";
        // The filter's reasons also count dropped groups that are in the batch all the same.
        let has_more = is_group && sum(run, "groups", "kept_when_insufficient") > Some(0.0);
        for name in run.series.names() {
            let Some(reason) = name.strip_prefix(prefix) else { continue };
            let Some(count) = run.sum(name).filter(|count| *count > 0.0) else { continue };
            lines.push(Line {
                place: reason.to_owned(),
                within: if has_more { "of these and those in the batch" } else { "of these" },
                counts: if is_group {
                    [Some(count), None, None, None]
                } else {
                    [None, Some(count), None, None]
                },
                share: (!is_group).then_some(count / generated),
            });
        }
    }
    lines
}

/// Trained trajectories in the metrics and in the files of the steps that have both, if they differ. Members
/// of failed groups are in no file. While a run works, files and metrics need not agree.
fn unlike(run: &Run) -> Option<(f64, u64)> {
    let trained = |step: &StepGroups| {
        step.verdicts.iter().find(|(name, _)| name == "trained").map_or(0, |(_, count)| *count)
    };
    let both = run
        .values("trajectories/trained")
        .filter_map(|(step, count)| Some((count, trained(run.groups.of_step(step)?))));
    let (in_metrics, in_files) = both
        .fold((0.0, 0), |(metrics, files), (of_metrics, of_files)| (metrics + of_metrics, files + of_files));
    ((in_metrics - in_files as f64).abs() > 0.5).then_some((in_metrics, in_files))
}
