//! Finds out whether `transformers` builds another tokenizer from a folder than its `tokenizer.json`
//! describes. For some models `transformers` 5 takes only the vocabulary of `tokenizer.json`; normaliser and
//! splitting come from a class, chosen by `model_type` and `tokenizer_class`. For `qwen2` it does so
//! regardless of `tokenizer_class`. This changes nothing for published models. But a model with other
//! splitting rules is silently read differently by every server and program on top of `transformers`.
//! [`PeerDifference::find`] builds that tokenizer too, and looks for a text that the two split differently.

use std::path::Path;

use serde_json::{Map, Value, json};
use tamis_core::caught;

use crate::tokenizer::Tokenizer;

/// How a class of `transformers` splits texts.
struct Rebuilt {
    class: &'static str,
    is_normalized: bool,
    /// Its regular expression for pieces; `None`: that of GPT-2.
    pieces: Option<&'static str>,
}

const QWEN2: Rebuilt = Rebuilt {
    class: "Qwen2Tokenizer",
    is_normalized: true,
    pieces: Some(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
};
const QWEN3_5: Rebuilt = Rebuilt {
    class: "Qwen3_5Tokenizer",
    is_normalized: true,
    pieces: Some(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
};
const GPT2: Rebuilt = Rebuilt { class: "GPT2Tokenizer", is_normalized: false, pieces: None };

/// The class of a `model_type`, and whether it is used regardless of `tokenizer_class` (transformers 5.23,
/// `models/auto/tokenization_auto.py`). `llama` has none: there `tokenizer_class` decides.
const BY_MODEL: [(&str, Option<&Rebuilt>, bool); 14] = [
    ("llama", None, false),
    ("qwen2", Some(&QWEN2), true),
    ("qwen2_5_vl", Some(&QWEN2), false),
    ("qwen2_moe", Some(&QWEN2), false),
    ("qwen2_vl", Some(&QWEN2), false),
    ("qwen3", Some(&QWEN2), false),
    ("qwen3_moe", Some(&QWEN2), false),
    ("qwen3_next", Some(&QWEN2), false),
    ("qwen3_vl", Some(&QWEN2), false),
    ("qwen3_vl_moe", Some(&QWEN2), false),
    ("qwen3_5", Some(&QWEN3_5), true),
    ("qwen3_5_moe", Some(&QWEN3_5), true),
    ("qwen3_5_moe_text", Some(&QWEN3_5), true),
    ("qwen3_5_text", Some(&QWEN3_5), false),
];

/// Texts that are tried first.
const TEXTS: [&str; 8] = [
    "12+34=46",
    "Hello World",
    "It's  so\n\n \n{x: [1]}\n",
    "cafe\u{301} naïve",
    "x_1 = foo(bar)[0];\t// ok",
    "日本語 и по-русски",
    "\\frac{1}{2}\n\\boxed{42}",
    " a  b ",
];
const NUM_TOKENS: u32 = 4096;

/// A text that the two tokenizers split differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerDifference {
    class: &'static str,
    model_type: String,
    is_by_class: bool,
    example: String,
    own: String,
    theirs: String,
}

impl PeerDifference {
    /// Looks for a text that this tokenizer and the one that `transformers` builds from the model's folder
    /// split differently. `None` if there is none, or if the model is not known to be built differently. No
    /// other program reads the built-in tokenizer of characters.
    pub fn find(folder: &Path, tokenizer: &Tokenizer) -> Option<Self> {
        if tokenizer.is_word_level() {
            return None;
        }
        let config = tamis_file::read(&folder.join("config.json"), tamis_file::MAX_MODEL_CONFIG).ok()?;
        let config: Value = serde_json::from_slice(&config).ok()?;
        let file = |name: &str| -> Option<Value> {
            let (_, bytes) = tokenizer.files().find(|(file, _)| *file == name)?;
            serde_json::from_slice(bytes).ok()
        };
        let own_config = file("tokenizer_config.json").unwrap_or_default();
        let model_type = config["model_type"].as_str()?;
        let class = own_config["tokenizer_class"].as_str().or(config["tokenizer_class"].as_str());
        if !own_config["auto_map"].is_null() {
            return None;
        }
        let (rebuilt, is_by_class) = class_of(model_type, class)?;
        let model = file("tokenizer.json")?;
        let theirs = rebuilt.build(&model, own_config["add_prefix_space"] == true)?;
        if has_same_pipeline(&model, &theirs) {
            return None;
        }
        let bytes = serde_json::to_vec(&theirs).ok()?;
        let theirs = caught::catch(|| tokenizers::Tokenizer::from_bytes(&bytes)).ok()?.ok()?;
        let of_tokens = (0..NUM_TOKENS).filter_map(|id| tokenizer.decode(&[id], true).ok());
        for text in TEXTS.into_iter().map(str::to_owned).chain(of_tokens) {
            let Ok(own) = tokenizer.encode(&text, false) else { continue };
            let Ok(Ok(other)) = caught::catch(|| theirs.encode_fast(text.as_str(), false)) else { continue };
            if own != other.get_ids() {
                let name = |id: &u32| tokenizer.token(*id).unwrap_or_else(|| id.to_string());
                let list = |ids: &[u32]| {
                    let shown: Vec<String> = ids.iter().take(12).map(name).collect();
                    let more = if ids.len() > shown.len() { ", ..." } else { "" };
                    format!("{shown:?}").replace(']', &format!("{more}]"))
                };
                return Some(Self {
                    class: rebuilt.class,
                    model_type: model_type.to_owned(),
                    is_by_class,
                    own: list(&own),
                    theirs: list(other.get_ids()),
                    example: text,
                });
            }
        }
        None
    }
}

impl std::fmt::Display for PeerDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { class, model_type, is_by_class, example, own, theirs } = self;
        write!(
            f,
            "transformers loads `{class}` for this model (`model_type: {model_type}`), which splits texts differently from its \
            tokenizer.json: {example:?} is {own} here and {theirs} there. Servers and programs that use transformers tokenize that way; \
            tamis follows tokenizer.json, also in the token ids that it sends to servers"
        )?;
        if *is_by_class {
            f.write_str("; `tokenizer_class: PreTrainedTokenizerFast` in tokenizer_config.json makes them follow it too")?;
        }
        Ok(())
    }
}

