//! Downloads that break off, stop or arrive damaged.

use super::*;

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
        text.contains("is incomplete in the cache") && text.contains("model.safetensors is missing"),
        "{text}"
    );

    // Later, in another process.
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
        format!("model.safetensors of `org/tiny` arrived damaged: expected {}, got ", sha256(&weights()));
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(std::fs::read_dir(place.repo().join("blobs")).unwrap().count(), 2, "of the small files alone");

    let small = Place::new();
    small.hub.fault("/resolve/", 0, Fault::Corrupt);
    small.hub.fault("config.json", 0, Fault::Corrupt);
    small.hub.fault("tokenizer.json", 9, Fault::Corrupt);
    let text = failure(&small, small.model(None));
    assert!(text.starts_with("tokenizer.json of `org/tiny` arrived damaged"), "{text}");
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
fn another_size_than_listed_is_damage() {
    for size in [100, 4_000_000] {
        let place = Place::new();
        place.hub.fault("model.safetensors", 99, Fault::SaysSize(size));
        let text = failure(&place, place.model(None));
        let expected = format!(
            "model.safetensors of `org/tiny` arrived damaged: expected 2800000 bytes, as the repository lists it, got {size} bytes"
        );
        assert!(text.starts_with(&expected), "{text}");
        assert!(!place.repo().join("blobs").join(sha256(&weights())).exists());
    }
}

/// A mirror with made-up tags: the size in the listing does not prove what the bytes are.
#[test]
fn a_file_without_a_checksum_is_not_put_into_the_cache() {
    let place = Place::new();
    place.hub.fault("tokenizer.json", 99, Fault::Tagged("abc"));
    let text = failure(&place, place.model(None));
    assert!(text.contains("neither its ETag nor the listing has a checksum"), "{text}");
    let blobs: Vec<_> = std::fs::read_dir(place.repo().join("blobs")).unwrap().flatten().collect();
    assert!(blobs.iter().all(|blob| blob.file_name() != "abc"), "{blobs:?}");
    assert!(place.offline(Some(&commit(1))).is_err());
}

/// An earlier run, or another program, took an incomplete file for the whole.
#[test]
fn a_file_of_another_size_in_the_cache_is_brought_again() {
    let place = Place::new();
    let folder = place.model(None).unwrap().folder.unwrap();
    let path = folder.join("tokenizer.json");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "{").unwrap();
    let text = failure(&place, place.offline(Some(&commit(1))));
    assert!(text.contains("tokenizer.json is missing"), "{text}");
    place.model(None).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"{\"a\": 1}");
}

#[test]
fn a_hub_that_drips_is_given_up() {
    for part in ["/api/", "/blob/"] {
        let place = Place::new();
        let settings =
            HubSettings { silence: Duration::from_millis(500), pauses: Vec::new(), ..place.settings() };
        place.hub.fault(part, 99, Fault::Drip(Duration::from_millis(5)));
        let error = place.model_with(settings, None, Extent::Files).unwrap_err();
        let text = printed(&error);
        assert!(text.contains("it sends less than 64.0 KiB in 1 s"), "{text}");
        assert_eq!(error.kind(), Kind::Unreachable);
    }
}
