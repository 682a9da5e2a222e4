//! Weights that a learner sends to servers over communicators, and what happens if that fails.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::JoinHandle;

use support::fake_vllm::{Play, Plays};
use tamis_rollout::server::{Past, Restart, SendTimes, Sender, TRANSFER};

use super::*;

/// Longest time of a transfer, and what either side has beyond it.
const TIMES: SendTimes = SendTimes { timeout: Duration::from_millis(600), grace: Duration::from_millis(400) };

/// A learner's answer to the calls of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sends {
    Well,
    Badly,
    Never,
    /// It cannot write a folder either.
    Nothing,
}

/// A learner that sends: its calls in order, and the folders that it wrote.
struct FakeLearner {
    server: TestServer,
    asked: Arc<Mutex<Vec<String>>>,
    /// Number of abandoned communicators. That answer is not waited for, so it may arrive after that of a
    /// later request.
    aborts: Arc<AtomicUsize>,
    sends: Arc<Mutex<Sends>>,
}

impl FakeLearner {
    fn start() -> Self {
        let (asked, sends) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Mutex::new(Sends::Well)));
        let (heard, plays) = (Arc::clone(&asked), Arc::clone(&sends));
        let (joins, aborts) = (AtomicUsize::new(0), Arc::<AtomicUsize>::default());
        let heard_aborts = Arc::clone(&aborts);
        let handler: Handler = Arc::new(move |request| {
            let body = request.json();
            let name = request.path.trim_start_matches("/v1/transfer/").to_owned();
            let of = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
            match name.as_str() {
                "abort" => _ = heard_aborts.fetch_add(1, Ordering::SeqCst),
                "join" => heard.lock().unwrap().push(format!("join {}", body["workers"])),
                "send" => heard.lock().unwrap().push(format!("send {}", of("communicator"))),
                other => heard.lock().unwrap().push(other.to_owned()),
            }
            let count = joins.fetch_add(usize::from(name == "join"), Ordering::SeqCst) + 1;
            let fails = |status: u16, message: &str| {
                Reply::json(status, &json!({"error": {"kind": "failed", "message": message, "hint": null}}))
            };
            let reply = match (name.as_str(), *plays.lock().unwrap()) {
                ("join", _) => {
                    let init_info = json!({"nccl_unique_id_b64": "id", "world_size": 3});
                    let body = json!({"communicator": format!("c{count}"), "init_info": init_info});
                    Reply::json(200, &body)
                }
                ("send", Sends::Badly) => fails(500, "the workers did not take the weights within 0.6 s"),
                ("write", Sends::Nothing) => fails(500, "no room"),
                ("send", Sends::Never | Sends::Nothing) => {
                    Reply { delivery: Delivery::Hang, ..Reply::empty() }
                }
                ("write", _) => {
                    let folder = of("folder");
                    std::fs::create_dir(&folder).expect("made");
                    for (name, text) in
                        [("config.json", of("snapshot")), ("model.safetensors", String::new())]
                    {
                        std::fs::write(format!("{folder}/{name}"), text).expect("written");
                    }
                    Reply::json(200, &json!({}))
                }
                _ => Reply::json(200, &json!({})),
            };
            Box::pin(async move { reply })
        });
        Self { server: TestServer::start(None, handler), asked, aborts, sends }
    }

    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Waits until so many communicators were abandoned since the start.
    fn await_aborts(&self, count: usize) {
        let began = Instant::now();
        while self.aborts.load(Ordering::SeqCst) < count {
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", self.aborts);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.aborts.load(Ordering::SeqCst), count);
    }

    fn plays(&self, sends: Sends) {
        *self.sends.lock().unwrap() = sends;
    }
}

/// A snapshot of weights of this name, and their probe.
fn snapshot(weights: &str, version: u64) -> (tempfile::TempDir, Publication) {
    let folder = tempfile::tempdir().expect("a folder");
    let body = json!({"snapshot": weights, "library": "NCCL 2.30.7", "names": [weights], "dtype_names": ["bfloat16"], "shapes": [[1]]});
    std::fs::write(folder.path().join(TRANSFER), body.to_string()).expect("written");
    write_probe(weights, folder.path());
    let weights = Weights::Transfer(folder.path().to_owned());
    (folder, Publication { version: PolicyVersion(version), weights })
}

