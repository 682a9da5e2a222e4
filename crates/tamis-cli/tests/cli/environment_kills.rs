//! Runs in environments that never answer the same twice are killed at any instant and resumed until they are
//! done. A finished episode is never played again, and the run equals one that was never killed and got the
//! same answers.
//!
//! Each case is killed 4 times, or as often as `TAMIS_KILLS` says.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use tamis_core::random::Key;
use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, SyncPolicy};

use crate::kills::{Dice, Stop, begun, killed_when, num_kills, start_run};
use crate::resume::Undisturbed;
use crate::tamis::{Ended, Folder, Left, Replaced as _};

const CONFIG: &str = "\
run: {name: tiny, seed: 5, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 512}
data: {DATA, train_batch_size: 4, gen_batch_size: 4, max_prompt_length: 64}
environment: {ENVIRONMENT}
rollout: {n: 4, max_response_length: 6}
filter: {kind: variance, metric: seq_reward}
schedule: {SCHEDULE}
train: {total_steps: 6, optimizer: {learning_rate: 1e-2}}
validate: {test_freq: 2, before_train: true}
checkpoint: {save_freq: 2}
";

/// Two turns, each with a random reward; sometimes it fails. Every episode that begins is a line of
/// `begun.txt`.
const NOISE: &str = r#"
import json, os, sys, time

turns = {}
def chance(below):
    return int.from_bytes(os.urandom(4), "little") % below

def answer(op, asked):
    if op == "hello":
        return {"protocol": "tamis-environment/1", "name": "noise", "is_deterministic": False}
    if op == "levels":
        first = 0 if asked["split"] == "train" else 100
        return {"levels": [{"level": n, "prompt": f"go {n}"} for n in range(first, first + min(asked["count"], 48))]}
    if op == "reset":
        turns[asked["episode"]] = 0
        with open("begun.txt", "a") as begun:
            begun.write(asked["luck"] + "\n")
        return {}
    if op == "step":
        turns[asked["episode"]] += 1
        time.sleep(chance(3) / 1000)
        if chance(60) == 0:
            return {"error": {"message": "out of luck"}}
        over = turns[asked["episode"]] == 2
        shown = [] if over else [{"role": "user", "content": f"now {chance(10)}"}]
        return {"messages": shown, "reward": chance(3) / 2, "terminated": over, "info": {"noise": chance(100)}}
    return {}

for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"]} | answer(asked["op"], asked)), flush=True)
"#;

/// Calls twice, the second time after something random, and gets a random reward.
const AGENT: &str = r#"
import json, os, sys, urllib.request

task = json.loads(sys.stdin.readline())
with open("begun.txt", "a") as begun:
    begun.write(f"{task['luck']}\n")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def chance(below):
    return int.from_bytes(os.urandom(4), "little") % below

def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["TAMIS_MODEL"], "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with opener.open(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]["message"]

talk = list(task["messages"])
talk += [ask(talk), {"role": "user", "content": f"again {chance(10)}"}]
ask(talk)
if chance(40) == 0:
    sys.exit("out of luck")
print(json.dumps({"reward": chance(3) / 2, "info": {"noise": chance(100)}}))
"#;

/// A run with random answers.
struct Case {
    name: &'static str,
    schedule: &'static str,
    is_program: bool,
}

const CASES: [Case; 3] = [
    Case { name: "rounds", schedule: "max_num_gen_batches: 50", is_program: false },
    Case {
        name: "streaming, carried",
        schedule: "mode: streaming, surplus: carry, max_lag: 2, max_num_gen_batches: 50",
        is_program: false,
    },
    Case { name: "program", schedule: "max_num_gen_batches: 50", is_program: true },
];

impl Case {
    fn folder(&self) -> Folder {
        let config = CONFIG.replaced("SCHEDULE", self.schedule);
        if self.is_program {
            let row = |n| format!("{{\"prompt\": \"say {n}\"}}\n");
            let config = config
                .replaced("DATA", "train: train.jsonl, val: val.jsonl, prompt_format: text")
                .replaced(
                    "ENVIRONMENT",
                    "kind: program, argv: [python3, agent.py], style: plain, max_concurrent: 4, prompting: {max_turns: 2}",
                )
                .replaced("total_steps: 6", "total_steps: 3");
            return Folder::new()
                .with("config.yaml", &config)
                .with("agent.py", AGENT)
                .with("train.jsonl", &(0..48).map(row).collect::<String>())
                .with("val.jsonl", &(100..102).map(row).collect::<String>());
        }
        let environment = "kind: command, argv: [python3, noise.py], style: plain, num_processes: 2, prompting: {max_turns: 3}, train_size: 48, val_size: 4";
        let config = config.replaced("DATA", "task: environment").replaced("ENVIRONMENT", environment);
        Folder::new().with("config.yaml", &config).with("noise.py", NOISE)
    }

    /// Whether groups that have grown too old are discarded and their prompts drawn again.
    fn draws_again(&self) -> bool {
        self.schedule.contains("carry")
    }

    /// The key by which an episode draws.
    fn luck(&self, key: Key) -> String {
        let bits = key.with(u64::MAX).bits(0);
        if self.is_program { bits >> 32 } else { bits }.to_string()
    }

