//! Aborts, pauses, new weights, versions, and clients that leave.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tamis_model::{Model, SaveDtype, Sequence, Threads, Workspace, score};
use tamis_serve::ServeSettings;

use super::harness::*;

const GENERATE: &str = "/inference/v1/generate";

fn save(model: &Model, folder: &Path) {
    model.save(folder, SaveDtype::F32).unwrap();
}

/// A request with a seed, whole or as a stream.
fn seeded(seed: u64, max_tokens: usize, is_streamed: bool) -> Value {
    let mut body = long(&format!("begun-{seed}"), max_tokens);
    (body["sampling_params"]["seed"], body["stream"]) = (json!(seed), json!(is_streamed));
    body
}

/// A completion's log-probabilities under given weights.
fn scored(model: &Model, prompt: &[u32], completion: &[u32]) -> Vec<f32> {
    let tokens = [prompt, completion].concat();
    let sequence = Sequence { tokens: &tokens, start: prompt.len() };
    let scores = score(&Threads::new(1), model, &mut Workspace::default(), &[sequence], 1.0).unwrap();
    scores.logprobs.row(0).to_vec()
}

#[test]
fn aborted_requests_are_answered_with_what_they_have() {
    // Slow enough that none finishes before it is aborted, also on a busy machine.
    let server = serve(slow(12));
    let whole = tokens(&server.json(GENERATE, &long("whole", 30)));
    let doomed = server.later(GENERATE, long("one", 400));
    let mut completion = json!({"prompt": [10, 20, 30], "max_tokens": 400, "ignore_eos": true, "n": 2, "seed": 1, "request_id": "two", "return_token_ids": true});
    let by_completion = server.later("/v1/completions", completion.clone());
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400, "ignore_eos": true, "request_id": "three"});
    let by_chat = server.later("/v1/chat/completions", chat);
    completion["stream"] = json!(true);
    completion["request_id"] = json!("four");
    let by_stream = server.later("/v1/completions", completion);
    server.await_metric("vllm:num_requests_running", |running| running == 6.0);
    std::thread::sleep(Duration::from_millis(60));
    // Without the prefix and the number of the prompt, no request matches. The ids are counted all the same.
    let abort = |ids: Value| server.json("/abort_requests", &json!({"request_ids": ids}));
    assert_eq!(abort(json!(["one", "cmpl-two", "nope"])), json!({"status": "aborted", "aborted": 3}));
    assert_eq!(server.metric("vllm:num_requests_running", ""), 6.0);
    assert_eq!(abort(json!(["generate-tokens-one"])), json!({"status": "aborted", "aborted": 1}));
    let answer = doomed.join().unwrap();
    assert_eq!(answer.status, 200);
    let choice = answer.json()["choices"][0].clone();
    let got = choice_tokens(&choice);
    assert_eq!(choice["finish_reason"], "abort");
    assert!(got.len() > 5 && got.len() < 400, "{}", got.len());
    assert_eq!(got[..got.len().min(30)], whole[..got.len().min(30)], "the same as far as it came");
    assert_eq!(choice["weight_versions"], json!([{"version": "default", "start": 0, "end": got.len()}]));
    assert_eq!(choice_logprobs(&choice).len(), got.len());

    let answer = server.post("/inference/v1/abort_requests", &json!({"request_ids": ["cmpl-two-0"]}));
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    let answer = by_completion.join().unwrap().json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "abort");
    }
    assert_eq!(abort(json!(["chatcmpl-three"]))["aborted"], 1);
    assert_eq!(by_chat.join().unwrap().json()["choices"][0]["finish_reason"], "abort");
    // All at once, streams among them.
    server.await_metric("vllm:num_requests_running", |running| running == 2.0);
    let last = server.later(GENERATE, long("five", 400));
    server.await_metric("vllm:num_requests_running", |running| running == 3.0);
    assert_eq!(server.json("/abort_requests", &json!({})), json!({"status": "aborted", "aborted": 2}));
    let events = by_stream.join().unwrap().events();
    for index in 0..2 {
        let last = events.iter().rev().find(|event| event["choices"][0]["index"] == json!(index)).unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "abort");
    }
    assert_eq!(last.join().unwrap().json()["choices"][0]["finish_reason"], "abort");
    assert_eq!(server.metric("vllm:request_success_total", "abort"), 7.0);
    server.await_metric("vllm:num_requests_running", |running| running == 0.0);
}

