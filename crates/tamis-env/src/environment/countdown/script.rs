//! The answers of a script to countdown tasks, which a policy imitates in its warm start. It writes the
//! numbers in their order, with an operator between each two (`3*5-2`). If `+` and `-` are among the
//! operators, a `-` may precede the first number. A right answer is such a chain that reaches the target, or
//! the solver's expression if no chain does.

use tamis_core::random::Key;

use super::solver::solve;
use super::{CountdownOperator, CountdownRow};
use crate::rational::Rational;
use crate::task::expression::value;

fn num_chains(num_numbers: usize, operators: &[CountdownOperator]) -> u64 {
    let is_signed =
        [CountdownOperator::Add, CountdownOperator::Subtract].iter().all(|sign| operators.contains(sign));
    (operators.len() as u64).pow(num_numbers.saturating_sub(1) as u32) * if is_signed { 2 } else { 1 }
}

/// The chain with this index; chains without a leading sign come first.
fn chain(numbers: &[u64], operators: &[CountdownOperator], mut place: u64) -> String {
    let mut text = String::new();
    for (i, number) in numbers.iter().enumerate().rev() {
        text.insert_str(0, &number.to_string());
        if i > 0 {
            let base = operators.len() as u64;
            text.insert_str(0, operators[(place % base) as usize].as_str());
            place /= base;
        }
    }
    if place > 0 { format!("-{text}") } else { text }
}

/// An answer that reaches the target; `None` if these operators cannot.
pub(super) fn solution(row: &CountdownRow, operators: &[CountdownOperator]) -> Option<String> {
    let target = Rational::integer(row.target().into());
    (0..num_chains(row.numbers().len(), operators))
        .map(|place| chain(row.numbers(), operators, place))
        .find(|chain| value(chain) == Some(target))
        .or_else(|| solve(row.numbers(), target, operators))
}

/// A random chain; with probability `short_prob` of only the first numbers.
pub(super) fn guess(
    row: &CountdownRow,
    operators: &[CountdownOperator],
    short_prob: f64,
    draw: Key,
) -> String {
    let num_numbers = row.numbers().len();
    let is_short = num_numbers > 1 && draw.uniform(2) < short_prob;
    let num_used = if is_short { 1 + draw.below(3, num_numbers as u64 - 1) as usize } else { num_numbers };
    let place = draw.below(4, num_chains(num_used, operators));
    chain(&row.numbers()[..num_used], operators, place)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use tamis_core::random::Purpose;

    use super::super::CountdownOperator::{Add, Divide, Multiply, Subtract};
    use super::*;

    const ALL: [CountdownOperator; 4] = [Add, Subtract, Multiply, Divide];

    fn row(target: i64, numbers: &[u64]) -> CountdownRow {
        CountdownRow::new(target, numbers.to_vec()).expect("a row")
    }

    #[test]
    fn chains_are_counted() {
        let of = |numbers: &[u64], operators: &[CountdownOperator]| -> Vec<String> {
            (0..num_chains(numbers.len(), operators)).map(|place| chain(numbers, operators, place)).collect()
        };
        assert_eq!(of(&[3, 12], &[Add, Subtract]), ["3+12", "3-12", "-3+12", "-3-12"]);
        assert_eq!(of(&[3, 5], &[Add, Multiply]), ["3+5", "3*5"]);
        assert_eq!(of(&[7], &[Subtract]), ["7"]);
        assert_eq!(of(&[1, 2, 3], &ALL).into_iter().collect::<HashSet<_>>().len(), 32);
    }

    #[test]
    fn solutions() {
        for (target, numbers, operators, expected) in [
            (4, &[3, 5, 2][..], &[Add, Subtract][..], Some("-3+5+2")),
            (13, &[3, 5, 2], &ALL, Some("3+5*2")),
            // No chain makes it.
            (16, &[3, 5, 2], &ALL, Some("2*(3+5)")),
            (24, &[3, 3, 8, 8], &ALL, Some("8/(3-(8/3))")),
            (-6, &[3], &ALL, None),
            (-16, &[2, 3, 5], &ALL, Some("-(2*(3+5))")),
            (99, &[3, 5, 2], &[Add, Subtract], None),
        ] {
            let found = solution(&row(target, numbers), operators);
            assert_eq!(found.as_deref(), expected, "{target} of {numbers:?}");
        }
    }

    proptest! {
        #[test]
        fn solutions_are_right_and_found_where_there_are_some(
            numbers in prop::collection::vec(0_u64..12, 1..5),
            target in -20_i64..40,
            operators in prop::sample::subsequence(ALL.to_vec(), 1..=4),
        ) {
            let row = row(target, &numbers);
            let found = solution(&row, &operators);
            prop_assert_eq!(found.is_some(), row.has_solution(&operators), "{}", row);
            if let Some(answer) = found {
                prop_assert_eq!(row.score(&answer).to_string(), "1", "{} by {}", row, answer);
            }
        }

        #[test]
        fn guesses_use_the_numbers_as_often_as_they_should(seed in any::<u64>(), short_prob in 0.0..=1.0) {
            let row = row(10, &[3, 5, 2]);
            let key = Key::new(seed, Purpose::Sft);
            let num_guesses = 2000;
            let (mut num_short, mut whole) = (0, HashSet::new());
            for i in 0..num_guesses {
                let answer = guess(&row, &[Add, Subtract], short_prob, key.with(i));
                if row.score(&answer) > 0.0 { whole.insert(answer); } else { num_short += 1; }
            }
            let share = f64::from(num_short) / num_guesses as f64;
            prop_assert!((share - short_prob).abs() < 0.06, "{share} for {short_prob}");
            // Any of the eight chains, right or wrong.
            prop_assert!(whole.len() == 8 || short_prob > 0.95, "{whole:?}");
        }
    }
}
