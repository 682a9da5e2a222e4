//! Progress of a run, read from its `metrics.jsonl`.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value};
use tamis_core::figure::percent;
use tamis_run::directory::METRICS;

use crate::compare::series::is_graded;

/// Bytes at the end of the file that are read; a row has some kilobytes.
const MOST: u64 = 1 << 18;

/// The last row of a run, and its last accuracy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunProgress {
    /// The last step.
    pub step: u64,
    /// Mean reward of everything generated for the step.
    pub reward: Option<f64>,
    /// Accuracy at the last validation, otherwise of what was generated; the mean `acc` if that is graded.
    pub accuracy: Option<f64>,
    /// Whether `acc` has other values than 0 and 1.
    pub is_graded: bool,
}

/// The progress of the run in a folder; `None` before its first step.
pub fn read(run: &Path) -> Option<RunProgress> {
    let (bytes, _) = tamis_file::read_end(&run.join(METRICS), MOST).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let rows = text.lines().filter_map(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    let mut progress: Option<RunProgress> = None;
    let mut validated = None;
    for row in rows {
        let number = |name: &str| row.get(name).and_then(Value::as_f64);
        let Some(step) = row.get("step").and_then(Value::as_u64) else { continue };
        let of_validation = row
            .iter()
            .find(|(name, _)| name.starts_with("val-core/") && name.contains("/mean@"))
            .and_then(|(_, value)| value.as_f64());
        validated = of_validation.or(validated);
        let is_graded = is_graded(number);
        let generated = number(if is_graded { "all/rewards/acc/mean" } else { "all/pass_rate" });
        let accuracy = validated.or(generated);
        let reward = number("all/critic/score/mean").or_else(|| number("critic/score/mean"));
        progress = Some(RunProgress { step, reward, accuracy, is_graded });
    }
    progress
}

impl RunProgress {
    /// A line, without the run's name.
    pub fn line(&self, steps: Option<u64>) -> String {
        let mut text = format!("step {}", self.step);
        if let Some(steps) = steps {
            let _ = write!(text, "/{steps}");
        }
        if let Some(reward) = self.reward {
            let _ = write!(text, "  reward {reward:.3}");
        }
        if let Some(accuracy) = self.accuracy {
            let _ = if self.is_graded {
                write!(text, "  acc {accuracy:.3}")
            } else {
                write!(text, "  accuracy {}", percent(accuracy))
            };
        }
        text
    }
}
