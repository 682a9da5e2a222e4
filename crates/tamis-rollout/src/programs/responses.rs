//! `/v1/responses`: the text part of OpenAI's newer interface, as a call of a conversation and its answer.
//! A request is turned into the body of `/v1/chat/completions` that means the same, and an answer into the
//! items that clients of this interface read. Nothing is kept between two calls: clients send the whole
//! conversation.

use serde_json::{Map, Value, json};

use super::reply::{ChatAnswer, ChatFinish};
use crate::api::error::ApiError;
use crate::api::event::put;
use crate::api::field::{Fields, Refused};
use crate::api::field::{is_empty, is_false, is_never};
use crate::api::seconds;

/// Fields that would change the answer and that are not obeyed.
const REFUSED: [Refused; 9] = [
    (
        "previous_response_id",
        is_never,
        "nothing is kept between two calls: send the whole conversation as `input`",
    ),
    ("conversation", is_never, "nothing is kept between two calls: send the whole conversation as `input`"),
    ("prompt", is_never, "send the conversation as `input`"),
    ("background", is_false, "wait for the answer"),
    (
        "text",
        |value| is_empty(value) || is_text(value),
        "describe the form in `input`, or set `rollout.regex`",
    ),
    ("reasoning", is_nothing, "leave it out: reasoning is a part of the policy's text"),
    ("include", is_nothing, "leave it out, and use chat/completions with `logprobs`"),
    ("truncation", |value| value == "disabled", "leave it out: a conversation is never cut"),
    ("max_tool_calls", is_never, "leave it out"),
];

/// Fields that are the same in both interfaces.
const SAME: [&str; 8] =
    ["model", "stream", "temperature", "top_p", "seed", "stop", "tool_choice", "top_logprobs"];

/// Whether `text` requests plain text.
fn is_text(text: &Value) -> bool {
    let format = &text["format"];
    (format.is_null() || format["type"] == "text")
        && text.as_object().is_some_and(|text| text.keys().all(|key| key == "format" || key == "verbosity"))
}

/// No value that matters: clients send encrypted reasoning or an effort by default.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().all(|value| value == "reasoning.encrypted_content"),
        Value::Object(fields) => fields.values().all(Value::is_null),
        _ => false,
    }
}

/// The body of a chat call that means the same.
pub(super) fn chat_body(body: &Value) -> Result<Value, ApiError> {
    let fields = Fields::of(body)?;
    fields.refuse(&REFUSED)?;
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text("instructions")? {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match fields.get("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            for (place, item) in items.iter().enumerate() {
                read_item(&format!("input.{place}"), item, &mut messages)?;
            }
        }
        _ => return Err(ApiError::field("input", "`input` must be a text or a list of items")),
    }
    let mut chat = Map::new();
    for name in SAME {
        chat.extend(fields.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    if let Some(most) = fields.get("max_output_tokens") {
        chat.insert("max_tokens".to_owned(), most.clone());
    }
    let tools = fields.list("tools")?.unwrap_or_default();
    let tools: Result<Vec<Value>, ApiError> = tools.iter().enumerate().map(read_tool).collect();
    chat.insert("tools".to_owned(), Value::Array(tools?));
    chat.insert("messages".to_owned(), Value::Array(messages));
    Ok(Value::Object(chat))
}

/// An item of the conversation. All items of one answer of the policy become one message.
fn read_item(name: &str, item: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let text = |field: &str| {
        let name = format!("{name}.{field}");
        item[field].as_str().ok_or_else(|| ApiError::field(&name, format!("`{name}` must be a text")))
    };
    let is_answer = |message: &Value| message["role"] == "assistant";
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let content = read_content(name, &item["content"])?;
            let role = text("role")?;
            match messages.last_mut().filter(|last| role == "assistant" && is_answer(last)) {
                // An answer of several parts.
                Some(last) if last["tool_calls"].is_null() => {
                    let before = last["content"].as_str().unwrap_or_default();
                    last["content"] = json!(format!("{before}{content}"));
                }
                _ => messages.push(json!({"role": role, "content": content})),
            }
        }
        "function_call" => {
            let function = json!({"name": text("name")?, "arguments": text("arguments")?});
            let call = json!({"id": text("call_id")?, "type": "function", "function": function});
            if !messages.last().is_some_and(is_answer) {
                messages.push(json!({"role": "assistant", "content": ""}));
            }
            if let Some(last) = messages.last_mut() {
                match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                }
            }
        }
        "function_call_output" => {
            let content = read_content(name, &item["output"])?;
            messages.push(json!({"role": "tool", "tool_call_id": text("call_id")?, "content": content}));
        }
        other => {
            let other: String = other.chars().take(40).collect();
            let known = "message, function_call and function_call_output are read";
            return Err(ApiError::field(name, format!("`{name}` is an item of the type {other:?}: {known}")));
        }
    }
    Ok(())
}

