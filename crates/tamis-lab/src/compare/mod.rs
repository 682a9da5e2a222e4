//! Compares runs with a baseline at equal steps, tokens and time, as mean and spread over seeds.
//!
//! ```text
//! metrics.jsonl -> Series -> (metric, measure) of each run -> Summary of each variant -> table, CSV, page of charts
//!   series.rs                measure.rs                       here                      table.rs         page.rs
//! ```

pub mod measure;
pub mod page;
pub(crate) mod paired;
pub(crate) mod rewards;
pub mod series;
pub mod table;

use std::path::{Path, PathBuf};

use tamis_core::figure::counted;
use tamis_run::directory::CONFIG;

use crate::report::settings::{Settings, unlike_rewards, unlike_validations};
use crate::{Fault, names};
use measure::{Choice, Measure, Over, Summary, area, curve, standard_error, value_at};
use series::{Series, metrics_of};

/// Runs that differ only in their seeds.
#[derive(Debug, Clone)]
pub struct ComparedVariant {
    /// Its name.
    pub name: String,
    /// Name of the variant that it is compared with. A baseline names itself.
    pub baseline: String,
    /// Its runs: run directories, or files of metrics.
    pub runs: Vec<PathBuf>,
}

/// A variant with the metrics of its runs.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// Name of the variant that it is compared with.
    pub baseline: String,
    /// The metrics of its runs, without runs that have no step.
    pub series: Vec<Series>,
}

impl Comparison {
    /// The metric of the runs with the most similar name, if one is similar.
    pub fn nearest_metric(&self, name: &str) -> Option<&str> {
        let all = self.variants.iter().flat_map(|variant| &variant.series).flat_map(Series::names);
        all.map(|known| (strsim::jaro_winkler(known, name), known))
            .filter(|(similarity, _)| *similarity > 0.75)
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .map(|(_, known)| known)
    }
}

impl Measured {
    /// Whether other variants are compared with it.
    pub fn is_baseline(&self) -> bool {
        self.name == self.baseline
    }
}

/// A number of a variant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComparedCell {
    /// Mean and spread over its runs; `None` if no run has the number.
    pub summary: Option<Summary>,
    /// Difference between its mean and the baseline's; `None` for a baseline.
    pub difference: Option<f64>,
    /// Standard error of the difference of the last validations of runs with the same prompts: the root of
    /// the squared error over the prompts, prompt by prompt, and of the variance of both means over their
    /// seeds (`spread² / runs`).
    pub difference_error: Option<f64>,
}

/// The numbers of one metric.
#[derive(Debug, Clone)]
pub struct MetricTable {
    /// The metric.
    pub choice: Choice,
    /// Its names in the runs.
    pub names: Vec<String>,
    /// For each variant, a cell for each of [`Measure::ALL`].
    pub rows: Vec<Vec<ComparedCell>>,
}

/// A whole comparison.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The variants with a run that has a step, in order.
    pub variants: Vec<Measured>,
    /// A table for each available metric.
    pub tables: Vec<MetricTable>,
    /// Steps, tokens and seconds that all runs reach.
    pub limits: [Option<f64>; 3],
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// Reads the runs and compares them. Runs that have not started are left out, with a note.
///
/// # Errors
/// A file is not a metrics file.
pub fn compare(variants: &[ComparedVariant], metrics: &[String]) -> Result<Comparison, Fault> {
    let mut notes = Vec::new();
    let mut measured = Vec::new();
    let mut lasts: Vec<(u64, String)> = Vec::new();
    for variant in variants {
        let mut series = Vec::new();
        for run in &variant.runs {
            let found = Series::read(run);
            let file = metrics_of(run).display().to_string();
            notes.extend(found.as_ref().ok().and_then(|found| found.left_out(&file)));
            match found {
                // A validation before the first step does not count.
                Ok(found) if found.rows.iter().all(|row| row.step == 0) => {
                    notes.push(format!("{} has no step yet", run.display()));
                }
                Ok(found) => {
                    lasts.extend(found.rows.last().map(|row| (row.step, run.display().to_string())));
                    series.push(found);
                }
                Err(error) if error.is_not_found() => {
                    notes.push(format!("{} has no metrics yet", run.display()));
                }
                Err(error) => return Err(error),
            }
        }
        if !series.is_empty() {
            let (name, baseline) = (variant.name.clone(), variant.baseline.clone());
            measured.push(Measured { name, baseline, series });
        }
    }
    let (shortest, longest) = (lasts.iter().min(), lasts.iter().max());
    if let (Some((least, name)), Some((most, _))) = (shortest, longest)
        && least < most
    {
        notes.push(format!(
            "{name} has only {} of {most}: comparisons at equal cost end there",
            counted(least, "step")
        ));
    }
    let all = || measured.iter().flat_map(|variant| &variant.series);
    let limits = Over::ALL.map(|over| {
        let last = |series: &Series| over.of(series.rows.last()?);
        let lasts: Option<Vec<f64>> = all().map(last).collect();
        lasts.and_then(|lasts| lasts.into_iter().reduce(f64::min))
    });
    notes.extend(note_of_rewards(variants));
    let validated: Vec<ValidatedVariant> = variants.iter().map(ValidatedVariant::read).collect();
    notes.extend(notes_of_validations(&validated));
    let mut counted: Vec<&str> = all().filter_map(|series| series.tokens_by).collect();
    counted.sort_unstable();
    counted.dedup();
    if counted.len() > 1 {
        notes.push(format!(
            "tokens are counted by different metrics ({}): compare at equal tokens with care",
            counted.join(", ")
        ));
    } else if counted == ["perf/total_num_tokens"] {
        notes.push(
            "tokens are those trained on (`perf/total_num_tokens`): what was dropped is not counted"
                .to_owned(),
        );
    }
    let choices = if metrics.is_empty() {
        vec![Choice::Validation, Choice::Reward]
    } else {
        metrics.iter().cloned().map(Choice::Named).collect()
    };
    let mut tables = Vec::new();
    for choice in choices {
        let mut names: Vec<String> = all().filter_map(|series| choice.name(series)).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            if let Choice::Named(name) = &choice {
                notes.push(format!("no run has the metric `{name}`"));
            }
            continue;
        }
        if names.len() > 1 {
            notes.push(format!("{} has different names: {}", choice.title(), names.join(", ")));
        }
        if choice == Choice::Validation {
            notes.extend(errors_of_last(&measured));
        }
        let rows = cells(variants, &measured, &validated, &choice, limits);
        notes.extend(note_of_errors(&rows));
        tables.push(MetricTable { choice, names, rows });
    }
    Ok(Comparison { variants: measured, tables, limits, notes })
}

