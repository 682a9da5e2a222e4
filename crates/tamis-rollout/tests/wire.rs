//! Every answer that was captured from a real vLLM 0.32.0 server is read correctly, including errors;
//! its surprising answers are pinned.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "what must be exact is compared exactly")]

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tamis_rollout::wire::vllm::{self, Interface};
use tamis_rollout::wire::{
    Ask, Expected, FaultClass, Finish, HttpAnswer, LogprobsOf, WireCompletion, openai, sglang,
};
use tamis_rollout::{FailureKind, Sampling};

/// Rows of the tiny model's vocabulary.
const VOCABULARY: usize = 512;

struct Capture {
    path: String,
    request: Value,
    answer: HttpAnswer,
}

fn captures() -> BTreeMap<String, Capture> {
    let packed =
        std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures/vllm-0.32.json.gz"))
            .expect("the captures");
    let all: BTreeMap<String, Value> =
        serde_json::from_reader(flate2::read::GzDecoder::new(packed)).expect("captures in JSON");
    let one = |(name, value): (String, Value)| {
        let body = match &value["response"]["body"] {
            Value::String(text) => text.clone(),
            // Lines of a stream.
            Value::Array(lines) => {
                lines.iter().map(|line| line.as_str().expect("a line")).collect::<Vec<_>>().join("\n")
            }
            other => other.to_string(),
        };
        let answer = HttpAnswer {
            status: u16::try_from(value["response"]["status"].as_u64().expect("a status")).expect("a status"),
            content_type: value["response"]["content_type"].as_str().unwrap_or_default().to_owned(),
            body: body.into_bytes(),
            retry_after: None,
        };
        let path = value["request"]["path"].as_str().expect("a path").to_owned();
        (name, Capture { path, request: value["request"]["body"].clone(), answer })
    };
    all.into_iter().map(one).collect()
}

/// An answer in JSON, or what claims to be some.
fn answer(status: u16, body: &(impl ToString + ?Sized)) -> HttpAnswer {
    let content_type = "application/json".to_owned();
    HttpAnswer { status, content_type, body: body.to_string().into_bytes(), retry_after: None }
}

fn sent(call: &tamis_rollout::wire::Call) -> Value {
    serde_json::from_slice(&call.body).unwrap()
}

fn parameters(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

fn capture(name: &str) -> Capture {
    captures().remove(name).unwrap_or_else(|| panic!("no capture {name}"))
}

fn completion(name: &str) -> WireCompletion {
    let read = vllm::read(&capture(name).answer).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    vllm::only(read).unwrap_or_else(|fault| panic!("{name}: {fault}"))
}

fn expected(request_id: &str, limit: usize) -> Expected<'_> {
    Expected { request_id, vocabulary: VOCABULARY, limit, logprobs: true }
}

fn sampling() -> Sampling {
    Sampling::plain(4)
}

