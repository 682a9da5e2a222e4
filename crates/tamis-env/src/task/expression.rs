//! Arithmetic expressions of the calculator tasks: exact value and canonical text.

use thiserror::Error;

use crate::rational::{Rational, canonical_decimal};

/// Deepest nesting of parentheses and signs that is read.
const MAX_DEPTH: usize = 64;

/// Why an expression has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoValue {
    /// It cannot be parsed.
    #[error("the text is not an expression of decimals, `+ - * /` and parentheses")]
    Unreadable,
    /// It divides by zero or exceeds 128 bits.
    #[error("the expression divides by zero or leaves 128 bits")]
    Undefined,
}

/// The exact value of an expression of decimals, `+ - * /` and parentheses, `*` and `/` binding tighter.
///
/// # Errors
/// It does not parse, divides by zero or leaves 128 bits.
///
/// ```
/// use tamis_env::{rational::Rational, task::expression::{NoValue, evaluate}};
/// assert_eq!(evaluate("1/3+1/6").ok(), Rational::new(1, 2));
/// assert_eq!(evaluate("1/(2-2)"), Err(NoValue::Undefined));
/// assert_eq!(evaluate("1/0)"), Err(NoValue::Unreadable));
/// ```
pub fn evaluate(text: &str) -> Result<Rational, NoValue> {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0, is_undefined: false };
    let value = reader.sum(0).filter(|_| reader.at == reader.bytes.len()).ok_or(NoValue::Unreadable)?;
    if reader.is_undefined { Err(NoValue::Undefined) } else { Ok(value) }
}

/// The same; `None` if it cannot be parsed, divides by zero or exceeds 128 bits.
///
/// ```
/// use tamis_env::{rational::Rational, task::expression::value};
/// assert_eq!(value("2+3*(4-.5)"), Rational::new(25, 2));
/// assert_eq!(value("1/0"), None);
/// ```
pub fn value(text: &str) -> Option<Rational> {
    evaluate(text).ok()
}

/// The expression without white space, commas and `$`; `None` if another character than digits, `.`,
/// `+ - * / ( )` is left.
pub fn clean(text: &str) -> Option<String> {
    let mut cleaned = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '0'..='9' | '.' | '+' | '-' | '*' | '/' | '(' | ')' => cleaned.push(letter),
            ',' | '$' => {}
            _ if letter.is_whitespace() => {}
            _ => return None,
        }
    }
    (!cleaned.is_empty()).then_some(cleaned)
}

/// A cleaned expression with every decimal in canonical form: `.50*4.0` and `0.5*4` are the same expression.
pub fn with_canonical_numbers(cleaned: &str) -> String {
    let mut canonical = String::with_capacity(cleaned.len());
    let mut rest = cleaned;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
        if end == 0 {
            canonical.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let number = &rest[..end];
            canonical.push_str(&canonical_decimal(number).unwrap_or_else(|| number.to_owned()));
            rest = &rest[end..];
        }
    }
    canonical
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether a part had no value. It is replaced by 1, so the rest is parsed too.
    is_undefined: bool,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn defined(&mut self, value: Option<Rational>) -> Rational {
        self.is_undefined |= value.is_none();
        value.unwrap_or(Rational::ONE)
    }

    fn sum(&mut self, depth: usize) -> Option<Rational> {
        let mut total = self.product(depth)?;
        while let Some(operator @ (b'+' | b'-')) = self.peek() {
            self.at += 1;
            let term = self.product(depth)?;
            let next = if operator == b'+' { total.checked_add(term) } else { total.checked_sub(term) };
            total = self.defined(next);
        }
        Some(total)
    }

    fn product(&mut self, depth: usize) -> Option<Rational> {
        let mut total = self.factor(depth)?;
        while let Some(operator @ (b'*' | b'/')) = self.peek() {
            self.at += 1;
            let factor = self.factor(depth)?;
            let next = if operator == b'*' { total.checked_mul(factor) } else { total.checked_div(factor) };
            total = self.defined(next);
        }
        Some(total)
    }

    fn factor(&mut self, depth: usize) -> Option<Rational> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'-' => {
                self.at += 1;
                let negated = self.factor(depth + 1)?.checked_neg();
                Some(self.defined(negated))
            }
            b'+' => {
                self.at += 1;
                self.factor(depth + 1)
            }
            b'(' => {
                self.at += 1;
                let inner = self.sum(depth + 1)?;
                (self.peek()? == b')').then(|| self.at += 1)?;
                Some(inner)
            }
            _ => {
                let start = self.at;
                while matches!(self.peek(), Some(b'0'..=b'9' | b'.')) {
                    self.at += 1;
                }
                Rational::decimal(std::str::from_utf8(self.bytes.get(start..self.at)?).ok()?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values() {
        for (text, numerator, denominator) in [
            ("48/2", 24, 1),
            ("2-3-4", -5, 1),
            ("8/4/2", 1, 1),
            ("-2*-3", 6, 1),
            ("(1+2)*3-.5", 17, 2),
            ("1/3", 1, 3),
        ] {
            assert_eq!(value(text), Rational::new(numerator, denominator), "{text}");
        }
        for text in ["", "1+", "(1", "1)", "*2", "1..2", "2 3", "1/0", "1/(2-2)", "1e3"] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value(&"(".repeat(100_000)), None);
        assert_eq!(value(&"-".repeat(100_000)), None);
    }

    #[test]
    fn what_parses_and_has_no_value() {
        let huge = "9".repeat(30);
        for text in ["1/0", "0/(1-1)+2", "-(3/0)", "(1/0)*2-1", &format!("{huge}*{huge}")] {
            assert_eq!(evaluate(text), Err(NoValue::Undefined), "{text}");
        }
        for text in ["1/0)", "1/0+", "", "1//2", "1/0 "] {
            assert_eq!(evaluate(text), Err(NoValue::Unreadable), "{text}");
        }
    }

    #[test]
    fn texts() {
        assert_eq!(clean(" $1,200 * 3 ").as_deref(), Some("1200*3"));
        assert_eq!(clean("50%*2"), None, "a percent sign would change the value");
        assert_eq!(clean(" "), None);
        assert_eq!(with_canonical_numbers(".50*(4.0-02)"), "0.5*(4-2)");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[0-9.+*/() $,é-]{0,40}") {
            if let Some(cleaned) = clean(&text) {
                prop_assert_eq!(value(&cleaned).is_some(), value(&with_canonical_numbers(&cleaned)).is_some());
                prop_assert_eq!(value(&cleaned), value(&with_canonical_numbers(&cleaned)));
            }
        }
    }
}
