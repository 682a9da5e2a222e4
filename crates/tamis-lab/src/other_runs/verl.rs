//! verl's dumps with `trainer.rollout_data_dir`: `N.jsonl` has the trajectories that step N trained on.
//!
//! Read off verl 0.9.1: its default trainer writes a key of each row under `uid`, `UID_ROLLOUT_OUTPUT`. A
//! rollout of an agent may have several outputs, and the last one has the score. The older trainers write no
//! id.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tamis_data::dumped::DumpedRow;

use super::{
    Found, SourceFile, Stamp, Trajectories, entries, names_group, prompt_number, put_into_groups, stamp,
    step_of_row,
};
use crate::Fault;
use crate::compare::series::{read_number, read_object};

pub(super) const NAME: &str = "verl";
/// Columns of every dump.
const FIXED: [&str; 5] = ["input", "output", "gts", "score", "step"];

/// Whether a row has the columns of verl's dumps.
fn is_row(row: &Map<String, Value>) -> bool {
    FIXED.iter().filter(|column| **column != "gts").all(|column| row.contains_key(*column))
}

/// A row's key in verl's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key<'row> {
    group: &'row str,
    /// Index of the rollout in its group.
    rollout: u64,
    /// Index of the output in its rollout.
    output: u64,
}

impl<'row> Key<'row> {
    fn of(uid: &'row str) -> Option<Self> {
        let (rest, output) = uid.rsplit_once('_')?;
        let (group, rollout) = rest.rsplit_once('_')?;
        Some(Self { group, rollout: rollout.parse().ok()?, output: output.parse().ok()? })
    }
}

/// The keys of the rows of a file, if their `uid` is one. verl numbers the rows of a UUID. Any other `uid`
/// may be a group's own name that looks like a key (`math_0_3`). Then all rows of the group have it. If each
/// has only one row, its last number does not count from 0, or its first part covers several prompts.
fn keys<'row>(uids: &'row [Option<String>], rows: &[DumpedRow]) -> Option<Vec<Key<'row>>> {
    let keys: Vec<Key<'_>> = uids.iter().map(|uid| Key::of(uid.as_deref()?)).collect::<Option<_>>()?;
    if keys.iter().all(|key| is_uuid(key.group)) {
        return Some(keys);
    }
    let mut outputs: HashMap<(u64, &str, u64), BTreeSet<u64>> = HashMap::new();
    let mut prompts: HashMap<(u64, &str), &str> = HashMap::new();
    for (key, row) in keys.iter().zip(rows) {
        // Later outputs of a rollout have the earlier ones in their prompt.
        let has_prompt = key.output > 0
            || *prompts.entry((row.step, key.group)).or_insert(&row.prompt) == row.prompt.as_str();
        if !has_prompt || !outputs.entry((row.step, key.group, key.rollout)).or_default().insert(key.output) {
            return None;
        }
    }
    // They are counted from 0.
    let are_counted =
        |outputs: &BTreeSet<u64>| outputs.last().is_none_or(|last| last + 1 == outputs.len() as u64);
    outputs.values().all(are_counted).then_some(keys)
}

fn is_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    digits == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// A single dump.
pub(super) fn look_at_dump(path: &Path) -> Option<Found> {
    let (_, first) = Lines::open(path).ok()?.next()?.ok()?;
    let step = step_of_row(&first, step_of_file(path).unwrap_or(0));
    let files = vec![SourceFile { step, path: path.to_owned() }];
    let is_dump = is_row(&first) && !names_group(&first);
    is_dump.then(|| Found { system: NAME, files, is_plain_sum: true, ..Found::default() })
}

fn step_of_file(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_suffix(".jsonl")?.parse().ok()
}

/// The dumps in a folder: files whose name is their step.
fn dumps(path: &Path) -> Vec<SourceFile> {
    let files = entries(path).into_iter().filter(|path| path.is_file());
    let mut files: Vec<SourceFile> =
        files.filter_map(|path| Some(SourceFile { step: step_of_file(&path)?, path })).collect();
    files.sort_by_key(|file| file.step);
    files
}

/// Every file of verl's at a path.
pub(super) fn files(path: &Path) -> Vec<Stamp> {
    dumps(path).iter().map(|file| stamp(&file.path)).collect()
}

/// Finds verl's dumps in a folder.
pub(super) fn look(path: &Path) -> Option<Found> {
    let mut files = dumps(path);
    let seen = files.iter().map(|file| stamp(&file.path)).collect();
    let mut first = None;
    for file in &files {
        if let Some(row) = Lines::open(&file.path).ok().and_then(|mut lines| lines.next()) {
            first = row.ok().map(|(_, row)| row);
            break;
        }
    }
    if !first.is_some_and(|row| is_row(&row)) {
        return None;
    }
    let num_files = files.len();
    files.retain(|file| is_whole(&file.path));
    let mut notes = Vec::new();
    if files.len() < num_files {
        notes.push(format!(
            "{} of {num_files} files are empty or end in half a row: left out",
            num_files - files.len()
        ));
    }
    notes.push(if files.first().is_some_and(|file| file.step == 0) {
        "there is a file of step 0, so these are validations (`trainer.validation_data_dir`), and not what was trained on"
            .to_owned()
    } else {
        "verl's dumps have what was trained on: dropped groups, token counts and finish reasons are not in them".to_owned()
    });
    Some(Found { system: NAME, files, seen, notes, is_plain_sum: true, ..Found::default() })
}

