//! Rows as examples: what the model reads of a row, and which of its tokens have a loss.
//!
//! - A text row is its tokens and the end token. All have a loss but the first, which follows nothing.
//! - A pair in texts is the tokens of prompt and completion as one text, and the end token. The completion
//!   begins after the prompt's own tokens. If those are not the beginning of the whole, because a token
//!   reaches from the prompt into the completion, the two are tokenized apart, as generation does. (TRL 1.16
//!   warns of that and begins the completion where they differ, so the prompt loses its end.)
//! - A pair of messages is rendered by the chat template as a whole. The prompt is its beginning up to the
//!   generation prompt.
//! - A conversation is rendered as a whole, and the assistant's turns have a loss
//!   ([`ChatTemplate::answers`](tamis_text::template::ChatTemplate::answers)).

use tamis_config::LossOn;
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_data::prompt::{Message, PromptContent};
use tamis_data::prompt_format::Formatter;
use tamis_data::sft_rows::{SftRow, SftTarget};
use tamis_text::template::{ChatTemplate, TemplateError};

use super::{Example, SftError};
use crate::prompts::codec::{Codec, CodecError};

/// How rows become examples.
#[derive(Debug, Clone)]
pub struct RowSettings {
    /// The tokens that have a loss.
    pub loss_on: LossOn,
    /// Longest example, in tokens, at least 2; the end of a longer one is cut off.
    pub max_length: usize,
    /// The form of prompts.
    pub formatter: Formatter,
}

/// Rows as examples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokenized {
    /// The examples, in the order of the rows.
    pub examples: Vec<Example>,
    /// Rows that were cut.
    pub num_cut: usize,
    /// Rows left out, because no token of them has a loss.
    pub num_without_loss: usize,
}

/// The tokens of a row, and which have a loss.
struct Tokens {
    ids: Vec<u32>,
    mask: Vec<bool>,
}

impl Tokens {
    /// Tokens of which those from `start` on have a loss.
    fn from(ids: Vec<u32>, start: usize) -> Self {
        Self { mask: (0..ids.len()).map(|place| place >= start).collect(), ids }
    }

    /// The example; `None` if no token has a loss. The first token follows nothing and has none.
    fn into_example(self, max_length: usize) -> (Option<Example>, bool) {
        let Self { mut ids, mut mask } = self;
        let is_cut = ids.len() > max_length;
        ids.truncate(max_length);
        mask.truncate(max_length);
        let start = mask.iter().skip(1).position(|&is_learned| is_learned);
        let end = mask.iter().rposition(|&is_learned| is_learned);
        let Some((start, end)) = start.map(|start| start + 1).zip(end) else { return (None, is_cut) };
        // What follows the last token with a loss changes nothing.
        ids.truncate(end + 1);
        let completion = ids.split_off(start);
        let mask = mask[start..=end].to_vec();
        (Some(Example { prompt: ids, images: Vec::new(), completion, mask }), is_cut)
    }
}

/// Makes examples of rows.
///
/// # Errors
/// [`SftError::Row`] for the first row that the template or the tokenizer refuses.
pub fn tokenize(codec: &Codec, rows: &[SftRow], settings: &RowSettings) -> Result<Tokenized, SftError> {
    let mut all = Tokenized::default();
    for row in rows {
        let tokens = tokens_of(codec, row, settings)
            .map_err(|source| SftError::Row { place: row.place.clone(), source: Box::new(source) })?;
        let (example, is_cut) = tokens.into_example(settings.max_length.max(2));
        all.num_cut += usize::from(is_cut);
        match example {
            Some(example) => all.examples.push(example),
            None => all.num_without_loss += 1,
        }
    }
    Ok(all)
}

