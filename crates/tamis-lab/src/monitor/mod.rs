//! `tamis monitor` follows a run while it works and shows its progress. The run may be one of tamis, or of
//! any program whose log has one of the known formats.
//!
//! ```text
//!   files ──▶ tail (what was appended, whole lines) ──▶ format (a line: facts) ──▶ reading (steps)
//!                                                text, JSON, terminal ◀── summary ◀──┘
//! ```
//! [`Watch`] holds a path, a run directory or a log, and reads what was written since the last time. It never
//! fails on the contents of a file, only on a file that cannot be read. The format of a log is recognised
//! line by line, so one log may have several: verl's filter-group log lines, `[Dynamic Sampling]`, what verl
//! and EasyR1 print, the log and the metrics of tamis. [`WatchedRun`] holds everything known about the run,
//! with four figures about the generated batches; [`text`] renders it.

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
