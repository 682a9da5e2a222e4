//! Texts for models that score, with the prompt and its completion filled in.

use serde_json::Value;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::RewardInput;

/// A text with placeholders in braces: `{prompt}`, `{completion}`, `{ground_truth}`, `{data_source}`,
/// and columns of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTemplate {
    /// Text and the name after it, in turn; the last has none.
    parts: Vec<(String, Option<String>)>,
}

impl PromptTemplate {
    /// Reads a template; braces around anything but a name are literal.
    ///
    /// ```
    /// use tamis_rollout::prompt_template::PromptTemplate;
    /// let template = PromptTemplate::new("Rate {completion} as {\"score\": n} for {prompt}.");
    /// assert_eq!(template.names().collect::<Vec<_>>(), ["completion", "prompt"]);
    /// ```
    pub fn new(text: &str) -> Self {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let mut parts = Vec::new();
        let mut before = String::new();
        let mut rest = text;
        while let Some((left, right)) = rest.split_once('{') {
            before.push_str(left);
            if let Some((name, after)) = right.split_once('}').filter(|(name, _)| is_name(name)) {
                parts.push((std::mem::take(&mut before), Some(name.to_owned())));
                rest = after;
            } else {
                before.push('{');
                rest = right;
            }
        }
        before.push_str(rest);
        parts.push((before, None));
        Self { parts }
    }

    /// The names in it, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|(_, name)| name.as_deref())
    }

    /// The text about a completion, or the name that its row has nothing for.
    pub(crate) fn fill(&self, input: &RewardInput<'_>) -> Result<String, String> {
        let mut text = String::new();
        for (before, name) in &self.parts {
            text.push_str(before);
            if let Some(name) = name {
                text.push_str(&value_of(name, input).ok_or_else(|| name.clone())?);
            }
        }
        Ok(text)
    }
}

fn value_of(name: &str, input: &RewardInput<'_>) -> Option<String> {
    let prompt = input.prompt;
    match name {
        "prompt" => Some(question(prompt)),
        "completion" => Some(input.completion.to_owned()),
        "ground_truth" => prompt.ground_truth.clone(),
        "data_source" => Some(prompt.data_source.clone()),
        column => match prompt.columns.get(column)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        },
    }
}

/// The policy's prompt for the judge: a single message as its text, several with their roles.
fn question(prompt: &Prompt) -> String {
    match &prompt.content {
        PromptContent::Text(text) => text.clone(),
        PromptContent::Messages(messages) => match messages.as_slice() {
            [only] => only.content.clone(),
            several => {
                let lines = several.iter().map(|message| format!("{}: {}", message.role, message.content));
                lines.collect::<Vec<_>>().join("\n")
            }
        },
    }
}
