//! Names become files, with a hub in this process, and with caches as Python's `huggingface_hub` leaves them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod broken;
mod brought;
mod cached;
mod refused;
mod splits;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use support::{FakeHub, Fault, SIGNATURE, commit, git_sha1, sha256};
use tamis_config::locate::{Extent, FoundModel, LocateFailure as Kind, WantedSplit};
use tamis_hub::{DownloadProgress, Hub, HubCause, HubError, HubSettings, HubToken};

const MODEL: &str = "models/org/tiny";
const DATA: &str = "datasets/org/sums";
const TOKEN: &str = "hf_secret";
const TRAIN: WantedSplit<'static> = WantedSplit { configuration: None, split: None, or: &["train"] };

/// Weights with two kinds of digits, larger than one read.
fn weights() -> Vec<u8> {
    (0..700_000_u32).flat_map(u32::to_le_bytes).collect()
}

struct Place {
    hub: FakeHub,
    cache: tempfile::TempDir,
    heard: Heard,
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Heard {
    fn put(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl DownloadProgress for Heard {
    fn begin(&self, name: &str, bytes: Option<u64>) {
        self.put(format!("begin {name} {bytes:?}"));
    }
    fn at(&self, bytes: u64) {
        self.put(format!("at {bytes}"));
    }
    fn end(&self) {
        self.put("end".to_owned());
    }
    fn say(&self, text: &str) {
        self.put(format!("say {text}"));
    }
    fn warn(&self, text: &str) {
        self.put(format!("warn {text}"));
    }
}

impl Place {
    fn new() -> Self {
        let place =
            Self { hub: FakeHub::start(), cache: tempfile::tempdir().unwrap(), heard: Heard::default() };
        place.hub.put(
            MODEL,
            "main",
            &commit(1),
            &[
                ("config.json", b"{}"),
                ("model.safetensors", &weights()),
                ("onnx/model.onnx", b"not for us"),
                ("pytorch_model.bin", b"not for us"),
                ("tokenizer.json", b"{\"a\": 1}"),
            ],
        );
        place
    }

    fn settings(&self) -> HubSettings {
        HubSettings {
            endpoint: self.hub.endpoint.clone(),
            cache: self.cache.path().to_owned(),
            token: HubToken::new(TOKEN),
            offline: None,
            pauses: vec![Duration::ZERO; 2],
            silence: Duration::from_millis(400),
        }
    }

    fn model_with(
        &self,
        settings: HubSettings,
        revision: Option<&str>,
        extent: Extent,
    ) -> Result<FoundModel, HubError> {
        Hub::new(settings).model("org/tiny", revision, extent, &self.heard)
    }

    fn model(&self, revision: Option<&str>) -> Result<FoundModel, HubError> {
        self.model_with(self.settings(), revision, Extent::Files)
    }

    fn offline(&self, revision: Option<&str>) -> Result<FoundModel, HubError> {
        let settings = HubSettings { offline: Some("HF_HUB_OFFLINE"), ..self.settings() };
        self.model_with(settings, revision, Extent::Files)
    }

    fn repo(&self) -> PathBuf {
        self.cache.path().join("models--org--tiny")
    }

    /// Requests since the last call as `METHOD path`, those for large files as `CDN`.
    fn asked(&self) -> Vec<String> {
        let short = |path: &str| path.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned();
        let line = |request: support::Request| {
            let host = if request.is_cdn { "CDN " } else { "" };
            let name = if request.is_cdn { "blob".to_owned() } else { short(&request.path) };
            format!("{host}{} {name}", request.method)
        };
        self.hub.requests().into_iter().map(line).collect()
    }
}

fn printed(error: &HubError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.extend([": ", &cause.to_string()]);
        source = cause.source();
    }
    text + "\n" + &error.hint().unwrap_or_default()
}

/// An error in words, with `HUB` for the hub's address. It never has the token or a signature.
fn failure<T: std::fmt::Debug>(place: &Place, found: Result<T, HubError>) -> String {
    let error = found.expect_err("a failure");
    for text in [printed(&error), format!("{error:?}")] {
        assert!(!text.contains(TOKEN) && !text.contains(SIGNATURE), "{text}");
    }
    printed(&error).replace(&place.hub.endpoint, "HUB")
}
