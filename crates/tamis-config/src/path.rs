//! Paths in configurations: how they are resolved, and which paths a value holds.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tamis_core::setting::{KeySpec, PathKind, Shape};

use crate::hub_name::{HubName, PREFIX, SplitName};
use crate::source::{Origin, SourceKind};
use crate::tree::{Node, Value};

/// Whether a path is a placeholder, as in examples (`PATH/TO/train.parquet`).
pub fn is_placeholder(path: &Path) -> bool {
    path.to_string_lossy().to_lowercase().contains("path/to/")
}

/// A path with `~/` expanded to the user's home folder.
fn from_home(text: &str) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(text),
    }
}

pub(crate) trait PathText: Copy {
    /// Whether a text is a name, not a file or folder, in any folder.
    fn is_word(self, text: &str) -> bool;

    /// Whether a text is a name, seen from a folder. An unmarked name on a hub is a path if something exists
    /// there.
    fn is_name(self, text: &str, folder: &Path) -> bool;

    /// Resolves a path of a source against the working directory. A relative path in a file is relative to
    /// the folder of that file. In a file of another system or on the command line it is relative to the
    /// working directory. `~/` is the user's home folder.
    fn resolve(self, text: &str, origin: &Origin) -> PathBuf;

    /// The absolute path that a command in `folder` means.
    fn in_folder(self, text: &str, folder: &Path) -> String;

    /// The absolute form of the path.
    fn absolute(self, text: &str) -> String;

    /// Whether two paths lead to the same place.
    fn is_same(self, one: &str, other: &str) -> bool;
}

impl PathText for PathKind {
    fn is_word(self, text: &str) -> bool {
        match self {
            Self::Path => text.is_empty(),
            Self::OrCharacters => text.is_empty() || text == "char",
            Self::OrProgram => !text.contains(std::path::is_separator),
            Self::OrModel | Self::OrData => text.is_empty() || text.starts_with(PREFIX),
        }
    }

    fn is_name(self, text: &str, folder: &Path) -> bool {
        let is_on_hub = match self {
            Self::OrModel => HubName::parse(text).is_some(),
            Self::OrData => SplitName::parse(text).is_some(),
            Self::Path | Self::OrCharacters | Self::OrProgram => return self.is_word(text),
        };
        text.is_empty() || is_on_hub && (text.starts_with(PREFIX) || !folder.join(text).exists())
    }

    fn resolve(self, text: &str, origin: &Origin) -> PathBuf {
        let folder = match &origin.source.kind {
            SourceKind::File(file) => file.parent().unwrap_or(Path::new("")),
            _ => Path::new(""),
        };
        if self.is_name(text, folder) {
            let is_marked = text.is_empty() || self.is_word(text);
            return PathBuf::from(if is_marked { text.to_owned() } else { format!("{PREFIX}{text}") });
        }
        folder.join(from_home(text))
    }

    fn in_folder(self, text: &str, folder: &Path) -> String {
        if self.is_name(text, folder) {
            return text.to_owned();
        }
        self.absolute(&folder.join(from_home(text)).to_string_lossy())
    }

    fn absolute(self, text: &str) -> String {
        let path = Path::new(text);
        match std::path::absolute(path) {
            Ok(absolute) if !self.is_word(text) => absolute.to_string_lossy().into_owned(),
            _ => text.to_owned(),
        }
    }

    fn is_same(self, one: &str, other: &str) -> bool {
        let place = |text: &str| {
            let absolute = PathBuf::from(self.absolute(text));
            std::fs::canonicalize(&absolute).unwrap_or(absolute)
        };
        one == other || (!self.is_word(one) && !self.is_word(other) && place(one) == place(other))
    }
}

/// Replaces every path in a value of this shape; `map` gets what the text may be besides a path, and the
/// text.
pub(crate) fn map_paths(shape: &Shape, value: &mut Json, map: &dyn Fn(PathKind, &str) -> String) {
    let keys = |specs: &[KeySpec], value: &mut Json| {
        for spec in specs {
            if let Some(value) = value.get_mut(spec.name) {
                map_paths(&(spec.shape)(), value, map);
            }
        }
    };
    match (shape, value) {
        (Shape::Path(kind), Json::String(text)) => *text = map(*kind, text),
        (Shape::List(inner) | Shape::OneOrMany(inner), Json::Array(items)) => {
            for item in items {
                map_paths(inner, item, map);
            }
        }
        (Shape::Named(inner), Json::Object(entries)) => {
            for value in entries.values_mut() {
                map_paths(inner, value, map);
            }
        }
        (Shape::Nullable(inner) | Shape::OneOrMany(inner) | Shape::OrName(inner), value) => {
            map_paths(inner, value, map);
        }
        (Shape::Section { keys: specs, .. }, value) => keys(specs, value),
        (Shape::Tagged { common, variants, .. }, value) => {
            keys(common, value);
            let kind = value.get("kind").and_then(Json::as_str).map(str::to_owned);
            for variant in variants.iter().filter(|variant| Some(variant.name) == kind.as_deref()) {
                keys(&variant.keys, value);
            }
        }
        _ => {}
    }
}

/// Prefixes the relative paths of a file with its folder.
pub(crate) fn take_paths_from(node: &mut Node, shape: &Shape, folder: Option<&Path>) {
    let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty() && !node.is_null()) else {
        return;
    };
    match (shape.without_null(), &mut node.value) {
        (Shape::OneOrMany(inner) | Shape::List(inner), Value::List(items)) => {
            for item in items {
                take_paths_from(item, inner, Some(folder));
            }
        }
        (Shape::OneOrMany(inner), _) => take_paths_from(node, inner, Some(folder)),
        (Shape::Path(kind), Value::Scalar { text, .. })
            if !kind.is_name(text, folder) && !text.starts_with("~/") =>
        {
            *text = folder.join(&*text).to_string_lossy().into_owned();
        }
        (shape, Value::Map(entries)) => {
            for entry in entries {
                take_paths_from(&mut entry.node, &shape.of_key(&entry.key), Some(folder));
            }
        }
        _ => {}
    }
}
