//! `arithmetic`: procedural expressions such as `12+7=` with their answers.
//!
//! **Partition.** Which side an expression belongs to is a property of the expression, not of a draw: it is
//! written as a sum of signed products, factors and terms are put in order, and the expression is held out
//! exactly where a fixed hash of that canonical form falls below [`HELD_OUT_SHARE`]. So `7+12` and `12+7` lie
//! on the same side, and no seed, size or mixture of levels can put a held-out expression into a training
//! set.
//!
//! **Determinism.** A row is a function of (seed, levels, weights, side, row number): a larger set begins
//! with the smaller one, and the row number is the prompt's id. Levels take turns in proportion to their
//! weights.

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use tamis_core::group::PromptId;
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::{Prompt, PromptContent};

use super::{Split, TaskError};

/// Share of canonical expressions that are held out.
pub const HELD_OUT_SHARE: f64 = 0.125;

/// Value of `data_source` of every prompt of this task.
pub const DATA_SOURCE: &str = "arithmetic";

/// The hash of the partition is keyed by a constant, so that it is the same in every run.
const PARTITION_SEED: u64 = 0x7461_6d69_7361_7269;

/// `+`, `-` or `*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operator {
    /// Addition.
    #[serde(rename = "+")]
    Add,
    /// Subtraction.
    #[serde(rename = "-")]
    Subtract,
    /// Multiplication; binds tighter.
    #[serde(rename = "*")]
    Multiply,
}

impl Operator {
    fn symbol(self) -> char {
        match self {
            Self::Add => '+',
            Self::Subtract => '-',
            Self::Multiply => '*',
        }
    }
}

/// One level of difficulty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difficulty {
    /// Operands are uniform in `0..10^digits`.
    pub digits: u32,
    /// Operators, each drawn with the same probability.
    pub operators: Vec<Operator>,
    /// Operators in one expression: 1 for `12+7=`, 2 for `12+7*3=`.
    #[serde(default = "one")]
    pub operations: u32,
}

fn one() -> u32 {
    1
}

impl fmt::Display for Difficulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: u32| if n == 1 { "" } else { "s" };
        write!(f, "{} digit{}, operators ", self.digits, plural(self.digits))?;
        for operator in &self.operators {
            f.write_char(operator.symbol())?;
        }
        write!(f, ", {} operation{}", self.operations, plural(self.operations))
    }
}

/// Draws without a new expression after which a level counts as exhausted.
const MAX_FRUITLESS_DRAWS: u64 = 65_536;

/// The task: levels, their weights, and the seed that its rows are drawn with.
#[derive(Debug, Clone)]
pub struct Arithmetic {
    levels: Vec<Difficulty>,
    weights: Vec<f64>,
    seed: u64,
}

/// Operands and the operators between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Expression {
    operands: Vec<u64>,
    operators: Vec<Operator>,
}

impl Expression {
    fn draw(level: &Difficulty, key: Key) -> Self {
        let bound = 10u64.pow(level.digits);
        let operands = (0..=u64::from(level.operations)).map(|i| key.with(0).below(i, bound)).collect();
        let operators = (0..u64::from(level.operations))
            .map(|i| level.operators[key.with(1).below(i, level.operators.len() as u64) as usize])
            .collect();
        Self { operands, operators }
    }

    /// Signed products: (is positive, factors).
    fn terms(&self) -> Vec<(bool, Vec<u64>)> {
        let mut terms: Vec<(bool, Vec<u64>)> = Vec::new();
        let operators = std::iter::once(Operator::Add).chain(self.operators.iter().copied());
        for (operator, &operand) in operators.zip(&self.operands) {
            match (operator, terms.last_mut()) {
                (Operator::Multiply, Some((_, factors))) => factors.push(operand),
                (operator, _) => terms.push((operator != Operator::Subtract, vec![operand])),
            }
        }
        terms
    }

    fn answer(&self) -> i128 {
        self.terms()
            .into_iter()
            .map(|(is_positive, factors)| {
                let product: i128 = factors.into_iter().map(i128::from).product();
                if is_positive { product } else { -product }
            })
            .sum()
    }

    fn split(&self) -> Split {
        let mut terms = self.terms();
        for (_, factors) in &mut terms {
            factors.sort_unstable();
        }
        terms.sort_unstable();
        let mut key = Key::new(PARTITION_SEED, Purpose::Task);
        for (is_positive, factors) in terms {
            key = key.with(u64::from(is_positive)).with(factors.len() as u64);
            for factor in factors {
                key = key.with(factor);
            }
        }
        if key.uniform(0) < HELD_OUT_SHARE { Split::HeldOut } else { Split::Train }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, operand) in self.operands.iter().enumerate() {
            if i > 0 {
                f.write_char(self.operators[i - 1].symbol())?;
            }
            write!(f, "{operand}")?;
        }
        Ok(())
    }
}

