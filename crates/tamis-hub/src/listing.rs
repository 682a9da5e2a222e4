//! The content of a repository at a commit.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::digest::is_checksum;
use crate::repository::is_commit;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedFile {
    /// Path inside the repository.
    pub(crate) name: String,
    /// Bytes, if the hub reports them.
    pub(crate) size: Option<u64>,
    /// Its checksum, if the hub reports it: the name of the blob.
    #[serde(default)]
    pub(crate) checksum: Option<String>,
}

/// Files of one split, as the card of a data set has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CardSplit {
    pub(crate) split: String,
    pub(crate) patterns: Vec<String>,
}

/// A configuration that the card of a data set declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CardConfiguration {
    pub(crate) name: String,
    pub(crate) is_default: bool,
    /// The folder of its patterns and files.
    pub(crate) folder: Option<String>,
    /// Empty if the splits follow from the names of the files.
    pub(crate) splits: Vec<CardSplit>,
}

/// The content of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<ListedFile>,
    /// From the card of a data set, if it declares them.
    pub(crate) configurations: Vec<CardConfiguration>,
}

impl Listing {
    /// Parses the hub's answer; the error describes what is wrong. Files whose names lead out of the folder
    /// are left out.
    pub(crate) fn of_answer(answer: &[u8]) -> Result<Self, String> {
        let answer: Json = serde_json::from_slice(answer).map_err(|error| format!("no JSON: {error}"))?;
        let commit = answer.get("sha").and_then(Json::as_str).filter(|sha| is_commit(sha));
        let commit = commit.ok_or("`sha` has no commit")?.to_owned();
        let siblings = answer.get("siblings").and_then(Json::as_array).ok_or("`siblings` has no files")?;
        let file = |sibling: &Json| {
            let name = sibling.get("rfilename")?.as_str().filter(|name| stays_inside(name))?.to_owned();
            // A large file has two checksums: one of its content, and one of the pointer that Git holds
            // instead.
            let checksum = sibling.pointer("/lfs/sha256").or_else(|| sibling.get("blobId"));
            let checksum = checksum.and_then(Json::as_str).filter(|name| is_checksum(name));
            let size = sibling.get("size").and_then(Json::as_u64);
            Some(ListedFile { name, size, checksum: checksum.map(str::to_owned) })
        };
        let files = siblings.iter().filter_map(file).collect();
        let declared = answer.pointer("/cardData/configs").and_then(Json::as_array);
        let configurations = declared.into_iter().flatten().filter_map(configuration).collect();
        Ok(Self { commit, files, configurations })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file(name).is_some()
    }

    pub(crate) fn file(&self, name: &str) -> Option<&ListedFile> {
        self.files.iter().find(|file| file.name == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    /// Total bytes of these files, if all sizes are known.
    pub(crate) fn bytes_of(&self, names: &[String]) -> Option<u64> {
        let size = |name: &String| self.file(name)?.size;
        names.iter().map(size).sum()
    }
}

/// Whether a file name stays inside the folder that it is put in.
pub(crate) fn stays_inside(name: &str) -> bool {
    let plain = |component| matches!(component, Component::Normal(_));
    !name.is_empty()
        && !name.contains(['\\', ':'])
        && !name.chars().any(char::is_control)
        && Path::new(name).components().all(plain)
}

/// Parses one entry of a card's `configs`.
fn configuration(declared: &Json) -> Option<CardConfiguration> {
    let text = |key: &str| declared.get(key).and_then(Json::as_str).map(str::to_owned);
    let patterns = |paths: &Json| match paths {
        Json::String(path) => vec![path.clone()],
        Json::Array(paths) => paths.iter().filter_map(|path| path.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    let all_train = |patterns: Vec<String>| vec![CardSplit { split: "train".to_owned(), patterns }];
    let splits = match declared.get("data_files") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(items)) if items.iter().all(Json::is_object) => {
            let split = |item: &Json| {
                let split = item.get("split")?.as_str()?.to_owned();
                Some(CardSplit { split, patterns: patterns(item.get("path")?) })
            };
            items.iter().filter_map(split).collect()
        }
        Some(Json::Object(map)) => {
            let split = |(split, paths): (&String, &Json)| CardSplit {
                split: split.clone(),
                patterns: patterns(paths),
            };
            map.iter().map(split).collect()
        }
        Some(paths) => all_train(patterns(paths)),
    };
    let is_default = declared.get("default").and_then(Json::as_bool).unwrap_or(false);
    Some(CardConfiguration { name: text("config_name")?, is_default, folder: text("data_dir"), splits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let answer = br#"{"id": "openai/gsm8k", "sha": "740312add88f781978c0658806c59bc2815b9866",
            "cardData": {"configs": [
                {"config_name": "main", "data_files": [{"split": "train", "path": "main/train-*"}]},
                {"config_name": "all", "default": true, "data_files": "*.jsonl"},
                {"config_name": "bare", "data_dir": "x"}]},
            "siblings": [{"rfilename": "main/train-00000-of-00001.parquet", "size": 5},
                {"rfilename": "../../evil"}, {"rfilename": "/etc/passwd"}, {"rfilename": "README.md"},
                {"rfilename": "a", "blobId": "ce013625030ba8dba906f756967f9e9ca394464a"},
                {"rfilename": "b", "blobId": "ce013625030ba8dba906f756967f9e9ca394464a", "lfs": {"sha256":
                 "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"}}, {"rfilename": "c", "blobId": "x"}]}"#;
        let listing = Listing::of_answer(answer).expect("an answer");
        assert_eq!(listing.commit, "740312add88f781978c0658806c59bc2815b9866");
        let names: Vec<&str> = listing.names().collect();
        assert_eq!(names, ["main/train-00000-of-00001.parquet", "README.md", "a", "b", "c"]);
        let length = |name: &str| listing.file(name).expect("listed").checksum.as_ref().map(String::len);
        assert_eq!(["README.md", "a", "b", "c"].map(length), [None, Some(40), Some(64), None]);
        assert_eq!(listing.bytes_of(&["main/train-00000-of-00001.parquet".to_owned()]), Some(5));
        assert_eq!(listing.bytes_of(&["README.md".to_owned()]), None);
        let train =
            |pattern: &str| vec![CardSplit { split: "train".to_owned(), patterns: vec![pattern.to_owned()] }];
        let [main, all, bare] = listing.configurations.as_slice() else { panic!("three") };
        assert_eq!(
            (main.name.as_str(), &main.splits, main.is_default),
            ("main", &train("main/train-*"), false)
        );
        assert_eq!((all.name.as_str(), &all.splits, all.is_default), ("all", &train("*.jsonl"), true));
        assert_eq!((bare.folder.as_deref(), bare.splits.len()), (Some("x"), 0));
    }

    #[test]
    fn other_answers_are_refused() {
        let refused = |answer: &str| Listing::of_answer(answer.as_bytes()).expect_err("refused");
        assert!(refused("<html>").starts_with("no JSON"));
        assert_eq!(refused(r#"{"sha": "main", "siblings": []}"#), "`sha` has no commit");
        let commit = "7ae557604adf67be50417f59c2c2f167def9a775";
        assert_eq!(refused(&format!(r#"{{"sha": "{commit}"}}"#)), "`siblings` has no files");
    }
}
