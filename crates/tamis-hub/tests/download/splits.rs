//! Splits of datasets.

use super::*;

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

    // The branch moves. The pinned commit does not, and needs no request.
    place.hub.put(DATA, "main", &commit(7), &[("train.jsonl", &rows())]);
    place.hub.requests();
    let pinned = split(place.settings(), Some(&commit(6)), TRAIN, Extent::Files).unwrap();
    assert_eq!(pinned.files.as_deref(), Some(&train[..]));
    assert!(place.hub.requests().is_empty());
    // Offline, a split that was not fetched is missing, although others of its commit are there.
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
if the hub has converted it, use the revision `refs/convert/parquet`; otherwise write the rows to a JSONL or Parquet file
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
    // A named revision is never replaced by another.
    let pinned =
        Hub::new(place.settings()).split("org/sums", Some(&commit(6)), TRAIN, Extent::Files, &place.heard);
    assert!(matches!(&pinned, Err(error) if error.cause == HubCause::NoRows), "{pinned:?}");
    // Offline, the conversion is in the cache.
    let offline = HubSettings { offline: Some("HF_HUB_OFFLINE"), ..place.settings() };
    assert_eq!(
        Hub::new(offline).split("org/sums", None, TRAIN, Extent::Files, &place.heard).unwrap().commit,
        commit(8)
    );
}
