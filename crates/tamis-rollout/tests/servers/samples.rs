//! Samples: spoiled answers, limits, and refusals before or after the request.

use super::*;

/// Two servers behind proxies that spoil a fifth of their answers in these ways, with the proxies' addresses.
fn spoiled(seed: u64, ways: &[Spoiling]) -> ([FakeVllm; 2], Vec<FaultProxy>, Vec<String>) {
    let servers = [FakeVllm::start(Behaviour::default()), FakeVllm::start(Behaviour::default())];
    let proxies: Vec<FaultProxy> = servers
        .iter()
        .enumerate()
        .map(|(place, vllm)| FaultProxy::start(vllm.server.address, seed + place as u64, 200, ways))
        .collect();
    let urls = proxies.iter().map(|proxy| proxy.server.url()).collect();
    (servers, proxies, urls)
}

#[test]
fn a_fifth_of_the_answers_spoiled_and_every_request_ends_once() {
    /// Fault class of each way of spoiling; slow and doubled answers are not faults of their own
    /// requests.
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
    let ways: Vec<Spoiling> =
        CLASSES.iter().map(|(way, _)| *way).chain([Spoiling::Trickle, Spoiling::Duplicate]).collect();
    let (servers, proxies, urls) = spoiled(0, &ways);
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
                assert_by("first", &sample);
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
    assert_eq!(spoiled.len(), ways.len(), "{spoiled:?}");
    let mut counted = fleet.fault_counts().samples.clone();
    // The second copy of a doubled answer reaches the next user of its connection, unless it came in
    // time to end that connection.
    let mut strays = 0;
    for (way, class) in CLASSES {
        let num = counted.remove(&class).unwrap_or_default();
        let more =
            num.checked_sub(spoiled[&way]).unwrap_or_else(|| panic!("{num} of {way:?} in {spoiled:?}"));
        let may_stray = matches!(class, FaultClass::WrongRequest | FaultClass::Reset);
        assert!(more == 0 || may_stray, "{num} of {way:?} in {spoiled:?}");
        strays += more;
    }
    assert!(strays <= 2 * spoiled[&Spoiling::Duplicate], "{strays} in {spoiled:?}");
    assert!(counted.is_empty(), "{counted:?}");
    let asked: u64 = servers.iter().map(|vllm| vllm.state.lock().unwrap().num_samples).sum();
    assert!(asked >= num);
}

/// A service that reports when it wants the next request.
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
    let (mut fleet, messages) = connect::<OpenAi>(&[server.url()], None, settings, |_| {}).expect("answers");
    for member in 0..10 {
        fleet.submit(request(0, member)).expect("taken");
    }
    let events = finish(&mut fleet);
    assert_eq!(events.iter().filter(|event| matches!(event, GeneratorEvent::Sampled { .. })).count(), 10);
    // The one or two that were in flight together, and nothing until it wants to be asked again.
    let busy = fleet.fault_counts().samples[&FaultClass::Busy];
    assert!((1..=2).contains(&busy), "{busy}");
    assert!(asked.lock().unwrap().0 > 2, "it was looked at meanwhile");
    let messages = messages.lock().unwrap();
    let [FleetMessage::TurnedAway { limit: 1, .. }] = &messages[..] else { panic!("{messages:?}") };
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
    nothing_for(&mut fleet, 200);
    fleet.abort(AbortScope::Group { purpose: SamplePurpose::Rollout, group: 0 });
    let mut aborted = Vec::new();
    while aborted.len() < 4 {
        for event in fleet.next(Wait::Forever).expect("goes on") {
            let GeneratorEvent::Aborted { id, spent } = event else { panic!("{event:?}") };
            aborted.push((id.group, spent.tokens));
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
    assert_by("first", &sample);
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
        // The server is taken out and no sample fails. Without another server the fleet is of no use.
        fleet.submit(request_with(0, 1, wrong)).expect("taken");
        let lost = lost(&mut fleet);
        assert!(lost.contains("training uses different ones"), "{lost}");
        // Another server may return them, and this one does not block samples that could succeed there.
        let good = FakeVllm::start(Behaviour { raw_logprobs: !raw_logprobs, ..Behaviour::default() });
        let both = [vllm.server.url(), good.server.url()];
        let (mut several, messages) = connect::<Vllm>(&both, None, fleet_settings(), |_| {}).expect("answer");
        for member in 0..50 {
            several.submit(request_with(member.into(), member, wrong)).expect("taken");
        }
        let sampled = |event: &GeneratorEvent| matches!(event, GeneratorEvent::Sampled { sample, .. } if !sample.logprobs.is_empty());
        assert_eq!(finish(&mut several).iter().filter(|event| sampled(event)).count(), 50);
        let lost = |message: &FleetMessage| matches!(message, FleetMessage::Lost { server, .. } if *server == both[0]);
        assert!(messages.lock().unwrap().iter().any(lost));
        let recompute = |settings: &mut ServerSettings| settings.other_logprobs = OtherLogprobs::Recompute;
        let (mut fleet, _) = connect::<Vllm>(&url, None, fleet_settings(), recompute).expect("answers");
        let sample = only_sample(&mut fleet, request_with(0, 1, wrong));
        assert!(sample.logprobs.is_empty() && !sample.token_ids.is_empty());
    }
}

