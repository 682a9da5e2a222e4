//! `environment`: the reward of the prompt's environment.

use std::collections::BTreeMap;

use tamis_core::group::Score;

use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};

tamis_core::settings! {
    /// `score` is the sum of the rewards of an episode's turns, which are also given per turn. `acc` is 1 if
    /// the environment reports that it is solved, otherwise 0. If the environment does not report this, `acc`
    /// is 1 if `score` is above 0. No answer for a completion without an environment, or without any reward:
    /// a program that gives none, tools, or a limit before the only reward at the environment's end.
    #[derive(Copy)]
    pub struct EnvironmentReward {}
}

impl RewardSettings for EnvironmentReward {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::VERIFIER
    }
}

impl RewardFunction for EnvironmentReward {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| {
            let Some(episode) = input.episode else { return RewardOutcome::NoAnswer };
            if episode.is_unscored {
                return RewardOutcome::NoAnswer;
            }
            let rewards = episode.rewards();
            let score = Score { value: rewards.iter().sum(), per_token: None, per_turn: Some(rewards) };
            let is_solved = episode.is_success.unwrap_or(score.value > 0.0);
            let acc = Score::of(f64::from(u8::from(is_solved)));
            RewardOutcome::Scored(BTreeMap::from([("score".to_owned(), score), ("acc".to_owned(), acc)]))
        };
        batch.iter().map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::{Episode, Turn};

    use super::*;
    use crate::reward::test_prompt;

    #[test]
    fn it_is_the_sum_with_its_parts_and_success_apart() {
        let prompt = test_prompt("");
        let turn = |reward| Turn { reward, ..Turn::default() };
        let episode = Episode {
            turns: vec![turn(-0.5), turn(0.0), turn(2.0)],
            is_success: Some(true),
            ..Episode::default()
        };
        let played = RewardInput { episode: Some(&episode), ..RewardInput::text(&prompt, "x") };
        let outcomes = EnvironmentReward::default().score(&[played, RewardInput::text(&prompt, "x")]);
        let RewardOutcome::Scored(scores) = &outcomes[0] else { panic!("{outcomes:?}") };
        assert_eq!(scores["score"].per_turn.as_deref(), Some(&[-0.5, 0.0, 2.0][..]));
        assert_eq!((scores["score"].value, scores["acc"].value), (1.5, 1.0));
        assert_eq!(outcomes[1], RewardOutcome::NoAnswer);
    }

    /// Whatever numbers an environment gives, none of them takes its reward away.
    #[test]
    fn no_answer_is_what_the_episode_says_and_no_name_of_a_number() {
        let prompt = test_prompt("");
        let info = BTreeMap::from([("unscored".to_owned(), 1.0)]);
        let scored =
            Episode { turns: vec![Turn { reward: 1.0, info, ..Turn::default() }], ..Episode::default() };
        let unscored = Episode { is_unscored: true, ..scored.clone() };
        let input = |episode| RewardInput { episode: Some(episode), ..RewardInput::text(&prompt, "x") };
        let outcomes = EnvironmentReward::default().score(&[input(&scored), input(&unscored)]);
        assert!(matches!(outcomes[0], RewardOutcome::Scored(_)), "{outcomes:?}");
        assert_eq!(outcomes[1], RewardOutcome::NoAnswer);
    }
}
