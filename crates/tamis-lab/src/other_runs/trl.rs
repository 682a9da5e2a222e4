//! What TRL's GRPOTrainer and RLOOTrainer leave: `completions/completions_NNNNN.parquet` (`log_completions`)
//! and the log in `trainer_state.json`, which every checkpoint has.
//!
//! Read off and run with TRL 1.16: a file is what stands in a buffer of one generation batch when a step is
//! logged. So the rows of a batch that several steps train on are in the file of each
//! (`steps_per_generation`, `num_iterations`), and an evaluation overwrites the file of its step with rows of
//! its own, which stay in the buffer until the next batch.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tamis_core::fault::chain;
use tamis_data::dumped::DumpedRow;
use tamis_data::records::Records;
use tamis_run::metrics::catalogue::aliases;

use super::{Found, SourceFile, count_members, entries, prompt_number, stamp, text_of};
use crate::Fault;
use crate::compare::series::read_object;
use crate::repeats::split_prompts;

pub(super) const NAME: &str = "TRL";
const STATE: &str = "trainer_state.json";
const COMPLETIONS: &str = "completions";
/// Bytes of a `trainer_state.json`, at most.
const MOST: u64 = 1 << 30;
/// Columns beside those of reward functions and of `log_extra`.
const FIXED: [&str; 4] = ["step", "prompt", "completion", "advantage"];

/// Whether a row has the columns of TRL's tables.
pub(super) fn is_row(row: &Map<String, Value>) -> bool {
    FIXED.iter().all(|column| row.contains_key(*column))
}

/// What `trainer_state.json` says.
#[derive(Debug, Default)]
struct State {
    step: u64,
    max_steps: Option<u64>,
    eval_steps: Option<u64>,
    log: Vec<Map<String, Value>>,
}

impl State {
    fn read(path: &Path) -> Result<Self, Fault> {
        let unreadable = |fault: String| {
            Fault::failed(format!("{}: {fault}", path.display()))
                .with_hint("it is written with every checkpoint of TRL: name the folder of another one")
        };
        let text = tamis_file::read_text(path, MOST).map_err(|error| unreadable(chain(&error)))?;
        let mut state = read_object(&text).map_err(|error| unreadable(format!("no JSON object: {error}")))?;
        let number = |name: &str| state.get(name).and_then(Value::as_f64).filter(|number| *number > 0.0);
        let (step, max_steps, eval_steps) =
            (number("global_step"), number("max_steps"), number("eval_steps"));
        let Some(Value::Array(log)) = state.remove("log_history") else {
            return Err(unreadable("there is no `log_history` in it".to_owned()));
        };
        let log = log.into_iter().filter_map(|entry| match entry {
            Value::Object(entry) => Some(entry),
            _ => None,
        });
        Ok(Self {
            step: step.unwrap_or(0.0) as u64,
            max_steps: max_steps.map(|steps| steps as u64),
            eval_steps: eval_steps.filter(|steps| steps.fract() == 0.0).map(|steps| steps as u64),
            log: log.collect(),
        })
    }

    /// Whether the log says that an evaluation came after a step, or, beyond its end, whether one is due.
    fn evaluates(&self, step: u64) -> bool {
        let is_evaluation = |entry: &&Map<String, Value>| entry.keys().any(|name| name.starts_with("eval_"));
        if step <= self.step {
            return self.log.iter().filter(is_evaluation).any(|entry| step_of(entry) == Some(step));
        }
        let has_any = self.log.iter().any(|entry| is_evaluation(&entry));
        has_any && self.eval_steps.is_some_and(|every| step.is_multiple_of(every))
    }
}

fn step_of(entry: &Map<String, Value>) -> Option<u64> {
    entry.get("step").and_then(Value::as_f64).map(|step| step as u64)
}

/// The newest state of an output folder, or of a checkpoint's. One that cannot be read is left out if there
/// is another: a run may have ended while it wrote a checkpoint.
fn state_in(folder: &Path, notes: &mut Vec<String>) -> Result<Option<(PathBuf, State)>, Fault> {
    let inside = entries(folder).into_iter().filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("checkpoint-"))
    });
    let (mut newest, mut unreadable): (Option<(PathBuf, State)>, Option<Fault>) = (None, None);
    for path in
        inside.chain([folder.to_owned()]).map(|folder| folder.join(STATE)).filter(|path| path.is_file())
    {
        match State::read(&path) {
            Ok(state) if newest.as_ref().is_none_or(|(_, known)| state.step >= known.step) => {
                newest = Some((path, state));
            }
            Ok(_) => {}
            Err(fault) => unreadable = Some(fault),
        }
    }
    match (newest, unreadable) {
        (None, Some(fault)) => Err(fault),
        (newest, fault) => {
            notes.extend(fault.map(|fault| format!("{fault}: it is left out")));
            Ok(newest)
        }
    }
}

