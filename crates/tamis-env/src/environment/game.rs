//! Worlds with named actions.

use tamis_core::random::Key;

/// What an action did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Played {
    /// Reward of the action.
    pub reward: f64,
    /// Whether the game is over, won or lost.
    pub is_over: bool,
    /// Whether it changed anything.
    pub is_effective: bool,
}

/// A puzzle or a game at some point of play.
pub trait Game: Send {
    /// Each symbol of [`Game::observe`] with its meaning, in the order in which they are explained; empty if
    /// nothing needs an explanation.
    fn legend(&self) -> Vec<(String, String)>;

    /// Names of all actions, in the order in which they are listed; empty if actions follow a rule that the
    /// instruction gives (`place 3 at 1 2`).
    fn actions(&self) -> Vec<String>;

    /// Characters of actions.
    fn letters(&self) -> String {
        self.actions().concat()
    }

    /// The state as text, without a line break at its end.
    fn observe(&self) -> String;

    /// Plays an action. Returns `None` and does nothing if there is no action of that name; case is ignored.
    /// It must not be called once the game is over.
    fn play(&mut self, action: &str) -> Option<Played>;

    /// A perfect player's next action; `None` if the game does not know one.
    fn expert(&self) -> Option<String> {
        None
    }

    /// An action of a player who knows only how actions are written; `None` if there is none. Counter 0 of
    /// the key is not used.
    fn guess(&self, draw: Key) -> Option<String> {
        let actions = self.actions();
        actions.get(draw.below(1, actions.len() as u64) as usize).cloned()
    }

    /// Whether it is won.
    fn is_success(&self) -> bool;
}

/// The index of an action among these names, ignoring case.
pub fn find_action(names: &[impl AsRef<str>], action: &str) -> Option<usize> {
    names.iter().position(|name| name.as_ref().eq_ignore_ascii_case(action.trim()))
}
