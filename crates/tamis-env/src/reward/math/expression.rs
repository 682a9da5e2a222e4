//! Reads the tokens of one expression into its value.
//!
//! ```text
//! sum      = ["+" | "-" | "\pm" | "\mp"] product { ("+" | "-" | "\pm" | "\mp") product }
//! product  = factor { ("*" | "/") ["-"] factor | factor that begins with no digit }
//! factor   = atom { "^" exponent | "!" | "%" | degree }
//! atom     = number | integer fraction (mixed) | number "_" base | letter ["_" index] | constant
//!          | "\frac" argument argument | "\binom" argument argument | "\sqrt" ["[" sum "]"] argument
//!          | "sqrt" ("(" sum ")" | "{" sum "}" | atom) | function ["_" argument] ["^" exponent] operand
//!          | "(" sum ")" | "{" sum "}" | "|" sum "|" | "\lfloor" sum "\rfloor" | "\lceil" sum "\rceil"
//! argument = "{" sum "}" | digit | letter | atom that begins with a command
//! exponent = "{" sum "}" | "(" sum ")" | ["-"] number | letter | atom that begins with a command
//! operand  = "(" sum ")" | "{" sum "}" | factors without a function among them
//! ```
//!
//! Letters side by side are a product of up to three symbols; a longer run is a word and no mathematics.

use super::lexer::{Lexed, MathToken};
use super::quotient::Quotient;
use crate::rational::Rational;

/// Deepest nesting.
const MAX_DEPTH: usize = 24;

/// Commands and words that are symbols.
const SYMBOLS: [&str; 33] = [
    "pi",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "vartheta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "sigma",
    "tau",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
];
/// Functions of one argument, and what their exponent -1 makes of them.
const FUNCTIONS: [(&str, &str); 20] = [
    ("sin", "arcsin"),
    ("cos", "arccos"),
    ("tan", "arctan"),
    ("cot", "arccot"),
    ("sec", "arcsec"),
    ("csc", "arccsc"),
    ("sinh", "arsinh"),
    ("cosh", "arcosh"),
    ("tanh", "artanh"),
    ("arcsin", ""),
    ("arccos", ""),
    ("arctan", ""),
    ("arccot", ""),
    ("ln", ""),
    ("log", ""),
    ("lg", ""),
    ("exp", ""),
    ("abs", ""),
    ("floor", ""),
    ("ceil", ""),
];

/// Whether a word names a symbol or a function.
pub fn is_name(word: &str) -> bool {
    is_symbol(word) || function(word).is_some() || matches!(word, "sqrt" | "infty" | "infinity")
}

/// Whether a word or command names a symbol.
pub fn is_symbol(word: &str) -> bool {
    SYMBOLS.contains(&word)
}

fn function(word: &str) -> Option<(&'static str, &'static str)> {
    FUNCTIONS.iter().find(|(name, _)| *name == word).copied()
}

/// The values of an expression: two if it holds `\pm`. `None` if it is no expression, or beyond the bounds.
///
/// The unit is `°` if it holds a degree sign outside of a function.
pub fn read(tokens: &[Lexed]) -> Option<(Vec<Quotient>, Option<String>)> {
    if let Some(value) = infinity(tokens) {
        return Some((vec![value], None));
    }
    let mut reader = Reader {
        tokens,
        at: 0,
        skipped: 0,
        depth: 0,
        calls: 0,
        bars: 0,
        sign: 1,
        num_signs: 0,
        is_degree: false,
    };
    let mut values = vec![reader.whole()?];
    if reader.num_signs > 1 {
        return None;
    }
    let unit = reader.is_degree.then(|| "°".to_owned());
    if reader.num_signs == 1 {
        let mut other = Reader { at: 0, skipped: 0, sign: -1, ..reader };
        values.push(other.whole()?);
    }
    Some((values, unit))
}

