//! What every configuration type can do: describe its shape, be read from a raw value, and be written as JSON.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use crate::diagnostic::{Diagnostic, Problem};
use crate::foreign;
use crate::source::{Origin, Source, SourceKind};
use crate::suggest;
use crate::table;
use crate::tree::{Node, Value, parse_bool, parse_float};

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
            Self::FromBelow(low, high) => Some(format!("from {low} to below {high}")),
            Self::Positive => Some("greater than 0".to_owned()),
            Self::NonNegative => Some("0 or more".to_owned()),
            Self::Probability => Some("greater than 0 and at most 1".to_owned()),
        }
    }

    fn accepts<T: Setting>(self, value: &T) -> bool {
        !(self == Self::NotEmpty && value.is_empty())
            && value.numbers().into_iter().all(|number| self.holds(number))
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Self::Any | Self::NotEmpty => true,
            Self::AtLeast(bound) => value >= bound,
            Self::GreaterThan(bound) => value > bound,
            Self::Between(low, high) => (low..=high).contains(&value),
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

impl Shape {
    /// The type in words.
    pub fn describe(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Integer => "a whole number".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Text(what) | Self::NumberOrText(what) => format!("a {what}"),
            Self::Choice(values) => {
                format!("one of {}", values.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))
            }
            Self::List(item) => format!("a list, each {}", item.describe()),
            Self::Tuple(item, length) => format!("a list of {length}, each {}", item.describe()),
            Self::OneOrMany(item) => format!("{} or a list of such", item.describe()),
            Self::Nullable(inner) => format!("{} or null", inner.describe()),
            Self::Free => "a mapping".to_owned(),
            Self::Section { .. } => "a section".to_owned(),
            Self::Tagged { .. } => "a section with a `kind`".to_owned(),
        }
    }
}

/// A type that a configuration key can have.
pub trait Setting: Sized {
    /// Its shape.
    fn shape() -> Shape;

    /// Reads it; what is wrong goes to the reader. `None` exactly where something was reported.
    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self>;

    /// The value as JSON, as a configuration would hold it.
    fn to_json(&self) -> Json;

    /// Every number that a [`Check`] looks at.
    fn numbers(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Whether it is an empty text, list or path.
    fn is_empty(&self) -> bool {
        false
    }
}

/// Reads settings from raw values and collects everything that is wrong.
#[derive(Debug)]
pub struct Reader {
    diagnostics: Vec<Diagnostic>,
    unsound: Vec<String>,
    defaults: std::sync::Arc<Source>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader that has found nothing yet.
    pub fn new() -> Self {
        Self { diagnostics: Vec::new(), unsound: Vec::new(), defaults: Source::new(SourceKind::Default, "") }
    }

    /// What was found.
    pub fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics
    }

    /// Whether something was wrong at a key, in it, or with a section it is in, so that the value read is not the user's.
    pub fn is_unsound(&self, key: &str) -> bool {
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.unsound.iter().any(|unsound| within(unsound, key) || within(key, unsound))
    }

    /// Reports a problem at a node.
    pub fn report(&mut self, node: &Node, problem: Problem) {
        self.diagnostics.push(Diagnostic::error(problem, Some(node.origin.clone())));
    }

    fn wrong_type(&mut self, node: &Node, path: &str, shape: &Shape) {
        let problem = Problem::WrongType {
            key: path.to_owned(),
            expected: shape.describe(),
            found: describe_found(node),
            example: match &node.value {
                Value::Scalar { text, .. } if !node.is_null() => Some(text.clone()),
                _ => None,
            },
        };
        self.report(node, problem);
    }

    /// Opens a section: it must be a mapping (or nothing) with known keys only.
    pub fn open<'n>(&mut self, node: &'n Node, path: &str, known: &[&'static str]) -> Option<&'n Node> {
        if !matches!(node.value, Value::Map(_)) && !node.is_null() {
            self.wrong_type(node, path, &Shape::Section { doc: "", keys: Vec::new() });
            return None;
        }
        for entry in node.entries() {
            if !known.contains(&entry.key.as_str()) {
                let key = join(path, &entry.key);
                let suggestion = suggest::nearest_key(&key, path, known, table::suggestion_keys());
                let owner = foreign::owner_of_section(&key);
                let known = known.iter().map(|&name| name.to_owned()).collect();
                let problem = Problem::UnknownKey { key, suggestion, known, owner };
                self.diagnostics.push(Diagnostic::error(problem, Some(entry.origin.clone())));
            }
        }
        Some(node)
    }

    /// Opens a section whose keys depend on `kind`; gives the kind's name.
    pub fn open_tagged<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        common: &[KeySpec],
        variants: &[Variant],
    ) -> Option<(&'static str, &'n Node)> {
        let Value::Map(_) = node.value else {
            self.wrong_type(node, path, &Shape::Tagged { doc: "", common: Vec::new(), variants: Vec::new() });
            return None;
        };
        let names: Vec<&'static str> = variants.iter().map(|variant| variant.name).collect();
        let Some(tag) = node.get("kind") else {
            let problem = Problem::MissingKey {
                key: join(path, "kind"),
                allowed: names.iter().map(|&name| name.to_owned()).collect(),
            };
            self.report(node, problem);
            return None;
        };
        let index = self.choice(tag, &join(path, "kind"), &names)?;
        let variant = variants.get(index)?;
        let mut known: Vec<&'static str> = vec!["kind"];
        known.extend(common.iter().map(|spec| spec.name));
        known.extend(variant.keys.iter().map(|spec| spec.name));
        let section = self.open(node, path, &known)?;
        Some((variant.name, section))
    }

