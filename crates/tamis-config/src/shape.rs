//! What a configuration key is: its type in words, its condition, and whether it may change on resume.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::setting::Setting;
use crate::source::{Origin, SourceKind};
use crate::tree::join;

/// A condition on a value that its type does not state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Check {
    /// No condition.
    Any,
    /// Not an empty text, list or path.
    NotEmpty,
    /// `>= bound`
    AtLeast(f64),
    /// `> bound`
    GreaterThan(f64),
    /// `low <= value <= high`
    Between(f64, f64),
    /// 0 or `low <= value <= high`
    ZeroOrBetween(f64, f64),
    /// `low <= value < high`
    FromBelow(f64, f64),
    /// `> 0`
    Positive,
    /// `>= 0`
    NonNegative,
    /// `0 < value <= 1`
    Probability,
}

impl Check {
    /// The condition in words, for messages and documentation; `None` for none.
    pub fn describe(self) -> Option<String> {
        match self {
            Self::Any => None,
            Self::NotEmpty => Some("non-empty".to_owned()),
            Self::AtLeast(bound) => Some(format!("at least {bound}")),
            Self::GreaterThan(bound) => Some(format!("greater than {bound}")),
            Self::Between(low, high) => Some(format!("from {low} to {high}")),
            Self::ZeroOrBetween(low, high) => Some(format!("0 or from {low} to {high}")),
            Self::FromBelow(low, high) => Some(format!("from {low} to below {high}")),
            Self::Positive => Some("greater than 0".to_owned()),
            Self::NonNegative => Some("0 or more".to_owned()),
            Self::Probability => Some("greater than 0 and at most 1".to_owned()),
        }
    }

    /// Whether a value fulfils it.
    pub(crate) fn accepts<T: Setting>(self, value: &T) -> bool {
        !(self == Self::NotEmpty && value.is_empty())
            && value.numbers().into_iter().all(|number| self.holds(number))
    }

    /// Whether single precision, in which the engine computes, holds a value: neither as infinite nor as 0, nor as a bound that it must not
    /// reach.
    pub(crate) fn accepts_single<T: Setting>(self, value: &T) -> bool {
        value.reals().into_iter().all(|number| self.holds_single(number))
    }

    /// [`Self::accepts_single`] of one number.
    pub(crate) fn holds_single(self, number: f64) -> bool {
        let single = f64::from(number as f32);
        let is_inside = match self {
            Self::GreaterThan(_) | Self::FromBelow(..) => self.holds(single),
            _ => true,
        };
        single.is_finite() && (single == 0.0) == (number == 0.0) && is_inside
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Self::Any | Self::NotEmpty => true,
            Self::AtLeast(bound) => value >= bound,
            Self::GreaterThan(bound) => value > bound,
            Self::Between(low, high) => (low..=high).contains(&value),
            Self::ZeroOrBetween(low, high) => value == 0.0 || (low..=high).contains(&value),
            Self::FromBelow(low, high) => (low..high).contains(&value),
            Self::Positive => value > 0.0,
            Self::NonNegative => value >= 0.0,
            Self::Probability => value > 0.0 && value <= 1.0,
        }
    }
}

/// Whether a key may differ when a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// It may: the steps already done do not depend on it.
    Free,
    /// It must not.
    Fixed,
}

/// The table's entry of one key.
#[derive(Debug, Clone)]
pub struct KeySpec {
    /// Its name inside its section.
    pub name: &'static str,
    /// Documentation, as written.
    pub doc: &'static str,
    /// Default value, in YAML.
    pub default: &'static str,
    /// Condition beyond the type.
    pub check: Check,
    /// Whether it may change on resume.
    pub resume: Resume,
    /// Its type.
    pub shape: fn() -> Shape,
}

/// One alternative of a tagged section.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The tag.
    pub name: &'static str,
    /// Documentation, as written.
    pub doc: &'static str,
    /// The keys that it has beside the common ones.
    pub keys: Vec<KeySpec>,
}

/// The shape of a type: what documentation, schema and messages say about it.
#[derive(Debug, Clone)]
pub enum Shape {
    /// `true` or `false`.
    Bool,
    /// A whole number, 0 or more.
    Integer,
    /// A finite number.
    Number,
    /// A text, described in words.
    Text(&'static str),
    /// A file or folder, in the sense that [`PathKind`] says.
    Path(PathKind),
    /// A number or a text, described in words.
    NumberOrText(&'static str),
    /// One of named values, each with its documentation.
    Choice(Vec<(&'static str, &'static str)>),
    /// A list.
    List(Box<Shape>),
    /// A list of exactly so many.
    Tuple(Box<Shape>, usize),
    /// One value or a list.
    OneOrMany(Box<Shape>),
    /// The value or null.
    Nullable(Box<Shape>),
    /// Any mapping.
    Free,
    /// A mapping from names of the user's to values of a shape.
    Named(Box<Shape>),
    /// A section with keys.
    Section {
        /// Documentation, as written.
        doc: &'static str,
        /// Its keys.
        keys: Vec<KeySpec>,
    },
    /// A section whose keys depend on the key `kind`.
    Tagged {
        /// Documentation, as written.
        doc: &'static str,
        /// The keys that all have, `kind` among them.
        common: Vec<KeySpec>,
        /// The kinds.
        variants: Vec<Variant>,
    },
}

/// What the text of a path may be beside a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing else: a file or a folder.
    Path,
    /// The word `char`, the built-in character tokenizer.
    OrCharacters,
    /// The bare name of a program, which is looked up on `PATH`.
    OrProgram,
}

/// Whether a path stands for one, as in examples (`PATH/TO/train.parquet`).
pub fn is_placeholder(path: &Path) -> bool {
    path.to_string_lossy().to_lowercase().contains("path/to/")
}

/// A path with `~/` as the user's own folder.
fn from_home(text: &str) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(text),
    }
}

