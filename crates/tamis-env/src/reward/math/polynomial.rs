//! Exact values of mathematical answers: sums of rational multiples of square roots and powers of symbols.
//!
//! Everything is bounded (number of terms, degree, size of radicands), so that no answer costs more than a
//! fixed amount of work; beyond the bounds, and wherever 128-bit integers overflow, an operation is `None`.

use std::collections::BTreeMap;

use crate::rational::Rational;

/// Most terms of a sum.
const MAX_TERMS: usize = 24;
/// Largest exponent of a symbol, either sign.
const MAX_DEGREE: i32 = 64;
/// Largest integer whose square factors are looked for (by trial division up to its square root).
const MAX_RADICAND: i128 = 10_000_000_000;

/// `√radicand` times powers of symbols.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Monomial {
    /// Square-free, at least 1.
    radicand: i128,
    /// Exponents other than 0 by symbol (`x`, `\pi`, ...).
    powers: BTreeMap<String, i32>,
}

/// A sum of rational coefficients times monomials, in canonical form: two values are equal exactly where they
/// are the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Polynomial {
    terms: BTreeMap<Monomial, Rational>,
}

/// `value = square² · rest` with `rest` square-free; `None` where `value` is not in `1..=MAX_RADICAND`.
fn square_free(value: i128) -> Option<(i128, i128)> {
    if !(1..=MAX_RADICAND).contains(&value) {
        return None;
    }
    let (mut square, mut rest, mut open, mut factor) = (1, 1, value as u64, 2u64);
    while factor * factor <= open {
        let mut exponent = 0;
        while open.is_multiple_of(factor) {
            open /= factor;
            exponent += 1;
        }
        for _ in 0..exponent / 2 {
            square *= i128::from(factor);
        }
        if exponent % 2 == 1 {
            rest *= i128::from(factor);
        }
        factor += 1;
    }
    Some((square, rest * i128::from(open)))
}

impl Polynomial {
    /// A rational constant.
    pub fn constant(value: Rational) -> Self {
        Self::term(Monomial { radicand: 1, powers: BTreeMap::new() }, value)
    }

    /// A symbol.
    pub fn symbol(name: &str) -> Self {
        Self::term(Monomial { radicand: 1, powers: BTreeMap::from([(name.to_owned(), 1)]) }, Rational::ONE)
    }

    fn term(monomial: Monomial, coefficient: Rational) -> Self {
        let mut terms = BTreeMap::new();
        if !coefficient.is_zero() {
            terms.insert(monomial, coefficient);
        }
        Self { terms }
    }

    /// The number it is, where it holds no root and no symbol.
    pub fn as_rational(&self) -> Option<Rational> {
        match self.terms.first_key_value() {
            None => Some(Rational::ZERO),
            Some((monomial, &value)) => {
                let is_plain = self.terms.len() == 1 && monomial.radicand == 1 && monomial.powers.is_empty();
                is_plain.then_some(value)
            }
        }
    }

    /// Sum.
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        let mut terms = self.terms.clone();
        for (monomial, &coefficient) in &other.terms {
            let sum = terms.get(monomial).copied().unwrap_or(Rational::ZERO).checked_add(coefficient)?;
            if sum.is_zero() {
                terms.remove(monomial);
            } else {
                terms.insert(monomial.clone(), sum);
            }
        }
        (terms.len() <= MAX_TERMS).then_some(Self { terms })
    }

    /// Negation.
    pub fn checked_neg(&self) -> Option<Self> {
        self.checked_mul(&Self::constant(Rational::integer(-1)))
    }

    /// Product.
    pub fn checked_mul(&self, other: &Self) -> Option<Self> {
        let mut product = Self { terms: BTreeMap::new() };
        for (left, &a) in &self.terms {
            for (right, &b) in &other.terms {
                let (square, radicand) = square_free(left.radicand.checked_mul(right.radicand)?)?;
                let mut powers = left.powers.clone();
                for (symbol, power) in &right.powers {
                    let sum = powers.get(symbol).copied().unwrap_or(0) + power;
                    if sum.abs() > MAX_DEGREE {
                        return None;
                    }
                    if sum == 0 {
                        powers.remove(symbol);
                    } else {
                        powers.insert(symbol.clone(), sum);
                    }
                }
                let coefficient = a.checked_mul(b)?.checked_mul(Rational::integer(square))?;
                product = product.checked_add(&Self::term(Monomial { radicand, powers }, coefficient))?;
            }
        }
        Some(product)
    }

    /// Quotient; `None` where `other` is 0 or a sum of several terms.
    pub fn checked_div(&self, other: &Self) -> Option<Self> {
        if other.terms.len() != 1 {
            return None;
        }
        let (monomial, &coefficient) = other.terms.first_key_value()?;
        let powers = monomial.powers.iter().map(|(symbol, power)| (symbol.clone(), -power)).collect();
        // 1 / (c √r) = √r / (c r)
        let inverse =
            Rational::ONE.checked_div(coefficient.checked_mul(Rational::integer(monomial.radicand))?)?;
        self.checked_mul(&Self::term(Monomial { radicand: monomial.radicand, powers }, inverse))
    }

    /// Power: an integer exponent, or a half of one where the base is a number of at least 0.
    pub fn checked_pow(&self, exponent: Rational) -> Option<Self> {
        if exponent.denominator() == 2 {
            return self.root(2)?.checked_pow(Rational::integer(exponent.numerator()));
        }
        let count = i32::try_from(exponent.numerator()).ok().filter(|_| exponent.denominator() == 1)?;
        if let Some(value) = self.as_rational() {
            return Some(Self::constant(value.checked_pow(count)?));
        }
        if count.abs() > 16 {
            return None;
        }
        let base = if count < 0 { Self::constant(Rational::ONE).checked_div(self)? } else { self.clone() };
        (0..count.abs()).try_fold(Self::constant(Rational::ONE), |product, _| product.checked_mul(&base))
    }

    /// The `degree`-th root of a number: any square root of one that is at least 0, other roots where they
    /// are rational.
    pub fn root(&self, degree: u32) -> Option<Self> {
        let value = self.as_rational()?;
        if value.is_zero() {
            return (degree > 0).then(|| self.clone());
        }
        if degree == 2 {
            // √(a/b) = √(ab) / b
            let (square, radicand) = square_free(value.numerator().checked_mul(value.denominator())?)?;
            let coefficient = Rational::new(square, value.denominator())?;
            return Some(Self::term(Monomial { radicand, powers: BTreeMap::new() }, coefficient));
        }
        let numerator = integer_root(value.numerator(), degree)?;
        Some(Self::constant(Rational::new(numerator, integer_root(value.denominator(), degree)?)?))
    }
}

