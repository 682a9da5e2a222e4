//! The lines between tamis and an external reward program.
//!
//! **To the program**, one JSON object a line:
//!
//! | field | what it holds |
//! |---|---|
//! | `id` | number to answer with; unique while the program runs |
//! | `remaining` | how many more lines of the same call follow: a program that scores in batches collects until it is 0 |
//! | `prompt_id` | stable number of the prompt in its dataset |
//! | `prompt` | text, or a list of messages `{"role", "content", ...}` with all fields that the row gives them; never truncated |
//! | `completion` | the completion's text |
//! | `messages` | the completion as a list of messages where the prompt is a conversation, otherwise `null` |
//! | `completion_ids` | its token ids, end token included |
//! | `ground_truth` | text or `null` |
//! | `data_source` | text, empty where the row has none |
//! | `columns` | object with every column of the dataset row |
//! | `step` | training step from 1 (0 before training) |
//! | `epoch` | pass over the data from 0 |
//! | `trainer_state` | object with `global_step` (steps trained so far), `max_steps`, `num_train_epochs`, `num_input_tokens_seen`, `train_batch_size` |
//!
//! **From the program**, one JSON object a line for each, in any order:
//!
//! | field | what it holds |
//! |---|---|
//! | `id` | the number of the request |
//! | `score` | a number, a boolean, text that is a number, or `null` for no answer |
//! | `scores` | instead of or beside `score`: an object of named numbers, e.g. `{"score": 0.5, "acc": 1, "format": 0}`; a `null` in it leaves that name out, and an empty name is refused |
//! | `per_token` | optional: object from name to one number for each completion token; without a number of that name, that is their sum |
//! | `per_turn` | optional: the same for each turn |
//! | `error` | text instead of scores: the function failed on this completion |
//! | `log_extra` | optional: object from column to a value, kept beside the completion in the rollout files as text |
//! | `log_metric` | optional: object from name to a number or a list of them, of which the step's metrics get the mean |
//!
//! Other fields are ignored. `NaN` counts as `null`. A number that is not finite (`Infinity`, or `1e999`,
//! which no double holds) is a failure of the function on this completion: it stays without this function's
//! scores, and a warning shows its row. So is every other field with a wrong type, and a `per_token` or
//! `per_turn` whose sum is not the score of that name (by more than 1e-6 of it). The process is killed only
//! for a line that belongs to no completion (no JSON object, or no `id` of an open request).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::figure::shortest;
use tamis_core::group::Score;
use tamis_core::printable::one_line;
use tamis_data::prompt::{Message, Prompt, PromptContent};

use crate::reward::failure::RewardFailure;
use crate::reward::function::{Logged, RewardInput, RewardOutcome, Scores, TrainerState};

/// Characters of a bad line that an error shows.
const EXCERPT_CHARS: usize = 120;

#[derive(Serialize)]
struct Line<'a> {
    id: u64,
    remaining: usize,
    prompt_id: u64,
    prompt: PromptField<'a>,
    completion: &'a str,
    messages: Option<Vec<Message>>,
    completion_ids: &'a [u32],
    ground_truth: Option<&'a str>,
    data_source: &'a str,
    columns: &'a Map<String, Value>,
    step: u64,
    epoch: u64,
    trainer_state: TrainerState,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<usize>,
}

/// Text or a list, as the field is documented.
struct PromptField<'a>(&'a PromptContent);

impl Serialize for PromptField<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            PromptContent::Text(text) => serializer.serialize_str(text),
            PromptContent::Messages(messages) => messages.serialize(serializer),
        }
    }
}

/// The request line of an input, with its line break. `function` is the number of a function in the shipped
/// program for Python files, which answers for all functions of a file.
pub fn request(id: u64, remaining: usize, function: Option<usize>, input: &RewardInput<'_>) -> Vec<u8> {
    let messages = match (&input.prompt.content, input.messages) {
        (_, Some(messages)) => Some(messages.to_vec()),
        (PromptContent::Messages(_), None) => Some(vec![Message::new("assistant", input.completion)]),
        (PromptContent::Text(_), None) => None,
    };
    let line = Line {
        id,
        remaining,
        prompt_id: input.prompt.id.0,
        prompt: PromptField(&input.prompt.content),
        completion: input.completion,
        messages,
        completion_ids: input.completion_ids,
        ground_truth: input.prompt.ground_truth.as_deref(),
        data_source: &input.prompt.data_source,
        columns: &input.prompt.columns,
        step: input.step,
        epoch: input.epoch,
        trainer_state: input.trainer_state,
        function,
    };
    // Text, numbers and JSON values always serialize; an empty line would be answered as garbage by the
    // program.
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// A program's answer for one completion.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Scores of the completion, or the reason why there are none.
    pub outcome: RewardOutcome,
    /// Extra values that the program logged beside them.
    pub logged: Logged,
}

