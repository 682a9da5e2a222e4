//! Which files are downloaded, and their layout in the cache.

use super::*;

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
    // A branch may have moved: only its commit is requested.
    place.model(None).unwrap();
    assert_eq!(place.asked(), ["GET main"]);
    // A commit cannot.
    place.model(Some(&commit(1))).unwrap();
    assert!(place.asked().is_empty());
    // A later commit shares unchanged files.
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
    assert!(failure(&place, round).contains("it redirects in a circle"));
}
