//! Limits of a chat template's work on one conversation: steps, text and depth.
//!
//! | what | limit | checked by |
//! |---|---|---|
//! | instructions | [`MAX_STEPS`] | the engine's fuel |
//! | a value, written out | [`MAX_VALUE`] | here: before an operator builds it, after anything else returned it |
//! | work: everything built, read, compared and searched | [`MAX_WORK`] | here, see [`Price`] |
//! | lists in lists | [`MAX_DEPTH`] | here |
//! | loops, blocks and macros within each other | [`MAX_RECURSION`] | the engine |
//!
//! A unit of work is the work of copying a byte; 4 nanoseconds for each are more than enough in an optimised
//! build. So a rendering takes at most [`MAX_WORK`] bytes and a few times [`MAX_VALUE`], and about a second
//! (a few seconds in a build without optimisation). If no thread can be left behind, a Ctrl-C waits at most
//! that long. The current rendering of a thread has its budget in a thread-local cell.

use std::cell::Cell;

use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter};

use super::text;

/// Instructions of one rendering.
const MAX_STEPS: u64 = 5_000_000;
/// Bytes of the largest value of a template, its output among them: 4 MiB, about a million tokens.
const MAX_VALUE: usize = 4 << 20;
/// Work of one rendering, in bytes copied: 256 MiB.
const MAX_WORK: usize = 256 << 20;
/// Levels of nested loops, blocks and macros (which count as several). A name is looked up through all of
/// them.
const MAX_RECURSION: usize = 100;
/// Levels of nested lists or mappings.
const MAX_DEPTH: usize = 64;

/// Bytes counted for any item of a list in its text.
const ITEM: usize = 8;
/// Work of visiting a value: of copying, counting or comparing it without its text.
const VISIT: usize = 16;
/// Work of calling a filter, a test or a method. `map` and `select` make one call for each item.
const CALL: usize = 64;

/// Names of the filters that replace operators. No template can write them.
pub(super) const ADD: &str = "tamis:add";
pub(super) const CONCAT: &str = "tamis:concat";
pub(super) const MULTIPLY: &str = "tamis:multiply";
pub(super) const REMAINDER: &str = "tamis:remainder";
pub(super) const BUILT: &str = "tamis:built";
/// Measures a part of a value that was measured before.
pub(super) const CUT: &str = "tamis:cut";
/// Charges for the length of a text, but not for the items of a list.
pub(super) const GLANCED_AT: &str = "tamis:glanced_at";
/// Charges for reading the whole value.
pub(super) const LOOKED_AT: &str = "tamis:looked_at";
/// Refuses a namespace in a namespace.
pub(super) const STORED: &str = "tamis:stored";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exceeded(pub(super) &'static str);

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Exceeded {}

pub(super) const TOO_MANY_STEPS: &str = "more than 5,000,000 steps: a loop in a loop in a loop?";
const TOO_MUCH_WORK: &str = "more work than to copy 256 MiB: does it copy or search its text in a loop?";
const TOO_LARGE: &str = "a value of more than 4 MiB: does it double a text in a loop?";
const TOO_DEEP: &str = "more than 64 lists or mappings within each other";
const HELD_NAMESPACE: &str = "a namespace inside a list, a mapping or another namespace";

fn limit_error(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what).with_source(Exceeded(what))
}

thread_local! {
    static WORK_LEFT: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn begin() {
    WORK_LEFT.set(MAX_WORK);
}

fn charge(bytes: usize) -> Result<(), Error> {
    let left = WORK_LEFT.get().checked_sub(bytes);
    WORK_LEFT.set(left.unwrap_or(0));
    left.map(|_| ()).ok_or_else(|| limit_error(TOO_MUCH_WORK))
}

/// Checks that a value of this size is allowed, before it is built.
fn afford(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_VALUE { Err(limit_error(TOO_LARGE)) } else { charge(bytes) }
}

pub(super) fn within(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_VALUE { Err(limit_error(TOO_LARGE)) } else { Ok(()) }
}

pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

pub(super) fn within_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH { Err(limit_error(TOO_DEEP)) } else { Ok(()) }
}

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// Approximate bytes when written out.
    text: usize,
    /// Number of values in it, including itself. Texts are shared, so a copy of a list takes this many words.
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
            return Err(limit_error(TOO_DEEP));
        }
        self.values += 1;
        self.text += ITEM;
        match value.kind() {
            ValueKind::String => self.text += value.as_str().map_or(0, str::len),
            ValueKind::Bytes => self.text += value.as_bytes().map_or(0, <[u8]>::len),
            ValueKind::Map if depth > 0 && is_namespace(value) => return Err(limit_error(HELD_NAMESPACE)),
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
        if self.text > MAX_VALUE { Err(limit_error(TOO_LARGE)) } else { Ok(()) }
    }

    /// Work of a copy that shares its texts.
    fn copy_work(self) -> usize {
        self.values * VISIT
    }

    fn compare_work(self) -> usize {
        self.copy_work() + self.text / 2
    }

    /// Work of reading all of it, character by character.
    fn read_work(self) -> usize {
        self.copy_work() + 2 * self.text
    }
}

