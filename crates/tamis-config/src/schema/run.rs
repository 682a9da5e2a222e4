//! `run`: the run itself, its folder and its loggers.

use std::path::PathBuf;

use super::LoggerKind;
use crate::define::section;

section! {
    /// The run itself: its name, folder, seed, threads and loggers.
    pub struct RunConfig {
        /// Name of the run. The run folder is `dir/name`; where it is taken already, a number is appended.
        name: String = "run", NotEmpty, Fixed;
        /// Folder that run folders are created in.
        dir: PathBuf = "runs", NotEmpty, Fixed;
        /// Seed of every random draw. The same configuration and seed give the same run, bit for bit, on one
        /// machine.
        seed: u64 = "1", Any, Fixed;
        /// Worker threads. Null: one per core. Results do not depend on their number.
        threads: Option<usize> = "null", Between(1.0, 1024.0), Free;
        /// Places that metrics are written to, each at most once: a name, or a section with `kind` and settings. The
        /// default is `[console, jsonl, tensorboard]`.
        loggers: Vec<LoggerKind> = "[console, jsonl, tensorboard]", Any, Free;
    }
}
