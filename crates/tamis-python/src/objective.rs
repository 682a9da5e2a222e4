//! `Objective`: policy loss, divergence and entropy as one value, with one derivative per token.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value, json};
use tamis_core::objective::{
    self as core, AdvantageColumn, Aggregation, Columns, ObjectiveState, Outcome, PolicyLoss, Real,
    SequenceSums,
};
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};

use crate::array::array;
use crate::batch::{Counts, Cuts, Normalisers, divides_by_scale, metrics_of, require_scale};
use crate::config::sections;
use crate::error::{column_error, refused};
use crate::rows::{Cell, Rows, read};
use crate::value::{keys_of, to_json, to_python};

/// The keys of `objective` in a configuration that an [`Objective`] has.
const KEYS: [&str; 7] = ["loss", "importance", "aggregation", "loss_scale_factor", "kl", "entropy", "masks"];

/// The other keys of `objective`, and the class for each.
const ELSEWHERE: [(&str, &str); 4] = [
    ("advantage", "`tamis.Advantage` computes advantages; pass them as `advantage`"),
    ("shaping", "`tamis.Shaping` changes the advantages before you pass them"),
    ("correction", "`tamis.Correction` gives the `weight` and the `mask` to pass"),
    ("zero_groups", "pass `normalisers` that count the groups you mean"),
];

/// A policy loss with its divergence, entropy bonus and masks: the settings of `objective` in a
/// configuration. `Objective("clip", aggregation="token-mean")`, or with settings of the loss
/// `Objective({"kind": "clip", "clip_high": 0.28}, kl={"coefficient": 0.001})`. `Objective.losses()` lists
/// the losses.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Objective {
    objective: core::Objective,
    settings: Value,
}

/// Loss, derivatives, metrics and next state of a batch.
#[pyclass(module = "tamis._native", frozen)]
pub(crate) struct Evaluation {
    outcome: Outcome,
    derivatives: Derivatives,
    normalisers: core::Normalisers,
    /// One entry for each trajectory.
    sequences: Vec<SequenceSums>,
}

#[derive(Clone)]
enum Derivatives {
    Single(core::Derivatives<f32>),
    Double(core::Derivatives<f64>),
}

impl Objective {
    /// From a configuration.
    pub(crate) fn of(py: Python<'_>, config: &tamis_config::Config) -> PyResult<Self> {
        let objective = config.policy_objective().map_err(|error| refused(py, &error, None))?;
        let mut settings = tamis_config::json_of(&config.objective);
        if let Value::Object(keys) = &mut settings {
            keys.retain(|key, _| KEYS.contains(&key.as_str()));
            let scale = objective_aggregations(&objective).any(divides_by_scale);
            keys.insert("loss_scale_factor".to_owned(), json!(scale.then(|| config.loss_scale_factor())));
            // The caller has to mask the tokens of truncated trajectories.
            if let Some(Value::Object(masks)) = keys.get_mut("masks") {
                masks.remove("truncated");
            }
            if objective.kl.is_none() {
                keys.insert("kl".to_owned(), Value::Null);
            }
        }
        Ok(Self { objective, settings })
    }
}

impl Objective {
    fn state_of(&self, py: Python<'_>, state: Option<&Bound<'_, PyAny>>) -> PyResult<ObjectiveState> {
        let Some(state) = state else { return Ok(self.objective.initial_state()) };
        serde_json::from_value(to_json(state)?)
            .map_err(|error| column_error(py, &format!("`state` is none of an objective: {error}")))
    }
}

/// The aggregations of an objective: of the loss, and of the entropy bonus if it has its own.
fn objective_aggregations(objective: &core::Objective) -> impl Iterator<Item = Aggregation> {
    std::iter::once(objective.aggregation).chain(objective.entropy.and_then(|bonus| bonus.aggregation))
}

/// Columns of a batch, read from Python's arguments.
struct Batch<T> {
    offsets: Vec<usize>,
    mask: Ragged<bool>,
    logprob: Vec<T>,
    old: Option<Vec<T>>,
    behaviour: Option<Vec<T>>,
    reference: Option<Vec<T>>,
    entropy: Option<Vec<T>>,
    weight: Option<Vec<T>>,
    selection: Option<Vec<u8>>,
    advantage: Vec<f64>,
    is_per_token: bool,
    group_tokens: Option<Vec<f64>>,
    group_sequences: Option<Vec<f64>>,
    normalisers: core::Normalisers,
}

