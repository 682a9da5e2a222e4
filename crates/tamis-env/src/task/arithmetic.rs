//! `arithmetic`: procedural expressions such as `12+7=` with their answers.
//!
//! **Partition.** The side of an expression depends only on the expression, not on a draw. It is written as a
//! sum of signed products with sorted factors and terms, and is held out if and only if a fixed hash of that
//! canonical form is below [`HELD_OUT_SHARE`]. So `7+12` and `12+7` are on the same side, and no seed, size
//! or mixture of levels can put a held-out expression into a training set.
//!
//! **Determinism.** A row is a function of (seed, levels, weights, side, row number): a larger set begins
//! with the smaller one, and the row number is the prompt's id. Levels alternate in proportion to their
//! weights.

use std::collections::HashSet;
use std::fmt;
use tamis_core::figure::counted;

use serde_json::{Map, json};
use tamis_core::fault::Fault;
use tamis_core::group::PromptId;
use tamis_core::random::{Key, Purpose};
use tamis_core::{choice, fault, settings};
use tamis_data::prompt::{Prompt, PromptContent};

use super::{Split, Task, TaskError, TaskPrompts, TaskSource};

/// Share of canonical expressions that are held out.
pub const HELD_OUT_SHARE: f64 = 0.125;

/// Value of `data_source` of every prompt of this task.
pub const DATA_SOURCE: &str = "arithmetic";

/// The hash of the partition is keyed by a constant, so that it is the same in every run.
const PARTITION_SEED: u64 = 0x7461_6d69_7361_7269;

choice! {
    /// An operator of the arithmetic task.
    pub enum Operator {
        /// Addition.
        Add = "+",
        /// Subtraction.
        Subtract = "-",
        /// Multiplication.
        Multiply = "*",
    }
}

settings! {
    /// One level of difficulty of the arithmetic task.
    pub struct ArithmeticLevel {
        /// Most digits of each number.
        digits: u32 = 2, Between(1.0, 9.0);
        /// Operators, drawn with equal probability.
        operators: Vec<Operator> = vec![Operator::Add], NotEmpty;
        /// Number of numbers in an expression.
        terms: u32 = 2, Between(2.0, 8.0);
        /// Share of this level, relative to the other levels' weights.
        weight: f64 = 1.0, Positive;
    }
}

settings! {
    /// The arithmetic task. Train and validation expressions are disjoint by construction.
    pub struct ArithmeticSettings {
        /// Levels of difficulty, mixed by weight.
        levels: Vec<ArithmeticLevel> = vec![ArithmeticLevel {
            operators: vec![Operator::Add, Operator::Subtract],
            ..ArithmeticLevel::default()
        }], NotEmpty;
        /// Most training prompts. A level with fewer different expressions gives all of them.
        train_size: usize = 8192, Between(1.0, 1e7);
        /// Most validation prompts.
        val_size: usize = 512, Between(0.0, 1e7);
    }
}

impl fmt::Display for ArithmeticLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} digit{}, operators ", self.digits, if self.digits == 1 { "" } else { "s" })?;
        for operator in &self.operators {
            write!(f, "{operator}")?;
        }
        write!(f, ", {} terms", self.terms)
    }
}

/// Draws without a new expression after which a level counts as exhausted.
const MAX_FRUITLESS_DRAWS: u64 = 65_536;

/// The task: its levels, and the seed that its rows are drawn with.
#[derive(Debug, Clone)]
pub struct Arithmetic {
    levels: Vec<ArithmeticLevel>,
    seed: u64,
}

/// Operands and the operators between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Expression {
    operands: Vec<u64>,
    operators: Vec<Operator>,
}

impl Expression {
    fn draw(level: &ArithmeticLevel, key: Key) -> Self {
        let (bound, terms) = (10u64.pow(level.digits), u64::from(level.terms));
        let operands = (0..terms).map(|i| key.with(0).below(i, bound)).collect();
        let operators = (0..terms - 1)
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
                write!(f, "{}", self.operators[i - 1])?;
            }
            write!(f, "{operand}")?;
        }
        Ok(())
    }
}

