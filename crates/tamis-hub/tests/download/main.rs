//! Names become files: against a hub in this process, and caches as Python's `huggingface_hub` leaves them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use support::{FakeHub, Fault, SIGNATURE, commit, git_sha1, sha256};
use tamis_hub::{Extent, FoundModel, Hub, HubError, HubSettings, Kind, Progress, Token, WantedSplit};

const MODEL: &str = "models/org/tiny";
const DATA: &str = "datasets/org/sums";
const TOKEN: &str = "hf_secret";
const TRAIN: WantedSplit<'static> = WantedSplit { configuration: None, split: None, or: &["train"] };

/// Weights of two kinds of digits: more than one read brings.
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

impl Progress for Heard {
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
            token: Token::new(TOKEN),
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

/// A failure in words, with the address of the hub as `HUB`; never with the token or a signature.
fn failure<T: std::fmt::Debug>(place: &Place, found: Result<T, HubError>) -> String {
    let error = found.expect_err("a failure");
    for text in [printed(&error), format!("{error:?}")] {
        assert!(!text.contains(TOKEN) && !text.contains(SIGNATURE), "{text}");
    }
    printed(&error).replace(&place.hub.endpoint, "HUB")
}

#[test]
fn a_model_is_laid_out_as_python_has_it() {
    let place = Place::new();
    let found = place.model(None).unwrap();
    assert_eq!(found.commit, commit(1));
    let folder = found.folder.unwrap();
    assert_eq!(folder, place.repo().join("snapshots").join(commit(1)));
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "model.safetensors", "tokenizer.json"],
        "what is read and nothing else"
    );
    assert_eq!(std::fs::read_to_string(place.repo().join("refs/main")).unwrap(), commit(1));
    #[cfg(unix)]
    for (file, blob) in [("model.safetensors", sha256(&weights())), ("config.json", git_sha1(b"{}"))] {
        let link = std::fs::read_link(folder.join(file)).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(&blob));
    }
    let blobs = std::fs::read_dir(place.repo().join("blobs")).unwrap().count();
    assert_eq!(blobs, 3, "nothing half is left");
    assert!(place.cache.path().join(".locks/models--org--tiny").is_dir());
}

#[test]
fn what_is_there_is_not_downloaded_again() {
    let place = Place::new();
    place.model(None).unwrap();
    let asked = place.asked();
    assert_eq!(asked[0], "GET main");
    assert!(asked.contains(&"CDN GET blob".to_owned()), "{asked:?}");
    // A branch may have moved: the hub is asked for its commit, and for nothing else.
    place.model(None).unwrap();
    assert_eq!(place.asked(), ["GET main"]);
    // A commit cannot.
    place.model(Some(&commit(1))).unwrap();
    assert!(place.asked().is_empty());
    // A later commit shares what has not changed.
    place.hub.put(
        MODEL,
        "main",
        &commit(2),
        &[("config.json", b"{ }"), ("model.safetensors", &weights()), ("tokenizer.json", b"{\"a\": 1}")],
    );
    assert_eq!(place.model(None).unwrap().commit, commit(2));
    let asked = place.asked();
    assert!(!asked.iter().any(|line| line.starts_with("CDN") || line == "GET tokenizer.json"), "{asked:?}");
    assert!(asked.contains(&"GET config.json".to_owned()), "{asked:?}");
    assert_eq!(place.model(Some(&commit(1))).unwrap().commit, commit(1), "the pinned commit stays");
}

#[test]
fn a_look_downloads_nothing() {
    let place = Place::new();
    let look = |revision| place.model_with(place.settings(), revision, Extent::Look).unwrap();
    assert_eq!(look(None), FoundModel { commit: commit(1), folder: None });
    assert_eq!(place.asked(), ["GET main"]);
    assert_eq!(std::fs::read_dir(place.cache.path()).unwrap().count(), 0);
    place.model(None).unwrap();
    assert!(look(None).folder.is_some());
}

