//! The files of a model that a run reads: configuration, tokenizer, templates, and weights as safetensors.

use serde_json::Value as Json;

use crate::error::{HubCause, HubError, listed};
use crate::listing::{Listing, stays_inside};

/// Files other than the weights, in the order of download. Files that may show a model to be unusable come
/// first.
const SMALL: [&str; 14] = [
    CONFIGURATION,
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    SINGLE_INDEX,
];

/// Architecture and sizes of a model.
pub(crate) const CONFIGURATION: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of weights in several files.
pub(crate) const SINGLE_INDEX: &str = "model.safetensors.index.json";

/// Endings of weight files in unsupported formats.
const OTHER_WEIGHTS: [&str; 8] = [".bin", ".gguf", ".onnx", ".pt", ".pth", ".h5", ".msgpack", ".safetensors"];

/// The available files other than weights, including the index of the weights.
///
/// # Errors
/// This is not a model that can be read.
pub(crate) fn small_files(name: &str, listing: &Listing) -> Result<Vec<String>, HubError> {
    let lacks = if !listing.has(CONFIGURATION) {
        CONFIGURATION
    } else if !listing.has(SINGLE) && !listing.has(SINGLE_INDEX) {
        "model.safetensors"
    } else {
        let is_read = |file: &&&str| listing.has(file) && (**file != SINGLE_INDEX || !listing.has(SINGLE));
        return Ok(SMALL.iter().filter(is_read).map(|file| (*file).to_owned()).collect());
    };
    let is_weights = |file: &&str| OTHER_WEIGHTS.iter().any(|ending| file.ends_with(ending));
    let others: Vec<&str> = listing.names().filter(is_weights).collect();
    let instead = match others.as_slice() {
        [] => String::new(),
        others => format!(", only {}", listed(others.iter().copied())),
    };
    let hint = if lacks == CONFIGURATION {
        "name the repository of a complete model in transformers' layout"
    } else {
        "weights are read as safetensors: convert the model with `save_pretrained(FOLDER, safe_serialization=True)` and \
         name the folder"
    };
    Err(HubError::new(HubCause::Refused, format!("`{name}` has no {lacks}{instead}"), hint))
}

/// The files in an index of weights, in order; the error describes what is wrong.
pub(crate) fn shards(index: &[u8]) -> Result<Vec<String>, String> {
    let index: Json = serde_json::from_slice(index).map_err(|error| format!("no JSON: {error}"))?;
    let map = index.get("weight_map").and_then(Json::as_object).ok_or("it has no `weight_map`")?;
    let file = |file: &Json| {
        let file = file.as_str().filter(|file| stays_inside(file));
        file.map(str::to_owned).ok_or("`weight_map` names something that is not a file")
    };
    let mut files: Vec<String> = map.values().map(file).collect::<Result<_, _>>()?;
    files.sort();
    files.dedup();
    if files.is_empty() { Err("`weight_map` is empty".to_owned()) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::ListedFile;

    fn listing(names: &[&str]) -> Listing {
        let file = |name: &&str| ListedFile { name: (*name).to_owned(), size: None, checksum: None };
        let commit = "7ae557604adf67be50417f59c2c2f167def9a775".to_owned();
        Listing { commit, files: names.iter().map(file).collect(), configurations: Vec::new() }
    }

    #[test]
    fn what_is_read_is_fetched_and_nothing_else() {
        let there = [
            "README.md",
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "onnx/decoder.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
        ];
        let files = small_files("a/b", &listing(&there)).expect("a model");
        assert_eq!(files, ["config.json", "tokenizer.json", "chat_template.jinja"]);
        let files = small_files("a/b", &listing(&["config.json", SINGLE_INDEX])).expect("a model");
        assert_eq!(files, ["config.json", SINGLE_INDEX]);
    }

    #[test]
    fn a_repository_without_safetensors_is_refused_with_what_it_has() {
        let refused = |names: &[&str]| small_files("a/b", &listing(names)).expect_err("refused").to_string();
        assert_eq!(
            refused(&["config.json", "pytorch_model.bin"]),
            "`a/b` has no model.safetensors, only `pytorch_model.bin`"
        );
        assert_eq!(refused(&["m.Q4_K_M.gguf"]), "`a/b` has no config.json, only `m.Q4_K_M.gguf`");
    }

    #[test]
    fn an_index_names_each_shard_once() {
        let index =
            br#"{"weight_map": {"b": "m-2.safetensors", "a": "m-1.safetensors", "c": "m-2.safetensors"}}"#;
        assert_eq!(shards(index).expect("shards"), ["m-1.safetensors", "m-2.safetensors"]);
        assert!(shards(br#"{"weight_map": {"b": "../../m"}}"#).is_err());
        assert!(shards(br#"{"weight_map": {}}"#).is_err());
    }
}
