//! A repository on a hub, and its addresses.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Kinds of repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryKind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

impl RepositoryKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "data set",
        }
    }

    /// Its name in addresses and folders.
    fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }
}

/// A repository on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// Its kind.
    pub kind: RepositoryKind,
    /// `owner/name`; a few old ones lack an owner.
    pub id: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.id)
    }
}

impl Repository {
    pub(crate) fn folder(&self) -> String {
        format!("{}--{}", self.kind.plural(), self.id.replace('/', "--"))
    }

    /// Address of its web page.
    pub(crate) fn page(&self, endpoint: &str) -> String {
        match self.kind {
            RepositoryKind::Model => format!("{endpoint}/{}", self.id),
            RepositoryKind::Dataset => format!("{endpoint}/datasets/{}", self.id),
        }
    }

    /// Address of the listing at a revision, with sizes.
    pub(crate) fn listing(&self, endpoint: &str, revision: &str) -> String {
        let (kind, id) = (self.kind.plural(), &self.id);
        format!(
            "{endpoint}/api/{kind}/{id}/revision/{}?blobs=true",
            utf8_percent_encode(revision, UNRESERVED)
        )
    }

    pub(crate) fn file(&self, endpoint: &str, revision: &str, file: &str) -> String {
        format!(
            "{}/resolve/{}/{}",
            self.page(endpoint),
            utf8_percent_encode(revision, UNRESERVED),
            utf8_percent_encode(file, PATH)
        )
    }

    /// The command of `huggingface_hub` that fills the cache.
    pub(crate) fn command(&self, revision: &str) -> String {
        let kind = if self.kind == RepositoryKind::Dataset { " --repo-type dataset" } else { "" };
        let revision = if revision == "main" { String::new() } else { format!(" --revision {revision}") };
        format!("hf download {}{kind}{revision}", self.id)
    }
}

/// Whether a revision is a commit, so that it always has the same files.
pub fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Characters that stay unescaped in a part of an address (RFC 3986).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &UNRESERVED.remove(b'/');

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_hub() {
        let model = Repository { kind: RepositoryKind::Model, id: "Qwen/Qwen2.5-0.5B".to_owned() };
        let data = Repository { kind: RepositoryKind::Dataset, id: "openai/gsm8k".to_owned() };
        assert_eq!(model.folder(), "models--Qwen--Qwen2.5-0.5B");
        assert_eq!(data.folder(), "datasets--openai--gsm8k");
        assert_eq!(
            data.listing("https://h", "refs/convert/parquet"),
            "https://h/api/datasets/openai/gsm8k/revision/refs%2Fconvert%2Fparquet?blobs=true"
        );
        assert_eq!(
            data.file("https://h", "refs/pr/1", "main/a b#.parquet"),
            "https://h/datasets/openai/gsm8k/resolve/refs%2Fpr%2F1/main/a%20b%23.parquet"
        );
        assert_eq!(
            model.file("https://h", "main", "config.json"),
            "https://h/Qwen/Qwen2.5-0.5B/resolve/main/config.json"
        );
        assert_eq!(data.command("v1"), "hf download openai/gsm8k --repo-type dataset --revision v1");
        assert_eq!(model.command("main"), "hf download Qwen/Qwen2.5-0.5B");
    }

    #[test]
    fn a_commit_has_forty_digits() {
        assert!(is_commit("7ae557604adf67be50417f59c2c2f167def9a775"));
        for other in ["main", "7ae5576", "7AE557604ADF67BE50417F59C2C2F167DEF9A775"] {
            assert!(!is_commit(other), "{other}");
        }
    }
}
