//! Answers have the form of captured answers of vLLM.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::harness::*;

fn captures() -> Value {
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/../tamis-rollout/tests/captures/vllm-0.32.json.gz");
    let packed = std::fs::File::open(packed).expect("the captures");
    serde_json::from_reader(flate2::read::GzDecoder::new(packed)).expect("captures in JSON")
}

/// Captured requests that are answered.
const ANSWERS: &str = "\
    comp_min_defaults completions_min completions_lp0_ids completions_lp1_ids completions_n4
    completions_batch_prompts completions_stop_str completions_stop_str_incl completions_stop_token
    completions_tokids_str completions_reqid_body completions_stream completions_stream_n2 chat_lp
    chat_stream generate generate_n2 generate_stream generate_text generate_stop_str generate_stop_token
    generate_minimal generate_unknown_field generate_same_id tokenize tokenize_chat detokenize models
    version load is_paused_false weight_info abort_unknown resume_when_not_paused reset_prefix_idle
    update_weight_version_mid priority_ok err_unknown_field xreqid_echo health ping";

/// Captured requests that are refused.
const REFUSALS: &str = "\
    err_404 err_405 err_bad_json err_bad_model err_bad_type err_empty_prompt err_logprobs_too_many
    err_neg_temp err_neg_token err_no_ct err_prompt_too_long err_token_oov generate_bad_model
    generate_empty_tokens generate_missing_sp generate_oov generate_too_long abort_nobody abort_inf_nobody
    pause_bad_mode rpc_no_method rpc_unknown_method err_prompt_plus_max_too_long
    generate_len_plus_max_too_long";

/// Fields of vLLM for which this server has nothing to report.
const NOT_OURS: &str = "\
    kv_transfer_params ec_transfer_params metrics prompt_tokens_details completion_tokens_details
    prompt_text mm_placeholders prompt_token_id_logprobs permission prompt_logprobs system_fingerprint
    service_tier";

