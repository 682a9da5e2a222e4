//! A chat call as the owner gets it: read, checked, and in one form for all clients.

use serde_json::{Map, Value, json};

use super::reply::ChatAnswer;
use crate::api::error::ApiError;
use crate::api::field::joined_text;
use crate::api::field::{Fields, Refused};
use crate::api::field::{is_empty, is_false, is_never, is_one, is_zero, read_stops};

/// A call of a program.
///
/// Messages have one form, so that two calls can be compared: `{"role", "content"}` with the content as
/// one text (empty if an assistant's message has none), `"tool_calls"` if there are any, each
/// `{"id", "type": "function", "function": {"name", "arguments"}}` with the arguments as JSON text,
/// `"tool_call_id"`, `"name"` and reasoning (`"reasoning_content"`, `"thinking"`, `"reasoning"`) if
/// they are given. The role `developer` becomes `system`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChatCall {
    /// Number of calls of its episode that were handed on before.
    pub index: usize,
    /// The conversation; not empty.
    pub messages: Vec<Value>,
    /// Tools that may be called: `{"type": "function", "function": {"name", ...}}`.
    pub tools: Vec<Value>,
    /// Tokens of the answer, at most.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Whether the answer is sent as a stream; it is given in one piece all the same.
    pub stream: bool,
    /// Whether the stream ends with the numbers of tokens.
    pub stream_usage: bool,
    /// Whether the answer has the log-probabilities of its tokens.
    pub logprobs: bool,
    /// Names of the fields of sampling that it has (`temperature`, ...), which have no effect.
    pub sampling: Vec<&'static str>,
}

/// Fields that would change the answer and are not supported.
const REFUSED: [Refused; 28] = [
    ("n", is_one, "make a call for each answer"),
    ("top_logprobs", is_zero, "set `logprobs` only: those of the sampled tokens are recorded, and no others"),
    ("prompt_logprobs", is_never, "set `logprobs`: those of the sampled tokens are recorded, and no others"),
    (
        "response_format",
        |value| value["type"] == "text",
        "describe the form in the conversation, or set `rollout.regex` in the configuration of the run",
    ),
    ("audio", is_never, "only text is sampled"),
    ("modalities", |value| value == &json!(["text"]), "only text is sampled"),
    ("web_search_options", is_never, "search with a tool of the program"),
    ("functions", is_empty, "send `tools`"),
    ("function_call", |value| value == "auto" || value == "none", "send `tool_choice`"),
    (
        "tool_choice",
        |value| value == "auto" || value == "none",
        "the policy decides: set \"auto\", or \"none\" to offer no tools",
    ),
    ("presence_penalty", is_zero, "use `repetition_penalty`"),
    ("frequency_penalty", is_zero, "use `repetition_penalty`"),
    ("logit_bias", is_empty, "leave it out"),
    ("allowed_token_ids", is_empty, "leave it out"),
    ("bad_words", is_empty, "leave it out"),
    ("min_tokens", is_zero, "leave it out"),
    ("ignore_eos", is_false, "leave it out"),
    ("stop_token_ids", is_empty, "use `stop`"),
    ("use_beam_search", is_false, "leave it out"),
    ("best_of", is_one, "make a call for each answer and choose"),
    ("structured_outputs", is_empty, "describe the form in the conversation"),
    ("guided_json", is_never, "describe the form in the conversation"),
    ("guided_regex", is_never, "describe the form in the conversation"),
    ("guided_choice", is_never, "describe the form in the conversation"),
    ("guided_grammar", is_never, "describe the form in the conversation"),
    ("chat_template", is_never, "the policy's own template is used"),
    ("chat_template_kwargs", is_empty, "set variables of the template in the configuration of the run"),
    ("continue_final_message", is_false, "the answer is a message of its own"),
];

/// Sampling fields: a run samples all members of a group alike, by its own settings.
const SAMPLING: [&str; 6] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];

impl ChatCall {
    pub(super) fn read(body: &Value) -> Result<Self, ApiError> {
        let fields = Fields::of(body)?;
        fields.refuse(&REFUSED)?;
        let messages = read_messages(fields)?;
        let tools = read_tools(fields)?;
        let max_tokens = match fields.count("max_completion_tokens", 1, i64::MAX)? {
            Some(count) => Some(count),
            None => fields.count("max_tokens", 1, i64::MAX)?,
        };
        let options = fields.object("stream_options", "stream_options.")?;
        Ok(Self {
            index: 0,
            messages,
            tools: if fields.get("tool_choice").is_some_and(|choice| choice == "none") {
                Vec::new()
            } else {
                tools
            },
            max_tokens,
            stop: read_stops(fields)?,
            stream: fields.flag("stream")?,
            stream_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
            logprobs: fields.flag("logprobs")?,
            sampling: SAMPLING.into_iter().filter(|name| fields.get(name).is_some()).collect(),
        })
    }

