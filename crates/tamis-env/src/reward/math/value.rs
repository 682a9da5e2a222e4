//! What an answer is, and when two answers are equal.

use super::quotient::Quotient;

/// The value of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum MathValue {
    /// A number or an expression in symbols, with its unit.
    Number(Quotient, Option<String>),
    /// A tuple or interval: opening bracket, entries in order, closing bracket.
    Tuple(char, Vec<MathValue>, char),
    /// The rows of a matrix or vector.
    Matrix(Vec<Vec<MathValue>>),
    /// A set: order and repetition do not matter.
    Set(Vec<MathValue>),
    /// Values with separators between them: order does not matter.
    List(Vec<MathValue>),
    /// A union of sets.
    Union(Vec<MathValue>),
    /// A value under names: `x = 5`, `x = y = 5`, `f(x) = x^2`, `x \in S`; `1 < x < 2` is the interval.
    Named(Vec<String>, Box<MathValue>),
    /// An equation (`=`) or inequality (`<`, `le`) between expressions.
    Relation(Quotient, &'static str, Quotient),
    /// Anything else: its tokens, with spaces between them.
    Text(String),
}

/// Whether two answers are equal. A name, and a unit, count only if both have one: `x = 5` is `5`.
pub fn is_equal(left: &MathValue, right: &MathValue) -> bool {
    use MathValue::{Named, Relation};
    match (left, right) {
        (Named(..) | Relation(..), Named(..) | Relation(..)) => is_same(left, right),
        (Named(_, value), bare) | (bare, Named(_, value)) => is_same(value, bare),
        _ => is_same(left, right),
    }
}

/// As [`is_equal`], names included.
fn is_same(left: &MathValue, right: &MathValue) -> bool {
    use MathValue::{List, Matrix, Named, Number, Relation, Set, Text, Tuple, Union};
    match (left, right) {
        (Number(left, unit), Number(right, other)) => {
            (unit.is_none() || other.is_none() || unit == other) && left.is_equal(right)
        }
        (Tuple(open, left, close), Tuple(opens, right, closes)) => {
            (open, close) == (opens, closes) && are_same(left, right)
        }
        (Matrix(left), Matrix(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| are_same(left, right))
        }
        (Set(left), Set(right)) | (Union(left), Union(right)) => {
            let is_within = |some: &[MathValue], others: &[MathValue]| {
                some.iter().all(|value| others.iter().any(|other| is_same(value, other)))
            };
            is_within(left, right) && is_within(right, left)
        }
        (Set(left) | List(left), Set(right) | List(right)) => {
            let mut open: Vec<&MathValue> = right.iter().collect();
            left.len() == right.len()
                && left.iter().all(|value| {
                    let place = open.iter().position(|other| is_same(value, other));
                    place.map(|place| open.swap_remove(place)).is_some()
                })
        }
        (Named(names, left_value), Named(others, right_value))
            if names == others && is_same(left_value, right_value) =>
        {
            true
        }
        (Named(..) | Relation(..), Named(..) | Relation(..)) => is_same_relation(left, right) == Some(true),
        (Text(left), Text(right)) => left == right,
        _ => false,
    }
}

fn are_same(left: &[MathValue], right: &[MathValue]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| is_same(left, right))
}

/// Whether one relation is the other times a factor: `2x = 4 + 2y` is `x - y = 2`. An equation that is still
/// to be solved is not its solution: `2x + 1 = 7`, which may be the question itself, is not `x = 3`.
fn is_same_relation(left: &MathValue, right: &MathValue) -> Option<bool> {
    let is_solved = |value: &MathValue| match value {
        MathValue::Named(_, value) => {
            matches!(&**value, MathValue::Number(value, _) if !value.has_variable())
        }
        _ => false,
    };
    if is_solved(left) || is_solved(right) {
        return Some(false);
    }
    let difference = |value: &MathValue| match value {
        MathValue::Named(names, value) => match (names.as_slice(), &**value) {
            ([name], MathValue::Number(value, _)) => Some(("=", Quotient::symbol(name).checked_sub(value)?)),
            _ => None,
        },
        MathValue::Relation(left, sign, right) => Some((*sign, left.checked_sub(right)?)),
        _ => None,
    };
    if let (MathValue::Relation(a, sign, b), MathValue::Relation(c, other, d)) = (left, right)
        && (sign, a, b) == (other, c, d)
    {
        return Some(true);
    }
    let ((sign, left), (other, right)) = (difference(left)?, difference(right)?);
    // Between numbers every false relation is a multiple of another.
    if left.as_rational().is_some() || right.as_rational().is_some() {
        return Some(false);
    }
    let ratio = left.ratio(&right)?;
    Some(sign == other && !ratio.is_zero() && (sign == "=" || ratio.numerator() > 0))
}
