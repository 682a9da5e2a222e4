//! Fleets of servers over real connections: fakes of vLLM 0.32 and 0.33, of SGLang and of OpenAI's interface,
//! and a proxy that spoils answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod others;
mod samples;
mod transfers;
mod weights;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use support::fake_vllm::{Behaviour, FakeVllm, Release, VOCABULARY, logprob};
use support::http::{Delivery, Handler, Reply, TestServer};
use support::proxy::{FaultProxy, Spoiling};
use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::random::{Key, Purpose};
use tamis_rollout::clock::{Bell, SystemClock};
use tamis_rollout::fleet::{Fleet, FleetMessage, FleetSettings};
use tamis_rollout::http::{Address, HttpClient, HttpSettings, Transport};
use tamis_rollout::server::{
    HttpServer, OpenAi, OtherLogprobs, PROBE_FILE, Probe, Protocol, Server, ServerSettings, Sglang, Vllm,
};
use tamis_rollout::wire::{Call, FaultClass};
use tamis_rollout::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Publication, Sample,
    SampleId, SamplePurpose, SampleRequest, Sampling, Wait, Weights,
};
use tamis_text::tokenizer::Tokenizer;

fn server_settings(name: &str) -> ServerSettings {
    ServerSettings {
        name: name.to_owned(),
        model: None,
        vocabulary: VOCABULARY as usize,
        end_token_ids: vec![1],
        image_token_id: None,
        extra: Map::new(),
        answer_timeout: Duration::from_secs(2),
        check_timeout: Duration::from_secs(5),
        publish_timeout: Duration::from_secs(5),
        pause_grace: Duration::from_secs(1),
        sleep_level: 0,
        nonce: "run7".to_owned(),
        seeds: true,
        other_logprobs: OtherLogprobs::Refuse,
        seen_as: None,
    }
}

fn fleet_settings() -> FleetSettings {
    FleetSettings {
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(200),
        check_every: Duration::from_millis(100),
        start_timeout: Duration::from_secs(3),
        give_up_after: Some(Duration::from_secs(5)),
        ..FleetSettings::default()
    }
}

type Said = Arc<Mutex<Vec<FleetMessage>>>;

fn connect<P: Protocol + Default + 'static>(
    urls: &[String],
    key: Option<&str>,
    fleet: FleetSettings,
    change: impl Fn(&mut ServerSettings),
) -> Result<(Fleet, Said), GeneratorError> {
    connect_with::<P>(urls, key, fleet, change, |_, _, server| server)
}

/// The same, of servers that may be sent weights.
fn connect_with<P: Protocol + Default + 'static>(
    urls: &[String],
    key: Option<&str>,
    fleet: FleetSettings,
    change: impl Fn(&mut ServerSettings),
    sends: impl Fn(&mut HttpClient, &Bell, HttpServer<P>) -> HttpServer<P>,
) -> Result<(Fleet, Said), GeneratorError> {
    let bell = Bell::default();
    let mut client = HttpClient::start(HttpSettings::default(), false).expect("a client");
    let servers = urls
        .iter()
        .map(|url| {
            let address = Address::parse(url).expect("an address");
            let mut settings = server_settings(url);
            change(&mut settings);
            let line = client.line(address, key, bell.clone()).expect("a line");
            let tokenizer = Tokenizer::characters("abcdefghijklmn").expect("a tokenizer");
            let server = HttpServer::<P>::new(Box::new(line), Arc::new(settings), tokenizer);
            Box::new(sends(&mut client, &bell, server)) as Box<dyn Server>
        })
        .collect();
    let messages = Said::default();
    let hear = Arc::clone(&messages);
    let say = Box::new(move |message| hear.lock().unwrap().push(message));
    let fleet =
        Fleet::connect(servers, fleet, Box::new(SystemClock), bell, Arc::new(AtomicBool::new(false)), say)?;
    Ok((fleet, messages))
}

