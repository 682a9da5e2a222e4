//! The built-in character tokenizer: one token per character, for small models trained from scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};
use tamis_core::fault;
use tamis_core::fault::Fault;

use crate::tokenizer::Tokenizer;

/// Padding token of a character tokenizer, id 0.
pub const PAD: &str = "<|pad|>";
/// End token of a character tokenizer, id 1.
pub const END: &str = "<|end|>";

impl Tokenizer {
    /// A tokenizer whose tokens are the characters of `alphabet`, in order from id 2, after [`PAD`] (0) and
    /// [`END`] (1). It has no beginning token and no chat template.
    ///
    /// The result is an ordinary `tokenizer.json` (a word-level model over single characters), so
    /// `transformers` loads what [`Tokenizer::save`] writes. A character outside the alphabet is an error
    /// that names it.
    ///
    /// ```
    /// use tamis_text::tokenizer::Tokenizer;
    /// let tokenizer = Tokenizer::characters("0123456789+=")?;
    /// assert_eq!(tokenizer.encode("1+1=", false)?, [3, 12, 3, 13]);
    /// assert_eq!(tokenizer.eos_id(), Some(1));
    /// # Ok::<(), tamis_core::fault::Fault>(())
    /// ```
    pub fn characters(alphabet: &str) -> Result<Self, Fault> {
        let mut seen = BTreeSet::new();
        let mut vocab = Map::new();
        for token in [PAD, END] {
            vocab.insert(token.to_owned(), Value::from(vocab.len()));
        }
        for character in alphabet.chars() {
            if !seen.insert(character) {
                return Err(fault!("the alphabet has {character:?} twice"));
            }
            vocab.insert(character.to_string(), Value::from(vocab.len()));
        }
        let special = |id: u32, content: &str| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        };
        let model = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [special(0, PAD), special(1, END)],
            "normalizer": null,
            // A line break is a character like any other. This spelling means the same in both regex engines
            // of the tokenizers library (Python uses Oniguruma).
            "pre_tokenizer": {
                "type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false,
            },
            "post_processor": null,
            "decoder": {"type": "Fuse"},
            // The unknown token is not in the vocabulary, so an unknown character is an error instead of a
            // token.
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<|unknown|>"},
        });
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": false,
            "model_max_length": 1_000_000_000,
        });
        let mut files = BTreeMap::new();
        files.insert("tokenizer.json".to_owned(), format!("{model:#}\n").into_bytes());
        files.insert("tokenizer_config.json".to_owned(), format!("{config:#}\n").into_bytes());
        Self::from_files(files, Path::new("built-in character tokenizer"))
    }
}
