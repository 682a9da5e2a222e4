//! Names of models and of data sets on a hub.
//!
//! ```text
//! Qwen/Qwen2.5-0.5B-Instruct           owner/name, the main branch
//! Qwen/Qwen2.5-0.5B-Instruct@v1        a branch, a tag or a commit
//! openai/gsm8k:main/train              of a data set: configuration and split, or the split alone
//! hf://openai/gsm8k@COMMIT:main/train  never taken for a path; so are names written into `config.yaml`
//! ```
//!
//! Without `hf://` a text is such a name only if nothing exists at the same text as a path.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tamis_core::setting::{Described, PathKind, Shape};

use crate::path::PathText as _;

/// Prefix that marks a name on a hub.
pub const PREFIX: &str = "hf://";

/// Endings of files: a text with one of them is a path.
const FILES: [&str; 15] = [
    ".jsonl",
    ".json",
    ".parquet",
    ".csv",
    ".tsv",
    ".txt",
    ".arrow",
    ".gz",
    ".zst",
    ".zip",
    ".yaml",
    ".yml",
    ".safetensors",
    ".bin",
    ".gguf",
];

/// A repository on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    /// `owner/name`.
    pub id: String,
    /// Branch, tag or commit; `None` is the main branch.
    pub revision: Option<String>,
}

impl HubName {
    /// Whether a text is marked as such a name, by `hf://` in front.
    pub fn is_marked(text: &Path) -> bool {
        text.to_string_lossy().starts_with(PREFIX)
    }

    /// Reads `owner/name` or `owner/name@revision`. Only with `hf://` in front may the owner be omitted, or
    /// the name have the ending of a file.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, is_marked) = without_prefix(text);
        let (id, revision) = match name.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (name, None),
        };
        let is_sound = is_id(id, is_marked) && revision.is_none_or(is_revision);
        is_sound.then(|| Self { id: id.to_owned(), revision: revision.map(str::to_owned) })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}", self.id)?;
        self.revision.as_ref().map_or(Ok(()), |revision| write!(formatter, "@{revision}"))
    }
}

/// A split of a data set on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitName {
    /// The repository.
    pub repository: HubName,
    /// The configuration; `None` is the only one, or the default one.
    pub configuration: Option<String>,
    /// The split; `None` is the key's default split.
    pub split: Option<String>,
}

impl SplitName {
    /// Reads the name of a repository, and `:split` or `:configuration/split` after it.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, is_marked) = without_prefix(text);
        let offset = if is_marked { PREFIX.len() } else { 0 };
        let (repository, split) = match text.get(offset..)?.split_once(':') {
            Some((repository, split)) => (text.get(..offset + repository.len())?, Some(split)),
            None => (text, None),
        };
        let repository = HubName::parse(repository)?;
        let Some(split) = split else {
            return Some(Self { repository, configuration: None, split: None });
        };
        let (configuration, split) = match split.rsplit_once('/') {
            Some((configuration, split)) => (Some(configuration), split),
            None => (None, split),
        };
        let is_word = |text: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/+,=".contains(&byte);
            !text.is_empty() && text.bytes().all(is_plain)
        };
        let is_sound = is_word(split) && configuration.is_none_or(is_word);
        let owned = |text: &str| Some(text.to_owned());
        is_sound.then(|| Self {
            repository,
            configuration: configuration.and_then(owned),
            split: owned(split),
        })
    }
}

impl fmt::Display for SplitName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repository.fmt(formatter)?;
        match (&self.configuration, &self.split) {
            (Some(configuration), Some(split)) => write!(formatter, ":{configuration}/{split}"),
            (None, Some(split)) => write!(formatter, ":{split}"),
            (_, None) => Ok(()),
        }
    }
}

fn without_prefix(text: &str) -> (&str, bool) {
    text.strip_prefix(PREFIX).map_or((text, false), |name| (name, true))
}

/// Whether a text has the form of a repository's id.
fn is_id(id: &str, is_marked: bool) -> bool {
    let is_part = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.ends_with(['.', '-'])
            && part.bytes().all(is_plain)
    };
    let num_parts = id.split('/').count();
    id.len() <= 96
        && id.split('/').all(is_part)
        && !id.contains("..")
        && !id.contains("--")
        && (num_parts == 2 || num_parts == 1 && is_marked)
        && (is_marked || !FILES.iter().any(|ending| id.to_ascii_lowercase().ends_with(ending)))
}

fn is_revision(revision: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/+".contains(&byte);
    !revision.is_empty()
        && revision.bytes().all(is_plain)
        && revision.split('/').all(|part| !part.is_empty() && part.trim_matches('.') == part)
}

/// A model: a folder on this machine, or a name on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A folder.
    Folder(PathBuf),
    /// A name.
    Hub {
        /// The name.
        name: HubName,
        /// The same text as a path, at which nothing was found.
        not_at: Option<PathBuf>,
        /// The folder with its files, once they have been found.
        folder: Option<PathBuf>,
    },
}

impl ModelSource {
    /// Reads a text from a command line.
    pub fn parse(text: &str) -> Self {
        let (name, path) = (HubName::parse(text), PathBuf::from(text));
        match name {
            Some(name) if !path.exists() => Self::Hub { name, not_at: not_at(text, path), folder: None },
            _ => Self::Folder(path),
        }
    }

