//! A run from its configuration to its last step. The loop is `run_loop.rs`, one step of it `step.rs`.
//!
//! [`Run::open`] makes a run directory and everything in it, or opens one and puts the state of its last
//! checkpoint back; [`Run::run`] trains until the end, an interruption, or a stop with a diagnosis.

mod attempts;
mod critic;
mod early;
mod early_stop;
mod ending;
mod facts;
mod first_state;
mod learns_nothing;
mod look;
mod measure;
mod open;
mod recorder;
mod run_loop;
mod state;
mod step;
mod watch;

use crate::assemble::recipe::Recipe;
use crate::interrupt::Interrupt;
use crate::workers::Workers;

use attempts::Attempts;
use measure::Measurement;
use recorder::Recorder;

pub use ending::{Ending, RunSummary, Unbegun};
pub use learns_nothing::Untrained;
pub use open::{ConfigText, Opened, RunStart};
pub use state::{CarriedGroup, CriticState, LearningState, RunState, ScheduleState, ValidationHistory};

/// So many updates in a row whose gradient is not finite end the run, and so many steps in a row that make no
/// update of the policy: nothing says that it would recover.
const MOST_SKIPPED_UPDATES: u32 = 10;

/// A run in progress: parts that own what they hold and do not know each other.
pub struct Run {
    recipe: Recipe,
    workers: Workers,
    /// As of the last finished step: replaced whole, never edited in place.
    state: RunState,
    recorder: Recorder,
    measurement: Measurement,
    interrupt: Interrupt,
    attempts: Attempts,
    /// Whether this process has warned of groups without contrast in the batch: once is enough.
    has_warned_of_uniform_groups: bool,
    /// The next group when this process began.
    first_group: u64,
}
