//! `run`: the run itself, its folder and its loggers.

use std::path::PathBuf;

use tamis_core::choice;

use crate::define::section;

choice! {
    /// A place that metrics are written to.
    pub enum LoggerKind {
        /// One line a step on the standard error stream.
        Console = "console",
        /// `metrics.jsonl` in the run folder, one object a step.
        Jsonl = "jsonl",
        /// Event files for TensorBoard, under `tensorboard/` in the run folder.
        Tensorboard = "tensorboard",
    }
}

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
        /// Places that metrics are written to.
        loggers: Vec<LoggerKind> = "[console, jsonl, tensorboard]", Any, Free;
    }
}
