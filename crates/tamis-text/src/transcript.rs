//! The transcript of an episode of many turns: the token ids that the policy saw and wrote, as it saw and wrote
//! them.
//!
//! A transcript begins with the prompt's ids. The ids that the policy samples follow, then those of what the
//! environment or the tools answer, then sampled ones again. What the policy wrote is *never tokenised again*:
//! the text `"ab"` may have been sampled as `a`, `b` where the tokenizer would write `ab`, and the gradient
//! belongs to the tokens that were sampled.
//!
//! So a chat template is never asked for the whole conversation again. [`check_template`] looks once, at the
//! start of a run, at what the template does with a conversation that goes on, and gives a [`TurnTemplate`]:
//! its [`TurnTemplate::continuation`] is the text, with its ids, that stands between the last token that the
//! policy sampled and the first token of its next answer. What the template would have written otherwise
//! about earlier answers (Qwen3 takes their `<think>` blocks out) is told as [`Difference`]s.
//!
//! ```
//! use serde_json::{Map, json};
//! use tamis_text::template::ChatTemplate;
//! use tamis_text::tokenizer::Tokenizer;
//! use tamis_text::transcript::check_template;
//!
//! let tokenizer = Tokenizer::characters("UA: \ngoleftmr")?;
//! let source = "{% for m in messages %}{{ m.role[0] | upper }}: {{ m.content }}\n{% endfor %}\
//!     {% if add_generation_prompt %}A: {% endif %}";
//! let template = ChatTemplate::new(source, tokenizer.special_tokens())?;
//! let checked = check_template(&template, &tokenizer, &Map::new(), &[1])?;
//!
//! let mut messages = vec![json!({"role": "user", "content": "go"})];
//! let prompt = template.prompt(&messages, &Map::new())?;
//! let mut token_ids = tokenizer.encode(&prompt.text, false)?;
//! let sampled = tokenizer.encode("left", false)?;
//! token_ids.extend(&sampled);
//!
//! messages.push(json!({"role": "assistant", "content": "left"}));
//! let observation = [json!({"role": "user", "content": "more"})];
//! let continuation = checked.continuation(&tokenizer, &messages, &observation, &sampled)?;
//! assert_eq!(continuation.text, "\nU: more\nA: ");
//! token_ids.extend(&continuation.token_ids);
//! assert_eq!(tokenizer.decode(&token_ids, false)?, "U: go\nA: left\nU: more\nA: ");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod continuation;

use thiserror::Error;

use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;

pub use check::{ConversationForm, Difference, check_template};
pub use continuation::{Continuation, TurnTemplate};

/// A conversation could not be continued.
#[derive(Debug, Error)]
pub enum TranscriptError {
    /// The template failed, or refuses the conversation.
    #[error("the conversation cannot be rendered")]
    Template {
        /// The underlying error.
        #[from]
        source: TemplateError,
    },
    /// The text between two answers cannot be tokenised.
    #[error("the text between two answers cannot be tokenised")]
    Tokenizer {
        /// The underlying error.
        #[from]
        source: TokenizerError,
    },
    /// The messages so far do not end in what the policy wrote.
    #[error("the messages so far must end in the assistant's, but the last is {role}")]
    NotAnswered {
        /// Role of the last message, or what stands in its place.
        role: String,
    },
    /// Nothing was observed.
    #[error("there is no message after the assistant's, so its conversation does not go on")]
    NothingNew,
    /// The assistant's messages are the policy's to write.
    #[error("new message {index} is the assistant's; only the policy writes those")]
    AssistantIsNew {
        /// Index among the new messages, from 0.
        index: usize,
    },
    /// A message's text is not in what the template rendered.
    #[error(
        "the chat template does not show message {index} ({role}) as it was written, so what follows it cannot be \
         found"
    )]
    Vanished {
        /// Index of the message, from 0.
        index: usize,
        /// Its role.
        role: String,
    },
    /// The template shows no result of a tool right after an answer, neither with a call in it nor without.
    #[error("the way from an answer to a tool's result cannot be found in the chat template")]
    NoResults {
        /// What failed.
        #[source]
        source: Box<TranscriptError>,
    },
    /// The text that stood for the assistant's message is there more than once.
    #[error(
        "the chat template shows the assistant's message (message {index}) {count} times, so what follows it \
         cannot be told"
    )]
    Repeated {
        /// Index of the message, from 0.
        index: usize,
        /// How often it is shown.
        count: usize,
    },
    /// A message that is not the policy's is rendered otherwise once others follow.
    #[error(
        "the chat template rewrites earlier messages that are not the assistant's, so a conversation of many turns \
         cannot be a transcript: {difference}"
    )]
    Rewrites {
        /// The message and the texts.
        difference: Box<Difference>,
    },
}

#[cfg(test)]
mod tests;