#[test]
fn every_captured_answer_is_read_as_what_it_is() {
    let mut read = BTreeMap::<&str, usize>::new();
    let captures = captures();
    for (name, Capture { path, answer, .. }) in &captures {
        let route = path.split('?').next().unwrap_or_default();
        let kind = if answer.status >= 400 {
            let fault = answer.success().expect_err(name);
            assert!(!fault.detail.contains("no message"), "{name}: {fault}");
            assert!(fault.detail.contains(&answer.status.to_string()), "{name}: {fault}");
            let class = match answer.status {
                400 | 404 | 405 => FaultClass::Refused,
                500 => FaultClass::ServerError,
                other => panic!("{name}: HTTP {other}"),
            };
            assert_eq!(fault.class, class, "{name}");
            "errors"
        } else {
            match route {
                // Samples are never requested as a stream.
                "/inference/v1/generate" | "/v1/completions" if answer.is_stream() => "streams",
                "/inference/v1/generate" | "/v1/completions" => {
                    let completions = vllm::read(answer).unwrap_or_else(|fault| panic!("{name}: {fault}"));
                    assert!(!completions.is_empty(), "{name}");
                    assert!(completions.iter().all(|one| one.finish.is_some()), "{name}: {completions:?}");
                    "completions"
                }
                "/v1/chat/completions" => {
                    let read = openai::read(answer).unwrap_or_else(|fault| panic!("{name}: {fault}"));
                    assert!(read.finish.is_some(), "{name}");
                    "chats"
                }
                "/v1/models" => {
                    let models = vllm::read_models(answer).expect(name);
                    assert_eq!((models[0].id.as_str(), models[0].max_model_len), ("tiny", Some(512)));
                    "models"
                }
                "/version" => {
                    assert_eq!(vllm::read_program(answer).map(|(is_tamis, _)| is_tamis), Ok(false), "{name}");
                    "versions"
                }
                "/weight_info" => {
                    assert!(["default", "B"].contains(&vllm::read_label(answer).expect(name).as_str()));
                    "labels"
                }
                "/reset_prefix_cache" => {
                    vllm::read_reset(answer).expect(name);
                    "resets"
                }
                "/metrics" => {
                    let figures = vllm::read_metrics(answer).expect(name);
                    assert_eq!((figures.running, figures.waiting), (Some(0.0), Some(0.0)));
                    "metrics"
                }
                "/health" | "/ping" | "/inference/v1/abort_requests" => {
                    answer.success().expect(name);
                    assert!(answer.body.is_empty(), "{name}");
                    "empty"
                }
                _ => {
                    answer.json::<Value>().unwrap_or_else(|fault| panic!("{name}: {fault}"));
                    "acknowledgements"
                }
            }
        };
        *read.entry(kind).or_default() += 1;
    }
    let counted: Vec<String> = read.into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let counts = "34 acknowledgements, 3 chats, 46 completions, 8 empty, 30 errors, 3 labels, 1 metrics, \
        1 models, 9 resets, 4 streams, 1 versions";
    assert_eq!(counted.join(", "), counts, "of {}", captures.len());
}

#[test]
fn a_completion_is_checked_against_its_request() {
    let checked = completion("generate").check(&expected("generate-tokens-gen-1", 4)).expect("a good answer");
    assert_eq!(checked.token_ids, [361, 346, 465, 156]);
    assert_eq!(checked.logprobs[0], -1.338_177_4);
    assert_eq!(checked.finish, Finish::Length);
    let spans = checked.spans.expect("versions");
    assert_eq!((spans[0].label.as_str(), spans[0].start, spans[0].end), ("default", 0, 4));
}