fn not_ours(name: &str) -> bool {
    NOT_OURS.split_whitespace().any(|other| other == name)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Every field of vLLM's is here too, with the same type. If vLLM returns null, this server may return more.
fn assert_form(ours: &Value, theirs: &Value, at: &str) {
    match (ours, theirs) {
        (_, Value::Null) => {}
        (Value::Object(ours), Value::Object(theirs)) => {
            // Names of tokens are not fields.
            if at.contains("top_logprobs") && theirs.values().all(Value::is_number) {
                return;
            }
            for (name, value) in theirs.iter().filter(|(name, _)| !not_ours(name)) {
                let mine = ours.get(name).unwrap_or_else(|| panic!("no {at}.{name} in {ours:?}"));
                assert_form(mine, value, &format!("{at}.{name}"));
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            if let (Some(mine), Some(their)) = (ours.first(), theirs.iter().find(|value| !value.is_null())) {
                assert_form(mine, their, &format!("{at}[]"));
            }
        }
        // Each server has its own reasons for an end, and its own way to name a place in a body that is not a
        // field.
        _ if ["stop_reason", "finish_reason", "error.param"].iter().any(|own| at.ends_with(own)) => {}
        _ => assert_eq!(kind(ours), kind(theirs), "{at}: {ours}, vLLM {theirs}"),
    }
}

/// The captured requests, sent to this server.
#[test]
fn answers_have_the_form_of_vllms() {
    let (server, captures) = (serve(settings()), captures());
    for name in ANSWERS.split_whitespace().chain(REFUSALS.split_whitespace()) {
        let captured = &captures[name];
        let (request, response) = (&captured["request"], &captured["response"]);
        let body = match &request["body"] {
            Value::Null => String::new(),
            // Sent unchanged, not as JSON.
            Value::String(text) => text.clone(),
            // Ids beyond this tokenizer's vocabulary are not what the test is about.
            body => body
                .to_string()
                .replace("[600]", "[99999]")
                .replace("9999]", "99999]")
                .replace("999999]", "99999]"),
        };
        let headers: Vec<(&str, &str)> = request["headers"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
            .collect();
        let (method, path) = (request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
        let answer = ask(server.address, method, path, &headers, body.as_bytes());
        assert_eq!(json!(answer.status), response["status"], "{name}: {}", answer.text());
        let theirs = &response["body"];
        if let Some(form) = response["content_type"].as_str() {
            assert_eq!(answer.header("content-type"), Some(form), "{name}");
        }
        if theirs == "" {
            assert_eq!(answer.text(), "", "{name}");
        } else if let Value::Array(lines) = theirs {
            let theirs: Vec<Value> = lines
                .iter()
                .filter_map(|line| line.as_str()?.strip_prefix("data: "))
                .filter(|data| *data != "[DONE]")
                .map(|data| serde_json::from_str(data).unwrap())
                .collect();
            let ours = answer.events();
            assert_form(&ours[0], &theirs[0], name);
            assert_form(ours.last().unwrap(), theirs.last().unwrap(), name);
        } else {
            assert_form(&answer.json(), theirs, name);
        }
    }
}

#[test]
fn plain_routes() {
    let server = serve(settings());
    let version = server.get("/version").json();
    assert_eq!(
        (&version["server"], &version["keys"]),
        (&json!("tamis"), &json!(true)),
        "a client can tell who it is"
    );
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["owned_by"], "tamis");
    assert_eq!(models["data"][0]["max_model_len"], json!(MODEL_LENGTH));
    assert_eq!(models["data"][0]["root"], "where/it/was");

    let text = "Hello world, 12 + 34!";
    let tokens = server.json("/tokenize", &json!({"prompt": text, "return_token_strs": true}));
    let expected = tokenizer().encode(text, true).unwrap();
    assert_eq!(tokens["tokens"], json!(expected));
    assert_eq!((&tokens["count"], &tokens["max_model_len"]), (&json!(expected.len()), &json!(MODEL_LENGTH)));
    assert_eq!(tokens["token_strs"].as_array().unwrap().len(), expected.len());
    assert_eq!(server.json("/detokenize", &json!({"tokens": expected})), json!({"prompt": text}));

    // The prompt is the template's text of the conversation, and the answer has its tokens.
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let rendered = tokenizer()
        .chat_template()
        .unwrap()
        .prompt(messages.as_array().unwrap(), &serde_json::Map::new())
        .unwrap();
    let expected = tokenizer().encode(&rendered.text, false).unwrap();
    assert_eq!(server.json("/tokenize", &json!({"messages": messages}))["tokens"], json!(expected));
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]);
    assert_eq!(server.json("/tokenize", &json!({"messages": parts}))["tokens"], json!(expected));
    let chat = server.json(
        "/v1/chat/completions",
        &json!({"messages": messages, "max_tokens": 3, "return_token_ids": true}),
    );
    assert_eq!(chat["prompt_token_ids"], json!(expected));
    assert_eq!(chat["usage"]["prompt_tokens"], json!(expected.len()));
    // A final assistant message is a finished turn, unless the request continues it.
    let begun = json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "The sum"}]);
    let count = |body: Value| server.json("/tokenize", &body)["count"].as_u64().unwrap();
    let continued = count(json!({"messages": begun, "continue_final_message": true}));
    assert!(count(json!({"messages": begun})) > continued);
    assert_eq!(
        count(json!({"messages": begun, "add_generation_prompt": false, "continue_final_message": true})),
        continued
    );

    // Ids: the header takes precedence over the body, with the prefix of the route.
    let body = json!({"prompt": [1], "max_tokens": 1, "request_id": "body"});
    let answer = server.post_with("/v1/completions", &[("X-Request-Id", "header")], &body);
    assert_eq!(
        (answer.header("x-request-id"), &answer.json()["id"]),
        (Some("header"), &json!("cmpl-header"))
    );
    assert_eq!(server.json("/v1/completions", &body)["id"], "cmpl-body");
    let answer = server.get("/version");
    assert!(answer.header("x-request-id").is_some_and(|id| id.len() == 16));
    let chat = server.json(
        "/v1/chat/completions",
        &json!({"messages": messages, "max_completion_tokens": 2, "ignore_eos": true}),
    );
    assert_eq!(chat["usage"]["completion_tokens"], 2);
}

