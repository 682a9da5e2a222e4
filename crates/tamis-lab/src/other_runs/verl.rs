//! What verl dumps with `trainer.rollout_data_dir`: `N.jsonl` of the trajectories that step N trained on.
//!
//! Read off verl 0.9.1: its default trainer writes under `uid` a key of each row, `UID_ROLLOUT_OUTPUT`, and a
//! rollout of an agent may have several outputs, of which the last bears the score. The older trainers write
//! no id.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tamis_data::dumped::DumpedRow;

use super::{Found, SourceFile, Stamp, count_members, entries, numbered, prompt_number, stamp};
use crate::Fault;
use crate::compare::series::{read_number, read_object};
use crate::repeats::split_prompts;

const NAME: &str = "verl";
/// Columns of every dump.
const FIXED: [&str; 5] = ["input", "output", "gts", "score", "step"];

/// Whether a row has the columns of verl's dumps.
pub(super) fn is_row(row: &Map<String, Value>) -> bool {
    FIXED.iter().filter(|column| **column != "gts").all(|column| row.contains_key(*column))
}

/// The row's place in verl's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session<'row> {
    /// The group.
    pub(crate) group: &'row str,
    /// The rollout of the group.
    pub(crate) rollout: u64,
    /// The output of the rollout.
    output: u64,
}

impl<'row> Session<'row> {
    /// Of a row of verl's dumps whose `uid` is such a key; a plain `uid` is a group's own.
    pub(crate) fn of(row: &'row Map<String, Value>) -> Option<Self> {
        if !is_row(row) {
            return None;
        }
        let (rest, output) = row.get("uid")?.as_str()?.rsplit_once('_')?;
        let (group, rollout) = rest.rsplit_once('_')?;
        Some(Self { group, rollout: rollout.parse().ok()?, output: output.parse().ok()? })
    }
}

/// The dumps in a folder: files that are called by their step.
fn dumps(path: &Path) -> Vec<SourceFile> {
    let step_of = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".jsonl")?.parse().ok();
    let files = entries(path).into_iter().filter(|path| path.is_file());
    let mut files: Vec<SourceFile> =
        files.filter_map(|path| Some(SourceFile { step: step_of(&path)?, path })).collect();
    files.sort_by_key(|file| file.step);
    files
}

/// Every file of verl's at a path.
pub(super) fn files(path: &Path) -> Vec<Stamp> {
    dumps(path).iter().map(|file| stamp(&file.path)).collect()
}

/// What verl dumped into a folder.
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
        "verl's dumps hold what was trained on: what its filter dropped, token counts and ends are not in them".to_owned()
    });
    Some(Found { system: NAME, files, seen, notes, is_plain_sum: true, ..Found::default() })
}

/// Whether a file ends with a whole line.
fn is_whole(path: &Path) -> bool {
    tamis_file::read_end(path, 1).is_ok_and(|(end, _)| end == b"\n")
}

/// The rows of a file. Python writes numbers that are not finite, which JSON does not have.
struct Lines {
    path: PathBuf,
    lines: std::iter::Enumerate<std::vec::IntoIter<String>>,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, Fault> {
        let text = tamis_file::read_text(path, u64::MAX).map_err(|cause| {
            Fault::failed(format!("failed to read {}", path.display())).with_source(cause)
        })?;
        let lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        Ok(Self { path: path.to_owned(), lines: lines.into_iter().enumerate() })
    }
}

impl Iterator for Lines {
    type Item = Result<(String, Map<String, Value>), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        let (place, line) = self.lines.find(|(_, line)| !line.trim().is_empty())?;
        let place = format!("{}, line {}", self.path.display(), place + 1);
        Some(match read_object(&line) {
            Ok(row) => Ok((place, row)),
            Err(error) => Err(Fault::failed(format!("{place}: no JSON object: {error}"))
                .with_hint("take the row out, or the file")),
        })
    }
}

/// The trajectories of a file. Without a key a group is the rows of one prompt.
pub(super) fn rows(path: &Path, step: u64) -> Result<Vec<DumpedRow>, Fault> {
    let mut rows: Vec<DumpedRow> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut sessions: HashMap<(String, u64), (usize, u64)> = HashMap::new();
    let mut is_by_prompt = true;
    for line in Lines::open(path)? {
        let (place, row) = line?;
        let values = &row;
        let text = |column: &str| values.get(column).and_then(Value::as_str).unwrap_or_default().to_owned();
        if !is_row(values) {
            return Err(Fault::failed(format!("{place}: it is no row of verl's dumps"))
                .with_hint("rows of `trainer.rollout_data_dir` have `input`, `output`, `score` and `step`"));
        }
        let score = |name: &str| match values.get(name)? {
            Value::Bool(is_right) => Some(f64::from(u8::from(*is_right))),
            Value::String(text) if text == "NaN" => Some(f64::NAN),
            other => read_number(other),
        };
        let mut row = DumpedRow {
            step,
            prompt: text("input"),
            completion: text("output"),
            ground_truth: values
                .get("gts")
                .filter(|truth| !truth.is_null())
                .map(|truth| truth.as_str().map_or_else(|| truth.to_string(), ToOwned::to_owned)),
            reward: score("score").unwrap_or(f64::NAN),
            ..DumpedRow::default()
        };
        row.prompt_id = prompt_number(&row.prompt);
        for name in values.keys().filter(|name| !FIXED.contains(&name.as_str()) && *name != "uid") {
            match (score(name), values.get(name).and_then(Value::as_str)) {
                (Some(score), _) => drop(row.scores.insert(name.clone(), score)),
                (None, Some(text)) => drop(row.logged.insert(name.clone(), text.to_owned())),
                _ => {}
            }
        }
        if let Some(session) = Session::of(values) {
            is_by_prompt = false;
            let known = sessions.get_mut(&(session.group.to_owned(), session.rollout));
            match known {
                // The last output bears the score.
                Some((place, output)) if session.output >= *output => {
                    *output = session.output;
                    let first = std::mem::take(&mut rows[*place]);
                    rows[*place] = DumpedRow { prompt: first.prompt, prompt_id: first.prompt_id, ..row };
                    continue;
                }
                Some(_) => continue,
                None => {
                    let key = (session.group.to_owned(), session.rollout);
                    sessions.insert(key, (rows.len(), session.output));
                    names.push(session.group.to_owned());
                }
            }
        } else {
            let own = values.get("uid").and_then(Value::as_str);
            is_by_prompt &= own.is_none();
            names.push(own.map_or_else(|| row.prompt.clone(), ToOwned::to_owned));
        }
        rows.push(row);
    }
    let mut groups = numbered(names.into_iter());
    if is_by_prompt {
        split_prompts(&mut groups);
    }
    for (row, group) in rows.iter_mut().zip(groups) {
        row.group = group as u64;
    }
    count_members(&mut rows);
    Ok(rows)
}
