//! A server in this process on a free port, and a client that shows the bytes on the wire.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, BatchGenerator, GenerationRequest, GeneratorSettings, Model, Threads, TransformerConfig,
};
use tamis_rollout::Sampling;
use tamis_rollout::native::{StopText, engine_params, token_mask};
use tamis_serve::{Fault, NativeServer, RequestLog, ServeSettings, ServedPolicy, SlowDown};
use tamis_text::regex_mask::RegexMask;
use tamis_text::tokenizer::Tokenizer;

/// Longest wait for anything in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tokens that the model reads.
pub(crate) const MODEL_LENGTH: usize = 512;

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::load(&tamis_golden::folder().join("hf/tokenizer")).unwrap()
}

/// Random weights, different for each number.
pub(crate) fn model(number: u64) -> Model {
    let rows = tokenizer().num_rows();
    let mut config = TransformerConfig::new(Architecture::Qwen3, rows, 16, 24, 2, 2, MODEL_LENGTH);
    config.initializer_range = 0.4;
    Model::init(config, Key::new(number, Purpose::Init)).unwrap()
}

pub(crate) fn policy(number: u64) -> ServedPolicy {
    let tokenizer = tokenizer();
    ServedPolicy {
        name: "tiny".to_owned(),
        folder: PathBuf::from("where/it/was"),
        model: model(number),
        template: Some(tokenizer.chat_template().unwrap()),
        template_arguments: Map::new(),
        end_token_ids: tokenizer.eos_id().into_iter().collect(),
        tokenizer,
        load: Box::new(|path| Model::load(path).map_err(|error| error.to_string())),
    }
}

/// A free port, and two threads for the engine.
pub(crate) fn settings() -> ServeSettings {
    ServeSettings { port: 0, threads: 2, ..ServeSettings::default() }
}

/// Steps so slow that a test can act in between.
pub(crate) fn slow(step_ms: u64) -> ServeSettings {
    let slow_down =
        SlowDown { step: Duration::from_millis(step_ms), per_sample: Duration::ZERO, lengths: None };
    ServeSettings { slow_down: Some(slow_down), ..settings() }
}

pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Fault>>>,
}

#[expect(clippy::needless_pass_by_value, reason = "tests make the settings for it")]
pub(crate) fn serve(settings: ServeSettings) -> Serving {
    serve_with_log(&settings, None)
}

pub(crate) fn serve_with_log(settings: &ServeSettings, log: Option<RequestLog>) -> Serving {
    let server = NativeServer::begin(vec![policy(1)], settings).unwrap();
    Serving::run(server, log)
}

/// Two models, with the weights 1 and 2.
pub(crate) fn serve_two(settings: &ServeSettings) -> Serving {
    let policies = [(1, "before"), (2, "after")];
    let policies = policies.map(|(number, name)| ServedPolicy { name: name.to_owned(), ..policy(number) });
    Serving::run(NativeServer::begin(policies.into(), settings).unwrap(), None)
}

impl Serving {
    fn run(server: NativeServer, log: Option<RequestLog>) -> Self {
        let (address, stop) = (server.address(), Arc::new(AtomicBool::new(false)));
        let flag = stop.clone();
        Self { address, stop, thread: Some(std::thread::spawn(move || server.run(&flag, log))) }
    }

