//! Messages in the form that templates get.
//!
//! As in `transformers` 5.23, before rendering, a null field is removed (a template would print `None`, but
//! handles absence), and a message's reasoning gets both names that templates read, `reasoning_content` and
//! `thinking`.
//!
//! Content in parts goes to the template in parts. Many templates only support text: in `transformers` they
//! fail, or print the list as Python writes it. Here, as in servers, the texts of the parts are then joined.

use serde_json::{Map, Value};

use super::python;

/// The names of a message's reasoning in data and answers. The first one that exists counts.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Removes null fields, and adds a message's reasoning under all names.
pub(super) fn normalize(messages: &[Value]) -> Vec<Value> {
    messages.iter().map(normalize_one).collect()
}

fn normalize_one(message: &Value) -> Value {
    let Value::Object(fields) = message else { return message.clone() };
    let fields = || fields.iter().filter(|(_, value)| !value.is_null());
    let reasoning =
        REASONING.iter().find_map(|&name| fields().find(|(field, _)| *field == name)).map(|(_, value)| value);
    let mut all = Map::new();
    if let Some(reasoning) = reasoning {
        all.insert("thinking".to_owned(), reasoning.clone());
    }
    all.extend(fields().map(|(name, value)| (name.clone(), value.clone())));
    if let Some(reasoning) = reasoning {
        all.insert(REASONING[0].to_owned(), reasoning.clone());
    }
    Value::Object(all)
}

/// The joined texts of content in parts; `None` for other content, and if a part is not text.
fn joined_text(message: &Value) -> Option<String> {
    let parts = message["content"].as_array()?;
    let is_text = |part: &Value| part["type"].as_str().is_none_or(|kind| kind == "text");
    parts.iter().map(|part| part["text"].as_str().filter(|_| is_text(part))).collect()
}

/// The messages with parts joined to text; `None` if there are no such parts.
pub(super) fn joined(messages: &[Value]) -> Option<Vec<Value>> {
    let texts: Vec<Option<String>> = messages.iter().map(joined_text).collect();
    if texts.iter().all(Option::is_none) {
        return None;
    }
    let with_text = |(message, text): (&Value, Option<String>)| {
        let mut message = message.clone();
        if let Some(text) = text {
            message["content"] = text.into();
        }
        message
    };
    Some(messages.iter().zip(texts).map(with_text).collect())
}

/// Whether a rendered text contains a message's parts as Python prints a list.
pub(super) fn shows_lists(messages: &[Value], text: &str) -> bool {
    let lists = messages.iter().filter(|message| joined_text(message).is_some());
    lists.map(|message| python::from_json(&message["content"]).to_string()).any(|list| text.contains(&list))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ChatTemplate;
    use super::super::tests::special;
    use super::*;

    fn render(source: &str, messages: &[Value]) -> String {
        let template = ChatTemplate::new(source, &special()).expect("a template");
        template.render(messages, &Map::new()).expect("rendered")
    }

    /// Expected texts from `apply_chat_template` of transformers 5.23.
    #[test]
    fn fields_that_are_null_are_left_out_and_reasoning_has_all_its_names() {
        let all = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}";
        let messages = [
            json!({"role": "assistant", "content": null, "tool_calls": [], "name": "bob"}),
            json!({"role": "assistant", "content": "a", "reasoning": "r"}),
            json!({"role": "assistant", "content": "a", "reasoning_content": null, "thinking": "t"}),
            json!({"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "t"}),
        ];
        insta::assert_snapshot!(render(all, &messages), @r#"
        {"role": "assistant", "tool_calls": [], "name": "bob"}
        {"thinking": "r", "role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}
        {"thinking": "t", "role": "assistant", "content": "a", "reasoning_content": "t"}
        {"thinking": "t", "role": "assistant", "content": "a", "reasoning_content": "r"}
        "#);
    }

    #[test]
    fn parts_go_to_templates_that_take_them_and_are_joined_for_others() {
        let messages = [
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "it's"}]}),
            json!({"role": "user", "content": "c"}),
        ];
        let takes = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                     {% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
        assert_eq!(render(takes, &messages), "<a><it's>c");
        for other in ["{{ m.content }}", "{{ 'x' + m.content }}", "{{ m['content'] | trim }}"] {
            let source = format!("{{% for m in messages %}}{other}{{% endfor %}}");
            assert!(["ait'sc", "xait'sxc"].contains(&render(&source, &messages).as_str()), "{other}");
        }
        let template = ChatTemplate::new(takes, &special()).expect("a template");
        let begun = [json!({"role": "assistant", "content": [{"type": "text", "text": "It is"}]})];
        let prompt = template.prompt(&begun, &Map::new()).expect("rendered");
        assert_eq!((prompt.text.as_str(), prompt.continued.as_deref()), ("<It is", Some("It is")));
    }
}
