//! A [`Game`] without words, for models that know none: the state, and one action by its name.

use super::game::Game;
use super::{Environment, EpisodeEnd, TurnOutcome};

/// A game whose observation is its state and a line break, and whose answers are names of actions.
///
/// An answer that names no action changes nothing and costs the penalty.
pub struct Plain {
    game: Box<dyn Game>,
    max_turns: usize,
    penalty: f64,
    num_turns: usize,
}

impl Plain {
    /// At the game's start; `penalty`: reward of an answer that names no action.
    pub fn new(game: Box<dyn Game>, max_turns: usize, penalty: f64) -> Self {
        Self { game, max_turns, penalty, num_turns: 0 }
    }
}

impl Environment for Plain {
    fn observe(&self) -> String {
        format!("{}\n", self.game.observe())
    }

    fn act(&mut self, text: &str) -> TurnOutcome {
        self.num_turns += 1;
        let played = self.game.play(text.trim());
        let end = match played {
            Some(played) if played.is_over => Some(EpisodeEnd::Terminated),
            _ if self.num_turns >= self.max_turns => Some(EpisodeEnd::Truncated),
            _ => None,
        };
        let number = |is: bool| f64::from(u8::from(is));
        TurnOutcome {
            reward: Some(played.map_or(self.penalty, |played| played.reward)),
            end,
            info: vec![
                ("action_is_valid".into(), number(played.is_some())),
                ("action_is_effective".into(), number(played.is_some_and(|played| played.is_effective))),
                ("num_actions".into(), number(played.is_some())),
            ],
            fault: None,
        }
    }

    fn is_success(&self) -> Option<bool> {
        Some(self.game.is_success())
    }
}