/// What is known about the rows that a function will see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KnownRows<'a> {
    /// Their columns; `None` if there are no rows yet.
    pub columns: Option<BTreeSet<&'a str>>,
    /// Those that hold the ground truth.
    pub gold: BTreeSet<&'a str>,
}

impl<'a> KnownRows<'a> {
    /// Of prompts.
    pub fn of(prompts: impl Iterator<Item = &'a Prompt>) -> Self {
        let (mut columns, mut gold) = (BTreeSet::new(), None::<BTreeSet<&str>>);
        let mut has_rows = false;
        for prompt in prompts {
            has_rows = true;
            columns.extend(prompt.columns.keys().map(String::as_str));
            let Some(truth) = prompt.ground_truth.as_deref() else { continue };
            let is_truth = |value: &Value| {
                let text = value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed);
                text == truth
            };
            if let Some(gold) = &mut gold {
                gold.retain(|&name| prompt.columns.get(name).is_some_and(is_truth));
            } else {
                let holds = prompt.columns.iter().filter(|(_, value)| is_truth(value));
                gold = Some(holds.map(|(name, _)| name.as_str()).collect());
            }
        }
        Self { columns: has_rows.then_some(columns), gold: gold.unwrap_or_default() }
    }
}

/// The line that names a function to the shipped program for Python files, with its line break.
pub(super) fn name_function(
    id: usize,
    name: &str,
    style: Option<&str>,
    kwargs: &Map<String, Value>,
) -> Vec<u8> {
    let function = serde_json::json!({"id": id, "name": name, "kind": style, "kwargs": kwargs});
    line_of(&serde_json::json!({ "function": function }))
}

/// The request for a Python function's introduction, with its line break.
pub(super) fn introduce(rows: &KnownRows<'_>, function: Option<usize>) -> Vec<u8> {
    line_of(&serde_json::json!({"introduce": rows, "function": function}))
}

fn line_of(json: &Value) -> Vec<u8> {
    let mut line = json.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// The answer to a request for an introduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Introduced {
    /// The function's description of itself.
    Function(FunctionIntroduction),
    /// The file has no such function.
    Missing(String),
}

/// A Python function's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FunctionIntroduction {
    /// The style that it is called in.
    pub style: String,
    /// The styles that its parameters fit.
    pub fits: Vec<String>,
    /// Name and parameters of the function.
    pub signature: String,
    /// Why it cannot be called in that style.
    pub problem: Option<String>,
    /// Whether it takes the ground truth, or a column that holds it; `None` if that is unknown.
    #[serde(default)]
    pub reads_gold: Option<bool>,
    /// Whether its code uses what it takes of the ground truth; `None` if that is unknown.
    #[serde(default)]
    pub uses_gold: Option<bool>,
}

pub(super) fn introduction(line: &str) -> Result<Introduced, RewardFailure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Answer {
        Introduction(FunctionIntroduction),
        Missing(String),
    }
    let garbage = |error: serde_json::Error| {
        let reason = format!("it should introduce its function ({error})");
        RewardFailure::garbage(&excerpt(line), &reason)
    };
    Ok(match serde_json::from_str(line).map_err(garbage)? {
        Answer::Introduction(introduction) => Introduced::Function(introduction),
        Answer::Missing(message) => Introduced::Missing(message),
    })
}