/// The arguments from Python.
struct Passed<'a, 'py> {
    offsets: Option<&'a Bound<'py, PyAny>>,
    mask: Option<&'a Bound<'py, PyAny>>,
    advantage: &'a Bound<'py, PyAny>,
    old: Option<&'a Bound<'py, PyAny>>,
    behaviour: Option<&'a Bound<'py, PyAny>>,
    reference: Option<&'a Bound<'py, PyAny>>,
    entropy: Option<&'a Bound<'py, PyAny>>,
    weight: Option<&'a Bound<'py, PyAny>>,
    selection: Option<&'a Bound<'py, PyAny>>,
    group_sizes: Option<&'a Bound<'py, PyAny>>,
    group_tokens: Option<&'a Bound<'py, PyAny>>,
    group_sequences: Option<&'a Bound<'py, PyAny>>,
    normalisers: Option<&'a Normalisers>,
}

impl<T: Cell + Real> Batch<T> {
    fn of(
        py: Python<'_>,
        logprob: Rows<T>,
        passed: &Passed<'_, '_>,
        objective: &core::Objective,
    ) -> PyResult<Self> {
        let cuts = Cuts::of(py, "logprob", &logprob, passed.offsets, passed.mask)?;
        let advantage = read::<f64>(passed.advantage, "advantage")?;
        let (num_sequences, num_tokens) = (cuts.lengths.len(), logprob.values.len());
        let has_rows = advantage.lengths.is_some();
        let fits_both = advantage.values.len() == num_sequences && num_sequences == num_tokens;
        if fits_both && !has_rows && cuts.lengths.iter().any(|length| *length != 1) {
            let message = "column `advantage` has as many values as there are trajectories and tokens: pass one row per \
                           trajectory where they are per token";
            return Err(column_error(py, &message));
        }
        let aggregations: Vec<Aggregation> = objective_aggregations(objective).collect();
        let counts = Counts::of(
            py,
            &cuts,
            &aggregations,
            passed.group_sizes,
            passed.normalisers,
            passed.group_tokens,
            passed.group_sequences,
        )?;
        let column = |column: Option<&Bound<'_, PyAny>>, name| {
            column.map(|column| Ok::<_, PyErr>(read::<T>(column, name)?.values)).transpose()
        };
        let logprobs = |passed: Option<&Bound<'_, PyAny>>, name, may_be_nan| {
            let values = column(passed, name)?;
            if let Some(values) = &values {
                cuts.check_logprobs(py, name, values, may_be_nan)?;
            }
            Ok::<_, PyErr>(values)
        };
        cuts.check_logprobs(py, "logprob", &logprob.values, false)?;
        let old = logprobs(passed.old, "old", false)?;
        // A sampler may return no log-probability for a token.
        let behaviour = logprobs(passed.behaviour, "behaviour", true)?;
        let reference = logprobs(passed.reference, "reference", false)?;
        let is_per_token = has_rows || advantage.values.len() != num_sequences;
        if is_per_token {
            cuts.check_numbers(py, "advantage", &advantage.values)?;
        } else {
            let trains = |row: usize| cuts.mask.row(row).iter().any(|stays| *stays);
            let nan = (0..num_sequences).find(|row| advantage.values[*row].is_nan() && trains(*row));
            if let Some(row) = nan {
                let message = format!(
                    "column `advantage` is NaN for trajectory {row}: leave it out of `mask`, or pass 0"
                );
                return Err(column_error(py, &message));
            }
        }
        Ok(Self {
            old,
            behaviour,
            reference,
            entropy: column(passed.entropy, "entropy")?,
            weight: column(passed.weight, "weight")?,
            selection: passed
                .selection
                .map(|column| Ok::<_, PyErr>(read::<u8>(column, "selection")?.values))
                .transpose()?,
            is_per_token,
            advantage: advantage.values,
            offsets: cuts.offsets,
            mask: cuts.mask,
            logprob: logprob.values,
            group_tokens: counts.group_tokens,
            group_sequences: counts.group_sequences,
            normalisers: counts.normalisers,
        })
    }

    fn columns(&self) -> Columns<'_, T> {
        let advantage = if self.is_per_token {
            AdvantageColumn::PerToken(&self.advantage)
        } else {
            AdvantageColumn::PerTrajectory(&self.advantage)
        };
        Columns {
            old: self.old.as_deref(),
            behaviour: self.behaviour.as_deref(),
            reference: self.reference.as_deref(),
            entropy: self.entropy.as_deref(),
            weight: self.weight.as_deref(),
            selection: self.selection.as_deref(),
            group_tokens: self.group_tokens.as_deref(),
            group_sequences: self.group_sequences.as_deref(),
            ..Columns::new(&self.offsets, self.mask.values(), &self.logprob, advantage)
        }
    }
}

