//! Inputs of reward functions that use servers, and their outcomes.

use serde_json::json;
use tamis_core::group::PromptId;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::{RewardFunction, RewardInput, RewardOutcome};

/// A row with an extra column.
pub(crate) fn prompt(content: PromptContent) -> Prompt {
    let columns = serde_json::Map::from_iter([("rubric".to_owned(), json!("be kind"))]);
    let (ground_truth, data_source) = (Some("4".to_owned()), "sums".to_owned());
    Prompt { id: PromptId(0), content, ground_truth, data_source, columns, images: Vec::new(), place: None }
}

pub(crate) fn text_prompt() -> Prompt {
    prompt(PromptContent::Text("2+2?".to_owned()))
}

pub(crate) fn scored(
    function: &impl RewardFunction,
    prompt: &Prompt,
    completions: &[&str],
) -> Vec<RewardOutcome> {
    let inputs: Vec<RewardInput<'_>> =
        completions.iter().map(|completion| RewardInput::text(prompt, completion)).collect();
    function.score(&inputs)
}

pub(crate) fn failure(outcome: &RewardOutcome) -> String {
    match outcome {
        RewardOutcome::Failed(failure) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}
