//! Clients that are slow, large, many or malformed. The others are answered all the same.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use tamis_serve::ServeSettings;

use super::harness::*;

const GENERATE: &str = "/inference/v1/generate";

fn connect(server: &Serving, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

#[test]
fn bodies_over_the_limit_are_not_read() {
    let server = serve(ServeSettings { max_body_bytes: 10_000, ..settings() });
    let body = json!({"prompt": "x".repeat(20_000), "max_tokens": 1}).to_string();
    let headers = [("Content-Type", "application/json")];
    let answer = ask(server.address, "POST", "/v1/completions", &headers, body.as_bytes());
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!(413)));
    assert!(answer.text().contains("10000 bytes"), "{}", answer.text());
    // In chunks, without a total length.
    let mut stream = connect(
        &server,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    for _ in 0..100 {
        let _ = stream.write_all(format!("400\r\n{}\r\n", "y".repeat(0x400)).as_bytes());
    }
    assert_eq!(read(&mut stream).status, 413);
    // Announced, but never sent.
    let mut stream = connect(&server, &head(999_999_999_999, ""));
    assert_eq!(read(&mut stream).status, 413);
    assert_eq!(
        server.json("/v1/completions", &json!({"prompt": [1], "max_tokens": 1}))["usage"]["prompt_tokens"],
        1
    );
}

/// The head of a request for a completion.
fn head(length: usize, further: &str) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{further}\
         Content-Length: {length}\r\n\r\n"
    )
}

/// Clients write a body to its end before they read.
#[test]
fn refusals_reach_clients_that_are_still_writing() {
    let server = serve(ServeSettings { max_body_bytes: 10_000, ..settings() });
    let body = "x".repeat(1 << 20);
    for (head, status) in [(head(20 << 20, ""), 413), (head(20 << 20, "").replace("/v1/", "/"), 404)] {
        let mut stream = connect(&server, &head);
        for _ in 0..20 {
            stream.write_all(body.as_bytes()).expect("the server reads on");
        }
        assert_eq!(read(&mut stream).status, status);
    }
}

#[test]
fn texts_that_are_too_long_are_refused_before_they_are_tokenised() {
    let server = serve(settings());
    let long = "1+2=3 ".repeat(1 << 17);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/completions", json!({"prompt": ["1", long]})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}]})),
        ("/tokenize", json!({"prompt": long})),
        ("/tokenize", json!({"messages": [{"role": "user", "content": long}]})),
    ] {
        let answer = server.post(path, &body);
        let text = answer.text();
        assert_eq!(answer.status, 400, "{path}: {text}");
        assert!(text.contains("maximum context length is 512 tokens. However, your text has 786"), "{text}");
    }
}

#[test]
fn a_body_of_too_many_values_is_refused() {
    let server = serve(settings());
    let body = format!("{{\"prompt\": [1], \"max_tokens\": 1, \"unknown\": [{}0]}}", "0,".repeat(2 << 20));
    let headers = [("Content-Type", "application/json")];
    let answer = ask(server.address, "POST", "/v1/completions", &headers, body.as_bytes());
    let text = answer.text();
    assert_eq!(answer.status, 400, "{text}");
    assert!(text.contains("so many values that they would take more than 128 MiB"), "{text}");
}

/// Long bodies are parsed one at a time, and none is kept while its answer is generated.
#[test]
fn a_long_body_is_gone_when_its_generation_begins() {
    let server = serve(slow(200));
    let unknown = "x".repeat(100_000);
    let mut first = long("first", 500);
    first["unknown"] = json!(unknown);
    let running = server.later(GENERATE, first);
    server.await_metric("vllm:num_requests_running", |running| running == 1.0);
    let second = server.json("/tokenize", &json!({"prompt": "1+2", "unknown": unknown}));
    assert_eq!(second["count"], 3);
    assert_eq!(server.metric("vllm:num_requests_running", ""), 1.0, "the first is not finished");
    server.json("/abort_requests", &json!({}));
    assert_eq!(running.join().unwrap().status, 200);
}

/// There is room for four of the longest bodies, from any clients.
#[test]
fn bodies_that_do_not_end_share_one_room() {
    let server = serve(ServeSettings { max_body_bytes: 200_000, ..settings() });
    // The server asks for a body once it has room for it.
    let begin = || connect(&server, &head(200_000, "Expect: 100-continue\r\n"));
    let goes_on = |stream: &mut TcpStream, patience: Duration| {
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut part = [0; 25];
        stream.read_exact(&mut part).map(|()| assert_eq!(&part, b"HTTP/1.1 100 Continue\r\n\r\n"))
    };
    let mut halves: Vec<TcpStream> = (0..4).map(|_| begin()).collect();
    for half in &mut halves {
        goes_on(half, PATIENCE).expect("there is room");
    }
    let mut fifth = begin();
    goes_on(&mut fifth, Duration::from_millis(300)).expect_err("there is no room");
    assert_eq!(server.json("/tokenize", &json!({"prompt": "1+2"}))["count"], 3, "short ones need none");
    drop(halves.pop());
    goes_on(&mut fifth, PATIENCE).expect("there is room again");
}

