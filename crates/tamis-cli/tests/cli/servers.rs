//! Runs that sample at servers: `tamis train` against `tamis serve`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::listening::Listening;
use crate::serving::{from_the_policy, train, with_a_policy};
use crate::support::fake_vllm::{Answer, Answers, Asked, Behaviour, FakeVllm};
use crate::tamis::{Folder, words};

/// The metrics of each step, without clocks and without those of servers only: their faults, and their
/// difference from the learner, which is 0.
fn figures(folder: &Folder, run: &str) -> Vec<serde_json::Value> {
    let mut rows = folder.rows(run);
    for row in rows.iter_mut().filter_map(serde_json::Value::as_object_mut) {
        for name in
            ["rollout_corr/kl", "training/rollout_probs_diff_max", "sampling/sampling_logp_difference/max"]
        {
            assert!(row.get(name).is_none_or(|difference| *difference == 0.0), "{name} of {row:?}");
        }
        let others = [
            "timing_s/",
            "timing_per_token_ms/",
            "perf/",
            "rollout/server_",
            "rollout_corr/",
            "training/rollout_",
            "sampling/",
        ];
        row.retain(|name, _| others.iter().all(|start| !name.starts_with(start)) && name != "step_time");
    }
    rows
}

/// The server samples by our keys, so batches, metrics and weights are those of the run without servers, even
/// if the server or the run is killed.
#[test]
fn a_run_over_servers_is_the_run_without() {
    let folder = with_a_policy();
    train(&folder, "alone", &from_the_policy(&[]), &[]).succeeds();
    let servers = [0, 1].map(|_| Listening::serve(&folder, &["first"]));
    let over = from_the_policy(&[&servers[0].address, &servers[1].address]);
    let ended = train(&folder, "served", &over, &[]).succeeds();
    let weights = |run: &str| folder.weights(run, 4);
    assert!(weights("alone") == weights("served"), "{}", ended.shown());
    assert_eq!(figures(&folder, "alone"), figures(&folder, "served"));
    for served in folder.rows("served").iter().filter(|row| row["step"] != 0) {
        assert_eq!(served["training/rollout_probs_diff_valid"], 1.0, "{served}");
    }
    // Two steps, then one server less, then the rest.
    train(&folder, "part", &over, &["train.total_steps=2"]).succeeds();
    let [gone, _left] = servers;
    assert_eq!(gone.end("-KILL"), None);
    folder.tamis(&["train", "--resume", "runs/part", "train.total_steps=4"]).succeeds();
    assert!(weights("alone") == weights("part"));
    // Published folders do not accumulate.
    let published = std::fs::read_dir(folder.join("runs/served/published")).unwrap();
    let published: Vec<_> = published.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(published.len(), 2);
    for version in published {
        has_every_sum(&version);
    }
}

/// Checks that the manifest of published weights has every file of the folder with its checksum.
fn has_every_sum(version: &Path) {
    let sums: serde_json::Value =
        serde_json::from_slice(&std::fs::read(version.join("checksums.json")).unwrap()).unwrap();
    let found: BTreeMap<String, String> = std::fs::read_dir(version)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name() != "checksums.json")
        .map(|entry| {
            let sum = tamis_run::checksum::crc32(&std::fs::read(entry.path()).unwrap());
            (entry.file_name().into_string().unwrap(), format!("{sum:08x}"))
        })
        .collect();
    for name in ["model.safetensors", "config.json", "tokenizer.json", "probe.json"] {
        assert!(found.contains_key(name), "{name} is not in {found:?}");
    }
    assert_eq!(sums["crc32"], serde_json::to_value(&found).unwrap(), "{}", version.display());
}

/// Streaming: mini-batches are trained on while the servers generate the rest. The weights are those of whole
/// batches, and of the native run. A setting that needs the whole step is refused with the reason. With
/// groups in flight across publications everything is accounted for.
#[test]
fn mini_batches_of_a_stream_are_trained_on_before_their_step_is_complete() {
    let folder = with_a_policy();
    let streaming = "schedule.mode=streaming";
    train(&folder, "alone", &from_the_policy(&[]), &[streaming]).succeeds();
    let server = Listening::serve(&folder, &["first", "--test-sample-ms", "5"]);
    let over = from_the_policy(&[&server.address]);
    let weights = |run: &str| folder.weights(run, 4);
    for (name, setting) in
        [("early", "schedule.early_updates=true"), ("whole", "schedule.early_updates=false")]
    {
        train(&folder, name, &over, &[streaming, setting]).succeeds();
        assert!(weights("alone") == weights(name), "{name}");
    }
    let refused = train(&folder, "no", &over, &[streaming, "train.ppo_epochs=2"]).exits(2);
    for part in ["passed over more than once", "train.ppo_epochs", "schedule.early_updates=false"] {
        refused.says(part);
    }
    let carry = ["schedule.surplus=carry", "schedule.max_lag=1"];
    let carried = train(&folder, "carried", &over, &[&[streaming][..], &carry].concat()).succeeds();
    carried.says("correction decoupled_token_is");
    let lags = folder.rows("carried");
    assert!(lags.iter().any(|row| row["groups/in_flight_out"].as_f64().is_some_and(|groups| groups > 0.0)));
}