fn tokens_of(codec: &Codec, row: &SftRow, settings: &RowSettings) -> Result<Tokens, CodecError> {
    let is_whole = settings.loss_on == LossOn::All;
    match &row.target {
        SftTarget::Text => {
            let PromptContent::Text(text) = &row.prompt.content else { return Err(not_text()) };
            let mut ids = codec.tokenizer().encode(text, true)?;
            end(codec, &mut ids);
            Ok(Tokens::from(ids, 0))
        }
        SftTarget::Turns => {
            let content = shaped(row, settings)?;
            let PromptContent::Messages(messages) = &content else { return Err(not_text()) };
            let template = template_of(codec)?;
            let arguments = codec.arguments_of(&row.prompt)?;
            if settings.loss_on != LossOn::Answers {
                let text = template.render(messages, &arguments)?;
                return Ok(Tokens::from(codec.tokenizer().encode(&text, false)?, 0));
            }
            let rendered = template.answers(messages, &arguments)?;
            let (ids, places) = codec.tokenizer().encode_with_places(&rendered.text)?;
            let mut answers = rendered.places.iter().peekable();
            let mask = places.iter().map(|place| {
                while answers.next_if(|answer| answer.end <= place.start).is_some() {}
                answers.peek().is_some_and(|answer| answer.start < place.end && place.start < answer.end)
            });
            Ok(Tokens { mask: mask.collect(), ids })
        }
        SftTarget::Completion(completion) => {
            let pair = pair_of(codec, row, completion, settings)?;
            Ok(if is_whole { Tokens::from(pair.ids, 0) } else { pair })
        }
    }
}

fn pair_of(
    codec: &Codec,
    row: &SftRow,
    completion: &PromptContent,
    settings: &RowSettings,
) -> Result<Tokens, CodecError> {
    let content = shaped(row, settings)?;
    let (prompt, whole, is_text) = match (&content, completion) {
        (PromptContent::Text(prompt), PromptContent::Text(completion)) => {
            (prompt.clone(), format!("{prompt}{completion}"), true)
        }
        (PromptContent::Messages(messages), completion) => {
            let template = template_of(codec)?;
            let arguments = codec.arguments_of(&row.prompt)?;
            let prompt = template.prompt(messages, &arguments)?.text;
            let whole = template.render(&joined(messages, completion), &arguments)?;
            (prompt, whole, false)
        }
        (PromptContent::Text(_), PromptContent::Messages(_)) => {
            return Err(fault!("the completion is a list of messages, and the prompt reaches the model as bare text: set data.prompt_format=chat, or give \
                 the prompt as messages").into());
        }
    };
    let Some(rest) = whole.strip_prefix(&prompt) else {
        return Err(fault!("the chat template writes the prompt otherwise once the completion follows it, so it is unknown where the completion begins")
            .with_hint("sft.loss_on=all learns every token of the rows; model.chat_template names another template")
            .into());
    };
    let tokenizer = codec.tokenizer();
    let (before, mut ids) = (tokenizer.encode(&prompt, is_text)?, tokenizer.encode(&whole, is_text)?);
    if !ids.starts_with(&before) {
        ids.clone_from(&before);
        ids.extend(tokenizer.encode(rest, false)?);
    }
    if is_text {
        end(codec, &mut ids);
    }
    Ok(Tokens::from(ids, before.len()))
}

/// A conversation with its completion. A text goes on with an answer that the conversation ends in.
fn joined(messages: &[Message], completion: &PromptContent) -> Vec<Message> {
    let mut all = messages.to_vec();
    match (completion, all.last_mut()) {
        (PromptContent::Text(text), Some(last)) if last.role == "assistant" => last.content.push_str(text),
        (completion, _) => all.extend(SftTarget::completion_messages(completion)),
    }
    all
}

/// The prompt or conversation in the form that `data.prompt_format` gives it.
fn shaped(row: &SftRow, settings: &RowSettings) -> Result<PromptContent, CodecError> {
    let shaped = settings.formatter.apply(row.prompt.content.clone(), row.is_question);
    shaped.map_err(|fault| Fault::new(fault.to_string()).into())
}

fn template_of(codec: &Codec) -> Result<&ChatTemplate, CodecError> {
    Ok(codec.template().ok_or(TemplateError::Missing)?)
}

fn not_text() -> CodecError {
    fault!("its content is not of the kind that its layout has").into()
}

/// The end token after a text, as after a gold answer.
fn end(codec: &Codec, ids: &mut Vec<u32>) {
    let ends = codec.end_token_ids();
    if ids.last().is_none_or(|last| !ends.contains(last)) {
        ids.extend(ends.first());
    }
}
