//! A task of countdown, and the reward of an answer.

use std::fmt;

use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::fault::Fault;

use super::{CountdownOperator, has_solution};
use crate::rational::Rational;
use crate::task::expression::{NoValue, evaluate};

/// Most numbers of a task.
pub const MAX_NUMBERS: usize = 6;

/// Reward of an answer with the right numbers and a wrong value.
const FORMAT_REWARD: f64 = 0.1;

/// A task: the numbers and the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountdownRow {
    pub(super) target: i64,
    pub(super) numbers: Vec<u64>,
}

impl CountdownRow {
    /// The task of these numbers.
    ///
    /// # Errors
    /// None or more than [`MAX_NUMBERS`].
    pub fn new(target: i64, numbers: Vec<u64>) -> Result<Self, Fault> {
        if !(1..=MAX_NUMBERS).contains(&numbers.len()) {
            return Err(fault!(
                "field `nums` has {actual} numbers; expected from 1 to {MAX_NUMBERS}",
                actual = numbers.len()
            ));
        }
        Ok(Self { target, numbers })
    }

    /// The task of a row of the published data: `{"target": 98, "nums": [44, 19, 35]}`, other columns are
    /// ignored.
    ///
    /// # Errors
    /// A field that is missing or does not hold whole numbers, too many numbers.
    ///
    /// ```
    /// use serde_json::json;
    /// use tamis_env::environment::countdown::CountdownRow;
    /// let row = json!({"target": 98, "nums": [44, 19, 35]});
    /// let row = CountdownRow::from_columns(row.as_object().expect("an object"))?;
    /// assert_eq!((row.target(), row.numbers()), (98, &[44, 19, 35][..]));
    /// # Ok::<(), tamis_core::fault::Fault>(())
    /// ```
    pub fn from_columns(columns: &Map<String, Value>) -> Result<Self, Fault> {
        let fault = |field, expected| {
            let actual = columns.get(field).map_or_else(|| "missing".to_owned(), Value::to_string);
            fault!("field `{field}` is {actual}; expected {expected}")
        };
        let target = columns.get("target").and_then(Value::as_i64);
        let target = target.ok_or_else(|| fault("target", "a whole number"))?;
        let numbers = columns.get("nums").and_then(Value::as_array);
        let numbers = numbers.and_then(|numbers| numbers.iter().map(Value::as_u64).collect());
        Self::new(target, numbers.ok_or_else(|| fault("nums", "a list of whole numbers from 0"))?)
    }

    /// The target.
    pub fn target(&self) -> i64 {
        self.target
    }

    /// The numbers, in the order in which they are shown.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// Whether an expression that uses each number once reaches the target with these operators
    /// ([`has_solution`]).
    pub fn has_solution(&self, operators: &[CountdownOperator]) -> bool {
        let numbers: Vec<Rational> =
            self.numbers.iter().map(|&number| Rational::integer(number.into())).collect();
        let target = Rational::integer(self.target.into());
        has_solution(&numbers, target, operators)
    }

    /// The reward of an answer.
    ///
    /// ```
    /// use tamis_env::environment::countdown::CountdownRow;
    /// let row = CountdownRow::new(4, vec![3, 5, 2])?;
    /// assert_eq!(["2 + 5 - 3", "2*5-3", "5 - 1"].map(|answer| row.score(answer)), [1.0, 0.1, 0.0]);
    /// # Ok::<(), tamis_core::fault::Fault>(())
    /// ```
    pub fn score(&self, answer: &str) -> f64 {
        let Some((expression, mut used)) = read(answer) else { return 0.0 };
        let mut expected = self.numbers.clone();
        expected.sort_unstable();
        used.sort_unstable();
        if used != expected {
            return 0.0;
        }
        match evaluate(&expression) {
            Ok(value) if value == Rational::integer(self.target.into()) => 1.0,
            Ok(_) | Err(NoValue::Undefined) => FORMAT_REWARD,
            Err(NoValue::Unreadable) => 0.0,
        }
    }
}

/// An answer without its white space, and its numbers; `None` if it has other characters than whole numbers,
/// `+ - * / ( )` and white space, or white space between two numbers.
fn read(answer: &str) -> Option<(String, Vec<u64>)> {
    let mut expression = String::with_capacity(answer.len());
    let mut numbers = Vec::new();
    for part in answer.split_whitespace() {
        let ends_in_digit = expression.ends_with(|letter: char| letter.is_ascii_digit());
        if ends_in_digit && part.starts_with(|letter: char| letter.is_ascii_digit()) {
            return None;
        }
        expression.push_str(part);
    }
    let is_allowed = |letter: char| letter.is_ascii_digit() || "+-*/()".contains(letter);
    if !expression.chars().all(is_allowed) {
        return None;
    }
    for digits in
        expression.split(|letter: char| !letter.is_ascii_digit()).filter(|digits| !digits.is_empty())
    {
        numbers.push(digits.parse().ok()?);
    }
    Some((expression, numbers))
}

impl fmt::Display for CountdownRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Target: {}, nums: {:?}", self.target, self.numbers)
    }
}
