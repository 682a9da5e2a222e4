//! `Advantage`: how much better than expected a trajectory or a token was.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use tamis_core::advantage::{
    Advantage as Estimator, AdvantageBatch, AdvantageState, Advantages, Component, Generated,
    GeneratedStatistics,
};
use tamis_core::ragged::Ragged;

use crate::array::{array, offsets as offsets_array};
use crate::config::{kind_section, sections};
use crate::error::{column_error, refused};
use crate::rows::{Cell, flat, lengths_of, read};
use crate::value::{to_json, to_python};

/// An advantage estimator with its settings, those of `objective.advantage` in a configuration.
///
/// `Advantage("grpo", scale="none")`; `Advantage.kinds()` lists the others.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Advantage {
    estimator: Estimator,
}

/// Advantages of a batch, with returns and the state for the next step.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Estimate {
    advantages: Advantages,
    returns: Option<Ragged<f64>>,
    state: AdvantageState,
}

/// Names, each with the rewards of a batch `[P][G]`.
type NamedRewards = Vec<(String, f64, Ragged<f64>)>;

impl Advantage {
    /// Makes it from an estimator of a configuration.
    pub(crate) fn of(py: Python<'_>, estimator: Estimator) -> PyResult<Self> {
        estimator.check().map_err(|error| refused(py, &error, None))?;
        Ok(Self { estimator })
    }
}

/// Cuts the columns of a batch.
pub(crate) struct Cutter<'py> {
    py: Python<'py>,
    groups: Option<Vec<usize>>,
    tokens: Option<Vec<usize>>,
}

impl<'py> Cutter<'py> {
    /// Makes it from the offsets of groups and of trajectories; `None`: rows show the cuts.
    pub(crate) fn of(
        py: Python<'py>,
        offsets: Option<&Bound<'_, PyAny>>,
        token_offsets: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let cuts = |offsets: Option<&Bound<'_, PyAny>>, name: &str| {
            let offsets = offsets.map(|offsets| flat::<usize>(offsets, name)).transpose()?;
            offsets.map(|offsets| lengths_of(&offsets, name, py)).transpose()
        };
        Ok(Self { py, groups: cuts(offsets, "offsets")?, tokens: cuts(token_offsets, "token_offsets")? })
    }

    pub(crate) fn of_groups(&self, rewards: &Bound<'_, PyAny>, name: &str) -> PyResult<Ragged<f64>> {
        read::<f64>(rewards, name)?.cut(name, self.groups.as_deref(), "offsets", self.py)
    }

    pub(crate) fn of_tokens<T: Cell>(
        &self,
        column: Option<&Bound<'_, PyAny>>,
        name: &str,
    ) -> PyResult<Option<Ragged<T>>> {
        let cut =
            |column| read::<T>(column, name)?.cut(name, self.tokens.as_deref(), "token_offsets", self.py);
        column.map(cut).transpose()
    }
}

/// Named rewards: a mapping from names to rewards, or to pairs of a weight and rewards.
fn named_rewards(
    cutter: &Cutter<'_>,
    components: Option<&Bound<'_, PyDict>>,
    has_weights: bool,
) -> PyResult<Option<NamedRewards>> {
    let Some(components) = components else { return Ok(None) };
    let read_one = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = name.extract()?;
        let (weight, rewards) = if has_weights {
            value.extract::<(f64, Bound<'_, PyAny>)>().map_err(|_| {
                let message = format!("component `{name}` must be a pair of its weight and its rewards");
                column_error(cutter.py, &message)
            })?
        } else {
            (1.0, value)
        };
        let rewards = cutter.of_groups(&rewards, &name)?;
        Ok((name, weight, rewards))
    };
    components.iter().map(read_one).collect::<PyResult<_>>().map(Some)
}

#[pymethods]
impl Advantage {
    #[new]
    #[pyo3(signature = (kind="grpo", **settings))]
    fn new(py: Python<'_>, kind: &str, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let section = kind_section(Some(kind), settings)?;
        let config = sections(py, &json!({ "objective": { "advantage": section } }))?;
        Self::of(py, config.objective.advantage)
    }

