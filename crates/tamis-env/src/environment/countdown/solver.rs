//! Exhaustive search for an expression of some numbers that equals a target.

use std::collections::HashSet;

use super::CountdownOperator;
use crate::rational::Rational;

/// Whether some expression that uses each of the numbers exactly once has this value. Every pair of parts is
/// joined by every operator, on exact numbers. If `-` is among the operators, so are signs: `-2+3` counts. If
/// there is no solution, four numbers and four operators take less than a millisecond, five numbers a tenth
/// of a second and six some seconds. Without numbers there is no solution.
///
/// ```
/// use tamis_env::environment::countdown::{CountdownOperator::*, has_solution};
/// use tamis_env::rational::Rational;
/// let numbers = [3, 3, 8, 8].map(Rational::integer);
/// // 8 / (3 - 8 / 3)
/// assert!(has_solution(&numbers, Rational::integer(24), &[Add, Subtract, Multiply, Divide]));
/// assert!(!has_solution(&numbers, Rational::integer(24), &[Add, Subtract]));
/// ```
pub fn has_solution(numbers: &[Rational], target: Rational, operators: &[CountdownOperator]) -> bool {
    joins(numbers, target, operators).is_some()
}

/// An expression as in [`has_solution`], with parentheses around all of its parts.
pub(super) fn solve(numbers: &[u64], target: Rational, operators: &[CountdownOperator]) -> Option<String> {
    let mut parts: Vec<(Rational, String)> =
        numbers.iter().map(|&number| (Rational::integer(number.into()), number.to_string())).collect();
    let values: Vec<Rational> = parts.iter().map(|(value, _)| *value).collect();
    // The last join comes first; parts of one value may stand for each other.
    for Join { left, right, operator, is_turned } in joins(&values, target, operators)?.into_iter().rev() {
        parts.sort_by_key(|(value, _)| *value);
        let (later, earlier) = (parts.remove(right), parts[left].clone());
        let (one, other) = if is_turned { (later, earlier) } else { (earlier, later) };
        parts[left] = (operator.apply(one.0, other.0)?, format!("({}{operator}{})", one.1, other.1));
    }
    let (value, text) = parts.pop()?;
    if value != target {
        return Some(format!("-{text}"));
    }
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    Some(inner.map(str::to_owned).unwrap_or(text))
}

/// Two of the sorted parts that become one.
struct Join {
    left: usize,
    right: usize,
    operator: CountdownOperator,
    /// Whether the right part comes first.
    is_turned: bool,
}

/// The joins of a solution, the last one first.
fn joins(numbers: &[Rational], target: Rational, operators: &[CountdownOperator]) -> Option<Vec<Join>> {
    // A sign on any part of an expression can be moved to its front, so two targets take the place of signs.
    let is_signed = operators.contains(&CountdownOperator::Subtract);
    let is_target = |value: Rational| value == target || is_signed && value.checked_neg() == Some(target);
    join_all(numbers.to_vec(), operators, &is_target, &mut HashSet::new())
}

/// Joins two of the parts in every way and continues with the result. `seen` holds sorted lists of parts
/// without a solution.
fn join_all(
    mut parts: Vec<Rational>,
    operators: &[CountdownOperator],
    is_target: &impl Fn(Rational) -> bool,
    seen: &mut HashSet<Vec<Rational>>,
) -> Option<Vec<Join>> {
    match parts[..] {
        [] => return None,
        [value] => return is_target(value).then(Vec::new),
        _ => {}
    }
    parts.sort_unstable();
    // Pairs are joined faster than they are looked up.
    if parts.len() > 2 && !seen.insert(parts.clone()) {
        return None;
    }
    for right in 1..parts.len() {
        for left in 0..right {
            for &operator in operators {
                use CountdownOperator::{Add, Multiply};
                let (one, other) = (parts[left], parts[right]);
                let orders = [
                    Some((one, other, false)),
                    (!matches!(operator, Add | Multiply)).then_some((other, one, true)),
                ];
                for (one, other, is_turned) in orders.into_iter().flatten() {
                    let Some(value) = operator.apply(one, other) else { continue };
                    let mut rest = parts.clone();
                    rest.remove(right);
                    rest[left] = value;
                    if let Some(mut joins) = join_all(rest, operators, is_target, seen) {
                        joins.push(Join { left, right, operator, is_turned });
                        return Some(joins);
                    }
                }
            }
        }
    }
    None
}
