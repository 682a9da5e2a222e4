//! A message of a conversation, with every field that its row, environment or caller gave it.
//! Chat templates read more than role and text: `reasoning_content`, `tool_calls`, `name`, ... A message
//! keeps its fields as they were given and is written back with all of them, so that templates and reward
//! functions see what the data has. [`Message::content`] is its text for everything that needs no more.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::image::PLACEHOLDER;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text: that of all text parts if its content comes in parts, empty if it is null.
    pub content: String,
    /// All fields as they were given; empty if these are a role and a text only.
    given: Map<String, Value>,
}

/// Why a value is not a message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MessageFault {
    /// It is not an object, or lacks a role or content.
    #[error("it must be an object with `role` as text and `content` as text, a list of text parts or null")]
    Shape,
    /// A part of it is neither text nor an allowed image.
    #[error("it holds {what}, but only text is supported")]
    NotText {
        /// The part.
        what: String,
    },
}

impl Message {
    /// A message with only a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), given: Map::new() }
    }

    /// Reads a message from its fields. If `has_images`, content in parts may hold images, and the text has
    /// [`PLACEHOLDER`] for each. An assistant's message may lack content (if it only calls tools).
    ///
    /// ```
    /// use serde_json::json;
    /// use tamis_data::message::Message;
    /// let fields = json!({"role": "assistant", "content": "4", "reasoning_content": "2+2"});
    /// let message = Message::read(&fields, false)?;
    /// assert_eq!((message.role.as_str(), message.content.as_str()), ("assistant", "4"));
    /// assert_eq!(message.to_value(), fields);
    /// # Ok::<(), tamis_data::message::MessageFault>(())
    /// ```
    ///
    /// # Errors
    /// The value is not a message, or its content is neither text nor an image.
    pub fn read(value: &Value, has_images: bool) -> Result<Self, MessageFault> {
        let fields = value.as_object().ok_or(MessageFault::Shape)?;
        let role = fields.get("role").and_then(Value::as_str).ok_or(MessageFault::Shape)?;
        let given = fields.get("content");
        let (content, num_images) = match given {
            Some(content) => text_of(content, has_images)?,
            None if role == "assistant" => (String::new(), 0),
            None => return Err(MessageFault::Shape),
        };
        let mut message = Self::new(role, content);
        if fields.len() != 2 || !given.is_some_and(|content| content.is_string() || num_images > 0) {
            message.given.clone_from(fields);
            if num_images > 0 {
                message.given.insert("content".to_owned(), message.content.clone().into());
            }
        }
        Ok(message)
    }

    /// Whether it is the system's. Templates use two names for that role.
    pub fn is_system(&self) -> bool {
        matches!(self.role.as_str(), "system" | "developer")
    }

    /// Every field: those that were given, with the current role and text.
    pub fn to_fields(&self) -> Map<String, Value> {
        let mut fields = self.given.clone();
        fields.insert("role".to_owned(), self.role.as_str().into());
        let is_as_given = match fields.get("content") {
            Some(content) => text_of(content, false).is_ok_and(|(text, _)| text == self.content),
            None => self.content.is_empty() && !self.given.is_empty(),
        };
        if !is_as_given {
            fields.insert("content".to_owned(), self.content.as_str().into());
        }
        fields
    }

    /// [`Self::to_fields`] as a JSON value.
    pub fn to_value(&self) -> Value {
        Value::Object(self.to_fields())
    }

    /// The fields beyond a role and a text; empty if there are none.
    pub fn given(&self) -> &Map<String, Value> {
        &self.given
    }
}

/// The text of a message's content, and how many images it has.
fn text_of(content: &Value, has_images: bool) -> Result<(String, usize), MessageFault> {
    let parts = match content {
        Value::Null => return Ok((String::new(), 0)),
        Value::String(text) => return Ok((text.clone(), 0)),
        Value::Array(parts) => parts,
        _ => return Err(MessageFault::Shape),
    };
    let (mut text, mut num_images) = (String::new(), 0);
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text") | None, Some(part)) => text.push_str(part),
            (Some("image"), _) if has_images => {
                text.push_str(PLACEHOLDER);
                num_images += 1;
            }
            (Some(other), _) => {
                return Err(MessageFault::NotText { what: format!("a block of type `{other}`") });
            }
            (None, None) => return Err(MessageFault::Shape),
        }
    }
    Ok((text, num_images))
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_fields().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::read(&value, false).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_comes_back_as_it_was_given() {
        for fields in [
            json!({"role": "user", "content": "a"}),
            json!({"role": "user", "content": "a", "name": "bob"}),
            json!({"name": "bob", "content": "a", "role": "user"}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}),
            json!({"role": "assistant", "tool_calls": []}),
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "tool", "content": "", "tool_call_id": "1", "extra": {"x": [1.5, null]}}),
        ] {
            let message = Message::read(&fields, false).expect("a message");
            assert_eq!(serde_json::to_string(&message).unwrap(), fields.to_string());
            let again: Message = serde_json::from_value(fields.clone()).unwrap();
            assert_eq!(again, message);
        }
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]});
        assert_eq!(Message::read(&parts, false).unwrap().content, "ab");
    }

    #[test]
    fn a_text_that_is_changed_later_is_the_one_that_is_written() {
        let fields = json!({"role": "user", "content": [{"type": "text", "text": "a"}], "name": "bob"});
        let mut message = Message::read(&fields, false).unwrap();
        message.content.push('!');
        assert_eq!(message.to_value(), json!({"role": "user", "content": "a!", "name": "bob"}));
    }

    #[test]
    fn images_are_places_in_the_text() {
        let fields = json!({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]});
        let message = Message::read(&fields, true).unwrap();
        assert_eq!(message, Message::new("user", "<image>?"));
        let fault = Message::read(&fields, false).unwrap_err();
        assert_eq!(fault, MessageFault::NotText { what: "a block of type `image`".to_owned() });
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for value in [
            json!("a"),
            json!({"role": "user"}),
            json!({"content": "a"}),
            json!({"role": 1, "content": "a"}),
            json!({"role": "user", "content": 12}),
            json!({"role": "user", "content": [{"x": 1}]}),
        ] {
            assert_eq!(Message::read(&value, false), Err(MessageFault::Shape), "{value}");
        }
    }
}
