//! `Correction`: weights and masks for a sampler that is not the policy.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use tamis_core::correction::{self as core, CorrectionPreset, SamplerColumns};

use crate::array::array;
use crate::batch::{Cuts, metrics_of};
use crate::config::sections;
use crate::error::{column_error, refused};
use crate::rows::read;
use crate::value::{keys_of, to_json, to_python};

/// Correction for a sampler that is not the policy: the settings of `objective.correction` in a
/// configuration. `Correction("decoupled_token_is")`, or by its parts `Correction(weights={"level":
/// "sequence", "max": 3.0}, rejections=[{"statistic": "seq_mean_k3", "threshold": "0.01"}])`. Without
/// settings it changes nothing and only measures. `Correction.presets()` lists the presets of verl and TRL.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Correction {
    correction: core::Correction,
    settings: Value,
}

/// Weights, mask and metrics of a batch.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Corrected {
    corrected: core::Corrected,
}

impl Correction {
    /// From a configuration; `None` if it has none.
    pub(crate) fn of(py: Python<'_>, config: &tamis_config::Config) -> PyResult<Option<Self>> {
        let correction = config.policy_correction().map_err(|error| refused(py, &error, None))?;
        let mut settings = to_json_of(config);
        if let Value::Object(keys) = &mut settings {
            keys.insert("preset".to_owned(), json!(config.correction_preset()));
        }
        Ok(correction.map(|correction| Self { correction, settings }))
    }
}

fn to_json_of(config: &tamis_config::Config) -> Value {
    tamis_config::json_of(&config.objective.correction)
}

#[pymethods]
impl Correction {
    #[new]
    #[pyo3(signature = (preset=None, **settings))]
    fn new(
        py: Python<'_>,
        preset: Option<&Bound<'_, PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut section = keys_of(settings)?;
        if let Some(preset) = preset {
            section.insert("preset".to_owned(), to_json(preset)?);
        }
        let config = sections(py, &json!({ "objective": { "correction": section } }))?;
        let measured = || Self { correction: core::Correction::default(), settings: to_json_of(&config) };
        Ok(Self::of(py, &config)?.unwrap_or_else(measured))
    }

    /// The names of the corrections.
    #[staticmethod]
    fn presets() -> Vec<&'static str> {
        CorrectionPreset::ALL.iter().map(|preset| preset.as_str()).collect()
    }

    /// Every setting by its key.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.settings)
    }

    /// Whether to pass the sampler's log-probabilities as `old` to the loss, which saves a forward pass:
    /// `bypass_clip` for a clipped loss, `bypass_reinforce` for the plain policy gradient. `correct` then
    /// needs the log-probabilities of the policy being trained. Otherwise `decoupled`.
    #[getter]
    fn mode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &json!(self.correction.mode))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyAny>)> {
        Ok(((), self.settings(py)?))
    }

    fn __repr__(&self) -> String {
        let name = self.settings.get("preset").and_then(Value::as_str);
        name.map_or_else(|| "<Correction>".to_owned(), |name| format!("<Correction {name}>"))
    }

    /// Weights, mask and metrics of B trajectories of N tokens in all, shaped as in `Objective.evaluate`.
    /// Pass a whole optimizer batch: metrics are means over all of it. `old` are the log-probabilities of the
    /// policy at the start of the step, `behaviour` those of the sampler. If the sampler gave none (NaN), the
    /// ratio is 1.
    #[pyo3(signature = (old, behaviour, *, offsets=None, mask=None))]
    fn correct(
        &self,
        py: Python<'_>,
        old: &Bound<'_, PyAny>,
        behaviour: &Bound<'_, PyAny>,
        offsets: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Corrected> {
        let old = read::<f64>(old, "old")?;
        let cuts = Cuts::of(py, "old", &old, offsets, mask)?;
        let behaviour = read::<f64>(behaviour, "behaviour")?;
        cuts.check_logprobs(py, "old", &old.values, false)?;
        cuts.check_logprobs(py, "behaviour", &behaviour.values, true)?;
        let columns = SamplerColumns {
            offsets: &cuts.offsets,
            mask: cuts.mask.values(),
            old: &old.values,
            behaviour: &behaviour.values,
        };
        let corrected = py.detach(|| self.correction.correct(&columns));
        Ok(Corrected { corrected: corrected.map_err(|error| column_error(py, &error))? })
    }
}

#[pymethods]
impl Corrected {
    /// Weight of each token [N], for `Objective.evaluate(weight=...)`; None if every weight is 1.
    #[getter]
    fn weight<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.corrected.weights.as_ref().map(|weights| array(py, weights)).transpose()
    }

    /// Whether each token is still trained on [N], for `Objective.evaluate(mask=...)`.
    #[getter]
    fn mask<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mask: Vec<u8> = self.corrected.mask.iter().map(|stays| u8::from(*stays)).collect();
        array(py, &mask)
    }

    /// Metrics by their names in a run's `metrics.jsonl`; NaN if there is nothing to measure.
    #[getter]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, self.corrected.metrics.to_pairs())
    }

    fn __repr__(&self) -> String {
        let stays = self.corrected.mask.iter().filter(|stays| **stays).count();
        format!("<Corrected: {stays} of {} tokens are trained on>", self.corrected.mask.len())
    }
}
