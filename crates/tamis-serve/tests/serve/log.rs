//! The line of each request.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tamis_serve::{RequestLine, Usage};

use crate::harness::{PATIENCE, serve_with_log, slow};

#[test]
fn every_request_is_logged_when_it_has_been_answered() {
    let lines: Arc<Mutex<Vec<RequestLine>>> = Arc::default();
    let kept = lines.clone();
    let keep = move |line: &RequestLine| {
        if line.path != "/metrics" {
            kept.lock().unwrap().push(line.clone());
        }
    };
    let server = serve_with_log(&slow(5), Some(Arc::new(keep)));
    let next = || {
        let began = Instant::now();
        loop {
            let taken = lines.lock().unwrap().pop();
            match taken {
                Some(line) => return (line.method, line.path, line.status, line.usage),
                None => assert!(began.elapsed() < PATIENCE, "there is no line"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let line = |method: &str, path: &str, status, usage| (method.to_owned(), path.to_owned(), status, usage);
    let request = |more: serde_json::Value| {
        let mut body = json!({"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let of = |completion_tokens| Some(Usage { prompt_tokens: 3, completion_tokens });

    server.json("/v1/completions", &request(json!({"n": 2})));
    assert_eq!(next(), line("POST", "/v1/completions", 200, of(8)));
    assert_eq!(server.post("/v1/completions", &request(json!({"stream": true}))).status, 200);
    assert_eq!(next(), line("POST", "/v1/completions", 200, of(4)));
    assert_eq!(server.post("/v1/completions?key=1", &json!({"prompt": 1})).status, 400);
    assert_eq!(next(), line("POST", "/v1/completions", 400, None));
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(next(), line("GET", "/health", 200, None));
    assert_eq!(server.get("/nope").status, 404);
    assert_eq!(next(), line("GET", "/nope", 404, None));

    // The client leaves, during a stream and before an answer.
    for is_streamed in [true, false] {
        let body = request(json!({"max_tokens": 400, "stream": is_streamed})).to_string();
        let mut client = TcpStream::connect(server.address).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        write!(client, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        if is_streamed {
            let mut begun = Vec::new();
            while !String::from_utf8_lossy(&begun).contains("data: ") {
                let mut part = [0; 1024];
                let count = client.read(&mut part).unwrap();
                begun.extend_from_slice(&part[..count]);
            }
        } else {
            server.await_metric("vllm:num_requests_running", |running| running > 0.0);
        }
        drop(client);
        let (_, _, status, usage) = next();
        match usage {
            Some(usage) => {
                assert!(
                    is_streamed && status == 200 && (1..400).contains(&usage.completion_tokens),
                    "{usage:?}"
                );
            }
            None => assert!(!is_streamed && status == 499, "{status}"),
        }
    }
}