/// The class that is built, and whether another `tokenizer_class` would change that. `None` if
/// `tokenizer.json` is followed.
fn class_of(model_type: &str, tokenizer_class: Option<&str>) -> Option<(&'static Rebuilt, bool)> {
    let (_, of_model, is_forced) = BY_MODEL.into_iter().find(|(name, ..)| *name == model_type)?;
    let named = |class: &str| {
        let class = class.strip_suffix("Fast").unwrap_or(class);
        [&QWEN2, &QWEN3_5, &GPT2].into_iter().find(|rebuilt| rebuilt.class == class)
    };
    match (of_model, tokenizer_class) {
        (Some(rebuilt), _) if is_forced => Some((rebuilt, false)),
        (Some(rebuilt), None) => Some((rebuilt, true)),
        (_, Some(class)) => named(class).map(|rebuilt| (rebuilt, true)),
        (None, None) => None,
    }
}

impl Rebuilt {
    /// The `tokenizer.json` of the class with this vocabulary; `None` if the class cannot use it.
    fn build(&self, model: &Value, add_prefix_space: bool) -> Option<Value> {
        let vocab: Map<String, Value> = match &model["model"]["vocab"] {
            Value::Object(vocab) => vocab.clone(),
            Value::Array(tokens) => {
                let token = |(id, entry): (usize, &Value)| Some((entry[0].as_str()?.to_owned(), id.into()));
                tokens.iter().enumerate().map(token).collect::<Option<_>>()?
            }
            _ => return None,
        };
        let merges = model["model"].get("merges").cloned().unwrap_or_else(|| json!([]));
        let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex});
        let mut theirs = model.clone();
        theirs["normalizer"] = if self.is_normalized { json!({"type": "NFC"}) } else { Value::Null };
        theirs["pre_tokenizer"] = match self.pieces {
            None => bytes(true),
            Some(pieces) => {
                let split = json!({"type": "Split", "pattern": {"Regex": pieces}, "behavior": "Isolated", "invert": false});
                json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})
            }
        };
        theirs["model"] = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges,
        });
        theirs["padding"] = Value::Null;
        theirs["truncation"] = Value::Null;
        Some(theirs)
    }
}

