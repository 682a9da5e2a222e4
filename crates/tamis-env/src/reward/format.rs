//! `format`: a regular expression over the completion.

use regex::{Regex, RegexBuilder};

use super::{Outcome, RewardError, RewardFunction, RewardInput};

/// `score` is 1 where the pattern matches somewhere in the completion (anchor it with `^` and `$` or `\A` and `\z` for the whole), else
/// 0. Shaping. The syntax is the `regex` crate's: linear time, no look-around and no back-references; `(?s)` lets `.` cross lines.
#[derive(Debug, Clone)]
pub struct Format {
    pattern: Regex,
}

impl Format {
    /// Compiles the pattern.
    pub fn new(pattern: &str) -> Result<Self, RewardError> {
        match RegexBuilder::new(pattern).size_limit(1 << 22).build() {
            Ok(pattern) => Ok(Self { pattern }),
            Err(source) => {
                Err(RewardError::Pattern { pattern: pattern.to_owned(), source: Box::new(source) })
            }
        }
    }
}

impl RewardFunction for Format {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Outcome> {
        let judge = |input: &RewardInput<'_>| {
            Outcome::score(f64::from(u8::from(self.pattern.is_match(input.completion))))
        };
        batch.iter().map(judge).collect()
    }

    fn is_shaping(&self) -> bool {
        true
    }
}
