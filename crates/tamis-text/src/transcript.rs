//! The transcript of an episode of many turns: the token ids that the policy saw and wrote, as it saw and
//! wrote them.
//! A transcript begins with the prompt's ids. The ids that the policy samples follow, then those of what the
//! environment or the tools answer, then sampled ones again. What the policy wrote is *never tokenised
//! again*: the text `"ab"` may have been sampled as `a`, `b` where the tokenizer would write `ab`, and the
//! gradient belongs to the tokens that were sampled.
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

use tamis_core::fault;
use tamis_core::fault::Fault;

use crate::template::TemplateError;

pub use check::{ConversationForm, Difference, check_template};
pub use continuation::{Continuation, TurnTemplate};

/// The template failed, or refuses the conversation.
fn unrendered(source: TemplateError) -> Fault {
    fault!("the conversation cannot be rendered").with_source(source)
}

fn untokenised(source: Fault) -> Fault {
    fault!("the text between two answers cannot be tokenised").with_source(source)
}

#[cfg(test)]
mod tests;