impl Arithmetic {
    /// Levels of equal weight: see [`Arithmetic::weighted`].
    pub fn new(seed: u64, levels: Vec<Difficulty>) -> Result<Self, TaskError> {
        let weights = vec![1.0; levels.len()];
        Self::weighted(seed, levels, weights)
    }

    /// Levels with weights: each turn goes to the level that is furthest behind its share (the first of
    /// equals), as long as it has expressions left.
    ///
    /// Fails unless each level has 1 to 9 digits, at least one operator, 1 to 8 operations,
    /// `digits * (operations + 1)` at most 36 (so that every answer is exact) and a finite weight above 0.
    pub fn weighted(seed: u64, levels: Vec<Difficulty>, weights: Vec<f64>) -> Result<Self, TaskError> {
        if levels.is_empty() {
            return Err(TaskError::NoLevel);
        }
        if weights.len() != levels.len() {
            return Err(TaskError::Weights { levels: levels.len(), weights: weights.len() });
        }
        for (i, weight) in weights.iter().enumerate() {
            if !(weight.is_finite() && *weight > 0.0) {
                let actual = weight.to_string();
                return Err(TaskError::Difficulty { level: i + 1, what: "a finite weight above 0", actual });
            }
        }
        for (i, level) in levels.iter().enumerate() {
            let fail = |what, actual: String| Err(TaskError::Difficulty { level: i + 1, what, actual });
            if !(1..=9).contains(&level.digits) {
                return fail("1 to 9 digits", level.digits.to_string());
            }
            if level.operators.is_empty() {
                return fail("at least one operator", "none".to_owned());
            }
            if !(1..=8).contains(&level.operations) {
                return fail("1 to 8 operations", level.operations.to_string());
            }
            if level.digits * (level.operations + 1) > 36 {
                let actual = format!("{} * {}", level.digits, level.operations + 1);
                return fail("digits * (operations + 1) of at most 36", actual);
            }
        }
        Ok(Self { levels, weights, seed })
    }

    /// The levels, in order.
    pub fn levels(&self) -> &[Difficulty] {
        &self.levels
    }

