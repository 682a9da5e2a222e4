//! Kernel: rollouts. The [`Generator`] contract and the [`Dispatcher`] that drives a scheduler through
//! a step.
//!
//! Data flows one way. A [`PromptSource`] supplies prompts. The generator completes them, sample by
//! sample; those that are [`Episodes`] have an environment between their turns. The [`Scorer`] scores
//! each trajectory as it ends. The metric of whole groups goes to the scheduling machine of
//! `tamis-core`, which judges them. The dispatcher carries out the machine's commands until a step is
//! ready, skipped, or the run ends.

pub mod api;
pub mod asking;
pub mod body;
pub mod call_server;
pub mod caller;
pub mod clock;
mod complete;
pub mod connections;
mod dispatcher;
pub mod environment_server;
mod episodes;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod fleet;
mod generator;
pub mod http;
mod inbox;
pub mod json_tree;
pub mod judge;
pub mod launch;
pub mod native;
pub mod programs;
pub mod prompt_template;
mod record;
mod reward_health;
pub mod reward_model;
mod sample_journal;
mod scorer;
pub mod server;
mod source;
#[cfg(test)]
mod support;
pub mod teacher;
pub mod wire;

pub use complete::{CompletionWorkers, complete};
pub use dispatcher::{
    Beside, Dependencies, DispatchError, Dispatcher, DispatcherSettings, Next, Observer, OnStop, OrderLog,
    PublicationEnd, Reference, ReferencePass, SampleEnd, Taken,
};
pub use episodes::{Agents, Between, Episodes, Plays, TokenLimits, Worlds, conversation_of, messages_of};
pub use generator::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, Sample,
    SampleId, SamplePurpose, SampleRequest, Sampling, VersionSpan, Wait, Weights,
};
pub use inbox::{FaultyEpisodes, Ignored, Inbox, Unexpected};
pub use record::{Collected, End, Fate, Generation, Record, metric_values};
pub use reward_health::{MOST_FAILED_ROUNDS, MissingRewards, RewardHealth};
pub use sample_journal::{Beginning, Journalled, SampleIdentity, SampleJournal, SampleMemory, SampleOutcome};
pub use scorer::{
    AnswerJournal, AnswerJournalError, JournaledAnswer, MemberId, ScoreError, ScoreEvent, ScoreRequest,
    Scorer,
};
pub use source::{DrawnPrompt, DrawnPrompts, PreparedPrompt, PromptSource};
