//! A tokenizer folder in Hugging Face layout: `tokenizer.json`, and other files with special tokens and chat
//! templates.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use tamis_core::caught;
use tamis_core::fault;
use tamis_core::fault::Fault;

use crate::growth::{Growth, MAX_GROWTH, growth, is_excessive};
use crate::image_tokens::PROCESSOR_FILES;
use crate::template::{ChatTemplate, TemplateError};

/// Files of a tokenizer, which are written back unchanged.
const FILES: [&str; 12] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    // Files of the image processor. Loading the model needs them, so a run has to copy them along.
    PROCESSOR_FILES[0],
    PROCESSOR_FILES[1],
    PROCESSOR_FILES[2],
];
const TEMPLATE_FOLDER: &str = "additional_chat_templates";

/// Most bytes of a file.
fn limit(name: &str) -> u64 {
    if name.strip_suffix(".jinja").is_some() { tamis_file::MAX_TEMPLATE } else { tamis_file::MAX_TOKENIZER }
}

/// A tokenizer, its special tokens and its files.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    is_word_level: bool,
    /// Checks texts before the normaliser gets them, if it might lengthen one too much.
    growth: Option<Growth>,
    files: BTreeMap<String, Vec<u8>>,
    special_tokens: BTreeMap<String, String>,
    eos: Option<u32>,
    bos: Option<u32>,
}

impl Tokenizer {
    /// Reads a folder: `tokenizer.json`, and if present `tokenizer_config.json`, `special_tokens_map.json`
    /// and chat templates.
    ///
    /// `eos_token`, `pad_token` and `bos_token` come from `tokenizer_config.json`, otherwise from
    /// `special_tokens_map.json`. Truncation and padding declared in `tokenizer.json` are switched off: as in
    /// `transformers`, limits are the caller's.
    pub fn load(folder: &Path) -> Result<Self, Fault> {
        if !folder.is_dir() {
            return Err(fault!(
                "there is no folder {}: a model is read from disk; download one from a hub first (`hf download NAME --local-dir FOLDER`)",
                folder.display()
            ));
        }
        let mut files = BTreeMap::new();
        for name in FILES {
            let path = folder.join(name);
            match tamis_file::read(&path, limit(name)) {
                Ok(bytes) => {
                    files.insert(name.to_owned(), bytes);
                }
                Err(source) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(fault!("failed to read {}", path.display()).with_source(source)),
            }
        }
        if !files.contains_key("tokenizer.json") {
            return Err(fault!(
                "no tokenizer.json in {}; save it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`",
                folder.display()
            ));
        }
        let templates = folder.join(TEMPLATE_FOLDER);
        if templates.is_dir() {
            let read = |source| fault!("failed to read {}", templates.display()).with_source(source);
            for entry in std::fs::read_dir(&templates).map_err(read)? {
                let path = entry.map_err(read)?.path();
                if path.extension().is_some_and(|ending| ending == "jinja")
                    && let Some(name) = path.file_name().and_then(|name| name.to_str())
                {
                    let bytes = tamis_file::read(&path, limit(name))
                        .map_err(|source| fault!("failed to read {}", path.display()).with_source(source))?;
                    files.insert(format!("{TEMPLATE_FOLDER}/{name}"), bytes);
                }
            }
        }
        Self::from_files(files, folder)
    }

