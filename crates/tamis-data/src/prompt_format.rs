//! Whether the text of a prompt reaches the model as it is or as a user's message of the chat template.
//!
//! A model tuned on conversations continues bare text like a story, and a base model may have no template. So
//! by default the layout of the rows decides ([`PromptFormat::Auto`]); a setting can override it.

use tamis_core::choice;
use thiserror::Error;

use crate::prompt::{Message, PromptContent};

choice! {
    /// How prompts reach the model: through its chat template, or as bare text.
    pub enum PromptFormat {
        /// Rows of messages go through the template. Questions (plain rows, built-in tasks, any column except
        /// `prompt`) become one user message if the model has a template. Text in a column `prompt` stays
        /// text, as in TRL.
        Auto = "auto",
        /// Everything goes through the template; text becomes one user message. The model must have one.
        Chat = "chat",
        /// Bare text, tokenized as it is. Rows of messages are refused.
        Text = "text",
    }
}

/// A prompt does not have the required form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FormatFault {
    /// Messages, but only text is allowed.
    #[error("its prompt is a list of messages, but data.prompt_format is `text`")]
    Messages,
    /// Text has to become a message, but there is no template to render it.
    #[error("data.prompt_format is `chat`, but the model has no chat template")]
    NoTemplate,
    /// A system message, but the prompt is bare text.
    #[error(
        "it is sent as bare text, but data.system_prompt needs a conversation in the model's chat template"
    )]
    NoPlaceForSystem,
}

/// Gives prompts their form.
#[derive(Debug, Clone, Default)]
pub struct Formatter {
    /// Format of the prompt.
    pub format: PromptFormat,
    /// The system message of conversations that have none (`data.system_prompt`).
    pub system: Option<String>,
    /// Whether the model has a chat template.
    pub has_template: bool,
}

impl Formatter {
    /// The content as the model gets it. `is_question` means that a text is a question of a plain row or of a
    /// built-in task, not the text of a column `prompt`.
    ///
    /// ```
    /// use tamis_data::prompt::PromptContent;
    /// use tamis_data::prompt_format::Formatter;
    /// let formatter = Formatter { has_template: true, ..Formatter::default() };
    /// let text = PromptContent::Text("1+1?".to_owned());
    /// assert!(matches!(formatter.apply(text.clone(), true), Ok(PromptContent::Messages(_))));
    /// assert_eq!(formatter.apply(text.clone(), false), Ok(text));
    /// ```
    pub fn apply(&self, content: PromptContent, is_question: bool) -> Result<PromptContent, FormatFault> {
        let mut messages = match content {
            PromptContent::Messages(_) if self.format == PromptFormat::Text => {
                return Err(FormatFault::Messages);
            }
            PromptContent::Messages(messages) => messages,
            PromptContent::Text(text) => {
                let is_message = match self.format {
                    PromptFormat::Auto => is_question && self.has_template,
                    PromptFormat::Chat if !self.has_template => return Err(FormatFault::NoTemplate),
                    PromptFormat::Chat => true,
                    PromptFormat::Text => false,
                };
                if !is_message {
                    return match self.system {
                        Some(_) => Err(FormatFault::NoPlaceForSystem),
                        None => Ok(PromptContent::Text(text)),
                    };
                }
                vec![Message::new("user", text)]
            }
        };
        if let Some(system) = &self.system
            && !messages.iter().any(Message::is_system)
        {
            messages.insert(0, Message::new("system", system.as_str()));
        }
        Ok(PromptContent::Messages(messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(roles: &[(&str, &str)]) -> PromptContent {
        PromptContent::Messages(roles.iter().map(|&(role, content)| Message::new(role, content)).collect())
    }

    #[test]
    fn every_form_of_every_row() {
        use PromptFormat::{Auto, Chat, Text};
        let text = PromptContent::Text("q".to_owned());
        let (user, chat) = (messages(&[("user", "q")]), messages(&[("user", "a"), ("assistant", "b")]));
        let form = |format, has_template, content: &PromptContent, is_question| {
            Formatter { format, system: None, has_template }.apply(content.clone(), is_question)
        };
        for (format, has_template, is_question, expected) in [
            (Auto, true, true, Ok(&user)),
            (Auto, true, false, Ok(&text)),
            (Auto, false, true, Ok(&text)),
            (Auto, false, false, Ok(&text)),
            (Chat, true, true, Ok(&user)),
            (Chat, true, false, Ok(&user)),
            (Chat, false, true, Err(FormatFault::NoTemplate)),
            (Text, true, true, Ok(&text)),
            (Text, false, false, Ok(&text)),
        ] {
            let found = form(format, has_template, &text, is_question);
            assert_eq!(found.as_ref(), expected.as_ref().copied(), "{format:?} {has_template} {is_question}");
        }
        for has_template in [false, true] {
            // If the template is missing, rendering the messages reports it.
            assert_eq!(form(Auto, has_template, &chat, false), Ok(chat.clone()));
            assert_eq!(form(Chat, has_template, &chat, false), Ok(chat.clone()));
            assert_eq!(form(Text, has_template, &chat, false), Err(FormatFault::Messages));
        }
    }

    #[test]
    fn a_system_message_goes_first_where_there_is_none() {
        let formatter = |format| Formatter { format, system: Some("Think.".to_owned()), has_template: true };
        let applied = |content, is_question| formatter(PromptFormat::Auto).apply(content, is_question);
        let text = PromptContent::Text("q".to_owned());
        assert_eq!(applied(text.clone(), true), Ok(messages(&[("system", "Think."), ("user", "q")])));
        assert_eq!(applied(text.clone(), false), Err(FormatFault::NoPlaceForSystem));
        assert_eq!(formatter(PromptFormat::Text).apply(text, true), Err(FormatFault::NoPlaceForSystem));
        let several = [("user", "a"), ("assistant", "b"), ("user", "c")];
        let mut with_system = vec![("system", "Think.")];
        with_system.extend(several);
        assert_eq!(applied(messages(&several), false), Ok(messages(&with_system)));
        for role in ["system", "developer"] {
            let own = messages(&[(role, "Own."), ("user", "a")]);
            assert_eq!(applied(own.clone(), false), Ok(own));
        }
    }
}
