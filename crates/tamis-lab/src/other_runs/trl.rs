//! TRL's files: `completions/completions_NNNNN.parquet` (of GRPOTrainer, with `log_completions`), and the log
//! in `trainer_state.json`, which every checkpoint has.
//!
//! Read off and run with TRL 1.16: a file holds the buffer of one generation batch at the time when a step is
//! logged. If several steps train on a batch (`steps_per_generation`, `num_iterations`), its rows are in the
//! file of each step. An evaluation overwrites the file of its step with its own rows, which stay in the
//! buffer until the next batch.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tamis_core::fault::chain;
use tamis_data::dumped::DumpedRow;
use tamis_data::records::{FileFormat, Records};
use tamis_run::metrics::catalogue::aliases;

use super::{
    Found, SourceFile, Stamp, Trajectories, entries, names_group, prompt_number, put_into_groups, stamp,
    step_of_row, text_of,
};
use crate::Fault;
use crate::compare::series::read_object;

pub(super) const NAME: &str = "TRL";
const STATE: &str = "trainer_state.json";
const COMPLETIONS: &str = "completions";
/// Upper limit on the size of a `trainer_state.json`, in bytes.
const MOST: u64 = 1 << 30;
/// Files of one run that were copied are closer in time than those of two runs.
const APART: Duration = Duration::from_secs(60);
/// Columns besides those of reward functions and of `log_extra`.
const FIXED: [&str; 4] = ["step", "prompt", "completion", "advantage"];

/// Whether a row has the columns of TRL's tables and none of ours.
fn is_row(row: &Map<String, Value>) -> bool {
    FIXED.iter().all(|column| row.contains_key(*column)) && !names_group(row)
}

/// A single table of completions.
pub(super) fn look_at_table(path: &Path) -> Option<Found> {
    let is_parquet = FileFormat::of(path).is_ok_and(|format| format == FileFormat::Parquet);
    let first = is_parquet.then(|| Records::open(path).ok()?.next()?.ok()).flatten()?.values;
    let file =
        SourceFile { step: step_of_row(&first, step_of_file(path).unwrap_or(0)), path: path.to_owned() };
    let is_plain_sum = score_names(path).is_ok_and(|names| names.len() == 1);
    let files = vec![file];
    is_row(&first).then(|| Found { system: NAME, files, is_plain_sum, ..Found::default() })
}

/// Contents of `trainer_state.json`.
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
        let mut state =
            read_object(&text).map_err(|error| unreadable(format!("not a JSON object: {error}")))?;
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

    /// Steps with an evaluation in the log.
    fn evaluated(&self) -> impl Iterator<Item = u64> {
        let is_evaluation = |entry: &&Map<String, Value>| entry.keys().any(|name| name.starts_with("eval_"));
        self.log.iter().filter(is_evaluation).filter_map(step_of)
    }

    /// Whether the log has an evaluation after a step. Beyond the end of the log: whether one is due, if all
    /// logged ones came every `eval_steps` steps.
    fn evaluates(&self, step: u64) -> bool {
        if step <= self.step {
            return self.evaluated().any(|evaluated| evaluated == step);
        }
        let is_due = |every: u64| {
            let mut known = self.evaluated().filter(|evaluated| *evaluated > 0).peekable();
            known.peek().is_some()
                && known.all(|known| known.is_multiple_of(every))
                && step.is_multiple_of(every)
        };
        self.eval_steps.is_some_and(is_due)
    }
}

fn step_of(entry: &Map<String, Value>) -> Option<u64> {
    entry.get("step").and_then(Value::as_f64).map(|step| step as u64)
}

/// State files of an output folder or of a checkpoint.
fn states(folder: &Path) -> Vec<PathBuf> {
    let is_checkpoint = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("checkpoint-"))
    };
    let inside = entries(folder).into_iter().filter(is_checkpoint);
    inside.chain([folder.to_owned()]).map(|folder| folder.join(STATE)).filter(|path| path.is_file()).collect()
}

