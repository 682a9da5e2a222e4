//! Validation: before the first step, after some steps, at the end, and the one that an interruption left to
//! be made.

use tamis_config::ValidateConfig;
use tamis_core::figure::counted;
use tamis_data::records::FileFormat;
use tamis_data::rollouts::RolloutRow;
use tamis_data::samples::write_samples_to;
use tamis_rollout::Record;

use super::Run;
use super::state::RunState;
use crate::assemble::validation::{no_figure, no_pass};
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::measure::validation::{self, Found, Validation};
use crate::measure::validation_metrics::{FigureName, PromptSamples, SourceResult, results_by_source};
use tamis_run::metrics::Metrics;

/// Whether the policy is measured after a step: every `validate.test_freq` steps, and after the last one if
/// there is any measurement at all, even if it is only the one before training.
fn measures_after(config: &ValidateConfig, step: u64, is_last: bool) -> bool {
    config.test_freq.is_due(step) || (is_last && config.is_made())
}

impl Run {
    /// Whether the policy is measured after a step.
    pub(super) fn measures_after(&self, step: u64, is_last: bool) -> bool {
        !self.measurement.prompts.is_empty() && measures_after(&self.recipe.config.validate, step, is_last)
    }

    /// Validation before the first step, if it is wanted.
    pub(super) fn first_measurement(&mut self) -> Result<(), Halt<RunError>> {
        if !self.recipe.config.validate.before_train || self.measurement.prompts.is_empty() {
            return Ok(self.save_first()?);
        }
        let mut after = self.state.clone();
        after.validation.is_missing = true;
        self.state = after;
        match self.make_up_measurement() {
            // The run begins all the same and stops at once with what it has, so that the warm start need not
            // be repeated.
            Err(Halt::Interrupted) => Ok(()),
            Err(Halt::Failed(error)) if error.is_lost_fleet() => {
                self.save()?;
                Err(error.into())
            }
            other => other,
        }
    }

    /// The validation after the last step that an interruption left out. Its figures go into the step's row,
    /// as if nothing had happened.
    pub(super) fn make_up_measurement(&mut self) -> Result<(), Halt<RunError>> {
        let mut after = self.state.clone();
        let mut metrics = Metrics::new();
        self.validate(&mut after, &mut metrics)?;
        after.validation.is_missing = false;
        self.recorder.loggers.amend(after.step, &metrics)?;
        if after.step == 0 {
            after.validation.before = after.validation.latest.take().map(|(_, report)| report);
        } else {
            self.measurement.observe(&mut after);
        }
        self.state = after;
        Ok(if self.state.step == 0 { self.save_first() } else { self.save() }?)
    }

    /// The checkpoint before the first step, if checkpoints are wanted (`checkpoint.save_freq`). A run that
    /// is killed before the second one need not repeat its warm start. Without a warm start the checkpoint
    /// would equal the model.
    fn save_first(&mut self) -> Result<(), RunError> {
        let config = &self.recipe.config;
        let is_saved = config.checkpoint.save_freq != tamis_config::Frequency::NEVER && config.sft.is_on();
        if is_saved { self.save() } else { Ok(()) }
    }

    /// The validation after the last step of a run that its data ended, if it has not been made.
    pub(super) fn last_measurement(&mut self) -> Result<(), Halt<RunError>> {
        let mut after = self.state.clone();
        let (step, found) = (after.step, &after.validation);
        let is_made =
            found.latest.as_ref().is_some_and(|(at, _)| *at == step) || (step == 0 && found.before.is_some());
        if is_made || !self.measures_after(step, true) {
            return Ok(());
        }
        let mut metrics = Metrics::new();
        self.validate(&mut after, &mut metrics)?;
        self.state = after;
        Ok(self.recorder.loggers.amend(step, &metrics)?)
    }

