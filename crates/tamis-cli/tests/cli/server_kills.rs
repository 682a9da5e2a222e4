//! A run over a server that never answers the same twice is killed at any instant and resumed until it is
//! done. It has used every sample that it had, has requested no other a second time, and equals a run that
//! was never killed and got the same answers.
//!
//! Twelve kills and stops; `TAMIS_KILLS=100` for more, `TAMIS_KILL_SEED=N` to repeat them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::kills::{Dice, Stop, begun, killed_when, num_kills, start_run, writes_a_checkpoint};
use crate::serving::with_a_policy;
use crate::support::fake_vllm::{Answer, Answers, Asked, Behaviour, FakeVllm};
use crate::tamis::{Ended, Folder, Left, Replaced as _, TINY};
use tamis_core::random::Key;
use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, SyncPolicy};

/// A sample as a server knows it: its seed, and the version of the weights.
type Sampled = (u64, u64);

/// Requests that the server got.
#[derive(Default)]
struct Log {
    /// Samples in the journal, which need not be requested.
    had: HashSet<Sampled>,
    /// Samples in the journal that were requested all the same.
    again: Vec<Sampled>,
    num_asked: usize,
}

struct Server {
    vllm: FakeVllm,
    log: Arc<Mutex<Log>>,
}

impl Server {
    /// Answers with random digits, different each time.
    fn start(policy: &Path, dice: Dice) -> Self {
        let tokenizer = std::fs::read(policy.join("tokenizer.json")).unwrap();
        let tokenizer: serde_json::Value = serde_json::from_slice(&tokenizer).unwrap();
        let id = |digit: u8| tokenizer["model"]["vocab"][char::from(digit).to_string()].as_u64().unwrap();
        let digits: Vec<u32> = (b'0'..=b'9').map(|digit| id(digit) as u32).collect();
        let log = Arc::new(Mutex::new(Log::default()));
        let (shared, dice) = (Arc::clone(&log), Mutex::new(dice));
        let answers: Answers = Arc::new(move |asked: &Asked| {
            let mut log = shared.lock().unwrap();
            let version = asked.label.rsplit("-v").next().unwrap().parse().expect("the version of a run");
            log.num_asked += 1;
            if log.had.contains(&(asked.seed, version)) {
                log.again.push((asked.seed, version));
            }
            let mut dice = dice.lock().unwrap();
            let mut token_ids: Vec<u32> =
                (0..=dice.below(asked.most)).map(|_| digits[dice.below(10)]).collect();
            if token_ids.len() < asked.most {
                token_ids.push(asked.ends[0]);
            }
            Answer { token_ids, delay: Duration::from_secs_f64(0.004 * dice.roll()) }
        });
        let vllm = FakeVllm::start(Behaviour { answers: Some(answers), ..Behaviour::default() });
        Self { vllm, log }
    }

    /// Requested samples, and other calls.
    fn counts(&self) -> (usize, usize) {
        (self.log.lock().unwrap().num_asked, self.vllm.state.lock().unwrap().calls.len())
    }
}

/// An entry of the journal of samples.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    sampled: Sampled,
    /// Purpose, group, member and turn.
    place: String,
    is_rollout: bool,
}

fn journalled(run: &Path) -> Vec<Entry> {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("samples.bin");
    if std::fs::copy(run.join("samples.bin"), &copy).is_err() {
        return Vec::new();
    }
    let (_, found) = Journal::open(&Disk::without_flush(), &copy, SyncPolicy::OnDemand, 0).unwrap();
    let entry = |(_, payload): &(u64, Vec<u8>)| {
        let entry: serde_json::Value = serde_json::from_slice(payload).unwrap();
        let asked = &entry["asked"];
        let key: Key = serde_json::from_value(asked["key"].clone()).unwrap();
        let id = &asked["id"];
        Entry {
            // As vLLM gets it, a signed number.
            sampled: (key.bits(0) >> 1, asked["version"].as_u64().unwrap()),
            place: format!("{} {} {} {}", id["purpose"], id["group"], id["member"], id["turn"]),
            is_rollout: id["purpose"] == "rollout",
        }
    };
    found.records.iter().map(entry).collect()
}

/// No sample was drawn twice with the same weights for the same member of a group. If batches do not depend
/// on the timing, no sample of a prompt was drawn again with the same weights, and no member of a group with
/// others.
#[track_caller]
fn assert_asked_once(case: &Case, journal: &[Entry]) {
    let (mut all, mut sampled, mut members) = (HashSet::new(), HashSet::new(), HashSet::new());
    for entry in journal.iter().filter(|entry| entry.is_rollout) {
        assert!(all.insert(entry), "{}: {entry:?}", case.name);
    }
    for entry in journal.iter().filter(|_| !case.draws_again()) {
        assert!(sampled.insert(entry.sampled), "{}: by the same weights: {entry:?}", case.name);
        let is_new = !entry.is_rollout || members.insert((entry.sampled.0, &entry.place));
        assert!(is_new, "{}: for the same member: {entry:?}", case.name);
    }
}