#[test]
fn progress_is_told_in_bytes() {
    let place = Place::new();
    place.model(None).unwrap();
    let heard = place.heard.take();
    let whole = weights().len();
    assert_eq!(heard[0], "begin org/tiny Some(10)");
    assert!(heard.contains(&format!("begin org/tiny Some({whole})")), "{heard:?}");
    assert!(heard.contains(&format!("at {whole}")), "{heard:?}");
    assert_eq!(heard.last().unwrap(), "end");
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let place = Place::new();
    place.model(None).unwrap();
    let (cdn, hub): (Vec<_>, Vec<_>) = place.hub.requests().into_iter().partition(|request| request.is_cdn);
    assert!(!cdn.is_empty() && !hub.is_empty());
    for request in hub {
        assert_eq!(request.headers["authorization"], format!("Bearer {TOKEN}"), "{}", request.path);
    }
    for request in cdn {
        let headers = format!("{:?}{}", request.headers, request.path);
        assert!(!headers.contains(TOKEN) && !request.headers.contains_key("authorization"), "{headers}");
    }
}

#[test]
fn a_repository_that_was_renamed_is_followed() {
    let place = Place::new();
    place.hub.fault("org/old", 99, Fault::Moved("org/old", "org/tiny"));
    let found = Hub::new(place.settings()).model("org/old", None, Extent::Files, &place.heard).unwrap();
    assert_eq!(std::fs::read(found.folder.unwrap().join("model.safetensors")).unwrap(), weights());
    place.hub.fault("org/round", 99, Fault::Moved("org/round", "org/round"));
    let round = Hub::new(place.settings()).model("org/round", None, Extent::Files, &place.heard);
    assert!(failure(&place, round).contains("it leads in a circle"));
}

/// The client is made with what TLS needs, and says nothing in the clear to a side that speaks none.
#[test]
fn a_hub_over_tls_is_not_taken_for_one_without() {
    let place = Place::new();
    let settings =
        HubSettings { endpoint: place.hub.endpoint.replace("http:", "https:"), ..place.settings() };
    let error = place.model_with(settings, None, Extent::Files).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(place.hub.requests().is_empty());
}

#[test]
fn a_broken_download_goes_on_where_it_ended() {
    let place = Place::new();
    place.hub.fault("/blob/", 1, Fault::Cut(1_000_000));
    let folder = place.model(None).unwrap().folder.unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    let ranges: Vec<_> = place.hub.requests().into_iter().filter(|request| request.is_cdn).collect();
    assert_eq!(ranges.len(), 2);
    assert!(!ranges[0].headers.contains_key("range"));
    assert_eq!(ranges[1].headers["range"], "bytes=1000000-");
}

#[test]
fn a_download_that_was_killed_is_resumed_and_never_taken_for_whole() {
    let place = Place::new();
    place.hub.fault("/blob/", 9, Fault::Cut(300_000));
    let text = failure(&place, place.model(None));
    assert!(text.contains("cannot be reached"), "{text}");
    let parts = || {
        let entries = std::fs::read_dir(place.repo().join("blobs")).unwrap().map(|entry| entry.unwrap());
        let is_part =
            |entry: &std::fs::DirEntry| entry.file_name().to_str().unwrap().ends_with(".incomplete");
        entries.filter(is_part).map(|entry| entry.metadata().unwrap().len()).collect::<Vec<_>>()
    };
    assert_eq!(parts(), [900_000], "three attempts, each of which went on");
    assert!(!place.repo().join("refs/main").exists());
    let text = failure(&place, place.offline(Some(&commit(1))));
    assert!(
        text.contains("is not whole in the cache") && text.contains("model.safetensors is missing"),
        "{text}"
    );

    // Another process, later.
    let hub = FakeHub::start();
    hub.put(
        MODEL,
        "main",
        &commit(1),
        &[("config.json", b"{}"), ("model.safetensors", &weights()), ("tokenizer.json", b"{\"a\": 1}")],
    );
    let settings = HubSettings { endpoint: hub.endpoint.clone(), ..place.settings() };
    place.model_with(settings, None, Extent::Files).unwrap();
    let cdn: Vec<_> = hub.requests().into_iter().filter(|request| request.is_cdn).collect();
    assert_eq!(cdn[0].headers["range"], "bytes=900000-");
    assert!(parts().is_empty());
}