    /// Reads one key of an open section, or its default where it is absent, and checks it.
    ///
    /// Where something is wrong it is reported and the default stands in, so that the other violations are found too.
    pub fn key<T: Setting>(
        &mut self,
        section: &Node,
        path: &str,
        name: &str,
        default: &'static str,
        check: Check,
    ) -> Option<T> {
        let full = join(path, name);
        let Some(node) = section.get(name) else {
            // A default that is not allowed stands for "must be given".
            let node = self.default_node(default, &section.origin);
            let value = T::read(&node, &full, self)?;
            if check.accepts(&value) {
                return Some(value);
            }
            // What asks for the key is the kind, where there is one.
            let asking = section.get("kind").filter(|kind| kind.origin.is_from_user()).unwrap_or(section);
            self.report(asking, Problem::Missing { key: full.clone(), expected: T::shape().describe() });
            self.unsound.push(full);
            return Some(value);
        };
        let value = T::read(node, &full, self);
        match value {
            Some(value) if check.accepts(&value) => return Some(value),
            Some(_) => {
                let problem = Problem::OutOfRange {
                    key: full.clone(),
                    value: describe_value(node),
                    condition: check.describe().unwrap_or_default(),
                };
                self.report(node, problem);
            }
            None => {}
        }
        let node = self.default_node(default, &section.origin);
        let num_diagnostics = self.diagnostics.len();
        let value = T::read(&node, &full, self);
        self.diagnostics.truncate(num_diagnostics);
        self.unsound.push(full);
        value
    }

    /// A default's raw value. What is wrong under a default is shown at its section, where the user can do something about it.
    fn default_node(&self, default: &'static str, section: &Origin) -> Node {
        let origin = if section.is_from_user() { section.clone() } else { Origin::start_of(&self.defaults) };
        if default.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')) {
            return Node::plain(default, origin);
        }
        match crate::yaml::parse(&Source::new(SourceKind::Default, default)) {
            Ok(mut node) => {
                node.origin = origin;
                node
            }
            Err(_) => Node::plain(default, origin),
        }
    }

    /// Reads one of named values; gives its index.
    pub fn choice(&mut self, node: &Node, path: &str, allowed: &[&'static str]) -> Option<usize> {
        let (Value::Scalar { text, .. }, false) = (&node.value, node.is_null() && !allowed.contains(&"none"))
        else {
            let shape = Shape::Choice(allowed.iter().map(|&name| (name, "")).collect());
            self.wrong_type(node, path, &shape);
            return None;
        };
        let text = if node.is_null() { "none" } else { text.as_str() };
        let index = allowed.iter().position(|&name| name == text);
        if index.is_none() {
            let problem = Problem::NotAllowed {
                key: path.to_owned(),
                value: text.to_owned(),
                suggestion: suggest::nearest_value(text, allowed),
                allowed: allowed.iter().map(|&name| name.to_owned()).collect(),
            };
            self.report(node, problem);
        }
        index
    }

    fn scalar<'n>(&mut self, node: &'n Node, path: &str, shape: &Shape) -> Option<&'n str> {
        match &node.value {
            Value::Scalar { text, plain: true } if !node.is_null() => Some(text),
            _ => {
                self.wrong_type(node, path, shape);
                None
            }
        }
    }
}

/// A dotted path.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn describe_found(node: &Node) -> String {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => "null".to_owned(),
        Value::Scalar { text, plain } => {
            if *plain && (parse_float(text).is_some()) {
                format!("the number {text}")
            } else if *plain && parse_bool(text).is_some() {
                text.clone()
            } else {
                format!("the text {}", quote(text))
            }
        }
        Value::List(items) => format!("a list of {}", items.len()),
        Value::Map(_) => "a mapping".to_owned(),
    }
}

fn describe_value(node: &Node) -> String {
    match &node.value {
        Value::Scalar { text, plain: true } => text.clone(),
        Value::Scalar { text, plain: false } => quote(text),
        Value::List(_) | Value::Map(_) => node.to_json().to_string(),
    }
}

/// A text in double quotes, cut after 60 characters.
fn quote(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("{:?}", format!("{cut}{more}"))
}

impl Setting for bool {
    fn shape() -> Shape {
        Shape::Bool
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, path, &Shape::Bool)?;
        let value = parse_bool(text);
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Bool);
        }
        value
    }

    fn to_json(&self) -> Json {
        Json::Bool(*self)
    }
}

