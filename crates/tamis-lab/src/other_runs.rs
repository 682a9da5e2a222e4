//! Runs of other trainers: turns a folder of TRL, verl, prime-rl or verifiers into a run folder of ours.
//!
//! ```text
//! OUT/completions/*.parquet, trainer_state.json (trl.rs) ─┐
//! DUMPS/*.jsonl (verl.rs) ────────────────────────────────┼─▶ OtherRun ─▶ rollouts/step_N.parquet, metrics.jsonl
//! traces.jsonl, results.jsonl (verifiers.rs) ─────────────┘
//! ```
//!
//! The files are in a temporary folder until the [`OtherRun`] is dropped, so every command reads one kind of
//! run folder. Each file is created on demand. docs/other-trainers.md lists what is known of each system, and
//! what is not.

mod trl;
mod verifiers;
mod verl;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Map, Value};
use tamis_data::dumped::{DumpedRow, write_dumped_to};
use tamis_data::message::Message;
use tamis_process::GuardedFolder;
use tamis_run::directory::{METRICS, ROLLOUTS, RUN_LOG, step_files};

use crate::Fault;
use crate::filter::GroupLayout;
use crate::repeats::{Repeats, split_prompts};

pub(crate) use trl::add_our_names;

/// A file with its size and modification time.
type Stamp = (PathBuf, u64, Option<SystemTime>);

/// A file of rows, and the step in which they were trained.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SourceFile {
    step: u64,
    path: PathBuf,
}

/// Contents of a folder, before any row is converted.
#[derive(Debug, Default)]
struct Found {
    system: &'static str,
    /// Files of trained trajectories by step. Each trajectory is in one of them.
    files: Vec<SourceFile>,
    /// Figures by step, under our names.
    figures: BTreeMap<u64, Map<String, Value>>,
    /// Names of the reward functions, if they are known.
    rewards: Option<Vec<String>>,
    /// Whether the total reward is the plain sum of the scores.
    is_plain_sum: bool,
    /// Whether a sieve dropped groups before training, so that files only have the others.
    is_sieved: bool,
    /// Number of steps that the run will have.
    total_steps: Option<u64>,
    notes: Vec<String>,
    /// All files that were looked at. If one has changed, there is something new.
    seen: Vec<Stamp>,
}

/// The trajectories of a step.
#[derive(Debug, Default)]
pub(crate) struct Trajectories {
    pub(crate) rows: Vec<DumpedRow>,
    /// The source rows of each trajectory: index of the file in [`OtherRun::sources`], and index of the row
    /// in the file, not counting blank lines.
    pub(crate) places: Vec<Vec<(usize, u64)>>,
    /// How the rows of one prompt were cut into groups, if nothing else names groups.
    repeats: Repeats,
}

/// A run of another trainer.
#[derive(Debug)]
pub(crate) struct OtherRun {
    path: PathBuf,
    found: Found,
    /// The smallest and the largest number of rows of a prompt, for steps whose groups cannot be
    /// distinguished. It is filled as steps are read.
    uneven: RefCell<BTreeMap<u64, (usize, usize)>>,
    group_ids: verifiers::GroupIds,
    /// Cached figures from rows of files. A growing run adds files, and the others stay the same.
    told: HashMap<Stamp, Map<String, Value>>,
    scratch: GuardedFolder,
}

impl OtherRun {
    /// Finds another trainer's run at a path: its folder, TRL's `trainer_state.json`, or verifiers' file.
    /// `None` for a run of ours, a single file of rows, a log, and everything else.
    ///
    /// # Errors
    /// Such a folder cannot be read.
    pub(crate) fn find(path: &Path) -> Result<Option<Self>, Fault> {
        look(path)?.map(|found| Self::new(path, found)).transpose()
    }

