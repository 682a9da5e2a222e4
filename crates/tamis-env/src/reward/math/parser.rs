//! Reads an answer into its [`MathValue`].
//!
//! ```text
//! answer   = list
//! list     = element { separator element }      separator: "," ";" "or" "and"
//! element  = side { ("=" | "<" | ">" | "\le" | "\ge" | "\in") side }
//! side     = part { "\cup" part }
//! part     = "\{" list "\}" | "\emptyset" | bracket element { ("," | ";") element } bracket | matrix
//!          | "\text{" list "}" | expression [unit]
//! ```
//!
//! Expressions are those of [`expression`]. A part or element that is nothing of this is text.

use super::expression;
use super::lexer::{Lexed, MathToken, lex};
use super::quotient::Quotient;
use super::unit;
use super::value::{MathValue, is_equal};

/// Longest answer, in bytes, that is read as mathematics; a longer one is compared as text.
const MAX_BYTES: usize = 400;
/// Deepest nesting of collections.
const MAX_DEPTH: usize = 12;

/// Reads an answer; `None` if it is empty.
pub fn read(answer: &str) -> Option<MathValue> {
    let answer = answer.trim();
    if answer.len() > MAX_BYTES {
        return Some(MathValue::Text(answer.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    let tokens = lex(answer);
    let length = tokens.iter().rposition(|lexed| !is_mark(lexed) && !lexed.is('.'))? + 1;
    let tokens = &tokens[..length];
    Some(list(tokens, 0).unwrap_or_else(|| MathValue::Text(text_of(tokens))))
}

/// The tokens with spaces between them; braces around one character are left out, and words alone are
/// compared in lower case.
pub fn text_of(tokens: &[Lexed]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for lexed in tokens {
        let part = match &lexed.token {
            MathToken::Number(text) | MathToken::Word(text) => text.clone(),
            MathToken::Text(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
            MathToken::Command(name) => format!("\\{name}"),
            MathToken::Symbol(symbol) => symbol.to_string(),
        };
        match parts.as_slice() {
            [.., open, single] if part == "}" && open == "{" && single.chars().count() == 1 => {
                let single = parts.pop().unwrap_or_default();
                parts.pop();
                parts.push(single);
            }
            _ => parts.push(part),
        }
    }
    let text = parts.join(" ");
    let is_words = text.chars().all(|letter| letter.is_alphabetic() || letter == ' ');
    if is_words { text.to_lowercase() } else { text }
}

/// The word that separates values, `or` or `and`.
fn separator(lexed: &Lexed) -> Option<&str> {
    let (MathToken::Text(word) | MathToken::Word(word)) = &lexed.token else { return None };
    let word = word.trim_matches([' ', ',']);
    ["or", "and"].into_iter().find(|separator| word.eq_ignore_ascii_case(separator))
}

type Piece<'t> = (&'t [Lexed], Option<&'t Lexed>);

/// The pieces between tokens outside all brackets; `None` if brackets do not balance.
fn split(tokens: &[Lexed], is_end: impl Fn(&Lexed) -> bool) -> Option<Vec<Piece<'_>>> {
    let (mut pieces, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, lexed) in tokens.iter().enumerate() {
        depth += lexed.step();
        if depth < 0 {
            return None;
        }
        if depth == 0 && is_end(lexed) {
            pieces.push((&tokens[start..at], Some(lexed)));
            start = at + 1;
        }
    }
    pieces.push((&tokens[start..], None));
    (depth == 0).then_some(pieces)
}

fn is_mark(lexed: &Lexed) -> bool {
    lexed.is(',') || lexed.is(';')
}

/// A value, or several with separators between them.
fn list(tokens: &[Lexed], depth: usize) -> Option<MathValue> {
    if depth > MAX_DEPTH {
        return None;
    }
    let (mut pieces, mut is_alternative) = (Vec::new(), false);
    for (clause, end) in split(tokens, |lexed| separator(lexed).is_some())? {
        is_alternative |= end.and_then(separator) == Some("or");
        // A comma before `and` parts nothing more.
        let clause = match clause {
            [clause @ .., last] if last.is(',') => clause,
            clause => clause,
        };
        pieces.extend(split(clause, is_mark)?.into_iter().map(|(piece, _)| piece));
    }
    if let [_] = pieces.as_slice() {
        return element(tokens, depth);
    }
    let mut values = Vec::with_capacity(pieces.len());
    for piece in pieces {
        values.push(element(piece, depth).or_else(|| text(piece))?);
    }
    Some(named(values, is_alternative))
}

/// One value of several under their common name.
fn named(values: Vec<MathValue>, is_alternative: bool) -> MathValue {
    let name = |value: &MathValue| match value {
        MathValue::Named(names, _) => Some(names.clone()),
        _ => None,
    };
    let names = values.first().and_then(name);
    let has_same = |value: &MathValue| name(value) == names;
    let is_bare = |value: &MathValue| !matches!(value, MathValue::Named(..) | MathValue::Relation(..));
    // `x = 1, x = 2`, and `x = 1, 2`.
    let is_shared = names.is_some() && (values.iter().all(has_same) || values[1..].iter().all(is_bare));
    let mut found = Vec::with_capacity(values.len());
    for value in values {
        match value {
            MathValue::Named(_, inside) if is_shared => match *inside {
                MathValue::List(several) => found.extend(several),
                inside => found.push(inside),
            },
            MathValue::List(several) => found.extend(several),
            value => found.push(value),
        }
    }
    // `x < 1 or x > 2` are intervals; `(x, y) = (1, 2) or (3, 4)` are points.
    let is_point = names.iter().flatten().any(|name| name.starts_with('('));
    let is_union = is_shared
        && is_alternative
        && !is_point
        && found.iter().all(|value| matches!(value, MathValue::Tuple(..)));
    let value = if is_union { MathValue::Union(found) } else { MathValue::List(found) };
    match names.filter(|_| is_shared) {
        Some(names) => MathValue::Named(names, Box::new(value)),
        None => value,
    }
}

/// Tokens that are not empty, as text.
fn text(tokens: &[Lexed]) -> Option<MathValue> {
    (!tokens.is_empty()).then(|| MathValue::Text(text_of(tokens)))
}

/// A relation, or a value without one.
fn element(tokens: &[Lexed], depth: usize) -> Option<MathValue> {
    let sign = |lexed: &Lexed| match &lexed.token {
        MathToken::Symbol('=') => Some("="),
        MathToken::Symbol('<') => Some("<"),
        MathToken::Symbol('>') => Some(">"),
        MathToken::Command(name) => ["le", "ge", "in"].into_iter().find(|sign| name == sign),
        _ => None,
    };
    let pieces = split(tokens, |lexed| sign(lexed).is_some())?;
    let mut signs: Vec<&str> = pieces.iter().filter_map(|(_, end)| sign((*end)?)).collect();
    let mut sides: Vec<&[Lexed]> = pieces.into_iter().map(|(side, _)| side).collect();
    if signs.is_empty() {
        return side(tokens, depth);
    }
    let value = |tokens| side(tokens, depth).or_else(|| text(tokens));
    let number = |tokens| match side(tokens, depth) {
        Some(MathValue::Number(value, _)) => Some(value),
        _ => None,
    };
    if signs.iter().all(|&sign| sign == "=") || signs == ["in"] {
        if signs.len() == 1 && name(sides[0]).is_none() && signs[0] == "=" {
            sides.reverse();
        }
        let (&last, before) = sides.split_last()?;
        let mut names: Vec<String> = before.iter().map_while(|side| name(side)).collect();
        if names.is_empty() {
            let [right, left] = sides.as_slice() else { return None };
            return Some(MathValue::Relation(number(left)?, "=", number(right)?)).filter(|_| signs == ["="]);
        }
        let last = value(last)?;
        // `x = 2 + 3 = 5`
        for side in &before[names.len()..] {
            if !is_equal(&value(side)?, &last) {
                return None;
            }
        }
        names.sort();
        return Some(MathValue::Named(names, Box::new(last)));
    }
    if signs.iter().all(|sign| [">", "ge"].contains(sign)) {
        sides.reverse();
        signs.reverse();
    } else if !signs.iter().all(|sign| ["<", "le"].contains(sign)) {
        return None;
    }
    let is_strict: Vec<bool> = signs.iter().map(|sign| [">", "<"].contains(sign)).collect();
    let open = |is_strict| if is_strict { '(' } else { '[' };
    let close = |is_strict| if is_strict { ')' } else { ']' };
    let infinity = |sign| Quotient::symbol("\\infty").checked_mul(&Quotient::integer(sign));
    let (name, from, to, brackets) = match (sides.as_slice(), is_strict.as_slice()) {
        ([low, middle, high], [above, below]) => {
            (name(middle)?, number(low)?, number(high)?, (open(*above), close(*below)))
        }
        ([left, right], [is_strict]) => match (name(left), name(right)) {
            (Some(name), _) => (name, infinity(-1)?, number(right)?, ('(', close(*is_strict))),
            (None, Some(name)) => (name, number(left)?, infinity(1)?, (open(*is_strict), ')')),
            (None, None) => {
                let sign = if *is_strict { "<" } else { "le" };
                return Some(MathValue::Relation(number(left)?, sign, number(right)?));
            }
        },
        _ => return None,
    };
    let ends = vec![MathValue::Number(from, None), MathValue::Number(to, None)];
    Some(MathValue::Named(vec![name], Box::new(MathValue::Tuple(brackets.0, ends, brackets.1))))
}

/// The name that tokens are: a symbol, a word, `f(x)`, `(x, y)`, `\text{area}`.
fn name(tokens: &[Lexed]) -> Option<String> {
    let (mut depth, mut num_symbols) = (0, 0);
    for (at, lexed) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        let is_index = before.is_some_and(|before| before.is('_'))
            || (before.is_some_and(|before| before.is('{')) && at >= 2 && tokens[at - 2].is('_'));
        let is_symbol = match &lexed.token {
            MathToken::Word(word) => {
                // `xy` is a product.
                let is_label = word.len() != 2 || word.chars().any(|letter| letter.is_ascii_uppercase());
                is_label && (!expression::is_name(word) || expression::is_symbol(word))
            }
            MathToken::Command(name) => {
                num_symbols -= isize::from(matches!(name.as_str(), "angle" | "triangle"));
                expression::is_symbol(name) || matches!(name.as_str(), "ell" | "angle" | "triangle")
            }
            MathToken::Text(_) => {
                num_symbols -= 1;
                true
            }
            MathToken::Number(_) => is_index,
            MathToken::Symbol(symbol) => "()_{},".contains(*symbol),
        };
        if !is_symbol {
            return None;
        }
        let is_bracket = matches!(lexed.token, MathToken::Symbol(_));
        num_symbols += isize::from(depth == 0 && !is_bracket && !is_index);
        depth += lexed.step();
    }
    let begins = match tokens {
        [first, rest @ ..] if first.is('(') => rest.iter().any(|lexed| lexed.is(',')),
        [first, ..] => !matches!(first.token, MathToken::Symbol(_)),
        [] => false,
    };
    (begins && num_symbols <= 1 && tokens.len() <= 12).then(|| text_of(tokens))
}

/// A union, or a part of one.
fn side(tokens: &[Lexed], depth: usize) -> Option<MathValue> {
    let parts = split(tokens, |lexed| lexed.is_command("cup"))?;
    if let [_] = parts.as_slice() {
        return part(tokens, depth);
    }
    parts.into_iter().map(|(tokens, _)| part(tokens, depth)).collect::<Option<_>>().map(MathValue::Union)
}

fn part(tokens: &[Lexed], depth: usize) -> Option<MathValue> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    let inside = tokens.get(1..tokens.len() - 1).unwrap_or_default();
    // Whether the first bracket closes at the end.
    let is_closed = first.step() == 1 && last.step() == -1 && split(inside, |_| false).is_some();
    let entries = |tokens, is_end: fn(&Lexed) -> bool| -> Option<Vec<MathValue>> {
        let entry = |tokens| element(tokens, depth + 1).or_else(|| text(tokens));
        split(tokens, is_end)?.into_iter().map(|(tokens, _)| entry(tokens)).collect()
    };
    if depth > MAX_DEPTH {
        return None;
    }
    match (&first.token, &last.token) {
        (MathToken::Text(text), _) if tokens.len() == 1 && text.len() > 1 => {
            return list(&lex(text), depth + 1).filter(|_| text.len() <= MAX_BYTES);
        }
        (MathToken::Command(name), _) if tokens.len() == 1 && name == "emptyset" => {
            return Some(MathValue::Set(Vec::new()));
        }
        (MathToken::Command(open), MathToken::Command(close)) if is_closed && open == "{" && close == "}" => {
            return match list(inside, depth + 1).or_else(|| text(inside)) {
                None => Some(MathValue::Set(Vec::new())),
                Some(MathValue::List(values)) => Some(MathValue::Set(values)),
                Some(value) => Some(MathValue::Set(vec![value])),
            };
        }
        (MathToken::Command(open), MathToken::Command(close))
            if is_closed && let Some(kind) = open.strip_prefix("begin ") =>
        {
            let is_matrix = ["pmatrix", "bmatrix", "matrix", "smallmatrix"].contains(&kind);
            let mut rows = split(inside, |lexed| lexed.is_command("\\"))?;
            rows.pop_if(|(row, _)| row.is_empty());
            let rows = rows.into_iter().map(|(row, _)| entries(row, |lexed| lexed.is('&')));
            let is_matrix = is_matrix && close.strip_prefix("end ") == Some(kind);
            return if is_matrix { rows.collect::<Option<_>>().map(MathValue::Matrix) } else { None };
        }
        (open, close) if is_closed && split(inside, is_mark)?.len() > 1 => {
            let bracket = |token: &MathToken| match token {
                MathToken::Symbol(symbol @ ('(' | '[' | ')' | ']')) => Some(*symbol),
                MathToken::Command(name) if name == "langle" || name == "rangle" => Some('|'),
                _ => None,
            };
            let (open, close) = (bracket(open)?, bracket(close)?);
            return Some(MathValue::Tuple(open, entries(inside, is_mark)?, close));
        }
        _ => {}
    }
    number(tokens)
}

fn number(tokens: &[Lexed]) -> Option<MathValue> {
    let (mut tokens, mut unit) = unit::split(tokens);
    let without_dollar: Vec<Lexed>;
    if let Some(place) = tokens.iter().take(2).position(|lexed| lexed.is_command("$")) {
        without_dollar = [&tokens[..place], &tokens[place + 1..]].concat();
        tokens = &without_dollar;
        unit = unit.or_else(|| Some("$".to_owned()));
    }
    let word = |lexed: &Lexed| match &lexed.token {
        MathToken::Word(word) => Some(word.clone()),
        _ => None,
    };
    if let Some(words) = tokens.iter().map(word).collect::<Option<Vec<String>>>() {
        // Words are no products of letters; `xy` is.
        let is_product = |word: &String| {
            word.len() <= 3
                && word.bytes().all(|letter| letter.is_ascii_lowercase() && !b"aeiou".contains(&letter))
        };
        let is_symbol = match words.as_slice() {
            [word] => word.len() == 1 || is_product(word),
            words => words.iter().all(|word| word.len() == 1 && is_product(word)),
        };
        if !is_symbol && !words.iter().any(|word| expression::is_name(word)) {
            return None;
        }
    }
    let (values, degree) = expression::read(tokens)?;
    let unit = unit.or(degree);
    let mut values: Vec<MathValue> =
        values.into_iter().map(|value| MathValue::Number(value, unit.clone())).collect();
    if values.len() > 1 { Some(MathValue::List(values)) } else { values.pop() }
}
