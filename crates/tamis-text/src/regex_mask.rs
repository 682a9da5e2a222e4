//! Completions that match a regular expression: which tokens may come next, and whether a text matches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start::Config as Start;
use regex_automata::{Anchored, MatchKind};
use regex_syntax::hir::{Hir, Look};
use tamis_core::fault::{Fault, chain};
use thiserror::Error;

use crate::tokenizer::Tokenizer;

/// Most bytes of an expression's automaton, during construction and afterwards. The largest useful ones take
/// some hundred kilobytes.
const MAX_AUTOMATON: usize = 16 << 20;

/// Most bytes of masks that are cached for an expression. Beyond that, further masks are computed each time.
const MAX_MASKS: usize = 64 << 20;

const MAX_EXPRESSIONS: usize = 8;

/// An expression cannot be used.
#[derive(Debug, Error)]
pub enum RegexMaskError {
    /// The pattern is not a regular expression.
    #[error("unsupported regular expression: {detail}")]
    Pattern {
        /// The reason, with the place if the parser refused it.
        detail: String,
    },
    /// The text of the tokenizer's tokens is not known.
    #[error(transparent)]
    Tokenizer(#[from] Fault),
    /// No completion matches.
    #[error("no sequence of the tokenizer's tokens matches the expression")]
    NoMatch,
    /// Only the empty completion matches.
    #[error("only the empty text matches the expression, but a completion has at least one token")]
    Empty,
}

/// A regular expression that a whole text must match, as an automaton over bytes.
///
/// The syntax is that of the crate `regex`: no look-around and no back-references. `.` is any character
/// except a line break; `\w` and `\d` are those of Unicode.
#[derive(Debug)]
pub struct WholeRegex {
    automaton: dense::DFA<Vec<u32>>,
    start: StateID,
}

impl WholeRegex {
    /// Parses an expression. If its automaton is too large, it is refused like an invalid expression.
    pub fn new(pattern: &str) -> Result<Self, RegexMaskError> {
        let automaton = automaton(pattern)?;
        let start = automaton
            .start_state(&Start::new().anchored(Anchored::Yes))
            .map_err(|error| RegexMaskError::Pattern { detail: error.to_string() })?;
        Ok(Self { automaton, start })
    }

    /// Whether a text matches, from beginning to end.
    ///
    /// ```
    /// let number = tamis_text::regex_mask::WholeRegex::new("-?[0-9]+")?;
    /// assert!(number.matches("-12") && !number.matches("-") && !number.matches("12 "));
    /// # Ok::<(), tamis_text::regex_mask::RegexMaskError>(())
    /// ```
    pub fn matches(&self, text: &str) -> bool {
        self.walk(self.start, text.as_bytes()).is_some_and(|state| self.accepts(state))
    }

    /// Whether a text matches, or is the beginning of a text that matches.
    pub fn may_begin(&self, text: &str) -> bool {
        self.walk(self.start, text.as_bytes()).is_some()
    }

    fn walk(&self, state: StateID, bytes: &[u8]) -> Option<StateID> {
        bytes.iter().try_fold(state, |state, &byte| {
            let next = self.automaton.next_state(state, byte);
            (!self.automaton.is_dead_state(next) && !self.automaton.is_quit_state(next)).then_some(next)
        })
    }

    /// Whether a state is a match.
    fn accepts(&self, state: StateID) -> bool {
        self.automaton.is_match_state(self.automaton.next_eoi_state(state))
    }
}

/// The bytes of each token by id; `None` for tokens without text.
type TokenBytes = Arc<[Option<Box<[u8]>>]>;

/// The regular expression that a whole completion must match, over the tokens of one tokenizer.
///
/// The mask allows a token if a match can still be completed with the tokenizer's tokens after it. End tokens
/// are allowed if the text so far is a match. They then end the completion, even if they have a text. Special
/// tokens have no text and are not allowed. A completion that is cut off at its length limit is the beginning
/// of a match. (Willard and Louf 2023, arXiv 2307.09702; the mask of a state is computed on first use and
/// cached; states with the same tokens share it.)
#[derive(Debug)]
pub struct RegexMask {
    regex: WholeRegex,
    tokens: TokenBytes,
    /// Sorted.
    end_token_ids: Vec<u32>,
    /// States from which these tokens cannot complete a match, although bytes could.
    hopeless: BTreeSet<StateID>,
    masks: RwLock<Masks>,
}

#[derive(Debug, Default)]
struct Masks {
    of_states: BTreeMap<StateID, Arc<[u64]>>,
    different: BTreeSet<Arc<[u64]>>,
}

/// The state after a text that begins no match: the automaton's dead state.
const DEAD: StateID = StateID::ZERO;

impl RegexMask {
    /// For completions of a tokenizer, which end with one of `end_token_ids`. An expression that no sequence
    /// of its tokens matches is refused.
    pub fn new(pattern: &str, tokenizer: &Tokenizer, end_token_ids: &[u32]) -> Result<Self, RegexMaskError> {
        Self::over(pattern, tokenizer.token_bytes()?.into(), end_token_ids)
    }

