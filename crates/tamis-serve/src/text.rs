//! Text of a choice as its tokens arrive, and the text of each token.

use std::sync::Arc;

use serde_json::{Value, json};
use tamis_model::CompletionEnd;
use tamis_rollout::api::error::ApiError;
use tamis_text::decode::IncrementalDecoder;
use tamis_text::stop::StopHit;
use tamis_text::tokenizer::Tokenizer;

use crate::engine::{Ended, Piece};
use crate::sampling::HowSampled;

/// The text of a whole completion, and why it ended: a stop string, a stop token of the request, or null.
pub(crate) fn whole(
    tokenizer: &Tokenizer,
    how: &HowSampled,
    end_token_ids: &[u32],
    tokens: &[u32],
    finish: CompletionEnd,
) -> Result<(String, Value), ApiError> {
    let (mut text, mut hit) = how.stop.read(tokens)?;
    if !how.skips_special {
        text = tokenizer.decode(tokens, false)?;
        hit = how.stop.strings().find(&text, 0);
    }
    if let Some(hit) = hit {
        text.truncate(if how.includes_stop { hit.end } else { hit.start });
    }
    let stopped_by = hit.and_then(|hit| how.stop.strings().strings().get(hit.index));
    Ok((text, stop_reason(how, end_token_ids, tokens.last(), stopped_by, finish)))
}

/// A stop token of the request, otherwise the stop string that was found, otherwise null.
pub(crate) fn stop_reason(
    how: &HowSampled,
    end_token_ids: &[u32],
    last: Option<&u32>,
    stopped_by: Option<&String>,
    finish: CompletionEnd,
) -> Value {
    if finish != CompletionEnd::Stop {
        return Value::Null;
    }
    match last {
        Some(last) if how.stop_token_ids.contains(last) && !end_token_ids.contains(last) => json!(last),
        _ => json!(stopped_by),
    }
}

/// vLLM's name for the end of a completion.
pub(crate) fn finish_name(ended: &Ended) -> &'static str {
    match ended.finish {
        CompletionEnd::Stop => "stop",
        CompletionEnd::Length => "length",
        CompletionEnd::Aborted => "abort",
        CompletionEnd::NotFinite => "error",
    }
}

/// The text that may be shown so far. It holds back what may still become a stop string or a whole character.
pub(crate) struct GrowingText {
    tokenizer: Arc<Tokenizer>,
    how: Arc<HowSampled>,
    decoder: IncrementalDecoder,
    shown: usize,
    /// Bytes already searched for stop strings, and the number of rewrites of the text at that time.
    searched: (usize, u32),
    hit: Option<StopHit>,
    last: Option<u32>,
}

impl GrowingText {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, how: Arc<HowSampled>) -> Self {
        let decoder = IncrementalDecoder::new(how.skips_special);
        Self { tokenizer, how, decoder, shown: 0, searched: (0, 0), hit: None, last: None }
    }

    /// Appends tokens. Returns the text that they add.
    pub(crate) fn push(&mut self, tokens: &[u32], is_last: bool) -> Result<String, ApiError> {
        for &token in tokens {
            self.decoder.push(&self.tokenizer, token)?;
        }
        self.last = tokens.last().copied().or(self.last);
        if is_last {
            self.decoder.finish(&self.tokenizer)?;
        }
        let text = self.decoder.text();
        let num_rewrites = self.decoder.num_rewrites();
        if self.searched.1 != num_rewrites {
            (self.searched, self.hit) = ((0, num_rewrites), None);
        }
        self.hit = self.hit.or_else(|| self.how.stop.strings().find(text, self.searched.0));
        self.searched.0 = text.len();
        let end = match self.hit {
            Some(hit) if self.how.includes_stop => hit.end,
            Some(hit) => hit.start,
            None if is_last => text.len(),
            None => text.len() - self.how.stop.strings().pending_len(text),
        };
        let new = text.get(self.shown..end).unwrap_or_default().to_owned();
        self.shown = self.shown.max(end);
        Ok(new)
    }

    /// Why it ended, see [`whole`].
    pub(crate) fn stop_reason(&self, end_token_ids: &[u32], finish: CompletionEnd) -> Value {
        let strings = self.how.stop.strings();
        let stopped_by = self.hit.and_then(|hit| strings.strings().get(hit.index));
        stop_reason(&self.how, end_token_ids, self.last.as_ref(), stopped_by, finish)
    }
}

/// The text that each token completes, special tokens included.
pub(crate) struct TokenTexts {
    tokenizer: Arc<Tokenizer>,
    decoder: IncrementalDecoder,
    /// Characters before the next token.
    offset: usize,
    /// Whether tokens are named by their ids (`token_id:17`).
    as_ids: bool,
}

impl TokenTexts {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, as_ids: bool) -> Self {
        Self { tokenizer, decoder: IncrementalDecoder::new(false), offset: 0, as_ids }
    }

    /// The next token's text, and the number of characters before it.
    pub(crate) fn next(&mut self, token: u32) -> Result<(String, usize), ApiError> {
        let text = if self.as_ids {
            format!("token_id:{token}")
        } else {
            self.decoder.push(&self.tokenizer, token)?.to_owned()
        };
        let before = self.offset;
        self.offset += text.chars().count();
        Ok((text, before))
    }

    /// The next tokens by their text, with the likeliest alternatives of each, in the form of OpenAI's chat
    /// completions.
    pub(crate) fn logprobs(&mut self, piece: &Piece, count: usize) -> Result<Value, ApiError> {
        let entry = |text: String, logprob: f32| json!({"token": text, "logprob": f64::from(logprob), "bytes": text.as_bytes()});
        let mut content = Vec::with_capacity(piece.token_ids.len());
        for (i, (&token, &logprob)) in piece.token_ids.iter().zip(&piece.logprobs).enumerate() {
            let mut value = entry(self.next(token)?.0, logprob);
            let likeliest = piece.alternatives.get(i).map_or(&[][..], |alternatives| &alternatives.likeliest);
            let mut top = Vec::new();
            for &(other, logprob) in likeliest.iter().take(count) {
                top.push(entry(self.alone(other)?, logprob));
            }
            value["top_logprobs"] = Value::Array(top);
            content.push(value);
        }
        Ok(json!({"content": content}))
    }

    pub(crate) fn alone(&self, token: u32) -> Result<String, ApiError> {
        if self.as_ids {
            return Ok(format!("token_id:{token}"));
        }
        Ok(self.tokenizer.decode(&[token], false)?)
    }
}