    /// As [`Self::find`], and also accepts a single file of rows of TRL or verl.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(crate) fn find_rows(path: &Path) -> Result<Option<Self>, Fault> {
        let found = match look(path)? {
            None if path.is_file() => trl::look_at_table(path).or_else(|| verl::look_at_dump(path)),
            found => found,
        };
        found.map(|found| Self::new(path, found)).transpose()
    }

    fn new(path: &Path, found: Found) -> Result<Self, Fault> {
        let scratch = GuardedFolder::create_in(&std::env::temp_dir(), "tamis-run-").map_err(|cause| {
            Fault::failed("a folder for temporary files could not be made")
                .with_hint("name one that can be written to with `TMPDIR`")
                .with_source(cause)
        })?;
        let (told, uneven, group_ids) = Default::default();
        let run = Self { path: path.to_owned(), found, told, uneven, group_ids, scratch };
        std::fs::create_dir(run.folder().join(ROLLOUTS)).map_err(|cause| run.unwritten(cause))?;
        Ok(run)
    }

    /// The trainer's name.
    pub(crate) fn system(&self) -> &'static str {
        self.found.system
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder with the files created so far.
    pub(crate) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Number of steps that the run will have, if known.
    pub(crate) fn total_steps(&self) -> Option<u64> {
        self.found.total_steps
    }

    /// Notes for the reader, including those about rows read so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        let uneven = self.uneven.borrow();
        let sizes = uneven.values().copied().reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        let merged = sizes.map(|(fewest, most)| {
            format!(
                "{} of its files: prompts have {fewest} to {most} rows there, so a repeated prompt counts as one group, or rows are \
                missing",
                uneven.len()
            )
        });
        self.found.notes.iter().cloned().chain(merged).collect()
    }

    /// Steps with a file of their own.
    pub(crate) fn steps(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.found.files.iter().map(|file| file.step)
    }

    /// Whether a sieve dropped groups before training, so that files only have the others.
    pub(crate) fn is_sieved(&self) -> bool {
        self.found.is_sieved
    }

    /// The trainer's own file of a step.
    pub(crate) fn source(&self, step: u64) -> Option<&Path> {
        self.found.files.iter().find(|file| file.step == step).map(|file| file.path.as_path())
    }

    /// The trainer's own training files.
    pub(crate) fn sources(&self) -> Vec<PathBuf> {
        self.found.files.iter().map(|file| file.path.clone()).collect()
    }

    /// The error for a run without rollouts.
    pub(crate) fn no_rollouts(&self) -> Fault {
        let fault = Fault::usage(format!("no rollouts are in {}", self.path.display()));
        match self.notes().pop() {
            Some(note) => fault.with_hint(note),
            None => fault,
        }
    }

    /// Whether it is a single file of rows with their own steps.
    pub(crate) fn is_table(&self) -> bool {
        self.sources() == [self.path.clone()]
    }

    fn unwritten(&self, cause: std::io::Error) -> Fault {
        Fault::failed(format!("failed to write to {}", self.folder().display())).with_source(cause)
    }

    /// The rollout file of a step. It is created on the first request.
    ///
    /// # Errors
    /// Rows cannot be read, or the disk is full.
    pub(crate) fn rollouts(&self, step: u64) -> Result<Option<PathBuf>, Fault> {
        if self.source(step).is_none() {
            return Ok(None);
        }
        let made = self.folder().join(ROLLOUTS).join(format!("step_{step}.parquet"));
        if !made.exists() {
            let rows = self.trajectories(step)?.rows;
            let out = File::create(&made).map_err(|cause| self.unwritten(cause))?;
            write_dumped_to(out, &rows).map_err(|cause| self.unwritten(cause))?;
        }
        Ok(Some(made))
    }

    /// The trajectories of a step, as every command reads them.
    ///
    /// # Errors
    /// Rows cannot be read.
    pub(crate) fn trajectories(&self, step: u64) -> Result<Trajectories, Fault> {
        let Found { system, files, rewards, is_plain_sum, .. } = &self.found;
        let Some(place) = files.iter().position(|file| file.step == step) else {
            return Ok(Trajectories::default());
        };
        let read = match *system {
            trl::NAME => trl::rows(&files[place], place, rewards.as_deref(), *is_plain_sum),
            verifiers::NAME | verifiers::PRIME_RL => verifiers::rows(files, place, &self.group_ids),
            _ => verl::rows(&files[place], place),
        }?;
        let mut uneven = self.uneven.borrow_mut();
        match read.repeats {
            Repeats::Uneven { fewest, most } => drop(uneven.insert(step, (fewest, most))),
            _ => drop(uneven.remove(&step)),
        }
        Ok(read)
    }

    /// Creates the rollout files of steps.
    ///
    /// # Errors
    /// As [`Self::rollouts`].
    pub(crate) fn make_rollouts(&self, is_wanted: impl Fn(u64) -> bool) -> Result<(), Fault> {
        self.steps().filter(|step| is_wanted(*step)).try_for_each(|step| self.rollouts(step).map(drop))
    }

    /// Writes `metrics.jsonl`: the figures that the trainer logged. Steps without any get figures from their
    /// rows.
    ///
    /// # Errors
    /// As [`Self::rollouts`].
    pub(crate) fn make_metrics(&mut self) -> Result<PathBuf, Fault> {
        let mut figures = self.found.figures.clone();
        for SourceFile { step, path } in self.found.files.clone() {
            if figures.contains_key(&step) {
                continue;
            }
            let stamp = stamp(&path);
            let told = match self.told.get(&stamp) {
                Some(told) => told.clone(),
                None => figures_of(&self.trajectories(step)?.rows, self.found.system),
            };
            figures.insert(step, told.clone());
            self.told.insert(stamp, told);
        }
        let mut text = String::new();
        for (step, mut row) in figures {
            row.insert("step".to_owned(), step.into());
            text += &Value::Object(row).to_string();
            text.push('\n');
        }
        let made = self.folder().join(METRICS);
        std::fs::write(&made, text).map_err(|cause| self.unwritten(cause))?;
        // As old as the newest source.
        if let Some(time) = self.found.seen.iter().filter_map(|(_, _, time)| *time).max() {
            let file = File::options().write(true).open(&made);
            file.and_then(|file| file.set_modified(time)).map_err(|cause| self.unwritten(cause))?;
        }
        Ok(made)
    }

    /// Looks for changes, and rewrites `metrics.jsonl` if there are any. Files that are gone keep their last
    /// state.
    ///
    /// # Errors
    /// As [`Self::rollouts`].
    pub(crate) fn look_again(&mut self) -> Result<(), Fault> {
        let seen = match self.found.system {
            trl::NAME => trl::files(&self.path),
            verifiers::NAME | verifiers::PRIME_RL => verifiers::files(&self.path),
            _ => verl::files(&self.path),
        };
        if seen == self.found.seen {
            return Ok(());
        }
        if let Some(found) = look(&self.path)? {
            self.found = found;
            self.make_metrics()?;
        }
        Ok(())
    }
}

