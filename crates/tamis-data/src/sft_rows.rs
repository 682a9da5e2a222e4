//! Rows of files as examples of supervised fine-tuning.
//!
//! Three layouts are recognised row by row, in this order:
//!
//! | layout | columns | learned |
//! |---|---|---|
//! | pair | `prompt`, `question` or `problem`, with `completion`, `response` or `answer` | the completion |
//! | conversation | `messages` | the assistant's turns |
//! | text | `text` | all of it |
//!
//! Prompt and completion are texts or lists of messages. [`SftColumns`] sets other names. The columns `tools`
//! and `chat_template_kwargs` go to the chat template, as those of prompts do.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::group::PromptId;

use crate::data_record::kind;
use crate::dataset::{
    BadRows, DatasetError, PROMPT_COLUMNS, PromptFault, names, none_in, number_text, to_content,
};
use crate::image::IMAGE_COLUMNS;
use crate::prompt::{Message, Prompt, PromptContent};
use crate::records::{DataRecord, RecordError, Records, RowPlace, lookup};

/// Columns that may hold the completion if none is configured, in this order.
pub const COMPLETION_COLUMNS: [&str; 3] = ["completion", "response", "answer"];
/// Column of a whole conversation if none is configured.
pub const MESSAGES_COLUMN: &str = "messages";
/// Column of a plain text.
pub const TEXT_COLUMN: &str = "text";

/// Names of the columns. `None`: as the module describes. Names may be dotted paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SftColumns {
    /// The prompt.
    pub prompt: Option<String>,
    /// The completion.
    pub completion: Option<String>,
    /// A whole conversation.
    pub messages: Option<String>,
}

/// The part of a row that is learned.
#[derive(Debug, Clone, PartialEq)]
pub enum SftTarget {
    /// The completion of the prompt.
    Completion(PromptContent),
    /// The assistant's turns of the conversation.
    Turns,
    /// The whole text.
    Text,
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct SftRow {
    /// Location of the row.
    pub place: RowPlace,
    /// The prompt of a pair, the conversation or the text, with the row's columns.
    pub prompt: Prompt,
    /// Whether a prompt in text is a question (any column except `prompt`), which becomes a user's message.
    pub is_question: bool,
    /// The part that is learned.
    pub target: SftTarget,
}

/// Rows in the order of files.
#[derive(Debug, Default)]
pub struct SftRows {
    /// The rows.
    pub rows: Vec<SftRow>,
    /// Rows left out as broken, each with its place and reason.
    pub skipped: Vec<DatasetError>,
}

impl SftRows {
    /// Reads files one after another.
    ///
    /// # Errors
    /// A file that cannot be read or has no rows, and with [`BadRows::Error`] the first row that is no
    /// example.
    pub fn read(files: &[PathBuf], columns: &SftColumns, bad_rows: BadRows) -> Result<Self, DatasetError> {
        let mut all = Self::default();
        for file in files {
            all.read_file(file, columns, bad_rows)?;
        }
        if all.rows.is_empty() {
            return Err(none_in("rows", files, all.skipped.len()).into());
        }
        Ok(all)
    }

    fn read_file(
        &mut self,
        file: &Path,
        columns: &SftColumns,
        bad_rows: BadRows,
    ) -> Result<(), DatasetError> {
        for record in Records::open(file)? {
            let id = PromptId((self.rows.len() + self.skipped.len()) as u64);
            let row = match record {
                Ok(record) => {
                    let place = record.place.clone();
                    to_row(id, record, columns).map_err(|fault| DatasetError::Row { place, fault })
                }
                Err(RecordError::Row { place, fault }) => {
                    Err(DatasetError::Row { place, fault: fault.into() })
                }
                Err(error) => return Err(error.into()),
            };
            match row {
                Ok(row) => self.rows.push(row),
                Err(error) if bad_rows == BadRows::Error => return Err(error),
                Err(error) => self.skipped.push(error),
            }
        }
        Ok(())
    }
}

type Found<'r> = Option<(&'r str, &'r Value)>;

/// The configured column, which every row must have, or the first of the usual ones that is there.
fn find<'r>(
    row: &'r Map<String, Value>,
    option: &'static str,
    configured: Option<&'r String>,
    usual: &[&'static str],
) -> Result<Found<'r>, PromptFault> {
    match configured {
        Some(column) => match lookup(row, column) {
            Some(value) => Ok(Some((column, value))),
            None => Err(fault!(
                "there is no column `{column}`, which sft.columns.{option} names; the row has {columns}",
                columns = names(row)
            )
            .into()),
        },
        None => {
            Ok(usual.iter().find_map(|&name| Some((name, row.get(name).filter(|value| !value.is_null())?))))
        }
    }
}