/// Whether two tokenizers with one vocabulary declare the same normaliser, splitting and merges.
fn has_same_pipeline(left: &Value, right: &Value) -> bool {
    fn plain(part: &Value) -> Value {
        match part {
            Value::Object(fields) => {
                let is_set = |value: &Value| !(value.is_null() || *value == false || *value == "");
                let fields = fields.iter().filter(|(name, value)| *name != "trim_offsets" && is_set(value));
                Value::Object(fields.map(|(name, value)| (name.clone(), plain(value))).collect())
            }
            Value::Array(parts) => parts.iter().map(plain).collect(),
            other => other.clone(),
        }
    }
    let model = |tokenizer: &Value| {
        let fields = tokenizer["model"].as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| *name != "vocab" && *name != "merges");
        plain(&Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect()))
    };
    let part = |tokenizer: &Value, name: &str| plain(&tokenizer[name]);
    model(left) == model(right)
        && ["normalizer", "pre_tokenizer"].iter().all(|name| part(left, name) == part(right, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of `AutoTokenizer` of transformers 5.23 for a folder with another normaliser.
    #[test]
    fn the_class_is_the_one_that_transformers_takes() {
        let class =
            |model: &str, class: Option<&str>| class_of(model, class).map(|(rebuilt, _)| rebuilt.class);
        for (model, named, expected) in [
            ("qwen2", None, Some("Qwen2Tokenizer")),
            ("qwen2", Some("PreTrainedTokenizerFast"), Some("Qwen2Tokenizer")),
            ("qwen2", Some("GPT2Tokenizer"), Some("Qwen2Tokenizer")),
            ("qwen3", None, Some("Qwen2Tokenizer")),
            ("qwen3", Some("PreTrainedTokenizerFast"), None),
            ("qwen3", Some("TokenizersBackend"), None),
            ("qwen3", Some("Qwen2TokenizerFast"), Some("Qwen2Tokenizer")),
            ("qwen3", Some("GPT2Tokenizer"), Some("GPT2Tokenizer")),
            ("qwen3_5", Some("PreTrainedTokenizerFast"), Some("Qwen3_5Tokenizer")),
            ("llama", None, None),
            ("llama", Some("LlamaTokenizerFast"), None),
            ("llama", Some("Qwen2Tokenizer"), Some("Qwen2Tokenizer")),
            ("olmo2", Some("Qwen2Tokenizer"), None),
        ] {
            assert_eq!(class(model, named), expected, "{model} {named:?}");
        }
    }

    fn folder(config: &Value, tokenizer: &Value) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let golden = tamis_golden::folder().join("hf/tokenizer/tokenizer_config.json");
        std::fs::copy(golden, folder.path().join("tokenizer_config.json")).expect("copied");
        for (name, value) in [("config.json", config), ("tokenizer.json", tokenizer)] {
            std::fs::write(folder.path().join(name), value.to_string()).expect("written");
        }
        folder
    }

    fn find(model_type: &str, tokenizer: &Value) -> Option<String> {
        let folder = folder(&json!({"model_type": model_type}), tokenizer);
        let loaded = Tokenizer::load(folder.path()).expect("a tokenizer");
        PeerDifference::find(folder.path(), &loaded).map(|difference| difference.to_string())
    }

    #[test]
    fn one_text_shows_the_difference() {
        let bytes = std::fs::read(tamis_golden::folder().join("hf/tokenizer/tokenizer.json")).expect("read");
        let golden: Value = serde_json::from_slice(&bytes).expect("JSON");
        // As the class itself would write it.
        let same = QWEN2.build(&golden, false).expect("built");
        assert_eq!(find("qwen2", &same), None);
        assert_eq!(find("gemma3_text", &golden), None, "nothing is claimed of other models");
        let mut other = same.clone();
        other["normalizer"] = json!({"type": "Lowercase"});
        assert_eq!(find("llama", &other), None);
        let found = find("qwen2", &other).expect("a difference");
        assert!(found.contains("`Qwen2Tokenizer`") && found.contains("\"Hello World\" is ["), "{found}");
    }
}
