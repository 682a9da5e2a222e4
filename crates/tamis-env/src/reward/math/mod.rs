//! `math`: the last `\boxed{}` against the ground truth, by exact value.
//!
//! [`lexer`] cuts an answer into tokens, [`parser`] and [`expression`] read them by a grammar into a
//! [`MathValue`], whose numbers are [`quotient`]s of [`polynomial`]s in canonical form. Nothing is compared
//! in floating point: `0.333` is not `1/3`. What the grammar does not hold, and a value beyond 128-bit
//! integers, is text and equal only as text.

pub mod expression;
pub mod lexer;
pub mod parser;
pub mod polynomial;
pub mod quotient;
pub mod unit;
pub mod value;

use tamis_data::prompt::Prompt;

use super::boxed::last_boxed;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::gsm8k::answer_part;
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};
pub use parser::read;
pub use value::{MathValue, is_equal};

tamis_core::settings! {
    /// `score` and `acc` are 1 if the last `\boxed{}` of the completion equals the ground truth, otherwise 0
    /// (also without a box, or with one that does not close). No answer if the ground truth is missing,
    /// empty, or several words of prose.
    ///
    /// The ground truth may be an answer or a solution that ends in a box of its own.
    #[derive(Copy)]
    pub struct Math {}
}

/// The part of a ground truth that is compared: the inside of its last box, otherwise the answer of a GSM8K
/// solution, or all of it.
pub fn gold(truth: &str) -> &str {
    last_boxed(truth).or_else(|| answer_part(truth)).unwrap_or(truth)
}

/// Whether a completion is right; `None` if the ground truth is no answer.
pub fn verify(completion: &str, truth: &str) -> Option<bool> {
    let gold = gold(truth);
    let is_words = |text: &str| text.chars().all(|letter| letter.is_alphabetic() || letter.is_whitespace());
    let is_prose = gold.split_whitespace().count() > 1 && is_words(gold);
    let gold = read(gold).filter(|_| !is_prose)?;
    Some(last_boxed(completion).and_then(read).is_some_and(|answer| is_equal(&answer, &gold)))
}

impl RewardSettings for Math {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::VERIFIER
    }
}

impl RewardFunction for Math {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| {
            let Some(truth) = &input.prompt.ground_truth else { return RewardOutcome::NoAnswer };
            match verify(input.completion, truth) {
                None => RewardOutcome::NoAnswer,
                Some(is_correct) => RewardOutcome::verified(f64::from(u8::from(is_correct)), is_correct),
            }
        };
        batch.iter().map(judge).collect()
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        let (mut seen, mut votes) = (Vec::<(&str, MathValue)>::new(), Vec::with_capacity(batch.len()));
        for input in batch {
            let read = last_boxed(input.completion).and_then(|answer| Some((answer, read(answer)?)));
            let Some((answer, value)) = read else {
                votes.push(String::new());
                continue;
            };
            let first = seen.iter().find(|(_, other)| is_equal(&value, other)).map(|(first, _)| *first);
            votes.push(first.unwrap_or(answer).to_owned());
            if first.is_none() {
                seen.push((answer, value));
            }
        }
        Some(votes)
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        prompt.ground_truth.iter().map(|truth| format!("\\boxed{{{}}}", gold(truth))).collect()
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