/// Finds another trainer's run at a path, unless it is a run of ours.
fn look(path: &Path) -> Result<Option<Found>, Fault> {
    let is_ours = || {
        [METRICS, RUN_LOG].iter().any(|name| path.join(name).exists())
            || step_files(path).is_ok_and(|files| !files.is_empty())
    };
    // prime-rl has a `metrics.jsonl` too.
    if let Some(found) = verifiers::look(path) {
        return Ok(Some(found));
    }
    if path.is_dir() && is_ours() {
        return Ok(None);
    }
    match trl::look(path)? {
        Some(found) => Ok(Some(found)),
        None => Ok(verl::look(path)),
    }
}

/// Entries of a folder in order; empty if it cannot be listed.
fn entries(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok();
    (
        path.to_owned(),
        found.as_ref().map_or(0, std::fs::Metadata::len),
        found.and_then(|found| found.modified().ok()),
    )
}

/// Figures of a step from its rows, under TRL's names, or verl's for verl.
fn figures_of(rows: &[DumpedRow], system: &str) -> Map<String, Value> {
    let mut figures = Map::new();
    let rewards: Vec<f64> = rows.iter().map(|row| row.reward).filter(|reward| reward.is_finite()).collect();
    if !rewards.is_empty() {
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        figures.insert("reward".to_owned(), mean.into());
    }
    let mut groups: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in rows {
        let members = groups.entry(row.group).or_default();
        members.extend(Some(row.reward).filter(|reward| reward.is_finite()));
    }
    let scored: Vec<_> = groups.values().filter(|members| members.len() > 1).collect();
    if !scored.is_empty() {
        let alike =
            scored.iter().filter(|members| members.windows(2).all(|pair| pair[0] - pair[1] == 0.0)).count();
        figures.insert("frac_reward_zero_std".to_owned(), (alike as f64 / scored.len() as f64).into());
    }
    if system == verl::NAME {
        // They lack what verl's filter dropped.
        figures.extend(figures.get("reward").cloned().map(|mean| ("critic/score/mean".to_owned(), mean)));
        figures.insert("groups/trained".to_owned(), groups.len().into());
    } else {
        add_our_names(&mut figures);
        if system == verifiers::PRIME_RL {
            // It is unknown which of them were trained.
            figures.retain(|name, _| !name.starts_with("critic/"));
        }
    }
    figures
}

