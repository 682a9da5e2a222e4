//! `tamis monitor` follows a run while it works and shows its progress. The run may be one of tamis, or of
//! any program whose log has one of the known formats.
//!
//! ```text
//!   files ──▶ tail (what was appended, whole lines) ──▶ format (a line: facts) ──▶ reading (steps)
//!                                                text, JSON, terminal ◀── summary ◀──┘
//! ```
//! [`Watch`] holds a path, a run directory or a log, and takes in what was written since it last looked; it
//! never fails on what a file holds, only on a file that cannot be read. Which format a log has is found line
//! by line, so that a log may have several: verl's filter-group log lines, `[Dynamic Sampling]`, what verl
//! and EasyR1 print, the log and the metrics of tamis. [`WatchedRun`] is what is known, with four figures
//! about the generated batches; [`text`] renders it.

mod fact;
mod format;
mod line;
mod reading;
mod sample;
mod step;
pub mod summary;
mod tail;
pub mod terminal;
pub mod text;
pub mod view;
mod watch;

pub use format::LogFormat;
pub use summary::WatchedRun;
pub use watch::Watch;
