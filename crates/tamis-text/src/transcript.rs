//! The transcript of an episode of many turns: the exact token ids that the policy saw and wrote. A
//! transcript begins with the prompt's ids. Then come the ids that the policy samples, the ids of the
//! environment's or the tools' answer, sampled ids again, and so on. The policy's output is *never tokenised
//! again*: the text `"ab"` may have been sampled as `a`, `b` while the tokenizer would write `ab`, and the
//! gradient belongs to the sampled tokens.
//!
//! So the chat template never renders the whole conversation again. At the start of a run, [`check_template`]
//! checks once what the template does with a conversation that continues. It returns a [`TurnTemplate`]. Its
//! [`TurnTemplate::continuation`] is the text, with its ids, between the last token that the policy sampled
//! and the first token of its next answer. If the template would render earlier answers differently (Qwen3
//! removes their `<think>` blocks), this is reported as [`Difference`]s.
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

use tamis_core::fault;
use tamis_core::fault::Fault;

use crate::template::TemplateError;

pub use check::{ConversationForm, Difference, check_template};
pub use continuation::{Continuation, TurnTemplate};

/// The error if the template fails, or refuses the conversation.
fn unrendered(source: TemplateError) -> Fault {
    fault!("the conversation cannot be rendered").with_source(source)
}

fn untokenised(source: Fault) -> Fault {
    fault!("the text between two answers cannot be tokenised").with_source(source)
}

#[cfg(test)]
mod tests;