/// As on file systems that give a lock to everybody.
#[test]
fn a_process_that_goes_on_writing_spoils_nothing() {
    let place = Place::new();
    let blobs = place.repo().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let path = blobs.join(format!("{}.other.incomplete", sha256(&weights())));
    let mut other = std::fs::File::create(path).unwrap();
    std::io::Write::write_all(&mut other, &weights()[..500_000]).unwrap();
    place.hub.fault("/blob/", 1, Fault::Late(Duration::from_millis(200)));
    let folder = std::thread::scope(|scope| {
        let download = scope.spawn(|| place.model(None).unwrap().folder.unwrap());
        let request = loop {
            if let Some(request) = place.hub.requests().into_iter().find(|request| request.is_cdn) {
                break request;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(request.headers["range"], "bytes=500000-");
        std::io::Write::write_all(&mut other, &vec![7; 100_000]).unwrap();
        download.join().unwrap()
    });
    std::io::Write::write_all(&mut other, &vec![7; 100_000]).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_host_without_ranges_sends_the_whole_again() {
    let place = Place::new();
    place.hub.fault("/blob/", 1, Fault::Cut(1_000_000));
    place.hub.fault("/blob/", 9, Fault::IgnoreRange);
    let folder = place.model(None).unwrap().folder.unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn what_comes_damaged_is_thrown_away() {
    let place = Place::new();
    place.hub.fault("/blob/", 9, Fault::Corrupt);
    let error = place.model(None).unwrap_err();
    assert_eq!(error.kind(), Kind::Failed);
    let text = printed(&error);
    let expected =
        format!("model.safetensors of `org/tiny` came damaged: expected {}, got ", sha256(&weights()));
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(std::fs::read_dir(place.repo().join("blobs")).unwrap().count(), 2, "of the small files alone");

    let small = Place::new();
    small.hub.fault("/resolve/", 0, Fault::Corrupt);
    small.hub.fault("config.json", 0, Fault::Corrupt);
    small.hub.fault("tokenizer.json", 9, Fault::Corrupt);
    let text = failure(&small, small.model(None));
    assert!(text.starts_with("tokenizer.json of `org/tiny` came damaged"), "{text}");
}

#[test]
fn a_part_that_was_damaged_before_is_begun_anew() {
    let place = Place::new();
    let blobs = place.repo().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{}.incomplete", sha256(&weights()))), vec![7; 5000]).unwrap();
    let folder = place.model(None).unwrap().folder.unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn another_size_than_announced_is_damage() {
    for size in [100, 4_000_000] {
        let place = Place::new();
        place.hub.fault("model.safetensors", 99, Fault::SaysSize(size));
        let text = failure(&place, place.model(None));
        let is_told = text.contains("came damaged: expected 100 bytes, got more")
            || text.contains("the connection ended after 2800000 of 4000000 bytes");
        assert!(is_told, "{text}");
        assert!(!place.repo().join("blobs").join(sha256(&weights())).exists());
    }
}

#[test]
fn failures_that_pass_are_waited_for() {
    let place = Place::new();
    place.hub.fault("/api/", 2, Fault::Status(500, Vec::new()));
    place.hub.fault("model.safetensors", 2, Fault::Status(503, Vec::new()));
    place.hub.fault("config.json", 1, Fault::Status(429, vec![("Retry-After", "0".to_owned())]));
    place.model(None).unwrap();

    let place = Place::new();
    place.hub.fault("/api/", 9, Fault::Status(500, Vec::new()));
    let error = place.model(None).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert_eq!(place.asked().len(), 3);
    insta::assert_snapshot!(failure(&place, Err::<(), _>(error)), @r#"
the hub answers HUB/api/models/org/tiny/revision/main with status 500
try again later; what was downloaded is kept
"#);

    let place = Place::new();
    place.hub.fault("/api/", 9, Fault::Status(429, vec![("Retry-After", "1".to_owned())]));
    insta::assert_snapshot!(failure(&place, place.model(None)), @r#"
the hub answers HUB/api/models/org/tiny/revision/main with status 429
it is asked too often from here: try again in 1 s; with HF_TOKEN set more is allowed
"#);
}

#[test]
fn a_silent_hub_is_given_up() {
    let place = Place::new();
    place.hub.fault("/api/", 9, Fault::Late(Duration::from_secs(60)));
    insta::assert_snapshot!(failure(&place, place.model(None)), @r#"
the hub HUB cannot be reached: it is silent for 0 s
without a network, fill the cache elsewhere (`hf download NAME`) and copy it, or name a folder; HTTPS_PROXY names a proxy, HF_ENDPOINT another hub
"#);
}

#[test]
fn a_hub_that_is_not_there() {
    let place = Place::new();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = || HubSettings { endpoint: format!("http://{gone}"), ..place.settings() };
    let error = place.model_with(settings(), None, Extent::Files).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(error.to_string().starts_with(&format!("the hub http://{gone} cannot be reached: ")), "{error}");
    // With a whole copy, it is used, and said so.
    place.model(None).unwrap();
    place.heard.take();
    assert_eq!(place.model_with(settings(), None, Extent::Files).unwrap().commit, commit(1));
    let heard = place.heard.take().join("\n");
    assert!(heard.ends_with("; what the cache has of `org/tiny` is used"), "{heard}");
}

#[test]
fn who_may_not_see_it_is_told_what_to_do() {
    let place = Place::new();
    let stranger = || HubSettings { token: None, ..place.settings() };
    let other = || HubSettings { token: Token::new("hf_other"), ..place.settings() };
    let missing = |settings| Hub::new(settings).model("org/tniy", None, Extent::Files, &place.heard);
    insta::assert_snapshot!(failure(&place, missing(stranger())), @r#"
there is no model `org/tniy` on HUB
is it spelt `owner/name`, as on the hub? A private one needs HF_TOKEN in the environment
"#);
    insta::assert_snapshot!(failure(&place, missing(other())), @r#"
there is no model `org/tniy` on HUB, or it is not for this token
is it spelt `owner/name`, as on the hub? The token must be of an account that may see it
"#);
    insta::assert_snapshot!(failure(&place, place.model(Some("v9"))), @r#"
`org/tiny` has no revision `v9`
a revision is a branch, a tag or a whole commit
"#);
    let of = |settings| place.model_with(settings, None, Extent::Files);
    place.hub.change(MODEL, |repo| repo.private_to = Some(TOKEN.to_owned()));
    insta::assert_snapshot!(failure(&place, of(stranger())), @r#"
there is no model `org/tiny` on HUB
is it spelt `owner/name`, as on the hub? A private one needs HF_TOKEN in the environment
"#);
    place.hub.change(MODEL, |repo| repo.private_to = None);
    place.hub.change(MODEL, |repo| repo.gated_to = Some(TOKEN.to_owned()));
    insta::assert_snapshot!(failure(&place, of(stranger())), @r#"
`org/tiny` is gated: its owner gives it only to those who have accepted its terms
accept the terms at HUB/org/tiny, and set HF_TOKEN to your token
"#);
    insta::assert_snapshot!(failure(&place, of(other())), @r#"
`org/tiny` is gated: its owner gives it only to those who have accepted its terms
accept the terms at HUB/org/tiny with the account of the token
"#);
    place.hub.fault("/api/", 1, Fault::Status(401, Vec::new()));
    insta::assert_snapshot!(failure(&place, of(other())), @r#"
the hub HUB refuses the token (status 401)
set HF_TOKEN to a token of HUB/settings/tokens that may read it, or take it out
"#);
    assert_eq!(of(place.settings()).unwrap().commit, commit(1));
}

#[test]
fn a_repository_of_another_form() {
    let place = Place::new();
    place.hub.put(
        "models/org/bin",
        "main",
        &commit(3),
        &[("config.json", b"{}"), ("pytorch_model.bin", b"x")],
    );
    let bin = Hub::new(place.settings()).model("org/bin", None, Extent::Files, &place.heard);
    insta::assert_snapshot!(failure(&place, bin), @r#"
`org/bin` has no model.safetensors, only `pytorch_model.bin`
weights are read as safetensors: convert the model with `save_pretrained(FOLDER, safe_serialization=True)` and name the folder
"#);
    place.hub.fault("/api/", 1, Fault::Text("<html>"));
    insta::assert_snapshot!(failure(&place, place.model(None)), @r#"
HUB/api/models/org/tiny/revision/main is no answer of a hub: no JSON: expected value at line 1 column 1
does HF_ENDPOINT name a hub?
"#);
}

#[test]
fn offline_takes_what_is_whole_and_asks_nobody() {
    let place = Place::new();
    let text = failure(&place, place.offline(None)).replace(place.cache.path().to_str().unwrap(), "CACHE");
    insta::assert_snapshot!(text, @r#"
`org/tiny` is not in the cache CACHE, and HF_HUB_OFFLINE forbids to download
`hf download org/tiny` fetches it where there is a network; or take HF_HUB_OFFLINE out of the environment
"#);
    place.model(None).unwrap();
    place.hub.requests();
    assert_eq!(place.offline(None).unwrap().commit, commit(1));
    assert!(failure(&place, place.offline(Some("v1"))).contains("`org/tiny@v1` is not in the cache"));
    std::fs::remove_file(place.repo().join("snapshots").join(commit(1)).join("tokenizer.json")).unwrap();
    assert!(failure(&place, place.offline(None)).contains("(tokenizer.json is missing)"));
    assert!(place.hub.requests().is_empty());
}

#[test]
fn a_cache_that_python_filled_is_taken() {
    // As `huggingface_hub.snapshot_download` of two shards leaves it.
    let place = Place::new();
    let (repo, commit) = (place.repo(), commit(5));
    let index = br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let files: [(&str, &[u8]); 4] = [
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("model-00001-of-00002.safetensors", b"one"),
        ("model-00002-of-00002.safetensors", b"two"),
    ];
    let snapshot = repo.join("snapshots").join(&commit);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repo.join("blobs")).unwrap();
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::write(repo.join("refs/main"), &commit).unwrap();
    for (name, bytes) in files {
        std::fs::write(repo.join("blobs").join(sha256(bytes)), bytes).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(Path::new("../../blobs").join(sha256(bytes)), snapshot.join(name))
            .unwrap();
        #[cfg(not(unix))]
        std::fs::write(snapshot.join(name), bytes).unwrap();
    }
    assert_eq!(
        place.offline(None).unwrap(),
        FoundModel { commit: commit.clone(), folder: Some(snapshot.clone()) }
    );
    // A link to a blob that is not there is no file.
    std::fs::remove_file(repo.join("blobs").join(sha256(b"two"))).unwrap();
    let text = failure(&place, place.offline(None));
    assert!(text.contains("model-00002-of-00002.safetensors is missing"), "{text}");
    std::fs::remove_file(snapshot.join("model.safetensors.index.json")).unwrap();
    let text = failure(&place, place.offline(None));
    assert!(text.contains("(model.safetensors is missing)"), "{text}");
}

#[test]
fn shards_are_those_of_the_index() {
    let place = Place::new();
    let index = br#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
    place.hub.put(
        MODEL,
        "main",
        &commit(4),
        &[
            ("config.json", b"{}"),
            ("consolidated.safetensors", b"not for us"),
            ("m-1.safetensors", b"one"),
            ("m-2.safetensors", b"two"),
            ("model.safetensors.index.json", index),
        ],
    );
    let folder = place.model(None).unwrap().folder.unwrap();
    assert_eq!(std::fs::read(folder.join("m-2.safetensors")).unwrap(), b"two");
    assert!(!folder.join("consolidated.safetensors").exists());
    assert!(place.offline(None).is_ok());
}

#[test]
fn two_processes_bring_a_file_once() {
    let place = Place::new();
    place.hub.fault("/blob/", 1, Fault::Late(Duration::from_millis(300)));
    let settings = || HubSettings { silence: Duration::from_secs(20), ..place.settings() };
    std::thread::scope(|scope| {
        let both: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| place.model_with(settings(), None, Extent::Files).unwrap()))
            .collect();
        for one in both {
            let folder = one.join().unwrap().folder.unwrap();
            assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
        }
    });
    let cdn = place.asked().iter().filter(|line| line.starts_with("CDN")).count();
    assert_eq!(cdn, 1);
    assert!(place.heard.take().iter().any(|line| line.starts_with("say waiting for another process")));
}

#[test]
fn a_disk_without_room_is_named() {
    let error = HubError::Disk {
        operation: "write",
        path: "/cache/x.incomplete".into(),
        source: std::io::ErrorKind::StorageFull.into(),
    };
    assert_eq!(error.kind(), Kind::Failed);
    insta::assert_snapshot!(printed(&error), @r#"
failed to write /cache/x.incomplete: no storage space
free some space there, or name a cache on another disk with HF_HOME
"#);
    let place = Place::new();
    std::fs::write(place.cache.path().join("models--org--tiny"), "a file in the way").unwrap();
    let text = failure(&place, place.model(None));
    assert!(text.starts_with("failed to make the folder "), "{text}");
}

fn rows() -> Vec<u8> {
    b"{\"question\": \"1+1\", \"answer\": \"2\"}\n".repeat(3)
}

#[test]
fn a_split_is_found_downloaded_and_pinned() {
    let place = Place::new();
    place.hub.put(
        DATA,
        "main",
        &commit(6),
        &[
            ("README.md", b"---"),
            ("main/test.jsonl", &rows()),
            ("main/train-00000-of-00002.parquet", b"PAR1 one"),
            ("main/train-00001-of-00002.parquet", b"PAR1 two"),
        ],
    );
    place.hub.change(DATA, |repo| {
        repo.card = Some(serde_json::json!([{"config_name": "main", "data_files": [
            {"split": "train", "path": "main/train-*"}, {"split": "test", "path": "main/test.jsonl"}]}]));
    });
    let split = |settings: HubSettings, revision: Option<&str>, wanted, extent| {
        Hub::new(settings).split("org/sums", revision, wanted, extent, &place.heard)
    };
    let looked = split(place.settings(), None, TRAIN, Extent::Look).unwrap();
    assert_eq!((looked.configuration.as_str(), looked.split.as_str(), looked.files), ("main", "train", None));
    let found = split(place.settings(), None, TRAIN, Extent::Files).unwrap();
    let folder = place.cache.path().join("datasets--org--sums/snapshots").join(commit(6));
    let train = ["main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet"]
        .map(|file| folder.join(file));
    assert_eq!(found.files.as_deref(), Some(&train[..]));
    assert_eq!(std::fs::read(&train[1]).unwrap(), b"PAR1 two");
    #[cfg(unix)]
    assert!(std::fs::read_link(&train[1]).unwrap().starts_with("../../../blobs"));
    assert!(!folder.join("main/test.jsonl").exists(), "of the split alone");
    assert_eq!(found.commit, commit(6));

    // The branch moves on: the pinned commit does not, without a word to the hub.
    place.hub.put(DATA, "main", &commit(7), &[("train.jsonl", &rows())]);
    place.hub.requests();
    let pinned = split(place.settings(), Some(&commit(6)), TRAIN, Extent::Files).unwrap();
    assert_eq!(pinned.files.as_deref(), Some(&train[..]));
    assert!(place.hub.requests().is_empty());
    // Offline, a split that was not fetched is missing, though others of its commit are there.
    let offline = || HubSettings { offline: Some("HF_HUB_OFFLINE"), ..place.settings() };
    let test = WantedSplit { configuration: Some("main"), split: Some("test"), or: &[] };
    let text = failure(&place, split(offline(), Some(&commit(6)), test, Extent::Files));
    assert!(text.contains("(main/test.jsonl is missing)"), "{text}");
    assert!(
        text.contains(&format!("hf download org/sums --repo-type dataset --revision {}", commit(6))),
        "{text}"
    );
}

#[test]
fn other_formats_come_from_the_conversion() {
    let place = Place::new();
    place.hub.put(DATA, "main", &commit(6), &[("train.csv", b"a,b")]);
    let split =
        |wanted| Hub::new(place.settings()).split("org/sums", None, wanted, Extent::Files, &place.heard);
    insta::assert_snapshot!(failure(&place, split(TRAIN)), @r#"
`org/sums` has no Parquet or JSONL files at this revision
the hub's own conversion is at the revision `refs/convert/parquet` where it has made one; else write the rows to a JSONL or Parquet file
"#);
    place.hub.put(DATA, "refs/convert/parquet", &commit(8), &[("default/train/0000.parquet", b"PAR1")]);
    let found = split(TRAIN).unwrap();
    assert_eq!((found.commit, found.split), (commit(8), "train".to_owned()));
    let folder = place.cache.path().join("datasets--org--sums");
    assert_eq!(
        found.files.unwrap(),
        [folder.join("snapshots").join(commit(8)).join("default/train/0000.parquet")]
    );
    assert_eq!(std::fs::read_to_string(folder.join("refs/refs/convert/parquet")).unwrap(), commit(8));
    let test = WantedSplit { configuration: None, split: Some("test"), or: &[] };
    insta::assert_snapshot!(failure(&place, split(test)), @r#"
`org/sums` has no split `test` in `default`; it has `train`
a split is written `owner/name:configuration/split`
"#);
    // Whoever names a revision gets no other.
    let pinned =
        Hub::new(place.settings()).split("org/sums", Some(&commit(6)), TRAIN, Extent::Files, &place.heard);
    assert!(matches!(pinned, Err(HubError::NoRows { .. })), "{pinned:?}");
    // Offline, the conversion is in the cache.
    let offline = HubSettings { offline: Some("HF_HUB_OFFLINE"), ..place.settings() };
    assert_eq!(
        Hub::new(offline).split("org/sums", None, TRAIN, Extent::Files, &place.heard).unwrap().commit,
        commit(8)
    );
}