fn evaluated<T: Cell + Real>(
    py: Python<'_>,
    objective: &core::Objective,
    batch: &Batch<T>,
    state: &ObjectiveState,
    wrap: fn(core::Derivatives<T>) -> Derivatives,
) -> PyResult<Evaluation> {
    let mut found = core::Evaluation::default();
    let result = py.detach(|| objective.evaluate(&batch.columns(), &batch.normalisers, state, &mut found));
    result.map_err(|error| column_error(py, &error))?;
    let core::Evaluation { derivatives, sequences } = found;
    let outcome = Outcome::of(&sequences, objective, state);
    Ok(Evaluation { outcome, derivatives: wrap(derivatives), normalisers: batch.normalisers, sequences })
}

impl Derivatives {
    /// Appends the derivatives of another micro-batch, if both have the same precision.
    fn extend(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Single(own), Self::Single(other)) => append(own, other),
            (Self::Double(own), Self::Double(other)) => append(own, other),
            _ => return false,
        }
        true
    }
}

fn append<T: Copy>(own: &mut core::Derivatives<T>, other: &core::Derivatives<T>) {
    own.logprob.extend_from_slice(&other.logprob);
    own.entropy.extend_from_slice(&other.entropy);
}

/// Reads a column of log-probabilities. If it is a buffer of single precision, so are the derivatives.
fn logprobs(logprob: &Bound<'_, PyAny>) -> PyResult<Result<Rows<f32>, Rows<f64>>> {
    let double = read::<f64>(logprob, "logprob")?;
    if !double.is_single {
        return Ok(Err(double));
    }
    let Rows { values, lengths, is_single } = double;
    Ok(Ok(Rows { values: values.into_iter().map(|value| value as f32).collect(), lengths, is_single }))
}

#[pymethods]
impl Objective {
    #[new]
    #[pyo3(signature = (loss=None, **settings))]
    fn new(
        py: Python<'_>,
        loss: Option<&Bound<'_, PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut section = keys_of(settings)?;
        if let Some(loss) = loss {
            section.insert("loss".to_owned(), to_json(loss)?);
        }
        if let Some((key, instead)) = ELSEWHERE.iter().find(|(key, _)| section.contains_key(*key)) {
            let message = format!("`objective.{key}` is not part of an objective here");
            return Err(refused(py, &message, Some((*instead).to_owned())));
        }
        // The name of a loss means the loss with its defaults.
        if let Some(Value::String(kind)) = section.get("loss") {
            let kind = json!({ "kind": kind });
            section.insert("loss".to_owned(), kind);
        }
        match section.get_mut("kl") {
            Some(Value::Object(kl)) => {
                let place = kl.entry("in").or_insert_with(|| json!("loss"));
                if place == "reward" {
                    let message =
                        "`objective.kl.in: reward` is no part of an objective: rewards are not its input";
                    let hint = "subtract the penalty from the rewards that you pass to `tamis.Advantage`";
                    return Err(refused(py, &message, Some(hint.to_owned())));
                }
            }
            Some(Value::Null) => {
                section.remove("kl");
            }
            _ => {}
        }
        if let Some(Value::Object(masks)) = section.get("masks")
            && masks.get("truncated").is_some_and(|truncated| *truncated == Value::Bool(true))
        {
            let message =
                "`objective.masks.truncated` is no part of an objective: it does not know what was cut";
            let hint = "leave those trajectories out of `mask`";
            return Err(refused(py, &message, Some(hint.to_owned())));
        }
        let has_scale = section.get("loss_scale_factor").is_some_and(|scale| !scale.is_null());
        let config =
            sections(py, &Value::Object(Map::from_iter([("objective".to_owned(), Value::Object(section))])))?;
        let objective = Self::of(py, &config)?;
        require_scale(py, objective_aggregations(&objective.objective), has_scale)?;
        Ok(objective)
    }

