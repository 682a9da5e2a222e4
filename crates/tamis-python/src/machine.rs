//! `Machine`: the scheduling machine, with events and commands as mappings. `tamis.schedule` wraps them in
//! objects.

use pyo3::prelude::*;
use serde_json::{Value, json};
use tamis_config::ScheduleMode;
use tamis_core::filter::Metric;
use tamis_core::group::GroupId;
use tamis_core::schedule::{Command, Event, ScheduleError, Scheduler, StreamingSettings};

use crate::config::Config;
use crate::error::{event_error, refused};
use crate::value::{to_json, to_python};

/// The scheduling machine of a run: it decides what is generated next and what is trained on. It takes events
/// and returns commands, both as mappings.
#[pyclass(module = "tamis._native")]
pub(crate) struct Machine {
    scheduler: Scheduler,
}

impl Machine {
    fn of(py: Python<'_>, config: &tamis_config::Config) -> PyResult<Self> {
        let refuse = |error: ScheduleError| refused(py, &error, None);
        let filter = config.filter.as_ref();
        let metric = Metric::from(filter.and_then(|filter| filter.metric.as_deref()).unwrap_or("acc"));
        let run = config.schedule_settings(filter.map(|filter| filter.kind), metric);
        let scheduler = if config.schedule.mode == ScheduleMode::Streaming {
            let is_early = config.schedule.early_updates;
            let mini_batch_size = if is_early { config.mini_batch_size() } else { run.train_batch_size };
            let max_in_flight = config.rounds_in_flight().saturating_mul(run.gen_batch_size);
            Scheduler::streaming(StreamingSettings { run, mini_batch_size, max_in_flight })
        } else {
            Scheduler::rounds(run)
        };
        Ok(Self { scheduler: scheduler.map_err(refuse)? })
    }
}

/// A command as a mapping, with the text of its report or diagnosis, and the metrics of the step's groups.
fn with_text(command: &Command) -> Value {
    let mut value = serde_json::to_value(command).unwrap_or_default();
    let mut say = |place: &str, text: String, metrics: Option<Vec<(String, f64)>>| {
        if let Some(Value::Object(told)) = value.pointer_mut(place) {
            told.insert("text".to_owned(), Value::String(text));
            if let Some(metrics) = metrics {
                told.insert(
                    "metrics".to_owned(),
                    metrics.into_iter().map(|(name, value)| (name, json!(value))).collect(),
                );
            }
        }
    };
    match command {
        Command::RoundComplete(report) => say("/round_complete", report.to_string(), None),
        Command::StepReady(close) | Command::StepClosed(close) => {
            let name = if matches!(command, Command::StepReady(_)) { "step_ready" } else { "step_closed" };
            say(&format!("/{name}/report"), close.report.to_string(), Some(close.report.metrics()));
        }
        Command::SkipStep { close, .. } => {
            say("/skip_step/close/report", close.report.to_string(), Some(close.report.metrics()));
        }
        Command::Finish { close, .. } => {
            say("/finish/close/report", close.report.to_string(), Some(close.report.metrics()));
        }
        Command::Stop { diagnosis, close } => {
            say("/stop/close/report", close.report.to_string(), Some(close.report.metrics()));
            say("/stop/diagnosis", diagnosis.to_string(), None);
        }
        Command::NextEpoch { .. }
        | Command::Draw { .. }
        | Command::Continue { .. }
        | Command::Judged { .. }
        | Command::Train { .. }
        | Command::Abort { .. } => {}
    }
    value
}

#[pymethods]
impl Machine {
    /// Makes the machine from sections of a configuration.
    #[new]
    fn new(py: Python<'_>, sections: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(py, &Config::of_sections(py, &to_json(sections)?)?.config)
    }

    /// Makes the machine of a configuration.
    #[staticmethod]
    fn of_config(py: Python<'_>, config: &Config) -> PyResult<Self> {
        Self::of(py, &config.config)
    }

    /// Restores the state of a snapshot.
    #[staticmethod]
    fn restore(py: Python<'_>, snapshot: &str) -> PyResult<Self> {
        let read = serde_json::from_str(snapshot);
        let scheduler =
            read.map_err(|error| event_error(py, &format!("no snapshot of a scheduler: {error}")))?;
        Ok(Self { scheduler })
    }

    /// The whole state as a text, for `restore`.
    fn snapshot(&self) -> String {
        serde_json::to_string(&self.scheduler).unwrap_or_default()
    }

    /// Processes an event and returns the commands that follow from it. An event that does not fit raises
    /// `EventError` and changes nothing.
    fn handle<'py>(&mut self, py: Python<'py>, event: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let event: Event = serde_json::from_value(to_json(event)?)
            .map_err(|error| event_error(py, &format!("no event of a scheduler: {error}")))?;
        let commands = self.scheduler.handle(event).map_err(|error| event_error(py, &error))?;
        to_python(py, &commands.iter().map(with_text).collect())
    }

    /// Steps, rounds, epochs and prompts so far.
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &json!(self.scheduler.progress()))
    }

    /// Accounting of the groups of all closed steps: groups, trajectories, turns and tokens of each place.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &json!(self.scheduler.totals()))
    }

    /// Whether it still waits for the result of a group.
    fn awaits(&self, group: u64) -> bool {
        self.scheduler.awaits(GroupId(group))
    }

    /// Groups whose trajectories the driver must still hold: kept and not yet trained, or not yet settled.
    fn held(&self) -> Vec<u64> {
        self.scheduler.held().map(|group| group.0).collect()
    }

    /// Whether the run has finished or stopped.
    #[getter]
    fn is_ended(&self) -> bool {
        self.scheduler.is_ended()
    }

    /// Whether the trained groups or their metrics depend on the order in which groups finish.
    #[getter]
    fn depends_on_timing(&self) -> bool {
        self.scheduler.depends_on_timing()
    }

    /// The settings of the machine.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let settings: Value = serde_json::to_value(self.scheduler.settings()).unwrap_or_default();
        to_python(py, &settings)
    }

    /// Changes the length of the run; `None`: no limit of that kind.
    #[pyo3(signature = (total_steps=None, total_epochs=None))]
    fn set_length(&mut self, total_steps: Option<u64>, total_epochs: Option<u64>) {
        self.scheduler.set_length(total_steps, total_epochs);
    }

    /// Sets the number of prompts in the data, including those that are passed over.
    fn set_num_prompts(&mut self, num_prompts: usize) {
        self.scheduler.set_num_prompts(num_prompts);
    }
}
