//! A run from its configuration to its last step. The loop is `run_loop.rs`, one step of it `step.rs`.
//!
//! [`Run::open`] makes a run directory and everything in it, or opens one and restores the state of its last
//! checkpoint. [`Run::run`] trains until the end, an interruption, or a stop with a diagnosis. [`train`] does
//! both, and repeats them if the learner is lost.

mod attempts;
mod blame;
mod close;
mod collect;
mod critic;
mod divergence;
mod early;
mod early_stop;
mod ending;
mod facts;
mod first_state;
mod generated;
mod inputs;
mod learns_nothing;
mod look;
mod make_workers;
mod measure;
mod measurement;
mod open;
mod prepare;
mod recorder;
mod recovery;
mod refusals;
mod rehearsal;
mod run_loop;
mod sft_alone;
mod sft_figures;
mod sft_phase;
mod sft_state;
mod start;
mod state;
mod step;
mod step_details;
mod step_metrics;
mod step_record;
mod untrained;
mod updating;
mod watch;

use crate::assemble::recipe::Recipe;
use crate::interrupt::Interrupt;
use crate::workers::Workers;

use attempts::Attempts;
use measurement::Measurement;
use recorder::Recorder;
use recovery::Recovery;

pub use ending::{Ending, RunSummary, not_begun, not_resumed};
pub use open::Opened;
pub use recovery::{TrainEnd, train};
pub use rehearsal::{Rehearsal, rehearse};
pub use start::{ConfigText, RunStart};
pub use state::{CarriedGroup, CriticState, LearningState, RunState, ScheduleState, ValidationHistory};
pub use untrained::Untrained;

/// A run in progress. Its parts own what they hold and do not know each other.
pub struct Run {
    recipe: Recipe,
    workers: Workers,
    /// The state after the last finished step. It is replaced whole, never edited in place.
    state: RunState,
    recorder: Recorder,
    measurement: Measurement,
    interrupt: Interrupt,
    attempts: Attempts,
    /// Whether this process has warned about groups in the batch without contrast. Once is enough.
    has_warned_of_uniform_groups: bool,
    /// Whether the policy's logits were finite after the last step. If not, its weights are not saved.
    gives_numbers: bool,
    /// Id of the next group when this process began.
    first_group: u64,
    recovery: Option<Recovery>,
}