/// A note if scores do not mean the same in all runs.
fn note_of_rewards(variants: &[ComparedVariant]) -> Option<String> {
    let files = variants.iter().flat_map(|variant| &variant.runs).map(|run| run.join(CONFIG));
    let settings: Vec<Settings> = files.filter_map(|file| Settings::read(&file).ok()).collect();
    let keys: Vec<String> =
        unlike_rewards(settings.iter()).into_iter().map(|key| format!("`{key}`")).collect();
    (!keys.is_empty()).then(|| {
        format!("the runs have different rewards ({}): their scores are not comparable", keys.join(", "))
    })
}

/// What the validations of a variant's runs depend on.
struct ValidatedVariant {
    name: String,
    /// Settings of each run with the checksum of its prompts. Runs without settings are missing.
    runs: Vec<(Settings, Option<u64>)>,
}

impl ValidatedVariant {
    fn read(variant: &ComparedVariant) -> Self {
        let of_run = |run: &PathBuf| {
            let settings = Settings::read(&run.join(CONFIG)).ok()?;
            Some((settings, paired::ValidationFacts::read(run).prompts))
        };
        Self { name: variant.name.clone(), runs: variant.runs.iter().filter_map(of_run).collect() }
    }

    fn runs(&self) -> impl Iterator<Item = (&Settings, Option<u64>)> {
        self.runs.iter().map(|(settings, sum)| (settings, *sum))
    }
}

/// Notes if validations of the runs cannot be compared.
fn notes_of_validations(variants: &[ValidatedVariant]) -> Vec<String> {
    let unlike = unlike_validations(variants.iter().flat_map(ValidatedVariant::runs));
    let named = |keys: &[&str]| keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let mut notes = Vec::new();
    if !unlike.prompts.is_empty() {
        notes.push(format!(
            "the runs validate on different prompts ({}): their validations are not comparable, and no difference is shown",
            named(&unlike.prompts)
        ));
    }
    if !unlike.sampling.is_empty() {
        notes.push(format!(
            "the runs sample their validations differently ({}): their validations are not comparable",
            named(&unlike.sampling)
        ));
    }
    notes
}

/// A note on what the errors of differences in a table include.
fn note_of_errors(rows: &[Vec<ComparedCell>]) -> Option<String> {
    let with_error = || rows.iter().flatten().filter(|cell| cell.difference_error.is_some());
    with_error().next()?;
    let has_seeds = with_error().any(|cell| cell.summary.is_some_and(|summary| summary.spread.is_some()));
    let seeds = if has_seeds { ", and over the seeds" } else { "" };
    Some(format!(
        "± after a difference of last validations is one standard error, prompt by prompt over the same prompts{seeds}"
    ))
}

/// A note on the standard error of single runs' last validations.
fn errors_of_last(variants: &[Measured]) -> Option<String> {
    let of = |variant: &Measured| {
        let [series] = variant.series.as_slice() else { return None };
        let name = Choice::Validation.name(series)?;
        let row = series.rows.iter().rev().find(|row| row.values.contains_key(&name))?;
        let error = standard_error(series, &name, row.step, *row.values.get(&name)?)?;
        Some(format!("{} ±{error:.4}", variant.name))
    };
    let errors: Vec<String> = variants.iter().filter_map(of).collect();
    (!errors.is_empty()).then(|| {
        format!("the standard error of the last validation, over its prompts: {}", errors.join(", "))
    })
}

