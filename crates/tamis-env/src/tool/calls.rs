//! The tool calls in an answer.
//!
//! They are read in the forms of Hermes and Qwen (`<tool_call>{...}</tool_call>`) and of Llama 3 (JSON
//! objects, `<|python_tag|>`). Text in thoughts is no call. A call that cannot be read becomes an error that
//! the policy gets as the result.

use std::ops::Range;

use serde_json::{Value as Json, json};
use tamis_core::fault;
use tamis_core::fault::Fault;

/// A call as the model wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The tool's name, which may not exist.
    pub name: String,
    /// Its arguments, an object.
    pub arguments: Json,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON: &str = "<|python_tag|>";

/// The tool calls of an answer in their order, each readable or not; none if the answer calls no tool. The
/// error of an unreadable call is for the model. Forms:
/// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them (Hermes, Qwen);
/// `{"name": ..., "parameters": {...}}` as the whole answer or after `<|python_tag|>`, several with `;`
/// between them (Llama 3); code after `<|python_tag|>`, which is a call of `python`. A model's thoughts, up
/// to `</think>`, call nothing.
///
/// ```
/// use tamis_env::tool::tool_calls;
/// let text = "Let me see.\n<tool_call>\n{\"name\": \"python\", \"arguments\": {\"code\": \"print(1)\"}}\n</tool_call>";
/// let calls = tool_calls(text);
/// let call = calls[0].as_ref().expect("readable");
/// assert_eq!((call.name.as_str(), &call.arguments["code"]), ("python", &"print(1)".into()));
/// assert!(tool_calls("The answer is 4.").is_empty());
/// ```
pub fn tool_calls(text: &str) -> Vec<Result<ToolCall, Fault>> {
    let text = &text[end_of_thoughts(text)..];
    if text.contains(OPEN) {
        return tagged_calls(text).into_iter().map(|(_, call)| call).collect();
    }
    if let Some((_, rest)) = text.split_once(PYTHON) {
        let rest = without_end(rest);
        if rest.starts_with('{') {
            return listed_calls(rest);
        }
        let is_code = !rest.is_empty();
        let call = ToolCall { name: "python".to_owned(), arguments: json!({ "code": rest }) };
        return is_code.then_some(Ok(call)).into_iter().collect();
    }
    let whole = without_end(text);
    // An object without a tool's name is an answer.
    let is_call = |value: &Json| value["name"].is_string() && arguments_of(value).is_some();
    match serde_json::from_str::<Json>(whole) {
        Ok(value) if is_call(&value) => vec![read_call(&value, whole)],
        Err(_) if whole.starts_with("{\"name\"") => listed_calls(whole),
        Ok(_) | Err(_) => Vec::new(),
    }
}

/// An answer without its readable calls, and these calls; unreadable ones stay in it.
///
/// ```
/// use tamis_env::tool::split_tool_calls;
/// let call = "<tool_call>{\"name\": \"add\"}</tool_call>";
/// let (rest, calls) = split_tool_calls(&format!("<think><tool_call></think>Now:{call}<tool_call>oh</tool_call>"));
/// assert_eq!(rest, "<think><tool_call></think>Now:<tool_call>oh</tool_call>");
/// assert_eq!(calls.len(), 1);
/// ```
pub fn split_tool_calls(text: &str) -> (String, Vec<ToolCall>) {
    let start = end_of_thoughts(text);
    let (thoughts, answer) = text.split_at(start);
    if answer.contains(OPEN) {
        let (mut rest, mut calls, mut place) = (thoughts.to_owned(), Vec::new(), 0);
        for (range, call) in tagged_calls(answer) {
            if let Ok(call) = call {
                rest.push_str(&answer[place..range.start]);
                place = range.end;
                calls.push(call);
            }
        }
        rest.push_str(&answer[place..]);
        return (if calls.is_empty() { rest } else { rest.trim_end().to_owned() }, calls);
    }
    match tool_calls(text).into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(calls) if !calls.is_empty() => {
            let before = answer.find(PYTHON).unwrap_or(0);
            (text[..start + before].trim_end().to_owned(), calls)
        }
        _ => (text.to_owned(), Vec::new()),
    }
}

