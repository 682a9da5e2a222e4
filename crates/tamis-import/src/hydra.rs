//! Treats arguments as Hydra and OmegaConf do, before they are translated: mappings are taken apart into
//! their keys, and references to other keys (`${rollout.n}`, `${oc.select:rollout.n,1}`) are resolved.

use std::sync::Arc;

use super::entry;
use super::owner::Owner;
use tamis_config::diagnostic::Diagnostic;
use tamis_config::override_argument::{Operation, Override, ValueForm};
use tamis_config::source::{Origin, Source, SourceKind};
use tamis_config::tree::{Node, Value, parse_bool, parse_float};

/// Longest chain of references that is followed.
const MAX_DEPTH: usize = 8;

/// How the value of a key is written on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A list or mapping in YAML's flow style.
    Yaml,
    /// The same, but in a mapping colons need no space after them.
    Hydra,
    /// A text, also one that begins with a bracket, such as a regular expression.
    Text,
}

/// Parses an argument. Hydra's syntax is rewritten before: `++key=value` sets, and `{a:1}` is a mapping.
pub(super) fn parse(argument: &str, form: impl Fn(&str) -> Form) -> Result<Override, Diagnostic> {
    let own_form = |key: &str| match form(key) {
        Form::Text => ValueForm::Text,
        Form::Yaml | Form::Hydra => ValueForm::Yaml,
    };
    let rewritten = Rewritten::new(argument, &form);
    if rewritten.text == argument {
        return Override::parse(argument, own_form);
    }
    let source = Source::new(SourceKind::Argument, argument);
    let restore = |origin: &mut Origin| {
        let column = rewritten.column(origin.column);
        *origin = Origin { source: Arc::clone(&source), column, ..*origin };
    };
    match Override::parse(&rewritten.text, own_form) {
        Ok(mut parsed) => {
            restore(&mut parsed.origin);
            if let Operation::Set(node) | Operation::Add(node) = &mut parsed.operation {
                restore_in(node, &restore);
            }
            Ok(parsed)
        }
        Err(mut diagnostic) => {
            if let Some(origin) = &mut diagnostic.origin {
                restore(origin);
            }
            Err(diagnostic)
        }
    }
}

fn restore_in(node: &mut Node, restore: &impl Fn(&mut Origin)) {
    restore(&mut node.origin);
    match &mut node.value {
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter_mut().for_each(|item| restore_in(item, restore)),
        Value::Map(entries) => {
            for entry in entries {
                restore(&mut entry.origin);
                restore_in(&mut entry.node, restore);
            }
        }
    }
}

/// An argument in our own syntax, with what its columns were before.
struct Rewritten {
    text: String,
    /// Signs that were left out at the beginning.
    num_cut: usize,
    /// Columns of the spaces that were added, in `text`.
    spaces: Vec<usize>,
}

impl Rewritten {
    fn new(argument: &str, form: &impl Fn(&str) -> Form) -> Self {
        let body = argument.trim_start_matches('+');
        let num_plus = argument.len() - body.len();
        // `++` is Hydra's "set, or add if it is absent".
        let num_cut = if num_plus > 1 { num_plus } else { 0 };
        let argument = &argument[num_cut..];
        let mut rewritten = Self { text: argument.to_owned(), num_cut, spaces: Vec::new() };
        if let Some((key, value)) = argument.split_once('=')
            && value.trim_start().starts_with('{')
            && form(&key.trim_start_matches('+').trim().replace('[', ".").replace(']', "")) == Form::Hydra
        {
            rewritten.text = format!("{key}=");
            rewritten.add_spaced(value);
        }
        rewritten
    }

    /// Adds `{a:1,b:[x]}` with a space after each colon.
    fn add_spaced(&mut self, value: &str) {
        let mut column = self.text.chars().count();
        let mut quote = None;
        let mut rest = value.chars().peekable();
        while let Some(c) = rest.next() {
            self.text.push(c);
            column += 1;
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(open), _) if open == c => quote = None,
                (None, ':') if rest.peek().is_some_and(|next| !next.is_whitespace() && *next != '/') => {
                    self.text.push(' ');
                    column += 1;
                    self.spaces.push(column);
                }
                _ => {}
            }
        }
    }

    /// A column of the text, in the argument.
    fn column(&self, column: usize) -> usize {
        column + self.num_cut - self.spaces.iter().filter(|space| **space < column).count()
    }
}