/// Whether the last line of a file is complete.
fn is_whole(path: &Path) -> bool {
    tamis_file::read_end(path, 1).is_ok_and(|(end, _)| end == b"\n")
}

/// The objects of a file, line by line, without blank lines. Python's non-finite numbers, which JSON does not
/// have, are accepted.
pub(super) struct Lines {
    path: PathBuf,
    lines: std::iter::Enumerate<std::io::Lines<BufReader<File>>>,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, Fault> {
        let file = tamis_file::open(path).map_err(|cause| unread(path, cause))?;
        Ok(Self { path: path.to_owned(), lines: BufReader::new(file).lines().enumerate() })
    }
}

pub(super) fn unread(path: &Path, cause: std::io::Error) -> Fault {
    Fault::failed(format!("failed to read {}", path.display())).with_source(cause)
}

impl Iterator for Lines {
    type Item = Result<(String, Map<String, Value>), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_blank =
            |line: &std::io::Result<String>| line.as_ref().is_ok_and(|line| line.trim().is_empty());
        let (place, line) = self.lines.find(|(_, line)| !is_blank(line))?;
        let line = match line {
            Ok(line) => line,
            Err(cause) => return Some(Err(unread(&self.path, cause))),
        };
        let place = format!("{}, line {}", self.path.display(), place + 1);
        Some(match read_object(&line) {
            Ok(row) => Ok((place, row)),
            Err(error) => Err(Fault::failed(format!("{place}: not a JSON object: {error}"))
                .with_hint("remove the row, or the file")),
        })
    }
}

/// The trajectories of a file. Without a key, a group is the rows of one prompt.
pub(super) fn rows(file: &SourceFile, place_of_file: usize) -> Result<Trajectories, Fault> {
    let mut rows: Vec<DumpedRow> = Vec::new();
    let mut uids: Vec<Option<String>> = Vec::new();
    for line in Lines::open(&file.path)? {
        let (place, row) = line?;
        let values = &row;
        let text = |column: &str| values.get(column).and_then(Value::as_str).unwrap_or_default().to_owned();
        if !is_row(values) {
            return Err(Fault::failed(format!("{place}: it is not a row of verl's dumps"))
                .with_hint("rows of `trainer.rollout_data_dir` have `input`, `output`, `score` and `step`"));
        }
        let score = |name: &str| match values.get(name)? {
            Value::Bool(is_right) => Some(f64::from(u8::from(*is_right))),
            Value::String(text) if text == "NaN" => Some(f64::NAN),
            other => read_number(other),
        };
        let mut row = DumpedRow {
            step: step_of_row(values, file.step),
            prompt: text("input"),
            completion: text("output"),
            ground_truth: values
                .get("gts")
                .filter(|truth| !truth.is_null())
                .map(|truth| truth.as_str().map_or_else(|| truth.to_string(), ToOwned::to_owned)),
            reward: score("score").unwrap_or(f64::NAN),
            verdict: "trained",
            ..DumpedRow::default()
        };
        row.prompt_id = prompt_number(&row.prompt);
        row.scores.insert("score".to_owned(), row.reward);
        for name in values.keys().filter(|name| !FIXED.contains(&name.as_str()) && *name != "uid") {
            match (score(name), values.get(name).and_then(Value::as_str)) {
                (Some(score), _) => drop(row.scores.insert(name.clone(), score)),
                (None, Some(text)) => drop(row.logged.insert(name.clone(), text.to_owned())),
                _ => {}
            }
        }
        uids.push(values.get("uid").and_then(Value::as_str).map(ToOwned::to_owned));
        rows.push(row);
    }
    let place = |row: usize| (place_of_file, row as u64);
    let Some(keys) = keys(&uids, &rows).filter(|keys| !keys.is_empty()) else {
        let are_prompts = uids.iter().all(Option::is_none);
        let names = uids.into_iter().zip(&rows).map(|(uid, row)| uid.unwrap_or_else(|| row.prompt.clone()));
        let names = names.collect();
        let places = (0..rows.len()).map(|row| vec![place(row)]).collect();
        let repeats = put_into_groups(&mut rows, names, are_prompts);
        return Ok(Trajectories { rows, places, repeats });
    };
    // If a rollout has several outputs, the last one has the score and the first one the prompt.
    let mut rollouts: HashMap<(u64, &str, u64), usize> = HashMap::new();
    let (mut read, mut names) = (Trajectories::default(), Vec::new());
    let mut outputs: Vec<[u64; 2]> = Vec::new();
    for (number, (key, row)) in keys.iter().zip(rows).enumerate() {
        let next = read.rows.len();
        let known = *rollouts.entry((row.step, key.group, key.rollout)).or_insert(next);
        if known == next {
            read.rows.push(row);
            read.places.push(vec![place(number)]);
            outputs.push([key.output; 2]);
            names.push(key.group.to_owned());
            continue;
        }
        read.places[known].push(place(number));
        let (told, [first, last]) = (&mut read.rows[known], &mut outputs[known]);
        let (prompt, prompt_id) = (row.prompt.clone(), row.prompt_id);
        if key.output >= *last {
            *last = key.output;
            *told = DumpedRow { prompt: std::mem::take(&mut told.prompt), prompt_id: told.prompt_id, ..row };
        }
        if key.output < *first {
            *first = key.output;
            (told.prompt, told.prompt_id) = (prompt, prompt_id);
        }
    }
    put_into_groups(&mut read.rows, names, false);
    Ok(read)
}
