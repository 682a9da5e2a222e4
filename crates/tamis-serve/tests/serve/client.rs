//! The fleet as a client of `tamis serve`: results over the wire equal the samples of an engine in this
//! process, bit for bit.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Map;
use tamis_core::group::{GroupId, PolicyVersion};
use tamis_core::random::{Key, Purpose};
use tamis_model::{SaveDtype, Sequence, Threads, Workspace, score};
use tamis_rollout::clock::{Bell, SystemClock};
use tamis_rollout::fleet::FleetMessage;
use tamis_rollout::fleet::{Fleet, FleetSettings};
use tamis_rollout::http::{Address, HttpClient, HttpSettings};
use tamis_rollout::server::{OtherLogprobs, PROBE_FILE, Probe, Server, ServerSettings, VllmServer};
use tamis_rollout::{
    Generator, GeneratorEvent, InFlight, Publication, Sample, SampleId, SampleRequest, Sampling, Wait,
    Weights,
};

use super::harness::*;

fn fleet(servers: &[&Serving]) -> Fleet {
    fleet_that_says(servers, Box::new(|_| {}))
}

fn fleet_that_says(servers: &[&Serving], say: Box<dyn Fn(FleetMessage) + Send>) -> Fleet {
    let bell = Bell::default();
    let mut client = HttpClient::start(HttpSettings::default(), false).unwrap();
    let members = servers
        .iter()
        .map(|serving| {
            let url = format!("http://{}", serving.address);
            let settings = ServerSettings {
                name: url.clone(),
                model: Some("tiny".to_owned()),
                vocabulary: tokenizer().num_rows(),
                end_token_ids: tokenizer().eos_id().into_iter().collect(),
                image_token_id: None,
                extra: Map::new(),
                answer_timeout: PATIENCE,
                check_timeout: PATIENCE,
                publish_timeout: PATIENCE,
                pause_grace: Duration::ZERO,
                sleep_level: 0,
                nonce: "run".to_owned(),
                seeds: false,
                other_logprobs: OtherLogprobs::Refuse,
                seen_as: None,
            };
            let line = client.line(Address::parse(&url).unwrap(), None, bell.clone()).unwrap();
            Box::new(VllmServer::new(Box::new(line), Arc::new(settings), tokenizer())) as Box<dyn Server>
        })
        .collect();
    let settings = FleetSettings {
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(200),
        check_every: Duration::from_millis(100),
        ..FleetSettings::default()
    };
    let clock = Box::new(SystemClock);
    Fleet::connect(members, settings, clock, bell, Arc::default(), say).unwrap()
}

fn sampling(i: u64) -> Sampling {
    let plain = Sampling::plain(20);
    match i % 5 {
        0 => plain,
        4 => Sampling { regex: Some("[a-z\u{e9} ]{2,12}[.!]".to_owned()), ..plain },
        1 => Sampling { temperature: 0.7, top_p: 0.95, ..plain },
        2 => Sampling { top_k: Some(20), min_p: 0.02, repetition_penalty: 1.1, ..plain },
        _ => Sampling { temperature: 1.3, stop: vec!["e".to_owned()], ..plain },
    }
}

fn requests() -> Vec<SampleRequest> {
    let prompts: Vec<Arc<[u32]>> = vec![Arc::from([5, 6, 7]), Arc::from([9, 8, 7, 6, 5, 4])];
    let one = |i: u64| SampleRequest {
        prompt: None,
        id: SampleId::of_member(GroupId(i / 4), (i % 4) as u32),
        prompt_token_ids: Arc::clone(&prompts[(i / 4 % 2) as usize]),
        images: Arc::default(),
        key: Key::new(7, Purpose::Rollout).with(i),
        sampling: Arc::new(sampling(i)),
    };
    (0..16).map(one).collect()
}

fn samples(fleet: &mut Fleet, requests: &[SampleRequest]) -> Vec<(SampleId, Sample)> {
    for request in requests {
        fleet.submit(request.clone()).unwrap();
    }
    let mut samples = Vec::new();
    while samples.len() < requests.len() {
        for event in fleet.next(Wait::Forever).unwrap() {
            let GeneratorEvent::Sampled { id, sample } = event else { panic!("{event:?}") };
            samples.push((id, sample));
        }
    }
    samples.sort_by_key(|(id, _)| *id);
    samples
}

