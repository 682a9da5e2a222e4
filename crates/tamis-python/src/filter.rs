//! `Filter`: which groups carry a training signal.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use serde_json::{Value, json};
use tamis_config::FilterConfig;
use tamis_core::filter::{self, GroupFilter, GroupStatistics, Keeping, Metric, Scope, judge_columns};
use tamis_core::ragged::Ragged;

use crate::config::{kind_section, sections};
use crate::error::{column_error, config_error, refused};
use crate::flags::flags_like;
use crate::groups::Groups;
use crate::rows::{flat, is_frame, lengths_of, library_of, read};
use crate::value::to_python;

/// A rule that keeps or drops groups, with the settings of `filter` in a configuration.
///
/// `Filter("variance", tolerance=0.1)` keeps groups whose members differ by more than 0.1; `Filter.kinds()`
/// lists the others.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Filter {
    pub(crate) filter: GroupFilter,
    pub(crate) metric: Metric,
    pub(crate) settings: Value,
}

/// A filter's verdict on one group: kept, or dropped for a reason, with the statistics of its scored members.
#[pyclass(module = "tamis._native", frozen, eq)]
#[derive(PartialEq)]
pub(crate) struct Verdict {
    verdict: filter::Verdict,
    statistics: GroupStatistics,
    members: Option<Vec<bool>>,
}

impl Filter {
    /// From a section that was read.
    pub(crate) fn of(py: Python<'_>, section: &FilterConfig) -> PyResult<Self> {
        section.kind.check().map_err(|error| refused(py, &error, error.hint().map(str::to_owned)))?;
        let metric = Metric::from(section.metric.as_deref().unwrap_or("acc"));
        Ok(Self { filter: section.kind, metric, settings: tamis_config::json_of(section) })
    }
}

/// Values cut into groups by their own rows, or by offsets.
fn cut(values: &Bound<'_, PyAny>, offsets: Option<&Bound<'_, PyAny>>) -> PyResult<Ragged<f64>> {
    let py = values.py();
    let offsets = offsets.map(|offsets| flat::<usize>(offsets, "offsets")).transpose()?;
    let lengths = offsets.map(|offsets| lengths_of(&offsets, "offsets", py)).transpose()?;
    let by = "offsets`, or the id of each value's group as `groups";
    read::<f64>(values, "values")?.cut("values", lengths.as_deref(), by, py)
}

/// Flat values, gathered by the ids of their groups.
fn cut_by_ids<'py>(
    values: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    offsets: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Groups<'py>, Ragged<f64>)> {
    let py = values.py();
    if offsets.is_some() {
        return Err(column_error(
            py,
            &"`offsets` and `groups` both say which values are a group: pass one of them",
        ));
    }
    let rows = read::<f64>(values, "values")?;
    if rows.lengths.is_some() {
        let message = "column `values` has one row per group already: leave out `groups`, or pass values one after \
                       the other (`.reshape(-1)`)";
        return Err(column_error(py, &message));
    }
    if library_of(values)? == "pandas" && library_of(ids)? == "pandas" {
        let (own, theirs) = (values.getattr("index")?, ids.getattr("index")?);
        if !own.call_method1("equals", (theirs,))?.extract::<bool>()? {
            let message = "`values` and `groups` have different indexes: pass `groups.reindex(values.index)`, or \
                           `.to_numpy()` of both if they go by place";
            return Err(column_error(py, &message));
        }
    }
    let groups = Groups::of(ids, rows.values.len())?;
    let columns = groups.gather(rows.values).map_err(|error| column_error(py, &error))?;
    Ok((groups, columns))
}

