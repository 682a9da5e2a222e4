//! The last validations of runs, prompt by prompt. Prompts are unlike, and two policies find the same ones
//! hard: the mean of the differences is known better than the difference of the means.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tamis_core::figure::{fixed, percent};
use tamis_run::directory::{CONFIG, last_checkpoint};
use tamis_run::metrics::summary::{NumberSummary, PairedDifference};

use super::ComparedVariant;
use crate::report::settings::Settings;

/// Bytes of a state that are read at most.
const MOST: u64 = 1 << 30;
/// Two means that are further apart are not those of the same validation.
pub(crate) const SAME: f64 = 1e-6;

/// How the held-out prompts changed over a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    /// Differences after less before, prompt by prompt.
    pub difference: PairedDifference,
    /// Whether an outcome is 0 or 1, so that a mean is a share.
    pub is_share: bool,
}

impl Gains {
    /// `+0.4% ± 1.1%`.
    pub(crate) fn describe(&self) -> String {
        let shown = |value: f64| if self.is_share { percent(value) } else { fixed(value, 3) };
        let gains = self.difference.summary;
        let size = shown(gains.mean.abs());
        let sign = if gains.mean < 0.0 { "-" } else { "+" };
        let error = gains.standard_error().map_or_else(String::new, |error| format!(" ± {}", shown(error)));
        format!("{sign}{size}{error}")
    }
}

/// What the last checkpoint of a run holds of its last validation.
struct Validated {
    /// Mean outcome of each prompt, in their order.
    outcomes: Vec<Option<f64>>,
    prompts: Prompts,
}

/// Shows whether two runs have the same prompts and measure the same figure.
#[derive(PartialEq)]
struct Prompts {
    /// The settings of both.
    settings: Vec<(String, String)>,
    /// The first prompts with their answers.
    first: Vec<(String, String)>,
}

fn state(run: &Path) -> Option<Value> {
    let state = last_checkpoint(run).ok()??.join("state.json");
    serde_json::from_str(&tamis_file::read_text(&state, MOST).ok()?).ok()
}

fn outcomes(report: &Value) -> Option<Vec<Option<f64>>> {
    Some(report.get("outcomes")?.as_array()?.iter().map(Value::as_f64).collect())
}

/// What the last checkpoint of a run holds about its validations as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ValidationFacts {
    /// First step whose validation is comparable with later ones: what they measure may have changed on a
    /// resume.
    pub(crate) since: u64,
    /// Number of validation prompts that are in the training data too.
    pub(crate) num_in_training: u64,
    /// CRC-32 of the validation prompts.
    pub(crate) prompts: Option<u64>,
}

impl ValidationFacts {
    /// Those of a run. Without a checkpoint, nothing is known and both are 0.
    pub(crate) fn read(run: &Path) -> Self {
        let state = state(run).unwrap_or_default();
        let number = |place: &str| state.pointer(place).and_then(Value::as_u64);
        Self {
            since: number("/validation/since").unwrap_or(0),
            num_in_training: number("/validation/latest/1/num_in_training")
                .or_else(|| number("/validation/before/num_in_training"))
                .unwrap_or(0),
            prompts: number("/inputs/validation_crc32"),
        }
    }
}

/// How the held-out prompts changed from before a run to its last validation, with the step of that, if the
/// last checkpoint of the run holds both.
pub(crate) fn before_and_after(run: &Path) -> Option<(u64, Gains)> {
    let state = state(run)?;
    let of = |place: &str| state.pointer(&format!("/validation/{place}"));
    let (before, step, after) = (of("before")?, of("latest/0")?.as_u64()?, of("latest/1")?);
    let is_share = |report: &Value| report.get("outcome").is_some_and(|kind| kind == "accuracy");
    let difference = PairedDifference::new(&outcomes(before)?, &outcomes(after)?)?;
    Some((step, Gains { difference, is_share: is_share(before) && is_share(after) }))
}

impl Validated {
    /// `None` if the run has no checkpoint with a validation.
    fn read(run: &Path) -> Option<Self> {
        let state = state(run)?;
        let report = state.pointer("/validation/latest/1")?;
        let outcomes = outcomes(report)?;
        let word = |shown: &Value, name: &str| Some(shown.get(name)?.as_str()?.to_owned());
        let shown = report.get("shown").and_then(Value::as_array).into_iter().flatten();
        let shown =
            shown.filter_map(|one| Some((word(one, "prompt")?, word(one, "ground_truth")?))).collect();
        let settings = Settings::read(&run.join(CONFIG)).ok()?;
        // Prompts that are made or held out are drawn by the run's seed.
        let has_file = settings.get("data.val").is_some_and(|files| files != "[]");
        let names_prompts = |key: &str| match key {
            "data.train_batch_size" | "data.gen_batch_size" | "data.shuffle" | "data.curriculum" => false,
            "data.arithmetic.train_size" | "data.check_gold" | "data.val_fraction" | "data.train" => {
                !has_file
            }
            "run.seed" => !has_file,
            "validate.max_prompts" | "validate.n" => true,
            key => ["data.", "reward.", "environment."].iter().any(|start| key.starts_with(start)),
        };
        let named = settings.0.iter().filter(|(key, _)| names_prompts(key));
        let named = named.map(|(key, setting)| (key.clone(), setting.value.clone())).collect();
        (!outcomes.is_empty())
            .then_some(Self { outcomes, prompts: Prompts { settings: named, first: shown } })
    }
}

/// By how much the last validations of a variant's runs are better than those of another, prompt by prompt,
/// if all of them have the same prompts and their means differ by `difference`, which is that of the
/// metrics.
pub(super) fn difference(
    base: &ComparedVariant,
    variant: &ComparedVariant,
    difference: f64,
) -> Option<NumberSummary> {
    let read = |runs: &[PathBuf]| runs.iter().map(|run| Validated::read(run)).collect::<Option<Vec<_>>>();
    let (base, variant) = (read(&base.runs)?, read(&variant.runs)?);
    let first = base.first()?;
    let is_same =
        |one: &Validated| one.prompts == first.prompts && one.outcomes.len() == first.outcomes.len();
    if !base.iter().chain(&variant).all(is_same) {
        return None;
    }
    let found = PairedDifference::new(&means(&base), &means(&variant))?.summary;
    ((found.mean - difference).abs() < SAME).then_some(found)
}

/// The mean over runs of each prompt's outcome; none if one of them did not score it.
fn means(runs: &[Validated]) -> Vec<Option<f64>> {
    let num_prompts = runs.first().map_or(0, |run| run.outcomes.len());
    let mean = |place: usize| {
        let values: Option<Vec<f64>> =
            runs.iter().map(|run| run.outcomes.get(place).copied().flatten()).collect();
        values.map(|values| values.iter().sum::<f64>() / runs.len() as f64)
    };
    (0..num_prompts).map(mean).collect()
}
