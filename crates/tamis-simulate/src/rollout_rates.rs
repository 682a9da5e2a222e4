//! Pass rates of the prompts of rollouts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tamis_core::filter::{GroupStatistics, OutcomeScale};
use tamis_core::random::Key;
use tamis_core::schedule::Tally;
use tamis_core::schedule::yields::PassRateSpread;
use tamis_data::records::Records;
use tamis_run::directory::step_files;

use crate::error::SimulateError;

/// Columns that name a row's prompt, and those of its outcome, best first.
const PROMPTS: [&str; 4] = ["prompt_id", "group_id", "uid", "group"];
const OUTCOMES: [&str; 4] = ["acc", "score", "metric_value", "reward"];

/// A pass rate for each prompt of a run or of a file: drawn from its posterior under the Beta distribution that is
/// fitted to all of them, so that new groups are kept as often as these were.
pub(crate) fn read(path: &Path, key: Key) -> Result<Vec<f64>, SimulateError> {
    let mut prompts: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for file in files(path)? {
        for record in Records::open(&file)? {
            let row = record?.values;
            if let (Some(prompt), Some(outcome)) = (prompt_of(&row), outcome_of(&row)) {
                prompts.entry(prompt).or_default().push(outcome);
            }
        }
    }
    let counts: Vec<(usize, usize)> = prompts
        .values()
        .map(|values| {
            let statistics = GroupStatistics::of(values, Some(OutcomeScale::default()));
            (statistics.num_correct.unwrap_or(0), statistics.num_scored)
        })
        .filter(|(_, scored)| *scored > 0)
        .collect();
    if counts.is_empty() {
        return Err(SimulateError::NoOutcome { path: path.to_owned() });
    }
    Ok(draw_rates(&counts, key))
}

fn draw_rates(counts: &[(usize, usize)], key: Key) -> Vec<f64> {
    let mut tally = Tally::default();
    for &(correct, scored) in counts.iter().filter(|(_, scored)| *scored > 1) {
        let (c, n) = (correct as f64, scored as f64);
        tally.paired_groups += 1;
        tally.pass_rates += c / n;
        tally.pairs_correct += c * (c - 1.0) / (n * (n - 1.0));
    }
    let spread = PassRateSpread::fit(&tally);
    let of = |(number, &(correct, scored)): (usize, &(usize, usize))| {
        let (c, n) = (correct as f64, scored as f64);
        match spread {
            Some(PassRateSpread::Equal(rate)) => rate,
            Some(PassRateSpread::Beta { a, b }) => beta(key.with(number as u64), a + c, b + n - c),
            Some(PassRateSpread::Split(_)) | None => c / n,
        }
    };
    counts.iter().enumerate().map(of).collect()
}

/// A number of Beta(a, b), as a ratio of two of Gamma.
fn beta(key: Key, a: f64, b: f64) -> f64 {
    let (x, y) = (gamma(key.with(0), a), gamma(key.with(1), b));
    if x + y > 0.0 { x / (x + y) } else { 0.5 }
}

/// A number of Gamma(shape, 1): Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
fn gamma(key: Key, shape: f64) -> f64 {
    if shape < 1.0 {
        return gamma(key.with(1), shape + 1.0) * (1.0 - key.uniform(0)).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    for turn in 0.. {
        let x = key.with(2).normal(turn);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - key.with(3).uniform(turn)).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
    d
}

fn prompt_of(row: &Map<String, Value>) -> Option<String> {
    PROMPTS.iter().find_map(|column| match row.get(*column)? {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    })
}

fn outcome_of(row: &Map<String, Value>) -> Option<f64> {
    OUTCOMES.iter().find_map(|column| match row.get(*column)? {
        Value::Number(number) => number.as_f64(),
        Value::Bool(is_right) => Some(f64::from(u8::from(*is_right))),
        _ => None,
    })
}

/// The file, or those of a run.
fn files(path: &Path) -> Result<Vec<PathBuf>, SimulateError> {
    if !path.exists() {
        return Err(SimulateError::NothingThere { path: path.to_owned() });
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = step_files(path)?;
    if files.is_empty() {
        return Err(SimulateError::NoRollouts { folder: path.to_owned() });
    }
    Ok(files.into_iter().map(|(_, file)| file).collect())
}

#[cfg(test)]
mod tests {
    use tamis_core::random::Purpose;
    use tamis_core::schedule::yields::keep_probability;

    use super::*;

    /// Groups of 8 whose c/8 alone would keep too few of the next ones.
    #[test]
    fn new_groups_are_kept_as_often_as_those_that_were_read() {
        let key = Key::new(3, Purpose::Bootstrap);
        let counts: Vec<(usize, usize)> = (0..6000)
            .map(|number| {
                let key = key.with(7).with(number);
                let rate = beta(key, 0.5, 0.5);
                ((0..8).filter(|&member| key.with(9).uniform(member) < rate).count(), 8)
            })
            .collect();
        let kept = counts.iter().filter(|(correct, _)| !matches!(correct, 0 | 8)).count() as f64 / 6000.0;
        let rates = draw_rates(&counts, key);
        let again = rates.iter().map(|rate| keep_probability(*rate, 8)).sum::<f64>() / 6000.0;
        assert!((again - kept).abs() < 0.012, "{again} against {kept}");
        let plain = counts.iter().map(|(c, _)| keep_probability(*c as f64 / 8.0, 8)).sum::<f64>() / 6000.0;
        assert!(plain < kept - 0.03, "{plain}");
    }

    #[test]
    fn a_file_of_rollouts_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("step_1.jsonl");
        let rows = "{\"uid\": \"a\", \"score\": 1.0}\n{\"uid\": \"a\", \"score\": 0.0}\n{\"uid\": \"b\", \"score\": 0}\n";
        std::fs::write(&file, rows).unwrap();
        let key = Key::new(1, Purpose::Bootstrap);
        assert_eq!(read(&file, key).unwrap().len(), 2);
        assert_eq!(read(folder.path(), key).unwrap().len(), 2);
        std::fs::write(&file, "{\"text\": \"a\"}\n").unwrap();
        assert!(read(&file, key).unwrap_err().to_string().contains("no row has both"));
        assert!(matches!(read(&folder.path().join("x"), key), Err(SimulateError::NothingThere { .. })));
    }
}