/// The step in `completions_00012.parquet`.
fn step_of_file(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("completions_")?.strip_suffix(".parquet")?.parse().ok()
}

/// Files of completions in a folder, by step.
fn tables(folder: &Path) -> Vec<SourceFile> {
    let files = entries(folder).into_iter().filter(|path| path.is_file());
    let mut files: Vec<SourceFile> =
        files.filter_map(|path| Some(SourceFile { step: step_of_file(&path)?, path })).collect();
    files.sort_by_key(|file| file.step);
    files
}

/// What TRL wrote at a path: an output folder, the completions or a checkpoint in it, or a
/// `trainer_state.json`.
pub(super) fn look(path: &Path) -> Result<Option<Found>, Fault> {
    let is_state = path.file_name().is_some_and(|name| name == STATE);
    let mut notes = Vec::new();
    let (state, files) = if path.is_file() && is_state {
        (Some((path.to_owned(), State::read(path)?)), Vec::new())
    } else if path.is_dir() {
        let own = tables(path);
        let out = if own.is_empty() { path } else { path.parent().unwrap_or(path) };
        let files = if own.is_empty() { tables(&path.join(COMPLETIONS)) } else { own };
        (state_in(out, &mut notes)?, files)
    } else {
        return Ok(None);
    };
    if state.is_none() && files.is_empty() {
        return Ok(None);
    }
    let mut found = Found { system: NAME, notes, ..Found::default() };
    found.seen = files.iter().map(|file| stamp(&file.path)).collect();
    let known = state.as_ref().map(|(_, state)| state);
    if let Some((path, state)) = &state {
        found.seen.push(stamp(path));
        found.total_steps = state.max_steps;
        found.figures = figures(state);
        found.rewards = Some(reward_names(state)).filter(|names| !names.is_empty());
        if files.last().is_some_and(|last| last.step > state.step) {
            found.notes.push(format!(
                "the newest `{STATE}` is of step {}: what TRL logged after it is written with the next checkpoint",
                state.step
            ));
        }
    } else {
        found
            .notes
            .push(format!("there is no `{STATE}`: figures of steps are those that the completions tell"));
    }
    if files.is_empty() {
        found.notes.push("there are no completions: TRL writes them with `log_completions=True`".to_owned());
        return Ok(Some(found));
    }
    choose(files, known, &mut found)?;
    find_weights(&mut found)?;
    Ok(Some(found))
}

/// Leaves out the files of evaluations, and those whose rows stand in the file before.
fn choose(files: Vec<SourceFile>, state: Option<&State>, found: &mut Found) -> Result<(), Fault> {
    let (num_files, mut num_repeated, mut num_evaluated) = (files.len(), 0, 0);
    let mut before = None;
    for file in files {
        let rows = fingerprint(&file.path)?;
        if before == Some(rows) {
            num_repeated += 1;
        } else if state.is_some_and(|state| state.evaluates(file.step)) {
            num_evaluated += 1;
        } else {
            found.files.push(file);
        }
        before = Some(rows);
    }
    if num_repeated + num_evaluated > 0 {
        let of = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let left = [
            of(num_repeated, "repeat the rows of the step before"),
            of(num_evaluated, "hold an evaluation, which overwrote the rows of its step"),
        ];
        found.notes.push(format!(
            "of {num_files} files of completions {} count: {}",
            found.files.len(),
            left.into_iter().flatten().collect::<Vec<_>>().join("; ")
        ));
    }
    if state.is_none() && found.files.len() > 1 {
        found.notes.push(
            "without it nothing says which files hold an evaluation: leave those out if there were any"
                .to_owned(),
        );
    }
    Ok(())
}