    /// Measures the policy on the held-out prompts. The results go into the state after the step.
    pub(super) fn validate(
        &mut self,
        after: &mut RunState,
        metrics: &mut Metrics,
    ) -> Result<(), Halt<RunError>> {
        let step = after.step;
        self.workers.scorer.set_trainer_state(self.recipe.trainer_state(step, after.num_tokens));
        let (progress, num_prompts) = (&self.recorder.progress, self.measurement.prompts.len());
        let Validation { prompts: rows, mut report, samples } = self.workers.sample(
            &self.measurement.prompts,
            &self.measurement.settings,
            format!("validation/{step}"),
            step,
            &mut |done| progress.stage(&format!("validating {done}/{num_prompts}")),
        )?;
        report.num_in_training = self.measurement.num_in_training;
        // Reports count the time of training only.
        self.workers.scorer.take_times();
        let mut warnings = self.workers.scorer.take_warnings();
        warnings.extend(self.workers.plays.take_warnings());
        for warning in warnings {
            self.recorder.progress.warn(&warning);
        }
        let mut results = results_by_source(&rows);
        // Checkpoints may be compared by any figure of the validation, whether it is logged or not.
        let score = match &self.measurement.best_figure {
            Some(figure) => self.figure_found(after, figure, &rows, &results)?,
            None => report.accuracy,
        };
        validation::retain_configured(&mut results, &self.recipe.config.validate);
        for result in &results {
            result.put(metrics);
        }
        if self.measurement.settings.keeps_samples {
            let disk = self.recorder.directory.disk();
            let rows: Vec<RolloutRow<'_>> = samples.iter().flat_map(Record::rows).collect();
            disk.create_folder(&self.recorder.directory.validation())?;
            disk.write_file_with(&self.recorder.directory.validation_samples(step), |out| {
                write_samples_to(out, &rows, FileFormat::Jsonl)
            })?;
        }
        if std::mem::take(&mut self.measurement.is_pass_unproven) {
            let warning = no_pass(
                &self.recipe.config,
                &self.measurement.places,
                self.workers.scorer.rewards(),
                validation::score_names(&rows),
            );
            if let Some(warning) = warning {
                self.recorder.progress.warn(&warning);
            }
        }
        after.validation.since = after.validation.since.min(step);
        after.validation.scores.extend(score.map(|score| (step, score)));
        if report.num_scored == 0 {
            self.recorder.progress.warn(&format!(
                "validation after step {step}: no reward function answered any completion, so there is no accuracy"
            ));
        }
        if report.num_failed > 0 {
            let reason = report.first_failure.as_deref().unwrap_or("no reason is known");
            self.recorder.progress.warn(&format!(
                "{} could not be generated from, the first of them: {reason}",
                counted(report.num_failed, "validation prompt")
            ));
        }
        self.recorder.progress.measured(&format!(
            "validation after step {step}: {} ({}){}",
            report.outcome.describe_mean(report.accuracy, report.standard_error()),
            report.describe_prompts(),
            report.mean_length.map_or_else(String::new, |length| format!(", mean length {length:.1} tokens"))
        ));
        after.validation.latest = Some((step, report));
        Ok(())
    }

    /// The value of the figure by which checkpoints are compared; `None`, with a warning, if nothing was
    /// scored for it.
    fn figure_found(
        &self,
        after: &RunState,
        figure: &FigureName,
        rows: &[PromptSamples],
        results: &[SourceResult],
    ) -> Result<Option<f64>, RunError> {
        match validation::find(figure, rows, results) {
            Found::Value(value) => return Ok(Some(value)),
            // The external function returned other scores than the named one. If it returned this score
            // before, it may again.
            Found::NoSuchScore if after.validation.scores.is_empty() => {
                let figures = results.iter().flat_map(SourceResult::names);
                return Err(no_figure(&figure.to_string(), figures).into());
            }
            Found::NoSuchScore | Found::Unscored => {}
        }
        self.recorder.progress.warn(&format!(
            "validation after step {}: nothing was scored for `{figure}` (checkpoint.keep_best.metric): a checkpoint of this step is not \
             compared with others",
            after.step
        ));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::loaded;

    #[test]
    fn a_run_that_is_measured_at_all_is_measured_after_its_last_step() {
        let after = |settings: &str, step: u64, is_last: bool| {
            let yaml = format!(
                "model: {{path: m}}\ndata: {{task: arithmetic}}\ntrain: {{total_steps: 7}}\nvalidate: {{{settings}}}"
            );
            measures_after(&loaded(&yaml, &[]).config.validate, step, is_last)
        };
        let before_and_after = "before_train: true, test_freq: 0";
        assert!(after(before_and_after, 7, true) && !after(before_and_after, 6, false));
        assert!(!after("before_train: false, test_freq: 0", 7, true));
        let every_third = "before_train: false, test_freq: 3";
        assert!(after(every_third, 7, true) && after(every_third, 6, false) && !after(every_third, 5, false));
    }
}
