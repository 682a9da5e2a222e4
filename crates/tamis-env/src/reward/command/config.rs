//! How a command is run.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of a reward command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandConfig {
    /// Program and arguments; the program is looked up on `PATH`, no shell is involved.
    pub argv: Vec<String>,
    /// The folder that it is started in; `None`: that of this process.
    pub working_dir: Option<PathBuf>,
    /// Processes in the pool, at least 1.
    pub num_processes: usize,
    /// Longest wait for the next answer while completions are outstanding.
    pub timeout: Duration,
    /// Added to the time-out until a fresh process has answered once (imports, model loading).
    pub startup_timeout: Duration,
    /// Restarts allowed without an answer between them, all processes together.
    pub max_restarts: u32,
    /// Completions sent to a process at once, at least 1.
    pub batch_size: usize,
    /// Longest answer line in bytes.
    pub max_line_bytes: usize,
}

impl Default for CommandConfig {
    fn default() -> Self {
        Self {
            argv: Vec::new(),
            working_dir: None,
            num_processes: 2,
            timeout: Duration::from_secs(30),
            startup_timeout: Duration::from_secs(60),
            max_restarts: 8,
            batch_size: 32,
            max_line_bytes: 1 << 20,
        }
    }
}
