//! Rollouts: the [`Generator`] contract and the [`Shell`] that drives a scheduler through a step.
//!
//! Data flows one way: a [`PromptSource`] gives prompts → the generator completes them → the [`Scorer`] scores the groups → their
//! metric goes to the scheduling machine of `tamis-core`, which judges them and whose commands the shell carries out until a step is ready,
//! skipped, or the run ends. [`serve`] puts the native engine behind HTTP.

pub mod clock;
pub mod fleet;
mod generator;
mod group_generator;
pub mod http;
pub mod native;
mod reward_health;
mod scorer;
pub mod serve;
pub mod server;
mod shell;
mod source;
pub mod wire;

pub use generator::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, Sample,
    SampleId, SamplePurpose, SampleRequest, Sampling, VersionSpan, Wait, Weights,
};
pub use group_generator::{
    GroupGenerator, GroupGeneratorError, GroupRequest, Outcome, Ticket, TicketPurpose,
};
pub use reward_health::{MOST_FAILED_ROUNDS, MissingRewards, RewardHealth};
pub use scorer::{Answer, AnswerJournal, JournalError, ScoreError, Scorer};
pub use shell::{
    Backend, Collected, Dependencies, End, Fate, Observer, Record, ReferencePass, Shell, ShellError,
    ShellSettings, metric_values,
};
pub use source::{Drawn, PreparedPrompt, PromptSource};
