//! Dotted overrides: `a.b=v` sets, `+a.b=v` adds (appends to a list), `~a.b` resets to the default.

use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Problem};
use crate::source::{Origin, Source, SourceKind};
use crate::table::{self, Place};
use crate::tree::{Node, Value};
use crate::yaml;
use tamis_core::setting::Shape;

/// Syntax of a value that begins with a bracket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// A list or mapping in YAML's flow style.
    Yaml,
    /// A text, such as a regular expression.
    Text,
}

/// The form in which the value of one of our keys is written on the command line.
pub fn value_form(key: &str) -> ValueForm {
    let takes_text = |shape: Shape| match shape {
        Shape::Nullable(inner) => matches!(*inner, Shape::Text(_) | Shape::TextForm(_)),
        shape => matches!(shape, Shape::Text(_) | Shape::TextForm(_)),
    };
    match table::place(key) {
        Ok(Place::Key(spec)) if takes_text((spec.shape)()) => ValueForm::Text,
        _ => ValueForm::Yaml,
    }
}

/// The operation of an override.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Sets a key.
    Set(Node),
    /// Appends to a list; sets anything else.
    Add(Node),
    /// Back to the default.
    Reset,
}

/// One parsed override.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// The key's dotted path; list items as numbers (`reward[0].weight` and `reward.0.weight` are the same).
    pub path: String,
    /// Position of the key in the argument.
    pub origin: Origin,
    /// The operation.
    pub operation: Operation,
}