impl Setting for u64 {
    fn shape() -> Shape {
        Shape::Integer
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, path, &Shape::Integer)?;
        // 1e6 and 8.0 are whole numbers too; 2^53 bounds what a float holds exactly.
        let value = text.parse::<u64>().ok().or_else(|| {
            parse_float(text)
                .filter(|value| value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(value))
                .map(|value| value as u64)
        });
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Integer);
        }
        value
    }

    fn to_json(&self) -> Json {
        Json::from(*self)
    }

    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl Setting for usize {
    fn shape() -> Shape {
        Shape::Integer
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let value = u64::read(node, path, reader)?;
        let value = usize::try_from(value).ok();
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Integer);
        }
        value
    }

    fn to_json(&self) -> Json {
        Json::from(*self as u64)
    }

    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl Setting for f64 {
    fn shape() -> Shape {
        Shape::Number
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, path, &Shape::Number)?;
        let value = parse_float(text);
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Number);
        }
        value
    }

    fn to_json(&self) -> Json {
        serde_json::Number::from_f64(*self).map_or(Json::Null, Json::Number)
    }

    fn numbers(&self) -> Vec<f64> {
        vec![*self]
    }
}

impl Setting for String {
    fn shape() -> Shape {
        Shape::Text("text")
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        match &node.value {
            Value::Scalar { text, .. } if !node.is_null() => Some(text.clone()),
            _ => {
                reader.wrong_type(node, path, &Self::shape());
                None
            }
        }
    }

    fn to_json(&self) -> Json {
        Json::String(self.clone())
    }

    fn is_empty(&self) -> bool {
        String::is_empty(self)
    }
}

impl Setting for PathBuf {
    fn shape() -> Shape {
        Shape::Text("path")
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        match &node.value {
            Value::Scalar { text, .. } if !node.is_null() => Some(PathBuf::from(text)),
            _ => {
                reader.wrong_type(node, path, &Self::shape());
                None
            }
        }
    }

    fn to_json(&self) -> Json {
        Json::String(self.to_string_lossy().into_owned())
    }

    fn is_empty(&self) -> bool {
        self.as_os_str().is_empty()
    }
}

impl Setting for Duration {
    fn shape() -> Shape {
        Shape::NumberOrText("duration such as 500ms, 30s, 5m, 1h, or a number of seconds")
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let value = match &node.value {
            Value::Scalar { text, .. } => parse_duration(text),
            Value::List(_) | Value::Map(_) => None,
        };
        if value.is_none() {
            reader.wrong_type(node, path, &Self::shape());
        }
        value
    }

    fn to_json(&self) -> Json {
        if self.subsec_nanos() == 0 {
            Json::String(format!("{}s", self.as_secs()))
        } else if self.subsec_nanos().is_multiple_of(1_000_000) {
            Json::String(format!("{}ms", self.as_millis()))
        } else {
            Json::String(format!("{}s", self.as_secs_f64()))
        }
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = (text.get(..digits)?, text.get(digits..)?);
    let seconds = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let value = parse_float(number)? * seconds;
    Duration::try_from_secs_f64(value).ok().filter(|duration| !duration.is_zero())
}

impl<T: Setting> Setting for Option<T> {
    fn shape() -> Shape {
        Shape::Nullable(Box::new(T::shape()))
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        if node.is_null() { Some(None) } else { T::read(node, path, reader).map(Some) }
    }

    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, Setting::to_json)
    }

    fn numbers(&self) -> Vec<f64> {
        self.as_ref().map(Setting::numbers).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.as_ref().is_some_and(Setting::is_empty)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let Value::List(items) = &node.value else {
            reader.wrong_type(node, path, &Self::shape());
            return None;
        };
        // All items are read before any failure counts, so that all violations are reported.
        let values: Vec<Option<T>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| T::read(item, &format!("{path}[{index}]"), reader))
            .collect();
        values.into_iter().collect()
    }

    fn to_json(&self) -> Json {
        self.iter().map(Setting::to_json).collect()
    }

    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(Setting::numbers).collect()
    }

    fn is_empty(&self) -> bool {
        Vec::is_empty(self)
    }
}

impl Setting for [f64; 2] {
    fn shape() -> Shape {
        Shape::Tuple(Box::new(Shape::Number), 2)
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        if let Value::List(items) = &node.value
            && let [first, second] = items.as_slice()
        {
            let first = f64::read(first, &format!("{path}[0]"), reader);
            let second = f64::read(second, &format!("{path}[1]"), reader);
            return Some([first?, second?]);
        }
        reader.wrong_type(node, path, &Self::shape());
        None
    }

    fn to_json(&self) -> Json {
        self.iter().map(Setting::to_json).collect()
    }

    fn numbers(&self) -> Vec<f64> {
        self.to_vec()
    }
}

pub(crate) fn report_wrong_type<T: Setting>(node: &Node, path: &str, reader: &mut Reader) {
    reader.wrong_type(node, path, &T::shape());
}
