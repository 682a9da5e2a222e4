//! A reward model at servers with vLLM's interface: the requests, how scores are read, and the result
//! of every fault. The bodies are those of vLLM 0.11 to 0.32 (`ClassificationResponse`,
//! `PoolingResponse`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/rewards.rs"]
mod rewards;
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rewards::{failure, prompt, scored, text_prompt};
use serde_json::{Value, json};
use support::http::{Reply, Request, TestServer};
use tamis_core::setting::TimeSpan;
use tamis_data::prompt::{Message, Prompt, PromptContent};
use tamis_env::reward::model::{LogitActivation, ModelSettings, OverlongTexts, ScoreEndpoint};
use tamis_env::reward::{Nobody, RewardFailure, RewardFunction as _, RewardInput, RewardOutcome};
use tamis_rollout::http::Address;
use tamis_rollout::reward_model::{ModelProcess, RewardModel};

fn settings() -> ModelSettings {
    ModelSettings {
        batch_size: 2,
        concurrency: 3,
        timeout: TimeSpan::seconds(5),
        startup_timeout: TimeSpan::seconds(10),
        max_attempts: 3,
        ..ModelSettings::default()
    }
}

/// The texts of a request: those of `input`, or the last message's.
fn texts(body: &Value) -> Vec<String> {
    match &body["input"] {
        Value::Array(input) => input.iter().map(|text| text.as_str().unwrap().to_owned()).collect(),
        _ => {
            vec![body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned()]
        }
    }
}

/// Two logits of a text: its length, and minus a half of it.
fn logits(text: &str) -> [f64; 2] {
    let length = text.len() as f64;
    [length, -length / 2.0]
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

/// vLLM's answer to `/classify` or `/pooling`.
fn vllm(request: &Request) -> Reply {
    let body = request.json();
    let rows = texts(&body).into_iter().enumerate().map(|(index, text)| {
        let raw = logits(&text).to_vec();
        let is_raw = body["use_activation"] == json!(false);
        let numbers = if is_raw { raw } else { softmax(&raw) };
        if request.path == "/classify" {
            json!({"index": index, "label": "LABEL_0", "probs": numbers, "num_classes": 2})
        } else {
            json!({"index": index, "object": "pooling", "data": numbers})
        }
    });
    let usage = json!({"prompt_tokens": 20, "total_tokens": 20, "completion_tokens": 0, "prompt_tokens_details": null});
    let data: Vec<Value> = rows.collect();
    Reply::json(
        200,
        &json!({"id": "classify-9bf17f28", "object": "list", "created": 1_745_383_213, "model": "rm", "data": data, "usage": usage}),
    )
}

fn connect(settings: ModelSettings, url: &str) -> Result<RewardModel, String> {
    let address = Address::parse(url).unwrap();
    RewardModel::connect(settings, vec![address], Some("secret".to_owned()), "rm", Arc::new(Nobody))
        .map(|model| model.unwrap())
        .map_err(|error| error.to_string())
}

fn message(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

#[test]
fn texts_go_in_batches_and_their_logits_are_the_scores() {
    let (server, heard) = TestServer::heard("rm", vllm);
    let model = connect(settings(), &server.url()).unwrap();
    heard.lock().unwrap().clear();
    let outcomes = scored(&model, &text_prompt(), &["4", "44", "444"]);
    // The text is the prompt with the completion after it.
    assert_eq!(outcomes, [5.0, 6.0, 7.0].map(RewardOutcome::score));
    let mut bodies: Vec<Value> = heard.lock().unwrap().iter().map(Request::json).collect();
    bodies.sort_by_key(|body| body["input"].as_array().unwrap().len());
    assert_eq!(
        bodies,
        [
            json!({"model": "rm", "input": ["2+2?444"], "add_special_tokens": false, "use_activation": false}),
            json!({"model": "rm", "input": ["2+2?4", "2+2?44"], "add_special_tokens": false, "use_activation": false}),
        ]
    );
    let heard = heard.lock().unwrap();
    assert_eq!((heard[0].path.as_str(), heard[0].key.as_deref()), ("/classify", Some("Bearer secret")));
}

#[test]
fn conversations_go_one_by_one_through_the_servers_template() {
    let (server, heard) = TestServer::heard("rm", vllm);
    let model = connect(settings(), &server.url()).unwrap();
    heard.lock().unwrap().clear();
    let chat = prompt(PromptContent::Messages(vec![message("system", "Add."), message("user", "2+2?")]));
    assert_eq!(scored(&model, &chat, &["it is 4"]), [RewardOutcome::score(7.0)]);
    assert_eq!(
        heard.lock().unwrap()[0].json(),
        json!({
            "model": "rm",
            "messages": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": "2+2?"},
                {"role": "assistant", "content": "it is 4"},
            ],
            "use_activation": false,
        })
    );
    // The completion already contains the part of the answer that the prompt began.
    let begun = prompt(PromptContent::Messages(vec![message("user", "2+2?"), message("assistant", "it")]));
    heard.lock().unwrap().clear();
    scored(&model, &begun, &["it is 4"]);
    let messages = heard.lock().unwrap()[0].json()["messages"].clone();
    assert_eq!(
        messages,
        json!([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "it is 4"}])
    );
    // `chat` makes a message of a prompt of text.
    let model = connect(ModelSettings { template: "chat".to_owned(), ..settings() }, &server.url()).unwrap();
    heard.lock().unwrap().clear();
    scored(&model, &text_prompt(), &["4"]);
    let messages = heard.lock().unwrap()[0].json()["messages"].clone();
    assert_eq!(messages, json!([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]));
}