/// Work of finding a place in a value: the characters of a text count, the items of a list do not.
fn glance_work(value: &Value) -> usize {
    value.as_str().map_or(VISIT, str::len)
}

/// Approximate bytes of a value when written out.
fn size(value: &Value) -> Result<usize, Error> {
    value.as_str().map_or_else(|| Ok(Size::of(value)?.text), |text| Ok(text.len()))
}

/// Checks a value that did not come from an operator: measures it, and evaluates a lazy sequence now, so that
/// none is piled on another.
pub(super) fn built(value: &Value) -> Result<Value, Error> {
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
            charge(size.copy_work())?;
            Ok(Value::from(items))
        }
        ValueKind::Seq | ValueKind::Map => {
            charge(Size::of(value)?.copy_work())?;
            Ok(value.clone())
        }
        _ => Ok(value.clone()),
    }
}

/// Charges for a value that is about to be compared, searched or converted.
fn charge_look(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            charge(Size::of(value)?.compare_work())?;
        }
        _ => {}
    }
    Ok(value.clone())
}

/// Charges for a value when only a part of it is used.
fn charge_glance(value: &Value) -> Result<Value, Error> {
    charge(glance_work(value))?;
    Ok(value.clone())
}

/// A part of a value, no larger and no deeper than the whole.
fn cut(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => built(value),
        ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            charge(items.len() * VISIT)?;
            Ok(Value::from(items))
        }
        _ => {
            charge(value.len().unwrap_or(0) * VISIT)?;
            Ok(value.clone())
        }
    }
}

fn check_stored(value: &Value) -> Result<Value, Error> {
    if is_namespace(value) { Err(limit_error(HELD_NAMESPACE)) } else { Ok(value.clone()) }
}

fn unsupported_error(operator: &str, left: &Value, right: &Value) -> Error {
    let detail =
        format!("tried to use {operator} operator on unsupported types {} and {}", left.kind(), right.kind());
    Error::new(ErrorKind::InvalidOperation, detail)
}

pub(super) fn is_number(value: &Value) -> bool {
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

/// The remainder of a division, with the sign of the divisor as in Python.
pub(super) fn rest_of_division(left: &Value, right: &Value) -> Result<Value, Error> {
    if !(is_number(left) && is_number(right)) {
        return Err(unsupported_error("%", left, right));
    }
    if !right.is_true() {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("unable to calculate {left} % {right}")));
    }
    let whole = |left: i128, right: i128| {
        let rest = left.checked_rem(right)?;
        Some(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })
    };
    let real = |left: f64, right: f64| {
        let rest = left % right;
        if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }
    };
    arithmetic("%", left, right, whole, real)
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn add(left: &Value, right: &Value) -> Result<Value, Error> {
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
            return Err(limit_error(TOO_LARGE));
        }
        charge(one.copy_work() + other.copy_work())?;
        let items: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(if left.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    Err(unsupported_error("+", left, right))
}

fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    afford(size(left)?.saturating_add(size(right)?))?;
    Ok(Value::from(text::text(left)? + &text::text(right)?))
}

fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    if is_number(left) && is_number(right) {
        return arithmetic("*", left, right, i128::checked_mul, |left, right| left * right);
    }
    let (repeated, times) = if is_number(right) { (left, right) } else { (right, left) };
    if !is_number(times) || !(is_list(repeated) || repeated.as_str().is_some()) {
        return Err(unsupported_error("*", left, right));
    }
    // As in Python, a negative number counts as none.
    let times = if times.kind() == ValueKind::Bool {
        usize::from(times.is_true())
    } else {
        let times = i128::try_from(times.clone()).map_err(|_| unsupported_error("*", left, right))?;
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

/// The largest whole number among the arguments, including named ones.
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

/// The sum of the widths in a format string: those it spells out, and those it takes from its arguments.
fn format_width(format: &str, arguments: &[Value]) -> usize {
    let mut total = 0_usize;
    for digits in
        format.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty())
    {
        total = total.saturating_add(digits.parse().unwrap_or(usize::MAX));
    }
    total.saturating_add(largest(arguments).saturating_mul(format.matches('*').count()))
}

/// Start value of `sum`: its second argument, or `start`.
pub(super) fn start_of_sum(arguments: &[Value]) -> Value {
    let named = || {
        arguments.iter().filter(|argument| argument.is_kwargs()).find_map(|all| all.get_attr("start").ok())
    };
    let given = arguments.iter().filter(|argument| !argument.is_kwargs()).nth(1).cloned().or_else(named);
    given.filter(|start| !start.is_undefined()).unwrap_or_else(|| Value::from(0))
}

/// Most bytes that a filter or a method may return, if that can be more than a few times its input.
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
        "center" => size(value)?.saturating_add(largest(arguments)),
        _ => 0,
    })
}

