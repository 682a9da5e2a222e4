//! Exact numbers: decimals of any length as canonical text, and rationals over 128-bit integers.

/// The canonical text of a decimal number; `None` if `text` is not a number.
///
/// Surrounding white space, one leading sign, a leading `$` and commas between digits are accepted; exponents
/// are not. Two texts are the same number if and only if their canonical texts are equal, at any length:
/// `.5`, `0.50` and `+0.5` all give `0.5`; `-0` gives `0`; `5.` gives `5`.
///
/// ```
/// use tamis_env::rational::canonical_decimal;
/// assert_eq!(canonical_decimal(".5"), canonical_decimal("0.50"));
/// assert_eq!(canonical_decimal("$1,200.00").as_deref(), Some("1200"));
/// assert_eq!(canonical_decimal("1,2 apples"), None);
/// ```
pub fn canonical_decimal(text: &str) -> Option<String> {
    let text = text.trim();
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let rest = rest.strip_prefix('$').unwrap_or(rest);
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    if whole.is_empty() && fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut digits = String::with_capacity(whole.len());
    let mut previous_is_digit = false;
    for byte in whole.bytes() {
        match byte {
            b'0'..=b'9' => digits.push(char::from(byte)),
            b',' if previous_is_digit => {}
            _ => return None,
        }
        previous_is_digit = byte != b',';
    }
    if !previous_is_digit && !whole.is_empty() {
        return None;
    }
    let whole = digits.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    let mut canonical = String::with_capacity(whole.len() + fraction.len() + 3);
    if negative && !(whole.is_empty() && fraction.is_empty()) {
        canonical.push('-');
    }
    canonical.push_str(if whole.is_empty() { "0" } else { whole });
    if !fraction.is_empty() {
        canonical.push('.');
        canonical.push_str(fraction);
    }
    Some(canonical)
}

/// A rational number in lowest terms with a positive denominator. Every operation is exact or `None`: on
/// overflow of 128 bits and on division by zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rational {
    numerator: i128,
    denominator: i128,
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Rational {
    /// 0.
    pub const ZERO: Self = Self { numerator: 0, denominator: 1 };
    /// 1.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// `numerator / denominator` in lowest terms; `None` for a zero denominator or on overflow.
    pub fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let divisor = greatest_common_divisor(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok()?;
        let (mut numerator, mut denominator) = (numerator / divisor, denominator / divisor);
        if denominator < 0 {
            numerator = numerator.checked_neg()?;
            denominator = denominator.checked_neg()?;
        }
        Some(Self { numerator, denominator })
    }

    /// An integer.
    pub const fn integer(value: i128) -> Self {
        Self { numerator: value, denominator: 1 }
    }

    /// The value of an unsigned decimal of ASCII digits with at most one point (`12`, `.5`, `12.`).
    pub fn decimal(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let mut numerator: i128 = 0;
        for byte in whole.bytes().chain(fraction.bytes()) {
            if !byte.is_ascii_digit() {
                return None;
            }
            numerator = numerator.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
        }
        Self::new(numerator, 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)
    }

    /// Numerator in lowest terms; carries the sign.
    pub const fn numerator(self) -> i128 {
        self.numerator
    }

    /// Denominator in lowest terms, at least 1.
    pub const fn denominator(self) -> i128 {
        self.denominator
    }

    /// Whether it is 0.
    pub const fn is_zero(self) -> bool {
        self.numerator == 0
    }

    /// Sum.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Self::new(
            self.numerator
                .checked_mul(other.denominator)?
                .checked_add(other.numerator.checked_mul(self.denominator)?)?,
            self.denominator.checked_mul(other.denominator)?,
        )
    }

    /// Negation.
    pub fn checked_neg(self) -> Option<Self> {
        Some(Self { numerator: self.numerator.checked_neg()?, denominator: self.denominator })
    }

    /// Difference.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.checked_add(other.checked_neg()?)
    }

    /// Product.
    pub fn checked_mul(self, other: Self) -> Option<Self> {
        let left = Self::new(self.numerator, other.denominator)?;
        let right = Self::new(other.numerator, self.denominator)?;
        Self::new(
            left.numerator.checked_mul(right.numerator)?,
            left.denominator.checked_mul(right.denominator)?,
        )
    }

    /// Quotient; `None` if `other` is 0.
    pub fn checked_div(self, other: Self) -> Option<Self> {
        self.checked_mul(Self::new(other.denominator, other.numerator)?)
    }

    /// Integer power; `None` for 0 to a negative power and on overflow.
    pub fn checked_pow(self, exponent: i32) -> Option<Self> {
        let base = if exponent < 0 { Self::ONE.checked_div(self)? } else { self };
        let mut result = Self::ONE;
        for _ in 0..exponent.unsigned_abs().min(256) {
            result = result.checked_mul(base)?;
        }
        (exponent.unsigned_abs() <= 256).then_some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals() {
        for (text, canonical) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("007", "7"),
            ("+3.10", "3.1"),
            ("-.5", "-0.5"),
            ("5.", "5"),
            (" 12 ", "12"),
            ("-$3", "-3"),
            ("1,000,000", "1000000"),
        ] {
            assert_eq!(canonical_decimal(text).as_deref(), Some(canonical), "{text}");
        }
        for text in ["", ".", "-", "$", "--1", "1.2.3", ",1", "1,", "1,,2", "1e3", "١", "1 2", "- 5", "5-"] {
            assert_eq!(canonical_decimal(text), None, "{text}");
        }
        let long = "9".repeat(100_000);
        assert_eq!(canonical_decimal(&long), Some(long));
    }

    #[test]
    fn rationals() {
        let third = Rational::new(2, -6).unwrap();
        assert_eq!((third.numerator(), third.denominator()), (-1, 3));
        assert_eq!(Rational::decimal("0.25"), Rational::new(1, 4));
        assert_eq!(Rational::new(2, 3).unwrap().checked_pow(-2), Rational::new(9, 4));
        assert_eq!(Rational::ZERO.checked_pow(-1), None);
        assert_eq!(Rational::ONE.checked_div(Rational::ZERO), None);
        assert_eq!(Rational::integer(i128::MAX).checked_add(Rational::ONE), None);
        assert_eq!(Rational::integer(i128::MIN).checked_neg(), None);
        assert_eq!(Rational::new(i128::MIN, -1), None);
        assert_eq!(Rational::new(i128::MIN, i128::MIN), None, "the divisor itself does not fit");
        assert_eq!(Rational::integer(10).checked_pow(i32::MIN), None);
    }

    proptest! {
        #[test]
        fn field_laws(a in -99i128..100, b in 1i128..100, c in -99i128..100, d in 1i128..100) {
            let (x, y) = (Rational::new(a, b).unwrap(), Rational::new(c, d).unwrap());
            prop_assert_eq!(x.checked_add(y), y.checked_add(x));
            prop_assert_eq!(x.checked_sub(y).unwrap().checked_add(y), Some(x));
            prop_assert_eq!(x.checked_mul(y), y.checked_mul(x));
            if !y.is_zero() {
                prop_assert_eq!(x.checked_div(y).unwrap().checked_mul(y), Some(x));
            }
        }

        #[test]
        fn any_text_is_read_without_panic(text in "\\PC*") {
            let _ = canonical_decimal(&text);
            let _ = Rational::decimal(&text);
        }
    }
}
