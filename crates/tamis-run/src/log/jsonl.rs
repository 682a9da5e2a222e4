//! `metrics.jsonl`: one JSON object a line for each step.
//!
//! `{"step":12,"critic/rewards/mean":0.53,...}`, the names in the order of the step. JSON has no
//! infinities and no NaN: NaN (no value) is `null`, infinities are the strings `"Infinity"` and
//! `"-Infinity"`, so that a divergence does not look like a missing value. Numbers are the shortest
//! decimals that read back as the same f64.
//!
//! A step has one row. Later figures of the last step (the validation after the data has ended the run)
//! are added to its row, which is rewritten. So a checkpoint records the file's length before the last
//! row, and the row itself.

use std::path::Path;

use serde_json::{Map, Number, Value};

use super::Logger;
use crate::directory::{LogPositions, METRICS};
use crate::durable::{AppendFile, Disk, DiskError};
use crate::metrics::Metrics;
use crate::metrics::catalogue;

/// Writes `metrics.jsonl`.
#[derive(Debug)]
pub struct JsonlLogger {
    file: AppendFile,
    last: Option<LastRow>,
}

#[derive(Debug)]
struct LastRow {
    step: u64,
    row: Map<String, Value>,
    start: u64,
}

impl JsonlLogger {
    /// Opens the file for appending, creating it if it does not exist.
    pub fn open(disk: &Disk, path: &Path) -> Result<Self, DiskError> {
        Ok(Self { file: disk.append_to(path)?, last: None })
    }

    /// Continues after the last row of a file that was cut back to a checkpoint; that row may still get
    /// values. A row that is not the end of the file, or not a row, is not changed.
    #[must_use]
    pub fn continue_after(mut self, row: Option<&str>) -> Self {
        self.last = row.and_then(|row| {
            let object: Map<String, Value> = serde_json::from_str(row).ok()?;
            let step = object.get("step")?.as_u64()?;
            let start = self.file.length().checked_sub(row.len() as u64)?;
            Some(LastRow { step, row: object, start })
        });
        self
    }

    fn write(&mut self, step: u64, row: Map<String, Value>) -> Result<(), DiskError> {
        let start = self.file.length();
        let last = self.last.insert(LastRow { step, row, start });
        self.file.append(text(&last.row).as_bytes())
    }
}

impl Logger for JsonlLogger {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), DiskError> {
        self.write(step, row(step, metrics))
    }

    fn amend(&mut self, step: u64, added: &Metrics) -> Result<(), DiskError> {
        let Some(last) = self.last.take_if(|last| last.step == step) else { return self.log(step, added) };
        let mut whole = last.row;
        for (name, value) in added.iter() {
            whole.insert(name.to_owned(), number(value));
        }
        self.file.cut(last.start)?;
        self.write(step, whole)
    }

    fn sync(&mut self, positions: &mut LogPositions) -> Result<(), DiskError> {
        self.file.sync()?;
        positions.record(METRICS, self.last.as_ref().map_or(self.file.length(), |last| last.start));
        positions.last_row = self.last.as_ref().map(|last| text(&last.row));
        Ok(())
    }
}

fn row(step: u64, metrics: &Metrics) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("step".to_owned(), Value::Number(step.into()));
    for (name, value) in metrics.iter() {
        object.insert(name.to_owned(), number(value));
    }
    object
}

fn text(row: &Map<String, Value>) -> String {
    // The values are finite numbers, texts and null: nothing that cannot be written.
    serde_json::to_string(row).unwrap_or_default() + "\n"
}

/// A figure: NaN is null, infinities are texts.
pub fn number(value: f64) -> Value {
    Number::from_f64(value).map_or_else(
        || match value {
            f64::INFINITY => Value::from("Infinity"),
            f64::NEG_INFINITY => Value::from("-Infinity"),
            _ => Value::Null,
        },
        Value::Number,
    )
}

/// A line that is not an object of metrics.
#[derive(Debug, thiserror::Error)]
#[error("read line {line} of the metrics")]
pub struct LineError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The reason.
    #[source]
    pub cause: serde_json::Error,
}

