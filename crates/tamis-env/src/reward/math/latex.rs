//! Reads an answer written in LaTeX (or plainly) into a value.
//!
//! First the text is cleaned of what changes no value (spacing, `\left`, `$`, degree signs, units in
//! `\text{}` after a number), then it is read as a set, tuple, interval, union of intervals, or an
//! expression. What cannot be read stays text.

use super::polynomial::Polynomial;
use crate::rational::Rational;

/// Longest answer, in bytes, that is read as mathematics; a longer one is compared as text.
const MAX_BYTES: usize = 400;
/// Deepest nesting.
const MAX_DEPTH: usize = 24;

/// Value of an answer. Equal values are equal answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MathValue {
    /// A number or an expression in symbols.
    Number(Polynomial),
    /// A tuple or interval: opening bracket, entries in order, closing bracket.
    Tuple(char, Vec<MathValue>, char),
    /// A set, or a list without brackets: entries in ascending order, once each.
    Set(Vec<MathValue>),
    /// A union, in ascending order, once each.
    Union(Vec<MathValue>),
    /// Anything else: the cleaned text without white space; words in lower case.
    Text(String),
}

/// Replacements that change no value, longest first where one begins another.
const CLEANED: [(&str, &str); 40] = [
    ("\\displaystyle", ""),
    ("\\left", ""),
    ("\\right", ""),
    ("\\bigl", ""),
    ("\\bigr", ""),
    ("\\Bigl", ""),
    ("\\Bigr", ""),
    ("\\big", ""),
    ("\\Big", ""),
    ("\\quad", " "),
    ("\\qquad", " "),
    ("\\!", ""),
    ("\\,", ""),
    ("\\;", ""),
    ("\\:", ""),
    // A line break before a space is not the command `\\ `.
    ("\\\\ ", "\\\\"),
    ("\\ ", " "),
    ("~", " "),
    ("\\$", ""),
    ("$", ""),
    ("{,}", ""),
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\cdot", "*"),
    ("\\times", "*"),
    ("\\div", "/"),
    ("\\lbrace", "\\{"),
    ("\\rbrace", "\\}"),
    ("\\lbrack", "["),
    ("\\rbrack", "]"),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\degree", ""),
    ("°", ""),
    ("\\%", "%"),
    ("−", "-"),
    ("\\mbox", "\\text"),
    ("\\textbf", "\\text"),
    ("\\mathrm", "\\text"),
];

/// Reads an answer; `None` where it is empty, or several plain words outside `\text{}` (which is prose, no
/// answer).
pub fn read(answer: &str) -> Option<MathValue> {
    let mut cleaned = answer.trim().to_owned();
    if cleaned.len() <= MAX_BYTES {
        for (before, after) in CLEANED {
            if cleaned.contains(before) {
                cleaned = cleaned.replace(before, after);
            }
        }
        // `\right.` and an empty `\left.` leave their point behind only at the ends.
        cleaned = cleaned.trim().trim_end_matches(['.', ',', ';']).trim().to_owned();
        cleaned = remove_texts(&cleaned);
    }
    let cleaned = cleaned.trim();
    if cleaned.is_empty() {
        return None;
    }
    if cleaned.len() <= MAX_BYTES {
        let side = right_side(cleaned);
        if let Some(value) = collection(side, 0) {
            return Some(value);
        }
        if let Some(value) = remove_unit(side).and_then(expression) {
            return Some(MathValue::Number(value));
        }
        let is_prose = !answer.contains('\\') && side.split_whitespace().count() > 1 && is_words(side);
        if is_prose {
            return None;
        }
    }
    let text: String = cleaned.split_whitespace().collect();
    Some(MathValue::Text(if is_words(&text) { text.to_lowercase() } else { text }))
}

fn is_words(text: &str) -> bool {
    text.chars().all(|letter| letter.is_alphabetic() || letter.is_whitespace())
}