    /// Ends the server. Returns how it ended.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().map_or(Ok(()), |thread| thread.join().expect("the server does not panic"))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        ask(self.address, "GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body)
    }

    pub(crate) fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let headers = [&[("Content-Type", "application/json")], headers].concat();
        ask(self.address, "POST", path, &headers, body.to_string().as_bytes())
    }

    #[track_caller]
    pub(crate) fn json(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        answer.json()
    }

    pub(crate) fn later(&self, path: &'static str, body: Value) -> JoinHandle<Answer> {
        let address = self.address;
        std::thread::spawn(move || {
            let body = body.to_string();
            ask(address, "POST", path, &[("Content-Type", "application/json")], body.as_bytes())
        })
    }

    /// A figure of `/metrics`, summed over its rows that hold `label`.
    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.get("/metrics").text();
        let is_it = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
        text.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until a figure has a value.
    #[track_caller]
    pub(crate) fn await_metric(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        let start = Instant::now();
        while !wanted(self.metric(name, "")) {
            assert!(start.elapsed() < PATIENCE, "{name} is {}", self.metric(name, ""));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let ended = self.end();
        if !std::thread::panicking() {
            ended.expect("the server ends well");
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0.eq_ignore_ascii_case(name)).map(|header| header.1.as_str())
    }

    /// The events of a stream; the last must be `[DONE]`.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"), "{}", self.text());
        let text = self.text();
        let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{text}");
        let data = |event: &&str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.iter().map(data).collect()
    }
}

/// Sends a request on a new connection.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|header| header.0 == "Host") {
        let _ = write!(head, "Host: {address}\r\n");
    }
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
    read(&mut stream)
}

/// Reads an answer to its end.
pub(crate) fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    // A server may reset the connection if it did not read everything. The bytes before that are the answer.
    while let Ok(count @ 1..) = stream.read(&mut part) {
        bytes.extend_from_slice(&part[..count]);
    }
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut answer = Answer { status, headers, body: bytes[end + 4..].to_vec() };
    if answer.header("transfer-encoding") == Some("chunked") {
        answer.body = unchunked(&answer.body);
    }
    answer
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&rest[at + 2..at + 2 + size]);
        rest = &rest[at + 4 + size..];
    }
    whole
}

/// The engine's own samples of a prompt under the weights with this number: tokens, log-probabilities, mean
/// entropy.
pub(crate) fn alone(
    number: u64,
    prompt: &[u32],
    keys: Vec<Key>,
    sampling: &Sampling,
) -> Vec<(Vec<u32>, Vec<f32>, f64)> {
    let (model, tokenizer) = (model(number), Arc::new(tokenizer()));
    let stop = Arc::new(StopText::new(sampling.stop.clone(), tokenizer.clone()).unwrap());
    let params = engine_params(sampling, tokenizer.eos_id().into_iter().collect());
    let mask = sampling.regex.as_ref().map(|regex| {
        token_mask(&Arc::new(RegexMask::new(regex, &tokenizer, &params.stop_token_ids).unwrap()))
    });
    let mut generator = BatchGenerator::new(model.config(), GeneratorSettings::default());
    let request = GenerationRequest { prompt: prompt.to_vec(), keys, params, stop: stop.check(), mask };
    generator.submit(request).unwrap();
    let mut done = generator.run(&Threads::new(1), &model);
    done.sort_by_key(|done| done.sample);
    let parts = done.into_iter().map(|done| (done.mean_entropy(), done.tokens, done.logprobs));
    parts.map(|(entropy, tokens, logprobs)| (tokens, logprobs, entropy)).collect()
}

/// A request for tokens that does not end by itself.
pub(crate) fn long(id: &str, max_tokens: usize) -> Value {
    json!({
        "request_id": id,
        "token_ids": [10, 20, 30],
        "sampling_params": {"max_tokens": max_tokens, "ignore_eos": true, "seed": 1, "logprobs": 0},
    })
}

#[track_caller]
pub(crate) fn tokens(answer: &Value) -> Vec<u32> {
    choice_tokens(&answer["choices"][0])
}

#[track_caller]
pub(crate) fn choice_tokens(choice: &Value) -> Vec<u32> {
    let ids = choice["token_ids"].as_array().unwrap_or_else(|| panic!("no token_ids in {choice}"));
    ids.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The log-probabilities of a choice of `/inference/v1/generate`.
pub(crate) fn choice_logprobs(choice: &Value) -> Vec<f32> {
    let content = choice["logprobs"]["content"].as_array().unwrap();
    content.iter().map(|token| token["logprob"].as_f64().unwrap() as f32).collect()
}
