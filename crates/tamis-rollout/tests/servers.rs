//! Fleets of servers over real connections: fakes of vLLM 0.32 and 0.33, of SGLang and of OpenAI's interface,
//! and a proxy that spoils answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use support::fake_vllm::{Behaviour, FakeVllm, Release, VOCABULARY, logprob};
use support::http::{Delivery, Handler, Reply, TestServer};
use support::proxy::{ALL, FaultProxy, Spoiling};
use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::random::{Key, Purpose};
use tamis_rollout::clock::{Bell, SystemClock};
use tamis_rollout::fleet::{Fleet, FleetMessage, FleetSettings};
use tamis_rollout::http::{Address, HttpClient, HttpSettings, Transport};
use tamis_rollout::server::{
    HttpServer, OpenAi, OtherLogprobs, Probe, Protocol, Server, ServerSettings, Sglang, Vllm,
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
        extra: Map::new(),
        answer_timeout: Duration::from_secs(2),
        check_timeout: Duration::from_secs(5),
        publish_timeout: Duration::from_secs(5),
        pause_grace: Duration::from_secs(1),
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
            Box::new(HttpServer::<P>::new(Box::new(line), Arc::new(settings), tokenizer)) as Box<dyn Server>
        })
        .collect();
    let said = Said::default();
    let hear = Arc::clone(&said);
    let say = Box::new(move |message| hear.lock().unwrap().push(message));
    let fleet =
        Fleet::connect(servers, fleet, Box::new(SystemClock), bell, Arc::new(AtomicBool::new(false)), say)?;
    Ok((fleet, said))
}

/// A server like vLLM and a fleet of it alone.
fn vllm(behaviour: Behaviour, change: impl Fn(&mut ServerSettings)) -> (FakeVllm, Fleet) {
    let vllm = FakeVllm::start(behaviour);
    let (fleet, _) = connect::<Vllm>(&[vllm.server.url()], None, fleet_settings(), change).expect("answers");
    (vllm, fleet)
}

/// Two servers behind proxies that spoil a fifth of their answers in these ways, with the proxies' addresses.
fn spoiled(seed: u64, ways: &'static [Spoiling]) -> ([FakeVllm; 2], Vec<FaultProxy>, Vec<String>) {
    let servers = [FakeVllm::start(Behaviour::default()), FakeVllm::start(Behaviour::default())];
    let proxies: Vec<FaultProxy> = servers
        .iter()
        .enumerate()
        .map(|(place, vllm)| FaultProxy::start(vllm.server.address, seed + place as u64, 200, ways))
        .collect();
    let urls = proxies.iter().map(|proxy| proxy.server.url()).collect();
    (servers, proxies, urls)
}

/// What the fake server says of a text under weights of that name, put beside them.
fn write_probe(weights: &str, folder: &Path) {
    let logprobs = vec![logprob(weights, 1), logprob(weights, 2)];
    Probe { token_ids: vec![2, 3, 4], logprobs, tolerance: 0.01 }.write(folder).expect("written");
}

/// So many log-probabilities, each as far from what a server says that keeps its first weights.
fn write_probe_off(difference: f64, num: usize, folder: &Path) {
    let logprobs = (1..=num).map(|place| logprob("initial", place) - difference).collect();
    let token_ids = (2..).take(num + 1).collect();
    Probe { token_ids, logprobs, tolerance: 0.05 }.write(folder).expect("written");
}

fn sampling() -> Sampling {
    Sampling::plain(8)
}

fn request_with(group: u64, member: u32, sampling: &Sampling) -> SampleRequest {
    SampleRequest {
        id: SampleId { purpose: SamplePurpose::Rollout, group, member, turn: 0, attempt: 0 },
        prompt_token_ids: Arc::from([2, 3, 4]),
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
    match finish(fleet).as_slice() {
        [GeneratorEvent::Sampled { sample, .. }] => sample.clone(),
        other => panic!("{other:?}"),
    }
}

/// A folder of weights as a server reads one; what the fake makes of it is a function of its configuration's
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

/// What is a folder here is another one there.
#[test]
fn a_server_that_sees_the_folder_elsewhere() {
    let vllm = FakeVllm::start(Behaviour::default());
    let (here, there) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    for (place, text) in [(&here, "here"), (&there, "there")] {
        let folder = place.path().join("run/version_1");
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("config.json"), text).expect("written");
        std::fs::write(folder.join("model.safetensors"), "").expect("written");
    }
    let seen_as = (here.path().to_owned(), there.path().display().to_string());
    let urls = [vllm.server.url()];
    let (mut fleet, _) =
        connect::<Vllm>(&urls, None, fleet_settings(), |settings| settings.seen_as = Some(seen_as.clone()))
            .expect("answers");
    publish(&mut fleet, 1, &here.path().join("run/version_1"));
    assert_eq!(vllm.state.lock().unwrap().weights, "there");
}

fn expected_logprobs(weights: &str, length: usize) -> Vec<f32> {
    (0..length).map(|place| logprob(weights, place) as f32).collect()
}

