//! `format`: a regular expression over the completion.

use regex::{Regex, RegexBuilder};

use super::error::RewardError;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};

tamis_core::settings! {
    /// Settings of the [`Format`] reward.
    pub struct FormatSettings {
        /// Regular expression that the whole completion must match; `.` also matches a line break.
        pattern: String = String::new(), NotEmpty;
    }
}

impl RewardSettings for FormatSettings {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(Format::new(&self.pattern)?))
    }

    fn nature(&self) -> Nature {
        Nature::SHAPING
    }
}

/// `score` is 1 if the pattern matches the whole completion, otherwise 0. Shaping. The syntax is that of the
/// `regex` crate: linear time, no look-around and no back-references; `.` also matches a line break.
#[derive(Debug, Clone)]
pub struct Format {
    pattern: Regex,
}

impl Format {
    /// Compiles the pattern.
    pub fn new(pattern: &str) -> Result<Self, RewardError> {
        let whole = format!("\\A(?:{pattern})\\z");
        match RegexBuilder::new(&whole).dot_matches_new_line(true).size_limit(1 << 22).build() {
            Ok(pattern) => Ok(Self { pattern }),
            Err(source) => {
                Err(RewardError::Pattern { pattern: pattern.to_owned(), source: Box::new(source) })
            }
        }
    }
}

impl RewardFunction for Format {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| {
            RewardOutcome::score(f64::from(u8::from(self.pattern.is_match(input.completion))))
        };
        batch.iter().map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::test_prompt;

    #[test]
    fn the_whole_completion_must_match() {
        let prompt = test_prompt("");
        let format = Format::new("<answer>.*</answer>|none").unwrap();
        let score = |completion| format.score(&[RewardInput::text(&prompt, completion)])[0].get("score");
        assert_eq!(score("<answer>1\n2</answer>"), Some(1.0));
        assert_eq!(score("so <answer>1</answer>"), Some(0.0));
        assert_eq!(score("none"), Some(1.0));
        assert_eq!(score("none!"), Some(0.0));
    }

    #[test]
    fn errors() {
        let error = |pattern: &str| {
            let error = Format::new(pattern).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            format!("{error}\n{source}")
        };
        insta::assert_snapshot!(error("(a"), @r"
reward `format` cannot use the pattern `(a` (look-around and back-references are not supported)
regex parse error:
    \A(?:(a)\z
      ^
error: unclosed group
");
        insta::assert_snapshot!(error("(?!a)b"), @r"
reward `format` cannot use the pattern `(?!a)b` (look-around and back-references are not supported)
regex parse error:
    \A(?:(?!a)b)\z
         ^^^
error: look-around, including look-ahead and look-behind, is not supported
");
        insta::assert_snapshot!(error("(\\w{1000}){1000}"), @r"
reward `format` cannot use the pattern `(\w{1000}){1000}` (look-around and back-references are not supported)
Compiled regex exceeds size limit of 4194304 bytes.
");
    }
}