fn no_expression(number: usize, level: &ArithmeticLevel, split: Split) -> Fault {
    let side = match split {
        Split::Train => "training",
        Split::HeldOut => "held-out",
    };
    fault!(
        "difficulty level {number} ({level}) has no expression on the {side} side; use more digits or terms"
    )
}

impl Arithmetic {
    /// Each turn goes to the level that is furthest behind its share (the first of equals), as long as it has
    /// expressions left.
    ///
    /// # Errors
    /// No level, or one with a key outside its range or `digits * terms` above 36: its answers would not be
    /// exact.
    pub fn new(seed: u64, levels: Vec<ArithmeticLevel>) -> Result<Self, Fault> {
        if levels.is_empty() {
            return Err(fault!("a task needs at least one difficulty level"));
        }
        for (i, level) in levels.iter().enumerate() {
            let ArithmeticLevel { digits, ref operators, terms, weight } = *level;
            let fail =
                |what, actual: String| Err(fault!("difficulty level {} needs {what}, got {actual}", i + 1));
            if !(1..=9).contains(&digits) {
                return fail("1 to 9 digits", digits.to_string());
            }
            if operators.is_empty() {
                return fail("at least one operator", "none".to_owned());
            }
            if !(2..=8).contains(&terms) {
                return fail("2 to 8 terms", terms.to_string());
            }
            if digits * terms > 36 {
                return fail("digits * terms of at most 36", format!("{digits} * {terms}"));
            }
            if !(weight.is_finite() && weight > 0.0) {
                return fail("a finite weight above 0", weight.to_string());
            }
        }
        Ok(Self { levels, seed })
    }

    /// Levels of successive turns, each the one furthest behind its share.
    fn turns(&self) -> impl Iterator<Item = usize> + '_ {
        let total: f64 = self.levels.iter().map(|level| level.weight).sum();
        let mut taken = vec![0u64; self.levels.len()];
        (1u64..).map(move |turn| {
            let lag = |index: usize| self.levels[index].weight / total * turn as f64 - taken[index] as f64;
            let most =
                (0..taken.len()).fold(0, |most, index| if lag(index) > lag(most) { index } else { most });
            taken[most] += 1;
            most
        })
    }

    /// At most `size` prompts of a side, all different: a level with fewer different expressions than its
    /// share gives them all. Columns: `level` (from 1), `digits`, `operations`, `prompt`, `answer`.
    ///
    /// Fails if a level has no expression on that side.
    pub fn prompts(&self, split: Split, size: usize) -> Result<Vec<Prompt>, Fault> {
        let turns: Vec<usize> = self.turns().take(size).collect();
        let mut rows = Vec::with_capacity(self.levels.len());
        for (index, level) in self.levels.iter().enumerate() {
            let share = turns.iter().filter(|&&turn| turn == index).count();
            let found = self.distinct(index, split, share);
            if found.is_empty() && share > 0 {
                return Err(no_expression(index + 1, level, split));
            }
            rows.push(found.into_iter());
        }
        let drawn = turns.into_iter().filter_map(|index| Some((index, rows[index].next()?)));
        Ok(drawn.enumerate().map(|(row, (index, expression))| self.prompt(row, index, &expression)).collect())
    }

    /// The first different expressions of a level and side; fewer if it is exhausted, which does not depend
    /// on the requested number.
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
        columns.insert("operations".to_owned(), json!(self.levels[index].terms - 1));
        Prompt {
            id: PromptId(row as u64),
            content: PromptContent::Text(text),
            ground_truth: Some(answer),
            data_source: DATA_SOURCE.to_owned(),
            columns,
            images: Vec::new(),
            place: None,
        }
    }
}

