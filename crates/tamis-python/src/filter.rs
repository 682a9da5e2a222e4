//! `Filter`: which groups carry signal.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use tamis_config::FilterConfig;
use tamis_core::filter::{self, GroupFilter, GroupStatistics, Metric, Scope, judge_columns};

use crate::config::{kind_section, sections};
use crate::error::{column_error, config_error, refused};
use crate::rows::{flat, lengths_of, read};
use crate::value::to_python;

/// A rule by which groups are kept or dropped, with the settings of `filter` in a configuration.
///
/// `Filter("variance", tolerance=0.1)` keeps groups whose members differ by more than 0.1;
/// `Filter.kinds()` names the others.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Filter {
    pub(crate) filter: GroupFilter,
    pub(crate) metric: Metric,
    pub(crate) settings: Value,
}

/// What a filter says of one group: kept, or dropped with a reason; with the statistics of its scored
/// members.
#[pyclass(module = "tamis._native", frozen, eq)]
#[derive(PartialEq)]
pub(crate) struct Verdict {
    verdict: filter::Verdict,
    statistics: GroupStatistics,
    members: Option<Vec<bool>>,
}

impl Filter {
    /// Of a section that was read.
    pub(crate) fn of(py: Python<'_>, section: &FilterConfig) -> PyResult<Self> {
        section.kind.check().map_err(|error| refused(py, &error, error.hint()))?;
        let metric = Metric::from(section.metric.as_deref().unwrap_or("acc"));
        Ok(Self { filter: section.kind, metric, settings: tamis_config::json_of(section) })
    }
}

#[pymethods]
impl Filter {
    #[new]
    #[pyo3(signature = (kind="variance", **settings))]
    fn new(py: Python<'_>, kind: &str, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let section = kind_section(Some(kind), settings)?;
        match sections(py, &json!({ "filter": section }))?.filter {
            Some(section) => Self::of(py, &section),
            None => Err(config_error(py, vec![("`filter` is null".to_owned(), None)])),
        }
    }

    /// The names of the kinds.
    #[staticmethod]
    fn kinds() -> Vec<&'static str> {
        GroupFilter::NAMES.to_vec()
    }

    /// Name of the kind.
    #[getter]
    fn kind(&self) -> &'static str {
        self.filter.as_str()
    }

    /// Name of the metric that it looks at.
    #[getter]
    fn metric(&self) -> String {
        self.metric.to_string()
    }

    /// Every setting by its key, with `kind` and `metric`.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.settings)
    }

    /// The rule in words.
    #[getter]
    fn rule(&self) -> String {
        self.filter.rule()
    }

    /// Whether the groups of a round are compared with each other, so that a whole round is judged at once.
    #[getter]
    fn compares_groups(&self) -> bool {
        self.filter.scope() == Scope::Pool
    }

    /// Judges groups by the metric of their members; NaN or None is a member without one.
    ///
    /// `values` has one row per group: a list of rows, an array [P, G], or flat with `offsets` [P + 1]. One
    /// verdict per group. A filter that compares groups takes them for a whole round.
    #[pyo3(signature = (values, offsets=None))]
    fn judge(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        offsets: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Verdict>> {
        let offsets = offsets.map(|offsets| flat::<usize>(offsets, "offsets")).transpose()?;
        let lengths = offsets.map(|offsets| lengths_of(&offsets, "offsets", py)).transpose()?;
        let groups = read::<f64>(values, "values")?.cut("values", lengths.as_deref(), "offsets", py)?;
        let scale = self.metric.outcome_scale();
        let judged = judge_columns(&*self.filter, scale, groups.values(), groups.offsets());
        let (verdicts, statistics) = judged.map_err(|error| column_error(py, &error))?;
        let members = |row: usize, verdict: filter::Verdict| {
            verdict.is_kept().then(|| self.filter.members(groups.row(row))).flatten()
        };
        let told = verdicts.into_iter().zip(statistics).enumerate();
        Ok(told
            .map(|(row, (verdict, statistics))| Verdict {
                verdict,
                statistics,
                members: members(row, verdict),
            })
            .collect())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyAny>)> {
        Ok(((), self.settings(py)?))
    }

    fn __repr__(&self) -> String {
        format!("<Filter {}: {} of `{}`>", self.filter.as_str(), self.filter.rule(), self.metric)
    }
}

#[pymethods]
impl Verdict {
    /// Whether the group may be trained on.
    #[getter]
    fn kept(&self) -> bool {
        self.verdict.is_kept()
    }

    /// Why the group was dropped: `all_correct`, `all_wrong`, `uniform`, `unscored`, `below_range`,
    /// `above_range`, `singleton`, `zero_score` or `outside_pool`; None where it is kept.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        (!self.verdict.is_kept()).then(|| self.verdict.name())
    }

    /// Members, scored or not.
    #[getter]
    fn size(&self) -> usize {
        self.statistics.size
    }

    /// Members with a finite metric.
    #[getter]
    fn num_scored(&self) -> usize {
        self.statistics.num_scored
    }

    /// Scored members that are correct; None where the metric has no scale of outcomes.
    #[getter]
    fn num_correct(&self) -> Option<usize> {
        self.statistics.num_correct
    }

    /// Mean of the scored members; NaN where there is none.
    #[getter]
    fn mean(&self) -> f64 {
        self.statistics.mean
    }

    /// Their standard deviation, ddof 0; exactly 0 where all are equal.
    #[getter]
    fn std(&self) -> f64 {
        self.statistics.std
    }

    /// The smallest.
    #[getter]
    fn min(&self) -> f64 {
        self.statistics.min
    }

    /// The largest.
    #[getter]
    fn max(&self) -> f64 {
        self.statistics.max
    }

    /// Which members train, of a filter that chooses among them; None: all.
    #[getter]
    fn members(&self) -> Option<Vec<bool>> {
        self.members.clone()
    }

    /// Whether the group may be trained on.
    fn __bool__(&self) -> bool {
        self.kept()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Verdict {}: {} of {} scored, mean {}>",
            self.verdict.name(),
            self.statistics.num_scored,
            self.statistics.size,
            self.statistics.mean
        )
    }
}
