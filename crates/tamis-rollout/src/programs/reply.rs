//! The answer to a call, in the forms that clients read.

use serde_json::{Value, json};

use crate::api::error::ApiError;
use crate::api::event::{DONE, put};
use crate::api::{FINGERPRINT, seconds};

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatToolCall {
    /// Id, unique in a conversation; see [`tool_call_id`].
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON text, as the policy wrote them.
    pub arguments: String,
}

/// An id for a tool call, of the call that it answers (its place among those of its episode,
/// [`ChatCall::index`]) and its own place in the answer: nine letters and digits, which is what Mistral's
/// templates want.
///
/// [`ChatCall::index`]: super::ChatCall::index
pub fn tool_call_id(index: usize, place: usize) -> String {
    let mut number = (index as u64).wrapping_mul(36 * 36) + place as u64 % (36 * 36);
    let mut letters = [b'0'; 9];
    for letter in letters.iter_mut().rev() {
        *letter = b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize];
        number /= 36;
    }
    letters.map(char::from).iter().collect()
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatFinish {
    /// The policy ended it, or a stop text did.
    Stop,
    /// It was cut off at its longest.
    Length,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatLogprob {
    /// The text that it adds.
    pub token: String,
    /// Its log-probability.
    pub logprob: f32,
}

/// The policy's answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatAnswer {
    /// Its text without the tool calls.
    pub text: String,
    /// Tools that it calls.
    pub tool_calls: Vec<ChatToolCall>,
    /// Why it ended.
    pub finish: ChatFinish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Its tokens with their log-probabilities, for a call that asks for them.
    pub logprobs: Vec<ChatLogprob>,
}

impl ChatAnswer {
    /// An answer without tool calls and numbers of tokens.
    pub fn text(text: &str, finish: ChatFinish) -> Self {
        Self {
            text: text.to_owned(),
            tool_calls: Vec::new(),
            finish,
            prompt_tokens: 0,
            completion_tokens: 0,
            logprobs: Vec::new(),
        }
    }

    /// The message that represents this answer in later calls, in the form of [`ChatCall::messages`].
    ///
    /// [`ChatCall::messages`]: super::ChatCall::messages
    pub fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.tool_calls.is_empty() {
            message["tool_calls"] = self.tool_calls.iter().map(tool_call).collect();
        }
        message
    }

    fn finish_reason(&self) -> &'static str {
        match self.finish {
            ChatFinish::Length => "length",
            ChatFinish::Stop if self.tool_calls.is_empty() => "stop",
            ChatFinish::Stop => "tool_calls",
        }
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        })
    }

    /// The log-probabilities, if a call requests them.
    fn told_logprobs(&self, are_told: bool) -> Value {
        if !are_told {
            return Value::Null;
        }
        let token = |ChatLogprob { token, logprob }: &ChatLogprob| {
            let (logprob, bytes) = (f64::from(*logprob), token.as_bytes());
            json!({"token": token, "logprob": logprob, "bytes": bytes, "top_logprobs": []})
        };
        json!({"content": self.logprobs.iter().map(token).collect::<Vec<_>>(), "refusal": null})
    }

    pub(super) fn whole(&self, id: &str, model: &str, with_logprobs: bool) -> Value {
        let is_silent = self.text.is_empty() && !self.tool_calls.is_empty();
        let mut message = self.message();
        message["content"] = if is_silent { Value::Null } else { json!(self.text) };
        message["refusal"] = Value::Null;
        let (logprobs, reason) = (self.told_logprobs(with_logprobs), self.finish_reason());
        let choice = json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason});
        json!({
            "id": id,
            "object": "chat.completion",
            "created": seconds(),
            "model": model,
            "choices": [choice],
            "usage": self.usage(),
            "system_fingerprint": FINGERPRINT,
        })
    }

    /// The answer as server-sent events.
    pub(super) fn stream(&self, id: &str, model: &str, with_usage: bool, with_logprobs: bool) -> String {
        let created = seconds();
        let mut text = String::new();
        let mut say = |choices: Value, usage: Value| {
            let mut chunk = json!({
                "id": id,
                "object": "chat.completion.chunk",
                "created": created,
                "model": model,
                "system_fingerprint": FINGERPRINT,
                "choices": choices,
            });
            if with_usage {
                chunk["usage"] = usage;
            }
            put(&mut text, &chunk);
        };
        let choice = |delta: Value, reason: Value| {
            let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason});
            json!([choice])
        };
        // Those of all tokens, whatever became of their text.
        let mut opening = choice(json!({"role": "assistant", "content": ""}), Value::Null);
        opening[0]["logprobs"] = self.told_logprobs(with_logprobs);
        say(opening, Value::Null);
        if !self.text.is_empty() {
            say(choice(json!({"content": self.text}), Value::Null), Value::Null);
        }
        for (i, call) in self.tool_calls.iter().enumerate() {
            let mut call = tool_call(call);
            call["index"] = json!(i);
            say(choice(json!({"tool_calls": [call]}), Value::Null), Value::Null);
        }
        say(choice(json!({}), json!(self.finish_reason())), Value::Null);
        if with_usage {
            say(json!([]), self.usage());
        }
        text.push_str(DONE);
        text
    }
}

