//! Description of a configuration key: its type in words, its condition, and whether it may change on resume.

use std::borrow::Cow;

/// A condition on a value beyond its type.
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

    /// Whether a number stays valid in single precision, in which the engine computes: it becomes neither
    /// infinite nor 0, nor a bound that it must not reach.
    pub fn holds_single(self, number: f64) -> bool {
        let single = f64::from(number as f32);
        let is_inside = match self {
            Self::GreaterThan(_) | Self::FromBelow(..) => self.holds(single),
            _ => true,
        };
        single.is_finite() && (single == 0.0) == (number == 0.0) && is_inside
    }

    /// Whether a number fulfils it.
    pub fn holds(self, value: f64) -> bool {
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
    /// The value may change: the steps already done do not depend on it.
    Free,
    /// The value must not change.
    Fixed,
}

/// The table's entry of one key.
#[derive(Debug, Clone)]
pub struct KeySpec {
    /// Name of the key inside its section.
    pub name: &'static str,
    /// Documentation, as written.
    pub doc: &'static str,
    /// Default value, in YAML. Empty: the key must be given.
    pub default: Cow<'static, str>,
    /// Condition beyond the type.
    pub check: Check,
    /// Whether it may change on resume.
    pub resume: Resume,
    /// Type of the key.
    pub shape: fn() -> Shape,
}

impl KeySpec {
    /// Whether it must be given.
    pub fn is_required(&self) -> bool {
        match &*self.default {
            "" => true,
            "''" | "\"\"" | "[]" => self.check == Check::NotEmpty,
            _ => false,
        }
    }
}

/// One alternative of a tagged section.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The tag.
    pub name: &'static str,
    /// Documentation, as written.
    pub doc: &'static str,
    /// The keys that it has besides the common ones.
    pub keys: Vec<KeySpec>,
}

/// The shape of a type, from which documentation, schema and messages are made.
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
    /// A file or folder, or one of the texts of its [`PathKind`].
    Path(PathKind),
    /// A number or a text in a form of its own.
    NumberOrText(Form),
    /// A text in a form of its own.
    TextForm(Form),
    /// A length of time, in the forms that [`TimeSpan`](super::TimeSpan) reads.
    TimeSpan,
    /// One of named values, each with its documentation.
    Choice(Vec<(&'static str, &'static str)>),
    /// A list.
    List(Box<Shape>),
    /// A list of exactly this length.
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
        /// Keys of the section.
        keys: Vec<KeySpec>,
    },
    /// A section with a `kind`, or just the name of the kind.
    OrName(Box<Shape>),
    /// A section whose keys depend on the key `kind`.
    Tagged {
        /// Documentation, as written.
        doc: &'static str,
        /// The keys that all have, `kind` among them.
        common: Vec<KeySpec>,
        /// The kinds.
        variants: Vec<Variant>,
        /// The kind if none is named; `None`: it must be named.
        default: Option<&'static str>,
    },
}

/// A form in which a value is written.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// The form in words.
    pub words: &'static str,
    /// The value of a text, in its serialised form. The text may be unquoted. `None` if the text has another
    /// form. The text of `{a: b}` is `a:b`.
    pub read: fn(text: &str, is_plain: bool) -> Option<serde_json::Value>,
}

/// Texts other than a path that a key for paths accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// None: only a file or a folder.
    Path,
    /// The word `char`, the built-in character tokenizer.
    OrCharacters,
    /// The bare name of a program, which is looked up on `PATH`.
    OrProgram,
    /// The name of a model on a hub.
    OrModel,
    /// The name of a data set on a hub.
    OrData,
}

impl Shape {
    /// The shape of a value that is not null.
    pub fn without_null(&self) -> &Self {
        match self {
            Self::Nullable(inner) => inner.without_null(),
            other => other,
        }
    }

    /// The keys that only this kind of the section has; empty if there is no such kind.
    pub fn keys_of_kind(&self, kind: &str) -> Vec<KeySpec> {
        if let Self::OrName(inner) = self.without_null() {
            return inner.keys_of_kind(kind);
        }
        let Self::Tagged { variants, .. } = self.without_null() else { return Vec::new() };
        variants
            .iter()
            .filter(|variant| variant.name == kind)
            .flat_map(|variant| variant.keys.clone())
            .collect()
    }