/// The newest state. A state that cannot be read is left out if there is another one: the run may have been
/// killed while it wrote a checkpoint.
fn newest(states: Vec<PathBuf>, notes: &mut Vec<String>) -> Result<Option<(PathBuf, State)>, Fault> {
    let (mut read, mut unreadable): (Vec<(PathBuf, State)>, Option<Fault>) = (Vec::new(), None);
    for path in states {
        match State::read(&path) {
            Ok(state) => read.push((path, state)),
            Err(fault) => unreadable = Some(fault),
        }
    }
    read.sort_by_key(|(_, state)| state.step);
    match (read.is_empty(), unreadable) {
        (true, Some(fault)) => return Err(fault),
        (_, fault) => notes.extend(fault.map(|fault| format!("{fault}: it is left out"))),
    }
    // An earlier run in the same folder may have later steps.
    let mut last: Option<(PathBuf, State)> = None;
    let mut num_stale = 0;
    for (path, state) in read {
        if last.as_ref().is_some_and(|(known, _)| is_older(&path, known)) {
            num_stale += 1;
        } else {
            last = Some((path, state));
        }
    }
    if num_stale > 0 {
        notes.push(format!(
            "{num_stale} checkpoint{} of later steps {} older than that of an earlier one, of another run: left out",
            if num_stale == 1 { "" } else { "s" },
            if num_stale == 1 { "is" } else { "are" }
        ));
    }
    Ok(last)
}