struct Sent {
    vllm: FakeVllm,
    learner: FakeLearner,
    fleet: Fleet,
    said: Said,
    plays: Arc<Mutex<Plays>>,
    restarts: Arc<AtomicUsize>,
    /// Whether the server works once it is started again.
    heals: Arc<AtomicBool>,
    past: Past,
}

/// A run's connection to a server whose place has this past.
fn connect_to(
    vllm: &FakeVllm,
    learner: &FakeLearner,
    past: &Past,
    restart: Option<&Restart>,
) -> (Fleet, Said) {
    connect_with::<Vllm>(
        &[vllm.server.url()],
        None,
        fleet_settings(),
        |settings| settings.publish_timeout = Duration::from_secs(2),
        |client, bell, server| {
            let address = Address::parse(&learner.server.url()).expect("an address");
            let line = client.line(address, None, bell.clone()).expect("a line");
            let (past, restart) = (past.clone(), restart.cloned());
            server.with_sender(Sender::new(Box::new(line), "mine".to_owned(), TIMES, restart, past))
        },
    )
    .expect("answers")
}

impl Sent {
    /// A server and a learner; `restarts`: whether the run can start the server again.
    fn begin(version: &'static str, can_restart: bool) -> Self {
        let plays = Arc::new(Mutex::new(WORKS));
        let takes_transfers = Some(Arc::clone(&plays));
        let vllm = FakeVllm::start(Behaviour { takes_transfers, version, ..Behaviour::default() });
        let learner = FakeLearner::start();
        let restarts = Arc::new(AtomicUsize::new(0));
        let heals = Arc::new(AtomicBool::new(true));
        let restart = |restarts: &Arc<AtomicUsize>, plays: &Arc<Mutex<Plays>>| -> Restart {
            let (restarts, plays, heals) = (Arc::clone(restarts), Arc::clone(plays), Arc::clone(&heals));
            let state = Arc::clone(&vllm.state);
            Arc::new(move || {
                restarts.fetch_add(1, Ordering::SeqCst);
                state.lock().unwrap().has_parts = false;
                let mut plays = plays.lock().unwrap();
                let wants_weights = plays.wants_weights;
                *plays = if heals.load(Ordering::SeqCst) {
                    Plays { wants_weights, ..WORKS }
                } else {
                    Plays { is_stuck: false, ..*plays }
                };
            })
        };
        let past = Past::default();
        let restart = can_restart.then(|| restart(&restarts, &plays));
        let (fleet, said) = connect_to(&vllm, &learner, &past, restart.as_ref());
        vllm.state.lock().unwrap().calls.clear();
        Self { vllm, learner, fleet, said, plays, restarts, heals, past }
    }

    fn plays(&self, init: Play, update: Play) {
        *self.plays.lock().unwrap() = Plays { init, update, ..WORKS };
    }

    fn publish(&mut self, weights: &str, version: u64) {
        let (_folder, publication) = snapshot(weights, version);
        self.fleet.publish(&publication, InFlight::Wait).expect("begun");
        let began = Instant::now();
        let events = self.fleet.next(Wait::Until(began + Duration::from_secs(20))).expect("goes on");
        assert_eq!(events, [GeneratorEvent::Published { version: PolicyVersion(version) }]);
        let sample = only_sample(&mut self.fleet, request(version, 0));
        assert_by(weights, &sample);
    }

    /// Calls of the server that change it, but for what comes after the weights.
    fn take_calls(&self) -> Vec<String> {
        let calls = std::mem::take(&mut self.vllm.state.lock().unwrap().calls);
        let of_weights = ["_weight", "/get_world", "/collective", "/pause", "/resume"];
        let is_meant = |call: &String| {
            !call.contains("version")
                && !call.contains("_info")
                && of_weights.iter().any(|part| call.contains(part))
        };
        calls.into_iter().filter(is_meant).collect()
    }