fn assert_of(number: u64, version: u64, requests: &[SampleRequest], samples: &[(SampleId, Sample)]) {
    for (request, (id, sample)) in requests.iter().zip(samples) {
        assert_eq!(request.id, *id);
        let alone = alone(number, &request.prompt_token_ids, vec![request.key], &request.sampling);
        let (tokens, logprobs, entropy) = &alone[0];
        assert_eq!(sample.entropy.map(f64::to_bits), Some(entropy.to_bits()), "{id}");
        assert_eq!(&sample.token_ids, tokens, "{id}");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&sample.logprobs), bits(logprobs), "{id}");
        assert!(sample.versions.iter().all(|span| span.version == PolicyVersion(version)), "{id}");
    }
}

#[test]
fn samples_over_the_wire_are_those_of_the_engine_and_a_restarted_server_is_given_the_weights() {
    let first = serve(settings());
    let mut second = serve(settings());
    let mut fleet = fleet(&[&first, &second]);
    let requests = requests();
    assert_of(1, 0, &requests, &samples(&mut fleet, &requests));

    let folder = tempfile::tempdir().unwrap();
    model(2).save(folder.path(), SaveDtype::F32).unwrap();
    let weights = Weights::Folder(folder.path().to_owned());
    fleet.publish(&Publication { version: PolicyVersion(4), weights }, InFlight::Wait).unwrap();
    assert_eq!(fleet.next(Wait::Forever).unwrap(), [GeneratorEvent::Published { version: PolicyVersion(4) }]);
    assert_of(2, 4, &requests, &samples(&mut fleet, &requests));

    // A server is killed and comes back with its original weights.
    let port = second.address.port();
    second.end().unwrap();
    drop(second);
    let again = Mutex::new(serve(tamis_serve::ServeSettings { port, ..settings() }));
    for _ in 0..3 {
        assert_of(2, 4, &requests, &samples(&mut fleet, &requests));
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(again.lock().unwrap().get("/weight_info").json()["weight_version"], "run-v4");
}

/// Log-probabilities of a prompt's tokens except the first, under the weights with this number.
fn scored(number: u64, token_ids: &[u32]) -> Vec<f32> {
    let sequence = Sequence { tokens: token_ids, start: 1 };
    let scores =
        score(&Threads::new(1), &model(number), &mut Workspace::default(), &[sequence], 1.0).unwrap();
    scores.logprobs.values().to_vec()
}

/// A server is used once a probe has shown that it has the published weights. A server with other weights is
/// not used, whatever their label.
#[test]
fn a_server_shows_that_it_holds_what_was_published() {
    let serving = serve(settings());
    let answered = Arc::new(Mutex::new(Vec::new()));
    let hear = answered.clone();
    let hear = Box::new(move |message: FleetMessage| hear.lock().unwrap().push(message.to_string()));
    let mut fleet = fleet_that_says(&[&serving], hear);
    let token_ids: Vec<u32> = (0..24).map(|place| place * 11 % 300).collect();
    let probing = |published: u64, probed: u64, off: f64, is_rounded: bool| {
        let folder = tempfile::tempdir().unwrap();
        model(published).save(folder.path(), SaveDtype::F32).unwrap();
        let logprobs = scored(probed, &token_ids).iter().map(|&logprob| f64::from(logprob) + off).collect();
        let probe = Probe { token_ids: token_ids.clone(), logprobs, tolerance: 100.0, is_rounded };
        std::fs::write(folder.path().join(PROBE_FILE), probe.to_json()).unwrap();
        folder
    };
    let folder = |published: u64, probed: u64| probing(published, probed, 0.0, false);
    let publish = |fleet: &mut Fleet, version: u64, folder: &tempfile::TempDir| {
        let weights = Weights::Folder(folder.path().to_owned());
        fleet.publish(&Publication { version: PolicyVersion(version), weights }, InFlight::Wait).unwrap();
    };
    // A learner's 16-bit results differ by their rounding.
    let rounded = probing(2, 2, 0.01, true);
    publish(&mut fleet, 1, &rounded);
    assert_eq!(fleet.next(Wait::Forever).unwrap(), [GeneratorEvent::Published { version: PolicyVersion(1) }]);
    let good = folder(2, 2);
    publish(&mut fleet, 2, &good);
    assert_eq!(fleet.next(Wait::Forever).unwrap(), [GeneratorEvent::Published { version: PolicyVersion(2) }]);
    let other = folder(3, 2);
    publish(&mut fleet, 3, &other);
    let end = Instant::now() + PATIENCE;
    while answered.lock().unwrap().is_empty() && Instant::now() < end {
        let soon = Wait::Until(Instant::now() + Duration::from_millis(50));
        assert_eq!(fleet.next(soon).unwrap(), [], "nothing is published");
    }
    let answered = answered.lock().unwrap().join("; ");
    assert!(answered.contains("log-probabilities of a known text are off by"), "{answered}");
}
