//! New weights: how servers take them, and how a fleet proves that they hold them.

use super::*;

/// Writes a probe of that many log-probabilities, each `difference` away from those of a server that keeps
/// its first weights.
fn write_probe_off(difference: f64, num: usize, folder: &Path) {
    let logprobs = (1..=num).map(|place| logprob("initial", place) - difference).collect();
    let token_ids = (2..).take(num + 1).collect();
    let probe = Probe { token_ids, logprobs, tolerance: 0.05, is_rounded: false };
    std::fs::write(folder.join(PROBE_FILE), probe.to_json()).expect("written");
}

const RESET: &str = "/reset_prefix_cache?reset_running_requests=true";

/// The calls since the last look that ask for more than how it is.
fn changes(vllm: &FakeVllm) -> Vec<String> {
    let calls = std::mem::take(&mut vllm.state.lock().unwrap().calls);
    let tells =
        ["/health", "/v1/models", "/weight_info", "/metrics", "/version", "/is_sleeping", "/is_paused"];
    calls.into_iter().filter(|call| !tells.contains(&call.as_str())).collect()
}

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

#[test]
fn a_sample_and_new_weights() {
    let (vllm, mut fleet) = vllm(Behaviour::default(), |_| {});
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_by("initial", &sample);
    assert_eq!(sample.versions[0].version, PolicyVersion(0));
    changes(&vllm);

    let weights = folder("first");
    write_probe("first", weights.path());
    publish(&mut fleet, 1, weights.path());
    // The first reset is in vain, and is done again.
    let rest = ["/collective_rpc", RESET, RESET, "/update_weight_version", "/resume"];
    assert_eq!(changes(&vllm), [&["/pause?mode=wait"], &rest[..]].concat());
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

/// A server with the outdated head of a tied model differs by as much as the steps have changed that
/// head: little at first. The tolerance is learned from its own earlier weights.
#[test]
fn weights_that_differ_by_more_than_the_server_rounds_are_not_used() {
    // Tokens and nats off at each publication, of which the last is too much; what is allowed, and what
    // rounding alone made.
    for (publications, allowed, made) in [
        (&[(2, 1e-5), (2, 9e-5), (2, 2e-4)], "0.000100", "0.000010"),
        (&[(2, 0.002), (2, 0.015), (2, 0.017)], "0.016000", "0.002000"),
        (&[(2, 0.02), (2, 0.045), (2, 0.055)], "0.050000", "0.020000"),
        // Log-probabilities that are spread three times as far are rounded as much more.
        (&[(2, 0.002), (6, 0.045), (6, 0.049)], "0.048000", "0.006000"),
        // A single value has no spread to learn from.
        (&[(1, 0.04), (2, 0.002), (2, 0.017)], "0.016000", "0.002000"),
    ] {
        let allowed = format!("{allowed} allowed; rounding alone made {made} with its first weights");
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
            let error = lost(&mut fleet);
            assert!(error.contains(&format!("probe: version {version} was not loaded")), "{error}");
            assert!(error.contains(&allowed) && error.contains("tamis export --untie"), "{error}");
            assert!(fleet.fault_counts().servers[&FaultClass::Probe] >= 2, "nor at a second try");
        }
    }
}

/// Another process at the same address may round differently, for instance at another precision.
#[test]
fn rounding_is_that_of_the_process_that_runs() {
    let behaviour = Behaviour { keeps_weights: true, ..Behaviour::default() };
    let vllm = FakeVllm::start(behaviour.clone());
    let (address, url) = (vllm.server.address, vllm.server.url());
    let (mut fleet, messages) = connect::<Vllm>(&[url], None, fleet_settings(), |_| {}).expect("answers");
    let weights = folder("any");
    write_probe_off(1e-5, 2, weights.path());
    publish(&mut fleet, 1, weights.path());
    only_sample(&mut fleet, request(0, 0));
    drop(vllm);
    let deadline = Instant::now() + Duration::from_secs(10);
    while messages.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "it is not missed");
        fleet.next(Wait::Until(Instant::now() + Duration::from_millis(50))).expect("goes on");
    }
    write_probe_off(0.02, 2, weights.path());
    let _again = FakeVllm::start_at(Some(address), behaviour);
    only_sample(&mut fleet, request(0, 1));
}

/// The changed label is noticed in the first answer that has it, whatever else the other process is
/// asked meanwhile.
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
    assert_by("first", &sample);
    assert_eq!(vllm.state.lock().unwrap().label, "run7-v1");
}