impl Override {
    /// Parses one argument; `form` says how the value of a key is written.
    ///
    /// The value is the text after the first `=`. If it begins with a bracket, it is a list or mapping in
    /// YAML's flow style. If it begins with a quote, it is a quoted text. Otherwise it is the text itself. A
    /// quoted text that contains a list (`"['a', 'b']"`) is that list.
    ///
    /// # Errors
    /// An argument without `=` or without a key, a value for a key that goes back to its default, and a list
    /// or mapping that does not parse.
    pub fn parse(argument: &str, form: impl Fn(&str) -> ValueForm) -> Result<Self, Diagnostic> {
        let source = Source::new(SourceKind::Argument, argument);
        let at = |column: usize, length: usize| Origin {
            source: Arc::clone(&source),
            line: 1,
            column,
            length: length.max(1),
        };
        let malformed = || {
            let problem = Problem::rule(
                format!("`{argument}` is not an override"),
                "write `key=value`, `+key=value` to add to a list, or `~key` for the default",
            );
            Diagnostic::error(problem, Some(at(1, argument.chars().count())))
        };
        let (adds, body) = argument.strip_prefix('+').map_or((false, argument), |body| (true, body));
        let num_plus = usize::from(adds);
        if let Some(key) = body.strip_prefix('~') {
            let (key, value) = key.split_once('=').map_or((key, None), |(key, value)| (key, Some(value)));
            let path = normalise(key.trim()).ok_or_else(malformed)?;
            if let Some(value) = value {
                // It would get its default, whatever its value.
                let problem = Problem::rule_about(
                    &[&path],
                    format!("`~{path}` resets a key to its default, and `={value}` gives it a value"),
                    format!("write `~{path}` for the default, or `{path}={value}` for that value"),
                );
                return Err(Diagnostic::error(problem, Some(at(1, argument.chars().count()))));
            }
            let origin = at(num_plus + 2, key.trim().chars().count());
            return Ok(Self { path, origin, operation: Operation::Reset });
        }
        let (key, text) = body.split_once('=').ok_or_else(malformed)?;
        let path = normalise(key.trim()).ok_or_else(malformed)?;
        let origin = at(num_plus + 1, key.chars().count());
        let column = num_plus + key.chars().count() + 2;
        let is_bracketed = text.trim_start().starts_with(['[', '{']);
        let value = match is_bracketed.then(|| form(&path)) {
            Some(ValueForm::Text) => {
                Node::text(text.trim(), Origin { column, length: text.chars().count(), ..origin.clone() })
            }
            _ => parse_value(text, &source, column)?,
        };
        let operation = if adds { Operation::Add(value) } else { Operation::Set(value) };
        Ok(Self { path, origin, operation })
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<&Node> {
        match &self.operation {
            Operation::Set(node) | Operation::Add(node) => Some(node),
            Operation::Reset => None,
        }
    }
}

/// `reward[0].weight` as `reward.0.weight`; `None` for what is no path.
fn normalise(key: &str) -> Option<String> {
    let path = key.replace('[', ".").replace(']', "");
    let sound = !path.is_empty()
        && !path.starts_with('+')
        && path.split('.').all(|part| !part.is_empty() && !part.contains(char::is_whitespace));
    sound.then_some(path)
}

pub(crate) fn parse_value(text: &str, source: &Arc<Source>, column: usize) -> Result<Node, Diagnostic> {
    let trimmed = text.trim();
    let origin = Origin { source: Arc::clone(source), line: 1, column, length: text.chars().count().max(1) };
    if !trimmed.starts_with(['[', '{', '\'', '"']) {
        return Ok(Node::plain(trimmed, origin));
    }
    let parsed = yaml::parse(&Source::new(source.kind.clone(), text)).map_err(|diagnostics| {
        let (message, hint) = match diagnostics.into_iter().next().map(|first| *first.problem) {
            Some(Problem::Syntax { message, hint }) => (message, hint),
            Some(problem) => (problem.to_string(), None),
            None => (String::new(), None),
        };
        let hint = hint.or(Some(
            "inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in \
             \"reward=[{kind: format, pattern: '[0-9]+'}]\"",
        ));
        Diagnostic::error(Problem::Syntax { message, hint }, Some(origin.clone()))
    })?;
    if let Value::Scalar { text: inner, plain: false } = &parsed.value {
        let list =
            inner.starts_with('[') && inner.ends_with(']') || inner.starts_with('{') && inner.ends_with('}');
        if list && let Ok(mut node) = yaml::parse(&Source::new(source.kind.clone(), inner.clone())) {
            relocate(&mut node, &origin, None);
            return Ok(node);
        }
    }
    let mut node = parsed;
    relocate(&mut node, &origin, Some(column - 1));
    Ok(node)
}

/// Moves the positions of a parsed value into its argument: `shift` columns on, or to the whole value.
fn relocate(node: &mut Node, whole: &Origin, shift: Option<usize>) {
    let moved = |origin: &Origin| match shift {
        Some(shift) if origin.line == 1 => {
            Origin { source: Arc::clone(&whole.source), column: origin.column + shift, ..*origin }
        }
        _ => whole.clone(),
    };
    node.origin = moved(&node.origin);
    match &mut node.value {
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter_mut().for_each(|item| relocate(item, whole, shift)),
        Value::Map(entries) => {
            for entry in entries {
                entry.origin = moved(&entry.origin);
                relocate(&mut entry.node, whole, shift);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(argument: &str) -> String {
        let parsed = Override::parse(argument, value_form).unwrap();
        format!("{} {}", parsed.path, parsed.value().map(Node::to_json).unwrap())
    }

    #[test]
    fn values_are_plain_texts_lists_or_quoted() {
        assert_eq!(json("rollout.n=8"), "rollout.n 8");
        assert_eq!(json("train.optimizer.learning_rate=1e-6"), "train.optimizer.learning_rate 1e-6");
        assert_eq!(json("run.name=a: b #c"), r#"run.name "a: b #c""#);
        assert_eq!(json("run.name='12'"), r#"run.name "12""#);
        assert_eq!(json("filter.metric="), "filter.metric null");
        assert_eq!(json("rollout.stop=['a','b']"), r#"rollout.stop ["a","b"]"#);
        assert_eq!(json(r#"run.loggers=["console","wandb"]"#), r#"run.loggers ["console","wandb"]"#);
        assert_eq!(json(r#"data.train="['/x/y.parquet']""#), r#"data.train ["/x/y.parquet"]"#);
        assert_eq!(json("data.train='[\"/x/y\"]'"), r#"data.train ["/x/y"]"#);
        assert_eq!(json("reward[0].weight=2"), "reward.0.weight 2");
        // What can only be a text is one, whatever it begins with.
        assert_eq!(json("reward[0].pattern=[0-9]+"), r#"reward.0.pattern "[0-9]+""#);
        assert_eq!(json(r"reward[0].pattern={\d: x}"), r#"reward.0.pattern "{\\d: x}""#);
        assert_eq!(json("reward[0].pattern='[0-9]+'"), r#"reward.0.pattern "[0-9]+""#);
        assert_eq!(json("+filter={kind: variance}"), r#"filter {"kind":"variance"}"#);
    }

    #[test]
    fn signs_choose_the_operation() {
        assert!(matches!(
            Override::parse("+rollout.stop=x", value_form).unwrap().operation,
            Operation::Add(_)
        ));
        assert!(matches!(Override::parse("rollout.n=2", value_form).unwrap().operation, Operation::Set(_)));
        assert!(Override::parse("++rollout.n=2", value_form).is_err());
        let reset = Override::parse("~filter", value_form).unwrap();
        assert_eq!((reset.path.as_str(), &reset.operation), ("filter", &Operation::Reset));
    }

    #[test]
    fn messages() {
        insta::assert_snapshot!(Override::parse("rollout.n", value_form).unwrap_err(), @r#"
error: `rollout.n` is not an override
 --> command line
  |
1 | rollout.n
  | ^^^^^^^^^
  hint: write `key=value`, `+key=value` to add to a list, or `~key` for the default
"#);
        insta::assert_snapshot!(Override::parse("a..b=1", value_form).unwrap_err(), @r#"
error: `a..b=1` is not an override
 --> command line
  |
1 | a..b=1
  | ^^^^^^
  hint: write `key=value`, `+key=value` to add to a list, or `~key` for the default
"#);
        insta::assert_snapshot!(Override::parse("~rollout.n=8", value_form).unwrap_err(), @r#"
        error: `~rollout.n` resets a key to its default, and `=8` gives it a value
         --> command line
          |
        1 | ~rollout.n=8
          | ^^^^^^^^^^^^
          hint: write `~rollout.n` for the default, or `rollout.n=8` for that value
        "#);
        insta::assert_snapshot!(Override::parse("rollout.stop=['a'", value_form).unwrap_err(), @r#"
error: invalid YAML: unclosed bracket '['
 --> command line
  |
1 | rollout.stop=['a'
  |              ^^^^
  hint: inside a list or mapping put a text with brackets, braces, commas, `: ` or ` #` in single quotes, as in "reward=[{kind: format, pattern: '[0-9]+'}]"
"#);
    }
}
