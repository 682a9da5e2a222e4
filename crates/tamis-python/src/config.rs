//! A whole configuration: files, overrides, keys of other systems, or a mapping.

use std::path::PathBuf;

use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use serde_json::{Map, Value, json};
use tamis_config::source::{Source, SourceKind};
use tamis_config::{ConfigErrors, Loaded, load_sections};
use tamis_import::{load_sources_to_show, load_to_show};

use crate::advantage::Advantage;
use crate::correction::Correction;
use crate::error::{not_loaded, refused};
use crate::filter::Filter;
use crate::objective::Objective;
use crate::shaping::Shaping;
use crate::value::{keys_of, to_json, to_python};
use crate::value_loss::ValueLoss;

/// Sections of a configuration as a source for the configuration reader.
fn source_of(sections: &Value) -> std::sync::Arc<Source> {
    // JSON is YAML, too.
    Source::new(SourceKind::Argument, sections.to_string())
}

/// Reads some sections, for callers without a run.
pub(crate) fn sections(py: Python<'_>, sections: &Value) -> PyResult<tamis_config::Config> {
    load_sections(&source_of(sections)).map_err(|errors| not_loaded(py, &errors))
}

/// A section with a `kind`, made from the keyword arguments.
pub(crate) fn kind_section(
    kind: Option<&str>,
    settings: Option<&Bound<'_, pyo3::types::PyDict>>,
) -> PyResult<Map<String, Value>> {
    let mut keys = Map::new();
    if let Some(kind) = kind {
        keys.insert("kind".to_owned(), json!(kind));
    }
    keys.extend(keys_of(settings)?);
    Ok(keys)
}

/// A configuration of a run, as `tamis config show` prints it: from files and overrides, or from a mapping of
/// sections. Files that it names are not opened, and values that only a run needs (a model, prompts) may be
/// missing.
///
/// Overrides are `key=value` as on the command line; keys of verl, EasyR1, RAGEN and TRL are translated.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Config {
    pub(crate) config: tamis_config::Config,
    notes: Vec<String>,
}

impl Config {
    fn of(py: Python<'_>, loaded: Result<Loaded, ConfigErrors>) -> PyResult<Self> {
        let loaded = loaded.map_err(|errors| not_loaded(py, &errors))?;
        for warning in &loaded.warnings {
            // Missing values are expected here, so only real warnings are shown.
            if warning.severity == tamis_config::Severity::Warning {
                let hint = warning.hint().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
                let text = format!("{}{hint}", warning.problem);
                let text = std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
                PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 2)?;
            }
        }
        let notes = loaded.notes.iter().map(ToString::to_string).collect();
        Ok(Self { config: loaded.config, notes })
    }

    /// From a mapping of sections.
    pub(crate) fn of_sections(py: Python<'_>, sections: &Value) -> PyResult<Self> {
        Self::of(py, load_sources_to_show(&[source_of(sections)], &[]))
    }
}

#[pymethods]
impl Config {
    #[new]
    #[pyo3(signature = (sections=None, *, overrides=None))]
    fn new(
        py: Python<'_>,
        sections: Option<&Bound<'_, PyAny>>,
        overrides: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let sections = sections.map(to_json).transpose()?.unwrap_or_else(|| json!({}));
        Self::of(py, load_sources_to_show(&[source_of(&sections)], &overrides.unwrap_or_default()))
    }

    /// From files, later ones over earlier ones, and overrides over all of them.
    #[staticmethod]
    #[pyo3(signature = (*files, overrides=None))]
    #[expect(clippy::needless_pass_by_value, reason = "what `*files` becomes")]
    fn load(py: Python<'_>, files: Vec<PathBuf>, overrides: Option<Vec<String>>) -> PyResult<Self> {
        Self::of(py, load_to_show(&files, &overrides.unwrap_or_default()))
    }

    /// What each key of another system became.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// The filter; None if every group is trained on.
    fn filter(&self, py: Python<'_>) -> PyResult<Option<Filter>> {
        self.config.filter.as_ref().map(|filter| Filter::of(py, filter)).transpose()
    }

    /// The advantage estimator.
    fn advantage(&self, py: Python<'_>) -> PyResult<Advantage> {
        Advantage::of(py, self.config.objective.advantage.clone())
    }

    /// The changes to finished advantages, in their order.
    fn shapings(&self, py: Python<'_>) -> PyResult<Vec<Shaping>> {
        Shaping::all_of(py, &self.config)
    }

    /// The policy's loss, with divergence, entropy bonus and masks.
    fn objective(&self, py: Python<'_>) -> PyResult<Objective> {
        Objective::of(py, &self.config)
    }

    /// The correction for a sampler that is not the policy; None if there is none.
    fn correction(&self, py: Python<'_>) -> PyResult<Option<Correction>> {
        Correction::of(py, &self.config)
    }

    /// The critic's loss.
    fn value_loss(&self, py: Python<'_>) -> PyResult<ValueLoss> {
        ValueLoss::of(py, &self.config)
    }

    /// Every section with every key, resolved.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &tamis_config::json_of(&self.config))
    }

    fn __repr__(&self) -> String {
        let preset = self.config.preset.map(|preset| tamis_config::json_of(&preset).to_string());
        format!("Config(preset={})", preset.unwrap_or_else(|| "None".to_owned()))
    }

    /// The value of a key by its full name, such as `rollout.n`.
    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let whole = tamis_config::json_of(&self.config);
        match whole.pointer(&format!("/{}", key.replace('.', "/"))) {
            Some(value) => to_python(py, value),
            None => Err(refused(py, &format!("unknown key `{key}`"), None)),
        }
    }
}