#[test]
fn a_sample_and_new_weights() {
    let (vllm, mut fleet) = vllm(Behaviour::default(), |_| {});
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_eq!(sample.logprobs, expected_logprobs("initial", sample.token_ids.len()));
    assert_eq!(sample.versions[0].version, PolicyVersion(0));
    vllm.state.lock().unwrap().calls.clear();

    let weights = folder("first");
    write_probe("first", weights.path());
    publish(&mut fleet, 1, weights.path());
    let calls: Vec<String> = vllm.state.lock().unwrap().calls.clone();
    let order: Vec<&str> = calls
        .iter()
        .map(String::as_str)
        .filter(|call| !["/health", "/v1/models", "/weight_info", "/metrics"].contains(call))
        .collect();
    // The first reset is in vain, and is done again.
    let reset = "/reset_prefix_cache?reset_running_requests=true";
    assert_eq!(
        order,
        ["/pause?mode=wait", "/collective_rpc", reset, reset, "/update_weight_version", "/resume"]
    );
    assert_eq!(vllm.state.lock().unwrap().label, "run7-v1");

    for member in 0..20 {
        let sample = only_sample(&mut fleet, request(1, member));
        let length = sample.token_ids.len();
        assert_eq!(sample.logprobs, expected_logprobs("first", length));
        let [span] = &sample.versions[..] else { panic!("{:?}", sample.versions) };
        assert_eq!((span.version, span.start, span.end), (PolicyVersion(1), 0, length as u32));
        match sample.finish_reason {
            FinishReason::Stop => assert_eq!((length, sample.text.len(), sample.token_ids[3]), (4, 3, 1)),
            FinishReason::Length => assert_eq!((length, sample.text.len()), (8, 8)),
        }
    }
    assert!(fleet.fault_counts().samples.is_empty());
}

#[test]
fn a_fifth_of_the_answers_spoiled_and_every_request_ends_once() {
    /// What each way of spoiling is called; slow and doubled answers are no faults.
    const CLASSES: [(Spoiling, FaultClass); 9] = [
        (Spoiling::ServerError, FaultClass::ServerError),
        (Spoiling::Reset, FaultClass::Reset),
        (Spoiling::Hang, FaultClass::TimedOut),
        (Spoiling::HalfBody, FaultClass::HalfBody),
        (Spoiling::WrongJson, FaultClass::BadJson),
        (Spoiling::WrongTokenCount, FaultClass::TokenCount),
        (Spoiling::NanLogprob, FaultClass::LogprobOutOfRange),
        (Spoiling::Mixed, FaultClass::WrongRequest),
        (Spoiling::Busy, FaultClass::Busy),
    ];
    const WAYS: [Spoiling; 10] = [
        Spoiling::ServerError,
        Spoiling::Reset,
        Spoiling::Hang,
        Spoiling::HalfBody,
        Spoiling::WrongJson,
        Spoiling::WrongTokenCount,
        Spoiling::NanLogprob,
        Spoiling::Mixed,
        Spoiling::Busy,
        Spoiling::Trickle,
    ];
    let (servers, proxies, urls) = spoiled(0, &WAYS);
    // Enough for everything but what hangs, on a busy machine too.
    let (mut fleet, _) = connect::<Vllm>(&urls, None, fleet_settings(), |settings| {
        settings.answer_timeout = Duration::from_secs(4);
    })
    .expect("answer");
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    let num = 600;
    for group in 0..num / 8 {
        for member in 0..8 {
            fleet.submit(request(group, member)).expect("taken");
        }
    }
    let mut ends = BTreeSet::new();
    let mut failed = 0;
    for event in finish(&mut fleet) {
        let id = match event {
            GeneratorEvent::Sampled { id, sample } => {
                assert_eq!(sample.logprobs, expected_logprobs("first", sample.token_ids.len()));
                id
            }
            GeneratorEvent::Failed { id, kind, .. } => {
                assert_eq!(kind, FailureKind::Transient);
                failed += 1;
                id
            }
            other => panic!("{other:?}"),
        };
        assert!(ends.insert(id), "{id} twice");
    }
    assert_eq!(ends.len() as u64, num);
    assert!(failed <= 3, "{failed} failed five times over");
    let mut spoiled = BTreeMap::<Spoiling, u64>::new();
    for proxy in &proxies {
        for (way, num) in proxy.spoiled.lock().unwrap().iter() {
            *spoiled.entry(*way).or_default() += num;
        }
    }
    assert_eq!(spoiled.len(), WAYS.len(), "{spoiled:?}");
    let counted = &fleet.fault_counts().samples;
    let expected: BTreeMap<FaultClass, u64> =
        CLASSES.iter().map(|(way, class)| (*class, spoiled[way])).collect();
    assert_eq!(*counted, expected, "{spoiled:?}");
    let asked: u64 = servers.iter().map(|vllm| vllm.state.lock().unwrap().num_samples).sum();
    assert!(asked >= num);
}

#[test]
fn every_way_of_spoiling_at_once_and_every_request_ends_once() {
    let (_servers, _proxies, urls) = spoiled(10, &ALL);
    let settings = FleetSettings { max_attempts: 50, max_in_flight: Some(16), ..fleet_settings() };
    let (mut fleet, said) = connect::<Vllm>(&urls, None, settings, |settings| {
        settings.answer_timeout = Duration::from_millis(500);
    })
    .expect("answer");
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    for group in 0..40 {
        for member in 0..8 {
            fleet.submit(request(group, member)).expect("taken");
        }
    }
    let mut ends = BTreeSet::new();
    for event in finish(&mut fleet) {
        let GeneratorEvent::Sampled { id, sample } = event else { panic!("{event:?}") };
        assert!(ends.insert(id), "{id} twice");
        assert_eq!(sample.logprobs, expected_logprobs("first", sample.token_ids.len()));
    }
    assert_eq!(ends.len(), 320);
    // Weights that are not the run's take a server out until it was given the right ones.
    assert!(fleet.fault_counts().samples.contains_key(&FaultClass::StaleWeights));
    let lost = |message: &FleetMessage| matches!(message, FleetMessage::Lost { fault, .. } if fault.class == FaultClass::StaleWeights);
    assert!(said.lock().unwrap().iter().any(lost));
}