#[test]
fn a_template_of_ones_own_names_columns() {
    let (server, heard) = TestServer::heard("rm", vllm);
    let template = "{prompt} -> {completion} ({rubric}, {ground_truth})".to_owned();
    let settings =
        ModelSettings { template, overlong: OverlongTexts::Left, max_length: Some(9), ..settings() };
    let model = connect(settings, &server.url()).unwrap();
    heard.lock().unwrap().clear();
    scored(&model, &text_prompt(), &["4"]);
    let body = heard.lock().unwrap()[0].json();
    assert_eq!(body["input"], json!(["2+2? -> 4 (be kind, 4)"]));
    assert_eq!((&body["truncate_prompt_tokens"], &body["truncation_side"]), (&json!(9), &json!("left")));
    let bare = Prompt { columns: serde_json::Map::new(), ..text_prompt() };
    assert_eq!(
        failure(&scored(&model, &bare, &["4"])[0]),
        "the function failed: the row has no `rubric`, which the reward model's template needs"
    );
}

#[test]
fn labels_and_activations_are_ours() {
    let (server, _) = TestServer::heard("rm", vllm);
    let score = |change: fn(ModelSettings) -> ModelSettings| {
        let model = connect(change(settings()), &server.url()).unwrap();
        scored(&model, &text_prompt(), &["4"])[0].clone()
    };
    let close = |outcome: RewardOutcome, expected: f64| {
        let score = outcome.get("score").unwrap();
        assert!((score - expected).abs() < 1e-12, "{score} is not {expected}");
    };
    let raw = logits("2+2?4");
    close(score(|settings| ModelSettings { label: 1, ..settings }), raw[1]);
    close(
        score(|settings| ModelSettings { activation: LogitActivation::Sigmoid, label: 1, ..settings }),
        1.0 / (1.0 + 2.5_f64.exp()),
    );
    close(
        score(|settings| ModelSettings { activation: LogitActivation::Softmax, ..settings }),
        softmax(&raw)[0],
    );
    close(
        score(|settings| ModelSettings { activation: LogitActivation::AsServed, ..settings }),
        softmax(&raw)[0],
    );
    let passed = score(|settings| ModelSettings { pass_score: Some(5.0), ..settings });
    assert_eq!(passed, RewardOutcome::verified(5.0, true));
    let failed = score(|settings| ModelSettings { pass_score: Some(5.1), ..settings });
    assert_eq!(failed, RewardOutcome::verified(5.0, false));
}

