//! The lines between tamis and an external reward program.
//!
//! **To the program**, one JSON object a line:
//!
//! | field | what it holds |
//! |---|---|
//! | `id` | number to answer with; unique while the program runs |
//! | `remaining` | how many more lines of the same call follow: a program that scores in batches collects until it is 0 |
//! | `prompt_id` | stable number of the prompt in its dataset |
//! | `prompt` | text, or a list of `{"role", "content"}`; never truncated |
//! | `completion` | the completion's text |
//! | `messages` | the completion as a list of messages where the prompt is a conversation, else `null` |
//! | `completion_ids` | its token ids, end token included |
//! | `ground_truth` | text or `null` |
//! | `data_source` | text, empty where the row has none |
//! | `columns` | object with every column of the dataset row |
//! | `step` | training step from 1 (0 before training) |
//! | `epoch` | pass over the data from 0 |
//!
//! **From the program**, one JSON object a line for each, in any order:
//!
//! | field | what it holds |
//! |---|---|
//! | `id` | the number of the request |
//! | `score` | a number, a boolean, or `null` for no answer |
//! | `scores` | instead of or beside `score`: an object of named numbers, e.g. `{"score": 0.5, "acc": 1, "format": 0}`; a `null` in it leaves that name out, and an empty name is refused |
//! | `per_token` | optional: object from name to one number for each completion token; without a number of that name, that is their sum |
//! | `per_turn` | optional: the same for each turn |
//! | `error` | text instead of scores: the function failed on this completion |
//!
//! Other fields are ignored. `NaN` counts as `null`. A number that is not finite (`Infinity`, or `1e999`, which no double holds) is a failure of
//! the function on this completion: it stays without this function's scores, and a warning shows its row.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use tamis_core::figure::shortest;
use tamis_core::group::Score;
use tamis_core::printable::one_line;
use tamis_data::prompt::{Message, PromptContent};

use crate::reward::{Outcome, RewardFailure, RewardInput, Scores};

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

/// The request line of an input, with its line break.
pub fn request(id: u64, remaining: usize, input: &RewardInput<'_>) -> Vec<u8> {
    let messages = match (&input.prompt.content, input.messages) {
        (_, Some(messages)) => Some(messages.to_vec()),
        (PromptContent::Messages(_), None) => {
            Some(vec![Message { role: "assistant".to_owned(), content: input.completion.to_owned() }])
        }
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
    };
    // Text, numbers and JSON values always serialize; an empty line would be answered as garbage by the program.
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// The id and outcome of an answer line.
pub fn answer(line: &str) -> Result<(u64, Outcome), RewardFailure> {
    let garbage = |reason: String| RewardFailure::Garbage { line: excerpt(line), reason };
    let value: Value = match serde_json::from_str(line) {
        Ok(value) => value,
        Err(error) => match serde_json::from_str(&without_infinities(line)) {
            Ok(value) => value,
            Err(_) => return Err(garbage(format!("not JSON ({error})"))),
        },
    };
    let Value::Object(answer) = value else { return Err(garbage("not an object".to_owned())) };
    let Some(id) = answer.get("id").and_then(Value::as_u64) else {
        return Err(garbage("no `id`".to_owned()));
    };
    match answer.get("error") {
        None | Some(Value::Null) => {}
        Some(Value::String(message)) => {
            let failure = RewardFailure::Function { message: message.clone() };
            return Ok((id, Outcome::Failed(failure)));
        }
        Some(_) => return Err(garbage("`error` is not text".to_owned())),
    }
    match scores(&answer) {
        Ok(Some(scores)) if scores.contains_key("score") => Ok((id, Outcome::Scored(scores))),
        Ok(Some(scores)) if scores.is_empty() => Ok((id, Outcome::NoAnswer)),
        Ok(Some(_)) => Ok((id, Outcome::NoAnswer)),
        Ok(None) => Err(garbage("neither `score`, `scores`, `per_token`, `per_turn` nor `error`".to_owned())),
        Err(Problem::Infinite(name, value)) => {
            Ok((id, Outcome::Failed(RewardFailure::NotFinite { name, value })))
        }
        Err(Problem::Shape(reason)) => Err(garbage(reason)),
    }
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
        Value::String(text) if text.parse().is_ok_and(f64::is_infinite) => {
            Err(Problem::Infinite(name.to_owned(), excerpt(text)))
        }
        _ => Err(Problem::Shape(format!("`{name}` is not a number"))),
    }
}

/// The named scores, where any field holds some; names whose value is `null` are left out.
fn scores(answer: &Map<String, Value>) -> Result<Option<Scores>, Problem> {
    let mut is_answer = false;
    let mut scores = Scores::new();
    if let Some(value) = answer.get("scores") {
        is_answer = true;
        match value {
            Value::Null => {}
            Value::Object(values) => {
                for (name, value) in values {
                    named("scores", name)?;
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
            // `score: null` says that there is no answer, whatever else is named.
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

/// Refuses a score without a name: no metric, weight or filter could ask for it.
fn named(field: &str, name: &str) -> Result<(), Problem> {
    if name.trim().is_empty() {
        return Err(Problem::Shape(format!("`{field}` holds a score without a name (`\"{name}\"`)")));
    }
    Ok(())
}

fn parts(field: &str, values: &Map<String, Value>) -> Result<BTreeMap<String, Vec<f64>>, Problem> {
    let mut all = BTreeMap::new();
    for (name, list) in values {
        named(field, name)?;
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

/// Python's `json.dumps` writes `NaN`, `Infinity` and `-Infinity` as bare words, and a number may be too large for a double: outside strings
/// they become `null` and text.
fn without_infinities(line: &str) -> String {
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
            out.push_str(&rest[..length]);
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

fn excerpt(line: &str) -> String {
    let cut: String = line.chars().take(EXCERPT_CHARS).collect();
    let mut shortened = one_line(&cut);
    if line.chars().nth(EXCERPT_CHARS).is_some() {
        shortened.push('…');
    }
    shortened
}