/// `\text{...}` alone becomes its inside; after something else it is a unit and goes, with an exponent that
/// follows it.
fn remove_texts(text: &str) -> String {
    const OPENING: &str = "\\text{";
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(OPENING) {
        let inside = &rest[start + OPENING.len()..];
        let Some(end) = inside.find('}') else { break };
        kept.push_str(&rest[..start]);
        let mut after = &inside[end + 1..];
        if kept.trim().is_empty() {
            kept.push_str(&inside[..end]);
        } else {
            for exponent in ["^2", "^3", "^{2}", "^{3}"] {
                after = after.strip_prefix(exponent).unwrap_or(after);
            }
        }
        rest = after;
    }
    kept.push_str(rest);
    kept
}

/// The right side of `x =` or `x \in`, where the left is one symbol (or a short function name such as
/// `f(x)`).
fn right_side(text: &str) -> &str {
    let is_symbol = |left: &str| {
        let left = left.trim();
        let name =
            left.strip_suffix(')').and_then(|left| left.split_once('(')).map_or(left, |(name, _)| name);
        let name = name.strip_prefix('\\').unwrap_or(name);
        !name.is_empty()
            && name.len() <= 8
            && name.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '_')
    };
    if let Some((left, right)) = text.split_once("\\in ").or_else(|| text.split_once("\\in("))
        && is_symbol(left)
    {
        let skipped = text.len() - right.len();
        // The bracket belongs to the right side.
        let start = if text[..skipped].ends_with('(') { skipped - 1 } else { skipped };
        return text[start..].trim();
    }
    match text.split_once('=') {
        Some((left, right)) if is_symbol(left) => right.rsplit('=').next().unwrap_or(right).trim(),
        _ => text,
    }
}

/// A number or fraction without the plain words that follow it (`5 dollars`).
fn remove_unit(text: &str) -> Option<&str> {
    let kept = text.trim_end_matches(|letter: char| letter.is_alphabetic() || letter == ' ');
    let is_number =
        !kept.is_empty() && kept.chars().all(|letter| letter.is_ascii_digit() || "+-.,/% ".contains(letter));
    // One letter is a symbol, not a unit.
    (is_number && text.len() - kept.len() > 2).then_some(kept)
}

/// A set, tuple, interval, union, list or expression.
fn collection(text: &str, depth: usize) -> Option<MathValue> {
    let text = text.trim();
    if depth > MAX_DEPTH || text.is_empty() {
        return None;
    }
    let unions = split_top(text, "\\cup")?;
    if unions.len() > 1 {
        return sort_parts(&unions, depth).map(MathValue::Union);
    }
    if let Some(inside) = text.strip_prefix("\\{").and_then(|rest| rest.strip_suffix("\\}")) {
        let parts = split_top(inside, ",")?;
        return sort_parts(&parts, depth).map(MathValue::Set);
    }
    if is_grouped_number(text) {
        return expression(&text.replace(',', "")).map(MathValue::Number);
    }
    let parts = split_top(text, ",")?;
    if parts.len() > 1 {
        return sort_parts(&parts, depth).map(MathValue::Set);
    }
    let brackets = (text.chars().next()?, text.chars().next_back()?);
    if let ('(' | '[', ')' | ']') = brackets
        && closes_at_end(text)
        && let inside = text.get(1..text.len() - 1)?
        && let parts = split_top(inside, ",")?
        && (parts.len() > 1 || brackets.0 == '[')
    {
        let entries = parts.iter().map(|part| collection(part, depth + 1)).collect::<Option<_>>()?;
        return Some(MathValue::Tuple(brackets.0, entries, brackets.1));
    }
    expression(text).map(MathValue::Number)
}

fn sort_parts(parts: &[&str], depth: usize) -> Option<Vec<MathValue>> {
    let mut values: Vec<MathValue> =
        parts.iter().map(|part| collection(part, depth + 1)).collect::<Option<_>>()?;
    values.sort();
    values.dedup();
    Some(values)
}

