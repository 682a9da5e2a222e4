//! The places of the assistant's turns in a rendered conversation, for training on them alone.

use std::ops::Range;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{ChatTemplate, TemplateError, generation, messages, to_json};

/// A whole conversation as text, with the places of its answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedAnswers {
    /// The text; encode it without adding special tokens.
    pub text: String,
    /// Places of the assistant's turns, in bytes of the text, in order.
    pub places: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Whether it marks the assistant's turns with `{% generation %}` blocks.
    pub fn marks_answers(&self) -> bool {
        self.marked.contains_key("default")
    }

    /// Renders a whole conversation and finds the assistant's turns in it.
    ///
    /// They are the contents of the `{% generation %}` blocks, as `return_assistant_tokens_mask` of
    /// `transformers` takes them. In a template without such blocks, turn i is what the text of messages
    /// 0..=i has beyond that of messages 0..i with the generation prompt. It includes what the template
    /// writes after the turn, such as an end token and a line break.
    ///
    /// # Errors
    /// [`TemplateError::AnswersLost`] if there are no blocks and the text of the first messages is not the
    /// beginning of the text of all of them (templates that drop the reasoning of earlier turns).
    pub fn answers<M: Serialize>(
        &self,
        conversation: &[M],
        arguments: &Map<String, Value>,
    ) -> Result<RenderedAnswers, TemplateError> {
        let conversation = messages::normalize(&to_json(conversation)?);
        if conversation.is_empty() {
            return Err(TemplateError::Empty);
        }
        let text = self.render_json(&conversation, arguments)?;
        if self.marks_answers() {
            let marked = |messages: &[Value]| {
                let rendered = self.render_with(&self.marked, messages, arguments).ok()?;
                generation::without_marks(&rendered).filter(|(plain, _)| *plain == text)
            };
            let joined = || marked(&messages::joined(&conversation)?);
            if let Some((text, places)) = marked(&conversation).or_else(joined) {
                return Ok(RenderedAnswers { text, places });
            }
        }
        let mut opened = arguments.clone();
        opened.insert("add_generation_prompt".to_owned(), Value::Bool(true));
        let mut places = Vec::new();
        for (index, message) in conversation.iter().enumerate() {
            if message["role"] != "assistant" {
                continue;
            }
            // A template may refuse a conversation without messages, and one may begin with an answer.
            let before =
                if index == 0 { String::new() } else { self.render_json(&conversation[..index], &opened)? };
            let after = self.render_json(&conversation[..=index], arguments)?;
            if !after.starts_with(&before) || !text.starts_with(&after) {
                return Err(TemplateError::AnswersLost { index });
            }
            places.push(before.len()..after.len());
        }
        Ok(RenderedAnswers { text, places })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::special;
    use super::*;

    const MARKED: &str = "{%- for m in messages %}\n<{{ m.role }}>\n{%- if m.role == 'assistant' %}\n  \
        {%- generation %}\n{{ m.content }}</s>\n  {% endgeneration %}\n{% else %}{{ m.content }}\n{% endif %}{% endfor %}";

    fn conversation() -> Vec<Value> {
        vec![
            json!({"role": "user", "content": "é?"}),
            json!({"role": "assistant", "content": "ab"}),
            json!({"role": "user", "content": "d"}),
            json!({"role": "assistant", "content": "e"}),
        ]
    }

    fn found(source: &str, conversation: &[Value]) -> (String, Vec<String>) {
        let template = ChatTemplate::new(source, &special()).expect("a template");
        let rendered = template.answers(conversation, &Map::new()).expect("rendered");
        assert_eq!(rendered.text, template.render(conversation, &Map::new()).expect("rendered"));
        let texts = rendered.places.iter().map(|place| rendered.text[place.clone()].to_owned()).collect();
        (rendered.text, texts)
    }

    /// Expected from `apply_chat_template(..., return_assistant_tokens_mask=True)` of transformers 5.23.
    #[test]
    fn blocks_are_found_with_their_whitespace_control() {
        let (text, answers) = found(MARKED, &conversation());
        assert_eq!(text, "<user>é?\n<assistant>ab</s>\n<user>d\n<assistant>e</s>\n");
        assert_eq!(answers, ["ab</s>\n", "e</s>\n"]);
    }

    #[test]
    fn without_blocks_a_turn_is_what_it_adds_to_the_text() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
                      {% if add_generation_prompt %}<assistant>{% endif %}";
        let (_, answers) = found(source, &conversation());
        assert_eq!(answers, ["ab</s>", "e</s>"]);
        // A first answer has no prompt before it.
        let (_, answers) = found(source, &conversation()[1..2]);
        assert_eq!(answers, ["<assistant>ab</s>"]);
        let (text, answers) = found(source, &conversation()[..1]);
        assert_eq!((text.as_str(), answers.len()), ("<user>é?</s>", 0));
    }

    #[test]
    fn a_template_that_rewrites_earlier_turns_is_refused() {
        let source = "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}\
                      {% endfor %}";
        let template = ChatTemplate::new(source, &special()).expect("a template");
        let error = template.answers(&conversation(), &Map::new()).expect_err("turns are dropped");
        assert!(matches!(error, TemplateError::AnswersLost { index: 1 }), "{error}");
        assert!(error.to_string().contains("no `{% generation %}` blocks"), "{error}");
    }
}
