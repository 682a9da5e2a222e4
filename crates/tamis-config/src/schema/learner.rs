//! `learner`: where the policy learns.

use std::path::PathBuf;
use std::time::Duration;

use crate::define::section;

section! {
    /// Where the policy learns: in this process on the native engine, or in another one.
    pub struct LearnerConfig {
        /// Address of a learner in another process, `http://HOST:PORT` or `unix:PATH`, such as `tamis learner`
        /// starts. It holds weights and moments; run directory and checkpoints must have the same paths there.
        /// Null: the native engine in this process.
        url: Option<String> = "null", NotEmpty, Free;
        /// File with the key that the learner asks for (`Authorization: Bearer`).
        api_key_file: Option<PathBuf> = "null", NotEmpty, Free;
        /// Environment variable with the learner's key, in place of `learner.api_key_file`.
        api_key_env: Option<String> = "null", NotEmpty, Free;
        /// Longest time of one call to the learner: a forward or backward pass of a wave, a checkpoint, loading
        /// the model.
        timeout: Duration = "1800s", Any, Free;
        /// Longest time without a sign of life from the learner; the run then ends, to be resumed.
        lost_timeout: Duration = "60s", Any, Free;
    }
}
