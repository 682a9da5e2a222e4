//! Translates the contract's sampling parameters into the native engine's, and finds the end of a text.

use std::sync::Arc;

use tamis_core::fault::Fault;
use tamis_model::{SamplingParams, StopCheck, TokenMask};
use tamis_text::regex_mask::RegexMask;
use tamis_text::stop::{StopHit, StopStrings};
use tamis_text::tokenizer::Tokenizer;

use crate::generator::Sampling;

/// Tokens decoded beyond the longest stop string, for characters that need several tokens.
const STOP_WINDOW: usize = 16;

/// The engine's sampling parameters; completions end at these tokens.
pub fn engine_params(sampling: &Sampling, end_token_ids: Vec<u32>) -> SamplingParams {
    let greedy = sampling.temperature <= 0.0;
    SamplingParams {
        temperature: if greedy { 1.0 } else { sampling.temperature as f32 },
        top_k: sampling.top_k.unwrap_or(0) as usize,
        top_p: sampling.top_p as f32,
        min_p: sampling.min_p as f32,
        repetition_penalty: sampling.repetition_penalty as f32,
        max_new_tokens: sampling.max_response_length,
        stop_token_ids: end_token_ids,
        greedy,
        num_alternatives: None,
    }
}

/// The tokens of completions that match an expression, for the engine.
pub fn token_mask(mask: &Arc<RegexMask>) -> Arc<dyn TokenMask> {
    Arc::new(OfRegex(Arc::clone(mask)))
}

struct OfRegex(Arc<RegexMask>);

impl TokenMask for OfRegex {
    fn start(&self) -> u32 {
        self.0.start()
    }

    fn after(&self, state: u32, token: u32) -> u32 {
        self.0.after(state, token)
    }

    fn allowed_tokens(&self, state: u32) -> Arc<[u64]> {
        self.0.allowed_tokens(state)
    }
}

/// Stop strings over the text of a completion's tokens.
#[derive(Debug)]
pub struct StopText {
    strings: StopStrings,
    tokenizer: Arc<Tokenizer>,
    longest: usize,
}

impl StopText {
    /// For these strings; an empty one is refused.
    pub fn new(strings: Vec<String>, tokenizer: Arc<Tokenizer>) -> Result<Self, Fault> {
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { strings: StopStrings::new(strings)?, tokenizer, longest })
    }

    /// The strings.
    pub fn strings(&self) -> &StopStrings {
        &self.strings
    }

    /// The check for the engine; `None` without stop strings.
    pub fn check(self: &Arc<Self>) -> Option<Arc<dyn StopCheck>> {
        if self.strings.is_empty() { None } else { Some(Arc::<Self>::clone(self)) }
    }

    /// Text of a completion without end tokens, and the stop string in it that ends first.
    pub fn read(&self, tokens: &[u32]) -> Result<(String, Option<StopHit>), Fault> {
        let text = self.tokenizer.decode(tokens, true)?;
        let hit = self.strings.find(&text, 0);
        Ok((text, hit))
    }
}

impl StopText {
    /// Text of a completion without end tokens and, if it has one, without the stop string and what
    /// follows it.
    pub fn text(&self, tokens: &[u32]) -> Result<String, Fault> {
        let (mut text, hit) = self.read(tokens)?;
        if let Some(hit) = hit {
            text.truncate(hit.start);
        }
        Ok(text)
    }
}

impl StopCheck for StopText {
    fn should_stop(&self, generated: &[u32]) -> bool {
        let from = generated.len().saturating_sub(self.longest + STOP_WINDOW);
        self.tokenizer
            .decode(&generated[from..], true)
            .is_ok_and(|text| self.strings.find(&text, 0).is_some())
    }
}
