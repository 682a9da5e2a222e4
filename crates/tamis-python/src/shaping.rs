//! `Shaping`: changes to finished advantages.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use tamis_core::advantage::shaping::{
    RoundCounts, Shaped as CoreShaped, Shaping as CoreShaping, ShapingBatch,
};
use tamis_core::advantage::{AdvantageBatch, Advantages};
use tamis_core::group::GroupId;
use tamis_core::random::{Key, Purpose};

use crate::advantage::{Cutter, Estimate};
use crate::array::{array, offsets as offsets_array};
use crate::batch::metrics_of;
use crate::config::{kind_section, sections};
use crate::error::{column_error, refused};
use crate::rows::flat;
use crate::value::to_python;

/// One change to finished advantages, with the settings of an entry of `objective.shaping` in a
/// configuration.
///
/// `Shaping("keep_neg_ratio", ratio=0.5)`; `Shaping.kinds()` lists the others.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Shaping {
    shaping: CoreShaping,
}

/// Changed advantages, with the other results of a shaping.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Shaped {
    shaped: CoreShaped,
}

impl Shaping {
    /// All changes of a configuration, in order.
    pub(crate) fn all_of(py: Python<'_>, config: &tamis_config::Config) -> PyResult<Vec<Self>> {
        let of = |shaping: &CoreShaping| {
            shaping.check().map_err(|error| refused(py, &error, None))?;
            Ok(Self { shaping: *shaping })
        };
        config.objective.shaping.iter().map(of).collect()
    }
}

#[pymethods]
impl Shaping {
    #[new]
    #[pyo3(signature = (kind, **settings))]
    fn new(py: Python<'_>, kind: &str, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let section = kind_section(Some(kind), settings)?;
        let config = sections(py, &json!({ "objective": { "shaping": [section] } }))?;
        let one = Self::all_of(py, &config)?.pop();
        one.ok_or_else(|| refused(py, &"`objective.shaping` is empty", None))
    }