#[test]
fn a_pause_aborts_waits_or_keeps() {
    let server = serve(slow(2));
    let is_paused = || server.get("/is_paused").json()["is_paused"] == json!(true);
    let expected = tokens(&server.json(GENERATE, &long("expected", 120)));
    let short = || json!({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2, "seed": 3}});
    assert!(!is_paused());
    assert_eq!(server.json("/resume", &json!({})), json!({"status": "resumed"}), "to no effect");
    for mode in ["abort", "wait", "keep"] {
        let begun = server.later(GENERATE, long("begun", 120));
        server.await_metric("vllm:num_requests_running", |running| running == 1.0);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(server.json(&format!("/pause?mode={mode}"), &json!({})), json!({"status": "paused"}));
        assert!(is_paused());
        // New requests wait.
        let new = server.later(GENERATE, short());
        server.await_metric("vllm:num_requests_waiting", |waiting| waiting == 1.0);
        if mode == "keep" {
            let generated = server.metric("vllm:generation_tokens_total", "");
            std::thread::sleep(Duration::from_millis(40));
            assert_eq!(server.metric("vllm:generation_tokens_total", ""), generated, "all stands still");
            assert!(!begun.is_finished());
        }
        assert!(!new.is_finished());
        assert_eq!(server.json("/resume", &json!({})), json!({"status": "resumed"}));
        assert!(!is_paused());
        let (begun, new) = (begun.join().unwrap().json(), new.join().unwrap().json());
        let (got, reason) = (tokens(&begun), &begun["choices"][0]["finish_reason"]);
        if mode == "abort" {
            assert_eq!(reason, "abort");
            assert!(!got.is_empty() && got.len() < 120 && expected.starts_with(&got), "{}", got.len());
        } else {
            assert_eq!((&got, reason.as_str()), (&expected, Some("length")), "{mode}");
        }
        assert_eq!(tokens(&new).len(), 2);
    }
    // Pause twice, in another mode, and abort a waiting request.
    assert_eq!(server.json("/pause?mode=wait", &json!({})), json!({"status": "paused"}));
    assert_eq!(server.json("/pause?mode=keep", &json!({})), json!({"status": "paused"}));
    let mut held = short();
    held["request_id"] = json!("held");
    let held = server.later(GENERATE, held);
    server.await_metric("vllm:num_requests_waiting", |waiting| waiting == 1.0);
    assert_eq!(server.json("/abort_requests", &json!({}))["aborted"], 1);
    let held = held.join().unwrap().json();
    assert_eq!((&held["choices"][0]["finish_reason"], tokens(&held).len()), (&json!("abort"), 0));
    server.json("/resume", &json!({}));
}

/// As in vLLM 0.33: while paused with `abort` or `wait`, new requests are refused; with `keep` they wait.
#[test]
fn while_paused_requests_can_be_refused() {
    let server = serve(ServeSettings { refuses_while_paused: true, ..slow(1) });
    for mode in ["abort", "wait"] {
        server.json(&format!("/pause?mode={mode}"), &json!({}));
        for path in ["/v1/completions", GENERATE] {
            let answer = server.post(
                path,
                &json!({"prompt": [1], "token_ids": [1], "sampling_params": {}, "max_tokens": 1}),
            );
            assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("engine_paused")));
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        server.json("/resume", &json!({}));
    }
    server.json("/pause?mode=keep", &json!({}));
    let waits = server.later(GENERATE, long("waits", 3));
    server.await_metric("vllm:num_requests_waiting", |waiting| waiting == 1.0);
    server.json("/resume", &json!({}));
    assert_eq!(tokens(&waits.join().unwrap().json()).len(), 3);
}

