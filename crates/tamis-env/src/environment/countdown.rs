//! `countdown`: numbers, a target, and one answer, which is an arithmetic expression. The expression must use
//! each number exactly once. The reward is 1 if its value is the target, 0.1 if its numbers are right and its
//! value is not (including division by zero), and 0 if its numbers are wrong or it cannot be read: the rule
//! of RAGEN and TinyZero. Values are exact: `1/3*3` is 1. Numbers and target come from a row
//! ([`CountdownRow`]) or are drawn, solvable by construction, from the key *start*, which all members of a
//! group share. There is no luck. [`has_solution`] shows whether a row can be solved.
//!
//! # Differs from
//! RAGEN compares only digits for the numbers, and Python computes the value. There `2.5` counts as the
//! numbers 2 and 5, text that is no expression gets 0.1 if it contains the right digits, `2**3` and `7//2`
//! are expressions, and a value within 1e-5 of the target is right. Here a decimal, and text that is no
//! expression of `+ - * /` and parentheses, get 0, and only the exact value is right. RAGEN's filter tries
//! sums and differences of up to four numbers, which is [`has_solution`] with these two operators.

mod file;
mod row;
mod script;
mod solver;

use std::path::PathBuf;

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;
use tamis_core::setting::Ranged;
use tamis_core::{choice, settings};

pub use self::row::{CountdownRow, MAX_NUMBERS};
pub use self::solver::has_solution;
use super::game::{Game, Played};
use crate::rational::Rational;

/// Sets of numbers that are drawn before settings count as impossible.
const MAX_DRAWS: u64 = 10_000;

/// Purposes of draws, so no two draws share numbers.
const TASK: u64 = 1;

choice! {
    /// An operator of the countdown task.
    pub enum CountdownOperator {
        /// Addition.
        Add = "+",
        /// Subtraction.
        Subtract = "-",
        /// Multiplication.
        Multiply = "*",
        /// Division.
        Divide = "/",
    }
}

impl CountdownOperator {
    /// The value; `None` for division by zero and beyond 128 bits.
    fn apply(self, left: Rational, right: Rational) -> Option<Rational> {
        match self {
            Self::Add => left.checked_add(right),
            Self::Subtract => left.checked_sub(right),
            Self::Multiply => left.checked_mul(right),
            Self::Divide => left.checked_div(right),
        }
    }
}

settings! {
    /// The environment `countdown`. The defaults are like the published data (three or four numbers below
    /// 100, a target with two digits), restricted to the operators that RAGEN's filter tries.
    pub struct CountdownSettings {
        /// JSONL or Parquet file whose rows are the tasks, each with `target` and `nums`. Rows without a
        /// solution by `operators` are left out, and the ranges below have no effect. Null: tasks are drawn.
        file: Option<PathBuf> = None, NotEmpty;
        /// Fewest numbers of a task.
        min_numbers: usize = 3, Between(1.0, 6.0);
        /// Most numbers of a task.
        max_numbers: usize = 4, Between(1.0, 6.0);
        /// The smallest number.
        smallest: u64 = 1, Between(0.0, 1e6);
        /// The largest number.
        largest: u64 = 99, Between(0.0, 1e6);
        /// The smallest target.
        min_target: u64 = 10, Between(0.0, 1e9);
        /// The largest target.
        max_target: u64 = 99, Between(0.0, 1e9);
        /// Operators of the drawn solution, with equal probability. An answer may use all four.
        operators: Vec<CountdownOperator> = vec![CountdownOperator::Add, CountdownOperator::Subtract], NotEmpty;
        /// If the script that `sft` imitates does not write a solution (`expert_prob`), the
        /// probability that it leaves numbers out. Otherwise it puts random `operators` between all the
        /// numbers, in their order.
        short_prob: f64 = 0.3, Between(0.0, 1.0);
    }
}

/// Numbers and a target, before or after the answer.
///
/// ```
/// use tamis_env::environment::{countdown::*, game::Game};
/// let mut task = Countdown::from_row(CountdownRow::new(98, vec![44, 19, 35])?);
/// assert_eq!(task.observe(), "Target: 98, nums: [44, 19, 35]");
/// assert_eq!(task.play("44 + 19 + 35").map(|played| played.reward), Some(1.0));
/// assert!(task.is_success());
/// # Ok::<(), tamis_core::fault::Fault>(())
/// ```
#[derive(Debug, Clone)]
pub struct Countdown {
    row: CountdownRow,
    /// Operators in the answers of the warm start's script.
    operators: Vec<CountdownOperator>,
    short_prob: f64,
    /// The reward of the answer.
    score: Option<f64>,
}