#[test]
fn completions_of_a_form_over_servers_are_those_without() {
    let folder = with_a_policy();
    let bound = ["rollout.regex=[1-9][0-9]?", "rollout.top_p=0.95", "rollout.temperature=1.2"];
    train(&folder, "alone", &from_the_policy(&[]), &bound).succeeds();
    let server = Listening::serve(&folder, &["first"]);
    let ended = train(&folder, "served", &from_the_policy(&[&server.address]), &bound).succeeds();
    assert_eq!(figures(&folder, "alone"), figures(&folder, "served"));
    ended.never_says("recomputes them");
}

/// Completions of digits, a function of the seed.
fn digits(folder: &Folder) -> Answers {
    let tokenizer: serde_json::Value =
        serde_json::from_str(&folder.read("first/checkpoints/step_1/tokenizer.json")).unwrap();
    let id = |digit: u8| tokenizer["model"]["vocab"][char::from(digit).to_string()].as_u64().unwrap();
    let digits: Vec<u32> = (b'0'..=b'9').map(|digit| id(digit) as u32).collect();
    Arc::new(move |asked: &Asked| {
        let digit = |place: u64| digits[(asked.seed >> (8 * place)) as usize % 10];
        let token_ids = vec![digit(0), digit(1), asked.ends[0]];
        Answer { token_ids, delay: Duration::from_millis(1) }
    })
}

fn vllm_of_digits(folder: &Folder) -> FakeVllm {
    vllm_of_digits_like(folder, Behaviour::default())
}

fn vllm_of_digits_like(folder: &Folder, behaviour: Behaviour) -> FakeVllm {
    FakeVllm::start(Behaviour { answers: Some(digits(folder)), ..behaviour })
}

#[test]
fn servers_sleep_after_the_last_sample_of_a_step() {
    let folder = with_a_policy();
    let vllm = vllm_of_digits_like(&folder, Behaviour { sleeps: true, ..Behaviour::default() });
    let served = from_the_policy(&[&vllm.server.url()]);
    let settings = ["rollout.sleep_level=1", "objective.advantage.kind=remax", "validate.test_freq=0"];
    train(&folder, "sleeps", &served, &settings).succeeds();
    let calls = std::mem::take(&mut vllm.state.lock().unwrap().calls);
    // A request for a sample wakes a server up completely.
    let is_meant =
        |call: &&str| ["/sleep", "/wake_up", "/collective_rpc"].iter().any(|one| call.starts_with(one));
    let order: Vec<&str> = calls.iter().map(String::as_str).filter(is_meant).collect();
    let step = ["/sleep?level=1", "/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"];
    assert_eq!(order, [&["/collective_rpc"][..], &step, &step, &step, &step].concat());
}

/// Log-probabilities of another distribution are not requested, and the learner computes them. The run equals
/// one that requested them and computed them again.
#[test]
fn log_probabilities_that_are_not_ours_are_computed_by_the_learner() {
    let folder = with_a_policy();
    let vllm = vllm_of_digits(&folder);
    let served = from_the_policy(&[&vllm.server.url()]);
    let ours = train(&folder, "ours", &served, &["rollout.save=all"]).succeeds();
    ours.never_says("recomputes them");
    let weights = |run: &str| folder.weights(run, 4);
    for (name, setting, with) in
        [("cut", "rollout.top_p=0.9", "top_p 0.9"), ("form", "rollout.regex=[0-9]{2}", "regex")]
    {
        let ended = train(&folder, name, &served, &[setting]).succeeds();
        let printed = format!(
            "vllm reports log-probabilities of the truncated distribution (processed_logprobs), but with {with} training uses different \
            ones: the learner recomputes them"
        );
        ended.says(&printed);
        assert!(weights("ours") == weights(name), "{name}");
        for (ours, other) in folder.rows("ours").iter().zip(folder.rows(name)) {
            let is_step = ours["step"] != 0;
            assert_eq!(ours["rollout_corr/kl"].is_number(), is_step, "{ours}");
            assert!(
                other["rollout_corr/kl"].is_null() && other["training/rollout_probs_diff_max"].is_null(),
                "{other}"
            );
            assert_eq!(other["timing_s/old_log_prob"].is_number(), is_step, "{other}");
            assert_eq!(ours["loss"], other["loss"], "{other}");
        }
    }
    let shown = folder.tamis(&["rollouts", "runs/cut", "--limit", "1", "--json"]).succeeds();
    let shown = shown.json();
    assert!(shown["rows"][0]["logprobs"][0].is_null(), "{shown}");
}