    /// Names of the policy losses; not that of a loss in Python, which only a run calls.
    #[staticmethod]
    fn losses() -> Vec<&'static str> {
        PolicyLoss::NAMES.iter().copied().filter(|name| *name != "python").collect()
    }

    /// Name of the policy loss.
    #[getter]
    fn loss(&self) -> &'static str {
        self.objective.policy.as_str()
    }

    /// Every setting by its key.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.settings)
    }

    /// Whether tokens are selected over the whole optimizer batch before anything is differentiated. Then
    /// call `select`, and pass its result to `evaluate` as `selection`.
    #[getter]
    fn needs_selection(&self) -> bool {
        self.objective.needs_selection()
    }

    /// Whether `evaluate` computes derivatives with respect to the entropy. It then needs the entropies.
    #[getter]
    fn has_entropy_bonus(&self) -> bool {
        self.objective.entropy.is_some()
    }

    /// State at the start of a run.
    fn initial_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &serde_json::to_value(self.objective.initial_state()).unwrap_or_default())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((), Bound<'py, PyAny>)> {
        Ok(((), self.settings(py)?))
    }

    fn __repr__(&self) -> String {
        format!("<Objective {}, {}>", self.objective.policy.as_str(), self.objective.aggregation)
    }

    /// Loss, derivatives and metrics of B trajectories of N tokens in all. `logprob` has one row per
    /// trajectory (a list of rows, or a padded array [B, T] with `mask`), or is flat with `offsets` [B + 1];
    /// the other columns of tokens have its length. Values are ignored if `mask` is 0. Unmasked NaN and
    /// log-probabilities above 0 are refused, except NaN in `behaviour` for "the sampler gave none".
    /// `advantage` is one number per trajectory [B], or per token. Derivatives have the precision of
    /// `logprob`. The means divide by the counts in `normalisers`. Without these they divide by the counts of
    /// this batch; for one micro-batch of a larger batch, pass those of the whole. `group_sizes` [P] is
    /// needed if the mean is over groups. For a micro-batch pass `group_tokens` or `group_sequences` [B]
    /// instead, counted in the whole batch.
    #[pyo3(signature = (
        logprob, advantage, *, offsets=None, mask=None, old=None, behaviour=None, reference=None, entropy=None,
        weight=None, selection=None, group_sizes=None, group_tokens=None, group_sequences=None, normalisers=None,
        state=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, one per column")]
    fn evaluate(
        &self,
        py: Python<'_>,
        logprob: &Bound<'_, PyAny>,
        advantage: &Bound<'_, PyAny>,
        offsets: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
        old: Option<&Bound<'_, PyAny>>,
        behaviour: Option<&Bound<'_, PyAny>>,
        reference: Option<&Bound<'_, PyAny>>,
        entropy: Option<&Bound<'_, PyAny>>,
        weight: Option<&Bound<'_, PyAny>>,
        selection: Option<&Bound<'_, PyAny>>,
        group_sizes: Option<&Bound<'_, PyAny>>,
        group_tokens: Option<&Bound<'_, PyAny>>,
        group_sequences: Option<&Bound<'_, PyAny>>,
        normalisers: Option<&Normalisers>,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Evaluation> {
        let passed = Passed {
            offsets,
            mask,
            advantage,
            old,
            behaviour,
            reference,
            entropy,
            weight,
            selection,
            group_sizes,
            group_tokens,
            group_sequences,
            normalisers,
        };
        let state = self.state_of(py, state)?;
        match logprobs(logprob)? {
            Ok(logprob) => {
                let batch = Batch::of(py, logprob, &passed, &self.objective)?;
                evaluated(py, &self.objective, &batch, &state, Derivatives::Single)
            }
            Err(logprob) => {
                let batch = Batch::of(py, logprob, &passed, &self.objective)?;
                evaluated(py, &self.objective, &batch, &state, Derivatives::Double)
            }
        }
    }

    /// The evaluation of a whole optimizer batch from those of its micro-batches, in their order. Loss,
    /// metrics, derivatives and next state equal those of one call for the whole batch, bit for bit. Each
    /// evaluation must have used the `normalisers` of the whole batch and the same `state` that is passed
    /// here.
    #[pyo3(signature = (evaluations, *, state=None))]
    #[expect(clippy::needless_pass_by_value, reason = "what a sequence of Python becomes")]
    fn merge(
        &self,
        py: Python<'_>,
        evaluations: Vec<PyRef<'_, Evaluation>>,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Evaluation> {
        let mut parts = evaluations.iter();
        let Some(first) = parts.next() else {
            return Err(column_error(py, &"there are no evaluations to merge"));
        };
        let normalisers = first.normalisers;
        let (mut derivatives, mut sequences) = (first.derivatives.clone(), first.sequences.clone());
        for (place, part) in parts.enumerate() {
            if part.normalisers != normalisers {
                let message = format!(
                    "evaluation {} was divided by other counts than the first: pass the `normalisers` of the whole \
                     optimizer batch to each",
                    place + 1
                );
                return Err(column_error(py, &message));
            }
            if !derivatives.extend(&part.derivatives) {
                let message = format!("evaluation {} has another precision than the first", place + 1);
                return Err(column_error(py, &message));
            }
            sequences.extend_from_slice(&part.sequences);
        }
        let outcome = Outcome::of(&sequences, &self.objective, &self.state_of(py, state)?);
        Ok(Evaluation { outcome, derivatives, normalisers, sequences })
    }

    /// Flags of the tokens selected over the whole optimizer batch [N], for `evaluate(selection=...)`. Random
    /// draws are keyed by `seed`. For micro-batches, cut them like the other columns.
    #[pyo3(signature = (
        logprob, advantage, *, offsets=None, mask=None, old=None, entropy=None, seed=0
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, one per column")]
    fn select<'py>(
        &self,
        py: Python<'py>,
        logprob: &Bound<'py, PyAny>,
        advantage: &Bound<'py, PyAny>,
        offsets: Option<&Bound<'py, PyAny>>,
        mask: Option<&Bound<'py, PyAny>>,
        old: Option<&Bound<'py, PyAny>>,
        entropy: Option<&Bound<'py, PyAny>>,
        seed: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let passed = Passed {
            offsets,
            mask,
            advantage,
            old,
            behaviour: None,
            reference: None,
            entropy,
            weight: None,
            selection: None,
            group_sizes: None,
            group_tokens: None,
            group_sequences: None,
            // Divisors of 1.
            normalisers: Some(&Normalisers::ones()),
        };
        let logprob = read::<f64>(logprob, "logprob")?;
        let batch = Batch::of(py, logprob, &passed, &self.objective)?;
        let key = Key::new(seed, Purpose::Objective);
        let selection = self.objective.select(&batch.columns(), key);
        array(py, &selection.map_err(|error| column_error(py, &error))?.flags)
    }
}

