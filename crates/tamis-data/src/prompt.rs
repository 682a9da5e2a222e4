//! A prompt: one task instance as the rest of tamis sees it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tamis_core::group::PromptId;

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
}
