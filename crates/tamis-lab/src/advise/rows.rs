//! Reads rows of rollout files of any program as members of groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use crate::Fault;
use crate::filter::{GroupLayout, Repeats, split_prompts};
use crate::report::StepRange;
use serde_json::{Map, Value};
use tamis_core::fault::chain;
use tamis_data::columns::ColumnFile;
use tamis_data::records::{FileColumn, FileFormat, RecordError, Records, lookup};

use super::evidence::{EvidenceGroup, Groups, Member, Numbers, RewardScale};
use super::gold::shows_gold;
use super::keep_rate::OutcomeCounts;

/// Columns that are read row by row besides those below and besides numbers.
const OTHERS: [&str; 4] = ["verdict", "metric", "turn_texts", "finish_reason"];
/// Verdict of a group that ended with its first members.
const SCREENED: &str = "screened";
/// Texts that identify the prompt if nothing else identifies the group.
const TEXTS: [&str; 4] = ["prompt", "input", "question", "problem"];
const COMPLETIONS: [&str; 4] = ["completion", "output", "response", "text"];
const LISTS_OF_COMPLETIONS: [&str; 3] = ["completions", "outputs", "responses"];
const TRUTHS: [&str; 6] = ["ground_truth", "gts", "reward_model.ground_truth", "answer", "gold", "solution"];
const LENGTHS: [&str; 4] = ["num_tokens", "response_length", "completion_length", "length"];
/// Numbers that are not scores, unless the user names one as the outcome.
const NO_SCORES: [&str; 25] = [
    "step",
    "global_step",
    "round",
    "group_id",
    "prompt_id",
    "epoch",
    "sample_index",
    "inclusion",
    "advantage",
    "version_min",
    "version_max",
    "num_tokens",
    "response_length",
    "completion_length",
    "prompt_length",
    "length",
    "uid",
    "group",
    "id",
    "index",
    "idx",
    "rank",
    "seed",
    "metric_value",
    "timestamp",
];
/// Names of an outcome, best first. A number with one of these names decides what is correct.
pub(super) const OUTCOMES: [&str; 6] = ["acc", "accuracy", "success", "score", "metric_value", "reward"];
/// If fewer than one in this many screened groups have a size, these groups lost rows.
const FEW: u64 = 100;
/// If this many groups or more all differ within, the other groups were probably left out.
const ALL_MIXED: usize = 20;
/// Words of a prompt that are shown, and characters of them.
const FIRST_WORDS: usize = 8;
const MOST_CHARACTERS: usize = 60;
/// Rows of a file whose tokens are counted.
const COUNTED_ROWS: usize = 4096;

/// Reads files in order.
#[derive(Debug, Default)]
pub(super) struct Reader<'a> {
    wanted: Outcome<'a>,
    groups: Groups,
    places: Numbers,
    prompts: Numbers,
    scores: HashMap<String, usize>,
    /// The group of each row that only its prompt's text identifies, in the order of rows.
    by_text: Vec<usize>,
    /// Groups cut off from prompts that are repeated in a file.
    cut: Vec<EvidenceGroup>,
    has_verdicts: bool,
    has_dropped: bool,
    named_metric: Option<String>,
    /// Message of the first row that cannot be read.
    first_fault: Option<String>,
}

/// Which number is a row's outcome.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome<'a> {
    /// The one with this name.
    Named(&'a str),
    /// The best one available. The hint is for the error if there is none.
    Best { hint: &'static str },
}

impl Default for Outcome<'_> {
    fn default() -> Self {
        Self::Best { hint: "" }
    }
}

