//! One run's metrics by step, read from a `metrics.jsonl` of tamis or of any program that uses verl's names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::Fault;

/// Upper limit on the size of a `metrics.jsonl`, in bytes.
const MOST: u64 = 1 << 30;

/// Metrics that count tokens, best first, and whether they are cumulative.
const TOKENS: [(&str, bool); 3] =
    [("num_tokens", true), ("tokens/generated", false), ("perf/total_num_tokens", false)];
/// Metrics with the time of a step, best first.
const SECONDS: [&str; 3] = ["timing_s/step", "perf/time_per_step", "step_time"];

/// A line that is not a row of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedLine {
    /// The line, from 1.
    pub line: usize,
    /// The error.
    pub fault: String,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesRow {
    /// Its number.
    pub step: u64,
    /// Tokens up to its end.
    pub tokens: Option<f64>,
    /// Seconds up to its end.
    pub seconds: Option<f64>,
    /// Its metrics that are finite numbers.
    pub values: BTreeMap<String, f64>,
    /// Its metrics that are infinite.
    pub infinite: BTreeMap<String, f64>,
}

/// A run's metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// The steps, in order.
    pub rows: Vec<SeriesRow>,
    /// The metric that counts tokens.
    pub tokens_by: Option<&'static str>,
    /// Whether the last line of the file is incomplete and left out.
    pub is_torn: bool,
    /// Other lines that are left out.
    pub damaged: Vec<DamagedLine>,
}

/// The metrics file of a path: the path itself, or the file in a run directory.
pub fn metrics_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(tamis_run::directory::METRICS) } else { path.to_owned() }
}

impl Series {
    /// Reads a file, or the one in a run directory. An incomplete last line and damaged lines are left out.
    ///
    /// # Errors
    /// The file cannot be read, or has lines and none of them is a row of metrics.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let path = metrics_of(path);
        let bytes = tamis_file::read(&path, MOST)
            .map_err(|cause| Fault::failed(format!("read {}", path.display())).with_source(cause))?;
        let series = Self::parse(&String::from_utf8_lossy(&bytes));
        match series.damaged.first() {
            Some(DamagedLine { line, fault }) if series.rows.is_empty() => {
                let path = path.display();
                let message = format!("{path}: no line is a row of metrics; line {line}: {fault}");
                let hint = "name a run directory, or a `metrics.jsonl` of tamis or with verl's names";
                Err(Fault::failed(message).with_hint(hint))
            }
            _ => Ok(series),
        }
    }

    /// Parses the text of a file. A row is an object with `step` (or `training/global_step`). Its metrics are
    /// beside the step or, from verl's file logger, under `data`. If a step comes again, as in a resumed run,
    /// it replaces the earlier rows from that step on. Lines that are no rows are left out and listed.
    pub fn parse(text: &str) -> Self {
        let mut rows: Vec<(u64, BTreeMap<String, f64>)> = Vec::new();
        let (mut is_torn, mut damaged) = (false, Vec::new());
        let num_lines = text.lines().count();
        for (place, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut leave_out = |fault: String| damaged.push(DamagedLine { line: place + 1, fault });
            let object = match read_object(line) {
                Ok(object) => object,
                Err(_) if place + 1 == num_lines && !text.ends_with('\n') => {
                    is_torn = true;
                    break;
                }
                Err(error) => {
                    leave_out(format!("not a JSON object: {error}"));
                    continue;
                }
            };
            let inner = object.get("data").and_then(Value::as_object);
            let metrics = inner.unwrap_or(&object);
            let number = |map: &Map<String, Value>, name: &str| map.get(name).and_then(Value::as_f64);
            let step = number(&object, "step").or_else(|| number(metrics, "training/global_step"));
            let Some(step) = step.filter(|step| *step >= 0.0) else {
                leave_out("no `step` and no `training/global_step`".to_owned());
                continue;
            };
            let step = step as u64;
            let values = metrics.iter().filter_map(|(name, value)| Some((name.clone(), read_number(value)?)));
            let values: BTreeMap<String, f64> = values.filter(|(name, _)| name != "step").collect();
            if rows.last().is_some_and(|(last, _)| *last == step) {
                // verl logs the last validation as a separate row.
                if let Some((_, last)) = rows.last_mut() {
                    last.extend(values);
                }
                continue;
            }
            rows.retain(|(earlier, _)| *earlier < step);
            rows.push((step, values));
        }
        let has = |name: &str| rows.iter().any(|(_, values)| values.contains_key(name));
        let tokens = TOKENS.into_iter().find(|(name, _)| has(name));
        let seconds = SECONDS.into_iter().find(|name| has(name));
        let (mut num_tokens, mut num_seconds) = (0.0, 0.0);
        let rows = rows
            .into_iter()
            .map(|(step, values)| {
                let (values, infinite): (BTreeMap<_, _>, _) =
                    values.into_iter().partition(|(_, value)| value.is_finite());
                let tokens = tokens.map(|(name, is_total)| {
                    let value = values.get(name).copied().unwrap_or(0.0);
                    num_tokens = if is_total { value.max(num_tokens) } else { num_tokens + value };
                    num_tokens
                });
                let seconds = seconds.map(|name| {
                    num_seconds += values.get(name).copied().unwrap_or(0.0);
                    num_seconds
                });
                SeriesRow { step, tokens, seconds, values, infinite }
            })
            .collect();
        Self { rows, tokens_by: tokens.map(|(name, _)| name), is_torn, damaged }
    }

    /// A note about the lines that were left out. `file` is the name to print.
    pub fn left_out(&self, file: &str) -> Option<String> {
        let first = self.damaged.first()?;
        Some(match self.damaged.len() {
            1 => format!("line {} of {file} is damaged and left out: {}", first.line, first.fault),
            number => {
                format!(
                    "{number} lines of {file} are damaged and left out, the first of them line {}: {}",
                    first.line, first.fault
                )
            }
        })
    }

    /// Whether a verifier's `acc` has other values than 0 and 1: its mean is then not the share that is
    /// right.
    pub fn is_graded(&self) -> bool {
        self.rows.iter().any(|row| is_graded(|name| row.values.get(name).copied()))
    }

    /// Names of all metrics.
    pub fn names(&self) -> std::collections::BTreeSet<&str> {
        self.rows.iter().flat_map(|row| row.values.keys().map(String::as_str)).collect()
    }
}

