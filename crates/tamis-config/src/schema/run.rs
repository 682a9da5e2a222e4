//! `run`: the run itself, its folder and its loggers.

use std::path::PathBuf;
use tamis_core::setting::Program;
use tamis_core::settings;

use super::{ConsoleSettings, JsonlSettings, LoggerKind, TensorboardSettings};

settings! {
    /// The run itself: its name, folder, seed, threads and loggers.
    pub struct RunConfig {
        /// Name of the run. The run folder is `dir/name`. If that folder exists already, a number is
        /// appended.
        name: String = "run".to_owned(), NotEmpty;
        /// Folder that run folders are created in.
        dir: PathBuf = PathBuf::from("runs"), NotEmpty;
        /// Seed of every random draw. The same configuration and seed give the same run, bit for bit, on one
        /// machine.
        seed: u64 = 1;
        /// Worker threads. Null: one per core. Results do not depend on their number.
        threads: Option<usize> = None, Between(1.0, 1024.0), Free;
        /// Python interpreter of rewards, environments, tools, loggers and the learner if they name none of
        /// their own (their default is `run.python`, which means this key). A bare `python3` is that of the
        /// active environment (`VIRTUAL_ENV`, `CONDA_PREFIX`), otherwise the one beside the program `tamis`,
        /// otherwise that of `PATH`.
        python: Program = Program("python3".into()), NotEmpty, Free;
        /// Loggers that metrics are written to, each at most once: a name, or a section with `kind` and
        /// settings. The default is `[console, jsonl, tensorboard]`.
        loggers: Vec<LoggerKind> = vec![
            LoggerKind::Console(ConsoleSettings {}), LoggerKind::Jsonl(JsonlSettings {}),
            LoggerKind::Tensorboard(TensorboardSettings::default()),
        ], Any, Free;
    }
}
