//! Environments of many turns: what a policy sees, what its answer does, and when it is over.
//! A [`Game`](game::Game) is a world with named actions and knows nothing of language models. [`Environment`]
//! is what an episode speaks to: it shows text, takes the text of an answer, and says what that earned. Both
//! are functions of the key that they were made from: the same key gives the same boards and the same luck in
//! every process.

pub mod bandit;
pub mod context;
pub mod countdown;
pub mod foreign;
pub mod frozen_lake;
pub mod game;
pub mod kind;
pub mod names;
pub mod plain;
pub mod program;
pub mod prompting;
pub mod rubik_2x2;
pub mod sokoban;
pub mod sudoku;
pub mod tools;
pub mod twenty_forty_eight;

use std::borrow::Cow;
use std::time::Duration;

use tamis_data::prompt::Message;
use thiserror::Error;

/// Why an environment is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnvironmentFault {
    /// It took too long.
    #[error("its environment gave no answer within {} s", limit.as_secs_f64())]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// No worker of it came up in time.
    #[error(
        "no worker of its environment was ready within {} s: `environment.startup_timeout` is how long one may take",
        limit.as_secs_f64()
    )]
    NotStarted {
        /// The limit.
        limit: Duration,
    },
    /// It cannot be made, broke down, or said what nobody understands.
    #[error("{0}")]
    Broke(String),
    /// Nothing is left to play in: no later trajectory fares better.
    #[error("{0}")]
    Lost(String),
}

/// What an answer came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnOutcome {
    /// Reward of the turn.
    /// `None`: it was not judged, as where an environment pays at its own end alone. An episode of which no
    /// turn was judged is unscored.
    pub reward: Option<f64>,
    /// Why no further answer is asked for; `None`: the episode goes on.
    pub end: Option<EpisodeEnd>,
    /// Numbers about the turn by name (`action_is_valid`, ...), for metrics.
    pub info: Vec<(Cow<'static, str>, f64)>,
    /// What went wrong, where the environment cannot go on: the trajectory fails, whatever else is said here.
    pub fault: Option<EnvironmentFault>,
}

impl TurnOutcome {
    /// Takes in what the same turn came to beyond that.
    pub fn add(&mut self, more: Self) {
        self.reward = match (self.reward, more.reward) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.end = self.end.or(more.end);
        self.info.extend(more.info);
        self.fault = self.fault.take().or(more.fault);
    }

    /// Of an environment that cannot go on.
    pub fn failed(fault: EnvironmentFault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }
}

/// Why an episode is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpisodeEnd {
    /// The world came to an end: solved, lost, or at the longest that it lasts by its own rules.
    Terminated,
    /// Somebody else's limit came first: turns, actions, tokens.
    Truncated,
}

/// A world that is acted in by text, at some point of an episode.
pub trait Environment: Send {
    /// What the policy is shown before its next answer.
    fn observe(&self) -> String;

    /// The same as the messages of a conversation: one of the user, unless it is another's (a tool's).
    fn messages(&self) -> Vec<Message> {
        vec![Message::new("user", self.observe())]
    }

    /// The conversation that it begins with, where that is not its prompt.
    fn opening(&self) -> Option<Vec<Message>> {
        None
    }

    /// Takes an answer in. Text that says nothing usable is an answer too: it costs what the rules say. Not
    /// called once the episode is over.
    fn act(&mut self, text: &str) -> TurnOutcome;

    /// Ends the episode after an answer, at a limit that it does not know: what it is worth as it stands.
    /// `None` where it has nothing to add. Not called once the episode is over, and nothing is called after
    /// it but [`Environment::is_success`].
    fn cut(&mut self) -> Option<TurnOutcome> {
        None
    }

    /// Whether its task is solved; `None` where nobody here can say.
    fn is_success(&self) -> Option<bool>;
}
