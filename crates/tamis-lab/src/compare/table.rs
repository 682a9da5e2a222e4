//! A comparison as text: a table for the terminal, Markdown, CSV.

use std::fmt::Write as _;

use super::measure::{Measure, Over};
use super::{ComparedCell, Comparison, MetricTable};

/// Formats a number with its significant digits.
fn figure(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.4}") }
}

fn shown(cell: &ComparedCell) -> String {
    let Some(summary) = cell.summary else { return "-".to_owned() };
    let mut text = figure(summary.mean);
    if let Some(spread) = summary.spread {
        let _ = write!(text, " ±{}", figure(spread));
    }
    if let Some(difference) = cell.difference {
        let sign = if difference >= 0.0 { "+" } else { "" };
        let error = cell.difference_error.map_or_else(String::new, |error| format!(" ±{}", figure(error)));
        let _ = write!(text, " ({sign}{}{error})", figure(difference));
    }
    text
}

impl Comparison {
    /// The place up to which a measure reads a curve.
    fn limit(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Last | Measure::Best => None,
            Measure::Area | Measure::At(Over::Steps) => self.limits[0],
            Measure::At(Over::Tokens) => self.limits[1],
            Measure::At(Over::Seconds) => self.limits[2],
        }
    }

    fn heading(&self, measure: Measure) -> String {
        match (measure, self.limit(measure)) {
            (Measure::At(over), Some(limit)) => {
                let digits = match over {
                    Over::Seconds if limit < 10.0 => 3,
                    Over::Seconds => 1,
                    Over::Steps | Over::Tokens => 0,
                };
                format!("at {limit:.digits$} {}", over.unit())
            }
            (Measure::At(over), None) => format!("at equal {}", over.unit()),
            (measure, _) => measure.name().to_owned(),
        }
    }

    /// Headings and cells of one table.
    pub(super) fn grid(&self, table: &MetricTable) -> Vec<Vec<String>> {
        let mut heading =
            vec![format!("{} ({})", table.choice.title(), table.names.join(", ")), "runs".to_owned()];
        heading.extend(Measure::ALL.map(|measure| self.heading(measure)));
        let mut lines = vec![heading];
        for (variant, cells) in self.variants.iter().zip(&table.rows) {
            let mark = if variant.is_baseline() { " (baseline)" } else { "" };
            let mut line = vec![format!("{}{mark}", variant.name), variant.series.len().to_string()];
            line.extend(cells.iter().map(shown));
            lines.push(line);
        }
        lines
    }

    /// Tables for a terminal: mean, `±` sample standard deviation over seeds, and the difference to the
    /// baseline in parentheses.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            let grid = self.grid(table);
            let width = |column: usize| {
                grid.iter()
                    .filter_map(|line| line.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            };
            let widths: Vec<usize> = (0..grid.first().map_or(0, Vec::len)).map(width).collect();
            for line in &grid {
                for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                    if column == 0 {
                        let _ = write!(text, "{cell:<width$}");
                    } else {
                        let _ = write!(text, "  {cell:>width$}");
                    }
                }
                text.push('\n');
            }
            text.push('\n');
        }
        if self.has_spread() {
            text.push_str(
                "mean ± sample standard deviation over the runs of a variant (difference to the baseline)\n",
            );
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }

    /// Whether a variant has several runs.
    fn has_spread(&self) -> bool {
        let cells = self.tables.iter().flat_map(|table| &table.rows).flatten();
        cells.filter_map(|cell| cell.summary).any(|summary| summary.spread.is_some())
    }

    /// The same in Markdown.
    pub fn markdown(&self) -> String {
        let mut text =
            "# Comparison\n\nMean, ± sample standard deviation over seeds, (difference to the baseline).\n\n"
                .to_owned();
        for table in &self.tables {
            for (place, line) in self.grid(table).iter().enumerate() {
                let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
                let _ = writeln!(text, "| {} |", cells.join(" | "));
                if place == 0 {
                    let _ = writeln!(text, "|---|{}", "---:|".repeat(line.len() - 1));
                }
            }
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }

    /// One row per variant, metric and measure.
    pub fn csv(&self) -> String {
        let mut text =
            "variant,baseline,metric,measure,up_to,runs,mean,spread,difference,difference_error\n".to_owned();
        let optional = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value}"));
        for table in &self.tables {
            for (variant, cells) in self.variants.iter().zip(&table.rows) {
                for (measure, cell) in Measure::ALL.into_iter().zip(cells) {
                    let line = [
                        quote(&variant.name),
                        quote(&variant.baseline),
                        quote(&table.names.join(" ")),
                        measure.name().to_owned(),
                        optional(self.limit(measure)),
                        cell.summary.map_or(0, |summary| summary.runs).to_string(),
                        optional(cell.summary.map(|summary| summary.mean)),
                        optional(cell.summary.and_then(|summary| summary.spread)),
                        optional(cell.difference),
                        optional(cell.difference_error),
                    ];
                    let _ = writeln!(text, "{}", line.join(","));
                }
            }
        }
        text
    }
}

/// A field of CSV (RFC 4180).
fn quote(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
