//! Completions that match a regular expression: which tokens may come next.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start::Config as Start;
use regex_automata::util::syntax;
use regex_automata::{Anchored, MatchKind};
use thiserror::Error;

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Bytes that an expression's automaton may take, in its making and when it is done: the largest that are useful are some hundred kilobytes.
const MAX_AUTOMATON: usize = 16 << 20;

/// An expression cannot be followed.
#[derive(Debug, Error)]
pub enum RegexMaskError {
    /// It is no regular expression.
    #[error("not a regular expression that can be followed: {detail}")]
    Pattern {
        /// What is wrong, and where.
        detail: String,
    },
    /// The tokenizer's tokens are not known as text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Nothing that the tokenizer can write begins a match.
    #[error("no token can begin a text that matches the expression")]
    NoBeginning,
}

/// The regular expression that a whole completion must match, over the tokens of one tokenizer.
///
/// After any tokens the mask allows those that keep a match possible; end tokens are allowed where the text so far is a match. Special
/// tokens, which are no text, are not. A completion that is cut off at its length limit is the beginning of a match. (Willard and Louf 2023, arXiv
/// 2307.09702; masks are made when a state is first met, and kept.)
///
/// The syntax is that of the crate `regex`: no look-around, no back-references; `.` is any character but a line break.
#[derive(Debug)]
pub struct RegexMask {
    automaton: dense::DFA<Vec<u32>>,
    start: StateID,
    /// Text of each token; `None` where it is none.
    tokens: Vec<Option<Box<[u8]>>>,
    end_token_ids: Vec<u32>,
    masks: RwLock<BTreeMap<StateID, Arc<[u64]>>>,
}

impl RegexMask {
    /// For the completions of a tokenizer, which end with one of `end_token_ids`.
    pub fn new(pattern: &str, tokenizer: &Tokenizer, end_token_ids: &[u32]) -> Result<Self, RegexMaskError> {
        let automaton = automaton(pattern)?;
        let start = automaton
            .start_state(&Start::new().anchored(Anchored::Yes))
            .map_err(|error| RegexMaskError::Pattern { detail: error.to_string() })?;
        let tokens = tokenizer.token_bytes()?;
        let mask = Self {
            automaton,
            start,
            tokens,
            end_token_ids: end_token_ids.to_vec(),
            masks: RwLock::default(),
        };
        if mask.allowed(&[]).iter().all(|&word| word == 0) {
            return Err(RegexMaskError::NoBeginning);
        }
        Ok(mask)
    }

    /// Whether an expression can be followed at all, whatever the tokenizer.
    pub fn check(pattern: &str) -> Result<(), RegexMaskError> {
        automaton(pattern).map(|_| ())
    }

    /// The tokens that may follow `generated`, bit `id % 64` of word `id / 64` for each; none after an end token.
    pub fn allowed(&self, generated: &[u32]) -> Arc<[u64]> {
        let Some(state) = self.state_after(generated) else { return self.empty() };
        let masks = self.masks.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = masks.get(&state) {
            return mask.clone();
        }
        drop(masks);
        let mask = self.mask_of(state);
        // Another thread may have made the same one meanwhile.
        self.masks.write().unwrap_or_else(PoisonError::into_inner).insert(state, mask.clone());
        mask
    }

    /// Whether nothing may follow `generated`: after an end token, or where a match is whole and there is no end token, or where the
    /// tokenizer has no token to go on with.
    pub fn is_over(&self, generated: &[u32]) -> bool {
        self.allowed(generated).iter().all(|&word| word == 0)
    }

    fn empty(&self) -> Arc<[u64]> {
        vec![0; self.tokens.len().div_ceil(64)].into()
    }

    /// `None` where no match is possible any more, or the completion has ended.
    fn state_after(&self, generated: &[u32]) -> Option<StateID> {
        generated.iter().try_fold(self.start, |state, &token| {
            let bytes = self.tokens.get(token as usize)?.as_ref()?;
            self.walk(state, bytes)
        })
    }

    fn walk(&self, state: StateID, bytes: &[u8]) -> Option<StateID> {
        bytes.iter().try_fold(state, |state, &byte| {
            let next = self.automaton.next_state(state, byte);
            (!self.automaton.is_dead_state(next) && !self.automaton.is_quit_state(next)).then_some(next)
        })
    }

    fn mask_of(&self, state: StateID) -> Arc<[u64]> {
        let mut mask = vec![0u64; self.tokens.len().div_ceil(64)];
        let mut allow = |token: usize| mask[token / 64] |= 1 << (token % 64);
        for (token, bytes) in self.tokens.iter().enumerate() {
            if bytes.as_ref().is_some_and(|bytes| !bytes.is_empty() && self.walk(state, bytes).is_some()) {
                allow(token);
            }
        }
        if self.automaton.is_match_state(self.automaton.next_eoi_state(state)) {
            for &token in self.end_token_ids.iter().filter(|&&token| (token as usize) < self.tokens.len()) {
                allow(token as usize);
            }
        }
        mask.into()
    }
}