/// Each changed part of a good answer has its own fault.
#[test]
fn each_fault_of_an_answer_has_its_name() {
    use FaultClass::{
        BadShape, FinishReason, LogprobOutOfRange, TokenCount, TokenOutOfVocabulary, Versions, WrongRequest,
    };
    let whole: Value = capture("generate").answer.json().unwrap();
    let choice = &whole["choices"][0];
    let (tokens, content) = (&choice["token_ids"], &choice["logprobs"]["content"]);
    let all_but_last = |list: &Value| list.as_array().unwrap().split_last().unwrap().1.to_vec();
    let (first, second) = ("/choices/0/logprobs/content/1/logprob", "/choices/0/logprobs/content/1/token_id");
    // Places, the value there instead, and the fault.
    let cases = [
        ("another request", vec![("/request_id", json!("generate-tokens-x"))], WrongRequest),
        ("a token too few", vec![("/choices/0/token_ids", json!(all_but_last(tokens)))], TokenCount),
        ("a number too few", vec![("/choices/0/logprobs/content", json!(all_but_last(content)))], TokenCount),
        ("no log-probabilities", vec![("/choices/0/logprobs", json!(null))], TokenCount),
        ("another count", vec![("/usage/completion_tokens", json!(7))], TokenCount),
        ("of another token", vec![(second, json!(9))], TokenCount),
        ("no log-probability", vec![(first, json!(null))], LogprobOutOfRange),
        ("above 0", vec![(first, json!(0.5))], LogprobOutOfRange),
        ("impossible", vec![(first, json!(-9999.0))], LogprobOutOfRange),
        ("below 0", vec![("/choices/0/token_ids/1", json!(-1)), (second, json!(-1))], TokenOutOfVocabulary),
        ("outside", vec![("/choices/0/token_ids/1", json!(512)), (second, json!(512))], TokenOutOfVocabulary),
        ("a new finish reason", vec![("/choices/0/finish_reason", json!("repetition"))], FinishReason),
        ("a gap", vec![("/choices/0/weight_versions/0/start", json!(1))], Versions),
        ("an early end", vec![("/choices/0/weight_versions/0/end", json!(3))], Versions),
        ("two choices", vec![("/choices", json!([choice, choice]))], BadShape),
    ];
    for (what, changes, class) in cases {
        let mut body = whole.clone();
        for (place, value) in changes {
            *body.pointer_mut(place).unwrap() = value;
        }
        let fault = vllm::read(&answer(200, &body))
            .and_then(vllm::only)
            .and_then(|completion| completion.check(&expected("generate-tokens-gen-1", 4)))
            .expect_err(what);
        assert_eq!(fault.class, class, "{what}: {fault}");
        assert_eq!(fault.class.kind(), FailureKind::Transient, "{what}");
    }
    let text = |body: &str| vllm::read(&answer(200, body));
    assert_eq!(text("{\"choices\": [").expect_err("cut").class, FaultClass::BadJson);
    assert_eq!(text("<html>").expect_err("another page").class, FaultClass::BadJson);
    assert_eq!(text("{\"choices\": 3}").expect_err("another shape").class, FaultClass::BadShape);
    let nan = text("{\"choices\": [{\"logprobs\": {\"token_logprobs\": [-1.0, NaN]}}]}");
    assert_eq!(nan.expect_err("Python's NaN").class, FaultClass::LogprobOutOfRange);
    assert_eq!(text("{\"text\": \"NaN\", ").expect_err("a word").class, FaultClass::BadJson);
    let fault =
        completion("generate").check(&expected("generate-tokens-gen-1", 3)).expect_err("four of three");
    assert_eq!((fault.class, fault.num_tokens), (FaultClass::TooLong, 4));
}

#[test]
fn parts_of_an_answer_make_the_answer() {
    let text = |name: &str| openai::read(&capture(name).answer).expect(name);
    let (whole, parts) = (text("completions_lp0_ids"), text("completions_stream"));
    assert!(!parts.text.is_empty() && whole.text.starts_with(&parts.text), "{parts:?} of {whole:?}");
    assert_eq!(parts.finish, Some(Finish::Length));
    // Broken off anywhere, its end has not arrived.
    let stream = capture("completions_stream").answer;
    let last = String::from_utf8_lossy(&stream.body).find("\"length\"").expect("its end");
    for end in 0..last {
        let cut = HttpAnswer { body: stream.body[..end].to_vec(), ..stream.clone() };
        assert!(openai::read(&cut).map_or(true, |read| read.finish.is_none()), "{end}");
    }
}

// The numbered surprises of the notes on the captures, each held down.

#[test]
fn surprise_1_ids_get_prefixes() {
    for (name, interface, ours) in [
        ("generate", Interface::Generate, "gen-1"),
        ("completions_reqid_body", Interface::Completions, "req-abc"),
        ("xreqid_echo", Interface::Completions, "rid-1"),
    ] {
        let (answered, _) = vllm::server_id(interface, ours);
        assert_eq!(completion(name).request_id, Some(answered), "{name}");
    }
    // The ids of an abort, as it was sent when it worked.
    let sent = |name: &str| capture(name).request["request_ids"][0].as_str().unwrap().to_owned();
    assert_eq!(vllm::server_id(Interface::Generate, "ab1").1, sent("abort_dev_prefixed"));
    assert_eq!(vllm::server_id(Interface::Completions, "cc").1, sent("abort_dev_cmpl"));
    // An unknown id is acknowledged all the same, so the answer proves nothing.
    let unknown: Value = capture("abort_unknown").answer.json().unwrap();
    assert_eq!(unknown["aborted"], 1);
    // Duplicate ids are taken, so ours must be unique; an answer under an id is checked to be that of the
    // request.
    assert_eq!(completion("dup1").request_id, completion("dup2").request_id);
}