    /// The messages of this call after those of an earlier one and its answer; `None` if its
    /// conversation does not continue that one, or its tools differ.
    ///
    /// Tool calls are equal if their ids, names and arguments (as JSON values) are.
    pub fn after(&self, earlier: &Self, answer: &ChatAnswer) -> Option<&[Value]> {
        let (answered, new) =
            self.messages.strip_prefix(earlier.messages.as_slice())?.split_first().filter(|_| {
                // Tools are rendered before the conversation.
                self.tools == earlier.tools
            })?;
        let is_same = for_template(answered) == for_template(&answer.message());
        (is_same && !new.is_empty()).then_some(new)
    }
}

/// A message in the form that chat templates of models expect: the arguments of tool calls as objects.
/// Arguments that are not a JSON object stay text.
pub fn for_template(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        for call in calls {
            let arguments = &mut call["function"]["arguments"];
            let parsed =
                arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
            if let Some(parsed) = parsed {
                *arguments = Value::Object(parsed);
            }
        }
    }
    message
}

/// Fields of a message that are kept beside its role, content and tool calls.
const KEPT: [&str; 5] = ["tool_call_id", "name", "reasoning_content", "thinking", "reasoning"];

fn read_messages(fields: Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let messages = fields.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::field("messages", "`messages` must be a list of at least one message"));
    }
    messages.iter().enumerate().map(|(i, message)| read_message(&format!("messages.{i}"), message)).collect()
}

fn read_message(name: &str, message: &Value) -> Result<Value, ApiError> {
    let wrong = |field: &str, expected: &str| {
        let name = format!("{name}{field}");
        ApiError::field(&name, format!("`{name}` must be {expected}"))
    };
    let Some(message) = message.as_object() else { return Err(wrong("", "an object")) };
    let get = |field: &str| message.get(field).filter(|value| !value.is_null());
    let role = match get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        _ => return Err(wrong(".role", "one of system, developer, user, assistant and tool")),
    };
    let content = match get("content") {
        None if role == "assistant" => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => joined_text(parts).map_err(|part| {
            let name = format!("{name}.content.{part}");
            let kind = parts[part]["type"].as_str().unwrap_or("unknown").chars().take(40).collect::<String>();
            ApiError::field(
                &name,
                format!("`{name}` is of the type {kind:?}: only parts of the type \"text\" can be read"),
            )
        })?,
        _ => return Err(wrong(".content", "a text or a list of parts of the type \"text\"")),
    };
    let mut kept = Map::new();
    kept.insert("role".to_owned(), json!(role));
    kept.insert("content".to_owned(), json!(content));
    if let Some(calls) = get("tool_calls") {
        let calls = calls.as_array().filter(|_| role == "assistant");
        let calls = calls.ok_or_else(|| wrong(".tool_calls", "a list, in a message of the assistant"))?;
        if !calls.is_empty() {
            let call = |(i, call): (usize, &Value)| {
                read_tool_call(call).ok_or_else(|| {
                    let expected =
                        "{\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}, all of them texts";
                    wrong(&format!(".tool_calls.{i}"), expected)
                })
            };
            let calls: Result<Vec<Value>, ApiError> = calls.iter().enumerate().map(call).collect();
            kept.insert("tool_calls".to_owned(), json!(calls?));
        }
    }
    for field in KEPT {
        if let Some(value) = get(field) {
            kept.insert(
                field.to_owned(),
                json!(value.as_str().ok_or_else(|| wrong(&format!(".{field}"), "a text"))?),
            );
        }
    }
    Ok(Value::Object(kept))
}

