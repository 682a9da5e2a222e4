//! Cuts an answer into tokens. What changes no value (spacing, `\left`, `$`, sizes) goes, other spellings of
//! one sign become one token, and digits that separators group in threes become one number; nothing else is
//! ever joined.

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MathToken {
    /// ASCII digits with at most one point: `12`, `.5`.
    Number(String),
    /// ASCII letters outside of `\text{}`.
    Word(String),
    /// A command by its name (`frac`, `{` for `\{`, `\` for a row's end), or a sign that stands for one.
    Command(String),
    /// The inside of `\text{}`, `\mathrm{}` and their like.
    Text(String),
    /// Any other character.
    Symbol(char),
}

/// A token, and whether white space precedes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lexed {
    /// The token.
    pub token: MathToken,
    /// Whether white space precedes it.
    pub is_spaced: bool,
}

impl Lexed {
    /// Whether it is this character.
    pub fn is(&self, symbol: char) -> bool {
        self.token == MathToken::Symbol(symbol)
    }

    /// Whether it is this command.
    pub fn is_command(&self, name: &str) -> bool {
        matches!(&self.token, MathToken::Command(command) if command == name)
    }

    /// +1 if it opens a bracket, -1 if it closes one.
    pub fn step(&self) -> isize {
        match &self.token {
            MathToken::Symbol('(' | '[' | '{') => 1,
            MathToken::Symbol(')' | ']' | '}') => -1,
            MathToken::Command(name) => match name.as_str() {
                "{" | "langle" | "lfloor" | "lceil" => 1,
                "}" | "rangle" | "rfloor" | "rceil" => -1,
                name if name.starts_with("begin ") => 1,
                name if name.starts_with("end ") => -1,
                _ => 0,
            },
            _ => 0,
        }
    }
}

/// Commands that change no value.
const IGNORED: [&str; 15] = [
    "left",
    "right",
    "big",
    "Big",
    "bigg",
    "Bigg",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "middle",
    "displaystyle",
    "limits",
    "rm",
    "textstyle",
];
/// Commands that are white space.
const SPACES: [&str; 8] = [",", ";", ":", " ", ">", "quad", "qquad", "enspace"];
/// Commands whose argument is text.
const TEXTS: [&str; 9] =
    ["text", "mbox", "textbf", "textit", "textrm", "mathrm", "mathbf", "operatorname", "textnormal"];
/// Other spellings of a command; a result of one character that is no letter is that character.
const SPELLINGS: [(&str, &str); 29] = [
    ("dfrac", "frac"),
    ("tfrac", "frac"),
    ("cfrac", "frac"),
    ("dbinom", "binom"),
    ("tbinom", "binom"),
    ("cdot", "*"),
    ("times", "*"),
    ("ast", "*"),
    ("div", "/"),
    ("lbrace", "{"),
    ("rbrace", "}"),
    ("lbrack", "["),
    ("rbrack", "]"),
    ("lvert", "|"),
    ("rvert", "|"),
    ("vert", "|"),
    ("%", "%"),
    ("degree", "circ"),
    ("leq", "le"),
    ("leqslant", "le"),
    ("geq", "ge"),
    ("geqslant", "ge"),
    ("neq", "ne"),
    ("lt", "<"),
    ("gt", ">"),
    ("varnothing", "emptyset"),
    ("colon", ":"),
    ("infin", "infty"),
    ("rightarrow", "to"),
];

/// A character beyond ASCII as the LaTeX that it stands for.
fn spelled(letter: char) -> Option<&'static str> {
    Some(match letter {
        '−' | '–' => "-",
        '×' | '·' | '⋅' => "*",
        '÷' => "/",
        'π' => r"\pi ",
        '√' => "sqrt ",
        '∞' => r"\infty ",
        '≤' => r"\le ",
        '≥' => r"\ge ",
        '≠' => r"\ne ",
        '∪' => r"\cup ",
        '∈' => r"\in ",
        '±' => r"\pm ",
        '°' => r"\circ ",
        '²' => "^2",
        '³' => "^3",
        'θ' => r"\theta ",
        '∅' => r"\emptyset ",
        _ => return None,
    })
}