/// Whether a file is clearly older than another one.
fn is_older(path: &Path, other: &Path) -> bool {
    let time = |path: &Path| stamp(path).2;
    let between = |(one, other): (SystemTime, SystemTime)| other.duration_since(one).ok();
    time(path).zip(time(other)).and_then(between).is_some_and(|age| age > APART)
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

/// An output folder, its states and its tables.
struct Output {
    folder: PathBuf,
    states: Vec<PathBuf>,
    files: Vec<SourceFile>,
}

/// The output at a path.
fn output(path: &Path) -> Option<Output> {
    let path = std::path::absolute(path).ok()?;
    if path.is_file() {
        let folder = path.parent()?.to_owned();
        return path.ends_with(STATE).then(|| Output { folder, states: vec![path], files: Vec::new() });
    }
    let own = tables(&path);
    let folder = if own.is_empty() { path.clone() } else { path.parent()?.to_owned() };
    let files = if own.is_empty() { tables(&path.join(COMPLETIONS)) } else { own };
    let states = states(&folder);
    (path.is_dir() && !(states.is_empty() && files.is_empty())).then_some(Output { folder, states, files })
}

/// Every file of TRL's at a path.
pub(super) fn files(path: &Path) -> Vec<Stamp> {
    let stamps = output(path).map(|Output { states, files, .. }| {
        let files = files.into_iter().map(|file| file.path);
        states.into_iter().chain(files).map(|path| stamp(&path)).collect()
    });
    stamps.unwrap_or_default()
}

/// Finds TRL's files at a path: an output folder, the completions or a checkpoint in it, or a
/// `trainer_state.json`.
pub(super) fn look(path: &Path) -> Result<Option<Found>, Fault> {
    let seen = files(path);
    let Some(Output { folder: out, states, files }) = output(path) else { return Ok(None) };
    let mut found = Found { system: NAME, seen, ..Found::default() };
    let state = newest(states, &mut found.notes)?.map(|(_, state)| state);
    if let Some(state) = &state {
        found.total_steps = state.max_steps;
        found.figures = figures(state);
        found.rewards = Some(reward_names(state)).filter(|names| !names.is_empty());
        found.is_sieved = found.figures.values().any(is_sieved);
        if files.last().is_some_and(|last| last.step > state.step) {
            found.notes.push(format!(
                "the newest `{STATE}` is of step {}: until the next checkpoint, what TRL logged since is missing, and completions of \
                evaluations cannot be recognised",
                state.step
            ));
        }
    } else {
        found.notes.push(format!(
            "there is no `{STATE}`: metrics come from the completions alone, and those of evaluations cannot be recognised"
        ));
    }
    if files.is_empty() {
        let around = out.parent().filter(|around| !tables(&around.join(COMPLETIONS)).is_empty());
        found.notes.push(match around {
            Some(around) => format!("its completions are in the folder around it: name {}", around.display()),
            None => "there are no completions: TRL's GRPOTrainer writes them with `log_completions=True`, and its \
                     RLOOTrainer writes none"
                .to_owned(),
        });
        return Ok(Some(found));
    }
    if found.is_sieved {
        found.notes.push(
            "the run had a sieve: its completions are only those of kept groups; all of them are in the folder of `record=`"
                .to_owned(),
        );
    }
    choose(files, state.as_ref(), &mut found)?;
    find_weights(state.as_ref(), &mut found)?;
    Ok(Some(found))
}

/// Leaves out files of evaluations, files with the same rows as the one before, and files of another run.
fn choose(files: Vec<SourceFile>, state: Option<&State>, found: &mut Found) -> Result<(), Fault> {
    let num_files = files.len();
    let [mut num_repeated, mut num_evaluated, mut num_stale, mut num_unread] = [0; 4];
    let (mut before, mut newest): (_, Option<PathBuf>) = (None, None);
    let mut fault = None;
    for file in files {
        if newest.as_ref().is_some_and(|newest| is_older(&file.path, newest)) {
            num_stale += 1;
            continue;
        }
        newest = Some(file.path.clone());
        let rows = match fingerprint(&file.path) {
            Ok(rows) => rows,
            Err(error) => {
                num_unread += 1;
                fault = Some(error);
                continue;
            }
        };
        if before == Some(rows) {
            num_repeated += 1;
        } else if state.is_some_and(|state| state.evaluates(file.step)) {
            num_evaluated += 1;
        } else {
            found.files.push(file);
        }
        before = Some(rows);
    }
    if let (true, Some(fault)) = (num_unread == num_files, fault) {
        return Err(fault);
    }
    let of = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
    let left = [
        of(num_repeated, "repeat the rows of the step before"),
        of(num_evaluated, "hold an evaluation, which overwrote the rows of its step"),
        of(num_stale, "are older than that of an earlier step, and of another run"),
        of(num_unread, "cannot be read (half written?)"),
    ];
    let left: Vec<String> = left.into_iter().flatten().collect();
    if !left.is_empty() {
        found.notes.push(format!(
            "of {num_files} files of completions {} count: {}",
            found.files.len(),
            left.join("; ")
        ));
    }
    Ok(())
}

/// A hash of the rows of a file, without their step.
fn fingerprint(path: &Path) -> Result<u64, Fault> {
    let mut hasher = DefaultHasher::new();
    for record in Records::open(path)? {
        let mut row = record?.values;
        row.remove("step");
        Value::Object(row).to_string().hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Names of reward functions: the log has the mean of each.
fn reward_names(state: &State) -> Vec<String> {
    let name = |key: &String| Some(key.strip_prefix("rewards/")?.strip_suffix("/mean")?.to_owned());
    let mut names: Vec<String> = state.log.iter().flat_map(|entry| entry.keys().filter_map(name)).collect();
    names.sort();
    names.dedup();
    names
}

/// The log by step, with TRL's names and ours.
fn figures(state: &State) -> BTreeMap<u64, Map<String, Value>> {
    let mut figures: BTreeMap<u64, Map<String, Value>> = BTreeMap::new();
    for entry in &state.log {
        // The last entry is a summary of the run.
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

/// Whether the figures come from a run with a sieve.
fn is_sieved(row: &Map<String, Value>) -> bool {
    row.keys().any(|name| name.starts_with("groups/"))
}

/// Adds our names beside TRL's. Without a sieve everything that was generated is trained.
pub(crate) fn add_our_names(row: &mut Map<String, Value>) {
    let is_sieved = is_sieved(row);
    let of_all = [("reward", "all/critic/score/mean"), ("frac_reward_zero_std", "all/frac_reward_zero_std")];
    let of_all = of_all.into_iter().filter(|_| !is_sieved);
    for (theirs, ours) in aliases().chain([("reward", "critic/score/mean")]).chain(of_all) {
        if let (Some(value), false) = (row.get(theirs).cloned(), row.contains_key(ours)) {
            row.insert(ours.to_owned(), value);
        }
    }
}

/// Checks whether the logged reward is the plain sum of the scores. TRL's tables have neither the total nor
/// weights.
fn find_weights(state: Option<&State>, found: &mut Found) -> Result<(), Fault> {
    let names = match (&found.rewards, found.files.first()) {
        (Some(names), _) => names.clone(),
        (None, Some(file)) => score_names(&file.path)?,
        (None, None) => return Ok(()),
    };
    // Means over the same completions add up like the rewards.
    let agrees = |entry: &Map<String, Value>| {
        let reward = entry.get("reward")?.as_f64()?;
        let means: Option<Vec<f64>> =
            names.iter().map(|name| entry.get(&format!("rewards/{name}/mean"))?.as_f64()).collect();
        Some((means?.iter().sum::<f64>() - reward).abs() <= 1e-4 * (1.0 + reward.abs()))
    };
    let agreed: Vec<bool> = state.iter().flat_map(|state| &state.log).filter_map(agrees).collect();
    found.is_plain_sum =
        if agreed.is_empty() { names.len() == 1 } else { agreed.iter().all(|agrees| *agrees) };
    if !found.is_plain_sum && !found.files.is_empty() {
        let why = if agreed.is_empty() {
            "which columns are rewards, and how they add up, is not known"
        } else {
            "the reward functions do not add up to the reward that TRL logged (they have weights, or left completions \
             unscored)"
        };
        found.notes.push(format!("{why}: `reward` is left out, and `advise` needs a `--metric`"));
    }
    Ok(())
}

/// Numeric columns in the first row of a table, without TRL's own.
fn score_names(path: &Path) -> Result<Vec<String>, Fault> {
    let Some(first) = Records::open(path)?.next().transpose()? else { return Ok(Vec::new()) };
    let numbers = first.values.iter().filter(|(_, value)| value.is_number() || value.is_null());
    Ok(numbers.map(|(name, _)| name.clone()).filter(|name| !FIXED.contains(&name.as_str())).collect())
}

/// The trajectories of a file. A group is the rows of one prompt. A repeated prompt is cut into groups of one
/// size.
pub(super) fn rows(
    file: &SourceFile,
    place: usize,
    rewards: Option<&[String]>,
    is_plain_sum: bool,
) -> Result<Trajectories, Fault> {
    let mut rows = Vec::new();
    for record in Records::open(&file.path)? {
        let record = record?;
        let text = |column: &str| {
            record.values.get(column).and_then(text_of).ok_or_else(|| {
                Fault::failed(format!("{}: `{column}` is neither text nor messages", record.place))
                    .with_hint("name a folder that TRL's `log_completions` wrote")
            })
        };
        let (prompt, completion) = (text("prompt")?, text("completion")?);
        let mut row = DumpedRow {
            step: step_of_row(&record.values, file.step),
            prompt_id: prompt_number(&prompt),
            prompt,
            completion,
            reward: f64::NAN,
            verdict: "trained",
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
    let names = rows.iter().map(|row| row.prompt.clone()).collect();
    let repeats = put_into_groups(&mut rows, names, true);
    let places = (0..rows.len()).map(|row| vec![(place, row as u64)]).collect();
    Ok(Trajectories { rows, places, repeats })
}
