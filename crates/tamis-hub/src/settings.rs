//! The locations of the hub and its cache, from the environment variables of `huggingface_hub`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::token::HubToken;

/// Most bytes of a file with a token.
const MAX_TOKEN: u64 = 64 << 10;

/// Locations, and how patient downloads are.
#[derive(Debug, Clone)]
pub struct HubSettings {
    /// Address of the hub, without `/` at its end.
    pub endpoint: String,
    /// Folder of the cache.
    pub cache: PathBuf,
    /// The user's token.
    pub token: Option<HubToken>,
    /// The variable that disables the network, if one is set.
    pub offline: Option<&'static str>,
    /// Pauses before each retry after a temporary error.
    pub pauses: Vec<Duration>,
    /// Longest silence of a server.
    pub silence: Duration,
}

impl HubSettings {
    /// From the environment: `HF_ENDPOINT`, `HF_HUB_CACHE` or `HF_HOME` or `XDG_CACHE_HOME`, `HF_TOKEN` or
    /// `HUGGING_FACE_HUB_TOKEN` or the file `HF_TOKEN_PATH` (`token` in `HF_HOME`), `HF_HUB_OFFLINE` or
    /// `TRANSFORMERS_OFFLINE`.
    pub fn from_environment() -> Self {
        Self::of(&|name| std::env::var_os(name))
    }

    /// From variables that `get` looks up. As in Python, an empty one counts as not set.
    pub fn of(get: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let home = set("HOME").or_else(|| set("USERPROFILE")).map(PathBuf::from).unwrap_or_default();
        let path = |name: &str| set(name).map(|value| from_home(Path::new(&value), &home));
        let caches = path("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hub_home = path("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| hub_home.join("hub"));
        let is_true = |name: &&str| {
            let value = text(name).unwrap_or_default().to_ascii_uppercase();
            matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE")
        };
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hub_home.join("token"));
        let token = if is_true(&"HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            None
        } else {
            let of_variable = |name: &str| text(name).and_then(|value| HubToken::new(&value));
            let of_file = || HubToken::new(&tamis_file::read_text(&token_file, MAX_TOKEN).ok()?);
            of_variable("HF_TOKEN").or_else(|| of_variable("HUGGING_FACE_HUB_TOKEN")).or_else(of_file)
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache,
            token,
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(is_true),
            pauses: [300, 1000, 3000].map(Duration::from_millis).to_vec(),
            silence: Duration::from_secs(30),
        }
    }
}

/// Replaces `~` in a path by the user's home folder.
fn from_home(path: &Path, home: &Path) -> PathBuf {
    path.strip_prefix("~").map_or_else(|_| path.to_owned(), |rest| home.join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> HubSettings {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        HubSettings::of(&move |name| {
            let found = variables.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_cache_is_where_python_has_it() {
        let cache = |variables: &[(&str, &str)]| of(variables).cache.display().to_string();
        assert_eq!(cache(&[("HOME", "/u")]), "/u/.cache/huggingface/hub");
        assert_eq!(cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")]), "/x/huggingface/hub");
        assert_eq!(cache(&[("HOME", "/u"), ("HF_HOME", "~/hf")]), "/u/hf/hub");
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), "/c");
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "")]), "/hf/hub");
    }

    #[test]
    fn a_variable_forbids_the_network() {
        assert_eq!(of(&[]).offline, None);
        assert_eq!(of(&[("HF_HUB_OFFLINE", "0")]).offline, None);
        assert_eq!(of(&[("HF_HUB_OFFLINE", "1")]).offline, Some("HF_HUB_OFFLINE"));
        assert_eq!(of(&[("TRANSFORMERS_OFFLINE", "yes")]).offline, Some("TRANSFORMERS_OFFLINE"));
    }

    #[test]
    fn the_token_is_of_a_variable_or_of_a_file() {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::write(home.path().join("token"), "hf_file\n").expect("written");
        let token = |variables: &[(&str, &str)]| {
            let home = ("HF_HOME", home.path().to_str().expect("a name"));
            of(&[&[home], variables].concat()).token
        };
        assert_eq!(token(&[]), HubToken::new("hf_file"));
        assert_eq!(token(&[("HUGGING_FACE_HUB_TOKEN", "hf_old")]), HubToken::new("hf_old"));
        assert_eq!(
            token(&[("HUGGING_FACE_HUB_TOKEN", "hf_old"), ("HF_TOKEN", "hf_new")]),
            HubToken::new("hf_new")
        );
        assert_eq!(token(&[("HF_TOKEN_PATH", "/nowhere")]), None);
        assert_eq!(token(&[("HF_TOKEN", "hf_new"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    }

    #[test]
    fn the_endpoint_may_be_another() {
        assert_eq!(of(&[]).endpoint, "https://huggingface.co");
        assert_eq!(of(&[("HF_ENDPOINT", "https://mirror.example/")]).endpoint, "https://mirror.example");
    }
}