fn read_tool_call(call: &Value) -> Option<Value> {
    if !(call["type"].is_null() || call["type"] == "function") {
        return None;
    }
    let id = call["id"].as_str()?;
    let name = call["function"]["name"].as_str()?;
    let arguments = call["function"]["arguments"].as_str()?;
    Some(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

fn read_tools(fields: Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let tools = fields.list("tools")?.unwrap_or_default();
    for (i, tool) in tools.iter().enumerate() {
        let name = format!("tools.{i}");
        if tool["type"] != "function" {
            return Err(ApiError::field(&name, format!("`{name}.type` must be \"function\"")));
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            return Err(ApiError::field(&name, format!("`{name}.function.name` must be a text")));
        }
    }
    Ok(tools.to_vec())
}

#[cfg(test)]
mod tests {
    use super::super::reply::{ChatFinish, ChatToolCall};
    use super::*;

    fn read(body: &Value) -> Result<ChatCall, String> {
        ChatCall::read(body).map_err(|error| error.body()["error"].to_string())
    }

    #[test]
    fn a_call_is_read_into_one_form() {
        let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
        let call = json!({"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}, "index": 0});
        let body = json!({
            "model": "any", "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": -1,
            "stop": "x", "seed": 3, "n": 1, "logprobs": false, "presence_penalty": 0, "user": "me", "store": null,
            "stream": true, "stream_options": {"include_usage": true}, "tools": [tool], "tool_choice": "auto",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "tool_calls": [call], "refusal": null, "annotations": []},
                {"role": "tool", "content": "3", "tool_call_id": "a", "cache_control": {"type": "x"}},
                {"role": "assistant", "content": "three", "tool_calls": []},
            ],
        });
        let call = json!({"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}});
        let expected = ChatCall {
            index: 0,
            messages: vec![
                json!({"role": "system", "content": "a\nb"}),
                json!({"role": "assistant", "content": "", "tool_calls": [call]}),
                json!({"role": "tool", "content": "3", "tool_call_id": "a"}),
                json!({"role": "assistant", "content": "three"}),
            ],
            tools: vec![tool],
            max_tokens: Some(7),
            stop: vec!["x".to_owned()],
            stream: true,
            stream_usage: true,
            logprobs: false,
            sampling: vec!["temperature", "top_p", "top_k", "seed"],
        };
        assert_eq!(read(&body), Ok(expected));
        let none = json!({"messages": body["messages"], "tools": body["tools"], "tool_choice": "none"});
        assert_eq!(read(&none).unwrap().tools, Vec::<Value>::new());
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let asked = |change: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
            body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            read(&body).expect_err(&change.to_string())
        };
        for (field, value) in [
            ("n", json!(2)),
            ("logprobs", json!(3)),
            ("top_logprobs", json!(3)),
            ("response_format", json!({"type": "json_object"})),
            ("tool_choice", json!("required")),
            ("tool_choice", json!({"type": "function", "function": {"name": "add"}})),
            ("logit_bias", json!({"5": 1})),
            ("max_tokens", json!(0)),
            ("stop", json!([1])),
            ("stop", json!("")),
            ("stop", json!(["x", ""])),
            ("stop", json!(vec!["x"; 65])),
            ("messages", json!([])),
            ("messages", json!("x")),
            ("messages.0", json!(null)),
        ] {
            let error = if field == "messages.0" {
                asked(json!({"messages": ["x"]}))
            } else {
                asked(json!({field: value}))
            };
            assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
            assert!(error.contains(&format!("\"param\":\"{field}\"")), "{field}: {error}");
        }
        let image = json!({"type": "image_url", "image_url": {"url": "data:..."}});
        let image =
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]});
        assert!(asked(image).contains("`messages.0.content.1` is of the type \\\"image_url\\\""));
        assert!(
            asked(json!({"messages": [{"role": "function", "content": "x"}]})).contains("messages.0.role")
        );
        assert!(asked(json!({"messages": [{"role": "user"}]})).contains("messages.0.content"));
        let calls = json!([{"id": "a", "function": {"name": "add", "arguments": {}}}]);
        let calls = json!({"messages": [{"role": "assistant", "tool_calls": calls}]});
        assert!(asked(calls).contains("messages.0.tool_calls.0"));
        assert!(
            asked(json!({"tools": [{"type": "function", "function": {}}]})).contains("tools.0.function.name")
        );
        assert!(read(&json!([])).unwrap_err().contains("JSON object"));
    }

    #[test]
    fn a_call_that_goes_on_from_an_answer_is_known_by_its_messages() {
        let user = json!({"role": "user", "content": "1+2"});
        let earlier = ChatCall { messages: vec![user.clone()], ..ChatCall::default() };
        let tool_calls = vec![ChatToolCall {
            id: "a".to_owned(),
            name: "add".to_owned(),
            arguments: "{\"a\": 1, \"b\": 2}".to_owned(),
        }];
        let answer = ChatAnswer { tool_calls, ..ChatAnswer::text("hm", ChatFinish::Stop) };
        // In the form of a client that has parsed the arguments.
        let mut said = answer.message();
        said["tool_calls"][0]["function"]["arguments"] = json!("{\"b\":2,\"a\":1}");
        let result = json!({"role": "tool", "content": "3", "tool_call_id": "a"});
        let next = |messages: &[&Value]| ChatCall {
            messages: messages.iter().copied().cloned().collect(),
            ..ChatCall::default()
        };
        assert_eq!(next(&[&user, &said, &result]).after(&earlier, &answer), Some(&[result.clone()][..]));
        assert_eq!(next(&[&user, &said]).after(&earlier, &answer), None);
        assert_eq!(next(&[&user, &result]).after(&earlier, &answer), None);
        assert_eq!(next(&[&result, &said, &result]).after(&earlier, &answer), None);
        let others = ChatCall { tools: vec![json!({})], ..next(&[&user, &said, &result]) };
        assert_eq!(others.after(&earlier, &answer), None);
        let mut other = said.clone();
        other["content"] = json!("hm.");
        assert_eq!(next(&[&user, &other, &result]).after(&earlier, &answer), None);
    }
}