#[pymethods]
impl Evaluation {
    /// Policy loss + coefficient x divergence - coefficient x entropy, each aggregated; 0 if nothing is
    /// trained on.
    #[getter]
    fn loss(&self) -> f64 {
        self.outcome.loss
    }

    /// Derivative of the loss with respect to each log-probability [N], 0 at masked tokens.
    #[getter]
    fn dlogprob<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.derivatives {
            Derivatives::Single(derivatives) => array(py, &derivatives.logprob),
            Derivatives::Double(derivatives) => array(py, &derivatives.logprob),
        }
    }

    /// Derivative of the loss with respect to each entropy [N]; None without an entropy bonus.
    #[getter]
    fn dentropy<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.outcome.metrics.entropy_coef.is_none() {
            return Ok(None);
        }
        match &self.derivatives {
            Derivatives::Single(derivatives) => array(py, &derivatives.entropy).map(Some),
            Derivatives::Double(derivatives) => array(py, &derivatives.entropy).map(Some),
        }
    }

    /// Metrics by their names in a run's `metrics.jsonl`; NaN if their column was not given.
    #[getter]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, self.outcome.metrics.to_pairs())
    }

    /// State for the next optimizer batch.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &serde_json::to_value(self.outcome.state).unwrap_or_default())
    }

    /// The divisors of the means.
    #[getter]
    fn normalisers(&self) -> Normalisers {
        Normalisers::of_counts(self.normalisers)
    }

    fn __repr__(&self) -> String {
        format!("<Evaluation: loss {} of {} tokens>", self.outcome.loss, self.outcome.metrics.tokens)
    }
}