/// A trajectory's number by name: a score or the total reward. `None` if it has none with that name.
pub(crate) fn number(row: &DumpedRow, name: &str) -> Option<f64> {
    let score = row.scores.get(name.strip_prefix("scores.").unwrap_or(name)).copied();
    score.or_else(|| Some(row.reward).filter(|reward| is_total(name) && !reward.is_nan()))
}

/// Whether a name is that of the total reward.
pub(crate) fn is_total(name: &str) -> bool {
    ["reward", "seq_reward"].contains(&name)
}

/// Whether a row names its group as ours do.
fn names_group(row: &Map<String, Value>) -> bool {
    GroupLayout::GROUP_COLUMNS
        .iter()
        .filter(|column| **column != "uid")
        .any(|column| row.contains_key(*column))
}

/// The step of a row: its own, or that of its file.
fn step_of_row(row: &Map<String, Value>, of_file: u64) -> u64 {
    row.get("step").and_then(Value::as_u64).unwrap_or(of_file)
}

/// A prompt's number, which is the same wherever its text occurs.
fn prompt_number(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    // Small enough to be exact as a double.
    hasher.finish() >> 16
}

/// Numbers groups by the names of their rows, in order of appearance.
fn numbered(names: impl Iterator<Item = String>) -> Vec<usize> {
    let mut places = HashMap::new();
    names
        .map(|name| {
            let next = places.len();
            *places.entry(name).or_insert(next)
        })
        .collect()
}

/// Assigns each row its group and its index there, by the names. Groups named by prompts are cut.
fn put_into_groups(rows: &mut [DumpedRow], names: Vec<String>, are_prompts: bool) -> Repeats {
    let names = rows.iter().zip(names).map(|(row, name)| format!("{}/{name}", row.step));
    let mut groups = numbered(names);
    let repeats = if are_prompts { split_prompts(&mut groups) } else { Repeats::None };
    for (row, group) in rows.iter_mut().zip(groups) {
        row.group = group as u64;
    }
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    for row in rows {
        let size = sizes.entry(row.group).or_default();
        row.sample_index = *size;
        *size += 1;
    }
    repeats
}

/// The text of a cell: itself, or that of messages. Messages get their roles in front, except for a single
/// message of the assistant. `None` if it is neither.
pub(crate) fn text_of(cell: &Value) -> Option<String> {
    if let Value::String(text) = cell {
        return Some(text.clone());
    }
    let messages = cell.as_array().filter(|messages| !messages.is_empty())?;
    let read: Option<Vec<Message>> =
        messages.iter().map(|message| Message::read(message, true).ok()).collect();
    let read = read?;
    let calls = |message: &Value| {
        let calls = message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
        calls.map(|calls| Value::Array(calls.clone()).to_string())
    };
    let told = |(message, given): (&Message, &Value)| {
        let parts = [Some(message.content.clone()).filter(|text| !text.is_empty()), calls(given)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("\n")
    };
    let mut told: Vec<(&str, String)> =
        read.iter().zip(messages).map(|pair| (pair.0.role.as_str(), told(pair))).collect();
    match told.as_mut_slice() {
        [("assistant", text)] => Some(std::mem::take(text)),
        _ => Some(told.iter().map(|(role, text)| format!("{role}: {text}")).collect::<Vec<_>>().join("\n")),
    }
}

#[cfg(test)]
mod tests;
