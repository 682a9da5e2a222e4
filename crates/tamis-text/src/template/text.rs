//! Values as text in Python's format: `str` of a float, by itself and in lists, and everything built on it.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value, filters};

use super::{json, limits};

/// Filters that read any value as a text.
pub(super) const READ_AS_TEXT: [&str; 16] = [
    "capitalize",
    "center",
    "e",
    "escape",
    "forceescape",
    "indent",
    "lower",
    "lines",
    "replace",
    "split",
    "string",
    "striptags",
    "title",
    "trim",
    "upper",
    "wordcount",
];

/// Whether Python's text of a value may differ from the engine's.
fn is_special(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => !value.is_integer(),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => true,
        _ => false,
    }
}

/// The value, or its text if Python writes it differently from the engine.
pub(super) fn shown(value: &Value) -> Result<Value, Error> {
    if !is_special(value) || limits::is_namespace(value) {
        return Ok(value.clone());
    }
    let mut text = String::new();
    write(&mut text, value, 0)?;
    Ok(Value::from(text))
}

/// Python's `str` of a value.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    shown(value).map(|shown| shown.to_string())
}

/// Python's `repr` of a value.
fn write(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    limits::within(out.len())?;
    limits::within_depth(depth)?;
    let list = |out: &mut String, open, close| -> Result<(), Error> {
        out.push_str(open);
        let mut num_items = 0;
        for item in value.try_iter()? {
            if num_items > 0 {
                out.push_str(", ");
            }
            write(out, &item, depth + 1)?;
            num_items += 1;
        }
        out.push_str(if value.is_tuple() && num_items == 1 { ",)" } else { close });
        Ok(())
    };
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            let number = f64::try_from(value.clone())?;
            match (number.is_nan(), number.is_infinite()) {
                (true, _) => out.push_str("nan"),
                (_, true) => out.push_str(if number > 0.0 { "inf" } else { "-inf" }),
                _ => out.push_str(&json::float(number)),
            }
        }
        ValueKind::Seq if value.is_tuple() => list(out, "(", ")")?,
        ValueKind::Seq | ValueKind::Iterable => list(out, "[", "]")?,
        ValueKind::Map if !limits::is_namespace(value) => {
            out.push('{');
            for (place, key) in value.try_iter()?.enumerate() {
                if place > 0 {
                    out.push_str(", ");
                }
                write(out, &key, depth + 1)?;
                out.push_str(": ");
                write(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value:?}");
        }
    }
    Ok(())
}

/// `join`: items that Python would write differently are first turned into their texts. The engine looks up
/// attributes.
pub(super) fn join(state: &mut State, value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let rest = rest.into_values();
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let items = if is_list && rest.len() < 2 && !rest.iter().any(Value::is_kwargs) {
        Value::from(value.try_iter()?.map(|item| shown(&item)).collect::<Result<Vec<_>, _>>()?)
    } else {
        value.clone()
    };
    let arguments: Vec<Value> = std::iter::once(items).chain(rest).collect();
    Value::from_function(filters::join).call(state, &arguments)
}

/// `sum`, also of lists if its start is a list.
pub(super) fn sum(state: &mut State, value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let rest = rest.into_values();
    let start = limits::start_of_sum(&rest);
    if limits::is_number(&start) {
        let arguments: Vec<Value> = std::iter::once(value.clone()).chain(rest).collect();
        return Value::from_function(filters::sum).call(state, &arguments);
    }
    if start.as_str().is_some() {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "sum does not add texts, and neither does Jinja2: use join",
        ));
    }
    let named =
        rest.iter().find(|argument| argument.is_kwargs()).and_then(|all| all.get_attr("attribute").ok());
    let attribute = rest.first().filter(|first| !first.is_kwargs()).cloned().or(named);
    let items = match attribute.filter(|name| !name.is_undefined() && !name.is_none()) {
        Some(name) => {
            let by = Value::from(Kwargs::from_iter([("attribute", name)]));
            state.apply_filter("map", &[value.clone(), by])?
        }
        None => value.clone(),
    };
    items.try_iter()?.try_fold(start, |sum, item| limits::add(&sum, &item))
}

/// A printf-style text with its arguments. `%s` and `%r` print as Python does.
pub(super) fn printf(state: &mut State, format: &Value, arguments: Vec<Value>) -> Result<Value, Error> {
    let Some(text) = format.as_str() else {
        return Err(Error::new(ErrorKind::InvalidOperation, "what is formatted must be a text"));
    };
    let (format, mut arguments) = (text, arguments);
    let mut plain = String::with_capacity(format.len());
    let mut next = 0;
    let mut rest = format;
    while let Some((before, spec)) = rest.split_once('%') {
        plain.push_str(before);
        plain.push('%');
        let is_flag = |letter: char| letter.is_ascii_digit() || "-+ #.*lhL".contains(letter);
        // With `%(name)s`, the only argument is a mapping.
        let spec = if spec.starts_with('(') { "" } else { spec };
        let end = spec.find(|letter| !is_flag(letter)).unwrap_or(spec.len());
        if spec[..end].contains('*') {
            let detail = "a width that is an argument (`*`) is not supported in chat templates";
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        plain.push_str(&spec[..end]);
        let kind = spec[end..].chars().next();
        let length = kind.map_or(0, char::len_utf8);
        let shown = match (kind, arguments.get_mut(next)) {
            (Some('s' | 'r' | 'a'), Some(argument)) if is_special(argument) => {
                *argument = shown(argument)?;
                Some('s')
            }
            (kind, _) => kind,
        };
        plain.extend(shown);
        if kind.is_some_and(|kind| kind != '%') {
            next += 1;
        }
        let read = before.len() + 1 + end + length;
        rest = &rest[read..];
        if rest.starts_with('(') && end + length == 0 {
            // Unchanged.
            plain.push_str(rest);
            rest = "";
        }
    }
    plain.push_str(rest);
    let arguments: Vec<Value> = std::iter::once(Value::from(plain)).chain(arguments).collect();
    Value::from_function(filters::format).call(state, &arguments)
}

pub(super) fn format(state: &mut State, value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    printf(state, value, rest.into_values())
}

/// `%`: formats a text with its arguments, as in Python, or computes a remainder.
pub(super) fn remainder(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    if left.as_str().is_none() {
        return limits::rest_of_division(left, right);
    }
    let arguments = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
    limits::charge_call("format", left, &arguments)?;
    limits::built(&printf(state, left, arguments)?)
}

/// `str.format`: floats and lists are written as in Python if no format is given.
pub(super) fn str_format(format: &str, arguments: &[Value]) -> Result<Value, Error> {
    let shown = |argument: &Value| if argument.is_kwargs() { Ok(argument.clone()) } else { shown(argument) };
    let arguments: Vec<Value> = if format.contains([':', '!', '.', '[']) {
        arguments.to_vec()
    } else {
        arguments.iter().map(shown).collect::<Result<_, _>>()?
    };
    minijinja::formatting::format(minijinja::formatting::FormatStyle::StrFormat, format, &arguments)
        .map(Value::from)
}

pub(super) fn center(text: &str, width: usize, fill: char) -> String {
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    let space = |count| std::iter::repeat_n(fill, count);
    space(left).chain(text.chars()).chain(space(missing - left)).collect()
}

/// Number of words, as Jinja2 counts them.
pub(super) fn wordcount(text: &str) -> usize {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.split(|letter| !is_word(letter)).filter(|word| !word.is_empty()).count()
}