    pub(crate) fn from_files(files: BTreeMap<String, Vec<u8>>, folder: &Path) -> Result<Self, Fault> {
        let parse = |name: &str| -> Result<Value, Fault> {
            files.get(name).map_or(Ok(Value::Null), |bytes| {
                serde_json::from_slice(bytes).map_err(|source| {
                    fault!("{} is not valid JSON", folder.join(name).display()).with_source(source)
                })
            })
        };
        let model = parse("tokenizer.json")?;
        for part in ["pre_tokenizer", "decoder"] {
            if is_excessive(&model[part]) {
                let times = growth(&model[part]);
                return Err(fault!(
                    "`{part}` in {} may make a text {times} times as long, step by step, which no real tokenizer does: is the file damaged?",
                    folder.join("tokenizer.json").display()
                ));
            }
        }
        let bytes = files.get("tokenizer.json").map_or(&[][..], Vec::as_slice);
        let mut inner = catch_panics(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(|detail| {
            fault!("{} does not describe a tokenizer: {detail}", folder.join("tokenizer.json").display())
        })?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| {
            fault!("{} does not describe a tokenizer: {error}", folder.join("tokenizer.json").display())
        })?;
        let config = parse("tokenizer_config.json")?;
        let map = parse("special_tokens_map.json")?;
        add_declared_tokens(&mut inner, &config, &folder.join("tokenizer_config.json"))?;

        let mut special_tokens = BTreeMap::new();
        for (source, name) in [(&map, "special_tokens_map.json"), (&config, "tokenizer_config.json")] {
            let Value::Object(fields) = source else { continue };
            for (field, value) in fields.iter().filter(|(field, _)| field.ends_with("_token")) {
                // `add_bos_token` and similar fields are switches, not tokens.
                if field.starts_with("add_") {
                    continue;
                }
                let text = match value {
                    Value::Null => continue,
                    Value::String(text) => Some(text.as_str()),
                    other => other["content"].as_str(),
                };
                let text = text.ok_or_else(|| {
                    fault!(
                        "`{field}` in {} must be a text or an object with `content`, got {value}",
                        folder.join(name).display()
                    )
                })?;
                special_tokens.insert(field.clone(), text.to_owned());
            }
        }
        let id = |field: &'static str| -> Result<Option<u32>, Fault> {
            special_tokens.get(field).map_or(Ok(None), |token: &String| {
                inner
                    .token_to_id(token)
                    .map(Some)
                    .ok_or_else(|| fault!("`{field}` is {token:?}, which tokenizer.json does not have"))
            })
        };
        let (eos, _pad, bos) = (id("eos_token")?, id("pad_token")?, id("bos_token")?);
        let is_word_level = model["model"]["type"] == "WordLevel";
        let growth = inner.get_normalizer().and_then(Growth::of);
        Ok(Self { inner, is_word_level, growth, files, special_tokens, eos, bos })
    }

    /// Token ids of a text. With `add_special` the tokenizer's post-processor adds its tokens (often a
    /// beginning token). Texts rendered from a chat template have their special tokens already; encode them
    /// with `false`.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Fault> {
        let encoding = self.encoding(text, || self.inner.encode_fast(text, add_special))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of a text, without added special tokens, and the place of each in bytes of the text. Tokens
    /// of one character share its place.
    pub fn encode_with_places(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>), Fault> {
        let encoding = self.encoding(text, || self.inner.encode(text, false))?;
        let places = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok((encoding.get_ids().to_vec(), places))
    }

    fn encoding(
        &self,
        text: &str,
        encode: impl FnOnce() -> tokenizers::Result<tokenizers::Encoding>,
    ) -> Result<tokenizers::Encoding, Fault> {
        let checked = self.growth.as_ref().map_or(Ok(Ok(())), |growth| caught::catch(|| growth.check(text)));
        if let Ok(Err(step)) = checked {
            return Err(fault!(
                "the normaliser in tokenizer.json makes more than {limit} times its length of {text:?} (at its step `{step}`): is \
         the file damaged?",
                text = shorten(text, 0),
                limit = MAX_GROWTH
            ));
        }
        catch_panics(encode).map_err(|detail| {
            self.unknown_character(text)
                .unwrap_or_else(|| fault!("failed to encode {text:?}: {detail}", text = shorten(text, 0)))
        })
    }

    /// Text of token ids. `skip_special` leaves out special tokens. Bytes that are not UTF-8 become U+FFFD.
    /// An id outside the vocabulary (padded embedding rows have some) adds nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Fault> {
        catch_panics(|| self.inner.decode(ids, skip_special)).map_err(|detail| {
            fault!("failed to decode {num_tokens} tokens: {detail}", num_tokens = ids.len())
        })
    }

    /// Whether a character has no token, so that the tokens of a text contain nothing of it or the unknown
    /// token. White space may be left out without being lost.
    pub fn is_lost(&self, character: char) -> bool {
        let Ok(ids) = self.encode(character.encode_utf8(&mut [0; 4]), false) else { return false };
        let unknown = self.special_tokens.get("unk_token").and_then(|token| self.token_id(token));
        !character.is_whitespace()
            && (ids.iter().any(|id| Some(*id) == unknown)
                || self.decode(&ids, false).is_ok_and(|text| text.trim().is_empty()))
    }

    /// Number of tokens, including added ones. A model's embedding may have more rows, but never fewer than
    /// [`Self::num_rows`].
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Largest token id plus one: the embedding rows that a model needs.
    pub fn num_rows(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1)
    }

    /// Bytes of the longest token, as the vocabulary spells it. So a text has at least its length divided by
    /// this many tokens.
    pub fn longest_token(&self) -> usize {
        self.inner.get_vocab(true).keys().map(String::len).max().unwrap_or(1)
    }

    /// Whether a text of this many bytes may have so few tokens, judged without tokenizing it.
    pub fn may_fit(&self, num_bytes: usize, num_tokens: usize) -> bool {
        /// Texts with no more bytes for each token are accepted without a look at the vocabulary.
        const USUAL: usize = 16;
        num_bytes <= num_tokens.saturating_mul(USUAL)
            || num_bytes <= num_tokens.saturating_mul(self.longest_token())
    }

    /// Id of a token by its exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token's text as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Bytes that each token adds to a decoded text, by id. `None` for special tokens, which add nothing, and
    /// for ids without a token. Only for tokenizers whose text is the tokens' bytes one after the other:
    /// byte-level ones (Qwen, Llama 3, GPT-2) and those of single characters. An error for any other.
    pub fn token_bytes(&self) -> Result<Vec<Option<Box<[u8]>>>, Fault> {
        let model: Value = self
            .files
            .get("tokenizer.json")
            .and_then(|bytes| serde_json::from_slice(bytes).ok())
            .unwrap_or_default();
        let decoder = &model["decoder"]["type"];
        let is_byte_level = match decoder.as_str() {
            Some("ByteLevel") => true,
            Some("Fuse") => false,
            _ => {
                return Err(fault!(
                    "the tokenizer's decoder is {decoder}; the bytes of its tokens are known only for `ByteLevel` (Qwen, Llama 3) and \
                    `Fuse`"
                ));
            }
        };
        let mut tokens = vec![None; self.num_rows()];
        for (token, id) in self.inner.get_vocab(false) {
            tokens[id as usize] = Some(if is_byte_level { byte_level(&token) } else { token.into_bytes() });
        }
        for (id, token) in self.inner.get_added_tokens_decoder() {
            tokens[id as usize] = (!token.special).then(|| token.content.into_bytes());
        }
        Ok(tokens.into_iter().map(|token| token.map(Vec::into_boxed_slice)).collect())
    }

    /// Whether its tokens are whole words. Those of the built-in character tokenizer are.
    pub(crate) fn is_word_level(&self) -> bool {
        self.is_word_level
    }

    /// End-of-sequence token.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// Beginning token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// Special tokens by name (`eos_token`, `pad_token`, ...), as templates see them.
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.special_tokens
    }

    /// All ids at which generation ends: the tokenizer's end token and `eos_token_id` (a number or a list) of
    /// the model in a folder, sorted and without repetition. As in transformers, `config.json` counts only if
    /// there is no `generation_config.json`. Missing files add nothing.
    pub fn end_token_ids(&self, model: &Path) -> Result<Vec<u32>, Fault> {
        let mut ids: Vec<u32> = self.eos.into_iter().collect();
        let read = |path: &Path| match tamis_file::read(path, tamis_file::MAX_MODEL_CONFIG) {
            Ok(bytes) => match serde_json::from_slice::<Value>(&bytes) {
                Ok(config) => Ok(Some(config)),
                Err(source) => Err(fault!("{} is not valid JSON", path.display()).with_source(source)),
            },
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(fault!("failed to read {}", path.display()).with_source(source)),
        };
        let mut path = model.join("generation_config.json");
        let mut config = read(&path)?;
        if config.is_none() {
            path = model.join("config.json");
            config = read(&path)?;
        }
        let config = config.unwrap_or(Value::Null);
        // A model that also sees images has its text keys in a section.
        let own = Some(&config["eos_token_id"]).filter(|own| !own.is_null());
        let declared = own.unwrap_or(&config["text_config"]["eos_token_id"]);
        let values = match declared {
            Value::Null => &[][..],
            Value::Array(values) => values.as_slice(),
            single => std::slice::from_ref(single),
        };
        for value in values {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            ids.push(id.ok_or_else(|| {
                fault!(
                    "`eos_token_id` in {} must be a token id or a list of them, got {declared}",
                    path.display()
                )
            })?);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// The files by name (`/` between folder and name), byte for byte as they were read.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// Writes the files into a folder, byte for byte as they were read, so that `transformers` loads the same
    /// tokenizer. Creates the folder if needed; each file is flushed to disk.
    pub fn save(&self, folder: &Path) -> Result<(), Fault> {
        for (name, bytes) in &self.files {
            let path = folder.join(name);
            write_file(&path, bytes)
                .map_err(|source| fault!("failed to write {}", path.display()).with_source(source))?;
        }
        Ok(())
    }

    /// The chat template that comes with the tokenizer.
    ///
    /// `chat_template.jinja` takes precedence over `chat_template` of `tokenizer_config.json` (a text, or a
    /// list of `{name, template}`) and over `chat_template.json`. Of named templates (also
    /// `additional_chat_templates/*.jinja`), `default` is used, and `tool_use` if a conversation comes with
    /// tools.
    pub fn chat_template(&self) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::from_files(&self.files, &self.special_tokens)
    }

    fn unknown_character(&self, text: &str) -> Option<Fault> {
        if !self.is_word_level {
            return None;
        }
        // Added tokens are matched before single characters, so their characters need not be in the alphabet.
        let added = self.inner.get_added_tokens_decoder();
        let mut rest = text;
        let mut position = 0;
        while let Some(character) = rest.chars().next() {
            let known = added
                .values()
                .filter(|token| !token.content.is_empty() && rest.starts_with(&token.content))
                .map(|token| token.content.len())
                .max();
            let length = known.unwrap_or(character.len_utf8());
            let piece = rest.get(..length)?;
            if known.is_none() && self.inner.token_to_id(piece).is_none() {
                return Some(fault!(
                    "character {character:?} (at character {position} of {text:?}) is not in the tokenizer's alphabet",
                    text = shorten(text, position)
                ));
            }
            position += piece.chars().count();
            rest = rest.get(length..)?;
        }
        None
    }
}

