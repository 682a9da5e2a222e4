//! Hubs that do not answer, and files that are not accessible.

use super::*;

/// The client has what TLS needs, and sends nothing in plain text to a server without TLS.
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
too many requests from here: try again in 1 s; HF_TOKEN raises the limit
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
    // If a whole copy is cached, it is used, with a warning.
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
    let other = || HubSettings { token: HubToken::new("hf_other"), ..place.settings() };
    let missing = |settings| Hub::new(settings).model("org/tniy", None, Extent::Files, &place.heard);
    insta::assert_snapshot!(failure(&place, missing(stranger())), @r#"
there is no model `org/tniy` on HUB
is it spelt `owner/name`, as on the hub? A private one needs HF_TOKEN in the environment
"#);
    insta::assert_snapshot!(failure(&place, missing(other())), @r#"
there is no model `org/tniy` on HUB, or this token has no access to it
is it spelt `owner/name`, as on the hub? The account of the token needs access to it
"#);
    insta::assert_snapshot!(failure(&place, place.model(Some("v9"))), @r#"
`org/tiny` has no revision `v9`
a revision is a branch, a tag or a full commit hash
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
`org/tiny` is gated: access requires accepting its terms
accept the terms at HUB/org/tiny, and set HF_TOKEN to your token
"#);
    insta::assert_snapshot!(failure(&place, of(other())), @r#"
`org/tiny` is gated: access requires accepting its terms
accept the terms at HUB/org/tiny with the account of the token
"#);
    place.hub.fault("/api/", 1, Fault::Status(401, Vec::new()));
    insta::assert_snapshot!(failure(&place, of(other())), @r#"
the hub HUB refuses the token (status 401)
set HF_TOKEN to a token of HUB/settings/tokens that can read it, or unset it
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
HUB/api/models/org/tiny/revision/main did not answer as a hub does: no JSON: expected value at line 1 column 1
does HF_ENDPOINT name a hub?
"#);
}

#[test]
fn a_disk_without_room_is_named() {
    let full = std::io::ErrorKind::StorageFull.into();
    let error = HubError::disk("write", std::path::Path::new("/cache/x.incomplete"), full);
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
