//! How much a chat template may do for one conversation: steps, text, depth.
//!
//! | what | limit | where |
//! |---|---|---|
//! | instructions | [`MAX_STEPS`] | the engine's fuel |
//! | a value, written out | [`MAX_VALUE`] | here, before an operator builds it, after anything else gave it |
//! | everything built and read through together | [`MAX_WORK`] | here |
//! | lists in lists | [`MAX_DEPTH`] | here |
//!
//! So a rendering takes [`MAX_WORK`] bytes and a few times [`MAX_VALUE`] at most, and about a second. The rendering that is under way on a
//! thread has its allowance in a cell of that thread.

use std::cell::Cell;
use std::fmt::Write as _;

use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};

/// Instructions of one rendering.
const MAX_STEPS: u64 = 5_000_000;
/// Bytes of the largest value of a template, its output among them: 4 MiB, about a million tokens.
const MAX_VALUE: usize = 4 << 20;
/// Bytes that one rendering may build or read through: 256 MiB.
const MAX_WORK: usize = 256 << 20;
/// Levels of lists in lists, or of mappings.
const MAX_DEPTH: usize = 64;

/// What an item of a list counts, whatever it is.
const ITEM: usize = 8;

/// Names of the filters that stand for operators; no template can write them.
pub(super) const ADD: &str = "tamis:add";
pub(super) const CONCAT: &str = "tamis:concat";
pub(super) const MULTIPLY: &str = "tamis:multiply";
/// Measures what was built.
pub(super) const BUILT: &str = "tamis:built";
/// Counts what is read through.
pub(super) const LOOKED_AT: &str = "tamis:looked_at";
/// Refuses a namespace in a namespace.
pub(super) const STORED: &str = "tamis:stored";

/// What a template did too much of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exceeded(pub(super) &'static str);

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Exceeded {}

pub(super) const TOO_MANY_STEPS: &str = "more than 5,000,000 steps: a loop in a loop in a loop?";
const TOO_MUCH_WORK: &str = "more than 256 MiB built and read: does it copy its text in a loop?";
const TOO_LARGE: &str = "a value of more than 4 MiB: does it double a text in a loop?";
const TOO_DEEP: &str = "more than 64 lists or mappings within each other";
const HELD_NAMESPACE: &str = "a namespace inside a list, a mapping or another namespace";

fn exceeded(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what).with_source(Exceeded(what))
}

thread_local! {
    static WORK_LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering on this thread.
pub(super) fn begin() {
    WORK_LEFT.set(MAX_WORK);
}

/// Takes bytes from what the rendering may build and read.
fn charge(bytes: usize) -> Result<(), Error> {
    let left = WORK_LEFT.get().checked_sub(bytes);
    WORK_LEFT.set(left.unwrap_or(0));
    left.map(|_| ()).ok_or_else(|| exceeded(TOO_MUCH_WORK))
}

/// Asks for a value of so many bytes before it is built.
fn afford(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_VALUE { Err(exceeded(TOO_LARGE)) } else { charge(bytes) }
}

/// Whether a text that is being written may go on.
pub(super) fn within(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_VALUE { Err(exceeded(TOO_LARGE)) } else { Ok(()) }
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// What a value amounts to.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// About the bytes that it takes written out.
    text: usize,
    /// Values in it, itself among them. Texts are shared, so this many words are what a copy of a list takes.
    values: usize,
}

impl Size {
    fn of(value: &Value) -> Result<Self, Error> {
        let mut size = Self::default();
        size.add(value, 0)?;
        Ok(size)
    }

    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(exceeded(TOO_DEEP));
        }
        self.values += 1;
        self.text += ITEM;
        match value.kind() {
            ValueKind::String => self.text += value.as_str().map_or(0, str::len),
            ValueKind::Bytes => self.text += value.as_bytes().map_or(0, <[u8]>::len),
            ValueKind::Map if depth > 0 && is_namespace(value) => return Err(exceeded(HELD_NAMESPACE)),
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.add(&value.get_item(&key)?, depth + 1)?;
                    self.add(&key, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.add(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        if self.text > MAX_VALUE { Err(exceeded(TOO_LARGE)) } else { Ok(()) }
    }

    /// The bytes of a copy that shares its texts.
    fn shared(self) -> usize {
        self.values * ITEM
    }

    /// What reading it through costs, against building it.
    fn reading(self) -> usize {
        self.values + self.text / 64
    }
}

/// About the bytes that a value takes written out.
fn size(value: &Value) -> Result<usize, Error> {
    value.as_str().map_or_else(|| Ok(Size::of(value)?.text), |text| Ok(text.len()))
}

/// A value that something other than an operator gave: measured, and a sequence that is computed as it is read is computed now, so that none
/// is piled on another.
fn built(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => {
            afford(value.as_str().map_or(0, str::len))?;
            Ok(value.clone())
        }
        ValueKind::Iterable => {
            let mut size = Size::default();
            let mut items = Vec::new();
            for item in value.try_iter()? {
                size.add(&item, 1)?;
                items.push(item);
            }
            charge(size.shared())?;
            Ok(Value::from(items))
        }
        ValueKind::Seq | ValueKind::Map => {
            charge(Size::of(value)?.shared())?;
            Ok(value.clone())
        }
        _ => Ok(value.clone()),
    }
}

/// A value that is about to be compared, searched or converted.
fn looked_at(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => charge(value.as_str().map_or(0, str::len) / 8)?,
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => charge(Size::of(value)?.reading())?,
        _ => {}
    }
    Ok(value.clone())
}

