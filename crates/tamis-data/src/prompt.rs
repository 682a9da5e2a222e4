//! A prompt: one task instance as the rest of tamis sees it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::group::PromptId;
use tamis_core::printable::cut_middle;

use crate::data_record::RowPlace;
use crate::image::{PLACEHOLDER, PromptImage};
pub use crate::message::Message;

/// Content of a prompt: text or messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptContent {
    /// Raw text, tokenized as it is.
    Text(String),
    /// A conversation, rendered by the chat template. If it ends in an assistant message, the completion
    /// continues that message.
    Messages(Vec<Message>),
}

impl PromptContent {
    /// The question: the text, or the last message of the user (the last message if the user has none).
    ///
    /// ```
    /// use tamis_data::prompt::{Message, PromptContent};
    /// let chat = [("system", "Be brief."), ("user", "1+1?"), ("assistant", "It is")];
    /// let chat = chat.map(|(role, content)| Message::new(role, content));
    /// assert_eq!(PromptContent::Messages(chat.to_vec()).question(), "1+1?");
    /// ```
    pub fn question(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Messages(messages) => {
                let of_user = messages.iter().rev().find(|message| message.role == "user");
                of_user.or(messages.last()).map_or("", |message| &message.content)
            }
        }
    }

    /// How often [`PLACEHOLDER`] occurs in it.
    pub(crate) fn num_placeholders(&self) -> usize {
        let count = |text: &str| text.matches(PLACEHOLDER).count();
        match self {
            Self::Text(text) => count(text),
            Self::Messages(messages) => messages.iter().map(|message| count(&message.content)).sum(),
        }
    }
}

/// Messages as a chat template takes them if there are images: the content of each is a list of parts, with
/// `{"type": "image"}` for an image. Each image goes to a [`PLACEHOLDER`]. If there are none, all images go
/// before the text of the user's first message, as in TRL. `None` if the numbers of placeholders and images
/// differ.
///
/// ```
/// use tamis_data::prompt::{Message, message_parts};
/// let message = |content: &str| Message::new("user", content);
/// let parts = |content: &str, num_images| Some(message_parts(&[message(content)], num_images)?[0]["content"].to_string());
/// assert_eq!(parts("How many?", 1).as_deref(), Some(r#"[{"type":"image"},{"type":"text","text":"How many?"}]"#));
/// assert_eq!(parts("Is <image> red?", 1).as_deref(), Some(r#"[{"type":"text","text":"Is "},{"type":"image"},{"type":"text","text":" red?"}]"#));
/// assert_eq!(parts("Is <image> red?", 2), None);
/// ```
pub fn message_parts(messages: &[Message], num_images: usize) -> Option<Vec<Value>> {
    let num_places: usize = messages.iter().map(|message| message.content.matches(PLACEHOLDER).count()).sum();
    let first_of_user = messages.iter().position(|message| message.role == "user");
    if num_places != num_images && (num_places > 0 || first_of_user.is_none()) {
        return None;
    }
    let image = || json!({"type": "image"});
    let with_parts = |(place, message): (usize, &Message)| {
        let mut parts = Vec::new();
        if num_places == 0 && first_of_user == Some(place) {
            parts.extend(std::iter::repeat_with(image).take(num_images));
        }
        for (after, text) in message.content.split(PLACEHOLDER).enumerate() {
            parts.extend((after > 0).then(image));
            if !text.is_empty() || num_places == 0 {
                parts.push(json!({"type": "text", "text": text}));
            }
        }
        let mut fields = message.to_fields();
        fields.insert("content".to_owned(), parts.into());
        Value::Object(fields)
    };
    Some(messages.iter().enumerate().map(with_parts).collect())
}

/// The column with the tools for a conversation's template.
pub const TOOLS_COLUMN: &str = "tools";
/// The column with a row's own variables of the chat template, in addition to `data.chat_template_kwargs`.
pub const TEMPLATE_ARGUMENTS_COLUMN: &str = "chat_template_kwargs";