/// Arguments with one value each, and with references resolved.
/// `owners` are the systems whose keys there may be.
pub(super) fn resolve_all(arguments: &[Override], owners: &[Owner]) -> Vec<Override> {
    let mut flat = Vec::new();
    for argument in arguments {
        match argument.value() {
            Some(node) => spread(&argument.path, node.clone(), &argument.origin, owners, &mut flat),
            None => flat.push(argument.clone()),
        }
    }
    let values = flat.clone();
    for argument in &mut flat {
        if let Operation::Set(node) | Operation::Add(node) = &mut argument.operation {
            resolve(node, &argument.path, &values, MAX_DEPTH);
        }
    }
    flat
}

/// A mapping under an unknown name becomes its keys.
fn spread(path: &str, node: Node, origin: &Origin, owners: &[Owner], flat: &mut Vec<Override>) {
    let is_known = || owners.iter().any(|&owner| entry(owner, path).is_some());
    match node.value {
        Value::Map(entries) if !entries.is_empty() && !is_known() => {
            for inner in entries {
                spread(&format!("{path}.{}", inner.key), inner.node, origin, owners, flat);
            }
        }
        value => {
            let node = Node { value, origin: node.origin };
            flat.push(Override {
                path: path.to_owned(),
                origin: origin.clone(),
                operation: Operation::Set(node),
            });
        }
    }
}

/// Whether a name is a section of a table: there are keys below it.
pub(super) fn is_section(owner: Owner, path: &str) -> bool {
    owner.keys().iter().any(|entry| entry.key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// Why a value has no content, if it has none.
pub(super) fn says_nothing(node: &Node) -> Option<&'static str> {
    match &node.value {
        Value::Scalar { text, .. } if text == "???" => Some("the value is a placeholder"),
        Value::Scalar { text, .. }
            if text.split("${").skip(1).any(|rest| is_resolver(rest.split('}').next().unwrap_or(rest))) =>
        {
            Some("it calls a resolver of Hydra's: the default holds")
        }
        Value::Scalar { text, .. } if text.contains("${") => {
            Some("it refers to a key that is not given: the default holds")
        }
        Value::Scalar { .. } | Value::Map(_) => None,
        Value::List(items) => items.iter().find_map(says_nothing),
    }
}

/// The first unresolved reference in a value that is not to a key of any table: a shell variable that was not
/// expanded, or an environment variable that is not set. References to known keys do not count, because such
/// a key has its system's default; Hydra's own resolvers (`${now:%H}`) do not count either, except the one
/// for environment variables.
pub(super) fn find_unfilled(node: &Node) -> Option<String> {
    match &node.value {
        Value::Scalar { text, .. } => {
            let mut rest = text.as_str();
            while let Some(start) = rest.find("${") {
                rest = rest.get(start + 2..)?;
                let name = rest.split(['}', '$']).next().unwrap_or(rest);
                let is_key = name.starts_with('.')
                    || name.contains('.') && !name.contains(':') && super::is_foreign(name)
                    || is_resolver(name) && !name.starts_with("oc.env:");
                if !is_key {
                    return Some(format!("${{{name}}}"));
                }
            }
            None
        }
        Value::List(items) => items.iter().find_map(find_unfilled),
        Value::Map(entries) => entries.iter().find_map(|entry| find_unfilled(&entry.node)),
    }
}

/// Whether a reference calls a resolver of Hydra, `NAME:ARGUMENTS`, and is not a form of the shell
/// (`NAME:-DEFAULT`, `NAME:=...`, `NAME:?...`, `NAME:+...`).
fn is_resolver(name: &str) -> bool {
    name.split_once(':').is_some_and(|(_, rest)| !rest.starts_with(['-', '=', '?', '+']))
}

fn resolve(node: &mut Node, path: &str, values: &[Override], depth: usize) {
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| resolve(item, path, values, depth)),
        Value::Map(entries) => {
            for entry in entries {
                resolve(&mut entry.node, path, values, depth);
            }
        }
        Value::Scalar { text, .. } => {
            if depth == 0 || !text.contains("${") {
                return;
            }
            if let Some(inner) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'))
                && !inner.contains("${")
            {
                if let Some(mut found) = lookup(inner, path, values, &node.origin) {
                    resolve(&mut found, path, values, depth - 1);
                    node.value = found.value;
                }
            } else if let Some(whole) = substitute(text, path, values, &node.origin) {
                *text = whole;
                resolve(node, path, values, depth - 1);
            }
        }
    }
}