/// Answers that come before the confirmation of the resume are not proven, since the weights are not the ones
/// that the server was given.
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
    nothing_for(&mut fleet, 50);
    write_probe("second", weights.path());
    fleet.publish(&publication(2, weights.path()), InFlight::Keep).expect("begun");
    let error = lost(&mut fleet);
    assert!(error.contains("probe: version 2 was not loaded"), "{error}");
    assert_eq!(fleet.fault_counts().samples[&FaultClass::Probe], 1);
}

/// A network file system shows it late, which must not end a run.
#[test]
fn a_folder_that_a_server_does_not_see_yet_is_asked_for_again() {
    let (vllm, mut fleet) = vllm(Behaviour { late_reloads: 2, ..Behaviour::default() }, |_| {});
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    assert_eq!(vllm.state.lock().unwrap().weights, "first");
    assert!(fleet.fault_counts().servers.is_empty(), "{:?}", fleet.fault_counts());
}

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
    nothing_for(&mut fleet, 300);
    let _again = FakeVllm::start_at(Some(address), behaviour);
    let sample = sampled(&finish(&mut fleet));
    assert!(sample.logprobs.is_empty() && !sample.token_ids.is_empty(), "of another distribution now");
    assert!(!only_sample(&mut fleet, request(0, 2)).logprobs.is_empty());
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
    let expected = "version 1 was not loaded: HTTP 404: Not Found (vLLM has the routes that change weights only with \
         VLLM_SERVER_DEV_MODE=1)";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn a_paused_server_is_waited_for() {
    for release in [Release::V032, Release::V033] {
        let vllm = FakeVllm::start(Behaviour { release, ..Behaviour::default() });
        let url = vllm.server.url();
        let (mut fleet, messages) = connect::<Vllm>(&[url], None, fleet_settings(), |_| {}).expect("answers");
        vllm.state.lock().unwrap().paused = Some("wait".to_owned());
        for member in 0..10 {
            fleet.submit(request(0, member)).expect("taken");
        }
        let soon = Instant::now() + Duration::from_millis(700);
        assert!(fleet.next(Wait::Until(soon)).expect("waits").is_empty(), "{release:?}");
        let address = vllm.server.address;
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let (method, path) = ("POST".to_owned(), "/resume".to_owned());
            let resume = support::http::Request { method, path, key: None, body: Vec::new() };
            let asked = support::http::forward(address, &resume);
            runtime.expect("a runtime").block_on(asked).expect("resumed");
        });
        let events = finish(&mut fleet);
        assert_eq!(events.len(), 10, "{release:?}");
        assert!(events.iter().all(|event| matches!(event, GeneratorEvent::Sampled { .. })), "{release:?}");
        assert!(fleet.fault_counts().samples.is_empty(), "{release:?}: {:?}", fleet.fault_counts());
        assert!(messages.lock().unwrap().is_empty(), "{release:?}");
    }
}

/// Another publisher is giving it weights, so this one leaves it alone.
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
    assert!(calls.iter().any(|call| call == "/is_paused"));
    assert!(!calls.iter().any(|call| call == "/resume" || call.starts_with("/wake_up")));
}

/// A run that is killed in the middle of a publication leaves its servers paused: the next run resumes
/// them.
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

/// A publication that fails leaves the server paused: it resumes at the next check, without outside
/// help.
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
    nothing_for(&mut fleet, 100);
    let second = folder("second");
    fleet.publish(&publication(2, second.path()), InFlight::Keep).expect("begun");
    assert_eq!(
        fleet.next(Wait::Forever).expect("goes on"),
        [GeneratorEvent::Published { version: PolicyVersion(2) }]
    );
    let sample = sampled(&finish(&mut fleet));
    let half = sample.token_ids.len() as u32 / 2;
    let spans: Vec<_> = sample.versions.iter().map(|span| (span.version.0, span.start, span.end)).collect();
    assert_eq!(spans, [(1, 0, half), (2, half, 2 * half)]);
    assert!(vllm.state.lock().unwrap().calls.iter().any(|call| call == "/pause?mode=keep"));
}

/// A folder of an adapter as a server reads one.
fn adapter(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("adapter_config.json"), text).expect("written");
    std::fs::write(folder.path().join("adapter_model.safetensors"), "").expect("written");
    write_probe(text, folder.path());
    folder
}

fn adapter_publication(version: u64, folder: &tempfile::TempDir) -> Publication {
    Publication { version: PolicyVersion(version), weights: Weights::Adapter(folder.path().to_owned()) }
}