/// The bytes of a token in a byte-level vocabulary. It spells each byte as one character: the printable ones
/// of Latin-1 as themselves, the 68 others as the characters from U+0100 on (Radford et al. 2019).
fn byte_level(token: &str) -> Vec<u8> {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let byte = |character: char| {
        let code = u32::from(character);
        let own = u8::try_from(code).ok().filter(|&byte| is_itself(byte));
        own.or_else(|| (0..=255).filter(|&byte| !is_itself(byte)).nth(code.checked_sub(0x100)? as usize))
    };
    token.chars().filter_map(byte).collect()
}

/// Calls the tokenizers library. Errors and panics become text.
fn catch_panics<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    caught::catch(call)?.map_err(|error| error.to_string())
}

/// Adds tokens of `added_tokens_decoder` in `tokenizer_config.json` that `tokenizer.json` lacks.
fn add_declared_tokens(
    tokenizer: &mut tokenizers::Tokenizer,
    config: &Value,
    path: &Path,
) -> Result<(), Fault> {
    let Some(declared) = config["added_tokens_decoder"].as_object() else { return Ok(()) };
    let mut tokens = Vec::with_capacity(declared.len());
    for (id, token) in declared {
        let (Ok(id), Some(content)) = (id.parse::<u32>(), token["content"].as_str()) else {
            return Err(fault!(
                "`{field}` in {} must be an object with `content` under a token id, got {token}",
                path.display(),
                field = format!("added_tokens_decoder.{id}")
            ));
        };
        tokens.push((id, content, token));
    }
    tokens.sort_unstable_by_key(|&(id, ..)| id);
    for (declared, content, token) in tokens {
        if tokenizer.token_to_id(content).is_none() {
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            let added = tokenizers::AddedToken::from(content, flag("special"))
                .single_word(flag("single_word"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"))
                .normalized(flag("normalized"));
            tokenizer
                .add_tokens([added])
                .map_err(|error| fault!("{} does not describe a tokenizer: {error}", path.display()))?;
        }
        match tokenizer.token_to_id(content) {
            Some(actual) if actual != declared => {
                return Err(fault!(
                    "added token {content:?} is declared with id {declared}, but tokenizer.json gives it {actual}"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = std::fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// About 40 characters of a text around a position.
fn shorten(text: &str, position: usize) -> String {
    let start = position.saturating_sub(20);
    let mut short: String = text.chars().skip(start).take(40).collect();
    if text.chars().nth(start + 40).is_some() {
        short.push('…');
    }
    if start > 0 {
        short.insert(0, '…');
    }
    short
}

#[cfg(test)]
mod tests;