/// A server like vLLM and a fleet of only it.
fn vllm(behaviour: Behaviour, change: impl Fn(&mut ServerSettings)) -> (FakeVllm, Fleet) {
    let vllm = FakeVllm::start(behaviour);
    let (fleet, _) = connect::<Vllm>(&[vllm.server.url()], None, fleet_settings(), change).expect("answers");
    (vllm, fleet)
}

/// Writes a probe beside the weights of that name: the fake server's log-probabilities under them.
fn write_probe(weights: &str, folder: &Path) {
    let logprobs = vec![logprob(weights, 1), logprob(weights, 2)];
    let probe = Probe { token_ids: vec![2, 3, 4], logprobs, tolerance: 0.01, is_rounded: false };
    std::fs::write(folder.join(PROBE_FILE), probe.to_json()).expect("written");
}

fn sampling() -> Sampling {
    Sampling::plain(8)
}

fn request_with(group: u64, member: u32, sampling: &Sampling) -> SampleRequest {
    SampleRequest {
        prompt: None,
        id: SampleId { purpose: SamplePurpose::Rollout, group, member, turn: 0, attempt: 0 },
        prompt_token_ids: Arc::from([2, 3, 4]),
        images: Arc::default(),
        key: Key::new(7, Purpose::Rollout).with(group).with(u64::from(member)),
        sampling: Arc::new(sampling.clone()),
    }
}

fn request(group: u64, member: u32) -> SampleRequest {
    request_with(group, member, &sampling())
}

fn finish(fleet: &mut Fleet) -> Vec<GeneratorEvent> {
    let mut all = Vec::new();
    loop {
        let events = fleet.next(Wait::Forever).expect("goes on");
        if events.is_empty() {
            return all;
        }
        all.extend(events);
    }
}

fn only_sample(fleet: &mut Fleet, request: SampleRequest) -> Sample {
    fleet.submit(request).expect("taken");
    sampled(&finish(fleet))
}

/// The only event: a sample.
fn sampled(events: &[GeneratorEvent]) -> Sample {
    let [GeneratorEvent::Sampled { sample, .. }] = events else { panic!("{events:?}") };
    sample.clone()
}

/// The reason of a request that fails permanently.
fn refused(fleet: &mut Fleet, request: SampleRequest) -> String {
    fleet.submit(request).expect("taken");
    let events = finish(fleet);
    let [GeneratorEvent::Failed { kind: FailureKind::Permanent, reason, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    reason.clone()
}

/// The error that ends the fleet, before which nothing happens.
fn lost(fleet: &mut Fleet) -> String {
    loop {
        match fleet.next(Wait::Forever) {
            Ok(events) => assert!(events.is_empty(), "{events:?}"),
            Err(error) => return error.to_string(),
        }
    }
}

/// Checks that nothing happens for this many milliseconds.
fn nothing_for(fleet: &mut Fleet, millis: u64) {
    let until = Instant::now() + Duration::from_millis(millis);
    assert_eq!(fleet.next(Wait::Until(until)).expect("goes on"), []);
}

/// Samples are by these weights.
fn assert_by(weights: &str, sample: &Sample) {
    assert_eq!(sample.logprobs, expected_logprobs(weights, sample.token_ids.len()));
}

/// A folder of weights as a server reads one; the fake's model is a function of its configuration's
/// text.
fn folder(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), text).expect("written");
    std::fs::write(folder.path().join("model.safetensors"), "").expect("written");
    folder
}

fn publication(version: u64, folder: &Path) -> Publication {
    Publication { version: PolicyVersion(version), weights: Weights::Folder(folder.to_owned()) }
}

fn publish(fleet: &mut Fleet, version: u64, folder: &Path) {
    fleet.publish(&publication(version, folder), InFlight::Wait).expect("begun");
    let events = fleet.next(Wait::Forever).expect("goes on");
    assert_eq!(events, [GeneratorEvent::Published { version: PolicyVersion(version) }]);
}

fn expected_logprobs(weights: &str, length: usize) -> Vec<f32> {
    (0..length).map(|place| logprob(weights, place) as f32).collect()
}
