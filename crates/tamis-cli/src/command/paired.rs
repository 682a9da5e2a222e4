//! Two validations of the same prompts side by side, with the paired difference.

use std::fmt::Write as _;

use tamis_train::measure::validation::{OutcomeKind, ValidationReport};

/// The mean outcome of both with its standard error, their difference prompt by prompt, and the lengths.
/// `prompts` is the number and kind of prompts (`100 held-out`).
pub(super) fn table(
    headings: [&str; 2],
    prompts: &str,
    one: &ValidationReport,
    other: &ValidationReport,
) -> String {
    let figure = |report: &ValidationReport| {
        let figure = report.outcome.figure_within(report.accuracy, report.standard_error());
        figure.unwrap_or_else(|| "none".to_owned())
    };
    let length = |report: &ValidationReport| {
        report.mean_length.map_or_else(|| "none".to_owned(), |length| format!("{length:.1}"))
    };
    let num_prompts = other.num_prompts;
    let outcome = outcome(one, other);
    let gain = one.gain(other).and_then(|(gain, error)| {
        let sign = if gain > 0.0 { "+" } else { "" };
        Some(format!("{sign}{}", outcome.figure_within(Some(gain), Some(error))?))
    });
    let heading = if gain.is_some() { "difference" } else { "" };
    let mut rows = vec![
        [String::new(), headings[0].to_owned(), headings[1].to_owned(), heading.to_owned()],
        [format!("{} ({prompts})", outcome.name()), figure(one), figure(other), gain.unwrap_or_default()],
    ];
    // They may be means of other prompts: of some nothing was generated or scored.
    let scored = [one, other].map(ValidationReport::num_scored_prompts);
    if scored != [one, other].map(|report| report.num_prompts) {
        let both =
            one.gains(other).map_or_else(String::new, |gains| format!("{} in both", gains.summary.count));
        let [one, other] = scored.map(|count| count.to_string());
        rows.push([format!("prompts scored, of {num_prompts}"), one, other, both]);
    }
    rows.push(["mean completion tokens".to_owned(), length(one), length(other), String::new()]);
    let mut text = String::new();
    for [name, one, other, gain] in rows {
        let row = format!("{name:<28} {one:>14} {other:>14} {gain:>15}");
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// The kind of both. If one of them could not be measured, the name is that of the other; a share of right
/// answers beside a mean score is called a mean, too.
fn outcome(one: &ValidationReport, other: &ValidationReport) -> OutcomeKind {
    match (one.outcome, other.outcome) {
        (OutcomeKind::Unscored, kind) | (kind, OutcomeKind::Unscored) => kind,
        (one, other) if one == other => one,
        _ => OutcomeKind::Score,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes 0, 0, 1, 1 become 1, 0, 1, 1: the means have errors of sqrt(1/12) and 1/4, their difference
    /// one of 1/4.
    #[test]
    fn the_difference_is_that_of_the_pairs() {
        let report = |outcomes: &[f64], outcome| ValidationReport {
            num_prompts: outcomes.len(),
            accuracy: Some(outcomes.iter().sum::<f64>() / outcomes.len() as f64),
            outcomes: outcomes.iter().copied().map(Some).collect(),
            outcome,
            mean_length: Some(3.0),
            ..ValidationReport::default()
        };
        let before = report(&[0.0, 0.0, 1.0, 1.0], OutcomeKind::Accuracy);
        let after = report(&[1.0, 0.0, 1.0, 1.0], OutcomeKind::Accuracy);
        insta::assert_snapshot!(table(["A", "B"], "4 prompts", &before, &after), @r"
                                                  A              B      difference
        accuracy (4 prompts)          50.0% ± 28.9%  75.0% ± 25.0%  +25.0% ± 25.0%
        mean completion tokens                  3.0            3.0
        ");
        let graded = report(&[0.5, 0.0, 1.0, 1.0], OutcomeKind::Score);
        assert!(table(["A", "B"], "4 prompts", &before, &graded).contains("mean score (4 prompts)"));
        let unscored = ValidationReport { outcome: OutcomeKind::Unscored, ..ValidationReport::default() };
        assert!(table(["A", "B"], "4 prompts", &before, &unscored).contains("accuracy (4 prompts)"));
    }
}
