//! Exact values of expressions: quotients of [`Polynomial`]s, with powers, roots and functions.

use super::polynomial::{Atom, Polynomial, Powers};
use crate::rational::Rational;

/// Largest exponent of a power that is multiplied out.
const MAX_POWER: u32 = 64;
/// Largest factor that is looked for in an integer under a root or logarithm; its square bounds primes.
const MAX_FACTOR: u64 = 100_000;
/// Largest number whose factorial or binomials are computed.
const MAX_COUNT: i128 = 128;

/// A quotient. The denominator is 1 whenever the quotient can be written so by dividing term by term.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quotient {
    numerator: Polynomial,
    denominator: Polynomial,
}

/// The prime factors of a positive rational with their exponents; `None` if one of them is too large to find.
fn factors(value: Rational) -> Option<Vec<(u64, i128)>> {
    let mut found = Vec::new();
    for (part, sign) in [(value.numerator(), 1), (value.denominator(), -1)] {
        let mut open = u64::try_from(part).ok().filter(|&open| open > 0)?;
        let mut factor = 2;
        while factor <= MAX_FACTOR && factor * factor <= open {
            let mut exponent = 0;
            while open.is_multiple_of(factor) {
                open /= factor;
                exponent += 1;
            }
            if exponent > 0 {
                found.push((factor, sign * exponent));
            }
            factor += if factor == 2 { 1 } else { 2 };
        }
        if open > MAX_FACTOR * MAX_FACTOR {
            return None;
        }
        if open > 1 {
            found.push((open, sign));
        }
    }
    Some(found)
}

impl Quotient {
    fn new(numerator: &Polynomial, denominator: &Polynomial) -> Option<Self> {
        let leading = denominator.leading()?;
        let one = Polynomial::constant(Rational::ONE);
        if let Some(inverse) = denominator.inverse() {
            return Some(Self { numerator: numerator.checked_mul(&inverse)?, denominator: one });
        }
        let scale = Rational::ONE.checked_div(leading)?;
        let (numerator, denominator) = (numerator.scaled(scale)?, denominator.scaled(scale)?);
        let ratio = numerator.leading().unwrap_or(Rational::ZERO);
        if numerator == denominator.scaled(ratio)? {
            return Some(Self::constant(ratio));
        }
        Some(Self { numerator, denominator })
    }

    fn whole(numerator: Polynomial) -> Self {
        Self { numerator, denominator: Polynomial::constant(Rational::ONE) }
    }

    /// A rational constant.
    pub fn constant(value: Rational) -> Self {
        Self::whole(Polynomial::constant(value))
    }

    /// An integer.
    pub fn integer(value: i128) -> Self {
        Self::constant(Rational::integer(value))
    }

    /// An atom.
    pub fn atom(atom: Atom) -> Self {
        Self::whole(Polynomial::term(Powers::from([(atom, Rational::ONE)]), Rational::ONE))
    }

    /// A symbol; the letter `i` is the imaginary unit.
    pub fn symbol(name: &str) -> Self {
        Self::atom(if name == "i" { Atom::Imaginary } else { Atom::Symbol(name.to_owned()) })
    }

    /// The value without a denominator.
    pub fn as_polynomial(&self) -> Option<&Polynomial> {
        (self.denominator.as_rational() == Some(Rational::ONE)).then_some(&self.numerator)
    }

    /// The value as numerator and denominator.
    pub fn parts(&self) -> (&Polynomial, &Polynomial) {
        (&self.numerator, &self.denominator)
    }

    /// The number it is, if it holds no atom.
    pub fn as_rational(&self) -> Option<Rational> {
        self.as_polynomial()?.as_rational()
    }

    /// The integer it is.
    pub fn as_integer(&self) -> Option<i128> {
        self.as_rational().filter(|value| value.denominator() == 1).map(Rational::numerator)
    }

    /// Number of coefficients and atoms.
    pub fn size(&self) -> usize {
        self.numerator.size() + self.denominator.size()
    }

    /// Whether it holds a symbol other than the constants `e` and `\pi`.
    pub fn has_variable(&self) -> bool {
        self.numerator.has_variable() || self.denominator.has_variable()
    }

    /// Whether two values are equal wherever both are defined, by cross-multiplication.
    pub fn is_equal(&self, other: &Self) -> bool {
        let products = || {
            let left = self.numerator.checked_mul(&other.denominator)?;
            Some(left == other.numerator.checked_mul(&self.denominator)?)
        };
        self == other || (self.denominator != other.denominator && products() == Some(true))
    }

