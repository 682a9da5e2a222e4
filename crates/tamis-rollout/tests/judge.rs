//! A judge at a server: its requests, how its score is read, and the result of every fault.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/rewards.rs"]
mod rewards;
mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regex::Regex;
use rewards::{failure, prompt, text_prompt};
use serde_json::{Value, json};
use support::http::{Delivery, Handler, Reply, Request, TestServer};
use tamis_data::prompt::{Message, Prompt, PromptContent};
use tamis_env::reward::{Listener, Nobody, RewardFailure, RewardFunction as _, RewardInput, RewardOutcome};
use tamis_rollout::GeneratorError;
use tamis_rollout::asking::ConnectError;
use tamis_rollout::http::Address;
use tamis_rollout::judge::{Judge, JudgeSetup};
use tamis_rollout::prompt_template::PromptTemplate;

fn settings(url: &str) -> JudgeSetup {
    JudgeSetup {
        servers: vec![Address::parse(url).unwrap()],
        model: None,
        key: None,
        system: None,
        template: PromptTemplate::new("{completion}"),
        pattern: Regex::new(r"-?[0-9]+(?:\.[0-9]+)?").unwrap(),
        verdicts: Vec::new(),
        min_score: None,
        max_score: None,
        pass_score: None,
        temperature: 0.0,
        max_tokens: 64,
        parameters: serde_json::Map::new(),
        timeout: Duration::from_secs(5),
        max_attempts: 4,
        concurrency: 3,
    }
}

/// A server with one model, whose answer to the last message of a chat is this function's.
fn server(answer: impl Fn(&Request, &str) -> Reply + Send + Sync + 'static) -> TestServer {
    TestServer::of_model("grader", move |request| {
        let last = request.json()["messages"].as_array().and_then(|all| all.last().cloned());
        let text = last.map_or(Value::Null, |last| last["content"].clone());
        answer(request, text.as_str().unwrap_or_default())
    })
}

fn says(text: &str) -> Reply {
    Reply::json(
        200,
        &json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}),
    )
}

fn judge(settings: JudgeSetup) -> Judge {
    Judge::connect(settings, Duration::from_secs(10), "helpful", Arc::new(Nobody)).unwrap().unwrap()
}

fn scored(judge: &Judge, completions: &[&str]) -> Vec<RewardOutcome> {
    rewards::scored(judge, &text_prompt(), completions)
}

#[test]
fn a_judge_is_told_what_its_template_names() {
    let (server, heard) = TestServer::heard("grader", |_| says("7"));
    let parameters = [("max_tokens", Value::Null), ("max_completion_tokens", json!(64))];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    let judge = judge(JudgeSetup {
        key: Some("secret".to_owned()),
        system: Some("You grade.".to_owned()),
        template: PromptTemplate::new(
            "{prompt} -> {completion} ({ground_truth}, {data_source}, {rubric}) {\"score\": 1} {",
        ),
        parameters,
        ..settings(&server.url())
    });
    let chat =
        prompt(PromptContent::Messages(vec![Message::new("system", "Add."), Message::new("user", "2+2?")]));
    let outcomes = judge.score(&[RewardInput::text(&chat, "it is 4")]);
    assert_eq!(outcomes, [RewardOutcome::score(7.0)]);
    let heard = heard.lock().unwrap();
    assert_eq!((heard[0].method.as_str(), heard[0].path.as_str()), ("POST", "/v1/chat/completions"));
    assert_eq!(heard[0].key.as_deref(), Some("Bearer secret"));
    assert_eq!(
        heard[0].json(),
        json!({
            "model": "grader",
            "messages": [
                {"role": "system", "content": "You grade."},
                {"role": "user", "content": "system: Add.\nuser: 2+2? -> it is 4 (4, sums, be kind) {\"score\": 1} {"},
            ],
            "temperature": 0.0,
            "max_completion_tokens": 64,
        })
    );
    // A row that has nothing for a name is not judged without it.
    let bare = Prompt { columns: serde_json::Map::new(), ..chat };
    let outcomes = judge.score(&[RewardInput::text(&bare, "4")]);
    assert_eq!(
        failure(&outcomes[0]),
        "the function failed: the row has no `rubric`, which the judge's prompt needs"
    );
}