fn publish_adapter(fleet: &mut Fleet, version: u64, folder: &tempfile::TempDir, in_flight: InFlight) {
    fleet.publish(&adapter_publication(version, folder), in_flight).expect("begun");
    loop {
        let events = fleet.next(Wait::Forever).expect("goes on");
        if events.contains(&GeneratorEvent::Published { version: PolicyVersion(version) }) {
            return;
        }
    }
}

#[test]
fn an_adapter_is_a_model_of_its_own_and_the_one_before_the_last_is_forgotten() {
    let (vllm, mut fleet) = vllm(Behaviour { takes_adapters: true, ..Behaviour::default() }, |_| {});
    for (version, text) in [(1, "first"), (2, "second"), (3, "third")] {
        let folder = adapter(text);
        changes(&vllm);
        publish_adapter(&mut fleet, version, &folder, InFlight::Wait);
        let sample = only_sample(&mut fleet, request(version, 0));
        let length = sample.token_ids.len();
        assert_eq!(sample.logprobs, expected_logprobs(text, length));
        let whole =
            tamis_rollout::VersionSpan { version: PolicyVersion(version), start: 0, end: length as u32 };
        assert_eq!(sample.versions, [whole]);
    }
    let last = ["/v1/load_lora_adapter", "/update_weight_version", "/v1/unload_lora_adapter"];
    assert_eq!(changes(&vllm), last);
    let state = vllm.state.lock().unwrap();
    let mut held: Vec<&str> = state.adapters.values().map(String::as_str).collect();
    held.sort_unstable();
    assert_eq!(
        (held, state.weights.as_str(), state.label.as_str()),
        (vec!["second", "third"], "initial", "run7-v3")
    );
}

#[test]
fn what_an_adapter_began_it_ends_while_the_next_is_published() {
    let behaviour =
        Behaviour { takes_adapters: true, delay: Duration::from_millis(300), ..Behaviour::default() };
    let (_vllm, mut fleet) = vllm(behaviour, |_| {});
    let (first, second) = (adapter("first"), adapter("second"));
    publish_adapter(&mut fleet, 1, &first, InFlight::Wait);
    fleet.submit(request(0, 0)).expect("taken");
    // Published before the sample comes.
    publish_adapter(&mut fleet, 2, &second, InFlight::Keep);
    let sample = sampled(&finish(&mut fleet));
    assert_by("first", &sample);
    assert_eq!(sample.versions.len(), 1);
    assert_eq!(sample.versions[0].version, PolicyVersion(1));
}

#[test]
fn a_server_that_forgot_the_adapter_is_given_it_again() {
    let behaviour = Behaviour { takes_adapters: true, ..Behaviour::default() };
    let vllm = FakeVllm::start(behaviour.clone());
    let (address, url) = (vllm.server.address, vllm.server.url());
    let (mut fleet, _) = connect::<Vllm>(&[url], None, fleet_settings(), |_| {}).expect("answers");
    let folder = adapter("first");
    publish_adapter(&mut fleet, 1, &folder, InFlight::Wait);
    drop(vllm);
    let again = FakeVllm::start_at(Some(address), behaviour);
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_by("first", &sample);
    assert_eq!(again.state.lock().unwrap().label, "run7-v1");
}

#[test]
fn a_server_that_takes_no_adapters_says_how_to_start_one_that_does() {
    let settings = || FleetSettings { give_up_after: Some(Duration::from_millis(300)), ..fleet_settings() };
    let refused = |mut fleet: Fleet| {
        let folder = adapter("first");
        fleet.publish(&adapter_publication(1, &folder), InFlight::Wait).expect("begun");
        lost(&mut fleet)
    };
    let vllm = FakeVllm::start(Behaviour::default());
    let (fleet, _) = connect::<Vllm>(&[vllm.server.url()], None, settings(), |_| {}).expect("answers");
    let error = refused(fleet);
    assert!(error.contains("VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"), "{error}");
    let (fleet, _) = connect::<OpenAi>(&[vllm.server.url()], None, settings(), |_| {}).expect("answers");
    let error = refused(fleet);
    assert!(error.contains("servers of `rollout.backend: openai` take no adapters"), "{error}");
}

fn asleep(vllm: &FakeVllm) -> bool {
    !vllm.state.lock().unwrap().asleep.is_empty()
}