    fn take_said(&self) -> String {
        let said = std::mem::take(&mut *self.said.lock().unwrap());
        said.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    /// Learner and server recover this many milliseconds after an event.
    fn heals_after(&self, millis: u64, has_happened: impl Fn() -> bool + Send + 'static) -> JoinHandle<()> {
        let (heal, plays) = (Arc::clone(&self.learner.sends), Arc::clone(&self.plays));
        std::thread::spawn(move || {
            while !has_happened() {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(millis));
            *heal.lock().unwrap() = Sends::Well;
            let mut plays = plays.lock().unwrap();
            *plays = Plays { is_stuck: plays.is_stuck, ..WORKS };
        })
    }

    /// Publishes in vain: the error that ends the fleet.
    fn publish_in_vain(&mut self, weights: &str, version: u64) -> String {
        let (_folder, publication) = snapshot(weights, version);
        self.fleet.publish(&publication, InFlight::Wait).expect("begun");
        lost(&mut self.fleet)
    }

    fn num_transfer_faults(&self) -> u64 {
        self.fleet.fault_counts().servers.get(&FaultClass::Transfer).copied().unwrap_or_default()
    }
}

const WORKS: Plays = Plays { init: Play::Works, update: Play::Works, is_stuck: false, wants_weights: false };
const INIT: &str = "/init_weight_transfer_engine";

#[test]
fn a_communicator_is_made_once_and_sends_every_version() {
    let mut sent = Sent::begin("0.33.0", false);
    sent.publish("first", 1);
    let update = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"];
    assert_eq!(sent.take_calls(), [&["/pause?mode=wait", "/get_world_size", INIT], &update[..]].concat());
    assert_eq!(sent.learner.take_asked(), ["join 2", "send c1"]);
    assert_eq!(
        sent.vllm.state.lock().unwrap().init_info,
        json!({"nccl_unique_id_b64": "id", "world_size": 3})
    );
    sent.publish("second", 2);
    assert_eq!(sent.take_calls(), [&["/pause?mode=wait"], &update[..]].concat());
    assert_eq!(sent.learner.take_asked(), ["send c1"]);
    assert_eq!((sent.take_said().as_str(), sent.num_transfer_faults()), ("", 0));
}

#[test]
fn what_cannot_be_sent_goes_by_a_folder_and_the_next_version_by_a_new_communicator() {
    let mut sent = Sent::begin("0.33.0", false);
    sent.publish("first", 1);
    // The server reports that it failed, while the learner waits for it.
    sent.learner.plays(Sends::Never);
    sent.plays(Play::Works, Play::Fails("out of memory"));
    sent.learner.take_asked();
    sent.take_calls();
    let began = Instant::now();
    sent.publish("second", 2);
    assert!(began.elapsed() < Duration::from_secs(10));
    let tried = ["/pause?mode=wait", "/start_weight_update", "/update_weights"];
    // The server's partial update is dropped first: otherwise it would count as part of the next one.
    let undone = ["/start_weight_update", "/finish_weight_update", "/collective_rpc", "/resume"];
    assert_eq!(sent.take_calls(), [&tried[..], &undone].concat());
    assert_eq!(sent.learner.take_asked(), ["send c1", "write"]);
    sent.learner.await_aborts(1);
    let said = sent.take_said();
    assert!(said.contains("gets the weights through a folder: HTTP 500: out of memory"), "{said}");

    // The learner reports it, and the server answers once the communicator is gone.
    sent.learner.plays(Sends::Badly);
    sent.plays(Play::Works, Play::Works);
    sent.publish("third", 3);
    assert_eq!(sent.learner.take_asked(), ["join 2", "send c2", "write"]);
    sent.learner.await_aborts(2);
    let said = sent.take_said();
    assert!(said.contains("the learner: HTTP 500: the workers did not take the weights"), "{said}");

    sent.learner.plays(Sends::Well);
    sent.take_calls();
    sent.publish("fourth", 4);
    assert_eq!(sent.learner.take_asked(), ["join 2", "send c3"]);
    assert!(!sent.take_calls().contains(&"/collective_rpc".to_owned()));
    assert_eq!((sent.take_said().as_str(), sent.num_transfer_faults()), ("", 2));
}

#[test]
fn after_three_versions_in_vain_a_server_is_given_folders() {
    let mut sent = Sent::begin("0.32.0", false);
    sent.plays(Play::Fails("NCCL error: invalid usage"), Play::Works);
    for version in 1..=3 {
        sent.publish("refused", version);
        assert_eq!(sent.learner.take_asked(), ["join 2", "write"]);
        sent.learner.await_aborts(version as usize);
        let said = sent.take_said();
        let why =
            "the learner has 2.30.7, and this vLLM comes with 2.29.7 (VLLM_NCCL_SO_PATH may name another)";
        assert!(said.contains(why) && said.contains("--weight-transfer-config"), "{said}");
        assert_eq!(said.contains("this holds until it is restarted"), version == 3, "{said}");
    }
    sent.publish("fourth", 4);
    assert_eq!(sent.learner.take_asked(), ["write"]);
    assert_eq!(sent.take_said(), "");
}

#[test]
fn a_release_without_unique_ids_is_given_folders_and_that_is_said_once() {
    for version in ["0.29.1", "0.9"] {
        let mut sent = Sent::begin(version, false);
        sent.publish("first", 1);
        sent.publish("second", 2);
        assert_eq!(sent.learner.take_asked(), ["write", "write"]);
        let said = sent.take_said();
        assert_eq!(
            said.matches("does not take a unique id of NCCL (0.30 and later do)").count(),
            1,
            "{said}"
        );
    }
}

#[test]
fn a_server_whose_workers_stand_in_nccl_is_started_again() {
    for sends in [Sends::Badly, Sends::Never] {
        let mut sent = Sent::begin("0.33.0", true);
        sent.learner.plays(sends);
        sent.plays(Play::Works, Play::Hangs);
        let restarts = Arc::clone(&sent.restarts);
        let healer = sent.heals_after(0, move || restarts.load(Ordering::SeqCst) > 0);
        let began = Instant::now();
        sent.publish("first", 1);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        healer.join().expect("healed");
        assert_eq!(sent.restarts.load(Ordering::SeqCst), 1);
        let asked = sent.learner.take_asked();
        // One that comes back is sent the weights again, over a communicator of its own.
        assert_eq!(asked.last().map(String::as_str), Some("send c2"), "{asked:?}");
        assert!(!asked.contains(&"write".to_owned()), "{asked:?}");
        sent.learner.await_aborts(1);
        let said = sent.take_said();
        assert!(said.contains("its workers still wait in NCCL: it is stopped and restarted"), "{said}");
    }
}

#[test]
fn a_server_that_nobody_can_start_again_is_not_used() {
    let mut sent = Sent::begin("0.33.0", false);
    sent.learner.plays(Sends::Badly);
    sent.plays(Play::Works, Play::Hangs);
    let error = sent.publish_in_vain("first", 1);
    assert!(error.contains("version 1 was not loaded"), "{error}");
    let said = sent.take_said();
    assert!(said.contains("its workers still wait in NCCL: start it again"), "{said}");
    assert!(!said.contains("is used"), "{said}");
}

#[test]
fn a_server_that_dies_is_not_written_a_folder() {
    let mut sent = Sent::begin("0.33.0", false);
    sent.learner.plays(Sends::Never);
    sent.plays(Play::Works, Play::Dies);
    let aborts = Arc::clone(&sent.learner.aborts);
    let healer = sent.heals_after(0, move || aborts.load(Ordering::SeqCst) > 0);
    sent.publish("first", 1);
    healer.join().expect("healed");
    assert!(!sent.learner.take_asked().contains(&"write".to_owned()));
    let said = sent.take_said();
    assert!(said.contains("is not used for now: reset: version 1 was not loaded"), "{said}");
}

#[test]
fn a_learner_that_is_gone_costs_the_version_and_not_the_server() {
    let mut sent = Sent::begin("0.33.0", false);
    sent.publish("first", 1);
    drop(sent.learner);
    let (_folder, publication) = snapshot("second", 2);
    sent.fleet.publish(&publication, InFlight::Wait).expect("begun");
    let error = lost(&mut sent.fleet);
    assert!(error.contains("transfer: version 2 was not loaded: the learner: "), "{error}");
}

#[test]
fn what_broke_off_in_a_server_is_undone_also_where_no_folder_could_be_written() {
    let mut sent = Sent::begin("0.32.0", false);
    sent.learner.plays(Sends::Nothing);
    sent.plays(Play::Works, Play::Fails("out of memory"));
    let asked = Arc::clone(&sent.learner.asked);
    let healer = sent.heals_after(100, move || asked.lock().unwrap().contains(&"write".to_owned()));
    sent.publish("first", 1);
    healer.join().expect("healed");
    assert_eq!(sent.learner.take_asked().last().map(String::as_str), Some("send c2"));
    let (update, undone) = ("/update_weights", ["/start_weight_update", "/finish_weight_update"]);
    let calls = sent.take_calls();
    let first = calls.iter().position(|call| call == update).expect("tried");
    let tried_again = &calls[first + 1..];
    let place = tried_again.iter().position(|call| call == undone[0]).expect("begun again");
    assert_eq!(tried_again[place..place + 2], undone, "{calls:?}");
    assert!(!sent.take_said().contains("probe"));
}

#[test]
fn a_server_that_cannot_undo_what_broke_off_is_started_again_and_has_nothing_to_undo() {
    let mut sent = Sent::begin("0.32.0", true);
    *sent.plays.lock().unwrap() =
        Plays { update: Play::Fails("out of memory"), wants_weights: true, ..WORKS };
    sent.publish("first", 1);
    assert_eq!(sent.restarts.load(Ordering::SeqCst), 1);
    let said = sent.take_said();
    assert!(
        said.contains("an update broke off in it, which it cannot complete: it is stopped and restarted"),
        "{said}"
    );
}

#[test]
fn a_server_that_does_not_meet_the_learner_is_started_again_once_and_given_folders() {
    let mut sent = Sent::begin("0.33.0", true);
    sent.heals.store(false, Ordering::SeqCst);
    sent.plays(Play::Hangs, Play::Works);
    sent.publish("first", 1);
    assert_eq!(sent.restarts.load(Ordering::SeqCst), 1);
    let said = sent.take_said();
    for part in ["through a folder: ", "a firewall", "`NCCL_SOCKET_IFNAME`", "`publish.mode: folder`"] {
        assert_eq!(said.matches(part).count(), 1, "{part}: {said}");
    }
    assert_eq!(sent.learner.take_asked(), ["join 2", "write"]);
    sent.publish("second", 2);
    assert_eq!(sent.learner.take_asked(), ["write"]);
    assert_eq!((sent.take_said().as_str(), sent.restarts.load(Ordering::SeqCst)), ("", 1));
}

#[test]
fn a_server_whose_workers_stand_in_nccl_three_times_is_given_folders() {
    let mut sent = Sent::begin("0.33.0", true);
    sent.heals.store(false, Ordering::SeqCst);
    sent.learner.plays(Sends::Badly);
    sent.plays(Play::Works, Play::Hangs);
    sent.publish("first", 1);
    assert_eq!(sent.restarts.load(Ordering::SeqCst), 3);
    let asked = sent.learner.take_asked();
    assert_eq!(asked.iter().filter(|ask| ask.starts_with("send")).count(), 3, "{asked:?}");
    let said = sent.take_said();
    assert_eq!(said.matches("that happened too often").count(), 1, "{said}");
    sent.publish("second", 2);
    assert_eq!(sent.learner.take_asked(), ["write"]);
}

#[test]
fn what_broke_off_with_a_learner_is_undone_by_the_next() {
    let mut sent = Sent::begin("0.32.0", false);
    sent.learner.plays(Sends::Nothing);
    sent.plays(Play::Works, Play::Fails("the other end is gone"));
    let (_folder, publication) = snapshot("first", 1);
    sent.fleet.publish(&publication, InFlight::Wait).expect("begun");
    let began = Instant::now();
    while !sent.learner.asked.lock().unwrap().contains(&"write".to_owned()) {
        sent.fleet.next(Wait::Until(Instant::now() + Duration::from_millis(20))).expect("goes on");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    // The run starts again with the same server.
    sent.learner.plays(Sends::Well);
    *sent.plays.lock().unwrap() = WORKS;
    (sent.fleet, sent.said) = connect_to(&sent.vllm, &sent.learner, &sent.past, None);
    sent.learner.take_asked();
    sent.take_calls();
    sent.publish("second", 2);
    let undone = ["/start_weight_update", "/finish_weight_update", "/get_world_size", INIT];
    let calls = sent.take_calls();
    assert!(calls.windows(4).any(|part| part == undone), "{calls:?}");
    assert!(!sent.learner.take_asked().contains(&"write".to_owned()));
}