/// Passes calls on to a learner, and records for each whether the server slept when it came.
struct Relay {
    url: String,
    calls: Arc<Mutex<Vec<(String, bool)>>>,
}

impl Relay {
    fn begin(learner: &str, is_asleep: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (calls, is_asleep) = (Arc::new(Mutex::new(Vec::new())), Arc::new(is_asleep));
        let (learner, noted) = (learner.trim_start_matches("http://").to_owned(), Arc::clone(&calls));
        std::thread::spawn(move || {
            for caller in listener.incoming() {
                // A killed one is gone.
                let (Ok(caller), Ok(learner)) = (caller, TcpStream::connect(&learner)) else { continue };
                let back = (learner.try_clone().unwrap(), caller.try_clone().unwrap());
                let (noted, is_asleep) = (Arc::clone(&noted), Arc::clone(&is_asleep));
                std::thread::spawn(move || {
                    pass_on(caller, learner, |bytes| {
                        if let Some(rest) = bytes.strip_prefix(b"POST /v1/") {
                            let end = rest.iter().position(|&byte| byte == b' ').unwrap();
                            let call = String::from_utf8_lossy(&rest[..end]).into_owned();
                            noted.lock().unwrap().push((call, is_asleep()));
                        }
                    });
                });
                std::thread::spawn(move || pass_on(back.0, back.1, |_| {}));
            }
        });
        Self { url, calls }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, see: impl Fn(&[u8])) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        see(&bytes[..len]);
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn a_learner_computes_while_servers_sleep() {
    let folder = with_a_policy();
    let vllm = vllm_of_digits_like(&folder, Behaviour { sleeps: true, ..Behaviour::default() });
    let learner = Listening::learner(&folder, &["--listen", "127.0.0.1:0"]);
    let state = Arc::clone(&vllm.state);
    let relay = Relay::begin(&learner.address, move || !state.lock().unwrap().asleep.is_empty());
    let url = format!("learner.url={}", relay.url);
    let further = [
        &*url,
        "rollout.sleep_level=1",
        "rollout.top_p=0.9",
        "publish.verify=off",
        "validate.before_train=false",
    ];
    let kl = ["objective.kl.in=reward", "objective.kl.coefficient=0.01"];
    let served = from_the_policy(&[&vllm.server.url()]);
    train(&folder, "slept", &served, &[&further[..], &kl].concat()).succeeds().says("recomputes them");
    let calls = relay.calls.lock().unwrap();
    let computing = ["forward", "forward_hold", "backward", "optim_step"];
    let computed: Vec<_> = calls.iter().filter(|(call, _)| computing.contains(&&**call)).collect();
    assert!(computed.iter().any(|(call, _)| call == "forward"), "{calls:?}");
    assert!(computed.iter().all(|(_, slept)| *slept), "{calls:?}");
}

/// If servers share the learner's GPU, the learner that replaces a lost one is loaded while they sleep. The
/// checkpoint is saved after weights were published, so they were awake at the loss.
#[test]
fn a_learner_in_place_of_a_lost_one_is_loaded_while_servers_sleep() {
    let folder = with_a_policy();
    let opens = |name: &str, fault: &[&str]| {
        let vllm = vllm_of_digits_like(&folder, Behaviour { sleeps: true, ..Behaviour::default() });
        let mut learner = Listening::learner(&folder, &[&["--listen", "127.0.0.1:0"], fault].concat());
        let state = Arc::clone(&vllm.state);
        let relay = Relay::begin(&learner.address, move || !state.lock().unwrap().asleep.is_empty());
        let place = learner.address.trim_start_matches("http://").to_owned();
        let is_over = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                while learner.child.try_wait().unwrap().is_none() && !is_over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let _follower = (!is_over.load(Ordering::SeqCst))
                    .then(|| Listening::learner(&folder, &["--listen", &place]));
                while !is_over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let url = format!("learner.url={}", relay.url);
            let settings =
                [&*url, "rollout.sleep_level=1", "learner.lost_timeout=1s", "checkpoint.save_freq=2"];
            let ended = train(&folder, name, &from_the_policy(&[&vllm.server.url()]), &settings);
            is_over.store(true, Ordering::SeqCst);
            ended
        });
        ended.succeeds();
        relay.calls.lock().unwrap().clone()
    };
    let whole = opens("whole", &[]);
    let trained = whole.iter().position(|(call, _)| call == "optim_step").unwrap_or(whole.len());
    let is_meant = |place: &usize| whole[*place] == ("save".to_owned(), false);
    let Some(place) = (trained..whole.len()).find(is_meant) else {
        panic!("no save beside awake servers: {whole:?}")
    };
    let at = (place + 1).to_string();
    let lost = opens("lost", &["--test-fault", "killed-before", "--test-fault-at", &at]);
    let again: Vec<_> =
        lost[place + 1..].iter().filter(|(call, _)| call == "open" || call == "load").collect();
    assert!(!again.is_empty() && again.iter().all(|(_, slept)| *slept), "{lost:?}");
    let weights = |run: &str| folder.weights(run, 4);
    assert!(weights("lost") == weights("whole"));
}