/// The tokens of a text.
pub fn lex(text: &str) -> Vec<Lexed> {
    let mut lexer = Lexer { tokens: Vec::new(), is_spaced: false, brackets: Vec::new() };
    let mut rest = text;
    while !rest.is_empty() {
        rest = lexer.step(rest);
    }
    lexer.tokens
}

struct Lexer {
    tokens: Vec<Lexed>,
    is_spaced: bool,
    /// For each open bracket, whether commas inside it part entries.
    brackets: Vec<bool>,
}

impl Lexer {
    fn push(&mut self, token: MathToken) {
        self.tokens.push(Lexed { token, is_spaced: std::mem::take(&mut self.is_spaced) });
    }

    /// Takes a token, or characters that form none, from the beginning of a text that is not empty. Returns
    /// the rest.
    fn step<'t>(&mut self, text: &'t str) -> &'t str {
        let Some(letter) = text.chars().next() else { return "" };
        let rest = &text[letter.len_utf8()..];
        match letter {
            '\\' => return self.command(rest),
            '$' => {}
            _ if letter.is_whitespace() || letter == '~' => self.is_spaced = true,
            '0'..='9' => return self.number(text),
            '.' if rest.starts_with(|next: char| next.is_ascii_digit()) => return self.number(text),
            _ if letter.is_ascii_alphabetic() => {
                let (word, rest) = cut(text, |letter| letter.is_ascii_alphabetic());
                let is_percent = word.eq_ignore_ascii_case("percent");
                self.push(if is_percent { MathToken::Symbol('%') } else { MathToken::Word(word.to_owned()) });
                return rest;
            }
            '*' if rest.starts_with('*') => {
                self.push(MathToken::Symbol('^'));
                return &rest[1..];
            }
            '<' | '>' | '!' if rest.starts_with('=') => {
                let name = match letter {
                    '<' => "le",
                    '>' => "ge",
                    _ => "ne",
                };
                self.push(MathToken::Command(name.to_owned()));
                return &rest[1..];
            }
            _ => match spelled(letter) {
                Some(spelling) => {
                    let is_spaced = self.is_spaced;
                    self.tokens.extend(lex(spelling));
                    if let (true, Some(last)) = (is_spaced, self.tokens.last_mut()) {
                        last.is_spaced = true;
                    }
                    self.is_spaced = false;
                }
                None => self.symbol(letter),
            },
        }
        rest
    }

    fn symbol(&mut self, symbol: char) {
        match symbol {
            '(' | '[' => self.brackets.push(true),
            '{' => self.brackets.push(false),
            ')' | ']' | '}' => {
                self.brackets.pop();
            }
            _ => {}
        }
        self.push(MathToken::Symbol(symbol));
    }

    fn command<'t>(&mut self, text: &'t str) -> &'t str {
        let (word, rest) = cut(text, |letter| letter.is_ascii_alphabetic());
        let (name, rest) = if word.is_empty() {
            text.split_at(text.chars().next().map_or(0, char::len_utf8))
        } else {
            (word, rest)
        };
        if name == "!" {
            self.is_spaced = false;
            return rest.trim_start();
        }
        if SPACES.contains(&name) {
            self.is_spaced = true;
        } else if IGNORED.contains(&name) {
            // `\right.` closes nothing.
            return rest.strip_prefix('.').filter(|_| matches!(name, "left" | "right")).unwrap_or(rest);
        } else if let Some((inside, rest)) = group(rest).filter(|_| TEXTS.contains(&name)) {
            let inside = inside.replace("\\ ", " ").replace('~', " ");
            self.push(match inside.trim() {
                "percent" | "\\%" | "%" => MathToken::Symbol('%'),
                inside if name == "operatorname" => MathToken::Word(inside.to_owned()),
                inside => MathToken::Text(inside.to_owned()),
            });
            return rest;
        } else if let Some((inside, rest)) = group(rest).filter(|_| matches!(name, "begin" | "end")) {
            self.push(MathToken::Command(format!("{name} {inside}")));
            return rest;
        } else {
            let name = SPELLINGS.iter().find(|(other, _)| *other == name).map_or(name, |(_, name)| *name);
            match name {
                "{" => self.brackets.push(true),
                "}" => {
                    self.brackets.pop();
                }
                _ => {}
            }
            let mut letters = name.chars();
            match (letters.next(), letters.next()) {
                (Some(symbol @ ('*' | '/' | '[' | ']' | '|' | '%' | '<' | '>' | ':')), None) => {
                    self.symbol(symbol);
                }
                _ => self.push(MathToken::Command(name.to_owned())),
            }
        }
        rest
    }

    /// A number from the beginning of a text, with the groups of three digits that follow it.
    fn number<'t>(&mut self, text: &'t str) -> &'t str {
        let (whole, mut rest) = cut(text, |letter| letter.is_ascii_digit());
        let mut digits = whole.to_owned();
        let separators: [&[&str]; 3] = [&[","], &["{,}", ",\\!"], &[" ", "\\,", "\\;", "\\ ", "~"]];
        for (kind, separators) in separators.into_iter().enumerate() {
            // `1,2,345` are three entries.
            let is_entry = matches!(self.tokens.as_slice(), [.., before, comma] if comma.is(',') && !self.is_spaced
                && matches!(before.token, MathToken::Number(_)));
            let parts_entries = kind == 0 && (is_entry || self.brackets.last() == Some(&true));
            let is_first = (1..=3).contains(&whole.len()) && !whole.starts_with('0');
            if let Some((groups, after)) = groups(rest, separators).filter(|_| is_first && !parts_entries) {
                // A fraction behind a space makes a mixed number.
                let next = after.trim_start();
                if kind == 2 && (next.starts_with('/') || next.starts_with("\\div")) {
                    continue;
                }
                digits.push_str(&groups);
                rest = after;
                break;
            }
        }
        if let Some(fraction) = rest.strip_prefix('.') {
            let (fraction, after) = cut(fraction, |letter| letter.is_ascii_digit());
            if !fraction.is_empty() {
                digits = format!("{digits}.{fraction}");
                rest = after;
            }
        }
        self.push(MathToken::Number(digits));
        rest
    }
}

