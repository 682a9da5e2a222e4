//! What keeps the files of a name away.

use std::io;
use std::path::PathBuf;

use tamis_config::locate::{LocateError, LocateFailure as Kind};
use thiserror::Error;

/// The files of a name cannot be had. Neither a token nor an address with a signature is in any of them.
#[derive(Debug, Error)]
pub enum HubError {
    /// The network is forbidden, and the cache lacks something.
    #[error("{}, and {variable} forbids to download", not_cached(name, cache, missing))]
    Offline {
        /// The name, with its revision where that is not the main branch.
        name: String,
        /// Folder of the cache.
        cache: PathBuf,
        /// What it lacks of the name; empty where it has nothing of it.
        missing: Vec<String>,
        /// The variable that forbids it.
        variable: &'static str,
        /// The command that would fetch it.
        command: String,
    },
    /// Nothing answers there.
    #[error("the hub {endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// Scheme and host.
        endpoint: String,
        /// Why.
        reason: String,
        /// Whether another attempt may go better.
        is_passing: bool,
    },
    /// There is no such repository, or none that this user may see.
    #[error("there is no {kind} `{name}` on {endpoint}{}", if *has_token { ", or it is not for this token" } else { "" })]
    NoRepository {
        /// `model` or `data set`.
        kind: &'static str,
        /// `owner/name`.
        name: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The repository has no such revision.
    #[error("`{name}` has no revision `{revision}`")]
    NoRevision {
        /// `owner/name`.
        name: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// Its owner asks for something first.
    #[error("`{name}` is gated: its owner gives it only to those who have accepted its terms")]
    Gated {
        /// `owner/name`.
        name: String,
        /// The page on which to accept them.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub does not take the token.
    #[error("the hub {endpoint} refuses the token (status {status})")]
    Token {
        /// The hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
    },
    /// The hub answers with a failure.
    #[error("the hub answers {address} with status {status}")]
    Status {
        /// The address, without its query.
        address: String,
        /// The status.
        status: u16,
        /// Seconds after which it wants to be asked again.
        after: Option<u64>,
    },
    /// The answer is not what a hub says.
    #[error("{address} is no answer of a hub: {what}")]
    Answer {
        /// The address, without its query.
        address: String,
        /// What is wrong with it.
        what: String,
    },
    /// What came is not the file.
    #[error("{file} of `{name}` came damaged: expected {expected}, got {got}")]
    Damaged {
        /// The repository.
        name: String,
        /// The file.
        file: String,
        /// Size or checksum that the hub names.
        expected: String,
        /// What came.
        got: String,
    },
    /// A model of another form.
    #[error("`{name}` has no {lacks}{}", instead(others))]
    NoModel {
        /// The repository.
        name: String,
        /// `config.json` or `*.safetensors`.
        lacks: &'static str,
        /// Files of weights in other forms.
        others: Vec<String>,
    },
    /// A data set with several configurations, of which none is named.
    #[error("`{name}` has several configurations: {}", listed(configurations))]
    WhichConfiguration {
        /// The repository.
        name: String,
        /// Their names.
        configurations: Vec<String>,
        /// A name that would do.
        example: String,
    },
    /// A data set without that configuration.
    #[error("`{name}` has no configuration `{configuration}`; it has {}", listed(configurations))]
    NoConfiguration {
        /// The repository.
        name: String,
        /// What was asked for.
        configuration: String,
        /// Names of those that there are.
        configurations: Vec<String>,
    },
    /// A configuration without that split.
    #[error("`{name}` has no split `{split}` in `{configuration}`; it has {}", listed(splits))]
    NoSplit {
        /// The repository.
        name: String,
        /// The configuration.
        configuration: String,
        /// What was asked for.
        split: String,
        /// Names of those that there are.
        splits: Vec<String>,
        /// What the writer may have meant: the name of a configuration was written for the split.
        meant: Option<String>,
    },
    /// A data set without a file that can be read.
    #[error("`{name}` has no Parquet or JSONL files at this revision")]
    NoRows {
        /// The repository.
        name: String,
    },
    /// Something cannot be done on this disk.
    #[error("failed to {operation} {}", path.display())]
    Disk {
        /// `write`, say.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
}

impl HubError {
    /// The sort of failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unreachable { .. } => Kind::Unreachable,
            Self::Status { status, .. } if *status == 429 || *status >= 500 => Kind::Unreachable,
            Self::Status { .. } | Self::Answer { .. } | Self::Damaged { .. } | Self::Disk { .. } => {
                Kind::Failed
            }
            _ => Kind::Refused,
        }
    }

    /// Whether another attempt may go better.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { is_passing, .. } => *is_passing,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            _ => false,
        }
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Offline { variable, command, .. } => format!(
                "`{command}` fetches it where there is a network; or take {variable} out of the environment"
            ),
            Self::Unreachable { .. } => {
                "without a network, fill the cache elsewhere (`hf download NAME`) and \
                copy it, or name a folder; HTTPS_PROXY names a proxy, HF_ENDPOINT another hub"
                    .to_owned()
            }
            Self::NoRepository { has_token, .. } => format!(
                "is it spelt `owner/name`, as on the hub? {}",
                if *has_token {
                    "The token must be of an account that may see it"
                } else {
                    "A private one needs HF_TOKEN in the environment"
                }
            ),
            Self::NoRevision { .. } => "a revision is a branch, a tag or a whole commit".to_owned(),
            Self::Gated { page, has_token, .. } => format!(
                "accept the terms at {page}{}",
                if *has_token {
                    " with the account of the token"
                } else {
                    ", and set HF_TOKEN to your token"
                }
            ),
            Self::Token { endpoint, .. } => format!(
                "set HF_TOKEN to a token of {endpoint}/settings/tokens that may read it, or take it out"
            ),
            Self::Status { status: 429, after, .. } => format!(
                "it is asked too often from here: try again {}{}",
                after.map_or_else(|| "later".to_owned(), |seconds| format!("in {seconds} s")),
                "; with HF_TOKEN set more is allowed"
            ),
            Self::Status { .. } => "try again later; what was downloaded is kept".to_owned(),
            Self::Answer { .. } => "does HF_ENDPOINT name a hub?".to_owned(),
            Self::Damaged { .. } => "try again: the part that came was thrown away".to_owned(),
            Self::NoModel { lacks: "config.json", .. } => {
                "name the repository of a whole model in the layout of transformers".to_owned()
            }
            Self::NoModel { .. } => "weights are read as safetensors: convert the model with \
                `save_pretrained(FOLDER, safe_serialization=True)` and name the folder"
                .to_owned(),
            Self::WhichConfiguration { example, .. } => format!("name one: `{example}`"),
            Self::NoSplit { meant: Some(meant), .. } => format!("write `{meant}`"),
            Self::NoConfiguration { .. } | Self::NoSplit { .. } => {
                "a split is written `owner/name:configuration/split`".to_owned()
            }
            Self::NoRows { .. } => {
                "the hub's own conversion is at the revision `refs/convert/parquet` where it has made one; \
                 else write the rows to a JSONL or Parquet file"
                    .to_owned()
            }
            Self::Disk { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space there, or name a cache on another disk with HF_HOME".to_owned()
            }
            Self::Disk { .. } => "HF_HOME names another place for the cache".to_owned(),
        };
        Some(hint)
    }
}

impl From<HubError> for LocateError {
    fn from(error: HubError) -> Self {
        let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
        Self {
            message: format!("{error}{cause}"),
            hint: error.hint(),
            failure: error.kind(),
            may_be_path: matches!(
                error,
                HubError::NoRepository { .. } | HubError::Offline { .. } | HubError::Unreachable { .. }
            ),
        }
    }
}

fn not_cached(name: &str, cache: &std::path::Path, missing: &[String]) -> String {
    let cache = cache.display();
    match missing {
        [] => format!("`{name}` is not in the cache {cache}"),
        [file] => format!("`{name}` is not whole in the cache {cache} ({file} is missing)"),
        [file, others @ ..] => {
            format!(
                "`{name}` is not whole in the cache {cache} ({file} and {} more are missing)",
                others.len()
            )
        }
    }
}

fn instead(others: &[String]) -> String {
    if others.is_empty() { String::new() } else { format!(", only {}", listed(others)) }
}

/// Names in a line: the first few, and how many more.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(SHOWN) {
        _ if names.is_empty() => "none".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