/// As [`vllm_of_digits`], but it stops answering after so many samples.
fn vllm_that_sticks(folder: &Folder, most: usize) -> FakeVllm {
    let (answers, asked) = (digits(folder), AtomicUsize::new(0));
    let answers: Answers = Arc::new(move |one: &Asked| {
        let sticks = asked.fetch_add(1, Ordering::SeqCst) >= most;
        let delay = if sticks { Duration::from_secs(3600) } else { Duration::from_millis(1) };
        Answer { delay, ..answers(one) }
    });
    FakeVllm::start(Behaviour { answers: Some(answers), ..Behaviour::default() })
}

/// The state before a step is saved before a part of the step is trained on, and the step is abandoned if
/// Ctrl-C comes before the rest is there. Whatever happens to the learner at these two calls, a resume ends
/// like an undisturbed run.
#[test]
fn faults_of_a_learner_as_a_step_is_kept_and_given_up_lose_nothing() {
    let folder = with_a_policy();
    let settings = words(
        "schedule.mode=streaming ~filter rollout.max_in_flight=4 validate.before_train=false \
         validate.test_freq=0 checkpoint.save_freq=1 train.total_steps=2",
    );
    let whole = vllm_of_digits(&folder);
    let url = whole.server.url();
    train(&folder, "whole", &from_the_policy(&[&url]), &settings).succeeds();
    let weights = |run: &str| folder.weights(run, 2);
    let calls_of = |relay: &Relay| -> Vec<String> {
        relay.calls.lock().unwrap().iter().map(|(call, _)| call.clone()).collect()
    };
    // The first step has 4 groups of 4 samples; of the second a mini-batch of 2 comes.
    let broken_off = |fault: &[&str], timeout: &str| {
        let vllm = vllm_that_sticks(&folder, 16 + 8);
        let learner = Listening::learner(&folder, &[&["--listen", "127.0.0.1:0"], fault].concat());
        let relay = Relay::begin(&learner.address, || false);
        let learns = format!("learner.url={}", relay.url);
        let mut arguments =
            ["train", "tiny.yaml", "run.name=run", &learns, timeout, "learner.max_restarts=0"]
                .map(str::to_owned)
                .to_vec();
        arguments.extend(from_the_policy(&[&vllm.server.url()]));
        arguments.extend(settings.iter().map(|&setting| setting.to_owned()));
        let mut run = folder.start(&arguments);
        let steps = |calls: &[String]| calls.iter().filter(|call| *call == "optim_step").count();
        while run.try_wait().unwrap().is_none() && steps(&calls_of(&relay)) < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = Command::new("kill").args(["-INT", &run.id().to_string()]).stderr(Stdio::null()).status();
        let ended = folder.wait(run);
        let resume =
            ["train", "--resume", "runs/run", "learner.url=null", &format!("rollout.servers=[{url}]")];
        folder.tamis(&resume).succeeds();
        assert!(weights("run") == weights("whole"), "{fault:?}: {}", ended.shown());
        std::fs::remove_dir_all(folder.join("runs/run")).unwrap();
        (ended, calls_of(&relay))
    };
    let (ended, calls) = broken_off(&[], "learner.lost_timeout=20s");
    assert_eq!(ended.code, Some(130), "{}", ended.shown());
    for call in ["keep", "restore"] {
        let Some(place) = calls.iter().rposition(|one| one == call) else { panic!("no {call} in {calls:?}") };
        for fault in ["killed-before", "killed-after", "broken-before", "broken-after"] {
            let at = (place + 1).to_string();
            let is_killed = fault.starts_with("killed");
            let timeout = if is_killed { "learner.lost_timeout=20ms" } else { "learner.lost_timeout=20s" };
            let (ended, made) = broken_off(&["--test-fault", fault, "--test-fault-at", &at], timeout);
            assert_eq!(made[place], call, "{made:?}");
            // After Ctrl-C, a broken connection is not opened again.
            let expected = if is_killed || call == "restore" { 3 } else { 130 };
            assert_eq!(ended.code, Some(expected), "{fault} at {call}: {}", ended.shown());
        }
    }
}