#[test]
fn a_server_back_with_old_weights_is_given_the_current_ones_first() {
    let vllm = FakeVllm::start(Behaviour::default());
    let (address, url) = (vllm.server.address, vllm.server.url());
    let (mut fleet, said) = connect::<Vllm>(&[url], None, fleet_settings(), |_| {}).expect("answers");
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    only_sample(&mut fleet, request(0, 0));
    drop(vllm);
    for member in 0..30 {
        fleet.submit(request(1, member)).expect("taken");
    }
    assert!(fleet.next(Wait::Until(Instant::now() + Duration::from_millis(300))).expect("waits").is_empty());
    let again = FakeVllm::start_at(Some(address), Behaviour::default());
    let events = finish(&mut fleet);
    assert_eq!(events.len(), 30);
    for event in events {
        let GeneratorEvent::Sampled { sample, .. } = event else { panic!("{event:?}") };
        assert_eq!(sample.logprobs, expected_logprobs("first", sample.token_ids.len()));
        assert_eq!(sample.versions[0].version, PolicyVersion(1));
    }
    assert_eq!(again.state.lock().unwrap().label, "run7-v1");
    let said = said.lock().unwrap();
    assert!(said.iter().any(|message| matches!(message, FleetMessage::Waiting { .. })), "{said:?}");
    assert!(said.iter().any(|message| matches!(message, FleetMessage::Back { .. })), "{said:?}");
}