impl Filter {
    /// Values and ids of groups. For a frame, these are the named columns.
    fn columns_of<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        groups: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        if !is_frame(values)? {
            return Ok((values.clone(), groups.cloned()));
        }
        let metric = self.metric.to_string();
        let refuse = |message: &str| {
            let class = values.get_type().name().map_or_else(|_| "frame".to_owned(), |name| name.to_string());
            column_error(values.py(), &format!("`values` is a {class}{message}"))
        };
        let Some(groups) = groups else {
            return Err(refuse(&format!(
                ", whose rows may be members or groups: pass the column with the groups' ids, \
                 `(frame, groups=\"prompt_id\")` or `(frame[\"{metric}\"], groups=frame[\"prompt_id\"])`, or \
                 `frame.to_numpy()` if each of its rows is a group"
            )));
        };
        if !values.hasattr("__getitem__")? || values.get_type().name()? == "LazyFrame" {
            return Err(refuse(" that has not been read yet: pass `frame.collect()`"));
        }
        let column = |name: &Bound<'py, PyAny>| -> PyResult<Bound<'py, PyAny>> {
            let columns = values.getattr("columns")?;
            if !columns.contains(name)? {
                let names: Vec<String> =
                    columns.try_iter()?.map(|name| Ok(name?.str()?.to_string())).collect::<PyResult<_>>()?;
                return Err(refuse(&format!(" without a column `{name}`; it has {}", names.join(", "))));
            }
            values.get_item(name)
        };
        let ids = if groups.is_instance_of::<PyString>() { column(groups)? } else { groups.clone() };
        Ok((column(PyString::new(values.py(), &metric).as_any())?, Some(ids)))
    }

    fn verdicts(&self, py: Python<'_>, groups: &Ragged<f64>) -> PyResult<Vec<Verdict>> {
        let scale = self.metric.outcome_scale();
        let judged = judge_columns(&*self.filter, scale, groups.values(), groups.offsets());
        let (verdicts, statistics) = judged.map_err(|error| column_error(py, &error))?;
        let verdict = |(row, (verdict, statistics)): (usize, (filter::Verdict, GroupStatistics))| {
            let members = verdict.is_kept().then(|| self.filter.members(groups.row(row))).flatten();
            Verdict { verdict, statistics, members }
        };
        Ok(verdicts.into_iter().zip(statistics).enumerate().map(verdict).collect())
    }

    fn kept(&self, groups: &Ragged<f64>) -> Vec<bool> {
        let mut keeping = Keeping::new(&*self.filter, groups.num_rows());
        groups.rows().for_each(|group| keeping.push(group));
        keeping.finish()
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

    /// Name of the metric that it uses.
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

    /// Whether the groups of a round are compared with each other. Then a whole round has to be judged at
    /// once.
    #[getter]
    fn compares_groups(&self) -> bool {
        self.filter.scope() == Scope::Pool
    }

    /// Judges groups by the metric of their members; NaN or None is a member without one.
    ///
    /// `values` has one row per group: a list of rows, or an array [P, G]. Flat values [N] need `offsets`
    /// with P + 1 entries, or `groups`, the id of each value's group [N] in any order. For a frame of pandas
    /// or polars, pass the name of the column with the ids as `groups`; the values are read from its column
    /// `metric`.
    ///
    /// Returns one verdict per group: a list, or with `groups` a dict by id, in the order in which ids first
    /// appear. A filter that compares groups treats them as a whole round.
    #[pyo3(signature = (values, offsets=None, *, groups=None))]
    fn judge<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        offsets: Option<&Bound<'py, PyAny>>,
        groups: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (values, groups) = self.columns_of(values, groups)?;
        let Some(ids) = groups else {
            return Ok(PyList::new(py, self.verdicts(py, &cut(&values, offsets)?)?)?.into_any());
        };
        let (groups, columns) = cut_by_ids(&values, &ids, offsets)?;
        let verdicts = PyDict::new(py);
        for (id, verdict) in groups.ids(py)?.into_iter().zip(self.verdicts(py, &columns)?) {
            verdicts.set_item(id, verdict)?;
        }
        Ok(verdicts.into_any())
    }

    /// Which groups are kept, decided as in `judge`. Returns flags in the library of `values` (NumPy,
    /// PyTorch, pandas, polars; a list for lists).
    ///
    /// One flag per group [P]. With `groups`, one flag per value [N], as a mask of the values: whether the
    /// value's group is kept and, if the filter chooses among the members of a group (`within_group`),
    /// whether this member is chosen.
    #[pyo3(signature = (values, groups=None, *, offsets=None))]
    fn keep<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        groups: Option<&Bound<'py, PyAny>>,
        offsets: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (values, groups) = self.columns_of(values, groups)?;
        if let Some(ids) = groups {
            let (groups, columns) = cut_by_ids(&values, &ids, offsets)?;
            let kept = self.kept(&columns);
            let flags = if self.filter.chooses_members() {
                let members = columns.rows().zip(kept).flat_map(|(group, kept)| {
                    let members = kept.then(|| self.filter.members(group)).flatten();
                    members.unwrap_or_else(|| vec![kept; group.len()])
                });
                groups.scatter(&members.collect::<Vec<bool>>())
            } else {
                groups.spread(&kept)
            };
            return flags_like(&values, flags, true);
        }
        flags_like(&values, self.kept(&cut(&values, offsets)?), offsets.is_none())
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
    /// `above_range`, `singleton`, `zero_score` or `outside_pool`; None if it is kept.
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

    /// Scored members that are correct; None if the metric has no scale of outcomes.
    #[getter]
    fn num_correct(&self) -> Option<usize> {
        self.statistics.num_correct
    }

    /// Mean of the scored members; NaN if there are none.
    #[getter]
    fn mean(&self) -> f64 {
        self.statistics.mean
    }

    /// Standard deviation of the scored members, ddof 0; exactly 0 if all are equal.
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

    /// Which members are trained on, if the filter chooses among them; None: all.
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