#[test]
fn a_score_is_found_in_words_or_it_is_none() {
    let server = server(|_, completion| says(completion));
    let numbers = judge(JudgeSetup {
        min_score: Some(0.0),
        max_score: Some(10.0),
        pass_score: Some(6.0),
        ..settings(&server.url())
    });
    let outcomes = scored(&numbers, &["First 3, then: 7.5", "6", "-2", "11", "none", ""]);
    assert_eq!(outcomes[..2], [RewardOutcome::verified(7.5, true), RewardOutcome::verified(6.0, true)]);
    assert!(failure(&outcomes[2]).ends_with("the judge's score -2 is out of range in \"-2\""));
    assert!(failure(&outcomes[3]).contains("out of range"));
    assert!(failure(&outcomes[4]).ends_with("the judge's answer has no score: \"none\""));
    let words = judge(JudgeSetup {
        pattern: Regex::new(r"(?i)verdict: (\w+)").unwrap(),
        verdicts: vec![("yes".to_owned(), 1.0), ("no".to_owned(), -1.0)],
        ..settings(&server.url())
    });
    let outcomes = scored(&words, &["Verdict: YES", "verdict: yes. No: verdict: no", "Verdict: maybe"]);
    assert_eq!(outcomes[..2], [RewardOutcome::score(1.0), RewardOutcome::score(-1.0)]);
    assert!(failure(&outcomes[2]).contains("\"maybe\" in the judge's answer"), "{:?}", outcomes[2]);
}

/// A number in an unfinished answer is not the judge's result.
#[test]
fn an_answer_that_was_cut_is_no_score() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let server = server(move |_, completion| {
        count.fetch_add(1, Ordering::SeqCst);
        let choice = json!({"index": 0, "message": {"content": "Rating: 1"}, "finish_reason": completion});
        let stream = |end: &str| {
            let part = json!({"choices": [{"index": 0, "delta": {"content": "Rating: 1"}}]});
            let body = format!("data: {part}\n\n{end}data: [DONE]\n\n").into_bytes();
            Reply { content_type: "text/event-stream", body, ..Reply::empty() }
        };
        match completion {
            "stream" => stream(""),
            "whole stream" => stream(
                "data: {\"choices\": [{\"index\": 0, \"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n",
            ),
            "unsaid" => Reply::json(200, &json!({"choices": [{"message": {"content": "Rating: 1"}}]})),
            _ => Reply::json(200, &json!({"choices": [choice]})),
        }
    });
    let judge = judge(JudgeSetup { max_attempts: 2, ..settings(&server.url()) });
    let outcomes = scored(&judge, &["length", "content_filter"]);
    assert!(failure(&outcomes[0]).contains("cut at `max_tokens`: raise it"), "{:?}", outcomes[0]);
    assert!(failure(&outcomes[1]).contains("content_filter"), "{:?}", outcomes[1]);
    assert_eq!(calls.swap(0, Ordering::SeqCst), 2, "it would be cut again");
    let outcomes = scored(&judge, &["abort", "stream"]);
    assert!(failure(&outcomes[0]).contains("in 2 attempts: aborted_by_server"), "{:?}", outcomes[0]);
    assert!(failure(&outcomes[1]).contains("in 2 attempts: half_body"), "{:?}", outcomes[1]);
    assert_eq!(calls.swap(0, Ordering::SeqCst), 4);
    assert_eq!(scored(&judge, &["stop", "unsaid", "whole stream"]), vec![RewardOutcome::score(1.0); 3]);
}