/// A group's epoch and prompt, and whether it was trained on.
type Group = (u64, u64, bool);

fn groups(case: &Case, run: &Path) -> BTreeMap<u64, Group> {
    let mut groups: BTreeMap<u64, (Group, usize)> = BTreeMap::new();
    for entry in std::fs::read_dir(run.join("rollouts")).unwrap() {
        for row in tamis_data::records::Records::open(&entry.unwrap().path()).unwrap() {
            let row = row.unwrap().values;
            let of = |name: &str| row[name].as_u64().unwrap();
            let (group, num) =
                groups.entry(of("group_id")).or_insert(((of("epoch"), of("prompt_id"), false), 0));
            group.2 |= row["verdict"] == "trained";
            *num += 1;
        }
    }
    let screens = case.schedule.contains("screen_first");
    let is_whole = |(group, num): &(Group, usize)| *num == 4 || (screens && *num == 2 && !group.2);
    assert!(groups.values().all(is_whole), "{groups:?}");
    groups.into_iter().map(|(id, (group, _))| (id, group)).collect()
}

/// Files of a run, except for the order in which its groups ended: servers answer in any order.
fn left(run: &Path) -> Left {
    fn forget_arrivals(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                fields.remove("arrival");
                fields.values_mut().for_each(forget_arrivals);
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(forget_arrivals),
            _ => {}
        }
    }
    let mut left = Left::by(run);
    // The checksums of weights and optimizer belong to files that are compared.
    left.files.retain(|name, _| !name.ends_with("checksums.json"));
    for (name, bytes) in &mut left.files {
        if name.ends_with("state.json") {
            let mut state = serde_json::from_slice(bytes).unwrap();
            forget_arrivals(&mut state);
            *bytes = serde_json::to_vec_pretty(&state).unwrap();
        }
    }
    left
}

/// Configuration and server of a run.
struct Case {
    name: &'static str,
    schedule: &'static str,
}

impl Case {
    /// Whether groups that have grown too old are discarded and their prompts drawn again with the same
    /// weights.
    fn draws_again(&self) -> bool {
        self.schedule.contains("streaming") && self.schedule.contains("carry")
    }
}

const CASES: [Case; 6] = [
    Case { name: "rounds", schedule: "" },
    Case { name: "deficit, carried", schedule: "mode: deficit, surplus: carry, max_lag: 2, " },
    Case { name: "streaming", schedule: "mode: streaming, " },
    Case { name: "streaming, carried", schedule: "mode: streaming, surplus: carry, max_lag: 1, " },
    Case { name: "screened", schedule: "mode: streaming, screen_first: 2, " },
    Case {
        name: "screened, carried",
        schedule: "mode: streaming, surplus: carry, max_lag: 2, screen_first: 2, ",
    },
];

fn config(case: &Case, policy: &Path, server: &str) -> String {
    let policy = format!("path: {}\nunused: {{", policy.display());
    let text = TINY.replaced("total_steps: 6", "total_steps: 10").replaced("init: {", &policy);
    let is_used = |line: &&str| !line.starts_with("unused: ") && !line.starts_with("sft: ");
    let text = text.lines().filter(is_used).collect::<Vec<_>>().join("\n") + "\n";
    text.replaced("rollout: {", &format!("rollout: {{backend: vllm, servers: [{server}], "))
        .replaced("reward: [{kind: number}]", "reward: [{kind: format, pattern: '[0-2].*'}]")
        .replaced("filter: {kind: variance}", "filter: {kind: variance, metric: seq_reward}")
        .replaced("schedule: {", &format!("schedule: {{{}", case.schedule))
}