/// Servers silently ignore unknown fields, so the answer is checked.
#[test]
fn a_completion_that_does_not_match_is_no_sample() {
    let recompute = |settings: &mut ServerSettings| settings.other_logprobs = OtherLogprobs::Recompute;
    let (_vllm, mut fleet) = vllm(Behaviour::default(), recompute);
    let bound = |regex: &str| Sampling { regex: Some(regex.to_owned()), ..sampling() };
    let sample = only_sample(&mut fleet, request_with(0, 0, &bound("[a-n]+")));
    assert!(sample.logprobs.is_empty(), "of the masked distribution");
    fleet.submit(request_with(0, 1, &bound("[0-9]+"))).expect("taken");
    let events = finish(&mut fleet);
    let [GeneratorEvent::Failed { kind: FailureKind::Permanent, reason, spent, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(reason.contains("does not match the expression") && spent.tokens > 0, "{reason}");
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
    let long = Sampling { max_response_length: 62, ..sampling() };
    let reason = refused(&mut fleet, request_with(0, 0, &long));
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
        format!("{}: refused: it does not serve the model \"other\", but tiny", url[0])
    );
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

/// A prompt with one image, whose token is 4, of three tokens.
fn request_with_image(group: u64) -> SampleRequest {
    SampleRequest {
        prompt: None,
        prompt_token_ids: Arc::from([2, 4, 4, 4, 3]),
        images: Arc::from(["/data/a.png".to_owned()]),
        ..request(group, 0)
    }
}

#[test]
fn a_server_makes_of_an_image_what_is_learned_from() {
    for (num_tokens, refusal) in [(3, None), (5, Some("7 tokens of a prompt with images that has 5 here"))] {
        let behaviour = Behaviour { tokens_of_image: Some((4, num_tokens)), ..Behaviour::default() };
        let (vllm, mut fleet) = vllm(behaviour, |settings| settings.image_token_id = Some(4));
        if let Some(refusal) = refusal {
            let reason = refused(&mut fleet, request_with_image(0));
            assert!(reason.contains(refusal), "{reason}");
        } else {
            only_sample(&mut fleet, request_with_image(0));
        }
        let state = vllm.state.lock().unwrap();
        assert_eq!(state.prompts.last(), Some(&serde_json::json!([2, 4, 3])), "one token for the image");
        assert_eq!(state.content_parts[0]["url"], "file:///data/a.png");
    }
    // A server that does not report the tokens of the image.
    let (_vllm, mut fleet) = vllm(Behaviour::default(), |settings| settings.image_token_id = Some(4));
    let reason = refused(&mut fleet, request_with_image(0));
    assert!(reason.contains("does not return the tokens that it made"), "{reason}");
}

#[test]
fn images_go_to_nobody_who_does_not_see_them() {
    let behaviour = Behaviour { scale_out: false, ..Behaviour::default() };
    let (_vllm, mut fleet) = vllm(behaviour, |settings| settings.image_token_id = Some(4));
    let reason = refused(&mut fleet, request_with_image(0));
    assert!(reason.contains("--enable-scale-out"), "{reason}");
}