    /// The rational factor by which another value must be multiplied to give this one; `None` if there is
    /// none.
    pub fn ratio(&self, other: &Self) -> Option<Rational> {
        self.checked_div(other)?.as_rational()
    }

    /// Sum.
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        if self.denominator == other.denominator {
            return Self::new(&self.numerator.checked_add(&other.numerator)?, &self.denominator);
        }
        let left = self.numerator.checked_mul(&other.denominator)?;
        let right = other.numerator.checked_mul(&self.denominator)?;
        Self::new(&left.checked_add(&right)?, &self.denominator.checked_mul(&other.denominator)?)
    }

    /// Difference.
    pub fn checked_sub(&self, other: &Self) -> Option<Self> {
        self.checked_add(&other.checked_neg()?)
    }

    /// Negation.
    pub fn checked_neg(&self) -> Option<Self> {
        self.checked_mul(&Self::integer(-1))
    }

    /// Product.
    pub fn checked_mul(&self, other: &Self) -> Option<Self> {
        let numerator = self.numerator.checked_mul(&other.numerator)?;
        Self::new(&numerator, &self.denominator.checked_mul(&other.denominator)?)
    }

    /// Quotient; `None` if `other` is 0.
    pub fn checked_div(&self, other: &Self) -> Option<Self> {
        let numerator = self.numerator.checked_mul(&other.denominator)?;
        Self::new(&numerator, &self.denominator.checked_mul(&other.numerator)?)
    }

    /// Power, with principal values. A sum in the exponent makes a product: `2^{n+1}` = `2·2^n`.
    pub fn checked_pow(&self, exponent: &Self) -> Option<Self> {
        if let Some(exponent) = exponent.as_rational() {
            return self.rational_pow(exponent);
        }
        if self.as_rational().is_some_and(Rational::is_zero) {
            return None;
        }
        let Some(sum) = exponent.as_polynomial() else { return self.opaque_pow(exponent, 1) };
        let mut power = Self::integer(1);
        for (powers, coefficient) in sum.terms() {
            let factor = if powers.is_empty() {
                self.rational_pow(coefficient)?
            } else {
                // a^(p m / q) = (a^(m / q))^p for an integer p
                let share = Rational::new(1, coefficient.denominator())?;
                let part = Self::whole(Polynomial::term(powers.clone(), share));
                self.opaque_pow(&part, coefficient.numerator())?
            };
            power = power.checked_mul(&factor)?;
        }
        Some(power)
    }

    /// `(self^exponent)^count`; a positive number goes by its prime factors: `4^n` = `(2^n)^2`.
    fn opaque_pow(&self, exponent: &Self, count: i128) -> Option<Self> {
        let primes = self.as_rational().and_then(factors);
        let bases = match primes {
            Some(primes) => {
                primes.iter().map(|&(prime, times)| (Self::integer(i128::from(prime)), times)).collect()
            }
            None => vec![(self.clone(), 1)],
        };
        bases.into_iter().try_fold(Self::integer(1), |power, (base, times)| {
            let atom = Self::atom(Atom::Power(Box::new(base), Box::new(exponent.clone())));
            power.checked_mul(&atom.integer_pow(times.checked_mul(count)?)?)
        })
    }

    fn integer_pow(&self, exponent: i128) -> Option<Self> {
        if let Some(value) = self.as_rational() {
            let is_defined = !value.is_zero() || exponent > 0;
            return Some(Self::constant(value.checked_pow(i32::try_from(exponent).ok()?)?))
                .filter(|_| is_defined);
        }
        let count = u32::try_from(exponent.checked_abs()?).ok().filter(|&count| count <= MAX_POWER)?;
        let base = if exponent < 0 { Self::integer(1).checked_div(self)? } else { self.clone() };
        (0..count).try_fold(Self::integer(1), |power, _| power.checked_mul(&base))
    }

    fn rational_pow(&self, exponent: Rational) -> Option<Self> {
        if exponent.denominator() == 1 {
            return self.integer_pow(exponent.numerator());
        }
        let is_negative = self.as_rational().is_some_and(|value| value.numerator() < 0);
        if is_negative && exponent.denominator() != 2 {
            return None;
        }
        self.root(exponent.denominator())?.integer_pow(exponent.numerator())
    }

    /// The principal root of a degree; the real root of a negative number if the degree is odd.
    pub fn root(&self, degree: i128) -> Option<Self> {
        let share = Rational::new(1, degree).filter(|_| (1..=64).contains(&degree))?;
        let (mut scale, mut root) = (Rational::ONE, Powers::new());
        if let Some(value) = self.as_rational() {
            if value.is_zero() || degree == 1 {
                return Some(self.clone());
            }
            if value.numerator() < 0 {
                let positive = Self::constant(value.checked_neg()?).root(degree)?;
                let sign = if degree == 2 { Self::symbol("i") } else { Self::integer(-1) };
                return positive.checked_mul(&sign).filter(|_| degree == 2 || degree % 2 == 1);
            }
            scale = value;
        } else {
            // Only a positive number may leave a root: sqrt(c z) = sqrt(c) sqrt(z).
            let (mut shared, mut common) = (0, 1_i128);
            for (_, coefficient) in self.numerator.terms() {
                shared = greatest_common_divisor(coefficient.numerator().checked_abs()?, shared);
                let divisor = greatest_common_divisor(coefficient.denominator(), common);
                common = (common / divisor).checked_mul(coefficient.denominator())?;
            }
            let content = Rational::new(shared, common)?;
            if factors(content).is_some() {
                scale = content;
            }
            let rest = self.checked_mul(&Self::constant(Rational::ONE.checked_div(scale)?))?;
            match rest.as_polynomial().and_then(Polynomial::as_term) {
                Some((powers, Rational::ONE)) if powers.keys().all(Atom::is_positive) => {
                    for (atom, exponent) in powers {
                        root.insert(atom.clone(), exponent.checked_mul(share)?);
                    }
                }
                Some((powers, Rational::ONE))
                    if powers.len() == 1 && powers.values().all(|&exponent| exponent == Rational::ONE) =>
                {
                    root.extend(powers.keys().map(|atom| (atom.clone(), share)));
                }
                _ => {
                    root.insert(Atom::Group(Box::new(rest)), share);
                }
            }
        }
        let mut value = Self::whole(Polynomial::term(root, Rational::ONE));
        for (prime, times) in factors(scale)? {
            // The whole part of the exponent leaves the root, either sign.
            let whole = Rational::integer(i128::from(prime))
                .checked_pow(i32::try_from(times.div_euclid(degree)).ok()?)?;
            let kept = Rational::new(times.rem_euclid(degree), degree)?;
            let powers =
                if kept.is_zero() { Powers::new() } else { Powers::from([(Atom::Prime(prime), kept)]) };
            value = value.checked_mul(&Self::whole(Polynomial::term(powers, whole)))?;
        }
        Some(value)
    }

    /// A function's value: computed for numbers if it is rational, otherwise an atom.
    pub fn call(name: &'static str, arguments: Vec<Self>) -> Option<Self> {
        let numbers: Vec<Option<Rational>> = arguments.iter().map(Self::as_rational).collect();
        let floor = |value: Rational| value.numerator().div_euclid(value.denominator());
        match (name, numbers.as_slice()) {
            ("ln", [Some(value)]) => {
                let primes = factors(*value)?;
                return primes.into_iter().try_fold(Self::integer(0), |sum, (prime, times)| {
                    let prime = Self::integer(i128::from(prime));
                    let part =
                        Self::atom(Atom::Call("ln", vec![prime])).checked_mul(&Self::integer(times))?;
                    sum.checked_add(&part)
                });
            }
            ("ln", [None]) if arguments.first() == Some(&Self::symbol("e")) => return Some(Self::integer(1)),
            ("abs", [Some(value)]) => {
                return Some(if value.numerator() < 0 {
                    arguments[0].checked_neg()?
                } else {
                    arguments[0].clone()
                });
            }
            ("floor", [Some(value)]) => return Some(Self::integer(floor(*value))),
            ("ceil", [Some(value)]) => return Some(Self::integer(-floor(value.checked_neg()?))),
            ("factorial", [Some(_)]) => {
                let count = arguments[0].as_integer().filter(|count| (0..=MAX_COUNT).contains(count))?;
                return (1..=count).try_fold(1_i128, i128::checked_mul).map(Self::integer);
            }
            ("binom", [Some(_), Some(_)]) => {
                let [n, k] = [arguments[0].as_integer()?, arguments[1].as_integer()?];
                if !(0..=MAX_COUNT).contains(&k) || n < k {
                    return None;
                }
                // Each product of i + 1 consecutive numbers is a multiple of i + 1.
                let step = |ways: i128, i| Some(ways.checked_mul(n - i)? / (i + 1));
                return (0..k).try_fold(1, step).map(Self::integer);
            }
            _ => {}
        }
        Some(Self::atom(Atom::Call(name, arguments)))
    }
}

fn greatest_common_divisor(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