impl Countdown {
    /// The task of a row, with the default operators.
    pub fn from_row(row: CountdownRow) -> Self {
        Self::with_settings(row, &CountdownSettings::default())
    }

    fn with_settings(row: CountdownRow, settings: &CountdownSettings) -> Self {
        let CountdownSettings { operators, short_prob, .. } = settings;
        Self { row, operators: operators.clone(), short_prob: *short_prob, score: None }
    }

    /// The task of a start.
    ///
    /// # Errors
    /// A number outside its range, an empty range, no operator, targets that no expression can reach.
    pub fn new(settings: &CountdownSettings, start: Key) -> Result<Self, Fault> {
        let Some(path) = &settings.file else {
            return Ok(Self::with_settings(draw(settings, start)?.0, settings));
        };
        let rows = file::rows(path, &settings.operators)?;
        let place = start.with(TASK).below(0, rows.len() as u64);
        Ok(Self::with_settings(rows[place as usize].clone(), settings))
    }

    /// The task.
    pub fn row(&self) -> &CountdownRow {
        &self.row
    }
}

struct Part {
    text: String,
    value: Rational,
}

fn draw(settings: &CountdownSettings, start: Key) -> Result<(CountdownRow, String), Fault> {
    settings.check_ranges()?;
    let &CountdownSettings {
        min_numbers,
        max_numbers,
        smallest,
        largest,
        min_target,
        max_target,
        ref operators,
        file: _,
        short_prob: _,
    } = settings;
    for (key, value, other, least) in [
        ("max_numbers", max_numbers as u64, "min_numbers", min_numbers as u64),
        ("largest", largest, "smallest", smallest),
        ("max_target", max_target, "min_target", min_target),
    ] {
        if value < least {
            return Err(fault!("setting `{key}` is {value}; expected at least the {least} of `{other}`"));
        }
    }
    if operators.is_empty() {
        return Err(fault!("setting `operators` is empty; expected at least one of `+`, `-`, `*`, `/`"));
    }
    for attempt in 0..MAX_DRAWS {
        let key = start.with(TASK).with(attempt);
        let num_numbers = min_numbers + key.below(0, (max_numbers - min_numbers) as u64 + 1) as usize;
        let numbers: Vec<u64> = (0..num_numbers as u64)
            .map(|i| smallest + key.with(1).below(i, largest - smallest + 1))
            .collect();
        let Some(Part { text, value }) = join(&numbers, operators, key.with(2)) else { continue };
        if value.denominator() != 1 {
            continue;
        }
        let target = u64::try_from(value.numerator()).ok().filter(|t| (min_target..=max_target).contains(t));
        // The range of targets ends far below the largest number of 63 bits.
        if let Some(target) = target.and_then(|target| i64::try_from(target).ok()) {
            return Ok((CountdownRow { target, numbers }, text));
        }
    }
    Err(fault!(
        "settings `min_target` and `max_target` are {min_target} and {max_target}; expected a range that contains solutions, but none of \
        {MAX_DRAWS} sets of numbers has one"
    ))
}

/// A drawn expression of all numbers: two of its parts are joined until one is left. `None` if it has no
/// value.
fn join(numbers: &[u64], operators: &[CountdownOperator], key: Key) -> Option<Part> {
    let mut parts: Vec<Part> = numbers
        .iter()
        .map(|&number| Part { text: number.to_string(), value: Rational::integer(number.into()) })
        .collect();
    for step in 0.. {
        if parts.len() < 2 {
            break;
        }
        let key = key.with(step);
        let left = parts.swap_remove(key.below(0, parts.len() as u64) as usize);
        let right = parts.swap_remove(key.below(1, parts.len() as u64) as usize);
        let operator = operators[key.below(2, operators.len() as u64) as usize];
        let value = operator.apply(left.value, right.value)?;
        parts.push(Part { text: format!("({}{operator}{})", left.text, right.text), value });
    }
    parts.pop()
}