#[test]
fn a_client_that_left_is_noticed_whatever_stands_behind_its_request() {
    let server = serve(slow(200));
    let body = long("left", 500).to_string();
    for behind in ["", "\r\n", "GET /health HTTP/1.1\r\n"] {
        let head = head(body.len(), "").replace("/v1/completions", GENERATE);
        let client = connect(&server, &format!("{head}{body}{behind}"));
        server.await_metric("vllm:num_requests_running", |running| running == 1.0);
        drop(client);
        server.await_metric("vllm:num_requests_running", |running| running == 0.0);
    }
}

#[test]
fn long_lists_of_tokens_become_text() {
    let server = serve(settings());
    let tokens = server.json("/tokenize", &json!({"prompt": "1+2=3"}))["tokens"].as_array().unwrap().clone();
    let many: Vec<_> = tokens.iter().cycle().take(tokens.len() * 20_000).collect();
    assert_eq!(server.json("/detokenize", &json!({"tokens": many}))["prompt"], "1+2=3".repeat(20_000));
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    let server = serve(settings());
    let long_header = format!("GET /health HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(1 << 20));
    let garbage: Vec<Vec<u8>> = vec![
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        (0..=255).cycle().take(100_000).collect(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_vec(),
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 9\r\n\r\nhello".to_vec(),
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n".to_vec(),
        long_header.into_bytes(),
    ];
    for bytes in garbage {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert_eq!(server.get("/health").status, 200);
}

/// Slow clients are disconnected: while sending the head or the body, between two requests, or while reading
/// the answer.
#[test]
fn slow_clients_are_cut_off() {
    let server = serve(ServeSettings { idle_timeout: Duration::from_millis(300), ..settings() });
    let ends = |mut stream: TcpStream, status: Option<u16>| {
        let start = Instant::now();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some(status) = status {
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
        }
    };
    ends(connect(&server, "GET /hea"), None);
    ends(connect(&server, ""), None);
    ends(connect(&server, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), Some(200));
    ends(connect(&server, &(head(100, "") + "{\"pro")), Some(408));
    // A client requests a stream and does not read it: its request is aborted once the buffers in between are
    // full.
    let body = json!({"prompt": [1, 2], "n": 1000, "max_tokens": 500, "ignore_eos": true, "stream": true, "logprobs": 5}).to_string();
    let deaf = connect(&server, &(head(body.len(), "") + &body));
    server.await_metric("vllm:num_requests_running", |running| running > 0.0);
    let start = Instant::now();
    while server.get("/load").json() != json!({"server_load": 0}) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.metric("vllm:request_success_total", "abort") > 0.0);
    drop(deaf);
    assert_eq!(server.get("/health").status, 200);
}

/// Many slow connections do not keep others from being answered.
#[test]
fn idle_connections_do_not_block_others() {
    let server =
        serve(ServeSettings { max_connections: 4, idle_timeout: Duration::from_millis(200), ..settings() });
    let idle: Vec<TcpStream> = (0..12).map(|_| connect(&server, "GET /he")).collect();
    let start = Instant::now();
    assert_eq!(server.get("/health").status, 200);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop(idle);
}

#[test]
fn what_is_too_much_is_refused_and_can_come_again() {
    let server = serve(ServeSettings { max_queued: 4, max_num_seqs: 2, ..slow(3) });
    let running = server.later(GENERATE, long("a", 100));
    let mut three = long("b", 100);
    three["sampling_params"]["n"] = json!(3);
    let waiting = server.later(GENERATE, three.clone());
    server.await_metric("vllm:num_requests_waiting", |waiting| waiting == 2.0);
    let refused = server.post(GENERATE, &long("c", 1));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("overloaded")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(server.metric("vllm:admission_rejections_total", ""), 1.0);
    let mut five = long("d", 1);
    five["sampling_params"]["n"] = json!(5);
    let never = server.post(GENERATE, &five);
    assert_eq!(never.status, 400, "{}", never.text());
    assert!(never.text().contains("takes at most 4"));
    server.json("/abort_requests", &json!({}));
    assert_eq!((running.join().unwrap().status, waiting.join().unwrap().status), (200, 200));
    assert_eq!(server.post(GENERATE, &long("c", 1)).status, 200);
}

#[test]
fn what_takes_too_long_is_given_up() {
    let server = serve(ServeSettings { request_timeout: Duration::from_secs(1), ..slow(5) });
    let answer = server.post(GENERATE, &long("slow", 500));
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (504, &json!("TimeoutError")));
    let mut streamed = long("streamed", 500);
    streamed["stream"] = json!(true);
    let events = server.post(GENERATE, &streamed).events();
    assert!(events.len() > 10);
    assert_eq!(events.last().unwrap()["error"]["code"], 504);
    server.await_metric("vllm:num_requests_running", |running| running == 0.0);
}

/// Two requests on one connection, and two sent at once.
#[test]
fn connections_are_kept() {
    let server = serve(settings());
    let request = "GET /is_paused HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut stream = connect(&server, &format!("{request}{request}"));
    let mut text = String::new();
    let mut part = [0; 512];
    while text.matches("is_paused").count() < 2 {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    stream.write_all(request.as_bytes()).unwrap();
    let count = stream.read(&mut part).unwrap();
    assert!(String::from_utf8_lossy(&part[..count]).starts_with("HTTP/1.1 200"));
}