/// As [`Series::is_graded`], of one row.
pub(crate) fn is_graded(value: impl Fn(&str) -> Option<f64>) -> bool {
    let both = value("all/pass_rate").zip(value("all/rewards/acc/mean"));
    both.is_some_and(|(right, mean)| (right - mean).abs() > 1e-9)
}

/// Parses a row as an object. Python writes `NaN`, `Infinity` and `-Infinity`, which JSON does not have. They
/// become strings.
///
/// # Errors
/// The line is not an object.
pub(crate) fn read_object(line: &str) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_str(line).or_else(|error| {
        let quoted = quote_not_finite(line);
        if quoted == line { Err(error) } else { serde_json::from_str(&quoted).map_err(|_| error) }
    })
}

/// Puts Python's non-finite words in a line into quotes, and replaces numbers beyond the range of a double by
/// such a word. Text inside strings is unchanged.
fn quote_not_finite(line: &str) -> String {
    let mut quoted = String::with_capacity(line.len());
    let mut rest = line;
    let (mut is_text, mut is_escaped) = (false, false);
    while let Some(next) = rest.chars().next() {
        let (word, length) = match if is_text { None } else { not_finite(rest) } {
            Some((word, length)) => (Some(word), length),
            None => (None, next.len_utf8()),
        };
        match word {
            Some(word) => quoted.extend(["\"", word, "\""]),
            None => quoted.push(next),
        }
        if next == '"' && !is_escaped {
            is_text = !is_text;
        }
        is_escaped = is_text && next == '\\' && !is_escaped;
        rest = &rest[length..];
    }
    quoted
}

/// Python's word for the non-finite number at the start of a text, and its length there.
fn not_finite(text: &str) -> Option<(&'static str, usize)> {
    let words = ["NaN", "Infinity", "-Infinity"];
    if let Some(word) = words.into_iter().find(|word| text.starts_with(word)) {
        return Some((word, word.len()));
    }
    let is_of_number = |c: char| c.is_ascii_digit() || ['-', '+', '.', 'e', 'E'].contains(&c);
    let length = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
    let number: f64 = text.get(..length)?.parse().ok()?;
    number.is_infinite().then_some((if number > 0.0 { words[1] } else { words[2] }, length))
}