/// The id and content of an answer line.
///
/// # Errors
/// The line does not identify its request.
pub fn answer(line: &str) -> Result<(u64, Reply), RewardFailure> {
    let garbage = |reason: &str| RewardFailure::garbage(&excerpt(line), reason);
    let value: Value = match serde_json::from_str(line) {
        Ok(value) => value,
        Err(error) => match serde_json::from_str(&repair(line)) {
            Ok(value) => value,
            Err(_) => return Err(garbage(&format!("not JSON ({error})"))),
        },
    };
    let Value::Object(answer) = value else { return Err(garbage("not an object")) };
    let Some(id) = answer.get("id").and_then(Value::as_u64) else {
        return Err(garbage("no `id`"));
    };
    let unusable = |reason: String| {
        RewardFailure::from(fault!("its answer is not usable: {reason}; it answered `{}`", excerpt(line)))
    };
    let read = outcome(&answer).and_then(|outcome| Ok(Reply { outcome, logged: read_logged(&answer)? }));
    let failed = |failure| Reply { outcome: RewardOutcome::Failed(failure), logged: Logged::default() };
    Ok((
        id,
        read.unwrap_or_else(|problem| match problem {
            Problem::Infinite(name, value) => failed(RewardFailure::not_finite(&name, &value)),
            Problem::Shape(reason) => failed(unusable(reason)),
        }),
    ))
}

fn outcome(answer: &Map<String, Value>) -> Result<RewardOutcome, Problem> {
    match answer.get("error") {
        None | Some(Value::Null) => {}
        Some(Value::String(message)) => {
            return Ok(RewardOutcome::Failed(RewardFailure::Function { message: message.clone() }));
        }
        Some(_) => return Err(Problem::Shape("`error` is not text".to_owned())),
    }
    match scores(answer)? {
        Some(scores) if scores.contains_key("score") => Ok(RewardOutcome::Scored(scores)),
        Some(_) => Ok(RewardOutcome::NoAnswer),
        None => Err(Problem::Shape(
            "it has neither `score`, `scores`, `per_token`, `per_turn` nor `error`".to_owned(),
        )),
    }
}

/// Reads the extra values beside the scores; `null` is no value.
fn read_logged(answer: &Map<String, Value>) -> Result<Logged, Problem> {
    let object = |field: &str| match answer.get(field) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(values)) => Ok(values.clone()),
        Some(_) => Err(Problem::Shape(format!("`{field}` is not an object"))),
    };
    let mut logged = Logged::default();
    for (column, value) in object("log_extra")? {
        check_name("log_extra", &column)?;
        match value {
            Value::Null => {}
            Value::String(text) => drop(logged.columns.insert(column, text)),
            value => drop(logged.columns.insert(column, value.to_string())),
        }
    }
    for (name, value) in object("log_metric")? {
        check_name("log_metric", &name)?;
        let values = if let Value::Array(values) = value { values } else { vec![value] };
        for value in values {
            if let Some(value) = number(&name, &value)? {
                logged.metrics.entry(name.clone()).or_default().push(value);
            }
        }
    }
    Ok(logged)
}

enum Problem {
    Infinite(String, String),
    Shape(String),
}

fn number(name: &str, value: &Value) -> Result<Option<f64>, Problem> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(f64::from(u8::from(*flag)))),
        Value::Number(number) => Ok(number.as_f64()),
        Value::String(text) => match text.trim().parse::<f64>() {
            Ok(value) if value.is_infinite() => Err(Problem::Infinite(name.to_owned(), excerpt(text))),
            Ok(value) => Ok(Some(value).filter(|value| !value.is_nan())),
            Err(_) => Err(Problem::Shape(format!("`{name}` is not a number"))),
        },
        _ => Err(Problem::Shape(format!("`{name}` is not a number"))),
    }
}

/// The named scores, if any field holds some. Names whose value is `null` are left out.
fn scores(answer: &Map<String, Value>) -> Result<Option<Scores>, Problem> {
    let mut is_answer = false;
    let mut scores = Scores::new();
    if let Some(value) = answer.get("scores") {
        is_answer = true;
        match value {
            Value::Null => {}
            Value::Object(values) => {
                for (name, value) in values {
                    check_name("scores", name)?;
                    if let Some(value) = number(name, value)? {
                        scores.insert(name.clone(), Score::of(value));
                    }
                }
            }
            _ => return Err(Problem::Shape("`scores` is not an object".to_owned())),
        }
    }
    if let Some(value) = answer.get("score") {
        is_answer = true;
        match number("score", value)? {
            Some(value) => {
                scores.insert("score".to_owned(), Score::of(value));
            }
            // `score: null` means that there is no answer, whatever else is named.
            None if !answer.contains_key("scores") => {}
            None => {
                scores.remove("score");
            }
        }
    }
    for (field, is_token) in [("per_token", true), ("per_turn", false)] {
        match answer.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::Object(values)) => {
                is_answer = true;
                for (name, parts) in parts(field, values)? {
                    let sum: f64 = parts.iter().sum();
                    if !sum.is_finite() {
                        return Err(Problem::Infinite(name, format!("{field} that sum to {sum}")));
                    }
                    let score = scores.entry(name.clone()).or_insert_with(|| Score::of(sum));
                    if (score.value - sum).abs() > 1e-6 * score.value.abs().max(1.0) {
                        let value = score.value;
                        return Err(Problem::Shape(format!(
                            "`{field}` of `{name}` sums to {}, not to its value {}",
                            shortest(sum),
                            shortest(value)
                        )));
                    }
                    *(if is_token { &mut score.per_token } else { &mut score.per_turn }) = Some(parts);
                }
            }
            Some(_) => return Err(Problem::Shape(format!("`{field}` is not an object"))),
        }
    }
    Ok(is_answer.then_some(scores))
}

