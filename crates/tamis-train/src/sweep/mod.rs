//! `tamis sweep`: many runs from one file, each a process of its own.
//!
//! ```text
//! SWEEP.yaml -> SweepFile -> points (grid, list, baseline first) -> SweepPlan (names, folders, configurations) -> run
//!               file/        point.rs                               plan.rs, cost.rs                        runner.rs, child.rs
//! ```
//!
//! Everything that is wrong with the file and with the configuration of any run is found before the first one
//! begins. What the sweep knows of its runs lies in `<results>/.sweep/` ([`state`]); a run's own folder is as
//! `tamis train` makes it.

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
pub use runner::{Ended, RunOptions, SweepOutcome, run};