#[test]
fn weights_that_a_probe_disproves_are_not_used() {
    let vllm = FakeVllm::start(Behaviour { keeps_weights: true, ..Behaviour::default() });
    let settings = FleetSettings { give_up_after: Some(Duration::from_millis(300)), ..fleet_settings() };
    let (mut fleet, _) = connect::<Vllm>(&[vllm.server.url()], None, settings, |_| {}).expect("answers");
    let weights = folder("first");
    write_probe("first", weights.path());
    fleet.publish(&publication(1, weights.path()), InFlight::Wait).expect("begun");
    let error = loop {
        match fleet.next(Wait::Forever) {
            Ok(events) => assert!(events.is_empty(), "{events:?}"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("probe: version 1 was not loaded"), "{error}");
    assert!(error.contains("tamis export --untie"), "{error}");
    assert!(fleet.fault_counts().servers[&FaultClass::Probe] >= 1);
}

/// A server with the forgotten head of a tied model differs by as much as the steps have changed that head:
/// little at first. What it may differ by is what it did with its own weights.
#[test]
fn weights_that_differ_by_more_than_the_server_rounds_are_not_used() {
    // Tokens and nats off at each publication; the last is too much.
    for (publications, allowed) in [
        (
            &[(2, 1e-5), (2, 9e-5), (2, 2e-4)][..],
            "0.000100 allowed; by its first weights rounding makes 0.000010",
        ),
        (
            &[(2, 0.002), (2, 0.015), (2, 0.017)],
            "0.016000 allowed; by its first weights rounding makes 0.002000",
        ),
        (
            &[(2, 0.02), (2, 0.045), (2, 0.055)],
            "0.050000 allowed; by its first weights rounding makes 0.020000",
        ),
        // Log-probabilities that are spread three times as far are rounded as much more.
        (
            &[(2, 0.002), (6, 0.045), (6, 0.049)],
            "0.048000 allowed; by its first weights rounding makes 0.006000",
        ),
        // One alone has no spread to learn from.
        (
            &[(1, 0.04), (2, 0.002), (2, 0.017)],
            "0.016000 allowed; by its first weights rounding makes 0.002000",
        ),
    ] {
        let vllm = FakeVllm::start(Behaviour { keeps_weights: true, ..Behaviour::default() });
        let settings = FleetSettings { give_up_after: Some(Duration::from_secs(2)), ..fleet_settings() };
        let (mut fleet, _) = connect::<Vllm>(&[vllm.server.url()], None, settings, |_| {}).expect("answers");
        for (version, &(num, difference)) in publications.iter().enumerate() {
            let weights = folder("any");
            write_probe_off(difference, num, weights.path());
            let version = version as u64 + 1;
            if version < publications.len() as u64 {
                publish(&mut fleet, version, weights.path());
                continue;
            }
            fleet.publish(&publication(version, weights.path()), InFlight::Wait).expect("begun");
            let error = loop {
                match fleet.next(Wait::Forever) {
                    Ok(events) => assert!(events.is_empty(), "{events:?}"),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains(allowed), "{error}");
            assert!(fleet.fault_counts().servers[&FaultClass::Probe] >= 2, "nor at a second try");
        }
    }
}

/// Another process at the same address may round otherwise: at other precision, say.
#[test]
fn rounding_is_that_of_the_process_that_runs() {
    let behaviour = Behaviour { keeps_weights: true, ..Behaviour::default() };
    let vllm = FakeVllm::start(behaviour.clone());
    let (address, url) = (vllm.server.address, vllm.server.url());
    let (mut fleet, said) = connect::<Vllm>(&[url], None, fleet_settings(), |_| {}).expect("answers");
    let weights = folder("any");
    write_probe_off(1e-5, 2, weights.path());
    publish(&mut fleet, 1, weights.path());
    only_sample(&mut fleet, request(0, 0));
    drop(vllm);
    let deadline = Instant::now() + Duration::from_secs(10);
    while said.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "it is not missed");
        fleet.next(Wait::Until(Instant::now() + Duration::from_millis(50))).expect("goes on");
    }
    write_probe_off(0.02, 2, weights.path());
    let _again = FakeVllm::start_at(Some(address), behaviour);
    only_sample(&mut fleet, request(0, 1));
}

/// It is known at the first word of it, whatever else the other process can be asked meanwhile.
#[test]
fn a_server_whose_weights_are_called_otherwise_is_not_used_at_once() {
    let behaviour = Behaviour { scale_out: false, ..Behaviour::default() };
    let (vllm, mut fleet) = vllm(behaviour, |_| {});
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    // Questions that generate wait.
    let paused = Some("wait".to_owned());
    {
        let mut state = vllm.state.lock().unwrap();
        (state.label, state.paused) = ("default".to_owned(), paused);
    }
    fleet.next(Wait::Until(Instant::now() + Duration::from_millis(900))).expect("goes on");
    assert_eq!(fleet.fault_counts().servers, BTreeMap::from([(FaultClass::StaleWeights, 1)]));
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_eq!(sample.logprobs, expected_logprobs("first", sample.token_ids.len()));
    assert_eq!(vllm.state.lock().unwrap().label, "run7-v1");
}

/// Its answers come before its word that it goes on, and its weights are not the ones that it was given.
#[test]
fn what_ends_before_the_resume_is_answered_is_not_proven_either() {
    let behaviour = Behaviour {
        keeps_weights: true,
        delay: Duration::from_millis(600),
        resume_delay: Duration::from_millis(1500),
        ..Behaviour::default()
    };
    let vllm = FakeVllm::start(behaviour);
    let settings = FleetSettings { give_up_after: Some(Duration::from_millis(300)), ..fleet_settings() };
    let (mut fleet, _) = connect::<Vllm>(&[vllm.server.url()], None, settings, |settings| {
        settings.answer_timeout = Duration::from_secs(10);
    })
    .expect("answers");
    let weights = folder("first");
    write_probe("initial", weights.path());
    publish(&mut fleet, 1, weights.path());
    fleet.submit(request(0, 0)).expect("taken");
    assert!(fleet.next(Wait::Until(Instant::now() + Duration::from_millis(50))).expect("runs").is_empty());
    write_probe("second", weights.path());
    fleet.publish(&publication(2, weights.path()), InFlight::Keep).expect("begun");
    let error = loop {
        match fleet.next(Wait::Forever) {
            Ok(events) => assert!(events.is_empty(), "{events:?}"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("probe: version 2 was not loaded"), "{error}");
    assert_eq!(fleet.fault_counts().samples[&FaultClass::Probe], 1);
}

/// A network file system shows it late, and that is no reason to end a run.
#[test]
fn a_folder_that_a_server_does_not_see_yet_is_asked_for_again() {
    let (vllm, mut fleet) = vllm(Behaviour { late_reloads: 2, ..Behaviour::default() }, |_| {});
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    assert_eq!(vllm.state.lock().unwrap().weights, "first");
    assert!(fleet.fault_counts().servers.is_empty(), "{:?}", fleet.fault_counts());
}

/// Another process at the same address, started with other flags, is got to know anew.
#[test]
fn what_was_known_of_a_server_that_is_gone_is_asked_again() {
    let warm = Sampling { temperature: 0.7, ..sampling() };
    let recompute = |settings: &mut ServerSettings| settings.other_logprobs = OtherLogprobs::Recompute;
    let vllm = FakeVllm::start(Behaviour::default());
    let (address, url) = (vllm.server.address, vllm.server.url());
    let (mut fleet, _) = connect::<Vllm>(&[url], None, fleet_settings(), recompute).expect("answers");
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    assert!(!only_sample(&mut fleet, request_with(0, 0, &warm)).logprobs.is_empty());
    drop(vllm);
    let behaviour = Behaviour { raw_logprobs: true, scale_out: false, ..Behaviour::default() };
    fleet.submit(request_with(0, 1, &warm)).expect("taken");
    assert!(fleet.next(Wait::Until(Instant::now() + Duration::from_millis(300))).expect("waits").is_empty());
    let _again = FakeVllm::start_at(Some(address), behaviour);
    let events = finish(&mut fleet);
    let [GeneratorEvent::Sampled { sample, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(sample.logprobs.is_empty() && !sample.token_ids.is_empty(), "of another distribution now");
    assert!(!only_sample(&mut fleet, request(0, 2)).logprobs.is_empty());
}

/// A service that says when it wants to be asked again.
#[test]
fn a_service_with_a_limit_of_requests_is_asked_when_it_wants() {
    let asked = Arc::new(Mutex::new((0_u32, 0_u32, None::<Instant>)));
    let seen = Arc::clone(&asked);
    let handler: Handler = Arc::new(move |request| {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            let (models, samples, limited) = &mut *seen.lock().unwrap();
            let too_many = Reply {
                retry_after: Some(1),
                ..Reply::json(429, &json!({"error": {"message": "slow down"}}))
            };
            if request.path == "/v1/models" {
                *models += 1;
                // Its limit counts these questions too.
                let reply = Reply::json(200, &json!({"data": [{"id": "m"}]}));
                return if *models > 1 { too_many } else { reply };
            }
            *samples += 1;
            if *samples > 4 && limited.get_or_insert_with(Instant::now).elapsed() < Duration::from_millis(900)
            {
                return too_many;
            }
            let choice = json!({"index": 0, "text": "abc", "finish_reason": "stop"});
            Reply::json(200, &json!({"choices": [choice]}))
        })
    });
    let server = TestServer::start(None, handler);
    let settings = FleetSettings { max_attempts: 1, max_in_flight: Some(2), ..fleet_settings() };
    let (mut fleet, said) = connect::<OpenAi>(&[server.url()], None, settings, |_| {}).expect("answers");
    for member in 0..10 {
        fleet.submit(request(0, member)).expect("taken");
    }
    let events = finish(&mut fleet);
    assert_eq!(events.iter().filter(|event| matches!(event, GeneratorEvent::Sampled { .. })).count(), 10);
    // The one or two that were in flight together, and nothing until it wants to be asked again.
    let busy = fleet.fault_counts().samples[&FaultClass::Busy];
    assert!((1..=2).contains(&busy), "{busy}");
    assert!(asked.lock().unwrap().0 > 2, "it was looked at meanwhile");
    let said = said.lock().unwrap();
    let [FleetMessage::TurnedAway { limit: 1, .. }] = &said[..] else { panic!("{said:?}") };
}

#[test]
fn a_folder_that_is_none_is_never_sent() {
    let (vllm, mut fleet) = vllm(Behaviour::default(), |_| {});
    let empty = tempfile::tempdir().expect("a folder");
    fleet.publish(&publication(1, empty.path()), InFlight::Wait).expect("begun");
    let error = fleet.next(Wait::Forever).expect_err("refused").to_string();
    assert!(error.ends_with("no config.json"), "{error}");
    assert!(!vllm.state.lock().unwrap().calls.iter().any(|call| call.starts_with("/collective_rpc")));
}

#[test]
fn a_server_without_the_routes_that_change_weights_says_how_to_get_them() {
    let (_vllm, mut fleet) = vllm(Behaviour { dev_mode: false, ..Behaviour::default() }, |_| {});
    let weights = folder("first");
    fleet.publish(&publication(1, weights.path()), InFlight::Wait).expect("begun");
    let error = fleet.next(Wait::Forever).expect_err("refused").to_string();
    assert!(
        error.ends_with(
            "version 1 was not loaded: HTTP 404: Not Found (vLLM has the routes that change weights only with \
             VLLM_SERVER_DEV_MODE=1)"
        ),
        "{error}"
    );
}

#[test]
fn a_paused_server_is_waited_for() {
    for release in [Release::V032, Release::V033] {
        let vllm = FakeVllm::start(Behaviour { release, ..Behaviour::default() });
        let url = vllm.server.url();
        let (mut fleet, said) = connect::<Vllm>(&[url], None, fleet_settings(), |_| {}).expect("answers");
        vllm.state.lock().unwrap().paused = Some("wait".to_owned());
        for member in 0..10 {
            fleet.submit(request(0, member)).expect("taken");
        }
        let soon = Instant::now() + Duration::from_millis(700);
        assert!(fleet.next(Wait::Until(soon)).expect("waits").is_empty(), "{release:?}");
        let address = vllm.server.address;
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let resume = support::http::Request {
                method: "POST".to_owned(),
                path: "/resume".to_owned(),
                key: None,
                body: Vec::new(),
            };
            runtime.block_on(support::http::forward(address, &resume)).expect("resumed");
        });
        let events = finish(&mut fleet);
        assert_eq!(events.len(), 10, "{release:?}");
        assert!(events.iter().all(|event| matches!(event, GeneratorEvent::Sampled { .. })), "{release:?}");
        assert!(fleet.fault_counts().samples.is_empty(), "{release:?}: {:?}", fleet.fault_counts());
        assert!(said.lock().unwrap().is_empty(), "{release:?}");
    }
}

/// Somebody else is giving it weights: it is left to them.
#[test]
fn a_server_that_is_paused_for_a_moment_is_not_resumed() {
    let vllm = FakeVllm::start(Behaviour::default());
    vllm.state.lock().unwrap().paused = Some("wait".to_owned());
    let state = Arc::clone(&vllm.state);
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        state.lock().unwrap().paused = None;
    });
    let (mut fleet, _) =
        connect::<Vllm>(&[vllm.server.url()], None, fleet_settings(), |_| {}).expect("answers");
    other.join().expect("ended");
    only_sample(&mut fleet, request(0, 0));
    let calls = &vllm.state.lock().unwrap().calls;
    assert!(calls.iter().any(|call| call == "/is_paused") && !calls.iter().any(|call| call == "/resume"));
}

