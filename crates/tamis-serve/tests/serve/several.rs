//! Two models behind one address: each request is answered by the model that it names.

use serde_json::{Value, json};
use tamis_serve::{NativeServer, ServedPolicy};

use super::harness::*;

fn sampled(server: &Serving, model: Option<&str>) -> Value {
    let mut body = json!({
        "token_ids": [10, 20, 30],
        "sampling_params": {"max_tokens": 12, "ignore_eos": true, "seed": 5, "logprobs": 0},
    });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    server.json("/inference/v1/generate", &body)
}

#[test]
fn each_request_is_answered_by_the_model_that_it_names() {
    let server = serve_two(&settings());
    let listed = server.get("/v1/models").json();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["before", "after"]);
    // Each gives what it gives alone: the weights differ, and so do the tokens.
    let of = |model: Option<&str>| {
        let answer = sampled(&server, model);
        (answer["model"].as_str().unwrap().to_owned(), tokens(&answer))
    };
    let (before, after) = (of(Some("before")), of(Some("after")));
    assert_ne!(before.1, after.1);
    let alone = serve(settings());
    assert_eq!(tokens(&sampled(&alone, None)), before.1);
    assert_eq!((before.0.as_str(), after.0.as_str()), ("before", "after"));
    assert_eq!(of(None), before, "without a name the first answers");
    for (path, body) in [
        ("/v1/completions", json!({"prompt": [10, 20], "max_tokens": 2})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})),
    ] {
        for model in ["before", "after"] {
            let mut body = body.clone();
            body["model"] = json!(model);
            assert_eq!(server.json(path, &body)["model"], model, "{path}");
        }
        let mut other = body;
        other["model"] = json!("beforehand");
        let refused = server.post(path, &other);
        assert_eq!(refused.status, 404, "{}", refused.text());
        let message = "The model `beforehand` does not exist. Valid aliases: before, after.";
        assert_eq!(refused.json()["error"]["message"], message);
    }
}

#[test]
fn counters_are_of_each_model() {
    let server = serve_two(&settings());
    sampled(&server, Some("after"));
    let generated = |model: &str| {
        server.metric("vllm:generation_tokens_total", &format!("engine=\"0\",model_name=\"{model}\""))
    };
    assert_eq!((generated("before"), generated("after")), (0.0, 12.0));
    let text = server.get("/metrics").text();
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let mut once = headings.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(headings.len(), once.len(), "a metric has one heading: {text}");
    assert_eq!(server.get("/load").json()["server_load"], 0);
}

/// A pause, an abort or new weights name no model: which of the two is meant cannot be known.
#[test]
fn control_is_for_a_server_of_one_model() {
    let server = serve_two(&settings());
    for path in ["/pause", "/resume", "/reset_prefix_cache", "/collective_rpc", "/abort_requests"] {
        let refused = server.post(path, &json!({"method": "reload_weights"}));
        assert_eq!(refused.status, 400, "{path}: {}", refused.text());
        assert!(refused.text().contains("this server has several models"), "{path}: {}", refused.text());
    }
    for path in ["/is_paused", "/weight_info"] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    sampled(&server, Some("after"));
}

#[test]
fn models_have_names_of_their_own() {
    let error = NativeServer::begin(vec![policy(1), policy(2)], &settings()).err().expect("refused");
    assert!(error.is_usage() && error.to_string() == "two models are called `tiny`", "{error}");
    assert!(error.hint().unwrap().contains("--served-model-name"));
    let error = NativeServer::begin(Vec::<ServedPolicy>::new(), &settings()).err().expect("refused");
    assert_eq!(error.to_string(), "there is no model to serve");
}
