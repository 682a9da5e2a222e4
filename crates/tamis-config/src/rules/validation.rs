//! Rules about validation and evaluation.

use super::Checker;
use tamis_env::task::TaskKind;

use crate::schema::{Config, ValidationMetric};
use crate::value::Frequency;

/// How to get validation prompts.
pub(super) fn validation_prompts(config: &Config) -> &'static str {
    match config.data.task {
        Some(TaskKind::Arithmetic) => "set `data.arithmetic.val_size` above 0",
        _ => "set `data.val` to a file, or `data.val_fraction` to hold out a part of the training data",
    }
}

impl Checker<'_> {
    pub(super) fn validation(&mut self) {
        let config = self.config;
        let validate = &config.validate;
        let has_data = config.has_validation_data();
        let is_off = validate.test_freq == Frequency::NEVER;
        if !is_off && !has_data {
            self.missing(
                &["validate.test_freq", "data.val"],
                "`validate.test_freq` is set, but there are no validation prompts",
                format!("{}, or `validate.test_freq: 0`", validation_prompts(config)),
            );
        }
        if !has_data {
            let keys = [
                "validate.before_train",
                "validate.n",
                "validate.metrics",
                "validate.max_prompts",
                "validate.save_samples",
            ];
            self.warn_ignored(&keys, "there are no validation prompts");
        } else if !validate.is_made() {
            let reason = "`validate.test_freq` is 0 and `validate.before_train` false: nothing is validated";
            self.warn_ignored(&["validate.save_samples"], reason);
        }
        self.samples();
        if config.checkpoint.keep_best.is_some() && is_off {
            self.error(
                &["checkpoint.keep_best", "validate.test_freq"],
                "`checkpoint.keep_best` compares validation metrics, but `validate.test_freq` is off",
                "set `validate.test_freq`",
            );
        }
    }

    /// Rules about the keys that `tamis eval` reads.
    pub(super) fn evaluation(&mut self) {
        if !self.config.has_validation_data() {
            let (keys, hint) = if self.config.data.task.is_some_and(|task| !task.reads_files()) {
                (["data.arithmetic.val_size", "data.task"], "set `data.arithmetic.val_size` above 0")
            } else {
                (["data.val", "data.task"], "name a JSONL or Parquet file: `data.val=FILE`")
            };
            self.error(&keys, "there are no validation prompts to evaluate on", hint);
        }
        self.samples();
    }

    fn samples(&mut self) {
        let validate = &self.config.validate;
        let several: Vec<&str> = validate
            .metrics
            .iter()
            .filter(|&&metric| metric != ValidationMetric::MeanAtK)
            .map(|metric| metric.as_str())
            .collect();
        if validate.n == 1 && !several.is_empty() {
            self.warn(
                &["validate.metrics", "validate.n"],
                format!(
                    "`validate.metrics` has {}, which with `validate.n: 1` all equal mean@1",
                    several.join(", ")
                ),
                "raise `validate.n`",
            );
        }
        if validate.n > 1 && validate.temperature == 0.0 {
            self.warn(
                &["validate.n", "validate.temperature"],
                format!(
                    "`validate.n` is {} with `validate.temperature: 0`: greedy samples of one prompt are identical",
                    validate.n
                ),
                "set `validate.temperature` above 0, or `validate.n: 1`",
            );
        }
    }
}