fn to_row(id: PromptId, record: DataRecord, columns: &SftColumns) -> Result<SftRow, PromptFault> {
    let row = &record.values;
    if let Some(name) = IMAGE_COLUMNS.iter().find(|&&name| {
        row.get(name)
            .is_some_and(|value| !value.is_null() && value.as_array().is_none_or(|images| !images.is_empty()))
    }) {
        return Err(fault!(
            "the column `{name}` has images, and supervised fine-tuning is on texts only; take it out"
        )
        .into());
    }
    let is_wanted = |names: [&Option<String>; 2]| names.iter().any(|name| name.is_some());
    let messages = if is_wanted([&columns.prompt, &columns.completion]) {
        None
    } else {
        find(row, "messages", columns.messages.as_ref(), &[MESSAGES_COLUMN])?
    };
    let pair = if columns.messages.is_some() {
        None
    } else {
        let prompt = find(row, "prompt", columns.prompt.as_ref(), &PROMPT_COLUMNS)?;
        let completion = find(row, "completion", columns.completion.as_ref(), &COMPLETION_COLUMNS)?;
        prompt.zip(completion)
    };
    let (content, is_question, target) = match (pair, messages) {
        (Some(((name, prompt), (answer, completion))), _) => {
            let prompt = to_content(name, prompt, false)?;
            let completion = to_completion(answer, completion)?;
            if let (PromptContent::Text(_), PromptContent::Messages(_), false) =
                (&prompt, &completion, name != PROMPT_COLUMNS[0])
            {
                return Err(fault!("`{name}` is text and `{answer}` a list of messages: give both as texts, or both as messages").into());
            }
            (prompt, name != PROMPT_COLUMNS[0], SftTarget::Completion(completion))
        }
        (None, Some((name, messages))) => match to_content(name, messages, false)? {
            PromptContent::Messages(messages) => {
                if !messages.iter().any(|message| message.role == "assistant") {
                    return Err(fault!(
                        "`{name}` has no message of the assistant, so there is nothing to learn"
                    )
                    .into());
                }
                (PromptContent::Messages(messages), false, SftTarget::Turns)
            }
            PromptContent::Text(_) => {
                return Err(fault!("`{name}` must be a list of messages, got text").into());
            }
        },
        (None, None) => match row.get(TEXT_COLUMN) {
            Some(Value::String(text)) if !text.is_empty() => {
                (PromptContent::Text(text.clone()), false, SftTarget::Text)
            }
            _ => {
                return Err(fault!(
                    "expected `prompt` and `completion`, or `messages`, or `text`, but the row has {columns}; name its columns with \
                     sft.columns",
                    columns = names(row)
                )
                .into());
            }
        },
    };
    let prompt = Prompt {
        id,
        content,
        ground_truth: None,
        data_source: String::new(),
        columns: record.values,
        images: Vec::new(),
        place: None,
    };
    Ok(SftRow { place: record.place, prompt, is_question, target })
}

/// A completion may be a number, as gold answers are.
fn to_completion(column: &str, value: &Value) -> Result<PromptContent, PromptFault> {
    match value {
        Value::Number(number) => Ok(PromptContent::Text(number_text(number))),
        Value::Array(_) | Value::String(_) => to_content(column, value, false),
        other => {
            Err(fault!("`{column}` must be text or a list of messages, got {actual}", actual = kind(other))
                .into())
        }
    }
}

