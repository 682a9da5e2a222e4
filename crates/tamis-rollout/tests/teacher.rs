//! A teacher at servers with vLLM's interface: the requests, the log-probabilities, and every fault. The
//! answers have the shape of those of a real server (`completions_prompt_logprobs` in
//! `tests/captures/vllm-0.32.json.gz`, which `tests/wire.rs` reads).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::http::{Reply, Request, TestServer};
use tamis_env::reward::Nobody;
use tamis_rollout::http::Address;
use tamis_rollout::teacher::{NotRated, RatedText, RatedTokens, TeacherServers, TeacherSetup};

/// The log-probability of a token is minus an eighth of its id.
fn logprob(id: u64) -> f64 {
    -(id as f64) / 8.0
}

/// vLLM's answer: nothing for the first token of the prompt, one entry for each other.
fn vllm(request: &Request, logprob: impl Fn(u64) -> Value) -> Reply {
    let body = request.json();
    let ids = body["prompt"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
    let listed = ids.enumerate().map(|(place, id)| {
        let one = json!({id.to_string(): {"logprob": logprob(id), "rank": 3, "decoded_token": "x"}});
        if place == 0 { Value::Null } else { one }
    });
    let choice = json!({"index": 0, "text": "x", "logprobs": null, "finish_reason": "length",
        "prompt_logprobs": listed.collect::<Vec<Value>>()});
    let usage = json!({"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1});
    Reply::json(200, &json!({"id": "cmpl-1", "model": "teacher", "choices": [choice], "usage": usage}))
}

fn setup(servers: &[&str]) -> TeacherSetup {
    TeacherSetup {
        servers: servers.iter().map(|url| Address::parse(url).unwrap()).collect(),
        key: Some("secret".to_owned()),
        model: None,
        name: "teacher[0]".to_owned(),
        timeout: Duration::from_secs(5),
        max_attempts: 3,
        concurrency: 2,
        num_top: 0,
    }
}

fn connect(setup: TeacherSetup) -> Result<TeacherServers, String> {
    TeacherServers::connect(setup, Duration::from_secs(10), Arc::new(Nobody))
        .map(|teacher| teacher.unwrap())
        .map_err(|error| error.to_string())
}

/// Numbers without likeliest tokens.
fn plain(logprobs: Vec<f32>) -> RatedTokens {
    RatedTokens { logprobs, ..RatedTokens::default() }
}

fn text(token_ids: &[u32], start: usize) -> RatedText {
    RatedText { token_ids: token_ids.to_vec(), start }
}

#[test]
fn every_text_has_the_log_probabilities_of_its_completion() {
    let (server, heard) = TestServer::heard("teacher", |request| vllm(request, |id| json!(logprob(id))));
    let teacher = connect(setup(&[&server.url()])).unwrap();
    heard.lock().unwrap().clear();
    let texts = vec![text(&[7, 8, 16, 24], 2), text(&[1, 2], 1), text(&[5, 6, 40], 1)];
    let rated = teacher.rate(texts).unwrap();
    assert_eq!(rated, [vec![-2.0, -3.0], vec![-0.25], vec![-0.75, -5.0]].map(plain));
    let heard = heard.lock().unwrap();
    let mut bodies: Vec<Value> = heard.iter().map(Request::json).collect();
    bodies.sort_by_key(|body| body["prompt"].as_array().unwrap().len());
    let mut ids: Vec<String> =
        bodies.iter().map(|body| body["request_id"].as_str().unwrap().to_owned()).collect();
    let first = bodies[0].as_object().unwrap();
    assert_eq!((&first["prompt"], &first["model"]), (&json!([1, 2]), &json!("teacher")));
    assert_eq!((&first["prompt_logprobs"], &first["max_tokens"]), (&json!(0), &json!(1)));
    assert_eq!((heard[0].path.as_str(), heard[0].key.as_deref()), ("/v1/completions", Some("Bearer secret")));
    // A server refuses two requests of one id.
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_busy_server_is_asked_again_and_a_broken_answer_is_no_number() {
    let asked = AtomicUsize::new(0);
    let (busy, _heard) = TestServer::heard("teacher", move |request| {
        // The first is the test at the start.
        if asked.fetch_add(1, Ordering::SeqCst) == 1 {
            return Reply::json(503, &json!({"error": {"message": "overloaded"}}));
        }
        vllm(request, |id| json!(logprob(id)))
    });
    let teacher = connect(setup(&[&busy.url()])).unwrap();
    assert_eq!(teacher.rate(vec![text(&[1, 8], 1)]).unwrap(), [plain(vec![-1.0])]);

    for broken in [Value::Null, json!(0.5), json!("-1.0")] {
        let shown = broken.clone();
        let (server, _heard) = TestServer::heard("teacher", move |request| {
            vllm(request, |id| if id == 9 { broken.clone() } else { json!(-1.0) })
        });
        let teacher = connect(TeacherSetup { max_attempts: 1, ..setup(&[&server.url()]) }).unwrap();
        let failed = teacher.rate(vec![text(&[1, 8], 1), text(&[1, 9], 1)]).unwrap_err();
        let NotRated::Failed(message) = failed else { panic!("{failed:?}") };
        assert!(
            message.starts_with("teacher[0]: no answer from the teacher in 1 attempt"),
            "{shown}: {message}"
        );
    }
    // Rounding may put a certain token a little above 0.
    let (server, _heard) = TestServer::heard("teacher", |request| vllm(request, |_| json!(1e-7)));
    let teacher = connect(setup(&[&server.url()])).unwrap();
    assert_eq!(teacher.rate(vec![text(&[1, 8], 1)]).unwrap(), [plain(vec![0.0])]);
}

#[test]
fn a_server_that_gives_no_log_probabilities_is_refused_at_the_start() {
    let (silent, _heard) = TestServer::heard("teacher", |_| {
        let choice = json!({"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": null});
        Reply::json(200, &json!({"id": "cmpl-1", "choices": [choice]}))
    });
    let error = connect(setup(&[&silent.url()])).err().unwrap();
    assert!(error.contains("(teacher[0])") && error.contains("no prompt_logprobs"), "{error}");
    let (other, _heard) = TestServer::heard("teacher", |request| vllm(request, |id| json!(logprob(id))));
    let named = TeacherSetup { model: Some("another".to_owned()), ..setup(&[&other.url()]) };
    let error = connect(named).err().unwrap();
    assert!(error.contains("it does not serve the model \"another\", but teacher"), "{error}");
    // Of two servers each is asked.
    let error = connect(setup(&[&other.url(), &silent.url()])).err().unwrap();
    assert!(error.contains("no prompt_logprobs"), "{error}");
}

/// vLLM's answer to `prompt_logprobs: 2`: the two likeliest of each place, and the token itself wherever it
/// ranks.
fn likeliest(request: &Request, listed: &[Value]) -> Reply {
    let mut all = vec![Value::Null];
    let num_tokens = request.json()["prompt"].as_array().unwrap().len();
    all.extend(listed.iter().cycle().take(num_tokens - 1).cloned());
    let choice = json!({"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": all});
    Reply::json(200, &json!({"id": "cmpl-1", "model": "teacher", "choices": [choice]}))
}

#[test]
fn the_likeliest_tokens_come_in_their_order() {
    let entry = |logprob: f64, rank: u64| json!({"logprob": logprob, "rank": rank, "decoded_token": "x"});
    // Of the text 1 8 9: the second token is neither of the two likeliest, the third is one of them. Of equal
    // ones the first in the vocabulary comes first.
    let places = [
        json!({"8": entry(-4.0, 9), "30": entry(-0.5, 1), "4": entry(-1.5, 2)}),
        json!({"9": entry(-1.0, 2), "7": entry(-1.0, 1)}),
    ];
    let test = json!({"1": entry(-1.0, 1), "3": entry(-2.0, 2)});
    let (server, heard) = TestServer::heard("teacher", move |request| {
        let is_test = request.json()["prompt"] == json!([0, 1]);
        likeliest(request, if is_test { std::slice::from_ref(&test) } else { &places })
    });
    let teacher = connect(TeacherSetup { num_top: 2, ..setup(&[&server.url()]) }).unwrap();
    let rated = teacher.rate(vec![text(&[1, 8, 9], 1), text(&[1, 8, 9], 2)]).unwrap();
    let whole = RatedTokens {
        logprobs: vec![-4.0, -1.0],
        top: vec![30, 4, 7, 9],
        top_logprobs: vec![-0.5, -1.5, -1.0, -1.0],
    };
    let last = RatedTokens { logprobs: vec![-1.0], top: vec![7, 9], top_logprobs: vec![-1.0, -1.0] };
    assert_eq!(rated, [whole, last]);
    assert!(heard.lock().unwrap().iter().all(|request| request.json()["prompt_logprobs"] == 2));
}

#[test]
fn a_server_that_gives_too_few_likeliest_tokens_is_refused_at_the_start() {
    let (server, _heard) = TestServer::heard("teacher", |request| vllm(request, |id| json!(logprob(id))));
    let error = connect(TeacherSetup { num_top: 2, ..setup(&[&server.url()]) }).err().unwrap();
    assert!(error.contains("1 of the 2 likeliest tokens that were asked for"), "{error}");
    // vLLM's own limit.
    let message = "Requested prompt logprobs of 64, which is greater than max allowed: 20";
    let (limited, _heard) = TestServer::heard("teacher", move |_| {
        Reply::json(400, &json!({"error": {"message": message, "code": 400}}))
    });
    let error = connect(TeacherSetup { num_top: 64, ..setup(&[&limited.url()]) }).err().unwrap();
    assert!(error.contains("greater than max allowed: 20"), "{error}");
}