#[test]
fn surprise_2_what_a_server_takes_in_silence() {
    assert_eq!(capture("generate_unknown_field").answer.status, 200);
    // So a parameter that duplicates one of our settings never reaches it.
    let extra = parameters(json!({"max_tokens": 7}));
    let refused = vllm::check(&sampling(), &extra).expect_err("ours");
    assert_eq!(
        refused.to_string(),
        "server parameter `max_tokens` is set by rollout.max_response_length; set that instead"
    );
    // A limit of its own that it applies in silence is seen by the number of tokens.
    let name = "generate_len_plus_max_too_long";
    let asked = capture(name).request["sampling_params"]["max_tokens"].as_u64().unwrap() as usize;
    let fault = completion(name).check(&expected("generate-tokens-gen-12", asked)).expect_err("fewer");
    assert_eq!((fault.class, fault.class.kind()), (FaultClass::Clamped, FailureKind::Permanent));
    assert!(fault.detail.contains("max_model_len"), "{fault}");
}

#[test]
fn surprise_3_caches_are_reset_with_those_that_run() {
    assert_eq!(vllm::reset_prefix_cache().path, "/reset_prefix_cache?reset_running_requests=true");
    // Without it a busy server answers 200 and did nothing.
    for (name, happened) in [
        ("midflight_noclear_reset", false),
        ("midflight_noclear_reset_running", true),
        ("reset_prefix_busy", false),
        ("reset_prefix_running_while_keep", true),
    ] {
        assert_eq!(vllm::read_reset(&capture(name).answer), Ok(happened), "{name}");
    }
}

#[test]
fn surprise_4_a_paused_server_queues_or_turns_away_and_neither_is_a_failure() {
    // 0.32 answers after the resume.
    assert_eq!(completion("pause_wait_newreq").finish, Some(Finish::Length));
    // 0.33 turns away (from its source, not captured).
    let by_type = r#"{"error": {"message": "m", "type": "engine_paused", "param": null, "code": 503}}"#;
    let by_code = r#"{"error": {"message": "m", "type": "x", "code": "engine_paused"}}"#;
    for (body, class) in
        [(by_type, FaultClass::Paused), (by_code, FaultClass::Paused), ("queue full", FaultClass::Busy)]
    {
        assert_eq!(answer(503, body).success().expect_err("not now").class, class, "{body}");
    }
}

#[test]
fn surprise_5_versions_are_labels_that_must_be_set() {
    let kept = completion("pause_keep_inflight");
    let id = kept.request_id.clone().unwrap();
    let checked = kept.check(&Expected { logprobs: false, ..expected(&id, 480) });
    let spans = checked.expect("a good answer").spans.expect("versions");
    let spans: Vec<_> = spans.iter().map(|span| (span.label.as_str(), span.start, span.end)).collect();
    assert_eq!(spans, [("default", 0, 115), ("v-mid", 115, 480)]);
    // A reload does not change the label.
    assert_eq!(vllm::read_label(&capture("weight_info_after_reload").answer).as_deref(), Ok("default"));
    let set = vllm::set_label("v-mid");
    assert_eq!(set.path, "/update_weight_version");
    assert_eq!(sent(&set), capture("update_weight_version_mid").request);
}

#[test]
fn surprise_6_weights_are_told_by_the_log_probabilities_of_a_known_text() {
    let Capture { request, answer, .. } = capture("generate_lp2");
    let tokens: Vec<u32> = serde_json::from_value(request["token_ids"].clone()).unwrap();
    let scores = vllm::read_scores(&answer, &tokens).expect("scores");
    assert_eq!(scores.len(), 6);
    assert_eq!((scores[0], scores[5]), (-8.930_912_017_822_266, -8.788_402_557_373_047));
    let Capture { answer, .. } = capture("completions_prompt_logprobs");
    assert_eq!(vllm::read_scores(&answer, &tokens).expect("scores of the other interface"), scores);
    let fault = vllm::read_scores(&answer, &[10, 20, 31, 40, 50, 60, 70]).expect_err("of another text");
    assert_eq!(fault.class, FaultClass::LogprobOutOfRange);
    let none = vllm::read_scores(&capture("generate").answer, &tokens).expect_err("none");
    assert_eq!(none.class, FaultClass::BadShape);
}

