//! Clients that are slow, large, many or mad; the others are answered all the same.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use tamis_rollout::serve::ServeSettings;

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
    // In chunks, whose sum nobody tells.
    let mut stream = connect(
        &server,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    for _ in 0..100 {
        let _ = stream.write_all(format!("400\r\n{}\r\n", "y".repeat(0x400)).as_bytes());
    }
    assert_eq!(read(&mut stream).status, 413);
    // Announced, and never sent.
    let mut stream = connect(
        &server,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999999999999\r\n\r\n",
    );
    assert_eq!(read(&mut stream).status, 413);
    assert_eq!(
        server.json("/v1/completions", &json!({"prompt": [1], "max_tokens": 1}))["usage"]["prompt_tokens"],
        1
    );
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

/// Whoever dawdles is cut off: with the head, with the body, between two requests, or in reading the answer.
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
    let half = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"pro";
    ends(connect(&server, half), Some(408));
    // One that asks for a stream and reads nothing of it: its request is given up once the buffers in between
    // are full.
    let body = json!({"prompt": [1, 2], "n": 1000, "max_tokens": 500, "ignore_eos": true, "stream": true, "logprobs": 5}).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ";
    let deaf = connect(&server, &format!("{head}{}\r\n\r\n{body}", body.len()));
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
    assert!(never.text().contains("takes 4 at most"));
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