/// A number of the rows of a file, whatever step they stand under.
fn fingerprint(path: &Path) -> Result<u64, Fault> {
    let mut hasher = DefaultHasher::new();
    for record in Records::open(path)? {
        let mut row = record?.values;
        row.remove("step");
        Value::Object(row).to_string().hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Names of reward functions: the log has a mean of each.
fn reward_names(state: &State) -> Vec<String> {
    let name = |key: &String| Some(key.strip_prefix("rewards/")?.strip_suffix("/mean")?.to_owned());
    let mut names: Vec<String> = state.log.iter().flat_map(|entry| entry.keys().filter_map(name)).collect();
    names.sort();
    names.dedup();
    names
}

/// The log by step: TRL's names, and ours for what we have too.
fn figures(state: &State) -> BTreeMap<u64, Map<String, Value>> {
    let mut figures: BTreeMap<u64, Map<String, Value>> = BTreeMap::new();
    for entry in &state.log {
        // The last entry sums the run up.
        if let (Some(step), false) = (step_of(entry), entry.contains_key("train_runtime")) {
            let row = figures.entry(step).or_default();
            row.extend(
                entry
                    .iter()
                    .filter(|(name, _)| *name != "step")
                    .map(|(name, value)| (name.clone(), value.clone())),
            );
        }
    }
    figures.values_mut().for_each(add_our_names);
    figures
}

/// Adds our names beside TRL's. Without a sieve everything that was generated is trained on.
pub(crate) fn add_our_names(row: &mut Map<String, Value>) {
    let is_sieved = row.keys().any(|name| name.starts_with("groups/"));
    let of_all = [("reward", "all/critic/score/mean"), ("frac_reward_zero_std", "all/frac_reward_zero_std")];
    let of_all = of_all.into_iter().filter(|_| !is_sieved);
    for (theirs, ours) in aliases().chain([("reward", "critic/score/mean")]).chain(of_all) {
        if let (Some(value), false) = (row.get(theirs).cloned(), row.contains_key(ours)) {
            row.insert(ours.to_owned(), value);
        }
    }
}

/// Looks whether the plain sum of the scores is the reward that TRL logged. Its tables have no total, and no
/// weights.
fn find_weights(found: &mut Found) -> Result<(), Fault> {
    if found.rewards.as_ref().is_some_and(|names| names.len() == 1) {
        found.is_plain_sum = true;
        return Ok(());
    }
    let mut num_alike = 0;
    for file in &found.files {
        let Some(logged) = found.figures.get(&file.step).and_then(|row| row.get("reward")?.as_f64()) else {
            continue;
        };
        let rows = rows(&file.path, file.step, found.rewards.as_deref(), true)?;
        let rewards: Vec<f64> =
            rows.iter().map(|row| row.reward).filter(|reward| reward.is_finite()).collect();
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        if (mean - logged).abs() > 1e-4 * (1.0 + logged.abs()) {
            found.notes.push(
                "the reward functions have weights, which TRL does not write down: `reward` is left out; name one function with --metric".to_owned(),
            );
            return Ok(());
        }
        num_alike += 1;
        if num_alike == 4 {
            break;
        }
    }
    let names = match (&found.rewards, found.files.first()) {
        (None, Some(file)) => score_names(&file.path)?,
        _ => Vec::new(),
    };
    found.is_plain_sum = num_alike > 0 || names.len() == 1;
    if !found.is_plain_sum && !found.files.is_empty() {
        found.notes.push(
            "several columns may be rewards, and nothing says how they add up: `reward` is left out; name one with --metric".to_owned(),
        );
    }
    Ok(())
}

/// Columns of numbers in the first row of a table, TRL's own aside.
fn score_names(path: &Path) -> Result<Vec<String>, Fault> {
    let Some(first) = Records::open(path)?.next().transpose()? else { return Ok(Vec::new()) };
    let numbers = first.values.iter().filter(|(_, value)| value.is_number() || value.is_null());
    Ok(numbers.map(|(name, _)| name.clone()).filter(|name| !FIXED.contains(&name.as_str())).collect())
}

/// The trajectories of a file. A group is the rows of one prompt; a prompt that came twice is cut into groups
/// of one size.
pub(super) fn rows(
    path: &Path,
    step: u64,
    rewards: Option<&[String]>,
    is_plain_sum: bool,
) -> Result<Vec<DumpedRow>, Fault> {
    let mut rows = Vec::new();
    for record in Records::open(path)? {
        let record = record?;
        let text = |column: &str| {
            record.values.get(column).and_then(text_of).ok_or_else(|| {
                Fault::failed(format!("{}: `{column}` is neither text nor messages", record.place))
                    .with_hint("name a folder that TRL's `log_completions` wrote")
            })
        };
        let (prompt, completion) = (text("prompt")?, text("completion")?);
        let mut row = DumpedRow {
            step,
            prompt_id: prompt_number(&prompt),
            prompt,
            completion,
            reward: f64::NAN,
            advantage: record.values.get("advantage").and_then(Value::as_f64),
            ..DumpedRow::default()
        };
        for (name, value) in record.values.iter().filter(|(name, _)| !FIXED.contains(&name.as_str())) {
            let is_reward =
                rewards.map_or(value.is_number() || value.is_null(), |names| names.contains(name));
            if is_reward {
                row.scores.insert(name.clone(), value.as_f64().unwrap_or(f64::NAN));
            } else if !value.is_null() {
                let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
                row.logged.insert(name.clone(), text);
            }
        }
        let scored = row.scores.values().filter(|score| !score.is_nan());
        if is_plain_sum && scored.clone().next().is_some() {
            row.reward = scored.sum();
        }
        rows.push(row);
    }
    let mut groups = super::numbered(rows.iter().map(|row| row.prompt.clone()));
    split_prompts(&mut groups);
    for (row, group) in rows.iter_mut().zip(groups) {
        row.group = group as u64;
    }
    count_members(&mut rows);
    Ok(rows)
}
