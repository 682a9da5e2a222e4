//! `tojson` as `transformers` defines it: Python's `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::limits;

/// `json.dumps(value, ensure_ascii=False, ...)`: no HTML escapes, and keys keep their order.
#[expect(clippy::needless_pass_by_value, reason = "the signature is the template engine's")]
pub(super) fn tojson(value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
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
        limits::within(out.len())?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => {
                let number = f64::try_from(value.clone())?;
                if number.is_nan() {
                    out.push_str("NaN");
                } else if number.is_infinite() {
                    out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
                } else {
                    out.push_str(&float(number));
                }
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
                    if let Some(text) = key.as_str() {
                        self.string(out, text);
                    } else {
                        // Python writes a key that is not text as its JSON in quotes.
                        let mut text = String::new();
                        self.write(&mut text, key, 0)?;
                        self.string(out, &text);
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

/// A finite number in the shortest digits that read back, in Python's layout: an exponent below 1e-4 and from
/// 1e16 on.
pub(super) fn float(number: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(float(number), text);
        }
    }
}
