//! Validation: before the first step, after some, at the end; and the one that an interruption left to be made.

use tamis_config::ValidateConfig;
use tamis_data::records::Format;
use tamis_data::samples::write_samples_to;

use super::{RunError, Session};
use crate::metrics::Metrics;
use crate::validation::{self, Found, Validation};
use crate::validation_metrics::{FigureName, PromptSamples, SourceResult, results_by_source};

/// Whether the policy is measured after a step: every `validate.test_freq` steps, and after the last one wherever there is a measurement at
/// all, be it only the one before training.
fn measures_after(config: &ValidateConfig, step: u64, is_last: bool) -> bool {
    config.test_freq.is_due(step) || (is_last && config.is_made())
}

impl Session {
    /// Whether the policy is measured after a step.
    pub(super) fn measures_after(&self, step: u64, is_last: bool) -> bool {
        !self.validation_prompts.is_empty() && measures_after(&self.config.validate, step, is_last)
    }

    /// Validation before the first step, where it is wanted.
    pub(super) fn first_measurement(&mut self) -> Result<(), RunError> {
        if !self.config.validate.before_train || self.validation_prompts.is_empty() {
            // Without a warm start there is nothing in it that a new start would have to do again.
            return if self.config.warm_start.steps > 0 { self.save_first() } else { Ok(()) };
        }
        self.is_unmeasured = true;
        match self.make_up_measurement() {
            // The run begins all the same, and stops at once with what it has: the warm start need not be made again.
            Err(error) if error.is_interruption() => Ok(()),
            other => other,
        }
    }

    /// The validation after the last step that an interruption left out: its figures go into the step's row, as if nothing had happened.
    pub(super) fn make_up_measurement(&mut self) -> Result<(), RunError> {
        let step = self.shell.machine().progress().steps;
        let mut metrics = Metrics::new();
        self.validate(step, &mut metrics)?;
        self.is_unmeasured = false;
        self.loggers.amend(step, &metrics)?;
        if step == 0 {
            self.before = self.latest.take().map(|(_, report)| report);
        } else {
            self.observe_validation();
            self.early_stop_between = self.early_stop.state().clone();
        }
        if step == 0 { self.save_first() } else { self.save(step) }
    }

    /// The checkpoint before the first step, where checkpoints are asked for (`checkpoint.save_freq`): a run that is killed before the
    /// second one need not make warm start and measurement again. Without, a run keeps its last state only.
    fn save_first(&mut self) -> Result<(), RunError> {
        if self.config.checkpoint.save_freq == tamis_config::Frequency::NEVER { Ok(()) } else { self.save(0) }
    }

    /// The validation after the last step of a run that its data ended, where it has not been made.
    pub(super) fn last_measurement(&mut self) -> Result<(), RunError> {
        let step = self.shell.machine().progress().steps;
        let is_made =
            self.latest.as_ref().is_some_and(|(at, _)| *at == step) || (step == 0 && self.before.is_some());
        if is_made || !self.measures_after(step, true) {
            return Ok(());
        }
        let mut metrics = Metrics::new();
        self.validate(step, &mut metrics)?;
        Ok(self.loggers.amend(step, &metrics)?)
    }

    /// Measures the policy on the held-out prompts.
    pub(super) fn validate(&mut self, step: u64, metrics: &mut Metrics) -> Result<(), RunError> {
        self.scorer.set_trainer_state(self.trainer_state());
        let (progress, num_prompts) = (&self.progress, self.validation_prompts.len());
        let Validation { prompts: rows, report, samples } = validation::sample(
            &mut self.engine,
            &mut self.scorer,
            &self.validation_prompts,
            &self.validation,
            &format!("validation/{step}"),
            step,
            &mut |done| progress.stage(&format!("validating {done}/{num_prompts}")),
        )?;
        // The times are those of training.
        self.scorer.take_times();
        for warning in self.scorer.take_warnings() {
            self.progress.warn(&warning);
        }
        let mut results = results_by_source(&rows);
        // Whatever is logged: every figure of the validation may be the one that checkpoints are compared by.
        let score = match &self.best_figure {
            Some(figure) => self.figure_found(step, figure, &rows, &results)?,
            None => report.accuracy,
        };
        validation::retain_configured(&mut results, &self.config.validate);
        for result in &results {
            result.put(metrics);
        }
        if self.validation.keeps_samples {
            let disk = self.directory.disk();
            disk.create_folder(&self.directory.validation())?;
            disk.write_file_with(&self.directory.validation_samples(step), |out| {
                write_samples_to(out, &samples, Format::Jsonl)
            })?;
        }
        if std::mem::take(&mut self.is_pass_unproven) {
            let warning = validation::no_pass(
                &self.config,
                &self.places,
                self.scorer.rewards(),
                validation::score_names(&rows),
            );
            if let Some(warning) = warning {
                self.progress.warn(&warning);
            }
        }
        self.scores.extend(score.map(|score| (step, score)));
        if report.num_scored == 0 {
            self.progress.warn(&format!(
                "validation after step {step}: no reward function answered any completion, so that there is no accuracy"
            ));
        }
        if report.num_failed > 0 {
            self.progress
                .warn(&format!("{} validation prompts could not be generated from", report.num_failed));
        }
        self.progress.say(&format!(
            "validation after step {step}: {} ({} prompts){}",
            report.outcome.told(report.accuracy),
            report.num_prompts,
            report.mean_length.map_or_else(String::new, |length| format!(", mean length {length:.1} tokens"))
        ));
        self.latest = Some((step, report));
        Ok(())
    }

    /// The value of the figure that checkpoints are compared by; `None`, which is said, where nothing was scored for it.
    fn figure_found(
        &self,
        step: u64,
        figure: &FigureName,
        rows: &[PromptSamples],
        results: &[SourceResult],
    ) -> Result<Option<f64>, RunError> {
        match validation::find(figure, rows, results) {
            Found::Value(value) => return Ok(Some(value)),
            // A function from outside gave other scores than the name says; where it gave this one before, it may again.
            Found::NoSuchScore if self.scores.is_empty() => {
                let figures = results.iter().flat_map(SourceResult::names);
                return Err(validation::no_figure(&figure.to_string(), figures).into());
            }
            Found::NoSuchScore | Found::Unscored => {}
        }
        self.progress.warn(&format!(
            "validation after step {step}: nothing was scored for `{figure}` (checkpoint.keep_best.metric): a checkpoint of this step is not \
             compared with others"
        ));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use tamis_config::load_sources;
    use tamis_config::source::{Source, SourceKind};

    use super::*;

    #[test]
    fn a_run_that_is_measured_at_all_is_measured_after_its_last_step() {
        let after = |settings: &str, step: u64, is_last: bool| {
            let yaml = format!(
                "model: {{path: m}}\ndata: {{task: arithmetic}}\ntrain: {{total_steps: 7}}\nvalidate: {{{settings}}}"
            );
            let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
            let loaded = load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}"));
            measures_after(&loaded.config.validate, step, is_last)
        };
        let before_and_after = "before_train: true, test_freq: 0";
        assert!(after(before_and_after, 7, true) && !after(before_and_after, 6, false));
        assert!(!after("before_train: false, test_freq: 0", 7, true));
        let every_third = "before_train: false, test_freq: 3";
        assert!(after(every_third, 7, true) && after(every_third, 6, false) && !after(every_third, 5, false));
    }
}
