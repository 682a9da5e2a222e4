//! Runs that sample at servers: `tamis train` against `tamis serve`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod serving;
mod tamis;

use serving::Serving;
use tamis::Folder;

/// What a run against servers has beside its configuration: a policy that was warm-started before, for servers serve a checkpoint.
const SERVED: [&str; 4] =
    ["~model.init", "+model.path=first/checkpoints/step_1", "warm_start.steps=0", "train.total_steps=4"];

fn first(folder: &Folder) {
    folder.tamis(&["train", "tiny.yaml", "run.dir=.", "run.name=first", "train.total_steps=1"]).succeeds();
}

fn metrics(folder: &Folder, run: &str) -> Vec<serde_json::Value> {
    folder
        .read(&format!("runs/{run}/metrics.jsonl"))
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The server samples by our keys, so that the batches, the metrics and the weights are those of the run that needs none; also where it is
/// killed on the way, and where the run is.
#[test]
fn a_run_over_servers_is_the_run_without() {
    let folder = Folder::tiny();
    first(&folder);
    folder.tamis(&[&["train", "tiny.yaml", "run.name=alone"], &SERVED[..]].concat()).succeeds();
    let servers = [0, 1].map(|_| Serving::begin(&folder, &["first"]));
    let addresses = format!("rollout.servers=[{}, {}]", servers[0].address, servers[1].address);
    let over = ["rollout.backend=vllm", &addresses];
    let ended =
        folder.tamis(&[&["train", "tiny.yaml", "run.name=served"], &SERVED[..], &over].concat()).succeeds();
    let weights = |run: &str| {
        std::fs::read(folder.join(&format!("runs/{run}/checkpoints/step_4/model.safetensors"))).unwrap()
    };
    assert!(weights("alone") == weights("served"), "{}", ended.shown());
    for (alone, served) in metrics(&folder, "alone").iter().zip(metrics(&folder, "served")) {
        for name in ["critic/score/mean", "groups/generated", "groups/dropped", "loss", "actor/grad_norm"] {
            assert_eq!(alone[name], served[name], "{name} of {served}");
        }
    }
    // Two steps, then one server less, then the rest.
    let part = |last: &str| folder.tamis(&[&["train"], &["--resume", "runs/part", last][..]].concat());
    folder
        .tamis(
            &[&["train", "tiny.yaml", "run.name=part"], &SERVED[..], &over, &["train.total_steps=2"]]
                .concat(),
        )
        .succeeds();
    let [gone, _left] = servers;
    assert_eq!(gone.end("-KILL"), None);
    part("train.total_steps=4").succeeds();
    assert!(weights("alone") == weights("part"));
    // What servers read is not left to grow.
    let published = std::fs::read_dir(folder.join("runs/served/published")).unwrap().count();
    assert_eq!(published, 2);
}

/// Nothing answers: exit code 3 with what was tried, soon, and nothing is left behind.
#[test]
fn no_server_answers() {
    let folder = Folder::tiny();
    first(&folder);
    let arguments = [
        &["train", "tiny.yaml"],
        &SERVED[..],
        &[
            "rollout.backend=vllm",
            "rollout.servers=[http://127.0.0.1:9]",
            "rollout.server_startup_timeout=1s",
        ],
    ]
    .concat();
    let ended = folder.tamis(&arguments);
    insta::assert_snapshot!(ended.failure(), @r"
    exit code 3
    error: no server answers: http://127.0.0.1:9: connect: client error (Connect): tcp connect error: Connection refused (os error 111)
      hint: start the servers first (`tamis serve CHECKPOINT`, or vLLM with VLLM_SERVER_DEV_MODE=1), and name them in rollout.servers
    ");
    assert!(!folder.join("runs/tiny").exists());
}