/// Kills or stops the run once: anywhere, in a checkpoint, in a publication, while samples are journalled.
/// Returns how it ended, if it ended first.
fn kill(folder: &Folder, server: &Server, whole: Duration, dice: &mut Dice) -> (String, Option<Ended>) {
    let begin = Instant::now();
    let (num_asked, num_calls) = server.counts();
    let at = whole.mul_f64(dice.roll());
    let little = Duration::from_secs_f64(0.003 * dice.roll());
    let published = |folder: &Folder| {
        let entries = std::fs::read_dir(folder.join("runs/tiny/published")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect::<BTreeSet<_>>()
    };
    let before = published(folder);
    let samples = 1 + dice.below(150);
    let calls = 5 + dice.below(60);
    let (what, is_time): (String, Box<dyn Fn() -> bool>) = match dice.below(5) {
        0 => (format!("after {at:?}"), Box::new(|| begin.elapsed() >= at)),
        1 => ("in a checkpoint".to_owned(), {
            Box::new(|| begin.elapsed() >= at && begun(folder).is_some_and(|run| writes_a_checkpoint(&run)))
        }),
        2 => ("while weights are written".to_owned(), {
            Box::new(|| begin.elapsed() >= at && !published(folder).is_subset(&before))
        }),
        3 => (format!("after {calls} calls"), Box::new(|| server.counts().1 >= num_calls + calls)),
        _ => (format!("after {samples} samples"), Box::new(|| server.counts().0 >= num_asked + samples)),
    };
    let stop = Stop::drawn(dice);
    let ended = killed_when(folder, &[], stop, || {
        let is_time = is_time();
        if is_time {
            std::thread::sleep(little);
        }
        is_time
    });
    (format!("{stop:?} {what} and {little:?}"), ended)
}

#[test]
fn a_run_over_servers_killed_at_any_instant_asks_for_what_it_lacks_alone() {
    let first = with_a_policy();
    let policy = first.join("first/checkpoints/step_1");
    let mut dice = Dice::new();
    let server = Server::start(&policy, dice.fork());
    let num = num_kills(12);
    let (mut num_done, mut whole) = (0, Duration::from_secs(2));
    for round in 0.. {
        let case = &CASES[round % CASES.len()];
        if num_done >= num {
            break;
        }
        let config = config(case, &policy, &server.vllm.server.url());
        let folder = Folder::new().with("config.yaml", &config);
        let run = folder.join("runs/tiny");
        // Each case gets a share of the kills at a time, again and again.
        let share = (num - num_done).min(num.div_ceil(CASES.len()).min(10));
        let mut early = None;
        for _ in 0..share {
            let (when, ended) = kill(&folder, &server, whole, &mut dice);
            if ended.is_some() {
                early = ended;
                break;
            }
            num_done += 1;
            let journal = journalled(&run);
            println!("kill {num_done}, {}: {when}; {} samples journalled", case.name, journal.len());
            assert_asked_once(case, &journal);
            if !case.draws_again() {
                let had = journal.into_iter().map(|entry| entry.sampled).collect();
                server.log.lock().unwrap().had = had;
            }
        }
        let ended = early.unwrap_or_else(|| folder.wait(start_run(&folder, &[])));
        assert_eq!(ended.code, Some(0), "{}: {}", case.name, ended.shown());
        ended.says("groups of the run: ");
        let mut log = server.log.lock().unwrap();
        assert_eq!(std::mem::take(&mut log.again), [], "{}: the journal had them", case.name);
        log.had.clear();
        drop(log);
        let journal = journalled(&run);
        assert_asked_once(case, &journal);
        let groups = groups(case, &run);
        let trained: Vec<(u64, u64)> =
            groups.values().filter(|group| group.2).map(|&(epoch, prompt, _)| (epoch, prompt)).collect();
        assert_eq!(trained.len(), 10 * 4, "{}", case.name);
        assert_eq!(
            trained.iter().collect::<BTreeSet<_>>().len(),
            trained.len(),
            "{}: trained twice",
            case.name
        );
        if !case.schedule.contains("streaming") {
            // Prompts are drawn in order, and every one of them is somewhere.
            let drawn: BTreeSet<(u64, u64)> =
                groups.values().map(|&(epoch, prompt, _)| (epoch, prompt)).collect();
            assert_eq!(drawn.len(), groups.len(), "{}: a prompt drawn twice", case.name);
            let last = drawn.last().unwrap().0;
            for epoch in 0..last {
                assert_eq!(drawn.iter().filter(|(of, _)| *of == epoch).count(), 64, "{}", case.name);
            }
        }

        // The run that was never killed and got the same answers, in the same order if that matters.
        let replay = Folder::new().with("config.yaml", &config);
        let files = ["config.yaml", "started", "samples.bin", "order.bin"];
        let num = if case.schedule.contains("streaming") { 4 } else { 3 };
        folder.copy("runs/tiny", &replay, "runs/tiny", &files[..num]);
        let (before, begin) = (server.counts().0, Instant::now());
        let replayed = replay.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
        whole = begin.elapsed();
        let replay = replay.join("runs/tiny");
        assert_eq!(server.counts().0, before, "{}: what was asked for was not journalled", case.name);
        assert_eq!(ended.stdout, replayed.stdout, "{}", case.name);
        left(&run).assert_same(&left(&replay));
    }
    println!("{num_done} kills");
}