impl SftTarget {
    /// Messages of a completion: a text is one message of the assistant.
    pub fn completion_messages(completion: &PromptContent) -> Vec<Message> {
        match completion {
            PromptContent::Text(text) => vec![Message::new("assistant", text.as_str())],
            PromptContent::Messages(messages) => messages.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(rows: &[Value], columns: &SftColumns) -> Result<SftRows, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
        std::fs::write(&path, lines.join("\n")).expect("written");
        SftRows::read(&[path], columns, BadRows::Error)
            .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "FOLDER"))
    }

    fn one(row: &Value) -> SftRow {
        read(std::slice::from_ref(row), &SftColumns::default()).expect("a row").rows.remove(0)
    }

    fn text(text: &str) -> PromptContent {
        PromptContent::Text(text.to_owned())
    }

    fn messages(all: &[(&str, &str)]) -> PromptContent {
        PromptContent::Messages(all.iter().map(|&(role, content)| Message::new(role, content)).collect())
    }

    #[test]
    fn every_layout() {
        let row = one(
            &json!({"prompt": "1+1=", "completion": "2", "messages": [{"role": "user", "content": "x"}]}),
        );
        assert_eq!((row.prompt.content, row.target), (text("1+1="), SftTarget::Completion(text("2"))));
        assert!(!row.is_question);
        let row = one(&json!({"question": "1+1?", "answer": 2}));
        assert_eq!((row.prompt.content, row.target), (text("1+1?"), SftTarget::Completion(text("2"))));
        assert!(row.is_question);
        let user = json!([{"role": "user", "content": "a"}]);
        let row = one(&json!({"prompt": user, "completion": [{"role": "assistant", "content": "b"}]}));
        assert_eq!(row.prompt.content, messages(&[("user", "a")]));
        assert_eq!(row.target, SftTarget::Completion(messages(&[("assistant", "b")])));
        // A prompt without a completion is no pair.
        let whole = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        let row = one(&json!({"prompt": "a", "messages": whole, "tools": "[]"}));
        assert_eq!(row.prompt.content, messages(&[("user", "a"), ("assistant", "b")]));
        assert_eq!((row.target, &row.prompt.columns["tools"]), (SftTarget::Turns, &json!("[]")));
        let row = one(&json!({"text": "Once upon"}));
        assert_eq!((row.prompt.content, row.target), (text("Once upon"), SftTarget::Text));
    }

    #[test]
    fn configured_columns_come_first_and_must_be_there() {
        let row = json!({"messages": [{"role": "assistant", "content": "b"}], "in": {"q": "a"}, "out": "c"});
        let columns = |prompt: &str, completion: &str| SftColumns {
            prompt: Some(prompt.to_owned()),
            completion: Some(completion.to_owned()),
            messages: None,
        };
        let rows = read(std::slice::from_ref(&row), &columns("in.q", "out")).expect("a row").rows;
        assert_eq!(rows[0].prompt.content, text("a"));
        assert_eq!(rows[0].target, SftTarget::Completion(text("c")));
        let error = read(&[row], &columns("in.q", "nowhere")).expect_err("there is none");
        assert_eq!(
            error,
            "FOLDER/rows.jsonl, line 1: there is no column `nowhere`, which sft.columns.completion names; the row has `messages`, `in`, `out`"
        );
    }

    #[test]
    fn rows_that_are_none_are_named() {
        let fault = |row: Value| {
            let error = read(&[row], &SftColumns::default()).expect_err("no example");
            error.replace("FOLDER/rows.jsonl, line 1: ", "")
        };
        for (row, expected) in [
            (
                json!({"prompt": "a"}),
                "expected `prompt` and `completion`, or `messages`, or `text`, but the row has `prompt`; name its columns with sft.columns",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a"}]}),
                "`messages` has no message of the assistant, so there is nothing to learn",
            ),
            (json!({"messages": "a"}), "`messages` must be a list of messages, got text"),
            (
                json!({"prompt": "a", "completion": true}),
                "`completion` must be text or a list of messages, got a boolean",
            ),
            (json!({"prompt": "a", "completion": ""}), "`completion` is empty"),
            (
                json!({"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]}),
                "`prompt` is text and `completion` a list of messages: give both as texts, or both as messages",
            ),
            (
                json!({"text": "a", "images": ["a.png"]}),
                "the column `images` has images, and supervised fine-tuning is on texts only; take it out",
            ),
        ] {
            assert_eq!(fault(row), expected);
        }
    }
}