    /// The shape of a key of this section, in whichever kind has it, or of a list item by its number;
    /// [`Shape::Free`] if there is none.
    #[must_use]
    pub fn of_key(&self, name: &str) -> Self {
        let of = |keys: &[KeySpec]| keys.iter().find(|spec| spec.name == name).map(|spec| (spec.shape)());
        let found = match self.without_null() {
            Self::Section { keys, .. } => of(keys),
            Self::Tagged { common, variants, .. } => {
                of(common).or_else(|| variants.iter().find_map(|variant| of(&variant.keys)))
            }
            Self::List(item) | Self::Tuple(item, _) | Self::OneOrMany(item) => {
                name.parse::<usize>().is_ok().then(|| (**item).clone())
            }
            Self::Named(inner) => Some((**inner).clone()),
            Self::OrName(inner) => Some(inner.of_key(name)),
            _ => None,
        };
        found.unwrap_or(Self::Free)
    }

    /// Whether this section, or the sections in this list, have a kind of this name.
    pub fn has_kind(&self, name: &str) -> bool {
        match self.without_null() {
            Self::Tagged { variants, .. } => variants.iter().any(|variant| variant.name == name),
            Self::List(item) => item.has_kind(name),
            _ => false,
        }
    }

    /// The kinds of this section; empty if it has no `kind`.
    pub fn kinds(&self) -> impl Iterator<Item = &Variant> {
        let variants = match self {
            Self::Tagged { variants, .. } => variants.as_slice(),
            _ => &[],
        };
        variants.iter()
    }

    /// Documentation, as written, of a named value or kind.
    pub fn doc_of(&self, name: &str) -> Option<&'static str> {
        match self {
            Self::Choice(values) => values.iter().find(|(value, _)| *value == name).map(|(_, doc)| *doc),
            Self::Tagged { variants, .. } => {
                variants.iter().find(|variant| variant.name == name).map(|variant| variant.doc)
            }
            Self::OrName(inner) => inner.doc_of(name),
            _ => None,
        }
    }

    /// The type in words.
    pub fn describe(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Integer => "a whole number".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Text(what) => format!("a {what}"),
            Self::NumberOrText(form) | Self::TextForm(form) => format!("a {}", form.words),
            Self::Path(PathKind::Path) => "a path".to_owned(),
            Self::Path(PathKind::OrCharacters) => "a path, or `char`".to_owned(),
            Self::Path(PathKind::OrModel) => "a path or the name of a model on a hub".to_owned(),
            Self::Path(PathKind::OrData) => "a path or the name of a data set on a hub".to_owned(),
            Self::Path(PathKind::OrProgram) => "a path, or the name of a program".to_owned(),
            Self::TimeSpan => {
                "a duration above 0 such as 500ms, 30s, 5m, 1h, or a number of seconds".to_owned()
            }
            Self::Choice(values) => {
                format!("one of {}", values.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))
            }
            Self::List(item) => format!("a list, each {}", item.describe()),
            Self::Tuple(item, length) => format!("a list of {length}, each {}", item.describe()),
            Self::OneOrMany(item) => format!("{} or a list of such", item.describe()),
            Self::Nullable(inner) => or_null(&inner.describe()),
            Self::Free | Self::Named(_) => "a mapping".to_owned(),
            Self::Section { .. } => "a section".to_owned(),
            Self::Tagged { .. } => "a section with a `kind`".to_owned(),
            Self::OrName(inner) => {
                let names = inner.kinds().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
                format!("one of {names}, alone or as the `kind` of a section")
            }
        }
    }
}

/// The words for a type that also accepts null.
pub fn or_null(described: &str) -> String {
    // "A list, each a number or null" would be one of nulls.
    if described.starts_with("a list") {
        format!("null, or {described}")
    } else {
        format!("{described} or null")
    }
}

/// Documentation without the indentation and the line ends of its comment.
pub fn doc_text(doc: &str) -> String {
    doc.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}
