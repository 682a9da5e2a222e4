//! Client cost of 10,000 samples in flight: memory and processor time of a fleet against a fast fake server
//! in a process of its own.
//!
//! Every connection is a file: `ulimit -n 20000; cargo run --release -p tamis-bench --example
//! fleet_in_flight [SAMPLES] [WAVES]`
#![allow(clippy::print_stdout, reason = "a program whose result is printed")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot go on ends")]

#[path = "../../tamis-rollout/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Map;
use support::fake_vllm::{Behaviour, FakeVllm, VOCABULARY};
use tamis_core::random::{Key, Purpose};
use tamis_rollout::clock::{Bell, SystemClock};
use tamis_rollout::fleet::{Fleet, FleetSettings};
use tamis_rollout::http::{Address, HttpClient, HttpSettings};
use tamis_rollout::server::{OtherLogprobs, ServerSettings, VllmServer};
use tamis_rollout::{Generator, GeneratorEvent, SampleId, SamplePurpose, SampleRequest, Sampling, Wait};
use tamis_text::tokenizer::Tokenizer;

/// Latency of a sample at the server: long enough that all are in flight at once.
const DELAY: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "server") {
        let vllm = FakeVllm::start(Behaviour { delay: DELAY, ..Behaviour::default() });
        println!("{}", vllm.server.url());
        // Ends with the process that started it.
        std::io::stdin().lines().for_each(drop);
        return;
    }
    let number = |place: usize, default: u64| {
        arguments.get(place).map_or(default, |text| text.parse().expect("a number"))
    };
    let (num, waves) = (number(0, 10_000), number(1, 3));
    let mut server = Command::new(std::env::current_exe().unwrap())
        .arg("server")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let mut fleet = connect(url.trim(), num as usize);
    let sampling = Arc::new(Sampling::plain(60));
    let begun = Instant::now();
    let before = processor_seconds();
    let mut most = 0;
    let (mut submitted, mut ended) = (0, 0);
    let submit = |fleet: &mut Fleet, place: u64| {
        let id = SampleId {
            purpose: SamplePurpose::Rollout,
            group: place / 8,
            member: (place % 8) as u32,
            turn: 0,
            attempt: 0,
        };
        let key = Key::new(1, Purpose::Rollout).with(place);
        let prompt_token_ids = Arc::from([2, 3, 4]);
        fleet
            .submit(SampleRequest {
                prompt: None,
                id,
                prompt_token_ids,
                images: Arc::default(),
                key,
                sampling: Arc::clone(&sampling),
            })
            .unwrap();
    };
    while ended < num * waves {
        while submitted < num * waves && submitted - ended < num {
            submit(&mut fleet, submitted);
            submitted += 1;
        }
        most = most.max(fleet.load().in_flight);
        for event in fleet.next(Wait::Forever).unwrap() {
            assert!(matches!(event, GeneratorEvent::Sampled { .. }), "{event:?}");
            ended += 1;
        }
    }
    let (wall, processor) = (begun.elapsed().as_secs_f64(), processor_seconds() - before);
    println!("{most} in flight at most, {ended} samples in {wall:.1} s");
    println!("processor time {processor:.1} s: {:.2} of a core", processor / wall);
    println!("memory at most {} MB", peak_memory_mb());
    let counts = fleet.fault_counts();
    println!("faults: {:?}", counts.samples);
    drop(server.stdin.take());
    let _ = server.wait();
}

fn connect(url: &str, max_in_flight: usize) -> Fleet {
    let bell = Bell::default();
    let mut client = HttpClient::start(HttpSettings::default(), false).unwrap();
    let settings = ServerSettings {
        name: url.to_owned(),
        model: None,
        vocabulary: VOCABULARY as usize,
        end_token_ids: vec![1],
        image_token_id: None,
        extra: Map::new(),
        answer_timeout: Duration::from_secs(120),
        check_timeout: Duration::from_secs(60),
        publish_timeout: Duration::from_secs(60),
        pause_grace: Duration::ZERO,
        sleep_level: 0,
        nonce: "bench".to_owned(),
        seeds: true,
        other_logprobs: OtherLogprobs::Refuse,
        seen_as: None,
    };
    let line = client.line(Address::parse(url).unwrap(), None, bell.clone()).unwrap();
    let tokenizer = Tokenizer::characters("abcdefghijklmn").unwrap();
    let server = VllmServer::new(Box::new(line), Arc::new(settings), tokenizer);
    let settings = FleetSettings { max_in_flight: Some(max_in_flight), ..FleetSettings::default() };
    let say = Box::new(|message| println!("{message}"));
    Fleet::connect(vec![Box::new(server)], settings, Box::new(SystemClock), bell, Arc::default(), say)
        .unwrap()
}

/// Processor time of this process, all threads.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // After the name in brackets: state is the third field, utime and stime the 14th and 15th, in hundredths.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}