impl Game for Countdown {
    fn legend(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// None: the answer is an expression.
    fn actions(&self) -> Vec<String> {
        Vec::new()
    }

    fn letters(&self) -> String {
        "0123456789+-*/() ".to_owned()
    }

    fn observe(&self) -> String {
        match self.score {
            None => self.row.to_string(),
            Some(score) => format!("{}\nThe answer earned {score} points.", self.row),
        }
    }

    /// Accepts any text. Text that is no expression gets a reward of 0. An action with a reward is effective.
    fn play(&mut self, action: &str) -> Option<Played> {
        let reward = self.row.score(action);
        self.score = Some(reward);
        Some(Played { reward, is_over: true, is_effective: reward > 0.0 })
    }

    fn expert(&self) -> Option<String> {
        script::solution(&self.row, &self.operators)
    }

    fn guess(&self, draw: Key) -> Option<String> {
        Some(script::guess(&self.row, &self.operators, self.short_prob, draw))
    }

    fn is_success(&self) -> bool {
        self.score.is_some_and(|score| score >= 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::CountdownOperator::{Add, Divide, Multiply, Subtract};
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tamis_core::random::Purpose;

    const ALL: [CountdownOperator; 4] = [Add, Subtract, Multiply, Divide];

    fn key(seed: u64) -> Key {
        Key::new(seed, Purpose::Task)
    }

    fn row(target: i64, numbers: &[u64]) -> CountdownRow {
        CountdownRow::new(target, numbers.to_vec()).unwrap()
    }

    #[test]
    fn scores() {
        for (target, numbers, answer, score) in [
            (4, &[3, 5, 2][..], "2 + 5 - 3", 1.0),
            (4, &[3, 5, 2], "  (5-3)+2\n", 1.0),
            (6, &[3, 5, 2], "-(2-5)+3", 1.0),
            (6, &[5, 2, 3], "-2+5+3", 1.0),
            (24, &[3, 3, 8, 8], "8/(3-8/3)", 1.0),
            (7, &[7], "007", 1.0),
            (-5, &[2, 3], "-2-3", 1.0),
            // The right numbers and a wrong value.
            (4, &[3, 5, 2], "3+5+2", 0.1),
            (1, &[1, 2, 2], "1/(2-2)", 0.1),
            (0, &[1, 0], "0/1", 1.0),
            (0, &[1, 0], "1/0", 0.1),
            // The nearest wrong value there is.
            (1, &[1_000_000, 999_999], "1000000/999999", 0.1),
            // Wrong numbers.
            (4, &[3, 5, 2], "2+5-3+0", 0.0),
            (4, &[3, 5, 2], "4", 0.0),
            (4, &[2, 2], "2", 0.0),
            (4, &[2], "2+2", 0.0),
            (10, &[25], "2*5", 0.0),
            // Not an expression.
            (4, &[3, 5, 2], "2 + 5 - 3 = 4", 0.0),
            (25, &[2, 5], "2 5", 0.0),
            (28, &[25, 3], "2 5+3", 0.0),
            (3, &[2, 5], "2.5", 0.0),
            (8, &[2, 3], "2**3", 0.0),
            (10, &[2, 5], "2(5)", 0.0),
            (10, &[2, 5], "2 × 5", 0.0),
            (10, &[2, 5], "2*5)", 0.0),
            (10, &[2, 5], "2*5/0)", 0.0),
            (4, &[3, 5, 2], "3 5 2", 0.0),
            (4, &[3, 5, 2], "", 0.0),
        ] {
            let actual = row(target, numbers).score(answer);
            assert!(actual.total_cmp(&score).is_eq(), "{target} of {numbers:?} by {answer:?}: {actual}");
        }
        let huge = format!("{}*0", "9".repeat(40));
        assert!(row(0, &[0, 1]).score(&huge) < 0.1);
        assert!(row(1, &[1]).score(&"(".repeat(100_000)) < 0.1);
        let largest = row(1, &[u64::MAX, u64::MAX, u64::MAX]);
        assert_eq!(largest.score(&format!("{0}*{0}*{0}", u64::MAX)).to_string(), "0.1", "beyond 128 bits");
    }

    #[test]
    fn one_answer_ends_it() {
        let mut task = Countdown::from_row(row(98, &[44, 19, 35]));
        assert!(task.actions().is_empty() && task.legend().is_empty() && !task.is_success());
        let played = task.play("I do not know");
        assert_eq!(played, Some(Played { reward: 0.0, is_over: true, is_effective: false }));
        assert!(!task.is_success());
        let mut task = Countdown::from_row(row(98, &[44, 19, 35]));
        let played = task.play("44-19-35");
        assert_eq!(played, Some(Played { reward: 0.1, is_over: true, is_effective: true }));
        assert!(!task.is_success());
        insta::assert_snapshot!(task.observe(), @r"
        Target: 98, nums: [44, 19, 35]
        The answer earned 0.1 points.
        ");
    }

    #[test]
    fn rows() {
        let read = |row: Value| CountdownRow::from_columns(row.as_object().unwrap());
        assert_eq!(read(json!({"nums": [1, 2], "target": -3, "id": 7})), Ok(row(-3, &[1, 2])));
        let refused = |row: Value| read(row).unwrap_err().to_string();
        insta::assert_snapshot!(refused(json!({"nums": [1]})), @"field `target` is missing; expected a whole number");
        insta::assert_snapshot!(refused(json!({"target": 1.5, "nums": [1]})), @"field `target` is 1.5; expected a whole number");
        insta::assert_snapshot!(refused(json!({"target": 1, "nums": [1, -2]})), @"field `nums` is [1,-2]; expected a list of whole numbers from 0");
        insta::assert_snapshot!(refused(json!({"target": 1, "nums": "12"})), @r#"field `nums` is "12"; expected a list of whole numbers from 0"#);
        insta::assert_snapshot!(refused(json!({"target": 1, "nums": []})), @"field `nums` has 0 numbers; expected from 1 to 6");
        insta::assert_snapshot!(refused(json!({"target": 1, "nums": [1, 1, 1, 1, 1, 1, 1]})), @"field `nums` has 7 numbers; expected from 1 to 6");
    }

    #[test]
    fn errors() {
        let refused =
            |settings: CountdownSettings| Countdown::new(&settings, key(0)).unwrap_err().to_string();
        let default = CountdownSettings::default;
        insta::assert_snapshot!(refused(CountdownSettings { min_numbers: 5, ..default() }), @"setting `max_numbers` is 4; expected at least the 5 of `min_numbers`");
        insta::assert_snapshot!(refused(CountdownSettings { smallest: 100, ..default() }), @"setting `largest` is 99; expected at least the 100 of `smallest`");
        insta::assert_snapshot!(refused(CountdownSettings { operators: vec![], ..default() }), @"setting `operators` is empty; expected at least one of `+`, `-`, `*`, `/`");
        insta::assert_snapshot!(refused(CountdownSettings { min_target: 500, max_target: 600, ..default() }), @"settings `min_target` and `max_target` are 500 and 600; expected a range that contains solutions, but none of 10000 sets of numbers has one");
    }

    #[test]
    fn known_solutions() {
        assert!(row(98, &[44, 19, 35]).has_solution(&[Add]));
        assert!(!row(99, &[44, 19, 35]).has_solution(&ALL));
        assert!(row(24, &[3, 3, 8, 8]).has_solution(&ALL));
        assert!(!row(24, &[3, 3, 8, 8]).has_solution(&[Add, Subtract, Multiply]));
        assert!(!row(24, &[1, 1, 1, 1]).has_solution(&ALL));
        assert!(row(-6, &[1, 2, 3]).has_solution(&[Add, Subtract]), "-1-2-3");
        assert!(!row(-6, &[1, 2, 3]).has_solution(&[Add]));
        assert!(row(5, &[5]).has_solution(&[]));
        assert!(!row(5, &[5, 1]).has_solution(&[]));
        assert!(!has_solution(&[], Rational::ZERO, &ALL));
        let of_six = row(952, &[25, 50, 75, 100, 3, 6]);
        assert!(of_six.score("((100+6)*75*3-50)/25") >= 1.0);
        assert!(of_six.has_solution(&ALL));
    }

    fn any_settings() -> impl Strategy<Value = CountdownSettings> {
        (1_usize..5, 0_usize..3, 0_u64..20, 20_u64..120, prop::sample::subsequence(ALL.to_vec(), 1..=4))
            .prop_map(|(min_numbers, more, smallest, largest, operators)| CountdownSettings {
                file: None,
                min_numbers,
                max_numbers: (min_numbers + more).min(4),
                smallest,
                largest,
                min_target: 1,
                max_target: 1_000_000_000,
                operators,
                short_prob: 0.3,
            })
    }

    /// Every expression of up to three numbers as text, with and without a sign in front.
    fn all_expressions(numbers: &[u64]) -> Vec<String> {
        let mut expressions = Vec::new();
        let orders: &[&[usize]] = match numbers.len() {
            1 => &[&[0]],
            2 => &[&[0, 1], &[1, 0]],
            _ => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
        };
        for order in orders {
            match order.iter().map(|&place| numbers[place]).collect::<Vec<_>>()[..] {
                [a] => expressions.push(a.to_string()),
                [a, b] => expressions.extend(ALL.map(|one| format!("{a}{one}{b}"))),
                [a, b, c] => {
                    for one in ALL {
                        expressions.extend(ALL.map(|other| format!("({a}{one}{b}){other}{c}")));
                        expressions.extend(ALL.map(|other| format!("{a}{one}({b}{other}{c})")));
                    }
                }
                _ => unreachable!("up to three"),
            }
        }
        let signed: Vec<String> = expressions.iter().map(|expression| format!("-({expression})")).collect();
        expressions.extend(signed);
        expressions
    }

    proptest! {
        #[test]
        fn a_solution_is_found_where_an_answer_is_right(numbers in prop::collection::vec(0_u64..12, 1..4), target in -20_i64..40) {
            let row = row(target, &numbers);
            let is_right = |expression: &String| row.score(expression) >= 1.0;
            prop_assert_eq!(row.has_solution(&ALL), all_expressions(&numbers).iter().any(is_right), "{}", row);
        }

        #[test]
        fn drawn_tasks_are_solvable(settings in any_settings(), seed in any::<u64>()) {
            let (row, solution) = draw(&settings, key(seed)).unwrap();
            prop_assert_eq!(row.score(&solution).to_string(), "1", "{} by {}", row, solution);
            prop_assert!(row.has_solution(&settings.operators), "{} by {}", row, solution);
            prop_assert!((settings.min_numbers..=settings.max_numbers).contains(&row.numbers.len()));
            prop_assert!(row.numbers.iter().all(|number| (settings.smallest..=settings.largest).contains(number)));
            let target = draw(&CountdownSettings::default(), key(seed)).unwrap().0.target();
            prop_assert!((10..=99).contains(&target), "{target}");
            let mut task = Countdown::from_row(row);
            prop_assert_eq!(task.play(&solution).map(|played| played.reward.to_string()), Some("1".to_owned()));
            prop_assert!(task.is_success());
        }

        /// RAGEN's filter as a check: every choice of signs.
        #[test]
        fn sums_are_found_by_their_signs(numbers in prop::collection::vec(0_u64..30, 1..5), target in -60_i64..60) {
            let signs = 0..1_u32 << numbers.len();
            let expected = signs.into_iter().any(|signs| {
                let signed = |(i, &number): (usize, &u64)| {
                    let number = i64::try_from(number).unwrap();
                    if signs >> i & 1 == 1 { -number } else { number }
                };
                numbers.iter().enumerate().map(signed).sum::<i64>() == target
            });
            prop_assert_eq!(row(target, &numbers).has_solution(&[Add, Subtract]), expected);
        }

        #[test]
        fn any_answer_has_one_of_three_scores(numbers in prop::collection::vec(0_u64..10, 1..4), answer in "[0-9+*/(). -]{0,10}|\\PC{0,10}") {
            let mut task = Countdown::from_row(row(7, &numbers));
            let reward = task.play(&answer).unwrap().reward;
            prop_assert!(["0", "0.1", "1"].contains(&reward.to_string().as_str()), "{reward}");
            prop_assert_eq!(task.is_success(), reward >= 1.0);
        }

        #[test]
        fn white_space_beside_operators_does_not_matter(seed in any::<u64>(), spaces in prop::collection::vec(0_usize..3, 40)) {
            let (row, solution) = draw(&CountdownSettings::default(), key(seed)).unwrap();
            let mut spaced = String::new();
            for (letter, num_spaces) in solution.chars().zip(spaces.into_iter().cycle()) {
                let is_digit = letter.is_ascii_digit();
                spaced.push_str(&" ".repeat(if is_digit { 0 } else { num_spaces }));
                spaced.push(letter);
                spaced.push_str(&" ".repeat(if is_digit { 0 } else { num_spaces }));
            }
            prop_assert_eq!(row.score(&spaced).to_string(), "1");
        }
    }
}