/// A number of a row: JSON's, or the string of an infinite one. `None` for NaN and other values.
pub(crate) fn read_number(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) if text == "Infinity" => Some(f64::INFINITY),
        Value::String(text) if text == "-Infinity" => Some(f64::NEG_INFINITY),
        other => other.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_tamis_and_of_verl() {
        let ours = Series::parse(
            "{\"step\":1,\"reward\":0.5,\"num_tokens\":10,\"timing_s/step\":2}\n{\"step\":2,\"reward\":null,\"num_tokens\":25,\"timing_s/step\":3}\n{\"step\":3,\"rew",
        );
        let counts: Vec<_> = ours.rows.iter().map(|row| (row.step, row.tokens, row.seconds)).collect();
        assert_eq!(counts, [(1, Some(10.0), Some(2.0)), (2, Some(25.0), Some(5.0))]);
        assert_eq!(ours.rows[1].values.get("reward"), None);
        assert!(ours.is_torn);
        let theirs = Series::parse(
            "{\"step\":1,\"data\":{\"critic/score/mean\":0.25,\"perf/total_num_tokens\":7}}\n{\"step\":1,\"data\":{\"val-core/x/acc/mean@1\":1}}\n{\"step\":2,\"data\":{\"perf/total_num_tokens\":7}}\n",
        );
        assert!(!theirs.is_torn);
        assert_eq!(theirs.tokens_by, Some("perf/total_num_tokens"));
        assert_eq!(theirs.rows.len(), 2);
        assert_eq!((theirs.rows[1].tokens, theirs.rows[0].values.len()), (Some(14.0), 3));
    }

    #[test]
    fn a_resumed_run_goes_on_from_where_it_was() {
        let text = "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\n{\"step\":3,\"a\":3}\n{\"step\":2,\"a\":5}\n";
        let series = Series::parse(text);
        assert_eq!(
            series.rows.iter().map(|row| (row.step, row.values["a"])).collect::<Vec<_>>(),
            [(1, 1.0), (2, 5.0)]
        );
    }

    #[test]
    fn what_is_infinite_stands_apart() {
        let series = Series::parse("{\"step\":1,\"a\":\"Infinity\",\"b\":2,\"c\":\"x\"}\n");
        assert!(series.rows[0].infinite["a"].is_infinite());
        assert_eq!(series.rows[0].values.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn words_of_python_are_not_finite() {
        let line = r#"{"step":1,"a":NaN,"b":-Infinity,"c":Infinity,"d":2,"t":"NaN \" Infinity \\"}"#;
        let series = Series::parse(&format!("{line}\n"));
        let row = &series.rows[0];
        assert_eq!(row.values.keys().collect::<Vec<_>>(), ["d"]);
        assert!(row.infinite["c"] > 0.0 && row.infinite["b"] < 0.0 && row.infinite.len() == 2);
        assert_eq!(series.damaged, []);
        // A number beyond the range of a double does not cost the row its other numbers.
        let beyond = Series::parse("{\"step\":1,\"a\":1e400,\"b\":-1E+999,\"c\":2e300}\n");
        let row = &beyond.rows[0];
        assert!(row.infinite["a"] > 0.0 && row.infinite["b"] < 0.0 && beyond.damaged.is_empty());
        assert!(row.values["c"].is_normal());
        let read = read_object(line).unwrap();
        assert_eq!(read["t"], r#"NaN " Infinity \"#);
        assert_eq!(read_object(r#"{"a":nan}"#).unwrap_err().to_string(), "expected ident at line 1 column 7");
    }

    #[test]
    fn lines_that_are_no_rows_are_left_out_and_told() {
        let series = Series::parse("x\n{\"step\":1,\"a\":1}\n{\"a\":1}\n{\"step\":2,\"a\":2}\n");
        assert_eq!(series.rows.iter().map(|row| row.step).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(
            series.damaged[1],
            DamagedLine { line: 3, fault: "no `step` and no `training/global_step`".to_owned() }
        );
        let told = series.left_out("`metrics.jsonl`").unwrap();
        assert!(told.starts_with("2 lines of `metrics.jsonl` are damaged and left out, the first of them line 1: not a JSON object: "), "{told}");
        assert_eq!(Series::parse("{\"step\":1}\n").left_out("x"), None);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.jsonl");
        std::fs::write(&file, "{\"a\":1}\nx\n").unwrap();
        let refused = Series::read(&file).unwrap_err().to_string();
        assert!(
            refused.ends_with("no line is a row of metrics; line 1: no `step` and no `training/global_step`"),
            "{refused}"
        );
    }
}
