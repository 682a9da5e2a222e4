//! Whether numbers make a target at all, by trying everything.

use std::collections::HashSet;

use super::CountdownOperator;
use crate::rational::Rational;

/// Whether some expression that uses each of the numbers exactly once has this value: every pair of parts is joined
/// by every operator, on exact numbers. Where `-` is among the operators, so are signs: `-2+3` counts.
///
/// Where there is none, four numbers and four operators take less than a millisecond, five a tenth of a second and
/// six some seconds. Without numbers there is none.
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
    // A sign on any part of an expression can be moved to its front, so two targets take the place of signs.
    let is_signed = operators.contains(&CountdownOperator::Subtract);
    let is_target = |value: Rational| value == target || is_signed && value.checked_neg() == Some(target);
    solves(numbers.to_vec(), operators, &is_target, &mut HashSet::new())
}

/// Joins two of the parts in every way, and goes on with the rest. `seen` holds sorted lists of parts that lead
/// nowhere.
fn solves(
    mut parts: Vec<Rational>,
    operators: &[CountdownOperator],
    is_target: &impl Fn(Rational) -> bool,
    seen: &mut HashSet<Vec<Rational>>,
) -> bool {
    match parts[..] {
        [] => return false,
        [value] => return is_target(value),
        _ => {}
    }
    parts.sort_unstable();
    // Pairs are joined faster than they are looked up.
    if parts.len() > 2 && !seen.insert(parts.clone()) {
        return false;
    }
    for right in 1..parts.len() {
        for left in 0..right {
            for &operator in operators {
                use CountdownOperator::{Add, Multiply};
                let (one, other) = (parts[left], parts[right]);
                let orders =
                    [Some((one, other)), (!matches!(operator, Add | Multiply)).then_some((other, one))];
                for (one, other) in orders.into_iter().flatten() {
                    let Some(value) = operator.apply(one, other) else { continue };
                    let mut rest = parts.clone();
                    rest.remove(right);
                    rest[left] = value;
                    if solves(rest, operators, is_target, seen) {
                        return true;
                    }
                }
            }
        }
    }
    false
}