    /// The names of the kinds.
    #[staticmethod]
    fn kinds() -> Vec<&'static str> {
        Estimator::NAMES.iter().copied().filter(|name| *name != "python").collect()
    }

    /// Name of the kind.
    #[getter]
    fn kind(&self) -> &'static str {
        self.estimator.as_str()
    }

    /// Every setting by its key, with `kind`.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &serde_json::to_value(&self.estimator).unwrap_or_default())
    }

    /// Columns in addition to the rewards that `estimate` requires, by the names of its arguments.
    #[getter]
    fn needs(&self) -> Vec<&'static str> {
        self.estimator.needs().iter().map(|column| column.name()).collect()
    }

    /// Columns that `estimate` uses if they are passed.
    #[getter]
    fn uses(&self) -> Vec<&'static str> {
        self.estimator.uses().iter().map(|column| column.name()).collect()
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyAny>)> {
        Ok(((), self.settings(py)?))
    }

    fn __repr__(&self) -> String {
        format!("<Advantage {}>", self.estimator.as_str())
    }

    /// Advantages of a batch: P groups of any size, B trajectories in all, numbered group by group. `rewards`
    /// has one row per group (NaN or None: unscored), or is flat with `offsets` [P + 1]. Columns of tokens
    /// have one row per trajectory, or are flat with `token_offsets` [B + 1]. `components` maps names to
    /// pairs of weight and rewards. `generated` are the rewards of every group of the step before filtering.
    /// `state` is the state after the last step, for estimators that have one.
    #[pyo3(signature = (
        rewards, *, offsets=None, token_offsets=None, lengths=None, mask=None, token_rewards=None,
        turn_rewards=None, turns=None, values=None, entropy=None, old_logprobs=None, gold_logprobs=None,
        teacher_logprobs=None, sum_pi_squared=None, rollout_weights=None, components=None, greedy_rewards=None, generated=None,
        generated_components=None, state=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, one per column")]
    fn estimate(
        &self,
        py: Python<'_>,
        rewards: &Bound<'_, PyAny>,
        offsets: Option<&Bound<'_, PyAny>>,
        token_offsets: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
        token_rewards: Option<&Bound<'_, PyAny>>,
        turn_rewards: Option<&Bound<'_, PyAny>>,
        turns: Option<&Bound<'_, PyAny>>,
        values: Option<&Bound<'_, PyAny>>,
        entropy: Option<&Bound<'_, PyAny>>,
        old_logprobs: Option<&Bound<'_, PyAny>>,
        gold_logprobs: Option<&Bound<'_, PyAny>>,
        teacher_logprobs: Option<&Bound<'_, PyAny>>,
        sum_pi_squared: Option<&Bound<'_, PyAny>>,
        rollout_weights: Option<&Bound<'_, PyAny>>,
        components: Option<&Bound<'_, PyDict>>,
        greedy_rewards: Option<&Bound<'_, PyAny>>,
        generated: Option<&Bound<'_, PyAny>>,
        generated_components: Option<&Bound<'_, PyDict>>,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Estimate> {
        let cutter = Cutter::of(py, offsets, token_offsets)?;
        let rewards = cutter.of_groups(rewards, "rewards")?;
        let lengths = lengths.map(|column| flat::<usize>(column, "lengths")).transpose()?;
        let mask = cutter.of_tokens::<bool>(mask, "mask")?;
        let token_rewards = cutter.of_tokens::<f64>(token_rewards, "token_rewards")?;
        let turn_rewards = turn_rewards
            .map(|column| read::<f64>(column, "turn_rewards")?.cut("turn_rewards", None, "rows", py))
            .transpose()?;
        let turns = cutter.of_tokens::<u32>(turns, "turns")?;
        let values = cutter.of_tokens::<f64>(values, "values")?;
        let entropy = cutter.of_tokens::<f64>(entropy, "entropy")?;
        let old_logprobs = cutter.of_tokens::<f64>(old_logprobs, "old_logprobs")?;
        let gold_logprobs = cutter.of_tokens::<f64>(gold_logprobs, "gold_logprobs")?;
        let teacher_logprobs = cutter.of_tokens::<f64>(teacher_logprobs, "teacher_logprobs")?;
        let sum_pi_squared = cutter.of_tokens::<f64>(sum_pi_squared, "sum_pi_squared")?;
        let rollout_weights = cutter.of_tokens::<f64>(rollout_weights, "rollout_weights")?;
        let components = named_rewards(&cutter, components, true)?;
        let components: Option<Vec<Component<'_>>> = components.as_ref().map(|components| {
            components
                .iter()
                .map(|(name, weight, rewards)| Component { name, weight: *weight, rewards })
                .collect()
        });
        let greedy_rewards =
            greedy_rewards.map(|column| flat::<f64>(column, "greedy_rewards")).transpose()?;
        // These groups differ from the batch's, so their own rows have to show how they are cut.
        let before = Cutter { py, groups: None, tokens: None };
        let generated = generated.map(|rewards| before.of_groups(rewards, "generated")).transpose()?;
        let generated_components = named_rewards(&before, generated_components, false)?.unwrap_or_default();
        let generated_components: Vec<GeneratedStatistics> = generated_components
            .iter()
            .map(|(.., rewards)| GeneratedStatistics::of(rewards.rows()))
            .collect();
        let batch = AdvantageBatch {
            lengths: lengths.as_deref(),
            mask: mask.as_ref(),
            token_rewards: token_rewards.as_ref(),
            turn_rewards: turn_rewards.as_ref(),
            turns: turns.as_ref(),
            values: values.as_ref(),
            entropy: entropy.as_ref(),
            old_logprobs: old_logprobs.as_ref(),
            gold_logprobs: gold_logprobs.as_ref(),
            teacher_logprobs: teacher_logprobs.as_ref(),
            sum_pi_squared: sum_pi_squared.as_ref(),
            rollout_weights: rollout_weights.as_ref(),
            components: components.as_deref(),
            greedy_rewards: greedy_rewards.as_deref(),
            generated: generated.as_ref().map(|rewards| Generated {
                reward: GeneratedStatistics::of(rewards.rows()),
                components: &generated_components,
            }),
            ..AdvantageBatch::of_rewards(&rewards)
        };
        let state = match state {
            None => AdvantageState::default(),
            Some(state) => serde_json::from_value(to_json(state)?)
                .map_err(|error| column_error(py, &format!("`state` is none of this estimator: {error}")))?,
        };
        let estimate = py.detach(|| self.estimator.estimate(&batch, &state));
        let estimate = estimate.map_err(|error| column_error(py, &error))?;
        Ok(Estimate { advantages: estimate.advantages, returns: estimate.returns, state: estimate.state })
    }
}

impl Estimate {
    pub(crate) fn advantages(&self) -> &Advantages {
        &self.advantages
    }
}

#[pymethods]
impl Estimate {
    /// Whether `values` has one number per token [N]; otherwise one per trajectory [B].
    #[getter]
    fn is_per_token(&self) -> bool {
        matches!(self.advantages, Advantages::PerToken(_))
    }

    /// The advantages, in the order of the batch: `array.array` of doubles [B] or [N].
    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, self.advantages.values())
    }

    /// Offsets that cut `values`: by group [P + 1] if there is one value per trajectory, otherwise by
    /// trajectory [B + 1].
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (Advantages::PerTrajectory(rows) | Advantages::PerToken(rows)) = &self.advantages;
        offsets_array(py, rows.offsets())
    }

    /// Targets of a critic's values, per token [N]; None if the estimator computes none.
    #[getter]
    fn returns<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.returns.as_ref().map(|returns| array(py, returns.values())).transpose()
    }

    /// State for the next step.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &serde_json::to_value(&self.state).unwrap_or_default())
    }

    fn __repr__(&self) -> String {
        let level = if self.is_per_token() { "token" } else { "trajectory" };
        format!("<Estimate: {} advantages, one per {level}>", self.advantages.values().len())
    }
}