fn end_of_thoughts(text: &str) -> usize {
    const END: &str = "</think>";
    text.rfind(END).map_or(0, |at| at + END.len())
}

/// Without the marks that end a turn.
fn without_end(text: &str) -> &str {
    let mut text = text.trim();
    while let Some(rest) =
        ["<|eom_id|>", "<|eot_id|>", "<|im_end|>"].iter().find_map(|end| text.strip_suffix(end))
    {
        text = rest.trim_end();
    }
    text
}

/// Each with its bytes, tags included.
fn tagged_calls(text: &str) -> Vec<(Range<usize>, Result<ToolCall, Fault>)> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(OPEN) {
        let start = text.len() - after.len() - OPEN.len();
        // The tag may be inside a text, so the object is read first, and its end is searched after it.
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Json>();
        match values.next() {
            Some(Ok(value)) => {
                let (object, behind) = after.split_at(values.byte_offset());
                let end = behind.find(OPEN).unwrap_or(behind.len());
                let between = behind[..end].split(CLOSE).next().unwrap_or_default();
                let call = if between.trim().is_empty() {
                    read_call(&value, object)
                } else {
                    Err(json_error(after, "there is more text after the object"))
                };
                let is_closed = behind[between.len()..].starts_with(CLOSE);
                rest = &behind[between.len() + if is_closed { CLOSE.len() } else { 0 }..];
                calls.push((start..text.len() - rest.len(), call));
            }
            other => {
                let reason = match other {
                    Some(Err(error)) => error.to_string(),
                    _ => "it is empty".to_owned(),
                };
                let end = [CLOSE, OPEN].iter().filter_map(|tag| after.find(tag)).min().unwrap_or(after.len());
                rest = &after[end..];
                calls.push((start..text.len() - rest.len(), Err(json_error(&after[..end], &reason))));
            }
        }
    }
    calls
}

/// Objects with `;` or nothing between them.
fn listed_calls(text: &str) -> Vec<Result<ToolCall, Fault>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut reader = serde_json::Deserializer::from_str(rest).into_iter::<Json>();
        match reader.next() {
            Some(Ok(value)) => {
                let (object, behind) = rest.split_at(reader.byte_offset());
                calls.push(read_call(&value, object));
                rest = behind.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            }
            Some(Err(error)) => {
                calls.push(Err(json_error(rest, &error.to_string())));
                return calls;
            }
            None => return calls,
        }
    }
    calls
}

fn arguments_of(value: &Json) -> Option<&Json> {
    value.get("arguments").or_else(|| value.get("parameters"))
}

fn read_call(value: &Json, text: &str) -> Result<ToolCall, Fault> {
    let form = |reason: &str| {
        let text = beginning(text);
        fault!("the tool call must be an object with \"name\" and \"arguments\": {reason}: {text}")
    };
    let name =
        value["name"].as_str().filter(|name| !name.is_empty()).ok_or_else(|| form("it has no name"))?;
    let arguments = match arguments_of(value) {
        None | Some(Json::Null) => json!({}),
        // In the form of servers with OpenAI's interface.
        Some(Json::String(text)) => match serde_json::from_str(text) {
            Ok(arguments @ Json::Object(_)) => arguments,
            _ => return Err(form("its arguments are a text")),
        },
        Some(arguments @ Json::Object(_)) => arguments.clone(),
        Some(_) => return Err(form("its arguments are no object")),
    };
    Ok(ToolCall { name: name.to_owned(), arguments })
}

fn json_error(text: &str, reason: &str) -> Fault {
    fault!("the tool call is not valid JSON: {reason}: {}", beginning(text))
}

