//! All groups of a run's rollout files, read from a few narrow columns.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use tamis_core::fault::chain;
use tamis_data::columns::{ColumnFile, RaggedColumn};
use tamis_data::records::RecordError;
use tamis_run::directory::step_files;

use super::steps::StepRange;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GroupFacts {
    pub(crate) id: u64,
    pub(crate) prompt: u64,
    pub(crate) num_members: u32,
    /// Mean of the filter's metric over the members that have it; NaN without any.
    pub(crate) metric: f64,
    /// Mean reward over the scored members; NaN without any.
    pub(crate) reward: f64,
    /// Share of the scored members that are correct; NaN if that is unknown.
    pub(crate) pass_rate: f64,
    /// Index in [`StepGroups::verdicts`] of its verdict.
    pub(crate) verdict: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepGroups {
    pub(crate) step: u64,
    pub(crate) path: PathBuf,
    /// The groups, in the order of the file.
    pub(crate) groups: Vec<GroupFacts>,
    /// Verdicts of single trajectories, with their number.
    pub(crate) verdicts: Vec<(String, u64)>,
    /// The filter's metric; empty without a filter.
    pub(crate) metric: String,
}

impl StepGroups {
    pub(crate) fn verdict_of(&self, group: &GroupFacts) -> &str {
        self.verdicts.get(group.verdict).map_or("", |(name, _)| name)
    }

    pub(crate) fn num_trajectories(&self) -> u64 {
        self.verdicts.iter().map(|(_, count)| count).sum()
    }
}

/// Contents of the rollout files of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Groups {
    pub(crate) steps: Vec<StepGroups>,
    /// Files that could not be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
    /// Whether there is no file, neither for the requested steps nor for others.
    pub(crate) is_empty: bool,
}

impl Groups {
    /// Reads the files of a run directory.
    pub(crate) fn read(run: &Path, range: StepRange) -> Self {
        let mut files = step_files(run).unwrap_or_default();
        files.retain(|(_, path)| path.extension().is_some_and(|ending| ending == "parquet"));
        let mut found = Self { is_empty: files.is_empty(), ..Self::default() };
        for (step, path) in files.into_iter().filter(|(step, _)| range.contains(*step)) {
            match read(step, &path) {
                Ok(groups) => found.steps.push(groups),
                Err(error) => found.unreadable.push((path, chain(&error))),
            }
        }
        found
    }

    pub(crate) fn of_step(&self, step: u64) -> Option<&StepGroups> {
        self.steps.get(self.steps.binary_search_by_key(&step, |groups| groups.step).ok()?)
    }

    /// Trajectories by verdict, the commonest first.
    pub(crate) fn verdicts(&self) -> Vec<(&str, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.steps.iter().flat_map(|step| &step.verdicts) {
            *sums.entry(name).or_default() += count;
        }
        let mut sums: Vec<(&str, u64)> = sums.into_iter().collect();
        sums.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(other.0)));
        sums
    }

    pub(crate) fn num_trajectories(&self) -> u64 {
        self.steps.iter().map(StepGroups::num_trajectories).sum()
    }

    /// The number by which a group is coloured, and its name: the filter's metric, or the reward if a step
    /// has none.
    pub(crate) fn score_name(&self) -> &str {
        let has_metric = |step: &StepGroups| step.groups.iter().any(|group| !group.metric.is_nan());
        let named = self.steps.iter().find(|step| !step.metric.is_empty() && has_metric(step));
        named.map_or("reward", |step| &step.metric)
    }

    pub(crate) fn score(&self, group: &GroupFacts) -> f64 {
        if self.score_name() == "reward" || group.metric.is_nan() { group.reward } else { group.metric }
    }
}

fn single(column: Option<RaggedColumn<f64>>, num_rows: usize) -> Vec<f64> {
    let values =
        column.map(|column| column.rows().map(|row| row.first().copied().unwrap_or(f64::NAN)).collect());
    values.unwrap_or_else(|| vec![f64::NAN; num_rows])
}

