//! `soft_overlong`: DAPO's soft penalty on overlong completions.
//!
//! With L the response limit, C the length of the buffer before it and y the completion's tokens (arXiv
//! 2503.14476, equation 13):
//!
//! ```text
//! 0                   |y| <= L - C
//! ((L - C) - |y|) / C      L - C < |y| <= L
//! -1                  L < |y|
//! ```

use super::error::RewardError;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Conflict, Nature, RewardContext, RewardSettings};

tamis_core::choice! {
    /// The form of the soft overlong penalty.
    pub enum OverlongForm {
        /// As in the paper and TRL: 0 up to `max_length - buffer`, then falling to -1, and -1 beyond
        /// `max_length`.
        Bounded = "bounded",
        /// As in verl: it continues to fall below -1 beyond `max_length`.
        Verl = "verl",
    }
}

tamis_core::settings! {
    /// The lengths and the weight of [`SoftOverlong`].
    #[derive(Copy)]
    pub struct SoftOverlongSettings {
        /// How the penalty continues beyond `max_length`.
        form: OverlongForm = OverlongForm::Bounded;
        /// Tokens before `max_length` over which the penalty grows. Null: a fifth of `max_length`.
        buffer: Option<usize> = None, AtLeast(1.0);
        /// Length at which the penalty is full, in tokens. Null: `rollout.max_response_length`.
        max_length: Option<usize> = None, AtLeast(1.0);
        /// Size of the penalty at `max_length`.
        penalty_factor: f64 = 1.0, NonNegative;
    }
}

impl SoftOverlongSettings {
    /// `max_length` and `buffer`, with the values that null stands for.
    ///
    /// ```
    /// use tamis_env::reward::soft_overlong::SoftOverlongSettings;
    /// let settings = SoftOverlongSettings { max_length: Some(100), ..SoftOverlongSettings::default() };
    /// assert_eq!(settings.lengths(512), (100, 20));
    /// ```
    pub fn lengths(&self, limit: usize) -> (usize, usize) {
        let max_length = self.max_length.unwrap_or(limit);
        (max_length, self.buffer.unwrap_or((max_length / 5).max(1)))
    }
}

impl RewardSettings for SoftOverlongSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let (max_length, buffer) = self.lengths(context.max_length);
        Ok(Box::new(SoftOverlong::new(max_length as u64, buffer as u64, self.penalty_factor, self.form)?))
    }

    fn nature(&self) -> Nature {
        Nature::SHAPING
    }

    fn conflicts(&self, path: &str, limit: usize) -> Vec<Conflict> {
        let (max_length, buffer) = self.lengths(limit);
        let key = format!("{path}.buffer");
        let message = format!("`{key}` ({buffer}) is above the response limit ({max_length})");
        let hint = format!("use {max_length} or less");
        let conflict = Conflict { keys: vec![key, "rollout.max_response_length".to_owned()], message, hint };
        (buffer > max_length).then_some(conflict).into_iter().collect()
    }

    fn fill_lengths(&mut self, limit: usize) {
        let (max_length, buffer) = self.lengths(limit);
        (self.max_length, self.buffer) = (Some(max_length), Some(buffer));
    }
}

/// `score` is the penalty (0 or negative). Shaping.
#[derive(Debug, Clone, Copy)]
pub struct SoftOverlong {
    max_length: u64,
    buffer: u64,
    factor: f64,
    form: OverlongForm,
}

impl SoftOverlong {
    /// `max_length` and `buffer` in tokens; the penalty is multiplied by `factor` (verl's `penalty_factor`, 1
    /// unless set).
    pub fn new(max_length: u64, buffer: u64, factor: f64, form: OverlongForm) -> Result<Self, RewardError> {
        let fail = |expected, actual: String| Err(RewardError::parameter("soft_overlong", expected, &actual));
        if form == OverlongForm::Verl && buffer == 0 {
            return fail("a buffer of at least 1 token in the form `verl`", buffer.to_string());
        }
        if form == OverlongForm::Verl && buffer > max_length {
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

    /// The penalty of a completion of `length` tokens.
    pub fn penalty(self, length: u64) -> f64 {
        let start = self.max_length as f64 - self.buffer as f64;
        let length = length as f64;
        let penalty = if length <= start {
            0.0
        } else if self.form == OverlongForm::Verl || length <= self.max_length as f64 {
            (start - length) / self.buffer as f64
        } else {
            -1.0
        };
        // Without a penalty it is 0.0, not -0.0.
        if penalty == 0.0 { 0.0 } else { penalty * self.factor }
    }
}

impl RewardFunction for SoftOverlong {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        batch.iter().map(|input| RewardOutcome::score(self.penalty(input.num_written() as u64))).collect()
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
                OverlongForm::Bounded,
            )
            .unwrap();
            let rewards: Vec<f64> = tamis_golden::numbers(&case["inputs"]["length"])
                .iter()
                .map(|&length| function.penalty(length as u64))
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
                OverlongForm::Verl,
            )
            .unwrap();
            let lengths = tamis_golden::numbers(&case["inputs"]["length"]);
            let penalties: Vec<f64> = lengths
                .iter()
                .map(|&length| if is_on { function.penalty(length as u64) } else { 0.0 })
                .collect();
            let scores = tamis_golden::numbers(&case["inputs"]["score"]);
            let rewards: Vec<f64> =
                scores.iter().zip(&penalties).map(|(score, penalty)| score + penalty).collect();
            let expected = tamis_golden::numbers(&case["outputs"]["reward"]);
            tamis_golden::assert_close(name, &rewards, &expected, 1e-6, 1e-6);
            if is_on {
                let expected = tamis_golden::numbers(&case["outputs"]["overlong_reward"]);
                tamis_golden::assert_close(name, &penalties, &expected, 1e-6, 1e-6);
                let is_overlong: Vec<bool> = penalties.iter().map(|&penalty| penalty < 0.0).collect();
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
        insta::assert_snapshot!(SoftOverlong::new(10, 0, 1.0, OverlongForm::Verl).unwrap_err(), @"reward `soft_overlong` needs a buffer of at least 1 token in the form `verl`, got 0");
        insta::assert_snapshot!(SoftOverlong::new(10, 11, 1.0, OverlongForm::Verl).unwrap_err(), @"reward `soft_overlong` needs a buffer of at most the response limit in the form `verl`, got 11 > 10");
        insta::assert_snapshot!(SoftOverlong::new(10, 1, f64::NAN, OverlongForm::Bounded).unwrap_err(), @"reward `soft_overlong` needs a factor that is finite and not negative, got NaN");
    }
}