/// A run that is killed in the middle of a publication leaves its servers paused: the next one has them go
/// on.
#[test]
fn a_server_that_was_left_paused_goes_on() {
    for release in [Release::V032, Release::V033] {
        let vllm = FakeVllm::start(Behaviour { release, ..Behaviour::default() });
        vllm.state.lock().unwrap().paused = Some("wait".to_owned());
        let begun = Instant::now();
        let connected = connect::<Vllm>(&[vllm.server.url()], None, fleet_settings(), |_| {});
        let (mut fleet, _) = connected.unwrap_or_else(|error| panic!("{release:?}: {error}"));
        fleet.submit(request(0, 0)).expect("taken");
        assert_eq!(finish(&mut fleet).len(), 1, "{release:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{release:?}");
        let resumed = vllm.state.lock().unwrap().calls.iter().filter(|call| *call == "/resume").count();
        assert_eq!(resumed, 1, "{release:?}: at the first look alone");
    }
}

/// A publication that fails leaves it paused: it goes on at the next look, without waiting for somebody else
/// to have it do so.
#[test]
fn a_server_that_failed_to_load_goes_on_and_is_given_the_weights_again() {
    for release in [Release::V032, Release::V033] {
        let patient = |settings: &mut ServerSettings| settings.pause_grace = Duration::from_secs(600);
        let (vllm, mut fleet) =
            vllm(Behaviour { release, failing_reloads: 1, ..Behaviour::default() }, patient);
        let weights = folder("first");
        fleet.publish(&publication(1, weights.path()), InFlight::Wait).expect("begun");
        let events = fleet.next(Wait::Forever).unwrap_or_else(|error| panic!("{release:?}: {error}"));
        assert_eq!(events, [GeneratorEvent::Published { version: PolicyVersion(1) }], "{release:?}");
        assert_eq!(vllm.state.lock().unwrap().weights, "first");
        let failed = BTreeMap::from([(FaultClass::ServerError, 1)]);
        assert_eq!(fleet.fault_counts().servers, failed, "{release:?}");
    }
}