/// A text with its innermost reference replaced; `None` if there is none that is known.
fn substitute(text: &str, path: &str, values: &[Override], origin: &Origin) -> Option<String> {
    let mut from = text.len();
    while let Some(start) = text.get(..from)?.rfind("${") {
        let end = start + text.get(start..)?.find('}')?;
        if let Some(found) = lookup(text.get(start + 2..end)?, path, values, origin) {
            let value = super::translator::show(&found);
            return Some(format!("{}{value}{}", text.get(..start)?, text.get(end + 1..)?));
        }
        from = start;
    }
    None
}

/// The value that `${...}` refers to.
fn lookup(reference: &str, path: &str, values: &[Override], origin: &Origin) -> Option<Node> {
    let plain = |text: &str| Node::plain(text.trim(), origin.clone());
    if let Some(rest) = reference.strip_prefix("oc.select:") {
        let (key, default) = rest.split_once(',').map_or((rest, "null"), |(key, default)| (key, default));
        return value_of(key.trim(), path, values).or_else(|| Some(plain(default)));
    }
    if let Some(rest) = reference.strip_prefix("oc.env:") {
        let (name, default) =
            rest.split_once(',').map_or((rest, None), |(name, default)| (name, Some(default)));
        return std::env::var(name.trim())
            .ok()
            .or_else(|| default.map(str::to_owned))
            .map(|text| plain(&text));
    }
    value_of(reference.trim(), path, values)
}

/// The value of a key. A key with leading dots is relative to the section that contains `path`.
fn value_of(key: &str, path: &str, values: &[Override]) -> Option<Node> {
    let name = key.trim_start_matches('.');
    let num_dots = key.len() - name.len();
    let full = if num_dots == 0 {
        name.to_owned()
    } else {
        let section = (0..num_dots).try_fold(path, |path, _| path.rsplit_once('.').map(|(above, _)| above));
        section.map_or_else(|| name.to_owned(), |section| format!("{section}.{name}"))
    };
    let given = values.iter().rev().find(|argument| argument.path == full && argument.path != path)?;
    given.value().cloned()
}