/// `1,000` or `-12,345,678.9`: commas before groups of exactly three digits.
fn is_grouped_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text).trim();
    let unsigned = unsigned.strip_suffix('%').unwrap_or(unsigned);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    (1..=3).contains(&first.len())
        && first != "0"
        && is_digits(first)
        && whole.contains(',')
        && groups.all(|group| group.len() == 3 && is_digits(group))
        && is_digits(fraction)
}

/// Change of depth by a bracket character: +1, −1 or 0; `\{` and `\}` count like `{` and `}`.
fn step(byte: u8) -> isize {
    match byte {
        b'(' | b'[' | b'{' => 1,
        b')' | b']' | b'}' => -1,
        _ => 0,
    }
}

/// The parts between separators outside all brackets; `None` where brackets do not balance.
fn split_top<'t>(text: &'t str, separator: &str) -> Option<Vec<&'t str>> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0isize);
    for (at, byte) in text.bytes().enumerate() {
        depth += step(byte);
        if depth < 0 {
            return None;
        }
        if depth == 0 && at >= start && text.as_bytes()[at..].starts_with(separator.as_bytes()) {
            parts.push(text.get(start..at)?);
            start = at + separator.len();
        }
    }
    parts.push(text.get(start..)?);
    (depth == 0).then_some(parts)
}

/// Whether the bracket that opens the text is closed by its last byte.
fn closes_at_end(text: &str) -> bool {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        depth += step(byte);
        if depth == 0 {
            return at + 1 == text.len();
        }
    }
    false
}

