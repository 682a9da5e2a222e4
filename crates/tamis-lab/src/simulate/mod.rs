//! Simulates schedules of rollout groups on a virtual clock: the cost of each one, its time, and what it
//! trains on, before a GPU is rented.
//!
//! ```text
//! simulate.* -> World (world.rs): pass rates (pass_rates.rs), lengths (completion.rs), servers (fleet.rs)
//! policies   -> a scheduler and a selector of tamis-core each (policy.rs, prompt_order.rs); verl's default
//!               trainer has a buffer of its own (machine.rs, replay_buffer.rs)
//! both       -> a run (driver.rs), event by event, measured (measure.rs) for a table and a page
//! ```
//! The scheduler and the selector are those of a real run; only their surroundings are simulated. Every
//! random number is keyed by prompt and visit, so all policies get the same prompts and the same completions.

mod bound;
mod completion;
mod driver;
mod facts;
mod fleet;
mod lognormal;
mod machine;
mod measure;
pub mod page;
mod pass_rates;
mod policy;
mod prompt_order;
mod replay_buffer;
mod rollout_rates;
mod simulation;
mod table;
mod window;
mod world;

pub use bound::{LowerBound, NoBound};
pub use completion::{Completions, SimulatedCompletion};
pub use facts::Fact;
pub use measure::PolicyResult;
pub use pass_rates::Population;
pub use simulation::{Simulation, SimulationProgress, simulate, simulate_in, simulate_watched};
pub use world::SimulatedWorld;
