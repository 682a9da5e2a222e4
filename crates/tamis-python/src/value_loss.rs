//! `ValueLoss`: a critic's loss as one value, with one derivative per token.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use tamis_core::objective::{CriticColumns, ValueColumns, ValueMetrics, ValueTerm};

use crate::array::array;
use crate::batch::{Counts, Cuts, Normalisers, divides_by_scale, metrics_of, require_scale};
use crate::config::sections;
use crate::error::{column_error, refused};
use crate::rows::read;
use crate::value::{keys_of, to_python};

/// The squared error of a critic's values, clipped near the old ones: `critic.cliprange_value` and
/// `critic.aggregation` of a configuration.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct ValueLoss {
    term: ValueTerm,
}

/// Loss, derivatives and metrics of a critic's batch.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct ValueEvaluation {
    metrics: ValueMetrics,
    derivatives: Vec<f64>,
}

impl ValueLoss {
    /// From a configuration.
    pub(crate) fn of(py: Python<'_>, config: &tamis_config::Config) -> PyResult<Self> {
        let term = config.value_loss();
        term.check().map_err(|error| refused(py, &error, None))?;
        Ok(Self { term })
    }
}

#[pymethods]
impl ValueLoss {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut critic = keys_of(settings)?;
        let scale = critic.remove("loss_scale_factor").unwrap_or(Value::Null);
        let own = ["cliprange_value", "aggregation"];
        let other = critic.keys().find(|key| !own.contains(&key.as_str())).cloned();
        let has_scale = !scale.is_null();
        let config = sections(py, &json!({ "critic": critic, "objective": { "loss_scale_factor": scale } }))?;
        if let Some(key) = other {
            let message = format!("`critic.{key}` is not part of the critic's loss");
            let hint = "the settings here are cliprange_value, aggregation, loss_scale_factor";
            return Err(refused(py, &message, Some(hint.to_owned())));
        }
        let loss = Self::of(py, &config)?;
        require_scale(py, std::iter::once(loss.term.aggregation), has_scale)?;
        Ok(loss)
    }

    /// Every setting by its key.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ValueTerm { clip, aggregation, divisors, .. } = self.term;
        let settings = json!({
            "cliprange_value": clip,
            "aggregation": aggregation,
            "loss_scale_factor": divides_by_scale(aggregation).then_some(divisors.loss_scale_factor),
        });
        to_python(py, &settings)
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyAny>)> {
        Ok(((), self.settings(py)?))
    }

    fn __repr__(&self) -> String {
        format!("<ValueLoss {}>", self.term.aggregation)
    }

    /// Loss, derivatives and metrics of B trajectories of N tokens in all, shaped as in `Objective.evaluate`.
    ///
    /// `values` are the critic's, `old` its values at the start of the step, `returns` their targets.
    #[pyo3(signature = (
        values, old, returns, *, offsets=None, mask=None, group_sizes=None, group_tokens=None, group_sequences=None,
        normalisers=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, one per column")]
    fn evaluate(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        old: &Bound<'_, PyAny>,
        returns: &Bound<'_, PyAny>,
        offsets: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
        group_sizes: Option<&Bound<'_, PyAny>>,
        group_tokens: Option<&Bound<'_, PyAny>>,
        group_sequences: Option<&Bound<'_, PyAny>>,
        normalisers: Option<&Normalisers>,
    ) -> PyResult<ValueEvaluation> {
        let values = read::<f64>(values, "values")?;
        let cuts = Cuts::of(py, "values", &values, offsets, mask)?;
        let aggregations = [self.term.aggregation];
        let counts =
            Counts::of(py, &cuts, &aggregations, group_sizes, normalisers, group_tokens, group_sequences)?;
        let (old, returns) = (read::<f64>(old, "old")?, read::<f64>(returns, "returns")?);
        for (name, column) in [("values", &values), ("old", &old), ("returns", &returns)] {
            cuts.check_numbers(py, name, &column.values)?;
        }
        let columns = CriticColumns {
            offsets: &cuts.offsets,
            mask: cuts.mask.values(),
            values: ValueColumns { value: &values.values, old: &old.values, returns: &returns.values },
            group_tokens: counts.group_tokens.as_deref(),
            group_sequences: counts.group_sequences.as_deref(),
        };
        let (mut derivatives, mut sums) = (Vec::new(), Vec::new());
        let evaluated = self.term.evaluate(&columns, &counts.normalisers, &mut derivatives, &mut sums);
        evaluated.map_err(|error| column_error(py, &error))?;
        Ok(ValueEvaluation { metrics: ValueMetrics::of(&sums), derivatives })
    }
}

#[pymethods]
impl ValueEvaluation {
    /// The loss; 0 if nothing is trained on.
    #[getter]
    fn loss(&self) -> f64 {
        self.metrics.loss
    }

    /// Derivative of the loss with respect to each value [N], 0 at masked tokens.
    #[getter]
    fn dvalues<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, &self.derivatives)
    }

    /// Metrics by their names in a run's `metrics.jsonl`.
    #[getter]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, self.metrics.to_pairs())
    }

    fn __repr__(&self) -> String {
        format!("<ValueEvaluation: loss {}>", self.metrics.loss)
    }
}
