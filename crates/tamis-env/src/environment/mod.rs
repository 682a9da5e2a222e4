//! Environments with several turns. A [`Game`](game::Game) has a state and named actions; it does not depend
//! on language models. An [`Environment`] is the text interface of an episode: it shows text, takes the text
//! of an answer, and returns the reward. Both are functions of their key: the same key gives the same boards
//! and the same luck in every process.

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

/// Why an environment failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnvironmentFault {
    /// It took too long.
    #[error("its environment gave no answer within {} s", limit.as_secs_f64())]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// None of its workers started in time.
    #[error(
        "no worker of its environment was ready within {} s (`environment.startup_timeout`)",
        limit.as_secs_f64()
    )]
    NotStarted {
        /// The limit.
        limit: Duration,
    },
    /// It cannot be made, broke down, or sent an invalid message.
    #[error("{0}")]
    Broke(String),
    /// No later trajectory can succeed either.
    #[error("{0}")]
    Lost(String),
}

/// The outcome of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnOutcome {
    /// Reward of the turn. `None`: it was not judged, for example if an environment gives a reward only at
    /// its end. An episode without a judged turn is unscored.
    pub reward: Option<f64>,
    /// Why the episode ends; `None`: it continues.
    pub end: Option<EpisodeEnd>,
    /// Numbers about the turn by name (`action_is_valid`, ...), for metrics.
    pub info: Vec<(Cow<'static, str>, f64)>,
    /// The fault, if the environment cannot continue. The trajectory then fails, independent of the other
    /// fields.
    pub fault: Option<EnvironmentFault>,
}

impl TurnOutcome {
    /// Adds a further outcome of the same turn.
    pub fn add(&mut self, more: Self) {
        self.reward = match (self.reward, more.reward) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.end = self.end.or(more.end);
        self.info.extend(more.info);
        self.fault = self.fault.take().or(more.fault);
    }

    /// The outcome of an environment that cannot continue.
    pub fn failed(fault: EnvironmentFault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }
}

/// Why an episode is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpisodeEnd {
    /// By the environment's own rules: it is solved, lost, or at its own limit.
    Terminated,
    /// By an outer limit: turns, actions, tokens.
    Truncated,
}

/// An environment with a text interface, at some point of an episode.
pub trait Environment: Send {
    /// The text before the policy's next answer.
    fn observe(&self) -> String;

    /// The same as messages of a conversation: one user message, unless it has another role (a tool's).
    fn messages(&self) -> Vec<Message> {
        vec![Message::new("user", self.observe())]
    }

    /// The conversation that it begins with, if that is not its prompt.
    fn opening(&self) -> Option<Vec<Message>> {
        None
    }

    /// Processes an answer. Unusable text is an answer too, with the penalty of the rules. It must not be
    /// called once the episode is over.
    fn act(&mut self, text: &str) -> TurnOutcome;

    /// Ends the episode after an answer, at an outer limit, and returns the reward of the present state;
    /// `None` if there is nothing to add. It must not be called once the episode is over. After it only
    /// [`Environment::is_success`] may be called.
    fn cut(&mut self) -> Option<TurnOutcome> {
        None
    }

    /// Whether its task is solved; `None` if that is not known here.
    fn is_success(&self) -> Option<bool>;
}