fn stored(value: &Value) -> Result<Value, Error> {
    if is_namespace(value) { Err(exceeded(HELD_NAMESPACE)) } else { Ok(value.clone()) }
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    let detail =
        format!("tried to use {operator} operator on unsupported types {} and {}", left.kind(), right.kind());
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

fn arithmetic(
    operator: &str,
    left: &Value,
    right: &Value,
    whole: fn(i128, i128) -> Option<i128>,
    real: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let is_whole = |value: &Value| value.is_integer() || value.kind() == ValueKind::Bool;
    if is_whole(left) && is_whole(right) {
        let result = whole(i128::try_from(left.clone())?, i128::try_from(right.clone())?);
        let result = result.ok_or_else(|| {
            let detail = format!("unable to calculate {left} {operator} {right}");
            Error::new(ErrorKind::InvalidOperation, detail)
        })?;
        return Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from));
    }
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()),
    };
    Ok(Value::from(real(number(left)?, number(right)?)))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        afford(left.len().saturating_add(right.len()))?;
        return Ok(Value::from([left, right].concat()));
    }
    if is_number(left) && is_number(right) {
        return arithmetic("+", left, right, i128::checked_add, |left, right| left + right);
    }
    if is_list(left) && is_list(right) && left.is_tuple() == right.is_tuple() {
        let (one, other) = (Size::of(left)?, Size::of(right)?);
        if one.text + other.text > MAX_VALUE {
            return Err(exceeded(TOO_LARGE));
        }
        charge(one.shared() + other.shared())?;
        let items: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(if left.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    Err(unsupported("+", left, right))
}

fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    afford(size(left)?.saturating_add(size(right)?))?;
    let mut text = String::new();
    let _ = write!(text, "{left}{right}");
    Ok(Value::from(text))
}

fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    if is_number(left) && is_number(right) {
        return arithmetic("*", left, right, i128::checked_mul, |left, right| left * right);
    }
    let (repeated, times) = if is_number(right) { (left, right) } else { (right, left) };
    if !is_number(times) || !(is_list(repeated) || repeated.as_str().is_some()) {
        return Err(unsupported("*", left, right));
    }
    // As in Python, fewer than none is none.
    let times = if times.kind() == ValueKind::Bool {
        usize::from(times.is_true())
    } else {
        let times = i128::try_from(times.clone()).map_err(|_| unsupported("*", left, right))?;
        usize::try_from(times.max(0)).unwrap_or(usize::MAX)
    };
    afford(size(repeated)?.saturating_mul(times))?;
    if let Some(text) = repeated.as_str() {
        return Ok(Value::from(text.repeat(times)));
    }
    let once: Vec<Value> = repeated.try_iter()?.collect();
    let items: Vec<Value> = once.iter().cycle().take(once.len() * times).cloned().collect();
    Ok(if repeated.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// The longest text among arguments, named ones too.
fn longest(arguments: &[Value]) -> Result<usize, Error> {
    let mut most = 0;
    for argument in arguments {
        most = most.max(if argument.is_kwargs() || argument.as_str().is_some() {
            size(argument)?
        } else {
            ITEM
        });
    }
    Ok(most)
}

/// The largest whole number among arguments, named ones too.
fn largest(arguments: &[Value]) -> usize {
    let number = |value: &Value| value.as_i64().map_or(0, |number| usize::try_from(number).unwrap_or(0));
    let inside = |value: &Value| -> usize {
        if !value.is_kwargs() {
            return number(value);
        }
        let keys = value.try_iter().into_iter().flatten();
        keys.filter_map(|key| value.get_item(&key).ok()).map(|value| number(&value)).max().unwrap_or(0)
    };
    arguments.iter().map(inside).max().unwrap_or(0)
}

/// The widths that a format string asks for together: those it spells, and those it takes from its arguments.
fn format_width(format: &str, arguments: &[Value]) -> usize {
    let mut total = 0_usize;
    for digits in
        format.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty())
    {
        total = total.saturating_add(digits.parse().unwrap_or(usize::MAX));
    }
    total.saturating_add(largest(arguments).saturating_mul(format.matches('*').count()))
}