/// Variables that rendering sets by itself.
const OWN_ARGUMENTS: [&str; 4] =
    ["messages", "add_generation_prompt", "continue_final_message", TOOLS_COLUMN];

/// One task instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Row number in the concatenated dataset. It is the same in all epochs, shuffles and resumes.
    pub id: PromptId,
    /// Text or messages. They are never truncated here, so rewards see them whole.
    pub content: PromptContent,
    /// Ground truth that verifiers compare with, as text even if the column holds a number. `None` if the row
    /// has none.
    pub ground_truth: Option<String>,
    /// Verifier family of the row (verl's `data_source`); empty if the row has none.
    pub data_source: String,
    /// Every column of the row, unchanged, for rewards.
    pub columns: Map<String, Value>,
    /// Images that go with the text, in the order of their places in it ([`message_parts`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<PromptImage>,
    /// The row that it was read from; `None` if it comes from no file.
    #[serde(skip)]
    pub place: Option<RowPlace>,
}

impl Prompt {
    /// Its name in messages: its id, and the row of its file if it has one.
    ///
    /// The id counts from 0. It is the `prompt_id` of rollout files and of reward functions.
    pub fn named(&self) -> String {
        self.name_with("")
    }

    /// Its name in messages about a split: `prompt 3 of the training data (a.jsonl, line 4)`.
    pub fn named_in(&self, split: &str) -> String {
        self.name_with(&format!(" of the {split} data"))
    }

    fn name_with(&self, of_split: &str) -> String {
        let place = self.place.as_ref().map_or_else(String::new, |place| format!(" ({place})"));
        format!("prompt {}{of_split}{place}", self.id.0)
    }

    /// The columns that go to the chat template if the prompt is a conversation, without null ones.
    pub fn template_columns(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        let column = |name| Some((name, self.columns.get(name).filter(|value| !value.is_null())?));
        [TOOLS_COLUMN, TEMPLATE_ARGUMENTS_COLUMN].into_iter().filter_map(column)
    }

    /// Variables of the chat template that the prompt's row sets: its `tools`, and the entries of
    /// `chat_template_kwargs`.
    ///
    /// # Errors
    /// The column does not hold an object.
    pub fn template_arguments(&self) -> Result<Map<String, Value>, Fault> {
        let mut arguments = Map::new();
        for (name, value) in self.template_columns() {
            let parsed = value.as_str().map(|text| {
                if text.trim().is_empty() { Ok(Value::Null) } else { serde_json::from_str(text) }
            });
            let actual = || cut_middle(&value.to_string(), 100);
            let value = match parsed {
                None => Some(value.clone()),
                Some(parsed) => parsed.ok(),
            };
            match (name, value) {
                (_, Some(Value::Null)) => {}
                (TOOLS_COLUMN, Some(Value::Array(tools))) if tools.iter().all(Value::is_object) => {
                    arguments.insert(name.to_owned(), tools.into());
                }
                (TOOLS_COLUMN, _) => {
                    return Err(fault!(
                        "the column `{TOOLS_COLUMN}` goes to the chat template and must be a list of tools as JSON objects (or that \
         list as JSON text), got {actual}; rename it if it is something else",
                        actual = actual()
                    ));
                }
                (_, Some(Value::Object(own))) => {
                    if let Some(name) = own.keys().find(|name| OWN_ARGUMENTS.contains(&name.as_str())) {
                        return Err(fault!(
                            "the column `{TEMPLATE_ARGUMENTS_COLUMN}` sets `{name}`, which cannot be set there; remove it"
                        ));
                    }
                    arguments.extend(own);
                }
                (_, _) => {
                    return Err(fault!(
                        "the column `{TEMPLATE_ARGUMENTS_COLUMN}` goes to the chat template and must be an object (or one as JSON \
         text), got {actual}; rename it if it is something else",
                        actual = actual()
                    ));
                }
            }
        }
        Ok(arguments)
    }
}