impl Outcome<'_> {
    fn is_named(self, column: &str) -> bool {
        matches!(self, Self::Named(name) if name.strip_prefix("scores.").unwrap_or(name) == column)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(wanted: Outcome<'a>) -> Self {
        Self { wanted, ..Self::default() }
    }

    pub(super) fn num_groups(&self) -> usize {
        self.groups.groups.len()
    }

    /// Notes a file that was left out because its step was not requested.
    pub(super) fn leave_out(&mut self, step: u64) {
        self.groups.leave_out(step);
    }

    /// The error if no group was read.
    pub(super) fn nothing(self, path: &Path) -> Fault {
        let Groups { num_unread, num_without_step, other_steps, .. } = self.groups;
        match (other_steps, num_without_step, num_unread) {
            (Some(steps), ..) => not_of_steps(path, steps),
            (None, 1.., _) => Fault::usage(format!("{}: no row has a step", path.display()))
                .with_hint("leave --steps out, or give rows a `step`; in a folder, the last number of a file's name is its step"),
            (None, 0, 1..) => {
                let path = path.display();
                let message = format!("{path}: none of its {num_unread} rows has a group");
                Fault::failed(message).with_hint(match self.first_fault {
                    Some(fault) => format!("the first that cannot be read: {fault}"),
                    None => "a group is read from `group_id`, `uid`, `group`, `prompt_id`, or from the text of `prompt` or `input`".to_owned(),
                })
            }
            (None, 0, 0) => Fault::failed(format!("{}: it has no group", path.display())).with_hint(
                "let the run finish a step, or name another file; a run writes rollouts unless `rollout.save` is `off`",
            ),
        }
    }

    /// Reads one file. Rows without a step belong to the file's step. If steps are requested, rows of no step
    /// are left out.
    pub(super) fn read(
        &mut self,
        file: &Path,
        number: usize,
        step_of_file: Option<u64>,
        range: Option<StepRange>,
    ) -> Result<(), Fault> {
        let mut tokens = token_counts(file)?;
        for (row, record) in (0..).zip(Records::open_with(file, is_wanted)?) {
            let values = match record {
                Ok(record) => record.values,
                Err(error @ RecordError::Row { .. }) => {
                    self.groups.num_unread += 1;
                    self.first_fault.get_or_insert_with(|| chain(&error));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let step = values.get("step").and_then(Value::as_u64).or(step_of_file);
            match (range, step) {
                (Some(range), Some(step)) if !range.contains(step) => {
                    self.groups.leave_out(step);
                    continue;
                }
                (Some(_), None) => {
                    self.groups.num_without_step += 1;
                    continue;
                }
                _ => {}
            }
            let begins = || format!("{}:{}", file.file_name().unwrap_or(file.as_os_str()).display(), row + 1);
            self.take(&values, number, step, tokens.remove(&row), &begins);
        }
        self.cut_repeated();
        Ok(())
    }

    /// Cuts groups of prompts that are repeated in the file, as `tamis filter` does.
    fn cut_repeated(&mut self) {
        let places = std::mem::take(&mut self.by_text);
        // Other differences between sizes are reported by other findings.
        let Repeats::Cut { size, num_prompts } = split_prompts(&mut places.clone()) else { return };
        self.groups.num_repeated += num_prompts;
        for place in places.into_iter().collect::<BTreeSet<_>>() {
            let Some(group) = self.groups.groups.get_mut(place) else { continue };
            let rest = group.members.split_off(size.min(group.members.len()));
            let like = EvidenceGroup { members: Vec::new(), ..group.clone() };
            let cut =
                rest.chunks(size).map(|members| EvidenceGroup { members: members.to_vec(), ..like.clone() });
            self.cut.extend(cut);
        }
    }

    /// Reads a row. `begins` returns its place.
    fn take(
        &mut self,
        row: &Map<String, Value>,
        file: usize,
        step: Option<u64>,
        tokens: Option<u64>,
        begins: &dyn Fn() -> String,
    ) {
        let verdict = row.get("verdict").and_then(Value::as_str);
        let is_screened = verdict == Some(SCREENED);
        if let Some(verdict) = verdict {
            // A run without a filter drops nothing.
            let metric = row.get("metric").and_then(Value::as_str);
            self.has_verdicts |= metric.is_some_and(|metric| !metric.is_empty());
            // An aborted or failed group shows nothing about its prompt.
            if ["aborted", "failed"].contains(&verdict) {
                return;
            }
            self.has_dropped |= ["all_correct", "all_wrong", "uniform", SCREENED].contains(&verdict);
        }
        if self.named_metric.is_none() {
            let metric = row.get("metric").and_then(Value::as_str).filter(|metric| !metric.is_empty());
            self.named_metric = metric.map(ToOwned::to_owned);
        }
        if let Some(step) = step {
            let (first, last) = self.groups.steps.unwrap_or((step, step));
            self.groups.steps = Some((first.min(step), last.max(step)));
        }
        self.groups.has_turns |=
            row.get("turn_texts").and_then(Value::as_array).is_some_and(|turns| turns.len() > 1);
        let members = self.members(row, tokens);
        let prompt = key_of(row, &["prompt_id"]).or_else(|| text_key(row));
        let by_column = key_of(row, &GroupLayout::GROUP_COLUMNS);
        let is_by_text = by_column.is_none();
        let named = by_column.or_else(|| text_key(row));
        let is_whole = members.len() > 1 || lists_values(row);
        let Some(id) = named.or_else(|| is_whole.then(|| format!("row {}", self.num_groups() + 1))) else {
            self.groups.num_unread += 1;
            return;
        };
        let in_file = format!("{file}/{}/{id}", step.map_or_else(String::new, |step| step.to_string()));
        // Another step may reuse group numbers, so only the prompt's own id or text identifies it across
        // steps.
        let prompt = prompt.unwrap_or_else(|| in_file.clone());
        // A row that holds a whole group is a group of its own, whatever its name.
        let key = if is_whole { format!("{in_file}/{}", self.num_groups()) } else { in_file };
        let (place, is_new) = self.places.of(key);
        if is_new {
            let (prompt, _) = self.prompts.of(prompt);
            // A hash of the text would not help the reader.
            let id = if is_by_text {
                begins() + &first_words(row).map_or_else(String::new, |words| format!(" \"{words}\""))
            } else {
                // Steps may reuse group numbers.
                step.map_or_else(String::new, |step| format!("step {step} ")) + &format!("group {id}")
            };
            self.groups.groups.push(EvidenceGroup { id, prompt, ..EvidenceGroup::default() });
        }
        if is_by_text && !is_whole {
            self.by_text.push(place);
        }
        if let Some(group) = self.groups.groups.get_mut(place) {
            group.is_screened |= is_screened;
            let inclusion = row.get("inclusion").and_then(Value::as_f64);
            group.inclusion = group.inclusion.or(inclusion.filter(|q| *q > 0.0 && *q <= 1.0));
            group.members.extend(members);
        }
    }

    /// The member of a row, or all members if the row holds a whole group.
    fn members(&mut self, row: &Map<String, Value>, tokens: Option<u64>) -> Vec<Member> {
        let mut scores: Vec<(usize, &Value)> = Vec::new();
        let mut num_members = 1;
        for (name, value) in row {
            let is_score = match value {
                Value::Number(_) | Value::Bool(_) => {
                    !NO_SCORES.contains(&name.as_str())
                        || name == "metric_value"
                        || self.wanted.is_named(name)
                }
                Value::Array(list) => {
                    let is_one = is_outcome_list(name, list);
                    num_members = if is_one { num_members.max(list.len()) } else { num_members };
                    is_one
                }
                _ => false,
            };
            if is_score {
                let name = name.strip_suffix('s').filter(|_| value.is_array()).unwrap_or(name);
                let next = self.scores.len();
                let place = *self.scores.entry(name.to_owned()).or_insert(next);
                if place == next {
                    self.groups.scores.push(name.to_owned());
                }
                scores.push((place, value));
            }
        }
        let texts = LISTS_OF_COMPLETIONS.iter().find_map(|name| row.get(*name)?.as_array());
        let text = COMPLETIONS.iter().find_map(|name| row.get(*name)?.as_str());
        let truth = TRUTHS.iter().find_map(|name| truth_of(lookup(row, name)?));
        let has_turns = row.get("turn_texts").and_then(Value::as_array).is_some_and(|turns| turns.len() > 1);
        let is_truncated = row
            .get("finish_reason")
            .and_then(Value::as_str)
            .map(|reason| reason == "length" || reason == "abort");
        let lengths = LENGTHS.iter().filter(|name| !self.wanted.is_named(name));
        let tokens = lengths.into_iter().find_map(|name| row.get(*name)?.as_u64()).or(tokens);
        let place = row.get("sample_index").and_then(Value::as_u64);
        (0..num_members)
            .map(|member| {
                let mut of_member = vec![f64::NAN; self.groups.scores.len()];
                for (place, value) in &scores {
                    of_member[*place] = number_of(value, member);
                }
                let text = match texts {
                    Some(texts) => texts.get(member).and_then(Value::as_str),
                    None => text,
                };
                let seen = text.filter(|_| !has_turns).zip(truth.as_deref());
                Member {
                    place,
                    scores: of_member,
                    text: text.map(hash),
                    tokens,
                    is_truncated,
                    shows_gold: seen.map(|(text, truth)| shows_gold(text, truth)),
                }
            })
            .collect()
    }

    /// The groups, with the requested outcome or the best one available.
    pub(super) fn end(mut self) -> Result<Groups, Fault> {
        self.groups.groups.append(&mut self.cut);
        let has_any = |groups: &Groups, place: usize| {
            groups.groups.iter().flat_map(|group| Groups::values(group, place)).any(f64::is_finite)
        };
        let place_of = |name: &str| {
            let name = name.strip_prefix("scores.").unwrap_or(name);
            let name = if name == "seq_reward" && !self.scores.contains_key(name) { "reward" } else { name };
            self.scores.get(name).copied().filter(|place| has_any(&self.groups, *place))
        };
        let named = self.named_metric.clone();
        let outcome = match self.wanted {
            // The metric that the run's filter used has no column of its own.
            Outcome::Named(name) => place_of(name)
                .or_else(|| place_of("metric_value").filter(|_| named.as_deref() == Some(name)))
                .ok_or_else(|| {
                    Fault::usage(format!("no row has a number `{name}`{}", named_scores(&self.groups.scores)))
                        .with_hint("name one of them with --metric")
                })?,
            Outcome::Best { hint } => OUTCOMES.iter().find_map(|name| place_of(name)).ok_or_else(|| {
                let there = named_scores(&self.groups.scores);
                Fault::failed(format!("no row has an outcome{there}")).with_hint(hint)
            })?,
        };
        self.groups.outcome = outcome;
        self.groups.first_members = first_members(&self.groups.groups);
        let differs = |counts: &OutcomeCounts| counts.by_value.len() > 1;
        let counts = self.groups.counts(outcome, None);
        // Without a filter, some of this many groups with two values would be alike.
        let has_two_values = matches!(self.groups.scale(outcome), RewardScale::Binary { .. });
        self.groups.has_kept_alone = !self.has_dropped
            && (self.has_verdicts || has_two_values && counts.len() >= ALL_MIXED)
            && counts.iter().all(differs);
        Ok(self.groups)
    }
}

/// The error if none of the requested steps is in the files.
pub(super) fn not_of_steps(path: &Path, (first, last): (u64, u64)) -> Fault {
    let path = path.display();
    let message = format!("{path}: it has no group of the steps in --steps");
    Fault::usage(message).with_hint(if first == last {
        format!("step {last} is there: ask for it, or leave --steps out")
    } else {
        format!("steps {first} to {last} are there: ask for some of these, or leave --steps out")
    })
}

fn named_scores(there: &[String]) -> String {
    if there.is_empty() {
        return String::new();
    }
    let names: Vec<String> = there.iter().map(|name| format!("`{name}`")).collect();
    format!("; there are {}", names.join(", "))
}

/// Whether a column is needed. Columns such as token ids take long to decode.
fn is_wanted(column: FileColumn<'_>) -> bool {
    let is_list = |outcomes: &[&str]| {
        outcomes.contains(&column.name)
            || outcomes.contains(&column.name.strip_suffix('s').unwrap_or_default())
    };
    let is_named = |columns: &[&str]| columns.contains(&column.name);
    let truths = TRUTHS.iter().filter_map(|path| path.split('.').next());
    column.is_number
        || is_list(&OUTCOMES)
        || [&OTHERS[..], &TEXTS, &COMPLETIONS, &LISTS_OF_COMPLETIONS, &GroupLayout::GROUP_COLUMNS, &LENGTHS]
            .into_iter()
            .any(is_named)
        || truths.chain(["prompt_id"]).any(|name| name == column.name)
}

/// The number of first members of screened groups. If the run changed it, the smallest one.
fn first_members(groups: &[EvidenceGroup]) -> Option<usize> {
    let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
    for group in groups.iter().filter(|group| group.is_screened) {
        *sizes.entry(group.members.len()).or_default() += 1;
    }
    let all: u64 = sizes.values().sum();
    sizes.into_iter().find(|(_, number)| number * FEW >= all).map(|(size, _)| size)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn key_of(row: &Map<String, Value>, columns: &[&str]) -> Option<String> {
    columns.iter().find_map(|column| match row.get(*column)? {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    })
}

/// Identifies a prompt by its text or messages.
fn text_key(row: &Map<String, Value>) -> Option<String> {
    TEXTS.iter().find_map(|column| match row.get(*column)? {
        Value::String(text) if !text.is_empty() => Some(format!("{:016x}", hash(text))),
        Value::Array(messages) if !messages.is_empty() => {
            Some(format!("{:016x}", hash(&Value::Array(messages.clone()).to_string())))
        }
        _ => None,
    })
}

/// The first words of the user's question: of the last message, or of a text. The text may be rendered from
/// messages (verl's dumps have the roles' names on lines of their own).
fn first_words(row: &Map<String, Value>) -> Option<String> {
    let text = TEXTS.iter().find_map(|column| match row.get(*column)? {
        Value::String(text) if !text.is_empty() => Some(text.as_str()),
        Value::Array(messages) => messages.last()?.get("content")?.as_str(),
        _ => None,
    })?;
    let asked = text.rsplit_once("user\n").map_or(text, |(_, asked)| asked);
    let asked = asked.split_once("\nassistant").map_or(asked, |(asked, _)| asked);
    let mut words = asked.split_whitespace();
    let first: Vec<&str> = words.by_ref().take(FIRST_WORDS).collect();
    let end = if words.next().is_some() { " ..." } else { "" };
    let shown: String = first.join(" ").chars().take(MOST_CHARACTERS).collect();
    (!shown.is_empty()).then(|| shown + end)
}

fn truth_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Whether a list holds the outcomes of a group's members.
fn is_outcome_list(name: &str, list: &[Value]) -> bool {
    let name = name.strip_suffix('s').unwrap_or(name);
    OUTCOMES.contains(&name)
        && !list.is_empty()
        && list.iter().all(|value| value.is_number() || value.is_boolean() || value.is_null())
}

fn lists_values(row: &Map<String, Value>) -> bool {
    row.iter().any(|(name, value)| value.as_array().is_some_and(|list| is_outcome_list(name, list)))
}

fn number_of(value: &Value, member: usize) -> f64 {
    match value {
        Value::Number(number) => number.as_f64().unwrap_or(f64::NAN),
        Value::Bool(is_right) => f64::from(u8::from(*is_right)),
        Value::Array(list) => list.get(member).map_or(f64::NAN, |value| number_of(value, 0)),
        _ => f64::NAN,
    }
}

/// Completion tokens by row, for rows spread evenly over a Parquet file that holds token ids. Empty for other
/// files.
fn token_counts(file: &Path) -> Result<HashMap<u64, u64>, Fault> {
    if FileFormat::of(file)? != FileFormat::Parquet {
        return Ok(HashMap::new());
    }
    let columns = ColumnFile::open(file)?;
    let rows: Vec<usize> =
        (0..columns.num_rows()).step_by(columns.num_rows().div_ceil(COUNTED_ROWS).max(1)).collect();
    let Some(ids) = columns.numbers("token_ids", Some(&rows))? else { return Ok(HashMap::new()) };
    Ok(rows.iter().map(|row| *row as u64).zip(ids.rows().map(|row| row.len() as u64)).collect())
}