#[test]
fn surprise_7_a_reload_always_names_its_folder() {
    let call = vllm::reload("checkpoints/tiny-qwen2");
    assert_eq!((call.path.as_str(), sent(&call)), ("/collective_rpc", capture("reload_A").request));
}

#[test]
fn surprise_8_a_folder_that_is_none_is_an_error_of_the_server() {
    let fault = capture("reload_bad_path").answer.success().expect_err("500");
    assert_eq!(fault.class, FaultClass::ServerError);
    assert!(fault.detail.contains("/nonexistent"), "{fault}");
    assert!(capture("health_after_bad_reload").answer.success().is_ok(), "and yet it says that it is well");
    assert!(capture("generate_after_bad_reload").answer.success().expect_err("dead").class.is_of_server());
}

#[test]
fn surprise_10_the_distribution_that_log_probabilities_are_of() {
    // With only one token allowed it is certain, if the distribution is the one that it was drawn from.
    let forced = capture("completions_eos_forced").answer;
    assert_eq!(vllm::read_mode(&forced), Ok(LogprobsOf::Drawn));
    let of = |logprob: f64| {
        let mut body: Value = forced.json().unwrap();
        body["choices"][0]["logprobs"]["token_logprobs"][0] = json!(logprob);
        vllm::read_mode(&answer(200, &body))
    };
    assert_eq!(of(-7.5), Ok(LogprobsOf::Logits));
    let fault = of(7.5).expect_err("no log-probability");
    assert_eq!(fault.class, FaultClass::Refused);
    let fix = "start vLLM with --logprobs-mode processed_logprobs or raw_logprobs";
    assert!(fault.detail.ends_with(fix), "{fault}");
    let asked = sent(&vllm::ask_mode(Interface::Completions, Some("tiny"), "x", 2));
    assert_eq!([&asked["max_tokens"], &asked["logprobs"]], [1, 0]);
    assert_eq!(asked["allowed_token_ids"], json!([2]));
    // Greedy reports the distribution before truncation.
    let penalty = Some("repetition_penalty 1.1");
    let cases: [(Sampling, [Option<&str>; 3]); 8] = [
        (sampling(), [None; 3]),
        (Sampling { temperature: 0.7, ..sampling() }, [Some("temperature 0.7"), None, None]),
        (Sampling { top_k: Some(5), ..sampling() }, [None, None, Some("top_k 5")]),
        (Sampling { top_p: 0.9, ..sampling() }, [None, None, Some("top_p 0.9")]),
        (Sampling { min_p: 0.1, ..sampling() }, [None, None, Some("min_p 0.1")]),
        (Sampling { repetition_penalty: 1.1, ..sampling() }, [None, penalty, penalty]),
        (Sampling { temperature: 0.0, top_p: 0.9, ..sampling() }, [None; 3]),
        // The mask of a form comes before everything else.
        (Sampling { regex: Some("a".to_owned()), ..sampling() }, [Some("regex"); 3]),
    ];
    for (sampling, differs) in cases {
        let found = [LogprobsOf::Logits, LogprobsOf::Tempered, LogprobsOf::Drawn]
            .map(|of| of.differs(&sampling, None));
        assert_eq!(found.each_ref().map(Option::as_deref), differs, "{sampling:?}");
    }
    for (of, extra, differs) in [
        (LogprobsOf::Logits, "logit_bias", None),
        (LogprobsOf::Logits, "structured_outputs", Some("structured_outputs")),
        (LogprobsOf::Drawn, "logit_bias", Some("logit_bias")),
    ] {
        assert_eq!(of.differs(&sampling(), Some(extra)).as_deref(), differs, "{extra}");
    }
}

