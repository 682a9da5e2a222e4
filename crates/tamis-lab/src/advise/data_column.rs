//! A forecast from pass rates in the training data, before a run has sampled anything.

use std::path::PathBuf;

use serde_json::{Map, Value};
use tamis_core::figure::{counted, fixed, percent};
use tamis_core::schedule::yields::keep_probability;
use tamis_data::records::Records;

use super::cost::{CostBasis, Costs};
use super::keep_rate::KeepEstimate;
use super::plan::AdvicePlan;
use super::text::cost_lines;

/// Suffixes of columns that hold some policy's pass rates (`llama8b_solve_rate`).
const NAMES: [&str; 3] = ["pass_rate", "solve_rate", "success_rate"];

/// Rows that are read, over all files.
const MOST_ROWS: usize = 20_000;

fn is_rate(name: &str) -> bool {
    NAMES.iter().any(|end| name.to_lowercase().ends_with(end))
}

/// The path of a pass-rate column: in the row, or in verl's `extra_info`.
fn find_column(row: &Map<String, Value>) -> Option<Vec<String>> {
    let rate = |columns: &Map<String, Value>| {
        let found = columns.iter().find(|(name, value)| is_rate(name) && rate_of(value).is_some());
        found.map(|(name, _)| name.clone())
    };
    rate(row).map(|name| vec![name]).or_else(|| {
        let inside = row.get("extra_info")?.as_object()?;
        Some(vec!["extra_info".to_owned(), rate(inside)?])
    })
}

fn rate_of(value: &Value) -> Option<f64> {
    value.as_f64().filter(|rate| (0.0..=1.0).contains(rate))
}

/// The column's name and the pass rates of the first rows. `None` if there is no such column, or a row has
/// something else in it.
fn read_rates(files: &[PathBuf]) -> Option<(String, Vec<f64>)> {
    let mut rates = Vec::new();
    let mut column: Option<Vec<String>> = None;
    for file in files {
        let records =
            Records::open_with(file, |column| column.name == "extra_info" || is_rate(column.name)).ok()?;
        for record in records.take(MOST_ROWS - rates.len()) {
            let row = record.ok()?.values;
            if column.is_none() {
                column = Some(find_column(&row)?);
            }
            let mut parts = column.iter().flatten();
            let first = row.get(parts.next()?)?;
            rates.push(rate_of(parts.try_fold(first, |value, name| value.get(name))?)?);
        }
    }
    Some((column?.join("."), rates))
}

/// The lines that a run prints at its start if its training data has a pass-rate column: the share of groups
/// whose members would differ if the policy had these pass rates, and the cost of a batch. Empty if there is
/// no such column.
pub fn start_lines_of_data(files: &[PathBuf], plan: &AdvicePlan) -> Vec<String> {
    let Some((column, rates)) = read_rates(files).filter(|_| plan.n > 1) else { return Vec::new() };
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / rates.len() as f64;
    let pass_rate = mean(&mut rates.iter().copied());
    let keep = mean(&mut rates.iter().map(|rate| keep_probability(*rate, plan.n)));
    let head = format!(
        "advice: with the pass rates of the data's column `{column}` (mean {} of {}), {} of groups of {} have members that differ",
        fixed(pass_rate, 2),
        counted(rates.len(), "prompt"),
        percent(keep),
        plan.n
    );
    let at = |n: usize| KeepEstimate::exact(mean(&mut rates.iter().map(|rate| keep_probability(*rate, n))));
    let keep_first = plan.screen_first.map(at);
    let basis =
        CostBasis { keep_first, pass_rate: Some(pass_rate), ..CostBasis::new(KeepEstimate::exact(keep)) };
    let costs = Costs::of(basis, plan);
    cost_lines(head, Some(&costs), plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(rows: &str, plan: &AdvicePlan) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("train.jsonl");
        std::fs::write(&file, rows).unwrap();
        start_lines_of_data(&[file], plan)
    }

    fn plan() -> AdvicePlan {
        AdvicePlan { n: 4, mode: Some("rounds"), max_num_gen_batches: Some(1), ..AdvicePlan::default() }
    }

    #[test]
    fn pass_rates_of_the_data_say_what_a_batch_costs() {
        // 0 of the first prompt and 1 - 2/16 of the second are kept.
        let rows = "{\"prompt\": \"a\", \"llama8B_solve_rate\": 1}\n{\"prompt\": \"b\", \"llama8B_solve_rate\": 0.5}\n";
        let lines = said(rows, &plan());
        insta::assert_snapshot!(lines.join("\n"), @"
        advice: with the pass rates of the data's column `llama8B_solve_rate` (mean 0.75 of 2 prompts), 43.8% of groups of 4 have members that differ: about 2.9 rounds a step, 2.91 groups generated for each that is trained on
        advice: 1 round (schedule.max_num_gen_batches) will be too few in 100.0% of steps
        ");
        // The place in verl's data.
        let nested = "{\"prompt\": \"a\", \"extra_info\": {\"pass_rate\": 0.5}}\n";
        let line = said(nested, &AdvicePlan { mode: Some("no_filter"), ..plan() });
        insta::assert_snapshot!(line.join("\n"), @"advice: with the pass rates of the data's column `extra_info.pass_rate` (mean 0.50 of 1 prompt), 87.5% of groups of 4 have members that differ");
    }

    /// Two members of the second prompt differ in half of its groups.
    #[test]
    fn a_run_that_ends_groups_early_is_told_what_that_costs() {
        let rows = "{\"prompt\": \"a\", \"solve_rate\": 1}\n{\"prompt\": \"b\", \"solve_rate\": 0.5}\n";
        let lines = said(rows, &AdvicePlan { mode: Some("screened"), screen_first: Some(2), ..plan() });
        assert!(lines[0].ends_with(": about 2.50 groups generated for each that is trained on"), "{lines:?}");
    }

    #[test]
    fn other_columns_say_nothing() {
        for rows in [
            "{\"prompt\": \"a\"}\n",
            "{\"prompt\": \"a\", \"pass_rate\": 50}\n",
            "{\"prompt\": \"a\", \"pass_rate\": \"high\"}\n",
            "{\"prompt\": \"a\", \"pass_rate\": 0.5}\n{\"prompt\": \"b\"}\n",
            "{\"prompt\": \"a\", \"extra_info\": {\"index\": 1}}\n",
            "no json\n",
            "",
        ] {
            assert!(said(rows, &plan()).is_empty(), "{rows}");
        }
        let rows = "{\"prompt\": \"a\", \"pass_rate\": 0.5}\n";
        assert!(said(rows, &AdvicePlan { n: 1, ..plan() }).is_empty());
        assert!(start_lines_of_data(&["missing.parquet".into()], &plan()).is_empty());
    }
}