    fn over(pattern: &str, tokens: TokenBytes, end_token_ids: &[u32]) -> Result<Self, RegexMaskError> {
        let regex = WholeRegex::new(pattern)?;
        let mut end_token_ids = end_token_ids.to_vec();
        end_token_ids.sort_unstable();
        let hopeless = hopeless(&regex, &tokens, &end_token_ids);
        let mask = Self { regex, tokens, end_token_ids, hopeless, masks: RwLock::default() };
        if mask.hopeless.contains(&mask.regex.start) {
            return Err(RegexMaskError::NoMatch);
        }
        if mask.allowed_tokens(mask.start()).iter().all(|&word| word == 0) {
            return Err(RegexMaskError::Empty);
        }
        Ok(mask)
    }

    /// The state before the first token.
    pub fn start(&self) -> u32 {
        self.regex.start.as_u32()
    }

    /// The state after one more token. After an end token, or a token that was not allowed, nothing may
    /// follow.
    pub fn after(&self, state: u32, token: u32) -> u32 {
        let bytes = self.tokens.get(token as usize).and_then(Option::as_ref);
        let bytes = bytes.filter(|_| self.end_token_ids.binary_search(&token).is_err());
        let next = bytes.and_then(|bytes| self.step(StateID::new(state as usize).unwrap_or(DEAD), bytes));
        next.unwrap_or(DEAD).as_u32()
    }

    /// The tokens that may follow, bit `id % 64` of word `id / 64` for each. There are none if the completion
    /// is over.
    pub fn allowed_tokens(&self, state: u32) -> Arc<[u64]> {
        let state = StateID::new(state as usize).unwrap_or(DEAD);
        let masks = self.masks.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = masks.of_states.get(&state) {
            return mask.clone();
        }
        drop(masks);
        let mask: Arc<[u64]> = self.mask_of(state).into();
        let mut masks = self.masks.write().unwrap_or_else(PoisonError::into_inner);
        if masks.different.len() * size_of_val(&*mask) > MAX_MASKS {
            *masks = Masks::default();
        }
        let same = masks.different.get(&mask).cloned();
        let mask = same.unwrap_or_else(|| {
            masks.different.insert(mask.clone());
            mask
        });
        masks.of_states.insert(state, mask.clone());
        mask
    }

    /// The state after a token's bytes; `None` if no match can be completed from there.
    fn step(&self, state: StateID, bytes: &[u8]) -> Option<StateID> {
        let next = self.regex.walk(state, bytes)?;
        (!bytes.is_empty() && !self.hopeless.contains(&next)).then_some(next)
    }

    fn mask_of(&self, state: StateID) -> Vec<u64> {
        let mut mask = vec![0u64; self.tokens.len().div_ceil(64)];
        let mut allow = |token: usize| mask[token / 64] |= 1 << (token % 64);
        for (token, bytes) in texts(&self.tokens, &self.end_token_ids) {
            if self.step(state, bytes).is_some() {
                allow(token);
            }
        }
        if self.regex.accepts(state) {
            for &token in self.end_token_ids.iter().filter(|&&token| (token as usize) < self.tokens.len()) {
                allow(token as usize);
            }
        }
        mask
    }
}

/// The tokens that continue a text. End tokens (in order) do not, even those with a text.
fn texts<'a>(
    tokens: &'a [Option<Box<[u8]>>],
    end_token_ids: &'a [u32],
) -> impl Iterator<Item = (usize, &'a [u8])> {
    let is_end = |token: usize| end_token_ids.binary_search_by_key(&token, |&end| end as usize).is_ok();
    let texts = tokens.iter().enumerate().filter_map(|(token, bytes)| Some((token, bytes.as_deref()?)));
    texts.filter(move |&(token, _)| !is_end(token))
}

