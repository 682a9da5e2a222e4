//! `environment`: what the prompt's environment gave.

use std::collections::BTreeMap;

use tamis_core::group::Score;

use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, RewardContext, RewardSettings};

/// Number about a last turn by which a program says that it gave no reward.
pub const UNSCORED: &str = "unscored";

tamis_core::settings! {
    /// `score` is the sum of the rewards of an episode's turns, with the reward of each as its part; `acc` is 1
    /// where the environment calls it solved, else 0. No answer for a completion that was played in no
    /// environment, or by a program that gave no reward.
    #[derive(Copy)]
    pub struct EnvironmentReward {}
}

impl RewardSettings for EnvironmentReward {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn is_verifier(&self) -> bool {
        true
    }
}

impl RewardFunction for EnvironmentReward {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| {
            let Some(episode) = input.episode else { return RewardOutcome::NoAnswer };
            if episode.turns.iter().any(|turn| turn.info.contains_key(UNSCORED)) {
                return RewardOutcome::NoAnswer;
            }
            let rewards = episode.rewards();
            let score = Score { value: rewards.iter().sum(), per_token: None, per_turn: Some(rewards) };
            let acc = Score::of(f64::from(u8::from(episode.is_success)));
            RewardOutcome::Scored(BTreeMap::from([("score".to_owned(), score), ("acc".to_owned(), acc)]))
        };
        batch.iter().map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;
    use tamis_core::group::{Episode, PromptId, Turn};
    use tamis_data::prompt::{Prompt, PromptContent};

    use super::*;

    #[test]
    fn it_is_the_sum_with_its_parts_and_success_apart() {
        let prompt = Prompt {
            id: PromptId(0),
            content: PromptContent::Text("S".to_owned()),
            ground_truth: None,
            data_source: String::new(),
            columns: Map::new(),
            images: Vec::new(),
        };
        let turn = |reward| Turn { reward, ..Turn::default() };
        let episode =
            Episode { turns: vec![turn(-0.5), turn(0.0), turn(2.0)], is_success: true, is_cut: false };
        let played = RewardInput { episode: Some(&episode), ..RewardInput::text(&prompt, "x") };
        let outcomes = EnvironmentReward::default().score(&[played, RewardInput::text(&prompt, "x")]);
        let RewardOutcome::Scored(scores) = &outcomes[0] else { panic!("{outcomes:?}") };
        assert_eq!(scores["score"].per_turn.as_deref(), Some(&[-0.5, 0.0, 2.0][..]));
        assert_eq!((scores["score"].value, scores["acc"].value), (1.5, 1.0));
        assert_eq!(outcomes[1], RewardOutcome::NoAnswer);
    }
}
