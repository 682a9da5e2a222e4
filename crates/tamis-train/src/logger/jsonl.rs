//! `metrics.jsonl`: one JSON object a line for each step.
//!
//! `{"step":12,"critic/rewards/mean":0.53,...}`, the names in the order of the step. JSON has no infinities and no NaN: NaN (no
//! value) is `null`, infinities are the strings `"Infinity"` and `"-Infinity"`, so that a divergence is not taken for a missing
//! value. Numbers are the shortest decimals that read back as the same f64.

use std::path::Path;

use serde_json::{Map, Number, Value};

use super::Logger;
use crate::catalogue;
use crate::durable::{AppendFile, Disk, DiskError};
use crate::metrics::Metrics;
use crate::run_directory::{LogPositions, METRICS};

/// Writes `metrics.jsonl`.
#[derive(Debug)]
pub struct JsonlLogger {
    file: AppendFile,
}

impl JsonlLogger {
    /// Opens the file for appending, creating it where it is not there.
    pub fn open(disk: &Disk, path: &Path) -> Result<Self, DiskError> {
        Ok(Self { file: disk.append_to(path)? })
    }
}

impl Logger for JsonlLogger {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), DiskError> {
        let mut line = line(step, metrics);
        line.push('\n');
        self.file.append(line.as_bytes())
    }

    fn sync(&mut self, positions: &mut LogPositions) -> Result<(), DiskError> {
        self.file.sync()?;
        positions.record(METRICS, self.file.length());
        Ok(())
    }
}

/// The line of a step, without its end.
pub fn line(step: u64, metrics: &Metrics) -> String {
    let mut object = Map::new();
    object.insert("step".to_owned(), Value::Number(step.into()));
    for (name, value) in metrics.iter() {
        object.insert(name.to_owned(), number(value));
    }
    Value::Object(object).to_string()
}

fn number(value: f64) -> Value {
    Number::from_f64(value).map_or_else(
        || match value {
            f64::INFINITY => Value::from("Infinity"),
            f64::NEG_INFINITY => Value::from("-Infinity"),
            _ => Value::Null,
        },
        Value::Number,
    )
}

/// A line that is no object of metrics.
#[derive(Debug, thiserror::Error)]
#[error("read line {line} of the metrics")]
pub struct LineError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Why.
    #[source]
    pub cause: serde_json::Error,
}

/// The text of a `metrics.jsonl` without the fields that depend on the clock: two runs of one seed on one machine agree on it,
/// byte for byte.
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
        insta::assert_snapshot!(line(12, &metrics), @r#"{"step":12,"training/global_step":12.0,"actor/lr":1e-6,"actor/pg_loss":null,"actor/grad_norm":"Infinity","actor/kl_loss":"-Infinity","timing_s/step":0.30000000000000004}"#);
    }

    proptest::proptest! {
        #[test]
        fn numbers_read_back_bit_for_bit(value in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL | proptest::num::f64::ZERO) {
            let mut metrics = Metrics::new();
            metrics.set("actor/lr", value);
            let read: Value = serde_json::from_str(&line(1, &metrics)).expect("json");
            let read = read["actor/lr"].as_f64().expect("a number");
            proptest::prop_assert_eq!(read.to_bits(), value.to_bits());
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
