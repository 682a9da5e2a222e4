use serde_json::Value;
use tamis_core::random::{Key, Purpose};
use tamis_model::SaveDtype;
use tamis_run::durable::Disk;
use tempfile::TempDir;

use super::*;
use crate::interrupt::Interrupt;
use crate::native;
use crate::support::{drawing, model};

/// A tiny policy in a folder, and a service that may open it.
struct Served {
    folder: TempDir,
    service: LearnerService<'static>,
    incarnation: String,
    number: u64,
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        model().save(folder.path(), SaveDtype::F32).expect("saved");
        let open = |request: &OpenRequest| native::open(request, 1, &Disk::new(), &Interrupt::new());
        let service = LearnerService::new("test", "here", &["f32"], Box::new(open));
        let mut served = Self { folder, service, incarnation: String::new(), number: 0 };
        let (status, answer) = served.open(&json!({}));
        assert_eq!(status, 200, "{answer}");
        served.incarnation = answer["incarnation"].as_str().expect("an incarnation").to_owned();
        served
    }

    /// Opens the policy with further settings.
    fn open(&mut self, further: &Value) -> (u16, Value) {
        let optimizer = json!({
            "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0,
            "decay_norms_and_biases": false, "max_grad_norm": 1.0,
        });
        let mut request = json!({"policy": self.folder.path(), "temperature": 1.0, "optimizer": optimizer});
        request.as_object_mut().expect("an object").extend(further.as_object().expect("an object").clone());
        self.send("/v1/open", &WireMessage::new(&request), &[])
    }

    fn send(&mut self, path: &str, message: &WireMessage, headers: &[(&str, &str)]) -> (u16, Value) {
        let (content_type, body) = message.to_body();
        let answer = self.service.answer(&Question::new(HttpMethod::Post, path, content_type, body, headers));
        let message = WireMessage::read(answer.content_type, &answer.body).expect("a message");
        (answer.status, message.settings().expect("settings"))
    }

    fn numbered(&mut self, number: u64, path: &str, message: &WireMessage) -> (u16, Value) {
        let (incarnation, number) = (self.incarnation.clone(), number.to_string());
        self.send(path, message, &[(INCARNATION, &incarnation), (SEQUENCE, &number)])
    }

    fn next(&mut self, path: &str, message: &WireMessage) -> (u16, Value) {
        self.number += 1;
        self.numbered(self.number, path, message)
    }

    fn get(&self, path: &str, token: Option<&str>, headers: &[(&str, &str)]) -> Option<(u16, Value)> {
        let at_once = self.service.answer_at_once(token.map(str::to_owned));
        let answer = at_once(&Question::new(HttpMethod::Get, path, "", Vec::new(), headers))?;
        Some((answer.status, serde_json::from_slice(&answer.body).expect("JSON")))
    }
}

fn wave(tokens: &'static [u32]) -> WireMessage {
    let sequence = LearnerSequence::of_text(&[1, 2], tokens);
    WireMessage::new(&json!({"network": "policy"})).with_wave(&Wave::of(&[sequence]))
}

fn slopes(num_tokens: usize) -> WireMessage {
    WireMessage::new(&json!({})).with("logprob", WireColumn::F32(vec![-1.0; num_tokens]))
}

fn step() -> WireMessage {
    WireMessage::new(&json!({"network": "policy", "learning_rate": 0.1}))
}

fn error(answer: (u16, Value)) -> String {
    let (status, answer) = answer;
    format!("{status} {}: {}", answer["error"]["kind"].as_str().unwrap_or("?"), answer["error"]["message"])
}