#[test]
fn samples_in_flight_go_on_with_the_new_weights_and_say_from_where() {
    let (vllm, mut fleet) =
        vllm(Behaviour { delay: Duration::from_millis(1500), ..Behaviour::default() }, |settings| {
            settings.answer_timeout = Duration::from_secs(10);
        });
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    fleet.submit(request(0, 0)).expect("taken");
    assert!(fleet.next(Wait::Until(Instant::now() + Duration::from_millis(100))).expect("runs").is_empty());
    let second = folder("second");
    fleet.publish(&publication(2, second.path()), InFlight::Keep).expect("begun");
    assert_eq!(
        fleet.next(Wait::Forever).expect("goes on"),
        [GeneratorEvent::Published { version: PolicyVersion(2) }]
    );
    let events = finish(&mut fleet);
    let [GeneratorEvent::Sampled { sample, .. }] = &events[..] else { panic!("{events:?}") };
    let half = sample.token_ids.len() as u32 / 2;
    let spans: Vec<_> = sample.versions.iter().map(|span| (span.version.0, span.start, span.end)).collect();
    assert_eq!(spans, [(1, 0, half), (2, half, 2 * half)]);
    assert!(vllm.state.lock().unwrap().calls.iter().any(|call| call == "/pause?mode=keep"));
}

#[test]
fn what_is_given_up_says_what_it_cost() {
    let (_vllm, mut fleet) =
        vllm(Behaviour { delay: Duration::from_secs(60), ..Behaviour::default() }, |settings| {
            settings.answer_timeout = Duration::from_secs(30);
        });
    for member in 0..4 {
        fleet.submit(request(0, member)).expect("taken");
        fleet.submit(request(1, member)).expect("taken");
    }
    assert!(fleet.next(Wait::Until(Instant::now() + Duration::from_millis(200))).expect("runs").is_empty());
    fleet.abort(AbortScope::Group { purpose: SamplePurpose::Rollout, group: 0 });
    let mut aborted = Vec::new();
    while aborted.len() < 4 {
        for event in fleet.next(Wait::Forever).expect("goes on") {
            let GeneratorEvent::Aborted { id, num_tokens } = event else { panic!("{event:?}") };
            aborted.push((id.group, num_tokens));
        }
    }
    aborted.sort_unstable();
    assert_eq!(aborted, [(0, 1), (0, 1), (0, 2), (0, 2)]);
    assert_eq!(fleet.load().in_flight, 4);
    // A publication that does not wait gives the others up.
    let weights = folder("first");
    fleet.publish(&publication(1, weights.path()), InFlight::Abort).expect("begun");
    let mut events = Vec::new();
    while !events.contains(&GeneratorEvent::Published { version: PolicyVersion(1) }) {
        events.extend(fleet.next(Wait::Forever).expect("goes on"));
    }
    assert_eq!(events.len(), 5, "{events:?}");
    assert_eq!(fleet.load().in_flight, 0);
}

#[test]
fn without_the_generate_route_completions_do() {
    let (_vllm, mut fleet) = vllm(Behaviour { scale_out: false, ..Behaviour::default() }, |_| {});
    let weights = folder("first");
    write_probe("first", weights.path());
    publish(&mut fleet, 1, weights.path());
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_eq!(sample.logprobs, expected_logprobs("first", sample.token_ids.len()));
    assert_eq!(sample.versions[0].version, PolicyVersion(1));
}

#[test]
fn log_probabilities_of_another_distribution_are_not_taken_for_ours() {
    let warm = Sampling { temperature: 0.7, ..sampling() };
    let truncated = Sampling { top_p: 0.9, ..sampling() };
    for (raw_logprobs, right, wrong) in [(true, &truncated, &warm), (false, &warm, &truncated)] {
        let vllm = FakeVllm::start(Behaviour { raw_logprobs, ..Behaviour::default() });
        let url = [vllm.server.url()];
        let (mut fleet, _) = connect::<Vllm>(&url, None, fleet_settings(), |_| {}).expect("answers");
        assert!(!only_sample(&mut fleet, request_with(0, 0, right)).logprobs.is_empty());
        // Nothing of a validation is trained on.
        let mut validation = request_with(0, 2, wrong);
        validation.id.purpose = SamplePurpose::Validation;
        assert!(only_sample(&mut fleet, validation).logprobs.is_empty());
        // No sample fails for what none was asked of; where no other server is, the fleet is of no use.
        fleet.submit(request_with(0, 1, wrong)).expect("taken");
        let lost = loop {
            match fleet.next(Wait::Forever) {
                Ok(events) => assert!(events.is_empty(), "{events:?}"),
                Err(lost) => break lost.to_string(),
            }
        };
        assert!(lost.contains("these are not those that are trained on"), "{lost}");
        // Another server may have what is wanted, and this one does not swallow what it could sample.
        let good = FakeVllm::start(Behaviour { raw_logprobs: !raw_logprobs, ..Behaviour::default() });
        let both = [vllm.server.url(), good.server.url()];
        let (mut several, said) = connect::<Vllm>(&both, None, fleet_settings(), |_| {}).expect("answer");
        for member in 0..50 {
            several.submit(request_with(member.into(), member, wrong)).expect("taken");
        }
        let sampled = |event: &GeneratorEvent| matches!(event, GeneratorEvent::Sampled { sample, .. } if !sample.logprobs.is_empty());
        assert_eq!(finish(&mut several).iter().filter(|event| sampled(event)).count(), 50);
        let lost = |message: &FleetMessage| matches!(message, FleetMessage::Lost { server, .. } if *server == both[0]);
        assert!(said.lock().unwrap().iter().any(lost));
        let recompute = |settings: &mut ServerSettings| settings.other_logprobs = OtherLogprobs::Recompute;
        let (mut fleet, _) = connect::<Vllm>(&url, None, fleet_settings(), recompute).expect("answers");
        let sample = only_sample(&mut fleet, request_with(0, 1, wrong));
        assert!(sample.logprobs.is_empty() && !sample.token_ids.is_empty());
    }
}