/// The text of a `metrics.jsonl` without the fields that depend on the clock: two runs with the same
/// seed on one machine agree on it, byte for byte.
pub fn without_wall_clock(text: &str) -> Result<String, LineError> {
    let mut kept = String::with_capacity(text.len());
    for (place, line) in text.lines().enumerate() {
        let object: Map<String, Value> =
            serde_json::from_str(line).map_err(|cause| LineError { line: place + 1, cause })?;
        let object = object.into_iter().filter(|(name, _)| !catalogue::is_wall_clock(name)).collect();
        kept += &Value::Object(object).to_string();
        kept.push('\n');
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_line() {
        let mut metrics = Metrics::new();
        metrics.set("training/global_step", 12.0);
        metrics.set("actor/lr", 1e-6);
        metrics.set("actor/pg_loss", f64::NAN);
        metrics.set("actor/grad_norm", f64::INFINITY);
        metrics.set("actor/kl_loss", f64::NEG_INFINITY);
        metrics.set("timing_s/step", 0.1 + 0.2);
        insta::assert_snapshot!(text(&row(12, &metrics)), @r#"{"step":12,"training/global_step":12.0,"actor/lr":1e-6,"actor/pg_loss":null,"actor/grad_norm":"Infinity","actor/kl_loss":"-Infinity","timing_s/step":0.30000000000000004}"#);
    }

    proptest::proptest! {
        #[test]
        fn numbers_read_back_bit_for_bit(value in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL | proptest::num::f64::ZERO) {
            let mut metrics = Metrics::new();
            metrics.set("actor/lr", value);
            let read: Value = serde_json::from_str(&text(&row(1, &metrics))).expect("json");
            let read = read["actor/lr"].as_f64().expect("a number");
            proptest::prop_assert_eq!(read.to_bits(), value.to_bits());
        }
    }

    #[test]
    fn a_step_that_is_added_to_keeps_one_row_through_a_resume() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("metrics.jsonl");
        let disk = Disk::without_flush();
        let one = |name: &str, value: f64| {
            let mut metrics = Metrics::new();
            metrics.set(name, value);
            metrics
        };
        let mut logger = JsonlLogger::open(&disk, &path).expect("open");
        logger.log(1, &one("actor/lr", 0.5)).expect("log");
        logger.log(2, &one("actor/lr", 0.25)).expect("log");
        let mut positions = LogPositions::default();
        logger.sync(&mut positions).expect("sync");
        assert_eq!(positions.files[METRICS], 26, "before the last row");
        logger.amend(2, &one("loss", 3.0)).expect("amend");
        let whole = "{\"step\":1,\"actor/lr\":0.5}\n{\"step\":2,\"actor/lr\":0.25,\"loss\":3.0}\n";
        assert_eq!(std::fs::read_to_string(&path).expect("read"), whole);
        // A crash at any place of the amendment, and a resume from the checkpoint before it.
        for torn in [26, 40, whole.len() as u64] {
            disk.append_to(&path).expect("open").cut(torn).expect("cut");
            disk.cut_file(&path, positions.files[METRICS]).expect("cut");
            let row = positions.last_row.clone().expect("a row");
            disk.append_to(&path).expect("open").append(row.as_bytes()).expect("append");
            let mut logger = JsonlLogger::open(&disk, &path).expect("open").continue_after(Some(&row));
            logger.amend(2, &one("loss", 3.0)).expect("amend");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), whole);
            // Figures that belong to no open row get their own.
            logger.amend(3, &one("loss", 1.0)).expect("amend");
            logger.amend(3, &one("actor/lr", 2.0)).expect("amend");
            let longer = format!("{whole}{{\"step\":3,\"loss\":1.0,\"actor/lr\":2.0}}\n");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), longer);
        }
    }

    #[test]
    fn the_clock_is_left_out() {
        let text =
            "{\"step\":1,\"timing_s/gen\":0.5,\"actor/lr\":0.25,\"perf/throughput\":3.0}\n{\"step\":2}\n";
        let kept = without_wall_clock(text).expect("lines");
        assert_eq!(kept, "{\"step\":1,\"actor/lr\":0.25}\n{\"step\":2}\n");
        let error = without_wall_clock("{}\n{\"step\":1").expect_err("torn");
        let shown = format!("failed to {error}: {}", error.source().expect("a cause"));
        insta::assert_snapshot!(shown, @"failed to read line 2 of the metrics: EOF while parsing an object at line 1 column 9");
    }
}