fn cells(
    all: &[ComparedVariant],
    variants: &[Measured],
    validated: &[ValidatedVariant],
    choice: &Choice,
    limits: [Option<f64>; 3],
) -> Vec<Vec<ComparedCell>> {
    let is_validation = match choice {
        Choice::Validation => true,
        Choice::Reward => false,
        Choice::Named(name) => name.starts_with("val-"),
    };
    let have_other_prompts = |names: [&str; 2]| {
        let of_both = validated.iter().filter(|variant| names.contains(&variant.name.as_str()));
        !unlike_validations(of_both.flat_map(ValidatedVariant::runs)).prompts.is_empty()
    };
    // Runs that are left out are those without a step.
    let runs_of = |name: &str| all.iter().find(|variant| variant.name == name);
    let summary = |variant: &Measured, measure: Measure| {
        // A mean over only some seeds would not be comparable.
        let of = |series: &Series| Some(number(series, &choice.name(series)?, measure, limits));
        let values: Option<Vec<f64>> = variant.series.iter().filter_map(of).collect();
        Summary::of(&values?)
    };
    let row = |variant: &Measured| {
        let base = variants.iter().find(|other| other.name == variant.baseline && !variant.is_baseline());
        let base = base.filter(|base| {
            !(is_validation && have_other_prompts([base.name.as_str(), variant.name.as_str()]))
        });
        let cell = |measure: Measure| {
            let own = summary(variant, measure);
            let of_base = base.and_then(|base| summary(base, measure));
            let difference = own.zip(of_base).map(|(own, base)| own.mean - base.mean);
            let is_last = *choice == Choice::Validation && measure == Measure::Last;
            let pair = difference.filter(|_| is_last).and_then(|difference| {
                paired::difference(runs_of(&variant.baseline)?, runs_of(&variant.name)?, difference)
            });
            // The seeds are a sample, too: of all runs that could have been made.
            let variance_of_seeds = |summary: Option<Summary>| {
                summary.and_then(|one| Some(one.spread?.powi(2) / one.runs as f64)).unwrap_or(0.0)
            };
            let of_seeds = variance_of_seeds(own) + variance_of_seeds(of_base);
            let of_prompts = pair.and_then(|pair| pair.standard_error());
            let difference_error = of_prompts.map(|error| (error.powi(2) + of_seeds).sqrt());
            ComparedCell { summary: own, difference, difference_error }
        };
        Measure::ALL.map(cell).to_vec()
    };
    variants.iter().map(row).collect()
}

fn number(series: &Series, name: &str, measure: Measure, limits: [Option<f64>; 3]) -> Option<f64> {
    let steps = curve(series, name, Over::Steps);
    match measure {
        Measure::Last => steps.last().map(|(_, value)| *value),
        Measure::Best => steps.iter().map(|(_, value)| *value).reduce(f64::max),
        Measure::Area => area(&steps, limits[0]?),
        Measure::At(over) => {
            let limit = Over::ALL.iter().zip(limits).find(|(known, _)| **known == over)?.1?;
            value_at(&curve(series, name, over), limit)
        }
    }
}

/// The variants of run directories or metrics files. Runs in one folder whose names end in `seed1`, `seed2`,
/// ... are one variant, and the first variant is the baseline. Variants with equal names get their folder's
/// name in front.
pub fn variants_of(paths: &[PathBuf]) -> Vec<ComparedVariant> {
    let mut found: Vec<(PathBuf, Vec<PathBuf>)> = Vec::new();
    for path in paths {
        let variant = without_seed(path);
        match found.iter_mut().find(|(known, _)| *known == variant) {
            Some((_, runs)) => runs.push(path.clone()),
            None => found.push((variant, vec![path.clone()])),
        }
    }
    let (folders, runs): (Vec<PathBuf>, Vec<Vec<PathBuf>>) = found.into_iter().unzip();
    let names = names::apart(&folders);
    let baseline = names.first().cloned().unwrap_or_default();
    let of = |(name, runs)| ComparedVariant { name, baseline: baseline.clone(), runs };
    names.into_iter().zip(runs).map(of).collect()
}

/// The path of a run without the seed in its name. For a metrics file in a run directory this is the
/// directory, for any other the file without its suffix.
fn without_seed(path: &Path) -> PathBuf {
    let is_metrics = path.file_name().is_some_and(|name| name == tamis_run::directory::METRICS);
    let named = if is_metrics { path.parent().filter(|parent| parent.file_name().is_some()) } else { None };
    let named = named.unwrap_or(path);
    let name = if named.is_dir() { named.file_name() } else { named.file_stem() };
    let Some(name) = name.map(|name| name.to_string_lossy().into_owned()) else { return named.to_owned() };
    let without = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem = without.strip_suffix("seed").filter(|_| without.len() < name.len());
    let stem = stem.map(|stem| stem.trim_end_matches(['_', '-'])).filter(|stem| !stem.is_empty());
    named.with_file_name(stem.unwrap_or(&name))
}

#[cfg(test)]
mod tests;
