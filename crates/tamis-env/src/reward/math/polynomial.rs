//! Sums of rational multiples of powers of atoms, in canonical form: what is structurally equal is equal.
//!
//! Every rule holds for all complex values of the symbols (principal values of roots and powers), zeros of
//! denominators aside. Everything is bounded (terms, size, degree), so that no operation costs more than a
//! fixed amount of work; beyond the bounds, and when 128-bit integers overflow, an operation is `None`.

use std::collections::BTreeMap;

use super::quotient::Quotient;
use crate::rational::Rational;

const MAX_TERMS: usize = 24;
/// Largest number of coefficients and atoms, nested ones included.
const MAX_SIZE: usize = 200;
/// Largest exponent of an atom, either sign.
const MAX_DEGREE: i128 = 64;
/// Largest denominator of an exponent.
const MAX_ROOT: i128 = 64;

/// What terms are made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Atom {
    /// A prime under a root: its exponent lies between 0 and 1.
    Prime(u64),
    /// The imaginary unit: its exponent lies between 0 and 2.
    Imaginary,
    /// A letter, a constant, or digits in a base.
    Symbol(String),
    /// A power whose exponent is no number.
    Power(Box<Quotient>, Box<Quotient>),
    /// A sum or product under a root: its exponent lies between 0 and 1.
    Group(Box<Quotient>),
    /// A function of arguments.
    Call(&'static str, Vec<Quotient>),
}

impl Atom {
    fn size(&self) -> usize {
        1 + match self {
            Self::Prime(_) | Self::Imaginary | Self::Symbol(_) => 0,
            Self::Power(base, exponent) => base.size() + exponent.size(),
            Self::Group(inside) => inside.size(),
            Self::Call(_, arguments) => arguments.iter().map(Quotient::size).sum(),
        }
    }

    fn has_variable(&self) -> bool {
        match self {
            Self::Prime(_) | Self::Imaginary => false,
            Self::Symbol(name) => name != "e" && name != "\\pi",
            Self::Power(base, exponent) => base.has_variable() || exponent.has_variable(),
            Self::Group(inside) => inside.has_variable(),
            Self::Call(_, arguments) => arguments.iter().any(Quotient::has_variable),
        }
    }

    /// Whether the atom is a positive number, so that a root of its power is the power of its root.
    pub fn is_positive(&self) -> bool {
        match self {
            Self::Prime(_) => true,
            Self::Symbol(name) => name == "\\pi",
            _ => false,
        }
    }
}

/// Exponents other than 0 by atom.
pub type Powers = BTreeMap<Atom, Rational>;

/// A sum of coefficients times powers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Polynomial {
    terms: BTreeMap<Powers, Rational>,
}

/// A term that grows factor by factor.
struct Term {
    coefficient: Rational,
    powers: Powers,
    /// Sums that are no longer under a root, with their exponents.
    opened: Vec<(Polynomial, i32)>,
}

impl Term {
    fn push(&mut self, atom: &Atom, exponent: Rational) -> Option<()> {
        let before = self.powers.remove(atom).unwrap_or(Rational::ZERO);
        let mut exponent = before.checked_add(exponent)?;
        let (numerator, denominator) = (exponent.numerator(), exponent.denominator());
        if denominator > MAX_ROOT || numerator.checked_abs()? > MAX_DEGREE * denominator {
            return None;
        }
        let whole = numerator.div_euclid(denominator);
        match atom {
            Atom::Prime(prime) => {
                let factor = Rational::integer(i128::from(*prime)).checked_pow(i32::try_from(whole).ok()?)?;
                self.coefficient = self.coefficient.checked_mul(factor)?;
                exponent = exponent.checked_sub(Rational::integer(whole))?;
            }
            Atom::Imaginary => {
                let turns = whole.div_euclid(2);
                if turns % 2 != 0 {
                    self.coefficient = self.coefficient.checked_neg()?;
                }
                exponent = exponent.checked_sub(Rational::integer(2 * turns))?;
            }
            Atom::Group(inside) if whole > 0 => {
                if let Some(inside) = inside.as_polynomial() {
                    self.opened.push((inside.clone(), i32::try_from(whole).ok()?));
                    exponent = exponent.checked_sub(Rational::integer(whole))?;
                }
            }
            _ => {}
        }
        if !exponent.is_zero() {
            self.powers.insert(atom.clone(), exponent);
        }
        Some(())
    }