#[test]
fn pooling_gives_logits_of_a_text_or_of_its_tokens() {
    let (server, heard) = TestServer::heard("rm", vllm);
    let pooled = ModelSettings { endpoint: ScoreEndpoint::Pooling, ..settings() };
    let model = connect(pooled.clone(), &server.url()).unwrap();
    assert_eq!(scored(&model, &text_prompt(), &["4"]), [RewardOutcome::score(5.0)]);
    assert_eq!(heard.lock().unwrap()[0].path, "/pooling");
    // A model with a logit for each token, as Qwen2ForRewardModel: the last one is of the whole text.
    let (tokens, _) = TestServer::heard("rm", |request| {
        let of = |(index, text): (usize, String)| {
            let each: Vec<Value> = (1..=text.len()).map(|length| json!([length as f64 + 0.5])).collect();
            json!({"index": index, "object": "pooling", "data": each})
        };
        let data: Vec<Value> = texts(&request.json()).into_iter().enumerate().map(of).collect();
        Reply::json(200, &json!({"id": "p", "object": "list", "created": 1, "model": "rm", "data": data}))
    });
    let model = connect(pooled, &tokens.url()).unwrap();
    assert_eq!(scored(&model, &text_prompt(), &["4", "44"]), [5.5, 6.5].map(RewardOutcome::score));
}

#[test]
fn a_server_that_does_not_fit_is_refused_where_a_run_begins() {
    let told = |settings: ModelSettings, answer: fn(&Request) -> Reply| {
        let (server, _) = TestServer::heard("rm", answer);
        connect(settings, &server.url()).err().expect("refused").replace(&server.url(), "URL")
    };
    assert_eq!(
        told(ModelSettings { label: 2, ..settings() }, vllm),
        "no server answers: URL (reward `rm`): bad_shape: there is no label 2: the model has 2"
    );
    // A server that always returns probabilities.
    let old = |request: &Request| {
        let data: Vec<Value> = texts(&request.json())
            .iter()
            .enumerate()
            .map(|(index, text)| json!({"index": index, "label": "a", "probs": softmax(&logits(text)), "num_classes": 2}))
            .collect();
        Reply::json(200, &json!({"data": data}))
    };
    assert_eq!(
        told(settings(), old),
        "no server answers: URL (reward `rm`): bad_shape: it returns the same numbers with and without `use_activation`, so they may not \
        be logits: vLLM supports the field since 0.11.1; `activation: as_served` uses the numbers as they are"
    );
    let (server, _) = TestServer::heard("rm", old);
    let as_served = ModelSettings { activation: LogitActivation::AsServed, ..settings() };
    assert!(connect(as_served, &server.url()).is_ok());
    // vLLM with a model that generates.
    let generates = |_: &Request| {
        let error = json!({"message": "The model does not support Classification API", "type": "BadRequestError", "param": null, "code": 400});
        Reply::json(400, &json!({ "error": error }))
    };
    assert_eq!(
        told(settings(), generates),
        "no server answers: URL (reward `rm`): refused: HTTP 400: The model does not support Classification API"
    );
    let other = ModelSettings { model: Some("other".to_owned()), ..settings() };
    assert!(told(other, vllm).contains("it does not serve the model \"other\", but rm"));
}

#[test]
fn one_text_that_is_refused_costs_itself_alone() {
    let (server, heard) = TestServer::heard("rm", |request| {
        if texts(&request.json()).iter().any(|text| text.contains("long")) {
            let error = json!({"message": "This model's maximum context length is 8 tokens.", "type": "BadRequestError", "code": 400});
            return Reply::json(400, &json!({ "error": error }));
        }
        vllm(request)
    });
    let model = connect(settings(), &server.url()).unwrap();
    heard.lock().unwrap().clear();
    let outcomes = scored(&model, &text_prompt(), &["4", "long"]);
    assert_eq!(outcomes[0], RewardOutcome::score(5.0));
    assert!(failure(&outcomes[1]).contains("refuses: refused: HTTP 400: This model's maximum context"));
    assert_eq!(heard.lock().unwrap().len(), 3);
}