impl PathKind {
    /// Whether a text is the name of something else than a file or folder.
    fn is_word(self, text: &str) -> bool {
        match self {
            Self::Path => text.is_empty(),
            Self::OrCharacters => text.is_empty() || text == "char",
            Self::OrProgram => !text.contains(std::path::is_separator),
        }
    }

    /// A path as it is written in a source, from where tamis was started: a relative one in a file is taken from the folder of that file,
    /// one in a file of another system or on the command line from where tamis was started, and `~/` is the user's own folder.
    pub(crate) fn resolve(self, text: &str, origin: &Origin) -> PathBuf {
        if self.is_word(text) {
            return PathBuf::from(text);
        }
        let path = from_home(text);
        match &origin.source.kind {
            SourceKind::File(file) => file.parent().map(|folder| folder.join(&path)).unwrap_or(path),
            _ => path,
        }
    }

    /// The path that a command in `folder` means, from anywhere.
    pub(crate) fn in_folder(self, text: &str, folder: &Path) -> String {
        if self.is_word(text) {
            return text.to_owned();
        }
        self.absolute(&folder.join(from_home(text)).to_string_lossy())
    }

    /// The same path from anywhere.
    pub(crate) fn absolute(self, text: &str) -> String {
        let path = Path::new(text);
        match std::path::absolute(path) {
            Ok(absolute) if !self.is_word(text) => absolute.to_string_lossy().into_owned(),
            _ => text.to_owned(),
        }
    }

    /// Whether two paths lead to one place, however they are written.
    pub(crate) fn is_same(self, one: &str, other: &str) -> bool {
        let place = |text: &str| {
            let absolute = PathBuf::from(self.absolute(text));
            std::fs::canonicalize(&absolute).unwrap_or(absolute)
        };
        one == other || (!self.is_word(one) && !self.is_word(other) && place(one) == place(other))
    }
}

impl Shape {
    /// Replaces every path in the value of a key of this shape; `map` is given the key (`data.train`), what the path may be beside a path,
    /// and its text.
    pub(crate) fn map_paths(
        &self,
        key: &str,
        value: &mut Json,
        map: &dyn Fn(&str, PathKind, &str) -> String,
    ) {
        let keys = |specs: &[KeySpec], value: &mut Json| {
            for spec in specs {
                if let Some(value) = value.get_mut(spec.name) {
                    (spec.shape)().map_paths(&join(key, spec.name), value, map);
                }
            }
        };
        match (self, value) {
            (Self::Path(kind), Json::String(text)) => *text = map(key, *kind, text),
            (Self::List(inner) | Self::OneOrMany(inner), Json::Array(items)) => {
                for item in items {
                    inner.map_paths(key, item, map);
                }
            }
            (Self::Named(inner), Json::Object(entries)) => {
                for (name, value) in entries {
                    inner.map_paths(&join(key, name), value, map);
                }
            }
            (Self::Nullable(inner) | Self::OneOrMany(inner), value) => inner.map_paths(key, value, map),
            (Self::Section { keys: specs, .. }, value) => keys(specs, value),
            (Self::Tagged { common, variants, .. }, value) => {
                keys(common, value);
                let kind = value.get("kind").and_then(Json::as_str).map(str::to_owned);
                for variant in variants.iter().filter(|variant| Some(variant.name) == kind.as_deref()) {
                    keys(&variant.keys, value);
                }
            }
            _ => {}
        }
    }

    /// The type in words.
    pub fn describe(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Integer => "a whole number".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Text(what) | Self::NumberOrText(what) => format!("a {what}"),
            Self::Path(PathKind::Path) => "a path".to_owned(),
            Self::Path(PathKind::OrCharacters) => "a path, or `char`".to_owned(),
            Self::Path(PathKind::OrProgram) => "a path, or the name of a program".to_owned(),
            Self::Choice(values) => {
                format!("one of {}", values.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))
            }
            Self::List(item) => format!("a list, each {}", item.describe()),
            Self::Tuple(item, length) => format!("a list of {length}, each {}", item.describe()),
            Self::OneOrMany(item) => format!("{} or a list of such", item.describe()),
            Self::Nullable(inner) => format!("{} or null", inner.describe()),
            Self::Free | Self::Named(_) => "a mapping".to_owned(),
            Self::Section { .. } => "a section".to_owned(),
            Self::Tagged { .. } => "a section with a `kind`".to_owned(),
        }
    }
}