/// Cost of a filter, a test or a method by the size of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Price {
    /// Finds a place in the value.
    Glance,
    /// Visits its items. The items are not read, except by a filter with a price of its own.
    Visit,
    /// Reads all of it.
    Read,
    /// Removes any of its argument's characters from both ends.
    Trim,
    Sort,
}

impl Price {
    /// The price of a filter by name. An unlisted one reads its value.
    fn of(name: &str) -> Self {
        match name {
            "length" | "count" | "first" | "last" | "default" | "d" | "safe" | "attr" | "get" | "copy"
            | "startswith" | "endswith" | "startingwith" | "endingwith" => Self::Glance,
            "map" | "select" | "reject" | "selectattr" | "rejectattr" | "list" | "items" | "keys"
            | "values" | "reverse" | "batch" | "slice" | "zip" | "chain" | "sum" => Self::Visit,
            "strip" | "lstrip" | "rstrip" | "trim" => Self::Trim,
            "sort" | "dictsort" | "unique" | "groupby" => Self::Sort,
            _ => Self::Read,
        }
    }

    fn work(self, value: &Value, arguments: &[Value]) -> Result<usize, Error> {
        // Arguments are read once. A text argument (the path of an attribute, a separator) is read once for
        // each item.
        let (mut given, mut texts) = (CALL, 0_usize);
        for argument in arguments {
            let size = Size::of(argument)?;
            given = given.saturating_add(size.read_work());
            if argument.is_kwargs() || argument.as_str().is_some() {
                texts = texts.saturating_add(size.text);
            }
        }
        let num_items = if value.as_str().is_some() { 0 } else { value.len().unwrap_or(0) };
        let visiting = num_items.saturating_mul(CALL.saturating_add(texts));
        let own = match (self, value.as_str()) {
            (Self::Glance, _) => glance_work(value),
            (Self::Visit, None) => visiting,
            (Self::Trim, Some(text)) if !arguments.is_empty() => text.len().saturating_mul(texts.max(1)),
            (Self::Visit | Self::Read | Self::Trim, _) => {
                Size::of(value)?.read_work().saturating_add(visiting)
            }
            (Self::Sort, _) => {
                let once = Size::of(value)?.read_work().saturating_add(visiting);
                // Once for each level of merging, and once more.
                once.saturating_mul(1 + num_items.max(1).ilog2() as usize)
            }
        };
        Ok(given.saturating_add(own))
    }
}

/// Charges a call of a filter, a test or a method, and checks the size of what it will build.
pub(super) fn charge_call(name: &str, value: &Value, arguments: &[Value]) -> Result<(), Error> {
    charge(Price::of(name).work(value, arguments)?)?;
    match cost(name, value, arguments)? {
        0 => Ok(()),
        bytes => afford(bytes),
    }
}

/// A filter that charges for its calls and measures its results, also if `map` calls it.
pub(super) fn add_filter(environment: &mut Environment<'static>, name: &'static str, filter: Value) {
    environment.add_filter(name, move |state: &mut State, value: &Value, rest: Rest<ValueOrKwargs>| {
        let rest = rest.into_values();
        charge_call(name, value, &rest)?;
        let value = if text::READ_AS_TEXT.contains(&name) { text::shown(value)? } else { value.clone() };
        let arguments: Vec<Value> = std::iter::once(value).chain(rest).collect();
        built(&filter.call(state, &arguments)?)
    });
}

/// Adds a test that charges for its calls.
pub(super) fn add_test(environment: &mut Environment<'static>, name: &'static str, test: Value) {
    environment.add_test(name, move |state: &mut State, value: &Value, rest: Rest<ValueOrKwargs>| {
        let rest = rest.into_values();
        charge_call(name, value, &rest)?;
        let arguments: Vec<Value> = std::iter::once(value.clone()).chain(rest).collect();
        test.call(state, &arguments).map(|answer| answer.is_true())
    });
}

/// Adds the limits, and the operators that enforce them, to an environment.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_formatter(|output, state, value| {
        let work = value
            .as_str()
            .map_or_else(|| Ok(Size::of(value)?.read_work()), |text| Ok::<_, Error>(text.len()));
        charge(work?)?;
        escape_formatter(output, state, &text::shown(value)?)
    });
    environment.add_filter(ADD, add);
    environment.add_filter(CONCAT, concat);
    environment.add_filter(MULTIPLY, multiply);
    environment.add_filter(REMAINDER, text::remainder);
    environment.add_filter(BUILT, built);
    environment.add_filter(CUT, cut);
    environment.add_filter(GLANCED_AT, charge_glance);
    environment.add_filter(LOOKED_AT, charge_look);
    environment.add_filter(STORED, check_stored);
    // It would print every variable.
    environment.remove_global("debug");
}

#[cfg(test)]
pub(super) fn work_done() -> usize {
    MAX_WORK - WORK_LEFT.get()
}

#[cfg(test)]
mod tests;