/// A text as the value of an override: in quotes if Hydra would not read it as that text.
///
/// ```
/// use tamis_import::hydra_text;
/// assert_eq!(["acc", "a b", "it's", "", "12", "null"].map(hydra_text), ["acc", "'a b'", r"'it\'s'", "''", "'12'", "'null'"]);
/// ```
pub fn text(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/-\\+.$%*@?|_:".contains(c);
    let is_other =
        parse_float(text).is_some() || parse_bool(text).is_some() || text.eq_ignore_ascii_case("null");
    if !text.is_empty() && text.chars().all(is_plain) && !is_other {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_as_hydra_writes_it() {
        let spaced = |argument: &str| Rewritten::new(argument, &|_| Form::Hydra).text;
        assert_eq!(spaced("k={a:1,b:[x,y],c: 2}"), "k={a: 1,b: [x,y],c: 2}");
        assert_eq!(spaced("+k={url:'a:b',path:s3://x}"), "+k={url: 'a:b',path: s3://x}");
        assert_eq!(Rewritten::new("k={a:1}", &|_| Form::Yaml).text, "k={a:1}");
    }

    #[test]
    fn two_signs_set_and_places_are_those_of_the_argument() {
        let parsed = parse("++a.b={c:1,d:2}", |_| Form::Hydra).unwrap();
        assert_eq!((parsed.path.as_str(), parsed.origin.column), ("a.b", 3));
        let Operation::Set(node) = &parsed.operation else { panic!("{parsed:?}") };
        let Value::Map(entries) = &node.value else { panic!("{parsed:?}") };
        let columns: Vec<_> =
            entries.iter().map(|entry| (entry.origin.column, entry.node.origin.column)).collect();
        assert_eq!(columns, [(8, 10), (12, 14)]);
        assert_eq!(entries[1].origin.source.text, "++a.b={c:1,d:2}");
        assert!(matches!(parse("+a=1", |_| Form::Hydra).unwrap().operation, Operation::Add(_)));
        let refused = parse("++a={c:[}", |_| Form::Hydra).unwrap_err();
        assert_eq!(refused.origin.map(|origin| origin.source.text.clone()).as_deref(), Some("++a={c:[}"));
    }

    fn values(arguments: &[&str]) -> Vec<String> {
        let parsed: Vec<Override> =
            arguments.iter().map(|argument| crate::parse_argument(None, argument).unwrap()).collect();
        let show = |argument: Override| {
            format!("{}={}", argument.path, argument.value().map(Node::to_json).unwrap_or_default())
        };
        resolve_all(&parsed, &Owner::ALL).into_iter().map(show).collect()
    }

    #[test]
    fn references_are_looked_up() {
        assert_eq!(
            values(&["a.n=4", "a.m=${a.n}", "a.k=${.n}", "b.k=${..a.n}", "c=x/${a.n}/${a.m}"]),
            ["a.n=4", "a.m=4", "a.k=4", "b.k=4", "c=\"x/4/4\""]
        );
        assert_eq!(
            values(&[
                "x=${oc.select:a.n,7}",
                "y=${oc.select:a.n}",
                "z=${oc.env:TAMIS_NO_SUCH_NAME,h}",
                "l=['${x}']"
            ]),
            ["x=7", "y=null", "z=\"h\"", "l=[7]"]
        );
        assert_eq!(values(&["x=${oc.env:CARGO_PKG_NAME,h}"]), ["x=\"tamis-import\""]);
        // A reference that leads nowhere, or in a circle, stays.
        assert_eq!(values(&["x=${TRAIN_FILE}"]), ["x=\"${TRAIN_FILE}\""]);
        assert_eq!(values(&["x=${y}", "y=${x}"]).len(), 2);
        assert_eq!(values(&["x=${x}"]), ["x=\"${x}\""]);
        assert_eq!(values(&["x=a${${b}", "b=}"]).len(), 2);
    }

    #[test]
    fn mappings_are_taken_apart() {
        assert_eq!(
            values(&["algorithm={filter_groups: {enable: true, metric: acc}, gamma: 0.9}"]),
            [
                "algorithm.filter_groups.enable=true",
                "algorithm.filter_groups.metric=\"acc\"",
                "algorithm.gamma=0.9"
            ]
        );
        // A known key keeps its mapping.
        let whole = "custom_reward_function.reward_kwargs.a={b: 1}";
        assert_eq!(values(&[whole]), [r#"custom_reward_function.reward_kwargs.a={"b":1}"#]);
    }

    #[test]
    fn values_that_say_nothing() {
        let source = Source::new(SourceKind::Argument, "x");
        let node = |text: &str| Node::plain(text, Origin::start_of(&source));
        assert!(says_nothing(&node("???")).is_some());
        assert!(says_nothing(&node("a${b}")).is_some());
        assert!(says_nothing(&node("null")).is_none());
        for text in ["${lr}", "a/${OUT:-x}/b", "${oc.env:OUT}", "${data.x}/${B}"] {
            assert!(find_unfilled(&node(text)).is_some(), "{text}");
        }
        for text in ["1e-6", "$x", "${data.train_batch_size}", "${..n}", "${oc.select:trainer.x,1}"] {
            assert_eq!(find_unfilled(&node(text)), None, "{text}");
        }
    }
}