/// Servers ignore fields that they do not know, silently: what comes is looked at.
#[test]
fn a_completion_that_does_not_match_is_no_sample() {
    let recompute = |settings: &mut ServerSettings| settings.other_logprobs = OtherLogprobs::Recompute;
    let (_vllm, mut fleet) = vllm(Behaviour::default(), recompute);
    let bound = |regex: &str| Sampling { regex: Some(regex.to_owned()), ..sampling() };
    let sample = only_sample(&mut fleet, request_with(0, 0, &bound("[a-n]+")));
    assert!(sample.logprobs.is_empty(), "of the masked distribution");
    fleet.submit(request_with(0, 1, &bound("[0-9]+"))).expect("taken");
    let events = finish(&mut fleet);
    let [GeneratorEvent::Failed { kind: FailureKind::Permanent, reason, num_tokens, .. }] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(reason.contains("does not match the expression") && *num_tokens > 0, "{reason}");
    assert_eq!(fleet.fault_counts().samples[&FaultClass::NoMatch], 1);
    // Cut by its length: the beginning of a match.
    let mut cut = 0;
    for group in 1..20 {
        if only_sample(&mut fleet, request(group, 0)).finish_reason == FinishReason::Length {
            let bound = bound("[a-n]{20,40}");
            let sample = only_sample(&mut fleet, request_with(group, 0, &bound));
            cut += usize::from(sample.finish_reason == FinishReason::Length);
        }
    }
    assert!(cut > 0);
}

#[test]
fn what_does_not_fit_into_the_context_is_refused_before_it_is_sent() {
    let (vllm, mut fleet) = vllm(Behaviour::default(), |_| {});
    let before = vllm.state.lock().unwrap().num_samples;
    fleet.submit(request_with(0, 0, &Sampling { max_response_length: 62, ..sampling() })).expect("taken");
    let events = finish(&mut fleet);
    let [GeneratorEvent::Failed { kind: FailureKind::Permanent, reason, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(
        reason.ends_with(
            "a prompt of 3 tokens and 62 more do not fit into the server's context of 64 (max_model_len)"
        ),
        "{reason}"
    );
    assert_eq!(vllm.state.lock().unwrap().num_samples, before);
}

#[test]
fn keys_and_names_are_checked_at_the_start() {
    let behaviour = Behaviour { key: Some("secret".to_owned()), ..Behaviour::default() };
    let vllm = FakeVllm::start(behaviour);
    let url = [vllm.server.url()];
    let quick = FleetSettings { start_timeout: Duration::from_millis(300), ..fleet_settings() };
    let (mut fleet, _) = connect::<Vllm>(&url, Some("secret"), quick, |_| {}).expect("answers");
    only_sample(&mut fleet, request(0, 0));
    let refused =
        |key: Option<&str>, model: Option<&str>| match connect::<Vllm>(&url, key, quick, |settings| {
            settings.model = model.map(str::to_owned);
        }) {
            Err(GeneratorError::Unreachable { tried }) => tried.join("; "),
            other => panic!("{:?}", other.map(|_| ())),
        };
    assert_eq!(refused(None, None), format!("{}: unauthorized: HTTP 401: a key, please", url[0]));
    assert_eq!(
        refused(Some("secret"), Some("other")),
        format!("{}: refused: it serves no model \"other\", but tiny", url[0])
    );
    let nobody = ["http://127.0.0.1:9".to_owned()];
    let Err(GeneratorError::Unreachable { tried }) = connect::<Vllm>(&nobody, None, quick, |_| {}) else {
        panic!("somebody at port 9")
    };
    assert!(tried[0].starts_with("http://127.0.0.1:9: connect: "), "{tried:?}");
    assert!(tried[0].contains("refused"), "{tried:?}");
}

#[test]
fn sglang_samples_and_takes_weights() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let label = Arc::new(Mutex::new("default".to_owned()));
    let (seen, named) = (Arc::clone(&calls), Arc::clone(&label));
    let handler: Handler = Arc::new(move |request| {
        let (seen, named) = (Arc::clone(&seen), Arc::clone(&named));
        Box::pin(async move {
            let body = request.json();
            if request.path != "/generate" {
                seen.lock().unwrap().push(request.path.clone());
            }
            let ok = |value: Value| Reply::json(200, &value);
            match request.path.as_str() {
                "/health" => Reply::empty(),
                "/v1/models" => ok(json!({"data": [{"id": "m", "max_model_len": 64}]})),
                "/model_info" => ok(json!({"weight_version": *named.lock().unwrap()})),
                "/update_weights_from_disk" => {
                    *named.lock().unwrap() = body["weight_version"].as_str().unwrap_or_default().to_owned();
                    ok(json!({"success": true, "message": "done"}))
                }
                "/generate" => ok(json!({
                    "text": "ab", "output_ids": [2, 3],
                    "meta_info": {
                        "id": body["rid"], "finish_reason": {"type": "stop", "matched": 1}, "completion_tokens": 2,
                        "weight_version": *named.lock().unwrap(),
                        "output_token_logprobs": [[-0.5, 2, null], [-0.25, 3, null]],
                    },
                })),
                _ => ok(json!({"status": "ok"})),
            }
        })
    });
    let server = TestServer::start(None, handler);
    let (mut fleet, _) = connect::<Sglang>(&[server.url()], None, fleet_settings(), |_| {}).expect("answers");
    let weights = folder("first");
    publish(&mut fleet, 3, weights.path());
    let calls: Vec<String> = calls.lock().unwrap().clone();
    let order: Vec<&str> = calls
        .iter()
        .map(String::as_str)
        .filter(|call| !["/health", "/v1/models", "/model_info"].contains(call))
        .collect();
    assert_eq!(
        order,
        [
            // A run before this one may have left it paused.
            "/continue_generation",
            "/pause_generation",
            "/update_weights_from_disk",
            "/flush_cache",
            "/continue_generation"
        ]
    );
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_eq!(
        (sample.token_ids, sample.logprobs, sample.text.as_str()),
        (vec![2, 3], vec![-0.5, -0.25], "ab")
    );
    assert_eq!(sample.versions[0].version, PolicyVersion(3));
    // Truncation does not touch its log-probabilities.
    let truncated = Sampling { top_p: 0.9, ..sampling() };
    assert_eq!(only_sample(&mut fleet, request_with(0, 1, &truncated)).logprobs.len(), 2);
}

#[test]
fn openai_gives_text_that_is_never_trained_on() {
    let asked = Arc::new(Mutex::new(Value::Null));
    let seen = Arc::clone(&asked);
    let handler: Handler = Arc::new(move |request| {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            match request.path.as_str() {
                "/v1/models" => Reply::json(200, &json!({"data": [{"id": "m"}]})),
                "/v1/completions" => {
                    *seen.lock().unwrap() = request.json();
                    let choice = json!({"index": 0, "text": "abc", "finish_reason": "stop"});
                    Reply::json(200, &json!({"choices": [choice], "usage": {"completion_tokens": 9}}))
                }
                _ => Reply::json(404, &json!({"detail": "Not Found"})),
            }
        })
    });
    let server = TestServer::start(None, handler);
    let url = format!("{}/v1/", server.url());
    let (mut fleet, _) = connect::<OpenAi>(&[url], None, fleet_settings(), |settings| {
        settings.extra.insert("top_k".to_owned(), json!(5));
    })
    .expect("answers");
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_eq!((sample.text.as_str(), sample.token_ids, sample.logprobs), ("abc", vec![2, 3, 4], vec![]));
    assert_eq!(sample.finish_reason, FinishReason::Stop);
    let asked = asked.lock().unwrap();
    assert_eq!((&asked["prompt"], &asked["model"], &asked["top_k"]), (&json!("abc"), &json!("m"), &json!(5)));
}