/// The bytes that a filter or a method may give for a value, where that is more than a few times what it gets.
pub(super) fn cost(name: &str, value: &Value, arguments: &[Value]) -> Result<usize, Error> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(match name {
        "replace" => {
            for value in std::iter::once(value).chain(arguments) {
                size(value)?;
            }
            let (Some(old), Some(new)) = (arguments.first(), arguments.get(1)) else { return Ok(0) };
            let (value, old) = (text(value), text(old));
            value.len().saturating_add(value.matches(old.as_str()).count().saturating_mul(size(new)?))
        }
        "join" => {
            // The filter joins the value with its argument, the method its argument with the value.
            let (items, joiner) = match arguments.first() {
                Some(items) if value.as_str().is_some() && is_list(items) => (items, size(value)?),
                _ => (value, longest(arguments)?),
            };
            let num_items = items.len().unwrap_or(0);
            size(items)?.saturating_add(joiner.saturating_mul(num_items))
        }
        "indent" => {
            let text = text(value);
            let margin = longest(arguments)?.max(largest(arguments));
            text.len().saturating_add(text.matches('\n').count().saturating_add(1).saturating_mul(margin))
        }
        "batch" | "slice" => size(value)?.saturating_add(largest(arguments).saturating_mul(ITEM)),
        "format" => size(value)?.saturating_add(format_width(value.as_str().unwrap_or_default(), arguments)),
        "split" | "rsplit" | "splitlines" | "lines" | "list" => size(value)?,
        "pprint" => size(value)?.saturating_mul(25),
        // Texts are no numbers; adding them one by one would copy the first over and over.
        "sum"
            if arguments
                .iter()
                .any(|start| longest(std::slice::from_ref(start)).is_ok_and(|length| length > ITEM)) =>
        {
            usize::MAX
        }
        _ => 0,
    })
}

/// Asks for what a filter or a method is about to build.
pub(super) fn afford_call(name: &str, value: &Value, arguments: &[Value]) -> Result<(), Error> {
    match cost(name, value, arguments)? {
        0 => Ok(()),
        bytes => afford(bytes),
    }
}

/// Puts the limits into an environment whose other filters are all there.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_formatter(|output, state, value| {
        charge(size(value)?)?;
        escape_formatter(output, state, value)
    });
    environment.add_filter(ADD, add);
    environment.add_filter(CONCAT, concat);
    environment.add_filter(MULTIPLY, multiply);
    environment.add_filter(BUILT, built);
    environment.add_filter(LOOKED_AT, looked_at);
    environment.add_filter(STORED, stored);
    // It writes out every variable there is.
    environment.remove_global("debug");
    let costly: [(&'static str, Value); 9] = [
        ("replace", Value::from_function(filters::replace)),
        ("join", Value::from_function(filters::join)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
        ("format", Value::from_function(filters::format)),
        ("split", Value::from_function(filters::split)),
        ("lines", Value::from_function(filters::lines)),
        ("pprint", Value::from_function(filters::pprint)),
        ("sum", Value::from_function(filters::sum)),
    ];
    for (name, filter) in costly {
        environment.add_filter(name, move |state: &mut State, value: &Value, rest: Rest<Value>| {
            afford_call(name, value, &rest)?;
            let arguments: Vec<Value> = std::iter::once(value.clone()).chain(rest.iter().cloned()).collect();
            filter.call(state, &arguments)
        });
    }
}