#[test]
fn an_abort_answers_with_what_there_was() {
    for (name, num_tokens) in
        [("abort_all_result", 206), ("abort_inf_result", 192), ("pause_abort_inflight", 89)]
    {
        let completion = completion(name);
        let id = completion.request_id.clone().unwrap();
        let checked = completion.check(&Expected { logprobs: false, ..expected(&id, 480) }).expect(name);
        assert_eq!((checked.finish, checked.token_ids.len()), (Finish::Abort, num_tokens), "{name}");
    }
}

fn ask<'a>(sampling: &'a Sampling, extra: &'a Map<String, Value>) -> Ask<'a> {
    Ask {
        request_id: "r1",
        prompt: &[10, 20],
        images: &[],
        prompt_text: "ab",
        sampling,
        seed: Some(u64::MAX),
        key: None,
        end_token_ids: &[2],
        model: Some("tiny"),
        cache_salt: Some("w1"),
        logprobs: true,
        extra,
    }
}

#[test]
fn sampling_in_the_words_of_each_server() {
    let sampling = Sampling { top_k: Some(7), stop: vec!["\n".to_owned()], ..sampling() };
    let extra = parameters(json!({"presence_penalty": 0.5, "priority": 3}));
    let in_words = json!({
        "max_tokens": 4, "temperature": 1.0, "top_k": 7, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
        "stop_token_ids": [2], "stop": ["\n"], "seed": i64::MAX, "logprobs": 0, "presence_penalty": 0.5,
    });
    let generate = sent(&vllm::sample(Interface::Generate, &ask(&sampling, &extra)));
    let expected = json!({"model": "tiny", "request_id": "r1", "cache_salt": "w1", "priority": 3, "token_ids": [10, 20],
        "sampling_params": in_words});
    assert_eq!(generate, expected);
    let completions = sent(&vllm::sample(Interface::Completions, &ask(&sampling, &extra)));
    assert_eq!((&completions["prompt"], &completions["top_k"]), (&json!([10, 20]), &json!(7)));
    assert_eq!((&completions["return_token_ids"], &completions["priority"]), (&json!(true), &json!(3)));

    let sglang = sent(&sglang::sample(&ask(&sampling, &extra)));
    let named = json!([sglang["rid"], sglang["input_ids"], sglang["return_logprob"]]);
    assert_eq!(named, json!(["r1", [10, 20], true]));
    assert_eq!(sglang["sampling_params"]["max_new_tokens"], 4);
    assert_eq!(sglang["sampling_params"]["sampling_seed"], i32::MAX);
    let all = Sampling { top_k: None, ..sampling.clone() };
    assert_eq!(sent(&sglang::sample(&ask(&all, &extra)))["sampling_params"]["top_k"], -1);
    assert_eq!(sent(&vllm::sample(Interface::Generate, &ask(&all, &extra)))["sampling_params"]["top_k"], 0);

    let openai = sent(&openai::sample(&ask(&all, &Map::new())));
    let expected = json!({"model": "tiny", "prompt": "ab", "max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "stop": ["\n"],
        "seed": i64::MAX});
    assert_eq!(openai, expected);
}