#[test]
fn faults_that_pass_are_tried_again_and_others_are_not() {
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let count = calls.clone();
    let server = server(move |_, completion| {
        let mut calls = count.lock().unwrap();
        calls.push(completion.to_owned());
        let attempt = calls.iter().filter(|call| *call == completion).count();
        let error =
            |status| Reply::json(status, &json!({"error": {"message": "oh", "type": "x", "code": null}}));
        match (completion, attempt) {
            ("busy", 1) => error(503),
            ("limited", 1) => error(429),
            ("broken", 1) | ("always", _) => error(500),
            ("half", 1) => Reply { delivery: Delivery::Half, ..says("1") },
            ("reset", 1) => Reply { delivery: Delivery::Reset, ..says("1") },
            ("refused", _) => error(400),
            (text, _) => says(&format!("{} 5", text.len())),
        }
    });
    let judge = judge(settings(&server.url()));
    let outcomes =
        scored(&judge, &["fine", "busy", "limited", "broken", "half", "reset", "refused", "always", "last"]);
    for (place, outcome) in outcomes.iter().enumerate() {
        if place != 6 && place != 7 {
            assert_eq!(*outcome, RewardOutcome::score(5.0), "{place}");
        }
    }
    assert!(failure(&outcomes[6]).contains("the judge refuses: refused: HTTP 400: oh"), "{:?}", outcomes[6]);
    assert!(
        failure(&outcomes[7]).contains("no answer from the judge in 4 attempts: server_error"),
        "{:?}",
        outcomes[7]
    );
    let calls = calls.lock().unwrap();
    let times = |text: &str| calls.iter().filter(|call| *call == text).count();
    assert_eq!(
        (times("fine"), times("busy"), times("half"), times("refused"), times("always")),
        (1, 2, 2, 1, 4)
    );
}

#[test]
fn an_attempt_goes_to_the_next_server() {
    let counts = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let [broken, fine] = counts.clone().map(|count| {
        let is_broken = Arc::ptr_eq(&count, &counts[0]);
        server(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            if is_broken { Reply::json(500, &json!({"error": {"message": "oh"}})) } else { says("5") }
        })
    });
    let servers = [broken.url(), fine.url()].map(|url| Address::parse(&url).unwrap()).to_vec();
    let judge = judge(JudgeSetup { servers, max_attempts: 2, ..settings(&fine.url()) });
    assert_eq!(scored(&judge, &["x"; 7]), vec![RewardOutcome::score(5.0); 7]);
    assert_eq!(counts.map(|count| count.load(Ordering::SeqCst)), [4, 7]);
}

#[test]
fn as_many_are_asked_about_at_once_as_there_may_be() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (in_flight, peak) = (now.clone(), most.clone());
    let handler: Handler = Arc::new(move |request: Request| {
        let (in_flight, peak) = (in_flight.clone(), peak.clone());
        Box::pin(async move {
            if request.path == "/v1/models" {
                return Reply::json(200, &json!({"data": [{"id": "grader"}]}));
            }
            peak.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            in_flight.fetch_sub(1, Ordering::SeqCst);
            says("1")
        })
    });
    let server = TestServer::start(None, handler);
    let judge = judge(settings(&server.url()));
    assert_eq!(scored(&judge, &["x"; 12]), vec![RewardOutcome::score(1.0); 12]);
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[test]
fn a_judge_that_is_not_there_or_has_another_model_is_told_at_the_start() {
    let connect = |settings: JudgeSetup| match Judge::connect(
        settings,
        Duration::from_secs(1),
        "helpful",
        Arc::new(Nobody),
    )
    .err()
    .unwrap()
    {
        ConnectError::Servers(error @ GeneratorError::Unreachable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let nowhere = connect(settings("http://127.0.0.1:9"));
    assert!(
        nowhere.starts_with("no server answers: http://127.0.0.1:9 (reward `helpful`): connect: "),
        "{nowhere}"
    );
    let server = server(|_, _| says("1"));
    let other = JudgeSetup { model: Some("gpt".to_owned()), ..settings(&server.url()) };
    assert!(connect(other).contains("it does not serve the model \"gpt\", but grader"));
}

#[test]
fn a_wait_can_be_given_up() {
    struct Pressed(AtomicBool);
    impl Listener for Pressed {
        fn say(&self, _: &str) {}
        fn warn(&self, _: &str) {}
        fn is_interrupted(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }
    let server = server(|_, _| Reply { delivery: Delivery::Hang, ..says("1") });
    let listener = Arc::new(Pressed(AtomicBool::new(false)));
    let judge = Judge::connect(settings(&server.url()), Duration::from_secs(10), "helpful", listener.clone())
        .unwrap()
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            listener.0.store(true, Ordering::SeqCst);
        });
        assert_eq!(scored(&judge, &["x"]), [RewardOutcome::Failed(RewardFailure::Interrupted)]);
    });
}