/// The states, among all that bytes lead to, from which no sequence of tokens leads to a match.
fn hopeless(regex: &WholeRegex, tokens: &TokenBytes, end_token_ids: &[u32]) -> BTreeSet<StateID> {
    let mut is_token = [false; 256];
    for (_, bytes) in texts(tokens, end_token_ids) {
        if let [byte] = *bytes {
            is_token[usize::from(byte)] = true;
        }
    }
    // Follow single bytes. Most tokenizers have a token for each byte, and then nothing is hopeless.
    let mut seen = BTreeSet::from([regex.start]);
    let mut open = vec![regex.start];
    let mut before: BTreeMap<StateID, Vec<StateID>> = BTreeMap::new();
    while let Some(state) = open.pop() {
        for byte in 0..=u8::MAX {
            let Some(next) = regex.walk(state, &[byte]) else { continue };
            if is_token[usize::from(byte)] {
                before.entry(next).or_default().push(state);
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    let mut left = seen.clone();
    let mut good: Vec<StateID> = seen.into_iter().filter(|&state| regex.accepts(state)).collect();
    loop {
        while let Some(state) = good.pop() {
            if left.remove(&state) {
                good.extend(before.get(&state).into_iter().flatten());
            }
        }
        // Tokens of several bytes, if single ones were not enough.
        let longer = || texts(tokens, end_token_ids).map(|(_, bytes)| bytes).filter(|bytes| bytes.len() > 1);
        let leads_out = |&&state: &&StateID| {
            longer().any(|bytes| regex.walk(state, bytes).is_some_and(|next| !left.contains(&next)))
        };
        good.extend(left.iter().filter(leads_out));
        if good.is_empty() {
            return left;
        }
    }
}

fn automaton(pattern: &str) -> Result<dense::DFA<Vec<u32>>, RegexMaskError> {
    let refused = |detail| RegexMaskError::Pattern { detail };
    let whole = regex_syntax::parse(pattern).map_err(|error| refused(wrong(pattern, &error)))?;
    let whole = Hir::concat(vec![whole, Hir::look(Look::End)]);
    // Limits the intermediate automaton, which is built first. Nested repetitions fill the memory already
    // there.
    let limits = thompson::Config::new()
        .nfa_size_limit(Some(MAX_AUTOMATON))
        .which_captures(thompson::WhichCaptures::None);
    let nfa = thompson::Compiler::new().configure(limits).build_from_hir(&whole);
    let nfa = nfa.map_err(|error| refused(chain(&error)))?;
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        // Leftmost-first matching would stop at the first alternative; here every continuation counts.
        .match_kind(MatchKind::All)
        .dfa_size_limit(Some(MAX_AUTOMATON))
        .determinize_size_limit(Some(MAX_AUTOMATON));
    dense::Builder::new().configure(config).build_from_nfa(&nfa).map_err(|error| refused(chain(&error)))
}

/// What is wrong, and at which character, counted from 1.
fn wrong(pattern: &str, error: &regex_syntax::Error) -> String {
    let (wrong, span) = match error {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span()),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span()),
        other => return other.to_string(),
    };
    let before = pattern.get(..span.start.offset).unwrap_or_default();
    format!("{wrong} (at character {})", before.chars().count() + 1)
}

/// A mask with its expression and end tokens.
type Made = (String, Vec<u32>, Arc<RegexMask>);

/// The cached masks of one tokenizer, by expression.
#[derive(Debug)]
pub struct RegexMasks {
    tokenizer: Arc<Tokenizer>,
    tokens: OnceLock<TokenBytes>,
    /// The most recent one last.
    made: Mutex<Vec<Made>>,
}

impl RegexMasks {
    /// An empty cache.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, tokens: OnceLock::new(), made: Mutex::default() }
    }

    /// The mask of an expression, for completions that end with one of `end_token_ids`. Only one is computed
    /// at a time: further callers wait and get the same one.
    pub fn get(&self, pattern: &str, end_token_ids: &[u32]) -> Result<Arc<RegexMask>, RegexMaskError> {
        let is_it = |(of, ends, _): &Made| of == pattern && ends == end_token_ids;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = made.iter().position(is_it) {
            let found = made.remove(place);
            let mask = found.2.clone();
            made.push(found);
            return Ok(mask);
        }
        if self.tokens.get().is_none() {
            let _ = self.tokens.set(self.tokenizer.token_bytes()?.into());
        }
        let tokens = self.tokens.get().cloned().unwrap_or_default();
        let mask = Arc::new(RegexMask::over(pattern, tokens, end_token_ids)?);
        if made.len() >= MAX_EXPRESSIONS {
            made.remove(0);
        }
        made.push((pattern.to_owned(), end_token_ids.to_vec(), mask.clone()));
        Ok(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALPHABET: &str = "0123456789ab-+ ";

    fn mask(pattern: &str) -> RegexMask {
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        RegexMask::new(pattern, &tokenizer, &[1]).expect("a mask")
    }

    #[test]
    fn end_tokens_may_come_in_any_order() {
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        let digit = tokenizer.encode("7", false).expect("in the alphabet")[0];
        let letter = tokenizer.encode("a", false).expect("in the alphabet")[0];
        let over = |ends: &[u32]| RegexMask::new("[0-9]+", &tokenizer, ends).expect("a mask");
        let (mask, other) = (over(&[letter, digit, 1]), over(&[1, digit, letter]));
        for generated in [&[][..], &[digit - 1]] {
            let masks = [&mask, &other].map(|mask| allowed_tokens(mask, generated));
            assert_eq!(masks[0], masks[1]);
            let is_allowed = |id: u32| masks[0][id as usize / 64] >> (id % 64) & 1 == 1;
            // A digit that is an end token is not part of the text.
            assert!([1, letter, digit].iter().all(|&end| is_allowed(end) != generated.is_empty()));
        }
        assert!(is_over(&mask, &[digit - 1, digit]));
    }

    fn allowed_tokens(mask: &RegexMask, generated: &[u32]) -> Arc<[u64]> {
        mask.allowed_tokens(generated.iter().fold(mask.start(), |state, &token| mask.after(state, token)))
    }

    fn is_over(mask: &RegexMask, generated: &[u32]) -> bool {
        allowed_tokens(mask, generated).iter().all(|&word| word == 0)
    }

    /// The characters that may follow a text, `$` for the end token.
    fn after(mask: &RegexMask, text: &str) -> String {
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        let allowed = allowed_tokens(mask, &tokenizer.encode(text, false).expect("in the alphabet"));
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
        // Both alternatives stay open, although one has matched already.
        assert_eq!(after(&mask("a|ab"), "a"), "b$");
        assert_eq!(after(&mask("(a|b)*"), ""), "ab$");
        assert_eq!(after(&mask("^a+$"), "aa"), "a$");
        assert_eq!(after(&mask("(?i)A b"), "a"), " ");
        // A text that cannot match has no continuation.
        assert_eq!(after(&number, "a"), "");
        assert_eq!(after(&number, "1-"), "");
    }

    #[test]
    fn a_completion_is_over_after_its_end_token() {
        let number = mask("[0-9]");
        assert!(!is_over(&number, &[]));
        assert!(!is_over(&number, &[2]), "its end token is to come");
        assert!(is_over(&number, &[2, 1]));
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        let without_end = RegexMask::new("[0-9]", &tokenizer, &[]).expect("a mask");
        assert!(is_over(&without_end, &[2]));
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let tokenizer = Tokenizer::characters(ALPHABET).expect("a tokenizer");
        let refused = |pattern: &str| RegexMask::new(pattern, &tokenizer, &[1]).unwrap_err().to_string();
        insta::assert_snapshot!(
            refused("x"),
            @"no sequence of the tokenizer's tokens matches the expression"
        );
        assert_eq!(refused("1{3}x"), refused("x"), "it begins well");
        insta::assert_snapshot!(
            RegexMask::new("", &tokenizer, &[]).unwrap_err(),
            @"only the empty text matches the expression, but a completion has at least one token"
        );
        assert!(refused("(").starts_with("unsupported regular expression: "), "{}", refused("("));
        assert!(refused("(?=a)").contains("look-around"), "{}", refused("(?=a)"));
        insta::assert_snapshot!(
            refused("1(2|3"),
            @"unsupported regular expression: unclosed group (at character 2)"
        );
        assert!(refused("a)(b").starts_with("unsupported regular expression"), "{}", refused("a)(b"));
        for (pattern, place) in [("1\n(2|3", 3), ("é(", 2), ("(?ii)1", 4)] {
            assert!(refused(pattern).ends_with(&format!("(at character {place})")), "{}", refused(pattern));
        }
        for pattern in [r"(\w{50}|\d{60}){70}", r"(\w{1000}){1000}", "((a{1000}){1000}){1000}"] {
            let large = refused(pattern);
            assert!(large.contains("exceeded"), "{pattern}: {large}");
        }
    }

    /// `]` is the end token here.
    #[test]
    fn an_end_token_that_has_a_text_ends_a_completion_all_the_same() {
        let tokens: TokenBytes = ["[", "]", "a"].map(|text| Some(text.as_bytes().into())).to_vec().into();
        let over = |pattern: &str| RegexMask::over(pattern, tokens.clone(), &[1]);
        let mask = over(r"\[a*").expect("a mask");
        assert_eq!([&[][..], &[0], &[0, 2]].map(|ids| allowed_tokens(&mask, ids)[0]), [0b001, 0b110, 0b110]);
        assert!(is_over(&mask, &[0, 1]), "nothing follows it");
        assert_eq!(allowed_tokens(&over(r"\[a*\]?").expect("a mask"), &[0])[0], 0b110);
        assert!(is_over(&over(r"\[\]?a?").expect("a mask"), &[0, 1]), "nor where the expression goes on");
        assert!(matches!(over(r"\[a\]").err(), Some(RegexMaskError::NoMatch)), "no other token writes it");
    }

    #[test]
    fn a_way_that_ends_without_a_match_is_not_taken() {
        assert_eq!(after(&mask("(ab+|1x|2[x-z]*3|-(a|xyz))"), ""), "2a-");
        assert_eq!(after(&mask("(ab+|1x|2[x-z]*3|-(a|xyz))"), "2"), "3");
        assert_eq!(after(&mask("(ab+|1x|2[x-z]*3|-(a|xyz))"), "-"), "a");
    }

    /// What is put behind an expression is not text, which a comment would hide and nesting refuse.
    #[test]
    fn an_expression_may_end_in_a_comment_or_be_as_deep_as_the_parser_allows() {
        assert_eq!(after(&mask("(?x)12 # two digits"), "1"), "2");
        assert_eq!(after(&mask(&format!("{}1{}", "(".repeat(249), ")".repeat(249))), ""), "1");
    }

    #[test]
    fn masks_are_kept_and_shared() {
        let tokenizer = Arc::new(Tokenizer::characters(ALPHABET).expect("a tokenizer"));
        let masks = RegexMasks::new(tokenizer);
        let get = |pattern: &str, ends: &[u32]| masks.get(pattern, ends).expect("a mask");
        let first = get("[0-9]{2,4}", &[1]);
        assert!(Arc::ptr_eq(&first, &get("[0-9]{2,4}", &[1])));
        assert!(!Arc::ptr_eq(&first, &get("[0-9]{2,4}", &[])));
        // One or three more digits may follow: the same tokens.
        assert!(Arc::ptr_eq(&allowed_tokens(&first, &[]), &allowed_tokens(&first, &[2])));
        for length in 0..MAX_EXPRESSIONS {
            get(&format!("a{{{length},9}}"), &[1]);
        }
        assert!(!Arc::ptr_eq(&first, &get("[0-9]{2,4}", &[1])), "the oldest goes");
        assert!(masks.get("(", &[1]).is_err());
    }

    #[test]
    fn a_mask_that_many_ask_for_at_once_is_made_once() {
        let masks = RegexMasks::new(Arc::new(Tokenizer::characters(ALPHABET).expect("a tokenizer")));
        let begin = std::sync::Barrier::new(8);
        let get = || {
            begin.wait();
            masks.get("([0-9]{2,40}[ab]){2,20}", &[1]).expect("a mask")
        };
        let all: Vec<Arc<RegexMask>> = std::thread::scope(|scope| {
            let askers: Vec<_> = (0..8).map(|_| scope.spawn(get)).collect();
            askers.into_iter().map(|asker| asker.join().expect("a mask")).collect()
        });
        assert!(all.iter().all(|mask| Arc::ptr_eq(mask, &all[0])));
        assert_eq!(masks.made.lock().expect("lock").len(), 1);
    }

    /// Tokens that split a character's bytes, and tokens of several characters.
    #[test]
    fn byte_level_tokens_are_walked_byte_by_byte() {
        let tokenizer = Tokenizer::load(&tamis_golden::folder().join("hf/tokenizer")).expect("a tokenizer");
        let mask = RegexMask::new("(caf\u{e9}|caf\u{ea})!", &tokenizer, &[]).expect("a mask");
        let ids = tokenizer.encode("caf\u{e9}!", false).expect("ids");
        for (i, &id) in ids.iter().enumerate() {
            let allowed = allowed_tokens(&mask, &ids[..i]);
            assert_eq!(allowed[id as usize / 64] >> (id % 64) & 1, 1, "token {i} of {ids:?}");
        }
        assert!(is_over(&mask, &ids));
    }
}
