//! Limits how much a tokenizer's own steps may lengthen a text. A `tokenizer.json` may come from anyone. Its
//! normaliser is a chain of steps, and a few steps that replace one letter by two turn a prompt into
//! gigabytes. Real chains hardly lengthen a text. [`Growth::of`] computes by how much a chain may do so. If
//! that is more than [`MAX_GROWTH`], the chain is first run step by step within that limit, before the
//! library runs it. Other parts that may lengthen a text by more than [`USUAL`] are refused when they are
//! read.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer as _};

/// The most by which pre-tokenizers and decoders of real tokenizers lengthen a text.
const USUAL: usize = 64;
/// Most bytes that a normaliser may make of each byte of a text.
pub(crate) const MAX_GROWTH: usize = 16;
/// Bytes that it may add to any text.
const ROOM: usize = 64 << 10;
/// Bytes of the longest replacement of a real table of characters, doubled.
const LONG: usize = 64;

/// Factor by which a step of `tokenizer.json` may lengthen a text.
pub(crate) fn growth(step: &Value) -> usize {
    let inner = ["normalizers", "pretokenizers", "decoders"].iter().find_map(|name| step[*name].as_array());
    if let Some(steps) = inner {
        return steps.iter().map(growth).fold(1, usize::saturating_mul);
    }
    let length = |name: &str| step[name].as_str().map_or(0, str::len);
    match step["type"].as_str().unwrap_or_default() {
        "Replace" => match step["pattern"]["String"].as_str().map_or(0, str::len) {
            0 => length("content").saturating_add(1),
            pattern => length("content").div_ceil(pattern).max(1),
        },
        "Prepend" => length("prepend").saturating_add(1),
        "Metaspace" => length("replacement").saturating_add(1),
        "ByteLevel" => 2,
        "NFC" | "NFD" => 3,
        "BertNormalizer" => 5,
        "NFKC" | "NFKD" => 11,
        "Precompiled" => match longest_replacement(step) {
            // Characters with long replacements are long themselves.
            longest if longest <= LONG => longest / 3 + 1,
            longest => longest,
        },
        _ => 1,
    }
}

/// Whether a part of a tokenizer, other than the normaliser, lengthens texts more than any real one.
pub(crate) fn is_excessive(part: &Value) -> bool {
    growth(part) > USUAL
}

/// Accepts whatever the tokenizers library accepts.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Bytes of the longest text in the table of a `Precompiled` normaliser. The table begins with the length of
/// a trie and the trie.
fn longest_replacement(step: &Value) -> usize {
    let table =
        step["precompiled_charsmap"].as_str().and_then(|table| BASE64.decode(table).ok()).unwrap_or_default();
    let Some((length, rest)) = table.split_first_chunk::<4>() else { return 0 };
    let texts = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

/// A chain of steps that might lengthen a text too much.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    /// Each step, with its form in `tokenizer.json`.
    steps: Vec<(NormalizerWrapper, Value)>,
}

impl Growth {
    /// The limits of a tokenizer's normaliser; `None` if it cannot lengthen a text beyond [`MAX_GROWTH`].
    pub(crate) fn of(normalizer: &NormalizerWrapper) -> Option<Self> {
        let mut steps = Vec::new();
        flatten(normalizer, &mut steps);
        let written = |step: NormalizerWrapper| {
            let value = serde_json::to_value(&step).unwrap_or_default();
            (step, value)
        };
        let steps: Vec<(NormalizerWrapper, Value)> = steps.into_iter().map(written).collect();
        let whole = steps.iter().map(|(_, value)| growth(value)).fold(1, usize::saturating_mul);
        (whole > MAX_GROWTH).then_some(Self { steps })
    }