/// The exact integer root, negative for odd degrees of negative values.
fn integer_root(value: i128, degree: u32) -> Option<i128> {
    if degree == 0 || degree > 127 || (value < 0 && degree.is_multiple_of(2)) {
        return None;
    }
    let guess = (value.unsigned_abs() as f64).powf(1.0 / f64::from(degree)).round() as i128;
    (guess.saturating_sub(1).max(0)..=guess.saturating_add(1))
        .map(|root| if value < 0 { -root } else { root })
        .find(|root| root.checked_pow(degree) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(numerator: i128, denominator: i128) -> Polynomial {
        Polynomial::constant(Rational::new(numerator, denominator).unwrap())
    }

    #[test]
    fn roots() {
        let two = number(2, 1).root(2).unwrap();
        assert_eq!(number(8, 1).root(2), two.checked_mul(&number(2, 1)));
        assert_eq!(two.checked_mul(&two), Some(number(2, 1)));
        assert_eq!(number(1, 1).checked_div(&two), two.checked_div(&number(2, 1)), "1/√2 = √2/2");
        assert_eq!(number(9, 4).root(2), Some(number(3, 2)));
        assert_eq!(number(-27, 8).root(3), Some(number(-3, 2)));
        assert_eq!(number(-1, 1).root(2), None);
        assert_eq!(number(7, 1).root(3), None);
        assert_eq!(number(8, 1).checked_pow(Rational::new(1, 2).unwrap()), number(8, 1).root(2));
    }

    #[test]
    fn bounds_end_the_work() {
        let x = Polynomial::symbol("x");
        let sum = (0..20)
            .try_fold(number(1, 1), |sum, i| sum.checked_add(&Polynomial::symbol(&format!("x{i}"))))
            .unwrap();
        assert_eq!(sum.checked_mul(&sum), None);
        assert_eq!(x.checked_pow(Rational::integer(16)).unwrap().checked_pow(Rational::integer(16)), None);
        assert_eq!(number(10_000_000_019, 1).root(2), None);
        assert_eq!(x.checked_div(&number(0, 1)), None);
    }

    proptest! {
        #[test]
        fn ring_laws(a in -9i128..10, b in -9i128..10, r in 0i128..30, s in 0i128..30) {
            let x = number(a, 1).checked_add(&number(r, 1).root(2).unwrap()).unwrap();
            let y = Polynomial::symbol("y").checked_mul(&number(b, 1)).unwrap().checked_add(&number(s, 1).root(2).unwrap()).unwrap();
            let z = Polynomial::symbol("z");
            prop_assert_eq!(x.checked_mul(&y), y.checked_mul(&x));
            let distributed = x.checked_mul(&y).unwrap().checked_add(&x.checked_mul(&z).unwrap());
            prop_assert_eq!(x.checked_mul(&y.checked_add(&z).unwrap()), distributed);
            prop_assert_eq!(x.checked_add(&x.checked_neg().unwrap()), Some(number(0, 1)));
        }
    }
}