/// The value of an expression.
fn expression(text: &str) -> Option<Polynomial> {
    // A space is kept only between letters, where it ends a command's name (`\\pi r`) or parts two symbols.
    let mut kept = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if kept.ends_with(|letter: char| letter.is_ascii_alphabetic())
            && word.starts_with(|letter: char| letter.is_ascii_alphabetic())
        {
            kept.push(' ');
        }
        kept.push_str(word);
    }
    let text = kept;
    let mut reader = Reader { text: &text, at: 0 };
    let value = reader.sum(0)?;
    (reader.at == text.len()).then_some(value)
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&mut self) -> Option<char> {
        self.at += usize::from(self.rest().starts_with(' '));
        self.rest().chars().next()
    }

    fn take(&mut self, expected: &str) -> bool {
        self.peek();
        let is_there = self.rest().starts_with(expected);
        if is_there {
            self.at += expected.len();
        }
        is_there
    }

    fn sum(&mut self, depth: usize) -> Option<Polynomial> {
        if depth > MAX_DEPTH {
            return None;
        }
        let is_negative = self.take("-");
        if !is_negative {
            self.take("+");
        }
        let mut total = self.product(depth)?;
        if is_negative {
            total = total.checked_neg()?;
        }
        loop {
            if self.take("+") {
                total = total.checked_add(&self.product(depth)?)?;
            } else if self.take("-") {
                total = total.checked_add(&self.product(depth)?.checked_neg()?)?;
            } else {
                return Some(total);
            }
        }
    }

    /// Factors with `*`, `/` or nothing between them.
    fn product(&mut self, depth: usize) -> Option<Polynomial> {
        let mut total = self.signed_factor(depth)?;
        loop {
            if self.take("*") {
                total = total.checked_mul(&self.signed_factor(depth)?)?;
            } else if self.take("/") {
                total = total.checked_div(&self.signed_factor(depth)?)?;
            } else if self.peek().is_some_and(|next| next.is_ascii_alphanumeric() || "(\\{.".contains(next))
                && !self.rest().starts_with("\\}")
            {
                total = total.checked_mul(&self.power(depth)?)?;
            } else {
                return Some(total);
            }
        }
    }

    fn signed_factor(&mut self, depth: usize) -> Option<Polynomial> {
        if self.take("-") { self.power(depth)?.checked_neg() } else { self.power(depth) }
    }

    fn power(&mut self, depth: usize) -> Option<Polynomial> {
        let mut base = self.atom(depth)?;
        if self.take("^") {
            let exponent = self.argument(depth)?.as_rational()?;
            base = base.checked_pow(exponent)?;
        }
        while self.take("%") {
            base = base.checked_div(&Polynomial::constant(Rational::integer(100)))?;
        }
        Some(base)
    }

    fn atom(&mut self, depth: usize) -> Option<Polynomial> {
        let next = self.peek()?;
        if next.is_ascii_digit() || next == '.' {
            return self.number(depth);
        }
        if next.is_ascii_alphabetic() {
            return self.letters();
        }
        if self.take("(") {
            return self.read_closed(depth, ")");
        }
        if self.take("{") {
            return self.read_closed(depth, "}");
        }
        if self.take("\\frac") {
            let numerator = self.argument(depth)?;
            return numerator.checked_div(&self.argument(depth)?);
        }
        if self.take("\\sqrt") {
            let mut degree = Rational::integer(2);
            if self.take("[") {
                degree = self.read_closed(depth, "]")?.as_rational()?;
            }
            let degree = u32::try_from(degree.numerator()).ok().filter(|_| degree.denominator() == 1)?;
            return self.argument(depth)?.root(degree);
        }
        self.take("\\").then_some(())?;
        let name = self.rest();
        let name = &name[..name.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(name.len())];
        let is_symbol = [
            "pi", "infty", "alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "rho",
            "sigma", "tau", "phi", "varphi", "omega",
        ]
        .contains(&name);
        self.at += name.len();
        is_symbol.then(|| Polynomial::symbol(&format!("\\{name}")))
    }

    fn read_closed(&mut self, depth: usize, closing: &str) -> Option<Polynomial> {
        let value = self.sum(depth + 1)?;
        self.take(closing).then_some(value)
    }

    /// The argument of a command or exponent: a group in braces, a command, or one character.
    fn argument(&mut self, depth: usize) -> Option<Polynomial> {
        if self.take("{") {
            return self.read_closed(depth, "}");
        }
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            digit @ '0'..='9' => {
                self.at += 1;
                Some(Polynomial::constant(Rational::integer(i128::from(digit as u32 - '0' as u32))))
            }
            letter if letter.is_ascii_alphabetic() => {
                self.at += 1;
                Some(Polynomial::symbol(letter.encode_utf8(&mut [0; 4])))
            }
            '\\' => self.atom(depth + 1),
            _ => None,
        }
    }

    /// A decimal; an integer directly before a fraction of two integers is a mixed number (`1\frac{1}{2}` is
    /// 3/2).
    fn number(&mut self, depth: usize) -> Option<Polynomial> {
        let rest = self.rest();
        let digits = &rest
            [..rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len())];
        self.at += digits.len();
        let value = Polynomial::constant(Rational::decimal(digits)?);
        if !digits.contains('.') && self.rest().starts_with("\\frac") {
            let fraction = self.atom(depth)?;
            let is_mixed = fraction.as_rational().is_some_and(|fraction| {
                fraction.numerator() > 0 && fraction.denominator() > fraction.numerator()
            });
            return if is_mixed { value.checked_add(&fraction) } else { value.checked_mul(&fraction) };
        }
        Some(value)
    }

    /// One letter is a symbol; up to three without a vowel are a product (`xy`); longer runs are words, which
    /// are no mathematics.
    fn letters(&mut self) -> Option<Polynomial> {
        let rest = self.rest();
        let run = &rest[..rest.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(rest.len())];
        let is_word = run.len() > 3 || run.bytes().any(|letter| b"aeiouAEIOU".contains(&letter));
        if run.len() > 1 && is_word {
            return None;
        }
        let letter = run.get(..1)?;
        self.at += 1;
        Some(Polynomial::symbol(letter))
    }
}
