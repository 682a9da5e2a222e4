//! The keys of agents as programs.

use std::path::PathBuf;

use tamis_core::setting::TimeSpan;

tamis_core::settings! {
    /// A program that calls OpenAI's API; the policy answers.
    pub struct ProgramEnvironmentSettings {
        /// The program and its arguments.
        argv: Vec<String> = Vec::new(), NotEmpty;
        /// Working directory of the program, for relative paths in `argv`. Null: the folder of the
        /// configuration file with `argv`, or the current folder for the command line.
        working_dir: Option<PathBuf> = None, NotEmpty, Free;
        /// Longest time of an episode. A program that takes longer is killed, and its group fails.
        timeout: TimeSpan = TimeSpan::seconds(600), Any, Free;
        /// Most calls of an episode that are answered. Further ones are refused.
        max_calls: usize = 64, Between(1.0, 1e6);
        /// Most programs that run at the same time. Other episodes wait.
        max_concurrent: usize = 16, Between(1.0, 4096.0), Free;
        /// Name of the policy's model for the program.
        model: String = "policy".to_owned(), NotEmpty, Free;
    }
}
