//! SGLang, and OpenAI's interface.

use super::*;

#[test]
fn sglang_samples_and_takes_weights() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let label = Arc::new(Mutex::new("default".to_owned()));
    let (seen, named) = (Arc::clone(&calls), Arc::clone(&label));
    let handler: Handler = Arc::new(move |request| {
        let (seen, named) = (Arc::clone(&seen), Arc::clone(&named));
        Box::pin(async move {
            let body = request.json();
            if request.path != "/generate" {
                seen.lock().unwrap().push(request.path.clone());
            }
            let ok = |value: Value| Reply::json(200, &value);
            match request.path.as_str() {
                "/health" => Reply::empty(),
                "/v1/models" => ok(json!({"data": [{"id": "m", "max_model_len": 64}]})),
                "/model_info" => ok(json!({"weight_version": *named.lock().unwrap()})),
                "/update_weights_from_disk" => {
                    *named.lock().unwrap() = body["weight_version"].as_str().unwrap_or_default().to_owned();
                    ok(json!({"success": true, "message": "done"}))
                }
                "/generate" => ok(json!({
                    "text": "ab", "output_ids": [2, 3],
                    "meta_info": {
                        "id": body["rid"], "finish_reason": {"type": "stop", "matched": 1}, "completion_tokens": 2,
                        "weight_version": *named.lock().unwrap(),
                        "output_token_logprobs": [[-0.5, 2, null], [-0.25, 3, null]],
                    },
                })),
                _ => ok(json!({"status": "ok"})),
            }
        })
    });
    let server = TestServer::start(None, handler);
    let (mut fleet, _) = connect::<Sglang>(&[server.url()], None, fleet_settings(), |_| {}).expect("answers");
    let weights = folder("first");
    publish(&mut fleet, 3, weights.path());
    let calls: Vec<String> = calls.lock().unwrap().clone();
    let order: Vec<&str> = calls
        .iter()
        .map(String::as_str)
        .filter(|call| !["/health", "/v1/models", "/model_info"].contains(call))
        .collect();
    assert_eq!(
        order,
        [
            // A run before this one may have left it paused.
            "/continue_generation",
            "/pause_generation",
            "/update_weights_from_disk",
            "/flush_cache",
            "/continue_generation"
        ]
    );
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_eq!(
        (sample.token_ids, sample.logprobs, sample.text.as_str()),
        (vec![2, 3], vec![-0.5, -0.25], "ab")
    );
    assert_eq!(sample.versions[0].version, PolicyVersion(3));
    // Truncation does not touch its log-probabilities.
    let truncated = Sampling { top_p: 0.9, ..sampling() };
    assert_eq!(only_sample(&mut fleet, request_with(0, 1, &truncated)).logprobs.len(), 2);
}

#[test]
fn openai_gives_text_that_is_never_trained_on() {
    let asked = Arc::new(Mutex::new(Value::Null));
    let seen = Arc::clone(&asked);
    let handler: Handler = Arc::new(move |request| {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            match request.path.as_str() {
                "/v1/models" => Reply::json(200, &json!({"data": [{"id": "m"}]})),
                "/v1/completions" => {
                    *seen.lock().unwrap() = request.json();
                    let choice = json!({"index": 0, "text": "abc", "finish_reason": "stop"});
                    Reply::json(200, &json!({"choices": [choice], "usage": {"completion_tokens": 9}}))
                }
                _ => Reply::json(404, &json!({"detail": "Not Found"})),
            }
        })
    });
    let server = TestServer::start(None, handler);
    let url = format!("{}/v1/", server.url());
    let (mut fleet, _) = connect::<OpenAi>(&[url], None, fleet_settings(), |settings| {
        settings.extra.insert("top_k".to_owned(), json!(5));
    })
    .expect("answers");
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_eq!((sample.text.as_str(), sample.token_ids, sample.logprobs), ("abc", vec![2, 3, 4], vec![]));
    assert_eq!(sample.finish_reason, FinishReason::Stop);
    let asked = asked.lock().unwrap();
    assert_eq!((&asked["prompt"], &asked["model"], &asked["top_k"]), (&json!("abc"), &json!("m"), &json!(5)));
}