    /// The folder with its files, or the name if its files have not been found.
    pub fn folder(&self) -> PathBuf {
        match self {
            Self::Folder(path) | Self::Hub { folder: Some(path), .. } => path.clone(),
            Self::Hub { name, folder: None, .. } => PathBuf::from(name.to_string()),
        }
    }

    /// The folder, or the name, in the form for an inference server.
    pub fn for_server(&self) -> PathBuf {
        match self {
            Self::Hub { name, folder: None, .. } => PathBuf::from(&name.id),
            found => found.folder(),
        }
    }

    /// Whether its files are on this machine, or would be: a name must have been followed.
    pub fn is_local(&self) -> bool {
        !matches!(self, Self::Hub { folder: None, .. })
    }
}

/// The path that was tried before a text was taken as a name.
pub(crate) fn not_at(text: &str, path: PathBuf) -> Option<PathBuf> {
    Some(path).filter(|_| !text.starts_with(PREFIX))
}

impl fmt::Display for ModelSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(formatter),
            Self::Hub { name, .. } => name.fmt(formatter),
        }
    }
}

impl Serialize for ModelSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ModelSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match HubName::parse(&text).filter(|_| PathKind::OrModel.is_word(&text)) {
            Some(name) => Self::Hub { name, not_at: None, folder: None },
            None => Self::Folder(text.into()),
        })
    }
}

impl Described for ModelSource {
    fn shape() -> Shape {
        Shape::Path(PathKind::OrModel)
    }
}

/// Rows of data: a file on this machine, or a split of a data set on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A file.
    File(PathBuf),
    /// A name.
    Hub {
        /// The name.
        name: SplitName,
        /// The same text as a path, at which nothing was found.
        not_at: Option<PathBuf>,
        /// Its files, once they have been found.
        files: Option<Vec<PathBuf>>,
    },
}

impl DataSource {
    /// Its files, or the name if its files have not been found.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::File(path) => vec![path.clone()],
            Self::Hub { files: Some(files), .. } => files.clone(),
            Self::Hub { name, files: None, .. } => vec![PathBuf::from(name.to_string())],
        }
    }

    /// Whether its files are on this machine, or would be: a name must have been followed.
    pub fn is_local(&self) -> bool {
        !matches!(self, Self::Hub { files: None, .. })
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(formatter),
            Self::Hub { name, .. } => name.fmt(formatter),
        }
    }
}

impl Serialize for DataSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DataSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match SplitName::parse(&text).filter(|_| PathKind::OrData.is_word(&text)) {
            Some(name) => Self::Hub { name, not_at: None, files: None },
            None => Self::File(text.into()),
        })
    }
}

/// Rows of data: one path or name, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DataSources(pub Vec<DataSource>);

impl DataSources {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The files of all, in order; see [`DataSource::files`].
    pub fn files(&self) -> Vec<PathBuf> {
        self.0.iter().flat_map(DataSource::files).collect()
    }
}

impl Described for DataSources {
    fn shape() -> Shape {
        Shape::OneOrMany(Box::new(Shape::Path(PathKind::OrData)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models() {
        for (text, shown) in [
            ("Qwen/Qwen2.5-0.5B-Instruct", Some("hf://Qwen/Qwen2.5-0.5B-Instruct")),
            ("Qwen/Qwen3-8B@v1.0", Some("hf://Qwen/Qwen3-8B@v1.0")),
            ("hf://org/name@refs/pr/1", Some("hf://org/name@refs/pr/1")),
            ("hf://gpt2", Some("hf://gpt2")),
            ("gpt2", None),
            ("runs/tiny/checkpoints/step_2", None),
            ("./org/name", None),
            ("../name", None),
            ("~/name", None),
            ("/org/name", None),
            ("org/name/", None),
            ("org/.name", None),
            ("org/a--b", None),
            ("models/model.safetensors", None),
            ("hf://org/name@", None),
            ("hf://org/name@../../x", None),
            ("org/na me", None),
            ("org/name:main", None),
        ] {
            assert_eq!(HubName::parse(text).map(|name| name.to_string()).as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn names_of_splits() {
        for (text, shown) in [
            ("openai/gsm8k", Some("hf://openai/gsm8k")),
            ("openai/gsm8k:main/train", Some("hf://openai/gsm8k:main/train")),
            ("hiyouga/math12k:test", Some("hf://hiyouga/math12k:test")),
            (
                "hf://openai/gsm8k@refs/convert/parquet:main/train",
                Some("hf://openai/gsm8k@refs/convert/parquet:main/train"),
            ),
            ("data/train.jsonl", None),
            ("data/train.PARQUET", None),
            ("openai/gsm8k:", None),
            ("openai/gsm8k:train[:100]", None),
            ("C:/data/train", None),
        ] {
            assert_eq!(SplitName::parse(text).map(|name| name.to_string()).as_deref(), shown, "{text}");
        }
        let split = SplitName::parse("hf://a/b@v1:c/d/train").expect("a name");
        assert_eq!(
            (split.repository.revision.as_deref(), split.configuration.as_deref()),
            (Some("v1"), Some("c/d"))
        );
    }
}