/// The text of a message, whose parts name their author.
fn read_content(name: &str, content: &Value) -> Result<String, ApiError> {
    let wrong = || {
        let expected = "a text, or parts of the types input_text and output_text";
        ApiError::field(name, format!("the content of `{name}` must be {expected}"))
    };
    let part = |part: &Value| {
        let is_text = matches!(part["type"].as_str(), Some("input_text" | "output_text" | "text"));
        part["text"].as_str().filter(|_| is_text).map(str::to_owned)
    };
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(part).collect::<Option<String>>().ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// A tool in the form of a chat call.
fn read_tool((place, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let (name, kind) = (format!("tools.{place}"), tool["type"].as_str().unwrap_or("unknown"));
    let Some(fields) = tool.as_object().filter(|_| kind == "function") else {
        let kind: String = kind.chars().take(40).collect();
        let message =
            format!("`{name}` is of the type {kind:?}: only tools of the type \"function\" are offered");
        return Err(ApiError::field(&name, message));
    };
    let function: Map<String, Value> = fields.clone().into_iter().filter(|(key, _)| key != "type").collect();
    Ok(json!({"type": "function", "function": function}))
}

impl ChatAnswer {
    fn items(&self, id: &str) -> Vec<Value> {
        let mut items = Vec::new();
        if !self.text.is_empty() || self.tool_calls.is_empty() {
            let content =
                json!([{"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}]);
            items.push(json!({
                "type": "message", "id": format!("msg_{id}"), "role": "assistant", "status": self.status(),
                "content": content,
            }));
        }
        for call in &self.tool_calls {
            items.push(json!({
                "type": "function_call", "id": format!("fc_{}", call.id), "call_id": call.id, "name": call.name,
                "arguments": call.arguments, "status": "completed",
            }));
        }
        items
    }

    fn status(&self) -> &'static str {
        if self.finish == ChatFinish::Length { "incomplete" } else { "completed" }
    }

    pub(super) fn response(&self, id: &str, model: &str) -> Value {
        let is_cut = self.finish == ChatFinish::Length;
        json!({
            "id": format!("resp_{id}"),
            "object": "response",
            "created_at": seconds(),
            "status": self.status(),
            "error": null,
            "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})),
            "instructions": null,
            "metadata": {},
            "model": model,
            "output": self.items(id),
            "parallel_tool_calls": true,
            "temperature": null,
            "top_p": null,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": self.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
        })
    }

    pub(super) fn response_events(&self, id: &str, model: &str) -> String {
        let whole = self.response(id, model);
        let mut begun = whole.clone();
        (begun["status"], begun["output"], begun["usage"]) = (json!("in_progress"), json!([]), Value::Null);
        begun["incomplete_details"] = Value::Null;
        let (mut text, mut number) = (String::new(), 0);
        let mut say = |kind: &str, fields: Value| {
            let mut event = json!({"type": kind, "sequence_number": number});
            if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
                event.extend(fields);
            }
            number += 1;
            text.push_str("event: ");
            text.push_str(kind);
            text.push('\n');
            put(&mut text, &event);
        };
        say("response.created", json!({"response": begun}));
        say("response.in_progress", json!({"response": begun}));
        for (place, item) in self.items(id).into_iter().enumerate() {
            let of_item = |further: Value| {
                let mut fields = json!({"output_index": place, "item_id": item["id"]});
                if let (Some(fields), Value::Object(further)) = (fields.as_object_mut(), further) {
                    fields.extend(further);
                }
                fields
            };
            let mut new = item.clone();
            new["status"] = json!("in_progress");
            if item["type"] == "message" {
                new["content"] = json!([]);
                say("response.output_item.added", json!({"output_index": place, "item": new}));
                let part = &item["content"][0];
                let mut empty = part.clone();
                empty["text"] = json!("");
                say("response.content_part.added", of_item(json!({"content_index": 0, "part": empty})));
                let delta = json!({"content_index": 0, "delta": self.text, "logprobs": []});
                say("response.output_text.delta", of_item(delta));
                let done = json!({"content_index": 0, "text": self.text, "logprobs": []});
                say("response.output_text.done", of_item(done));
                say("response.content_part.done", of_item(json!({"content_index": 0, "part": part})));
            } else {
                new["arguments"] = json!("");
                say("response.output_item.added", json!({"output_index": place, "item": new}));
                let arguments = &item["arguments"];
                say("response.function_call_arguments.delta", of_item(json!({"delta": arguments})));
                let done = json!({"arguments": arguments, "name": item["name"]});
                say("response.function_call_arguments.done", of_item(done));
            }
            say("response.output_item.done", json!({"output_index": place, "item": item}));
        }
        let end =
            if self.finish == ChatFinish::Length { "response.incomplete" } else { "response.completed" };
        say(end, json!({"response": whole}));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::call::ChatCall;
    use super::super::reply::ChatToolCall;
    use super::*;

    #[test]
    fn a_request_is_the_chat_call_that_means_the_same() {
        let body = json!({
            "model": "x", "instructions": "Be short.", "max_output_tokens": 7, "store": false, "temperature": 0.5,
            "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": null},
            "include": ["reasoning.encrypted_content"], "truncation": "disabled",
            "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": true}],
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "1+2"}, {"type": "input_text", "text": "?"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}", "id": "fc_a"},
                {"type": "function_call_output", "call_id": "a", "output": "3"},
            ],
        });
        let call = ChatCall::read(&chat_body(&body).unwrap()).unwrap();
        let called = json!([{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}]);
        let expected = [
            json!({"role": "system", "content": "Be short."}),
            json!({"role": "user", "content": "1+2?"}),
            json!({"role": "assistant", "content": "hm", "tool_calls": called}),
            json!({"role": "tool", "content": "3", "tool_call_id": "a"}),
        ];
        assert_eq!(call.messages, expected);
        assert_eq!((call.max_tokens, call.sampling), (Some(7), vec!["temperature"]));
        let function = json!({"name": "add", "parameters": {"type": "object"}, "strict": true});
        assert_eq!(call.tools, [json!({"type": "function", "function": function})]);
        // An answer that a client sends back equals the answer it got.
        let tool_calls =
            vec![ChatToolCall { id: "a".to_owned(), name: "add".to_owned(), arguments: "{}".to_owned() }];
        let answer = ChatAnswer { tool_calls, ..ChatAnswer::text("hm", ChatFinish::Stop) };
        let mut input = vec![json!({"role": "user", "content": "1+2"})];
        let first = ChatCall::read(&chat_body(&json!({"input": input})).unwrap()).unwrap();
        input.extend(answer.response("1", "policy")["output"].as_array().unwrap().clone());
        input.push(json!({"type": "function_call_output", "call_id": "a", "output": "3"}));
        let second = ChatCall::read(&chat_body(&json!({"input": input})).unwrap()).unwrap();
        assert_eq!(second.after(&first, &answer).map(<[Value]>::len), Some(1));
    }

    #[test]
    fn what_is_not_text_is_refused_by_name() {
        for (field, value) in [
            ("input", json!(null)),
            ("previous_response_id", json!("resp_1")),
            ("text", json!({"format": {"type": "json_schema"}})),
            ("reasoning", json!({"effort": "high"})),
            ("include", json!(["message.output_text.logprobs"])),
            ("background", json!(true)),
            ("tools.0", json!([{"type": "web_search"}])),
            ("input.0", json!([{"type": "image_generation_call"}])),
            ("input.0", json!([{"role": "user", "content": [{"type": "input_image"}]}])),
            ("input.0.call_id", json!([{"type": "function_call_output", "output": "3"}])),
        ] {
            let mut body = json!({"input": "x"});
            body[field.split('.').next().unwrap()] = value;
            let error = chat_body(&body).expect_err(field).body()["error"].clone();
            assert_eq!(error["param"], field);
            assert!(error["message"].as_str().unwrap().contains(&format!("`{field}`")), "{error}");
        }
    }
}
