//! Kernel: a training run from its configuration to its end.
//!
//! The loop is [`run`]'s `run_loop.rs` (collect the groups of a step, train on them, record the results), and
//! one step is its `step.rs`. Below it, each folder uses only those after it: [`credit`] makes advantages of
//! a step's groups; [`workers`] has what generates and scores, and its journals; [`assemble`] turns a
//! validated configuration into ready objects; [`error`] has the reasons why a run cannot begin or continue;
//! [`measure`] validates and makes metrics; [`native`] is the built-in engine as learner and as generator;
//! [`learner`] is the contract of learners, and trains one on a step's batch; [`prompts`] become tokens and
//! are drawn in order; [`own_function`] calls a loss or an advantage in a user's Python file; [`checkpoint`]
//! saves what a resume needs. All of them may use [`python_program`] and [`interrupt`]. [`launcher`] is the
//! contract of programs that start learners and servers elsewhere, and [`outside`] what a caller passes in.

pub mod api_key;
pub mod assemble;
pub mod checkpoint;
pub mod credit;
pub mod error;
pub mod evaluate;
pub mod export;
pub mod interrupt;
pub mod launcher;
pub mod learner;
pub mod measure;
pub mod native;
pub mod outside;
pub mod own_function;
pub mod prompts;
pub mod python_program;
pub mod run;
#[cfg(test)]
mod support;
pub mod workers;
