//! Spans go to a collector as OTLP over HTTP, and a missing collector stops nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, UNIX_EPOCH};

use tamis_loggers::otlp::OtlpLogger;
use tamis_run::log::details::StepDetails;
use tamis_run::log::progress::Console;
use tamis_run::log::{Logger, RunEnding};
use tamis_run::metrics::timings::{GENERATION, STEP, Span};

/// The output of a console.
#[derive(Clone)]
struct Screen(Sender<Vec<u8>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn details() -> StepDetails {
    let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
    let spans = vec![
        Span { stage: STEP, began: at(100), time: Duration::from_secs(5) },
        Span { stage: GENERATION, began: at(101), time: Duration::from_millis(2500) },
    ];
    StepDetails { spans, ..StepDetails::default() }
}

/// Head and body of one request, which is answered with 200.
fn take_request(connection: TcpStream) -> (String, serde_json::Value) {
    let mut reader = BufReader::new(connection);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        if line.trim().is_empty() {
            break;
        }
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a length");
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let mut connection = reader.into_inner();
    connection
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        .expect("answered");
    (head, serde_json::from_slice(&body).expect("JSON"))
}

#[test]
fn a_step_is_a_trace_with_its_stages_below_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().expect("address"));
    let receiver = std::thread::spawn(move || take_request(listener.accept().expect("a connection").0));
    let (screen, _said) = channel();
    let mut logger = OtlpLogger::start(&endpoint, "tiny", Console::plain(Box::new(Screen(screen)), None, 0));
    logger.log_details(7, &details()).expect("sent");
    let (head, body) = receiver.join().expect("received");
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/json\r\n"), "{head}");
    let of_run = &body["resourceSpans"][0];
    assert_eq!(of_run["resource"]["attributes"][1]["value"]["stringValue"], "tiny");
    let spans = of_run["scopeSpans"][0]["spans"].as_array().expect("spans");
    assert_eq!(spans.len(), 2);
    let (step, generation) = (&spans[0], &spans[1]);
    assert_eq!((&step["name"], &generation["name"]), (&"step".into(), &"gen".into()));
    let trace = step["traceId"].as_str().expect("an id");
    assert!(trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit()), "{trace}");
    assert_eq!(generation["traceId"], trace);
    assert_eq!(step["spanId"].as_str().map(str::len), Some(16));
    assert_eq!(step["parentSpanId"], "");
    assert_eq!(generation["parentSpanId"], step["spanId"]);
    assert_ne!(generation["spanId"], step["spanId"]);
    assert_eq!(generation["startTimeUnixNano"], "101000000000");
    assert_eq!(generation["endTimeUnixNano"], "103500000000");
    assert_eq!(generation["attributes"][0]["value"]["intValue"], "7");
    logger.begin_close(RunEnding::Finished);
    logger.finish_close();
}

#[test]
fn a_collector_that_is_not_there_is_told_once() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address");
    let (screen, said) = channel();
    let console = Console::plain(Box::new(Screen(screen)), None, 0);
    let mut logger = OtlpLogger::start(&format!("http://{free}/v1/traces"), "tiny", console);
    for step in 1..=3 {
        logger.log_details(step, &details()).expect("nothing fails");
    }
    logger.begin_close(RunEnding::Finished);
    logger.finish_close();
    drop(logger);
    let text = String::from_utf8(said.try_iter().flatten().collect()).expect("text");
    assert_eq!(text.matches("loses metrics").count(), 1, "{text}");
    assert!(
        text.contains(&format!("the collector at http://{free}/v1/traces does not accept spans")),
        "{text}"
    );
    assert!(text.contains("lost 3 of 3 records"), "{text}");
}
