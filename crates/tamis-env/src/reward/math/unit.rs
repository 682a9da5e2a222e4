//! Units: words behind a value that name what is counted or measured.

use super::expression::is_name;
use super::lexer::{Lexed, MathToken};

/// Words that change a value, or join it with another. A text with one of them is no unit.
const MEANINGFUL: [&str; 73] = [
    "a",
    "about",
    "and",
    "approximately",
    "are",
    "at",
    "base",
    "between",
    "billion",
    "billions",
    "both",
    "but",
    "by",
    "cubed",
    "divided",
    "double",
    "dozen",
    "dozens",
    "each",
    "either",
    "else",
    "except",
    "factorial",
    "for",
    "from",
    "greater",
    "half",
    "halves",
    "hundred",
    "hundreds",
    "hundredth",
    "hundredths",
    "if",
    "is",
    "least",
    "less",
    "million",
    "millions",
    "minus",
    "mod",
    "modulo",
    "more",
    "most",
    "negative",
    "neither",
    "no",
    "nor",
    "not",
    "only",
    "or",
    "otherwise",
    "over",
    "plus",
    "remainder",
    "root",
    "squared",
    "tenth",
    "tenths",
    "than",
    "then",
    "thirds",
    "thousand",
    "thousands",
    "thousandth",
    "thousandths",
    "through",
    "times",
    "to",
    "trillion",
    "trillions",
    "under",
    "when",
    "with",
];
/// Units of one letter; any other letter is a symbol.
const LETTERS: [&str; 10] = ["m", "g", "s", "h", "L", "J", "N", "W", "V", "K"];
/// Words outside of `\text{}` that are units although they are short.
const SHORT: [&str; 12] =
    ["cm", "km", "mm", "ft", "kg", "mph", "days", "feet", "inch", "mile", "ways", "years"];
/// Long names of units and their short ones.
const NAMES: [(&str, &str); 24] = [
    ("centimeter", "cm"),
    ("centimetre", "cm"),
    ("kilometer", "km"),
    ("kilometre", "km"),
    ("millimeter", "mm"),
    ("meter", "m"),
    ("metre", "m"),
    ("inch", "in"),
    ("inche", "in"),
    ("foot", "ft"),
    ("feet", "ft"),
    ("mile", "mi"),
    ("gram", "g"),
    ("kilogram", "kg"),
    ("pound", "lb"),
    ("second", "s"),
    ("sec", "s"),
    ("minute", "min"),
    ("hour", "h"),
    ("hr", "h"),
    ("liter", "L"),
    ("degree", "°"),
    ("dollar", "$"),
    ("sq", "square"),
];

/// Splits the tokens of one value from the unit that ends them: `5 \text{ cm}^2` is `5` and `cm^2`.
pub fn split(tokens: &[Lexed]) -> (&[Lexed], Option<String>) {
    let (base, power) = match tokens {
        [base @ .., sign, Lexed { token: MathToken::Number(power), .. }] if sign.is('^') => {
            (base, power.as_str())
        }
        [base @ .., sign, open, Lexed { token: MathToken::Number(power), .. }, close]
            if sign.is('^') && open.is('{') && close.is('}') =>
        {
            (base, power.as_str())
        }
        _ => (tokens, ""),
    };
    let count = base
        .iter()
        .rev()
        .take_while(|lexed| matches!(lexed.token, MathToken::Text(_) | MathToken::Word(_)))
        .count();
    let (value, words) = base.split_at(base.len() - count);
    let ends_value = value.last().is_some_and(|last| match &last.token {
        MathToken::Number(_) => true,
        MathToken::Symbol(symbol) => ")}]|%".contains(*symbol),
        MathToken::Command(name) => name == "pi" || name == "$",
        _ => false,
    });
    // Letters between the value and the words belong to the value: `2x \text{ cm}`.
    let letters = words
        .iter()
        .take_while(
            |lexed| matches!(&lexed.token, MathToken::Word(word) if word.len() == 1 && power.is_empty()),
        )
        .count();
    let words = if words.len() > letters { &words[letters..] } else { words };
    let value = &tokens[..base.len() - words.len()];
    let name = ["", "2", "3"].contains(&power).then(|| name(words)).flatten();
    match name {
        Some(name) if !value.is_empty() && (ends_value || letters > 0) => {
            let power = match power {
                "" => String::new(),
                power => format!("^{power}"),
            };
            (value, Some(name + &power))
        }
        _ => (tokens, None),
    }
}

fn name(tokens: &[Lexed]) -> Option<String> {
    let mut names = Vec::new();
    for lexed in tokens {
        match &lexed.token {
            MathToken::Word(word) => {
                let is_short = SHORT.contains(&word.as_str());
                if !is_short && (word.len() < 5 || !lexed.is_spaced || is_name(word)) {
                    return None;
                }
                names.push(word.as_str());
            }
            MathToken::Text(text) => {
                let words = text.split(|letter: char| letter.is_whitespace() || "./-".contains(letter));
                names.extend(words.filter(|word| !word.is_empty()));
            }
            _ => return None,
        }
    }
    let is_unit = |word: &&str| {
        word.chars().all(char::is_alphabetic)
            && (word.chars().count() > 1 || LETTERS.contains(word))
            && !MEANINGFUL.contains(&word.to_lowercase().as_str())
            // `5 \text{ sec}` is no secant: nothing follows.
            && (!is_name(word) || *word == "sec")
    };
    if names.is_empty() || !names.iter().all(is_unit) {
        return None;
    }
    let mut unit: Vec<&str> = Vec::new();
    let mut power = "";
    for word in &names {
        let singular = word.strip_suffix('s').filter(|word| word.len() > 1).unwrap_or(word);
        let short = NAMES
            .iter()
            .find(|(long, _)| singular.eq_ignore_ascii_case(long))
            .map_or(singular, |(_, short)| short);
        match short {
            "square" => power = "^2",
            "cubic" => power = "^3",
            short => unit.push(short),
        }
    }
    Some(unit.join(" ").to_lowercase() + power)
}
