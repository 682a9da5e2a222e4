//! The text between two answers, and how it is found.
//!
//! The conversation is rendered with a unique word in place of the assistant's last message. The text after
//! that word is the end of the message as the template writes it, the new messages, and the generation
//! prompt.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tamis_core::fault;
use tamis_core::fault::Fault;

use super::{unrendered, untokenised};
use crate::template::{ChatTemplate, to_json};
use crate::tokenizer::Tokenizer;

/// Words to try before concluding that the template repeats the message.
const NUM_TRIES: usize = 4;

/// The text that a policy gets between two answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    /// Token ids of `text`.
    pub token_ids: Vec<u32>,
    /// From the end of the sampled tokens to the beginning of the next answer.
    pub text: String,
}

/// A chat template that can continue after sampled tokens; made by [`check_template`](super::check_template).
#[derive(Debug, Clone)]
pub struct TurnTemplate {
    pub(super) template: ChatTemplate,
    pub(super) arguments: Map<String, Value>,
    pub(super) end_token_ids: Vec<u32>,
    pub(super) end_texts: Vec<String>,
    /// From the end of an assistant's message to the beginning of the user's text after it.
    pub(super) between: String,
    /// The end of an assistant's message.
    pub(super) turn_end: String,
    pub(super) differences: Vec<super::Difference>,
}

impl TurnTemplate {
    /// How the template would render earlier answers differently from the transcript. A run reports this
    /// once; the transcript keeps what was sampled.
    pub fn differences(&self) -> &[super::Difference] {
        &self.differences
    }

    /// How the template ends an assistant's message, with the white space after it. Empty if it could not be
    /// separated from what follows.
    pub fn turn_end(&self) -> &str {
        &self.turn_end
    }

    /// The same template with other variables.
    #[must_use]
    pub fn with_arguments(&self, arguments: Map<String, Value>) -> Self {
        Self { arguments, ..self.clone() }
    }

    /// The policy's input after its last answer. `messages` are the messages so far. The last one must be the
    /// assistant's, and only its tool calls are read. `new` are the messages that follow (a user's
    /// observation, tool results). `sampled` are the ids of the last answer. If they end in an end token, or
    /// otherwise spell the end of the turn, the continuation begins after it. If not (the answer ended by
    /// length or at a stop string), the end of the turn is part of the continuation. Another end token
    /// replaces the template's.
    ///
    /// Texts of messages are tokenised as in prompts: a special token that is spelled out in one becomes that
    /// token.
    ///
    /// # Errors
    /// The last message is not the assistant's; `new` is empty or has an assistant's message; the template
    /// refuses the conversation, or does not show the assistant's message exactly once; the tokenizer has no
    /// token for a character.
    pub fn continuation<M: Serialize>(
        &self,
        tokenizer: &Tokenizer,
        messages: &[M],
        new: &[M],
        sampled: &[u32],
    ) -> Result<Continuation, Fault> {
        let json = |messages: &[M]| to_json(messages).map_err(unrendered);
        let tail = self.tail(&json(messages)?, &json(new)?)?;
        let text = &tail.text[self.sampled_end(tokenizer, &tail, sampled)?..];
        Ok(Continuation {
            token_ids: tokenizer.encode(text, false).map_err(untokenised)?,
            text: text.to_owned(),
        })
    }

    /// Everything after the content of the assistant's message, including the end of its turn.
    pub(super) fn tail(&self, messages: &[Value], new: &[Value]) -> Result<Tail, Fault> {
        let Some((last, before)) = messages.split_last().filter(|(last, _)| last["role"] == "assistant")
        else {
            let role = messages.last().map_or("missing".to_owned(), role_of);
            return Err(fault!("the messages so far must end in the assistant's, but the last is {role}"));
        };
        if new.is_empty() {
            return Err(fault!(
                "there is no message after the assistant's, so its conversation does not continue"
            ));
        }
        if let Some(index) = new.iter().position(|message| message["role"] == "assistant") {
            return Err(fault!("new message {index} is the assistant's; only the policy writes those"));
        }
        let calls = &last["tool_calls"];
        if calls.as_array().is_some_and(|calls| !calls.is_empty())
            && let Some(tail) = self.tail_of_calls(before, calls, new)
        {
            return Ok(tail);
        }
        let text = self.after_placeholder(before, None, new, true)?;
        let end = common_prefix(&self.between, &text);
        Ok(Tail { text, end })
    }