#[test]
fn the_client_names_what_goes_wrong_and_closes_what_is_cancelled() {
    let handler: Handler = Arc::new(|request| {
        Box::pin(async move {
            let delivery = match request.path.as_str() {
                "/half" => Delivery::Half,
                "/reset" => Delivery::Reset,
                "/hang" => Delivery::Hang,
                _ => Delivery::Whole,
            };
            let body = if request.path == "/large" { vec![b'x'; 5000] } else { request.body };
            Reply { body: if body.is_empty() { b"none".to_vec() } else { body }, delivery, ..Reply::empty() }
        })
    });
    let server = TestServer::start(None, handler);
    let bell = Bell::default();
    let settings = HttpSettings { max_answer_bytes: 4000, ..HttpSettings::default() };
    let mut client = HttpClient::start(settings, false).expect("a client");
    let mut line =
        client.line(Address::parse(&server.url()).expect("an address"), None, bell.clone()).expect("a line");
    let timeout = Duration::from_millis(300);
    for (number, path) in ["/echo", "/half", "/reset", "/hang", "/large"].iter().enumerate() {
        line.send(number as u64, Call::post(path, &json!({"a": 1})), timeout);
    }
    let mut came = HashMap::new();
    while came.len() < 5 {
        bell.wait(Duration::from_secs(5));
        came.extend(line.receive());
    }
    assert_eq!(came[&0].as_ref().expect("an answer").body, b"{\"a\":1}");
    let fault = |number: u64| came[&number].as_ref().expect_err("a fault");
    assert_eq!(fault(1).class, FaultClass::HalfBody);
    assert_eq!(fault(2).class, FaultClass::Reset);
    assert_eq!(fault(3).class, FaultClass::TimedOut);
    assert_eq!(fault(4).class, FaultClass::TooLarge);

    line.send(9, Call::get("/hang"), Duration::from_secs(60));
    std::thread::sleep(Duration::from_millis(200));
    let before = server.num_connections.load(Ordering::Relaxed);
    line.cancel(9);
    let end = Instant::now() + Duration::from_secs(5);
    while server.num_connections.load(Ordering::Relaxed) >= before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(server.num_connections.load(Ordering::Relaxed) < before, "the connection is closed");
    assert!(line.receive().is_empty());

    for (url, wrong) in [
        ("localhost:8000", "no http:// or https:// in front"),
        ("//host", "no http:// or https:// in front"),
        ("http://", "no http:// or https:// in front"),
        ("http://h:1/?x=1", "a question mark"),
    ] {
        let error = Address::parse(url).expect_err(url).to_string();
        assert!(error.contains("write http://HOST:PORT"), "{error}");
        assert!(error.contains(wrong), "{url}: {error}");
    }
    assert_eq!(Address::parse("https://h:8/api/v1/").expect("an address").to_string(), "https://h:8/api");
}
