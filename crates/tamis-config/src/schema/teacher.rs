//! `teacher`: the models that the policy is distilled from.

use std::path::PathBuf;

use tamis_core::setting::TimeSpan;
use tamis_core::settings;

use crate::hub_name::ModelSource;

settings! {
    /// A teacher: a model whose log-probabilities of the sampled tokens the policy learns from. It has the
    /// policy's tokenizer. Without `path` and `servers` it is the policy without its adapter.
    pub struct TeacherConfig {
        /// Folder of the teacher, or its name on a hub, as in `model.path`. The learner loads it and does not
        /// train it. If `servers` are set, only its tokenizer is read, to compare it with the policy's.
        path: Option<ModelSource> = None, NotEmpty;
        /// Addresses of servers with the teacher (vLLM, `tamis serve`), such as `http://HOST:8000`. Requests go
        /// to them in turn.
        servers: Vec<String> = Vec::new(), Any, Free;
        /// Name of the teacher at the servers. Null: the first model that a server lists.
        model: Option<String> = None, NotEmpty;
        /// The `data_source` of the prompts that this teacher is for. Null: all prompts for which no other
        /// teacher is named.
        data_source: Option<String> = None, NotEmpty;
        /// Most requests in flight at once.
        concurrency: usize = 32, Between(1.0, 1024.0), Free;
        /// Longest time until servers answer at the start of a run.
        startup_timeout: TimeSpan = TimeSpan::seconds(300), Any, Free;
        /// File with the servers' API key.
        api_key_file: Option<PathBuf> = None, NotEmpty, Free;
        /// Environment variable with the servers' API key, instead of `api_key_file`.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Longest time of one answer.
        timeout: TimeSpan = TimeSpan::seconds(600), Any, Free;
        /// Most attempts for one request if servers are busy or do not answer.
        max_attempts: usize = 5, Between(1.0, 100.0), Free;
    }
}

impl TeacherConfig {
    /// Whether the learner loads it.
    pub fn is_loaded(&self) -> bool {
        self.path.is_some() && self.servers.is_empty()
    }

    /// Whether it is the policy without its adapter.
    pub fn is_base(&self) -> bool {
        self.path.is_none() && self.servers.is_empty()
    }
}
