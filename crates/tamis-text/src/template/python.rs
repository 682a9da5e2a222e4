//! Methods, tests and filters of Python and Jinja2 that templates expect and minijinja lacks or implements
//! differently.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters};

use super::{limits, text};

/// Message that a template raised with `raise_exception`.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(call_method);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = message.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    minijinja_contrib::add_to_environment(environment);

    // Python iterates over text, mappings and undefined values, but not over None.
    let iterable =
        |value: &Value| !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number);
    environment.add_test("iterable", iterable);
    environment.add_test("sequence", iterable);
}

/// Length of a value; 0 if it is undefined.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

pub(super) fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(Vec::<Value>::new())) } else { filters::items(value) }
}

pub(super) fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { filters::first(value) }
}

pub(super) fn last(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ => filters::last(value),
    }
}

/// The default (0) if the value is not a number.
pub(super) fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or(kwargs.get::<Option<Value>>("default")?);
    filters::int(state, value, default.clone(), base, kwargs)
        .or_else(|_| Ok(default.unwrap_or_else(|| Value::from(0))))
}

/// The default (0.0) if the value is not a number.
pub(super) fn float(
    state: &State,
    value: &Value,
    default: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or(kwargs.get::<Option<Value>>("default")?);
    filters::float(state, value, default.clone(), kwargs)
        .or_else(|_| Ok(default.unwrap_or_else(|| Value::from(0.0))))
}

/// Indents all lines except the first (also the first with `first`, and empty ones with `blank`). A final
/// line break is kept.
#[expect(clippy::needless_pass_by_value, reason = "the signature is the template engine's")]
pub(super) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get::<Option<Value>>("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let margin = match width.as_str() {
        Some(margin) => margin.to_owned(),
        None => " ".repeat(usize::try_from(width)?.min(MAX_WIDTH)),
    };
    let mut out = String::new();
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let inner = number > 0 && (blank || !line.is_empty());
        if inner || (number == 0 && first) {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is the template engine's")]
pub(super) fn center(value: &str, width: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(80);
    kwargs.assert_all_used()?;
    Ok(text::center(value, width.min(MAX_WIDTH), ' '))
}

/// Methods of Python's texts, lists and mappings that are not supported.
const UNSUPPORTED: [&str; 11] = [
    "encode",
    "expandtabs",
    "format_map",
    "isdecimal",
    "isidentifier",
    "isprintable",
    "istitle",
    "maketrans",
    "translate",
    "fromkeys",
    "index",
];
/// Methods that change a value.
const CHANGING: [&str; 12] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
    "add",
];

fn explain(method: &str, error: Error) -> Error {
    if error.kind() != ErrorKind::UnknownMethod {
        return error;
    }
    let detail = if UNSUPPORTED.contains(&method) {
        format!("the method `{method}` of Python is not supported in chat templates")
    } else if CHANGING.contains(&method) {
        format!(
            "the method `{method}` changes a value, which chat templates cannot do (transformers refuses it too); \
             use a `namespace`"
        )
    } else {
        return error;
    };
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Python's methods: minijinja's own collection, and a few more for strings.
fn call_method(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    limits::charge_call(method, value, arguments)?;
    if let Some(text) = value.as_str()
        && let Some(result) = call_string_method(text, method, arguments)
    {
        return result;
    }
    // Values never change in place, so no copy is needed.
    if method == "copy" && matches!(value.kind(), ValueKind::Map | ValueKind::Seq) {
        let () = from_args(arguments)?;
        return Ok(value.clone());
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
        .map_err(|error| explain(method, error))
}

fn call_string_method(text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    let one = || from_args::<(String,)>(arguments).map(|(argument,)| argument);
    let parts = |parts: [&str; 3]| Value::from(minijinja::value::Tuple::from(parts.map(Value::from)));
    Some(match method {
        "removeprefix" => one().map(|prefix| Value::from(text.strip_prefix(prefix.as_str()).unwrap_or(text))),
        "removesuffix" => one().map(|suffix| Value::from(text.strip_suffix(suffix.as_str()).unwrap_or(text))),
        "partition" => one().map(|mark| match text.split_once(mark.as_str()) {
            Some((before, after)) => parts([before, &mark, after]),
            None => parts([text, "", ""]),
        }),
        "rpartition" => one().map(|mark| match text.rsplit_once(mark.as_str()) {
            Some((before, after)) => parts([before, &mark, after]),
            None => parts(["", "", text]),
        }),
        "rsplit" => rsplit(text, arguments),
        "casefold" => Ok(Value::from(text.to_lowercase())),
        "index" => one().and_then(|part| match text.find(part.as_str()) {
            Some(byte) => Ok(Value::from(text.get(..byte).unwrap_or_default().chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "rindex" => one().and_then(|part| match text.rfind(part.as_str()) {
            Some(byte) => Ok(Value::from(text.get(..byte).unwrap_or_default().chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "format" => super::text::str_format(text, arguments),
        "center" => from_args::<(usize, Option<char>)>(arguments).map(|(width, fill)| {
            Value::from(super::text::center(text, width.min(MAX_WIDTH), fill.unwrap_or(' ')))
        }),
        "swapcase" => {
            let mut swapped = String::with_capacity(text.len());
            for character in text.chars() {
                if character.is_lowercase() {
                    swapped.extend(character.to_uppercase());
                } else {
                    swapped.extend(character.to_lowercase());
                }
            }
            Ok(Value::from(swapped))
        }
        "zfill" | "ljust" | "rjust" => from_args::<(usize,)>(arguments).map(|(width,)| {
            let missing = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
            Value::from(match method {
                "ljust" => format!("{text}{}", " ".repeat(missing)),
                "rjust" => format!("{}{text}", " ".repeat(missing)),
                _ => match text.strip_prefix(['-', '+']) {
                    Some(digits) => format!("{}{}{digits}", &text[..1], "0".repeat(missing)),
                    None => format!("{}{text}", "0".repeat(missing)),
                },
            })
        }),
        _ => return None,
    })
}

/// Largest width for padding; no template needs more. Larger numbers count as this one.
const MAX_WIDTH: usize = 4096;

/// Splits from the right, at a text or at runs of white space.
fn rsplit(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (mark, limit): (Option<String>, Option<i64>) = from_args(arguments)?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let mut pieces: Vec<Value> = match mark {
        Some(mark) if mark.is_empty() => {
            return Err(Error::new(ErrorKind::InvalidOperation, "rsplit: empty separator"));
        }
        Some(mark) => text.rsplitn(limit.saturating_add(1), mark.as_str()).map(Value::from).collect(),
        None => {
            let mut pieces = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let cut = if pieces.len() < limit { rest.rfind(char::is_whitespace) } else { None };
                let Some(cut) = cut else {
                    pieces.push(Value::from(rest.trim_start()));
                    break;
                };
                let (before, after) = rest.split_at(cut);
                pieces.push(Value::from(after.trim_start()));
                rest = before.trim_end();
            }
            pieces
        }
    };
    pieces.reverse();
    Ok(Value::from(pieces))
}

/// JSON values as template values, objects in their order.
pub(super) fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => {
            if let Some(integer) = number.as_i64() {
                Value::from(integer)
            } else if let Some(integer) = number.as_u64() {
                Value::from(integer)
            } else {
                Value::from(number.as_f64().unwrap_or(f64::NAN))
            }
        }
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, value)| (name.as_str(), from_json(value))))
        }
    }
}