/// Refuses a score or a column without a name: no metric, weight or filter could name it.
fn check_name(field: &str, name: &str) -> Result<(), Problem> {
    if name.trim().is_empty() {
        let what = if field == "log_extra" { "a column" } else { "a score" };
        return Err(Problem::Shape(format!("`{field}` holds {what} without a name (`\"{name}\"`)")));
    }
    Ok(())
}

fn parts(field: &str, values: &Map<String, Value>) -> Result<BTreeMap<String, Vec<f64>>, Problem> {
    let mut all = BTreeMap::new();
    for (name, list) in values {
        check_name(field, name)?;
        let Value::Array(list) = list else {
            return Err(Problem::Shape(format!("`{field}` of `{name}` is not a list")));
        };
        let mut numbers = Vec::with_capacity(list.len());
        for value in list {
            match number(name, value)? {
                Some(value) => numbers.push(value),
                None => return Err(Problem::Shape(format!("`{field}` of `{name}` holds a null"))),
            }
        }
        all.insert(name.clone(), numbers);
    }
    Ok(all)
}

/// Turns into JSON a line that Python's `json.dumps` wrote and JSON does not allow. Outside strings: `NaN`,
/// `Infinity` and `-Infinity` as bare words, and numbers too large for a double, which become `null` and
/// text. In strings: half a surrogate pair, which becomes the replacement character.
fn repair(line: &str) -> String {
    let mut out = String::with_capacity(line.len() + 8);
    let mut rest = line;
    let mut in_string = false;
    while let Some(letter) = rest.chars().next() {
        if in_string {
            let length = if letter == '\\' {
                rest.chars().take(2).map(char::len_utf8).sum()
            } else {
                letter.len_utf8()
            };
            in_string = letter != '"';
            let (text, length) = match surrogate(rest) {
                Some(0xD800..=0xDBFF) => match rest.get(6..).and_then(surrogate) {
                    Some(0xDC00..=0xDFFF) => (&rest[..12], 12),
                    _ => ("\u{fffd}", 6),
                },
                Some(_) => ("\u{fffd}", 6),
                None => (&rest[..length], length),
            };
            out.push_str(text);
            rest = &rest[length..];
            continue;
        }
        let word = [("NaN", "null"), ("-Infinity", "\"-Infinity\""), ("Infinity", "\"Infinity\"")];
        if let Some((word, replacement)) = word.into_iter().find(|(word, _)| rest.starts_with(word)) {
            out.push_str(replacement);
            rest = &rest[word.len()..];
        } else if letter == '-' || letter.is_ascii_digit() {
            let is_part = |letter: char| letter.is_ascii_digit() || "+-.eE".contains(letter);
            let (number, after) = rest.split_at(rest.find(|letter| !is_part(letter)).unwrap_or(rest.len()));
            if number.parse().is_ok_and(f64::is_infinite) {
                out.push('"');
                out.push_str(number);
                out.push('"');
            } else {
                out.push_str(number);
            }
            rest = after;
        } else {
            in_string = letter == '"';
            out.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    out
}

/// The surrogate of an escape at the beginning of a text.
fn surrogate(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let code = u32::from_str_radix(digits, 16).ok()?;
    (0xD800..=0xDFFF).contains(&code).then_some(code)
}

fn excerpt(line: &str) -> String {
    let cut: String = line.chars().take(EXCERPT_CHARS).collect();
    let mut shortened = one_line(&cut);
    if line.chars().nth(EXCERPT_CHARS).is_some() {
        shortened.push('…');
    }
    shortened
}
