//! `soft_overlong`: DAPO's soft overlong punishment.
//!
//! With L the response limit, C the length of the buffer before it and y the completion's tokens (arXiv
//! 2503.14476, equation 13):
//!
//! ```text
//! 0                   |y| <= L - C
//! ((L - C) - |y|) / C      L - C < |y| <= L
//! -1                  L < |y|
//! ```

use serde::{Deserialize, Serialize};

use super::{RewardError, RewardFunction, RewardInput, RewardOutcome};

/// Which form of the punishment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Equation 13: bounded by −1 (the paper and TRL 1.16.0). A buffer of 0 gives 0 up to the limit, −1
    /// beyond.
    #[default]
    Paper,
    /// verl 0.9.1 (`overlong_buffer`): `min(−(|y| − (L − C)) / C, 0)`, growing past the limit. C must be at
    /// least 1.
    Verl,
}

/// `score` is the punishment (0 or negative). Shaping.
#[derive(Debug, Clone, Copy)]
pub struct SoftOverlong {
    max_length: u64,
    buffer: u64,
    factor: f64,
    form: Form,
}

impl SoftOverlong {
    /// `max_length` and `buffer` in tokens; the punishment is multiplied by `factor` (verl's
    /// `penalty_factor`, 1 unless set).
    pub fn new(max_length: u64, buffer: u64, factor: f64, form: Form) -> Result<Self, RewardError> {
        let fail = |expected, actual: String| {
            Err(RewardError::Parameter { kind: "soft_overlong", expected, actual })
        };
        if form == Form::Verl && buffer == 0 {
            return fail("a buffer of at least 1 token in the form `verl`", buffer.to_string());
        }
        if form == Form::Verl && buffer > max_length {
            return fail(
                "a buffer of at most the response limit in the form `verl`",
                format!("{buffer} > {max_length}"),
            );
        }
        if !(factor.is_finite() && factor >= 0.0) {
            return fail("a factor that is finite and not negative", tamis_core::figure::shortest(factor));
        }
        Ok(Self { max_length, buffer, factor, form })
    }

    /// The punishment of a completion of `length` tokens.
    pub fn punishment(self, length: u64) -> f64 {
        let start = self.max_length as f64 - self.buffer as f64;
        let length = length as f64;
        let punishment = if length <= start {
            0.0
        } else if self.form == Form::Verl || length <= self.max_length as f64 {
            (start - length) / self.buffer as f64
        } else {
            -1.0
        };
        // Not -0.0 where there is nothing to punish.
        if punishment == 0.0 { 0.0 } else { punishment * self.factor }
    }
}

impl RewardFunction for SoftOverlong {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        batch
            .iter()
            .map(|input| RewardOutcome::score(self.punishment(input.completion_ids.len() as u64)))
            .collect()
    }

    fn is_shaping(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_vectors_of_trl() {
        for case in tamis_golden::cases("trl_reward_soft_overlong") {
            let parameter = |name: &str| case["params"][name].as_u64().unwrap();
            let function = SoftOverlong::new(
                parameter("max_completion_len"),
                parameter("soft_punish_cache"),
                1.0,
                Form::Paper,
            )
            .unwrap();
            let rewards: Vec<f64> = tamis_golden::numbers(&case["inputs"]["length"])
                .iter()
                .map(|&length| function.punishment(length as u64))
                .collect();
            let expected = tamis_golden::numbers(&case["outputs"]["reward"]);
            tamis_golden::assert_close(case["name"].as_str().unwrap(), &rewards, &expected, 1e-12, 1e-12);
        }
    }

    #[test]
    fn reference_vectors_of_verl() {
        for case in tamis_golden::cases("verl_overlong") {
            let name = case["name"].as_str().unwrap();
            let is_on = case["params"]["enable"].as_bool().unwrap();
            let parameter = |name: &str| case["params"][name].as_u64().unwrap();
            let factor = case["params"]["penalty_factor"].as_f64().unwrap();
            let function = SoftOverlong::new(
                parameter("max_resp_len"),
                parameter("overlong_buffer_len"),
                factor,
                Form::Verl,
            )
            .unwrap();
            let lengths = tamis_golden::numbers(&case["inputs"]["length"]);
            let punishments: Vec<f64> = lengths
                .iter()
                .map(|&length| if is_on { function.punishment(length as u64) } else { 0.0 })
                .collect();
            let scores = tamis_golden::numbers(&case["inputs"]["score"]);
            let rewards: Vec<f64> =
                scores.iter().zip(&punishments).map(|(score, punishment)| score + punishment).collect();
            let expected = tamis_golden::numbers(&case["outputs"]["reward"]);
            tamis_golden::assert_close(name, &rewards, &expected, 1e-6, 1e-6);
            if is_on {
                let expected = tamis_golden::numbers(&case["outputs"]["overlong_reward"]);
                tamis_golden::assert_close(name, &punishments, &expected, 1e-6, 1e-6);
                let is_overlong: Vec<bool> = punishments.iter().map(|&punishment| punishment < 0.0).collect();
                let expected: Vec<bool> = case["outputs"]["overlong"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|flag| flag.as_bool().unwrap_or_else(|| flag.as_f64() == Some(1.0)))
                    .collect();
                assert_eq!(is_overlong, expected, "{name}");
            }
        }
    }

    #[test]
    fn errors() {
        insta::assert_snapshot!(SoftOverlong::new(10, 0, 1.0, Form::Verl).unwrap_err(), @"reward `soft_overlong` needs a buffer of at least 1 token in the form `verl`, got 0");
        insta::assert_snapshot!(SoftOverlong::new(10, 11, 1.0, Form::Verl).unwrap_err(), @"reward `soft_overlong` needs a buffer of at most the response limit in the form `verl`, got 11 > 10");
        insta::assert_snapshot!(SoftOverlong::new(10, 1, f64::NAN, Form::Paper).unwrap_err(), @"reward `soft_overlong` needs a factor that is finite and not negative, got NaN");
    }
}
