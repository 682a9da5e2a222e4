//! Chat templates: turn a conversation into the text form that a model was trained on.
//!
//! Templates are Jinja as `transformers` runs it: `trim_blocks` and `lstrip_blocks` on, loop controls,
//! Python's string, list and dictionary methods, `raise_exception`, `strftime_now`, `tojson` as Python's
//! `json.dumps` writes, and `{% generation %}` blocks, whose places in the text [`ChatTemplate::answers`]
//! gives. The module `python` has what differs from minijinja.
//!
//! A template may come from anyone. `limits` bounds its memory and its time.

mod answers;
mod date;
mod filters;
mod generation;
mod json;
mod limits;
mod messages;
mod program;
mod python;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::{Map, Value};
use tamis_core::caught;
use thiserror::Error as ThisError;

use program::TemplateProgram;

/// Put after the final message's content while it is rendered, to find where that content ends.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A conversation could not be rendered.
#[derive(Debug, ThisError)]
pub enum TemplateError {
    /// The tokenizer came without a template.
    #[error(
        "the tokenizer has no chat template; add chat_template.jinja to its folder, or give prompts as text instead of messages"
    )]
    Missing,
    /// There are only named templates, and none is called `default`.
    #[error("the tokenizer has chat templates {}, but none named `default`", names.join(", "))]
    NoDefault {
        /// Their names.
        names: Vec<String>,
    },
    /// A template file or field is not text.
    #[error("the chat template in {file} is not text: {detail}")]
    NotText {
        /// The file.
        file: String,
        /// Description of the fault.
        detail: String,
    },
    /// The template does not parse.
    #[error("the chat template does not parse (line {line}): {detail}")]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// The parser's message.
        detail: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("the chat template refuses the conversation: {message}")]
    Raised {
        /// Message of the template.
        message: String,
    },
    /// The template failed on the conversation.
    #[error("the chat template failed (line {line}): {detail}")]
    Render {
        /// Line of the template, from 1.
        line: usize,
        /// Description of the fault.
        detail: String,
    },
    /// The template is too long.
    #[error(
        "the chat template has {length} bytes, and at most {} bytes are read: is it the right file?",
        tamis_file::MAX_TEMPLATE
    )]
    TooLong {
        /// Length in bytes.
        length: usize,
    },
    /// The template exceeds a limit that no conversation needs.
    #[error("the chat template needs too much work for one conversation: {what}")]
    TooMuch {
        /// The limit that was exceeded.
        what: &'static str,
    },
    /// The conversation has no message.
    #[error("the conversation is empty")]
    Empty,
    /// A message is not JSON.
    #[error("message {index} of the conversation is not JSON")]
    Message {
        /// Index of the message, from 0.
        index: usize,
        /// The underlying error.
        #[source]
        source: serde_json::Error,
    },
    /// The final assistant message has no text to continue.
    #[error("the final assistant message has no text in `content`, so it cannot be continued")]
    NothingToContinue,
    /// The places of the assistant's turns in the text cannot be found.
    #[error(
        "the assistant's turns cannot be found in the text: the template has no `{{% generation %}}` blocks, and it writes the \
         conversation up to message {index} otherwise if more follows"
    )]
    AnswersLost {
        /// Index of the message, from 0.
        index: usize,
    },
    /// The template does not show the final message, so there is nothing to continue.
    #[error(
        "the chat template does not show the final assistant message (it may drop or rewrite it), so it cannot be continued"
    )]
    ContinueLost,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// Text that the model sees; encode it without adding special tokens.
    pub text: String,
    /// The final assistant message's text, if the conversation ends in one. The completion continues it, and
    /// rewards see it in front of the completion.
    pub continued: Option<String>,
}

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    programs: Arc<BTreeMap<String, TemplateProgram>>,
    /// The templates that have `generation` blocks, with marks around them.
    marked: Arc<BTreeMap<String, TemplateProgram>>,
    special_tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` (`bos_token`, `eos_token`, ...) become variables. `strftime_now`
    /// returns the time of this call (UTC), unless [`Self::with_now`] sets another.
    pub fn new(source: &str, special_tokens: &BTreeMap<String, String>) -> Result<Self, TemplateError> {
        Self::compile(&[("default".to_owned(), source.to_owned())], special_tokens)
    }

    fn compile(
        sources: &[(String, String)],
        special_tokens: &BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let rules = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| syntax(&error))?;
        let mut environment = Environment::new();
        environment.set_syntax(rules.clone());
        python::install(&mut environment);
        limits::install(&mut environment);
        filters::install(&mut environment);
        let (mut programs, mut marked) = (BTreeMap::new(), BTreeMap::new());
        for (name, source) in sources {
            if source.len() as u64 > tamis_file::MAX_TEMPLATE {
                return Err(TemplateError::TooLong { length: source.len() });
            }
            let compile = |source: String| {
                caught::catch(|| TemplateProgram::compile(source, &rules))
                    .map_err(|detail| TemplateError::Syntax { line: 1, detail })?
                    .map_err(|error| syntax(&error))
            };
            programs.insert(name.clone(), compile(generation::remove_tags(source))?);
            if generation::has_tags(source) {
                marked.insert(name.clone(), compile(generation::mark_tags(source))?);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        let template = Self {
            environment,
            programs: Arc::new(programs),
            marked: Arc::new(marked),
            special_tokens: special_tokens.clone(),
        };
        Ok(template.with_now(now as i64))
    }

    pub(crate) fn from_files(
        files: &BTreeMap<String, Vec<u8>>,
        special_tokens: &BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let mut sources: BTreeMap<String, String> = BTreeMap::new();
        let text = |file: &str, bytes: &[u8]| {
            String::from_utf8(bytes.to_vec())
                .map_err(|error| TemplateError::NotText { file: file.to_owned(), detail: error.to_string() })
        };
        for file in ["chat_template.json", "tokenizer_config.json"] {
            let Some(bytes) = files.get(file) else { continue };
            let config: Value = serde_json::from_slice(bytes).map_err(|error| TemplateError::NotText {
                file: file.to_owned(),
                detail: error.to_string(),
            })?;
            match &config["chat_template"] {
                Value::Null => {}
                Value::String(source) => {
                    sources.insert("default".to_owned(), source.clone());
                }
                Value::Array(named) => {
                    for entry in named {
                        let (Some(name), Some(source)) = (entry["name"].as_str(), entry["template"].as_str())
                        else {
                            return Err(TemplateError::NotText {
                                file: file.to_owned(),
                                detail: format!("expected {{name, template}}, got {entry}"),
                            });
                        };
                        sources.insert(name.to_owned(), source.to_owned());
                    }
                }
                other => {
                    return Err(TemplateError::NotText { file: file.to_owned(), detail: other.to_string() });
                }
            }
        }
        for (file, bytes) in files {
            let Some(path) = file.strip_suffix(".jinja") else { continue };
            let name = match path.rsplit_once('/') {
                Some((_, name)) => name,
                None => "default",
            };
            sources.insert(name.to_owned(), text(file, bytes)?);
        }
        if sources.is_empty() {
            return Err(TemplateError::Missing);
        }
        if !sources.contains_key("default") {
            return Err(TemplateError::NoDefault { names: sources.into_keys().collect() });
        }
        Self::compile(&sources.into_iter().collect::<Vec<_>>(), special_tokens)
    }

    /// Sets the time that `strftime_now` returns, in seconds since 1970 (UTC). A run that must replay exactly
    /// sets the time at which it started.
    #[must_use]
    pub fn with_now(mut self, seconds: i64) -> Self {
        self.environment.add_function("strftime_now", move |format: &str| date::strftime(format, seconds));
        self
    }

    /// Renders a conversation for generation.
    ///
    /// The template gets every field of a message that is not null. As in `transformers`, a message's
    /// reasoning is there under each of its names (`messages`).
    ///
    /// `arguments` become variables of the template (`tools`, `enable_thinking`, ...). If the last message is
    /// the assistant's, it is continued: the text ends right after that message's content, without generation
    /// prompt, as with `continue_final_message` of `transformers`. Otherwise the generation prompt is added.
    pub fn prompt<M: Serialize>(
        &self,
        messages: &[M],
        arguments: &Map<String, Value>,
    ) -> Result<RenderedPrompt, TemplateError> {
        let mut conversation = messages::normalize(&to_json(messages)?);
        let Some(last) = conversation.last_mut() else { return Err(TemplateError::Empty) };
        let mut arguments = arguments.clone();
        if last["role"] != "assistant" {
            arguments.insert("add_generation_prompt".to_owned(), Value::Bool(true));
            let text = self.render_json(&conversation, &arguments)?;
            return Ok(RenderedPrompt { text, continued: None });
        }
        arguments.insert("add_generation_prompt".to_owned(), Value::Bool(false));
        let slot = final_text(last).ok_or(TemplateError::NothingToContinue)?;
        let content = slot.clone();
        slot.push_str(CONTINUE_TAG);
        let mut text = self.render_json(&conversation, &arguments)?;
        let tag = CONTINUE_TAG.trim_end();
        let end = text.rfind(tag).ok_or(TemplateError::ContinueLost)?;
        if !text.contains(content.trim()) {
            return Err(TemplateError::ContinueLost);
        }
        // If the template trimmed the message, the tag's space is gone. Then the message's own trailing space
        // goes too.
        let trimmed = !text.get(end..).is_some_and(|rest| rest.starts_with(CONTINUE_TAG));
        text.truncate(end);
        if trimmed {
            text.truncate(text.trim_end().len());
        }
        let continued = if trimmed { content.trim_end().to_owned() } else { content };
        Ok(RenderedPrompt { text, continued: Some(continued) })
    }

    /// Renders a conversation unchanged, with exactly the given variables (`add_generation_prompt` is false
    /// unless given).
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        arguments: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        self.render_json(&messages::normalize(&to_json(messages)?), arguments)
    }

    /// Renders messages unchanged. If the template does not accept content in parts, their texts are joined.
    fn render_json(
        &self,
        messages: &[Value],
        arguments: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        let Some(joined) = messages::joined(messages) else { return self.render_once(messages, arguments) };
        match self.render_once(messages, arguments) {
            Ok(text) if !messages::shows_lists(messages, &text) => Ok(text),
            _ => self.render_once(&joined, arguments),
        }
    }

    fn render_once(
        &self,
        messages: &[Value],
        arguments: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        self.render_with(&self.programs, messages, arguments)
    }

    fn render_with(
        &self,
        programs: &BTreeMap<String, TemplateProgram>,
        messages: &[Value],
        arguments: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        let mut context: Vec<(String, minijinja::Value)> = Vec::new();
        context.push(("tools".to_owned(), minijinja::Value::from(())));
        context.push(("documents".to_owned(), minijinja::Value::from(())));
        context.push(("add_generation_prompt".to_owned(), minijinja::Value::from(false)));
        for (name, token) in &self.special_tokens {
            context.push((name.clone(), minijinja::Value::from(token.as_str())));
        }
        for (name, value) in arguments {
            context.push((name.clone(), python::from_json(value)));
        }
        context.push(("messages".to_owned(), messages.iter().map(python::from_json).collect()));
        let with_tools = arguments.get("tools").is_some_and(|tools| !tools.is_null());
        let for_tools = programs.get("tool_use").filter(|_| with_tools);
        let program = for_tools.or_else(|| programs.get("default")).ok_or(TemplateError::Missing)?;
        limits::begin();
        // The template engine panics in some cases, for example when an empty text is sliced backwards.
        caught::catch(|| program.render(&self.environment, minijinja::Value::from_pairs(context)))
            .map_err(|detail| TemplateError::Render { line: 1, detail })?
            .map_err(|error| render(&error))
    }
}

pub(crate) fn to_json<M: Serialize>(messages: &[M]) -> Result<Vec<Value>, TemplateError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            serde_json::to_value(message).map_err(|source| TemplateError::Message { index, source })
        })
        .collect()
}

/// The text of a message, or the last text block of one whose content is a list of blocks.
fn final_text(message: &mut Value) -> Option<&mut String> {
    match message.get_mut("content")? {
        Value::String(text) => Some(text),
        Value::Array(blocks) => blocks.iter_mut().rev().find_map(|block| match block.get_mut("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }),
        _ => None,
    }
}

fn detail(error: &Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text = format!("{text}: {detail}");
    }
    text
}

fn syntax(error: &Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(1), detail: detail(error) }
}

fn render(error: &Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut innermost = error;
    while let Some(current) = source {
        if let Some(python::Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised { message: message.clone() };
        }
        if let Some(&limits::Exceeded(what)) = current.downcast_ref() {
            return TemplateError::TooMuch { what };
        }
        if let Some(inner) = current.downcast_ref::<Error>() {
            innermost = inner;
        }
        source = current.source();
    }
    match innermost.kind() {
        ErrorKind::SyntaxError => return syntax(innermost),
        ErrorKind::OutOfFuel => return TemplateError::TooMuch { what: limits::TOO_MANY_STEPS },
        _ => {}
    }
    TemplateError::Render { line: innermost.line().or(error.line()).unwrap_or(1), detail: detail(innermost) }
}

#[cfg(test)]
mod tests;
