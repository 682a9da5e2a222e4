//! What templates expect of Python: methods, `json.dumps` and dates.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

/// What a template said with `raise_exception`.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Makes an environment behave as the one that `transformers` builds.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(call_method);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = message.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.add_filter("tojson", tojson);
}

/// Python's methods: those of minijinja's own collection, and a few more of strings.
fn call_method(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = call_string_method(text, method, arguments)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
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
        "swapcase" => Ok(Value::from(
            text.chars()
                .flat_map(|character| {
                    let swapped: Vec<char> = if character.is_lowercase() {
                        character.to_uppercase().collect()
                    } else {
                        character.to_lowercase().collect()
                    };
                    swapped
                })
                .collect::<String>(),
        )),
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

/// No template needs to pad a text further; a larger number is taken as this one.
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

/// The shortest digits that read back, in Python's layout: an exponent below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// `json.dumps(value, ensure_ascii=False, ...)`: nothing is escaped for HTML, keys keep their order.
fn tojson(value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get::<Option<Value>>("indent")?).filter(|indent| !indent.is_none());
    let indent = match indent {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(ToOwned::to_owned),
        Some(width) => {
            let width = i64::try_from(width)?.clamp(0, 64);
            Some(" ".repeat(usize::try_from(width).unwrap_or(0)))
        }
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item, field) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, field]) => (item.clone(), field.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: `separators` must be two texts, the one between items and the one after a key",
            ));
        }
    };
    let style = Style {
        indent,
        item,
        field,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(Value::from(out))
}

struct Style {
    indent: Option<String>,
    item: String,
    field: String,
    ascii: bool,
    sorted: bool,
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => {
                let number = f64::try_from(value.clone())?;
                out.push_str(match number {
                    n if n.is_nan() => "NaN",
                    f64::INFINITY => "Infinity",
                    f64::NEG_INFINITY => "-Infinity",
                    _ => return Ok(out.push_str(&float(number))),
                });
            }
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block(out, '[', ']', depth, items.len(), |out, i| match items.get(i) {
                    Some(item) => self.write(out, item, depth + 1),
                    None => Ok(()),
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.block(out, '{', '}', depth, keys.len(), |out, i| {
                    let Some(key) = keys.get(i) else { return Ok(()) };
                    match key.as_str() {
                        Some(text) => self.string(out, text),
                        None => {
                            // Python writes a key that is no text as its JSON in quotes.
                            let mut text = String::new();
                            self.write(&mut text, key, 0)?;
                            self.string(out, &text);
                        }
                    }
                    out.push_str(&self.field);
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: a value of kind {kind} has no JSON"),
                ));
            }
        }
        Ok(())
    }

    fn block(
        &self,
        out: &mut String,
        open: char,
        close: char,
        depth: usize,
        length: usize,
        mut write: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for i in 0..length {
            if i > 0 {
                out.push_str(&self.item);
            }
            self.newline(out, depth + 1);
            write(out, i)?;
        }
        if length > 0 {
            self.newline(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn newline(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// C's `strftime` for a time in UTC, English names; `%-d` drops the leading zero; an unknown directive stays as it is.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    let days = seconds.div_euclid(86_400);
    let second_of_day = seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    // 1970-01-01 was a Thursday.
    let weekday = (days + 3).rem_euclid(7);
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let name = |names: &[&'static str], index: i64| {
        usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or_default()
    };
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let mut out = String::new();
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let bare = characters.next_if_eq(&'-').is_some();
        let Some(directive) = characters.next() else {
            out.push('%');
            break;
        };
        let mut padded = |value: i64, width: usize| {
            let _ = if bare { write!(out, "{value}") } else { write!(out, "{value:0width$}") };
        };
        match directive {
            'Y' => padded(year, 4),
            'y' => padded(year.rem_euclid(100), 2),
            'm' => padded(month, 2),
            'd' => padded(day, 2),
            'H' => padded(hour, 2),
            'I' => padded(hour12, 2),
            'M' => padded(minute, 2),
            'S' => padded(second, 2),
            'j' => padded(day_of_year, 3),
            'u' => padded(weekday + 1, 1),
            'w' => padded((weekday + 1) % 7, 1),
            's' => padded(seconds, 1),
            'e' => {
                let _ = write!(out, "{day:2}");
            }
            'B' => out.push_str(name(&MONTHS, month - 1)),
            'b' | 'h' => out.push_str(short(name(&MONTHS, month - 1))),
            'A' => out.push_str(name(&DAYS, weekday)),
            'a' => out.push_str(short(name(&DAYS, weekday))),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            'F' => out.push_str(&strftime("%Y-%m-%d", seconds)),
            'T' | 'X' => out.push_str(&strftime("%H:%M:%S", seconds)),
            'R' => out.push_str(&strftime("%H:%M", seconds)),
            'D' | 'x' => out.push_str(&strftime("%m/%d/%y", seconds)),
            'c' => out.push_str(&strftime("%a %b %e %H:%M:%S %Y", seconds)),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => {
                out.push('%');
                if bare {
                    out.push('-');
                }
                out.push(other);
            }
        }
    }
    out
}

/// Year, month and day of a day count from 1970-01-01 (Gregorian), by 400-year eras that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // 2024-02-29 23:05:09 UTC, a Thursday, day 60 of its year.
        let seconds = 1_709_247_909;
        assert_eq!(
            strftime("%d %b %Y|%Y-%m-%d|%A %-d. %B|%j|%I:%M %p|%S|%%|%Q", seconds),
            "29 Feb 2024|2024-02-29|Thursday 29. February|060|11:05 PM|09|%|%Q"
        );
        assert_eq!(strftime("%F %T %a", 0), "1970-01-01 00:00:00 Thu");
        assert_eq!(strftime("%F %-H", -1), "1969-12-31 23");
        assert_eq!(strftime("100%", 0), "100%");
    }

    #[test]
    fn floats_print_as_python_does() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (-0.0, "-0.0"),
            (1e300, "1e+300"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float(number), text);
        }
    }
}