#[test]
fn log_probabilities_that_are_not_ours_are_refused_where_they_are_trained_on() {
    let folder = with_a_policy();
    let vllm = vllm_of_digits(&folder);
    let url = vllm.server.url();
    let refused = |further: &[&str]| {
        train(&folder, "tiny", &from_the_policy(&[&url]), further).failure().replace(&url, "SERVER")
    };
    for correction in ["bypass_ppo_clip", "decoupled_token_is"] {
        let correction = format!("objective.correction.preset={correction}");
        let failure = refused(&["rollout.top_p=0.9", &correction]);
        let begins = "exit code 2\nerror: rollout.servers: SERVER: vllm reports log-probabilities of the truncated distribution";
        assert!(failure.starts_with(begins), "{failure}");
        let ends = "with top_p 0.9 training uses different ones\n  hint: turn that off";
        assert!(failure.contains(ends), "{failure}");
    }
    let failure = refused(&["rollout.regex=[0-9]+", "objective.loss.kind=decoupled"]);
    assert!(failure.contains("with regex training uses"), "{failure}");
}

#[test]
fn a_run_whose_servers_are_gone_for_good_can_be_resumed() {
    let folder = with_a_policy();
    let often = ["train.total_steps=6", "validate.test_freq=1", "checkpoint.save_freq=0"];
    train(&folder, "alone", &from_the_policy(&[]), &often).succeeds();
    let of_run = |run: &str, path: &str| folder.join(&format!("runs/{run}/{path}"));
    let weights =
        |run: &str| std::fs::read(of_run(run, "checkpoints/step_6/model.safetensors")).expect("weights");
    let signs = [
        ("sampling", None),
        ("measuring", Some("rollouts/step_3.parquet")),
        ("publishing", Some("published/version_3")),
    ];
    for (run, sign) in signs {
        let server = Listening::serve(&folder, &["first", "--test-sample-ms", "20"]);
        let over = from_the_policy(&[&server.address]);
        let name = format!("run.name={run}");
        let mut arguments = vec!["train", "tiny.yaml", &name];
        arguments.extend(over.iter().map(String::as_str));
        arguments.extend(often);
        arguments.extend(["rollout.server_lost_timeout=1s", "rollout.server_timeout=5s"]);
        let process = folder.start(&arguments);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let log = of_run(run, "metrics.jsonl");
        let has_trained = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count()) >= 2;
        while !sign.map_or_else(&has_trained, |sign| of_run(run, sign).exists()) {
            assert!(std::time::Instant::now() < until, "no step was trained");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(server.end("-KILL"), None);
        let ended = folder.wait(process);
        assert_eq!(ended.code, Some(3), "{run}: {}", ended.shown());
        assert!(
            ended.stderr.contains("if the run had begun, continue it with --resume"),
            "{run}: {}",
            ended.shown()
        );
        let other = Listening::serve(&folder, &["first"]);
        let servers = format!("rollout.servers=[{}]", other.address);
        folder.tamis(&["train", "--resume", &format!("runs/{run}"), &servers]).succeeds();
        assert!(weights("alone") == weights(run), "{run}");
        assert_eq!(figures(&folder, "alone"), figures(&folder, run), "{run}");
    }
}

#[test]
fn no_server_answers() {
    let folder = with_a_policy();
    let arguments = from_the_policy(&["http://127.0.0.1:9"]);
    let ended = train(&folder, "tiny", &arguments, &["rollout.server_startup_timeout=1s"]);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 3
    error: no server answers: http://127.0.0.1:9: connect: client error (Connect): tcp connect error: Connection refused (os error 111)
      hint: start the servers (`tamis serve CHECKPOINT`, or vLLM with VLLM_SERVER_DEV_MODE=1), and name them in rollout.servers; if the run had begun, continue it with --resume
    ");
    assert!(!folder.join("runs/tiny").exists());
}