fn beginning(text: &str) -> String {
    const SHOWN: usize = 120;
    let text = text.trim();
    let shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() { shown + "..." } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> String {
        let show = |call: &Result<ToolCall, Fault>| match call {
            Ok(ToolCall { name, arguments }) => format!("{name} {arguments}"),
            Err(error) => error.to_string(),
        };
        tool_calls(text).iter().map(show).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn hermes() {
        insta::assert_snapshot!(read("One:\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": \"{\\\"y\\\": 2}\"}</tool_call>"), @r#"
        a {"x":1}
        b {"y":2}
        "#);
        insta::assert_snapshot!(read("<think><tool_call>{}</tool_call></think><tool_call>{\"name\": \"a\"}"), @"a {}");
        insta::assert_snapshot!(read("<tool_call>{\"name\": \"python\", \"arguments\": {\"code\": \"print('<tool_call></tool_call>')\"}}</tool_call>"), @r#"python {"code":"print('<tool_call></tool_call>')"}"#);
        insta::assert_snapshot!(read("<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": }}</tool_call> <tool_call>{\"name\": \"b\"}</tool_call>"), @r#"
        the tool call is not valid JSON: expected value at line 1 column 34: {"name": "a", "arguments": {"x": }}
        b {}
        "#);
        insta::assert_snapshot!(read("<tool_call>{\"name\": \"a\""), @r#"the tool call is not valid JSON: EOF while parsing an object at line 1 column 12: {"name": "a""#);
        insta::assert_snapshot!(read("<tool_call></tool_call>"), @"the tool call is not valid JSON: expected value at line 1 column 1: ");
        insta::assert_snapshot!(read("<tool_call>{\"name\": \"a\"}}</tool_call>"), @r#"the tool call is not valid JSON: there is more text after the object: {"name": "a"}}</tool_call>"#);
        insta::assert_snapshot!(read("<tool_call>[1]</tool_call>"), @r#"the tool call must be an object with "name" and "arguments": it has no name: [1]"#);
        insta::assert_snapshot!(read("<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>"), @r#"the tool call must be an object with "name" and "arguments": its arguments are no object: {"name": "a", "arguments": [1]}"#);
        insta::assert_snapshot!(read("<tool_call>{\"name\": \"a\", \"arguments\": \"x\"}</tool_call>"), @r#"the tool call must be an object with "name" and "arguments": its arguments are a text: {"name": "a", "arguments": "x"}"#);
    }

    #[test]
    fn llama() {
        insta::assert_snapshot!(read("{\"name\": \"a\", \"parameters\": {\"x\": 1}}<|eom_id|>"), @r#"a {"x":1}"#);
        insta::assert_snapshot!(read("<|python_tag|>{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {}}<|eot_id|>"), @r"
        a {}
        b {}
        ");
        insta::assert_snapshot!(read("<|python_tag|>print(1)\nprint(2)<|eom_id|>"), @r#"python {"code":"print(1)\nprint(2)"}"#);
        insta::assert_snapshot!(read("{\"name\": \"a\", \"parameters\": {"), @r#"the tool call is not valid JSON: EOF while parsing an object at line 1 column 29: {"name": "a", "parameters": {"#);
        insta::assert_snapshot!(read("<|python_tag|>{\"name\": 1}"), @r#"the tool call must be an object with "name" and "arguments": it has no name: {"name": 1}"#);
        for answer in [
            "{\"name\": \"Ann\", \"age\": 3}",
            "{\"a\": 1}",
            "The answer is {x}.",
            "",
            "[1]",
            "<|python_tag|>",
        ] {
            assert_eq!(tool_calls(answer), [], "{answer}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(<tool_call>|</tool_call>|<\\|python_tag\\|>|\\{\"name\": \"a\"|\"arguments\": |\\{|\\}|,|;|é|\n|</think>){0,20}") {
            for call in tool_calls(&text).into_iter().flatten() {
                prop_assert!(call.arguments.is_object());
            }
        }
    }
}
