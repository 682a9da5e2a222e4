//! Settings for one rollout server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

/// Action when a server's log-probabilities are of another distribution than those that are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherLogprobs {
    /// Samples come without them, for the learner to compute.
    Recompute,
    /// Rollouts are refused.
    Refuse,
}

/// Settings for one rollout server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Name of the server in messages: its address.
    pub name: String,
    /// The model's name there; `None` for the first that it serves.
    pub model: Option<String>,
    /// Number of token ids that the model has.
    pub vocabulary: usize,
    /// Tokens that end a completion.
    pub end_token_ids: Vec<u32>,
    /// Token that represents images in prompts; `None` for a model without images.
    pub image_token_id: Option<u32>,
    /// Parameters of the server, by name.
    pub extra: Map<String, Value>,
    /// Time limit of one sample.
    pub answer_timeout: Duration,
    /// Longest time of a health check.
    pub check_timeout: Duration,
    /// Longest time of each step of a publication, and of what a check computes: a server may compile at its
    /// first request.
    pub publish_timeout: Duration,
    /// Longest time for which a server that is found paused may stay so before it is resumed: another process
    /// may be giving it weights.
    pub pause_grace: Duration,
    /// How deep it sleeps: 1, weights in main memory; 2, weights gone; 0: it never sleeps.
    pub sleep_level: u8,
    /// Begins request ids and labels of weights; differs between runs and between starts of a run.
    pub nonce: String,
    /// Whether seeds are sent. vLLM samples slower with them.
    pub seeds: bool,
    /// Action when the server's log-probabilities are of another distribution.
    pub other_logprobs: OtherLogprobs,
    /// A folder here and its path on the server, if that differs: published weights are below it.
    pub seen_as: Option<(PathBuf, String)>,
}

impl ServerSettings {
    /// Path of a folder of weights as the server sees it.
    pub(super) fn folder_there(&self, folder: &Path) -> String {
        let below =
            self.seen_as.as_ref().and_then(|(here, there)| Some((folder.strip_prefix(here).ok()?, there)));
        match below {
            Some((rest, there)) => Path::new(there).join(rest).display().to_string(),
            None => folder.display().to_string(),
        }
    }
}