/// New weights in the middle of a request: spans show where, and tokens after the switch have the
/// log-probabilities of the new weights.
#[test]
fn weights_are_changed_in_the_middle() {
    let server = serve(slow(2));
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (model(1), model(2));
    save(&new, folder.path());
    let prompt = [10, 20, 30];
    let begun: Vec<_> = (0..3).map(|i| server.later(GENERATE, seeded(i, 150, i == 2))).collect();
    server.await_metric("vllm:num_requests_running", |running| running == 3.0);
    std::thread::sleep(Duration::from_millis(50));
    server.json("/pause?mode=keep", &json!({}));
    let reload = json!({"method": "reload_weights", "kwargs": {"weights_path": folder.path()}});
    assert_eq!(server.json("/collective_rpc", &reload), json!({"results": [null]}));
    assert_eq!(
        server.get("/weight_info").json()["weight_version"],
        "default",
        "a label changes when it is told to"
    );
    assert_eq!(server.get("/weight_info").json()["num_reloads"], 1);
    let label = server.json("/update_weight_version", &json!({"new_version": "7"}));
    assert_eq!(label, json!({"success": true, "new_version": "7"}));
    assert_eq!(server.json("/reset_prefix_cache", &json!({})), json!({"success": false}), "something runs");
    server.json("/resume", &json!({}));
    for (i, begun) in begun.into_iter().enumerate() {
        let answer = begun.join().unwrap();
        let (got, logprobs, spans) = if i == 2 {
            let events = answer.events();
            let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
            let got: Vec<u32> = choices.iter().flat_map(|choice| choice_tokens(choice)).collect();
            let logprobs: Vec<f32> = choices.iter().flat_map(|choice| choice_logprobs(choice)).collect();
            (got, logprobs, choices.last().unwrap()["weight_versions"].clone())
        } else {
            let choice = answer.json()["choices"][0].clone();
            (choice_tokens(&choice), choice_logprobs(&choice), choice["weight_versions"].clone())
        };
        assert_eq!(got.len(), 150);
        let switch = spans[0]["end"].as_u64().unwrap() as usize;
        assert!((5..145).contains(&switch), "{spans}");
        let expected = json!([{"version": "default", "start": 0, "end": switch}, {"version": "7", "start": switch, "end": 150}]);
        assert_eq!(spans, expected);
        assert_eq!(logprobs[..switch], scored(&old, &prompt, &got)[..switch], "request {i}");
        assert_eq!(logprobs[switch..], scored(&new, &prompt, &got)[switch..], "request {i}");
    }
    // Later requests use the new weights from the start. Without a path, the last folder is read again.
    let answer = server.json(GENERATE, &long("after", 20));
    assert_eq!(choice_logprobs(&answer["choices"][0]), scored(&new, &prompt, &tokens(&answer)));
    assert_eq!(answer["choices"][0]["weight_versions"], json!([{"version": "7", "start": 0, "end": 20}]));
    save(&old, folder.path());
    server.json("/collective_rpc", &json!({"method": "reload_weights"}));
    let answer = server.json(GENERATE, &long("again", 20));
    assert_eq!(choice_logprobs(&answer["choices"][0]), scored(&old, &prompt, &tokens(&answer)));
    assert_eq!(server.json("/reset_prefix_cache", &json!({})), json!({"success": true}));
}

/// Without a pause, running samples continue on the old weights' caches, unless these are recomputed. Waiting
/// ones start with the new weights.
#[test]
fn weights_are_changed_without_a_pause() {
    let server = serve(ServeSettings { max_num_seqs: 2, ..slow(3) });
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (model(1), model(2));
    save(&new, folder.path());
    // Two run, and four wait that share their prompt.
    let begun: Vec<_> = (0..6).map(|i| server.later(GENERATE, seeded(i, 60, false))).collect();
    server.await_metric("vllm:num_requests_waiting", |waiting| waiting == 4.0);
    std::thread::sleep(Duration::from_millis(30));
    let reload = json!({"method": "reload_weights", "args": [folder.path()]});
    assert_eq!(server.json("/collective_rpc", &reload), json!({"results": [null]}));
    server.json("/update_weight_version", &json!({"new_version": "new"}));
    assert_eq!(
        server.json("/reset_prefix_cache?reset_running_requests=true", &json!({})),
        json!({"success": true})
    );
    let (mut switched, mut fresh) = (0, 0);
    for begun in begun {
        let choice = begun.join().unwrap().json()["choices"][0].clone();
        let (got, logprobs) = (choice_tokens(&choice), choice_logprobs(&choice));
        let (by_old, by_new) = (scored(&old, &[10, 20, 30], &got), scored(&new, &[10, 20, 30], &got));
        if choice["weight_versions"].as_array().unwrap().len() == 2 {
            switched += 1;
            let from_old = logprobs.iter().zip(&by_old).take_while(|(a, b)| a == b).count();
            let from_new = logprobs.iter().rev().zip(by_new.iter().rev()).take_while(|(a, b)| a == b).count();
            assert!(from_old > 0 && from_new > 0);
            // Between the three commands a step or two ran on the old cache.
            assert!(from_old + from_new + 8 >= 60, "{from_old} and {from_new} of 60");
        } else {
            fresh += 1;
            assert_eq!(logprobs, by_new);
            assert_eq!(choice["weight_versions"], json!([{"version": "new", "start": 0, "end": 60}]));
        }
    }
    assert_eq!((switched, fresh), (2, 4));
}

#[test]
fn weights_that_cannot_be_used_leave_the_old_ones() {
    let server = serve(settings());
    let before = server.json(GENERATE, &long("before", 20));
    let folder = tempfile::tempdir().unwrap();
    let reload = |path: &Path| {
        let body = json!({"method": "reload_weights", "kwargs": {"weights_path": path}});
        server.post("/collective_rpc", &body)
    };
    let refused = |answer: Answer, says: &str| {
        assert_eq!(answer.status, 400, "{}", answer.text());
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], "weights_path");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(says) && message.contains("the old ones stay"), "{message}");
    };
    refused(reload(Path::new("/nonexistent")), "there is no such folder");
    refused(reload(folder.path()), "failed to use the configuration");
    // Another shape.
    let mut config = model(1).config().clone();
    config.num_layers = 1;
    let other =
        Model::init(config, tamis_core::random::Key::new(1, tamis_core::random::Purpose::Init)).unwrap();
    save(&other, folder.path());
    refused(reload(folder.path()), "its num_hidden_layers is 1, that of the model served 2");
    // Not finite.
    let mut broken = model(2);
    assert!(broken.nudge("model.norm.weight", |_| f32::NAN));
    save(&broken, folder.path());
    refused(reload(folder.path()), "holds numbers that are not finite");
    // Half a file.
    save(&model(2), folder.path());
    let file = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    refused(reload(folder.path()), "cannot be used");
    let after = server.json(GENERATE, &long("after", 20));
    assert_eq!(before["choices"], after["choices"]);
    let info = server.get("/weight_info").json();
    assert_eq!((&info["num_reloads"], &info["weights_path"]), (&json!(0), &json!("where/it/was")));
}

