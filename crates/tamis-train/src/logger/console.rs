//! The console: one line a step with the numbers a person follows.

use tamis_core::figure::fixed;

use super::Logger;
use crate::durable::DiskError;
use crate::metrics::Metrics;
use crate::progress::{Progress, StepView};
use crate::run_directory::LogPositions;

/// Says a line a step and moves the progress bar.
#[derive(Debug)]
pub struct ConsoleLogger {
    progress: Progress,
}

impl ConsoleLogger {
    /// Speaks through `progress`, so that lines and bar do not mix.
    pub fn new(progress: Progress) -> Self {
        Self { progress }
    }
}

impl Logger for ConsoleLogger {
    fn name(&self) -> &'static str {
        "console"
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), DiskError> {
        self.progress.step(step, &StepView::of(metrics));
        let total = self.progress.total_steps().map_or_else(String::new, |total| format!("/{total}"));
        let numbers = line(metrics);
        self.progress
            .say(&format!("step {step}{total}{}{numbers}", if numbers.is_empty() { "" } else { "  " }));
        Ok(())
    }

    fn amend(&mut self, _step: u64, _added: &Metrics) -> Result<(), DiskError> {
        // What a validation found was said when it was made.
        Ok(())
    }

    fn sync(&mut self, _positions: &mut LogPositions) -> Result<(), DiskError> {
        Ok(())
    }
}

/// How a number is shown.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    Percent,
    Small,
    Seconds,
    Rate,
}

/// What the line shows, in order: label, metric, form.
const SHOWN: [(&str, &str, Form); 11] = [
    ("reward", "critic/rewards/mean", Form::Plain),
    ("pass", "all/pass_rate", Form::Percent),
    ("rounds", "train/num_gen_batches", Form::Plain),
    ("dropped", "train/filter_rate", Form::Percent),
    ("length", "response_length/mean", Form::Plain),
    ("entropy", "actor/entropy", Form::Plain),
    ("kl", "actor/ppo_kl", Form::Small),
    ("grad", "actor/grad_norm", Form::Plain),
    ("lr", "actor/lr", Form::Small),
    ("time", "timing_s/step", Form::Seconds),
    ("", "perf/throughput", Form::Rate),
];

/// The numbers of a step's line; those that are not there are left out.
fn line(metrics: &Metrics) -> String {
    let shown: Vec<String> = SHOWN
        .iter()
        .filter_map(|&(label, name, form)| {
            let value = metrics.get(name)?;
            let text = match form {
                Form::Plain if value.fract() == 0.0 && value.abs() < 1e9 => format!("{value}"),
                Form::Plain => fixed(value, 3),
                Form::Percent => format!("{:.1}%", 100.0 * value),
                Form::Small => format!("{value:.1e}"),
                Form::Seconds => format!("{value:.1}s"),
                Form::Rate => crate::progress::rate(value),
            };
            Some(if label.is_empty() { text } else { format!("{label} {text}") })
        })
        .collect();
    shown.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_what_is_there() {
        let mut metrics = Metrics::new();
        assert_eq!(line(&metrics), "");
        metrics.set("critic/rewards/mean", 0.531_25);
        metrics.set("all/pass_rate", 0.468_75);
        metrics.set("train/num_gen_batches", 2.0);
        metrics.set("train/filter_rate", 0.598);
        metrics.set("response_length/mean", 24.1);
        metrics.set("actor/ppo_kl", -0.000_031);
        metrics.set("actor/grad_norm", f64::NAN);
        metrics.set("actor/lr", 1e-6);
        metrics.set("timing_s/step", 3.25);
        metrics.set("perf/throughput", 12_345.6);
        let mut large = Metrics::new();
        large.set("critic/rewards/mean", 1e300);
        large.set("response_length/mean", 1.234_567_8e12);
        large.set("actor/grad_norm", f64::INFINITY);
        insta::assert_snapshot!(line(&large), @"reward 1.000e300  length 1.235e12  grad inf");
        large.set("critic/rewards/mean", -2.5e299 / 3.0);
        insta::assert_snapshot!(line(&large), @"reward -8.333e298  length 1.235e12  grad inf");
        insta::assert_snapshot!(line(&metrics), @"reward 0.531  pass 46.9%  rounds 2  dropped 59.8%  length 24.100  kl -3.1e-5  grad NaN  lr 1.0e-6  time 3.2s  12.3k tok/s");
    }
}