#[test]
fn nonsense_is_no_score() {
    let asked = AtomicUsize::new(0);
    let (short, heard) = TestServer::heard("rm", move |request| {
        // The first two requests are the trial at the start.
        if asked.fetch_add(1, Ordering::SeqCst) < 2 {
            vllm(request)
        } else {
            Reply::json(200, &json!({"data": []}))
        }
    });
    let model = connect(ModelSettings { max_attempts: 2, ..settings() }, &short.url()).unwrap();
    let outcome = &scored(&model, &text_prompt(), &["4"])[0];
    assert!(failure(outcome).contains("in 2 attempts: bad_shape: 1 texts were sent"), "{outcome:?}");
    assert_eq!(heard.lock().unwrap().len(), 4);
}

/// How the model's process ended.
struct Process(Arc<Mutex<Option<String>>>);

impl ModelProcess for Process {
    fn ended(&self) -> Option<String> {
        self.0.lock().unwrap().clone()
    }
}

fn of_process(settings: ModelSettings, url: &str, ended: &Arc<Mutex<Option<String>>>) -> RewardModel {
    let process = Box::new(Process(ended.clone()));
    RewardModel::of_process(settings, Address::parse(url).unwrap(), process, "rm", Arc::new(Nobody)).unwrap()
}

#[test]
fn a_process_is_asked_for_scores_and_says_what_it_cut() {
    let (server, heard) = TestServer::heard("rm", |request| {
        let scores: Vec<Value> = request.json()["texts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|text| match text.as_str() {
                Some("2+2?") => json!({"error": "the text has no answer"}),
                Some(text) => json!({"score": text.len() as f64, "truncated": text.len() > 5}),
                None => json!({"score": -1.5, "truncated": false}),
            })
            .collect();
        Reply::json(200, &json!({ "scores": scores }))
    });
    let settings = ModelSettings { overlong: OverlongTexts::Right, ..settings() };
    let model = of_process(settings, &server.url(), &Arc::default());
    let (text, chat) = (text_prompt(), prompt(PromptContent::Messages(vec![message("user", "2+2?")])));
    let inputs = [("4", &text), ("44", &text), ("", &text), ("4", &chat)];
    let inputs = inputs.map(|(completion, prompt)| RewardInput::text(prompt, completion));
    let (outcomes, logged) = model.score_logged(&inputs);
    assert_eq!(outcomes[0], RewardOutcome::score(5.0));
    assert_eq!(outcomes[1], RewardOutcome::score(6.0));
    assert_eq!(failure(&outcomes[2]), "the function failed: the text has no answer");
    assert_eq!(outcomes[3], RewardOutcome::score(-1.5));
    let cut: Vec<Option<&Vec<f64>>> = logged.iter().map(|row| row.metrics.get("rm_truncated")).collect();
    assert_eq!(cut, [Some(&vec![0.0]), Some(&vec![1.0]), None, Some(&vec![0.0])]);
    // Two texts a request, and conversations as messages.
    let bodies: Vec<Value> = heard.lock().unwrap().iter().map(Request::json).collect();
    assert_eq!(bodies.len(), 2);
    assert!(bodies.contains(&json!({"texts": ["2+2?", {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}]})));
}

#[test]
fn a_process_that_is_started_again_is_waited_for_and_one_that_is_not_ends_the_run() {
    let ended = Arc::new(Mutex::new(None));
    // Nothing listens yet, for longer than the attempts last.
    let socket = tempfile::tempdir().unwrap();
    let path = socket.path().join("socket");
    let model = of_process(
        ModelSettings { max_attempts: 1, ..settings() },
        &format!("unix:{}", path.display()),
        &ended,
    );
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1500));
            *ended.lock().unwrap() = Some("the reward model `python` ended (signal: 9)".to_owned());
        });
        let outcomes = scored(&model, &text_prompt(), &["4", "44"]);
        let RewardOutcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
        assert!(failure.is_fatal(), "{failure}");
        assert!(matches!(failure, RewardFailure::RestartLimit { limit: 10, .. }));
        assert!(failure.to_string().contains("the reward model `python` ended (signal: 9)"));
    });
    assert!(begun.elapsed() >= Duration::from_millis(1400));
}