/// Finite weights with logits that are not finite: every route answers with an error that names the cause,
/// and never with NaN or infinity. With other weights, the server works again.
#[test]
fn weights_without_finite_logits_are_answered_with_an_error() {
    let server = serve(settings());
    let folder = tempfile::tempdir().unwrap();
    let reload = |model: &Model| {
        save(model, folder.path());
        let body = json!({"method": "reload_weights", "kwargs": {"weights_path": folder.path()}});
        server.json("/collective_rpc", &body);
    };
    let before = server.json(GENERATE, &long("before", 5));
    let mut exploded = model(1);
    assert!(exploded.nudge("model.norm.weight", |_| 3e38));
    reload(&exploded);
    let completion = json!({"prompt": [10, 20], "max_tokens": 4, "logprobs": 1});
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4});
    let scores = json!({"prompt": [10, 20], "max_tokens": 1, "prompt_logprobs": 0});
    for (path, body) in [
        (GENERATE, long("now", 5)),
        ("/v1/completions", completion.clone()),
        ("/v1/completions", scores),
        ("/v1/chat/completions", chat),
    ] {
        let answer = server.post(path, &body);
        let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(answer.status, 500, "{path}: {message}");
        assert!(
            message.contains("logits are NaN or infinite") && message.contains("reload_weights"),
            "{message}"
        );
    }
    let mut streamed = completion;
    streamed["stream"] = json!(true);
    let answer = server.post("/v1/completions", &streamed);
    let events = answer.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0]["error"]["message"].as_str().unwrap().contains("logits are NaN or infinite"));
    assert!(server.metric("vllm:request_success_total", "error") >= 4.0);
    reload(&model(1));
    assert_eq!(server.json(GENERATE, &long("after", 5))["choices"], before["choices"]);
}

/// When a client leaves, its request is aborted, streamed or not, running or waiting.
#[test]
fn a_client_that_goes_away_gives_its_request_up() {
    let server = serve(ServeSettings { max_num_seqs: 1, ..slow(3) });
    for is_streamed in [false, true] {
        let mut body = long("gone", 500);
        body["stream"] = json!(is_streamed);
        let body = body.to_string();
        let connect = || {
            let mut stream = TcpStream::connect(server.address).unwrap();
            let head = format!(
                "POST {GENERATE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream
        };
        let runs = connect();
        server.await_metric("vllm:num_requests_running", |running| running == 1.0);
        let waits = connect();
        server.await_metric("vllm:num_requests_waiting", |waiting| waiting == 1.0);
        drop(waits);
        server.await_metric("vllm:num_requests_waiting", |waiting| waiting == 0.0);
        assert_eq!(server.metric("vllm:num_requests_running", ""), 1.0, "the other goes on");
        let mut runs = runs;
        if is_streamed {
            let mut some = [0; 100];
            runs.read_exact(&mut some).unwrap();
        }
        runs.shutdown(Shutdown::Both).unwrap();
        drop(runs);
        server.await_metric("vllm:num_requests_running", |running| running == 0.0);
    }
    assert_eq!(server.metric("vllm:request_success_total", "abort"), 4.0);
    assert_eq!(server.get("/load").json(), json!({"server_load": 0}));
    assert_eq!(tokens(&server.json(GENERATE, &long("next", 2))).len(), 2);
}

/// The server ends with requests in flight: each is answered with what it has.
#[test]
fn stopping_answers_what_is_in_flight() {
    let mut server = serve(slow(3));
    let (whole, mut streamed) = (long("whole", 500), long("streamed", 500));
    streamed["stream"] = json!(true);
    let (whole, streamed) = (server.later(GENERATE, whole), server.later(GENERATE, streamed));
    server.await_metric("vllm:num_requests_running", |running| running == 2.0);
    let start = std::time::Instant::now();
    server.end().unwrap();
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let whole = whole.join().unwrap();
    assert_eq!((whole.status, &whole.json()["choices"][0]["finish_reason"]), (200, &json!("abort")));
    let events = streamed.join().unwrap().events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "abort");
    assert!(TcpStream::connect(server.address).is_err());
}
