//! A prompt: one task instance as the rest of tamis sees it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tamis_core::group::PromptId;

use crate::image::{PLACEHOLDER, PromptImage};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

/// Content of a prompt: text or messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptContent {
    /// Raw text, tokenized as it is.
    Text(String),
    /// A conversation, rendered by the chat template. Where it ends in an assistant message, that message is
    /// continued.
    Messages(Vec<Message>),
}

impl PromptContent {
    /// The question: the text, or the last message of the user (the last message where there is none).
    ///
    /// ```
    /// use tamis_data::prompt::{Message, PromptContent};
    /// let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    /// let chat = [message("system", "Be brief."), message("user", "1+1?"), message("assistant", "It is")];
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

    /// How often [`PLACEHOLDER`] stands in it.
    pub(crate) fn num_placeholders(&self) -> usize {
        let count = |text: &str| text.matches(PLACEHOLDER).count();
        match self {
            Self::Text(text) => count(text),
            Self::Messages(messages) => messages.iter().map(|message| count(&message.content)).sum(),
        }
    }
}

/// Messages as a chat template takes them where there are images: the content of each is a list of parts, in
/// which `{"type": "image"}` stands for an image. Each goes where [`PLACEHOLDER`] stands; where it stands
/// nowhere, all go before the text of the first message of the user, as in TRL. `None` where the places are
/// not as many as the images.
///
/// ```
/// use tamis_data::prompt::{Message, message_parts};
/// let message = |content: &str| Message { role: "user".to_owned(), content: content.to_owned() };
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
        json!({"role": message.role, "content": parts})
    };
    Some(messages.iter().enumerate().map(with_parts).collect())
}

/// One task instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Row number in the concatenated dataset: stable over epochs, shuffles and resumes.
    pub id: PromptId,
    /// Text or messages, never truncated here: rewards see them whole.
    pub content: PromptContent,
    /// Ground truth that verifiers compare with; text even where the column held a number. `None` where the
    /// row has none.
    pub ground_truth: Option<String>,
    /// Verifier family of the row (verl's `data_source`); empty where the row has none.
    pub data_source: String,
    /// Every column of the row as read, for rewards.
    pub columns: Map<String, Value>,
    /// Images that go with the text, in the order of their places in it ([`message_parts`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<PromptImage>,
}
