//! Scheduling state machines, which decide what is generated next and what is trained on.
//!
//! A scheduler takes [`Event`]s (prompts dispatched, a group scored, a group failed, a step trained, weights
//! published) and answers with [`Command`]s (draw prompts, this group was dropped, train on these groups,
//! stop with this diagnosis). It does no I/O and reads no clock: the same events give the same commands. Its
//! whole state is serialisable, so a resumed run continues as if it had not been interrupted. The trainer,
//! the tests and the simulator drive the same machine.
//!
//! | module | contents |
//! |---|---|
//! | `scheduler` | the machine: what every mode does with an event, around the policy of its mode |
//! | `settings` | the choices of a run: batch sizes, limits, treatment of surplus |
//! | `protocol` | events, commands, and the errors if they do not fit |
//! | `run` | the state of a run in every mode, and the ends of a step |
//! | `ledger` | the place of every group: the only code that moves one |
//! | `rounds` | the policy of whole rounds |
//! | `round_limit` | how many rounds a step may take |
//! | `round_size` | how many prompts a round draws |
//! | `streaming` | the policy that works group by group |
//! | `accounting` | the place of every generated group, and the identity that must hold |
//! | `barren` | epochs that kept nothing, and when there are enough of them to end the run |
//! | `copies` | which kept groups are copied if too few were kept |
//! | `group_summary` | the numbers of a scored group |
//! | `tally` | counts of a round, step or epoch |
//! | [`report`] | the lines and metrics of a round and a step |
//! | [`yields`] | keep probabilities, and how many rounds they mean |
//! | [`diagnosis`] | why a run stopped for lack of signal, and what to change |
//! | `progress` | steps, rounds, epochs and prompts so far |
//! | `step_updates` | what keeps a mini-batch from being trained on before its step is complete |
//! | `mini_batch` | how a step's groups are cut into optimizer updates |

mod accounting;
mod barren;
mod copies;
pub mod diagnosis;
mod group_summary;
#[cfg(test)]
mod laws;
mod ledger;
mod mini_batch;
mod progress;
mod protocol;
pub mod report;
mod round_limit;
mod round_size;
mod rounds;
mod run;
mod scheduler;
pub mod selector;
mod settings;
mod step_updates;
mod streaming;
mod tally;
pub mod yields;

pub use accounting::{Accounting, Count, Members, Spent, Unbalanced};
pub use diagnosis::{Diagnosis, PassedOver, Recommendation, SkipReason, StopCause};
pub use group_summary::{FirstMembers, GroupFacts, GroupSummary};
pub use mini_batch::mini_batches;
pub use progress::Progress;
pub use protocol::{Command, Event, Result, RunEnd, ScheduleError, StepClose};
pub use report::{RoundReport, StepReport};
pub use round_limit::{MOST_AUTO_BATCHES, RoundLimit, UNKNOWN_BATCHES};
pub use round_size::{MOST_BATCHES, RoundSize};
pub use scheduler::Scheduler;
pub use settings::{
    FillOrder, InFlight, OnEmptyRound, OnExhausted, OnLimit, ScheduleSettings, SettingsError, Surplus,
};
pub use step_updates::StepUpdates;
pub use streaming::{Admission, StreamingSettings};
pub use tally::Tally;