#[test]
fn a_call_that_comes_again_is_answered_and_not_carried_out_again() {
    let mut served = Served::new();
    assert_eq!(served.next("/v1/forward_hold", &wave(&[3, 4])).0, 200);
    assert_eq!(served.next("/v1/backward", &slopes(2)).0, 200);
    let first = served.next("/v1/optim_step", &step());
    assert_eq!((first.0, &first.1["num_steps"]), (200, &json!(1)));
    assert_eq!(served.numbered(3, "/v1/optim_step", &step()), first, "the kept answer");
    let second = served.next("/v1/optim_step", &step());
    assert_eq!(second.1["num_steps"], json!(2));
    // A refusal is kept as well.
    let refused = served.next("/v1/backward", &slopes(2));
    insta::assert_snapshot!(error(refused.clone()), @r#"409 state: "there is no forward pass to run back""#);
    assert_eq!(served.numbered(5, "/v1/backward", &slopes(2)), refused);
    assert_eq!(served.get("/v1/info", None, &[]).expect("at once").1["seq"], json!(5));
}

#[test]
fn what_is_not_the_next_call_is_refused_and_takes_no_number() {
    let mut served = Served::new();
    let check = WireMessage::new(&json!({}));
    insta::assert_snapshot!(error(served.numbered(2, "/v1/check", &check)).replace(&served.incarnation, "ID"), @r#"409 sequence: "call 2 of ID came, but 1 was expected""#);
    insta::assert_snapshot!(error(served.numbered(0, "/v1/check", &check)).replace(&served.incarnation, "ID"), @r#"409 sequence: "call 0 of ID came, but 1 was expected""#);
    assert_eq!(served.next("/v1/check", &check).0, 200);
    insta::assert_snapshot!(error(served.numbered(1, "/v1/keep", &check)).replace(&served.incarnation, "ID"), @r#"409 sequence: "call 1 of ID came again as another one""#);
    insta::assert_snapshot!(error(served.numbered(2, "/v1/forwards", &check)), @r#"404 path: "there is no call /v1/forwards in tamis-learner/1""#);
    insta::assert_snapshot!(error(served.send("/v1/check", &check, &[])), @r#"400 request: "there is no header Tamis-Incarnation""#);
    insta::assert_snapshot!(error(served.send("/v1/check", &check, &[(INCARNATION, "other"), (SEQUENCE, "2")])).replace(&served.incarnation, "ID"), @r#"410 incarnation: "ID is open, and the call is meant for other""#);
    let incarnation = served.incarnation.clone();
    insta::assert_snapshot!(error(served.send("/v1/check", &check, &[(INCARNATION, &incarnation), (SEQUENCE, "two")])), @r#"400 request: "there is no number in a header Tamis-Seq""#);
    assert_eq!(served.next("/v1/check", &check).0, 200, "none of them took a number");

    // Another run opens it.
    assert_eq!(served.open(&json!({})).0, 200);
    let gone = error(served.next("/v1/check", &check));
    assert!(gone.starts_with("410 incarnation"), "{gone}");
    // One that cannot be opened leaves nothing behind.
    let nowhere = error(served.open(&json!({"policy": "/nowhere"})));
    assert!(nowhere.starts_with("422 files") && nowhere.contains("/nowhere"), "{nowhere}");
    assert_eq!(served.get("/v1/info", None, &[]).expect("at once").1["incarnation"], Value::Null);
}

#[test]
fn what_a_call_says_wrong_is_told() {
    let mut served = Served::new();
    let mut next = |path: &str, message: &WireMessage| error(served.next(path, message));
    insta::assert_snapshot!(next("/v1/forward", &wave(&[3, 99])), @r#"400 request: "token 99 is none of the 8 of the vocabulary""#);
    insta::assert_snapshot!(next("/v1/forward", &wave(&[3; 15])), @r#"422 refused: "sequence 0 has 17 tokens, more than max_position_embeddings (16)""#);
    insta::assert_snapshot!(next("/v1/forward", &WireMessage::new(&json!({"network": "policy"}))), @r#"400 request: "there is no column `prompt_token`""#);
    insta::assert_snapshot!(next("/v1/forward", &WireMessage::new(&json!({"network": "judge"}))), @r#"400 request: "there is no network \"judge\"""#);
    insta::assert_snapshot!(next("/v1/check", &WireMessage::new(&json!({"deep": true}))), @r#"400 request: "unknown field `deep`, there are no fields""#);
    insta::assert_snapshot!(next("/v1/save", &WireMessage::new(&json!({"folder": "here", "content": "weights"}))), @r#"400 request: "the path here is not absolute""#);
    insta::assert_snapshot!(next("/v1/copy", &WireMessage::new(&json!({"to": "critic"}))), @r#"422 refused: "the learner has no critic""#);
    let mut served = Served::new();
    served.next("/v1/forward_hold", &wave(&[3, 4]));
    insta::assert_snapshot!(error(served.next("/v1/optim_step", &step())), @r#"409 state: "a pass of this network is held""#);
    insta::assert_snapshot!(error(served.next("/v1/backward", &slopes(3))), @r#"400 request: "column `logprob` has 3 numbers for 2 tokens""#);
    assert_eq!(served.next("/v1/backward", &slopes(2)).0, 200, "the pass is still held");
    let option = served.open(&json!({"options": {"dtype": "bf16"}}));
    insta::assert_snapshot!(error(option), @r#"400 request: "the native engine has no option `dtype`""#);
}

#[test]
fn what_the_disk_refuses_is_told_with_path_and_number() {
    let mut served = Served::new();
    let nowhere = served.folder.path().join("none");
    let save = WireMessage::new(&json!({"folder": nowhere, "content": "weights"}));
    let (status, answer) = served.next("/v1/save", &save);
    let error = &answer["error"];
    assert_eq!((status, &error["kind"], &error["errno"]), (500, &json!("disk"), &json!(2)), "{error}");
    assert_eq!((&error["operation"], &error["path"]), (&json!("open"), &json!(nowhere)));
    let load = WireMessage::new(&json!({"folder": nowhere, "content": "checkpoint"}));
    let (status, answer) = served.next("/v1/load", &load);
    assert_eq!((status, &answer["error"]["kind"]), (422, &json!("files")), "{answer}");
}

#[test]
fn who_may_not_ask_hears_nothing() {
    let served = Served::new();
    let ask =
        |path: &str, headers: &[(&str, &str)]| served.get(path, Some("secret"), headers).expect("at once");
    assert_eq!(ask("/v1/health", &[]), (200, json!({"phase": "idle", "seq": 0})));
    assert_eq!(ask("/v1/info", &[("authorization", "Bearer secret")]).0, 200);
    for headers in [&[][..], &[("authorization", "Bearer secre")], &[("authorization", "secret")]] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(error(ask("/v1/info", headers)), @r#"401 token: "a bearer token is missing, or wrong""#);
        }
    }
    insta::assert_snapshot!(error(ask("/v1/health", &[("origin", "http://evil.example")])), @r#"403 request: "a web page may not ask this""#);
    // Without a token, names of this machine; with one it does not matter what the caller calls it.
    for host in ["example.org", "localhost.example.org:80"] {
        let (status, answer) = served.get("/v1/info", None, &[("host", host)]).expect("answered");
        assert_eq!(status, 403, "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(&format!("not to {host:?}")), "{message}");
        let headers = [("host", host), ("authorization", "Bearer secret")];
        assert_eq!(served.get("/v1/info", Some("secret"), &headers).expect("answered").0, 200);
    }
    assert_eq!(served.get("/v1/info", None, &[("host", "localhost:80")]).expect("answered").0, 200);
    let at_once = served.service.answer_at_once(Some("secret".to_owned()));
    let post = |headers: &[(&str, &str)]| {
        let question = Question::new(HttpMethod::Post, "/v1/open", "", Vec::new(), headers);
        at_once(&question).map(|answer| answer.status)
    };
    assert_eq!(post(&[]), Some(401));
    assert_eq!(post(&[("authorization", "Bearer secret")]), None, "left to who owns the learner");
}

#[test]
fn json_is_bounded_before_it_is_read() {
    let mut served = Served::new();
    let blank = vec![b' '; MAX_JSON_BYTES + 1];
    let mut file = (MAX_JSON_BYTES as u64 + 1).to_le_bytes().to_vec();
    file.extend(&blank);
    for (kind, body) in [("application/json", blank), ("application/x-safetensors; a=b", file)] {
        let answer = served.service.answer(&Question::new(HttpMethod::Post, "/v1/open", kind, body, &[]));
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, 413, "{text}");
        assert!(text.contains("has 4194305 bytes of JSON, and at most 4194304 are taken"), "{text}");
    }
}

#[test]
fn a_learner_that_nobody_asks_is_an_orphan() {
    let mut served = Served::new();
    assert!(!served.service.is_orphan(), "nobody said when");
    assert_eq!(served.open(&json!({"orphan_timeout": 1e-9})).0, 200);
    assert!(served.service.is_orphan());
    assert_eq!(served.open(&json!({"orphan_timeout": 600.0})).0, 200);
    assert!(!served.service.is_orphan());
}

fn generate(seconds: f64) -> WireMessage {
    use crate::learner::generate::{BeginningGroup, Generate};
    let samples = (0..3).map(|sample| (sample, Key::new(sample, Purpose::Rollout))).collect();
    let begin = vec![BeginningGroup { prompt: vec![1, 2], drawing: drawing(5), samples }];
    WireMessage::of_generate(&Generate { begin, abort: Vec::new(), seconds })
}

#[test]
fn samples_are_begun_once_and_grow_over_calls() {
    let mut served = Served::new();
    insta::assert_snapshot!(error(served.next("/v1/generate", &generate(9.0))), @r#"422 refused: "the learner was not opened to generate""#);
    let opened = served.open(&json!({"generation": {"max_sequences": 2}}));
    served.incarnation = opened.1["incarnation"].as_str().expect("an incarnation").to_owned();
    served.number = 0;
    let asked = std::time::Instant::now();
    // No time: nothing is sampled, and the call that comes again begins nothing a second time.
    let begun = served.next("/v1/generate", &generate(0.0));
    assert_eq!((begun.0, &begun.1["num_open"], &begun.1["refused"]), (200, &json!(3), &json!([])));
    let seconds = begun.1["seconds"].as_f64().expect("how long it computed");
    assert!(0.0 < seconds && seconds < asked.elapsed().as_secs_f64(), "{seconds}");
    assert_eq!(served.numbered(1, "/v1/generate", &generate(0.0)).1["num_open"], json!(3));
    insta::assert_snapshot!(error(served.next("/v1/generate", &generate(0.0))), @r#"400 request: "sample 0 is open already""#);
    let more =
        WireMessage::of_generate(&crate::learner::generate::Generate { seconds: 9.0, ..Default::default() });
    let two = served.next("/v1/generate", &more);
    assert_eq!(two.1["num_open"], json!(1), "two at a time, of one length");
    let last = served.next("/v1/generate", &more);
    assert_eq!(last.1["num_open"], json!(0));
}

#[test]
fn the_native_engine_sees_no_images() {
    let mut served = Served::new();
    let images = ["/a.png".to_owned()];
    let sequence = LearnerSequence { images: &images, ..LearnerSequence::of_text(&[1, 2], &[3]) };
    let message = WireMessage::new(&json!({"network": "policy"})).with_wave(&Wave::of(&[sequence]));
    insta::assert_snapshot!(error(served.next("/v1/forward", &message)), @r#"422 refused: "the native engine does not support images: use a learner in PyTorch""#);
    assert_eq!(served.next("/v1/forward", &wave(&[3, 4])).0, 200);
}

/// The other statuses of the page are asked for by `python/tests/test_conformance.py`, of both learners.
#[test]
fn a_refused_call_leaves_what_there_is_and_makes_nothing_up() {
    let mut served = Served::new();
    let of = |network: &str| {
        let wave = Wave::of(&[LearnerSequence::of_text(&[1, 2], &[3, 4])]);
        WireMessage::new(&json!({"network": network})).with_wave(&wave)
    };
    insta::assert_snapshot!(error(served.next("/v1/forward", &of("reference"))), @r#"409 state: "the learner has no reference""#);
    assert_eq!(served.next("/v1/forward_hold", &of("policy")).0, 200);
    let without = WireMessage::new(&json!({})).with("entropy", WireColumn::F32(vec![0.0; 2]));
    insta::assert_snapshot!(error(served.next("/v1/backward", &without)), @r#"400 request: "there is no column `logprob`""#);
    assert_eq!(served.next("/v1/restore", &WireMessage::new(&json!({}))).0, 200);
    assert_eq!(served.next("/v1/backward", &slopes(2)).0, 200, "the graph is still there");
    let folder = tempfile::tempdir().expect("a folder");
    let handles = WireMessage::new(&json!({"folder": folder.path(), "content": "handles"}));
    insta::assert_snapshot!(error(served.next("/v1/save", &handles)), @r#"422 refused: "the learner has no GPU""#);
    for dtype in ["bf16", "f32"] {
        let folder = tempfile::tempdir().expect("a folder");
        let asked = json!({"folder": folder.path(), "content": "weights", "dtype": dtype});
        let (status, answer) = served.next("/v1/save", &WireMessage::new(&asked));
        assert_eq!(status, 200, "{answer}");
        let file = std::fs::read(folder.path().join("model.safetensors")).expect("weights");
        let (_, header) = safetensors::SafeTensors::read_metadata(&file).expect("safetensors");
        let wanted = if dtype == "f32" { safetensors::Dtype::F32 } else { safetensors::Dtype::BF16 };
        assert!(header.tensors().values().all(|tensor| tensor.dtype == wanted), "{dtype}");
    }
}