#[test]
fn a_server_that_sleeps_wakes_weights_first_and_takes_the_new_ones() {
    for level in [1, 2] {
        let behaviour = Behaviour { sleeps: true, takes_adapters: true, ..Behaviour::default() };
        let (vllm, mut fleet) = vllm(behaviour, |settings| settings.sleep_level = level);
        let (first, second) = (folder("first"), folder("second"));
        publish(&mut fleet, 1, first.path());
        only_sample(&mut fleet, request(0, 0));
        changes(&vllm);
        fleet.put_to_sleep().expect("sleeps");
        assert!(asleep(&vllm));
        publish(&mut fleet, 2, second.path());
        assert!(!asleep(&vllm));
        let sleep = format!("/sleep?level={level}");
        // The first reset is in vain, and is done again.
        let weights =
            [&sleep, "/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache", RESET, RESET];
        assert_eq!(changes(&vllm), [&weights[..], &["/update_weight_version", "/resume"]].concat());
        let sample = only_sample(&mut fleet, request(1, 0));
        assert_by("second", &sample);
        // No step was trained: the next request wakes it, with its old weights.
        fleet.put_to_sleep().expect("sleeps");
        let sample = only_sample(&mut fleet, request(2, 0));
        assert_by("second", &sample);
        if level == 1 {
            changes(&vllm);
            fleet.put_to_sleep().expect("sleeps");
            let third = adapter("third");
            publish_adapter(&mut fleet, 3, &third, InFlight::Wait);
            let load = "/v1/load_lora_adapter";
            let weights = [&sleep, "/wake_up?tags=weights", load, "/wake_up?tags=kv_cache", RESET, RESET];
            assert_eq!(changes(&vllm), [&weights[..], &["/update_weight_version", "/resume"]].concat());
            let sample = only_sample(&mut fleet, request(3, 0));
            assert_by("third", &sample);
        }
    }
}

#[test]
fn a_server_that_was_left_asleep_is_woken() {
    let vllm = FakeVllm::start(Behaviour { sleeps: true, ..Behaviour::default() });
    vllm.state.lock().unwrap().asleep = vec!["weights", "kv_cache"];
    vllm.state.lock().unwrap().paused = Some("keep".to_owned());
    let urls = [vllm.server.url()];
    let (mut fleet, _) =
        connect::<Vllm>(&urls, None, fleet_settings(), |settings| settings.sleep_level = 1).expect("answers");
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    assert!(!asleep(&vllm));
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_by("first", &sample);
}

#[test]
fn a_server_that_cannot_sleep_says_how_to_start_one_that_can() {
    let (_vllm, mut fleet) = vllm(Behaviour::default(), |settings| settings.sleep_level = 1);
    let weights = folder("first");
    publish(&mut fleet, 1, weights.path());
    let error = fleet.put_to_sleep().expect_err("it cannot").to_string();
    assert!(error.contains("Sleep mode is not enabled") && error.contains("--enable-sleep-mode"), "{error}");
}

#[test]
fn a_server_on_the_same_gpu_takes_weights_from_its_memory() {
    let handles = |text: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let body = json!({"names": [text], "dtype_names": ["bfloat16"], "shapes": [[1]], "ipc_handles_pickled": "g"});
        let path = folder.path().join(tamis_rollout::server::HANDLES);
        std::fs::write(path, body.to_string()).expect("written");
        write_probe(text, folder.path());
        let weights = Weights::Handles(folder.path().to_owned());
        (folder, Publication { version: PolicyVersion(1), weights })
    };
    let (vllm, mut fleet) = vllm(Behaviour { takes_handles: true, ..Behaviour::default() }, |_| {});
    changes(&vllm);
    let (_folder, first) = handles("first");
    fleet.publish(&first, InFlight::Wait).expect("begun");
    let events = fleet.next(Wait::Forever).expect("goes on");
    assert_eq!(events, [GeneratorEvent::Published { version: PolicyVersion(1) }]);
    let update = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights"];
    let rest = ["/finish_weight_update", RESET, RESET, "/update_weight_version", "/resume"];
    assert_eq!(changes(&vllm), [&["/pause?mode=wait"], &update[..], &rest].concat());
    let sample = only_sample(&mut fleet, request(0, 0));
    assert_by("first", &sample);

    let refuses = FakeVllm::start(Behaviour::default());
    let settings = FleetSettings { give_up_after: Some(Duration::from_millis(300)), ..fleet_settings() };
    let (mut fleet, _) = connect::<Vllm>(&[refuses.server.url()], None, settings, |_| {}).expect("answers");
    let (_folder, first) = handles("first");
    fleet.publish(&first, InFlight::Wait).expect("begun");
    let error = lost(&mut fleet);
    assert!(error.contains("not configured") && error.contains("--weight-transfer-config"), "{error}");
}
