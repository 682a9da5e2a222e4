//! `tamis sweep` plans many runs from one file and starts each as a `tamis train` process of its own.
//!
//! ```text
//! SWEEP.yaml -> SweepFile -> points (grid, list, baseline first) -> SweepPlan (names, folders, configurations) -> run
//!               file/        point.rs                               plan.rs, cost.rs                        runner.rs, child.rs
//! ```
//! All mistakes in the file and in the configurations of its runs are found before the first run begins. The
//! state of the sweep is in `<results>/.sweep/` ([`state`]). The folder of a run is as `tamis train` makes
//! it. The caller supplies what only the trainer knows: the check of a configuration, and the GPUs of this
//! machine.

pub mod child;
pub mod cost;
pub mod error;
pub mod file;
pub mod name;
pub mod plan;
pub mod point;
pub mod progress;
pub mod runner;
pub mod state;

pub use error::SweepError;
pub use file::SweepFile;
pub use plan::{PlanOptions, PlannedRun, SweepPlan};
pub use runner::{Ended, FailedRun, RunOptions, SweepOutcome, run};