    /// Runs the chain on a text within its limits. The error is the type of the first step that would exceed
    /// them.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        let limit = text.len().saturating_mul(MAX_GROWTH).saturating_add(ROOM);
        let mut current = text.to_owned();
        for (step, value) in &self.steps {
            let kind = || value["type"].as_str().unwrap_or("a step").to_owned();
            if most(value, &current) > limit {
                return Err(kind());
            }
            let mut normalized = NormalizedString::from(current.as_str());
            // The library reports its own errors when it encodes the text.
            if step.normalize(&mut normalized).is_err() {
                return Ok(());
            }
            normalized.get().clone_into(&mut current);
            if current.len() > limit {
                return Err(kind());
            }
        }
        Ok(())
    }
}

fn flatten(step: &NormalizerWrapper, into: &mut Vec<NormalizerWrapper>) {
    match step {
        NormalizerWrapper::Sequence(steps) => {
            for inner in <tokenizers::normalizers::Sequence as AsRef<[NormalizerWrapper]>>::as_ref(steps) {
                flatten(inner, into);
            }
        }
        other => into.push(other.clone()),
    }
}

/// Most bytes that a step can make of a text.
fn most(step: &Value, text: &str) -> usize {
    let content = |name: &str| step[name].as_str().map_or(0, str::len);
    let each = |num_places: usize, added: usize| text.len().saturating_add(num_places.saturating_mul(added));
    match step["type"].as_str().unwrap_or_default() {
        "Replace" => match step["pattern"]["String"].as_str().filter(|pattern| !pattern.is_empty()) {
            Some(pattern) => each(text.matches(pattern).count(), content("content")),
            None => each(text.len() + 1, content("content")),
        },
        "Prepend" => each(text.len() + 1, content("prepend")),
        "Precompiled" => match longest_replacement(step) {
            longest if longest <= LONG => text.len(),
            longest => each(text.chars().count(), longest),
        },
        _ => text.len(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(steps: &Value) -> Option<Growth> {
        let chain = json!({"type": "Sequence", "normalizers": steps});
        Growth::of(&serde_json::from_value(chain).expect("a normaliser"))
    }

    fn replace(pattern: &str, content: &str) -> Value {
        json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
    }

    #[test]
    fn the_growth_of_real_chains_is_usual() {
        for (step, times) in [
            (json!(null), 1),
            (json!({"type": "NFC"}), 3),
            (
                json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]}),
                12,
            ),
            (json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}), 4),
            (
                json!({"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]}),
                1,
            ),
            (json!({"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}), 2),
        ] {
            assert_eq!((growth(&step), is_excessive(&step)), (times, false), "{step}");
        }
        assert!(chain(&json!([{"type": "NFKC"}, {"type": "Lowercase"}])).is_none());
    }

    #[test]
    fn a_chain_that_might_grow_a_text_is_run_within_limits() {
        let doubled = json!([
            replace("a", "bb"),
            replace("b", "aa"),
            replace("a", "bb"),
            replace("b", "aa"),
            replace("a", "bb"),
            replace("b", "aa"),
            replace("a", "bb")
        ]);
        let chain = chain(&doubled).expect("128 times is not usual");
        assert_eq!(chain.check(&"c".repeat(100_000)), Ok(()));
        assert_eq!(chain.check(&"a".repeat(100)), Ok(()), "there is some room in any case");
        assert_eq!(chain.check(&"a".repeat(100_000)), Err("Replace".to_owned()));
        let once = json!([replace("a", &"b".repeat(40))]);
        let chain = self::chain(&once).expect("more than the limit");
        assert_eq!(chain.check(&"c".repeat(100_000)), Ok(()));
        assert_eq!(chain.check(&"a".repeat(100_000)), Err("Replace".to_owned()));
        let long = json!([{"type": "Prepend", "prepend": "p".repeat(100)}]);
        assert!(self::chain(&long).expect("not usual").check(&"a".repeat(1000)).is_err());
    }

    #[test]
    fn a_table_of_characters_is_read_as_far_as_its_longest_text() {
        // A trie of four bytes, then `ab`, `abcde` and nothing.
        let table = json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYgBhYmNkZQAA"});
        assert_eq!(longest_replacement(&table), 5);
        assert_eq!(longest_replacement(&json!({"precompiled_charsmap": "AA"})), 0);
    }
}