fn read(step: u64, path: &Path) -> Result<StepGroups, RecordError> {
    let columns = ColumnFile::open(path)?;
    let num_rows = columns.num_rows();
    let numbers = |name: &str| Ok::<_, RecordError>(single(columns.numbers(name, None)?, num_rows));
    let (ids, prompts) = (numbers("group_id")?, numbers("prompt_id")?);
    let (rewards, metrics) = (numbers("reward")?, numbers("metric_value")?);
    // As in the catalogue of metrics: a pass is an `acc` of 1 or more, and in a game a win.
    let outcome = ["acc", "success"].into_iter().find(|name| columns.is_number(name));
    let outcomes = outcome.map(numbers).transpose()?;
    let mut verdicts: Vec<(String, u64)> = Vec::new();
    let mut of_rows: Vec<usize> = Vec::with_capacity(num_rows);
    for row in columns.texts("verdict", None)?.iter().flat_map(RaggedColumn::rows) {
        let name = row.first().map_or("", String::as_str);
        let place = verdicts.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            verdicts.push((name.to_owned(), 0));
            verdicts.len() - 1
        });
        verdicts[place].1 += 1;
        of_rows.push(place);
    }
    let metric = columns.texts("metric", Some(&[0]).filter(|_| num_rows > 0).map(|rows| &rows[..]))?;
    let metric = metric.and_then(|metric| metric.rows().next()?.first().cloned()).unwrap_or_default();

    let mut places: HashMap<u64, usize> = HashMap::new();
    let mut found: Vec<Sums> = Vec::new();
    for row in 0..num_rows {
        let at = |values: &[f64]| values.get(row).copied().unwrap_or(f64::NAN);
        let id = at(&ids) as u64;
        let place = *places.entry(id).or_insert_with(|| {
            found.push(Sums { id, prompt: at(&prompts) as u64, ..Sums::default() });
            found.len() - 1
        });
        let Some(sums) = found.get_mut(place) else { continue };
        sums.num_members += 1;
        sums.metric.add(at(&metrics));
        sums.reward.add(at(&rewards));
        let outcome = outcomes.as_ref().map_or(f64::NAN, |outcomes| at(outcomes));
        sums.passes.add(if outcome.is_nan() { outcome } else { f64::from(u8::from(outcome >= 1.0)) });
        if let Some(&verdict) = of_rows.get(row) {
            match sums.verdicts.iter_mut().find(|(known, _)| *known == verdict) {
                Some((_, count)) => *count += 1,
                None => sums.verdicts.push((verdict, 1)),
            }
        }
    }
    let trained = verdicts.iter().position(|(name, _)| name == "trained");
    let groups = found.into_iter().map(|sums| sums.facts(trained)).collect();
    Ok(StepGroups { step, path: path.to_owned(), groups, verdicts, metric })
}

#[derive(Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        if !value.is_nan() {
            self.sum += value;
            self.count += 1;
        }
    }

    fn value(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

#[derive(Debug, Default)]
struct Sums {
    id: u64,
    prompt: u64,
    num_members: u32,
    metric: Mean,
    reward: Mean,
    passes: Mean,
    verdicts: Vec<(usize, u32)>,
}

impl Sums {
    /// If a member of a group was trained on, so was the group. Otherwise the commonest verdict of its
    /// members counts.
    fn facts(self, trained: Option<usize>) -> GroupFacts {
        let has = |verdict: &usize| self.verdicts.iter().any(|(known, _)| known == verdict);
        let commonest =
            self.verdicts.iter().rev().max_by_key(|(_, count)| *count).map(|(verdict, _)| *verdict);
        GroupFacts {
            id: self.id,
            prompt: self.prompt,
            num_members: self.num_members,
            metric: self.metric.value(),
            reward: self.reward.value(),
            pass_rate: self.passes.value(),
            verdict: trained.filter(has).or(commonest).unwrap_or(usize::MAX),
        }
    }
}

/// At most `most` evenly spaced places among `count` things, the first and the last among them.
pub(crate) fn evenly(count: usize, most: usize) -> Vec<usize> {
    match most.min(count) {
        0 => Vec::new(),
        1 => vec![count - 1],
        chosen => (0..chosen).map(|number| number * (count - 1) / (chosen - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenly_chosen() {
        assert_eq!(evenly(10, 3), [0, 4, 9]);
        assert_eq!(evenly(3, 10), [0, 1, 2]);
        assert_eq!(evenly(5, 1), [4]);
        assert_eq!(evenly(0, 4), Vec::<usize>::new());
    }
}
