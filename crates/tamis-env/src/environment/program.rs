//! The keys of agents as programs.

use std::path::PathBuf;

use tamis_core::setting::TimeSpan;

tamis_core::settings! {
    /// A program that speaks OpenAI's API and is answered by the policy.
    pub struct ProgramEnvironmentSettings {
        /// The program and its arguments.
        argv: Vec<String> = Vec::new(), NotEmpty;
        /// Working directory of the program, from which relative paths in `argv` are taken. Null: the folder
        /// of the configuration file that holds `argv`, or the current one for the command line.
        working_dir: Option<PathBuf> = None, NotEmpty, Free;
        /// Longest time of an episode. A program that takes longer is ended, and its group fails.
        timeout: TimeSpan = TimeSpan::seconds(600), Any, Free;
        /// Calls of an episode that are answered; further ones are refused.
        max_calls: usize = 64, Between(1.0, 1e6);
        /// Programs that run at the same time; other episodes wait.
        max_concurrent: usize = 16, Between(1.0, 4096.0), Free;
        /// Name under which the program knows the policy.
        model: String = "policy".to_owned(), NotEmpty, Free;
    }
}