fn automaton(pattern: &str) -> Result<dense::DFA<Vec<u32>>, RegexMaskError> {
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        // A longest match would stop at the first alternative that matches; every continuation counts here.
        .match_kind(MatchKind::All)
        .dfa_size_limit(Some(MAX_AUTOMATON))
        .determinize_size_limit(Some(MAX_AUTOMATON));
    // By itself, so that a parenthesis that is missing here is not found in what is put around it.
    syntax::parse(pattern).map_err(|error| RegexMaskError::Pattern { detail: chain(&error) })?;
    dense::Builder::new()
        .configure(config)
        .build(&format!("(?:{pattern})\\z"))
        .map_err(|error| RegexMaskError::Pattern { detail: chain(&error) })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALPHABET: &str = "0123456789ab-+ ";

    fn mask(pattern: &str) -> RegexMask {
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        RegexMask::new(pattern, &tokenizer, &[1]).expect("a mask")
    }

    /// The characters that may follow a text, `$` for the end token.
    fn after(mask: &RegexMask, text: &str) -> String {
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        let allowed = mask.allowed(&tokenizer.encode(text, false).expect("in the alphabet"));
        let is_allowed = |id: usize| allowed[id / 64] >> (id % 64) & 1 == 1;
        assert!(!is_allowed(0), "padding");
        let end = is_allowed(1).then_some('$');
        ALPHABET.chars().enumerate().filter(|(i, _)| is_allowed(i + 2)).map(|(_, c)| c).chain(end).collect()
    }

    #[test]
    fn what_may_follow_keeps_a_match_possible() {
        let digits = "0123456789";
        let number = mask("-?[0-9]{1,3}");
        assert_eq!(after(&number, ""), format!("{digits}-"));
        assert_eq!(after(&number, "-"), digits);
        assert_eq!(after(&number, "-1"), format!("{digits}$"));
        assert_eq!(after(&number, "123"), "$");
        // Both alternatives stay open, although one of them has matched.
        assert_eq!(after(&mask("a|ab"), "a"), "b$");
        assert_eq!(after(&mask("(a|b)*"), ""), "ab$");
        assert_eq!(after(&mask("^a+$"), "aa"), "a$");
        assert_eq!(after(&mask("(?i)A b"), "a"), " ");
        // A text that is none of the expression's has no continuation.
        assert_eq!(after(&number, "a"), "");
        assert_eq!(after(&number, "1-"), "");
    }

    #[test]
    fn a_completion_is_over_after_its_end_token() {
        let number = mask("[0-9]");
        assert!(!number.is_over(&[]));
        assert!(!number.is_over(&[2]), "its end token is to come");
        assert!(number.is_over(&[2, 1]));
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        let without_end = RegexMask::new("[0-9]", &tokenizer, &[]).expect("a mask");
        assert!(without_end.is_over(&[2]));
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        let refused = |pattern: &str| RegexMask::new(pattern, &tokenizer, &[1]).unwrap_err().to_string();
        insta::assert_snapshot!(refused("x"), @"no token can begin a text that matches the expression");
        assert!(
            refused("(").starts_with("not a regular expression that can be followed: "),
            "{}",
            refused("(")
        );
        assert!(refused("(?=a)").contains("look-around"), "{}", refused("(?=a)"));
        assert!(refused("a)(b").starts_with("not a regular expression"), "{}", refused("a)(b"));
        let large = refused(r"(\w{50}|\d{60}){70}");
        assert!(large.contains("exceeded"), "{large}");
        RegexMask::check("a+").expect("an expression");
    }

    /// Bytes of a character that two tokens share, and tokens of several characters.
    #[test]
    fn byte_level_tokens_are_walked_byte_by_byte() {
        let tokenizer = Tokenizer::load(&tamis_golden::folder().join("hf/tokenizer")).expect("a tokenizer");
        let mask = RegexMask::new("(caf\u{e9}|caf\u{ea})!", &tokenizer, &[]).expect("a mask");
        let ids = tokenizer.encode("caf\u{e9}!", false).expect("ids");
        for (i, &id) in ids.iter().enumerate() {
            let allowed = mask.allowed(&ids[..i]);
            assert_eq!(allowed[id as usize / 64] >> (id % 64) & 1, 1, "token {i} of {ids:?}");
        }
        assert!(mask.is_over(&ids));
    }
}
