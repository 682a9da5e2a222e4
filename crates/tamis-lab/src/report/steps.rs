//! The steps that a page is about: `--steps 10..50`.

use std::str::FromStr;

/// A range of steps, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRange {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

impl StepRange {
    /// Every step.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };

    /// Whether a step is in it.
    pub fn contains(self, step: u64) -> bool {
        (self.first..=self.last).contains(&step)
    }
}

impl std::fmt::Display for StepRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.first, self.last) {
            (0, u64::MAX) => write!(f, "all steps"),
            (first, last) if first == last => write!(f, "step {first}"),
            (0, last) => write!(f, "steps up to {last}"),
            (first, u64::MAX) => write!(f, "steps from {first} on"),
            (first, last) => write!(f, "steps {first} to {last}"),
        }
    }
}

impl FromStr for StepRange {
    type Err = String;

    /// `10..50`, `10..`, `..50` or `10`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str, open: u64| match text.trim() {
            "" => Ok(open),
            digits => digits
                .parse::<u64>()
                .map_err(|_| format!("`{digits}` is not a step: write 10..50, 10.., ..50 or 10")),
        };
        let range = match text.split_once("..") {
            Some((first, last)) => {
                Self { first: number(first, 0)?, last: number(last.trim_start_matches('='), u64::MAX)? }
            }
            None if text.trim().is_empty() => {
                return Err("no step is given: write 10..50, 10.., ..50 or 10".to_owned());
            }
            None => {
                let step = number(text, 0)?;
                Self { first: step, last: step }
            }
        };
        if range.first > range.last {
            return Err(format!("the first step, {}, comes after the last, {}", range.first, range.last));
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_they_are_typed() {
        let parse = |text: &str| text.parse::<StepRange>().map(|range| (range.first, range.last));
        assert_eq!(parse("10..50"), Ok((10, 50)));
        assert_eq!(parse("10.."), Ok((10, u64::MAX)));
        assert_eq!(parse("..50"), Ok((0, 50)));
        assert_eq!(parse("7"), Ok((7, 7)));
        assert_eq!(parse("9..3"), Err("the first step, 9, comes after the last, 3".to_owned()));
        assert_eq!(parse("a..3"), Err("`a` is not a step: write 10..50, 10.., ..50 or 10".to_owned()));
        assert!(parse("").is_err() && parse("-3").is_err());
    }

    #[test]
    fn ranges_in_words() {
        let shown = |text: &str| text.parse::<StepRange>().unwrap().to_string();
        assert_eq!(
            [shown("1..2"), shown("..2"), shown("2.."), shown("3"), shown("..")],
            ["steps 1 to 2", "steps up to 2", "steps from 2 on", "step 3", "all steps"]
        );
    }
}