#[test]
fn a_form_in_the_words_of_each_server() {
    let bound = Sampling { regex: Some("[0-9]+".to_owned()), ..sampling() };
    let none = Map::new();
    let structured = json!({"regex": "[0-9]+"});
    let generate = sent(&vllm::sample(Interface::Generate, &ask(&bound, &none)));
    assert_eq!(generate["sampling_params"]["structured_outputs"], structured);
    let completions = sent(&vllm::sample(Interface::Completions, &ask(&bound, &none)));
    assert_eq!(completions["structured_outputs"], structured);
    assert_eq!(sent(&sglang::sample(&ask(&bound, &none)))["sampling_params"]["regex"], "[0-9]+");
    let plain = sent(&vllm::sample(Interface::Generate, &ask(&sampling(), &none)));
    assert!(plain["sampling_params"].get("structured_outputs").is_none());
    let refused = openai::check(&bound, &none).expect_err("refused").to_string();
    assert!(refused.starts_with("openai cannot do regex"), "{refused}");
    // A server's own parameter is allowed only for another form, and only without an expression beside
    // it.
    let json = parameters(json!({"structured_outputs": {"json": {}}}));
    assert!(vllm::check(&sampling(), &json).is_ok());
    for (sampling, extra) in [
        (&bound, json),
        (&sampling(), parameters(json!({"structured_outputs": structured}))),
        (&sampling(), parameters(json!({"guided_regex": "a"}))),
        (&sampling(), parameters(json!({"regex": "a"}))),
    ] {
        let refused = vllm::check(sampling, &extra).expect_err("refused").to_string();
        assert!(refused.ends_with("is set by rollout.regex; set that instead"), "{refused}");
    }
    assert!(openai::check(&sampling(), &parameters(json!({"guided_regex": "a"}))).is_ok());
}

#[test]
fn what_a_server_cannot_do_is_refused_with_the_reason() {
    let none = Map::new();
    let cold = Sampling { temperature: 0.001, ..sampling() };
    let penalty = Sampling { repetition_penalty: 1.1, ..sampling() };
    let cut = Sampling { top_k: Some(3), ..sampling() };
    for (checked, expected) in [
        (
            vllm::check(&cold, &none),
            "vllm cannot do temperature 0.001: it samples at 0.01 instead; use 0 for greedy decoding",
        ),
        (sglang::check(&penalty, &none), "sglang cannot do repetition_penalty 1.1: it counts"),
        (openai::check(&penalty, &none), "openai cannot do repetition_penalty 1.1: OpenAI's"),
        (openai::check(&cut, &none), "openai cannot do top_k 3"),
    ] {
        let refused = checked.expect_err(expected).to_string();
        assert!(refused.starts_with(expected), "{refused}");
    }
    assert!(vllm::check(&penalty, &none).is_ok());
    let extra = parameters(json!({"top_k": 3}));
    assert!(openai::check(&sampling(), &extra).is_ok(), "a server that has one may take it");
    assert!(vllm::check(&sampling(), &extra).is_err());
}

#[test]
fn answers_of_sglang() {
    let body = json!({
        "text": "ab", "output_ids": [5, 6],
        "meta_info": {
            "id": "r1", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 2, "completion_tokens": 2,
            "weight_version": "w3", "output_token_logprobs": [[-0.5, 5, null], [-0.25, 6, "b"]],
        },
    });
    let checked =
        sglang::read(&answer(200, &body)).unwrap().check(&expected("r1", 4)).expect("a good answer");
    assert_eq!((checked.token_ids, checked.logprobs), (vec![5, 6], vec![-0.5, -0.25]));
    assert_eq!(checked.spans.unwrap()[0].label, "w3");
    let mut other = body.clone();
    other["output_ids"] = json!([5, 7]);
    assert_eq!(sglang::read(&answer(200, &other)).expect_err("other tokens").class, FaultClass::TokenCount);
    let failed = json!({"success": false, "message": "no such folder"});
    assert_eq!(sglang::read_reload(&answer(200, &failed)).expect_err("not loaded").detail, "no such folder");
    let scores = json!({"meta_info": {"input_token_logprobs": [[null, 5, null], [-1.5, 6, null]]}});
    assert_eq!(sglang::read_scores(&answer(200, &scores), &[5, 6]), Ok(vec![-1.5]));
}

#[test]
fn images_go_by_path() {
    let (sampling, extra) = (sampling(), Map::new());
    let images = ["/data/a b.png".to_owned(), "/data/é#.png".to_owned()];
    let asked = Ask { images: &images, ..ask(&sampling, &extra) };
    let sent = sent(&vllm::sample(Interface::Generate, &asked));
    let parts = ["file:///data/a%20b.png", "file:///data/%C3%A9%23.png"]
        .map(|url| json!({"type": "image_url", "url": url}));
    assert_eq!((&sent["content_parts"], &sent["return_token_ids"]), (&json!(parts), &json!(true)));
}