    /// The luck of every journalled training episode. The journal is not changed.
    fn journalled(&self, run: &Path) -> HashSet<String> {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("episodes.bin");
        if std::fs::copy(run.join("episodes.bin"), &copy).is_err() {
            return HashSet::new();
        }
        let (_, found) = Journal::open(&Disk::without_flush(), &copy, SyncPolicy::OnDemand, 0).unwrap();
        let entries = found.records.iter().map(|(_, payload)| {
            serde_json::from_slice::<serde_json::Value>(payload).unwrap()["asked"].clone()
        });
        entries
            .filter(|asked| asked["id"]["purpose"] == "rollout")
            .map(|asked| self.luck(serde_json::from_value(asked["key"].clone()).unwrap()))
            .collect()
    }
}

fn all_begun(folder: &Folder) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("begun.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Kills or stops the run at a random time, or after so many more episodes have begun. Returns how it ended,
/// if it ended first.
fn kill(folder: &Folder, whole: Duration, dice: &mut Dice) -> Option<Ended> {
    let (begin, at) = (Instant::now(), whole.mul_f64(dice.roll()));
    let is_by_time = dice.below(3) == 0;
    let length = || std::fs::metadata(folder.join("begun.txt")).map_or(0, |found| found.len());
    let wanted = length() + 10 * (1 + dice.below(60)) as u64;
    let stop = Stop::drawn(dice);
    killed_when(folder, &[], stop, || if is_by_time { begin.elapsed() >= at } else { length() >= wanted })
}

#[test]
fn what_an_environment_said_is_replayed_from_the_journal() {
    replayed(num_kills(1));
}

#[test]
#[ignore = "long: .ci/all"]
fn what_an_environment_said_is_replayed_after_many_kills() {
    replayed(num_kills(4));
}

fn replayed(num_kills: usize) {
    let mut dice = Dice::new();
    for case in &CASES {
        let (mut kills, mut whole) = (0, Duration::from_secs(3));
        while kills < num_kills {
            let folder = case.folder();
            let run = folder.join("runs/tiny");
            let mut ended = None;
            // What was on disk at each kill, and how many episodes had begun by then.
            let mut known: Vec<(usize, HashSet<String>)> = Vec::new();
            for _ in 0..(num_kills - kills).min(8) {
                ended = kill(&folder, whole, &mut dice);
                if ended.is_some() {
                    break;
                }
                kills += 1;
                known.push((all_begun(&folder).len(), case.journalled(&run)));
            }
            let ended = ended.unwrap_or_else(|| folder.wait(start_run(&folder, &[])));
            assert_eq!(ended.code, Some(0), "{}: {}", case.name, ended.shown());
            let begun = all_begun(&folder);
            for (num_begun, had) in known.iter().filter(|_| !case.draws_again()) {
                let again: Vec<&String> =
                    begun[*num_begun..].iter().filter(|luck| had.contains(*luck)).collect();
                assert_eq!(again, [] as [&String; 0], "{}: it was journalled", case.name);
            }

            // The run that was never killed and got the same answers.
            let replay = case.folder();
            let files = ["config.yaml", "started", "episodes.bin", "order.bin"];
            folder.copy("runs/tiny", &replay, "runs/tiny", &files);
            let began = Instant::now();
            let replayed = replay.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
            whole = began.elapsed().max(Duration::from_secs(1));
            assert_eq!(all_begun(&replay), [] as [String; 0], "{}: all of it was journalled", case.name);
            assert_eq!(ended.stdout, replayed.stdout, "{}", case.name);
            Left::by(&run).assert_same(&Left::by(&replay.join("runs/tiny")));
        }
    }
}

/// Draws only by its luck and the answers.
const FAIR: &str = r#"
import json, random, sys

games = {}
def answer(op, asked):
    if op == "hello":
        return {"protocol": "tamis-environment/1", "name": "fair", "is_deterministic": True}
    if op == "levels":
        first = 0 if asked["split"] == "train" else 100
        return {"levels": [{"level": n, "prompt": f"go {n}"} for n in range(first, first + min(asked["count"], 48))]}
    if op == "reset":
        games[asked["episode"]] = random.Random(asked["luck"]), 0
        return {}
    if op == "step":
        draw, turn = games[asked["episode"]]
        games[asked["episode"]] = draw, turn + 1
        over, reward = turn == 1, (draw.randint(0, 2) + len(asked["action"]) % 2) / 2
        shown = [] if over else [{"role": "user", "content": f"now {draw.randint(0, 9)}"}]
        return {"messages": shown, "reward": reward, "terminated": over}
    return {}

for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"]} | answer(asked["op"], asked)), flush=True)
"#;

#[test]
fn a_run_in_a_deterministic_environment_ends_as_if_it_had_not_been_killed() {
    let new = || CASES[0].folder().with("noise.py", FAIR);
    Undisturbed::of(new()).assert_same_through_kills(num_kills(4), new);
}

#[test]
fn nothing_is_journalled_of_what_is_a_function_of_its_key() {
    let config = CONFIG
        .replaced("DATA", "task: environment")
        .replaced(
            "ENVIRONMENT",
            "kind: frozen_lake, style: plain, size: 3, prompting: {max_turns: 2}, train_size: 16, val_size: 2",
        )
        .replaced("SCHEDULE", "max_num_gen_batches: 50")
        .replaced("filter: {kind: variance, metric: seq_reward}\n", "")
        .replaced("total_steps: 6", "total_steps: 2");
    let folder = Folder::new().with("config.yaml", &config);
    folder.tamis(&["train", "config.yaml"]).succeeds();
    let run = begun(&folder).expect("it has begun");
    for file in ["episodes.bin", "order.bin", "samples.bin"] {
        assert!(!run.join(file).exists(), "{file}");
    }
}
