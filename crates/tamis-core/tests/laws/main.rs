//! Laws that hold for every batch: of advantages, objectives, corrections and diagnostics, and of how batches
//! are cut and distributed.

#![expect(clippy::float_cmp, reason = "most laws here hold bit for bit")]
#![expect(clippy::unwrap_used, reason = "a generated batch that fails has failed")]

mod advantage;
mod balance;
mod batch;
mod correction;
mod critic;
mod diagnostics;
mod distillation;
mod edges;
mod given;
mod losses;
mod objective;
mod recipes;
mod registry;
mod settings;
