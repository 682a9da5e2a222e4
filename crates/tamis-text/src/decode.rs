//! Text of a sequence as its tokens arrive.

use crate::tokenizer::Tokenizer;
use tamis_core::fault::Fault;

/// Decodes a growing sequence. Text appears as soon as its characters are complete.
///
/// One character may need several tokens (bytes of UTF-8), and a token's text may depend on its neighbours (a
/// leading space). So each step decodes a short window and takes the difference. It holds back while the
/// window ends in an incomplete character.
#[derive(Debug, Clone, Default)]
pub struct IncrementalDecoder {
    ids: Vec<u32>,
    /// Start of the window.
    prefix: usize,
    /// Tokens whose text is in `text`.
    read: usize,
    text: String,
    num_rewrites: u32,
    skip_special: bool,
}

/// Character that byte-level decoders output for an incomplete one.
const INCOMPLETE: char = '\u{fffd}';

impl IncrementalDecoder {
    /// An empty sequence. `skip_special` leaves special tokens out of the text.
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ..Self::default() }
    }

    /// Appends a token. Returns the text that it completes (often empty).
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<&str, Fault> {
        self.ids.push(id);
        self.advance(tokenizer, false)
    }

    /// Text so far, without a character that is still incomplete.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of times that earlier text has changed.
    pub fn num_rewrites(&self) -> u32 {
        self.num_rewrites
    }

    /// Tokens so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Releases the text that was held back (U+FFFD if it stayed incomplete) and returns it. Call this at the
    /// end of the sequence.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<&str, Fault> {
        self.advance(tokenizer, true)
    }

    fn advance(&mut self, tokenizer: &Tokenizer, last: bool) -> Result<&str, Fault> {
        let before = self.text.len();
        let window = self.ids.get(self.prefix..).unwrap_or_default();
        let known = self.ids.get(self.prefix..self.read).unwrap_or_default();
        let shown = tokenizer.decode(known, self.skip_special)?;
        let decoded = tokenizer.decode(window, self.skip_special)?;
        if last || !decoded.ends_with(INCOMPLETE) {
            if let Some(new) = decoded.strip_prefix(shown.as_str()) {
                self.text.push_str(new);
            } else {
                // The decoder rewrites earlier text (clean-up of spaces), so the whole text is decoded again.
                self.text = tokenizer.decode(&self.ids, self.skip_special)?;
                self.num_rewrites += 1;
            }
            self.prefix = self.read;
            self.read = self.ids.len();
        }
        Ok(self.text.get(before..).unwrap_or_default())
    }
}
