//! Completions of the same prompts at an early and at a late step, side by side.
//!
//! Held-out prompts if two validations were saved (`validate.save_samples`), otherwise prompts that were
//! trained on more than once. Prompts are chosen by number, never by result.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tamis_core::figure::{agreed, counted};

use serde::Serialize;
use serde_json::Value;
use tamis_data::records::{RecordError, Records};
use tamis_run::directory::step_files;

use super::groups::evenly;
use super::run::Run;
use super::samples::shuffled;
use super::steps::StepRange;

/// Largest number of prompts that are shown for a run.
const MOST: usize = 8;
const COLUMNS: [&str; 7] =
    ["prompt_id", "sample_index", "prompt", "completion", "ground_truth", "reward", "pred"];

/// The first sample of a prompt at a step.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
struct Sample {
    index: u64,
    prompt: String,
    completion: String,
    truth: Option<String>,
    pred: Option<String>,
    /// NaN: unscored.
    reward: f64,
}

/// A prompt with its completions, and the steps of these.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Pair {
    prompt_id: u64,
    before: (u64, Sample),
    after: (u64, Sample),
}

/// The prompts shown for a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct BeforeAfter {
    pub(crate) pairs: Vec<Pair>,
    /// Where the prompts come from.
    pub(crate) about: String,
}

/// The first samples of a file by prompt, for all prompts or for some.
fn samples(file: &Path, wanted: Option<&BTreeSet<u64>>) -> Result<BTreeMap<u64, Sample>, RecordError> {
    let mut found: BTreeMap<u64, Sample> = BTreeMap::new();
    for record in Records::open_with(file, |column| COLUMNS.contains(&column.name))? {
        let mut row = record?.values;
        let whole = |value: Option<&Value>| value.and_then(Value::as_u64);
        let Some(prompt) = whole(row.get("prompt_id")) else { continue };
        let index = whole(row.get("sample_index")).unwrap_or(0);
        let is_known = found.get(&prompt).is_some_and(|known| known.index <= index);
        if is_known || wanted.is_some_and(|wanted| !wanted.contains(&prompt)) {
            continue;
        }
        let mut take = |name: &str| match row.remove(name) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(other) => Some(other.to_string()),
        };
        let sample = Sample {
            index,
            prompt: take("prompt").unwrap_or_default(),
            completion: take("completion").unwrap_or_default(),
            truth: take("ground_truth"),
            pred: take("pred"),
            reward: take("reward").and_then(|reward| reward.parse().ok()).unwrap_or(f64::NAN),
        };
        found.insert(prompt, sample);
    }
    Ok(found)
}

impl BeforeAfter {
    /// Reads the prompts shown for a run.
    ///
    /// # Errors
    /// A damaged file.
    pub(crate) fn read(run: &Run, range: StepRange) -> Result<Self, RecordError> {
        let mut files = step_files(&run.path.join("validation")).unwrap_or_default();
        files.retain(|(step, _)| range.contains(*step) && *step >= run.validations.since);
        match files.as_slice() {
            [before, .., after] => Self::of_validations(before, after),
            _ => Self::of_rollouts(run),
        }
    }

    fn of_validations(before: &(u64, PathBuf), after: &(u64, PathBuf)) -> Result<Self, RecordError> {
        let (early, mut late) = (samples(&before.1, None)?, samples(&after.1, None)?);
        let shared: Vec<(u64, Sample, Sample)> = early
            .into_iter()
            .filter_map(|(prompt, sample)| Some((prompt, sample, late.remove(&prompt)?)))
            .collect();
        let count = |is_so: fn(&f64, &f64) -> bool| {
            shared.iter().filter(|(_, early, late)| is_so(&late.reward, &early.reward)).count()
        };
        let about = format!(
            "Validation prompts before and after steps {} to {}, the first sample of each. Of {}, {} {} higher after and {} lower.{}",
            before.0 + 1,
            after.0,
            counted(shared.len(), "prompt"),
            count(f64::gt),
            agreed(count(f64::gt), "scores", "score"),
            count(f64::lt),
            if shared.len() > MOST { format!(" {MOST} are shown, evenly by number.") } else { String::new() }
        );
        let chosen = evenly(shared.len(), MOST);
        let mut pairs = Vec::new();
        for (place, (prompt_id, early, late)) in shared.into_iter().enumerate() {
            if chosen.contains(&place) {
                pairs.push(Pair { prompt_id, before: (before.0, early), after: (after.0, late) });
            }
        }
        Ok(Self { pairs, about })
    }

    fn of_rollouts(run: &Run) -> Result<Self, RecordError> {
        let mut ends: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for step in &run.groups.steps {
            for group in &step.groups {
                ends.entry(group.prompt).or_insert((step.step, step.step)).1 = step.step;
            }
        }
        let mut twice: Vec<(u64, (u64, u64))> =
            ends.into_iter().filter(|(_, (first, last))| first < last).collect();
        twice.sort_by_key(|&(prompt, (first, last))| (std::cmp::Reverse(last - first), shuffled(prompt)));
        let about = format!(
            "Prompts that were sampled at more than one step, at their first and at their last, the first sample of each. {}{}.",
            counted(twice.len(), "such prompt"),
            if twice.len() > MOST {
                format!("; those {MOST} are shown that lie furthest apart")
            } else {
                String::new()
            }
        );
        twice.truncate(MOST);
        let mut wanted: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for &(prompt, (first, last)) in &twice {
            wanted.entry(first).or_default().insert(prompt);
            wanted.entry(last).or_default().insert(prompt);
        }
        let mut found: BTreeMap<u64, BTreeMap<u64, Sample>> = BTreeMap::new();
        for (step, prompts) in &wanted {
            if let Some(groups) = run.groups.of_step(*step) {
                found.insert(*step, samples(&groups.path, Some(prompts))?);
            }
        }
        let mut take = |step: u64, prompt: u64| Some((step, found.get_mut(&step)?.remove(&prompt)?));
        let pairs = twice.into_iter().filter_map(|(prompt_id, (first, last))| {
            Some(Pair { prompt_id, before: take(first, prompt_id)?, after: take(last, prompt_id)? })
        });
        Ok(Self { pairs: pairs.collect(), about })
    }
}