    /// Levels of successive turns, each the one furthest behind its share.
    fn turns(&self) -> impl Iterator<Item = usize> + '_ {
        let total: f64 = self.weights.iter().sum();
        let mut taken = vec![0u64; self.weights.len()];
        (1u64..).map(move |turn| {
            let lag = |index: usize| self.weights[index] / total * turn as f64 - taken[index] as f64;
            let most =
                (0..taken.len()).fold(0, |most, index| if lag(index) > lag(most) { index } else { most });
            taken[most] += 1;
            most
        })
    }

    /// At most `size` prompts of a side, all different: a level with fewer different expressions than its
    /// share gives them all. Columns: `level` (from 1), `digits`, `operations`, `prompt`, `answer`.
    ///
    /// Fails where a level has no expression on that side at all.
    pub fn prompts(&self, split: Split, size: usize) -> Result<Vec<Prompt>, TaskError> {
        let turns: Vec<usize> = self.turns().take(size).collect();
        let mut rows = Vec::with_capacity(self.levels.len());
        for (index, level) in self.levels.iter().enumerate() {
            let share = turns.iter().filter(|&&turn| turn == index).count();
            let found = self.distinct(index, split, share);
            if found.is_empty() && share > 0 {
                return Err(TaskError::NoExpression {
                    level: index + 1,
                    description: level.to_string(),
                    split: match split {
                        Split::Train => "training",
                        Split::HeldOut => "held-out",
                    },
                });
            }
            rows.push(found.into_iter());
        }
        let drawn = turns.into_iter().filter_map(|index| Some((index, rows[index].next()?)));
        Ok(drawn.enumerate().map(|(row, (index, expression))| self.prompt(row, index, &expression)).collect())
    }

    /// The first different expressions of a level and side; fewer where it is exhausted, which does not
    /// depend on how many are asked for.
    fn distinct(&self, index: usize, split: Split, most: usize) -> Vec<Expression> {
        let side = Key::new(self.seed, Purpose::Task).with(index as u64).with(split as u64);
        let mut seen = HashSet::with_capacity(most);
        let mut found = Vec::with_capacity(most);
        let (mut draw, mut last_found) = (0, 0);
        while found.len() < most && draw - last_found < MAX_FRUITLESS_DRAWS {
            let expression = Expression::draw(&self.levels[index], side.with(draw));
            draw += 1;
            if expression.split() == split && seen.insert(expression.clone()) {
                found.push(expression);
                last_found = draw;
            }
        }
        found
    }

    fn prompt(&self, row: usize, index: usize, expression: &Expression) -> Prompt {
        let text = format!("{expression}=");
        let answer = expression.answer().to_string();
        let mut columns = Map::new();
        columns.insert("prompt".to_owned(), json!(text));
        columns.insert("answer".to_owned(), json!(answer));
        columns.insert("level".to_owned(), json!(index + 1));
        columns.insert("digits".to_owned(), json!(self.levels[index].digits));
        columns.insert("operations".to_owned(), json!(self.levels[index].operations));
        Prompt {
            id: PromptId(row as u64),
            content: PromptContent::Text(text),
            ground_truth: Some(answer),
            data_source: DATA_SOURCE.to_owned(),
            columns,
        }
    }

    /// The characters that prompts and answers of these levels can hold, in order: digits, the operators,
    /// `-`, `=`.
    pub fn alphabet(&self) -> Vec<char> {
        let mut alphabet: Vec<char> = ('0'..='9').chain(['-', '=']).collect();
        alphabet
            .extend(self.levels.iter().flat_map(|level| &level.operators).map(|operator| operator.symbol()));
        alphabet.sort_unstable();
        alphabet.dedup();
        alphabet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rational::Rational;
    use crate::task::expression;
    use proptest::prelude::*;

    fn levels() -> Vec<Difficulty> {
        use Operator::{Add, Multiply, Subtract};
        vec![
            Difficulty { digits: 2, operators: vec![Add, Subtract], operations: 1 },
            Difficulty { digits: 1, operators: vec![Add, Subtract, Multiply], operations: 3 },
            Difficulty { digits: 3, operators: vec![Multiply], operations: 1 },
        ]
    }

    fn text(prompt: &Prompt) -> &str {
        match &prompt.content {
            PromptContent::Text(text) => text,
            PromptContent::Messages(_) => "",
        }
    }

    #[test]
    fn rows_are_fixed_by_the_seed() {
        let task = Arithmetic::new(7, levels()).unwrap();
        let rows: Vec<String> = task
            .prompts(Split::Train, 6)
            .unwrap()
            .iter()
            .map(|prompt| {
                format!("{}:{}{}", prompt.id.0, text(prompt), prompt.ground_truth.as_deref().unwrap())
            })
            .collect();
        insta::assert_snapshot!(rows.join(" "), @"0:12+92=104 1:9-5-2-2=0 2:135*680=91800 3:82-6=76 4:1*0*4*4=0 5:913*771=703923");
        let long = task.prompts(Split::Train, 300).unwrap();
        assert_eq!(task.prompts(Split::Train, 6).unwrap(), long[..6]);
        assert_ne!(Arithmetic::new(8, levels()).unwrap().prompts(Split::Train, 6).unwrap(), long[..6]);
    }

    #[test]
    fn answers_are_the_values() {
        let task = Arithmetic::new(1, levels()).unwrap();
        for prompt in task.prompts(Split::HeldOut, 200).unwrap() {
            let value = expression::value(text(&prompt).trim_end_matches('=')).unwrap();
            assert_eq!(Some(value.numerator().to_string()), prompt.ground_truth);
            assert_eq!(value.denominator(), 1);
        }
        assert_eq!(
            Expression { operands: vec![2, 3, 4], operators: vec![Operator::Subtract, Operator::Multiply] }
                .answer(),
            -10
        );
    }

    #[test]
    fn sides_never_meet_whatever_the_seed() {
        let mut held_out = HashSet::new();
        for seed in 0..4 {
            let task = Arithmetic::new(seed, levels()).unwrap();
            held_out.extend(
                task.prompts(Split::HeldOut, 600).unwrap().iter().map(|prompt| text(prompt).to_owned()),
            );
        }
        for seed in 0..4 {
            let task = Arithmetic::new(seed, levels()).unwrap();
            let prompts = task.prompts(Split::Train, 2000).unwrap();
            let distinct: HashSet<&str> = prompts.iter().map(text).collect();
            assert_eq!(distinct.len(), 2000);
            assert!(distinct.iter().all(|text| !held_out.contains(*text)));
        }
    }

    #[test]
    fn share_is_as_documented() {
        let all = (0..100u64).flat_map(|a| (0..100u64).map(move |b| (a, b)));
        let held_out = all
            .filter(|&(a, b)| {
                Expression { operands: vec![a, b], operators: vec![Operator::Subtract] }.split()
                    == Split::HeldOut
            })
            .count();
        assert!((1100..1400).contains(&held_out), "{held_out} of 10000");
    }

    #[test]
    fn alphabet_covers_everything() {
        let task = Arithmetic::new(3, levels()).unwrap();
        assert_eq!(task.alphabet().into_iter().collect::<String>(), "*+-0123456789=");
        let alphabet = task.alphabet();
        for prompt in task.prompts(Split::Train, 500).unwrap() {
            let answer = prompt.ground_truth.as_deref().unwrap_or_default();
            assert!(text(&prompt).chars().chain(answer.chars()).all(|letter| alphabet.contains(&letter)));
        }
    }

    #[test]
    fn errors() {
        let one = |digits, operators, operations| {
            Arithmetic::new(0, vec![Difficulty { digits, operators, operations }]).unwrap_err().to_string()
        };
        insta::assert_snapshot!(Arithmetic::new(0, vec![]).unwrap_err(), @"a task needs at least one difficulty level");
        insta::assert_snapshot!(one(0, vec![Operator::Add], 1), @"difficulty level 1 needs 1 to 9 digits, got 0");
        insta::assert_snapshot!(one(2, vec![], 1), @"difficulty level 1 needs at least one operator, got none");
        insta::assert_snapshot!(one(2, vec![Operator::Add], 9), @"difficulty level 1 needs 1 to 8 operations, got 9");
        insta::assert_snapshot!(one(9, vec![Operator::Add], 8), @"difficulty level 1 needs digits * (operations + 1) of at most 36, got 9 * 9");
        insta::assert_snapshot!(Arithmetic::weighted(0, levels(), vec![1.0]).unwrap_err(), @"expected one weight for each of 3 difficulty levels, got 1");
        insta::assert_snapshot!(Arithmetic::weighted(0, levels(), vec![1.0, f64::NAN, 1.0]).unwrap_err(), @"difficulty level 2 needs a finite weight above 0, got NaN");
        let none =
            TaskError::NoExpression { level: 1, description: levels()[0].to_string(), split: "held-out" };
        insta::assert_snapshot!(none, @"difficulty level 1 (2 digits, operators +-, 1 operation) has no expression on the held-out side; use more digits or operations");
    }

    #[test]
    fn levels_have_their_shares() {
        let task = Arithmetic::weighted(0, levels(), vec![3.0, 1.0, 2.0]).unwrap();
        let rows = task.prompts(Split::Train, 600).unwrap();
        let share = |level: u64| rows.iter().filter(|prompt| prompt.columns["level"] == level).count();
        assert_eq!([share(1), share(2), share(3)], [300, 100, 200]);
        assert_eq!(rows[..24], task.prompts(Split::Train, 24).unwrap());
    }

    #[test]
    fn a_small_level_gives_all_it_has() {
        let one = Difficulty { digits: 1, operators: vec![Operator::Add], operations: 1 };
        let task = Arithmetic::new(0, vec![one.clone()]).unwrap();
        let train = task.prompts(Split::Train, 1000).unwrap();
        let held_out = task.prompts(Split::HeldOut, 1000).unwrap();
        assert_eq!(train.len() + held_out.len(), 100, "every sum of two digits is on one side");
        assert_eq!(train[..20], task.prompts(Split::Train, 20).unwrap());
        let two = Difficulty { digits: 2, ..one.clone() };
        let both = Arithmetic::new(0, vec![one, two]).unwrap();
        let mixed = both.prompts(Split::Train, 1000).unwrap();
        assert_eq!(mixed.len(), train.len() + 500);
        assert_eq!(mixed[..400], both.prompts(Split::Train, 1000).unwrap()[..400]);
        assert!(mixed.iter().enumerate().all(|(row, prompt)| prompt.id.0 == row as u64));
    }

    proptest! {
        #[test]
        fn side_does_not_depend_on_the_order_of_commuting_operands(a in 0u64..1000, b in 0u64..1000, c in 0u64..1000) {
            use Operator::{Add, Multiply, Subtract};
            let split = |operands: [u64; 3], operators: [Operator; 2]| {
                Expression { operands: operands.to_vec(), operators: operators.to_vec() }.split()
            };
            prop_assert_eq!(split([a, b, c], [Add, Add]), split([c, a, b], [Add, Add]));
            prop_assert_eq!(split([a, b, c], [Multiply, Add]), split([c, b, a], [Add, Multiply]));
            prop_assert_eq!(split([a, b, c], [Subtract, Add]), split([c, a, b], [Add, Subtract]));
        }

        #[test]
        fn values_agree_with_the_reader(seed in 0u64..1000) {
            for level in levels() {
                let expression = Expression::draw(&level, Key::new(seed, Purpose::Task));
                prop_assert_eq!(expression::value(&expression.to_string()), Some(Rational::integer(expression.answer())));
            }
        }
    }
}
