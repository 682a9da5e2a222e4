//! The spans of a whole run at a collector, and collectors that accept none.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tamis::{Ended, Folder, Left};

/// What a collector does with a connection.
#[derive(Debug, Clone, Copy)]
enum Collector {
    Takes,
    Refuses,
    /// Says nothing, ever.
    Hangs,
    HangsUp,
}

fn take(connection: TcpStream) -> (TcpStream, Value) {
    let mut reader = BufReader::new(connection);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        if line.trim().is_empty() {
            break;
        }
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    (reader.into_inner(), serde_json::from_slice(&body).expect("JSON"))
}

impl Collector {
    /// Answers connections as long as the test program lives. Returns the address and what was received.
    fn start(self) -> (String, Receiver<Value>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().expect("address"));
        let (taken, received) = channel();
        std::thread::spawn(move || self.serve(&listener, &taken));
        (endpoint, received)
    }

    fn serve(self, listener: &TcpListener, taken: &Sender<Value>) {
        let mut held = Vec::new();
        for connection in listener.incoming().flatten() {
            let status = match self {
                Self::Takes => "200 OK",
                Self::Refuses => "503 Service Unavailable",
                Self::Hangs => {
                    held.push(connection);
                    continue;
                }
                Self::HangsUp => continue,
            };
            let (mut connection, body) = take(connection);
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}");
            // The run may have ended meanwhile.
            let _ = connection.write_all(answer.as_bytes());
            let _ = taken.send(body);
        }
    }
}

fn train(folder: &Folder, name: &str, loggers: &str) -> Ended {
    folder
        .tamis(&["train", "tiny.yaml", &format!("run.name={name}"), &format!("run.loggers={loggers}")])
        .succeeds()
}

fn nanoseconds(span: &Value, name: &str) -> i128 {
    span[name].as_str().expect("a text").parse().expect("a number")
}

#[test]
fn every_step_of_a_run_is_a_trace() {
    let folder = Folder::tiny();
    let (endpoint, received) = Collector::Takes.start();
    train(&folder, "traced", &format!("[console, jsonl, {{kind: otlp, endpoint: '{endpoint}'}}]"));
    let metrics = folder.read("runs/traced/metrics.jsonl");
    let rows: Vec<Value> = metrics.lines().map(|row| serde_json::from_str(row).expect("a row")).collect();
    let (mut traces, mut steps) = (BTreeSet::new(), BTreeSet::new());
    for body in received.try_iter() {
        let of_run = &body["resourceSpans"][0];
        assert_eq!(of_run["resource"]["attributes"][1]["value"]["stringValue"], "traced");
        let spans = of_run["scopeSpans"][0]["spans"].as_array().expect("spans");
        let root = spans.iter().find(|span| span["name"] == "step").expect("the step");
        let step: u64 =
            root["attributes"][0]["value"]["intValue"].as_str().expect("a text").parse().expect("a step");
        assert!(traces.insert(root["traceId"].to_string()) && steps.insert(step), "step {step} comes twice");
        let row = rows.iter().find(|row| row["step"] == step).expect("a row of the step");
        let [began, ended] = ["startTimeUnixNano", "endTimeUnixNano"].map(|name| nanoseconds(root, name));
        let mut stages = BTreeMap::new();
        for span in spans {
            let name = span["name"].as_str().expect("a name");
            let [from, to] = ["startTimeUnixNano", "endTimeUnixNano"].map(|name| nanoseconds(span, name));
            *stages.entry(name).or_insert(0) += to - from;
            if name != "step" {
                assert_eq!((&span["traceId"], &span["parentSpanId"]), (&root["traceId"], &root["spanId"]));
                // Wall clocks may be adjusted meanwhile, by little.
                let slack = 50_000_000;
                assert!(began - slack <= from && to <= ended + slack, "step {step}: {name} {span} {root}");
            }
        }
        for (name, time) in &stages {
            let seconds = row[format!("timing_s/{name}")].as_f64().expect("a time of the stage");
            assert!((*time as f64 / 1e9 - seconds).abs() < 1e-6, "step {step}: {name} {time} {seconds}");
        }
        assert!(
            ["gen", "update_actor"].iter().all(|stage| stages.contains_key(stage)),
            "step {step}: {stages:?}"
        );
        assert_eq!(stages.contains_key("testing"), step % 2 == 0, "step {step}: {stages:?}");
    }
    assert_eq!(steps, (1..=6).collect());
}

#[test]
fn collectors_that_take_nothing_stop_nothing() {
    let folder = Folder::tiny();
    train(&folder, "plain", "[console, jsonl]");
    let plain = Left::by(&folder.join("runs/plain"));
    for (collector, why) in [
        (Collector::Refuses, "503"),
        (Collector::HangsUp, "does not accept spans"),
        (Collector::Hangs, "timeout"),
    ] {
        let (endpoint, _received) = collector.start();
        let name = format!("{collector:?}").to_lowercase();
        let began = Instant::now();
        let ended =
            train(&folder, &name, &format!("[console, jsonl, {{kind: otlp, endpoint: '{endpoint}'}}]"));
        assert!(began.elapsed() < Duration::from_secs(90), "{:?}", began.elapsed());
        let told: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("`otlp`")).collect();
        let [first, last] = told[..] else { panic!("{}", ended.shown()) };
        assert!(first.contains(&format!("the collector at {endpoint}")) && first.contains(why), "{first}");
        assert!(first.contains("the run continues without it"), "{first}");
        assert!(last.contains("lost 6 of 6 records"), "{last}");
        Left::by(&folder.join(&format!("runs/{name}"))).assert_same(&plain);
    }
}