    /// The names of the kinds.
    #[staticmethod]
    fn kinds() -> Vec<&'static str> {
        CoreShaping::NAMES.to_vec()
    }

    /// Name of the kind.
    #[getter]
    fn kind(&self) -> &'static str {
        self.shaping.as_str()
    }

    /// Every setting by its key, with `kind`.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &serde_json::to_value(self.shaping).unwrap_or_default())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyAny>)> {
        Ok(((), self.settings(py)?))
    }

    fn __repr__(&self) -> String {
        format!("<Shaping {}>", self.shaping.as_str())
    }

    /// Changes the advantages of a step: those of an `Estimate`, or the result of another shaping. `rewards`
    /// are the rewards of those advantages: one row per group, or flat with `offsets` [P + 1]. `lengths` [B]
    /// are the trajectories' tokens. `mask` and the log-probabilities have one row per trajectory, or are
    /// flat with `token_offsets` [B + 1]; `add_distillation` needs them. `num_kept` and `num_generated` count
    /// the groups of the step's rounds, before the batch was cut to its size; without them, all of the
    /// batch's groups count as generated and kept. Random draws are keyed by `seed`, `step` and `group_ids`
    /// [P], by default the row numbers.
    #[pyo3(signature = (
        advantages, rewards, *, offsets=None, token_offsets=None, lengths=None, mask=None, old_logprobs=None,
        teacher_logprobs=None, num_kept=None, num_generated=None, group_ids=None, seed=0, step=0
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, one per column")]
    fn apply(
        &self,
        py: Python<'_>,
        advantages: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        offsets: Option<&Bound<'_, PyAny>>,
        token_offsets: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
        old_logprobs: Option<&Bound<'_, PyAny>>,
        teacher_logprobs: Option<&Bound<'_, PyAny>>,
        num_kept: Option<u64>,
        num_generated: Option<u64>,
        group_ids: Option<&Bound<'_, PyAny>>,
        seed: u64,
        step: u64,
    ) -> PyResult<Shaped> {
        let before = if let Ok(estimate) = advantages.cast::<Estimate>() {
            CoreShaped::of(estimate.get().advantages().clone())
        } else {
            advantages.cast::<Shaped>()?.get().shaped.clone()
        };
        let cutter = Cutter::of(py, offsets, token_offsets)?;
        let rewards = cutter.of_groups(rewards, "rewards")?;
        let lengths = lengths.map(|column| flat::<usize>(column, "lengths")).transpose()?;
        let mask = cutter.of_tokens::<bool>(mask, "mask")?;
        let old_logprobs = cutter.of_tokens::<f64>(old_logprobs, "old_logprobs")?;
        let teacher_logprobs = cutter.of_tokens::<f64>(teacher_logprobs, "teacher_logprobs")?;
        let ids = group_ids.map(|column| flat::<usize>(column, "group_ids")).transpose()?;
        let ids: Option<Vec<GroupId>> = ids.map(|ids| ids.into_iter().map(|id| GroupId(id as u64)).collect());
        if let Some(ids) = ids.as_ref().filter(|ids| ids.len() != rewards.num_rows()) {
            let message =
                format!("column `group_ids` has {} values, expected {}", ids.len(), rewards.num_rows());
            return Err(column_error(py, &message));
        }
        let generated = num_generated.unwrap_or(rewards.num_rows() as u64);
        let kept = num_kept.unwrap_or(generated);
        if kept > generated {
            let message = format!("`num_kept` is {kept}, of {generated} generated groups");
            return Err(column_error(py, &message));
        }
        let batch = ShapingBatch {
            batch: AdvantageBatch {
                lengths: lengths.as_deref(),
                mask: mask.as_ref(),
                old_logprobs: old_logprobs.as_ref(),
                teacher_logprobs: teacher_logprobs.as_ref(),
                ..AdvantageBatch::of_rewards(&rewards)
            },
            groups: RoundCounts { kept, generated },
            key: Key::new(seed, Purpose::Objective).with(step),
            group_ids: ids.as_deref(),
        };
        let shaped = py.detach(|| self.shaping.apply(before, &batch));
        Ok(Shaped { shaped: shaped.map_err(|error| column_error(py, &error))? })
    }
}

#[pymethods]
impl Shaped {
    /// Whether `values` has one number per token [N]; otherwise one per trajectory [B].
    #[getter]
    fn is_per_token(&self) -> bool {
        matches!(self.shaped.advantages, Advantages::PerToken(_))
    }

    /// The advantages, in the order of the batch: `array.array` of doubles [B] or [N].
    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, self.shaped.advantages.values())
    }

    /// Offsets that cut `values`: by group [P + 1] if there is one value per trajectory, otherwise by
    /// trajectory [B + 1].
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (Advantages::PerTrajectory(rows) | Advantages::PerToken(rows)) = &self.shaped.advantages;
        offsets_array(py, rows.offsets())
    }

    /// Whether each trajectory stays in the loss [B]: mask the tokens of the others. None if all stay.
    #[getter]
    fn kept<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let flags = |kept: &tamis_core::ragged::Ragged<bool>| -> Vec<u8> {
            kept.values().iter().map(|stays| u8::from(*stays)).collect()
        };
        self.shaped.kept.as_ref().map(|kept| array(py, &flags(kept))).transpose()
    }

    /// Factor of the policy loss, but not of divergence and entropy. Multiply every token's `weight` by it.
    /// For the loss `vespo`, which multiplies the weights of a trajectory, multiply the advantages instead.
    #[getter]
    fn policy_factor(&self) -> f64 {
        self.shaped.policy_factor
    }

    /// Metrics by their names in a run's `metrics.jsonl`.
    #[getter]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, self.shaped.metrics.iter().copied())
    }

    fn __repr__(&self) -> String {
        let level = if self.is_per_token() { "token" } else { "trajectory" };
        format!("<Shaped: {} advantages, one per {level}>", self.shaped.advantages.values().len())
    }
}
