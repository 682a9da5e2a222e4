//! Caches that exist already.

use super::*;

#[test]
fn offline_takes_what_is_whole_and_asks_nobody() {
    let place = Place::new();
    let text = failure(&place, place.offline(None)).replace(place.cache.path().to_str().unwrap(), "CACHE");
    insta::assert_snapshot!(text, @r#"
`org/tiny` is not in the cache CACHE, and HF_HUB_OFFLINE forbids downloads
run `hf download org/tiny` with network access, or unset HF_HUB_OFFLINE
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
    // As `huggingface_hub.snapshot_download` leaves two shards.
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
    // A link to a missing blob does not count as a file.
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