/// The task as [`TaskKind`](super::TaskKind) registers it.
pub(super) struct ArithmeticTask;

impl Task for ArithmeticTask {
    fn reads_files(&self) -> bool {
        false
    }

    fn keys(&self) -> &'static [&'static str] {
        &["data.arithmetic.levels", "data.arithmetic"]
    }

    fn prompts(&self, source: &TaskSource<'_>, most: usize) -> Result<TaskPrompts, TaskError> {
        let ArithmeticSettings { levels, train_size, val_size } = source.arithmetic;
        let task = Arithmetic::new(source.seed, levels.clone())?;
        let train = task.prompts(Split::Train, most.min(*train_size))?;
        let held_out = task.prompts(Split::HeldOut, most.min(*val_size))?;
        let note = format!(
            "arithmetic: {} training and {}",
            train.len(),
            counted(held_out.len(), "held-out prompt")
        );
        Ok(TaskPrompts { train, held_out, notes: vec![note], alphabet: String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rational::Rational;
    use crate::task::expression;
    use proptest::prelude::*;

    fn level(digits: u32, operators: &[Operator], terms: u32) -> ArithmeticLevel {
        ArithmeticLevel { digits, operators: operators.to_vec(), terms, weight: 1.0 }
    }

    fn levels() -> Vec<ArithmeticLevel> {
        use Operator::{Add, Multiply, Subtract};
        vec![level(2, &[Add, Subtract], 2), level(1, &[Add, Subtract, Multiply], 4), level(3, &[Multiply], 2)]
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
    fn errors() {
        let refused = |levels| Arithmetic::new(0, levels).unwrap_err().to_string();
        let one = |digits, operators: &[Operator], terms| refused(vec![level(digits, operators, terms)]);
        insta::assert_snapshot!(refused(vec![]), @"a task needs at least one difficulty level");
        insta::assert_snapshot!(one(0, &[Operator::Add], 2), @"difficulty level 1 needs 1 to 9 digits, got 0");
        insta::assert_snapshot!(one(2, &[], 2), @"difficulty level 1 needs at least one operator, got none");
        insta::assert_snapshot!(one(2, &[Operator::Add], 9), @"difficulty level 1 needs 2 to 8 terms, got 9");
        insta::assert_snapshot!(one(9, &[Operator::Add], 8), @"difficulty level 1 needs digits * terms of at most 36, got 9 * 8");
        let mut weighted = levels();
        weighted[1].weight = f64::NAN;
        insta::assert_snapshot!(refused(weighted), @"difficulty level 2 needs a finite weight above 0, got NaN");
        let none = no_expression(1, &levels()[0], Split::HeldOut);
        insta::assert_snapshot!(none, @"difficulty level 1 (2 digits, operators +-, 2 terms) has no expression on the held-out side; use more digits or terms");
    }

    #[test]
    fn levels_have_their_shares() {
        let mut levels = levels();
        (levels[0].weight, levels[2].weight) = (3.0, 2.0);
        let task = Arithmetic::new(0, levels).unwrap();
        let rows = task.prompts(Split::Train, 600).unwrap();
        let share = |level: u64| rows.iter().filter(|prompt| prompt.columns["level"] == level).count();
        assert_eq!([share(1), share(2), share(3)], [300, 100, 200]);
        assert_eq!(rows[..24], task.prompts(Split::Train, 24).unwrap());
    }

    #[test]
    fn a_small_level_gives_all_it_has() {
        let one = level(1, &[Operator::Add], 2);
        let task = Arithmetic::new(0, vec![one.clone()]).unwrap();
        let train = task.prompts(Split::Train, 1000).unwrap();
        let held_out = task.prompts(Split::HeldOut, 1000).unwrap();
        assert_eq!(train.len() + held_out.len(), 100, "every sum of two digits is on one side");
        assert_eq!(train[..20], task.prompts(Split::Train, 20).unwrap());
        let two = level(2, &[Operator::Add], 2);
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
