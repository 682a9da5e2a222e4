//! The keys of a sandbox.

use std::path::PathBuf;

use tamis_core::setting::{Program, TimeSpan};

tamis_core::choice! {
    /// The protection that a sandbox requires before it runs anything.
    pub enum Required {
        /// None. A run reports missing protection once, at its start.
        None = "none",
        /// The code must have no network.
        NoNetwork = "no_network",
        /// All of it: limits, network, processes, files and system calls.
        All = "all",
    }
}

tamis_core::settings! {
    /// Limits on code that a policy wrote, and the interpreter that runs it.
    pub struct SandboxSettings {
        /// Python interpreter, 3.9 or newer, with the packages that the code may import; `run.python`: that
        /// of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Longest time of one execution.
        timeout: TimeSpan = TimeSpan::seconds(10), Any, Free;
        /// Memory of one execution in MiB, for all of its processes together.
        memory_mb: usize = 1024, Between(16.0, 1_048_576.0), Free;
        /// Bytes that are kept of standard output, and of standard error.
        max_output: usize = 1_048_576, Between(1.0, 1_073_741_824.0), Free;
        /// Most processes and threads of one execution.
        max_processes: usize = 16, Between(1.0, 4096.0), Free;
        /// Size of the working folder in MiB, and of the largest file in it.
        folder_mb: usize = 64, Between(1.0, 1_048_576.0), Free;
        /// Further files and folders that the code may read. Otherwise it can read only the interpreter's own
        /// and `/usr`.
        readable: Vec<PathBuf> = Vec::new(), Any, Free;
        /// Protection that is required before anything is run.
        required: Required = Required::None, Any, Free;
    }
}