fn tool_call(call: &ChatToolCall) -> Value {
    let ChatToolCall { id, name, arguments } = call;
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// A call that gets no answer of the policy, with the reason in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The conversation leaves no room for an answer: 400 with the code that programs know,
    /// `context_length_exceeded`.
    #[error("{0}")]
    TooLong(String),
    /// It requests something that the policy cannot do: 400.
    #[error("{0}")]
    Request(String),
    /// The policy cannot answer: 500.
    #[error("{0}")]
    Failed(String),
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        match error {
            ChatError::TooLong(message) => Self::field("messages", message).coded("context_length_exceeded"),
            ChatError::Request(message) => Self::bad(message),
            ChatError::Failed(message) => Self::internal(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_tool_calls_differ_and_have_nine_letters() {
        assert_eq!(tool_call_id(0, 0), "000000000");
        assert_eq!(tool_call_id(1, 35), "00000010z");
        assert_eq!(tool_call_id(36, 36), "000001010");
    }

    #[test]
    fn answers_have_openais_form() {
        let call = ChatToolCall { id: "a".to_owned(), name: "add".to_owned(), arguments: "{}".to_owned() };
        let answer = ChatAnswer {
            text: String::new(),
            tool_calls: vec![call],
            finish: ChatFinish::Stop,
            prompt_tokens: 3,
            completion_tokens: 4,
            logprobs: vec![ChatLogprob { token: "é".to_owned(), logprob: -0.5 }],
        };
        let whole = answer.whole("chatcmpl-1", "policy", false);
        assert_eq!(whole["choices"][0]["logprobs"], Value::Null);
        let told = json!([{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}]);
        let with = answer.whole("chatcmpl-1", "policy", true);
        assert_eq!(with["choices"][0]["logprobs"]["content"], told);
        let call = json!({"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}});
        let message = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]});
        assert_eq!(whole["choices"][0]["message"], message);
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(whole["usage"]["total_tokens"], 7);
        let empty = ChatAnswer::text("", ChatFinish::Length).whole("chatcmpl-1", "policy", false);
        assert_eq!(empty["choices"][0]["message"]["content"], "");
        assert_eq!(empty["choices"][0]["finish_reason"], "length");

        let stream =
            ChatAnswer { text: "so".to_owned(), ..answer }.stream("chatcmpl-1", "policy", true, true);
        let chunks: Vec<&str> =
            stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        let (done, chunks) = chunks.split_last().unwrap();
        assert_eq!(*done, "[DONE]");
        let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
        let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
        let mut indexed = call.clone();
        indexed["index"] = json!(0);
        let expected = [
            json!({"role": "assistant", "content": ""}),
            json!({"content": "so"}),
            json!({"tool_calls": [indexed]}),
            json!({}),
            Value::Null,
        ];
        assert_eq!(deltas, expected.iter().collect::<Vec<_>>());
        assert_eq!(chunks[0]["choices"][0]["logprobs"]["content"], told);
        assert_eq!(chunks[3]["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(chunks[4]["usage"]["completion_tokens"], 4);
        assert!(chunks[..4].iter().all(|chunk| chunk["usage"].is_null()));
    }
}
