//! A reward that tamis does not have, as it would be written into it: `docs/adding-an-algorithm.md` walks
//! through this file.
//!
//! ```text
//! cargo run -p tamis-env --example new_reward
//! ```

use tamis_core::group::PromptId;
use tamis_core::{settings, tagged};
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::{
    BuildError, Nature, RewardContext, RewardFunction, RewardInput, RewardOutcome, RewardSettings,
};

// [reward]
settings! {
    /// The share of the wanted words that a completion has.
    pub struct Keywords {
        /// The words.
        words: Vec<String> = Vec::new(), NotEmpty;
        /// Share from which on a completion is right.
        enough: f64 = 1.0, Probability;
    }
}

impl RewardFunction for Keywords {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let score = |input: &RewardInput<'_>| {
            let found = self.words.iter().filter(|word| input.completion.contains(word.as_str())).count();
            let share = found as f64 / self.words.len() as f64;
            // `score` is trained on; `acc` is 1 if the answer is right.
            RewardOutcome::verified(share, share >= self.enough)
        };
        batch.iter().map(score).collect()
    }
}

impl RewardSettings for Keywords {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(self.clone()))
    }

    fn nature(&self) -> Nature {
        Nature::VERIFIER
    }
}
// [/reward]

// [reward registration]
tagged! {
    /// Which reward function. Each kind has keys of its own.
    pub enum RewardKind: RewardSettings {
        /// The share of the wanted `words` that a completion has.
        Keywords(Keywords) = "keywords",
    }
}
// [/reward registration]

/// Reads the reward as a configuration would hold it, and scores with it.
///
/// # Errors
/// It is not what the page describes.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As a configuration writes it: `reward: [{kind: keywords, words: [because, therefore]}]`.
    let kind: RewardKind =
        serde_json::from_str(r#"{"kind": "keywords", "words": ["because", "therefore"]}"#)?;
    let function = kind.build(&RewardContext::alone("reasons", 512))?;

    let prompt = Prompt {
        id: PromptId(0),
        content: PromptContent::Text("Why?".to_owned()),
        ground_truth: None,
        data_source: String::new(),
        columns: serde_json::Map::new(),
        images: Vec::new(),
        place: None,
    };
    let completions = ["because it is, therefore it is", "because"];
    let outcomes = function.score(&completions.map(|completion| RewardInput::text(&prompt, completion)));
    let numbers = |name: &str| outcomes.iter().map(|outcome| outcome.get(name)).collect::<Vec<_>>();
    assert_eq!(numbers("score"), [Some(1.0), Some(0.5)]);
    assert_eq!(numbers("acc"), [Some(1.0), Some(0.0)]);
    Ok(())
}