    /// As [`Self::tail`] after tool calls, for templates that look for a result's call in the assistant's
    /// message. Finds the end of the turn, and what the new messages add after it. `None` if the two cannot
    /// be separated.
    fn tail_of_calls(&self, before: &[Value], calls: &Value, new: &[Value]) -> Option<Tail> {
        let ended = self.after_placeholder(before, Some(calls), &[], false).ok()?;
        let continued = self.after_placeholder(before, Some(calls), new, true).ok()?;
        let added = continued.strip_prefix(&ended)?;
        // Some models end a call with a special token.
        let own = || {
            let shown = ended.trim_end();
            let end =
                self.end_texts.iter().filter(|&end| shown.ends_with(end)).max_by_key(|end| end.len())?;
            Some(&ended[shown.len() - end.len()..])
        };
        let usual = Some(self.turn_end.as_str()).filter(|end| !end.is_empty() && ended.ends_with(end));
        let end = usual.or_else(own)?;
        Some(Tail { text: format!("{end}{added}"), end: end.len() })
    }

    /// Renders `before`, an assistant's message and `new`. Returns the text after the assistant's content.
    pub(super) fn after_placeholder(
        &self,
        before: &[Value],
        calls: Option<&Value>,
        new: &[Value],
        generate: bool,
    ) -> Result<String, Fault> {
        let mut arguments = self.arguments.clone();
        arguments.insert("add_generation_prompt".to_owned(), Value::Bool(generate));
        let known =
            Value::from([before, new].concat()).to_string() + &Value::from(arguments.clone()).to_string();
        let mut count = 0;
        for word in unused_words(&known).take(NUM_TRIES) {
            let mut answer = json!({"role": "assistant", "content": word});
            if let Some(calls) = calls {
                answer["tool_calls"] = calls.clone();
            }
            let conversation = [before, &[answer], new].concat();
            let text = self.template.render(&conversation, &arguments).map_err(unrendered)?;
            count = text.matches(word.as_str()).count();
            if let (1, Some((_, rest))) = (count, text.split_once(word.as_str())) {
                return Ok(rest.to_owned());
            }
        }
        let index = before.len();
        Err(match count {
            0 => fault!(
                "the chat template does not show message {index} (assistant) as it was written, so what follows it cannot be \
         found"
            ),
            count => fault!(
                "the chat template shows the assistant's message (message {index}) {count} times, so it is unclear what follows it"
            ),
        })
    }

    /// Length of the part of a tail that was sampled already.
    fn sampled_end(&self, tokenizer: &Tokenizer, tail: &Tail, sampled: &[u32]) -> Result<usize, Fault> {
        if let Some(&last) = sampled.last().filter(|id| self.end_token_ids.contains(id)) {
            // Some models end an answer with the token that begins the next message, and use another one
            // before a tool's result.
            let begins = || {
                let token = tokenizer.token(last).filter(|token| tail.text.starts_with(token.as_str()))?;
                Some(token.len()).filter(|_| !self.between.is_empty())
            };
            return Ok(first_end(&tail.text[..tail.end], &self.end_texts).or_else(begins).unwrap_or(0));
        }
        let end = self.turn_end.trim_end();
        let spelled = !end.is_empty()
            && tail.text.starts_with(end)
            && sampled.ends_with(tokenizer.encode(end, false).map_err(untokenised)?.as_slice());
        Ok(if spelled { end.len() } else { 0 })
    }
}

/// The text after the content of an assistant's message.
pub(super) struct Tail {
    pub(super) text: String,
    /// Length of the template's own text, before the text of any message can begin.
    pub(super) end: usize,
}

/// The position after the first end token in a text.
pub(super) fn first_end(text: &str, end_texts: &[String]) -> Option<usize> {
    let places = end_texts.iter().filter_map(|end| Some((text.find(end.as_str())?, end.len())));
    places.min().map(|(start, length)| start + length)
}

/// Length in bytes of the longest common prefix, at a character boundary.
pub(super) fn common_prefix(left: &str, right: &str) -> usize {
    let mut pairs = left.char_indices().zip(right.chars());
    pairs.find(|((_, left), right)| left != right).map_or(left.len().min(right.len()), |((at, _), _)| at)
}

/// Words that are not in a text.
fn unused_words(known: &str) -> impl Iterator<Item = String> {
    const START: &str = "placeholder";
    let number = |rest: &str| rest[..rest.find(|letter: char| !letter.is_ascii_digit())?].parse::<u64>().ok();
    let taken: BTreeSet<u64> =
        known.match_indices(START).filter_map(|(at, _)| number(&known[at + START.len()..])).collect();
    (0..).filter(move |number| !taken.contains(number)).map(|number| format!("{START}{number}end"))
}

pub(super) fn role_of(message: &Value) -> String {
    message["role"].as_str().unwrap_or("a message without role").to_owned()
}
