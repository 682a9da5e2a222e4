//! The page of `tamis report`, over made-up runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod figures;
mod fixture;
mod hostile;
mod large;
mod structure;
mod unusual;