    fn close(self) -> Option<Polynomial> {
        let mut value = Polynomial::term(self.powers, self.coefficient);
        for (inside, count) in self.opened {
            for _ in 0..count {
                value = value.checked_mul(&inside)?;
            }
        }
        Some(value)
    }
}

impl Polynomial {
    /// One term.
    pub fn term(powers: Powers, coefficient: Rational) -> Self {
        let mut terms = BTreeMap::new();
        if !coefficient.is_zero() {
            terms.insert(powers, coefficient);
        }
        Self { terms }
    }

    /// A rational constant.
    pub fn constant(value: Rational) -> Self {
        Self::term(Powers::new(), value)
    }

    /// The terms, in order.
    pub fn terms(&self) -> impl Iterator<Item = (&Powers, Rational)> {
        self.terms.iter().map(|(powers, &coefficient)| (powers, coefficient))
    }

    /// Its only term.
    pub fn as_term(&self) -> Option<(&Powers, Rational)> {
        self.terms().next().filter(|_| self.terms.len() == 1)
    }

    /// The first coefficient in the order of terms; `None` for 0.
    pub fn leading(&self) -> Option<Rational> {
        self.terms().next().map(|(_, coefficient)| coefficient)
    }

    /// The number it is, if it holds no atom.
    pub fn as_rational(&self) -> Option<Rational> {
        match self.as_term() {
            None => self.terms.is_empty().then_some(Rational::ZERO),
            Some((powers, value)) => powers.is_empty().then_some(value),
        }
    }

    /// Number of coefficients and atoms, nested ones included.
    pub fn size(&self) -> usize {
        self.terms.keys().map(|powers| 1 + powers.keys().map(Atom::size).sum::<usize>()).sum()
    }

    /// Whether it holds a symbol other than the constants `e` and `\pi`.
    pub fn has_variable(&self) -> bool {
        self.terms.keys().flat_map(Powers::keys).any(Atom::has_variable)
    }

    fn bounded(self) -> Option<Self> {
        (self.terms.len() <= MAX_TERMS && self.size() <= MAX_SIZE).then_some(self)
    }

    fn add(&mut self, other: &Self) -> Option<()> {
        for (powers, coefficient) in other.terms() {
            let sum = self.terms.remove(powers).unwrap_or(Rational::ZERO).checked_add(coefficient)?;
            if !sum.is_zero() {
                self.terms.insert(powers.clone(), sum);
            }
        }
        Some(())
    }

    /// Sum.
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        sum.add(other)?;
        sum.bounded()
    }

    /// Product with a number.
    pub fn scaled(&self, factor: Rational) -> Option<Self> {
        self.checked_mul(&Self::constant(factor))
    }

    /// Product.
    pub fn checked_mul(&self, other: &Self) -> Option<Self> {
        let mut product = Self { terms: BTreeMap::new() };
        for (left, a) in self.terms() {
            for (right, b) in other.terms() {
                let mut term =
                    Term { coefficient: a.checked_mul(b)?, powers: left.clone(), opened: Vec::new() };
                right.iter().try_for_each(|(atom, &exponent)| term.push(atom, exponent))?;
                product.add(&term.close()?)?;
            }
        }
        product.bounded()
    }

    /// 1 over a single term without sums under roots (which stay in the denominator).
    pub fn inverse(&self) -> Option<Self> {
        let (powers, coefficient) = self.as_term()?;
        let coefficient = Rational::ONE.checked_div(coefficient)?;
        let mut term = Term { coefficient, powers: Powers::new(), opened: Vec::new() };
        for (atom, exponent) in powers {
            if matches!(atom, Atom::Group(_)) {
                return None;
            }
            term.push(atom, exponent.checked_neg()?)?;
        }
        term.close()
    }
}