/// `\infty` with or without a sign. It is no number that anything may be computed with.
fn infinity(tokens: &[Lexed]) -> Option<Quotient> {
    let (sign, name) = match tokens {
        [name] => (1, name),
        [sign, name] if sign.is('+') || sign.is('-') => (if sign.is('-') { -1 } else { 1 }, name),
        _ => return None,
    };
    let is_infinity = matches!(&name.token, MathToken::Command(name) | MathToken::Word(name) if matches!(name.as_str(), "infty" | "infinity" | "inf"));
    is_infinity.then(|| Quotient::symbol("\\infty").checked_mul(&Quotient::integer(sign))).flatten()
}

struct Reader<'t> {
    tokens: &'t [Lexed],
    at: usize,
    /// Characters that are taken from the current token.
    skipped: usize,
    depth: usize,
    /// Functions around the current place.
    calls: usize,
    /// Open `|` around the current place.
    bars: usize,
    /// Sign that `\pm` stands for.
    sign: i128,
    num_signs: usize,
    is_degree: bool,
}

impl<'t> Reader<'t> {
    fn whole(&mut self) -> Option<Quotient> {
        let value = self.sum()?;
        (self.at == self.tokens.len()).then_some(value)
    }

    fn peek(&self) -> Option<&'t MathToken> {
        Some(&self.tokens.get(self.at)?.token)
    }

    fn before(&self) -> Option<&'t MathToken> {
        Some(&self.tokens.get(self.at.checked_sub(1)?)?.token)
    }

    fn advance(&mut self) {
        self.at += 1;
        self.skipped = 0;
    }

    fn is_next(&self, symbol: char) -> bool {
        self.peek() == Some(&MathToken::Symbol(symbol))
    }

    fn take(&mut self, symbol: char) -> bool {
        let is_there = self.is_next(symbol);
        if is_there {
            self.advance();
        }
        is_there
    }

    fn take_command(&mut self, name: &str) -> bool {
        let is_there = self.tokens.get(self.at).is_some_and(|lexed| lexed.is_command(name));
        if is_there {
            self.advance();
        }
        is_there
    }

    /// The sign of a summand; `None` if there is none.
    fn take_sign(&mut self) -> Option<i128> {
        let sign = match self.peek()? {
            MathToken::Symbol('+') => 1,
            MathToken::Symbol('-') => -1,
            MathToken::Command(name) if name == "pm" => self.sign,
            MathToken::Command(name) if name == "mp" => -self.sign,
            _ => return None,
        };
        self.num_signs += usize::from(!self.is_next('+') && !self.is_next('-'));
        self.advance();
        Some(sign)
    }

    fn sum(&mut self) -> Option<Quotient> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let mut total = Quotient::integer(0);
        let mut sign = self.take_sign().or(Some(1));
        while let Some(factor) = sign {
            total = total.checked_add(&self.product()?.checked_mul(&Quotient::integer(factor))?)?;
            sign = self.take_sign();
        }
        self.depth -= 1;
        Some(total)
    }

    fn product(&mut self) -> Option<Quotient> {
        let mut total = self.signed(true)?;
        loop {
            if self.take('*') {
                total = total.checked_mul(&self.signed(true)?)?;
            } else if self.take('/') {
                total = total.checked_div(&self.signed(false)?)?;
            } else if self.begins_factor() {
                total = total.checked_mul(&self.factor()?)?;
            } else {
                return Some(total);
            }
        }
    }

    /// Whether a factor follows without an operator. A number never does: what is `2 3` or `x2`?
    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(MathToken::Symbol('|')) => self.bars == 0,
            // `2{3}` is written 23.
            Some(MathToken::Symbol('{')) => {
                !matches!(self.tokens.get(self.at + 1), Some(Lexed { token: MathToken::Number(_), .. }))
            }
            Some(MathToken::Symbol(symbol)) => *symbol == '(',
            Some(MathToken::Word(word)) => self.skipped > 0 || word.len() <= 3 || is_name(word),
            Some(MathToken::Text(text)) => text.len() == 1,
            Some(MathToken::Command(name)) => {
                is_name(name)
                    || matches!(name.as_str(), "frac" | "binom" | "lfloor" | "lceil" | "mathbb" | "ell")
            }
            Some(MathToken::Number(_)) | None => false,
        }
    }

    /// A factor with a sign, or a mixed number if there may be one.
    fn signed(&mut self, may_be_mixed: bool) -> Option<Quotient> {
        let is_negative = self.take('-');
        let value = if may_be_mixed && self.begins_mixed() { self.mixed()? } else { self.factor()? };
        if is_negative { value.checked_neg() } else { Some(value) }
    }

    /// An integer before a proper fraction of integers (`1\frac{1}{2}`, `1 1/2`), which is their sum, or
    /// before another `\frac`, which is their product.
    fn mixed(&mut self) -> Option<Quotient> {
        let number = |lexed: &Lexed| match &lexed.token {
            MathToken::Number(digits) => Rational::decimal(digits),
            _ => None,
        };
        let is_proper = |part: Rational| part.numerator() > 0 && part.numerator() < part.denominator();
        let tokens = &self.tokens[self.at..];
        let whole = number(tokens.first()?)?;
        let value = if tokens.get(1)?.is_command("frac") {
            self.advance();
            let fraction = self.atom()?;
            match fraction.as_rational().filter(|&fraction| is_proper(fraction)) {
                Some(fraction) => Quotient::constant(whole.checked_add(fraction)?),
                None => Quotient::constant(whole).checked_mul(&fraction)?,
            }
        } else {
            let fraction = number(tokens.get(1)?)?.checked_div(number(tokens.get(3)?)?)?;
            self.at += 4;
            Quotient::constant(whole.checked_add(fraction).filter(|_| is_proper(fraction))?)
        };
        (!self.is_next('^') && !self.is_next('!')).then_some(value)
    }

    fn begins_mixed(&self) -> bool {
        let is_integer =
            |lexed: &Lexed| matches!(&lexed.token, MathToken::Number(digits) if !digits.contains('.'));
        self.skipped == 0
            && match &self.tokens[self.at..] {
                [whole, frac, ..] if is_integer(whole) && frac.is_command("frac") => true,
                [whole, above, stroke, below, ..] => {
                    [whole, above, below].into_iter().all(is_integer) && above.is_spaced && stroke.is('/')
                }
                _ => false,
            }
    }

    fn factor(&mut self) -> Option<Quotient> {
        let mut value = self.atom()?;
        let mut is_power = false;
        loop {
            if self.degree() {
                if self.calls > 0 {
                    let turn = Quotient::symbol("\\pi").checked_div(&Quotient::integer(180))?;
                    value = value.checked_mul(&turn)?;
                } else {
                    self.is_degree = true;
                    let is_scale = matches!(self.peek(), Some(MathToken::Word(name) | MathToken::Text(name)) if name == "C" || name == "F");
                    self.at += usize::from(is_scale);
                }
            } else if self.is_next('^') && !is_power {
                self.advance();
                value = value.checked_pow(&self.exponent()?)?;
                is_power = true;
            } else if self.take('!') {
                // `5!!` is another function, which is not read.
                if self.is_next('!') {
                    return None;
                }
                value = Quotient::call("factorial", vec![value])?;
            } else if self.take('%') {
                value = value.checked_div(&Quotient::integer(100))?;
            } else {
                return Some(value).filter(|_| !self.is_next('^') && !self.is_next('_'));
            }
        }
    }

    fn degree(&mut self) -> bool {
        let rest = self.tokens.get(self.at..).unwrap_or_default();
        let taken = match rest {
            [sign, circle, ..] if sign.is('^') && circle.is_command("circ") => 2,
            [sign, open, circle, close, ..]
                if sign.is('^') && open.is('{') && circle.is_command("circ") && close.is('}') =>
            {
                4
            }
            [circle, after @ ..] if circle.is_command("circ") => {
                let is_name = |token: &MathToken| matches!(token, MathToken::Word(_) | MathToken::Command(_));
                let is_next = after.first().is_some_and(|next| is_name(&next.token) || next.is('('));
                // `f \circ g` is no product.
                usize::from(!(is_next && self.before().is_some_and(is_name)))
            }
            _ => 0,
        };
        self.at += taken;
        taken > 0
    }

    fn atom(&mut self) -> Option<Quotient> {
        match self.peek()? {
            MathToken::Number(digits) => {
                let digits = &digits[self.skipped..];
                let value = Quotient::constant(Rational::decimal(digits)?);
                self.advance();
                if self.take('_') {
                    let base = self.argument()?.as_integer()?;
                    return Some(Quotient::symbol(&format!("{digits}_{base}")));
                }
                Some(value)
            }
            MathToken::Word(word) if self.skipped == 0 && is_name(word) => {
                self.advance();
                self.named(word, true)
            }
            MathToken::Word(word) if self.skipped > 0 || word.len() <= 3 => {
                let letter = word.get(self.skipped..=self.skipped)?;
                self.skipped += 1;
                if self.skipped == word.len() {
                    self.advance();
                }
                self.indexed(letter)
            }
            MathToken::Text(letter) if letter.len() == 1 && letter.as_bytes()[0].is_ascii_alphabetic() => {
                self.advance();
                self.indexed(letter)
            }
            MathToken::Symbol('(') => self.closed(')'),
            MathToken::Symbol('{') => self.closed('}'),
            MathToken::Symbol('|') => {
                self.bars += 1;
                let value = self.closed('|')?;
                self.bars -= 1;
                Quotient::call("abs", vec![value])
            }
            MathToken::Command(name) => {
                self.advance();
                self.named(name, false)
            }
            _ => None,
        }
    }

    fn indexed(&mut self, name: &str) -> Option<Quotient> {
        if !self.take('_') {
            return Some(Quotient::symbol(name));
        }
        let start = self.at;
        if self.is_next('{') {
            let depths = self.tokens[start..].iter().scan(0, |depth, lexed| {
                *depth += lexed.step();
                Some(*depth)
            });
            self.at += depths.take_while(|&depth| depth > 0).count() + 1;
            self.skipped = 0;
            let inside = self.tokens.get(start + 1..self.at - 1)?;
            return Some(Quotient::symbol(&format!("{name}_{}", super::parser::text_of(inside))));
        }
        let index = match self.peek()? {
            MathToken::Number(text) | MathToken::Word(text) => text.get(self.skipped..=self.skipped)?,
            _ => return None,
        };
        self.character();
        Some(Quotient::symbol(&format!("{name}_{index}")))
    }

    fn character(&mut self) {
        let length = match self.peek() {
            Some(MathToken::Number(text) | MathToken::Word(text)) => text.len(),
            _ => 0,
        };
        self.skipped += 1;
        if self.skipped >= length {
            self.advance();
        }
    }

    /// The value of a word or command, read after its name.
    fn named(&mut self, name: &str, is_word: bool) -> Option<Quotient> {
        match name {
            "frac" => {
                let numerator = self.argument()?;
                numerator.checked_div(&self.argument()?)
            }
            "binom" => {
                let above = self.argument()?;
                let below = self.argument()?;
                Quotient::call("binom", vec![above, below])
            }
            "sqrt" => {
                let mut degree = 2;
                if self.is_next('[') && !is_word {
                    degree = self.closed(']')?.as_integer()?;
                }
                let is_bare = is_word && !self.is_next('(') && !self.is_next('{');
                let radicand = match (is_word, is_bare) {
                    (false, _) => self.argument()?,
                    (true, false) => self.operand()?,
                    // `√3i` is √3 times i, and `√x^2` is ambiguous.
                    (true, true) => self.nested().filter(|_| !self.is_next('^'))?,
                };
                radicand.root(degree)
            }
            "lfloor" => self.rounded("floor", "rfloor"),
            "lceil" => self.rounded("ceil", "rceil"),
            "ell" => self.indexed("\\ell"),
            "mathbb" => {
                let is_braced = self.take('{');
                let Some(MathToken::Word(name)) = self.peek() else { return None };
                self.advance();
                (!is_braced || self.take('}')).then(|| Quotient::symbol(&format!("\\mathbb {name}")))
            }
            name if is_symbol(name) => self.indexed(&format!("\\{name}")),
            name => self.call(function(name)?),
        }
    }

    fn rounded(&mut self, name: &'static str, closing: &str) -> Option<Quotient> {
        let value = self.sum()?;
        self.take_command(closing).then_some(())?;
        Quotient::call(name, vec![value])
    }

    fn call(&mut self, (mut name, inverse): (&'static str, &'static str)) -> Option<Quotient> {
        let mut base = None;
        if name == "log" && self.take('_') {
            base = Some(self.argument()?);
        }
        let mut power = None;
        if self.take('^') {
            power = Some(self.exponent()?);
            if power.as_ref()?.as_integer() == Some(-1) {
                (name, power) = (Some(inverse).filter(|inverse| !inverse.is_empty())?, None);
            }
        }
        self.calls += 1;
        let argument = self.operand()?;
        self.calls -= 1;
        let value = match (name, base) {
            ("exp", _) => Quotient::symbol("e").checked_pow(&argument)?,
            ("log", Some(base)) => {
                Quotient::call("ln", vec![argument])?.checked_div(&Quotient::call("ln", vec![base])?)?
            }
            (name, _) => Quotient::call(name, vec![argument])?,
        };
        match power {
            Some(power) => value.checked_pow(&power),
            None => Some(value),
        }
    }

    /// What a function is applied to.
    fn operand(&mut self) -> Option<Quotient> {
        match self.peek()? {
            MathToken::Symbol('(') => return self.closed(')'),
            MathToken::Symbol('{') => return self.closed('}'),
            _ => {}
        }
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let mut value = self.factor()?;
        let is_function = |token: &MathToken| matches!(token, MathToken::Word(name) | MathToken::Command(name) if function(name).is_some());
        while self.begins_factor() && !self.peek().is_some_and(is_function) {
            value = value.checked_mul(&self.factor()?)?;
        }
        self.depth -= 1;
        Some(value)
    }

    /// A sum between the bracket that is next and its closing one.
    fn closed(&mut self, closing: char) -> Option<Quotient> {
        self.advance();
        let bars = if closing == '|' { self.bars } else { std::mem::take(&mut self.bars) };
        let value = self.sum()?;
        self.bars = bars;
        self.take(closing).then_some(value)
    }

    fn argument(&mut self) -> Option<Quotient> {
        match self.peek()? {
            MathToken::Symbol('{') => self.closed('}'),
            MathToken::Number(text) => {
                let digit = text.get(self.skipped..=self.skipped)?.parse().ok()?;
                self.character();
                Some(Quotient::integer(digit))
            }
            MathToken::Word(text) => {
                let letter = text.get(self.skipped..=self.skipped)?;
                self.character();
                Some(Quotient::symbol(letter))
            }
            MathToken::Command(_) | MathToken::Text(_) => self.nested(),
            MathToken::Symbol(_) => None,
        }
    }

    fn nested(&mut self) -> Option<Quotient> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let value = self.atom()?;
        self.depth -= 1;
        Some(value)
    }

    fn exponent(&mut self) -> Option<Quotient> {
        match self.peek()? {
            MathToken::Symbol('(') => self.closed(')'),
            MathToken::Symbol('-') => {
                self.advance();
                let MathToken::Number(digits) = self.peek()? else { return None };
                let value = Rational::decimal(&digits[self.skipped..])?;
                self.advance();
                Quotient::constant(value).checked_neg()
            }
            MathToken::Number(digits) => {
                let value = Rational::decimal(&digits[self.skipped..])?;
                self.advance();
                Some(Quotient::constant(value))
            }
            _ => self.argument(),
        }
    }
}
