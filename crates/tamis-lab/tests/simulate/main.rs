//! Schedules on a virtual clock: against closed forms, a simulation of its own and figures of real trainers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clock;
mod frontier;
mod verl_v1;
mod worlds;
