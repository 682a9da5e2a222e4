//! A verifier of only the text after the reasoning.

use tamis_data::prompt::Prompt;

use super::function::{RewardFunction, RewardInput, RewardOutcome};

/// Passes the text after the last `</think>` to the inner function. A completion without one is passed as
/// empty, which every verifier scores as wrong (TRL's `reasoning_accuracy_reward`, 1.16.0).
pub struct AfterThink {
    function: Box<dyn RewardFunction>,
}

impl AfterThink {
    /// Wraps a function.
    pub fn new(function: Box<dyn RewardFunction>) -> Self {
        Self { function }
    }
}

fn cut<'a>(batch: &[RewardInput<'a>]) -> Vec<RewardInput<'a>> {
    let after = |completion: &str| completion.rfind("</think>").map_or(completion.len(), |place| place + 8);
    let cut = |input: &RewardInput<'a>| RewardInput {
        completion: &input.completion[after(input.completion)..],
        ..*input
    };
    batch.iter().map(cut).collect()
}

impl RewardFunction for AfterThink {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.function.score(&cut(batch))
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        self.function.votes(&cut(batch))
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        let think = |answer: String| format!("<think>\n</think>\n{answer}");
        self.function.gold_completions(prompt).into_iter().map(think).collect()
    }
}