#[test]
fn metrics_have_vllms_names() {
    let server = serve(settings());
    let group = json!({"token_ids": [10, 20, 30, 40], "sampling_params": {"n": 5, "max_tokens": 7, "ignore_eos": true}});
    server.json("/inference/v1/generate", &group);
    server.await_metric("vllm:num_requests_running", |running| running == 0.0);
    assert_eq!(server.metric("vllm:prompt_tokens_total", ""), 20.0);
    assert_eq!(server.metric("vllm:prefix_cache_queries_total", ""), 20.0);
    assert_eq!(server.metric("vllm:prefix_cache_hits_total", ""), 16.0, "a group's prompt is computed once");
    // A prefix that two prompts share is not computed again for a third.
    let begun: Vec<u32> = (10..40).collect();
    for last in [50, 51, 52] {
        let prompt = [&begun[..], &[last, 60]].concat();
        server.json("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true}));
    }
    server.await_metric("vllm:prefix_cache_hits_total", |hits| hits == 16.0 + 30.0);
    assert_eq!(server.metric("vllm:generation_tokens_total", ""), 38.0);
    assert_eq!(server.metric("vllm:request_success_total", "length"), 8.0);
    assert_eq!(server.metric("vllm:e2e_request_latency_seconds_count", ""), 8.0);
    let Some(raw) = std::fs::read_to_string(
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/vllm-wire/metrics_raw.txt"),
    )
    .ok() else {
        eprintln!("skipped: no captured metrics beside the repository");
        return;
    };
    for line in server.get("/metrics").text().lines().filter(|line| line.starts_with("vllm:")) {
        let name = line.split('{').next().unwrap();
        assert!(raw.contains(&format!("\n{name}{{")), "vLLM has no {name}");
    }
}

/// Completions with this project's own client and keys equal the engine's. Other requests of a fleet are in
/// `client.rs`.
#[test]
fn our_own_client_understands_completions() {
    use tamis_rollout::wire::vllm::{self, Interface};
    use tamis_rollout::wire::{Ask, Expected, Finish, HttpAnswer};

    let server = serve(settings());
    let (prompt, end, extra) = ([10, 20, 30], [tokenizer().eos_id().unwrap()], serde_json::Map::new());
    let sampling = tamis_rollout::Sampling { temperature: 0.8, ..tamis_rollout::Sampling::plain(30) };
    let key = tamis_core::random::Key::new(3, tamis_core::random::Purpose::Rollout).with(5);
    let (expected, logprobs, _) = alone(1, &prompt, vec![key], &sampling).remove(0);
    let asked = Ask {
        request_id: "q1",
        prompt: &prompt,
        images: &[],
        prompt_text: "",
        sampling: &sampling,
        seed: None,
        key: Some(key),
        end_token_ids: &end,
        model: Some("tiny"),
        cache_salt: Some("w0"),
        logprobs: true,
        extra: &extra,
    };
    let (id, _) = vllm::server_id(Interface::Completions, "q1");
    let call = vllm::sample(Interface::Completions, &asked);
    let answer = ask(server.address, "POST", &call.path, &[("Content-Type", "application/json")], &call.body);
    let content_type = answer.header("content-type").unwrap_or_default().to_owned();
    let answer = HttpAnswer { status: answer.status, content_type, body: answer.body, retry_after: None };
    let completion = vllm::only(vllm::read(&answer).unwrap()).unwrap();
    let expects = Expected { request_id: &id, vocabulary: tokenizer().num_rows(), limit: 30, logprobs: true };
    let checked = completion.check(&expects).unwrap();
    assert_eq!((&checked.token_ids, &checked.logprobs), (&expected, &logprobs));
    let finish = if expected.last() == Some(&end[0]) { Finish::Stop } else { Finish::Length };
    assert_eq!(checked.finish, finish);
}