/// Groups of exactly three digits, each behind one of the separators, and what follows them; `None` if there
/// is none, or a group of other length among them.
fn groups<'t>(text: &'t str, separators: &[&str]) -> Option<(String, &'t str)> {
    let (mut found, mut rest) = (String::new(), text);
    loop {
        let after = separators.iter().find_map(|separator| rest.strip_prefix(separator));
        let after = after.map(|after| if separators.contains(&",") { after } else { after.trim_start() });
        let Some((digits, after)) = after.map(|after| cut(after, |letter| letter.is_ascii_digit())) else {
            break;
        };
        if digits.is_empty() {
            break;
        }
        if digits.len() != 3 {
            return None;
        }
        found.push_str(digits);
        rest = after;
    }
    (!found.is_empty()).then_some((found, rest))
}

/// The letters that a text begins with, and the rest.
fn cut(text: &str, is_meant: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|letter| !is_meant(letter)).unwrap_or(text.len()))
}

/// The inside of the braces that a text begins with, and what follows them.
fn group(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start().strip_prefix('{')?;
    let mut depth = 1;
    for (at, byte) in text.bytes().enumerate() {
        depth += match byte {
            b'{' => 1,
            b'}' => -1,
            _ => 0,
        };
        if depth == 0 {
            return Some((&text[..at], &text[at + 1..]));
        }
    }
    None
}
